"""`letheon audit`: check an exported bundle with its files and the public key alone."""

import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from letheon.cli import _command
from letheon.cli._command import Answer, Listing, UsageError, argument, ledger_command, value
from letheon.verifier import EXIT_CODES, SMALL, read_capped

if TYPE_CHECKING:
    from letheon.audit import AuditReport

audits = _command.make_group("audit", "Check what a ledger exported; needs no ledger.")

Bundle = Annotated[Path, argument("BUNDLE", "Folder that `letheon ledger export` wrote.")]
Key = Annotated[
    str,
    value(
        "KEY", "First public key of the ledger, not from the bundle: 64 digits, or a file of them."
    ),
]
Model = Annotated[str | None, value("NAME", "This model only.")]
Trust = Annotated[
    list[str] | None,
    value("CLASS", "A class that a model may use, with any settings.", name="--trust"),
]
Stores = Annotated[
    list[str] | None, value("[NAME=]DIR", "A folder to be searched; repeatable.", name="--store")
]
Markers = Annotated[
    str | None,
    value("FILE", "Ids or texts that must not be found, one per line; - for standard input."),
]
# The kind of guarantee that a level is about.
_KIND = {"V4": "exact", "V5": "certified"}


@ledger_command(audits, "replay", opens=False)
def replay(bundle: Bundle, key: Key, model: Model = None, trusted: Trust = None) -> Answer:
    """Train the exact models of an auditor's bundle again and compare every byte (V4).

    The exit status is 1 if one differs, and 3 if one could not be compared.

    Example: letheon audit replay bundle --key ledger.pub
    """
    return _audit_level("V4", bundle, key, model, trusted)


@ledger_command(audits, "bound", opens=False)
def bound(bundle: Bundle, key: Key, model: Model = None, trusted: Trust = None) -> Answer:
    """Compute (epsilon, delta) of the certified models from their rows and settings again (V5).

    The exit status is 1 if one does not follow, and 3 if one could not be computed.

    Example: letheon audit bound bundle --key ledger.pub --model churn
    """
    return _audit_level("V5", bundle, key, model, trusted)


def _audit_level(
    level: str, bundle: Path, key: str, model: str | None, trusted: list[str] | None
) -> Answer:
    levels = ("V0", "V2", level)
    report = _audit(bundle, key, levels=levels, model=model, trusted=trusted or ())
    return _report_answer(report, _verdict_on(report, level))


@ledger_command(audits, "residue", opens=False)
def residue(
    bundle: Path | None = None,
    *,
    key: str | None = None,
    store: Stores = None,
    markers: Markers = None,
) -> Answer:
    """Search folders for people who should be gone, and check the purges attested (V3).

    The exit status is 1 if something was found, and 3 if something could not be read or searched.
    What was found is never printed, only where. Short ids are searched as whole values of data
    files; a file of another kind is then not searched, and named.

    Example: letheon audit residue --store backups=/mnt/backups --markers - < ids.txt

    Parameters
    ----------
    bundle : BUNDLE
        A bundle, for the purges that were attested.
    key : KEY
        First public key of the ledger; needed with BUNDLE.
    """
    from letheon.audit import AuditReport, check_residue

    searched = _search_options(store, markers)
    if bundle is not None and key is None:
        raise UsageError("a bundle is checked with --key KEY, from a source you trust")
    if bundle is not None:
        report = _audit(bundle, str(key), levels=("V0", "V3"), **searched)
    elif searched:
        report = AuditReport((check_residue(searched["stores"], searched["markers"]),))
    else:
        raise UsageError("give BUNDLE with --key, or --store with --markers, or both")
    return _report_answer(report, report.verdict)


@ledger_command(audits, "report", opens=False)
def report(
    bundle: Bundle,
    *,
    key: Key,
    model: Model = None,
    seen: Path | None = None,
    witness: list[str] | None = None,
    store: Stores = None,
    markers: Markers = None,
    trusted: Trust = None,
    html: Path | None = None,
    strict: bool = False,
) -> Answer:
    """Check everything that the files permit, V0 to V5.

    The exit status is 0 if the bundle passed, 1 if a level failed, and 3 if the audit is
    incomplete: a level was skipped that the tier of the bundle promises.

    Example: letheon audit report bundle --key ledger.pub --html report.html

    Parameters
    ----------
    seen : FILE
        Checkpoint kept from an earlier audit.
    witness : KEY
        Verifier key of a witness; repeatable.
    html : FILE
        Write the report as a page, too.
    strict : bool
        What was skipped counts as failed.
    """
    outcome = _audit(
        bundle,
        key,
        model=model,
        seen=None if seen is None else _command.require_file(seen),
        witnesses=tuple(witness or ()),
        trusted=trusted or (),
        **_search_options(store, markers),
    )
    if html is not None:
        outcome.to_html(html)
    return _report_answer(outcome, "failed" if strict and outcome.skipped else outcome.verdict)


