"""Settings that the convex methods share: what is allowed, and what each error says."""

from math import isfinite
from typing import Any

import numpy as np

from letheon.linear._calibrate import require_epsilon_delta

REGS = ("per_sample", "total")
MULTI_CLASS = ("ovr", "softmax")
IF_UNPROVED = ("raise", "downgrade")


def check_settings(model: Any) -> None:
    """Raise ValueError or TypeError for the first setting that makes no sense.

    `Design` checks `rows` and `row_norm`, `NoiseSource` the seed of the noise.
    """
    if not is_number(model.l2) or not model.l2 > 0:
        raise ValueError(
            f"l2={model.l2!r}; expected a number above 0: without a regulariser the problem is not "
            "strongly convex (on separable classes it has no optimum), and no bound holds"
        )
    require_one_of("reg", model.reg, REGS)
    if hasattr(model, "multi_class"):
        require_one_of("multi_class", model.multi_class, MULTI_CLASS)
    if hasattr(model, "if_unproved"):
        require_one_of("if_unproved", model.if_unproved, IF_UNPROVED)
    if hasattr(model, "tol"):
        require_positive("tol", model.tol)
    if hasattr(model, "max_iter"):
        require_whole("max_iter", model.max_iter)
    check_noise_settings(model)


def check_noise_settings(model: Any) -> None:
    """Raise for settings of noise and certificate that make no sense."""
    if hasattr(model, "sigma") and (not is_number(model.sigma) or not model.sigma >= 0):
        raise ValueError(
            f"sigma={model.sigma!r}; expected the scale of the noise, 0 (none) or a positive number"
        )
    if hasattr(model, "epsilon"):
        require_epsilon_delta(model.epsilon, model.delta, allow_zero_delta=True)


def require_one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise unless a setting is one of the words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={value!r}; expected one of {allowed}")


def require_positive(name: str, value: Any) -> None:
    """Raise unless a setting is a finite number above zero."""
    if not is_number(value) or not value > 0:
        raise ValueError(f"{name}={value!r}; expected a number above 0")


def require_whole(name: str, value: Any, *, least: int = 1) -> None:
    """Raise unless a setting is a whole number that is large enough."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}={value!r}; expected a whole number, {least} or more")


def require_batch_size(batch_size: Any, n_rows: int) -> None:
    """Raise unless a request can be cut into batches of this size."""
    require_whole("batch_size", batch_size)
    if batch_size > n_rows:
        raise ValueError(
            f"batch_size={batch_size}, but this request removes {n_rows} row(s); nothing was "
            "changed. Give forget(..., batch_size=None) or a smaller number"
        )


def is_number(value: Any) -> bool:
    """Whether a value is a finite real number."""
    is_real = isinstance(value, int | float | np.integer | np.floating)
    return is_real and not isinstance(value, bool) and isfinite(value)
