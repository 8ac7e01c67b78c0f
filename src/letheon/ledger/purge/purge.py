"""The purge of a batch: destroy the remaining data of erased people and search for residue.

When the certificate is issued, the old version still exists: its model, its rows and salts, and the
bodies of the requests. A purge destroys them in steps. Each step can be repeated, and its
completion is recorded in the database, so that another process can continue after a crash.
Encrypted data is erased by destroying its key. A search then looks for copies and leftover files,
and finds out whether a step was skipped. At the end, the purge attestation is signed.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, delete, exists, func, insert, select, update

from letheon.exceptions import (
    CorruptFileError,
    KeyFileError,
    LedgerBusyError,
    LedgerMissingError,
    SignerRefusedError,
    StaleWorkerError,
)
from letheon.ledger.core import Core, destroy_file, fault_point
from letheon.ledger.db.events import (
    TOLERATED_SECONDS,
    advance_mark,
    record_event,
    require_agreement,
)
from letheon.ledger.keys.signing import sign_statement
from letheon.ledger.leases import owner_name, release_lease, take_lease
from letheon.ledger.models.versions import (
    DRAINED,
    ModelRow,
    VersionRow,
    count_pins,
    find_head,
    find_model_by_id,
    find_version,
    locate_signed_file,
    read_ids,
    read_row_slots,
    read_rows,
)
from letheon.ledger.purge.scan import FileIssue, Markers, ScanResult, collect_markers
from letheon.ledger.purge.stores import (
    SERVICE_FOLDERS,
    build_attestation,
    expires_on,
    is_in_use,
    list_stores,
    search_home,
    search_store,
)
from letheon.ledger.purge.vocabulary import find_own_words
from letheon.ledger.requests.people import decrypt_ids, move_requests, rotate_intake_key
from letheon.ledger.requests.states import NOT_FULLY_SEARCHED
from letheon.ledger.tables import batches, purge_steps, purges, requests, versions
from letheon.ledger.worker.policy import backoff_seconds
from letheon.ledger.worker.recover import lock_purges, sweep_model, sweep_partials
from letheon.state import write_atomically
from letheon.verifier import canonical, certificate_id, parse_strict, search_gaps

_DONE, _FAILED = "done", "failed"
_RESIDUE = "residue-found"
_SEARCHES = 3

_SERVICE_PAUSE = 30


class PurgeProblem(NamedTuple):
    """A file that blocks a purge: residue was found in it, or it could not be read."""

    batch: str
    where: FileIssue

    def __str__(self) -> str:
        store, file, reason = self.where
        return (
            f"batch {self.batch[:12]}: {reason} in store {store!r}, file {file!r}; "
            "remove it, then the purge continues"
        )


@dataclass(frozen=True)
class PurgeRun:
    """The purge of a batch that made version `after` and must destroy version `before`."""

    core: Core
    batch: str
    model: ModelRow
    before: VersionRow
    after: VersionRow

    @property
    def label(self) -> str:
        """Label of the key that encrypts the markers that this purge searches for."""
        return self.batch[:16]

    @property
    def markers_file(self) -> Path:
        """File with the encrypted markers, so that another process can continue the purge."""
        return self.core.subfolder("purges") / f".{self.batch}.markers"

    @property
    def problems_file(self) -> Path:
        """File with the findings of the last search. The database contains no file names."""
        return self.core.subfolder("purges") / f".{self.batch}.problems"


Evidence = dict[str, Any]
Work = Callable[[PurgeRun], Evidence | None]


def purge_next(core: Core, batch_id: str) -> bool:
    """Continue the purge of a batch with a certificate; return whether the purge is finished.

    A purge waits while a reader uses the old version, while another worker purges, or while a store
    contains residue. `list_problems` returns the files that block it, and the purge is retried
    later. After ``policy.max_tries`` attempts the requests are stuck until an operator acts.
    Residue in a temporary folder that the service is using does not count as an attempt.

    Guarantee
    ---------
    A request becomes purged only if a search found no id, salt or row of its people in any file of
    the ledger's folder and of the registered stores. The attestation counts files that cannot be
    searched, and does not claim that their store is purged. If the process is killed at any point,
    a later call continues the purge.
    """
    with lock_purges(core) as is_locked:
        if not is_locked:
            return False
        require_agreement(core)
        purge = _load_purge(core, batch_id)
        if purge is None:
            return False
        with core.database.reading() as conn:
            mine = (purge_steps.c.batch_id == batch_id) & (purge_steps.c.state == _DONE)
            done = set(conn.scalars(select(purge_steps.c.step).where(mine)))
        for name, work in STEPS:
            if name not in done and not _run_step(purge, name, work):
                return False
        _sign_and_close(purge)
        advance_mark(core)
    return True


def _load_purge(core: Core, batch_id: str) -> PurgeRun | None:
    """Return the purge of a batch if it can continue now; None otherwise."""
    with core.database.reading() as conn:
        batch = conn.execute(select(batches).where(batches.c.id == batch_id)).one()
        if batch.state != "certified" or _must_wait(core, conn, batch_id):
            return None
        made = conn.execute(select(versions.c.id).where(versions.c.batch_id == batch_id))
        after, before = (find_version(conn, made.scalar_one()), find_version(conn, batch.parent_id))
        # An older version contains the people of this batch too; it is purged first.
        older = (versions.c.model_id == batch.model_id) & (versions.c.number < before.number)
        if conn.scalar(select(exists().where(older & versions.c.purged_at.is_(None)))):
            return None
        return PurgeRun(core, batch_id, find_model_by_id(conn, batch.model_id), before, after)


def _must_wait(core: Core, conn: Connection, batch_id: str) -> bool:
    """Return whether an operator must act first, or the pause after a failure is not over."""
    states = set(conn.scalars(select(requests.c.state).where(requests.c.batch_id == batch_id)))
    if states == {"stuck"}:
        return True
    is_failed = (purge_steps.c.batch_id == batch_id) & (purge_steps.c.state == _FAILED)
    evidence = conn.scalars(select(purge_steps.c.evidence).where(is_failed)).all()
    now, policy = core.clock(), core.settings.policy
    # A longer pause was set while the clock was ahead; ignore it.
    longest = max(policy.backoff_longest.total_seconds(), _SERVICE_PAUSE) + TOLERATED_SECONDS
    return any(now < json.loads(text)["not_before"] <= now + longest for text in evidence)


def _read_step(conn: Connection, batch_id: str, name: str) -> Any:
    key = (purge_steps.c.batch_id == batch_id) & (purge_steps.c.step == name)
    return conn.execute(select(purge_steps).where(key)).one_or_none()


def _run_step(purge: PurgeRun, name: str, work: Work) -> bool:
    """Run one step and record its completion; return False if the step has to wait."""
    evidence = work(purge)
    if evidence is None:
        return False
    with purge.core.database.transaction() as conn:
        if name in _IN_TRANSACTION and not _IN_TRANSACTION[name](conn, purge):
            return False
        _record_step(conn, purge, name, _DONE, evidence)
    if name == "started":
        # Before anything is destroyed: a database without this purge must count as too old.
        advance_mark(purge.core)
    if name in _POINTS:
        fault_point(_POINTS[name])
    return True


def _record_step(
    conn: Connection, purge: PurgeRun, name: str, state: str, evidence: Evidence
) -> None:
    key = (purge_steps.c.batch_id == purge.batch) & (purge_steps.c.step == name)
    conn.execute(delete(purge_steps).where(key))
    values = {"batch_id": purge.batch, "step": name, "state": state, "at": purge.core.clock()}
    conn.execute(insert(purge_steps).values(values | {"evidence": canonical(evidence).decode()}))


def _save_markers(purge: PurgeRun) -> Evidence:
    """Save the encrypted markers of the erased rows before their version is destroyed."""
    core = purge.core
    for key in core.keys.list_ids("purge", label=purge.label):
        core.keys.destroy(key)
    n_salts, is_whole = purge.before.live - purge.after.live, True
    try:
        markers = _collect_markers(purge)
    except (CorruptFileError, LedgerMissingError, KeyFileError):
        # A damaged version must still be destroyed.
        markers, is_whole = _collect_ids(purge), False
    key = core.keys.new_key("purge", label=purge.label)
    sealed = core.keys.encrypt(key, markers.to_bytes(), _marker_context(purge))
    write_atomically(purge.markers_file, [sealed])
    return {
        "key": key,
        "markers": len(markers),
        "salts": n_salts,
        "whole": is_whole,
        "weak": markers.n_weak,
    }


def _move_requests(conn: Connection, purge: PurgeRun) -> bool:
    is_certified = (requests.c.batch_id == purge.batch) & (requests.c.state == "certified")
    request_ids = list(conn.scalars(select(requests.c.id).where(is_certified)))
    move_requests(conn, request_ids, "purging", at=purge.core.clock())
    return True


def _marker_context(purge: PurgeRun) -> bytes:
    return f"letheon/purge-markers/v1/{purge.batch}".encode()


def _collect_markers(purge: PurgeRun) -> Markers:
    """Return the markers of the rows that this batch erased."""
    core, model = purge.core, purge.model
    rows, vault = read_rows(core, model, purge.before), read_row_slots(core, model, purge.before)
    remaining = read_rows(core, model, purge.after)
    after_vault = read_row_slots(core, model, purge.after)
    erased = np.flatnonzero(~np.isin(vault.slots, after_vault.slots))
    return collect_markers(rows.take(erased), vault.salts[erased], remaining)


def _collect_ids(purge: PurgeRun) -> Markers:
    """Return the markers of the ids in the requests; used if the rows cannot be read."""
    try:
        with purge.core.database.reading() as conn:
            ids = decrypt_ids(purge.core, conn, purge.batch)
    except (CorruptFileError, KeyFileError):
        ids = None
    return Markers.from_values(ids=[] if ids is None else ids.to_list())


def _wait_for_readers(purge: PurgeRun) -> Evidence:
    """Return the evidence of this step; `_is_drained` decides whether it has to wait."""
    return {"version": purge.before.number}


def _is_drained(conn: Connection, purge: PurgeRun) -> bool:
    """Return whether no reader has pinned the old version. Later pins are rejected."""
    return count_pins(purge.core, conn, purge.before.id) == 0


def _destroy_blobs(purge: PurgeRun) -> Evidence:
    blobs = purge.core.blob_store(purge.model.folder)
    for number, address in enumerate(purge.before.blobs):
        blobs.destroy(address)
        if number == 0:
            fault_point("purge.blobs-half")
    return {"blobs": list(purge.before.blobs)}


def _destroy_key(purge: PurgeRun) -> Evidence:
    purge.core.keys.destroy(purge.before.epoch_key)
    return {"key": purge.before.epoch_key}


def _mark_purged(conn: Connection, purge: PurgeRun) -> bool:
    change = update(versions).where(versions.c.id == purge.before.id)
    conn.execute(change.values(purged_at=purge.core.clock()))
    return True


def _drop_request_bodies(purge: PurgeRun) -> Evidence:
    """Delete the bodies of this batch's requests and destroy their encryption key."""
    rotate_intake_key(purge.core, purge.batch)
    return {"requests": "dropped"}


