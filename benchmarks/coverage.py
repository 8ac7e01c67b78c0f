"""Coverage of the intervals of `letheon.measures`, over draws from known distributions.

    python -m benchmarks.coverage [draws]

Writes benchmarks/results/coverage.md. `tests/measures/test_coverage.py` runs `CASES` too.
"""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from letheon.measures import (
    Measure,
    certifiability_from_predictions,
    effectiveness,
    efficiency,
    geometric_mean,
    kl_consistency,
    kl_gaussian,
    over_seeds,
    prediction_gap,
    sape,
    strength,
)

__all__ = ["CASES", "CoverageCase", "Reached", "run_case"]

RESULT = Path(__file__).parent / "results" / "coverage.md"
# Deviations from 95 % that still count as nominal.
BAND = (0.935, 0.965)

Rng = np.random.Generator
Numbers = NDArray[np.float64]


class Law(NamedTuple):
    """A distribution of non-negative numbers, and its mean."""

    draw: Callable[[Rng, Any], Numbers]
    mean: float


def _log_normal(spread: float) -> Law:
    return Law(lambda rng, size: rng.lognormal(-(spread**2) / 2, spread, size), 1.0)


def _make_gamma(shape: float) -> Law:
    return Law(lambda rng, size: rng.gamma(shape, 1 / shape, size), 1.0)


def _with_slow_ones(share: float, factor: float) -> Law:
    def draw(rng: Rng, size: Any) -> Numbers:
        slow = np.where(rng.random(size) < share, factor, 1.0)
        return np.asarray(rng.lognormal(-0.005, 0.1, size) * slow)

    return Law(draw, 1 - share + share * factor)


def _with_zeros(share: float) -> Law:
    return Law(lambda rng, size: rng.chisquare(1, size) * (rng.random(size) >= share), 1 - share)


TIMES = {
    "normal, 10 %": Law(lambda rng, size: rng.normal(1, 0.1, size), 1.0),
    "log-normal, 0.3": _log_normal(0.3),
    "log-normal, 0.6": _log_normal(0.6),
    "log-normal, 1": _log_normal(1.0),
    "gamma, 1": _make_gamma(1.0),
    "gamma, 4": _make_gamma(4.0),
    "1 + exponential": Law(lambda rng, size: 1 + rng.exponential(0.3, size), 1.3),
    "1 in 10 is 3 times as slow": _with_slow_ones(0.1, 3.0),
    "1 in 10 is 10 times as slow": _with_slow_ones(0.1, 10.0),
    "1 in 5 is 5 times as slow": _with_slow_ones(0.2, 5.0),
}
ROWS = {
    "uniform": Law(lambda rng, size: rng.random(size), 0.5),
    "chi-square": Law(lambda rng, size: rng.chisquare(1, size), 1.0),
    "log-normal, 1": _log_normal(1.0),
    "70 % zeros": _with_zeros(0.7),
    "90 % zeros": _with_zeros(0.9),
}


def _draw_alike(rng: Rng, size: int) -> Numbers:
    """Return log-normal times; neighbours have a correlation of 0.5."""
    drawn = rng.normal(size=size)
    for at in range(1, size):
        drawn[at] = 0.5 * drawn[at - 1] + math.sqrt(0.75) * drawn[at]
    return np.exp(0.4 * drawn - 0.08)


# Outside the claim; such samples are flagged as rough if they look like it.
BEYOND = {
    "log-normal, 1.5": _log_normal(1.5),
    "1 in 20 is 5 times as slow": _with_slow_ones(0.05, 5),
    "neighbours alike, slow or fast": Law(_draw_alike, 1.0),
}


class CoverageCase(NamedTuple):
    """One simulated interval."""

    measure: str
    law: str
    size: str
    truth: float
    draw: Callable[[Rng], Measure]
    is_claimed: bool
    """Whether 95 % are claimed here."""
    may_exceed: bool = False
    """Whether the interval may contain the true value in more than 96.5 % of the draws."""

    @property
    def name(self) -> str:
        """Return measure, law and size."""
        return f"{self.measure}: {self.law}, {self.size}"


