"""Classification and regression by neighbours: contract, answers, requests, ledger and audit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import neighbors
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import scale
from sklearn.utils import estimator_checks

import letheon
from letheon.audit import audit
from letheon.checks import parametrize_with_checks
from letheon.ledger import Ledger
from letheon.neighbors import KNeighborsClassifier, KNeighborsRegressor, VectorIndex
from tests.audit.bundles import verdicts

MODELS = [
    KNeighborsClassifier(),
    KNeighborsClassifier(weights="distance", metric="cosine", n_probe=4),
    KNeighborsRegressor(n_neighbors=3, weights="distance"),
    KNeighborsRegressor(step=0.01, dtype="int8"),
]


# Copies of a row change nothing there, but ties of rows are decided by ids here.
@estimator_checks.parametrize_with_checks([KNeighborsClassifier(), KNeighborsRegressor()])
def test_scikit_learn_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@parametrize_with_checks(MODELS)
def test_forgetting_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("weights", ["uniform", "distance"])
@pytest.mark.parametrize("load", [load_iris, load_breast_cancer])
def test_a_classifier_answers_as_scikit_learn_does(load: Any, weights: str) -> None:
    X, y = load(return_X_y=True)
    X, new_X, y, _ = train_test_split(scale(X), y, random_state=0)
    model = KNeighborsClassifier(weights=weights, random_state=0).fit(X, y)
    peer = neighbors.KNeighborsClassifier(weights=weights).fit(X, y)
    shares, expected = model.predict_proba(new_X), peer.predict_proba(new_X)
    assert (np.abs(shares - expected).max(axis=1) < 0.03).mean() > 0.97
    assert (model.predict(new_X) == peer.predict(new_X)).mean() > 0.98


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_a_regressor_answers_as_scikit_learn_does(weights: str) -> None:
    X, y = load_diabetes(return_X_y=True)
    model = KNeighborsRegressor(weights=weights, random_state=0).fit(X[:300], y[:300])
    peer = neighbors.KNeighborsRegressor(weights=weights).fit(X[:300], y[:300])
    answers, expected = model.predict(X[300:]), peer.predict(X[300:])
    assert np.median(np.abs(answers - expected)) < 1
    assert np.corrcoef(answers, expected)[0, 1] > 0.99


def test_answers_on_whole_numbers_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    X = rng.choice(2000, size=(300, 1), replace=False).astype(float) - 1000
    y = rng.integers(0, 3, 300)
    queries = X[:100] + 0.0
    for weights in ("uniform", "distance"):
        model = KNeighborsClassifier(n_neighbors=1, weights=weights, step=1.0).fit(X, y)
        peer = neighbors.KNeighborsClassifier(n_neighbors=1, weights=weights).fit(X, y)
        np.testing.assert_array_equal(model.predict_proba(queries), peer.predict_proba(queries))


@pytest.mark.parametrize("step", [None, 0.05])
def test_classes_come_and_go_with_their_rows(step: float | None) -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = KNeighborsClassifier(step=step, random_state=0).fit(X, names)
    model.forget(list(range(50)))
    assert model.classes_.tolist() == ["versicolor", "virginica"]
    fresh = KNeighborsClassifier(step=step, random_state=0)
    assert fresh.fit(X[50:], names[50:], ids=range(50, 150)).digest() == model.digest()
    np.testing.assert_array_equal(fresh.predict_proba(X), model.predict_proba(X))
    model.learn(X[:50], names[:50], ids=range(50))
    whole = KNeighborsClassifier(step=step, random_state=0).fit(X, names)
    assert whole.digest() == model.digest()
    np.testing.assert_array_equal(whole.predict_proba(X), model.predict_proba(X))


def test_fewer_cells_give_other_answers_and_all_cells_the_default() -> None:
    X, y = load_diabetes(return_X_y=True)
    few, many, default = (
        KNeighborsRegressor(n_probe=n, random_state=0).fit(X, y).predict(X)
        for n in (1, 10**6, None)
    )
    np.testing.assert_array_equal(many, default)
    assert (few != default).any()


def test_the_parameters_can_be_searched() -> None:
    X, y = load_iris(return_X_y=True)
    grid = {"n_neighbors": [1, 5], "weights": ["uniform", "distance"]}
    search = GridSearchCV(KNeighborsClassifier(random_state=0), grid, cv=3).fit(X, y)
    assert search.best_score_ > 0.9


def test_bad_parameters_and_rows_are_refused() -> None:
    X, y = load_iris(return_X_y=True)
    for wrong in ({"n_neighbors": 0}, {"weights": "equal"}, {"metric": "inner_product"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            KNeighborsClassifier(**wrong).fit(X, y)
    model = KNeighborsClassifier(n_neighbors=3).fit(X[48:52], y[48:52])
    model.forget([0, 1])
    with pytest.raises(ValueError, match="n_neighbors <= n_samples_fit"):
        model.predict(X)
    with pytest.raises(ValueError, match="numbers"):
        KNeighborsRegressor().fit(X, y.astype(str))


@pytest.mark.parametrize(
    "model",
    [KNeighborsClassifier(random_state=0), KNeighborsRegressor(random_state=0), VectorIndex()],
    ids=["classifier", "regressor", "index"],
)
def test_a_model_forgets_in_the_ledger_and_is_audited(model: Any, tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    people = [f"person-{i // 2}" for i in range(150)]
    rows = (X, None if isinstance(model, VectorIndex) else y)
    with Ledger.create(tmp_path / "home", name="iris") as ledger:
        ledger.models.register(model.fit(*rows, ids=people), *rows, ids=people, name="m")
        ledger.requests.submit(["person-3", "person-70"], model="m", verified=True)
        steps = ledger.run_once(force=True, model="m")
        assert [step.what for step in steps] == ["applied", "certified", "purged"]
        report = audit(ledger.export(tmp_path / "bundle", tier="auditor"), key=ledger.public_key)
        assert set(verdicts(report).values()) == {"pass"}
        stay = ~np.isin(people, ["person-3", "person-70"])
        fresh = type(model)(**model.get_params() | {"random_state": model.seed_})
        fresh.fit(X[stay], None if rows[1] is None else y[stay], ids=np.array(people)[stay])
        assert ledger.models.load("m").digest() == fresh.digest()


def test_a_file_keeps_labels_and_targets(tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    for model in (KNeighborsClassifier(step=0.1), KNeighborsRegressor(metric="cosine")):
        model.fit(X, y)
        letheon.save(model, tmp_path / "model")
        loaded = letheon.load(tmp_path / "model")
        assert loaded.digest() == model.digest()
        np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
