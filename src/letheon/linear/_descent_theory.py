"""Settings and formulas of Descent-to-Delete (Neel, Roth and Sharifi-Malvajerdi 2021).

Every row's loss, regulariser included, is mu-strongly convex, M-smooth and L-Lipschitz on the ball
|W| <= B. A step of length ``2 / (M + mu)`` on the mean of n rows shrinks the distance to its
optimum by ``gamma = (M - mu) / (M + mu)``, and one row moves the optimum by at most
``2L / (mu n)``. The n of the theorems is replaced by N, the power of two with N/2 <= n < N, so that
a fresh fit has the same constants; one row then moves the optimum by at most
``shift = 4L / (mu N)``.

The guarantee relies on one fact: the model that forgot and a fresh fit are both within a
`distance` s of the same optimum. Noise on the grid then hides a shift of 2s.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import ceil, exp, expm1, inf, log, log1p, sqrt
from sys import float_info
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from letheon.linear._calibrate import ReleaseGrid, zcdp_gap
from letheon.linear._model import NORM_ROUNDING
from letheon.linear._problem import EPSILON, FitProblem, Loss, row_norms

# Rounding of a ratio of logarithms must not add a step.
_WHOLE = 1e-9
# More than the growth of a distance by steps omitted for that reason, and by rounding of formulas.
_SLACK = 1 + 1e-6
_UNIT = 2.0**-53
_GRAM_ROWS = 65_536
# With more columns than this no eigenvalue is computed.
_GRAM_COLUMNS = 2_000
# With a smaller gain per step, in logarithms, no feasible number of steps is enough.
_LEAST_GAIN = -1e-12


@dataclass(frozen=True)
class Geometry:
    """Constants of the loss of one row on the ball |W| <= radius, regulariser included."""

    slope: float
    smooth: float
    strong: float
    radius: float
    n_columns: int = 1
    n_outputs: int = 1

    @property
    def n_entries(self) -> int:
        """Number of parameters."""
        return self.n_columns * self.n_outputs

    @property
    def log_contraction(self) -> float:
        """log(gamma); one step shrinks the distance to the optimum by the factor gamma."""
        gain = self.rate * self.strong
        if gain < 0.5:
            return log1p(-gain)
        gap = self.smooth - self.strong
        return log(gap / (self.smooth + self.strong)) if gap > 0.0 else -inf

    def shrinkage_after(self, n_steps: float) -> float:
        """Return gamma^n: the factor by which n steps shrink the distance."""
        return exp(n_steps * self.log_contraction) if n_steps else 1.0

    def stationary_distance(self, n_steps: int, shift: float) -> float:
        """Return the s with ``s = gamma^n (s + shift)``."""
        return self.shrinkage_after(n_steps) * shift / -expm1(n_steps * self.log_contraction)

    @property
    def rate(self) -> float:
        """Length 2 / (M + mu) of a step."""
        return 2.0 / (self.smooth + self.strong)

    def row_shift(self, n_rows: int) -> float:
        """Return how far one row moves the optimum of at least n_rows / 2 rows: 4L / (mu n)."""
        return 2.0 * optimum_sensitivity(self.slope, self.strong, n_rows)

    def bound_rounding(self, n_rows: int) -> float:
        """Bound the distance that rounding errors of any number of steps add.

        If one step errs by e, all steps together err by e / (1 - gamma). With u = 2^-53 the mean
        gradient of n rows is off by at most u ((d + 4) c2 R^2 B + (n + 4 + 16 K) L): scores, sums
        and slopes, see `FitProblem.gradient_errors`. The step is off by 6 u L times its length; its
        addition and the projection are off by (d K + 12) u B.
        """
        sums = (n_rows + 16 * self.n_outputs + 10) * self.slope
        lengths = (self.n_columns + self.n_entries + 16) * self.smooth * self.radius
        return 1.02 * _UNIT * (sums + lengths) / self.strong


def _round_up_steps(steps: float) -> int:
    return max(1, ceil(steps - _WHOLE))


def optimum_sensitivity(slope: float, strong: float, n_rows: int) -> float:
    """Return the distance of the optima of two sets that differ by one of n rows: 2L / (mu n)."""
    return 2.0 * slope / (strong * n_rows)


def nominal_rows(n_rows: int) -> int:
    """Return N, the power of two with N/2 <= n < N, for which plans are made.

    In the theorems, noise and regulariser depend on the n of the first fit and are valid down to
    n/2 rows. A fresh fit on fewer rows would have other values, which would reveal the removals.
    Values for N stay the same until N changes.
    """
    return 1 << n_rows.bit_length()


def build_geometry(
    loss: Loss, row_norm: float, strong: float, radius: float, n_columns: int = 1
) -> Geometry:
    """Return the constants for rows of norm at most `row_norm`, independent of the rows."""
    up = 1 + 1e-12  # bounds must not be rounded down
    slope = (loss.slope_bound * row_norm + strong * radius) * up
    smooth = (strong + loss.curvature_bound * row_norm * row_norm) * up
    shape = Geometry(slope, smooth, strong, radius, n_columns, loss.n_outputs)
    if not shape.log_contraction < _LEAST_GAIN:
        raise ValueError(
            f"gradient steps do not converge with a regulariser of {strong:.3g} per row and "
            f"row_norm={row_norm:.3g}; raise l2 or lower row_norm"
        )
    return shape


def natural_radius(loss: Loss, strong: float) -> float:
    """Return a radius that contains every optimum: (mu / 2)|W*|^2 <= mean loss at W = 0."""
    at_zero = loss.value_at(np.zeros((1, loss.n_outputs)), np.zeros(1, np.int64))
    return sqrt(2.0 * at_zero / strong)


def top_of_gram(X: Any) -> float:
    """Return an upper bound on the largest eigenvalue of X'X, rounding included.

    With many columns it is the trace, which is certain, unlike a random search.
    """
    n, d = int(X.shape[0]), int(X.shape[1])
    trace = float((row_norms(X) ** 2).sum()) * (1 + 1e-9)
    if d > _GRAM_COLUMNS:
        return trace
    total = np.zeros((d, d))
    for begin in range(0, n, _GRAM_ROWS):
        rows = X[begin : begin + _GRAM_ROWS].astype(np.float64)
        product = rows.T @ rows
        total += product.toarray() if sp.issparse(product) else product
    top = float(scipy.linalg.eigvalsh(total, subset_by_index=[d - 1, d - 1])[0])
    return min(top * (1 + 1e-9) + (n + d) * EPSILON * trace, trace)


def steps_between(far: float, near: float, shape: Geometry) -> int:
    """Return the steps that shrink a distance of at most `far` to `near`."""
    if far <= near:
        return 0
    # The target may underflow; the smallest normal float is still below the rounding of W.
    near = max(near, float_info.min)
    return _round_up_steps((log(far) - log(near)) / -shape.log_contraction)


def same_shrinkage(n_steps: int, planned: Geometry, actual: Geometry) -> int:
    """Return how many steps on `actual` shrink distances as much as `n_steps` on `planned`."""
    if actual.log_contraction == planned.log_contraction:
        return n_steps
    if actual.log_contraction == -inf:
        return 1
    return _round_up_steps(n_steps * planned.log_contraction / actual.log_contraction)


def max_hidden_distance(sigma: float, epsilon: float, delta: float, size: int) -> float:
    """Return s: releases of parameters 2s apart are (epsilon, delta)-close; `size` entries."""
    return (
        ReleaseGrid.of_sigma(sigma).max_hidden_distance(epsilon, delta, size) / 2
        if sigma > 0.0
        else inf
    )


def sigma_for(distance: float, epsilon: float, delta: float, size: int) -> float:
    """Return the noise that hides `distance` by `max_hidden_distance`, on any grid.

    Noise of scale 1 has the coarsest relative grid: 2^20 steps.
    """
    hidden = max_hidden_distance(1.0, epsilon, delta, size)
    if not hidden > 0.0:
        raise ValueError(
            f"epsilon={epsilon:g} and delta={delta:g} are too small for {size} parameters: their "
            "rounding to the grid already costs more; raise epsilon or delta"
        )
    return distance / hidden * (1 + 1e-9)


def longest_noise(sigma: float, size: int, log_inverse: float, radius: float) -> float:
    """Return a bound on the noise of a release, except with probability e^-log_inverse.

    With Z the integers of scale s that are drawn, E exp(t |Z|^2) <= (1 - 2 t s^2)^(-size/2) as for
    normal numbers, so their tail bound holds (Laurent and Massart 2000). Rounding adds half a step
    per entry, and clipping to the grid adds the part of `radius` beyond it.
    """
    grid = ReleaseGrid.of_sigma(sigma)
    length = sqrt(size + 2.0 * sqrt(size * log_inverse) + 2.0 * log_inverse)
    cut = grid.clipping_distance(radius * (1 + 1e-9))
    return (grid.sigma * length + grid.step * sqrt(size) / 2 + cut) * (1 + 1e-12)


def theorem_sigma(geometry: Geometry, distance: float, epsilon: float, delta: float) -> float:
    """Return the theorems' noise ``sqrt(2) s / q``, or more if the grid requires it."""
    printed = sqrt(2.0) * distance / zcdp_gap(epsilon, delta)
    return max(printed, sigma_for(distance, epsilon, delta, geometry.n_entries))


