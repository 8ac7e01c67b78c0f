"""API routes for filing requests: one request, one for each model with the ids, or many.

Each request is stored durably in its own transaction before the response is sent. Repeating a
call with the same idempotency key returns the same requests and creates no new ones.
"""

import csv
import hashlib
import io
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import Field, StrictBool, StrictInt, StrictStr, ValidationError
from starlette.datastructures import UploadFile

from letheon.exceptions import IdempotencyError, LetheonError, UnknownIdError, UnknownModelError
from letheon.ledger import Request as LedgerRequest
from letheon.ledger.requests.deadlines import REGIMES, Regime
from letheon.ledger.requests.intake import LONGEST_ID, MOST_IDS
from letheon.ledger.schemas import NAME
from letheon.service import request_views as views
from letheon.service.auth import Principal, allows
from letheon.service.errors import ApiProblem
from letheon.service.forms import form_problem, multipart_body, read_parts
from letheon.service.schemas import In

router = APIRouter(tags=["requests"])

EVERY_MODEL = "*"
DEFAULT_GROUNDS = {"gdpr": "gdpr.art17.1.b", "ccpa": "ccpa.1798.105"}
_OTHER_LIST = "this idempotency key was used for another list; use another key, or the same list"
# Threads that wait for the disk together share its commits; more threads are not faster.
_pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="letheon-filing")

IdempotencyKey = Annotated[StrictStr, Field(pattern="^[!-~]([ -~]{0,253}[!-~])?$", max_length=255)]
Key = Annotated[
    IdempotencyKey | None,
    Header(
        alias="Idempotency-Key",
        description="Repeating a call with the same key and content returns the same requests.",
    ),
]
PersonId = (
    Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
    | Annotated[StrictStr, Field(max_length=LONGEST_ID)]
)


class _Erasure(In):
    """An erasure request.

    Attributes
    ----------
    ids : list of PersonId
        Ids of the people: all integers, or all strings.
    ground : Code or None
        Code of the legal ground, see /api/v1/grounds. The default is that consent was withdrawn
        (GDPR), or the right to delete (CCPA).
    verified : bool
        Whether you have verified the identity of the requester; needs the scope requests:vouch.
    """

    model: views.ModelName
    ids: list[PersonId] = Field(min_length=1, max_length=MOST_IDS)
    regime: Regime = "gdpr"
    ground: views.Code | None = None
    verified: StrictBool = False


class BulkItem(_Erasure):
    """One request of a bulk call.

    Attributes
    ----------
    key : IdempotencyKey or None
        Idempotency key of this request.
    """

    key: IdempotencyKey | None = None


class RequestIn(_Erasure):
    """An erasure request for one model, or for every model that contains the ids.

    Attributes
    ----------
    model : str
        Name of the model; * for every model of the tenant that contains one of the ids.
    receipt : bool
        Whether to create a receipt code, shown only once; the request must be about one person.
    receipt_key : str or None
        X25519 public key of the person, in hexadecimal digits. It replaces the receipt code.
    """

    model: Annotated[StrictStr, Field(pattern=rf"^(\*|{NAME.pattern})$")]
    tenant: views.TenantName | None = None
    receipt: StrictBool = False
    receipt_key: Annotated[StrictStr, Field(pattern="^[0-9a-f]{64}$")] | None = None


class BulkIn(In):
    """Several independent requests."""

    items: list[BulkItem] = Field(min_length=1, max_length=views.MOST_ITEMS)
    tenant: views.TenantName | None = None


@dataclass(frozen=True, kw_only=True)
class RequestFiled(views.RequestOut):
    """A request that this call filed, or an earlier call with the same idempotency key.

    Attributes
    ----------
    receipt_code : str or None
        Receipt code for the person, shown only once and not stored; null if there is none.
    """

    receipt_code: str | None = None


@dataclass(frozen=True)
class FiledEverywhere:
    """The filed requests, one for each model that contains one of the ids."""

    requests: list[RequestFiled]


