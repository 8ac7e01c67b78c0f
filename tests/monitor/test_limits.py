"""Limits: hand-computed cases, the conformal claim in simulation, planted bugs."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.measures import sape
from letheon.monitor._limits import (
    SCORES,
    Limit,
    Rehearsal,
    Tally,
    blend_scores,
    compute_scores,
    fit_limit,
    fit_powers,
    score_at_breach,
)

FLOORS = dict.fromkeys(SCORES, 1e-9)


def rehearsal(scores: list[float], truths: list[float], kind: str = "uniform") -> Rehearsal:
    """A stream whose scores are all the same, looked at after every request."""
    return Rehearsal(kind, dict.fromkeys(SCORES, scores), list(range(len(truths))), truths)


def test_the_survey_scores_by_hand() -> None:
    tally = Tally(rows_then=100)
    tally.add(np.array([0.5, 0.1]))
    cert = compute_scores("certifiability", 0.8, 0.9, 0.2, tally)
    effect = compute_scores("effectiveness", 0.8, 0.9, 0.2, tally)
    assert cert["metric"] == sape(0.8, 0.9)
    assert effect["metric"] == pytest.approx(0.1)
    assert cert["movement"] == 0.2
    assert cert["share"] == 0.02
    assert cert["weight"] == pytest.approx(0.006)
    assert cert["doubt"] == pytest.approx(0.26 / 1.4)


def test_doubt_is_finite_when_the_model_knew_nothing() -> None:
    tally = Tally(rows_then=10)
    tally.add(np.ones(2))
    assert np.isfinite(compute_scores("certifiability", 0.0, 0.0, 0.0, tally)["doubt"])


def test_an_estimate_is_factor_times_score() -> None:
    limit = Limit("share", 2.0, 0.01, 0.05)
    assert limit.estimate({"share": 0.2}) == 0.4


def test_a_score_of_zero_counts_as_the_floor() -> None:
    limit = Limit("metric", 2.0, 0.01, 0.05)
    assert limit.estimate({"metric": 0.0}) == 0.02


def test_recalibration_is_the_ratio_of_truth_to_score() -> None:
    limit = Limit("metric", 2.0, 0.01, 0.05)
    assert limit.raise_factor(0.5, {"metric": 0.1}).factor == 5.0


def test_zero_over_zero_keeps_the_factor() -> None:
    limit = Limit("metric", 2.0, 0.01, 0.05)
    assert limit.raise_factor(0.0, {"metric": 0.0}).factor == 2.0


def test_a_truth_over_a_score_of_zero_is_divided_by_the_floor() -> None:
    limit = Limit("metric", 2.0, 0.01, 0.05)
    assert limit.raise_factor(0.1, {"metric": 0.0}).factor == pytest.approx(10.0)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=20))
def test_the_factor_never_falls(history: list[tuple[float, float]]) -> None:
    limit = Limit("metric", 1.0, 0.01, 0.05)
    for truth, score in history:
        after = limit.raise_factor(truth, {"metric": score})
        assert after.factor >= limit.factor
        assert after.estimate({"metric": score}) >= truth * (1 - 1e-12)
        limit = after


def test_the_score_at_a_breach_is_that_of_the_request_after_the_last_good_look() -> None:
    stream = Rehearsal("uniform", {"share": [1, 2, 3, 4, 5, 6]}, [1, 3, 5], [0.0, 0.0, 9.0])
    assert score_at_breach(stream, "share", 1.0) == 5


def test_a_breach_at_the_first_look_may_have_come_with_the_first_request() -> None:
    stream = Rehearsal("uniform", {"share": [1, 2, 3]}, [2], [9.0])
    assert score_at_breach(stream, "share", 1.0) == 1


def test_without_a_breach_nothing_is_claimed_beyond_the_end() -> None:
    stream = Rehearsal("uniform", {"share": [1, 2, 3]}, [0, 2], [0.0, 0.5])
    assert score_at_breach(stream, "share", 1.0) == 3


def test_the_threshold_is_the_least_of_nineteen() -> None:
    streams = [rehearsal([0.1, float(at)], [0.0, 2.0]) for at in range(1, 20)]
    limit = fit_limit(streams, 1.0, floors=FLOORS, miss=0.05)
    assert limit.factor == pytest.approx(1.0)
    assert limit.miss == 0.05


def test_with_thirty_nine_streams_one_may_be_missed() -> None:
    streams = [rehearsal([0.1, float(at)], [0.0, 2.0]) for at in range(1, 40)]
    assert fit_limit(streams, 1.0, floors=FLOORS, miss=0.05).factor == pytest.approx(0.5)


def test_too_few_streams_say_so() -> None:
    streams = [rehearsal([0.1, 1.0], [0.0, 2.0])] * 3
    assert fit_limit(streams, 1.0, floors=FLOORS, miss=0.05).miss == 0.25


def test_the_worst_kind_counts() -> None:
    mild = [rehearsal([0.1, 8.0], [0.0, 2.0])] * 19
    harsh = [rehearsal([0.1, 2.0], [0.0, 2.0], kind="worst")] * 19
    assert fit_limit(mild + harsh, 1.0, floors=FLOORS, miss=0.05).factor == pytest.approx(0.5)


def test_a_blind_score_is_not_chosen() -> None:
    """The survey's score stays 0 when the model does not move; the share does not."""
    scores = {name: [0.0] * 4 for name in SCORES} | {"share": [0.1, 0.2, 0.3, 0.4]}
    streams = [Rehearsal("uniform", scores, [0, 1, 2, 3], [0.0, 0.0, 0.0, 2.0])] * 19
    limit = fit_limit(streams, 1.0, floors=dict.fromkeys(SCORES, 0.01), miss=0.05)
    assert limit.score == "share"
    assert limit.estimate({"share": 0.3}) < 1.0 < limit.estimate({"share": 0.4})


