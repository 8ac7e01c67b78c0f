"""Published linear models: row preprocessing, parameters, labels and guarantee."""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array

from letheon.exceptions import AssumptionError
from letheon.guarantee import Guarantee
from letheon.linear._problem import Floats, row_norms
from letheon.predictor import AffineScores, Answers, OnnxGraph, OnnxTable, Predictor
from letheon.validation import POSITIVE

RULES = ("keep", "clip", "normalize", "refuse")
# Rounding can make the norm of a row scaled to R exceed R by this relative amount.
NORM_ROUNDING = 1e-6


@dataclass(frozen=True)
class Design:
    """The rule by which an input row becomes a row of the optimisation problem.

    The intercept is a column of ones, added before norms are computed. `rule` is applied to rows
    whose norm is not the declared bound `row_norm`: "keep" (no bound is declared), "clip" (longer
    rows are scaled down), "normalize" (all rows are scaled to the bound) or "refuse" (longer rows
    are an error).
    """

    fit_intercept: bool
    rule: str = "keep"
    row_norm: float | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` if a setting is not valid, or if settings contradict each other."""
        if self.rule not in RULES:
            raise ValueError(f"rows={self.rule!r}; expected one of {RULES}")
        if self.rule == "keep":
            if self.row_norm is not None:
                raise ValueError(
                    f"row_norm={self.row_norm!r} has no effect with rows='keep'; choose "
                    "rows='clip', 'normalize' or 'refuse', or set row_norm=None"
                )
        elif not POSITIVE.accepts(self.row_norm):
            raise ValueError(
                f"rows={self.rule!r} needs row_norm, a positive bound on the norm of every row "
                f"(including the 1 of the intercept); got row_norm={self.row_norm!r}"
            )

    def build_rows(self, X: Any) -> Any:
        """Return a copy of X as rows of the problem, as an array in C order or as a CSR matrix.

        Raises
        ------
        AssumptionError
            The rule is "refuse", and a row is longer than `row_norm`.
        """
        matrix = as_matrix(X)
        n, p = matrix.shape
        if sp.issparse(matrix):
            columns = [matrix, np.ones((n, 1), matrix.dtype)] if self.fit_intercept else [matrix]
            # In float64: SciPy would convert it at every product.
            rows: Any = sp.csr_array(sp.hstack(columns, format="csr"), dtype=np.float64, copy=True)
            rows.sum_duplicates()
        else:
            rows = np.ones((n, p + self.fit_intercept), matrix.dtype)
            rows[:, :p] = matrix
            rows += 0.0  # -0.0 becomes 0.0
        scales = self._compute_scales(row_norms(rows))
        if scales is None:
            return rows
        if sp.issparse(rows):
            rows.data *= np.repeat(scales, np.diff(rows.indptr)).astype(rows.dtype)
        else:
            rows *= scales[:, None].astype(rows.dtype)
        return rows

    def compute_scores(self, X: Any, W: Floats) -> Floats:
        """Return the scores of input rows, of shape (n, K), without building their problem rows."""
        matrix = as_matrix(X)
        weights = W[:-1] if self.fit_intercept else W
        scores: Floats = np.asarray(matrix @ weights, np.float64)
        if self.fit_intercept:
            scores += W[-1]
        if self.rule in ("keep", "refuse"):
            return scores
        scales = self._compute_scales(np.hypot(row_norms(matrix), float(self.fit_intercept)))
        return scores if scales is None else scores * scales[:, None]

    def export_scales(self, graph: OnnxGraph, rows: str, scores: str) -> str:
        """Add the factors of the rows to scores in an ONNX graph; return the scaled scores."""
        if self.rule in ("keep", "refuse") or self.row_norm is None:
            return scores
        axis = graph.constant(np.array([1]))
        squares = graph.add("ReduceSumSquare", rows, axis, keepdims=1)
        squares = graph.add("Add", squares, graph.constant(np.array(float(self.fit_intercept))))
        # A row of zeros has scores of 0.
        norms = graph.add("Max", graph.add("Sqrt", squares), graph.constant(np.array(1e-300)))
        scales = graph.add("Div", graph.constant(np.array(float(self.row_norm))), norms)
        if self.rule == "clip":
            scales = graph.add("Min", scales, graph.constant(np.array(1.0)))
        return graph.add("Mul", scores, scales)

    def _compute_scales(self, norms: Floats) -> Floats | None:
        """Return the factor by which each row is scaled; None if no row is scaled."""
        if self.rule == "keep" or self.row_norm is None:
            return None
        longer = norms > self.row_norm * (1 + NORM_ROUNDING)
        if self.rule == "refuse":
            if longer.any():
                raise AssumptionError(
                    f"{longer.sum()} row(s) have a norm above row_norm={self.row_norm:g}, up "
                    f"to {norms.max():g} (intercept included); use a larger row_norm, or "
                    "rows='clip'"
                )
            return None
        scales = np.ones_like(norms)
        wanted = norms > 0 if self.rule == "normalize" else norms > self.row_norm
        scales[wanted] = self.row_norm / norms[wanted]
        return scales


def as_matrix(X: Any) -> Any:
    """Return X as float64 or float32, dense or CSR.

    Raise `ValueError` for NaN, infinity and text.
    """
    try:
        return check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32], input_name="X")
    except ValueError as error:
        if "could not convert string" not in str(error):
            raise
    # The original message would quote a value of a person's row.
    raise ValueError(
        "X contains text, but a linear model needs numbers; convert text with "
        "HashingVectorizer and categories with OneHotEncoder"
    )


@dataclass(frozen=True, eq=False)
class Linear:
    """An immutable linear model with the published parameters W, of shape (d, K).

    `classes` contains the sorted labels; None for regression. `joint` is True if the scores are
    those of a softmax. A request replaces the whole object.
    """

    weights: Floats
    design: Design
    classes: NDArray[Any] | None = None
    joint: bool = False

    @cached_property
    def coef(self) -> Floats:
        """Coefficients, one row per score."""
        W = self.weights
        return np.ascontiguousarray((W[:-1] if self.design.fit_intercept else W).T)

    @cached_property
    def intercept(self) -> Floats:
        """Intercepts, one per score."""
        W = self.weights
        return W[-1].copy() if self.design.fit_intercept else np.zeros(W.shape[1])

    def with_weights(self, weights: Floats) -> "Linear":
        """Return a copy of the model with other parameters."""
        return Linear(weights, self.design, self.classes, self.joint)

    def compute_scores(self, X: Any) -> Floats:
        """Return the scores of input rows, of shape (n, K)."""
        return self.design.compute_scores(X, self.weights)

    @property
    def answers(self) -> Answers:
        """What the scores mean."""
        if self.classes is None:
            return Answers("values")
        return Answers("softmax" if self.joint else "one-vs-rest", self.classes)

    def decision_function(self, X: Any) -> Floats:
        """Return the scores of input rows, of shape (n, K), or (n,) if K is 1."""
        return self.answers.decision_function(self.compute_scores(X))

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities, of shape (n, number of classes)."""
        return self.answers.predict_proba(self.compute_scores(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely label of every row, or the predicted number for regression."""
        return self.answers.predict(self.compute_scores(X))


class PublishedModel(Predictor):
    """A linear model for publication, with parameters and guarantee, without rows or secrets.

    The methods `predictor` and `publish` of a fitted estimator return it. A saved estimator
    contains rows and secret noise and must stay private; a published model may be shared.

    Parameters
    ----------
    linear : Linear
        The parameters.
    guarantee : Guarantee
        The guarantee at the time of publication.
    names : tuple of str, optional
        Names of the columns.

    Attributes
    ----------
    coef_, intercept_ : ndarray
        Parameters.
    classes_ : ndarray or None
        Labels, sorted; None for regression.

    Examples
    --------
    >>> from letheon import InfluenceClassifier
    >>> model = InfluenceClassifier(random_state=0).fit([[0.0], [1.0], [2.0]], ["a", "a", "b"])
    >>> published = model.predictor()
    >>> published.guarantee.kind, published.classes_.tolist()
    ('certified', ['a', 'b'])
    """

    def __init__(
        self, linear: Linear, guarantee: Guarantee, names: tuple[str, ...] | None = None
    ) -> None:
        self.linear = linear
        self.guarantee = guarantee
        self.names = names

    @property
    def coef_(self) -> Floats:
        """Coefficients, one row per score."""
        return self.linear.coef

    @property
    def intercept_(self) -> Floats:
        """Intercepts, one per score."""
        return self.linear.intercept

    @property
    def classes_(self) -> NDArray[Any] | None:
        """Labels, sorted; None for regression."""
        return self.linear.classes

    def _predict(self, method: str, X: Any) -> Any:
        return getattr(self.linear, method)(X)

    def _has(self, method: str) -> bool:  # noqa: ARG002
        return self.linear.classes is not None

    def _labels(self) -> NDArray[Any] | None:
        return self.linear.classes

    def _columns(self) -> tuple[int, tuple[str, ...] | None]:
        return len(self.linear.weights) - self.linear.design.fit_intercept, self.names

    def _export(self, graph: OnnxGraph, table: OnnxTable) -> tuple[str, int, Answers]:
        linear, rows = self.linear, graph.join(table)
        affine = AffineScores(linear.coef, (linear.intercept,))
        scores, n_scores = affine.export(graph, rows)
        return linear.design.export_scales(graph, rows, scores), n_scores, linear.answers

    def to_dict(self) -> dict[str, Any]:
        """Return the model as a dictionary of JSON values, which `from_dict` reads."""
        classes = self.linear.classes
        return {
            "format": "letheon-linear-v1",
            "weights": self.linear.weights.tolist(),
            "classes": None if classes is None else classes.tolist(),
            "joint": self.linear.joint,
            "design": asdict(self.linear.design),
            "guarantee": asdict(self.guarantee),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the model from a dictionary that `to_dict` returned."""
        if values.get("format") != "letheon-linear-v1":
            raise ValueError(
                f"format={values.get('format')!r} is not supported; expected 'letheon-linear-v1'"
            )
        classes = values["classes"]
        linear = Linear(
            np.array(values["weights"], np.float64),
            Design(**values["design"]),
            None if classes is None else np.array(classes),
            bool(values["joint"]),
        )
        n_scores = 1 if classes is None or len(classes) == 2 else len(classes)
        if linear.weights.ndim != 2 or linear.weights.shape[1] != n_scores:
            raise ValueError(
                f"weights has the shape {linear.weights.shape}; expected one row per column of "
                f"X and {n_scores} column(s), one per score"
            )
        claim = dict(values["guarantee"])
        for name in ("assumptions", "residual_state"):
            claim[name] = tuple(claim[name])
        return cls(linear, Guarantee(**claim))
