"""Experiments: prepare rows for each family, run cells and write their files.

The preparation does not depend on rows that may be forgotten. For linear models and networks,
columns are centred and scaled by constants, and clipped at 3. The constants are means and standard
deviations over separate rows, which are used neither for training nor for testing. Linear models
then get a column of ones, and every row is divided by its norm. Images have pixels from 0 to 1.
Networks get them unchanged; for linear models they are divided by their norm, after CIFAR images
are reduced (means of 4 x 4 pixels, 192 numbers). Forests get the original numbers, and words as
codes. Every cell has its own file, so an interrupted run can be resumed.
"""

import json
import os
import platform
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.special  # noqa: F401 - loads the BLAS that scipy brings, so that it is listed
import threadpoolctl
from numpy.typing import NDArray

from letheon.bench import _grid
from letheon.bench._grid import BenchmarkCell, BenchmarkOptions, CellContext, Family
from letheon.datasets import Requests, load
from letheon.parallel import one_thread
from letheon.state import write_atomically

_VARIANTS = {"mnist": "3-vs-8", "covtype": "binary"}
_SHIPPED = ("breast-cancer", "digits")
_ASIDE = 1_000
_READ_ROWS = 5_000
_MOST_ASIDE_SHARE = 0.1
_TEST_SHARE = 0.2
_CLIP = 3.0
_FIVE = 5
_POOLED_PIXELS = 1_024
# Rounding must not push a row over the declared norm 1.
_NO_MORE_THAN_ONE = 1 + 1e-15

Synthetic = Literal["never", "if-absent"]


@dataclass(frozen=True, kw_only=True)
class CellData:
    """Rows to train and to test on, with their ids.

    `constants` are the separate rows for scaling; `shape` is the shape of an image.
    """

    name: str
    title: str
    X: Any
    y: NDArray[Any]
    ids: NDArray[Any]
    X_test: Any
    y_test: NDArray[Any]
    shape: tuple[int, ...] | None
    real: bool = True
    constants: Any = None

    @property
    def is_image(self) -> bool:
        """Whether rows are images."""
        return self.shape is not None

    @property
    def n_people(self) -> int:
        """Number of people who own training rows."""
        return len(np.unique(self.ids))


@lru_cache(maxsize=4)
def prepare_data(
    name: str,
    family: Family,
    rows: int,
    test_rows: int,
    seed: int = 0,
    synthetic: Synthetic = "never",
) -> CellData:
    """Return a data set for a family, with a maximum number of rows.

    Parameters
    ----------
    name : str
        One of `letheon.datasets.names`, "breast-cancer" or "digits".
    family : {"linear", "forest", "net"}
        The model family to prepare for.
    rows, test_rows : int
        Maximum numbers of rows.
    seed : int, default=0
        Seed of splits and samples.
    synthetic : {"never", "if-absent"}, default="never"
        Whether a synthetic table replaces missing files.

    Returns
    -------
    CellData
        The prepared rows. Calls share the arrays, so do not change them.
    """
    encode = "ordinal" if family == "forest" else "one-hot"
    data = _select_rows(
        _read(name, encode, max(rows, _READ_ROWS), seed, synthetic), rows, test_rows, seed
    )
    X, X_test = (_FEATURES[family](part, data) for part in (data.X, data.X_test))
    shape = " x ".join(map(str, X.shape[1:]))
    title = f"{data.title}: {len(data.y):,} rows of {shape}, {len(data.y_test):,} to test"
    return replace(data, title=title, X=X, X_test=X_test, constants=None)


