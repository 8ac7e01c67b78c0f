"""Demo steps about trust: an erasure request up to its audit, and an untrusted model file."""

import base64
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from letheon.demo._context import DemoContext
from letheon.exceptions import UntrustedClassError
from letheon.forest import DaREForestClassifier
from letheon.naive import NaiveUnlearner
from letheon.persist import load, save
from letheon.sandbox import Limits, call, protection
from letheon.terminal import make_table, size_text

if TYPE_CHECKING:
    from letheon.audit import AuditReport
    from letheon.ledger import Ledger, Request

TREES = 20
MODEL = "digits"
# Files of the bundle in which one byte is changed; a different audit level covers each of them.
FORGERIES = {
    "certificate": ("certificates/000001.json", "V0"),
    "checkpoint": ("checkpoints", "V1"),
    "proof": ("proofs", "V2"),
    "purge attestation": ("purges/000001.json", "V3"),
    "model": (f"models/default/{MODEL}/model.blob", "V4"),
}


@dataclass(frozen=True)
class Evidence:
    """Results of the operator's steps: erased ids, folder of the ledger, bundle and public key."""

    forgotten: list[str]
    home: Path
    bundle: Path
    key: str


def run_erasure(demo: DemoContext) -> None:
    """Process an erasure request from registration to audit; then change a byte and audit again."""
    why = "Skipped: a ledger needs an extra. To install it:"
    if demo.explain_missing(("sqlalchemy", "alembic", "cryptography"), why, "ledger"):
        return
    with tempfile.TemporaryDirectory() as folder:
        evidence = _run_operator(demo, Path(folder))
        if evidence is None:
            return
        _search_files(demo, evidence)
        if _audit_bundle(demo, evidence):
            _forge_files(demo, evidence)
    demo.print_text(
        "No audit can show that no copy exists outside the stores that the ledger knows. Every "
        "certificate states this under notClaimed."
    )


def _run_operator(demo: DemoContext, folder: Path) -> Evidence | None:
    """Run the operator's steps up to the export of the bundle; return None if a step failed."""
    from letheon.ledger import Ledger

    gone = demo.pick_ids(6)
    forest = demo.fit(DaREForestClassifier(n_estimators=TREES, random_state=demo.seed))
    with Ledger.create(folder / "home", name="demo") as ledger:
        ledger.models.register(forest, demo.X, demo.y, ids=demo.ids, name=MODEL)
        demo.print_text(
            f"A forest of {TREES} trees is registered in a ledger, with its rows. A ledger is a "
            "folder with a database, a signing key, and encrypted files whose keys can be "
            "destroyed. Six people request erasure; the client loses its connection and sends "
            "the request again:"
        )
        first, again = (
            ledger.requests.submit(gone, model=MODEL, key="letter-1", verified=True)
            for _ in range(2)
        )
        demo.print_quote(f"request {first.id[:12]}...: {first.state}, due on {first.due_on}")
        is_same = first.id == again.id and len(ledger.requests.list()) == 1
        recorded = demo.check(is_same, "a repeated request is one request")
        demo.print_text(f"Submitted twice, recorded once: {recorded}.")
        if not _run_worker(demo, ledger, first):
            return None
        served = ledger.models.load(MODEL)
        fresh = DaREForestClassifier(n_estimators=TREES, random_state=served.seed_)
        is_fresh = demo.fit(fresh, gone).digest() == served.digest()
        equal = demo.check(is_fresh, "the served model is a fresh fit")
        demo.print_text(
            f"The model that is served now equals a fresh fit without the six: {equal}."
        )
        _show_certificate(demo, ledger.certificates.envelope(1))
        ledger.export(folder / "bundle", tier="auditor")
        return Evidence(gone, folder / "home", folder / "bundle", ledger.public_key)


def _run_worker(demo: DemoContext, ledger: "Ledger", request: "Request") -> bool:
    """Run the worker once; return whether the request was completed."""
    steps = ledger.run_once(force=True)
    demo.print_text("The worker runs now. By default it waits up to 72 hours to batch requests:")
    for step in steps:
        demo.print_quote(f"{step.what:<10}{step.detail}")
    states = [
        entry.kind for entry in ledger.requests.timeline(request.id) if "from" in entry.details
    ]
    demo.print_text(f"States of the request: received, {', '.join(states)}.")
    served = [step.what for step in steps] == ["applied", "certified", "purged"]
    served = served and ledger.requests.get(request.id).state == "purged"
    demo.check(served, "a request is applied, gets a certificate and is purged in one run")
    return served


