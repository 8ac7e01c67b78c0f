"""Numbers of certificates: one count for each tenant in what a tenant's token sees.

The ledger counts all of its certificates together, so its numbers would tell a tenant how much the
others erase. The signed files have these numbers inside: the chain is checked by them.
"""

import re
from bisect import bisect_left
from functools import cached_property
from typing import Any

from letheon.service.auth import Context, Principal
from letheon.service.errors import Problem

_IN_TEXT = re.compile(r"(?<=\b[Cc]ertificate )[0-9]{1,15}\b")
_KEYS = ("sequence", "certificate")


class Numbers:
    """How one tenant numbers its certificates; without a tenant, as the ledger does.

    Parameters
    ----------
    context : Context
        The desk.
    tenant : Principal, str or None
        Who is asking, or whose certificates these are.
    """

    def __init__(self, context: Context, tenant: Principal | str | None) -> None:
        self._context = context
        self.tenant = tenant.tenant if isinstance(tenant, Principal) else tenant

    @cached_property
    def _sequences(self) -> tuple[int, ...]:
        return self._context.ledger.certificates.sequences(tenant=str(self.tenant))

    def shown(self, sequence: int | None) -> int | None:
        """Return the number that stands for a certificate of the ledger; None for another's."""
        if sequence is None or self.tenant is None:
            return sequence
        place = bisect_left(self._sequences, sequence)
        is_own = self._sequences[place : place + 1] == (sequence,)
        return place + 1 if is_own else None

    def sequence(self, number: int) -> int:
        """Return the ledger's number of a certificate.

        Raises
        ------
        Problem
            404: the tenant has no certificate of that number.
        """
        if self.tenant is None:
            return number
        if not 1 <= number <= len(self._sequences):
            raise unknown_certificate()
        return self._sequences[number - 1]

    def in_text(self, text: str) -> str:
        """Return a text with the numbers of certificates that are shown."""
        if self.tenant is None or not _IN_TEXT.search(text):
            return text
        return _IN_TEXT.sub(lambda found: str(self.shown(int(found[0])) or "?"), text)

    def in_json(self, value: Any) -> Any:
        """Return JSON with the numbers of certificates that are shown, in fields and texts."""
        if self.tenant is None:
            return value
        if isinstance(value, dict):
            return {name: self._field(name, one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.in_json(one) for one in value]
        return self.in_text(value) if isinstance(value, str) else value

    def _field(self, name: str, value: Any) -> Any:
        if name in _KEYS and isinstance(value, int):
            return self.shown(value)
        return self.in_json(value)


def unknown_certificate() -> Problem:
    """Return the answer for a certificate that is another tenant's, or not there."""
    return Problem(
        404,
        "unknown-certificate",
        "no such certificate",
        "GET /api/v1/certificates lists those that you see.",
    )
