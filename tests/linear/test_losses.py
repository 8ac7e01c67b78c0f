"""Losses: their derivatives, and the constants that every bound rests on."""

from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from letheon.linear._problem import Logistic, Loss, PseudoHuber, Softmax, Squared
from tests.linear import reference as ref
from tests.linear.people import KINDS, ProblemRecipe, examples, library_loss, recipes

Floats = ref.Floats


def as_matrix(loss: Loss, curvature: Floats) -> Floats:
    """Second derivatives of one row as a K x K matrix."""
    if loss.is_joint:
        return np.diag(curvature) - np.outer(curvature, curvature)
    return np.diag(curvature)


def curvature_at(loss: Loss, z: Floats, target: Any) -> Floats:
    return as_matrix(loss, loss.curvature_at(z[None], np.array([target]))[0])


@examples(200)
@given(recipe=recipes(), size=st.sampled_from([0.1, 1.0, 20.0]))
def test_derivatives_equal_the_formulas(recipe: ProblemRecipe, size: float) -> None:
    case = recipe.case()
    loss, Z = library_loss(case), case.dense @ recipe.point(size)
    pairs = list(zip(Z, case.y, strict=True))
    value = sum(ref.row_loss(case, z, t) for z, t in pairs)
    assert loss.value_at(Z, case.y) == pytest.approx(value, rel=1e-10, abs=1e-10)
    slopes = np.array([ref.row_slope(case, z, t) for z, t in pairs])
    np.testing.assert_allclose(loss.slopes_at(Z, case.y), slopes, rtol=1e-9, atol=1e-12)
    for (z, t), row in zip(pairs, loss.curvature_at(Z, case.y), strict=True):
        expected = ref.row_curvature(case, z, t)
        np.testing.assert_allclose(as_matrix(loss, row), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_formulas_of_the_reference_are_derivatives(kind: str) -> None:
    case = ProblemRecipe(kind, 3, 6, 3, 1, -1.0, noise=1.0).case()
    W = ProblemRecipe(kind, 3, 6, 3, 1, -1.0).point(1.0)
    gradient, H = ref.gradient(case, W), ref.hessian(case, W)
    for k in range(W.size):
        h = 1e-5 * np.eye(W.size)[k].reshape(W.shape, order="F")
        slope = (ref.objective(case, W + h) - ref.objective(case, W - h)) / 2e-5
        change = (ref.gradient(case, W + h) - ref.gradient(case, W - h)) / 2e-5
        assert slope == pytest.approx(ref.flat(gradient)[k], rel=1e-6, abs=1e-7)
        np.testing.assert_allclose(ref.flat(change), H[:, k], rtol=1e-5, atol=1e-6)


@st.composite
def moves(draw: st.DrawFn) -> tuple[Loss, Floats, Floats, Any]:
    """A loss, scores, a change of them and a target."""
    K = draw(st.integers(2, 5))
    scale = draw(st.floats(0.05, 20))
    losses: list[Loss] = [Logistic(1), Logistic(K), Softmax(K), Squared(), PseudoHuber(scale)]
    loss = draw(st.sampled_from(losses))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    z = draw(st.sampled_from([0.1, 1.0, 5.0])) * rng.normal(size=loss.n_outputs)
    v = draw(st.sampled_from([1e-3, 0.3, 3.0])) * rng.normal(size=loss.n_outputs)
    is_number = isinstance(loss, Squared | PseudoHuber)
    target = rng.normal() if is_number else int(rng.integers(max(loss.n_outputs, 2)))
    return loss, z, v, target


@examples(1000)
@given(move=moves())
def test_constants_bound_what_they_say(move: tuple[Loss, Floats, Floats, Any]) -> None:
    loss, z, v, target = move
    slope = loss.slopes_at(z[None], np.array([target]))[0]
    before, after = curvature_at(loss, z, target), curvature_at(loss, z + v, target)
    length = float(np.linalg.norm(v))
    assert np.linalg.norm(slope) <= loss.slope_bound * (1 + 1e-12)
    assert np.linalg.norm(before, 2) <= loss.curvature_bound * (1 + 1e-12)
    change = np.linalg.norm(after - before, 2)
    assert change <= loss.third_bound * length * (1 + 1e-9) + 1e-14
    factor = exp(loss.concordance * length) * (1 + 1e-9)
    for u in np.vstack([np.eye(len(z)), np.random.default_rng(0).normal(size=(5, len(z)))]):
        assert u @ after @ u <= factor * (u @ before @ u) + 1e-13
        assert u @ before @ u <= factor * (u @ after @ u) + 1e-13


def sharpest(loss: Loss, ratio: Any) -> float:
    """Largest value of a ratio over scores and directions, by search from many starts."""
    K, best = loss.n_outputs, 0.0
    rng = np.random.default_rng(0)

    def negative(point: Floats) -> float:
        return -float(ratio(loss, point[:K], point[K:] / np.linalg.norm(point[K:])))

    for _ in range(12):
        optimum = minimize(negative, rng.normal(size=2 * K), method="Nelder-Mead")
        best = max(best, -optimum.fun)
    return best


def third(loss: Loss, z: Floats, u: Floats) -> float:
    """|D^3 l[u, u, u]|; the largest over u = v = w is the norm of a symmetric form."""
    h = 1e-4
    change = curvature_at(loss, z + h * u, 0) - curvature_at(loss, z - h * u, 0)
    return float(abs(u @ change @ u) / (2 * h))


@pytest.mark.parametrize(
    "loss", [Logistic(1), Softmax(2), Softmax(3), Softmax(4), PseudoHuber(2.0)]
)
def test_third_bound_is_sharp(loss: Loss) -> None:
    assert 0.98 * loss.third_bound <= sharpest(loss, third) <= loss.third_bound * (1 + 1e-6)


@pytest.mark.parametrize(("loss", "least"), [(Logistic(1), 0.95), (PseudoHuber(2.0), 0.98)])
def test_concordance_is_sharp(loss: Loss, least: float) -> None:
    def relative(loss: Loss, z: Floats, u: Floats) -> float:
        own = float(u @ curvature_at(loss, z, 0) @ u)
        return third(loss, z, u) / own if own > 1e-4 else 0.0

    assert least * loss.concordance <= sharpest(loss, relative) <= loss.concordance * (1 + 1e-4)


def test_bounds_of_slope_and_curvature_are_attained() -> None:
    assert Logistic(1).curvature_at(np.zeros((1, 1)), np.array([0]))[0, 0] == 0.25
    far = np.array([[40.0, -40.0, -40.0]])
    assert np.linalg.norm(Softmax(3).slopes_at(far, np.array([1]))) == pytest.approx(sqrt(2))
    assert np.linalg.norm(Logistic(3).slopes_at(-far, np.array([0]))) == pytest.approx(sqrt(3))
    even = Softmax(2).curvature_at(np.zeros((1, 2)), np.array([0]))[0]
    assert np.linalg.norm(as_matrix(Softmax(2), even), 2) == pytest.approx(0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_far_scores_neither_overflow_nor_warn(kind: str) -> None:
    case = ProblemRecipe(kind, 0, 4, 2, 1, 0.0).case()
    loss, signs = library_loss(case), np.array([1.0, -1.0, 1.0, -1.0])
    Z = 1e5 * signs[:, None] * np.linspace(1, 2, loss.n_outputs)
    assert np.isfinite(loss.value_at(Z, case.y))
    assert np.isfinite(loss.slopes_at(Z, case.y)).all()
    assert (loss.curvature_at(Z, case.y) >= 0).all()


@pytest.mark.parametrize("K", [2, 3, 6])
def test_root_of_the_joint_hessian(K: int) -> None:
    loss, Z = Softmax(K), np.random.default_rng(K).normal(size=(7, K)) * 4
    q = loss.curvature_at(Z, np.zeros(7, np.int64))
    for share, root in zip(q, loss.factor_curvature(q), strict=True):
        np.testing.assert_allclose(root @ root.T, as_matrix(loss, share), atol=1e-15)


def test_losses_without_a_joint_hessian_have_no_root() -> None:
    with pytest.raises(NotImplementedError, match="Logistic is not a joint loss"):
        Logistic(2).factor_curvature(np.ones((1, 2)))
