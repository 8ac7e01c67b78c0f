"""What one request took out of a model, and how long that took."""

import time
from typing import Any, NamedTuple

__all__ = ["NOTHING", "Asked", "finished"]


class Asked(NamedTuple):
    """Rows that left, and seconds."""

    n_rows: int = 0
    seconds: float = 0.0


# Of a request that the model was not asked.
NOTHING = Asked()


def finished(model: Any, receipt: Any) -> Asked:
    """Let a lazy model do what a request left for later; its time belongs to the request."""
    finish, start = getattr(model, "_finish", None), time.perf_counter()
    if finish is not None:
        finish()
    late = time.perf_counter() - start
    return Asked(int(receipt.n_rows), float(receipt.seconds) + late)
