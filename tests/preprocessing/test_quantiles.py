"""Keyed quantiles compared with plain loops: ranks, cells, counts, samples after every change."""

from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from letheon.data import SlotRows, row_ids
from letheon.delta import Delta, RowSource, take_block
from letheon.preprocessing import _quantiles as quantiles
from letheon.preprocessing._quantiles import QuantileRule, QuantileSums

FRACTIONS = tuple(Fraction(k, 12) for k in (0, 1, 3, 5, 6, 9, 12))
RULE = QuantileRule(FRACTIONS)
MIDDLE = 4096


def read(X: Any) -> Any:
    return X


def draw_values(rng: np.random.Generator, n: int) -> Any:
    """Few different values, so that grids stay; some are missing, one column nearly always."""
    X = np.column_stack([rng.integers(0, 5, n), rng.integers(0, 90, n) ** 2, rng.integers(0, 3, n)])
    X = X.astype(float)
    X[rng.random(n) < 0.2, 0] = np.nan
    X[rng.random(n) < 0.3, 1] = 1e12  # in the last cell
    X[rng.random(n) < 0.8, 2] = np.nan
    return X


def make_sums(rows: SlotRows, seed: int) -> QuantileSums:
    sums = QuantileSums.from_source(RowSource(rows), read, RULE, seed)
    sums.compute(FRACTIONS)
    return sums


def check_against_loops(sums: QuantileSums) -> None:
    """Compare values, cells and counts below with the sorted list of all rounded values."""
    found = sums.compute(FRACTIONS)
    for column, counts in enumerate(sums.counts):
        cells = [cell for cell in range(len(counts)) for _ in range(int(counts[cell]))]
        centre = Fraction(float(sums.grid.centres[column]))
        step = Fraction(2) ** int(sums.grid.exponents[column])
        for place, fraction in enumerate(FRACTIONS):
            value, own, below = (array[place, column] for array in found)
            if not cells:
                assert np.isnan(value)
                assert own == -1
                continue
            position = (len(cells) - 1) * fraction
            low = cells[position.numerator // position.denominator]
            high = cells[-(-position.numerator // position.denominator)]
            is_near = high - low <= 1
            offset = low if is_near else low + (position % 1) * (high - low)
            assert value == float(centre + step * (offset - MIDDLE))
            assert own == (low if is_near else -1)
            if is_near:
                assert below == sum(cell < low for cell in cells)


def same_state(sums: QuantileSums, other: QuantileSums) -> bool:
    pairs = zip(sums._to_state().values(), other._to_state().values(), strict=True)
    return all(
        len(a) == len(b) and all(map(np.array_equal, a, b))
        if isinstance(a, list)
        else np.array_equal(a, b)
        for a, b in pairs
    )


@pytest.mark.parametrize("n_sampled", [1023, 8])
def test_every_change_ends_in_a_fresh_count(n_sampled: int) -> None:
    n_kept = 0
    with patch.multiple(quantiles, _N_SAMPLED=n_sampled, _FEW_VALUES=4):
        for seed in range(25):
            rng = np.random.default_rng(seed)
            X, ids = draw_values(rng, 34), [f"p{k}" for k in range(34)]
            rows = SlotRows(X[:28].copy(), None, row_ids(ids[:28], 28))
            sums = make_sums(rows, seed)
            for k in range(24):
                added, where = None, np.empty(0, np.int64)
                if k % 4 == 3:
                    new = slice(28 + k // 4, 29 + k // 4)
                    joined = rows.join(X[new].copy(), None, row_ids(ids[new], 1))
                    added = take_block(joined, slice(len(rows), None))
                    source = RowSource(rows, added=added)
                    delta = Delta(added=added, before=RowSource(rows), source=source)
                    rows = joined
                else:
                    where = rng.choice(np.flatnonzero(rows.alive), rng.integers(1, 3), False)
                    remaining = RowSource(rows, where)
                    delta = Delta(
                        removed=take_block(rows, where), before=remaining, source=remaining
                    )
                before = [array.copy() for array in sums.compute(FRACTIONS)]
                change = sums.prepare(delta, read, RULE, seed)
                for mine, theirs in zip(sums.compute(FRACTIONS), before, strict=True):
                    np.testing.assert_array_equal(mine, theirs)  # nothing is changed yet
                rows.wipe(where)
                fresh = make_sums(rows, seed)
                if change is None:
                    sums = fresh
                    continue
                n_kept += 1
                sums.apply(change)
                assert same_state(sums, fresh)
                after = fresh.compute(FRACTIONS)
                for kept, expected in zip(sums.compute(FRACTIONS), after, strict=True):
                    np.testing.assert_array_equal(kept, expected)
                check_against_loops(sums)
    assert n_kept > 100


def test_few_values_of_all_people_are_not_counted_again() -> None:
    """All people are sampled, so a column with few values keeps its sample when one more leaves."""
    X = np.array([[k % 3] for k in range(16)], float)
    rows = SlotRows(X, None, row_ids(None, 16))
    sums = make_sums(rows, 0)
    where = np.array([0])
    remaining = RowSource(rows, where)
    delta = Delta(removed=take_block(rows, where), before=remaining, source=remaining)
    assert sums.prepare(delta, read, RULE, 0) is not None
