"""Jobs: asked for once, held by one worker at a time, never lost."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import select

import letheon.ledger.db.jobs as job_store
from letheon.exceptions import StaleWorkerError
from letheon.ledger.db.database import Database
from letheon.ledger.db.jobs import MOST_STARTS, JobRecord, Jobs, JobsFullError
from letheon.ledger.leases import owner_name
from letheon.ledger.tables import actions, jobs
from tests.ledger.databases import SettableClock, database, kind, place  # noqa: F401
from tests.service.desks import Desk

LEASE = 60
DAY = 86_400


class _Core:
    """As much of a ledger as jobs need."""

    def __init__(self, opened: Database, clock: SettableClock) -> None:
        self.database, self.clock, self.uptime = opened, clock, None


class _Bare:
    def __init__(self, opened: Database, clock: SettableClock) -> None:
        self._core = _Core(opened, clock)


def _jobs_of(opened: Database, clock: SettableClock) -> Jobs:
    bare: Any = _Bare(opened, clock)
    return Jobs(bare)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def desk_jobs(database: Database, clock: SettableClock) -> Jobs:  # noqa: F811
    """Jobs on each kind of database."""
    return _jobs_of(database, clock)


def _claimed(queue: Jobs, owner: str = "a") -> JobRecord:
    job = queue.claim(owner, LEASE)
    assert job is not None
    return job


def test_a_job_is_claimed_told_and_finished(desk_jobs: Jobs, clock: SettableClock) -> None:
    asked = desk_jobs.add("apply", tenant="default", model="risk", asked={"x": 1}, by="ab")
    job = _claimed(desk_jobs)
    desk_jobs.add_progress(job, "begins", {"level": "V0"})
    clock.now += 5
    desk_jobs.finish(job, {"steps": []})
    job_record = desk_jobs.find(asked.id)
    assert job_record is not None
    assert job_record.state == "done"
    assert job_record.result == {"steps": []}
    assert [item.words for item in job_record.progress] == ["begins"]
    assert job_record.findings == ({"level": "V0"},)
    assert job_record.finished_at == datetime.fromtimestamp(clock.now, UTC)
    assert job_record.created_by == "ab"
    assert desk_jobs.claim("a", LEASE) is None


def test_the_same_work_is_asked_for_once_while_it_waits(desk_jobs: Jobs) -> None:
    first = desk_jobs.add("apply", tenant="default", model="risk")
    assert desk_jobs.add("apply", tenant="default", model="risk").id == first.id
    others = [
        desk_jobs.add("retrain", tenant="default", model="risk"),
        desk_jobs.add("apply", tenant="rival", model="risk"),
        desk_jobs.add("apply", tenant="default", model="churn"),
        desk_jobs.add("apply", tenant="default", model="risk", asked={"people": 3}),
        desk_jobs.add("audit"),
    ]
    assert len({first.id, *(other.id for other in others)}) == 6
    assert _claimed(desk_jobs).id in {first.id, *(other.id for other in others)}


def test_what_is_running_can_be_asked_for_again(desk_jobs: Jobs) -> None:
    first = desk_jobs.add("apply", tenant="default", model="risk")
    _claimed(desk_jobs)
    assert desk_jobs.add("apply", tenant="default", model="risk").id != first.id


def test_threads_that_ask_at_once_get_one_job(desk_jobs: Jobs) -> None:
    items: list[str] = []
    threads = [
        threading.Thread(target=lambda: items.append(desk_jobs.add("audit").id)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(items) == 8
    assert len(set(items)) == 1


def test_threads_that_claim_at_once_get_different_jobs(desk_jobs: Jobs) -> None:
    for number in range(4):
        desk_jobs.add("audit", model=f"m{number}")
    items: list[str] = []

    def claim() -> None:
        while (job := desk_jobs.claim(owner_name(), LEASE)) is not None:
            items.append(job.id)

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    claim()  # a row that was locked for a moment was skipped
    assert len(items) == len(set(items)) == 4


def test_a_lease_that_ended_is_taken_over_and_the_first_worker_is_fenced_off(
    desk_jobs: Jobs, clock: SettableClock
) -> None:
    desk_jobs.add("audit")
    first = _claimed(desk_jobs, "a")
    assert desk_jobs.claim("b", LEASE) is None
    clock.now += LEASE
    second = _claimed(desk_jobs, "b")
    assert second.id == first.id
    assert second.starts == 2
    late: list[Callable[[], None]] = [
        lambda: desk_jobs.add_progress(first, "late"),
        lambda: desk_jobs.finish(first, {}),
        lambda: desk_jobs.fail(first, "late", "late"),
        lambda: desk_jobs.renew(first),
        lambda: desk_jobs.release(first),
    ]
    for call in late:
        with pytest.raises(StaleWorkerError):
            call()
    desk_jobs.finish(second, {"passed": True})
    job_record = desk_jobs.find(first.id)
    assert job_record is not None
    assert job_record.result == {"passed": True}
    assert not job_record.progress


def test_the_same_name_claims_again_and_is_fenced_off_all_the_same(
    desk_jobs: Jobs, clock: SettableClock
) -> None:
    desk_jobs.add("audit")
    first = _claimed(desk_jobs, "a")
    clock.now += LEASE
    _claimed(desk_jobs, "a")
    with pytest.raises(StaleWorkerError):
        desk_jobs.finish(first, {})


def test_a_lease_that_is_renewed_is_not_taken_over(desk_jobs: Jobs, clock: SettableClock) -> None:
    desk_jobs.add("audit")
    job = _claimed(desk_jobs)
    for _ in range(5):
        clock.now += LEASE - 1
        desk_jobs.renew(job, LEASE)
        assert desk_jobs.claim("b", LEASE) is None


def test_a_lease_of_a_clock_that_was_ahead_does_not_last(
    desk_jobs: Jobs, clock: SettableClock
) -> None:
    desk_jobs.add("audit")
    clock.now += DAY
    _claimed(desk_jobs)
    clock.now -= DAY
    assert desk_jobs.claim("b", LEASE) is not None


@pytest.mark.parametrize("seconds", [-1, 1])
def test_clocks_that_differ_a_little_take_nothing_over(
    seconds: int, desk_jobs: Jobs, clock: SettableClock
) -> None:
    desk_jobs.add("audit")
    _claimed(desk_jobs)
    clock.now += seconds
    assert desk_jobs.claim("b", LEASE) is None


def test_a_worker_that_is_seen_to_be_dead_is_not_waited_for(desk_jobs: Jobs) -> None:
    desk_jobs.add("audit")
    alive = owner_name()
    *where, pid, started, thread = alive.split("/")
    dead = "/".join((*where, pid, str(int(started) - 1), thread))
    first = _claimed(desk_jobs, dead)
    second = _claimed(desk_jobs, alive)
    assert first.id == second.id
    assert desk_jobs.claim("b", LEASE) is None


def test_after_three_starts_a_job_has_failed(desk_jobs: Jobs, clock: SettableClock) -> None:
    job = desk_jobs.add("audit")
    for _ in range(3):
        _claimed(desk_jobs)
        clock.now += LEASE
    assert desk_jobs.claim("a", LEASE) is None
    job_record = desk_jobs.find(job.id)
    assert job_record is not None
    assert job_record.state == "failed"
    assert job_record.problem is not None
    assert job_record.problem.code == "worker-ended"


def test_a_job_that_is_given_back_has_not_been_started(desk_jobs: Jobs) -> None:
    job = desk_jobs.add("audit")
    for _ in range(MOST_STARTS + 2):
        desk_jobs.release(_claimed(desk_jobs))
    job_record = desk_jobs.find(job.id)
    assert job_record is not None
    assert job_record.state == "queued"
    assert job_record.starts == 0


def test_the_oldest_of_the_wanted_kinds_comes_first(desk_jobs: Jobs, clock: SettableClock) -> None:
    for name in ("audit", "apply", "what-if", "apply"):
        clock.now += 1
        desk_jobs.add(name, model=f"m{clock.now}")
    first = desk_jobs.claim("a", LEASE, kinds=["apply", "retrain"])
    second = desk_jobs.claim("a", LEASE, kinds=["apply", "retrain"])
    assert first is not None
    assert second is not None
    assert first.created_at < second.created_at
    assert desk_jobs.claim("a", LEASE, kinds=["apply", "retrain"]) is None


def test_too_many_jobs_are_refused(desk_jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_store, "_MOST_QUEUED", 2)
    first = desk_jobs.add("audit", model="a")
    desk_jobs.add("audit", model="b")
    with pytest.raises(JobsFullError, match="waiting"):
        desk_jobs.add("audit", model="c")
    assert desk_jobs.add("audit", model="a").id == first.id


def test_one_token_or_tenant_leaves_room_for_the_others(desk_jobs: Jobs) -> None:
    def fill(what: Any, by: str, tenant: str) -> int:
        for number in range(1000):
            try:
                desk_jobs.add(what, model=f"{by}-{number}", by=by, tenant=tenant)
            except JobsFullError:
                return number
        return 1000

    assert fill("audit", "0" * 16, "rival") == 10
    assert fill("what-if", "0" * 16, "rival") == 0, "audits and what-ifs wait for the same turn"
    assert fill("apply", "0" * 16, "rival") == 10, "what changes a model does not wait behind them"
    assert sum(fill("audit", f"{number:016d}", "rival") for number in range(1, 9)) == 30
    assert desk_jobs.add("audit", by="f" * 16, tenant="default").state == "queued"


def test_tenants_take_turns(desk_jobs: Jobs, clock: SettableClock) -> None:
    for number in range(4):
        desk_jobs.add("audit", tenant="rival", model=f"m{number}")
    clock.now += 1
    for number in range(2):
        desk_jobs.add("audit", tenant="default", model=f"m{number}")
    order = []
    for _ in range(6):
        clock.now += 1
        job = _claimed(desk_jobs)
        order.append(job.tenant)
        desk_jobs.finish(job, {})
    assert order == ["rival", "default", "rival", "default", "rival", "rival"]


def test_old_jobs_are_dropped_and_unfinished_ones_are_not(
    desk_jobs: Jobs, clock: SettableClock
) -> None:
    desk_jobs.add("audit", model="done")
    desk_jobs.finish(_claimed(desk_jobs), {})
    waiting = desk_jobs.add("audit", model="waits")
    clock.now += 90 * DAY
    assert desk_jobs.forget_old() == 0
    clock.now += 1
    assert desk_jobs.forget_old() == 1
    assert [item.id for item in desk_jobs.list_page().items] == [waiting.id]


def test_lines_of_progress_are_capped(desk_jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_store, "_MOST_LINES", 3)
    desk_jobs.add("audit")
    job = _claimed(desk_jobs)
    for number in range(5):
        desk_jobs.add_progress(job, f"line {number}")
    job_record = desk_jobs.find(job.id)
    assert job_record is not None
    assert [item.words for item in job_record.progress] == [
        "line 0",
        "line 1",
        "line 2",
    ]


def test_pages_together_are_the_whole_list(desk_jobs: Jobs, clock: SettableClock) -> None:
    for number in range(11):
        clock.now += number % 2
        desk_jobs.add("audit", tenant="default" if number % 3 else "rival", model=f"m{number}")
    clock.now += 1
    for tenant, expected in ((None, 11), ("default", 7), ("rival", 4)):
        before = {item.id for item in desk_jobs.list_page(tenant=tenant, limit=100).items}
        seen: list[str] = []
        after = None
        while (page := desk_jobs.list_page(tenant=tenant, after=after, limit=3)).items:
            seen += [item.id for item in page.items]
            desk_jobs.add("audit", model=f"newer-{tenant}-{len(seen)}", tenant="unknown")
            if (after := page.next) is None:
                break
        assert len(before) >= expected
        assert before <= set(seen)
        assert len(seen) == len(set(seen))


def test_a_cursor_that_is_none_is_refused(desk_jobs: Jobs) -> None:
    with pytest.raises(ValueError, match="not the id of an entry of this list"):
        desk_jobs.list_page(after="zebra")


def test_who_asked_is_noted(desk_jobs: Jobs, database: Database) -> None:  # noqa: F811
    job = desk_jobs.add("audit", by="0123456789abcdef")
    with database.reading() as conn:
        noted = conn.execute(select(actions)).one()
    assert (noted.token_id, noted.action, noted.about) == (
        "0123456789abcdef",
        "job.audit",
        job.id,
    )


class JobMachine(RuleBasedStateMachine):
    """Workers that claim, die, renew, finish and give back, against a table in memory."""

    opened: Database
    folder: Path

    @initialize()
    def begin(self) -> None:
        self.clock = SettableClock()
        self.queue = _jobs_of(self.opened, self.clock)
        with self.opened.transaction() as conn:
            conn.execute(jobs.delete())
        self.held: dict[str, JobRecord] = {}
        self.until: dict[str, int] = {}
        self.starts: dict[str, int] = {}
        self.over: dict[str, str] = {}
        self.stale: list[JobRecord] = []

    @rule(what=st.sampled_from(["audit", "apply"]), model=st.sampled_from(["a", "b"]))
    def add(self, what: Any, model: str) -> None:
        job = self.queue.add(what, model=model)
        assert job.id not in self.over
        assert job.id not in self.held
        self.starts.setdefault(job.id, 0)

    @rule(owner=st.sampled_from(["w1", "w2"]))
    def claim(self, owner: str) -> None:
        job = self.queue.claim(owner, LEASE)
        free = {
            start
            for start in self.starts
            if start not in self.over and self.until.get(start, 0) <= self.clock.now
        }
        for item in [item for item in free if self.starts[item] == MOST_STARTS]:
            row = self.queue.find(item)
            if row is not None and row.state == "failed":
                self.over[item] = "failed"
                free.discard(item)
        if job is None:
            assert not free
            return
        assert job.id in free
        if job.id in self.held:
            self.stale.append(self.held[job.id])
        self.held[job.id], self.until[job.id] = job, self.clock.now + LEASE
        self.starts[job.id] += 1
        assert job.starts == self.starts[job.id] <= MOST_STARTS

    @precondition(lambda self: self.held)
    @rule(data=st.data(), end=st.sampled_from(["finish", "fail", "release", "renew", "progress"]))
    def act(self, data: st.DataObject, end: str) -> None:
        job = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        if job.id in self.over:  # it was started too often
            del self.held[job.id]
            return
        calls: dict[str, Any] = {
            "finish": lambda: self.queue.finish(job, {}),
            "fail": lambda: self.queue.fail(job, "code", "words"),
            "release": lambda: self.queue.release(job),
            "renew": lambda: self.queue.renew(job, LEASE),
            "progress": lambda: self.queue.add_progress(job, "words"),
        }
        calls[end]()
        if end in ("finish", "fail"):
            self.over[job.id] = "done" if end == "finish" else "failed"
        if end == "renew":
            self.until[job.id] = self.clock.now + LEASE
        if end == "release":
            self.until[job.id] = 0
            self.starts[job.id] -= 1
        if end in ("finish", "fail", "release"):
            del self.held[job.id]

    @precondition(lambda self: self.stale)
    @rule()
    def late(self) -> None:
        for job in self.stale:
            with pytest.raises(StaleWorkerError):
                self.queue.finish(job, {"late": True})

    @rule(seconds=st.sampled_from([1, LEASE - 1, LEASE]))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @invariant()
    def nothing_is_lost(self) -> None:
        with self.opened.reading() as conn:
            rows = {row.id: row for row in conn.execute(select(jobs))}
        assert rows.keys() == self.starts.keys()
        for job_id, state in self.over.items():
            assert rows[job_id].state == state
            assert "late" not in json.loads(rows[job_id].result)


def test_any_sequence_of_workers_loses_nothing(tmp_path: Path) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    from tests.ledger.databases import open_kind
    from tests.sharded.people import examples

    JobMachine.opened = open_kind("sqlite", tmp_path, create=True)
    try:
        run_state_machine_as_test(JobMachine, settings=examples(25))
    finally:
        JobMachine.opened.dispose()
    assert JobMachine.opened is not None


@pytest.fixture
def some(desk: Desk) -> Desk:
    outcome = Jobs(desk.ledger)
    outcome.add("apply", tenant="default", model="risk")
    outcome.add("audit", tenant="default")
    outcome.add("apply", tenant="rival", model="churn")
    outcome.add("audit")
    return desk


def test_lists_hold_what_a_token_may_see(some: Desk) -> None:
    def seen(name: str) -> list[tuple[str, str | None]]:
        page = some.client(name).get("/api/v1/jobs").json()
        assert page["total"] == len(page["items"])
        return sorted(((item["kind"], item["tenant"]) for item in page["items"]), key=str)

    everything = [("apply", "default"), ("apply", "rival"), ("audit", None), ("audit", "default")]
    assert seen("admin") == sorted(everything, key=str)
    assert seen("approver@rival") == [("apply", "rival")]
    assert seen("auditor@default") == [("apply", "default"), ("audit", "default")]
    assert some.client("requester").get("/api/v1/jobs").status_code == 403


def test_another_tenants_job_is_as_if_it_were_not_there(some: Desk) -> None:
    job = Jobs(some.ledger).list_page(tenant="rival").items[0]
    theirs = some.client("operator@default").get(f"/api/v1/jobs/{job.id}")
    none = some.client("operator@default").get(f"/api/v1/jobs/{'0' * 32}")
    assert theirs.status_code == none.status_code == 404
    assert theirs.json() | {"instance": ""} == none.json() | {"instance": ""}
    assert some.client("operator@rival").get(f"/api/v1/jobs/{job.id}").json()["model"] == "churn"


def test_an_audit_is_not_shown_to_who_reads_batches_only(some: Desk) -> None:
    job = Jobs(some.ledger).list_page(tenant="default", kinds=["audit"]).items[0]
    assert some.client("approver").get(f"/api/v1/jobs/{job.id}").status_code == 404
    assert some.client("auditor").get(f"/api/v1/jobs/{job.id}").status_code == 200


def test_too_many_jobs_are_a_429_that_says_when_to_come_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_store, "_MOST_QUEUED", 0)
    answer = desk.client("auditor").post("/api/v1/audits", json={})
    assert answer.status_code == 429
    assert answer.headers["retry-after"]
