"""What one request took out of a model, and how long that took."""

import time
from typing import Any, NamedTuple

__all__ = ["NOTHING", "Asked", "ask", "finished"]


class Asked(NamedTuple):
    """Rows that left, and seconds."""

    n_rows: int = 0
    seconds: float = 0.0


# Of a request that the model was not asked.
NOTHING = Asked()


def ask(model: Any, ids: Any) -> tuple[Any, Asked]:
    """Let a model forget people, if there are any; return its receipt, and rows and time."""
    if len(ids) == 0:
        return None, NOTHING
    start = time.perf_counter()
    receipt = model.forget(ids)
    return receipt, Asked(int(receipt.n_rows), time.perf_counter() - start)


def finished(model: Any, asked: Asked, row: Any) -> Asked:
    """Let a lazy model do what a request left for later; its time belongs to the request.

    It may do so when it is asked to, or at its first answer: what that takes beyond a second one.
    """
    if asked is NOTHING:
        return asked
    finish, times = getattr(model, "_finish", None), [time.perf_counter()]
    if finish is not None:
        finish()
    for _ in range(2):
        model.predict(row)
        times.append(time.perf_counter())
    late, again = times[1] - times[0], times[2] - times[1]
    return asked._replace(seconds=asked.seconds + max(late - again, 0.0))
