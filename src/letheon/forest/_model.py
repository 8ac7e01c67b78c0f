"""Forest of the C++ core with its rows: growth, changes, their cost, and readable trees."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, Self

import joblib
import numpy as np
from joblib.parallel import get_active_backend
from numpy.typing import NDArray

from letheon import _core
from letheon.data import Ids, IntIds, TextIds
from letheon.forest._columns import ColumnChange, Keys
from letheon.forest._inputs import ForestBatch, ForestSettings, LabelTable
from letheon.parallel import run_tasks
from letheon.seeds import Purpose


def threads_for(n_jobs: int | None) -> int:
    """Return the number of threads on this machine for `n_jobs`, as in joblib."""
    if isinstance(n_jobs, int) and n_jobs > 0:
        return n_jobs
    if n_jobs is None:
        workers = joblib.effective_n_jobs(None)
        # A requested cluster may have more workers than this machine has cores.
        return workers if workers == 1 else min(workers, _count_cores())
    backend, _ = get_active_backend()
    kind, level = type(backend).__qualname__, getattr(backend, "nesting_level", 0)
    return min(_count_workers(n_jobs, kind, level), _count_cores())


def threads_for_few(n_jobs: int | None) -> int:
    """Return the number of threads for small tasks: 1 unless `n_jobs` is set."""
    return 1 if n_jobs is None else threads_for(n_jobs)


# Cached: joblib reads the container limits every time, which takes longer than a small request.
@cache
def _count_cores() -> int:
    return joblib.cpu_count()


@cache
def _count_workers(n_jobs: int, _backend: str, _nesting_level: int) -> int:
    return joblib.effective_n_jobs(n_jobs)


@dataclass(frozen=True)
class ForgetCost:
    """Cost of forgetting some ids, computed without changing the model.

    Attributes
    ----------
    rows : int
        Number of rows in the subtrees that would be grown again, summed over the subtrees.
    subtrees : int
        Number of subtrees that would be dropped.
    trees : int
        Number of trees that contain a row of these ids.
    share : float
        `rows` as a share of all rows of all trees; 1.0 is the cost of retraining.
    """

    rows: int
    subtrees: int
    trees: int
    share: float


def work_share(report: _core.Report, settings: ForestSettings, n_rows: int) -> float:
    """Return the work of a removal: rows of dropped subtrees as a share of the rows of all trees.

    `report` comes from the core, and `n_rows` is the number of remaining rows.
    """
    if report.rescaled:
        return 1.0
    in_trees = n_rows * settings.n_trees * settings.subsample
    return min(1.0, report.rebuilt_rows / max(in_trees, 1.0))


Floats = NDArray[np.float64]
Slots = NDArray[np.uint32]
Bytes = NDArray[np.uint8]

_NO_CODES = np.empty(0, np.uint32)
_NO_OWNERS = np.empty(0, np.uint64)
_TRIES = 3


class ForestPrediction(NamedTuple):
    """Predicted values (class shares by code, or numbers), and the table of labels by code."""

    table: LabelTable | None
    values: Floats


class ForestModel:
    """Rows and trees of a forest, stored in the C++ core; all output is in canonical order.

    Several threads may read and change the model. `changing` is true during a change, so that a
    reader never combines predictions and labels of different states.
    """

    def __init__(
        self,
        settings: ForestSettings,
        core: _core.Forest,
        id_type: type[Ids],
        table: LabelTable | None,
        keys: Keys | None = None,
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.core = core
        self.id_type = id_type
        self.table = table
        self.changing = False
        self._lock = threading.RLock()

    @classmethod
    def fit(
        cls, settings: ForestSettings, batch: ForestBatch, n_threads: int, keys: Keys | None
    ) -> Self:
        """Grow all trees in this process and return the model."""
        table, target = encode_target(settings, batch.target)
        core = _core.Forest(settings.core_spec(keys=keys))
        core.fit(**core_arguments(settings, batch, target, table), n_threads=n_threads)
        return cls(settings, core, type(batch.ids), table, keys)

    def find_rows(self, wanted: Ids) -> tuple[Slots, NDArray[np.int64]]:
        """Return the slots of the rows of these ids in the core.

        Also return the positions in `wanted` of unknown ids.
        """
        if type(wanted) is not self.id_type:
            return _NO_CODES, np.arange(len(wanted))
        if isinstance(wanted, IntIds):
            return self.core.find_ints(wanted.values)
        assert isinstance(wanted, TextIds)
        return self.core.find_texts(wanted.blob, wanted.offsets)

    def forget(
        self, slots: Slots, eager: bool, n_threads: int, columns: ColumnChange | None = None
    ) -> _core.Report:
        """Remove rows, labels without remaining rows, and columns; return the core's report."""
        with self._lock:
            self.changing = True
            try:
                report = self.core.forget(slots, eager, n_threads)
                if report.emptied and self.table is not None:
                    self.table = self.table.without_empty(self.core.class_counts())
                if columns is not None:
                    self._move_columns(columns)
            finally:
                self.changing = False
        return report

    def learn(
        self,
        batch: ForestBatch,
        eager: bool,
        n_threads: int,
        columns: ColumnChange | None = None,
    ) -> _core.Report:
        """Add columns and rows; return the report of the core."""
        with self._lock, self._adding_columns(columns):
            table, target = self.table, batch.target
            if table is not None:
                table, target = table.add_labels(target)
            arguments = core_arguments(self.settings, batch, target, table)
            self.changing = True
            try:
                report = self.core.learn(**arguments, eager=eager, n_threads=n_threads)
                self.table = table
            finally:
                self.changing = False
        return report

    @contextmanager
    def _adding_columns(self, columns: ColumnChange | None) -> Iterator[None]:
        """Add columns, and remove them again if the rest of the change fails."""
        if columns is None:
            yield
            return
        assert self.keys is not None
        back = columns.invert(self.settings, self.keys)
        self._move_columns(columns)
        try:
            yield
        except BaseException:
            self._move_columns(back)
            raise

    def _move_columns(self, change: ColumnChange) -> None:
        settings = change.settings
        self.core.move_columns(change.layout, change.keys, change.fills, settings.max_features)
        self.settings, self.keys = settings, change.keys

    def predict(self, X: NDArray[Any], n_threads: int) -> ForestPrediction:
        """Return the predictions for X with the label table of the same state."""
        for _ in range(_TRIES):
            table = self.table
            values = self.core.predict(X, n_threads)
            if self.changing:
                with self._lock:  # wait until the current change is done
                    pass
            if self.table is table:
                return ForestPrediction(table, values)
        with self._lock:
            return ForestPrediction(self.table, self.core.predict(X, n_threads))

    @property
    def code_order(self) -> NDArray[np.uint32]:
        """Codes of the labels, in the sorted order of the labels; empty for regression."""
        return _NO_CODES if self.table is None else self.table.code_order

    def collect_ids(self) -> Ids:
        """Return the id of every row, sorted."""
        return _ids_of(self.core.ids())

    def tree_arrays(self, number: int) -> dict[str, Any]:
        """Return the arrays of one tree, with nodes in preorder and classes in sorted order."""
        with self._lock:
            arrays = self.core.tree(number)
            if self.table is not None:
                arrays["values"] = arrays["values"][:, self.table.code_order]
                arrays["classes"] = self.table.classes
        return arrays

    def _to_state(self) -> dict[str, Any]:
        with self._lock:
            rows = self.core.rows(self.code_order)
            keys = {} if self.keys is None else {"column_keys": self.keys}
            return keys | {
                "settings": self.settings,
                "classes": None if self.table is None else self.table.classes,
                "X": rows["X"],
                "target": rows["target"],
                "weights": rows["weights"],
                "ids": _ids_of(rows),
                "trees": self.core.trees(self.code_order, threads_for(None)),
            }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        settings, classes, trees = state["settings"], state["classes"], state["trees"]
        batch = ForestBatch(state["X"], state["target"], state["weights"], state["ids"])
        keys = state.get("column_keys")
        _verify_state(settings, classes, batch, trees)
        if keys is not None and not (
            isinstance(keys, np.ndarray) and keys.ndim == 1 and keys.dtype == np.uint32
        ):
            raise ValueError("column_keys is not an array of uint32")
        table = None if classes is None else LabelTable.from_classes(classes)
        model = cls.restore(settings, batch, batch.target, table, [trees], threads_for(None), keys)
        if table is not None and not model.core.class_counts().all():
            raise ValueError("classes contains a class without rows")
        return model

    @classmethod
    def _native_cost(cls, state: dict[str, Any]) -> tuple[int, int]:
        """Return how many bytes and steps `_from_state` takes in the core, from counts alone."""
        settings, classes, trees = state["settings"], state["classes"], state["trees"]
        X, ids = state["X"], state["ids"]
        _verify_state(
            settings, classes, ForestBatch(X, state["target"], state["weights"], ids), trees
        )
        return _core.restore_cost(
            trees,
            n_trees=settings.n_trees,
            n_rows=len(X),
            n_columns=settings.n_columns,
            n_classes=0 if classes is None else len(classes),
            regression=settings.is_regression,
            text_bytes=ids.blob.nbytes if isinstance(ids, TextIds) else 0,
        )

    @classmethod
    def restore(
        cls,
        settings: ForestSettings,
        batch: ForestBatch,
        target: NDArray[Any],
        table: LabelTable | None,
        blocks: list[Bytes],
        n_threads: int,
        keys: Keys | None = None,
    ) -> Self:
        """Build the forest from rows and from `blocks` of trees that were grown elsewhere."""
        core = _core.Forest(settings.core_spec(keys=keys))
        arguments = core_arguments(settings, batch, target, table)
        core.restore(**arguments, trees=blocks, n_threads=n_threads)
        return cls(settings, core, type(batch.ids), table, keys)

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        """Return what pickle and copy need: a function and the canonical state."""
        return type(self)._from_state, (self._to_state(),)


