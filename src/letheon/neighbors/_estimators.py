"""Classification and regression by the nearest neighbours, with exact forgetting."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import check_consistent_length, column_or_1d

from letheon.base import KeywordScoreMixin, lock_model, require_fitted
from letheon.data import hold_labels, hold_target
from letheon.forest import threads_for
from letheon.guarantee import MethodFacts
from letheon.neighbors._index import IndexBase, make_facts
from letheon.removal import ProbabilitiesMixin
from letheon.validation import OneOf, OrNone, Rules, Whole, require_target

Floats = NDArray[np.float64]


@dataclass(kw_only=True, eq=False, repr=False)
class _NeighborsParameters:
    """Parameters of both estimators, with their defaults."""

    n_neighbors: int = 5
    weights: str = "uniform"
    metric: str = "euclidean"
    n_probe: int | None = None
    dtype: str = "int16"
    step: float | None = None
    n_jobs: int | None = None
    random_state: Any = None


class _NeighborsBase(_NeighborsParameters, IndexBase):
    """Base class of both estimators."""

    _parameter_rules: ClassVar[Rules] = {
        "n_neighbors": Whole(1, 10**6),
        "weights": OneOf(("uniform", "distance")),
        "metric": OneOf(("cosine", "euclidean")),
        "n_probe": OrNone(Whole(1, 10**6), "all cells"),
    }

    def _convert_target(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return labels and None, or None and targets; raise for a target of the wrong kind."""
        raise NotImplementedError

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Self:
        """Store the rows.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns)
            Training rows, read as float32.
        y : array-like of shape (n_rows,)
            Labels or targets.
        ids : sequence of int or of str, optional
            Id of the person each row belongs to; ids may repeat. The default is ``0..n-1``.

        Returns
        -------
        self
        """
        with lock_model(self):
            labels, target = self._convert_target(X, y)
            self._fit_index(X, ids, labels, target)
        return self

    def learn(self, X: Any, y: Any, *, ids: Any) -> Self:
        """Add rows; the result is the same as if they had been in `fit`.

        Parameters
        ----------
        X, y
            The same as in `fit`; X must have the same columns.
        ids : sequence of int or of str
            Id of the person each row belongs to. A known id keeps its earlier rows.

        Returns
        -------
        self
        """
        return self._learn_rows(ids, lambda: self._plan_add(X, ids, *self._convert_target(X, y)))

    def _find_neighbors(self, X: Any) -> tuple[Any, NDArray[Any], Floats]:
        """Return the labels by code, and codes or targets and weights of the neighbours."""
        rows = self._read_rows(X)
        k, n_rows = int(self.n_neighbors), self.n_rows_
        if k > n_rows:
            raise ValueError(
                f"Expected n_neighbors <= n_samples_fit, but n_neighbors = {k}, n_samples_fit = "
                f"{n_rows}, n_samples = {len(rows)}"
            )
        threads = threads_for(self.n_jobs)
        table, hits = self.index_.query(rows, k, self.n_probe, None, threads)
        distances = hits["distances"]
        weights = np.ones_like(distances)
        if self.weights == "distance":
            # Rows at distance 0 count alone, as in scikit-learn.
            nearest = np.maximum(distances, 0.0)
            is_same = nearest == 0
            with np.errstate(divide="ignore"):
                weights = np.where(is_same.any(axis=1)[:, None], is_same, 1.0 / nearest)
        return table, hits["target"].reshape(distances.shape), weights


