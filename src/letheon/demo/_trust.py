"""Acts of the demo about trust: a request up to its audit, and a model file from a stranger."""

import base64
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from letheon.demo._scene import Scene
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
# The forger changes one byte of one file in the bundle; each level guards another one.
FORGERIES = {
    "certificate": ("certificates/000001.json", "V0"),
    "checkpoint": ("checkpoints", "V1"),
    "proof": ("proofs", "V2"),
    "purge attestation": ("purges/000001.json", "V3"),
    "model": (f"models/default/{MODEL}/model.blob", "V4"),
}


@dataclass(frozen=True)
class Evidence:
    """What is left when the operator is done: who left, the home, the bundle, the public key."""

    gone: list[str]
    home: Path
    bundle: Path
    key: str


def erase(scene: Scene) -> None:
    """Register, request, apply, certify, purge, audit; then change a byte and audit again."""
    why = "Skipped: a ledger needs an extra. With it this act is played:"
    if scene.lacks(("sqlalchemy", "alembic", "cryptography"), why, "ledger"):
        return
    with tempfile.TemporaryDirectory() as folder:
        evidence = _operate(scene, Path(folder))
        if evidence is None:
            return
        _search(scene, evidence)
        if _audit(scene, evidence):
            _forge(scene, evidence)
    scene.say(
        "What nobody can show: that no copy was kept where the ledger does not look. Every "
        "certificate says so itself, under notClaimed."
    )


def _operate(scene: Scene, folder: Path) -> Evidence | None:
    """Do what the operator does, up to the bundle that a stranger gets; None if that failed."""
    from letheon.ledger import Ledger

    gone = scene.some_people(6)
    forest = scene.fit(DaREForestClassifier(n_estimators=TREES, random_state=scene.seed))
    with Ledger.create(folder / "home", name="demo") as ledger:
        ledger.models.register(forest, scene.X, scene.y, ids=scene.ids, name=MODEL)
        scene.say(
            f"A forest of {TREES} trees is registered in a ledger, with its rows: a folder with a "
            "database, a signing key, and files that are sealed by keys made to be destroyed. "
            "Six people ask to be erased; the client is cut off and asks again:"
        )
        first, again = (
            ledger.requests.submit(gone, model=MODEL, key="letter-1", verified=True)
            for _ in range(2)
        )
        scene.quote(f"request {first.id[:12]}...: {first.state}, due on {first.due_on}")
        is_same = first.id == again.id and len(ledger.requests.list()) == 1
        recorded = scene.check(is_same, "a repeated request is one request")
        scene.say(f"Asked twice, recorded once: {recorded}.")
        if not _serve(scene, ledger, first):
            return None
        served = ledger.models.load(MODEL)
        fresh = DaREForestClassifier(n_estimators=TREES, random_state=served.seed_)
        is_fresh = scene.fit(fresh, gone).digest() == served.digest()
        equal = scene.check(is_fresh, "the served model is a fresh fit")
        scene.say(f"The model that is served now equals a fresh fit without the six: {equal}.")
        _show_certificate(scene, ledger.certificates.envelope(1))
        ledger.export(folder / "bundle", tier="auditor")
        return Evidence(gone, folder / "home", folder / "bundle", ledger.public_key)


def _serve(scene: Scene, ledger: "Ledger", request: "Request") -> bool:
    """Let the worker do its round; return whether the request was served to its end."""
    steps = ledger.run_once(force=True)
    scene.say("The worker is sent at once; left alone, it waits up to 72 hours for more requests:")
    for step in steps:
        scene.quote(f"{step.what:<10}{step.detail}")
    states = [
        entry.kind for entry in ledger.requests.timeline(request.id) if "from" in entry.details
    ]
    scene.say(f"The request was received, then {', '.join(states)}.")
    served = [step.what for step in steps] == ["applied", "certified", "purged"]
    served = served and ledger.requests.get(request.id).state == "purged"
    scene.check(served, "a request is applied, certified and purged in one round")
    return served


def _show_certificate(scene: Scene, envelope: bytes) -> None:
    """Print what a reader of the certificate looks at first."""
    statement = json.loads(base64.b64decode(json.loads(envelope)["payload"]))
    said: dict[str, Any] = statement["predicate"]
    claim, times = said["guarantee"], said["times"]
    facts = {
        "subject": f"{statement['subject'][0]['name']}, the model after the erasure",
        "erased": f"{said['erasure']['rows']} rows; {said['dataset']['liveAfter']:,} are left",
        "guarantee": f"{claim['kind']}, {claim['requests']} requests, {claim['releases']}",
        "dates": f"asked {times['oldestReceivedOn']}, due {times['earliestDueOn']}, "
        f"applied {times['appliedAt'][:10]}",
        "not claimed": ", ".join(said["notClaimed"]),
    }
    scene.say("The certificate, signed with Ed25519. It names nobody, and holds no free text:")
    scene.show_facts(facts, indent="  ")


