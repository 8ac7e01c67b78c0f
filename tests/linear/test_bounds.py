"""Bounds of the gradient that a removal leaves: never below the truth, and of use."""

from math import exp, inf, isinf
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.linear._account import concordant_bound, lipschitz_bound, mean_growth
from letheon.linear._curvature import Curvature
from letheon.linear._newton import BOUNDS, Proposal, RemovalContext, RowsToRemove, propose_removal
from letheon.linear._problem import Squared
from letheon.linear._solve import block_norms, l2_norm
from tests.linear import reference as ref
from tests.linear.people import (
    ProblemRecipe,
    examples,
    library_problem,
    longest,
    recipes,
    table_of_section_1,
)
from tests.linear.published_bounds import spectral_bound, worst_case_bound

Floats = ref.Floats


class MeasuredProposal(NamedTuple):
    """A proposal, what it really adds to the gradient, and what rounding may add to that."""

    proposal: Proposal
    truth: float
    rounding: float


def remove(
    recipe: ProblemRecipe, size: float, offset: float, bound: str = "tightest"
) -> MeasuredProposal:
    """Propose a removal at any W, with a Hessian taken at some distance from it.

    The gradient after the step, on the rows that stay, minus the one before it, on all rows, is
    what the step adds, wherever W is.
    """
    case, gone = recipe.case(), recipe.gone
    problem, rest = library_problem(case), case.without(gone)
    W = recipe.point(size)
    curvature = Curvature.from_problem(problem, W + recipe.point(offset, 9))
    setting = RemovalContext(problem.loss, case.ridge, rest.ridge, len(rest.y), bound)
    proposal = propose_removal(curvature, W, RowsToRemove(case.X[gone], case.y[gone]), setting)
    change = ref.gradient(rest, proposal.W) - ref.gradient(case, W)
    scale = float(np.linalg.norm(ref.hessian(case, W), 2)) + curvature.tops[0]
    rounding = 1e-13 * scale * (1 + l2_norm(W) + l2_norm(proposal.W))
    rounding += 1e-13 * float(np.linalg.norm(ref.gradient(case, W)))
    return MeasuredProposal(proposal, float(np.linalg.norm(change)), rounding)


@examples(1500)
@given(
    recipe=recipes(),
    size=st.sampled_from([0.1, 1.0, 5.0]),
    offset=st.sampled_from([0.0, 0.0, 0.01, 1.0]),
    bound=st.sampled_from(BOUNDS),
)
def test_a_removal_adds_no_more_than_it_says(
    recipe: ProblemRecipe, size: float, offset: float, bound: str
) -> None:
    removal = remove(recipe, size, offset, bound)
    assert removal.truth <= removal.proposal.added + removal.rounding


@examples(1000)
@given(
    recipe=recipes(),
    size=st.sampled_from([0.1, 2.0]),
    offset=st.sampled_from([0.0, 0.02, 1.0]),
    length=st.sampled_from([1e-4, 0.1, 2.0]),
)
def test_bounds_of_any_step(
    recipe: ProblemRecipe, size: float, offset: float, length: float
) -> None:
    """|grad(W + step) - grad(W) - H(W0) step| on the data part, for any step at all."""
    case = recipe.case()
    problem = library_problem(case)
    W, step = recipe.point(size), recipe.point(length, 5)
    W0 = W + recipe.point(offset, 9)
    H0 = ref.data_hessian(case, W0)
    linear = (H0 @ ref.flat(step)).reshape(step.shape, order="F")
    change = ref.data_gradient(case, W + step) - ref.data_gradient(case, W)
    truth = float(np.linalg.norm(change - linear))
    curvature, radius = Curvature.from_problem(problem, W0), longest(case.X)
    n_blocks = len(curvature.blocks)
    d = len(H0) // n_blocks
    parts, away_parts = (
        [ref.flat(change)[k * d : (k + 1) * d] for k in range(n_blocks)]
        for change in (step, W - W0)
    )
    blocks = [H0[k * d : (k + 1) * d, k * d : (k + 1) * d] for k in range(n_blocks)]
    energies = [float(x @ block @ x) for x, block in zip(parts, blocks, strict=True)]
    rounding = 1e-13 * (1 + float(np.linalg.norm(ref.data_gradient(case, W)))) * (1 + radius)
    rounding += 1e-13 * float(np.linalg.norm(linear))
    smooth = concordant_bound(
        problem.loss,
        radius,
        block_norms(W - W0, n_blocks),
        block_norms(step, n_blocks),
        curvature.tops,
        [float(x @ block @ x) for x, block in zip(away_parts, blocks, strict=True)],
        energies,
    )
    assert truth <= smooth + rounding
    away, far = l2_norm(W - W0), l2_norm(step)
    assert truth <= lipschitz_bound(problem.loss, radius, len(case.y), away, far) + rounding
    if offset == 0.0:
        spectral = float(np.linalg.norm(case.dense, 2))
        score_change = float(np.linalg.norm(case.dense @ step))
        bound = spectral_bound(problem.loss, radius, spectral, far, score_change)
        assert truth <= bound + rounding