class KNeighborsClassifier(ProbabilitiesMixin, KeywordScoreMixin, ClassifierMixin, _NeighborsBase):
    """Classification by the nearest neighbours, with exact forgetting.

    The neighbours come from a `VectorIndex`. By default all its cells are scanned, so the
    neighbours are the nearest rows on the grid of integers; with `n_probe` only the cells of the
    nearest pivots, which is faster and may miss some.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours.
    weights : {"uniform", "distance"}, default="uniform"
        Whether all neighbours count the same, or by the inverse of their distances.
    metric : {"euclidean", "cosine"}, default="euclidean"
        Distance of two rows.
    n_probe : int or None, default=None
        Number of cells to scan; None scans all. `VectorIndex.recall` measures what is found.
    dtype, step, n_jobs, random_state
        The same as in `VectorIndex`; the default of `dtype` is "int16".

    Attributes
    ----------
    classes_ : ndarray
        Labels of the remaining rows, sorted.
    n_features_in_, seed_, index_, ids_, guarantee_, n_rows_
        See `VectorIndex`.

    Notes
    -----
    Guarantee: exact, as for `VectorIndex`. Ties between neighbours are decided by keyed hashes,
    ties between classes by their order.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from letheon.neighbors import KNeighborsClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KNeighborsClassifier(random_state=0).fit(X, y)
    >>> model.forget([0, 1]).n_rows
    2
    >>> model.predict([[5.1, 3.5, 1.4, 0.2]])
    array([0])
    """

    facts: ClassVar[MethodFacts] = make_facts("classification")

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels of the remaining rows, sorted."""
        require_fitted(self)
        table = self.index_.table
        assert table is not None
        return table.classes

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the label with the largest weight among the neighbours of each row."""
        classes, shares = self._compute_shares(X)
        labels: NDArray[Any] = classes[shares.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """Return the shares of the classes among the neighbours, in the order of `classes_`."""
        return self._compute_shares(X)[1]

    def _compute_shares(self, X: Any) -> tuple[NDArray[Any], Floats]:
        table, codes, weights = self._find_neighbors(X)
        ranks = np.zeros(len(table), np.int64)
        ranks[table.code_order] = np.arange(len(table.code_order))
        votes = np.zeros((len(codes), len(table.code_order)))
        rows = np.arange(len(codes))
        for j in range(codes.shape[1]):  # in the order of the neighbours, so that sums are exact
            votes[rows, ranks[codes[:, j].astype(np.int64)]] += weights[:, j]
        shares: Floats = votes / votes.sum(axis=1, keepdims=True)
        return table.classes, shares

    def _convert_target(self, X: Any, y: Any) -> tuple[Any, Any]:  # noqa: ARG002
        require_target(self, y)
        return hold_labels(y, name=type(self).__name__, regressor="KNeighborsRegressor"), None


class KNeighborsRegressor(KeywordScoreMixin, RegressorMixin, _NeighborsBase):
    """Regression by the nearest neighbours, with exact forgetting.

    Parameters
    ----------
    n_neighbors, weights, metric, n_probe, dtype, step, n_jobs, random_state
        The same as in `KNeighborsClassifier`.

    Attributes
    ----------
    n_features_in_, seed_, index_, ids_, guarantee_, n_rows_
        See `VectorIndex`.

    Notes
    -----
    Guarantee: exact, as for `VectorIndex`.

    Examples
    --------
    >>> from letheon.neighbors import KNeighborsRegressor
    >>> model = KNeighborsRegressor(n_neighbors=2, random_state=0)
    >>> model = model.fit([[0.0], [1.0], [5.0]], [0.0, 1.0, 7.0])
    >>> model.predict([[0.4]]).tolist()
    [0.5]
    """

    facts: ClassVar[MethodFacts] = make_facts("regression")

    def predict(self, X: Any) -> Floats:
        """Return the weighted mean of the targets of the neighbours of each row."""
        _, targets, weights = self._find_neighbors(X)
        sums = totals = np.zeros(len(targets))
        for j in range(targets.shape[1]):
            sums = sums + weights[:, j] * targets[:, j]
            totals = totals + weights[:, j]
        means: Floats = sums / totals
        return means

    def _convert_target(self, X: Any, y: Any) -> tuple[Any, Any]:
        require_target(self, y)
        target = column_or_1d(hold_target(y, as_float=True), warn=True)
        if target.dtype != np.float64:
            raise ValueError("y contains values that are not numbers; expected numeric targets")
        check_consistent_length(X, target)
        assert_all_finite(target, estimator_name=type(self).__name__, input_name="y")
        return None, target + 0.0  # -0.0 becomes 0.0
