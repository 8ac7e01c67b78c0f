"""The baselines: the fastest valid retrain, and the best ordinary model."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_iris, make_regression
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import letheon
from letheon.data import People
from letheon.evaluation import ORDINARY, SAME, LearningProblem
from letheon.evaluation._baselines import (
    best_ordinary,
    find_fastest_retrainer,
    list_linear_solvers,
    training_loss,
)
from tests.evaluation.stubs import SIMPLE, TEST, StubModel, X, Y, cancer, evaluate


def rows_of(X: Any, y: Any) -> People:
    return People(X, y, np.arange(len(y)))


def people(name: str) -> People:
    """Return rows of two classes, of two of which one is rare, or of three."""
    if name == "iris":
        table, labels = load_iris(return_X_y=True)
        return rows_of((table - table.mean(axis=0)) / table.std(axis=0), labels)
    table, labels = cancer()
    return rows_of(table, labels if name == "cancer" else (np.arange(len(labels)) % 10 > 0) * 1)


def test_naive_retraining_uses_the_fastest_solver_that_reaches_the_loss() -> None:
    evaluation = evaluate(
        letheon.InfluenceClassifier(sigma=0.1), cancer(), 3, seeds=1, ordinary=LogisticRegression()
    )
    tried = next(line for line in evaluation.fairness if "Naive retraining" in line)
    assert tried.count(" ms") == 3
    assert tried.count("fastest") == 2  # "by the fastest of", and the one that was
    assert any(
        name in evaluation.baselines[SAME] for name in ("scikit-learn", "InfluenceClassifier")
    )


@pytest.mark.parametrize("name", ["cancer", "rare", "iris"])
@pytest.mark.parametrize("multi_class", ["ovr", "softmax"])
@pytest.mark.parametrize("rule", ["keep", "clip", "normalize"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_rivals_of_a_linear_model_end_where_it_does(
    name: str, multi_class: str, rule: str, fit_intercept: bool
) -> None:
    """Without noise: the same coefficients, intercept and loss, also with a large intercept."""
    rows = people(name)
    model = letheon.DeltaGradClassifier(
        l2=0.1,
        rows=rule,
        row_norm=None if rule == "keep" else 2.0,
        fit_intercept=fit_intercept,
        multi_class=multi_class,
        n_steps=1000,
    ).fit(rows.X, rows.y)
    rivals = list_linear_solvers(model, rows)
    assert len(rivals) == 2
    for rival in rivals:
        other = rival.fit(rows)
        assert np.allclose(other.coef_, model.coef_, atol=1e-3)
        assert np.allclose(other.intercept_, model.intercept_, atol=1e-3)
        assert np.mean(other.predict(rows.X) == model.predict(rows.X)) > 0.99
        ours, theirs = (training_loss(model, each, rows) for each in (model, other))
        assert ours is not None
        assert theirs == pytest.approx(ours, rel=1e-5)


def test_the_loss_is_that_of_the_definition() -> None:
    """l2 = 1, two rows, by hand: log(1 + e^-s) of each, and half of all weights squared."""
    model = letheon.DeltaGradClassifier(l2=1.0)
    rows = rows_of(np.array([[1.0], [-2.0]]), np.array([1, 0]))

    class StraightLine:
        coef_ = np.array([[0.5]])
        intercept_ = np.array([0.25])
        classes_ = np.array([0, 1])

    scores = [0.75, -0.75]
    losses = [np.log1p(np.exp(-scores[0])), np.log1p(np.exp(scores[1]))]
    expected = np.mean(losses) + (0.5**2 + 0.25**2) / 2
    assert training_loss(model, StraightLine(), rows) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["array", "frame", "sparse"])
def test_the_same_solvers_race_whatever_the_table_is(kind: str) -> None:
    rows, labels = cancer()
    table = {"array": rows, "frame": pd.DataFrame(rows), "sparse": csr_array(rows)}[kind]
    model = letheon.InfluenceClassifier(l2=0.01)
    rivals = list_linear_solvers(model, rows_of(table, labels))
    expected = ["scikit-learn lbfgs", "scikit-learn newton-cholesky"]
    assert [each.name for each in rivals] == (expected[:1] if kind == "sparse" else expected)
    (plain, *_), (other, *_) = list_linear_solvers(model, rows_of(rows, labels)), rivals
    ours, theirs = plain.fit(rows_of(rows, labels)), other.fit(rows_of(table, labels))
    assert np.allclose(ours.coef_, theirs.coef_, atol=1e-3)
    assert np.allclose(ours.intercept_, theirs.intercept_, atol=1e-3)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_a_ridge_regression_races_for_the_squared_loss(fit_intercept: bool) -> None:
    """It ends where the unlearner does, so it is the same training."""
    table, target = make_regression(200, 5, noise=1.0, random_state=0)
    rows = rows_of(table, target + 100)
    model = letheon.InfluenceRegressor(l2=0.1, fit_intercept=fit_intercept, sigma=1e-3)
    model.fit(rows.X, rows.y)
    (rival,) = list_linear_solvers(model, rows)
    other = rival.fit(rows)
    assert np.allclose(np.ravel(other.coef_), np.ravel(model.coef_), rtol=1e-4)
    assert np.allclose(other.intercept_, model.intercept_, rtol=1e-4)
    assert training_loss(model, other, rows) == pytest.approx(training_loss(model, model, rows))


@pytest.mark.parametrize(
    ("unlearner", "name"),
    [
        (letheon.InfluenceClassifier(sigma=0.1), "cancer"),
        (letheon.NaiveUnlearner(DecisionTreeClassifier(max_depth=6)), "cancer"),
        (letheon.NaiveUnlearner(DecisionTreeClassifier()), "rare"),
        (letheon.DeltaGradClassifier(n_steps=20), "iris"),
    ],
)
@pytest.mark.parametrize(
    "quick",
    [
        DummyClassifier(),
        DummyClassifier(strategy="constant", constant=1),
        LogisticRegression(max_iter=1, C=1e-6),
    ],
)
def test_a_retrainer_that_is_no_retrain_cannot_win(unlearner: Any, name: str, quick: Any) -> None:
    """However fast; not even a constant where one label is rare."""
    winner, tried = find_fastest_retrainer(unlearner, people(name), 0, quick)
    assert winner.name != type(quick).__name__
    assert tried[-1].startswith(type(quick).__name__)
    assert "not counted" in tried[-1]


def test_a_constant_does_not_pass_for_a_model_of_a_rare_label() -> None:
    """It agrees on 99.5 % of the rows, and on none of the rare ones."""
    table = np.random.default_rng(0).normal(size=(1000, 2))
    labels = (np.arange(1000) % 200 == 0).astype(int)
    table[:, 0] = labels
    constant = DummyClassifier(strategy="constant", constant=0)
    model = letheon.NaiveUnlearner(DecisionTreeClassifier())
    _, tried = find_fastest_retrainer(model, rows_of(table, labels), 0, constant)
    assert "not counted" in tried[-1]


def test_an_honest_retrainer_counts() -> None:
    rows = people("rare")
    tree = DecisionTreeClassifier(random_state=0)
    _, tried = find_fastest_retrainer(letheon.NaiveUnlearner(tree), rows, 0, [tree])
    assert "not counted" not in tried[-1]
    model = letheon.DeltaGradClassifier(l2=0.1, fit_intercept=False, n_steps=500)
    same = LogisticRegression(C=1 / (0.1 * len(rows)), fit_intercept=False, tol=1e-8)
    _, tried = find_fastest_retrainer(model, rows, 0, same)
    assert "not counted" not in tried[-1]


def test_the_best_ordinary_model_is_chosen_by_cross_validation() -> None:
    candidates = [DummyClassifier(), DecisionTreeClassifier(random_state=0)]
    evaluation = evaluate(StubModel(), (X, Y), 2, seeds=1, ordinary=candidates, test=TEST)
    assert evaluation.baselines[ORDINARY].startswith("DecisionTreeClassifier, best of 2")


def test_a_candidate_that_fails_is_out_and_named() -> None:
    hungry = KNeighborsClassifier(n_neighbors=10_000)
    evaluation = evaluate(
        StubModel(), (X, Y), 1, seeds=1, ordinary=[hungry, LogisticRegression()], test=TEST
    )
    assert evaluation.baselines[ORDINARY].startswith("LogisticRegression, best of 2")
    assert "KNeighborsClassifier failed: ValueError" in evaluation.baselines[ORDINARY]
    with pytest.raises(ValueError, match="no candidate for the ordinary model"):
        evaluate(StubModel(), (X, Y), 1, seeds=1, ordinary=[hungry, hungry], test=TEST)


def test_a_metric_without_a_value_does_not_choose() -> None:
    def undefined(y_true: Any, y_pred: Any) -> float:
        return float("nan") if len(np.unique(y_pred)) == 1 else 1.0

    problem = LearningProblem.from_args(StubModel(), (X, Y), TEST, undefined, 0)
    _, how = best_ordinary(problem, [DummyClassifier(), LogisticRegression()], 0)
    assert how.startswith("LogisticRegression")


def test_folds_keep_the_rows_of_a_person_together() -> None:
    """Labels are drawn by person, and all rows of a person are alike: nothing can be learned."""
    rng = np.random.default_rng(0)
    owners = np.tile(np.arange(60), 4)
    table = np.tile(rng.normal(size=(60, 3)), (4, 1))
    labels = np.tile(rng.permutation(np.arange(60) % 2), 4)
    problem = LearningProblem.from_args(StubModel(), (table, labels, owners), TEST, None, 0)
    neighbour = KNeighborsClassifier(n_neighbors=1)
    _, how = best_ordinary(problem, [neighbour, DummyClassifier()], 0)
    score = float(how.split("(KNeighborsClassifier ")[1].split(",")[0])
    assert score < 0.75


def test_sparse_rows_have_ordinary_models_too() -> None:
    table = csr_array(np.where(np.abs(X) > 0.5, X, 0))
    problem = LearningProblem.from_args(letheon.InfluenceClassifier(), (table, Y), None, None, 0)
    _, how = best_ordinary(problem, None, 0)
    assert "best of 2" in how
    assert "failed" not in how


def test_an_ordinary_model_is_warmed_up_before_the_clock(diary: list[tuple[str, Any]]) -> None:
    class Noted(LogisticRegression):  # type: ignore[misc]
        def fit(self, X: Any, y: Any) -> Any:
            diary.append(("ordinary", len(y)))
            return super().fit(X, y)

    evaluate(StubModel(), (X, Y), 1, seeds=1, comparisons=1, ordinary=Noted(), test=TEST)
    starts = [i for i, call in enumerate(diary) if call == ("fit", 440)]
    assert ("ordinary", 400) in diary[: starts[-1]]


def test_threads_of_the_caller_are_not_used() -> None:
    seen: list[Any] = []

    class Parallel(LogisticRegression):  # type: ignore[misc]
        def __init__(self, workers: Any = None, n_jobs: Any = None) -> None:
            super().__init__()
            self.workers = workers
            self.n_jobs = n_jobs

        def fit(self, X: Any, y: Any) -> Any:
            seen.append(self.n_jobs)
            self.n_jobs = None
            return super().fit(X, y)

    many = partial(Parallel, n_jobs=2)
    unlearner = letheon.NaiveUnlearner(many())
    evaluation = evaluate(
        unlearner, (X, Y), 1, seeds=1, ordinary=many(), retrainer=many(), test=TEST
    )
    assert seen
    assert set(seen) == {None}
    assert "n_jobs was ignored" in evaluation.fairness[0]
    forest = letheon.DaREForestClassifier(n_estimators=2, n_jobs=2)
    assert "n_jobs" not in evaluate(forest, (X, Y), 1, seeds=1, **SIMPLE).settings
