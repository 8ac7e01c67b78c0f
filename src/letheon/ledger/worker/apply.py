"""Application of requests: start a batch, compute it, and publish the new version.

If a process is killed at any point, the next worker finds either queued requests, an open batch
(which it computes again), or a published version (for which it issues the certificate). Blobs that
were written but not published are deleted, because nothing refers to them.
"""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Select, insert, select, update

from letheon import state
from letheon.exceptions import (
    CertificateError,
    RequestStateError,
    SignerRefusedError,
    StaleWorkerError,
)
from letheon.ledger.certificates.certify import check_certifiable, take_beacon
from letheon.ledger.core import Core, fault_point
from letheon.ledger.db.events import record_event
from letheon.ledger.leases import Lease, keep_renewed, require_fence
from letheon.ledger.models.commitment import SlotTree, build_tree, require_root, transition_between
from letheon.ledger.models.versions import (
    ModelRow,
    VersionRow,
    destroy_blobs,
    find_head,
    find_version,
    get_inserted_key,
    list_versions,
    proof_path,
    read_blob,
    read_judged,
    read_row_slots,
    write_blobs,
)
from letheon.ledger.requests.people import decrypt_ids, move_requests
from letheon.ledger.tables import batches, blocked, heads, meta, requests, versions
from letheon.ledger.worker.compute import FORGED, Computation, ComputationFailed, ComputationResult
from letheon.state import write_atomically
from letheon.verifier import canonical, parse_strict

Compute = Callable[[Computation], ComputationResult]


@dataclass(frozen=True)
class BatchRow:
    """The database row of a batch: requests that are applied together, or a retraining."""

    id: str
    model_id: int
    kind: Literal["erase", "retrain"]
    parent_id: int
    created_at: int
    reason: str
    training_key: str | None
    beacon: str | None


def _find_batch(conn: Connection, wanted: ColumnElement[bool]) -> BatchRow | None:
    columns = [batches.c[name] for name in BatchRow.__dataclass_fields__]
    row = conn.execute(select(*columns).where(wanted)).mappings().one_or_none()
    return None if row is None else BatchRow(**row)


def find_open_batch(conn: Connection, model_id: int) -> BatchRow | None:
    """Return the batch of a model that was started but not published; None if there is none."""
    return _find_batch(conn, (batches.c.model_id == model_id) & (batches.c.state == "open"))


def start_batch(
    core: Core,
    lease: Lease,
    model: ModelRow,
    kind: Literal["erase", "retrain"],
    request_ids: Sequence[str],
    reason: str,
) -> BatchRow:
    """Record a new batch and return it. This or another worker will then apply its requests."""
    key = core.keys.new_key("training", label=model.folder) if kind == "retrain" else None
    with core.database.transaction() as conn:
        require_fence(conn, lease)
        now, parent = core.clock(), find_head(conn, model.id).id
        batch = BatchRow(secrets.token_hex(32), model.id, kind, parent, now, reason, key, None)
        conn.execute(insert(batches).values(**vars(batch), state="open", fence=lease.fence))
        body: dict[str, Any] = {"batch": batch.id, "method": kind, "reason": reason}
        if key is not None:
            body["training"] = core.keys.commit_to(key)
        record_event(conn, "sealed", body | {"requests": len(request_ids)}, at=now)
        move_requests(conn, request_ids, "applying", at=now, batch_id=batch.id)
        if not set(conn.scalars(select_blocked_by_hold(model.id))).isdisjoint(request_ids):
            raise RequestStateError(
                "a request of the batch was put on hold while the batch was planned; a new "
                "batch will be planned"
            )
        fault_point("intent.before-commit")
    fault_point("intent.after-commit")
    return batch


