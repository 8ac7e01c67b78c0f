"""Memory of a network with many checkpoints, in a fresh process, with and without a limit."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks._data import ROOT
from benchmarks._deep_models import WIDE_MLP, ImageSet, make_obliviate, time_on_device
from benchmarks._report import Table, TargetCheck

__all__ = ["Memory", "check_memory", "make_memory_table", "measure_memories"]

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
COLUMNS = (
    "limit MB", "states MB", "in memory MB", "on disk MB", "fit: own memory MB", "fit: resident MB",
    "GPU MB", "fit s", "request ms", "digest",
)  # fmt: skip
NOTE = (
    "A fresh process each, {data}, an MLP, {n_blocks} blocks. *states*: parameters after every "
    "block. *in memory* and *on disk*: where the model says they are. *own memory*: the highest "
    "anonymous memory between blocks over what was there before the fit; *resident*: the highest "
    "resident memory likewise, pages of the file that the system may drop included. *GPU*: highest "
    "allocated there. The digest does not depend on where states lie. MB are 10^6 bytes."
)


class Memory(NamedTuple):
    """Memory in bytes and time in seconds of one process."""

    limit: int | None
    states: int
    memory: int
    disk: int
    anonymous: int
    resident: int
    gpu: int
    fit: float
    request: float
    digest: str

    def row(self) -> tuple[Any, ...]:
        """Return the row of the table."""
        limit = "none" if self.limit is None else f"{self.limit / 1e6:,.0f}"
        numbers = (f"{value / 1e6:,.0f}" for value in self[1:7])
        return (limit, *numbers, self.fit, 1000 * self.request, self.digest[:12])


def measure_memories(data: ImageSet, n_blocks: int, limit: int, device: str) -> list[Memory]:
    """Measure without and with a limit, each in a separate process."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "X.npy", data.X)
        np.save(folder / "y.npy", data.y)
        jobs = [{"limit": each, "n_blocks": n_blocks, "device": device} for each in (None, limit)]
        return [_run_process(folder, job) for job in jobs]


def _run_process(folder: Path, job: dict[str, Any]) -> Memory:
    command = [sys.executable, "-m", "benchmarks._deep_fresh", str(folder), json.dumps(job)]
    environment = {**os.environ, **ONE_THREAD}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT, env=environment)
    return Memory(**json.loads(done.stdout))


def _read_status(field: str) -> int:
    """Return an entry of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no entry {field}")


def _measure_model(folder: Path, job: dict[str, Any]) -> Memory:
    torch.set_num_threads(1)
    X, y = np.load(folder / "X.npy"), np.load(folder / "y.npy")
    device, limit = job["device"], job["limit"]
    settings = {"module": WIDE_MLP, "batch_size": 32, "learning_rate": 0.05}
    make_obliviate(device, n_blocks=2, **settings).fit(X[:64], y[:64]).forget([0])  # load libraries
    gc.collect()
    model = make_obliviate(device, n_blocks=job["n_blocks"], max_memory=limit, **settings)
    seen, before = [_read_status("RssAnon")], _read_status("VmRSS")
    watch = lambda _: seen.append(_read_status("RssAnon"))  # noqa: E731
    fit = time_on_device(lambda: model.fit(X, y, callback=watch), device)[1].wall
    resident = _read_status("VmHWM")
    last = int(np.flatnonzero(model.rows_.extra["block"] == job["n_blocks"] - 1)[0])
    request = time_on_device(lambda: model.forget([last]), device)[1].wall
    where = model.checkpoint_bytes_
    return Memory(
        limit, (job["n_blocks"] + 1) * model.nets_.flat.shape[1] * 4, where["memory"],
        where["disk"], max(seen) - seen[0], resident - before,
        torch.cuda.max_memory_allocated() if device == "cuda" else 0, fit, request, model.digest(),
    )  # fmt: skip


def make_memory_table(memories: list[Memory], data: ImageSet, n_blocks: int) -> Table:
    """Return the table without and with a limit."""
    note = NOTE.format(data=data.describe(), n_blocks=n_blocks)
    return Table(f"Memory of {n_blocks} saved states", COLUMNS, [m.row() for m in memories], note)


def check_memory(memories: list[Memory], n_blocks: int) -> list[TargetCheck]:
    """Check that checkpoints move to disk, and that nothing else changes."""
    free, limited = memories
    took = limited.anonymous / 1e6
    return [
        TargetCheck(
            f"{n_blocks} saved states of {limited.states / 1e6:,.0f} MB with a limit of "
            f"{(limited.limit or 0) / 1e6:,.0f} MB: own memory of the fit",
            f"{took:,.0f} MB",
            f"< {limited.states / 2e6:,.0f} MB",
            limited.anonymous < limited.states / 2,
        ),
        TargetCheck(
            f"{n_blocks} saved states: digest with and without a limit",
            "equal" if free.digest == limited.digest else "different",
            "equal",
            free.digest == limited.digest,
        ),
    ]


if __name__ == "__main__":
    print(json.dumps(_measure_model(Path(sys.argv[1]), json.loads(sys.argv[2]))._asdict()))
