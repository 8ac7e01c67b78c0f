"""Many rows in one statement, whose text is built once for each number of rows.

Requests come in by the thousand. Compiling a statement costs as much as running it, and one
statement for each row makes the threads of a process change places at every row.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Connection, Table

T = TypeVar("T")

_MOST_PARAMETERS = 5000
_PLACES = {"sqlite": "?", "postgresql": "%s"}


class RowsIn:
    """An INSERT of any number of rows.

    Parameters
    ----------
    table : Table
        Where they go.
    names : sequence of str
        Columns that are set; values must be what the driver takes as it is.
    unless_there : bool, default=False
        Leave out rows that a unique index refuses, rather than raise.
    returning : sequence of str, default=()
        Columns of the rows that went in, to return.
    """

    def __init__(
        self,
        table: Table,
        names: Sequence[str],
        *,
        unless_there: bool = False,
        returning: Sequence[str] = (),
    ) -> None:
        self._names = tuple(table.c[name].name for name in names)
        self._head = f"INSERT INTO {table.name} ({', '.join(self._names)}) VALUES "
        self._tail = " ON CONFLICT DO NOTHING" if unless_there else ""
        if returning:
            self._tail += f" RETURNING {', '.join(table.c[name].name for name in returning)}"
        self._returns = bool(returning)
        self._most = _MOST_PARAMETERS // len(self._names)

    def __call__(
        self, connection: Connection, rows: Sequence[Mapping[str, Any]]
    ) -> list[tuple[Any, ...]]:
        """Insert rows in their order; return what was asked for, in any order."""
        found: list[tuple[Any, ...]] = []
        for part in chunked(rows, self._most):
            values = tuple([row[name] for row in part for name in self._names])
            places = _places(connection.dialect.name, len(self._names), len(part))
            done = connection.exec_driver_sql(self._head + places + self._tail, values)
            if self._returns:
                found.extend(map(tuple, done))
        return found


@cache
def _places(dialect: str, n_names: int, n_rows: int) -> str:
    row = f"({', '.join([_PLACES[dialect]] * n_names)})"
    return ", ".join([row] * n_rows)


def chunked(items: Iterable[T], size: int = 400) -> Iterator[list[T]]:
    """Yield items in lists of this size; SQLite before 3.32 takes 999 parameters in a statement."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
