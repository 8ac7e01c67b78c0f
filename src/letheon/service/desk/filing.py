"""Taking requests in: one, one for every model that knows the person, or many at once.

Each request is a transaction of its own, and is on the disk when the answer goes out. Whoever sends
the same again, with the same idempotency key, gets the same requests and no new ones.
"""

import hashlib
import json
import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from letheon.exceptions import IdempotencyError, LetheonError, UnknownIdError
from letheon.ledger import Request
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._problems import Problem
from letheon.service.desk.four_eyes import needs_approval_together
from letheon.service.desk.request_forms import (
    EVERY_MODEL,
    BulkItem,
    BulkOut,
    Filed,
    RequestFiled,
    RequestIn,
    RequestOut,
)
from letheon.service.desk.request_refusals import outcome_of, refusals
from letheon.service.desk.requests import answers

__all__ = [
    "Wish",
    "as_number",
    "derived_key",
    "file_everywhere",
    "file_many",
    "file_request",
    "people_of",
]

_GROUNDS = {"gdpr": "gdpr.art17.1.b", "ccpa": "ccpa.1798.105"}
# As many as a list may have; a file may have more.
_MOST_ITEMS = 1000
_OTHER_LIST = "this idempotency key was used for another list; take another key, or repeat that one"
# Threads that wait for the disk together share its commits; more of them gain nothing.
_pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="letheon-filing")


class Wish(NamedTuple):
    """One request as the ledger takes it."""

    ids: Sequence[int | str]
    model: str
    tenant: str
    regime: str
    ground: str
    verified: bool
    key: str | None
    part_of: str | None = None
    needs_approval: bool = False
    ids_derived: bool = False


class _Stored(NamedTuple):
    request: Request
    is_new: bool
    code: str | None = None


def file_request(
    context: Context, who: Principal, body: RequestIn, *, key: str | None = None
) -> Filed:
    """File one request; or, for the model ``*``, one for every model that knows the people."""
    _require_vouching(who, body.verified)
    _require_receipts(who, body)
    if body.receipt and body.receipt_key is not None:
        raise Problem(
            422, "two-receipts", "both receipt and receipt_key", "Ask for a code, or send a key."
        )
    wish = Wish(
        ids=body.ids,
        model=body.model,
        tenant=who.tenant_for(body.tenant),
        regime=body.regime,
        ground=body.ground or _GROUNDS[body.regime],
        verified=body.verified,
        key=key,
    )
    with refusals():
        if body.model == EVERY_MODEL:
            stored = _every(context, who, wish, body)
        else:
            stored = [_filed(context, who, wish, body)]
        return _shown(context, who, stored)


def file_everywhere(
    context: Context, who: Principal, wishes: Sequence[Wish], *, stored: Sequence[Request] = ()
) -> Filed:
    """File what one person asks of several models; `stored` are what a repeat finds done."""
    with refusals():
        made = [_filed(context, who, wish, None) for wish in _with_approval(context, wishes)]
        return _shown(context, who, [*(_Stored(one, False) for one in stored), *made])


def derived_key(purpose: str, *parts: str) -> str:
    """Return an idempotency key that no caller can send: it begins with a control character."""
    text = json.dumps([purpose, *parts]).encode()
    return f"\x1f{purpose}:{hashlib.sha256(text).hexdigest()}"


def people_of(context: Context, model: str, tenant: str, lines: Sequence[str]) -> list[int | str]:
    """Return ids that were written as text: as numbers where the model holds numbers.

    Raises
    ------
    Problem
        One of them is no number; the text says which, not what it is.
    """
    if not context.ledger.models.has_integer_ids(model, tenant=tenant):
        return list(lines)
    for place, line in enumerate(lines, start=1):
        if as_number(line) is None:
            raise Problem(
                422,
                "ids",
                "this model holds numbers as ids",
                f"Id {place} of the list is none, or one of more than 64 bits.",
            )
    return [int(line) for line in lines]


