"""What the first start of a desk makes: the ledger if there is none, and one token of an admin."""

from pathlib import Path

from letheon.ledger import Ledger
from letheon.ledger.settings import FILE
from letheon.service._tokens import Tokens

__all__ = ["admin_token", "open_or_create"]

_NAME = "desk"


def open_or_create(folder: Path, *, database: str | None = None, name: str | None = None) -> Ledger:
    """Open the ledger in a folder; make it where there is none, or go on where that stopped.

    Raises
    ------
    LedgerError
        The folder holds other things.
    ValueError
        A database was named, and the ledger that is there has another.
    """
    if (folder / FILE).exists():
        ledger = Ledger.open(folder)
        if database is not None and database != ledger.settings.database:
            ledger.close()
            raise ValueError(
                f"the ledger in {folder} has a database already, and it is not the one that was "
                f"given; leave --database out, or change {FILE}"
            )
        return ledger
    return Ledger.create(folder, name=name or _NAME, database=database)


def admin_token(ledger: Ledger, *, days: int) -> str | None:
    """Return the text of a new admin's token on the very first start; None later."""
    tokens = Tokens(ledger, ledger._core.clock)
    if tokens.was_ever():
        return None
    text, _ = tokens.mint("first-admin", "admin", days=days)
    return text
