"""The worker, which does all due work of every model, each step exactly once."""

import json
import random
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, delete, func, select, update
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
from letheon.ledger.certificates.claims import adds_up
from letheon.ledger.certificates.statement import gaps_in
from letheon.ledger.core import Core
from letheon.ledger.db.elapsed import proven_now, proven_time, seconds_ahead
from letheon.ledger.db.events import (
    TOLERATED_SECONDS,
    advance_mark,
    record_event,
    require_agreement,
    select_in,
    settle_mark,
)
from letheon.ledger.leases import Lease, release_lease, require_fence, take_lease
from letheon.ledger.models.versions import (
    ModelRow,
    VersionRow,
    find_head,
    list_models,
    list_versions,
    locate_signed_file,
    read_blob,
)
from letheon.ledger.purge.purge import list_problems, purge_next
from letheon.ledger.requests.deadlines import months_later
from letheon.ledger.requests.people import (
    list_lost_keys,
    mark_queued_duplicates,
    move_requests,
    read_body,
)
from letheon.ledger.tables import batches, blocked, models, requests, versions
from letheon.ledger.worker.apply import (
    BatchRow,
    Compute,
    apply_batch,
    find_open_batch,
    select_blocked_by_hold,
    start_batch,
)
from letheon.ledger.worker.compute import (
    BUDGET_SPENT,
    FORGED,
    MEMORY_LIMIT,
    NO_MATCHING_ROWS,
    NO_MODEL,
    TIME_LIMIT,
    ComputationFailed,
    failure_code,
    find_sampled_requests,
)
from letheon.ledger.worker.policy import (
    Decision,
    QueuedRequest,
    backoff_seconds,
    describe_wait,
    should_start,
    sort_by_due_day,
)
from letheon.ledger.worker.recover import (
    is_first_look,
    require_sound,
    sweep_model,
    sweep_partials,
    sweep_registrations,
)
from letheon.sandbox import StoppedError

_CHUNK = 400
_FORGOTTEN = ""
_RECENT_VERSIONS = 100
_QUEUED = tuple(
    requests.c[name] for name in ("received_at", "last_day", *QueuedRequest._fields[2:])
)
# Failures that a retry cannot change.
_FINAL = frozenset({FORGED, NO_MODEL, TIME_LIMIT, MEMORY_LIMIT})


@dataclass(frozen=True)
class Step:
    """A step that a worker has done.

    Attributes
    ----------
    what : {"applied", "retrained", "certified", "purged", "failed", "waits"}
        Kind of step.
    model : str
        Name of the model; empty for steps of the whole ledger.
    sequence : int or None
        Number of the certificate.
    detail : str
        Numbers and codes that describe the step; never an id of a person.
    """

    what: Literal["applied", "retrained", "certified", "purged", "failed", "waits"]
    model: str
    sequence: int | None
    detail: str


@dataclass(frozen=True)
class BatchPlan:
    """The plan for the next batch of a model.

    Attributes
    ----------
    model, tenant : str
        The model and its tenant.
    decision : Decision
        Whether the batch starts now, its kind, the reason, and the latest start.
    n_requests, n_rows : int
        Number of waiting requests, and number of their rows.
    earliest_due_on : date or None
        Earliest deadline of the requests; None without requests.
    request_ids : tuple of str
        Ids of the requests, earliest deadline first.
    waits_for : str
        What the batch waits for, such as "50 rows or 72 h"; empty if it does not wait.
    n_people : int
        Number of people in the requests.
    """

    model: str
    tenant: str
    decision: Decision
    n_requests: int
    n_rows: int
    earliest_due_on: date | None
    request_ids: tuple[str, ...]
    waits_for: str = ""
    n_people: int = 0


