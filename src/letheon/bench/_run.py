"""Experiments: each becomes a dictionary and a file, so that a run that was killed goes on."""

import json
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from letheon.bench._data import Prepared, Synthetic, prepared
from letheon.bench._grid import Cell, Options, cells_of, share_or_number
from letheon.bench._machine import describe_machine
from letheon.bench._recipes import Family, Place, Recipe, find_recipe, ordinary_model
from letheon.datasets import Requests
from letheon.parallel import one_thread

__all__ = ["Progress", "read_cells", "run", "run_cell"]

Record = dict[str, Any]
Progress = Callable[[int, int, Record], None]
Runner = Callable[[Cell, Options], Record]

# So many people leave one after the other where the time of a single one is wanted; nets and
# naive retraining take longer for each.
_SINGLES, _FEW_SINGLES = 8, 3
_TUNING_ROWS, _TUNING_TREES, _DEEPEST = 3_000, 20, 8
_TOLERANCES = (0.001, 0.01)
_MOST_WARNINGS = 5
FORMAT = 1


def run_cell(cell: Cell, options: Options) -> dict[str, Any]:
    """Run an experiment and return what it found, or how it failed, as plain values.

    Returns
    -------
    dict
        `cell`, `fingerprint`, `data` (words), `evaluation` (of `letheon.evaluate`) or `attacks`,
        `warnings`, `error` (None if it went well), `seconds`, `machine`, `device`.
    """
    record: dict[str, Any] = {
        "format": FORMAT,
        "cell": options.fingerprint(cell),
        "device": options.device if cell.family == "net" else "cpu",
        "evaluation": None,
        "attacks": [],
        "error": None,
    }
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            with one_thread():
                record |= _run_experiment(cell, options)
        except Exception as error:  # noqa: BLE001 - one failed cell must not end the others
            record["error"] = _describe_error(error)
    doubts = [] if record["evaluation"] is None else record["evaluation"]["warnings"]
    texts = [f"{each.category.__name__}: {each.message}" for each in heard]
    record["warnings"] = list(dict.fromkeys([*doubts, *texts]))[:_MOST_WARNINGS]
    record["seconds"] = time.perf_counter() - begin
    record["machine"] = describe_machine(options.device if cell.family == "net" else None)
    return record


def _describe_error(error: Exception) -> dict[str, str]:
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{where.name}, line {where.lineno}"
    return {"kind": type(error).__name__, "text": str(error), "where": place}


def _run_experiment(cell: Cell, options: Options) -> dict[str, Any]:
    rows, seed = options.rows_of(cell), options.random_state
    data = prepared(
        cell.dataset, cell.family, rows, options.test_rows, seed, synthetic=options.synthetic
    )
    recipe = find_recipe(cell.method, cell.family, cell.setting)
    place = _place(cell, options, data)
    about = {
        "data": data.title,
        "real": data.real,
        "n_people": data.n_people,
        "setting": _words(cell, recipe, place),
    }
    if cell.kind == "attack":
        return about | {"attacks": _run_attacks(cell, options, recipe, place, data)}
    return about | {"evaluation": _evaluate(cell, options, recipe, place, data)}


def _place(cell: Cell, options: Options, data: Prepared) -> Place:
    depths = (0, 0)
    if cell.method == "DaRE":
        depths = random_depths(
            cell.dataset, options.test_rows, options.random_state, options.synthetic
        )
    return Place(
        n_rows=len(data.y),
        n_columns=data.X.shape[1],
        n_leaving=_n_leaving(cell, data),
        is_image=data.is_image,
        random_depths=depths,
        small=options.small,
        device=options.device,
    )


def _n_leaving(cell: Cell, data: Prepared) -> int:
    """Return how many people one request names."""
    wanted = share_or_number(cell.removed)
    return max(1, round(wanted * data.n_people)) if wanted < 1 else int(wanted)


def _words(cell: Cell, recipe: Recipe, place: Place) -> str:
    words = [cell.setting]
    if cell.method == "DaRE":
        depth = place.random_depths[cell.setting.startswith("largest")]
        words.append(f"d_rmax = {depth} by cross-validation on {_TUNING_ROWS:,} training rows")
    return "; ".join([*words, recipe.note] if recipe.note else words)


