"""(alpha, beta)-accuracy over a sequence of removals (survey, section 2; Neel et al. 2021)."""

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, betaincinv

from letheon.measures._inputs import confidence_level, finite
from letheon.measures._measure import Measure

__all__ = ["alpha_beta_accuracy"]

Against = Literal["retrained", "minimum"]


def alpha_beta_accuracy(
    losses_unlearned: ArrayLike,
    losses_naive: ArrayLike,
    *,
    alpha: float | None = None,
    beta: float | None = None,
    against: Against = "retrained",
    confidence: float = 0.95,
) -> Measure:
    """Return what is known of (alpha, beta)-accuracy after runs with several seeds.

    An unlearner is (alpha, beta)-accurate if ``Pr[L(h_i, D_i) - L(h*_i, D_i) > alpha] < beta`` for
    every removal ``i`` (survey, equation 2.4). Give alpha to learn beta, or beta to learn alpha.

    Parameters
    ----------
    losses_unlearned : array-like of shape (n_seeds, n_requests)
        ``L(h_i, D_i)``: loss of the unlearned model after removal i on the rows that remain.
    losses_naive : array-like of shape (n_seeds, n_requests) or (n_requests,)
        What it is compared with, see `against`. One row stands for all seeds.
    alpha : float, optional
        Excess loss allowed. The result is the largest share, over i, of seeds with more.
    beta : float, optional
        Probability allowed, between 0 and 1. The result is the least alpha with which the share
        of seeds above it is at most beta for every i: the largest empirical (1 - beta) quantile.
    against : {"retrained", "minimum"}, default="retrained"
        The survey compares with a retrained model, which is random too; Neel et al. compare with
        ``min_theta L(theta, D_i)``, which no loss can be below: a lower one is refused.
    confidence : float, default=0.95
        Confidence of the upper end.

    Returns
    -------
    Measure
        "accuracy beta" or "accuracy alpha", lower is better, `n` the number of seeds. `high` is an
        upper limit that holds for all removals at once: the largest of Clopper and Pearson's
        one-sided limits (for alpha, of order statistics by the same binomial law). So the unlearner
        is (alpha, high)-accurate on this sequence with that confidence, whatever the law of the
        losses. For alpha it is infinite when there are too few seeds to exclude anything. `low` is
        None: nothing is claimed there.

    Notes
    -----
    The number of removals needs no correction (Bonferroni's, say): the largest limit fails only if
    the limit of the truly worst removal does, and that one fails with probability 1 - confidence at
    most. Seeds must be independent runs; removals of one run need not be. It speaks of these
    removals, not of every sequence as the definition does.

    Examples
    --------
    >>> measure = alpha_beta_accuracy([[0.1, 0.4], [0.2, 0.2]], [[0.1, 0.1], [0.1, 0.1]], alpha=0.2)
    >>> measure.value
    0.5
    """
    confidence_level(confidence)
    excess = _excess(losses_unlearned, losses_naive, against)
    n_seeds, n_requests = excess.shape
    if (alpha is None) == (beta is None):
        raise ValueError("give alpha to learn beta, or beta to learn alpha, and not both")
    if alpha is not None:
        name = "accuracy beta"
        value, high = _share_above(excess, finite("alpha", alpha), 1 - confidence)
        given = f"alpha = {alpha:.4g}"
    else:
        name = "accuracy alpha"
        value, high = _quantile(excess, _probability(beta), 1 - confidence)
        given = f"beta = {beta:.4g}"
    against_what = "retrained models" if against == "retrained" else "the least loss"
    return Measure(
        name=name,
        value=value,
        low=None,
        high=high,
        n=n_seeds,
        better="lower",
        basis="measured",
        confidence=confidence,
        note=f"{given}, against {against_what}, largest of {n_requests} removals",
    )


def _share_above(excess: NDArray[np.float64], alpha: float, tail: float) -> tuple[float, float]:
    """Return the largest share of seeds above alpha, and its upper limit."""
    n = len(excess)
    worst = int((excess > alpha).sum(axis=0).max())
    # the limit grows with the count, so the worst removal has the largest
    high = 1.0 if worst == n else float(betaincinv(worst + 1, n - worst, 1 - tail))
    return worst / n, high


def _quantile(excess: NDArray[np.float64], beta: float, tail: float) -> tuple[float, float]:
    """Return the least alpha exceeded by at most a share beta of seeds, and its upper limit."""
    n = len(excess)
    ordered = np.sort(excess, axis=0)
    # at most floor(n beta) seeds may lie above; 1e-9 because 0.1 * 30 is 3 only after rounding
    allowed = min(math.floor(n * beta + 1e-9), n - 1)
    value = float(ordered[n - 1 - allowed].max())
    # the k-th smallest lies below the true quantile only if k draws do: P(Bin(n, 1 - beta) >= k)
    enough = np.flatnonzero(bdtr(np.arange(n), n, 1 - beta) >= 1 - tail)
    high = float(ordered[enough[0]].max()) if enough.size else math.inf
    return value, max(high, value)


def _excess(unlearned: ArrayLike, naive: ArrayLike, against: Against) -> NDArray[np.float64]:
    """Return L_U - L_* for each seed and removal."""
    if against not in get_args(Against):
        raise ValueError(f"against must be one of {get_args(Against)}, not {against!r}")
    ours, theirs = (np.asarray(losses, dtype=np.float64) for losses in (unlearned, naive))
    if ours.ndim != 2 or ours.size == 0:
        raise ValueError(f"losses_unlearned must be (n_seeds, n_requests), not {ours.shape}")
    if theirs.shape not in (ours.shape, ours.shape[1:]):
        raise ValueError(f"losses_naive must have shape {ours.shape} or {ours.shape[1:]}")
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        raise ValueError("losses contain NaN or infinite numbers")
    excess = ours - theirs
    # a solver stops a little above the minimum
    slack = 1e-6 * (1 + abs(theirs))
    if against == "minimum" and (excess < -slack).any():
        raise ValueError("a loss lies below the least possible one; is losses_naive the minimum?")
    return np.asarray(excess)


def _probability(beta: float | None) -> float:
    if beta is None or not 0 < beta < 1:
        raise ValueError(f"beta must be between 0 and 1, not {beta!r}")
    return float(beta)