class Reached(NamedTuple):
    """Shares of draws: interval contains the true value, is too high, too low, flagged rough."""

    holds: float
    above: float
    below: float
    rough: float


def run_case(case: CoverageCase, n_draws: int, seed: int = 0) -> Reached:
    """Return how often the interval contains the true value."""
    rng = np.random.default_rng(seed)
    drawn = [case.draw(rng) for _ in range(n_draws)]
    low = np.array([-math.inf if m.low is None else m.low for m in drawn])
    high = np.array([math.inf if m.high is None else m.high for m in drawn])
    above, below = low > case.truth + 1e-12, high < case.truth - 1e-12
    rough = float(np.mean([m.is_rough for m in drawn]))
    return Reached(float(np.mean(~above & ~below)), float(above.mean()), float(below.mean()), rough)


def _efficiency_cases() -> Iterator[CoverageCase]:
    for name, law in (TIMES | {k: v for k, v in BEYOND.items() if "slow" in k}).items():
        for n in (5, 20, 60, 200):
            # Retraining times vary less than removal times; a few are enough.
            n_naive, naive = (5, _log_normal(0.1)) if n < 200 else (60, _log_normal(0.6))

            def draw(
                rng: Rng, law: Law = law, n: int = n, k: int = n_naive, naive: Law = naive
            ) -> Measure:
                return efficiency(20 * naive.draw(rng, k), law.draw(rng, n))

            yield CoverageCase(
                "efficiency",
                name,
                f"{n_naive} retrains, {n} removals",
                20 / law.mean,
                draw,
                n >= 60 and name not in BEYOND,
                "slow" in name,
            )


def _kl_of(rows: Numbers, seed: int) -> Measure:
    """Return the KL consistency of two models with these divergences of rows."""
    # KL((1, 0) || (q, 1 - q)) = -log q
    certain = np.stack([np.ones_like(rows), np.zeros_like(rows)], axis=1)
    q = np.exp(-rows)
    return kl_consistency(certain, np.stack([q, 1 - q], axis=1), n_resamples=400, seed=seed)


def _row_cases() -> Iterator[CoverageCase]:
    for name, law in (ROWS | {k: v for k, v in BEYOND.items() if "slow" not in k}).items():
        for n in (30, 100, 400):
            exceeds = "zeros" in name

            def draw(rng: Rng, law: Law = law, n: int = n) -> Measure:
                return _kl_of(law.draw(rng, n), int(rng.integers(2**31)))

            claimed = n >= 100 and name not in BEYOND
            yield CoverageCase(
                "kl_consistency", name, f"{n} rows", law.mean, draw, claimed, exceeds
            )

            def gap(rng: Rng, law: Law = law, n: int = n) -> Measure:
                gaps = np.sqrt(law.draw(rng, n))
                seed = int(rng.integers(2**31))
                return prediction_gap(gaps, np.zeros(n), n_resamples=400, seed=seed)

            truth = math.sqrt(law.mean)
            if name not in ("chi-square", "log-normal, 1"):
                continue
            yield CoverageCase(
                "prediction_gap", f"squares {name}", f"{n} rows", truth, gap, claimed, exceeds
            )
    for n in (30, 100):

        def gaussian(rng: Rng, n: int = n) -> Measure:
            seed = int(rng.integers(2**31))
            return kl_gaussian(
                rng.uniform(0, 2, n), np.zeros(n), 1.0, 1.0, n_resamples=400, seed=seed
            )

        yield CoverageCase("kl_gaussian", "uniform gaps", f"{n} rows", 2 / 3, gaussian, n >= 100)


def _score_accuracy(y: Any, p: Any) -> float:
    return float(np.mean(y == p))


def _score_balanced(y: Any, p: Any) -> float:
    return float((np.mean(p[y == 0] == 0) + np.mean(p[y == 1] == 1)) / 2)


