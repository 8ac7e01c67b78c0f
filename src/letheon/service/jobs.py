"""What a worker does with the jobs of a desk: apply, retrain, what-if, audit.

An audit looks at a bundle with the public key, in processes that have nothing else. Certificates,
log and requests are one chain for all tenants: a tenant's token sees of the whole whether it holds,
and of requests and models only what is the tenant's. A *drill* changes one byte of the copy first.
Then the audit must fail; one that passes would be worth nothing. The ledger is never changed.
"""

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from letheon import exceptions
from letheon.audit import AuditReport, Bundle, LevelResult, audit, check_requests, key_text
from letheon.ledger import Ledger, Step
from letheon.ledger.db.jobs import (
    CHANGING_KINDS,
    LEASE_SECONDS,
    READING_KINDS,
    JobRecord,
    Jobs,
    Kind,
)
from letheon.ledger.leases import owner_name
from letheon.ledger.models import versions
from letheon.ledger.worker.compute import failure_code
from letheon.sandbox import (
    EndedError,
    Limits,
    SandboxError,
    StoppedError,
    TimeLimitError,
    call,
    modules_of,
)
from letheon.service.temp_folders import temp_folder
from letheon.service.what_if import RETRAIN, WhatIfOrder, measure, row_not_run
from letheon.verifier import overall

__all__ = ["CHANGING_KINDS", "READING_KINDS", "SHOWN", "Drill", "JobRunner", "audit_verdict"]

_PATIENCE_SECONDS = 120.0
_METHOD_SECONDS = 60.0
_AGAIN_SECONDS = 0.5
_WHAT_IF_SECONDS = 3600.0
# Methods that may be ended before the rest is not tried.
_MOST_ROUNDS = 20
_LARGEST_MESSAGE = 1 << 20
_DONE_BY = ("applied", "retrained", "failed")

Drill = Literal["none", "model", "certificate", "log"]

# Levels that must notice a change.
_NOTICED_BY: dict[str, tuple[str, ...]] = {
    "none": (),
    "model": ("V0", "V2", "V4", "V5"),
    "certificate": ("V0",),
    "log": ("V0", "V1"),
}
# What an untrusted model raised may quote rows.
_QUOTES = re.compile(r"(it could not be looked at: \w+):.*", re.DOTALL)
_LONGEST_REASON = 600
_ROOT = b'"root":"'
# What a tenant sees of all tenants' things: counts in other reasons would be of other tenants.
_OF_THE_WHOLE = {
    "pass": "of the whole ledger: it holds",
    "fail": "of the whole ledger: it does not hold; ask the operator of the desk",
    "skipped": "of the whole ledger: it was not looked at",
}
SHOWN = ("level", "name", "model", "verdict", "reason", "promised")


