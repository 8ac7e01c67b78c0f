"""The forest regressor."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import column_or_1d

from letheon.base import KeywordScoreMixin
from letheon.data import hold_target
from letheon.forest._base import DaREForestBase
from letheon.validation import OneOf, Rules


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

    def __init__(
        self,
        *,
        criterion: str = "squared_error",
        n_estimators: int = 100,
        max_depth: int | None = 10,
        max_features: Any = 1 / 3,
        n_thresholds: int | None = 25,
        random_depth: int = 0,
        min_samples_split: int = 2,
        min_samples_leaf: int = 1,
        subsample: float = 1.0,
        y_max: float | None = None,
        rebuild: str = "lazy",
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.criterion = criterion
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.max_features = max_features
        self.n_thresholds = n_thresholds
        self.random_depth = random_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.subsample = subsample
        self.y_max = y_max
        self.rebuild = rebuild
        self.n_jobs = n_jobs
        self.random_state = random_state

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
        return self._answer(X).values[:, 0]

    def _hold_target(self, y: Any) -> NDArray[np.float64]:
        target = column_or_1d(hold_target(y, as_float=True), warn=True)
        if target.dtype != np.float64:
            raise ValueError("y holds more than numbers; a regressor needs numbers")
        assert_all_finite(target, estimator_name=type(self).__name__, input_name="y")
        self._require_within_bound(target)
        held: NDArray[np.float64] = target + 0.0  # -0.0 becomes 0.0
        return held

    def _require_within_bound(self, target: NDArray[np.float64]) -> None:
        if self.y_max is None or len(target) == 0:
            return
        farthest = target[np.abs(target).argmax()]
        if abs(farthest) > self.y_max:
            raise ValueError(
                f"y holds {farthest:g}, which is beyond y_max={self.y_max}; give a bound that "
                "holds for all rows"
            )
