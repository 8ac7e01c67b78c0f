"""What people do about requests: verify, approve, hold, reject, answer and so on."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field, StrictInt

from letheon.service.api.requests import Id
from letheon.service.auth import Gate, Principal, allows, allows_any, context
from letheon.service.desk.request_actions import ACTIONS, act, act_on_many
from letheon.service.desk.request_forms import (
    ActionName,
    ActionOnMany,
    BulkOut,
    Code,
    Day,
    Details,
    RequestOut,
)
from letheon.service.schemas import In

__all__ = ["router"]

router = APIRouter(tags=["requests"])

Handler = Annotated[Principal, Depends(allows("requests:handle"))]
_MOST_RECIPIENTS = 1_000_000


class HoldIn(In):
    """Why a request has to wait, and until when."""

    ground: Code = Field(description="See /api/v1/grounds, hold.")
    until: Day = Field(description="The day on whose beginning the hold ends.")


class RejectIn(In):
    """Why a request is refused."""

    ground: Code = Field(description="See /api/v1/grounds, reject.")


class TellIn(In):
    """How many recipients of the data were told (GDPR, Article 19)."""

    recipients: StrictInt = Field(ge=1, le=_MOST_RECIPIENTS)


class AnswerIn(In):
    """How many more recipients were told."""

    recipients: StrictInt = Field(default=0, ge=0, le=_MOST_RECIPIENTS)


@router.post("/api/v1/requests/actions", summary="Do one thing about many requests")
def act_on_requests(
    request: Request,
    who: Annotated[Principal, Depends(allows("requests:read", is_long=True))],
    body: ActionOnMany,
) -> BulkOut:
    """Do one thing about many requests, each for itself; it needs the scope of the action."""
    details = Details(ground=body.ground, until=body.until, recipients=body.recipients)
    done = act_on_many(context(request), who, body.action, body.requests, details)
    n_done = sum(one.problem is None for one in done)
    return BulkOut(items=done, n_done=n_done, n_refused=len(done) - n_done)


@router.post("/api/v1/requests/{request_id}/hold", summary="Put a request on hold")
def hold_request(request: Request, who: Handler, request_id: Id, body: HoldIn) -> RequestOut:
    """Put a request off on a legal ground; its clock goes on."""
    details = Details(ground=body.ground, until=body.until)
    return act(context(request), who, request_id, "hold", details)


@router.post("/api/v1/requests/{request_id}/reject", summary="Reject a request")
def reject_request(
    request: Request,
    who: Annotated[Principal, Depends(allows_any("requests:handle", "requests:approve"))],
    request_id: Id,
    body: RejectIn,
) -> RequestOut:
    """Refuse a request on a legal ground."""
    return act(context(request), who, request_id, "reject", Details(ground=body.ground))


@router.post("/api/v1/requests/{request_id}/tell", summary="Recipients were told")
def tell_recipients(request: Request, who: Handler, request_id: Id, body: TellIn) -> RequestOut:
    """Record that recipients of the data were told; the purge attests their number."""
    return act(context(request), who, request_id, "tell", Details(recipients=body.recipients))


@router.post("/api/v1/requests/{request_id}/answer", summary="The person was answered")
def answer_request(
    request: Request, who: Handler, request_id: Id, body: AnswerIn | None = None
) -> RequestOut:
    """Close a purged request."""
    given = body or AnswerIn()
    return act(context(request), who, request_id, "answer", Details(recipients=given.recipients))


def _plain(name: ActionName, gate: Gate) -> Callable[..., RequestOut]:
    """Return the handler of an action that needs no details."""

    def handler(
        request: Request, who: Annotated[Principal, Depends(gate)], request_id: Id
    ) -> RequestOut:
        return act(context(request), who, request_id, name)

    return handler


_PLAIN: dict[ActionName, tuple[str, str]] = {
    "verify": ("verify_request", "The identity was verified; the request goes on."),
    "await-identity": ("await_identity", "A proof of identity was asked for; GDPR's clock stands."),
    "approve": ("approve_request", "Let a large request go on, as a second pair of eyes."),
    "release": ("release_request", "End a hold."),
    "extend": ("extend_request", "Put the due day off; the person was told why."),
    "retry": ("retry_request", "Try a failed request again."),
    "cancel": ("cancel_request", "Withdraw a request that no batch has taken up."),
}

for _name, (_operation, _about) in _PLAIN.items():
    router.add_api_route(
        f"/api/v1/requests/{{request_id}}/{_name}",
        _plain(_name, allows(ACTIONS[_name].scopes[0])),
        methods=["POST"],
        name=_operation,
        summary=ACTIONS[_name].words,
        description=_about,
        response_model=RequestOut,
    )
