"""Gradient boosting that forgets rows exactly: classifier and regressor."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import column_or_1d

from letheon.base import KeywordScoreMixin, require_fitted
from letheon.boosting._base import BoostingBase
from letheon.boosting._model import BoostingScores, make_answers
from letheon.data import hold_labels, hold_target
from letheon.forest import LabelTable
from letheon.predictor import Answers
from letheon.removal import ProbabilitiesMixin
from letheon.validation import OneOf, Rules

_REGRESSION_LOSS = OneOf(
    ("squared_error", "poisson"),
    "'squared_error' or 'poisson'; of other losses the best value of a leaf is not a function of "
    "sums over rows, but a median, for example",
)


@dataclass(kw_only=True, eq=False, repr=False)
class BoostingClassifier(ProbabilitiesMixin, KeywordScoreMixin, ClassifierMixin, BoostingBase):
    """Gradient boosting for classification that forgets rows exactly.

    The splits of the trees come from a keyed sample of people (the skeleton), cut into chains; the
    values of the leaves come from all rows, as integer sums that are rounded with a key. A row
    outside the skeleton changes no split, and rarely a rounded value. After `forget` the model has
    the same bytes as a fresh `fit` on the remaining rows.

    Parameters
    ----------
    loss : {"log_loss"}, default="log_loss"
        Two classes have one tree per round, more classes one tree per class and round.
    n_estimators : int, default=100
        Number of rounds.
    learning_rate : float, default=0.3
        Factor of the leaf values. The chains find their splits with 0.3.
    max_leaves : int, default=64
        Largest number of leaves of a tree, at most 64.
    min_samples_leaf : int, default=10
        Smallest number of skeleton rows (by weight) on each side of a split, estimated from the
        hessians.
    l2_regularization : float, default=1.0
        Added to the sum of hessians of a leaf.
    max_bins : int, default=64
        Number of bins of a column in a chain, at most 254.
    colsample : float or None, default=1.0
        Share of columns that each tree may use. None means a quarter of them, but at least 32.
    skeleton_people : int or None, default=None
        Number of people whose rows decide the splits. More people give more accurate trees, and
        more requests that grow a chain again. None means 669 times the fourth root of the number
        of people (about 10,000 of 50,000 and 21,000 of a million).
    n_chains : int, default=4
        Number of chains. A person of the skeleton affects the trees of one chain only.
    step_bits : int, default=4
        Leaf values are multiples of ``2**-step_bits``. Smaller steps change more often.
    categorical_features : "from_dtype", None or list, default="from_dtype"
        Columns whose values are categories: the texts and categories of a frame, none, or a list of
        names, numbers or bools. A split separates one category from the others; a category that was
        not in the training rows is one of the others.
    weight_bits : int, default=0
        Weights are rounded to multiples of ``2**-weight_bits``. The sum of all weights must be
        below ``2**(31 - weight_bits)``, or ``2**(23 - weight_bits)`` with `class_weight`.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, in steps of 1/256 and at least 1/256. A dict must have a weight for
        each class in `y`; it may have more: a class can leave. "balanced" is ``n / (k n_c)``
        for n rows, k classes and n_c rows of the class, rounded with a key to a power of 2**0.25.
        A removal rarely changes it; if it does, all trees are grown again, and the receipt says so.
    rebuild : {"lazy", "eager"}, default="lazy"
        When the work of a request is done: when a prediction, a digest or a file needs it, or
        before `forget` returns. It never affects a result.
    n_jobs : int or None, default=None
        Number of threads, as in joblib. It never affects a result.
    verbose : bool or int, default=0
        Whether `fit` shows a progress bar on standard error.
    random_state : int, RandomState, Generator or None, default=None
        Seed of everything random. None draws 128 bits from the operating system.

    Attributes
    ----------
    classes_ : ndarray
        Labels of the remaining rows, sorted.
    feature_importances_ : ndarray of shape (n_columns,)
        Importances from the remaining rows only.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, if `fit` received a frame.
    seed_ : int
        Seed of 128 bits; ``random_state=model.seed_`` gives the same model on the same rows.
    boosting_ : BoostingModel
        Rows and trees. A saved model is personal data, and its thresholds are values of rows.
    ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    See Also
    --------
    BoostingRegressor : The same method for regression.

    Notes
    -----
    Guarantee: exact, for requests that do not depend on the model (oblivious), against an observer
    of the latest model. All decisions are made with integers or single IEEE operations, so the
    bytes are the same on every machine and for every number of threads.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from letheon import BoostingClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = BoostingClassifier(n_estimators=10, random_state=0).fit(X, y)
    >>> model.forget([0, 1]).n_rows
    2
    >>> fresh = BoostingClassifier(n_estimators=10, random_state=0)
    >>> fresh.fit(X[2:], y[2:], ids=range(2, len(X))).digest() == model.digest()
    True
    """

    _parameter_rules: ClassVar[Rules] = {"loss": OneOf(("log_loss",))}

    loss: str = "log_loss"
    class_weight: Any = None

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels of the remaining rows, sorted."""
        return self._label_table().classes

    @property
    def n_classes_(self) -> int:
        """Number of labels of the remaining rows."""
        return len(self._label_table().classes)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable label of each row; on a tie, the first in `classes_`.

        Parameters
        ----------
        X : array-like, pandas or polars frame of shape (n_rows, n_columns)
            Rows with the columns of `fit`.

        Returns
        -------
        ndarray of shape (n_rows,)
        """
        return _to_labels(self._compute_scores(X))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return class probabilities, in the order of `classes_`.

        Parameters
        ----------
        X : array-like, pandas or polars frame of shape (n_rows, n_columns)
            Rows with the columns of `fit`.

        Returns
        -------
        ndarray of float64, shape (n_rows, n_classes_)
        """
        return _to_shares(self._compute_scores(X))

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the scores: log-odds for two classes, one column per class for more.

        Parameters
        ----------
        X : array-like, pandas or polars frame of shape (n_rows, n_columns)
            Rows with the columns of `fit`.

        Returns
        -------
        ndarray of float64, shape (n_rows,) or (n_rows, n_classes_)
        """
        values = self._compute_scores(X).values
        return values[:, 0] if values.shape[1] == 1 else values

    def staged_predict(self, X: Any) -> Iterator[NDArray[Any]]:
        """Yield the predicted labels after each round."""
        return map(_to_labels, self._stages(X))

    def staged_predict_proba(self, X: Any) -> Iterator[NDArray[np.float64]]:
        """Yield the class probabilities after each round."""
        return map(_to_shares, self._stages(X))

    def _label_table(self) -> LabelTable:
        require_fitted(self)
        table = self.boosting_.table
        assert table is not None
        return table

    def _prepare_target(self, y: Any) -> NDArray[Any]:
        return hold_labels(y, name=type(self).__name__, regressor="BoostingRegressor")


def _to_shares(scores: BoostingScores) -> NDArray[np.float64]:
    assert scores.table is not None
    return Answers("logits", scores.table.classes).predict_proba(scores.values)


def _to_labels(scores: BoostingScores) -> NDArray[Any]:
    assert scores.table is not None
    return Answers("logits", scores.table.classes).predict(scores.values)


@dataclass(kw_only=True, eq=False, repr=False)
class BoostingRegressor(KeywordScoreMixin, RegressorMixin, BoostingBase):
    """Gradient boosting for regression that forgets rows exactly.

    The method is that of `BoostingClassifier`. Targets are rounded to 31 bits relative to the
    largest target. Leaf values are multiples of a power of two near the standard deviation of the
    targets (the mean for the Poisson loss), divided by ``2**step_bits``.

    Parameters
    ----------
    loss : {"squared_error", "poisson"}, default="squared_error"
        Loss that is minimised. The Poisson loss has a logarithmic link and needs ``y >= 0``.
    n_estimators, learning_rate, max_leaves, min_samples_leaf, l2_regularization, max_bins
        The same as in `BoostingClassifier`.
    colsample, skeleton_people, n_chains, categorical_features, weight_bits
        The same as in `BoostingClassifier`.
    rebuild, n_jobs, verbose, random_state
        The same as in `BoostingClassifier`.
    step_bits : int, default=6
        The same as in `BoostingClassifier`.
    y_max : float or None, default=None
        Upper bound on ``abs(y)`` that you know without looking at the rows; it fixes the precision
        of the stored targets. None computes it from the remaining rows.

    Attributes
    ----------
    feature_importances_, n_features_in_, feature_names_in_, seed_, boosting_
        The same as in `BoostingClassifier`.
    ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    See Also
    --------
    BoostingClassifier : The same method for classification.

    Notes
    -----
    The guarantee is the same as that of `BoostingClassifier`: exact.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from letheon import BoostingRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = BoostingRegressor(n_estimators=5, random_state=0).fit(X, y)
    >>> model.forget([7]).n_rows
    1
    """

    _parameter_rules: ClassVar[Rules] = {"loss": _REGRESSION_LOSS}

    loss: str = "squared_error"
    step_bits: int = 6
    y_max: float | None = None

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the predicted target of each row.

        Parameters
        ----------
        X : array-like, pandas or polars frame of shape (n_rows, n_columns)
            Rows with the columns of `fit`.

        Returns
        -------
        ndarray of float64, shape (n_rows,)
        """
        return self._to_targets(self._compute_scores(X))

    def staged_predict(self, X: Any) -> Iterator[NDArray[np.float64]]:
        """Yield the predicted targets after each round."""
        return map(self._to_targets, self._stages(X))

    def _to_targets(self, scores: BoostingScores) -> NDArray[np.float64]:
        return make_answers(self.boosting_.settings.loss, None).predict(scores.values)

    def _prepare_target(self, y: Any) -> NDArray[np.float64]:
        target = column_or_1d(hold_target(y, as_float=True), warn=True)
        if target.dtype != np.float64:
            raise ValueError("y contains values that are not numbers; expected numeric targets")
        assert_all_finite(target, estimator_name=type(self).__name__, input_name="y")
        limit = np.inf if self.y_max is None else self.y_max
        if len(target) and np.abs(target).max() > limit:
            raise ValueError(
                f"y contains a value larger than y_max={self.y_max}; pass a larger y_max"
            )
        if self.loss == "poisson" and len(target) and target.min() < 0:
            raise ValueError("y contains negative values; the Poisson loss needs y >= 0")
        target_copy: NDArray[np.float64] = target + 0.0  # -0.0 becomes 0.0
        return target_copy
