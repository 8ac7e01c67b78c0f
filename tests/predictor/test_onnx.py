"""Predictors in onnxruntime answer like predictors in Python."""

from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.base import clone

from letheon import DaREForestClassifier, DaREForestRegressor
from letheon.predictor import Predictor
from letheon.preprocessing import OneHotEncoder, SimpleImputer
from letheon.sums import GaussianNB, Ridge
from tests.predictor.models import (
    FRAME,
    GAPS,
    LINEAR,
    NUMBERS,
    OTHERS,
    PIPELINES,
    TARGET,
    THREE,
    TREES,
    TWO,
    Case,
    make_forest,
    make_pipeline,
)

CASES = TREES | LINEAR | PIPELINES


def run(predictor: Predictor, X: Any, dtype: Any = np.float64) -> dict[str, Any]:
    """Return the outputs of onnxruntime by name."""
    content = predictor.to_onnx(dtype=dtype).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    assert names == (["X"] if len(names) == 1 else list(X))
    feeds = {"X": np.asarray(X, dtype)} if names == ["X"] else {c: to_cells(X[c]) for c in X}
    found = session.run(None, feeds)
    return {each.name: out for each, out in zip(session.get_outputs(), found, strict=True)}


def to_cells(column: "pd.Series[Any]") -> Any:
    """Return a column as the input of ONNX: texts (missing ones are empty) or float64."""
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(np.float64)[:, None]
    return column.astype(object).where(column.notna(), "").to_numpy(object)[:, None]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_answers_are_equal(case: Case) -> None:
    model, X, y = case
    predictor = clone(model).fit(X, y).predictor()
    answers = run(predictor, X)
    if "value" in answers:
        expected = predictor.predict(X)
        assert answers["value"].shape == expected.shape
        np.testing.assert_allclose(answers["value"], expected, atol=1e-6, rtol=1e-6)
        return
    assert np.array_equal(answers["label"], predictor.predict(X))
    assert ("probabilities" in answers) == hasattr(predictor, "predict_proba")
    if "probabilities" in answers:
        found = answers["probabilities"]
        np.testing.assert_allclose(found, predictor.predict_proba(X), atol=1e-6)
    else:
        found = np.squeeze(answers["scores"])
        np.testing.assert_allclose(found, predictor.decision_function(X), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_thresholds_are_compared_in_float32(dtype: Any) -> None:
    """A number between a threshold and the next float32 goes where the model sends it."""
    model = DaREForestRegressor(n_estimators=10, max_depth=4, random_state=0).fit(NUMBERS, TARGET)
    predictor: Any = model.predictor()
    edges = np.unique(predictor.scores.thresholds)[:, None].astype(np.float64)
    near = np.concatenate([edges, edges * (1 + 1e-9), edges * (1 - 1e-9), np.nextafter(edges, 9)])
    X = np.repeat(near, 4, axis=1).astype(dtype)
    found = run(predictor, X, dtype)["value"]
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-12)


def test_missing_values_go_to_both_sides() -> None:
    X = np.where(np.arange(400)[:, None] % 4 == 0, np.nan, np.arange(400.0)[:, None])
    for share in (True, False):
        y = (np.isnan(X[:, 0]) | (X[:, 0] > 200)) == share
        model = DaREForestClassifier(n_estimators=3, max_features=None, random_state=0).fit(X, y)
        predictor: Any = model.predictor()
        rows = np.array([[np.nan], [3.0], [399.0]])
        assert np.array_equal(run(predictor, rows)["label"], model.predict(rows))


def test_categories_that_no_row_had() -> None:
    predictor = clone(TREES["frame-forest"][0]).fit(FRAME, THREE).predictor()
    rows = FRAME.head(3).assign(city=["Paris", "oslo", None])
    found = run(predictor, rows)["probabilities"]
    np.testing.assert_allclose(found, predictor.predict_proba(rows), atol=1e-6)


def test_missing_texts_that_an_imputer_replaces() -> None:
    X = pd.DataFrame({"city": [*FRAME["city"][:200]], "n": GAPS[:200, 0]})
    steps = SimpleImputer(strategy="most_frequent", add_indicator=True), OneHotEncoder()
    model = make_pipeline(*steps, Ridge(random_state=0)).fit(X.round(), TARGET[:200])
    predictor = model.predictor()
    found = run(predictor, X.round())["value"]
    np.testing.assert_allclose(found, predictor.predict(X.round()), atol=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_what_has_no_onnx_form_is_refused(name: str) -> None:
    model, X, y = OTHERS[name]
    predictor = clone(model).fit(X, y).predictor()
    with pytest.raises(TypeError, match="no ONNX form"):
        predictor.to_onnx()


def test_one_class() -> None:
    model = make_forest().fit(GAPS, np.zeros(len(GAPS), int))
    assert set(run(model.predictor(), GAPS)["label"].tolist()) == {0}


def test_other_types_are_refused() -> None:
    predictor = GaussianNB(random_state=0).fit(NUMBERS, TWO).predictor()
    with pytest.raises(ValueError, match="float32"):
        predictor.to_onnx(dtype=np.int64)
