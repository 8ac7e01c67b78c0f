"""`letheon key`, `letheon store`: signing keys, and places that a purge looks through."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from letheon.cli._ledger_common import (
    AsJson,
    Home,
    LedgerCommand,
    group,
    open_ledger,
    reported,
    require_folder,
    say,
    say_table,
    taken_at_their_word,
    warnings_said,
)
from letheon.exceptions import LedgerMissingError

if TYPE_CHECKING:
    from letheon.ledger import Key

__all__ = ["keys", "stores"]

keys = group("key", "Keys that certificates are signed with.")
stores = group("store", "Folders outside the ledger that may hold people.")


@keys.command("list", cls=LedgerCommand)
def show_keys(ledger: Home = None, as_json: AsJson = False) -> None:
    """List the public keys; strangers pin the first.

    Example: letheon key list
    """
    with reported(as_json), open_ledger(ledger) as opened:
        found = opened.keys.list()
    say(as_json, found, "\n".join(_about_key(one) for one in found))


def _about_key(key: "Key") -> str:
    signs = f"from {key.first} on" if key.last is None else f"{key.first} to {key.last}"
    if key.last is not None and key.last < (key.first or 0):
        signs = "none"
    return f"{key.state}: certificates {signs}\n  public  {key.public}\n  id      {key.keyid}"


@keys.command("rotate", cls=LedgerCommand)
def rotate(ledger: Home = None, as_json: AsJson = False) -> None:
    """Sign with a new key from now on; old certificates stay valid.

    Example: letheon key rotate
    """
    with reported(as_json), open_ledger(ledger) as opened:
        keyid = opened.keys.rotate()
        text = (
            f"signs from now on with the key of id\n{keyid}\n"
            f"strangers go on with the first public key\n{opened.public_key}"
        )
        say(as_json, {"keyid": keyid}, text)


@keys.command("revoke", cls=LedgerCommand)
def revoke(
    keyid: Annotated[str, typer.Argument(metavar="KEY", help="Id of the key, in full.")],
    after: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Certificates up to this number stay trusted."),
    ],
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """State that a key is not to be trusted after a certificate; rotate first.

    Example: letheon key revoke
    9b241b61c3c1262035366773f02a8643883e04ddc8d123c8b5876423598f7ba9 --after 41
    """
    with reported(as_json), open_ledger(ledger) as opened:
        with taken_at_their_word():
            opened.keys.revoke(keyid, after=after)
        document = {"keyid": keyid, "after": after}
        say(as_json, document, f"{keyid} is not trusted after certificate {after}")


@stores.command("add", cls=LedgerCommand)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A code, for attestations.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder.")],
    owner: Annotated[str, typer.Option(metavar="CODE", help="Who keeps it clean.")] = "operator",
    scope: Annotated[str, typer.Option(metavar="CODE", help="What lies in it.")] = "copies",
    days: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="A backup that expires by itself after so many days."
        ),
    ] = None,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Register a folder that every purge looks through.

    Example: letheon store add features /srv/features --owner data-team
    """
    with reported(as_json), open_ledger(ledger) as opened:
        path = require_folder(folder)
        with taken_at_their_word(), warnings_said():
            opened.stores.add(name, path, owner=owner, scope=scope, days=days)
        say(as_json, {"store": name}, f"every purge looks through {folder} from now on")


@stores.command("list", cls=LedgerCommand)
def show_stores(ledger: Home = None, as_json: AsJson = False) -> None:
    """List the registered folders.

    Example: letheon store list
    """
    with reported(as_json), open_ledger(ledger) as opened:
        found = opened.stores.list()
    lines = [
        (one.name, str(one.path), one.owner, one.scope, "" if one.days is None else str(one.days))
        for one in found
    ]
    columns = ("store", "folder", "owner", "scope", "days")
    say_table(as_json, found, columns, lines, empty="no folder is registered", folds="folder")


@stores.command("remove", cls=LedgerCommand)
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the store.")],
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Take a folder off the registry; later purges do not speak of it.

    Example: letheon store remove features
    """
    with reported(as_json), open_ledger(ledger) as opened:
        if name not in {one.name for one in opened.stores.list()}:
            raise LedgerMissingError(f"there is no store {name!r}; `letheon store list` shows all")
        opened.stores.remove(name)
        say(as_json, {"store": name}, f"{name} is not looked through any more")
