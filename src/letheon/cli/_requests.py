"""`letheon request`: take requests in and look after them."""

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from letheon.cli._command import (
    Answer,
    Listing,
    Tenant,
    UsageError,
    argument,
    declare,
    flag,
    ledger_command,
    make_group,
    parameter,
    read_lines,
    to_plain,
    usage_errors,
    value,
)

if TYPE_CHECKING:
    from letheon.ledger import Ledger

__all__ = ["requests"]

requests = make_group("request", "Requests of people to be erased.")

RequestId = Annotated[str, argument("REQUEST", "Id of the request.")]
OfTenant = Annotated[str | None, value("NAME", "Of this tenant only.")]
Ground = Annotated[str, value("CODE", "Legal ground.")]


@ledger_command(requests, "add")
def add(
    opened: "Ledger",
    model: Annotated[str, value("NAME", "Name of the model.")],
    people: Annotated[list[str] | None, argument("ID", "Ids of the people.")] = None,
    ids_file: Annotated[
        str | None, value("FILE", "File with one id per line; - for standard input.")
    ] = None,
    key: Annotated[
        str | None, value("KEY", "Idempotency key: the same key gives the same request again.")
    ] = None,
    verified: Annotated[bool, flag("--verified", "You vouch for the identity.")] = False,
    regime: Annotated[str, value("CODE", "gdpr or ccpa.")] = "gdpr",
    ground: Annotated[
        str | None, value("CODE", "Legal ground.", show_default="gdpr.art17.1.b or ccpa.1798.105")
    ] = None,
    tenant: Tenant = "default",
) -> Answer:
    """Record that people are to be erased; it is on the disk when the command returns.

    Ids on a command line stay in the shell's history: --ids-file - is better. Where the model holds
    numbers as ids, they are read as numbers.

    Example: letheon request add --model churn --verified --key case-4711 --ids-file - < ids.txt
    """
    if bool(people) == (ids_file is not None):
        given = "both are" if people else "nobody is"
        raise UsageError(f"{given} named; give ids, or --ids-file FILE")
    ids = people or read_lines(str(ids_file))
    is_numeric = opened.models.has_integer_ids(model, tenant=tenant)
    with usage_errors():
        request = opened.requests.submit(
            parse_numbers(ids) if is_numeric else ids,
            model=model,
            key=key,
            tenant=tenant,
            regime=regime,
            ground=ground or ("ccpa.1798.105" if regime == "ccpa" else "gdpr.art17.1.b"),
            verified=verified,
        )
    text = f"{request.id} is {request.state}; due on {request.due_on}"
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


@ledger_command(requests, "list")
def list_all(
    opened: "Ledger",
    model: Annotated[str | None, value("NAME", "For this model only.")] = None,
    state: Annotated[str | None, value("STATE", "In this state only.")] = None,
    tenant: OfTenant = None,
) -> Answer:
    """List requests, earliest due first.

    Example: letheon request list --state queued
    """
    with usage_errors():
        found = opened.requests.list(model=model, state=state, tenant=tenant)
    now, calendar = datetime.now(UTC), opened.settings.calendar
    rows = [
        (
            one.id,
            one.model,
            one.state,
            one.due_on,
            one.days_left(now, calendar) if one.is_open else None,
            one.certificate,
        )
        for one in found
    ]
    columns = ("request", "model", "state", "due on", "days", "cert.")
    return Answer(found, Listing(columns, rows, empty="no request", folds="model"))


@ledger_command(requests, "show")
def show(opened: "Ledger", request_id: RequestId, tenant: OfTenant = None) -> Answer:
    """Show a request and what happened to it.

    Example: letheon request show 73fdb37cede78c1bdc82ac08614adaef
    """
    request = opened.requests.get(request_id, tenant=tenant)
    entries = opened.requests.timeline(request_id, tenant=tenant)
    people = "1 person" if request.n_ids == 1 else f"{request.n_ids:,} people"
    about = [
        f"{request.id}: {request.state}",
        f"model {request.model}, {people}, {request.ground}",
        f"received {request.received_at:%Y-%m-%d %H:%M} UTC, due on {request.due_on}",
    ]
    if request.certificate is not None:
        about.append(f"certificate {request.certificate}")
    if request.reason:
        about.append(f"reason {request.reason}, tries {request.tries}")
    rows = [(f"{one.at:%Y-%m-%d %H:%M:%S}", one.kind, _details(one.details)) for one in entries]
    columns = ("when (UTC)", "what", "details")
    document = to_plain(request) | {"timeline": entries}
    return Answer(document, "\n".join(about), Listing(columns, rows, empty="", folds="details"))


