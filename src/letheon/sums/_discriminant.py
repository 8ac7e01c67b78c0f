"""Discriminant analysis and Gaussian naive Bayes from exact sums."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from letheon.base import KeywordScoreMixin
from letheon.guarantee import MethodFacts
from letheon.predictor import AffineScores, Answers
from letheon.sums._model import (
    Ints,
    LabelsMixin,
    ScoresMixin,
    SumsModel,
    check_priors,
    make_facts,
    make_priors,
    read_solution,
    require_classes,
)
from letheon.sums._solve import scale_penalty, solve_positive
from letheon.sums._table_sums import Grid, Role, TableSums
from letheon.validation import Boolean, Interval, OneOf, OrNone, Rules, Whole

Floats = npt.NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)


class _ClassModel(ScoresMixin, LabelsMixin, KeywordScoreMixin, ClassifierMixin, SumsModel):
    """What the classifiers of this module share: fit and learn without weights, priors."""

    facts: ClassVar[MethodFacts] = make_facts("classification")

    priors: Any

    def fit(self, X: Any, y: Any, *, ids: Any = None) -> Self:
        """Count all rows and store them.

        Parameters
        ----------
        X : array-like or data frame of shape (n_rows, n_features)
            Training rows.
        y : array-like of shape (n_rows,)
            Labels.
        ids : sequence of int or of str, optional
            Id of the person each row belongs to; may repeat. Default ``0..n-1``.

        Returns
        -------
        self
        """
        return self._fit_table(X, y, ids)

    def learn(self, X: Any, y: Any, *, ids: Any) -> Self:
        """Add rows; a known id keeps its earlier rows.

        Parameters
        ----------
        X, y
            As in `fit`, with the same columns.
        ids : sequence of int or of str
            Id of each new row.

        Returns
        -------
        self
        """
        return self._learn_table(X, y, ids)

    def _check_size(self, n_rows: int, n_features: int, class_rows: Ints) -> None:  # noqa: ARG002
        require_classes(class_rows)
        check_priors(self.priors, len(class_rows))

    def _score_classes(self, X: Any) -> tuple[npt.NDArray[Any], Floats]:
        solution = self._get_solution()  # read once: a concurrent commit may replace it
        scores, _ = self._make_scores(solution)
        return solution.classes, scores.compute(self._convert_new_rows(X))


class _LinearDiscriminants(NamedTuple):
    """Solution of linear discriminant analysis, in the units of the data.

    `scatter` and `offsets` (means of the classes) are in units of the scales.
    """

    classes: npt.NDArray[Any]
    priors: Floats
    coef: Floats
    intercept: Floats
    covariance: Floats
    offsets: Floats


class LinearDiscriminantAnalysis(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _ClassModel):
    """Linear discriminant analysis that forgets exactly.

    Parameters
    ----------
    solver : {"svd", "lsqr", "eigen"}, default="svd"
        All solve the same equations with the pooled covariance. With ``"svd"`` the scores of more
        than two classes are measured from the overall mean, as in scikit-learn.
    shrinkage : float or None, default=None
        Share of the shrinkage target in the covariance, 0 to 1; not with ``"svd"``. ``"auto"`` is
        not available.
    priors : array-like of shape (n_classes,) or None, default=None
        Class probabilities. Default: their shares of the rows.
    n_components : int or None, default=None
        Number of components of `transform`.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the rounding of the grid.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of the remaining rows, sorted.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients, computed in float64 from the integers.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    means_ : ndarray of shape (n_classes, n_features)
        Means of the classes.
    priors_ : ndarray of shape (n_classes,)
        Class probabilities.
    covariance_ : ndarray of shape (n_features, n_features)
        Pooled covariance. It does not depend on `priors`, unlike scikit-learn's ``"lsqr"``.
    xbar_ : ndarray of shape (n_features,)
        Mean of the classes, weighted by the priors.
    scalings_ : ndarray of shape (n_features, n_components)
        Directions of `transform`.
    n_clipped_, sums_, published_, seed_
        See `Ridge`.

    Notes
    -----
    Guarantee: exact, as for `Ridge`.

    Examples
    --------
    >>> from letheon.sums import LinearDiscriminantAnalysis
    >>> X, y = [[0.0], [1.0], [4.0], [5.0]], list("aabb")
    >>> model = LinearDiscriminantAnalysis(random_state=0).fit(X, y)
    >>> model.predict([[0.5], [3.0]]).tolist()
    ['a', 'b']
    >>> model.forget([0]).n_rows
    1
    """

    _role: ClassVar[Role] = "indicators"
    _parameter_rules: ClassVar[Rules] = {
        "solver": OneOf(("svd", "lsqr", "eigen")),
        "shrinkage": OrNone(Interval(0.0, 1.0)),
        "n_components": OrNone(Whole(1)),
    }

    def __init__(
        self,
        *,
        solver: str = "svd",
        shrinkage: float | None = None,
        priors: Any = None,
        n_components: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.solver = solver
        self.shrinkage = shrinkage
        self.priors = priors
        self.n_components = n_components
        self.random_state = random_state

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.solver == "svd" and self.shrinkage is not None:
            raise NotImplementedError("shrinkage not supported with 'svd' solver.")

    def _check_size(self, n_rows: int, n_features: int, class_rows: Ints) -> None:
        super()._check_size(n_rows, n_features, class_rows)
        if n_rows <= len(class_rows):
            raise ValueError("The number of samples must be more than the number of classes.")
        most = min(len(class_rows) - 1, n_features)
        if self.n_components is not None and self.n_components > most:
            raise ValueError(
                "n_components cannot be larger than min(n_features, n_classes - 1): got "
                f"{self.n_components} for {most}"
            )

    def _solve(self, sums: TableSums, grid: Grid) -> _LinearDiscriminants:
        products = sums.grams[0].to_float()
        n_features, classes = sums.n_features, np.asarray(sums.classes)
        counts, totals = products[-1, n_features:-1], products[:n_features, n_features:-1]
        offsets = (totals / counts).T
        scatter = products[:n_features, :n_features] - totals @ offsets
        covariance = self._shrink(scatter / sums.n_rows, grid)
        priors = make_priors(self.priors, counts)
        # Scores are x'S^-1 m - m'S^-1 m / 2 + log(prior); "svd" measures from the overall mean.
        origin = priors @ offsets if self.solver == "svd" else -grid.shifts
        directions = offsets - origin
        coef = solve_positive(covariance, directions.T).T
        with np.errstate(divide="ignore"):
            intercept = np.log(priors) - 0.5 * (coef * directions).sum(axis=1)
        intercept -= coef @ (origin + grid.shifts)
        coef = coef / grid.scales
        if len(classes) == 2:
            coef, intercept = coef[1:] - coef[:1], intercept[1:] - intercept[:1]
        return _LinearDiscriminants(classes, priors, coef, intercept, covariance, offsets)

    def _shrink(self, covariance: Floats, grid: Grid) -> Floats:
        """Return the covariance, shrunk towards a multiple of the identity in original units."""
        if not self.shrinkage:
            return covariance
        with np.errstate(over="ignore"):
            level = float((np.diag(covariance) * grid.scales * grid.scales).mean())
        shrunk = (1.0 - self.shrinkage) * covariance
        shrunk[np.diag_indices(len(shrunk))] += scale_penalty(self.shrinkage * level, grid.scales)
        return shrunk

    coef_ = read_solution("coef", "Coefficients, shape (1, n_features) or (n_classes, n_features).")
    intercept_ = read_solution("intercept", "Intercepts, shape (1,) or (n_classes,).")
    priors_ = read_solution("priors", "Class probabilities.")

    @property
    def means_(self) -> Floats:
        """Means of the classes."""
        grid = self._get_grid()
        means: Floats = grid.centres + grid.scales * self._get_solution().offsets
        return means

    @property
    def xbar_(self) -> Floats:
        """Mean of the classes, weighted by the priors."""
        mean: Floats = self.priors_ @ self.means_
        return mean

    @property
    def covariance_(self) -> Floats:
        """Pooled covariance of the features."""
        scales = self._get_grid().scales
        covariance: Floats = self._get_solution().covariance * np.multiply.outer(scales, scales)
        return covariance

    @property
    def scalings_(self) -> Floats:
        """Directions of `transform`, shape (n_features, n_components)."""
        solution: _LinearDiscriminants = self._get_solution()
        values, vectors = np.linalg.eigh(solution.covariance)
        is_large = values > len(values) * _EPS * max(float(values[-1]), 0.0)
        whitening = vectors[:, is_large] / np.sqrt(values[is_large])
        centred = solution.offsets - solution.priors @ solution.offsets
        between = (centred * np.sqrt(solution.priors)[:, None]) @ whitening
        rotation = np.linalg.svd(between, full_matrices=False)[2]
        most = min(len(solution.classes) - 1, len(rotation))
        scalings = whitening @ rotation[: self.n_components or most].T
        # The largest entry of each direction is positive.
        largest = np.abs(scalings).argmax(axis=0)
        signs = np.where(scalings[largest, np.arange(scalings.shape[1])] < 0, -1.0, 1.0)
        directions: Floats = scalings * signs / self._get_grid().scales[:, None]
        return directions

    @property
    def _n_features_out(self) -> int:
        return int(self.scalings_.shape[1])

    def transform(self, X: Any) -> Floats:
        """Project rows on the directions that separate the classes best."""
        rows = self._convert_new_rows(X)
        projected: Floats = (rows - self.xbar_) @ self.scalings_
        return projected

    def decision_function(self, X: Any) -> Floats:
        """Return the scores of the classes; for two classes their difference, shape (n_rows,)."""
        return Answers("discriminants").decision_function(self._score_classes(X)[1])

    def _make_scores(self, solution: _LinearDiscriminants) -> tuple[AffineScores, str]:
        is_binary = len(solution.classes) == 2
        scores = AffineScores(solution.coef, (solution.intercept,), is_difference=is_binary)
        return scores, "discriminants"


class _ClassMoments(NamedTuple):
    """Moments of each class in units of the scales: weights, means, covariances or variances."""

    weights: Floats
    means: Floats
    spreads: list[Floats]


def _read_classes(sums: TableSums, grid: Grid) -> _ClassMoments:
    """Return weight, mean and centred products (per unit of weight) of each class."""
    weights, means, spreads = [], [], []
    for gram in sums.grams:
        products = gram.to_float() * grid.root_scale**2
        is_full = gram.lead is None
        totals = products[-1] if is_full else products[0]
        weight = float(totals[-1])
        # A class of rows with weight 0 has prior 0; its mean does not matter.
        mean = totals[:-1] / (weight or 1.0)
        if is_full:
            spread = products[:-1, :-1] / (weight or 1.0) - np.multiply.outer(mean, mean)
        else:
            spread = np.maximum(products[1, :-1] / (weight or 1.0) - mean * mean, 0.0)
        weights.append(weight)
        means.append(mean)
        spreads.append(spread)
    return _ClassMoments(np.array(weights), np.array(means), spreads)


@dataclass(frozen=True, eq=False)
class QuadraticScores:
    """Scores by one centre and one rotation per class, for rows ``X * factors - shifts``."""

    factors: Floats
    shifts: Floats
    means: Floats
    rotations: tuple[Floats, ...]
    constants: Floats

    def compute(self, X: Any) -> Floats:
        """Return the scores of rows."""
        rows = X * self.factors - self.shifts
        parts = zip(self.means, self.rotations, self.constants, strict=True)
        scores = [
            constant - 0.5 * (((rows - mean) @ rotation) ** 2).sum(axis=1)
            for mean, rotation, constant in parts
        ]
        return np.column_stack(scores)


class _QuadraticDiscriminants(NamedTuple):
    """Solution of quadratic discriminant analysis; rotations whiten rows in units of the scales."""

    classes: npt.NDArray[Any]
    priors: Floats
    means: Floats
    covariances: list[Floats]
    rotations: list[Floats]
    constants: Floats


class QuadraticDiscriminantAnalysis(_ClassModel):
    """Quadratic discriminant analysis that forgets exactly: one covariance per class.

    Parameters
    ----------
    priors : array-like of shape (n_classes,) or None, default=None
        Class probabilities. Default: their shares of the rows.
    reg_param : float, default=0.0
        Share of the identity in each covariance, 0 to 1.
    store_covariance : bool, default=False
        Has no effect: `covariance_` is always available.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the rounding of the grid.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of the remaining rows, sorted.
    means_ : ndarray of shape (n_classes, n_features)
        Means of the classes.
    priors_ : ndarray of shape (n_classes,)
        Class probabilities.
    covariance_ : list of ndarray of shape (n_features, n_features)
        Covariance of each class (divided by its number of rows), regularised.
    n_clipped_, sums_, published_, seed_
        See `Ridge`.

    Notes
    -----
    Guarantee: exact, as for `Ridge`. Each class needs two rows; a removal that would leave one row
    is refused. Directions without variance count with the smallest variance that float64 resolves.

    Examples
    --------
    >>> from letheon.sums import QuadraticDiscriminantAnalysis
    >>> X, y = [[0.0], [1.0], [4.0], [9.0], [7.0]], list("aabbb")
    >>> model = QuadraticDiscriminantAnalysis(random_state=0).fit(X, y)
    >>> model.predict([[0.5], [3.0]]).tolist()
    ['a', 'b']
    """

    _role: ClassVar[Role] = "groups"
    _parameter_rules: ClassVar[Rules] = {
        "reg_param": Interval(0.0, 1.0),
        "store_covariance": Boolean(),
    }

    def __init__(
        self,
        *,
        priors: Any = None,
        reg_param: float = 0.0,
        store_covariance: bool = False,
        random_state: Any = None,
    ) -> None:
        self.priors = priors
        self.reg_param = reg_param
        self.store_covariance = store_covariance
        self.random_state = random_state

    def _check_size(self, n_rows: int, n_features: int, class_rows: Ints) -> None:
        super()._check_size(n_rows, n_features, class_rows)
        if (class_rows < 2).any():
            raise ValueError("y has only 1 sample in a class, covariance is ill defined.")

    def _solve(self, sums: TableSums, grid: Grid) -> _QuadraticDiscriminants:
        weights, means, spreads = _read_classes(sums, grid)
        priors = make_priors(self.priors, weights)
        covariances, rotations, constants = [], [], []
        for spread in spreads:
            covariance = (1.0 - self.reg_param) * spread
            penalty = scale_penalty(self.reg_param, grid.scales)
            covariance[np.diag_indices(len(covariance))] += penalty
            values, vectors = np.linalg.eigh(covariance)
            values = np.maximum(values, len(values) * _EPS * max(float(values[-1]), _EPS))
            covariances.append(covariance)
            rotations.append(vectors / np.sqrt(values))
            constants.append(np.log(values).sum() + 2.0 * np.log(grid.scales).sum())
        with np.errstate(divide="ignore"):
            levels = np.log(priors) - 0.5 * np.array(constants)
        classes = np.asarray(sums.classes)
        return _QuadraticDiscriminants(classes, priors, means, covariances, rotations, levels)

    priors_ = read_solution("priors", "Class probabilities.")

    @property
    def means_(self) -> Floats:
        """Means of the classes."""
        grid = self._get_grid()
        means: Floats = grid.centres + grid.scales * self._get_solution().means
        return means

    @property
    def covariance_(self) -> list[Floats]:
        """Covariance of each class."""
        scales = self._get_grid().scales
        units = np.multiply.outer(scales, scales)
        return [covariance * units for covariance in self._get_solution().covariances]

    def decision_function(self, X: Any) -> Floats:
        """Return the scores of the classes; for two classes their difference, shape (n_rows,)."""
        return Answers("discriminants").decision_function(self._score_classes(X)[1])

    def _make_scores(self, solution: _QuadraticDiscriminants) -> tuple[QuadraticScores, str]:
        grid, rotations = self._get_grid(), tuple(solution.rotations)
        constants, means = solution.constants, solution.means
        scores = QuadraticScores(grid.factors, grid.shifts, means, rotations, constants)
        return scores, "discriminants"


@dataclass(frozen=True, eq=False)
class NormalScores:
    """Logarithms of priors and normal densities with one mean and variance per class and column."""

    priors: Floats
    theta: Floats
    var: Floats

    def compute(self, X: Any) -> Floats:
        """Return the scores of rows."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            levels = np.log(self.priors) - 0.5 * np.log(2.0 * np.pi * self.var).sum(axis=1)
            scores = [
                level - 0.5 * ((X - theta) ** 2 / var).sum(axis=1)
                for level, theta, var in zip(levels, self.theta, self.var, strict=True)
            ]
        return np.column_stack(scores)


