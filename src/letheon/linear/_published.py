"""What may leave the house: parameters, labels and the claim, without rows, noise or account."""

from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from letheon.guarantee import Guarantee
from letheon.linear._design import Design
from letheon.linear._linear import Linear
from letheon.linear._losses import Floats


@dataclass(frozen=True, eq=False)
class PublishedModel:
    """A linear model to give away: it predicts, states its guarantee and holds nothing else.

    Made by `publish` of a fitted estimator. A saved estimator holds rows and secret noise and must
    stay private; this need not.

    Attributes
    ----------
    coef_, intercept_ : ndarray
        Parameters.
    classes_ : ndarray or None
        Labels, sorted; None for regression.
    guarantee : Guarantee
        What was claimed when it was published.
    """

    linear: Linear
    guarantee: Guarantee

    @property
    def coef_(self) -> Floats:
        """Coefficients, one line per score."""
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
        """Return labels, or numbers for regression."""
        if self.linear.classes is None:
            return self.linear.scores(X)[:, 0]
        return self.linear.labels(X)

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities, in the order of `classes_`."""
        if self.linear.classes is None:
            raise AttributeError("a regression has no predict_proba")
        return self.linear.shares(X)

    def decision_function(self, X: Any) -> Floats:
        """Return the scores: one per row for two classes, else one per row and class."""
        scores = self.linear.scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON; `from_dict` reads it."""
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
        """Return the model that `to_dict` described."""
        if values.get("format") != "letheon-linear-v1":
            raise ValueError(f"format={values.get('format')!r}; expected 'letheon-linear-v1'")
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
                f"weights have shape {linear.weights.shape}; expected a line per column and "
                f"{n_scores} score(s) per line"
            )
        claim = dict(values["guarantee"])
        for name in ("assumptions", "residual_state"):
            claim[name] = tuple(claim[name])
        return cls(linear, Guarantee(**claim))