def _show_certificate(demo: DemoContext, envelope: bytes) -> None:
    """Print the main facts of a certificate."""
    statement = json.loads(base64.b64decode(json.loads(envelope)["payload"]))
    predicate: dict[str, Any] = statement["predicate"]
    claim, times = predicate["guarantee"], predicate["times"]
    n_erased = predicate["erasure"]["rows"]
    facts = {
        "subject": f"{statement['subject'][0]['name']}, the model after the erasure",
        "erased": f"{n_erased} rows; {predicate['dataset']['liveAfter']:,} remain",
        "guarantee": f"{claim['kind']}, {claim['requests']} requests, {claim['releases']}",
        "dates": f"received {times['oldestReceivedOn']}, due {times['earliestDueOn']}, "
        f"applied {times['appliedAt'][:10]}",
        "not claimed": ", ".join(predicate["notClaimed"]),
    }
    demo.print_text("The certificate, signed with Ed25519. It contains no ids and no free text:")
    demo.show_facts(facts, indent="  ")


def _search_files(demo: DemoContext, evidence: Evidence) -> None:
    """Search every file of the ledger for the erased ids."""
    files = [path for path in evidence.home.rglob("*") if path.is_file()]
    named = [
        path
        for path in files
        if any(person.encode() in path.read_bytes() for person in evidence.forgotten)
    ]
    clean = demo.check(not named, "no file of the ledger contains an erased id")
    keys = [path for path in files if path.name.startswith("epoch-")]
    # Only one version remains, so only one key does.
    destroyed = demo.check(len(keys) == 1, "the key of the version before is destroyed")
    size = size_text(sum(path.stat().st_size for path in files))
    demo.print_text(
        f"None of the six ids is in any of the ledger's {len(files)} files ({size}): {clean}. "
        f"The key that encrypted their rows is destroyed: {destroyed}."
    )


def _audit_bundle(demo: DemoContext, evidence: Evidence) -> bool:
    """Verify the bundle like an external auditor; return whether the audit passes."""
    report = _run_audit(evidence)
    demo.print_text(
        "An external auditor gets the exported folder and the public key, nothing else:"
    )
    rows = [(result.level, result.name, result.verdict, result.reason) for result in report]
    columns = ("level", "shows", "verdict", "because")
    demo.console.print(make_table(columns, rows, pad_edge=False))
    shown = {result.level for result in report if result.verdict == "pass"}
    passed = report.passed and shown >= {"V0", "V1", "V2", "V3", "V4"}
    demo.check(passed, "the audit passes")
    return passed


def _run_audit(evidence: Evidence, *levels: str) -> "AuditReport":
    from letheon.audit import audit

    return audit(evidence.bundle, key=evidence.key, levels=levels or None)


def _forge_files(demo: DemoContext, evidence: Evidence) -> None:
    """Change one byte in each file in turn; each time the audit must fail."""
    rows = []
    for what, (name, level) in FORGERIES.items():
        path = evidence.bundle / name
        victim = max(filter(Path.is_file, path.iterdir())) if path.is_dir() else path
        honest = victim.read_bytes()
        middle = len(honest) // 2
        victim.write_bytes(honest[:middle] + bytes([honest[middle] ^ 1]) + honest[middle + 1 :])
        failures = {
            result.level: result.reason for result in _run_audit(evidence, "V0", level).failures
        }
        victim.write_bytes(honest)
        demo.check(level in failures, f"a changed byte of the {what} fails {level}")
        verdict = f"fails {level}" if level in failures else "NO"
        rows.append((what, verdict, failures.get(level, "")))
    demo.print_text("Now one byte in the middle of a file is changed, and the audit runs again:")
    columns = ("one byte of the", "audit", "because")
    demo.console.print(make_table(columns, rows, pad_edge=False))
    again = demo.check(_run_audit(evidence).passed, "the audit passes when the byte is restored")
    demo.print_text(f"With the original byte, the audit passes: {again}.")


def load_untrusted_file(demo: DemoContext) -> None:
    """Load a model file that tries to read other files; then try to read a file in the sandbox."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline

    with tempfile.TemporaryDirectory() as folder:
        key, path = Path(folder) / "signing.key", Path(folder) / "untrusted.letheon"
        key.write_text("secret words")
        reader = make_pipeline(CountVectorizer(input="filename"), MultinomialNB())
        save(NaiveUnlearner(reader, random_state=0).fit([str(key)] * 2, [0, 1]), path)
        demo.print_text(
            "An untrusted model file has a vectoriser that opens the files named in its rows:"
        )
        refused = False
        try:
            load(path)
        except UntrustedClassError as error:
            refused = True
            demo.print_quote(f"UntrustedClassError: {error}", "yellow")
        demo.check(refused, "a setting that reads files is refused")
        # A sandboxed process tries to read the file: the kernel refuses.
        answer = call(read_text, str(key), limits=Limits(memory=1 << 30, seconds=60))
    demo.print_text("As a second protection, untrusted models are fitted in a sandboxed process.")
    demo.print_text(f"It tried to open the key and got: {answer}. Active: {protection()}.")
    if protection().files == "landlock":
        demo.check(answer == "PermissionError", "a sandboxed process reads no file")


def read_text(path: str, _: Callable[[Any], None]) -> str:
    """Return the content of a file, or the name of the error type; runs in the sandbox."""
    try:
        return Path(path).read_text()
    except OSError as error:
        return type(error).__name__
