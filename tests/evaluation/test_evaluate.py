"""`evaluate` measures planted effects, and compares fairly."""

import io
import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import threadpoolctl
from rich.console import Console
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_regression
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.metrics import f1_score, get_scorer, mean_squared_error, zero_one_loss
from sklearn.tree import DecisionTreeClassifier

import letheon
from letheon import Evaluation
from letheon.datasets import Dataset, Requests, info, load
from letheon.evaluation import ORDINARY, SAME
from letheon.evaluation._summary import _mean_efficiency
from letheon.measures.attacks import RMIA
from tests.evaluation.stubs import SIMPLE, TEST, StubModel, X, Y, cancer, evaluate, trials_in

ABOUT = info("adult")


def test_planted_errors_are_the_measures() -> None:
    """A tenth of the test rows is turned around: accuracy 0.9 against 1.0, 90 % agreement."""
    evaluation = evaluate(StubModel(errors=0.1), (X, Y), 4, seeds=2, **SIMPLE)
    same = evaluation.measures[SAME]
    assert same["effectiveness"].value == pytest.approx(0.1)
    assert same["score lost"].value == pytest.approx(0.1)
    assert same["output consistency"].value == pytest.approx(90.0)
    # KL(0.9 || 0.1) on a tenth of the rows, by hand
    divergence = 0.1 * (0.9 * np.log(9) + 0.1 * np.log(1 / 9))
    assert same["KL consistency"].value == pytest.approx(divergence, rel=1e-3)
    assert evaluation.scores["unlearned"].value == pytest.approx(0.9)
    assert evaluation.equal_digests is None


@pytest.mark.parametrize("seeds", [1, 2])
def test_certifiability_looks_at_the_forgotten_rows(seeds: int) -> None:
    """Of ten rows that leave at once one is turned around: SAPE(0.9, 1) = 100 / 19."""
    requests = [list(range(10))]
    evaluation = evaluate(StubModel(errors=0.05), (X, Y), requests, seeds=seeds, **SIMPLE)
    assert evaluation.measures[SAME]["certifiability"].value == pytest.approx(100 / 19)
    assert evaluation.measures[SAME]["certifiability"].basis == "proxy"


class Unsure(StubModel):
    """Predicts 0.9 for the second class until the first removal, then 0.5, for every row."""

    def predict_proba(self, X: Any) -> Any:
        p = np.full(len(X), 0.5 if self.errors_ else 0.9)
        return np.column_stack([1 - p, p])


@pytest.mark.parametrize("seeds", [1, 2])
def test_divergence_is_that_of_the_unlearned_model_from_the_retrained_one(seeds: int) -> None:
    evaluation = evaluate(Unsure(errors=0.1), (X, Y), 2, seeds=seeds, **SIMPLE)
    by_hand = 0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)
    assert evaluation.measures[SAME]["KL consistency"].value == pytest.approx(by_hand, rel=1e-3)


def test_score_lost_keeps_its_sign() -> None:
    worse = {"ordinary": DummyClassifier(strategy="constant", constant=0), "test": TEST}
    evaluation = evaluate(StubModel(), (X, Y), 2, seeds=2, **worse)
    ones = TEST[1].mean()
    assert evaluation.measures[ORDINARY]["score lost"].value == pytest.approx(-ones)
    assert evaluation.measures[ORDINARY]["effectiveness"].value == pytest.approx(ones)


def test_an_exact_model_is_judged_by_proof_and_its_bytes_are_compared() -> None:
    model = letheon.SISAClassifier(SGDClassifier(loss="log_loss"), n_shards=3)
    evaluation = evaluate(model, cancer(), 3, seeds=2, ordinary=LogisticRegression(max_iter=500))
    assert evaluation.equal_digests is True
    for name in ("effectiveness", "output consistency", "KL consistency", "certifiability"):
        assert evaluation.measures[SAME][name].basis == "by proof"
        assert evaluation.measures[ORDINARY][name].basis != "by proof"
    assert evaluation.measures[SAME]["output consistency"].value == 100
    assert evaluation.work.value < 0.6
    assert evaluation.guarantee.kind == "exact"


def test_a_model_that_lies_about_being_exact_is_found_out() -> None:
    evaluation = evaluate(StubModel(errors=0.1, kind="exact"), (X, Y), 4, seeds=2, **SIMPLE)
    assert evaluation.equal_digests is False
    assert evaluation.measures[SAME]["effectiveness"].basis == "measured"
    assert "NOT equal" in str(evaluation)


