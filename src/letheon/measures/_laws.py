"""Consistency of the *laws* of two models over their random seeds (survey, equation 3.5)."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures._consistency import divergence
from letheon.measures._inputs import predictions
from letheon.measures._measure import Measure, known
from letheon.measures._regression import gaussian_divergence

__all__ = ["kl_of_laws"]

Law = Literal["labels", "gaussian", "free"]
Draws = NDArray[Any]
Rows = NDArray[np.float64]

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
    """Return the divergence of the law of the unlearned model's output from the retrained one's.

    ``1/n sum_i KL(Pr[h_U(x_i)] || Pr[h_*(x_i)])`` (survey, equation 3.5, in its first sense): the
    probability is over the randomness of training and unlearning, not over classes. It is 0 for
    an exact method (survey, definition of exact removal), whose single runs may still differ.

    Parameters
    ----------
    draws_unlearned : array-like of shape (n_models, n_rows)
        Output at the same rows of models unlearned with independent seeds.
    draws_naive : array-like of shape (m_models, n_rows)
        The same of retrained models, with seeds of their own.
    law : {"labels", "gaussian", "free"}, default="labels"
        `labels`: a categorical law, ``p_c = (count_c + smoothing) / (n + smoothing K)`` over the K
        labels that occur anywhere. `gaussian`: numbers, by mean and standard deviation (n - 1) in
        the closed form of `kl_gaussian`. `free`: numbers of any continuous law, by distances to the
        k-th neighbour (Wang, Kulkarni and Verdú 2009): ``1/n sum_j log(nu_k(j) / rho_k(j)) + log(m
        / (n - 1))``, rho within the unlearned draws, nu to the retrained ones.
    smoothing : float, default=0.5
        Pseudo-count of each label (Jeffreys). It keeps the value finite.
    neighbours : int, default=3
        k of the free law.
    seed : int, default=0
        Seed of the random halves for the floor.

    Returns
    -------
    Measure
        "KL of laws" in nats, lower is better, `n` the number of unlearned models; no interval. The
        estimate is **biased upwards**: equal laws give a positive value, about (K - 1)(1/n + 1/m)/2
        for labels. Therefore the note tells, on halves of the models, the value and its *null
        floor*, retrained against retrained, both from equally many models; the two may be
        compared, the full value and the floor may not. The free estimate can be negative.

    Examples
    --------
    >>> print(kl_of_laws([["a"], ["a"], ["b"], ["a"]], [["a"], ["b"], ["b"], ["b"]]))
    KL of laws: 0.3389 nats (measured, n=4, lower is better)
    """
    of_rows = _estimator(law, smoothing, neighbours)
    p, q = _coded(draws_unlearned, draws_naive, law)
    fewest = max(_FEWEST[law], neighbours + 1 if law == "free" else 0)
    if min(len(p), len(q)) < fewest:
        raise ValueError(f"law={law!r} needs at least {fewest} models of each kind")
    value = float(of_rows(p, q).mean())
    note = _floor(of_rows, p, q, fewest, seed)
    return known("KL of laws", value, None, len(p), note=f"{law}; {note}")


def _estimator(law: Law, smoothing: float, neighbours: int) -> Callable[[Draws, Draws], Rows]:
    """Return the function of both tables that gives the divergence of each row."""
    if law not in get_args(Law):
        raise ValueError(f"law must be one of {get_args(Law)}, not {law!r}")
    if not (np.isfinite(smoothing) and smoothing > 0):
        raise ValueError(f"smoothing must be above 0, not {smoothing!r}")
    if neighbours < 1:
        raise ValueError(f"neighbours must be at least 1, not {neighbours!r}")
    if law == "labels":
        return lambda p, q: _categorical(p, q, smoothing)
    return _gaussian if law == "gaussian" else lambda p, q: _free(p, q, neighbours)


def _coded(unlearned: ArrayLike, naive: ArrayLike, law: Law) -> tuple[Draws, Draws]:
    """Return numbers, or labels as one-hot tables of shape (models, rows, labels)."""
    p, q = predictions("draws_unlearned", unlearned), predictions("draws_naive", naive)
    if p.ndim != 2 or q.ndim != 2 or p.shape[1] != q.shape[1] or p.shape[1] == 0:
        raise ValueError(
            f"draws must have shape (models, rows) with the same rows, not {p.shape} and {q.shape}"
        )
    if law != "labels":
        p, q = p.astype(np.float64), q.astype(np.float64)
        if not (np.isfinite(p).all() and np.isfinite(q).all()):
            raise ValueError("draws contain infinite numbers")
        return p, q
    for draws in (p, q):
        if draws.dtype.kind == "f" and (draws != np.round(draws)).any():
            raise ValueError("draws hold fractions, not labels; use law='gaussian' or 'free'")
    if (p.dtype.kind in "US") != (q.dtype.kind in "US") and "O" not in p.dtype.kind + q.dtype.kind:
        raise ValueError("the labels of one model are strings and those of the other are not")
    labels, codes = np.unique(np.concatenate([p, q]), return_inverse=True)
    hot = np.eye(len(labels))[codes.reshape(len(p) + len(q), -1)]
    return hot[: len(p)], hot[len(p) :]


def _categorical(p: Draws, q: Draws, smoothing: float) -> Rows:
    """Return the divergence of smoothed shares, from one-hot tables."""
    shares = [
        (hot.sum(axis=0) + smoothing) / (len(hot) + smoothing * hot.shape[2]) for hot in (p, q)
    ]
    return divergence(*shares)


def _gaussian(p: Draws, q: Draws) -> Rows:
    """Return the divergence of the fitted Gaussian laws."""
    means = (p.mean(axis=0), q.mean(axis=0))
    # equal draws have no spread, whatever rounding of their mean says
    spreads = (np.where(np.ptp(d, axis=0) == 0, 0.0, d.std(axis=0, ddof=1)) for d in (p, q))
    same = (np.ptp(p, axis=0) == 0) & (np.ptp(q, axis=0) == 0) & (p[0] == q[0])
    return np.where(same, 0.0, gaussian_divergence(*means, *spreads))


def _free(p: Draws, q: Draws, k: int) -> Rows:
    """Return the nearest-neighbour estimate of each row."""
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
                "law='free' needs continuous draws of independent models, but many are equal; use "
                "law='labels', or more neighbours"
            )
        rows[i] = np.log(across / within).mean() + np.log(m / (n - 1))
    return rows


def _floor(
    of_rows: Callable[[Draws, Draws], Rows], p: Draws, q: Draws, fewest: int, seed: int
) -> str:
    """Say the value and its floor, both on equally many models: half of the retrained ones."""
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
