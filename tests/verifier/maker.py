"""A small ledger that signs, with `cryptography` and `rfc8785` only: nothing of the verifier.

Trees are hashed naively from the definitions. `build` gives the files of a bundle; `edit` lets a
test lie in one certificate before it is signed, so that everything after it is built on the lie.
"""

import base64
import copy
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DATA = Path(__file__).parents[1] / "data" / "certificates"
LEDGER = "prod-eu-1"
TOMBSTONE = hashlib.sha256(b"letheon/tombstone/v1").digest()

Statement = dict[str, Any]
Files = dict[str, bytes]


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


class NamedSigner:
    """An Ed25519 key made from a name."""

    def __init__(self, name: str) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(sha(name.encode()))
        self.public = self._key.public_key().public_bytes_raw()
        self.keyid = sha(self.public).hex()

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


ROOT, SECOND, THIRD, STRANGER = map(NamedSigner, ("root", "second", "third", "stranger"))
WITNESS = NamedSigner("witness")


def text64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def dsse(payload: bytes) -> bytes:
    return b"DSSEv1 28 application/vnd.in-toto+json %d " % len(payload) + payload


def envelope(statement: Any, *signers: NamedSigner) -> bytes:
    payload = rfc8785.dumps(statement)
    signatures = [
        {"keyid": item.keyid, "sig": text64(item.sign(dsse(payload)))}
        for item in sorted(signers, key=lambda item: item.keyid)
    ]
    return rfc8785.dumps(
        {
            "payload": text64(payload),
            "payloadType": "application/vnd.in-toto+json",
            "signatures": signatures,
        }
    )


def payload_of(data: bytes) -> bytes:
    return base64.b64decode(json.loads(data)["payload"])


def id_of(data: bytes) -> str:
    return sha(dsse(payload_of(data))).hex()


@cache
def _example() -> str:
    return (DATA / "example.json").read_text()


def example(kind: str = "urn:letheon:attestation:unlearning:v1") -> Statement:
    """A filled statement, fresh each time."""
    filled = dict(json.loads(_example()))
    if kind != filled["predicateType"]:
        filled["predicateType"] = kind
        filled["predicate"]["model"]["predictor"] = {"sha256": sha(b"predictor").hex()}
    return filled


def statement(kind: str, name: str, digest: str, predicate: dict[str, Any]) -> Statement:
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}}],
        "predicateType": f"urn:letheon:attestation:{kind}:v1",
        "predicate": predicate,
    }


# The log, as RFC 6962 defines it by recursion.


def split_of(n: int) -> int:
    """The largest power of two below n."""
    return 1 << (n - 1).bit_length() - 1


def tree_root(leaves: Sequence[bytes]) -> bytes:
    if not leaves:
        return sha()
    if len(leaves) == 1:
        return sha(b"\0", leaves[0])
    k = split_of(len(leaves))
    return sha(b"\1", tree_root(leaves[:k]), tree_root(leaves[k:]))


