"""The choice itself: known best results, no acceptable result, order, and planted bugs."""

import json
import time
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import letheon
from letheon import (
    DaREForestClassifier,
    DaREForestRegressor,
    InfluenceClassifier,
    NaiveUnlearner,
    SISAClassifier,
    monitor,
)
from letheon.datasets import Dataset, Requests, info
from letheon.exceptions import NoCandidateError
from letheon.select import Candidate, Comparison, Need, Tolerances, choose, tune_efficiency
from letheon.select import _choose as choosing
from letheon.select import _results as tolerating
from tests.select.planted import (
    PlantedExact,
    PlantedMethod,
    ThresholdRule,
    evaluate_planted,
    people,
)
from tests.sharded.people import examples

mpl.use("Agg")


@pytest.fixture(autouse=True)
def planted_results() -> Iterator[None]:
    """Report what is planted; other models are evaluated in earnest."""
    real = letheon.evaluate

    def either(model: Any, *given: Any, **options: Any) -> Any:
        run = evaluate_planted if isinstance(model, PlantedMethod) else real
        return run(model, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "evaluate", either)
        yield


def compare(*candidates: Any, **options: Any) -> Comparison:
    usual = {
        "candidates": candidates,
        "ordinary": DummyClassifier(),
        "requests": Requests(n=2),
        "cv": 2,
    }
    return choose(people(), **{**usual, **options})


def fixed(name: str, **planted: Any) -> Candidate:
    return Candidate(PlantedMethod(**planted), name=name)


def test_the_fastest_within_tolerance_is_chosen() -> None:
    comparison = compare(
        fixed("fastest", speed=500.0, lost=0.05),
        fixed("good", speed=300.0, lost=0.004),
        fixed("slow", speed=12.0),
        fixed("leaky", speed=400.0, sape=9.0),
        need=Need(guarantee="certified"),
    )
    assert comparison.best is not None
    assert comparison.best.name == "good"
    assert "good: 300x faster than retraining DummyClassifier (at least 270x)" in comparison.reason
    assert "accuracy 0.004 below it (at worst 0.005 below, tolerance 0.02)" in comparison.reason
    assert "slow was slower: 12x (at least 10.8x)." in comparison.reason
    assert (
        "fastest is not within the tolerances: score lost 0.05 (at best 0.049)" in comparison.reason
    )
    assert (
        "leaky is not within the tolerances: certifiability 9 %, tolerance at most 5 %"
        in comparison.reason
    )
    assert "outside by at least 4 (one retrain against another: 0.5 %)." in comparison.reason


def assert_the_sure_one_is_chosen() -> None:
    comparison = compare(
        fixed("fast but unsure", speed=100.0, lost=0.015, margin=0.02),
        fixed("sure", speed=50.0, lost=0.015, margin=0.002),
    )
    assert comparison.best is not None
    assert comparison.best.name == "sure"
    assert "fast but unsure is undecided: score lost 0.015 (at worst 0.035)" in comparison.reason


def test_an_interval_that_straddles_the_tolerance_is_no_pass() -> None:
    assert_the_sure_one_is_chosen()


def test_comparing_values_instead_of_bad_ends_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerating, "bad_end", lambda measure: measure.value)
    with pytest.raises(AssertionError):
        assert_the_sure_one_is_chosen()


def test_comparing_good_ends_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerating, "bad_end", tolerating.good_end)
    with pytest.raises(AssertionError):
        assert_the_sure_one_is_chosen()


def assert_the_steady_one_is_chosen() -> None:
    comparison = compare(
        fixed("fast at times", speed=100.0, jitter=0.6), fixed("steady", speed=80.0, jitter=0.05)
    )
    assert comparison.best is not None
    assert comparison.best.name == "steady"


def test_ranking_is_by_the_lower_end_of_the_speed_up() -> None:
    assert_the_steady_one_is_chosen()


def test_ranking_by_values_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerating, "bad_end", lambda measure: measure.value)
    with pytest.raises(AssertionError):
        assert_the_steady_one_is_chosen()


def test_no_interval_is_no_pass_and_no_failure() -> None:
    blind = {"margin": None, "speed": 1000.0}
    comparison = compare(
        fixed("good value", lost=0.0, **blind), fixed("bad value", lost=0.5, **blind), fixed("sure")
    )
    assert {each.name: each.verdict for each in comparison.tried} == {
        "bad value": "undecided",
        "good value": "undecided",
        "sure": "within",
    }
    assert "undecided, because its error is unknown." in comparison.reason
    console = Console(width=160)
    with console.capture() as capture:
        console.print(comparison)
    assert "?" in capture.get()
    assert json.dumps(comparison.to_dict(), default=str)


