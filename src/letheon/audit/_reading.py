"""Read a bundle: files of limited size, decoded without running anything in them.

Nothing here opens the home of a ledger. What a file says about itself is believed only where a
signed certificate says the same.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from letheon import state
from letheon.data import Rows
from letheon.exceptions import StateError
from letheon.ledger.models.commitment import Vault
from letheon.verifier import (
    INDEX_FILES,
    LARGEST,
    MOST_FILES,
    SMALL,
    Opened,
    Refused,
    Trust,
    canonical,
    check_chain,
    list_files,
    model_folder,
    parse_strict,
    read_capped,
    read_description,
    read_note,
    tier_of,
)

_NONCE_BYTES = 32
_TRAINING = {"rule", "beacon", "keyCommitment", "key"}


def key_text(key: str | bytes | Path) -> str:
    """Return a public key as 64 hexadecimal digits, from the text itself or from a file of it."""
    if isinstance(key, bytes):
        return key.hex()
    if isinstance(key, Path) or len(str(key)) != 64:
        text = read_capped(Path(key), SMALL).decode("ascii", "replace").strip()
    else:
        text = str(key)
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise ValueError("the key is not 64 hexadecimal digits, and no file of them either")
    return text


@dataclass(frozen=True)
class AuditedModel:
    """One model of a bundle: its files, and its certificates, oldest first."""

    name: str
    folder: Path
    certificates: tuple[Opened, ...]
    files: Mapping[str, bytes | str] | None = None

    def with_files(self) -> "AuditedModel":
        """Return it with the content of its files, for a process that can open none.

        A file that cannot be read is a text that says why.
        """
        sizes = {"model.blob": LARGEST, "rows.blob": LARGEST, "vault.blob": LARGEST}
        files: dict[str, bytes | str] = {}
        for name, most in (sizes | {"training.json": SMALL}).items():
            try:
                files[name] = read_capped(self.folder / name, most)
            except (Refused, OSError) as error:
                files[name] = f"{name}: {error}"
        return replace(self, files=files)

    def _read(self, name: str, most: int) -> bytes:
        if self.files is None:
            return read_capped(self.folder / name, most)
        content = self.files[name]
        if isinstance(content, str):
            raise Refused(content)
        return content

    @property
    def newest(self) -> Opened:
        """The certificate that the files belong to."""
        return self.certificates[-1]

    @cached_property
    def raw(self) -> bytes:
        """The model's file."""
        return self._read("model.blob", LARGEST)

    @property
    def content(self) -> bytes:
        """The model's file without the nonce that blinds its hash."""
        return self.raw[_NONCE_BYTES:]

    @property
    def is_subject(self) -> bool:
        """Whether the file is the one that the newest certificate is about."""
        wanted = self.newest.statement["subject"][0]["digest"]["sha256"]
        return bool(hashlib.sha256(self.raw).hexdigest() == wanted)

    def build(self, trusted: Iterable[Any] = ()) -> Any:
        """Build the model; classes that nobody trusts are refused before they are imported."""
        return state.decode(self.content, trusted=tuple(trusted))

    @cached_property
    def rows(self) -> Rows:
        """The remaining rows, in held order."""
        rows = self._decoded("rows.blob")
        if type(rows) is not Rows:
            raise Refused("rows.blob: holds no rows")
        return rows

    @cached_property
    def vault(self) -> Vault:
        """Slot, salt and place of every row."""
        found = self._decoded("vault.blob")
        if type(found) is not dict or found.keys() != set(Vault._fields):
            raise Refused("vault.blob: holds no slots, salts and places")
        return Vault(**found)

    @cached_property
    def training(self) -> dict[str, Any]:
        """How the seed was made, and the key that it was made from."""
        found = parse_strict(self._read("training.json", SMALL), SMALL)
        if type(found) is not dict or found.keys() != _TRAINING:
            raise Refused("training.json: not an object of rule, beacon, keyCommitment and key")
        return found

    def _decoded(self, name: str) -> Any:
        data = self._read(name, LARGEST)
        if data[:_NONCE_BYTES] != bytes(_NONCE_BYTES):
            raise Refused(f"{name}: does not begin with {_NONCE_BYTES} zeros")
        try:
            return state.decode(data[_NONCE_BYTES:])
        except StateError as error:
            raise Refused(f"{name}: {error}") from None


class Commitment(NamedTuple):
    """An event of the log that commits to a training key, or says that a model has one."""

    place: int
    event: dict[str, Any]

    def is_of(self, subject: str) -> bool:
        """Whether it is the registration of this file."""
        return self.event.get("kind") == "registered" and self.event.get("subject") == subject