class _JobError(Exception):
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
        When it is set, work that only reads is ended and given back; a batch is finished first.
    method_seconds : float, default=60
        How long one method may take in a what-if.

    Notes
    -----
    A worker does one job that changes a model and one that only reads at a time.
    """

    def __init__(
        self, ledger: Ledger, stop: threading.Event, *, method_seconds: float = _METHOD_SECONDS
    ) -> None:
        self._ledger = ledger
        self._stop = stop
        self._method_seconds = method_seconds
        self.jobs = Jobs(ledger)

    def do_all(self, kinds: Iterable[Kind] = (*CHANGING_KINDS, *READING_KINDS)) -> int:
        """Do jobs until none is left or `stop` is set; return how many."""
        wanted, n_done = tuple(kinds), 0
        while not self._stop.is_set() and self.do_next(wanted) is not None:
            n_done += 1
        return n_done

    def do_next(self, kinds: Iterable[Kind]) -> JobRecord | None:
        """Do the next job of these kinds that waits; return it as it was claimed."""
        job = self.jobs.claim(owner_name(), kinds=kinds)
        if job is not None:
            # A worker that took it over, after a pause of this process, goes on with it.
            with contextlib.suppress(exceptions.StaleWorkerError), self._renewing(job):
                self._do(job)
        return job

    def _do(self, job: JobRecord) -> None:
        work: dict[str, Callable[[JobRecord], dict[str, Any]]] = {
            "apply": self._apply,
            "retrain": self._retrain,
            "what-if": self._what_if,
            "audit": self._audit,
        }
        try:
            self.jobs.finish(job, work[job.kind](job))
        except exceptions.StaleWorkerError:
            raise
        except StoppedError:
            self.jobs.release(job)
        except _JobError as failure:
            self.jobs.fail(job, failure.code, str(failure))
        except EndedError as error:
            self.jobs.fail(job, str(error), "the process that did it ended without a result")
        except exceptions.UnknownModelError:
            self.jobs.fail(job, "unknown-model", "there is no such model")
        except Exception as error:  # noqa: BLE001  (a job must come to an end; texts may name people)
            self.jobs.fail(
                job, failure_code(error), "the worker met an error; its kind is the code"
            )

    @contextlib.contextmanager
    def _renewing(self, job: JobRecord) -> Iterator[None]:
        """Renew the lease in the background while something long is done."""
        done = threading.Event()

        def renew_until_done() -> None:
            while not done.wait(LEASE_SECONDS / 3):
                # If that fails the next change of the job raises.
                with contextlib.suppress(Exception):
                    self.jobs.renew(job)

        thread = threading.Thread(target=renew_until_done, name="letheon-job-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _apply(self, job: JobRecord) -> dict[str, Any]:
        """Apply what is queued for a model now."""
        options: dict[str, Any] = {"model": job.model, "tenant": job.tenant}
        options |= {"force": True, "apart": True, "stop": self._stop}
        return self._do_steps(job, lambda: self._ledger.steps(**options))

    def _retrain(self, job: JobRecord) -> dict[str, Any]:
        def begin() -> Iterator[Step]:
            model, tenant = str(job.model), str(job.tenant)
            try:
                yield from self._ledger.models.retrain(
                    model, tenant=tenant, apart=True, stop=self._stop
                )
            except exceptions.LedgerBusyError:
                yield Step("waits", model, None, "")
            except exceptions.UnknownModelError:
                raise
            except exceptions.LedgerError as error:
                raise _JobError("nothing-to-retrain", str(error)) from error

        self.jobs.add_progress(job, "trains the model afresh")
        return self._do_steps(job, begin)

    def _do_steps(self, job: JobRecord, begin: Callable[[], Iterator[Step]]) -> dict[str, Any]:
        """Do steps, again while another worker has the model; return those that belong to it.

        Others are not for the caller to see.
        """
        own: list[Step] = []
        sequences: set[int | None] = set()
        failure: str | None = None
        for _ in self._retry("another worker is at this model"):
            is_busy = False
            with contextlib.closing(cast("Generator[Step, None, None]", begin())) as steps:
                for step in steps:
                    is_busy |= step.what == "waits" and step.model == job.model
                    if _is_attempt(step, job):
                        sequences |= {step.sequence} - {None}
                        failure = step.detail if step.what == "failed" else None
                    if _is_attempt(step, job) or step.sequence in sequences:
                        own.append(step)
                        number = "" if step.sequence is None else f", certificate {step.sequence}"
                        self.jobs.add_progress(job, f"{step.what}{number}: {step.detail}")
                    if self._stop.is_set():
                        # What is begun is on the disk; the next worker goes on with it.
                        raise StoppedError
            if not is_busy:
                break
        if failure is not None:
            raise _JobError("step-failed", f"the batch failed: {failure}")
        return {"steps": [vars(one) for one in own]}

    def _retry(self, why: str) -> Iterator[None]:
        """Yield until the caller breaks off, with pauses; give up after a while."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            yield
            if self._stop.wait(_AGAIN_SECONDS):
                raise StoppedError
        raise _JobError("busy", f"{why}; ask again later")

    def _what_if(self, job: JobRecord) -> dict[str, Any]:
        order = self._read_order(job)
        size = len(order.model) + len(order.rows)
        limits = replace(Limits.for_input(size, seconds=_WHAT_IF_SECONDS), result=_LARGEST_MESSAGE)
        scene: dict[str, Any] = {}
        rows: list[dict[str, Any]] = []
        trying: dict[str, Any] = {}

        def receive(message: dict[str, Any]) -> None:
            scene.update(message.get("scene", {}))
            if "begin" in message:
                trying.clear()
                trying.update(message)
                self.jobs.add_progress(job, f"tries {message['begin']}")
            if "row" in message:
                rows.append(message["row"])

        for _ in range(_MOST_ROUNDS):
            trying.clear()
            baseline = next((one["seconds"] for one in rows if one["method"] == RETRAIN), None)
            order = replace(order, done=tuple(one["name"] for one in rows), baseline=baseline)
            modules = modules_of(order.model, order.trusted)
            timing: dict[str, Any] = {"stop": self._stop, "silence": self._method_seconds}
            try:
                call(measure, order, limits=limits, modules=modules, report=receive, **timing)
                break
            except (TimeLimitError, EndedError) as error:
                rows.append(_row_of_ended(trying, error, self._method_seconds))
        return {**scene, "methods": rows}

    def _read_order(self, job: JobRecord) -> WhatIfOrder:
        """Return a model and its rows as bytes: the process that measures has no keys."""
        core = self._ledger._core
        with core.database.reading() as conn:
            model = versions.find_model(conn, str(job.model), str(job.tenant))

        def read(head: versions.VersionRow) -> tuple[bytes, bytes]:
            return versions.read_blob(core, model, head, "model"), versions.read_blob(
                core, model, head, "rows"
            )

        content, rows = versions.read_head(core, model, read)
        people, settle = int(job.asked["people"]), core.settings.policy.settle
        return WhatIfOrder(content, rows, model.trusted, people, settle)

    def _audit(self, job: JobRecord) -> dict[str, Any]:
        start, drill, changed = time.monotonic(), job.asked["drill"], None
        with temp_folder(self._ledger, "audit") as folder:
            self.jobs.add_progress(job, "exports the bundle of an auditor")
            bundle = self._export(job, folder / "bundle")
            if bundle is not None and drill != "none":
                changed = tamper(bundle, drill)
                self.jobs.add_progress(job, f"drill: changed {changed}, in the copy only")
            report = self._report_damage(job) if bundle is None else self._audit_bundle(job, bundle)
        levels = [_to_plain(result) for result in report]
        seen = [one for one in report.subjects if is_visible(job.tenant, str(one["model"]))]
        verdict = audit_verdict(levels)
        if job.tenant is not None and not seen and verdict == "passed":
            # The whole ledger holds, and no certificate is the tenant's: nothing was shown.
            verdict = "incomplete"
        return {
            **{name: getattr(report, name) for name in ("ledger", "key", "audited_at", "scope")},
            "levels": levels,
            "subjects": [json.loads(json.dumps(dict(one), default=str)) for one in seen],
            "verdict": verdict,
            "passed": verdict == "passed",
            "drill": drill,
            "changed": changed,
            "seconds": round(time.monotonic() - start, 2),
        }

    def _export(self, job: JobRecord, folder: Path) -> Path | None:
        """Return the bundle; None if the ledger's own files are not what it signed."""
        for _ in self._retry("a batch is applied and not certified yet"):
            try:
                return self._ledger.export(
                    folder, tier="auditor", model=job.model, tenant=job.tenant
                )
            except (exceptions.StateError, exceptions.LedgerMissingError, exceptions.KeyFileError):
                return None
            except exceptions.LedgerError:
                continue
        return None

    def _report_damage(self, job: JobRecord) -> AuditReport:
        """Return the report on a ledger that cannot hand out its own files as it signed them."""
        reason = "the ledger cannot hand out a file as it signed it: it is damaged or missing"
        result = LevelResult("V4", _certified_name(job) or "", "fail", reason)
        self._report_level(job, result)
        return AuditReport((result,), self._ledger.name, self._ledger.public_key)

    def _audit_bundle(self, job: JobRecord, bundle: Path) -> AuditReport:
        model = _certified_name(job)
        if model is not None and not (bundle / "models").is_dir():
            raise _JobError(
                "nothing-certified", "the model has no certificate yet; erase somebody first"
            )
        listed = self._ledger.models.list(tenant=job.tenant)
        own = [self._ledger.models.row(one.name, one.tenant) for one in listed]
        asked, key = job.asked["levels"], self._ledger.public_key
        # A drill adds the levels that must notice it.
        levels = tuple(sorted({*asked, *_NOTICED_BY[job.asked["drill"]]})) if asked else None

        def for_tenant(result: LevelResult) -> LevelResult | None:
            return _for_tenant(result, job.tenant, bundle, key, tuple(one.id for one in own))

        def receive(result: LevelResult) -> None:
            shown = for_tenant(result)
            if shown is not None:
                if self._stop.is_set():
                    raise StoppedError
                self._report_level(job, shown)

        report = audit(
            str(bundle),
            key=key,
            levels=levels,
            model=model,
            trusted=tuple(sorted({name for model in own for name in model.trusted})),
            progress=receive,
            stop=self._stop,
        )
        return replace(report, results=tuple(one for one in map(for_tenant, report) if one))

    def _report_level(self, job: JobRecord, result: LevelResult) -> None:
        level = _to_plain(result)
        about = f" of {result.model}" if result.model else ""
        words = f"{result.level} ({result.name}){about}: {result.verdict}"
        self.jobs.add_progress(job, words, {name: level[name] for name in SHOWN})


