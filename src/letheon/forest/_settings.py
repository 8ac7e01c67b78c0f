"""Settings of a forest: checked in the caller's words, resolved in the core's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon import _core
from letheon.exceptions import PrecisionWarning, warn_caller
from letheon.seeds import Purpose, keyed_hash_ints

# Parameters that `Settings` holds in resolved form.
RESOLVED = frozenset(
    {
        "criterion",
        "n_estimators",
        "max_depth",
        "max_features",
        "n_thresholds",
        "random_depth",
        "min_samples_split",
        "min_samples_leaf",
        "subsample",
        "y_max",
    }
)

# The core counts in 32 bits; nobody means more trees, levels or thresholds than this.
_MOST = 2**31 - 1
_ALL_THRESHOLDS = 0
_UNLIMITED = -1
# Of the whole number that stands for a regression target, without its sign; with fewer in use the
# caller hears of it.
_TARGET_BITS = 31
_FEWEST_BITS = 16


@dataclass(frozen=True)
class Settings:
    """Everything but the rows that decides a forest, resolved for a number of columns.

    `max_depth` is -1 for unlimited, `n_thresholds` 0 for all values; `y_exponent` is the fixed
    scale of a regression target, None where it follows from the rows.
    """

    criterion: str
    n_trees: int
    n_columns: int
    max_depth: int
    max_features: int
    n_thresholds: int
    random_depth: int
    min_samples_split: int
    min_samples_leaf: int
    subsample: float
    y_exponent: int | None
    seed: int

    @property
    def is_regression(self) -> bool:
        """Whether targets are numbers and not classes."""
        return self.criterion == "squared_error"

    @property
    def subsamples(self) -> bool:
        """Whether each tree sees a part of the people only."""
        return self.subsample < 1

    def spec(self, first: int = 0, last: int | None = None) -> _core.ForestSpec:
        """Return the core's settings for trees first..last, by default all of them."""
        numbers = np.arange(first, self.n_trees if last is None else last, dtype=np.int64)
        sample_keys, limit = np.empty(0, np.uint64), 0
        if self.subsamples:
            sample_keys = keyed_hash_ints(self.seed, Purpose.TREE_ROWS, numbers)
            limit = int(self.subsample * 2.0**64)  # exact: a power of two moves no digit
        return _core.ForestSpec(
            criterion=self.criterion,
            n_columns=self.n_columns,
            max_depth=self.max_depth,
            max_features=self.max_features,
            n_thresholds=self.n_thresholds,
            random_depth=self.random_depth,
            min_samples_split=self.min_samples_split,
            min_samples_leaf=self.min_samples_leaf,
            tree_keys=keyed_hash_ints(self.seed, Purpose.TREE, numbers),
            sample_keys=sample_keys,
            sample_limit=limit,
            y_exponent=self.y_exponent,
        )


def check_settings(model: Any, criteria: Sequence[str]) -> None:
    """Raise for a parameter that makes no sense, whatever the rows are."""
    check_choice("criterion", model.criterion, criteria)
    check_rebuild(model.rebuild)
    check_count("n_estimators", model.n_estimators, 1)
    check_count("max_depth", model.max_depth, 0, none_is="no limit")
    check_count("n_thresholds", model.n_thresholds, 1, none_is="all values")
    check_count("random_depth", model.random_depth, 0)
    check_count("min_samples_split", model.min_samples_split, 2)
    check_count("min_samples_leaf", model.min_samples_leaf, 1)
    check_share("subsample", model.subsample)
    resolve_max_features(model.max_features, 1)
    check_jobs(model.n_jobs)


def resolve(model: Any, n_columns: int, seed: int) -> Settings:
    """Return the checked parameters of an estimator for rows of so many columns."""
    return Settings(
        criterion=str(model.criterion),
        n_trees=int(model.n_estimators),
        n_columns=n_columns,
        max_depth=_UNLIMITED if model.max_depth is None else int(model.max_depth),
        max_features=resolve_max_features(model.max_features, n_columns),
        n_thresholds=_ALL_THRESHOLDS if model.n_thresholds is None else int(model.n_thresholds),
        random_depth=int(model.random_depth),
        min_samples_split=int(model.min_samples_split),
        min_samples_leaf=int(model.min_samples_leaf),
        subsample=float(model.subsample),
        y_exponent=_y_exponent(getattr(model, "y_max", None)),
        seed=seed,
    )


