"""How fast and how good the unlearned model is (survey, sections 3.1, 3.2 and 3.4)."""

import math
import operator
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures._intervals import (
    FEWEST_ROWS,
    Floats,
    Ints,
    Resampling,
    bootstrap,
    describe_doubt,
    fold_at_zero,
    ratio_of_means,
)
from letheon.measures._measure import (
    Measure,
    MeasureOptions,
    as_numbers,
    check_predictions,
    make_measure,
    require_finite,
    require_same_length,
    scaled_norm,
)

# With fewer the coverage of skewed times is below 93.5 %; retrains differ far less than removals.
_FEWEST_REMOVALS = 60
_FEWEST_RETRAINS = 5
# Largest deviation of the logarithms of a few retrain times.
_MOST_SPREAD = 0.25
# Time is positive.
_LEAST_SECONDS = float(np.nextafter(0, 1))


def efficiency(
    naive_seconds: ArrayLike, unlearn_seconds: ArrayLike, *, confidence: float = 0.95
) -> Measure:
    """Return the speed-up over naive retraining (survey, equation 3.1).

    ``speed-up(h_U) = (time to obtain h_*) / (time to obtain h_U)``. With repeated timings it is the
    ratio of the means: total naive time over total unlearning time at equal numbers of
    requests, which is what somebody pays. (A mean of ratios would be ruled by the luckiest
    request.)

    Parameters
    ----------
    naive_seconds : float or list of float
        Time of naive retraining, once or repeated.
    unlearn_seconds : float or list of float
        Time of the removal mechanism, once or repeated, over several requests as a rule. The two
        lists need not be of one length.
    confidence : float, default=0.95
        Coverage at which the interval aims.

    Returns
    -------
    Measure
        Higher is better; `n` is the number of unlearning times. The interval is a bootstrap-t of
        the logarithm of the ratio, because times are skewed. It is claimed to hold from 60
        unlearning times and 5 naive ones on; with fewer, `is_rough` is True and the note says why:
        a slow kind of request that comes once in 20 is likely not among five. The same where
        fewer than 60 naive times differ by much (a deviation of their logarithms above 0.25), and
        where neighbouring times are alike, since times are taken to be independent. None if one of
        the two was timed once, or if no two times differ.

    Examples
    --------
    >>> print(efficiency([10.1, 9.8, 10.3], [0.50, 0.52, 0.47]))
    efficiency: 20.27x, roughly [18.24, 22.76] (measured, n=3, higher is better)
    """
    naive, unlearn = (
        as_numbers(name, np.atleast_1d(times), "one number or a list of them", least=_LEAST_SECONDS)
        for name, times in (("naive_seconds", naive_seconds), ("unlearn_seconds", unlearn_seconds))
    )
    interval = ratio_of_means(naive, unlearn, confidence=confidence)
    ratio = float(naive.mean()) / float(unlearn.mean())
    doubt = describe_doubt(unlearn, _FEWEST_REMOVALS, "timings of removals")
    doubt = doubt or describe_doubt(naive, _FEWEST_RETRAINS, "timings of retrains")
    doubt = doubt or _describe_timing_doubt(naive, unlearn)
    return make_measure(
        "efficiency", ratio, interval, unlearn.size, confidence=confidence, doubt=doubt
    )


def _describe_timing_doubt(naive: Floats, unlearn: Floats) -> str:
    """Return a doubt where a few retrains differ, or where removals that are neighbours are alike.

    Few do not show how skewed their times are. Alike: more than in 49 of 50 independent samples.
    """
    if naive.size < _FEWEST_REMOVALS and float(np.std(np.log(naive), ddof=1)) > _MOST_SPREAD:
        return (
            f"only {naive.size} timings of retrains, which differ by much, and "
            f"{_FEWEST_REMOVALS} are needed: the interval may be too narrow"
        )
    gaps = np.log(unlearn) - np.log(unlearn).mean()
    spread = float(gaps @ gaps)
    if spread > 0 and float(gaps[1:] @ gaps[:-1]) > 2 / math.sqrt(unlearn.size) * spread:
        return "timings that follow each other are alike: the interval may be too narrow"
    return ""


Metric = Callable[[Any, Any], Any]

# With fewer rows, or rows on which the models differ, the bootstrap's coverage drops below 93.5 %;
# for numbers that are no labels, with fewer than `FEWEST_ROWS`.
_FEWEST_LABELS = 30
_FEWEST_DIFFERING = 10


