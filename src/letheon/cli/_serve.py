"""`letheon batch`, `worker`, `serve` and `token`: apply what is queued; the desk of a ledger."""

import contextlib
import json
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from letheon.cli import _command
from letheon.cli._command import Answer, Listing, UsageError, ledger_command, value
from letheon.exceptions import LedgerMissingError, OldDatabaseError

if TYPE_CHECKING:
    from letheon.ledger import Ledger, Step
    from letheon.service import Tokens

batches = _command.make_group("batch", "Requests that are applied together.")
tokens = _command.make_group("token", "Tokens of the desk: who may come in, and what they may do.")

Model = Annotated[str | None, value("NAME", "Of this model only.")]


@ledger_command(batches, "plan")
def plan(opened: "Ledger", model: Model = None, tenant: _command.Tenant = "default") -> Answer:
    """Show what the next batch of each model would be, and when it will be applied.

    Example: letheon batch plan
    """
    plans = opened.plan(model, tenant=tenant)
    rows = [
        (
            plan.model,
            plan.n_requests,
            plan.n_rows,
            plan.earliest_due_on,
            _when(plan.decision),
            plan.decision.reason,
        )
        for plan in plans
    ]
    columns = ("model", "requests", "rows", "first due", "applied (UTC)", "why")
    return Answer(plans, Listing(columns, rows, empty="no model is registered yet", folds="model"))


def _when(decision: Any) -> str:
    if decision.seal:
        return f"now, {decision.kind}"
    return "" if decision.when_next is None else f"{decision.when_next:%Y-%m-%d %H:%M}"


@ledger_command(batches, "apply")
def apply(
    opened: "Ledger",
    *,
    model: Model = None,
    tenant: _command.Tenant = "default",
    force: bool = False,
    retrain: str | None = None,
) -> Answer:
    """Apply, certify and purge what is due.

    The exit status is 1 if a step failed, and 5 if another worker is at it.

    Example: letheon batch apply --force

    Parameters
    ----------
    force : bool
        Now, however few requests there are.
    retrain : NAME
        Train this model afresh, with all that is queued.
    """
    if retrain is not None and (force or model is not None):
        raise UsageError("--retrain NAME goes without --force and --model")
    if retrain is not None:
        steps = opened.models.retrain(retrain, tenant=tenant, apart=True)
    else:
        steps = opened.run_once(force=force, model=model, tenant=tenant, apart=True)
    rows = [(step.what, step.model, step.sequence, step.detail) for step in steps]
    waiting = [] if steps else [f"{step.model}: {step.detail}" for step in find_waiting(opened)]
    empty = "\n".join(["nothing is due", *waiting])
    done = {step.what for step in steps}
    status = _command.FAILED if "failed" in done else _command.TRY_AGAIN if "waits" in done else 0
    columns = ("step", "model", "no.", "detail")
    return Answer(steps, Listing(columns, rows, empty=empty, folds="detail"), status=status)