class RequestInput(NamedTuple):
    """The arguments with which a request is submitted to the ledger."""

    ids: Sequence[int | str]
    model: str
    tenant: str
    regime: str
    ground: str
    verified: bool
    key: str | None
    part_of: str | None = None
    needs_approval: bool = False
    ids_derived: bool = False

    @classmethod
    def from_body(cls, body: RequestIn | BulkItem, tenant: str, key: str | None) -> "RequestInput":
        """Convert the body of a call; the default ground is that of its law."""
        ground = body.ground or DEFAULT_GROUNDS[body.regime]
        return cls(body.ids, body.model, tenant, body.regime, ground, body.verified, key)


@router.post(
    "/api/v1/requests",
    summary="File a request",
    status_code=201,
    responses={
        200: {
            "description": "The request was filed before with the same key.",
            "model": RequestFiled | FiledEverywhere,
        }
    },
)
def file_request(
    response: Response,
    caller: Annotated[Principal, Depends(allows("requests:file"))],
    body: RequestIn,
    key: Key = None,
) -> RequestFiled | FiledEverywhere:
    """File an erasure request; it is stored durably before the response is sent.

    If the model is `*`, the response lists one request for each model of the tenant that contains
    one of the ids.
    """
    filed = file_one(caller, body, key=key)
    if not any(request.is_new for request in filed):
        response.status_code = 200
    return FiledEverywhere(filed) if body.model == EVERY_MODEL else filed[0]


@router.post("/api/v1/requests/bulk", summary="File many requests")
def file_requests(
    caller: Annotated[Principal, Depends(allows("requests:file", is_long=True))],
    body: BulkIn,
    key: Key = None,
) -> views.BulkOut:
    """File several independent requests; the response contains the results in the same order.

    Repeating the call with the same Idempotency-Key returns the same requests.
    """
    return file_many(caller, body.items, tenant=body.tenant, key=key)


def file_one(caller: Principal, body: RequestIn, *, key: str | None = None) -> list[RequestFiled]:
    """File a request for one model, and return it in a list.

    If the model is ``*``, file one request for each model that contains one of the ids.
    """
    _require_vouching(caller, body.verified)
    wants_receipt = body.receipt or body.receipt_key is not None
    if wants_receipt and not caller.sees_all_requests:
        # A receipt would reveal that the ids were in the model.
        title = "this token cannot request a receipt"
        words = (
            "File the request without a receipt; an operator can create a receipt code and give it "
            "to the person."
        )
        raise ApiProblem(403, "not-allowed", title, words)
    if body.receipt and body.receipt_key is not None:
        words = "Use either receipt or receipt_key, not both."
        raise ApiProblem(422, "two-receipts", "receipt and receipt_key are both set", words)
    extra = {} if body.receipt_key is None else {"receipt_key": body.receipt_key}
    entry = RequestInput.from_body(body, caller.tenant_for(body.tenant), key)
    with views.raise_problems():
        inputs = _split_by_model(caller, entry) if body.model == EVERY_MODEL else [entry]
        if not body.receipt:
            return _show_filed(caller, [submit_request(caller, entry, **extra) for entry in inputs])
        with caller.ledger.acting(caller.id):
            submitted = [
                caller.ledger.requests.submit_with_code(**entry._asdict()) for entry in inputs
            ]
        return _show_filed(
            caller, [request for request, _ in submitted], [code for _, code in submitted]
        )


def file_everywhere(
    caller: Principal, inputs: Sequence[RequestInput], *, stored: Sequence[LedgerRequest] = ()
) -> list[RequestFiled]:
    """File requests of one person to several models; return them after the `stored` requests."""
    with views.raise_problems():
        submitted = [submit_request(caller, item) for item in _with_approval(caller, inputs)]
        return _show_filed(caller, [*stored, *submitted])


def submit_request(caller: Principal, entry: RequestInput, **extra: Any) -> LedgerRequest:
    """Submit a request to the ledger with a token; return the new or the existing request."""
    requests = caller.ledger.requests
    with caller.ledger.acting(caller.id):
        if caller.sees_all_requests:
            return requests.submit(**entry._asdict(), **extra)
        # `verify` notices an unknown id; the filer does not see its result.
        unverified = entry._replace(verified=False, needs_approval=False)
        request = requests.submit(**unverified._asdict(), accept_unknown=True)
        if request.filed_by != caller.id:
            raise IdempotencyError(
                "this idempotency key was used by another token; use another key"
            )
        if entry.verified and request.state == "received":
            approval = {"needs_approval": entry.needs_approval}
            verified = requests.verify(request.id, tenant=entry.tenant, **approval)
            return replace(verified, is_new=request.is_new)
    return request


