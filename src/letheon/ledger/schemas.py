"""The records of a ledger, and the pattern for names.

Operators choose the names of ledgers, models, tenants, datasets and stores, and all of them follow
one pattern. It excludes ``/`` (which separates tenant and model in a certificate), ``@`` (which
separates model and version number, and occurs in e-mail addresses) and ``+`` (which ends the name
in the signature line of a checkpoint).
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
"""Pattern of names that operators choose."""


def require_name(argument: str, text: Any) -> str:
    """Return `text` if it is a valid name; raise `ValueError` otherwise."""
    if not isinstance(text, str) or not NAME.fullmatch(text):
        raise ValueError(
            f"{argument}={text!r} is not a valid name: expected 1 to 63 characters from a-z, "
            "0-9 and ._:-, starting with a letter or digit"
        )
    return text


T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list.

    Attributes
    ----------
    items : tuple
        The items, in the order of the list.
    next : str or None
        Cursor of the next page, to pass as `after`; None if this is the last page.
    total : int or None
        Number of items in the whole list, if known.
    """

    items: tuple[T, ...]
    next: str | None = None
    total: int | None = None


@overload
def to_datetime(seconds: int) -> datetime: ...
@overload
def to_datetime(seconds: int | None) -> datetime | None: ...
def to_datetime(seconds: int | None) -> datetime | None:
    """Convert a stored time, in seconds since 1970, to a datetime in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


@cache
def _list_fields(kind: Any) -> tuple[tuple[str, bool], ...]:
    """Return (field name, whether the field is a time) for each field of a record type."""
    return tuple((entry.name, entry.name.endswith("_at")) for entry in fields(kind))


def record_from(kind: Callable[..., T], row: Mapping[Any, Any], /, **derived: Any) -> T:
    """Build a record of type `kind` from the database columns with the names of its fields.

    Stored times become datetimes. Values in `derived` replace columns and are used unchanged.
    """
    values = {
        name: to_datetime(row[name]) if is_time else row[name]
        for name, is_time in _list_fields(kind)
        if name not in derived and name in row
    }
    return kind(**values, **derived)


@dataclass(frozen=True)
class Request:
    """A request to erase people from one model.

    Attributes
    ----------
    id : str
        Random id, 32 hexadecimal digits.
    model, tenant : str
        The model and its tenant.
    state : str
        ``received``, ``verified``, ``queued``, ``applying``, ``applied``, ``certified``,
        ``purging``, ``purged``, ``closed``; or ``rejected``, ``cancelled``, ``duplicate``,
        ``on_hold``, ``retry_wait``, ``stuck``.
    regime, ground : str
        The law, and the code of the legal ground.
    received_at : datetime
        When the request was received; the deadline is counted from this day.
    due_on : date
        Last day for answering, including an extension.
    n_ids, n_rows : int
        Number of people in the request, and number of their rows in the model at receipt.
    batch, certificate : str or None, int or None
        Batch that applied the request, and number of its certificate.
    tries, reason : int, str or None
        Number of failed attempts, and the code of the reason for the state.
    duplicate_of : str or None
        The request that erases the same people.
    filed_by, verified_by : str or None
        Opaque ids of the users who filed and who verified the request; None if unknown.
    is_extended, hold_until : bool, datetime or None
        Whether the deadline was extended, and when a hold ends.
    recipients : int
        Number of recipients of the data that were notified of the erasure.
    closed_at : datetime or None
        When the request was answered, rejected or cancelled.
    is_new : bool
        Whether this call recorded the request; False for a repeated request and in lists.
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
        """Whether the request has not been answered, rejected or cancelled yet."""
        return self.state not in FINAL

    def days_left(self, now: datetime, calendar: "Calendar") -> int:
        """Return how many days are left until the deadline; negative if overdue."""
        return (self.due_on - calendar.day_of(now)).days


@dataclass(frozen=True)
class RequestCounts:
    """Numbers of requests by state, and of overdue requests.

    Attributes
    ----------
    by_state : dict
        Number of requests in each state, including states without requests.
    overdue : int
        Number of open requests whose deadline has passed.
    """

    by_state: dict[str, int]
    overdue: int

    @property
    def total(self) -> int:
        """Number of all requests."""
        return sum(self.by_state.values())

    @property
    def n_open(self) -> int:
        """Number of open requests."""
        return sum(count for state, count in self.by_state.items() if state not in FINAL)


