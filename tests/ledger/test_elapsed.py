"""Steps that cannot be undone wait for time that has passed for certain, not for a clock."""

import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select, update

from letheon.exceptions import BlockedIdsError, ClockError
from letheon.ledger import Ledger, Policy
from letheon.ledger.db.elapsed import ProvenTime, proven_now, read_uptime, seconds_ahead
from letheon.ledger.db.jobs import Jobs
from letheon.ledger.requests.deadlines import due_on
from letheon.ledger.tables import blocked, events, meta, requests
from letheon.ledger.worker.worker import forget_closed
from tests.ledger.databases import NOON, LedgerSetup, SettableClock, requests_of, sqlite_desk
from tests.ledger.homes import IDS, X, Y, fitted, make, person

__all__ = ["sqlite_desk"]

DAY = 86_400
YEARS = 3 * 366 * DAY


class Machine:
    """A machine whose clock may be wrong, and whose uptime is not."""

    def __init__(self, name: str = "a") -> None:
        self.true = NOON
        self.offset = 0
        self.name = name
        self.n_boots = 0
        self.booted = NOON - 1000

    def clock(self) -> int:
        return self.true + self.offset

    def uptime(self) -> tuple[str, int]:
        return f"{self.name}-{self.n_boots}", self.true - self.booted

    def reboot(self, seconds_off: int) -> None:
        self.true += seconds_off
        self.booted = self.true
        self.n_boots += 1

    def open(self, ledger: Ledger) -> Ledger:
        """Let a ledger live by this machine's clock and uptime."""
        core = dataclasses.replace(ledger._core, clock=self.clock, uptime=self.uptime)
        opened = Ledger(core)
        with core.database.transaction() as conn:
            conn.execute(delete(meta).where(meta.c.key == "proven_time"))
        proven_now(core)
        return opened


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def ledger(tmp_path: Path, machine: Machine) -> Iterator[Ledger]:
    with make(tmp_path, clock=SettableClock(NOON)) as made:
        yield machine.open(made)


def test_a_clock_that_is_ahead_once_unblocks_no_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    with Ledger.create(tmp_path / "home", name="test") as ledger:
        ledger.models.register(fitted(), X, Y, ids=IDS, name="risk")
        request = ledger.requests.submit([person(1)], model="risk", verified=True)
        ledger.run_once(force=True)
        ledger.requests.answer(request.id)
        with monkeypatch.context() as ahead:
            ahead.setattr("time.time", lambda: now + YEARS)
            ledger.run_once()
        ledger.accept_clock()
        with pytest.raises(BlockedIdsError):
            ledger.models.register(fitted(), X, Y, ids=IDS, name="again")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 300 * DAY)),
        st.tuples(st.just("jump"), st.sampled_from([0, 600, 10 * DAY, YEARS, -YEARS, -DAY])),
        st.tuples(st.just("reboot"), st.integers(0, 200 * DAY)),
        st.tuples(st.just("confirm"), st.just(0)),
        st.tuples(st.just("other"), st.integers(0, 10 * DAY)),
    ),
    max_size=30,
)


@given(STEPS)
def test_proven_time_is_never_ahead_of_the_true_time(steps: list[tuple[str, int]]) -> None:
    """Whatever clocks do: jump forward and back, machines that are off, two of them."""
    machines = Machine("a"), Machine("b")
    machine, proven = machines[0], ProvenTime(NOON, {}).advance_to(*machines[0].uptime())
    for what, amount in steps:
        if what == "wait":
            machine.true += amount
        elif what == "jump":
            machine.offset = amount
        elif what == "reboot":
            machine.reboot(amount)
        elif what == "other":
            later, machine = machine.true, machines[machine is machines[0]]
            machine.true = later + amount
        else:  # an operator confirms a clock that is right
            machine.offset = 0
            proven = ProvenTime(machine.clock(), {}).advance_to(*machine.uptime())
        before, proven = proven, proven.advance_to(*machine.uptime())
        assert before.at <= proven.at <= machine.true
        assert len(proven.boots) <= 32


def test_proven_time_keeps_up_while_a_machine_runs() -> None:
    first, second = Machine("a"), Machine("b")
    proven = ProvenTime(NOON, {}).advance_to(*first.uptime()).advance_to(*second.uptime())
    for hours in range(1, 100):
        machine = (first, second)[hours % 3 == 0]
        first.true = second.true = NOON + hours * 3600
        proven = proven.advance_to(*machine.uptime())
        assert proven.at == NOON + hours * 3600
    for number in range(100):
        first.reboot(600)
        proven = proven.advance_to(*first.uptime())
        first.true += 3600
        proven = proven.advance_to(*first.uptime())
        assert first.true - proven.at == 600 * (number + 1)


