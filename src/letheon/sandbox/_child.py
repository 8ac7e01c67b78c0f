"""The processes of sandboxed calls: a zygote that imports everything once, and a child per call.

Starting Python and importing scikit-learn takes seconds, a fork takes milliseconds. So one zygote
per caller imports everything once and forks a child for each call. The zygote starts with a clean
environment and without the open files of the caller. It has no keys and no database. The zygote
ends when the caller ends, and its children end with it.

A child receives an order from its caller, drops its privileges, runs the function and reports. All
reports are plain data in canonical bytes, so a model that takes over the child can only send
values to the caller.
"""

import contextlib
import ctypes
import gc
import os
import re
import resource
import selectors
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import joblib

from letheon import state
from letheon.sandbox._kernel import Limits, Protection, restrict

Report = Callable[[Any], None]
Work = Callable[[Any, Report], Any]

MESSAGE, RESULT, FAILURE, PROTECTION = b"m", b"r", b"f", b"p"
# Kind and length of the following message: one value in canonical bytes.
HEADER = struct.Struct("<cQ")
_LONGEST = 1 << 16
_active: list[Protection] = []
_PR_SET_PDEATHSIG = 1
# Modules that most calls need; an import error is reported by the call that needs the module.
_PRELOADED = (
    "letheon.naive letheon.sharded letheon.table_pipeline "
    "sklearn.ensemble sklearn.linear_model sklearn.pipeline sklearn.preprocessing"
)


@dataclass(frozen=True)
class CallOrder:
    """One call: function, argument, limits and restrictions."""

    work: Work
    argument: Any
    limits: Limits
    is_restricted: bool
    modules: tuple[str, ...]
    landlock: bool
    caller_environment: "CallerEnvironment | None" = None


@dataclass(frozen=True)
class CallerEnvironment:
    """Environment variables and working directory of the caller, for unrestricted calls."""

    environment: dict[str, str]
    folder: str

    def apply_here(self) -> None:
        """Set the environment variables and the working directory of this process."""
        os.environ.clear()
        os.environ.update(self.environment)
        with contextlib.suppress(OSError):
            os.chdir(self.folder)


def error_code(error: BaseException) -> str:
    """Return a code for the type of an error, such as ``value-error``.

    The message is not included, because it may contain ids or values of rows.

    Parameters
    ----------
    error : BaseException
        The error.

    Returns
    -------
    str

    Examples
    --------
    >>> from letheon.sandbox import error_code
    >>> error_code(ValueError("a value that may be secret"))
    'value-error'
    """
    name = type(error).__name__
    spaced = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)
    return re.sub("[^a-z0-9-]", "", spaced).strip("-")[:60] or "error"


def is_inside() -> bool:
    """Return whether this process runs a restricted call.

    Examples
    --------
    >>> from letheon.sandbox import is_inside
    >>> is_inside()
    False
    """
    return bool(_active)


def serve_call(connection: Connection) -> None:
    """Receive a call, run it, and send its result or a code for its error."""

    def send(kind: bytes, value: Any) -> None:
        data = state.encode(value)
        _write_all(connection.fileno(), HEADER.pack(kind, len(data)))
        _write_all(connection.fileno(), data)

    try:
        sys.path[:] = connection.recv()
        order: CallOrder = connection.recv()
        if order.caller_environment is not None:
            order.caller_environment.apply_here()
        _import_modules(order.modules)
        result = _run_call(order, send)
    except MemoryError:
        send(FAILURE, "memory-limit")
    except Exception as error:  # noqa: BLE001  (the caller gets the kind of any error)
        send(FAILURE, error_code(error))
    else:
        send(RESULT, result)


def _write_all(number: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(number, rest) :]


def _run_call(order: CallOrder, send: Callable[[bytes, Any], None]) -> Any:
    def report(value: Any) -> None:
        send(MESSAGE, value)

    if not order.is_restricted:
        return order.work(order.argument, report)
    protection = restrict(order.limits, landlock=order.landlock)
    _active.append(protection)
    send(PROTECTION, {"files": protection.files, "calls": protection.calls})
    # joblib runs tasks sequentially in this process, for any `n_jobs`.
    with joblib.parallel_config(backend="sequential"):
        return order.work(order.argument, report)


@dataclass(frozen=True)
class _ChildProcess:
    """A child process and its status socket; the caller closes the socket to kill the child."""

    pid: int
    watch: int
    status: socket.socket


class _Zygote:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.pid = os.getpid()
        self.jobs: set[_ChildProcess] = set()

    def serve(self) -> None:
        """Fork a child for each message, until the caller closes the socket."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.control:
                    if not self._accept_call():
                        return
                elif key.data not in self.jobs:
                    continue  # already reaped in this round
                elif key.fileobj == key.data.watch:
                    self._reap_child(key.data)
                else:
                    self._kill_child(key.data)

    def _accept_call(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self.control, _LONGEST, 2)
        if not message:
            return False
        try:
            call, status = descriptors
            self._fork_child(message.decode().split(), call, status)
        except (OSError, ValueError):
            # Too many processes or open files: only this call fails.
            for number in descriptors:
                with contextlib.suppress(OSError):
                    os.close(number)
        return True

    def _fork_child(self, modules: list[str], call: int, status: int) -> None:
        _import_modules(modules)
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            self._become_child(call)
        job = _ChildProcess(pid, os.pidfd_open(pid), socket.socket(fileno=status))
        os.close(call)
        self.jobs.add(job)
        self.selector.register(job.watch, selectors.EVENT_READ, job)
        self.selector.register(job.status, selectors.EVENT_READ, job)

    def _become_child(self, call: int) -> None:
        code = 1
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == self.pid:
                _close_all_but(call)
                with Connection(call) as connection:
                    serve_call(connection)
                code = 0
        finally:
            os._exit(code)

    def _kill_child(self, job: _ChildProcess) -> None:
        """Kill a child whose caller closed the connection; `serve` reaps it when it has ended."""
        self.selector.unregister(job.status)
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                send(job.pid, signal.SIGKILL)

    def _reap_child(self, job: _ChildProcess) -> None:
        _, code = os.waitpid(job.pid, 0)
        self.jobs.discard(job)
        self.selector.unregister(job.watch)
        os.close(job.watch)
        with contextlib.suppress(KeyError):
            self.selector.unregister(job.status)
        with job.status, contextlib.suppress(OSError):
            job.status.send(struct.pack("i", code))


def _import_modules(names: Iterable[str]) -> None:
    """Import modules; a missing module is ignored here and reported when the model is built."""
    for name in names:
        with contextlib.suppress(ImportError):
            import_module(name)


def _close_all_but(kept: int) -> None:
    """Close all inherited files except `kept`; redirect standard streams to /dev/null."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 20)
    os.closerange(3, kept)
    os.closerange(kept + 1, limit)


def main(number: int) -> None:
    """Run the zygote: serve the caller at the other end of a socket.

    `number` is the file descriptor of the socket.
    """
    # A terminal signals the whole group; the caller ends this process by closing the socket.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _import_modules(_PRELOADED.split())
    # The first call starts a program, which a child cannot do; its result is cached.
    joblib.cpu_count(only_physical_cores=True)
    # The working directory is a removed directory: it is empty and nothing can be created in it.
    folder = Path(tempfile.mkdtemp(prefix="letheon-"))
    os.chdir(folder)
    folder.rmdir()
    with socket.socket(fileno=number) as control:
        _Zygote(control).serve()
