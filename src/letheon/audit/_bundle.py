"""The bundle that an audit reads, and the report that it returns.

Files of a bundle have limited sizes and are decoded without running code from them. The audit does
not open the ledger itself. A claim in a file counts only if a signed certificate confirms it.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

from letheon import state, verifier
from letheon.data import Rows
from letheon.exceptions import StateError
from letheon.ledger.certificates import explanations
from letheon.ledger.models.commitment import RowSlots, locate_salt
from letheon.verifier import (
    LARGEST,
    SMALL,
    SignedStatement,
    VerificationError,
    parse_strict,
    read_capped,
)

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Verdict = Literal["pass", "fail", "skipped"]
ReportVerdict = Literal["passed", "failed", "incomplete"]
_KINDS = {"pass": "good", "fail": "bad", "skipped": "open"}
_PASSED: dict[str, bool | None] = {"pass": True, "fail": False, "skipped": None}

# What each level checks, and what it does not show.
LEVELS: dict[str, tuple[str, str]] = {
    "V0": ("signature, schema, chain", "that the erasure was carried out"),
    "V1": ("log", "private copies, and requests that were not recorded"),
    "V2": ("data transition", "what the erased rows contained, and whose they were"),
    "V3": ("residue", "stores that are not listed"),
    "V4": ("re-derivation", "that old copies were deleted"),
    "V5": ("bound", "assumptions that cannot be checked, and noise that was used twice"),
    "V6": ("canaries", "anything if the operator recognises the canaries"),
    "own": ("measures of the auditor", "what the auditor did not measure"),
}
_NONCE_BYTES = 32
_TRAINING = {"rule", "beacon", "keyCommitment", "key"}
_SALT = "settings.json"


@dataclass(frozen=True)
class LevelResult:
    """The verdict of one level, about one model or about the whole bundle.

    Attributes
    ----------
    level : str
        ``"V0"`` to ``"V6"``, or ``"own"`` for a measure of the auditor.
    model : str
        Name of the model; empty for the whole ledger.
    verdict : {"pass", "fail", "skipped"}
        "skipped" is not a pass: something that the level needs is missing, and `reason` says what.
    reason : str
        Explanation in one sentence.
    details : mapping of str to plain values
        The numbers behind the verdict.
    promised : bool
        Whether the tier of the bundle or the selection of the auditor requires this result. A
        promised result that was skipped makes the report incomplete.

    Examples
    --------
    >>> from letheon.audit import LevelResult
    >>> result = LevelResult("V0", "", "pass", "3 certificates")
    >>> result.verdict, result.promised
    ('pass', True)
    """

    level: str
    model: str
    verdict: Verdict
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)
    promised: bool = True

    def __post_init__(self) -> None:
        """Reject unknown levels and verdicts."""
        if self.level not in LEVELS:
            raise ValueError(f"level={self.level!r} is unknown; expected one of {tuple(LEVELS)}")
        if self.verdict not in get_args(Verdict):
            raise ValueError(
                f"verdict={self.verdict!r} is unknown; expected one of {get_args(Verdict)}"
            )

    @property
    def name(self) -> str:
        """What the level checks, in a few words."""
        return LEVELS[self.level][0]

    def __str__(self) -> str:
        """Return the result in one line."""
        model = f" of {self.model}" if self.model else ""
        return f"{self.level} {self.name}{model}: {self.verdict} ({self.reason})"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict of plain values, ready for JSON."""
        return {**vars(self), "name": self.name, "details": dict(self.details)}


