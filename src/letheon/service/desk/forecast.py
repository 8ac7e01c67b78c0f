"""When the budget of a model will be spent, and a retrain is due."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np

from letheon.service._schemas import Out

__all__ = ["ForecastOut", "forecast", "slope"]

_DAY = 86_400
_FARTHEST_DAYS = 20 * 365


class ForecastOut(Out):
    """When the next retrain is due."""

    on: date | None
    words: str


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the Theil-Sen slope: the median over all pairs of ``(y_j - y_i) / (x_j - x_i)``.

    A few large requests do not move it, as they would move a least squares line. Pairs of one time
    are left out; None if there is no other.
    """
    x, y = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    left, right = np.triu_indices(len(x), k=1)
    apart = x[right] != x[left]
    if not apart.any():
        return None
    rise, run = (y[right] - y[left])[apart], (x[right] - x[left])[apart]
    return float(np.median(rise / run))


def forecast(spent: Sequence[tuple[int, float]], budget: float, now: int) -> ForecastOut:
    """Return the day on which the budget is spent, at the rate of the time since the last retrain.

    The rate is the Theil-Sen slope through what was spent after each version, beginning with the
    retrain or registration, and through today: days without requests count. The day is that on
    which the line from today's account reaches the budget.

    Parameters
    ----------
    spent : sequence of (int, float)
        When how much was spent in all; oldest first, at least one.
    budget : float
        What may be spent.
    now : int
        Seconds since 1970.
    """
    today, last = datetime.fromtimestamp(now, UTC).date(), spent[-1][1]
    if last >= budget:
        return ForecastOut(on=today, words="The budget is spent: the next batch is a retrain.")
    if last <= 0:
        return ForecastOut(on=None, words="Nothing was spent since the last retrain.")
    start = spent[0][0]
    points = [((at - start) / _DAY, value) for at, value in spent]
    rate = slope([*points, ((max(now, spent[-1][0]) - start) / _DAY, last)])
    if rate is None or rate <= 0:
        return ForecastOut(on=None, words="It is too early to tell the rate of spending.")
    days = (budget - last) / rate
    if days > _FARTHEST_DAYS:
        return ForecastOut(on=None, words="At the present rate not within twenty years.")
    return ForecastOut(
        on=today + timedelta(days=int(days)),
        words=(
            "At the present rate the budget is spent then; the rate is the median of all "
            f"differences since the last retrain, {len(spent)} versions and today."
        ),
    )
