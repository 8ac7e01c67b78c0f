"""Check my receipt: a page for people without an account.

It says whether a certificate covers the receipt, and nothing about models, tenants or others.
"""

import json
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from letheon.service.auth import context, public
from letheon.service.desk import receipts
from letheon.service.errors import Problem
from letheon.service.pages._shared import SentForm, page

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_NO_RECEIPT = "This is no receipt. Paste the code (lethe-…), or the whole of an opened receipt."


@router.get("/receipt", dependencies=[Depends(public())])
def show_receipt_form(request: Request) -> Response:
    """Show the form."""
    return _page(request)


@router.post("/receipt", dependencies=[Depends(public())])
def check_receipt(request: Request, form: SentForm) -> Response:
    """Say whether a certificate covers the receipt; it is posted, so that no log has it."""
    desk = context(request)
    receipts.limit(desk, request)
    text = form.get("code")
    if not isinstance(text, str) or not text.strip():
        return _page(request, error="Paste the code that you were given.", status=422)
    if _is_other_json(text):
        return _page(request, error=_NO_RECEIPT, status=422)
    try:
        verdict = receipts.check(desk, text)
    except Problem as problem:
        if problem.status_code != 422:
            raise
        return _page(request, error=problem.detail or problem.title, status=422)
    return _page(request, verdict=verdict)


def _is_other_json(text: str) -> bool:
    """Whether a text is JSON of something else than a receipt; what is no JSON is for the check."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return not (isinstance(found, dict) and "certificate" in found)


def _page(request: Request, *, verdict: Any = None, error: str = "", status: int = 200) -> Response:
    return page(request, "receipt.html", None, status=status, verdict=verdict, error=error)
