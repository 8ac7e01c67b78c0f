"""Arrow tables in, polars frames out: with the real packages, in every kind of model."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from polars.testing import assert_frame_equal
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder as SklearnEncoder
from sklearn.tree import DecisionTreeClassifier

import letheon
from letheon import (
    BoostingClassifier,
    DaREForestClassifier,
    ForgetPipeline,
    InfluenceClassifier,
    NaiveUnlearner,
    SISAClassifier,
)
from letheon.preprocessing import (
    ForgetColumnTransformer,
    OneHotEncoder,
    QuantileBinner,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
)
from letheon.sums import RidgeClassifier

N = 60
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(N, 3)), columns=["a", "b", "c"])
MIXED = FRAME.assign(city=RNG.choice(["Oslo", "Rome"], N))
Y = (FRAME["a"] > 0).to_numpy().astype(int)
COLUMNS = ForgetColumnTransformer(
    [
        ("city", OneHotEncoder(sparse_output=False), ["city"]),
        ("numbers", StandardScaler(random_state=0), ["a", "b", "c"]),
    ]
)
INNER = make_pipeline(
    make_column_transformer((SklearnEncoder(), ["city"]), remainder="passthrough"),
    LogisticRegression(),
)
MODELS: dict[str, tuple[Any, pd.DataFrame]] = {
    "forest": (DaREForestClassifier(n_estimators=3, random_state=0), MIXED),
    "boosting": (BoostingClassifier(n_estimators=3, random_state=0), MIXED),
    "ridge": (RidgeClassifier(random_state=0), FRAME),
    "influence": (InfluenceClassifier(sigma=0.1, random_state=0), FRAME),
    "naive": (NaiveUnlearner(INNER, random_state=0), MIXED),
    "sisa": (SISAClassifier(DecisionTreeClassifier(), n_shards=2, random_state=0), FRAME),
    "pipeline": (
        ForgetPipeline([("columns", COLUMNS), ("model", RidgeClassifier(random_state=0))]),
        MIXED,
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_an_arrow_table_is_like_the_frame(kind: str, tmp_path: Path) -> None:
    template, frame = MODELS[kind]
    table = pa.Table.from_pandas(frame, preserve_index=False)
    ids = pa.array([f"p{number:02d}" for number in range(N)])
    model = clone(template).fit(table, Y, ids=ids.to_pylist())
    same = clone(template).fit(frame, Y, ids=ids.to_pylist())
    if kind != "influence":  # its noise is drawn by the operating system
        assert model.digest() == same.digest()
    np.testing.assert_array_equal(model.predict(table), model.predict(frame))
    if kind != "naive":  # a pipeline of scikit-learn inside has no predictor
        answers = model.predictor().predict(table)
        np.testing.assert_array_equal(answers, model.predict(frame))
    letheon.save(model, tmp_path / "model")
    loaded = letheon.load(tmp_path / "model")
    assert loaded.forget(["p03"]).n_rows == 1
    assert loaded.feature_names_in_.tolist() == list(frame.columns)


@pytest.mark.parametrize("kind", ["naive", "sisa", "pipeline"])
def test_rows_of_an_arrow_table_are_learned(kind: str) -> None:
    template, frame = MODELS[kind]
    table = pa.Table.from_pandas(frame, preserve_index=False)
    model = clone(template).fit(table.slice(0, 50), Y[:50], ids=range(50))
    model.learn(table.slice(50), Y[50:], ids=range(50, N))
    assert model.digest() == clone(template).fit(frame, Y, ids=range(N)).digest()


@pytest.mark.parametrize(
    "step",
    [
        StandardScaler(random_state=0),
        RobustScaler(random_state=0),
        SimpleImputer(random_state=0),
        QuantileBinner(n_bins=4, random_state=0),
        COLUMNS,
    ],
    ids=lambda step: type(step).__name__,
)
def test_transformers_return_polars_frames(step: Any) -> None:
    rows = MIXED if step is COLUMNS else FRAME
    plain = clone(step).fit(rows)
    framed = clone(step).set_output(transform="polars").fit(rows)
    for X in (rows, pl.from_pandas(rows), pa.Table.from_pandas(rows, preserve_index=False)):
        answer = framed.transform(X)
        assert isinstance(answer, pl.DataFrame)
        assert answer.columns == plain.get_feature_names_out().tolist()
        expected = np.asarray(plain.transform(rows), float)
        assert_frame_equal(answer, pl.DataFrame(expected, answer.columns), check_dtypes=False)


@pytest.mark.parametrize("kind", ["forest", "pipeline", "naive"])
def test_inspection_takes_frames(kind: str) -> None:
    template, frame = MODELS[kind]
    model = clone(template).fit(frame, Y)
    means = permutation_importance(model, frame, Y, n_repeats=2, random_state=0).importances_mean
    assert means.argmax() == 0
    curve = partial_dependence(model, frame, ["a"], grid_resolution=4)["average"][0]
    assert curve[0] < curve[-1]