def encode_target(
    settings: ForestSettings, target: NDArray[Any]
) -> tuple[LabelTable | None, NDArray[Any]]:
    """Return the label table and the codes of the target; None and the target for regression."""
    return (None, target) if settings.is_regression else LabelTable.from_labels(target)


def core_arguments(
    settings: ForestSettings, batch: ForestBatch, target: NDArray[Any], table: LabelTable | None
) -> dict[str, Any]:
    """Return the keyword arguments that pass these rows to the core."""
    ids, owners = batch.ids, _NO_OWNERS
    if settings.has_subsamples:
        owners = ids.hashes(settings.seed, Purpose.ROW_OWNER)
    return {
        "X": batch.X,
        "target": target,
        "n_classes": 0 if table is None else len(table),
        "weights": batch.weights,
        "ids_values": ids.values if isinstance(ids, IntIds) else None,
        "ids_blob": ids.blob if isinstance(ids, TextIds) else None,
        "ids_offsets": ids.offsets if isinstance(ids, TextIds) else None,
        "owners": owners,
    }


def _ids_of(arrays: dict[str, Any]) -> Ids:
    if arrays["ids_values"] is not None:
        return IntIds(arrays["ids_values"])
    return TextIds(arrays["ids_blob"], arrays["ids_offsets"])


