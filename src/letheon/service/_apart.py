"""A function in a process of its own, which tells what it finds; it can be stopped at any moment.

The process is given what it needs and nothing else: no open database, no keys. Its memory, in which
an estimator may have left anything, ends with it.
"""

import contextlib
import multiprocessing
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from letheon.ledger._compute import _die_with_parent, code_of

__all__ = ["EndedError", "StoppedError", "TooLongError", "told"]

Tell = Callable[[Any], None]
Work = Callable[[Tell, Any], None]

_TOLD, _DONE, _FAILED = "told", "done", "failed"
_LOOK_SECONDS = 0.2


class StoppedError(Exception):
    """The caller was told to stop."""


class TooLongError(Exception):
    """The process was silent for too long, and was ended."""


class EndedError(Exception):
    """The process ended without a result; its text is a code."""


def told(
    work: Work, argument: Any, *, stop: threading.Event, silence: float | None = None
) -> Iterator[Any]:
    """Yield what ``work(tell, argument)`` tells, as it is told, from a process of its own.

    Parameters
    ----------
    work : callable
        A function of a module; it calls ``tell`` with plain values.
    argument : object
        What it is given; it is pickled.
    stop : Event
        When it is set the process is ended.
    silence : float, optional
        So many seconds without a word, and the process is ended.

    Raises
    ------
    StoppedError, TooLongError, EndedError
        Why it came to no end of its own. The process is gone then.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(theirs, work, argument), name="letheon-apart")
    try:
        child.start()
        theirs.close()
        while True:
            _wait(ours, stop, silence)
            kind, value = _received(ours, stop)
            if kind == _DONE:
                return
            if kind == _FAILED:
                raise EndedError(value)
            yield value
    finally:
        ours.close()
        if child.pid is not None:
            child.kill()
            child.join()


def _wait(ours: Connection, stop: threading.Event, silence: float | None) -> None:
    """Return when there is something to receive."""
    deadline = None if silence is None else time.monotonic() + silence
    while not ours.poll(_LOOK_SECONDS):
        if stop.is_set():
            raise StoppedError
        if deadline is not None and time.monotonic() > deadline:
            raise TooLongError


def _received(ours: Connection, stop: threading.Event) -> tuple[str, Any]:
    try:
        kind, value = ours.recv()
    except (EOFError, ConnectionResetError):
        # Ctrl-C reaches a process that has only begun, too.
        if stop.is_set():
            raise StoppedError from None
        # Killed, perhaps for want of memory.
        raise EndedError("process-ended") from None
    return kind, value


def _run(answer: Connection, work: Work, argument: Any) -> None:
    # Its memory holds rows: no core dump, and no life after its parent's.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _die_with_parent()
    # A signal to the whole group is for the parent, which ends this process itself.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        work(lambda value: answer.send((_TOLD, value)), argument)
        last = (_DONE, "")
    except Exception as error:  # noqa: BLE001  (a text may hold ids; its kind does not)
        last = (_FAILED, code_of(error))
    with contextlib.suppress(BrokenPipeError):
        answer.send(last)
    answer.close()