def run_once(
    core: Core, owner: str, compute: Compute, *, forced: bool = False, wanted: int | None = None
) -> Iterator[Step]:
    """Do all due work: resume and start batches, issue certificates, purge.

    Parameters
    ----------
    core : Core
        The ledger.
    owner : str
        Name of this worker; see `owner_name`.
    compute : callable
        Function from `choose_compute`.
    forced : bool, default=False
        Apply all queued requests now, regardless of the policy.
    wanted : int, optional
        Database key of the only model to work on; default: all models.

    Raises
    ------
    OldDatabaseError
        The files are newer than the database; nothing was done.
    """
    require_agreement(core)
    settle_mark(core)
    sweep_registrations(core)
    sweep_partials(core)
    forget_closed(core)
    with core.database.reading() as conn:
        ahead = seconds_ahead(core, conn)
    if ahead > core.settings.policy.clock_ahead.total_seconds():
        yield Step("waits", "", None, "clock-unconfirmed")
    yield from _certify_all(core)
    with core.database.reading() as conn:
        pending = [model for model in list_models(conn) if wanted is None or model.id == wanted]
    # An uploaded model may use its whole time limit: the operator's models come first.
    pending.sort(key=lambda model: model.is_outside)
    for model in pending:
        lease = take_lease(core, model.id, owner)
        if lease is None:
            yield Step("waits", model.name, None, "another-worker-is-at-it")
            continue
        yield from _run_leased(
            core, lease, model, _serve_model(core, lease, model, compute, forced=forced)
        )
    yield from _certify_all(core)
    yield from _purge_all(core)


def retrain_model(core: Core, owner: str, compute: Compute, model: ModelRow) -> Iterator[Step]:
    """Retrain a model now, and apply all queued requests for it."""
    require_agreement(core)
    settle_mark(core)
    lease = take_lease(core, model.id, owner)
    if lease is None:
        raise LedgerBusyError(f"another worker is processing model {model.name!r}; try again later")
    yield from _run_leased(core, lease, model, _retrain_now(core, lease, model, compute))
    yield from _certify_all(core)
    yield from _purge_all(core)


def _run_leased(core: Core, lease: Lease, model: ModelRow, work: Iterator[Step]) -> Iterator[Step]:
    """Yield the steps of `work`, then release the lease.

    After some failures the lease is not released, so that the next worker checks for leftover
    files.
    """
    try:
        yield from work
    except StaleWorkerError:
        yield Step("waits", model.name, None, "another-worker-took-over")
    except RequestStateError:
        # A request was changed since the batch was planned; the next round plans again.
        yield Step("waits", model.name, None, "queue-changed")
        release_lease(core, lease)
    except (StateError, LedgerMissingError, KeyFileError) as error:
        # A damaged model must not block the others.
        yield Step("failed", model.name, None, str(error))
    except (LedgerError, StoppedError):
        release_lease(core, lease)
        raise
    else:
        release_lease(core, lease)


def _retrain_now(core: Core, lease: Lease, model: ModelRow, compute: Compute) -> Iterator[Step]:
    yield from _resume_open_batch(core, lease, model, compute)
    plan, head = _plan_next(core, model, forced=True)
    if not plan.request_ids and not head.run["rows_since_retrain"]:
        raise LedgerError(
            f"model {model.name!r} was not retrained, because nothing was erased from it since "
            "its last training"
        )
    require_sound(core, model)
    batch = start_batch(core, lease, model, "retrain", plan.request_ids, "operator")
    yield from _apply_batch(core, lease, model, batch, compute)


def _serve_model(
    core: Core, lease: Lease, model: ModelRow, compute: Compute, *, forced: bool
) -> Iterator[Step]:
    """Finish an open batch, then start and apply the next batch if it is due."""
    yield from _resume_open_batch(core, lease, model, compute)
    plan, head = _plan_next(core, model, forced=forced)
    outside = [] if forced else _list_unsampled(core, model, plan, head)
    if outside:
        require_sound(core, model)
        batch = start_batch(core, lease, model, "erase", outside, "outside-sample")
        yield from _apply_batch(core, lease, model, batch, compute)
        plan, _ = _plan_next(core, model, forced=forced)
    decision = plan.decision
    if decision.seal:
        require_sound(core, model)
        batch = start_batch(core, lease, model, decision.kind, plan.request_ids, decision.reason)
        yield from _apply_batch(core, lease, model, batch, compute)


