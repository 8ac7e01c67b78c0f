"""Versions of a model: what the database says about them, and what their blobs hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, CursorResult, select

from letheon import state
from letheon.exceptions import UnknownModelError
from letheon.ledger._core import Core
from letheon.ledger._tables import heads, models, versions
from letheon.rows import Ids, Rows, as_ids
from letheon.verifier import parse_strict

__all__ = [
    "Judged",
    "ModelRow",
    "Vault",
    "VersionRow",
    "find_model",
    "head_of",
    "model_of",
    "new_key_of",
    "proof_path",
    "read_ids",
    "read_judged",
    "read_model",
    "read_rows",
    "read_vault",
    "sealed_context",
    "version_of",
    "versions_of",
]


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
    """Slot and salt of every row, in held order."""

    slots: NDArray[np.int64]
    salts: NDArray[np.uint8]


class Judged(NamedTuple):
    """What a version is judged by: a packed monitor, or test rows and the last retrained figure."""

    monitor: bytes | None
    test: Rows | None
    then: float


def _model_row(row: Mapping[str, Any]) -> ModelRow:
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
    return _model_row(dict(row))


def model_of(conn: Connection, model_id: int) -> ModelRow:
    """Return the model with this key."""
    row = conn.execute(select(models).where(models.c.id == model_id)).mappings().one()
    return _model_row(dict(row))


def version_of(conn: Connection, version_id: int) -> VersionRow:
    """Return the version with this key."""
    row = conn.execute(select(versions).where(versions.c.id == version_id)).mappings().one()
    return _version_row(dict(row))


def versions_of(
    conn: Connection, model_id: int, *, after: int | None = None, newest: int | None = None
) -> list[VersionRow]:
    """Return versions of a model, oldest first.

    With `after` only those whose certificate has a higher number, with `newest` only so many.
    """
    query = select(versions).where(versions.c.model_id == model_id)
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


def sealed_context(model: ModelRow, what: str) -> bytes:
    """Return what a sealed blob is bound to: it cannot be taken for another one."""
    return f"letheon/{what}/v1/{model.folder}".encode()


def _unsealed(core: Core, model: ModelRow, version: VersionRow, what: str, address: str) -> bytes:
    sealed = core.blobs(model.folder).read(address)
    return core.keys.unseal(version.epoch_key, sealed, sealed_context(model, what))


def read_model(core: Core, model: ModelRow, version: VersionRow, *, trusted: Any = ()) -> Any:
    """Build the model of a version; its hash is checked first."""
    content = core.blobs(model.folder).read(version.model_blob)
    return state.decode(content, trusted=(*model.trusted, *trusted))


def read_rows(core: Core, model: ModelRow, version: VersionRow) -> Rows:
    """Return the rows of a version."""
    rows: Rows = state.decode(_unsealed(core, model, version, "rows", version.rows_blob))
    return rows


def read_ids(core: Core, model: ModelRow, version: VersionRow) -> Ids:
    """Return whose rows are in a version, one id per row."""
    return as_ids(state.decode(_unsealed(core, model, version, "ids", version.ids_blob)))


def read_vault(core: Core, model: ModelRow, version: VersionRow) -> Vault:
    """Return slot and salt of every row of a version."""
    return Vault(**state.decode(_unsealed(core, model, version, "vault", version.vault_blob)))


def read_judged(core: Core, model: ModelRow, version: VersionRow) -> Judged | None:
    """Return what the version is judged by, if anything."""
    if version.monitor_blob is None:
        return None
    return Judged(**state.decode(_unsealed(core, model, version, "monitor", version.monitor_blob)))


def proof_path(core: Core, model: ModelRow, digest: str) -> Path:
    """Return where the transition proof with this SHA-256 lies."""
    return core.place("proofs") / model.folder / f"{digest}.json"