def _compare_metrics(
    name: str,
    metric: Metric,
    signed: Callable[[float, float], float],
    y: dict[str, ArrayLike],
    resampling: Resampling,
    **options: Unpack[MeasureOptions],
) -> Measure:
    """Return ``|signed(M_U, M_*)|`` with its interval by paired bootstrap.

    `y` holds the truth, the unlearned model's and the naively retrained model's predictions.
    """
    arrays = {name: check_predictions(name, values) for name, values in y.items()}
    require_same_length(**arrays)
    truth, unlearned, naive = arrays.values()
    n = len(truth)

    def score_difference(rows: Ints) -> float:
        y = truth[rows]
        scores = (require_finite("the metric", metric(y, p[rows])) for p in (unlearned, naive))
        return signed(*scores)

    value = score_difference(np.arange(n))
    interval = bootstrap(score_difference, n, value, **resampling)
    doubt = "" if interval is None else _describe_row_doubt(unlearned, naive)
    options["confidence"] = resampling.get("confidence", 0.95)
    return make_measure(name, abs(value), fold_at_zero(interval), n, doubt=doubt, **options)


def _describe_row_doubt(unlearned: NDArray[Any], naive: NDArray[Any]) -> str:
    """Say when there is too little to resample; simulated in the tests of coverage."""
    n = len(unlearned)
    if n < _FEWEST_LABELS:
        return f"only {n} rows: the interval may be too narrow"
    ours, theirs = unlearned.reshape(n, -1), naive.reshape(n, -1)
    differing = int(np.sum(np.any(ours != theirs, axis=1)))
    if 0 < differing < _FEWEST_DIFFERING:
        return f"the models differ on {differing} rows only: the interval may be too narrow"
    if unlearned.dtype.kind == "f" and (unlearned % 1).any():
        return describe_doubt((ours - theirs).ravel() ** 2, FEWEST_ROWS, "rows")
    return ""


def effectiveness(
    metric: Metric,
    y_true: ArrayLike,
    y_unlearned: ArrayLike,
    y_naive: ArrayLike,
    **resampling: Unpack[Resampling],
) -> Measure:
    """Return the gap in test performance to the naively retrained model (survey, equation 3.2).

    ``eff(h_U) = |M_U - M_*|`` with ``M = metric(y_true, y_pred)`` on a test set.

    Parameters
    ----------
    metric : callable
        ``metric(y_true, y_pred) -> float`` in scikit-learn's order of arguments.
    y_true, y_unlearned, y_naive : array-like
        Truth and the predictions (or scores) of both models on the same rows.
    confidence : float, default=0.95
        Coverage at which the interval aims.
    n_resamples : int, default=1000
        Bootstrap resamples, each with two calls of `metric`.
    seed : int, default=0
        Seed of the resamples: the same input gives the same interval.

    Returns
    -------
    Measure
        Lower is better; 0 is the ideal. The interval is a bootstrap over test rows, paired because
        both models predict the same rows, of the signed gap, then folded at 0: it speaks of
        other test rows, not of other training runs. None if the models agree on every
        row (resampling learns nothing from that; see `output_consistency`, whose interval does) or
        if the metric is undefined on more than a tenth of the resamples. Its coverage is the
        stated one from 30 rows on (100 for numbers) of which 10 get different predictions; below,
        `is_rough` is True and the note says why.

    Examples
    --------
    >>> import numpy as np
    >>> accuracy = lambda y, p: np.mean(y == p)
    >>> y, unlearned, naive = [0, 1] * 50, [0, 1] * 35 + [1] * 30, [0, 1] * 50
    >>> print(effectiveness(accuracy, y, unlearned, naive))
    effectiveness: 0.15 [0.08, 0.22] at 0.95 (measured, n=100, lower is better)
    """
    y = {"y_true": y_true, "y_unlearned": y_unlearned, "y_naive": y_naive}
    return _compare_metrics("effectiveness", metric, operator.sub, y, resampling)


def effectiveness_from_values(
    metric_unlearned: float, metric_naive: float, *, n: int = 0
) -> Measure:
    """Return ``|M_U - M_*|`` of two known performances (survey, equation 3.2), no interval.

    Parameters
    ----------
    metric_unlearned, metric_naive : float
        Test performance of both models.
    n : int, default=0
        Test rows behind them, if known.
    """
    unlearned = require_finite("metric_unlearned", metric_unlearned)
    gap = abs(unlearned - require_finite("metric_naive", metric_naive))
    return make_measure("effectiveness", gap, None, n)


_CAVEAT = "a small value does not prove forgetting"


def _sape_with_sign(a: float, b: float) -> float:
    """Return ``100 (a - b) / (|a| + |b|)``; 0 for two zeros."""
    scale = max(abs(a), abs(b))
    if scale == 0:
        return 0.0
    # scaled first: |a| + |b| can overflow
    a, b = a / scale, b / scale
    return 100 * (a - b) / (abs(a) + abs(b))


