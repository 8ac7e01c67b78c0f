"""Random forests that forget rows exactly (Brophy and Lowd, 2021)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import column_or_1d

from letheon.base import KeywordScoreMixin, require_fitted
from letheon.data import hold_labels, hold_target
from letheon.forest._base import DaREForestBase
from letheon.forest._inputs import LabelTable
from letheon.removal import ProbabilitiesMixin
from letheon.validation import OneOf, Rules


@dataclass(kw_only=True, eq=False, repr=False)
class DaREForestClassifier(ProbabilitiesMixin, KeywordScoreMixin, ClassifierMixin, DaREForestBase):
    """Random forest that forgets rows exactly, in a fraction of the time of retraining.

    A tree depends only on the seed, its number and the remaining rows. `forget` follows the paths
    of the removed rows. Where the best split of the remaining rows stays the same, counts are
    updated; where it changes, the subtree is grown again. The result has the same bytes as a fresh
    `fit` on the remaining rows.

    Parameters
    ----------
    criterion : {"gini", "entropy"}, default="gini"
        Impurity measure that splits reduce.
    n_estimators : int, default=100
        Number of trees.
    max_depth : int or None, default=10
        Largest number of levels of splits. With 0 every tree is a single leaf; None sets no limit.
    max_features : {"sqrt", "log2"}, int, float or None, default="sqrt"
        How many columns a node considers, among those that vary in it: the square root or the
        logarithm of the number of columns, an int, a share (float), or all (None). There is no
        bootstrap, so with all columns the trees are nearly the same; then also set `subsample`.
    n_thresholds : int or None, default=25
        Number of candidate thresholds per column: a random subset of the values (the survey's k).
        None tries all values. Fewer candidates make growing and forgetting faster.
    random_depth : int, default=0
        Number of top levels that split at random (the survey's d_rmax). Such splits rarely change,
        so forgetting is faster; see `tune_random_depth`.
    min_samples_split : int, default=2
        A node with fewer rows (by weight) is a leaf.
    min_samples_leaf : int, default=1
        Smallest number of rows (by weight) on each side of a split.
    subsample : float, default=1.0
        Share of people that each tree uses. With 0.1, forgetting a person affects about a tenth of
        the trees.
    categorical_features : "from_dtype", None or list, default="from_dtype"
        Columns of categories: those of texts and categories in a data frame, no column (None), or
        a list of names or numbers. A node asks ``x == c`` for a category c that a row has; unseen
        categories are not equal. Booleans are the numbers 0 and 1.
    weight_bits : int, default=0
        Weights are rounded to multiples of ``2**-weight_bits``. The sum of all weights must be
        below ``2**(31 - weight_bits)``, or ``2**(23 - weight_bits)`` with `class_weight`.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, in steps of 1/256 and at least 1/256. A dict must have a weight for
        each class in `y`; it may have more: a class can leave. "balanced" is ``n / (k n_c)``
        for n rows, k classes and n_c rows of the class, rounded with a key to a power of 2**0.25.
        A removal rarely changes it; if it does, all trees are grown again, and the receipt says so.
    rebuild : {"lazy", "eager"}, default="lazy"
        When dropped subtrees are grown again: when a prediction, a digest or a file needs them, or
        before `forget` returns. It can be changed at any time and never affects a result.
    n_jobs : int or None, default=None
        Number of threads, as in joblib. If `joblib.parallel_config` selects processes or a
        cluster, `fit` distributes its trees there. It never affects a result.
    verbose : bool or int, default=0
        Whether `fit` shows a progress bar on standard error.
    random_state : int, RandomState, Generator or None, default=None
        Seed of everything random. None draws 128 bits from the operating system.

    Attributes
    ----------
    classes_ : ndarray
        Labels of the remaining rows, sorted.
    n_classes_ : int
        Number of labels.
    feature_importances_ : ndarray of shape (n_columns,)
        Importances from the remaining rows only.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, if `fit` received a frame. They are part of the digest.
    seed_ : int
        Seed of 128 bits; ``random_state=model.seed_`` gives the same model on the same rows.
    forest_ : ForestModel
        Rows and trees. A saved model is personal data, and its thresholds are values of rows.
    ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    See Also
    --------
    DaREForestRegressor : The same method for regression.
    letheon.forest.tune_random_depth : Choose `random_depth` by cross-validation.
    letheon.plot.ForestTreeDisplay : Draw one of the trees.
    letheon.save, letheon.load : Save a model to a file, and load it.

    Notes
    -----
    Guarantee: exact, for requests that do not depend on the model (oblivious), against an observer
    of the latest model. After any sequence of `forget` and `learn` the model has the same bytes as
    a fresh `fit` with the same seed on the remaining rows, in any order and on every machine. It
    needs no particular library version: the forest uses no BLAS, and every operation that affects
    a tree is defined to the last bit.

    The published DaRE algorithm keeps valid thresholds and replaces invalid ones with new draws.
    After a removal, its trees do not have the distribution of retrained trees. Here the candidates
    are the present values with the lowest keyed hashes, so they do not depend on earlier requests.

    References
    ----------
    Brophy and Lowd, Machine Unlearning for Random Forests, ICML 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from letheon import DaREForestClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = DaREForestClassifier(n_estimators=10, random_state=0).fit(X, y)
    >>> model.forget([0, 1]).n_rows
    2
    >>> fresh = DaREForestClassifier(n_estimators=10, random_state=0)
    >>> fresh.fit(X[2:], y[2:], ids=range(2, len(X))).digest() == model.digest()
    True
    """

    _parameter_rules: ClassVar[Rules] = {"criterion": OneOf(("gini", "entropy"))}

    criterion: str = "gini"
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
        """Return the label with the highest mean share; on a tie, the first in `classes_`.

        Parameters
        ----------
        X : array-like, pandas or polars frame of shape (n_rows, n_columns)
            Rows with the columns of `fit`.

        Returns
        -------
        ndarray of shape (n_rows,)
        """
        classes, shares = self._class_shares(X)
        labels: NDArray[Any] = classes[shares.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return class probabilities, in the order of `classes_`.

        The probability of a class is its share of the rows in a leaf, averaged over the trees.

        Parameters
        ----------
        X : array-like, pandas or polars frame of shape (n_rows, n_columns)
            Rows with the columns of `fit`.

        Returns
        -------
        ndarray of float64, shape (n_rows, n_classes_)
        """
        return self._class_shares(X)[1]

    def _label_table(self) -> LabelTable:
        require_fitted(self)
        table = self.forest_.table
        assert table is not None
        return table

    def _class_shares(self, X: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
        table, shares = self._predict_values(X)
        assert table is not None
        return table.classes, shares if table.is_plain else shares[:, table.code_order]

    def _prepare_target(self, y: Any) -> NDArray[Any]:
        return hold_labels(y, name=type(self).__name__, regressor="DaREForestRegressor")


@dataclass(kw_only=True, eq=False, repr=False)
class DaREForestRegressor(KeywordScoreMixin, RegressorMixin, DaREForestBase):
    """Regression forest that forgets rows exactly, by the method of `DaREForestClassifier`.

    Targets are rounded to 31 bits relative to the largest target and summed as integers, so the
    order of additions does not matter. If the largest target is below 2^E, the step is 2^(E - 31):
    with a target of 1e15, such as a code for "unknown", all targets below 262,144 become 0. When
    the last row with the largest exponent is forgotten, the scale changes and all trees are grown
    again; the receipt reports it. `y_max` fixes the scale.

    Parameters
    ----------
    criterion : {"squared_error"}, default="squared_error"
        Measure that splits reduce.
    n_estimators, max_depth, n_thresholds, random_depth, min_samples_split, min_samples_leaf
        The same as in `DaREForestClassifier`.
    max_features : {"sqrt", "log2"}, int, float or None, default=1/3
        How many columns a node considers, among those that vary in it. The default is a third, as
        in Breiman's forests for regression. There is no bootstrap, so with all columns (1.0 or
        None) the trees are nearly the same; then also set `subsample`.
    subsample, categorical_features, weight_bits, rebuild, n_jobs, verbose, random_state
        The same as in `DaREForestClassifier`.
    y_max : float or None, default=None
        Upper bound on ``abs(y)`` that you know without looking at the rows. It fixes the scale, so
        no removal can change it. None computes the bound from the remaining rows. A bound in
        [2^(E - 1), 2^E) gives steps of 2^(E - 31); a bound far above the targets causes a
        `PrecisionWarning`.

    Attributes
    ----------
    feature_importances_, n_features_in_, feature_names_in_, seed_, forest_
        The same as in `DaREForestClassifier`.
    ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    See Also
    --------
    DaREForestClassifier : The same method for classification.
    letheon.forest.tune_random_depth : Choose `random_depth` by cross-validation.
    letheon.plot.ForestTreeDisplay : Draw one of the trees.
    letheon.save, letheon.load : Save a model to a file, and load it.

    Notes
    -----
    The guarantee is the same as that of `DaREForestClassifier`: exact.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from letheon import DaREForestRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = DaREForestRegressor(n_estimators=5, y_max=400, random_state=0).fit(X, y)
    >>> model.forget([7]).n_rows
    1
    """

    _parameter_rules: ClassVar[Rules] = {"criterion": OneOf(("squared_error",))}

    criterion: str = "squared_error"
    max_features: Any = 1 / 3
    y_max: float | None = None

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the predicted target of each row: the mean of its leaf, averaged over the trees.

        Parameters
        ----------
        X : array-like, pandas or polars frame of shape (n_rows, n_columns)
            Rows with the columns of `fit`.

        Returns
        -------
        ndarray of float64, shape (n_rows,)
        """
        return self._predict_values(X).values[:, 0]

    def _prepare_target(self, y: Any) -> NDArray[np.float64]:
        target = column_or_1d(hold_target(y, as_float=True), warn=True)
        if target.dtype != np.float64:
            raise ValueError("y contains values that are not numbers; expected numeric targets")
        assert_all_finite(target, estimator_name=type(self).__name__, input_name="y")
        self._require_within_bound(target)
        target_copy: NDArray[np.float64] = target + 0.0  # -0.0 becomes 0.0
        return target_copy

    def _require_within_bound(self, target: NDArray[np.float64]) -> None:
        if self.y_max is None or len(target) == 0:
            return
        farthest = target[np.abs(target).argmax()]
        if abs(farthest) > self.y_max:
            raise ValueError(
                f"y contains {farthest:g}, which exceeds y_max={self.y_max}; pass a y_max that is "
                "at least abs(y) for all rows"
            )