def inclusion(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    k = split_of(len(leaves))
    if index < k:
        return [*inclusion(index, leaves[:k]), tree_root(leaves[k:])]
    return [*inclusion(index - k, leaves[k:]), tree_root(leaves[:k])]


def consistency(size: int, leaves: Sequence[bytes], whole: bool = True) -> list[bytes]:
    if size == 0:
        return []
    if size == len(leaves):
        return [] if whole else [tree_root(leaves)]
    k = split_of(len(leaves))
    if size <= k:
        return [*consistency(size, leaves[:k], whole), tree_root(leaves[k:])]
    return [*consistency(size - k, leaves[k:], False), tree_root(leaves[:k])]


def note(
    size: int,
    root: bytes,
    signer: NamedSigner = ROOT,
    *,
    origin: str = LEDGER,
    witness: NamedSigner | None = None,
) -> str:
    body = f"{origin}\n{size}\n{text64(root)}\n".encode()
    key_hash = sha(origin.encode(), b"\n\1", signer.public)[:4]
    lines = [f"— {origin} {text64(key_hash + signer.sign(body))}\n"]
    if witness is not None:
        stamp = (1_790_000_000).to_bytes(8, "big")
        signed = witness.sign(b"cosignature/v1\ntime 1790000000\n" + body)
        lines.append(f"— w.example/1 {text64(witness_hash(witness) + stamp + signed)}\n")
    return body.decode() + "\n" + "".join(lines)


def witness_hash(witness: NamedSigner) -> bytes:
    return sha(b"w.example/1\n\4", witness.public)[:4]


def verifier_key(witness: NamedSigner) -> str:
    return f"w.example/1+{witness_hash(witness).hex()}+{text64(bytes([4]) + witness.public)}"


# The slots of a data set, every level kept.


def levels_of(leaves: Sequence[bytes]) -> list[list[bytes]]:
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([sha(b"\1", *below[i : i + 2]) for i in range(0, len(below), 2)])
    return levels


def slot_root(leaves: Sequence[bytes]) -> str:
    return levels_of(leaves)[-1][0].hex()


def slot_path(leaves: Sequence[bytes], slot: int) -> list[str]:
    return [level[(slot >> h) ^ 1].hex() for h, level in enumerate(levels_of(leaves)[:-1])]


def transition(leaves: Sequence[bytes], erased: Iterable[int]) -> bytes:
    touched, siblings = sorted(erased), []
    listed: list[Any] = [{"slot": slot, "leaf": leaves[slot].hex()} for slot in touched]
    for level in levels_of(leaves)[:-1]:
        siblings += [level[i ^ 1].hex() for i in touched if i ^ 1 not in touched]
        touched = sorted({i // 2 for i in touched})
    return rfc8785.dumps(
        {
            "scheme": "salted-slot-merkle-v1",
            "slots": len(leaves),
            "erased": listed,
            "siblings": siblings,
        }
    )


def without(leaves: Sequence[bytes], erased: Iterable[int]) -> list[bytes]:
    erased_slots = set(erased)
    return [TOMBSTONE if slot in erased_slots else leaf for slot, leaf in enumerate(leaves)]


def row_leaf(salt: bytes, place: int, row: bytes) -> bytes:
    return sha(b"\0", hmac.new(salt, place.to_bytes(8, "big") + row, "sha256").digest())


# The ledger.


@dataclass(frozen=True)
class ErasureStep:
    model: str
    erased: tuple[int, ...]
    retrain: bool = False


STEPS = (
    ErasureStep("credit-risk", (1, 4)),
    ErasureStep("churn", (0,)),
    ErasureStep("credit-risk", (6,)),
    ErasureStep("credit-risk", (3,), retrain=True),
    ErasureStep("churn", (2, 5)),
    ErasureStep("credit-risk", (7,)),
)


@dataclass
class SlotModel:
    """Slots of one model: now, and at its last retrain."""

    name: str
    slots: list[bytes]
    retrained: list[bytes]
    since: set[int] = field(default_factory=set)
    digest: str = ""
    last_retrain: int = 0

    @classmethod
    def registered(cls, name: str) -> "SlotModel":
        slots = [row_leaf(sha(name.encode()), 7 - i, b"row %d" % i) for i in range(8)]
        return cls(name, slots, slots, digest=sha(name.encode(), b"0").hex())

    def erase(self, step: ErasureStep) -> tuple[list[bytes], set[int]]:
        """Move on; return the slots before and which were erased since then."""
        self.since |= set(step.erased)
        before, erased_slots = self.slots, set(step.erased)
        if step.retrain:
            before, erased_slots, self.since = self.retrained, self.since, set()
        self.slots = without(self.slots, step.erased)
        if step.retrain:
            self.retrained = self.slots
        return before, erased_slots


Edit = Callable[[int, Statement], None]


def honest(sequence: int, statement: Statement) -> None:
    """Change nothing."""


@dataclass
class BundleBuilder:
    """Builds the files of a bundle, certificate by certificate."""

    edit: Edit = honest
    signer_of: Callable[[int], NamedSigner] = lambda _: ROOT
    witness: NamedSigner | None = None
    statements: Sequence[bytes] = ()
    models: dict[str, SlotModel] = field(default_factory=dict)
    events: list[bytes] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[int, str] = field(default_factory=dict)
    files: Files = field(default_factory=dict)
    previous: Any = "genesis"

    def record(self, kind: str, **body: Any) -> None:
        event = {"kind": kind, "at": 1_790_000_000 + len(self.events), **body}
        self.events.append(rfc8785.dumps(event))

    def checkpoint(self, signer: NamedSigner = ROOT) -> str:
        size = len(self.events)
        self.notes[size] = note(size, tree_root(self.events), signer, witness=self.witness)
        return sha(self.notes[size].partition("\n\n")[0].encode() + b"\n").hex()

    def register(self, name: str) -> None:
        model = self.models[name] = SlotModel.registered(name)
        seed = example()["predicate"]["method"]["trainingRandomness"]
        self.record(
            "registered",
            model=sha(name.encode()).hex(),
            subject=model.digest,
            root=slot_root(model.slots),
            slots=len(model.slots),
            live=len(model.slots),
            training=seed["keyCommitment"],
            beacon=seed["beacon"],
        )

    def certify(self, sequence: int, step: ErasureStep) -> None:
        if step.model not in self.models:
            self.register(step.model)
        signer = self.signer_of(sequence)
        claims = self._claims(sequence, step, self.checkpoint(signer))
        self.edit(sequence, claims)
        data = envelope(claims, signer)
        self.previous = {"sha256": id_of(data)}
        self.record("applied", rows=len(step.erased))
        self.record("certificate", sequence=sequence, certificate=id_of(data))
        self.entries.append({"sequence": sequence, "index": len(self.events) - 1})
        self.files[f"certificates/{sequence:06d}.json"] = data
        purge = envelope(purge_of(data, len(step.erased)), signer)
        self.record("purge", sequence=sequence, purge=id_of(purge))
        self.files[f"purges/{sequence:06d}.json"] = purge

    def _claims(self, sequence: int, step: ErasureStep, checkpoint: str) -> Statement:
        model = self.models[step.model]
        before, erased_slots = model.erase(step)
        proof = transition(before, erased_slots)
        self.files[f"proofs/{sha(proof).hex()}.json"] = proof
        statement, after = example(), sha(b"model", bytes([sequence])).hex()
        claims = statement["predicate"]
        statement["subject"] = [{"name": f"{step.model}@{sequence}", "digest": {"sha256": after}}]
        claims["ledger"] |= {"sequence": sequence, "previousCertificate": self.previous}
        claims["ledger"]["checkpointBefore"] = {"sha256": checkpoint}
        claims["model"] |= {"id": step.model, "before": {"sha256": model.digest}}
        claims["dataset"] |= {
            "rootBefore": slot_root(before),
            "rootAfter": slot_root(model.slots),
            "slots": 8,
            "liveAfter": sum(leaf != TOMBSTONE for leaf in model.slots),
            "transitionProof": {"sha256": sha(proof).hex()},
        }
        claims["erasure"] |= {
            "batch": sha(b"batch", bytes([sequence])).hex(),
            "rows": len(erased_slots),
        }
        claims["monitor"]["lastRetrainSequence"] = model.last_retrain
        if step.retrain:
            claims["method"]["name"] = "retrain"
            model.last_retrain = sequence
        model.digest = after
        return statement

    def finish(self) -> Files:
        self.record("exported")
        self.checkpoint(self.signer_of(len(self.entries)))
        for size, text in self.notes.items():
            self.files[f"checkpoints/{size:012d}.txt"] = text.encode()
        for number, data in enumerate(self.statements, 1):
            self.files[f"keys/{number:04d}.json"] = data
        self.files["keys/root.pub"] = ROOT.public.hex().encode() + b"\n"
        self.files["bundle.json"] = rfc8785.dumps(
            {
                "format": "letheon-bundle-v1",
                "tier": "auditor",
                "ledger": LEDGER,
                "exportedAt": 1_790_000_000,
                "size": len(self.events),
                "models": [],
                # This ledger has no models: the export was limited to one that has none.
                "scope": {"model": "none"},
                "destroyBy": 1_792_592_000,
            }
        )
        self.files["events.jsonl"] = b"".join(event + b"\n" for event in self.events)
        self.files["log.json"] = log_of(self.events, self.entries, sorted(self.notes))
        return self.files


def log_of(events: list[bytes], entries: list[dict[str, Any]], sizes: list[int]) -> bytes:
    proofs: list[Any] = [
        {
            **entry,
            "event": json.loads(events[entry["index"]]),
            "proof": [node.hex() for node in inclusion(entry["index"], events)],
        }
        for entry in entries
    ]
    steps: list[Any] = [
        {"from": a, "to": b, "proof": [node.hex() for node in consistency(a, events[:b])]}
        for a, b in pairwise(sizes)
    ]
    root = tree_root(events).hex()
    return rfc8785.dumps(
        {"size": len(events), "root": root, "certificates": proofs, "consistency": steps}
    )


OWN_STORES = ("blobs", "key", "intake", "training", "temporary", "database")


def purge_of(certificate: bytes, rows: int) -> Statement:
    certified = json.loads(payload_of(certificate))
    subject, ledger = certified["subject"][0], certified["predicate"]["ledger"]
    stores: list[dict[str, Any]] = [
        {
            "store": name,
            "scope": "ledger",
            "state": "purged",
            "at": "2026-11-09T04:00:00Z",
            "evidence": {"sha256": sha(b"evidence").hex()},
        }
        for name in OWN_STORES
    ]
    backup: dict[str, Any] = {
        "store": "backups",
        "scope": "ledger",
        "state": "expires",
        "by": "2026-12-09",
    }
    backup |= {"evidence": {"sha256": sha(b"policy").hex()}}
    predicate = {
        "ledger": {"id": ledger["id"], "sequence": ledger["sequence"]},
        "certificate": {"sha256": id_of(certificate)},
        "stores": [*stores, backup],
        "salts": {"destroyed": rows, "key": "epoch-0011223344556677"},
        "scanner": {"version": "scan-v1", "markers": 9, "files": 12, "bytes": 4096, "hits": 0},
        "recipientsTold": 0,
        "notClaimed": ["unlisted-stores"],
        "times": {"startedAt": "2026-11-09T03:59:00Z", "purgedAt": "2026-11-09T04:00:00Z"},
    }
    return statement("purge", subject["name"], subject["digest"]["sha256"], predicate)


def build(steps: Sequence[ErasureStep] = STEPS, **options: Any) -> Files:
    """Files of a bundle, by path; the same bytes each time."""
    ledger = BundleBuilder(**options)
    for sequence, step in enumerate(steps, 1):
        ledger.certify(sequence, step)
    return ledger.finish()


@cache
def _honest() -> Mapping[str, bytes]:
    return build()


def honest_bundle() -> Files:
    return dict(_honest())


def index_of(files: Mapping[str, bytes], signer: NamedSigner = ROOT, /, **claims: Any) -> Files:
    """The signed index of files."""
    listed = rfc8785.dumps({name: sha(data).hex() for name, data in files.items()})
    count = sum(name.startswith("certificates/") for name in files)
    predicate = {
        "ledger": {"id": LEDGER, "sequence": count},
        "tier": "auditor" if "events.jsonl" in files else "public",
        "files": len(files),
        **claims,
    }
    signed = envelope(statement("bundle-index", "index.json", sha(listed).hex(), predicate), signer)
    return {"index.json": listed, "index.signed.json": signed}


def public(files: Mapping[str, bytes]) -> Files:
    """What a public bundle has of the files."""
    tops = ("certificates", "purges", "checkpoints", "keys", "log.json")
    kept = {name: data for name, data in files.items() if name.partition("/")[0] in tops}
    description = json.loads(files["bundle.json"]) | {"tier": "public", "scope": {}}
    del description["destroyBy"]
    return {**kept, "bundle.json": rfc8785.dumps(description)}


def write(files: Mapping[str, bytes], folder: Path, *, indexed: bool = True) -> Path:
    """Write a bundle, and unless told otherwise an index that fits it, as its operator can."""
    if indexed and "index.json" not in files:
        files = {**files, **index_of(files, SECOND if "keys/0001.json" in files else ROOT)}
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def certificates(files: Mapping[str, bytes]) -> list[bytes]:
    return [files[name] for name in sorted(files) if name.startswith("certificates/")]


# Key statements.


def rotation(
    old: NamedSigner, new: NamedSigner, last: int, chain: Sequence[bytes] = ()
) -> Statement:
    predicate = {
        "ledger": _key_chain(chain),
        "oldKey": old.keyid,
        "newKey": {"keyid": new.keyid, "public": new.public.hex()},
        "lastSequence": last,
    }
    return statement("key-rotation", LEDGER, new.keyid, predicate)


def revocation(revoked: NamedSigner, last: int, chain: Sequence[bytes] = ()) -> Statement:
    predicate = {"ledger": _key_chain(chain), "revokedKey": revoked.keyid, "lastSequence": last}
    return statement("key-revocation", LEDGER, revoked.keyid, predicate)


def _key_chain(chain: Sequence[bytes]) -> dict[str, Any]:
    previous: Any = {"sha256": id_of(chain[-1])} if chain else "genesis"
    return {"id": LEDGER, "number": len(chain) + 1, "previousStatement": previous}


def rotated(last: int = 3) -> list[bytes]:
    """ROOT signs certificates up to `last`, SECOND after."""
    return [envelope(rotation(ROOT, SECOND, last), ROOT, SECOND)]


def changed(value: Statement, place: str, new: Any) -> Statement:
    """A copy with another value at a dotted place."""
    edited = copy.deepcopy(value)
    inner, names = edited, place.split(".")
    for name in names[:-1]:
        inner = inner[int(name) if isinstance(inner, list) else name]
    inner[names[-1]] = new
    return edited
