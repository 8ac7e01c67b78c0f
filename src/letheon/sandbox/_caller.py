"""The caller's side: one zygote per process, one child per call."""

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
    Order,
    Surroundings,
    Work,
)
from letheon.sandbox._kernel import Limits, Protection

_START = "import sys; from letheon.sandbox._child import main; main(int(sys.argv[1]))"
_LOOK_SECONDS = 0.1
_PART = 1 << 20
# What decides results or where libraries lie; everything else in the environment stays here.
_KEPT = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONHASHSEED")
_KEPT_PREFIXES = ("OPENBLAS_", "MKL_", "BLIS_", "NPY_", "KMP_")
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
    """A call in a process of its own came to no result."""


class StoppedError(SandboxError):
    """The caller was asked to stop; the process is gone."""


class TimeLimitError(SandboxError):
    """The call took longer than its limit, and was ended."""


class EndedError(SandboxError):
    """The process ended, or its work failed; the text is a code."""


class _Caller:
    """The zygote of this process, started when it is first needed; a fork shares its parent's."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.owner = 0

    def fork(self, modules: tuple[str, ...]) -> tuple[Connection, socket.socket]:
        """Return the two ends of a new child: of the call, and of its status."""
        ours, theirs = Pipe()
        status, their_status = socket.socketpair()
        with theirs, their_status, self.lock:
            for _ in range(2):
                control = self._started()
                try:
                    descriptors = [theirs.fileno(), their_status.fileno()]
                    socket.send_fds(control, [" ".join(modules).encode() or b" "], descriptors)
                    break
                except OSError:
                    # It was killed since the last call.
                    self._close()
        return ours, status

    def _started(self) -> socket.socket:
        if self.control is not None:
            return self.control
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, str(number)],
                stdin=subprocess.DEVNULL,
                cwd="/",
                env=_environment(),
                pass_fds=(number,),
                start_new_session=True,
            )
        self.owner = os.getpid()
        return self.control

    def _close(self) -> None:
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.process is not None and self.owner == os.getpid():
            # It ends when it sees that the other end is closed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        with self.lock:
            self._close()

    def renew_lock(self) -> None:
        """Make the lock free in a fork: it may have been held by a thread that is not there."""
        self.lock = threading.Lock()


_caller = _Caller()
atexit.register(_caller.close)
os.register_at_fork(after_in_child=_caller.renew_lock)


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
    # One thread: a fork copies no others, and results must not depend on their number.
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
    tell: Callable[[Any], None] | None = None,
    stop: threading.Event | None = None,
    grace: float = 0.0,
    silence: float | None = None,
    landlock: bool = True,
) -> Any:
    """Run ``work(argument, tell)`` in a process of its own and return its result.

    Parameters
    ----------
    work : callable
        A function of a module. Its result, and what it tells, must be plain values: numbers,
        texts, bytes, arrays and containers of them.
    argument : object
        What it is given; it is pickled.
    limits : Limits
        Memory and time. They hold for restricted calls; the clock holds for all.
    is_restricted : bool, default=True
        Take files, network and other processes away first. False is for the operator's own models,
        which may use several processes or a cluster: they get the environment of the caller.
    modules : tuple of str
        Imported before anything is taken away: code that the operator trusts.
    tell : callable, optional
        Called here with each value that the work tells.
    stop : Event, optional
        When it is set the process is ended, `grace` seconds later.
    silence : float, optional
        So many seconds without a word, and the process is ended.

    Raises
    ------
    StoppedError, TimeLimitError, EndedError
        There is no result, and the process is gone.
    """
    watch = _Watch(limits, stop, grace, silence)
    shared = None if is_restricted else Surroundings(dict(os.environ), str(Path.cwd()))
    order = Order(work, argument, limits, is_restricted, modules, landlock, shared)
    with _Line(order) as line:
        while True:
            kind, value = line.receive(watch, limits.result)
            if kind == RESULT:
                return value
            if kind == FAILURE:
                raise EndedError(str(value)[:60])
            if kind == MESSAGE and tell is not None:
                tell(value)


def modules_of(content: bytes, trusted: Iterable[Any]) -> tuple[str, ...]:
    """Return what to import before a model is built: code that is trusted, and torch for nets."""
    names = {
        state.import_path(item) if isinstance(item, str) else item.__module__ + "."
        for item in trusted
    }
    nets = {"letheon.deep."} if b"letheon.deep." in content else set()
    return tuple(sorted({name.rpartition(".")[0] for name in names | nets}))


class _Watch:
    """Decides when a call has taken too long."""

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

    def wait_for(self, connection: Connection, heard_at: float) -> None:
        """Return when there is something to read; raise when there is no more time."""
        is_ready = False
        while not is_ready:
            is_ready = bool(wait([connection], _LOOK_SECONDS))
            now = time.monotonic()
            if self.stop is not None and self.stop.is_set():
                self.stop_at = self.stop_at or now + self.grace
                if now >= self.stop_at:
                    raise StoppedError("asked to stop")
            is_silent = self.silence is not None and now > heard_at + self.silence
            if is_silent or now > self.deadline:
                raise TimeLimitError("the call took longer than its limit")


def _pickled(order: Order) -> Any:
    """Return the bytes of an order; functions and classes of a script go by their code."""
    try:
        data = ForkingPickler.dumps(order)
        # What a script defines is named, and the child has another script.
        if re.search(b"__main__", data) is None:
            return data
    except (AttributeError, TypeError, PicklingError):
        pass
    return ForkingPickler.dumps(joblib.wrap_non_picklable_objects(order, keep_wrapper=False))


class _Line:
    """The line to a child; the child is ended when it is closed."""

    def __init__(self, order: Order) -> None:
        self._connection, self._status = _caller.fork((order.work.__module__,))
        try:
            self._connection.send(sys.path)
            self._connection.send_bytes(_pickled(order))
        except (BrokenPipeError, ConnectionResetError):
            reason = _reason(self._status)
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

    def receive(self, watch: _Watch, most: int) -> tuple[bytes, Any]:
        """Return kind and value of the next message; what is no plain value is no message."""
        heard_at = time.monotonic()
        kind, size = HEADER.unpack(self._read(HEADER.size, watch, heard_at))
        if size > most:
            raise EndedError("answer-too-long")
        data = self._read(size, watch, heard_at)
        try:
            return kind, state.decode_plain(data)
        except StateError:
            raise EndedError("forged-answer") from None

    def _read(self, size: int, watch: _Watch, heard_at: float) -> bytearray:
        """Read so many bytes; a child that stalls in the middle is waited for no longer."""
        data = bytearray()
        while len(data) < size:
            watch.wait_for(self._connection, heard_at)
            try:
                part = os.read(self._connection.fileno(), min(size - len(data), _PART))
            except OSError:
                part = b""
            if not part:
                raise EndedError(_reason(self._status))
            data += part
        return data


def _reason(status: socket.socket) -> str:
    """Return why a process ended, as a code."""
    status.settimeout(5)
    with contextlib.suppress(OSError, struct.error):
        (code,) = struct.unpack("i", status.recv(4))
        if os.WIFSIGNALED(code):
            return _SIGNALS.get(signal.Signals(os.WTERMSIG(code)), "process-ended")
    return "process-ended"


_probed: list[Protection] = []


def protection() -> Protection:
    """Return what `probe` found when it was first asked; nothing while no process can start."""
    if not _probed:
        try:
            _probed.append(probe())
        except (SandboxError, OSError):
            return Protection("none", "none")
    return _probed[0]


def probe(*, landlock: bool = True) -> Protection:
    """Return what is blocked in a sandboxed process on this machine, from one that was started."""
    limits = Limits(memory=1 << 30, seconds=60.0)
    # A child says what is blocked before its work begins, whatever that is.
    with _Line(Order(print, None, limits, True, (), landlock)) as line:
        kind, value = line.receive(_Watch(limits), 1 << 20)
    if kind != PROTECTION:
        raise EndedError("no-protection")
    return Protection(**value)
