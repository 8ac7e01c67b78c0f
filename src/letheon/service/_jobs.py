"""Jobs: work asked for at the desk that takes long; a worker does it.

A job is a row. Whoever claims it holds a lease that ends by itself, under a name that no other
claim has: every later change compares that name, so a worker that was thought dead changes nothing
any more. After `MOST_STARTS` claims that ended with their worker a job has failed.

Nobody can keep the others waiting: so many jobs of one token, of one tenant and of all may wait,
those that only look and those that change a model counted apart; and tenants take turns.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
)
from sqlalchemy import update as change

from letheon.exceptions import LedgerBusyError, StaleWorkerError
from letheon.ledger import Ledger, leases
from letheon.ledger.db.elapsed import proven_now
from letheon.ledger.tables import jobs, log
from letheon.service._tokens import note_action

__all__ = [
    "CURSOR",
    "JOB_ID",
    "KINDS",
    "LONG",
    "MOST_STARTS",
    "SHORT",
    "STATES",
    "Job",
    "JobPage",
    "Jobs",
    "JobsFullError",
    "Kind",
    "Line",
    "State",
]

Kind = Literal["apply", "retrain", "what-if", "audit"]
State = Literal["queued", "running", "done", "failed"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Those that change a model, and those that only look.
SHORT: tuple[Kind, ...] = ("apply", "retrain")
LONG: tuple[Kind, ...] = ("audit", "what-if")
STATES: tuple[State, ...] = get_args(State)

JOB_ID = "^[0-9a-f]{32}$"
CURSOR = "^[0-9]{1,12}-[0-9a-f]{32}$"
MOST_STARTS = 3
LEASE_SECONDS = 60
_MOST_QUEUED = 200
_MOST_OF_TENANT = 40
_MOST_OF_TOKEN = 10
_MOST_LINES = 500
_KEPT_DAYS = 90
_DAY = 86_400


class JobsFullError(LedgerBusyError):
    """So many jobs wait already that another one would not be done soon."""


@dataclass(frozen=True)
class Line:
    """One line of progress: when, in words, and perhaps what was found, as plain values."""

    at: int
    words: str
    found: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Job:
    """Work asked for at the desk.

    Attributes
    ----------
    id : str
        Random, 32 hexadecimal digits.
    kind : {"apply", "retrain", "what-if", "audit"}
        What is to be done.
    tenant, model : str or None
        About whose things, and which model; None for all.
    asked : dict
        Options, as plain values.
    state : {"queued", "running", "done", "failed"}
        A job whose worker died is "running" until another one takes it over.
    created_at, started_at, finished_at : int or None
        Seconds since 1970.
    created_by : str or None
        The token that asked.
    progress : tuple of Line
        What was told so far, by all workers that were at it.
    result : dict or None
        What came out; of a failed job ``code`` and ``words``.
    owner : str or None
        Number of the start, name of the claim, and the thread that made it.
    """

    id: str
    kind: Kind
    tenant: str | None
    model: str | None
    asked: dict[str, Any]
    state: State
    created_at: int
    created_by: str | None
    started_at: int | None
    finished_at: int | None
    progress: tuple[Line, ...]
    result: dict[str, Any] | None
    owner: str | None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ("done", "failed")

    @property
    def starts(self) -> int:
        """How often it was begun."""
        return _starts(self.owner)


@dataclass(frozen=True)
class JobPage:
    """A part of the list of jobs, newest first; `next` is the cursor of the part after it."""

    items: tuple[Job, ...]
    next: str | None
    total: int = field(default=0)


class Jobs:
    """The jobs of a desk.

    Parameters
    ----------
    ledger : Ledger
        Whose desk it is; its clock is used.

    Guarantee
    ---------
    What one claim holds no other one changes. A job is begun at most `MOST_STARTS` times by
    workers that did not come to an end with it, and is never lost: it is queued, running under a
    lease, done, or failed.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._core = ledger._core
        self._database = ledger._core.database
        self._clock = ledger._core.clock

    def add(
        self,
        kind: Kind,
        *,
        tenant: str | None = None,
        model: str | None = None,
        asked: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> Job:
        """Ask for work; the same work that nobody has begun yet is given back instead.

        Raises
        ------
        JobsFullError
            Too many wait already: of this token, of this tenant, or of all.
        """
        text = _canonical(asked or {})
        same = _is(jobs.c.tenant, tenant) & _is(jobs.c.model, model)
        same &= (jobs.c.kind == kind) & (jobs.c.asked == text) & (jobs.c.state == "queued")
        with self._database.transaction() as conn:
            _one_at_a_time(conn)
            found = conn.execute(select(jobs).where(same).limit(1)).first()
            if found is not None:
                return _job(found)
            _require_room(conn, kind, tenant, by)
            now, job_id = self._clock(), secrets.token_hex(16)
            conn.execute(
                insert(jobs).values(
                    id=job_id,
                    kind=kind,
                    tenant=tenant,
                    model=model,
                    asked=text,
                    state="queued",
                    created_at=now,
                    created_by=by,
                    progress="[]",
                )
            )
            note_action(conn, now, by, f"job.{kind}", job_id)
            return _one(conn, job_id)

    def find(self, job_id: str, *, tenant: str | None = None) -> Job | None:
        """Return a job; None if there is none, or it is not of this tenant."""
        query = select(jobs).where(_of(tenant), jobs.c.id == job_id)
        with self._database.reading() as conn:
            row = conn.execute(query).first()
        return None if row is None else _job(row)

    def page(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        kinds: Iterable[Kind] = KINDS,
        state: State | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> JobPage:
        """Return jobs, newest first; `after` is the cursor that the part before gave.

        Raises
        ------
        ValueError
            `after` is no cursor.
        """
        wanted = _of(tenant) & jobs.c.kind.in_(list(kinds))
        if model is not None:
            wanted &= jobs.c.model == model
        if state is not None:
            wanted &= jobs.c.state == state
        query = select(jobs).where(wanted, _older(after))
        query = query.order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(limit + 1)
        with self._database.reading() as conn:
            total = conn.scalar(select(func.count()).select_from(jobs).where(wanted)) or 0
            found = [_job(row) for row in conn.execute(query)]
        items = tuple(found[:limit])
        more = f"{items[-1].created_at}-{items[-1].id}" if len(found) > limit else None
        return JobPage(items, more, total)

    def unfinished(self, kinds: Iterable[Kind], *, tenant: str, model: str) -> Job | None:
        """Return the oldest job of a model that is queued or running."""
        wanted = (jobs.c.tenant == tenant) & (jobs.c.model == model)
        wanted &= jobs.c.kind.in_(list(kinds)) & jobs.c.state.in_(("queued", "running"))
        with self._database.reading() as conn:
            row = conn.execute(select(jobs).where(wanted).order_by(jobs.c.created_at)).first()
        return None if row is None else _job(row)

    def claim(
        self, owner: str, seconds: int = LEASE_SECONDS, *, kinds: Iterable[Kind] = KINDS
    ) -> Job | None:
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
        allowed = list(kinds)
        # A look costs no writing.
        with self._database.reading() as conn:
            if self._free(conn, _waiting(allowed), seconds) is None:
                return None
        query = _waiting(allowed).with_for_update(skip_locked=True)
        with self._database.transaction() as conn:
            while (row := self._free(conn, query, seconds)) is not None:
                taken = self._start(conn, row, owner, seconds)
                if taken is not None:
                    return taken
        return None

    def _free(self, conn: Connection, query: Select[Any], seconds: int) -> Row[Any] | None:
        """Return the job that may be begun and is next."""
        now = self._clock()
        for row in _in_turn(conn, list(conn.execute(query))):
            is_held = row.state == "running" and leases.is_current(row.lease_until, now, seconds)
            if not is_held or leases._is_dead(_holder(row.owner)):
                return row
        return None

    def _start(self, conn: Connection, row: Row[Any], owner: str, seconds: int) -> Job | None:
        """Begin a job; None if it was begun too often and has failed by that."""
        now, starts = self._clock(), _starts(row.owner) + 1
        if starts > MOST_STARTS:
            words = f"its worker ended {MOST_STARTS} times before it was done"
            _end(conn, row.id, "failed", {"code": "worker-ended", "words": words}, now)
            return None
        name = f"{starts} {secrets.token_hex(8)} {owner}"
        values = {"state": "running", "started_at": now, "owner": name}
        mine = change(jobs).where(jobs.c.id == row.id)
        conn.execute(mine.values(**values, lease_until=now + seconds))
        return _one(conn, row.id)

    def renew(self, job: Job, seconds: int = LEASE_SECONDS) -> None:
        """Put the end of the lease off, or raise `StaleWorkerError`."""
        with self._database.transaction() as conn:
            self._held(conn, job, lease_until=self._clock() + seconds)

    def progress(self, job: Job, words: str, found: Mapping[str, Any] | None = None) -> None:
        """Add a line of progress, or raise `StaleWorkerError`; of too many the last are left out.

        Words and values hold counts, codes and names of models, never anything of a person.
        """
        line = {"at": self._clock(), "words": words, "found": found}
        with self._database.transaction() as conn:
            query = select(jobs.c.progress).where(jobs.c.id == job.id).with_for_update()
            lines = json.loads(conn.execute(query).scalar_one())
            if len(lines) < _MOST_LINES:
                lines.append(line)
            self._held(conn, job, progress=json.dumps(lines))

    def finish(self, job: Job, result: Mapping[str, Any]) -> None:
        """Record that a job is done and what came out, or raise `StaleWorkerError`."""
        with self._database.transaction() as conn:
            self._held(conn, job)
            _end(conn, job.id, "done", result, self._clock())

    def fail(self, job: Job, code: str, words: str) -> None:
        """Record that a job could not be done, or raise `StaleWorkerError`."""
        with self._database.transaction() as conn:
            self._held(conn, job)
            _end(conn, job.id, "failed", {"code": code, "words": words}, self._clock())

    def release(self, job: Job) -> None:
        """Give a job back undone: this start does not count. `StaleWorkerError` if it is lost."""
        with self._database.transaction() as conn:
            self._held(conn, job, state="queued", owner=f"{job.starts - 1} - -", lease_until=0)

    def forget_old(self) -> int:
        """Drop jobs that ended 90 days ago; return how many."""
        old = jobs.c.finished_at < proven_now(self._core) - _KEPT_DAYS * _DAY
        with self._database.reading() as conn:
            if conn.scalar(select(func.count()).select_from(jobs).where(old)) == 0:
                return 0
        with self._database.transaction() as conn:
            return int(conn.execute(delete(jobs).where(old)).rowcount)

    @staticmethod
    def _held(conn: Connection, job: Job, **values: Any) -> None:
        """Change a job that is still the caller's; else raise, and leave it alone."""
        mine = (jobs.c.id == job.id) & (jobs.c.owner == job.owner) & (jobs.c.state == "running")
        same = values or {"state": "running"}
        if conn.execute(change(jobs).where(mine).values(**same)).rowcount != 1:
            raise StaleWorkerError("another worker took this job over, or it has ended")


def _waiting(kinds: list[Kind]) -> Select[Any]:
    wanted = jobs.c.kind.in_(kinds) & jobs.c.state.in_(("queued", "running"))
    return select(jobs).where(wanted).order_by(jobs.c.created_at, jobs.c.id)


def _end(conn: Connection, job_id: str, state: State, result: Mapping[str, Any], now: int) -> None:
    values = {"state": state, "result": json.dumps(result), "finished_at": now, "lease_until": 0}
    conn.execute(change(jobs).where(jobs.c.id == job_id).values(values))


def _canonical(asked: Mapping[str, Any]) -> str:
    return json.dumps(asked, sort_keys=True, separators=(",", ":"))


def _is(column: Any, value: str | None) -> ColumnElement[bool]:
    found: ColumnElement[bool] = column.is_(None) if value is None else column == value
    return found


def _of(tenant: str | None) -> ColumnElement[bool]:
    return jobs.c.id.is_not(None) if tenant is None else jobs.c.tenant == tenant


def _older(after: str | None) -> ColumnElement[bool]:
    if after is None:
        return jobs.c.id.is_not(None)
    at, _, job_id = after.partition("-")
    if not (at.isdecimal() and at.isascii() and job_id):
        raise ValueError("after is no cursor; give what the part before gave as next")
    return or_(jobs.c.created_at < int(at), and_(jobs.c.created_at == int(at), jobs.c.id < job_id))


def _one_at_a_time(conn: Connection) -> None:
    """Let two who ask for the same thing at once wait for each other."""
    conn.execute(select(log.c.id).with_for_update()).one()


def _in_turn(conn: Connection, rows: list[Row[Any]]) -> list[Row[Any]]:
    """Return jobs, the oldest first, in the order in which tenants take turns."""
    if len({row.tenant for row in rows}) < 2:
        return rows
    kinds = {row.kind for row in rows}
    query = select(jobs.c.tenant, func.max(jobs.c.started_at)).where(jobs.c.kind.in_(kinds))
    served = {tenant: at or 0 for tenant, at in conn.execute(query.group_by(jobs.c.tenant))}
    return sorted(rows, key=lambda row: served[row.tenant])


def _require_room(conn: Connection, kind: Kind, tenant: str | None, by: str | None) -> None:
    """Refuse a job if too many wait that are done in the same turn."""
    those = jobs.c.kind.in_(SHORT if kind in SHORT else LONG) & (jobs.c.state == "queued")
    query = select(jobs.c.tenant, jobs.c.created_by).where(those)
    waiting = conn.execute(query).all()
    of_token = sum(row.created_by == by for row in waiting)
    of_tenant = sum(row.tenant == tenant for row in waiting)
    if by is not None and of_token >= _MOST_OF_TOKEN:
        raise JobsFullError(f"{of_token} jobs of this token wait already")
    if tenant is not None and of_tenant >= _MOST_OF_TENANT:
        raise JobsFullError(f"{of_tenant} jobs of this tenant wait already")
    if len(waiting) >= _MOST_QUEUED:
        raise JobsFullError("too many jobs wait already; is a worker running?")


def _one(conn: Connection, job_id: str) -> Job:
    return _job(conn.execute(select(jobs).where(jobs.c.id == job_id)).one())


def _starts(owner: str | None) -> int:
    return 0 if owner is None else int(owner.partition(" ")[0])


def _holder(owner: str | None) -> str:
    """Return who made the claim; nobody is an owner whose process cannot be looked up."""
    name = "" if owner is None else owner.rpartition(" ")[2]
    return name if name.count("/") == 5 else "/////"


def _job(row: Row[Any]) -> Job:
    lines = tuple(Line(**line) for line in json.loads(row.progress))
    return Job(
        id=row.id,
        kind=row.kind,
        tenant=row.tenant,
        model=row.model,
        asked=json.loads(row.asked),
        state=row.state,
        created_at=row.created_at,
        created_by=row.created_by,
        started_at=row.started_at,
        finished_at=row.finished_at,
        progress=lines,
        result=None if row.result is None else json.loads(row.result),
        owner=row.owner,
    )
