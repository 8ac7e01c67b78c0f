"""Naive Bayes classifiers that forget: sums per class are integers, probabilities are lazy."""

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from letheon.base import KeywordScoreMixin, lock_model
from letheon.data import Frame, hold_table, numbers_of
from letheon.delta import Block, Delta, DeltaMixin, RowSource, StepPlan, Table
from letheon.exceptions import InvalidParameterError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.predictor import AffineScores, Predictor, binarize
from letheon.removal import Cache
from letheon.sums._class_sums import (
    UNIT,
    CategoryScores,
    CategorySums,
    ClassRows,
    ClassSums,
    FeatureSums,
    Floats,
    Integers,
    as_codes,
    as_weights,
    count_classes,
    require_room,
    require_weight,
    union_labels,
)
from letheon.sums._model import LabelsMixin, ScoresMixin, make_predictor
from letheon.validation import Boolean, Interval, OrNone, Rules

_SMALLEST_ALPHA = 1e-10


def _to_numbers(name: str, value: Any) -> Floats:
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(f"{name}={value!r}; expected numbers") from error


class _Parameters(NamedTuple):
    """What predictions need: labels, and the logarithms that the class computes."""

    classes: NDArray[Any]
    prior: Floats
    features: Any


def _make_property(name: str, doc: str) -> Any:
    """Return a property that reads the parameters of the current model."""
    return property(lambda model: getattr(model._load_parameters(), name), doc=doc)