def _destroy_training_key(purge: PurgeRun) -> Evidence:
    """Destroy the training key of the old version, unless a later version still uses it."""
    alive = (versions.c.model_id == purge.model.id) & versions.c.purged_at.is_(None)
    with purge.core.database.reading() as conn:
        facts = select(versions.c.facts).where(alive, versions.c.id != purge.before.id)
        others = {
            parse_strict(text.encode())["run"]["training"]["key"] for text in conn.scalars(facts)
        }
    key = purge.before.run["training"]["key"]
    if not key or key in others:
        return {"keys": []}
    purge.core.keys.destroy(key)
    return {"keys": [key]}


def _search_stores(purge: PurgeRun) -> Evidence | None:
    """Search the registered stores and return counts; None if a store blocks the purge."""
    core = purge.core
    markers, now = _read_markers(purge), core.clock()
    results, evidence = [], {}
    for store in list_stores(core):
        search = partial(search_store, store, now=now)
        result, n_words = _search_without_own_words(core, markers, search)
        results.append(result)
        expires = expires_on(store, now) if store.days is not None else ""
        counts = _count_evidence(result, n_words)
        evidence[store.name] = counts | {"scope": store.scope, "by": expires}
    if any(result.has_problems for result in results):
        _record_problems(purge, "stores", results)
        return None
    return evidence


