"""QuantileBinner: bins, changes, planted bugs."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from letheon.preprocessing import QuantileBinner
from letheon.preprocessing import _bins as bins
from tests.preprocessing.plans import check_plan, prepare_removal
from tests.preprocessing.tables import numbers, requests, run_requests


@pytest.mark.parametrize("n_bins", [2, 5, 255])
@given(requests())
def test_after_requests_it_is_a_fresh_fit(n_bins: int, drawn: Any) -> None:
    seed, steps = drawn
    ids = np.random.default_rng(seed).integers(0, 24, 40).tolist()
    run_requests(QuantileBinner(n_bins=n_bins), numbers(seed, 40), None, ids, steps)


@pytest.mark.parametrize("n_bins", [2, 5, 255])
@given(st.integers(0, 2**31))
def test_plans_report_what_changes(n_bins: int, seed: int) -> None:
    gone = np.random.default_rng(seed).choice(40, 3, replace=False).tolist()
    check_plan(QuantileBinner(n_bins=n_bins), numbers(seed, 40), None, gone)


def test_bins_have_about_the_same_size() -> None:
    X = np.random.default_rng(0).lognormal(size=(20_000, 3))
    X[:50, 1] = np.nan
    model = QuantileBinner(n_bins=255, random_state=1).fit(X)
    numbers_of_bins = model.transform(X)
    assert ((model.n_bins_ >= 180) & (model.n_bins_ <= 255)).all()
    assert np.isnan(numbers_of_bins[:50, 1]).all()
    counts = np.bincount(numbers_of_bins[:, 0].astype(int))
    # Gaps between the values of a sample are exponential: the largest is about log(n) means.
    assert counts.max() < 10 * 20_000 / 255
    few = QuantileBinner(n_bins=4, random_state=1).fit(X)
    assert (abs(np.bincount(few.transform(X)[:, 0].astype(int)) - 5000) < 1500).all()
    order = np.argsort(X[:, 0])
    assert (np.diff(numbers_of_bins[order, 0]) >= 0).all()


def test_a_value_equal_to_an_edge_is_in_the_bin_above() -> None:
    model = QuantileBinner(n_bins=255, random_state=0).fit([[1.0], [2.0], [3.0]])
    assert model.bin_edges_[0].tolist() == [1.0, 2.0, 3.0]
    assert model.transform([[0.0], [1.0], [2.5], [9.0]])[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_frequency_of_changes() -> None:
    """A removal changes something with probability of about n_bins / n, for all columns."""
    X = np.random.default_rng(3).normal(size=(2000, 4))
    changes = 0
    for seed in range(20):
        model = QuantileBinner(n_bins=256, random_state=seed).fit(X)
        plans = [prepare_removal(model, [slot]) for slot in range(50)]
        changes += sum(plan.published is not model.published_ for plan in plans)
    assert 0.7 < changes / 1000 * 2000 / 256 < 1.3


def test_a_sample_that_keeps_people_is_caught() -> None:
    """A planted bug: values of sampled people stay in the sample."""
    X = np.random.default_rng(0).normal(size=(30, 1))
    model = QuantileBinner(random_state=0).fit(X)
    with patch.object(bins, "change_sorted", lambda values, *_: values):
        model.forget([3])
    stay = np.setdiff1d(np.arange(30), [3])
    assert model.digest() != QuantileBinner(random_state=0).fit(X[stay], ids=stay).digest()


def test_errors() -> None:
    with pytest.raises(ValueError, match="n_bins=1; expected"):
        QuantileBinner(n_bins=1).fit([[1.0]])
    assert_array_equal(QuantileBinner().fit([[np.nan]]).transform([[4.0]]), [[0.0]])
