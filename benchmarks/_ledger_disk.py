"""What the disk can do: commits of one bare row, with the ledger's own settings of SQLite."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from letheon.ledger.db.engines import library


class Rate(NamedTuple):
    """How many a second, and how long one takes."""

    per_second: float
    p50: float
    """Milliseconds."""
    p99: float
    """Milliseconds."""


def rate_of(seconds: Sequence[float], wall: float | None = None) -> Rate:
    """Return the rate of calls that took so long each, one after the other or within `wall`."""
    p50, p99 = np.percentile(np.asarray(seconds), [50, 99]) * 1e3
    return Rate(len(seconds) / (wall or float(sum(seconds))), float(p50), float(p99))


def lap(call: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class BareCommits:
    """A table of one column; each commit adds one row and is on the disk when it returns.

    Parameters
    ----------
    path
        A new database file, on the file system that is measured.
    journal
        ``"wal"`` (with ``synchronous=FULL``) or ``"delete"`` (with ``EXTRA``), as the ledger has.
    """

    def __init__(self, path: Path, journal: str) -> None:
        self._connection = library().connect(path, isolation_level=None)
        level = "FULL" if journal == "wal" else "EXTRA"
        for pragma in (f"journal_mode={journal}", f"synchronous={level}", "secure_delete=ON"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute("CREATE TABLE t (a TEXT)")

    def commit(self) -> None:
        """Add a row, durably."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("INSERT INTO t VALUES ('one row of a request')")
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
