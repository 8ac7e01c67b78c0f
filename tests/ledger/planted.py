"""Bugs that the arena must find: planted in the forked processes of the ledger, by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import select, text

from letheon.ledger.db.database import Database
from letheon.ledger.keys.keyring import KeyRing
from letheon.ledger.models.versions import find_head, locate_signed_file
from letheon.ledger.purge import purge
from letheon.ledger.tables import heads
from letheon.ledger.worker import apply, worker
from letheon.verifier import canonical

applying: Any = apply


def swap(owner: Any, **values: Any) -> None:
    """Put other functions in the place of a module's or a class's."""
    for name, value in values.items():
        setattr(owner, name, value)


def plant(name: str | None) -> None:
    """Put a bug into this process; None for none."""
    if name is not None:
        BUGS[name].plant()


def _without_fence() -> None:
    """A worker publishes although another worker took over and deleted its files."""
    publish = applying._publish_version

    def publish_anyway(core: Any, lease: Any, *rest: Any) -> Any:
        with core.database.reading() as conn:
            query = select(heads.c.fence).where(heads.c.model_id == lease.model_id)
            newest = conn.execute(query).scalar_one()
        return publish(core, replace(lease, fence=newest), *rest)

    swap(applying, require_fence=lambda *_: None, _publish_version=publish_anyway)


def _status_apart() -> None:
    """The requests move on in a transaction of their own, after the head has moved."""
    publish, move_requests = applying._publish_version, applying.move_requests
    waiting: list[Any] = []

    def move_later(conn: Any, ids: Any, after: str, **columns: Any) -> None:
        if after == "applied":
            waiting.append((ids, columns))
        else:
            move_requests(conn, ids, after, **columns)

    def publish_first(core: Any, *rest: Any) -> Any:
        version = publish(core, *rest)
        with core.database.transaction() as conn:
            for ids, columns in waiting:
                move_requests(conn, ids, "applied", **columns)
        return version

    swap(applying, move_requests=move_later, _publish_version=publish_first)


def _in_place() -> None:
    """The new model is written over the file of the one that is served."""
    write = applying.write_blobs

    def overwrite(core: Any, model: Any, content: bytes, *rest: Any, **more: Any) -> Any:
        with core.database.reading() as conn:
            served = core.blob_store(model.folder).path_of(find_head(conn, model.id).model_blob)
        served.write_bytes(served.read_bytes()[:32] + content)
        return write(core, model, content, *rest, **more)

    swap(applying, write_blobs=overwrite)


def _certificate_first() -> None:
    """The certificate is signed before the version is published."""
    publish = applying._publish_version

    def publish_late(core: Any, *rest: Any) -> Any:
        values = rest[4]
        with core.database.reading() as conn:
            row = conn.execute(text("SELECT value FROM meta WHERE key = 'sequence'"))
            path = locate_signed_file(core, "certificates", int(row.scalar_one()) + 1)
        path.write_bytes(canonical({"subject": values["model_blob"]}))
        return publish(core, *rest)

    swap(applying, _publish_version=publish_late)


def _never_swept() -> None:
    """What a killed worker left stays."""
    for module in (worker, purge):
        swap(module, sweep_model=lambda *_: 0)


def _acknowledged_early() -> None:
    """A request is acknowledged although its transaction is not committed."""

    def run(self: Database, work: Callable[[Any], Any]) -> Any:
        with self.engine.connect() as connection:
            return work(connection)

    swap(Database, run_transaction=run)


def _keys_kept() -> None:
    """Keys are said to be destroyed, and are not."""
    swap(KeyRing, destroy=lambda self, key_id: None)


class Bug(NamedTuple):
    """A bug, the round that shows it, and what the check says then."""

    plant: Callable[[], None]
    kind: str
    point: str
    says: str


BUGS = {
    "no fence": Bug(_without_fence, "stop", "compute.written", "is missing in"),
    "status apart": Bug(_status_apart, "kill", "publish.after-commit", "stays applying"),
    "in place": Bug(_in_place, "kill", "compute.written", "was altered"),
    "certificate first": Bug(
        _certificate_first, "kill", "publish.before-commit", "newer than its database"
    ),
    "never swept": Bug(_never_swept, "kill", "blob.after-rename", "should be gone"),
    "acknowledged early": Bug(_acknowledged_early, "kill", "submit.before-commit", "is lost"),
    "keys kept": Bug(_keys_kept, "kill", "certify.signed", "epoch keys"),
}
