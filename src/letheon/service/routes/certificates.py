"""API routes for certificates, their files, verification and chain, and for log proofs."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import Response

from letheon import verifier
from letheon.exceptions import LedgerMissingError
from letheon.guarantee import KINDS
from letheon.ledger import Certificate, LogConsistency, LogInclusion, Page
from letheon.ledger.certificates.certificates import Certificates
from letheon.ledger.certificates.explanations import NOT_CLAIMED
from letheon.ledger.schemas import to_datetime
from letheon.service import guarantees, schemas
from letheon.service.auth import Principal, allows, require_unbound, unknown_certificate
from letheon.service.errors import ApiProblem, cursor_problems

require = verifier.require
router = APIRouter(tags=["certificates"])

Reader = Annotated[Principal, Depends(allows("certificates:read"))]
Number = Annotated[int, Path(ge=1, le=verifier.MAX_INT, description="Number of the certificate.")]
CheckName = Literal["schema", "signature", "chain", "line", "log", "proof", "purge"]
_FILE = schemas.describe_file("application/json", "The signed file, byte for byte.", "object")


@dataclass(frozen=True, kw_only=True)
class CertificateOut(Certificate):
    """A certificate in a list.

    Attributes
    ----------
    sequence : int
        Number of the certificate; for a tenant's token, its number among the tenant's certificates.
    id : str
        SHA-256 of the signed content.
    rows : int
        Number of erased rows.
    purged_at : datetime or None
        When the purge was attested; null if it is not finished.
    purge_gaps : str or None
        Description of files that the purge did not search; null if it searched everything.
    """

    guarantee: Literal["exact", "certified", "empirical", "unreadable"]
    batch: schemas.Hidden[str]
    n_rows: schemas.Hidden[int]
    log_index: schemas.Hidden[int | None]
    rows: int


@dataclass(frozen=True, kw_only=True)
class CertificateDetail(Certificate):
    """The content of a certificate.

    Attributes
    ----------
    previous : str or None
        Id of the previous certificate, or `genesis` for the first certificate; null for a tenant's
        token.
    subject : str
        SHA-256 of the model after the erasure.
    before : str
        SHA-256 of the model before the erasure.
    purge_gaps : str or None
        Description of files that the purge did not search; null if it searched everything.
    measures : dict of str to MeasureOut
        The four measures, by name.
    statement : dict of str to Any
        The signed statement. For a tenant's token, the position in the chain is left out.
    envelope : str or None
        The DSSE envelope, the same as in the download; null for a tenant's token.
    """

    guarantee: guarantees.GuaranteeOut  # type: ignore[assignment]  # the whole guarantee, not only its kind
    n_rows: schemas.Hidden[int]
    log_index: schemas.Hidden[int | None]
    previous: str | None
    subject: str
    before: str
    rows: int
    rows_left: int
    grounds: list[str]
    applied_at: datetime
    budget: guarantees.BudgetOut
    measures: dict[guarantees.MeasureName, guarantees.MeasureOut]
    monitor: Literal["keep", "retrain-due", "retrained"]
    not_claimed: list[schemas.CodeOut]
    statement: dict[str, Any]
    envelope: str | None


@dataclass(frozen=True)
class CheckOut:
    """The result of one check of a certificate.

    Attributes
    ----------
    passed : bool or None
        Whether the check passed; null if it is not possible yet.
    words : str
        What a passed check shows.
    """

    check: CheckName
    passed: bool | None
    words: str
    reason: str


@dataclass(frozen=True)
class VerificationOut:
    """The results of all checks of a certificate.

    Attributes
    ----------
    verdict : {"passed", "failed", "incomplete"}
        The verdict; incomplete if no check failed, but a check is not possible yet.
    passed : bool
        Whether every check passed.
    key : str
        The pinned public key, in hexadecimal digits.
    """

    sequence: int
    verdict: Literal["passed", "failed", "incomplete"]
    passed: bool
    key: str
    checks: list[CheckOut]


_CHECKS: dict[CheckName, str] = {
    "schema": "The certificate follows the schema.",
    "signature": "It is signed with a key of the ledger.",
    "chain": "It contains the id of the previous certificate of the ledger.",
    "line": "It continues from the previous certificate of the same model.",
    "log": "It is recorded in the signed log.",
    "proof": "Exactly the stated number of rows was removed from the data set.",
    "purge": "The ledger deleted its copies of these rows, and a search of the stores found none.",
}
"""The checks in order, with their meanings."""


@router.get("/api/v1/certificates", summary="List certificates")
def list_certificates(
    caller: Reader,
    tenant: schemas.TenantFilter = None,
    model: schemas.ModelFilter = None,
    after: schemas.Cursor = None,
    limit: schemas.Limit = 50,
) -> Page[CertificateOut]:
    """List certificates, newest first."""
    whose = caller.tenant_filter(tenant)
    page = _find_certificates(caller, tenant=whose, model=model, after=after, limit=limit)
    return schemas.map_page(page, lambda item: _show_certificate(caller, item))


def _find_certificates(caller: Principal, **filters: Any) -> Page[Certificate]:
    with cursor_problems("Use `next` of the previous page unchanged."):
        return caller.ledger.certificates.list(**filters)


def _show_certificate(caller: Principal, record: Certificate) -> CertificateOut:
    """Return a certificate as an item of a list, even if the certificate is damaged."""
    values = {
        "sequence": caller.numbers.tenant_number(record.sequence) or 0,
        "method": str(record.method),
        "guarantee": record.guarantee if record.guarantee in KINDS else "unreadable",
        "rows": max(record.n_rows, 0) if isinstance(record.n_rows, int) else 0,
    }
    return CertificateOut(**vars(record) | values)


@router.get("/api/v1/certificates/{number}", summary="Show a certificate")
def show_certificate(caller: Reader, number: Number) -> CertificateDetail:
    """Show the content of a certificate, with its statement and its envelope."""
    record = _find_record(caller, number)
    envelope = caller.ledger.certificates.envelope(record.sequence)
    statement = statement_in(envelope)
    claims, sees_all = statement["predicate"], caller.tenant is None
    attestation = _find_attestation(caller.ledger.certificates, record.sequence)
    purge = None if attestation is None else statement_in(attestation)["predicate"]
    read_time = datetime.fromisoformat
    values = {
        "sequence": number,
        "previous": _previous_id(claims) if sees_all else None,
        "subject": statement["subject"][0]["digest"]["sha256"],
        "before": claims["model"]["before"]["sha256"],
        "method": claims["method"]["name"],
        "rows": claims["erasure"]["rows"],
        "rows_left": claims["dataset"]["liveAfter"],
        "grounds": claims["erasure"]["grounds"],
        "applied_at": read_time(claims["times"]["appliedAt"]),
        "certified_at": read_time(claims["times"]["certifiedAt"]),
        "purged_at": None if purge is None else read_time(purge["times"]["purgedAt"]),
        "purge_gaps": None if purge is None else verifier.search_gaps(purge) or None,
        "guarantee": guarantees.guarantee_out(claims["guarantee"]),
        "budget": guarantees.budget_out(claims["guarantee"]["accounting"]),
        "measures": guarantees.measures_out(claims["measurements"]),
        "monitor": claims["monitor"]["decision"],
        "not_claimed": guarantees.codes_out(claims["notClaimed"], NOT_CLAIMED),
        "statement": statement if sees_all else _without_place(statement, number),
        "envelope": envelope.decode() if sees_all else None,
    }
    return CertificateDetail(**vars(record) | values)


def _find_record(caller: Principal, number: int) -> Certificate:
    """Return the record of a certificate that the caller may see; otherwise raise a 404."""
    try:
        return caller.ledger.certificates.get(
            caller.numbers.ledger_number(number), tenant=caller.tenant
        )
    except LedgerMissingError:
        raise unknown_certificate() from None


def _previous_id(claims: dict[str, Any]) -> str:
    """Return the id of the previous certificate as a certificate states it, or `genesis`."""
    previous: str | dict[str, str] = claims["ledger"]["previousCertificate"]
    return previous if isinstance(previous, str) else previous["sha256"]


def _without_place(statement: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a copy of a statement without its position among all tenants' certificates."""
    subjects = [
        {**item, "name": f"{item['name'].rpartition('@')[0]}@{number}"}
        for item in statement["subject"]
    ]
    claims = statement["predicate"]
    kept = {name: claims["ledger"][name] for name in ("id",) if name in claims["ledger"]}
    return {**statement, "subject": subjects, "predicate": {**claims, "ledger": kept}}


