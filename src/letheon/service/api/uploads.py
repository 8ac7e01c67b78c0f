"""Requests from a CSV file."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from letheon.service.api.requests import Key
from letheon.service.auth import Principal, allows, context
from letheon.service.desk.request_forms import BulkOut
from letheon.service.desk.uploads import Upload, file_upload, read_form, upload_of

__all__ = ["router"]

router = APIRouter(tags=["requests"])

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "additionalProperties": False,
                    "properties": {
                        "file": {
                            "type": "string",
                            "contentMediaType": "text/csv",
                            "format": "binary",
                            "description": "UTF-8; columns model, id, and perhaps key, regime, "
                            "ground; at most 10,000 lines.",
                        },
                        "tenant": {
                            "type": "string",
                            "pattern": "^[a-z0-9][a-z0-9._:-]{0,62}$",
                        },
                        "verified": {"type": "string", "enum": ["true", "false"]},
                    },
                }
            }
        },
    }
}


async def _sent(request: Request) -> Upload:
    form = await read_form(request)
    try:
        return await upload_of(form)
    finally:
        await form.close()


@router.post(
    "/api/v1/requests/upload", summary="File requests from a CSV file", openapi_extra=_BODY
)
def upload_requests(
    request: Request,
    who: Annotated[Principal, Depends(allows("requests:file", is_long=True))],
    upload: Annotated[Upload, Depends(_sent)],
    key: Key = None,
) -> BulkOut:
    """File each line as one request; a file that is wrong somewhere is refused as a whole."""
    return file_upload(context(request), who, upload, key=key)