class LogFacts(NamedTuple):
    """What the log says about training keys, beacons and publications.

    Events about training keys in the order of the log; sizes of the checkpoints by the digest of
    their signed text; place of the publication of each batch; how many keys were committed to that
    no registration and no certificate used. A batch may still be open or may have failed; an
    operator may have thrown keys away.
    """

    commitments: tuple[Commitment, ...]
    checkpoint_sizes: dict[str, int]
    published: dict[str, int]
    unused_training_keys: int


@dataclass(frozen=True)
class Bundle:
    """A folder that `Ledger.export` wrote, or that somebody says it wrote."""

    folder: Path
    key: str

    @cached_property
    def trust(self) -> Trust:
        """Keys that follow from the pinned one."""
        return Trust.from_pinned(self.key, (self._read(path) for path in self._files("keys")))

    @cached_property
    def chain(self) -> list[Opened]:
        """All certificates, opened and checked."""
        return check_chain((self._read(path) for path in self._files("certificates")), self.trust)

    @property
    def ledger(self) -> str:
        """Name of the ledger, as signed."""
        return str(self.chain[0].predicate["ledger"]["id"]) if self.chain else ""

    @cached_property
    def models(self) -> tuple[AuditedModel, ...]:
        """Models whose files are in the bundle and that have a certificate."""
        certificates: dict[str, list[Opened]] = {}
        for one in self.chain:
            certificates.setdefault(str(one.predicate["model"]["id"]), []).append(one)
        return tuple(
            AuditedModel(name, place, tuple(found))
            for name, found in certificates.items()
            if (place := self.folder / model_folder(name)).is_dir()
        )

    @cached_property
    def tier(self) -> str:
        """The tier, "public" or "auditor", by what is in the folder."""
        return tier_of(list_files(self.folder))

    @cached_property
    def scope(self) -> dict[str, str] | None:
        """Which tenant or model the export was limited to; None where no signed index says it."""
        if not (self.folder / INDEX_FILES[0]).is_file():
            return None
        return dict(read_description(self.folder)["scope"])

    @property
    def log_facts(self) -> LogFacts:
        """What re-derivation needs of the log, as plain values."""
        notes = (
            read_note(self._read(path).decode("utf-8", "replace"))
            for path in sorted((self.folder / "checkpoints").glob("*.txt"))
        )
        sizes = {hashlib.sha256(note.body).hexdigest(): note.size for note in notes}
        commitments: list[Commitment] = []
        published: dict[str, int] = {}
        for place, event in enumerate(self.events()):
            if "training" in event:
                commitments.append(Commitment(place, event))
            if event.get("kind") == "published":
                published[event["batch"]] = place
        used = {
            one.predicate["method"]["trainingRandomness"]["keyCommitment"] for one in self.chain
        }
        used |= {e["training"] for _, e in commitments if e.get("kind") == "registered"}
        unused = {event["training"] for _, event in commitments} - used
        return LogFacts(tuple(commitments), sizes, published, len(unused))

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the log, in order; they are the ledger's where V1 holds."""
        path = self.folder / "events.jsonl"
        if not path.is_file():
            return
        with path.open("rb") as file:
            while line := file.readline(SMALL + 1):
                event = parse_strict(line.rstrip(b"\n"), SMALL)
                yield event if isinstance(event, dict) else {}

    def definition(self, digest: str) -> str | None:
        """Return the definition text with this hash, if the bundle has it."""
        path = self.folder / "definitions" / f"{digest}.md"
        if not path.is_file():
            return None
        data = read_capped(path, SMALL)
        return data.decode() if hashlib.sha256(data).hexdigest() == digest else None

    def _files(self, kind: str) -> list[Path]:
        found = sorted((self.folder / kind).glob("*.json"))
        if len(found) > MOST_FILES:
            raise Refused(f"{kind}/: more than {MOST_FILES} files")
        return found

    def _read(self, path: Path) -> bytes:
        return read_capped(path, SMALL)


def summary_of(bundle: Bundle, certificate: Opened) -> dict[str, Any]:
    """Return what a certificate claims, for a report."""
    claims = certificate.predicate
    definition = claims["method"]["definition"]["sha256"]
    return {
        "model": claims["model"]["id"],
        "sequence": certificate.sequence,
        "certificate": certificate.id,
        "subject": certificate.statement["subject"][0]["digest"]["sha256"],
        "method": claims["method"]["name"],
        "definition": definition,
        "definitionInBundle": bundle.definition(definition) is not None,
        "guarantee": parse_strict(canonical(claims["guarantee"])),
        "rows": claims["erasure"]["rows"],
        "liveAfter": claims["dataset"]["liveAfter"],
        "certifiedAt": claims["times"]["certifiedAt"],
        "replay": claims["execution"]["replay"],
        "notClaimed": list(claims["notClaimed"]),
    }
