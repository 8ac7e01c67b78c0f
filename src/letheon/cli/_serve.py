"""`letheon batch`, `worker`, `serve` and `token`: apply queued requests, run the desk."""

import contextlib
import json
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from letheon.cli import _command
from letheon.cli._command import CommandOutput, Listing, UsageError, ledger_command, value
from letheon.exceptions import LedgerMissingError, OldDatabaseError

if TYPE_CHECKING:
    from letheon.ledger import Ledger, Step
    from letheon.service import Tokens

batches = _command.make_group("batch", "Plan and apply batches of requests.")
tokens = _command.make_group("token", "Create, list and revoke access tokens of the desk.")

Model = Annotated[str | None, value("NAME", "Only this model.")]


@ledger_command(batches, "plan")
def plan_batches(
    ledger: "Ledger", model: Model = None, tenant: _command.Tenant = "default"
) -> CommandOutput:
    """Show the next batch of each model, and when it will be applied.

    Example: letheon batch plan
    """
    plans = ledger.plan(model, tenant=tenant)
    rows = [
        (
            plan.model,
            plan.n_requests,
            plan.n_rows,
            plan.earliest_due_on,
            _format_time(plan.decision),
            plan.decision.reason.replace("-", " "),
        )
        for plan in plans
    ]
    columns = ("model", "requests", "rows", "first due", "applied (UTC)", "why")
    return CommandOutput(
        plans, Listing(columns, rows, empty="no model is registered yet", folds="model")
    )


def _format_time(decision: Any) -> str:
    if decision.seal:
        return f"now, {decision.kind}"
    return "" if decision.when_next is None else f"{decision.when_next:%Y-%m-%d %H:%M}"


@ledger_command(batches, "apply")
def apply_batches(
    ledger: "Ledger",
    *,
    model: Model = None,
    tenant: _command.Tenant = "default",
    force: bool = False,
    retrain: str | None = None,
) -> CommandOutput:
    """Apply due requests, issue certificates and purge.

    The exit status is 1 if a step failed, and 5 if another worker is running.

    Example: letheon batch apply --force

    Parameters
    ----------
    force : bool
        Apply all queued requests now, without waiting for a full batch.
    retrain : NAME
        Retrain this model on the remaining rows and apply its queued requests.
    """
    if retrain is not None and (force or model is not None):
        raise UsageError(
            "--retrain NAME cannot be combined with --force or --model; it applies "
            "all queued requests of NAME"
        )
    if retrain is not None:
        steps = ledger.models.retrain(retrain, tenant=tenant, apart=True)
    else:
        steps = ledger.run_once(force=force, model=model, tenant=tenant, apart=True)
    rows = [(step.what, step.model, step.sequence, step.detail) for step in steps]
    waiting = [] if steps else [f"{step.model}: {step.detail}" for step in find_waiting(ledger)]
    empty = "\n".join(["nothing is due", *waiting])
    done = {step.what for step in steps}
    status = _command.FAILED if "failed" in done else _command.TRY_AGAIN if "waits" in done else 0
    columns = ("step", "model", "no.", "detail")
    return CommandOutput(steps, Listing(columns, rows, empty=empty, folds="detail"), status=status)