def resolve_max_features(value: Any, n_columns: int) -> int:
    """Return how many columns a node looks at, by scikit-learn's words."""
    if value is None:
        return n_columns
    if isinstance(value, str) and value in ("sqrt", "log2"):
        root = math.isqrt(n_columns) if value == "sqrt" else n_columns.bit_length() - 1
        return max(1, root)
    if isinstance(value, float | np.floating):
        return max(1, int(check_share("max_features", value) * n_columns))
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise (ValueError if isinstance(value, str) else TypeError)(
            f"max_features={value!r}; expected 'sqrt', 'log2', an int of at least 1, a float above "
            "0 and up to 1 (a share of the columns), or None (all columns)"
        )
    return min(check_count("max_features", value, 1), n_columns)


def check_count(name: str, value: Any, least: int, *, none_is: str | None = None) -> int:
    """Return a whole number that is large enough, or say what was wrong with it."""
    if value is None and none_is is not None:
        return 0
    also = "" if none_is is None else f", or None ({none_is})"
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r}; expected an int of at least {least}{also}")
    if value < least:
        raise ValueError(f"{name}={value}; expected an int of at least {least}{also}")
    if value > _MOST:
        raise ValueError(f"{name}={value}; expected at most {_MOST}{also}")
    return int(value)


def check_jobs(n_jobs: Any) -> None:
    """Raise unless joblib can make something of it."""
    if n_jobs is None:
        return
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer):
        raise TypeError(f"n_jobs={n_jobs!r}; expected an int, such as 2 or -1 (all cores), or None")
    if n_jobs == 0:
        raise ValueError("n_jobs=0; expected at least 1, a negative number as in joblib, or None")


def check_share(name: str, value: Any) -> float:
    """Return a share, above 0 and up to 1, or say what was wrong with it."""
    if isinstance(value, bool) or not isinstance(value, float | int | np.number):
        raise TypeError(f"{name}={value!r}; expected a number above 0 and up to 1")
    if not 0 < value <= 1:
        raise ValueError(f"{name}={value}; expected a number above 0 and up to 1")
    return float(value)


def check_choice(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise unless the value is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={value!r}; expected one of {tuple(allowed)}")


def check_rebuild(value: Any) -> bool:
    """Return whether to rebuild at once, or raise: the parameter may be changed after fit."""
    check_choice("rebuild", value, ("lazy", "eager"))
    return bool(value == "eager")


def check_y_max(value: Any) -> None:
    """Raise unless `y_max` is None or a positive finite number."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, float | int | np.number):
        raise TypeError(f"y_max={value!r}; expected a positive number or None")
    if not 0 < float(value) < math.inf:
        raise ValueError(f"y_max={value}; expected a positive finite number or None")


def check_number(name: str, value: Any, least: float) -> float:
    """Return a number that is large enough, or say what was wrong with it."""
    if isinstance(value, bool) or not isinstance(value, float | int | np.number):
        raise TypeError(f"{name}={value!r}; expected a number of at least {least}")
    if not value >= least:
        raise ValueError(f"{name}={value}; expected a number of at least {least}")
    return float(value)


def warn_if_coarse(target: NDArray[Any], y_max: Any) -> None:
    """Warn if the bound of a regression target leaves few bits to the target itself."""
    exponent = _y_exponent(y_max)
    if exponent is None:
        return
    largest = float(np.abs(target).max())
    used = _TARGET_BITS - exponent + math.frexp(largest)[1]
    if largest == 0 or used >= _FEWEST_BITS:
        return
    step = math.ldexp(1.0, exponent - _TARGET_BITS)
    warn_caller(
        f"y_max={y_max} rounds targets to steps of {step:.3g}, and the largest of them is "
        f"{largest:.3g}; give a smaller bound, or None",
        PrecisionWarning,
    )


def _y_exponent(y_max: Any) -> int | None:
    return None if y_max is None else math.frexp(float(y_max))[1]
