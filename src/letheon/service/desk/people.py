"""Whom models know, and which requests a key names; ids of people stay in memory, for a moment."""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, or_, select

from letheon.data import as_ids
from letheon.exceptions import IdsTypeError
from letheon.ledger import Ledger, Request
from letheon.ledger.requests.encrypted_ids import person_tags
from letheon.ledger.requests.intake import index_of
from letheon.ledger.requests.owners import known_tags
from letheon.ledger.requests.records import found_all
from letheon.ledger.tables import models, requests, versions

__all__ = ["held_ids", "known_ids", "model_names", "requests_by_key", "version_numbers"]

_CHUNK = 400


def model_names(ledger: Ledger, tenant: str) -> list[str]:
    """Return the names of all models of a tenant, in the order of their registration."""
    query = select(models.c.name).where(models.c.tenant == tenant).order_by(models.c.id)
    with ledger._core.database.reading() as conn:
        return list(conn.scalars(query))


def known_ids(
    ledger: Ledger, ids: Sequence[int | str], *, model: str, tenant: str
) -> list[int] | list[str]:
    """Return those of the ids whom a model holds, or whom an earlier request to it named.

    The answer stays the same when they are erased meanwhile, so that a repeated request has the
    content of the first.
    """
    try:
        people = as_ids(list(ids)).distinct()
    except TypeError:  # its words repeat an id
        raise IdsTypeError("the ids are neither all numbers nor all texts") from None
    row = ledger._row(model, tenant)
    is_known = index_of(ledger._held(row)).find(people).found
    tags = person_tags(ledger._core, tenant, people)
    missing = [(row.id, tag) for tag, here in zip(tags, is_known, strict=True) if not here]
    with ledger._core.database.reading() as conn:
        asked = known_tags(conn, missing)
    places = [
        place
        for place, (tag, here) in enumerate(zip(tags, is_known, strict=True))
        if here or (row.id, tag) in asked
    ]
    values = people.to_list()
    return [values[place] for place in places]  # type: ignore[return-value]  # all of one kind


def held_ids(ledger: Ledger, model: str, *, tenant: str) -> list[int] | list[str]:
    """Return the ids of everybody in the version that is served, each once."""
    return ledger._held(ledger._row(model, tenant)).distinct().to_list()


def requests_by_key(ledger: Ledger, keys: Collection[str], *, tenant: str) -> dict[str, Request]:
    """Return the requests of a tenant that were filed with these idempotency keys."""
    core = ledger._core
    by_tag = {core.keys.tag("key", tenant.encode(), key.encode()): key for key in keys}
    tags, found = list(by_tag), dict[str, str]()
    with core.database.reading() as conn:
        for start in range(0, len(tags), _CHUNK):
            those = requests.c.key_tag.in_(tags[start : start + _CHUNK])
            query = select(requests.c.key_tag, requests.c.id)
            rows = conn.execute(query.where(requests.c.tenant == tenant, those))
            found.update((by_tag[row.key_tag], row.id) for row in rows)
        ids = list(found.values())
        stored: dict[str, Request] = {}
        for start in range(0, len(ids), _CHUNK):
            stored |= found_all(conn, ids[start : start + _CHUNK])
    return {key: stored[request_id] for key, request_id in found.items()}


def version_numbers(ledger: Ledger, found: Sequence[Request]) -> dict[str, int]:
    """Return the number of the version that forgot, by the id of the request."""
    numbers: dict[str, int] = {}
    with ledger._core.database.reading() as conn:
        for start in range(0, len(found), _CHUNK):
            numbers |= _numbers(conn, found[start : start + _CHUNK])
    return numbers


def _numbers(conn: Connection, found: Sequence[Request]) -> dict[str, int]:
    batches = {one.batch for one in found if one.batch is not None}
    sequences = {one.certificate for one in found if one.certificate is not None}
    if not batches and not sequences:
        return {}
    # A duplicate has the certificate of the request that it waits for, and no batch.
    those = or_(versions.c.batch_id.in_(batches), versions.c.sequence.in_(sequences))
    columns = select(versions.c.number, versions.c.batch_id, versions.c.sequence)
    rows = conn.execute(columns.where(those)).all()
    by_batch = {row.batch_id: row.number for row in rows}
    by_sequence = {row.sequence: row.number for row in rows}
    numbers = {one.id: by_sequence.get(one.certificate, by_batch.get(one.batch)) for one in found}
    return {request_id: number for request_id, number in numbers.items() if number is not None}
