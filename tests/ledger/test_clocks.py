"""Due days against a table made by hand with a wall calendar, and against a day-by-day search."""

import importlib
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.exceptions import RequestStateError
from letheon.ledger.requests.deadlines import (
    SEATS,
    Calendar,
    alarm_level,
    confirm_by,
    count_paused_seconds,
    due_on,
    easter_sunday,
    extend_due_date,
    may_pause,
    tz_version,
)

# Received (UTC; noon where no time is given), due. Seat EU, Brussels.
BRUSSELS = """
2026-01-27 2026-02-27
2026-01-28 2026-03-02
2026-01-29 2026-03-02
2026-01-30 2026-03-02
2026-01-31 2026-03-02
2025-01-31 2025-02-28
2027-01-31 2027-03-01
2024-01-29 2024-02-29
2024-01-31 2024-02-29
2024-02-29 2024-04-02
2028-02-29 2028-03-29
2026-03-31 2026-04-30
2026-05-31 2026-06-30
2026-08-31 2026-09-30
2026-10-31 2026-11-30
2024-11-30 2024-12-30
2025-11-30 2025-12-30
2026-11-30 2026-12-30
2027-11-30 2027-12-30
2026-12-31 2027-02-01
2024-12-01 2025-01-02
2025-12-01 2026-01-02
2026-12-01 2027-01-04
2024-11-25 2024-12-27
2024-11-26 2024-12-27
2025-11-25 2025-12-29
2026-11-24 2026-12-24
2026-11-25 2026-12-28
2027-11-25 2027-12-27
2027-11-26 2027-12-27
2026-03-02 2026-04-02
2026-03-03 2026-04-07
2026-03-05 2026-04-07
2026-03-06 2026-04-07
2025-03-18 2025-04-22
2025-03-21 2025-04-22
2027-02-26 2027-03-30
2028-03-14 2028-04-18
2024-04-09 2024-05-10
2025-04-29 2025-05-30
2026-04-14 2026-05-15
2024-04-20 2024-05-21
2025-05-09 2025-06-10
2026-04-23 2026-05-26
2026-04-25 2026-05-26
2025-04-01 2025-05-02
2026-04-01 2026-05-04
2024-07-15 2024-08-16
2025-07-15 2025-08-18
2026-07-15 2026-08-17
2024-10-01 2024-11-04
2026-10-01 2026-11-02
2026-06-10 2026-07-10
2026-06-11 2026-07-13
2026-06-12 2026-07-13
2026-11-02 2026-12-02
2026-06-09T21:59:59 2026-07-09
2026-06-09T22:00:00 2026-07-10
2026-02-10T22:59:59 2026-03-10
2026-02-10T23:00:00 2026-03-11
2023-12-31T22:59:59 2024-01-31
2023-12-31T23:00:00 2024-02-01
2026-03-28T22:59:59 2026-04-28
2026-03-28T23:00:00 2026-04-29
2026-03-29T21:59:59 2026-04-29
2026-03-29T22:00:00 2026-04-30
2026-10-24T21:59:59 2026-11-24
2026-10-24T22:00:00 2026-11-25
2026-10-25T22:59:59 2026-11-25
2026-10-25T23:00:00 2026-11-26
"""

# Zone, seat, received, due.
ELSEWHERE = """
Pacific/Auckland none 2026-06-09T11:59:59 2026-07-09
Pacific/Auckland none 2026-06-09T12:00:00 2026-07-10
Pacific/Kiritimati none 2026-06-09T09:59:59 2026-07-09
Pacific/Kiritimati none 2026-06-09T10:00:00 2026-07-10
America/Los_Angeles none 2026-06-10T06:59:59 2026-07-09
America/Los_Angeles none 2026-06-10T07:00:00 2026-07-10
Europe/Lisbon PT 2026-06-09T22:59:59 2026-07-09
Europe/Lisbon PT 2026-03-06 2026-04-06
Europe/Lisbon PT 2026-03-25 2026-04-27
Europe/Brussels BE 2026-03-03 2026-04-03
Europe/Brussels BE 2027-06-21 2027-07-22
Europe/Brussels BE 2026-10-11 2026-11-12
Europe/Berlin DE 2025-09-03 2025-10-06
Europe/Berlin DE 2026-09-03 2026-10-05
Europe/Paris FR 2026-06-14 2026-07-15
Europe/Paris FR 2026-04-08 2026-05-11
Europe/Rome IT 2026-04-14 2026-05-14
Europe/Rome IT 2026-05-02 2026-06-03
Europe/Rome IT 2025-12-06 2026-01-07
Europe/Vienna AT 2026-05-04 2026-06-05
Europe/Madrid ES 2026-11-08 2026-12-09
Europe/Warsaw PL 2027-04-03 2027-05-04
Europe/Luxembourg LU 2026-05-23 2026-06-24
Europe/Amsterdam NL 2026-03-27 2026-04-28
Europe/Amsterdam NL 2026-04-01 2026-05-01
Europe/Brussels none 2026-11-25 2026-12-25
"""