@settings(max_examples=12)
@given(STEPS)
def test_no_tag_is_forgotten_before_its_true_end(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        desk, machine = LedgerSetup(Path(folder), "sqlite", Path(folder)), Machine()
        core = dataclasses.replace(desk.core, clock=machine.clock, uptime=machine.uptime)
        proven_now(core)
        request = desk.submit(1, core=core, verified=True)
        requests_of(core).cancel(request.id)
        closed = machine.true
        for what, amount in [*steps, ("look", 0)]:
            if what == "wait":
                machine.true += amount
            elif what == "jump":
                machine.offset = amount
            elif what == "reboot":
                machine.reboot(amount)
            n_forgotten = 0
            with contextlib.suppress(ClockError):
                n_forgotten = forget_closed(core)
            assert not n_forgotten or machine.true >= closed + 729 * DAY
        desk.database.dispose()


def test_tags_go_when_the_time_has_passed(sqlite_desk: LedgerSetup) -> None:
    machine = Machine()
    core = dataclasses.replace(sqlite_desk.core, clock=machine.clock, uptime=machine.uptime)
    assert proven_now(core) == NOON
    request = sqlite_desk.submit(1, core=core, verified=True)
    requests_of(core).cancel(request.id)
    machine.offset = YEARS
    assert forget_closed(core) == 0
    machine.offset, machine.true = 0, NOON + 732 * DAY
    assert forget_closed(core) == 1


def test_a_hold_does_not_end_because_a_clock_is_ahead(ledger: Ledger, machine: Machine) -> None:
    request = ledger.requests.submit([person(1)], model="risk", verified=True)
    ledger.requests.hold(
        request.id, "litigation-hold", datetime.fromtimestamp(NOON + 90 * DAY, UTC)
    )
    machine.offset = YEARS
    ledger.run_once(force=True)
    assert ledger.requests.get(request.id).state == "on_hold"
    machine.offset = 0
    machine.true += 91 * DAY
    ledger.run_once(force=True)
    assert ledger.requests.get(request.id).state == "purged"


def test_a_ledger_that_slept_takes_requests_and_waits_for_an_operator(
    ledger: Ledger, machine: Machine
) -> None:
    request = ledger.requests.submit([person(1)], model="risk", verified=True)
    ledger.requests.hold(
        request.id, "litigation-hold", datetime.fromtimestamp(NOON + 20 * DAY, UTC)
    )
    machine.reboot(100 * DAY)
    other = ledger.requests.submit([person(2)], model="risk", verified=True)
    steps = ledger.run_once(force=True)
    assert ("waits", "clock-unconfirmed") in {(step.what, step.detail) for step in steps}
    assert ledger.requests.get(other.id).state == "purged"
    assert ledger.requests.get(request.id).state == "on_hold"
    finding = next(one for one in ledger.doctor() if one.check == "clock")
    assert finding.level == "error"
    assert "100.0 days ahead" in finding.text
    assert ledger.accept_clock()
    assert not ledger.accept_clock()
    assert [one.level for one in ledger.doctor() if one.check == "clock"] == ["ok"]
    ledger.run_once(force=True)
    assert ledger.requests.get(request.id).state == "purged"
    ledger.log.checkpoint()
    entries = ledger.log.entries(limit=500).items
    confirmed = [entry.details for entry in entries if entry.kind == "clock-confirmed"]
    assert confirmed == [{"seconds": 100 * DAY}]


def test_a_short_sleep_needs_no_operator(ledger: Ledger, machine: Machine) -> None:
    machine.reboot(3 * DAY)
    assert ledger.run_once() == ()
    assert [finding.level for finding in ledger.doctor() if finding.check == "clock"] == ["ok"]
    machine.reboot(1)
    assert [step.detail for step in ledger.run_once()] == ["clock-unconfirmed"]


def test_the_limit_is_a_setting(tmp_path: Path, machine: Machine) -> None:
    from datetime import timedelta

    policy = Policy(clock_ahead=timedelta(hours=1))
    with make(tmp_path, clock=SettableClock(NOON), policy=policy) as made:
        ledger = machine.open(made)
        machine.reboot(3601)
        assert [step.detail for step in ledger.run_once()] == ["clock-unconfirmed"]
    with Ledger.open(tmp_path / "home") as again:
        assert again.settings.policy == policy


@pytest.mark.parametrize("regime", ["gdpr", "ccpa"])
def test_deadlines_from_the_future_count_from_the_correction(
    ledger: Ledger, machine: Machine, regime: Any
) -> None:
    ground = "gdpr.art17.1.b" if regime == "gdpr" else "ccpa.1798.105"
    before = ledger.requests.submit([person(1)], model="risk", regime=regime, ground=ground)
    machine.offset = YEARS
    ahead = ledger.requests.submit([person(2)], model="risk", regime=regime, ground=ground)
    extended = ledger.requests.submit([person(3)], model="risk", regime=regime, ground=ground)
    ledger.requests.extend(extended.id)
    machine.offset = 0
    with pytest.raises(ClockError):
        ledger.requests.submit([person(4)], model="risk")
    assert ledger.accept_clock()
    right = due_on(regime, datetime.fromtimestamp(NOON, UTC), ledger.settings.calendar)
    request = ledger.requests.get(ahead.id)
    assert request.due_on == ledger.requests.get(before.id).due_on == right
    later = ledger.requests.extend(ahead.id).due_on
    assert later == ledger.requests.get(extended.id).due_on
    assert later == ledger.requests.extend(before.id).due_on


def test_a_pause_from_the_future_is_over(ledger: Ledger, machine: Machine) -> None:
    request = ledger.requests.submit([person(1)], model="risk", verified=True)
    with ledger._core.database.transaction() as conn:
        mine = update(requests).where(requests.c.id == request.id)
        conn.execute(mine.values(state="applying"))
        conn.execute(mine.values(state="retry_wait", not_before=machine.true + 1800))
    ledger.run_once(force=True)
    assert ledger.requests.get(request.id).state == "retry_wait"
    with ledger._core.database.transaction() as conn:
        conn.execute(mine.values(not_before=machine.true + YEARS))
    ledger.run_once(force=True)
    assert ledger.requests.get(request.id).state == "purged"


def test_a_ledger_of_an_earlier_letheon_counts_from_its_newest_event(
    tmp_path: Path, machine: Machine
) -> None:
    with make(tmp_path, clock=SettableClock(NOON)) as made:
        core = dataclasses.replace(made._core, clock=machine.clock, uptime=machine.uptime)
        with core.database.transaction() as conn:
            conn.execute(delete(meta).where(meta.c.key == "proven_time"))
        machine.offset = YEARS
        with core.database.reading() as conn:
            assert seconds_ahead(core, conn) == YEARS
        assert proven_now(core) == NOON


def test_a_new_ledger_counts_from_its_creation(tmp_path: Path) -> None:
    boot, seconds = read_uptime()
    assert len(boot) >= 16
    assert seconds >= 0
    with Ledger.create(tmp_path / "home", name="test") as ledger:
        core = ledger._core
        assert core.uptime is read_uptime
        with core.database.reading() as conn:
            assert seconds_ahead(core, conn) <= 2
            query = select(meta.c.value).where(meta.c.key == "proven_time")
            known = ProvenTime(**json.loads(conn.scalars(query).one()))
        assert set(known.boots) == {boot}
        assert abs(known.at - time.time()) < 3600


def test_jobs_are_not_dropped_because_a_clock_is_ahead(ledger: Ledger, machine: Machine) -> None:
    jobs = Jobs(ledger)
    jobs.add("audit")
    job = jobs.claim("worker", kinds=["audit"])
    assert job is not None
    jobs.finish(job, {})
    machine.offset = YEARS
    assert jobs.forget_old() == 0
    machine.offset = 0
    machine.true += 91 * DAY
    assert jobs.forget_old() == 1


def test_looking_unblocks_no_person(ledger: Ledger, machine: Machine) -> None:
    """No event is written, and no tag is lost, while a clock is ahead and nothing is due."""
    request = ledger.requests.submit([person(1)], model="risk", verified=True)
    ledger.run_once(force=True)
    ledger.requests.answer(request.id)

    def counts() -> tuple[int, int]:
        with ledger._core.database.reading() as conn:
            return len(conn.execute(select(events.c.id)).all()), len(
                conn.execute(select(blocked.c.tag)).all()
            )

    before = counts()
    machine.offset = YEARS
    ledger.run_once()
    assert counts() == before
