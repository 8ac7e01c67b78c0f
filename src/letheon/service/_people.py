"""What the desk reads from a ledger's database; ids of people stay in memory, for a moment."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, or_, select

from letheon.data import as_ids
from letheon.exceptions import IdsTypeError, LetheonError
from letheon.ledger import Ledger, Request
from letheon.ledger.requests.encrypted_ids import person_tags
from letheon.ledger.requests.intake import index_of
from letheon.ledger.requests.owners import known_tags
from letheon.ledger.requests.records import found_all
from letheon.ledger.tables import models, requests, tokens, versions, webhooks

_CHUNK = 400
_MOST_CHOICES = 500


def model_names(ledger: Ledger, tenant: str) -> list[str]:
    """Return the names of all models of a tenant, in the order of their registration."""
    query = select(models.c.name).where(models.c.tenant == tenant).order_by(models.c.id)
    with ledger._core.database.reading() as conn:
        return list(conn.scalars(query))


def model_choices(ledger: Ledger, tenant: str | None) -> list[str]:
    """Return the names of the models of a tenant, or of all, as a menu offers them."""
    return _choices(ledger, models.c.name, tenant)


def tenant_choices(ledger: Ledger) -> list[str]:
    """Return the tenants that have models, as a menu offers them."""
    return _choices(ledger, models.c.tenant)


def _choices(ledger: Ledger, column: ColumnElement[str], tenant: str | None = None) -> list[str]:
    query = select(column).distinct().order_by(column).limit(_MOST_CHOICES)
    if tenant is not None:
        query = query.where(models.c.tenant == tenant)
    with ledger._core.database.reading() as conn:
        return list(conn.scalars(query))


def known_ids(
    ledger: Ledger, ids: Sequence[int | str], *, model: str, tenant: str
) -> list[int] | list[str]:
    """Return those of the ids that a model holds, or that an earlier request to it named.

    The answer stays the same when they are erased meanwhile, so that a repeated request has the
    content of the first.
    """
    try:
        people = as_ids(list(ids)).distinct()
    except TypeError:  # its words repeat an id
        raise IdsTypeError("the ids are neither all numbers nor all texts") from None
    row = ledger._row(model, tenant)
    is_held = index_of(ledger._held(row)).find(people).found
    tags = person_tags(ledger._core, tenant, people)
    missing = [(row.id, tag) for tag, here in zip(tags, is_held, strict=True) if not here]
    with ledger._core.database.reading() as conn:
        requested = known_tags(conn, missing)
    return [  # type: ignore[return-value]  # all of one kind
        value
        for value, tag, here in zip(people.to_list(), tags, is_held, strict=True)
        if here or (row.id, tag) in requested
    ]


def held_ids(ledger: Ledger, model: str, *, tenant: str) -> list[int] | list[str]:
    """Return the ids of all people in the version that is served, each once."""
    return ledger._held(ledger._row(model, tenant)).distinct().to_list()


def count_rows(ledger: Ledger, ids: Iterable[int | str], model: str, tenant: str) -> int:
    """Return how many rows people own in a model; ids of the wrong kind own none."""
    given = list(ids)
    kinds = [[one for one in given if isinstance(one, kind)] for kind in (str, int)]
    try:
        index = index_of(ledger._held(ledger._row(model, tenant)))
        return sum(len(index.find(as_ids(some).distinct()).positions) for some in kinds if some)
    except (LetheonError, TypeError, ValueError, OverflowError):
        return 0  # the ledger refuses these, each with its own reason


def requests_by_key(ledger: Ledger, keys: Collection[str], *, tenant: str) -> dict[str, Request]:
    """Return the requests of a tenant that were filed with these idempotency keys."""
    core = ledger._core
    by_tag = {core.keys.tag("key", tenant.encode(), key.encode()): key for key in keys}
    tags, key_of = list(by_tag), dict[str, str]()
    stored: dict[str, Request] = {}
    with core.database.reading() as conn:
        for start in range(0, len(tags), _CHUNK):
            wanted = requests.c.key_tag.in_(tags[start : start + _CHUNK])
            query = select(requests.c.key_tag, requests.c.id)
            rows = conn.execute(query.where(requests.c.tenant == tenant, wanted)).all()
            key_of.update((row.id, by_tag[row.key_tag]) for row in rows)
            stored |= found_all(conn, [row.id for row in rows])
    return {key: stored[request_id] for request_id, key in key_of.items()}


def version_numbers(ledger: Ledger, found: Sequence[Request]) -> dict[str, int]:
    """Return the number of the version that forgot, by the id of the request."""
    done = [one for one in found if one.batch is not None or one.certificate is not None]
    numbers: dict[str, int] = {}
    if done:
        with ledger._core.database.reading() as conn:
            for start in range(0, len(done), _CHUNK):
                numbers |= _numbers(conn, done[start : start + _CHUNK])
    return numbers


def _numbers(conn: Connection, found: Sequence[Request]) -> dict[str, int]:
    batches = {one.batch for one in found if one.batch is not None}
    sequences = {one.certificate for one in found if one.certificate is not None}
    # A duplicate has the certificate of the request that it waits for, and no batch.
    wanted = or_(versions.c.batch_id.in_(batches), versions.c.sequence.in_(sequences))
    columns = select(versions.c.number, versions.c.batch_id, versions.c.sequence)
    rows = conn.execute(columns.where(wanted)).all()
    by_batch = {row.batch_id: row.number for row in rows}
    by_sequence = {row.sequence: row.number for row in rows}
    numbers = {one.id: by_sequence.get(one.certificate, by_batch.get(one.batch)) for one in found}
    return {request_id: number for request_id, number in numbers.items() if number is not None}


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
