"""How often somebody may call: in the memory of the server, forgotten when it stops."""

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

from letheon.service._problems import Problem
from letheon.service._settings import ServiceSettings

__all__ = ["Limiter"]


class Limiter:
    """Counts calls by token and by address.

    Parameters
    ----------
    settings : ServiceSettings
        The rates.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        storage = MemoryStorage()
        self._by_token = FixedWindowRateLimiter(storage)
        self._by_address = MovingWindowRateLimiter(storage)
        self._rates: dict[str, RateLimitItem] = {
            "token": parse(settings.rate_per_token),
            "login": parse(settings.rate_login),
            "failed": parse(settings.rate_failed),
            "receipt": parse(settings.rate_receipt),
        }

    def count_call(self, token_id: str) -> None:
        """Count a call of a token, or raise the problem 429."""
        rate = self._rates["token"]
        if not self._by_token.hit(rate, "token", token_id):
            raise _too_many(rate)

    def count(self, what: str, address: str) -> None:
        """Count a log-in, a wrong token or a check of a receipt; or raise the problem 429."""
        rate = self._rates[what]
        if not self._by_address.hit(rate, what, address):
            raise _too_many(rate)

    def require_room(self, what: str, address: str) -> None:
        """Raise the problem 429 if an address has used up its tries; count nothing."""
        rate = self._rates[what]
        if not self._by_address.test(rate, what, address):
            raise _too_many(rate)


def _too_many(rate: RateLimitItem) -> Problem:
    seconds = rate.get_expiry()
    return Problem(
        429,
        "too-many",
        "too many calls",
        f"At most {rate}. Wait and try again.",
        headers={"Retry-After": str(min(seconds, 60))},
    )
