"""Rules that define which values a parameter may have.

A class declares ``_parameter_rules``, a mapping from the name of a parameter to a rule, and calls
`validate_parameters` before it uses the parameters. Rules of base classes apply too.
`check_parameter` checks a single argument of a function.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Literal

import numpy as np

from letheon.exceptions import InvalidParameterError


class ParameterRule(ABC):
    """Base class of rules that define which values a parameter may have."""

    @abstractmethod
    def accepts(self, value: Any) -> bool:
        """Return whether a value is allowed."""

    @property
    @abstractmethod
    def text(self) -> str:
        """Description of the allowed values, for the error message."""


Rules = Mapping[str, ParameterRule]


@dataclass(frozen=True)
class Interval(ParameterRule):
    """The rule that a value is a finite number in an interval.

    Parameters
    ----------
    low, high : float or None
        Lower and upper end of the interval; None if there is no limit.
    closed : {"both", "left", "right", "neither"}
        Which ends belong to the interval.
    expected : str
        The expected values in words, for the error message; by default the ends.
    why : str
        Reason for the rule, appended to the error message.
    """

    low: float | None = None
    high: float | None = None
    closed: Literal["both", "left", "right", "neither"] = "both"
    expected: str = ""
    why: str = ""

    def accepts(self, value: Any) -> bool:
        """Return whether a value is a number between the ends."""
        if not self._is_of_kind(value):
            return False
        has_low, has_high = self.closed in ("both", "left"), self.closed in ("both", "right")
        low = -inf if self.low is None else self.low
        high = inf if self.high is None else self.high
        is_above = value >= low if has_low else value > low
        return bool(is_above and (value <= high if has_high else value < high))

    @property
    def text(self) -> str:
        """Description of the interval, or the text in `expected`."""
        return (self.expected or self._ends()) + (f": {self.why}" if self.why else "")

    def _is_of_kind(self, value: Any) -> bool:
        return is_number(value)

    def _ends(self) -> str:
        parts = []
        if self.low is not None:
            word = "of at least" if self.closed in ("both", "left") else "above"
            parts.append(f"{word} {self.low:g}")
        if self.high is not None:
            word = "up to" if self.closed in ("both", "right") else "below"
            parts.append(f"{word} {self.high:g}")
        return " ".join(["a number", " and ".join(parts)]).rstrip()


POSITIVE = Interval(0, closed="neither")


@dataclass(frozen=True)
class Whole(Interval):
    """The rule that a value is a whole number from `low` to `high`."""

    def _is_of_kind(self, value: Any) -> bool:
        return is_whole(value)

    def _ends(self) -> str:
        if self.high is not None:
            return f"a whole number from {self.low} to {self.high}"
        return "a whole number" if self.low is None else f"a whole number, {self.low} or more"


@dataclass(frozen=True)
class OneOf(ParameterRule):
    """The rule that a value is one of a few words or numbers."""

    options: tuple[str | float, ...]
    expected: str = ""

    def accepts(self, value: Any) -> bool:
        """Return whether a value is one of the options; True does not count as 1."""
        return (isinstance(value, str) or is_number(value)) and value in self.options

    @property
    def text(self) -> str:
        """List of the options, or the text in `expected`."""
        return self.expected or f"one of {self.options}"


class Boolean(ParameterRule):
    """The rule that a value is True or False."""

    text = "True or False"

    def accepts(self, value: Any) -> bool:
        """Return whether a value is a bool of Python or NumPy."""
        return isinstance(value, bool | np.bool)


class AnyCallable(ParameterRule):
    """The rule that a value can be called."""

    text = "a callable"

    def accepts(self, value: Any) -> bool:
        """Return whether a value can be called."""
        return callable(value)


class Either(ParameterRule):
    """The rule that at least one of several rules allows a value."""

    def __init__(self, *rules: ParameterRule) -> None:
        self.rules = rules

    def accepts(self, value: Any) -> bool:
        """Return whether one of the rules allows a value."""
        return any(rule.accepts(value) for rule in self.rules)

    @property
    def text(self) -> str:
        """Texts of all rules, joined with "or"."""
        *first, last = (rule.text for rule in self.rules)
        return f"{', '.join(first)} or {last}"


@dataclass(frozen=True)
class OrNone(ParameterRule):
    """The rule that another rule allows a value, or that it is None.

    `meaning` explains None in the error message.
    """

    rule: ParameterRule
    meaning: str = ""

    def accepts(self, value: Any) -> bool:
        """Return whether a value is None, or allowed by the rule."""
        return value is None or self.rule.accepts(value)

    @property
    def text(self) -> str:
        """Text of the rule, followed by None and its meaning."""
        return f"{self.rule.text}, or None{self.meaning and f' ({self.meaning})'}"


@dataclass(frozen=True)
class TupleOf(ParameterRule):
    """The rule that a value is a tuple and another rule allows all its entries."""

    rule: ParameterRule
    is_empty_allowed: bool = True

    def accepts(self, value: Any) -> bool:
        """Return whether a value is a tuple of allowed entries."""
        has_length = isinstance(value, tuple) and (self.is_empty_allowed or len(value) > 0)
        return has_length and all(map(self.rule.accepts, value))

    @property
    def text(self) -> str:
        """Description of the tuple, with the text of the rule for its entries."""
        many = "" if self.is_empty_allowed else " of one or more entries"
        return f"a tuple{many}, each {self.rule.text}"


VERBOSE = Either(Boolean(), Whole(0))
JOBS = OrNone(Either(Whole(1), Whole(high=-1, expected="a negative number as in joblib")))


def is_number(value: Any) -> bool:
    """Return whether a value is a finite real number and not a bool."""
    if is_whole(value):
        return True
    return isinstance(value, float | np.floating) and isfinite(value)


def is_whole(value: Any) -> bool:
    """Return whether a value is an int of Python or NumPy and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def collect_rules(cls: type) -> Rules:
    """Return the rules of a class and its bases; rules of a subclass replace those of a base."""
    rules: dict[str, ParameterRule] = {}
    for base in reversed(cls.__mro__):
        rules |= vars(base).get("_parameter_rules", {})
    return rules


def validate_parameters(model: Any) -> None:
    """Raise `InvalidParameterError` for the first parameter that breaks its rule.

    Rules for parameters that the model does not have are ignored.
    """
    for name, rule in collect_rules(type(model)).items():
        if hasattr(model, name):
            check_parameter(name, getattr(model, name), rule)


def check_parameter(name: str, value: Any, rule: ParameterRule) -> None:
    """Raise `InvalidParameterError` if the rule does not allow a value."""
    if not rule.accepts(value):
        raise InvalidParameterError(f"{name}={value!r}; expected {rule.text}")


def require_target(model: Any, y: Any) -> None:
    """Raise a ValueError if y is None, with the text that scikit-learn's checks expect."""
    if y is None:
        raise ValueError(
            f"{type(model).__name__} requires y to be passed, but the target y is None"
        )
