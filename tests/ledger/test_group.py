"""Group commit: each caller gets its own answer, also after failures, interrupts and forks."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy.exc import DataError, IntegrityError, OperationalError

from letheon.exceptions import LedgerBusyError
from letheon.ledger.requests.intake import GroupCommit, make_intake_group
from letheon.ledger.tables import meta
from tests.ledger.databases import LedgerSetup, in_processes

Write = Callable[[Sequence[int]], list[int | Exception]]


class BlockingWriter:
    """Holds the first round back, so that the next one has several items."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.rounds: list[list[int]] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, items: Sequence[int]) -> list[int | Exception]:
        self.rounds.append(list(items))
        if len(self.rounds) == 1:
            self.begun.set()
            assert self.go_on.wait(30)
        return self._write(items)


def doubled(items: Sequence[int]) -> list[int | Exception]:
    return [2 * item for item in items]


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came so far")


def sent_together(write: Write, items: Sequence[int]) -> tuple[list[int | str], list[list[int]]]:
    """Send items in one round, after one that is written alone; return answers and rounds."""
    held = BlockingWriter(write)
    group = GroupCommit[int, int](held, for_all=(OSError, LedgerBusyError))

    def send(item: int) -> int | str:
        try:
            return group.submit(item)
        except (OSError, ValueError, LedgerBusyError) as error:
            return str(error)

    with ThreadPoolExecutor(len(items) + 1) as pool:
        first = pool.submit(send, 0)
        assert held.begun.wait(30)
        rest = [pool.submit(send, item) for item in items]
        wait_until(lambda: len(group._waiting) == len(items))
        held.go_on.set()
        answers = [first.result(30), *(one.result(30) for one in rest)]
    return answers, held.rounds[1:]


def test_one_that_cannot_be_written_harms_no_other() -> None:
    def write(items: Sequence[int]) -> list[int | Exception]:
        if 3 in items:
            raise ValueError("not three")
        return doubled(items)

    answers, rounds = sent_together(write, [1, 2, 3, 4])
    assert answers == [0, 2, 4, "not three", 8]
    assert rounds[1:] == [[item] for item in rounds[0]]


@pytest.mark.parametrize("error", [OSError("disk"), LedgerBusyError("busy")])
def test_an_error_that_concerns_all_is_met_once(error: Exception) -> None:
    """Each try may wait for 30 seconds: 256 of them would be two hours."""

    def write(items: Sequence[int]) -> list[int | Exception]:
        if 0 in items:
            return doubled(items)
        raise error

    answers, rounds = sent_together(write, [1, 2, 3])
    assert answers == [0, *[str(error)] * 3]
    assert len(rounds) == 1


def test_which_errors_of_a_database_concern_all() -> None:
    for_all = make_intake_group()._for_all
    assert issubclass(OperationalError, for_all)
    assert issubclass(LedgerBusyError, for_all)
    assert not issubclass(IntegrityError, for_all)
    assert not issubclass(DataError, for_all)


def test_an_interrupted_writer_interrupts_no_other_thread() -> None:
    interrupted: list[int] = []

    def write(items: Sequence[int]) -> list[int | Exception]:
        if len(items) > 1 and not interrupted:
            interrupted.append(items[0])
            raise KeyboardInterrupt
        return doubled(items)

    held = BlockingWriter(write)
    group = GroupCommit[int, int](held)
    answers: dict[int, int | str] = {}

    def send(item: int) -> None:
        try:
            answers[item] = group.submit(item)
        except KeyboardInterrupt:
            answers[item] = "interrupted"

    threads = [threading.Thread(target=send, args=(item,)) for item in range(5)]
    threads[0].start()
    assert held.begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(group._waiting) == 4)
    held.go_on.set()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    expected: dict[int, int | str] = {item: 2 * item for item in range(5)}
    assert answers == expected | {interrupted[0]: "interrupted"}
    assert group.submit(9) == 18


def test_who_is_interrupted_while_waiting_does_not_inherit_the_lead() -> None:
    """The main thread is the one that signals reach."""
    held = BlockingWriter(doubled)
    group = GroupCommit[int, int](held)

    def interrupt(_: int, __: object) -> None:
        raise KeyboardInterrupt

    def kill_the_main_thread() -> None:
        wait_until(lambda: len(group._waiting) == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    leader = threading.Thread(target=group.submit, args=(0,))
    killer = threading.Thread(target=kill_the_main_thread)
    try:
        leader.start()
        assert held.begun.wait(30)
        killer.start()
        with pytest.raises(KeyboardInterrupt):
            group.submit(1)
    finally:
        held.go_on.set()
        killer.join(30)
        leader.join(30)
        signal.signal(signal.SIGUSR1, before)
    assert held.rounds == [[0]]
    assert group.submit(2) == 4


def test_a_child_that_is_forked_while_a_thread_writes_does_not_wait_for_it() -> None:
    held = BlockingWriter(doubled)
    group = GroupCommit[int, int](held)
    leader = threading.Thread(target=group.submit, args=(0,))
    leader.start()
    assert held.begun.wait(30)

    def work() -> None:
        signal.alarm(20)
        assert group.submit(1) == 2

    with group._lock:  # a thread may be inside, too
        codes = in_processes([work])
    held.go_on.set()
    leader.join(30)
    assert codes == [0]


@pytest.mark.parametrize("kind", ["sqlite", "sqlite-delete"])
def test_a_child_takes_in_requests_while_its_parent_does(kind: str, tmp_path: Path) -> None:
    desk = LedgerSetup(tmp_path, kind, tmp_path)
    group, stop = make_intake_group(), threading.Event()
    desk.submit(999)

    def send_on() -> None:
        number = 0
        while not stop.is_set():
            desk.submit(number % 50, key=f"parent-{number}", group=group)
            assert len(desk.rows(meta)) > 0
            number += 1

    def work() -> None:
        signal.alarm(30)
        request = desk.submit(1, key=f"child-{os.getpid()}", group=group)
        assert request.state == "received"

    threads = [threading.Thread(target=send_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        codes = [code for _ in range(4) for code in in_processes([work])]
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    desk.database.dispose()
    assert codes == [0] * 4
