"""The forests as estimators: contract, requests, receipts, threads and processes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from typing import Any

import joblib
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils import estimator_checks

from letheon import DaREForestClassifier, DaREForestRegressor
from letheon.checks import parametrize_with_checks
from letheon.exceptions import (
    ChangedParametersError,
    EmptyModelError,
    IdsTypeError,
    NotFittedError,
    UnknownIdError,
)
from letheon.forest import ForgetCost, _model

SMALL: dict[str, Any] = {"n_estimators": 4, "max_depth": 4, "n_thresholds": 5}
HONEST = [
    DaREForestClassifier(**SMALL),
    DaREForestClassifier(**SMALL, criterion="entropy", rebuild="eager", max_features=None),
    DaREForestClassifier(n_estimators=3, max_depth=None, n_thresholds=None, random_depth=2),
    DaREForestClassifier(**SMALL, subsample=0.5, min_samples_leaf=3),
    DaREForestRegressor(**SMALL),
    DaREForestRegressor(**SMALL, y_max=1e4, rebuild="eager", random_depth=1),
]


@estimator_checks.parametrize_with_checks([HONEST[0], HONEST[2], HONEST[4]])
def test_scikit_learn_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@parametrize_with_checks(HONEST)
def test_forgetting_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def rows(n: int = 120, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """Rows of people who own up to three each."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).round(1)
    y = np.array(["ash", "elm", "oak"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)]
    return X, y, [f"p{i}" for i in rng.integers(0, n // 2, n)]


def fitted(**params: Any) -> DaREForestClassifier:
    X, y, ids = rows()
    return DaREForestClassifier(**{**SMALL, "random_state": 3, **params}).fit(X, y, ids=ids)


def without(gone: set[str], **params: Any) -> DaREForestClassifier:
    """A fresh fit on the remaining rows."""
    X, y, ids = rows()
    keep = np.array([person not in gone for person in ids])
    model = DaREForestClassifier(**{**SMALL, "random_state": 3, **params})
    return model.fit(X[keep], y[keep], ids=np.array(ids)[keep])


@pytest.mark.parametrize("kind", [DaREForestClassifier, DaREForestRegressor])
def test_the_constructor_takes_keywords_only_and_only_assigns(kind: type) -> None:
    names = list(signature(kind).parameters)
    odd = {name: object() for name in names}
    model = kind(**odd)
    assert vars(model) == odd
    with pytest.raises(TypeError):
        kind("gini")


def test_it_predicts_about_as_well_as_scikit_learns_forest() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    own = cross_val_score(DaREForestClassifier(n_estimators=30, random_state=0), X, y).mean()
    other = cross_val_score(RandomForestClassifier(30, random_state=0), X, y).mean()
    assert own > other - 0.02
    X, y = load_diabetes(return_X_y=True)
    model = DaREForestRegressor(n_estimators=30, random_state=0)
    assert cross_val_score(model, X, y).mean() > 0.35


def test_the_trees_of_a_regressor_differ_by_default() -> None:
    # Few values per column and no bootstrap: with all columns every tree would be the same.
    X = np.random.default_rng(0).integers(0, 10, (500, 8)).astype(float)
    y = X[:, 0] * X[:, 1] + X[:, 2] * 3
    trees = DaREForestRegressor(n_estimators=10, max_depth=4, random_state=0).fit(X, y)
    assert len({trees.tree_(number).to_text() for number in range(10)}) == 10


def test_grid_search_and_clone() -> None:
    X, y, _ = rows()
    search = GridSearchCV(DaREForestClassifier(**SMALL, random_state=0), {"random_depth": [0, 4]})
    assert search.fit(X, y).best_params_ == {"random_depth": 0}
    copy = clone(search.best_estimator_)
    assert not hasattr(copy, "seed_")
    assert copy.get_params() == search.best_estimator_.get_params()


@pytest.mark.parametrize("method", ["predict", "apply", "predict_proba", "forget_cost", "tree_"])
def test_an_unfitted_forest_says_so(method: str) -> None:
    with pytest.raises(NotFittedError):
        getattr(DaREForestClassifier(), method)([[1.0]])
    with pytest.raises(NotFittedError):
        DaREForestClassifier().settle()


def test_probabilities_and_their_logarithms() -> None:
    model, (X, _, _) = fitted(), rows()
    shares = model.predict_proba(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_array_equal(model.classes_[shares.argmax(axis=1)], model.predict(X))
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(model.predict_log_proba(X), np.log(shares))
    assert model.n_classes_ == 3


def test_a_receipt_says_what_was_rebuilt() -> None:
    X, y, ids = rows(400)
    model = DaREForestClassifier(n_estimators=20, random_state=0).fit(X, y, ids=ids)
    cost = model.forget_cost(ids[:20])
    receipt = model.forget(ids[:20])
    assert receipt.rebuilt == {"subtrees": cost.subtrees, "rows": cost.rows}
    assert receipt.work == cost.share == cost.rows / (20 * model.n_rows_)
    assert cost.subtrees > 0
    assert 0 < cost.share < 1
    assert cost.trees == 20


def test_asking_for_the_cost_changes_nothing() -> None:
    model = fitted()
    digest, someone = model.digest(), model.ids_[:3].tolist()
    first, second = model.forget_cost(someone), model.forget_cost(someone)
    assert first == second
    assert model.digest() == digest
    assert model.forget_cost([]) == ForgetCost(rows=0, subtrees=0, trees=0, share=0.0)
    with pytest.raises(UnknownIdError, match=r"model: \['unknown'\]; see model.ids_"):
        model.forget_cost(["unknown"])
    with pytest.raises(UnknownIdError, match="nothing was forgotten, see model"):
        model.forget(["unknown"])
    with pytest.raises(EmptyModelError):
        model.forget_cost(model.ids_.tolist())
    with pytest.raises(EmptyModelError, match=r"Delete the model and its files instead\."):
        model.forget(model.ids_.tolist())


def test_lazy_and_eager_give_the_same_model_and_settle_changes_nothing() -> None:
    lazy, eager = fitted(rebuild="lazy"), fitted(rebuild="eager")
    gone = lazy.ids_[:12].tolist()
    lazy.forget(gone), eager.forget(gone)
    assert lazy.forest_.core.n_unbuilt > 0
    assert eager.forest_.core.n_unbuilt == 0
    assert lazy.settle() is lazy
    assert lazy.forest_.core.n_unbuilt == 0
    assert lazy.digest() == eager.digest() == without(set(gone)).digest()


def test_rebuild_may_be_changed_at_any_time() -> None:
    model = fitted(rebuild="lazy")
    digest = model.digest()
    assert model.set_params(rebuild="eager").digest() == digest
    model.forget(model.ids_[:1].tolist())
    with pytest.raises(ValueError, match="rebuild='later'"):
        model.set_params(rebuild="later").forget(model.ids_[:1].tolist())


@pytest.mark.parametrize(
    "spelling",
    [
        {"n_estimators": np.int64(4)},
        {"max_depth": np.int32(4), "n_thresholds": np.uint8(5)},
        {"criterion": np.str_("gini")},
        {"subsample": 1},
        {"subsample": np.float64(1.0)},
        {"max_features": 2},
        {"max_features": np.float32(0.5)},
        {"random_state": np.int64(3)},
    ],
)
def test_the_digest_does_not_depend_on_spelling(spelling: dict[str, Any]) -> None:
    assert fitted(**spelling).digest() == fitted().digest()


def test_bounds_of_one_scale_give_one_digest() -> None:
    assert regressor(y_max=1000).digest() == regressor(y_max=np.float64(1001.5)).digest()
    assert regressor(y_max=1000).digest() != regressor(y_max=2000).digest()


def test_numbers_of_numpy_are_the_same_parameters() -> None:
    model = fitted(max_depth=np.int64(4), subsample=np.float64(1.0))
    people = model.ids_.tolist()
    model.set_params(max_depth=4, subsample=1.0).forget(people[:1])
    model.set_params(max_depth=np.int16(4)).forget(people[1:2])
    assert model.digest() == without(set(people[:2])).digest()
    with pytest.raises(ChangedParametersError):
        model.set_params(max_depth=np.int64(5)).forget(people[2:3])


def test_a_parameter_that_was_searched_with_numpy() -> None:
    X, y, _ = rows()
    search = GridSearchCV(fitted(), {"max_depth": np.arange(2, 4)}).fit(X, y)
    best = search.best_estimator_
    plain = clone(best).set_params(max_depth=int(best.max_depth)).fit(X, y)
    assert plain.digest() == best.digest()


@pytest.mark.parametrize(
    "change",
    [{"max_depth": 5}, {"criterion": "entropy"}, {"subsample": 0.5}, {"n_thresholds": None}],
)
def test_other_parameters_may_not(change: dict[str, Any]) -> None:
    model = fitted()
    people, settings = model.ids_.tolist(), model.get_params()
    model.forget(people[:1])
    with pytest.raises(ChangedParametersError):
        model.set_params(**change).forget(people[1:2])
    with pytest.raises(ChangedParametersError):
        model.forget_cost(people[1:2])
    model.set_params(**settings).forget(people[1:2])
    assert model.digest() == without(set(people[:2])).digest()


def test_one_row_and_one_class_are_legal() -> None:
    model = fitted()
    people = model.ids_.tolist()
    model.forget(people[:-1])
    fresh = without(set(people[:-1]))
    assert model.digest() == fresh.digest()
    np.testing.assert_array_equal(model.classes_, fresh.classes_)
    forest = DaREForestClassifier(random_state=0).fit([[1.0, 2.0]], ["only"])
    assert forest.predict([[5.0, 5.0]]).tolist() == ["only"]
    assert DaREForestRegressor(random_state=0).fit([[1.0]], [2.5]).predict([[0.0]]) == 2.5


def test_a_label_without_rows_is_wiped() -> None:
    X, y, ids = rows()
    model = fitted().learn(X[:1], ["a very secret label"], ids=["newcomer"])
    assert "a very secret label" in model.classes_
    model.forget(["newcomer"])
    assert model.digest() == fitted().digest()
    assert model.forest_.table is not None
    assert model.forest_.table.labels.dtype == np.dtype("<U3")
    model.learn(X[:1], ["bay"], ids=["newcomer"])
    assert len(model.forest_.table) == 4  # its code is used again
    fresh = DaREForestClassifier(**SMALL, random_state=3)
    fresh.fit(np.vstack([X, X[:1]]), [*y, "bay"], ids=[*ids, "newcomer"])
    assert model.digest() == fresh.digest()
    np.testing.assert_array_equal(model.predict_proba(X), fresh.predict_proba(X))


def test_rows_that_differ_in_their_label_only_are_in_order_of_labels() -> None:
    X = np.zeros((4, 2))
    forest = DaREForestClassifier(**SMALL, random_state=0).fit(X, [3, 2, 2, 1], ids=[7, 7, 7, 7])
    other = DaREForestClassifier(**SMALL, random_state=0).fit(X[:1], [2], ids=[7])
    for label in (3, 1, 2):
        other.learn(X[:1], [label], ids=[7])
    assert forest.digest() == other.digest()


@pytest.mark.parametrize(
    ("X", "y", "ids", "error"),
    [
        (np.zeros((1, 4)), ["elm"], None, IdsTypeError),
        (np.zeros((1, 4)), ["elm"], [1], IdsTypeError),
        (np.zeros((1, 3)), ["elm"], ["p1"], ValueError),
        (np.full((1, 4), np.inf), ["elm"], ["p1"], ValueError),
        (np.full((1, 4), 1e39), ["elm"], ["p1"], ValueError),
        (np.zeros((1, 4)), [7], ["p1"], ValueError),
        (np.zeros((1, 4)), [np.nan], ["p1"], ValueError),
        (np.zeros((2, 4)), ["elm"], ["p1", "p2"], ValueError),
        (np.zeros((2, 4)), ["elm", "oak"], ["p1"], ValueError),
        (np.zeros((1, 4)), None, ["p1"], ValueError),
    ],
)
def test_what_cannot_be_learned_changes_nothing(
    X: Any, y: Any, ids: Any, error: type[Exception]
) -> None:
    model = fitted()
    digest = model.digest()
    with pytest.raises(error):
        model.learn(X, y, ids=ids)
    assert model.digest() == digest
    assert model.classes_.tolist() == ["ash", "elm", "oak"]


def test_a_failed_fit_leaves_the_model_as_it_was() -> None:
    model = fitted()
    digest = model.digest()
    for X, y in [(np.full((2, 9), np.inf), [0, 1]), (np.zeros((2, 9)), [0.5, np.nan])]:
        with pytest.raises(ValueError, match=r"infinity|NaN"):
            model.fit(X, y)
    assert model.digest() == digest
    assert model.n_features_in_ == 4


def regressor(**params: Any) -> DaREForestRegressor:
    X = np.arange(40.0)[:, None]
    y = np.where(np.arange(40) == 0, 900.0, np.arange(40) / 10)
    return DaREForestRegressor(**{**SMALL, "random_state": 0, **params}).fit(X, y)


def test_a_new_scale_is_in_the_receipt() -> None:
    receipt = regressor().forget([0])
    assert receipt.rebuilt["trees"] == SMALL["n_estimators"]
    assert receipt.work == 1.0
    assert "trees" not in regressor().forget([39]).rebuilt
    assert "trees" not in regressor(y_max=1000).forget([0]).rebuilt


@pytest.mark.parametrize("y_max", [None, 1000])
def test_a_new_scale_gives_the_model_of_a_fresh_fit(y_max: float | None) -> None:
    model = regressor(y_max=y_max)
    model.forget([0])
    fresh = DaREForestRegressor(**SMALL, random_state=0, y_max=y_max)
    fresh.fit(np.arange(1.0, 40)[:, None], np.arange(1, 40) / 10, ids=np.arange(1, 40))
    assert model.digest() == fresh.digest()


def test_importances_are_those_of_the_rows_that_are_held() -> None:
    X, y, ids = rows()
    X = np.column_stack([X, np.ones(len(X))])
    model = DaREForestClassifier(**SMALL, random_state=0).fit(X, y, ids=ids)
    shares = model.feature_importances_
    assert shares.sum() == pytest.approx(1)
    assert shares[0] > shares[2]
    assert shares[-1] == 0
    gone = model.ids_[:10].tolist()
    model.forget(gone)
    keep = ~np.isin(ids, gone)
    fresh = DaREForestClassifier(**SMALL, random_state=0)
    fresh.fit(X[keep], y[keep], ids=np.array(ids)[keep])
    np.testing.assert_array_equal(model.feature_importances_, fresh.feature_importances_)


@pytest.mark.parametrize(
    ("backend", "n_jobs"),
    # Not joblib's "multiprocessing": Ray, once registered in this process, takes it over.
    [(None, 2), (None, 3), (None, -1), ("threading", 2), ("loky", 2)],
)
def test_neither_threads_nor_processes_change_the_model(backend: str | None, n_jobs: int) -> None:
    digest = fitted(subsample=0.7).digest()
    config = {} if backend is None else {"backend": backend}
    with joblib.parallel_config(**config):
        assert fitted(subsample=0.7, n_jobs=n_jobs).digest() == digest


@pytest.mark.parametrize("kind", [DaREForestClassifier, DaREForestRegressor])
def test_trees_grown_elsewhere_forget_alike(kind: Any) -> None:
    X, _, ids = rows()
    weights = np.arange(len(X)) % 3
    y = X[:, 0].round()
    models = []
    for backend in ("threading", "loky"):
        model = kind(**SMALL, random_state=0, n_jobs=2)
        with joblib.parallel_config(backend=backend):
            model.fit(X, y, sample_weight=weights, ids=ids).forget([ids[1]])
        models.append(model)
    assert models[0].digest() == models[1].digest()


def test_processes_are_used_only_where_they_were_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def run(function: Any, payloads: Any, *, n_jobs: Any, shared: Any, note: Any) -> list[Any]:
        calls.append(len(payloads))
        return [function(*shared, *payload) for payload in payloads]

    monkeypatch.setattr(_model, "run_tasks", run)
    fitted(n_jobs=2), fitted(n_jobs=-1), fitted()
    with joblib.parallel_config(n_jobs=2):
        fitted()
    assert calls == []
    with joblib.parallel_config(backend="loky", n_jobs=3):
        fitted()
        fitted(n_jobs=9)
        fitted(n_jobs=1)
    assert calls == [3, 4]  # one block per worker, never more than trees


def test_an_error_of_a_task_is_that_of_a_fit() -> None:
    with joblib.parallel_config(backend="loky"), pytest.raises(ValueError, match="infinity"):
        DaREForestClassifier(n_jobs=2).fit([[np.float64(1e39)], [1.0]], [0, 1])


def test_zero_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="n_jobs"):
        fitted(n_jobs=0)


def test_readers_see_classes_and_shares_of_one_moment() -> None:
    X, _, _ = rows()
    model, stop = fitted(), threading.Event()

    def read() -> set[int]:
        seen = set()
        while not stop.is_set():
            shares = model.predict_proba(X[:3])
            np.testing.assert_allclose(shares.sum(axis=1), 1)
            seen.add(shares.shape[1])
            assert set(model.predict(X[:3])) <= {"a", "ash", "elm", "oak", "z"}
        return seen

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for turn in range(150):
            # A class that comes and goes, sorted before and after all others.
            model.learn(X[:20], ["za"[turn % 2]] * 20, ids=["newcomer"] * 20)
            model.forget(["newcomer"])
        stop.set()
        assert set.union(*(reader.result() for reader in readers)) <= {3, 4}
    assert model.digest() == fitted().digest()


def test_the_guarantee_needs_no_library() -> None:
    model = fitted()
    assert model.guarantee_.kind == "exact"
    assert model.guarantee_.assumptions == ("seed-independent-of-requests",)
    assert set(model.environment_) == {"letheon"}
    assert model.facts.state_holds_rows


def test_order_of_rows_does_not_matter() -> None:
    X, y = make_classification(200, random_state=0)
    order = np.random.default_rng(0).permutation(200)
    forest = DaREForestClassifier(**SMALL, random_state=0).fit(X, y)
    other = DaREForestClassifier(**SMALL, random_state=0).fit(X[order], y[order], ids=order)
    assert forest.digest() == other.digest()


def test_settle_waits_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    # Settling may renumber the rows; it must not do so between finding a person and removing them.
    X, y = make_classification(200, random_state=0)
    model = DaREForestClassifier(**SMALL, random_state=0).fit(X, y)
    model.forget(range(50))
    prepare = model._prepare

    def settle_meanwhile(removal: Any) -> Any:
        other = threading.Thread(target=model.settle)
        other.start()
        other.join(0.2)
        return prepare(removal)

    monkeypatch.setattr(model, "_prepare", settle_meanwhile)
    model.forget([100])
    assert model.ids_.tolist() == [*range(50, 100), *range(101, 200)]


@pytest.mark.parametrize("criterion", ["gini", "entropy"])
def test_importances_do_not_depend_on_the_order_of_classes(criterion: str) -> None:
    X, y = make_classification(300, n_informative=8, n_classes=5, random_state=0)
    late = y < 3
    grown = DaREForestClassifier(criterion=criterion, n_estimators=5, random_state=0)
    grown.fit(X[~late], y[~late], ids=np.flatnonzero(~late))
    grown.learn(X[late], y[late], ids=np.flatnonzero(late))
    fresh = DaREForestClassifier(criterion=criterion, n_estimators=5, random_state=0).fit(X, y)
    assert grown.digest() == fresh.digest()
    assert grown.feature_importances_.tolist() == fresh.feature_importances_.tolist()


def test_importances_of_a_target_far_from_zero() -> None:
    X = np.random.default_rng(0).normal(size=(500, 4))
    model = DaREForestRegressor(n_estimators=5, max_features=None, random_state=0)
    model.fit(X, X[:, 0] + 1e6)
    assert model.feature_importances_.min() >= 0
    assert model.feature_importances_[0] > 0.9


def test_columns_of_a_record_array() -> None:
    records = np.zeros(60, dtype=[("flag", "u1"), ("x", "f4", (3,))])
    records["x"] = np.random.default_rng(0).normal(size=(60, 3))
    y = records["x"][:, 0] > 0
    forest = DaREForestClassifier(**SMALL, random_state=0).fit(records["x"], y)
    other = DaREForestClassifier(**SMALL, random_state=0).fit(records["x"].copy(), y)
    assert forest.digest() == other.digest()
    assert (forest.predict(records["x"]) == other.predict(records["x"].copy())).all()


@pytest.mark.parametrize("n_jobs", [True, 2.5, "a", 0])
def test_n_jobs_that_make_no_sense(n_jobs: Any) -> None:
    X, y = make_classification(30, random_state=0)
    with pytest.raises((TypeError, ValueError), match="n_jobs="):
        DaREForestClassifier(n_jobs=n_jobs).fit(X, y)


@pytest.mark.parametrize("number", [1.0, "a", True])
def test_tree_number_that_is_none(number: Any) -> None:
    with pytest.raises(TypeError, match="expected an int"):
        fitted().tree_(number)