def _verify_state(settings: Any, classes: Any, batch: ForestBatch, trees: Any) -> None:
    """Raise `ValueError` if parts of a state do not match; the core checks rows and trees."""
    if not isinstance(settings, ForestSettings) or not isinstance(batch.ids, IntIds | TextIds):
        raise ValueError("settings is not a ForestSettings, or ids is not IntIds or TextIds")
    X = batch.X
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.shape[1] != settings.n_columns:
        raise ValueError(
            f"X is not a matrix with {settings.n_columns} columns, as the settings state"
        )
    if not isinstance(trees, np.ndarray) or settings.n_trees > trees.size:
        raise ValueError("the state contains fewer trees than its settings require")
    if not 0 < settings.subsample <= 1:
        raise ValueError(f"subsample={settings.subsample}; expected a share above 0 and at most 1")
    if settings.is_regression != (classes is None):
        raise ValueError(
            "classes must be None for a regression criterion, and an array for a classification "
            "criterion"
        )
    if classes is not None and not _are_classes(classes):
        raise ValueError("classes must be an array of distinct labels of one type, in sorted order")
    if isinstance(batch.ids, TextIds):
        blob, offsets = batch.ids.blob, batch.ids.offsets
        blob.tobytes().decode()  # raises unless it is valid UTF-8
        if (blob[offsets[offsets < len(blob)]] & 0xC0 == 0x80).any():
            raise ValueError("ids is damaged: an id starts in the middle of a UTF-8 character")