@dataclass(frozen=True)
class AuditReport:
    """Every verdict of one audit; ``print(report)`` shows them as text.

    Attributes
    ----------
    results : tuple of LevelResult
        One result per level and model, in the order of the levels.
    ledger : str
        Name of the ledger, as its certificates state it.
    key : str
        The public key that the auditor trusts, as hexadecimal text.
    subjects : tuple of dict
        The newest certificate of every model: what it claims, and what it does not claim.
    audited_at : str
        Time of the audit, in UTC.
    scope : str
        What the verdict covers: the tier of the bundle, the levels and the models.

    Examples
    --------
    >>> from letheon.audit import AuditReport, LevelResult
    >>> report = AuditReport((LevelResult("V0", "", "pass", "3 certificates"),))
    >>> report.verdict
    'passed'
    """

    results: tuple[LevelResult, ...]
    ledger: str = ""
    key: str = ""
    subjects: tuple[Mapping[str, Any], ...] = ()
    audited_at: str = field(
        default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    )
    scope: str = ""

    def __iter__(self) -> Iterator[LevelResult]:
        """Iterate over the results."""
        return iter(self.results)

    def __str__(self) -> str:
        """Return the verdict, the scope, one line per result, and what is not claimed."""
        lines = [f"Audit of {self.ledger or 'a ledger'}, {self.audited_at}: {self.verdict}"]
        lines += [f"Scope: {self.scope}"] if self.scope else []
        lines += ["", *map(str, self.results)]
        for subject in self.subjects:
            guarantee = explanations.explain_guarantee(subject["guarantee"])
            lines += ["", f"{subject['model']}: {guarantee}", "Not claimed:"]
            codes, table = subject["notClaimed"], explanations.NOT_CLAIMED
            lines += [f"- {text}" for _, text in explanations.explain_codes(codes, table)]
        return "\n".join(lines)

    @property
    def verdict(self) -> ReportVerdict:
        """The verdict on what `scope` covers.

        *failed*: at least one level failed. *incomplete*: no level failed, but a level was skipped
        that the tier of the bundle promises or that the auditor selected. *passed*: all other
        cases.
        """
        pairs = ((_PASSED[result.verdict], result.promised) for result in self.results)
        return cast("ReportVerdict", verifier.overall(pairs))

    @property
    def passed(self) -> bool:
        """Whether the verdict is "passed"."""
        return self.verdict == "passed"

    @property
    def open_results(self) -> tuple[LevelResult, ...]:
        """Promised results that were skipped; they make the report incomplete."""
        return tuple(result for result in self.skipped if result.promised)

    @property
    def failures(self) -> tuple[LevelResult, ...]:
        """Results with the verdict "fail"."""
        return tuple(result for result in self.results if result.verdict == "fail")

    @property
    def skipped(self) -> tuple[LevelResult, ...]:
        """Results of levels that could not be checked."""
        return tuple(result for result in self.results if result.verdict == "skipped")

    def of(self, level: str) -> tuple[LevelResult, ...]:
        """Return the results of one level."""
        return tuple(result for result in self.results if result.level == level)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict of plain values, ready for JSON."""
        return {
            "verdict": self.verdict,
            "passed": self.passed,
            "scope": self.scope,
            "ledger": self.ledger,
            "key": self.key,
            "auditedAt": self.audited_at,
            "results": [result.to_dict() for result in self.results],
            "subjects": [dict(subject) for subject in self.subjects],
        }

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True)

    def to_page(self) -> str:
        """Return the report as one HTML page without external resources; texts are escaped."""
        from letheon.evaluation.report import render_page

        to_json = partial(json.dumps, indent=1, sort_keys=True, default=str, ensure_ascii=False)
        limits = {result.level: LEVELS[result.level] for result in self.results}
        return render_page(
            "letheon.audit",
            "audit.html",
            title=f"Audit of {self.ledger or 'a ledger'}",
            report=self,
            limits=limits,
            to_json=to_json,
            explanations=explanations,
        )

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one HTML page without external resources; return its path."""
        from letheon.evaluation.report import write_page

        return write_page(path, self.to_page())

    def __rich__(self) -> "RichTable":
        """Return a table with one line per verdict; texts are not interpreted as markup."""
        from letheon.evaluation.report import Cell, Table

        words = {"passed": "passed", "failed": "FAILED", "incomplete": "INCOMPLETE"}
        title = f"Audit of {self.ledger or 'a ledger'}: {words[self.verdict]}"
        rows = [
            (
                result.level,
                result.name,
                result.model or "all",
                Cell(result.verdict, kind=_KINDS[result.verdict]),
                result.reason,
            )
            for result in self.results
        ]
        table = Table(title, ("level", "shows", "model", "verdict", "reason"), rows, self.scope)
        return table.to_rich(no_wrap=("level", "verdict"))


def key_text(key: str | bytes | Path) -> str:
    """Return a public key as 64 hexadecimal digits, from bytes, text or a file with the text.

    Parameters
    ----------
    key : str, bytes or path
        The key.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        It is not a public key.

    Examples
    --------
    >>> from letheon.audit import key_text
    >>> key_text(bytes(32)) == "00" * 32
    True
    """
    if isinstance(key, bytes):
        return key.hex()
    if isinstance(key, Path) or len(str(key)) != 64:
        text = read_capped(Path(key), SMALL).decode("ascii", "replace").strip()
    else:
        text = str(key)
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise ValueError(
            "key is not a valid public key: expected 32 bytes, 64 hexadecimal digits, or a file "
            "that contains the digits"
        )
    return text


