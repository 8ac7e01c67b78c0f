"""Deadlines of requests under GDPR Article 12(3) and CCPA regulation 7021.

All dates are computed from the stored time of receipt, the stored pauses and the calendar of the
controller's seat (working days: Regulation 1182/71, Articles 2 and 3), never from the current day.
"""

import calendar as months
import importlib
import os
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from zoneinfo import ZoneInfo

from letheon.exceptions import RequestStateError

if TYPE_CHECKING:
    from letheon.ledger.schemas import Request

Regime = Literal["gdpr", "ccpa"]
REGIMES: tuple[Regime, ...] = ("gdpr", "ccpa")

_ALARMS = (100, 90, 75, 50)
_CCPA_DAYS = 45
_DAY = timedelta(days=1)

# Fixed days as month-day, moving days as days after Easter Sunday. A missing holiday only makes a
# deadline earlier, so regional holidays and holidays of single years are left out. Regulation
# 1182/71, Article 2: the days "designated as such in the Member State or in the Community
# institution in which action is to be taken".
_GOOD_FRIDAY, _EASTER_MONDAY, _ASCENSION, _WHIT_MONDAY, _CORPUS_CHRISTI = -2, 1, 39, 50, 60
_MONDAYS = (_EASTER_MONDAY, _ASCENSION, _WHIT_MONDAY)
_HOLIDAYS: dict[str, tuple[str, tuple[int, ...]]] = {
    "none": ("", ()),
    "EU": ("1-1 5-1 8-15 11-1 12-25 12-26", (_GOOD_FRIDAY, *_MONDAYS)),
    "AT": ("1-1 1-6 5-1 8-15 10-26 11-1 12-8 12-25 12-26", (*_MONDAYS, _CORPUS_CHRISTI)),
    "BE": ("1-1 5-1 7-21 8-15 11-1 11-11 12-25", _MONDAYS),
    "DE": ("1-1 5-1 10-3 12-25 12-26", (_GOOD_FRIDAY, *_MONDAYS)),
    "ES": ("1-1 1-6 5-1 8-15 10-12 11-1 12-6 12-8 12-25", (_GOOD_FRIDAY,)),
    "FR": ("1-1 5-1 5-8 7-14 8-15 11-1 11-11 12-25", _MONDAYS),
    "IT": ("1-1 1-6 4-25 5-1 6-2 8-15 11-1 12-8 12-25 12-26", (_EASTER_MONDAY,)),
    "LU": ("1-1 5-1 5-9 6-23 8-15 11-1 12-25 12-26", _MONDAYS),
    "NL": ("1-1 4-27 12-25 12-26", _MONDAYS),
    "PL": ("1-1 1-6 5-1 5-3 8-15 11-1 11-11 12-25 12-26", (_EASTER_MONDAY, _CORPUS_CHRISTI)),
    "PT": ("1-1 4-25 5-1 6-10 8-15 10-5 11-1 12-1 12-8 12-25", (_GOOD_FRIDAY, _CORPUS_CHRISTI)),
}
SEATS = tuple(_HOLIDAYS)


