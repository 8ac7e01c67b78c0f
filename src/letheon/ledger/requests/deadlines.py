"""By when a request must be answered: GDPR Article 12(3), CCPA regulation 7021.

All dates follow from the stored time of receipt, the stored pauses and the calendar; never from
the day on which somebody asks.
"""

import calendar as months
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, Protocol

from letheon.exceptions import RequestStateError
from letheon.ledger.requests.calendar import Calendar

Regime = Literal["gdpr", "ccpa"]
REGIMES: tuple[Regime, ...] = ("gdpr", "ccpa")

_ALARMS = (100, 90, 75, 50)
_SECONDS_A_DAY = 86_400
_CCPA_DAYS = 45
_CCPA_CONFIRM = 10


class Clocked(Protocol):
    """What has a clock: a request."""

    @property
    def received_at(self) -> datetime:
        """Time of receipt."""

    @property
    def due_on(self) -> date:
        """Last day."""


def due_on(regime: str, received: datetime, calendar: Calendar, *, paused_seconds: int = 0) -> date:
    """Return the last day on which the request can be answered in time.

    GDPR: the same date in the next month, its last day if it has no such date, put off by whole
    days of a pause; then the next working day (Regulation 1182/71, Article 3). CCPA: 45 calendar
    days, whatever day that is, and nothing stops the clock.

    Parameters
    ----------
    regime : {"gdpr", "ccpa"}
        Which law.
    received : datetime
        When it was received, with a time zone.
    calendar : Calendar
        Of the controller's seat.
    paused_seconds : int, default=0
        How long the identity of the asker was really awaited.

    Examples
    --------
    >>> from datetime import UTC
    >>> due_on("gdpr", datetime(2026, 1, 31, 12, tzinfo=UTC), Calendar()).isoformat()
    '2026-03-02'
    >>> due_on("ccpa", datetime(2026, 1, 31, 12, tzinfo=UTC), Calendar()).isoformat()
    '2026-03-17'
    """
    return _period(regime, calendar.day_of(received), calendar, 1, paused_seconds)


def extended(
    regime: str,
    received: datetime,
    calendar: Calendar,
    *,
    noticed: datetime,
    paused_seconds: int = 0,
) -> date:
    """Return the last day after an extension: two further months (GDPR), 45 further days (CCPA).

    Raises
    ------
    RequestStateError
        The notice comes after the first period, when nothing can be extended any more.
    """
    first = due_on(regime, received, calendar, paused_seconds=paused_seconds)
    told = calendar.day_of(noticed)
    if told > first:
        raise RequestStateError(
            f"an extension must be announced by {first}, and it is {told}; answer the request now"
        )
    periods = 3 if regime == "gdpr" else 2
    return _period(regime, calendar.day_of(received), calendar, periods, paused_seconds)


def confirm_by(regime: str, received: datetime, calendar: Calendar) -> date | None:
    """Return by when receipt must be confirmed: 10 business days (CCPA); None where not asked.

    Only weekends are left out. Whose holidays count depends on the place, and a day too early
    breaks no law.
    """
    if _known(regime) != "ccpa":
        return None
    day, counted = calendar.day_of(received), 0
    while counted < _CCPA_CONFIRM:
        day += timedelta(days=1)
        counted += day.weekday() < 5
    return day


def may_pause(regime: str) -> bool:
    """Whether waiting for proof of identity stops the clock: GDPR yes, CCPA no."""
    return _known(regime) == "gdpr"


def paused_seconds(stored: int, paused_at: int | None, now: int) -> int:
    """Return how long a clock has stood still: stored pauses, and the one that is on."""
    return stored + (0 if paused_at is None else max(0, now - paused_at))


def alarm(request: Clocked, now: datetime, calendar: Calendar) -> int:
    """Return the highest of 50, 75, 90, 100 per cent of its time that a request has used, or 0.

    100 means that it is overdue. Time is counted in real seconds: a day at the change of the clocks
    has 23 or 25 hours.
    """
    # Two times of one zone are subtracted as wall clocks; of two zones, or in UTC, they are not.
    start, end = request.received_at.astimezone(UTC), calendar.end_of(request.due_on)
    used = (now - start) / (end - start)
    return next((level for level in _ALARMS if used * 100 >= level), 0)


def _period(regime: str, start: date, calendar: Calendar, periods: int, paused: int) -> date:
    """Return the last day of so many months (GDPR) or spans of 45 days (CCPA)."""
    if paused < 0:
        raise ValueError(f"paused_seconds={paused} must not be negative")
    if _known(regime) == "ccpa":
        return start + timedelta(days=periods * _CCPA_DAYS)
    last = months_later(start, periods) + timedelta(days=paused // _SECONDS_A_DAY)
    return calendar.next_working_day(last)


def months_later(day: date, count: int) -> date:
    """Return the same date so many months later, or the last day of a month that has none."""
    years, month = divmod(day.month - 1 + count, 12)
    year, month = day.year + years, month + 1
    return date(year, month, min(day.day, months.monthrange(year, month)[1]))


def _known(regime: str) -> str:
    if regime not in REGIMES:
        raise ValueError(f"regime={regime!r} is not one of {', '.join(REGIMES)}")
    return regime


def end_of_hold(until: Any, calendar: Calendar) -> int:
    """Return the moment, or when the day begins at the seat."""
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise ValueError("until has no time zone; give one, or a date")
        return int(until.timestamp())
    day = _day(until) if isinstance(until, str) else until
    if not isinstance(day, date):
        raise TypeError(
            f"until is a {type(until).__name__}; give a date, a datetime or a text YYYY-MM-DD"
        )
    return int(calendar.end_of(day - timedelta(days=1)).timestamp())


def _day(text: str) -> date:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        raise ValueError(f"until={text!r} is no day; write it as 2027-01-31") from None
