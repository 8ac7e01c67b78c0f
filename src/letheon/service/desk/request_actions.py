"""Doing something about requests, in the name of whoever asks."""

import contextlib
from collections.abc import Sequence

from letheon.exceptions import RequestStateError, UnknownRequestError
from letheon.ledger import Request
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._problems import Problem
from letheon.service.desk.four_eyes import is_own, needs_approval
from letheon.service.desk.request_forms import ActionName, Details, Outcome, RequestOut
from letheon.service.desk.request_refusals import outcome_of, refusals
from letheon.service.desk.request_table import ACTIONS, Action, actions_for
from letheon.service.desk.requests import answers, visible

__all__ = ["ACTIONS", "Action", "act", "act_on_many", "actions_for", "require_scope"]


def require_scope(who: Principal, name: ActionName) -> None:
    """Refuse an action to whoever has none of its scopes."""
    scopes = ACTIONS[name].scopes
    if who.scopes.isdisjoint(scopes):
        raise Problem(
            403,
            "not-allowed",
            "this token may not do that",
            f"It needs the scope {' or '.join(scopes)}; its role is {who.role}.",
        )


def act(
    context: Context,
    who: Principal,
    request_id: str,
    name: ActionName,
    details: Details | None = None,
) -> RequestOut:
    """Do one thing about one request, in the name of whoever asks."""
    with refusals():
        return answers(context, who, [_changed(context, who, request_id, name, details)])[0]


def act_on_many(
    context: Context,
    who: Principal,
    name: ActionName,
    request_ids: Sequence[str],
    details: Details | None = None,
) -> list[Outcome]:
    """Do one thing about many requests; each stands for itself, in the order given.

    Only what is verified together is counted together: above `Policy.approve_above` rows all of it
    waits for an approval.
    """
    _require_details(name, details or Details())
    require_scope(who, name)
    waits = _vouches_for_many(context, who, name, request_ids)
    results: list[Request | Exception] = []
    for request_id in request_ids:
        try:
            changed = _changed(context, who, request_id, name, details, waits=waits)
            results.append(changed)
        except Exception as error:  # noqa: BLE001  (`outcome_of` raises what is no refusal)
            results.append(error)
    done = answers(context, who, [one for one in results if isinstance(one, Request)])
    shown = {one.id: one for one in done}
    return [
        outcome_of(index, shown[one.id] if isinstance(one, Request) else one)
        for index, one in enumerate(results)
    ]


def _changed(
    context: Context,
    who: Principal,
    request_id: str,
    name: ActionName,
    details: Details | None = None,
    *,
    waits: bool = False,
) -> Request:
    """Do one thing about one request, and return it as the ledger has it."""
    given = details or Details()
    require_scope(who, name)
    _require_details(name, given)
    found = visible(context, who, request_id)
    if name == "approve":
        _require_other_eyes(context, who, found)
    with context.ledger.acting(who.token_id):
        if waits:  # it is to be verified, and no more
            return context.ledger.requests.verify(found.id, tenant=who.tenant, needs_approval=True)
        return ACTIONS[name].do(context.ledger, found.id, who.tenant, given)


def _require_other_eyes(context: Context, who: Principal, found: Request) -> None:
    """Refuse an approval by whoever filed or verified it, with whatever token.

    Both are known for good once it is verified.
    """
    if found.state != "verified":
        raise RequestStateError(f"request {found.id} is {found.state}; it waits for no approval")
    if is_own(context, who, found):
        raise RequestStateError(
            f"request {found.id} was filed or verified with the token that would approve it, with "
            "one that made it, or with one that it made; somebody else has to, with a token of "
            "another line: `letheon token add` begins one"
        )


def _vouches_for_many(
    context: Context, who: Principal, name: ActionName, request_ids: Sequence[str]
) -> bool:
    """Whether one call verifies so much together that all of it needs an approval."""
    if name != "verify" or context.ledger.settings.policy.approve_above is None:
        return False
    rows = {}
    for request_id in request_ids:
        with contextlib.suppress(UnknownRequestError):
            found = visible(context, who, request_id)
            rows[found.id] = found.n_rows if found.state == "received" else 0
    return needs_approval(context, rows.values())


def _require_details(name: ActionName, details: Details) -> None:
    missing = [one for one in ACTIONS[name].needs if getattr(details, one) is None]
    if missing:
        raise Problem(
            422,
            "details-missing",
            f"{name} needs {' and '.join(missing)}",
            "Grounds are codes: see /api/v1/grounds. A day is written YYYY-MM-DD.",
        )
