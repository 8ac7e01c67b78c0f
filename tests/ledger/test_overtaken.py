"""Workers that are overtaken, slow or killed at the wrong moment; each test has failed once."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update

from letheon.exceptions import BlockedIdsError, RequestStateError, StaleWorkerError
from letheon.ledger import Ledger, Policy
from letheon.ledger import core as faults
from letheon.ledger.leases import Lease, keep_renewed, take_lease
from letheon.ledger.models.versions import ModelRow, find_head, find_model, read_judged
from letheon.ledger.tables import batches
from letheon.ledger.worker import compute as _compute
from letheon.ledger.worker.apply import BatchRow, apply_batch, start_batch
from letheon.ledger.worker.compute import (
    TIME_LIMIT,
    Computation,
    ComputationFailed,
    ComputationResult,
    compute,
)
from letheon.ledger.worker.recover import new_folder, sweep_registrations
from letheon.ledger.worker.worker import _apply_batch, _give_up
from tests.ledger.databases import NOON, SettableClock
from tests.ledger.homes import IDS, X, Y, fitted, make, person
from tests.ledger.points import SimulatedKillError


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOON)


@pytest.fixture
def ledger(tmp_path: Path, clock: SettableClock) -> Ledger:
    return make(tmp_path, clock=clock)


def _worker(number: int) -> str:
    return f"elsewhere/boot/space/{number}/1/1"


def _model(ledger: Ledger) -> ModelRow:
    with ledger._core.database.reading() as conn:
        return find_model(conn, "risk", "default")


def _sealed(ledger: Ledger) -> tuple[Lease, BatchRow, str]:
    request = ledger.requests.submit([person(3)], model="risk", verified=True)
    lease = take_lease(ledger._core, 1, _worker(1))
    assert lease is not None
    return (
        lease,
        start_batch(ledger._core, lease, _model(ledger), "erase", [request.id], "x"),
        request.id,
    )


def test_an_overtaken_worker_whose_method_fails_late_gives_nothing_up(
    ledger: Ledger, clock: SettableClock
) -> None:
    lease, batch, request = _sealed(ledger)
    clock.now += 3600
    second = take_lease(ledger._core, 1, _worker(2))
    assert second is not None
    with pytest.raises(StaleWorkerError):
        _give_up(ledger._core, lease, _model(ledger), batch, "runtime-error")
    assert ledger.requests.get(request).state == "applying"

    def fails(job: Computation) -> ComputationResult:
        raise ComputationFailed("runtime-error")

    with pytest.raises(StaleWorkerError):
        list(_apply_batch(ledger._core, lease, _model(ledger), batch, fails))
    assert apply_batch(ledger._core, second, _model(ledger), batch, compute).number == 1


def test_a_batch_that_was_given_up_is_not_published(ledger: Ledger) -> None:
    lease, batch, _ = _sealed(ledger)

    def given_up(job: Computation) -> ComputationResult:
        product = compute(job)
        with ledger._core.database.transaction() as conn:
            conn.execute(update(batches).values(state="abandoned"))
        return product

    with pytest.raises(StaleWorkerError):
        apply_batch(ledger._core, lease, _model(ledger), batch, given_up)
    assert len(ledger.models.versions("risk")) == 1
    assert len(ledger._core.keys.list_ids("epoch")) == 1, "what was written is destroyed"


def test_an_overtaken_worker_writes_nothing(
    ledger: Ledger, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who took over may have purged people whom its rows still hold."""
    lease, batch, _ = _sealed(ledger)

    def overtaken(job: Computation) -> ComputationResult:
        clock.now += 3600
        assert take_lease(ledger._core, 1, _worker(2)) is not None
        return compute(job)

    written: list[Any] = []
    for name in ("write_blobs", "write_atomically"):
        note = lambda *given: written.append(given)  # noqa: E731
        monkeypatch.setattr(f"letheon.ledger.worker.apply.{name}", note)
    with pytest.raises(StaleWorkerError):
        apply_batch(ledger._core, lease, _model(ledger), batch, overtaken)
    assert written == []


def test_a_failed_batch_of_several_requests_is_retried(ledger: Ledger) -> None:
    """What cannot be computed for many may be due to one of them."""
    wanted = [
        ledger.requests.submit([person(number)], model="risk", verified=True).id
        for number in (3, 4)
    ]
    lease = take_lease(ledger._core, 1, _worker(1))
    assert lease is not None
    for members, state in ((wanted, "retry_wait"), (wanted[:1], "stuck")):
        if state == "stuck":
            ledger.requests.retry(wanted[0])
        batch = start_batch(ledger._core, lease, _model(ledger), "erase", members, "x")
        _give_up(ledger._core, lease, _model(ledger), batch, TIME_LIMIT)
        assert {ledger.requests.get(member).state for member in members} == {state}
    assert ledger.requests.get(wanted[1]).state == "retry_wait"