def _is_attempt(step: Step, job: JobRecord) -> bool:
    """Whether a batch was tried; not a failed purge, where another tenant may have the name."""
    is_purge = step.what == "failed" and step.sequence is not None
    return step.model == job.model and step.what in _DONE_BY and not is_purge


def _row_of_ended(trying: dict[str, Any], error: SandboxError, seconds: float) -> dict[str, Any]:
    """Return the row of a method that was ended; raise if not even the rows could be read."""
    if not trying:
        raise EndedError("process-ended") from error
    words = f"it took more than {seconds:g} s" if isinstance(error, TimeLimitError) else str(error)
    return row_not_run(trying["method"], trying["begin"], words, is_current=trying["is_current"])


def _for_tenant(
    result: LevelResult, tenant: str | None, bundle: Path, key: str, models: tuple[int, ...]
) -> LevelResult | None:
    """Return a result as a tenant may see it; None if it is about others only.

    `models` are the numbers of the tenant's models in the events of requests.
    """
    if tenant is None or result.model:
        return result if is_visible(tenant, result.model) else None
    if "requests" in result.details:
        return check_requests(Bundle(bundle, key_text(key)), models)
    return replace(result, reason=_OF_THE_WHOLE[result.verdict], details={})


def _certified_name(job: JobRecord) -> str | None:
    """Return the model of a job as certificates name it."""
    if job.model is None or job.tenant == "default":
        return job.model
    return f"{job.tenant}/{job.model}"


