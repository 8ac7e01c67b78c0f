"""Filing a request; the receipt code is shown once."""

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import FormData

from letheon.service._auth import Principal
from letheon.service._context import Context, context
from letheon.service._problems import Problem
from letheon.service.desk.filing import file_request, people_of
from letheon.service.desk.request_forms import EVERY_MODEL, Filed, RequestIn
from letheon.service.desk.request_refusals import refusals
from letheon.service.desk.requests import grounds
from letheon.service.pages._choices import LAWS, checked, key_of, tenant_choices, text_of
from letheon.service.pages._shared import SentForm, done, page, page_allows

router = APIRouter(include_in_schema=False)

# With a script only the message is put in, so that what was typed stays in the browser.
_KEEP_FORM = {"HX-Retarget": "#problem", "HX-Reselect": "#problem", "HX-Reswap": "outerHTML"}

_MANY = "filed-many"
_MOST_PLACES = 20

Filer = Annotated[Principal, Depends(page_allows("requests:file"))]


@router.get("/requests/new")
def show_new_request(
    request: Request, who: Filer, model: str = "", tenant: str | None = None
) -> HTMLResponse:
    """Show an empty form."""
    values = {"model": model, "regime": "gdpr", "receipt": "on"}
    return _form(request, who, who.tenant_for(tenant or None), values)


@router.post("/requests/new")
def file_new_request(request: Request, who: Filer, form: SentForm) -> Response:
    """File it. A form that is sent twice has one effect: it carries an idempotency key."""
    tenant = who.tenant_for(text_of(form, "tenant") or None)
    try:
        filed = _filed(request, who, tenant, form)
    except Problem as problem:
        if problem.status_code in (403, 404, 429):
            raise
        answer = _form(request, who, tenant, _typed(form), problem=problem)
        answer.headers.update(_KEEP_FORM)
        return answer
    lost = _code_lost(form, filed) if who.sees_all_requests else ""
    if any(one.receipt_code for one in filed.requests) or len(filed.requests) != 1:
        return _form(request, who, tenant, {"lost": lost}, filed=filed)
    one = filed.requests[0]
    return done(request, f"/requests/{one.id}", lost or "filed", one.n_ids)


def _filed(request: Request, who: Principal, tenant: str, form: FormData) -> Filed:
    desk, model, lines = context(request), text_of(form, "model"), _lines(form)
    if not lines:
        raise Problem(422, "ids", "No id was given", "Write one id per line.")
    ids: list[Any] = [line for _, line in lines]
    if model != EVERY_MODEL:
        with refusals():
            ids = people_of(desk, model, tenant, ids)
    wanted = checked(
        RequestIn,
        {
            "model": model,
            "ids": ids,
            "tenant": tenant,
            "regime": text_of(form, "regime"),
            "ground": text_of(form, "ground"),
            "verified": text_of(form, "verified") == "on",
            "receipt": who.sees_all_requests
            and text_of(form, "receipt") == "on"
            and len(set(ids)) == 1,
        },
    )
    try:
        return file_request(desk, who, wanted, key=f"page-{key_of(form)}")
    except Problem as problem:
        if problem.code != "unknown-ids":
            raise
        raise _unknown(desk, model, tenant, ids, lines) from problem


def _lines(form: FormData) -> list[tuple[int, str]]:
    """Return the ids that were typed, each with the number of its line."""
    found = form.get("ids", "")
    texts = found.splitlines() if isinstance(found, str) else []
    return [(number, text.strip()) for number, text in enumerate(texts, 1) if text.strip()]


def _unknown(
    desk: Context, model: str, tenant: str, ids: list[Any], lines: list[tuple[int, str]]
) -> Problem:
    """Say on which lines the model knows nobody, and not who stands there."""
    if model == EVERY_MODEL:
        wrong, title = lines, f"No model of tenant {tenant} knows these people"
    else:
        known = set(desk.ledger.requests.known_ids(ids, model=model, tenant=tenant))
        wrong = [line for one, line in zip(ids, lines, strict=True) if one not in known]
        title = f"Some ids are not in model {model}"
    if not wrong:  # somebody came to be known between the two looks
        return Problem(422, "unknown-ids", title, "Nothing was filed; try again.")
    words = f"{_places([number for number, _ in wrong])}: a typo, or erased already?"
    if any("," in text or ";" in text for _, text in wrong):
        words += " One id per line; there is a comma or semicolon."
    return Problem(422, "unknown-ids", title, f"{words} Nothing was filed.")


def _places(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_MOST_PLACES])
    more = f" and {len(numbers) - _MOST_PLACES} more" if len(numbers) > _MOST_PLACES else ""
    return f"Line{'s' if len(numbers) > 1 else ''} {shown}{more}"


def _code_lost(form: FormData, filed: Filed) -> str:
    """Return why no receipt code came although one was asked for; nothing where all is well."""
    has_code = any(one.receipt_code for one in filed.requests)
    if text_of(form, "receipt") != "on" or has_code:
        return ""
    if len({line for _, line in _lines(form)}) > 1:
        return _MANY
    return "filed-no-code" if filed.is_new else "filed-before"


def _typed(form: FormData) -> dict[str, str]:
    """Return what to show again; not the ids, as no answer repeats who somebody is."""
    names = ("model", "regime", "ground", "verified", "receipt")
    return {name: text_of(form, name) for name in names}


def _form(
    request: Request,
    who: Principal,
    tenant: str,
    values: dict[str, str],
    *,
    problem: Problem | None = None,
    filed: Filed | None = None,
) -> HTMLResponse:
    desk = context(request)
    return page(
        request,
        "new_request.html",
        who,
        status=200 if problem is None else problem.status_code,
        values=values,
        problem=problem,
        filed=filed,
        key=secrets.token_hex(16),
        whose=tenant,
        models=[one.name for one in desk.ledger.models.list(tenant=tenant)],
        tenants=tenant_choices(desk, who),
        laws=LAWS,
        grounds=grounds(),
        may_vouch=who.may("requests:vouch"),
    )
