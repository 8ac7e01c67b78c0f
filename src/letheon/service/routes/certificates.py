"""Certificates: what they say, their files, whether they hold; their chain, and the log."""

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
from letheon.service.errors import Problem, cursor_problems

require = verifier.require
router = APIRouter(tags=["certificates"])

Reader = Annotated[Principal, Depends(allows("certificates:read"))]
Number = Annotated[int, Path(ge=1, le=verifier.MAX_INT, description="Number of the certificate.")]
CheckName = Literal["schema", "signature", "chain", "line", "log", "proof", "purge"]
_FILE = schemas.describe_file(
    "application/json", "The file, byte for byte as it was signed.", "object"
)


@dataclass(frozen=True, kw_only=True)
class CertificateOut(Certificate):
    """A certificate in a list.

    Attributes
    ----------
    sequence : int
        Its number; for a tenant's token, among the tenant's.
    id : str
        SHA-256 of what was signed.
    rows : int
        Rows that it certifies to be erased.
    purged_at : datetime or None
        When the purge was attested.
    purge_gaps : str or None
        What the purge did not search, in words; null if it searched everything.
    """

    guarantee: Literal["exact", "certified", "empirical", "unreadable"]
    batch: schemas.Hidden[str]
    n_rows: schemas.Hidden[int]
    log_index: schemas.Hidden[int | None]
    rows: int


@dataclass(frozen=True, kw_only=True)
class CertificateDetail(Certificate):
    """A certificate, decoded.

    Attributes
    ----------
    previous : str or None
        Id of the certificate before, or `genesis`; null for a tenant's token.
    subject : str
        SHA-256 of the model after the erasure.
    before : str
        SHA-256 of the version that it replaces.
    purge_gaps : str or None
        What the purge did not search, in words; null if it searched everything.
    measures : dict of str to MeasureOut
        The four measures.
    statement : dict of str to Any
        What was signed; for a tenant's token without its place in the ledger's chain.
    envelope : str or None
        The DSSE envelope, as it is downloaded; null for a tenant's token.
    """

    guarantee: guarantees.GuaranteeOut  # type: ignore[assignment]  # all of it, not its kind only
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
    """One check of a certificate.

    Attributes
    ----------
    passed : bool or None
        Null: nothing to look at yet.
    words : str
        What it shows.
    """

    check: CheckName
    passed: bool | None
    words: str
    reason: str


@dataclass(frozen=True)
class VerificationOut:
    """Whether a certificate holds, check by check.

    Attributes
    ----------
    verdict : {"passed", "failed", "incomplete"}
        Incomplete: no check failed, and one had nothing to look at yet.
    passed : bool
        Whether every check passed.
    key : str
        The public key that was pinned, in hexadecimal digits.
    """

    sequence: int
    verdict: Literal["passed", "failed", "incomplete"]
    passed: bool
    key: str
    checks: list[CheckOut]


_CHECKS: dict[CheckName, str] = {
    "schema": "It says what a certificate may say, in the only accepted form.",
    "signature": "The ledger's key signed these bytes.",
    "chain": "It follows the certificate before it.",
    "line": "It starts where the model's certificate before ended.",
    "log": "It is in the signed log.",
    "proof": "Exactly the stated number of slots became empty.",
    "purge": "What was left of these rows was destroyed, and a search of all stores found nothing.",
}
"""Each check, in order, with what it shows."""


@router.get("/api/v1/certificates", summary="List certificates")
def list_certificates(
    who: Reader,
    tenant: schemas.TenantFilter = None,
    model: schemas.ModelFilter = None,
    after: schemas.Cursor = None,
    limit: schemas.Limit = 50,
) -> Page[CertificateOut]:
    """Return certificates, newest first."""
    whose = who.tenant_filter(tenant)
    page = _find_certificates(who, tenant=whose, model=model, after=after, limit=limit)
    return schemas.map_page(page, lambda one: _show_certificate(who, one))


def _find_certificates(who: Principal, **filters: Any) -> Page[Certificate]:
    with cursor_problems("Give back `next` as it was given."):
        return who.ledger.certificates.list(**filters)


def _show_certificate(who: Principal, record: Certificate) -> CertificateOut:
    """Return a certificate as lists show it; a damaged one may say anything, and is shown too."""
    values = {
        "sequence": who.numbers.shown(record.sequence) or 0,
        "method": str(record.method),
        "guarantee": record.guarantee if record.guarantee in KINDS else "unreadable",
        "rows": max(record.n_rows, 0) if isinstance(record.n_rows, int) else 0,
    }
    return CertificateOut(**vars(record) | values)


