"""`letheon request`: take requests in and look after them."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from letheon.cli._ledger_common import (
    AsJson,
    Home,
    LedgerCommand,
    Tenant,
    UsageError,
    group,
    lines_of,
    open_ledger,
    plain,
    reported,
    say,
    say_table,
    taken_at_their_word,
)

if TYPE_CHECKING:
    from letheon.ledger import Ledger, Request

__all__ = ["requests"]

requests = group("request", "Requests of people to be erased.")

RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="Id of the request.")]
OfTenant = Annotated[str | None, typer.Option(metavar="NAME", help="Of this tenant only.")]


@requests.command("add", cls=LedgerCommand)
def add(
    model: Annotated[str, typer.Option(metavar="NAME", help="Name of the model.")],
    people: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Ids of the people.")
    ] = None,
    ids_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File with one id per line; - for standard input."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Idempotency key: the same key gives the same request again."
        ),
    ] = None,
    verified: Annotated[
        bool, typer.Option("--verified", metavar="", help="You vouch for the identity.")
    ] = False,
    regime: Annotated[str, typer.Option(metavar="CODE", help="gdpr or ccpa.")] = "gdpr",
    ground: Annotated[
        str | None,
        typer.Option(
            metavar="CODE", help="Legal ground.", show_default="gdpr.art17.1.b or ccpa.1798.105"
        ),
    ] = None,
    tenant: Tenant = "default",
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Record that people are to be erased; it is on the disk when the command returns.

    Ids on a command line stay in the shell's history: --ids-file - is better. Where the model holds
    numbers as ids, they are read as numbers.

    Example: letheon request add --model churn --verified --key case-4711 --ids-file - < ids.txt
    """
    with reported(as_json), open_ledger(ledger) as opened:
        wanted = _ids(people, ids_file)
        held = opened.models.has_integer_ids(model, tenant=tenant)
        with taken_at_their_word():
            request = opened.requests.submit(
                _numbers(wanted) if held else wanted,
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
        say(as_json, request, text)


def _ids(people: list[str] | None, ids_file: str | None) -> list[str]:
    if bool(people) == (ids_file is not None):
        given = "both are" if people else "nobody is"
        raise UsageError(f"{given} named; give ids, or --ids-file FILE")
    if people:
        return people
    return lines_of(str(ids_file))


def _numbers(words: list[str]) -> list[int]:
    for place, word in enumerate(words, start=1):
        if not word.removeprefix("-").isdecimal():
            raise UsageError(f"this model holds numbers as ids; id {place} of the list is none")
    return [int(word) for word in words]


@requests.command("list", cls=LedgerCommand)
def show_all(
    model: Annotated[str | None, typer.Option(metavar="NAME", help="For this model only.")] = None,
    state: Annotated[str | None, typer.Option(metavar="STATE", help="In this state only.")] = None,
    tenant: OfTenant = None,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """List requests, earliest due first.

    Example: letheon request list --state queued
    """
    with reported(as_json), open_ledger(ledger) as opened:
        with taken_at_their_word():
            found = opened.requests.list(model=model, state=state, tenant=tenant)
        now, calendar = datetime.now(UTC), opened.settings.calendar
    lines = [
        (
            one.id,
            one.model,
            one.state,
            str(one.due_on),
            str(one.days_left(now, calendar)) if one.is_open else "",
            "" if one.certificate is None else str(one.certificate),
        )
        for one in found
    ]
    columns = ("request", "model", "state", "due on", "days", "cert.")
    say_table(as_json, found, columns, lines, empty="no request", folds="model")


@requests.command("show", cls=LedgerCommand)
def show(
    request_id: RequestId, tenant: OfTenant = None, ledger: Home = None, as_json: AsJson = False
) -> None:
    """Show a request and what happened to it.

    Example: letheon request show 73fdb37cede78c1bdc82ac08614adaef
    """
    with reported(as_json), open_ledger(ledger) as opened:
        request = opened.requests.get(request_id, tenant=tenant)
        entries = opened.requests.timeline(request_id, tenant=tenant)
    if as_json:
        say(True, plain(request) | {"timeline": plain(entries)}, "")
        return
    about = [
        f"{request.id}: {request.state}",
        f"model {request.model}, {_people(request.n_ids)}, {request.ground}",
        f"received {request.received_at:%Y-%m-%d %H:%M} UTC, due on {request.due_on}",
    ]
    if request.certificate is not None:
        about.append(f"certificate {request.certificate}")
    if request.reason:
        about.append(f"reason {request.reason}, tries {request.tries}")
    typer.echo("\n".join(about))
    lines = [(f"{one.at:%Y-%m-%d %H:%M:%S}", one.kind, _listed(one.details)) for one in entries]
    columns = ("when (UTC)", "what", "details")
    say_table(False, (), columns, lines, empty="", folds="details")


def _people(count: int) -> str:
    return "1 person" if count == 1 else f"{count:,} people"


def _listed(details: dict[str, Any]) -> str:
    shown = {name: value for name, value in details.items() if name != "request"}
    return ", ".join(f"{name} {str(value)[:24]}" for name, value in shown.items())


def _changed(
    request_id: str,
    folder: Path | None,
    as_json: bool,
    change: "Callable[[Ledger], Request]",
    note: str = "",
) -> None:
    with reported(as_json), open_ledger(folder) as opened:
        with taken_at_their_word():
            request = change(opened)
        due = f"; due on {request.due_on}" if request.is_open else ""
        say(as_json, request, f"{request_id} is {request.state}{due}{note}")


@requests.command("verify", cls=LedgerCommand)
def verify(
    request_id: RequestId, tenant: OfTenant = None, ledger: Home = None, as_json: AsJson = False
) -> None:
    """Record that the identity was verified; the request is queued.

    One of more rows than the policy's approve_above waits for an approval.

    Example: letheon request verify 73fdb37cede78c1bdc82ac08614adaef
    """
    _changed(request_id, ledger, as_json, lambda it: it.requests.verify(request_id, tenant=tenant))


@requests.command("approve", cls=LedgerCommand)
def approve(
    request_id: RequestId, tenant: OfTenant = None, ledger: Home = None, as_json: AsJson = False
) -> None:
    """Queue a verified request that is large enough to need a second pair of eyes.

    Example: letheon request approve 73fdb37cede78c1bdc82ac08614adaef
    """
    _changed(request_id, ledger, as_json, lambda it: it.requests.approve(request_id, tenant=tenant))


@requests.command("await", cls=LedgerCommand)
def await_identity(
    request_id: RequestId, tenant: OfTenant = None, ledger: Home = None, as_json: AsJson = False
) -> None:
    """Record that the person was asked for a proof of identity: the GDPR's clock pauses.

    Example: letheon request await 73fdb37cede78c1bdc82ac08614adaef
    """
    _changed(
        request_id,
        ledger,
        as_json,
        lambda it: it.requests.await_identity(request_id, tenant=tenant),
        note="; its clock stands until it is verified",
    )


@requests.command("cancel", cls=LedgerCommand)
def cancel(
    request_id: RequestId, tenant: OfTenant = None, ledger: Home = None, as_json: AsJson = False
) -> None:
    """Withdraw a request whose people are not erased yet, and that no batch is erasing.

    Example: letheon request cancel 73fdb37cede78c1bdc82ac08614adaef
    """
    _changed(request_id, ledger, as_json, lambda it: it.requests.cancel(request_id, tenant=tenant))


@requests.command("retry", cls=LedgerCommand)
def retry(
    request_id: RequestId, tenant: OfTenant = None, ledger: Home = None, as_json: AsJson = False
) -> None:
    """Queue a request again that is stuck or waits after a failure.

    Example: letheon request retry 73fdb37cede78c1bdc82ac08614adaef
    """
    _changed(request_id, ledger, as_json, lambda it: it.requests.retry(request_id, tenant=tenant))


@requests.command("hold", cls=LedgerCommand)
def hold(
    request_id: RequestId,
    ground: Annotated[str, typer.Option(metavar="CODE", help="Legal ground.")],
    until: Annotated[
        datetime, typer.Option(metavar="DAY", formats=["%Y-%m-%d"], help="Until this day.")
    ],
    tenant: OfTenant = None,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Put a request off on a legal ground; its clock goes on.

    The hold is about the people: other requests that name one of them wait too. It ends when the
    day begins at the controller's seat.

    Example: letheon request hold 73fdb37cede78c1bdc82ac08614adaef --ground litigation-hold
    --until 2027-03-01
    """
    day = until.date()
    _changed(
        request_id,
        ledger,
        as_json,
        lambda it: it.requests.hold(request_id, ground, day, tenant=tenant),
    )


@requests.command("release", cls=LedgerCommand)
def release(
    request_id: RequestId, tenant: OfTenant = None, ledger: Home = None, as_json: AsJson = False
) -> None:
    """End a hold.

    Example: letheon request release 73fdb37cede78c1bdc82ac08614adaef
    """
    _changed(request_id, ledger, as_json, lambda it: it.requests.release(request_id, tenant=tenant))


@requests.command("reject", cls=LedgerCommand)
def reject(
    request_id: RequestId,
    ground: Annotated[str, typer.Option(metavar="CODE", help="Legal ground.")],
    tenant: OfTenant = None,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a request on a legal ground.

    Example: letheon request reject 73fdb37cede78c1bdc82ac08614adaef --ground gdpr.art17.3.e
    """
    _changed(
        request_id,
        ledger,
        as_json,
        lambda it: it.requests.reject(request_id, ground, tenant=tenant),
    )


@requests.command("extend", cls=LedgerCommand)
def extend(
    request_id: RequestId, tenant: OfTenant = None, ledger: Home = None, as_json: AsJson = False
) -> None:
    """Put the due day off as far as the law permits; the person was told why.

    Example: letheon request extend 73fdb37cede78c1bdc82ac08614adaef
    """
    _changed(request_id, ledger, as_json, lambda it: it.requests.extend(request_id, tenant=tenant))


@requests.command("tell", cls=LedgerCommand)
def tell(
    request_id: RequestId,
    recipients: Annotated[
        int, typer.Option(metavar="N", min=1, help="So many more recipients were told.")
    ],
    tenant: OfTenant = None,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Record that recipients of the data were told of the erasure (GDPR, Article 19).

    Those who were told before the purge are counted in its attestation.

    Example: letheon request tell 73fdb37cede78c1bdc82ac08614adaef --recipients 2
    """
    _changed(
        request_id,
        ledger,
        as_json,
        lambda it: it.requests.record_recipients(request_id, recipients, tenant=tenant),
    )


@requests.command("close", cls=LedgerCommand)
def close(
    request_id: RequestId,
    recipients: Annotated[
        int, typer.Option(metavar="N", min=0, help="So many more recipients were told.")
    ] = 0,
    tenant: OfTenant = None,
    ledger: Home = None,
    as_json: AsJson = False,
) -> None:
    """Close a purged request: the person was answered.

    Example: letheon request close 73fdb37cede78c1bdc82ac08614adaef --recipients 2
    """
    _changed(
        request_id,
        ledger,
        as_json,
        lambda it: it.requests.answer(request_id, recipients=recipients, tenant=tenant),
    )
