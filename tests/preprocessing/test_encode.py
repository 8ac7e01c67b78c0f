"""OneHotEncoder and OrdinalEncoder: scikit-learn's results, layouts, planted bugs."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn import preprocessing as sk

from letheon.preprocessing import OneHotEncoder, OrdinalEncoder
from letheon.preprocessing import _categories as categories
from tests.preprocessing.plans import prepare_removal
from tests.preprocessing.tables import frame, numbers, requests, run_requests, take

OPTIONS: list[dict[str, Any]] = [
    {},
    {"drop": "first"},
    {"drop": "if_binary"},
    {"min_frequency": 3},
    {"min_frequency": 0.2},
    {"max_categories": 3},
    {"min_frequency": 2, "max_categories": 2, "drop": "first"},
    {"handle_unknown": "infrequent_if_exist", "max_categories": 1},
]


def dense(X: Any) -> Any:
    return X.toarray() if hasattr(X, "toarray") else X


def texts(seed: int, n_rows: int = 40) -> pd.DataFrame:
    X = frame(seed, n_rows)
    X["empty"] = [["p", "q"][k % 2] for k in range(n_rows)]
    X.loc[X["letter"].isna(), "letter"] = np.nan
    return X


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_one_hot_agrees_with_scikit_learn(options: dict[str, Any], seed: int) -> None:
    X = texts(seed)
    model, reference = OneHotEncoder(**options).fit(X), sk.OneHotEncoder(**options).fit(X)
    for mine, theirs in zip(model.categories_, reference.categories_, strict=True):
        assert_array_equal(mine.astype(str), theirs.astype(str))
    encoded = model.transform(X)
    assert_array_equal(dense(encoded), dense(reference.transform(X)))
    assert model.get_feature_names_out().tolist() == reference.get_feature_names_out().tolist()
    if model.drop is not None and model.drop_idx_ is not None:
        assert model.drop_idx_.tolist() == list(reference.drop_idx_)
    few = take(X, [3, 5])
    assert_array_equal(dense(model.transform(few)), dense(encoded)[[3, 5]])


@pytest.mark.parametrize("options", [{}, {"encoded_missing_value": -1}], ids=str)
def test_ordinal_agrees_with_scikit_learn(options: dict[str, Any]) -> None:
    X = texts(2)
    model, reference = OrdinalEncoder(**options).fit(X), sk.OrdinalEncoder(**options).fit(X)
    assert_array_equal(model.transform(X), reference.transform(X))
    assert_array_equal(model.transform(take(X, [7])), reference.transform(take(X, [7])))
    assert model.get_feature_names_out().tolist() == list(X.columns)
    back = model.inverse_transform(model.transform(X))
    assert_array_equal(
        back.astype(str), reference.inverse_transform(reference.transform(X)).astype(str)
    )


def test_inverse_transform_of_one_hot() -> None:
    X = texts(3)
    for drop in (None, "first"):
        model = OneHotEncoder(drop=drop).fit(X)
        back = pd.DataFrame(model.inverse_transform(model.transform(X)))
        assert back.isna().to_numpy().tolist() == X.isna().to_numpy().tolist()
        assert (back.isna() | (back.to_numpy() == X.to_numpy())).to_numpy().all()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@given(requests())
def test_one_hot_after_requests_is_a_fresh_fit(options: dict[str, Any], drawn: Any) -> None:
    seed, steps = drawn
    ids = np.random.default_rng(seed).integers(0, 24, 40).tolist()
    run_requests(OneHotEncoder(**options), frame(seed, 40), None, ids, steps)


@given(requests())
def test_ordinal_after_requests_is_a_fresh_fit(drawn: Any) -> None:
    seed, steps = drawn
    ids = np.random.default_rng(seed).integers(0, 24, 40).tolist()
    run_requests(OrdinalEncoder(), numbers(seed, 40), None, ids, steps)


@given(st.integers(0, 2**31), st.sampled_from(OPTIONS))
def test_layout_and_columns_describe_the_new_output(seed: int, options: dict[str, Any]) -> None:
    """Columns of the new output that are not reported as changed must be the old ones."""
    X = frame(seed, 30)
    model = OneHotEncoder(**options, sparse_output=False).fit(X)
    rng = np.random.default_rng(seed)
    gone = sorted(rng.choice(30, rng.integers(1, 5), replace=False).tolist())
    stay = [row for row in range(30) if row not in gone]
    before = model.transform(X)[stay]
    plan = prepare_removal(model, gone)
    after = (
        OneHotEncoder(**options, sparse_output=False).fit(take(X, stay)).transform(take(X, stay))
    )
    layout = np.arange(after.shape[1]) if plan.layout is None else plan.layout
    assert len(layout) == after.shape[1]
    same = [j for j in range(len(layout)) if layout[j] >= 0 and j not in plan.columns]
    assert_array_equal(after[:, same], before[:, layout[same]])


def test_most_removals_change_nothing() -> None:
    X = pd.DataFrame({"a": list("xy") * 20, "b": list("pqrs") * 10})
    model = OneHotEncoder().fit(X)
    plan = prepare_removal(model, [3])
    assert plan.published is model.published_
    assert (plan.columns, plan.layout, plan.rows, plan.work) == ((), None, None, 0.0)


def test_a_category_without_rows_leaves_the_list() -> None:
    model = OneHotEncoder().fit(np.array([["a"], ["b"], ["c"]], object), ids=[1, 2, 3])
    plan = prepare_removal(model, [1])
    assert plan.layout is not None
    assert plan.layout.tolist() == [0, 2]
    model.forget([2])
    assert model.categories_[0].tolist() == ["a", "c"]
    with pytest.raises(ValueError, match="unknown categories"):
        model.transform(np.array([["b"]], object))


def test_a_category_that_never_vanishes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the entry of a category without rows stays."""

    def apply(self: Any, n_rows: int, changes: Any, recounted: Any) -> None:
        self.n_rows = n_rows
        for column, key, _, new in changes:
            self.counts[column][key] = new

    monkeypatch.setattr(categories.CategoryCounts, "apply", apply)
    X = np.array([["a"], ["b"], ["c"]], object)
    model = OneHotEncoder().fit(X, ids=[1, 2, 3])
    model.forget([2])
    assert model.digest() != OneHotEncoder().fit(X[[0, 2]], ids=[1, 3]).digest()


