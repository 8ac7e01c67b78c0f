"""Naive retraining: whatever is asked, the model is a fresh fit on the rows that are left."""

import pickle
import threading
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin, clone, is_classifier, is_regressor
from sklearn.cluster import KMeans
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_info, threadpool_limits

from letheon import NaiveUnlearner, SISAClassifier
from letheon import naive as naive_module
from letheon.data import _tables as tables_module
from letheon.exceptions import (
    CannotForgetError,
    ChangedParametersError,
    CorruptFileError,
    EmptyModelError,
    IdsLengthError,
    IdsTypeError,
    NotFittedError,
    UnknownIdError,
    UnsupportedStateError,
)
from tests.sharded.people import examples


class PeopleRows(NamedTuple):
    """Rows of people; `X` may be any kind of table."""

    X: Any
    y: Any
    ids: list[str]

    def rows(self, keep: list[int]) -> "PeopleRows":
        X = self.X.iloc[keep] if isinstance(self.X, pd.DataFrame) else self.X[keep]
        return PeopleRows(X, self.y[keep], [self.ids[row] for row in keep])

    def without(self, forgotten: set[str]) -> "PeopleRows":
        return self.rows([row for row, owner in enumerate(self.ids) if owner not in forgotten])

    def only(self, staying: set[str]) -> "PeopleRows":
        return self.without(set(self.ids) - staying)


@cache
def people(*, regression: bool = False) -> PeopleRows:
    rng = np.random.default_rng(4)
    ids = [f"p{owner:02d}" for owner in rng.permutation(np.repeat(np.arange(12), [1, 2, 3] * 4))]
    X = rng.normal(size=(len(ids), 3)).round(2)
    labels = np.array(["no", "perhaps", "yes"])[np.arange(len(ids)) % 3]
    return PeopleRows(X, X[:, 0] + X[:, 1] if regression else labels, ids)


NAMES = sorted(set(people().ids))
ESTIMATORS = {
    "logistic": LogisticRegression(),
    "tree": DecisionTreeClassifier(max_features=1),
    "pipeline": make_pipeline(StandardScaler(copy=False), SGDClassifier(max_iter=5, tol=None)),
    "boosting": HistGradientBoostingClassifier(max_iter=2, min_samples_leaf=2),
    "neighbours": KNeighborsClassifier(3),
    "forest": RandomForestClassifier(2, n_jobs=2),
    "ridge": Ridge(copy_X=False),
    "regression tree": DecisionTreeRegressor(splitter="random"),
    "sgd regression": SGDRegressor(max_iter=5, tol=None),
}
TABLES = {
    "pandas": lambda X: pd.DataFrame(X, columns=list("abc")),
    "polars": lambda X: pl.DataFrame(X, schema=list("abc")),
    "csr_array": sp.csr_array,
    "csc_matrix": sp.csc_matrix,
    "fortran": np.asfortranarray,
    "float32": lambda X: X.astype(np.float32),
}


def data_for(estimator: Any) -> PeopleRows:
    return people(regression=is_regressor(estimator))


def fit(estimator: Any, data: PeopleRows, seed: Any = 7) -> NaiveUnlearner:
    return NaiveUnlearner(clone(estimator), random_state=seed).fit(data.X, data.y, ids=data.ids)


REQUESTS = st.lists(st.lists(st.sampled_from(NAMES), max_size=3), min_size=1, max_size=3)


@pytest.mark.parametrize("name", ESTIMATORS)
@given(requests=REQUESTS)
@examples(15)
def test_any_sequence_of_requests_ends_in_a_fresh_fit(name: str, requests: list[list[str]]) -> None:
    data, forgotten = data_for(ESTIMATORS[name]), set[str]()
    model = fit(ESTIMATORS[name], data)
    for request in requests:
        known = [owner for owner in request if owner not in forgotten]
        receipt = model.forget(known)
        assert receipt.n_ids == len(set(known))
        assert receipt.n_rows == sum(data.ids.count(owner) for owner in set(known))
        forgotten |= set(known)
    assert model.digest() == fit(ESTIMATORS[name], data.without(forgotten), model.seed_).digest()
    assert model.ids_.tolist() == sorted(set(data.without(forgotten).ids))