@examples(1000)
@given(recipe=recipes(("logistic", "ovr", "softmax", "huber")))
def test_worst_case_bound_is_known_before_the_data(recipe: ProblemRecipe) -> None:
    recipe = ProblemRecipe(
        **{**vars(recipe), "reg": "per_sample", "log_l2": max(recipe.log_l2, -2.0)}
    )
    case, gone = recipe.case(), recipe.gone
    W = ref.retrain(case, tolerance=1e-10)
    rest = case.without(gone)
    after = ref.influence_in_sums(case, W, gone)
    bound = worst_case_bound(
        library_problem(case).loss,
        longest(case.X),
        len(rest.y),
        len(gone),
        case.l2,
        float(np.linalg.norm(case.b)),
        len(case.y),
    )
    start = ref.residual(case, W)
    assert ref.residual(rest, after) <= bound + start * (1 + longest(case.X)) + 1e-9 * len(case.y)


def test_worst_case_bound_of_an_exact_step_is_nothing() -> None:
    assert worst_case_bound(Squared(), 2.0, 10, 1, 0.1, 1.0, 11) == 0.0


@examples(1000)
@given(offset=st.floats(0, 20), length=st.one_of(st.floats(1e-9, 20), st.floats(1e-9, 2e-3)))
def test_mean_growth_is_the_mean_and_never_less(offset: float, length: float) -> None:
    nodes, weights = np.polynomial.legendre.leggauss(40)
    mean = float(weights @ np.expm1(offset + (nodes + 1) / 2 * length)) / 2
    growth = mean_growth(offset, length)
    assert mean * (1 - 1e-9) <= growth <= mean * (1 + 1e-3) + 1e-300


def test_mean_growth_at_its_ends() -> None:
    assert mean_growth(0.0, 0.0) == 0.0
    assert mean_growth(1.0, 0.0) == pytest.approx(exp(1.0) - 1)
    assert isinf(mean_growth(200.0, 101.0))
    seam = mean_growth(0.3, 1e-3 * (1 - 1e-12)), mean_growth(0.3, 1e-3)
    assert seam[0] == pytest.approx(seam[1], rel=1e-6)


def test_a_step_too_long_to_bound_is_bounded_by_infinity() -> None:
    loss = library_problem(ProblemRecipe("logistic", 0, 5, 2, 1, 0.0).case()).loss
    assert concordant_bound(loss, 1.0, [0.0], [1e6], [1.0], [1.0], [1.0]) == inf
    # Curvature that a float cannot hold hides no infinite growth; a step of no length has none.
    assert concordant_bound(loss, 1.0, [0.0], [1e6], [0.0], [0.0], [0.0]) == inf
    assert concordant_bound(loss, 1.0, [1e6], [0.0], [0.0], [0.0], [0.0]) == 0.0


def test_bounds_are_of_use_on_ordinary_data() -> None:
    """One removal: the bound is within a hundred of the truth; by norms alone it is far more."""
    case = table_of_section_1()
    W, problem = ref.retrain(case), library_problem(case)
    curvature = Curvature.from_problem(problem, W)
    ratios: dict[str, list[float]] = {bound: [] for bound in BOUNDS}
    for row in range(10):
        rest = case.without([row])
        for bound in BOUNDS:
            leaving = RowsToRemove(case.X[[row]], case.y[[row]])
            setting = RemovalContext(problem.loss, case.ridge, rest.ridge, len(rest.y), bound)
            proposal = propose_removal(curvature, W, leaving, setting)
            ratios[bound].append(proposal.added / ref.residual(rest, proposal.W))
    assert min(ratios["tightest"]) >= 1
    assert np.median(ratios["tightest"]) < 30
    assert max(ratios["tightest"]) < 100
    assert np.median(ratios["worst-case"]) > np.median(ratios["tightest"])
    assert all(t <= d for t, d in zip(ratios["tightest"], ratios["data-dependent"], strict=True))


def test_squared_loss_leaves_rounding_only() -> None:
    recipe = ProblemRecipe("squared", 3, 14, 4, 3, -1.0, noise=1.0)
    removal = remove(recipe, 1.0, 1.0)
    assert removal.truth <= removal.rounding
    assert removal.proposal.added <= 1e-10


def test_a_row_much_longer_than_the_others_leaves_no_hidden_rounding() -> None:
    """Taking a huge row out of a sum leaves the rounding of that row; the account must know it."""
    rng = np.random.default_rng(1)
    for length in (1e3, 1e5, 1e7, 1e8):
        X = rng.normal(size=(60, 3))
        X[5] *= length
        case = ref.LinearCase(X, X[:, 0] + rng.normal(size=60), "squared", 1e-3)
        problem, rest = library_problem(case), case.without([5])
        W = np.ones((3, 1))
        setting = RemovalContext(problem.loss, case.ridge, rest.ridge, 59)
        curvature = Curvature.from_problem(problem, W)
        proposal = propose_removal(curvature, W, RowsToRemove(X[[5]], case.y[[5]]), setting)
        start = ref.gradient(rest, W) + ref.removed_gradient(case, W, [5])
        truth = float(np.linalg.norm(ref.gradient(rest, proposal.W) - start))
        assert truth <= proposal.added + 1e-12 * float(np.linalg.norm(start))


def test_norms_of_blocks() -> None:
    change = np.array([[3.0, 1.0], [4.0, 0.0]])
    assert l2_norm(change) == pytest.approx(26**0.5)
    assert block_norms(change, 1) == [pytest.approx(26**0.5)]
    assert block_norms(change, 2) == [5.0, 1.0]
