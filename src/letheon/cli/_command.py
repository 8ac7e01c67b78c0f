"""Declare commands, read their input, print their output and report their errors.

Scripts can rely on the exit status: 0 success; 1 a check failed; 2 wrong usage; 3 not found; 4
refused; 5 try again; 70 internal error.
"""

import functools
import inspect
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
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from letheon import exceptions as errors
from letheon.verifier import VerificationError

if TYPE_CHECKING:
    from letheon.ledger import Ledger

FAILED, USAGE, NOT_FOUND, REFUSED, TRY_AGAIN = 1, 2, 3, 4, 5
# EX_SOFTWARE of sysexits.h: internal software error.
INTERNAL = 70


class UsageError(ValueError):
    """Error: a value on the command line, or in a file that it names, is not valid."""


# The first match decides, so subclasses come before their base classes.
_STATUS: tuple[tuple[Any, ...], ...] = (
    (
        FAILED,
        errors.CertificateError,
        errors.ResidueError,
        errors.CorruptFileError,
        VerificationError,
    ),
    (TRY_AGAIN, errors.LedgerBusyError, errors.LedgerUnwritableError, errors.StaleWorkerError),
    (NOT_FOUND, errors.LedgerMissingError, errors.UnknownModelError, errors.UnknownRequestError),
    (NOT_FOUND, errors.UnknownIdError, FileNotFoundError),
    (REFUSED, errors.LedgerError, errors.ForgetError, errors.StateError),
    (REFUSED, FileExistsError, PermissionError),
    (USAGE, IsADirectoryError, NotADirectoryError, errors.LetheonError, UsageError),
    (TRY_AGAIN, OSError, MemoryError),
)

# PostgreSQL: insufficient privilege, wrong role or password, no such database.
_DENIED = frozenset({"42501", "28000", "28P01", "3D000"})
_KEY = re.compile("[0-9a-f]{64}")
# A bracket that Rich would read as the start of a tag.
_MARKUP = re.compile(r"\[(?=[a-z#/@])")
# The class that typer raises for wrong usage has no public name.
_WRONG_USAGE: Any = typer.BadParameter.__base__


def value(
    metavar: str, about: str, default: str = "", *, name: str | None = None, **options: Any
) -> Any:
    """Return a command-line option with a value; `default` describes the default in words."""
    names = () if name is None else (name,)
    return typer.Option(
        *names, metavar=metavar, help=about, show_default=default or True, **options
    )


def flag(name: str, about: str, **options: Any) -> Any:
    """Return a command-line option without a value."""
    return typer.Option(name, metavar="", help=about, **options)


def argument(metavar: str, about: str, **options: Any) -> Any:
    """Return a positional argument."""
    return typer.Argument(metavar=metavar, help=about, **options)


Home = Annotated[
    Path | None,
    value(
        "DIR",
        "Folder of the ledger.",
        "the current folder",
        name="--ledger",
        envvar="LETHEON_LEDGER",
    ),
]
AsJson = Annotated[bool, flag("--json", "Print a single JSON document.")]
Tenant = Annotated[str, value("NAME", "Tenant that owns the model.")]


class _Plain:
    """Mixin for help pages in the usual notation.

    Placeholders are shown as ``ROWS`` instead of ``{rows}``, and flags without a type.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Rich reads ``[service]`` as markup and does not print it.
        entries: list[Any] = [self, *self.params]  # type: ignore[attr-defined]
        for entry in entries:
            entry.help = _MARKUP.sub(r"\\[", entry.help or "")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line without braces."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.strip("{}") for piece in pieces]

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option ``--help``, shown without a type."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


class PlainCommand(_Plain, TyperCommand):
    """A command with a plain help page."""


class LedgerCommand(PlainCommand):
    """A command whose help text is wrapped to the width of the terminal."""

    def __init__(self, *words: Any, **options: Any) -> None:
        about = options.get("help") or ""
        flowing = [" ".join(part.split()) for part in about.split("\n\n")]
        super().__init__(*words, **{**options, "help": "\n\n".join(flowing)})


class PlainGroup(_Plain, TyperGroup):
    """A group of commands with a plain help page."""


class ScriptedGroup(PlainGroup):
    """The top-level group; with ``--json`` it reports even wrong usage as a JSON document."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command that the arguments name."""
        words = args[0] if args else options.get("args")
        words = sys.argv[1:] if words is None else words
        if "--json" not in words or not options.get("standalone_mode", True):
            return super().main(*args, **options)
        try:
            status = super().main(*args, **options | {"standalone_mode": False})
        except _WRONG_USAGE as error:
            _print_error(True, "UsageError", error.format_message())
            status = USAGE
        sys.exit(status or 0)


