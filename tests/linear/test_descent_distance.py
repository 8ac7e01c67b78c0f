"""Descent-to-Delete: no bound of a distance is below the true one, to sixty digits."""

import warnings
from collections.abc import Callable
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning

from letheon.exceptions import GuaranteeWarning
from letheon.linear import DescentToDeleteClassifier, _problem
from letheon.linear._calibrate import ReleaseGrid
from letheon.linear._descent_steps import descend_projected
from letheon.linear._descent_theory import build_geometry, natural_radius
from letheon.linear._problem import FitProblem, Logistic, Loss, Softmax
from letheon.linear._solve import minimise_by_newton
from letheon.noise import NoiseSource
from tests.linear.exact_optimum import distance_to_optimum

Floats = NDArray[np.float64]
N_MODELS, N_SOAK = 4, 3_000

THEOREM: dict[str, Any] = {"stop": "theorem", "rows": "clip", "row_norm": 1.0, "iterations": 5}
KINDS: dict[str, dict[str, Any]] = {
    "secret": {},
    "published": {"state": "published"},
    "softmax": {"multi_class": "softmax"},
    "total": {"reg": "total"},
    "pure": {"delta": 0.0},
    "theorem": THEOREM,
    "weak": {**THEOREM, "variant": "regularized-weak", "regulariser": 0.1, "iterations": 1},
}


def nasty_rows(rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """Few rows: long or short, collinear, repeated, separable, of two or three classes."""
    n, d, n_classes = int(rng.integers(6, 14)), int(rng.integers(1, 4)), int(rng.integers(2, 4))
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-4, 4)
    y = rng.permutation(np.arange(n) % n_classes)
    if rng.random() < 0.3:
        X[:] = np.outer(X[:, 0], rng.normal(size=d))
    if rng.random() < 0.3:
        X[n // 2 :] = X[0]
    if rng.random() < 0.3:
        X[0] *= 10.0 ** rng.uniform(0, 5)
    if rng.random() < 0.3:
        X[:, 0] = np.sign(y - 0.5) * np.abs(X[:, 0])
    return X, y.astype(np.int64)


def settings_of(kind: str, rng: np.random.Generator) -> dict[str, Any]:
    by_theorem = KINDS[kind].get("stop") == "theorem"
    l2 = 10.0 ** rng.uniform(-1.5, 0) if by_theorem else 10.0 ** rng.uniform(-7, 1)
    return {
        "l2": l2,
        "sigma": None if by_theorem else 10.0 ** rng.uniform(-9, 1),
        "fit_intercept": bool(rng.random() < 0.5),
        "if_unproved": "downgrade",
        **KINDS[kind],
    }


def held_problem(model: DescentToDeleteClassifier) -> FitProblem:
    rows, l2 = model.rows_.compact_copy(), model.l2
    if model.plan_ is not None:
        l2 = model.plan_.geometry.strong
    loss = model._build_loss(model.classes_)
    return FitProblem(rows.X, rows.y, loss, len(rows), l2, model.reg)  # type: ignore[arg-type]


def check_model(kind: str, seed: int, released: list[Floats]) -> tuple[int, int]:
    """Return how many releases were checked, and how many of them were certified."""
    rng = np.random.default_rng([seed, len(kind)])
    X, y = nasty_rows(rng)
    model = DescentToDeleteClassifier(**settings_of(kind, rng))
    requests: list[Callable[[], Any]] = [
        lambda: model.fit(X, y),
        lambda: model.forget([int(model.ids_[0])]),
        lambda: model.forget([int(i) for i in model.ids_[1:3]]),
        lambda: model.learn(X[:1], y[:1], ids=[100]),
    ]
    n_checked = n_certified = 0
    for request in requests:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuaranteeWarning)
            warnings.simplefilter("ignore", LinAlgWarning)
            try:
                request()
            except (np.linalg.LinAlgError, ValueError):
                break  # too badly scaled to be trained, or one class would be left
        assert not np.isnan(model.distance_)
        is_certified = model.guarantee_.kind == "certified"
        true = distance_to_optimum(held_problem(model), released[-1])
        if np.isnan(true) and not is_certified:
            continue
        assert true <= model.distance_
        assert not is_certified or model.distance_ <= model.limit_
        n_checked, n_certified = n_checked + 1, n_certified + is_certified
    return n_checked, n_certified


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[Floats]:
    """Return a list of the parameters before noise, of every release that follows."""
    seen: list[Floats] = []
    before = ReleaseGrid.release

    def release(self: ReleaseGrid, weights: Floats, source: NoiseSource, **more: Any) -> Floats:
        seen.append(weights.copy())
        return before(self, weights, source, **more)

    monkeypatch.setattr(ReleaseGrid, "release", release)
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_no_distance_is_understated(kind: str, released: list[Floats]) -> None:
    counts = np.sum([check_model(kind, seed, released) for seed in range(N_MODELS)], axis=0)
    assert counts[1] > counts[0] / 4 > 0, "nothing was certified"


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_no_distance_of_many_models_is_understated(kind: str, released: list[Floats]) -> None:
    for seed in range(N_SOAK):
        check_model(kind, seed, released)