@dataclass(frozen=True)
class AuditedModel:
    """One model of a bundle: its files, and its certificates, oldest first."""

    name: str
    folder: Path
    certificates: tuple[SignedStatement, ...]
    files: Mapping[str, bytes | str] | None = None

    def with_files(self) -> "AuditedModel":
        """Return a copy with the contents of the files in memory.

        A sandboxed process cannot open files and needs such a copy.

        If a file cannot be read, the copy has an error message in its place.
        """
        sizes = {"model.blob": LARGEST, "rows.blob": LARGEST, "vault.blob": LARGEST}
        files: dict[str, bytes | str] = {}
        for name, most in (sizes | {"training.json": SMALL, _SALT: SMALL}).items():
            try:
                files[name] = self._read_file(name, most)
            except (VerificationError, OSError) as error:
                files[name] = f"{name}: {error}"
        return replace(self, files=files)

    def _read_file(self, name: str, most: int) -> bytes:
        path = self.folder / name
        if name == _SALT:  # not among the model's files, whose names older readers know
            path = locate_salt(self.folder)
        return read_capped(path, most)

    def _read(self, name: str, most: int) -> bytes:
        if self.files is None:
            return self._read_file(name, most)
        content = self.files[name]
        if isinstance(content, str):
            raise VerificationError(content)
        return content

    @property
    def newest(self) -> SignedStatement:
        """The certificate that the files belong to."""
        return self.certificates[-1]

    @cached_property
    def raw(self) -> bytes:
        """The bytes of the model's file."""
        return self._read("model.blob", LARGEST)

    @property
    def content(self) -> bytes:
        """The bytes of the model's file without the nonce at its start."""
        return self.raw[_NONCE_BYTES:]

    @property
    def nonce(self) -> bytes:
        """The nonce at the start of the model's file."""
        return self.raw[:_NONCE_BYTES]

    @property
    def is_subject(self) -> bool:
        """Whether the file is the one that the newest certificate is about."""
        expected = self.newest.statement["subject"][0]["digest"]["sha256"]
        return bool(hashlib.sha256(self.raw).hexdigest() == expected)

    def build_model(self, trusted: Iterable[Any] = ()) -> Any:
        """Build the model from its file.

        Raise `UntrustedClassError` for a class that is not trusted, before the class is imported.
        """
        return state.decode(self.content, trusted=tuple(trusted))

    @cached_property
    def rows(self) -> Rows:
        """The remaining rows, in the model's order."""
        rows = self._decode_file("rows.blob")
        if type(rows) is not Rows:
            raise VerificationError("rows.blob does not contain rows")
        return rows

    @cached_property
    def vault(self) -> RowSlots:
        """Slot, salt and position of every row."""
        parts = self._decode_file("vault.blob")
        if type(parts) is not dict or parts.keys() != set(RowSlots._fields):
            raise VerificationError("vault.blob does not contain slots, salts and positions")
        return RowSlots(**parts)

    @cached_property
    def training(self) -> dict[str, Any]:
        """How the training seed was derived, and the key that it was derived from."""
        facts = parse_strict(self._read("training.json", SMALL), SMALL)
        if type(facts) is not dict or facts.keys() != _TRAINING:
            raise VerificationError(
                f"training.json does not have the expected keys {sorted(_TRAINING)}"
            )
        return facts

    @cached_property
    def salt(self) -> bytes:
        """The salt of the commitments to settings and seeds, from the bundle's proofs."""
        opening = parse_strict(self._read(_SALT, SMALL), SMALL)
        if type(opening) is not dict or opening.keys() != {"salt"}:
            raise VerificationError("the proof of the settings does not contain a salt")
        return verifier.from_hex(opening["salt"])

    def _decode_file(self, name: str) -> Any:
        data = self._read(name, LARGEST)
        if data[:_NONCE_BYTES] != bytes(_NONCE_BYTES):
            raise VerificationError(f"{name} does not begin with {_NONCE_BYTES} zero bytes")
        try:
            return state.decode(data[_NONCE_BYTES:])
        except StateError as error:
            raise VerificationError(f"{name}: {error}") from None


class Commitment(NamedTuple):
    """An event of the log that commits to a training key, or registers a model that has one."""

    place: int
    event: dict[str, Any]

    def is_registration_of(self, subject: str) -> bool:
        """Return whether the event registers the model file with this SHA-256."""
        return self.event.get("kind") == "registered" and self.event.get("subject") == subject


class LogFacts(NamedTuple):
    """What the log says about training keys, beacons and publications.

    Attributes
    ----------
    commitments : tuple of Commitment
        Events about training keys, in the order of the log.
    checkpoint_sizes : dict of str to int
        Number of events that each checkpoint covers, by the SHA-256 of its signed text.
    started, published : dict of str to int
        Positions in the log of the first event of each batch, and of the one that published it.
    unused_training_keys : int
        Number of committed keys that no registration or certificate uses: the batch of the key is
        still open or has failed, or an operator discarded the key.
    """

    commitments: tuple[Commitment, ...]
    checkpoint_sizes: dict[str, int]
    started: dict[str, int]
    published: dict[str, int]
    unused_training_keys: int


