"""`letheon init`, `letheon doctor`: make a ledger, and look it over."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from letheon.cli._ledger_common import (
    FAILED,
    REFUSED,
    AsJson,
    Home,
    open_ledger,
    reported,
    say,
    say_table,
    status_of,
    taken_at_their_word,
)
from letheon.exceptions import LedgerError

if TYPE_CHECKING:
    from letheon.ledger import Finding

__all__ = ["doctor", "init"]


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make it in.")],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the ledger, as certificates carry it.")
    ],
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="PostgreSQL: postgresql://user@host/name.",
            show_default="a SQLite file in DIR",
        ),
    ] = None,
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="Time zone of the controller's seat.")
    ] = "Europe/Brussels",
    seat: Annotated[
        str,
        typer.Option(metavar="CODE", help="Whose public holidays count: EU, none, BE, DE, FR, ..."),
    ] = "EU",
    as_json: AsJson = False,
) -> None:
    """Make a ledger: settings, signing key, database.

    Example: letheon init erasures --name prod-eu-1
    """
    with reported(as_json):
        import letheon

        with taken_at_their_word():
            calendar = letheon.ledger.Calendar(seat=seat, timezone=timezone)
            made = letheon.Ledger.create(folder, name=name, database=database, calendar=calendar)
        with made as ledger:
            document = {
                "ledger": ledger.name,
                "folder": folder.resolve(),
                "public_key": ledger.public_key,
            }
            text = (
                f"made the ledger {ledger.name} in {folder}\n"
                f"public key {ledger.public_key}\n"
                "Give this key to whoever shall verify certificates.\n"
                f"Keep a copy of sign-*.key, current and tag.key in {folder / 'keys'}\n"
                f"and of {folder / 'public'} in a safe place. Keep other keys no longer\n"
                "than your backups last: a key that was kept undoes an erasure."
            )
            say(as_json, document, text)


def doctor(
    accept_clock: Annotated[
        bool,
        typer.Option(
            "--accept-clock",
            metavar="",
            help="First confirm that this machine's clock is right now.",
        ),
    ] = False,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Look the ledger over: files, keys, certificates, log, due days, leftovers, clock.

    The exit status is 1 if something is wrong. A clock that was ahead has left times in the log
    that are still to come, and nothing is recorded until they have passed. A clock that is days
    ahead of the uptime of the machines ends no hold, and nothing is forgotten: it was set ahead, or
    the machines were off. In both cases set the clock right, then use --accept-clock once. The log
    tells of it.

    Example: letheon doctor --ledger erasures
    """
    with reported(as_json):
        found = (*_accepted(ledger, accept_clock), *_looked_over(ledger))
        lines = [(one.level, one.check, one.text) for one in found]
        columns = ("", "check", "found")
        say_table(as_json, found, columns, lines, empty="nothing to look at", folds="found")
    if any(one.level == "error" for one in found):
        raise typer.Exit(FAILED)


def _accepted(folder: Path | None, wanted: bool) -> "tuple[Finding, ...]":
    """Go on from the clock as it is now, and say so."""
    if not wanted:
        return ()
    with open_ledger(folder) as opened:
        was_ahead = opened.accept_clock()
    from letheon.ledger import Finding

    text = "the log goes on from this machine's clock" if was_ahead else "nothing to correct"
    return (Finding("accept-clock", "ok", text),)


def _looked_over(folder: Path | None) -> "tuple[Finding, ...]":
    """Return what was found; what keeps the ledger from being opened is a finding as well."""
    try:
        with open_ledger(folder) as opened:
            return opened.doctor()
    except LedgerError as error:
        if status_of(error) != REFUSED:
            raise
        from letheon.ledger import Finding

        return (Finding("ledger", "error", str(error)),)