def _show_filed(
    caller: Principal, requests: Sequence[LedgerRequest], codes: Sequence[str | None] = ()
) -> list[RequestFiled]:
    shown = zip_longest(views.show_requests(caller, requests), codes)
    return [RequestFiled(**vars(entry) | {"receipt_code": code}) for entry, code in shown]


def _split_by_model(caller: Principal, entry: RequestInput) -> list[RequestInput]:
    """Return one request for each model that contains one of the ids.

    The first request has the idempotency key of the caller, so that the key cannot be used for
    another call. The other requests have keys derived from it. A repeated call therefore finds the
    requests that exist and creates the missing ones.
    """
    key = entry.key if entry.key is not None else secrets.token_hex(16)
    content = digest_texts(sorted({json.dumps(person_id) for person_id in entry.ids}))
    names = [model.name for model in caller.ledger.models.list(tenant=entry.tenant)]
    used = caller.ledger.requests.find_by_key([key], tenant=entry.tenant).get(key)
    if used is not None:  # the model of the request with this key comes first
        names.sort(key=lambda name: name != used.model)
    inputs: list[RequestInput] = []
    for model in names:
        ids = _ids_for(caller, entry, model)
        if ids:
            own = derive_key("every-model", key, model) if inputs else key
            inputs.append(entry._replace(ids=ids, model=model, key=own, part_of=content))
    if not inputs:
        raise UnknownIdError("no model of this tenant contains these ids")
    return _with_approval(caller, inputs)


def _ids_for(caller: Principal, entry: RequestInput, model: str) -> Sequence[int | str]:
    """Return the ids of a request that are in a model.

    A token must not learn from the response which ids a model contains unless it sees all requests.
    Without this right, the result is all ids, or no ids if their type differs from the model's.
    """
    if caller.sees_all_requests:
        return caller.ledger.requests.find_known_ids(entry.ids, model=model, tenant=entry.tenant)
    kind = int if caller.ledger.models.has_integer_ids(model, tenant=entry.tenant) else str
    return entry.ids if all(isinstance(person_id, kind) for person_id in entry.ids) else []


def derive_key(purpose: str, *parts: str) -> str:
    """Derive an idempotency key that no caller can send: it begins with a control character."""
    return f"\x1f{purpose}:{digest_texts([purpose, *parts])}"


