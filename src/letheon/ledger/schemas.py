"""The records of a ledger: one type for each thing, and the names that may stand in them.

A name is chosen by an operator: of a ledger, a model, a tenant, a data set, a store. It has to fit
everywhere, so there is one pattern. It leaves out ``/`` (a certificate joins tenant and model with
it), ``@`` (it joins model and number, and marks an address of a person) and ``+`` (it would end
the name in the signature line of a checkpoint).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar, overload

from letheon.ledger.requests.states import FINAL
from letheon.verifier import note_digest

if TYPE_CHECKING:
    from letheon.ledger.requests.deadlines import Calendar


NAME = re.compile(r"[a-z0-9][a-z0-9._:-]{0,62}")
"""What somebody may choose."""


def require_name(what: str, text: Any) -> str:
    """Return a name that fits everywhere, or raise before anything is made with it."""
    if not isinstance(text, str) or not NAME.fullmatch(text):
        raise ValueError(
            f"{what}={text!r} cannot stand in a certificate: use 1 to 63 of a-z, 0-9 and ._:-, and "
            "begin with a letter or digit"
        )
    return text


T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some items of a list.

    Attributes
    ----------
    items : tuple
        The items, in the order of the list.
    next : str or None
        The cursor of the page after: give it as `after`; None if this is the last one.
    total : int or None
        How many items the whole list has, where known.
    """

    items: tuple[T, ...]
    next: str | None = None
    total: int | None = None


@overload
def to_datetime(seconds: int) -> datetime: ...
@overload
def to_datetime(seconds: int | None) -> datetime | None: ...
def to_datetime(seconds: int | None) -> datetime | None:
    """Return a stored time, seconds since 1970, as a datetime in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


@cache
def _list_fields(kind: Any) -> tuple[tuple[str, bool], ...]:
    """Return the names of a record's fields, each with whether it is a time."""
    return tuple((entry.name, entry.name.endswith("_at")) for entry in fields(kind))


def record_from(kind: Callable[..., T], row: Mapping[Any, Any], **derived: Any) -> T:
    """Return a record from the columns that are called as its fields; times become datetimes.

    What is `derived` from other columns is taken as it is.
    """
    values = {
        name: to_datetime(row[name]) if is_time else row[name]
        for name, is_time in _list_fields(kind)
        if name not in derived and name in row
    }
    return kind(**values, **derived)


