"""Naive Bayes classifiers that forget: sums per class are integers, probabilities are lazy."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from letheon.base import KeywordScoreMixin, lock_model
from letheon.data import Frame, hold_labels, hold_table, numbers_of
from letheon.delta import Block, Delta, DeltaMixin, RowSource, StepPlan, Table
from letheon.guarantee import Guarantee, MethodFacts
from letheon.removal import Cache
from letheon.validation import Boolean, Interval, OrNone, Rules, validate_parameters

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# Values and weights are rounded to multiples of 2**-20; whole numbers are exact.
_UNIT = 2.0**20
_LARGEST_SUM = 2.0**62
_SMALLEST_ALPHA = 1e-10


def _round_to_grid(values: Any) -> Integers:
    return np.rint(np.asarray(values) * _UNIT).astype(np.int64)


class _Part(NamedTuple):
    """Rows to add or subtract: their classes, checked table and rounded weights."""

    sign: int
    codes: Integers
    X: Any
    weights: Floats | None

    @property
    def units(self) -> Integers:
        """Weight of each row on the grid."""
        if self.weights is None:
            return np.full(len(self.codes), int(_UNIT), np.int64)
        return _round_to_grid(self.weights)


class ClassSums:
    """Labels, and the number of rows and sum of weights of each; base of both kinds of sums.

    Parameters
    ----------
    labels : ndarray
        Labels of the remaining rows, sorted.
    n_columns : int
        Number of columns.

    Attributes
    ----------
    n_rows : ndarray of int64, shape (n_classes,)
        Number of rows of each class.
    weights : ndarray of int64, shape (n_classes,)
        Sum of the weights of each class, in units of 2**-20.
    """

    def __init__(self, labels: NDArray[Any], n_columns: int) -> None:
        self.labels = labels
        self.n_rows = np.zeros(len(labels), np.int64)
        self.weights = np.zeros(len(labels), np.int64)
        self._start(n_columns)

    @abstractmethod
    def _start(self, n_columns: int) -> None:
        """Set the sums of all columns to zero."""

    @property
    @abstractmethod
    def n_columns(self) -> int:
        """Number of columns."""

    @abstractmethod
    def add_columns(self, part: _Part, columns: Integers | None = None) -> None:
        """Add rows to the sums of some columns, or of all."""

    @abstractmethod
    def move_columns(self, layout: Integers) -> None:
        """Put columns into another order; -1 is a new column without rows."""

    @abstractmethod
    def clear_columns(self, columns: Integers) -> None:
        """Set the sums of some columns to zero."""

    @abstractmethod
    def take_classes(self, places: Integers) -> None:
        """Put classes into another order; -1 is a new class without rows."""

    @abstractmethod
    def bound_sums(self, part: _Part) -> float:
        """Return an upper bound on the largest sum after rows are added."""

    def add(self, part: _Part) -> None:
        """Add or subtract rows."""
        np.add.at(self.n_rows, part.codes, part.sign)
        np.add.at(self.weights, part.codes, part.sign * part.units)
        self.add_columns(part)

    def set_labels(self, labels: NDArray[Any]) -> None:
        """Replace the sorted labels; labels without rows may disappear."""
        places = np.minimum(np.searchsorted(self.labels, labels), len(self.labels) - 1)
        places = np.where(self.labels[places] == labels, places, -1)
        self.labels = labels
        self.n_rows, self.weights = (
            np.where(places < 0, 0, sums[places]) for sums in (self.n_rows, self.weights)
        )
        self.take_classes(places)

    def drop_empty_classes(self) -> None:
        """Remove labels without rows."""
        if not self.n_rows.all():
            self.set_labels(_narrow(self.labels[self.n_rows > 0]))

    def __copy__(self) -> Self:
        new = object.__new__(type(self))
        vars(new).update({name: _copy_value(value) for name, value in vars(self).items()})
        return new

    def __deepcopy__(self, _: Any) -> Self:
        return self.__copy__()


def _copy_value(value: Any) -> Any:
    return [part.copy() for part in value] if isinstance(value, list) else value.copy()


class FeatureSums(ClassSums):
    """Sums of the values of each column for each class.

    Attributes
    ----------
    values : ndarray of int64, shape (n_classes, n_columns)
        Sums of weighted values, in units of 2**-20.
    """

    values: Integers

    def _start(self, n_columns: int) -> None:
        self.values = np.zeros((len(self.labels), n_columns), np.int64)

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return int(self.values.shape[1])

    def add_columns(self, part: _Part, columns: Integers | None = None) -> None:
        """Add rows to the sums of some columns, or of all."""
        X, sign = part.X, part.sign
        if sp.issparse(X):
            X = X if columns is None else X[:, columns]
            rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
            places = X.indices if columns is None else columns[X.indices]
            cells = part.codes[rows] * self.values.shape[1] + places
            np.add.at(self.values.reshape(-1), cells, sign * _weigh(X.data, part, rows))
            return
        where = slice(None) if columns is None else columns
        values = sign * _weigh(X[:, where], part, np.arange(len(X)))
        for code in np.unique(part.codes).tolist():
            self.values[code, where] += values[part.codes == code].sum(axis=0)

    def move_columns(self, layout: Integers) -> None:
        """Put columns into another order; -1 is a new column without rows."""
        self.values = np.take(self.values, layout, axis=1)
        self.values[:, layout < 0] = 0

    def clear_columns(self, columns: Integers) -> None:
        """Set the sums of some columns to zero."""
        self.values[:, columns] = 0

    def take_classes(self, places: Integers) -> None:
        """Put classes into another order; -1 is a new class without rows."""
        self.values = self.values[places]
        self.values[places < 0] = 0

    def bound_sums(self, part: _Part) -> float:
        """Return an upper bound on the largest sum after rows are added."""
        X = part.X
        data = X.data if sp.issparse(X) else X
        largest = float(np.abs(data).max(initial=0.0))
        heaviest = 1.0 if part.weights is None else float(part.weights.max(initial=0.0))
        is_small = sp.issparse(X) and X.nnz < self.n_columns
        columns = X.indices if is_small else slice(None)
        present = float(np.abs(self.values[:, columns]).max(initial=0))
        return present + len(part.codes) * max(largest, 1.0) * max(heaviest, 1.0) * _UNIT


def _weigh(data: Any, part: _Part, rows: Integers) -> Integers:
    """Return weighted values on the grid; a row of weight 2 counts as two rows."""
    values = _round_to_grid(data)
    if part.weights is None:
        return values
    weights = part.weights[rows]
    return np.rint(values * (weights[:, None] if data.ndim == 2 else weights)).astype(np.int64)


class CategorySums(ClassSums):
    """Weights of each category of each column for each class.

    Attributes
    ----------
    tables : list of ndarray of int64
        For each column: weights by class and category, in units of 2**-20.
    totals : list of ndarray of int64
        For each column: the number of rows of each category; the last one is not zero.
    """

    tables: list[Integers]
    totals: list[Integers]

    def _start(self, n_columns: int) -> None:
        self.tables = [self._empty_table() for _ in range(n_columns)]
        self.totals = [np.zeros(0, np.int64) for _ in range(n_columns)]

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.tables)

    def _empty_table(self) -> Integers:
        return np.zeros((len(self.labels), 0), np.int64)

    def add_columns(self, part: _Part, columns: Integers | None = None) -> None:
        """Add rows to the tables of some columns, or of all."""
        units = part.sign * part.units
        every = range(len(self.tables)) if columns is None else columns.tolist()
        for j in every:
            categories = part.X[:, j]
            width = max(int(categories.max(initial=-1)) + 1, len(self.totals[j]))
            table, total = self.tables[j], self.totals[j]
            missing = width - len(total)
            if missing:
                table, total = np.pad(table, ((0, 0), (0, missing))), np.pad(total, (0, missing))
            np.add.at(table, (part.codes, categories), units)
            np.add.at(total, categories, part.sign)
            n_used = int(np.max(np.flatnonzero(total), initial=-1)) + 1
            self.tables[j], self.totals[j] = table[:, :n_used].copy(), total[:n_used].copy()

    def move_columns(self, layout: Integers) -> None:
        """Put columns into another order; -1 is a new column without rows."""
        places, tables, totals = layout.tolist(), self.tables, self.totals
        self.tables = [self._empty_table() if k < 0 else tables[k] for k in places]
        self.totals = [np.zeros(0, np.int64) if k < 0 else totals[k] for k in places]

    def clear_columns(self, columns: Integers) -> None:
        """Set the tables of some columns to zero."""
        for j in columns.tolist():
            self.tables[j], self.totals[j] = self._empty_table(), np.zeros(0, np.int64)

    def take_classes(self, places: Integers) -> None:
        """Put classes into another order; -1 is a new class without rows."""
        self.tables = [np.where(places[:, None] < 0, 0, table[places]) for table in self.tables]

    def bound_sums(self, part: _Part) -> float:
        """Return an upper bound on the largest sum after rows are added."""
        heaviest = 1.0 if part.weights is None else float(part.weights.max(initial=0.0))
        present = float(np.abs(self.weights).max(initial=0))
        return present + len(part.codes) * max(heaviest, 1.0) * _UNIT


class _Parameters(NamedTuple):
    """What predictions need: labels, and the logarithms that the class computes."""

    classes: NDArray[Any]
    prior: Floats
    features: Any


def _learned(name: str, doc: str) -> Any:
    """Return a property that reads the parameters of the current model."""
    return property(lambda model: getattr(model._learned_parameters(), name), doc=doc)


class _NaiveBayes(KeywordScoreMixin, ClassifierMixin, DeltaMixin, BaseEstimator):
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
        return self._fit_table(X, y, ids, _as_weights(sample_weight))

    def learn(self, X: Any, y: Any, *, ids: Any, sample_weight: Any = None) -> Self:
        """Add rows; a known id keeps its earlier rows. `sample_weight` as in `fit`."""
        return self._learn_table(X, y, ids, _as_weights(sample_weight))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely label of each row."""
        learned, scores = self._score_rows(X)
        return np.asarray(learned.classes[np.argmax(scores, axis=1)])

    def predict_joint_log_proba(self, X: Any) -> Floats:
        """Return ``log P(x, class)`` of each row, up to a constant of the row."""
        return self._score_rows(X)[1]

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of `predict_proba`."""
        scores = self._score_rows(X)[1]
        highest = scores.max(axis=1, keepdims=True)
        totals = np.exp(scores - highest).sum(axis=1, keepdims=True)
        return np.asarray(scores - highest - np.log(totals))

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities, in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    classes_ = _learned("classes", "Labels of the remaining rows, sorted.")
    class_log_prior_ = _learned("prior", "Logarithm of the probability of each class.")
    feature_log_prob_ = _learned("features", "Logarithms of the probabilities of the features.")

    @property
    def class_count_(self) -> Floats:
        """Sum of the weights of each class."""
        check_is_fitted(self)
        return np.asarray(self.sums_.weights / _UNIT)

    def _check_parameters(self) -> None:
        validate_parameters(self)
        alpha = np.asarray(self.alpha, float)
        if alpha.ndim > 1 or not (alpha >= 0).all():
            raise ValueError(f"alpha={self.alpha!r}; expected numbers of at least 0")

    def _convert_table(self, X: Any, *, copy: bool) -> Table:
        table = check_array(X, accept_sparse="csr", dtype=np.float64, order="C")
        return self._require_values(hold_table(table) if copy else table)

    def _convert_target(self, y: Any) -> NDArray[Any]:
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        return hold_labels(y, name=type(self).__name__, regressor="letheon.Ridge")

    def _require_values(self, X: Table) -> Any:
        """Return a table of allowed numbers, or raise."""
        if isinstance(X, Frame):
            X = numbers_of(X)
        data = X.data if sp.issparse(X) else X
        if self._is_positive and data.size and data.min() < 0:
            raise ValueError(f"Negative values in data passed to {type(self).__name__} (input X).")
        return X

    def _read_block(self, block: Block, sign: int, labels: NDArray[Any]) -> _Part:
        X = self._require_values(block.X)
        if not np.isfinite(X.data if sp.issparse(X) else X).all():
            raise ValueError("Input X contains NaN or infinity.")
        codes = np.searchsorted(labels, _labels_of(block))
        return _Part(sign, codes, self._prepare_values(X), block.weights)

    def _prepare_values(self, X: Any) -> Any:
        """Return the values that are summed."""
        return X

    def _count(self, source: RowSource, seed: int) -> tuple[Any, Any]:  # noqa: ARG002
        labels = _union_labels([_labels_of(block) for block in source.blocks()])
        sums: ClassSums | None = None
        for block in source.blocks():
            part = self._read_block(block, 1, labels)
            if sums is None:
                sums = self._sums_type(labels, part.X.shape[1])
            _require_room(sums, [part])
            sums.add(part)
        assert sums is not None
        _require_weight(sums, ())
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
        blocks = list(delta.signed_blocks())
        labels = _union_labels([sums.labels, *(_labels_of(block) for _, block in blocks)])
        parts = [self._read_block(block, sign, labels) for sign, block in blocks]
        new = None
        if len(labels) == len(sums.labels) and not len(changed) and delta.layout is None:
            _require_room(sums, parts)
        else:
            new = sums.__copy__()
            new.set_labels(labels)
            self._change_columns(new, parts, delta, changed)
        _require_weight(sums, parts)
        self._require_lengths(_count_classes(sums, labels, parts), len(layout))

        def apply() -> None:
            if new is not None:
                self.sums_ = new
            else:
                for part in parts:
                    sums.add(part)
            self.sums_.drop_empty_classes()

        n_rows = sum(len(part.codes) for part in parts)
        return StepPlan(published=(), apply=apply, work=min(n_rows / sums.n_rows.sum(), 1.0))

    def _change_columns(
        self, sums: ClassSums, parts: Sequence[_Part], delta: Delta, changed: Integers
    ) -> None:
        """Apply a change to a copy of the sums, whose columns may move."""
        removed = [part for part in parts if part.sign < 0]  # with the old columns
        added = [part for part in parts if part.sign > 0]
        _require_room(sums, removed)
        for part in removed:
            sums.add(part)
        if delta.layout is not None:
            sums.move_columns(delta.layout)
        _require_room(sums, added)
        for part in added:
            sums.add(part)
        if not len(changed):
            return
        sums.clear_columns(changed)
        for block in delta.source.blocks():
            part = self._read_block(block, 1, sums.labels)
            _require_room(sums, [part])
            sums.add_columns(part, changed)

    def _apply_plan(self, plan: StepPlan) -> None:
        # A reader that computes probabilities must not see sums that change.
        with lock_model(self):
            super()._apply_plan(plan)
            self.n_features_in_ = self.sums_.n_columns

    def _after_change(self) -> None:
        self.cache_ = Cache()

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(kind="exact", reference="sums of integers per class")

    def _learned_parameters(self) -> _Parameters:
        check_is_fitted(self)
        learned = self.cache_.content
        if learned is None:
            with lock_model(self):
                sums = self.sums_
                learned = _Parameters(
                    sums.labels.copy(), self._log_prior(sums), self._log_features(sums)
                )
                self.cache_.content = learned
        return learned

    def _log_prior(self, sums: ClassSums) -> Floats:
        if self.class_prior is not None:
            return np.log(np.asarray(self.class_prior, float))
        if not self.fit_prior:
            return np.full(len(sums.labels), -np.log(len(sums.labels)))
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(sums.weights) - np.log(float(sums.weights.sum())))

    def _smoothing(self) -> Floats:
        alpha = np.asarray(self.alpha, float)
        if alpha.min() < _SMALLEST_ALPHA and not self.force_alpha:
            return np.maximum(alpha, _SMALLEST_ALPHA)
        return alpha

    def _log_features(self, sums: Any) -> Any:
        """Return the logarithms of the probabilities of the features."""
        raise NotImplementedError

    def _score_rows(self, X: Any) -> tuple[_Parameters, Floats]:
        learned = self._learned_parameters()
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        values = self._prepare_values(self._require_values(X))
        return learned, np.asarray(self._join_scores(learned, values))

    def _join_scores(self, learned: _Parameters, X: Any) -> Any:
        """Return the joint log probability of each row and class."""
        return X @ learned.features.T + learned.prior

    def __sklearn_tags__(self) -> Tags:
        """Return the tags: sparse rows are accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = self._is_positive
        assert tags.classifier_tags is not None
        tags.classifier_tags.poor_score = True
        return tags