@lru_cache(maxsize=2)
def _read(name: str, encode: Any, rows: int, seed: int, synthetic: Synthetic) -> CellData:
    """Return a table, from a cache if possible: cells of different sizes use the same table."""
    if name in _SHIPPED:
        return _read_shipped(name, seed)
    n_read = int((rows + _ASIDE) / (1 - _TEST_SHARE)) + 1
    data = load(
        name,
        variant=_VARIANTS.get(name),
        synthetic=synthetic,
        n_rows=n_read,
        seed=seed,
        encode=encode,
    ).split(_TEST_SHARE, seed)
    return CellData(
        name=name,
        title=data.name + (f" ({data.note})" if data.note else ""),
        X=data.X,
        y=data.y,
        ids=np.arange(len(data.y)) if data.ids is None else data.ids,
        X_test=data.X_test,
        y_test=np.asarray(data.y_test),
        shape=data.info.image_shape,
        real=data.real,
    )


def _read_shipped(name: str, seed: int) -> CellData:
    """Return a data set included in scikit-learn, split by row."""
    from sklearn.datasets import load_breast_cancer, load_digits

    is_image = name == "digits"
    X, y = (load_digits if is_image else load_breast_cancer)(return_X_y=True)
    X = (X / 16 if is_image else X).astype(np.float32)
    y = (y >= _FIVE).astype(np.int64) if is_image else y
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = np.split(order, [int(_TEST_SHARE * len(y))])
    return CellData(
        name=name,
        title="digits, from 5 on or below" if is_image else name,
        X=X[train],
        y=y[train],
        ids=np.arange(len(train)),
        X_test=X[test],
        y_test=y[test],
        shape=(1, 8, 8) if is_image else None,
    )


def _select_rows(data: CellData, rows: int, test_rows: int, seed: int) -> CellData:
    """Select at most `rows` training rows.

    The people whose rows determine the scaling constants are set apart first.
    """
    rng = np.random.default_rng(seed)
    people, owner = np.unique(data.ids, return_inverse=True)
    order = rng.permutation(len(people))
    n_owned = np.cumsum(np.bincount(owner)[order])
    n_aside = min(_ASIDE, int(_MOST_ASIDE_SHARE * len(data.y)))
    first, last = np.searchsorted(n_owned, [n_aside, n_aside + rows], side="right")
    aside = np.flatnonzero(np.isin(owner, order[:first]))
    kept = np.flatnonzero(np.isin(owner, order[first : max(last, first + 1)]))
    tested = np.sort(rng.permutation(len(data.y_test))[:test_rows])
    return replace(
        data,
        X=np.asarray(data.X[kept]),
        y=data.y[kept],
        ids=data.ids[kept],
        X_test=np.asarray(data.X_test[tested]),
        y_test=data.y_test[tested],
        constants=np.asarray(data.X[aside]),
    )


def _scale_columns(X: Any, data: CellData) -> NDArray[np.float64]:
    known = np.asarray(data.constants, np.float64)
    filled = np.where(np.isfinite(known), known, np.nan)
    # A column without any number among the constants stays zero.
    mean = np.nan_to_num(np.nanmean(filled, axis=0)) if len(known) else 0.0
    spread = np.nan_to_num(np.nanstd(filled, axis=0)) if len(known) else 1.0
    scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=np.asarray(spread) > 0)
    scaled = np.clip((np.asarray(X, np.float64) - mean) * scale, -_CLIP, _CLIP)
    return np.asarray(np.nan_to_num(scaled))


def _prepare_linear(X: Any, data: CellData) -> NDArray[np.float64]:
    table = _pool_pixels(X, data.shape) if data.shape is not None else _scale_columns(X, data)
    whole = np.column_stack([table, np.ones(len(table))])
    norms = np.linalg.norm(whole, axis=1, keepdims=True) * _NO_MORE_THAN_ONE
    return np.ascontiguousarray(whole / norms)


