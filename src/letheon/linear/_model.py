"""Published linear models: row preprocessing, parameters, labels and guarantee."""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.utils import check_array

from letheon.exceptions import AssumptionError
from letheon.guarantee import Guarantee
from letheon.linear._problem import Floats, row_norms
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

    def decision_function(self, X: Any) -> Floats:
        """Return the scores of input rows, of shape (n, K), or (n,) if K is 1."""
        scores = self.compute_scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities, of shape (n, number of classes)."""
        scores = self.compute_scores(X)
        if self.joint:
            shares: Floats = softmax(scores, axis=1)
            return shares
        if scores.shape[1] == 1:
            return np.column_stack([expit(-scores[:, 0]), expit(scores[:, 0])])
        shares = expit(scores)
        total = shares.sum(axis=1, keepdims=True)
        # If all scores underflow to 0, the classes are equally likely.
        equal = np.full_like(shares, 1 / shares.shape[1])
        mixed: Floats = np.divide(shares, total, out=equal, where=total > 0)
        return mixed

    def predict_labels(self, X: Any) -> NDArray[Any]:
        """Return the most likely label of every row."""
        assert self.classes is not None
        scores = self.compute_scores(X)
        codes = scores.argmax(axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0).astype(int)
        labels: NDArray[Any] = self.classes[codes]
        return labels


@dataclass(frozen=True, eq=False)
class PublishedModel:
    """A linear model for publication, with parameters and guarantee, without rows or secrets.

    The method `publish` of a fitted estimator returns it. A saved estimator contains rows and
    secret noise and must stay private; a published model may be shared.

    Attributes
    ----------
    coef_, intercept_ : ndarray
        Parameters.
    classes_ : ndarray or None
        Labels, sorted; None for regression.
    guarantee : Guarantee
        The guarantee at the time of publication.
    """

    linear: Linear
    guarantee: Guarantee

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

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely label of every row, or the predicted number for regression."""
        linear = self.linear
        return linear.decision_function(X) if linear.classes is None else linear.predict_labels(X)

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities, in the order of `classes_`."""
        if self.linear.classes is None:
            raise AttributeError("predict_proba is not available for a regression; use predict")
        return self.linear.predict_proba(X)

    def decision_function(self, X: Any) -> Floats:
        """Return the scores, of shape (n_rows,) for two classes, otherwise (n_rows, n_classes)."""
        return self.linear.decision_function(X)

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