def _count_evidence(result: ScanResult, n_words: int) -> Evidence:
    return {
        "files": result.files,
        "bytes": result.bytes,
        "ambiguous": n_words,
        "not_searched": result.n_not_searched,
    }


def _search_without_own_words(
    core: Core, markers: Markers, search: Callable[[Markers], ScanResult]
) -> tuple[ScanResult, int]:
    """Search for the markers, except ids that are words which the ledger itself writes.

    Found ids that are such words are excluded, and the search is repeated. Return the last result
    and the number of excluded ids.
    """
    result, n_left_out = search(markers), 0
    for _ in range(_SEARCHES):
        words = find_own_words(core, (markers.texts[number] for number in result.id_numbers))
        if not words:
            break
        markers, n_left_out = markers.without_texts(words), n_left_out + len(words)
        result = search(markers)
    return result, n_left_out


def _read_markers(purge: PurgeRun) -> Markers:
    """Return the decrypted markers, with a function that returns the remaining ids."""
    core = purge.core
    keys = core.keys.list_ids("purge", label=purge.label)
    if len(keys) != 1 or not purge.markers_file.exists():
        raise KeyFileError(
            f"the purge of batch {purge.batch[:12]} cannot continue, because its markers are "
            f"missing or have more than one key; restore keys/purge-{purge.label}-….key and "
            f"{purge.markers_file}"
        )
    sealed = purge.markers_file.read_bytes()
    markers = Markers.from_bytes(core.keys.decrypt(keys[0], sealed, _marker_context(purge)))

    def remaining_ids() -> list[str]:
        with core.database.reading() as conn:
            head = find_head(conn, purge.model.id)
        return [str(value) for value in read_ids(core, purge.model, head).distinct().to_list()]

    return markers.with_neighbours(remaining_ids)


