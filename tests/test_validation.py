"""Every rule of every estimator refuses bad values, in words that say what is expected."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn

import letheon
from letheon import boosting, deep, forest, linear, sharded
from letheon.deep._augment import AugmentRule
from letheon.exceptions import InvalidParameterError
from letheon.forest import ClassWeightRule
from letheon.predictor import Predictor
from letheon.validation import (
    POSITIVE,
    AnyCallable,
    Boolean,
    Either,
    Interval,
    OneOf,
    OrNone,
    ParameterRule,
    TupleOf,
    Whole,
    check_parameter,
    collect_rules,
    is_number,
    is_whole,
    validate_parameters,
)

# Parameters that no rule describes: they are checked with others, or where they are used.
ELSEWHERE = {
    "backbone",
    "categorical_features",
    "checkpoint_dir",
    "checkpoints",
    "data_free",
    "device",
    "estimator",
    "fit_intercept",
    "head",
    "loss",
    "measure_distance",
    "newton_step",
    "noise_seed",
    "random_state",
    "risk_edges",
    "row_norm",
    "rows",
}


def estimators() -> list[type]:
    """Return the estimators with a `fit`; predictors are made by them."""
    classes = [
        getattr(package, name)
        for package in (linear, deep, sharded, forest, boosting)
        for name in package.__all__
    ]
    return [
        cls
        for cls in classes
        if isinstance(cls, type)
        and issubclass(cls, BaseEstimator)
        and not issubclass(cls, Predictor)
    ]


def bad_values(rule: ParameterRule) -> Iterator[Any]:
    """Yield values that a rule must refuse."""
    match rule:
        case OrNone():
            yield from (value for value in bad_values(rule.rule) if value is not None)
        case Either():
            values = [value for part in rule.rules for value in bad_values(part)]
            yield from (value for value in values if not rule.accepts(value))
        case TupleOf():
            yield from (5, [1], None, *((value,) for value in bad_values(rule.rule)))
            if not rule.is_empty_allowed:
                yield ()
        case Interval():
            yield from ("text", True, None, math.nan, math.inf, [1], object())
            yield from [1.5] if isinstance(rule, Whole) else []
            yield from outside(rule)
        case OneOf():
            yield from ("no such word", 7.25, None, [], object())
        case ClassWeightRule():
            yield from ("no such word", 5, {0: -1.0}, {0: 0}, {0: "1"}, {0: math.nan}, [1.0, 2.0])
        case Boolean() | AnyCallable():
            yield from ("no such word", 5, None)
        case AugmentRule():
            yield from ("no such word", "crop", "crop0", 5, ["flip", 3])
        case _:
            raise AssertionError(f"{rule} needs bad values here")


def outside(rule: Interval) -> Iterator[float]:
    if rule.low is not None:
        yield from [rule.low - 1] if rule.closed in ("both", "left") else [rule.low, rule.low - 1]
    if rule.high is not None:
        beyond = math.ceil(rule.high) + 1
        yield from [beyond] if rule.closed in ("both", "right") else [rule.high, beyond]


def make(cls: type) -> Any:
    """Return an estimator of the class, with what it cannot do without."""
    if cls.__name__.startswith("SISA") and "Net" not in cls.__name__:
        return cls(LogisticRegression() if "Classifier" in cls.__name__ else LinearRegression())
    if cls in (deep.CertifiedHeadClassifier, deep.ExactHeadClassifier):
        return cls(deep.Backbone(nn.Flatten, {}))
    return cls()


# A base class may have rules for parameters that only some of its classes have.
CASES = [
    (cls, name)
    for cls in estimators()
    for name in collect_rules(cls)
    if name in cls._get_param_names()  # type: ignore[attr-defined]
]


@pytest.mark.parametrize(
    ("cls", "name"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_bad_values_are_refused_by_fit(cls: type, name: str) -> None:
    model = make(cls)
    rule, X, y = collect_rules(cls)[name], np.eye(6)[:, :2] + 1, [0, 1, 0, 1, 0, 1]
    values = list(bad_values(rule))
    assert values
    good = getattr(model, name)
    assert rule.accepts(good), "the default"
    for value in values:
        setattr(model, name, value)
        with pytest.raises(InvalidParameterError) as error:
            model.fit(X, y)
        assert f"{name}=" in str(error.value)
        assert "expected" in str(error.value)
        assert isinstance(error.value, ValueError)
        assert isinstance(error.value, TypeError)
    assert not hasattr(model, "seed_")


@pytest.mark.parametrize("cls", estimators(), ids=lambda cls: cls.__name__)
def test_every_parameter_has_a_rule(cls: type) -> None:
    parameters = set(cls._get_param_names())  # type: ignore[attr-defined]
    assert parameters - ELSEWHERE <= set(collect_rules(cls))


TEXTS = [
    (POSITIVE, 0, "a number above 0"),
    (Interval(0), -1, "a number of at least 0"),
    (Interval(0, 1, closed="left"), 1, "a number of at least 0 and below 1"),
    (Interval(0, 1, closed="right"), 0, "a number above 0 and up to 1"),
    (Interval(), math.nan, "a number"),
    (Interval(1, 2, expected="one and a bit"), 3, "one and a bit"),
    (Interval(0, why="less is not possible"), -1, "a number of at least 0: less is not possible"),
    (Whole(2), 1, "a whole number, 2 or more"),
    (Whole(2, 5), 6, "a whole number from 2 to 5"),
    (Whole(), 1.5, "a whole number"),
    (OneOf(("a", "b")), "c", r"one of \('a', 'b'\)"),
    (OneOf((0, 1)), False, r"one of \(0, 1\)"),
    (Either(OneOf(("a",), "'a'"), AnyCallable()), "b", "'a' or a callable"),
    (OrNone(Whole(1)), 0, "a whole number, 1 or more, or None$"),
    (OrNone(Whole(1), "no limit"), 0, r"a whole number, 1 or more, or None \(no limit\)"),
    (TupleOf(Whole(1)), (0,), "a tuple, each a whole number, 1 or more"),
    (Boolean(), 1, "True or False"),
]


@pytest.mark.parametrize(("rule", "value", "text"), TEXTS)
def test_the_error_says_what_was_given_and_what_is_expected(
    rule: ParameterRule, value: Any, text: str
) -> None:
    with pytest.raises(InvalidParameterError, match=f"size=.*; expected {text}"):
        check_parameter("size", value, rule)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        (POSITIVE, np.float32(0.5)),
        (POSITIVE, 10**400),
        (Interval(0, 1), 0),
        (Interval(0, 1), 1),
        (Interval(0, 1, closed="left"), 0.0),
        (Interval(0, 1, closed="right"), 1.0),
        (Whole(1, 3), np.int8(3)),
        (Whole(high=-1), -5),
        (OneOf(("a", 0.5)), 0.5),
        (OneOf((0, 0.5)), np.float32(0.5)),
        (OneOf((0, 0.5)), np.int64(0)),
        (OrNone(Whole(1)), None),
        (TupleOf(Whole(1)), ()),
        (TupleOf(POSITIVE, is_empty_allowed=False), (1, 0.5)),
        (Boolean(), np.True_),
        (AnyCallable(), print),
    ],
)
def test_good_values_pass(rule: ParameterRule, value: Any) -> None:
    check_parameter("size", value, rule)


def test_numbers() -> None:
    assert is_number(1)
    assert is_number(np.float16(0.5))
    for value in (True, math.inf, math.nan, "1", 1j, None, np.bool_(True)):
        assert not is_number(value)
    assert is_whole(np.int64(3))
    assert not is_whole(3.0)


def test_rules_of_a_subclass_replace_those_of_its_base() -> None:
    class Base:
        _parameter_rules = {"a": Whole(1), "b": Whole(1)}  # noqa: RUF012
        a, b = 1, 1

    class Child(Base):
        _parameter_rules = {"b": Whole(5), "absent": Whole(1)}  # noqa: RUF012

    validate_parameters(Base())
    assert list(collect_rules(Child)) == ["a", "b", "absent"]
    with pytest.raises(InvalidParameterError, match="b=1; expected a whole number, 5 or more"):
        validate_parameters(Child())


def test_the_error_is_one_of_letheon() -> None:
    assert issubclass(InvalidParameterError, letheon.exceptions.LetheonError)
