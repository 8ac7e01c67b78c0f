"""Settings that the nets share: what is allowed, and what each error says."""

import inspect
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from letheon.deep._device import resolve_device
from letheon.deep._loop import PRECISIONS, LoopSettings
from letheon.deep._optim import OPTIMIZERS
from letheon.deep._schedule import SCHEDULES
from letheon.linear._settings import is_number, require_one_of, require_positive, require_whole


def check_net_settings(model: Any) -> None:
    """Raise ValueError or TypeError for the first setting that makes no sense."""
    require_whole("epochs", model.epochs)
    require_whole("batch_size", model.batch_size)
    require_whole("calibration_rows", model.calibration_rows, least=2)
    require_one_of("precision", model.precision, PRECISIONS)
    require_one_of("schedule", model.schedule, SCHEDULES)
    _check_optimizer(model)
    _require_callable("loss", model.loss, "'cross_entropy'", ("cross_entropy",))
    if isinstance(model.loss, nn.Module):
        name = type(model.loss).__name__
        raise ValueError(
            f"loss is a module ({name}); expected a function, such as those of torch.nn.functional"
        )
    if model.module is not None:
        _require_callable("module", model.module, "None (a small MLP)", ())
        _require_factory(model.module)
    if not isinstance(model.deterministic, bool | np.bool):
        raise ValueError(f"deterministic={model.deterministic!r}; expected True or False")
    resolve_device(model.device)


def _require_factory(module: Any) -> None:
    what = "a factory: it takes the shape of a row and the number of classes, and returns a net"
    if isinstance(module, nn.Module):
        raise ValueError(f"module is a net ({type(module).__name__}); expected {what}")
    if isinstance(module, type) and module.__module__.startswith("torch."):
        raise ValueError(f"module is a layer of torch ({module.__name__}); expected {what}")


def _check_optimizer(model: Any) -> None:
    names = f"one of {OPTIMIZERS}"
    if isinstance(model.optimizer, torch.optim.Optimizer):
        name = type(model.optimizer).__name__
        raise ValueError(
            f"optimizer is an object of {name}; expected {names}, or what makes one for "
            f"parameters, such as functools.partial(torch.optim.{name}, lr=0.01)"
        )
    _require_callable("optimizer", model.optimizer, names, OPTIMIZERS)
    require_positive("learning_rate", model.learning_rate)
    _require_share("momentum", model.momentum)
    if not is_number(model.weight_decay) or model.weight_decay < 0:
        raise ValueError(f"weight_decay={model.weight_decay!r}; expected 0 or a positive number")
    if callable(model.optimizer) and model.schedule != "constant":
        raise ValueError(
            f"schedule={model.schedule!r} needs an optimizer by name, {names}: an optimiser of "
            "your own has its own learning rate"
        )


def _require_share(name: str, value: Any) -> None:
    if not is_number(value) or not 0 <= value < 1:
        raise ValueError(f"{name}={value!r}; expected a number from 0 up to, not including, 1")


def _require_callable(name: str, value: Any, words: str, allowed: tuple[str, ...]) -> None:
    is_word = isinstance(value, str) and value in allowed
    if not is_word and not callable(value):
        raise ValueError(f"{name}={value!r}; expected {words} or a callable")


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
