import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from letheon.measures import Measure
from letheon.measures.attacks import ALL, AttackResult


def measure(
    value: float, low: float | None, high: float | None, better: Any = "lower", name: str = "AUC"
) -> Measure:
    return Measure(name=name, value=value, low=low, high=high, n=9, better=better, basis="measured")


def result(measured: Measure, floor: Measure) -> AttackResult:
    return AttackResult(
        attack="u-lira",
        about="forgotten",
        measures={measured.name: measured},
        floor={measured.name: floor},
        n_models=4,
        scores=np.ones(3),
    )


@pytest.mark.parametrize(
    ("better", "measured", "floor", "expected"),
    [
        ("lower", (0.9, 0.8, 0.95), (0.5, 0.4, 0.6), True),
        ("lower", (0.9, 0.6, 0.95), (0.5, 0.4, 0.6), False),
        ("lower", (0.2, 0.1, 0.3), (0.5, 0.4, 0.6), False),
        ("higher", (0.1, 0.0, 0.2), (0.5, 0.4, 0.6), True),
        ("higher", (0.9, 0.8, 1.0), (0.5, 0.4, 0.6), False),
        ("lower", (0.9, None, None), (0.5, 0.4, 0.6), False),
        ("lower", (0.9, 0.8, 0.95), (0.5, None, None), False),
    ],
)
def test_found_only_if_the_interval_lies_beyond_the_floor_on_the_bad_side(
    better: Any, measured: Any, floor: Any, expected: bool
) -> None:
    measures = [measure(value, low, high, better=better) for value, low, high in (measured, floor)]
    assert result(*measures).found is expected


def test_the_first_measure_decides() -> None:
    first = result(measure(0.5, 0.4, 0.6), measure(0.5, 0.4, 0.6))
    far = measure(9.0, 8.0, 10.0, name="other")
    near = measure(0.0, 0.0, 0.0, name="other")
    measures, floor = {**first.measures, "other": far}, {**first.floor, "other": near}
    both = replace(first, measures=measures, floor=floor)
    assert not both.found


def test_round_trip_through_json_leaves_out_the_scores() -> None:
    first = result(measure(0.9, 0.8, 0.95), measure(0.5, 0.4, None))
    values = json.loads(json.dumps(first.to_dict()))
    assert AttackResult.from_dict(values) == replace(first, scores=None)
    assert values["found"] is False


def decided(value: float, low: float | None, high: float | None = None) -> AttackResult:
    excess = measure(value, low, high, name="beyond the floor")
    return replace(result(measure(0.66, 0.5, 0.8), measure(0.48, 0.3, 0.6)), excess=excess)


@pytest.mark.parametrize(
    ("value", "low", "verdict"),
    [
        (0.18, 0.02, "found"),
        (0.18, 0.0, "not shown"),
        (0.18, -0.02, "not shown"),
        (0.18, None, "not shown"),
        (0.02, -0.1, "not found"),
        (-0.18, -0.3, "not found"),
        (-0.18, None, "not found"),
        (0.0, 0.0, "not found"),
    ],
)
def test_the_difference_to_the_floor_decides(value: float, low: Any, verdict: str) -> None:
    first = decided(value, low)
    assert first.verdict == verdict
    assert first.found is (verdict == "found")
    assert AttackResult.from_dict(json.loads(json.dumps(first.to_dict()))) == first


def test_a_value_beyond_the_floor_that_is_not_sure_is_not_shown() -> None:
    assert str(decided(0.18, -0.02, 0.38)).endswith(
        "not shown (worse than its floor by 0.18 [-0.02, 0.38], but not significantly)"
    )
    without = result(measure(0.66, 0.4, 0.8), measure(0.48, 0.3, 0.6))
    assert str(without).endswith(": not shown (worse than its floor, but not significantly)")
    assert result(measure(0.55, 0.4, 0.8), measure(0.48, 0.3, 0.6)).verdict == "not found"


def test_results_of_an_older_version_are_read() -> None:
    values = result(measure(0.9, 0.8, 0.95), measure(0.5, 0.4, 0.6)).to_dict()
    del values["excess"], values["verdict"]
    assert AttackResult.from_dict(values).found


def test_scores_of_people_are_neither_printed_nor_compared() -> None:
    first = result(measure(0.9, 0.8, 0.95), measure(0.5, 0.4, 0.6))
    other = replace(first, scores=np.zeros(3), owners=np.arange(3))
    assert first == other
    assert "scores" not in repr(other)
    assert "owners" not in repr(other)


def test_one_line() -> None:
    text = str(result(measure(0.52, 0.47, 0.57), measure(0.5, 0.45, 0.55)))
    assert text == (
        "u-lira on forgotten people: AUC 0.52 [0.47, 0.57] (floor 0.5 [0.45, 0.55]): not found"
    )


def test_a_measure_without_floor_is_refused() -> None:
    with pytest.raises(ValueError, match="measures and floor must have the same names"):
        AttackResult(
            attack="x", about="forgotten", measures={"AUC": measure(1, 1, 1)}, floor={}, n_models=1
        )


def test_whom_it_is_about_must_be_known() -> None:
    with pytest.raises(ValueError, match="about must be one of"):
        AttackResult(attack="x", about="all", measures={}, floor={}, n_models=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALL)
def test_every_attack_has_a_name_and_settings_of_its_own(name: str) -> None:
    attack = ALL[name]()
    assert attack.name == name
    assert callable(attack.run)
