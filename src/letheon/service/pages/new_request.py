"""Filing a request; the receipt code is shown once."""

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import FormData

from letheon.service._auth import Principal
from letheon.service._context import context
from letheon.service._problems import Problem
from letheon.service.desk.filing import file_request, people_of
from letheon.service.desk.people import model_names
from letheon.service.desk.request_forms import EVERY_MODEL, Filed, RequestIn
from letheon.service.desk.request_refusals import refusals
from letheon.service.desk.requests import grounds
from letheon.service.pages._choices import LAWS, checked, key_of, tenant_choices, text_of
from letheon.service.pages._shared import SentForm, done, page, page_allows

router = APIRouter(include_in_schema=False)

# With a script only the message is put in, so that what was typed stays in the browser.
_KEEP_FORM = {"HX-Retarget": "#problem", "HX-Reselect": "#problem", "HX-Reswap": "outerHTML"}

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
    if any(one.receipt_code for one in filed.requests) or len(filed.requests) != 1:
        return _form(request, who, tenant, {}, filed=filed)
    return done(request, f"/requests/{filed.requests[0].id}", "filed")


def _filed(request: Request, who: Principal, tenant: str, form: FormData) -> Filed:
    desk, model = context(request), text_of(form, "model")
    lines = [line.strip() for line in text_of(form, "ids").splitlines() if line.strip()]
    if not lines:
        raise Problem(422, "ids", "No id was given", "Write one id per line.")
    ids: list[Any] = list(lines)
    if model != EVERY_MODEL:
        with refusals():
            ids = people_of(desk, model, tenant, lines)
    wanted = checked(
        RequestIn,
        {
            "model": model,
            "ids": ids,
            "tenant": tenant,
            "regime": text_of(form, "regime"),
            "ground": text_of(form, "ground"),
            "verified": text_of(form, "verified") == "on",
            "receipt": text_of(form, "receipt") == "on" and len(set(lines)) == 1,
        },
    )
    return file_request(desk, who, wanted, key=f"page-{key_of(form)}")


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
        models=model_names(desk.ledger, tenant),
        tenants=tenant_choices(desk, who),
        laws=LAWS,
        grounds=grounds(),
        may_vouch=who.may("requests:vouch"),
    )
