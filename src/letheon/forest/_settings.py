"""Settings of a forest: checked in the caller's words, resolved in the core's."""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon import _core
from letheon.exceptions import PrecisionWarning, warn_caller
from letheon.seeds import Purpose, keyed_hash_ints
from letheon.validation import JOBS, POSITIVE, Either, Interval, OneOf, OrNone, Rules, Whole

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


# Parameters that `Settings` holds in resolved form.
RESOLVED = frozenset(field.name for field in fields(Settings)) | {"n_estimators", "y_max"}
_COUNT = Whole(1, _MOST)
_SHARE = Interval(0, 1, closed="right")
REBUILD = OneOf(("lazy", "eager"))
PARAMETER_RULES: Rules = {
    "rebuild": REBUILD,
    "n_estimators": _COUNT,
    "max_depth": OrNone(Whole(0, _MOST), "no limit"),
    "n_thresholds": OrNone(_COUNT, "all values"),
    "random_depth": Whole(0, _MOST),
    "min_samples_split": Whole(2, _MOST),
    "min_samples_leaf": _COUNT,
    "subsample": _SHARE,
    "max_features": OrNone(
        Either(OneOf(("sqrt", "log2"), "'sqrt', 'log2'"), _COUNT, _SHARE), "all columns"
    ),
    "n_jobs": JOBS,
    "y_max": OrNone(POSITIVE),
}


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
        return max(1, int(value * n_columns))
    return min(int(value), n_columns)


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
