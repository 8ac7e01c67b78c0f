"""Rows of an index in the C++ core: settings, changes, queries and files."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from letheon import _core
from letheon.data import Ids, IntIds, TextIds
from letheon.forest import LabelTable, StoredRows, are_classes, id_arguments, ids_of, threads_for
from letheon.seeds import Purpose
from letheon.sums import ColumnSums, floor_log2, keyed_dither, round_location_scale, round_logs

Rows = NDArray[np.float32]
Numbers = NDArray[np.float64]

METRICS = ("cosine", "euclidean", "inner_product")
DTYPES = ("int8", "int16")
# Grid values per rounded root mean square of the coordinates; the largest step for unit vectors.
_VALUES_PER_SCALE = {"int8": 16, "int16": 128}
_LARGEST_UNIT_STEP = {"int8": 2.0**-6, "int16": 2.0**-10}
_MOST_COLUMNS = 65535


@dataclass(frozen=True)
class IndexSettings:
    """All settings that determine an index, for a number of columns."""

    metric: str
    dtype: str
    step: float | None
    n_columns: int
    seed: int

    @property
    def has_stable_step(self) -> bool:
        """Whether the step of the grid comes from the rows, which are then also held as floats."""
        return self.step is None and self.metric != "cosine"

    def choose_step(self, sums: ColumnSums | None) -> float:
        """Return the step of the grid for rows with these sums."""
        if self.step is not None:
            return self.step
        if sums is None:  # a power of two of at least 1 / sqrt(n_columns)
            scale = 2.0 ** -(floor_log2(self.n_columns) // 2)
            return min(scale / _VALUES_PER_SCALE[self.dtype], _LARGEST_UNIT_STEP[self.dtype])
        scale = float(round_location_scale(sums, self.seed).scale[0])
        return max(scale / _VALUES_PER_SCALE[self.dtype], 2.0**-1000)

    def count_pivots(self, n_rows: int) -> int:
        """Return the number of pivots: a power of two near ``4 sqrt(n)``, or all rows.

        The exponent is ``2 + floor(log2(n) / 2 + w)``, w uniform in (0, 1] by the key.
        """
        first, second = keyed_dither(self.seed, Purpose.INDEX_CELLS, 2)
        log = round_logs(np.array([n_rows]), 1, np.array([first]))[0]
        return min(n_rows, 1 << (2 + (int(log) + int(second & np.uint64(1))) // 2))

    def make_core(self, step: float, path: str = "") -> _core.Index:
        """Return an empty index."""
        return _core.Index(
            metric=self.metric,
            dtype=self.dtype,
            n_columns=self.n_columns,
            step=step,
            keeps_rows=self.has_stable_step,
            path=path,
        )


class IndexBatch(NamedTuple):
    """Rows to add: float32 values, ids, and targets or codes of labels as float64."""

    vectors: Rows
    ids: Ids
    target: Numbers | None


class _Parts(NamedTuple):
    """What a change replaces: the core, its sums and step, and the labels with their rows."""

    core: _core.Index
    sums: ColumnSums | None
    step: float
    table: LabelTable | None
    counts: NDArray[np.int64] | None


Change = Callable[[], _core.IndexReport]


class IndexModel(StoredRows):
    """Rows and cells of an index, stored in the C++ core; all output is in canonical order."""

    settings: IndexSettings
    core: _core.Index

    def __init__(
        self, settings: IndexSettings, parts: _Parts, id_type: type[Ids], path: str = ""
    ) -> None:
        self.settings = settings
        self.id_type = id_type
        self.path = path
        self.changing = False
        self._lock = threading.RLock()
        self._install(parts)

    def _install(self, parts: _Parts) -> None:
        self.core, self.sums, self.step, self.table, self.counts = parts

    @classmethod
    def fit(
        cls,
        settings: IndexSettings,
        batch: IndexBatch,
        labels: NDArray[Any] | None,
        path: str,
        n_threads: int,
    ) -> Self:
        """Return the index of these rows; `labels` are the classes of a classifier."""
        table = counts = None
        if labels is not None:
            table, codes = LabelTable.from_labels(labels)
            counts = np.bincount(codes, minlength=len(table))
            batch = batch._replace(target=codes.astype(np.float64))
        sums = _add_values(ColumnSums(1), batch.vectors, 1) if settings.has_stable_step else None
        step = settings.choose_step(sums)
        core = settings.make_core(step, path)
        _add(settings, core, batch, settings.count_pivots(len(batch.vectors)), n_threads)
        return cls(settings, _Parts(core, sums, step, table, counts), type(batch.ids), path)

    def plan_forget(self, ids: Ids, slots: NDArray[np.uint32], n_threads: int) -> Change:
        """Return the change that removes the rows of these ids, which are at these slots."""
        X, target = self.core.copy_rows(slots)
        sums = None if self.sums is None else _add_values(self.sums.copy(), X, -1)
        X.fill(0)
        step, table, counts = self.settings.choose_step(sums), self.table, self.counts
        if counts is not None and table is not None:
            counts = counts - np.bincount(target.astype(np.int64), minlength=len(counts))
            table = table.without_empty(counts)
        core = self.core
        if step != self.step:
            core = self._copy_core(step, n_threads)
            parts = _Parts(core, sums, step, table, counts)
            slots, _ = IndexModel(self.settings, parts, self.id_type).find_rows(ids)
        n_pivots = self.settings.count_pivots(self.core.n_rows - len(slots))
        change = partial(core.forget, slots, n_pivots, n_threads)
        return partial(self._apply, change, _Parts(core, sums, step, table, counts))

    def plan_add(self, batch: IndexBatch, labels: NDArray[Any] | None, n_threads: int) -> Change:
        """Return the change that adds rows."""
        sums = None if self.sums is None else _add_values(self.sums.copy(), batch.vectors, 1)
        step, table, counts = self.settings.choose_step(sums), self.table, self.counts
        if labels is not None and table is not None and counts is not None:
            table, codes = table.add_labels(labels)
            counts = np.bincount(codes, minlength=len(table)) + np.pad(
                counts, (0, len(table) - len(counts))
            )
            batch = batch._replace(target=codes.astype(np.float64))
        core = self.core if step == self.step else self._copy_core(step, n_threads)
        n_pivots = self.settings.count_pivots(self.core.n_rows + len(batch.vectors))
        change = partial(_add, self.settings, core, batch, n_pivots, n_threads)
        return partial(self._apply, change, _Parts(core, sums, step, table, counts))

    def _apply(self, change: Change, parts: _Parts) -> _core.IndexReport:
        with self._lock:
            self.changing = True
            try:
                report = change()
                self._install(parts)
            finally:
                self.changing = False
        return report

    def _copy_core(self, step: float, n_threads: int) -> _core.Index:
        """Return an index of the same rows on another grid."""
        rows = self.core.rows()
        batch = IndexBatch(rows["X"], ids_of(rows), rows["target"])
        core = self.settings.make_core(step, self.path)
        _add(self.settings, core, batch, self.core.n_pivots, n_threads)
        return core

    def query(
        self, X: Rows, k: int, n_probe: int | None, where: Any, n_threads: int
    ) -> tuple[LabelTable | None, dict[str, Any]]:
        """Return the k nearest rows of each row of X, and the labels of the same state.

        `n_probe` is the number of cells; None means all.
        """
        n_cells = 2**32 if n_probe is None else n_probe
        found: tuple[LabelTable | None, dict[str, Any]] = self._predict_state(
            X, lambda rows: self.core.query(rows, k, n_cells, where, n_threads)
        )
        return found

    def _to_state(self) -> dict[str, Any]:
        with self._lock:
            rows, order = self.core.rows(), self.code_order
            X, target = rows["X"], rows["target"]
            if not self.settings.has_stable_step:
                X = X.astype(self.settings.dtype)
            if self.table is not None:
                ranks = np.zeros(len(self.table), np.uint32)
                ranks[order] = np.arange(len(order))
                target = ranks[target.astype(np.int64)]
            return {
                "settings": self.settings,
                "classes": None if self.table is None else self.table.classes,
                "X": X,
                "target": target,
                "ids": ids_of(rows),
                "cells": rows["cells"],
            }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        settings, X, target = _verify_state(state)
        batch, n_threads = IndexBatch(X, state["ids"], target), threads_for(None)
        sums = _add_values(ColumnSums(1), X, 1) if settings.has_stable_step else None
        step = settings.choose_step(sums)
        core = settings.make_core(step)
        is_grid = not settings.has_stable_step
        n_pivots = settings.count_pivots(len(X))
        _add(settings, core, batch, n_pivots, n_threads, is_grid=is_grid)
        table = counts = None
        if state["classes"] is not None and target is not None:
            table = LabelTable.from_classes(state["classes"])
            counts = np.bincount(target.astype(np.int64), minlength=len(table))
        model = cls(settings, _Parts(core, sums, step, table, counts), type(batch.ids))
        if not _are_equal(model._to_state(), state):
            raise ValueError("the rows of the index are not in order, or not in their cells")
        return model

    @classmethod
    def _native_cost(cls, state: dict[str, Any]) -> tuple[int, int]:
        """Return how many bytes and steps `_from_state` takes in the core, from counts alone."""
        settings, X, _ = _verify_state(state)
        n_pivots = settings.count_pivots(len(X))
        texts = state["ids"].blob.nbytes if isinstance(state["ids"], TextIds) else 0
        width = 8 * (settings.n_columns + 8)
        return 4 * (len(X) + 2 * n_pivots + 64) * width + 200 * len(X) + 4 * texts, len(
            X
        ) * n_pivots * (1 + settings.n_columns // 8)


def _add_values(sums: ColumnSums, X: Rows, sign: int) -> ColumnSums:
    """Add or subtract all values and their negatives, so that the deviation is about zero."""
    values = X.reshape(-1, 1).astype(np.float64)
    for part in (-values, values):
        (sums.add if sign > 0 else sums.subtract)(part)
        part.fill(0)  # nothing of the rows stays in the heap
    return sums


def _add(
    settings: IndexSettings,
    core: _core.Index,
    batch: IndexBatch,
    n_pivots: int,
    n_threads: int,
    *,
    is_grid: bool = False,
) -> _core.IndexReport:
    return core.add(
        X=batch.vectors,
        is_grid=is_grid,
        target=batch.target,
        **id_arguments(batch.ids),
        owners=batch.ids.hashes(settings.seed, Purpose.INDEX_ROW),
        n_pivots=n_pivots,
        n_threads=n_threads,
    )


def _are_equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    names = ("X", "target", "cells")
    parts = [(first[name], second[name]) for name in names]
    ids, others = first["ids"], second["ids"]
    if isinstance(ids, IntIds):
        parts += [(ids.values, others.values)]
    else:
        parts += [(ids.blob, others.blob), (ids.offsets, others.offsets)]
    return all(a is b or np.array_equal(a, b) for a, b in parts)


def _verify_state(state: dict[str, Any]) -> tuple[IndexSettings, Rows, Numbers | None]:
    """Return settings, rows and targets of a state; raise `ValueError` if they do not match."""
    settings, X, ids, classes = state["settings"], state["X"], state["ids"], state["classes"]
    if not isinstance(settings, IndexSettings) or not isinstance(ids, IntIds | TextIds):
        raise ValueError("settings is not an IndexSettings, or ids is not IntIds or TextIds")
    _verify_settings(settings)
    dtype = "float32" if settings.has_stable_step else settings.dtype
    if not isinstance(X, np.ndarray) or X.dtype != dtype or X.ndim != 2:
        raise ValueError(f"X is not a matrix of {dtype}, as the settings state")
    if X.shape[1] != settings.n_columns or len(X) != len(ids) or len(X) == 0:
        raise ValueError("X has other columns than the settings state, or not one id per row")
    if isinstance(ids, TextIds):
        ids.to_list()  # raises unless each id is valid UTF-8
    rows = np.ascontiguousarray(X, np.float32)
    return settings, rows, _verify_target(state["target"], classes, len(X))


def _verify_settings(settings: IndexSettings) -> None:
    step = settings.step
    is_step = step is None or (isinstance(step, float) and 0 < step < np.inf)
    is_size = type(settings.n_columns) is int and 0 < settings.n_columns <= _MOST_COLUMNS
    is_seed = type(settings.seed) is int and 0 <= settings.seed < 2**128
    if settings.metric not in METRICS or settings.dtype not in DTYPES:
        raise ValueError("the metric or the dtype of the index is unknown")
    if not (is_step and is_size and is_seed):
        raise ValueError("the step, the number of columns or the seed of the index is not valid")


def _verify_target(target: Any, classes: Any, n_rows: int) -> Numbers | None:
    if target is None and classes is None:
        return None
    dtype = np.float64 if classes is None else np.uint32
    if not isinstance(target, np.ndarray) or target.dtype != dtype or target.shape != (n_rows,):
        raise ValueError(f"target is not an array of {np.dtype(dtype)} with one entry per row")
    if classes is not None:
        if not are_classes(classes):
            raise ValueError("classes must be an array of distinct labels of one type, sorted")
        if not np.array_equal(np.unique(target), np.arange(len(classes))):
            raise ValueError("target contains a code without a class, or a class has no rows")
    elif not np.isfinite(target).all():
        raise ValueError("target contains a value that is not finite")
    return target.astype(np.float64)
