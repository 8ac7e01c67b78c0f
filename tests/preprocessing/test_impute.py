"""SimpleImputer: results, frames, changes, planted bugs."""

import copy
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn import impute as sk
from sklearn.base import clone

from letheon.preprocessing import SimpleImputer
from letheon.preprocessing import _impute as impute
from tests.preprocessing.plans import check_plan, prepare_removal
from tests.preprocessing.tables import frame, numbers, requests, run_requests, take

STRATEGIES = ["mean", "median", "most_frequent", "constant"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"add_indicator": True},
    {"keep_empty_features": True, "add_indicator": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(requests())
def test_after_requests_it_is_a_fresh_fit(strategy: str, options: Any, drawn: Any) -> None:
    seed, steps = drawn
    ids = np.random.default_rng(seed).integers(0, 24, 40).tolist()
    run_requests(SimpleImputer(strategy=strategy, **options), numbers(seed, 40), None, ids, steps)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES[2:])
@given(requests())
def test_frames_with_texts(strategy: str, options: Any, drawn: Any) -> None:
    seed, steps = drawn
    X = frame(seed, 40)
    ids = np.random.default_rng(seed).integers(0, 24, 40).tolist()
    model = run_requests(SimpleImputer(strategy=strategy, **options), X, None, ids, steps)
    filled = model.transform(X)
    assert isinstance(filled, pd.DataFrame)
    assert list(filled.columns) == model.get_feature_names_out().tolist()
    assert not filled.isna().any(axis=None)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(st.integers(0, 2**31))
def test_it_is_near_scikit_learn(strategy: str, options: Any, seed: int) -> None:
    X = numbers(seed, 60)[:, [0, 1, 2, 3, 5, 6, 7]]
    model = SimpleImputer(strategy=strategy, random_state=seed, **options).fit(X)
    reference = sk.SimpleImputer(strategy=strategy, **options).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns without values
        expected = reference.transform(X)
    filled = model.transform(X)
    assert filled.shape == expected.shape
    assert model.get_feature_names_out().tolist() == reference.get_feature_names_out().tolist()
    if strategy in ("most_frequent", "constant"):
        assert_array_equal(filled, expected)
        return
    low, high = np.nanpercentile(X[:, :2], [25, 75], axis=0)
    step = np.nanstd(X[:, :2], axis=0) if strategy == "mean" else high - low
    assert (abs(filled - expected)[:, :2] <= step / 4).all()
    assert_array_equal(filled[:, 2:], expected[:, 2:])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(st.integers(0, 2**31))
def test_plans_report_what_changes(strategy: str, options: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_rows = int(rng.integers(4, 60))
    gone = rng.choice(n_rows, int(rng.integers(1, 4)), replace=False).tolist()
    check_plan(SimpleImputer(strategy=strategy, **options), numbers(seed, n_rows), None, gone)
    if strategy in STRATEGIES[2:]:
        check_plan(SimpleImputer(strategy=strategy, **options), frame(seed, n_rows), None, gone)


def test_changed_rows_are_those_with_missing_values() -> None:
    X = np.array([["a"]] * 10 + [["b"]] * 10 + [[None]] * 2, object)
    plan = prepare_removal(SimpleImputer(strategy="most_frequent").fit(X), [0])
    assert plan.columns == ()
    assert plan.rows is not None
    assert plan.rows.tolist() == [19, 20]


@pytest.mark.parametrize("strategy", ["mean", "median"])
def test_frequency_of_changes(strategy: str) -> None:
    """The dither is drawn again for each removal: about 8 / n per column, 16 at most."""
    n_rows, n_columns, n_seeds = 400, 30, 30
    X = np.random.default_rng(3).normal(size=(n_rows, n_columns))
    X[0] = np.nan
    changes = 0
    for seed in range(n_seeds):
        model = SimpleImputer(strategy=strategy, random_state=seed).fit(X)
        for slot in range(3):
            new = prepare_removal(model, [slot * 7 + seed + 1]).published.statistics
            old = model.published_.statistics
            changes += sum(a != b for a, b in zip(new, old, strict=True))
    rate = changes / (n_seeds * 3 * n_columns) * n_rows
    assert 2 < rate < 16


def test_ties_are_broken_by_order() -> None:
    X = np.array([["b"], ["a"], ["b"], ["a"], ["c"]], object)
    model = SimpleImputer(strategy="most_frequent").fit(X)
    assert model.statistics_.tolist() == ["a"]
    model.forget([1])
    assert model.statistics_.tolist() == ["b"]


def test_a_mode_with_hysteresis_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the most frequent value stays until it has no rows."""
    X = np.array([["a"], ["a"], ["b"], ["b"]], object)
    model = SimpleImputer(strategy="most_frequent", random_state=1).fit(X)
    monkeypatch.setattr(impute, "_find_mode", lambda *_: ("a", 0))
    model.forget([0])
    monkeypatch.undo()
    fresh = SimpleImputer(strategy="most_frequent", random_state=1).fit(X[1:], ids=[1, 2, 3])
    assert model.digest() != fresh.digest()


def test_constants_and_errors() -> None:
    X = pd.DataFrame({"n": [1.0, np.nan], "t": ["x", None]})
    filled = SimpleImputer(strategy="constant").fit_transform(X)
    assert filled.to_numpy().tolist() == [[1.0, "x"], [0.0, "missing_value"]]
    with pytest.raises(ValueError, match="column of numbers; expected a number"):
        SimpleImputer(strategy="constant", fill_value="?").fit(X)
    with pytest.raises(ValueError, match="Cannot use mean strategy with non-numeric data"):
        SimpleImputer().fit(X)
    with pytest.raises(ValueError, match="missing_values=-1; expected nan"):
        SimpleImputer(missing_values=-1).fit(X)
    with pytest.raises(ValueError, match="strategy='mode'; expected"):
        SimpleImputer(strategy="mode").fit(X)


def test_polars_frames() -> None:
    polars = pytest.importorskip("polars")
    X = polars.DataFrame({"t": ["x", None, "x", "y"], "n": [1, 2, None, 2]})
    model = SimpleImputer(strategy="most_frequent", add_indicator=True).fit(X)
    assert model.transform(X).rows() == [
        ("x", 1, 0.0, 0.0),
        ("x", 2, 1.0, 0.0),
        ("x", 2, 0.0, 1.0),
        ("y", 2, 0.0, 0.0),
    ]


def test_copies_are_independent() -> None:
    X = numbers(0, 40)
    for strategy in STRATEGIES:
        model = SimpleImputer(strategy=strategy, random_state=0).fit(X)
        before = model.digest()
        other = clone(model).fit(X)
        other.sums_ = copy.copy(model.sums_)
        other.forget([1, 2, 3])
        assert model.digest() == before
        fresh = clone(model).fit(take(X, [0, *range(4, 40)]), ids=[0, *range(4, 40)])
        assert other.digest() == fresh.digest()
