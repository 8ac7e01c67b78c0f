"""Memory of one convex model in a fresh process: fit, single removals and a batch."""

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from benchmarks._convex_data import ConvexSet
from benchmarks._convex_models import (
    ConvexMethod,
    make_deltagrad,
    make_descent,
    make_fisher,
    make_influence,
)
from benchmarks._data import ROOT
from benchmarks._forest_fresh import ONE_THREAD, _read_memory
from benchmarks._report import Table, TargetCheck

__all__ = ["MethodMemory", "check_memory", "make_memory_table", "measure_memories"]

MOST_BYTES = 2_000_000_000
DELTAGRAD = "DeltaGrad cached"
METHODS = ("Influence", "Fisher", "Descent-to-Delete", DELTAGRAD)
N_HESSIANS = 4
FEW_STEPS = 20  # memory does not depend on more
COLUMNS = (
    "method", "peak MB", "data MB", "held MB", "fit: peak over held MB", "one leaves: MB",
    "1% leave: MB", "1% leave: in tables",
)  # fmt: skip
NOTE = (
    "A fresh process with nothing else in it, {shape} as float64. *peak*: the highest resident "
    "memory of the whole process: Python, libraries, the caller's table and everything else. "
    "*held*: what the fitted model holds, its own copy of the rows in it. The others: the highest "
    "point of a call over what was resident before it (for the fit: over what it leaves). *in "
    "tables*: in units of the table, {table:,.0f} MB: a gradient per row would take 1 or more. One "
    "Hessian of {p:,} columns has {square:,.0f} MB; DeltaGrad writes all of its {hessians} again. "
    "MB are 10^6 bytes."
)


class MethodMemory(NamedTuple):
    """Memory of one method, in bytes."""

    method: str
    peak: int
    data: int
    held: int
    fit: int
    one: int
    batch: int

    def row(self) -> tuple[Any, ...]:
        """Return the row of the table, in MB."""
        numbers = (f"{value / 1e6:,.0f}" for value in self[1:])
        return (self.method, *numbers, f"{self.batch / self.data:.2f}")


def measure_memories(data: ConvexSet, methods: tuple[str, ...]) -> list[MethodMemory]:
    """Measure every method in a separate process."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "X.npy", data.X)
        np.save(folder / "y.npy", data.y)
        return [_run_process(folder, {"method": name, "l2": data.l2}) for name in methods]


def _run_process(folder: Path, job: dict[str, Any]) -> MethodMemory:
    command = [sys.executable, "-m", "benchmarks._convex_fresh", str(folder), json.dumps(job)]
    environment = {**os.environ, **ONE_THREAD}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT, env=environment)
    return MethodMemory(**json.loads(done.stdout))


def _make_method(name: str) -> ConvexMethod:
    makers: dict[str, Callable[[], ConvexMethod]] = {
        "Influence": partial(make_influence, 1.0),
        "Fisher": partial(make_fisher, state="secret"),
        "Descent-to-Delete": partial(make_descent, state="secret"),
        DELTAGRAD: partial(make_deltagrad, FEW_STEPS, hessian="cached", n_checkpoints=N_HESSIANS),
    }
    return makers[name]()


class _MemoryWatch:
    """Peak memory, since the start and since the last call of `begin`."""

    def __init__(self) -> None:
        self.peak = 0

    def begin(self) -> int:
        """Restart from the current resident size."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # otherwise freed memory could hide an allocation
        self.peak = max(self.peak, _read_memory("VmHWM"))
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset VmHWM
        return _read_memory("VmRSS")

    def extra(self, call: Callable[[], Any]) -> int:
        """Return the peak of a call minus the memory before it."""
        before = self.begin()
        call()
        return _read_memory("VmHWM") - before


def _measure_method(folder: Path, job: dict[str, Any]) -> MethodMemory:
    X, y = np.load(folder / "X.npy"), np.load(folder / "y.npy")
    method = _make_method(job["method"])
    data = ConvexSet("", X, y, X[:1], y[:1], True, job["l2"])
    small = method.make(data).fit(X[:50, :5], y[:50])  # load libraries
    small.forget([0])
    watch, model = _MemoryWatch(), method.make(data)
    before = watch.begin()
    model.fit(X, y)
    top = _read_memory("VmHWM")
    after = watch.begin()
    one = watch.extra(lambda: model.forget([1]))
    batch = watch.extra(lambda: model.forget(range(2, 2 + len(y) // 100)))
    watch.begin()
    held = after - before
    return MethodMemory(job["method"], watch.peak, X.nbytes, held, top - after, one, batch)


def make_memory_table(memories: list[MethodMemory], data: ConvexSet) -> Table:
    """Return the table of all methods."""
    p = data.X.shape[1]
    shape = f"{len(data.y):,} x {p:,}"
    sizes = {"table": memories[0].data / 1e6, "square": 8e-6 * p * p}
    note = NOTE.format(shape=shape, p=p, hessians=N_HESSIANS, **sizes)
    return Table(f"Memory: {data.describe()}", COLUMNS, [each.row() for each in memories], note)


def check_memory(memories: list[MethodMemory], data: ConvexSet) -> list[TargetCheck]:
    """Check the peak memory of every process, and the memory of a removal."""
    worst = max(memories, key=lambda each: each.peak)
    hessians = N_HESSIANS * 8 * data.X.shape[1] ** 2
    takes = {each.method: each.one - (each.method == DELTAGRAD) * hessians for each in memories}
    greedy = max(takes, key=lambda name: takes[name])
    share = takes[greedy] / memories[0].data
    what = f"{data.name}, {data.X.shape[1]:,} columns"
    limit = f"< {MOST_BYTES / 1e6:,.0f} MB"
    return [
        TargetCheck(
            f"{what}: highest memory of a process ({worst.method})",
            f"{worst.peak / 1e6:,.0f} MB",
            limit,
            worst.peak < MOST_BYTES,
        ),
        TargetCheck(
            f"{what}: memory that one removal takes beside Hessians, in tables ({greedy})",
            f"{share:.2f}",
            "< 1: no gradient per row",
            share < 1,
        ),
    ]


if __name__ == "__main__":
    print(json.dumps(_measure_method(Path(sys.argv[1]), json.loads(sys.argv[2]))._asdict()))
