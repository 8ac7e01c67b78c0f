"""A process that can reach nothing: results, limits, and everything that it must not do."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from letheon import sandbox
from letheon.sandbox import (
    EndedError,
    Limits,
    Protection,
    StoppedError,
    TimeLimitError,
    _caller,
    call,
    probe,
)
from tests.sandbox import works

# On a kernel without Landlock, or another processor, less is promised: see docs/sandbox.md.
needs_full = pytest.mark.skipif(
    not sandbox.protection().is_full and os.environ.get("CI") != "true",
    reason="this kernel cannot protect in full",
)
SMALL = Limits(memory=1 << 30, seconds=60.0, result=1 << 24)
SHORT = Limits(memory=1 << 29, seconds=1.0, result=1 << 20)


def test_plain_values_come_back_as_they_are() -> None:
    value = {"a": [1, 2.5, None, "x", b"y"], "b": np.arange(6).reshape(2, 3)}
    again = call(works.give_back, value, limits=SMALL)
    assert again["a"] == value["a"]
    np.testing.assert_array_equal(again["b"], value["b"])


def test_messages_are_heard_in_their_order() -> None:
    heard: list[Any] = []
    assert call(works.report_twice, "first", limits=SMALL, report=heard.append) == "done"
    assert heard == ["first", {"n": 2}]


def test_what_a_process_raises_is_a_code_without_its_text() -> None:
    with pytest.raises(EndedError) as caught:
        call(works.fail, None, limits=SMALL)
    assert str(caught.value) == "value-error"


def test_a_fit_gives_the_same_numbers_as_here() -> None:
    inside = call(works.fit_forest, 3, limits=SMALL)
    np.testing.assert_array_equal(inside, works.fit_forest(3, lambda _: None))


@pytest.mark.parametrize("is_restricted", [True, False])
def test_a_process_leaves_no_core(is_restricted: bool) -> None:
    assert call(works.core_limit, None, limits=SMALL, is_restricted=is_restricted) == [0, 0]


def test_a_class_in_an_answer_is_refused() -> None:
    with pytest.raises(EndedError, match="forged-answer"):
        call(works.name_a_class, None, limits=SMALL)


def test_nothing_of_the_caller_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    _caller._caller.close()
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    report = call(works.look_around, "given", limits=SMALL)
    _caller._caller.close()
    assert not any("PASSWORD" in name or "LETHEON" in name for name in report["environment"])
    assert report["links to the folder"] == 0  # it is removed: nothing is in it or can be made
    assert len(report["descriptors"]) == 4  # nowhere three times, and the line to the caller
    assert report["threads"] == 1
    assert report["secret"] == "given"


@needs_full
def test_this_machine_protects_in_full() -> None:
    assert probe() == Protection("landlock", "seccomp")
    assert sandbox.protection().is_full


def test_without_landlock_another_user_is_taken() -> None:
    expected = "user" if os.geteuid() == 0 else "none"
    report = probe(landlock=False)
    assert report == Protection(expected, "seccomp")  # type: ignore[arg-type]
    assert not report.is_full
    assert "NOT" in str(Protection("none", "none"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reads_no_private_file(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("signing key")
    secret.chmod(0o600)
    what = ("read", str(secret))
    answer = call(works.attempt, what, limits=SMALL, landlock=False)
    assert answer == {"refused": "PermissionError"}
    assert call(works.fit_forest, 3, limits=SMALL, landlock=False).shape == (60, 2)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "signing.key"
    path.write_text("signing key")
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A socket that listens on this machine, a local one, and one for datagrams."""
    listening = socket.create_server(("127.0.0.1", 0))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    path = str(tmp_path_factory.mktemp("sockets") / "s")
    local = socket.socket(socket.AF_UNIX)
    local.bind(path)
    local.listen()
    with listening, datagrams, local:
        yield {
            "connect": listening.getsockname(),
            "datagram": datagrams.getsockname(),
            "local socket": path,
        }


# These are allowed where nothing is restricted, so each attempt is a real one.
_HARMLESS = ["read", "list", "connect", "datagram", "local socket", "fork", "run a program"]


@pytest.mark.parametrize("name", _HARMLESS)
def test_each_attempt_works_where_nothing_is_restricted(
    name: str, target: Path, server: dict[str, Any]
) -> None:
    place = str(target.parent if name == "list" else target)
    what = (name, server.get(name, place))
    answer = call(works.attempt, what, limits=SMALL, is_restricted=False)
    assert "got" in answer


@needs_full
@pytest.mark.parametrize("name", sorted(works.ATTEMPTS.keys() - {"other table of calls"}))
def test_a_sandboxed_process_is_refused(name: str, target: Path, server: dict[str, Any]) -> None:
    what = (name, server.get(name, str(target)))
    answer = call(works.attempt, what, limits=SMALL)
    assert "got" not in answer, answer
    assert target.read_text() == "signing key"
    assert sorted(target.parent.iterdir()) == [target]


