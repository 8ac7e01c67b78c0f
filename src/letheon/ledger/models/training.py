"""Training afresh on the rows that a ledger holds: for registration, retrains and audits."""

import time
from typing import Any, NamedTuple

from letheon.compose import unfitted_twin
from letheon.data import Rows, hold_table, hold_target, row_ids, table_length
from letheon.inner import fresh_copy
from letheon.parallel import one_thread

__all__ = ["Fitted", "fresh_fit", "held_rows"]


class Fitted(NamedTuple):
    """A model, and how long its training took."""

    model: Any
    seconds: float


def held_rows(X: Any, y: Any, ids: Any, extra: dict[str, Any] | None = None) -> Rows:
    """Return rows in memory of the ledger's own; without ids they are numbered from 0.

    `extra` holds further arguments of `fit` with one value per row, such as SISA's `risk`.
    """
    table, target = hold_table(X), None if y is None else hold_target(y)
    length = table_length(table)
    if target is not None and len(target) != length:
        raise ValueError(f"X has {length} rows and y has {len(target)}; give one target per row")
    values = {name: hold_target(value) for name, value in (extra or {}).items()}
    for name, value in values.items():
        if len(value) != length:
            raise ValueError(f"{name} has {len(value)} values for {length} rows")
    return Rows(table, target, row_ids(ids, length), values)


def fresh_fit(like: Any, rows: Rows, *, seed: int | None = None) -> Fitted:
    """Train on these rows, in held order, with the settings of a model and one thread.

    Parameters
    ----------
    like : estimator
        Its settings are taken, and its seeds unless `seed` is given. It is not changed.
    rows : Rows
        The rows; what is in ``rows.extra`` goes to `fit` by name.
    seed : int, optional
        Another seed.
    """
    fresh = unfitted_twin(like) if seed is None else fresh_copy(like, seed)
    X, y = rows.part(0, len(rows))
    start = time.perf_counter()
    with one_thread():
        fresh.fit(X, y, ids=rows.ids.to_array(), **rows.extra)
    return Fitted(fresh, time.perf_counter() - start)
