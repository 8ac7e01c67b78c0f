"""Jobs: work asked for at the service that takes long; a worker does it.

A job is a row. A claim holds a lease that ends by itself, under a name that no other claim has:
every later change compares that name, so a worker that was thought dead changes nothing any more.
After `MOST_STARTS` claims that ended with their worker a job has failed.

No caller can keep the others waiting: so many jobs of one token, of one tenant and of all may wait,
those that only read and those that change a model counted apart; and tenants take turns.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal, get_args

from sqlalchemy import Connection, Row, Select, delete, func, insert, select, true, tuple_
from sqlalchemy import update as change

from letheon.exceptions import LedgerBusyError, StaleWorkerError
from letheon.ledger import leases
from letheon.ledger.db.elapsed import proven_now
from letheon.ledger.db.tokens import ServiceTable, record_action
from letheon.ledger.schemas import Page, record_from, to_datetime
from letheon.ledger.tables import events, jobs, log

Kind = Literal["apply", "retrain", "what-if", "audit"]
State = Literal["queued", "running", "done", "failed"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Those that change a model, and those that only read.
CHANGING_KINDS: tuple[Kind, ...] = ("apply", "retrain")
READING_KINDS: tuple[Kind, ...] = ("audit", "what-if")

JOB_ID = "^[0-9a-f]{32}$"
CURSOR = "^[0-9]{1,12}-[0-9a-f]{32}$"
MOST_STARTS = 3
LEASE_SECONDS = 60
_MOST_QUEUED = 200
_MOST_OF_TENANT = 40
_MOST_OF_TOKEN = 10
_MOST_LINES = 500
_KEPT_SECONDS = 90 * 86_400


class JobsFullError(LedgerBusyError):
    """So many jobs wait already that another one would not be done soon."""


@dataclass(frozen=True)
class ProgressLine:
    """A line of progress: when, and in words."""

    at: datetime
    words: str


@dataclass(frozen=True)
class JobProblem:
    """Why a job could not be done: a code, and words."""

    code: str
    words: str


@dataclass(frozen=True)
class JobBase:
    """Work that takes long, without what it is: the base of `Job` and of audits.

    Attributes
    ----------
    id : str
        Random, 32 hexadecimal digits.
    tenant : str or None
        Whose things it is about; null for all tenants.
    model : str or None
        Which model; null for all.
    state : {"queued", "running", "done", "failed"}
        Work whose worker died is "running" until another one takes it over.
    is_over : bool
        Whether it is done or has failed.
    created_at, started_at, finished_at : datetime or None
        When it was asked for, begun, and ended.
    created_by : str or None
        Id of the token that asked.
    progress : tuple of Line
        What was reported so far, by all workers that were at it.
    problem : JobProblem or None
        Why it failed, if it did.
    """

    id: str
    tenant: str | None
    model: str | None
    state: State
    is_over: bool
    created_at: datetime
    created_by: str | None
    started_at: datetime | None
    finished_at: datetime | None
    progress: tuple[ProgressLine, ...]
    problem: JobProblem | None


@dataclass(frozen=True)
class Job(JobBase):
    """Work that takes long; ask again until `is_over`.

    Attributes
    ----------
    kind : {"apply", "retrain", "what-if", "audit"}
        What is to be done.
    result : dict or None
        What came out, once it is done.
    """

    kind: Kind
    result: dict[str, Any] | None


@dataclass(frozen=True)
class JobRecord(Job):
    """A job with what only workers and audits need.

    Attributes
    ----------
    asked : dict
        Options, as plain values.
    findings : tuple of dict
        Values that came with lines of progress.
    owner : str or None
        Number of the start, name of the claim, and the thread that made it.
    """

    asked: dict[str, Any]
    findings: tuple[Mapping[str, Any], ...]
    owner: str | None

    @property
    def starts(self) -> int:
        """How often it was begun."""
        return _count_starts(self.owner)


class Jobs(ServiceTable):
    """The jobs of a service.

    Parameters
    ----------
    ledger : Ledger
        Whose service it is.
    clock : callable, optional
        Seconds since 1970; the ledger's by default.

    Guarantee
    ---------
    What one claim holds no other one changes. A job is begun at most `MOST_STARTS` times by
    workers that did not come to an end with it, and is never lost: it is queued, running under a
    lease, done, or failed.
    """

    def add(
        self,
        kind: Kind,
        *,
        tenant: str | None = None,
        model: str | None = None,
        asked: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> JobRecord:
        """Ask for work; the same work that is queued and not begun yet is returned instead.

        Raises
        ------
        JobsFullError
            Too many wait already: of this token, of this tenant, or of all.
        """
        wanted = {
            "kind": kind,
            "tenant": tenant,
            "model": model,
            "asked": json.dumps(asked or {}, sort_keys=True, separators=(",", ":")),
            "state": "queued",
        }
        same = [jobs.c[name].is_not_distinct_from(value) for name, value in wanted.items()]
        with self._database.transaction() as conn:
            conn.execute(select(log.c.id).with_for_update()).one()  # one caller at a time
            row = conn.execute(select(jobs).where(*same).limit(1)).first()
            if row is not None:
                return _to_job_record(row)
            _require_room(conn, kind, tenant, by)
            now, job_id = self._clock(), secrets.token_hex(16)
            fresh = {"id": job_id, "created_at": now, "created_by": by, "progress": "[]"}
            conn.execute(insert(jobs).values(wanted | fresh))
            record_action(conn, now, by, f"job.{kind}", job_id)
            return _read_job(conn, job_id)

    def find(self, job_id: str, *, tenant: str | None = None) -> JobRecord | None:
        """Return a job; None if there is none, or it is not of this tenant."""
        return self._read_first(select(jobs).where(_belongs_to(tenant), jobs.c.id == job_id))

    def find_open(self, kinds: Iterable[Kind], *, tenant: str, model: str) -> JobRecord | None:
        """Return the oldest job of a model that is queued or running."""
        mine = _belongs_to(tenant) & (jobs.c.model == model)
        return self._read_first(_open_jobs(list(kinds)).where(mine))

    def _read_first(self, query: Select[Any]) -> JobRecord | None:
        row = self._database.read_first(query)
        return None if row is None else _to_job_record(row)

    def list_page(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        kinds: Iterable[Kind] = KINDS,
        state: State | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[JobRecord]:
        """Return jobs, newest first; `after` is the cursor that the part before gave.

        Raises
        ------
        ValueError
            `after` is no cursor.
        """
        wanted = _belongs_to(tenant) & jobs.c.kind.in_(list(kinds))
        if model is not None:
            wanted &= jobs.c.model == model
        if state is not None:
            wanted &= jobs.c.state == state
        query = select(jobs).where(wanted, _is_older_than(after))
        query = query.order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(limit + 1)
        total, rows = self._count_rows(wanted), self._database.read(query)
        last = rows[limit - 1] if len(rows) > limit else None
        following = None if last is None else f"{last.created_at}-{last.id}"
        return Page(tuple(map(_to_job_record, rows[:limit])), following, total)

    def count_open(self) -> int:
        """Return how many jobs are queued or running."""
        return self._count_rows(_IS_OPEN)

    def read_newest_event(self) -> int | None:
        """Return the number of the newest event: where it changed, there may be work to do."""
        newest: int | None = self._database.read_value(select(func.max(events.c.id)))
        return newest

    def claim(
        self, owner: str, seconds: int = LEASE_SECONDS, *, kinds: Iterable[Kind] = KINDS
    ) -> JobRecord | None:
        """Take a job that waits, or whose worker is gone; None if there is none.

        The tenant whose last job was begun longest ago is next, with its oldest one.

        Parameters
        ----------
        owner : str
            Name of the thread, as `letheon.ledger.leases.owner_name` makes it.
        seconds : int
            So long without a `renew` it counts as left.
        kinds : iterable of str
            What the caller can do.
        """
        query = _open_jobs(list(kinds))
        # A look costs no writing.
        with self._database.reading() as conn:
            if self._find_next(conn, query, seconds) is None:
                return None
        query = query.with_for_update(skip_locked=True)
        with self._database.transaction() as conn:
            while (row := self._find_next(conn, query, seconds)) is not None:
                taken = self._start_job(conn, row, owner, seconds)
                if taken is not None:
                    return taken
        return None

    def _find_next(self, conn: Connection, query: Select[Any], seconds: int) -> Row[Any] | None:
        """Return the job that may be begun and is next."""
        now = self._clock()
        for row in _order_by_turn(conn, list(conn.execute(query))):
            is_held = row.state == "running" and leases.is_current(row.lease_until, now, seconds)
            if not is_held or leases.is_dead_owner(_read_holder(row.owner)):
                return row
        return None

    def _start_job(
        self, conn: Connection, row: Row[Any], owner: str, seconds: int
    ) -> JobRecord | None:
        """Begin a job; None if it was begun too often and has failed by that."""
        now, starts = self._clock(), _count_starts(row.owner) + 1
        mine = change(jobs).where(jobs.c.id == row.id)
        if starts > MOST_STARTS:
            words = f"its worker ended {MOST_STARTS} times before it was done"
            ended = _end_values("failed", {"code": "worker-ended", "words": words}, now)
            conn.execute(mine.values(ended))
            return None
        name = f"{starts} {secrets.token_hex(8)} {owner}"
        values = {"state": "running", "started_at": now, "owner": name}
        conn.execute(mine.values(**values, lease_until=now + seconds))
        return _read_job(conn, row.id)

    def renew(self, job: JobRecord, seconds: int = LEASE_SECONDS) -> None:
        """Put the end of the lease off, or raise `StaleWorkerError`."""
        self._database.run_transaction(
            partial(_change_own, job, lease_until=self._clock() + seconds)
        )

    def add_progress(
        self, job: JobRecord, words: str, found: Mapping[str, Any] | None = None
    ) -> None:
        """Add a line of progress, or raise `StaleWorkerError`; of too many the last are left out.

        Words and values hold counts, codes and names of models, never anything of a person.
        """
        line = {"at": self._clock(), "words": words, "found": found}
        with self._database.transaction() as conn:
            query = select(jobs.c.progress).where(jobs.c.id == job.id).with_for_update()
            lines = json.loads(conn.execute(query).scalar_one())
            if len(lines) < _MOST_LINES:
                lines.append(line)
            _change_own(job, conn, progress=json.dumps(lines))

    def finish(self, job: JobRecord, result: Mapping[str, Any]) -> None:
        """Record that a job is done and what came out, or raise `StaleWorkerError`."""
        self._database.run_transaction(
            partial(_change_own, job, **_end_values("done", result, self._clock()))
        )

    def fail(self, job: JobRecord, code: str, words: str) -> None:
        """Record that a job could not be done, or raise `StaleWorkerError`."""
        ended = _end_values("failed", {"code": code, "words": words}, self._clock())
        self._database.run_transaction(partial(_change_own, job, **ended))

    def release(self, job: JobRecord) -> None:
        """Give a job back undone: this start does not count. `StaleWorkerError` if it is lost."""
        undone: dict[str, Any] = {"state": "queued", "lease_until": 0}
        undone["owner"] = f"{job.starts - 1} - -"
        self._database.run_transaction(partial(_change_own, job, **undone))

    def forget_old(self) -> int:
        """Drop jobs that ended 90 days ago; return how many."""
        old = jobs.c.finished_at < proven_now(self._core) - _KEPT_SECONDS
        if self._count_rows(old) == 0:
            return 0
        with self._database.transaction() as conn:
            return int(conn.execute(delete(jobs).where(old)).rowcount)


_IS_OPEN = jobs.c.state.in_(("queued", "running"))


def _open_jobs(kinds: list[Kind]) -> Select[Any]:
    wanted = jobs.c.kind.in_(kinds) & _IS_OPEN
    return select(jobs).where(wanted).order_by(jobs.c.created_at, jobs.c.id)


def _change_own(job: JobRecord, conn: Connection, **values: Any) -> None:
    """Change a job that is still the caller's; else raise, and leave it alone."""
    mine = (jobs.c.id == job.id) & (jobs.c.owner == job.owner) & (jobs.c.state == "running")
    if conn.execute(change(jobs).where(mine).values(**values)).rowcount != 1:
        raise StaleWorkerError("another worker took this job over, or it has ended")


