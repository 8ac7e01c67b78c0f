"""The caller's side of sandboxed calls: one zygote per process, one child per call."""

import atexit
import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from pickle import PicklingError
from typing import Any, Self

import joblib

from letheon import state
from letheon.exceptions import StateError
from letheon.sandbox._child import (
    FAILURE,
    HEADER,
    MESSAGE,
    PROTECTION,
    RESULT,
    CallerEnvironment,
    CallOrder,
    Work,
)
from letheon.sandbox._kernel import Limits, Protection

_START = "import sys; from letheon.sandbox._child import main; main(int(sys.argv[1]))"
_LOOK_SECONDS = 0.1
_PART = 1 << 20
# Variables that affect results or library paths; the child gets no others.
_VARIABLES = (
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "LD_LIBRARY_PATH",
    "PYTHONHOME",
    "PYTHONHASHSEED",
)
_PREFIXES = ("OPENBLAS_", "MKL_", "BLIS_", "NPY_", "KMP_")
_SIGNALS = {
    signal.SIGXCPU: "time-limit",
    signal.SIGSYS: "forbidden-call",
    signal.SIGSEGV: "crashed",
    signal.SIGABRT: "crashed",
    signal.SIGBUS: "crashed",
    signal.SIGFPE: "crashed",
    signal.SIGILL: "crashed",
}


class SandboxError(Exception):
    """A call in a child process ended without a result.

    Examples
    --------
    >>> from letheon.sandbox import EndedError, SandboxError, StoppedError, TimeLimitError
    >>> all(issubclass(each, SandboxError) for each in (EndedError, StoppedError, TimeLimitError))
    True
    """


class StoppedError(SandboxError):
    """The caller set the stop event, and the child process was killed."""


class TimeLimitError(SandboxError):
    """The call exceeded its time limit or was silent for too long, and was killed."""


class EndedError(SandboxError):
    """The child process ended or its function failed; the message is a code for the reason."""


