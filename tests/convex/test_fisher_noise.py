"""A^(-1/4) b: by eigenvectors and by Lanczos steps, against a dense power."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon.convex._curvature import Curvature
from letheon.convex._fisher_expansion import Expanded, Expansion, Products
from letheon.convex._fisher_noise import ACCURACY, by_eigenvectors, by_lanczos
from letheon.convex._losses import Logistic, Loss, Softmax
from letheon.convex._problem import Problem
from tests.convex.reference import Case, flat, hessian
from tests.sharded.people import examples

Floats = NDArray[np.float64]


def power(matrix: Floats, exponent: float) -> Floats:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * values**exponent) @ vectors.T)


def matrix_of(seed: int, size: int, rank: int, least: float) -> Floats:
    factor = np.random.default_rng(seed).normal(size=(size, rank))
    return np.asarray(factor @ factor.T + least * np.eye(size))


@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 90),
    rank=st.integers(1, 90),
    least=st.sampled_from([1e-3, 0.1, 10.0]),
)
def test_both_ways_give_the_power(seed: int, size: int, rank: int, least: float) -> None:
    A = matrix_of(seed, size, rank, least)
    b = np.random.default_rng(seed + 1).normal(size=size)
    wanted, scale = power(A, -0.25) @ b, least**-0.25 * np.linalg.norm(b)
    rooted = by_lanczos(lambda x: A @ x, b, least)
    assert rooted.is_accurate
    assert np.linalg.norm(rooted.vector - wanted) <= 1e-8 * scale
    assert np.linalg.norm(by_eigenvectors(np.tril(A), b, least) - wanted) <= 1e-8 * scale


@given(seed=st.integers(0, 10**6), steps=st.integers(1, 30))
def test_the_error_of_few_steps_is_bounded(seed: int, steps: int) -> None:
    A = matrix_of(seed, 60, 80, 0.5)
    b = np.random.default_rng(seed).normal(size=60)
    rooted = by_lanczos(lambda x: A @ x, b, 0.5, most_steps=steps)
    error = np.linalg.norm(rooted.vector - power(A, -0.25) @ b)
    assert error <= (rooted.error + 1e-12) * 0.5**-0.25 * np.linalg.norm(b)


def test_few_steps_are_not_called_accurate() -> None:
    A = np.diag(np.geomspace(1e-6, 1, 500))
    rooted = by_lanczos(lambda x: A @ x, np.ones(500), 1e-6, most_steps=10)
    assert rooted.error > ACCURACY
    assert not rooted.is_accurate


LOSSES: dict[str, tuple[Loss, str]] = {
    "logistic": (Logistic(1), "logistic"),
    "ovr": (Logistic(3), "ovr"),
    "softmax": (Softmax(3), "softmax"),
}


def make(kind: str, d: int, seed: int = 0) -> tuple[Problem, Case, Floats]:
    rng = np.random.default_rng(seed)
    loss, name = LOSSES[kind]
    n_classes = max(loss.n_outputs, 2)
    X, y = rng.normal(size=(50, d)) / np.sqrt(d), rng.integers(n_classes, size=50)
    W = rng.normal(size=(d, loss.n_outputs))
    problem = Problem(X, y, loss, 50, 0.02)
    return problem, Case(X, y, name, 0.02, n_classes=n_classes), W


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("d", [3, 70])
@pytest.mark.parametrize("leaving", [0, 1, 30])
def test_the_noise_of_a_model_has_the_covariance_of_the_remaining_rows(
    kind: str, d: int, leaving: int
) -> None:
    problem, case, W = make(kind, d)
    gone = np.arange(leaving)
    after = problem.without(gone)
    if leaving:
        expansion = Expansion(problem, Curvature.at(problem, W))
        fisher: Any = Expanded(expansion, after, gone)
    else:
        fisher = Expanded(Expansion.at(problem, W, None, 0), problem, None)
    H = hessian(case.without(gone), W)
    rng = np.random.default_rng(1)
    for b in rng.normal(size=(3, *W.shape)):
        rooted = fisher.quarter_root(W, b)
        assert rooted.is_accurate
        np.testing.assert_allclose(flat(rooted.vector), power(H, -0.25) @ flat(b), atol=1e-8)
    if W.size <= 9:
        units = np.eye(W.size).reshape(W.size, *W.shape[::-1]).transpose(0, 2, 1)
        root = np.array([flat(fisher.quarter_root(W, unit).vector) for unit in units])
        np.testing.assert_allclose(root.T @ root, power(H, -0.5), atol=1e-10)


@pytest.mark.parametrize("kind", LOSSES)
def test_products_draw_the_same_noise_without_a_matrix(kind: str) -> None:
    problem, case, W = make(kind, 20)
    after = problem.without(np.array([4, 7]))
    b = np.random.default_rng(2).normal(size=W.shape)
    rooted = Products(after, None).quarter_root(W, b)
    wanted = power(hessian(case.without([4, 7]), W), -0.25) @ flat(b)
    assert rooted.is_accurate
    np.testing.assert_allclose(flat(rooted.vector), wanted, atol=1e-8)


@examples(30)
@given(kind=st.sampled_from(list(LOSSES)), seed=st.integers(0, 10**6), leaving=st.integers(0, 20))
def test_what_is_known_of_the_matrix_holds(kind: str, seed: int, leaving: int) -> None:
    problem, case, W = make(kind, 4, seed)
    gone = np.arange(leaving)
    after = problem.without(gone)
    H = hessian(case.without(gone), W)
    values = np.linalg.eigvalsh(H - after.ridge * np.eye(len(H)))
    freedom = float(np.sum(values / (values + after.ridge)))
    norms = np.linalg.norm(problem.X[leaving:], axis=1)
    fishers: list[Any] = [
        Expanded(Expansion.at(problem, W, None, 0), after, gone if leaving else None),
        Products(after, None),
    ]
    for fisher in fishers:
        shape = fisher.shape()
        assert shape.top >= values[-1] * (1 - 1e-12)
        assert shape.freedom >= freedom - 1e-9
        assert shape.rounded_freedom >= min(shape.freedom, shape.size) - 1e-9
        assert shape.radius >= norms.max() * (1 - 1e-12)
        assert shape.size == W.size
