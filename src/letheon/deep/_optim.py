"""Settings of the training loop, optimizers of stacked networks, and learning rates.

In a step in which a lane is inactive, its parameters, momentum and step count must not change.
Therefore the named optimizers are implemented here. They update the whole tensor with a mask of the
active lanes. A custom optimizer gets the parameters of every lane as separate tensors.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log, pi
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from letheon.deep._augment import Augmentation
from letheon.exceptions import TrainingError

Loss = Callable[[Tensor, Tensor], Tensor]

OPTIMIZERS = ("sgd", "adam", "adamw")
PRECISIONS = ("float32", "tf32", "bfloat16")
SCHEDULES = ("constant", "cosine", "one-cycle")
_BETA_1, _BETA_2, _TINY = 0.9, 0.999, 1e-8
_WARM_UP = 0.25


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the training loop, with the names of the estimators' parameters."""

    batch_size: int
    optimizer: Any
    learning_rate: float
    momentum: float
    weight_decay: float
    schedule: str
    loss: str | Loss
    precision: str
    label_smoothing: float = 0.0
    warm_up: float = 0.0
    max_grad_norm: float | None = None
    accumulation_steps: int = 1
    augmentation: Augmentation = field(default_factory=Augmentation)

    @property
    def step_size(self) -> int:
        """Number of slots of one step: `accumulation_steps` batches."""
        return self.batch_size * self.accumulation_steps

    def row_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every row of one network.

        Targets are class codes (n,), or numbers (n, k) whose losses are averaged over k. A custom
        loss is computed for one network at a time, because it may combine all the rows that it
        gets. Raise `TrainingError` if it does not return one number per row.
        """
        if self.loss == "cross_entropy":
            smoothing = self.label_smoothing
            return functional.cross_entropy(
                outputs, targets, reduction="none", label_smoothing=smoothing
            )
        if self.loss == "squared_error":
            losses = functional.mse_loss(outputs, targets, reduction="none")
        else:
            losses = self.loss(outputs, targets)  # type: ignore[operator]
        if targets.ndim == 2 and losses.shape == targets.shape:
            losses = losses.mean(dim=1)
        if losses.shape != targets.shape[:1]:
            raise TrainingError(
                f"loss returned shape {tuple(losses.shape)} for {len(targets)} rows; expected one "
                "number per row, for example a torch loss with reduction='none'"
            )
        return losses


class FlatSGD:
    """Gradient descent with momentum: ``v <- m v + g + decay w``, ``w <- w - rate v``."""

    can_be_captured = True

    def __init__(self, flat: Tensor, momentum: float, weight_decay: float) -> None:
        self._flat, self._momentum, self._decay = flat, momentum, weight_decay
        self._velocity = torch.zeros_like(flat) if momentum else None

    def reset(self) -> None:
        """Set the momentum to zero."""
        if self._velocity is not None:
            self._velocity.zero_()

    def step(self, gradient: Tensor, rate: Tensor, active: Tensor) -> None:
        """Update the parameters of the active lanes by one step."""
        pull = active.to(self._flat.dtype)
        if self._decay:
            gradient = gradient.add(self._flat, alpha=self._decay)
        if self._velocity is None:
            self._flat.addcmul_(gradient, -rate * pull)
            return
        # Few passes over memory: with many lanes they take most of the time of a step.
        self._velocity.mul_(torch.where(active, self._momentum, 1.0))
        self._velocity.addcmul_(gradient, pull)
        self._flat.addcmul_(self._velocity, -rate * pull)


class FlatAdam:
    """Adam (Kingma and Ba, 2015), or AdamW, which applies weight decay outside the gradient."""

    can_be_captured = True

    def __init__(self, flat: Tensor, weight_decay: float, *, decoupled: bool) -> None:
        self._flat, self._decay, self._decoupled = flat, weight_decay, decoupled
        self._first = torch.zeros_like(flat)
        self._second = torch.zeros_like(flat)
        self._count = torch.zeros(len(flat), 1, device=flat.device)

    def reset(self) -> None:
        """Reset both moments and the number of steps."""
        for part in (self._first, self._second, self._count):
            part.zero_()

    def step(self, gradient: Tensor, rate: Tensor, active: Tensor) -> None:
        """Update the parameters of the active lanes by one step."""
        if self._decay and not self._decoupled:
            gradient = gradient.add(self._flat, alpha=self._decay)
        first = torch.lerp(self._first, gradient, 1 - _BETA_1)
        second = torch.lerp(self._second, gradient * gradient, 1 - _BETA_2)
        self._first.copy_(torch.where(active, first, self._first))
        self._second.copy_(torch.where(active, second, self._second))
        self._count.add_(active.to(self._count.dtype))
        # Avoids a division by zero for lanes without a step.
        count = self._count.clamp(min=1)
        scale = torch.sqrt(self._second / _bias_correction(_BETA_2, count)) + _TINY
        update = self._first / _bias_correction(_BETA_1, count) / scale
        if self._decay and self._decoupled:
            update = update.add(self._flat, alpha=self._decay)
        self._flat.sub_(torch.where(active, update * rate, 0.0))


def _bias_correction(beta: float, count: Tensor) -> Tensor:
    """Return ``1 - beta ** count`` for each step count, without loss of digits in float32."""
    return -torch.expm1(log(beta) * count)


class CustomOptimizer:
    """Custom optimizers, one for each lane, which share no state.

    They use their own learning rate. The optimizer of an inactive lane makes no step.
    """

    can_be_captured = False

    def __init__(
        self, flat: Tensor, shapes: Sequence[torch.Size], factory: Callable[[Any], Any]
    ) -> None:
        self._factory = factory
        self._sizes = [shape.numel() for shape in shapes]
        self._shapes = list(shapes)
        self._lanes = [self._split_views(line) for line in flat]
        self.reset()

    def reset(self) -> None:
        """Replace all optimizers with new ones from the factory."""
        self._optimizers = [self._factory(views) for views in self._lanes]
        first = self._optimizers[0]
        try:
            inspect.signature(first.step).bind()
        except TypeError:
            raise TrainingError(
                f"optimizer {type(first).__name__} needs a closure that recomputes the loss; "
                "expected an optimizer whose step() takes no arguments"
            ) from None

    def step(self, gradient: Tensor, rate: Tensor, active: Tensor) -> None:  # noqa: ARG002
        """Update the parameters of the active lanes by one step."""
        takes_part = active[:, 0].tolist()
        lanes = zip(self._lanes, self._optimizers, gradient, takes_part, strict=True)
        for views, optimizer, line, is_active in lanes:
            if is_active:
                for view, part in zip(views, self._split_views(line), strict=True):
                    view.grad = part
                optimizer.step()

    def _split_views(self, line: Tensor) -> list[Tensor]:
        parts = zip(line.split(self._sizes), self._shapes, strict=True)
        return [part.view(shape) for part, shape in parts]


# Updates the lanes in place.
LaneOptimizer = FlatSGD | FlatAdam | CustomOptimizer


def make_optimizer(
    settings: LoopSettings, flat: Tensor, shapes: Sequence[torch.Size]
) -> LaneOptimizer:
    """Return the optimizer for a name, or for a factory such as ``lambda ps: SGD(ps, lr=0.1)``."""
    name, decay = settings.optimizer, settings.weight_decay
    if callable(name):
        return CustomOptimizer(flat, shapes, name)
    if name == "sgd":
        return FlatSGD(flat, settings.momentum, decay)
    return FlatAdam(flat, decay, decoupled=name == "adamw")


def clip_gradients(gradient: Tensor, max_norm: float) -> Tensor:
    """Return the gradients (W, p), scaled so that the norm of each lane is at most `max_norm`.

    The formula is that of `torch.nn.utils.clip_grad_norm_`.
    """
    norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    clipped: Tensor = gradient * (max_norm / (norms + 1e-6)).clamp(max=1.0)
    return clipped


def learning_rates(
    active: Tensor, schedule: str, learning_rate: float, warm_up: float = 0.0
) -> Tensor:
    """Return the learning rate of every step and lane, shape (T, W).

    In step k = 0, 1, ... of the n steps in which a lane is active, `learning_rate` is multiplied by
    a factor. It is 1 for "constant" and ``(1 + cos(pi k / n)) / 2`` for "cosine". For "one-cycle",
    with ``x = (k + 1) / (n + 1)``, it rises linearly from 0 to 1 over the first quarter of x and
    falls linearly to 0 over the rest. With `warm_up`, the factor of the first
    ``m = floor(warm_up n)`` steps is ``(k + 1) / (m + 1)``, and the schedule has the other n - m.
    """
    if schedule == "constant" and not warm_up:
        return torch.full(active.shape, learning_rate, device=active.device)
    steps = active.cumsum(0)
    total = steps[-1:].clamp(min=1)
    if schedule == "one-cycle":
        x = steps / (total + 1)
        return learning_rate * torch.minimum(x / _WARM_UP, (1 - x) / (1 - _WARM_UP))
    n_first = torch.floor(total.double() * warm_up).to(torch.int64)
    x = (steps - 1 - n_first).clamp(min=0) / (total - n_first)
    factors = (1 + torch.cos(pi * x)) / 2 if schedule == "cosine" else torch.ones_like(x)
    if warm_up:
        factors = torch.where(steps <= n_first, steps / (n_first + 1), factors)
    return learning_rate * factors