@lru_cache(maxsize=16)
def random_depths(
    dataset: str, test_rows: int, seed: int, synthetic: Synthetic = "never"
) -> tuple[int, int]:
    """Return the random levels that cost at most 0.1 % and 1 % of the cross-validated score."""
    from letheon.forest import DaREForestClassifier, tune_random_depth

    data = prepared(dataset, "forest", _TUNING_ROWS, test_rows, seed, synthetic=synthetic)
    found = tune_random_depth(
        DaREForestClassifier(n_estimators=_TUNING_TREES, n_jobs=1, random_state=seed),
        data.X,
        data.y,
        ids=data.ids,
        tolerance=_TOLERANCES[1],
        cv=3,
        max_random_depth=_DEEPEST,
    )
    drop = found.scores[0] - found.scores
    too_much = np.flatnonzero(drop > _TOLERANCES[0])
    least = int(too_much[0]) - 1 if len(too_much) else found.random_depth
    return min(least, found.random_depth), found.random_depth


def _evaluate(
    cell: Cell, options: Options, recipe: Recipe, place: Place, data: Prepared
) -> dict[str, Any]:
    from letheon.evaluation import evaluate

    found = evaluate(
        recipe.make(place),
        (data.X, data.y, data.ids),
        _requests(cell, options),
        test=(data.X_test, data.y_test),
        ordinary=ordinary_model(cell.family, place),
        seeds=options.seeds,
        comparisons=1,
        # Attacks have cells of their own.
        canaries=False,
        title=f"{cell.method}, {cell.setting}",
        random_state=options.random_state,
    )
    return found.to_dict()


def _requests(cell: Cell, options: Options) -> Requests:
    """Return who leaves: all at once, or one after the other where the cell is about one."""
    wanted = share_or_number(cell.removed)
    if wanted != 1:
        return Requests(kind="uniform", n=wanted, batch=wanted)
    slow = cell.family == "net" or cell.method == "Naive" or options.small
    return Requests(kind="uniform", n=_FEW_SINGLES if slow else _SINGLES, batch=1)


def _run_attacks(
    cell: Cell, options: Options, recipe: Recipe, place: Place, data: Prepared
) -> list[dict[str, Any]]:
    """Run the attackers on clones; the people they are after are random ones."""
    everybody = np.random.default_rng(options.random_state).permutation(np.unique(data.ids))
    forget = everybody[: place.n_leaving]
    found = []
    for attack in _attackers(cell.family, options):
        results = attack.run(
            recipe.make(place),
            data.X,
            data.y,
            ids=data.ids,
            forget=forget,
            population=(data.X_test, data.y_test),
            seed=options.random_state,
        )
        found += [result.to_dict() for result in results]
    return found


def _attackers(family: Family, options: Options) -> list[Any]:
    """Return RMIA, the backdoor test and the attacker with both versions, nets with fewer models.

    The attacker with both versions looks at the removal of one person at a time.
    """
    from letheon.measures.attacks import RMIA, BackdoorTest, BeforeAfter

    few = family == "net" or options.small
    return [
        RMIA(n_references=4, n_targets=4 if few else 8),
        BackdoorTest(n_repeats=2 if few else 3),
        BeforeAfter(n_shadows=3 if few else 6, n_targets=3 if few else 6, n_removals=8),
    ]


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
    done = _read_kept(cells, options, home) if resume else {}
    missing = [cell for cell in cells if cell not in done]
    for cell, record in _run_cells(missing, options, jobs, runner):
        _write_record(home / f"{cell.name}.json", record)
        done[cell] = record
        if progress is not None:
            progress(len(done), len(cells), record)
    return [done[cell] for cell in cells]


def read_cells(folder: str | Path) -> list[Record]:
    """Return the records of all cells in a folder, those of other runs and machines too."""
    files = sorted((Path(folder) / "cells").glob("*.json"))
    return [record for file in files if (record := _read_record(file)) is not None]


def _read_kept(cells: Sequence[Cell], options: Options, home: Path) -> dict[Cell, Record]:
    """Return the records that need not be made again."""
    found = {}
    for cell in cells:
        record = _read_record(home / f"{cell.name}.json")
        if record is None or record["error"] is not None:
            continue
        if record["cell"] == options.fingerprint(cell):
            found[cell] = record
    return found


def _read_record(file: Path) -> Record | None:
    """Return a record; None if there is none, or only a part of one, or one of another format."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    usable = isinstance(record, dict) and record.get("format") == FORMAT
    return record if usable else None


def _write_record(file: Path, record: Record) -> None:
    """Write under another name first, so that a kill leaves the old file or the new one."""
    partial = file.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(record, indent=1, default=_plain) + "\n", encoding="utf-8")
    partial.replace(file)


def _plain(value: Any) -> Any:
    """Return NumPy's numbers as Python's, and anything else in words."""
    return value.item() if hasattr(value, "item") else str(value)


def _run_cells(
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
