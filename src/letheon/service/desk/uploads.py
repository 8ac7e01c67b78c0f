"""Requests from a CSV file: read in memory, checked whole, then filed line by line.

A file with a header, law or model that cannot be is refused as a whole, before anything is filed.
Of one that passes, a line that the ledger refuses is left out: an unknown person, a ground of the
other law. What is said about it names lines and columns, never what stands there.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fastapi import Request
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from letheon.exceptions import UnknownModelError
from letheon.ledger.requests.deadlines import REGIMES
from letheon.ledger.requests.intake import LONGEST_ID
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._problems import Problem
from letheon.service.desk.filing import as_number, file_many
from letheon.service.desk.request_forms import (
    BulkItem,
    BulkOut,
    Code,
    IdempotencyKey,
    ModelName,
)

__all__ = [
    "COLUMNS",
    "MOST_ROWS",
    "Upload",
    "file_upload",
    "line_numbers",
    "read_form",
    "upload_of",
]

COLUMNS = ("model", "id", "key", "regime", "ground")
REQUIRED = ("model", "id")
MOST_ROWS = 10_000
_MOST_SHOWN = 20
_MOST_FIELDS = 8
_LONGEST_FIELD = 1024

_CHECKS: dict[str, TypeAdapter[Any]] = {
    "model": TypeAdapter(ModelName),
    "key": TypeAdapter(IdempotencyKey),
    "ground": TypeAdapter(Code),
}


class Upload(NamedTuple):
    """What was sent: the file, and what goes for all of its lines."""

    data: bytes
    tenant: str | None
    verified: bool


class _InMemory(MultiPartParser):
    """Keeps files in memory: ids of people must not lie in a temporary file."""

    spool_max_size = 1 << 40


async def read_form(request: Request, *, most_fields: int = _MOST_FIELDS) -> FormData:
    """Return the parts of a multipart body, kept in memory.

    The size of the body is limited before it comes here. A handler asks for the form after the
    principal, so that a stranger's body is not even read.

    Raises
    ------
    Problem
        It is no multipart body, has too many parts, or comes too slowly.
    """
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise _malformed("the body is no multipart/form-data")
    parser = _InMemory(
        request.headers,
        request.stream(),
        max_files=most_fields,
        max_fields=most_fields,
        max_part_size=_LONGEST_FIELD,
    )
    try:
        return await parser.parse()
    except (MultiPartException, UnicodeError) as error:
        raise _malformed("the parts of the body cannot be read") from error


async def upload_of(form: FormData) -> Upload:
    """Return the parts that an upload has.

    Raises
    ------
    Problem
        A part is missing, unknown, or sent twice.
    """
    known = {"file", "tenant", "verified"}
    names = [name for name, _ in form.multi_items()]
    if not set(names) <= known or len(names) != len(set(names)):
        raise _malformed("parts other than file, tenant and verified, or one of them twice")
    file, tenant = form.get("file"), form.get("tenant")
    verified = form.get("verified", "false")
    if not isinstance(file, UploadFile):
        raise _malformed("there is no file in the part `file`")
    if isinstance(tenant, UploadFile) or verified not in ("true", "false"):
        raise _malformed("tenant is a name, and verified is true or false")
    return Upload(await file.read(), tenant or None, verified == "true")


def file_upload(
    context: Context, who: Principal, upload: Upload, *, key: str | None = None
) -> BulkOut:
    """File each line of a CSV file as one request about one person.

    Columns are ``model`` and ``id``, and perhaps ``key``, ``regime`` and ``ground``. A repeat of
    the same file with the same `key` gives the same requests.

    Raises
    ------
    Problem
        The file is wrong somewhere; nothing was filed.
    """
    whose = who.tenant_for(upload.tenant)
    kinds = _Kinds(context, whose)
    mistakes: list[dict[str, str]] = []
    items: list[BulkItem] = []
    for line, row in _rows(upload.data):
        found = _item(row, kinds, verified=upload.verified)
        if isinstance(found, str):
            mistakes.append({"at": f"line {line}", "why": found})
        else:
            items.append(found)
        if len(mistakes) == _MOST_SHOWN:
            break
    if mistakes:
        raise Problem(
            422,
            "csv",
            "some lines cannot be used; nothing was filed",
            f"Look at {', '.join(one['at'] for one in mistakes)}.",
            fields=mistakes,
        )
    if not items:
        raise _wrong("there is no line below the header", 1)
    return file_many(context, who, items, tenant=whose, key=key, most=MOST_ROWS)


def line_numbers(data: bytes) -> list[int]:
    """Return the number of the line of each request in a file that was filed."""
    return [line for line, _ in _rows(data)]


class _Kinds:
    """Whether the ids of a model are numbers; asked once for each model."""

    def __init__(self, context: Context, tenant: str) -> None:
        self._context, self._tenant = context, tenant
        self._known: dict[str, bool | None] = {}

    def of(self, model: str) -> bool | None:
        """Return whether a model holds numbers; None where there is no such model."""
        if model not in self._known:
            try:
                found = self._context.ledger.holds_numbers(model, tenant=self._tenant)
            except UnknownModelError:
                self._known[model] = None
            else:
                self._known[model] = found
        return self._known[model]


def _rows(data: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Return each line below the header, with its number; what cannot be read is refused."""
    text = _decoded(data)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    count = 0
    try:
        header = _header(next(reader, []))
        for cells in reader:
            if not cells:
                continue
            count += 1
            if count > MOST_ROWS:
                raise _wrong(f"more than {MOST_ROWS} lines; split the file", reader.line_num)
            if len(cells) != len(header):
                raise _wrong(f"{len(cells)} cells, and not {len(header)}", reader.line_num)
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise _wrong("the quotes are wrong, or a cell is too long", reader.line_num) from error


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _wrong("this is no UTF-8; save the file as UTF-8", line) from None
    place = text.find("\0")
    if place >= 0:
        raise _wrong("a NUL character", text.count("\n", 0, place) + 1)
    return text