def _list_unsampled(core: Core, model: ModelRow, plan: BatchPlan, head: VersionRow) -> list[str]:
    """Return the requests of a plan that fit no keyed sample again; see `Policy`.

    Requests that wait are looked at once per process: if the sample changes, they still wait.
    """
    is_split = core.settings.policy.unsampled_at_once and head.run.get("has_sample", False)
    cache, mark = core.database.cached_values, "sampled/{}".format
    names = [name for name in plan.request_ids if mark(name) not in cache]
    if not is_split or not names or plan.decision.kind == "retrain":
        return []
    query = select(requests.c.id, requests.c.intake_key, requests.c.sealed)
    query = query.where(requests.c.receipt_key.is_(None), requests.c.sealed.is_not(None))
    with suppress(KeyFileError), core.database.reading() as conn:  # a purge may replace the key
        rows = list(select_in(conn, query, requests.c.id, names))
        ids = [read_body(core, row.intake_key, row.id, row.sealed).to_list() for row in rows]
        content = read_blob(core, model, head, "model")
        is_sampled = find_sampled_requests(
            content, ids, trusted=model.trusted, is_outside=model.is_outside
        )
        cache.update(
            {mark(row.id): "" for row, holds in zip(rows, is_sampled, strict=True) if holds}
        )
        return [row.id for row, holds in zip(rows, is_sampled, strict=True) if not holds]
    return []


def _resume_open_batch(
    core: Core, lease: Lease, model: ModelRow, compute: Compute
) -> Iterator[Step]:
    """Delete leftover files of a killed worker, and finish its batch."""
    if lease.was_abandoned or is_first_look(core, model):
        sweep_model(core, lease, model)
    with core.database.reading() as conn:
        batch = find_open_batch(conn, model.id)
    if batch is not None:
        yield from _apply_batch(core, lease, model, batch, compute)


def _plan_next(core: Core, model: ModelRow, *, forced: bool) -> tuple[BatchPlan, VersionRow]:
    """Queue requests whose pause or hold is over, and plan the next batch."""
    now = core.clock()
    # A longer pause was set while the clock was ahead; ignore it.
    longest = now + core.settings.policy.backoff_longest.total_seconds() + TOLERATED_SECONDS
    is_over = (requests.c.not_before <= now) | (requests.c.not_before > longest)
    mine = requests.c.model_id == model.id
    with core.database.transaction() as conn:
        paused = (requests.c.state == "retry_wait") & is_over
        on_hold = (requests.c.state == "on_hold") & (
            requests.c.hold_until <= proven_time(core, conn)
        )
        query = select(requests.c.id).where(mine & (paused | on_hold)).order_by(requests.c.id)
        resumed = list(conn.scalars(query.with_for_update()))
        move_requests(conn, resumed, "queued", at=now, hold_ground=None, hold_until=None)
    # Requests without remaining rows are set aside.
    mark_queued_duplicates(core, model.id)
    with core.database.reading() as conn:
        return plan_batch(core, conn, model, forced=forced), find_head(conn, model.id)


def _apply_batch(
    core: Core, lease: Lease, model: ModelRow, batch: BatchRow, compute: Compute
) -> Iterator[Step]:
    try:
        version = apply_batch(core, lease, model, batch, compute)
    except ComputationFailed as failure:
        yield _give_up(core, lease, model, batch, str(failure))
        if str(failure) == BUDGET_SPENT:
            # The budget does not cover these rows: retrain instead.
            plan, _ = _plan_next(core, model, forced=True)
            retrain = start_batch(core, lease, model, "retrain", plan.request_ids, BUDGET_SPENT)
            yield from _apply_batch(core, lease, model, retrain, compute)
        return
    except StoppedError:
        # The batch stays open; the next worker computes it again.
        raise
    except (OSError, DBAPIError, LetheonError):
        # The batch stays open, and is resumed when disk, database and files work again.
        # A worker that took over may have purged files that this worker was reading.
        with core.database.transaction() as conn:
            require_fence(conn, lease)
        raise
    except Exception as error:  # noqa: BLE001  (no batch may stay open forever)
        yield _give_up(core, lease, model, batch, failure_code(error))
        return
    advance_mark(core)
    kind: Literal["applied", "retrained"] = "retrained" if batch.kind == "retrain" else "applied"
    yield Step(kind, model.name, version.sequence, f"{version.live} rows remain")


