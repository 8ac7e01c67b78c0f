"""How a class is converted: the target, and what happens to its parameters."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from numbers import Real
from typing import Any

import numpy as np

from letheon.conversion._report import Similarity

Parameters = Mapping[str, Any]
Change = Callable[[Any], Parameters]
Accept = Callable[[Any], bool]


class NotCarriedError(ValueError):
    """A value of a parameter has no equivalent; the message says why."""


@dataclass(frozen=True)
class ConversionRule:
    """How a class of scikit-learn is converted.

    Attributes
    ----------
    target : str
        Path of our class.
    kind : Similarity
        How similar the result is.
    cost : str
        What one removal costs.
    same : str
        Parameters that are carried over unchanged.
    changed : dict
        Parameters that become others: functions from the value to the new parameters.
    accepted : dict
        Parameters that our class has not: functions that return whether a value is equivalent to
        its absence. With any other value, the estimator is wrapped instead.
    unused : str
        Parameters that do not affect the fitted model.
    fixed : dict
        Further parameters of our class.
    notes : tuple of str
        Differences that are always reported.
    refine : callable, optional
        Function from the rule and an estimator to the rule for its parameters.
    """

    target: str
    kind: Similarity
    cost: str
    same: str = ""
    changed: Mapping[str, Change] = field(default_factory=dict)
    accepted: Mapping[str, Accept] = field(default_factory=dict)
    unused: str = ""
    fixed: Parameters = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refine: Callable[["ConversionRule", Any], "ConversionRule"] | None = None

    @property
    def class_name(self) -> str:
        """Name of our class."""
        return self.target.rpartition(".")[2]

    def find_obstacle(self, part: Any) -> str:
        """Return why this rule does not suit the parameters of an estimator; empty if it does."""
        values = part.get_params(deep=False)
        wrong = [
            f"{name}={values[name]!r}"
            for name, accept in self.accepted.items()
            if name in values and not accept(values[name])
        ]
        return f"{self.class_name} does not support {', '.join(wrong)}" if wrong else ""

    def carry_parameters(self, part: Any) -> tuple[dict[str, Any], list[str], list[str]]:
        """Return the parameters of our class, those without effect, and those that are lost."""
        carried = dict(self.fixed)
        unused: list[str] = []
        lost: list[str] = []
        for name, value in part.get_params(deep=False).items():
            if name in self.same.split():
                carried[name] = value
            elif name in self.changed:
                try:
                    carried.update(self.changed[name](value))
                except NotCarriedError as error:
                    lost.append(f"{name}={value!r} ({error})")
            elif name in self.accepted or name == "random_state" or _is_default(part, name, value):
                continue
            else:
                (unused if name in self.unused.split() else lost).append(f"{name}={value!r}")
        return carried, unused, lost

    def translate(self, name: str, value: Any) -> Parameters:
        """Return the parameters of our class for one parameter of the original."""
        if name in self.accepted and not self.accepted[name](value):
            raise NotCarriedError(f"{self.class_name} does not support {name}={value!r}")
        if name in self.same.split():
            return {name: value}
        if name in self.changed:
            return self.changed[name](value)
        if name in self.accepted or name in self.unused.split():
            return {}
        raise NotCarriedError(f"{self.class_name} has no such parameter")


def _is_default(part: Any, name: str, value: Any) -> bool:
    described = signature(type(part)).parameters.get(name)
    # XGBoost takes most parameters as keywords, with None as default.
    default = None if described is None else described.default
    return value is default or (type(value) is type(default) and bool(np.all(value == default)))


def is_one_of(*values: Any) -> Accept:
    return lambda value: isinstance(value, str | bool | int | float | None) and value in values


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


is_none = is_one_of(None)
is_false = is_one_of(False)


def is_missing(value: Any) -> bool:
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or type(value).__name__ == "NAType"  # pandas.NA


def require_count(name: str) -> Change:
    """Return a change of the name that refuses shares of rows."""

    def change(value: Any) -> Parameters:
        if isinstance(value, float):
            raise NotCarriedError("expected a number of rows, not a share of them")
        return {name: value}

    return change