def statement_in(envelope: bytes) -> dict[str, Any]:
    """Return the statement in an envelope; check its schema, but not its signature.

    Raises
    ------
    VerificationError
        The bytes are not an envelope with a valid statement.
    """
    verifier.certificate_id(envelope)  # checks the form of the envelope
    statement: dict[str, Any] = verifier.parse_strict(
        verifier.from_base64(verifier.parse_strict(envelope)["payload"]), verifier.SMALL
    )
    verifier.check_schema(statement)
    return statement


def _find_attestation(certificates: Certificates, sequence: int) -> bytes | None:
    try:
        return certificates.purge_attestation(sequence)
    except LedgerMissingError:
        return None


@router.get("/api/v1/certificates/{number}/envelope", summary="Download a certificate", **_FILE)
def download_certificate(caller: Reader, number: Number) -> Response:
    """Download the DSSE envelope of a certificate, byte for byte."""
    return _send_file(caller, number, "certificate", Certificates.envelope)


@router.get("/api/v1/certificates/{number}/proof", summary="Download a transition proof", **_FILE)
def download_proof(caller: Reader, number: Number) -> Response:
    """Download the proof that exactly the erased rows were removed from the data set."""
    return _send_file(caller, number, "proof", Certificates.proof)


@router.get("/api/v1/certificates/{number}/purge", summary="Download a purge attestation", **_FILE)
def download_purge(caller: Reader, number: Number) -> Response:
    """Download the signed attestation of the purge; 404 until the purge is done."""
    return _send_file(caller, number, "purge", _find_attestation)


