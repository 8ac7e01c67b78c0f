"""The difference from the floor, and its false alarm rate on retrained models."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.measures.attacks import KLOM, RMIA, AttackResult, BackdoorTest, _margins, auc
from letheon.measures.attacks._backdoor import success_rate
from letheon.measures.attacks._margins import (
    MarginSamples,
    _quality_excess,
    _QualityScores,
    _RowGroup,
)
from letheon.measures.attacks._result import area_by_unit, beyond_floor_by_unit
from letheon.measures.attacks._result import is_beyond as are_apart
from letheon.measures.attacks._shadows import Probe, split_halves
from letheon.measures.attacks._verify import _World

RUNS = 100


def is_beyond(excess: Any) -> bool:
    return excess.low is not None and bool(excess.low > 0)


@given(st.integers(0, 10**6), st.integers(2, 6))
def test_values_of_units_have_the_area_as_mean(seed: int, n_units: int) -> None:
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(4, size=4 * n_units), np.arange(4 * n_units) % 2
    units = np.repeat(np.arange(n_units), 4)
    areas = area_by_unit(scores, labels, units)
    assert len(areas) == n_units
    assert areas.mean() == pytest.approx(auc(scores, labels).value)


@pytest.mark.parametrize("n", [4, 8, 16])
def test_units_are_seldom_wrong(n: int) -> None:
    rng = np.random.default_rng(n)
    # rare and discrete, as ties make them
    gaps = rng.choice([-1.0, 0.0, 1.0], size=(2000, n), p=[0.2, 0.6, 0.2])
    assert np.mean([is_beyond(beyond_floor_by_unit(each)) for each in gaps]) <= 0.04


def test_few_units_that_agree_are_luck_and_many_are_not() -> None:
    assert not is_beyond(beyond_floor_by_unit(np.full(5, 0.5)))
    assert is_beyond(beyond_floor_by_unit(np.full(6, 0.5)))
    assert beyond_floor_by_unit(np.zeros(3)).high == 0
    assert beyond_floor_by_unit(np.array([0.4])).low is None
    # rounding is no spread, and no difference
    assert not is_beyond(beyond_floor_by_unit(np.array([1e-16, 2e-16, 1e-16, 1e-16, 1e-16, 0])))


def rmia_on_noise(seed: int, shift: float = 0.0) -> AttackResult:
    """Eight unlearned and eight retrained models of one law, four references, ten people."""
    rng, n_people, all_people = np.random.default_rng(seed), 10, np.ones(10, bool)
    members = split_halves(all_people, 8, seed)
    owners = np.arange(n_people)
    logits = rng.normal(size=(20, n_people + 40)) + 2 * rng.normal(size=n_people + 40)
    logits[:8, :n_people] += shift * members
    probe: Any = Probe(None, owners)  # type: ignore[arg-type]
    known = np.zeros((4, n_people), bool)
    p = 1 / (1 + np.exp(-logits))
    return RMIA(n_targets=8)._make_result("forgotten", owners, 0.3, probe, p, members, known)


def klom_on_noise(seed: int, shift: float = 0.0) -> Any:
    rng = np.random.default_rng(seed)
    person = 3 * rng.normal(size=2)
    first, second, third = person + rng.normal(size=(3, 40, 2))
    probe: Any = None
    laws = MarginSamples(first + shift, second, third, [], probe, {})
    return _RowGroup("", np.arange(2), np.arange(2)).measure_excess(laws, KLOM().bins)


def quality_on_noise(seed: int, n_people: int = 5, shift: float = 0.0) -> Any:
    rng = np.random.default_rng(seed)
    unlearned, oracle, second = 3 * rng.normal(size=n_people) + rng.normal(size=(3, 32, n_people))
    owners = np.arange(n_people)
    after, floor = (
        _QualityScores.from_margins(law, oracle, owners) for law in (unlearned + shift, second)
    )
    return _quality_excess(after, floor)


def backdoor_on_noise(seed: int, gain: float = 0.0) -> tuple[bool, bool]:
    """Three repeats of five testers whose patterns differ, as do models: found, by which rule."""
    rng, queries = np.random.default_rng(seed), np.full(15, 30)
    pattern, nothing = rng.normal(-1, 1.5, size=15), np.zeros(15, np.int64)

    def model(rates: Any) -> _World:
        chances = 1 / (1 + np.exp(-rates - rng.normal(size=15)))
        return _World(rng.binomial(30, chances), nothing, nothing, queries)

    after, _, again = model(pattern + gain), model(pattern), model(pattern)
    rates = [success_rate("backdoor success", each.success, queries) for each in (after, again)]
    return is_beyond(BackdoorTest()._measure_excess(after, again)), are_apart(*rates)


def test_rmia_is_seldom_wrong_and_sees_a_shift() -> None:
    assert np.mean([rmia_on_noise(seed).found for seed in range(RUNS)]) <= 0.05
    assert all(rmia_on_noise(seed, 4.0).found for seed in range(5))


def test_klom_is_seldom_wrong_and_sees_a_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_margins, "ROUNDS", 39)
    assert np.mean([is_beyond(klom_on_noise(seed)) for seed in range(RUNS)]) <= 0.06
    assert all(is_beyond(klom_on_noise(seed, 2.0)) for seed in range(5))


def test_forgetting_quality_is_seldom_wrong_and_sees_a_shift() -> None:
    assert np.mean([is_beyond(quality_on_noise(seed)) for seed in range(RUNS)]) <= 0.05
    assert all(is_beyond(quality_on_noise(seed, 12, 3.0)) for seed in range(5))


def test_forgetting_quality_never_judges_fewer_than_five_people() -> None:
    assert not any(is_beyond(quality_on_noise(seed, 1, 9.0)) for seed in range(5))


def test_backdoors_are_seldom_found_where_none_is_and_more_often_than_by_two_intervals() -> None:
    assert np.mean([backdoor_on_noise(seed)[0] for seed in range(RUNS)]) <= 0.05
    by_testers, by_intervals = np.mean([backdoor_on_noise(k, 1.5) for k in range(60)], axis=0)
    assert by_testers > 0.7
    assert by_intervals < 0.3
