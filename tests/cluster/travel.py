"""Tasks and payloads that leave traces; imported by the workers of both clusters."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from letheon.parallel.tasks import _Stored

ROWS = 250_000  # 2 MB each


class TracedRows:
    """An array that leaves a file in `folder` whenever it is unpickled."""

    def __init__(self, values: NDArray[Any], folder: Path, arrived: bool = False) -> None:
        self.values, self.folder = values, folder
        if arrived:
            (folder / f"arrived-{int(values[0])}-{os.getpid()}-{time.monotonic_ns()}").touch()

    def __reduce__(self) -> tuple[type["TracedRows"], tuple[NDArray[Any], Path, bool]]:
        return TracedRows, (self.values, self.folder, True)


def payloads(n: int, folder: Path) -> list[tuple[TracedRows, int]]:
    return [(TracedRows(np.arange(i, ROWS + i, dtype=float), folder), i) for i in range(n)]


def train(rows: TracedRows, number: int) -> dict[str, Any]:
    """Stand for a fit: write to the rows, return something large."""
    rows.values -= number
    return {
        "model": rows.values[:: number + 1].copy(),
        "process": os.getpid(),
        "threads": {library["num_threads"] for library in threadpool_info()},
    }


def arrivals(folder: Path) -> list[int]:
    """The number of each payload that was unpickled, once per time."""
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("arrived-*"))


def never_finish_on(doomed: str, folder: Path, function: Callable[..., Any], *args: Any) -> Any:
    """Call the function, but never on the doomed node of the Ray cluster; note the attempt."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    (folder / f"started-{node}-{time.monotonic_ns()}").touch()
    while node == doomed:
        time.sleep(0.05)
    return function(*args)


def die_once(rows: TracedRows, number: int) -> dict[str, Any]:
    """Train, but take the first worker that meets payload 1 down."""
    died = rows.folder / "died"
    if number == 1 and not died.exists():
        died.touch()
        os._exit(1)
    return train(rows, number)


class TravelError(Exception):
    """An error that only these tests know."""


def refuse(rows: TracedRows, number: int) -> int:
    if number == 1:
        raise TravelError(number)
    return number


def break_pipe(rows: TracedRows, number: int) -> int:
    """Raise, as code of the user, what a lost node looks like; note each call."""
    (rows.folder / f"called-{number}-{time.monotonic_ns()}").touch()
    if number == 1:
        raise BrokenPipeError(32, "Broken pipe")
    return number


class BreaksOnce(_Stored):
    """A stored payload of a node that is being lost: the first who asks gets a broken pipe."""

    __slots__ = ("folder",)

    def __init__(self, folder: Path, reference: Any) -> None:
        super().__init__(reference)
        self.folder = folder

    def __reduce__(self) -> Any:
        return BreaksOnce, (self.folder, self.reference)

    def get(self) -> Any:
        try:
            (self.folder / "broken").touch(exist_ok=False)
        except FileExistsError:
            return super().get()
        raise BrokenPipeError(32, "Broken pipe")


def look_at(rows: TracedRows, number: int) -> dict[str, Any]:
    """Say whether the shared rows are a window into the store."""
    return {
        "sum": float(rows.values.sum()) + number,
        "is_window": not rows.values.flags.writeable,
    }