def sape(a: float, b: float) -> float:
    """Return the symmetric absolute percentage error ``100 |a - b| / (|a| + |b|)``.

    It lies in [0, 100] and is symmetric. Two zeros give 0: the formula has no value there, but
    the two performances are equal, and so is its limit along ``a = b``. Values of
    opposite sign (R² can be negative) always give 100, whatever their size.

    Parameters
    ----------
    a, b : float
        Two finite numbers.

    Examples
    --------
    >>> sape(0.10, 0.0)
    100.0
    >>> round(sape(0.9, 0.8), 2)
    5.88
    """
    return abs(_sape_with_sign(require_finite("a", a), require_finite("b", b)))


def certifiability(
    metric_unlearned_on_forgotten: float, metric_naive_on_forgotten: float, *, n: int = 0
) -> Measure:
    """Return the certifiability measure of two known performances (survey, equation 3.6).

    ``cert(h_U) = SAPE(M_U, M_*) = 100 |M_U - M_*| / (|M_U| + |M_*|)``, in per cent, where both
    performances are taken on the *forgotten* rows.

    Parameters
    ----------
    metric_unlearned_on_forgotten, metric_naive_on_forgotten : float
        Performance of both models on the rows that were forgotten.
    n : int, default=0
        Forgotten rows behind them, if known.

    Returns
    -------
    Measure
        Lower is better, basis ``"proxy"``, no interval.

    Notes
    -----
    A large value shows that the unlearned model knows something about the forgotten rows that it
    should not. **A small value does not prove forgetting**: if a model that has never seen
    the rows predicts them well too, then original, retrained and unlearned model all look alike
    here. The survey's remedy is backdoor data, on which the retrained model is bound to fail.
    """
    value = sape(metric_unlearned_on_forgotten, metric_naive_on_forgotten)
    return make_measure("certifiability", value, None, n, basis="proxy", note=_CAVEAT)


def certifiability_from_predictions(
    metric: Metric,
    y_true: ArrayLike,
    y_unlearned: ArrayLike,
    y_naive: ArrayLike,
    **resampling: Unpack[Resampling],
) -> Measure:
    """Return `certifiability` from predictions on the forgotten rows, with an interval.

    Parameters
    ----------
    metric : callable
        ``metric(y_true, y_pred) -> float`` in scikit-learn's order of arguments.
    y_true, y_unlearned, y_naive : array-like
        Truth and predictions of both models on the forgotten rows.
    confidence, n_resamples, seed
        As for `effectiveness`.

    Returns
    -------
    Measure
        Lower is better, basis ``"proxy"``: a small value does not prove forgetting, see
        `certifiability`. The interval is a paired bootstrap over forgotten rows, folded at 0; None
        for a single forgotten row or where both models score alike on every resample. With fewer
        than 30 rows, or 10 with different predictions, it is rough; the note says so.
    """
    y = {"y_true": y_true, "y_unlearned": y_unlearned, "y_naive": y_naive}
    options: MeasureOptions = {"basis": "proxy", "note": _CAVEAT}
    return _compare_metrics("certifiability", metric, _sape_with_sign, y, resampling, **options)


def gradient_residual(gradient: ArrayLike, n_rows: int) -> Measure:
    """Return the size of the gradient on the remaining rows, per row.

    ``|| grad L(theta_U, D_r) ||_2 / n`` with `L` the sum of losses over the ``n`` rows of ``D_r``,
    regulariser and, where the training objective has one, noise term included (the survey's
    residual leaves the noise term out, which is not what Guo et al. bound).

    Parameters
    ----------
    gradient : array-like
        Gradient of the *summed* objective at the unlearned parameters, of any shape.
    n_rows : int
        Rows that remain.

    Returns
    -------
    Measure
        Lower is better; 0 exactly at a stationary point. A fact about these parameters: ``low =
        value = high``. With strong convexity ``mu`` per row, ``value / mu`` bounds the distance of
        the parameters to the retrained optimum. `n` is the number of rows.

    Examples
    --------
    >>> gradient_residual([[3.0], [4.0]], n_rows=10).value
    0.5
    """
    if n_rows < 1:
        raise ValueError(f"n_rows must be at least 1, not {n_rows!r}")
    values = np.asarray(gradient, dtype=np.float64).ravel()
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError("the gradient must hold finite numbers, at least one")
    size = scaled_norm(values) / n_rows
    return make_measure("gradient residual", size, (size, size), int(n_rows))


def gradient_residual_of(model: Any) -> Measure | None:
    """Return `gradient_residual` of a fitted model, None if the model cannot tell.

    Parameters
    ----------
    model : estimator
        A model with `exact_residual` (one pass over the rows it holds) and `n_rows_`, as the
        linear models of `letheon.linear` have while they hold their rows. Noise that is added to
        the parameters (Fisher, Descent-to-Delete) shows in it, after a retrain too.

    Returns
    -------
    Measure or None
    """
    ask = getattr(model, "exact_residual", None)
    if ask is None or getattr(model, "data_free", False):
        return None
    return gradient_residual([ask()], model.n_rows_)