def digest_texts(values: Iterable[str | tuple[str, str]]) -> str:
    """Return the SHA-256 of a JSON list of texts, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(list(values)).encode()).hexdigest()


def _with_approval(caller: Principal, inputs: Sequence[RequestInput]) -> list[RequestInput]:
    """Return the requests of a call, marked if they need approval.

    They all need approval if the rows of the verified requests together exceed the limit of the
    policy. An id that occurs in two requests for the same model counts once.
    """
    policy, people = caller.ledger.settings.policy, dict[tuple[str, str], list[int | str]]()
    if policy.approve_above is None:
        return list(inputs)
    for entry in inputs:
        if entry.verified:
            people.setdefault((entry.model, entry.tenant), []).extend(entry.ids)
    n_rows = sum(_count_rows(caller, ids, *whose) for whose, ids in people.items())
    return [entry._replace(needs_approval=policy.needs_approval(n_rows)) for entry in inputs]


def _count_rows(caller: Principal, ids: Sequence[int | str], model: str, tenant: str) -> int:
    """Return how many rows of a model have these ids; 0 for ids that the ledger rejects."""
    kinds = [[person_id for person_id in ids if isinstance(person_id, kind)] for kind in (str, int)]
    models = caller.ledger.models
    try:
        return sum(models.count_rows(some, model, tenant=tenant) for some in kinds if some)
    except (LetheonError, TypeError, ValueError, OverflowError):
        return 0  # the ledger rejects these ids, each with its own reason


def file_many(
    caller: Principal,
    items: Sequence[BulkItem],
    *,
    tenant: str | None = None,
    key: str | None = None,
    most: int = views.MOST_ITEMS,
) -> views.BulkOut:
    """File many requests, each in its own transaction; return the result of each.

    If `key` is given, an item without its own idempotency key gets a key that is derived from `key`
    and its position, and is recorded as a part of the list. Repeating the whole call therefore
    returns the same requests, even after a crash. A different list with the same `key` is rejected,
    and nothing is filed. `key` does not apply to items with their own key. `most` is the maximum
    length of a list. If the rows of all verified items together exceed `Policy.approve_above`, all
    of these requests need approval.

    Raises
    ------
    ApiProblem
        422: `key` was used for another list.
    """
    _require_vouching(caller, any(item.verified for item in items))
    whose = caller.tenant_for(tenant)
    inputs = [RequestInput.from_body(item, whose, item.key) for item in items]
    if key is not None:
        content = digest_texts(item.model_dump_json() for item in items)
        inputs = [
            entry._replace(key=_place_key(key, place), part_of=content)
            if entry.key is None
            else entry
            for place, entry in enumerate(inputs)
        ]
    inputs = _with_approval(caller, inputs)

    def submit_or_error(entry: RequestInput) -> LedgerRequest | Exception:
        try:
            return submit_request(caller, entry)
        except Exception as error:  # noqa: BLE001  (`bulk_out` raises internal errors)
            return error

    with views.raise_problems():
        ahead = {} if key is None else _take_key(caller, inputs, key, most)
    others = iter(
        _pool.map(submit_or_error, [entry for n, entry in enumerate(inputs) if n not in ahead])
    )
    results = [ahead[n] if n in ahead else next(others) for n in range(len(inputs))]
    return views.bulk_out(caller, results)


def _place_key(key: str, place: int) -> str:
    return derive_key("bulk", key, str(place))


def _take_key(
    caller: Principal, inputs: Sequence[RequestInput], key: str, most: int
) -> dict[int, LedgerRequest]:
    """File one request of a list before the others, to bind the key to this list.

    Return a dictionary from the position of this request in the list to the request. It is empty if
    all items have their own key or are rejected.

    Raises
    ------
    IdempotencyError
        The key was used for another list.
    """
    places = {_place_key(key, place): place for place in range(max(len(inputs), most))}
    for name in caller.ledger.requests.find_by_key(places, tenant=inputs[0].tenant):
        place = places[name]
        if place >= len(inputs) or inputs[place].key != name:
            raise IdempotencyError(_OTHER_LIST)
        return {place: submit_request(caller, inputs[place])}
    for place, entry in enumerate(inputs):
        if entry.part_of is not None:
            try:
                return {place: submit_request(caller, entry)}
            except IdempotencyError:
                raise
            except (LetheonError, ValueError):
                continue  # it is rejected again with its reason later
    return {}


def _require_vouching(caller: Principal, verified: bool) -> None:
    if verified and not caller.may("requests:vouch"):
        title = "this token cannot confirm an identity"
        words = (
            "The call needs the scope requests:vouch. Leave out `verified` to let an operator "
            "verify the identity later."
        )
        raise ApiProblem(403, "not-allowed", title, words)


def parse_number(text: str) -> int | None:
    """Convert a text of plain digits to an integer; None if it is not a 64-bit integer."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


COLUMNS = ("model", "id", "key", "regime", "ground")
REQUIRED = COLUMNS[:2]
MOST_ROWS = 10_000
_MOST_SHOWN = 20
_PARTS: dict[str, Any] = {
    "file": {
        "type": "string",
        "contentMediaType": "text/csv",
        "format": "binary",
        "description": "CSV in UTF-8, at most 10,000 lines; columns: model, id, optionally key, "
        "regime, ground.",
    },
    "tenant": {"type": "string", "pattern": f"^{NAME.pattern}$"},
    "verified": {"type": "string", "enum": ["true", "false"]},
}


class Upload(NamedTuple):
    """An uploaded CSV file, with the tenant and verification that apply to all its lines."""

    data: bytes
    tenant: str | None
    verified: bool


async def _read_upload(request: Request) -> Upload:
    form = await read_parts(request)
    try:
        names = [name for name, _ in form.multi_items()]
        if not set(names) <= _PARTS.keys() or len(names) != len(set(names)):
            raise form_problem("expected only the parts file, tenant and verified, each once")
        file, tenant = form.get("file"), form.get("tenant")
        verified = form.get("verified", "false")
        if not isinstance(file, UploadFile):
            raise form_problem("the part `file` is not a file")
        if isinstance(tenant, UploadFile) or verified not in ("true", "false"):
            raise form_problem("`tenant` must be a name, and `verified` must be true or false")
        return Upload(await file.read(), tenant or None, verified == "true")
    finally:
        await form.close()


