"""(alpha, beta)-accuracy over a sequence."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats

from letheon.measures import alpha_beta_accuracy
from tests.sharded.people import examples

tables = hnp.arrays(np.float64, (9, 4), elements=st.integers(0, 8).map(float))


def test_beta_by_hand() -> None:
    ours, theirs = [[0.5, 1.0], [0.5, 2.0], [0.5, 3.0], [0.5, 4.0]], [0.0, 0.0]
    measure = alpha_beta_accuracy(ours, theirs, alpha=2.0)
    # of the second removal two of four seeds are above 2
    assert measure.value == 0.5
    assert measure.high == pytest.approx(stats.beta.ppf(0.95, 3, 2))
    assert (measure.name, measure.n, measure.low) == ("accuracy beta", 4, None)


@given(ours=tables, theirs=tables, alpha=st.integers(-3, 8))
@examples(50)
def test_beta_is_a_count_with_scipys_limit(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], alpha: int
) -> None:
    worst = max(sum(1 for s in range(9) if ours[s, i] - theirs[s, i] > alpha) for i in range(4))
    measure = alpha_beta_accuracy(ours, theirs, alpha=alpha)
    limit = stats.binomtest(worst, 9, alternative="less").proportion_ci(0.95).high
    assert measure.value == pytest.approx(worst / 9)
    assert measure.high == pytest.approx(limit)


@given(ours=tables, theirs=tables, beta=st.sampled_from([0.05, 0.2, 1 / 3, 0.5, 0.9]))
@examples(50)
def test_alpha_is_the_least_that_works(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], beta: float
) -> None:
    alpha = alpha_beta_accuracy(ours, theirs, beta=beta).value
    assert alpha_beta_accuracy(ours, theirs, alpha=alpha).value <= beta + 1e-12
    assert alpha_beta_accuracy(ours, theirs, alpha=alpha - 1e-6).value > beta


@pytest.mark.parametrize(("n", "rank"), [(58, None), (59, 59), (93, 92), (124, 122)])
def test_upper_limit_of_alpha_is_the_known_order_statistic(n: int, rank: int | None) -> None:
    # Wilks: 59 runs for 95 % confidence in the 95 % quantile by the largest, 93 by the second
    losses = np.arange(1.0, n + 1)[:, None]
    measure = alpha_beta_accuracy(losses, [0.0], beta=0.05)
    assert measure.high == (math.inf if rank is None else rank)


def test_no_failure_in_fifty_seeds_is_the_rule_of_three() -> None:
    losses = np.zeros((50, 10))
    measure = alpha_beta_accuracy(losses, losses, alpha=0.0)
    assert measure.value == 0.0
    assert measure.high == pytest.approx(1 - 0.05 ** (1 / 50))
    assert measure.high == pytest.approx(3 / 50, abs=0.002)


def test_least_loss_is_checked() -> None:
    measure = alpha_beta_accuracy([[1.0], [1.5]], [1.0], alpha=0.2, against="minimum")
    assert measure.value == 0.5
    assert "the least loss" in measure.note
    with pytest.raises(ValueError, match="below losses_naive"):
        alpha_beta_accuracy([[0.9], [1.5]], [1.0], alpha=0.2, against="minimum")


@pytest.mark.parametrize(
    ("ours", "theirs", "options", "text"),
    [
        ([[1.0]], [[1.0]], {}, "exactly one of"),
        ([[1.0]], [[1.0]], {"alpha": 1.0, "beta": 0.1}, "exactly one of"),
        ([[1.0]], [[1.0]], {"beta": 1.0}, "beta must be between 0 and 1"),
        ([[1.0]], [[1.0]], {"alpha": math.nan}, "alpha must be a finite"),
        ([1.0], [1.0], {"alpha": 0.0}, "n_seeds, n_requests"),
        ([[1.0, 2.0]], [1.0], {"alpha": 0.0}, "losses_naive must have shape"),
        ([[math.inf]], [1.0], {"alpha": 0.0}, "losses_unlearned must be finite"),
        ([[1.0]], [1.0], {"alpha": 0.0, "against": "nothing"}, "against must be one of"),
    ],
)
def test_bad_losses_are_refused(ours: Any, theirs: Any, options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        alpha_beta_accuracy(ours, theirs, **options)
