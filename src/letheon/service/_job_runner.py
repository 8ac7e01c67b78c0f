"""What a worker does with the jobs of a desk: apply, retrain, what-if, audit."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from letheon.exceptions import (
    KeyFileError,
    LedgerBusyError,
    LedgerError,
    LedgerMissingError,
    StaleWorkerError,
    StateError,
    UnknownModelError,
)
from letheon.ledger import Ledger, Step
from letheon.ledger.leases import owner_name
from letheon.ledger.models.info import all_models
from letheon.ledger.models.versions import ModelRow, VersionRow, content_of, find_model, read_head
from letheon.ledger.worker.compute import code_of
from letheon.sandbox import (
    EndedError,
    Limits,
    SandboxError,
    StoppedError,
    TimeLimitError,
    call,
    modules_of,
)
from letheon.service._audit_job import (
    AuditOrder,
    NothingToTamperError,
    concerns,
    damaged,
    levels_for,
    look,
    tamper,
    to_result,
)
from letheon.service._jobs import LEASE_SECONDS, LONG, SHORT, Job, Jobs, Kind
from letheon.service._rooms import private_room
from letheon.service._what_if import RETRAIN, WhatIfOrder, measure, not_run, trimmed

__all__ = ["LONG", "SHORT", "JobRunner"]

_PATIENCE_SECONDS = 120.0
_METHOD_SECONDS = 60.0
_AGAIN_SECONDS = 0.5
_WHAT_IF_SECONDS = 3600.0
# Methods that may be ended before the rest is not tried.
_MOST_ROUNDS = 20
_LARGEST_MESSAGE = 1 << 20
_DONE_BY = ("applied", "retrained", "failed")


class _FailedError(Exception):
    """A job could not be done: a code, and words without anything of a person."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


