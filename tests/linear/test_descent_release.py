"""Descent-to-Delete: releases, by exact sums over the integers and by attacks on their bits."""

import math
from collections.abc import Callable
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from letheon.linear import DescentToDeleteClassifier, _calibrate
from letheon.linear._calibrate import ReleaseGrid
from letheon.linear._descent_theory import longest_noise, max_hidden_distance, sigma_for
from letheon.noise import NoiseSource
from tests.linear.audit import epsilon_lower_bound
from tests.sharded.people import examples

Floats = NDArray[np.float64]
EPSILON, DELTA = 1.0, 0.02
THEOREM: dict[str, Any] = {
    "l2": 0.5,
    "stop": "theorem",
    "rows": "refuse",
    "row_norm": 1.5,
    "iterations": 8,
}
METHODS: dict[str, dict[str, Any]] = {
    "residual, secret": {"l2": 0.1},
    "residual, published": {"l2": 0.1, "state": "published"},
    "residual, pure": {"l2": 0.1, "delta": 0.0},
    "theorem, secret": THEOREM,
    "theorem, published": {**THEOREM, "state": "published"},
    "parts": {"l2": 0.1, "variant": "distributed", "n_copies": 2},
}
# Parameters of parts depend on rows that are drawn in secret, so no attacker knows them.
ONE_MODEL = [name for name in METHODS if name != "parts"]


@pytest.fixture(autouse=True)
def repeatable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `make test` see the same noise every time, in models that know of no seed."""
    if request.node.get_closest_marker("soak"):
        return
    rng = np.random.default_rng(0)
    words = lambda _, n: rng.integers(0, 2**64, n, dtype=np.uint64)  # noqa: E731
    monkeypatch.setattr(NoiseSource, "_words", words)


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids of 32 to 64 steps per sigma, so that sums over all integers are short."""
    monkeypatch.setattr(_calibrate, "_SCALE_BITS", 5)


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[Floats]:
    """Return a list of the parameters before noise, of every release that follows."""
    seen: list[Floats] = []
    before = ReleaseGrid.release

    def release(self: ReleaseGrid, weights: Floats, source: NoiseSource, **more: Any) -> Floats:
        seen.append(weights.ravel().copy())
        return before(self, weights, source, **more)

    monkeypatch.setattr(ReleaseGrid, "release", release)
    return seen


