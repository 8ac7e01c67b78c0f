"""Versions of a model: rows of the database, blobs, pins and readers.

The served version of a model is called its head. A reader always gets a published version.
"""

import hashlib
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import (
    Connection,
    CursorResult,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from letheon import state
from letheon.data import Ids, Rows, as_ids
from letheon.exceptions import (
    CertificateError,
    CorruptFileError,
    KeyFileError,
    LedgerError,
    LedgerMissingError,
    UnknownModelError,
)
from letheon.ledger.certificates.facts import JudgementBasis
from letheon.ledger.certificates.predictors import make_predictor_file
from letheon.ledger.core import NONCE_BYTES, Core, fault_point
from letheon.ledger.db.events import require_agreement
from letheon.ledger.models.commitment import RowSlots
from letheon.ledger.models.table_files import memory_limit
from letheon.ledger.tables import heads, models, pins, purge_steps, versions
from letheon.verifier import parse_strict

# Name of the purge step after which the previous version cannot be pinned any more.
DRAINED = "pins"
# Longest pin, unless the policy permits a longer one.
LONGEST_SECONDS = 600
_TOLERATED_SECONDS = 300
_TRIES = 5
_BLOBS = ("model_blob", "rows_blob", "ids_blob", "vault_blob", "monitor_blob")
# A version may be purged while it is read; then a newer version exists.
_UNREADABLE = (LedgerMissingError, CorruptFileError, KeyFileError)
_T = TypeVar("_T")


@dataclass(frozen=True)
class ModelRow:
    """The database row of a registered model.

    `origin` is "own" for a model that the operator registered as an object or with trusted classes,
    and "outside" for a model from an uploaded file, which runs only in a sandbox.
    """

    id: int
    tenant: str
    name: str
    folder: str
    dataset: str
    method: str
    slots: int
    preprocessing: str
    releases: str
    created_at: int
    trusted: tuple[str, ...]
    origin: str

    @property
    def is_outside(self) -> bool:
        """Whether the model was uploaded as a file and runs only in a sandbox."""
        return self.origin != "own"


@dataclass(frozen=True)
class VersionRow:
    """The database row of a version, which is one published state of a model."""

    id: int
    model_id: int
    number: int
    parent_id: int | None
    batch_id: str | None
    sequence: int | None
    model_blob: str
    rows_blob: str
    ids_blob: str
    vault_blob: str
    monitor_blob: str | None
    epoch_key: str
    root: str
    live: int
    facts: dict[str, Any]
    published_at: int
    certified_at: int | None
    checkpoint_before: str | None
    purged_at: int | None

    @property
    def run(self) -> dict[str, Any]:
        """Facts about the history of the model: retrainings, training randomness, proofs."""
        running: dict[str, Any] = self.facts["run"]
        return running

    @property
    def blobs(self) -> tuple[str, ...]:
        """Addresses of all blobs of this version."""
        return tuple(address for name in _BLOBS if (address := getattr(self, name)) is not None)


def _model_row(row: Mapping[Any, Any]) -> ModelRow:
    return ModelRow(**{**row, "trusted": tuple(filter(None, row["trusted"].split(",")))})


def _version_row(row: Mapping[Any, Any]) -> VersionRow:
    return VersionRow(**{**row, "facts": parse_strict(row["facts"].encode())})


def find_model(conn: Connection, name: str, tenant: str) -> ModelRow:
    """Return the model of this name, or raise `UnknownModelError`.

    The error does not reveal whether another tenant has a model of this name.
    """
    is_match = (models.c.tenant == tenant) & (models.c.name == name)
    row = conn.execute(select(models).where(is_match)).mappings().one_or_none()
    if row is None:
        raise UnknownModelError(
            f"no model {name!r} is registered for tenant {tenant!r}; `letheon model list` shows "
            "all models"
        )
    return _model_row(row)


def list_models(conn: Connection, tenant: str | None = None) -> list[ModelRow]:
    """Return the database rows of all models, or those of a tenant, oldest first."""
    query = select(models).order_by(models.c.id)
    if tenant is not None:
        query = query.where(models.c.tenant == tenant)
    return [_model_row(row) for row in conn.execute(query).mappings()]


def find_model_by_id(conn: Connection, model_id: int) -> ModelRow:
    """Return the database row of the model with this key."""
    return _model_row(conn.execute(select(models).where(models.c.id == model_id)).mappings().one())


def find_version(conn: Connection, version_id: int) -> VersionRow:
    """Return the database row of the version with this key."""
    query = select(versions).where(versions.c.id == version_id)
    return _version_row(conn.execute(query).mappings().one())


def list_versions(
    conn: Connection,
    model_id: int,
    *,
    after: int | None = None,
    newest: int | None = None,
    unpurged: bool = False,
) -> list[VersionRow]:
    """Return versions of a model, oldest first.

    `after` selects versions with a higher certificate number, `newest` keeps only that many of the
    newest versions, and `unpurged` excludes purged versions.
    """
    query = select(versions).where(versions.c.model_id == model_id)
    if unpurged:
        query = query.where(versions.c.purged_at.is_(None))
    if after is not None:
        query = query.where(versions.c.sequence > after)
    rows = conn.execute(query.order_by(versions.c.number.desc()).limit(newest)).mappings()
    return [_version_row(row) for row in rows][::-1]


def find_head(conn: Connection, model_id: int) -> VersionRow:
    """Return the database row of the served version of a model."""
    query = select(versions).join(heads, heads.c.version_id == versions.c.id)
    return _version_row(conn.execute(query.where(heads.c.model_id == model_id)).mappings().one())


def get_inserted_key(result: CursorResult[Any]) -> int:
    """Return the primary key of the inserted row."""
    key = result.inserted_primary_key
    if key is None:
        raise RuntimeError("internal error: the database returned no key for an inserted row")
    return int(key[0])


@dataclass(frozen=True)
class VersionCipher:
    """Cipher for one kind of blob of one version.

    The kind and the model are authenticated, so a blob cannot be replaced by another blob.
    """

    core: Core
    key: str
    context: bytes

    def encrypt(self, data: bytes) -> bytes:
        """Return the data encrypted with the key of the version."""
        return self.core.keys.encrypt(self.key, data, self.context)

    def decrypt(self, data: bytes) -> bytes:
        """Return the decrypted data; raise `CorruptFileError` if the data was altered."""
        return self.core.keys.decrypt(self.key, data, self.context)


def make_blob_cipher(core: Core, model: ModelRow, epoch_key: str, kind: str) -> VersionCipher:
    """Return the cipher for one blob of a version.

    `kind` is "model", "rows", "ids", "vault" (slots and salts) or "monitor".
    """
    return VersionCipher(core, epoch_key, f"letheon/{kind}/v1/{model.folder}".encode())


def write_blobs(
    core: Core,
    model: ModelRow,
    content: bytes,
    rows: Rows,
    row_slots: RowSlots,
    judged: JudgementBasis | None,
    nonce: bytes | None = None,
) -> dict[str, str | None]:
    """Encrypt the parts of a version and write them to disk as blobs; `nonce` is the model's.

    Returns
    -------
    dict
        Columns of the version: the addresses of the blobs, and the id of the key that encrypts them
        as `epoch_key`.
    """
    key = core.keys.new_key("epoch", label=model.folder)
    fault_point("compute.key-written")

    def write_blob(kind: str, content: bytes, nonce: bytes | None = None) -> str:
        return core.blob_store(model.folder).write(
            content, make_blob_cipher(core, model, key, kind), nonce
        )

    try:
        return {
            "model_blob": write_blob("model", content, nonce),
            "rows_blob": write_blob("rows", state.encode(rows)),
            "ids_blob": write_blob("ids", state.encode(rows.ids.to_array())),
            "vault_blob": write_blob("vault", state.encode(row_slots._asdict())),
            "monitor_blob": (
                None if judged is None else write_blob("monitor", state.encode(judged._asdict()))
            ),
            "epoch_key": key,
        }
    except BaseException:
        # Without the key the blobs are unreadable; the next worker deletes them.
        core.keys.destroy(key)
        raise


def destroy_blobs(core: Core, model: ModelRow, written: Mapping[str, str | None]) -> None:
    """Destroy the blobs of a version that was not published, and the key that encrypts them."""
    core.keys.destroy(str(written["epoch_key"]))
    for name in _BLOBS:
        if (address := written[name]) is not None:
            core.blob_store(model.folder).destroy(address)


def read_blob(core: Core, model: ModelRow, version: VersionRow, kind: str) -> bytes:
    """Return the decrypted content of a blob of a version after checking its hash."""
    address = getattr(version, f"{kind}_blob")
    return core.blob_store(model.folder).read(
        address, make_blob_cipher(core, model, version.epoch_key, kind)
    )


def read_raw_model(core: Core, model: ModelRow, version: VersionRow) -> bytes:
    """Return the bytes whose SHA-256 is in certificates: a nonce, followed by the model file."""
    cipher = make_blob_cipher(core, model, version.epoch_key, "model")
    return core.blob_store(model.folder).read_with_nonce(version.model_blob, cipher)


def read_nonce(core: Core, model: ModelRow, version: VersionRow) -> bytes:
    """Return the nonce of a version's model."""
    return read_raw_model(core, model, version)[:NONCE_BYTES]


def read_model(core: Core, model: ModelRow, version: VersionRow, *, trusted: Any = ()) -> Any:
    """Load the model of a version after checking its hash."""
    content = read_blob(core, model, version, "model")
    limit = memory_limit(len(content)) if model.is_outside else state.UNLIMITED
    return state.decode(content, trusted=(*model.trusted, *trusted), max_memory=limit)


def read_predictor_file(core: Core, model: ModelRow, version: VersionRow) -> bytes:
    """Return the predictor file of a version.

    Raises
    ------
    TypeError
        The model has no predictor.
    CertificateError
        The certificate states another digest, because it was computed with other libraries.
    """
    nonce = read_nonce(core, model, version)
    data = make_predictor_file(read_model(core, model, version), nonce)
    stated = (version.facts["certificate"] or {}).get("predictor", {}).get("sha256")
    if stated not in (None, hashlib.sha256(data).hexdigest()):
        raise CertificateError(
            "this machine computes other bytes of the predictor than its certificate states; use "
            "the libraries and the CPU kernel that the certificate names, or retrain the model"
        )
    return data


def read_head(core: Core, model: ModelRow, read: Callable[[VersionRow], _T]) -> _T:
    """Return the result of `read` for the served version.

    If the version is purged while it is read, `read` is called again with the new version.
    """
    while True:
        with core.database.reading() as conn:
            head = find_head(conn, model.id)
        try:
            return read(head)
        except _UNREADABLE:
            with core.database.reading() as conn:
                is_same = find_head(conn, model.id).id == head.id
            if is_same:
                require_agreement(core)
                raise


def _decode_own(core: Core, model: ModelRow, version: VersionRow, part: str) -> Any:
    """Decode a blob that this ledger wrote, without the memory limit of uploaded files."""
    return state.decode(read_blob(core, model, version, part), max_memory=state.UNLIMITED)


def read_rows(core: Core, model: ModelRow, version: VersionRow) -> Rows:
    """Return the remaining training rows of a version."""
    rows: Rows = _decode_own(core, model, version, "rows")
    return rows


def read_ids(core: Core, model: ModelRow, version: VersionRow) -> Ids:
    """Return the ids of a version, one per row."""
    return as_ids(_decode_own(core, model, version, "ids"))


def read_row_slots(core: Core, model: ModelRow, version: VersionRow) -> RowSlots:
    """Return slot, salt, place and ranks of every row of a version."""
    return RowSlots(**_decode_own(core, model, version, "vault"))


def read_judged(core: Core, model: ModelRow, version: VersionRow) -> JudgementBasis | None:
    """Return the test rows or the monitor of a version; None if it has neither."""
    if version.monitor_blob is None:
        return None
    return JudgementBasis(**_decode_own(core, model, version, "monitor"))


def locate_signed_file(core: Core, kind: str, number: int) -> Path:
    """Return the path of a signed file; `kind` is "certificates", "purges" or "checkpoints"."""
    name = f"{number:012d}.txt" if kind == "checkpoints" else f"{number:06d}.json"
    return core.subfolder(kind) / name


def proof_path(core: Core, model: ModelRow, digest: str) -> Path:
    """Return the path of the transition proof with this SHA-256."""
    return core.subfolder("proofs") / model.folder / f"{digest}.json"


def pin_version(core: Core, owner: str, version_id: int, seconds: int) -> str:
    """Pin a version, so that it is not purged for some seconds; return the id of the pin.

    Raises
    ------
    LedgerMissingError
        The version is being purged or was purged; load the current version instead.
    """
    pin_id = secrets.token_hex(16)
    values = {"id": pin_id, "version_id": version_id, "owner": owner}

    def insert_pin(conn: Connection) -> None:
        if _is_being_purged(conn, version_id):
            raise LedgerMissingError(
                "this version of the model is being purged; load the current version with "
                "ledger.models.load"
            )
        conn.execute(insert(pins).values(values | {"until": _compute_pin_end(core, seconds)}))

    core.database.run_transaction(insert_pin)
    return pin_id


def renew_pin(core: Core, pin_id: str, seconds: int) -> None:
    """Pin the same version for some seconds from now, even if the pin has expired.

    Raises
    ------
    LedgerMissingError
        The pin expired and its version was purged; load the current version instead.
    """
    change = update(pins).where(pins.c.id == pin_id).values(until=_compute_pin_end(core, seconds))
    if core.database.run_transaction(lambda conn: conn.execute(change).rowcount) == 0:
        raise LedgerMissingError(
            "this pin has expired and its version may be purged; load the current version with "
            "ledger.models.load"
        )


def release_pin(core: Core, pin_id: str) -> None:
    """Release a pin; do nothing if it was already released or has expired."""
    core.database.run_transaction(
        lambda conn: conn.execute(delete(pins).where(pins.c.id == pin_id))
    )


def _compute_pin_end(core: Core, seconds: int) -> int:
    longest = _longest_pin(core)
    if seconds > longest:
        raise ValueError(
            f"seconds={seconds} is too long for a pin; expected at most {longest}. Renew the "
            "pin to keep it longer"
        )
    return core.clock() + seconds


def _longest_pin(core: Core) -> int:
    return max(core.settings.policy.pin_seconds, LONGEST_SECONDS)


def _is_being_purged(conn: Connection, version_id: int) -> bool:
    """Return whether the blobs of a version are being destroyed or were destroyed.

    The row of the version stays locked until the transaction ends.
    """
    locked = select(versions.c.purged_at).where(versions.c.id == version_id).with_for_update()
    if conn.execute(locked).one().purged_at is not None:
        return True
    drained = (
        (versions.c.parent_id == version_id)
        & (purge_steps.c.batch_id == versions.c.batch_id)
        & (purge_steps.c.step == DRAINED)
    )
    return bool(conn.scalar(select(exists().where(drained))))


def count_pins(core: Core, conn: Connection, version_id: int) -> int:
    """Delete the expired pins of a version and return the number of remaining pins.

    A pin that ends later than any pin made now is deleted too, because its reader had a wrong
    clock. The row of the version stays locked until the transaction ends, so no pin can be added
    before.
    """
    now = core.clock()
    latest = now + _longest_pin(core) + _TOLERATED_SECONDS
    conn.execute(select(versions.c.id).where(versions.c.id == version_id).with_for_update())
    over = (pins.c.until <= now) | (pins.c.until > latest)
    conn.execute(delete(pins).where(pins.c.version_id == version_id, over))
    counted = select(func.count()).where(pins.c.version_id == version_id)
    return int(conn.scalar(counted) or 0)


class Reader:
    """Reader of the served version of a model.

    Each use checks which version is served (one SELECT) and loads the model again if it has
    changed. The version in use is pinned: its purge waits until the reader uses a newer version, or
    was inactive for ``policy.pin_seconds``. Threads can share a reader.

    Parameters
    ----------
    core : Core
        The ledger.
    model : ModelRow
        The model.
    owner : str
        Name of this process and thread, stored with the pin.

    Examples
    --------
    >>> import tempfile
    >>> from letheon import NaiveUnlearner
    >>> from letheon.ledger import Ledger
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = [[0.0], [1.0]], [0, 1]
    >>> model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.create(folder, name="demo") as ledger:
    ...         _ = ledger.models.register(model, X, y, name="m")
    ...         with ledger.models.reader("m") as reader:
    ...             reader.model.predict([[0.9]]).tolist()
    [1]
    """

    def __init__(self, core: Core, model: ModelRow, owner: str) -> None:
        self._core = core
        self._model = model
        self._owner = owner
        self._lock = threading.Lock()
        self._version: VersionRow | None = None
        self._pin = ""
        self._pinned_at = 0
        self._loaded: Any = None
        self._is_closed = False

    @property
    def model(self) -> Any:
        """The served model."""
        with self._lock:
            if self._is_closed:
                raise LedgerError(
                    "this reader is closed; open a new reader with ledger.models.reader(model)"
                )
            for _ in range(_TRIES):
                try:
                    return self._load_head()
                except _UNREADABLE:
                    # The head changed, and the old file was purged before it was read.
                    self._version = None
            return self._load_head()

    @property
    def address(self) -> str:
        """SHA-256 of the model file in use, as in certificates; "" before the first use."""
        return "" if self._version is None else self._version.model_blob

    def predict(self, X: Any) -> Any:
        """Return the predictions of the served model."""
        return self.model.predict(X)

    def predict_proba(self, X: Any) -> Any:
        """Return the class probabilities of the served model."""
        return self.model.predict_proba(X)

    def close(self) -> None:
        """Release the pinned version and close the reader for further use."""
        with self._lock:
            self._is_closed = True
            if self._pin:
                release_pin(self._core, self._pin)
            self._version, self._pin, self._loaded = None, "", None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _load_head(self) -> Any:
        """Return the served model; renew the pin when half of its time is over."""
        core, seconds = self._core, self._core.settings.policy.pin_seconds
        with core.database.reading() as conn:
            query = select(heads.c.version_id).where(heads.c.model_id == self._model.id)
            head_id = int(conn.execute(query).scalar_one())
            is_same = self._version is not None and self._version.id == head_id
            version = None if is_same else find_version(conn, head_id)
        if version is not None:
            pin = pin_version(core, self._owner, version.id, seconds)
            loaded = read_model(core, self._model, version)
            old, self._pin, self._version, self._loaded = self._pin, pin, version, loaded
            self._pinned_at = core.clock()
            if old:
                release_pin(core, old)
        elif 2 * (core.clock() - self._pinned_at) >= seconds:
            renew_pin(core, self._pin, seconds)
            self._pinned_at = core.clock()
        return self._loaded
