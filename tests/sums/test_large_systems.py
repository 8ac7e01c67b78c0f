"""Conjugate gradients for large systems, next to LAPACK's solution and its fallback."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import lapack

from letheon.sums import Ridge, _solve


def make_system(condition: float, n_sides: int, size: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Return a positive matrix with this condition number, and right sides."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    matrix = (basis * np.geomspace(1.0, condition, size)) @ basis.T
    return (matrix + matrix.T) / 2, rng.normal(size=(size, n_sides))


@pytest.mark.parametrize("n_sides", [1, 3])
def test_a_good_system_is_solved_to_full_precision(n_sides: int) -> None:
    matrix, right = make_system(10.0, n_sides)
    units = np.geomspace(1e-6, 1e6, len(matrix))
    matrix *= np.multiply.outer(units, units)
    solution = _solve._descend_conjugate(lambda v: matrix @ v, np.diag(matrix), right)
    _, expected, _ = lapack.dposv(matrix, right, lower=1)
    assert solution is not None
    error, expected = (solution - expected) * units[:, None], expected * units[:, None]
    assert np.abs(error).max() < 1e-11 * np.abs(expected).max()


@pytest.mark.parametrize("problem", ["slow", "no right side", "negative", "empty column"])
def test_any_other_system_is_left_to_the_factorisation(problem: str) -> None:
    matrix, right = make_system(1e9 if problem == "slow" else 10.0, 2)
    if problem == "no right side":
        right[:, 1] = 0.0
    elif problem == "negative":
        matrix[0, 1] = matrix[1, 0] = 100.0
    elif problem == "empty column":
        matrix[3] = matrix[:, 3] = 0.0
    assert _solve._descend_conjugate(lambda v: matrix @ v, np.diag(matrix), right) is None


def test_a_large_system_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_solve, "_LARGE", 10)
    for condition in (10.0, 1e9):
        matrix, right = make_system(condition, 1)
        residual = matrix @ _solve.solve_positive(matrix, right) - right
        assert np.abs(residual).max() < 1e-9 * condition


@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.parametrize("is_weighted", [True, False])
@pytest.mark.parametrize("n_targets", [1, 3])
def test_centred_systems_are_solved_without_a_copy(
    is_sparse: bool, is_weighted: bool, n_targets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 20)) * (rng.random((200, 20)) < 0.3) + 0.1 * (not is_sparse)
    y = X[:, :n_targets] + rng.normal(size=(200, n_targets)) + 7.0
    weights = rng.uniform(0.5, 3.0, 200) if is_weighted else None
    table = sp.csr_array(X) if is_sparse else X
    model = Ridge(alpha=0.5, random_state=0).fit(table, y, sample_weight=weights)
    expected = model.coef_, model.intercept_
    monkeypatch.setattr(_solve, "_LARGE", 10)
    monkeypatch.setattr("letheon.sums._ridge.read_moments", None)  # the usual way
    model._after_change()
    assert np.allclose(model.coef_, expected[0], rtol=1e-9, atol=1e-12)
    assert np.allclose(model.intercept_, expected[1], rtol=1e-9)
