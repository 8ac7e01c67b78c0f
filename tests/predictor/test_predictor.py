"""Predictors predict like their models, bit by bit, and change with them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.impute import KNNImputer
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import QuantileTransformer

import letheon
from letheon import DaREForestClassifier, DaREForestRegressor, NaiveUnlearner, SISAClassifier, _core
from letheon.centroid import NearestCentroid
from letheon.exceptions import CannotForgetError, CorruptFileError, NotFittedError
from letheon.ledger.models.examine import require_kind
from letheon.predictor import Predictor, TreeScores
from letheon.preprocessing import KeyedSample
from letheon.sums import GaussianNB, RandomFeatures
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
    Case,
    make_forest,
    make_pipeline,
)

CASES = TREES | LINEAR | PIPELINES | OTHERS
METHODS = ("predict", "predict_proba", "decision_function")


def require_equal(model: Any, predictor: Predictor, X: Any) -> None:
    for method in METHODS:
        assert hasattr(predictor, method) == hasattr(model, method), method
        if hasattr(model, method):
            expected = getattr(model, method)(X)
            answer = getattr(predictor, method)(X)
            assert answer.dtype == expected.dtype, method
            assert np.array_equal(answer, expected), method


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_predictor_and_its_file_predict_like_the_model(case: Case, tmp_path: Path) -> None:
    model, X, y = clone(case[0]), *case[1:]
    predictor = model.fit(X, y).predictor()
    require_equal(model, predictor, X)
    letheon.save(predictor, tmp_path / "predictor")
    again = letheon.load(tmp_path / "predictor")
    require_equal(model, again, X)
    assert again.digest() == predictor.digest()
    assert again.guarantee == predictor.guarantee


@pytest.mark.parametrize("name", ["forest", "frame-boosting", "lda-three", "forest-pipeline"])
def test_after_forgetting_it_is_the_predictor_of_a_retrained_model(name: str) -> None:
    template, X, y = CASES[name]
    model = clone(template).fit(X, y)
    old, before = model.predictor(), model.predict(X)
    model.forget(range(20))
    rest = X.iloc[20:] if X is FRAME else X[20:]
    fresh = clone(template).fit(rest, y[20:], ids=range(20, len(y)))
    assert model.predictor().digest() == fresh.predictor().digest() != old.digest()
    assert np.array_equal(old.predict(X), before)


def test_unseen_categories_and_other_rows() -> None:
    model = clone(TREES["frame-forest"][0]).fit(FRAME, THREE)
    other = FRAME.head(9).assign(city=["Paris", "", None, "Oslo", "oslo", "Rome", "x", "y", "z"])
    require_equal(model, model.predictor(), other)


def test_sparse_rows_and_rows_of_any_layout() -> None:
    model = clone(TREES["forest"][0]).fit(GAPS, THREE)
    predictor = model.predictor()
    for X in (sp.csc_array(NUMBERS), NUMBERS[::2, :], np.asfortranarray(NUMBERS, np.float32)):
        require_equal(model, predictor, X)


def test_columns_are_checked() -> None:
    predictor = clone(TREES["frame-forest"][0]).fit(FRAME, THREE).predictor()
    assert predictor.feature_names_in_.tolist() == list(FRAME)
    with pytest.raises(ValueError, match="feature names"):
        predictor.predict(FRAME.rename(columns={"a": "z"}))
    with pytest.raises(ValueError, match="5 features"):
        clone(TREES["forest"][0]).fit(GAPS, THREE).predictor().predict(np.zeros((2, 5)))
    with pytest.raises(ValueError, match="infinity"):
        clone(TREES["forest"][0]).fit(GAPS, THREE).predictor().predict(np.full((2, 4), np.inf))


def test_a_predictor_can_neither_learn_nor_forget() -> None:
    predictor = make_forest().fit(GAPS, THREE).predictor()
    assert not any(hasattr(predictor, name) for name in ("forget", "learn", "ids_", "seed_"))
    with pytest.raises(TypeError, match="read-only"):
        predictor.fit(GAPS, THREE)
    assert clone(predictor) is predictor
    assert repr(predictor) == "<ScorePredictor of 4 columns, exact>"
    with pytest.raises(CannotForgetError, match="ScorePredictor"):
        require_kind(predictor)  # the ledger registers models only


def test_the_spent_budget_is_not_published() -> None:
    predictor = clone(LINEAR["influence"][0]).fit(NUMBERS, THREE).predictor()
    assert predictor.guarantee.kind == "certified"
    assert predictor.guarantee.spent is None


@pytest.mark.parametrize(
    "model",
    [
        NaiveUnlearner(KNeighborsClassifier(), random_state=0),
        SISAClassifier(KNeighborsClassifier(), random_state=0),
        make_pipeline(KeyedSample(KNNImputer()), GaussianNB()),
        make_pipeline(KeyedSample(QuantileTransformer(n_quantiles=9)), GaussianNB()),
        make_pipeline(RandomFeatures(random_state=0), GaussianNB()),
        make_pipeline(NaiveUnlearner(KNNImputer()), GaussianNB()),
        NearestCentroid(),
    ],
    ids=lambda model: repr(model)[:40],
)
def test_what_may_contain_rows_or_keys_has_no_predictor(model: Any) -> None:
    with pytest.raises(TypeError, match="predictor"):
        clone(model).fit(NUMBERS, THREE).predictor()


def test_an_unfitted_model_has_no_predictor() -> None:
    with pytest.raises(NotFittedError):
        DaREForestClassifier().predictor()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("rights", [1, -1, -1]),  # a child that is its sibling
        ("rights", [3, -1, -1]),  # outside the tree
        ("rights", [0, -1, -1]),  # a circle
        ("columns", [2, -1, -1]),
        ("columns", [0, 1, -1]),  # a split without children
        ("begins", [0, 4]),
        ("begins", [0, 0, 3]),
        ("thresholds", [0.5]),
    ],
)
def test_damaged_trees_are_refused(field: str, values: list[int]) -> None:
    parts: dict[str, Any] = {
        "begins": np.array([0, 3], np.int64),
        "columns": np.array([0, -1, -1], np.int32),
        "thresholds": np.zeros(3, np.float32),
        "rights": np.array([2, -1, -1], np.int32),
        "missing_left": np.zeros(3, np.uint8),
        "categorical": np.zeros(2, np.uint8),
    }
    X = np.array([[-1.0, 0.0], [1.0, 0.0], [np.nan, 0.0]])
    assert _core.find_leaves(**parts, X=X, n_threads=1).tolist() == [[1, 2, 2]]
    parts[field] = np.array(values, parts[field].dtype)
    with pytest.raises(ValueError, match="tree"):
        _core.find_leaves(**parts, X=X, n_threads=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"is_leaf": np.packbits([0, 0, 1])},
        {"is_leaf": np.packbits([0, 1, 0])},
        {"n_nodes": 0},
        {"n_nodes": 9},
        {"columns": np.array([0, 0])},
        {"weights": np.array([1.0])},
        {"values": np.zeros((3, 1)), "weights": None},
        # SHAP would read outside of a row: a segmentation fault.
        {"columns": np.array([1 << 20])},
        {"columns": np.array([4])},
        {"columns": np.array([-1])},
        {"columns": np.array([1 << 40])},  # 0 as a number of 32 bits
        {"columns": np.array([np.nan])},
        {"thresholds": np.array([np.nan], np.float32)},
        {"thresholds": np.array([1e300])},
        {"missing_left": np.zeros(0, np.uint8)},
        {"categorical": np.zeros(0, np.uint8)},
        {"categorical": np.zeros(4)},
        {"values": np.zeros((2, 9))},
        {"values": np.zeros((2, 0))},
        {"base": np.zeros(0)},
        {"base": np.array(0.0)},
        {"exponent": 1 << 40},
        {"divisor": 0.0},
        {"offset": np.nan},
    ],
)
def test_damaged_trees_of_a_file_are_refused(changes: dict[str, Any]) -> None:
    model = DaREForestRegressor(n_estimators=1, max_depth=1, random_state=0)
    trees: Any = model.fit(NUMBERS, TARGET).predictor()
    valid = trees.scores._to_state()
    assert TreeScores._from_state(valid).weights.tolist() == trees.scores.weights.tolist()
    with pytest.raises((ValueError, IndexError)):
        TreeScores._from_state(valid | changes)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("inputs", "n_columns", 10**12),
        ("inputs", "names", ("a",)),
        ("inputs", "texts", (("Oslo",),)),
        ("inputs", "columns", (-1, 4)),
        ("answers", "kind", "magic"),
        ("answers", "classes", np.array(["one"])),
        ("answers", "classes", np.zeros((3, 3))),
    ],
)
def test_a_file_whose_parts_do_not_match_is_refused(
    part: str, field: str, value: Any, tmp_path: Path
) -> None:
    predictor: Any = make_forest().fit(FRAME, THREE).predictor()
    setattr(predictor, part, replace(getattr(predictor, part), **{field: value}))
    letheon.save(predictor, tmp_path / "predictor")
    with pytest.raises(CorruptFileError):
        letheon.load(tmp_path / "predictor")


def test_a_file_cannot_multiply_small_arrays_to_a_large_one(tmp_path: Path) -> None:
    predictor: Any = clone(LINEAR["ridge-three"][0]).fit(NUMBERS, THREE).predictor()
    offsets = tuple(np.zeros((100,) + (1,) * axes) for axes in range(5))
    predictor.scores = replace(predictor.scores, offsets=offsets)
    letheon.save(predictor, tmp_path / "predictor")
    with pytest.raises(CorruptFileError, match="shapes"):
        letheon.load(tmp_path / "predictor")