@given(
    first=st.sets(st.sampled_from(NAMES), min_size=8),
    forgotten=st.sets(st.sampled_from(NAMES), max_size=3),
)
@examples(20)
def test_learning_then_forgetting_is_a_fresh_fit(first: set[str], forgotten: set[str]) -> None:
    data = people()
    start, later = data.only(first), data.without(first)
    model = fit(ESTIMATORS["tree"], start)
    for row, owner in enumerate(later.ids):
        model.learn(later.X[[row]], later.y[[row]], ids=[owner])
    model.forget(forgotten)
    order = [
        *np.flatnonzero(np.isin(data.ids, list(first))),
        *np.flatnonzero(~np.isin(data.ids, list(first))),
    ]
    expected = data.rows(order).without(forgotten)
    assert model.digest() == fit(ESTIMATORS["tree"], expected).digest()


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_table_is_exact_and_predicts(kind: str) -> None:
    data = people()._replace(X=TABLES[kind](people().X))
    inner = make_pipeline(MaxAbsScaler(copy=False), LogisticRegression())
    model = fit(inner, data)
    model.forget(["p03", "p07"])
    model.forget(["p01"])
    remaining = data.without({"p01", "p03", "p07"})
    fresh = fit(inner, remaining)
    assert model.digest() == fresh.digest()
    assert np.array_equal(model.predict(data.X), fresh.predict(data.X))
    assert type(model.rows_.X) is type(fresh.rows_.X)


def test_categories_of_forgotten_people_are_gone_from_the_model() -> None:
    data = people()
    colour = ["secret-hue" if owner == "p02" else "red" for owner in data.ids]
    frame = pd.DataFrame(data.X, columns=list("abc")).assign(colour=pd.Categorical(colour))
    inner = HistGradientBoostingClassifier(
        max_iter=2, min_samples_leaf=2, categorical_features="from_dtype"
    )
    model = fit(inner, data._replace(X=frame))
    assert b"secret-hue" in pickle.dumps(model)
    model.forget(["p02"])
    assert b"secret-hue" not in pickle.dumps(model)
    assert model.digest() == fit(inner, data._replace(X=frame).without({"p02"})).digest()


@pytest.mark.parametrize("kind", [list, np.array, pd.Series])
def test_texts(kind: Any) -> None:
    texts = [f"word{row % 5} other{row % 3}" for row in range(20)]
    inner = make_pipeline(TfidfVectorizer(), LogisticRegression())
    model = NaiveUnlearner(inner, random_state=1).fit(kind(texts), np.arange(20) % 2)
    model.forget([0, 19])
    fresh = clone(model).fit(texts[1:-1], (np.arange(20) % 2)[1:-1], ids=range(1, 19))
    assert model.digest() == fresh.digest()
    assert model.predict(kind(texts)).tolist() == fresh.predict(texts).tolist()


@pytest.mark.parametrize(
    "state", [None, 3, np.int64(3), np.random.RandomState(3), np.random.default_rng(3)]
)
def test_the_seed_reproduces_the_model(state: Any) -> None:
    model = fit(ESTIMATORS["forest"], people(), seed=state)
    again = fit(ESTIMATORS["forest"], people(), seed=model.seed_)
    assert 0 <= model.seed_ < 2**128
    assert again.seed_ == model.seed_
    assert again.digest() == model.digest()


def test_other_seeds_give_other_models() -> None:
    seeds = [1, 2, None, None]
    assert len({fit(ESTIMATORS["forest"], people(), seed=seed).digest() for seed in seeds}) == 4


def test_seed_of_the_inner_estimator_is_derived_and_global_state_unused() -> None:
    np.random.seed(0)
    first = fit(SGDClassifier(random_state=None), people())
    np.random.seed(1)
    assert first.digest() == fit(SGDClassifier(random_state=None), people()).digest()


