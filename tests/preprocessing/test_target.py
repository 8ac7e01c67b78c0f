"""TargetEncoder: results, folds, changed rows, planted bugs."""

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import preprocessing as sk

from letheon.data import as_ids
from letheon.preprocessing import TargetEncoder
from letheon.preprocessing import _target as target_module
from tests.preprocessing.plans import check_plan, prepare_removal
from tests.preprocessing.tables import frame, numbers, requests, run_requests, target

KINDS = ["numbers", "2", "3"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smooth", ["auto", 0.0, 3.5])
@given(requests())
def test_after_requests_it_is_a_fresh_fit(kind: str, smooth: Any, drawn: Any) -> None:
    seed, steps = drawn
    ids = np.random.default_rng(seed).integers(0, 24, 40).tolist()
    X = frame(seed, 40) if seed % 2 else numbers(seed, 40)
    run_requests(TargetEncoder(smooth=smooth, cv=3), X, target(seed, 40, kind), ids, steps)


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(0, 2**31))
def test_plans_report_what_changes(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gone = rng.choice(40, int(rng.integers(1, 4)), replace=False).tolist()
    check_plan(TargetEncoder(cv=2), frame(seed, 40), target(seed, 40, kind), gone)


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(0, 2**31))
def test_it_is_near_scikit_learn(kind: str, seed: int) -> None:
    X = frame(seed, 80)[["letter", "grade", "rare"]].fillna("?")
    y = target(seed, 80, kind)
    model = TargetEncoder(smooth=2.0, random_state=seed).fit(X, y)
    reference = sk.TargetEncoder(smooth=2.0).fit(X, y)
    scale = 2 * np.std(y) if kind == "numbers" else 1.0
    limit = 2.1 * scale / 64  # of the category and of the mean
    assert abs(model.transform(X) - reference.transform(X)).max() <= limit
    assert np.abs(model.target_mean_ - reference.target_mean_).max() <= limit
    assert model.target_type_ == reference.target_type_
    assert model.get_feature_names_out().tolist() == reference.get_feature_names_out().tolist()
    for mine, theirs in zip(model.encodings_, reference.encodings_, strict=True):
        assert_allclose(mine, theirs, atol=limit)
    for own, known in zip(model.categories_, reference.categories_, strict=True):
        assert own.tolist() == known.tolist()


def test_training_rows_are_encoded_without_the_own_fold() -> None:
    """Recomputed with fractions: the rounded mean of the rows of the category in other folds."""
    n_rows = 60
    X = np.random.default_rng(0).choice(list("abc"), (n_rows, 1)).astype(object)
    y = np.random.default_rng(1).integers(0, 2, n_rows)
    ids = np.arange(n_rows) // 2
    model = TargetEncoder(smooth=4.0, cv=3, random_state=5)
    encoded = model.fit_transform(X, y, ids=ids)[:, 0]
    folds = model._find_folds(model.rows_.ids, model.seed_)
    assert (folds[::2] == folds[1::2]).all()
    for row in range(n_rows):
        others = folds != folds[row]
        own = others & (X[:, 0] == X[row, 0])
        mean = Fraction(int(y[others].sum()), int(others.sum()))
        exact = (int(y[own].sum()) + 4 * mean) / (int(own.sum()) + 4)
        assert abs(float(exact) - encoded[row]) < 2.1 / 64
    assert len(set(encoded[X[:, 0] == "a"])) <= 3


def test_only_rows_of_the_category_change() -> None:
    X = np.array([["a"]] * 10 + [["b"]] * 400, object)
    y = np.r_[np.arange(10) % 2, np.arange(400) % 2]
    changed = [prepare_removal(TargetEncoder(random_state=s).fit(X, y), [0]).rows for s in range(9)]
    reported = [rows.max() for rows in changed if rows is not None and len(rows)]
    assert reported
    assert max(reported) < 9