def test_if_every_score_is_blind_the_answer_is_always_retrain() -> None:
    scores = {name: [0.0, 0.0] for name in SCORES}
    streams = [Rehearsal("uniform", scores, [0, 1], [2.0, 2.0])] * 19
    limit = fit_limit(streams, 1.0, floors=dict.fromkeys(SCORES, 0.01), miss=0.05)
    assert limit.estimate(dict.fromkeys(SCORES, 0.0)) > 1.0


@given(st.integers(1, 200), st.integers(2, 400), st.floats(1e-4, 10))
def test_rounding_never_lets_a_breach_pass(left: int, rows: int, tolerance: float) -> None:
    share = left / rows
    streams = [rehearsal([1e-8, share], [0.0, 2 * tolerance])] * 19
    limit = fit_limit(streams, tolerance, floors=FLOORS, miss=0.05)
    assert limit.estimate(dict.fromkeys(SCORES, share)) > tolerance


def test_streams_that_choose_the_score_give_no_threshold() -> None:
    chooses = rehearsal([0.1, 0.2], [0.0, 2.0])._replace(chooses=True)
    judges = [rehearsal([0.1, 4.0], [0.0, 2.0])] * 19
    assert fit_limit([chooses, *judges], 1.0, floors=FLOORS, miss=0.05).factor == pytest.approx(
        0.25
    )


def test_the_score_is_chosen_by_those_that_choose() -> None:
    """There the share grows late; in the others it is as good as the rest."""
    early, late = [1.0, 1.0, 1.0, 1.0], [0.1, 0.2, 0.3, 1.0]
    scores = dict.fromkeys(SCORES, early) | {"share": late}
    chooses = Rehearsal("uniform", scores, [0, 1, 2, 3], [0.0, 0.0, 0.0, 2.0], chooses=True)
    judges = rehearsal([0.5, 1.0], [0.0, 2.0])
    limit = fit_limit([chooses, *[judges] * 19], 1.0, floors=FLOORS, miss=0.05)
    assert limit.score in ("share", "blend")