def _details(details: dict[str, Any]) -> str:
    shown = {name: value for name, value in details.items() if name != "request"}
    return ", ".join(f"{name} {str(value)[:24]}" for name, value in shown.items())


def _change_command(
    name: str, method: str = "", note: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a command which calls a method of the ledger on one request.

    The function declares the options besides the request and its tenant, and returns them as the
    method takes them.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def change(opened: "Ledger", *, request_id: str, tenant: str | None, **own: Any) -> Answer:
            with usage_errors():
                given = function(**own) or {}
                request = getattr(opened.requests, method or name)(
                    request_id, tenant=tenant, **given
                )
            due = f"; due on {request.due_on}" if request.is_open else ""
            return Answer(request, f"{request_id} is {request.state}{due}{note}")

        opened = inspect.Parameter("opened", inspect.Parameter.POSITIONAL_ONLY)
        own = inspect.signature(function).parameters.values()
        options = [parameter(one.name, one.annotation, one.default) for one in own]
        tenant = parameter("tenant", OfTenant, None)
        declare(change, function, [opened, parameter("request_id", RequestId), *options, tenant])
        return ledger_command(requests, name)(change)

    return register


@_change_command("verify")
def verify() -> None:
    """Record that the identity was verified; the request is queued.

    One of more rows than the policy's approve_above waits for an approval.

    Example: letheon request verify 73fdb37cede78c1bdc82ac08614adaef
    """


@_change_command("approve")
def approve() -> None:
    """Queue a verified request that is large enough to need a second pair of eyes.

    Example: letheon request approve 73fdb37cede78c1bdc82ac08614adaef
    """


@_change_command("await", "await_identity", note="; its clock stands until it is verified")
def await_identity() -> None:
    """Record that the person was asked for a proof of identity: the GDPR's clock pauses.

    Example: letheon request await 73fdb37cede78c1bdc82ac08614adaef
    """


@_change_command("cancel")
def cancel() -> None:
    """Withdraw a request whose people are not erased yet, and that no batch is erasing.

    Example: letheon request cancel 73fdb37cede78c1bdc82ac08614adaef
    """


@_change_command("retry")
def retry() -> None:
    """Queue a request again that is stuck or waits after a failure.

    Example: letheon request retry 73fdb37cede78c1bdc82ac08614adaef
    """


@_change_command("hold")
def hold(
    ground: Ground,
    until: Annotated[datetime, value("DAY", "Until this day.", formats=["%Y-%m-%d"])],
) -> dict[str, Any]:
    """Put a request off on a legal ground; its clock goes on.

    The hold is about the people: other requests that name one of them wait too. It ends when the
    day begins at the controller's seat.

    Example: letheon request hold 73fdb37cede78c1bdc82ac08614adaef --ground litigation-hold
    --until 2027-03-01
    """
    return {"ground": ground, "until": until.date()}


@_change_command("release")
def release() -> None:
    """End a hold.

    Example: letheon request release 73fdb37cede78c1bdc82ac08614adaef
    """


@_change_command("reject")
def reject(ground: Ground) -> dict[str, Any]:
    """Refuse a request on a legal ground.

    Example: letheon request reject 73fdb37cede78c1bdc82ac08614adaef --ground gdpr.art17.3.e
    """
    return {"ground": ground}


@_change_command("extend")
def extend() -> None:
    """Put the due day off as far as the law permits; the person was told why.

    Example: letheon request extend 73fdb37cede78c1bdc82ac08614adaef
    """


@_change_command("tell", "record_recipients")
def tell(
    recipients: Annotated[int, value("N", "So many more recipients were told.", min=1)],
) -> dict[str, Any]:
    """Record that recipients of the data were told of the erasure (GDPR, Article 19).

    Those who were told before the purge are counted in its attestation.

    Example: letheon request tell 73fdb37cede78c1bdc82ac08614adaef --recipients 2
    """
    return {"recipients": recipients}


@_change_command("close", "answer")
def close(
    recipients: Annotated[int, value("N", "So many more recipients were told.", min=0)] = 0,
) -> dict[str, Any]:
    """Close a purged request: the person was answered.

    Example: letheon request close 73fdb37cede78c1bdc82ac08614adaef --recipients 2
    """
    return {"recipients": recipients}
