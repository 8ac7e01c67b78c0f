"""Naive retraining: the baseline of every other method (survey, Definitions 3 and 9)."""

from typing import Any, ClassVar, NamedTuple, Self

from sklearn import get_config
from sklearn.base import BaseEstimator, MetaEstimatorMixin, is_regressor
from sklearn.utils import Tags, get_tags
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from letheon import state
from letheon.base import ForgetMixin, Outcome, Removal, locate_in, lock_model
from letheon.data import (
    Ids,
    Rows,
    hold_table,
    hold_target,
    list_orders,
    present_table,
    row_ids,
    table_length,
)
from letheon.guarantee import Guarantee, MethodFacts
from letheon.inner_estimator import (
    add_weights,
    available_from,
    clone_with_seed,
    fix_environment,
    inherit_tags,
    inner_training,
    refuse_nested_files,
    refuse_unencodable,
    remember_features,
    require_encodable,
    slice_weights,
    translate_fit_errors,
    versions_of,
)
from letheon.predictor import EstimatorPredictor, Predictor
from letheon.seeds import Purpose, library_seed, seed_from


class _RetrainedModel(NamedTuple):
    rows: Rows
    estimator: Any


def _inner_estimator(model: "NaiveUnlearner") -> Any:
    """Return the fitted inner estimator, or before `fit` the unfitted one."""
    return vars(model).get("estimator_", model.estimator)