def _send_file(
    caller: Principal, number: int, name: str, read: Callable[[Certificates, int], bytes | None]
) -> Response:
    data = read(caller.ledger.certificates, _find_record(caller, number).sequence)
    if data is None:
        words = "The purge has not been completed yet; try again later."
        raise ApiProblem(404, "not-purged-yet", "no attestation yet", words)
    headers = {"Content-Disposition": f'attachment; filename="{name}-{number:06d}.json"'}
    return Response(data, media_type="application/json", headers=headers)


@router.get("/api/v1/certificates/{number}/verification", summary="Verify a certificate")
def verify_certificate(caller: Reader, number: Number) -> VerificationOut:
    """Verify schema, signature, chain, log, transition proof and purge with the public key."""
    # An audit also checks that the model follows from the remaining rows.
    checks = _CertificateChecks(caller, _find_record(caller, number))
    results = [checks.run(name) for name in _CHECKS]
    verdict: Any = verifier.overall((result.passed, True) for result in results)
    return VerificationOut(
        number, verdict, verdict == "passed", key=caller.ledger.public_key, checks=results
    )


class _Absent(Exception):  # noqa: N818 - not an error
    """Raised by a check that is not possible yet; the text says why."""


class _CertificateChecks:
    """The checks of one certificate with the keys of the ledger.

    Each check returns a text that describes what it found, or raises an error. Tenants do not see
    the sizes of the log, because these count the entries of all tenants.
    """

    def __init__(self, caller: Principal, record: Certificate) -> None:
        self.certificates, self.event_log = caller.ledger.certificates, caller.ledger.log
        self.record = record
        self.numbers = caller.numbers
        self.shows_sizes = caller.tenant is None
        self.trust = caller.ledger.keys.trust()
        self.envelope = caller.ledger.certificates.envelope(record.sequence)

    def run(self, name: CheckName) -> CheckOut:
        """Run one check and return its result; errors become failed checks."""
        passed: bool | None = False
        try:
            passed, reason = True, getattr(self, f"check_{name}")()
        except _Absent as error:
            passed, reason = None, str(error)
        except LedgerMissingError:
            reason = "it is missing from the ledger"
        except OSError as error:  # its text contains paths of the server
            reason = f"a file cannot be read ({type(error).__name__})"
        except verifier.VerificationError as error:
            reason = str(error)
        except (ValueError, LookupError, TypeError) as error:
            reason = f"it cannot be read ({type(error).__name__})"
        return CheckOut(name, passed, _CHECKS[name], reason)

    def open_certificate(self, sequence: int | None = None) -> verifier.SignedStatement:
        envelope = self.envelope if sequence is None else self.certificates.envelope(sequence)
        return verifier.open_envelope(envelope, self.trust)

    def check_schema(self) -> str:
        return f"statement of type {statement_in(self.envelope)['predicateType']}"

    def check_signature(self) -> str:
        opened = self.open_certificate()
        require(opened.id == self.record.id, "its id differs from the id in the database")
        number = self.numbers.tenant_number(opened.sequence)
        return f"signed by key {opened.keyids[0][:16]}, which is valid for certificate {number}"

    def check_chain(self) -> str:
        claims, number = self.open_certificate().predicate["ledger"], self.record.sequence
        before: Any = "genesis"
        if number > 1:
            before = {"sha256": verifier.certificate_id(self.certificates.envelope(number - 1))}
        is_linked = claims["previousCertificate"] == before
        if not self.shows_sizes:  # nothing about the certificates of other tenants
            is_linked &= claims["sequence"] == number
            require(is_linked, "it does not contain the id of the previous certificate")
            return "contains the id of the previous certificate"
        require(claims["sequence"] == number, f"sequence is {claims['sequence']}, not {number}")
        if number == 1:
            require(is_linked, "it names a previous certificate, but it is the first")
            return "the first certificate of the ledger"
        require(is_linked, f"previousCertificate is not the id of certificate {number - 1}")
        return f"contains {before['sha256'][:16]}…, the id of certificate {number - 1}"

    def check_line(self) -> str:
        line = self.certificates.line(self.record.sequence)
        if line.before is None:
            return "the first certificate of the model; the registration is in the log"
        retrain = None if line.retrain is None else self.open_certificate(line.retrain)
        verifier.check_next(
            self.open_certificate(),
            self.open_certificate(line.first),
            retrain,
            self.open_certificate(line.before),
        )
        number = self.numbers.tenant_number(line.before)
        return f"continues certificate {number}: same data set, no rows were added"

    def check_log(self) -> str:
        sequence, identity = self.record.sequence, self.open_certificate().id
        index = self.record.log_index
        checkpoint = self.event_log.latest_checkpoint()
        if index is None or checkpoint is None or checkpoint.size <= index:
            raise _Absent("no signed checkpoint of the log covers the certificate yet")
        note = verifier.read_note(checkpoint.note)
        verifier.check_note(note, self.trust)
        require(note.size == checkpoint.size, f"size is {note.size}, not {checkpoint.size}")
        body = self.event_log.event(index) or b""
        event = verifier.parse_strict(body)
        named = (event.get("kind"), event.get("sequence"), event.get("certificate"))
        require(
            named == ("certificate", sequence, identity), "the event belongs to another certificate"
        )
        path = self.event_log.inclusion(index, size=note.size).path
        verifier.check_inclusion(
            verifier.leaf_hash(body),
            index,
            note.size,
            [verifier.from_hex(item) for item in path],
            note.root,
        )
        if not self.shows_sizes:
            return "it is an entry of the signed log"
        return f"entry {index} of the signed log with {note.size} entries"

    def check_proof(self) -> str:
        claims = self.open_certificate().predicate
        data, rows = claims["dataset"], claims["erasure"]["rows"]
        proof = self.certificates.proof(self.record.sequence)
        digest = hashlib.sha256(proof).hexdigest()
        require(
            digest == data["transitionProof"]["sha256"],
            "the proof is not the one named in the certificate",
        )
        before, after, n_erased = verifier.transition_roots(proof)
        require(
            verifier.parse_strict(proof)["slots"] == data["slots"],
            "the proof and the certificate have different numbers of slots",
        )
        require(before.hex() == data["rootBefore"], "the proof does not start at rootBefore")
        require(after.hex() == data["rootAfter"], "the proof does not end at rootAfter")
        require(n_erased == rows, f"erased slots: {n_erased}, expected {rows}")
        return f"erased slots: {n_erased} of {data['slots']}; no other slot changed"

    def check_purge(self) -> str:
        attestation = _find_attestation(self.certificates, self.record.sequence)
        if attestation is None:
            raise _Absent("the purge has not been attested yet")
        claims = verifier.check_purge(attestation, self.open_certificate(), self.trust).predicate
        scanner = claims["scanner"]
        searched = f"markers: {scanner['markers']}"
        searched += f", files: {scanner['files']}" if self.shows_sizes else ""
        if gaps := verifier.search_gaps(claims):
            raise _Absent(f"purged, but not fully searched: {gaps}; nothing was found ({searched})")
        return f"nothing was found (stores: {len(claims['stores'])}, {searched})"