def test_reading_a_missing_interval_as_the_value_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tolerating, "bad_end", lambda measure: measure.high if measure.high else measure.value
    )
    with pytest.raises(AssertionError):
        test_no_interval_is_no_pass_and_no_failure()


def test_words_agree_with_the_lower_ends_that_decide() -> None:
    comparison = compare(
        fixed("fast at times", speed=100.0, jitter=0.6), fixed("steady", speed=80.0, jitter=0.05)
    )
    assert comparison.reason.startswith(
        "steady: 80x faster than retraining DummyClassifier (at least 76"
    )
    assert "fast at times is 100x faster on average, but possibly only 40x." in (
        comparison.reason.splitlines()
    )
    assert "was slower" not in comparison.reason
    assert "intervals of steady and fast at times overlap" in comparison.reason


@pytest.mark.parametrize(("slow", "overlap"), [(80.0, False), (85.0, True)])
def test_a_choice_is_sure_where_intervals_do_not_overlap(slow: float, overlap: bool) -> None:
    # 90 to 110 against 72 to 88, and against 76.5 to 93.5
    comparison = compare(fixed("fast", speed=100.0), fixed("slow", speed=slow))
    assert comparison.reason.startswith("fast: 100x")
    assert f"slow was slower: {slow:g}x" in comparison.reason
    assert ("intervals of fast and slow overlap" in comparison.reason) == overlap


@pytest.mark.parametrize(
    ("speed", "jitter", "pace", "no_gain"),
    [
        (2.0, 0.1, "2x faster than retraining DummyClassifier (at least 1.8x)", ""),
        (
            1.5,
            0.6,
            "1.5x faster than retraining DummyClassifier on average, at least 0.6x",
            "No setting within the tolerances is significantly faster than plain retraining of",
        ),
        (
            0.5,
            0.1,
            "slower than retraining DummyClassifier, at 0.5x of its speed (at least 0.45x)",
            "No setting within the tolerances is faster than plain retraining of Dummy",
        ),
    ],
)
def test_no_gain_is_not_praised(speed: float, jitter: float, pace: str, no_gain: str) -> None:
    comparison = compare(fixed("one", speed=speed, jitter=jitter))
    assert comparison.reason.startswith(f"one: {pace}")
    assert no_gain in comparison.reason
    assert ("No setting" in comparison.reason) == bool(no_gain)


@pytest.mark.parametrize(
    ("margins", "words"),
    [
        ([0.001], ""),
        ([0.001, 0.0], ""),
        (
            [0.001, 0.002, 0.003, None],
            "3 settings were tested on the same 10 test rows",
        ),
        ([0.001] * 8, "that one of them passes by chance is up to 20%"),
    ],
)
def test_many_settings_on_the_same_rows_are_reported(
    margins: list[float | None], words: str
) -> None:
    comparison = compare(*(fixed(f"c{i}", margin=margin) for i, margin in enumerate(margins)))
    assert words in comparison.reason
    assert ("by chance" in comparison.reason) == bool(words)


def test_a_better_model_is_reported_as_above() -> None:
    comparison = compare(fixed("one", lost=-0.05, margin=0.01))
    assert "accuracy 0.05 above it (at worst 0.04 above, tolerance 0.02)" in comparison.reason


def ruled(n: int, n_wrong: int) -> tuple[Any, Any]:
    """Return rows of which `ThresholdRule(0.5)` has the first ones wrong."""
    X, _ = people(n)
    X[:, 1] = np.arange(n) >= n_wrong
    return X, (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize("form", ["tuple", "Dataset"])
def test_test_rows_without_ids_belong_to_no_one(form: str) -> None:
    train, test = ruled(30, 0), ruled(30, 1)
    whole = Dataset(
        name="d",
        X=train[0],
        y=train[1],
        X_test=test[0],
        y_test=test[1],
        info=info("adult"),
        real=False,
    )
    comparison = choose(
        train if form == "tuple" else whole,
        test=test if form == "tuple" else None,
        tolerances=Tolerances(effectiveness=0.5),
        candidates=[NaiveUnlearner(ThresholdRule(0.5))],
        ordinary=ThresholdRule(),
        requests=Requests(n=6),
        cv=2,
    )
    assert comparison.best is not None
    # One of all 30 rows: training ids 0 to 29 are not those of test rows 0 to 29.
    assert comparison.best.points["score lost"].value == pytest.approx(1 / 30)


def test_few_test_rows_decide_nothing_even_where_all_runs_agree() -> None:
    comparison = choose(
        ruled(40, 0),
        test=ruled(20, 0),
        candidates=[NaiveUnlearner(ThresholdRule(0.5))],
        ordinary=ThresholdRule(),
        requests=Requests(n=2),
        cv=2,
    )
    [tried] = comparison.tried
    assert tried.points["score lost"].value == 0
    assert tried.verdict == "undecided"
    assert comparison.best is None


def test_tolerances_and_needs_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match=r"be a letheon\.select\.Tolerances, not a letheon\.monit"):
        compare(fixed("one"), tolerances=monitor.MonitorTolerances())
    with pytest.raises(TypeError, match=r"must be a letheon\.select\.Need, not a builtins\.str"):
        compare(fixed("one"), need="exact")


