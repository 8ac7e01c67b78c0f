"""What the desk reads from a ledger's database."""

from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import or_, select

from letheon.data import as_ids
from letheon.exceptions import LetheonError
from letheon.ledger import Ledger
from letheon.ledger.tables import tokens, webhooks


def count_rows(ledger: Ledger, ids: Iterable[int | str], model: str, tenant: str) -> int:
    """Return how many rows people own in a model; ids of the wrong kind own none."""
    given = list(ids)
    kinds = [[one for one in given if isinstance(one, kind)] for kind in (str, int)]
    try:
        index = ledger.models.ids_index(ledger.models.row(model, tenant))
        return sum(len(index.find(as_ids(some).distinct()).positions) for some in kinds if some)
    except (LetheonError, TypeError, ValueError, OverflowError):
        return 0  # the ledger refuses these, each with its own reason


def token_family(ledger: Ledger, token_id: str) -> frozenset[str]:
    """Return a token, those that made it, and those that it made, over any number of steps.

    A token that makes tokens can be used through these too: they count as one person.
    """
    with ledger._core.database.reading() as conn:
        rows = conn.execute(select(tokens.c.id, tokens.c.created_by)).all()
    maker = {row.id: row.created_by for row in rows}
    made: Mapping[str, list[str]] = {by: [] for by in maker.values() if by}
    for one, by in maker.items():
        if by:
            made[by].append(one)
    family, above = {token_id}, maker.get(token_id)
    while above is not None and above not in family:
        family.add(above)
        above = maker.get(above)
    below = list(made.get(token_id, ()))
    while below:
        one = below.pop()
        if one not in family:
            family.add(one)
            below.extend(made.get(one, ()))
    return frozenset(family)


def token_names(ledger: Ledger, ids: Collection[str]) -> dict[str, str]:
    """Return what tokens are called, by their ids."""
    query = select(tokens.c.id, tokens.c.name).where(tokens.c.id.in_(ids))
    with ledger._core.database.reading() as conn:
        return {row.id: row.name for row in conn.execute(query)}


def webhook_addresses(ledger: Ledger, tenant: str) -> set[str]:
    """Return the addresses of the webhooks that a tenant's events go to."""
    mine = or_(webhooks.c.tenant.is_(None), webhooks.c.tenant == tenant)
    query = select(webhooks.c.url).where(mine, webhooks.c.disabled_at.is_(None))
    with ledger._core.database.reading() as conn:
        return set(conn.scalars(query))