def _are_classes(classes: Any) -> bool:
    plain = isinstance(classes, np.ndarray) and classes.ndim == 1 and classes.dtype.kind in "biUf"
    # The last comparison detects a single NaN.
    return plain and bool((classes[1:] > classes[:-1]).all() and (classes == classes.copy()).all())


def grow_forest(
    settings: ForestSettings, batch: ForestBatch, n_jobs: int | None, keys: Keys | None = None
) -> ForestModel:
    """Return the forest of these rows, with keys of columns or (None) their numbers.

    Its trees are grown in threads, processes or on a cluster; the result is always the same.
    """
    # The core is fastest with threads, so joblib's default does not count as a choice of processes.
    backend, _ = get_active_backend(prefer="threads")
    has_threads = getattr(backend, "uses_threads", False)
    workers = 1 if has_threads else min(joblib.effective_n_jobs(n_jobs), settings.n_trees)
    if workers == 1:
        return ForestModel.fit(settings, batch, threads_for(n_jobs), keys)
    with np.errstate(over="ignore"):  # the core rejects infinity
        batch = replace(batch, X=np.ascontiguousarray(batch.X, np.float32))
    bounds = np.linspace(0, settings.n_trees, workers + 1).astype(int).tolist()
    shared = (settings, batch, keys)
    blocks = run_tasks(grow_block, list(pairwise(bounds)), n_jobs=n_jobs, shared=shared)
    table, target = encode_target(settings, batch.target)
    return ForestModel.restore(settings, batch, target, table, blocks, threads_for(n_jobs), keys)


def grow_block(
    settings: ForestSettings, batch: ForestBatch, keys: Keys | None, first: int, last: int
) -> Bytes:
    """Return the canonical bytes of the trees with numbers ``first, ..., last - 1``."""
    table, target = encode_target(settings, batch.target)
    forest = _core.Forest(settings.core_spec(first, last, keys=keys))
    forest.fit(**core_arguments(settings, batch, target, table), n_threads=1)
    order = np.arange(0 if table is None else len(table), dtype=np.uint32)
    return forest.trees(order, 1)


