"""How often the removal of one person changes a published statistic, and how often is stated.

Each removal is made under dithers of its own: another seed, or another column or category under
the same seed.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from letheon.data import SlotRows, as_ids, hold_target
from letheon.delta import Delta, RowSource, take_block
from letheon.preprocessing import (
    OneHotEncoder,
    QuantileBinner,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
    TargetEncoder,
)
from letheon.preprocessing._terms import hash_texts, round_logarithms
from letheon.seeds import Purpose, keyed_hash
from letheon.sums import sample_border

N_ROWS, N_COLUMNS = 5_000, 100
# Target encodings are compared on fewer rows, in categories of this many.
ROWS_PER_CATEGORY, N_CATEGORIES = 250, 4
N_BINS = 255


class StatisticFrequency(NamedTuple):
    """Changes of a statistic in a number of removals, and the stated probability of one."""

    name: str
    n_removals: int
    n_changes: int
    stated: float
    source: str

    @property
    def share(self) -> float:
        """Changes per removal."""
        return self.n_changes / self.n_removals

    @property
    def is_within(self) -> bool:
        """Whether the frequency is at most the stated probability and three standard errors."""
        return self.share <= self.stated + 3 * math.sqrt(self.stated / self.n_removals)


def iter_plans(
    step: Any, X: Any, y: Any, n_trials: int, *, has_seed: bool = True
) -> Iterator[tuple[Any, Any, int]]:
    """Iterate over published values before and after the removal of a row, each with a new seed."""
    rows = SlotRows(X, None if y is None else hold_target(y), as_ids(np.arange(len(X))))
    rows.build_caches()
    source = RowSource(rows)
    for seed in range(n_trials):
        if has_seed or seed == 0:
            step.seed_ = seed
            step.sums_, step.published_ = step._count(source, seed)
        slot = np.array([seed % len(X)])
        remaining = RowSource(rows, slot)
        delta = Delta(removed=take_block(rows, slot), before=remaining, source=remaining)
        yield step.published_, step._prepare_delta(delta).published, seed % len(X)


def count_columns(
    step: Any, X: Any, n_removals: int, differ: Callable[[Any, Any], int], *, has_seed: bool = True
) -> tuple[int, int]:
    """Return the number of removals, one for each column and seed, and of changed columns."""
    n_trials = -(-n_removals // X.shape[1])
    plans = iter_plans(step, X, None, n_trials, has_seed=has_seed)
    count = sum(differ(old, new) for old, new, _ in plans)
    return n_trials * X.shape[1], count


def _differ_scaling(old: Any, new: Any) -> int:
    return int(((old.centre != new.centre) | (old.scale != new.scale)).sum())


def _differ_fills(old: Any, new: Any) -> int:
    return sum(a != b for a, b in zip(old.statistics, new.statistics, strict=True))


def _differ_outputs(old: Any, new: Any) -> int:
    return sum(a != b for a, b in zip(old.groups, new.groups, strict=True))


def measure_columns(n_removals: int) -> Iterator[StatisticFrequency]:
    """Measure the statistics of columns of numbers and of categories."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((N_ROWS, N_COLUMNS))
    numbers: list[tuple[str, Any, float, Callable[[Any, Any], int]]] = [
        ("mean and deviation, scaler", StandardScaler(), 1.5, _differ_scaling),
        ("median and robust scale", RobustScaler(), 64, _differ_scaling),
        ("mean, imputer", SimpleImputer(), 8, _differ_fills),
        ("median, imputer", SimpleImputer(strategy="median"), 8, _differ_fills),
    ]
    for name, step, factor, differ in numbers:
        counts = count_columns(step, X, n_removals, differ)
        yield StatisticFrequency(name, *counts, factor / N_ROWS, f"{factor:g} / n per column")
    categories = rng.zipf(1.5, (N_ROWS, N_COLUMNS)).clip(max=200).astype(float)
    few = "a few per thousand"
    lists = OneHotEncoder(min_frequency=10)
    modes = SimpleImputer(strategy="most_frequent")
    for name, encoder, differ in (
        ("most frequent value, imputer", modes, _differ_fills),
        ("one-hot list, min_frequency=10", lists, _differ_outputs),
    ):
        counts = count_columns(encoder, categories, n_removals, differ, has_seed=False)
        yield StatisticFrequency(name, *counts, 0.005, few)


