"""Who is acting: the opaque id that events of requests carry while somebody acts."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from letheon.ledger.schemas import is_code

__all__ = ["acting", "actor"]

_by: ContextVar[str | None] = ContextVar("letheon_actor", default=None)


def actor() -> str | None:
    """Return who acts in this thread or task; None where nobody was named."""
    return _by.get()


@contextmanager
def acting(by: str) -> Iterator[None]:
    """Name who acts until the context is left: an opaque id, such as that of a token.

    Raises
    ------
    ValueError
        It could be a name, an address or a sentence, which no event may hold.
    """
    if not isinstance(by, str) or not is_code(by):
        raise ValueError(
            "`by` cannot stand in an event: give the opaque id of whoever acts, of up to 128 "
            "letters, digits and ._:/+-"
        )
    token = _by.set(by)
    try:
        yield
    finally:
        _by.reset(token)
