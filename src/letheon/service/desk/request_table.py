"""What can be done about a request: one table of actions, states and scopes for API and pages."""

from collections.abc import Callable
from dataclasses import dataclass

from letheon.ledger import Ledger, Request, Requests
from letheon.service._auth import Principal
from letheon.service.desk.request_forms import ActionName, Details, State

__all__ = ["ACTIONS", "Action", "actions_for"]

_HANDLE = ("requests:handle",)
_WITHDRAWABLE: tuple[State, ...] = (
    "received",
    "verified",
    "queued",
    "retry_wait",
    "duplicate",
    "on_hold",
    "stuck",
)
_UNDER_WAY: tuple[State, ...] = (
    "verified",
    "queued",
    "applying",
    "retry_wait",
    "applied",
    "certified",
    "purging",
    "duplicate",
    "on_hold",
    "stuck",
)

Do = Callable[[Ledger, str, str | None, Details], Request]


@dataclass(frozen=True)
class Action:
    """One thing that can be done about a request.

    Attributes
    ----------
    words : str
        As a button says it.
    scopes : tuple of str
        Who has one of these may do it.
    states : tuple of str
        In which it can be done.
    do : callable
        Does it: of a ledger, a request's id, its tenant, and details.
    needs : tuple of str
        The details without which it cannot be done.
    """

    words: str
    scopes: tuple[str, ...]
    states: tuple[State, ...]
    do: Do
    needs: tuple[str, ...] = ()


def _plainly(method: Callable[..., Request]) -> Do:
    return lambda ledger, request_id, tenant, _: method(ledger.requests, request_id, tenant=tenant)


ACTIONS: dict[ActionName, Action] = {
    "verify": Action("Identity verified", _HANDLE, ("received",), _plainly(Requests.verify)),
    "await-identity": Action(
        "Ask for proof of identity",
        _HANDLE,
        ("received",),
        _plainly(Requests.await_identity),
    ),
    "approve": Action("Approve", ("requests:approve",), ("verified",), _plainly(Requests.approve)),
    "hold": Action(
        "Put on hold",
        _HANDLE,
        ("queued", "retry_wait"),
        lambda ledger, request_id, tenant, given: ledger.requests.hold(
            request_id, str(given.ground), given.until or "", tenant=tenant
        ),
        ("ground", "until"),
    ),
    "release": Action("End the hold", _HANDLE, ("on_hold",), _plainly(Requests.release)),
    "extend": Action(
        "Extend the time", _HANDLE, ("received", *_UNDER_WAY), _plainly(Requests.extend)
    ),
    "retry": Action("Try again", _HANDLE, ("stuck", "retry_wait"), _plainly(Requests.retry)),
    "tell": Action(
        "Recipients were told",
        _HANDLE,
        (*_UNDER_WAY, "purged"),
        lambda ledger, request_id, tenant, given: ledger.requests.record_recipients(
            request_id, int(given.recipients or 0), tenant=tenant
        ),
        ("recipients",),
    ),
    "answer": Action(
        "The person was answered",
        _HANDLE,
        ("purged", "duplicate"),
        lambda ledger, request_id, tenant, given: ledger.requests.answer(
            request_id, recipients=int(given.recipients or 0), tenant=tenant
        ),
    ),
    "reject": Action(
        "Reject",
        ("requests:handle", "requests:approve"),
        _WITHDRAWABLE,
        lambda ledger, request_id, tenant, given: ledger.requests.reject(
            request_id, str(given.ground), tenant=tenant
        ),
        ("ground",),
    ),
    "cancel": Action("Withdraw", _HANDLE, _WITHDRAWABLE, _plainly(Requests.cancel)),
}
"""Every action, in the order in which a page offers them."""


def actions_for(
    who: Principal, request: Request, *, is_overdue: bool, is_own: bool = False
) -> list[ActionName]:
    """Return what somebody may do about a request as it is now.

    `is_own` says that they filed or verified it, perhaps with another token. The ledger decides
    again when it is done; this is for buttons.
    """
    return [
        name
        for name, action in ACTIONS.items()
        if request.state in action.states
        and not who.scopes.isdisjoint(action.scopes)
        and not (name == "approve" and is_own)
        and _makes_sense(name, who, request, is_overdue)
    ]


def _makes_sense(name: ActionName, who: Principal, request: Request, is_overdue: bool) -> bool:
    """Whether what the state permits is possible for this request and this person."""
    if name == "approve":
        return who.token_id not in (request.filed_by, request.verified_by)
    if name == "await-identity":
        return request.regime == "gdpr"
    if name == "extend":
        return not request.is_extended and not is_overdue
    if name in ("reject", "cancel"):
        return request.state != "stuck" or request.batch is None
    if name == "answer":
        return request.state == "purged" or request.certificate is not None
    return True
