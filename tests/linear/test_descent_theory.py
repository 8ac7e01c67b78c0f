"""The formulas of Descent-to-Delete, against their own statements and against problems solved."""

from dataclasses import replace
from functools import partial
from math import log, sqrt
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from letheon.linear._calibrate import ReleaseGrid, gaussian_mu
from letheon.linear._descent_steps import descend_projected, project_to_ball
from letheon.linear._descent_theory import (
    DistributedPlan,
    Geometry,
    PublishedPlan,
    SecretPlan,
    WeakPlan,
    build_geometry,
    choose_regulariser,
    longest_noise,
    max_hidden_distance,
    natural_radius,
    nominal_rows,
    same_shrinkage,
    steps_between,
    theorem_sigma_published,
    top_of_gram,
)
from letheon.linear._problem import FitProblem, Logistic, Loss, Softmax
from letheon.linear._solve import minimise_by_newton
from letheon.noise import NoiseSource
from tests.sharded.people import examples

Floats = NDArray[np.float64]


def published_least_iterations(shape: Geometry, epsilon: float, delta: float) -> int:
    """Least I for which Theorem 3.2 is stated."""
    a, gain = 2.0 * log(2.0 / delta), shape.rate * shape.strong
    gap = sqrt(a + epsilon) - sqrt(a)
    return steps_between(sqrt(2.0 * shape.n_entries) / gain, gap, shape)


LOSSES: list[Loss] = [Logistic(1), Logistic(3), Softmax(3)]
NAMES = ["binary", "one-vs-rest", "softmax"]
SEEDS = st.integers(0, 10**6)
L2S = st.sampled_from([1e-3, 1e-2, 0.3])
SHAPE = Geometry(slope=1.3, smooth=0.3, strong=0.05, radius=4.0)
GAMMA = 0.25 / 0.35


def gamma_of(shape: Geometry) -> float:
    return (shape.smooth - shape.strong) / (shape.smooth + shape.strong)


def shape_with(gamma: float) -> Geometry:
    """Return constants of which a step leaves this share."""
    return Geometry(1.0, (1 + gamma) / (1 - gamma), 1.0, 1.0)


