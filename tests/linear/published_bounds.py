"""Bounds of Guo et al. 2020 with sharp constants: what the bounds in use are measured against."""

from letheon.linear._problem import Loss


def worst_case_bound(
    loss: Loss, radius: float, n_left: int, n_gone: int, l2: float, noise_norm: float, n_before: int
) -> float:
    """Bound of the residual of one Newton removal that is known before any data are seen.

    Theorem 4 of Guo et al. 2020 for per-sample regularisation, with the noise in it: l2 |W*| <= C +
    |b| / n, so every row's gradient is at most 2C + |b| / n, C = slope bound times R:
    (gamma R^3 / 2) m^2 (2C + |b|/n)^2 / (l2^2 (n - m)).
    """
    if loss.third_bound == 0.0:
        return 0.0
    steepest = 2 * loss.slope_bound * radius + noise_norm / n_before
    shift = n_gone * steepest / (l2 * n_left)
    return loss.third_bound * radius**3 * n_left * shift * shift / 2


def spectral_bound(
    loss: Loss, radius: float, spectral_norm: float, length: float, score_change: float
) -> float:
    """Corollary 1 of Guo et al. 2020, halved: (gamma / 2) R |X| |step| |X step|, H0 taken at W."""
    return 0.5 * loss.third_bound * radius * spectral_norm * length * score_change
