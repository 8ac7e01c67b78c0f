"""How often somebody may call: in the memory of the server, forgotten when it stops."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from ipaddress import IPv6Network

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

from letheon.service.errors import Problem
from letheon.service.settings import ServiceSettings

__all__ = ["SLOWEST", "Limiter", "network_of"]

SLOWEST = 10_000
"""Bytes a second below which a body or an answer is too slow, after the seconds that it has."""


# Long calls hold a thread of the server each; it has 40, and short ones must always find one.
_LONG_AT_ONCE = 16
_LONG_PER_TOKEN = 4


def network_of(host: str) -> str:
    """Return what counts as one address: of IPv6 the network of a house."""
    if ":" not in host:
        return host
    try:
        return str(IPv6Network((host.partition("%")[0], 64), strict=False))
    except ValueError:
        return host


class Limiter:
    """Counts calls by token and by address, and long ones at a time.

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
        self._one = threading.Lock()
        self._long: Counter[str] = Counter()

    def begin_long(self, token_id: str) -> Callable[[], None]:
        """Begin a long call; return what ends it. Or raise a problem: too many at a time."""
        with self._one:
            if self._long[token_id] >= _LONG_PER_TOKEN or self._long.total() >= _LONG_AT_ONCE:
                raise Problem(
                    429,
                    "too-many-long-calls",
                    "too many long calls at a time",
                    f"At most {_LONG_PER_TOKEN} of one token. Wait for the answers, then go on.",
                    headers={"Retry-After": "1"},
                )
            self._long[token_id] += 1
        return partial(self._end_long, token_id)

    def _end_long(self, token_id: str) -> None:
        with self._one:
            self._long[token_id] -= 1
            if not self._long[token_id]:
                del self._long[token_id]

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


def _too_many(rate: RateLimitItem) -> Problem:
    seconds = rate.get_expiry()
    return Problem(
        429,
        "too-many",
        "too many calls",
        f"At most {rate}. Wait and try again.",
        headers={"Retry-After": str(min(seconds, 60))},
    )
