"""Jobs: long-running tasks that a caller of the service requests and a worker runs.

A job is a row of the database. A worker claims a job by taking a lease, with an expiry time and a
unique name. Every later change compares that name, so a worker whose lease was taken over can no
longer change the job. A job fails after `MOST_STARTS` workers ended before it was done.

The number of waiting jobs is limited per token, per tenant and in total, separately for jobs that
only read and jobs that change a model. Tenants take turns.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal, get_args

from sqlalchemy import Connection, Row, Select, delete, func, insert, select, true
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
# Jobs that change a model, and jobs that only read.
CHANGING_KINDS: tuple[Kind, ...] = ("apply", "retrain")
READING_KINDS: tuple[Kind, ...] = ("audit", "what-if")

JOB_ID = "^[0-9a-f]{32}$"
MOST_STARTS = 3
LEASE_SECONDS = 60
_MOST_QUEUED = 200
_MOST_OF_TENANT = 40
_MOST_OF_TOKEN = 10
_MOST_LINES = 500
_KEPT_SECONDS = 90 * 86_400


class JobsFullError(LedgerBusyError):
    """Too many jobs are waiting, so no job can be added."""


@dataclass(frozen=True)
class ProgressLine:
    """Line of progress, with its time and text."""

    at: datetime
    words: str


@dataclass(frozen=True)
class JobProblem:
    """Reason why a job failed, as a code and a text."""

    code: str
    words: str


@dataclass(frozen=True)
class JobBase:
    """Fields that jobs and audits have in common: state, times and progress.

    Attributes
    ----------
    id : str
        Random id, 32 hexadecimal digits.
    tenant : str or None
        Tenant of the job; null for all tenants.
    model : str or None
        Model of the job; null for all models.
    state : {"queued", "running", "done", "failed"}
        A job whose worker died stays "running" until another worker takes it over.
    is_over : bool
        Whether the job is done or has failed.
    created_at, started_at, finished_at : datetime or None
        When the job was requested, started and finished.
    created_by : str or None
        Id of the token that requested the job.
    progress : tuple of ProgressLine
        Progress reported so far, by all workers of the job.
    problem : JobProblem or None
        Why the job failed; null if it did not fail.
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
    """Long-running task; poll it until `is_over` is true.

    Attributes
    ----------
    kind : {"apply", "retrain", "what-if", "audit"}
        Kind of work.
    result : dict or None
        Result of the job; null until the job is done.
    """

    kind: Kind
    result: dict[str, Any] | None


@dataclass(frozen=True)
class JobRecord(Job):
    """A job with the fields that only workers and audits need.

    Attributes
    ----------
    asked : dict
        Options of the job, as JSON values.
    findings : tuple of dict
        Values attached to lines of progress.
    owner : str or None
        Number of the start, name of the claim, and thread of the worker.
    """

    asked: dict[str, Any]
    findings: tuple[Mapping[str, Any], ...]
    owner: str | None

    @property
    def starts(self) -> int:
        """Number of times that the job was started."""
        return _count_starts(self.owner)