@dataclass(frozen=True)
class DescentPlan(ABC):
    """Number of steps of requests, and the noise that hides their distance to the optimum.

    `geometry` has constants that hold for all allowed rows, `sigma` is the scale of the noise,
    `distance` a bound on the distance to the optimum after a fit or a request; `left` is that
    distance without rounding.
    """

    geometry: Geometry
    sigma: float
    distance: float
    left: float
    iterations: int
    n_rows: int

    @property
    @abstractmethod
    def training_steps(self) -> int:
        """Steps of a fit."""

    @abstractmethod
    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:
        """Return the steps of a request that changes `n_changed` rows after `n_before` others.

        `actual` are constants of the actual rows; a smoother loss saves steps.
        """


@dataclass(frozen=True)
class SecretPlan(DescentPlan):
    """Theorem 3.1: a request starts from the parameters without noise, and makes I steps.

    `left` is the fixed point of ``s = gamma^I (s + shift)``, and `distance` adds rounding. Theorem
    3.4 is the same with a stronger regulariser.
    """

    @classmethod
    def for_geometry(
        cls, geometry: Geometry, n_rows: int, iterations: int, epsilon: float, delta: float
    ) -> "SecretPlan":
        """Return the plan whose noise is ``4 sqrt(2) L gamma^I / (mu n (1 - gamma^I) q)``."""
        left = geometry.stationary_distance(iterations, geometry.row_shift(n_rows))
        distance = left * _SLACK + geometry.bound_rounding(n_rows)
        sigma = theorem_sigma(geometry, distance, epsilon, delta)
        return cls(geometry, sigma, distance, left, iterations, n_rows)

    @property
    def training_steps(self) -> int:
        """Steps of a fit: I + log(D mu n / 2L) / log(1 / gamma), with D = 2B."""
        start = 2.0 * self.geometry.radius
        moved = optimum_sensitivity(self.geometry.slope, self.geometry.strong, self.n_rows)
        return self.iterations + steps_between(start, moved, self.geometry)

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:  # noqa: ARG002
        """Return I for one row; for more rows, T with ``gamma^T (s + m shift) <= s``."""
        shift = self.geometry.row_shift(self.n_rows)
        # s = gamma^I (s + shift), so this is 0 for one row.
        more = steps_between(self.left + n_changed * shift, self.left + shift, self.geometry)
        return same_shrinkage(self.iterations + more, self.geometry, actual)