def test_no_setting_within_tolerance_is_reported_and_nothing_is_chosen() -> None:
    comparison = compare(
        fixed("worse", lost=0.1),
        fixed("weaker", kind="empirical"),
        fixed("unsure", lost=0.02, margin=0.01),
        need=Need(guarantee="certified"),
    )
    assert comparison.best is None
    assert not comparison.retraining_is_cheaper
    lines = comparison.reason.splitlines()
    assert lines[0] == "No setting is within all tolerances; nothing was chosen."
    assert (
        "worse is not within the tolerances: score lost 0.1 (at best 0.099), tolerance at most 0.02"
        ": outside by at least 0.079." in lines
    )
    assert any("weaker" in line and "guarantee is empirical" in line for line in lines)
    assert any(
        "unsure is undecided" in line and "it may be outside by 0.01" in line for line in lines
    )
    assert "Use more seeds, test rows or requests to decide the undecided settings." in lines
    with pytest.raises(
        NoCandidateError, match=r"worse is not within the tolerances: score lost 0.1"
    ):
        comparison.best_estimator()
    with pytest.raises(NoCandidateError, match="No setting is within"):
        comparison.fit_best(*people())


def test_no_applicable_candidate_is_reported_with_the_reasons() -> None:
    comparison = compare(fixed("one"), fixed("two"), need=Need(guarantee="exact"))
    assert comparison.best is None
    assert comparison.tried == ()
    assert comparison.excluded["one"] == "you require exact; it is certified"
    assert "two was excluded: you require exact; it is certified." in comparison.reason
    with pytest.raises(NoCandidateError, match="No candidate could be evaluated"):
        comparison.best_estimator()


def test_who_refuses_these_rows_is_reported() -> None:
    comparison = compare(fixed("one"), fixed("two", refuses=True))
    assert comparison.best is not None
    assert comparison.excluded == {"two": "evaluation failed: these rows do not suit me"}


def test_a_weaker_certificate_than_asked_for_is_no_pass() -> None:
    loose = Candidate(PlantedMethod(), efficiency={}, certifiability={"epsilon": [4.0, 1.0, 0.5]})
    comparison = compare(loose, need=Need(epsilon=0.6))
    assert comparison.best is not None
    assert comparison.best.settings == {"epsilon": 0.5}
    assert [each.verdict for each in comparison.tried] == ["beyond", "beyond", "within"]
    assert "its epsilon is 4, you require at most 0.6" in comparison.tried[0].failures


def test_all_combinations_of_an_approximate_method_are_tried() -> None:
    grid = Candidate(
        PlantedMethod(), efficiency={"speed": [2.0, 4.0]}, certifiability={"sape": [0.0, 1.0, 9.0]}
    )
    comparison = compare(grid)
    assert len(comparison.tried) == 6
    assert comparison.best is not None
    assert comparison.best.name == "PlantedMethod with speed=4.0, sape=0.0"


def test_plain_retraining_is_cheaper_for_few_requests() -> None:
    candidate = fixed("dear", speed=10.0, first_fit=10.0)
    few, many = (compare(candidate, expected_requests=k) for k in (3, 1000))
    assert few.retraining_is_cheaper
    assert "For 3 request(s), plain retraining of DummyClassifier is cheaper" in few.reason
    assert "4 s compared with 10.3 s; the method pays off from 10 calls of forget on" in few.reason
    assert not many.retraining_is_cheaper
    assert "110 s compared with 1,001 s for plain retraining" in many.reason
    assert "more than the 30 people of this training set" in many.reason
    assert "more than" not in few.reason


