"""Efficiency, effectiveness and certifiability (survey, sections 3.1, 3.2 and 3.4)."""

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
    safe_norm,
)

# With fewer the coverage for skewed times is below 93.5 %. Retrain times vary far less.
_FEWEST_REMOVALS = 60
_FEWEST_RETRAINS = 5
# Largest standard deviation of the logarithms if there are few retrain times.
_MOST_SPREAD = 0.25
# Times must be positive.
_LEAST_SECONDS = float(np.nextafter(0, 1))


def efficiency(
    naive_seconds: ArrayLike, unlearn_seconds: ArrayLike, *, confidence: float = 0.95
) -> Measure:
    """Return the speed-up over naive retraining (survey, equation 3.1).

    ``speed-up(h_U) = (time to obtain h_*) / (time to obtain h_U)``. With repeated timings it is the
    ratio of the mean times. (In a mean of ratios, the fastest request would dominate.)

    Parameters
    ----------
    naive_seconds : float or list of float
        Times of naive retraining in seconds.
    unlearn_seconds : float or list of float
        Times of removals in seconds, usually of several requests. The two lists may differ in
        length.
    confidence : float, default=0.95
        Nominal coverage of the interval.

    Returns
    -------
    Measure
        Higher is better; `n` is the number of unlearning times. The interval is a bootstrap-t of
        the logarithm of the ratio, because times are skewed. It reaches its nominal coverage with
        60 or more unlearning times and 5 or more retraining times. With fewer, `is_rough` is True
        and the note says why: for example, five requests probably miss a slow kind of request
        that occurs once in 20. The interval is also rough if fewer than 60 retraining times vary
        widely (standard deviation of the logarithms above 0.25), or if consecutive times are
        correlated. There is no interval if either list has a single time, or if all times are
        equal.

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
    """Return why the interval of the speed-up may be too narrow, or an empty string.

    Reasons are few retraining times that vary widely (a few values do not show their skewness), and
    removal times that are correlated with the previous ones. They count as correlated if their
    correlation exceeds that of 49 of 50 independent samples.
    """
    if naive.size < _FEWEST_REMOVALS and float(np.std(np.log(naive), ddof=1)) > _MOST_SPREAD:
        return (
            f"only {naive.size} timings of retrains, which vary widely; {_FEWEST_REMOVALS} are "
            "needed: the interval may be too narrow"
        )
    gaps = np.log(unlearn) - np.log(unlearn).mean()
    spread = float(gaps @ gaps)
    if spread > 0 and float(gaps[1:] @ gaps[:-1]) > 2 / math.sqrt(unlearn.size) * spread:
        return "consecutive timings are correlated: the interval may be too narrow"
    return ""


Metric = Callable[[Any, Any], Any]

# With fewer rows, or fewer rows on which the models differ, the coverage of the bootstrap drops
# below 93.5 %; for regression, with fewer than `FEWEST_ROWS`.
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
    """Return the measure ``|signed(M_U, M_*)|`` of two models, with a paired bootstrap interval.

    M_U and M_* are the values of `metric` for the unlearned and the retrained model. `y` has three
    entries in this order: the true values, and the predictions of these two models.
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
    """Return why the rows are too few for the bootstrap, or an empty string if there are enough."""
    n = len(unlearned)
    if n < _FEWEST_LABELS:
        return f"only {n} rows: the interval may be too narrow"
    ours, theirs = unlearned.reshape(n, -1), naive.reshape(n, -1)
    differing = int(np.sum(np.any(ours != theirs, axis=1)))
    if 0 < differing < _FEWEST_DIFFERING:
        return f"the models differ on only {differing} rows: the interval may be too narrow"
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
    """Return the difference in test performance from the retrained model (survey, equation 3.2).

    ``eff(h_U) = |M_U - M_*|`` with ``M = metric(y_true, y_pred)`` on a test set.

    Parameters
    ----------
    metric : callable
        ``metric(y_true, y_pred) -> float`` in scikit-learn's order of arguments.
    y_true, y_unlearned, y_naive : array-like
        True values and the predictions (or scores) of both models on the same rows.
    confidence : float, default=0.95
        Nominal coverage of the interval.
    n_resamples : int, default=1000
        Number of bootstrap resamples, each with two calls of `metric`.
    seed : int, default=0
        Seed of the resamples. The same input gives the same interval.

    Returns
    -------
    Measure
        Lower is better; 0 is ideal. The interval is a paired bootstrap of the signed difference
        over test rows, folded at 0. It covers other test rows, not other training runs. There is
        no interval if the models agree on every row (`output_consistency` has one in that case),
        or if the metric is undefined on more than a tenth of the resamples. It reaches its nominal
        coverage with 30 or more rows (100 in regression) if the models differ on at least 10 of
        them. Otherwise, `is_rough` is True and the note says why.

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
    """Return ``|M_U - M_*|`` of two known scores (survey, equation 3.2), without an interval.

    Parameters
    ----------
    metric_unlearned, metric_naive : float
        Test performance of both models.
    n : int, default=0
        Number of test rows, if known.

    Returns
    -------
    Measure
        Lower is better.

    Examples
    --------
    >>> print(effectiveness_from_values(0.91, 0.89, n=500))
    effectiveness: 0.02 (measured, n=500, lower is better)
    """
    unlearned = require_finite("metric_unlearned", metric_unlearned)
    gap = abs(unlearned - require_finite("metric_naive", metric_naive))
    return make_measure("effectiveness", gap, None, n)


_CAVEAT = "a small value does not prove forgetting"


def _sape_with_sign(a: float, b: float) -> float:
    """Return `sape` with the sign of a - b: ``100 (a - b) / (|a| + |b|)``; 0 for two zeros."""
    scale = max(abs(a), abs(b))
    if scale == 0:
        return 0.0
    # Scaled first, because |a| + |b| can overflow.
    a, b = a / scale, b / scale
    return 100 * (a - b) / (abs(a) + abs(b))


def sape(a: float, b: float) -> float:
    """Return the symmetric absolute percentage error ``100 |a - b| / (|a| + |b|)``.

    It is in [0, 100] and symmetric. Two zeros give 0, the limit along ``a = b``. Values of opposite
    sign (R² can be negative) always give 100.

    Parameters
    ----------
    a, b : float
        Two finite numbers.

    Returns
    -------
    float

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
    """Return the certifiability measure of two known scores (survey, equation 3.6).

    ``cert(h_U) = SAPE(M_U, M_*) = 100 |M_U - M_*| / (|M_U| + |M_*|)``, in per cent, with both
    models scored on the *forgotten* rows.

    Parameters
    ----------
    metric_unlearned_on_forgotten, metric_naive_on_forgotten : float
        Scores of both models on the forgotten rows.
    n : int, default=0
        Number of forgotten rows, if known.

    Returns
    -------
    Measure
        Lower is better, basis ``"proxy"``, no interval.

    Notes
    -----
    A large value shows that the unlearned model still contains information about the forgotten
    rows. **A small value does not prove forgetting**: if a model that has never seen the rows
    predicts them well, then the original, the retrained and the unlearned model all have similar
    scores. The survey's remedy is backdoor data, which the retrained model cannot predict.

    Examples
    --------
    >>> print(certifiability(0.9, 0.8, n=40))
    certifiability: 5.882% (proxy, n=40, lower is better)
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
    """Return `certifiability` with a confidence interval, from predictions on the forgotten rows.

    Parameters
    ----------
    metric : callable
        ``metric(y_true, y_pred) -> float`` in scikit-learn's order of arguments.
    y_true, y_unlearned, y_naive : array-like
        True values and predictions of both models on the forgotten rows.
    confidence, n_resamples, seed
        As for `effectiveness`.

    Returns
    -------
    Measure
        Lower is better, basis ``"proxy"``: a small value does not prove forgetting, see
        `certifiability`. The interval is a paired bootstrap over forgotten rows, folded at 0. There
        is no interval for a single forgotten row, or if both models have equal scores on every
        resample. It is rough with fewer than 30 rows, or if the predictions differ on fewer than
        10 rows.

    Examples
    --------
    >>> import numpy as np
    >>> accuracy = lambda y, p: np.mean(y == p)
    >>> y, unlearned, naive = [0, 1] * 50, [0, 1] * 35 + [1] * 30, [0, 1] * 50
    >>> print(certifiability_from_predictions(accuracy, y, unlearned, naive))
    certifiability: 8.108% [4.167, 12.36] at 0.95 (proxy, n=100, lower is better)
    """
    y = {"y_true": y_true, "y_unlearned": y_unlearned, "y_naive": y_naive}
    options: MeasureOptions = {"basis": "proxy", "note": _CAVEAT}
    return _compare_metrics("certifiability", metric, _sape_with_sign, y, resampling, **options)


def gradient_residual(gradient: ArrayLike, n_rows: int) -> Measure:
    """Return the norm of the gradient on the remaining rows, per row.

    This is ``|| grad L(theta_U, D_r) ||_2 / n``. `L` is the sum of losses over the ``n`` remaining
    rows ``D_r``, plus the regulariser and the noise term of the training objective, if any. (The
    survey's residual omits the noise term; the bound of Guo et al. includes it.)

    Parameters
    ----------
    gradient : array-like
        Gradient of the *summed* objective at the unlearned parameters, of any shape.
    n_rows : int
        Number of remaining rows.

    Returns
    -------
    Measure
        Lower is better; 0 if and only if the gradient is 0. There is no sampling error: ``low =
        value = high``. If the objective per row is strongly convex with constant ``mu``, the
        distance of the parameters from the retrained optimum is at most ``value / mu``. `n` is
        the number of rows.

    Raises
    ------
    ValueError
        The gradient is empty or not finite, or `n_rows` is below 1.

    Examples
    --------
    >>> gradient_residual([[3.0], [4.0]], n_rows=10).value
    0.5
    """
    if n_rows < 1:
        raise ValueError(f"n_rows must be at least 1, not {n_rows!r}")
    values = np.asarray(gradient, dtype=np.float64).ravel()
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError("gradient must be non-empty and contain only finite numbers")
    size = safe_norm(values) / n_rows
    return make_measure("gradient residual", size, (size, size), int(n_rows))


def gradient_residual_of(model: Any) -> Measure | None:
    """Return `gradient_residual` of a fitted model, or None if the model does not provide it.

    Parameters
    ----------
    model : estimator
        A model with `exact_residual` (one pass over its rows) and `n_rows_`, such as the linear
        models of `letheon.linear` that keep their rows. The residual includes the effect of noise
        that is added to the parameters (Fisher, Descent-to-Delete), even after a retraining.

    Returns
    -------
    Measure or None

    Examples
    --------
    >>> from letheon import InfluenceClassifier, NearestCentroid
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> gradient_residual_of(InfluenceClassifier(random_state=0).fit(X, y)).name
    'gradient residual'
    >>> gradient_residual_of(NearestCentroid().fit(X, y)) is None
    True
    """
    exact_residual = getattr(model, "exact_residual", None)
    if exact_residual is None or getattr(model, "data_free", False):
        return None
    return gradient_residual([exact_residual()], model.n_rows_)
