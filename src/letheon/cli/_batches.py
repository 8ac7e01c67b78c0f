"""`letheon batch`, `letheon worker`: apply what is queued."""

import json
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from letheon.cli._command import (
    FAILED,
    INTERNAL,
    TRY_AGAIN,
    Answer,
    Home,
    Listing,
    Tenant,
    UsageError,
    error_text,
    flag,
    ledger_command,
    make_group,
    open_ledger,
    report_errors,
    status_of,
    to_plain,
    value,
)
from letheon.exceptions import OldDatabaseError

if TYPE_CHECKING:
    from letheon.ledger import BatchPlan, Ledger, Step

__all__ = ["batches", "worker"]

batches = make_group("batch", "Requests that are applied together.")

Model = Annotated[str | None, value("NAME", "Of this model only.")]


@ledger_command(batches, "plan")
def plan(opened: "Ledger", model: Model = None, tenant: Tenant = "default") -> Answer:
    """Show what the next batch of each model would be, and when it will be applied.

    Example: letheon batch plan
    """
    found = opened.plan(model, tenant=tenant)
    rows = [
        (
            one.model,
            one.n_requests,
            one.n_rows,
            one.earliest_due_on,
            _when(one.decision),
            one.decision.reason,
        )
        for one in found
    ]
    columns = ("model", "requests", "rows", "first due", "applied (UTC)", "why")
    return Answer(found, Listing(columns, rows, empty="no model is registered yet", folds="model"))


def _when(decision: Any) -> str:
    if decision.seal:
        return f"now, {decision.kind}"
    return "" if decision.when_next is None else f"{decision.when_next:%Y-%m-%d %H:%M}"


@ledger_command(batches, "apply")
def apply(
    opened: "Ledger",
    model: Model = None,
    tenant: Tenant = "default",
    force: Annotated[bool, flag("--force", "Now, however few requests there are.")] = False,
    retrain: Annotated[
        str | None, value("NAME", "Train this model afresh, with all that is queued.")
    ] = None,
) -> Answer:
    """Apply, certify and purge what is due.

    The exit status is 1 if a step failed, and 5 if another worker is at it.

    Example: letheon batch apply --force
    """
    if retrain is not None and (force or model is not None):
        raise UsageError("--retrain NAME goes without --force and --model")
    if retrain is not None:
        steps = opened.models.retrain(retrain, tenant=tenant, apart=True)
    else:
        steps = opened.run_once(force=force, model=model, tenant=tenant, apart=True)
    rows = [(one.what, one.model, one.sequence, one.detail) for one in steps]
    waiting = [] if steps else [f"{one.model}: {one.detail}" for one in find_waiting(opened)]
    empty = "\n".join(["nothing is due", *waiting])
    done = {one.what for one in steps}
    status = FAILED if "failed" in done else TRY_AGAIN if "waits" in done else 0
    columns = ("step", "model", "no.", "detail")
    return Answer(steps, Listing(columns, rows, empty=empty, folds="detail"), status=status)


def worker(
    interval: Annotated[float, value("SECONDS", "Pause between two looks.", min=0.1)] = 10.0,
    once: Annotated[bool, flag("--once", "Look once, then stop.")] = False,
    ledger: Home = None,
    as_json: Annotated[bool, flag("--json", "Print one JSON document per line and step.")] = False,
) -> None:
    """Apply requests as they become due, until a signal says stop.

    Several workers may run at once. SIGTERM and SIGINT end it after the step it is in, and within
    10 seconds: a longer computation is begun again later. A kill at any moment loses nothing. What
    fails is tried again at the next look; with --once the exit status tells. A mistake in letheon
    itself ends it with status 70, and files that are newer than the database with status 4:
    nothing is destroyed then. Where the extra letheon[service] is installed, it also does what the
    desk was asked for, audits for one.

    Requests wait for a batch of enough rows, or for a time. The worker says until when, once for
    each change; `letheon batch apply --force` applies them now.

    Example: letheon worker --ledger erasures
    """
    with report_errors(as_json), _stop_on_signals() as stop, open_ledger(ledger) as opened:
        if not (once or as_json):
            words = f"a look every {interval:g} s; Ctrl-C or SIGTERM ends it after its step"
            typer.echo(f"letheon: worker started, {words}", err=True)
        jobs = _job_runner(opened, stop)
        said: list[Step] = []  # what the look before said of waiting requests
        while not stop.is_set():
            status = _look(opened, stop, as_json, jobs, said)
            if once:
                raise typer.Exit(status)
            stop.wait(interval)


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Yield what SIGTERM and SIGINT set, until the end of the block."""
    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _job_runner(opened: "Ledger", stop: threading.Event) -> Callable[[], int]:
    """Return what does the jobs of the ledger's desk; nothing where its extra is missing."""
    try:
        from letheon.service.jobs import LONG, SHORT, JobRunner
    except ImportError:
        return lambda: 0

    return lambda: JobRunner(opened, stop).do_all((*SHORT, *LONG))


def _look(
    opened: "Ledger",
    stop: threading.Event,
    as_json: bool,
    jobs: Callable[[], int],
    said: "list[Step]",
) -> int:
    """Do what is due and return a status; what is in the way now waits for the next look.

    Which requests wait for a batch is logged unless `said` has it from the look before.
    """
    from letheon.sandbox import StoppedError

    failed = False
    try:
        found = cast("Generator[Step, None, None]", opened.steps(apart=True, stop=stop))
        # Closing it between two steps gives the lease back.
        with closing(found) as steps, suppress(StoppedError):
            for step in steps:
                _log(step, as_json)
                failed = failed or step.what == "failed"
                if stop.is_set():
                    break
        if not stop.is_set():
            jobs()
            waiting = find_waiting(opened)
            for step in waiting:
                if step not in said:
                    _log(step, as_json)
            said[:] = waiting
    except Exception as error:
        status = status_of(error)
        if status == INTERNAL or isinstance(error, OldDatabaseError):
            raise
        typer.echo(f"letheon: {error_text(error)}; trying again", err=True)
        return status
    return FAILED if failed else 0


def find_waiting(opened: "Ledger") -> "list[Step]":
    """Return a step for each model with requests that wait, with until when and what for."""
    from letheon.ledger import Step

    return [
        Step("waits", one.model, None, _describe_waiting(one))
        for one in opened.plan()
        if one.decision.when_next is not None
    ]


def _describe_waiting(plan: "BatchPlan") -> str:
    is_one = plan.n_requests == 1
    requests = "1 request waits" if is_one else f"{plan.n_requests} requests wait"
    them = "it" if is_one else "them"
    return (
        f"{requests} until {plan.decision.when_next:%-d %b %H:%M} UTC ({plan.waits_for}); "
        f"`letheon batch apply --force` runs {them} now"
    )


def _log(step: "Step", as_json: bool) -> None:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    if as_json:
        typer.echo(json.dumps({"at": now} | to_plain(step)))
        return
    number = "" if step.sequence is None else str(step.sequence)
    typer.echo(" ".join(filter(None, (now, step.what, number, step.model, step.detail))))
