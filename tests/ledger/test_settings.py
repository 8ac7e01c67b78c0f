"""letheon.toml: what is written comes back; what cannot be is refused with its line."""

import re
import stat
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.exceptions import LedgerError, LedgerMissingError, NewerLedgerError
from letheon.ledger.requests.deadlines import SEATS, Calendar
from letheon.ledger.settings import FILE, Settings
from letheon.ledger.worker.policy import Policy

NAME = "^[a-z0-9][a-z0-9._:-]{0,62}$"

spans = st.integers(0, 10**6).map(lambda seconds: timedelta(seconds=seconds))
counts = st.integers(1, 10**6)
policies = st.builds(
    Policy,
    k_min=counts,
    k_min_released=counts,
    oldest_wait=spans,
    reserve=spans,
    backoff_first=st.just(timedelta(0)),
    backoff_longest=spans,
    max_tries=counts,
    lease_seconds=st.integers(5, 10**6),
    pin_seconds=counts,
    keep_keys_months=st.integers(0, 100),
    settle=st.booleans(),
)
calendars = st.builds(
    Calendar,
    seat=st.sampled_from(SEATS),
    timezone=st.sampled_from(["Europe/Brussels", "UTC", "Asia/Tokyo"]),
    holidays=st.lists(st.dates(date(2000, 1, 1), date(2100, 1, 1)), max_size=4).map(tuple),
)
urls = st.text(st.characters(exclude_categories=["Cs"])).map(
    lambda text: f"postgresql://u:{text}@h/d"
)
settings = st.builds(
    Settings,
    name=st.from_regex(re.compile(NAME.replace("$", r"\Z"), re.ASCII)),
    database=st.none() | urls,
    policy=policies,
    calendar=calendars,
    image=st.none() | st.just("0f" * 32),
    journal=st.sampled_from([None, "wal", "delete"]),
)


@given(settings=settings)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, settings: Settings
) -> None:
    folder = tmp_path_factory.getbasetemp() / "settings"
    folder.mkdir(exist_ok=True)
    settings.write(folder)
    assert Settings.read(folder) == settings


def test_the_file_is_easy_to_read(tmp_path: Path) -> None:
    Settings(name="prod-eu-1", calendar=Calendar(holidays=(date(2026, 12, 24),))).write(tmp_path)
    lines = (tmp_path / FILE).read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["format = 1", 'name = "prod-eu-1"']
    assert {'reserve = "7 d"', 'oldest_wait = "3 d"', 'backoff_first = "1 s"'} <= set(lines)
    assert {"k_min = 20", "holidays = [2026-12-24]", "[calendar]"} <= set(lines)


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    Settings(name="a", database="postgresql://u:secret@h/d").write(tmp_path)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_short_file_takes_the_defaults(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('name = "a"\n[policy]\noldest_wait = "72h"\n', encoding="utf-8")
    assert Settings.read(tmp_path) == Settings(name="a")


def test_a_missing_file_is_a_missing_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerMissingError, match="letheon init"):
        Settings.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'name = "a"\n[policy]\nk_mim = 20\n',
            "line 3: k_mim is not a setting; did you mean k_min\\?$",
        ),
        ('name = "a"\nport = 1\n', "line 2: port is not a setting; .* name, database, policy"),
        (
            'name = "a"\n[policy]\nk_min = 2\n[calendar]\nk_min = 3\n',
            "line 5: k_min is not a setting",
        ),
        ('name = "a"\n\n[polizy]\nk_min = 1\n', "line 3: polizy is not a setting; .* policy"),
        ('name = "a"\n[policy]\nk_min = "20"\n', "line 3: k_min='20' must be an integer"),
        ('name = "a"\n[policy]\nk_min = true\n', "line 3: k_min=True"),
        ('name = "a"\n[policy]\nreserve = 7\n', 'line 3: reserve=7 is not .* reserve = "72 h"'),
        ('name = "a"\n[policy]\nreserve = "-7 d"\n', "line 3: reserve='-7 d' is not a duration"),
        (f'name = "a"\n[policy]\nreserve = "{"9" * 20} d"\n', "line 3: reserve=.* is too long"),
        ('name = "a"\n[policy]\nbackoff_longest = "0 s"\n', "line 3: backoff_longest=0:00:00"),
        ('name = "a"\n[calendar]\nseat = "XX"\n', "line 3: seat='XX' is unknown; expected one of"),
        ('name = "a"\n[calendar]\nseat = 3\n', "line 3: seat=3 must be a string"),
        ('name = "a"\n[calendar]\ntimezone = "Mars/Olympus"\n', "line 3: timezone='Mars/Olympus'"),
        ('name = "a"\n[calendar]\nholidays = ["2026-01-01"]\n', "line 3: holidays must be a list"),
        ('name = "a"\n[calendar]\nholidays = 2026-01-01\n', "line 3: holidays must be a list"),
        (
            'name = "a"\n[calendar]\nholidays = [2026-01-01T10:00:00]\n',
            "line 3: holidays must be a",
        ),
        ('name = "a"\npolicy = 3\n', r"line 2: policy must be a table; write \[policy\]"),
        ("name = 3\n", "line 1: name=3 is not a valid name"),
        ('\nname = "Prod"\n', "line 2: name='Prod' is not a valid name"),
        ('name = "a\\n"\n', "line 1: name='a"),
        ('name = "a"\nformat = "1"\n', "line 2: format='1' must be an integer"),
        ('name = "a"\nformat = 0\n', "line 2: format=0 must be an integer"),
        ('name = "a"\nformat = true\n', "line 2: format=True must be an integer"),
        ('name = "a"\nformat = 1\nport = 1\n', "line 3: port is not a setting"),
        ('name = "a"\nimage = "abc"\n', "line 2: image='abc' must be a SHA-256"),
        (f'name = "a"\nimage = "{"a" * 65}"\n', "line 2: image='a*' must be a SHA-256"),
        ('name = "a"\nimage = 5\n', "line 2: image=5 must be a string"),
        ('name = "a"\njournal = "off"\n', "line 2: journal='off' must be"),
        ('name = "a"\ndatabase = "s3cret"\n', "line 2: database must be a URL"),
        ('database = "sqlite://"\n', "name is missing"),
        ('name = "a\n', "line 1"),
        ('name = "a"\nname = "b"\n', "line 2"),
    ],
)
def test_the_line_to_correct_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(LedgerError, match=words) as caught:
        Settings.read(tmp_path)
    assert "s3cret" not in str(caught.value)


def test_a_file_of_a_later_letheon_is_told_from_a_wrong_one(tmp_path: Path) -> None:
    text = 'format = 2\nname = "a"\ncolour = "blue"\n[policy]\nk_min = "many"\n'
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(NewerLedgerError, match=r"has format 2.*up to 1"):
        Settings.read(tmp_path)


def test_a_password_is_shown_nowhere() -> None:
    settings = Settings(name="a", database="postgresql://u:s3cret@h/d")
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in str(settings)
    bytes_by_mistake: Any = b"postgresql://u:s3cret@h/d"
    with pytest.raises(ValueError, match="must be a URL") as caught:
        Settings(name="a", database=bytes_by_mistake)
    assert "s3cret" not in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'name = "\xff"\n')
    with pytest.raises(LedgerError, match=FILE):
        Settings.read(tmp_path)


@given(name=st.text(max_size=140))
def test_a_ledger_is_named_as_certificates_allow(name: str) -> None:
    allowed = re.match(NAME, name) is not None and not name.endswith("\n")
    if allowed:
        assert Settings(name=name).name == name
    else:
        with pytest.raises(ValueError, match="name="):
            Settings(name=name)
