"""LiRA: the likelihood ratio of two Gaussians for each example (Carlini et al., 2022)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["cross_lira", "lira"]

Floats = NDArray[np.float64]

# Fewer models than this on a side give no variance of a single example worth having; Carlini
# et al. then take one variance for all examples.
ENOUGH = 32
LEAST_DEVIATION = 1e-8


class _Law(NamedTuple):
    """A Gaussian for each example."""

    mean: Floats
    deviation: Floats

    def log_density(self, x: Floats) -> Floats:
        """Return the logarithm of the density, up to the constant that both sides share."""
        standard = (x - self.mean) / self.deviation
        return np.asarray(-0.5 * standard**2 - np.log(self.deviation))


def _law(values: Floats, chosen: NDArray[np.bool_]) -> _Law:
    """Fit a Gaussian to the chosen models of each example (columns)."""
    n = chosen.sum(axis=0)
    if (n < 1).any():
        raise ValueError("every example needs a model on each side")
    mean = np.where(chosen, values, 0.0).sum(axis=0) / n
    squares = (np.where(chosen, values - mean, 0.0) ** 2).sum(axis=0)
    if n.min() >= ENOUGH:
        variance = squares / (n - 1)
    else:
        variance = np.full(len(n), squares.sum() / max(int((n - 1).sum()), 1))
    return _Law(mean, np.sqrt(np.maximum(variance, LEAST_DEVIATION**2)))


def lira(target: ArrayLike, inside: ArrayLike, outside: ArrayLike) -> Floats:
    """Return the log-likelihood ratio of the target's signals.

    ``score(x) = log N(phi(x) | mu_in, s_in^2) - log N(phi(x) | mu_out, s_out^2)``

    Parameters
    ----------
    target : array-like of shape (n,) or (n_targets, n)
        Signals of the attacked model, or models, for n examples.
    inside, outside : array-like of shape (n_models, n)
        Signals of models that were, and were not, trained on each example. The attacked models
        must not be among them.

    Returns
    -------
    ndarray
        Of the shape of `target`; positive speaks for "in".

    Notes
    -----
    With fewer than 32 models on a side the variance is pooled over the examples, as Carlini et
    al. advise.

    Examples
    --------
    >>> lira([2.0], [[1.0], [3.0]], [[-1.0], [1.0]]).round(3).tolist()
    [1.0]
    """
    x = np.asarray(target, dtype=np.float64)
    laws = []
    for signals in (inside, outside):
        values = np.asarray(signals, dtype=np.float64)
        laws.append(_law(values, np.ones(values.shape, bool)))
    return laws[0].log_density(x) - laws[1].log_density(x)


def cross_lira(signals: ArrayLike, members: ArrayLike, folds: ArrayLike) -> Floats:
    """Return the LiRA score of every model, by Gaussians fitted to the models of other folds.

    Parameters
    ----------
    signals : array-like of shape (n_models, n)
        Signal of each model for each of n examples.
    members : array-like of bool, shape (n_models, n)
        Whether the model was trained on the example.
    folds : array-like of shape (n_models,)
        Models of one fold are never used to judge each other.

    Returns
    -------
    ndarray of shape (n_models, n)

    Notes
    -----
    A fold must hold, for each example, as many models inside as outside: two models with
    complementary halves of the people. Leaving out a single model instead moves the mean of its
    own side away from it, which puts the AUC of pure guessing below 0.5; leaving out none puts it
    far above. With pairs, scores of one pair can be compared: there guessing is exactly 1/2.
    Scores of different pairs are nearly comparable where many people are pooled, and are not for
    a single person (0.46 on average for 64 models), whatever the number of models.
    """
    values, inside = np.asarray(signals, dtype=np.float64), np.asarray(members, dtype=bool)
    fold = np.asarray(folds)
    if values.shape != inside.shape or len(fold) != len(values):
        raise ValueError(
            f"signals {values.shape}, members {inside.shape} and folds {fold.shape} do not fit"
        )
    scores = np.empty_like(values)
    for each in np.unique(fold):
        mine, others = fold == each, fold != each
        is_in = _law(values[others], inside[others])
        is_out = _law(values[others], ~inside[others])
        scores[mine] = is_in.log_density(values[mine]) - is_out.log_density(values[mine])
    return scores
