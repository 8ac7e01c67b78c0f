"""A model that could have no digest is refused at `fit`: no claim without a check."""

import datetime as dt
import uuid
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

import letheon
from letheon import DataIndependent, ForgetPipeline, NaiveUnlearner, SISAClassifier, state
from letheon.exceptions import CannotForgetError, UnsupportedStateError

N = 200
X = np.random.default_rng(0).normal(size=(N, 2))
Y = np.arange(N) % 2


class Compiled(ClassifierMixin, BaseEstimator):
    """Keeps a handle of compiled code, as boosters of xgboost and lightgbm do.

    With `needs` it does so only if it has seen so many rows, or fewer with `at_most`.
    """

    seen: ClassVar[list[int]] = []
    classes_: Any

    def __init__(self, needs: int = 0, at_most: int = 10**9) -> None:
        self.needs, self.at_most = needs, at_most

    def fit(self, X: Any, y: Any) -> Self:
        self.seen.append(len(X))
        return self._learn(X, y, np.unique(y))

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        self.seen.append(len(X))
        return self._learn(X, y, classes)

    def _learn(self, X: Any, y: Any, classes: Any) -> Self:
        self.classes_ = self.classes_ if classes is None else classes
        self.mean_ = np.mean(X, axis=0)
        self.handle_ = zlib.compressobj() if self.needs <= len(X) <= self.at_most else None
        return self

    def predict(self, X: Any) -> Any:
        return np.repeat(self.classes_[:1], len(X))


def distance(a: Any, b: Any) -> float:
    return float(np.abs(a - b).sum())


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    Compiled.seen.clear()