class LiesOnce(StubModel):
    """Not the bytes of a fresh fit with the seed 1."""

    has_forgotten_ = False

    def forget(self, ids: Any) -> Any:
        self.has_forgotten_ = True
        return super().forget(ids)

    def digest(self) -> str:
        return f"{self.n_left_} {self.random_state == 1 and self.has_forgotten_}"


def test_nothing_is_proved_where_one_trial_differs() -> None:
    model = LiesOnce(kind="exact")
    evaluation = evaluate(model, (X, Y), 2, seeds=[0, 1], **SIMPLE)
    assert [trial.equal_digests for trial in evaluation.trials] == [True, False]
    assert evaluation.equal_digests is False
    assert evaluation.measures[SAME]["effectiveness"].basis == "measured"


def test_efficiency_is_the_time_of_retraining_over_that_of_a_request() -> None:
    evaluation = evaluate(StubModel(), (X, Y), 2, seeds=1, **SIMPLE)
    times: dict[str, tuple[float, ...]] = {SAME: (2.0, 4.0), ORDINARY: (1.0, 1.0)}
    trial = replace(evaluation.trials[0], forget_seconds=(0.5, 1.5), retrain_seconds=times)
    for trials in ([trial], [trial, trial]):
        assert _mean_efficiency(SAME, trials).value == pytest.approx(3.0)
        assert _mean_efficiency(ORDINARY, trials).value == pytest.approx(1.0)


def test_a_warm_up_comes_before_the_race_and_the_trials(diary: list[tuple[str, Any]]) -> None:
    evaluate(StubModel(), (X, Y), 1, seeds=1, comparisons=1, **SIMPLE)
    assert diary[:2] == [("fit", 400), ("forget", 1)]
    assert ("fit", 440) in diary[2:]


def test_the_order_alternates_and_all_methods_get_the_same_rows(
    diary: list[tuple[str, Any]],
) -> None:
    evaluate(StubModel(), (X, Y), 4, seeds=[0, 1], comparisons=4, **SIMPLE)
    trials = trials_in(diary)
    assert len(trials) == 2
    for number, calls in enumerate(trials):
        names = [name for name, _ in calls]
        # After the first fit: in the even trial the unlearner goes first, then the baseline does.
        first, second = ("forget", "fit") if number == 0 else ("fit", "forget")
        assert names[:4] == [first, second, second, first]
        fits = [rows for name, rows in calls if name == "fit"]
        # Retrains on 439 ... 436 rows, a fresh fit to compare with, and one for the floor.
        assert fits == [439, 438, 437, 436, 436, 436]


