"""Solvers: they reach the gradient they are asked for, from anywhere."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from letheon.linear import _solve
from letheon.linear._solve import (
    block_size,
    conjugate_gradients,
    from_blocks,
    is_dense,
    minimise,
    minimise_by_lbfgs,
    minimise_by_newton,
    newton_step,
    to_blocks,
)
from tests.linear import reference as ref
from tests.linear.people import (
    KINDS,
    ProblemRecipe,
    examples,
    form_no_matrix,
    library_problem,
    recipes,
)


@examples(200)
@given(recipe=recipes(), size=st.sampled_from([0.0, 1.0, 100.0]))
def test_minimise_reaches_the_tolerance_from_anywhere(recipe: ProblemRecipe, size: float) -> None:
    problem = library_problem(recipe.case())
    scale = 1.0 + float(np.linalg.norm(problem.gradient_at(np.zeros(problem.shape))))
    tolerance = 1e-9 * scale
    solution = minimise(problem, tolerance=tolerance, max_iter=500, start=recipe.point(size))
    assert solution.residual <= tolerance
    np.testing.assert_array_equal(solution.gradient, problem.gradient_at(solution.W))
    assert solution.flops > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", [minimise_by_newton, minimise_by_lbfgs])
def test_solvers_find_the_optimum_of_plain_newton(kind: str, solver: object) -> None:
    case = ProblemRecipe(kind, 2, 30, 4, 1, -2.0, noise=1.0).case()
    problem, optimum = library_problem(case), ref.retrain(case)
    assert callable(solver)
    solution = solver(problem, np.zeros(problem.shape), 1e-7, 500)
    assert np.linalg.norm(solution.W - optimum) <= problem.distance_bound(solution.gradient) + 1e-11
    assert solution.residual <= 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_wide_problems_without_matrices(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = ProblemRecipe(kind, 4, 15, 40, 1, -1.0, noise=1.0).case()
    optimum = ref.retrain(case)
    form_no_matrix(monkeypatch, above=5)
    monkeypatch.setattr(_solve, "_NEWTON_LIMIT", 5)
    problem = replace(library_problem(case), X=sp.csr_array(case.X))
    assert not is_dense(problem)
    monkeypatch.setattr(type(problem), "hessian_at", None)
    solution = minimise(problem, tolerance=1e-9, max_iter=300)
    assert solution.residual <= 1e-9
    assert np.linalg.norm(solution.W - optimum) <= 1e-8


@pytest.mark.parametrize("kind", KINDS)
def test_newton_steps_by_products_and_by_factors_agree(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ProblemRecipe(kind, 6, 25, 4, 3, -1.0, noise=1.0)
    case, W = recipe.case(), recipe.point(1.0)
    after = library_problem(case).without(recipe.gone)
    gradient = after.gradient_at(W)
    dense, _ = newton_step(after, W, gradient)
    expected = ref.solve(ref.hessian(case.without(recipe.gone), W), gradient)
    np.testing.assert_allclose(dense, -expected, rtol=1e-8, atol=1e-10)
    exact, _ = conjugate_gradients(after, after.curvature_at(W), -gradient, 1e-12)
    np.testing.assert_allclose(exact, -expected, rtol=1e-7, atol=1e-9)
    form_no_matrix(monkeypatch, above=1)
    rough, flops = newton_step(after, W, gradient)
    left = after.hessian_product(after.curvature_at(W), rough) + gradient
    assert np.linalg.norm(left) <= 1.1e-3 * np.linalg.norm(gradient)
    assert flops > after.pass_flops


def test_conjugate_gradients_of_nothing_is_nothing() -> None:
    problem = library_problem(ProblemRecipe("logistic", 1, 8, 3, 1, 0.0).case())
    zeros = np.zeros(problem.shape)
    step, _ = conjugate_gradients(problem, problem.curvature_at(zeros), zeros, 1e-3)
    assert not step.any()


def test_conjugate_gradients_stop_when_told() -> None:
    problem = library_problem(ProblemRecipe("squared", 1, 30, 5, 1, -4.0, spread=2.0).case())
    W = np.ones(problem.shape)
    curvature, target = problem.curvature_at(W), problem.gradient_at(W)
    _, single_step = conjugate_gradients(problem, curvature, target, 1e-14, max_iter=1)
    _, more = conjugate_gradients(problem, curvature, target, 1e-14, max_iter=3)
    assert more - single_step == pytest.approx(2 * problem.pass_flops)


def test_separable_classes_with_hardly_any_regulariser() -> None:
    case = ProblemRecipe("logistic", 3, 20, 2, 1, -8.0, separable=True).case()
    problem = library_problem(case)
    solution = minimise(problem, tolerance=1e-10, max_iter=500)
    assert solution.residual <= 1e-10
    assert ref.residual(case, solution.W) <= 1.1e-10


def test_max_iter_is_respected() -> None:
    problem = library_problem(ProblemRecipe("logistic", 3, 20, 2, 1, -6.0, separable=True).case())
    calls: list[float] = [
        minimise_by_newton(problem, np.zeros(problem.shape), 1e-12, k).residual for k in range(4)
    ]
    assert calls == sorted(calls, reverse=True)
    assert calls[0] > calls[1] > 1e-12


def test_a_tolerance_below_rounding_ends() -> None:
    problem = library_problem(ProblemRecipe("softmax", 3, 30, 3, 1, -2.0).case())
    solution = minimise(problem, tolerance=0.0, max_iter=300)
    assert solution.residual <= 1e-11


@pytest.mark.parametrize(("kind", "sizes"), [("ovr", [4, 4, 4]), ("softmax", [12])])
def test_split_and_join_are_inverse(kind: str, sizes: list[int]) -> None:
    problem = library_problem(ProblemRecipe(kind, 0, 9, 4, 1, 0.0).case())
    W = np.arange(12.0).reshape(problem.shape)
    parts = to_blocks(W, len(sizes))
    assert [len(part) for part in parts] == sizes
    assert block_size(problem) == sizes[0]
    np.testing.assert_array_equal(np.concatenate(parts), ref.flat(W))
    np.testing.assert_array_equal(from_blocks(parts, W.shape), W)
