"""Base classes of the linear models: input, labels, predictions and retraining."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_consistent_length, column_or_1d

from letheon.base import (
    ForgetMixin,
    KeywordScoreMixin,
    Outcome,
    Removal,
    lock_model,
    require_fitted,
    warn_all,
)
from letheon.data import SlotRows, hold_labels, hold_target, row_ids
from letheon.exceptions import AssumptionError, GuaranteeWarning
from letheon.guarantee import Guarantee, MethodFacts
from letheon.inner_estimator import remember_features, require_features
from letheon.linear._calibrate import ReleaseGrid
from letheon.linear._model import NORM_ROUNDING, Design, Linear, PublishedModel
from letheon.linear._problem import (
    NO_ROWS,
    FitProblem,
    Floats,
    Logistic,
    Loss,
    Positions,
    Softmax,
    row_norms,
)
from letheon.linear._solve import Solution
from letheon.noise import NoiseSource, SecretArray
from letheon.parallel import one_thread
from letheon.removal import Change, Counts, Opaque, ProbabilitiesMixin, RowsMixin, TrainingRows
from letheon.seeds import seed_from
from letheon.validation import (
    POSITIVE,
    Interval,
    OneOf,
    OrNone,
    Rules,
    Whole,
    check_parameter,
    require_target,
    validate_parameters,
)


@dataclass(frozen=True, eq=False, repr=False)
class FitOutcome(Opaque):
    """Result of training: fitted attributes, floating-point operations, warnings, iterations."""

    attributes: dict[str, Any]
    flops: float
    warnings: tuple[Warning, ...] = ()
    n_iter: int = 1


# Default of `forget`: use the batch size of the model.
AS_FITTED = "as fitted"
# Facts shared by the methods of this package.
linear_facts = partial(
    MethodFacts, exact=False, strength="strong", families=("linear",), batches=True
)
REGULARISERS = {"per_sample": "regulariser-per-sample", "total": "regulariser-in-total"}
NOISE_SCALE = Interval(0, expected="the scale of the noise, 0 (none) or a positive number")


@dataclass(kw_only=True, eq=False, repr=False)
class LinearParameters:
    """Parameters of all linear models, with their defaults."""

    l2: float = 1e-3
    reg: str = "per_sample"
    fit_intercept: bool = True
    rows: str = "keep"
    row_norm: float | None = None
    noise_seed: int | None = None
    random_state: Any = None


@dataclass(kw_only=True, eq=False, repr=False)
class CertifiedParameters(LinearParameters):
    """Parameters of the linear models with a certified guarantee."""

    epsilon: float = 1.0
    delta: float = 1e-4
    tol: float = 1e-8
    max_iter: int = 1000
    if_unproved: str = "raise"


class LinearBase(LinearParameters, RowsMixin, BaseEstimator):
    """A regularised linear model that stores its rows and publishes `model_`."""

    # The cost of training is not part of what was learned.
    _not_digested: ClassVar[frozenset[str]] = ForgetMixin._not_digested | {
        "training_flops_",
        "n_iter_",
    }

    _parameter_rules: ClassVar[Rules] = {
        "l2": Interval(
            0,
            closed="neither",
            why="without a regulariser the problem is not strongly convex (on separable classes it "
            "has no optimum), and no bound holds",
        ),
        "reg": OneOf(("per_sample", "total")),
        "multi_class": OneOf(("ovr", "softmax")),
        "if_unproved": OneOf(("raise", "downgrade")),
        "tol": POSITIVE,
        "max_iter": Whole(1),
        "sigma": NOISE_SCALE,
        "epsilon": POSITIVE,
        "delta": Interval(0, 1, closed="left"),
        "batch_size": OrNone(Whole(1)),
    }

    tol: float
    max_iter: int
    if_unproved: str
    epsilon: float
    delta: float
    sigma: Any

    model_: Linear
    source_: NoiseSource
    release_salt_: str
    downgraded_: str | None
    training_flops_: float
    n_iter_: int
    seed_: int
    n_features_in_: int

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Self:
        """Train on all rows and store them.

        Parameters
        ----------
        X : array-like, sparse matrix, pandas or polars frame of shape (n_rows, n_columns)
            Training rows, stored as float64, or as float32 if given as float32.
        y : array-like of shape (n_rows,)
            Class labels, or targets of a regression.
        ids : sequence of int or of str, optional
            Id of the person that each row belongs to; ids may repeat. Default: ``0..n-1``.

        Returns
        -------
        self
        """
        with lock_model(self):
            self._check_settings()
            seed, source = seed_from(self.random_state), NoiseSource(self.noise_seed)
            training = self._prepare_rows(X, y, ids)
            with one_thread():
                fit = self._train(training, source, seed)
            remember_features(self, X)
            vars(self).pop("tuning_", None)
            # One call, so that a concurrent predict never sees a partial update.
            vars(self).update(
                attributes_of(training, source, fit), seed_=seed, **self._remember_settings()
            )
        warn_all(fit.warnings)
        return self

    @property
    def guarantee_(self) -> Guarantee:
        """Guarantee of the current model.

        Raises `ChangedParametersError` after `set_params`, because the guarantee holds for the
        parameters used by `fit`.
        """
        require_fitted(self)
        self._require_same_parameters()
        return super().guarantee_

    def publish(self) -> PublishedModel:
        """Return a model for publication, with coefficients and guarantee.

        The published model contains no rows, no secret noise and no account.
        """
        published = self.predictor()
        assert isinstance(published, PublishedModel)
        return published

    def _make_predictor(self, claim: Guarantee) -> PublishedModel:
        names = vars(self).get("feature_names_in_")
        return PublishedModel(self.model_, claim, None if names is None else tuple(names))

    @property
    def noise_commitment_(self) -> str | None:
        """SHA-256 of `release_salt_` and the noise of the release, counted in steps of its grid.

        None if there is no noise on a grid, or if the parameters before noise are not kept.
        Certificates state this commitment, and an auditor who has the model file can check it.
        """
        require_fitted(self)
        grid, weights = self._release_grid(), self._weights_before_noise()
        if grid is None or weights is None:
            return None
        return grid.commit_noise(np.asarray(self.model_.weights), weights, self.release_salt_)

    def _release_grid(self) -> ReleaseGrid | None:
        """Return the grid on which parameters are released; None without noise on a grid."""
        return None

    def _weights_before_noise(self) -> Floats | None:
        """Return the parameters of the last release before noise; None if they are not kept."""
        return None

    @property
    def coef_(self) -> Floats:
        """Coefficients of shape (n_scores, n_columns).

        There is one score for two classes or a regression, otherwise one score per class.
        """
        require_fitted(self)
        return self.model_.coef

    @property
    def intercept_(self) -> Floats:
        """Intercepts of shape (n_scores,); zeros if `fit_intercept` is False."""
        require_fitted(self)
        return self.model_.intercept

    @property
    def row_norm_(self) -> float:
        """Declared bound on the norms of the rows, or the largest norm of a remaining row."""
        require_fitted(self)
        declared = self.model_.design.row_norm
        return float(row_norms(self.rows_.X).max()) if declared is None else float(declared)

    @abstractmethod
    def _train(self, training: TrainingRows, source: NoiseSource, seed: int) -> FitOutcome:
        """Train from scratch and return the outcome.

        Its `attributes` must include `model_` and `downgraded_`.
        """

    def exact_residual(self) -> float:
        """Return the norm of the gradient at the published parameters, on the remaining rows.

        This is the gradient of the sum of losses plus the regulariser; computing it takes one pass
        over the rows. Noise on the parameters enlarges the gradient, as it would after retraining.
        """
        require_fitted(self)
        with lock_model(self), one_thread():
            gradient = self._build_problem(self._training_rows()).gradient_at(self.model_.weights)
        return float(np.linalg.norm(gradient))

    @abstractmethod
    def _prepare_target(self, y: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return (targets, None) for a regression, or (class codes, classes) for a classifier."""

    @abstractmethod
    def _encode_target(self, y: Any) -> NDArray[Any]:
        """Return targets or class codes; raise `ValueError` for a class not in the model."""

    @abstractmethod
    def _build_loss(self, classes: NDArray[Any] | None) -> Loss:
        """Return the loss for these classes; `classes` is None for a regression."""

    def _check_settings(self) -> None:
        """Raise `ValueError` if a parameter, or a combination of parameters, is not valid.

        `Design` checks `rows` and `row_norm`; `NoiseSource` checks the seed of the noise.
        """
        validate_parameters(self)

    def _build_design(self) -> Design:
        return Design(bool(self.fit_intercept), self.rows, self.row_norm)

    @property
    def _radius_bound(self) -> float | None:
        """The declared bound on the norms of the rows, rounding included; None if not declared."""
        return None if self.row_norm is None else self.row_norm * (1 + NORM_ROUNDING)

    def _prepare_rows(self, X: Any, y: Any, ids: Any) -> TrainingRows:
        require_target(self, y)
        design, (target, classes) = self._build_design(), self._prepare_target(y)
        rows = design.build_rows(X)
        check_consistent_length(rows, target)
        counts = None if classes is None else np.bincount(target, minlength=len(classes))
        return TrainingRows(SlotRows(rows, target, row_ids(ids, len(target))), classes, counts)

    def _build_problem(self, training: TrainingRows, tilt: Floats | None = None) -> FitProblem:
        """Return the optimisation problem for these rows, with the linear term `tilt` if given."""
        rows, loss = training.rows, self._build_loss(training.classes)
        return FitProblem(rows.X, rows.y, loss, len(rows), self.l2, self.reg, tilt)  # type: ignore[arg-type]

    def _build_linear(self, weights: Floats, classes: NDArray[Any] | None) -> Linear:
        return Linear(weights, self._build_design(), classes, self._build_loss(classes).is_joint)

    def _training_rows(self) -> TrainingRows:
        """Return the remaining rows of the fitted model."""
        return TrainingRows(self.rows_, self.model_.classes, self.counts_)

    def _handle_doubts(self, doubts: Iterable[str]) -> tuple[str | None, tuple[Warning, ...]]:
        """Handle reasons why the guarantee is not proved.

        Raise `AssumptionError` if `if_unproved` is "raise"; otherwise return the reasons as text
        and as a warning. Without reasons, return (None, ()).
        """
        reasons = list(doubts)
        if not reasons:
            return None, ()
        if self.if_unproved == "raise":
            raise AssumptionError(
                f"{reasons[0]}. Set if_unproved='downgrade' to keep the model with an empirical "
                "guarantee."
            )
        text = "; ".join(reasons)
        return text, (GuaranteeWarning(f"{text}; the guarantee is now empirical"),)

    def _prepare(self, removal: Removal, **options: Any) -> Change:
        if options.get("batch_size") is not None:
            require_batch_size(options["batch_size"], removal.n_rows)
        counts = self._counts_without(removal.where)
        with self._limit_threads(removal):
            if counts is not None and 0 in counts:
                return self._retrain(removal.where)
            return self._remove_rows(removal, counts, **options)

    def _limit_threads(self, removal: Removal) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return the context in which a request is prepared; by default with one BLAS thread."""
        return one_thread()

    @abstractmethod
    def _remove_rows(self, removal: Removal, counts: Counts, **options: Any) -> Change:
        """Prepare the removal of rows; every class still has rows afterwards.

        `counts` contains the number of remaining rows per class; `options` are the additional
        arguments of `forget`.
        """

    def _retrain(self, positions: Positions) -> Change:
        """Prepare training from scratch without the rows at these positions, with fresh noise."""
        wipe = partial(self.rows_.wipe, positions)
        return self._retrain_on(self._training_rows().without(positions), wipe)

    def _retrain_on(self, training: TrainingRows, *writes: Callable[[], None]) -> Change:
        """Prepare a change that trains from scratch on these rows and wipes the current secrets."""
        source = copy.copy(self.source_)
        fit = self._train(training, source, self.seed_)
        outcome = Outcome(1.0, {"retrains": 1}, fit.warnings)
        return Change(
            attributes_of(training, source, fit), outcome, (*writes, *self._wipe_actions())
        )

    def _wipe_actions(self) -> tuple[Callable[[], None], ...]:
        """Return functions that overwrite the current secrets of the model with zeros."""
        return tuple(value.wipe for value in vars(self).values() if isinstance(value, SecretArray))

    def _retrain_in_place(self) -> Self:
        """Train from scratch on the remaining rows and replace all secrets; implements `settle`."""
        with lock_model(self), one_thread():
            self._require_same_parameters()
            change = LinearBase._retrain(self, NO_ROWS)
            change.commit(self)
        warn_all(change.outcome.warnings)
        return self

    def _relative_work(self, flops: float) -> float:
        """Return the work as a share of the floating-point operations of a retraining."""
        return flops / max(self.training_flops_, 1.0)

    def _check_input(self, X: Any) -> None:
        require_fitted(self)
        require_features(self, X)

    def _in_place_attributes(self) -> tuple[str, ...]:
        """Return the names of attributes whose memory a request overwrites."""
        secrets = [name for name, value in vars(self).items() if isinstance(value, SecretArray)]
        return ("rows_", "source_", "cache_", *secrets)

    @property
    def _can_certify(self) -> bool:
        """Whether the model has noise, and the noise cannot be repeated with a seed."""
        return self.sigma != 0 and self.noise_seed is None

    def _certificate_fields(self, is_proved: bool, spent: float, budget: float) -> dict[str, Any]:
        """Return the fields of a guarantee that depend on its kind.

        Epsilon, delta and the budget are included only if the guarantee is certified.
        """
        if not (self._can_certify and is_proved):
            return {"kind": "empirical"}
        return {
            "kind": "certified",
            "requests": "adaptive",
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "spent": spent,
            "budget": budget,
        }

    def __sklearn_tags__(self) -> Tags:
        """Return the scikit-learn tags: sparse input is accepted, and two fits differ by noise."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.noise_seed is None
        return tags


