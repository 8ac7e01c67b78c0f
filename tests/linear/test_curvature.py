"""Hessian blocks that follow removals: equal to the dense Hessian of the remaining rows."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.linear import _curvature
from letheon.linear._curvature import (
    Curvature,
    Downdate,
    NewtonStep,
    cholesky_factor,
    top_eigenvalue,
)
from letheon.linear._problem import FitProblem, hessian_roots
from tests.linear import reference as ref
from tests.linear.people import KINDS, ProblemRecipe, examples, library_problem, longest, recipes

Floats = ref.Floats


def lower(blocks: list[Floats]) -> list[Floats]:
    """Full matrices from lower triangles."""
    return [np.tril(block) + np.tril(block, -1).T for block in blocks]


def dense_block(case: ref.LinearCase, W: Floats, k: int, n_blocks: int) -> Floats:
    """Block k of the Hessian of the data part."""
    H = ref.data_hessian(case, W)
    size = len(H) // n_blocks
    return H[k * size : (k + 1) * size, k * size : (k + 1) * size]


def downdate(curvature: Curvature, problem: FitProblem, gone: Any, ridge: float) -> Downdate:
    leaving = problem.copy_rows(np.asarray(gone)), problem.y[gone]
    return Downdate(curvature, hessian_roots(problem.loss, *leaving, curvature.point), ridge)


def refined(change: Downdate, G: Floats, times: int = 60) -> NewtonStep:
    step = change.solve(G)
    for _ in range(times):
        step = change.refine(step, G)
    return step


@examples(300)
@given(recipe=recipes(), size=st.sampled_from([0.1, 3.0]))
def test_solving_without_rows_equals_a_dense_solve(recipe: ProblemRecipe, size: float) -> None:
    case, W, gone = recipe.case(), recipe.point(size), recipe.gone
    problem, rest = library_problem(case), case.without(gone)
    curvature = Curvature.from_problem(problem, W)
    change = downdate(curvature, problem, gone, rest.ridge)
    G = recipe.point(1.0, 7)
    step = refined(change, G)
    H = ref.hessian(rest, W)
    scale = float(np.linalg.norm(H, 2)) + curvature.radius**2
    left = G - (H @ ref.flat(step.change)).reshape(G.shape, order="F")
    size = float(np.linalg.norm(step.change))
    # What is left is measured, not assumed: it differs from the truth by rounding alone.
    assert step.residual == pytest.approx(float(np.linalg.norm(left)), abs=1e-12 * scale * size)
    energy = ref.flat(step.change) @ ref.data_hessian(rest, W) @ ref.flat(step.change)
    assert sum(step.energies) == pytest.approx(energy, abs=1e-12 * scale * size**2)
    if recipe.reg == "total":
        exact = ref.solve(H, G)
        rounding = 1e-12 * scale / rest.ridge * (1 + float(np.linalg.norm(exact)))
        np.testing.assert_allclose(step.change, exact, atol=rounding)


@examples(200)
@given(recipe=recipes(), in_turn=st.booleans())
def test_applying_equals_the_hessian_of_the_remaining_rows(
    recipe: ProblemRecipe, in_turn: bool
) -> None:
    case, W, gone = recipe.case(), recipe.point(1.0), recipe.gone
    problem, rest = library_problem(case), case.without(gone)
    curvature = Curvature.from_problem(problem, W)
    for batch in [[row] for row in gone] if in_turn else [gone]:
        downdate(curvature, problem, batch, problem.ridge).apply()
    scale = 1 + sum(curvature.tops)
    for k, block in enumerate(curvature.blocks):
        expected = dense_block(rest, W, k, len(curvature.blocks))
        np.testing.assert_allclose(lower([block.hessian])[0], expected, atol=1e-12 * scale)
        shifted = expected + problem.ridge * np.eye(len(expected))
        product = lower([block.inverse])[0] @ shifted
        worst = scale / problem.ridge
        np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-11 * worst**2)


def test_nothing_is_written_before_apply() -> None:
    recipe = ProblemRecipe("softmax", 1, 20, 4, 3, -1.0)
    problem, W = library_problem(recipe.case()), recipe.point(1.0)
    curvature = Curvature.from_problem(problem, W)
    before = copy.copy(curvature)
    for gone in ([2], [2, 3], list(range(15))):
        change = downdate(curvature, problem, gone, problem.ridge)
        step = change.solve(W)
        change.refine(step, W)
    for old, new in zip(before.blocks, curvature.blocks, strict=True):
        np.testing.assert_array_equal(old.hessian, new.hessian)
        np.testing.assert_array_equal(old.inverse, new.inverse)
    assert curvature.n_downdates == 0


def test_a_copy_has_matrices_of_its_own() -> None:
    recipe = ProblemRecipe("ovr", 1, 20, 4, 3, -1.0)
    problem = library_problem(recipe.case())
    curvature = Curvature.from_problem(problem, recipe.point(1.0))
    twin = copy.copy(curvature)
    before = curvature.blocks[0].hessian.copy()
    downdate(twin, problem, [0], problem.ridge).apply()
    np.testing.assert_array_equal(curvature.blocks[0].hessian, before)
    assert (twin.n_downdates, curvature.n_downdates) == (1, 0)


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_inverse_does_not_drift_over_many_downdates(kind: str) -> None:
    n = 1_600
    case = ProblemRecipe(kind, 0, n, 5, 1, -2.0).case()
    problem, W = library_problem(case), ProblemRecipe(kind, 0, n, 5, 1, -2.0).point(1.0)
    curvature, counts = Curvature.from_problem(problem, W), []
    for row in range(1_500):
        downdate(curvature, problem, [row], problem.ridge).apply()
        counts.append(curvature.n_downdates)
    rest = case.without(range(1_500))
    expected = dense_block(rest, W, 0, 1)
    np.testing.assert_allclose(lower([curvature.blocks[0].hessian])[0], expected, atol=1e-10)
    exact = np.linalg.inv(expected + problem.ridge * np.eye(len(expected)))
    np.testing.assert_allclose(lower([curvature.blocks[0].inverse])[0], exact, atol=1e-12)
    # Factored again once on the way, and counted from there.
    assert (max(counts), counts[-1]) == (_curvature._MOST_DOWNDATES, 499)


@pytest.mark.parametrize("batch", [[0], [0, 1]])
def test_a_row_that_carries_a_direction_alone_is_factored_again(batch: list[int]) -> None:
    X = np.random.default_rng(0).normal(size=(30, 12))
    X[:, 3] = 0.0
    X[0, 3] = 1e5
    case = ref.LinearCase(X, X[:, 0].copy(), "squared", 1e-4, "total")
    problem, W = library_problem(case), np.ones((12, 1))
    curvature = Curvature.from_problem(problem, W)
    change = downdate(curvature, problem, batch, problem.ridge)
    assert isinstance(change._parts[0], _curvature._FullDowndate)
    step = change.solve(W)
    np.testing.assert_allclose(
        step.change, ref.solve(ref.hessian(case.without(batch), W), W), rtol=1e-3
    )
    old = curvature.blocks[0].hessian
    change.apply()
    assert not old.any()
    assert curvature.n_downdates == 0


@pytest.mark.parametrize(
    ("n_gone", "part"),
    [
        (1, "_RankOneDowndate"),
        (2, "_LowRankDowndate"),
        (3, "_LowRankDowndate"),
        (4, "_FullDowndate"),
    ],
)
def test_larger_requests_are_factored_again(n_gone: int, part: str) -> None:
    recipe = ProblemRecipe("logistic", 4, 40, 12, n_gone, -1.0)
    case, W = recipe.case(), recipe.point(1.0)
    problem, rest = library_problem(case), case.without(recipe.gone)
    change = downdate(Curvature.from_problem(problem, W), problem, recipe.gone, rest.ridge)
    assert type(change._parts[0]).__name__ == part
    step = refined(change, W)
    np.testing.assert_allclose(step.change, ref.solve(ref.hessian(rest, W), W), rtol=1e-4)


def test_refinement_pays_for_a_regulariser_that_shrank() -> None:
    recipe = ProblemRecipe("logistic", 4, 40, 12, 2, 0.0)
    case, W = recipe.case(), recipe.point(1.0)
    problem, rest = library_problem(case), case.without(recipe.gone)
    change = downdate(Curvature.from_problem(problem, W), problem, recipe.gone, rest.ridge)
    step = change.solve(W)
    assert step.residual > 1e-3 * float(np.linalg.norm(W))
    for _ in range(3):
        better = change.refine(step, W)
        assert better.residual < 0.1 * step.residual
        step = better


def test_stale_inverse_times_parameters() -> None:
    recipe = ProblemRecipe("ovr", 4, 30, 4, 2, -1.0)
    case, W = recipe.case(), recipe.point(1.0)
    curvature = Curvature.from_problem(library_problem(case), W)
    np.testing.assert_allclose(curvature.solve(W), ref.solve(ref.hessian(case, W), W), rtol=1e-9)


def test_declared_radius_replaces_the_longest_row() -> None:
    case, W = ProblemRecipe("logistic", 4, 30, 4, 2, -1.0).case(), np.zeros((4, 1))
    assert Curvature.from_problem(library_problem(case), W).radius == pytest.approx(longest(case.X))
    assert Curvature.from_problem(library_problem(case), W, radius=9.0).radius == 9.0


@examples(1000)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 120),
    rank=st.integers(0, 130),
    decay=st.sampled_from([0.0, 0.5, 3.0]),
)
def test_top_eigenvalue_is_an_upper_bound_and_close(
    seed: int, size: int, rank: int, decay: float
) -> None:
    rng = np.random.default_rng(seed)
    V = rng.normal(size=(size, rank)) * np.arange(1, size + 1)[:, None] ** -decay
    H = V @ V.T
    truth = float(np.linalg.eigvalsh(H)[-1]) if rank else 0.0
    bound = top_eigenvalue(H, seed)
    assert truth * (1 - 1e-12) <= bound <= max(truth, 0.0) / 0.949 + 1e-12 * abs(H).max()


def test_top_eigenvalue_of_a_large_matrix_with_close_ones() -> None:
    eigenvalues = np.linspace(0.9, 1.0, 400)
    Q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(400, 400)))
    assert 1.0 <= top_eigenvalue(Q @ np.diag(eigenvalues) @ Q.T, 3) <= 1.06


def test_hessian_that_is_not_positive_says_what_to_do() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="larger l2"):
        cholesky_factor(-np.eye(2), 0.5)


def test_wide_rows_and_single_precision_do_not_disturb_the_matrices() -> None:
    recipe = ProblemRecipe("huber", 8, 20, 30, 2, -1.0)
    case, W = recipe.case(), recipe.point(0.3)
    case = replace(case, X=case.X.astype(np.float32))
    problem, rest = library_problem(case), case.without(recipe.gone)
    change = downdate(Curvature.from_problem(problem, W), problem, recipe.gone, rest.ridge)
    step = refined(change, W)
    np.testing.assert_allclose(
        step.change, ref.solve(ref.hessian(rest, W), W), rtol=1e-4, atol=1e-7
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_triangle_keeps_a_row_that_left(kind: str) -> None:
    """Neither half of a matrix in memory may hold what the other half lost."""
    recipe = ProblemRecipe(kind, 2, 25, 5, 1, -1.0)
    problem, W = library_problem(recipe.case()), recipe.point(1.0)
    curvature = Curvature.from_problem(problem, W)
    downdate(curvature, problem, recipe.gone, problem.ridge).apply()
    for block in curvature.blocks:
        for matrix in (block.hessian, block.inverse):
            upper = np.triu(matrix, 1)
            assert not upper.any() or np.allclose(upper.T, np.tril(matrix, -1), atol=1e-12)
