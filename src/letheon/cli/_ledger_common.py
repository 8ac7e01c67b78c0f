"""What the commands of the ledger share: where it is, how they answer, how they fail.

Scripts can rely on the exit status: 0 done; 1 checked, and it does not hold; 2 wrong usage; 3 not
found; 4 refused; 5 try again; 70 a mistake in the program itself.
"""

import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from letheon.cli._help import PlainCommand, PlainGroup
from letheon.exceptions import (
    CertificateError,
    CorruptFileError,
    ForgetError,
    LedgerBusyError,
    LedgerError,
    LedgerMissingError,
    LedgerUnwritableError,
    LetheonError,
    ResidueError,
    SearchWarning,
    StaleWorkerError,
    StateError,
    UnknownIdError,
    UnknownModelError,
    UnknownRequestError,
    find_own_line,
)
from letheon.verifier import Refused

if TYPE_CHECKING:
    from letheon.ledger import Ledger

__all__ = [
    "FAILED",
    "INTERNAL",
    "NOT_FOUND",
    "REFUSED",
    "TRY_AGAIN",
    "USAGE",
    "AsJson",
    "Home",
    "LedgerCommand",
    "ScriptedGroup",
    "Tenant",
    "UsageError",
    "group",
    "home_of",
    "lines_of",
    "no_core_dump",
    "open_ledger",
    "plain",
    "public_key",
    "reported",
    "require_file",
    "require_folder",
    "say",
    "say_facts",
    "say_table",
    "status_of",
    "taken_at_their_word",
    "warnings_said",
]

FAILED, USAGE, NOT_FOUND, REFUSED, TRY_AGAIN = 1, 2, 3, 4, 5
# As sysexits.h has it: internal software error.
INTERNAL = 70


class UsageError(ValueError):
    """What was given on the command line, or in a file that it names, cannot be used."""


# The first that fits decides, so special cases stand above what they are cases of.
_STATUS: tuple[tuple[int, tuple[type[BaseException], ...]], ...] = (
    (FAILED, (CertificateError, ResidueError, CorruptFileError, Refused)),
    (TRY_AGAIN, (LedgerBusyError, LedgerUnwritableError, StaleWorkerError)),
    (NOT_FOUND, (LedgerMissingError, UnknownModelError, UnknownRequestError, UnknownIdError)),
    (NOT_FOUND, (FileNotFoundError,)),
    (REFUSED, (LedgerError, ForgetError, StateError, FileExistsError, PermissionError)),
    (USAGE, (IsADirectoryError, NotADirectoryError, LetheonError, UsageError)),
    (TRY_AGAIN, (OSError, MemoryError)),
)

# PostgreSQL: insufficient privilege, wrong role or password, no such database.
_DENIED = frozenset({"42501", "28000", "28P01", "3D000"})
_KEY = re.compile("[0-9a-f]{64}")
# Wrong usage, as typer finds it: the class has no public name.
_WRONG_USAGE: Any = typer.BadParameter.__base__

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


class LedgerCommand(PlainCommand):
    """A command whose help is as wide as the terminal, however its docstring is broken."""

    def __init__(self, *words: Any, **options: Any) -> None:
        about = options.get("help") or ""
        flowing = [" ".join(part.split()) for part in about.split("\n\n")]
        super().__init__(*words, **{**options, "help": "\n\n".join(flowing)})


class ScriptedGroup(PlainGroup):
    """All commands; wrong usage is one JSON document too where ``--json`` was asked for."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command that the words name."""
        words = sys.argv[1:] if args is None else list(args)
        wants_json = standalone_mode and "--json" in words

        def run(*, standalone: bool) -> Any:
            return super(ScriptedGroup, self).main(
                args, prog_name, complete_var, standalone, windows_expand_args, **extra
            )

        if not wants_json:
            return run(standalone=standalone_mode)
        try:
            status = run(standalone=False)
        except _WRONG_USAGE as error:
            _complain(True, "UsageError", error.format_message())
            status = USAGE
        sys.exit(status or 0)


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
    except (typer.Exit, BrokenPipeError):  # the latter: whoever reads has seen enough
        raise
    except Exception as error:
        status = status_of(error)
        if status == INTERNAL and os.environ.get("LETHEON_TRACEBACK") == "1":
            raise
        _complain(as_json, _kind_of(error), text_of(error))
        raise typer.Exit(status) from error


@contextmanager
def taken_at_their_word() -> Iterator[None]:
    """Read a complaint of the library about values in this block as wrong usage.

    The block is one call with what the user gave. Elsewhere a ValueError is a mistake in the
    program.
    """
    try:
        yield
    except (LetheonError, Refused):
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(str(error) or type(error).__name__) from error