def _give_up(core: Core, lease: Lease, model: ModelRow, batch: BatchRow, reason: str) -> Step:
    """Abandon a batch that could not be computed.

    Each request is retried later in a smaller batch, or becomes stuck until an operator acts. A
    single request may have caused the failure of the batch, so only a request that was alone in its
    batch becomes stuck.
    """
    policy, is_over = core.settings.policy, reason in (BUDGET_SPENT, NO_MATCHING_ROWS, NO_MODEL)
    with core.database.transaction() as conn:
        require_fence(conn, lease)
        now = core.clock()
        conn.execute(update(batches).where(batches.c.id == batch.id).values(state="abandoned"))
        record_event(conn, "abandoned", {"batch": batch.id, "reason": reason}, at=now)
        query = select(requests.c.id, requests.c.tries).where(requests.c.batch_id == batch.id)
        members = conn.execute(query).all()
        for request_id, failures in members:
            tries = failures + 1
            values: dict[str, Any] = {"tries": tries, "reason": reason, "batch_id": None}
            if len(members) == 1 and (reason in _FINAL or tries >= policy.max_tries):
                move_requests(conn, [request_id], "stuck", at=now, **values)
                continue
            pause = 0 if is_over else backoff_seconds(tries, policy, random.SystemRandom().random())
            move_requests(
                conn, [request_id], "retry_wait", at=now, not_before=now + pause, **values
            )
    return Step("failed", model.name, None, reason)


def _certify_all(core: Core) -> Iterator[Step]:
    """Issue missing certificates in the order of their numbers; stop at the first failure."""
    while True:
        try:
            sequence = certify_next(core)
        except (CertificateError, SignerRefusedError, StateError, LedgerMissingError) as error:
            yield Step("failed", "", None, str(error))
            return
        if sequence is None:
            return
        yield Step("certified", "", sequence, f"certificate {sequence}")


def _purge_all(core: Core) -> Iterator[Step]:
    """Purge the batches that have a certificate, in the order of the certificate numbers."""
    with core.database.reading() as conn:
        join = batches.join(versions, versions.c.batch_id == batches.c.id)
        wanted = select(batches.c.id, versions.c.sequence, models.c.name)
        wanted = wanted.select_from(join.join(models, models.c.id == batches.c.model_id))
        wanted = wanted.where(batches.c.state == "certified").order_by(versions.c.sequence)
        pending = conn.execute(wanted).all()
    for batch_id, sequence, name in pending:
        try:
            if purge_next(core, batch_id):
                gaps = gaps_in(locate_signed_file(core, "purges", sequence).read_bytes())
                detail = f"batch {batch_id[:12]}{f', not fully searched: {gaps}' if gaps else ''}"
                yield Step("purged", name, sequence, detail)
        except (LetheonError, OSError) as error:
            yield Step("failed", name, sequence, str(error))
    for problem in list_problems(core):
        yield Step("failed", "", None, str(problem))


def plan_batch(core: Core, conn: Connection, model: ModelRow, *, forced: bool = False) -> BatchPlan:
    """Return the plan for the next batch of a model; `forced` makes the batch due now."""
    queue, policy = _read_queue(core, conn, model), core.settings.policy
    head = list_versions(conn, model.id, newest=1)[-1]
    n_rows = sum(member.n_rows for member in queue)
    decision = should_start(
        queue,
        datetime.fromtimestamp(core.clock(), UTC),
        policy,
        apply_seconds=_apply_seconds(conn, model.id),
        releases=model.releases,
        budget_runs_out=_budget_runs_out(head, n_rows),
        retrain_due=_is_retrain_due(core, conn, head),
        forced=forced,
    )
    return BatchPlan(
        model=model.name,
        tenant=model.tenant,
        decision=decision,
        n_requests=len(queue),
        n_rows=n_rows,
        earliest_due_on=queue[0].due_on if queue else None,
        request_ids=tuple(member.id for member in queue),
        waits_for=describe_wait(queue, policy, decision, releases=model.releases),
        n_people=sum(member.n_ids for member in queue),
    )


def plan_all(core: Core, wanted: int | None = None) -> tuple[BatchPlan, ...]:
    """Return the plan for the next batch of every model, or of the model with key `wanted`."""
    with core.database.reading() as conn:
        return tuple(
            plan_batch(core, conn, model)
            for model in list_models(conn)
            if wanted is None or model.id == wanted
        )


def _read_queue(core: Core, conn: Connection, model: ModelRow) -> list[QueuedRequest]:
    """Return the readable requests for the next batch, earliest deadline first.

    After each failure the batch is halved, so that a request that makes the method fail does not
    block the others.
    """
    wanted = (requests.c.model_id == model.id) & (requests.c.state == "queued")
    wanted &= requests.c.id.not_in(select_blocked_by_hold(model.id))
    wanted &= requests.c.intake_key.not_in(list_lost_keys(core, conn))
    queue = sort_by_due_day(
        QueuedRequest(datetime.fromtimestamp(received_at, UTC), date.fromisoformat(last_day), *rest)
        for received_at, last_day, *rest in conn.execute(select(*_QUEUED).where(wanted))
    )
    untried = [member for member in queue if member.tries == 0]
    return untried or queue[: max(1, len(queue) >> queue[0].tries) if queue else 0]