@dataclass(frozen=True)
class LogEntry:
    """One event, in the log or in the timeline of a request.

    Attributes
    ----------
    at, kind : datetime, str
        Time and kind of the event.
    details : dict
        Codes, counts and opaque ids; never personal data.
    index : int or None
        Position in the log; None until the next checkpoint.
    leaf : str or None
        Leaf hash in hexadecimal digits; None until the next checkpoint.
    """

    at: datetime
    kind: str
    details: dict[str, Any]
    index: int | None = None
    leaf: str | None = None

    @classmethod
    def from_row(cls, row: Any) -> Self:
        """Build a log entry from the database row of an event."""
        body = json.loads(row.body)
        details = {name: value for name, value in body.items() if name not in ("at", "kind")}
        return cls(to_datetime(row.at), row.kind, details, row.log_index, row.leaf)


@dataclass(frozen=True)
class LogInclusion:
    """A proof that an event is in the log (RFC 6962, section 2.1.1). Hashes are hexadecimal.

    Attributes
    ----------
    index, size : int
        Position of the event, and size of the tree.
    leaf, root : str
        Leaf hash, and root of that tree.
    path : tuple of str
        Sibling hashes from the leaf to the root.
    """

    index: int
    size: int
    leaf: str
    root: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class LogConsistency:
    """A proof that a log begins with an earlier log (RFC 6962, section 2.1.2).

    Attributes
    ----------
    size1, size2, root1, root2 : int, str
        Sizes of both logs, and their roots in hexadecimal digits.
    path : tuple of str
        Hashes of the proof, in hexadecimal digits.
    """

    size1: int
    size2: int
    root1: str
    root2: str
    path: tuple[str, ...]


class Checkpoint(NamedTuple):
    """A signed state of the log.

    Parameters
    ----------
    size, root, note, at : int, str, str, int
        Number of events, root in hexadecimal digits, the signed note, and the time (since 1970).
    """

    size: int
    root: str
    note: str
    at: int

    @property
    def digest(self) -> str:
        """SHA-256 of the signed note."""
        return note_digest(self.note)


@dataclass(frozen=True)
class Batch:
    """Requests that are applied together, or a retraining.

    Attributes
    ----------
    id : str
        64 hexadecimal digits.
    model, tenant : str
        The model and its tenant.
    kind : {"erase", "retrain"}
        Kind of batch.
    state : {"open", "published", "certified", "purged", "abandoned"}
        How far the batch has progressed.
    reason : str
        Code of the reason why the batch was started.
    created_at : datetime
        When the batch was started.
    n_requests, n_rows : int
        Number of requests, and number of rows removed. Before the batch is applied, `n_rows` counts
        the rows of its requests.
    version, certificate : int or None
        Numbers of the resulting version and of the certificate.
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
    """Summary of a certificate.

    Attributes
    ----------
    sequence, id : int, str
        Number, and SHA-256 of the signed payload.
    model, tenant : str
        The model and its tenant.
    version, batch : int, str
        Number of the model version that the certificate is about, and id of the batch.
    method : str
        Code of the unlearning method; "unreadable" if the envelope is damaged.
    guarantee : {"exact", "certified", "empirical", "unreadable"}
        Kind of the guarantee.
    n_rows : int
        Number of removed rows that the certificate covers.
    certified_at, purged_at : datetime or None
        Times of the certificate and of the purge attestation.
    purge_gaps : str or None
        Description of what the purge did not search; None if it searched everything.
    log_index : int or None
        Position in the log; None until the next checkpoint.
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
    """The position of a certificate among the certificates of its model.

    Attributes
    ----------
    first : int
        Number of the first certificate.
    retrain, before : int or None
        Numbers of the certificates of the last retraining and of the previous version, if any.
    """

    first: int
    retrain: int | None
    before: int | None


@dataclass(frozen=True)
class Purge:
    """The purge that follows a certificate.

    Attributes
    ----------
    sequence : int
        Number of the certificate.
    tenant, model : str
        The tenant and the model.
    envelope : bytes or None
        The signed attestation, after the purge.
    evidence : dict of str to dict
        Counts from the searches: `stores` (one entry per store) and `scan` (the ledger itself).
    """

    sequence: int
    tenant: str
    model: str
    envelope: bytes | None
    evidence: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Coverage:
    """Summary of the certificate that covers a receipt.

    Attributes
    ----------
    certificate, certified_at, purged_at : int, datetime, datetime or None
        Number of the certificate, when it was signed, and when remaining copies were destroyed.
    purge_gaps : str or None
        Description of what the search for copies did not cover; None if it covered everything.
    guarantee : {"exact", "certified", "empirical"}
        Kind of guarantee.
    in_log : bool
        Whether a signed checkpoint covers the certificate's position in the log.
    """

    certificate: int
    certified_at: datetime
    purged_at: datetime | None
    purge_gaps: str | None
    guarantee: Literal["exact", "certified", "empirical"]
    in_log: bool