def test_two_threads_forgetting_at_once_both_succeed() -> None:
    data = people()
    model = fit(ESTIMATORS["tree"], data)
    barrier, errors = threading.Barrier(4), []

    def leave(name: str) -> None:
        barrier.wait()
        try:
            assert model.forget([name]).n_ids == 1
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=leave, args=[name]) for name in NAMES[:4]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert model.digest() == fit(ESTIMATORS["tree"], data.without(set(NAMES[:4]))).digest()


@given(forgotten=st.sets(st.sampled_from(NAMES[:6]), min_size=1, max_size=6))
@examples(20)
def test_empty_model_error_exactly_when_fit_raises(forgotten: set[str]) -> None:
    data = people().only(set(NAMES[:6]))
    model = fit(LogisticRegression(), data)
    before, remaining = model.digest(), data.without(forgotten)
    try:
        fresh = fit(LogisticRegression(), remaining)
    except ValueError:
        with pytest.raises(EmptyModelError):
            model.forget(forgotten)
        assert model.digest() == before
    else:
        model.forget(forgotten)
        assert model.digest() == fresh.digest()


def test_one_class_left_is_an_empty_model_only_where_fit_refuses_it() -> None:
    X, y, ids = [[0.0], [1.0], [2.0]], ["a", "a", "b"], ["ann", "bob", "eve"]
    picky = NaiveUnlearner(LogisticRegression()).fit(X, y, ids=ids)
    with pytest.raises(EmptyModelError, match=r"remaining rows would fail.*at least 2 classes"):
        picky.forget(["eve"])
    assert picky.classes_.tolist() == ["a", "b"]
    assert picky.ids_.tolist() == ids
    tree = NaiveUnlearner(DecisionTreeClassifier()).fit(X, y, ids=ids)
    tree.forget(["eve"])
    assert tree.classes_.tolist() == ["a"]


class FragileEstimator(ClassifierMixin, BaseEstimator):
    """Raises in the fit whose number is due, after it has seen the rows."""

    fits: ClassVar[int] = 0
    due: ClassVar[tuple[int, BaseException] | None] = None

    def fit(self, X: Any, y: Any) -> "FragileEstimator":
        FragileEstimator.fits += 1
        self.classes_ = np.unique(y)
        self.sum_ = float(np.sum(X))
        if FragileEstimator.due is not None and FragileEstimator.fits == FragileEstimator.due[0]:
            raise FragileEstimator.due[1]
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.classes_[0])


class ThreadCounter(ClassifierMixin, BaseEstimator):
    """Notes how many threads BLAS and OpenMP may use while it is fitted."""

    def fit(self, X: Any, y: Any) -> "ThreadCounter":
        self.classes_ = np.unique(y)
        self.threads_ = max(library["num_threads"] for library in threadpool_info())
        return self


