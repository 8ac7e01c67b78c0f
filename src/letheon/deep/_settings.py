"""Settings that the nets share: what is allowed, and what each error says."""

from typing import Any

from letheon.convex._settings import is_number, require_one_of, require_positive, require_whole
from letheon.deep._device import resolve_device
from letheon.deep._loop import PRECISIONS, LoopSettings
from letheon.deep._optim import OPTIMIZERS
from letheon.deep._schedule import SCHEDULES


def check_net_settings(model: Any) -> None:
    """Raise ValueError or TypeError for the first setting that makes no sense."""
    require_whole("epochs", model.epochs)
    require_whole("batch_size", model.batch_size)
    require_whole("calibration_rows", model.calibration_rows, least=2)
    require_one_of("precision", model.precision, PRECISIONS)
    require_one_of("schedule", model.schedule, SCHEDULES)
    _check_optimizer(model)
    _require_callable("loss", model.loss, "'cross_entropy'", ("cross_entropy",))
    if model.module is not None:
        _require_callable("module", model.module, "None (a small MLP)", ())
    resolve_device(model.device)


def _check_optimizer(model: Any) -> None:
    names = f"one of {OPTIMIZERS}"
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
        loss=model.loss,
        precision=model.precision,
    )
