"""The theorems and settings of Descent-to-Delete (Neel, Roth and Sharifi-Malvajerdi 2021).

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
from letheon.linear._problem import EPSILON, Loss, row_norms

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
        """Logarithm of gamma, the factor by which one step shrinks the distance to the optimum."""
        gain = self.rate * self.strong
        if gain < 0.5:
            return log1p(-gain)
        gap = self.smooth - self.strong
        return log(gap / (self.smooth + self.strong)) if gap > 0.0 else -inf

    def shrinkage_after(self, n_steps: float) -> float:
        """Return gamma^n, the factor by which n steps shrink the distance to the optimum."""
        return exp(n_steps * self.log_contraction) if n_steps else 1.0

    def stationary_distance(self, n_steps: int, shift: float) -> float:
        """Return the distance s that n steps restore after a shift: ``s = gamma^n (s + shift)``."""
        return self.shrinkage_after(n_steps) * shift / -expm1(n_steps * self.log_contraction)

    @property
    def rate(self) -> float:
        """Length of a gradient step, 2 / (M + mu)."""
        return 2.0 / (self.smooth + self.strong)

    def row_shift(self, n_rows: int) -> float:
        """Return how far one row can move the optimum of at least n / 2 rows: 4L / (mu n)."""
        return 2.0 * optimum_sensitivity(self.slope, self.strong, n_rows)

    def bound_rounding(self, n_rows: int) -> float:
        """Return a bound on the distance that the rounding errors of all steps add.

        If the error of one step is e, the error of any number of steps is at most e / (1 - gamma).
        With u = 2^-53, the error of the mean gradient of n rows is at most u ((d + 4) c2 R^2 B + (n
        + 4 + 16 K) L), for scores, sums and slopes; see `FitProblem.gradient_errors`. The error of
        a step is 6 u L times its length, and that of its addition and of the projection is (d K +
        12) u B.
        """
        sums = (n_rows + 16 * self.n_outputs + 10) * self.slope
        lengths = (self.n_columns + self.n_entries + 16) * self.smooth * self.radius
        return 1.02 * _UNIT * (sums + lengths) / self.strong


def _round_up_steps(steps: float) -> int:
    return max(1, ceil(steps - _WHOLE))


def optimum_sensitivity(slope: float, strong: float, n_rows: int) -> float:
    """Return how far the optimum can move if one of n rows changes: 2L / (mu n)."""
    return 2.0 * slope / (strong * n_rows)


def nominal_rows(n_rows: int) -> int:
    """Return N, the power of two with N/2 <= n < N; plans are made for N rows.

    In the theorems, noise and regulariser depend on the number of rows n of the first fit and are
    valid down to n/2 rows. A fresh fit on fewer rows would have other values, which would reveal
    the removals. Values that depend on N instead of n stay the same until N changes.
    """
    return 1 << n_rows.bit_length()


def build_geometry(
    loss: Loss, row_norm: float, strong: float, radius: float, n_columns: int = 1
) -> Geometry:
    """Return constants that hold for all rows of norm at most `row_norm`."""
    up = 1 + 1e-12  # bounds must not be rounded down
    slope = (loss.slope_bound * row_norm + strong * radius) * up
    smooth = (strong + loss.curvature_bound * row_norm * row_norm) * up
    shape = Geometry(slope, smooth, strong, radius, n_columns, loss.n_outputs)
    if not shape.log_contraction < _LEAST_GAIN:
        raise ValueError(
            f"gradient steps do not converge with a regulariser of {strong:.3g} per row and "
            f"row_norm={row_norm:.3g}; increase l2 or use a smaller row_norm"
        )
    return shape


def natural_radius(loss: Loss, strong: float) -> float:
    """Return the radius of a ball that contains the optimum for any rows.

    It follows from (mu / 2)|W*|^2 <= mean loss at W = 0.
    """
    at_zero = loss.value_at(np.zeros((1, loss.n_outputs)), np.zeros(1, np.int64))
    return sqrt(2.0 * at_zero / strong)


def top_of_gram(X: Any) -> float:
    """Return an upper bound on the largest eigenvalue of X'X, rounding included.

    With many columns, the bound is the trace, which is always valid, unlike the result of a random
    search.
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
    """Return the number of steps that shrink a distance of at most `far` to at most `near`."""
    if far <= near:
        return 0
    # The target may underflow; the smallest normal float is still below the rounding of W.
    near = max(near, float_info.min)
    return _round_up_steps((log(far) - log(near)) / -shape.log_contraction)