@dataclass(frozen=True, kw_only=True)
class Calendar:
    """Time zone and public holidays of the controller's seat.

    Parameters
    ----------
    seat : str, default="EU"
        Which public holidays apply: a Member State ("BE", "DE", ...), "EU" for the holidays of the
        Union's institutions, or "none" for weekends only. Prefer the Member State, because holidays
        differ: Good Friday, for example, is not a holiday in Belgium.
    timezone : str, default="Europe/Brussels"
        Name in the IANA time zone database. It decides on which day a request is received.
    holidays : tuple of date, optional
        Additional holidays; `from_file` reads them from a file.

    Examples
    --------
    >>> from datetime import date
    >>> Calendar().next_working_day(date(2026, 4, 3)).isoformat()  # Good Friday
    '2026-04-07'
    """

    seat: str = "EU"
    timezone: str = "Europe/Brussels"
    holidays: tuple[date, ...] = ()

    def __post_init__(self) -> None:
        """Raise `ValueError` if the seat, the time zone or a holiday is not valid."""
        for name in ("seat", "timezone"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} must be a string, not "
                    f"{type(getattr(self, name)).__name__}"
                )
        if self.seat not in SEATS:
            raise ValueError(f"seat={self.seat!r} is unknown; expected one of: {', '.join(SEATS)}")
        try:
            ZoneInfo(self.timezone)
        except (ValueError, OSError, LookupError) as error:
            raise ValueError(
                f"timezone={self.timezone!r} is not in the IANA time zone database; expected a "
                "name such as 'Europe/Paris'"
            ) from error
        for day in self.holidays:
            if type(day) is not date:
                raise ValueError(f"holidays must contain only datetime.date objects; got {day!r}")

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        seat: str = "EU",
        timezone: str = "Europe/Brussels",
    ) -> Self:
        """Return a calendar whose additional holidays are read from a file.

        The file has one date YYYY-MM-DD per line; ``#`` starts a comment.
        """
        days = set()
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            text = line.partition("#")[0].strip()
            if text:
                days.add(_parse_day(f"{path}, line {number}: {text!r}", text, "2026-12-24"))
        return cls(seat=seat, timezone=timezone, holidays=tuple(sorted(days)))

    def day_of(self, moment: datetime) -> date:
        """Return the date at a moment, in the time zone of the calendar."""
        if moment.tzinfo is None:
            raise ValueError(
                f"{moment!r} has no time zone; use a datetime with a time zone, such as "
                "datetime.now(UTC)"
            )
        return moment.astimezone(ZoneInfo(self.timezone)).date()

    def end_of(self, day: date) -> datetime:
        """Return the midnight that ends a day in the time zone of the calendar, as UTC."""
        midnight = datetime.combine(day + _DAY, time(), ZoneInfo(self.timezone))
        return midnight.astimezone(UTC)

    def is_working_day(self, day: date) -> bool:
        """Return whether a day is not a Saturday, a Sunday or a public holiday."""
        return (
            day.weekday() < 5
            and day not in self.holidays
            and day not in _public_holidays(self.seat, day.year)
        )

    def next_working_day(self, day: date) -> date:
        """Return the day itself if it is a working day, otherwise the next working day."""
        while not self.is_working_day(day):
            day += _DAY
        return day


@lru_cache(maxsize=256)
def _public_holidays(seat: str, year: int) -> frozenset[date]:
    fixed, moving = _HOLIDAYS[seat]
    days = {date(year, *map(int, text.split("-"))) for text in fixed.split()}
    return frozenset(days | {easter_sunday(year) + after * _DAY for after in moving})


