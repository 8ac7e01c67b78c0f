"""Measures over many seeds or many removals (survey, section 2 and equation 3.5)."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import bdtr, betaincinv

from letheon.measures._consistency import gaussian_kl_divergence, kl_divergence
from letheon.measures._intervals import Floats, Interval, Ints, describe_doubt, ratio_of_means
from letheon.measures._measure import (
    Measure,
    MeasureOptions,
    TextRepr,
    as_numbers,
    check_predictions,
    from_plain,
    make_measure,
    require_finite,
    require_labels,
)

Law = Literal["labels", "gaussian", "free"]
Draws = NDArray[Any]

_FEWEST: dict[str, int] = {"labels": 2, "gaussian": 4, "free": 4}
_N_SPLITS = 20


def kl_of_laws(
    draws_unlearned: ArrayLike,
    draws_naive: ArrayLike,
    *,
    law: Law = "labels",
    smoothing: float = 0.5,
    neighbours: int = 3,
    seed: int = 0,
) -> Measure:
    """Return the divergence between the output distributions of unlearned and retrained models.

    This is ``1/n sum_i KL(Pr[h_U(x_i)] || Pr[h_*(x_i)])`` (survey, equation 3.5, in its first
    sense): the probability is over the randomness of training and unlearning, not over classes. The
    true divergence is 0 for an exact method, although single runs may differ.

    Parameters
    ----------
    draws_unlearned : array-like of shape (n_models, n_rows)
        Outputs for the same rows of models that were unlearned with independent seeds.
    draws_naive : array-like of shape (m_models, n_rows)
        Outputs of retrained models for these rows, with other seeds.
    law : {"labels", "gaussian", "free"}, default="labels"
        The distribution of the outputs. `labels`: categorical, ``p_c = (count_c + smoothing) /
        (n + smoothing K)`` over all K labels that occur. `gaussian`: normally distributed
        numbers; the mean and the standard deviation (n - 1) are used as in `kl_gaussian`. `free`:
        numbers with any continuous distribution, estimated from distances to the k-th nearest
        neighbour (Wang, Kulkarni and Verdú 2009) as ``1/n sum_j log(nu_k(j) / rho_k(j)) +
        log(m / (n - 1))``, where rho is the distance to the other unlearned draws, and nu to the
        retrained draws.
    smoothing : float, default=0.5
        Pseudo-count of each label (Jeffreys prior). It keeps the value finite.
    neighbours : int, default=3
        The number k of the nearest neighbour for ``law="free"``.
    seed : int, default=0
        Seed of the random halves for the null floor.

    Returns
    -------
    Measure
        "KL of laws" in nats, lower is better, `n` the number of unlearned models; no interval. The
        estimate is **biased upwards**: equal distributions give a positive value, about
        (K - 1)(1/n + 1/m)/2 for labels. Therefore the note reports the value and its *null floor*
        (retrained against retrained), both computed on halves of the models. Compare these two
        values, not the full value with the floor. The free estimate can be negative.

    Raises
    ------
    ValueError
        An argument is not valid, or there are too few models for the law.

    Examples
    --------
    >>> print(kl_of_laws([["a"], ["a"], ["b"], ["a"]], [["a"], ["b"], ["b"], ["b"]]))
    KL of laws: 0.3389 nats (measured, n=4, lower is better)
    """
    if law not in get_args(Law):
        raise ValueError(f"law must be one of {get_args(Law)}, not {law!r}")
    if not (np.isfinite(smoothing) and smoothing > 0):
        raise ValueError(f"smoothing must be above 0, not {smoothing!r}")
    if neighbours < 1:
        raise ValueError(f"neighbours must be at least 1, not {neighbours!r}")
    laws: dict[str, Callable[[Draws, Draws], Floats]] = {
        "labels": partial(_categorical_kl, smoothing=smoothing),
        "gaussian": _gaussian_kl,
        "free": partial(_neighbour_kl, k=neighbours),
    }
    of_rows = laws[law]
    p, q = _encode_draws(draws_unlearned, draws_naive, law)
    fewest = max(_FEWEST[law], neighbours + 1 if law == "free" else 0)
    if min(len(p), len(q)) < fewest:
        raise ValueError(
            f"law={law!r} needs at least {fewest} models of each kind, not {len(p)} unlearned and "
            f"{len(q)} retrained"
        )
    value = float(of_rows(p, q).mean())
    note = _describe_floor(of_rows, p, q, fewest, seed)
    return make_measure("KL of laws", value, None, len(p), note=f"{law}; {note}")


def _encode_draws(unlearned: ArrayLike, naive: ArrayLike, law: Law) -> tuple[Draws, Draws]:
    """Return both sets of draws as float arrays of shape (models, rows), or raise if invalid.

    Labels are encoded as one-hot tables of shape (models, rows, labels).
    """
    p, q = check_predictions("draws_unlearned", unlearned), check_predictions("draws_naive", naive)
    if p.ndim != 2 or q.ndim != 2 or p.shape[1] != q.shape[1] or p.shape[1] == 0:
        raise ValueError(
            "draws_unlearned and draws_naive must have shape (n_models, n_rows) with equal n_rows, "
            f"not {p.shape} and {q.shape}"
        )
    if law != "labels":
        p = as_numbers("draws_unlearned", p, "numbers", ndim=2)
        return p, as_numbers("draws_naive", q, "numbers", ndim=2)
    require_labels("use law='gaussian' or 'free'", draws_unlearned=p, draws_naive=q)
    labels, codes = np.unique(np.concatenate([p, q]), return_inverse=True)
    hot = np.eye(len(labels))[codes.reshape(len(p) + len(q), -1)]
    return hot[: len(p)], hot[len(p) :]


def _categorical_kl(p: Draws, q: Draws, smoothing: float) -> Floats:
    """Return the divergence of smoothed label shares for each row, from one-hot tables."""
    n_labels = p.shape[2]
    shares = ((hot.sum(axis=0) + smoothing) / (len(hot) + smoothing * n_labels) for hot in (p, q))
    return kl_divergence(*shares)


def _gaussian_kl(p: Draws, q: Draws) -> Floats:
    """Return for each row the divergence of normal distributions fitted to the draws."""
    means = (p.mean(axis=0), q.mean(axis=0))
    # Equal draws have no spread; the rounding error of their mean must not create one.
    spreads = (np.where(np.ptp(d, axis=0) == 0, 0.0, d.std(axis=0, ddof=1)) for d in (p, q))
    same = (np.ptp(p, axis=0) == 0) & (np.ptp(q, axis=0) == 0) & (p[0] == q[0])
    return np.where(same, 0.0, gaussian_kl_divergence(*means, *spreads))


def _neighbour_kl(p: Draws, q: Draws, k: int) -> Floats:
    """Return the nearest-neighbour estimate of the divergence for each row."""
    n, m = len(p), len(q)
    rows = np.zeros(p.shape[1])
    for i in range(p.shape[1]):
        ours, theirs = np.sort(p[:, i]), np.sort(q[:, i])
        if n == m and (ours == theirs).all():
            continue
        within = np.partition(abs(ours[:, None] - ours), k, axis=1)[:, k]
        across = np.partition(abs(ours[:, None] - theirs), k - 1, axis=1)[:, k - 1]
        if not (within.all() and across.all()):
            raise ValueError(
                "law='free' needs continuous draws, but many draws are equal; use law='labels' or "
                "more neighbours"
            )
        rows[i] = np.log(across / within).mean() + np.log(m / (n - 1))
    return rows


def _describe_floor(
    of_rows: Callable[[Draws, Draws], Floats], p: Draws, q: Draws, fewest: int, seed: int
) -> str:
    """Return a text with the value and its null floor, both computed on halves of the models."""
    half = min(len(q) // 2, len(p))
    if half < fewest:
        return f"no null floor: it needs {2 * fewest} retrained models"
    rng, values, floors = np.random.default_rng(seed), [], []
    for _ in range(_N_SPLITS):
        ours, theirs = rng.permutation(len(p)), rng.permutation(len(q))
        values.append(of_rows(p[ours[:half]], q[theirs[:half]]).mean())
        floors.append(of_rows(q[theirs[half : 2 * half]], q[theirs[:half]]).mean())
    return (
        f"with {half} models against {half}: {np.mean(values):.4g}, null floor (retrained against "
        f"retrained) {np.mean(floors):.4g}"
    )


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
    """Estimate (alpha, beta)-accuracy from runs with several seeds.

    An unlearner is (alpha, beta)-accurate if ``Pr[L(h_i, D_i) - L(h*_i, D_i) > alpha] < beta`` for
    every removal ``i`` (survey, equation 2.4). Pass alpha to estimate beta, or the reverse.

    Parameters
    ----------
    losses_unlearned : array-like of shape (n_seeds, n_requests)
        ``L(h_i, D_i)``: loss of the unlearned model after removal i on the remaining rows.
    losses_naive : array-like of shape (n_seeds, n_requests) or (n_requests,)
        Losses to compare with, see `against`. A single row is used for all seeds.
    alpha : float, optional
        Allowed excess loss. The result is the share of seeds that exceed it, for the removal i
        with the largest share.
    beta : float, optional
        Allowed probability, between 0 and 1. The result is the smallest alpha such that, for every
        i, at most a share beta of the seeds exceeds it: the largest empirical (1 - beta) quantile.
    against : {"retrained", "minimum"}, default="retrained"
        What `losses_naive` contains. The survey compares with a retrained model, which is random
        too. Neel et al. compare with ``min_theta L(theta, D_i)``; an unlearned loss below this
        minimum raises an error.
    confidence : float, default=0.95
        Confidence of the upper end.

    Returns
    -------
    Measure
        "accuracy beta" or "accuracy alpha"; lower is better, and `n` is the number of seeds. `high`
        is an upper limit for all removals simultaneously. For beta it is the largest of Clopper and
        Pearson's one-sided limits; the unlearner is then (alpha, high)-accurate on this sequence
        with that confidence, for any distribution of the losses. For alpha it is the largest of
        the limits from order statistics, and infinite if there are too few seeds. `low` is None:
        there is no lower limit.

    Raises
    ------
    ValueError
        A value is not valid; the message says which.

    Notes
    -----
    No correction for the number of removals (such as Bonferroni's) is needed: the largest limit is
    too low only if the limit of the truly worst removal is too low, and the probability of that is
    at most 1 - confidence.
    Seeds must be independent runs; removals of one run need not be independent. The result holds
    for these removals, not for every sequence as in the definition.

    Examples
    --------
    >>> measure = alpha_beta_accuracy([[0.1, 0.4], [0.2, 0.2]], [[0.1, 0.1], [0.1, 0.1]], alpha=0.2)
    >>> measure.value
    0.5
    """
    excess = _excess_losses(losses_unlearned, losses_naive, against)
    n_seeds, n_requests = excess.shape
    if (alpha is None) == (beta is None):
        raise ValueError("pass exactly one of alpha and beta")
    if alpha is not None:
        name, setting = "accuracy beta", f"alpha = {alpha:.4g}"
        value, high = _share_above(excess, require_finite("alpha", alpha), 1 - confidence)
    elif beta is None or not 0 < beta < 1:
        raise ValueError(f"beta must be between 0 and 1, not {beta!r}")
    else:
        name, setting = "accuracy alpha", f"beta = {beta:.4g}"
        value, high = _excess_quantile(excess, beta, 1 - confidence)
    against_what = "retrained models" if against == "retrained" else "the least loss"
    note = f"{setting}, against {against_what}, largest of {n_requests} removals"
    return make_measure(name, value, (None, high), n_seeds, confidence=confidence, note=note)


def _share_above(excess: Floats, alpha: float, tail: float) -> tuple[float, float]:
    """Return the share of seeds above alpha for the worst removal, and its upper limit."""
    n = len(excess)
    worst = int((excess > alpha).sum(axis=0).max())
    # The limit grows with the count, so the worst removal has the largest limit.
    high = 1.0 if worst == n else float(betaincinv(worst + 1, n - worst, 1 - tail))
    return worst / n, high


def _excess_quantile(excess: Floats, beta: float, tail: float) -> tuple[float, float]:
    """Return the least alpha that at most a share beta of seeds exceeds, and its upper limit.

    Both are for the worst removal.
    """
    n = len(excess)
    ordered = np.sort(excess, axis=0)
    # At most floor(n beta) seeds may be above. 1e-9, because 0.1 * 30 is 3 only after rounding.
    allowed = min(math.floor(n * beta + 1e-9), n - 1)
    value = float(ordered[n - 1 - allowed].max())
    # The k-th smallest is below the true quantile only if k draws are: P(Bin(n, 1 - beta) >= k).
    enough = np.flatnonzero(bdtr(np.arange(n), n, 1 - beta) >= 1 - tail)
    high = float(ordered[enough[0]].max()) if enough.size else math.inf
    return value, max(high, value)


def _excess_losses(unlearned: ArrayLike, naive: ArrayLike, against: Against) -> Floats:
    """Return the excess losses L_U - L_*, shape (seeds, removals), or raise if invalid."""
    if against not in get_args(Against):
        raise ValueError(f"against must be one of {get_args(Against)}, not {against!r}")
    ours = as_numbers("losses_unlearned", unlearned, "(n_seeds, n_requests)", ndim=2)
    theirs = as_numbers("losses_naive", naive, f"of shape {ours.shape}", ndim=np.ndim(naive))
    if theirs.shape not in (ours.shape, ours.shape[1:]):
        raise ValueError(
            f"losses_naive must have shape {ours.shape} or {ours.shape[1:]}, not {theirs.shape}"
        )
    excess = ours - theirs
    # A solver stops slightly above the minimum.
    slack = 1e-6 * (1 + abs(theirs))
    if against == "minimum" and (excess < -slack).any():
        raise ValueError(
            "losses_unlearned has a loss below losses_naive, which must be the minimum"
        )
    return np.asarray(excess)


Kind = Literal["strong", "weak", "undecided"]

_FEWEST_REMOVALS = 16
# Over all sequences. With fewer the coverage for skewed work is below 93.5 %.
_FEWEST_EARLY = 60
# Larger exponents are reported as infinite.
_STEEPEST = 50.0


@dataclass(frozen=True, kw_only=True, repr=False)
class Strength(TextRepr):
    """How the work of the i-th removal grows with i.

    Attributes
    ----------
    kind : {"strong", "weak", "undecided"}
        `strong`: no faster than a logarithm. `weak`: faster, like a power of i. `undecided`: the
        interval of the exponent contains the limit, or there are too few removals.
    exponent : Measure
        The exponent k of the power ``i^k`` that grows like the measured work.
    limit : float
        Largest exponent k of a work that grows like a logarithm, on a sequence of this length.
    rule : str
        The decision rule as a text.

    Examples
    --------
    >>> result = strength([float(i**2) for i in range(1, 51)])
    >>> Strength.from_dict(result.to_dict()) == result
    True
    """

    kind: Kind
    exponent: Measure
    limit: float
    rule: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values. Infinite numbers stay floats."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Strength":
        """Return the object from the output of `to_dict`."""
        strength: Strength = from_plain(cls, values)
        return strength

    def __str__(self) -> str:
        """Return kind, exponent and decision rule in one line."""
        return f"{self.kind}: {self.exponent}; {self.rule}"


def strength(work: ArrayLike, *, confidence: float = 0.95) -> Strength:
    """Decide whether unlearning is strong or weak, from the work of a sequence of removals.

    With ``C_i`` the work of the i-th removal, an algorithm is *strong* if ``C_i / C_1 = O(log i)``
    and *weak* if ``C_i / C_1 = O(poly(i))`` (survey, section 2). The survey prints
    ``Omega(poly(i))`` for weak, a lower bound; Neel et al. state the upper bound.

    Parameters
    ----------
    work : array-like of shape (n_removals,) or (n_sequences, n_removals)
        Counted work, not seconds: gradient passes, retrained rows, or `Receipt.work` (relative to
        naive retraining; if many rows are removed, multiply it by the number of remaining rows).
        At least 16 removals of equal size. Sequences must be independent runs.
    confidence : float, default=0.95
        Nominal coverage of the interval of the exponent.

    Returns
    -------
    Strength

    Raises
    ------
    ValueError
        `work` has another shape, or too few removals.

    Notes
    -----
    **Decision rule.** A finite sequence does not determine an order of growth, but the growth of a
    logarithm is bounded. Let ``R`` be the mean work of the late removals (m/2 < i <= m) divided by
    that of the early ones (sqrt(m) <= i < 2 sqrt(m)). For every ``a + b log i`` with ``a, b >= 0``,
    R is at most the ratio of ``log i``, which is below 2. The exponent is the k for which ``i^k``
    has the ratio R. Its interval comes from the interval of R, a bootstrap-t over removals and
    sequences. Unlearning is strong if the whole interval is at most the k of ``log i`` (`limit`),
    weak if the whole interval is above it, and otherwise undecided. If the work does not vary,
    the value decides instead of the interval.

    Removals before sqrt(m) are ignored, and ``C_1`` cancels: a single removal is random, and both
    definitions hold up to a constant.
    A power below `limit`, about 0.3 for 100 removals and 0.2 for 1000, cannot be distinguished from
    a logarithm at this length. The premise of the definition, (alpha, beta)-accuracy that does not
    depend on m, is not checked here; see `alpha_beta_accuracy`.

    Examples
    --------
    >>> strength([float(i**2) for i in range(1, 51)]).kind
    'weak'
    >>> strength([7.0] * 50).kind
    'strong'
    """
    shape = f"(n_sequences, n_removals) with at least {_FEWEST_REMOVALS} removals"
    table = as_numbers("work", np.atleast_2d(np.asarray(work)), shape, ndim=2, least=0.0)
    n_removals = table.shape[1]
    if n_removals < _FEWEST_REMOVALS:
        raise ValueError(f"work must be {shape}, not {table.shape}")
    early, late = _removal_windows(n_removals)
    limit = _log_exponent(n_removals)
    first, last = table[:, early - 1].ravel(), table[:, late - 1].ravel()
    value, interval = 0.0, None
    if last.any() or first.any():
        value = _fit_exponent(_mean_ratio(first, last), early, late)
        interval = _exponent_interval(first, last, early, late, confidence)
    note = f"the exponent of a logarithm is at most {limit:.3g} on {n_removals} removals"
    doubt = describe_doubt(first, _FEWEST_EARLY, "early removals")
    options: MeasureOptions = {"confidence": confidence, "note": note}
    exponent = make_measure("work exponent", value, interval, table.size, doubt=doubt, **options)
    rule = (
        f"mean work of removals {late[0]}-{late[-1]} divided by that of {early[0]}-{early[-1]}; "
        f"strong if its exponent is at most {limit:.3g}, that of a logarithm, weak if above"
    )
    low, high = (value if end is None else end for end in (exponent.low, exponent.high))
    kind: Kind = "weak" if low > limit + 1e-9 else "undecided"
    kind = "strong" if high <= limit + 1e-9 else kind
    return Strength(kind=kind, exponent=exponent, limit=limit, rule=rule)


def _removal_windows(m: int) -> tuple[Ints, Ints]:
    """Return the numbers i (from 1 to m) of the early and of the late removals."""
    root = math.isqrt(m - 1) + 1
    return np.arange(root, min(2 * root, m // 2 + 1)), np.arange(m // 2 + 1, m + 1)


@cache
def _log_exponent(m: int) -> float:
    """Return the exponent of work that grows like log i, the largest of any a + b log i."""
    early, late = _removal_windows(m)
    return _fit_exponent(_mean_ratio(np.log(early), np.log(late)), early, late)


def _mean_ratio(first: Floats, last: Floats) -> float:
    bottom = float(first.mean())
    return float(last.mean()) / bottom if bottom > 0 else math.inf


def _fit_exponent(ratio: float, early: Ints, late: Ints) -> float:
    """Return the k for which the late mean of i^k, divided by the early mean, is `ratio`."""
    if ratio <= 0:
        return -math.inf
    if math.isinf(ratio):
        return math.inf
    x, y = (np.log(i / early[0]) for i in (early, late))

    def ratio_error(k: float) -> float:
        grown = float(np.log(np.exp(k * y).mean()) - np.log(np.exp(k * x).mean()))
        return grown - math.log(ratio)

    if ratio_error(_STEEPEST) < 0:
        return math.inf
    if ratio_error(-_STEEPEST) > 0:
        return -math.inf
    return float(brentq(ratio_error, -_STEEPEST, _STEEPEST, xtol=1e-12))


def _exponent_interval(
    first: Floats, last: Floats, early: Ints, late: Ints, confidence: float
) -> Interval | None:
    """Return the interval of the exponent, or None if neither early nor late work varies."""
    if not first.any():
        return -math.inf, math.inf
    ends = ratio_of_means(last, first, confidence=confidence)
    if ends is None:
        return None if np.ptp(first) == np.ptp(last) == 0 else (-math.inf, math.inf)
    low, high = (_fit_exponent(end, early, late) for end in ends)
    return low, high
