"""The process that sandboxed calls are forked from: ``python -m letheon.sandbox._zygote FD``.

Starting Python and importing scikit-learn takes seconds, a fork takes milliseconds. So one process
per caller imports everything once, holds nothing else, and forks a child for each call. It was
started with a clean environment and without any file of the caller, has no keys and no database,
and ends with the caller: its children end with it.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import joblib

from letheon.sandbox._child import serve_call

__all__ = ["main"]

_LONGEST = 1 << 16
_PR_SET_PDEATHSIG = 1
# What nearly every call needs; a failure to import is the call's own affair.
_PRELOADED = (
    "letheon.forest",
    "letheon.naive",
    "letheon.sharded",
    "letheon.linear",
    "letheon.compose",
    "sklearn.ensemble",
    "sklearn.linear_model",
    "sklearn.pipeline",
    "sklearn.preprocessing",
)


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


def _import(names: list[str]) -> None:
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _close_all_but(kept: int) -> None:
    """Close everything that the zygote had open; input and output lead nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 20)
    os.closerange(3, kept)
    os.closerange(kept + 1, limit)


def _enter_empty_folder() -> None:
    """Work in a folder that has nothing in it and in which nothing can be made: it is removed."""
    folder = Path(tempfile.mkdtemp(prefix="letheon-"))
    os.chdir(folder)
    folder.rmdir()


def main(number: int) -> None:
    """Serve the caller at the other end of a socket."""
    # A signal to the group of a terminal is for the caller, who ends this process by hanging up.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _import(list(_PRELOADED))
    # It asks a program once; a child can start none.
    joblib.cpu_count(only_physical_cores=True)
    _enter_empty_folder()
    with socket.socket(fileno=number) as control:
        _Zygote(control).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
