"""Doing something about requests, in the name of whoever asks."""

from collections.abc import Sequence

from letheon.ledger import Request
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._problems import Problem
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
    """Do one thing about many requests; each stands for itself, in the order given."""
    _require_details(name, details or Details())
    require_scope(who, name)
    results: list[Request | Exception] = []
    for request_id in request_ids:
        try:
            results.append(_changed(context, who, request_id, name, details))
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
) -> Request:
    """Do one thing about one request, and return it as the ledger has it."""
    given = details or Details()
    require_scope(who, name)
    _require_details(name, given)
    found = visible(context, who, request_id)
    with context.ledger.acting(who.token_id):
        return ACTIONS[name].do(context.ledger, found.id, who.tenant, given)


def _require_details(name: ActionName, details: Details) -> None:
    missing = [one for one in ACTIONS[name].needs if getattr(details, one) is None]
    if missing:
        raise Problem(
            422,
            "details-missing",
            f"{name} needs {' and '.join(missing)}",
            "Grounds are codes: see /api/v1/grounds. A day is written YYYY-MM-DD.",
        )
