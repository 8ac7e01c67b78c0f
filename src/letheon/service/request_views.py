"""Requests and their possible actions as the API shows them, without the ids of people."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import Path
from pydantic import BeforeValidator, Field, StrictStr

from letheon.exceptions import LetheonError, UnknownRequestError
from letheon.ledger import REQUEST_STATES, LogEntry, Request
from letheon.ledger.requests import states
from letheon.ledger.requests.deadlines import REGIMES, Regime
from letheon.ledger.schemas import NAME, to_datetime
from letheon.service.auth import Principal
from letheon.service.errors import PREFIX, ApiProblem, problem_of
from letheon.service.schemas import CodeOut, Hidden, ItemProblem, Out

MOST_ITEMS = 1000
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class Action:
    """An action that an operator can take on a request.

    Attributes
    ----------
    words : str
        Label of the button.
    scopes : tuple of str
        The token must have one of these scopes.
    takes : tuple of str
        Names of the arguments of the action.
    is_optional : bool
        Whether the arguments may be left out.
    """

    words: str
    scopes: tuple[str, ...]
    takes: tuple[str, ...] = ()
    is_optional: bool = False


_HANDLE = ("requests:handle",)

ACTIONS: dict[str, Action] = {
    "verify": Action("Mark identity as verified", _HANDLE),
    "await-identity": Action("Request proof of identity", _HANDLE),
    "approve": Action("Approve", ("requests:approve",)),
    "hold": Action("Put on hold", _HANDLE, ("ground", "until")),
    "release": Action("Release from hold", _HANDLE),
    "extend": Action("Extend deadline", _HANDLE),
    "retry": Action("Try again", _HANDLE),
    "tell": Action("Record notified recipients", _HANDLE, ("recipients",)),
    "answer": Action("Mark as answered", _HANDLE, ("recipients",), True),
    "reject": Action("Reject", ("requests:handle", "requests:approve"), ("ground",)),
    "cancel": Action("Withdraw", _HANDLE),
}
"""Every action, in the order of the buttons."""


if TYPE_CHECKING:
    State = str
    ActionName = str
else:  # OpenAPI lists them
    State, ActionName = Literal[tuple(REQUEST_STATES)], Literal[tuple(ACTIONS)]


def _require_text(value: object) -> object:
    """Reject a day that is not YYYY-MM-DD; a number would be read as seconds since 1970."""
    if isinstance(value, date) or (isinstance(value, str) and _DAY.fullmatch(value)):
        return value
    raise ValueError("expected a day in the form YYYY-MM-DD, for example 2026-11-15")


Day = Annotated[date, BeforeValidator(_require_text)]
RequestId = Annotated[StrictStr, Field(pattern="^[0-9a-f]{32}$")]
RequestPath = Annotated[RequestId, Path(description="Id of the request.")]
ModelName = Annotated[StrictStr, Field(pattern=f"^{NAME.pattern}$")]
TenantName = ModelName
Code = Annotated[StrictStr, Field(pattern="^[a-z0-9][a-z0-9.-]{0,62}$")]


@dataclass(frozen=True, kw_only=True)
class RequestOut(Request):
    """The current state of a request.

    A token that can only file requests gets the same response for ids that are in the model, erased
    or unknown. The state is `received` until the request is answered and its deadline has passed,
    and `closed` afterwards. Fields that would reveal more are null.

    Attributes
    ----------
    due_on : date
        Deadline, including an extension.
    days_left : int or None
        Days until the deadline; negative if overdue, null if the request is not open.
    n_ids : int or None
        Number of ids; null for a token that can only file requests.
    n_rows : int or None
        Number of rows; null for a token that can only file requests.
    certificate : int or None
        Number of the certificate; null if there is none yet.
    version : str or None
        The first model version without the rows of these people, for example "credit@3".
    reason : str or None
        Code that explains the state, for example why a batch failed; null if there is none.
    filed_by : str or None
        Id of the token that filed the request.
    actions : list of str
        Actions that you may take now.
    """

    state: State
    n_ids: int | None  # type: ignore[assignment]  # hidden from filers
    n_rows: int | None  # type: ignore[assignment]
    verified_by: Hidden[str | None] = None
    is_extended: Hidden[bool] = False
    hold_until: Hidden[datetime | None] = None
    recipients: Hidden[int] = 0
    closed_at: Hidden[datetime | None] = None
    is_new: Hidden[bool] = False
    days_left: int | None = None  # type: ignore[assignment]  # by the clock of the desk
    is_overdue: bool = False
    version: str | None = None
    needs_approval: bool = False
    actions: Sequence[ActionName] = ()


@dataclass(frozen=True)
class BulkResult:
    """The result of one item of a bulk call: a request, or a problem.

    Attributes
    ----------
    index : int
        Position of the item, from 0.
    status : int
        HTTP status that a call with this item alone would get.
    """

    index: int
    status: int
    request: RequestOut | None = None
    problem: ItemProblem | None = None


@dataclass(frozen=True)
class BulkOut:
    """The results of a bulk call, in the order of its items."""

    items: list[BulkResult]
    n_done: int
    n_refused: int


def find_visible(caller: Principal, request_id: str) -> Request:
    """Return a request that the token may see.

    Raises
    ------
    UnknownRequestError
        There is no such request, it belongs to another tenant, or it was filed with another token
        and this token sees only its own requests. The error is the same in all cases.
    """
    request = caller.ledger.requests.get(request_id, tenant=caller.tenant)
    if not caller.sees_all_requests and request.filed_by != caller.id:
        raise UnknownRequestError("unknown request id; `letheon request list` shows all requests")
    return request


def show_requests(caller: Principal, requests: Sequence[Request]) -> list[RequestOut]:
    """Return requests in the same order, with the fields and actions that a token may see."""
    now, calendar = to_datetime(caller.ledger.clock()), caller.ledger.settings.calendar
    left = {request.id: request.days_left(now, calendar) for request in requests}
    if not caller.sees_all_requests:
        return [_show_to_filer(request, left[request.id]) for request in requests]
    has_left = any(request.batch or request.certificate for request in requests)
    versions = caller.ledger.requests.version_numbers(requests) if has_left else {}
    family: frozenset[str | None] = frozenset()
    if caller.may("requests:approve") and any(request.state == "verified" for request in requests):
        family = caller.desk.tokens.find_family(caller.id)
    shown = []
    for request in requests:
        is_overdue = request.is_open and left[request.id] < 0
        is_own = not family.isdisjoint({request.filed_by, request.verified_by})
        values = {
            "certificate": None
            if request.certificate is None
            else caller.numbers.tenant_number(request.certificate),
            "days_left": left[request.id] if request.is_open else None,
            "is_overdue": is_overdue,
            "version": f"{request.model}@{versions[request.id]}"
            if request.id in versions
            else None,
            "needs_approval": request.state == "verified",
            "actions": _actions_for(caller, request, is_overdue=is_overdue, is_own=is_own),
        }
        shown.append(RequestOut(**vars(request) | values))
    return shown


def _show_to_filer(request: Request, left: int) -> RequestOut:
    """Return a request as a token sees it that can only file requests.

    Such a token must not learn which ids are in a model or were erased. The time of closing would
    reveal this too, so the request is shown as closed only after its deadline. `left` is the number
    of days until the deadline.
    """
    is_closed = not request.is_open and left < 0
    hidden = ("n_ids", "n_rows", "batch", "certificate", "reason", "duplicate_of")
    values = dict.fromkeys(hidden) | {
        "state": "closed" if is_closed else "received",
        "days_left": None if is_closed else left,
        "is_overdue": left < 0 and not is_closed,
        "tries": 0,
    }
    return RequestOut(**vars(request) | values)


def _actions_for(
    caller: Principal, request: Request, *, is_overdue: bool, is_own: bool
) -> list[ActionName]:
    """Return the actions that a token may take on a request now.

    `is_own` means that the owner of the token filed or verified the request, perhaps with another
    token. The result decides which buttons are shown; the ledger checks again when the action is
    taken.
    """
    is_sensible = {
        "approve": not is_own and caller.id not in (request.filed_by, request.verified_by),
        "await-identity": request.regime == "gdpr",
        "extend": not request.is_extended and not is_overdue,
        "retry": request.state != "stuck" or request.reason not in _RETRY_CANNOT_HELP,
        "reject": request.state != "stuck" or request.batch is None,
        "cancel": request.state != "stuck" or request.batch is None,
        "answer": request.state == "purged" or request.certificate is not None,
    }
    return [
        name
        for name, action in ACTIONS.items()
        if name in REQUEST_STATES[request.state].actions
        and caller.may(*action.scopes)
        and is_sensible.get(name, True)
    ]


@contextmanager
def raise_problems() -> Iterator[None]:
    """Turn errors of the ledger that are raised in a ``with`` block into API problems."""
    try:
        yield
    except (ValueError, LetheonError) as error:
        raise _problem_of(error) from error


def _problem_of(error: Exception) -> ApiProblem:
    """Return the API problem for an error; raise an internal error again.

    The text of a `ValueError` of the ledger contains only codes, days and counts, so it is shown.
    """
    problem = problem_of(error)
    if problem is None and isinstance(error, ValueError | LetheonError):
        return ApiProblem(422, "refused-value", "the value is not valid", str(error))
    if problem is None:
        raise error
    return problem


def bulk_out(caller: Principal, results: Sequence[Request | Exception]) -> BulkOut:
    """Convert the results of a bulk call, in the order of its items.

    Raises
    ------
    Exception
        A result is an internal error.
    """
    requests = [result for result in results if isinstance(result, Request)]
    shown = {request.id: request for request in show_requests(caller, requests)}
    items = []
    for index, result in enumerate(results):
        if isinstance(result, Request):
            status = 201 if result.is_new else 200
            items.append(BulkResult(index, status, shown[result.id]))
        else:
            problem = _problem_of(result)
            kind, detail = PREFIX + problem.code, str(problem.detail)
            about = ItemProblem(type=kind, title=problem.title, detail=detail)
            items.append(BulkResult(index, problem.status_code, problem=about))
    return BulkOut(items, len(requests), len(items) - len(requests))


GROUND_WORDS = {
    "gdpr.art17.1.a": "the data is no longer needed",
    "gdpr.art17.1.b": "consent was withdrawn",
    "gdpr.art17.1.c": "the person objects",
    "gdpr.art17.1.d": "the data was processed unlawfully",
    "gdpr.art17.1.e": "a law requires the erasure",
    "gdpr.art17.1.f": "the data is about a child",
    "gdpr.art11.2": "the person cannot be identified",
    "gdpr.art12.5": "the request is manifestly unfounded or excessive",
    "gdpr.art12.6": "the identity was not confirmed",
    "gdpr.art17.3.a": "freedom of expression",
    "gdpr.art17.3.b": "a legal obligation to keep the data",
    "gdpr.art17.3.c": "public health",
    "gdpr.art17.3.d": "archives, research or statistics",
    "gdpr.art17.3.e": "legal claims",
    "gdpr.art18.1": "restriction instead of erasure",
    "ccpa.1798.105": "right to delete",
    "ccpa.1798.105.d": "an exception to the right to delete",
    "ccpa.1798.145": "an exemption",
    "ccpa.7060": "the identity was not verified",
    "litigation-hold": "litigation hold",
    "internal": "internal decision",
    states.NO_DATA_HELD: "the model has no rows of these people",
}
"""Every ground of requests, rejections and holds, with its meaning."""


class Grounds(Out):
    """The codes of legal grounds; a ground cannot be free text.

    Attributes
    ----------
    request : dict of str to list of CodeOut
        Grounds for requests, by law.
    reject, hold : list of CodeOut
        Grounds for rejecting a request, and for putting it on hold.
    """

    request: dict[Regime, list[CodeOut]]
    reject: list[CodeOut]
    hold: list[CodeOut]


def _in_words(codes: Sequence[str]) -> list[CodeOut]:
    return [CodeOut(code=code, words=GROUND_WORDS[code]) for code in codes]


GROUNDS = Grounds(
    request={law: _in_words(states.REQUEST_GROUNDS[law]) for law in REGIMES},
    reject=_in_words(states.REJECT_GROUNDS),
    hold=_in_words(states.HOLD_GROUNDS),
)
"""Every code with its meaning."""

_RETRY_CANNOT_HELP = ("no-model-on-the-rest", "nobody-held")
# What failed, and what to do.
_STUCK_WORDS = {
    "no-model-on-the-rest": "No model can be trained without these rows: they are the last rows of "
    "the model, or of one class. Retrying does not help. Stop serving the model and "
    'follow the section "The last people of a model" in the ledger manual.',
    "budget-spent": "The privacy budget of the method is spent. Retrain the model, then retry.",
    "nobody-held": "The model no longer has rows of these people. Retrying does not help.",
    "time-limit": "The computation exceeded its time limit. Raise the limit, then retry.",
    "memory-limit": "The computation exceeded its memory limit. Raise the limit, then retry.",
    "forged-answer": "The sandboxed process returned an invalid result. Check where the model file "
    "comes from before you retry.",
    "residue-found": "A store still has data of an erased person. Run `letheon doctor` to find the "
    "file, delete it, then retry.",
}

# By event kind, optionally followed by the state before or by the reason; see `describe_event`.
_WORDS = {
    "received": "Request received{people}. Ground: {ground}. Due on {due}.",
    "identity-asked": "Proof of identity requested; the deadline is paused.",
    "verified": "Identity verified; the rows are excluded from new training.",
    "verified duplicate": "The earlier request was withdrawn. This one needs approval.",
    "approved": "Approved by a second person.",
    "queued": "Queued again.",
    "queued verified": "Queued for the next batch.",
    "queued on_hold": "Released from hold; queued again.",
    "queued duplicate": "The earlier request was withdrawn. This request is queued in its place.",
    "queued applying": "The batch was abandoned; queued again.",
    "duplicate": "Duplicate of {other}, which erases the same people.",
    "waits-for": "Waiting for {other}, which erases the same people.",
    "sealed": "Added to a batch{size}.",
    "applying": "The batch started.",
    "published": "New model version published, without these rows.",
    "applied": "Rows removed from the model.",
    "certificate": "{certificate} signed for the batch.",
    "certified": "Certificate issued for this request.",
    "purging": "Purge started.",
    "purge": "Purge attestation signed.",
    "purged": "All copies in the ledger were destroyed.",
    f"purged {states.NOT_FULLY_SEARCHED}": "All copies in the ledger were "
    "destroyed. Some files in the stores could not be searched.",
    "closed": "The person was answered{notified}.",
    "rejected": "Rejected: {ground}.",
    "cancelled": "The request was withdrawn.",
    "on_hold": "Put on hold until {until}: {ground}.",
    "retry_wait": "The batch failed and will be retried after a pause.",
    "stuck": "Processing stopped; an operator has to act. The deadline does not change.",
    "abandoned": "The batch was abandoned.",
    "extended": "Deadline extended to {due}; the person was notified.",
    "recipients-told": "Notified {recipients} of the data.",
    "receipt-code": "New receipt code created.",
}


def explain_failure(reason: str) -> str:
    """Explain the reason code of a failed request: what failed, and what to do."""
    other = "The computation failed. See the worker log, remove the cause, then retry."
    return _STUCK_WORDS.get(reason, other)


def describe_event(entry: LogEntry) -> str:
    """Describe an event of a request in a sentence that contains only codes and counts.

    The sentence for an unknown kind of event is its code.
    """
    kind, details = entry.kind, entry.details
    names = [f"{kind} {details.get('from')}", f"{kind} {details.get('reason')}", kind]
    words = next((_WORDS[name] for name in names if name in _WORDS), None)
    if words is None:
        return f"{kind.replace('-', ' ').replace('_', ' ').capitalize()}."
    ground, number = str(details.get("ground")), details.get("sequence")
    recipients = count_words(int(details.get("recipients", 0)), "recipient")
    people, size = (details.get(name) for name in ("people", "requests"))
    return words.format(
        due=details.get("due"),
        ground=GROUND_WORDS.get(ground, ground),
        until=to_datetime(int(details.get("until", 0))).date(),
        people="" if people is None else f" for {count_words(int(people), 'person', 'people')}",
        other=f"request {details['of']}" if "of" in details else "another request",
        size="" if size is None else f" of {count_words(int(size), 'request')}",
        certificate="Certificate" if number is None else f"Certificate #{number}",
        recipients=recipients,
        notified=f"; {recipients} notified" if details.get("recipients") else "",
    )


def count_words(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun in the singular or plural: "1 day", "2 days"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