def select_blocked_by_hold(model_id: int) -> Select[Any]:
    """Select the requests that share a person with a request on hold.

    A hold applies to its people, so all other requests for the same people wait too.
    """
    on_hold, other = blocked.alias("held"), blocked.alias("other")
    return (
        select(other.c.request_id)
        .join(on_hold, (on_hold.c.model_id == other.c.model_id) & (on_hold.c.tag == other.c.tag))
        .join(requests, requests.c.id == on_hold.c.request_id)
        # Filter by the model of the request: the query then starts with the requests on hold.
        .where(requests.c.model_id == model_id, requests.c.state == "on_hold")
    )


def apply_batch(
    core: Core, lease: Lease, model: ModelRow, batch: BatchRow, compute: Compute
) -> VersionRow:
    """Compute an open batch and publish the result.

    Raises
    ------
    ComputationFailed
        The unlearning method failed; the text is a code.
    StaleWorkerError
        Another worker took over; nothing was published.
    """
    with keep_renewed(core, lease):
        return _compute_and_publish(core, lease, model, _add_beacon(core, batch), compute)


def _compute_and_publish(
    core: Core, lease: Lease, model: ModelRow, batch: BatchRow, compute: Compute
) -> VersionRow:
    with core.database.reading() as conn:
        parent = find_version(conn, batch.parent_id)
        ids = decrypt_ids(core, conn, batch.id)
    content, vault = read_blob(core, model, parent, "rows"), read_row_slots(core, model, parent)
    tree = build_tree(state.decode(content, max_memory=state.UNLIMITED), vault, model.slots)
    require_root(tree, parent.root)
    inputs = _make_computation(
        core, model, parent, batch, content, [] if ids is None else ids.to_array()
    )
    result = compute(inputs)
    remaining = vault.take(result.kept)
    erased = np.setdiff1d(vault.slots, remaining.slots)
    proof, root = _prove_transition(core, model, parent, batch, tree, erased)
    with core.database.transaction() as conn:
        # A worker that took over may have purged people in these rows: write nothing then.
        require_fence(conn, lease)
    digest = hashlib.sha256(proof).hexdigest()
    path = proof_path(core, model, digest)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, [proof])
    parts = (result.model, result.rows, remaining, result.judged)
    blobs = write_blobs(core, model, *parts, nonce=inputs.nonce)
    fault_point("compute.written")
    run = parent.run | {"proof": digest, "seconds": f"{result.seconds:.6g}"}
    if batch.kind == "erase":
        run["rows_since_retrain"] += len(erased)
    else:
        run |= {
            "retrain_rows": len(result.rows),
            "retrain_seconds": run["seconds"],
            "rows_since_retrain": 0,
            "training": inputs.training,
        }
    values = blobs | {"root": root, "live": len(result.rows)}
    try:
        return _publish_version(core, lease, model, batch, parent, values, result.facts, run)
    except StaleWorkerError:
        destroy_blobs(core, model, blobs)
        raise
    except (CertificateError, SignerRefusedError) as error:
        destroy_blobs(core, model, blobs)
        raise ComputationFailed(FORGED) from error