def _header(cells: Sequence[str]) -> list[str]:
    names = [cell.strip().lower() for cell in cells]
    if len(names) != len(set(names)) or not set(REQUIRED) <= set(names) <= set(COLUMNS):
        raise _wrong(
            f"{_fault(names)}the header must name {' and '.join(REQUIRED)}, perhaps "
            f"{', '.join(COLUMNS[2:])}, each once, with commas between",
            1,
        )
    return names


def _fault(names: Sequence[str]) -> str:
    """Say what a header lacks; not what else it has, as without a header a person stands there."""
    if any(";" in name for name in names):
        return "there are semicolons, so save the file with commas; "
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        return f"there is no column {' and none '.join(missing)}; "
    return ""


def _item(row: dict[str, str], kinds: _Kinds, *, verified: bool) -> BulkItem | str:
    """Return one request, or what is wrong with its line."""
    for name, check in _CHECKS.items():
        try:
            if row.get(name):
                check.validate_python(row[name])
        except ValidationError:
            return f"{name} is not usable"
    numbers = kinds.of(row["model"])
    if numbers is None:
        return "there is no such model"
    person = as_number(row["id"]) if numbers else row["id"]
    if person is None or person == "" or len(row["id"]) > LONGEST_ID:
        return "id is no number, and the model holds numbers" if numbers else "id is not usable"
    regime = row.get("regime") or "gdpr"
    if regime not in REGIMES:
        return f"regime is none of {', '.join(REGIMES)}"
    return BulkItem(
        model=row["model"],
        ids=[person],
        regime=regime,
        ground=row.get("ground") or None,
        verified=verified,
        key=row.get("key") or None,
    )


def _wrong(why: str, line: int) -> Problem:
    at = {"at": f"line {line}", "why": why}
    return Problem(
        422,
        "csv",
        "the file cannot be used; nothing was filed",
        f"Line {line}: {why}.",
        fields=[at],
    )


def _malformed(why: str) -> Problem:
    return Problem(
        422,
        "form",
        "the form cannot be used",
        f"{why[0].upper()}{why[1:]}; send multipart/form-data with the CSV in the part `file`.",
    )
