"""SISA for classifiers and regressors (Bourtoule et al., 2021; survey section 4.1).

Predictions of all shards that have rows are aggregated with equal weights. Weights by size would
change with every removal in any shard.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from letheon.base import KeywordScoreMixin
from letheon.data import hold_target, present_table, require_one_kind
from letheon.inner_estimator import require_features
from letheon.sharded._base import SISABase
from letheon.sharded._predictor import (
    Floats,
    combine_decisions,
    combine_shares,
    combine_values,
)
from letheon.validation import OneOf, Rules


def _has_decision(model: Any) -> bool:
    getattr(model.estimator, "decision_function")  # noqa: B009
    return True


class SISAClassifier(KeywordScoreMixin, ClassifierMixin, SISABase):
    """Any scikit-learn classifier, sharded and sliced so that forgetting is fast and exact.

    People are assigned to `n_shards` shards by a keyed hash of their id. Each shard trains its own
    model in isolation, slice by slice, and keeps the state after every slice. To forget a person,
    only that person's shard is retrained, starting with the person's slice. With S shards and R
    slices the mean speed-up of one removal is ``S * 3R / (2R + 1)``; see `letheon.sharded.plan`.

    Parameters
    ----------
    estimator : classifier
        A copy is trained for each shard. Every `random_state` in it is derived from `seed_`.
    n_shards : int, default=5
        Number of shards. With more shards forgetting is faster, but predictions are worse, because
        each shard has fewer rows.
    n_slices : int, default=1
        Number of slices per shard. More than one slice needs an estimator with `partial_fit`, and
        every slice adds one saved state per shard.
    epochs : int or None, default=None
        Passes over the data that a shard would get without slices. If it is None and
        ``n_slices=1``, one call of `fit` trains each shard. If it is None and there are more
        slices, it is 10 or as many as the slices need (cumulative stages), or 1 (new stages). A
        cumulative stage gets about ``2 epochs / (n_slices + 1)`` passes. `fit` raises an error if
        some stages would get no pass.
    stage_data : {"cumulative", "new"}, default="cumulative"
        Whether stage k trains on slices 1..k (for gradient learners), or on slice k only (for
        learners that count rows, such as naive Bayes, and must see each row once).
    aggregation : {"mean", "vote"}, default="mean"
        Mean of the class probabilities, or majority of the predicted labels. If the estimator has
        no probabilities, both are the share of votes. If there is a tie, the first class in sorted
        order wins.
    risk_edges : sequence of float or None, default=None
        Edges between risk tiers, fixed in advance. If they are given, `fit` requires `risk`. A
        person of tier t is in one of the last ``ceil(n_shards / 2**t)`` shards. Higher tiers use
        later slices.
    checkpoint_dir : path or None, default=None
        Directory for the states after each slice, in which the model creates its own
        sub-directory. None keeps the states in memory.
    n_jobs : int or None, default=None
        Number of shards that joblib trains in parallel; `joblib.parallel_config` selects processes,
        Ray or Dask. The result does not depend on it.
    verbose : bool or int, default=0
        Whether to show a progress bar on standard error while shards are trained.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all random choices. None draws 128 bits from the operating system.

    Attributes
    ----------
    classes_ : ndarray
        Labels of the remaining rows, sorted.
    estimators_ : list
        Fitted models of the shards that have rows.
    seed_ : int
        Seed of 128 bits; ``random_state=model.seed_`` gives the same model on the same rows.
    ensemble_ : Ensemble
        All shards with their rows, states and models. They contain personal data.
    ids_, guarantee_, n_rows_
        Ids of the remaining rows, the guarantee, and the number of remaining rows.

    Notes
    -----
    Guarantee: exact, for requests that do not depend on the model (oblivious), against an observer
    of the latest model. After any sequence of `forget` and `learn` the model has the same bytes as
    a fresh `fit` on the remaining rows in stored order, with the same seed, library versions and
    CPU kernel. The guarantee does not cover adaptive requests, which depend on the model: with
    them, the fixed assignment to shards reveals information (Gupta et al., 2021).

    References
    ----------
    Bourtoule et al., Machine Unlearning, IEEE S&P 2021. Gupta et al., Adaptive Machine
    Unlearning, NeurIPS 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from letheon import SISAClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = SISAClassifier(DecisionTreeClassifier(), n_shards=4, random_state=0).fit(X, y)
    >>> model.forget([0, 1]).n_rows
    2
    >>> import numpy as np
    >>> keep = np.arange(2, len(X))
    >>> fresh = SISAClassifier(DecisionTreeClassifier(), n_shards=4, random_state=0)
    >>> fresh.fit(X[keep], y[keep], ids=keep).digest() == model.digest()
    True
    """

    _is_classifier: ClassVar[bool] = True
    _parameter_rules: ClassVar[Rules] = {"aggregation": OneOf(("mean", "vote"))}

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels of the remaining rows, sorted."""
        check_is_fitted(self)
        assert self.ensemble_.classes is not None
        return self.ensemble_.classes

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the label with the highest aggregated probability for each row.

        If there is a tie, the first label in sorted order is returned.
        """
        classes, shares = self._aggregate_shards(X)
        labels: NDArray[Any] = classes[shares.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return mean probabilities or shares of votes, with one column per class of `classes_`."""
        return self._aggregate_shards(X)[1]

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithms of `predict_proba`; minus infinity for a probability of 0."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def _aggregate_shards(self, X: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
        check_is_fitted(self)
        require_features(self, X)
        ensemble = self.ensemble_  # read once: a concurrent commit may replace it
        assert ensemble.classes is not None
        table = present_table(X)
        shares = combine_shares(ensemble.models, self.aggregation, ensemble.classes, table)
        return ensemble.classes, shares

    @available_if(_has_decision)
    def decision_function(self, X: Any) -> Floats:
        """Return decision values: with probabilities, their difference for two classes.

        For more classes, they are the mean probabilities. If the estimator has no probabilities,
        they are the mean decision values of the shards that have rows of all classes.
        """
        check_is_fitted(self)
        require_features(self, X)
        ensemble, table = self.ensemble_, present_table(X)
        assert ensemble.classes is not None
        return combine_decisions(ensemble.models, self.aggregation, ensemble.classes, table)

    def _prepare_labels(self, y: Any) -> NDArray[Any]:
        require_one_kind(y)
        labels = column_or_1d(y, warn=True)
        assert_all_finite(labels, estimator_name=type(self).__name__, input_name="y")
        check_classification_targets(labels)
        return hold_target(labels)


