"""U-LiRA within pairs: chance is 1/2 if the model forgot, also for a single person."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon.measures import Measure
from letheon.measures.attacks import auc, cross_lira
from letheon.measures.attacks._lira import SignalPairs, _clip_margins, pair_auc, pair_excess
from letheon.measures.attacks._shadows import split_halves


def world(
    n_models: int, n_people: int, seed: int, shift: float = 0.0
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Unlearned and retrained signals, and who was in; people and models have effects."""
    rng, even = np.random.default_rng(seed), n_people + n_people % 2
    members = split_halves(np.ones(even, bool), n_models, seed)[:, :n_people]
    person = rng.normal(size=n_people)
    unlearned, retrained = (
        person + 0.5 * rng.normal(size=(n_models, 1)) + rng.normal(size=(n_models, n_people))
        for _ in range(2)
    )
    return unlearned + shift * members, retrained, members


def covers(measure: Measure, truth: float) -> bool:
    assert measure.low is not None
    assert measure.high is not None
    return measure.low <= truth <= measure.high


@given(st.sampled_from([8, 12, 66]), st.integers(1, 5), st.integers(0, 10**6))
def test_wins_are_those_of_the_crossed_scores(n_models: int, n_people: int, seed: int) -> None:
    signals, _, members = world(n_models, n_people, seed)
    scores = cross_lira(signals, members, np.arange(n_models) // 2)
    inside, outside = SignalPairs.from_models(scores, members)
    assert (SignalPairs.from_models(signals, members).score_wins() == (inside > outside)).all()


@pytest.mark.parametrize("n_models", [16, 64])
def test_one_person_is_a_coin(n_models: int) -> None:
    within, pooled, missed = [], [], 0
    for seed in range(200):
        signals, _, members = world(n_models, 1, seed)
        area = pair_auc(SignalPairs.from_models(signals, members))
        within.append(area.value)
        missed += not covers(area, 0.5)
        scores = cross_lira(signals, members, np.arange(n_models) // 2)
        pooled.append(auc(scores.ravel(), members.ravel()).value)
    assert abs(np.mean(within) - 0.5) < 0.025
    assert missed / 200 <= 0.05
    # what a comparison of all models with all would say
    assert np.mean(pooled) < 0.475


def test_interval_covers_people_who_differ() -> None:
    truth = np.mean([pair_auc_value(world(16, 12, seed, 1.0)) for seed in range(2000, 2300)])
    areas = [
        pair_auc(SignalPairs.from_models(w[0], w[2]))
        for w in (world(16, 12, s, 1.0) for s in range(100))
    ]
    assert np.mean([covers(each, float(truth)) for each in areas]) >= 0.93


def pair_auc_value(drawn: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> float:
    return float(SignalPairs.from_models(drawn[0], drawn[2]).score_wins().mean())


def test_all_ties_are_a_fact_and_all_wins_are_none() -> None:
    members = split_halves(np.ones(2, bool), 12, 0)
    tied = pair_auc(SignalPairs.from_models(np.ones(members.shape), members))
    assert (tied.low, tied.value, tied.high) == (0.5, 0.5, 0.5)
    sure = pair_auc(SignalPairs.from_models(members.astype(np.float64), members))
    assert sure.value == sure.high == 1
    assert sure.low is not None
    assert 0.1 < sure.low < 0.7


@pytest.mark.parametrize(("n_models", "n_people"), [(8, 1), (16, 3)])
def test_false_alarms_are_as_many_as_stated(n_models: int, n_people: int) -> None:
    n_alarms = 0
    for seed in range(150):
        excess = pair_excess(*world(n_models, n_people, seed))
        n_alarms += excess.low is not None and excess.low > 0
    assert n_alarms / 150 <= 0.05


def test_a_shift_is_found() -> None:
    excess = pair_excess(*world(24, 8, 0, 3.0))
    assert excess.value > 0.3
    assert excess.low is not None
    assert excess.low > 0


def test_a_floor_of_zero_width_is_no_free_pass() -> None:
    """One stray margin among models that are cut to one value shows nothing."""
    members = split_halves(np.ones(6, bool), 16, 0)
    floor = np.full(members.shape, 15.0)
    stray = floor.copy()
    stray[0, members[0]] -= 1.0
    excess = pair_excess(stray, floor, members)
    assert excess.low is not None
    assert excess.low <= 0
    assert pair_excess(floor, floor, members).value == 0


def test_margins_that_are_numbers_are_not_cut() -> None:
    assert _clip_margins(np.array([40.0, -60.0, 3.0])).tolist() == [40.0, -60.0, 3.0]
    # a forest's: as sure as can be, or moderate
    assert _clip_margins(np.array([100.0, -100.0, 3.0])).tolist() == [15.0, -15.0, 3.0]


def test_pairs_must_be_complements() -> None:
    with pytest.raises(ValueError, match="complements"):
        SignalPairs.from_models(np.zeros((2, 1)), np.ones((2, 1), bool))
