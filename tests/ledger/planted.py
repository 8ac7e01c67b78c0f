"""Bugs that the arena must find: planted in the forked processes of the ledger, by name."""

from collections.abc import Callable

BUGS: dict[str, Callable[[], None]] = {}


def plant(name: str | None) -> None:
    """Put a bug into this process; None for none."""
    if name is not None:
        BUGS[name]()