@needs_full
def test_the_second_table_of_system_calls_ends_the_process() -> None:
    with pytest.raises(EndedError, match="forbidden-call"):
        call(works.attempt, ("other table of calls", None), limits=SMALL)


@needs_full
@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/1/environ", "/root", "/home", "/tmp", "."])
def test_other_folders_are_closed_too(path: str) -> None:
    answers = [
        call(works.attempt, (name, path), limits=SMALL) for name in ("read", "list", "write")
    ]
    assert not any("got" in answer for answer in answers) or path == "."


@pytest.mark.parametrize(
    "work",
    [
        works.run_forever,
        works.match_for_ever,
        works.fit_for_ever,
        works.talk_for_ever,
        works.stall_in_the_middle,
    ],
)
def test_what_does_not_end_is_ended(work: Any) -> None:
    with pytest.raises((TimeLimitError, EndedError), match=r"time.limit"):
        call(work, None, limits=SHORT)


@pytest.mark.parametrize(
    ("work", "argument"), [(works.take_memory, 1 << 30), (works.take_memory_in_pieces, None)]
)
def test_too_much_memory_is_an_error_of_its_own(work: Any, argument: Any) -> None:
    with pytest.raises(EndedError, match="memory-limit"):
        call(work, argument, limits=Limits(memory=1 << 28, seconds=60))


@pytest.mark.parametrize("work", [works.answer_with, works.claim_a_long_answer])
def test_a_long_answer_is_refused(work: Any) -> None:
    with pytest.raises(EndedError, match="answer-too-long"):
        call(work, 1 << 25, limits=SMALL)


@pytest.mark.parametrize(
    ("work", "code"),
    [(works.crash, "crashed"), (works.die, "process-ended"), (works.recurse, "recursion-error")],
)
def test_a_process_that_ends_says_why(work: Any, code: str) -> None:
    with pytest.raises(EndedError, match=code):
        call(work, None, limits=SMALL)


def _is_gone(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while not _is_gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_is_asked_to_stop_leaves_no_process() -> None:
    stop, pids = threading.Event(), []

    def hear(pid: int) -> None:
        pids.append(pid)
        stop.set()

    with pytest.raises(StoppedError):
        call(works.report_pid_and_sleep, None, limits=SMALL, report=hear, stop=stop)
    _wait_until_gone(pids[0])


def test_silence_ends_a_process() -> None:
    pids: list[int] = []
    with pytest.raises(TimeLimitError):
        call(works.report_pid_and_sleep, None, limits=SMALL, report=pids.append, silence=0.3)
    _wait_until_gone(pids[0])


def test_a_process_has_no_capability_and_gains_none() -> None:
    """What the kernel says of the process, seen from outside."""
    status: dict[str, str] = {}

    def read_status(pid: int) -> None:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            status[name] = value.strip()

    with pytest.raises(TimeLimitError):
        call(works.report_pid_and_sleep, None, limits=SMALL, report=read_status, silence=0.3)
    # Only root may give up the bounding set.
    bounding = ("CapBnd",) if os.geteuid() == 0 else ()
    for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb", *bounding):
        assert int(status[kind], 16) == 0, kind
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


_SCRIPT = """
from letheon.sandbox import Limits, call
from tests.sandbox import works
def double(number): return 2 * number
print(call(works.call_it, (bytes(3 << 20), double), limits=Limits()))
"""


def test_functions_of_a_script_are_sent_by_their_code() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        capture_output=True,
        env=environment,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "40", done.stderr


def test_the_operators_own_work_has_the_surroundings_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LETHEON_TEST", "here")
    monkeypatch.chdir(tmp_path)
    own = call(works.show_surroundings, None, limits=SMALL, is_restricted=False)
    assert own == ["here", str(tmp_path)]
    with pytest.raises(EndedError, match="file-not-found-error"):
        call(works.show_surroundings, None, limits=SMALL)


_CALLER = """
import sys
from letheon.sandbox import Limits, call
from tests.sandbox import works
say = lambda pid: print(pid, flush=True)
call(works.report_pid_and_sleep, None, limits=Limits(), report=say)
"""


def test_a_killed_caller_takes_its_processes_along() -> None:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-c", _CALLER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        caller.send_signal(signal.SIGKILL)
    _wait_until_gone(pid)
    _wait_until_gone(parent)


def test_a_killed_zygote_is_started_again() -> None:
    call(works.give_back, 1, limits=SMALL)
    process = _caller._caller.process
    assert process is not None
    process.kill()
    process.wait()
    assert call(works.give_back, 2, limits=SMALL) == 2


@pytest.mark.parametrize("turn", range(5))
def test_calls_run_side_by_side(turn: int) -> None:
    """A child ends at the very moment at which its caller hangs up; the others go on."""
    results: dict[int, Any] = {}

    def run(number: int) -> None:
        results[number] = call(works.give_back, number, limits=SMALL)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: number for number in range(8)}