def test_requests_that_wait_are_served_together_on_both_sides() -> None:
    comparison = compare(
        fixed("one"),
        need=Need(immediate=False),
        requests=Requests(n=4, batch=2),
        expected_requests=9,
    )
    assert comparison.best is not None
    assert comparison.best.cost.calls == 5


speeds = st.sampled_from([1.0, 5.0, 20.0])
losses = st.sampled_from([0.0, 0.019, 0.03])
plants = st.lists(st.tuples(speeds, losses), min_size=1, max_size=4)


@examples(25)
@given(plants=plants, seed=st.integers(0, 100))
def test_the_order_of_candidates_does_not_matter(
    plants: list[tuple[float, float]], seed: int
) -> None:
    listed = [fixed(f"c{i}", speed=s, lost=v) for i, (s, v) in enumerate(plants)]
    shuffled = [listed[i] for i in np.random.default_rng(seed).permutation(len(listed))]
    first, other = compare(*listed), compare(*shuffled)
    assert first.to_dict() == other.to_dict()
    good = [(-s, f"c{i}") for i, (s, v) in enumerate(plants) if v + 0.001 <= 0.02]
    assert (first.best.name if first.best else None) == (min(good)[1] if good else None)


def test_the_front_is_not_dominated() -> None:
    comparison = compare(
        fixed("a", speed=10.0, lost=0.0),
        fixed("b", speed=20.0, lost=0.01),
        fixed("beaten", speed=9.0, lost=0.01),
        fixed("c", speed=9.0, lost=0.01, sape=0.0, margin=0.0),
        fixed("d", speed=30.0, lost=0.5, sape=3.0),
    )
    assert [each.name for each in comparison.pareto()] == ["a", "b", "d"]


def test_a_comparison_can_be_read_drawn_and_written() -> None:
    comparison = compare(fixed("[odd] name", speed=30.0), fixed("other", speed=3.0, lost=0.1))
    frame = comparison.to_frame()
    assert list(frame["candidate"]) == ["[odd] name", "other"]
    assert list(frame["best"]) == [True, False]
    assert list(frame["verdict"]) == ["within", "beyond"]
    plain = json.loads(json.dumps(comparison.to_dict(), default=str))
    assert plain["best"] == "[odd] name"
    assert plain["tried"][1]["checks"][0]["excess"] == pytest.approx(0.081)
    console = Console(width=160)
    with console.capture() as capture:
        console.print(comparison)
    assert "[odd] name" in capture.get()
    assert "30x" in capture.get()
    assert ">= 27" in capture.get()
    assert comparison.reason.splitlines()[0] in capture.get()
    assert str(comparison) == comparison.reason
    display = comparison.plot()
    assert display.chosen == "[odd] name"
    assert set(display.points) == {"[odd] name", "other"}
    assert set(comparison.evaluations) == {"[odd] name", "other"}


def test_a_forest_beats_retraining_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    # processor time: other processes do not count
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    X, y = load_breast_cancer(return_X_y=True)
    depths = {"random_depth": [0, 2]}
    comparison = choose(
        (X, y),
        need=Need(family="forest", guarantee="exact"),
        tolerances=Tolerances(effectiveness=0.3),
        candidates=[
            NaiveUnlearner(RandomForestClassifier(n_estimators=20, random_state=0)),
            Candidate(DaREForestClassifier(n_estimators=5), efficiency=depths),
            InfluenceClassifier(),
        ],
        ordinary=RandomForestClassifier(n_estimators=20, random_state=0),
        requests=Requests(n=2),
        seeds=6,
        cv=2,
    )
    assert comparison.best is not None
    assert comparison.best.name == "DaREForestClassifier with random_depth=2"
    assert "you require exact; it is certified" in comparison.excluded["InfluenceClassifier"]
    [tuning] = comparison.tunings["DaREForestClassifier"]
    assert (tuning.chosen, tuning.values) == (2, (0, 2))
    model = comparison.fit_best(X, y)
    assert model.guarantee_.tuning == comparison.tuning
    assert f"{comparison.n_rows:,} training rows" in comparison.tuning
    assert model.random_depth == 2
    assert not hasattr(comparison.best_estimator(), "seed_")


def test_an_exact_method_that_fails_after_tuning_is_slowed_down() -> None:
    pieces = {"pieces": [1, 2, 4, 8]}
    comparison = compare(Candidate(PlantedExact(), efficiency=pieces, name="exact"))
    # Cross-validation sees no price at all; the evaluation finds 0.01 for each piece.
    assert [each.settings["pieces"] for each in comparison.tried] == [8, 4, 2, 1]
    assert [each.verdict for each in comparison.tried] == [
        "beyond",
        "beyond",
        "undecided",
        "within",
    ]
    assert comparison.best is not None
    assert comparison.best.settings == {"pieces": 1}
    [tuning] = comparison.tunings["exact"]
    assert tuning.chosen == 8


