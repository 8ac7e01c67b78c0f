"""Four eyes: how much one call vouches for, and who counts as the same person."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from sqlalchemy import select

from letheon.data import as_ids
from letheon.exceptions import LetheonError
from letheon.ledger import Ledger, Request
from letheon.ledger.requests.intake import index_of
from letheon.ledger.tables import tokens
from letheon.service._auth import Principal
from letheon.service._context import Context

__all__ = ["family", "is_own", "needs_approval", "needs_approval_together"]


class _Vouched(Protocol):
    @property
    def ids(self) -> Sequence[int | str]: ...
    @property
    def model(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def verified(self) -> bool: ...


def needs_approval_together(context: Context, wishes: Iterable[_Vouched]) -> bool:
    """Whether what one call vouches for is, together, more rows than go without an approval.

    A person whom two of them name counts once for each model.
    """
    people: dict[tuple[str, str], list[int | str]] = {}
    if context.ledger.settings.policy.approve_above is None:
        return False
    for wish in wishes:
        if wish.verified:
            people.setdefault((wish.model, wish.tenant), []).extend(wish.ids)
    rows = (_rows_of(context.ledger, ids, *whose) for whose, ids in people.items())
    return needs_approval(context, rows)


def needs_approval(context: Context, rows: Iterable[int]) -> bool:
    """Whether so many rows together need an approval."""
    return context.ledger.settings.policy.needs_approval(sum(rows))


def _rows_of(ledger: Ledger, ids: Sequence[int | str], model: str, tenant: str) -> int:
    """Return how many rows people own in a model; ids of the wrong kind own none."""
    held = [
        [one for one in ids if isinstance(one, str)],
        [one for one in ids if isinstance(one, int)],
    ]
    try:
        index = index_of(ledger._held(ledger._row(model, tenant)))
        return sum(len(index.find(as_ids(some).distinct()).positions) for some in held if some)
    except (LetheonError, TypeError, ValueError, OverflowError):
        return 0  # the ledger refuses these, each with its own reason


def family(context: Context, token_id: str) -> frozenset[str]:
    """Return a token, those that made it, and those that it made, over any number of steps.

    Whoever holds a token that makes tokens can hold these too: they count as one person.
    """
    with context.ledger._core.database.reading() as conn:
        rows = conn.execute(select(tokens.c.id, tokens.c.created_by)).all()
    maker = {row.id: row.created_by for row in rows}
    made: dict[str, list[str]] = {}
    for one, by in maker.items():
        made.setdefault(by or "", []).append(one)
    found = {token_id}
    above = maker.get(token_id)
    while above is not None and above not in found:
        found.add(above)
        above = maker.get(above)
    below = list(made.get(token_id, ()))
    while below:
        one = below.pop()
        if one not in found:
            found.add(one)
            below.extend(made.get(one, ()))
    return frozenset(found)


def is_own(context: Context, who: Principal, found: Request) -> bool:
    """Whether somebody filed or verified a request, with any token that counts as theirs."""
    return not family(context, who.token_id).isdisjoint({found.filed_by, found.verified_by})
