"""Time and memory of one forest in a fresh process."""

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import ROOT, Split
from benchmarks._forest_models import ForestSize, RemainingPeople, remove_people, time_call

__all__ = ["ONE_THREAD", "Fresh", "Stored", "store_rows"]

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
COPY_BYTES = 64_000_000
NOTE = (
    "Memory: resident memory of a fresh process after `fit` minus before it, with X (float32) and "
    "y already loaded and a tiny forest already fitted, so that libraries are loaded; nothing else "
    "is taken off, so our own copy of the rows, ids and all caches are in it. *peak*: the highest "
    "point during `fit`, likewise. MB are 10^6 bytes."
)


class Fresh(NamedTuple):
    """Results of a fresh process: seconds, and bytes in addition to the data."""

    n_rows: int
    n_estimators: int
    max_depth: int
    fit: float
    memory: int
    peak: int
    lazy: list[float]
    settled: float
    eager: list[float]
    copied: float


class Stored(NamedTuple):
    """A table on disk, for processes to load."""

    folder: Path

    def measure(
        self, shape: ForestSize, n_rows: int | None = None, *, lazy: int = 0, eager: int = 0
    ) -> Fresh:
        """Fit on the first rows in a fresh process, then forget people lazily and eagerly.

        Without people to forget, measure the memory of a prediction.
        """
        job = {"shape": shape._asdict(), "n_rows": n_rows, "lazy": lazy, "eager": eager}
        command = [
            sys.executable,
            "-m",
            "benchmarks._forest_fresh",
            str(self.folder),
            json.dumps(job),
        ]
        environment = {**os.environ, **ONE_THREAD}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, check=True, cwd=ROOT, env=environment
        )
        return Fresh(**json.loads(done.stdout))


@contextmanager
def store_rows(split: Split) -> Iterator[Stored]:
    """Write the training rows to a temporary directory."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "X.npy", split.X)
        np.save(folder / "y.npy", split.y)
        ids = np.arange(len(split.y)) if split.ids is None else split.ids
        np.save(folder / "ids.npy", ids)
        yield Stored(folder)


def _read_memory(field: str) -> int:
    """Return memory of this process in bytes: VmRSS is current, VmHWM is the peak."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no entry {field}")


def _measure_copy(model: Any, X: NDArray[np.float32]) -> float:
    """Return the memory that a prediction needs in addition to its result, as a share of X.

    Counts allocations in Python and in the compiled core. X is repeated until it is large enough.
    """
    many = np.tile(X, (-(-COPY_BYTES // X.nbytes), 1))
    model.predict_proba(X[:1])
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # otherwise a copy could hide in memory that `fit` freed
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset VmHWM
    before = _read_memory("VmRSS")
    answer = model.predict_proba(many)
    return float((_read_memory("VmHWM") - before - answer.nbytes) / many.nbytes)


def _measure_forest(folder: Path, job: dict[str, Any]) -> Fresh:
    X, y, ids = (np.load(folder / f"{part}.npy")[: job["n_rows"]] for part in ("X", "y", "ids"))
    shape = ForestSize(**job["shape"])
    tiny = ForestSize(2, 3).ours(0).fit(X[:300], y[:300], ids=np.arange(min(300, len(y))))
    tiny.forget([0])
    tiny.settle()
    del tiny
    gc.collect()
    before = _read_memory("VmRSS")
    model = shape.ours(0)
    fit = time_call(partial(model.fit, X, y, ids=ids))
    after, peak = _read_memory("VmRSS"), _read_memory("VmHWM")
    crowd = RemainingPeople(np.unique(ids), 0)
    numbers: dict[str, Any] = {"lazy": [], "settled": 0.0, "eager": [], "copied": 0.0}
    if not (job["lazy"] or job["eager"]):
        numbers["copied"] = _measure_copy(model, X)
    if job["lazy"]:
        left = remove_people(model, crowd, job["lazy"], rebuild="lazy")
        numbers |= {"lazy": left.forgets.tolist(), "settled": left.settled}
    if job["eager"]:
        numbers["eager"] = remove_people(
            model, crowd, job["eager"], rebuild="eager"
        ).forgets.tolist()
    return Fresh(len(y), *shape, fit, after - before, max(peak, after) - before, **numbers)


if __name__ == "__main__":
    print(json.dumps(_measure_forest(Path(sys.argv[1]), json.loads(sys.argv[2]))._asdict()))
