"""Planted bugs: each formula is changed on purpose, and its check must fail."""

import inspect
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

from letheon.measures import _consistency, _intervals, _measure, _performance, _sequences


def spoilt(module: ModuleType, right: str, wrong: str) -> Any:
    """Return the module with one piece of its source replaced."""
    source = inspect.getsource(module)
    assert source.count(right) == 1, f"{right!r} is {source.count(right)} times in {module}"
    other = ModuleType(module.__name__)
    code = compile(source.replace(right, wrong), module.__name__, "exec", dont_inherit=True)
    exec(code, vars(other))  # the source of this package, changed by this test
    return other


def near(a: float | None, b: float) -> None:
    assert a == pytest.approx(b, abs=1e-9)


def kl_of_probabilities(m: Any) -> None:
    near(m.kl_consistency([[0.5, 0.5]], [[0.9, 0.1]]).value, 0.5 * math.log(25 / 9))


def agreement_of_labels(m: Any) -> None:
    near(m.output_consistency([0, 1, 1, 0], [0, 1, 1, 1]).value, 75.0)


def kl_of_gaussians(m: Any) -> None:
    near(m.kl_gaussian([1.0], [0.0], 1.0, 2.0).value, math.log(2) + 2 / 8 - 0.5)


def gap(m: Any) -> None:
    near(m.prediction_gap([0.0, 2.0, 6.0], [1.0, 2.0, 3.0]).value, math.sqrt(10 / 3))
    near(m.prediction_gap([1.0, 2.0, 9.0], [1.0, 2.0, 3.0], relative=True).value, math.sqrt(12))


def agreement_of_numbers(m: Any) -> None:
    near(m.agreement_within([0.0, 0.0, 0.0, 0.0], [0.5, -0.5, 2.0, -2.0], 0.5).value, 50.0)


def law_of_labels(m: Any) -> None:
    value = m.kl_of_laws([[0], [0], [0]], [[0], [0], [1]], smoothing=0.5).value
    near(value, stats.entropy([7 / 8, 1 / 8], [5 / 8, 3 / 8]))


def law_of_numbers(m: Any) -> None:
    p, q = np.array([[0.0], [1.0], [3.0], [7.0]]), np.array([[0.5], [2.0], [4.0], [9.0]])
    near(m.kl_of_laws(p, q, law="free", neighbours=1).value, math.log(0.5) + math.log(4 / 3))
    s, r = p.std(ddof=1), q.std(ddof=1)
    value = math.log(r / s) + (s**2 + (p.mean() - q.mean()) ** 2) / (2 * r**2) - 0.5
    near(m.kl_of_laws(p, q[:4], law="gaussian").value, value)
    uneven = np.append(q, [[30.0]], axis=0)
    near(m.kl_of_laws(p, uneven, law="free", neighbours=1).value, math.log(0.5 * 5 / 3))


def intervals(m: Any) -> None:
    values = np.array([1.0, 2.0, 6.0])
    near(m.student_interval(values, 0.95)[1], 3 + stats.sem(values) * stats.t.ppf(0.975, 2))
    ends = stats.binomtest(3, 10).proportion_ci()
    near(m.clopper_pearson(3, 10, 0.95)[0], ends.low)
    near(m.clopper_pearson(3, 10, 0.95)[1], ends.high)
    assert m.fold_at_zero((-3.0, 1.0)) == (0.0, 3.0)
    low, high = m.ratio_of_means(np.array([9.0, 10.0, 11.0]), np.array([2.0, 2.0, 2.0]))
    near(math.sqrt(low * high), 5.0)
    near(math.log(high / low), 2 * stats.t.ppf(0.975, 2) * math.sqrt(1 / 3) / 10)
    skewed = np.random.default_rng(0).lognormal(sigma=1.5, size=50)
    half = stats.t.ppf(0.975, 49) * stats.sem(skewed) / skewed.mean()
    low, high = m.ratio_of_means(skewed, confidence=0.95, n_resamples=2000, seed=0)
    assert math.log(high / skewed.mean()) > 1.1 * half
    near(math.log(skewed.mean() / low), half)
    inverse = m.ratio_of_means(np.full(50, 2.0), skewed)
    assert math.log(2 / skewed.mean() / inverse[0]) > 1.1 * half
    near(math.log(inverse[1] * skewed.mean() / 2), half)
    assert "30" in m.describe_doubt(skewed, 51, "30")
    assert m.describe_doubt(np.arange(51.0), 51, "") == ""
    assert m.describe_doubt(np.append(np.zeros(50), 1.0), 51, "few") != ""


def signed_gap(m: Any) -> None:
    y = (np.zeros(4), np.array([1, 1, 0, 0]), np.zeros(4))
    options = {"confidence": 0.95, "n_resamples": 10, "seed": 0}
    near(m.effectiveness(lambda y, p: np.mean(y == p), *y, **options).value, 0.5)


def percentage_error(m: Any) -> None:
    near(m.sape(0.8, 0.9), 100 / 17)
    near(m.sape(-1.0, 3.0), 100.0)


def accuracy_of_a_sequence(m: Any) -> None:
    losses = [[0.5, 1.0], [0.5, 2.0], [0.5, 3.0], [0.5, 4.0]]
    beta = m.alpha_beta_accuracy(losses, [0.0, 0.0], alpha=2.0)
    near(beta.value, 0.5)
    near(beta.high, stats.beta.ppf(0.95, 3, 2))
    near(m.alpha_beta_accuracy(losses, [0.0, 0.0], beta=0.25).value, 3.0)
    runs = np.arange(1.0, 94)[:, None]
    # Wilks: the second largest of 93
    near(m.alpha_beta_accuracy(runs, [0.0], beta=0.05).high, 92.0)


