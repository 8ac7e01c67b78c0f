"""The processes of sandboxed calls: a zygote that imports everything once, and a child per call.

Starting Python and importing scikit-learn takes seconds, a fork takes milliseconds. So one zygote
per caller imports everything once, holds nothing else, and forks a child for each call. It was
started with a clean environment and without any file of the caller, has no keys and no database,
and ends with the caller: its children end with it.

A child hears what is to be done, gives up its rights, does it, and tells. What it hears comes from
its own caller. What it tells is plain data in canonical bytes, so that a model that took the child
over can send the caller nothing but values.
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
from letheon.sandbox._kernel import Limits, restrict

Tell = Callable[[Any], None]
Work = Callable[[Any, Tell], Any]

MESSAGE, RESULT, FAILURE, PROTECTION = b"m", b"r", b"f", b"p"
# Kind and length of what follows: one value in canonical bytes.
HEADER = struct.Struct("<cQ")
_LONGEST = 1 << 16
_PR_SET_PDEATHSIG = 1
# What nearly every call needs; a failure to import is the call's own affair.
_PRELOADED = (
    "letheon.forest letheon.naive letheon.sharded letheon.linear letheon.compose "
    "sklearn.ensemble sklearn.linear_model sklearn.pipeline sklearn.preprocessing"
)


@dataclass(frozen=True)
class Order:
    """One call: what to do, what it is given, what it may use."""

    work: Work
    argument: Any
    limits: Limits
    is_restricted: bool
    modules: tuple[str, ...]
    landlock: bool
    surroundings: "Surroundings | None" = None


@dataclass(frozen=True)
class Surroundings:
    """What an unrestricted call shares with its caller: environment and working directory."""

    environment: dict[str, str]
    folder: str

    def enter(self) -> None:
        """Work where the caller works."""
        os.environ.clear()
        os.environ.update(self.environment)
        with contextlib.suppress(OSError):
            os.chdir(self.folder)


def error_code(error: BaseException) -> str:
    """Return the kind of an error as a code: its text may hold ids, or values of rows."""
    name = type(error).__name__
    spaced = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)
    return re.sub("[^a-z0-9-]", "", spaced).strip("-")[:60] or "error"


def serve_call(connection: Connection) -> None:
    """Do what the caller at the other end asks for, and tell how it went."""

    def send(kind: bytes, value: Any) -> None:
        data = state.encode(value)
        _write_all(connection.fileno(), HEADER.pack(kind, len(data)))
        _write_all(connection.fileno(), data)

    try:
        sys.path[:] = connection.recv()
        order: Order = connection.recv()
        if order.surroundings is not None:
            order.surroundings.enter()
        _import(order.modules)
        result = _do(order, send)
    except MemoryError:
        send(FAILURE, "memory-limit")
    except Exception as error:  # noqa: BLE001  (whatever it is, the caller hears of its kind)
        send(FAILURE, error_code(error))
    else:
        send(RESULT, result)


def _write_all(number: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(number, rest) :]


def _do(order: Order, send: Callable[[bytes, Any], None]) -> Any:
    def tell(value: Any) -> None:
        send(MESSAGE, value)

    if not order.is_restricted:
        return order.work(order.argument, tell)
    protection = restrict(order.limits, landlock=order.landlock)
    send(PROTECTION, {"files": protection.files, "calls": protection.calls})
    # One process: whatever `n_jobs` says, joblib does the tasks one after the other.
    with joblib.parallel_config(backend="sequential"):
        return order.work(order.argument, tell)


@dataclass(frozen=True)
class _Job:
    """A child, and the socket by which the caller asks for its end and hears of it."""

    pid: int
    watch: int
    status: socket.socket


class _Zygote:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.pid = os.getpid()
        self.jobs: set[_Job] = set()

    def serve(self) -> None:
        """Fork a child for each message, until the caller is gone."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.control:
                    if not self._accept():
                        return
                elif key.data not in self.jobs:
                    continue  # reaped in this very round
                elif key.fileobj == key.data.watch:
                    self._reap(key.data)
                else:
                    self._kill(key.data)

    def _accept(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self.control, _LONGEST, 2)
        if not message:
            return False
        try:
            call, status = descriptors
            self._fork(message.decode().split(), call, status)
        except (OSError, ValueError):
            # Too many processes or files: this call fails, the others go on.
            for number in descriptors:
                with contextlib.suppress(OSError):
                    os.close(number)
        return True

    def _fork(self, modules: list[str], call: int, status: int) -> None:
        _import(modules)
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            self._become_child(call)
        job = _Job(pid, os.pidfd_open(pid), socket.socket(fileno=status))
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

    def _kill(self, job: _Job) -> None:
        """End a child whose caller hung up; it is reaped when the kernel says so."""
        self.selector.unregister(job.status)
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                send(job.pid, signal.SIGKILL)

    def _reap(self, job: _Job) -> None:
        _, code = os.waitpid(job.pid, 0)
        self.jobs.discard(job)
        self.selector.unregister(job.watch)
        os.close(job.watch)
        with contextlib.suppress(KeyError):
            self.selector.unregister(job.status)
        with job.status, contextlib.suppress(OSError):
            job.status.send(struct.pack("i", code))


def _import(names: Iterable[str]) -> None:
    """Import modules; what is missing is told when the model is built."""
    for name in names:
        with contextlib.suppress(ImportError):
            import_module(name)


def _close_all_but(kept: int) -> None:
    """Close everything that the zygote had open; input and output lead nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 20)
    os.closerange(3, kept)
    os.closerange(kept + 1, limit)


def main(number: int) -> None:
    """Serve the caller at the other end of a socket."""
    # A signal to the group of a terminal is for the caller, who ends this process by hanging up.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _import(_PRELOADED.split())
    # It asks a program once; a child can start none.
    joblib.cpu_count(only_physical_cores=True)
    # A folder that has nothing in it and in which nothing can be made: it is removed.
    folder = Path(tempfile.mkdtemp(prefix="letheon-"))
    os.chdir(folder)
    folder.rmdir()
    with socket.socket(fileno=number) as control:
        _Zygote(control).serve()
