"""A request as the desk shows it: to whom, with which actions; no field holds an id of a person."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Any

from fastapi import Path
from pydantic import BeforeValidator, Field, StrictStr
from pydantic_core import CoreSchema
from pydantic_core.core_schema import literal_schema

from letheon.exceptions import LetheonError, UnknownRequestError
from letheon.ledger import REQUEST_STATES, Request
from letheon.service.auth import Principal
from letheon.service.errors import PREFIX, Problem, problem_of
from letheon.service.numbers import Numbers
from letheon.service.schemas import Out

MOST_ITEMS = 1000
NAME = "[a-z0-9][a-z0-9._:-]{0,62}"
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class Action:
    """One thing that can be done about a request.

    Attributes
    ----------
    words : str
        As a button says it.
    scopes : tuple of str
        A token with one of these may do it.
    takes : tuple of str
        The details that are given to the method; all are needed unless `is_optional`.
    """

    words: str
    scopes: tuple[str, ...]
    takes: tuple[str, ...] = ()
    is_optional: bool = False


_HANDLE = ("requests:handle",)

ACTIONS: dict[str, Action] = {
    "verify": Action("Identity verified", _HANDLE),
    "await-identity": Action("Ask for proof of identity", _HANDLE),
    "approve": Action("Approve", ("requests:approve",)),
    "hold": Action("Put on hold", _HANDLE, ("ground", "until")),
    "release": Action("End the hold", _HANDLE),
    "extend": Action("Extend the time", _HANDLE),
    "retry": Action("Try again", _HANDLE),
    "tell": Action("Recipients were told", _HANDLE, ("recipients",)),
    "answer": Action("The person was answered", _HANDLE, ("recipients",), True),
    "reject": Action("Reject", ("requests:handle", "requests:approve"), ("ground",)),
    "cancel": Action("Withdraw", _HANDLE),
}
"""Every action, in the order in which a page offers them."""


class OneOf:
    """Lets a text be one of some names; the API document lists them.

    Parameters
    ----------
    names : iterable of str
        Those of a table.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Return the schema, which is that of a `Literal`."""
        return literal_schema(self.names)


State = Annotated[str, OneOf(REQUEST_STATES)]
ActionName = Annotated[str, OneOf(ACTIONS)]


def _require_text(value: object) -> object:
    """Refuse a day that is no text: a number would be taken for seconds since 1970."""
    if isinstance(value, date) or (isinstance(value, str) and _DAY.fullmatch(value)):
        return value
    raise ValueError("a day is written YYYY-MM-DD")


Day = Annotated[date, BeforeValidator(_require_text)]
RequestId = Annotated[StrictStr, Field(pattern="^[0-9a-f]{32}$")]
RequestPath = Annotated[RequestId, Path(description="Id of the request.")]
ModelName = Annotated[StrictStr, Field(pattern=f"^{NAME}$")]
TenantName = ModelName
Code = Annotated[StrictStr, Field(pattern="^[a-z0-9][a-z0-9.-]{0,62}$")]


class RequestOut(Out):
    """A request as it is now.

    A token that only files sees the same for people who are held, erased or unknown: the state is
    `received` until the last day has passed and `closed` after an answer, and what would tell more
    is null.
    """

    id: str
    model: str
    tenant: str
    state: State
    regime: str
    ground: str
    received_at: datetime
    due_on: date = Field(description="Last day; the extended one after an extension.")
    days_left: int | None = Field(description="Negative when overdue; null when nothing is due.")
    is_overdue: bool
    n_ids: int | None = Field(description="How many people it names; null for who only files.")
    n_rows: int | None = Field(description="How many rows were theirs; null for who only files.")
    batch: str | None
    certificate: int | None = Field(description="Number of the certificate.")
    version: str | None = Field(description="The model version that forgot them: name@number.")
    tries: int
    reason: str | None = Field(description="Why it is in a side state, as a code.")
    duplicate_of: str | None
    filed_by: str | None = Field(description="Id of the token that filed it.")
    needs_approval: bool
    actions: list[ActionName] = Field(description="What you may do about it now.")


class ItemProblem(Out):
    """What is wrong with one of many."""

    type: str
    title: str
    detail: str


class Outcome(Out):
    """What became of one of many: a request, or a problem."""

    index: int = Field(ge=0, description="Place in what was sent, from 0.")
    status: int = Field(description="As if it had been sent alone.")
    request: RequestOut | None = None
    problem: ItemProblem | None = None


class BulkOut(Out):
    """What became of each, in the order in which they were sent."""

    items: list[Outcome]
    n_done: int
    n_refused: int


def find_visible(who: Principal, request_id: str) -> Request:
    """Return a request that a token may see.

    Raises
    ------
    UnknownRequestError
        There is none; or it is another tenant's, or another token's where a token may see only
        its own. The three cannot be told apart.
    """
    request = who.ledger.requests.get(request_id, tenant=who.tenant)
    if not who.sees_all_requests and request.filed_by != who.token_id:
        raise UnknownRequestError("no request of that id; `letheon request list` shows all")
    return request


def show_requests(who: Principal, requests: Sequence[Request]) -> list[RequestOut]:
    """Return requests as a token sees them, in their order."""
    now = datetime.fromtimestamp(who.desk.clock(), UTC)
    if not who.sees_all_requests:
        return [_show_to_filer(who, request, now) for request in requests]
    has_left = any(one.batch or one.certificate for one in requests)
    versions = who.ledger.requests.version_numbers(requests) if has_left else {}
    numbers = Numbers(who.desk, who) if has_left else None
    family: frozenset[str | None] = frozenset()
    if who.may("requests:approve") and any(one.state == "verified" for one in requests):
        family = who.desk.tokens.family(who.token_id)
    shown = []
    for request in requests:
        left = _days_left(who, request, now) if request.is_open else None
        is_overdue = left is not None and left < 0
        is_own = not family.isdisjoint({request.filed_by, request.verified_by})
        version = versions.get(request.id)
        shown.append(
            RequestOut.of(
                request,
                certificate=None if numbers is None else numbers.shown(request.certificate),
                days_left=left,
                is_overdue=is_overdue,
                version=None if version is None else f"{request.model}@{version}",
                needs_approval=request.state == "verified",
                actions=_actions_for(who, request, is_overdue=is_overdue, is_own=is_own),
            )
        )
    return shown


def _days_left(who: Principal, request: Request, now: datetime) -> int:
    return request.days_left(now, who.ledger.settings.calendar)


def _show_to_filer(who: Principal, request: Request, now: datetime) -> RequestOut:
    """Return a request as a filer sees it who may not know whom a model holds or has forgotten.

    How soon a request ends would tell that too, so it is closed only after its last day.
    """
    left = _days_left(who, request, now)
    is_closed = not request.is_open and left < 0
    hidden = ("n_ids", "n_rows", "batch", "certificate", "version", "reason", "duplicate_of")
    return RequestOut.of(
        request,
        state="closed" if is_closed else "received",
        days_left=None if is_closed else left,
        is_overdue=left < 0 and not is_closed,
        tries=0,
        needs_approval=False,
        actions=[],
        **dict.fromkeys(hidden),
    )


def _actions_for(
    who: Principal, request: Request, *, is_overdue: bool, is_own: bool
) -> list[ActionName]:
    """Return what a token may do about a request as it is now.

    `is_own` says that its person filed or verified it, perhaps with another token. The ledger
    decides again when it is done; this is for buttons.
    """
    is_sensible = {
        "approve": not is_own and who.token_id not in (request.filed_by, request.verified_by),
        "await-identity": request.regime == "gdpr",
        "extend": not request.is_extended and not is_overdue,
        "reject": request.state != "stuck" or request.batch is None,
        "cancel": request.state != "stuck" or request.batch is None,
        "answer": request.state == "purged" or request.certificate is not None,
    }
    return [
        name
        for name, action in ACTIONS.items()
        if name in REQUEST_STATES[request.state].actions
        and not who.scopes.isdisjoint(action.scopes)
        and is_sensible.get(name, True)
    ]


@contextmanager
def refusals() -> Iterator[None]:
    """Turn what the ledger refuses into problems."""
    try:
        yield
    except (ValueError, LetheonError) as error:
        raise _problem_of(error) from error


def _problem_of(error: Exception) -> Problem:
    """Return an error as it is shown; a mistake in the program is raised again.

    A plain `ValueError` of the ledger speaks of codes, days and counts: it is shown as it is.
    """
    problem = problem_of(error)
    if problem is None and isinstance(error, ValueError | LetheonError):
        return Problem(422, "refused-value", "that cannot be used", str(error))
    if problem is None:
        raise error
    return problem


def bulk_out(who: Principal, results: Sequence[Request | Exception]) -> BulkOut:
    """Return what became of many: a request or a refusal each, in their order.

    Raises
    ------
    Exception
        A result that is a mistake in the program and no refusal.
    """
    requests = [one for one in results if isinstance(one, Request)]
    shown = {one.id: one for one in show_requests(who, requests)}
    items = []
    for index, result in enumerate(results):
        if isinstance(result, Request):
            status = 201 if result.is_new else 200
            items.append(Outcome(index=index, status=status, request=shown[result.id]))
        else:
            problem = _problem_of(result)
            kind, detail = PREFIX + problem.code, str(problem.detail)
            about = ItemProblem(type=kind, title=problem.title, detail=detail)
            items.append(Outcome(index=index, status=problem.status_code, problem=about))
    n_done = len(requests)
    return BulkOut(items=items, n_done=n_done, n_refused=len(items) - n_done)
