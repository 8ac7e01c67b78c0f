"""The jobs of a desk that a worker runs: apply, retrain, what-if, audit.

An audit checks an exported bundle with the public key, in sandboxed processes. Certificates, log
and requests form one chain for all tenants. A tenant's token sees whether the whole chain is valid,
but only its own requests and models. A *drill* is an audit of a bundle in which one byte was
changed first. The audit must then fail, which shows that it detects changes. The ledger itself is
never changed.
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
from letheon.ledger.leases import owner_name, renew_in_background
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
from letheon.service.what_if import RETRAIN, WhatIfOrder, measure_methods, row_not_run
from letheon.verifier import overall

__all__ = ["CHANGING_KINDS", "READING_KINDS", "SHOWN", "Drill", "JobRunner", "audit_verdict"]

_PATIENCE_SECONDS = 120.0
_METHOD_SECONDS = 60.0
_AGAIN_SECONDS = 0.5
_WHAT_IF_SECONDS = 3600.0
# After this many stopped methods, the other methods are skipped.
_MOST_ROUNDS = 20
_LARGEST_MESSAGE = 1 << 20
_DONE_BY = ("applied", "retrained", "failed")

Drill = Literal["none", "model", "certificate", "log"]

# Levels that must detect the change of each drill.
_DETECTED_BY: dict[str, tuple[str, ...]] = {
    "none": (),
    "model": ("V0", "V2", "V4", "V5"),
    "certificate": ("V0",),
    "log": ("V0", "V1"),
}
# The error of an untrusted model may quote rows.
_QUOTES = re.compile(r"(\braised \w+):.*", re.DOTALL)
_LONGEST_REASON = 600
_ROOT = b'"root":"'
# Reasons that a tenant sees for checks of all tenants: the original reasons contain counts.
_LEDGER_REASONS = {
    "pass": "the whole ledger is valid",
    "fail": "the whole ledger is not valid; contact the operator of the desk",
    "skipped": "the whole ledger was not checked",
}
SHOWN = ("level", "name", "model", "verdict", "reason", "promised")


class _JobError(Exception):
    """The failure of a job, with a code and a text without personal data."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


