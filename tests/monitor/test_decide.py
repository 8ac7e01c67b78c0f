"""Keep or retrain, at the very edges."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from letheon.monitor import MonitorTolerances, Reading
from letheon.monitor._reading import DecisionInputs, make_decision

TOLERANCES = MonitorTolerances(effectiveness=0.02, certifiability=5.0, efficiency=3.0, residual=0.1)
READING = Reading(
    request=1,
    n_people=1,
    n_rows=1,
    since_retrain=1,
    rows_left=9,
    n_test=5,
    metric=0.9,
    metric_retrained=0.9,
    seconds=0.1,
    proxies={"effectiveness": 0.02, "certifiability": 5.0},
    guarantee="empirical",
    residual=0.1,
)
FINE = DecisionInputs(
    READING, share=0.09, horizon=0.1, was_guaranteed="empirical", speed_ups=(3.0,)
)


def changed(**changes: Any) -> DecisionInputs:
    """Return what is fine, but for some fields of the reading or beside it."""
    beside = {name: changes.pop(name) for name in DecisionInputs._fields if name in changes}
    return FINE._replace(reading=replace(READING, **changes), **beside)


def test_just_within_everything() -> None:
    assert make_decision(FINE, TOLERANCES) == ("keep", ("within all tolerances",))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"proxies": {"effectiveness": 0.0201, "certifiability": 0.0}}, "effectiveness"),
        ({"proxies": {"effectiveness": 0.0, "certifiability": 5.001}}, "certifiability"),
        ({"share": 0.1}, "rehearsed"),
        ({"was_guaranteed": "certified"}, "was certified"),
        ({"guarantee": "certified", "spent": 1.01, "budget": 1.0}, "budget"),
        ({"residual": 0.1001}, "gradient"),
        ({"is_judged": False}, "cannot be judged"),
    ],
)
def test_each_tolerance_alone_is_a_reason(change: dict[str, Any], word: str) -> None:
    decision, reasons = make_decision(changed(**change), TOLERANCES)
    assert decision == "retrain"
    assert word in reasons[0]
    assert len(reasons) == 1


def test_proxies_of_an_exact_model_are_no_reason() -> None:
    seen = changed(guarantee="exact", was_guaranteed="exact", is_judged=False)
    assert make_decision(seen, TOLERANCES)[0] == "keep"


def test_a_share_of_the_budget_can_be_the_limit() -> None:
    seen = changed(guarantee="certified", spent=0.6, budget=1.0)
    assert make_decision(seen, TOLERANCES)[0] == "keep"
    assert make_decision(seen, replace(TOLERANCES, budget=0.5))[0] == "retrain"


def test_one_slow_removal_says_little() -> None:
    once = changed(speed_ups=(9.0, 9.0, 0.1))
    often = changed(speed_ups=(9.0, 0.1, 0.1))
    assert len(make_decision(once, TOLERANCES)[1]) == 1
    assert "check the method" in make_decision(often, TOLERANCES)[1][-1]


def test_nothing_rehearsed_has_no_horizon() -> None:
    assert make_decision(changed(horizon=None, share=np.inf), TOLERANCES)[0] == "keep"