def test_an_exact_method_that_passes_after_tuning_is_left_as_it_is() -> None:
    pieces = {"pieces": [1, 2, 4, 8]}
    comparison = compare(Candidate(PlantedExact(price=0.001), efficiency=pieces))
    assert [each.settings for each in comparison.tried] == [{"pieces": 8}]


def test_parameters_are_slowed_down_from_the_last_to_the_first() -> None:
    tunings = tuple(
        tune_efficiency(lambda _: 1.0, name, values, 0.5)
        for name, values in (("a", (1, 2)), ("b", (5, 6, 7)))
    )
    assert [tuple(each.values()) for each in choosing._back_off(tunings)] == [
        (2, 7),
        (2, 6),
        (2, 5),
        (1, 5),
    ]


def test_a_weak_method_is_reported() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    comparison = choose(
        (X, y),
        tolerances=Tolerances(effectiveness=0.2),
        candidates=[Candidate(SISAClassifier(GaussianNB()), efficiency={"n_shards": [2]})],
        ordinary=DummyClassifier(),
        requests=Requests(n=2),
        seeds=3,
        cv=2,
    )
    assert comparison.best is not None
    assert "SISAClassifier of GaussianNB with n_shards=2 is weak" in comparison.reason


def test_regression_with_people_and_a_subsample() -> None:
    X, y = load_diabetes(return_X_y=True)
    ids = np.arange(len(y)) // 2
    comparison = choose(
        (X, y, ids),
        need=Need(family="forest"),
        tolerances=Tolerances(effectiveness=None, certifiability=1.0, consistency=0.0),
        candidates=[Candidate(DaREForestRegressor(n_estimators=5), efficiency={})],
        ordinary=RandomForestRegressor(n_estimators=5, random_state=0),
        requests=Requests(n=2),
        subsample=0.5,
        seeds=3,
        cv=2,
    )
    assert comparison.best is not None
    assert comparison.need.task == "regression"
    assert comparison.n_people == 83
    assert comparison.n_rows == 166
    assert "subsample of 83 people" in comparison.reason
    assert "random subsample" in comparison.tuning
    assert [check.measure.name for check in comparison.best.checks] == [
        "certifiability",
        "prediction gap",
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seeds": 2}, "seeds must be at least 3, not 2"),
        ({"expected_requests": 0}, "expected_requests must be at least 1, not 0"),
        ({"cv": 1}, "cv must be at least 2, not 1"),
        ({"subsample": 0.01}, "subsample=0.01 selects 0 people"),
        ({"subsample": 31}, "subsample=31 selects 31 people"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compare(fixed("one"), **options)


def test_the_usual_ordinary_model_is_the_best_by_cross_validation() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    comparison = choose(
        (X[:200], y[:200]),
        need=Need(family="linear"),
        candidates=[fixed("one")],
        requests=Requests(n=2),
        cv=2,
    )
    assert comparison.ordinary == LogisticRegression.__name__
    assert "best by cross-validation of: LogisticRegression 0." in comparison.ordinary_chosen


@pytest.mark.parametrize(("given", "n"), [(3, 3), (0.1, 0.1), (np.int64(2), 2)])
def test_requests_may_be_a_number(given: Any, n: float) -> None:
    comparison = compare(fixed("one"), requests=given)
    assert comparison.requests == Requests(n=n)
    assert comparison.best is not None


def test_requests_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match=r"or share of people or a letheon\.datasets\.Requests"):
        compare(fixed("one"), requests=[[1], [2]])


@pytest.mark.parametrize(
    ("candidates", "error", "text"),
    [([], ValueError, "candidates is empty"), ([LogisticRegression()], TypeError, "wrap it in")],
)
def test_candidates_are_checked_before_anything_is_trained(
    candidates: list[Any], error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was trained")

    monkeypatch.setattr(choosing, "choose_best", train)
    with pytest.raises(error, match=text):
        compare(candidates=candidates)


def test_the_plot_marks_who_is_not_within_all_tolerances() -> None:
    """Neither the leaky nor the unsure one shows in the score that is drawn."""
    comparison = compare(
        fixed("good", speed=20.0),
        fixed("leaky", sape=9.0),
        fixed("unsure", lost=0.019, margin=0.01),
    )
    assert comparison.plot().doubtful == {"leaky", "unsure"}