@dataclass(frozen=True)
class PublishedPlan(DescentPlan):
    """Theorem 3.2: a request starts from the published parameters, and nothing else is kept.

    The steps must also undo the last noise. Half of delta covers the event that some earlier noise
    was longer than its bound. The other half hides 2s, s as in `max_hidden_distance`. A request
    makes the theorem's steps or, if more, enough for ``gamma^T (s + r + shift) <= s`` with r the
    bound on the last noise. None of this depends on rows, only on how many were changed.
    """

    delta: float

    @classmethod
    def for_geometry(
        cls,
        geometry: Geometry,
        n_rows: int,
        iterations: int,
        epsilon: float,
        delta: float,
        sigma: float | None = None,
    ) -> "PublishedPlan":
        """Return the plan with the theorem's noise, or with the given `sigma`."""
        rounding, claim = geometry.bound_rounding(n_rows), (epsilon, delta / 2, geometry.n_entries)
        if sigma is None:
            theorem = theorem_sigma_published(geometry, n_rows, iterations, epsilon, delta)
            sigma = max(theorem, sigma_for(2.0 * rounding, *claim))
        hidden = max_hidden_distance(sigma, *claim)
        left = max(hidden * (1 - 1e-9) - rounding, hidden / 2) / _SLACK
        distance = left * _SLACK + rounding
        return cls(geometry, sigma, distance, left, iterations, n_rows, delta)

    @property
    def training_steps(self) -> int:
        """Steps of a fit: I + log(D mu n / 2L) / log(1 / gamma), or those from D to s if more."""
        start = 2.0 * self.geometry.radius
        moved = optimum_sensitivity(self.geometry.slope, self.geometry.strong, self.n_rows)
        theorem = self.iterations + steps_between(start, moved, self.geometry)
        return max(theorem, steps_between(start, self.left, self.geometry))

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:
        """Return I + log log(4 d i / delta) / log(1 / gamma), or the steps for the noise bound."""
        shape, last = self.geometry, n_before + n_changed
        factor = log(4.0 * shape.n_entries * last) - log(self.delta)
        theorem = self.iterations + steps_between(max(factor, 1.0), 1.0, shape)
        shift = self.left + self.longest_noise(n_before) + n_changed * shape.row_shift(self.n_rows)
        steps = max(theorem, steps_between(shift, self.left, shape))
        return same_shrinkage(steps, shape, actual)

    def longest_noise(self, n_before: int) -> float:
        """Return r: longer noise after k = n_before changes has a small probability.

        The probability is delta / (2 (k + 1)(k + 2)), delta / 2 in total over all k.
        """
        log_inverse = log(2.0 * (n_before + 1.0) * (n_before + 2.0)) - log(self.delta)
        shape = self.geometry
        return longest_noise(self.sigma, shape.n_entries, log_inverse, shape.radius)


