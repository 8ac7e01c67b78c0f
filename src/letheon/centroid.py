"""Nearest-centroid classification with exact forgetting."""

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from letheon.base import ForgetMixin, KeywordScoreMixin, Outcome, Removal, locate_in, lock_model
from letheon.data import Ids, Rows, hold_target, row_ids
from letheon.guarantee import Guarantee, MethodFacts

Floats = NDArray[np.float64]


class _CentroidUpdate(NamedTuple):
    """A prepared removal: the remaining rows, labels and centroids, and the work that it took."""

    rows: Rows
    classes: NDArray[Any]
    centroids: Floats
    n_averaged: int
    n_classes: int


def _class_mean(rows: Rows, label: Any) -> Floats:
    """Return the mean of the rows of one class, summed in stored order."""
    mean: Floats = rows.X[_label_array(rows) == label].mean(axis=0)
    return mean


def _label_array(rows: Rows) -> NDArray[Any]:
    return np.asarray(rows.y)


class NearestCentroid(KeywordScoreMixin, ClassifierMixin, ForgetMixin, BaseEstimator):
    """Nearest-centroid classifier with Euclidean distance.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of the remaining rows, sorted.
    centroids_ : ndarray of shape (n_classes, n_features)
        The mean of each class.

    Notes
    -----
    Guarantee: exact. `forget` recomputes only the means of the classes of the removed rows.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> model = NearestCentroid().fit([[0.0], [1.0], [6.0], [9.0]], [0, 0, 1, 1], ids=list("abcd"))
    >>> model.predict([[5.0]])
    array([1])
    >>> model.forget(["c"]).rebuilt
    {'classes': 1}
    >>> model.centroids_.tolist()
    [[0.5], [9.0]]
    """

    facts: ClassVar[MethodFacts] = MethodFacts(
        method="nearest-centroid",
        applicability="nearest-centroid classification",
        exact=True,
        strength="strong",
        definition_name="nearest-centroid",
        families=("linear",),
        tasks=("classification",),
        batches=True,
    )

    rows_: Rows
    classes_: NDArray[Any]
    centroids_: Floats

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Self:
        """Compute the mean of every class and store the rows.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Training rows.
        y : array-like of shape (n_rows,)
            Labels.
        ids : sequence of int or of str, optional
            Id of the person each row belongs to; may repeat. Default ``0..n-1``.

        Returns
        -------
        self
        """
        with lock_model(self):
            X, y = validate_data(self, X, y, dtype=np.float64, order="C")
            check_classification_targets(y)
            rows = Rows(X.copy(), hold_target(y), row_ids(ids, len(X)))
            classes = np.unique(_label_array(rows))
            centroids = np.stack([_class_mean(rows, label) for label in classes])
            vars(self).pop("tuning_", None)
            self._set_state(rows, classes, centroids, **self._remember_settings())
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class with the nearest centroid for every row."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        # A copy, so that labels and centroids match even if rows are forgotten at the same time.
        fitted = vars(self).copy()
        classes, centroids = fitted["classes_"], fitted["centroids_"]
        # |x - c|^2 without |x|^2, which is the same for every class.
        scores = (centroids**2).sum(axis=1) - 2.0 * X @ centroids.T
        labels: NDArray[Any] = classes[np.argmin(scores, axis=1)]
        return labels

    @property
    def n_rows_(self) -> int:
        """Number of remaining rows."""
        check_is_fitted(self)
        return len(self.rows_)

    def _set_state(self, rows: Rows, classes: Any, centroids: Floats, **more: Any) -> None:
        # One call, so that a concurrent predict never sees a partial update. Nothing is random.
        vars(self).update(rows_=rows, classes_=classes, centroids_=centroids, seed_=0, **more)

    def _get_ids(self) -> Ids:
        return self.rows_.ids

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(
            kind="exact",
            reference="the mean of a class is a function of its own rows",
            assumptions=("same-libraries-and-cpu-kernel",),
        )

    def _locate_rows(self, wanted: Ids) -> Removal:
        return locate_in(self.rows_, wanted)

    def _prepare(self, removal: Removal) -> _CentroidUpdate:
        rows = self.rows_.without(removal.where)
        touched = np.unique(_label_array(self.rows_)[removal.where])
        classes = np.unique(_label_array(rows))
        kept = self.centroids_[np.isin(self.classes_, classes)]
        is_touched = np.isin(classes, touched)
        averaged = [_class_mean(rows, label) for label in classes[is_touched]]
        centroids = kept.copy()
        centroids[is_touched] = np.reshape(averaged, (-1, kept.shape[1]))
        n_averaged = int(np.isin(_label_array(rows), touched).sum())
        return _CentroidUpdate(rows, classes, centroids, n_averaged, len(touched))

    def _commit(self, plan: _CentroidUpdate) -> Outcome:
        self._set_state(plan.rows, plan.classes, plan.centroids)
        work = plan.n_averaged / len(plan.rows)
        return Outcome(work=work, rebuilt={"classes": plan.n_classes})
