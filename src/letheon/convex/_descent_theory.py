"""Formulas of Descent-to-Delete (Neel, Roth and Sharifi-Malvajerdi 2021): steps and noise.

Every row's loss, regulariser included, is mu-strongly convex, M-smooth and L-Lipschitz on the ball
|W| <= B. A step of length ``2 / (M + mu)`` on the mean of n rows shrinks the distance to its
optimum by ``gamma = (M - mu) / (M + mu)``, and one row moves the optimum by at most
``2L / (mu n)``. For the n of the theorems stands N, the power of two with N/2 <= n < N, so that a
fresh fit has the same constants; one row then moves the optimum by ``jolt = 4L / (mu N)`` at most.

What a certificate rests on is that both the model that forgot and a fresh one are within a
`distance` s of the same optimum. Noise then hides a shift of 2s.
"""

from dataclasses import dataclass
from math import ceil, inf, log, sqrt
from sys import float_info
from typing import Protocol

import numpy as np
from scipy import special

from letheon.convex._calibrate import gaussian_mu, zcdp_gap
from letheon.convex._losses import Loss

# Rounding of a ratio of logarithms must not cost a step.
_WHOLE = 1e-9
_UNIT = 2.0**-52


@dataclass(frozen=True)
class Geometry:
    """Constants of the loss of one row on the ball |W| <= radius, regulariser included."""

    slope: float
    smooth: float
    strong: float
    radius: float
    n_columns: int = 1

    @property
    def contraction(self) -> float:
        """gamma: the distance to the optimum after one step, as a share of that before."""
        return (self.smooth - self.strong) / (self.smooth + self.strong)

    @property
    def rate(self) -> float:
        """Length 2 / (M + mu) of a step."""
        return 2.0 / (self.smooth + self.strong)

    def jolt(self, n_rows: int) -> float:
        """How far one row moves the optimum, with n_rows / 2 rows or more: 4L / (mu n)."""
        return 2.0 * sensitivity(self.slope, self.strong, n_rows)

    def rounding(self, n_rows: int) -> float:
        """How far rounding errors of gradients and steps carry: where all steps have none left.

        A score is a sum of d terms, so it errs by d R B units and the slope of a row by c2 times
        that; a sum of n gradients errs by n L units, and a step by B. gamma adds them up.
        """
        sums = (n_rows + self.n_columns) * self.slope
        scores = self.smooth * self.radius * self.n_columns
        return _UNIT * (sums + scores) / self.strong


def sensitivity(slope: float, strong: float, n_rows: int) -> float:
    """Distance of the optima of two sets that differ by one of n >= 2 rows: 2L / (mu n)."""
    return 2.0 * slope / (strong * n_rows)


def nominal_rows(n_rows: int) -> int:
    """Return N, the power of two with N/2 <= n < N: plans are made for it.

    The theorems fix noise and regulariser by the n of the first fit and hold down to n/2 rows. A
    fresh fit on fewer rows would have others, and show it. These are the same until N changes.
    """
    return 1 << n_rows.bit_length()


def geometry(
    loss: Loss, row_norm: float, strong: float, radius: float, n_columns: int = 1
) -> Geometry:
    """Return the constants for rows of norm at most `row_norm`, known before any row is seen."""
    slope = loss.slope_bound * row_norm + strong * radius
    smooth = strong + loss.curvature_bound * row_norm**2
    return Geometry(slope, smooth, strong, radius, n_columns)


def natural_radius(loss: Loss, strong: float) -> float:
    """Return a radius that no optimum exceeds: (mu / 2)|W*|^2 <= mean loss at W = 0."""
    at_zero = loss.value(np.zeros((1, loss.n_outputs)), np.zeros(1, np.int64))
    return sqrt(2.0 * at_zero / strong)


def steps_between(far: float, near: float, contraction: float) -> int:
    """Return the steps that bring a distance of at most `far` down to `near`."""
    if far <= near:
        return 0
    # A wanted distance may be too small for a float; no rounding of W is as small as the least one.
    near = max(near, float_info.min)
    return 1 if contraction == 0.0 else _up(log(far / near) / -log(contraction))