def make_group(name: str, about: str, **options: Any) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        add_completion=False,
        # A traceback with local variables would show rows.
        pretty_exceptions_show_locals=False,
        **{"cls": PlainGroup, **options},
    )


class Listing:
    """A table in the output for people.

    Parameters
    ----------
    columns, rows : sequence
        Column names, and the cells of each row; None is an empty cell.
    empty : str
        Text that is printed instead of an empty table.
    folds : str
        Column whose cells may have several lines.
    soft_wrap : bool, default=False
        Let the terminal wrap long lines.
    **look
        Options of `rich.table.Table`.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        *,
        empty: str = "",
        folds: str = "",
        soft_wrap: bool = False,
        **look: Any,
    ) -> None:
        self.columns, self.rows, self.empty, self.folds = columns, rows, empty, folds
        self.soft_wrap, self.look = soft_wrap, look

    def print(self) -> None:
        """Print the table, or `empty` if it has no rows."""
        if not self.rows:
            typer.echo(self.empty)
            return
        from letheon.terminal import PlainConsole, make_table, print_table

        kept = [name for name in self.columns if name != self.folds]
        look = {"box": None, "padding": (0, 2, 0, 0), **self.look}
        table = make_table(self.columns, self.rows, no_wrap=kept, **look)
        show: Callable[[Any, Any], None] = PlainConsole.print if self.folds else print_table
        show(PlainConsole(soft_wrap=self.soft_wrap), table)


def make_fact_list(lines: Sequence[tuple[str, str]], *, soft_wrap: bool = False) -> Listing:
    """Return a table of names and values; long values are indented under their first line."""
    columns = ("name", "fact")
    return Listing(columns, lines, folds="fact", soft_wrap=soft_wrap, show_header=False)


class CommandOutput:
    """The output of a command.

    Parameters
    ----------
    document : object
        Output for programs, printed with ``--json``.
    *parts : str or Listing
        Output for people, printed without ``--json``.
    status : int, default=0
        Exit status.
    """

    def __init__(self, document: Any, *parts: str | Listing, status: int = 0) -> None:
        self.document, self.parts, self.status = document, parts, status

    def print(self, as_json: bool) -> None:
        """Print the JSON document, or the text for people."""
        if as_json:
            typer.echo(json.dumps(self.document, indent=2, default=to_plain))
            return
        for part in self.parts:
            if isinstance(part, str):
                _print_text(part)
            else:
                part.print()


_ENTRY = re.compile(r"^(\w+) : (.+)\n((?: {4}.+\n?)+)", re.MULTILINE)


def document_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn the parameters of a function into those of a command, with help from the docstring.

    Positional parameters become arguments of the command, keyword parameters become options. In the
    Parameters section, the type is the placeholder in the help, and the words after ``by default``
    describe the default. Without docstrings (``python -OO``) the commands work, but have no help.
    """
    about, _, section = (inspect.getdoc(function) or "").partition("\n\nParameters\n----------\n")
    entries = {name: (kind, text) for name, kind, text in _ENTRY.findall(section)}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation, is_keyword = parameter.annotation, parameter.kind is parameter.KEYWORD_ONLY
        if isinstance(annotation, str):  # the ledger that `ledger_command` opens
            continue
        info = typer.Option() if is_keyword else typer.Argument()
        if get_origin(annotation) is Annotated:
            annotation, info = annotation.__origin__, annotation.__metadata__[0]
        # Typer takes the first name for a default until it has read the annotation.
        has_name = bool(info.param_decls) or isinstance(info.default, str)
        if annotation is bool and not parameter.default and not has_name:
            info.param_decls = (f"--{name.replace('_', '-')}",)
        if name in entries:
            metavar, _, default = entries[name][0].partition(", by default ")
            info.help, info.show_default = " ".join(entries[name][1].split()), default or True
            if not metavar.startswith("{"):
                info.metavar = metavar if annotation is not bool else ""
        function.__annotations__[name] = Annotated[annotation, info]
    function.__doc__ = about
    return function


