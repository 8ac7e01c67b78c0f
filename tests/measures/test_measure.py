"""Validation and text of a measure."""

import dataclasses
import json
import math
from typing import Any

import pytest

from letheon.measures import Measure, by_proof

GOOD: dict[str, Any] = {
    "name": "effectiveness",
    "value": 0.5,
    "low": 0.25,
    "high": 1.0,
    "n": 10,
    "better": "lower",
    "basis": "measured",
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"value": math.nan}, "without NaN"),
        ({"low": math.nan}, "without NaN"),
        ({"low": 0.6}, "low <= value"),
        ({"high": 0.4}, "low <= value <= high"),
        ({"n": -1}, "n must be at least 0"),
        ({"better": "sideways"}, "better must be one of"),
        ({"basis": "guessed"}, "basis must be one of"),
        ({"confidence": 1.0}, "confidence must be between 0 and 1"),
        ({"name": ""}, "needs a name"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Measure(**(GOOD | change))


def test_ends_may_be_unknown_and_the_value_infinite() -> None:
    assert Measure(**(GOOD | {"low": None, "high": None})).low is None
    assert Measure(**(GOOD | {"value": math.inf, "high": math.inf})).value == math.inf


def test_is_frozen_and_hashable() -> None:
    measure = Measure(**GOOD)
    assert measure in {Measure(**GOOD)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        measure.value = 0.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "effectiveness: 0.5 [0.25, 1] at 0.95 (measured, n=10, lower is better)"),
        ({"low": None, "high": None}, "effectiveness: 0.5 (measured, n=10, lower is better)"),
        (
            {"low": None, "unit": "nats"},
            "effectiveness: 0.5 nats [?, 1] at 0.95 (measured, n=10, lower is better)",
        ),
        (
            {"low": 0.5, "high": 0.5, "unit": "%", "basis": "by proof"},
            "effectiveness: 0.5% (by proof, lower is better)",
        ),
    ],
)
def test_text(change: dict[str, Any], text: str) -> None:
    assert str(Measure(**(GOOD | change))) == text


def test_to_dict_makes_the_same_measure_again_through_json() -> None:
    measure = Measure(**GOOD, unit="%", note="why")
    assert Measure(**json.loads(json.dumps(measure.to_dict()))) == measure


@pytest.mark.parametrize(
    ("name", "better", "unit"),
    [
        ("efficiency", "higher", "x"),
        ("effectiveness", "lower", ""),
        ("parameter consistency", "lower", ""),
        ("output consistency", "higher", "%"),
        ("KL consistency", "lower", "nats"),
        ("certifiability", "lower", "%"),
    ],
)
def test_by_proof_knows_the_survey(name: str, better: str, unit: str) -> None:
    measure = by_proof(name, 3, note="theorem")
    assert (measure.better, measure.unit, measure.basis) == (better, unit, "by proof")
    assert measure.low == measure.value == measure.high == 3.0


def test_by_proof_takes_other_measures_with_their_direction() -> None:
    measure = by_proof("regret", 0, note="theorem", better="lower", unit="points")
    assert (measure.better, measure.unit, measure.n) == ("lower", "points", 0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("regret", {"note": "theorem"}),
        ("efficiency", {"note": "theorem", "better": "lower"}),
        ("efficiency", {"note": ""}),
    ],
)
def test_by_proof_refuses_what_is_unclear(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"better must|note must"):
        by_proof(name, 1.0, **options)