def same_shrinkage(n_steps: int, contraction: float, actual: float) -> int:
    """Return how many steps that contract by `actual` do as much as `n_steps` by `contraction`."""
    if contraction in (actual, 0.0):
        return n_steps
    return 1 if actual == 0.0 else _up(n_steps * log(contraction) / log(actual))


class Plan(Protocol):
    """How many steps requests take, and the noise that hides what they leave."""

    @property
    def geometry(self) -> Geometry:
        """Constants that hold for all rows that are allowed."""

    @property
    def sigma(self) -> float:
        """Scale of the noise."""

    @property
    def distance(self) -> float:
        """Bound of the distance to the optimum after a fit or a request."""

    @property
    def training_steps(self) -> int:
        """Steps of a fit."""

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:
        """Steps of a request that changes `n_changed` rows after `n_before` others were changed.

        `actual` are constants that hold for the rows as they are; smoother ones save steps.
        """


@dataclass(frozen=True)
class SecretPlan:
    """Theorem 3.1: a request starts from the parameters without noise, and makes I steps.

    `left` is the fixed point of ``s = gamma^I (s + jolt)``, and `distance` has rounding on top.
    Theorem 3.4 is the same with a stronger regulariser.
    """

    geometry: Geometry
    sigma: float
    distance: float
    left: float
    iterations: int
    n_rows: int

    @classmethod
    def of(
        cls, geometry: Geometry, n_rows: int, iterations: int, epsilon: float, delta: float
    ) -> "SecretPlan":
        """Return the plan whose noise is ``4 sqrt(2) L gamma^I / (mu n (1 - gamma^I) q)``."""
        shrinkage = geometry.contraction**iterations
        left = shrinkage * geometry.jolt(n_rows) / (1.0 - shrinkage)
        distance = left + geometry.rounding(n_rows)
        sigma = sqrt(2.0) * distance / zcdp_gap(epsilon, delta)
        return cls(geometry, sigma, distance, left, iterations, n_rows)

    @property
    def training_steps(self) -> int:
        """I + log(D mu n / 2L) / log(1 / gamma), D = 2B."""
        start = 2.0 * self.geometry.radius
        moved = sensitivity(self.geometry.slope, self.geometry.strong, self.n_rows)
        return self.iterations + steps_between(start, moved, self.geometry.contraction)

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:  # noqa: ARG002
        """I for one row; for more, until ``gamma^T (s + m jolt) <= s``."""
        jolt = self.geometry.jolt(self.n_rows)
        # s = gamma^I (s + jolt), so this is 0 for one row.
        more = steps_between(
            self.left + n_changed * jolt, self.left + jolt, self.geometry.contraction
        )
        steps = self.iterations + more
        return same_shrinkage(steps, self.geometry.contraction, actual.contraction)


