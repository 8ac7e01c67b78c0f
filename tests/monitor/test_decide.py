"""Keep or retrain, at the very edges."""

from dataclasses import replace

import numpy as np
import pytest

from letheon.monitor import Tolerances
from letheon.monitor._decide import Seen, decide

TOLERANCES = Tolerances(effectiveness=0.02, certifiability=5.0, efficiency=3.0, residual=0.1)
FINE = Seen(
    proxies={"effectiveness": 0.02, "certifiability": 5.0},
    share=0.09,
    horizon=0.1,
    guarantee="empirical",
    was_guaranteed="empirical",
    spent=None,
    budget=None,
    residual=0.1,
    speed_ups=(3.0,),
)


def test_just_within_everything() -> None:
    assert decide(FINE, TOLERANCES) == ("keep", ("within all tolerances",))


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
def test_each_tolerance_alone_is_a_reason(change: dict[str, object], word: str) -> None:
    decision, reasons = decide(FINE._replace(**change), TOLERANCES)  # type: ignore[arg-type]
    assert decision == "retrain"
    assert word in reasons[0]
    assert len(reasons) == 1


def test_proxies_of_an_exact_model_are_no_reason() -> None:
    seen = FINE._replace(guarantee="exact", was_guaranteed="exact", is_judged=False)
    assert decide(seen, TOLERANCES)[0] == "keep"


def test_a_share_of_the_budget_can_be_the_limit() -> None:
    seen = FINE._replace(guarantee="certified", spent=0.6, budget=1.0)
    assert decide(seen, TOLERANCES)[0] == "keep"
    assert decide(seen, replace(TOLERANCES, budget=0.5))[0] == "retrain"


def test_one_slow_removal_says_little() -> None:
    once = FINE._replace(speed_ups=(9.0, 9.0, 0.1))
    often = FINE._replace(speed_ups=(9.0, 0.1, 0.1))
    assert len(decide(once, TOLERANCES)[1]) == 1
    assert "look into it" in decide(often, TOLERANCES)[1][-1]


def test_nothing_rehearsed_has_no_horizon() -> None:
    assert decide(FINE._replace(horizon=None, share=np.inf), TOLERANCES)[0] == "keep"