def theorem_sigma_published(
    geometry: Geometry, n_rows: int, iterations: int, epsilon: float, delta: float
) -> float:
    """Return the noise of Theorem 3.2, with a = 2 log(2 / delta).

    8 L gamma^I / (mu n (1 - gamma^I) (sqrt(a + 3 eps) - sqrt(a + 2 eps))).
    """
    a = 2.0 * log(2.0 / delta)
    gap = sqrt(a + 3.0 * epsilon) - sqrt(a + 2.0 * epsilon)
    return 2.0 * geometry.stationary_distance(iterations, geometry.row_shift(n_rows)) / gap


@dataclass(frozen=True)
class WeakPlan(DescentPlan):
    """Theorem 3.5: the i-th change makes i^2 I steps.

    After T steps at most ``sqrt(M / (mu T))`` of the distance remains, and no step increases it,
    so with ``k = sqrt(M / (mu I))`` it is at most ``(k / i)(s_0 + i shift) <= 2 k shift``.
    """

    @classmethod
    def for_geometry(
        cls, geometry: Geometry, n_rows: int, iterations: int, epsilon: float, delta: float
    ) -> "WeakPlan":
        """Return the plan whose noise is ``8 sqrt(2) L sqrt(M) / (mu^(3/2) n sqrt(I) q)``."""
        kappa = sqrt(geometry.smooth / (geometry.strong * iterations))
        left = 2.0 * kappa * geometry.row_shift(n_rows)
        distance = left * _SLACK + geometry.bound_rounding(n_rows)
        sigma = theorem_sigma(geometry, distance, epsilon, delta)
        return cls(geometry, sigma, distance, left, iterations, n_rows)

    @property
    def training_steps(self) -> int:
        """Steps that shrink D = 2B to the smaller of `left` and half a row shift."""
        near = min(self.left, self.geometry.row_shift(self.n_rows) / 2)
        return steps_between(2.0 * self.geometry.radius, near, self.geometry)

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:
        """Return i^2 I, with i rows changed since the fit; fewer if the loss is smoother."""
        last = n_before + n_changed
        return _round_up_steps(last**2 * self.iterations * actual.smooth / self.geometry.smooth)


