"""All cells, one file each: a run that was killed goes on where it was."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from letheon.bench._cell import FORMAT, run_cell
from letheon.bench._grid import Cell, Options, cells_of

__all__ = ["Progress", "read_cells", "run"]

Record = dict[str, Any]
Progress = Callable[[int, int, Record], None]
Runner = Callable[[Cell, Options], Record]


def run(
    options: Options,
    folder: str | Path,
    *,
    resume: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
    runner: Runner = run_cell,
) -> list[Record]:
    """Run every cell and keep its result as a file in ``folder/cells``.

    Parameters
    ----------
    options : Options
        What to run.
    folder : path
        Where results go.
    resume : bool, default=False
        Keep results that are there already and were made with the same options. Cells that failed
        are run again.
    jobs : int, default=1
        Cells at once, each in a process of its own with one thread. More than one makes times a
        little noisier; a ratio has both of its sides from the same process.
    progress : callable, optional
        Called with (cells done, cells in all, record) after each cell.
    runner : callable, optional
        What runs a cell; for tests.

    Returns
    -------
    list of dict
        One record per cell, in the order of the grid.
    """
    cells, home = cells_of(options), Path(folder) / "cells"
    home.mkdir(parents=True, exist_ok=True)
    done = _kept(cells, options, home) if resume else {}
    missing = [cell for cell in cells if cell not in done]
    for cell, record in _results(missing, options, jobs, runner):
        _write(home / f"{cell.name}.json", record)
        done[cell] = record
        if progress is not None:
            progress(len(done), len(cells), record)
    return [done[cell] for cell in cells]


def read_cells(folder: str | Path) -> list[Record]:
    """Return the records of all cells in a folder, those of other runs and machines too."""
    files = sorted((Path(folder) / "cells").glob("*.json"))
    return [record for file in files if (record := _read(file)) is not None]


def _kept(cells: Sequence[Cell], options: Options, home: Path) -> dict[Cell, Record]:
    """Return the records that need not be made again."""
    found = {}
    for cell in cells:
        record = _read(home / f"{cell.name}.json")
        if record is None or record["error"] is not None:
            continue
        if record["cell"] == options.fingerprint(cell):
            found[cell] = record
    return found


def _read(file: Path) -> Record | None:
    """Return a record; None if there is none, or only a part of one, or one of another format."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    usable = isinstance(record, dict) and record.get("format") == FORMAT
    return record if usable else None


def _write(file: Path, record: Record) -> None:
    """Write under another name first, so that a kill leaves the old file or the new one."""
    partial = file.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(record, indent=1, default=_plain) + "\n", encoding="utf-8")
    partial.replace(file)


def _plain(value: Any) -> Any:
    """Return NumPy's numbers as Python's, and anything else in words."""
    return value.item() if hasattr(value, "item") else str(value)


def _results(
    cells: Sequence[Cell], options: Options, jobs: int, runner: Runner
) -> Iterator[tuple[Cell, Record]]:
    if jobs == 1 or len(cells) <= 1:
        for cell in cells:
            yield cell, runner(cell, options)
        return
    # A fresh interpreter for each: a fork would copy locks of BLAS and torch.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(runner, cell, options): cell for cell in cells}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
