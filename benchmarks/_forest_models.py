"""The forests under test, all of one size, and how long things take."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks._data import Split
from letheon.forest import DaREForestClassifier

__all__ = ["Quality", "Shape", "Timing", "quality", "seconds"]


def seconds(call: Callable[[], Any]) -> float:
    """Return how long a call takes on the clock."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Timing(NamedTuple):
    """Repeated times of one thing, in seconds."""

    what: str
    values: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean of all."""
        return float(self.values.mean())

    def quantile(self, share: float) -> float:
        """Time that this share of the calls stays within."""
        return float(np.quantile(self.values, share))

    def row(self, unit: float) -> tuple[Any, ...]:
        """Return the line of a table, in milliseconds, and the mean as a multiple of `unit`."""
        spread = (1000 * self.quantile(share) for share in (0.5, 0.99, 1))
        return (self.what, len(self.values), 1000 * self.mean, *spread, as_unit(self.mean, unit))


def as_unit(value: float, unit: float) -> str:
    """Write a time as a multiple or as a part of F."""
    share = value / unit
    return f"{share:.2f} F" if share > 0.05 else f"F/{1 / share:,.0f}"


class Quality(NamedTuple):
    """How well a model ranks the test rows."""

    auc: float
    average_precision: float


def quality(model: Any, split: Split) -> Quality:
    """Score a fitted model on the test rows."""
    scores = model.predict_proba(split.X_test)[:, 1]
    return Quality(
        float(roc_auc_score(split.y_test, scores)),
        float(average_precision_score(split.y_test, scores)),
    )


class Shape(NamedTuple):
    """Size that all forests of a comparison share."""

    n_estimators: int = 100
    max_depth: int = 10

    def ours(self, seed: int, **settings: Any) -> Any:
        """Return our forest, unfitted, one thread."""
        chosen = {"n_thresholds": 25, "n_jobs": 1, **self._asdict(), **settings}
        return DaREForestClassifier(max_features="sqrt", random_state=seed, **chosen)

    def random_forest(self, seed: int) -> Any:
        """Return scikit-learn's forest whose fit time is the unit F."""
        return RandomForestClassifier(
            **self._asdict(), max_features="sqrt", bootstrap=False, n_jobs=1, random_state=seed
        )

    def extra_trees(self, seed: int) -> Any:
        """Return scikit-learn's extremely randomised trees."""
        return ExtraTreesClassifier(
            **self._asdict(), max_features="sqrt", n_jobs=1, random_state=seed
        )