CCPA = """
America/Los_Angeles none 2026-01-31 2026-03-17
America/Los_Angeles none 2024-01-31 2024-03-16
America/Los_Angeles none 2026-11-20 2027-01-04
America/Los_Angeles none 2026-06-10T06:59:59 2026-07-24
America/Los_Angeles none 2026-06-10T07:00:00 2026-07-25
America/Los_Angeles none 2026-03-08T07:59:59 2026-04-21
America/Los_Angeles none 2026-03-08T08:00:00 2026-04-22
Europe/Brussels EU 2026-11-10 2026-12-25
"""

# Easter Sundays, typed in by hand; python-dateutil gives the same.
EASTER = """
2000-04-23 2001-04-15 2002-03-31 2003-04-20 2004-04-11 2005-03-27 2006-04-16 2007-04-08 2008-03-23
2009-04-12 2010-04-04 2011-04-24 2012-04-08 2013-03-31 2014-04-20 2015-04-05 2016-03-27 2017-04-16
2018-04-01 2019-04-21 2020-04-12 2021-04-04 2022-04-17 2023-04-09 2024-03-31 2025-04-20 2026-04-05
2027-03-28 2028-04-16 2029-04-01 2030-04-21 2031-04-13 2032-03-28 2033-04-17 2034-04-09 2035-03-25
2036-04-13 2037-04-05 2038-04-25 2039-04-10 2040-04-01 2041-04-21 2042-04-06 2043-03-29 2044-04-17
2045-04-09 2046-03-25 2047-04-14 2048-04-05 2049-04-18 1818-03-22 1943-04-25 1954-04-18 1981-04-19
"""

DAY = timedelta(days=1)
CALENDAR = Calendar()


def cases(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text if "T" in text else f"{text}T12:00:00").replace(tzinfo=UTC)


@pytest.mark.parametrize(("received", "due"), cases(BRUSSELS))
def test_gdpr_due_days_in_brussels(received: str, due: str) -> None:
    assert due_on("gdpr", at(received), CALENDAR) == date.fromisoformat(due)


@pytest.mark.parametrize(("zone", "seat", "received", "due"), cases(ELSEWHERE))
def test_gdpr_due_days_elsewhere(zone: str, seat: str, received: str, due: str) -> None:
    calendar = Calendar(seat=seat, timezone=zone)
    assert due_on("gdpr", at(received), calendar) == date.fromisoformat(due)


@pytest.mark.parametrize(("zone", "seat", "received", "due"), cases(CCPA))
def test_ccpa_due_days(zone: str, seat: str, received: str, due: str) -> None:
    calendar = Calendar(seat=seat, timezone=zone)
    due_date = due_on("ccpa", at(received), calendar, paused_seconds=10**6)
    assert due_date == date.fromisoformat(due)


@pytest.mark.parametrize("day", EASTER.split())
def test_easter_is_on_its_day(day: str) -> None:
    assert easter_sunday(int(day[:4])).isoformat() == day


@pytest.mark.parametrize(
    ("regime", "received", "due"),
    [
        ("gdpr", "2026-01-31", "2026-04-30"),
        ("gdpr", "2025-11-30", "2026-03-02"),
        ("gdpr", "2026-11-30", "2027-03-01"),
        ("gdpr", "2023-11-29", "2024-02-29"),
        ("gdpr", "2026-02-01", "2026-05-04"),
        ("ccpa", "2026-01-31", "2026-05-01"),
        ("ccpa", "2026-11-20", "2027-02-18"),
    ],
)
def test_extensions_count_from_the_receipt(regime: str, received: str, due: str) -> None:
    due_date = extend_due_date(regime, at(received), CALENDAR, noticed=at(received))
    assert due_date == date.fromisoformat(due)


def test_an_extension_must_be_announced_in_the_first_period() -> None:
    received = at("2026-06-10")
    last_moment = CALENDAR.end_of(date(2026, 7, 10)) - timedelta(seconds=1)
    assert extend_due_date("gdpr", received, CALENDAR, noticed=last_moment) == date(2026, 9, 10)
    with pytest.raises(RequestStateError, match="announced by 2026-07-10, and today is 2026-07-11"):
        extend_due_date("gdpr", received, CALENDAR, noticed=last_moment + timedelta(seconds=1))


