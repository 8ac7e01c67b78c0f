"""Registering a model: its rows are committed to, its files are written, the log says so."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from letheon import state
from letheon.data import Rows
from letheon.exceptions import BlockedIdsError, LedgerError, OldDatabaseError
from letheon.guarantee import RELEASES
from letheon.ledger.certificates.certify import take_beacon
from letheon.ledger.certificates.claims import weaker_releases
from letheon.ledger.core import Core, point
from letheon.ledger.db.events import advance_mark, record, require_agreement, require_own_log
from letheon.ledger.keys.blobs import destroy_file
from letheon.ledger.keys.keyring import commitment
from letheon.ledger.models.commitment import new_vault, ordered_codes, tree_of
from letheon.ledger.models.examine import (
    Examined,
    examine_model,
    fresh_fit,
    held_rows,
    judge,
    require_kind,
    stranger_ids,
)
from letheon.ledger.models.slot_tree import slots_for
from letheon.ledger.models.versions import Judged, ModelRow, Vault, new_key_of, sealer
from letheon.ledger.requests.people import person_tags
from letheon.ledger.schemas import require_name
from letheon.ledger.tables import blocked, heads, meta, models, versions
from letheon.verifier import canonical

_LOCK = ".lock"
# What a certificate quotes when the data went into the model as they are.
_NO_PREPROCESSING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@dataclass(frozen=True, kw_only=True)
class Registration:
    """How a model is entered: see `Ledger.models.register`.

    `origin` is "own" for a model that the operator brought as an object or with classes of his
    own, and "outside" for one that came as a file: that one is computed in a sandbox only.
    """

    name: str
    tenant: str = "default"
    dataset: str | None = None
    preprocessing: str | None = None
    releases: str | None = None
    trusted: tuple[str, ...] = ()
    origin: Literal["own", "outside"] = "own"


@dataclass(frozen=True)
class Written:
    """Addresses of the blobs of one version, and the key that three of them are sealed with."""

    model_blob: str
    rows_blob: str
    ids_blob: str
    vault_blob: str
    monitor_blob: str | None
    epoch_key: str


def register(
    core: Core,
    examined: Examined,
    rows: Rows,
    registration: Registration,
    *,
    judged: Judged | None,
    training: dict[str, str],
    folder: str,
) -> int:
    """Register a model that was looked over, with its rows; return its key in the database.

    Raises
    ------
    BlockedIdsError
        Some of the rows belong to people who asked to be erased.
    LedgerError
        The name is taken.
    """
    dataset = registration.dataset or registration.name
    for what, text in (
        ("name", registration.name),
        ("tenant", registration.tenant),
        ("dataset", dataset),
    ):
        require_name(what, text)
    row = ModelRow(
        id=0,
        tenant=registration.tenant,
        name=registration.name,
        folder=folder,
        dataset=dataset,
        method=examined.method,
        slots=slots_for(len(rows)),
        preprocessing=registration.preprocessing or _NO_PREPROCESSING,
        releases=_releases(registration.releases, examined.releases),
        created_at=core.clock(),
        trusted=registration.trusted,
        origin=registration.origin,
    )
    vault = new_vault(len(rows), row.slots, ordered_codes(rows))
    root = tree_of(rows, vault, row.slots).root.hex()
    written = write_blobs(core, row, examined.content, rows, vault, judged)
    point("register.blobs-written")
    seconds = examined.retrain_seconds
    running = {
        "last_retrain_sequence": 0,
        "retrain_seconds": "" if seconds is None else f"{seconds:.6g}",
        "retrain_rows": len(rows),
        "rows_since_retrain": 0,
        "seconds": "0",
        "training": training,
    }
    return _insert(core, row, written, root, rows, running)


def _releases(wanted: str | None, permitted: str) -> str:
    """Return what is released of the model: a weaker claim than the method's, or the same."""
    if wanted is None:
        return permitted
    if wanted not in RELEASES:
        raise ValueError(f"releases={wanted!r} is not one of {RELEASES}")
    return weaker_releases(permitted, wanted)