def make_rows(n_columns: int) -> tuple[Floats, NDArray[np.int64]]:
    """Twenty short rows; the first is far out and contrary."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-0.3, 0.3, size=(20, n_columns))
    X[0] = 0.9 / math.sqrt(n_columns)
    y = (X[:, 0] > 0).astype(np.int64)
    y[0] = 0
    return X, y


def forgotten(settings: dict[str, Any], n_columns: int) -> DescentToDeleteClassifier:
    X, y = make_rows(n_columns)
    settings = {"epsilon": EPSILON, "delta": DELTA, "fit_intercept": False, **settings}
    model = DescentToDeleteClassifier(**settings).fit(X, y)
    model.forget([10])
    model.forget([0])
    return model


def fresh(settings: dict[str, Any], n_columns: int) -> DescentToDeleteClassifier:
    X, y = (np.delete(values, [0, 10], 0) for values in make_rows(n_columns))
    settings = {"epsilon": EPSILON, "delta": DELTA, "fit_intercept": False, **settings}
    return DescentToDeleteClassifier(**settings).fit(X, y)


def exact_law(scale: int) -> dict[int, mpmath.mpf]:
    """Return the probabilities of the noise, of all but a mass below 1e-40."""
    reach = 14 * scale
    weights = {z: mpmath.exp(-mpmath.mpf(z * z) / (2 * scale**2)) for z in range(-reach, reach + 1)}
    total = mpmath.fsum(weights.values())
    return {z: weight / total for z, weight in weights.items()}


def pure_epsilon(shift: Any, scale: int) -> float:
    """Return the largest log-ratio of two discrete Laplace releases `shift` steps apart."""
    z = np.arange(-200, 201)
    return float(sum((np.abs(z - steps) - np.abs(z)).max() for steps in shift) / scale)


def exact_delta(shift: Any, scale: int, epsilon: float) -> float:
    """Return the smallest delta of two releases that are `shift` steps apart, by summing up."""
    with mpmath.workdps(25):
        law, nothing = exact_law(scale), mpmath.mpf(0)
        factor = mpmath.exp(epsilon)
        first, *others = (int(steps) for steps in shift)
        if not others:
            terms = (p - factor * law.get(z - first, nothing) for z, p in law.items())
            return float(mpmath.fsum(max(term, nothing) for term in terms))
    ours = np.array([float(p) for p in law.values()])
    moved = [shifted(ours, steps) for steps in (first, *others)]
    gaps = np.outer(ours, ours) - float(factor) * np.outer(*moved)
    return float(np.maximum(gaps, 0.0).sum())


def shifted(law: Floats, steps: int) -> Floats:
    moved = np.zeros_like(law)
    source, target = slice(max(-steps, 0), len(law) - max(steps, 0)), max(steps, 0)
    moved[target : target + source.stop - source.start] = law[source]
    return moved


@pytest.mark.parametrize("n_columns", [1, 2])
@pytest.mark.parametrize("name", ONE_MODEL)
@pytest.mark.usefixtures("coarse")
def test_releases_are_as_close_as_claimed(
    name: str, n_columns: int, released: list[Floats]
) -> None:
    """Models that forgot against fresh ones, the exact laws of what they release."""
    model = forgotten(METHODS[name], n_columns)
    W = released[-1]
    fresh(METHODS[name], n_columns)
    V, grid = released[-1], ReleaseGrid.of_sigma(model.sigma_)
    assert model.guarantee_.kind == "certified"
    shift = np.rint(W / grid.step) - np.rint(V / grid.step)
    assert np.linalg.norm(W - V) <= 2 * model.limit_
    if model.delta == 0.0:
        assert pure_epsilon(shift, grid.scale) <= EPSILON
    else:
        assert exact_delta(shift, grid.scale, EPSILON) <= model.delta


@pytest.mark.parametrize("name", METHODS)
def test_every_release_lies_on_the_grid_of_sigma(name: str) -> None:
    for model in (forgotten(METHODS[name], 3), fresh(METHODS[name], 3)):
        steps = model.model_.weights / ReleaseGrid.of_sigma(model.sigma_).step
        np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("delta", [0.0, 1e-11, 1e-6, 0.02])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.usefixtures("coarse")
def test_what_is_hidden_is_hidden_in_the_worst_direction(
    size: int, epsilon: float, delta: float
) -> None:
    """As far apart as allowed, and rounded apart by one more step per coordinate."""
    grid = ReleaseGrid.of_sigma(0.9)
    reach = 2 * max_hidden_distance(0.9, epsilon, delta, size) / grid.step
    assert reach > 0
    along = np.floor(reach + 1) if size == 1 else np.floor(reach / math.sqrt(2) + 1)
    shifts = [[along]] if size == 1 else [[along, along], [np.floor(reach), 1.0]]
    for shift in shifts:
        if delta == 0.0:
            assert pure_epsilon(shift, grid.scale) <= epsilon
        else:
            assert exact_delta(shift, grid.scale, epsilon) <= delta
    if delta > 0.0:
        far = [3 * along + 2] * size
        assert exact_delta(far, grid.scale, epsilon) > delta, "the claim says something"


@given(
    epsilon=st.floats(0.05, 20),
    delta=st.one_of(st.just(0.0), st.floats(1e-15, 0.1)),
    size=st.integers(1, 10**4),
    distance=st.floats(1e-12, 1e12),
)
def test_noise_for_a_distance_hides_it(
    epsilon: float, delta: float, size: int, distance: float
) -> None:
    if max_hidden_distance(1.0, epsilon, delta, size) <= 0.0:
        with pytest.raises(ValueError, match="too small"):
            sigma_for(distance, epsilon, delta, size)
        return
    sigma = sigma_for(distance, epsilon, delta, size)
    assert distance <= max_hidden_distance(sigma, epsilon, delta, size) <= 2.1 * distance


# How long noise gets


@pytest.mark.parametrize("scale", [1, 2, 7])
@pytest.mark.parametrize("t", [0.01, 0.3, 1.0, 2.5])
def test_the_noise_is_no_wider_than_a_normal_law(scale: int, t: float) -> None:
    """E exp(t Z) <= exp(t^2 s^2 / 2), from which the bound of its length follows."""
    with mpmath.workdps(60):
        reach = int(20 * scale + 2 * t * scale * scale)
        weights = {z: mpmath.exp(-mpmath.mpf(z * z) / (2 * scale**2)) for z in range(-reach, reach)}
        mean = mpmath.fsum(w * mpmath.exp(mpmath.mpf(t) * z) for z, w in weights.items())
        bound = mpmath.exp((mpmath.mpf(t) * scale) ** 2 / 2)
        assert mean / mpmath.fsum(weights.values()) <= bound * (1 + mpmath.mpf("1e-50"))


@pytest.mark.parametrize("log_inverse", [1.0, 3.0, 12.0, 30.0])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.usefixtures("coarse")
def test_noise_is_longer_than_its_bound_as_rarely_as_stated(size: int, log_inverse: float) -> None:
    grid = ReleaseGrid.of_sigma(1.0)
    law = exact_law(grid.scale)
    bound = longest_noise(1.0, size, log_inverse, 0.0) / grid.step - math.sqrt(size) / 2
    assert probability_beyond(law, size, bound * bound) <= math.exp(-log_inverse)
    assert probability_beyond(law, size, bound * bound / 9) > math.exp(-log_inverse)


def probability_beyond(law: dict[int, mpmath.mpf], size: int, square: float) -> float:
    """Return the probability that a sum of squares exceeds a number."""
    if size == 1:
        return float(mpmath.fsum(p for z, p in law.items() if z * z > square))
    z, p = np.array(list(law)), np.array([float(value) for value in law.values()])
    beyond = np.append(np.cumsum(p[z >= 0][::-1])[::-1] * 2, 0.0)  # 2 P(Z >= k), k >= 0
    rest = square - (z[:, None] ** 2 + z**2) if size == 3 else square - z**2
    k = np.where(rest < 0, -1, np.floor(np.sqrt(np.maximum(rest, 0)))).astype(int) + 1
    tail = np.where(k == 0, 1.0, beyond[np.minimum(k, len(beyond) - 1)])
    weights = p[:, None] * p if size == 3 else p
    return float((weights * tail).sum())


@examples(30)
@given(
    seed=st.integers(0, 10**6),
    radius=st.sampled_from([0.5, 2.0**31, 2.0**40]),
    size=st.integers(1, 5),
)
def test_what_a_release_is_away_is_counted(seed: int, radius: float, size: int) -> None:
    """Rounding, and the bound of the grid where parameters are beyond it."""
    W = np.random.default_rng(seed).normal(size=size)
    W *= radius / np.linalg.norm(W)
    theta = ReleaseGrid.of_sigma(1.0).release(W, NoiseSource(seed))
    assert np.linalg.norm(theta - W) <= longest_noise(1.0, size, 40.0, radius)


# Low-order bits


def explained(theta: Floats, W: Floats, sigma: float) -> int:
    """Count the coordinates that W plus normal noise in doubles could have given, to the bit."""
    guess = np.rint(ndtr((theta - W) / sigma) * 2.0**52 - 0.5)
    possible = np.zeros(theta.shape, bool)
    for off in (-2, -1, 0, 1, 2):
        uniform = (2 * (guess + off) + 1) * 2.0**-53
        possible |= W + sigma * ndtri(uniform) == theta
    return int(possible.sum())


def lattice_attack(
    settings: dict[str, Any], n_runs: int, released: list[Floats], n_columns: int = 6
) -> tuple[float, float]:
    """Return a bound of epsilon, and how much oftener the true parameters explain coordinates.

    The attacker knows both noiseless parameters and counts what either of them explains.
    """
    scores: dict[bool, list[list[float]]] = {True: [], False: []}
    rightly, wrongly = 0, 0
    for _ in range(n_runs):
        models, pair = [], []
        for make in (forgotten, fresh):
            models.append(make(settings, n_columns))
            pair.append(released[-1])
            released.clear()
        for has_forgotten, model in zip((True, False), models, strict=True):
            theta, sigma = model.model_.weights.ravel(), model.sigma_
            counts = [explained(theta, W, sigma) for W in pair]
            scores[has_forgotten].append([float(counts[0] - counts[1])])
            rightly += counts[not has_forgotten]
            wrongly += counts[has_forgotten]
    n_coordinates = 2 * n_runs * n_columns
    bound = epsilon_lower_bound(scores[True], scores[False], DELTA)
    return bound, (rightly - wrongly) / n_coordinates


LOUD = {"residual, secret": {"sigma": 1.0}, "residual, published": {"sigma": 1.0}}


@pytest.mark.parametrize("name", ONE_MODEL)
def test_low_order_bits_explain_nothing(name: str, released: list[Floats]) -> None:
    settings = {**METHODS[name], **LOUD.get(name, {})}
    bound, excess = lattice_attack(settings, 40, released)
    assert bound <= EPSILON
    assert abs(excess) < 0.1


@pytest.mark.soak
@pytest.mark.parametrize("name", ONE_MODEL)
def test_low_order_bits_explain_nothing_in_many_runs(name: str, released: list[Floats]) -> None:
    settings = {**METHODS[name], **LOUD.get(name, {})}
    bound, excess = lattice_attack(settings, 20_000, released)
    assert bound <= EPSILON
    assert abs(excess) < 0.01


@pytest.mark.parametrize("name", LOUD)
def test_noise_in_doubles_would_be_read_off(
    name: str, released: list[Floats], monkeypatch: pytest.MonkeyPatch
) -> None:
    before: Callable[..., Floats] = ReleaseGrid.release

    def release(self: ReleaseGrid, weights: Floats, source: NoiseSource, **more: Any) -> Floats:
        before(self, weights, source, **more)
        return weights + source.normals(weights.shape)

    monkeypatch.setattr(ReleaseGrid, "release", release)
    monkeypatch.setattr(DescentToDeleteClassifier, "_is_on_grid", True)
    bound, excess = lattice_attack({**METHODS[name], **LOUD[name]}, 80, released)
    assert bound > EPSILON
    assert excess > 0.2