@contextmanager
def warnings_said() -> Iterator[None]:
    """Print what cannot be searched as lines on the error stream."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SearchWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, SearchWarning):
            typer.echo(f"warning: {warning.message}", err=True)
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def _complain(as_json: bool, kind: str, text: str) -> None:
    if as_json:
        typer.echo(json.dumps({"error": {"kind": kind, "text": text}}), err=True)
    else:
        typer.echo(f"letheon: {text}", err=True)


def status_of(error: BaseException) -> int:
    """Return the exit status of an error; `INTERNAL` for a mistake in the program."""
    if _is_of_database(error):
        is_denied = getattr(getattr(error, "orig", None), "sqlstate", None) in _DENIED
        return REFUSED if is_denied else TRY_AGAIN
    if _is_missing_package(error):
        return USAGE
    return next((status for status, kinds in _STATUS if isinstance(error, kinds)), INTERNAL)


def text_of(error: BaseException) -> str:
    """Return what an error says to people."""
    if _is_of_database(error):
        verb = "refused" if status_of(error) == REFUSED else "failed"
        return f"the database {verb}: {getattr(error, 'orig', error)}".strip()
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    if status_of(error) == INTERNAL:
        return _internal_text(error)
    return str(error) or type(error).__name__


def _kind_of(error: BaseException) -> str:
    return "InternalError" if status_of(error) == INTERNAL else type(error).__name__


def _internal_text(error: BaseException) -> str:
    """Say which mistake and where; its own words may hold values of rows."""
    line = find_own_line(error)
    where = "" if line is None else f" in {line[0]}, line {line[1]}"
    return (
        f"internal error: {type(error).__name__}{where}. This is a mistake in letheon, please "
        "report it; what was acknowledged is kept. LETHEON_TRACEBACK=1 shows more, perhaps people"
    )


def _is_missing_package(error: BaseException) -> bool:
    """Whether an extra is not installed; a module of letheon that is not there is another thing."""
    for one in (error, error.__cause__):
        if isinstance(one, ModuleNotFoundError):
            return (one.name or "letheon").partition(".")[0] != "letheon"
    return False


def _is_of_database(error: BaseException) -> bool:
    """Whether the disk or the connection failed below SQLAlchemy, which is not imported here."""
    known = ("sqlalchemy.exc", "DBAPIError")
    return any((kind.__module__, kind.__name__) == known for kind in type(error).__mro__)


@contextmanager
def open_ledger(folder: Path | None) -> "Iterator[Ledger]":
    """Open the ledger in a folder, or in the current one."""
    # Through the package: it says what to install if the extra is missing.
    import letheon

    no_core_dump()
    home = home_of(folder)
    with taken_at_their_word():
        ledger = letheon.Ledger.open(home)
    with ledger:
        yield ledger


def no_core_dump() -> None:
    """Keep rows and keys, which this process may hold, out of a core file."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def home_of(folder: Path | None) -> Path:
    """Return the folder of the ledger: as given, or the current one if it is one."""
    if folder is not None:
        return folder
    if not Path("letheon.toml").exists():
        raise LedgerMissingError(
            "no ledger here: give --ledger DIR or set LETHEON_LEDGER; `letheon init` makes one"
        )
    return Path()


def public_key(text: str) -> str:
    """Return a public key: the 64 digits, or what a file of them holds."""
    if _KEY.fullmatch(text):
        return text
    if not Path(text).is_file():
        raise FileNotFoundError(f"--key {text} is neither 64 hexadecimal digits nor a file")
    content = Path(text).read_bytes()[:256].decode("ascii", "replace").strip()
    if not _KEY.fullmatch(content):
        raise UsageError(f"{text} holds no public key; expected 64 hexadecimal digits")
    return content


def lines_of(name: str) -> list[str]:
    """Return the lines of a file, or of standard input for a dash, that are not empty."""
    try:
        content = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{name} is no text in UTF-8; expected one id per line") from None
    # Other line breaks than this one may be part of an id.
    return [line.strip() for line in content.split("\n") if line.strip()]


def require_file(path: Path) -> Path:
    """Return the path of a file that is there."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    return path


def require_folder(path: Path) -> Path:
    """Return the path of a folder that is there."""
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path}")
    return path


def say(as_json: bool, document: Any, text: str) -> None:
    """Print a document, or a text for people."""
    typer.echo(json.dumps(plain(document), indent=2) if as_json else text)


def say_facts(lines: Sequence[tuple[str, str]]) -> None:
    """Print names with what they stand for; long texts go on below their beginning."""
    from rich.table import Table
    from rich.text import Text

    from letheon.terminal import PlainConsole

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in lines:
        table.add_row(name, Text(text))
    PlainConsole().print(table)


def say_table(
    as_json: bool,
    documents: Sequence[Any],
    columns: Sequence[str],
    lines: Sequence[Sequence[str]],
    *,
    empty: str,
    folds: str = "",
) -> None:
    """Print a list of documents, or a table for people; one column may have several lines."""
    if as_json:
        typer.echo(json.dumps([plain(document) for document in documents], indent=2))
        return
    if not lines:
        typer.echo(empty)
        return
    from rich.table import Table
    from rich.text import Text

    from letheon.terminal import PlainConsole, print_table

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=name != folds, overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))
    show: Callable[[Any, Any], None] = print_table
    if folds:
        show = PlainConsole.print
    show(PlainConsole(), table)


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
