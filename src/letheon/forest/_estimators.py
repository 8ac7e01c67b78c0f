"""Random forests that forget (Brophy and Lowd 2021)."""

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
    """A random forest that forgets people exactly, in a small part of the time of a retrain.

    Every tree is a function of the seed, its number and the rows that are held; nothing else. To
    forget someone, the trees are walked down the person's paths: where the best split of the
    remaining rows is the one that is there, counts are updated, and where it is not, the subtree
    is grown again. The result has the bytes of a fresh `fit` on the remaining rows.

    Parameters
    ----------
    criterion : {"gini", "entropy"}, default="gini"
        Impurity that splits reduce.
    n_estimators : int, default=100
        Number of trees.
    max_depth : int or None, default=10
        Levels of splits; 0 gives single leaves, None has no limit.
    max_features : {"sqrt", "log2"}, int, float or None, default="sqrt"
        Columns that a node looks at, of those that vary in it: square root or logarithm of the
        number of columns, that many, that share, or all. There is no bootstrap, so with all
        columns the trees are nearly the same; give `subsample` then.
    n_thresholds : int or None, default=25
        Candidate thresholds per column, a random subset of the values present (the survey's k).
        None tries all values. Fewer make growing and forgetting faster.
    random_depth : int, default=0
        Levels at the top that split at random (the survey's d_rmax). Such splits hardly ever
        change, so forgetting gets faster; see `tune_random_depth`.
    min_samples_split : int, default=2
        Rows (by weight) below which a node is a leaf.
    min_samples_leaf : int, default=1
        Rows (by weight) that each side of a split must keep.
    subsample : float, default=1.0
        Share of people that each tree sees. With 0.1 forgetting someone touches a tenth of the
        trees.
    rebuild : {"lazy", "eager"}, default="lazy"
        When dropped subtrees are grown again: when a prediction, a digest or a file needs them, or
        before `forget` returns. May be changed at any time; never changes a result.
    n_jobs : int or None, default=None
        Threads, as joblib counts. If a backend of processes or a cluster was chosen with
        `joblib.parallel_config`, `fit` spreads its trees there. Never changes the result.
    random_state : int, RandomState, Generator or None, default=None
        Seed of everything random. None draws 128 bits from the operating system.

    Attributes
    ----------
    classes_ : ndarray
        Labels still held, sorted. It shrinks when the last row of a class is forgotten.
    n_classes_ : int
        Their number.
    feature_importances_ : ndarray of shape (n_columns,)
        From the rows still held; forgotten rows leave them too.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, where `fit` was given a frame. They are part of the digest.
    seed_ : int
        128 bits; ``random_state=model.seed_`` gives the same model on the same rows.
    forest_ : ForestModel
        Rows and trees. A saved model is personal data, and its thresholds are values of rows.
    ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    See Also
    --------
    DaREForestRegressor : The same for numbers.
    letheon.forest.tune_random_depth : Choose `random_depth` by cross-validation.
    letheon.plot.ForestTreeDisplay : Draw one of the trees.
    letheon.save, letheon.load : Files.

    Notes
    -----
    Guarantee: exact, for requests that do not depend on the model (oblivious), towards an observer
    of the latest model: after any sequence of `forget` and `learn`, in any order, the model has
    the bytes of a fresh `fit` on the remaining rows in any order, with the same seed, on every
    machine. It needs no particular library version: the forest uses no BLAS, and every operation
    that decides something is defined to the last bit.

    The published DaRE algorithm keeps the thresholds that stay valid and draws new ones for those
    that do not; its trees after a removal do not follow the law of a retrain. Here candidates
    are the values of lowest keyed hash among those present, which no history can bias.

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
    max_features: Any = "sqrt"

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels still held, sorted."""
        return self._label_table().classes

    @property
    def n_classes_(self) -> int:
        """Number of labels still held."""
        return len(self._label_table().classes)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the label with the highest mean share, the lowest on a tie.

        Parameters
        ----------
        X : array-like, pandas or polars frame of shape (n_rows, n_columns)
            Rows, as in `fit`.

        Returns
        -------
        ndarray of shape (n_rows,)
        """
        classes, shares = self._class_shares(X)
        labels: NDArray[Any] = classes[shares.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the mean over trees of the shares of classes, in the order of `classes_`.

        Parameters
        ----------
        X : array-like, pandas or polars frame of shape (n_rows, n_columns)
            Rows, as in `fit`.

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
        return table.classes, shares if table.is_plain else shares[:, table.sorted_codes]

    def _prepare_target(self, y: Any) -> NDArray[Any]:
        return hold_labels(y, name=type(self).__name__, regressor="DaREForestRegressor")


@dataclass(kw_only=True, eq=False, repr=False)
class DaREForestRegressor(KeywordScoreMixin, RegressorMixin, DaREForestBase):
    """A regression forest that forgets people exactly; as `DaREForestClassifier`.

    Targets are rounded to 31 bits of the largest of them, and sums are whole numbers, so that no
    order of additions can show. If the largest lies below 2^E the steps are 2^(E - 31): beside a
    target of 1e15, such as a code for "unknown", all targets below 262,144 become 0. When the last
    row with the largest exponent is forgotten the scale changes and all trees are grown again; the
    receipt says so. `y_max` fixes the scale.

    Parameters
    ----------
    criterion : {"squared_error"}, default="squared_error"
        What splits reduce.
    n_estimators, max_depth, n_thresholds, random_depth, min_samples_split, min_samples_leaf
        As in `DaREForestClassifier`.
    max_features : {"sqrt", "log2"}, int, float or None, default=1/3
        Columns that a node looks at, of those that vary in it. A third, as in Breiman's forests
        for regression. There is no bootstrap, so with all columns (1.0 or None) the trees are
        nearly the same; give `subsample` then.
    subsample, rebuild, n_jobs, random_state
        As in `DaREForestClassifier`.
    y_max : float or None, default=None
        Bound of ``abs(y)``, known without looking at the rows. The scale is then fixed, and no
        removal can change it. None takes it from the rows that are held. A bound in
        [2^(E - 1), 2^E) gives steps of 2^(E - 31); one far beyond the targets gives a
        `PrecisionWarning`.

    Attributes
    ----------
    feature_importances_, n_features_in_, feature_names_in_, seed_, forest_
        As in `DaREForestClassifier`.
    ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    See Also
    --------
    DaREForestClassifier : The same for classes.
    letheon.forest.tune_random_depth : Choose `random_depth` by cross-validation.
    letheon.plot.ForestTreeDisplay : Draw one of the trees.
    letheon.save, letheon.load : Files.

    Notes
    -----
    Guarantee: exact, as in `DaREForestClassifier`.

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
        """Return the mean over trees of the mean target in each row's leaf.

        Parameters
        ----------
        X : array-like, pandas or polars frame of shape (n_rows, n_columns)
            Rows, as in `fit`.

        Returns
        -------
        ndarray of float64, shape (n_rows,)
        """
        return self._predict_values(X).values[:, 0]

    def _prepare_target(self, y: Any) -> NDArray[np.float64]:
        target = column_or_1d(hold_target(y, as_float=True), warn=True)
        if target.dtype != np.float64:
            raise ValueError("y holds more than numbers; a regressor needs numbers")
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
                f"y holds {farthest:g}, which is beyond y_max={self.y_max}; give a bound that "
                "holds for all rows"
            )
