"""The choice itself: known best answers, nobody good enough, order, and planted bugs."""

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
from tests.select.planted import Planted, PlantedExact, Rule, evaluate_planted, people
from tests.sharded.people import examples

mpl.use("Agg")


@pytest.fixture(autouse=True)
def planted_results() -> Iterator[None]:
    """Report what is planted; other models are evaluated in earnest."""
    real = letheon.evaluate

    def either(model: Any, *given: Any, **options: Any) -> Any:
        run = evaluate_planted if isinstance(model, Planted) else real
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
    return Candidate(Planted(**planted), name=name)


def test_the_fastest_within_tolerance_is_chosen() -> None:
    found = compare(
        fixed("fastest", speed=500.0, lost=0.05),
        fixed("good", speed=300.0, lost=0.004),
        fixed("slow", speed=12.0),
        fixed("leaky", speed=400.0, sape=9.0),
        need=Need(guarantee="certified"),
    )
    assert found.best is not None
    assert found.best.name == "good"
    assert "good: 300x faster than retraining DummyClassifier (at least 270x)" in found.reason
    assert "accuracy 0.004 below it (at worst 0.005 below, tolerance 0.02)" in found.reason
    assert "slow was slower: 12x (at least 10.8x)." in found.reason
    assert "fastest is not within the tolerances: score lost 0.05 (at best 0.049)" in found.reason
    assert (
        "leaky is not within the tolerances: certifiability 9 % where at most 5 %" in found.reason
    )
    assert "beyond by 4 at least (one retrain against another: 0.5 %)." in found.reason


def assert_the_sure_one_is_chosen() -> None:
    found = compare(
        fixed("fast but unsure", speed=100.0, lost=0.015, margin=0.02),
        fixed("sure", speed=50.0, lost=0.015, margin=0.002),
    )
    assert found.best is not None
    assert found.best.name == "sure"
    assert "fast but unsure is undecided: score lost 0.015 (at worst 0.035)" in found.reason


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
    found = compare(
        fixed("fast at times", speed=100.0, jitter=0.6), fixed("steady", speed=80.0, jitter=0.05)
    )
    assert found.best is not None
    assert found.best.name == "steady"


def test_ranking_is_by_the_lower_end_of_the_speed_up() -> None:
    assert_the_steady_one_is_chosen()


def test_ranking_by_values_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerating, "bad_end", lambda measure: measure.value)
    with pytest.raises(AssertionError):
        assert_the_steady_one_is_chosen()


def test_no_interval_is_no_pass_and_no_failure() -> None:
    blind = {"margin": None, "speed": 1000.0}
    found = compare(
        fixed("good value", lost=0.0, **blind), fixed("bad value", lost=0.5, **blind), fixed("sure")
    )
    assert {each.name: each.verdict for each in found.tried} == {
        "bad value": "undecided",
        "good value": "undecided",
        "sure": "within",
    }
    assert "tolerated: undecided, nothing is known about its error." in found.reason
    console = Console(width=160)
    with console.capture() as said:
        console.print(found)
    assert "?" in said.get()
    assert json.dumps(found.to_dict(), default=str)


def test_reading_a_missing_interval_as_the_value_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tolerating, "bad_end", lambda measure: measure.high if measure.high else measure.value
    )
    with pytest.raises(AssertionError):
        test_no_interval_is_no_pass_and_no_failure()


def test_words_agree_with_the_lower_ends_that_decide() -> None:
    found = compare(
        fixed("fast at times", speed=100.0, jitter=0.6), fixed("steady", speed=80.0, jitter=0.05)
    )
    assert found.reason.startswith(
        "steady: 80x faster than retraining DummyClassifier (at least 76"
    )
    assert "fast at times is less sure to be fast: 100x on average, surely 40x only." in (
        found.reason.splitlines()
    )
    assert "was slower" not in found.reason
    assert "the intervals of steady and fast at times overlap" in found.reason


@pytest.mark.parametrize(("slow", "overlap"), [(80.0, False), (85.0, True)])
def test_a_choice_is_sure_where_intervals_do_not_overlap(slow: float, overlap: bool) -> None:
    # 90 to 110 against 72 to 88, and against 76.5 to 93.5
    found = compare(fixed("fast", speed=100.0), fixed("slow", speed=slow))
    assert found.reason.startswith("fast: 100x")
    assert f"slow was slower: {slow:g}x" in found.reason
    assert ("the intervals of fast and slow overlap" in found.reason) == overlap