class _NormalClasses(NamedTuple):
    """Solution of Gaussian naive Bayes, in the units of the data."""

    classes: npt.NDArray[Any]
    priors: Floats
    counts: Floats
    theta: Floats
    var: Floats
    epsilon: float


class GaussianNB(_ClassModel):
    """Gaussian naive Bayes that forgets exactly.

    Parameters
    ----------
    priors : array-like of shape (n_classes,) or None, default=None
        Class probabilities. Default: their shares of the rows.
    var_smoothing : float, default=1e-9
        Share of the largest variance of all features that is added to variances.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the rounding of the grid.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of the remaining rows, sorted.
    theta_, var_ : ndarray of shape (n_classes, n_features)
        Means and variances of the features in each class, computed from the integers.
    class_count_, class_prior_ : ndarray of shape (n_classes,)
        Weight of the rows of each class, and class probabilities.
    epsilon_ : float
        Value added to variances.
    n_clipped_, sums_, published_, seed_
        See `Ridge`.

    Notes
    -----
    Guarantee: exact, as for `Ridge`.

    Examples
    --------
    >>> from letheon.sums import GaussianNB
    >>> X, y = [[0.0], [1.0], [4.0], [5.0]], list("aabb")
    >>> model = GaussianNB(random_state=0).fit(X, y)
    >>> model.theta_.tolist()
    [[0.5], [4.5]]
    >>> _ = model.forget([3])
    >>> model.theta_.tolist()
    [[0.5], [4.0]]
    """

    _role: ClassVar[Role] = "squares"
    _parameter_rules: ClassVar[Rules] = {"var_smoothing": Interval(0.0)}

    def __init__(
        self, *, priors: Any = None, var_smoothing: float = 1e-9, random_state: Any = None
    ) -> None:
        self.priors = priors
        self.var_smoothing = var_smoothing
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, ids: Any = None) -> Self:
        """Count all rows and store them.

        Parameters
        ----------
        X : array-like or data frame of shape (n_rows, n_features)
            Training rows.
        y : array-like of shape (n_rows,)
            Labels.
        sample_weight : array-like of shape (n_rows,), optional
            Weights of the rows.
        ids : sequence of int or of str, optional
            Id of the person each row belongs to; may repeat. Default ``0..n-1``.

        Returns
        -------
        self
        """
        return self._fit_table(X, y, ids, sample_weight)

    def learn(self, X: Any, y: Any, *, ids: Any, sample_weight: Any = None) -> Self:
        """Add rows; a known id keeps its earlier rows.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`, with the same columns.
        ids : sequence of int or of str
            Id of each new row.

        Returns
        -------
        self
        """
        return self._learn_table(X, y, ids, sample_weight)

    def _check_size(self, n_rows: int, n_features: int, class_rows: Ints) -> None:  # noqa: ARG002
        check_priors(self.priors, len(class_rows))

    def _solve(self, sums: TableSums, grid: Grid) -> _NormalClasses:
        weights, means, spreads = _read_classes(sums, grid)
        epsilon = self.var_smoothing * float(sums.features.variances.max())
        with np.errstate(over="ignore"):
            theta = grid.centres + grid.scales * means
            var = np.array(spreads) * grid.scales * grid.scales + epsilon
        priors = make_priors(self.priors, weights)
        return _NormalClasses(np.asarray(sums.classes), priors, weights, theta, var, epsilon)

    theta_ = read_solution("theta", "Means of the features in each class.")
    var_ = read_solution("var", "Variances of the features in each class, smoothed.")

    @property
    def epsilon_(self) -> float:
        """Value added to variances."""
        return float(self._get_solution().epsilon)

    class_count_ = read_solution("counts", "Weight of the rows of each class.")
    class_prior_ = read_solution("priors", "Class probabilities.")

    def _make_scores(self, solution: _NormalClasses) -> tuple[NormalScores, str]:
        return NormalScores(solution.priors, solution.theta, solution.var), "log-joint"