def measure_bins(n_removals: int) -> StatisticFrequency:
    """Measure the edges of quantile bins; one sample decides on all columns."""
    X = np.random.default_rng(5).standard_normal((N_ROWS, 1))
    plans = iter_plans(QuantileBinner(n_bins=N_BINS), X, None, n_removals)
    count = sum(not np.array_equal(old.edges[0], new.edges[0]) for old, new, _ in plans)
    stated = 256 / N_ROWS
    return StatisticFrequency("bins of all columns", n_removals, count, stated, "256 / n")


def measure_targets(n_removals: int) -> StatisticFrequency:
    """Measure the encoding for new rows of the category of the row that is removed."""
    rng = np.random.default_rng(6)
    n_rows = ROWS_PER_CATEGORY * N_CATEGORIES
    X = np.tile(np.repeat(np.arange(float(N_CATEGORIES)), ROWS_PER_CATEGORY), (N_COLUMNS, 1))
    X = rng.permuted(X, axis=1).T.copy()
    y = rng.integers(0, 2, n_rows)
    n_trials, count = -(-n_removals // N_COLUMNS), 0
    for old, new, row in iter_plans(TargetEncoder(), X, y, n_trials):
        pairs = zip(old.codes, new.codes, X[row].tolist(), strict=True)
        count += sum(before[key][-1] != after[key][-1] for before, after, key in pairs)
    stated = 64 / ROWS_PER_CATEGORY
    return StatisticFrequency(
        "target encoding of a category", n_trials * N_COLUMNS, count, stated, "64 / m"
    )


def measure_logarithms(n_removals: int) -> Iterator[StatisticFrequency]:
    """Measure the logarithms of an idf: of documents with a term, and of all documents."""
    terms = [f"term{number}" for number in range(n_removals)]
    dithers = hash_texts(7, Purpose.TERM, terms)
    for df in (10, 100, 1_000):
        count = _count_logarithms(df, dithers)
        yield StatisticFrequency(f"idf, df = {df:,}", n_removals, count, 2 / df, "2 / df")
    levels = [keyed_hash(seed, Purpose.DOCUMENTS) for seed in range(n_removals)]
    count = _count_logarithms(N_ROWS, np.array(levels, np.uint64))
    yield StatisticFrequency("idf, rounded n", n_removals, count, 2 / N_ROWS, "2 / n")


def _count_logarithms(number: int, dithers: Any) -> int:
    before, after = (
        round_logarithms(np.full(len(dithers), 1 + n), dithers) for n in (number, number - 1)
    )
    return int((before != after).sum())


def measure_sample(n_removals: int, n_sampled: int = 500) -> StatisticFrequency:
    """Measure how often a person is in a keyed sample, or moves its border; n from 10,000 on."""
    count, stated = 0, 0.0
    person = as_ids(["person"])
    for seed in range(n_removals):
        n = 10_000 + seed
        border = sample_border(n_sampled, n)
        is_moved = sample_border(n_sampled, n - 1) != border
        hashed = int(person.hashes(seed, Purpose.KEYED_SAMPLE)[0])
        count += is_moved or hashed < border
        stated += 1.2 * n_sampled / n
    name, source = "refit of a keyed sample of 500", "1 to 1.2 times n_people / n"
    return StatisticFrequency(name, n_removals, count, stated / n_removals, source)


def measure_frequencies(n_removals: int) -> list[StatisticFrequency]:
    """Return the frequency of changes of every rounded statistic."""
    return [
        *measure_columns(n_removals),
        measure_bins(n_removals),
        measure_targets(n_removals),
        *measure_logarithms(n_removals),
        measure_sample(n_removals),
    ]