def _to_plain(result: LevelResult) -> dict[str, Any]:
    reason = _QUOTES.sub(r"\1", result.reason)[:_LONGEST_REASON]
    text = json.dumps(result.to_dict() | {"reason": reason}, default=str)
    return cast("dict[str, Any]", json.loads(text))


def is_visible(tenant: str | None, model: str) -> bool:
    """Whether what is said about a model, as certificates name it, may be seen by a tenant.

    What is said about the whole ledger (no model) may be seen by all.
    """
    if tenant is None or model == "":
        return True
    owner, slash, _ = model.partition("/")
    return (owner if slash else "default") == tenant


def audit_verdict(levels: Iterable[Mapping[str, Any]]) -> str:
    """Return the verdict of the levels of a report, as plain values; older ones promise all."""
    words = {"pass": True, "fail": False, "skipped": None}
    return overall((words[one["verdict"]], one.get("promised", True)) for one in levels)


def tamper(bundle: Path, drill: str) -> str:
    """Change one byte of a bundle, and return what was changed, in words."""
    described = json.loads((bundle / "bundle.json").read_bytes())["models"]
    if drill == "log":
        _flip(bundle / "log.json", _ROOT)
        return "one byte of log.json, in the root of its tree"  # its size tells of other tenants
    if not described:
        raise _JobError(
            "nothing-certified", "no model has a certificate yet; there is nothing to change"
        )
    newest = max(described, key=lambda one: int(one["sequence"]))
    if drill == "certificate":
        number = int(newest["sequence"])
        place = _flip(bundle / "certificates" / f"{number:06d}.json")
        return f"one byte of certificate {number}, {place}"
    path = bundle / "models" / newest["tenant"] / newest["name"] / "model.blob"
    return f"one byte of the model file of {newest['name']}, {_flip(path)}"


def _flip(path: Path, after: bytes = b"") -> str:
    data = bytearray(path.read_bytes())
    place = data.index(after) + len(after) if after else len(data) // 2
    data[place] ^= 1
    path.write_bytes(data)
    return f"number {place} of {len(data)}"
