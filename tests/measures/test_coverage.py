"""Every interval of the measures holds the truth as often as it says, over 2,000 draws or more.

Nominal: 95 % +- 1.5 %. Conservative intervals may hold it more often; each test says why.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from letheon.measures import (
    Measure,
    agreement_within,
    alpha_beta_accuracy,
    certifiability_from_predictions,
    effectiveness,
    efficiency,
    geometric_mean,
    kl_consistency,
    kl_gaussian,
    output_consistency,
    over_seeds,
    prediction_gap,
    sape,
    strength,
)

N_DRAWS = 2000


def holds(measure: Measure, truth: float) -> bool:
    """Return whether the interval holds the truth; without an upper end it claims nothing."""
    low = -np.inf if measure.low is None else measure.low
    return measure.high is not None and low - 1e-12 <= truth <= measure.high + 1e-12


def coverage(measures: Iterable[Measure], truth: float) -> float:
    """Return the share of at least 2,000 intervals that hold the truth."""
    hits = [holds(measure, truth) for measure in measures]
    assert len(hits) >= N_DRAWS
    return float(np.mean(hits))


def is_nominal(share: float) -> bool:
    return 0.935 <= share <= 0.965


def is_enough(share: float) -> bool:
    return share >= 0.935


@pytest.mark.parametrize(("n_naive", "n_unlearn"), [(5, 5), (5, 20), (10, 40)])
def test_efficiency(n_naive: int, n_unlearn: int) -> None:
    rng = np.random.default_rng(n_naive + n_unlearn)
    draws = (
        efficiency(rng.normal(10, 0.8, n_naive), rng.normal(0.5, 0.06, n_unlearn))
        for _ in range(N_DRAWS)
    )
    assert is_nominal(coverage(draws, 20.0))


def test_efficiency_of_three_times() -> None:
    # Welch's degrees of freedom are too few for three times: a little too wide
    rng = np.random.default_rng(3)
    draws = (efficiency(rng.normal(10, 0.8, 3), rng.normal(0.5, 0.06, 3)) for _ in range(N_DRAWS))
    assert is_enough(coverage(draws, 20.0))


@pytest.mark.parametrize("n", [3, 5, 20])
def test_over_seeds(n: int) -> None:
    rng = np.random.default_rng(n)
    draws = (over_seeds("s", rng.normal(7, 2, n), better="lower") for _ in range(N_DRAWS))
    assert is_nominal(coverage(draws, 7.0))


@pytest.mark.parametrize("n", [3, 5, 20])
def test_geometric_mean(n: int) -> None:
    rng = np.random.default_rng(n)
    draws = (geometric_mean("efficiency", rng.lognormal(1, 0.7, n)) for _ in range(N_DRAWS))
    assert is_nominal(coverage(draws, float(np.exp(1.0))))


def accuracy(y: NDArray[Any], p: NDArray[Any]) -> float:
    return float(np.count_nonzero(y == p)) / len(y)


Paired = Callable[..., Measure]


@cache
def of_counts(paired: Paired, counts: tuple[int, int, int, int]) -> Measure:
    """Return the measure of so many rows that both, one, the other or neither model gets right.

    The order of rows only changes the luck of resampling, so draws with equal counts share one.
    """
    unlearned = np.repeat([0, 0, 1, 1], counts)
    naive = np.repeat([0, 1, 0, 1], counts)
    y = np.zeros(len(naive), dtype=np.int64)
    return paired(accuracy, y, unlearned, naive, n_resamples=400, seed=counts[0])


def of_rows(paired: Paired, n: int, shares: list[float]) -> list[Measure]:
    rng = np.random.default_rng(n)
    return [of_counts(paired, tuple(c)) for c in rng.multinomial(n, shares, size=N_DRAWS).tolist()]


@pytest.mark.parametrize(
    ("n", "shares"),
    [(30, [0.65, 0.3, 0.05, 0]), (60, [0.7, 0.25, 0.05, 0]), (200, [0.9, 0.1, 0, 0])],
)
def test_effectiveness(n: int, shares: list[float]) -> None:
    assert is_nominal(coverage(of_rows(effectiveness, n, shares), shares[1] - shares[2]))


@pytest.mark.parametrize("shares", [[0.7, 0.15, 0.15, 0], [0.8, 0.15, 0.05, 0]])
def test_effectiveness_of_models_that_are_nearly_as_good(shares: list[float]) -> None:
    # folding a signed interval around 0 also covers the gap's mirror image: more than 95 %
    draws = of_rows(effectiveness, 60, shares)
    assert is_enough(coverage(draws, shares[1] - shares[2]))


@pytest.mark.parametrize(("n", "shares"), [(30, [0.5, 0.3, 0, 0.2]), (60, [0.6, 0.2, 0, 0.2])])
def test_certifiability(n: int, shares: list[float]) -> None:
    truth = sape(shares[0] + shares[1], shares[0])
    assert is_nominal(coverage(of_rows(certifiability_from_predictions, n, shares), truth))


def test_certifiability_of_equally_good_models() -> None:
    # folded at 0, as for effectiveness
    draws = of_rows(certifiability_from_predictions, 40, [0.7, 0.15, 0.15, 0])
    assert is_enough(coverage(draws, 0.0))


def test_few_differing_rows_are_too_few_and_said_to_be() -> None:
    draws = [m for m in of_rows(effectiveness, 200, [0.98, 0.02, 0, 0]) if m.low is not None]
    assert not is_enough(float(np.mean([holds(m, 0.02) for m in draws])))
    assert np.mean(["may be too narrow" in m.note for m in draws]) > 0.95


@pytest.mark.parametrize("n", [30, 80])
def test_kl_consistency(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.beta(2, 2, size=(N_DRAWS, n))
    grid = (np.arange(100_000) + 0.5) / 100_000
    law = np.stack([stats.beta(2, 2).ppf(grid), 1 - stats.beta(2, 2).ppf(grid)], axis=1)
    truth = float(stats.entropy(law, np.full_like(law, 0.5), axis=1).mean())
    even = np.full((n, 2), 0.5)
    draws = (
        kl_consistency(np.stack([row, 1 - row], axis=1), even, n_resamples=400, seed=seed)
        for seed, row in enumerate(x)
    )
    assert is_nominal(coverage(draws, truth))


@pytest.mark.parametrize("n", [30, 80])
def test_prediction_gap(n: int) -> None:
    rng = np.random.default_rng(n)
    draws = (
        prediction_gap(rng.normal(0, 2, n), np.zeros(n), n_resamples=400, seed=seed)
        for seed in range(N_DRAWS)
    )
    assert is_nominal(coverage(draws, 2.0))


def test_kl_gaussian() -> None:
    rng = np.random.default_rng(0)
    # mean gap uniform on (0, 2), equal deviations: E[d²] / 2
    draws = (
        kl_gaussian(rng.uniform(0, 2, 50), np.zeros(50), 1.0, 1.0, n_resamples=400, seed=seed)
        for seed in range(N_DRAWS)
    )
    assert is_nominal(coverage(draws, 4 / 3 / 2))


@pytest.mark.parametrize("n", [10, 60])
def test_agreement(n: int) -> None:
    # Clopper and Pearson promise at least 95 %; counts are discrete, so it is more
    @cache
    def of_agreements(k: int) -> Measure:
        agree = np.arange(n) < k
        labels = output_consistency(agree, np.ones(n, bool))
        numbers = agreement_within(np.where(agree, 1.0, 2.0), np.ones(n), 0.5)
        assert (labels.low, labels.high) == (numbers.low, numbers.high)
        return labels

    for share in (0.5, 0.9, 0.99):
        exact = sum(
            stats.binom.pmf(k, n, share)
            for k in range(n + 1)
            if (of_agreements(k).low or 0) <= 100 * share <= (of_agreements(k).high or 0)
        )
        counts = np.random.default_rng(n).binomial(n, share, size=N_DRAWS)
        drawn = coverage((of_agreements(int(k)) for k in counts), 100 * share)
        assert exact >= 0.95
        assert drawn == pytest.approx(exact, abs=0.015)


def losses(rng: np.random.Generator, n_seeds: int, n_requests: int) -> NDArray[np.float64]:
    """Losses of one run are alike; the largest excess is that of the last removal."""
    run = rng.normal(size=(n_seeds, 1))
    own = rng.normal(size=(n_seeds, n_requests))
    return np.asarray((run + own) / np.sqrt(2) + np.linspace(0, 0.5, n_requests))


@pytest.mark.parametrize("n_requests", [1, 5])
@pytest.mark.parametrize("given", ["alpha", "beta"])
def test_alpha_beta_accuracy(n_requests: int, given: str) -> None:
    # counts are discrete, and the largest of several limits is higher than the one that must hold
    last = 0.0 if n_requests == 1 else 0.5
    truth = stats.norm.sf(1.0 - last) if given == "alpha" else last + stats.norm.isf(0.2)
    options = {"alpha": 1.0} if given == "alpha" else {"beta": 0.2}
    rng, zeros = np.random.default_rng(n_requests), np.zeros(n_requests)
    draws = (
        alpha_beta_accuracy(losses(rng, 40, n_requests), zeros, **options)  # type: ignore[arg-type]
        for _ in range(N_DRAWS)
    )
    assert is_enough(coverage(draws, float(truth)))


@pytest.mark.parametrize(("shape", "spread"), [((1, 100), 4.0), ((5, 64), 2.0)])
def test_work_exponent(shape: tuple[int, int], spread: float) -> None:
    rng = np.random.default_rng(shape[1])
    draws = (strength(rng.gamma(spread, size=shape)).exponent for _ in range(N_DRAWS))
    assert is_nominal(coverage(draws, 0.0))


def test_work_exponent_of_growing_work() -> None:
    # growth within a window counts as noise: wider than it need be
    rng, i = np.random.default_rng(0), np.arange(1.0, 101)
    draws = (strength(i * rng.gamma(4, size=(2, 100))).exponent for _ in range(N_DRAWS))
    assert is_enough(coverage(draws, 1.0))


@pytest.mark.soak
@pytest.mark.parametrize("n", [30, 100])
def test_effectiveness_of_regression(n: int) -> None:
    def negative_error(y: NDArray[Any], p: NDArray[Any]) -> float:
        return -float(np.mean((y - p) ** 2))

    rng = np.random.default_rng(n)
    draws = []
    for seed in range(N_DRAWS):
        y, shared, own = rng.normal(size=(3, n))
        naive, unlearned = y + shared, y + shared + 0.7 * own
        draws.append(effectiveness(negative_error, y, unlearned, naive, seed=seed))
    assert is_nominal(coverage(draws, 0.49))