@router.get("/api/v1/certificates/{number}", summary="Show a certificate")
def show_certificate(who: Reader, number: Number) -> CertificateDetail:
    """Return what a certificate says and does not claim, its statement and its envelope."""
    record = _find_record(who, number)
    envelope = who.ledger.certificates.envelope(record.sequence)
    statement = statement_in(envelope)
    claims, sees_all = statement["predicate"], who.tenant is None
    attestation = _find_attestation(who.ledger.certificates, record.sequence)
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


def _find_record(who: Principal, number: int) -> Certificate:
    """Return where a certificate stands; 404 for one of another tenant, as for none."""
    try:
        return who.ledger.certificates.get(who.numbers.sequence(number), tenant=who.tenant)
    except LedgerMissingError:
        raise unknown_certificate() from None


def _previous_id(claims: dict[str, Any]) -> str:
    """Return the id that a certificate names as that of the one before, or `genesis`."""
    previous: str | dict[str, str] = claims["ledger"]["previousCertificate"]
    return previous if isinstance(previous, str) else previous["sha256"]


def _without_place(statement: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a statement without its place among the certificates of all tenants."""
    subjects = [
        {**one, "name": f"{one['name'].rpartition('@')[0]}@{number}"}
        for one in statement["subject"]
    ]
    claims = statement["predicate"]
    kept = {name: claims["ledger"][name] for name in ("id",) if name in claims["ledger"]}
    return {**statement, "subject": subjects, "predicate": {**claims, "ledger": kept}}


def statement_in(envelope: bytes) -> dict[str, Any]:
    """Return what an envelope says, if its form is that of its schema; no signature is checked.

    Raises
    ------
    VerificationError
        It is no envelope of a statement.
    """
    verifier.certificate_id(envelope)  # its only accepted form
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
def download_certificate(who: Reader, number: Number) -> Response:
    """Return the DSSE envelope, byte for byte."""
    return _send_file(who, number, "certificate", Certificates.envelope)


@router.get("/api/v1/certificates/{number}/proof", summary="Download a transition proof", **_FILE)
def download_proof(who: Reader, number: Number) -> Response:
    """Return the proof that exactly the erased slots of the data set changed."""
    return _send_file(who, number, "proof", Certificates.proof)


@router.get("/api/v1/certificates/{number}/purge", summary="Download a purge attestation", **_FILE)
def download_purge(who: Reader, number: Number) -> Response:
    """Return the signed attestation of the purge; 404 until it is done."""
    return _send_file(who, number, "purge", _find_attestation)


def _send_file(
    who: Principal, number: int, name: str, read: Callable[[Certificates, int], bytes | None]
) -> Response:
    data = read(who.ledger.certificates, _find_record(who, number).sequence)
    if data is None:
        words = "The purge is not done yet; look again later."
        raise Problem(404, "not-purged-yet", "no attestation yet", words)
    headers = {"Content-Disposition": f'attachment; filename="{name}-{number:06d}.json"'}
    return Response(data, media_type="application/json", headers=headers)


@router.get("/api/v1/certificates/{number}/verification", summary="Verify a certificate")
def verify_certificate(who: Reader, number: Number) -> VerificationOut:
    """Check signature, schema, chain, log, transition proof and purge, as a stranger would."""
    # That the model is what the remaining rows give is for an audit.
    checks = _Checks(who, _find_record(who, number))
    results = [checks.run(name) for name in _CHECKS]
    verdict: Any = verifier.overall((one.passed, True) for one in results)
    return VerificationOut(
        number, verdict, verdict == "passed", key=who.ledger.public_key, checks=results
    )


class _Absent(Exception):  # noqa: N818 - says that there is nothing to look at
    """There is nothing to look at yet."""


class _Checks:
    """The checks of one certificate, against the keys that follow from the ledger's first one.

    Each returns what it found, or raises; sizes of the log tell of all tenants.
    """

    def __init__(self, who: Principal, record: Certificate) -> None:
        self.certificates, self.event_log = who.ledger.certificates, who.ledger.log
        self.record = record
        self.numbers = who.numbers
        self.tells_sizes = who.tenant is None
        self.trust = who.ledger.keys.trust()
        self.envelope = who.ledger.certificates.envelope(record.sequence)

    def run(self, name: CheckName) -> CheckOut:
        """Return the result of one check."""
        passed: bool | None = False
        try:
            passed, reason = True, getattr(self, name)()
        except _Absent as error:
            passed, reason = None, str(error)
        except LedgerMissingError:
            reason = "it is missing from the ledger"
        except OSError as error:  # its text names files of the server
            reason = f"a file cannot be read ({type(error).__name__})"
        except verifier.VerificationError as error:
            reason = str(error)
        except (ValueError, LookupError, TypeError) as error:
            reason = f"it cannot be read ({type(error).__name__})"
        return CheckOut(name, passed, _CHECKS[name], reason)

    def opened(self, sequence: int | None = None) -> verifier.SignedStatement:
        envelope = self.envelope if sequence is None else self.certificates.envelope(sequence)
        return verifier.open_envelope(envelope, self.trust)

    def schema(self) -> str:
        return f"a statement of type {statement_in(self.envelope)['predicateType']}"

    def signature(self) -> str:
        opened = self.opened()
        require(opened.id == self.record.id, "the database has another id for it")
        number = self.numbers.shown(opened.sequence)
        return f"signed by key {opened.keyids[0][:16]}, which may sign number {number}"

    def chain(self) -> str:
        claims, number = self.opened().predicate["ledger"], self.record.sequence
        before: Any = "genesis"
        if number > 1:
            before = {"sha256": verifier.certificate_id(self.certificates.envelope(number - 1))}
        is_linked = claims["previousCertificate"] == before
        if not self.tells_sizes:  # no word about the certificates of other tenants
            is_linked &= claims["sequence"] == number
            require(is_linked, "it does not name the certificate before it")
            return "names the certificate before it"
        require(claims["sequence"] == number, f"it has number {claims['sequence']}")
        if number == 1:
            require(is_linked, "it is not the first")
            return "the first certificate of the ledger"
        require(is_linked, f"previousCertificate is not the id of number {number - 1}")
        return f"names {before['sha256'][:16]}…, the id of number {number - 1}"

    def line(self) -> str:
        line = self.certificates.line(self.record.sequence)
        if line.before is None:
            return "the model's first certificate; the log says what was registered"
        retrain = None if line.retrain is None else self.opened(line.retrain)
        verifier.check_next(
            self.opened(), self.opened(line.first), retrain, self.opened(line.before)
        )
        number = self.numbers.shown(line.before)
        return f"continues number {number}: same data set, rows only left"

    def log(self) -> str:
        sequence, identity = self.record.sequence, self.opened().id
        index = self.record.log_index
        checkpoint = self.event_log.latest_checkpoint()
        if index is None or checkpoint is None or checkpoint.size <= index:
            raise _Absent("no checkpoint of the log covers it yet")
        note = verifier.read_note(checkpoint.note)
        verifier.check_note(note, self.trust)
        require(note.size == checkpoint.size, f"the checkpoint is of size {note.size}")
        body = self.event_log.event(index) or b""
        event = verifier.parse_strict(body)
        named = (event.get("kind"), event.get("sequence"), event.get("certificate"))
        require(named == ("certificate", sequence, identity), "the event is not the certificate's")
        path = self.event_log.inclusion(index, size=note.size).path
        verifier.check_inclusion(
            verifier.leaf_hash(body),
            index,
            note.size,
            [verifier.from_hex(one) for one in path],
            note.root,
        )
        if not self.tells_sizes:
            return "it is an entry of the log that the ledger signed"
        return f"entry {index} of the log of {note.size} that the ledger signed"

    def proof(self) -> str:
        claims = self.opened().predicate
        data, rows = claims["dataset"], claims["erasure"]["rows"]
        proof = self.certificates.proof(self.record.sequence)
        digest = hashlib.sha256(proof).hexdigest()
        require(digest == data["transitionProof"]["sha256"], "the proof is not the one certified")
        before, after, n_erased = verifier.transition_roots(proof)
        require(
            verifier.parse_strict(proof)["slots"] == data["slots"],
            "it is of another number of slots",
        )
        require(before.hex() == data["rootBefore"], "it does not start at rootBefore")
        require(after.hex() == data["rootAfter"], "it does not end at rootAfter")
        require(n_erased == rows, f"{n_erased} slots were erased, not {rows}")
        return f"{n_erased} of {data['slots']} slots became empty, no other changed"

    def purge(self) -> str:
        attestation = _find_attestation(self.certificates, self.record.sequence)
        if attestation is None:
            raise _Absent("the purge is not attested yet")
        claims = verifier.check_purge(attestation, self.opened(), self.trust).predicate
        scanner = claims["scanner"]
        searched = f"{scanner['markers']} markers"
        searched += f" in {scanner['files']} files" if self.tells_sizes else ""
        if gaps := verifier.search_gaps(claims):
            raise _Absent(f"purged, not fully searched: {gaps}; looked for {searched}, none found")
        return f"{len(claims['stores'])} stores; looked for {searched}, none found"


CheckpointOut = Annotated[dict[str, Any], schemas.shape("root", "at", "note", size="integer")]
Place = Annotated[int | None, Query(ge=0, le=verifier.MAX_INT)]


@dataclass(frozen=True, kw_only=True)
class LinkOut(CertificateOut):
    """A certificate in the chain.

    Attributes
    ----------
    previous : str
        The id that it names as the one before, or `genesis`.
    is_linked : bool
        Whether that is the id of the certificate before.
    is_signed : bool
        Whether signature, schema and key hold.
    reason : str or None
        Why not.
    """

    previous: str
    is_linked: bool
    is_signed: bool
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class ChainOut(Page[LinkOut]):
    """Certificates, newest first, each with its link to the one before.

    Attributes
    ----------
    is_whole : bool
        Whether all links and signatures of this part hold.
    """

    items: tuple[LinkOut, ...]
    is_whole: bool


@dataclass(frozen=True)
class InclusionOut(LogInclusion):
    """Proof that an event is in the log (RFC 6962).

    Attributes
    ----------
    event : dict of str to Any
        Codes, counts and opaque ids.
    """

    event: dict[str, Any]


@router.get("/api/v1/chain", summary="Show the chain of certificates")
def show_chain(who: Reader, after: schemas.Cursor = None, limit: schemas.Limit = 50) -> ChainOut:
    """Return certificates, newest first, with every link and signature checked."""
    require_unbound(who)
    page = _find_certificates(who, after=after, limit=limit)
    contents: dict[int, bytes] = {}
    if page.items:
        first, last = page.items[-1].sequence, page.items[0].sequence
        contents = who.ledger.certificates.envelopes(first - 1, last)
    trust = who.ledger.keys.trust()
    items = tuple(_check_link(who, one, contents, trust) for one in page.items)
    is_whole = all(item.is_linked and item.is_signed for item in items)
    return ChainOut(items=items, next=page.next, total=page.total, is_whole=is_whole)


def _check_link(
    who: Principal, record: Certificate, contents: dict[int, bytes], trust: verifier.Trust
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
    return LinkOut(**vars(_show_certificate(who, record)) | values)


def _id_before(sequence: int, contents: dict[int, bytes]) -> str | None:
    """Return what the certificate before really is: its bytes, not what the database says."""
    if sequence == 1:
        return "genesis"
    try:
        return verifier.certificate_id(contents[sequence - 1])
    except (verifier.VerificationError, KeyError):
        return None


@router.get("/api/v1/checkpoints/latest", summary="Show the newest checkpoint")
def show_checkpoint(who: Reader) -> CheckpointOut:
    """Return the newest signed checkpoint of the log; keep it to notice a roll-back.

    It has the `size` and `root` of the log, `at`, when it was signed, and `note`, the C2SP note
    with its signatures.
    """
    require_unbound(who)
    checkpoint = who.ledger.log.latest_checkpoint()
    if checkpoint is None:
        words = "The ledger signs one with the next certificate or bundle."
        raise Problem(404, "no-checkpoint", "no checkpoint yet", words)
    return checkpoint._asdict() | {"at": to_datetime(checkpoint.at)}


@router.get("/api/v1/log/inclusion", summary="Prove that an event is in the log")
def prove_inclusion(
    who: Reader,
    index: Place = None,
    certificate: Annotated[int | None, Query(ge=1, le=verifier.MAX_INT)] = None,
    size: Place = None,
) -> InclusionOut:
    """Return an RFC 6962 path from an event, or from that of a certificate, to the root."""
    require_unbound(who)
    ledger = who.ledger
    if index is None and certificate is None:
        words = "Give index, the place of an event, or certificate, a number."
        raise Problem(422, "invalid", "what is to be proved?", words)
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
    who: Reader,
    first: Annotated[int, Query(ge=0, le=verifier.MAX_INT)],
    second: Place = None,
) -> LogConsistency:
    """Return an RFC 6962 proof that the log of one size is the beginning of another."""
    require_unbound(who)
    try:
        return who.ledger.log.consistency(first, second)
    except ValueError as error:
        raise _not_in_log() from error


def _not_in_log() -> Problem:
    words = "GET /api/v1/checkpoints/latest says how long the signed log is."
    return Problem(404, "not-in-log", "the log has no such place or size", words)
