"""Shaped integer noise: exact in its integers, and as close to its covariance as stated."""

import math
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon.linear._calibrate import ReleaseGrid
from letheon.linear._curvature import Curvature
from letheon.linear._fisher_law import (
    COVARIANCE_ERROR,
    FULL_LIMIT,
    NoiseRoot,
    Spectrum,
    diagonal_root,
    draw_noise,
    fisher_noise_gap,
)
from letheon.linear._fisher_walk import DiagonalNoise, Expansion, FisherMatrix
from letheon.linear._problem import FitProblem, Logistic, Loss, Softmax
from letheon.noise import NoiseSource
from tests.linear.reference import LinearCase, hessian
from tests.sharded.people import examples

Floats = NDArray[np.float64]
GRID = ReleaseGrid.of_sigma(0.01)


def power(matrix: Floats, exponent: float) -> Floats:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * values**exponent) @ vectors.T)


def matrix_of(seed: int, size: int, rank: int, spread: float = 0.0) -> Floats:
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(size, rank)) * np.exp(spread * rng.normal(size=rank))
    return np.asarray(factor @ factor.T)


def covariance_of(root: NoiseRoot) -> mpmath.matrix:
    """Return what the integers of a root say, with many digits."""
    scales = [mpmath.mpf(int(number)) / 2**32 for number in np.rint(np.ldexp(root.scales, 32))]
    if root.vectors is None:
        return mpmath.diag([scale**2 for scale in scales])
    vectors = mpmath.matrix(root.vectors.astype(int).tolist()) / 2**34
    return vectors * mpmath.diag([scale**2 for scale in scales]) * vectors.T


def log_factor(covariance: mpmath.matrix, matrix: mpmath.matrix, scale: int) -> float:
    """Largest |log| of the eigenvalues of a covariance relative to scale^2 matrix^(-1/2)."""
    values, vectors = mpmath.eigsy(matrix)
    root = vectors * mpmath.diag([value ** mpmath.mpf("0.25") for value in values]) * vectors.T
    relative = root * covariance * root / scale**2
    eigenvalues = mpmath.eigsy((relative + relative.T) / 2, eigvals_only=True)
    return max(abs(float(mpmath.log(value))) for value in eigenvalues)


@examples(30)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 12), is_full=st.booleans())
def test_noise_is_an_exact_product_that_is_rounded(seed: int, size: int, is_full: bool) -> None:
    A = matrix_of(seed, size, size, 1.0) + np.eye(size)
    if is_full:
        root = Spectrum.from_matrix(A).noise_root(GRID, 1e-3, 10, 0.0)
    else:
        root = diagonal_root(GRID, np.diag(A).copy(), 1e-3, 10, 0.0)
    noise = draw_noise([root], NoiseSource(seed))
    normals = NoiseSource(seed).long_normals(size)
    pairs = zip(normals.high.tolist(), normals.low.tolist(), strict=True)
    z = [Fraction(high) + Fraction(low) for high, low in pairs]
    scales = [Fraction(round(scale * 2**32), 2**32) for scale in root.scales.tolist()]
    scaled = [scale * number for scale, number in zip(scales, z, strict=True)]
    vectors = np.eye(size) * 2.0**34 if root.vectors is None else root.vectors
    for line, number in zip(vectors.astype(int).tolist(), noise.tolist(), strict=True):
        exact = sum((Fraction(q, 2**34) * y for q, y in zip(line, scaled, strict=True)), Fraction())
        assert abs(exact - int(number)) <= Fraction(1, 2) + Fraction(size, 2**80)


def test_the_largest_block_is_still_exact() -> None:
    rng = np.random.default_rng(0)
    vectors = np.full((FULL_LIMIT, FULL_LIMIT), 2.0**34)
    root = NoiseRoot(vectors, np.full(FULL_LIMIT, 2.0**40) * rng.uniform(0.5, 1, FULL_LIMIT), 0.0)
    noise = draw_noise([root], NoiseSource(1))
    z = NoiseSource(1).long_normals(FULL_LIMIT)
    exact = Fraction()
    for s, high, low in zip(root.scales.tolist(), z.high.tolist(), z.low.tolist(), strict=True):
        exact += Fraction(round(s * 2**32), 2**32) * (Fraction(high) + Fraction(low))
    assert abs(exact - int(noise[0])) <= Fraction(1, 2) + Fraction(1, 2**70)
    assert (noise == noise[0]).all()