@ledger_command(audits, "verifier", opens=False)
def verifier(file: Path) -> Answer:
    """Write the stand-alone verifier: one file that needs Python and `cryptography` only.

    Example: letheon audit verifier verifier.py

    Parameters
    ----------
    file : FILE
        Where to write it.
    """
    from letheon import verifier as module

    content = Path(str(module.__file__)).read_bytes()
    with file.open("xb") as out:
        out.write(content)
    digest = hashlib.sha256(content).hexdigest()
    document = {"file": file, "bytes": len(content), "sha256": digest}
    text = f"wrote {file}, sha256 {digest}\nrun: python {file} BUNDLE --key KEY"
    return Answer(document, text)


def _audit(bundle: Path, key: str, **options: Any) -> "AuditReport":
    # Through the package: it says what to install if the extra is missing.
    import letheon

    _command.disable_core_dump()
    if (bundle / "letheon.toml").is_file():
        raise UsageError(f"{bundle} is a ledger, no bundle; `letheon ledger export DIR` writes one")
    pinned = _command.read_public_key(key)
    root = _command.require_folder(bundle) / "keys" / "root.pub"
    content = b""
    if root.is_file() and not root.is_symlink():
        # What is wrong with the file is for the audit to say.
        with suppress(ValueError):
            content = bytes.fromhex(read_capped(root, SMALL).strip().decode("ascii"))
    if len(content) == 32 and hashlib.sha256(content).hexdigest() == pinned:
        raise UsageError(f"{pinned[:16]}… is the id of a key; give the public key itself")
    with _command.usage_errors():
        return letheon.audit.audit(bundle, key=pinned, **options)


def _search_options(stores: list[str] | None, markers: str | None) -> dict[str, Any]:
    """Return where to look for what; both or none."""
    if bool(stores) != (markers is not None):
        raise UsageError("a search needs both: --store DIR and --markers FILE")
    if not stores or markers is None:
        return {}
    wanted = set(_command.read_lines(markers))
    if not wanted:
        raise UsageError(f"{markers} has no marker; give one id or text per line")
    folders = []
    for word in stores:
        name, is_named, folder = word.partition("=")
        path = _command.require_folder(Path(folder if is_named else word))
        folders.append((name if is_named else path.name, path))
    return {"stores": folders, "markers": sorted(wanted)}


def _verdict_on(report: "AuditReport", level: str) -> str:
    """Return the verdict on the models that a level is about; other kinds are not asked for."""
    kinds = {subject["model"]: subject["guarantee"]["kind"] for subject in report.subjects}
    others = [
        result.level == level and kinds.get(result.model, _KIND[level]) != _KIND[level]
        for result in report
    ]
    results = [
        replace(result, promised=result.promised and not is_other)
        for result, is_other in zip(report, others, strict=True)
    ]
    verdict = replace(report, results=tuple(results)).verdict
    is_shown = any(result.verdict == "pass" for result in report.of(level))
    return "incomplete" if verdict == "passed" and not is_shown else verdict


def _report_answer(report: "AuditReport", verdict: str) -> Answer:
    """Return a report; what was asked for and skipped is neither passed nor failed."""
    document = report.to_dict() | {"verdict": verdict, "passed": verdict == "passed"}
    word = verdict if verdict == "passed" else verdict.upper()
    parts = [f"audit of {report.ledger or 'what is there'}: {word}"]
    parts += [f"it covers: {report.scope}"] if report.scope else []
    words = {"fail": "FAIL"}
    rows = [
        (
            result.level,
            result.model or "all",
            words.get(result.verdict, result.verdict),
            result.reason,
        )
        for result in report
    ]
    columns = ("level", "model", "verdict", "reason")
    listing = Listing(columns, rows, empty="", folds="reason")
    return Answer(document, *parts, listing, status=EXIT_CODES[verdict])