def _search(scene: Scene, evidence: Evidence) -> None:
    """Look for the people who left in every file of the ledger."""
    files = [path for path in evidence.home.rglob("*") if path.is_file()]
    named = [
        path
        for path in files
        if any(person.encode() in path.read_bytes() for person in evidence.gone)
    ]
    clean = scene.check(not named, "no file of the ledger names a person who was erased")
    keys = [path for path in files if path.name.startswith("epoch-")]
    # One version is left, so one key is.
    gone = scene.check(len(keys) == 1, "the key of the version before is destroyed")
    size = size_text(sum(path.stat().st_size for path in files))
    scene.say(
        f"None of the six is named in any of the ledger's {len(files)} files ({size}): {clean}. "
        f"The key that their rows were sealed with is destroyed: {gone}."
    )


def _audit(scene: Scene, evidence: Evidence) -> bool:
    """Verify everything as a stranger would; return whether there is something to forge."""
    report = _look(evidence)
    scene.say("A stranger gets a folder and the public key, and trusts nothing else:")
    rows = [(result.level, result.name, result.verdict, result.reason) for result in report]
    columns = ("level", "shows", "verdict", "because")
    scene.console.print(make_table(columns, rows, pad_edge=False))
    shown = {result.level for result in report if result.verdict == "pass"}
    passed = report.passed and shown >= {"V0", "V1", "V2", "V3", "V4"}
    scene.check(passed, "the audit passes")
    return passed


def _look(evidence: Evidence, *levels: str) -> "AuditReport":
    from letheon.audit import audit

    return audit(evidence.bundle, key=evidence.key, levels=levels or None)


def _forge(scene: Scene, evidence: Evidence) -> None:
    """Change one byte of one file after the other; each time the audit must notice."""
    rows = []
    for what, (name, level) in FORGERIES.items():
        path = evidence.bundle / name
        victim = max(path.iterdir()) if path.is_dir() else path
        honest = victim.read_bytes()
        middle = len(honest) // 2
        victim.write_bytes(honest[:middle] + bytes([honest[middle] ^ 1]) + honest[middle + 1 :])
        failures = {result.level: result.reason for result in _look(evidence, "V0", level).failures}
        victim.write_bytes(honest)
        scene.check(level in failures, f"a changed byte of the {what} fails {level}")
        verdict = f"fails {level}" if level in failures else "NO"
        rows.append((what, verdict, failures.get(level, "")))
    scene.say("Now somebody changes a single byte, somewhere in the middle, and we audit again:")
    columns = ("one byte of the", "audit", "because")
    scene.console.print(make_table(columns, rows, pad_edge=False))
    again = scene.check(_look(evidence).passed, "the audit passes when the byte is put back")
    scene.say(f"With the byte put back, the audit passes: {again}.")


def distrust(scene: Scene) -> None:
    """Load a file whose settings read files; then try to read one in a sandboxed process."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline

    with tempfile.TemporaryDirectory() as folder:
        key, path = Path(folder) / "signing.key", Path(folder) / "stranger.letheon"
        key.write_text("secret words")
        reader = make_pipeline(CountVectorizer(input="filename"), MultinomialNB())
        save(NaiveUnlearner(reader, random_state=0).fit([str(key)] * 2, [0, 1]), path)
        scene.say("A stranger sends a model whose vectoriser opens every file that a row names:")
        refused = False
        try:
            load(path)
        except UntrustedClassError as error:
            refused = True
            scene.quote(f"UntrustedClassError: {error}", "yellow")
        scene.check(refused, "a setting that reads files is refused")
        # A sandboxed process reads the file itself: the kernel refuses.
        answer = call(read_text, str(key), limits=Limits(memory=1 << 30, seconds=60))
    scene.say("Had it found another way: models from outside are fitted in a process of their own.")
    scene.say(f"It tried to open the key, and got: {answer}. Active here: {protection()}.")
    if protection().files == "landlock":
        scene.check(answer == "PermissionError", "a sandboxed process reads no file")


def read_text(path: str, _: Callable[[Any], None]) -> str:
    """Return what is in a file, or the kind of the refusal; run in the sandbox."""
    try:
        return Path(path).read_text()
    except OSError as error:
        return type(error).__name__