@examples(40)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 5),
    rank=st.integers(1, 6),
    log_ridge=st.floats(-8, 3),
    spread=st.sampled_from([0.0, 3.0]),
)
def test_the_covariance_is_as_close_as_stated(
    seed: int, size: int, rank: int, log_ridge: float, spread: float
) -> None:
    A, ridge = matrix_of(seed, size, rank, spread), 10.0**log_ridge
    root = Spectrum.from_matrix(np.tril(A)).noise_root(GRID, ridge, 7, 0.0)
    with mpmath.workdps(50):
        exact = (mpmath.matrix(A.tolist()) + ridge * mpmath.eye(size)) / 7
        exact = (exact + exact.T) / 2
        factor = log_factor(covariance_of(root), exact, GRID.scale)
    assert factor <= root.error
    diagonal = diagonal_root(GRID, np.diag(A) + ridge, ridge, 7, 0.0)
    with mpmath.workdps(50):
        exact = mpmath.diag([(mpmath.mpf(a) + ridge) / 7 for a in np.diag(A).tolist()])
        factor = log_factor(covariance_of(diagonal), exact, GRID.scale)
    # The sum of diagonal and ridge is rounded before `diagonal_root` sees it.
    assert factor <= diagonal.error + 2.0**-52


def test_usual_matrices_are_accurate_and_hopeless_ones_are_not() -> None:
    A = matrix_of(0, FULL_LIMIT, 300)
    assert Spectrum.from_matrix(A).noise_root(GRID, 0.5, 300, 0.0).error < COVARIANCE_ERROR / 100
    assert not Spectrum.from_matrix(A).noise_root(GRID, 1e-12, 300, 0.0).is_accurate
    assert not Spectrum.from_matrix(A).noise_root(GRID, 0.5, 300, 1e-3).is_accurate
    # Scales that the integers have no room for.
    assert not diagonal_root(GRID, np.array([1e-30]), 1e-30, 1, 0.0).is_accurate
    assert not diagonal_root(GRID, np.array([1e30]), 1e30, 1, 0.0).is_accurate
    assert not diagonal_root(GRID, np.array([1.0]), 1.0, 1, math.nan).is_accurate
    assert fisher_noise_gap(GRID, 3, 1e-30) == math.inf
    assert fisher_noise_gap(GRID, 3, math.nan) == math.inf
    assert fisher_noise_gap(GRID, 10_000, 1e-6) < 1e-13


@pytest.mark.parametrize("deviation", [1.0, 1.3, 20.0])
@pytest.mark.parametrize("error", [1e-6, 1e-2])
@pytest.mark.parametrize("mean", [0.0, 0.5, 0.21])
def test_a_small_error_seldom_rounds_elsewhere(deviation: float, error: float, mean: float) -> None:
    """The step of the proof of `shaped_gap`, for errors that a float can see."""
    reach = math.ceil(8 * deviation) + 1
    halves = np.arange(-reach, reach) + 0.5
    with mpmath.workdps(30):
        near = mpmath.fsum(
            mpmath.ncdf((half - mean + error) / deviation)
            - mpmath.ncdf((half - mean - error) / deviation)
            for half in halves.tolist()
        )
    assert near <= 2 * error * (1 + 0.4 / deviation)


LOSSES: dict[str, tuple[Loss, str]] = {
    "logistic": (Logistic(1), "logistic"),
    "ovr": (Logistic(3), "ovr"),
    "softmax": (Softmax(3), "softmax"),
}


def make(kind: str, d: int, seed: int = 0) -> tuple[FitProblem, LinearCase, Floats]:
    rng = np.random.default_rng(seed)
    loss, name = LOSSES[kind]
    n_classes = max(loss.n_outputs, 2)
    X, y = rng.normal(size=(50, d)) / np.sqrt(d), rng.integers(n_classes, size=50)
    W = rng.normal(size=(d, loss.n_outputs))
    problem = FitProblem(X, y, loss, 50, 0.02)
    return problem, LinearCase(X, y, name, 0.02, n_classes=n_classes), W