def test_the_weakest_group_says_what_is_proved() -> None:
    many, few = [rehearsal([1.0], [0.0])] * 39, [rehearsal([1.0], [0.0], "uniform, aged")] * 9
    assert fit_limit(many + few, 1.0, floors=FLOORS, miss=0.025).miss == 0.1


def test_a_model_that_cannot_be_judged_has_infinite_scores() -> None:
    scores = compute_scores("certifiability", np.nan, 0.5, 0.0, Tally(10))
    assert set(scores.values()) == {np.inf}
    assert Limit("share", 1e-9, 0.1, 0.05).estimate(scores) == np.inf


def test_a_rehearsal_that_cannot_be_judged_does_not_break_the_fit() -> None:
    broken = rehearsal([np.inf, np.inf], [np.inf, np.inf])
    fine = [rehearsal([0.1, 4.0], [0.0, 2.0])] * 19
    assert np.isfinite(fit_limit([broken, *fine], 1.0, floors=FLOORS, miss=0.05).factor)


def test_the_blend_finds_the_law_of_the_truth() -> None:
    """The truth is 0.001 share**2 movement: powers 2 and 1, and nothing of the rest."""
    rng = np.random.default_rng(0)
    streams = []
    for _ in range(30):
        scores = {name: np.sort(rng.uniform(1, 9, 5)).tolist() for name in SCORES}
        law = zip(scores["share"], scores["movement"], strict=True)
        truths = [0.001 * share**2 * movement for share, movement in law]
        streams.append(Rehearsal("uniform", scores, list(range(5)), truths))
    floors = dict.fromkeys(SCORES, 1.0)
    powers = fit_powers(streams, 0.1, floors)
    assert powers["share"][0] == pytest.approx(2.0)
    assert powers["movement"][0] == pytest.approx(1.0)
    assert sum(powers[name][0] for name in powers) == pytest.approx(3.0)
    limit = fit_limit(streams, 0.1, floors=floors, miss=0.05)
    assert limit.score == "blend"
    seen = {**dict.fromkeys(SCORES, 1.0), "share": 2.0, "movement": 3.0}
    assert limit.estimate(seen) == pytest.approx(limit.factor * 12.0)


@given(st.dictionaries(st.sampled_from(SCORES), st.floats(0, 5), min_size=1), st.floats(1, 10))
def test_the_blend_grows_with_every_score(powers: dict[str, float], more: float) -> None:
    pairs = {name: (power, 0.5) for name, power in powers.items()}
    low, high = dict.fromkeys(SCORES, 1.0), dict.fromkeys(SCORES, more)
    assert 1 <= blend_scores(pairs, low) <= blend_scores(pairs, high)


def test_a_limit_survives_json() -> None:
    limit = Limit("blend", 2.0, 1.0, 0.05, {"share": (1.5, 0.01)})
    assert Limit.from_dict(json.loads(json.dumps(limit.to_dict()))) == limit


def _missed(n_trials: int, *, shift: float = 1.0) -> float:
    """Share of simulated streams whose breach comes before the estimate reaches the tolerance."""
    rng, missed, n_streams = np.random.default_rng(0), 0, 19
    for _ in range(n_trials):
        reached = rng.lognormal(size=n_streams + 1)
        streams = [rehearsal([1e-6, float(at)], [0.0, 2.0]) for at in reached[1:]]
        limit = fit_limit(streams, 1.0, floors=FLOORS, miss=0.05)
        score = dict.fromkeys(SCORES, float(reached[0]))
        missed += limit.estimate(score) * shift <= 1.0
    return missed / n_trials


def test_breaches_are_missed_as_rarely_as_claimed() -> None:
    """Binomial standard error: 0.5 %."""
    assert _missed(2000) == pytest.approx(0.05, abs=0.015)


def test_a_planted_shift_of_the_threshold_is_seen() -> None:
    assert _missed(500, shift=0.7) > 0.07