def ledger_command(
    group: typer.Typer, name: str | None = None, *, opens: bool = True, **options: Any
) -> Callable[[Callable[..., CommandOutput]], Callable[..., CommandOutput]]:
    """Return a decorator that turns a function that returns a `CommandOutput` into a command.

    The command also has the option ``--json``. If `opens` is true, it has the option ``--ledger``,
    and the function receives the open ledger as its first argument. An error is printed as one
    line, or as one JSON document, and sets the exit status.
    """

    def register(function: Callable[..., CommandOutput]) -> Callable[..., CommandOutput]:
        def run(*, as_json: bool, **values: Any) -> None:
            with report_errors(as_json):
                if opens:
                    with open_ledger(values.pop("ledger")) as opened:
                        answer = function(opened, **values)
                else:
                    answer = function(**values)
                answer.print(as_json)
            if answer.status:
                raise typer.Exit(answer.status)

        document_options(function)
        own = [
            _as_option(own.name, own.annotation, own.default)
            for own in [*inspect.signature(function).parameters.values()][opens:]
        ]
        own += [_as_option("ledger", Home, None)] * opens + [_as_option("as_json", AsJson, False)]
        # Typer reads names, help and options here.
        functools.update_wrapper(run, function)
        del run.__dict__["__wrapped__"]
        run.__annotations__ = {option.name: option.annotation for option in own}
        run.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        group.command(name, cls=LedgerCommand, **options)(run)
        return function

    return register


def _as_option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, annotation=annotation, default=default)


@contextmanager
def report_errors(as_json: bool) -> Iterator[None]:
    """Report an error as one line, or one JSON document, on standard error, and exit."""
    try:
        yield
    except (typer.Exit, BrokenPipeError):  # the latter: the reader closed the pipe
        raise
    except Exception as error:
        status = find_exit_status(error)
        if status == INTERNAL and os.environ.get("LETHEON_TRACEBACK") == "1":
            raise
        kind = "InternalError" if status == INTERNAL else type(error).__name__
        _print_error(as_json, kind, describe_error(error))
        raise typer.Exit(status) from error


@contextmanager
def wrap_usage_errors() -> Iterator[None]:
    """Convert a `ValueError` or `TypeError` in this block to a `UsageError`.

    The block must be a single call with values from the user. Elsewhere these errors are reported
    as internal errors.
    """
    try:
        yield
    except (errors.LetheonError, VerificationError):
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(str(error) or type(error).__name__) from error


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print to standard error any warnings about files that cannot be searched."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", errors.SearchWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, errors.SearchWarning):
            _print_text(f"warning: {warning.message}", err=True)
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def _print_text(text: str, *, err: bool = False) -> None:
    """Print a text that may contain text from untrusted files; control characters are hidden."""
    from letheon.terminal import hide_controls

    typer.echo(hide_controls(text), err=err)


def _print_error(as_json: bool, kind: str, text: str) -> None:
    if as_json:
        typer.echo(json.dumps({"error": {"kind": kind, "text": text}}), err=True)
    else:
        _print_text(f"letheon: {text}", err=True)


def exit_with_error(message: str) -> NoReturn:
    """Print an error and exit with status 1."""
    _print_error(False, "", message)
    raise typer.Exit(FAILED)


def find_exit_status(error: BaseException) -> int:
    """Return the exit status for an error; `INTERNAL` if the error is unexpected."""
    if _is_of_database(error):
        is_denied = getattr(getattr(error, "orig", None), "sqlstate", None) in _DENIED
        return REFUSED if is_denied else TRY_AGAIN
    if _is_missing_package(error):
        return USAGE
    return next((line[0] for line in _STATUS if isinstance(error, line[1:])), INTERNAL)