def test_a_target_that_changes_its_kind() -> None:
    X = np.array([["a"], ["b"], ["a"], ["b"], ["a"]], object)
    y = np.array([0.0, 1.0, 2.0, 1.0, 0.5])
    model = TargetEncoder(random_state=0).fit(X, y)
    assert model.target_type_ == "continuous"
    model.forget([4])
    assert (model.target_type_, model.transform(X).shape) == ("multiclass", (5, 3))
    model.forget([2])
    assert (model.target_type_, model.transform(X).shape) == ("binary", (5, 1))
    rest = TargetEncoder(random_state=0).fit(X[[0, 1, 3]], y[[0, 1, 3]], ids=[0, 1, 3])
    assert model.digest() == rest.digest()
    model.learn(X[[2]], y[[2]], ids=[2])
    order = [0, 1, 3, 2]
    assert (
        model.digest() == TargetEncoder(random_state=0).fit(X[order], y[order], ids=order).digest()
    )


def test_frequency_of_changes() -> None:
    """The encoding of a category with m rows changes with probability of about 64 / m."""
    n_rows, changes, n_tests = 2000, 0, 0
    X = np.repeat(np.arange(10.0), 200)[:, None]
    y = np.random.default_rng(0).normal(size=n_rows)
    for seed in range(60):
        model = TargetEncoder(random_state=seed, target_type="continuous").fit(X, y)
        for slot in range(0, n_rows, 200):
            new = prepare_removal(model, [slot]).published
            old = model.published_
            changes += new.codes[0][slot / 200][-1] != old.codes[0][slot / 200][-1]
            n_tests += 1
    assert changes / n_tests < 64 / 200 * 2


def test_a_fold_that_depends_on_the_position_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: folds without a key."""
    X, y = frame(1, 40), target(1, 40, "2")

    def folds(self: Any, ids: Any, seed: int) -> Any:
        return np.arange(len(ids)) % self.cv

    monkeypatch.setattr(TargetEncoder, "_find_folds", folds)
    model = TargetEncoder(random_state=0).fit(X, y)
    model.forget([0])
    fresh = TargetEncoder(random_state=0).fit(X[1:].reset_index(drop=True), y[1:], ids=range(1, 40))
    assert model.digest() != fresh.digest()


def test_a_category_that_never_vanishes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: cells without rows stay."""

    def write(cells: Any, touched: Any, _: int) -> None:
        for (column, key), cell in touched.items():
            cells[column][key] = cell

    monkeypatch.setattr(target_module, "write_cells", write)
    X, y = np.array([["a"], ["b"], ["b"]], object), np.array([0, 1, 0])
    model = TargetEncoder(random_state=0).fit(X, y)
    model.forget([0])
    assert model.digest() != TargetEncoder(random_state=0).fit(X[1:], y[1:], ids=[1, 2]).digest()


def test_errors() -> None:
    X = [["a"], ["b"], ["a"]]
    with pytest.raises(ValueError, match="requires y"):
        TargetEncoder().fit(X)
    with pytest.raises(ValueError, match="y contains fractions"):
        TargetEncoder(target_type="binary").fit(X, [0.5, 1.0, 0.0])
    with pytest.raises(ValueError, match="has 3 classes"):
        TargetEncoder(target_type="binary").fit(X, [0, 1, 2])
    with pytest.raises(ValueError, match="contains NaN"):
        TargetEncoder().fit(X, [0.5, np.nan, 0.0])


def test_pandas_output_and_missing_values() -> None:
    X = pd.DataFrame({"a": ["x", None, "x", None], "b": [1.0, np.nan, 1.0, np.nan]})
    model = TargetEncoder(random_state=0, smooth=0.0).set_output(transform="pandas")
    model.fit(X, np.array([1, 0, 1, 0]))
    assert_array_equal(model.transform(X).to_numpy(), [[1, 1], [0, 0], [1, 1], [0, 0]])


def test_the_seed_draws_the_folds() -> None:
    ids, model = as_ids(np.arange(60)), TargetEncoder(cv=3)
    first, second = (model._find_folds(ids, seed) for seed in (0, 1))
    assert (first != second).any()
    assert set(first.tolist()) == set(second.tolist()) == {0, 1, 2}
