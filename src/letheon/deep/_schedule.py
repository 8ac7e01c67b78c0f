"""How the learning rate goes over one stretch of training, for every lane by its own steps."""

from math import pi

import torch
from torch import Tensor

SCHEDULES = ("constant", "cosine", "one-cycle")
_WARM_UP = 0.25


def learning_rates(active: Tensor, schedule: str, learning_rate: float) -> Tensor:
    """Return the rate of every step and lane, shape (T, W).

    For step k = 0, 1, ... of the n steps that a lane takes part in the rate is `learning_rate`
    times 1 (constant), ``(1 + cos(pi k / n)) / 2`` (cosine), or, with ``x = (k + 1) / (n + 1)``, a
    line from 0 up to 1 over the first quarter of x and down to 0 at its end (one-cycle).
    """
    if schedule == "constant":
        return torch.full(active.shape, learning_rate, device=active.device)
    steps = active.cumsum(0)
    total = steps[-1:].clamp(min=1)
    if schedule == "cosine":
        x = (steps - 1).clamp(min=0) / total
        return learning_rate * (1 + torch.cos(pi * x)) / 2
    x = steps / (total + 1)
    return learning_rate * torch.minimum(x / _WARM_UP, (1 - x) / (1 - _WARM_UP))
