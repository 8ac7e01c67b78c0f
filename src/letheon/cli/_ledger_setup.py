"""`letheon init`, `letheon doctor`: make a ledger, and look it over."""

from pathlib import Path
from typing import Annotated

import typer

from letheon.cli._ledger_common import (
    FAILED,
    AsJson,
    Home,
    open_ledger,
    reported,
    say,
    say_table,
)

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
        str | None,
        typer.Option(
            metavar="ZONE", help="Time zone of the controller's seat.", show_default="Brussels"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a ledger: settings, signing key, database.

    Example: letheon init erasures --name prod-eu-1
    """
    with reported(as_json):
        import letheon

        calendar = None
        if timezone is not None:
            calendar = letheon.ledger.Calendar(timezone=timezone)
        with letheon.Ledger.create(
            folder, name=name, database=database, calendar=calendar
        ) as ledger:
            document = {
                "ledger": ledger.name,
                "folder": folder.resolve(),
                "public_key": ledger.public_key,
            }
            text = (
                f"made the ledger {ledger.name} in {folder}\n"
                f"public key {ledger.public_key}\n"
                "Give this key to whoever shall verify certificates. Keep a copy of "
                f"{folder / 'keys'} in a safe place: without it nothing can be signed or read."
            )
            say(as_json, document, text)


def doctor(ledger: Home = None, as_json: AsJson = False) -> None:
    """Look the ledger over: files, keys, certificates, log, due days, leftovers, clock.

    The exit status is 1 if something is wrong. Example: letheon doctor --ledger erasures
    """
    with reported(as_json), open_ledger(ledger) as opened:
        found = opened.doctor()
    lines = [(one.level, one.check, one.text) for one in found]
    say_table(as_json, found, ("", "check", "found"), lines, empty="nothing to look at")
    if any(one.level == "error" for one in found):
        raise typer.Exit(FAILED)
