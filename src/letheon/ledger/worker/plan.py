"""What the next batch of a model would be, and whether it is time for it."""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import Connection, Select, func, select

from letheon.ledger.certificates.claims import adds_up
from letheon.ledger.core import Core
from letheon.ledger.models.versions import ModelRow, VersionRow, list_models, versions_of
from letheon.ledger.requests.people import lost_keys
from letheon.ledger.tables import batches, blocked, requests, versions
from letheon.ledger.worker.policy import (
    Decision,
    Queued,
    backoff,
    describe_wait,
    earliest_first,
    should_seal,
)

_RECENT_VERSIONS = 100
_COLUMNS = ("received_at", "last_day", "n_rows", "id", "tries", "n_ids")
_QUEUED = tuple(requests.c[name] for name in _COLUMNS)


@dataclass(frozen=True)
class _Member(Queued):
    id: str
    tries: int
    n_ids: int


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
    waits_for : str
        What seals it, in words: "50 rows or 72 h". Empty unless it waits.
    n_people : int
        People that the requests name.
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


def plan(core: Core, conn: Connection, model: ModelRow, *, forced: bool = False) -> BatchPlan:
    """Say what the next batch of a model would be, and whether it is time for it."""
    queue = _company(earliest_first(_queued(core, conn, model)))
    head = versions_of(conn, model.id, newest=1)[-1]
    n_rows = sum(member.n_rows for member in queue)
    decision = should_seal(
        queue,
        datetime.fromtimestamp(core.clock(), UTC),
        core.settings.policy,
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
        waits_for=describe_wait(queue, core.settings.policy, decision, releases=model.releases),
        n_people=sum(member.n_ids for member in queue),
    )


def plan_all(core: Core, wanted: int | None = None) -> tuple[BatchPlan, ...]:
    """Return the plan of every model, or of one."""
    with core.database.reading() as conn:
        return tuple(
            plan(core, conn, model)
            for model in list_models(conn)
            if wanted is None or model.id == wanted
        )


def _queued(core: Core, conn: Connection, model: ModelRow) -> list[_Member]:
    """Return what waits for a batch, but for requests whose ids cannot be read."""
    wanted = (requests.c.model_id == model.id) & (requests.c.state == "queued")
    wanted &= requests.c.id.not_in(beside_a_hold(model.id))
    wanted &= requests.c.intake_key.not_in(lost_keys(core, conn))
    return [
        _Member(
            datetime.fromtimestamp(row.received_at, UTC),
            date.fromisoformat(row.last_day),
            row.n_rows,
            row.id,
            row.tries,
            row.n_ids,
        )
        for row in conn.execute(select(*_QUEUED).where(wanted))
    ]


def _company(queue: list[_Member]) -> list[_Member]:
    """Return who goes into the next batch: all, or half as many after each failure.

    A request that makes the method fail must not keep others from being erased.
    """
    untried = [member for member in queue if member.tries == 0]
    if untried or not queue:
        return untried
    return queue[: max(1, len(queue) >> queue[0].tries)]


def beside_a_hold(model_id: int) -> Select[Any]:
    """Return requests that name somebody whose erasure is on hold by another request.

    A hold is about the person: whoever else names them waits too.
    """
    held, other = blocked.alias("held"), blocked.alias("other")
    return (
        select(other.c.request_id)
        .join(held, (held.c.model_id == other.c.model_id) & (held.c.tag == other.c.tag))
        .join(requests, requests.c.id == held.c.request_id)
        # The model of the request, not of a claim: the search begins at the few that are held.
        .where(requests.c.model_id == model_id, requests.c.state == "on_hold")
    )


def _apply_seconds(conn: Connection, model_id: int) -> float:
    """Return the longest of the last applications and retrains: no less than their p99."""
    newest = select(versions.c.facts).where(versions.c.model_id == model_id)
    newest = newest.order_by(versions.c.number.desc()).limit(_RECENT_VERSIONS)
    runs = [json.loads(facts)["run"] for facts in conn.scalars(newest)]
    return max(float(run[name] or 0) for run in runs for name in ("seconds", "retrain_seconds"))


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


def _is_retrain_due(core: Core, conn: Connection, head: VersionRow) -> bool:
    """Return whether the monitor wants a retrain, and none has failed just now.

    After `max_tries` failures it is an operator's turn; `letheon doctor` tells.
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
    is_over = core.clock() >= last + backoff(failures, policy, draw=1.0)
    return bool(failures < policy.max_tries and is_over)
