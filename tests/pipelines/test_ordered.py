"""Ordered categories: their order is that of a fresh fit, whenever they arrive and disappear."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.preprocessing import FunctionTransformer

from letheon import (
    BoostingClassifier,
    DataIndependent,
    ForgetPipeline,
    ForgetSearchCV,
    NaiveUnlearner,
    SISAClassifier,
)
from letheon.compose import clone_unfitted
from letheon.preprocessing import ForgetColumnTransformer, OneHotEncoder, SimpleImputer

SIZES = ["s", "m", "l", "xl"]
ROWS = ["s", "l", "s", "l", "m", "xl", "m", "s", "l"]
Y = np.arange(9) % 2
Make = Callable[[list[str], list[str]], Any]


def make_pandas(sizes: list[str], order: list[str] = SIZES) -> Any:
    column = pd.Categorical(sizes, order, ordered=True)
    return pd.DataFrame({"size": column, "n": np.arange(float(len(sizes)))})


def make_polars(sizes: list[str], order: list[str] = SIZES) -> Any:
    column = pl.Series(sizes, dtype=pl.Enum(order))
    return pl.DataFrame({"size": column, "n": np.arange(float(len(sizes)))})


def make_columns() -> ForgetColumnTransformer:
    parts = [("n", SimpleImputer(random_state=0), ["n"]), ("s", "passthrough", ["size"])]
    return ForgetColumnTransformer(parts)


def make_naive() -> NaiveUnlearner:
    return NaiveUnlearner(DummyClassifier(), random_state=0)


def make_pipeline(model: Any) -> ForgetPipeline:
    return ForgetPipeline([("columns", make_columns()), ("model", model)])


BOOSTING = BoostingClassifier(n_estimators=1, random_state=0)
SAME = DataIndependent(FunctionTransformer())
MODELS: dict[str, Callable[[], Any]] = {
    "naive": make_naive,
    "sisa": lambda: SISAClassifier(BOOSTING, n_shards=2, random_state=0),
    "pipeline": lambda: make_pipeline(make_naive()),
    "refitted": lambda: ForgetPipeline([("same", SAME), ("model", make_naive())]),
    "boosting": lambda: make_pipeline(BOOSTING),
    "search": lambda: ForgetSearchCV(
        make_pipeline(make_naive()), {"model__random_state": [0]}, cv=4, random_state=1
    ),
    "encoder": OneHotEncoder,
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("make", [make_pandas, make_polars])
def test_a_category_that_arrives_later_has_its_place(kind: str, make: Make) -> None:
    """It was the last one, so the bytes showed who had come first, even after they had left."""
    table, ids = make(ROWS, SIZES), np.arange(9)
    model = MODELS[kind]().fit(table[:4], Y[:4], ids=ids[:4])
    model.learn(table[4:7], Y[4:7], ids=ids[4:7])
    model.forget([4])
    model.learn(table[7:], Y[7:], ids=ids[7:])
    stays = ids != 4
    kept = make([size for size, stay in zip(ROWS, stays, strict=True) if stay], SIZES)
    if make is make_pandas:
        kept["n"] = table["n"][stays].to_numpy()
    else:
        kept = kept.with_columns(n=table["n"].filter(stays))
    fresh = clone_unfitted(model).fit(kept, Y[stays], ids=ids[stays])
    assert model.digest() == fresh.digest()


@pytest.mark.parametrize("kind", ["naive", "pipeline", "search", "encoder"])
@pytest.mark.parametrize("make", [make_pandas, make_polars])
def test_a_category_without_a_place_is_refused(kind: str, make: Make) -> None:
    model = MODELS[kind]().fit(make(ROWS[:4], SIZES), Y[:4], ids=range(4))
    before = model.digest()
    for order in (["m"], ["l", "m", "s"], ["m", "s"]):
        with pytest.raises(ValueError, match="use the same dtype in fit and learn"):
            model.learn(make(["m"], order), Y[:1], ids=[20])
    assert model.digest() == before
    model.learn(make(["l"], ["l"]), Y[:1], ids=[20])