@dataclass(frozen=True)
class Request:
    """A request that people be erased from one model.

    Attributes
    ----------
    id : str
        Random, 32 hexadecimal digits.
    model, tenant : str
        From what, and whose it is.
    state : str
        ``received``, ``verified``, ``queued``, ``applying``, ``applied``, ``certified``,
        ``purging``, ``purged``, ``closed``; or ``rejected``, ``cancelled``, ``duplicate``,
        ``on_hold``, ``retry_wait``, ``stuck``.
    regime, ground : str
        Which law, and which of its grounds.
    received_at : datetime
        When the clock began to run.
    due_on : date
        Last day; the extended one after an extension.
    n_ids, n_rows : int
        How many people it names, and how much of the model is theirs.
    batch, certificate : str or None, int or None
        The batch that applied it, and the number of the certificate.
    tries, reason : int, str or None
        Failed attempts so far, and why it is in a side state, as a code.
    duplicate_of : str or None
        The request that erases these people.
    filed_by, verified_by : str or None
        Opaque ids of who filed it and who vouched for the identity; None where nobody was named.
    is_extended, hold_until : bool, datetime or None
        Whether its last day was put off, and when a hold ends.
    recipients : int
        How many recipients of the data were told of the erasure.
    closed_at : datetime or None
        When it was answered, rejected or cancelled.
    is_new : bool
        Whether the call that returned it has recorded it; False for a repeat, and in lists.
    """

    id: str
    model: str
    tenant: str
    state: str
    regime: str
    ground: str
    received_at: datetime
    due_on: date
    n_ids: int
    n_rows: int
    batch: str | None = None
    certificate: int | None = None
    tries: int = 0
    reason: str | None = None
    duplicate_of: str | None = None
    filed_by: str | None = None
    verified_by: str | None = None
    is_extended: bool = False
    hold_until: datetime | None = None
    recipients: int = 0
    closed_at: datetime | None = None
    is_new: bool = field(default=False, compare=False, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether the person still waits for an answer."""
        return self.state not in FINAL

    def days_left(self, now: datetime, calendar: "Calendar") -> int:
        """Return the days until the last one, at the seat; negative when it has passed."""
        return (self.due_on - calendar.day_of(now)).days


@dataclass(frozen=True)
class RequestCounts:
    """How many requests there are.

    Attributes
    ----------
    by_state : dict
        For every state, also those in which none is.
    overdue : int
        Open requests whose last day has passed.
    """

    by_state: dict[str, int]
    overdue: int

    @property
    def total(self) -> int:
        """All requests."""
        return sum(self.by_state.values())

    @property
    def n_open(self) -> int:
        """Requests whose people still wait for an answer."""
        return sum(count for state, count in self.by_state.items() if state not in FINAL)


@dataclass(frozen=True)
class LogEntry:
    """One event, in the log or in the timeline of a request.

    Attributes
    ----------
    at, kind : datetime, str
        When it happened, and what.
    details : dict
        Codes, counts and opaque ids.
    index : int or None
        Place in the log; None until the next checkpoint.
    leaf : str or None
        Hash of its leaf, in hexadecimal digits; None until the next checkpoint.
    """

    at: datetime
    kind: str
    details: dict[str, Any]
    index: int | None = None
    leaf: str | None = None

    @classmethod
    def from_row(cls, row: Any) -> Self:
        """Return an event from its columns."""
        body = json.loads(row.body)
        details = {name: value for name, value in body.items() if name not in ("at", "kind")}
        return cls(to_datetime(row.at), row.kind, details, row.log_index, row.leaf)


@dataclass(frozen=True)
class LogInclusion:
    """Proof that an event is in the log (RFC 6962, section 2.1.1); hashes in hexadecimal digits.

    Attributes
    ----------
    index, size : int
        Place of the event, in the tree of so many.
    leaf, root : str
        Hash of the leaf, and the root of that tree.
    path : tuple of str
        Siblings from the leaf to the root.
    """

    index: int
    size: int
    leaf: str
    root: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class LogConsistency:
    """Proof that a log begins with an earlier one (RFC 6962, section 2.1.2).

    Attributes
    ----------
    size1, size2, root1, root2 : int, str
        Sizes of the two, and their roots in hexadecimal digits.
    path : tuple of str
        The proof.
    """

    size1: int
    size2: int
    root1: str
    root2: str
    path: tuple[str, ...]


class Checkpoint(NamedTuple):
    """A signed head of the log: its size, root (hexadecimal), C2SP note, and when it was signed."""

    size: int
    root: str
    note: str
    at: int

    @property
    def digest(self) -> str:
        """SHA-256 of what was signed."""
        return note_digest(self.note)


@dataclass(frozen=True)
class Batch:
    """Requests that are erased together, or a retrain.

    Attributes
    ----------
    id : str
        64 hexadecimal digits.
    model, tenant : str
        From what, and whose it is.
    kind : {"erase", "retrain"}
        What is done.
    state : {"open", "published", "certified", "purged", "abandoned"}
        How far it is.
    reason : str
        Why it was sealed, a code.
    created_at : datetime
        When it was sealed.
    n_requests, n_rows : int
        Requests in it, and the rows that left the model with it; before that, the rows of its
        requests.
    version, certificate : int or None
        Number of the version that it made, and of the certificate.
    """

    id: str
    model: str
    tenant: str
    kind: Literal["erase", "retrain"]
    state: Literal["open", "published", "certified", "purged", "abandoned"]
    reason: str
    created_at: datetime
    n_requests: int
    n_rows: int
    version: int | None
    certificate: int | None


@dataclass(frozen=True)
class Certificate:
    """What a certificate says, in short.

    Attributes
    ----------
    sequence, id : int, str
        Its number, and the SHA-256 of what is signed.
    model, tenant : str
        From what was erased, and whose it is.
    version, batch : int, str
        Number of the version that it certifies, and the batch.
    method : str
        How rows were removed; "unreadable" where the envelope was damaged.
    guarantee : {"exact", "certified", "empirical", "unreadable"}
        Of which kind its guarantee is.
    n_rows : int
        Rows that it covers.
    certified_at, purged_at : datetime or None
        When it was made, and when the purge was attested.
    purge_gaps : str or None
        What the purge did not search, in words; None if it searched everything.
    log_index : int or None
        Its place in the log; None until the next checkpoint.
    """

    sequence: int
    id: str
    model: str
    tenant: str
    version: int
    batch: str
    method: str
    guarantee: str
    n_rows: int
    certified_at: datetime
    purged_at: datetime | None
    purge_gaps: str | None
    log_index: int | None


class CertificateLine(NamedTuple):
    """Certificates of the same model that a certificate continues.

    Attributes
    ----------
    first : int
        The first one.
    retrain, before : int or None
        The last retrain before, and the one before.
    """

    first: int
    retrain: int | None
    before: int | None


@dataclass(frozen=True)
class Purge:
    """A certificate, and the purge that follows it.

    Attributes
    ----------
    sequence : int
        Number of the certificate.
    tenant, model : str
        Whose it is.
    envelope : bytes or None
        The attestation; None while the purge is not done.
    evidence : dict of str to dict
        What the steps noted: `stores` by name, and `scan`.
    """

    sequence: int
    tenant: str
    model: str
    envelope: bytes | None
    evidence: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Coverage:
    """What the certificate says that covers a receipt.

    Attributes
    ----------
    certificate, certified_at : int, datetime
        Its number, and when it was signed.
    purged_at : datetime or None
        When what was left of the rows had been destroyed.
    purge_gaps : str or None
        What the search for copies left out, in words; None if nothing.
    guarantee : {"exact", "certified", "empirical"}
        Kind of guarantee.
    in_log : bool
        Whether a signed checkpoint covers the certificate's place in the log.
    """

    certificate: int
    certified_at: datetime
    purged_at: datetime | None
    purge_gaps: str | None
    guarantee: Literal["exact", "certified", "empirical"]
    in_log: bool


@dataclass(frozen=True)
class Version:
    """One published state of a model.

    Attributes
    ----------
    number : int
        0 is the registration.
    sequence : int or None
        Number of its certificate; None for the registration.
    address : str
        SHA-256 of the model's file, nonce included, as the certificate quotes it.
    live : int
        Rows that it was trained on.
    published_at, certified_at, purged_at : datetime or None
        When it was published, certified, and destroyed.
    kind : {"registration", "erase", "retrain"} or None
        How it came about. This and what follows is read by `Models.history` only.
    batch, certificate_id : str or None
        The batch that made it, and the id of its certificate.
    n_erased : int
        Rows that left with it.
    seconds : float
        What the removal or the retrain took.
    facts : dict or None
        Method, execution, guarantee, measurements, monitor and limits, as the certificate has
        them; None for the registration.
    """

    number: int
    sequence: int | None
    address: str
    live: int
    published_at: datetime
    certified_at: datetime | None
    purged_at: datetime | None
    kind: Literal["registration", "erase", "retrain"] | None = None
    batch: str | None = None
    certificate_id: str | None = None
    n_erased: int = 0
    seconds: float = 0.0
    facts: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what identifies it and when it changed, ready for JSON."""
        times = (self.published_at, self.certified_at, self.purged_at)
        published, certified, purged = (None if at is None else at.isoformat() for at in times)
        what = {name: getattr(self, name) for name in ("number", "sequence", "address", "live")}
        return what | {"published_at": published, "certified_at": certified, "purged_at": purged}


@dataclass(frozen=True)
class Model:
    """A registered model.

    Attributes
    ----------
    name, tenant, dataset, method : str
        What it is called, whose it is, and how it forgets.
    releases : str
        What of it is released: "labels-only", "latest-only" or "every-version".
    n_rows : int
        Rows in the version that is served.
    slots : int
        Slots of the commitment to its rows.
    head : Version
        The version that is served.
    registered_at : datetime
        When it was registered.
    """

    name: str
    tenant: str
    dataset: str
    method: str
    releases: str
    n_rows: int
    slots: int
    head: Version
    registered_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return vars(self) | {
            "head": self.head.to_dict(),
            "registered_at": self.registered_at.isoformat(),
        }


@dataclass(frozen=True)
class Storage:
    """Bytes that a model takes.

    Attributes
    ----------
    blobs : int
        Sealed models, rows, ids, salts and monitors of the versions that are still there.
    proofs : int
        Transition proofs, which are kept.
    database : int or None
        Its part of the database, by its part of all requests; None where that is not to be shown.
    """

    blobs: int
    proofs: int
    database: int | None = None


@dataclass(frozen=True)
class Watch:
    """What a monitor tolerates.

    Attributes
    ----------
    metric : str
        Performance that it looks at.
    tolerances : mapping of str to float
        Largest accepted effectiveness and certifiability, least accepted efficiency, largest share
        of a budget, largest residual; only those that are looked at.
    limits : mapping of str to mapping
        For each estimated property the calibrated proxy: `score`, `factor`, `floor`, and `miss`,
        the share of rehearsed streams in which the tolerance was passed unseen.
    assumption : str
        What its decisions take for granted about requests to come, in words; empty if nothing.
    """

    metric: str
    tolerances: Mapping[str, float]
    limits: Mapping[str, Mapping[str, Any]]
    assumption: str = ""


@dataclass(frozen=True)
class Key:
    """A key that certificates are, or were, signed with.

    Attributes
    ----------
    keyid, public : str
        SHA-256 of the public key, and the public key in hexadecimal digits.
    state : {"current", "retired", "revoked"}
        What became of it.
    first, last : int or None
        The certificates, by number, that it may sign; `last` is None for the current key. Both
        are None for a tenant's token: they count the certificates of all tenants.
    """

    keyid: str
    public: str
    state: Literal["current", "retired", "revoked"]
    first: int | None
    last: int | None


@dataclass(frozen=True)
class Store:
    """A folder outside the ledger that may hold people.

    Parameters
    ----------
    name, path : str, str or Path
        A code, and the folder.
    owner : str, default="operator"
        Who keeps it clean: a code.
    scope : str, default="copies"
        What lies in it: a code.
    days : int or None, default=None
        How long a backup is kept. None: no backup, it must be clean after a purge.
    """

    name: str
    path: str | Path
    owner: str = "operator"
    scope: str = "copies"
    days: int | None = None

    @property
    def kind(self) -> Literal["folder", "backup"]:
        """``folder``, which must be clean, or ``backup``, which forgets by itself."""
        return "folder" if self.days is None else "backup"

    @property
    def folder(self) -> Path:
        """The folder, without links."""
        return Path(self.path).resolve()