def fisher_of(problem: FitProblem, W: Floats, leaving: int) -> tuple[FitProblem, FisherMatrix]:
    gone = np.arange(leaving)
    after = problem.without(gone)
    if not leaving:
        return after, FisherMatrix(Expansion.evaluate_at(problem, W, None, 0), problem, None)
    expansion = Expansion(problem, Curvature.from_problem(problem, W), is_shaped=True)
    return after, FisherMatrix(expansion, after, gone)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("d", [3, 30])
@pytest.mark.parametrize("leaving", [0, 1, 30])
def test_the_noise_of_a_model_has_the_covariance_of_the_remaining_rows(
    kind: str, d: int, leaving: int
) -> None:
    problem, case, W = make(kind, d)
    after, fisher = fisher_of(problem, W, leaving)
    assert fisher.noise is not None
    F = hessian(case.without(np.arange(leaving)), W) / after.n_remaining
    begin = 0
    for root in fisher.noise.noise_roots(W, GRID):
        assert root.is_accurate
        assert root.vectors is not None
        matrix = root.vectors * 2.0**-34 * root.scales / GRID.scale
        block = slice(begin, begin + len(matrix))
        begin += len(matrix)
        np.testing.assert_allclose(matrix @ matrix.T, power(F[block, block], -0.5), atol=1e-7)
    assert begin == W.size


@pytest.mark.parametrize("kind", LOSSES)
def test_above_a_size_the_diagonal_shapes_the_noise(kind: str) -> None:
    problem, case, W = make(kind, 20)
    after = problem.without(np.array([4, 7]))
    (root,) = DiagonalNoise(after, None).noise_roots(W, GRID)
    wanted = np.diag(hessian(case.without([4, 7]), W)) / after.n_remaining
    assert root.is_accurate
    np.testing.assert_allclose(root.scales / GRID.scale, wanted**-0.25, rtol=1e-12)
    wide, _, W = make(kind, FULL_LIMIT + 1)
    expansion = Expansion.evaluate_at(wide, W, None, 0)
    assert isinstance(FisherMatrix(expansion, wide, None).noise, DiagonalNoise)
    assert expansion.spectra is None


def test_spectra_do_not_outlive_the_rows_they_were_made_of() -> None:
    problem, _, W = make("logistic", 4)
    _, fisher = fisher_of(problem, W, 3)
    assert fisher.expansion is not None
    assert fisher.expansion.spectra is not None
    spectrum = fisher.expansion.spectra[0]
    assert spectrum.vectors.any()
    before = fisher.expansion.error
    fisher.apply()
    assert not spectrum.vectors.any()
    assert not spectrum.values.any()
    assert fisher.expansion.spectra is None
    assert fisher.expansion.error > before, "what was taken away left rounding errors"


@examples(30)
@given(kind=st.sampled_from(list(LOSSES)), seed=st.integers(0, 10**6), leaving=st.integers(0, 20))
def test_what_is_known_of_the_matrix_holds(kind: str, seed: int, leaving: int) -> None:
    problem, case, W = make(kind, 4, seed)
    after, fisher = fisher_of(problem, W, leaving)
    H = hessian(case.without(np.arange(leaving)), W)
    data = H - after.ridge * np.eye(len(H))
    norms = np.linalg.norm(problem.X[leaving:], axis=1)
    shaped: list[tuple[Any, Any]] = [
        (fisher.noise, np.linalg.eigvalsh(data)),
        (DiagonalNoise(after, None), np.sort(np.diag(data))),
    ]
    for noise, values in shaped:
        shape, freedom = noise.hessian_bounds(), float(np.sum(values / (values + after.ridge)))
        assert shape.top >= values[-1]
        assert shape.freedom >= freedom - 1e-12
        assert shape.freedom_on_grid >= min(shape.freedom, shape.size)
        assert shape.radius >= norms.max() * (1 - 1e-12)
        assert shape.size == W.size