class JobRunner:
    """Claims jobs and does them.

    Parameters
    ----------
    ledger : Ledger
        Whose desk asks.
    stop : Event
        When it is set, work that only looks is ended and given back; a batch is finished first.
    method_seconds : float, default=60
        How long one method may take in a what-if.

    Notes
    -----
    A worker does one job that changes a model and one that only looks at a time.
    """

    def __init__(
        self, ledger: Ledger, stop: threading.Event, *, method_seconds: float = _METHOD_SECONDS
    ) -> None:
        self._ledger = ledger
        self._stop = stop
        self._method_seconds = method_seconds
        self.jobs = Jobs(ledger)

    def do_all(self, kinds: Iterable[Kind] = (*SHORT, *LONG)) -> int:
        """Do jobs until none is left or somebody says stop; return how many."""
        wanted, n_done = tuple(kinds), 0
        while not self._stop.is_set() and self.do_next(wanted) is not None:
            n_done += 1
        return n_done

    def do_next(self, kinds: Iterable[Kind]) -> Job | None:
        """Do the next job of these kinds that waits; return it as it was claimed."""
        job = self.jobs.claim(owner_name(), kinds=kinds)
        if job is not None:
            # Whoever took it over, after a pause of this process, goes on with it.
            with contextlib.suppress(StaleWorkerError), self._kept(job):
                self._do(job)
        return job

    def _do(self, job: Job) -> None:
        work: dict[str, Callable[[Job], dict[str, Any]]] = {
            "apply": self._apply,
            "retrain": self._retrain,
            "what-if": self._what_if,
            "audit": self._audit,
        }
        try:
            self.jobs.finish(job, work[job.kind](job))
        except StaleWorkerError:
            raise
        except StoppedError:
            self.jobs.release(job)
        except _FailedError as failure:
            self.jobs.fail(job, failure.code, str(failure))
        except EndedError as error:
            self.jobs.fail(job, str(error), "the process that did it ended without a result")
        except UnknownModelError:
            self.jobs.fail(job, "unknown-model", "there is no such model")
        except Exception as error:  # noqa: BLE001  (a job must come to an end; texts may name people)
            self.jobs.fail(job, code_of(error), "the worker met an error; its kind is the code")

    @contextlib.contextmanager
    def _kept(self, job: Job) -> Iterator[None]:
        """Renew the lease in the background while something long is done."""
        done = threading.Event()

        def renew_until_done() -> None:
            while not done.wait(LEASE_SECONDS / 3):
                # If that fails the next change of the job tells.
                with contextlib.suppress(Exception):
                    self.jobs.renew(job)

        thread = threading.Thread(target=renew_until_done, name="letheon-job-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _apply(self, job: Job) -> dict[str, Any]:
        """Apply what is queued for a model now; another worker that is at it is waited for."""
        model, tenant = str(job.model), str(job.tenant)
        own = _Own(model)
        for _ in self._patiently("another worker is at this model"):
            found = self._ledger.steps(
                force=True, model=model, tenant=tenant, apart=True, stop=self._stop
            )
            with contextlib.closing(cast("Generator[Step, None, None]", found)) as steps:
                was_busy = self._told(job, own, steps)
            if not was_busy:
                break
        return own.result()

    def _told(self, job: Job, own: "_Own", steps: Iterable[Step]) -> bool:
        """Follow the steps; return whether another worker had the model."""
        was_busy = False
        for step in steps:
            if step.what == "waits" and step.model == own.model:
                was_busy = True
            elif own.is_mine(step):
                self.jobs.progress(job, _words(step))
            if self._stop.is_set():
                # What is begun is on the disk; whoever comes next goes on with it.
                raise StoppedError
        return was_busy

    def _retrain(self, job: Job) -> dict[str, Any]:
        model, tenant = str(job.model), str(job.tenant)
        own = _Own(model)
        self.jobs.progress(job, "trains the model afresh")
        for _ in self._patiently("another worker is at this model"):
            try:
                steps = self._ledger.retrain(model, tenant=tenant, apart=True, stop=self._stop)
            except LedgerBusyError:
                continue
            except UnknownModelError:
                raise
            except LedgerError as error:
                raise _FailedError("nothing-to-retrain", str(error)) from error
            self._told(job, own, steps)
            break
        return own.result()

    def _patiently(self, why: str) -> Iterator[None]:
        """Yield until the caller breaks off, with pauses; give up after a while."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            yield
            if self._stop.wait(_AGAIN_SECONDS):
                raise StoppedError
        raise _FailedError("busy", f"{why}; ask again later")

    def _what_if(self, job: Job) -> dict[str, Any]:
        order = self._order(job)
        size = len(order.model) + len(order.rows)
        limits = replace(Limits.for_input(size, seconds=_WHAT_IF_SECONDS), result=_LARGEST_MESSAGE)
        scene: dict[str, Any] = {}
        rows: list[dict[str, Any]] = []
        trying: dict[str, Any] = {}

        def hear(message: dict[str, Any]) -> None:
            scene.update(message.get("scene", {}))
            if "begin" in message:
                trying.clear()
                trying.update(message)
                self.jobs.progress(job, f"tries {message['begin']}")
            if "row" in message:
                rows.append(message["row"])

        for _ in range(_MOST_ROUNDS):
            trying.clear()
            begun = trimmed(order, tuple(one["name"] for one in rows), _baseline(rows))
            try:
                call(
                    measure,
                    begun,
                    limits=limits,
                    modules=modules_of(order.model, order.trusted),
                    tell=hear,
                    stop=self._stop,
                    silence=self._method_seconds,
                )
                break
            except (TimeLimitError, EndedError) as error:
                rows.append(_gave_nothing(trying, error, self._method_seconds))
        return {**scene, "methods": rows}

    def _order(self, job: Job) -> WhatIfOrder:
        """Return a model and its rows as bytes: the process that measures has no keys."""
        core, tenant, name = self._ledger._core, str(job.tenant), str(job.model)
        with core.database.reading() as conn:
            model = find_model(conn, name, tenant)

        def read(head: VersionRow) -> tuple[bytes, bytes]:
            return (
                content_of(core, model, head, "model"),
                content_of(core, model, head, "rows"),
            )

        content, rows = read_head(core, model, read)
        people, settle = int(job.asked["people"]), core.settings.policy.settle
        return WhatIfOrder(content, rows, model.trusted, people, settle)

    def _audit(self, job: Job) -> dict[str, Any]:
        start, drill = time.monotonic(), job.asked["drill"]
        changed = None
        with private_room(self._ledger, "audit") as room:
            self.jobs.progress(job, "exports the bundle of an auditor")
            bundle = self._exported(job, room / "bundle")
            if bundle is None:
                report = self._damaged(job)
            else:
                changed = None if drill == "none" else _tampered(bundle, drill)
                if changed is not None:
                    self.jobs.progress(job, f"drill: changed {changed}, in the copy only")
                report = self._looked(job, bundle)
        seconds = round(time.monotonic() - start, 2)
        found = to_result(report, job.tenant)
        return {**found, "drill": drill, "changed": changed, "seconds": seconds}

    def _exported(self, job: Job, folder: Path) -> Path | None:
        """Return the bundle; None if the ledger's own files are not what it signed."""
        for _ in self._patiently("a batch is applied and not certified yet"):
            try:
                return self._ledger.export(
                    folder, tier="auditor", model=job.model, tenant=job.tenant
                )
            except (StateError, LedgerMissingError, KeyFileError):
                return None
            except LedgerError:
                continue
        return None

    def _damaged(self, job: Job) -> dict[str, Any]:
        name = "" if job.model is None else _in_certificates(str(job.tenant), job.model)
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        report = damaged(self._ledger.name, self._ledger.public_key, name, now)
        self._tell_level(job, report["levels"][0])
        return report

    def _looked(self, job: Job, bundle: Path) -> dict[str, Any]:
        wanted = None if job.model is None else _in_certificates(str(job.tenant), job.model)
        if wanted is not None and not (bundle / "models").is_dir():
            raise _FailedError(
                "nothing-certified", "the model has no certificate yet; erase somebody first"
            )
        own = self._models(job.tenant)
        order = AuditOrder(
            bundle=str(bundle),
            key=self._ledger.public_key,
            levels=levels_for(job.asked["levels"], job.asked["drill"]),
            model=wanted,
            trusted=tuple(sorted({name for model in own for name in model.trusted})),
            tenant=job.tenant,
            models=tuple(model.id for model in own),
        )

        def hear(level: dict[str, Any]) -> None:
            if self._stop.is_set():
                raise StoppedError
            self._tell_level(job, level)

        return look(order, hear, stop=self._stop)

    def _tell_level(self, job: Job, level: dict[str, Any]) -> None:
        if concerns(job.tenant, level["model"]):
            about = f" of {level['model']}" if level["model"] else ""
            words = f"{level['level']} ({level['name']}){about}: {level['verdict']}"
            found = {name: level[name] for name in _SHOWN}
            self.jobs.progress(job, words, found)

    def _models(self, tenant: str | None) -> list[ModelRow]:
        with self._ledger._core.database.reading() as conn:
            return all_models(conn, tenant)


_SHOWN = ("level", "name", "model", "verdict", "reason", "promised")


class _Own:
    """Of all steps, those that belong to one model; others are none of the asker's business."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._steps: list[Step] = []
        self._sequences: set[int | None] = set()

    def is_mine(self, step: Step) -> bool:
        """Keep a step if it belongs to the model; return whether it does."""
        if step.what in _DONE_BY and step.model == self.model and not self._is_late(step):
            self._sequences |= {step.sequence} - {None}
        elif step.sequence not in self._sequences:
            return False
        self._steps.append(step)
        return True

    @staticmethod
    def _is_late(step: Step) -> bool:
        """Whether it is the failure of a purge: another tenant may have a model of that name."""
        return step.what == "failed" and step.sequence is not None

    def result(self) -> dict[str, Any]:
        """Return the steps; raise if the last attempt failed."""
        attempts = [one for one in self._steps if one.what in _DONE_BY and not self._is_late(one)]
        if attempts and attempts[-1].what == "failed":
            raise _FailedError("step-failed", f"the batch failed: {attempts[-1].detail}")
        return {"steps": [vars(one) for one in self._steps]}


def _words(step: Step) -> str:
    number = "" if step.sequence is None else f", certificate {step.sequence}"
    return f"{step.what}{number}: {step.detail}"


def _baseline(rows: list[dict[str, Any]]) -> float | None:
    return next((one["seconds"] for one in rows if one["method"] == RETRAIN), None)


def _gave_nothing(trying: dict[str, Any], error: SandboxError, seconds: float) -> dict[str, Any]:
    """Return the row of a method that was ended; raise if not even the rows could be read."""
    if not trying:
        raise EndedError("process-ended") from error
    words = f"it took more than {seconds:g} s" if isinstance(error, TimeLimitError) else str(error)
    return not_run(trying["method"], trying["begin"], words, is_current=trying["is_current"])


def _tampered(bundle: Path, drill: str) -> str:
    try:
        return tamper(bundle, drill)
    except NothingToTamperError:
        raise _FailedError(
            "nothing-certified", "no model has a certificate yet; there is nothing to change"
        ) from None


def _in_certificates(tenant: str, model: str) -> str:
    return model if tenant == "default" else f"{tenant}/{model}"