def _truncate_journal(purge: PurgeRun) -> Evidence | None:
    try:
        purge.core.database.truncate_journal()
    except LedgerBusyError:
        return None
    return {"journal": purge.core.database.journal_mode or "server"}


def _sweep_temporary(purge: PurgeRun) -> Evidence:
    """Destroy partial files and files that no version refers to."""
    n_files = sweep_partials(purge.core, purges_too=True)
    lease = take_lease(purge.core, purge.model.id, owner_name())
    if lease is None:
        return {"files": n_files, "by": "lease-holder"}
    try:
        return {"files": n_files + sweep_model(purge.core, lease, purge.model), "by": "purge"}
    except (StaleWorkerError, CorruptFileError):
        return {"files": n_files, "by": "lease-holder"}
    finally:
        release_lease(purge.core, lease)


def _search_home(purge: PurgeRun) -> Evidence | None:
    search = partial(search_home, purge.core, purge.model.folder)
    result, n_words = _search_without_own_words(purge.core, _read_markers(purge), search)
    if result.has_problems:
        _record_problems(purge, "scan", [result])
        return None
    return _count_evidence(result, n_words)


def _drop_markers(purge: PurgeRun) -> Evidence:
    """Destroy the markers, which are the last record of the erased ids."""
    for key in purge.core.keys.list_ids("purge", label=purge.label):
        purge.core.keys.destroy(key)
    destroy_file(purge.markers_file)
    destroy_file(purge.problems_file)
    return {"markers": "destroyed"}


def _fix_recipients(purge: PurgeRun) -> Evidence:
    """Record the number of recipients now, so that the attestation always has the same bytes."""
    count = select(func.sum(requests.c.recipients)).where(requests.c.batch_id == purge.batch)
    with purge.core.database.reading() as conn:
        return {"sequence": purge.after.sequence, "recipients": int(conn.scalar(count) or 0)}


# Run in the transaction that records a step; False if the step has to wait.
_IN_TRANSACTION: dict[str, Callable[[Connection, PurgeRun], bool]] = {
    "started": _move_requests,
    DRAINED: _is_drained,
    "key": _mark_purged,
}

# Fault points after each step.
_POINTS = {
    "started": "purge.started",
    DRAINED: "purge.pins-drained",
    "blobs": "purge.blobs-destroyed",
    "key": "purge.key-destroyed",
    "intake": "purge.intake-resealed",
    "stores": "purge.stores-done",
    "database": "purge.database-shrunk",
    "scan": "purge.scanned",
}

STEPS: tuple[tuple[str, Work], ...] = (
    ("started", _save_markers),
    (DRAINED, _wait_for_readers),
    ("blobs", _destroy_blobs),
    ("key", _destroy_key),
    ("intake", _drop_request_bodies),
    ("training", _destroy_training_key),
    ("stores", _search_stores),
    ("temporary", _sweep_temporary),
    ("database", _truncate_journal),
    ("scan", _search_home),
    ("markers", _drop_markers),
    ("claim", _fix_recipients),
)


