"""`letheon model` and `letheon request`: register models, record and process requests."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from letheon.cli import _command
from letheon.cli._command import CommandOutput, Listing, UsageError, argument, ledger_command, value

if TYPE_CHECKING:
    from letheon.ledger import Ledger, Model, ModelFiles, Request

models = _command.make_group("model", "Register and list models.")
requests = _command.make_group("request", "Record and process erasure requests.")

OfTenant = Annotated[str | None, value("NAME", "Only this tenant.")]
RequestId = Annotated[str, argument("REQUEST", "Id of the request.")]
Ground = Annotated[str, value("CODE", "Legal ground.")]


@ledger_command(models, "add")
def add_model(
    ledger: "Ledger",
    file: Path | None = None,
    *,
    rows: Path,
    name: str,
    target: str | None = None,
    ids: str | None = None,
    method: Literal["dare", "boosting", "influence", "ridge"] | None = None,
    settings: Annotated[list[str] | None, typer.Option("--set")] = None,
    tenant: _command.Tenant = "default",
    dataset: str | None = None,
    trusted: Annotated[list[str] | None, typer.Option("--trust")] = None,
    test: Path | None = None,
    releases: Literal["labels-only", "latest-only", "every-version"] | None = None,
    max_memory: Annotated[int | None, typer.Option(min=1)] = None,
) -> CommandOutput:
    """Register a saved model with its training rows, or train a new model on them.

    A saved model that is exact is trained again to check that the rows are those passed to fit.
    Without FILE a new model is trained. Its preprocessing depends on the types of the columns, and
    is printed: missing numbers are replaced by the mean, texts and categories are one-hot encoded,
    and numbers are scaled unless the model is a forest. Gradient boosting takes all columns as they
    are.

    Example: letheon model add churn.letheon --name churn --rows train.csv --target churned
    --ids customer

    Parameters
    ----------
    file : FILE, by default a new model is trained
        Model that letheon.save wrote.
    rows : FILE
        Training rows: .npz with X, y and ids, .csv or .parquet.
    name : NAME
        Name of the model in the ledger.
    target : COLUMN
        Column of the target, for a .csv or .parquet file.
    ids : COLUMN
        Column of the ids, for a .csv or .parquet file.
    method : {"dare", "boosting", "influence", "ridge"}, by default dare
        Method of a new model: a forest (exact), gradient boosting (exact), a linear model
        (certified) or ridge (exact).
    settings : NAME=VALUE
        Parameter of a new model, such as loss=poisson or max_depth=none; repeatable.
    dataset : NAME, by default NAME
        Name of the data set.
    trusted : CLASS
        Class that the file may use, with any settings; repeatable.
    test : FILE
        Test rows for estimating effectiveness, in the same format.
    releases : {"labels-only", "latest-only", "every-version"}, by default what its guarantee covers
        Which outputs of the model are published.
    max_memory : BYTES, by default 64 MiB + 4 x FILE
        Memory limit for loading the model.
    """
    from letheon.ledger import ModelFiles
    from letheon.table_pipeline import list_treatments

    if file is not None and (method is not None or settings):
        option = "--set" if method is None else "--method"
        raise UsageError(f"{option} is for a new model; leave out FILE or {option}")
    files = ModelFiles(
        model=None if file is None else _command.require_file(file).read_bytes(),
        rows=_read_table(rows),
        target=target,
        ids=ids,
        test=None if test is None else _read_table(test),
        trusted=tuple(trusted or ()),
        max_memory=max_memory,
        method=method or "dare",
        settings=_parse_settings(settings or []),
    )
    options = {"name": name, "tenant": tenant, "dataset": dataset, "releases": releases}
    with _command.wrap_usage_errors(), _command.print_warnings():
        info = _register_model(ledger, files, **options)
    text = f"registered {info.name}: {info.method}, {info.n_rows:,} rows"
    if file is not None:
        return CommandOutput(info.to_dict(), text)
    model = ledger.models.load(name, tenant=tenant)
    columns = list_treatments(model)
    listing = Listing(("column", "preprocessing"), columns, empty="no columns", folds="column")
    trained = f"trained {type(model.steps_[-1][1]).__name__} on these columns:"
    document = {"columns": [column._asdict() for column in columns]}
    return CommandOutput(info.to_dict() | document, text, trained, listing)


def _register_model(ledger: "Ledger", files: "ModelFiles", **options: Any) -> "Model":
    from letheon.sandbox import EndedError, TimeLimitError

    try:
        return ledger.models.register_files(files, **options)
    except TimeLimitError as error:
        raise UsageError(
            "reading the files and training the model again took longer than one hour and was "
            "stopped; nothing was registered"
        ) from error
    except EndedError as error:
        raise UsageError(
            f"reading the files and training the model again failed ({error}); --rows must have "
            "the same rows in the same order as those passed to fit"
        ) from error


def _parse_settings(texts: list[str]) -> tuple[tuple[str, str], ...]:
    """Return names and values of ``NAME=VALUE``; raise `UsageError` for other texts."""
    settings: dict[str, str] = {}
    for text in texts:
        name, sign, setting = text.partition("=")
        if not (name and sign and setting):
            raise UsageError(f"--set {text}: expected NAME=VALUE, such as loss=poisson")
        if name in settings:
            raise UsageError(f"--set {name}=... was given twice; give each setting once")
        settings[name] = setting
    return tuple(settings.items())


def _read_table(path: Path) -> tuple[str, bytes]:
    return path.name, _command.require_file(path).read_bytes()


@ledger_command(models, "list")
def list_models(ledger: "Ledger", tenant: OfTenant = None) -> CommandOutput:
    """List the registered models.

    Example: letheon model list --json
    """
    entries = ledger.models.list(tenant=tenant)
    rows = [
        (
            entry.name,
            entry.tenant,
            entry.method,
            f"{entry.n_rows:,}",
            entry.head.number,
            entry.head.sequence,
        )
        for entry in entries
    ]
    columns = ("model", "tenant", "method", "rows", "version", "certificate")
    listing = Listing(columns, rows, empty="no model is registered yet", folds="model")
    return CommandOutput([entry.to_dict() for entry in entries], listing)


@ledger_command(models, "predictor")
def write_predictor(
    ledger: "Ledger", name: str, *, out: Path, tenant: _command.Tenant = "default"
) -> CommandOutput:
    """Write the predictor of a model, without rows, ids and keys, to a file.

    The certificate states the SHA-256 of the file; `letheon cert verify --predictor FILE` compares
    them. After the next removal, write a new file and delete this one.

    Example: letheon model predictor churn --out churn.predictor

    Parameters
    ----------
    name : NAME
        Name of the model.
    out : FILE
        File to write; an existing file is replaced.
    """
    ledger.models.save_predictor(name, out, tenant=tenant)
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    return CommandOutput({"file": out, "sha256": digest}, f"written to {out}\nsha256 {digest}")


@ledger_command(models, "show")
def show_model(
    ledger: "Ledger", name: str, *, tenant: _command.Tenant = "default"
) -> CommandOutput:
    """Show the versions of a model and their states, and the preprocessing of its columns.

    Example: letheon model show churn

    Parameters
    ----------
    name : NAME
        Name of the model.
    """
    versions = ledger.models.versions(name, tenant=tenant)
    rows = [
        (
            version.number,
            version.sequence,
            f"{version.live:,}",
            f"{version.published_at:%Y-%m-%d %H:%M}",
            _version_state(version),
            f"{version.address[:16]}…",
        )
        for version in versions
    ]
    columns = ("version", "cert.", "rows", "published", "state", "SHA-256")
    parts = [Listing(columns, rows, empty="no version")]
    if treatments := ledger.models.list_columns(name, tenant=tenant):
        parts.append(Listing(("column", "preprocessing"), treatments, empty="", folds="column"))
    return CommandOutput([version.to_dict() for version in versions], *parts)


def _version_state(version: Any) -> str:
    if version.purged_at is not None:
        return "purged"
    if version.sequence is None:
        return "registered"
    return "published" if version.certified_at is None else "certificate issued"


@ledger_command(requests, "add")
def add_request(
    ledger: "Ledger",
    people: list[str] | None = None,
    *,
    model: str,
    ids_file: str | None = None,
    key: str | None = None,
    verified: bool = False,
    regime: str = "gdpr",
    ground: str | None = None,
    tenant: _command.Tenant = "default",
) -> CommandOutput:
    """Record an erasure request; it is stored permanently when the command returns.

    Ids on the command line stay in the shell history; use --ids-file - to avoid this. If the ids of
    the model are numbers, the given ids are read as numbers.

    Example: letheon request add --model churn --verified --key case-4711 --ids-file - < ids.txt

    Parameters
    ----------
    model : NAME
        Name of the model.
    people : ID
        Ids to erase.
    ids_file : FILE
        File with one id per line; - reads standard input.
    key : KEY
        Idempotency key: repeating the command with the same key returns the same request.
    verified : bool
        State that you have verified the identity of the requester.
    regime : CODE
        Law: gdpr or ccpa.
    ground : CODE, by default gdpr.art17.1.b or ccpa.1798.105
        Legal ground.
    """
    if bool(people) == (ids_file is not None):
        problem = "ids are given in two ways" if people else "no ids are given"
        raise UsageError(f"{problem}; give either ID arguments or --ids-file FILE")
    ids = people or _command.read_lines(str(ids_file))
    is_numeric = ledger.models.has_integer_ids(model, tenant=tenant)
    with _command.wrap_usage_errors():
        request = ledger.requests.submit(
            parse_numbers(ids) if is_numeric else ids,
            model=model,
            key=key,
            tenant=tenant,
            regime=regime,
            ground=ground or ("ccpa.1798.105" if regime == "ccpa" else "gdpr.art17.1.b"),
            verified=verified,
        )
    text = f"{request.id}: {_state_label(request)}; due on {request.due_on}"
    if request.state == "received":
        text += f"\nverify the identity, then: letheon request verify {request.id}"
    if request.state == "verified":
        text += f"\nit needs approval because of its size: letheon request approve {request.id}"
    return CommandOutput(request, text)


def parse_numbers(words: list[str]) -> list[int]:
    """Return ids as integers, for a model whose ids are numbers; raise `UsageError` otherwise."""
    for place, word in enumerate(words, start=1):
        if not word.removeprefix("-").isdecimal():
            raise UsageError(
                f"id number {place} in the list is not an integer; the ids of this model are "
                f"integers"
            )
    return [int(word) for word in words]


def _state_label(request: "Request") -> str:
    from letheon.ledger import REQUEST_STATES

    return REQUEST_STATES[request.state].label


@ledger_command(requests, "list")
def list_requests(
    ledger: "Ledger", *, model: str | None = None, state: str | None = None, tenant: OfTenant = None
) -> CommandOutput:
    """List requests, those with the earliest deadline first.

    Example: letheon request list --state queued

    Parameters
    ----------
    model : NAME
        Only requests for this model.
    state : STATE
        Only requests in this state.
    """
    with _command.wrap_usage_errors():
        entries = ledger.requests.list(model=model, state=state, tenant=tenant)
    now, calendar = datetime.now(UTC), ledger.settings.calendar
    rows = [
        (
            entry.id,
            entry.model,
            _state_label(entry),
            entry.due_on,
            entry.days_left(now, calendar) if entry.is_open else None,
            entry.certificate,
        )
        for entry in entries
    ]
    columns = ("request", "model", "state", "due on", "days", "cert.")
    return CommandOutput(entries, Listing(columns, rows, empty="no request", folds="model"))


@ledger_command(requests, "show")
def show_request(ledger: "Ledger", request_id: RequestId, tenant: OfTenant = None) -> CommandOutput:
    """Show a request and its history.

    Example: letheon request show 73fdb37cede78c1bdc82ac08614adaef
    """
    request = ledger.requests.get(request_id, tenant=tenant)
    entries = ledger.requests.timeline(request_id, tenant=tenant)
    people = "1 person" if request.n_ids == 1 else f"{request.n_ids:,} people"
    about = [
        f"{request.id}: {_state_label(request)}",
        f"model {request.model}, {people}, {request.ground}",
        f"received {request.received_at:%Y-%m-%d %H:%M} UTC, due on {request.due_on}",
    ]
    if request.certificate is not None:
        about.append(f"certificate {request.certificate}")
    if request.reason:
        about.append(f"reason {request.reason}, tries {request.tries}")
    rows = []
    for entry in entries:
        facts = {name: fact for name, fact in entry.details.items() if name != "request"}
        details = ", ".join(f"{name} {str(fact)[:24]}" for name, fact in facts.items())
        rows.append((f"{entry.at:%Y-%m-%d %H:%M:%S}", entry.kind, details))
    columns = ("time (UTC)", "event", "details")
    timeline = [
        {"at": entry.at, "kind": entry.kind, "details": entry.details, "log_index": entry.index}
        for entry in entries
    ]
    document = vars(request) | {"timeline": timeline}
    return CommandOutput(
        document, "\n".join(about), Listing(columns, rows, empty="", folds="details")
    )


def _change_request(
    method: Callable[..., "Request"], request_id: str, **options: Any
) -> CommandOutput:
    """Call a method of the ledger on a request; return the new state as the output."""
    with _command.wrap_usage_errors():
        request = method(request_id, **options)
    due = f"; due on {request.due_on}" if request.is_open else ""
    return CommandOutput(request, f"{request_id}: {_state_label(request)}{due}")


@ledger_command(requests, "verify")
def verify_request(
    ledger: "Ledger", request_id: RequestId, tenant: OfTenant = None
) -> CommandOutput:
    """Record that the identity of the requester was verified, and queue the request.

    If the request has more rows than approve_above in the policy, it must be approved before it is
    queued.

    Example: letheon request verify 73fdb37cede78c1bdc82ac08614adaef
    """
    return _change_request(ledger.requests.verify, request_id, tenant=tenant)


@ledger_command(requests, "approve")
def approve_request(
    ledger: "Ledger", request_id: RequestId, tenant: OfTenant = None
) -> CommandOutput:
    """Approve and queue a verified request that needs approval because of its size.

    Example: letheon request approve 73fdb37cede78c1bdc82ac08614adaef
    """
    return _change_request(ledger.requests.approve, request_id, tenant=tenant)


@ledger_command(requests, "await")
def await_identity(
    ledger: "Ledger", request_id: RequestId, tenant: OfTenant = None
) -> CommandOutput:
    """Record that you asked for proof of identity; this pauses the deadline (GDPR only).

    Example: letheon request await 73fdb37cede78c1bdc82ac08614adaef
    """
    output = _change_request(ledger.requests.await_identity, request_id, tenant=tenant)
    return CommandOutput(
        output.document, f"{output.parts[0]}; the deadline is paused until the identity is verified"
    )


@ledger_command(requests, "cancel")
def cancel_request(
    ledger: "Ledger", request_id: RequestId, tenant: OfTenant = None
) -> CommandOutput:
    """Withdraw a request that has not been applied and is not in a running batch.

    Example: letheon request cancel 73fdb37cede78c1bdc82ac08614adaef
    """
    return _change_request(ledger.requests.cancel, request_id, tenant=tenant)


@ledger_command(requests, "retry")
def retry_request(
    ledger: "Ledger", request_id: RequestId, tenant: OfTenant = None
) -> CommandOutput:
    """Retry a request that failed or needs attention.

    Example: letheon request retry 73fdb37cede78c1bdc82ac08614adaef
    """
    return _change_request(ledger.requests.retry, request_id, tenant=tenant)


@ledger_command(requests, "hold")
def hold_request(
    ledger: "Ledger",
    request_id: RequestId,
    ground: Ground,
    until: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"])],
    tenant: OfTenant = None,
) -> CommandOutput:
    """Put a request on hold on a legal ground; its deadline does not change.

    A hold applies to the people: other requests with one of these ids also wait. It ends when the
    given day begins in the time zone of the controller.

    Example: letheon request hold 73fdb37cede78c1bdc82ac08614adaef --ground litigation-hold
    --until 2027-03-01

    Parameters
    ----------
    until : DAY
        Day on which the hold ends, as YYYY-MM-DD.
    """
    return _change_request(
        ledger.requests.hold, request_id, tenant=tenant, ground=ground, until=until.date()
    )


@ledger_command(requests, "release")
def release_request(
    ledger: "Ledger", request_id: RequestId, tenant: OfTenant = None
) -> CommandOutput:
    """End the hold of a request.

    Example: letheon request release 73fdb37cede78c1bdc82ac08614adaef
    """
    return _change_request(ledger.requests.release, request_id, tenant=tenant)


@ledger_command(requests, "reject")
def reject_request(
    ledger: "Ledger", request_id: RequestId, ground: Ground, tenant: OfTenant = None
) -> CommandOutput:
    """Reject a request on a legal ground.

    Example: letheon request reject 73fdb37cede78c1bdc82ac08614adaef --ground gdpr.art17.3.e
    """
    return _change_request(ledger.requests.reject, request_id, tenant=tenant, ground=ground)


@ledger_command(requests, "extend")
def extend_request(
    ledger: "Ledger", request_id: RequestId, tenant: OfTenant = None
) -> CommandOutput:
    """Extend the deadline as far as the law permits; tell the requester why.

    Example: letheon request extend 73fdb37cede78c1bdc82ac08614adaef
    """
    return _change_request(ledger.requests.extend, request_id, tenant=tenant)


@ledger_command(requests, "tell")
def record_recipients(
    ledger: "Ledger",
    request_id: RequestId,
    recipients: Annotated[int, typer.Option(min=1)],
    tenant: OfTenant = None,
) -> CommandOutput:
    """Record that recipients of the data were notified of the erasure (GDPR, Article 19).

    Notifications that are recorded before the purge are counted in its attestation.

    Example: letheon request tell 73fdb37cede78c1bdc82ac08614adaef --recipients 2

    Parameters
    ----------
    recipients : N
        Number of newly notified recipients.
    """
    return _change_request(
        ledger.requests.record_recipients, request_id, tenant=tenant, recipients=recipients
    )


@ledger_command(requests, "close")
def close_request(
    ledger: "Ledger",
    request_id: RequestId,
    recipients: Annotated[int, typer.Option(min=0)] = 0,
    tenant: OfTenant = None,
) -> CommandOutput:
    """Mark a purged request, or a duplicate of one, as answered.

    Example: letheon request close 73fdb37cede78c1bdc82ac08614adaef --recipients 2

    Parameters
    ----------
    recipients : N
        Number of newly notified recipients.
    """
    return _change_request(ledger.requests.answer, request_id, tenant=tenant, recipients=recipients)