HOLDERS: dict[str, Any] = {
    "naive": lambda **params: NaiveUnlearner(Compiled(**params), random_state=0),
    "sisa": lambda **params: SISAClassifier(Compiled(**params), n_shards=2, random_state=0),
    "slices": lambda **params: SISAClassifier(
        Compiled(**params), n_shards=2, n_slices=2, random_state=0
    ),
    "inside": lambda **params: NaiveUnlearner(
        make_pipeline(FunctionTransformer(), Compiled(**params)), random_state=0
    ),
    "pipeline": lambda **params: ForgetPipeline(
        [("same", "passthrough"), ("last", NaiveUnlearner(Compiled(**params), random_state=0))]
    ),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_compiled_state_is_refused_before_training(holder: str) -> None:
    model = HOLDERS[holder]()
    with pytest.raises(UnsupportedStateError, match=r"cannot be saved.*register_codec"):
        model.fit(X, Y)
    assert max(Compiled.seen) <= 32  # the trial, and no training
    assert not model.__sklearn_is_fitted__()
    with pytest.raises(NotFittedError):
        model.forget([0])


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_shows_after_training_only_is_refused_when_fit_ends(holder: str) -> None:
    model = HOLDERS[holder](needs=50)
    with pytest.raises(UnsupportedStateError, match="register_codec"):
        model.fit(X, Y)
    assert not model.__sklearn_is_fitted__()


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_refused_fit_leaves_the_model_of_before(holder: str) -> None:
    model = HOLDERS[holder](needs=50).fit(X[:40], Y[:40])
    before = model.digest()
    with pytest.raises(UnsupportedStateError):
        model.fit(X, Y)
    assert model.digest() == before
    assert model.n_rows_ == 40


def test_a_refused_fit_leaves_no_files(tmp_path: Path) -> None:
    model = SISAClassifier(Compiled(needs=60), n_shards=2, n_slices=2, checkpoint_dir=tmp_path)
    with pytest.raises(UnsupportedStateError):
        model.fit(X, Y)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("holder", ["naive", "sisa", "pipeline"])
def test_a_forget_that_would_end_without_a_digest_changes_nothing(holder: str) -> None:
    # The trial has 32 rows, the shards have about 20, and the whole has 40.
    model = HOLDERS[holder](needs=2, at_most=8).fit(X[:40], Y[:40])
    before = model.digest()
    with pytest.raises(UnsupportedStateError, match="nothing was changed"):
        model.forget(range(34))
    assert model.digest() == before
    assert model.n_rows_ == 40


def test_a_learn_that_would_end_without_a_digest_changes_nothing() -> None:
    model = HOLDERS["naive"](needs=60).fit(X[:40], Y[:40])
    before = model.digest()
    with pytest.raises(UnsupportedStateError, match="nothing was changed"):
        model.learn(X[40:], Y[40:], ids=range(40, N))
    assert model.digest() == before


def test_a_class_of_the_caller_with_plain_attributes_works() -> None:
    model = SISAClassifier(Compiled(needs=10**6), n_shards=2, random_state=0).fit(X, Y)
    assert model.forget([0, 1], digest=True).digest_after == model.digest()
    assert min(Compiled.seen) == 32  # a trial, since its class is not listed


class Timed(Compiled):
    """No two fits are equal, so digests cannot be compared."""

    def fit(self, X: Any, y: Any) -> Self:
        self.key_ = uuid.uuid4().hex
        return super().fit(X, y)


@pytest.mark.parametrize("holder", [NaiveUnlearner, SISAClassifier])
def test_a_model_of_which_no_two_fits_are_equal_is_refused(holder: Any) -> None:
    with pytest.raises(CannotForgetError, match="two fits of Timed on the same rows differ"):
        holder(Timed(needs=10**6), random_state=0).fit(X, Y)
    assert set(Timed.seen) == {32}


def test_a_function_is_looked_at_after_the_trial() -> None:
    with pytest.raises(UnsupportedStateError, match="metric is a Python function"):
        NaiveUnlearner(KNeighborsClassifier(metric=distance, algorithm="ball_tree")).fit(X, Y)


def test_listed_classes_on_arrays_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    fits, fit = [], DecisionTreeClassifier.fit

    def counted(self: Any, X: Any, y: Any) -> Any:
        fits.append(len(X))
        return fit(self, X, y)

    monkeypatch.setattr(DecisionTreeClassifier, "fit", counted)
    NaiveUnlearner(DecisionTreeClassifier()).fit(X, Y)
    assert fits == [N]


@pytest.mark.parametrize(
    ("value", "is_listed"),
    [
        (make_pipeline(OneHotEncoder(), DecisionTreeClassifier()), True),
        (NaiveUnlearner(DecisionTreeClassifier(random_state=np.random.RandomState(0))), True),
        (Compiled(), False),
        (NaiveUnlearner(Compiled()), False),
        (KNeighborsClassifier(metric=distance), False),
    ],
)
def test_listed_classes(value: Any, is_listed: bool) -> None:
    assert state.has_listed_classes(value) is is_listed


DATES = [dt.date(2020, 1, 1 + i % 3) for i in range(40)]
TABLES: dict[str, Any] = {
    "dates": pd.DataFrame({"a": DATES}),
    "decimals": np.array([[Decimal(i % 3)] for i in range(40)], object),
    "periods": pd.DataFrame({"a": pd.period_range("2020", periods=40, freq="D")}),
    "long doubles": X[:40].astype(np.longdouble),
    "names": pd.DataFrame(X[:40], columns=[Decimal(1), Decimal(2)]),
    "time zones": pd.DataFrame({"a": pd.date_range("2020", periods=40, tz="UTC")}),
    "numbers": X[:40].round(),
    "frame": pd.DataFrame({"a": Y[:40], "b": ["x", "y"] * 20}),
    "categories": pd.DataFrame({"a": pd.Categorical(["x", "y"] * 20)}),
}
MODELS: dict[str, Any] = {
    "naive": lambda: NaiveUnlearner(OneHotEncoder(), random_state=0),
    "same": lambda: NaiveUnlearner(FunctionTransformer(), random_state=0),
    "sisa": lambda: SISAClassifier(
        make_pipeline(OneHotEncoder(handle_unknown="ignore"), DecisionTreeClassifier()),
        n_shards=2,
        random_state=0,
    ),
    "dummy": lambda: SISAClassifier(DummyClassifier(), n_shards=2, random_state=0),
    "pipeline": lambda: ForgetPipeline(
        [
            ("encode", NaiveUnlearner(OneHotEncoder(), random_state=0)),
            ("last", NaiveUnlearner(DecisionTreeClassifier(), random_state=0)),
        ]
    ),
}
FINE = {"numbers", "frame", "categories"}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.sampled_from(sorted(TABLES)), model=st.sampled_from(sorted(MODELS)))
def test_what_can_be_fitted_has_a_digest_and_a_file(
    table: str, model: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = MODELS[model]()
    try:
        made.fit(TABLES[table], Y[:40])
    except UnsupportedStateError:
        assert table not in FINE
        assert not made.__sklearn_is_fitted__()
        return
    assert made.forget([0], digest=True).digest_after == made.digest()
    letheon.save(made, tmp_path_factory.mktemp("files") / "model.letheon")


@pytest.mark.parametrize("table", sorted(TABLES.keys() - FINE))
def test_rows_without_canonical_bytes_are_refused(table: str) -> None:
    with pytest.raises(UnsupportedStateError):
        MODELS["naive"]().fit(TABLES[table])


def test_new_rows_without_canonical_bytes_are_refused() -> None:
    stored = np.array([["a"], ["b"]] * 4, object)
    model = NaiveUnlearner(FunctionTransformer(), random_state=0).fit(stored)
    before = model.digest()
    with pytest.raises(UnsupportedStateError, match="Decimal"):
        model.learn(np.array([[Decimal("0.5")]], object), ids=[8])
    assert model.digest() == before


def test_a_step_that_cannot_be_encoded_is_refused_before_training() -> None:
    steps = [
        ("own", DataIndependent(FunctionTransformer(lambda table: table))),
        ("last", NaiveUnlearner(Compiled(needs=10**6))),
    ]
    with pytest.raises(UnsupportedStateError, match="lambda"):
        ForgetPipeline(steps).fit(X, Y)
    assert Compiled.seen == []
