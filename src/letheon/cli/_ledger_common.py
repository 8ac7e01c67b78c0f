"""What the commands of the ledger share: where it is, how they answer, how they fail.

Scripts can rely on the exit status: 0 done; 1 checked, and it does not hold; 2 wrong usage; 3 not
found; 4 refused; 5 try again.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from letheon.cli._help import PlainGroup
from letheon.exceptions import (
    CertificateError,
    ForgetError,
    IdempotencyError,
    LedgerBusyError,
    LedgerError,
    LedgerMissingError,
    LetheonError,
    StaleWorkerError,
    UnknownIdError,
    UnknownModelError,
    UnknownRequestError,
)

if TYPE_CHECKING:
    from letheon.ledger import Ledger

__all__ = [
    "AsJson",
    "Home",
    "Tenant",
    "group",
    "open_ledger",
    "reported",
    "say",
    "say_table",
]

FAILED, USAGE, NOT_FOUND, REFUSED, TRY_AGAIN = 1, 2, 3, 4, 5

# The first that fits decides, so special cases stand above what they are cases of.
_STATUS: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    ((CertificateError,), FAILED),
    ((LedgerBusyError, StaleWorkerError), TRY_AGAIN),
    (
        (
            LedgerMissingError,
            UnknownModelError,
            UnknownRequestError,
            UnknownIdError,
            FileNotFoundError,
        ),
        NOT_FOUND,
    ),
    ((IdempotencyError, LedgerError, ForgetError), REFUSED),
    ((LetheonError, ValueError, TypeError, ImportError), USAGE),
    ((OSError,), TRY_AGAIN),
)

Home = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="DIR",
        envvar="LETHEON_LEDGER",
        help="Folder of the ledger.",
        show_default="the current one",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", metavar="", help="Print one JSON document and nothing else.")
]
Tenant = Annotated[str, typer.Option(metavar="NAME", help="Whose model it is.")]


def group(name: str, about: str) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(
        name=name,
        cls=PlainGroup,
        help=about,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_show_locals=False,
    )


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Turn errors into one line, or one JSON document, on the error stream and an exit status."""
    try:
        yield
    except (LetheonError, ValueError, TypeError, OSError, ImportError) as error:
        text = str(error) or type(error).__name__
        if as_json:
            document = {"error": {"kind": type(error).__name__, "text": text}}
            typer.echo(json.dumps(document), err=True)
        else:
            typer.echo(f"letheon: {text}", err=True)
        raise typer.Exit(status_of(error)) from error


def status_of(error: BaseException) -> int:
    """Return the exit status of an error."""
    return next(status for kinds, status in _STATUS if isinstance(error, kinds))


@contextmanager
def open_ledger(folder: Path | None) -> "Iterator[Ledger]":
    """Open the ledger in a folder, or in the current one."""
    # Through the package: it says what to install if the extra is missing.
    import letheon

    with letheon.Ledger.open(Path(os.curdir) if folder is None else folder) as ledger:
        yield ledger


def say(as_json: bool, document: Any, text: str) -> None:
    """Print a document, or a text for people."""
    typer.echo(json.dumps(plain(document), indent=2) if as_json else text)


def say_table(
    as_json: bool,
    documents: Sequence[Any],
    columns: Sequence[str],
    lines: Sequence[Sequence[str]],
    *,
    empty: str,
) -> None:
    """Print a list of documents, or a table for people."""
    if as_json:
        typer.echo(json.dumps([plain(document) for document in documents], indent=2))
        return
    if not lines:
        typer.echo(empty)
        return
    from rich.table import Table

    from letheon.cli._console import PlainConsole, show_table

    table = Table(*columns, box=None, header_style="bold")
    for line in lines:
        table.add_row(*line)
    show_table(PlainConsole(), table)


def plain(value: Any) -> Any:
    """Return a value as JSON knows it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, Path) else value