def as_number(text: str) -> int | None:
    """Return the number that a text is, or None; of 64 bits, in plain digits."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def file_many(
    context: Context,
    who: Principal,
    items: Sequence[BulkItem],
    *,
    tenant: str | None = None,
    key: str | None = None,
    most: int = _MOST_ITEMS,
) -> BulkOut:
    """File many requests, each in a transaction of its own; say for each what became of it.

    With `key` an item without a key of its own gets one, derived from `key` and its place, and is
    recorded as a part of the whole. So whoever repeats the whole gets the same requests, also after
    a crash half-way; and whoever sends anything else with `key` is refused, and nothing is filed.
    An item with a key of its own stands for itself: `key` says nothing about it. `most` is how many
    items such a list can have. Rows that are vouched for count together: above
    `Policy.approve_above` all of them wait.

    Raises
    ------
    Problem
        422 if `key` was used for another list.
    """
    _require_vouching(who, any(item.verified for item in items))
    whose = who.tenant_for(tenant)
    whole = None if key is None else _digest(item.model_dump_json() for item in items)
    wishes = [_wish(index, item, whose, key, whole) for index, item in enumerate(items)]
    wishes = _with_approval(context, wishes)

    def work(wish: Wish) -> Request | Exception:
        try:
            return _submitted(context, who, wish)
        except Exception as error:  # noqa: BLE001  (`outcome_of` raises what is no refusal)
            return error

    with refusals():
        ahead = {} if key is None else _take_key(context, who, wishes, key, most)
    others = iter(_pool.map(work, [one for n, one in enumerate(wishes) if n not in ahead]))
    results = [ahead[n] if n in ahead else next(others) for n in range(len(wishes))]
    return _outcomes(context, who, results)


def _take_key(
    context: Context, who: Principal, wishes: Sequence[Wish], key: str, most: int
) -> dict[int, Request]:
    """File one request of a list ahead of the others: it decides what the key stands for.

    Returned is that request, by its place in the list.

    Raises
    ------
    IdempotencyError
        The key stands for another list.
    """
    places = {_place_key(key, place): place for place in range(max(len(wishes), most))}
    tenant = wishes[0].tenant
    stored = context.ledger.requests.by_key(places, tenant=tenant)
    for name in stored:
        place = places[name]
        if place >= len(wishes) or wishes[place].key != name:
            raise IdempotencyError(_OTHER_LIST)
        return {place: _submitted(context, who, wishes[place])}
    for place, wish in enumerate(wishes):
        if wish.part_of is not None:
            try:
                return {place: _submitted(context, who, wish)}
            except IdempotencyError:
                raise
            except (LetheonError, ValueError):
                continue  # it is refused again, with its reason, among the others
    return {}


def _outcomes(context: Context, who: Principal, results: Sequence[Request | Exception]) -> BulkOut:
    done = [one for one in results if isinstance(one, Request)]
    shown = {one.id: one for one in answers(context, who, done)}
    outcomes = []
    for index, one in enumerate(results):
        if isinstance(one, Request):
            outcomes.append(outcome_of(index, shown[one.id], status=201 if one.is_new else 200))
        else:
            outcomes.append(outcome_of(index, one))
    return BulkOut(items=outcomes, n_done=len(done), n_refused=len(results) - len(done))


def _with_approval(context: Context, wishes: Sequence[Wish]) -> list[Wish]:
    """Let everything that one call vouches for wait if it is too much together."""
    waits = needs_approval_together(context, wishes)
    return [wish._replace(needs_approval=waits) for wish in wishes]


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def _place_key(key: str, place: int) -> str:
    return derived_key("bulk", key, str(place))


def _wish(index: int, item: BulkItem, tenant: str, key: str | None, whole: str | None) -> Wish:
    own, part_of = item.key, None
    if own is None and key is not None:
        own, part_of = _place_key(key, index), whole
    return Wish(
        ids=item.ids,
        model=item.model,
        tenant=tenant,
        regime=item.regime,
        ground=item.ground or _GROUNDS[item.regime],
        verified=item.verified,
        key=own,
        part_of=part_of,
    )


def _every(context: Context, who: Principal, wish: Wish, body: RequestIn) -> list[_Stored]:
    """File one request for each model that knows some of the people.

    The first has the caller's key, so that the key cannot stand for anything else; the others have
    keys derived from it. A repeat finds those that were made before a crash, and makes the others.
    """
    base = wish.key if wish.key is not None else secrets.token_hex(16)
    whole = _digest(sorted({json.dumps(one) for one in wish.ids}))
    wishes: list[Wish] = []
    for model in _first_used(context, base, wish.tenant):
        known = _ids_for(context, who, wish, model)
        if known:
            key = derived_key("every-model", base, model) if wishes else base
            wishes.append(wish._replace(ids=known, model=model, key=key, part_of=whole))
    if not wishes:
        raise UnknownIdError("no model of this tenant knows these people")
    return [_filed(context, who, one, body) for one in _with_approval(context, wishes)]


def _ids_for(context: Context, who: Principal, wish: Wish, model: str) -> Sequence[int | str]:
    """Return the ids that a request to one of all models names.

    For who may not know whom a model holds: all of them, wherever ids are of their kind.
    """
    if who.sees_all_requests:
        return context.ledger.requests.known_ids(wish.ids, model=model, tenant=wish.tenant)
    kind = int if context.ledger.models.has_integer_ids(model, tenant=wish.tenant) else str
    return wish.ids if all(isinstance(one, kind) for one in wish.ids) else []


def _first_used(context: Context, key: str, tenant: str) -> list[str]:
    """Return the names of all models, first of all that of the request which has the key."""
    names = [one.name for one in context.ledger.models.list(tenant=tenant)]
    used = context.ledger.requests.by_key([key], tenant=tenant).get(key)
    return names if used is None else sorted(names, key=lambda name: name != used.model)


def _filed(context: Context, who: Principal, wish: Wish, body: RequestIn | None) -> _Stored:
    if body is not None and body.receipt:
        with context.ledger.acting(who.token_id):
            request, code = context.ledger.requests.submit_with_code(wish.ids, **_terms(wish))
        return _Stored(request, request.is_new, code)
    extra = {} if body is None or body.receipt_key is None else {"receipt_key": body.receipt_key}
    request = _submitted(context, who, wish, **extra)
    return _Stored(request, request.is_new)


def _submitted(context: Context, who: Principal, wish: Wish, **extra: Any) -> Request:
    ledger = context.ledger
    with ledger.acting(who.token_id):
        if who.sees_all_requests:
            return ledger.requests.submit(wish.ids, **_terms(wish), **extra)
        # Who is unknown is found out by `verify`, of which the filer sees nothing.
        terms = _terms(wish) | {"verified": False, "needs_approval": False}
        request = _own(who, ledger.requests.submit(wish.ids, **terms, accept_unknown=True))
        if wish.verified and request.state == "received":
            waits = wish.needs_approval
            verified = ledger.requests.verify(request.id, tenant=wish.tenant, needs_approval=waits)
            return replace(verified, is_new=request.is_new)
    return request


def _terms(wish: Wish) -> dict[str, Any]:
    return {name: value for name, value in wish._asdict().items() if name != "ids"}


def _own(who: Principal, request: Request) -> Request:
    """Return a request, unless a key led a filer to one that another token filed."""
    if request.filed_by != who.token_id:
        raise IdempotencyError("this idempotency key was used by somebody else; take another one")
    return request


def _shown(context: Context, who: Principal, stored: Sequence[_Stored]) -> Filed:
    shown = answers(context, who, [one.request for one in stored])
    codes = [one.code for one in stored]
    filed = [_with_code(one, code) for one, code in zip(shown, codes, strict=True)]
    return Filed(requests=filed, is_new=any(one.is_new for one in stored))


def _with_code(shown: RequestOut, code: str | None) -> RequestFiled:
    return RequestFiled(**shown.model_dump(), receipt_code=code)


def _require_receipts(who: Principal, body: RequestIn) -> None:
    """Refuse receipts to who may not know: only people who were held get one in the end."""
    if (body.receipt or body.receipt_key is not None) and not who.sees_all_requests:
        raise Problem(
            403,
            "not-allowed",
            "this token may not ask for a receipt",
            "An operator makes the code and hands it to the person; file the request without one.",
        )


def _require_vouching(who: Principal, verified: bool) -> None:
    if verified and not who.may("requests:vouch"):
        raise Problem(
            403,
            "not-allowed",
            "this token may not vouch for an identity",
            "It needs the scope requests:vouch; or leave `verified` out, and somebody verifies.",
        )