def write_blobs(
    core: Core,
    model: ModelRow,
    content: bytes,
    rows: Rows,
    vault: Vault,
    judged: Judged | None,
) -> Written:
    """Write the blobs of a version: all are on the disk when this returns."""
    blobs = core.blobs(model.folder)
    key = core.keys.new_key("epoch", label=model.folder)
    point("compute.key-written")

    def put(what: str, content: bytes) -> str:
        return blobs.put(content, sealer(core, model, key, what))

    try:
        return Written(
            model_blob=put("model", content),
            rows_blob=put("rows", state.encode(rows)),
            ids_blob=put("ids", state.encode(rows.ids.to_array())),
            vault_blob=put("vault", state.encode(vault._asdict())),
            monitor_blob=None if judged is None else put("monitor", state.encode(judged._asdict())),
            epoch_key=key,
        )
    except BaseException:
        # What was written is unreadable without it, and is swept by the next worker.
        core.keys.destroy(key)
        raise


def destroy_blobs(core: Core, model: ModelRow, written: Written) -> None:
    """Destroy the blobs of a version that was not published, and their key."""
    core.keys.destroy(written.epoch_key)
    blobs = core.blobs(model.folder)
    for address in (written.model_blob, written.rows_blob, written.ids_blob, written.vault_blob):
        blobs.destroy(address)
    if written.monitor_blob is not None:
        blobs.destroy(written.monitor_blob)


def _insert(
    core: Core, row: ModelRow, written: Written, root: str, rows: Rows, running: dict[str, Any]
) -> int:
    facts = canonical({"certificate": None, "run": running}).decode()
    tags = frozenset(person_tags(core, row.tenant, rows.ids.distinct()))
    try:
        with core.database.transaction() as conn:
            _hold_registrations(conn)
            _refuse_blocked(conn, row.tenant, tags)
            values = {name: value for name, value in vars(row).items() if name != "id"}
            values["trusted"] = ",".join(row.trusted)
            model_id = new_key_of(conn.execute(insert(models).values(**values)))
            version = insert(versions).values(
                model_id=model_id,
                number=0,
                root=root,
                live=len(rows),
                facts=facts,
                published_at=row.created_at,
                **vars(written),
            )
            version_id = new_key_of(conn.execute(version))
            conn.execute(
                insert(heads).values(
                    model_id=model_id, version_id=version_id, fence=0, owner=None, lease_until=0
                )
            )
            body = {
                "model": row.folder,
                "subject": written.model_blob,
                "root": root,
                "slots": row.slots,
                "live": len(rows),
                "training": running["training"]["keyCommitment"],
                "beacon": running["training"]["beacon"],
            }
            record(conn, "registered", body, at=row.created_at)
            point("register.before-commit")
    except IntegrityError as error:
        raise LedgerError(
            f"a model {row.name!r} is registered for tenant {row.tenant!r} already; choose another "
            "name"
        ) from error
    point("register.after-commit")
    return model_id


def _hold_registrations(conn: Connection) -> None:
    """Let one registration, or one sweep of what is left of them, go on at a time.

    A commit that was sent is visible to whoever holds this lock next, even if its sender died. On
    PostgreSQL people who ask meanwhile wait too; SQLite has one writer anyway.
    """
    conn.execute(select(meta.c.value).where(meta.c.key == "ledger_id").with_for_update())
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql("LOCK TABLE blocked IN SHARE MODE")


def _refuse_blocked(conn: Connection, tenant: str, tags: frozenset[str]) -> None:
    """Raise if rows belong to people who asked this tenant to be erased."""
    query = select(blocked.c.tag).where(blocked.c.tenant == tenant).distinct()
    n_blocked = sum(tag in tags for tag in conn.scalars(query))
    if n_blocked:
        raise BlockedIdsError(
            f"{n_blocked} of these people asked to be erased; their rows are not trained on again. "
            "`ledger.models.without_blocked(X, y, ids)` leaves them out."
        )


@contextmanager
def new_folder(core: Core) -> Iterator[str]:
    """Make the folder of a model, locked until its registration is over; give its key.

    A folder that no model names and nobody locks is what a failed registration left; it is
    destroyed with its keys, here after an error and by the next worker after a kill.
    """
    require_agreement(core)
    folder, descriptor = _locked_folder(core)
    try:
        yield folder.name
        advance_mark(core)
    finally:
        os.close(descriptor)
        _sweep_if_orphan(core, folder)


def _locked_folder(core: Core) -> tuple[Path, int]:
    while True:
        folder = core.blobs(secrets.token_hex(16)).folder
        folder.mkdir(mode=0o700, parents=True)
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue  # swept before it had a lock
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if (folder / _LOCK).exists():
            return folder, descriptor
        os.close(descriptor)  # swept before it was locked


