"""``letheon.toml``: what an operator decides about a ledger."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from letheon.exceptions import LedgerError, LedgerMissingError, NewerLedgerError
from letheon.ledger.requests.deadlines import Calendar
from letheon.ledger.schemas import require_name
from letheon.ledger.worker.policy import Policy
from letheon.state import write_atomically

FILE = "letheon.toml"
FORMAT = 1

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SPAN = re.compile(r"([0-9]+) ?(s|min|h|d)")
_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "min": timedelta(minutes=1),
    "s": timedelta(seconds=1),
}
_TABLES = ("policy", "calendar")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an operator decides about a ledger, once and for all its processes.

    Parameters
    ----------
    name : str
        Name of the ledger, as certificates carry it: lower case, digits and ``._:-``.
    database : str or None, default=None
        URL of the database; None for a SQLite file beside the settings. It may hold a password, so
        the file is readable by its owner only.
    policy : Policy, optional
        Batching, retries, leases.
    calendar : Calendar, optional
        Time zone and holidays of the controller's seat.
    image : str or None, default=None
        SHA-256 of the image that workers run in, for certificates.
    journal : {"wal", "delete"} or None, default=None
        SQLite's journal; None for the safest that the SQLite found here can do well.

    Examples
    --------
    >>> Settings(name="prod-eu-1").policy.k_min
    20
    """

    name: str
    database: str | None = field(default=None, repr=False)
    policy: Policy = field(default_factory=Policy)
    calendar: Calendar = field(default_factory=Calendar)
    image: str | None = None
    journal: str | None = None

    def __post_init__(self) -> None:
        """Refuse a name that no certificate can carry, and the like."""
        require_name("name", self.name)
        if self.image is not None and not _DIGEST.fullmatch(_text("image", self.image)):
            raise ValueError(f"image={self.image!r} must be a SHA-256: 64 digits of 0-9 and a-f")
        if self.journal not in (None, "wal", "delete"):
            raise ValueError(f"journal={self.journal!r} must be 'wal' or 'delete'")
        if self.database is not None and not _is_url(self.database):
            raise ValueError(  # the value may hold a password
                "database must be a URL such as postgresql+psycopg://user@host/letheon"
            )

    def write(self, folder: Path) -> None:
        """Write ``letheon.toml``; a crash leaves the old file or the new one."""
        write_atomically(folder / FILE, ["".join(_lines(self)).encode()])

    @staticmethod
    def read(folder: Path) -> "Settings":
        """Return what ``letheon.toml`` says.

        Raises
        ------
        LedgerMissingError
            There is no such file.
        NewerLedgerError
            A later letheon wrote it, with settings that this one does not know.
        LedgerError
            It says something that cannot be; the text names the line to correct.
        """
        path = folder / FILE
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise LedgerMissingError(
                f"no ledger in {folder}: {FILE} is not there; `letheon init` makes one"
            ) from error
        try:
            return _settings(tomllib.loads(data.decode()))
        except _WrongLineError as error:
            place = _line_of(data.decode(), error.table, error.key)
            raise LedgerError(f"{path}{place}: {error}") from error
        except NewerLedgerError as error:
            raise NewerLedgerError(f"{path}: {error}") from error
        except ValueError as error:
            raise LedgerError(f"{path}: {error}") from error


class _WrongLineError(ValueError):
    """A value or key of the file that cannot be."""

    def __init__(self, table: str, key: str, text: str) -> None:
        super().__init__(text)
        self.table = table
        self.key = key


def _settings(found: Mapping[str, Any]) -> Settings:
    """Return settings made of the parsed file."""
    _require_format(found.get("format", FORMAT))
    found = {key: value for key, value in found.items() if key != "format"}
    _require_known("", found, [entry.name for entry in fields(Settings)])
    if "name" not in found:
        raise ValueError('name is missing; write for example: name = "prod-eu-1"')
    given = {key: value for key, value in found.items() if key not in _TABLES}
    for table in _TABLES:
        if not isinstance(found.get(table, {}), dict):
            raise _WrongLineError("", table, f"{table} is a table; write [{table}] above its lines")
    policy = _policy(found.get("policy", {}))
    calendar = _calendar(found.get("calendar", {}))
    _try_each("", given, lambda one: Settings(**{"name": "a", **one}))
    return Settings(policy=policy, calendar=calendar, **given)


