"""By when a request must be answered: GDPR Article 12(3), CCPA regulation 7021.

All dates follow from the stored time of receipt, the stored pauses and the calendar of the
controller's seat (working days: Regulation 1182/71, Articles 2 and 3); never from the day on which
somebody asks.
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

# Fixed days as month-day, moving ones as days after Easter Sunday. A holiday that is missing
# only makes a date earlier, so days of single regions, and days that lists add in some years only,
# are left out. Regulation 1182/71, Article 2: the days "designated as such in the Member State or
# in the Community institution in which action is to be taken".
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
    """Where the controller sits: its time zone, its public holidays.

    Parameters
    ----------
    seat : str, default="EU"
        Whose public holidays are computed: a Member State ("BE", "DE", ...), "EU" for days that
        recur on the yearly lists of the Union's institutions, "none" for weekends only. Name the
        Member State where it is known: Good Friday, for one, is no holiday in Belgium.
    timezone : str, default="Europe/Brussels"
        Name in the IANA database. A request belongs to the day that it is there.
    holidays : tuple of date, optional
        Further days that are no working days; `from_file` reads them from a file.

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
        """Refuse an unknown seat or time zone, and holidays that are no days."""
        for name in ("seat", "timezone"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name}={getattr(self, name)!r} must be a text")
        if self.seat not in SEATS:
            raise ValueError(f"seat={self.seat!r} is not one of {', '.join(SEATS)}")
        try:
            ZoneInfo(self.timezone)
        except (ValueError, OSError, LookupError) as error:
            raise ValueError(
                f"timezone={self.timezone!r} is not in the IANA database; write 'Europe/Paris'"
            ) from error
        for day in self.holidays:
            if type(day) is not date:
                raise ValueError(f"holidays must be dates; got {day!r}")

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        seat: str = "EU",
        timezone: str = "Europe/Brussels",
    ) -> Self:
        """Return a calendar with the days of a file: one YYYY-MM-DD per line, ``#`` comments."""
        days = set()
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            text = line.partition("#")[0].strip()
            if text:
                days.add(_parse_day(f"{path}, line {number}: {text!r}", text, "2026-12-24"))
        return cls(seat=seat, timezone=timezone, holidays=tuple(sorted(days)))

    def day_of(self, moment: datetime) -> date:
        """Return which day a moment is at the seat."""
        if moment.tzinfo is None:
            raise ValueError(f"{moment!r} has no time zone; use datetime.now(UTC)")
        return moment.astimezone(ZoneInfo(self.timezone)).date()

    def end_of(self, day: date) -> datetime:
        """Return the moment, in UTC, at which a day is over at the seat."""
        midnight = datetime.combine(day + _DAY, time(), ZoneInfo(self.timezone))
        return midnight.astimezone(UTC)

    def is_working_day(self, day: date) -> bool:
        """Whether a day is neither a Saturday, a Sunday nor a public holiday."""
        return (
            day.weekday() < 5
            and day not in self.holidays
            and day not in _public_holidays(self.seat, day.year)
        )

    def next_working_day(self, day: date) -> date:
        """Return the day itself, or the first working day after it."""
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
    >>> easter(2026).isoformat()
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
    return _end_of_period(regime, calendar.day_of(received), calendar, 1, paused_seconds)


def extend_due_date(
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
    today = calendar.day_of(noticed)
    if today > first:
        raise RequestStateError(
            f"an extension must be announced by {first}, and it is {today}; answer the request now"
        )
    periods = 3 if regime == "gdpr" else 2
    return _end_of_period(regime, calendar.day_of(received), calendar, periods, paused_seconds)


def confirm_by(regime: str, received: datetime, calendar: Calendar) -> date | None:
    """Return by when receipt must be confirmed: 10 business days (CCPA); None where not asked.

    Only weekends are left out. Whose holidays count depends on the place, and a day too early
    breaks no law.
    """
    if _require_regime(regime) != "ccpa":
        return None
    day, counted = calendar.day_of(received), 0
    while counted < 10:
        day += _DAY
        counted += day.weekday() < 5
    return day


def may_pause(regime: str) -> bool:
    """Whether waiting for proof of identity stops the clock: GDPR yes, CCPA no."""
    return _require_regime(regime) == "gdpr"


def count_paused_seconds(stored: int, paused_at: int | None, now: int) -> int:
    """Return how long a clock has stood still: stored pauses, and the one that is on."""
    return stored + (0 if paused_at is None else max(0, now - paused_at))


def alarm_level(request: "Request", now: datetime, calendar: Calendar) -> int:
    """Return the highest of 50, 75, 90, 100 per cent of its time that a request has used, or 0.

    100 means that it is overdue. Time is counted in real seconds: a day at the change of the clocks
    has 23 or 25 hours.
    """
    # Two times of one zone are subtracted as wall clocks; of two zones, or in UTC, they are not.
    start, end = request.received_at.astimezone(UTC), calendar.end_of(request.due_on)
    used = (now - start) / (end - start)
    return next((level for level in _ALARMS if used * 100 >= level), 0)


def _end_of_period(regime: str, start: date, calendar: Calendar, periods: int, paused: int) -> date:
    """Return the last day of so many months (GDPR) or spans of 45 days (CCPA)."""
    if paused < 0:
        raise ValueError(f"paused_seconds={paused} must not be negative")
    if _require_regime(regime) == "ccpa":
        return start + timedelta(days=periods * _CCPA_DAYS)
    last = months_later(start, periods) + timedelta(days=paused // 86_400)
    return calendar.next_working_day(last)


def months_later(day: date, count: int) -> date:
    """Return the same date so many months later, or the last day of a month that has none."""
    years, month = divmod(day.month - 1 + count, 12)
    year, month = day.year + years, month + 1
    return date(year, month, min(day.day, months.monthrange(year, month)[1]))


def _require_regime(regime: str) -> str:
    if regime not in REGIMES:
        raise ValueError(f"regime={regime!r} is not one of {', '.join(REGIMES)}")
    return regime


def end_of_hold(until: Any, calendar: Calendar) -> int:
    """Return the moment, or when the day begins at the seat."""
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise ValueError("until has no time zone; give one, or a date")
        return int(until.timestamp())
    day = _parse_day(f"until={until!r}", until, "2027-01-31") if isinstance(until, str) else until
    if not isinstance(day, date):
        raise TypeError(
            f"until is a {type(until).__name__}; give a date, a datetime or a text YYYY-MM-DD"
        )
    return int(calendar.end_of(day - _DAY).timestamp())


def _parse_day(what: str, text: str, example: str) -> date:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        raise ValueError(f"{what} is no day; write it as {example}") from None


def tz_version() -> str:
    """Return which version of the IANA database gives the days, as ``iana:2026f``.

    The system's own files are used before the package ``tzdata``, as `zoneinfo` does.
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