@router.post(
    "/api/v1/requests/upload",
    summary="File requests from a CSV file",
    openapi_extra=multipart_body(_PARTS, ["file"]),
)
def upload_requests(
    caller: Annotated[Principal, Depends(allows("requests:file", is_long=True))],
    upload: Annotated[Upload, Depends(_read_upload)],
    key: Key = None,
) -> views.BulkOut:
    """File one request for each line of a CSV file; if a line is not valid, file nothing."""
    # Repeating the upload with the same key returns the same requests.
    tenant = caller.tenant_for(upload.tenant)

    @cache
    def holds_numbers(model: str) -> bool | None:
        try:
            return caller.ledger.models.has_integer_ids(model, tenant=tenant)
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
        title = "some lines are not valid; nothing was filed"
        words = f"Check {', '.join(error['at'] for error in errors)}."
        raise ApiProblem(422, "csv", title, words, fields=errors)
    if not items:
        raise _csv_problem("there are no lines below the header", 1)
    return file_many(caller, items, tenant=tenant, key=key, most=MOST_ROWS)


def _parse_row(
    row: dict[str, str], holds_numbers: Callable[[str], bool | None], *, verified: bool
) -> BulkItem | str:
    """Convert a line to a request; return the reason as a string if the line is not valid."""
    values = {name: value for name, value in row.items() if value and name != "id"}
    try:
        item = BulkItem.model_validate(values | {"ids": [0], "verified": verified})
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        wrong = f"not one of {', '.join(REGIMES)}" if name == "regime" else "not valid"
        return f"{name} is {wrong}"
    is_number = holds_numbers(item.model)
    if is_number is None:
        return "there is no such model"
    person = parse_number(row["id"]) if is_number else row["id"]
    if person is None or person == "" or len(row["id"]) > LONGEST_ID:
        return "id is not an integer" if is_number else f"id must have 1 to {LONGEST_ID} characters"
    return item.model_copy(update={"ids": [person]})


def read_rows(data: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number and the cells of each line; raise a problem if the file is not valid."""
    reader = csv.reader(io.StringIO(_decode_csv(data), newline=""), strict=True)
    count = 0
    try:
        header = _parse_header(next(reader, []))
        for cells in reader:
            if not cells:
                continue
            count += 1
            if count > MOST_ROWS:
                raise _csv_problem(f"more than {MOST_ROWS} lines; split the file", reader.line_num)
            if len(cells) != len(header):
                raise _csv_problem(f"{len(cells)} cells, expected {len(header)}", reader.line_num)
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise _csv_problem(
            "the quotes do not match, or a cell is too long", reader.line_num
        ) from error


def _decode_csv(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _csv_problem("the file is not in UTF-8; save it as UTF-8", line) from None
    place = text.find("\0")
    if place >= 0:
        raise _csv_problem("the file contains a NUL character", text.count("\n", 0, place) + 1)
    return text


def _parse_header(cells: Sequence[str]) -> list[str]:
    """Return the names of the columns in the first line.

    An error does not quote the first line: if the header is missing, that line contains an id.
    """
    names = [cell.strip().lower() for cell in cells]
    if len(names) == len(set(names)) and set(REQUIRED) <= set(names) <= set(COLUMNS):
        return names
    missing, fault = [name for name in REQUIRED if name not in names], ""
    if any(";" in name for name in names):
        fault = "the separator is a semicolon; save the file with commas; "
    elif missing:
        fault = f"missing columns: {', '.join(missing)}; "
    raise _csv_problem(
        f"{fault}expected the columns {' and '.join(REQUIRED)}, and optionally "
        f"{', '.join(COLUMNS[2:])}, each once and separated by commas",
        1,
    )


def _csv_problem(why: str, line: int) -> ApiProblem:
    title, fault = "the file is not valid; nothing was filed", {"at": f"line {line}", "why": why}
    return ApiProblem(422, "csv", title, f"Line {line}: {why}.", fields=[fault])