def _as_weights(weights: Any) -> Floats | None:
    return None if weights is None else np.asarray(weights, np.float64)


def _labels_of(block: Block) -> NDArray[Any]:
    if block.y is None:
        raise ValueError(
            "a naive Bayes classifier requires y to be passed, but the target y is None"
        )
    return block.y


def _union_labels(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return _narrow(np.unique(np.concatenate(parts)))


def _narrow(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels in the smallest width, which must not show the length of a removed label."""
    return np.array(labels.tolist(), np.str_) if labels.dtype.kind == "U" else labels


def _count_classes(sums: ClassSums, labels: NDArray[Any], parts: Sequence[_Part]) -> int:
    """Return the number of classes with rows after a change."""
    counts = np.zeros(len(labels), np.int64)
    counts[np.searchsorted(labels, sums.labels)] = sums.n_rows
    for part in parts:
        counts += part.sign * np.bincount(part.codes, minlength=len(labels))
    return int(np.count_nonzero(counts))


def _require_weight(sums: ClassSums, parts: Sequence[_Part]) -> None:
    change = sum(part.sign * int(part.units.sum()) for part in parts)
    if int(sums.weights.sum()) + change <= 0:
        raise ValueError("Sample weights must contain at least one non-zero number.")


def _require_room(sums: ClassSums, parts: Sequence[_Part]) -> None:
    """Raise if a sum might not fit into 64 bits."""
    if sum(sums.bound_sums(part) for part in parts) > _LARGEST_SUM:
        raise ValueError(
            "the sum of a column may exceed 2**42, the largest sum on a grid of 2**-20; scale X or "
            "the weights down"
        )


class MultinomialNB(_NaiveBayes):
    """Naive Bayes classifier for counts, or for tf-idf weights.

    Parameters
    ----------
    alpha : float or array-like of shape (n_features,), default=1.0
        Smoothing, in addition to the counts.
    force_alpha : bool, default=True
        If False, an alpha below 1e-10 becomes 1e-10.
    fit_prior : bool, default=True
        Whether to learn the probabilities of the classes.
    class_prior : array-like of shape (n_classes,), optional
        The probabilities of the classes.

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
    Guarantee: exact. Weighted values are rounded to multiples of 2**-20, so sums are exact, and
    whole numbers are not rounded. The digest covers the sums; the logarithms are computed from
    them and may differ in the last digit on another machine.

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
        return np.asarray(self.sums_.values / _UNIT)

    def _log_features(self, sums: FeatureSums) -> Floats:
        counts = sums.values / _UNIT + self._smoothing()
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
        return np.asarray(self.sums_.values.sum(axis=0) / _UNIT)

    def _log_features(self, sums: FeatureSums) -> Floats:
        others = sums.values.sum(axis=0) - sums.values
        counts = others / _UNIT + self._smoothing()
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(counts / counts.sum(axis=1, keepdims=True))
            return np.asarray(logs / logs.sum(axis=1, keepdims=True) if self.norm else -logs)

    def _join_scores(self, learned: _Parameters, X: Any) -> Any:
        scores = X @ learned.features.T
        return scores + learned.prior if len(learned.classes) == 1 else scores


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
        if self.binarize is None:
            return X
        if not sp.issparse(X):
            return (self.binarize < X).astype(np.float64)
        if self.binarize < 0:
            raise ValueError("Cannot binarize a sparse matrix with threshold < 0")
        data = (X.data > self.binarize).astype(np.float64)
        return sp.csr_array((data, X.indices, X.indptr), shape=X.shape)

    def _log_features(self, sums: FeatureSums) -> Floats:
        alpha = self._smoothing()
        counts, totals = sums.values / _UNIT + alpha, sums.weights[:, None] / _UNIT + 2 * alpha
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(counts) - np.log(totals))

    def _join_scores(self, learned: _Parameters, X: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            absent = np.log(1 - np.exp(learned.features))
            scores = X @ (learned.features - absent).T
        return scores + learned.prior + absent.sum(axis=1)


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
            np.pad(table, ((0, 0), (0, width - table.shape[1]))) / _UNIT
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
        if sp.issparse(X):
            raise TypeError("Sparse data was passed, but dense data is required")
        return X.astype(np.int64)

    def _log_features(self, sums: CategorySums) -> list[Floats]:
        alpha = self._smoothing()
        logs = []
        for table in self._weigh_categories(sums):
            counts = table + alpha
            with np.errstate(divide="ignore"):
                logs.append(np.log(counts) - np.log(counts.sum(axis=1, keepdims=True)))
        return logs

    def _join_scores(self, learned: _Parameters, X: Any) -> Any:
        scores = np.tile(learned.prior, (len(X), 1))
        for j, logs in enumerate(learned.features):
            codes = X[:, j]
            if len(codes) and codes.max() >= logs.shape[1]:
                raise IndexError(
                    f"column {j} has the category {codes.max()}; this model knows the categories "
                    f"0 to {logs.shape[1] - 1}. Set min_categories"
                )
            scores += logs[:, codes].T
        return scores

    def __sklearn_tags__(self) -> Tags:
        """Return the tags: dense rows of categories."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.input_tags.categorical = True
        return tags
