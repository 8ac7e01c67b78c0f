"""Filing many requests from a CSV file."""

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse
from starlette.datastructures import UploadFile

from letheon.service._auth import Principal
from letheon.service._context import context
from letheon.service._forms import key_of, text_of
from letheon.service._problems import Problem
from letheon.service.pages._shared import SentForm, page, page_allows, tenant_choices
from letheon.service.routes.uploads import COLUMNS, MOST_ROWS, Upload, file_upload, read_rows

router = APIRouter(include_in_schema=False)

Filer = Annotated[Principal, Depends(page_allows("requests:file", is_long=True))]
_MOST_SHOWN = 50


@router.get("/requests/upload")
def show_upload(request: Request, who: Filer, tenant: str | None = None) -> HTMLResponse:
    """Show the form."""
    return _page(request, who, who.tenant_for(tenant or None))


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
        return _page(request, who, tenant, status=problem.status_code, problem=problem)
    lines = [line for line, _ in read_rows(upload.data)]
    refused = [(lines[one.index], one) for one in came.items if one.problem is not None]
    states = [one.request.state for one in came.items if one.request is not None]
    return _page(
        request,
        who,
        tenant,
        came=came,
        refused=refused[:_MOST_SHOWN],
        duplicates=states.count("duplicate"),
    )


def _page(request: Request, who: Principal, tenant: str, **values: Any) -> HTMLResponse:
    desk, none = context(request), {"problem": None, "came": None, "refused": [], "duplicates": 0}
    return page(
        request,
        "upload.html",
        who,
        key=secrets.token_hex(16),
        whose=tenant,
        tenants=tenant_choices(desk, who),
        columns=COLUMNS,
        most_rows=MOST_ROWS,
        most_bytes=desk.settings.max_upload_bytes,
        **none | values,
    )