def _record_problems(purge: PurgeRun, name: str, results: Iterable[ScanResult]) -> None:
    """Record the findings of a search and the time of the next attempt.

    After ``policy.max_tries`` attempts, the requests become stuck.
    """
    core, policy = purge.core, purge.core.settings.policy
    findings = [problem for result in results for problem in _list_problems_of(purge, result)]
    write_atomically(purge.problems_file, [json.dumps(findings).encode()])
    # The service deletes its temporary folders itself.
    is_temporary = all(
        problem.where.store == SERVICE_FOLDERS
        and is_in_use(core, problem.where.file.partition("/")[0])
        for problem in findings
    )
    is_purging = (requests.c.batch_id == purge.batch) & (requests.c.state == "purging")
    with core.database.transaction() as conn:
        row = _read_step(conn, purge.batch, name)
        tries = json.loads(row.evidence)["tries"] if row is not None else 0
        if not is_temporary:
            # An operator has retried it after the last attempt: count from 1 again.
            tries = 1 if tries >= policy.max_tries else tries + 1
        now = core.clock()
        pause = backoff_seconds(max(tries, 1), policy, random.SystemRandom().random())
        not_before = now + (_SERVICE_PAUSE if is_temporary else pause)
        evidence = {"tries": tries, "not_before": not_before, "problems": len(findings)}
        _record_step(conn, purge, name, _FAILED, evidence)
        if not is_temporary and tries == policy.max_tries:
            waiting = list(conn.scalars(select(requests.c.id).where(is_purging)))
            move_requests(conn, waiting, "stuck", at=now, reason=_RESIDUE)
        else:
            conn.execute(update(requests).where(is_purging).values(reason=_RESIDUE))


def _list_problems_of(purge: PurgeRun, result: ScanResult) -> Iterator[PurgeProblem]:
    for store, file, offset, kind in result.hits:
        reason = f"{kind} of an erased person at byte {offset}"
        if kind == "value":
            reason = f"id of an erased person as a value in row {offset + 1}"
        yield PurgeProblem(purge.batch, FileIssue(store, file, reason))
    for unread in result.unread:
        yield PurgeProblem(purge.batch, unread)


def list_problems(core: Core) -> tuple[PurgeProblem, ...]:
    """Return the files that block purges, with the reasons."""
    files = sorted(core.subfolder("purges").glob(".*.problems"))
    return tuple(problem for file in files for problem in _read_problems(file))


def _read_problems(file: Path) -> list[PurgeProblem]:
    """Return the findings in a file; empty if the purge has deleted the file in the meantime."""
    try:
        return [
            PurgeProblem(batch, FileIssue(*where)) for batch, where in json.loads(file.read_bytes())
        ]
    except (FileNotFoundError, ValueError):
        return []


def _sign_and_close(purge: PurgeRun) -> None:
    """Sign the purge attestation, then record it and move the requests in one transaction."""
    core, sequence = purge.core, purge.after.sequence
    assert sequence is not None
    with core.database.reading() as conn:
        statement = build_attestation(core, conn, purge.batch)
    envelope = sign_statement(statement, core.keys.signer_at(sequence))
    purge_id = certificate_id(envelope)
    path = locate_signed_file(core, "purges", sequence)
    if path.exists() and path.read_bytes() != envelope:
        raise SignerRefusedError(
            f"{path} contains a different attestation with the same number; nothing was "
            "signed, because two attestations with one number would contradict each other. "
            "Find out which database wrote the file."
        )
    write_atomically(path, [envelope])
    fault_point("purge.signed")
    with core.database.transaction() as conn:
        now = core.clock()
        is_certified = (batches.c.id == purge.batch) & (batches.c.state == "certified")
        if conn.execute(update(batches).where(is_certified).values(state="purged")).rowcount == 0:
            return
        values = {"sequence": sequence, "id": purge_id, "batch_id": purge.batch, "at": now}
        conn.execute(insert(purges).values(values | {"envelope": envelope}))
        gaps = search_gaps(statement["predicate"])
        _move_to_purged(conn, purge, now, NOT_FULLY_SEARCHED if gaps else None)
        body = {"batch": purge.batch, "sequence": sequence, "purge": purge_id}
        record_event(conn, "purge", body, at=now)
        fault_point("purge.before-commit")
    fault_point("purge.after-commit")


def _move_to_purged(conn: Connection, purge: PurgeRun, now: int, reason: str | None) -> None:
    """Move all requests of the batch, including stuck requests, to the state purged.

    If not everything could be searched, `reason` is stored with the requests.
    """
    columns = select(requests.c.id, requests.c.state).where(requests.c.batch_id == purge.batch)
    members = conn.execute(columns.order_by(requests.c.id).with_for_update()).all()
    move_requests(conn, [row.id for row in members if row.state == "stuck"], "purging", at=now)
    waiting = [row.id for row in members if row.state in ("stuck", "purging")]
    fields: dict[str, str | int] = {} if reason is None else {"reason": reason}
    move_requests(conn, waiting, "purged", at=now, fields=fields, reason=reason)
