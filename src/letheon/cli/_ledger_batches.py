"""`letheon batch`, `letheon worker`: apply what is queued."""

import json
import signal
import threading
from typing import Annotated, Any

import typer

from letheon.cli._help import PlainCommand
from letheon.cli._ledger_common import (
    FAILED,
    AsJson,
    Home,
    Tenant,
    group,
    open_ledger,
    plain,
    reported,
    say_table,
)

__all__ = ["batches", "worker"]

batches = group("batch", "Requests that are applied together.")

Model = Annotated[str | None, typer.Option(metavar="NAME", help="Of this model only.")]


@batches.command("plan", cls=PlainCommand)
def plan(
    model: Model = None, tenant: Tenant = "default", ledger: Home = None, as_json: AsJson = False
) -> None:
    """Show what the next batch of each model would be, and when it will be applied.

    Example: letheon batch plan
    """
    with reported(as_json), open_ledger(ledger) as opened:
        found = opened.plan(model, tenant=tenant)
    lines = [
        (
            one.model,
            str(one.n_requests),
            str(one.n_rows),
            "" if one.earliest_due_on is None else str(one.earliest_due_on),
            _when(one.decision),
            one.decision.reason,
        )
        for one in found
    ]
    columns = ("model", "requests", "rows", "first due", "applied", "why")
    say_table(as_json, found, columns, lines, empty="no model is registered yet")


def _when(decision: Any) -> str:
    if decision.seal:
        return f"now, {decision.kind}"
    return "" if decision.when_next is None else f"{decision.when_next:%Y-%m-%d %H:%M}"


@batches.command("apply", cls=PlainCommand)
def apply(
    model: Model = None,
    tenant: Tenant = "default",
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Now, however few requests there are.")
    ] = False,
    retrain: Annotated[
        bool,
        typer.Option("--retrain", metavar="", help="Train the model afresh; needs --model."),
    ] = False,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Apply, certify and purge what is due. The exit status is 1 if a step failed.

    Example: letheon batch apply --force
    """
    with reported(as_json), open_ledger(ledger) as opened:
        if retrain and model is None:
            raise ValueError("--retrain needs --model NAME")
        if retrain and model is not None:
            steps = opened.retrain(model, tenant=tenant, apart=True)
        else:
            steps = opened.run_once(force=force, model=model, tenant=tenant, apart=True)
    lines = [(one.what, one.model, _number(one.sequence), one.detail) for one in steps]
    say_table(as_json, steps, ("step", "model", "no.", "detail"), lines, empty="nothing is due")
    if any(one.what == "failed" for one in steps):
        raise typer.Exit(FAILED)


def _number(sequence: int | None) -> str:
    return "" if sequence is None else str(sequence)


def worker(
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Pause between two looks.")
    ] = 10.0,
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="Look once, then stop.")
    ] = False,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Apply requests as they become due, until a signal says stop.

    Several workers may run, on one machine or many. SIGTERM and SIGINT end it after the step it is
    in; a kill at any moment loses nothing. Example: letheon worker --ledger erasures
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with reported(as_json), open_ledger(ledger) as opened:
        while not stop.is_set():
            _look(opened, as_json)
            if once:
                break
            stop.wait(interval)


def _look(opened: Any, as_json: bool) -> None:
    """Do what is due; what another process or the disk is in the way of waits for the next look."""
    from letheon.exceptions import LedgerBusyError

    try:
        steps = opened.run_once(apart=True)
    except (LedgerBusyError, OSError) as error:
        typer.echo(f"letheon: {error}; trying again", err=True)
        return
    for step in steps:
        number = "" if step.sequence is None else f" {step.sequence}"
        text = " ".join(filter(None, (step.what + number, step.model, step.detail)))
        typer.echo(json.dumps(plain(step)) if as_json else text)
