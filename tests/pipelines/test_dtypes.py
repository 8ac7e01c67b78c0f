"""Rows of another dtype, hostile values and files: a pipeline stays equal to a fresh fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.tree import DecisionTreeClassifier

import letheon
from letheon import ForgetPipeline, ForgetSearchCV, SISAClassifier
from letheon.preprocessing import (
    ForgetColumnTransformer,
    OneHotEncoder,
    SimpleImputer,
    StandardScaler,
)
from letheon.sums import RidgeClassifier

N, FIRST = 40, 30
IDS = np.arange(N)
RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=(N, 2))
LABELS = RNG.integers(0, 2, N)
CITIES = RNG.choice(["Oslo", "Rome"], N)


def make_model() -> ForgetPipeline:
    """Return a scaler and a model of sums."""
    return ForgetPipeline(
        [("scale", StandardScaler(random_state=0)), ("model", RidgeClassifier(random_state=0))]
    )


def make_search() -> ForgetSearchCV:
    """Return a search over models that store their rows."""
    sharded = SISAClassifier(DecisionTreeClassifier(), n_shards=2)
    return ForgetSearchCV(sharded, {"n_shards": [1, 2]}, n_people=9, cv=2, random_state=0)


def make_columns() -> ForgetPipeline:
    """Return a pipeline for a frame with the columns "value" and "city"."""
    columns = ForgetColumnTransformer(
        [
            ("number", SimpleImputer(random_state=0), ["value"]),
            ("city", OneHotEncoder(handle_unknown="ignore"), ["city"]),
        ]
    )
    return ForgetPipeline([("columns", columns), ("model", RidgeClassifier(random_state=0))])


def make_frame(value: Any = NUMBERS[:, 0], city: Any = CITIES, dtype: Any = object) -> pd.DataFrame:
    """Return a frame with cities of a dtype."""
    return pd.DataFrame({"value": value, "city": pd.Series(city, dtype=dtype)})


def learn_and_forget(model: Any, X: Any, new: Any) -> Any:
    """Fit on the first rows of X, add the last rows of `new`, and forget old and new people."""
    model.fit(X[:FIRST], LABELS[:FIRST], ids=IDS[:FIRST])
    model.learn(new[FIRST:], LABELS[FIRST:], ids=IDS[FIRST:])
    model.forget([1, 2, FIRST + 3])
    return model


def fit_rest(model: Any, X: Any) -> Any:
    """Fit on the rows that `learn_and_forget` keeps."""
    rest = np.setdiff1d(IDS, [1, 2, FIRST + 3])
    return model.fit(X.iloc[rest] if hasattr(X, "iloc") else X[rest], LABELS[rest], ids=rest)


@pytest.mark.parametrize("make", [make_model, make_search])
def test_learned_floats_are_counted_as_they_are_stored(make: Any) -> None:
    narrow = NUMBERS.astype(np.float32)
    model = learn_and_forget(make(), narrow, NUMBERS)
    assert model.digest() == fit_rest(make(), narrow).digest()


@pytest.mark.parametrize("kind", ["float32", "Float32"])
def test_learned_columns_are_counted_as_they_are_stored(kind: str) -> None:
    narrow = make_frame().astype({"value": kind})
    model = learn_and_forget(make_columns(), narrow, make_frame())
    assert model.digest() == fit_rest(make_columns(), narrow).digest()


def test_floats_that_become_infinite_are_refused() -> None:
    model = make_model().fit(NUMBERS.astype(np.float32), LABELS, ids=IDS)
    before = model.digest()
    with pytest.raises(ValueError, match="do not fit into float32"):
        model.learn(NUMBERS[:1] * 1e300, LABELS[:1], ids=[N])
    assert model.digest() == before


TRUTHS, ONES = [True, False] * (N // 2), [1, 0] * (N // 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (make_frame(np.arange(N)), make_frame(np.arange(N) + 0.5), "fit into int64"),
        (make_frame(np.arange(N)), make_frame(np.full(N, np.nan)), "fit into int64"),
        (make_frame(pd.array([1] * N, "Int8")), make_frame(np.full(N, 300)), "fit into Int8"),
        (make_frame(np.arange(N) > 3), make_frame(np.full(N, 2)), "fit into bool"),
        (make_frame(city=TRUTHS), make_frame(city=ONES), "mixes booleans and numbers"),
        (make_frame(city=ONES), make_frame(city=TRUTHS), "mixes booleans and numbers"),
        (make_frame(dtype="str"), make_frame(city=ONES), "not texts"),
    ],
)
def test_rows_that_a_fit_would_store_differently_are_refused(
    old: pd.DataFrame, new: pd.DataFrame, message: str
) -> None:
    model = make_columns().fit(old, LABELS, ids=IDS)
    before = model.digest()
    with pytest.raises(ValueError, match=message):
        model.learn(new[:2], LABELS[:2], ids=[N, N + 1])
    assert model.digest() == before


def test_missing_values_fit_into_a_nullable_column() -> None:
    gaps = pd.array([None, 2] * (N // 2), "Int8")
    model = learn_and_forget(make_columns(), make_frame(gaps), make_frame(gaps.astype("Float64")))
    assert model.digest() == fit_rest(make_columns(), make_frame(gaps)).digest()


@pytest.mark.parametrize(
    "X",
    [
        make_frame(pd.array(range(N), "int64[pyarrow]")),
        pl.DataFrame({"value": pl.Series([1] * N, dtype=pl.Decimal(9, 2)), "city": CITIES}),
        pl.DataFrame({"value": pl.Series([1] * N, dtype=pl.Int128), "city": CITIES}),
    ],
)
def test_a_dtype_that_no_file_can_contain_is_refused_by_fit(X: Any) -> None:
    with pytest.raises(ValueError, match="convert it to float64 or int64"):
        make_columns().fit(X, LABELS, ids=IDS)


def test_long_doubles_are_refused_by_fit() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        make_model().fit(NUMBERS.astype(np.longdouble), LABELS, ids=IDS)


class City(str):
    """A text with state of its own."""

    __slots__ = ("origin",)


def test_subclasses_of_texts_are_stored_as_texts() -> None:
    named = make_columns().fit(make_frame(city=[*map(City, CITIES)]), LABELS, ids=IDS)
    assert named.digest() == make_columns().fit(make_frame(), LABELS, ids=IDS).digest()


@pytest.mark.parametrize("city", [CITIES, [None, "Oslo"] * (N // 2), ["\ud800", "a\x00"] * 20])
def test_a_column_of_objects_has_the_same_digest_after_a_file(city: Any, tmp_path: Path) -> None:
    model = make_columns().fit(make_frame(city=city), LABELS, ids=IDS)
    letheon.save(model, tmp_path / "model")
    again = letheon.load(tmp_path / "model")
    assert again.digest() == model.digest()