class LinearClassifier(ProbabilitiesMixin, KeywordScoreMixin, ClassifierMixin, LinearBase):
    """A regularised linear classifier.

    All linear classifiers of letheon inherit from it; their pages explain the parameters.

    Parameters
    ----------
    l2, reg, fit_intercept, rows, row_norm, noise_seed, random_state
        As in `InfluenceClassifier`.

    Examples
    --------
    >>> from letheon import InfluenceClassifier
    >>> model = InfluenceClassifier(random_state=0).fit([[0.0], [1.0], [2.0]], ["a", "a", "b"])
    >>> isinstance(model, LinearClassifier), model.classes_.tolist()
    (True, ['a', 'b'])
    """

    multi_class: str

    @property
    def classes_(self) -> NDArray[Any]:
        """Distinct labels of the remaining rows, sorted."""
        require_fitted(self)
        classes = self.model_.classes
        assert classes is not None
        return classes

    def decision_function(self, X: Any) -> Floats:
        """Return the scores, of shape (n_rows,) for two classes, otherwise (n_rows, n_classes)."""
        self._check_input(X)
        return self.model_.decision_function(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely label of every row."""
        self._check_input(X)
        return self.model_.predict(X)

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities of shape (n_rows, n_classes), in the order of `classes_`."""
        self._check_input(X)
        return self.model_.predict_proba(X)

    def _prepare_target(self, y: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
        labels = hold_labels(y, name=type(self).__name__, regressor="InfluenceRegressor")
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least 2 classes in y, but y has only one "
                f"class: {classes[0]}"
            )
        return codes.astype(np.int64), hold_target(classes)

    def _encode_target(self, y: Any) -> NDArray[Any]:
        labels = hold_labels(y, name=type(self).__name__, regressor="InfluenceRegressor")
        codes = np.minimum(np.searchsorted(self.classes_, labels), len(self.classes_) - 1)
        if (self.classes_[codes] != labels).any():
            raise ValueError(
                f"y has labels that are not in classes_; expected only {self.classes_}"
            )
        return codes.astype(np.int64)

    def _build_loss(self, classes: NDArray[Any] | None) -> Loss:
        assert classes is not None
        n_classes = len(classes)
        if n_classes > 2 and self.multi_class == "softmax":
            return Softmax(n_classes)
        return Logistic(1 if n_classes == 2 else n_classes)


class LinearRegressor(KeywordScoreMixin, RegressorMixin, LinearBase):
    """A regularised linear regression."""

    def predict(self, X: Any) -> Floats:
        """Return the predicted target of every row."""
        self._check_input(X)
        return self.model_.decision_function(X)

    def _prepare_target(self, y: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
        column = column_or_1d(y, warn=True)
        target = check_array(column, ensure_2d=False, dtype=np.float64, input_name="y")
        return np.array(target, np.float64), None

    def _encode_target(self, y: Any) -> NDArray[Any]:
        return self._prepare_target(y)[0]


def attributes_of(training: TrainingRows, source: NoiseSource, fit: FitOutcome) -> dict[str, Any]:
    """Return all fitted attributes by name; attributes of the method replace the shared ones."""
    return {
        "rows_": training.rows,
        "counts_": training.counts,
        "source_": source,
        "training_flops_": fit.flops,
        "n_iter_": fit.n_iter,
        **fit.attributes,
    }


def require_batch_size(batch_size: Any, n_rows: int) -> None:
    """Raise `ValueError` if `batch_size` is not valid for a request that removes `n_rows`."""
    check_parameter("batch_size", batch_size, Whole(1))
    if batch_size > n_rows:
        raise ValueError(
            f"batch_size={batch_size} is larger than the number of rows that this request "
            f"removes, {n_rows}; nothing was changed. Use forget(..., batch_size=None) or a "
            "smaller batch_size"
        )


def convergence_warnings(solution: Solution, tolerance: float) -> tuple[Warning, ...]:
    """Return a tuple with a warning if the solver did not reach the tolerance; empty otherwise."""
    if solution.residual <= tolerance:
        return ()
    text = (
        f"training stopped at a gradient norm of {solution.residual:.3g}, above the tolerance "
        f"of {tolerance:.3g}; increase max_iter, scale the columns or use a larger l2"
    )
    return (ConvergenceWarning(text),)
