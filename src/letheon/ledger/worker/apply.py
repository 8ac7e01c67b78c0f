"""From queued requests to a published version: intent, computation, publication.

Whatever moment a process dies at, the next worker finds either no intent (the requests are still
queued), an open intent (it computes again), or a published version (it certifies). Blobs that were
written and never published are swept: nothing refers to them.
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sqlalchemy import Connection, insert, select, update

from letheon import state
from letheon.exceptions import (
    CertificateError,
    RequestStateError,
    SignerRefusedError,
    StaleWorkerError,
)
from letheon.ledger.certificates.certify import rehearse, take_beacon
from letheon.ledger.core import Core, point
from letheon.ledger.db.events import record
from letheon.ledger.leases import Lease, keep_renewed, require_fence
from letheon.ledger.models.commitment import require_root, tree_of
from letheon.ledger.models.register import Written, destroy_blobs, write_blobs
from letheon.ledger.models.slot_tree import SlotTree, transition_between
from letheon.ledger.models.versions import (
    ModelRow,
    VersionRow,
    content_of,
    head_of,
    new_key_of,
    proof_path,
    read_judged,
    read_vault,
    version_of,
    versions_of,
)
from letheon.ledger.requests.people import move, unsealed_ids
from letheon.ledger.tables import batches, heads, meta, requests, versions
from letheon.ledger.worker.compute import FORGED, ComputationFailed, Job, Product
from letheon.ledger.worker.plan import beside_a_hold
from letheon.state import write_atomically
from letheon.verifier import canonical, parse_strict

Compute = Callable[[Job], Product]


@dataclass(frozen=True)
class Batch:
    """Requests that are applied together, or a retrain."""

    id: str
    model_id: int
    kind: Literal["erase", "retrain"]
    parent_id: int
    created_at: int
    reason: str
    training_key: str | None
    beacon: str | None


def _batch(row: Any) -> Batch:
    names = Batch.__dataclass_fields__
    return Batch(**{name: value for name, value in row.items() if name in names})


def open_batch(conn: Connection, model_id: int) -> Batch | None:
    """Return the batch of a model whose intent is recorded and that is not published."""
    wanted = (batches.c.model_id == model_id) & (batches.c.state == "open")
    row = conn.execute(select(batches).where(wanted)).mappings().one_or_none()
    return None if row is None else _batch(row)


def seal(
    core: Core,
    lease: Lease,
    model: ModelRow,
    kind: Literal["erase", "retrain"],
    request_ids: list[str],
    reason: str,
) -> Batch:
    """Record the intent: from now on these requests are applied, whoever does it."""
    key = core.keys.new_key("training", label=model.folder) if kind == "retrain" else None
    with core.database.transaction() as conn:
        require_fence(conn, lease)
        now = core.clock()
        head = head_of(conn, lease.model_id)
        batch = Batch(secrets.token_hex(32), lease.model_id, kind, head.id, now, reason, key, None)
        conn.execute(insert(batches).values(**vars(batch), state="open", fence=lease.fence))
        body: dict[str, Any] = {"batch": batch.id, "method": kind, "reason": reason}
        if key is not None:
            body["training"] = core.keys.commitment(key)
        record(conn, "sealed", body | {"requests": len(request_ids)}, at=now)
        move(conn, request_ids, "applying", at=now, batch_id=batch.id)
        _refuse_held(conn, model, request_ids)
        point("intent.before-commit")
    point("intent.after-commit")
    return batch


def _refuse_held(conn: Connection, model: ModelRow, request_ids: list[str]) -> None:
    """Raise if the erasure of somebody was put on hold since the batch was planned."""
    beside = set(conn.scalars(beside_a_hold(model.id)))
    if not beside.isdisjoint(request_ids):
        raise RequestStateError("somebody's erasure was put on hold; the batch is planned again")


def apply(core: Core, lease: Lease, model: ModelRow, batch: Batch, compute: Compute) -> VersionRow:
    """Compute a sealed batch and publish it.

    Raises
    ------
    ComputationFailed
        The method could not do it.
    StaleWorkerError
        Another worker took over; nothing was published.
    """
    with keep_renewed(core, lease):
        return _apply(core, lease, model, _with_beacon(core, batch), compute)


def _apply(core: Core, lease: Lease, model: ModelRow, batch: Batch, compute: Compute) -> VersionRow:
    with core.database.reading() as conn:
        parent = version_of(conn, batch.parent_id)
        ids = unsealed_ids(core, conn, batch.id)
    content, vault = content_of(core, model, parent, "rows"), read_vault(core, model, parent)
    tree = tree_of(state.decode(content, max_memory=state.UNLIMITED), vault, model.slots)
    require_root(tree, parent.root)
    training = _training(core, batch, parent)
    people: Any = [] if ids is None else ids.to_array()
    product = compute(_job(core, model, parent, batch, content, people, training))
    after = vault.take(product.kept)
    erased = np.setdiff1d(vault.slots, after.slots)
    proof, root = _prove(core, model, parent, batch, tree, erased)
    with core.database.transaction() as conn:
        # Whoever took over may have purged people whom these rows still hold: write nothing.
        require_fence(conn, lease)
    digest = _write_proof(core, model, proof)
    written = write_blobs(core, model, product.model, product.rows, after, product.judged)
    point("compute.written")
    running = _running(parent, batch, product, digest, len(erased), training)
    try:
        return _publish(core, lease, model, batch, parent, product, written, root, running)
    except StaleWorkerError:
        destroy_blobs(core, model, written)
        raise
    except (CertificateError, SignerRefusedError) as error:
        destroy_blobs(core, model, written)
        raise ComputationFailed(FORGED) from error


def _job(
    core: Core,
    model: ModelRow,
    parent: VersionRow,
    batch: Batch,
    rows: bytes,
    ids: Any,
    training: dict[str, str],
) -> Job:
    seconds = parent.run["retrain_seconds"]
    seed = None
    if batch.training_key is not None and batch.beacon is not None:
        seed = core.keys.derive_seed(batch.training_key, bytes.fromhex(batch.beacon))
    return Job(
        kind=batch.kind,
        model=content_of(core, model, parent, "model"),
        rows=rows,
        ids=ids,
        trusted=model.trusted,
        judged=read_judged(core, model, parent),
        training=training,
        since_retrain=parent.run["rows_since_retrain"],
        retrain_seconds_per_row=float(seconds) / parent.run["retrain_rows"] if seconds else None,
        seed=seed,
        image=core.settings.image,
        settle=core.settings.policy.settle,
        is_outside=model.is_outside,
        n_rows=parent.live,
    )


def _with_beacon(core: Core, batch: Batch) -> Batch:
    """Take a checkpoint after the training key was committed to; its digest is the beacon."""
    if batch.kind != "retrain" or batch.beacon is not None:
        return batch
    point("retrain.committed")
    assert batch.training_key is not None
    beacon = take_beacon(core, core.keys.commitment(batch.training_key))
    with core.database.transaction() as conn:
        unset = (batches.c.id == batch.id) & batches.c.beacon.is_(None)
        conn.execute(update(batches).where(unset).values(beacon=beacon))
        row = conn.execute(select(batches).where(batches.c.id == batch.id)).mappings().one()
    point("retrain.beacon")
    return _batch(row)


def _training(core: Core, batch: Batch, parent: VersionRow) -> dict[str, str]:
    if batch.training_key is None:
        found: dict[str, str] = parent.run["training"]
        return found
    return {
        "rule": "hkdf-sha256-epoch-v1",
        "beacon": f"checkpoint:{batch.beacon}",
        "keyCommitment": core.keys.commitment(batch.training_key),
        "key": batch.training_key,
    }


def _prove(
    core: Core,
    model: ModelRow,
    parent: VersionRow,
    batch: Batch,
    tree: SlotTree,
    erased: np.ndarray[Any, Any],
) -> tuple[bytes, str]:
    """Return the proof of the data transition and the root after it.

    An erasure starts from the version before. A retrain starts from the last one: everything that
    was erased since then leaves the model now.
    """
    if batch.kind == "erase":
        proof, after = tree.transition(erased)
        return proof, after.root.hex()
    after = tree.without(erased)
    old = _leaves_erased(core, model, parent)
    old.update({int(slot): tree.leaf(int(slot)) for slot in erased})
    return transition_between(after, old), after.root.hex()


def _leaves_erased(core: Core, model: ModelRow, parent: VersionRow) -> dict[int, bytes]:
    """Return slot and leaf of every row erased since the last retrain, from the proofs of it."""
    with core.database.reading() as conn:
        since = versions_of(conn, model.id, after=parent.run["last_retrain_sequence"])
    found: dict[int, bytes] = {}
    for digest in [version.run["proof"] for version in since]:
        content = parse_strict(proof_path(core, model, digest).read_bytes())
        found.update({leaf["slot"]: bytes.fromhex(leaf["leaf"]) for leaf in content["erased"]})
    return found


def _write_proof(core: Core, model: ModelRow, proof: bytes) -> str:
    digest = hashlib.sha256(proof).hexdigest()
    path = proof_path(core, model, digest)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, [proof])
    return digest


def _running(
    parent: VersionRow,
    batch: Batch,
    product: Product,
    proof: str,
    n_erased: int,
    training: dict[str, str],
) -> dict[str, Any]:
    run = parent.run
    if batch.kind == "erase":
        return run | {
            "proof": proof,
            "rows_since_retrain": run["rows_since_retrain"] + n_erased,
            "seconds": f"{product.seconds:.6g}",
        }
    return run | {
        "proof": proof,
        "retrain_rows": len(product.rows),
        "retrain_seconds": f"{product.retrain_seconds:.6g}",
        "rows_since_retrain": 0,
        "seconds": f"{product.seconds:.6g}",
        "training": training,
    }


def _publish(
    core: Core,
    lease: Lease,
    model: ModelRow,
    batch: Batch,
    parent: VersionRow,
    product: Product,
    written: Written,
    root: str,
    running: dict[str, Any],
) -> VersionRow:
    """Move the head in one transaction, or raise `StaleWorkerError`."""
    with core.database.transaction() as conn:
        require_fence(conn, lease)
        now, sequence = core.clock(), _next_sequence(conn)
        if batch.kind == "retrain":
            running = running | {"last_retrain_sequence": sequence}
        facts = canonical({"certificate": product.facts, "run": running}).decode()
        values = insert(versions).values(
            model_id=model.id,
            number=parent.number + 1,
            parent_id=parent.id,
            batch_id=batch.id,
            sequence=sequence,
            root=root,
            live=len(product.rows),
            facts=facts,
            published_at=now,
            **vars(written),
        )
        version_id = new_key_of(conn.execute(values))
        # The fence and the parent decide, in the very statement that moves the head.
        mine = (
            (heads.c.model_id == model.id)
            & (heads.c.version_id == parent.id)
            & (heads.c.fence == lease.fence)
        )
        moved = conn.execute(update(heads).where(mine).values(version_id=version_id)).rowcount
        still_open = (batches.c.id == batch.id) & (batches.c.state == "open")
        closed = conn.execute(update(batches).where(still_open).values(state="published")).rowcount
        if (moved, closed) != (1, 1):
            raise StaleWorkerError(
                "another worker took this model over; what this one computed was not published"
            )
        applied = select(requests.c.id).where(requests.c.batch_id == batch.id)
        move(conn, list(conn.scalars(applied)), "applied", at=now)
        body = {
            "batch": batch.id,
            "model": model.folder,
            "root": root,
            "sequence": sequence,
            "subject": written.model_blob,
        }
        record(conn, "published", body, at=now)
        version = version_of(conn, version_id)
        if model.is_outside:
            rehearse(core, conn, model, batch.kind, version)
        point("publish.before-commit")
    point("publish.after-commit")
    return version


def last_sequence(conn: Connection) -> int:
    """Return the last number given out in the chain of certificates, locked until the commit."""
    query = select(meta.c.value).where(meta.c.key == "sequence").with_for_update()
    return int(conn.execute(query).scalar_one())


def _next_sequence(conn: Connection) -> int:
    """Give out the next number in the chain of certificates."""
    following = last_sequence(conn) + 1
    conn.execute(update(meta).where(meta.c.key == "sequence").values(value=str(following)))
    return following