@pytest.mark.parametrize(
    ("received", "seconds", "due"),
    [
        ("2026-06-10", 86_399, "2026-07-10"),
        ("2026-06-10", 86_400, "2026-07-13"),
        ("2026-06-10", 3 * 86_400, "2026-07-13"),
        ("2026-06-10", 4 * 86_400, "2026-07-14"),
        ("2026-01-31", 86_400, "2026-03-02"),
        ("2026-01-31", 3 * 86_400, "2026-03-03"),
    ],
)
def test_a_pause_puts_the_day_off_by_whole_days(received: str, seconds: int, due: str) -> None:
    due_date = due_on("gdpr", at(received), CALENDAR, paused_seconds=seconds)
    assert due_date == date.fromisoformat(due)


def test_only_gdpr_pauses() -> None:
    assert (may_pause("gdpr"), may_pause("ccpa")) == (True, False)


@pytest.mark.parametrize(
    ("stored", "since", "now", "total"),
    [(0, None, 50, 0), (7, None, 50, 7), (7, 40, 50, 17), (7, 60, 50, 7)],
)
def test_a_pause_that_is_on_counts(stored: int, since: int | None, now: int, total: int) -> None:
    assert count_paused_seconds(stored, since, now) == total


@pytest.mark.parametrize(
    ("received", "by"),
    [
        ("2026-06-10", "2026-06-24"),
        ("2026-06-12", "2026-06-26"),
        ("2026-06-13", "2026-06-26"),
        ("2026-06-14", "2026-06-26"),
        ("2026-12-21", "2027-01-04"),
    ],
)
def test_ccpa_receipt_is_confirmed_within_ten_business_days(received: str, by: str) -> None:
    assert confirm_by("ccpa", at(received), CALENDAR) == date.fromisoformat(by)


def test_gdpr_asks_for_no_confirmation() -> None:
    assert confirm_by("gdpr", at("2026-06-10"), CALENDAR) is None


def by_search(start: date, months: int, closed: frozenset[date]) -> date:
    """Walk day by day; remember the last day of the target month that is not past the date."""
    target = start.year * 12 + start.month + months
    day, due_date = start, start
    while day.year * 12 + day.month <= target:
        day += DAY
        if day.year * 12 + day.month == target and day.day <= start.day:
            due_date = day
    while due_date.strftime("%a") in {"Sat", "Sun"} or due_date in closed:
        due_date += DAY
    return due_date


def gauss(year: int) -> date:
    """Easter by Gauss's rule for 1900 to 2099."""
    d = (19 * (year % 19) + 24) % 30
    e = (2 * (year % 4) + 4 * (year % 7) + 6 * d + 5) % 7
    day = date(year, 3, 22) + timedelta(days=d + e)
    late = day == date(year, 4, 26) or (d == 28 and e == 6 and year % 19 > 10)
    return day - 7 * DAY if late else day


def closed_days(year: int) -> frozenset[date]:
    """Holidays of the institutions, written down a second time."""
    sunday = gauss(year)
    moving = {sunday - 2 * DAY, sunday + DAY, sunday + 39 * DAY, sunday + 50 * DAY}
    fixed = {(1, 1), (5, 1), (8, 15), (11, 1), (12, 25), (12, 26)}
    return frozenset(moving | {date(year, month, day) for month, day in fixed})


moments = st.datetimes(datetime(2000, 1, 1), datetime(2095, 1, 1), timezones=st.just(UTC))
zones = st.sampled_from(
    ["Europe/Brussels", "Pacific/Auckland", "America/St_Johns", "Asia/Kathmandu", "UTC"]
)


@given(received=moments, zone=zones, extra=st.lists(st.integers(20, 130), max_size=30))
def test_gdpr_due_days_are_those_of_a_slow_search(
    received: datetime, zone: str, extra: list[int]
) -> None:
    holidays = tuple({received.date() + DAY * days for days in extra})
    calendar = Calendar(timezone=zone, holidays=holidays)
    closed = frozenset(holidays).union(*(closed_days(received.year + k) for k in (-1, 0, 1)))
    start = received.astimezone(ZoneInfo(zone)).date()
    assert due_on("gdpr", received, calendar) == by_search(start, 1, closed)
    due_date = extend_due_date("gdpr", received, calendar, noticed=received)
    assert due_date == by_search(start, 3, closed)


@given(received=moments, zone=zones)
def test_the_day_of_receipt_holds_its_moment(received: datetime, zone: str) -> None:
    calendar = Calendar(timezone=zone)
    day = calendar.day_of(received)
    assert calendar.end_of(day - DAY) <= received < calendar.end_of(day)