@dataclass(frozen=True)
class Bundle:
    """A folder that `Ledger.export` wrote; its content is not trusted.

    Parameters
    ----------
    folder : Path
        The exported folder.
    key : str
        First public key of the ledger, in hexadecimal digits.

    Examples
    --------
    >>> from pathlib import Path
    >>> from letheon.audit import Bundle
    >>> Bundle(Path("exported"), key="00" * 32).folder.name
    'exported'
    """

    folder: Path
    key: str

    @cached_property
    def trust(self) -> verifier.Trust:
        """The public keys of the ledger that are trusted, starting from the auditor's key."""
        return verifier.Trust.from_pinned(self.key, self._read_all("keys"))

    @cached_property
    def chain(self) -> list[SignedStatement]:
        """All certificates of the bundle, verified as one chain."""
        return verifier.check_chain(self._read_all("certificates"), self.trust)

    @property
    def ledger(self) -> str:
        """Name of the ledger, as its certificates state it."""
        return str(self.chain[0].predicate["ledger"]["id"]) if self.chain else ""

    @cached_property
    def models(self) -> tuple[AuditedModel, ...]:
        """Models whose files are in the bundle and that have a certificate."""
        certificates: dict[str, list[SignedStatement]] = {}
        for opened in self.chain:
            certificates.setdefault(str(opened.predicate["model"]["id"]), []).append(opened)
        return tuple(
            AuditedModel(name, place, tuple(chain))
            for name, chain in certificates.items()
            if (place := self.folder / verifier.model_folder(name)).is_dir()
        )

    @cached_property
    def tier(self) -> str:
        """The tier, "public" or "auditor", derived from the files of the folder."""
        return verifier.tier_of(verifier.list_files(self.folder))

    @cached_property
    def scope(self) -> dict[str, str] | None:
        """The tenant or model that the export was limited to; None without a signed index."""
        if not (self.folder / verifier.INDEX_FILES[0]).is_file():
            return None
        return dict(verifier.read_description(self.folder)["scope"])

    @property
    def log_facts(self) -> LogFacts:
        """What the log says about training keys, beacons and publications, as plain values."""
        notes = (
            verifier.read_note(read_capped(path, SMALL).decode("utf-8", "replace"))
            for path in sorted((self.folder / "checkpoints").glob("*.txt"))
        )
        sizes = {hashlib.sha256(note.body).hexdigest(): note.size for note in notes}
        commitments: list[Commitment] = []
        started: dict[str, int] = {}
        published: dict[str, int] = {}
        for place, event in enumerate(self.read_events()):
            if "training" in event:
                commitments.append(Commitment(place, event))
            if event.get("kind") in ("sealed", "published"):
                started.setdefault(event["batch"], place)
            if event.get("kind") == "published":
                published[event["batch"]] = place
        used = {
            opened.predicate["method"]["trainingRandomness"]["keyCommitment"]
            for opened in self.chain
        }
        used |= {e["training"] for _, e in commitments if e.get("kind") == "registered"}
        unused = {event["training"] for _, event in commitments} - used
        return LogFacts(tuple(commitments), sizes, started, published, len(unused))

    def read_events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of the log in order.

        The events are authentic only if V1 passes.
        """
        path = self.folder / "events.jsonl"
        if not path.is_file():
            return
        with path.open("rb") as file:
            while line := file.readline(SMALL + 1):
                event = parse_strict(line.rstrip(b"\n"), SMALL)
                yield event if isinstance(event, dict) else {}

    def read_definition(self, digest: str) -> str | None:
        """Return the definition text with this hash, or None if the bundle does not have it."""
        path = self.folder / "definitions" / f"{digest}.md"
        if not path.is_file():
            return None
        data = read_capped(path, SMALL)
        return data.decode() if hashlib.sha256(data).hexdigest() == digest else None

    def _read_all(self, kind: str) -> Iterator[bytes]:
        paths = sorted((self.folder / kind).glob("*.json"))
        if len(paths) > verifier.MOST_FILES:
            raise VerificationError(f"the folder {kind} has more than {verifier.MOST_FILES} files")
        return (read_capped(path, SMALL) for path in paths)


def summarize(bundle: Bundle, certificate: SignedStatement) -> dict[str, Any]:
    """Return the claims of a certificate, for a report."""
    claims = certificate.predicate
    definition = claims["method"]["definition"]["sha256"]
    return {
        "model": claims["model"]["id"],
        "sequence": certificate.sequence,
        "certificate": certificate.id,
        "subject": certificate.statement["subject"][0]["digest"]["sha256"],
        "method": claims["method"]["name"],
        "definition": definition,
        "definitionInBundle": bundle.read_definition(definition) is not None,
        "guarantee": parse_strict(verifier.canonical(claims["guarantee"])),
        "rows": claims["erasure"]["rows"],
        "liveAfter": claims["dataset"]["liveAfter"],
        "certifiedAt": claims["times"]["certifiedAt"],
        "replay": claims["execution"]["replay"],
        "notClaimed": list(claims["notClaimed"]),
    }