@_command.document_options
def worker(
    *,
    interval: Annotated[float, typer.Option(min=0.1)] = 10.0,
    once: bool = False,
    ledger: _command.Home = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Apply requests as they become due, until the process is stopped.

    Several workers may run at once. SIGTERM and SIGINT stop a worker after its current step, at
    most 10 seconds later; a longer computation is stopped and repeated at the next run. No data is
    lost if a worker is killed. Failed steps are retried at the next poll; with --once the exit
    status reports them. An internal error ends the worker with status 70. If files are newer than
    the database, the worker ends with status 4 and deletes nothing. If letheon[service] is
    installed, the worker also runs the jobs of the desk, such as audits.

    Requests wait until a batch has enough rows or a time limit is reached. The worker prints
    once how long they wait; `letheon batch apply --force` applies them now.

    Example: letheon worker --ledger erasures

    Parameters
    ----------
    interval : SECONDS
        Pause between two polls.
    once : bool
        Poll once, then exit.
    as_json : bool
        Print one JSON document per step, each on its own line.
    """
    with (
        _command.report_errors(as_json),
        _stop_on_signals() as stop,
        _command.open_ledger(ledger) as opened,
    ):
        if not (once or as_json):
            words = (
                f"polling every {interval:g} s; Ctrl-C or SIGTERM stops it after its current step"
            )
            typer.echo(f"letheon: worker started, {words}", err=True)
        run_jobs = _job_runner(opened, stop)
        printed_before: list[Step] = []  # waiting requests that the poll before printed
        while not stop.is_set():
            status = _run_due_steps(opened, stop, as_json, run_jobs, printed_before)
            if once:
                raise typer.Exit(status)
            stop.wait(interval)


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set while the block runs."""
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


def _job_runner(ledger: "Ledger", stop: threading.Event) -> Callable[[], int]:
    """Return a function that runs the jobs of the desk.

    The function does nothing if the extra ``service`` is not installed.
    """
    try:
        from letheon.service.jobs import CHANGING_KINDS, READING_KINDS, JobRunner
    except ImportError:
        return lambda: 0

    return lambda: JobRunner(ledger, stop).run_all((*CHANGING_KINDS, *READING_KINDS))


def _run_due_steps(
    ledger: "Ledger",
    stop: threading.Event,
    as_json: bool,
    run_jobs: Callable[[], int],
    printed_before: "list[Step]",
) -> int:
    """Run the steps that are due and return the exit status.

    A failed step is retried at the next poll.

    Waiting requests are printed unless they are in `printed_before`, which is updated.
    """
    from letheon.sandbox import StoppedError

    failed = False
    try:
        due = ledger.steps(apart=True, stop=stop)
        # Closing the generator between two steps releases the lease.
        with contextlib.closing(due) as steps, contextlib.suppress(StoppedError):
            for step in steps:
                _print_step(step, as_json)
                failed = failed or step.what == "failed"
                if stop.is_set():
                    break
        if not stop.is_set():
            run_jobs()
            waiting = find_waiting(ledger)
            for step in waiting:
                if step not in printed_before:
                    _print_step(step, as_json)
            printed_before[:] = waiting
    except Exception as error:
        status = _command.find_exit_status(error)
        if status == _command.INTERNAL or isinstance(error, OldDatabaseError):
            raise
        typer.echo(f"letheon: {_command.describe_error(error)}; will retry", err=True)
        return status
    return _command.FAILED if failed else 0


def find_waiting(ledger: "Ledger") -> "list[Step]":
    """Return a step for each model with waiting requests.

    The text of the step says until when the requests wait, and why.
    """
    from letheon.ledger import Step

    steps = []
    for plan in ledger.plan():
        when, n = plan.decision.when_next, plan.n_requests
        if when is None:
            continue
        requests, pronoun = ("1 request waits", "it") if n == 1 else (f"{n} requests wait", "them")
        detail = (
            f"{requests} until {when:%-d %b %H:%M} UTC ({plan.waits_for}); "
            f"`letheon batch apply --force` applies {pronoun} now"
        )
        steps.append(Step("waits", plan.model, None, detail))
    return steps


def _print_step(step: "Step", as_json: bool) -> None:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    if as_json:
        typer.echo(json.dumps({"at": now} | vars(step)))
        return
    number = "" if step.sequence is None else str(step.sequence)
    typer.echo(" ".join(filter(None, (now, step.what, number, step.model, step.detail))))


@_command.document_options
def serve(
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8311,
    database: str | None = None,
    worker: bool = True,
    certfile: Path | None = None,
    keyfile: Path | None = None,
    insecure: bool = False,
    demo: bool = False,
    ledger: _command.Home = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Run the erasure desk: HTTP API, web pages and a worker for one ledger.

    If the folder is empty or missing, the ledger is created. The first start prints an admin token,
    which is shown only once. Without --host, the desk can be reached only from this machine.
    SIGTERM and Ctrl-C stop the desk after the current calls and the current step. No data is lost
    if the process is killed. Further settings are in service.toml in the folder of the ledger.

    Example: letheon serve --ledger erasures

    Parameters
    ----------
    host : ADDRESS
        Address to listen on; an address other than loopback needs HTTPS.
    port : N
        Port to listen on; 0 picks a free port.
    database : URL, by default a SQLite file in the folder
        Database of a new ledger; for PostgreSQL: postgresql://user@host/name.
    worker : bool
        Also run a worker in this process.
    certfile : FILE
        TLS certificate of the server, for HTTPS.
    keyfile : FILE
        Private key of the TLS certificate.
    insecure : bool
        Allow an address other than loopback without HTTPS.
    demo : bool
        Run an example ledger with data; without --ledger, it is deleted when the desk stops.
    as_json : bool
        Print the address and new tokens as a JSON document.
    """
    with _command.report_errors(as_json), contextlib.ExitStack() as stack:
        import letheon

        desk = letheon.service  # through the package: its error says which extra to install
        if demo and ledger is None:  # an example that is deleted at the end
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="letheon-desk-"))
            ledger = Path(place) / "ledger"
        home = _find_home(ledger)
        _command.disable_core_dump()
        settings = desk.ServiceSettings.read(home)
        binding = desk.Binding(host, port, certfile, keyfile)
        with _command.wrap_usage_errors():
            binding.require_safe(settings, insecure=insecure)
            binding.require_certificate()
        # Before the ledger is created: an address in use must not lose the token that is printed
        # once.
        listening = stack.enter_context(binding.listen())
        opening = _fill_example(home, quiet=as_json) if demo else _open_or_create(home, database)
        opened = stack.enter_context(opening.ledger)

        def print_messages(url: str) -> None:
            document = {"url": url, "tokens": opening.tokens, "receipt_code": opening.receipt_code}
            CommandOutput(document, *_list_messages(opening, url)).print(as_json)

        desk.serve(
            opened,
            settings,
            binding,
            listening=listening,
            with_worker=worker,
            is_demo=demo,
            on_ready=print_messages,
        )


class _Opening(NamedTuple):
    """An open ledger, with the secrets that are printed once.

    `tokens` has the new tokens by role; `receipt_code` is set only for the demo.
    """

    ledger: "Ledger"
    tokens: dict[str, str]
    receipt_code: str | None = None


def _list_messages(opening: _Opening, url: str) -> Iterator[str]:
    if opening.receipt_code is None:
        for text in opening.tokens.values():
            yield f"Admin token, shown only once: {text}"
    else:
        for role, text in opening.tokens.items():
            yield f"{role.capitalize()} token: {text}"
        yield f"Receipt code of a person, for /receipt: {opening.receipt_code}"
    if not opening.tokens:
        yield "Log in with a token; `letheon token add NAME --role admin` creates one"
    if differences := "; ".join(opening.ledger.database_differences()):
        yield (
            f"The ledger is read-only: its files are newer than the database ({differences}). "
            "Restore the newest database, or see `letheon ledger adopt`"
        )
    yield f"The desk is running at {url} (Ctrl-C stops it)"


def _open_or_create(home: Path, database: str | None) -> _Opening:
    """Open the ledger in `home`, or create it; create an admin token if there is no token."""
    from letheon.service.server import create_admin_token, open_or_create

    with _command.wrap_usage_errors():
        opened = open_or_create(home, database=database)
    token = create_admin_token(opened, days=365)
    return _Opening(opened, {} if token is None else {"admin": token})


def _fill_example(home: Path, *, quiet: bool) -> _Opening:
    import letheon
    from letheon.demo.desk import make_demo

    if not quiet:
        typer.echo("Creating an example ledger; this takes a few seconds.")
    demo = make_demo(home)
    return _Opening(letheon.Ledger.open(home), dict(demo.tokens), demo.receipt_code)


def _find_home(folder: Path | None) -> Path:
    try:
        return _command.find_home(folder)
    except LedgerMissingError:
        raise LedgerMissingError(
            "no ledger in the current folder; use --ledger DIR (a new folder creates a ledger) or "
            "set LETHEON_LEDGER. `letheon serve --demo` runs an example"
        ) from None


def _load_tokens(ledger: "Ledger") -> "Tokens":
    import letheon

    return letheon.service.Tokens(ledger, ledger._core.clock)


@ledger_command(tokens, "add")
def add_token(
    ledger: "Ledger",
    name: str,
    *,
    role: str,
    scopes: str | None = None,
    tenant: str | None = None,
    days: Annotated[int, typer.Option(min=1)] = 90,
) -> CommandOutput:
    """Create a token and print it; it is shown only once.

    Example: letheon token add reviewer --role auditor --days 30

    Parameters
    ----------
    name : NAME
        Name of the token in lists.
    role : ROLE
        Role: requester, operator, approver, auditor or admin.
    scopes : A,B, by default all of the role
        Restrict the token to these scopes.
    tenant : NAME, by default all tenants
        Restrict the token to this tenant.
    days : N
        Number of days until the token expires.
    """
    wanted = None if scopes is None else [scope.strip() for scope in scopes.split(",")]
    with _command.wrap_usage_errors():
        text, token = _load_tokens(ledger).create(
            name, role, scopes=wanted, tenant=tenant, days=days
        )
    return CommandOutput({"token": text} | _describe_token(token), text)


@ledger_command(tokens, "list")
def list_tokens(ledger: "Ledger") -> CommandOutput:
    """List the tokens, newest first; their secrets are not stored.

    Example: letheon token list
    """
    listed = _load_tokens(ledger).list_newest(limit=10_000)
    rows = [
        (
            token.id,
            token.name,
            token.role,
            token.tenant or "all",
            token.expires_at.date(),
            token.revoked_at and token.revoked_at.date(),
        )
        for token in listed
    ]
    columns = ("id", "name", "role", "tenant", "expires", "revoked")
    empty = "no token yet; `letheon token add` creates one"
    return CommandOutput(
        [_describe_token(token) for token in listed], Listing(columns, rows, empty=empty)
    )


@ledger_command(tokens, "revoke")
def revoke_token(ledger: "Ledger", token: str, *, descendants: bool = False) -> CommandOutput:
    """Revoke a token and the browser sessions that use it, with immediate effect.

    If a token was stolen, use --descendants to revoke also the tokens that were created with it.

    Example: letheon token revoke 0123456789abcdef --descendants

    Parameters
    ----------
    token : ID
        Id of the token, from `letheon token list`.
    descendants : bool
        Also revoke tokens that were created with this token.
    """
    done = _load_tokens(ledger).revoke(token, descendants=descendants)
    if not done:
        raise UsageError(
            f"there is no active token {token!r}; run `letheon token list` to see all tokens"
        )
    return CommandOutput({"revoked": done}, f"revoked {done}")


def _describe_token(token: Any) -> dict[str, Any]:
    unlisted = ("created_by", "is_valid")
    return {name: fact for name, fact in vars(token).items() if name not in unlisted}