class Jobs(ServiceTable):
    """The jobs of a service.

    Parameters
    ----------
    ledger : Ledger
        Ledger of the service.
    clock : callable, optional
        Returns seconds since 1970. Default: the clock of the ledger.

    Guarantee
    ---------
    Only the worker with the current claim can change a job. A job fails after `MOST_STARTS` workers
    ended before it was done. A job is never lost: it is queued, running under a lease, done, or
    failed.
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
        """Add a job, or return an identical job that is still queued.

        Raises
        ------
        JobsFullError
            Too many jobs are waiting, for this token, for this tenant or in total.
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
        """Return a job; None if it does not exist or belongs to another tenant."""
        return self._read_first(select(jobs).where(_belongs_to(tenant), jobs.c.id == job_id))

    def find_open(self, kinds: Iterable[Kind], *, tenant: str, model: str) -> JobRecord | None:
        """Return the oldest queued or running job of a model; None if there is none."""
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
        """Return a page of jobs, newest first; `after` is `next` of the previous page.

        Raises
        ------
        ValueError
            `after` is not the id of a job of this list.
        """
        wanted = _belongs_to(tenant) & jobs.c.kind.in_(list(kinds))
        if model is not None:
            wanted &= jobs.c.model == model
        if state is not None:
            wanted &= jobs.c.state == state
        rows = self._read_newest(select(jobs).where(wanted), jobs, after, limit + 1)
        following = rows[limit - 1].id if len(rows) > limit else None
        shown = tuple(map(_to_job_record, rows[:limit]))
        return Page(shown, following, self._count_rows(wanted))

    def count_open(self) -> int:
        """Return the number of queued and running jobs."""
        return self._count_rows(_IS_OPEN)

    def read_newest_event(self) -> int | None:
        """Return the number of the newest event. If it has changed, there may be new work."""
        newest: int | None = self._database.read_value(select(func.max(events.c.id)))
        return newest

    def claim(
        self, owner: str, seconds: int = LEASE_SECONDS, *, kinds: Iterable[Kind] = KINDS
    ) -> JobRecord | None:
        """Claim a queued job, or a job whose worker has ended; return None if there is none.

        Tenants take turns: the next job is the oldest job of the tenant that has waited longest
        since its last start.

        Parameters
        ----------
        owner : str
            Name of the thread, from `letheon.ledger.leases.owner_name`.
        seconds : int
            Length of the lease. Another worker may take over if `renew` is not called in this time.
        kinds : iterable of str
            Kinds of jobs to take.
        """
        query = _open_jobs(list(kinds))
        # Avoid a write transaction if there is nothing to claim.
        with self._database.reading() as conn:
            if self._find_next(conn, query, seconds) is None:
                return None
        query = query.with_for_update(skip_locked=True)
        with self._database.transaction() as conn:
            while (row := self._find_next(conn, query, seconds)) is not None:
                job = self._start_job(conn, row, owner, seconds)
                if job is not None:
                    return job
        return None

    def _find_next(self, conn: Connection, query: Select[Any], seconds: int) -> Row[Any] | None:
        """Return the next job that may be started; None if there is none."""
        now = self._clock()
        for row in _order_by_turn(conn, list(conn.execute(query))):
            is_held = row.state == "running" and leases.is_current(row.lease_until, now, seconds)
            if not is_held or leases.is_dead(_read_holder(row.owner)):
                return row
        return None

    def _start_job(
        self, conn: Connection, row: Row[Any], owner: str, seconds: int
    ) -> JobRecord | None:
        """Start a job; return None if it was started too often and has now failed."""
        now, starts = self._clock(), _count_starts(row.owner) + 1
        mine = change(jobs).where(jobs.c.id == row.id)
        if starts > MOST_STARTS:
            words = f"its worker ended {MOST_STARTS} times before the job was done"
            ended = _end_values("failed", {"code": "worker-ended", "words": words}, now)
            conn.execute(mine.values(ended))
            return None
        name = f"{starts} {secrets.token_hex(8)} {owner}"
        values = {"state": "running", "started_at": now, "owner": name}
        conn.execute(mine.values(**values, lease_until=now + seconds))
        return _read_job(conn, row.id)

    def renew(self, job: JobRecord, seconds: int = LEASE_SECONDS) -> None:
        """Extend the lease of a job; raise `StaleWorkerError` if the claim is lost."""
        self._database.run_transaction(
            partial(_change_own, job, lease_until=self._clock() + seconds)
        )

    def add_progress(
        self, job: JobRecord, words: str, finding: Mapping[str, Any] | None = None
    ) -> None:
        """Add a line of progress; raise `StaleWorkerError` if the claim is lost.

        Lines over the limit are dropped. Text and values must contain only counts, codes and names
        of models, never personal data.
        """
        line = {"at": self._clock(), "words": words, "found": finding}
        with self._database.transaction() as conn:
            query = select(jobs.c.progress).where(jobs.c.id == job.id).with_for_update()
            lines = json.loads(conn.execute(query).scalar_one())
            if len(lines) < _MOST_LINES:
                lines.append(line)
            _change_own(job, conn, progress=json.dumps(lines))

    def finish(self, job: JobRecord, result: Mapping[str, Any]) -> None:
        """Record the result of a completed job; raise `StaleWorkerError` if the claim is lost."""
        self._database.run_transaction(
            partial(_change_own, job, **_end_values("done", result, self._clock()))
        )

    def fail(self, job: JobRecord, code: str, words: str) -> None:
        """Record that a job failed; raise `StaleWorkerError` if the claim is lost."""
        ended = _end_values("failed", {"code": code, "words": words}, self._clock())
        self._database.run_transaction(partial(_change_own, job, **ended))

    def release(self, job: JobRecord) -> None:
        """Return a job to the queue without counting this start.

        Raise `StaleWorkerError` if the claim is lost.
        """
        undone: dict[str, Any] = {"state": "queued", "lease_until": 0}
        undone["owner"] = f"{job.starts - 1} - -"
        self._database.run_transaction(partial(_change_own, job, **undone))

    def forget_old(self) -> int:
        """Delete jobs that ended more than 90 days ago; return the number of deleted jobs."""
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
    """Change a job if the caller still holds its claim; raise `StaleWorkerError` otherwise."""
    mine = (jobs.c.id == job.id) & (jobs.c.owner == job.owner) & (jobs.c.state == "running")
    if conn.execute(change(jobs).where(mine).values(**values)).rowcount != 1:
        raise StaleWorkerError(
            "another worker took over this job, or the job has ended; nothing was changed"
        )


