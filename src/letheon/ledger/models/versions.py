"""Versions of a model: what the database says about them, and what their blobs hold."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, CursorResult, select

from letheon import state
from letheon.data import Ids, Rows, as_ids
from letheon.exceptions import (
    CorruptFileError,
    KeyFileError,
    LedgerMissingError,
    UnknownModelError,
)
from letheon.ledger.core import Core
from letheon.ledger.db.events import require_agreement
from letheon.ledger.keys.keyring import KeyRing
from letheon.ledger.tables import heads, models, versions
from letheon.verifier import parse_strict

_T = TypeVar("_T")


@dataclass(frozen=True)
class ModelRow:
    """A registered model, as its row in the database has it."""

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
        """Whether it came as a file, and is computed in a sandbox only."""
        return self.origin != "own"


@dataclass(frozen=True)
class VersionRow:
    """One published state of a model."""

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
        """What goes on from version to version: retrains, training randomness, proofs."""
        running: dict[str, Any] = self.facts["run"]
        return running

    @property
    def blobs(self) -> tuple[str, ...]:
        """Addresses of all blobs of this version."""
        found = (self.model_blob, self.rows_blob, self.ids_blob, self.vault_blob)
        return found if self.monitor_blob is None else (*found, self.monitor_blob)


class Vault(NamedTuple):
    """Slot, salt and place of every row, in held order.

    The place is the row's position at registration, kept for its life: places rise strictly, so
    that nobody can bring the rows that remain into another order. The ranks of its cells in
    columns of ordered categories are kept alike: ranks close up when a category leaves.
    """

    slots: NDArray[np.int64]
    salts: NDArray[np.uint8]
    places: NDArray[np.int64]
    ranks: NDArray[np.int64]

    def take(self, positions: NDArray[np.int64]) -> "Vault":
        """Return what belongs to the rows at these positions."""
        return Vault(
            slots=self.slots[positions],
            salts=self.salts[positions],
            places=self.places[positions],
            ranks=self.ranks[positions],
        )


class Judged(NamedTuple):
    """What a version is judged by: a packed monitor, or test rows and the last retrained figure."""

    monitor: bytes | None
    test: Rows | None
    then: float


def model_row(row: Mapping[str, Any]) -> ModelRow:
    """Return a model from its columns."""
    return ModelRow(**{**row, "trusted": tuple(filter(None, row["trusted"].split(",")))})


def _version_row(row: Mapping[str, Any]) -> VersionRow:
    return VersionRow(**{**row, "facts": parse_strict(row["facts"].encode())})


def find_model(conn: Connection, name: str, tenant: str) -> ModelRow:
    """Return the model of this name, or raise `UnknownModelError`.

    The text is the same whether another tenant has one of that name or nobody.
    """
    wanted = (models.c.tenant == tenant) & (models.c.name == name)
    row = conn.execute(select(models).where(wanted)).mappings().one_or_none()
    if row is None:
        raise UnknownModelError(
            f"no model {name!r} is registered for tenant {tenant!r}; `letheon model list` shows "
            "those that are"
        )
    return model_row(dict(row))


def list_models(conn: Connection, tenant: str | None = None) -> list[ModelRow]:
    """Return the rows of all models, or those of a tenant, in the order of their registration."""
    query = select(models).order_by(models.c.id)
    if tenant is not None:
        query = query.where(models.c.tenant == tenant)
    return [model_row(dict(row)) for row in conn.execute(query).mappings()]


def model_of(conn: Connection, model_id: int) -> ModelRow:
    """Return the model with this key."""
    row = conn.execute(select(models).where(models.c.id == model_id)).mappings().one()
    return model_row(dict(row))


def version_of(conn: Connection, version_id: int) -> VersionRow:
    """Return the version with this key."""
    row = conn.execute(select(versions).where(versions.c.id == version_id)).mappings().one()
    return _version_row(dict(row))


def versions_of(
    conn: Connection,
    model_id: int,
    *,
    after: int | None = None,
    newest: int | None = None,
    unpurged: bool = False,
) -> list[VersionRow]:
    """Return versions of a model, oldest first.

    With `after` only those whose certificate has a higher number, with `newest` only so many, with
    `unpurged` only those that are still there.
    """
    query = select(versions).where(versions.c.model_id == model_id)
    if unpurged:
        query = query.where(versions.c.purged_at.is_(None))
    if after is not None:
        query = query.where(versions.c.sequence > after)
    found = conn.execute(query.order_by(versions.c.number.desc()).limit(newest)).mappings()
    return [_version_row(dict(row)) for row in found][::-1]


def head_of(conn: Connection, model_id: int) -> VersionRow:
    """Return the version that readers see."""
    wanted = (
        select(versions)
        .join(heads, heads.c.version_id == versions.c.id)
        .where(heads.c.model_id == model_id)
    )
    return _version_row(dict(conn.execute(wanted).mappings().one()))


def new_key_of(result: CursorResult[Any]) -> int:
    """Return the key that the database gave to the row just inserted."""
    key = result.inserted_primary_key
    if key is None:
        raise RuntimeError("the database gave no key to a new row")
    return int(key[0])


@dataclass(frozen=True)
class BlobSealer:
    """Seals one kind of blob of one version; it cannot be taken for another one."""

    keys: KeyRing
    key: str
    context: bytes

    def seal(self, data: bytes) -> bytes:
        """Return the sealed bytes."""
        return self.keys.seal(self.key, data, self.context)

    def unseal(self, data: bytes) -> bytes:
        """Return the plain bytes, or raise `CorruptFileError`."""
        return self.keys.unseal(self.key, data, self.context)


def sealer(core: Core, model: ModelRow, epoch_key: str, what: str) -> BlobSealer:
    """Return what seals the blobs "model", "rows", "ids", "vault" or "monitor" of a version."""
    return BlobSealer(core.keys, epoch_key, f"letheon/{what}/v1/{model.folder}".encode())


def content_of(core: Core, model: ModelRow, version: VersionRow, what: str) -> bytes:
    """Return the content of a blob of a version; its hash is checked."""
    address = getattr(version, f"{what}_blob")
    return core.blobs(model.folder).read(address, sealer(core, model, version.epoch_key, what))


def raw_model(core: Core, model: ModelRow, version: VersionRow) -> bytes:
    """Return the bytes whose SHA-256 certificates quote: a nonce, and then the model."""
    opener = sealer(core, model, version.epoch_key, "model")
    return core.blobs(model.folder).raw(version.model_blob, opener)


def read_model(core: Core, model: ModelRow, version: VersionRow, *, trusted: Any = ()) -> Any:
    """Build the model of a version; its hash is checked first."""
    content = content_of(core, model, version, "model")
    limit = memory_limit(len(content)) if model.is_outside else state.UNLIMITED
    return state.decode(content, trusted=(*model.trusted, *trusted), max_memory=limit)


def memory_limit(n_bytes: int) -> int:
    """Return the memory that bytes from a sandboxed process may take where keys are at hand."""
    return (256 << 20) + 32 * n_bytes


def read_head(core: Core, model: ModelRow, read: Callable[[VersionRow], _T]) -> _T:
    """Read something of the version that is served.

    It may be purged while it is read; then there is another one to read, so it is tried again.
    """
    while True:
        with core.database.reading() as conn:
            head = head_of(conn, model.id)
        try:
            return read(head)
        except (LedgerMissingError, CorruptFileError, KeyFileError):
            with core.database.reading() as conn:
                is_same = head_of(conn, model.id).id == head.id
            if is_same:
                require_agreement(core)
                raise


def _decode_own(core: Core, model: ModelRow, version: VersionRow, part: str) -> Any:
    """Decode a part that this ledger encoded and sealed; the limit for files does not apply."""
    return state.decode(content_of(core, model, version, part), max_memory=state.UNLIMITED)


def read_rows(core: Core, model: ModelRow, version: VersionRow) -> Rows:
    """Return the rows of a version."""
    rows: Rows = _decode_own(core, model, version, "rows")
    return rows


def read_ids(core: Core, model: ModelRow, version: VersionRow) -> Ids:
    """Return whose rows are in a version, one id per row."""
    return as_ids(_decode_own(core, model, version, "ids"))


def read_vault(core: Core, model: ModelRow, version: VersionRow) -> Vault:
    """Return slot, salt and place of every row of a version."""
    return Vault(**_decode_own(core, model, version, "vault"))


def read_judged(core: Core, model: ModelRow, version: VersionRow) -> Judged | None:
    """Return what the version is judged by, if anything."""
    if version.monitor_blob is None:
        return None
    return Judged(**_decode_own(core, model, version, "monitor"))


def proof_path(core: Core, model: ModelRow, digest: str) -> Path:
    """Return where the transition proof with this SHA-256 lies."""
    return core.place("proofs") / model.folder / f"{digest}.json"
