"""Requests from a CSV file: read in memory, checked whole, then filed line by line.

A file with a header, law or model that cannot be is refused as a whole, before anything is filed.
Of one that passes, a line that the ledger refuses is left out: an unknown person, a ground of the
other law. What is said about it names lines and columns, never what stands there.
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Request
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from letheon.exceptions import UnknownModelError
from letheon.ledger.requests.deadlines import REGIMES
from letheon.ledger.requests.intake import LONGEST_ID
from letheon.service.auth import Principal, allows
from letheon.service.errors import Problem
from letheon.service.forms import malformed, read_parts
from letheon.service.request_views import NAME, BulkOut
from letheon.service.routes.filing import (
    BulkItem,
    Key,
    file_many,
    parse_number,
)

router = APIRouter(tags=["requests"])

COLUMNS = ("model", "id", "key", "regime", "ground")
REQUIRED = COLUMNS[:2]
MOST_ROWS = 10_000
_MOST_SHOWN = 20
_PARTS: dict[str, Any] = {
    "file": {
        "type": "string",
        "contentMediaType": "text/csv",
        "format": "binary",
        "description": "UTF-8; columns model, id, and perhaps key, regime, ground; at most 10,000 "
        "lines.",
    },
    "tenant": {"type": "string", "pattern": f"^{NAME}$"},
    "verified": {"type": "string", "enum": ["true", "false"]},
}
_SCHEMA = {
    "type": "object",
    "required": ["file"],
    "additionalProperties": False,
    "properties": _PARTS,
}
_BODY = {"required": True, "content": {"multipart/form-data": {"schema": _SCHEMA}}}


class Upload(NamedTuple):
    """What was sent: the file, and what goes for all of its lines."""

    data: bytes
    tenant: str | None
    verified: bool


async def _read_upload(request: Request) -> Upload:
    form = await read_parts(request)
    try:
        names = [name for name, _ in form.multi_items()]
        if not set(names) <= _PARTS.keys() or len(names) != len(set(names)):
            raise malformed("parts other than file, tenant and verified, or one of them twice")
        file, tenant = form.get("file"), form.get("tenant")
        verified = form.get("verified", "false")
        if not isinstance(file, UploadFile):
            raise malformed("there is no file in the part `file`")
        if isinstance(tenant, UploadFile) or verified not in ("true", "false"):
            raise malformed("tenant is a name, and verified is true or false")
        return Upload(await file.read(), tenant or None, verified == "true")
    finally:
        await form.close()


@router.post(
    "/api/v1/requests/upload",
    summary="File requests from a CSV file",
    openapi_extra={"requestBody": _BODY},
)
def upload_requests(
    who: Annotated[Principal, Depends(allows("requests:file", is_long=True))],
    upload: Annotated[Upload, Depends(_read_upload)],
    key: Key = None,
) -> BulkOut:
    """File each line as one request; a file that is wrong somewhere is refused as a whole."""
    return file_upload(who, upload, key=key)


def file_upload(who: Principal, upload: Upload, *, key: str | None = None) -> BulkOut:
    """File each line of a CSV file as one request about one person.

    Columns are ``model`` and ``id``, and perhaps ``key``, ``regime`` and ``ground``. A repeat of
    the same file with the same `key` gives the same requests.

    Raises
    ------
    Problem
        The file is wrong somewhere; nothing was filed.
    """
    tenant = who.tenant_for(upload.tenant)

    @cache
    def holds_numbers(model: str) -> bool | None:
        try:
            return who.ledger.models.has_integer_ids(model, tenant=tenant)
        except UnknownModelError:
            return None

    errors: list[dict[str, str]] = []
    items: list[BulkItem] = []
    for line, row in read_rows(upload.data):
        item = _parse_row(row, holds_numbers, verified=upload.verified)
        if isinstance(item, BulkItem):
            items.append(item)
        else:
            errors.append({"at": f"line {line}", "why": item})
        if len(errors) == _MOST_SHOWN:
            break
    if errors:
        raise Problem(
            422,
            "csv",
            "some lines cannot be used; nothing was filed",
            f"Look at {', '.join(one['at'] for one in errors)}.",
            fields=errors,
        )
    if not items:
        raise _unusable("there is no line below the header", 1)
    return file_many(who, items, tenant=tenant, key=key, most=MOST_ROWS)


def _parse_row(
    row: dict[str, str], holds_numbers: Callable[[str], bool | None], *, verified: bool
) -> BulkItem | str:
    """Return the request of a line, or what is wrong with it."""
    values = {name: value for name, value in row.items() if value and name != "id"}
    try:
        item = BulkItem.model_validate(values | {"ids": [0], "verified": verified})
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        wrong = f"none of {', '.join(REGIMES)}" if name == "regime" else "not usable"
        return f"{name} is {wrong}"
    is_number = holds_numbers(item.model)
    if is_number is None:
        return "there is no such model"
    person = parse_number(row["id"]) if is_number else row["id"]
    if person is None or person == "" or len(row["id"]) > LONGEST_ID:
        return "id is no number, and the model holds numbers" if is_number else "id is not usable"
    return item.model_copy(update={"ids": [person]})


def read_rows(data: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each line below the header, with its number; what cannot be read is refused."""
    reader = csv.reader(io.StringIO(_decode(data), newline=""), strict=True)
    count = 0
    try:
        header = _parse_header(next(reader, []))
        for cells in reader:
            if not cells:
                continue
            count += 1
            if count > MOST_ROWS:
                raise _unusable(f"more than {MOST_ROWS} lines; split the file", reader.line_num)
            if len(cells) != len(header):
                raise _unusable(f"{len(cells)} cells, and not {len(header)}", reader.line_num)
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise _unusable("the quotes are wrong, or a cell is too long", reader.line_num) from error


def _decode(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _unusable("this is no UTF-8; save the file as UTF-8", line) from None
    place = text.find("\0")
    if place >= 0:
        raise _unusable("a NUL character", text.count("\n", 0, place) + 1)
    return text


def _parse_header(cells: Sequence[str]) -> list[str]:
    """Return the names of the columns.

    What else a header has is not repeated: without a header a person stands there.
    """
    names = [cell.strip().lower() for cell in cells]
    if len(names) == len(set(names)) and set(REQUIRED) <= set(names) <= set(COLUMNS):
        return names
    missing, fault = [name for name in REQUIRED if name not in names], ""
    if any(";" in name for name in names):
        fault = "there are semicolons, so save the file with commas; "
    elif missing:
        fault = f"there is no column {' and none '.join(missing)}; "
    raise _unusable(
        f"{fault}the header must name {' and '.join(REQUIRED)}, perhaps "
        f"{', '.join(COLUMNS[2:])}, each once, with commas between",
        1,
    )


def _unusable(why: str, line: int) -> Problem:
    return Problem(
        422,
        "csv",
        "the file cannot be used; nothing was filed",
        f"Line {line}: {why}.",
        fields=[{"at": f"line {line}", "why": why}],
    )
