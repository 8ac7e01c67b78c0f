"""What a worker does: everything that is due, for every model, and nothing twice."""

import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, Select, bindparam, delete, select, update
from sqlalchemy.exc import DBAPIError

from letheon.exceptions import (
    CertificateError,
    KeyFileError,
    LedgerBusyError,
    LedgerError,
    LedgerMissingError,
    LetheonError,
    RequestStateError,
    SignerRefusedError,
    StaleWorkerError,
    StateError,
)
from letheon.ledger.certificates.certify import certify_next
from letheon.ledger.certificates.receipts import gaps_in
from letheon.ledger.core import Core
from letheon.ledger.db import events
from letheon.ledger.db.elapsed import proven_now, proven_time, seconds_ahead
from letheon.ledger.db.events import (
    TOLERATED_SECONDS,
    advance_mark,
    record,
    require_agreement,
    settle_mark,
)
from letheon.ledger.leases import Lease, release, require_fence, take
from letheon.ledger.models.register import sweep_registrations
from letheon.ledger.models.versions import ModelRow, head_of, list_models
from letheon.ledger.purge.purge import problems, purge_next, purge_path
from letheon.ledger.purge.residue import sweep_partials
from letheon.ledger.requests.deadlines import months_later
from letheon.ledger.requests.people import move, settle_queue
from letheon.ledger.tables import batches, blocked, models, requests, versions
from letheon.ledger.worker.apply import Batch, Compute, apply, open_batch, seal
from letheon.ledger.worker.compute import (
    BUDGET_SPENT,
    FORGED,
    MEMORY_LIMIT,
    NO_MODEL,
    NOBODY_HELD,
    TIME_LIMIT,
    ComputationFailed,
    code_of,
)
from letheon.ledger.worker.plan import plan
from letheon.ledger.worker.policy import backoff
from letheon.ledger.worker.recover import is_first_look, require_sound, sweep_model
from letheon.sandbox import StoppedError

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
    events.record(connection, "tags-forgotten", {"requests": len(found)}, core.clock())
    return len(found)


def _shared_with_an_open_one() -> Select[tuple[str]]:
    mine, other, claim = blocked.alias(), blocked.alias(), requests.alias()
    same = (other.c.model_id == mine.c.model_id) & (other.c.tag == mine.c.tag)
    joined = select(mine.c.tag).join(other, same).join(claim, claim.c.id == other.c.request_id)
    return joined.where(mine.c.request_id == requests.c.id, claim.c.closed_at.is_(None))


@dataclass(frozen=True)
class Step:
    """One thing that a worker did.

    Attributes
    ----------
    what : {"applied", "retrained", "certified", "purged", "failed", "waits"}
        What was done.
    model : str
        Name of the model; empty for what concerns the ledger.
    sequence : int or None
        Number of the certificate.
    detail : str
        Numbers and codes, never an id.
    """

    what: Literal["applied", "retrained", "certified", "purged", "failed", "waits"]
    model: str
    sequence: int | None
    detail: str


def run_once(
    core: Core, owner: str, compute: Compute, *, forced: bool = False, wanted: int | None = None
) -> Iterator[Step]:
    """Do everything that is due now: resume, seal, apply, certify, purge.

    Parameters
    ----------
    core : Core
        The ledger.
    owner : str
        Name of this worker; see `owner_name`.
    compute : callable
        `compute` or `compute_apart`.
    forced : bool, default=False
        Seal whatever is queued, as an operator may.
    wanted : int, optional
        One model only.

    Raises
    ------
    OldDatabaseError
        Files are newer than the database; nothing was done.
    """
    require_agreement(core)
    settle_mark(core)
    sweep_registrations(core)
    sweep_partials(core)
    forget_closed(core)
    yield from _warn_of_clock(core)
    yield from _certify_all(core)
    with core.database.reading() as conn:
        todo = [model for model in list_models(conn) if wanted is None or model.id == wanted]
    # A model from outside may take its whole time limit: the operator's own come first.
    todo.sort(key=lambda model: model.is_outside)
    for model in todo:
        lease = take(core, model.id, owner)
        if lease is None:
            yield Step("waits", model.name, None, "another-worker-is-at-it")
            continue
        yield from _hold(core, lease, model, _serve(core, lease, model, compute, forced=forced))
    yield from _certify_all(core)
    yield from _purge_all(core)


def _warn_of_clock(core: Core) -> Iterator[Step]:
    with core.database.reading() as conn:
        ahead = seconds_ahead(core, conn)
    if ahead > core.settings.policy.clock_ahead.total_seconds():
        yield Step("waits", "", None, "clock-unconfirmed")


