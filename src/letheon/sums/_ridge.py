"""Ridge regression and classification from exact sums."""

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_array, check_is_fitted

from letheon.base import KeywordScoreMixin, lock_model
from letheon.guarantee import MethodFacts
from letheon.parallel import one_thread
from letheon.predictor import AffineScores, Answers
from letheon.sums._model import (
    Ints,
    LabelsMixin,
    SumsModel,
    make_facts,
    read_solution,
    require_classes,
)
from letheon.sums._solve import (
    Moments,
    descend_centred,
    factorise,
    is_large,
    read_cross_moments,
    read_moments,
    scale_penalty,
    solve_positive,
)
from letheon.sums._table_sums import Grid, Role, TableSums
from letheon.validation import Boolean, Interval, Rules

Floats = npt.NDArray[np.float64]


class LinearSolution(NamedTuple):
    """Coefficients of shape (n_targets, n_features), intercepts of shape (n_targets,), classes."""

    coef: Floats
    intercept: Floats
    classes: npt.NDArray[Any]


class _RidgeProblem(NamedTuple):
    """Normal equations in units of the scales, and how to convert their solution.

    Attributes
    ----------
    moments : Moments
        Moments of features and targets.
    right : ndarray of shape (n_features, n_targets)
        Products of features and targets.
    target_means, target_scale : ndarray of shape (n_targets,)
        Means of the targets, and the unit of the right side.
    """

    moments: Moments
    right: Floats
    target_means: Floats
    target_scale: Floats


