"""Tolerances, tuning, cost and ranges, compared with values computed by hand."""

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from letheon import (
    DaREForestClassifier,
    FisherClassifier,
    InfluenceClassifier,
    NaiveUnlearner,
    SISAClassifier,
)
from letheon.guarantee import TrainingSize
from letheon.measures import by_proof
from letheon.methods import METHODS
from letheon.select import Candidate, Check, Cost, Need, Tolerances, tune_efficiency
from letheon.select._candidates import default_candidates, name_candidates
from letheon.select._comparison import _describe_break_even
from tests.select.planted import PlantedMethod, evaluation, measure

SIZE = TrainingSize(n_people=1000, n_together=1)
numbers = st.floats(-1, 1)
margins = st.floats(0, 0.5)


def check(value: float, margin: float, limit: float, better: str = "lower") -> Check:
    return Check(measure=measure("m", value, margin, better), baseline="any", limit=limit)


@given(value=numbers, margin=margins, limit=numbers)
def test_a_verdict_is_about_the_whole_interval(value: float, margin: float, limit: float) -> None:
    low, high = value - margin, value + margin
    expected = "within" if high <= limit else "beyond" if low > limit else "undecided"
    assert check(value, margin, limit).verdict == expected
    assert check(-value, margin, -limit, "higher").verdict == expected


@given(value=numbers, limit=numbers, better=st.sampled_from(["lower", "higher"]))
def test_without_an_interval_nothing_is_decided(value: float, limit: float, better: str) -> None:
    blind = Check(measure=measure("m", value, None, better), baseline="any", limit=limit)
    assert blind.verdict == "undecided"
    assert blind.excess == math.inf
    proved = by_proof("certifiability", 0.0, note="a theorem")
    assert Check(measure=proved, baseline="any", limit=0.0).verdict == "within"


@given(value=numbers, margin=margins, limit=numbers)
def test_the_excess_is_positive_outside_only(value: float, margin: float, limit: float) -> None:
    checked = check(value, margin, limit)
    assume(abs(checked.excess) > 1e-9)
    assert (checked.excess > 0) == (checked.verdict != "within")
    assert check(-value, margin, -limit, "higher").excess == pytest.approx(checked.excess)


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        (
            check(0.05, 0.01, 0.02),
            "m 0.05 (at best 0.04), tolerance at most 0.02: outside by at least 0.02",
        ),
        (
            check(0.05, 0.01, 0.055),
            "m 0.05 (at worst 0.06), tolerance at most 0.055: undecided, it may",
        ),
        (
            check(90, 1, 95, "higher"),
            "m 90 (at best 91), tolerance at least 95: outside by at least 4",
        ),
    ],
)
def test_checks_say_what_failed_and_by_how_much(failed: Check, words: str) -> None:
    assert words in str(failed)


def test_each_tolerance_limits_its_measure() -> None:
    planted = evaluation(PlantedMethod(lost=0.01, sape=3.0, agreement=97.0))
    checked = Tolerances(effectiveness=0.02, certifiability=4.0, consistency=98.0).check(planted)
    assert [(c.measure.name, c.baseline, c.limit, c.verdict) for c in checked] == [
        ("score lost", "ordinary model", 0.02, "within"),
        ("certifiability", "same algorithm", 4.0, "within"),
        ("output consistency", "same algorithm", 98.0, "beyond"),
    ]
    nothing = Tolerances(effectiveness=None, certifiability=None)
    assert nothing.check(planted) == ()
    assert nothing.by_measure() == {}


@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan])
def test_tolerances_are_numbers(value: float) -> None:
    with pytest.raises(ValueError, match=r"effectiveness must be None or a number"):
        Tolerances(effectiveness=value)


@given(scores=st.lists(st.floats(0, 1), min_size=1, max_size=6), goal=st.floats(0, 1))
def test_tuning_stops_at_the_first_value_below_the_goal(scores: list[float], goal: float) -> None:
    tried: list[int] = []

    def score(value: int) -> float:
        tried.append(value)
        return scores[value]

    tuning = tune_efficiency(score, "p", range(len(scores)), goal)
    failed = next((i for i, s in enumerate(scores) if s < goal), len(scores))
    assert tuning.chosen == max(failed - 1, 0)
    assert tried == list(range(min(failed + 1, len(scores))))
    assert tuning.values == tuple(tried)


def test_tuning_says_what_was_tried() -> None:
    tuning = tune_efficiency({1: 0.9, 2: 0.8}.__getitem__, "n_shards", (1, 2), 0.85)
    assert str(tuning) == "n_shards=1 (scores 1: 0.9, 2: 0.8; required 0.85)"


def cost(calls: int, fit: float, forget: float, retrain: float) -> Cost:
    return Cost(calls=calls, fit=fit, forget=forget, retrain=retrain)


def test_cost_by_hand() -> None:
    few, many = cost(3, 10.0, 0.1, 1.0), cost(1000, 10.0, 0.1, 1.0)
    assert (few.method, few.plain) == pytest.approx((10.3, 4.0))
    assert (many.method, many.plain) == pytest.approx((110.0, 1001.0))
    assert few.retraining_is_cheaper
    assert not many.retraining_is_cheaper
    # 10 + 0.1 k <= 1 + k from k = 10 on
    assert few.pays_from == 10