def retrain(core: Core, owner: str, compute: Compute, model: ModelRow) -> Iterator[Step]:
    """Train a model afresh now, with everything that is queued for it."""
    require_agreement(core)
    settle_mark(core)
    lease = take(core, model.id, owner)
    if lease is None:
        raise LedgerBusyError(f"another worker is at model {model.name!r}; try again")
    yield from _hold(core, lease, model, _retrain(core, lease, model, compute))
    yield from _certify_all(core)
    yield from _purge_all(core)


def _hold(core: Core, lease: Lease, model: ModelRow, work: Iterator[Step]) -> Iterator[Step]:
    """Work under a lease and give it back.

    After a failure it is not given back: whoever takes it next sees that something may lie about,
    and sweeps.
    """
    try:
        yield from work
    except StaleWorkerError:
        yield Step("waits", model.name, None, "another-worker-took-over")
    except RequestStateError:
        # Somebody cancelled a request since the batch was planned; the next round sees it.
        yield Step("waits", model.name, None, "queue-changed")
        release(core, lease)
    except StateError as error:
        # A damaged model is its own affair; the others are served.
        yield Step("failed", model.name, None, str(error))
    except (LedgerMissingError, KeyFileError) as error:
        yield Step("failed", model.name, None, str(error))
    except (LedgerError, StoppedError):
        release(core, lease)
        raise
    else:
        release(core, lease)


def _retrain(core: Core, lease: Lease, model: ModelRow, compute: Compute) -> Iterator[Step]:
    yield from _resume(core, lease, model, compute)
    _wake(core, model)
    with core.database.reading() as conn:
        found, head = plan(core, conn, model, forced=True), head_of(conn, model.id)
    if not found.request_ids and not head.run["rows_since_retrain"]:
        raise LedgerError(
            f"nothing was erased from model {model.name!r} since its last training, so there is "
            "nothing that a retrain would certify"
        )
    require_sound(core, model)
    batch = seal(core, lease, model, "retrain", list(found.request_ids), "operator")
    yield from _apply(core, lease, model, batch, compute)


def _serve(
    core: Core, lease: Lease, model: ModelRow, compute: Compute, *, forced: bool
) -> Iterator[Step]:
    """Resume what is open, then seal and apply what is due."""
    yield from _resume(core, lease, model, compute)
    _wake(core, model)
    with core.database.reading() as conn:
        found = plan(core, conn, model, forced=forced)
    if not found.decision.seal:
        return
    require_sound(core, model)
    chosen, members = found.decision, list(found.request_ids)
    batch = seal(core, lease, model, chosen.kind, members, chosen.reason)
    yield from _apply(core, lease, model, batch, compute)


def _resume(core: Core, lease: Lease, model: ModelRow, compute: Compute) -> Iterator[Step]:
    """Sweep up after a worker that never came back, and finish what it began."""
    if lease.was_left or is_first_look(core, model):
        sweep_model(core, lease, model)
    with core.database.reading() as conn:
        batch = open_batch(conn, model.id)
    if batch is not None:
        yield from _apply(core, lease, model, batch, compute)


def _wake(core: Core, model: ModelRow) -> None:
    """Queue requests again whose pause or hold is over; set aside those with nobody left."""
    now = core.clock()
    # No honest pause is longer: the clock was ahead when it was set.
    longest = now + core.settings.policy.backoff_longest.total_seconds() + TOLERATED_SECONDS
    is_over = (requests.c.not_before <= now) | (requests.c.not_before > longest)
    mine = requests.c.model_id == model.id
    with core.database.transaction() as conn:
        paused = (requests.c.state == "retry_wait") & is_over
        held = (requests.c.state == "on_hold") & (requests.c.hold_until <= proven_time(core, conn))
        query = select(requests.c.id).where(mine & (paused | held)).order_by(requests.c.id)
        over = list(conn.scalars(query.with_for_update()))
        move(conn, over, "queued", at=now, hold_ground=None, hold_until=None)
    settle_queue(core, model.id)


