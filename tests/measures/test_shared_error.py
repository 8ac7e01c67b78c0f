"""Runs with the same test rows share the error of these rows."""

import numpy as np
import pytest
from scipy.stats import t as student_law

from letheon.measures import over_seeds

DRAWS = 2_000


@pytest.mark.parametrize(
    ("n_seeds", "n_rows", "between_seeds"), [(3, 50, 0.3), (5, 200, 1.0), (3, 30, 0.0)]
)
def test_the_interval_covers_the_truth_of_other_rows_and_seeds(
    n_seeds: int, n_rows: int, between_seeds: float
) -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(DRAWS):
        rows = rng.normal(size=n_rows)
        runs = rows.mean() + between_seeds / np.sqrt(n_rows) * rng.normal(size=n_seeds)
        error = rows.std(ddof=1) / np.sqrt(n_rows)
        mean = over_seeds("gap", runs, better="lower", shared_error=error, n_shared=n_rows)
        assert mean.low is not None
        assert mean.high is not None
        hits += mean.low <= 0 <= mean.high
    assert abs(hits / DRAWS - 0.95) <= 0.015


def test_without_it_the_interval_speaks_of_other_seeds_only() -> None:
    """The same simulation misses the truth more often than not."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        runs = rng.normal() + 0.1 * rng.normal(size=3)
        mean = over_seeds("gap", runs, better="lower")
        hits += (mean.low or 0) <= 0 <= (mean.high or 0)
    assert hits < 100


def test_by_hand() -> None:
    """Equal runs, a shared error of 0.5 from 11 rows: 2 +- t(10) 0.5."""
    mean = over_seeds("gap", [2.0, 2.0], better="lower", shared_error=0.5, n_shared=11)
    half = student_law.ppf(0.975, 10) * 0.5
    assert mean.low == pytest.approx(2 - half)
    assert mean.high == pytest.approx(2 + half)
    alone = over_seeds("gap", [1.0, 2.0, 3.0], better="lower")
    assert alone.high == pytest.approx(2 + student_law.ppf(0.975, 2) / np.sqrt(3))
