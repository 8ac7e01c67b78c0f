"""A vector index that forgets exactly."""

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from letheon import _core
from letheon.base import Outcome, Removal, lock_model, require_fitted
from letheon.data import Ids, row_ids
from letheon.exceptions import InvalidParameterError
from letheon.forest import StoredModelBase, ids_of, threads_for
from letheon.guarantee import Guarantee, MethodFacts
from letheon.neighbors._model import DTYPES, METRICS, IndexBatch, IndexModel, IndexSettings
from letheon.seeds import Purpose, seed_from
from letheon.validation import (
    JOBS,
    POSITIVE,
    OneOf,
    OrNone,
    ParameterRule,
    Rules,
    Whole,
    check_parameter,
    validate_parameters,
)

Floats = NDArray[np.float64]
_COUNT = Whole(1, 10**6)


class _Folder(ParameterRule):
    """The rule that a value is the path of an existing folder."""

    text = "an existing folder"

    def accepts(self, value: Any) -> bool:
        """Return whether a value is the path of an existing folder."""
        return isinstance(value, str | Path) and Path(value).is_dir()


def make_facts(*tasks: Any) -> MethodFacts:
    """Return the facts of an index and of the models made of one."""
    return MethodFacts(
        method="vector-index",
        applicability="nearest neighbours: vector index, classification, regression",
        exact=True,
        strength="strong",
        efficiency_parameters=("dtype",),
        definition_name="vector-index",
        families=("any",) if tasks else (),
        tasks=tasks,
        batches=True,
        replay="bitwise",
    )


class IndexBase(StoredModelBase):
    """Base class of the models that hold an index: input and requests."""

    _core_attribute: ClassVar[str] = "index_"
    _claim: ClassVar[Guarantee] = Guarantee(
        kind="exact",
        reference="pivots, cells and grid are functions of seed and remaining rows",
        assumptions=("seed-independent-of-requests",),
    )
    _parameter_rules: ClassVar[Rules] = {
        "metric": OneOf(METRICS),
        "dtype": OneOf(DTYPES),
        "step": OrNone(POSITIVE),
        "n_jobs": JOBS,
        "checkpoint_dir": OrNone(_Folder()),
    }
    # `index_` stores their values, so equivalent settings give the same digest.
    _not_digested: ClassVar[frozenset[str]] = StoredModelBase._not_digested | {
        "metric",
        "dtype",
        "step",
    }

    metric: str
    dtype: str
    step: float | None
    random_state: Any
    index_: IndexModel

    def _fit_index(self, X: Any, ids: Any, labels: Any, target: Any) -> None:
        """Check the parameters and rows, build the index and set the attributes of the model."""
        validate_parameters(self)
        rows = validate_data(self, X, dtype=np.float32, order="C")
        settings = IndexSettings(
            metric=self.metric,
            dtype=self.dtype,
            step=None if self.step is None else float(self.step),
            n_columns=rows.shape[1],
            seed=seed_from(self.random_state),
        )
        batch = IndexBatch(rows, row_ids(ids, len(rows)), target)
        folder = getattr(self, "checkpoint_dir", None)
        # No two models may use one file.
        path = "" if folder is None else str(Path(folder) / f"{secrets.token_hex(8)}.cells")
        index = IndexModel.fit(settings, batch, labels, path, threads_for(self.n_jobs))
        # One call, so that a concurrent query never sees a partial update.
        vars(self).pop("tuning_", None)
        vars(self).update(index_=index, seed_=settings.seed, **self._remember_settings())

    def _read_rows(self, X: Any) -> Any:
        require_fitted(self)
        return validate_data(self, X, dtype=np.float32, order="C", reset=False)

    def _plan_add(self, X: Any, ids: Any, labels: Any, target: Any) -> Callable[[], Any]:
        rows = self._read_rows(X)
        batch = IndexBatch(rows, row_ids(ids, len(rows)), target)
        self._require_same_ids(batch.ids)
        return self.index_.plan_add(batch, labels, threads_for(self.n_jobs))

    def _locate_rows(self, wanted: Ids, *, done: str = "nothing was forgotten, ") -> Removal:
        removal = super()._locate_rows(wanted, done=done)
        return removal._replace(where=(wanted, removal.where))

    def _prepare(self, removal: Removal) -> Callable[[], _core.IndexReport]:
        ids, slots = removal.where
        change = self.index_.plan_forget(ids, slots, threads_for(self.n_jobs))
        return partial(_apply, change)

    def _commit(self, plan: Callable[[], _core.IndexReport]) -> Outcome:
        report = plan()
        work = min(1.0, report.n_pivots / max(1, self.index_.core.n_pivots))
        return Outcome(work, {"pivots": report.n_pivots, "moved_rows": report.n_moved})


