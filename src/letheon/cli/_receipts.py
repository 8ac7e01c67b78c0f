"""`letheon receipt`: what a person keeps to see that their rows left a model."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from letheon.cli._command import (
    FAILED,
    Answer,
    UsageError,
    argument,
    disable_core_dump,
    ledger_command,
    make_group,
    read_public_key,
    require_file,
    require_folder,
    value,
)
from letheon.exceptions import LedgerError, LedgerMissingError
from letheon.verifier import SMALL, Refused, Verdict, from_base64, read_capped, verify_bundle

if TYPE_CHECKING:
    from letheon.ledger import Ledger
    from letheon.ledger.certificates.receipt_codes import OpenedReceipt, ReceiptCode

__all__ = ["receipts"]

receipts = make_group("receipt", "Receipts of people who were erased.")

RequestId = Annotated[str, argument("REQUEST", "Id of the request.")]
Desk = Annotated[str | None, value("URL", "Address of the desk that took the request.")]
Bundle = Annotated[Path | None, value("DIR", "Exported bundle to check the receipt against.")]
Key = Annotated[
    str | None, value("KEY", "First public key of the ledger, or a file; for --bundle.")
]
_WAIT_SECONDS = 30
_WORDS = {True: "pass", False: "FAIL", None: "skipped"}
_NOT_YET = "no certificate covers this code yet"


@ledger_command(receipts, "code")
def new_code(opened: "Ledger", request: RequestId) -> Answer:
    """Make a receipt code for a request of one person; an older code ends.

    It is shown once and kept nowhere: hand it to the person. It can be had until the request is
    applied.

    Example: letheon receipt code 0b5d4b1e6a7f4c0e9d2f3a4b5c6d7e8f
    """
    code = opened.certificates.receipts.new_code(request)
    return Answer({"request": request, "code": code}, code)


@ledger_command(receipts, "export")
def export(
    opened: "Ledger",
    request: RequestId,
    out: Annotated[Path, value("FILE", "File to be written.")],
) -> Answer:
    """Write the sealed receipt of a request, for the person: only their code opens it.

    Example: letheon receipt export 0b5d4b1e6a7f4c0e9d2f3a4b5c6d7e8f --out receipt.sealed
    """
    kept = opened.certificates.receipts
    sealed = kept.sealed(request, kept.key(request) or "")
    if sealed is None:
        raise LedgerMissingError("there is no receipt for this request (yet)")
    _write(out, sealed)
    return Answer({"file": out, "bytes": len(sealed)}, f"written to {out}")


@ledger_command(receipts, "open", opens=False)
def open_receipt(
    code: Annotated[
        str,
        argument(
            "CODE", "The receipt code; - reads it from standard input, and no history keeps it."
        ),
    ],
    sealed: Annotated[Path | None, value("FILE", "The sealed receipt.")] = None,
    desk: Desk = None,
    out: Annotated[
        Path | None, value("FILE", "File for the receipt.", show_default="printed on the terminal")
    ] = None,
    salts: Annotated[
        Path | None, value("FILE", "File for its salts too; they are secrets of yours.")
    ] = None,
    bundle: Bundle = None,
    key: Key = None,
) -> Answer:
    """Open a receipt on this machine; the code does not leave it.

    The receipt holds no secret: it can be checked by `letheon receipt check`, or by others.

    Example: letheon receipt open - --desk https://desk.example.org --out receipt.json
    """
    disable_core_dump()
    opened = _open(code, sealed, desk)
    if out is not None:
        _write(out, opened.receipt)
    if salts is not None:
        _write(salts, json.dumps(opened.openings).encode())
    verdicts = [] if bundle is None else _verify(opened.receipt, bundle, key)
    document = {
        "certificate": opened.certificate,
        "rows": len(opened.rows),
        "left_out": opened.left_out,
        "receipt": json.loads(opened.receipt),
        "levels": verdicts,
    }
    about = f"{len(opened.rows)} rows left with certificate {opened.certificate}"
    if opened.left_out:
        about += f", and {opened.left_out} more that are not in the receipt"
    shown = opened.receipt.decode() if out is None else f"written to {out}"
    parts = filter(None, (about, shown, _verdict_lines(verdicts)))
    return Answer(document, *parts, status=0 if _is_covered(verdicts) else FAILED)


@ledger_command(receipts, "check", opens=False)
def check(
    file: Annotated[Path, argument("FILE", "An opened receipt.")],
    bundle: Bundle = None,
    key: Key = None,
    desk: Desk = None,
) -> Answer:
    """Check a receipt against a bundle, or ask the desk; exit status 1 if nothing covers it.

    With a bundle nobody has to be believed but the public key: the rows stood in the data set
    before, and their places are empty after.

    Example: letheon receipt check receipt.json --bundle bundle --key ledger.pub
    """
    receipt = read_capped(require_file(file), SMALL)
    if (bundle is None) == (desk is None):
        raise UsageError("give --bundle DIR with --key KEY, or --desk URL")
    if desk is not None:
        verdict = _post(desk, "check", {"receipt": receipt.decode("utf-8", "replace")})
        status = 0 if verdict.get("covered") is True else FAILED
        return Answer(verdict, str(verdict.get("words", "")), status=status)
    verdicts = _verify(receipt, Path(bundle or ""), key)
    is_covered = _is_covered(verdicts)
    document = {"covered": is_covered, "levels": verdicts}
    return Answer(document, _verdict_lines(verdicts), status=0 if is_covered else FAILED)


def _open(code: str, sealed: Path | None, desk: str | None) -> "OpenedReceipt":
    from letheon.ledger.certificates.receipt_codes import ReceiptCode, open_sealed

    if (sealed is None) == (desk is None):
        raise UsageError("give --sealed FILE or --desk URL: where the sealed receipt is")
    try:
        parsed = ReceiptCode.parse(sys.stdin.read() if code == "-" else code)
    except Refused as error:
        raise UsageError(f"{error}; copy the whole code") from None
    if sealed is not None:
        return open_sealed(parsed, read_capped(require_file(sealed), SMALL))
    return open_sealed(parsed, _fetch(parsed, desk or ""))


def _fetch(code: "ReceiptCode", desk: str) -> bytes:
    body = {"request": code.request, "public_key": code.public}
    sealed = _post(desk, "sealed", body).get("sealed")
    if not isinstance(sealed, str):
        raise LedgerMissingError(f"{_NOT_YET}, or this desk does not know it")
    return from_base64(sealed)


def _post(desk: str, name: str, body: dict[str, str]) -> dict[str, Any]:
    """Send a JSON document to the desk and return its answer."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    if urlsplit(desk).scheme not in ("http", "https"):
        raise UsageError(f"--desk {desk} is no address that begins with https:// or http://")
    headers = {"Content-Type": "application/json"}
    data, address = json.dumps(body).encode(), f"{desk.rstrip('/')}/api/v1/receipts/{name}"
    try:
        with urlopen(Request(address, data, headers), timeout=_WAIT_SECONDS) as answer:
            found = json.loads(answer.read(SMALL))
    except HTTPError as error:
        raise LedgerError(f"the desk answered {error.code}; ask it again later") from None
    except ValueError:
        raise LedgerError("the desk answered something else than JSON") from None
    return found if isinstance(found, dict) else {}


def _verify(receipt: bytes, bundle: Path, key: str | None) -> list[Verdict]:
    if key is None:
        raise UsageError("a bundle is checked with --key KEY, from a source that you trust")
    return verify_bundle(require_folder(bundle), read_public_key(key), receipt=receipt)


def _is_covered(verdicts: list[Verdict]) -> bool:
    covers = [one.passed for one in verdicts if one.level == "W1"]
    return all(covers) and all(one.passed is not False for one in verdicts)


def _verdict_lines(verdicts: list[Verdict]) -> str:
    return "\n".join(f"{one.level}  {_WORDS[one.passed]:8}{one.reason}" for one in verdicts)


def _write(path: Path, data: bytes) -> None:
    """Write a new file that its owner alone can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
