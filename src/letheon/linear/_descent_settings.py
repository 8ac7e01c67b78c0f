"""Settings of Descent-to-Delete: what goes together, and the plan that they ask for."""

from typing import Any

from letheon.linear._base import NOISE_SCALE
from letheon.linear._calibrate import zcdp_gap
from letheon.linear._descent_theory import (
    DistributedPlan,
    Geometry,
    Plan,
    PublishedPlan,
    SecretPlan,
    WeakPlan,
    geometry,
    hidden_distance,
    natural_radius,
    nominal_rows,
    strong_regulariser,
    weak_regulariser,
)
from letheon.linear._design import NORM_ROUNDING
from letheon.linear._distributed import part_size
from letheon.linear._problem import Problem
from letheon.validation import POSITIVE, Either, Interval, OneOf, OrNone, Rules, Whole

REGULARIZED = ("regularized-strong", "regularized-weak")

# Noise of the residual stop where nobody says: one step per request is then usually enough.
_SIGMA = 0.01
PARAMETER_RULES: Rules = {
    "sigma": OrNone(NOISE_SCALE),
    # Parts of a smaller delta might not be above 0, and 0 stands for another law of the noise.
    "delta": Either(OneOf((0,), "0"), Interval(1e-300, 1, closed="left")),
    "variant": OneOf(("basic", "regularized-strong", "regularized-weak", "distributed")),
    "state": OneOf(("secret", "published")),
    "stop": OneOf(("residual", "theorem")),
    "xi": Interval(1, 4 / 3, expected="a number from 1 to 4/3"),
    **dict.fromkeys(("iterations", "n_copies"), Whole(1)),
    **dict.fromkeys(("regulariser", "radius"), OrNone(POSITIVE)),
}


def check_combination(model: Any) -> None:
    """Raise for settings that contradict each other."""
    by_theorem, regularized = model.stop == "theorem", model.variant in REGULARIZED
    wrong = {
        f"variant={model.variant!r} needs state='secret': its requests go on from parameters "
        "without noise": model.variant != "basic" and model.state != "secret",
        f"variant={model.variant!r} needs stop='theorem', which says what to add": regularized
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
        "stop='theorem' needs a declared row_norm, and rows='clip', 'normalize' or 'refuse': the "
        "noise depends on it": by_theorem and model.rows == "keep",
        f"reg={model.reg!r} needs variant='basic' and stop='residual': the theorems and the parts "
        "regularise per row": model.reg != "per_sample"
        and (by_theorem or model.variant != "basic"),
        "stop='theorem' needs delta above 0: its noise is Gaussian": by_theorem
        and model.delta == 0,
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(text)


def plan_descent(model: Any, problem: Problem) -> Plan | None:
    """Return the plan of a fit on these rows; None for the residual stop."""
    if model.stop == "residual":
        return None
    row_norm = float(model.row_norm) * (1 + NORM_ROUNDING)
    radius = float(model.radius or natural_radius(problem.loss, model.l2))
    strong = float(model.l2) + _extra_regulariser(model, problem, row_norm, radius)
    shape = geometry(problem.loss, row_norm, strong, radius, problem.shape[0])
    epsilon, delta = shares(model)
    n, many = nominal_rows(problem.n_held), int(model.iterations)
    if model.variant == "distributed":
        size = parts_of(model, problem.n_held)
        return DistributedPlan.of(shape, n, size, model.xi, many, epsilon, delta)
    if model.state == "published":
        return _published_plan(model, shape, problem)
    kind = WeakPlan if model.variant == "regularized-weak" else SecretPlan
    return kind.of(shape, n, many, epsilon, delta)


def _published_plan(model: Any, shape: Geometry, problem: Problem) -> PublishedPlan:
    return PublishedPlan.of(
        shape,
        nominal_rows(problem.n_held),
        int(model.iterations),
        float(model.epsilon),
        float(model.delta),
        float(model.sigma) if model.sigma else None,
    )


def _extra_regulariser(model: Any, problem: Problem, row_norm: float, radius: float) -> float:
    if model.variant not in REGULARIZED:
        return 0.0
    if model.regulariser is not None:
        return float(model.regulariser)
    best = strong_regulariser if model.variant == "regularized-strong" else weak_regulariser
    d, K = problem.shape
    gap = zcdp_gap(model.epsilon, model.delta)
    n = nominal_rows(problem.n_held)
    return best(problem.loss, row_norm, radius, n, d * K, model.iterations, gap)


def parts_of(model: Any, n_rows: int) -> int:
    """Return the number of parts, and of rows in each: that of N/2 rows."""
    return part_size(nominal_rows(n_rows) // 2, model.xi)


def has_outgrown(model: Any, n_before: int, n_after: int) -> bool:
    """Whether a fresh fit on the new number of rows would have another plan or other parts."""
    depends = model.stop == "theorem" or model.variant == "distributed"
    return depends and nominal_rows(n_before) != nominal_rows(n_after)


def choose_noise_scale(model: Any, plan: Plan | None) -> float:
    """Return the scale of the noise: that of the settings, else the plan's."""
    if model.sigma is not None:
        return float(model.sigma)
    return _SIGMA if plan is None else plan.sigma


def shares(model: Any) -> tuple[float, float]:
    """Return epsilon and delta of one copy: all copies together are certified."""
    return float(model.epsilon) / model.n_copies, float(model.delta) / model.n_copies


def limit_of(model: Any, sigma: float, size: int) -> float:
    """Return the distance to the optimum that noise of this scale hides, for `size` parameters.

    From the published state half of delta is for noise of the past that was too long.
    """
    epsilon, delta = shares(model)
    if model.stop == "theorem" and model.state == "published":
        delta = delta / 2
    return hidden_distance(sigma, epsilon, delta, size)
