"""The survey's four measures in a certificate: how large, and what each rests on.

A proxy is never printed as a measurement, and what nobody measured says so: its metric is
``not-measured``, and `notClaimed` repeats it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from letheon.data import Rows, hold_table, hold_target, row_ids, table_length
from letheon.exceptions import SignerRefusedError
from letheon.guarantee import Guarantee
from letheon.ledger.certificates.parameters import decimal, figure

if TYPE_CHECKING:
    from letheon.monitor import Reading


PROPERTIES = ("efficiency", "effectiveness", "consistency", "certifiability")
NOT_MEASURED = "not-measured"

Basis = Literal["measured-vs-retrain", "proxy-estimate", "by-proof"]

# The names of the house's metrics as codes; a metric of the caller's own is not named.
_METRICS = {
    "mean probability of the true label": "true-label-probability",
    "accuracy": "accuracy",
    "R²": "r2",
}
METRIC_CODES = frozenset(_METRICS.values())
# Of an exact removal nothing is left to measure: it has the bytes of a retrain.
_ROUNDED = "equal-but-for-rounding"
_BY_PROOF = {"effectiveness": "acc-diff", "consistency": "param-l2", "certifiability": "sape"}
# Which performance a monitor looks at is part of its policy, whose digest stands beside.
_MONITORED = {"effectiveness": "metric-diff", "certifiability": "sape"}


class TestFigures(NamedTuple):
    """Performance on a test set: of the model now, and of the last retrained one."""

    metric: str
    now: float
    then: float
    n: int


class Timing(NamedTuple):
    """Seconds of this removal, and of a retrain on the rows left, as far as known."""

    seconds: float
    retrain: float | None


def test_metric(model: Any, X: Any, y: Any) -> tuple[str, float]:
    """Return the code of a model's metric and its value on test rows, as the monitor takes it."""
    # A second of imports, which few commands need.
    from letheon.monitor import judge_for, spread_of

    judge, table, target = judge_for(model, None), hold_table(X), hold_target(y)
    rows = Rows(table, target, row_ids(None, table_length(table)))
    value = judge.value(target, judge.outputs(model, rows), spread_of(target))
    return _METRICS[judge.name], float(value)


# Neither is a test, whatever a test runner makes of the names.
vars(test_metric)["__test__"] = False
setattr(TestFigures, "__test__", False)  # noqa: B010


def measurements(
    claim: Guarantee,
    *,
    is_retrain: bool,
    timing: Timing,
    test: TestFigures | None,
    reading: "Reading | None",
    is_proved: bool = True,
) -> dict[str, dict[str, Any]]:
    """Return one measure for each of the survey's properties.

    Nothing follows by proof from the word of a method that is not letheon's (`is_proved`), nor
    does equality from a fit that is equal but for rounding.

    Effectiveness is ``|M(h_m) - M(h*)|`` for the last retrained ``h*``, a proxy of what a retrain
    now would show; efficiency is ``time(retrain) / time(removal)``.
    """
    found = dict.fromkeys(PROPERTIES, _measure(NOT_MEASURED, "0", 0, "proxy-estimate"))
    if claim.kind == "certified" and is_proved:
        assert claim.epsilon is not None
        epsilon = _measure("epsilon", decimal(claim.epsilon), 0, "by-proof")
        found["certifiability"] = epsilon
    if test is not None:
        gap = abs(test.now - test.then)
        found["effectiveness"] = _estimate(f"{test.metric}-diff", gap, test.n)
    if reading is not None:
        found.update(_monitored(reading))
    if claim.kind == "exact" and is_proved and _ROUNDED not in claim.assumptions:
        proved = {name: _measure(code, "0", 0, "by-proof") for name, code in _BY_PROOF.items()}
        found.update(proved)
    found["efficiency"] = _efficiency(timing, is_retrain=is_retrain)
    return found


def refuse_unproved(
    claim: Guarantee, said: Mapping[str, Any], *, is_retrain: bool, is_proved: bool = True
) -> None:
    """Refuse figures that are said to follow by proof and do not.

    Raises
    ------
    SignerRefusedError
        The text says which.
    """
    proved = measurements(
        claim,
        is_retrain=is_retrain,
        timing=Timing(0.0, None),
        test=None,
        reading=None,
        is_proved=is_proved,
    )
    for name in PROPERTIES:
        if said[name]["basis"] == "by-proof" and said[name] != proved[name]:
            raise SignerRefusedError(f"measurements.{name} does not follow by proof")


def without_times(kind: str, measures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measures of a certificate: of a certified removal no time is stated.

    How long it took depends on the rows that left, and (epsilon, delta) does not cover it.
    """
    if kind != "certified":
        return dict(measures)
    return {**measures, "efficiency": _measure(NOT_MEASURED, "0", 0, "proxy-estimate")}


def unmeasured(measures: dict[str, dict[str, Any]]) -> list[str]:
    """Return what a certificate must not be read to claim: measures that nobody took."""
    return [
        f"{name}-{NOT_MEASURED}" for name in PROPERTIES if measures[name]["metric"] == NOT_MEASURED
    ]


def _monitored(reading: "Reading") -> dict[str, dict[str, Any]]:
    return {
        name: _estimate(code, reading.proxies[name], reading.n_test)
        for name, code in _MONITORED.items()
        if name in reading.proxies and np.isfinite(reading.proxies[name])
    }


def _efficiency(timing: Timing, *, is_retrain: bool) -> dict[str, Any]:
    if is_retrain:
        return _measure("speedup", "1", 0, "by-proof")
    if timing.retrain is None or timing.seconds <= 0:
        return _measure(NOT_MEASURED, "0", 0, "proxy-estimate")
    ratio = figure(timing.retrain / timing.seconds, "down")
    return _measure("speedup", ratio, 1, "proxy-estimate")


def _estimate(metric: str, value: float, n: int) -> dict[str, Any]:
    """Return an upper estimate with one digit: two tell candidates for the erased row apart."""
    return _measure(metric, figure(value, "up", digits=1), n, "proxy-estimate")


def _measure(metric: str, value: str, n: int, basis: Basis) -> dict[str, Any]:
    return {"metric": metric, "value": value, "n": n, "basis": basis}
