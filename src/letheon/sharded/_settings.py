"""Checks of the settings of a sharded model, all before anything is trained."""

import math
from typing import Any

from sklearn.base import is_classifier, is_regressor

from letheon.inner import parts_of
from letheon.sharded._plan import epochs_per_stage

_USUAL_EPOCHS = 10


def check_kind(estimator: Any, *, classifier: bool) -> None:
    """Raise unless the inner estimator is of the wrapper's kind."""
    right = is_classifier(estimator) if classifier else is_regressor(estimator)
    if not right:
        expected = "classifier" if classifier else "regressor"
        other = "SISARegressor" if classifier else "SISAClassifier"
        raise TypeError(
            f"estimator={estimator!r} is no {expected}; give one, or use {other} or NaiveUnlearner"
        )


def stage_epochs(
    estimator: Any, n_slices: int, epochs: int | None, stage_data: str
) -> tuple[int, ...] | None:
    """Return the passes of every stage, or None when each shard is given to `fit` whole."""
    if n_slices == 1 and epochs is None:
        return None
    _require_partial_fit(estimator, f"n_slices={n_slices}" if n_slices > 1 else f"epochs={epochs}")
    if epochs is None:
        least = math.ceil((n_slices + 1) / 2)
        epochs = max(_USUAL_EPOCHS, least) if stage_data == "cumulative" else 1
    schedule = epochs_per_stage(int(epochs), n_slices, stage_data)  # type: ignore[arg-type]
    for part in parts_of(estimator):
        if type(part.estimator).__module__ == "sklearn.naive_bayes":
            _require_counting_once(part.estimator, schedule, stage_data)
    return schedule


def _require_partial_fit(estimator: Any, setting: str) -> None:
    if hasattr(estimator, "partial_fit"):
        return
    hint = ""
    if "warm_start" in estimator.get_params(deep=False):
        hint = " (warm_start is not enough: a warm-started ensemble keeps its first size)"
    raise ValueError(
        f"{setting} needs an estimator with partial_fit, and "
        f"{type(estimator).__name__} has none{hint}; use n_slices=1 and epochs=None, or an "
        "incremental learner such as SGDClassifier or MLPClassifier"
    )


def _require_counting_once(estimator: Any, schedule: tuple[int, ...], stage_data: str) -> None:
    if max(schedule) > 1 or (stage_data == "cumulative" and len(schedule) > 1):
        raise ValueError(
            f"{type(estimator).__name__} counts rows, so it must see each row once: use "
            f"stage_data='new' and epochs=1 (got stage_data={stage_data!r}, passes {schedule})"
        )
