"""`letheon cert` and `letheon receipt`: read and verify certificates and receipts."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from letheon import verifier
from letheon.cli import _command
from letheon.cli._command import (
    CommandOutput,
    Listing,
    UsageError,
    argument,
    flag,
    ledger_command,
    value,
)
from letheon.exceptions import LedgerError, LedgerMissingError
from letheon.verifier import (
    LARGEST,
    SMALL,
    Trust,
    Verdict,
    VerificationError,
    read_capped,
    search_gaps,
)

if TYPE_CHECKING:
    from letheon.ledger import Ledger
    from letheon.ledger.certificates.receipt_codes import OpenedReceipt

certs = _command.make_group("cert", "Show and verify certificates of unlearning.")
receipts = _command.make_group(
    "receipt", "Create, export, decrypt and check receipts for erased people."
)

Certificate = Annotated[
    str, argument("CERTIFICATE", "Number of the certificate in the ledger, or its file.")
]
Key = Annotated[
    str | None,
    value(
        "KEY",
        "First public key of the ledger: 64 hexadecimal digits, or a file with them.",
        "the key of the ledger; required for a file",
    ),
]
Purge = Annotated[bool, flag("--purge", "Use the purge attestation of the certificate instead.")]


_LONGEST_NUMBER = 15
_NOT_YET = "not yet"
# A proof or an estimate is not labelled as a measurement.
_BASIS = {"by-proof": "by proof", "proxy-estimate": "estimated"}


@dataclass(frozen=True)
class _LoadedEnvelope:
    """A signed envelope, with what is needed to verify and show it.

    `statements` are the key rotations and revocations of the ledger. `pinned` (its public key) and
    `purge` (the state of the purge) are None for a file.
    """

    data: bytes
    statements: list[bytes]
    pinned: str | None
    purge: str | None


def read_statements(folder: Path) -> list[bytes]:
    """Return the signed key rotations and revocations in a folder, without verifying them."""
    return [read_capped(path, SMALL) for path in sorted(folder.glob("[0-9]*.json"))]


def _load_envelope(word: str, folder: Path | None, *, purge: bool) -> _LoadedEnvelope:
    path = Path(word)
    if path.is_file():
        home = path.absolute().parent.parent
        key_statements = [
            *read_statements(home / "keys"),
            *read_statements(home / "public" / "keys"),
        ]
        return _LoadedEnvelope(read_capped(path, SMALL), key_statements, None, None)
    if not (word.isascii() and word.isdecimal() and len(word) <= _LONGEST_NUMBER):
        raise FileNotFoundError(
            f"{word!r} is neither an existing file nor the number of a certificate"
        )
    with _command.open_ledger(folder) as opened:
        sequence, known = int(word), read_statements(opened.folder / "public" / "keys")
        data = (
            opened.certificates.purge_attestation(sequence)
            if purge
            else opened.certificates.envelope(sequence)
        )
        return _LoadedEnvelope(data, known, opened.public_key, _purge_state(opened, sequence))


def _purge_state(ledger: "Ledger", sequence: int) -> str:
    """Return, as text, whether the purge that follows a certificate is attested."""
    try:
        claims = _read_statement(ledger.certificates.purge_attestation(sequence))["predicate"]
    except LedgerMissingError:
        return _NOT_YET
    gaps = search_gaps(claims)
    return f"attested, not fully searched: {gaps}" if gaps else "attested"


def _read_statement(envelope: bytes) -> dict[str, Any]:
    """Return the statement in an envelope.

    The schema is checked, but the signature is not.
    """
    verifier.certificate_id(envelope)
    statement: dict[str, Any] = verifier.parse_strict(
        verifier.from_base64(verifier.parse_strict(envelope)["payload"]), SMALL
    )
    verifier.check_schema(statement)
    return statement


@ledger_command(certs, "show", opens=False)
def show_certificate(
    certificate: Certificate, purge: Purge = False, ledger: _command.Home = None
) -> CommandOutput:
    """Show the content of a certificate, without verifying its signature.

    Example: letheon cert show 3
    """
    envelope = _load_envelope(certificate, ledger, purge=purge)
    statement, identity = _read_statement(envelope.data), verifier.certificate_id(envelope.data)
    purged = None if envelope.purge is None else envelope.purge != _NOT_YET
    document = {"id": identity, "purged": purged, "purge": envelope.purge, "statement": statement}
    if statement["predicateType"] in verifier.CERTIFICATES:
        lines = _certificate_facts(statement, identity, envelope.purge)
    elif statement["predicateType"] == verifier.PURGE:
        lines = _attestation_facts(statement["predicate"], identity)
    else:
        raise VerificationError(
            "the file contains neither a certificate nor the attestation of a purge"
        )
    return CommandOutput(document, _command.make_fact_list(list(lines)))


@ledger_command(certs, "verify", opens=False)
def verify_certificate(
    certificate: Certificate,
    *,
    key: Key = None,
    keys: Path | None = None,
    predictor: Path | None = None,
    purge: Purge = False,
    ledger: _command.Home = None,
) -> CommandOutput:
    """Verify signature, schema and key of a certificate; exit status 1 if one is not valid.

    To check the chain of certificates and whether the rows were removed, use `letheon audit
    report`.

    Example: letheon cert verify bundle/certificates/000003.json --key ledger.pub

    Parameters
    ----------
    keys : DIR, by default next to the file's folder
        Folder with the ledger's key rotations and revocations.
    predictor : FILE
        File of a predictor that must be the one that the certificate states.
    """
    if purge and predictor is not None:
        raise UsageError(
            "--purge checks the purge attestation, which states no predictor; leave "
            "out --purge or --predictor"
        )
    envelope = _load_envelope(certificate, ledger, purge=purge)
    pinned = envelope.pinned if key is None else _command.read_public_key(key)
    if pinned is None:
        raise UsageError(
            "a certificate file requires --key KEY: the public key of the ledger, "
            "from a source that you trust"
        )
    key_statements = (
        envelope.statements if keys is None else read_statements(_command.require_folder(keys))
    )
    try:
        opened = verifier.open_envelope(envelope.data, Trust.from_pinned(pinned, key_statements))
        if predictor is not None:
            data = read_capped(_command.require_file(predictor), LARGEST)
            verifier.check_predictor(data, opened)
    except VerificationError as error:
        document = {"verified": False, "reason": str(error), "key": pinned}
        return CommandOutput(document, f"NOT valid: {error}", status=_command.FAILED)
    document = {
        "verified": True,
        "kind": "certificate" if opened.is_certificate else "attestation",
        "id": opened.id,
        "key": pinned,
        "sequence": opened.sequence,
        "ledger": opened.predicate["ledger"]["id"],
    }
    text = (
        f"{document['kind']} {opened.sequence} of ledger {document['ledger']} is valid: signature, "
        f"schema and key\nid {opened.id}"
    )
    if predictor is not None:
        text += f"\n{predictor} is the predictor that it states"
    return CommandOutput(document, text)


@ledger_command(certs, "chain")
def show_chain(ledger: "Ledger", key: Key = None) -> CommandOutput:
    """List all certificates and verify that they form one chain; exit status 1 if they do not.

    Example: letheon cert chain
    """
    envelopes = [ledger.certificates.envelope(number) for number in ledger.certificates.sequences()]
    links = [_summarize_link(_read_statement(data), ledger) for data in envelopes]
    pinned = ledger.public_key if key is None else _command.read_public_key(key)
    reason = None
    try:
        known = read_statements(ledger.folder / "public" / "keys")
        verifier.check_chain(envelopes, Trust.from_pinned(pinned, known))
    except VerificationError as error:
        reason = str(error)
    document = {"verified": reason is None, "reason": reason, "certificates": links}
    parts = [_chain_listing(links)]
    if reason is not None:
        return CommandOutput(
            document, *parts, f"the chain is NOT valid: {reason}", status=_command.FAILED
        )
    summary = (
        [f"{len(links)} certificate(s) in one chain; signatures, schemas and links are valid"]
        if links
        else []
    )
    return CommandOutput(document, *parts, *summary)


def _summarize_link(statement: dict[str, Any], opened: "Ledger") -> dict[str, Any]:
    claims = statement["predicate"]
    sequence = claims["ledger"]["sequence"]
    purge = _purge_state(opened, sequence)
    return {
        "sequence": sequence,
        "model": claims["model"]["id"],
        "kind": "retrain" if claims["method"]["name"] == "retrain" else "erase",
        "rows": claims["erasure"]["rows"],
        "left": claims["dataset"]["liveAfter"],
        "guarantee": claims["guarantee"],
        "certified_at": claims["times"]["certifiedAt"],
        "purged": purge != _NOT_YET,
        "purge": purge,
    }


def _chain_listing(links: list[dict[str, Any]]) -> Listing:
    rows = [
        (
            link["sequence"],
            link["model"],
            link["kind"],
            f"{link['rows']:,}",
            f"{link['left']:,}",
            _guarantee_text(link["guarantee"]),
            link["certified_at"][:10],
            {_NOT_YET: "no", "attested": "yes"}.get(link["purge"], "not fully searched"),
        )
        for link in links
    ]
    columns = ("no.", "model", "kind", "rows", "remaining", "guarantee", "issued", "purged")
    return Listing(columns, rows, empty="no certificate yet", folds="guarantee")


def _guarantee_text(guarantee: dict[str, Any]) -> str:
    """Return the kind and the bound of a guarantee, as text."""
    if "epsilon" not in guarantee:
        return str(guarantee["kind"])
    return f"{guarantee['kind']} ({guarantee['epsilon']}, {guarantee['delta']})"


def _certificate_facts(
    statement: dict[str, Any], identity: str, purge: str | None
) -> Iterator[tuple[str, str]]:
    claims = statement["predicate"]
    data, method, times = claims["dataset"], claims["method"], claims["times"]
    rows, guarantee = claims["erasure"]["rows"], claims["guarantee"]
    yield "certificate", f"{claims['ledger']['sequence']} of ledger {claims['ledger']['id']}"
    yield "id", identity
    yield "model", str(claims["model"]["id"])
    yield "model sha256", str(statement["subject"][0]["digest"]["sha256"])
    if "predictor" in claims["model"]:
        stated = claims["model"]["predictor"]
        yield "predictor sha256", str(stated.get("sha256", f"none ({stated.get('reason')})"))
    yield "erased", f"{rows:,} rows of data set {data['id']}; {data['liveAfter']:,} remain"
    yield "grounds", ", ".join(claims["erasure"]["grounds"])
    yield "method", f"{method['name']} {method['version']}, replay {claims['execution']['replay']}"
    covers = f"{guarantee['requests']} requests, releases {guarantee['releases']}"
    yield "guarantee", f"{_guarantee_text(guarantee)}; {covers}"
    if guarantee.get("assumptions"):
        yield "assumes", ", ".join(guarantee["assumptions"])
    yield "account", _account_text(guarantee["accounting"])
    for name in ("efficiency", "effectiveness", "consistency", "certifiability"):
        figure = claims["measurements"][name]
        yield _BASIS.get(figure["basis"], "measured"), f"{name}: {_figure_text(figure)}"
    yield "monitor", str(claims["monitor"]["decision"])
    yield "received", f"first on {times['oldestReceivedOn']}, first due on {times['earliestDueOn']}"
    yield "applied", f"{times['appliedAt']}, certificate issued {times['certifiedAt']}"
    if purge is not None:
        yield "purged", purge
    yield "not claimed", ", ".join(claims["notClaimed"])


def _account_text(account: dict[str, Any]) -> str:
    rows = f"{account['deletionsSinceRetrain']:,} rows since the last retrain"
    if "budget" not in account:
        return rows
    if "spent" not in account:
        return f"within its budget of {account['budget']}; {rows}"
    return f"{account['spent']} of {account['budget']} spent; {rows}"


def _figure_text(figure: dict[str, Any]) -> str:
    if figure["metric"] == "not-measured":
        return "not measured"
    return f"{figure['metric']} {figure['value']}, {figure['basis']}"


def _attestation_facts(claims: dict[str, Any], identity: str) -> Iterator[tuple[str, str]]:
    scanner, times = claims["scanner"], claims["times"]
    yield "purge", f"of certificate {claims['ledger']['sequence']}, ledger {claims['ledger']['id']}"
    yield "id", identity
    yield "certificate", str(claims["certificate"]["sha256"])
    for store in claims["stores"]:
        end = f"by {store['by']}" if store["state"] == "expires" else f"at {store['at']}"
        if "notSearched" in store:
            end += f", files not searched: {store['notSearched']:,}"
        yield "store", f"{store['store']} ({store['scope']}): {store['state']} {end}"
    yield "salts", f"{claims['salts']['destroyed']:,} destroyed"
    looked = f"{scanner['markers']:,} markers in {scanner['files']:,} files"
    yield "scanner", f"{looked} ({scanner['bytes']:,} bytes), {scanner['hits']} found"
    if gaps := search_gaps(claims):
        yield "not searched", gaps
    yield "recipients", f"{claims['recipientsTold']} notified"
    yield "times", f"{times['startedAt']} to {times['purgedAt']}"
    yield "not claimed", ", ".join(claims["notClaimed"])


RequestId = Annotated[str, argument("REQUEST", "Id of the request.")]
Desk = Annotated[str | None, value("URL", "Address of the desk that received the request.")]
Bundle = Annotated[Path | None, value("DIR", "Exported bundle to check the receipt with.")]
BundleKey = Annotated[
    str | None, value("KEY", "First public key of the ledger, or a file with it; for --bundle.")
]
_WAIT_SECONDS = 30
_WORDS = {True: "pass", False: "FAIL", None: "skipped"}


@ledger_command(receipts, "code")
def create_code(ledger: "Ledger", request: RequestId) -> CommandOutput:
    """Create a receipt code for a request about one person; any earlier code becomes invalid.

    The code is shown once and is not stored: give it to the person. A code can be created until the
    request is applied.

    Example: letheon receipt code 0b5d4b1e6a7f4c0e9d2f3a4b5c6d7e8f
    """
    code = ledger.certificates.receipts.new_code(request)
    return CommandOutput({"request": request, "code": code}, code)


@ledger_command(receipts, "export")
def export_receipt(ledger: "Ledger", request: RequestId, *, out: Path) -> CommandOutput:
    """Write the encrypted receipt of a request; only the person's code decrypts it.

    Example: letheon receipt export 0b5d4b1e6a7f4c0e9d2f3a4b5c6d7e8f --out receipt.sealed

    Parameters
    ----------
    out : FILE
        File to write.
    """
    kept = ledger.certificates.receipts
    sealed = kept.get_encrypted(request, kept.key(request) or "")
    if sealed is None:
        raise LedgerMissingError(
            "there is no receipt for this request yet; it exists after the certificate is issued"
        )
    _write_file(out, sealed)
    return CommandOutput({"file": out, "bytes": len(sealed)}, f"written to {out}")


@ledger_command(receipts, "open", opens=False)
def open_receipt(
    code: str,
    *,
    sealed: Path | None = None,
    desk: Desk = None,
    out: Path | None = None,
    salts: Path | None = None,
    bundle: Bundle = None,
    key: BundleKey = None,
) -> CommandOutput:
    """Decrypt a receipt on this machine; the code is not sent anywhere.

    A decrypted receipt contains no secrets: `letheon receipt check` or a third party can check it.

    Example: letheon receipt open - --desk https://desk.example.org --out receipt.json

    Parameters
    ----------
    code : CODE
        The receipt code; - reads it from standard input, which keeps it out of the shell history.
    sealed : FILE
        File with the encrypted receipt.
    out : FILE, by default printed on the terminal
        File for the receipt.
    salts : FILE
        File for the salts of the receipt; keep them secret.
    """
    _command.disable_core_dump()
    opened = _open_receipt(code, sealed, desk)
    if out is not None:
        _write_file(out, opened.receipt)
    if salts is not None:
        _write_file(salts, json.dumps(opened.openings).encode())
    verdicts = [] if bundle is None else _verify_receipt(opened.receipt, bundle, key)
    document = {
        "certificate": opened.certificate,
        "rows": len(opened.rows),
        "left_out": opened.left_out,
        "receipt": json.loads(opened.receipt),
        "levels": verdicts,
    }
    about = f"{len(opened.rows)} rows removed with certificate {opened.certificate}"
    if opened.left_out:
        about += f", and {opened.left_out} more that are not in the receipt"
    shown = opened.receipt.decode() if out is None else f"written to {out}"
    parts = filter(None, (about, shown, _verdict_lines(verdicts)))
    return CommandOutput(document, *parts, status=0 if _is_covered(verdicts) else _command.FAILED)


@ledger_command(receipts, "check", opens=False)
def check_receipt(
    file: Path, *, bundle: Bundle = None, key: BundleKey = None, desk: Desk = None
) -> CommandOutput:
    """Check a receipt with a bundle or at the desk; exit status 1 if no certificate covers it.

    With a bundle, you need to trust only the public key. The check shows that the rows were in the
    data set before the erasure and are not in it afterwards.

    Example: letheon receipt check receipt.json --bundle bundle --key ledger.pub

    Parameters
    ----------
    file : FILE
        A decrypted receipt.
    """
    receipt = read_capped(_command.require_file(file), SMALL)
    if (bundle is None) == (desk is None):
        raise UsageError("give either --bundle DIR with --key KEY, or --desk URL")
    if desk is not None:
        verdict = _post_json(desk, "check", {"receipt": receipt.decode("utf-8", "replace")})
        status = 0 if verdict.get("covered") is True else _command.FAILED
        return CommandOutput(verdict, str(verdict.get("words", "")), status=status)
    verdicts = _verify_receipt(receipt, Path(bundle or ""), key)
    is_covered = _is_covered(verdicts)
    document = {"covered": is_covered, "levels": verdicts}
    return CommandOutput(
        document, _verdict_lines(verdicts), status=0 if is_covered else _command.FAILED
    )


def _open_receipt(code: str, sealed: Path | None, desk: str | None) -> "OpenedReceipt":
    from letheon.ledger.certificates import receipt_codes

    if (sealed is None) == (desk is None):
        raise UsageError(
            "give the source of the encrypted receipt: either --sealed FILE or --desk URL"
        )
    try:
        parsed = receipt_codes.ReceiptCode.parse(sys.stdin.read() if code == "-" else code)
    except VerificationError as error:
        raise UsageError(f"{error}; copy the complete code") from None
    if sealed is not None:
        return receipt_codes.open_receipt(parsed, read_capped(_command.require_file(sealed), SMALL))
    body = {"request": parsed.request, "public_key": parsed.public}
    answer = _post_json(desk or "", "sealed", body).get("sealed")
    if not isinstance(answer, str):
        raise LedgerMissingError(
            "there is no receipt for this code: no certificate covers it yet, or the code is from "
            "another desk"
        )
    return receipt_codes.open_receipt(parsed, verifier.from_base64(answer))


def _post_json(desk: str, name: str, body: dict[str, str]) -> dict[str, Any]:
    """Send a JSON document to the desk and return the JSON object in its response."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    if urlsplit(desk).scheme not in ("http", "https"):
        raise UsageError(
            f"--desk {desk} is not a valid URL: expected an address that starts with "
            f"https:// or http://"
        )
    headers = {"Content-Type": "application/json"}
    data, address = json.dumps(body).encode(), f"{desk.rstrip('/')}/api/v1/receipts/{name}"
    try:
        with urlopen(Request(address, data, headers), timeout=_WAIT_SECONDS) as answer:
            document = json.loads(answer.read(SMALL))
    except HTTPError as error:
        raise LedgerError(f"the desk returned HTTP status {error.code}; try again later") from None
    except ValueError:
        raise LedgerError("the response of the desk is not JSON") from None
    return document if isinstance(document, dict) else {}


def _verify_receipt(receipt: bytes, bundle: Path, key: str | None) -> list[Verdict]:
    if key is None:
        raise UsageError(
            "--bundle requires --key KEY: the public key of the ledger, from a "
            "source that you trust"
        )
    return verifier.verify_bundle(
        _command.require_folder(bundle), _command.read_public_key(key), receipt=receipt
    )


def _is_covered(verdicts: list[Verdict]) -> bool:
    covers = [verdict.passed for verdict in verdicts if verdict.level == "W1"]
    return all(covers) and all(verdict.passed is not False for verdict in verdicts)


def _verdict_lines(verdicts: list[Verdict]) -> str:
    return "\n".join(
        f"{verdict.level}  {_WORDS[verdict.passed]:8}{verdict.reason}" for verdict in verdicts
    )


def _write_file(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
