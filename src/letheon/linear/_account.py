"""The budget of a certificate: what gradient the removals so far may have left."""

from dataclasses import dataclass, replace
from math import frexp, inf, isfinite, isnan, ldexp
from typing import Self

from letheon.linear._calibrate import gaussian_mu


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

    def __post_init__(self) -> None:
        """A bound that could not be computed is no bound."""
        if isnan(self.spent):
            object.__setattr__(self, "spent", inf)

    @property
    def shown(self) -> float:
        """What receipts say is spent: rounded up, since the number itself tells of the rows."""
        return min(rounded_up(self.spent), self.limit) if self.is_covered else self.spent

    @property
    def is_covered(self) -> bool:
        """Whether the noise hides what may be left."""
        return self.spent <= self.limit

    def plus(self, bound: float) -> Self:
        """Return the account after a removal that leaves at most `bound` more."""
        return type(self)(self.spent + bound, self.limit, self.exact, self.polishes, self.retrains)

    def limited(self, limit: float) -> Self:
        """Return the account with another limit."""
        return type(self)(self.spent, limit, self.exact, self.polishes, self.retrains)

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


def rounded_up(number: float) -> float:
    """Return the next power of two, or the number itself if it is one."""
    if not isfinite(number):
        return number
    mantissa, exponent = frexp(number)
    return ldexp(1.0, exponent - (mantissa == 0.5)) if number > 0.0 else 0.0