def sweep_registrations(core: Core) -> int:
    """Destroy what killed or failed registrations left; return how many there were."""
    with core.database.reading() as conn:
        found = unregistered_folders(core, conn)
    return sum(_sweep_if_orphan(core, folder) for folder in found)


def unregistered_folders(core: Core, conn: Connection) -> list[Path]:
    """Return the folders of blobs that no model of the database names."""
    home = core.place("blobs")
    known = set(conn.scalars(select(models.c.folder)))
    found = sorted(home.iterdir()) if home.is_dir() else []
    return [folder for folder in found if folder.name not in known]


def _sweep_if_orphan(core: Core, folder: Path) -> bool:
    """Destroy a folder that no model names, with its keys.

    False if a process is at work in it, or if the database may have lost the model.
    """
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with core.database.transaction() as conn:
            _hold_registrations(conn)
            if _is_registered(conn, folder.name):
                return False
            require_own_log(conn)
            _destroy_folder(core, folder)
    except (BlockingIOError, OldDatabaseError):
        return False
    finally:
        os.close(descriptor)
    return True


def _destroy_folder(core: Core, folder: Path) -> None:
    for kind in ("epoch", "training"):
        for key in core.keys.ids(kind, label=folder.name):
            core.keys.destroy(key)
    for path in sorted(folder.iterdir()):
        destroy_file(path)
    folder.rmdir()


def _is_registered(conn: Connection, folder: str) -> bool:
    return conn.scalar(select(models.c.id).where(models.c.folder == folder)) is not None


def judged_by(model: Any, test: tuple[Any, ...] | None, monitor: Any) -> Judged | None:
    """Return what versions of a model are judged by, with the figure of this one."""
    if monitor is not None:
        from letheon.ledger.models.monitoring import pack

        if test is not None:
            raise ValueError("a monitor has test rows of its own; give test or monitor, not both")
        if monitor.model is not model:
            raise ValueError("this monitor watches another model; register monitor.model")
        return Judged(pack(monitor), None, 0.0)
    if test is None:
        return None
    if not isinstance(test, tuple) or len(test) not in (2, 3):
        raise ValueError("test must be (X, y) or (X, y, ids)")
    ids = test[2] if len(test) == 3 else stranger_ids(len(test[1]))
    return judge(model, held_rows(test[0], test[1], ids))


def register_fitted(
    core: Core, examined: Examined, rows: Rows, registration: Registration, *, judged: Judged | None
) -> int:
    """Register a model whose seed the caller chose; certificates say so."""
    # A seed may be as short as "0": what commits to it must not be a way to guess it.
    training = {
        "rule": "caller-seed-v1",
        "beacon": "none",
        "keyCommitment": commitment(secrets.token_bytes(32) + examined.seed.encode()),
        "key": "",
    }
    with new_folder(core) as folder:
        return register(
            core, examined, rows, registration, judged=judged, training=training, folder=folder
        )


def register_trained(
    core: Core,
    estimator: Any,
    rows: Rows,
    registration: Registration,
    *,
    test: tuple[Any, ...] | None,
) -> int:
    """Commit to a key, take a checkpoint, train with the seed that both give, and register."""
    require_kind(estimator)
    with new_folder(core) as folder:
        key = core.keys.new_key("training", label=folder)
        with core.database.transaction() as conn:
            body = {"model": folder, "training": core.keys.commitment(key)}
            record(conn, "training", body, at=core.clock())
        beacon = take_beacon(core, core.keys.commitment(key))
        seed = core.keys.derive_seed(key, bytes.fromhex(beacon))
        model = fresh_fit(estimator, rows, seed=seed).model
        training = {
            "rule": "hkdf-sha256-epoch-v1",
            "beacon": f"checkpoint:{beacon}",
            "keyCommitment": core.keys.commitment(key),
            "key": key,
        }
        return register(
            core,
            examine_model(model, rows, registration.trusted),
            rows,
            registration,
            judged=judged_by(model, test, None),
            training=training,
            folder=folder,
        )


def class_names(trusted: Any) -> tuple[str, ...]:
    """Return the qualified names of classes that the model may use."""
    if isinstance(trusted, str) or callable(trusted):
        raise TypeError(f"trusted={trusted!r} is a single value; give a list: trusted=[...]")
    return tuple(item if isinstance(item, str) else state.tag_of(item) for item in trusted)