def _end_values(state: State, result: Mapping[str, Any], now: int) -> dict[str, Any]:
    return {"state": state, "result": json.dumps(result), "finished_at": now, "lease_until": 0}


def _belongs_to(tenant: str | None) -> Any:
    return true() if tenant is None else jobs.c.tenant == tenant


def _is_older_than(after: str | None) -> Any:
    if after is None:
        return true()
    at, _, job_id = after.partition("-")
    if not (at.isdecimal() and at.isascii() and job_id):
        raise ValueError("after is no cursor; give what the part before gave as next")
    return tuple_(jobs.c.created_at, jobs.c.id) < (int(at), job_id)


def _order_by_turn(conn: Connection, rows: list[Row[Any]]) -> list[Row[Any]]:
    """Return jobs, the oldest first, in the order in which tenants take turns."""
    if len({row.tenant for row in rows}) < 2:
        return rows
    kinds = {row.kind for row in rows}
    query = select(jobs.c.tenant, func.max(jobs.c.started_at)).where(jobs.c.kind.in_(kinds))
    served = {tenant: at or 0 for tenant, at in conn.execute(query.group_by(jobs.c.tenant))}
    return sorted(rows, key=lambda row: served[row.tenant])


def _require_room(conn: Connection, kind: Kind, tenant: str | None, by: str | None) -> None:
    """Refuse a job if too many wait that are done in the same turn."""
    those = jobs.c.kind.in_(CHANGING_KINDS if kind in CHANGING_KINDS else READING_KINDS) & (
        jobs.c.state == "queued"
    )
    waiting = conn.execute(select(jobs.c.tenant, jobs.c.created_by).where(those)).all()
    of_token = sum(row.created_by == by for row in waiting)
    of_tenant = sum(row.tenant == tenant for row in waiting)
    if by is not None and of_token >= _MOST_OF_TOKEN:
        raise JobsFullError(f"{of_token} jobs of this token wait already")
    if tenant is not None and of_tenant >= _MOST_OF_TENANT:
        raise JobsFullError(f"{of_tenant} jobs of this tenant wait already")
    if len(waiting) >= _MOST_QUEUED:
        raise JobsFullError("too many jobs wait already; is a worker running?")


def _read_job(conn: Connection, job_id: str) -> JobRecord:
    return _to_job_record(conn.execute(select(jobs).where(jobs.c.id == job_id)).one())


def _count_starts(owner: str | None) -> int:
    return 0 if owner is None else int(owner.partition(" ")[0])


def _read_holder(owner: str | None) -> str:
    """Return who made the claim; an owner whose process cannot be looked up is no process."""
    name = "" if owner is None else owner.rpartition(" ")[2]
    return name if name.count("/") == 5 else "/////"


def _to_job_record(row: Row[Any]) -> JobRecord:
    lines = json.loads(row.progress)
    outcome: Any = None if row.result is None else json.loads(row.result)
    return record_from(
        JobRecord,
        row._mapping,
        is_over=row.state in ("done", "failed"),
        progress=tuple(ProgressLine(to_datetime(one["at"]), one["words"]) for one in lines),
        result=outcome if row.state == "done" else None,
        problem=JobProblem(**outcome) if row.state == "failed" else None,
        asked=json.loads(row.asked),
        findings=tuple(one["found"] for one in lines if one.get("found") is not None),
    )
