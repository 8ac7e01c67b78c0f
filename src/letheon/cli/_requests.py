"""`letheon model` and `letheon request`: register models, take requests in, look after them."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from letheon.cli import _command
from letheon.cli._command import Answer, Listing, UsageError, argument, ledger_command, value

if TYPE_CHECKING:
    from letheon.ledger import Ledger, Model, ModelFiles, Request

models = _command.make_group("model", "Models that people can be erased from.")
requests = _command.make_group("request", "Requests of people to be erased.")

OfTenant = Annotated[str | None, value("NAME", "Of this tenant only.")]
RequestId = Annotated[str, argument("REQUEST", "Id of the request.")]
Ground = Annotated[str, value("CODE", "Legal ground.")]


@ledger_command(models, "add")
def add_model(
    opened: "Ledger",
    file: Path,
    *,
    rows: Path,
    name: str,
    target: str | None = None,
    ids: str | None = None,
    tenant: _command.Tenant = "default",
    dataset: str | None = None,
    trusted: Annotated[list[str] | None, typer.Option("--trust")] = None,
    test: Path | None = None,
    releases: Literal["labels-only", "latest-only", "every-version"] | None = None,
    max_memory: Annotated[int | None, typer.Option(min=1)] = None,
) -> Answer:
    """Register a saved model with the rows that it was fitted on.

    An exact model is trained once more and compared.

    Example: letheon model add churn.letheon --name churn --rows train.csv --target churned
    --ids customer

    Parameters
    ----------
    file : FILE
        A model that letheon.save wrote.
    rows : FILE
        Its training rows: .npz with X, y and ids, .csv or .parquet.
    name : NAME
        Name of the model in the ledger.
    target : COLUMN
        Column of the target, in a table.
    ids : COLUMN
        Column of the ids, in a table.
    dataset : NAME, by default NAME
        Name of the data.
    trusted : CLASS
        A class that the file may use, with any settings.
    test : FILE
        Rows by which effectiveness is estimated, in the same form.
    releases : {"labels-only", "latest-only", "every-version"}, by default what its guarantee covers
        What of the model leaves the house.
    max_memory : BYTES, by default 64 MiB + 4 x FILE
        Memory that loading the model may take.
    """
    from letheon.ledger import ModelFiles

    files = ModelFiles(
        model=_command.require_file(file).read_bytes(),
        rows=_read_table(rows),
        target=target,
        ids=ids,
        test=None if test is None else _read_table(test),
        trusted=tuple(trusted or ()),
        max_memory=max_memory,
    )
    options = {"name": name, "tenant": tenant, "dataset": dataset, "releases": releases}
    with _command.usage_errors(), _command.print_warnings():
        info = _register(opened, files, **options)
    text = f"registered {info.name}: {info.method}, {info.n_rows:,} rows"
    return Answer(info.to_dict(), text)


def _register(opened: "Ledger", files: "ModelFiles", **options: Any) -> "Model":
    from letheon.sandbox import EndedError, TimeLimitError

    try:
        return opened.models.register_files(files, **options)
    except TimeLimitError as error:
        raise UsageError("reading and training took longer than an hour and was ended") from error
    except EndedError as error:
        raise UsageError(
            f"reading the files and training the model again failed ({error}); give the rows as "
            "they were given to fit, in that order"
        ) from error


def _read_table(path: Path) -> tuple[str, bytes]:
    return path.name, _command.require_file(path).read_bytes()


@ledger_command(models, "list")
def list_models(opened: "Ledger", tenant: OfTenant = None) -> Answer:
    """List the registered models.

    Example: letheon model list --json
    """
    entries = opened.models.list(tenant=tenant)
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
    shown = Listing(columns, rows, empty="no model is registered yet", folds="model")
    return Answer([entry.to_dict() for entry in entries], shown)


@ledger_command(models, "show")
def show_model(opened: "Ledger", name: str, *, tenant: _command.Tenant = "default") -> Answer:
    """Show the versions of a model, and what became of each.

    Example: letheon model show churn

    Parameters
    ----------
    name : NAME
        Name of the model.
    """
    versions = opened.models.versions(name, tenant=tenant)
    rows = [
        (
            version.number,
            version.sequence,
            f"{version.live:,}",
            f"{version.published_at:%Y-%m-%d %H:%M}",
            _state_of(version),
            f"{version.address[:16]}…",
        )
        for version in versions
    ]
    columns = ("version", "certificate", "rows", "published", "is", "SHA-256")
    return Answer(
        [version.to_dict() for version in versions], Listing(columns, rows, empty="no version")
    )


def _state_of(version: Any) -> str:
    if version.purged_at is not None:
        return "purged"
    if version.sequence is None:
        return "registered"
    return "published" if version.certified_at is None else "certified"


@ledger_command(requests, "add")
def add_request(
    opened: "Ledger",
    people: list[str] | None = None,
    *,
    model: str,
    ids_file: str | None = None,
    key: str | None = None,
    verified: bool = False,
    regime: str = "gdpr",
    ground: str | None = None,
    tenant: _command.Tenant = "default",
) -> Answer:
    """Record that people are to be erased; it is on the disk when the command returns.

    Ids on a command line stay in the shell's history: --ids-file - is better. Where the model holds
    numbers as ids, they are read as numbers.

    Example: letheon request add --model churn --verified --key case-4711 --ids-file - < ids.txt

    Parameters
    ----------
    model : NAME
        Name of the model.
    people : ID
        Ids of the people.
    ids_file : FILE
        File with one id per line; - for standard input.
    key : KEY
        Idempotency key: the same key gives the same request again.
    verified : bool
        You vouch for the identity.
    regime : CODE
        gdpr or ccpa.
    ground : CODE, by default gdpr.art17.1.b or ccpa.1798.105
        Legal ground.
    """
    if bool(people) == (ids_file is not None):
        problem = "both are" if people else "nobody is"
        raise UsageError(f"{problem} named; give ids, or --ids-file FILE")
    ids = people or _command.read_lines(str(ids_file))
    is_numeric = opened.models.has_integer_ids(model, tenant=tenant)
    with _command.usage_errors():
        request = opened.requests.submit(
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
        text += f"\nit is large; once approved: letheon request approve {request.id}"
    return Answer(request, text)


def parse_numbers(words: list[str]) -> list[int]:
    """Return ids of a model that holds numbers."""
    for place, word in enumerate(words, start=1):
        if not word.removeprefix("-").isdecimal():
            raise UsageError(f"this model holds numbers as ids; id {place} of the list is none")
    return [int(word) for word in words]


def _state_label(request: "Request") -> str:
    from letheon.ledger import REQUEST_STATES

    return REQUEST_STATES[request.state].label


@ledger_command(requests, "list")
def list_requests(
    opened: "Ledger", *, model: str | None = None, state: str | None = None, tenant: OfTenant = None
) -> Answer:
    """List requests, earliest due first.

    Example: letheon request list --state queued

    Parameters
    ----------
    model : NAME
        For this model only.
    state : STATE
        In this state only.
    """
    with _command.usage_errors():
        entries = opened.requests.list(model=model, state=state, tenant=tenant)
    now, calendar = datetime.now(UTC), opened.settings.calendar
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
    return Answer(entries, Listing(columns, rows, empty="no request", folds="model"))


@ledger_command(requests, "show")
def show_request(opened: "Ledger", request_id: RequestId, tenant: OfTenant = None) -> Answer:
    """Show a request and what happened to it.

    Example: letheon request show 73fdb37cede78c1bdc82ac08614adaef
    """
    request = opened.requests.get(request_id, tenant=tenant)
    entries = opened.requests.timeline(request_id, tenant=tenant)
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
    columns = ("when (UTC)", "what", "details")
    timeline = [
        {"at": entry.at, "kind": entry.kind, "details": entry.details, "log_index": entry.index}
        for entry in entries
    ]
    document = vars(request) | {"timeline": timeline}
    return Answer(document, "\n".join(about), Listing(columns, rows, empty="", folds="details"))


def _change(method: Callable[..., "Request"], request_id: str, **options: Any) -> Answer:
    """Call a method of the ledger on one request and say what became of it."""
    with _command.usage_errors():
        request = method(request_id, **options)
    due = f"; due on {request.due_on}" if request.is_open else ""
    return Answer(request, f"{request_id}: {_state_label(request)}{due}")


@ledger_command(requests, "verify")
def verify(opened: "Ledger", request_id: RequestId, tenant: OfTenant = None) -> Answer:
    """Record that the identity was verified; the request is queued.

    One of more rows than the policy's approve_above waits for an approval.

    Example: letheon request verify 73fdb37cede78c1bdc82ac08614adaef
    """
    return _change(opened.requests.verify, request_id, tenant=tenant)


@ledger_command(requests, "approve")
def approve(opened: "Ledger", request_id: RequestId, tenant: OfTenant = None) -> Answer:
    """Queue a verified request that is large enough to need a second pair of eyes.

    Example: letheon request approve 73fdb37cede78c1bdc82ac08614adaef
    """
    return _change(opened.requests.approve, request_id, tenant=tenant)


@ledger_command(requests, "await")
def await_identity(opened: "Ledger", request_id: RequestId, tenant: OfTenant = None) -> Answer:
    """Record that the person was asked for a proof of identity: the GDPR's clock pauses.

    Example: letheon request await 73fdb37cede78c1bdc82ac08614adaef
    """
    answer = _change(opened.requests.await_identity, request_id, tenant=tenant)
    return Answer(answer.document, f"{answer.parts[0]}; its clock stands until it is verified")


@ledger_command(requests, "cancel")
def cancel(opened: "Ledger", request_id: RequestId, tenant: OfTenant = None) -> Answer:
    """Withdraw a request whose people are not erased yet, and that no batch is erasing.

    Example: letheon request cancel 73fdb37cede78c1bdc82ac08614adaef
    """
    return _change(opened.requests.cancel, request_id, tenant=tenant)


@ledger_command(requests, "retry")
def retry(opened: "Ledger", request_id: RequestId, tenant: OfTenant = None) -> Answer:
    """Queue a request again that is stuck or waits after a failure.

    Example: letheon request retry 73fdb37cede78c1bdc82ac08614adaef
    """
    return _change(opened.requests.retry, request_id, tenant=tenant)


@ledger_command(requests, "hold")
def hold(
    opened: "Ledger",
    request_id: RequestId,
    ground: Ground,
    until: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"])],
    tenant: OfTenant = None,
) -> Answer:
    """Put a request off on a legal ground; its clock goes on.

    The hold is about the people: other requests that name one of them wait too. It ends when the
    day begins at the controller's seat.

    Example: letheon request hold 73fdb37cede78c1bdc82ac08614adaef --ground litigation-hold
    --until 2027-03-01

    Parameters
    ----------
    until : DAY
        Until this day.
    """
    return _change(
        opened.requests.hold, request_id, tenant=tenant, ground=ground, until=until.date()
    )


@ledger_command(requests, "release")
def release(opened: "Ledger", request_id: RequestId, tenant: OfTenant = None) -> Answer:
    """End a hold.

    Example: letheon request release 73fdb37cede78c1bdc82ac08614adaef
    """
    return _change(opened.requests.release, request_id, tenant=tenant)


@ledger_command(requests, "reject")
def reject(
    opened: "Ledger", request_id: RequestId, ground: Ground, tenant: OfTenant = None
) -> Answer:
    """Refuse a request on a legal ground.

    Example: letheon request reject 73fdb37cede78c1bdc82ac08614adaef --ground gdpr.art17.3.e
    """
    return _change(opened.requests.reject, request_id, tenant=tenant, ground=ground)


@ledger_command(requests, "extend")
def extend(opened: "Ledger", request_id: RequestId, tenant: OfTenant = None) -> Answer:
    """Put the due day off as far as the law permits; the person was told why.

    Example: letheon request extend 73fdb37cede78c1bdc82ac08614adaef
    """
    return _change(opened.requests.extend, request_id, tenant=tenant)


@ledger_command(requests, "tell")
def tell(
    opened: "Ledger",
    request_id: RequestId,
    recipients: Annotated[int, typer.Option(min=1)],
    tenant: OfTenant = None,
) -> Answer:
    """Record that recipients of the data were told of the erasure (GDPR, Article 19).

    Those who were told before the purge are counted in its attestation.

    Example: letheon request tell 73fdb37cede78c1bdc82ac08614adaef --recipients 2

    Parameters
    ----------
    recipients : N
        So many more recipients were told.
    """
    return _change(
        opened.requests.record_recipients, request_id, tenant=tenant, recipients=recipients
    )


@ledger_command(requests, "close")
def close(
    opened: "Ledger",
    request_id: RequestId,
    recipients: Annotated[int, typer.Option(min=0)] = 0,
    tenant: OfTenant = None,
) -> Answer:
    """Close a purged request: the person was answered.

    Example: letheon request close 73fdb37cede78c1bdc82ac08614adaef --recipients 2

    Parameters
    ----------
    recipients : N
        So many more recipients were told.
    """
    return _change(opened.requests.answer, request_id, tenant=tenant, recipients=recipients)
