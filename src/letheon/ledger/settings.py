"""``letheon.toml``: the settings of a ledger."""

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
    """Settings of a ledger, shared by all of its processes.

    Parameters
    ----------
    name : str
        Name of the ledger in certificates: lower-case letters, digits and ``._:-``.
    database : str or None, default=None
        URL of the database; None for a SQLite file in the ledger's folder. The URL may contain a
        password, so only the owner can read ``letheon.toml``.
    policy : Policy, optional
        Settings for batching, retries and leases.
    calendar : Calendar, optional
        Time zone and holidays of the controller.
    image : str or None, default=None
        SHA-256 of the container image that workers run in; stored in certificates.
    journal : {"wal", "delete"} or None, default=None
        Journal mode of SQLite; None to choose the safest mode for the installed version.

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
        """Raise `ValueError` if a value is not valid."""
        require_name("name", self.name)
        if not isinstance(self.image, str | None):
            raise ValueError(f"image={self.image!r} must be a string or None")
        if self.image is not None and not _DIGEST.fullmatch(self.image):
            raise ValueError(
                f"image={self.image!r} must be a SHA-256 digest: 64 lower-case hexadecimal digits"
            )
        if self.journal not in (None, "wal", "delete"):
            raise ValueError(f"journal={self.journal!r} must be 'wal', 'delete' or None")
        if not isinstance(self.database, str | None) or "://" not in (self.database or "://"):
            raise ValueError(  # the value may contain a password
                "database must be a URL such as postgresql+psycopg://user@host/letheon"
            )

    def write(self, folder: Path) -> None:
        """Write ``letheon.toml``. After a crash, the file is either the old or the new one."""
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
        """Read the settings from ``letheon.toml`` in a folder.

        Raises
        ------
        LedgerMissingError
            The file does not exist.
        NewerLedgerError
            A newer version of letheon wrote the file, so it may contain unknown settings.
        LedgerError
            A setting is not valid; the message names the line.
        """
        path = folder / FILE
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise LedgerMissingError(
                f"no ledger in {folder}: {FILE} is missing; create a ledger with `letheon init`"
            ) from error
        with _add_line_number(path, ""):
            text = data.decode()
        with _add_line_number(path, text):
            values = tomllib.loads(text)
            version = values.pop("format", FORMAT)
            if type(version) is not int or version < 1:
                raise ValueError(f"format={version!r} must be an integer of at least 1")
        if version > FORMAT:  # checked before the settings, which may be unknown
            raise NewerLedgerError(
                f"{path} has format {version}; this version of letheon supports formats up to "
                f"{FORMAT}. Install the version of letheon that wrote the file. Nothing was "
                "changed"
            )
        with _add_line_number(path, text):
            require_known(Settings, values)
            if "name" not in values:
                raise ValueError('name is missing; add a line such as: name = "prod-eu-1"')
            for table in _TABLES:
                if not isinstance(values.get(table, {}), dict):
                    raise ValueError(f"{table} must be a table; write [{table}] above its settings")
        for table, kind in _TABLES.items():
            with _add_line_number(path, text, table):
                table_values = values.get(table, {})
                require_known(kind, table_values)
                parsed = {key: _from_toml(kind, key, value) for key, value in table_values.items()}
                values[table] = kind(**parsed)
        with _add_line_number(path, text):
            return Settings(**values)


@contextmanager
def _add_line_number(path: Path, text: str, table: str = "") -> Iterator[None]:
    """Turn a `ValueError` into a `LedgerError` that names the file and the line of the key."""
    try:
        yield
    except ValueError as error:
        key = str(error).split()[0].partition("=")[0]
        raise LedgerError(f"{path}{_find_line(text, table, key)}: {error}") from error


def _find_line(text: str, table: str, key: str) -> str:
    """Return ``, line 7`` if a key of a table is in line 7; empty if the key is not in the text."""
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        heading = re.fullmatch(r"\s*\[\s*([^\]]*?)\s*\]\s*(#.*)?", line)
        if heading:
            current = heading[1]
        name = current if heading else line.partition("=")[0].strip().strip("\"'")
        if name == key and (current == table or heading is not None):
            return f", line {number}"
    return ""


def require_known(kind: Any, keys: Iterable[str]) -> None:
    """Raise `ValueError` for a key that is not a field of a class of settings."""
    known = [entry.name for entry in fields(kind)]
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of: {', '.join(known)}"
            raise ValueError(f"{key} is not a setting; {hint}")


def _from_toml(kind: Any, key: str, value: Any) -> Any:
    """Convert a TOML value to the type of its setting."""
    default = getattr(kind, key)
    if isinstance(default, tuple):
        if not isinstance(value, list) or any(type(day) is not date for day in value):
            raise ValueError(f"{key} must be a list of dates, such as: {key} = [2026-12-24]")
        return tuple(value)
    if not isinstance(default, timedelta):
        return value
    span = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if span is None:
        raise ValueError(
            f"{key}={value!r} is not a duration; expected a number with the unit s, min, h or d, "
            f'such as: {key} = "72 h"'
        )
    try:
        return int(span[1]) * _UNITS[span[2]]
    except OverflowError as error:
        raise ValueError(f"{key}={value!r} is too long; expected at most 999999999 d") from error


def _format_lines(part: Any, names: Iterable[str]) -> Iterator[str]:
    """Yield one TOML line for each setting that is not None."""
    for name in names:
        value = getattr(part, name)
        if isinstance(value, timedelta):
            # In the largest unit that divides it: ``72 h`` becomes ``3 d``.
            sizes = {unit: size for unit, size in _UNITS.items() if value % size == timedelta(0)}
            unit = next(unit for unit, size in sizes.items() if value >= size or unit == "s")
            value = f"{value // _UNITS[unit]} {unit}"
        if isinstance(value, tuple):
            yield f"{name} = [{', '.join(day.isoformat() for day in value)}]"
        elif value is not None:
            # JSON string escapes are valid in TOML, except for characters beyond the BMP.
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            yield f"{name} = {text}"
