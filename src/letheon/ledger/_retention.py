"""Forgetting the tags of requests that were closed long ago.

Tags are keyed hashes: of an idempotency key, of a request's content, of each person. They
recognise who asks again and keep erased people out of new training. After `keep_keys_months` they
go: what is left of a request are counts, codes and days.
"""

import secrets
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, Select, bindparam, delete, select, update

from letheon.ledger import _events
from letheon.ledger._clocks import months_later
from letheon.ledger._core import Core
from letheon.ledger._elapsed import proven_now
from letheon.ledger._tables import blocked, requests

__all__ = ["forget_closed"]

_CHUNK = 400
_FORGOTTEN = ""


def forget_closed(core: Core) -> int:
    """Forget the tags of requests that were closed `keep_keys_months` ago; return how many.

    Tags of people stay as long as an open request names one of them: it is by these that a
    duplicate knows that everybody whom it names is erased. A repeat with an old idempotency key
    is a new request from then on, and who was erased is unknown.
    """
    before = _closed_before(core)
    if before is None:
        return 0
    total = 0
    while count := core.database.run(lambda connection: _forget_some(core, connection, before)):
        total += count
    return total


def _closed_before(core: Core) -> int | None:
    """Return the beginning of the day, so many months ago, at the seat."""
    calendar, months = core.settings.calendar, core.settings.policy.keep_keys_months
    # What is forgotten cannot be recalled: a clock that is ahead does not decide it.
    today = calendar.day_of(datetime.fromtimestamp(proven_now(core), UTC))
    if months // 12 + 1 >= today.year:
        return None
    day = months_later(today, -months)
    return int(calendar.end_of(day - timedelta(days=1)).timestamp())


def _forget_some(core: Core, connection: Connection, before: int) -> int:
    is_old = (requests.c.closed_at < before) & (requests.c.body_tag != _FORGOTTEN)
    query = select(requests.c.id).where(is_old, ~_shared_with_an_open_one().exists())
    found = list(connection.scalars(query.order_by(requests.c.id).limit(_CHUNK).with_for_update()))
    if not found:
        return 0
    connection.execute(delete(blocked).where(blocked.c.request_id.in_(found)))
    change = update(requests).where(requests.c.id == bindparam("request"))
    change = change.values(key_tag=bindparam("key"), body_tag=_FORGOTTEN, nonce=_FORGOTTEN)
    connection.execute(change, [{"request": one, "key": secrets.token_hex(32)} for one in found])
    _events.record(connection, "tags-forgotten", {"requests": len(found)}, core.clock())
    return len(found)


def _shared_with_an_open_one() -> Select[tuple[str]]:
    mine, other, claim = blocked.alias(), blocked.alias(), requests.alias()
    same = (other.c.model_id == mine.c.model_id) & (other.c.tag == mine.c.tag)
    joined = select(mine.c.tag).join(other, same).join(claim, claim.c.id == other.c.request_id)
    return joined.where(mine.c.request_id == requests.c.id, claim.c.closed_at.is_(None))
