"""Working days at the controller's seat (Regulation 1182/71, Articles 2 and 3)."""

import importlib
import os
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Self
from zoneinfo import ZoneInfo

_DAY = timedelta(days=1)

# Fixed days as (month, day), moving ones as days after Easter Sunday. A holiday that is missing
# only makes a date earlier, so days of single regions, and days that lists add in some years only,
# are left out. Regulation 1182/71, Article 2: the days "designated as such in the Member State or
# in the Community institution in which action is to be taken".
_FIXED: dict[str, str] = {
    "none": "",
    "EU": "1-1 5-1 8-15 11-1 12-25 12-26",
    "AT": "1-1 1-6 5-1 8-15 10-26 11-1 12-8 12-25 12-26",
    "BE": "1-1 5-1 7-21 8-15 11-1 11-11 12-25",
    "DE": "1-1 5-1 10-3 12-25 12-26",
    "ES": "1-1 1-6 5-1 8-15 10-12 11-1 12-6 12-8 12-25",
    "FR": "1-1 5-1 5-8 7-14 8-15 11-1 11-11 12-25",
    "IT": "1-1 1-6 4-25 5-1 6-2 8-15 11-1 12-8 12-25 12-26",
    "LU": "1-1 5-1 5-9 6-23 8-15 11-1 12-25 12-26",
    "NL": "1-1 4-27 12-25 12-26",
    "PL": "1-1 1-6 5-1 5-3 8-15 11-1 11-11 12-25 12-26",
    "PT": "1-1 4-25 5-1 6-10 8-15 10-5 11-1 12-1 12-8 12-25",
}
_GOOD_FRIDAY, _EASTER_MONDAY, _ASCENSION, _WHIT_MONDAY, _CORPUS_CHRISTI = -2, 1, 39, 50, 60
_MOVING: dict[str, tuple[int, ...]] = {
    "EU": (_GOOD_FRIDAY, _EASTER_MONDAY, _ASCENSION, _WHIT_MONDAY),
    "AT": (_EASTER_MONDAY, _ASCENSION, _WHIT_MONDAY, _CORPUS_CHRISTI),
    "BE": (_EASTER_MONDAY, _ASCENSION, _WHIT_MONDAY),
    "DE": (_GOOD_FRIDAY, _EASTER_MONDAY, _ASCENSION, _WHIT_MONDAY),
    "ES": (_GOOD_FRIDAY,),
    "FR": (_EASTER_MONDAY, _ASCENSION, _WHIT_MONDAY),
    "IT": (_EASTER_MONDAY,),
    "LU": (_EASTER_MONDAY, _ASCENSION, _WHIT_MONDAY),
    "NL": (_EASTER_MONDAY, _ASCENSION, _WHIT_MONDAY),
    "PL": (_EASTER_MONDAY, _CORPUS_CHRISTI),
    "PT": (_GOOD_FRIDAY, _CORPUS_CHRISTI),
}
SEATS = tuple(_FIXED)


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
        days = []
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            text = line.partition("#")[0].strip()
            if text:
                days.append(_day(text, f"{path}, line {number}"))
        return cls(seat=seat, timezone=timezone, holidays=tuple(sorted(set(days))))

    def day_of(self, moment: datetime) -> date:
        """Return which day a moment is at the seat."""
        if moment.tzinfo is None:
            raise ValueError(f"{moment!r} has no time zone; use datetime.now(UTC)")
        return moment.astimezone(ZoneInfo(self.timezone)).date()

    def end_of(self, day: date) -> datetime:
        """Return the moment, in UTC, at which a day is over at the seat."""
        after = day + _DAY
        midnight = datetime(after.year, after.month, after.day, tzinfo=ZoneInfo(self.timezone))
        return midnight.astimezone(UTC)

    def is_working_day(self, day: date) -> bool:
        """Whether a day is neither a Saturday, a Sunday nor a public holiday."""
        return (
            day.weekday() < 5
            and day not in self.holidays
            and day not in _computed(self.seat, day.year)
        )

    def next_working_day(self, day: date) -> date:
        """Return the day itself, or the first working day after it."""
        while not self.is_working_day(day):
            day += _DAY
        return day


@lru_cache(maxsize=256)
def _computed(seat: str, year: int) -> frozenset[date]:
    """Return the public holidays of one year."""
    return frozenset(_days(seat, year))


def _days(seat: str, year: int) -> Iterator[date]:
    for text in _FIXED[seat].split():
        month, _, day = text.partition("-")
        yield date(year, int(month), int(day))
    sunday = easter(year)
    for after in _MOVING.get(seat, ()):
        yield sunday + timedelta(days=after)


def easter(year: int) -> date:
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


def _day(text: str, place: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{place}: {text!r} is no day; write it as 2026-12-24") from error


def tz_version() -> str:
    """Return which version of the IANA database gives the days, as ``iana:2026f``.

    The system's own files are used before the package ``tzdata``, as `zoneinfo` does.
    """
    for folder in map(Path, zoneinfo.TZPATH):
        if not (folder / "Europe" / "Brussels").exists():
            continue
        return f"iana:{_version_in(folder)}"
    try:
        return f"iana:{importlib.import_module('tzdata').IANA_VERSION}"
    except ImportError:
        return "iana:unknown"


def _version_in(folder: Path) -> str:
    for name in ("tzdata.zi", "+VERSION"):
        file = folder / name
        if file.exists():
            with file.open(encoding="utf-8") as lines:
                first = lines.readline().split()
            if first:
                return first[-1].lower()
    return "unknown"