def describe_error(error: BaseException) -> str:
    """Return the text that is printed for an error."""
    status = find_exit_status(error)
    if _is_of_database(error):
        verb = "refused" if status == REFUSED else "failed"
        return f"the database {verb}: {getattr(error, 'orig', error)}".strip()
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    if status != INTERNAL:
        return str(error) or type(error).__name__
    # The kind of the error and its place; its own text may contain values of rows.
    line = errors.find_own_line(error)
    where = "" if line is None else f" in {line[0]}, line {line[1]}"
    return (
        f"internal error: {type(error).__name__}{where}. This is a bug in letheon; please report "
        "it. Acknowledged requests are not lost. LETHEON_TRACEBACK=1 shows the traceback, which "
        "may contain personal data"
    )


def _is_missing_package(error: BaseException) -> bool:
    """Return whether an error means that a third-party package is not installed."""
    for item in (error, error.__cause__):
        if isinstance(item, ModuleNotFoundError):
            return (item.name or "letheon").partition(".")[0] != "letheon"
    return False


def _is_of_database(error: BaseException) -> bool:
    """Return whether an error comes from the database driver, without importing SQLAlchemy."""
    known = ("sqlalchemy.exc", "DBAPIError")
    return any((kind.__module__, kind.__name__) == known for kind in type(error).__mro__)


@contextmanager
def open_ledger(folder: Path | None) -> "Iterator[Ledger]":
    """Open the ledger in a folder, or in the current folder if `folder` is None."""
    # Through the package: its error says which extra to install.
    import letheon

    disable_core_dump()
    home = find_home(folder)
    with wrap_usage_errors():
        ledger = letheon.Ledger.open(home)
    with ledger:
        yield ledger


def disable_core_dump() -> None:
    """Disable core dumps, so that no core file contains rows or keys of this process."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def find_home(folder: Path | None) -> Path:
    """Return `folder`, or the current folder if it is None.

    Raise `LedgerMissingError` if the current folder does not contain a ledger.
    """
    if folder is not None:
        return folder
    if not Path("letheon.toml").exists():
        raise errors.LedgerMissingError(
            "no ledger in the current folder; use --ledger DIR, set LETHEON_LEDGER, or create a "
            "ledger with `letheon init`"
        )
    return Path()


def read_public_key(text: str) -> str:
    """Return a public key, from 64 hexadecimal digits or from the file that contains them."""
    if _KEY.fullmatch(text):
        return text
    if not Path(text).is_file():
        raise FileNotFoundError(
            f"--key {text} is neither 64 hexadecimal digits nor an existing file"
        )
    content = Path(text).read_bytes()[:256].decode("ascii", "replace").strip()
    if not _KEY.fullmatch(content):
        raise UsageError(f"{text} does not contain a public key: expected 64 hexadecimal digits")
    return content


def read_lines(name: str) -> list[str]:
    """Return the non-empty lines of a file, or of standard input for ``-``."""
    try:
        content = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not UTF-8 text; expected one id per line") from None
    # Other line breaks than this one may be part of an id.
    return [line.strip() for line in content.split("\n") if line.strip()]


def require_file(path: Path) -> Path:
    """Return the path of an existing file."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    return path


def require_folder(path: Path) -> Path:
    """Return the path of an existing folder."""
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path}")
    return path


def parse_whole_numbers(option: str, text: str) -> list[int]:
    """Return the numbers in a text such as ``1,5,20``.

    The error for another text names the option.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise typer.BadParameter(
            f"{text!r}; expected whole numbers of at least 1, separated by commas, "
            f"for example 1,5,20",
            param_hint=option,
        )
    return [int(word) for word in words]


def make_number_parser(least: int) -> Callable[[str], int]:
    """Return a parser for a whole number of at least `least`; its error repeats the value."""

    # Typer also parses the default, which is a number already.
    def parse_whole_number(value: Any) -> int:
        word = str(value).strip()
        if not (word.isascii() and word.isdigit() and int(word) >= least):
            raise typer.BadParameter(
                f"{word!r}; expected a whole number of at least {least}, digits "
                f"only, for example 100000"
            )
        return int(word)

    return parse_whole_number


def to_plain(value: Any) -> Any:
    """Return a JSON-compatible value for a date, duration, dataclass or other object."""
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: getattr(value, entry.name) for entry in fields(value)}
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return dict(value) if isinstance(value, Mapping) else str(value)