def _apply_seconds(conn: Connection, model_id: int) -> float:
    """Return the longest duration, in seconds, of recent batches and retrainings."""
    newest = select(versions.c.facts).where(versions.c.model_id == model_id)
    newest = newest.order_by(versions.c.number.desc()).limit(_RECENT_VERSIONS)
    runs = [json.loads(facts)["run"] for facts in conn.scalars(newest)]
    return max(float(run[name] or 0) for run in runs for name in ("seconds", "retrain_seconds"))


def _budget_runs_out(head: VersionRow, n_rows: int) -> bool:
    """Return whether the budget would not cover the removal of `n_rows` at the current rate."""
    facts = head.facts["certificate"]
    accounting = facts["guarantee"]["accounting"] if facts else {}
    removed = head.run["rows_since_retrain"]
    # If each request is proved separately, the budget is not shared and cannot run out.
    if not removed or not adds_up(accounting.get("rule", "")) or "budget" not in accounting:
        return False
    spent, budget = float(accounting["spent"]), float(accounting["budget"])
    return bool(spent + spent / removed * n_rows > budget)


def _is_retrain_due(core: Core, conn: Connection, head: VersionRow) -> bool:
    """Return whether the monitor requires a retraining, and no pause after a failure is left.

    After `max_tries` failures no retraining is due until an operator acts; `letheon doctor` reports
    this.
    """
    facts = head.facts["certificate"]
    if not facts or facts["monitor"]["decision"] != "retrain-due":
        return False
    if not head.run["rows_since_retrain"]:
        return False
    policy = core.settings.policy
    mine = (batches.c.parent_id == head.id) & (batches.c.state == "abandoned")
    query = select(func.count(), func.max(batches.c.created_at)).where(mine)
    failures, last = conn.execute(query).one()
    if failures == 0:
        return True
    is_over = core.clock() >= last + backoff_seconds(failures, policy, draw=1.0)
    return bool(failures < policy.max_tries and is_over)


def forget_closed(core: Core) -> int:
    """Delete the tags of requests closed `keep_keys_months` ago; return the number of requests.

    Tags are kept while an open request contains one of the same people, because a duplicate needs
    them to determine whether all its people are erased. After the deletion, a repeat with an old
    idempotency key is a new request, and the ledger no longer records which people were erased.
    """
    calendar, months = core.settings.calendar, core.settings.policy.keep_keys_months
    # Deletion cannot be undone, so it uses the proven time and not the clock.
    today = calendar.day_of(datetime.fromtimestamp(proven_now(core), UTC))
    if months // 12 + 1 >= today.year:
        return 0
    day = months_later(today, -months)
    before = int(calendar.end_of(day - timedelta(days=1)).timestamp())
    total = 0
    while count := core.database.run_transaction(lambda conn: _forget_some(core, conn, before)):
        total += count
    return total


def _forget_some(core: Core, conn: Connection, before: int) -> int:
    is_old = (requests.c.closed_at < before) & (requests.c.body_tag != _FORGOTTEN)
    mine, other, claim = blocked.alias(), blocked.alias(), requests.alias()
    same = (other.c.model_id == mine.c.model_id) & (other.c.tag == mine.c.tag)
    shared = select(mine.c.tag).join(other, same).join(claim, claim.c.id == other.c.request_id)
    shared = shared.where(mine.c.request_id == requests.c.id, claim.c.closed_at.is_(None))
    query = select(requests.c.id).where(is_old, ~shared.exists())
    old = list(conn.scalars(query.order_by(requests.c.id).limit(_CHUNK).with_for_update()))
    if not old:
        return 0
    conn.execute(delete(blocked).where(blocked.c.request_id.in_(old)))
    change = update(requests).where(requests.c.id == bindparam("request"))
    change = change.values(key_tag=bindparam("key"), body_tag=_FORGOTTEN, nonce=_FORGOTTEN)
    conn.execute(change, [{"request": name, "key": secrets.token_hex(32)} for name in old])
    record_event(conn, "tags-forgotten", {"requests": len(old)}, core.clock())
    return len(old)