def _apply(
    core: Core, lease: Lease, model: ModelRow, batch: Batch, compute: Compute
) -> Iterator[Step]:
    try:
        version = apply(core, lease, model, batch, compute)
    except ComputationFailed as failure:
        yield _give_up(core, lease, model, batch, str(failure))
        if str(failure) == BUDGET_SPENT:
            yield from _retrain_instead(core, lease, model, compute)
        return
    except StoppedError:
        # The intent stays open; whoever comes next computes it again.
        raise
    except (OSError, DBAPIError, LetheonError):
        # The intent stays open, and is resumed when disk, database and files are sound again.
        # Whoever took the model over may have purged what this worker was reading.
        with core.database.transaction() as conn:
            require_fence(conn, lease)
        raise
    except Exception as error:  # noqa: BLE001  (no batch may stay open for ever)
        yield _give_up(core, lease, model, batch, code_of(error))
        return
    advance_mark(core)
    what: Literal["applied", "retrained"] = "retrained" if batch.kind == "retrain" else "applied"
    yield Step(what, model.name, version.sequence, f"{version.live} rows left")


def _retrain_instead(core: Core, lease: Lease, model: ModelRow, compute: Compute) -> Iterator[Step]:
    """Apply by training afresh what the budget of the method does not cover."""
    _wake(core, model)
    with core.database.reading() as conn:
        found = plan(core, conn, model, forced=True)
    batch = seal(core, lease, model, "retrain", list(found.request_ids), BUDGET_SPENT)
    yield from _apply(core, lease, model, batch, compute)


# What trying again cannot change.
_FINAL = frozenset({FORGED, NO_MODEL, TIME_LIMIT, MEMORY_LIMIT})


def _give_up(core: Core, lease: Lease, model: ModelRow, batch: Batch, reason: str) -> Step:
    """Abandon a batch that could not be computed; its requests wait, or a person must look."""
    with core.database.transaction() as conn:
        require_fence(conn, lease)
        now = core.clock()
        conn.execute(update(batches).where(batches.c.id == batch.id).values(state="abandoned"))
        record(conn, "abandoned", {"batch": batch.id, "reason": reason}, at=now)
        members = select(requests.c.id, requests.c.tries).where(requests.c.batch_id == batch.id)
        found = conn.execute(members).all()
        for request_id, tries in found:
            _send_back(core, conn, request_id, tries + 1, reason, now, alone=len(found) == 1)
    return Step("failed", model.name, None, reason)


def _send_back(
    core: Core,
    conn: Connection,
    request_id: str,
    tries: int,
    reason: str,
    now: int,
    *,
    alone: bool,
) -> None:
    """Let a request wait for its next try, in a smaller batch; or for a person to look at it.

    What cannot be computed for many may be due to one of them, so nobody is stuck in company.
    """
    policy = core.settings.policy
    values: dict[str, Any] = {"tries": tries, "reason": reason, "batch_id": None}
    if alone and (reason in _FINAL or tries >= policy.max_tries):
        move(conn, [request_id], "stuck", at=now, **values)
    else:
        is_over = reason in (BUDGET_SPENT, NOBODY_HELD, NO_MODEL)
        pause = 0 if is_over else backoff(tries, policy, random.SystemRandom().random())
        move(conn, [request_id], "retry_wait", at=now, not_before=now + pause, **values)


def _certify_all(core: Core) -> Iterator[Step]:
    """Certify in the order of numbers; what cannot be certified holds up what comes after it."""
    while True:
        try:
            sequence = certify_next(core)
        except (CertificateError, SignerRefusedError, StateError, LedgerMissingError) as error:
            yield Step("failed", "", None, str(error))
            return
        if sequence is None:
            return
        yield Step("certified", "", sequence, f"certificate {sequence}")


def _gaps(core: Core, sequence: int) -> str:
    gaps = gaps_in(purge_path(core, sequence).read_bytes())
    return f", not fully searched: {gaps}" if gaps else ""


def _purge_all(core: Core) -> Iterator[Step]:
    """Purge what is certified, oldest first: a model's purges go in the order of its versions."""
    with core.database.reading() as conn:
        join = batches.join(versions, versions.c.batch_id == batches.c.id)
        wanted = select(batches.c.id, versions.c.sequence, models.c.name)
        wanted = wanted.select_from(join.join(models, models.c.id == batches.c.model_id))
        wanted = wanted.where(batches.c.state == "certified").order_by(versions.c.sequence)
        todo = conn.execute(wanted).all()
    for batch_id, sequence, name in todo:
        try:
            if purge_next(core, batch_id):
                yield Step(
                    "purged", name, sequence, f"batch {batch_id[:12]}{_gaps(core, sequence)}"
                )
        except (LetheonError, OSError) as error:
            yield Step("failed", name, sequence, str(error))
    for problem in problems(core):
        yield Step("failed", "", None, str(problem))