def test_all_methods_use_one_thread() -> None:
    seen: list[int] = []

    class WatchingTree(DecisionTreeClassifier):  # type: ignore[misc]
        def fit(self, X: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
            seen.extend(info["num_threads"] for info in threadpoolctl.threadpool_info())
            return super().fit(X, y, *args, **kwargs)

    evaluate(StubModel(), (X, Y), 2, seeds=1, ordinary=WatchingTree(), test=TEST)
    assert seen
    assert set(seen) == {1}


def test_the_report_says_how_fair_it_was() -> None:
    text = " ".join(evaluate(StubModel(), (X, Y), 2, seeds=1, **SIMPLE).fairness)
    for words in ("one thread", "alternately", "warm-up", "fastest", "deferred", "test rows"):
        assert words in text


def test_a_forgotten_person_leaves_the_test_rows_too() -> None:
    """The only test row that is wrong belongs to the person who leaves."""
    x_test, y_test = TEST
    owners = np.arange(len(y_test)) + 10_000
    y_test = y_test.copy()
    y_test[7] = 1 - y_test[7]
    owners[7] = 3
    arguments: dict[str, Any] = {"ordinary": LogisticRegression(), "seeds": 1}
    stays = evaluate(StubModel(), (X, Y), [[4]], test=(x_test, y_test, owners), **arguments)
    leaves = evaluate(StubModel(), (X, Y), [[3]], test=(x_test, y_test, owners), **arguments)
    assert stays.scores["unlearned"].value == pytest.approx(1 - 1 / len(y_test))
    assert leaves.scores["unlearned"].value == 1.0


def test_no_person_is_on_both_sides_of_the_split(diary: list[tuple[str, Any]]) -> None:
    owners = np.repeat(np.arange(88), 5)
    evaluate(StubModel(), (X, Y, owners), 2, seeds=1, ordinary=LogisticRegression())
    fitted = max(rows for name, rows in diary if name == "fit")
    assert fitted == 330  # 66 of 88 people with 5 rows each


def test_regression_and_its_analogues() -> None:
    rows, target = make_regression(120, 4, noise=5.0, random_state=0)
    model = letheon.InfluenceRegressor(l2=0.01, sigma=0.01)
    evaluation = evaluate(model, (rows, target), 3, seeds=2)
    assert evaluation.metric == "r2"
    assert all(score.high is None or score.high <= 1 for score in evaluation.scores.values())
    assert evaluation.measures[SAME]["prediction gap"].value >= 0
    assert "output consistency" not in evaluation.measures[SAME]
    assert 0 <= evaluation.measures[SAME]["certifiability"].value <= 100


def test_a_dataset_brings_its_own_people_and_test_rows() -> None:
    data = load("diabetes", synthetic="always", n_rows=400).split(0.25, seed=0)
    assert isinstance(data, Dataset)
    model = letheon.DaREForestClassifier(n_estimators=3)
    requests = Requests(kind="person", n=4, batch=2)
    evaluation = evaluate(model, data, requests, seeds=1, ordinary=DummyClassifier())
    assert evaluation.dataset == data.name
    assert evaluation.n_requests == 2
    assert evaluation.n_people == 4
    assert evaluation.equal_digests is True


def test_it_can_be_written_and_read_back() -> None:
    evaluation = evaluate(letheon.DaREForestClassifier(n_estimators=3), cancer(), 10, seeds=2)
    assert Evaluation.from_dict(json.loads(evaluation.to_json())) == evaluation
    frame = evaluation.to_frame()
    assert set(frame["baseline"]) == {SAME, ORDINARY}
    row = frame[(frame["baseline"] == ORDINARY) & (frame["measure"] == "efficiency")].iloc[0]
    assert row["value"] == evaluation.measures[ORDINARY]["efficiency"].value
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(evaluation)
    shown = console.export_text()
    for words in (
        "efficiency",
        "certifiability",
        "state in bytes",
        "equal to a fresh fit",
    ):
        assert words in shown


def test_ids_of_people_are_in_no_report() -> None:
    owners = np.array([f"secret-{number}" for number in range(440)])
    evaluation = evaluate(StubModel(), (X, Y, owners), [["secret-3"]], seeds=1, **SIMPLE)
    assert "secret" not in evaluation.to_json() + str(evaluation)


def test_another_metric() -> None:
    evaluation = evaluate(StubModel(errors=0.1), (X, Y), 2, seeds=2, metric=f1_score, **SIMPLE)
    assert evaluation.metric == "f1"
    assert 0.5 < evaluation.scores["unlearned"].value < 0.95


def test_a_progress_bar_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = evaluate(StubModel(errors=0.1), (X, Y), 2, seeds=1, **SIMPLE)
    loud = evaluate(StubModel(errors=0.1), (X, Y), 2, seeds=1, progress=True, **SIMPLE)
    assert quiet.scores == loud.scores
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"data": X}, TypeError, "must be"),
        ({"data": (X, Y[:-1])}, ValueError, "X has 440 rows, but y has 439"),
        ({"data": (X, Y, [1, 2])}, ValueError, "ids has 2 entries, but there are 440"),
        ({"requests": []}, ValueError, "requests is empty"),
        ({"requests": [[1], [1]]}, ValueError, "more than once"),
        ({"requests": [[9999]]}, ValueError, r"9999\]$"),
        ({"requests": [[9999]], "test": None}, ValueError, "110 of 440 people are held out"),
        ({"data": (X, np.column_stack([Y, Y]))}, ValueError, "expected one dimension"),
        ({"metric": "f1"}, TypeError, "sklearn.metrics.f1_score"),
        ({"metric": get_scorer("f1")}, TypeError, "must be a function"),
        ({"metric": zero_one_loss}, ValueError, "lower values of metric"),
        ({"metric": partial(mean_squared_error, sample_weight=None)}, ValueError, "lower values"),
        ({"attacks": [RMIA]}, TypeError, r"pass an instance, for example RMIA\(\)"),
        ({"attacks": [3]}, TypeError, "expected an attack"),
        ({"requests": 440}, ValueError, "the data has only 440; use a smaller n$"),
        (
            {"requests": 440, "test": None},
            ValueError,
            "the data has only 330; use a smaller n .110 of 440",
        ),
        (
            {"ordinary": Ridge()},
            ValueError,
            "must be a classifier, like the unlearner, but Ridge is a regressor",
        ),
        (
            {"data": (X, np.zeros(440))},
            ValueError,
            "have the class 0.0; a classifier needs at least two",
        ),
        ({"ordinary": []}, ValueError, "ordinary is an empty list"),
        ({"seeds": 0}, ValueError, "seeds=0 is invalid"),
        ({"seeds": [1, 1]}, ValueError, "distinct"),
        ({"comparisons": 0}, ValueError, "at least 1"),
        ({"attacks": ["guess"]}, ValueError, "unknown attack 'guess'"),
        ({"test": 2.0}, ValueError, "between 0 and 1"),
        ({"test": "some"}, TypeError, "share such as"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_the_reason(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments: dict[str, Any] = {"data": (X, Y), "requests": 2, "seeds": 1, **SIMPLE, **change}
    data, requests = arguments.pop("data"), arguments.pop("requests")
    with pytest.raises(error, match=message):
        evaluate(StubModel(), data, requests, **arguments)


def test_an_approximate_method_has_a_floor_and_an_exact_one_has_none() -> None:
    """Noise alone makes two retrains differ, by about as much as an unlearned model differs."""
    model = letheon.InfluenceClassifier(sigma=1.0)
    evaluation = evaluate(model, cancer(), 3, seeds=4, ordinary=LogisticRegression())
    ours = evaluation.measures[SAME]["parameter consistency"]
    floor = evaluation.floor["parameter consistency"]
    assert floor.value > 0
    assert 0.3 < ours.value / floor.value < 3
    assert "retrain against retrain" in str(evaluation)
    assert evaluation.measures[SAME]["gradient residual"].value > 0
    exact = evaluate(StubModel(kind="exact"), (X, Y), 3, seeds=2, **SIMPLE)
    assert exact.floor == {}


def test_test_rows_without_ids_belong_to_no_forgotten_person() -> None:
    """Neither the row at the position of an id, nor all rows if an id is -1."""
    people = np.arange(440) - 1
    rows: dict[str, Any] = {"X": X, "y": Y, "ids": people, "X_test": TEST[0], "y_test": TEST[1]}
    data = Dataset(name="d", info=ABOUT, real=False, **rows)
    evaluation = evaluate(
        StubModel(errors=0.1), data, [[-1, 0, 1, 2]], seeds=1, ordinary=LogisticRegression()
    )
    assert evaluation.measures[SAME]["output consistency"].n == len(TEST[1])


def test_targets_of_a_regression_are_no_classes() -> None:
    """Distinct whole numbers: all people may be forgotten."""
    target = np.round(50 * X[:, 0])
    model = letheon.InfluenceRegressor(l2=0.01, sigma=0.01, if_unproved="downgrade")
    requests = Requests(n=0.5, batch=0.5)
    evaluation = evaluate(model, (X, target), requests, seeds=1, test=TEST, ordinary=Ridge())
    assert evaluation.n_people == 220


def test_one_seed_has_intervals_over_rows_and_several_have_them_over_seeds() -> None:
    single = evaluate(StubModel(errors=0.1), (X, Y), 2, seeds=1, **SIMPLE)
    divergence = single.measures[SAME]["KL consistency"]
    assert divergence.low is not None
    assert divergence.high is not None
    assert divergence.low < 0.9 * divergence.value < 1.1 * divergence.value < divergence.high
    trials = evaluate(StubModel(errors=0.1), (X, Y), 2, seeds=2, **SIMPLE).trials
    assert trials[0].measures[SAME]["KL consistency"].low is None


@pytest.mark.parametrize(
    ("runs", "least"),
    [
        (8, 7),
        pytest.param(60, 53, marks=pytest.mark.soak),  # fewer by chance in 1 of 100
    ],
)
def test_intervals_hold_the_error_of_the_test_rows(runs: int, least: int) -> None:
    """Models without randomness agree in all seeds; the truth is still only known by test rows.

    Other test rows are drawn; the interval of the score lost holds the loss on all of them, 0.05,
    about as often as it says. Over seeds alone there would be no interval at all.
    """
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(runs):
        rows = rng.normal(size=(80, 3))
        truth = (rows[:, 0] > 0).astype(int)
        wrong = rng.random(80) < 0.05
        evaluation = evaluate(
            StubModel(),
            (X, Y),
            1,
            seeds=2,
            test=(rows, truth ^ wrong),
            ordinary=Constant(wrong),
        )
        lost = evaluation.measures[ORDINARY]["score lost"]
        assert lost.low is not None
        assert lost.high is not None
        hits += lost.low <= 0.05 <= lost.high
    assert hits >= least  # 19 of 20 on average


class Constant(ClassifierMixin, BaseEstimator):
    """An ordinary model that is right on every test row, the turned ones too."""

    def __init__(self, wrong: Any) -> None:
        self.wrong = wrong

    def fit(self, X: Any, y: Any) -> "Constant":
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> Any:
        labels = (X[:, 0] > 0).astype(int)
        return labels ^ self.wrong if len(labels) == len(self.wrong) else labels