@dataclass(frozen=True)
class Version:
    """A published version of a model.

    Attributes
    ----------
    number : int
        Number of the version; 0 is the registration.
    sequence : int or None
        Number of its certificate; None for the registration.
    address : str
        SHA-256 of the nonce and the model file, as in the certificate.
    live : int
        Number of training rows.
    published_at, certified_at, purged_at : datetime or None
        Time of publication, of the certificate, and of destruction.
    kind : {"registration", "erase", "retrain"} or None
        How the version was created. Only `Models.history` sets this and the following fields.
    batch, certificate_id : str or None
        Ids of the batch and of the certificate.
    n_erased : int
        Number of rows removed.
    seconds : float
        Duration of the removal or retraining.
    facts : dict or None
        Method, execution, guarantee, measurements, monitor and limits, as in the certificate;
        None for the registration.
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
        """Return number, sequence, address, rows and times as JSON values."""
        times = (self.published_at, self.certified_at, self.purged_at)
        published, certified, purged = (None if at is None else at.isoformat() for at in times)
        fields = {name: getattr(self, name) for name in ("number", "sequence", "address", "live")}
        return fields | {"published_at": published, "certified_at": certified, "purged_at": purged}


@dataclass(frozen=True)
class Model:
    """A registered model.

    Attributes
    ----------
    name, tenant, dataset, method : str
        Name, tenant, dataset, and unlearning method.
    releases : str
        Which outputs are published: "labels-only", "latest-only" or "every-version".
    n_rows : int
        Number of rows in the current version.
    slots : int
        Number of slots of the commitment to its rows.
    head : Version
        The current version.
    registered_at : datetime
        When the model was registered.
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
        """Return the model as a dictionary of JSON values."""
        return vars(self) | {
            "head": self.head.to_dict(),
            "registered_at": self.registered_at.isoformat(),
        }


@dataclass(frozen=True)
class Storage:
    """Storage that a model uses, in bytes.

    Attributes
    ----------
    blobs, proofs : int
        Encrypted files of all versions that are not purged; proofs, which are never deleted.
    database : int or None
        Share of the database, estimated from the model's share of requests; None if not shown.
    """

    blobs: int
    proofs: int
    database: int | None = None


@dataclass(frozen=True)
class Watch:
    """The tolerances and limits of a monitor.

    Attributes
    ----------
    metric, assumption : str
        Performance metric; what is assumed about future requests, or empty.
    tolerances : mapping of str to float
        Largest effectiveness and certifiability, smallest efficiency, largest share of a budget and
        largest residual that are accepted. Only monitored properties are included.
    limits : mapping of str to mapping
        The calibrated proxy of each estimated property: `score`, `factor`, `floor`, and `miss`, the
        share of calibration streams in which the monitor missed that the tolerance was exceeded.
    """

    metric: str
    tolerances: Mapping[str, float]
    limits: Mapping[str, Mapping[str, Any]]
    assumption: str = ""


@dataclass(frozen=True)
class Key:
    """A key that signs, or has signed, certificates.

    Attributes
    ----------
    keyid, public : str
        SHA-256 of the public key, and the public key in hexadecimal digits.
    state : {"current", "retired", "revoked"}
        Status of the key.
    first, last : int or None
        First and last certificate number that the key may sign; `last` is None for the current key.
        Both are None for a tenant's token, because they count certificates of all tenants.
    """

    keyid: str
    public: str
    state: Literal["current", "retired", "revoked"]
    first: int | None
    last: int | None


@dataclass(frozen=True)
class Store:
    """A folder outside the ledger that may contain personal data.

    Parameters
    ----------
    name, path : str, str or Path
        Name of the store in attestations, and path of the folder.
    owner : str, default="operator"
        Name of the party responsible for the folder.
    scope : str, default="copies"
        Name of the kind of content.
    days : int or None, default=None
        Days that a backup is kept; None for a folder that must be clean after a purge.
    """

    name: str
    path: str | Path
    owner: str = "operator"
    scope: str = "copies"
    days: int | None = None

    @property
    def kind(self) -> Literal["folder", "backup"]:
        """``folder`` if the store must be clean after a purge, ``backup`` if its files expire."""
        return "folder" if self.days is None else "backup"

    @property
    def folder(self) -> Path:
        """The absolute path of the folder, with links resolved."""
        return Path(self.path).resolve()