class JobRunner:
    """Runner of waiting jobs, which it claims one at a time.

    Parameters
    ----------
    ledger : Ledger
        The ledger of the desk.
    stop : Event
        When it is set, jobs that only read are stopped and released; a batch is finished first.
    method_seconds : float, default=60
        Time limit for measuring one method in a what-if job.

    Notes
    -----
    At any time, a worker runs at most one job that changes a model and one job that only reads.
    """

    def __init__(
        self, ledger: Ledger, stop: threading.Event, *, method_seconds: float = _METHOD_SECONDS
    ) -> None:
        self._ledger = ledger
        self._stop = stop
        self._method_seconds = method_seconds
        self.jobs = Jobs(ledger)

    def run_all(self, kinds: Iterable[Kind] = (*CHANGING_KINDS, *READING_KINDS)) -> int:
        """Run jobs until none is waiting or `stop` is set; return the number of jobs run."""
        wanted, n_done = tuple(kinds), 0
        while not self._stop.is_set() and self.run_next(wanted) is not None:
            n_done += 1
        return n_done

    def run_next(self, kinds: Iterable[Kind]) -> JobRecord | None:
        """Run the next waiting job of these kinds, and return it; None if no job is waiting."""
        job = self.jobs.claim(owner_name(), kinds=kinds)
        if job is not None:
            # Another worker may have taken the job over while this process was paused.
            renewed = renew_in_background(lambda: self.jobs.renew(job), LEASE_SECONDS / 3)
            with contextlib.suppress(exceptions.StaleWorkerError), renewed:
                self._run_job(job)
        return job

    def _run_job(self, job: JobRecord) -> None:
        work: dict[str, Callable[[JobRecord], dict[str, Any]]] = {
            "apply": self._apply_requests,
            "retrain": self._retrain_model,
            "what-if": self._what_if,
            "audit": self._run_audit,
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
            self.jobs.fail(job, str(error), "the process of the job ended without a result")
        except exceptions.UnknownModelError:
            self.jobs.fail(job, "unknown-model", "there is no such model")
        except Exception as error:  # noqa: BLE001  (its text may contain personal data)
            self.jobs.fail(
                job, failure_code(error), "the job failed; `code` is the type of the error"
            )

    def _apply_requests(self, job: JobRecord) -> dict[str, Any]:
        """Apply the queued requests of a model now, without waiting for a full batch."""
        options: dict[str, Any] = {"model": job.model, "tenant": job.tenant}
        options |= {"force": True, "apart": True, "stop": self._stop}
        return self._run_steps(job, lambda: self._ledger.steps(**options))

    def _retrain_model(self, job: JobRecord) -> dict[str, Any]:
        def start_steps() -> Generator[Step, None, None]:
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

        self.jobs.add_progress(job, "retraining the model")
        return self._run_steps(job, start_steps)

    def _run_steps(
        self, job: JobRecord, start_steps: Callable[[], Generator[Step, None, None]]
    ) -> dict[str, Any]:
        """Run the steps of a job, and try again while another worker uses the model.

        Return the steps of this job; steps of other models are left out.
        """
        own_steps: list[Step] = []
        sequences: set[int | None] = set()
        failure: str | None = None
        for _ in self._retry_while_busy("another worker is processing this model"):
            is_busy = False
            with contextlib.closing(start_steps()) as steps:
                for step in steps:
                    is_busy |= step.what == "waits" and step.model == job.model
                    if _is_attempt(step, job):
                        sequences |= {step.sequence} - {None}
                        failure = step.detail if step.what == "failed" else None
                    if _is_attempt(step, job) or step.sequence in sequences:
                        own_steps.append(step)
                        number = "" if step.sequence is None else f", certificate {step.sequence}"
                        self.jobs.add_progress(job, f"{step.what}{number}: {step.detail}")
                    if self._stop.is_set():
                        # The state is on the disk; the next worker continues from it.
                        raise StoppedError
            if not is_busy:
                break
        if failure is not None:
            raise _JobError("step-failed", f"the batch failed: {failure}")
        return {"steps": [vars(entry) for entry in own_steps]}

    def _retry_while_busy(self, why: str) -> Iterator[None]:
        """Yield for one attempt after another, with pauses, until the caller leaves the loop.

        Raise an error with the reason `why` after the time limit, 120 seconds.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            yield
            if self._stop.wait(_AGAIN_SECONDS):
                raise StoppedError
        raise _JobError("busy", f"{why}; try again later")

    def _what_if(self, job: JobRecord) -> dict[str, Any]:
        order = self._read_order(job)
        size = len(order.model) + len(order.rows)
        limits = replace(Limits.for_input(size, seconds=_WHAT_IF_SECONDS), result=_LARGEST_MESSAGE)
        sizes: dict[str, Any] = {}
        rows: list[dict[str, Any]] = []
        current_method: dict[str, Any] = {}

        def receive(message: dict[str, Any]) -> None:
            sizes.update(message.get("sizes", {}))
            if "begin" in message:
                current_method.clear()
                current_method.update(message)
                self.jobs.add_progress(job, f"measuring {message['begin']}")
            if "row" in message:
                rows.append(message["row"])

        for _ in range(_MOST_ROUNDS):
            current_method.clear()
            baseline = next(
                (entry["seconds"] for entry in rows if entry["method"] == RETRAIN), None
            )
            order = replace(order, done=tuple(entry["name"] for entry in rows), baseline=baseline)
            modules = modules_of(order.model, order.trusted)
            timing: dict[str, Any] = {"stop": self._stop, "silence": self._method_seconds}
            try:
                call(
                    measure_methods, order, limits=limits, modules=modules, report=receive, **timing
                )
                break
            except (TimeLimitError, EndedError) as error:
                rows.append(_make_stopped_row(current_method, error, self._method_seconds))
        return {**sizes, "methods": rows}

    def _read_order(self, job: JobRecord) -> WhatIfOrder:
        """Return a what-if order with the decrypted model and rows; its process has no keys."""
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

    def _run_audit(self, job: JobRecord) -> dict[str, Any]:
        start, drill, changed = time.monotonic(), job.asked["drill"], None
        with temp_folder(self._ledger, "audit") as folder:
            self.jobs.add_progress(job, "exporting an auditor bundle")
            bundle = self._export_bundle(job, folder / "bundle")
            if bundle is not None and drill != "none":
                changed = tamper_bundle(bundle, drill)
                self.jobs.add_progress(job, f"drill: changed {changed}, in the copy only")
            report = self._report_damage(job) if bundle is None else self._audit_bundle(job, bundle)
        levels = [_to_plain(result) for result in report]
        seen = [entry for entry in report.subjects if is_visible(job.tenant, str(entry["model"]))]
        verdict = audit_verdict(levels)
        if job.tenant is not None and not seen and verdict == "passed":
            # The ledger is valid but the tenant has no certificate, so nothing of the tenant was
            # checked.
            verdict = "incomplete"
        return {
            **{name: getattr(report, name) for name in ("ledger", "key", "audited_at", "scope")},
            "levels": levels,
            "subjects": [json.loads(json.dumps(dict(entry), default=str)) for entry in seen],
            "verdict": verdict,
            "passed": verdict == "passed",
            "drill": drill,
            "changed": changed,
            "seconds": round(time.monotonic() - start, 2),
        }

    def _export_bundle(self, job: JobRecord, folder: Path) -> Path | None:
        """Export an auditor bundle and return its folder.

        None if files of the ledger are missing or differ from what the ledger signed.
        """
        for _ in self._retry_while_busy("a batch is applied and has no certificate yet"):
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
        """Return a failed report: files of the ledger are missing or differ from what it signed."""
        reason = "a file of the ledger is damaged or missing"
        result = LevelResult("V4", _name_in_certificates(job) or "", "fail", reason)
        self._report_level(job, result)
        return AuditReport((result,), self._ledger.name, self._ledger.public_key)

    def _audit_bundle(self, job: JobRecord, bundle: Path) -> AuditReport:
        model = _name_in_certificates(job)
        if model is not None and not (bundle / "models").is_dir():
            raise _JobError(
                "nothing-certified",
                "the model has no certificate yet; apply at least one erasure request first",
            )
        listed = self._ledger.models.list(tenant=job.tenant)
        own_models = [self._ledger.models.row(info.name, info.tenant) for info in listed]
        requested_levels, key = job.asked["levels"], self._ledger.public_key
        # A drill adds the levels that must detect it.
        levels = (
            tuple(sorted({*requested_levels, *_DETECTED_BY[job.asked["drill"]]}))
            if requested_levels
            else None
        )

        def for_tenant(result: LevelResult) -> LevelResult | None:
            return _for_tenant(result, job.tenant, bundle, key, tuple(row.id for row in own_models))

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
            trusted=tuple(sorted({name for model in own_models for name in model.trusted})),
            progress=receive,
            stop=self._stop,
        )
        return replace(report, results=tuple(entry for entry in map(for_tenant, report) if entry))

    def _report_level(self, job: JobRecord, result: LevelResult) -> None:
        level = _to_plain(result)
        about = f" of {result.model}" if result.model else ""
        words = f"{result.level} ({result.name}){about}: {result.verdict}"
        self.jobs.add_progress(job, words, {name: level[name] for name in SHOWN})


def _is_attempt(step: Step, job: JobRecord) -> bool:
    """Return whether a step is an attempt to apply a batch to the model of a job.

    A failed purge does not count, because it may belong to another tenant.
    """
    is_purge = step.what == "failed" and step.sequence is not None
    return step.model == job.model and step.what in _DONE_BY and not is_purge


def _make_stopped_row(
    current_method: dict[str, Any], error: SandboxError, seconds: float
) -> dict[str, Any]:
    """Return the what-if row of a method that was stopped before it finished.

    Raise EndedError if the process ended before it began with a method.
    """
    if not current_method:
        raise EndedError("process-ended") from error
    words = f"it took more than {seconds:g} s" if isinstance(error, TimeLimitError) else str(error)
    return row_not_run(
        current_method["method"],
        current_method["begin"],
        words,
        is_current=current_method["is_current"],
    )


def _for_tenant(
    result: LevelResult, tenant: str | None, bundle: Path, key: str, models: tuple[int, ...]
) -> LevelResult | None:
    """Return a result as a tenant may see it; None if it concerns only other tenants.

    `models` are the database ids of the tenant's models, which the events of requests contain.
    """
    if tenant is None or result.model:
        return result if is_visible(tenant, result.model) else None
    if "requests" in result.details:
        return check_requests(Bundle(bundle, key_text(key)), models)
    return replace(result, reason=_LEDGER_REASONS[result.verdict], details={})


def _name_in_certificates(job: JobRecord) -> str | None:
    """Return the name of a job's model in certificates; None for a job without a model."""
    if job.model is None or job.tenant == "default":
        return job.model
    return f"{job.tenant}/{job.model}"


def _to_plain(result: LevelResult) -> dict[str, Any]:
    reason = _QUOTES.sub(r"\1", result.reason)[:_LONGEST_REASON]
    text = json.dumps(result.to_dict() | {"reason": reason}, default=str)
    return cast("dict[str, Any]", json.loads(text))


def is_visible(tenant: str | None, model: str) -> bool:
    """Return whether a tenant may see results about a model, named as in certificates.

    Results about the whole ledger (no model) are visible to all tenants.
    """
    if tenant is None or model == "":
        return True
    owner, slash, _ = model.partition("/")
    return (owner if slash else "default") == tenant


def audit_verdict(levels: Iterable[Mapping[str, Any]]) -> str:
    """Return the overall verdict for the levels of a report.

    Older reports do not say which levels the ledger promised; all of them count as promised.
    """
    words = {"pass": True, "fail": False, "skipped": None}
    return overall((words[entry["verdict"]], entry.get("promised", True)) for entry in levels)


def tamper_bundle(bundle: Path, drill: str) -> str:
    """Change one byte of a bundle, and return a description of the change."""
    described = json.loads((bundle / "bundle.json").read_bytes())["models"]
    if drill == "log":
        _flip_byte(bundle / "log.json", _ROOT)
        return (
            "one byte of log.json, in the root of its tree"  # its size would reveal other tenants
        )
    if not described:
        raise _JobError(
            "nothing-certified",
            "no model has a certificate yet, so the drill has nothing to change; apply at least "
            "one erasure request first",
        )
    newest = max(described, key=lambda entry: int(entry["sequence"]))
    if drill == "certificate":
        number = int(newest["sequence"])
        place = _flip_byte(bundle / "certificates" / f"{number:06d}.json")
        return f"one byte of certificate {number} ({place})"
    path = bundle / "models" / newest["tenant"] / newest["name"] / "model.blob"
    return f"one byte of the model file of {newest['name']} ({_flip_byte(path)})"


def _flip_byte(path: Path, after: bytes = b"") -> str:
    data = bytearray(path.read_bytes())
    place = data.index(after) + len(after) if after else len(data) // 2
    data[place] ^= 1
    path.write_bytes(data)
    return f"byte {place} of {len(data)}"
