"""What the desk is asked about requests, and what it answers; no field holds an id of a person."""

import re
from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, StrictStr

from letheon.ledger.requests.deadlines import Regime
from letheon.ledger.requests.intake import LONGEST_ID, MOST_IDS
from letheon.service._schemas import In, Out

__all__ = [
    "EVERY_MODEL",
    "MOST_ITEMS",
    "ActionName",
    "ActionOnMany",
    "Bucket",
    "BulkIn",
    "BulkItem",
    "BulkOut",
    "Code",
    "Day",
    "Details",
    "DueDay",
    "Filed",
    "FiledEverywhere",
    "Ground",
    "Grounds",
    "GroundsOfRegime",
    "IdempotencyKey",
    "ItemProblem",
    "ModelName",
    "Outcome",
    "PersonId",
    "RequestFiled",
    "RequestId",
    "RequestIn",
    "RequestOut",
    "RequestQuery",
    "State",
    "Summary",
    "TenantName",
    "TimelineEntry",
]

MOST_ITEMS = 1000
EVERY_MODEL = "*"

_NAME = "[a-z0-9][a-z0-9._:-]{0,62}"
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PRINTABLE = "^[!-~]([ -~]{0,253}[!-~])?$"

State = Literal[
    "received",
    "verified",
    "queued",
    "applying",
    "retry_wait",
    "applied",
    "certified",
    "purging",
    "purged",
    "duplicate",
    "on_hold",
    "stuck",
    "rejected",
    "cancelled",
    "closed",
]
ActionName = Literal[
    "verify",
    "await-identity",
    "approve",
    "hold",
    "release",
    "extend",
    "retry",
    "tell",
    "answer",
    "reject",
    "cancel",
]


def _written(value: object) -> object:
    """Refuse a day that is no text: a number would be taken for seconds since 1970."""
    if isinstance(value, date) or (isinstance(value, str) and _DAY.fullmatch(value)):
        return value
    raise ValueError("a day is written YYYY-MM-DD")


Day = Annotated[date, BeforeValidator(_written)]
RequestId = Annotated[StrictStr, Field(pattern="^[0-9a-f]{32}$")]
ModelName = Annotated[StrictStr, Field(pattern=f"^{_NAME}$")]
TenantName = Annotated[StrictStr, Field(pattern=f"^{_NAME}$")]
IdempotencyKey = Annotated[StrictStr, Field(pattern=_PRINTABLE, max_length=255)]
Code = Annotated[StrictStr, Field(pattern="^[a-z0-9][a-z0-9.-]{0,62}$")]
PersonId = (
    Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
    | Annotated[StrictStr, Field(max_length=LONGEST_ID)]
)


class BulkItem(In):
    """One request of many."""

    model: ModelName
    ids: list[PersonId] = Field(
        min_length=1, max_length=MOST_IDS, description="All numbers, or all texts."
    )
    regime: Regime = "gdpr"
    ground: Code | None = Field(
        default=None, description="See /api/v1/grounds; default: consent withdrawn, or CCPA."
    )
    verified: StrictBool = Field(default=False, description="You vouch for the identity.")
    key: IdempotencyKey | None = Field(default=None, description="Idempotency key of this one.")


class RequestIn(In):
    """A wish that people be erased from a model, or from every model that knows them."""

    model: Annotated[StrictStr, Field(pattern=rf"^(\*|{_NAME})$")] = Field(
        description="Name of the model; * for every model of the tenant that knows them."
    )
    ids: list[PersonId] = Field(
        min_length=1, max_length=MOST_IDS, description="All numbers, or all texts."
    )
    tenant: TenantName | None = None
    regime: Regime = "gdpr"
    ground: Code | None = Field(
        default=None, description="See /api/v1/grounds; default: consent withdrawn, or CCPA."
    )
    verified: StrictBool = Field(
        default=False, description="You vouch for the identity; needs requests:vouch."
    )
    receipt: StrictBool = Field(
        default=False, description="Make a receipt code, shown once; for one person."
    )
    receipt_key: Annotated[StrictStr, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        default=None, description="X25519 public key of the person, instead of a code."
    )


class BulkIn(In):
    """Many requests; each stands for itself."""

    items: list[BulkItem] = Field(min_length=1, max_length=MOST_ITEMS)
    tenant: TenantName | None = None