@pytest.mark.parametrize(
    ("speed", "jitter", "pace", "nobody"),
    [
        (2.0, 0.1, "2x faster than retraining DummyClassifier (at least 1.8x)", ""),
        (
            1.5,
            0.6,
            "1.5x faster than retraining DummyClassifier on average, perhaps slower (at least 0.6x",
            "Nobody within the tolerances is surely faster than plain retraining of Dummy",
        ),
        (
            0.5,
            0.1,
            "slower than retraining DummyClassifier, at 0.5x of its speed (at least 0.45x)",
            "Nobody within the tolerances is faster than plain retraining of Dummy",
        ),
    ],
)
def test_no_gain_is_not_praised(speed: float, jitter: float, pace: str, nobody: str) -> None:
    found = compare(fixed("one", speed=speed, jitter=jitter))
    assert found.reason.startswith(f"one: {pace}")
    assert nobody in found.reason
    assert ("Nobody" in found.reason) == bool(nobody)


@pytest.mark.parametrize(
    ("margins", "words"),
    [
        ([0.001], ""),
        ([0.001, 0.0], ""),
        (
            [0.001, 0.002, 0.003, None],
            "3 settings were judged by the same 10 test rows",
        ),
        ([0.001] * 8, "that one of them passes by luck is up to 20%"),
    ],
)
def test_many_settings_judged_by_the_same_rows_are_said(
    margins: list[float | None], words: str
) -> None:
    found = compare(*(fixed(f"c{i}", margin=margin) for i, margin in enumerate(margins)))
    assert words in found.reason
    assert ("by luck" in found.reason) == bool(words)


def test_a_model_that_is_surely_better_is_said_to_be() -> None:
    found = compare(fixed("one", lost=-0.05, margin=0.01))
    assert "accuracy 0.05 above it (at worst 0.04 above, tolerance 0.02)" in found.reason


def ruled(n: int, n_wrong: int) -> tuple[Any, Any]:
    """Return rows of which `Rule(0.5)` has the first ones wrong."""
    X, _ = people(n)
    X[:, 1] = np.arange(n) >= n_wrong
    return X, (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize("form", ["tuple", "Dataset"])
def test_test_rows_without_ids_are_nobody_s(form: str) -> None:
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
    found = choose(
        train if form == "tuple" else whole,
        test=test if form == "tuple" else None,
        tolerances=Tolerances(effectiveness=0.5),
        candidates=[NaiveUnlearner(Rule(0.5))],
        ordinary=Rule(),
        requests=Requests(n=6),
        cv=2,
    )
    assert found.best is not None
    # One of all 30 rows, whoever left: training people 0 to 29 are not test rows 0 to 29.
    assert found.best.points["score lost"].value == pytest.approx(1 / 30)


def test_few_test_rows_decide_nothing_even_where_all_runs_agree() -> None:
    found = choose(
        ruled(40, 0),
        test=ruled(20, 0),
        candidates=[NaiveUnlearner(Rule(0.5))],
        ordinary=Rule(),
        requests=Requests(n=2),
        cv=2,
    )
    [tried] = found.tried
    assert tried.points["score lost"].value == 0
    assert tried.verdict == "undecided"
    assert found.best is None


def test_tolerances_and_needs_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match=r"be a letheon\.select\.Tolerances, not a letheon\.monit"):
        compare(fixed("one"), tolerances=monitor.Tolerances())
    with pytest.raises(TypeError, match=r"must be a letheon\.select\.Need, not a builtins\.str"):
        compare(fixed("one"), need="exact")


def test_nobody_within_tolerance_is_said_and_nothing_is_chosen() -> None:
    found = compare(
        fixed("worse", lost=0.1),
        fixed("weaker", kind="empirical"),
        fixed("unsure", lost=0.02, margin=0.01),
        need=Need(guarantee="certified"),
    )
    assert found.best is None
    assert not found.retraining_is_cheaper
    lines = found.reason.splitlines()
    assert lines[0] == "Nobody is within all tolerances; nothing was chosen."
    assert (
        "worse is not within the tolerances: score lost 0.1 (at best 0.099) where at most 0.02 "
        "is tolerated: beyond by 0.079 at least." in lines
    )
    assert any("weaker" in line and "came out empirical" in line for line in lines)
    assert any("unsure is undecided" in line and "it may be 0.01 beyond" in line for line in lines)
    assert "More seeds, test rows or requests would decide what is undecided." in lines
    with pytest.raises(
        NoCandidateError, match=r"worse is not within the tolerances: score lost 0.1"
    ):
        found.best_estimator()
    with pytest.raises(NoCandidateError, match="Nobody is within"):
        found.fit_best(*people())


