"""The budget of a certificate: what gradient the removals so far may have left."""

from dataclasses import dataclass, replace
from math import frexp, inf, isfinite, isnan, ldexp
from typing import NamedTuple, Self

from letheon.convex._calibrate import gaussian_mu
from letheon.convex._noise import NoiseSource

# Ranges of the thresholds, as shares of the limit. To polish well below it costs one more pass
# now and saves a pass at each of the next removals.
_MEASURE = (0.5, 1.0)
_POLISH = (0.05, 0.5)


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


class Thresholds(NamedTuple):
    """When a request measures, and when it polishes, as residuals.

    Drawn anew for every request. A fixed threshold would tear a hole into the law of the
    parameters: those of noise just below it are left a residual away from where a retrain would
    put them, those of noise just above are not (in one dimension, with delta = 0.01, such a rule
    leaks epsilon = 4 where 1 is claimed). Drawn thresholds make the change gradual.
    """

    measure: float
    polish: float

    @classmethod
    def drawn(cls, limit: float, source: NoiseSource) -> "Thresholds":
        """Draw both, in secret."""
        first, second = source.uniforms(2).tolist()
        low, high = _MEASURE
        least, most = _POLISH
        return cls(limit * (low + (high - low) * first), limit * (least + (most - least) * second))

    @classmethod
    def fixed(cls, limit: float) -> "Thresholds":
        """Return those of a model without noise, whose parameters hide nothing."""
        return cls(limit, limit * sum(_POLISH) / 2)


def needs_no_draw(account: Account) -> bool:
    """Whether no threshold that could be drawn would make the request measure."""
    return account.spent <= _MEASURE[0] * account.limit
