"""Optimisers of the loop, and schedules of their learning rate.

Optimisers over lanes: one flat vector of parameters per lane, all lanes in one tensor.

A lane that takes no part in a step must stay as it is, its momentum and its count of steps too;
that is why those by name are written here, on the whole tensor with a mask. An optimiser of the
caller's gets the parameters of every lane as tensors of their own.

How the learning rate goes over one stretch of training, for every lane by its own steps.
"""

import inspect
from collections.abc import Callable, Sequence
from math import log, pi
from typing import Any, NamedTuple

import torch
from torch import Tensor

from letheon.exceptions import TrainingError

OPTIMIZERS = ("sgd", "adam", "adamw")
_BETA_1, _BETA_2, _TINY = 0.9, 0.999, 1e-8


class Step(NamedTuple):
    """Gradient (W, p), learning rate (W, 1), and which lanes take part (W, 1)."""

    gradient: Tensor
    rate: Tensor
    active: Tensor


class FlatSGD:
    """Stochastic gradient descent: ``v <- m v + g + decay w``, ``w <- w - rate v``."""

    can_be_captured = True

    def __init__(self, flat: Tensor, momentum: float, weight_decay: float) -> None:
        self._flat = flat
        self._momentum = momentum
        self._decay = weight_decay
        self._velocity = torch.zeros_like(flat) if momentum else None

    def reset(self) -> None:
        """Forget the momentum."""
        if self._velocity is not None:
            self._velocity.zero_()

    def step(self, step: Step) -> None:
        """Make one step of the active lanes."""
        gradient, pull = step.gradient, step.active.to(self._flat.dtype)
        if self._decay:
            gradient = gradient.add(self._flat, alpha=self._decay)
        if self._velocity is None:
            self._flat.addcmul_(gradient, -step.rate * pull)
            return
        # Few passes over the memory: with many lanes they take most of the time of a step.
        self._velocity.mul_(torch.where(step.active, self._momentum, 1.0))
        self._velocity.addcmul_(gradient, pull)
        self._flat.addcmul_(self._velocity, -step.rate * pull)


class FlatAdam:
    """Adam (Kingma and Ba, 2015), and AdamW with a decay that is not part of the gradient."""

    can_be_captured = True

    def __init__(self, flat: Tensor, weight_decay: float, *, decoupled: bool) -> None:
        self._flat = flat
        self._decay = weight_decay
        self._decoupled = decoupled
        self._first = torch.zeros_like(flat)
        self._second = torch.zeros_like(flat)
        self._count = torch.zeros(len(flat), 1, device=flat.device)

    def reset(self) -> None:
        """Forget both moments and the number of steps."""
        for part in (self._first, self._second, self._count):
            part.zero_()

    def step(self, step: Step) -> None:
        """Make one step of the active lanes."""
        gradient, active = step.gradient, step.active
        if self._decay and not self._decoupled:
            gradient = gradient.add(self._flat, alpha=self._decay)
        first = torch.lerp(self._first, gradient, 1 - _BETA_1)
        second = torch.lerp(self._second, gradient * gradient, 1 - _BETA_2)
        self._first.copy_(torch.where(active, first, self._first))
        self._second.copy_(torch.where(active, second, self._second))
        self._count.add_(active.to(self._count.dtype))
        # A lane that has made no step yet divides by nothing.
        count = self._count.clamp(min=1)
        scale = torch.sqrt(self._second / _share_seen(_BETA_2, count)) + _TINY
        way = self._first / _share_seen(_BETA_1, count) / scale
        if self._decay and self._decoupled:
            way = way.add(self._flat, alpha=self._decay)
        self._flat.sub_(torch.where(active, way * step.rate, 0.0))


def _share_seen(beta: float, count: Tensor) -> Tensor:
    """Return ``1 - beta ** count``; the difference itself has few digits left in float32."""
    return -torch.expm1(log(beta) * count)


class OwnOptimizer:
    """Optimisers of the caller's, one for every lane: lanes share nothing.

    The learning rate is theirs too. That of a lane which takes no part makes no step.
    """

    can_be_captured = False

    def __init__(
        self, flat: Tensor, shapes: Sequence[torch.Size], factory: Callable[[Any], Any]
    ) -> None:
        self._factory = factory
        self._sizes = [shape.numel() for shape in shapes]
        self._shapes = list(shapes)
        self._lanes = [self._views(line) for line in flat]
        self.reset()

    def reset(self) -> None:
        """Make new ones."""
        self._optimizers = [self._factory(views) for views in self._lanes]
        for optimizer in self._optimizers[:1]:
            _require_steps_of_its_own(optimizer)

    def step(self, step: Step) -> None:
        """Make one step of the active lanes."""
        takes_part = step.active[:, 0].tolist()
        lanes = zip(self._lanes, self._optimizers, step.gradient, takes_part, strict=True)
        for views, optimizer, line, is_active in lanes:
            if is_active:
                for view, part in zip(views, self._views(line), strict=True):
                    view.grad = part
                optimizer.step()

    def _views(self, line: Tensor) -> list[Tensor]:
        parts = zip(line.split(self._sizes), self._shapes, strict=True)
        return [part.view(shape) for part, shape in parts]


# Moves the lanes in place.
LaneOptimizer = FlatSGD | FlatAdam | OwnOptimizer


def _require_steps_of_its_own(optimizer: Any) -> None:
    try:
        inspect.signature(optimizer.step).bind()
    except TypeError:
        raise TrainingError(
            f"optimizer {type(optimizer).__name__} needs a closure that computes the loss again; "
            "expected one that makes a step from gradients"
        ) from None


def make_optimizer(
    given: Any, flat: Tensor, shapes: Sequence[torch.Size], momentum: float, weight_decay: float
) -> LaneOptimizer:
    """Return the optimiser of a name, or of a factory such as ``lambda ps: SGD(ps, lr=0.1)``."""
    if callable(given):
        return OwnOptimizer(flat, shapes, given)
    if given == "sgd":
        return FlatSGD(flat, momentum, weight_decay)
    return FlatAdam(flat, weight_decay, decoupled=given == "adamw")


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