def test_a_method_that_forgets_slowly_pays_for_few_calls_only() -> None:
    # 0.5 + 1.25 k <= 1 + k up to k = 2
    total = cost(1, 0.5, 1.25, 1.0)
    assert (total.pays_from, total.pays_to) == (0, 2)
    assert _describe_break_even(total) == "the method pays off only up to 2 call(s) of forget"
    assert _describe_break_even(cost(1, 0.5, 3.0, 1.0)) == "the method never pays off"
    assert _describe_break_even(cost(1, 2.0, 1.0, 1.0)) == "the method never pays off"
    assert (
        _describe_break_even(cost(1, 1.0, 1.0, 1.0))
        == "the method pays off from the first request on"
    )


def test_a_method_that_is_slow_in_everything_never_pays() -> None:
    assert cost(5, 2.0, 3.0, 1.0).pays_from == math.inf
    assert cost(5, 1.0, 1.0, 1.0).pays_from == 0
    assert cost(5, 0.5, 0.1, 1.0).pays_from == 0


times = st.integers(1, 1000).map(lambda ms: ms / 1000)


@given(fit=times, forget=times, retrain=times, calls=st.integers(0, 3000))
def test_the_method_pays_for_those_numbers_of_calls(
    fit: float, forget: float, retrain: float, calls: int
) -> None:
    total = cost(calls, fit, forget, retrain)
    assume(abs(total.method - total.plain) > 1e-6)
    assert (total.pays_from <= calls <= total.pays_to) == (not total.retraining_is_cheaper)


@pytest.mark.parametrize(
    ("estimator", "size", "efficiency", "certifiability"),
    [
        (DaREForestClassifier(), SIZE, {"random_depth": (0, 1, 2, 4, 6, 8)}, {}),
        (DaREForestClassifier(max_depth=3), SIZE, {"random_depth": (0, 1, 2)}, {}),
        (SISAClassifier(LogisticRegression()), SIZE, {"n_shards": (2, 4, 8, 16)}, {}),
        (SISAClassifier(LogisticRegression()), TrainingSize(60, 1), {"n_shards": (2,)}, {}),
        (InfluenceClassifier(), SIZE, {}, {"sigma": (0.01, 0.1)}),
        (
            FisherClassifier(),
            TrainingSize(1000, 80),
            {"batch_size": (10, None)},
            {"sigma": (0.01, 0.1)},
        ),
        (NaiveUnlearner(LogisticRegression()), SIZE, {}, {}),
    ],
)
def test_default_ranges(
    estimator: Any, size: TrainingSize, efficiency: dict[str, Any], certifiability: dict[str, Any]
) -> None:
    assert Candidate(estimator).ranges(size) == (efficiency, certifiability)


def test_given_ranges_replace_those_of_the_method() -> None:
    candidate = Candidate(InfluenceClassifier(), certifiability={"sigma": [2.0]})
    assert candidate.ranges(TrainingSize(1000, 80)) == ({}, {"sigma": (2.0,)})
    none = Candidate(DaREForestClassifier(), efficiency={})
    assert none.ranges(SIZE) == ({}, {})


def test_candidates_that_make_no_sense_are_refused() -> None:
    with pytest.raises(TypeError, match="wrap it in NaiveUnlearner or SISA"):
        Candidate(LogisticRegression())
    with pytest.raises(ValueError, match="has no parameter 'depth'"):
        Candidate(DaREForestClassifier(), efficiency={"depth": [1]})
    with pytest.raises(ValueError, match="the list of values for 'random_depth' must not be empty"):
        Candidate(DaREForestClassifier(), efficiency={"random_depth": []})
    with pytest.raises(ValueError, match="is exact and has no certifiability parameters"):
        Candidate(DaREForestClassifier(), certifiability={"random_depth": [1]})
    with pytest.raises(ValueError, match="candidates is empty"):
        name_candidates([])
    with pytest.raises(ValueError, match="duplicate candidate"):
        name_candidates([PlantedMethod(), PlantedMethod()])


def test_names_tell_candidates_apart() -> None:
    candidates = name_candidates(
        [PlantedMethod(speed=2.0), PlantedMethod(speed=3.0), SISAClassifier(LogisticRegression())]
    )
    assert list(candidates) == [
        "PlantedMethod(speed=2.0)",
        "PlantedMethod(speed=3.0)",
        "SISAClassifier of LogisticRegression",
    ]


def registered(*, nets: bool) -> set[str]:
    return {
        method.name
        for method in METHODS
        if method.is_candidate and nets == (method.module == "letheon.deep")
    }


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_default_candidates_are_all_methods_with_the_certificate_asked_for(task: Any) -> None:
    need = Need(requests="adaptive", epsilon=0.5, delta=1e-6)
    candidates, left_out = default_candidates(need, task, LogisticRegression())
    assert {each.facts.method for each in candidates.values()} == registered(nets=False)
    assert "letheon.deep" in left_out
    for candidate in candidates.values():
        params = candidate.estimator.get_params(deep=False)
        if candidate.facts.certificate == "certified":
            assert (params["epsilon"], params["delta"]) == (0.5, 1e-6)


def test_default_candidates_for_nets() -> None:
    pytest.importorskip("torch")
    candidates, left_out = default_candidates(Need(family="net"), "classification", None)
    assert all(each.facts.families == ("net",) for each in candidates.values())
    assert {each.facts.method for each in candidates.values()} == registered(nets=True)
    assert "backbone" in left_out["CertifiedHeadClassifier"]
    assert all(each.ranges(SIZE) != ({}, {}) for each in candidates.values())