class SISARegressor(KeywordScoreMixin, RegressorMixin, SISABase):
    """Any scikit-learn regressor, sharded and sliced so that forgetting is fast and exact.

    Like `SISAClassifier`, but the predictions of the shards are averaged.

    Parameters
    ----------
    estimator : regressor
        A copy is trained for each shard. Every `random_state` in it is derived from `seed_`.
    n_shards, n_slices, epochs, stage_data, risk_edges, checkpoint_dir, n_jobs
        As in `SISAClassifier`.
    verbose, random_state
        As in `SISAClassifier`.
    aggregation : {"mean", "median"}, default="mean"
        Mean or median of the shards' predictions.

    Attributes
    ----------
    estimators_, seed_, ensemble_, ids_, guarantee_, n_rows_
        As in `SISAClassifier`.

    Notes
    -----
    Guarantee: exact, as in `SISAClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from letheon import SISARegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = SISARegressor(Ridge(), n_shards=3, random_state=0).fit(X, y)
    >>> model.forget([7]).rebuilt
    {'shards': 1, 'stages': 1}
    """

    _is_classifier: ClassVar[bool] = False
    _parameter_rules: ClassVar[Rules] = {"aggregation": OneOf(("mean", "median"))}

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the mean or median of the shards' predictions for each row."""
        check_is_fitted(self)
        require_features(self, X)
        return combine_values(self.ensemble_.models, self.aggregation, present_table(X))

    def _prepare_labels(self, y: Any) -> NDArray[Any]:
        target = hold_target(y, as_float=True)
        several_outputs = target.ndim == 2 and target.shape[1] > 1
        return target if several_outputs else column_or_1d(target, warn=True)
