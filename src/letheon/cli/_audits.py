"""`letheon audit`: check an exported bundle with nothing but its files and the public key."""

import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from letheon.cli import _command
from letheon.cli._command import CommandOutput, Listing, UsageError, argument, ledger_command, value
from letheon.verifier import EXIT_CODES, SMALL, read_capped

if TYPE_CHECKING:
    from letheon.audit import AuditReport

audits = _command.make_group("audit", "Check an exported bundle; needs no ledger.")

Bundle = Annotated[Path, argument("BUNDLE", "Folder that `letheon ledger export` wrote.")]
Key = Annotated[
    str,
    value(
        "KEY",
        "First public key of the ledger, from a trusted source other than the bundle: 64 "
        "hexadecimal digits, or a file with them.",
    ),
]
Model = Annotated[str | None, value("NAME", "Check this model only.")]
Trust = Annotated[
    list[str] | None,
    value("CLASS", "Class that a model may use, with any settings; repeatable.", name="--trust"),
]
Stores = Annotated[
    list[str] | None, value("[NAME=]DIR", "Folder to search; repeatable.", name="--store")
]
Markers = Annotated[
    str | None,
    value("FILE", "File with ids or texts to search for, one per line; - reads standard input."),
]
# The kind of guarantee that a level checks.
_KIND = {"V4": "exact", "V5": "certified"}


@ledger_command(audits, "replay", opens=False)
def replay_models(
    bundle: Bundle, key: Key, model: Model = None, trusted: Trust = None
) -> CommandOutput:
    """Train the exact models of an auditor bundle again and compare every byte (V4).

    The exit status is 1 if a model differs, and 3 if a model could not be compared.

    Example: letheon audit replay bundle --key ledger.pub
    """
    return _audit_level("V4", bundle, key, model, trusted)


@ledger_command(audits, "bound", opens=False)
def check_bounds(
    bundle: Bundle, key: Key, model: Model = None, trusted: Trust = None
) -> CommandOutput:
    """Recompute (epsilon, delta) of the certified models from their rows and settings (V5).

    The exit status is 1 if a bound does not hold, and 3 if a bound could not be computed.

    Example: letheon audit bound bundle --key ledger.pub --model churn
    """
    return _audit_level("V5", bundle, key, model, trusted)


def _audit_level(
    level: str, bundle: Path, key: str, model: str | None, trusted: list[str] | None
) -> CommandOutput:
    levels = ("V0", "V2", level)
    report = _run_audit(bundle, key, levels=levels, model=model, trusted=trusted or ())
    return _format_report(report, _judge_level(report, level))


@ledger_command(audits, "residue", opens=False)
def search_residue(
    bundle: Path | None = None,
    *,
    key: str | None = None,
    store: Stores = None,
    markers: Markers = None,
) -> CommandOutput:
    """Search folders for erased ids, and check the attested purges (V3).

    The exit status is 1 if an id was found, and 3 if a file could not be read or searched. The
    output names files, never ids. Short ids are searched for only as whole values in data files;
    other files are listed as not searched for them.

    Example: letheon audit residue --store backups=/mnt/backups --markers - < ids.txt

    Parameters
    ----------
    bundle : BUNDLE
        Bundle with the attested purges.
    key : KEY
        First public key of the ledger; required with BUNDLE.
    """
    from letheon.audit import AuditReport, check_residue

    searched = _search_options(store, markers)
    if bundle is not None and key is None:
        raise UsageError(
            "BUNDLE requires --key KEY: the public key of the ledger, from a source that you trust"
        )
    if bundle is not None:
        report = _run_audit(bundle, str(key), levels=("V0", "V3"), **searched)
    elif searched:
        report = AuditReport((check_residue(searched["stores"], searched["markers"]),))
    else:
        raise UsageError(
            "nothing to check: give BUNDLE with --key, or --store with --markers, or both"
        )
    return _format_report(report, report.verdict)