def easter_sunday(year: int) -> date:
    """Return Easter Sunday of the western churches (Butcher's algorithm, 1876).

    Examples
    --------
    >>> easter_sunday(2026).isoformat()
    '2026-04-05'
    """
    golden = year % 19
    century, of_century = divmod(year, 100)
    leap_centuries, century_rest = divmod(century, 4)
    correction = (century - (century + 8) // 25 + 1) // 3
    moon = (19 * golden + century - leap_centuries - correction + 15) % 30
    leaps, rest = divmod(of_century, 4)
    weekday = (32 + 2 * century_rest + 2 * leaps - moon - rest) % 7
    late = (golden + 11 * moon + 22 * weekday) // 451
    month, day = divmod(moon + weekday - 7 * late + 114, 31)
    return date(year, month, day + 1)


def due_on(regime: str, received: datetime, calendar: Calendar, *, paused_seconds: int = 0) -> date:
    """Return the due date: the last day on which an answer is in time.

    Under the GDPR, this is the same date in the next month (or the last day of that month), plus
    the whole days of pauses, moved to the next working day (Regulation 1182/71, Article 3). Under
    the CCPA, it is 45 calendar days after receipt, without pauses.

    Parameters
    ----------
    regime : {"gdpr", "ccpa"}
        The law that applies.
    received : datetime
        Time of receipt, with a time zone.
    calendar : Calendar
        Calendar of the controller's seat.
    paused_seconds : int, default=0
        Duration of all pauses while proof of identity was awaited.

    Examples
    --------
    >>> from datetime import UTC
    >>> due_on("gdpr", datetime(2026, 1, 31, 12, tzinfo=UTC), Calendar()).isoformat()
    '2026-03-02'
    >>> due_on("ccpa", datetime(2026, 1, 31, 12, tzinfo=UTC), Calendar()).isoformat()
    '2026-03-17'
    """
    return _end_of_period(regime, calendar.day_of(received), calendar, 1, paused_seconds)


def extend_due_date(
    regime: str,
    received: datetime,
    calendar: Calendar,
    *,
    noticed: datetime,
    paused_seconds: int = 0,
) -> date:
    """Return the due date after an extension by two months (GDPR) or 45 days (CCPA).

    `noticed` is when the person was notified of the extension; see `due_on` for the others.

    Raises
    ------
    RequestStateError
        The first period is over, so the deadline can no longer be extended.
    """
    first = due_on(regime, received, calendar, paused_seconds=paused_seconds)
    today = calendar.day_of(noticed)
    if today > first:
        raise RequestStateError(
            f"the extension had to be announced by {first}, and today is {today}; answer the "
            "request now"
        )
    periods = 3 if regime == "gdpr" else 2
    return _end_of_period(regime, calendar.day_of(received), calendar, periods, paused_seconds)


def confirm_by(regime: str, received: datetime, calendar: Calendar) -> date | None:
    """Return the last day to confirm receipt: 10 business days (CCPA); None under other laws.

    All days except weekends count as business days. Holidays differ between places, and confirming
    too early is never wrong.
    """
    if _require_regime(regime) != "ccpa":
        return None
    day, counted = calendar.day_of(received), 0
    while counted < 10:
        day += _DAY
        counted += day.weekday() < 5
    return day


def may_pause(regime: str) -> bool:
    """Return whether the law pauses the deadline while proof of identity is awaited (GDPR only)."""
    return _require_regime(regime) == "gdpr"


def count_paused_seconds(stored: int, paused_at: int | None, now: int) -> int:
    """Return the duration of all pauses in seconds, including a current pause since `paused_at`."""
    return stored + (0 if paused_at is None else max(0, now - paused_at))


def alarm_level(request: "Request", now: datetime, calendar: Calendar) -> int:
    """Return the share of its time that a request has used: 0, 50, 75, 90 or 100 per cent.

    The share is rounded down; 100 means overdue. Time is counted in seconds, because a day with a
    clock change has 23 or 25 hours.
    """
    # Python subtracts times of the same zone as wall-clock times, so both are converted to UTC.
    start, end = request.received_at.astimezone(UTC), calendar.end_of(request.due_on)
    used = (now - start) / (end - start)
    return next((level for level in _ALARMS if used * 100 >= level), 0)


def _end_of_period(regime: str, start: date, calendar: Calendar, periods: int, paused: int) -> date:
    """Return the last day of a period of `periods` months (GDPR) or `periods` x 45 days (CCPA)."""
    if paused < 0:
        raise ValueError(f"paused_seconds={paused} must not be negative")
    if _require_regime(regime) == "ccpa":
        return start + timedelta(days=periods * _CCPA_DAYS)
    last = months_later(start, periods) + timedelta(days=paused // 86_400)
    return calendar.next_working_day(last)


def months_later(day: date, count: int) -> date:
    """Return the same date `count` months later, or the last day of that month."""
    years, month = divmod(day.month - 1 + count, 12)
    year, month = day.year + years, month + 1
    return date(year, month, min(day.day, months.monthrange(year, month)[1]))


def _require_regime(regime: str) -> str:
    if regime not in REGIMES:
        raise ValueError(f"regime={regime!r} is unknown; expected one of: {', '.join(REGIMES)}")
    return regime


def end_of_hold(until: Any, calendar: Calendar) -> int:
    """Return the end of a hold in seconds since 1970.

    `until` is a datetime, or a date (or string YYYY-MM-DD) at the start of which the hold ends.
    """
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise ValueError(
                f"until={until!r} has no time zone; use a datetime with a time zone, or a date"
            )
        return int(until.timestamp())
    day = _parse_day(f"until={until!r}", until, "2027-01-31") if isinstance(until, str) else until
    if not isinstance(day, date):
        raise TypeError(
            f"until must be a date, a datetime or a string YYYY-MM-DD, not {type(until).__name__}"
        )
    return int(calendar.end_of(day - _DAY).timestamp())


def _parse_day(source: str, text: str, example: str) -> date:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        raise ValueError(f"{source} is not a date; write it as {example}") from None


def tz_version() -> str:
    """Return the version of the IANA time zone database, such as ``iana:2026f``.

    Like `zoneinfo`, this function prefers the files of the system to the package ``tzdata``.
    """
    for folder in map(Path, zoneinfo.TZPATH):
        if (folder / "Europe" / "Brussels").exists():
            return f"iana:{_version_in(folder)}"
    try:
        return f"iana:{importlib.import_module('tzdata').IANA_VERSION}"
    except ImportError:
        return "iana:unknown"


def _version_in(folder: Path) -> str:
    for file in (folder / "tzdata.zi", folder / "+VERSION"):
        if file.exists():
            with file.open(encoding="utf-8") as lines:
                words = lines.readline().split()
            if words:
                return words[-1].lower()
    return "unknown"