CheckpointOut = Annotated[
    dict[str, Any], schemas.object_schema("root", "at", "note", size="integer")
]
Place = Annotated[int | None, Query(ge=0, le=verifier.MAX_INT)]


@dataclass(frozen=True, kw_only=True)
class LinkOut(CertificateOut):
    """A certificate in the chain, with the results of checking its link and its signature.

    Attributes
    ----------
    previous : str
        The id of the previous certificate as this certificate states it, or `genesis`.
    is_linked : bool
        Whether `previous` is the id of the file of the previous certificate.
    is_signed : bool
        Whether signature, schema and key are valid.
    reason : str or None
        Why the signature is not valid; null if it is valid.
    """

    previous: str
    is_linked: bool
    is_signed: bool
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class ChainOut(Page[LinkOut]):
    """A page of certificates, newest first, each with its link to the previous certificate.

    Attributes
    ----------
    is_whole : bool
        Whether all links and signatures of this page are valid.
    """

    items: tuple[LinkOut, ...]
    is_whole: bool


@dataclass(frozen=True)
class InclusionOut(LogInclusion):
    """The proof that an event is in the log (RFC 6962).

    Attributes
    ----------
    event : dict of str to Any
        The event; it contains only codes, counts and opaque ids.
    """

    event: dict[str, Any]