def test_nobody_applicable_is_said_with_the_reasons() -> None:
    found = compare(fixed("one"), fixed("two"), need=Need(guarantee="exact"))
    assert found.best is None
    assert found.tried == ()
    assert found.excluded["one"] == "you asked for exact, and it is certified"
    assert "two was left out: you asked for exact, and it is certified." in found.reason
    with pytest.raises(NoCandidateError, match="Nobody could be tried"):
        found.best_estimator()


def test_who_refuses_these_rows_is_reported() -> None:
    found = compare(fixed("one"), fixed("two", refuses=True))
    assert found.best is not None
    assert found.excluded == {"two": "it could not be run: these rows do not suit me"}


def test_a_weaker_certificate_than_asked_for_is_no_pass() -> None:
    loose = Candidate(Planted(), efficiency={}, certifiability={"epsilon": [4.0, 1.0, 0.5]})
    found = compare(loose, need=Need(epsilon=0.6))
    assert found.best is not None
    assert found.best.settings == {"epsilon": 0.5}
    assert [each.verdict for each in found.tried] == ["beyond", "beyond", "within"]
    assert "it certifies epsilon 4, you asked for 0.6 at most" in found.tried[0].failures


def test_all_combinations_of_an_approximate_method_are_tried() -> None:
    grid = Candidate(
        Planted(), efficiency={"speed": [2.0, 4.0]}, certifiability={"sape": [0.0, 1.0, 9.0]}
    )
    found = compare(grid)
    assert len(found.tried) == 6
    assert found.best is not None
    assert found.best.name == "Planted with speed=4.0, sape=0.0"


def test_plain_retraining_is_cheaper_for_few_requests() -> None:
    candidate = fixed("dear", speed=10.0, first_fit=10.0)
    few, many = (compare(candidate, expected_requests=k) for k in (3, 1000))
    assert few.retraining_is_cheaper
    assert "For 3 request(s), plain retraining of DummyClassifier is cheaper" in few.reason
    assert "4 s against 10.3 s; the method pays from 10 calls of forget on" in few.reason
    assert not many.retraining_is_cheaper
    assert "110 s against 1,001 s of plain retraining" in many.reason
    assert "more than the 30 people of this training set" in many.reason
    assert "more than" not in few.reason


def test_requests_that_wait_are_served_together_on_both_sides() -> None:
    found = compare(
        fixed("one"),
        need=Need(immediate=False),
        requests=Requests(n=4, batch=2),
        expected_requests=9,
    )
    assert found.best is not None
    assert found.best.cost.calls == 5


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
    one, other = compare(*listed), compare(*shuffled)
    assert one.to_dict() == other.to_dict()
    good = [(-s, f"c{i}") for i, (s, v) in enumerate(plants) if v + 0.001 <= 0.02]
    assert (one.best.name if one.best else None) == (min(good)[1] if good else None)


def test_the_front_is_of_those_beaten_by_nobody() -> None:
    found = compare(
        fixed("a", speed=10.0, lost=0.0),
        fixed("b", speed=20.0, lost=0.01),
        fixed("beaten", speed=9.0, lost=0.01),
        fixed("c", speed=9.0, lost=0.01, sape=0.0, margin=0.0),
        fixed("d", speed=30.0, lost=0.5, sape=3.0),
    )
    assert [each.name for each in found.pareto()] == ["a", "b", "d"]


def test_a_comparison_can_be_read_drawn_and_written() -> None:
    found = compare(fixed("[odd] name", speed=30.0), fixed("other", speed=3.0, lost=0.1))
    frame = found.to_frame()
    assert list(frame["candidate"]) == ["[odd] name", "other"]
    assert list(frame["best"]) == [True, False]
    assert list(frame["verdict"]) == ["within", "beyond"]
    plain = json.loads(json.dumps(found.to_dict(), default=str))
    assert plain["best"] == "[odd] name"
    assert plain["tried"][1]["checks"][0]["excess"] == pytest.approx(0.081)
    console = Console(width=160)
    with console.capture() as said:
        console.print(found)
    assert "[odd] name" in said.get()
    assert "30x" in said.get()
    assert ">= 27" in said.get()
    assert found.reason.splitlines()[0] in said.get()
    assert str(found) == found.reason
    display = found.plot()
    assert display.chosen == "[odd] name"
    assert set(display.points) == {"[odd] name", "other"}
    assert set(found.evaluations) == {"[odd] name", "other"}


