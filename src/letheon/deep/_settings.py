"""Settings that the nets share: what is allowed, and what each error says."""

import inspect
from functools import partial
from typing import Any

import torch
from torch import nn

from letheon.deep._device import resolve_device
from letheon.deep._loop import PRECISIONS, LoopSettings
from letheon.deep._optim import OPTIMIZERS
from letheon.deep._schedule import SCHEDULES
from letheon.validation import (
    POSITIVE,
    AnyCallable,
    Boolean,
    Either,
    Interval,
    OneOf,
    OrNone,
    Rules,
    Whole,
    validate_parameters,
)

PARAMETER_RULES: Rules = {
    "epochs": Whole(1),
    "batch_size": Whole(1),
    "calibration_rows": Whole(2),
    "precision": OneOf(PRECISIONS),
    "schedule": OneOf(SCHEDULES),
    "optimizer": Either(OneOf(OPTIMIZERS), AnyCallable()),
    "learning_rate": POSITIVE,
    "momentum": Interval(0, 1, closed="left"),
    "weight_decay": Interval(0),
    "loss": Either(OneOf(("cross_entropy",), "'cross_entropy'"), AnyCallable()),
    "module": OrNone(AnyCallable(), "a small MLP"),
    "deterministic": Boolean(),
}


def check_net_settings(model: Any) -> None:
    """Raise ValueError or TypeError for the first setting that makes no sense."""
    _require_optimizer_class(model.optimizer)
    validate_parameters(model)
    if callable(model.optimizer) and model.schedule != "constant":
        raise ValueError(
            f"schedule={model.schedule!r} needs an optimizer by name, one of {OPTIMIZERS}: an "
            "optimiser of your own has its own learning rate"
        )
    if isinstance(model.loss, nn.Module):
        name = type(model.loss).__name__
        raise ValueError(
            f"loss is a module ({name}); expected a function, such as those of torch.nn.functional"
        )
    if model.module is not None:
        _require_factory(model.module)
    resolve_device(model.device)


def _require_factory(module: Any) -> None:
    what = "a factory: it takes the shape of a row and the number of classes, and returns a net"
    if isinstance(module, nn.Module):
        raise ValueError(f"module is a net ({type(module).__name__}); expected {what}")
    if isinstance(module, type) and module.__module__.startswith("torch."):
        raise ValueError(f"module is a layer of torch ({module.__name__}); expected {what}")


def _require_optimizer_class(optimizer: Any) -> None:
    if isinstance(optimizer, torch.optim.Optimizer):
        name = type(optimizer).__name__
        raise ValueError(
            f"optimizer is an object of {name}; expected one of {OPTIMIZERS}, or what makes one "
            f"for parameters, such as functools.partial(torch.optim.{name}, lr=0.01)"
        )


def loop_settings(model: Any) -> LoopSettings:
    """Return the settings of the loop."""
    return LoopSettings(
        batch_size=int(model.batch_size),
        optimizer=model.optimizer,
        learning_rate=float(model.learning_rate),
        momentum=float(model.momentum),
        weight_decay=float(model.weight_decay),
        schedule=model.schedule,
        loss=_row_by_row(model.loss),
        precision=model.precision,
    )


def _row_by_row(loss: Any) -> Any:
    """Return a loss that reduces nothing, where it can be told to, as those of torch can."""
    if isinstance(loss, str):
        return loss
    try:
        parameters = inspect.signature(loss).parameters
    except ValueError:  # written in C, perhaps
        return loss
    return partial(loss, reduction="none") if "reduction" in parameters else loss