def test_training_uses_one_thread() -> None:
    # The last bits of a matrix product depend on the number of threads.
    with threadpool_limits(2):
        model = fit(ThreadCounter(), people())
        model.forget([NAMES[0]])
        assert ThreadCounter().fit([[1.0]], [1]).threads_ == 2
    assert model.estimator_.threads_ == 1


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        *((error, EmptyModelError) for error in (ValueError, RuntimeError, TypeError, IndexError)),
        *((error, error) for error in (MemoryError, KeyboardInterrupt, OSError, CorruptFileError)),
    ],
)
@pytest.mark.parametrize("k", [1, 3])
def test_a_failure_in_the_kth_training_changes_nothing(
    error: type[BaseException],
    raised: type[BaseException],
    k: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = fit(FragileEstimator(), people())
    monkeypatch.setattr(FragileEstimator, "fits", 0)
    monkeypatch.setattr(FragileEstimator, "due", (k, error("no luck")))
    for name in NAMES[: k - 1]:
        model.forget([name])
    before, bytes_before = model.digest(), pickle.dumps(model)
    with pytest.raises(raised, match="no luck"):
        model.forget([NAMES[k]])
    assert model.digest() == before
    assert pickle.dumps(model) == bytes_before
    model.forget([NAMES[k]])  # the next attempt works
    assert (
        model.digest()
        == fit(FragileEstimator(), people().without({*NAMES[: k - 1], NAMES[k]})).digest()
    )


@pytest.mark.parametrize("call", ["fit", "learn"])
def test_a_failed_fit_or_learn_leaves_the_old_model(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fit(FragileEstimator(), people())
    before = model.digest()
    monkeypatch.setattr(FragileEstimator, "fits", 0)
    monkeypatch.setattr(FragileEstimator, "due", (1, RuntimeError("no luck")))
    with pytest.raises(RuntimeError, match="no luck"):
        getattr(model, call)([[1.0, 2.0, 3.0]], ["yes"], ids=["new"])
    assert model.digest() == before
    assert model.ids_.tolist() == NAMES


def test_caller_may_change_its_data_afterwards() -> None:
    data = people()
    X, y = data.X.copy(), data.y.copy()
    model = fit(KNeighborsClassifier(3), data._replace(X=X, y=y))
    before = model.digest()
    X[:], y[:] = 99, "yes"
    assert model.digest() == before
    model.forget([NAMES[0]])
    assert model.digest() == fit(KNeighborsClassifier(3), data.without({NAMES[0]})).digest()


@pytest.mark.parametrize(
    "inner", [KNeighborsClassifier(2), DecisionTreeClassifier(), StandardScaler()]
)
def test_forgotten_numbers_are_nowhere_in_the_model(inner: Any) -> None:
    data, secret = people(), 1234567.890625
    X = data.X.copy()
    X[data.ids.index("p00")] = secret
    model = fit(inner, data._replace(X=X))
    assert np.float64(secret).tobytes() in pickle.dumps(model)
    model.forget(["p00"])
    dumped = pickle.dumps(model)
    assert np.float64(secret).tobytes() not in dumped
    assert b"p00" not in dumped


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"ids": None}, IdsTypeError, "ids=None; expected one id per row"),
        ({"ids": [1]}, IdsTypeError, "has str ids, but got int ids"),
        ({"ids": ["a", "b"]}, IdsLengthError, "got 2 ids for 1 rows"),
        (
            {"X": [[1.0, 2.0]]},
            ValueError,
            r"X has the layout .* 2\); this model was fitted with .* 3\)",
        ),
        ({"X": pd.DataFrame([[1.0, 2.0, 3.0]])}, ValueError, "X has the layout .*pandas"),
        ({"y": [1]}, ValueError, r"new labels are numbers \(int64\); .* fitted with strings"),
        ({"y": None}, ValueError, "requires y"),
        ({"y": ["yes", "no"]}, ValueError, "inconsistent numbers of samples"),
    ],
)
def test_learn_refuses_what_does_not_fit(
    more: dict[str, Any], error: type[Exception], message: str
) -> None:
    model = fit(ESTIMATORS["tree"], people())
    before = model.digest()
    rows = {"X": [[1.0, 2.0, 3.0]], "y": ["yes"], "ids": ["new"], **more}
    with pytest.raises(error, match=message):
        model.learn(rows["X"], rows["y"], ids=rows["ids"])
    assert model.digest() == before


