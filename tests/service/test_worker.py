"""The worker of a desk: applies, retrains, audits, and leaves when it is told to."""

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from letheon.audit._audit import _run_check
from letheon.exceptions import UnknownIdError
from letheon.ledger import Ledger, Policy, Step
from letheon.ledger.db.jobs import KINDS, JobProblem, JobRecord, Jobs
from letheon.ledger.models.versions import find_head, find_model
from letheon.ledger.worker.compute import ComputationFailed, compute
from letheon.sandbox import StoppedError
from letheon.service import jobs
from letheon.service import worker as worker_module
from letheon.service.jobs import CHANGING_KINDS, READING_KINDS, JobRunner
from letheon.service.temp_folders import sweep_temp_folders
from letheon.service.worker import DeskWorker
from tests.cli.ledgers import call
from tests.ledger.homes import IDS, X, Y, fitted, person
from tests.service.desks import Desk, make_desk

DRILLS = ("model", "certificate", "log")


@pytest.fixture(scope="module")
def erased(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with one certificate of each model, which only audits look at."""
    made = make_desk(tmp_path_factory.mktemp("erased"))
    for model, tenant, ids in (
        ("risk", "default", ["person-001"]),
        ("forest", "default", [2]),
        ("churn", "rival", ["person-003"]),
    ):
        made.ledger.requests.submit(ids, model=model, tenant=tenant, verified=True)
    made.work()
    yield made
    made.close()


def _call_here(
    work: Callable[..., Any],
    argument: Any,
    *,
    report: Callable[[Any], None],
    stop: threading.Event,
    **_: Any,
) -> Any:
    """As `sandbox.call`, in this process: tests change what the work finds here."""

    def hear(value: Any) -> None:
        if stop.is_set():
            raise StoppedError
        report(value)

    return work(argument, hear)


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute and look in this process."""
    monkeypatch.setattr(jobs, "call", _call_here)
    monkeypatch.setattr("letheon.ledger.ledger.choose_compute", lambda **_: compute)


here = pytest.mark.usefixtures("_here")


def _runner(desk: Desk, stop: threading.Event | None = None, **given: Any) -> JobRunner:
    return JobRunner(desk.ledger, stop or threading.Event(), **given)


def _over(desk: Desk, job: JobRecord) -> JobRecord:
    job_record = Jobs(desk.ledger).find(job.id)
    assert job_record is not None
    assert job_record.is_over
    return job_record


def _audited(desk: Desk, name: str = "auditor", **asked: Any) -> dict[str, Any]:
    """Ask for an audit, let it be done, and return how it is shown."""
    client = desk.client(name)
    asked_for = client.post("/api/v1/audits", json=asked)
    assert asked_for.status_code == 202, asked_for.text
    _runner(desk).run_all(READING_KINDS)
    shown: dict[str, Any] = client.get(f"/api/v1/audits/{asked_for.json()['id']}").json()
    assert shown["is_over"]
    return shown


def _rooms(desk: Desk) -> list[Path]:
    place = desk.ledger.folder / ".desk"
    return list(place.iterdir()) if place.is_dir() else []


@here
def test_apply_applies_certifies_and_purges_what_is_queued(desk: Desk) -> None:
    request = desk.ledger.requests.submit([person(1)], model="risk", verified=True)
    other = desk.ledger.requests.submit(
        ["person-004"], model="churn", tenant="rival", verified=True
    )
    job = desk.client("operator").post("/api/v1/models/risk/apply").json()
    assert _runner(desk).run_all() == 1
    shown = desk.client("operator").get(f"/api/v1/jobs/{job['id']}").json()
    steps = [(step["what"], step["sequence"]) for step in shown["result"]["steps"]]
    assert steps == [("applied", 1), ("certified", 1), ("purged", 1)]
    assert [line["words"].split(":")[0] for line in shown["progress"]] == [
        "applied, certificate 1",
        "certified, certificate 1",
        "purged, certificate 1",
    ]
    assert desk.ledger.requests.get(request.id).state == "purged"
    assert desk.ledger.requests.get(other.id).state == "queued"


@here
def test_apply_tells_nothing_of_what_belongs_to_others(desk: Desk) -> None:
    desk.ledger.requests.submit(["person-004"], model="churn", tenant="rival", verified=True)
    steps = desk.ledger.steps(force=True, model="churn", tenant="rival")
    assert next(iter(steps)).what == "applied"  # and its worker is gone
    desk.client("operator@default").post("/api/v1/models/risk/apply")
    _runner(desk).run_all()
    shown = desk.client("operator@default").get("/api/v1/jobs").json()["items"][0]
    assert (shown["result"], shown["progress"]) == ({"steps": []}, [])
    assert desk.ledger.certificates.sequences() == (1,)


@here
def test_apply_waits_for_another_worker_that_is_at_the_model(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_AGAIN_SECONDS", 0.01)
    desk.ledger.requests.submit([person(1)], model="risk", verified=True)
    job = Jobs(desk.ledger).add("apply", tenant="default", model="risk")
    real, calls = desk.ledger.steps, []

    def busy_once(**given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            return (item for item in [Step("waits", "risk", None, "another-worker-is-at-it")])
        return real(**given)

    monkeypatch.setattr(desk.ledger, "steps", busy_once)
    _runner(desk).run_all()
    assert len(calls) == 2
    assert (_over(desk, job).result or {})["steps"][0]["what"] == "applied"


def test_a_batch_that_fails_fails_the_job_with_its_code(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Any) -> Any:
        raise ComputationFailed("value-error")

    monkeypatch.setattr("letheon.ledger.ledger.choose_compute", lambda **_: fails)
    desk.ledger.requests.submit([person(1)], model="risk", verified=True)
    job = Jobs(desk.ledger).add("apply", tenant="default", model="risk")
    _runner(desk).run_all()
    finished = _over(desk, job)
    assert finished.state == "failed"
    assert finished.problem == JobProblem("step-failed", "the batch failed: value-error")


def test_retrain_needs_something_that_was_erased(desk: Desk) -> None:
    job = Jobs(desk.ledger).add("retrain", tenant="default", model="risk")
    _runner(desk).run_all()
    assert getattr(_over(desk, job).problem, "code", "") == "nothing-to-retrain"


@here
def test_retrain_trains_afresh_with_what_is_queued(desk: Desk) -> None:
    desk.ledger.requests.submit([person(2)], model="risk", verified=True)
    job = desk.client("operator").post("/api/v1/models/risk/retrain").json()
    _runner(desk).run_all()
    shown = desk.client("operator").get(f"/api/v1/jobs/{job['id']}").json()
    assert [step["what"] for step in shown["result"]["steps"]] == [
        "retrained",
        "certified",
        "purged",
    ]


def test_a_model_that_is_not_there_fails_the_job(desk: Desk) -> None:
    job = Jobs(desk.ledger).add("apply", tenant="default", model="missing")
    _runner(desk).run_all()
    assert getattr(_over(desk, job).problem, "code", "") == "unknown-model"


def test_what_an_error_says_is_not_kept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: Any, **__: Any) -> Any:
        raise KeyError("alice@example.org")

    monkeypatch.setattr(desk.ledger, "steps", boom)
    job = Jobs(desk.ledger).add("apply", tenant="default", model="risk")
    _runner(desk).run_all()
    finished = _over(desk, job)
    assert getattr(finished.problem, "code", "") == "key-error"
    assert "alice" not in str(finished)


@here
def test_an_audit_passes_level_by_level_and_leaves_nothing(erased: Desk) -> None:
    shown = _audited(erased)
    assert shown["passed"] is True, shown
    verdicts = {(level["level"], level["model"]): level["verdict"] for level in shown["levels"]}
    assert verdicts["V0", ""] == verdicts["V1", ""] == "pass"
    assert {verdicts["V4", name] for name in ("risk", "forest", "rival/churn")} == {"pass"}
    assert next(line["words"] for line in shown["progress"]).startswith("exporting")
    assert _rooms(erased) == []


@here
def test_the_report_is_a_page_that_can_run_nothing(erased: Desk) -> None:
    audit = _audited(erased, model="risk")
    answer = erased.client("auditor").get(f"/api/v1/audits/{audit['id']}/report")
    assert answer.status_code == 200
    assert "Audit of desk-test" in answer.text
    assert "sandbox" in answer.headers["content-security-policy"]
    assert "script-src" not in answer.headers["content-security-policy"]


@here
@pytest.mark.parametrize("drill", DRILLS)
def test_a_drill_fails_and_the_ledger_is_untouched(erased: Desk, drill: str) -> None:
    before = {path: path.read_bytes() for path in erased.ledger.folder.glob("blobs/**/*.*")}
    shown = _audited(erased, drill=drill)
    assert shown["passed"] is False
    assert shown["changed"].startswith("one byte of")
    assert before == {path: path.read_bytes() for path in before}
    assert _audited(erased, levels=["V0"])["passed"] is True


@here
@pytest.mark.parametrize("drill", DRILLS)
def test_a_drill_adds_the_levels_that_must_notice_it(erased: Desk, drill: str) -> None:
    assert _audited(erased, drill=drill, levels=["V3"])["passed"] is False


@here
def test_an_auditor_of_a_tenant_sees_its_models_only(erased: Desk) -> None:
    shown = _audited(erased, "auditor@rival")
    assert {level["model"] for level in shown["levels"]} <= {"", "rival/churn"}
    assert shown["passed"] is True
    assert "risk" not in str(shown)
    report = erased.client("auditor@rival").get(f"/api/v1/audits/{shown['id']}/report").text
    assert "rival/churn" in report
    assert "risk" not in report


@here
def test_no_number_of_another_tenant_is_in_an_audit(desk: Desk) -> None:
    def seen(drill: str) -> tuple[Any, str]:
        shown = _audited(desk, "auditor@rival", drill=drill)
        report = desk.client("auditor@rival").get(f"/api/v1/audits/{shown['id']}/report").text
        lines = [line["words"] for line in shown["progress"]]
        levels, text = shown["levels"], report.replace(shown["id"], "")
        return (shown["passed"], shown["changed"], levels, lines), re.sub(
            r"\d\d:\d\d:\d\d", "", text
        )

    desk.ledger.requests.submit(["person-003"], model="churn", tenant="rival", verified=True)
    desk.work()
    before = {drill: seen(drill) for drill in ("none", "log")}
    desk.ledger.requests.submit(["person-004"], model="risk", verified=True)
    desk.ledger.requests.submit(["person-005"], model="risk")
    desk.ledger.requests.submit([1, 2, 3, 4], model="forest", verified=True)  # not approved
    desk.clock.now += 70 * 86_400
    desk.ledger.requests.submit(["person-006"], model="risk", verified=True)
    assert {drill: seen(drill) for drill in ("none", "log")} == before
    assert "recorded requests: 1;" in str(before)
    assert _audited(desk)["passed"] is False, "a token that sees all requests sees the late one"


@here
def test_an_audit_of_a_model_without_a_certificate_says_so(desk: Desk) -> None:
    shown = _audited(desk, model="risk")
    assert shown["problem"]["code"] == "nothing-certified"
    shown = _audited(desk, drill="model")
    assert shown["problem"]["code"] == "nothing-certified"


@here
def test_a_damaged_file_of_the_ledger_fails_the_audit(desk: Desk) -> None:
    desk.ledger.requests.submit([person(1)], model="risk", verified=True)
    desk.work()
    with desk.ledger._core.database.reading() as conn:
        row = find_model(conn, "risk", "default")
        address = find_head(conn, row.id).model_blob
    path = next(desk.ledger.folder.glob(f"blobs/{row.folder}/**/{address}*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    shown = _audited(desk)
    assert shown["state"] == "done"
    assert shown["passed"] is False
    assert "damaged" in shown["levels"][0]["reason"]


def test_a_model_that_quotes_rows_is_not_quoted() -> None:
    def raise_with_ids() -> Any:
        raise UnknownIdError("ids not in this model: ['alice']\n['bob']")

    result, _ = _run_check("V4", SimpleNamespace(name="risk"), raise_with_ids)  # type: ignore[arg-type]
    assert "alice" in result.reason
    assert "bob" in result.reason
    plain = jobs._to_plain(result)
    assert plain["reason"] == "the check raised UnknownIdError"


@here
@pytest.mark.parametrize("kind", ["audit", "what-if"])
def test_who_is_told_to_stop_gives_the_job_back(
    erased: Desk, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    stop = threading.Event()
    runner = _runner(erased, stop)
    progress = runner.jobs.add_progress

    def stop_soon(*given: Any) -> None:
        progress(*given)
        stop.set()

    monkeypatch.setattr(runner.jobs, "add_progress", stop_soon)
    asked: dict[str, Any] = {"levels": None, "drill": "none", "people": 2}
    job = Jobs(erased.ledger).add(kind, tenant="default", model="risk", asked=asked)
    runner.run_all(READING_KINDS)
    job_record = Jobs(erased.ledger).find(job.id)
    assert job_record is not None
    assert (job_record.state, job_record.starts) == ("queued", 0)
    assert _rooms(erased) == []
    _runner(erased).run_all(READING_KINDS)
    assert _over(erased, job).state == "done"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a ledger with a real clock and one model."""
    folder = tmp_path / "home"
    with Ledger.create(folder, name="test", policy=Policy(pin_seconds=1)) as ledger:
        ledger.models.register(fitted(), X, Y, ids=IDS, name="risk")
    return folder


def _started(home: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "letheon.service.worker", str(home), *more]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)


@contextmanager
def _working(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    with _started(home) as process:
        try:
            yield process
        finally:
            process.kill()


def _until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def test_a_worker_process_serves_requests_and_jobs_and_leaves_on_sigterm(home: Path) -> None:
    with _working(home) as process, Ledger.open(home) as ledger:
        request = ledger.requests.submit([person(1)], model="risk", verified=True)
        outcome = Jobs(ledger)
        apply = outcome.add("apply", tenant="default", model="risk")
        _until(lambda: getattr(outcome.find(apply.id), "state", "") == "done")
        audit = outcome.add("audit", asked={"levels": None, "drill": "none"})
        _until(lambda: getattr(outcome.find(audit.id), "is_over", False))
        passed = (getattr(outcome.find(audit.id), "result", None) or {}).get("passed")
        state = ledger.requests.get(request.id).state
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, state, passed) == (0, "purged", True)
    assert b"worker-started" in said
    assert b"worker-stopped" in said
    assert b"person-" not in said


def test_a_worker_leaves_when_its_parent_is_gone(home: Path) -> None:
    worker = DeskWorker.__new__(DeskWorker)
    with Ledger.open(home) as ledger:
        worker.__init__(ledger, poll=0.01)  # type: ignore[misc]
        worker._parent = -1
        worker.run()
    assert worker.stop.is_set()


@here
def test_a_job_of_a_killed_worker_is_done_by_the_next_one(home: Path) -> None:
    with _working(home) as process, Ledger.open(home) as ledger:
        job = Jobs(ledger).add("audit", asked={"levels": None, "drill": "none"})
        _until(lambda: getattr(Jobs(ledger).find(job.id), "state", "") == "running")
        process.kill()
        process.communicate()
        sweep_temp_folders(ledger)
        assert JobRunner(ledger, threading.Event()).run_all(READING_KINDS) == 1
        job_record = Jobs(ledger).find(job.id)
    assert job_record is not None
    assert job_record.state == "done"
    assert job_record.starts == 2
    assert not list((home / ".desk").iterdir())


@here
def test_the_worker_of_the_command_line_does_jobs_too(home: Path) -> None:
    with Ledger.open(home) as ledger:
        ledger.requests.submit([person(1)], model="risk", verified=True)
        outcome = Jobs(ledger)
        jobs = [
            outcome.add("apply", tenant="default", model="risk"),
            outcome.add("audit", asked={"levels": ["V0"], "drill": "none"}),
        ]
    result = call("worker", "--once", "--ledger", home)
    assert result.exit_code == 0, result.output
    with Ledger.open(home) as ledger:
        assert [getattr(Jobs(ledger).find(job.id), "state", "") for job in jobs] == ["done"] * 2


def test_short_and_long_jobs_are_all_jobs() -> None:
    assert sorted((*CHANGING_KINDS, *READING_KINDS)) == sorted(KINDS)


def test_a_worker_goes_on_after_an_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_AFTER_AN_ERROR", 0.0)
    with Ledger.open(home) as ledger:
        worker = DeskWorker(ledger, poll=0.01)
        calls: list[int] = []

        def fails() -> None:
            calls.append(1)
            if len(calls) == 3:
                worker.stop.set()
            raise OSError("disk full")

        monkeypatch.setattr(worker, "_run_round", fails)
        worker.run()
    assert len(calls) == 3


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["a", "--parent"]])
def test_wrong_arguments_are_told(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="usage"):
        worker_module.main(arguments)