def test_a_forest_beats_retraining_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    # processor time: other processes do not count
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    X, y = load_breast_cancer(return_X_y=True)
    depths = {"random_depth": [0, 2]}
    found = choose(
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
    assert found.best is not None
    assert found.best.name == "DaREForestClassifier with random_depth=2"
    assert "you asked for exact, and it is certified" in found.excluded["InfluenceClassifier"]
    [tuning] = found.tunings["DaREForestClassifier"]
    assert (tuning.chosen, tuning.values) == (2, (0, 2))
    model = found.fit_best(X, y)
    assert model.guarantee_.tuning == found.tuning
    assert f"{found.n_rows:,} training rows" in found.tuning
    assert model.random_depth == 2
    assert not hasattr(found.best_estimator(), "seed_")


def test_an_exact_method_that_fails_after_tuning_is_slowed_down() -> None:
    pieces = {"pieces": [1, 2, 4, 8]}
    found = compare(Candidate(PlantedExact(), efficiency=pieces, name="exact"))
    # Cross-validation sees no price at all; the evaluation finds 0.01 for each piece.
    assert [each.settings["pieces"] for each in found.tried] == [8, 4, 2, 1]
    assert [each.verdict for each in found.tried] == ["beyond", "beyond", "undecided", "within"]
    assert found.best is not None
    assert found.best.settings == {"pieces": 1}
    [tuning] = found.tunings["exact"]
    assert tuning.chosen == 8


def test_an_exact_method_that_passes_after_tuning_is_left_as_it_is() -> None:
    pieces = {"pieces": [1, 2, 4, 8]}
    found = compare(Candidate(PlantedExact(price=0.001), efficiency=pieces))
    assert [each.settings for each in found.tried] == [{"pieces": 8}]


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


def test_a_weak_method_is_said_to_be_weak() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    found = choose(
        (X, y),
        tolerances=Tolerances(effectiveness=0.2),
        candidates=[Candidate(SISAClassifier(GaussianNB()), efficiency={"n_shards": [2]})],
        ordinary=DummyClassifier(),
        requests=Requests(n=2),
        seeds=3,
        cv=2,
    )
    assert found.best is not None
    assert "SISAClassifier of GaussianNB with n_shards=2 is weak" in found.reason


def test_regression_with_people_and_a_subsample() -> None:
    X, y = load_diabetes(return_X_y=True)
    ids = np.arange(len(y)) // 2
    found = choose(
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
    assert found.best is not None
    assert found.need.task == "regression"
    assert found.n_people == 83
    assert found.n_rows == 166
    assert "subsample of 83 people" in found.reason
    assert "random subsample" in found.tuning
    assert [check.measure.name for check in found.best.checks] == [
        "certifiability",
        "prediction gap",
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seeds": 2}, "seeds=2 must be a whole number, 3 or more"),
        ({"expected_requests": 0}, "expected_requests=0"),
        ({"cv": 1}, "cv=1"),
        ({"subsample": 0.01}, "subsample=0.01 of 30 people leaves 0"),
        ({"subsample": 31}, "subsample=31 of 30 people leaves 31"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compare(fixed("one"), **options)


def test_the_usual_ordinary_model_is_the_best_by_cross_validation() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    found = choose(
        (X[:200], y[:200]),
        need=Need(family="linear"),
        candidates=[fixed("one")],
        requests=Requests(n=2),
        cv=2,
    )
    assert found.ordinary == LogisticRegression.__name__
    assert "best by cross-validation of: LogisticRegression 0." in found.ordinary_chosen


@pytest.mark.parametrize(("given", "n"), [(3, 3), (0.1, 0.1), (np.int64(2), 2)])
def test_requests_may_be_a_number(given: Any, n: float) -> None:
    found = compare(fixed("one"), requests=given)
    assert found.requests == Requests(n=n)
    assert found.best is not None


def test_requests_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match=r"a number of people or a letheon\.datasets\.Requests"):
        compare(fixed("one"), requests=[[1], [2]])


@pytest.mark.parametrize(
    ("candidates", "error", "text"),
    [([], ValueError, "nobody to choose from"), ([LogisticRegression()], TypeError, "wrap any")],
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
    found = compare(
        fixed("good", speed=20.0),
        fixed("leaky", sape=9.0),
        fixed("unsure", lost=0.019, margin=0.01),
    )
    assert found.plot().doubtful == {"leaky", "unsure"}
