"""What is claimed about a model, in codes and in words."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from letheon.ledger.certificates.claims import adds_up
from letheon.ledger.certificates.explanations import ASSUMPTIONS, guarantee_words, words_of
from letheon.service._schemas import Out

__all__ = [
    "BudgetOut",
    "CodeOut",
    "GuaranteeOut",
    "MeasureOut",
    "MeasuresOut",
    "budget_out",
    "codes_out",
    "guarantee_out",
    "measures_out",
]

Kind = Literal["exact", "certified", "empirical"]
Basis = Literal["measured", "proxy", "by-proof", "not-measured"]
_BASES: Mapping[str, Basis] = {
    "measured-vs-retrain": "measured",
    "proxy-estimate": "proxy",
    "by-proof": "by-proof",
}
_NOT_MEASURED: Literal["not-measured"] = "not-measured"


class CodeOut(Out):
    """A code of a certificate, and what it means."""

    code: str
    words: str


class GuaranteeOut(Out):
    """What is claimed about a model."""

    kind: Kind
    epsilon: float | None = Field(description="Of a certified guarantee.")
    delta: float | None
    requests: Literal["oblivious", "adaptive"]
    releases: Literal["labels-only", "latest-only", "every-version"]
    words: str = Field(description="What that means.")
    assumptions: list[CodeOut] = Field(description="What must hold for it.")


class BudgetOut(Out):
    """The budget of a certified method; what was spent is coarse, and in no certificate."""

    rule: str = Field(description="How it is counted.")
    adds_up: bool = Field(description="Whether what is spent grows from request to request.")
    spent: float | None = Field(description="In tenths of the budget; null in certificates.")
    budget: float | None
    share: float | None = Field(description="Spent, as a share of the budget.", ge=0)
    deletions_since_retrain: int = Field(ge=0)


class MeasureOut(Out):
    """One of the four measures; a proxy is never called a measurement."""

    metric: str = Field(description="What was computed, a code.")
    value: float | None = Field(description="Null where nobody measured it.")
    low: float | None
    high: float | None
    n: int = Field(ge=0, description="Rows or runs behind it; 0 by proof.")
    basis: Basis


class MeasuresOut(Out):
    """The four measures of a version."""

    efficiency: MeasureOut
    effectiveness: MeasureOut
    consistency: MeasureOut
    certifiability: MeasureOut


def guarantee_out(section: Mapping[str, Any]) -> GuaranteeOut:
    """Return the `guarantee` part of a certificate, with words."""
    return GuaranteeOut(
        kind=section["kind"],
        epsilon=_number(section.get("epsilon")),
        delta=_number(section.get("delta")),
        requests=section["requests"],
        releases=section["releases"],
        words=guarantee_words(section),
        assumptions=codes_out(section.get("assumptions", ()), ASSUMPTIONS),
    )


def budget_out(accounting: Mapping[str, Any]) -> BudgetOut:
    """Return the account of a certificate."""
    spent, budget = _number(accounting.get("spent")), _number(accounting.get("budget"))
    grows = adds_up(accounting["rule"])
    known = spent is not None and budget is not None and budget > 0
    return BudgetOut(
        rule=accounting["rule"],
        adds_up=grows,
        spent=spent,
        budget=budget,
        share=float(spent or 0) / float(budget or 1) if known else None,
        deletions_since_retrain=accounting["deletionsSinceRetrain"],
    )


def measures_out(section: Mapping[str, Mapping[str, Any]]) -> MeasuresOut:
    """Return the `measurements` of a certificate."""
    return MeasuresOut(**{name: _measure(found) for name, found in section.items()})


def codes_out(codes: Any, table: Mapping[str, str]) -> list[CodeOut]:
    """Return codes with their words."""
    return [CodeOut(code=code, words=words) for code, words in words_of(codes, table)]


def _measure(found: Mapping[str, Any]) -> MeasureOut:
    if found["metric"] == _NOT_MEASURED:
        return MeasureOut(
            metric=_NOT_MEASURED, value=None, low=None, high=None, n=0, basis=_NOT_MEASURED
        )
    return MeasureOut(
        metric=found["metric"],
        value=_number(found["value"]),
        low=_number(found.get("low")),
        high=_number(found.get("high")),
        n=found["n"],
        basis=_BASES[found["basis"]],
    )


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