def same_shrinkage(n_steps: int, planned: Geometry, actual: Geometry) -> int:
    """Return how many steps with `actual` constants shrink as much as `n_steps` with `planned`."""
    if actual.log_contraction == planned.log_contraction:
        return n_steps
    if actual.log_contraction == -inf:
        return 1
    return _round_up_steps(n_steps * planned.log_contraction / actual.log_contraction)


def max_hidden_distance(sigma: float, epsilon: float, delta: float, size: int) -> float:
    """Return the largest distance s to a common optimum that the noise hides.

    Releases of two vectors of `size` parameters with distance 2s are (epsilon, delta)-close.
    """
    return (
        ReleaseGrid.of_sigma(sigma).max_hidden_distance(epsilon, delta, size) / 2
        if sigma > 0.0
        else inf
    )


def sigma_for(distance: float, epsilon: float, delta: float, size: int) -> float:
    """Return a scale of noise that hides `distance` in the sense of `max_hidden_distance`.

    It is computed from noise of scale 1, whose grid is the coarsest in relation to the noise (2^20
    steps), so it is valid for any grid.
    """
    hidden = max_hidden_distance(1.0, epsilon, delta, size)
    if not hidden > 0.0:
        raise ValueError(
            f"epsilon={epsilon:g} and delta={delta:g} are too small for {size} parameters: "
            "rounding the parameters to the grid already costs more; increase epsilon or delta"
        )
    return distance / hidden * (1 + 1e-9)


def longest_noise(sigma: float, size: int, log_inverse: float, radius: float) -> float:
    """Return a bound on the norm of the noise that holds except with probability e^-log_inverse.

    The drawn integers Z of scale s satisfy E exp(t |Z|^2) <= (1 - 2 t s^2)^(-size/2), as normal
    numbers do, so the tail bound of normal numbers holds (Laurent and Massart 2000). Rounding adds
    half a step per parameter, and clipping adds the part of `radius` beyond the grid.
    """
    grid = ReleaseGrid.of_sigma(sigma)
    length = sqrt(size + 2.0 * sqrt(size * log_inverse) + 2.0 * log_inverse)
    cut = grid.clipping_distance(radius * (1 + 1e-9))
    return (grid.sigma * length + grid.step * sqrt(size) / 2 + cut) * (1 + 1e-12)


def theorem_sigma(geometry: Geometry, distance: float, epsilon: float, delta: float) -> float:
    """Return the scale of noise ``sqrt(2) s / q`` of the theorems, or more for the grid."""
    printed = sqrt(2.0) * distance / zcdp_gap(epsilon, delta)
    return max(printed, sigma_for(distance, epsilon, delta, geometry.n_entries))


