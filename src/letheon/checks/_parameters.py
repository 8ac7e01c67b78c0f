"""The check that settings changed after `fit` are noticed."""

from math import isfinite
from typing import Any

from letheon.base import neutral_parameters
from letheon.checks._people import fit, make_people
from letheon.exceptions import ChangedParametersError

_KINDS = (float, int, bool, str)


def check_changed_parameters_are_noticed(estimator: Any) -> None:
    """Settings changed after fit are refused, whatever their kind, until they are set back."""
    people = make_people(estimator)
    model = fit(estimator, people)
    for name, value in _one_of_each_kind(model).items():
        other = _another_setting(value)
        model.set_params(**{name: other})
        _require_refusal(model, people.names[0], f"{name} was changed from {value!r} to {other!r}")
        model.set_params(**{name: value})
    receipt = model.forget(people.names[:1])
    assert receipt.n_ids == 1, "with all parameters set back, forget did nothing"


def _require_refusal(model: Any, person: str, what: str) -> None:
    try:
        model.forget([person])
    except ChangedParametersError:
        return
    except Exception as error:
        raise AssertionError(
            f"{what} after fit: forget must raise ChangedParametersError, not {error!r}"
        ) from error
    raise AssertionError(f"forget went on after {what}")


def _one_of_each_kind(model: Any) -> dict[str, Any]:
    """Return one parameter of each plain kind; None, or any at all, only where there is none.

    Empty only for an estimator that has no parameters that could change a result.
    """
    neutral = neutral_parameters(model)
    settings = {
        name: value
        for name, value in sorted(model.get_params(deep=True).items())
        if name.rpartition("__")[2] not in neutral
    }
    chosen: dict[type, str] = {}
    for name, value in settings.items():
        chosen.setdefault(type(value), name)
    plain = [chosen[kind] for kind in _KINDS if kind in chosen]
    unset = [chosen[type(None)]] if type(None) in chosen else list(settings)[:1]
    return {name: settings[name] for name in plain or unset}


def _another_setting(value: Any) -> Any:
    """Return something else; a nested estimator or another object gives way to None."""
    if value is None:
        return 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}-changed"
    if isinstance(value, int | float):
        return value + 1 if value + 1 != value and isfinite(value) else 0
    return None