class Details(In):
    """What some actions need: a ground, a day, a number of recipients."""

    ground: Code | None = Field(default=None, description="For hold and reject.")
    until: Day | None = Field(default=None, description="For hold: the day on which it ends.")
    recipients: StrictInt | None = Field(
        default=None, ge=0, le=1_000_000, description="For tell and answer: how many were told."
    )


class ActionOnMany(Details):
    """One action on many requests; each stands for itself."""

    action: ActionName
    requests: list[RequestId] = Field(min_length=1, max_length=MOST_ITEMS)


class RequestQuery(In):
    """Which requests a list shows."""

    model: ModelName | None = None
    tenant: TenantName | None = None
    state: list[State] = Field(default_factory=list, max_length=15)
    regime: Regime | None = None
    overdue: bool = False
    due_before: Day | None = None
    search: Annotated[StrictStr, Field(max_length=64)] | None = Field(
        default=None, description="Beginning of a request's or batch's id, or a certificate: #12."
    )
    order: Literal["due", "newest"] = "due"


class RequestOut(Out):
    """A request as it is now.

    A token that only files sees the same for people who are held, erased or unknown: the state is
    `received` until the last day has passed and `closed` after an answer, and what would tell more
    is null.
    """

    id: str
    model: str
    tenant: str
    state: State
    regime: str
    ground: str
    received_at: datetime
    due_on: date = Field(description="Last day; the extended one after an extension.")
    days_left: int | None = Field(description="Negative when overdue; null when nothing is due.")
    is_overdue: bool
    n_ids: int | None = Field(description="How many people it names; null for who only files.")
    n_rows: int | None = Field(description="How many rows were theirs; null for who only files.")
    batch: str | None
    certificate: int | None = Field(description="Number of the certificate.")
    version: str | None = Field(description="The model version that forgot them: name@number.")
    tries: int
    reason: str | None = Field(description="Why it is in a side state, as a code.")
    duplicate_of: str | None
    filed_by: str | None = Field(description="Id of the token that filed it.")
    needs_approval: bool
    actions: list[ActionName] = Field(description="What you may do about it now.")


class RequestFiled(RequestOut):
    """A request that was filed just now, or is repeated."""

    receipt_code: str | None = Field(
        default=None, description="For the person. It is shown this once and kept nowhere."
    )


class FiledEverywhere(Out):
    """One request for each model that knows these people."""

    requests: list[RequestFiled]


class Filed(Out):
    """What came of filing: one request, or one for each model; and whether any is new."""

    requests: list[RequestFiled]
    is_new: bool


class ItemProblem(Out):
    """What is wrong with one of many."""

    type: str
    title: str
    detail: str


class Outcome(Out):
    """What became of one of many: a request, or a problem."""

    index: int = Field(ge=0, description="Place in what was sent, from 0.")
    status: int = Field(description="As if it had been sent alone.")
    request: RequestOut | None = None
    problem: ItemProblem | None = None


class BulkOut(Out):
    """What became of each, in the order in which they were sent."""

    items: list[Outcome]
    n_done: int
    n_refused: int


class TimelineEntry(Out):
    """One thing that happened to a request."""

    at: datetime
    code: str
    words: str
    by: str | None = Field(description="Id of the token that did it; null for the ledger itself.")
    log_index: int | None = Field(
        description="Place in the log; null until the next checkpoint, and for a token that is "
        "bound to a tenant or only files."
    )


class Bucket(Out):
    """How many open requests have so many days left."""

    label: str
    count: int


class DueDay(Out):
    """How many open requests have this last day."""

    day: date
    count: int


class Summary(Out):
    """How the requests stand."""

    counts: dict[str, int] = Field(description="By state.")
    n_open: int
    n_overdue: int
    n_due_soon: int = Field(description="Due within 7 days, and not overdue.")
    by_days_left: list[Bucket]
    due_days: list[DueDay] = Field(description="Open requests by their last day.")
    earliest_due_on: date | None
    oldest_received_at: datetime | None = Field(description="Of the one that is due first.")


class Ground(Out):
    """A code of law."""

    code: str
    words: str


class GroundsOfRegime(Out):
    """Why people may ask to be erased."""

    gdpr: list[Ground]
    ccpa: list[Ground]


class Grounds(Out):
    """All codes that a ground may be: there is no free text."""

    request: GroundsOfRegime
    reject: list[Ground]
    hold: list[Ground]