@dataclass(frozen=True)
class DescentPlan(ABC):
    """Numbers of steps, and the noise that hides the remaining distance to the optimum.

    `geometry` contains constants that hold for all allowed rows, `sigma` is the scale of the noise,
    `distance` bounds the distance to the optimum after a fit or a request, and `left` is the same
    bound without rounding errors.
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
        """Number of steps of a fit."""

    @abstractmethod
    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:
        """Return the number of steps of a request that changes `n_changed` rows.

        Earlier requests changed `n_before` rows. `actual` contains constants of the actual rows; a
        smoother loss saves steps.
        """


@dataclass(frozen=True)
class SecretPlan(DescentPlan):
    """Plan by Theorem 3.1: a request starts from the parameters without noise and makes I steps.

    `left` is the solution of ``s = gamma^I (s + shift)``, and `distance` adds rounding errors.
    Theorem 3.4 is the same with a stronger regulariser.
    """

    @classmethod
    def for_geometry(
        cls, geometry: Geometry, n_rows: int, iterations: int, epsilon: float, delta: float
    ) -> "SecretPlan":
        """Return the plan with noise of scale ``4 sqrt(2) L gamma^I / (mu n (1 - gamma^I) q)``.

        An allowance for rounding errors and for the grid of the noise is added.
        """
        left = geometry.stationary_distance(iterations, geometry.row_shift(n_rows))
        distance = left * _SLACK + geometry.bound_rounding(n_rows)
        sigma = theorem_sigma(geometry, distance, epsilon, delta)
        return cls(geometry, sigma, distance, left, iterations, n_rows)

    @property
    def training_steps(self) -> int:
        """Number of steps of a fit: I + log(D mu n / 2L) / log(1 / gamma), with D = 2B."""
        start = 2.0 * self.geometry.radius
        moved = optimum_sensitivity(self.geometry.slope, self.geometry.strong, self.n_rows)
        return self.iterations + steps_between(start, moved, self.geometry)

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:  # noqa: ARG002
        """Return I for one row; for m rows, the T with ``gamma^T (s + m shift) <= s``."""
        shift = self.geometry.row_shift(self.n_rows)
        # s = gamma^I (s + shift), so this is 0 for one row.
        more = steps_between(self.left + n_changed * shift, self.left + shift, self.geometry)
        return same_shrinkage(self.iterations + more, self.geometry, actual)


@dataclass(frozen=True)
class PublishedPlan(DescentPlan):
    """Plan by Theorem 3.2: a request starts from the published parameters; nothing else is kept.

    The steps must also undo the last noise. Half of delta covers the event that some earlier noise
    was longer than its bound. The other half hides a shift of 2s, with s from
    `max_hidden_distance`. A request makes as many steps as the theorem requires or, if this is
    more, the T steps with ``gamma^T (s + r + shift) <= s``, where r is the bound on the last noise.
    These numbers depend on how many rows were changed, but not on the rows.
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
        """Return the plan with the noise of the theorem, or with the given `sigma`."""
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
        """Number of steps of a fit.

        It is I + log(D mu n / 2L) / log(1 / gamma) or, if larger, the number of steps that shrink a
        distance of D to s.
        """
        start = 2.0 * self.geometry.radius
        moved = optimum_sensitivity(self.geometry.slope, self.geometry.strong, self.n_rows)
        theorem = self.iterations + steps_between(start, moved, self.geometry)
        return max(theorem, steps_between(start, self.left, self.geometry))

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:
        """Return the number of steps of a request.

        It is I + log log(4 d i / delta) / log(1 / gamma) or, if larger, the number of steps that
        undo the bound on the last noise.
        """
        shape, last = self.geometry, n_before + n_changed
        factor = log(4.0 * shape.n_entries * last) - log(self.delta)
        theorem = self.iterations + steps_between(max(factor, 1.0), 1.0, shape)
        shift = self.left + self.longest_noise(n_before) + n_changed * shape.row_shift(self.n_rows)
        steps = max(theorem, steps_between(shift, self.left, shape))
        return same_shrinkage(steps, shape, actual)

    def longest_noise(self, n_before: int) -> float:
        """Return r, a bound on the norm of the noise after k = n_before changes.

        The noise is longer with probability delta / (2 (k + 1)(k + 2)), which is delta / 2 in total
        over all k.
        """
        log_inverse = log(2.0 * (n_before + 1.0) * (n_before + 2.0)) - log(self.delta)
        shape = self.geometry
        return longest_noise(self.sigma, shape.n_entries, log_inverse, shape.radius)


def theorem_sigma_published(
    geometry: Geometry, n_rows: int, iterations: int, epsilon: float, delta: float
) -> float:
    """Return the scale of the noise in Theorem 3.2.

    It is ``8 L gamma^I / (mu n (1 - gamma^I) (sqrt(a + 3 eps) - sqrt(a + 2 eps)))`` with ``a = 2
    log(2 / delta)``.
    """
    a = 2.0 * log(2.0 / delta)
    gap = sqrt(a + 3.0 * epsilon) - sqrt(a + 2.0 * epsilon)
    return 2.0 * geometry.stationary_distance(iterations, geometry.row_shift(n_rows)) / gap