def _apply(change: Callable[[], _core.IndexReport]) -> _core.IndexReport:
    return change()


class NearestRows(NamedTuple):
    """The nearest rows of each query, the nearest first: arrays of shape (n_queries, k).

    Attributes
    ----------
    distances : ndarray of float64
        Distances; for the inner product its negative. Infinite where there are fewer than k rows.
    ids : ndarray of int64 or of str
        Ids of the rows.
    numbers : ndarray of int64
        Number of the row among the rows of its id, in the order in which they were added; -1 where
        there are fewer than k rows.
    n_scanned : int
        Number of rows, pivots counted, whose distances were computed for all queries together.

    Examples
    --------
    >>> from letheon.neighbors import VectorIndex
    >>> index = VectorIndex(random_state=0).fit([[1.0, 0.0], [0.0, 1.0]], ids=["east", "north"])
    >>> index.query([[2.0, 0.1]], k=1).ids.tolist()
    [['east']]
    """

    distances: Floats
    ids: NDArray[Any]
    numbers: NDArray[np.int64]
    n_scanned: int


class VectorIndex(IndexBase):
    """Approximate nearest-neighbour index that forgets rows exactly.

    The rows are held as small integers, in cells around pivots. The pivots are the rows with the
    smallest keyed hashes. A query scans the cells of the nearest pivots. `forget` overwrites the
    rows; afterwards the index has the same digest as one that was built without them.

    Parameters
    ----------
    metric : {"cosine", "euclidean", "inner_product"}, default="cosine"
        Distance of two rows. With "cosine" the rows are divided by their lengths.
    dtype : {"int8", "int16"}, default="int8"
        Integers that hold the coordinates: from -127 to 127, or from -2047 to 2047.
    step : float or None, default=None
        Distance of two values of the grid; values beyond its range are clipped. None computes a
        power of two: with "cosine" from the number of columns, otherwise from all rows, rounded
        with a key. Then the rows are also held as float32, because the step can change.
    checkpoint_dir : str, Path or None, default=None
        Folder for a file of the cells, which is mapped into memory. It exists as long as the model
        is in memory; forgotten bytes are overwritten on disk before `forget` returns. None holds
        the cells in memory. It never affects a result.
    n_jobs : int or None, default=None
        Number of threads, as in joblib. It never affects a result.
    random_state : int, RandomState, Generator or None, default=None
        Seed of everything random. None draws 128 bits from the operating system.

    Attributes
    ----------
    n_cells_ : int
        Number of cells.
    row_ids_ : ndarray
        The id of each row, sorted: the order of the mask of a query.
    n_features_in_ : int
        Number of columns.
    seed_ : int
        Seed of 128 bits; ``random_state=model.seed_`` gives the same index on the same rows.
    index_ : IndexModel
        Rows and cells. A saved index is personal data.
    ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    Notes
    -----
    Guarantee: exact. All decisions are made with integers, so answers and digests are the same on
    every processor and for every number of threads.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.neighbors import VectorIndex
    >>> X = np.random.default_rng(0).normal(size=(500, 8))
    >>> index = VectorIndex(random_state=0).fit(X, ids=range(500))
    >>> index.query(X[:1], k=3, n_probe=8).ids[0, 0]
    np.int64(0)
    >>> index.forget([0]).n_rows
    1
    >>> fresh = VectorIndex(random_state=0).fit(X[1:], ids=range(1, 500))
    >>> fresh.digest() == index.digest()
    True
    """

    facts: ClassVar[MethodFacts] = make_facts()

    def __init__(
        self,
        *,
        metric: str = "cosine",
        dtype: str = "int8",
        step: float | None = None,
        checkpoint_dir: Any = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.metric = metric
        self.dtype = dtype
        self.step = step
        self.checkpoint_dir = checkpoint_dir
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, ids: Any = None) -> Self:  # noqa: ARG002
        """Build the index.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns)
            Vectors, read as float32.
        y : None
            Ignored.
        ids : sequence of int or of str, optional
            Id of the person or document each row belongs to; ids may repeat. Default ``0..n-1``.

        Returns
        -------
        self
        """
        with lock_model(self):
            self._fit_index(X, ids, None, None)
        return self

    def add(self, X: Any, *, ids: Any) -> Self:
        """Add rows; the result is the same as if they had been in `fit`.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns)
            Vectors.
        ids : sequence of int or of str
            Id of each row. A known id keeps its earlier rows.

        Returns
        -------
        self
        """
        return self._learn_rows(ids, lambda: self._plan_add(X, ids, None, None))

    def query(
        self, X: Any, k: int = 10, *, n_probe: int | None = None, where: Any = None
    ) -> NearestRows:
        """Return the nearest rows of each row of X.

        Parameters
        ----------
        X : array-like of shape (n_queries, n_columns)
            Queries.
        k : int, default=10
            Number of rows to return for each query. Ties are decided by the keyed hashes.
        n_probe : int or None, default=None
            Number of cells to scan, the nearest first, and more until k rows were seen. More cells
            find more of the nearest rows; see `recall`. None scans a sixteenth of the cells.
        where : array-like of bool, optional
            Rows that may be returned, one entry for each entry of `row_ids_`.

        Returns
        -------
        NearestRows
        """
        rows = self._read_rows(X)
        check_parameter("k", k, _COUNT)
        check_parameter("n_probe", n_probe, OrNone(_COUNT))
        mask = None if where is None else self._check_mask(where)
        return self._query(rows, int(k), n_probe, mask)

    def _query(self, rows: Any, k: int, n_probe: int | None, mask: Any = None) -> NearestRows:
        n_cells = max(1, self.n_cells_ // 16) if n_probe is None else int(n_probe)
        _, hits = self.index_.query(rows, k, n_cells, mask, threads_for(self.n_jobs))
        ids = ids_of(hits).to_array().reshape(hits["numbers"].shape)
        return NearestRows(hits["distances"], ids, hits["numbers"], hits["n_scanned"])

    def recall(
        self,
        k: int = 10,
        *,
        n_probe: int | None = None,
        X: Any = None,
        n_queries: int = 1000,
    ) -> float:
        """Return the share of the k nearest rows that `query` finds, ties decided as in `query`.

        Parameters
        ----------
        k, n_probe
            The same as in `query`.
        X : array-like of shape (n_queries, n_columns), optional
            Queries. By default held rows are drawn with the key; the row itself does not count.
        n_queries : int, default=1000
            Number of held rows to draw.

        Returns
        -------
        float
            Between 0 and 1, compared with a scan of all cells.
        """
        check_parameter("k", k, _COUNT)
        check_parameter("n_probe", n_probe, OrNone(_COUNT))
        check_parameter("n_queries", n_queries, _COUNT)
        queries, own = (self._read_rows(X), None) if X is not None else self._draw_rows(n_queries)
        n_wanted = int(k) + (own is not None)
        lists = [self._query(queries, n_wanted, cells) for cells in (n_probe, self.n_cells_)]
        n_found = n_total = 0
        for i in range(len(queries)):
            quick, full = (
                [hit for hit in zip(part.ids[i], part.numbers[i], strict=True) if hit[1] >= 0]
                for part in lists
            )
            if own is not None:
                quick, full = (
                    [hit for hit in hits if hit != own[i]][: int(k)] for hits in (quick, full)
                )
            n_found += len(set(quick) & set(full))
            n_total += len(full)
        return n_found / max(1, n_total)

    def _draw_rows(self, n_queries: int) -> tuple[Any, list[tuple[Any, int]]]:
        """Return held rows as queries, and their ids and numbers."""
        require_fitted(self)
        rows, settings = self.index_.core.rows(), self.index_.settings
        ids = ids_of(rows)
        hashes = ids.hashes(settings.seed, Purpose.INDEX_RECALL)
        chosen = np.sort(np.argsort(hashes, kind="stable")[: int(n_queries)])
        X = rows["X"][chosen].astype(np.float32)
        if not settings.has_stable_step:
            X *= np.float32(self.index_.step)
        values = ids.to_array()
        first = np.concatenate([[True], values[1:] != values[:-1]])
        starts = np.maximum.accumulate(np.where(first, np.arange(len(values)), 0))
        numbers = np.arange(len(values)) - starts
        return X, list(zip(values[chosen], numbers[chosen], strict=True))

    @property
    def n_cells_(self) -> int:
        """Number of cells."""
        require_fitted(self)
        return self.index_.core.n_pivots

    @property
    def row_ids_(self) -> NDArray[Any]:
        """The id of each row, sorted."""
        require_fitted(self)
        return self._get_ids().to_array()

    def _check_mask(self, where: Any) -> NDArray[np.uint8]:
        mask = np.asarray(where)
        if mask.dtype != np.bool_ or mask.shape != (self.n_rows_,):
            raise InvalidParameterError(
                f"where has dtype {mask.dtype} and shape {mask.shape}; expected a boolean for "
                f"each of the {self.n_rows_} rows, in the order of row_ids_"
            )
        return mask.view(np.uint8)
