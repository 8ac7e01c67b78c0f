"""Check my receipt: a page for people without an account.

It says whether a certificate covers the receipt, and nothing about models, tenants or others.
"""

import json
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from letheon.service._auth import public
from letheon.service._forms import text_of
from letheon.service._problems import Problem
from letheon.service.pages._shared import SentForm, page
from letheon.service.routes.receipts import verify_receipt

router = APIRouter(include_in_schema=False)

_NO_RECEIPT = "This is no receipt. Paste the code (lethe-…), or the whole of an opened receipt."


@router.get("/receipt", dependencies=[Depends(public())])
def show_receipt_form(request: Request) -> Response:
    """Show the form."""
    return _page(request)


@router.post("/receipt", dependencies=[Depends(public())])
def check_receipt(request: Request, form: SentForm) -> Response:
    """Say whether a certificate covers the receipt; it is posted, so that no log has it."""
    text = text_of(form, "code")
    if not text:
        return _page(request, error="Paste the code that you were given.", status=422)
    if _is_other_json(text):
        return _page(request, error=_NO_RECEIPT, status=422)
    try:
        return _page(request, verdict=verify_receipt(request, text))
    except Problem as problem:
        if problem.status_code != 422:
            raise
        return _page(request, error=problem.detail or problem.title, status=422)


def _is_other_json(text: str) -> bool:
    """Whether a text is JSON of something else than a receipt; what is no JSON is for the check."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return not (isinstance(content, dict) and "certificate" in content)


def _page(request: Request, *, verdict: Any = None, error: str = "", status: int = 200) -> Response:
    return page(request, "receipt.html", None, status=status, verdict=verdict, error=error)