@dataclass(frozen=True)
class WeakPlan(DescentPlan):
    """Plan by Theorem 3.5: the i-th change makes i^2 I steps.

    After T steps at most ``sqrt(M / (mu T))`` of the distance remains, and no step increases it. So
    with ``k = sqrt(M / (mu I))`` the distance is at most ``(k / i)(s_0 + i shift) <= 2 k shift``.
    """

    @classmethod
    def for_geometry(
        cls, geometry: Geometry, n_rows: int, iterations: int, epsilon: float, delta: float
    ) -> "WeakPlan":
        """Return the plan with noise of scale ``8 sqrt(2) L sqrt(M) / (mu^(3/2) n sqrt(I) q)``.

        An allowance for rounding errors and for the grid of the noise is added.
        """
        kappa = sqrt(geometry.smooth / (geometry.strong * iterations))
        left = 2.0 * kappa * geometry.row_shift(n_rows)
        distance = left * _SLACK + geometry.bound_rounding(n_rows)
        sigma = theorem_sigma(geometry, distance, epsilon, delta)
        return cls(geometry, sigma, distance, left, iterations, n_rows)

    @property
    def training_steps(self) -> int:
        """Number of steps that shrink D = 2B to the smaller of `left` and half a row shift."""
        near = min(self.left, self.geometry.row_shift(self.n_rows) / 2)
        return steps_between(2.0 * self.geometry.radius, near, self.geometry)

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:
        """Return i^2 I steps, for i rows changed since the fit; fewer if the loss is smoother."""
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

    The first term is the loss caused by noise, the second is the bias of the regulariser.

    For Theorem 3.4 it is of order (sqrt(d) / (eps n I))^(2/5), with ``sigma = 2 sqrt(2) L M / (mu^2
    n I q)``, the noise of Theorem 3.1 for small I mu / M. For Theorem 3.5 (`is_weak`) it is of
    order (sqrt(d) / (eps n sqrt(I)))^(1/2), with the noise of `WeakPlan`.
    """
    slope, smooth = loss.slope_bound * row_norm, loss.curvature_bound * row_norm * row_norm
    if is_weak:
        noise = slope * smooth / (radius * n_rows * gap)
        return float((384.0 * n_entries * noise * noise / iterations) ** 0.25)
    noise = slope * smooth / (radius * n_rows * iterations * gap)
    return float((32.0 * smooth * n_entries * noise * noise) ** 0.2)


@dataclass(frozen=True)
class DistributedPlan(DescentPlan):
    """Plan by Algorithms 5 and 6: the mean of K parts of b rows each is published.

    The rows are drawn with replacement. In the formula of the noise, ``J = I n^((4 - 3 xi) / 2)``
    replaces I, and q contains log(2 / delta). The mean of the distances of the parts is tracked,
    not only bounded in probability; see `Parts`.
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
        """Return the plan for one copy of the sample."""
        per_part = _round_up_steps(iterations * n_rows ** ((4.0 - 3.0 * xi) / 2.0))
        left = geometry.stationary_distance(per_part, geometry.row_shift(n_rows))
        # The mean of the parts' parameters is a sum of as many terms as a part has rows.
        mean_error = 2.0 * _UNIT * (part_rows + 2) * geometry.radius
        distance = left * _SLACK + geometry.bound_rounding(part_rows) + mean_error
        sigma = theorem_sigma(geometry, distance, epsilon, delta / 2)
        return cls(geometry, sigma, distance, left, per_part, n_rows, part_rows, delta)

    @property
    def training_steps(self) -> int:
        """Number of steps of a fit, for each part.

        It is J + log((D mu / L) B (1 + 10 log(2 / delta))) / log(1 / gamma) for B = b^2 drawn rows
        or, if larger, the number of steps that shrink a distance of D to `left`.
        """
        shape = self.geometry
        start = 2.0 * shape.radius * shape.strong / shape.slope * self.part_rows**2
        start *= 1.0 + 10.0 * log(2.0 / self.delta)
        theorem = self.iterations + steps_between(start, 1.0, shape)
        return max(theorem, steps_between(2.0 * shape.radius, self.left, shape))

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:  # noqa: ARG002
        """Return the number of steps of each part that a request changes.

        It is J + log(1 + 10 i log(2 i / delta)) / log(1 / gamma) for i rows changed since the fit.
        """
        last = n_before + n_changed
        more = 1.0 + 10.0 * last * log(2.0 * last / self.delta)
        return self.iterations + steps_between(more, 1.0, self.geometry)

    def part_shift(self, n_changed: int) -> float:
        """Return how far an exchange of c rows can move the optimum of a part: 2 c L / (mu b)."""
        return 2.0 * n_changed * self.geometry.slope / (self.geometry.strong * self.part_rows)