class _NaiveBayes(
    ScoresMixin, LabelsMixin, KeywordScoreMixin, ClassifierMixin, DeltaMixin, BaseEstimator
):
    """Base class: a subclass computes logarithms from sums, and scores from logarithms."""

    _sums_type: ClassVar[type[ClassSums]] = FeatureSums
    _is_positive: ClassVar[bool] = True
    _parameter_rules: ClassVar[Rules] = {"force_alpha": Boolean(), "fit_prior": Boolean()}

    facts: ClassVar[MethodFacts] = MethodFacts(
        method="naive-bayes",
        applicability="naive Bayes classification",
        exact=True,
        strength="strong",
        definition_name="naive-bayes",
        families=("linear",),
        tasks=("classification",),
        batches=True,
        replay="bitwise",
    )

    sums_: Any
    cache_: Cache[_Parameters]
    alpha: Any
    force_alpha: bool
    fit_prior: bool
    class_prior: Any
    # Nothing is random.
    random_state: Any = 0

    def fit(self, X: Any, y: Any, *, ids: Any = None, sample_weight: Any = None) -> Self:
        """Count all rows and store them.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_features)
            Training rows.
        y : array-like of shape (n_rows,)
            Labels.
        ids : sequence of int or of str, optional
            Id of each row; may repeat. Default ``0..n-1``.
        sample_weight : array-like of shape (n_rows,), optional
            Weights of the rows.

        Returns
        -------
        self
        """
        return self._fit_table(X, y, ids, as_weights(sample_weight))

    def learn(self, X: Any, y: Any, *, ids: Any, sample_weight: Any = None) -> Self:
        """Add rows; a known id keeps its earlier rows. `sample_weight` as in `fit`."""
        return self._learn_table(X, y, ids, as_weights(sample_weight))

    def predict_joint_log_proba(self, X: Any) -> Floats:
        """Return ``log P(x, class)`` of each row, up to a constant of the row."""
        return self._score_classes(X)[1]

    class_log_prior_ = _make_property("prior", "Logarithm of the probability of each class.")
    feature_log_prob_ = _make_property(
        "features", "Logarithms of the probabilities of the features."
    )

    @property
    def class_count_(self) -> Floats:
        """Sum of the weights of each class."""
        check_is_fitted(self)
        return np.asarray(self.sums_.weights / UNIT)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        alpha = _to_numbers("alpha", self.alpha)
        if alpha.ndim > 1 or not (alpha >= 0).all():
            raise InvalidParameterError(f"alpha={self.alpha!r}; expected numbers of at least 0")
        if self.class_prior is not None:
            prior = _to_numbers("class_prior", self.class_prior)
            if prior.ndim != 1 or not (prior >= 0).all():
                raise InvalidParameterError(
                    f"class_prior={self.class_prior!r}; expected one number of at least 0 per class"
                )

    def _convert_table(self, X: Any, *, copy: bool) -> Table:
        table = check_array(X, accept_sparse="csr", dtype=np.float64, order="C")
        return self._require_values(hold_table(table) if copy else table)

    def _require_values(self, X: Table) -> Any:
        """Return a table of allowed numbers, or raise."""
        if isinstance(X, Frame):
            X = numbers_of(X)
        data = X.data if sp.issparse(X) else X
        if self._is_positive and data.size and data.min() < 0:
            raise ValueError(f"Negative values in data passed to {type(self).__name__} (input X).")
        return X

    def _read_block(self, block: Block, sign: int, labels: NDArray[Any]) -> ClassRows:
        X = self._require_values(block.X)
        if not np.isfinite(X.data if sp.issparse(X) else X).all():
            raise ValueError("Input X contains NaN or infinity.")
        codes = np.searchsorted(labels, _labels_of(block))
        return ClassRows(sign, codes, self._prepare_values(X), block.weights)

    def _prepare_values(self, X: Any) -> Any:
        """Return the values that are summed."""
        return X

    def _count(self, source: RowSource, seed: int) -> tuple[Any, Any]:  # noqa: ARG002
        labels = union_labels([_labels_of(block) for block in source.blocks()])
        sums: ClassSums | None = None
        for block in source.blocks():
            part = self._read_block(block, 1, labels)
            if sums is None:
                sums = self._sums_type(labels, part.X.shape[1])
            require_room(sums, [part])
            sums.add(part)
        assert sums is not None
        require_weight(sums, ())
        self._require_lengths(len(labels), sums.n_columns)
        return sums, ()

    def _require_lengths(self, n_classes: int, n_columns: int) -> None:
        """Raise for parameters with another number of entries than classes or columns."""
        if self.class_prior is not None and len(self.class_prior) != n_classes:
            raise ValueError("Number of priors must match number of classes.")
        if np.ndim(self.alpha) and len(self.alpha) != n_columns:
            raise ValueError("When alpha is an array, it should contains `n_features`")

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        sums: ClassSums = self.sums_
        layout = np.arange(sums.n_columns) if delta.layout is None else delta.layout
        changed = np.union1d(delta.columns, np.flatnonzero(layout < 0)).astype(np.int64)
        if 2 * len(changed) > len(layout):
            return self._rebuild_plan(delta)
        blocks = list(delta.iter_signed())
        labels = union_labels([sums.classes, *(_labels_of(block) for _, block in blocks)])
        parts = [self._read_block(block, sign, labels) for sign, block in blocks]
        new = None
        if len(labels) == len(sums.classes) and not len(changed) and delta.layout is None:
            require_room(sums, parts)
        else:
            new = sums.__copy__()
            new.set_labels(labels)
            source = (self._read_block(block, 1, labels) for block in delta.source.blocks())
            new.change_columns(parts, delta.layout, changed, source)
        require_weight(sums, parts)
        self._require_lengths(count_classes(sums, labels, parts), len(layout))

        def apply() -> None:
            if new is not None:
                self.sums_ = new
            else:
                for part in parts:
                    sums.add(part)
            self.sums_.drop_empty_classes()

        n_rows = sum(len(part.codes) for part in parts)
        return StepPlan(published=(), apply=apply, work=min(n_rows / sums.n_rows.sum(), 1.0))

    def _apply_plan(self, plan: StepPlan) -> None:
        # A reader that computes probabilities must not see sums that change.
        with lock_model(self):
            super()._apply_plan(plan)
            self.n_features_in_ = self.sums_.n_columns

    def _after_change(self) -> None:
        self.cache_ = Cache()

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(kind="exact", reference="sums of integers per class")

    def _load_parameters(self) -> _Parameters:
        check_is_fitted(self)
        learned = self.cache_.content
        if learned is None:
            with lock_model(self):
                sums = self.sums_
                learned = _Parameters(
                    sums.classes.copy(), self._log_prior(sums), self._log_features(sums)
                )
                self.cache_.content = learned
        return learned

    def _log_prior(self, sums: ClassSums) -> Floats:
        if self.class_prior is not None:
            return np.asarray(np.log(np.asarray(self.class_prior, float)))
        if not self.fit_prior:
            return np.full(len(sums.classes), -np.log(float(len(sums.classes))))
        with np.errstate(divide="ignore"):
            weights = sums.weights / UNIT
            return np.asarray(np.log(weights) - np.log(weights.sum()))

    def _smoothing(self) -> Floats:
        alpha = np.asarray(self.alpha, float)
        if alpha.min() < _SMALLEST_ALPHA and not self.force_alpha:
            return np.asarray(np.maximum(alpha, _SMALLEST_ALPHA))
        return alpha

    def _log_features(self, sums: Any) -> Any:
        """Return the logarithms of the probabilities of the features."""
        raise NotImplementedError

    def _score_classes(self, X: Any) -> tuple[NDArray[Any], Floats]:
        learned = self._load_parameters()
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        scores = self._make_scores(learned)
        return learned.classes, scores.compute(self._require_values(X))

    def _make_scores(self, learned: _Parameters) -> Any:
        """Return the function from rows to joint log probabilities of the classes."""
        return AffineScores(learned.features, (learned.prior,))

    def _make_predictor(self, claim: Guarantee) -> Predictor:
        return make_predictor(self, self._make_scores(self._load_parameters()), "log-joint", claim)

    def __sklearn_tags__(self) -> Tags:
        """Return the tags: sparse rows are accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = self._is_positive
        assert tags.classifier_tags is not None
        tags.classifier_tags.poor_score = True
        return tags


def _labels_of(block: Block) -> NDArray[Any]:
    if block.y is None:
        raise ValueError(
            "a naive Bayes classifier requires y to be passed, but the target y is None"
        )
    return block.y


class MultinomialNB(_NaiveBayes):
    """Naive Bayes classifier for counts, or for tf-idf weights.

    Parameters
    ----------
    alpha : float or array-like of shape (n_features,), default=1.0
        Smoothing, in addition to the counts.
    force_alpha : bool, default=True
        If False, an alpha below 1e-10 becomes 1e-10.
    fit_prior, class_prior : bool, default=True, and array-like of shape (n_classes,), optional
        Whether to learn the probabilities of the classes; or the probabilities.

    Attributes
    ----------
    classes_ : ndarray
        Labels of the remaining rows, sorted.
    class_count_, feature_count_ : ndarray
        Sums of weights and of weighted values of each class.
    class_log_prior_, feature_log_prob_ : ndarray
        Logarithms that are computed from the sums when they are needed.

    Notes
    -----
    Guarantee: exact. Values are rounded to multiples of 2**-20, so that sums are exact. The digest
    covers the sums; logarithms may differ in the last digit on another machine.

    Examples
    --------
    >>> from letheon.sums import MultinomialNB
    >>> model = MultinomialNB().fit([[3, 0], [0, 2], [1, 2]], ["a", "b", "b"], ids=[1, 2, 3])
    >>> receipt = model.forget([3])
    >>> model.feature_count_.tolist()
    [[3.0, 0.0], [0.0, 2.0]]
    >>> model.predict([[1, 0]])
    array(['a'], dtype='<U1')
    """

    def __init__(
        self,
        *,
        alpha: Any = 1.0,
        force_alpha: bool = True,
        fit_prior: bool = True,
        class_prior: Any = None,
    ) -> None:
        self.alpha = alpha
        self.force_alpha = force_alpha
        self.fit_prior = fit_prior
        self.class_prior = class_prior

    @property
    def feature_count_(self) -> Floats:
        """Sum of the weighted values of each class and column."""
        check_is_fitted(self)
        return np.asarray(self.sums_.values / UNIT)

    def _log_features(self, sums: FeatureSums) -> Floats:
        counts = sums.values / UNIT + self._smoothing()
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(counts) - np.log(counts.sum(axis=1, keepdims=True)))


class ComplementNB(MultinomialNB):
    """Naive Bayes classifier from the counts of all other classes, for unequal classes.

    Parameters
    ----------
    alpha, force_alpha, fit_prior, class_prior
        See `MultinomialNB`. Probabilities of classes matter only if there is one class.
    norm : bool, default=False
        Whether to divide the weights of a class by their sum.

    Attributes
    ----------
    classes_, class_count_, feature_count_, class_log_prior_, feature_log_prob_
        See `MultinomialNB`.

    Notes
    -----
    Guarantee: exact; see `MultinomialNB`.

    Examples
    --------
    >>> from letheon.sums import ComplementNB
    >>> model = ComplementNB().fit([[3, 0], [0, 2], [1, 2]], ["a", "b", "b"])
    >>> model.predict([[1, 0]])
    array(['a'], dtype='<U1')
    """

    _parameter_rules: ClassVar[Rules] = {"norm": Boolean()}

    def __init__(
        self,
        *,
        alpha: Any = 1.0,
        force_alpha: bool = True,
        fit_prior: bool = True,
        class_prior: Any = None,
        norm: bool = False,
    ) -> None:
        super().__init__(
            alpha=alpha, force_alpha=force_alpha, fit_prior=fit_prior, class_prior=class_prior
        )
        self.norm = norm

    @property
    def feature_all_(self) -> Floats:
        """Sum of the weighted values of each column."""
        check_is_fitted(self)
        return np.asarray(self.sums_.values.sum(axis=0) / UNIT)

    def _log_features(self, sums: FeatureSums) -> Floats:
        others = sums.values.sum(axis=0) - sums.values
        counts = others / UNIT + self._smoothing()
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(counts / counts.sum(axis=1, keepdims=True))
            return np.asarray(logs / logs.sum(axis=1, keepdims=True) if self.norm else -logs)

    def _make_scores(self, learned: _Parameters) -> AffineScores:
        is_alone = len(learned.classes) == 1
        return AffineScores(learned.features, (learned.prior,) if is_alone else ())


class BernoulliNB(MultinomialNB):
    """Naive Bayes classifier for columns that are true or false.

    Parameters
    ----------
    alpha, force_alpha, fit_prior, class_prior
        See `MultinomialNB`.
    binarize : float or None, default=0.0
        Larger values are true. None: X consists of zeros and ones.

    Attributes
    ----------
    classes_, class_count_, feature_count_, class_log_prior_, feature_log_prob_
        See `MultinomialNB`.

    Notes
    -----
    Guarantee: exact; see `MultinomialNB`.

    Examples
    --------
    >>> from letheon.sums import BernoulliNB
    >>> model = BernoulliNB().fit([[1, 0], [0, 1], [1, 1]], [0, 1, 1])
    >>> model.predict([[1, 0]])
    array([0])
    """

    _is_positive: ClassVar[bool] = False
    _parameter_rules: ClassVar[Rules] = {"binarize": OrNone(Interval())}

    def __init__(
        self,
        *,
        alpha: Any = 1.0,
        force_alpha: bool = True,
        binarize: float | None = 0.0,
        fit_prior: bool = True,
        class_prior: Any = None,
    ) -> None:
        super().__init__(
            alpha=alpha, force_alpha=force_alpha, fit_prior=fit_prior, class_prior=class_prior
        )
        self.binarize = binarize

    def _prepare_values(self, X: Any) -> Any:
        return X if self.binarize is None else binarize(X, self.binarize)

    def _log_features(self, sums: FeatureSums) -> Floats:
        alpha = self._smoothing()
        counts, totals = sums.values / UNIT + alpha, sums.weights[:, None] / UNIT + 2 * alpha
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(counts) - np.log(totals))

    def _make_scores(self, learned: _Parameters) -> AffineScores:
        with np.errstate(divide="ignore", invalid="ignore"):
            absent = np.log(1 - np.exp(learned.features))
            offsets = learned.prior, absent.sum(axis=1)
            return AffineScores(learned.features - absent, offsets, self.binarize)


class CategoricalNB(_NaiveBayes):
    """Naive Bayes classifier for categories, encoded as 0, 1, 2, ...

    Parameters
    ----------
    alpha, force_alpha, fit_prior, class_prior
        See `MultinomialNB`; alpha is a number.
    min_categories : int or array-like of shape (n_features,), optional
        Smallest number of categories of each column. By default it is the largest code plus one
        among the remaining rows.

    Attributes
    ----------
    classes_, class_count_, class_log_prior_
        See `MultinomialNB`.
    category_count_, feature_log_prob_ : list of ndarray
        For each column: sums of weights, and logarithms, by class and category.
    n_categories_ : ndarray of int64
        Number of categories of each column.

    Notes
    -----
    Guarantee: exact; see `MultinomialNB`. If the last row with the largest code of a column is
    forgotten, this category is removed.

    Examples
    --------
    >>> from letheon.sums import CategoricalNB
    >>> model = CategoricalNB().fit([[0, 1], [1, 0], [1, 2]], [0, 1, 1], ids=[1, 2, 3])
    >>> receipt = model.forget([3])
    >>> model.n_categories_
    array([2, 2])
    """

    _sums_type: ClassVar[type[ClassSums]] = CategorySums

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        force_alpha: bool = True,
        fit_prior: bool = True,
        class_prior: Any = None,
        min_categories: Any = None,
    ) -> None:
        self.alpha = alpha
        self.force_alpha = force_alpha
        self.fit_prior = fit_prior
        self.class_prior = class_prior
        self.min_categories = min_categories

    @property
    def n_categories_(self) -> Integers:
        """Number of categories of each column."""
        check_is_fitted(self)
        return self._count_categories(self.sums_)

    @property
    def category_count_(self) -> list[Floats]:
        """Sums of weights of each column, by class and category."""
        check_is_fitted(self)
        return self._weigh_categories(self.sums_)

    def _count_categories(self, sums: CategorySums) -> Integers:
        widths = np.array([len(total) for total in sums.totals], np.int64)
        return np.maximum(widths, 0 if self.min_categories is None else self.min_categories)

    def _weigh_categories(self, sums: CategorySums) -> list[Floats]:
        widths = self._count_categories(sums).tolist()
        return [
            np.pad(table, ((0, 0), (0, width - table.shape[1]))) / UNIT
            for table, width in zip(sums.tables, widths, strict=True)
        ]

    def _require_lengths(self, n_classes: int, n_columns: int) -> None:
        super()._require_lengths(n_classes, n_columns)
        if np.ndim(self.alpha):
            raise ValueError("alpha is an array; expected a number")
        least = np.asarray(0 if self.min_categories is None else self.min_categories)
        if least.dtype.kind not in "iu":
            raise ValueError(f"'min_categories' should have integral type. Got {least.dtype}")
        if least.ndim and least.shape != (n_columns,):
            raise ValueError(
                f"'min_categories' should have shape ({n_columns},) when an array-like is "
                f"provided. Got {least.shape} instead."
            )

    def _prepare_values(self, X: Any) -> Any:
        return as_codes(X)

    def _log_features(self, sums: CategorySums) -> list[Floats]:
        alpha = self._smoothing()
        logs = []
        for table in self._weigh_categories(sums):
            counts = table + alpha
            with np.errstate(divide="ignore"):
                logs.append(np.log(counts) - np.log(counts.sum(axis=1, keepdims=True)))
        return logs

    def _make_scores(self, learned: _Parameters) -> CategoryScores:
        return CategoryScores(learned.prior, tuple(learned.features))

    def __sklearn_tags__(self) -> Tags:
        """Return the tags: dense rows of categories."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.input_tags.categorical = True
        return tags