@ledger_command(audits, "report", opens=False)
def report_audit(
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
) -> CommandOutput:
    """Run every check that the files allow, V0 to V5.

    The exit status is 0 if the bundle passed, 1 if a level failed, and 3 if the audit is
    incomplete: a level that the tier of the bundle promises was skipped.

    Example: letheon audit report bundle --key ledger.pub --html report.html

    Parameters
    ----------
    seen : FILE
        Checkpoint kept from an earlier audit.
    witness : KEY
        Verifier key of a witness; repeatable.
    html : FILE
        Also write the report as an HTML page.
    strict : bool
        Count a skipped level as failed.
    """
    outcome = _run_audit(
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
    return _format_report(outcome, "failed" if strict and outcome.skipped else outcome.verdict)


@ledger_command(audits, "verifier", opens=False)
def write_verifier(file: Path) -> CommandOutput:
    """Write the stand-alone verifier: one file that needs only Python and `cryptography`.

    Example: letheon audit verifier verifier.py

    Parameters
    ----------
    file : FILE
        File to write.
    """
    from letheon import verifier as module

    content = Path(str(module.__file__)).read_bytes()
    with file.open("xb") as out:
        out.write(content)
    digest = hashlib.sha256(content).hexdigest()
    document = {"file": file, "bytes": len(content), "sha256": digest}
    text = f"wrote {file}, sha256 {digest}\nrun: python {file} BUNDLE --key KEY"
    return CommandOutput(document, text)


def _run_audit(bundle: Path, key: str, **options: Any) -> "AuditReport":
    # Through the package: its error says which extra to install.
    import letheon

    _command.disable_core_dump()
    if (bundle / "letheon.toml").is_file():
        raise UsageError(
            f"{bundle} is a ledger, not a bundle; run `letheon ledger export DIR` to write a bundle"
        )
    pinned = _command.read_public_key(key)
    root = _command.require_folder(bundle) / "keys" / "root.pub"
    content = b""
    if root.is_file() and not root.is_symlink():
        # The audit reports what is wrong with the file.
        with suppress(ValueError):
            content = bytes.fromhex(read_capped(root, SMALL).strip().decode("ascii"))
    if len(content) == 32 and hashlib.sha256(content).hexdigest() == pinned:
        raise UsageError(f"--key {pinned[:16]}… is the id of a key; expected the public key itself")
    with _command.wrap_usage_errors():
        return letheon.audit.audit(bundle, key=pinned, **options)


def _search_options(stores: list[str] | None, markers: str | None) -> dict[str, Any]:
    """Return `stores` and `markers` for an audit; an empty dict if neither is given.

    Raise `UsageError` if only one of them is given.
    """
    if bool(stores) != (markers is not None):
        raise UsageError("--store DIR and --markers FILE must be used together")
    if not stores or markers is None:
        return {}
    wanted = set(_command.read_lines(markers))
    if not wanted:
        raise UsageError(f"{markers} is empty; expected one id or text per line")
    folders = []
    for word in stores:
        name, is_named, folder = word.partition("=")
        path = _command.require_folder(Path(folder if is_named else word))
        folders.append((name if is_named else path.name, path))
    return {"stores": folders, "markers": sorted(wanted)}


def _judge_level(report: "AuditReport", level: str) -> str:
    """Return the verdict of a report if only the models that a level checks count.

    V4 checks exact models, V5 certified ones. If no model was checked, it is "incomplete".
    """
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


def _format_report(report: "AuditReport", verdict: str) -> CommandOutput:
    """Return a report with this verdict as the output of a command."""
    document = report.to_dict() | {"verdict": verdict, "passed": verdict == "passed"}
    word = verdict if verdict == "passed" else verdict.upper()
    parts = [f"audit of {report.ledger or 'the given files'}: {word}"]
    parts += [f"scope: {report.scope}"] if report.scope else []
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
    return CommandOutput(document, *parts, listing, status=EXIT_CODES[verdict])