def _score_auc(y: Any, p: Any) -> float:
    ranks = stats.rankdata(p)
    n = int(y.sum())
    return float((ranks[y == 1].sum() - n * (n + 1) / 2) / (n * (len(y) - n)))


def _negative_error(y: Any, p: Any) -> float:
    return -float(np.mean((y - p) ** 2))


def _label_cases() -> Iterator[CoverageCase]:
    """Yield cases: both models right, only the retrained, only the unlearned, neither (shares)."""
    for n, shares, claimed in (
        (20, [0.5, 0.45, 0.05, 0], False),
        (30, [0.6, 0.3, 0.05, 0.05], True),
        (100, [0.7, 0.2, 0.05, 0.05], True),
        (200, [0.9, 0.1, 0, 0], True),
        (1000, [0.95, 0.03, 0.01, 0.01], True),
    ):

        def draw(rng: Rng, n: int = n, shares: list[float] = shares) -> Measure:
            kind = rng.choice(4, size=n, p=shares)
            seed = int(rng.integers(2**31))
            y = np.zeros(n)
            naive, unlearned = (kind >= 2) * 1.0, (kind % 2) * 1.0
            return effectiveness(_score_accuracy, y, unlearned, naive, n_resamples=400, seed=seed)

        def certify(rng: Rng, n: int = n, shares: list[float] = shares) -> Measure:
            kind = rng.choice(4, size=n, p=shares)
            seed = int(rng.integers(2**31))
            y = np.zeros(n)
            naive, unlearned = (kind >= 2) * 1.0, (kind % 2) * 1.0
            return certifiability_from_predictions(
                _score_accuracy, y, unlearned, naive, n_resamples=400, seed=seed
            )

        law = f"accuracy, {shares[1]:.0%} and {shares[2]:.0%} differ"
        truth = abs(shares[1] - shares[2])
        yield CoverageCase("effectiveness", law, f"{n} rows", truth, draw, claimed)
        both = sape(shares[0] + shares[1], shares[0] + shares[2])
        yield CoverageCase(
            "certifiability_from_predictions", law, f"{n} rows", both, certify, claimed
        )


def _metric_cases() -> Iterator[CoverageCase]:
    for n, positive in ((200, 0.5), (200, 0.1), (1000, 0.1)):

        def balanced(rng: Rng, n: int = n, positive: float = positive) -> Measure:
            y = (np.arange(n) < positive * n) * 1
            rng.shuffle(y)
            naive = np.where(rng.random(n) < np.where(y == 1, 0.7, 0.9), y, 1 - y)
            # one in five of the true positives is lost
            unlearned = np.where((y == 1) & (rng.random(n) < 0.2), 0, naive)
            seed = int(rng.integers(2**31))
            return effectiveness(_score_balanced, y, unlearned, naive, n_resamples=400, seed=seed)

        law = f"balanced accuracy, {positive:.0%} positive"
        yield CoverageCase("effectiveness", law, f"{n} rows", 0.07, balanced, n * positive >= 100)

    for n, positive in ((100, 0.5), (400, 0.1)):

        def auc(rng: Rng, n: int = n, positive: float = positive) -> Measure:
            y = (np.arange(n) < positive * n) * 1
            signal = rng.normal(size=n) + 1.2 * y
            noise = rng.normal(size=n)
            seed = int(rng.integers(2**31))
            return effectiveness(_score_auc, y, signal + noise, signal, n_resamples=200, seed=seed)

        truth = stats.norm.cdf(1.2 / math.sqrt(2)) - stats.norm.cdf(1.2 / 2)
        yield CoverageCase(
            "effectiveness", f"AUC, {positive:.0%} positive", f"{n} rows", truth, auc, True
        )

    for n in (30, 100, 400):
        for name, spread in (("normal", 0.0), ("log-normal, 0.5", 0.5)):

            def squares(rng: Rng, n: int = n, spread: float = spread) -> Measure:
                y, shared, own = rng.normal(size=(3, n))
                size = rng.lognormal(-(spread**2), spread, n)
                seed = int(rng.integers(2**31))
                naive = y + shared * size
                return effectiveness(
                    _negative_error, y, naive + 0.7 * own * size, naive, n_resamples=400, seed=seed
                )

            truth = 0.49
            law = f"squared errors, {name}"
            is_claimed = n >= 100 and spread == 0
            yield CoverageCase("effectiveness", law, f"{n} rows", truth, squares, is_claimed)


