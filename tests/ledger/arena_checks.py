"""What must hold of a ledger once its work is done, whatever happened to its processes.

Read from the tables by plain SQL and from the files, beside the ledger's own code as far as
possible. Each check yields one sentence for each thing that is wrong.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, text

from letheon import verifier
from letheon.ledger import Ledger
from letheon.ledger.models.examine import copy_rows, fresh_fit
from letheon.ledger.models.versions import find_head, find_model, read_rows

DONE = {"purged", "closed", "duplicate"}


class Expected(NamedTuple):
    """What the clients asked for."""

    tables: Mapping[str, tuple[Any, Any, Sequence[str]]]
    """Rows, labels and ids that each model was trained on."""
    erased: Mapping[str, Sequence[str]]
    registered: Sequence[str]
    """Further models."""
    acks: Sequence[tuple[str, str]]
    """Key and request id, for each acknowledgement."""


def quick_violations(ledger: Ledger, home: Path, expected: Expected) -> Iterator[str]:
    """Yield what is wrong with a ledger whose work is done, as far as it is seen at a glance."""
    with ledger._core.database.reading() as conn:
        yield from requests_done(conn, expected)
        yield from applied_once(conn)
        yield from one_chain(conn)
        yield from nothing_open(conn)
        yield from files_wanted(conn, home)


def violations(ledger: Ledger, home: Path, expected: Expected) -> Iterator[str]:
    """Yield everything that is wrong with a ledger whose work is done."""
    yield from quick_violations(ledger, home, expected)
    with ledger._core.database.reading() as conn:
        yield from log_is_whole(conn, home)
        yield from certificates_valid(conn, home)
    yield from models_forgot(ledger, expected)


def _rows(conn: Connection, query: str) -> list[Any]:
    return list(conn.execute(text(query)))


def requests_done(conn: Connection, expected: Expected) -> Iterator[str]:
    """Every acknowledged request is there, one for each key, and done."""
    states = dict(map(tuple, _rows(conn, "SELECT id, state FROM requests")))
    by_key: dict[str, set[str]] = {}
    for key, request in expected.acks:
        by_key.setdefault(key, set()).add(request)
        if request not in states:
            yield f"request {request} of key {key} was acknowledged and is lost"
        elif states[request] not in DONE:
            yield f"request {request} of key {key} stays {states[request]}"
    yield from (f"key {key} has {len(ids)} requests" for key, ids in by_key.items() if len(ids) > 1)
    if len(states) != len(by_key):
        yield f"{len(states)} requests are stored for {len(by_key)} keys"


def applied_once(conn: Connection) -> Iterator[str]:
    """Every request that is no repeat was applied, certified and purged once, by one batch."""
    bodies = [json.loads(body) for (body,) in _rows(conn, "SELECT body FROM events")]
    moves = Counter((body.get("request"), body["kind"]) for body in bodies)
    for request, state, batch in _rows(conn, "SELECT id, state, batch_id FROM requests"):
        wanted = 0 if state == "duplicate" else 1
        for after in ("applied", "certified", "purged"):
            if moves[request, after] != wanted:
                yield f"request {request} ({state}) became {after} {moves[request, after]} times"
        if wanted and batch is None:
            yield f"request {request} is {state} without a batch"
    owners = _rows(conn, "SELECT model_id, tag, count(*) FROM blocked WHERE owner GROUP BY 1, 2")
    yield from (f"one person is erased by {n} requests" for _, _, n in owners if n != 1)


def one_chain(conn: Connection) -> Iterator[str]:
    """Versions of a model follow each other without gap or fork, up to the head."""
    heads = dict(map(tuple, _rows(conn, "SELECT model_id, version_id FROM heads")))
    last: dict[int, tuple[int, int, int]] = {}
    query = "SELECT model_id, id, number, parent_id, live FROM versions ORDER BY model_id, number"
    for model, version, number, parent, live in _rows(conn, query):
        before = last.get(model)
        if before is None and (number, parent) != (0, None):
            yield f"the first version of model {model} has number {number}"
        if before is not None and (number, parent) != (before[1] + 1, before[0]):
            yield f"version {number} of model {model} does not follow version {before[1]}"
        if before is not None and live > before[2]:
            yield f"version {number} of model {model} has more rows than the one before"
        last[model] = (version, number, live)
    for model, head in heads.items():
        if last[model][0] != head:
            yield f"the head of model {model} is not its newest version"


def nothing_open(conn: Connection) -> Iterator[str]:
    """No batch is left half-way, and each has one version."""
    query = """SELECT b.id, b.state, count(v.id) FROM batches b
               LEFT JOIN versions v ON v.batch_id = b.id GROUP BY b.id, b.state"""
    for batch, state, n_versions in _rows(conn, query):
        if (state, n_versions) not in (("purged", 1), ("abandoned", 0)):
            yield f"batch {batch[:8]} stays {state} with {n_versions} versions"


def log_is_whole(conn: Connection, home: Path) -> Iterator[str]:
    """Every event has its leaf and its place, and every checkpoint is a prefix of the log."""
    query = (
        "SELECT body, leaf, log_index FROM events WHERE log_index IS NOT NULL ORDER BY log_index"
    )
    leaves = []
    for index, (body, leaf, place) in enumerate(_rows(conn, query)):
        leaves.append(hashlib.sha256(b"\0" + body.encode()).digest())
        if (leaves[-1].hex(), index) != (leaf, place):
            yield f"event {index} of the log has another leaf or place: {place}"
    for size, root, note in _rows(conn, "SELECT size, root, note FROM checkpoints ORDER BY size"):
        if merkle_root(leaves[:size]).hex() != root:
            yield f"the checkpoint of size {size} is not a prefix of the log"
        if f"\n{size}\n{base64.b64encode(bytes.fromhex(root)).decode()}\n" not in note:
            yield f"the note of size {size} says something else"
        if (home / "checkpoints" / f"{size:012d}.txt").read_text(encoding="utf-8") != note:
            yield f"the file of checkpoint {size} is another one"


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Return RFC 6962's hash of a list of leaf hashes, as the text of the RFC has it."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + merkle_root(leaves[:half]) + merkle_root(leaves[half:])).digest()


def certificates_valid(conn: Connection, home: Path) -> Iterator[str]:
    """One certificate and one purge for each version but the first, all valid, in one chain."""
    key = (home / "public" / "keys" / "root.pub").read_text(encoding="ascii").strip()
    trust = verifier.Trust.from_pinned(key, [])
    stored = [
        (row[0], bytes(row[1]))
        for row in _rows(conn, "SELECT sequence, envelope FROM certificates ORDER BY sequence")
    ]
    for sequence, envelope in stored:
        if (home / "certificates" / f"{sequence:06d}.json").read_bytes() != envelope:
            yield f"the file of certificate {sequence} is another one"
    try:
        opened = verifier.check_chain([envelope for _, envelope in stored], trust)
    except verifier.VerificationError as refusal:
        yield f"the chain of certificates is refused: {refusal}"
        return
    subjects = {one.statement["subject"][0]["digest"]["sha256"] for one in opened}
    query = "SELECT model_blob FROM versions WHERE number > 0"
    if subjects != {row[0] for row in _rows(conn, query)}:
        yield "the certificates are not about the versions that were published"
    purges = _rows(conn, "SELECT sequence, envelope FROM purges ORDER BY sequence")
    if [row[0] for row in purges] != [sequence for sequence, _ in stored]:
        yield f"{len(purges)} purges for {len(stored)} certificates"
    for sequence, envelope in purges:
        verifier.open_envelope(bytes(envelope), trust)
        if (home / "purges" / f"{sequence:06d}.json").read_bytes() != bytes(envelope):
            yield f"the file of purge {sequence} is another one"
    n_files = tuple(
        len([path for path in (home / place).iterdir() if path.name != ".lock"])
        for place in ("certificates", "purges")
    )
    if n_files != (len(stored), len(purges)):
        yield f"{n_files} files for {len(stored)} certificates and {len(purges)} purges"


def files_wanted(conn: Connection, home: Path) -> Iterator[str]:
    """The blobs and keys of the heads are there, and no others; nothing half-written."""
    query = """SELECT m.folder, v.model_blob, v.rows_blob, v.ids_blob, v.vault_blob, v.epoch_key
               FROM heads h JOIN versions v ON v.id = h.version_id
               JOIN models m ON m.id = h.model_id"""
    files = {
        path for path in (home / "blobs").rglob("*") if path.is_file() and path.name != ".lock"
    }
    wanted, keys = set(), set()
    for folder, *blobs, key in _rows(conn, query):
        wanted |= {home / "blobs" / folder / blob for blob in blobs}
        keys.add(key)
    yield from (f"{path.name} should be gone" for path in files - wanted)
    yield from (f"{path.name} should be there" for path in wanted - files)
    held = {path.stem for path in (home / "keys").glob("epoch-*.key")}
    if held != keys:
        yield f"epoch keys {sorted(held)} are there, {sorted(keys)} are wanted"
    yield from (f"{path} is left" for path in home.rglob("*.partial"))


def models_forgot(ledger: Ledger, expected: Expected) -> Iterator[str]:
    """Every model is the one that a fresh fit on the remaining people gives."""
    for name, (X, y, ids) in expected.tables.items():
        stays = np.flatnonzero(~np.isin(ids, list(expected.erased[name])))
        model, people = ledger.models.load(name), [ids[int(place)] for place in stays]
        if set(model.ids_) != set(people):
            yield f"model {name} holds {len(model.ids_)} people, not those who did not ask"
            continue
        if set(_get_ids(ledger, name)) != set(people):
            yield f"the rows of model {name} are not those of the people who did not ask"
        fresh = fresh_fit(model, copy_rows(X[stays], y[stays], people)).model
        if fresh.digest() != model.digest():
            yield f"model {name} is not the one of the rows that are left"
    names = {model.name for model in ledger.models.list()}
    if names != {*expected.tables, *expected.registered}:
        yield f"the models are {sorted(names)}"


def _get_ids(ledger: Ledger, name: str) -> list[Any]:
    """Return the ids of the rows that the ledger holds for a model."""
    core = ledger._core
    with core.database.reading() as conn:
        model = find_model(conn, name, "default")
        head = find_head(conn, model.id)
    return list(read_rows(core, model, head).ids.to_list())


def no_trace(home: Path, expected: Expected) -> Iterator[str]:
    """Check that no file of the ledger contains the id of an erased person.

    The ledger must not be open in this process: closing its file would drop SQLite's locks.
    """
    gone = [person.encode() for people in expected.erased.values() for person in people]
    for path in home.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if b"person-" in data and any(person in data for person in gone):
                yield f"{path.relative_to(home)} contains the id of an erased person"
