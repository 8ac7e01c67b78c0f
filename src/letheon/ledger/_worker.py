"""What a worker does: everything that is due, for every model, and nothing twice."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Literal

from sqlalchemy import Connection, select, update

from letheon.exceptions import (
    LedgerBusyError,
    LedgerError,
    RequestStateError,
    StaleWorkerError,
)
from letheon.ledger._apply import Batch, Compute, apply, open_batch, seal
from letheon.ledger._certify import certify_next
from letheon.ledger._claims import adds_up
from letheon.ledger._compute import BUDGET_SPENT, NO_MODEL, ComputationFailed
from letheon.ledger._core import Core
from letheon.ledger._events import record
from letheon.ledger._lease import Lease, release, require_fence, take
from letheon.ledger._moves import move
from letheon.ledger._policy import Decision, Queued, backoff, earliest_first, should_seal
from letheon.ledger._purge import problems, purge_next
from letheon.ledger._recover import sweep_model
from letheon.ledger._register import sweep_registrations
from letheon.ledger._tables import batches, models, requests, versions
from letheon.ledger._versions import ModelRow, VersionRow, head_of, model_of, versions_of

__all__ = ["BatchPlan", "Step", "plan", "plan_all", "retrain", "run_once"]

_RECENT_VERSIONS = 100


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


@dataclass(frozen=True)
class _Member(Queued):
    id: str


@dataclass(frozen=True)
class BatchPlan:
    """What the next batch of a model would be.

    Attributes
    ----------
    model, tenant : str
        The model.
    decision : Decision
        Whether it is sealed now, of which kind, why, and when time alone will seal it.
    n_requests, n_rows : int
        What waits for it.
    earliest_due_on : date or None
        First day on which one of them is due.
    request_ids : tuple of str
        The requests, earliest due first.
    """

    model: str
    tenant: str
    decision: Decision
    n_requests: int
    n_rows: int
    earliest_due_on: date | None
    request_ids: tuple[str, ...]


def plan(core: Core, conn: Connection, model: ModelRow, *, forced: bool = False) -> BatchPlan:
    """Say what the next batch of a model would be, and whether it is time for it."""
    queue = earliest_first(_queued(conn, model))
    history = versions_of(conn, model.id, newest=_RECENT_VERSIONS)
    head = history[-1]
    n_rows = sum(member.n_rows for member in queue)
    decision = should_seal(
        queue,
        datetime.fromtimestamp(core.clock(), UTC),
        core.settings.policy,
        apply_seconds=_apply_seconds(history),
        releases=model.releases,
        budget_runs_out=_budget_runs_out(head, n_rows),
        retrain_due=_is_retrain_due(head),
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
    )


def plan_all(core: Core, wanted: int | None = None) -> tuple[BatchPlan, ...]:
    """Return the plan of every model, or of one."""
    with core.database.reading() as conn:
        return tuple(
            plan(core, conn, model)
            for model in _all_models(conn)
            if wanted is None or model.id == wanted
        )


def _queued(conn: Connection, model: ModelRow) -> list[_Member]:
    wanted = (requests.c.model_id == model.id) & (requests.c.state == "queued")
    return [
        _Member(
            datetime.fromtimestamp(row.received_at, UTC),
            date.fromisoformat(row.extended_to or row.due_on),
            row.n_rows,
            row.id,
        )
        for row in conn.execute(select(requests).where(wanted))
    ]


def _apply_seconds(history: list[VersionRow]) -> float:
    """Return the longest of the last applications and retrains: no less than their p99."""
    return max(
        float(version.run[name] or 0)
        for version in history
        for name in ("seconds", "retrain_seconds")
    )


def _budget_runs_out(head: VersionRow, n_rows: int) -> bool:
    """Return whether the budget would not cover these rows at the rate it was spent so far."""
    facts = head.facts["certificate"]
    accounting = facts["guarantee"]["accounting"] if facts else {}
    removed = head.run["rows_since_retrain"]
    # Where every request is proved by itself nothing adds up, and nothing runs out.
    if not removed or not adds_up(accounting.get("rule", "")) or "budget" not in accounting:
        return False
    spent, budget = float(accounting["spent"]), float(accounting["budget"])
    return bool(spent + spent / removed * n_rows > budget)


def _is_retrain_due(head: VersionRow) -> bool:
    facts = head.facts["certificate"]
    is_due = bool(facts and facts["monitor"]["decision"] == "retrain-due")
    return is_due and bool(head.run["rows_since_retrain"])


def _all_models(conn: Connection) -> list[ModelRow]:
    return [model_of(conn, key) for key in conn.scalars(select(models.c.id).order_by(models.c.id))]


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
    """
    sweep_registrations(core)
    yield from _certify_all(core)
    with core.database.reading() as conn:
        todo = [model for model in _all_models(conn) if wanted is None or model.id == wanted]
    for model in todo:
        lease = take(core, model.id, owner)
        if lease is None:
            yield Step("waits", model.name, None, "another-worker-is-at-it")
            continue
        try:
            yield from _serve(core, lease, model, compute, forced=forced)
        except StaleWorkerError:
            yield Step("waits", model.name, None, "another-worker-took-over")
        finally:
            release(core, lease)
    yield from _certify_all(core)
    yield from _purge_all(core)