def _run_cases() -> Iterator[CoverageCase]:
    for n in (3, 10, 30):

        def normal(rng: Rng, n: int = n) -> Measure:
            return over_seeds("s", rng.normal(7, 2, n), better="lower")

        def skewed(rng: Rng, n: int = n) -> Measure:
            return over_seeds("s", TIMES["log-normal, 0.3"].draw(rng, n), better="lower")

        def logs(rng: Rng, n: int = n) -> Measure:
            return geometric_mean("efficiency", rng.lognormal(1, 0.7, n))

        yield CoverageCase("over_seeds", "normal", f"{n} runs", 7.0, normal, True)
        yield CoverageCase("over_seeds", "log-normal, 0.3", f"{n} runs", 1.0, skewed, n >= 10)
        yield CoverageCase("geometric_mean", "log-normal", f"{n} runs", math.e, logs, True)
    for name in ("log-normal, 1", "gamma, 1"):
        law = TIMES[name]
        # as in `evaluate`: 20 removals per trial, geometric mean of the ratios of means
        rng = np.random.default_rng(0)
        truth = float(np.exp(np.mean(-np.log(law.draw(rng, (200_000, 20)).mean(axis=1)))))

        def ratios(rng: Rng, law: Law = law) -> Measure:
            return geometric_mean("efficiency", 1 / law.draw(rng, (3, 20)).mean(axis=1))

        yield CoverageCase(
            "geometric_mean", f"of ratios, {name}", "3 runs of 20", truth, ratios, True
        )


def _strength_cases() -> Iterator[CoverageCase]:
    for name in ("gamma, 4", "gamma, 1", "log-normal, 1"):
        for n_sequences in (1, 6):

            def draw(rng: Rng, law: Law = TIMES[name], n: int = n_sequences) -> Measure:
                return strength(law.draw(rng, (n, 100))).exponent

            size = f"{n_sequences} x 100 removals"
            yield CoverageCase("strength", name, size, 0.0, draw, n_sequences == 6, True)


CASES = (
    *_efficiency_cases(),
    *_row_cases(),
    *_label_cases(),
    *_metric_cases(),
    *_run_cases(),
    *_strength_cases(),
)


def _format_case(case: CoverageCase, n_draws: int) -> str:
    shares = " | ".join(f"{100 * share:.1f} %" for share in run_case(case, n_draws))
    claimed = "yes" if case.is_claimed else "no"
    return f"| `{case.measure}` | {case.law} | {case.size} | {claimed} | {n_draws:,} | {shares} |"


def main() -> None:
    n_draws = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    lines = []
    for case in CASES:
        # An arbitrary metric is called hundreds of times for one interval.
        is_slow = case.measure in ("effectiveness", "certifiability_from_predictions")
        lines.append(_format_case(case, n_draws // 5 if is_slow else n_draws))
        print(lines[-1], flush=True)
    RESULT.write_text(_TEXT.format(lines="\n".join(lines)))


_TEXT = """# Coverage of the intervals

`python -m benchmarks.coverage` draws samples from known laws and counts how often the 95 % interval
holds the truth, lies above it or below it, and how often the measure itself says that its interval
is rough. From which size on 95 % are claimed: [measures.md](../../docs/measures.md#intervals). The
error of a share is 0.5 points with 2,000 draws and 1.1 with 400.

| measure | law | size | claimed | draws | holds | too high | too low | called rough |
|---|---|---|---|---|---|---|---|---|
{lines}
"""

if __name__ == "__main__":
    main()