def _require_format(found: Any) -> None:
    """Refuse a file of a later letheon before its settings are looked at."""
    if type(found) is not int or found < 1:
        raise _WrongLineError("", "format", f"format={found!r} must be a whole number from 1 on")
    if found > FORMAT:
        raise NewerLedgerError(
            f"its format is {found}, and this letheon knows formats up to {FORMAT}; install the "
            "letheon that wrote it. Nothing was changed"
        )


def _policy(found: Mapping[str, Any]) -> Policy:
    default = Policy()
    names = [entry.name for entry in fields(Policy)]
    _require_known("policy", found, names)
    values: dict[str, Any] = {
        key: _span(key, value) if isinstance(getattr(default, key), timedelta) else value
        for key, value in found.items()
    }
    try:
        return Policy(**values)
    except ValueError as error:
        raise _blame("policy", values, error) from error


def _calendar(found: Mapping[str, Any]) -> Calendar:
    _require_known("calendar", found, [entry.name for entry in fields(Calendar)])
    values = dict(found)
    for key in ("seat", "timezone"):
        if key in values and not isinstance(values[key], str):
            raise _WrongLineError("calendar", key, f"{key}={values[key]!r} must be a text")
    days = values.get("holidays", [])
    if not isinstance(days, list) or any(not _is_day(day) for day in days):
        raise _WrongLineError(
            "calendar", "holidays", "holidays is a list of days; write: holidays = [2026-12-24]"
        )
    try:
        return Calendar(**{**values, "holidays": tuple(days)})
    except ValueError as error:
        raise _blame("calendar", values, error) from error


def _is_day(value: Any) -> bool:
    return isinstance(value, date) and not isinstance(value, datetime)


def _require_known(table: str, found: Mapping[str, Any], known: list[str]) -> None:
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1) or [", ".join(known)]
            raise _WrongLineError(table, key, f"{key} is no setting; meant is perhaps {near[0]}")


def _try_each(table: str, values: Mapping[str, Any], make: Any) -> None:
    """Find the one value that is refused, to name its line."""
    for key, value in values.items():
        try:
            make({key: value})
        except ValueError as error:
            raise _WrongLineError(table, key, str(error)) from error


def _blame(table: str, values: Mapping[str, Any], error: ValueError) -> _WrongLineError:
    """Name the line of the value that an error begins with."""
    named = str(error).partition("=")[0]
    return _WrongLineError(table, named if named in values else "", str(error))


def _line_of(text: str, table: str, key: str) -> str:
    """Return ``, line 7`` for a key of a table of the file."""
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        heading = re.fullmatch(r"\s*\[\s*([^\]]*?)\s*\]\s*(#.*)?", line)
        if heading:
            here = heading[1]
        name = here if heading else line.partition("=")[0].strip().strip("\"'")
        if name == key and (here == table or heading is not None):
            return f", line {number}"
    return ""


def _span(key: str, value: Any) -> timedelta:
    """Return the time span of a text such as ``72 h``."""
    found = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise _WrongLineError(
            "policy", key, f'{key}={value!r} is no time span; write for example: {key} = "72 h"'
        )
    try:
        return int(found[1]) * _UNITS[found[2]]
    except OverflowError as error:
        raise _WrongLineError("policy", key, f"{key}={value!r} is too long") from error


def _is_url(value: Any) -> bool:
    return isinstance(value, str) and "://" in value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}={value!r} must be a text")
    return value


def _lines(settings: Settings) -> Iterator[str]:
    """Yield the lines of the file: a tiny writer for the few kinds of values that there are."""
    yield f"format = {FORMAT}\n"
    for key in ("name", "database", "image", "journal"):
        value = getattr(settings, key)
        if value is not None:
            yield f"{key} = {_written(value)}\n"
    for table in _TABLES:
        part = getattr(settings, table)
        yield f"\n[{table}]\n"
        for entry in fields(part):
            value = getattr(part, entry.name)
            if value is not None:
                yield f"{entry.name} = {_written(value)}\n"


def _written(value: Any) -> str:
    if isinstance(value, timedelta):
        return f'"{_span_text(value)}"'
    if isinstance(value, tuple):
        return f"[{', '.join(day.isoformat() for day in value)}]"
    # JSON's escapes of a string are TOML's, but for characters beyond the first plane.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _span_text(span: timedelta) -> str:
    """Return a span in its largest whole unit: ``72 h`` is 3 d, and read as the same."""
    for unit, size in _UNITS.items():
        if span % size == timedelta(0) and span >= size:
            return f"{span // size} {unit}"
    return f"{span // _UNITS['s']} s"