def test_given_categories() -> None:
    X = np.array([["a", 1], ["b", 2]], object)
    lists = [["b", "a"], [1, 2, 3]]
    model = OneHotEncoder(categories=lists, sparse_output=False).fit(X)
    reference = sk.OneHotEncoder(categories=lists, sparse_output=False).fit(X)
    assert_array_equal(model.transform(X), reference.transform(X))
    with pytest.raises(ValueError, match="unknown categories"):
        OneHotEncoder(categories=[["a"], [1, 2]]).fit(X)
    with pytest.raises(ValueError, match="Unsorted categories"):
        OneHotEncoder(categories=[["a", "b"], [2, 1]]).fit(X)
    with pytest.raises(ValueError, match="Shape mismatch"):
        OneHotEncoder(categories=[["a", "b"]]).fit(X)


def test_unknown_categories() -> None:
    X = np.array([["a"], ["a"], ["b"]], object)
    new = np.array([["z"]], object)
    ignored = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(X)
    assert ignored.transform(new).tolist() == [[0.0, 0.0]]
    rare = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=2, sparse_output=False)
    assert rare.fit(X).transform(new).tolist() == [[0.0, 1.0]]
    known = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1).fit(X)
    assert known.transform(new).tolist() == [[-1.0]]
    with pytest.raises(ValueError, match="already the number"):
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=1).fit(X)


@pytest.mark.parametrize(
    "options",
    [
        {"drop": "last"},
        {"min_frequency": 1.5},
        {"max_categories": 0},
        {"handle_unknown": "no"},
        {"categories": 3},
    ],
    ids=str,
)
def test_wrong_parameters(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        OneHotEncoder(**options).fit([["a"]])


def test_tables_that_are_refused() -> None:
    with pytest.raises(TypeError, match="uniformly strings or numbers"):
        OneHotEncoder().fit(np.array([["a"], [1]], object))
    with pytest.raises(ValueError, match="contains infinity"):
        OneHotEncoder().fit([[np.inf]])
    with pytest.raises(TypeError, match="dense data is required"):
        OneHotEncoder().fit(OneHotEncoder().fit_transform([["a"]]))


def test_polars_and_output_as_pandas() -> None:
    polars = pytest.importorskip("polars")
    X = polars.DataFrame({"a": ["x", None, "y"], "b": [1, 2, 1]})
    model = OneHotEncoder(sparse_output=False).set_output(transform="pandas").fit(X)
    out = model.transform(X)
    assert list(out.columns) == ["a_x", "a_y", "a_nan", "b_1", "b_2"]
    assert out.to_numpy().sum() == 6