def _pool_pixels(X: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return one line of pixels per image; large images are reduced to means of 4 x 4 pixels."""
    pixels = np.asarray(X, np.float64).reshape(-1, *shape)
    if np.prod(shape) > _POOLED_PIXELS:
        channels, height, width = shape
        blocks = pixels.reshape(-1, channels, height // 4, 4, width // 4, 4)
        pixels = blocks.mean(axis=(3, 5))
    return pixels.reshape(len(pixels), -1)


def _prepare_net(X: Any, data: CellData) -> NDArray[np.float32]:
    if data.shape is None:
        return np.ascontiguousarray(_scale_columns(X, data), np.float32)
    return np.ascontiguousarray(np.asarray(X, np.float32).reshape(-1, *data.shape))


_FEATURES: dict[Family, Callable[[Any, CellData], NDArray[Any]]] = {
    "linear": _prepare_linear,
    "forest": lambda X, _: np.ascontiguousarray(X, np.float32),
    "net": _prepare_net,
}


Record = dict[str, Any]
Progress = Callable[[int, int, Record], None]
Runner = Callable[[BenchmarkCell, BenchmarkOptions], Record]

# Number of people removed one after the other to time a single removal; fewer for networks and
# naive retraining, which take longer.
_SINGLES, _FEW_SINGLES = 8, 3
_TUNING_ROWS, _TUNING_TREES, _DEEPEST = 3_000, 20, 8
_TOLERANCES = (0.001, 0.01)
_MOST_WARNINGS = 5
_LIBRARIES = ("numpy", "scipy", "scikit-learn", "joblib", "threadpoolctl", "narwhals")
FORMAT = 1


def describe_machine(device: str | None = None) -> dict[str, Any]:
    """Describe the machine: processor, memory, versions, BLAS kernels, load.

    Parameters
    ----------
    device : str, optional
        Device for networks. If given, the version of PyTorch is added and, for "cuda", the name of
        the GPU.

    Returns
    -------
    dict
        Texts and numbers that can be written as JSON.

    Examples
    --------
    >>> machine = describe_machine()
    >>> machine["cores"] > 0, "blas" in machine
    (True, True)
    """
    kernels = {
        f"{info['internal_api']} {info['version']} ({info.get('architecture')})"
        for info in threadpoolctl.threadpool_info()
        if info["user_api"] == "blas"
    }
    return {
        "processor": _find_processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _find_version(name) for name in _LIBRARIES},
        "blas": sorted(kernels),
        "load_at_start": (
            f"{os.getloadavg()[0]:.2f} (1-minute average; other work on the machine adds noise)"
        ),
        **({} if device is None else _describe_device(device)),
    }


def _find_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _find_processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _describe_device(device: str) -> dict[str, str]:
    """Return the version of PyTorch and the name of the GPU, if they are available."""
    try:
        facts = {"torch": version("torch")}
    except PackageNotFoundError:
        return {}
    if device.startswith("cuda"):
        import torch

        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def run_cell(cell: BenchmarkCell, options: BenchmarkOptions) -> dict[str, Any]:
    """Run an experiment and return its results or its error, as plain values.

    Returns
    -------
    dict
        `cell` (its fingerprint), `data` (a description), `evaluation` (of `letheon.evaluate`) or
        `attacks`, `warnings`, `error` (None if there was no error), `seconds`, `machine`, `device`.
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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with one_thread():
                record |= _run_experiment(cell, options)
        except Exception as error:  # noqa: BLE001 - one failed cell must not end the others
            line = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{line.name}, line {line.lineno}"
            record["error"] = {"kind": type(error).__name__, "text": str(error), "where": where}
    doubts = [] if record["evaluation"] is None else record["evaluation"]["warnings"]
    texts = [f"{each.category.__name__}: {each.message}" for each in caught]
    record["warnings"] = list(dict.fromkeys([*doubts, *texts]))[:_MOST_WARNINGS]
    record["seconds"] = time.perf_counter() - begin
    record["machine"] = describe_machine(options.device if cell.family == "net" else None)
    return record


def _run_experiment(cell: BenchmarkCell, options: BenchmarkOptions) -> dict[str, Any]:
    rows, seed = options.max_rows(cell), options.random_state
    data = prepare_data(
        cell.dataset, cell.family, rows, options.test_rows, seed, synthetic=options.synthetic
    )
    variant, depths = _grid.find_variant(cell.method, cell.family, cell.setting), (0, 0)
    words = [cell.setting]
    if cell.method == "DaRE":
        depths = random_depths(cell.dataset, options.test_rows, seed, options.synthetic)
        depth = depths[cell.setting.startswith("largest")]
        words.append(f"d_rmax = {depth} by cross-validation on {_TUNING_ROWS:,} training rows")
    removed = _grid.parse_removed(cell.removed)
    context = CellContext(
        n_rows=len(data.y),
        n_columns=data.X.shape[1],
        n_removed=max(1, round(removed * data.n_people)) if removed < 1 else int(removed),
        is_image=data.is_image,
        random_depths=depths,
        small=options.small,
        device=options.device,
    )
    about = {
        "data": data.title,
        "real": data.real,
        "n_people": data.n_people,
        "setting": "; ".join([*words, variant.note] if variant.note else words),
    }
    model = variant.make(context)
    if cell.kind == "attack":
        return about | {"attacks": _run_attacks(cell, options, model, context, data)}
    return about | {"evaluation": _evaluate_cell(cell, options, model, context, data)}


@lru_cache(maxsize=16)
def random_depths(
    dataset: str, test_rows: int, seed: int, synthetic: Synthetic = "never"
) -> tuple[int, int]:
    """Return two numbers of random levels of a forest, which cost little accuracy.

    They reduce the cross-validated accuracy by at most 0.1 % and at most 1 %.
    """
    from letheon.forest import DaREForestClassifier, tune_random_depth

    data = prepare_data(dataset, "forest", _TUNING_ROWS, test_rows, seed, synthetic=synthetic)
    tuned = tune_random_depth(
        DaREForestClassifier(n_estimators=_TUNING_TREES, n_jobs=1, random_state=seed),
        data.X,
        data.y,
        ids=data.ids,
        tolerance=_TOLERANCES[1],
        cv=3,
        max_random_depth=_DEEPEST,
    )
    drop = tuned.scores[0] - tuned.scores
    too_much = np.flatnonzero(drop > _TOLERANCES[0])
    least = int(too_much[0]) - 1 if len(too_much) else tuned.random_depth
    return min(least, tuned.random_depth), tuned.random_depth


def _evaluate_cell(
    cell: BenchmarkCell, options: BenchmarkOptions, model: Any, context: CellContext, data: CellData
) -> dict[str, Any]:
    """Evaluate a method and return the evaluation as plain values.

    In a cell that removes one person, several people are removed one after the other.
    """
    from letheon.evaluation import evaluate

    n = batch = _grid.parse_removed(cell.removed)
    if n == 1:
        is_slow = cell.family == "net" or cell.method == "Naive" or options.small
        n = _FEW_SINGLES if is_slow else _SINGLES
    evaluation = evaluate(
        model,
        (data.X, data.y, data.ids),
        Requests(kind="uniform", n=n, batch=batch),
        test=(data.X_test, data.y_test),
        ordinary=_grid.make_ordinary_model(cell.family, context),
        seeds=options.seeds,
        comparisons=1,
        # Attacks have separate cells.
        canaries=False,
        title=f"{cell.method}, {cell.setting}",
        random_state=options.random_state,
    )
    return evaluation.to_dict()


def _run_attacks(
    cell: BenchmarkCell, options: BenchmarkOptions, model: Any, context: CellContext, data: CellData
) -> list[dict[str, Any]]:
    """Run RMIA, the backdoor test and the before/after attack; return their results.

    The targets are random people; the before/after attack targets one person at a time. Networks
    are attacked with fewer models.
    """
    from letheon.measures.attacks import RMIA, BackdoorTest, BeforeAfter

    people = np.random.default_rng(options.random_state).permutation(np.unique(data.ids))
    few = cell.family == "net" or options.small
    attackers: list[Any] = [
        RMIA(n_references=4, n_targets=4 if few else 8),
        BackdoorTest(n_repeats=2 if few else 3),
        BeforeAfter(n_shadows=3 if few else 6, n_targets=3 if few else 6, n_removals=8),
    ]
    results: list[Any] = []
    for attacker in attackers:
        results += attacker.run(
            model,
            data.X,
            data.y,
            ids=data.ids,
            forget=people[: context.n_removed],
            population=(data.X_test, data.y_test),
            seed=options.random_state,
        )
    return [result.to_dict() for result in results]


def run(
    options: BenchmarkOptions,
    folder: str | Path,
    *,
    resume: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
    runner: Runner = run_cell,
) -> list[Record]:
    """Run every cell and write its result to a file in ``folder/cells``.

    Parameters
    ----------
    options : BenchmarkOptions
        What to run.
    folder : path
        Directory for the results.
    resume : bool, default=False
        Keep existing results with the same options. Failed cells are run again.
    jobs : int, default=1
        Number of parallel cells, each in its own process with one thread. With more than one, times
        are slightly noisier. Both times of a ratio are measured in the same process.
    progress : callable, optional
        Called with (cells done, total cells, record) after each cell.
    runner : callable, optional
        Function that runs a cell; for tests.

    Returns
    -------
    list of dict
        One record per cell, in the order of the grid.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from letheon.bench import BenchmarkOptions, run
    >>> sizes = {"datasets": ("breast-cancer",), "removed": ("1",), "seeds": 1, "rows": 100}
    >>> options = BenchmarkOptions.quick(methods=("NearestCentroid",), attacks=False, **sizes)
    >>> with TemporaryDirectory() as folder:
    ...     records = run(options, folder)
    >>> [record["error"] for record in records]
    [None]
    """
    cells, home = _grid.list_cells(options), Path(folder) / "cells"
    home.mkdir(parents=True, exist_ok=True)
    done: dict[BenchmarkCell, Record] = {}
    for cell in cells if resume else ():
        record = _read_record(home / f"{cell.name}.json")
        is_done = record is not None and record["error"] is None
        if record is not None and is_done and record["cell"] == options.fingerprint(cell):
            done[cell] = record
    missing = [cell for cell in cells if cell not in done]
    for cell, record in _run_cells(missing, options, jobs, runner):
        text = json.dumps(record, indent=1, default=_to_plain) + "\n"
        write_atomically(home / f"{cell.name}.json", [text.encode()])
        done[cell] = record
        if progress is not None:
            progress(len(done), len(cells), record)
    return [done[cell] for cell in cells]


def read_cells(folder: str | Path) -> list[Record]:
    """Return the records of all cells in a folder, including those of other runs and machines.

    Parameters
    ----------
    folder : path
        Directory of the results, as for `run`.

    Returns
    -------
    list of dict

    Examples
    --------
    >>> read_cells("a-folder-without-results")
    []
    """
    files = sorted((Path(folder) / "cells").glob("*.json"))
    return [record for file in files if (record := _read_record(file)) is not None]


def _read_record(file: Path) -> Record | None:
    """Return the record in a file; None if the file is missing, truncated or of another format."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    usable = isinstance(record, dict) and record.get("format") == FORMAT
    return record if usable else None


def _to_plain(value: Any) -> Any:
    """Return NumPy numbers as Python numbers, and anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)


def _run_cells(
    cells: Sequence[BenchmarkCell], options: BenchmarkOptions, jobs: int, runner: Runner
) -> Iterator[tuple[BenchmarkCell, Record]]:
    if jobs == 1 or len(cells) <= 1:
        for cell in cells:
            yield cell, runner(cell, options)
        return
    # Processes are spawned, because a fork would copy locks of BLAS and torch.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(runner, cell, options): cell for cell in cells}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
