"""The budget of a certificate: what gradient the removals so far may have left."""

from dataclasses import dataclass, replace
from math import inf
from typing import Self

from letheon.convex._calibrate import gaussian_epsilon, gaussian_mu

# A residual that was measured and is above this share of the limit is repaired at once: one more
# pass now saves a pass at each of the next removals.
_COMFORT = 0.25


def residual_limit(sigma: float, epsilon: float, delta: float) -> float:
    """Largest residual norm that noise of scale sigma hides with (epsilon, delta).

    Gaussian noise: sigma times the largest mean shift of a unit Gaussian. With delta = 0 the noise
    has the density exp(-|b| / sigma), and a shift of r changes its logarithm by at most r / sigma.
    """
    if sigma == 0.0:
        return inf
    return sigma * (gaussian_mu(epsilon, delta) if delta > 0.0 else epsilon)


@dataclass(frozen=True)
class Account:
    """Certified residual of a model over its whole life, and how often it was looked after.

    Attributes
    ----------
    spent : float
        Upper bound of the norm of the gradient, noise included, on the rows held. Starts with what
        the optimiser really left, and grows with every removal.
    limit : float
        What the noise hides.
    exact, polishes, retrains : int
        How often a request had to measure the residual, to make further Newton steps, and to start
        anew. Somebody who poisons rows to exhaust the budget (Marchant et al. 2022) shows here.
    """

    spent: float
    limit: float
    exact: int = 0
    polishes: int = 0
    retrains: int = 0

    @property
    def is_covered(self) -> bool:
        """Whether the noise hides what may be left."""
        return self.spent <= self.limit

    @property
    def is_comfortable(self) -> bool:
        """Whether enough is left for several more removals."""
        return self.spent <= _COMFORT * self.limit

    def plus(self, bound: float) -> Self:
        """Return the account after a removal that leaves at most `bound` more."""
        return type(self)(self.spent + bound, self.limit, self.exact, self.polishes, self.retrains)

    def measured(self, residual: float) -> Self:
        """Return the account after the residual was measured."""
        return replace(self, spent=residual, exact=self.exact + 1)

    def polished(self, residual: float) -> Self:
        """Return the account after a further Newton step."""
        return replace(self, spent=residual, polishes=self.polishes + 1)

    def renewed(self, residual: float, limit: float) -> Self:
        """Return the account after a fresh start."""
        return replace(self, spent=residual, limit=limit, retrains=self.retrains + 1)

    def rebuilt_since(self, before: "Account") -> dict[str, int]:
        """Return what happened since, in the words of a receipt."""
        counts = {
            "exact residuals": self.exact - before.exact,
            "polishes": self.polishes - before.polishes,
            "retrains": self.retrains - before.retrains,
        }
        return {name: count for name, count in counts.items() if count}


def spent_epsilon(account: Account, sigma: float, delta: float) -> float:
    """Smallest epsilon for which the account as it stands is covered; infinite without noise."""
    if sigma == 0.0:
        return inf if account.spent > 0.0 else 0.0
    if delta == 0.0:
        return account.spent / sigma
    return gaussian_epsilon(account.spent / sigma, delta)