def residual(m: Any) -> None:
    near(m.gradient_residual([[3.0], [-4.0]], 10).value, 0.5)


def means(m: Any) -> None:
    near(m.geometric_mean("efficiency", [2.0, 8.0, 32.0]).value, 8.0)
    near(m.over_seeds("effectiveness", [0.0, 0.1]).low, 0.0)


def growth(m: Any) -> None:
    i = np.arange(1.0, 101)
    near(m.strength(i**2).exponent.value, 2.0)
    assert m.strength(np.log(i)).kind != "weak"
    assert m.strength(i).kind == "weak"
    assert m.strength(np.ones(100)).kind == "strong"
    near(m.strength(np.log(i)).exponent.value, m.strength(np.log(i)).limit)
    ratio = np.log(i[50:]).mean() / np.log(i[9:19]).mean()
    at_the_limit = np.where(i > 50, ratio, 1.0)
    assert m.strength(at_the_limit).kind == "strong"


BUGS: list[tuple[Callable[[Any], None], ModuleType, str, str]] = [
    (kl_of_probabilities, _consistency, "(kl_divergence(p, q),", "(kl_divergence(q, p),"),
    (agreement_of_labels, _consistency, "unlearned == naive, c", "unlearned != naive, c"),
    (
        kl_of_gaussians,
        _consistency,
        "divergence(*means, *deviations)",
        "divergence(*means, *deviations[::-1])",
    ),
    (gap, _consistency, "naive.std(ddof=1)", "naive.std()"),
    (gap, _consistency, "(gaps / scale) ** 2", "abs(gaps / scale)"),
    (
        agreement_of_numbers,
        _consistency,
        "abs(unlearned - naive) <=",
        "(unlearned - naive) <=",
    ),
    (agreement_of_numbers, _consistency, "- naive) <= tolerance", "- naive) < tolerance"),
    (law_of_labels, _sequences, "divergence(*shares)", "divergence(*[*shares][::-1])"),
    (law_of_labels, _sequences, "smoothing * n_labels", "smoothing"),
    (law_of_numbers, _sequences, "d.std(axis=0, ddof=1)", "d.std(axis=0)"),
    (law_of_numbers, _sequences, "np.log(m / (n - 1))", "np.log(m / n)"),
    (law_of_numbers, _sequences, "np.log(m / (n - 1))", "np.log(n / (n - 1))"),
    (law_of_numbers, _sequences, "np.log(across / within)", "np.log(within / across)"),
    (law_of_numbers, _sequences, "k, axis=1)[:, k]", "k - 1, axis=1)[:, k - 1] + 1e-300"),
    (intervals, _intervals, "values.var(ddof=1)", "values.var()"),
    (intervals, _intervals, "stdtrit(df, ", "stdtrit(df + 1, "),
    (intervals, _intervals, "successes, failures + 1", "successes, failures"),
    (intervals, _intervals, "successes + 1, failures", "successes, failures"),
    (intervals, _intervals, "rows.var(axis=1, ddof=1)", "rows.var(axis=1)"),
    (intervals, _intervals, "sorted(map(abs, interval))", "sorted(interval)"),
    (intervals, _intervals, "min(float(t_low), -t)", "-t"),
    (intervals, _intervals, "max(float(t_high), t)", "max(-float(t_low), t)"),
    (
        intervals,
        _intervals,
        "signs = np.random.default_rng(seed), (1.0, -1.0)",
        "signs = np.random.default_rng(seed), (1.0, 1.0)",
    ),
    (intervals, _intervals, "> limit:", "> 99 * limit:"),
    (signed_gap, _performance, "name, abs(value), fold", "name, value, fold"),
    (percentage_error, _performance, "return abs(_sape_with", "return (_sape_with"),
    (percentage_error, _performance, "(abs(a) + abs(b))", "(a + b)"),
    (accuracy_of_a_sequence, _sequences, "excess > alpha", "excess >= alpha"),
    (accuracy_of_a_sequence, _sequences, "betaincinv(worst + 1,", "betaincinv(worst,"),
    (accuracy_of_a_sequence, _sequences, ".sum(axis=0).max()", ".sum(axis=0).min()"),
    (accuracy_of_a_sequence, _sequences, "ordered[n - 1 - allowed]", "ordered[n - 2 - allowed]"),
    (accuracy_of_a_sequence, _sequences, "ordered[enough[0]]", "ordered[enough[0] - 1]"),
    (accuracy_of_a_sequence, _sequences, "excess = ours - theirs", "excess = theirs - ours"),
    (residual, _performance, "size = safe_norm(values) / n_rows", "size = safe_norm(values)"),
    (means, _measure, "math.exp(float(logs.mean()))", "float(numbers.mean())"),
    (means, _measure, "min(interval[0], mean), least)", "min(interval[0], mean), -9.0)"),
    (growth, _sequences, "high <= limit + 1e-9", "high < limit - 1e-3"),
    (growth, _sequences, "table[:, late - 1]", "table[:, late - 2]"),
    (growth, _sequences, "np.log(early), np.log(late)", "early * 1.0, late * 1.0"),
    (growth, _sequences, '"weak" if low > limit', '"weak" if high < limit'),
]


@pytest.mark.parametrize(
    ("check", "module", "right", "wrong"), BUGS, ids=[f"{b[0].__name__}-{b[3]}" for b in BUGS]
)
def test_bug_is_noticed(
    check: Callable[[Any], None], module: ModuleType, right: str, wrong: str
) -> None:
    check(module)
    bad = spoilt(module, right, wrong)
    with pytest.raises(AssertionError):
        check(bad)
