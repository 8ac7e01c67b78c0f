"""Filing many requests from a CSV file."""

import secrets
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse
from starlette.datastructures import UploadFile

from letheon.service.auth import Principal, context
from letheon.service.desk.request_forms import BulkOut
from letheon.service.desk.uploads import COLUMNS, MOST_ROWS, Upload, file_upload, line_numbers
from letheon.service.errors import Problem
from letheon.service.pages._choices import key_of, tenant_choices, text_of
from letheon.service.pages._shared import SentForm, page, page_allows

router = APIRouter(include_in_schema=False)

Filer = Annotated[Principal, Depends(page_allows("requests:file", is_long=True))]
_MOST_SHOWN = 50


@router.get("/requests/upload")
def show_upload(request: Request, who: Filer, tenant: str | None = None) -> HTMLResponse:
    """Show the form."""
    return _form(request, who, who.tenant_for(tenant or None))


@router.post("/requests/upload")
def file_from_csv(request: Request, who: Filer, form: SentForm) -> HTMLResponse:
    """File each line. A form that is sent twice has one effect: it carries an idempotency key."""
    tenant = who.tenant_for(text_of(form, "tenant") or None)
    file = form.get("file")
    try:
        if not isinstance(file, UploadFile) or not file.filename:
            raise Problem(422, "csv", "No file was chosen", "Choose a CSV file first.")
        if not file.size:
            raise Problem(422, "csv", "The file is empty", "Choose one with a header and lines.")
        upload = Upload(file.file.read(), tenant, text_of(form, "verified") == "on")
        came = file_upload(context(request), who, upload, key=f"page-{key_of(form)}")
    except Problem as problem:
        if problem.status_code in (403, 404, 429):
            raise
        return _form(request, who, tenant, problem=problem)
    return _form(request, who, tenant, came=came, lines=line_numbers(upload.data))


def _form(
    request: Request,
    who: Principal,
    tenant: str,
    *,
    problem: Problem | None = None,
    came: BulkOut | None = None,
    lines: Sequence[int] = (),
) -> HTMLResponse:
    desk = context(request)
    items = [] if came is None else came.items
    refused = [(lines[one.index], one) for one in items if one.problem is not None]
    made = [one.request.state for one in items if one.request is not None]
    return page(
        request,
        "upload.html",
        who,
        status=200 if problem is None else problem.status_code,
        problem=problem,
        came=came,
        refused=refused[:_MOST_SHOWN],
        duplicates=made.count("duplicate"),
        key=secrets.token_hex(16),
        whose=tenant,
        tenants=tenant_choices(desk, who),
        columns=COLUMNS,
        most_rows=MOST_ROWS,
        most_bytes=desk.settings.max_upload_bytes,
        may_vouch=who.may("requests:vouch"),
    )