@router.get("/api/v1/chain", summary="Show the chain of certificates")
def show_chain(caller: Reader, after: schemas.Cursor = None, limit: schemas.Limit = 50) -> ChainOut:
    """List certificates, newest first, with the results of checking their links and signatures."""
    require_unbound(caller)
    page = _find_certificates(caller, after=after, limit=limit)
    contents: dict[int, bytes] = {}
    if page.items:
        first, last = page.items[-1].sequence, page.items[0].sequence
        contents = caller.ledger.certificates.envelopes(first - 1, last)
    trust = caller.ledger.keys.trust()
    items = tuple(_check_link(caller, item, contents, trust) for item in page.items)
    is_whole = all(item.is_linked and item.is_signed for item in items)
    return ChainOut(items=items, next=page.next, total=page.total, is_whole=is_whole)


def _check_link(
    caller: Principal, record: Certificate, contents: dict[int, bytes], trust: verifier.Trust
) -> LinkOut:
    values = {"previous": "?", "is_linked": False, "is_signed": False, "reason": None}
    try:
        opened = verifier.open_envelope(contents[record.sequence], trust)
    except verifier.VerificationError as error:
        values["reason"] = str(error)
    else:
        previous = _previous_id(opened.predicate)
        values |= {
            "previous": previous,
            "is_linked": previous == _id_before(record.sequence, contents),
            "is_signed": opened.id == record.id and opened.sequence == record.sequence,
        }
    return LinkOut(**vars(_show_certificate(caller, record)) | values)


def _id_before(sequence: int, contents: dict[int, bytes]) -> str | None:
    """Return the id of the previous certificate, computed from its file.

    Return `genesis` for the first certificate, and None if the file is missing or damaged.
    """
    if sequence == 1:
        return "genesis"
    try:
        return verifier.certificate_id(contents[sequence - 1])
    except (verifier.VerificationError, KeyError):
        return None


@router.get("/api/v1/checkpoints/latest", summary="Show the latest checkpoint")
def show_checkpoint(caller: Reader) -> CheckpointOut:
    """Show the latest signed checkpoint of the log; keep it to detect a later rollback.

    `size` and `root` describe the log, `at` is the time of signing, and `note` is the signed note
    in the C2SP format.
    """
    require_unbound(caller)
    checkpoint = caller.ledger.log.latest_checkpoint()
    if checkpoint is None:
        words = "The ledger signs a checkpoint with the next certificate or bundle."
        raise ApiProblem(404, "no-checkpoint", "no checkpoint yet", words)
    return checkpoint._asdict() | {"at": to_datetime(checkpoint.at)}


@router.get("/api/v1/log/inclusion", summary="Prove that an event is in the log")
def prove_inclusion(
    caller: Reader,
    index: Place = None,
    certificate: Annotated[int | None, Query(ge=1, le=verifier.MAX_INT)] = None,
    size: Place = None,
) -> InclusionOut:
    """Return the RFC 6962 inclusion proof of an event, by its index or its certificate."""
    require_unbound(caller)
    ledger = caller.ledger
    if index is None and certificate is None:
        words = "Set `index` (the position of an event) or `certificate` (its number)."
        raise ApiProblem(422, "invalid", "index or certificate is required", words)
    if index is None and certificate is not None:
        index = ledger.certificates.get(certificate).log_index
    body = None if index is None else ledger.log.event(index)
    if index is None or body is None:
        raise _not_in_log()
    try:
        proof = ledger.log.inclusion(index, size=size)
    except ValueError as error:
        raise _not_in_log() from error
    return InclusionOut(**vars(proof), event=verifier.parse_strict(body))


@router.get("/api/v1/log/consistency", summary="Prove that the log only grew")
def prove_consistency(
    caller: Reader, first: Annotated[int, Query(ge=0, le=verifier.MAX_INT)], second: Place = None
) -> LogConsistency:
    """Return the RFC 6962 consistency proof between two sizes of the log."""
    require_unbound(caller)
    try:
        return caller.ledger.log.consistency(first, second)
    except ValueError as error:
        raise _not_in_log() from error


def _not_in_log() -> ApiProblem:
    words = "GET /api/v1/checkpoints/latest returns the size of the signed log."
    return ApiProblem(404, "not-in-log", "the log has no such position or size", words)
