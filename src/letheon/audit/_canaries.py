"""V6: people whom the auditor planted; erased ones must look like ones who were never there.

The auditor draws people from one pool, splits them by lot, has one half trained on and then
erased, and keeps the other half away. If the model forgot, the split is still a matter of chance,
so that the ranks of the model's scores are exchangeable. The test says nothing against an operator
who recognises the canaries.
"""

from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.audit._result import LevelResult

_PERMUTATIONS = 20_000
_BLOCKS = 20
_FEWEST = 5


@dataclass(frozen=True, eq=False)
class Canaries:
    """Rows of planted people: those trained on and erased, and those never shown.

    Parameters
    ----------
    X_erased, y_erased : array-like
        Rows and labels of the erased ones. Labels drawn by lot are remembered best.
    X_unseen, y_unseen : array-like
        Rows and labels of the others, from the same pool.
    level : float, default=0.01
        Probability of failing a model that forgot.
    """

    X_erased: Any
    y_erased: Any
    X_unseen: Any
    y_unseen: Any
    level: float = 0.01

    def __post_init__(self) -> None:
        """Refuse a level at which no model, or every model, would fail."""
        if not 0 < self.level < 1:
            raise ValueError(f"level={self.level!r} is no probability between 0 and 1")


def check_canaries(model: Any, canaries: Canaries, name: str = "") -> LevelResult:
    """Test whether erased canaries score like unseen ones.

    Parameters
    ----------
    model : fitted estimator
        The model under audit; only its predictions are used.
    canaries : Canaries
        Planted people.
    name : str
        Of the model, for the result.

    Returns
    -------
    LevelResult
        "fail" if the sum of ranks of the erased ones' scores is so high that chance alone gives
        one like it with a probability below the level (one-sided permutation test, which is exact
        for ties too); "skipped" if there are too few canaries for the level, or if the model
        knows none of their labels.
    """
    unknown = _unknown_labels(model, canaries)
    if unknown == 1.0:
        reason = "the model knows none of the canaries' labels; give them as it was trained on them"
        return LevelResult("V6", name, "skipped", reason)
    erased = own_label_scores(model, canaries.X_erased, canaries.y_erased)
    unseen = own_label_scores(model, canaries.X_unseen, canaries.y_unseen)
    fewest = min(len(erased), len(unseen))
    # No split is less likely than one of all; below that nothing could ever fail.
    least = max(1 / comb(len(erased) + len(unseen), len(erased)), 1 / (1 + _PERMUTATIONS))
    if fewest < _FEWEST or least >= canaries.level:
        reason = f"{fewest} canaries are too few; plant {_FEWEST} or more of each kind"
        return LevelResult("V6", name, "skipped", f"{reason}, more for a lower level")
    p_value = rank_p_value(erased, unseen)
    advantage = float((erased[:, None] > unseen).mean() + 0.5 * (erased[:, None] == unseen).mean())
    details = {
        "p": f"{p_value:.4g}",
        "auc": f"{advantage:.3f}",
        "level": canaries.level,
        "erased": len(erased),
        "unseen": len(unseen),
        "unknownLabels": f"{unknown:.0%}",
    }
    if p_value < canaries.level:
        reason = f"erased canaries score higher than unseen ones (p = {p_value:.2g})"
        return LevelResult("V6", name, "fail", reason, details)
    reason = f"erased canaries score like unseen ones (p = {p_value:.2g})"
    return LevelResult("V6", name, "pass", reason, details)


def _unknown_labels(model: Any, canaries: Canaries) -> float:
    """Return the share of canaries whose label the model does not know, and so cannot score."""
    if not hasattr(model, "predict_proba"):
        return 0.0
    known = set(np.asarray(model.classes_).tolist())
    labels = [*np.asarray(canaries.y_erased).tolist(), *np.asarray(canaries.y_unseen).tolist()]
    return sum(label not in known for label in labels) / max(len(labels), 1)


def own_label_scores(model: Any, X: Any, y: Any) -> NDArray[np.float64]:
    """Return how much a model favours the label that each row came with; higher is more."""
    labels = np.asarray(y)
    if hasattr(model, "predict_proba"):
        shares = np.asarray(model.predict_proba(X), np.float64)
        place = {label: number for number, label in enumerate(np.asarray(model.classes_).tolist())}
        columns = [place.get(label, -1) for label in labels.tolist()]
        found = shares[np.arange(len(labels)), columns]
        return np.where(np.asarray(columns) < 0, 0.0, found)
    predicted = np.asarray(model.predict(X))
    if predicted.dtype.kind == "f" and labels.dtype.kind in "fiu":
        return np.asarray(-np.abs(predicted - labels.astype(np.float64)), np.float64)
    return np.asarray(predicted == labels, np.float64)


def rank_p_value(high: NDArray[np.float64], low: NDArray[np.float64]) -> float:
    """Return the probability of a rank sum as large as that of `high` if the split is by lot."""
    ranks = average_ranks(np.concatenate([high, low]))
    observed = ranks[: len(high)].sum()
    rng, reached = np.random.default_rng(0), 0
    block = np.tile(ranks, (_PERMUTATIONS // _BLOCKS, 1))
    for _ in range(_BLOCKS):
        sums = rng.permuted(block, axis=1)[:, : len(high)].sum(axis=1)
        reached += int((sums >= observed - 1e-9).sum())
    return (1 + reached) / (1 + _PERMUTATIONS)


def average_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks 1..n; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    means: NDArray[np.float64] = np.cumsum(counts) - (counts - 1) / 2
    return means[place]
