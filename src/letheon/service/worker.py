"""The worker of a desk: ``python -m letheon.service.worker HOME [--parent PID | --poll SECONDS]``.

The worker applies due requests, runs the jobs of the desk, and delivers webhooks. Several workers
may run at once. SIGTERM and SIGINT stop a worker after its current step; it also stops when its
parent process ends. No data is lost if a worker is killed.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from letheon.ledger import Ledger
from letheon.ledger.worker.compute import failure_code
from letheon.sandbox import StoppedError
from letheon.service.jobs import CHANGING_KINDS, READING_KINDS, JobRunner
from letheon.service.middleware import configure_logging, log_line
from letheon.service.settings import ServiceSettings
from letheon.service.temp_folders import sweep_temp_folders
from letheon.service.webhooks import Courier

# Seconds.
_LONGEST_POLL = 1.0
_LOOK_EVERY = 10.0
_TIDY_EVERY = 3600.0
_AFTER_AN_ERROR = 5.0
_ASK_TO_STOP = frozenset({signal.SIGTERM, signal.SIGINT})


class DeskWorker:
    """A worker that applies due requests, runs jobs and delivers webhooks until it is stopped.

    Parameters
    ----------
    ledger : Ledger
        The ledger of the desk.
    settings : ServiceSettings, optional
        Settings with the allowed hosts of webhooks. If they are not given, no webhooks are
        delivered.
    poll : float, default=0.5
        Seconds between two polls; at most 1.
    parent : int, optional
        Process id of the parent; the worker stops when this process ends. By default the current
        parent process.

    Attributes
    ----------
    stop : Event
        When it is set, the worker stops after its current step.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: ServiceSettings | None = None,
        *,
        poll: float = 0.5,
        parent: int | None = None,
    ) -> None:
        self.stop = threading.Event()
        self._ledger = ledger
        self._settings = settings
        self._poll = min(max(poll, 0.01), _LONGEST_POLL)
        self._runner = JobRunner(ledger, self.stop)
        self._parent = os.getppid() if parent is None else parent
        self._seen: int | None = None
        self._look_at = self._tidy_at = 0.0

    def run(self) -> None:
        """Work until `stop` is set or the parent process ends."""
        sweep_temp_folders(self._ledger)
        reading_thread = threading.Thread(target=self._run_reading_jobs, name="letheon-long-jobs")
        reading_thread.start()
        courier = None if self._settings is None else Courier(self._ledger, self._settings)
        try:
            with courier or contextlib.nullcontext():
                while not self._should_stop():
                    self._run_safely(self._run_round)
                    self.stop.wait(self._poll)
        finally:
            self.stop.set()
            reading_thread.join()

    def _run_reading_jobs(self) -> None:
        """Run the jobs that only read, one after the other, in their own thread."""
        while not self.stop.is_set():
            self._run_safely(lambda: self._runner.run_all(READING_KINDS))
            self.stop.wait(self._poll)

    def _run_round(self) -> None:
        done, now = self._runner.run_all(CHANGING_KINDS), time.monotonic()
        # A new event since the last poll: a request, a verification, a step.
        newest = self._runner.jobs.read_newest_event()
        is_new, self._seen = newest != self._seen, newest
        if done or now >= self._look_at or is_new:
            self._look_at = now + _LOOK_EVERY
            self._apply_due()
        if now >= self._tidy_at:
            self._tidy_at = now + _TIDY_EVERY
            self._runner.jobs.forget_old()

    def _apply_due(self) -> None:
        # Closing the generator between two steps releases the lease.
        due = self._ledger.steps(apart=True, stop=self.stop)
        with contextlib.closing(due) as steps, contextlib.suppress(StoppedError):
            for step in steps:
                # The detail of a failure may name a file of a store, so it is not logged.
                detail = None if step.what == "failed" else step.detail
                facts = {"what": step.what, "model": step.model, "sequence": step.sequence}
                log_line("step", **facts, detail=detail)
                if self._should_stop():
                    return

    def _should_stop(self) -> bool:
        if os.getppid() != self._parent:
            self.stop.set()
        return self.stop.is_set()

    def _run_safely(self, work: Any) -> None:
        """Call a function; if it fails, log the type of the error and pause."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  (its text may contain personal data)
            log_line("worker-error", error=failure_code(error))
            self.stop.wait(_AFTER_AN_ERROR)


def main(arguments: list[str]) -> int:
    """Run a worker for the ledger in a folder; return the exit status."""
    home, parent, poll = _parse_arguments(arguments)
    configure_logging()
    # Blocked here and in child processes: a signal to the process group must not end a computation,
    # only ask this process to stop.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ASK_TO_STOP)
    _end_with_parent()
    with Ledger.open(home) as ledger:
        worker = DeskWorker(ledger, ServiceSettings.read(home), poll=poll, parent=parent)
        _watch_signals(worker.stop)
        log_line("worker-started")
        worker.run()
        log_line("worker-stopped")
    return 0


def _watch_signals(stop: threading.Event) -> None:
    """Set the event when SIGTERM or SIGINT arrives, in whichever thread."""
    # Threads that libraries started before the signals were blocked receive them too.
    for number in _ASK_TO_STOP:
        signal.signal(number, lambda *_: stop.set())

    def wait_for_signal() -> None:
        signal.sigwait(_ASK_TO_STOP)
        stop.set()

    threading.Thread(target=wait_for_signal, name="letheon-signals", daemon=True).start()


def _parse_arguments(arguments: list[str]) -> tuple[Path, int | None, float]:
    match arguments:
        case [home]:
            return Path(home), None, 0.5
        case [home, "--parent", number]:
            return Path(home), int(number), 0.5
        case [home, "--poll", seconds]:
            return Path(home), None, float(seconds)
        case _:
            raise SystemExit(
                "usage: python -m letheon.service.worker HOME [--parent PID | --poll SECONDS]"
            )


def _end_with_parent() -> None:
    """Ask the Linux kernel to send SIGTERM to this process when its parent ends.

    On other systems, `DeskWorker.run` polls whether the parent still exists.
    """
    set_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
