"""Certifiability by performance on the forgotten rows (survey, section 3.4)."""

from numpy.typing import ArrayLike

from letheon.measures._inputs import finite
from letheon.measures._measure import Measure, known
from letheon.measures._paired import Metric, compared

__all__ = ["certifiability", "certifiability_from_predictions", "sape"]

_CAVEAT = "a small value does not prove forgetting"


def _signed_sape(a: float, b: float) -> float:
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
    return abs(_signed_sape(finite("a", a), finite("b", b)))


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
    return known("certifiability", value, None, n, basis="proxy", note=_CAVEAT)


def certifiability_from_predictions(
    metric: Metric,
    y_true: ArrayLike,
    y_unlearned: ArrayLike,
    y_naive: ArrayLike,
    *,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
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
    value, interval, n, doubt = compared(
        metric,
        _signed_sape,
        (y_true, y_unlearned, y_naive),
        confidence=confidence,
        n_resamples=n_resamples,
        seed=seed,
    )
    return known(
        "certifiability",
        value,
        interval,
        n,
        basis="proxy",
        confidence=confidence,
        note=_CAVEAT,
        doubt=doubt,
    )
