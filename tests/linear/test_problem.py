"""The regularised problem: one pass over blocks of rows equals the dense formulas."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from letheon.linear import _problem
from letheon.linear._problem import (
    FitProblem,
    hessian_roots,
    n_stored,
    rows_in_double,
    sum_gradients,
)
from tests.linear import reference as ref
from tests.linear.people import (
    KINDS,
    ProblemRecipe,
    examples,
    library_loss,
    library_problem,
    recipes,
)

Floats = ref.Floats
SOME = ProblemRecipe("softmax", 5, 40, 3, 6, -1.0, noise=1.0)


def full(problem: FitProblem, blocks: list[Floats]) -> Floats:
    """Hessian blocks as one matrix."""
    if problem.loss.is_joint:
        return blocks[0]
    d = problem.shape[0]
    H = np.zeros((d * len(blocks), d * len(blocks)))
    for k, block in enumerate(blocks):
        H[k * d : (k + 1) * d, k * d : (k + 1) * d] = block
    return H


def assert_same(problem: FitProblem, case: ref.LinearCase, W: Floats) -> None:
    """Everything that a pass computes equals the formulas on the rows of `case`."""
    scale = 1 + float(np.abs(case.dense).max()) ** 2 * len(case.y)
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11 * scale}
    assert problem.ridge == pytest.approx(case.ridge)
    np.testing.assert_allclose(problem.gradient_at(W), ref.gradient(case, W), **close)
    np.testing.assert_allclose(problem.value_and_gradient(W)[1], ref.gradient(case, W), **close)
    H = ref.data_hessian(case, W)
    np.testing.assert_allclose(full(problem, problem.hessian_at(W)), H, **close)
    curvature, V = problem.curvature_at(W), np.random.default_rng(0).normal(size=W.shape)
    product = (H @ ref.flat(V)).reshape(V.shape, order="F") + case.ridge * V
    np.testing.assert_allclose(problem.hessian_product(curvature, V), product, **close)
    diagonal = np.diag(H).reshape(W.shape, order="F") + case.ridge
    np.testing.assert_allclose(problem.hessian_diagonal(curvature), diagonal, **close)


@examples(200)
@given(recipe=recipes(), size=st.sampled_from([0.1, 3.0]))
def test_passes_equal_the_formulas(recipe: ProblemRecipe, size: float) -> None:
    case, W, gone = recipe.case(), recipe.point(size), recipe.gone
    problem = library_problem(case)
    assert_same(problem, case, W)
    assert problem.value_at(W) == pytest.approx(ref.objective(case, W), rel=1e-9)
    rest = case.without(gone)
    assert_same(problem.without(gone), rest, W)
    # Rows left out may add a constant to the value.
    V, after = recipe.point(size, 3), problem.without(gone)
    fall = ref.objective(rest, W) - ref.objective(rest, V)
    scale = abs(ref.objective(case, W)) + abs(ref.objective(case, V))
    assert after.value_at(W) - after.value_at(V) == pytest.approx(fall, abs=1e-9 * scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.csr_matrix])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sparse_and_single_precision_rows(kind: str, form: Any, dtype: Any) -> None:
    recipe = replace(SOME, kind=kind)
    case, W = recipe.case(), recipe.point(1.0)
    case = replace(case, X=case.X.astype(dtype) * (abs(case.X) > 0.5))
    problem = replace(library_problem(case), X=form(case.X))
    assert_same(problem, case, W)
    assert_same(problem.without(recipe.gone), case.without(recipe.gone), W)


@pytest.mark.parametrize("kind", KINDS)
def test_many_blocks_are_as_good_as_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_problem, "_BLOCK_BYTES", 1)
    monkeypatch.setattr(_problem, "_HESSIAN_ROWS", 7)
    recipe = replace(SOME, kind=kind)
    case = recipe.case()
    assert_same(library_problem(case), case, recipe.point(1.0))
    assert_same(
        library_problem(case).without(recipe.gone),
        case.without(recipe.gone),
        recipe.point(1.0),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_wiped_rows_count_no_longer(kind: str) -> None:
    recipe = replace(SOME, kind=kind)
    case, W, gone = recipe.case(), recipe.point(1.0), recipe.gone
    X, y = case.X.copy(), case.y.copy()
    X[gone], y[gone] = 0, 0
    problem = replace(library_problem(case), X=X, y=y, n_rows=len(y) - len(gone))
    assert_same(problem, case.without(gone), W)


def test_leaving_out_twice_adds_up() -> None:
    case, W = SOME.case(), SOME.point(1.0)
    first, second = np.array([3, 8]), np.array([1])
    problem = library_problem(case).without(first).without(second)
    assert problem.n_remaining == len(case.y) - 3
    assert_same(problem, case.without([1, 3, 8]), W)


@examples(200)
@given(recipe=recipes())
def test_roots_and_slopes_of_rows(recipe: ProblemRecipe) -> None:
    case, W, gone = recipe.case(), recipe.point(1.0), recipe.gone
    problem = library_problem(case)
    H = ref.data_hessian(case.only(gone), W)
    roots = hessian_roots(problem.loss, problem.copy_rows(gone), problem.y[gone], W)
    parts = [V @ V.T for V in roots]
    scale = 1 + abs(H).max()
    np.testing.assert_allclose(full(problem, parts), H, atol=1e-11 * scale)
    expected = ref.data_gradient(case.only(gone), W)
    np.testing.assert_allclose(problem.data_gradient(W, gone), expected, atol=1e-11 * scale)
    rows = sp.csr_array(case.X[gone])
    loss = library_loss(case)
    np.testing.assert_allclose(
        sum_gradients(loss, rows, case.y[gone], W), expected, atol=1e-11 * scale
    )
    for sparse, dense in zip(hessian_roots(loss, rows, case.y[gone], W), roots, strict=True):
        np.testing.assert_allclose(sparse, dense, atol=1e-11 * scale)


@examples(1000)
@given(recipe=recipes(), size=st.sampled_from([0.01, 1.0, 30.0]))
def test_distance_bound_holds(recipe: ProblemRecipe, size: float) -> None:
    """Checked without an optimum: between two points the gradients are ridge |V - W| apart."""
    problem, V, W = library_problem(recipe.case()), recipe.point(size), recipe.point(size, 2)
    change = problem.gradient_at(V) - problem.gradient_at(W)
    rounding = 1e-12 * float(np.linalg.norm(problem.gradient_at(V)))
    assert problem.distance_bound(change) >= np.linalg.norm(V - W) - rounding / problem.ridge


def test_distance_bound_is_attained_where_rows_say_nothing() -> None:
    case = ProblemRecipe("squared", 0, 5, 2, 1, 0.0).case()
    problem = library_problem(replace(case, X=np.zeros((5, 2)), tilt=np.ones((2, 1))))
    optimum = -np.ones((2, 1)) / problem.ridge
    W = np.array([[3.0], [4.0]])
    distance = np.linalg.norm(W - optimum)
    assert problem.distance_bound(problem.gradient_at(W)) == pytest.approx(distance)


def test_rows_in_double_are_a_copy() -> None:
    X = np.arange(6.0).reshape(3, 2)
    for table in (X, X.astype(np.float32), sp.csr_array(X)):
        rows = rows_in_double(table, np.array([1]))
        assert rows.dtype == np.float64
        (rows.data if sp.issparse(rows) else rows)[:] = 9.0
        assert table[[1]].sum() == 5.0


def test_work_is_counted_by_entries_stored() -> None:
    case = SOME.case()
    assert n_stored(case.X) == case.X.size
    assert n_stored(sp.csr_array(np.eye(4))) == 4
    assert library_problem(case).pass_flops == 4.0 * case.X.size * 3
