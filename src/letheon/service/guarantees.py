"""API output for the guarantee, measures and budget of a model, and the budget forecast."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import combinations
from statistics import median
from typing import Any, Literal, get_args

from letheon.ledger.certificates.claims import adds_up
from letheon.ledger.certificates.explanations import ASSUMPTIONS, explain_codes, explain_guarantee
from letheon.service.schemas import CodeOut, Out

Kind = Literal["exact", "certified", "empirical"]
MeasureName = Literal["efficiency", "effectiveness", "consistency", "certifiability"]
Basis = Literal["measured", "proxy", "by-proof", "not-measured"]
_NOT_MEASURED = "not-measured"
_BASES: Mapping[str, Basis] = {
    "measured-vs-retrain": "measured",
    "proxy-estimate": "proxy",
    "by-proof": "by-proof",
    _NOT_MEASURED: "not-measured",
}
_DAY = 86_400
_FARTHEST_DAYS = 20 * 365


class GuaranteeOut(Out):
    """The guarantee of a model.

    Attributes
    ----------
    epsilon : float or None
        Epsilon of a certified guarantee; null for other guarantees.
    words : str
        Explanation of the guarantee.
    assumptions : list of CodeOut
        Assumptions of the guarantee.
    """

    kind: Kind
    epsilon: float | None
    delta: float | None
    requests: Literal["oblivious", "adaptive"]
    releases: Literal["labels-only", "latest-only", "every-version"]
    words: str
    assumptions: list[CodeOut]


class BudgetOut(Out):
    """The privacy budget of a certified method.

    Attributes
    ----------
    rule : str
        Accounting rule.
    adds_up : bool
        Whether the spent amount grows with each request.
    spent : float or None
        Spent amount, rounded to tenths of the budget; null in certificates.
    share : float or None
        Spent share of the budget, from 0 to 1; null in certificates.
    """

    rule: str
    adds_up: bool
    spent: float | None
    budget: float | None
    share: float | None
    deletions_since_retrain: int


class MeasureOut(Out):
    """One of the four measures of a removal; `basis` distinguishes measurements from proxies.

    Attributes
    ----------
    metric : str
        Code of the metric.
    value : float or None
        Measured value; null if it was not measured.
    n : int
        Number of rows or runs that were measured; 0 if the value holds by proof.
    """

    metric: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    basis: Basis


class ForecastOut(Out):
    """The forecast of the day on which the next retrain is due; null if there is none."""

    on: date | None
    words: str


def guarantee_out(section: Mapping[str, Any]) -> GuaranteeOut:
    """Convert the `guarantee` section of a certificate, and add an explanation."""
    names = ("kind", "epsilon", "delta", "requests", "releases")
    claims: dict[str, Any] = {name: section.get(name) for name in names}
    return GuaranteeOut(
        **claims,
        words=explain_guarantee(section),
        assumptions=codes_out(section.get("assumptions", ()), ASSUMPTIONS),
    )


def budget_out(accounting: Mapping[str, Any]) -> BudgetOut:
    """Convert the `accounting` section of a certificate, and add the spent share."""
    spent, budget = accounting.get("spent"), float(accounting.get("budget") or 0)
    return BudgetOut(
        rule=accounting["rule"],
        adds_up=adds_up(accounting["rule"]),
        spent=spent,
        budget=accounting.get("budget"),
        share=float(spent) / budget if spent is not None and budget > 0 else None,
        deletions_since_retrain=accounting["deletionsSinceRetrain"],
    )


def measures_out(section: Mapping[str, Mapping[str, Any]]) -> dict[MeasureName, MeasureOut]:
    """Convert the `measurements` section of a certificate; the keys are names of measures."""
    return {name: _measure_out(section[name]) for name in get_args(MeasureName)}


def _measure_out(measure: Mapping[str, Any]) -> MeasureOut:
    known = {} if measure["metric"] == _NOT_MEASURED else measure
    return MeasureOut(
        metric=measure["metric"],
        **{name: known.get(name) for name in ("value", "low", "high")},
        n=known.get("n", 0),
        basis=_BASES[known.get("basis", _NOT_MEASURED)],
    )


def codes_out(codes: Any, table: Mapping[str, str]) -> list[CodeOut]:
    """Return codes with their meanings from a table."""
    return [CodeOut(code=code, words=words) for code, words in explain_codes(codes, table)]


def compute_slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the Theil-Sen slope of points (x, y): the median slope over all pairs of points.

    Unlike the slope of a least-squares line, it is robust to a few large requests. Pairs with the
    same x are left out. None if no pair remains.
    """
    pairs = combinations(points, 2)
    slopes = [(y_j - y_i) / (x_j - x_i) for (x_i, y_i), (x_j, y_j) in pairs if x_i != x_j]
    return median(slopes) if slopes else None


def forecast_budget(spent: Sequence[tuple[int, float]], budget: float, now: int) -> ForecastOut:
    """Forecast the day on which the budget will be spent, at the rate since the last retrain.

    The rate is the Theil-Sen slope of the spent totals of all versions since the last retrain or
    the registration. Today's total is included, so days without requests lower the rate. The
    forecast continues from today's total at this rate until the budget is reached.

    Parameters
    ----------
    spent : sequence of (int, float)
        Time (seconds since 1970) and spent total of each version, oldest first; at least one.
    budget : float
        The total that may be spent.
    now : int
        Current time, in seconds since 1970.
    """
    today, last = datetime.fromtimestamp(now, UTC).date(), spent[-1][1]
    if last >= budget:
        return ForecastOut(
            on=today, words="The budget is spent: the next batch retrains the model."
        )
    if last <= 0:
        return ForecastOut(on=None, words="Nothing has been spent since the last retrain.")
    start = spent[0][0]
    points = [((at - start) / _DAY, value) for at, value in spent]
    rate = compute_slope([*points, ((max(now, spent[-1][0]) - start) / _DAY, last)])
    if rate is None or rate <= 0:
        return ForecastOut(
            on=None, words="It is too early to estimate when the budget will be spent."
        )
    days = (budget - last) / rate
    if days > _FARTHEST_DAYS:
        return ForecastOut(
            on=None, words="At the current rate, the budget lasts for more than twenty years."
        )
    return ForecastOut(
        on=today + timedelta(days=int(days)),
        words=(
            "At the current rate, the budget will be spent on this day. The rate is the median "
            f"since the last retrain, over {len(spent)} versions."
        ),
    )