@_command.document_options
def worker(
    *,
    interval: Annotated[float, typer.Option(min=0.1)] = 10.0,
    once: bool = False,
    ledger: _command.Home = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
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

    Parameters
    ----------
    interval : SECONDS
        Pause between two looks.
    once : bool
        Look once, then stop.
    as_json : bool
        Print one JSON document per line and step.
    """
    with (
        _command.report_errors(as_json),
        _stop_on_signals() as stop,
        _command.open_ledger(ledger) as opened,
    ):
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


@contextlib.contextmanager
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
        from letheon.service.jobs import CHANGING_KINDS, READING_KINDS, JobRunner
    except ImportError:
        return lambda: 0

    return lambda: JobRunner(opened, stop).do_all((*CHANGING_KINDS, *READING_KINDS))


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
        generator = cast("Generator[Step, None, None]", opened.steps(apart=True, stop=stop))
        # Closing it between two steps gives the lease back.
        with contextlib.closing(generator) as steps, contextlib.suppress(StoppedError):
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
        status = _command.status_of(error)
        if status == _command.INTERNAL or isinstance(error, OldDatabaseError):
            raise
        typer.echo(f"letheon: {_command.error_text(error)}; trying again", err=True)
        return status
    return _command.FAILED if failed else 0


def find_waiting(opened: "Ledger") -> "list[Step]":
    """Return a step for each model with requests that wait, with until when and what for."""
    from letheon.ledger import Step

    steps = []
    for plan in opened.plan():
        when, n = plan.decision.when_next, plan.n_requests
        if when is None:
            continue
        requests, them = ("1 request waits", "it") if n == 1 else (f"{n} requests wait", "them")
        detail = (
            f"{requests} until {when:%-d %b %H:%M} UTC ({plan.waits_for}); "
            f"`letheon batch apply --force` runs {them} now"
        )
        steps.append(Step("waits", plan.model, None, detail))
    return steps


def _log(step: "Step", as_json: bool) -> None:
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
    """Serve the desk: API, pages and a worker over one ledger.

    The first start makes the ledger if the folder is empty or not there, and prints one token of an
    admin: it is shown this once. The desk listens on this machine only unless --host says
    otherwise. SIGTERM and Ctrl-C stop it after the calls and the step in hand; a kill at
    any moment loses nothing. More is set in service.toml in the folder of the ledger.

    Example: letheon serve --ledger erasures

    Parameters
    ----------
    host : ADDRESS
        Where to listen; others than loopback need HTTPS.
    port : N
        Port; 0 for any that is free.
    database : URL, by default a SQLite file in the folder
        PostgreSQL database of a new ledger.
    worker : bool
        Whether a worker runs beside the server.
    certfile : FILE
        Certificate of the server, for HTTPS.
    keyfile : FILE
        Private key of the certificate.
    insecure : bool
        Serve others without HTTPS all the same.
    demo : bool
        Show a filled example, in a folder that is new.
    as_json : bool
        Print address and new tokens as one JSON document.
    """
    with _command.report_errors(as_json), contextlib.ExitStack() as stack:
        import letheon

        desk = letheon.service  # by the package: it says what to install if the extra is missing
        if demo and ledger is None:  # an example that is gone at the end
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="letheon-desk-"))
            ledger = Path(place) / "ledger"
        home = _find_home(ledger)
        _command.disable_core_dump()
        settings = desk.ServiceSettings.read(home)
        binding = desk.Binding(host, port, certfile, keyfile)
        with _command.usage_errors():
            binding.require_safe(settings, insecure=insecure)
            binding.require_certificate()
        # Before anything is made: what is printed once must not be lost to an address in use.
        listening = stack.enter_context(binding.listen())
        opening = _fill_example(home, quiet=as_json) if demo else _open(home, database)
        opened = stack.enter_context(opening.ledger)

        def said(url: str) -> None:
            document = {"url": url, "tokens": opening.tokens, "receipt_code": opening.receipt_code}
            Answer(document, *_greeting(opening, url)).print(as_json)

        desk.serve(
            opened,
            settings,
            binding,
            listening=listening,
            with_worker=worker,
            is_demo=demo,
            said=said,
        )


class _Opening(NamedTuple):
    """A ledger that was opened, and what is told once: new tokens by role, a receipt code."""

    ledger: "Ledger"
    tokens: dict[str, str]
    receipt_code: str | None = None


def _greeting(opening: _Opening, url: str) -> Iterator[str]:
    if opening.receipt_code is None:
        for text in opening.tokens.values():
            yield f"Token of the admin, shown this once: {text}"
    else:
        for role, text in opening.tokens.items():
            yield f"Token of the {role}: {text}"
        yield f"A person's receipt code, for /receipt: {opening.receipt_code}"
    if not opening.tokens:
        yield "Log in with a token; `letheon token add NAME --role admin` makes one"
    if differences := "; ".join(opening.ledger.database_differences()):
        yield (
            f"Nothing can be recorded: the files are newer than the database ({differences}). "
            "Restore the newest database; `letheon ledger adopt` says what else can be done"
        )
    yield f"The desk is open at {url} (Ctrl-C closes it)"


def _open(home: Path, database: str | None) -> _Opening:
    """Open the ledger, or make it with a token of an admin."""
    from letheon.service.server import admin_token, open_or_create

    with _command.usage_errors():
        opened = open_or_create(home, database=database)
    token = admin_token(opened, days=365)
    return _Opening(opened, {} if token is None else {"admin": token})


def _fill_example(home: Path, *, quiet: bool) -> _Opening:
    import letheon
    from letheon.demo.desk import make_demo

    if not quiet:
        typer.echo("Filling an example ledger; this takes some seconds.")
    made = make_demo(home)
    return _Opening(letheon.Ledger.open(home), dict(made.tokens), made.receipt_code)


def _find_home(folder: Path | None) -> Path:
    try:
        return _command.find_home(folder)
    except LedgerMissingError:
        raise LedgerMissingError(
            "no ledger here: give --ledger DIR or set LETHEON_LEDGER; a folder that is new becomes "
            "one. `letheon serve --demo` shows a filled example"
        ) from None


def _tokens_of(opened: "Ledger") -> "Tokens":
    import letheon

    return letheon.service.Tokens(opened, opened._core.clock)


@ledger_command(tokens, "add")
def add_token(
    opened: "Ledger",
    name: str,
    *,
    role: str,
    scopes: str | None = None,
    tenant: str | None = None,
    days: Annotated[int, typer.Option(min=1)] = 90,
) -> Answer:
    """Make a token and print it; it is shown this once.

    Example: letheon token add reviewer --role auditor --days 30

    Parameters
    ----------
    name : NAME
        What it is called in lists.
    role : ROLE
        requester, operator, approver, auditor or admin.
    scopes : A,B, by default all of the role
        Fewer scopes than the role has.
    tenant : NAME, by default everybody's
        Whose things it sees.
    days : N
        How long it is valid.
    """
    wanted = None if scopes is None else [scope.strip() for scope in scopes.split(",")]
    with _command.usage_errors():
        text, token = _tokens_of(opened).create(name, role, scopes=wanted, tenant=tenant, days=days)
    return Answer({"token": text} | _describe_token(token), text)


@ledger_command(tokens, "list")
def list_tokens(opened: "Ledger") -> Answer:
    """Show the tokens, newest first; their texts are not kept.

    Example: letheon token list
    """
    listed = _tokens_of(opened).list_newest(limit=10_000)
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
    empty = "no token yet; `letheon token add` makes one"
    return Answer([_describe_token(token) for token in listed], Listing(columns, rows, empty=empty))


@ledger_command(tokens, "revoke")
def revoke_token(opened: "Ledger", token: str, *, descendants: bool = False) -> Answer:
    """Take a token back at once, with the browsers that were logged in with it.

    Of a token that was stolen, take back what was made with it as well.

    Example: letheon token revoke 0123456789abcdef --descendants

    Parameters
    ----------
    token : ID
        Id of the token, from the list.
    descendants : bool
        Those too that were made with it.
    """
    done = _tokens_of(opened).revoke(token, descendants=descendants)
    if not done:
        raise UsageError("no such token, or it is revoked already; see `letheon token list`")
    return Answer({"revoked": done}, f"revoked {done}")


def _describe_token(token: Any) -> dict[str, Any]:
    unlisted = ("created_by", "is_valid")
    return {name: fact for name, fact in vars(token).items() if name not in unlisted}