def choose_regulariser(
    loss: Loss,
    row_norm: float,
    radius: float,
    n_rows: int,
    n_entries: int,
    iterations: int,
    gap: float,
    *,
    is_weak: bool = False,
) -> float:
    """Return the extra regulariser mu that minimises ``(M/2) d sigma^2 + (mu/2) B^2``.

    Theorem 3.4, of order (sqrt(d) / (eps n I))^(2/5): ``sigma = 2 sqrt(2) L M / (mu^2 n I q)``,
    the noise of Theorem 3.1 for small I mu / M. Theorem 3.5 (`is_weak`), of order
    (sqrt(d) / (eps n sqrt(I)))^(1/2): with the noise of `WeakPlan`.
    """
    slope, smooth = loss.slope_bound * row_norm, loss.curvature_bound * row_norm * row_norm
    if is_weak:
        noise = slope * smooth / (radius * n_rows * gap)
        return float((384.0 * n_entries * noise * noise / iterations) ** 0.25)
    noise = slope * smooth / (radius * n_rows * iterations * gap)
    return float((32.0 * smooth * n_entries * noise * noise) ** 0.2)


@dataclass(frozen=True)
class DistributedPlan(DescentPlan):
    """Algorithms 5 and 6: K parts of b rows each, drawn with replacement; their mean is published.

    ``J = I n^((4 - 3 xi) / 2)`` takes the place of I in the noise, with log(2 / delta) in q. The
    mean of the distances of the parts is tracked, not only bounded in probability; see `Parts`.
    """

    part_rows: int
    delta: float

    @classmethod
    def for_geometry(
        cls,
        geometry: Geometry,
        n_rows: int,
        part_rows: int,
        xi: float,
        iterations: int,
        epsilon: float,
        delta: float,
    ) -> "DistributedPlan":
        """Return the plan of one copy."""
        per_part = _round_up_steps(iterations * n_rows ** ((4.0 - 3.0 * xi) / 2.0))
        left = geometry.stationary_distance(per_part, geometry.row_shift(n_rows))
        # The mean of the parts' parameters is a sum of as many terms as a part has rows.
        mean_error = 2.0 * _UNIT * (part_rows + 2) * geometry.radius
        distance = left * _SLACK + geometry.bound_rounding(part_rows) + mean_error
        sigma = theorem_sigma(geometry, distance, epsilon, delta / 2)
        return cls(geometry, sigma, distance, left, per_part, n_rows, part_rows, delta)

    @property
    def training_steps(self) -> int:
        """J + log((D mu / L) B (1 + 10 log(2 / delta))) / log(1 / gamma), B = b^2 rows drawn."""
        shape = self.geometry
        start = 2.0 * shape.radius * shape.strong / shape.slope * self.part_rows**2
        start *= 1.0 + 10.0 * log(2.0 / self.delta)
        theorem = self.iterations + steps_between(start, 1.0, shape)
        return max(theorem, steps_between(2.0 * shape.radius, self.left, shape))

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:  # noqa: ARG002
        """Return J + log(1 + 10 i log(2 i / delta)) / log(1 / gamma), for each changed part."""
        last = n_before + n_changed
        more = 1.0 + 10.0 * last * log(2.0 * last / self.delta)
        return self.iterations + steps_between(more, 1.0, self.geometry)

    def part_shift(self, n_changed: int) -> float:
        """Return how far an exchange of c rows moves the optimum of a part: 2 c L / (mu b)."""
        return 2.0 * n_changed * self.geometry.slope / (self.geometry.strong * self.part_rows)


REGULARIZED = ("regularized-strong", "regularized-weak")

# Default noise of the residual stop: one step per request is then usually enough.
_SIGMA = 0.01