def _make_computation(
    core: Core, model: ModelRow, parent: VersionRow, batch: BatchRow, rows: bytes, ids: Any
) -> Computation:
    training, seed = parent.run["training"], None
    if batch.training_key is not None and batch.beacon is not None:
        seed = core.keys.derive_seed(batch.training_key, bytes.fromhex(batch.beacon))
        training = {
            "rule": "hkdf-sha256-epoch-v1",
            "beacon": f"checkpoint:{batch.beacon}",
            "keyCommitment": core.keys.commit_to(batch.training_key),
            "key": batch.training_key,
        }
    seconds = parent.run["retrain_seconds"]
    return Computation(
        kind=batch.kind,
        model=read_blob(core, model, parent, "model"),
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


def _add_beacon(core: Core, batch: BatchRow) -> BatchRow:
    """Sign a checkpoint after the log has committed to the training key, and store its digest.

    The digest is the beacon of the batch: the seed of a retraining is derived from it. A batch
    without a training key, or with a beacon, is returned unchanged.
    """
    if batch.training_key is None or batch.beacon is not None:
        return batch
    fault_point("retrain.committed")
    beacon = take_beacon(core, core.keys.commit_to(batch.training_key))
    with core.database.transaction() as conn:
        mine = batches.c.id == batch.id
        conn.execute(update(batches).where(mine, batches.c.beacon.is_(None)).values(beacon=beacon))
        batch = _find_batch(conn, mine) or batch
    fault_point("retrain.beacon")
    return batch


def _prove_transition(
    core: Core,
    model: ModelRow,
    parent: VersionRow,
    batch: BatchRow,
    tree: SlotTree,
    erased: NDArray[np.int64],
) -> tuple[bytes, str]:
    """Return the proof that exactly these slots became empty, and the new root.

    The proof of an erasure starts from the previous version. The proof of a retraining starts from
    the last retraining and covers all rows erased since then. Their leaves are read from earlier
    proofs.
    """
    after, leaves = tree.without(erased), {}
    if batch.kind == "retrain":
        with core.database.reading() as conn:
            since = list_versions(conn, model.id, after=parent.run["last_retrain_sequence"])
        for version in since:
            proof = parse_strict(proof_path(core, model, version.run["proof"]).read_bytes())
            leaves.update({leaf["slot"]: bytes.fromhex(leaf["leaf"]) for leaf in proof["erased"]})
    leaves.update({int(slot): tree.leaf(int(slot)) for slot in erased})
    return transition_between(after, leaves), after.root.hex()


def _publish_version(
    core: Core,
    lease: Lease,
    model: ModelRow,
    batch: BatchRow,
    parent: VersionRow,
    values: dict[str, Any],
    facts: dict[str, Any],
    run: dict[str, Any],
) -> VersionRow:
    """Publish a version in one transaction and return its row.

    Raise `StaleWorkerError` if another worker took over the model.
    """
    with core.database.transaction() as conn:
        require_fence(conn, lease)
        now, sequence = core.clock(), last_sequence(conn) + 1
        conn.execute(update(meta).where(meta.c.key == "sequence").values(value=str(sequence)))
        if batch.kind == "retrain":
            run = run | {"last_retrain_sequence": sequence}
        row = insert(versions).values(
            model_id=model.id,
            number=parent.number + 1,
            parent_id=parent.id,
            batch_id=batch.id,
            sequence=sequence,
            facts=canonical({"certificate": facts, "run": run}).decode(),
            published_at=now,
            **values,
        )
        version_id = get_inserted_key(conn.execute(row))
        # The statement that moves the head also checks the fence and the parent.
        mine = (
            (heads.c.model_id == model.id)
            & (heads.c.version_id == parent.id)
            & (heads.c.fence == lease.fence)
        )
        n_moved = conn.execute(update(heads).where(mine).values(version_id=version_id)).rowcount
        is_open = (batches.c.id == batch.id) & (batches.c.state == "open")
        n_closed = conn.execute(update(batches).where(is_open).values(state="published")).rowcount
        if (n_moved, n_closed) != (1, 1):
            raise StaleWorkerError(
                "another worker took over this model; the result of this worker was not published"
            )
        request_query = select(requests.c.id).where(requests.c.batch_id == batch.id)
        move_requests(conn, list(conn.scalars(request_query)), "applied", at=now)
        body = {
            "batch": batch.id,
            "model": model.folder,
            "root": values["root"],
            "sequence": sequence,
            "subject": values["model_blob"],
        }
        record_event(conn, "published", body, at=now)
        version = find_version(conn, version_id)
        if model.is_outside:
            check_certifiable(core, conn, version)
        fault_point("publish.before-commit")
    fault_point("publish.after-commit")
    return version


def last_sequence(conn: Connection) -> int:
    """Return the last assigned certificate number and lock it until the transaction ends."""
    query = select(meta.c.value).where(meta.c.key == "sequence").with_for_update()
    return int(conn.execute(query).scalar_one())
