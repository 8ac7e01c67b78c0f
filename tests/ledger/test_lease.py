"""Leases end by themselves; the fence decides."""

import multiprocessing
import threading
from pathlib import Path

import pytest

from letheon.exceptions import StaleWorkerError
from letheon.ledger import Ledger, leases
from letheon.ledger.leases import release_lease, renew_lease, require_fence, take_lease
from letheon.ledger.models.versions import find_head, find_model, read_raw_model
from letheon.ledger.worker.apply import apply_batch, find_open_batch, start_batch
from letheon.ledger.worker.compute import Computation, ComputationResult, compute
from letheon.ledger.worker.recover import sweep_model
from tests.ledger.databases import NOON, SettableClock
from tests.ledger.homes import make, person


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOON)


@pytest.fixture
def ledger(tmp_path: Path, clock: SettableClock) -> Ledger:
    return make(tmp_path, clock=clock)


def _alive(number: int) -> str:
    """Name of another worker of this very process, which is alive."""
    return leases.owner_name().rpartition("/")[0] + f"/{number}"


def test_one_holder_at_a_time(ledger: Ledger, clock: SettableClock) -> None:
    core = ledger._core
    first = take_lease(core, 1, _alive(1))
    assert first is not None
    assert take_lease(core, 1, _alive(2)) is None
    again = take_lease(core, 1, _alive(1))
    assert again is not None
    assert again.fence == first.fence + 1
    release_lease(core, again)
    assert take_lease(core, 1, _alive(2)) is not None


def test_a_lease_runs_out(ledger: Ledger, clock: SettableClock) -> None:
    core = ledger._core
    first = take_lease(core, 1, _alive(1))
    assert first is not None
    clock.now += core.settings.policy.lease_seconds
    second = take_lease(core, 1, _alive(2))
    assert second is not None
    assert second.fence == first.fence + 1
    with pytest.raises(StaleWorkerError):
        renew_lease(core, first)
    release_lease(core, first)
    assert take_lease(core, 1, _alive(3)) is None, "an old holder cannot release a newer lease"


def test_a_lease_of_a_clock_that_was_ahead_is_no_lease(
    ledger: Ledger, clock: SettableClock
) -> None:
    clock.now += 365 * 86_400
    assert take_lease(ledger._core, 1, _alive(1)) is not None
    clock.now -= 365 * 86_400
    assert take_lease(ledger._core, 1, _alive(2)) is not None


@pytest.mark.parametrize("seconds", [-1, 1])
def test_clocks_that_differ_a_little_take_nothing_over(
    seconds: int, ledger: Ledger, clock: SettableClock
) -> None:
    assert take_lease(ledger._core, 1, _alive(1)) is not None
    clock.now += seconds
    assert take_lease(ledger._core, 1, _alive(2)) is None


def test_threads_and_forks_are_different_owners() -> None:
    names = [leases.owner_name()]
    thread = threading.Thread(target=lambda: names.append(leases.owner_name()))
    thread.start()
    thread.join()
    assert names[0] != names[1]
    assert names[0] == leases.owner_name()


def test_renewing_puts_the_end_off(ledger: Ledger, clock: SettableClock) -> None:
    core, seconds = ledger._core, ledger.settings.policy.lease_seconds
    first = take_lease(core, 1, _alive(1))
    assert first is not None
    clock.now += seconds - 1
    renew_lease(core, first)
    clock.now += seconds - 1
    assert take_lease(core, 1, _alive(2)) is None


def _name_of_process(answer: "multiprocessing.Queue[str]") -> None:
    answer.put(leases.owner_name())


def test_a_dead_process_holds_nothing(ledger: Ledger) -> None:
    core = ledger._core
    context = multiprocessing.get_context("fork")
    answer: multiprocessing.Queue[str] = context.Queue()
    child = context.Process(target=_name_of_process, args=(answer,))
    child.start()
    owner = answer.get(timeout=30)
    child.join()
    assert take_lease(ledger._core, 1, owner) is not None
    assert take_lease(ledger._core, 1, _alive(1)) is not None
    elsewhere = f"another-machine/{owner.partition('/')[2]}"
    other_space = owner.split("/")
    other_space[2] = "1"
    assert take_lease(ledger._core, 1, elsewhere) is None
    release_all = take_lease(ledger._core, 1, _alive(1))
    assert release_all is not None
    release_lease(ledger._core, release_all)
    assert take_lease(ledger._core, 1, elsewhere) is not None
    assert take_lease(ledger._core, 1, _alive(1)) is None, (
        "whether others live cannot be told from here"
    )
    core.clock.now += core.settings.policy.lease_seconds  # type: ignore[attr-defined]
    assert take_lease(core, 1, "/".join(other_space)) is not None
    assert take_lease(core, 1, _alive(1)) is None, "a number means nothing in another namespace"


def test_a_fence_is_held_until_the_commit(
    postgres_url: str, tmp_path: Path, clock: SettableClock
) -> None:
    """No worker takes over between the check of the fence and the following change."""
    with make(tmp_path, clock=clock, database=postgres_url) as ledger:
        core, taken = ledger._core, threading.Event()
        lease = take_lease(core, 1, _alive(1))
        assert lease is not None
        clock.now += core.settings.policy.lease_seconds

        def take_over() -> None:
            take_lease(core, 1, _alive(2))
            taken.set()

        other = threading.Thread(target=take_over)
        with core.database.transaction() as conn:
            require_fence(conn, lease)
            other.start()
            assert not taken.wait(0.3)
        other.join()
        assert taken.is_set()


def test_a_worker_that_was_overtaken_publishes_nothing(
    ledger: Ledger, clock: SettableClock
) -> None:
    core = ledger._core
    request = ledger.requests.submit([person(3)], model="risk", verified=True)
    first = take_lease(core, 1, _alive(1))
    assert first is not None
    with core.database.reading() as conn:
        model = find_model(conn, "risk", "default")
        before = find_head(conn, model.id)
    batch = start_batch(core, first, model, "erase", [request.id], "operator")

    def overtaken(job: Computation) -> ComputationResult:
        clock.now += core.settings.policy.lease_seconds
        second = take_lease(core, 1, _alive(2))
        assert second is not None
        with core.database.reading() as conn:
            open_batch = find_open_batch(conn, model.id)
        assert open_batch == batch
        apply_batch(core, second, model, open_batch, compute)
        return compute(job)

    with pytest.raises(StaleWorkerError):
        apply_batch(core, first, model, batch, overtaken)
    versions = ledger.models.versions("risk")
    assert [version.number for version in versions] == [0, 1]
    assert ledger.requests.get(request.id).state == "applied"
    with pytest.raises(StaleWorkerError):
        sweep_model(core, first, model)
    with core.database.reading() as conn:
        head = find_head(conn, model.id)
    assert head.parent_id == before.id
    assert len(read_raw_model(core, model, head)) > 32
    assert len(core.keys.list_ids("epoch")) == 2, "what the first one wrote is gone"
    assert ledger.models.load("risk").n_rows_ == 58
