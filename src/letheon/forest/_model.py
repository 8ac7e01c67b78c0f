"""Forest of the C++ core with its rows: growth, changes and their cost."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Self

import joblib
import numpy as np
import scipy.sparse as sp
from joblib.parallel import get_active_backend
from numpy.typing import NDArray

from letheon import _core
from letheon.data import (
    CategoryColumns,
    CategoryTable,
    EncodedRows,
    Ids,
    IntIds,
    TextIds,
    ValueCounts,
)
from letheon.forest._balance import (
    encode_target,
    read_balance,
    read_categories,
    verify_state,
    weigh_classes,
)
from letheon.forest._columns import ColumnChange, Keys
from letheon.forest._inputs import ForestBatch, ForestSettings, LabelTable
from letheon.forest._threads import threads_for
from letheon.forest._weights import ClassBalance
from letheon.parallel import run_tasks
from letheon.seeds import Purpose
from letheon.terminal import poll_bar, progress_bar


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
# Numbers in a dense block of sparse rows to predict.
_BLOCK_CELLS = 1 << 22


class ForestPrediction(NamedTuple):
    """Predicted values (class shares by code, or numbers), and the table of labels by code."""

    table: LabelTable | None
    values: Floats


class StoredRows:
    """Rows of a model in the C++ core: ids, labels, and copies of the model.

    Examples
    --------
    >>> from letheon.forest import DaREForestClassifier
    >>> model = DaREForestClassifier(n_estimators=1, random_state=0).fit([[0.0], [1.0]], [0, 1])
    >>> model.ids_.tolist()
    [0, 1]
    """

    settings: Any
    core: Any
    id_type: type[Ids]
    table: LabelTable | None
    categories: CategoryTable
    balance: ClassBalance | None
    changing: bool
    _lock: threading.RLock

    def find_rows(self, wanted: Ids) -> tuple[Slots, NDArray[np.int64]]:
        """Return the slots of the rows of these ids in the core.

        Also return the positions in `wanted` of unknown ids.
        """
        if type(wanted) is not self.id_type:
            return _NO_CODES, np.arange(len(wanted))
        matches: tuple[Slots, NDArray[np.int64]]
        if isinstance(wanted, IntIds):
            matches = self.core.find_ints(wanted.values)
        else:
            assert isinstance(wanted, TextIds)
            matches = self.core.find_texts(wanted.blob, wanted.offsets)
        return matches

    def _predict_state(
        self, X: Any, predict: Callable[[NDArray[Any]], Any]
    ) -> tuple[LabelTable | None, Any]:
        """Return the label table and the predictions for X, both of the same state."""
        if type(X) is not np.ndarray and sp.issparse(X):
            with self._lock:
                return self.table, np.concatenate([predict(rows) for rows in _dense_blocks(X)])
        for _ in range(_TRIES):
            table = self.table
            values = predict(X)
            if self.changing:
                with self._lock:  # wait until the current change is done
                    pass
            if self.table is table:
                return table, values
        with self._lock:
            return self.table, predict(X)

    def _read_leaving(self, slots: Slots) -> tuple[ValueCounts, ClassBalance | None]:
        """Return the categories of these rows, and the balance of classes without them."""
        if self.balance is None and not self.settings.categorical:
            return [], None
        rows, codes = self.core.copy_rows(slots)
        return self.categories.count_values(rows), self._move_balance(codes, -1)

    def _move_balance(
        self, codes: NDArray[Any], sign: int, table: LabelTable | None = None
    ) -> ClassBalance | None:
        table = self.table if table is None else table
        if self.balance is None or table is None:
            return None
        settings = self.settings
        return self.balance.move_rows(
            settings.class_weight, settings.seed, table.labels, codes, sign
        )

    def would_reweigh(self, slots: Slots) -> bool:
        """Return whether the weights of classes change without these rows."""
        with self._lock:
            _, balance = self._read_leaving(slots)
            return self._has_other_factors(balance)

    def _has_other_factors(self, balance: ClassBalance | None) -> bool:
        if balance is None or self.balance is None:
            return False
        both = (balance.counts[: len(self.balance.counts)] > 0) & (self.balance.counts > 0)
        return bool((balance.factors[: len(both)] != self.balance.factors)[both].any())

    @contextmanager
    def _reweighing(self, balance: ClassBalance | None) -> Iterator[Any]:
        """Give all rows the weights of their classes; undo it if the rest of the change fails."""
        if not self._has_other_factors(balance):
            yield None
            return
        assert balance is not None
        assert self.balance is not None
        assert self.table is not None
        n_codes = max(len(balance.factors), len(self.balance.factors))
        before, after = self.balance.extend(n_codes), balance.extend(n_codes)
        report = self.core.reweigh(before, after)
        try:
            yield report
        except BaseException:
            self.core.reweigh(after, before)
            raise
        self.table = replace(self.table)  # a reader that has met both states starts again

    @property
    def code_order(self) -> NDArray[np.uint32]:
        """Codes of the labels, in the sorted order of the labels; empty for regression."""
        return _NO_CODES if self.table is None else self.table.code_order

    def collect_ids(self) -> Ids:
        """Return the id of every row, sorted."""
        return ids_of(self.core.ids())

    def _to_state(self) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} must implement _to_state")

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        raise NotImplementedError(f"{cls.__name__} must implement _from_state")

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        """Return what pickle and copy need: a function and the canonical state."""
        return type(self)._from_state, (self._to_state(),)


class ForestModel(StoredRows):
    """Rows and trees of a forest, stored in the C++ core; all output is in canonical order.

    Several threads may read and change the model. `changing` is true during a change, so that a
    reader never combines predictions and labels of different states.
    """

    settings: ForestSettings
    core: _core.Forest

    def __init__(
        self,
        settings: ForestSettings,
        core: _core.Forest,
        id_type: type[Ids],
        table: LabelTable | None,
        keys: Keys | None,
        categories: CategoryTable,
        balance: ClassBalance | None,
    ) -> None:
        self.settings = settings
        self.categories = categories
        self.balance = balance
        self.keys = keys
        self.core = core
        self.id_type = id_type
        self.table = table
        self.changing = False
        self._lock = threading.RLock()

    def forget(
        self, slots: Slots, eager: bool, n_threads: int, columns: ColumnChange | None = None
    ) -> _core.Report:
        """Remove rows, labels without remaining rows, and columns; return the core's report."""
        with self._lock:
            leaving, balance = self._read_leaving(slots)
            self.changing = True
            try:
                with self._reweighing(balance) as reweighed:
                    report = self.core.forget(slots, eager, n_threads)
                self.balance = balance
                self.categories.remove_counts(leaving)
                if report.emptied and self.table is not None:
                    self.table = self.table.without_empty(self.core.class_counts())
                if columns is not None:
                    self._move_columns(columns)
            finally:
                self.changing = False
        return reweighed or report

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
            balance = self._move_balance(target, 1, table)
            arriving = self.categories.count_values(batch.X)
            if balance is not None:
                batch = replace(batch, weights=balance.weigh(batch.weights, target))
            arguments = core_arguments(self.settings.owner_seed, batch, target, table)
            self.changing = True
            try:
                with self._reweighing(balance) as reweighed:
                    report = self.core.learn(**arguments, eager=eager, n_threads=n_threads)
                self.table, self.balance = table, balance
                self.categories.add_counts(arriving, batch.names)
            finally:
                self.changing = False
        return reweighed or report

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

    def apply(self, X: Any, n_threads: int) -> NDArray[np.int64]:
        """Return the leaf of each row in each tree."""
        if not sp.issparse(X):
            return self.core.apply(X, n_threads)
        with self._lock:
            return np.concatenate([self.core.apply(rows, n_threads) for rows in _dense_blocks(X)])

    def predict(self, X: Any, n_threads: int) -> ForestPrediction:
        """Return the predictions for X with the label table of the same state."""
        core = self.core
        return ForestPrediction(*self._predict_state(X, lambda rows: core.predict(rows, n_threads)))

    def tree_arrays(self, number: int) -> dict[str, Any]:
        """Return the arrays of one tree, with nodes in preorder and classes in sorted order."""
        with self._lock:
            arrays = self.core.tree(number)
            if self.table is not None:
                arrays["values"] = arrays["values"][:, self.table.code_order]
                arrays["classes"] = self.table.classes
            arrays["categories"] = self.categories.names_by_column()
            arrays["weight_step"] = self.settings.weight_step
        return arrays

    def _to_state(self) -> dict[str, Any]:
        with self._lock:
            rows = self.core.rows(self.code_order)
            parts: dict[str, Any] = {} if self.keys is None else {"column_keys": self.keys}
            if self.settings.categorical:
                parts["categories"] = self.categories.to_state()
            return parts | {
                "settings": self.settings,
                "classes": None if self.table is None else self.table.classes,
                "X": rows["X"],
                "target": rows["target"],
                "weights": rows["weights"],
                "ids": ids_of(rows),
                "trees": self.core.trees(self.code_order, threads_for(None)),
            }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        settings, classes, trees = state["settings"], state["classes"], state["trees"]
        batch = ForestBatch(state["X"], state["target"], state["weights"], state["ids"])
        keys = state.get("column_keys")
        verify_state(settings, classes, batch, trees)
        if keys is not None and not (
            isinstance(keys, np.ndarray) and keys.ndim == 1 and keys.dtype == np.uint32
        ):
            raise ValueError("column_keys is not an array of uint32")
        table = None if classes is None else LabelTable.from_classes(classes)
        categories = read_categories(state)
        balance = read_balance(settings, table, batch)
        core = _core.Forest(settings.core_spec(keys=keys))
        arguments = core_arguments(settings.owner_seed, batch, batch.target, table)
        core.restore(**arguments, trees=[trees], n_threads=threads_for(None))
        model = cls(settings, core, type(batch.ids), table, keys, categories, balance)
        if table is not None and not model.core.class_counts().all():
            raise ValueError("classes contains a class without rows")
        return model

    @classmethod
    def _native_cost(cls, state: dict[str, Any]) -> tuple[int, int]:
        """Return how many bytes and steps `_from_state` takes in the core, from counts alone."""
        settings, classes, trees = state["settings"], state["classes"], state["trees"]
        X, ids = state["X"], state["ids"]
        verify_state(
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


def _dense_blocks(X: Any) -> Iterator[NDArray[Any]]:
    """Yield a sparse matrix as dense blocks of rows."""
    rows, size = X.tocsr(), max(1, _BLOCK_CELLS // X.shape[1])
    for begin in range(0, X.shape[0], size):
        yield rows[begin : begin + size].toarray()


def _core_matrix(X: Any) -> Any:
    """Return a sparse matrix by columns, as the core reads it; a dense one is unchanged."""
    if not sp.issparse(X):
        return X
    columns = sp.csc_array(X, dtype=np.float64, copy=True)
    columns.sum_duplicates()
    places, begins = (part.astype(np.int64) for part in (columns.indices, columns.indptr))
    return columns.data, places, begins, X.shape[0]


def core_arguments(
    owner_seed: int | None, batch: ForestBatch, target: NDArray[Any], table: LabelTable | None
) -> dict[str, Any]:
    """Return the keyword arguments that pass these rows to the core.

    With `owner_seed`, they contain a hash of the id of each row.

    Parameters
    ----------
    owner_seed : int or None
        Seed of the hashes of ids; None without them.
    batch : ForestBatch
        The rows.
    target : ndarray
        Codes of the labels, or targets.
    table : LabelTable or None
        The labels; None for regression.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.data import EncodedRows
    >>> from letheon.forest import ForestBatch, core_arguments
    >>> batch = ForestBatch.from_input(EncodedRows(np.eye(2)), np.array([0, 1]), None, ["a", "b"])
    >>> arguments = core_arguments(None, batch, batch.target, None)
    >>> arguments["n_classes"]
    0
    """
    ids, owners = batch.ids, _NO_OWNERS
    if owner_seed is not None:
        owners = ids.hashes(owner_seed, Purpose.ROW_OWNER)
    return {
        "X": _core_matrix(batch.X),
        "target": target,
        "n_classes": 0 if table is None else len(table),
        "weights": batch.weights,
        **id_arguments(ids),
        "owners": owners,
    }


def id_arguments(ids: Ids) -> dict[str, Any]:
    """Return the keyword arguments that pass ids to the core.

    Parameters
    ----------
    ids : Ids
        One id per row.

    Examples
    --------
    >>> from letheon.data import as_ids
    >>> from letheon.forest import id_arguments
    >>> id_arguments(as_ids([3, 5]))["ids_values"].tolist()
    [3, 5]
    """
    return {
        "ids_values": ids.values if isinstance(ids, IntIds) else None,
        "ids_blob": ids.blob if isinstance(ids, TextIds) else None,
        "ids_offsets": ids.offsets if isinstance(ids, TextIds) else None,
    }


def ids_of(arrays: dict[str, Any]) -> Ids:
    """Return the ids in the arrays of the core.

    Parameters
    ----------
    arrays : dict
        What the core returns.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.data import as_ids
    >>> from letheon.forest import DaREForestClassifier
    >>> model = DaREForestClassifier(n_estimators=1, random_state=0)
    >>> model.fit([[0.0], [1.0]], [0, 1], ids=["anna", "ben"]).ids_.tolist()
    ['anna', 'ben']
    """
    if arrays["ids_values"] is not None:
        return IntIds(arrays["ids_values"])
    return TextIds(arrays["ids_blob"], arrays["ids_offsets"])


def grow_forest(
    settings: ForestSettings,
    batch: ForestBatch,
    columns: CategoryColumns,
    n_jobs: int | None,
    keys: Keys | None = None,
    *,
    is_shown: bool = False,
) -> ForestModel:
    """Return the forest of these rows, with keys of columns or (None) their numbers.

    Its trees are grown in threads, processes or on a cluster; the result is always the same.
    """
    table, target = encode_target(settings, batch.target)
    batch, balance = weigh_classes(settings, batch, table, target)
    core = _core.Forest(settings.core_spec(keys=keys))
    # The core is fastest with threads, so joblib's default does not count as a choice of processes.
    backend, _ = get_active_backend(prefer="threads")
    has_threads = getattr(backend, "uses_threads", False)
    workers = 1 if has_threads else min(joblib.effective_n_jobs(n_jobs), settings.n_trees)
    n_threads = threads_for(n_jobs)
    if workers == 1:
        arguments = core_arguments(settings.owner_seed, batch, target, table)
        with poll_bar("trees", settings.n_trees, lambda: core.n_done, is_shown=is_shown):
            core.fit(**arguments, n_threads=n_threads)
    else:
        if not sp.issparse(batch.X):
            with np.errstate(over="ignore"):  # the core rejects infinity
                batch = replace(batch, X=np.ascontiguousarray(batch.X, np.float32))
        bounds = np.linspace(0, settings.n_trees, workers + 1).astype(int).tolist()
        shared = (settings, batch, keys)
        parts = list(pairwise(bounds))
        with progress_bar("blocks of trees", len(parts), is_shown=is_shown) as note:
            blocks = run_tasks(grow_block, parts, n_jobs=n_jobs, shared=shared, note=note)
        arguments = core_arguments(settings.owner_seed, batch, target, table)
        core.restore(**arguments, trees=blocks, n_threads=n_threads)
    categories = CategoryTable(columns)
    categories.add_rows(EncodedRows(batch.X, batch.names))
    return ForestModel(settings, core, type(batch.ids), table, keys, categories, balance)


def grow_block(
    settings: ForestSettings, batch: ForestBatch, keys: Keys | None, first: int, last: int
) -> Bytes:
    """Return the canonical bytes of the trees with numbers ``first, ..., last - 1``."""
    table, target = encode_target(settings, batch.target)
    forest = _core.Forest(settings.core_spec(first, last, keys=keys))
    forest.fit(**core_arguments(settings.owner_seed, batch, target, table), n_threads=1)
    order = np.arange(0 if table is None else len(table), dtype=np.uint32)
    return forest.trees(order, 1)