@dataclass(frozen=True, eq=False)
class ForestTree:
    """One tree as arrays, one entry per node in preorder; 0 is the root.

    Attributes
    ----------
    kind : ndarray of uint8
        0 for a leaf, 1 for a best split, 2 for a random split.
    feature : ndarray of int64
        Column that the node splits on; -1 for a leaf.
    threshold : ndarray of float32
        Rows with ``x <= threshold`` go left; NaN for a leaf. Except in random splits, the
        threshold is a value of a remaining row.
    missing_left : ndarray of bool
        Whether rows without a value go left.
    left, right : ndarray of int64
        Indices of the child nodes; -1 for a leaf.
    n : ndarray of int64
        Sum of the weights of the rows in the node.
    value : ndarray of float64
        For classification the weight of each class, shape (n_nodes, n_classes); for regression
        the mean target.
    classes : ndarray or None
        Labels in the order of the columns of `value`; None for regression.
    feature_names : tuple of str or None
        Names of the columns, if the model has them.
    """

    kind: NDArray[np.uint8]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float32]
    missing_left: NDArray[np.bool_]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    n: NDArray[np.int64]
    value: NDArray[np.float64]
    classes: NDArray[Any] | None
    feature_names: tuple[str, ...] | None

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], feature_names: NDArray[Any] | None) -> Self:
        """Build the tree from the arrays of the core."""
        classes = arrays.get("classes")
        return cls(
            kind=arrays["kind"],
            feature=arrays["attribute"],
            threshold=arrays["threshold"],
            missing_left=arrays["missing_left"].astype(bool),
            left=arrays["left"],
            right=arrays["right"],
            n=arrays["weight"],
            value=arrays["values"][:, 0] if classes is None else arrays["values"],
            classes=classes,
            feature_names=None if feature_names is None else tuple(map(str, feature_names)),
        )

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.kind)

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return int((self.kind == 0).sum())

    @property
    def depth(self) -> int:
        """Number of levels of splits."""
        return int(self.depths().max())

    def depths(self) -> NDArray[np.int64]:
        """Return the depth of every node; the root has depth 0."""
        depths = np.zeros(self.n_nodes, np.int64)
        for node in np.flatnonzero(self.kind).tolist():  # a parent comes before its children
            depths[[self.left[node], self.right[node]]] = depths[node] + 1
        return depths

    def rule(self, node: int) -> str:
        """Return the condition of a node, such as ``age <= 41.5``; an empty text for a leaf."""
        if self.kind[node] == 0:
            return ""
        return f"{self.name_of(int(self.feature[node]))} <= {self.threshold[node]:.6g}"

    def name_of(self, feature: int) -> str:
        """Return the name of a column."""
        return f"x[{feature}]" if self.feature_names is None else self.feature_names[feature]

    def summary(self, node: int) -> str:
        """Return the prediction of a node as text: its main class with its share, or its mean."""
        if self.n[node] == 0:
            return "no rows"
        if self.classes is None:
            return f"mean {self.value[node]:.6g}"
        best = int(self.value[node].argmax())
        return f"{self.classes[best]} ({self.value[node, best] / self.n[node]:.0%})"

    def rows_of(self, node: int) -> str:
        """Return the number of rows of a node as text, such as ``1 row`` or ``1,200 rows``."""
        return f"{self.n[node]:,} row" + ("" if self.n[node] == 1 else "s")

    def missing_side(self, node: int) -> str:
        """Return the branch of rows with a missing value: ``yes`` (left) or ``no`` (right)."""
        return "yes" if self.missing_left[node] else "no"

    def to_text(self, *, max_depth: int | None = None) -> str:
        """Return the tree as indented text; the branch ``yes`` comes before ``no``.

        Parameters
        ----------
        max_depth : int, optional
            Number of levels of splits to show; by default all.

        Returns
        -------
        str
        """
        lines: list[str] = []
        todo = [(0, 0, "")]
        while todo:
            node, depth, branch = todo.pop()
            lines.append("|   " * depth + branch + self._format_node(node, depth, max_depth))
            if self._is_open(node, depth, max_depth):
                todo.append((int(self.right[node]), depth + 1, "no: "))
                todo.append((int(self.left[node]), depth + 1, "yes: "))
        return "\n".join(lines) + "\n"

    def _is_open(self, node: int, depth: int, max_depth: int | None) -> bool:
        return self.kind[node] != 0 and (max_depth is None or depth < max_depth)

    def _format_node(self, node: int, depth: int, max_depth: int | None) -> str:
        if self._is_open(node, depth, max_depth):
            how = ", random" if self.kind[node] == 2 else ""
            side = self.missing_side(node)
            return f"{self.rule(node)}? ({self.rows_of(node)}, missing: {side}{how})"
        cut = " ..." if self.kind[node] != 0 else ""
        return f"{self.summary(node)} ({self.rows_of(node)}){cut}"