class _Caller:
    """The zygote of this process, started at the first call and shared with forks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.owner = 0

    def fork_child(self, modules: tuple[str, ...]) -> tuple[Connection, socket.socket]:
        """Fork a child; return the connection for the call and the socket for the child's status.

        The zygote imports `modules` before it forks.
        """
        ours, theirs = Pipe()
        status, their_status = socket.socketpair()
        with theirs, their_status, self.lock:
            for _ in range(2):
                control = self._start_zygote()
                try:
                    descriptors = [theirs.fileno(), their_status.fileno()]
                    socket.send_fds(control, [" ".join(modules).encode() or b" "], descriptors)
                    break
                except OSError:
                    # The zygote was killed after the last call.
                    self._close_zygote()
        return ours, status

    def _start_zygote(self) -> socket.socket:
        if self.control is not None:
            return self.control
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, str(number)],
                stdin=subprocess.DEVNULL,
                cwd="/",
                env=_child_environment(),
                pass_fds=(number,),
                start_new_session=True,
            )
        self.owner = os.getpid()
        return self.control

    def _close_zygote(self) -> None:
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.process is not None and self.owner == os.getpid():
            # The zygote exits when this end of its socket is closed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        with self.lock:
            self._close_zygote()

    def renew_lock(self) -> None:
        """Replace the lock in a forked process, because a thread of the parent may hold it."""
        self.lock = threading.Lock()


_caller = _Caller()
atexit.register(_caller.close)
os.register_at_fork(after_in_child=_caller.renew_lock)


def _child_environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _VARIABLES or name.startswith(_PREFIXES)
    }
    # One thread: a fork copies only one, and results must not depend on the number of threads.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join(place for place in sys.path if place)
    return {**kept, **threads, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def call(
    work: Work,
    argument: Any,
    *,
    limits: Limits,
    is_restricted: bool = True,
    modules: tuple[str, ...] = (),
    report: Callable[[Any], None] | None = None,
    stop: threading.Event | None = None,
    grace: float = 0.0,
    silence: float | None = None,
    landlock: bool = True,
) -> Any:
    """Run ``work(argument, report)`` in a child process and return its result.

    Parameters
    ----------
    work : callable
        A module-level function. Its result and the values that it reports must be plain: numbers,
        strings, bytes, arrays and containers of them.
    argument : object
        The argument of `work`; it is pickled.
    limits : Limits
        Memory and time. Memory and processor time are limited in restricted calls only.
    is_restricted : bool, default=True
        Whether to block files, network and other processes. False is for the operator's own models,
        which may use several processes or a cluster; the child then gets the environment of the
        caller.
    modules : tuple of str
        Trusted modules to import before the process is restricted.
    report : callable, optional
        Called in this process with each value that `work` reports.
    stop : Event, optional
        When this event is set, the process is killed after `grace` seconds.
    grace : float, default=0.0
        Seconds between `stop` and the end of the process.
    silence : float, optional
        Longest time without a report, in seconds, before the process is killed.
    landlock : bool, default=True
        Set to False to simulate a kernel without Landlock.

    Returns
    -------
    object
        The result of `work`.

    Raises
    ------
    StoppedError, TimeLimitError, EndedError
        The call has no result; the process has ended.

    Examples
    --------
    >>> from letheon.sandbox import Limits, call, error_code
    >>> call(error_code, ValueError("a text"), limits=Limits())  # doctest: +SKIP
    """
    watch = _CallTimer(limits, stop, grace, silence)
    shared = None if is_restricted else CallerEnvironment(dict(os.environ), str(Path.cwd()))
    order = CallOrder(work, argument, limits, is_restricted, modules, landlock, shared)
    with _ChildConnection(order) as line:
        while True:
            kind, value = line.receive(watch, limits.result)
            if kind == RESULT:
                return value
            if kind == FAILURE:
                raise EndedError(str(value)[:60])
            if kind == MESSAGE and report is not None:
                report(value)


def modules_of(content: bytes, trusted: Iterable[Any]) -> tuple[str, ...]:
    """Return the modules to import before a model is built: trusted code, and torch if needed.

    Parameters
    ----------
    content : bytes
        The file of a model.
    trusted : iterable of class, function or str
        As for `letheon.load`.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon.sandbox import modules_of
    >>> from letheon.state import encode
    >>> modules_of(encode(GaussianNB()), ["my_models.Net"])
    ('my_models',)
    """
    names = {
        state.import_path(item) if isinstance(item, str) else item.__module__ + "."
        for item in trusted
    }
    nets = {"letheon.deep."} if b"letheon.deep." in content else set()
    return tuple(sorted({name.rpartition(".")[0] for name in names | nets}))


class _CallTimer:
    """Deadline of a call: time limit, silence limit and stop event."""

    def __init__(
        self,
        limits: Limits,
        stop: threading.Event | None = None,
        grace: float = 0.0,
        silence: float | None = None,
    ) -> None:
        self.deadline = time.monotonic() + limits.seconds
        self.stop, self.grace, self.silence = stop, grace, silence
        self.stop_at: float | None = None

    def wait_for(self, connection: Connection, last_report_at: float) -> None:
        """Wait for data; raise if a time limit is exceeded or the call is stopped."""
        is_ready = False
        while not is_ready:
            is_ready = bool(wait([connection], _LOOK_SECONDS))
            now = time.monotonic()
            if self.stop is not None and self.stop.is_set():
                self.stop_at = self.stop_at or now + self.grace
                if now >= self.stop_at:
                    raise StoppedError("the call was stopped")
            is_silent = self.silence is not None and now > last_report_at + self.silence
            if is_silent or now > self.deadline:
                raise TimeLimitError("the call exceeded its time limit or was silent for too long")


def _pickle_order(order: CallOrder) -> Any:
    """Return the pickled order; functions and classes of a script are pickled by value."""
    try:
        data = ForkingPickler.dumps(order)
        # The child has another __main__, so names in __main__ cannot be imported there.
        if re.search(b"__main__", data) is None:
            return data
    except (AttributeError, TypeError, PicklingError):
        pass
    return ForkingPickler.dumps(joblib.wrap_non_picklable_objects(order, keep_wrapper=False))


class _ChildConnection:
    """Connection to a new child that receives an order; closing the connection kills the child."""

    def __init__(self, order: CallOrder) -> None:
        self._connection, self._status = _caller.fork_child((order.work.__module__,))
        try:
            self._connection.send(sys.path)
            self._connection.send_bytes(_pickle_order(order))
        except (BrokenPipeError, ConnectionResetError):
            reason = _exit_reason(self._status)
            self.__exit__()
            raise EndedError(reason) from None
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._status.close()

    def receive(self, watch: _CallTimer, most: int) -> tuple[bytes, Any]:
        """Return kind and value of the next message.

        Raise if the message has more than `most` bytes, if it is not a plain value, if the child
        has ended, or if `watch` raises.
        """
        last_report_at = time.monotonic()
        kind, size = HEADER.unpack(self._read_bytes(HEADER.size, watch, last_report_at))
        if size > most:
            raise EndedError("answer-too-long")
        data = self._read_bytes(size, watch, last_report_at)
        try:
            return kind, state.decode_plain(data)
        except StateError:
            raise EndedError("forged-answer") from None

    def _read_bytes(self, size: int, watch: _CallTimer, last_report_at: float) -> bytearray:
        """Return the next `size` bytes; the time limits apply to the whole message."""
        data = bytearray()
        while len(data) < size:
            watch.wait_for(self._connection, last_report_at)
            try:
                part = os.read(self._connection.fileno(), min(size - len(data), _PART))
            except OSError:
                part = b""
            if not part:
                raise EndedError(_exit_reason(self._status))
            data += part
        return data


def _exit_reason(status: socket.socket) -> str:
    """Return a code for the reason why the child process ended, read from its status socket."""
    status.settimeout(5)
    with contextlib.suppress(OSError, struct.error):
        (code,) = struct.unpack("i", status.recv(4))
        if os.WIFSIGNALED(code):
            return _SIGNALS.get(signal.Signals(os.WTERMSIG(code)), "process-ended")
    return "process-ended"


_probed: list[Protection] = []


def protection() -> Protection:
    """Return what is blocked in sandboxed processes on this machine; `probe` runs only once.

    If no process can be started, return a `Protection` without protection.

    Examples
    --------
    >>> from letheon.sandbox import protection
    >>> protection().files in ("landlock", "user", "none")
    True
    """
    if not _probed:
        try:
            _probed.append(probe())
        except (SandboxError, OSError):
            return Protection("none", "none")
    return _probed[0]


def probe(*, landlock: bool = True) -> Protection:
    """Start a sandboxed process and return what is blocked in it.

    Parameters
    ----------
    landlock : bool, default=True
        Set to False to simulate a kernel without Landlock.

    Returns
    -------
    Protection

    Raises
    ------
    EndedError
        The process did not report.

    Examples
    --------
    >>> from letheon.sandbox import probe
    >>> probe().calls in ("seccomp", "none")
    True
    """
    limits = Limits(memory=1 << 30, seconds=60.0)
    # A child reports its protection before it runs the function.
    with _ChildConnection(CallOrder(print, None, limits, True, (), landlock)) as line:
        kind, value = line.receive(_CallTimer(limits), 1 << 20)
    if kind != PROTECTION:
        raise EndedError("no-protection")
    return Protection(**value)