def _end_values(state: State, result: Mapping[str, Any], now: int) -> dict[str, Any]:
    return {"state": state, "result": json.dumps(result), "finished_at": now, "lease_until": 0}


def _belongs_to(tenant: str | None) -> Any:
    return true() if tenant is None else jobs.c.tenant == tenant


def _order_by_turn(conn: Connection, rows: list[Row[Any]]) -> list[Row[Any]]:
    """Sort jobs so that tenants take turns; the jobs of a tenant stay oldest first."""
    if len({row.tenant for row in rows}) < 2:
        return rows
    kinds = {row.kind for row in rows}
    query = select(jobs.c.tenant, func.max(jobs.c.started_at)).where(jobs.c.kind.in_(kinds))
    served = {tenant: at or 0 for tenant, at in conn.execute(query.group_by(jobs.c.tenant))}
    return sorted(rows, key=lambda row: served[row.tenant])


def _require_room(conn: Connection, kind: Kind, tenant: str | None, by: str | None) -> None:
    """Raise `JobsFullError` if too many jobs are waiting, for the token, the tenant or in total.

    Jobs that only read and jobs that change a model are counted separately.
    """
    is_waiting = jobs.c.kind.in_(CHANGING_KINDS if kind in CHANGING_KINDS else READING_KINDS) & (
        jobs.c.state == "queued"
    )
    waiting = conn.execute(select(jobs.c.tenant, jobs.c.created_by).where(is_waiting)).all()
    of_token = sum(row.created_by == by for row in waiting)
    of_tenant = sum(row.tenant == tenant for row in waiting)
    if by is not None and of_token >= _MOST_OF_TOKEN:
        raise JobsFullError(f"this token already has {of_token} waiting jobs; try again later")
    if tenant is not None and of_tenant >= _MOST_OF_TENANT:
        raise JobsFullError(f"this tenant already has {of_tenant} waiting jobs; try again later")
    if len(waiting) >= _MOST_QUEUED:
        raise JobsFullError(
            "too many jobs are waiting in total; try again later, and check that a worker is "
            "running"
        )


def _read_job(conn: Connection, job_id: str) -> JobRecord:
    return _to_job_record(conn.execute(select(jobs).where(jobs.c.id == job_id)).one())


def _count_starts(owner: str | None) -> int:
    return 0 if owner is None else int(owner.partition(" ")[0])


def _read_holder(owner: str | None) -> str:
    """Return the name of the worker thread in a claim; "/////" if it has none."""
    name = "" if owner is None else owner.rpartition(" ")[2]
    return name if name.count("/") == 5 else "/////"


def _to_job_record(row: Row[Any]) -> JobRecord:
    lines = json.loads(row.progress)
    outcome: Any = None if row.result is None else json.loads(row.result)
    return record_from(
        JobRecord,
        row._mapping,
        is_over=row.state in ("done", "failed"),
        progress=tuple(ProgressLine(to_datetime(line["at"]), line["words"]) for line in lines),
        result=outcome if row.state == "done" else None,
        problem=JobProblem(**outcome) if row.state == "failed" else None,
        asked=json.loads(row.asked),
        findings=tuple(line["found"] for line in lines if line.get("found") is not None),
    )