class RidgeBase(SumsModel):
    """Parameters and solver of ridge models; see `Ridge`."""

    _accepts_sparse: ClassVar[bool] = True
    _parameter_rules: ClassVar[Rules] = {
        "alpha": Interval(0.0),
        "fit_intercept": Boolean(),
    }

    def __init__(
        self, *, alpha: float = 1.0, fit_intercept: bool = True, random_state: Any = None
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, ids: Any = None) -> Self:
        """Count all rows and store them.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of shape (n_rows, n_features)
            Training rows.
        y : array-like
            Targets.
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

    def _pose_problem(self, sums: TableSums, grid: Grid, moments: Moments) -> _RidgeProblem:
        """Return the problem; the last columns of the scatter are those of the targets."""
        raise NotImplementedError(f"{type(self).__name__} must pose its problem")

    def _solve(self, sums: TableSums, grid: Grid) -> LinearSolution:
        n_features = sums.n_features
        penalty = scale_penalty(self.alpha, grid.scales)
        solved = self._solve_large(sums, grid, penalty) if self.fit_intercept else None
        if solved is None:
            moments = read_moments(sums, grid, is_centred=self.fit_intercept)
            problem = self._pose_problem(sums, grid, moments)
            matrix = moments.scatter[:n_features, :n_features]  # used only here
            matrix[np.diag_indices(n_features)] += penalty
            solve = factorise if self.fit_intercept else solve_positive
            solved = solve(matrix, problem.right), problem
        coef, intercept = self._convert_solution(*solved, grid)
        return LinearSolution(coef, intercept, np.asarray(sums.classes))

    def _solve_large(
        self, sums: TableSums, grid: Grid, penalty: Floats
    ) -> tuple[Floats, _RidgeProblem] | None:
        """Return the solution by conjugate gradients and its problem; None if they do not fit.

        The products in float64 are kept between requests: they are a function of the integers.
        """
        if not is_large(sums.n_features, sums.grams[0].n_columns - sums.n_features - 1):
            return None
        products, factor = sums.grams[0].read_floats(), grid.root_scale**2
        moments = read_cross_moments(products, factor, sums.n_features)
        problem = self._pose_problem(sums, grid, moments)
        solution = descend_centred(products, factor, moments, penalty, problem.right)
        return None if solution is None else (solution, problem)

    def _convert_solution(
        self, solution: Floats, problem: _RidgeProblem, grid: Grid
    ) -> tuple[Floats, Floats]:
        """Return coefficients and intercepts in the units of the data."""
        n_features = len(grid.scales)
        with np.errstate(over="ignore", invalid="ignore"):
            coef = solution.T / grid.scales * problem.target_scale[:, None]
            if not self.fit_intercept:
                return coef, np.zeros(len(coef))
            means = grid.centres + grid.scales * problem.moments.means[:n_features]
            return coef, problem.target_means - coef @ means

    def alpha_path(self, alphas: Any) -> tuple[Floats, Floats]:
        """Return the coefficients and intercepts for several values of `alpha`.

        One eigendecomposition serves all values.

        Parameters
        ----------
        alphas : array-like of shape (n_alphas,)
            Positive penalties.

        Returns
        -------
        coefs : ndarray of shape (n_alphas, n_targets, n_features)
        intercepts : ndarray of shape (n_alphas, n_targets)
        """
        check_is_fitted(self)
        values = np.asarray(alphas, np.float64).ravel()
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ValueError(f"alphas={alphas!r}; expected positive finite numbers")
        with lock_model(self), one_thread():
            return self._solve_path(self.sums_, self._get_grid(), values)

    def _solve_path(self, sums: TableSums, grid: Grid, alphas: Floats) -> tuple[Floats, Floats]:
        """Return the coefficients and intercepts of all penalties."""
        moments = read_moments(sums, grid, is_centred=self.fit_intercept)
        problem = self._pose_problem(sums, grid, moments)
        n = sums.n_features
        # With w = coef / penalty**(1/2), the penalty is alpha times the identity.
        unit = np.sqrt(scale_penalty(1.0, grid.scales))
        matrix = moments.scatter[:n, :n] / unit[:, None] / unit
        spectrum, vectors = np.linalg.eigh(matrix)
        right = vectors.T @ (problem.right / unit[:, None])
        path = [
            self._convert_solution(
                vectors @ (right / (np.maximum(spectrum, 0.0) + alpha)[:, None]) / unit[:, None],
                problem,
                grid,
            )
            for alpha in alphas
        ]
        return np.array([coef for coef, _ in path]), np.array([value for _, value in path])

    _answer_kind: ClassVar[str] = "values"

    def _make_scores(self, solution: LinearSolution) -> tuple[AffineScores, str]:
        return AffineScores(solution.coef, (solution.intercept,)), self._answer_kind

    def _decide(self, X: Any) -> tuple[Answers, Floats]:
        """Return the linear functions of rows, shape (n_rows, n_targets), and their meaning."""
        solution: LinearSolution = self._get_solution()
        scores, kind = self._make_scores(solution)
        classes = solution.classes if self._role == "indicators" else None
        return Answers(kind, classes), scores.compute(self._convert_new_rows(X))

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: sparse input is accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class Ridge(KeywordScoreMixin, RegressorMixin, RidgeBase):
    """Ridge regression that forgets a row in a fraction of a millisecond.

    The model consists of exact integer sums of products of the columns. `forget` subtracts the
    products of the removed rows; the coefficients are solved when they are first used.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalty ``alpha * ||coef||**2``, at least 0.
    fit_intercept : bool, default=True
        Whether to add an intercept, which is not penalised.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the rounding of the grid. None draws 128 bits from the operating system.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients, computed in float64 from the integers.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercepts.
    n_clipped_ : ndarray of shape (n_features,)
        Number of values further than about 1,000 deviations from the centre; they are clipped.
    sums_ : TableSums
        The integers.
    published_ : Grid
        Centre and scale of each column, rounded to powers of two with a key.
    seed_ : int
        Seed of 128 bits.

    See Also
    --------
    RidgeClassifier : The same method for classification.

    Notes
    -----
    Guarantee: exact. After any sequence of `forget` and `learn`, the integers are those of a fresh
    `fit` on the remaining rows with the same seed. The digest covers settings, rows and integers,
    and is the same on every CPU and with every BLAS. `coef_` is a function of the integers.

    Values are rounded to multiples of 2**-20 of the scale of their column. Weights are at least 0;
    rows are multiplied by their square roots. Differences from scikit-learn: there is one solver,
    `alpha` is one number, and `positive` is missing.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.sums import Ridge
    >>> X = np.arange(10.0)[:, None]
    >>> model = Ridge(alpha=0.0, random_state=0).fit(X, 3 * X[:, 0] + 1)
    >>> model.coef_.round(6).tolist(), round(model.intercept_, 6)
    ([3.0], 1.0)
    >>> _ = model.forget([9, 4])
    >>> fresh = Ridge(alpha=0.0, random_state=0)
    >>> kept = [0, 1, 2, 3, 5, 6, 7, 8]
    >>> fresh.fit(X[kept], 3 * X[kept, 0] + 1, ids=kept).digest() == model.digest()
    True
    """

    facts: ClassVar[MethodFacts] = make_facts("regression")
    _role: ClassVar[Role] = "numbers"

    def _convert_target(self, y: Any) -> Floats:
        if y is None:
            raise ValueError("y is missing: requires y to be passed, but the target y is None")
        target = check_array(
            y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=self, copy=True
        )
        if target.ndim > 2:
            raise ValueError(f"y has shape {target.shape}; expected one or two dimensions")
        return np.ascontiguousarray(target + 0.0)

    def _pose_problem(self, sums: TableSums, grid: Grid, moments: Moments) -> _RidgeProblem:
        n = sums.n_features
        means = grid.target_centres + grid.target_scales * moments.means[n:]
        right = moments.scatter[:n, n - len(moments.means) :]
        return _RidgeProblem(moments, right, means, grid.target_scales)

    @property
    def coef_(self) -> Floats:
        """Coefficients, shape (n_features,) or (n_targets, n_features)."""
        coef: Floats = self._get_solution().coef
        return coef[0] if len(coef) == 1 else coef

    @property
    def intercept_(self) -> Any:
        """Intercept, or one per target."""
        intercept = self._get_solution().intercept
        return float(intercept[0]) if len(intercept) == 1 else intercept

    def predict(self, X: Any) -> Floats:
        """Return the predicted targets, shape (n_rows,) or (n_rows, n_targets)."""
        answers, scores = self._decide(X)
        return answers.predict(scores)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: several targets are accepted."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


class RidgeClassifier(LabelsMixin, KeywordScoreMixin, ClassifierMixin, RidgeBase):
    """Classification by ridge regression on the classes, coded -1 and 1; forgets exactly.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalty, at least 0.
    fit_intercept : bool, default=True
        Whether to add an intercept, which is not penalised.
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
    n_clipped_, sums_, published_, seed_
        See `Ridge`.

    Notes
    -----
    Guarantee: exact, as for `Ridge`. A class without rows vanishes. Difference from scikit-learn:
    `class_weight` is missing; pass `sample_weight`.

    Examples
    --------
    >>> from letheon.sums import RidgeClassifier
    >>> X, y = [[0.0], [1.0], [4.0], [5.0], [9.0]], list("aabbc")
    >>> model = RidgeClassifier(random_state=0).fit(X, y)
    >>> model.predict([[0.5], [8.0]]).tolist()
    ['a', 'c']
    >>> _ = model.forget([4])
    >>> model.classes_.tolist()
    ['a', 'b']
    """

    facts: ClassVar[MethodFacts] = make_facts("classification")
    _answer_kind: ClassVar[str] = "margins"
    _role: ClassVar[Role] = "indicators"

    def _check_size(self, n_rows: int, n_features: int, class_rows: Ints) -> None:  # noqa: ARG002
        require_classes(class_rows)

    def _pose_problem(
        self,
        sums: TableSums,
        grid: Grid,  # noqa: ARG002
        moments: Moments,
    ) -> _RidgeProblem:
        n = sums.n_features
        shares = moments.means[n:]
        right = 2.0 * moments.scatter[:n, -len(shares) :]
        if not self.fit_intercept:
            right -= (moments.weight * moments.means[:n])[:, None]
        if len(shares) == 2:
            shares, right = shares[1:], right[:, 1:]
        return _RidgeProblem(moments, right, 2.0 * shares - 1.0, np.ones(len(shares)))

    coef_ = read_solution("coef", "Coefficients, shape (1, n_features) or (n_classes, n_features).")
    intercept_ = read_solution("intercept", "Intercepts, shape (1,) or (n_classes,).")

    def decision_function(self, X: Any) -> Floats:
        """Return the regression values, shape (n_rows,) or (n_rows, n_classes)."""
        answers, scores = self._decide(X)
        return answers.decision_function(scores)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the class with the largest regression value for every row."""
        answers, scores = self._decide(X)
        return answers.predict(scores)