class NaiveUnlearner(ForgetMixin, MetaEstimatorMixin, BaseEstimator):
    r"""Any scikit-learn estimator, made to forget by retraining on the remaining rows.

    This is the removal mechanism of the survey's Definition 3: ``U*(A(D), D, D_u) = A(D \ D_u)``.
    It is simple but slow, and the baseline for every other method. With a transformer as
    `estimator`, it is a step for `letheon.ForgetPipeline` that can forget.

    Parameters
    ----------
    estimator : estimator
        Classifier, regressor or transformer. Every `random_state` in it is derived from `seed_`.
    random_state : int, RandomState, Generator or None, default=None
        Seed of everything random. None draws 128 bits from the operating system.

    Attributes
    ----------
    estimator_ : estimator
        The fitted estimator.
    seed_ : int
        128 bits; ``random_state=model.seed_`` gives the same model on the same rows.
    rows_ : Rows
        The remaining training rows. A saved model is personal data.
    ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    Notes
    -----
    Guarantee: exact, for requests that do not depend on the model (oblivious), against an observer
    of the latest model. After any sequence of `forget` and `learn` the model has the bytes of a
    fresh `fit` on the remaining rows, with the same seed, library versions and CPU kernel.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from letheon import NaiveUnlearner
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NaiveUnlearner(LogisticRegression(max_iter=500), random_state=0).fit(X, y)
    >>> model.forget([3, 17]).n_rows
    2
    >>> model.n_rows_
    148
    """

    facts: ClassVar[MethodFacts] = MethodFacts(
        method="naive",
        applicability="any estimator whose state has canonical bytes",
        exact=True,
        strength="strong",
        efficiency_parameters=(),
        certifiability_parameters=(),
        requests="oblivious",
        releases="latest-only",
        state_holds_rows=True,
        definition_name="naive",
        families=("any",),
        tasks=("classification", "regression"),
        certificate="exact",
        batches=True,
    )

    estimator_: Any
    rows_: Rows
    seed_: int
    config_: dict[str, Any]

    def __init__(self, estimator: Any, *, random_state: Any = None) -> None:
        self.estimator = estimator
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, ids: Any = None, sample_weight: Any = None) -> Self:
        """Fit on all rows and store them.

        Parameters
        ----------
        X : array-like, sparse, pandas or polars frame, or a list of texts
            Training rows.
        y : array-like, optional
            Labels or targets, if the estimator needs them.
        ids : sequence of int or of str, optional
            Id of each row; may repeat. Default ``0..n-1``.
        sample_weight : array-like of shape (n_rows,), optional
            Weights of the rows, if the estimator accepts them. A row with weight 0 is omitted.

        Returns
        -------
        self
        """
        with lock_model(self):
            seed = seed_from(self.random_state)
            refuse_nested_files(self.estimator)
            config = get_config()
            rows = self._collect_rows(X, y, ids, sample_weight)
            refuse_unencodable(self.estimator, rows, seed, config)
            estimator = self._train_estimator(rows, seed, config)
            remember_features(self, X)
            vars(self).pop("tuning_", None)
            self._install_model(rows, estimator, seed, config)
        return self

    def learn(self, X: Any, y: Any = None, *, ids: Any, sample_weight: Any = None) -> Self:
        """Add rows and retrain; a known id keeps its earlier rows.

        Parameters
        ----------
        X, y
            As in `fit`, with the same columns.
        ids : sequence of int or of str
            Id of each new row.
        sample_weight : array-like of shape (n_rows,), optional
            As in `fit`; required if `fit` had weights.

        Returns
        -------
        self
        """
        return self._learn_rows(ids, lambda: self._prepare_learn(X, y, ids, sample_weight))

    @available_from(_inner_estimator)
    def predict(self, X: Any) -> Any:
        """Return the predictions of the fitted estimator for the rows in X."""
        check_is_fitted(self)
        return self.estimator_.predict(present_table(X))

    @available_from(_inner_estimator)
    def predict_proba(self, X: Any) -> Any:
        """Return the class probabilities of the fitted estimator for the rows in X."""
        check_is_fitted(self)
        return self.estimator_.predict_proba(present_table(X))

    @available_from(_inner_estimator)
    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithms of the class probabilities of the fitted estimator."""
        check_is_fitted(self)
        return self.estimator_.predict_log_proba(present_table(X))

    @available_from(_inner_estimator)
    def decision_function(self, X: Any) -> Any:
        """Return the decision values of the fitted estimator for the rows in X."""
        check_is_fitted(self)
        return self.estimator_.decision_function(present_table(X))

    @available_from(_inner_estimator)
    def transform(self, X: Any) -> Any:
        """Return the rows in X, transformed by the fitted estimator."""
        check_is_fitted(self)
        return self.estimator_.transform(present_table(X))

    @available_from(_inner_estimator)
    def inverse_transform(self, X: Any) -> Any:
        """Return the rows in X, transformed back by the fitted estimator."""
        check_is_fitted(self)
        return self.estimator_.inverse_transform(present_table(X))

    @available_from(_inner_estimator)
    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the columns that `transform` returns."""
        check_is_fitted(self)
        return self.estimator_.get_feature_names_out(input_features)

    @available_from(_inner_estimator)
    def fit_transform(self, X: Any, y: Any = None, *, ids: Any = None) -> Any:
        """Fit the estimator and return the transformed training rows."""
        return self.fit(X, y, ids=ids).transform(X)

    @available_from(_inner_estimator)
    def score(self, X: Any, y: Any = None) -> float:
        """Return the score of the fitted estimator on X and y, as its own `score` defines it."""
        check_is_fitted(self)
        return float(self.estimator_.score(present_table(X), y))

    @property
    def classes_(self) -> Any:
        """Remaining labels, sorted."""
        check_is_fitted(self)
        return self.estimator_.classes_

    @property
    def n_rows_(self) -> int:
        """Number of remaining rows."""
        check_is_fitted(self)
        return len(self.rows_)

    def _collect_rows(self, X: Any, y: Any, ids: Any, sample_weight: Any = None) -> Rows:
        if y is None and get_tags(self.estimator).target_tags.required:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        table = hold_table(X)
        target = None if y is None else hold_target(y, as_float=is_regressor(self.estimator))
        if target is not None:
            check_consistent_length(table, target)
        state.ensure_supported((table, target))
        rows = Rows(table, target, row_ids(ids, table_length(table)))
        return add_weights(self.estimator, rows, sample_weight)

    def _train_estimator(self, rows: Rows, seed: int, config: dict[str, Any]) -> Any:
        estimator = clone_with_seed(self.estimator, seed, Purpose.RETRAIN)
        with fix_environment(config, library_seed(seed, Purpose.RETRAIN)), inner_training("it"):
            weights = slice_weights(rows, 0, len(rows))
            trained = estimator.fit(*rows.slice(0, len(rows)), **weights)
        require_encodable(trained, self.estimator, rows)
        return trained

    def _install_model(self, rows: Rows, estimator: Any, seed: int, config: dict[str, Any]) -> None:
        # One call, so that a concurrent predict never uses a mixture.
        vars(self).update(
            rows_=rows,
            estimator_=estimator,
            seed_=seed,
            config_=config,
            **self._remember_settings(),
        )

    def _describe_environment(self) -> dict[str, str]:
        return super()._describe_environment() | versions_of(self.estimator)

    def _get_ids(self) -> Ids:
        return self.rows_.ids

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(
            kind="exact",
            reference="Mercuri et al. 2022, Definition 3",
            requests=self.facts.requests,
            releases=self.facts.releases,
            assumptions=("seed-independent-of-requests", "same-libraries-and-cpu-kernel"),
        )

    def _make_predictor(self, claim: Guarantee) -> Predictor:
        return EstimatorPredictor.of(self.estimator_, claim)

    def _locate_rows(self, ids: Ids) -> Removal:
        return locate_in(self.rows_, ids)

    def _prepare(self, removal: Removal) -> _RetrainedModel:
        rows = self.rows_.without(removal.where)
        with translate_fit_errors():
            return _RetrainedModel(rows, self._train_estimator(rows, self.seed_, self.config_))

    def _prepare_learn(self, X: Any, y: Any, ids: Any, sample_weight: Any) -> _RetrainedModel:
        added = self._collect_rows(X, y, ids, sample_weight)
        rows = self.rows_.concat(added, list_orders(X))
        return _RetrainedModel(rows, self._train_estimator(rows, self.seed_, self.config_))

    def _commit(self, plan: _RetrainedModel) -> Outcome:
        self._install_model(plan.rows, plan.estimator, self.seed_, self.config_)
        return Outcome(work=1.0, rebuilt={"models": 1})

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of the inner estimator."""
        tags = inherit_tags(super().__sklearn_tags__(), self.estimator)
        inner = get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.transformer_tags = inner.transformer_tags
        return tags