def test_a_distance_without_rounding_would_be_understated() -> None:
    """Where nothing but rounding is left, the measured gradient alone says too little."""
    n_understated = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(8, 2)) / 10, rng.integers(0, 2, 8)
        problem = FitProblem(X, y, Logistic(1), 8, 10.0)
        solution = minimise_by_newton(problem, np.zeros((2, 1)), 0.0, 100)
        true = distance_to_optimum(problem, solution.W)
        assert true <= problem.distance_bound(solution.gradient, problem.gradient_error(solution.W))
        n_understated += true > problem.distance_bound(solution.gradient)
    assert n_understated > 0


# Rounding of gradient steps


def exact_steps(problem: FitProblem, n_steps: int, shape: Any) -> Any:
    """Return W after projected gradient steps from zero, to thirty digits."""
    d = problem.shape[0]
    rows = [[mpmath.mpf(float(x)) for x in row] for row in problem.X]
    strong = mpmath.mpf(shape.strong)
    rate, radius = 2 / (mpmath.mpf(shape.smooth) + strong), mpmath.mpf(shape.radius)
    w = mpmath.zeros(d, 1)
    for _ in range(n_steps):
        gradient = strong * w
        for row, label in zip(rows, problem.y.tolist(), strict=True):
            slope = 1 / (1 + mpmath.exp(-mpmath.fdot(row, w))) - label
            for i in range(d):
                gradient[i] += slope * row[i] / len(rows)
        w -= rate * gradient
        length = mpmath.norm(w)
        if length > radius:
            w *= radius / length
    return w


@pytest.mark.parametrize("radius", [None, 0.05])
@pytest.mark.parametrize("seed", range(3))
def test_rounding_of_steps_is_allowed_for(seed: int, radius: float | None) -> None:
    rng = np.random.default_rng(seed)
    n, d, strong = 12, 3, 0.02
    X = rng.normal(size=(n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    problem = FitProblem(X, rng.integers(0, 2, n), Logistic(1), n, strong)
    radius = radius or natural_radius(problem.loss, strong)
    shape = build_geometry(problem.loss, 1.0, strong, radius, d)
    with mpmath.workdps(30):
        parameters = descend_projected(problem, np.zeros((d, 1)), 120, shape)
        exact = exact_steps(problem, 120, shape)
        gap = mpmath.norm(mpmath.matrix(parameters.ravel().tolist()) - exact)
    assert 0 < gap <= shape.bound_rounding(n)


@pytest.mark.parametrize("loss", [Logistic(1), Logistic(4), Softmax(4)], ids=["1", "4", "joint"])
def test_the_plan_allows_for_the_error_of_every_gradient(loss: Loss) -> None:
    """What `gradient_errors` counts for rows as long as allowed is part of the plan's rounding."""
    rng = np.random.default_rng(1)
    for n, d, strong in ((4, 60, 0.3), (400, 3, 1e-3), (60, 30, 0.01)):
        X = rng.normal(size=(n, d))
        X *= 2.0 / np.linalg.norm(X, axis=1, keepdims=True)
        problem = FitProblem(X, rng.integers(0, max(loss.n_outputs, 2), n), loss, n, strong)
        shape = build_geometry(loss, 2.0, strong, natural_radius(loss, strong), d)
        W = rng.normal(size=problem.shape)
        W *= shape.radius / np.linalg.norm(W)
        assert problem.gradient_error(W) / n <= shape.bound_rounding(n) * strong


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("loss", [Logistic(1), Logistic(3), Softmax(3)], ids=["1", "3", "joint"])
def test_what_rounding_hides_of_a_gradient_is_bounded(
    loss: Loss, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against extended precision, with many blocks of rows, some of them left out."""
    monkeypatch.setattr(_problem, "_BLOCK_BYTES", 1)
    rng = np.random.default_rng(5)
    for l2 in (1e-8, 1e3):
        X = rng.normal(size=(700, 5)) * scale * 10.0 ** rng.uniform(-3, 3, size=(700, 1))
        y, gone = rng.integers(0, max(loss.n_outputs, 2), 700), np.arange(0, 700, 9)
        problem = FitProblem(X, y, loss, 700, l2, removed=gone)
        W = rng.normal(size=problem.shape) / scale
        remaining = np.delete(np.arange(700), gone)
        rows, wide = X[remaining].astype(np.longdouble), W.astype(np.longdouble)
        scores = rows @ wide
        if loss.is_joint:
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
        else:
            shares = 1 / (1 + np.exp(-scores))
        labels = np.arange(1, 2) if loss.n_outputs == 1 else np.arange(loss.n_outputs)
        slopes = shares - (y[remaining][:, None] == labels)
        exact = rows.T @ slopes + np.longdouble(l2) * len(remaining) * wide
        error = float(np.linalg.norm(problem.gradient_at(W) - exact))
        assert 0 < error <= problem.gradient_error(W)