@given(
    first=moments,
    later=st.timedeltas(timedelta(0), timedelta(days=70)),
    regime=st.sampled_from(["gdpr", "ccpa"]),
    pause=st.integers(0, 40 * 86_400),
)
def test_who_comes_later_is_never_due_earlier(
    first: datetime, later: timedelta, regime: str, pause: int
) -> None:
    due = due_on(regime, first, CALENDAR)
    assert due <= due_on(regime, first + later, CALENDAR)
    assert due <= due_on(regime, first, CALENDAR, paused_seconds=pause)
    assert timedelta(days=28) <= due - CALENDAR.day_of(first) <= timedelta(days=45)


@given(received=moments, seat=st.sampled_from(SEATS))
def test_gdpr_is_due_on_a_working_day(received: datetime, seat: str) -> None:
    calendar = Calendar(seat=seat)
    due = due_on("gdpr", received, calendar)
    assert calendar.is_working_day(due)
    assert due.weekday() < 5


@dataclass
class RequestDates:
    received_at: datetime
    due_on: date


@pytest.mark.parametrize(
    ("now", "level"),
    [
        ("2026-03-14T23:00:00", 0),
        ("2026-03-30T22:29:59", 0),
        ("2026-03-30T22:30:00", 50),
        ("2026-04-07T22:15:00", 75),
        ("2026-04-12T17:17:59", 75),
        ("2026-04-12T17:18:00", 90),
        ("2026-04-15T21:59:59", 90),
        ("2026-04-15T22:00:00", 100),
        ("2027-04-15T22:00:00", 100),
    ],
)
def test_alarms_count_real_hours(now: str, level: int) -> None:
    """In Brussels the 32 days from 15 March 2026 have 767 hours, not 768."""
    received = datetime(2026, 3, 15, tzinfo=ZoneInfo("Europe/Brussels"))
    request: Any = RequestDates(received, date(2026, 4, 15))
    assert alarm_level(request, at(now), CALENDAR) == level
    assert alarm_level(request, at(now).astimezone(received.tzinfo), CALENDAR) == level


def test_a_file_of_holidays_is_read(tmp_path: Path) -> None:
    file = tmp_path / "days.txt"
    file.write_text("# ours\n2026-07-13\n\n2026-07-10  # bridge\n", encoding="utf-8")
    calendar = Calendar.from_file(file, seat="BE")
    assert calendar.holidays == (date(2026, 7, 10), date(2026, 7, 13))
    assert due_on("gdpr", at("2026-06-10"), calendar) == date(2026, 7, 14)


def test_a_file_of_holidays_names_the_wrong_line(tmp_path: Path) -> None:
    file = tmp_path / "days.txt"
    file.write_text("2026-07-13\n13.7.2026\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2: '13\.7\.2026' is not a date"):
        Calendar.from_file(file)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seat": "XX"}, "seat='XX' is unknown; expected one of: none, EU"),
        ({"timezone": "Europe/Atlantis"}, "Europe/Atlantis"),
        ({"timezone": "../../etc/passwd"}, "not in the IANA time zone database"),
        ({"timezone": ""}, "not in the IANA time zone database"),
        ({"holidays": (datetime(2026, 1, 1),)}, "must contain only datetime.date"),
        ({"holidays": ("2026-01-01",)}, "must contain only datetime.date"),
    ],
)
def test_calendars_that_cannot_be_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Calendar(**settings)  # type: ignore[arg-type]


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        due_on("gdpr", datetime(2026, 1, 1), CALENDAR)


def test_an_unknown_law_is_refused() -> None:
    with pytest.raises(ValueError, match="regime='lgpd' is unknown; expected one of: gdpr, ccpa"):
        due_on("lgpd", at("2026-01-01"), CALENDAR)


def test_a_negative_pause_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        due_on("gdpr", at("2026-01-01"), CALENDAR, paused_seconds=-1)


def test_the_version_of_the_time_zones_is_known_here() -> None:
    assert tz_version().startswith("iana:20")


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"tzdata.zi": "# version 2025b\nR d 1916"}, "iana:2025b"),
        ({"+VERSION": "2024a\n"}, "iana:2024a"),
        ({}, "iana:unknown"),
    ],
)
def test_the_system_says_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], version: str
) -> None:
    (tmp_path / "Europe").mkdir()
    (tmp_path / "Europe" / "Brussels").touch()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(zoneinfo, "TZPATH", (str(tmp_path / "nowhere"), str(tmp_path)))
    assert tz_version() == version


def test_the_package_is_asked_where_the_system_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoneinfo, "TZPATH", ())
    package = SimpleNamespace(IANA_VERSION="2026f")
    monkeypatch.setattr(importlib, "import_module", {"tzdata": package}.__getitem__)
    assert tz_version() == "iana:2026f"


def test_the_version_may_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(zoneinfo, "TZPATH", ())
    monkeypatch.setattr(importlib, "import_module", missing)
    assert tz_version() == "iana:unknown"
