"""Measures that the auditor brings, on the model and on its re-derivation.

The survey (section 6.3) expects a regulator to compute certifiability by measures of their own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from letheon.audit._reading import AuditedModel
from letheon.audit._result import LevelResult
from letheon.measures import Measure

__all__ = ["Measures", "run_measures"]

Measures = Mapping[str, Callable[[Any, Any, Any], Any]]


def run_measures(
    measures: Measures, model: Any, rederived: Any, audited: AuditedModel
) -> Iterator[LevelResult]:
    """Yield the result of every measure; without a re-derived model it is skipped."""
    for name, measure in measures.items():
        if rederived is None:
            reason = f"{name}: there is no re-derived model to measure against"
            yield LevelResult("own", audited.name, "skipped", reason)
            continue
        try:
            value = measure(model, rederived, audited.rows)
        except Exception as error:  # noqa: BLE001 (the auditor's code may raise anything)
            reason = f"{name}: raised {type(error).__name__}: {error}"
            yield LevelResult("own", audited.name, "fail", reason[:300])
            continue
        yield _result(name, value, audited.name)


def _result(name: str, value: Any, model: str) -> LevelResult:
    if isinstance(value, LevelResult):
        return replace(value, level="own", model=model)
    if isinstance(value, bool | np.bool_):
        verdict: Any = "pass" if value else "fail"
        words = "holds" if value else "does not hold"
        return LevelResult("own", model, verdict, f"{name}: {words}")
    if isinstance(value, Measure):
        details = {"value": value.value, "low": value.low, "high": value.high, "n": value.n}
        return LevelResult("own", model, "pass", f"{name} = {value.value:.6g}", details)
    number = float(value)
    return LevelResult("own", model, "pass", f"{name} = {number:.6g}", {"value": number})