def make_problem(seed: int, loss: Loss, l2: float) -> FitProblem:
    """Rows of norm at most 1, some of them close to it."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(3, 40)), int(rng.integers(1, 5))
    X = rng.normal(size=(n, d))
    X *= rng.uniform(0.2, 1.0, size=(n, 1)) / np.linalg.norm(X, axis=1, keepdims=True)
    return FitProblem(X, rng.integers(0, max(loss.n_outputs, 2), n), loss, n, l2)


def optimum(problem: FitProblem) -> Floats:
    return minimise_by_newton(problem, np.zeros(problem.shape), 1e-12 * problem.n_remaining, 200).W


def shape_of(problem: FitProblem, *, data_dependent: bool) -> Geometry:
    loss, l2 = problem.loss, problem.l2
    shape = build_geometry(loss, 1.0, l2, natural_radius(loss, l2))
    if not data_dependent:
        return shape
    top = np.linalg.eigvalsh(problem.X.T @ problem.X)[-1]
    return Geometry(
        shape.slope, l2 + loss.curvature_bound * top / problem.n_remaining, l2, shape.radius
    )


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@pytest.mark.parametrize("data_dependent", [False, True])
@examples(50)
@given(seed=SEEDS, l2=L2S)
def test_a_step_contracts_by_gamma(loss: Loss, data_dependent: bool, seed: int, l2: float) -> None:
    problem = make_problem(seed, loss, l2)
    shape, best = shape_of(problem, data_dependent=data_dependent), optimum(problem)
    start = project_to_ball(
        np.random.default_rng(seed).normal(size=problem.shape) * 5, shape.radius
    )
    for n_steps in (1, 2, 7):
        left = np.linalg.norm(descend_projected(problem, start, n_steps, shape) - best)
        bound = gamma_of(shape) ** n_steps * np.linalg.norm(start - best)
        assert left <= bound * (1 + 1e-9) + 1e-11


@examples(20)
@given(seed=SEEDS)
def test_a_projected_step_contracts_towards_the_best_point_of_the_ball(seed: int) -> None:
    problem = make_problem(seed, Logistic(1), 0.1)
    shape = build_geometry(problem.loss, 1.0, problem.l2, 0.3)
    best = descend_projected(problem, np.zeros(problem.shape), 300, shape)
    start = project_to_ball(np.random.default_rng(seed).normal(size=problem.shape), shape.radius)
    left = np.linalg.norm(descend_projected(problem, start, 3, shape) - best)
    assert left <= gamma_of(shape) ** 3 * np.linalg.norm(start - best) + 1e-9


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@examples(50)
@given(seed=SEEDS, l2=L2S)
def test_no_optimum_leaves_the_natural_radius(loss: Loss, seed: int, l2: float) -> None:
    problem = make_problem(seed, loss, l2)
    assert np.linalg.norm(optimum(problem)) <= natural_radius(loss, l2)


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@examples(50)
@given(seed=SEEDS, l2=L2S, n_gone=st.integers(1, 2))
def test_rows_move_the_optimum_no_further_than_jolts(
    loss: Loss, seed: int, l2: float, n_gone: int
) -> None:
    problem = make_problem(seed, loss, l2)
    shape = build_geometry(loss, 1.0, l2, natural_radius(loss, l2))
    gone = np.arange(n_gone)
    after = problem.without(gone)
    moved = np.linalg.norm(optimum(problem) - optimum(after))
    assert moved <= n_gone * 2 * shape.slope / (l2 * after.n_remaining)
    assert moved <= n_gone * shape.row_shift(nominal_rows(after.n_remaining))


@given(mu=st.floats(1e-4, 1.0), ratio=st.floats(1.0, 1e4), n_steps=st.integers(1, 10**5))
def test_linear_rate_implies_the_sublinear_one(mu: float, ratio: float, n_steps: int) -> None:
    shape = Geometry(1.0, ratio * mu, mu, 1.0)
    assert gamma_of(shape) ** n_steps <= sqrt(shape.smooth / (mu * n_steps))


@given(n=st.integers(1, 10**9))
def test_plans_are_for_the_next_power_of_two(n: int) -> None:
    nominal = nominal_rows(n)
    assert nominal / 2 <= n < nominal
    assert bin(nominal).count("1") == 1


@given(far=st.floats(1e-9, 1e9), near=st.floats(1e-9, 1e9), gamma=st.floats(0.01, 0.999))
def test_steps_between_are_enough_and_not_too_many(far: float, near: float, gamma: float) -> None:
    n_steps = steps_between(far, near, shape_with(gamma))
    assert far * gamma**n_steps <= near * (1 + 1e-6)
    assert n_steps <= 1 or far * gamma ** (n_steps - 1) > near * (1 - 1e-6)


@given(steps=st.integers(1, 10**4), a=st.floats(0.01, 0.999), b=st.floats(0.01, 0.999))
def test_same_shrinkage(steps: int, a: float, b: float) -> None:
    converted = same_shrinkage(steps, shape_with(a), shape_with(b))
    assert converted * log(b) <= steps * log(a) + 1e-6
    assert same_shrinkage(steps, shape_with(a), shape_with(a)) == steps


def test_no_steps_are_wasted_on_a_sphere() -> None:
    """With M = mu one step is at the optimum."""
    assert steps_between(1.0, 1e-9, shape_with(0.0)) == 1
    assert same_shrinkage(7, shape_with(0.5), shape_with(0.0)) == 1
    assert shape_with(0.0).stationary_distance(3, 1.0) == 0.0


def test_steps_that_never_arrive_are_refused() -> None:
    for strong, row_norm in ((1e-320, 1.0), (1e-14, 1.0), (1.0, 1e200)):
        with pytest.raises(ValueError, match="do not converge"):
            build_geometry(Logistic(1), row_norm, strong, 1.0)


@given(ratio=st.floats(1e-14, 1.0), n_steps=st.integers(1, 10**9))
def test_shares_are_exact_for_badly_scaled_problems(ratio: float, n_steps: int) -> None:
    with mpmath.workdps(50):
        gamma = (1 - mpmath.mpf(ratio)) / (1 + mpmath.mpf(ratio))
        power = gamma**n_steps
        shape = Geometry(1.0, 1.0, ratio, 1.0)
        assert abs(shape.shrinkage_after(n_steps) - power) <= mpmath.mpf(1e-12) * power + 1e-300
        exact = power / (1 - power)
        assert (
            abs(shape.stationary_distance(n_steps, 1.0) - exact)
            <= mpmath.mpf(1e-9) * exact + 1e-300
        )


def zcdp(epsilon: float, delta: float) -> float:
    return sqrt(log(1 / delta) + epsilon) - sqrt(log(1 / delta))


def test_noise_of_theorem_3_1_as_printed() -> None:
    n, many, epsilon, delta = 512, 30, 0.7, 1e-3
    plan, power = SecretPlan.for_geometry(SHAPE, n, many, epsilon, delta), GAMMA**many
    printed = 4 * sqrt(2) * SHAPE.slope * power
    printed /= SHAPE.strong * n * (1 - power) * zcdp(epsilon, delta)
    assert plan.sigma == pytest.approx(printed, rel=1e-5)
    printed_steps = many + log(2 * SHAPE.radius * SHAPE.strong * n / (2 * SHAPE.slope)) / -log(
        GAMMA
    )
    assert plan.training_steps == np.ceil(printed_steps)
    assert [plan.update_steps(i, 1, SHAPE) for i in (0, 5, 400)] == [many] * 3


def test_distance_of_theorem_3_1_is_a_fixed_point_that_sequences_stay_below() -> None:
    plan, power = SecretPlan.for_geometry(SHAPE, 512, 30, 1.0, 1e-4), GAMMA**30
    jolt = SHAPE.row_shift(512)
    assert plan.left == pytest.approx(power * (plan.left + jolt), rel=1e-12)
    distance = 2 * SHAPE.radius * GAMMA**plan.training_steps
    for n_changed in (1, 1, 5, 1, 200, 1):
        steps = plan.update_steps(0, n_changed, SHAPE)
        distance = GAMMA**steps * (distance + n_changed * jolt)
        assert distance <= plan.left * (1 + 1e-9)


def test_zcdp_noise_hides_the_distance_of_its_theorem() -> None:
    for plan in (
        SecretPlan.for_geometry(SHAPE, 512, 30, 1.0, 1e-4),
        WeakPlan.for_geometry(SHAPE, 512, 30, 1.0, 1e-4),
    ):
        assert plan.distance <= max_hidden_distance(plan.sigma, 1.0, 1e-4, 1)


def test_a_batch_needs_few_more_steps_than_a_row() -> None:
    plan = SecretPlan.for_geometry(SHAPE, 512, 30, 1.0, 1e-4)
    hundred = plan.update_steps(0, 100, SHAPE)
    assert 30 < hundred <= 30 + np.ceil(log(100) / -log(GAMMA))


def test_smoother_rows_save_steps() -> None:
    smoother = Geometry(SHAPE.slope, SHAPE.smooth / 3, SHAPE.strong, SHAPE.radius)
    for plan in (
        SecretPlan.for_geometry(SHAPE, 512, 30, 1.0, 1e-4),
        WeakPlan.for_geometry(SHAPE, 512, 30, 1.0, 1e-4),
    ):
        assert plan.update_steps(2, 1, smoother) < plan.update_steps(2, 1, SHAPE)


def test_noise_of_theorem_3_2_as_printed() -> None:
    n, many, epsilon, delta = 512, 30, 0.7, 1e-3
    power, a = GAMMA**many, 2 * log(2 / delta)
    printed = 8 * SHAPE.slope * power
    printed /= SHAPE.strong * n * (1 - power) * (sqrt(a + 3 * epsilon) - sqrt(a + 2 * epsilon))
    assert theorem_sigma_published(SHAPE, n, many, epsilon, delta) == pytest.approx(
        printed, rel=1e-12
    )


@given(
    strong=st.sampled_from([0.5, 0.05, 1e-3]),
    n_entries=st.sampled_from([1, 2, 20, 785]),
    epsilon=st.sampled_from([0.1, 1.0, 5.0]),
    delta=st.sampled_from([1e-2, 1e-4, 1e-8]),
    times=st.integers(1, 5),
    i=st.integers(1, 10**5),
)
def test_steps_of_theorem_3_2_are_enough_where_it_is_stated(
    strong: float, n_entries: int, epsilon: float, delta: float, times: int, i: int
) -> None:
    """The bound that the guarantee rests on asks for one step more than the theorem at most."""
    shape = Geometry(1.3, strong + 0.25, strong, 4.0, n_columns=n_entries)
    many = times * published_least_iterations(shape, epsilon, delta)
    plan = PublishedPlan.for_geometry(shape, 1024, many, epsilon, delta)
    printed = many + log(log(4 * n_entries * i / delta)) / -log(gamma_of(shape))
    assert np.ceil(printed - 1e-9) <= plan.update_steps(i - 1, 1, shape) <= np.ceil(printed) + 1


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("many", [1, 30])
def test_published_distances_exceed_their_bound_hardly_ever(p: int, many: int) -> None:
    """By simulation: noise always points away, every request moves the optimum as far as it can."""
    delta, n_runs, n_requests = 0.05, 4000, 12
    plan = PublishedPlan.for_geometry(replace(SHAPE, n_columns=p), 512, many, 1.0, delta)
    source, jolt = NoiseSource(p), SHAPE.row_shift(512)
    first = 2 * SHAPE.radius * GAMMA**plan.training_steps
    distance, exceeded = np.full(n_runs, first), np.zeros(n_runs, bool)
    for i in range(n_requests):
        noise = np.linalg.norm(
            ReleaseGrid.of_sigma(plan.sigma).release(np.full((n_runs, p), 0.3), source) - 0.3,
            axis=1,
        )
        steps = plan.update_steps(i, 1, SHAPE)
        distance = GAMMA**steps * (distance + noise + jolt)
        exceeded |= distance > plan.left
    assert exceeded.mean() <= delta / 2
    assert plan.left <= plan.sigma * gaussian_mu(1.0, delta / 2) / 2 * (1 + 1e-5)


def test_noise_exceeds_its_bounds_with_half_of_delta_over_all_requests() -> None:
    delta = 0.02
    plan = PublishedPlan.for_geometry(replace(SHAPE, n_columns=3), 512, 30, 1.0, delta)
    shares = [delta / (2 * (k + 1) * (k + 2)) for k in range(1000)]
    assert sum(shares) <= delta / 2
    for k, share in enumerate(shares):
        least = longest_noise(plan.sigma, plan.geometry.n_entries, -log(share), SHAPE.radius)
        assert plan.longest_noise(k) >= least * (1 - 1e-12)


def test_given_noise_decides_the_steps_from_the_published_state() -> None:
    loud, quiet = (
        PublishedPlan.for_geometry(replace(SHAPE, n_columns=3), 512, 1, 1.0, 1e-4, sigma=sigma)
        for sigma in (10.0, 1e-3)
    )
    assert quiet.update_steps(0, 1, SHAPE) > loud.update_steps(0, 1, SHAPE)
    assert quiet.update_steps(10**6, 1, SHAPE) <= quiet.update_steps(0, 1, SHAPE) + 20


def test_weak_plan_as_derived() -> None:
    n, many = 512, 30
    plan = WeakPlan.for_geometry(SHAPE, n, many, 0.7, 1e-3)
    printed = 8 * sqrt(2) * SHAPE.slope * sqrt(SHAPE.smooth)
    printed /= SHAPE.strong**1.5 * n * sqrt(many) * zcdp(0.7, 1e-3)
    assert plan.sigma == pytest.approx(printed, rel=1e-5)
    assert [plan.update_steps(i - 1, 1, SHAPE) for i in (1, 2, 9)] == [30, 120, 2430]


@pytest.mark.parametrize("many", [1, 4, 100])
def test_weak_distances_stay_below_their_bound(many: int) -> None:
    """By the sublinear rate alone, every request as unkind as it may be."""
    plan, jolt = WeakPlan.for_geometry(SHAPE, 512, many, 1.0, 1e-4), SHAPE.row_shift(512)
    limit = plan.distance - SHAPE.bound_rounding(512)
    before = distance = 2 * SHAPE.radius * GAMMA**plan.training_steps
    for i in range(1, 200):
        steps = plan.update_steps(i - 1, 1, SHAPE)
        distance = min(1.0, sqrt(SHAPE.smooth / (SHAPE.strong * steps))) * (before + jolt)
        # Without the rate only this is known: no step makes the distance larger.
        before += jolt
        assert distance <= limit * (1 + 1e-9)


@pytest.mark.parametrize(
    ("regulariser", "noise"),
    [
        (
            choose_regulariser,
            lambda mu, L, M, n, many, q: 2 * sqrt(2) * L * M / (mu**2 * n * many * q),
        ),
        (
            partial(choose_regulariser, is_weak=True),
            lambda mu, L, M, n, many, q: 8 * sqrt(2) * L * sqrt(M) / (mu**1.5 * n * sqrt(many) * q),
        ),
    ],
)
def test_extra_regulariser_balances_noise_and_bias(regulariser: Any, noise: Any) -> None:
    loss, R, B, n, d, many, q = Logistic(1), 1.5, 3.0, 4096, 12, 25, 0.2
    L, M = loss.slope_bound * R, loss.curvature_bound * R**2

    def error(log_mu: float) -> float:
        mu = float(np.exp(log_mu))
        return float(M / 2 * d * noise(mu, L, M, n, many, q) ** 2 + mu / 2 * B**2)

    best = minimize_scalar(error, bounds=(-15, 5), method="bounded", options={"xatol": 1e-9})
    value = regulariser(loss, R, B, n, d, many, q)
    assert log(value) == pytest.approx(best.x, abs=1e-4)


@pytest.mark.parametrize(
    ("regulariser", "of_n", "of_iterations"),
    [(choose_regulariser, 2 / 5, 2 / 5), (partial(choose_regulariser, is_weak=True), 1 / 2, 1 / 4)],
)
def test_rates_of_the_extra_regulariser(
    regulariser: Any, of_n: float, of_iterations: float
) -> None:
    loss, base = Logistic(1), (1.0, 3.0, 1000, 12, 25, 0.2)
    first = regulariser(loss, *base)
    assert first / regulariser(loss, 1.0, 3.0, 8000, 12, 25, 0.2) == pytest.approx(8**of_n)
    assert first / regulariser(loss, 1.0, 3.0, 1000, 12, 200, 0.2) == pytest.approx(
        8**of_iterations
    )


def test_distributed_plan_as_corrected() -> None:
    n, size, xi, epsilon, delta = 1024, 38, 1.1, 1.0, 1e-3
    plan = DistributedPlan.for_geometry(SHAPE, n, size, xi, 3, epsilon, delta)
    J = int(np.ceil(3 * n ** ((4 - 3 * xi) / 2)))
    power = GAMMA**J
    gap = sqrt(log(2 / delta) + epsilon) - sqrt(log(2 / delta))
    printed = 4 * sqrt(2) * SHAPE.slope * power / (SHAPE.strong * n * (1 - power) * gap)
    assert plan.sigma == pytest.approx(printed, rel=1e-5)
    more = log(1 + 10 * 7 * log(2 * 7 / delta)) / -log(GAMMA)
    assert plan.update_steps(6, 1, SHAPE) == J + np.ceil(more)
    assert GAMMA**plan.training_steps * 2 * SHAPE.radius <= plan.left


def test_rounding_keeps_noise_from_vanishing() -> None:
    for plan in (
        SecretPlan.for_geometry(SHAPE, 512, 10**6, 1.0, 1e-4),
        PublishedPlan.for_geometry(SHAPE, 512, 10**6, 1.0, 1e-4),
        DistributedPlan.for_geometry(SHAPE, 512, 22, 1.0, 10**6, 1.0, 1e-4),
    ):
        assert plan.sigma > 1e-14
        assert 0 < plan.distance <= max_hidden_distance(plan.sigma, 1.0, 5e-5, 1)


@pytest.mark.parametrize("d", [3, 120])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_top_of_gram_is_an_upper_bound(d: int, dtype: Any) -> None:
    X = np.random.default_rng(d).normal(size=(300, d)).astype(dtype)
    exact = np.linalg.norm(X.astype(float), 2) ** 2
    assert exact <= top_of_gram(X) <= 1.001 * exact
    assert exact <= top_of_gram(np.hstack([X, np.zeros((300, 2000), dtype)])) <= 300 * exact