def test_learn_adds_classes_and_rows_to_known_people() -> None:
    model = fit(ESTIMATORS["tree"], people())
    owned = people().ids.count("p00")
    assert model.learn([[1.0, 2.0, 3.0]], ["brand new"], ids=["p00"]) is model
    assert "brand new" in model.classes_.tolist()
    assert model.forget(["p00"]).n_rows == owned + 1
    assert model.digest() == fit(ESTIMATORS["tree"], people().without({"p00"})).digest()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ids": ["a"]}, IdsLengthError, "got 1 ids for 24 rows; give one id per row"),
        ({"ids": {"a", "b"}}, IdsTypeError, "no order"),
        ({"ids": [None] * 24}, IdsTypeError, "NoneType"),
        ({"y": None}, ValueError, "NaiveUnlearner requires y"),
        ({"y": ["a"]}, ValueError, r"inconsistent numbers of samples: \[24, 1\]"),
        ({"X": np.full((24, 3), np.nan)}, ValueError, "contains NaN"),
    ],
)
def test_fit_refuses_bad_input(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    data = {**people()._asdict(), **arguments}
    model = NaiveUnlearner(LogisticRegression())
    with pytest.raises(error, match=message):
        model.fit(data["X"], data["y"], ids=data["ids"])
    with pytest.raises(NotFittedError):
        model.predict(people().X)


def test_default_ids_are_row_numbers() -> None:
    model = NaiveUnlearner(DecisionTreeClassifier()).fit(people().X, people().y)
    assert model.ids_.tolist() == list(range(24))
    model.forget([3])
    with pytest.raises(UnknownIdError, match=r"\[3\]"):
        model.forget([3])
    with pytest.raises(UnknownIdError, match=r"\['4'\]"):
        model.forget(["4"])


def test_set_params_after_fit_is_refused() -> None:
    model = fit(ESTIMATORS["logistic"], people())
    with pytest.raises(ChangedParametersError):
        model.set_params(estimator__C=3.0).forget([NAMES[0]])
    with pytest.raises(ChangedParametersError):
        model.learn([[1.0, 2.0, 3.0]], ["yes"], ids=["new"])
    assert model.set_params(estimator__C=1.0).forget([NAMES[0]]).n_ids == 1


def test_search_outside_works_and_inside_is_refused() -> None:
    data, grid = people(), {"estimator__C": [0.1, 1.0]}
    search = GridSearchCV(
        NaiveUnlearner(LogisticRegression(), random_state=0), grid, cv=2, n_jobs=2
    )
    best = search.fit(data.X, data.y, ids=data.ids).best_estimator_
    assert best.ids_.tolist() == NAMES
    best.forget(["p05"])
    inner = LogisticRegression(C=search.best_params_["estimator__C"])
    assert best.digest() == fit(inner, data.without({"p05"}), seed=0).digest()
    inside = NaiveUnlearner(GridSearchCV(LogisticRegression(), {"C": [1.0]}))
    with pytest.raises(UnsupportedStateError, match="put the search outside"):
        inside.fit(data.X, data.y)


def test_metadata_routing_carries_ids_into_the_search() -> None:
    data = people()
    with sklearn.config_context(enable_metadata_routing=True):
        model: Any = NaiveUnlearner(LogisticRegression())
        model.set_fit_request(ids=True)
        search = GridSearchCV(model, {"estimator__C": [1.0]}, cv=2).fit(
            data.X, data.y, ids=data.ids
        )
        assert search.best_estimator_.forget(["p05"]).n_rows == data.ids.count("p05")


def test_clone_pickle_and_cross_validation() -> None:
    data = people()
    model = fit(ESTIMATORS["tree"], data)
    again = pickle.loads(pickle.dumps(model))
    assert again.digest() == model.digest()
    assert again.forget(["p05"]).n_ids == 1
    assert model.n_rows_ == 24
    assert not hasattr(clone(model), "rows_")
    assert clone(model).random_state == 7
    assert cross_val_score(clone(model), data.X, data.y, cv=2).shape == (2,)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function", "score"])
def test_answers_are_those_of_the_inner_estimator(method: str) -> None:
    data = people()
    model = fit(ESTIMATORS["logistic"], data)
    arguments = (data.X, data.y) if method == "score" else (data.X,)
    plain = LogisticRegression().fit(data.X, data.y)
    said, expected = (getattr(one, method)(*arguments) for one in (model, plain))
    assert np.array_equal(said, expected) or np.allclose(said, expected)


@pytest.mark.parametrize(
    ("inner", "has", "lacks"),
    [
        (LogisticRegression(), "predict_proba", "transform"),
        (Ridge(), "predict", "predict_proba"),
        (StandardScaler(), "transform", "predict"),
        (KMeans(2), "transform", "predict_proba"),
    ],
)
def test_only_what_the_inner_estimator_offers(inner: Any, has: str, lacks: str) -> None:
    model = NaiveUnlearner(inner)
    assert hasattr(model, has)
    assert not hasattr(model, lacks)
    assert is_classifier(model) == is_classifier(inner)
    assert is_regressor(model) == is_regressor(inner)


def test_a_transformer_needs_no_labels() -> None:
    data = people()
    model = NaiveUnlearner(StandardScaler(), random_state=0)
    assert np.allclose(model.fit_transform(data.X, ids=data.ids).mean(axis=0), 0)
    model.forget(["p00"])
    remaining = data.without({"p00"})
    assert model.digest() == clone(model).fit(remaining.X, ids=remaining.ids).digest()


def test_a_transformer_undoes_its_work_and_names_its_columns() -> None:
    frame = pd.DataFrame(people().X, columns=list("abc"))
    model = NaiveUnlearner(StandardScaler(copy=False), random_state=0).fit(frame)
    scaled = model.transform(frame)
    before = scaled.copy()
    assert np.allclose(model.inverse_transform(scaled), people().X)
    assert np.array_equal(scaled, before), "the caller's array was changed"
    assert model.get_feature_names_out().tolist() == list("abc")
    assert not hasattr(NaiveUnlearner(LogisticRegression()), "inverse_transform")
    assert not hasattr(NaiveUnlearner(LogisticRegression()), "get_feature_names_out")


def test_a_nested_model_may_not_keep_files(tmp_path: Any) -> None:
    nested = SISAClassifier(LogisticRegression(), n_shards=2, checkpoint_dir=tmp_path)
    for inner in (nested, make_pipeline(StandardScaler(), nested)):
        with pytest.raises(CannotForgetError, match="SISAClassifier inside another estimator has"):
            fit(inner, people())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [TABLES["pandas"], TABLES["polars"]])