@dataclass(frozen=True)
class PublishedPlan:
    """Theorem 3.2: a request starts from the published parameters, and nothing else is kept.

    The steps must also undo the last noise. Half of delta pays for the event that some noise of the
    past was longer than its bound. The other half hides 2s, ``s = sigma mu(eps, delta / 2) / 2``.
    A request makes the theorem's steps or, if more, those after which
    ``gamma^T (s + sigma r + jolt) <= s`` with r the bound of the last noise.
    """

    geometry: Geometry
    sigma: float
    distance: float
    left: float
    iterations: int
    n_rows: int
    n_entries: int
    delta: float

    @classmethod
    def of(
        cls,
        geometry: Geometry,
        n_rows: int,
        n_entries: int,
        iterations: int,
        epsilon: float,
        delta: float,
        sigma: float | None = None,
    ) -> "PublishedPlan":
        """Return the plan with the theorem's noise, or with noise that is given."""
        rounding, shift = geometry.rounding(n_rows), gaussian_mu(epsilon, delta / 2) / 2
        if sigma is None:
            theorem = published_scale(geometry, n_rows, iterations, epsilon, delta)
            sigma = max(theorem, 2.0 * rounding / shift)
        left = max(sigma * shift - rounding, sigma * shift / 2)
        return cls(geometry, sigma, left + rounding, left, iterations, n_rows, n_entries, delta)

    @property
    def training_steps(self) -> int:
        """I + log(D mu n / 2L) / log(1 / gamma), or what brings D to s."""
        start, gamma = 2.0 * self.geometry.radius, self.geometry.contraction
        moved = sensitivity(self.geometry.slope, self.geometry.strong, self.n_rows)
        theorem = self.iterations + steps_between(start, moved, gamma)
        return max(theorem, steps_between(start, self.left, gamma))

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:
        """I + log log(4 d i / delta) / log(1 / gamma), or what bounded noise needs."""
        gamma, last = self.geometry.contraction, n_before + n_changed
        theorem = self.iterations + steps_between(
            max(log(4.0 * self.n_entries * last / self.delta), 1.0), 1.0, gamma
        )
        noise = self.sigma * self.longest_noise(n_before)
        shift = self.left + noise + n_changed * self.geometry.jolt(self.n_rows)
        steps = max(theorem, steps_between(shift, self.left, gamma))
        return same_shrinkage(steps, gamma, actual.contraction)

    def longest_noise(self, n_before: int) -> float:
        """Return r: longer noise, in units of sigma, after n_before changes has little probability.

        That is delta / (2 (k + 1)(k + 2)) after k changes, delta / 2 in sum over all k.
        """
        tail = self.delta / (2.0 * (n_before + 1.0) * (n_before + 2.0))
        return sqrt(2.0 * float(special.gammainccinv(self.n_entries / 2.0, tail)))


def published_scale(
    geometry: Geometry, n_rows: int, iterations: int, epsilon: float, delta: float
) -> float:
    """Noise of Theorem 3.2: 8 L gamma^I / (mu n (1 - gamma^I) (sqrt(a + 3 eps) - sqrt(a + 2 eps))).

    a = 2 log(2 / delta).
    """
    shrinkage, a = geometry.contraction**iterations, 2.0 * log(2.0 / delta)
    gap = sqrt(a + 3.0 * epsilon) - sqrt(a + 2.0 * epsilon)
    moved = sensitivity(geometry.slope, geometry.strong, n_rows)
    return 4.0 * moved * shrinkage / ((1.0 - shrinkage) * gap)


def published_least_iterations(
    geometry: Geometry, n_entries: int, epsilon: float, delta: float
) -> int:
    """Least I for which Theorem 3.2 is stated."""
    a, gamma = 2.0 * log(2.0 / delta), geometry.contraction
    gap = sqrt(a + epsilon) - sqrt(a)
    return steps_between(sqrt(2.0 * n_entries) / (1.0 - gamma), gap, gamma)


@dataclass(frozen=True)
class WeakPlan:
    """Theorem 3.5: the i-th change makes i^2 I steps.

    After T steps at most ``sqrt(M / (mu T))`` of the distance is left, and no step makes it larger,
    so with ``k = sqrt(M / (mu I))`` it is at most ``(k / i)(s_0 + i jolt) <= 2 k jolt``.
    """

    geometry: Geometry
    sigma: float
    distance: float
    iterations: int
    n_rows: int

    @classmethod
    def of(
        cls, geometry: Geometry, n_rows: int, iterations: int, epsilon: float, delta: float
    ) -> "WeakPlan":
        """Return the plan whose noise is ``8 sqrt(2) L sqrt(M) / (mu^(3/2) n sqrt(I) q)``."""
        kappa = sqrt(geometry.smooth / (geometry.strong * iterations))
        distance = 2.0 * kappa * geometry.jolt(n_rows) + geometry.rounding(n_rows)
        return cls(
            geometry, sqrt(2.0) * distance / zcdp_gap(epsilon, delta), distance, iterations, n_rows
        )

    @property
    def training_steps(self) -> int:
        """Steps that bring D = 2B to the smaller of `distance` and half of a jolt."""
        jolt = self.geometry.jolt(self.n_rows)
        near = min(self.distance - self.geometry.rounding(self.n_rows), jolt / 2)
        return steps_between(2.0 * self.geometry.radius, near, self.geometry.contraction)

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:
        """i^2 I, i the number of rows changed since the fit; fewer where the loss is smoother."""
        last = n_before + n_changed
        return _up(last**2 * self.iterations * actual.smooth / self.geometry.smooth)