def test_a_batch_planned_before_a_hold_is_not_sealed(ledger: Ledger) -> None:
    first = ledger.requests.submit([person(1)], model="risk", verified=True)
    second = ledger.requests.submit([person(1), person(2)], model="risk", verified=True)
    ledger.requests.hold(first.id, "litigation-hold", "2099-01-01")
    lease = take_lease(ledger._core, 1, _worker(1))
    assert lease is not None
    with pytest.raises(RequestStateError, match="put on hold"):
        start_batch(ledger._core, lease, _model(ledger), "erase", [second.id], "operator")
    assert ledger.requests.get(second.id).state == "queued"
    with ledger._core.database.reading() as conn:
        assert conn.scalar(select(batches.c.id)) is None


def test_a_beacon_is_settled_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.requests.submit([person(3)], model="risk", verified=True)
    beacons: list[str] = []

    def stop(name: str) -> None:
        if name != "retrain.beacon":
            return
        with ledger._core.database.reading() as conn:
            beacons.extend(conn.scalars(select(batches.c.beacon)))
        raise SimulatedKillError

    monkeypatch.setattr(faults, "hook", stop)
    with pytest.raises(SimulatedKillError):
        ledger.models.retrain("risk")
    monkeypatch.setattr(faults, "hook", None)
    ledger.requests.submit([person(4)], model="risk", verified=True)
    ledger.log.checkpoint()
    assert ledger.run_once()[0].what == "retrained"
    with ledger._core.database.reading() as conn:
        head = find_head(conn, 1)
    assert [head.run["training"]["beacon"]] == [f"checkpoint:{beacon}" for beacon in beacons]


def test_a_lease_is_renewed_while_something_long_is_computed(tmp_path: Path) -> None:
    policy = Policy(lease_seconds=5, pin_seconds=1)
    ledger = make(tmp_path, policy=policy, clock=None)
    ticking = SettableClock(NOON)
    core = Ledger.open(ledger.folder, clock=ticking)._core
    lease = take_lease(core, 1, _worker(1))
    assert lease is not None
    with keep_renewed(core, lease):
        ticking.now += 4
        deadline = time.monotonic() + 30
        ticking.now += 0
        while time.monotonic() < deadline:
            with core.database.reading() as conn:
                until = conn.exec_driver_sql("select lease_until from heads").scalar()
            if until == NOON + 4 + 5:
                break
            time.sleep(0.05)
    assert until == NOON + 9
    ticking.now += 4
    assert take_lease(core, 1, _worker(2)) is None


def test_a_failure_is_followed_by_a_pause(
    ledger: Ledger, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(job: Computation) -> ComputationResult:
        raise RuntimeError

    monkeypatch.setattr(_compute, "_run_computation", refuse)
    monkeypatch.setattr("random.SystemRandom.random", lambda _: 0.999)
    ledger.requests.submit([person(1)], model="risk", verified=True)
    tried = []
    for _ in range(16):
        tried.append(bool(ledger.run_once(force=True)))
        clock.now += 1
    # After 1, 2, 4 and 8 seconds.
    assert [moment for moment, was_tried in enumerate(tried) if was_tried] == [0, 1, 3, 7, 15]


def test_people_who_asked_are_blocked_for_their_tenant_and_no_other(ledger: Ledger) -> None:
    ledger.models.register(fitted(), X, Y, ids=IDS, name="risk", tenant="acme")
    ledger.requests.submit([person(3)], model="risk", tenant="acme", verified=True)
    with pytest.raises(BlockedIdsError):
        ledger.models.register(fitted(), X, Y, ids=IDS, name="second", tenant="acme")
    ledger.models.register(fitted(), X, Y, ids=IDS, name="second", tenant="default")
    assert len(ledger.models.without_blocked(X, Y, IDS, tenant="acme")[0]) == 58
    assert len(ledger.models.without_blocked(X, Y, IDS)[0]) == 60


def test_a_registration_that_just_landed_is_not_swept(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from letheon.ledger.worker import recover

    looks: list[Any] = []
    real = recover.lock_registrations

    def late(conn: Any) -> None:
        looks.append(conn)
        real(conn)

    # As if the model had not been there at the first look, and is at the second.
    monkeypatch.setattr(recover, "lock_registrations", late)
    folder = ledger._core.blob_store(_model(ledger).folder).folder
    assert not recover._sweep_if_orphan(ledger._core, folder)
    assert len(looks) == 1
    assert ledger.models.load("risk").n_rows_ == 60
    with new_folder(ledger._core) as key:
        assert sweep_registrations(ledger._core) == 0, "a process is using it"
        assert ledger._core.blob_store(key).folder.exists()
    assert not ledger._core.blob_store(key).folder.exists()


def test_test_rows_of_erased_people_leave_too(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "home", name="test", clock=SettableClock(NOON))
    test = (X[:8], Y[:8], IDS[:8])
    ledger.models.register(fitted(), X, Y, ids=IDS, name="risk", test=test)
    ledger.requests.submit([person(1)], model="risk", verified=True)
    ledger.run_once(force=True)
    core = ledger._core
    with core.database.reading() as conn:
        judged = read_judged(core, _model(ledger), find_head(conn, 1))
    assert judged is not None
    assert judged.test is not None
    assert np.unique(judged.test.ids.to_array()).tolist() == [person(n) for n in (0, 2, 3)]
