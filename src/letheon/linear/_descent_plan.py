"""The plan of a descent-to-delete estimator: which theorem it uses, and with which noise."""

from typing import Any

from letheon.linear._calibrate import zcdp_gap
from letheon.linear._descent_theory import (
    DescentPlan,
    DistributedPlan,
    PublishedPlan,
    SecretPlan,
    WeakPlan,
    build_geometry,
    choose_regulariser,
    max_hidden_distance,
    natural_radius,
    nominal_rows,
)
from letheon.linear._model import NORM_ROUNDING
from letheon.linear._problem import FitProblem

REGULARIZED = ("regularized-strong", "regularized-weak")

# Default noise of the residual stop: one step per request is then usually enough.
_SIGMA = 0.01


def check_combination(model: Any) -> None:
    """Raise `ValueError` if settings of the model contradict each other."""
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
    """Return the plan of a fit on these rows; None with ``stop="residual"``.

    Parameters
    ----------
    model, problem : estimator, FitProblem
        A descent-to-delete estimator, and the rows with the loss.

    Examples
    --------
    >>> from letheon import DescentToDeleteClassifier
    >>> plan_descent(DescentToDeleteClassifier(stop="residual"), problem=None) is None
    True
    """
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
    """Return b = floor(n^(xi / 2)), the number of parts and the number of rows in each part."""
    return max(1, int(n_rows ** (xi / 2.0) + 1e-9))


def count_parts(model: Any, n_rows: int) -> int:
    """Return the number of parts, which is also the number of rows in each part, for N/2 rows."""
    return part_size(nominal_rows(n_rows) // 2, model.xi)


def has_outgrown(model: Any, n_before: int, n_after: int) -> bool:
    """Return whether a fresh fit on the new number of rows would have another plan."""
    depends = model.stop == "theorem" or model.variant == "distributed"
    return depends and nominal_rows(n_before) != nominal_rows(n_after)


def choose_noise_scale(model: Any, plan: DescentPlan | None) -> float:
    """Return the scale of the noise: `sigma` of the model or, if that is None, of the plan.

    Parameters
    ----------
    model, plan : estimator, DescentPlan or None
        A descent-to-delete estimator, and the plan of its fit.

    Examples
    --------
    >>> from letheon import DescentToDeleteClassifier
    >>> choose_noise_scale(DescentToDeleteClassifier(sigma=0.5), None)
    0.5
    """
    if model.sigma is not None:
        return float(model.sigma)
    return _SIGMA if plan is None else plan.sigma


def privacy_per_copy(model: Any) -> tuple[float, float]:
    """Return epsilon and delta of one copy; together, the copies spend those of the model."""
    return float(model.epsilon) / model.n_copies, float(model.delta) / model.n_copies


def distance_limit(model: Any, sigma: float, size: int) -> float:
    """Return the largest distance to the optimum that noise of this scale hides.

    `size` is the number of parameters. With ``stop="theorem"`` and a published state, half of delta
    covers the event that earlier noise was longer than its bound.
    """
    epsilon, delta = privacy_per_copy(model)
    if model.stop == "theorem" and model.state == "published":
        delta = delta / 2
    return max_hidden_distance(sigma, epsilon, delta, size)
