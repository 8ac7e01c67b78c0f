"""Small training problems with rows to forget, for attacks on certified claims."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Floats]


@dataclass(frozen=True)
class AttackCase:
    """A training problem with rows to forget.

    Attributes
    ----------
    name : str
        Name of the case, for the result.
    X, y : ndarray
        Rows and targets. The id of a row is its position.
    leaving : tuple of int
        Rows to forget, one request each.
    settings : mapping
        Parameters of the estimator; unknown parameters are ignored.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.checks import AttackCase
    >>> AttackCase("small", np.eye(3), np.array([0, 1, 0]), leaving=(2,)).remaining
    [0, 1]
    """

    name: str
    X: Floats
    y: NDArray[Any]
    leaving: tuple[int, ...] = (0,)
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def remaining(self) -> list[int]:
        """Positions of the rows that are not forgotten."""
        return [row for row in range(len(self.y)) if row not in self.leaving]


_FLAT = {"fit_intercept": False}
# Name, rows, targets, settings.
_REFUTED: list[tuple[str, Any, Any, dict[str, Any]]] = [
    # The curvature of the remaining rows underflows, and so does the bound.
    ("zero-energy", [[5.0, 0.0], *[[-4.5, 2.18]] * 3], [0, 0, 1, 0], {"sigma": 10.0, **_FLAT}),
    # Infinity times zero in an account.
    (
        "three-classes",
        np.random.default_rng(0).normal(size=(12, 2)) * 3.0,
        np.arange(12) % 3,
        {"reg": "total", "l2": 1e-3, "sigma": 10.0, "batch_size": 1},
    ),
    # The residual of a removal depends on noise in the objective, so distributions fold.
    ("one-column-4", [[-4.38], [1.17], [18.5], [-1.32]], [0, 1, 0, 1], _FLAT),
    ("one-column-5", [[-6.87], [1.03], [1.34], [1.95], [0.87]], [1, 1, 0, 1, 1], _FLAT),
    (
        "one-column-8",
        [[-4.22], [0.98], [-2.12], [3.09], [-0.92], [-0.5], [-0.31], [-9.02]],
        [0, 0, 1, 0, 1, 0, 1, 1],
        _FLAT,
    ),
    # One row is far from all others.
    ("outlier", [[40.0], *[[x] for x in np.linspace(-1, 1, 12)]], [0, *[0] * 6, *[1] * 6], {}),
]

CASES: Mapping[str, AttackCase] = MappingProxyType(
    {
        name: AttackCase(name, np.array(X, float), np.array(y), (0,), MappingProxyType(settings))
        for name, X, y, settings in _REFUTED
    }
)
"""Named cases that refuted earlier versions of letheon."""

_HARD: Mapping[str, Draw] = {
    "plain": lambda rng, n, d: rng.normal(size=(n, d)),
    "saturated": lambda rng, n, d: rng.normal(size=(n, d)) * 30.0,
    "equal": lambda rng, n, d: np.repeat(rng.normal(size=(1, d)), n, axis=0) * 5.0,
    "collinear": lambda rng, n, d: (
        rng.normal(size=(n, 1)) * np.ones(d) + 1e-7 * rng.normal(size=(n, d))
    ),
    "long": lambda rng, n, d: rng.normal(size=(n, d)) * np.exp(rng.normal(size=(n, 1)) * 4.0),
    "tiny": lambda rng, n, d: rng.normal(size=(n, d)) * 1e-6,
}


def make_hard_cases(n: int, seed: int = 0) -> list[AttackCase]:
    """Return `n` small classification problems on which an account is likely to be wrong.

    The rows are saturated, equal, large or nearly dependent; there are two or three classes.

    Parameters
    ----------
    n : int
        Number of cases.
    seed : int, default=0
        Seed of the rows.

    Examples
    --------
    >>> from letheon.checks import make_hard_cases
    >>> [case.name for case in make_hard_cases(2)]
    ['plain-0', 'saturated-1']
    """
    rng = np.random.default_rng(seed)
    cases = []
    for number in range(n):
        kind = list(_HARD)[number % len(_HARD)]
        n_rows, n_columns = int(rng.integers(6, 30)), int(rng.integers(1, 5))
        y = rng.integers(0, int(rng.integers(2, 4)), n_rows)
        y[:6] = [0, 1, 0, 1, 0, 1]
        settings = {
            "l2": float(10.0 ** rng.uniform(-6, 0)),
            "reg": str(rng.choice(["per_sample", "total"])),
            "fit_intercept": bool(rng.integers(2)),
        }
        X = _HARD[kind](rng, n_rows, n_columns)
        cases.append(AttackCase(f"{kind}-{number}", X, y, (0, 1), MappingProxyType(settings)))
    return cases