def test_a_frame_to_predict_is_not_converted_as_if_kept(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fit(ESTIMATORS["logistic"], people()._replace(X=make(people().X)))
    expected = model.estimator_.predict(make(people().X[:1]))
    for module in (naive_module, tables_module):
        monkeypatch.setattr(module, "hold_table", lambda _: pytest.fail("X was held"))
    assert model.predict(make(people().X[:1])) == expected
    with pytest.raises(pytest.fail.Exception, match="X was held"):
        model.learn(make(people().X[:1]), ["yes"], ids=["new"])


@pytest.mark.parametrize("method", ["predict", "transform", "score"])
def test_asking_never_changes_the_callers_rows(method: str) -> None:
    inner = StandardScaler(copy=False)
    X = np.ascontiguousarray(people().X)
    before = X.copy()
    model = fit(
        inner if method == "transform" else make_pipeline(inner, Ridge()), people(regression=True)
    )
    getattr(model, method)(X, *([people(regression=True).y] if method == "score" else []))
    assert np.array_equal(X, before)


def test_unfitted_models_say_so() -> None:
    model = NaiveUnlearner(LogisticRegression())
    for name in ("classes_", "n_rows_", "ids_", "guarantee_"):
        with pytest.raises(NotFittedError):
            getattr(model, name)
    for call in (
        lambda: model.predict([[1.0]]),
        lambda: model.forget([1]),
        lambda: model.learn([[1.0]], [1], ids=[1]),
    ):
        with pytest.raises(NotFittedError):
            call()


def test_claim_is_exact_for_oblivious_requests() -> None:
    claim = fit(ESTIMATORS["tree"], people()).guarantee_
    assert (claim.kind, claim.requests, claim.releases) == ("exact", "oblivious", "latest-only")
    assert "seed-independent-of-requests" in claim.assumptions


@parametrize_with_checks(
    [
        NaiveUnlearner(LogisticRegression()),
        NaiveUnlearner(Ridge()),
        NaiveUnlearner(StandardScaler()),
    ]
)
def test_sklearn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)