def retrain(core: Core, owner: str, compute: Compute, model: ModelRow) -> Iterator[Step]:
    """Train a model afresh now, with everything that is queued for it."""
    lease = take(core, model.id, owner)
    if lease is None:
        raise LedgerBusyError(f"another worker is at model {model.name!r}; try again")
    try:
        sweep_model(core, lease, model)
        yield from _resume(core, lease, model, compute)
        with core.database.reading() as conn:
            found, head = plan(core, conn, model, forced=True), head_of(conn, model.id)
        if not found.request_ids and not head.run["rows_since_retrain"]:
            raise LedgerError(
                f"nothing was erased from model {model.name!r} since its last training, so there "
                "is nothing that a retrain would certify"
            )
        batch = seal(core, lease, model, "retrain", list(found.request_ids), "operator")
        yield from _apply(core, lease, model, batch, compute)
    finally:
        release(core, lease)
    yield from _certify_all(core)
    yield from _purge_all(core)


def _serve(
    core: Core, lease: Lease, model: ModelRow, compute: Compute, *, forced: bool
) -> Iterator[Step]:
    """Resume what is open, then seal and apply what is due."""
    sweep_model(core, lease, model)
    yield from _resume(core, lease, model, compute)
    _wake(core, model)
    with core.database.reading() as conn:
        found = plan(core, conn, model, forced=forced)
    if not found.decision.seal:
        return
    try:
        chosen, members = found.decision, list(found.request_ids)
        batch = seal(core, lease, model, chosen.kind, members, chosen.reason)
    except RequestStateError:
        # Somebody cancelled a request since the plan was made; the next round sees it.
        yield Step("waits", model.name, None, "queue-changed")
        return
    yield from _apply(core, lease, model, batch, compute)


def _resume(core: Core, lease: Lease, model: ModelRow, compute: Compute) -> Iterator[Step]:
    with core.database.reading() as conn:
        batch = open_batch(conn, model.id)
    if batch is not None:
        yield from _apply(core, lease, model, batch, compute)


def _wake(core: Core, model: ModelRow) -> None:
    """Queue requests again whose pause after a failure, or whose hold, is over."""
    now = core.clock()
    paused = (requests.c.state == "retry_wait") & (requests.c.not_before <= now)
    held = (requests.c.state == "on_hold") & (requests.c.hold_until <= now)
    with core.database.reading() as conn:
        mine = requests.c.model_id == model.id
        found = list(conn.scalars(select(requests.c.id).where(mine & (paused | held))))
    if found:
        with core.database.transaction() as conn:
            move(conn, found, "queued", at=now)


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
    except OSError:
        # Whoever took the model over may have purged what this worker was reading.
        with core.database.transaction() as conn:
            require_fence(conn, lease)
        raise
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
_FINAL = frozenset({NO_MODEL, "unknown-id-error"})


def _give_up(core: Core, lease: Lease, model: ModelRow, batch: Batch, reason: str) -> Step:
    """Abandon a batch that could not be computed; its requests wait, or a person must look."""
    with core.database.transaction() as conn:
        require_fence(conn, lease)
        now = core.clock()
        conn.execute(update(batches).where(batches.c.id == batch.id).values(state="abandoned"))
        record(conn, "abandoned", {"batch": batch.id, "reason": reason}, at=now)
        members = select(requests.c.id, requests.c.tries).where(requests.c.batch_id == batch.id)
        for request_id, tries in conn.execute(members).all():
            _send_back(core, conn, request_id, tries + 1, reason, now)
    return Step("failed", model.name, None, reason)


def _send_back(
    core: Core, conn: Connection, request_id: str, tries: int, reason: str, now: int
) -> None:
    policy = core.settings.policy
    if reason in _FINAL or tries >= policy.max_tries:
        move(conn, [request_id], "stuck", at=now, tries=tries, reason=reason, batch_id=None)
        return
    is_over = reason == BUDGET_SPENT
    pause = 0 if is_over else backoff(tries, policy, random.SystemRandom().random())
    move(
        conn,
        [request_id],
        "retry_wait",
        at=now,
        tries=tries,
        reason=reason,
        not_before=now + pause,
        batch_id=None,
    )


def _certify_all(core: Core) -> Iterator[Step]:
    while (sequence := certify_next(core)) is not None:
        yield Step("certified", "", sequence, f"certificate {sequence}")


def _purge_all(core: Core) -> Iterator[Step]:
    """Purge what is certified, oldest first: a model's purges go in the order of its versions."""
    with core.database.reading() as conn:
        join = batches.join(versions, versions.c.batch_id == batches.c.id)
        wanted = select(batches.c.id, versions.c.sequence, models.c.name)
        wanted = wanted.select_from(join.join(models, models.c.id == batches.c.model_id))
        wanted = wanted.where(batches.c.state == "certified").order_by(versions.c.sequence)
        todo = conn.execute(wanted).all()
    for batch_id, sequence, name in todo:
        if purge_next(core, batch_id):
            yield Step("purged", name, sequence, f"batch {batch_id[:12]}")
    for problem in problems(core):
        yield Step("failed", "", None, str(problem))
