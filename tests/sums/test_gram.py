"""Products of columns on the grid, against Python integers; planted bugs are found."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from letheon.sums import Gram
from letheon.sums._gram import (
    LARGEST,
    PendingGram,
    Slices,
    empty_slices,
    multiply_slices,
    slice_columns,
    slice_sparse,
)

VALUES = st.one_of(
    st.floats(-1200, 1200),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, 2.0**-21, 3 * 2.0**-21, 1023.9999990463257, -1024.0, 0.03125]),
)
MATRICES = st.tuples(st.integers(1, 9), st.integers(1, 4)).flatmap(
    lambda shape: hnp.arrays(np.float64, shape, elements=VALUES)
)


def round_integers(X: Any) -> list[list[int]]:
    """Return the integers of a matrix by their definition."""

    def rounded(x: float) -> int:
        if abs(x) >= 2.0**11:
            return LARGEST if x > 0 else -LARGEST
        return max(-LARGEST, min(LARGEST, round(x * 2**20)))  # ties to even

    return [[rounded(float(x)) for x in row] for row in X]


def slice_matrix(X: Any, roots: Any = None) -> Slices:
    rows = empty_slices(*X.shape)
    slice_columns(X, np.ones(X.shape[1]), np.zeros(X.shape[1]), roots, rows, 0)
    return rows


def multiply_integers(values: list[list[int]]) -> list[list[int]]:
    columns = list(zip(*values, strict=True))
    return [[sum(a * b for a, b in zip(x, y, strict=True)) for y in columns] for x in columns]


def exact_products(gram: Gram) -> list[list[int]]:
    n = gram.products.shape[2]
    return [[gram.exact_product(i, j) for j in range(n)] for i in range(n)]


@given(MATRICES)
def test_slices_are_the_rounded_integers(X: Any) -> None:
    rows = slice_matrix(X)
    values = rows.upper * 2.0**16 + rows.lower
    expected = round_integers(X)
    assert values.astype(int).tolist() == expected
    assert np.abs(rows.lower).max() <= 2**15
    assert rows.n_clipped.tolist() == (np.abs(X) > LARGEST / 2.0**20).sum(axis=0).tolist()


@given(MATRICES, st.data())
def test_products_are_those_of_python_integers(X: Any, data: Any) -> None:
    gram = Gram(X.shape[1])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(X)), max_size=3)))
    for start, stop in zip([0, *cuts], [*cuts, len(X)], strict=True):
        if start < stop:
            gram.add(slice_matrix(X[start:stop]))
    removed = data.draw(st.integers(0, len(X)))
    if removed:
        gram.subtract(slice_matrix(X[:removed]))
    expected = multiply_integers(round_integers(X[removed:])) if removed < len(X) else 0
    if expected == 0:
        assert not gram.products.any()
    else:
        assert exact_products(gram) == expected
    assert gram.n_clipped.tolist() == slice_matrix(X[removed:]).n_clipped.tolist()
    diagonal = Gram(X.shape[1], lead=0)
    diagonal.add(slice_matrix(X[removed:]))
    for k in range(X.shape[1]):
        assert diagonal.exact_product(0, k) == gram.exact_product(0, k)
        assert diagonal.exact_product(1, k) == gram.exact_product(k, k)


def test_blocks_are_exact_in_the_worst_case() -> None:
    X = np.full((20_000, 2), 1023.99999)
    X[:, 1] = -1023.96874  # low parts near their largest size
    gram = Gram(2)
    gram.add(slice_matrix(X))
    (a, b), n = round_integers(X[:1])[0], 20_000
    assert exact_products(gram) == [[n * a * a, n * a * b], [n * a * b, n * b * b]]


@given(MATRICES, st.booleans())
def test_sparse_rows_have_the_same_products(X: Any, is_weighted: bool) -> None:
    X[np.abs(X) < 1.0] = 0.0
    roots = np.linspace(0.0, 1.5, len(X)) if is_weighted else None
    factors, extra = np.full(X.shape[1], 0.5), np.ones((len(X), 1))
    dense, tail = empty_slices(len(X), X.shape[1] + 1), empty_slices(len(X), 1)
    slice_columns(X, factors, np.zeros(X.shape[1]), roots, dense, 0)
    for rows, start in ((dense, X.shape[1]), (tail, 0)):
        slice_columns(extra, np.ones(1), np.zeros(1), roots, rows, start)
    sparse = slice_sparse(sp.csr_array(X), factors, roots, tail)
    results = []
    for rows in (dense, sparse):
        gram = Gram(X.shape[1] + 1)
        gram.add(rows)
        results.append(gram)
    assert np.array_equal(results[0].products, results[1].products)
    assert np.array_equal(results[0].n_clipped, results[1].n_clipped)


@given(MATRICES, st.data())
def test_put_and_select(X: Any, data: Any) -> None:
    n = X.shape[1]
    gram = Gram(n)
    gram.add(slice_matrix(X))
    other = X.copy()
    column = data.draw(st.integers(0, n - 1))
    other[:, column] = np.arange(len(X))
    rows = slice_matrix(other)
    chosen = Slices(rows.upper[:, [column]], rows.lower[:, [column]], rows.n_clipped)
    gram.put(np.array([column]), multiply_slices(rows, chosen), rows.n_clipped)
    expected = Gram(n)
    expected.add(rows)
    assert np.array_equal(gram.products, expected.products)
    order = np.array([column, -1])
    selected = gram.select(order)
    assert selected.exact_product(0, 0) == gram.exact_product(column, column)
    assert not selected.products[:, 1].any()


def sparse_slices(X: Any) -> Slices:
    none = Slices(np.empty((len(X), 0)), np.empty((len(X), 0)), np.zeros(0, np.int64))
    return slice_sparse(sp.csr_array(X), np.ones(X.shape[1]), None, none)


@given(MATRICES, st.data())
def test_kept_floats_are_those_of_the_integers(X: Any, data: Any) -> None:
    X[np.abs(X) < 1.0] = 0.0
    n = X.shape[1]
    gram = Gram(n)
    gram.add(sparse_slices(X))
    assert not gram.read_floats().any() or gram.products.any()
    gram.subtract(sparse_slices(X[: data.draw(st.integers(1, len(X)))]))
    assert np.array_equal(gram.read_floats(), gram.to_float())
    columns = np.array([data.draw(st.integers(0, n - 1))])
    products = np.ones((3, n, 1), np.int64)
    gram.put(columns, products, np.zeros(n, np.int64))
    assert np.array_equal(gram.read_floats(), gram.to_float())
    gram.add(slice_matrix(X))
    assert np.array_equal(gram.read_floats(), gram.to_float())


@given(MATRICES, st.booleans(), st.data())
def test_pending_changes_are_made_once_and_later(X: Any, is_sparse: bool, data: Any) -> None:
    n = X.shape[1]
    make = sparse_slices if is_sparse else slice_matrix
    original, expected = Gram(n), Gram(n)
    for gram in (original, expected):
        gram.add(make(X))
    before = original.products.copy()
    pending = PendingGram(original)
    order = np.array(data.draw(st.permutations([*range(n), -1])))
    for gram in (pending, expected):
        gram.subtract(make(X[:1]))
    assert np.array_equal(pending.select(order).products, expected.select(order).products)
    assert np.array_equal(pending.select(order).n_clipped, expected.select(order).n_clipped)
    for gram in (pending, expected):
        gram.put(np.array([0]), np.ones((3, n, 1), np.int64), np.zeros(n, np.int64))
    assert np.array_equal(pending.select(order).products, expected.select(order).products)
    assert np.array_equal(pending.to_float(), expected.to_float())
    assert np.array_equal(original.products, before)
    assert pending.settle() is original
    assert np.array_equal(original.products, expected.products)
    assert np.array_equal(original.n_clipped, expected.n_clipped)


@pytest.mark.parametrize(
    "columns",
    [
        [*range(10), *range(11, 40), -1, *range(40, 200)],
        [-1, *range(199, -1, -1), 5],
        [],
        [-1, -1],
    ],
)
def test_select_copies_runs_and_single_columns(columns: list[int]) -> None:
    gram = Gram(200)
    gram.products[:] = np.random.default_rng(0).integers(-9, 9, gram.products.shape)
    order = np.array(columns, np.int64)
    selected = gram.select(order).products
    is_kept = order >= 0
    expected = gram.products[:, order][:, :, order] * (is_kept[:, None] & is_kept)
    assert np.array_equal(selected, expected)


def test_a_damaged_state_is_refused() -> None:
    state = Gram(2)._to_state()
    for name, value in (
        ("products", np.zeros((3, 2, 3), np.int64)),
        ("products", np.zeros((3, 2, 2))),
        ("n_clipped", np.zeros(3, np.int64)),
    ):
        with pytest.raises(ValueError, match="expected"):
            Gram._from_state({**state, name: value})


def test_float_accumulation_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # Planted bug: plain float64 products instead of two slices. They are not exact.
    def multiply_floats(left: Slices, right: Slices | None = None) -> Any:
        right = left if right is None else right
        values = (left.upper * 2.0**16 + left.lower).T @ (right.upper * 2.0**16 + right.lower)
        return np.stack([values * 0, values * 0, values]).astype(np.int64)

    rng = np.random.default_rng(0)
    X = rng.uniform(-1000, 1000, size=(5_000, 2))
    monkeypatch.setattr("letheon.sums._gram.multiply_slices", multiply_floats)
    gram = Gram(2)
    with np.errstate(invalid="ignore"):
        gram.add(slice_matrix(X))
    assert exact_products(gram) != multiply_integers(round_integers(X))