def strong_regulariser(
    loss: Loss,
    row_norm: float,
    radius: float,
    n_rows: int,
    n_entries: int,
    iterations: int,
    gap: float,
) -> float:
    """Extra regulariser of Theorem 3.4, of order (sqrt(d) / (eps n I))^(2/5).

    The least of ``(M/2) d sigma^2 + (mu/2) B^2`` over mu, ``sigma = 2 sqrt(2) L M / (mu^2 n I q)``:
    that is the noise of Theorem 3.1 for small I mu / M.
    """
    slope, smooth = loss.slope_bound * row_norm, loss.curvature_bound * row_norm**2
    noise = slope * smooth / (radius * n_rows * iterations * gap)
    return float((32.0 * smooth * n_entries * noise**2) ** 0.2)


def weak_regulariser(
    loss: Loss,
    row_norm: float,
    radius: float,
    n_rows: int,
    n_entries: int,
    iterations: int,
    gap: float,
) -> float:
    """Extra regulariser of Theorem 3.5, of order (sqrt(d) / (eps n sqrt(I)))^(1/2).

    The least of ``(M/2) d sigma^2 + (mu/2) B^2`` over mu, with the noise of `WeakPlan`.
    """
    slope, smooth = loss.slope_bound * row_norm, loss.curvature_bound * row_norm**2
    noise = slope * smooth / (radius * n_rows * gap)
    return float((384.0 * n_entries * noise**2 / iterations) ** 0.25)


@dataclass(frozen=True)
class DistributedPlan:
    """Algorithms 5 and 6: K parts of b rows each, drawn with replacement; their mean is published.

    ``J = I n^((4 - 3 xi) / 2)`` takes the place of I in the noise, with log(2 / delta) in q. The
    mean of the distances of the parts is tracked, not only bounded in probability; see `Parts`.
    """

    geometry: Geometry
    sigma: float
    distance: float
    left: float
    iterations: int
    n_rows: int
    part_rows: int
    delta: float

    @classmethod
    def of(
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
        per_part = _up(iterations * n_rows ** ((4.0 - 3.0 * xi) / 2.0))
        shrinkage = geometry.contraction**per_part
        left = shrinkage * geometry.jolt(n_rows) / (1.0 - shrinkage)
        distance = left + geometry.rounding(part_rows)
        sigma = sqrt(2.0) * distance / zcdp_gap(epsilon, delta / 2)
        return cls(geometry, sigma, distance, left, per_part, n_rows, part_rows, delta)

    @property
    def training_steps(self) -> int:
        """J + log((D mu / L) B (1 + 10 log(2 / delta))) / log(1 / gamma), B = b^2 rows drawn."""
        shape = self.geometry
        start = 2.0 * shape.radius * shape.strong / shape.slope * self.part_rows**2
        start *= 1.0 + 10.0 * log(2.0 / self.delta)
        theorem = self.iterations + steps_between(start, 1.0, shape.contraction)
        return max(theorem, steps_between(2.0 * shape.radius, self.left, shape.contraction))

    def update_steps(self, n_before: int, n_changed: int, actual: Geometry) -> int:  # noqa: ARG002
        """J + log(1 + 10 i log(2 i / delta)) / log(1 / gamma), for every part that changed."""
        last = n_before + n_changed
        more = 1.0 + 10.0 * last * log(2.0 * last / self.delta)
        return self.iterations + steps_between(more, 1.0, self.geometry.contraction)

    def part_jolt(self, n_changed: int) -> float:
        """How far the optimum of a part moves if some of its rows are exchanged: 2 c L / (mu b)."""
        return 2.0 * n_changed * self.geometry.slope / (self.geometry.strong * self.part_rows)


def hidden_distance(sigma: float, epsilon: float, delta: float) -> float:
    """Largest s such that noise of scale sigma hides a shift of 2s; sigma eps / 2 for delta = 0."""
    if sigma == 0.0:
        return inf
    return sigma * (gaussian_mu(epsilon, delta) if delta > 0.0 else epsilon) / 2


def _up(steps: float) -> int:
    return max(1, ceil(steps - _WHOLE))
