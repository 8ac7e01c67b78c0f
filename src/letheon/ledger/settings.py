"""``letheon.toml``: what an operator decides about a ledger."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import date, timedelta
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
_TABLES: dict[str, Any] = {"policy": Policy, "calendar": Calendar}


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
        if not isinstance(self.image, str | None):
            raise ValueError(f"image={self.image!r} must be a text")
        if self.image is not None and not _DIGEST.fullmatch(self.image):
            raise ValueError(f"image={self.image!r} must be a SHA-256: 64 digits of 0-9 and a-f")
        if self.journal not in (None, "wal", "delete"):
            raise ValueError(f"journal={self.journal!r} must be 'wal' or 'delete'")
        if not isinstance(self.database, str | None) or "://" not in (self.database or "://"):
            raise ValueError(  # the value may hold a password
                "database must be a URL such as postgresql+psycopg://user@host/letheon"
            )

    def write(self, folder: Path) -> None:
        """Write ``letheon.toml``; a crash leaves the old file or the new one."""
        lines = [
            f"format = {FORMAT}",
            *_format_lines(self, ("name", "database", "image", "journal")),
        ]
        for table, kind in _TABLES.items():
            names = [entry.name for entry in fields(kind)]
            lines += ["", f"[{table}]", *_format_lines(getattr(self, table), names)]
        write_atomically(folder / FILE, ["\n".join([*lines, ""]).encode()])

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
        with _add_line_number(path, ""):
            text = data.decode()
        with _add_line_number(path, text):
            found = tomllib.loads(text)
            version = found.pop("format", FORMAT)
            if type(version) is not int or version < 1:
                raise ValueError(f"format={version!r} must be a whole number from 1 on")
        if version > FORMAT:  # before its settings are looked at
            raise NewerLedgerError(
                f"{path}: its format is {version}, and this letheon knows formats up to {FORMAT}; "
                "install the letheon that wrote it. Nothing was changed"
            )
        with _add_line_number(path, text):
            _require_known(Settings, found)
            if "name" not in found:
                raise ValueError('name is missing; write for example: name = "prod-eu-1"')
            for table in _TABLES:
                if not isinstance(found.get(table, {}), dict):
                    raise ValueError(f"{table} is a table; write [{table}] above its lines")
        for table, kind in _TABLES.items():
            with _add_line_number(path, text, table):
                values = found.get(table, {})
                _require_known(kind, values)
                parsed = {key: _from_toml(kind, key, value) for key, value in values.items()}
                found[table] = kind(**parsed)
        with _add_line_number(path, text):
            return Settings(**found)


@contextmanager
def _add_line_number(path: Path, text: str, table: str = "") -> Iterator[None]:
    """Name the line of the key of a table that an error begins with."""
    try:
        yield
    except ValueError as error:
        key = str(error).split()[0].partition("=")[0]
        raise LedgerError(f"{path}{_find_line(text, table, key)}: {error}") from error


def _find_line(text: str, table: str, key: str) -> str:
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


def _require_known(kind: Any, keys: Iterable[str]) -> None:
    known = [entry.name for entry in fields(kind)]
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1) or [", ".join(known)]
            raise ValueError(f"{key} is no setting; meant is perhaps {near[0]}")


def _from_toml(kind: Any, key: str, value: Any) -> Any:
    """Return a value of the file as its setting has it: a time span, days, or as it is."""
    default = getattr(kind, key)
    if isinstance(default, tuple):
        if not isinstance(value, list) or any(type(day) is not date for day in value):
            raise ValueError(f"{key} is a list of days; write: {key} = [2026-12-24]")
        return tuple(value)
    if not isinstance(default, timedelta):
        return value
    span = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if span is None:
        raise ValueError(f'{key}={value!r} is no time span; write for example: {key} = "72 h"')
    try:
        return int(span[1]) * _UNITS[span[2]]
    except OverflowError as error:
        raise ValueError(f"{key}={value!r} is too long") from error


def _format_lines(part: Any, names: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a table: a tiny writer for the few kinds of values that there are."""
    for name in names:
        value = getattr(part, name)
        if isinstance(value, timedelta):
            # In its largest whole unit: ``72 h`` is 3 d, and read as the same.
            sizes = {unit: size for unit, size in _UNITS.items() if value % size == timedelta(0)}
            unit = next(unit for unit, size in sizes.items() if value >= size or unit == "s")
            value = f"{value // _UNITS[unit]} {unit}"
        if isinstance(value, tuple):
            yield f"{name} = [{', '.join(day.isoformat() for day in value)}]"
        elif value is not None:
            # JSON's escapes of a string are TOML's, but for characters beyond the first plane.
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            yield f"{name} = {text}"
