"""From scores to labels, probabilities and decision values; models and predictors share it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, softmax

Floats = NDArray[np.float64]


def _share_logits(scores: Floats) -> Floats:
    if scores.shape[1] > 1:
        return np.asarray(softmax(scores, axis=1))
    positive = expit(scores[:, 0])
    return np.column_stack([1 - positive, positive])


def _share_one_vs_rest(scores: Floats) -> Floats:
    if scores.shape[1] == 1:
        return np.column_stack([expit(-scores[:, 0]), expit(scores[:, 0])])
    shares = expit(scores)
    total = shares.sum(axis=1, keepdims=True)
    # If all scores underflow to 0, the classes are equally likely.
    equal = np.full_like(shares, 1 / shares.shape[1])
    return np.asarray(np.divide(shares, total, out=equal, where=total > 0))


def normalise_logs(scores: Floats) -> Floats:
    """Return logarithms of probabilities from those of joint probabilities.

    Parameters
    ----------
    scores : ndarray of shape (n_rows, n_classes)
        Logarithms of joint probabilities.

    Returns
    -------
    ndarray of shape (n_rows, n_classes)

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.predictor import normalise_logs
    >>> np.exp(normalise_logs(np.log([[1.0, 3.0]]))).round(2)
    array([[0.25, 0.75]])
    """
    return np.asarray(scores - np.asarray(logsumexp(scores, axis=1))[:, None])


# How the scores of each kind of classifier become probabilities; None if they do not.
_SHARES: dict[str, Callable[[Floats], Floats] | None] = {
    "shares": lambda scores: scores,
    "logits": _share_logits,
    "softmax": lambda scores: np.asarray(softmax(scores, axis=1)),
    "one-vs-rest": _share_one_vs_rest,
    "log-joint": lambda scores: np.exp(normalise_logs(scores)),
    "discriminants": lambda scores: np.exp(normalise_logs(scores)),
    "margins": None,
}
_WITHOUT_DECISION = ("shares", "log-joint")


@dataclass(frozen=True, eq=False)
class Answers:
    """What the scores of a model mean.

    Attributes
    ----------
    kind : str
        For regression ``"values"``, or ``"log-values"`` with a logarithmic link. For
        classification: ``"shares"`` (probabilities), ``"logits"``, ``"softmax"``,
        ``"one-vs-rest"``, ``"margins"`` (without probabilities), ``"log-joint"`` or
        ``"discriminants"`` (logarithms of joint probabilities).
    classes : ndarray or None
        Labels, sorted; None for regression.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.predictor import Answers
    >>> answers = Answers("shares", np.array(["no", "yes"]))
    >>> answers.predict(np.array([[0.3, 0.7]])).tolist()
    ['yes']
    """

    kind: str
    classes: NDArray[Any] | None = None

    def _require_valid(self) -> None:
        """Raise `ValueError` if a file has no labels of a known kind."""
        classes = self.classes
        if classes is None:
            is_valid = self.kind in ("values", "log-values")
        else:
            is_array = isinstance(classes, np.ndarray) and classes.ndim == 1 and classes.size > 0
            is_valid = is_array and self.kind in tuple(_SHARES)
        if not is_valid:
            raise ValueError("the kind of the scores or the labels are not valid")

    def _require_scores(self, n_scores: int) -> None:
        """Raise `ValueError` if this number of scores does not match the labels."""
        if self.classes is None:
            return
        n_classes = len(self.classes)
        if n_scores != n_classes and not (n_scores == 1 and n_classes == 2):
            raise ValueError(f"{n_scores} scores do not match {n_classes} labels")

    @property
    def has_probabilities(self) -> bool:
        """Whether there are class probabilities."""
        return _SHARES.get(self.kind) is not None

    @property
    def has_decision(self) -> bool:
        """Whether there are decision values."""
        return self.classes is not None and self.kind not in _WITHOUT_DECISION

    def predict(self, scores: Floats) -> NDArray[Any]:
        """Return the label of each row, or its value for regression."""
        if self.classes is None:
            values = np.exp(scores) if self.kind == "log-values" else scores
            return values[:, 0] if values.shape[1] == 1 else values
        if len(self.classes) == 1:
            places = np.zeros(len(scores), int)
        elif scores.shape[1] > 1:
            places = scores.argmax(axis=1)
        else:
            places = (scores[:, 0] > 0).astype(int)
        labels: NDArray[Any] = self.classes[places]
        return labels

    def predict_proba(self, scores: Floats) -> Floats:
        """Return class probabilities, in the order of the classes."""
        share = _SHARES[self.kind]
        assert share is not None
        if self.classes is not None and len(self.classes) == 1 and self.kind == "logits":
            return np.ones_like(scores)
        return share(scores)

    def decision_function(self, scores: Floats) -> Floats:
        """Return decision values; those of two classes have the shape (n_rows,)."""
        if self.kind == "discriminants" and scores.shape[1] == 2:
            return np.asarray(scores[:, 1] - scores[:, 0])
        return scores[:, 0] if scores.shape[1] == 1 else scores
