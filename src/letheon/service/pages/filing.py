"""Filing requests: one by one, with a receipt code that is shown once; or many from a CSV file."""

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import FormData, UploadFile

from letheon.service.auth import Principal
from letheon.service.errors import Problem
from letheon.service.forms import check_form, key_of, text_of
from letheon.service.pages._shared import SentForm, done, page, page_allows, tenant_choices
from letheon.service.request_views import refusals
from letheon.service.routes.filing import EVERY_MODEL, Filed, RequestIn, file_one, parse_number
from letheon.service.routes.uploads import COLUMNS, MOST_ROWS, Upload, file_upload, read_rows

router = APIRouter(include_in_schema=False)

# With a script only the message is put in, so that what was typed stays in the browser.
_KEEP_FORM = {"HX-Retarget": "#problem", "HX-Reselect": "#problem", "HX-Reswap": "outerHTML"}

_MANY = "filed-many"
_MOST_PLACES = 20
_MOST_REFUSED = 50

Filer = Annotated[Principal, Depends(page_allows("requests:file"))]
ManyFiler = Annotated[Principal, Depends(page_allows("requests:file", is_long=True))]


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
        filed = _file(who, tenant, form)
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


def _file(who: Principal, tenant: str, form: FormData) -> Filed:
    model, lines = text_of(form, "model"), _lines(form)
    if not lines:
        raise Problem(422, "ids", "No id was given", "Write one id per line.")
    ids = _parse_ids(who, model, tenant, [line for _, line in lines])
    wants_code = who.sees_all_requests and text_of(form, "receipt") == "on"
    values = {name: text_of(form, name) for name in ("model", "regime", "ground")}
    wanted = check_form(
        RequestIn,
        values
        | {
            "ids": ids,
            "tenant": tenant,
            "verified": text_of(form, "verified") == "on",
            "receipt": wants_code and len(set(ids)) == 1,
        },
    )
    try:
        return file_one(who, wanted, key=f"page-{key_of(form)}")
    except Problem as problem:
        if problem.code != "unknown-ids":
            raise
        raise _unknown(who, model, tenant, ids, lines) from problem


def _parse_ids(who: Principal, model: str, tenant: str, lines: list[str]) -> list[Any]:
    """Return ids that were typed: as numbers where the model holds numbers.

    Raises
    ------
    Problem
        One of them is no number; the text says which, not what it is.
    """
    with refusals():
        if model == EVERY_MODEL or not who.ledger.models.has_integer_ids(model, tenant=tenant):
            return lines
    numbers = [parse_number(line) for line in lines]
    if None in numbers:
        raise Problem(
            422,
            "ids",
            "this model holds numbers as ids",
            f"Id {numbers.index(None) + 1} of the list is none, or one of more than 64 bits.",
        )
    return numbers


def _lines(form: FormData) -> list[tuple[int, str]]:
    """Return the ids that were typed, each with the number of its line."""
    typed = form.get("ids", "")
    texts = typed.splitlines() if isinstance(typed, str) else []
    return [(number, text.strip()) for number, text in enumerate(texts, 1) if text.strip()]


def _unknown(
    who: Principal, model: str, tenant: str, ids: list[Any], lines: list[tuple[int, str]]
) -> Problem:
    """Say on which lines the model knows nobody, and not who stands there."""
    if model == EVERY_MODEL:
        wrong, title = lines, f"No model of tenant {tenant} knows these people"
    else:
        known = set(who.ledger.requests.known_ids(ids, model=model, tenant=tenant))
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
    request: Request, who: Principal, tenant: str, values: dict[str, str], **more: Any
) -> HTMLResponse:
    models = [one.name for one in who.ledger.models.list(tenant=tenant)]
    shown = {"problem": None, "filed": None, "values": values, "models": models} | more
    return _filing_page(request, who, tenant, "new_request.html", shown)


@router.get("/requests/upload")
def show_upload(request: Request, who: ManyFiler, tenant: str | None = None) -> HTMLResponse:
    """Show the form."""
    return _upload_page(request, who, who.tenant_for(tenant or None))


@router.post("/requests/upload")
def file_from_csv(request: Request, who: ManyFiler, form: SentForm) -> HTMLResponse:
    """File each line. A form that is sent twice has one effect: it carries an idempotency key."""
    tenant = who.tenant_for(text_of(form, "tenant") or None)
    file = form.get("file")
    try:
        if not isinstance(file, UploadFile) or not file.filename:
            raise Problem(422, "csv", "No file was chosen", "Choose a CSV file first.")
        if not file.size:
            raise Problem(422, "csv", "The file is empty", "Choose one with a header and lines.")
        upload = Upload(file.file.read(), tenant, text_of(form, "verified") == "on")
        came = file_upload(who, upload, key=f"page-{key_of(form)}")
    except Problem as problem:
        if problem.status_code in (403, 404, 429):
            raise
        return _upload_page(request, who, tenant, problem=problem)
    lines = [line for line, _ in read_rows(upload.data)]
    refused = [(lines[one.index], one) for one in came.items if one.problem is not None]
    states = [one.request.state for one in came.items if one.request is not None]
    return _upload_page(
        request,
        who,
        tenant,
        came=came,
        refused=refused[:_MOST_REFUSED],
        duplicates=states.count("duplicate"),
    )


def _upload_page(request: Request, who: Principal, tenant: str, **more: Any) -> HTMLResponse:
    shown: dict[str, Any] = {
        "problem": None,
        "came": None,
        "refused": [],
        "duplicates": 0,
        "columns": COLUMNS,
        "most_rows": MOST_ROWS,
        "most_bytes": who.desk.settings.max_upload_bytes,
    }
    return _filing_page(request, who, tenant, "upload.html", shown | more)


def _filing_page(
    request: Request, who: Principal, tenant: str, name: str, shown: dict[str, Any]
) -> HTMLResponse:
    problem: Problem | None = shown["problem"]
    return page(
        request,
        name,
        who,
        status=200 if problem is None else problem.status_code,
        key=secrets.token_hex(16),
        whose=tenant,
        tenants=tenant_choices(who),
        **shown,
    )