def check_combination(model: Any) -> None:
    """Raise for settings that contradict each other."""
    by_theorem, regularized = model.stop == "theorem", model.variant in REGULARIZED
    wrong = {
        f"variant={model.variant!r} needs state='secret': its requests continue from parameters "
        "without noise": model.variant != "basic" and model.state != "secret",
        f"variant={model.variant!r} needs stop='theorem', which sets the regulariser": regularized
        and not by_theorem,
        f"regulariser={model.regulariser!r} has no effect with variant={model.variant!r}": (
            model.regulariser is not None and not regularized
        ),
        f"n_copies={model.n_copies!r} needs variant='distributed'": (
            model.n_copies != 1 and model.variant != "distributed"
        ),
        f"radius={model.radius!r} has no effect with stop='residual'": (
            model.radius is not None and not by_theorem
        ),
        "stop='theorem' needs row_norm with rows='clip', 'normalize' or 'refuse': the noise "
        "depends on the bound": by_theorem and model.rows == "keep",
        f"reg={model.reg!r} needs variant='basic' and stop='residual': the theorems and the parts "
        "regularise per row": model.reg != "per_sample"
        and (by_theorem or model.variant != "basic"),
        "stop='theorem' needs delta above 0: its noise is Gaussian": by_theorem
        and model.delta == 0,
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(text)


def plan_descent(model: Any, problem: FitProblem) -> DescentPlan | None:
    """Return the plan of a fit on these rows; None for the residual stop."""
    if model.stop == "residual":
        return None
    loss, (d, K), n = problem.loss, problem.shape, nominal_rows(problem.n_remaining)
    row_norm = float(model.row_norm) * (1 + NORM_ROUNDING)
    radius = float(model.radius or natural_radius(loss, model.l2))
    many, (epsilon, delta) = int(model.iterations), privacy_per_copy(model)
    extra = model.regulariser or 0.0
    if model.variant in REGULARIZED and model.regulariser is None:
        gap, is_weak = zcdp_gap(epsilon, delta), model.variant == "regularized-weak"
        numbers = (row_norm, radius, n, d * K, model.iterations, gap)
        extra = choose_regulariser(loss, *numbers, is_weak=is_weak)
    shape = build_geometry(loss, row_norm, float(model.l2) + float(extra), radius, d)
    if model.variant == "distributed":
        size = count_parts(model, problem.n_remaining)
        return DistributedPlan.for_geometry(shape, n, size, model.xi, many, epsilon, delta)
    if model.state == "published":
        sigma = float(model.sigma) if model.sigma else None
        return PublishedPlan.for_geometry(shape, n, many, epsilon, delta, sigma)
    kind = WeakPlan if model.variant == "regularized-weak" else SecretPlan
    return kind.for_geometry(shape, n, many, epsilon, delta)


def part_size(n_rows: int, xi: float) -> int:
    """Return the number of parts, and of rows in each: floor(n^(xi / 2))."""
    return max(1, int(n_rows ** (xi / 2.0) + 1e-9))


def count_parts(model: Any, n_rows: int) -> int:
    """Return the number of parts, and of rows in each, for N/2 rows."""
    return part_size(nominal_rows(n_rows) // 2, model.xi)


def has_outgrown(model: Any, n_before: int, n_after: int) -> bool:
    """Return whether a fresh fit on the new number of rows would have another plan or parts."""
    depends = model.stop == "theorem" or model.variant == "distributed"
    return depends and nominal_rows(n_before) != nominal_rows(n_after)


def choose_noise_scale(model: Any, plan: DescentPlan | None) -> float:
    """Return the scale of the noise: `sigma` of the model or, if it is None, of the plan."""
    if model.sigma is not None:
        return float(model.sigma)
    return _SIGMA if plan is None else plan.sigma


def privacy_per_copy(model: Any) -> tuple[float, float]:
    """Return epsilon and delta of one copy; the guarantee covers all copies together."""
    return float(model.epsilon) / model.n_copies, float(model.delta) / model.n_copies


def distance_limit(model: Any, sigma: float, size: int) -> float:
    """Return the distance to the optimum that noise of this scale hides, for `size` parameters.

    With stop="theorem" and a published state, half of delta covers earlier noise that was too long.
    """
    epsilon, delta = privacy_per_copy(model)
    if model.stop == "theorem" and model.state == "published":
        delta = delta / 2
    return max_hidden_distance(sigma, epsilon, delta, size)
