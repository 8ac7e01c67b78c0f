"""Certificates: what they say, and whether they hold."""

import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, cast

from pydantic import Field

from letheon.exceptions import LedgerMissingError
from letheon.guarantee import KINDS
from letheon.ledger import CertificateInfo
from letheon.ledger.certificates.explanations import NOT_CLAIMED
from letheon.ledger.models.history import CertificateRecord, certificate_record, trust_of
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._problems import Problem
from letheon.service._schemas import Out, Page
from letheon.service.desk.guarantees import (
    BudgetOut,
    CodeOut,
    GuaranteeOut,
    Kind,
    MeasuresOut,
    budget_out,
    codes_out,
    guarantee_out,
    measures_out,
)
from letheon.service.desk.log import certificate_in_log
from letheon.service.desk.numbers import Numbers, unknown_certificate
from letheon.verifier import (
    SMALL,
    Opened,
    Refused,
    Trust,
    certificate_id,
    check_next,
    check_purge,
    check_schema,
    from_base64,
    open_envelope,
    overall,
    parse_strict,
    require,
    search_gaps,
    transition_roots,
)

__all__ = [
    "CertificateDetail",
    "CertificateOut",
    "CheckOut",
    "VerificationOut",
    "certificate_out",
    "certificate_seen",
    "envelope_of",
    "find_certificate",
    "page_of_certificates",
    "proof_of",
    "purge_of",
    "statement_in",
    "verification",
]


_GAPS = "What the purge did not search, in words; null if it searched everything."


class CertificateOut(Out):
    """A certificate in a list."""

    sequence: int = Field(ge=1, description="Its number; for a tenant's token, among the tenant's.")
    id: str = Field(description="SHA-256 of what was signed.")
    model: str
    tenant: str
    version: int = Field(ge=0)
    method: str
    guarantee: Literal["exact", "certified", "empirical", "unreadable"]
    rows: int = Field(ge=0, description="Rows that it certifies to be erased.")
    certified_at: datetime
    purged_at: datetime | None = Field(description="When the purge was attested.")
    purge_gaps: str | None = Field(description=_GAPS)


class CertificateDetail(Out):
    """A certificate, decoded."""

    sequence: int = Field(ge=1)
    id: str
    model: str
    tenant: str
    version: int = Field(ge=0)
    batch: str
    previous: str | None = Field(
        description="Id of the certificate before, or `genesis`; null for a tenant's token."
    )
    subject: str = Field(description="SHA-256 of the model after the erasure.")
    before: str = Field(description="SHA-256 of the version that it replaces.")
    method: str
    rows: int = Field(ge=0)
    rows_left: int = Field(ge=0)
    grounds: list[str]
    applied_at: datetime
    certified_at: datetime
    purged_at: datetime | None
    purge_gaps: str | None = Field(description=_GAPS)
    guarantee: GuaranteeOut
    budget: BudgetOut
    measures: MeasuresOut
    monitor: Literal["keep", "retrain-due", "retrained"]
    not_claimed: list[CodeOut]
    statement: dict[str, Any] = Field(
        description="What was signed; for a tenant's token without its place in the ledger's chain."
    )
    envelope: str | None = Field(
        description="The DSSE envelope, as it is downloaded; null for a tenant's token."
    )


class CheckOut(Out):
    """One check of a certificate."""

    check: Literal["schema", "signature", "chain", "line", "log", "proof", "purge"]
    passed: bool | None = Field(description="Null: nothing to look at yet.")
    words: str = Field(description="What it shows.")
    reason: str


class VerificationOut(Out):
    """Whether a certificate holds, check by check."""

    sequence: int = Field(ge=1)
    verdict: Literal["passed", "failed", "incomplete"] = Field(
        description="Incomplete: no check failed, and one had nothing to look at yet."
    )
    passed: bool = Field(description="Whether every check passed.")
    key: str = Field(description="The public key that was pinned, in hexadecimal digits.")
    checks: list[CheckOut]


_WORDS = {
    "schema": "It says what a certificate may say, in the only accepted form.",
    "signature": "The ledger's key signed these bytes.",
    "chain": "It follows the certificate before it.",
    "line": "It starts where the model's certificate before ended.",
    "log": "It is in the signed log.",
    "proof": "Exactly the stated number of slots became empty.",
    "purge": "What was left of these rows was destroyed, and a search of all stores found nothing.",
}


def page_of_certificates(
    context: Context,
    who: Principal,
    *,
    tenant: str | None = None,
    model: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[CertificateOut]:
    """Return certificates, newest first."""
    try:
        found = context.ledger.certificate_infos(
            tenant=who.tenant_filter(tenant), model=model, after=after, limit=limit
        )
    except ValueError as error:
        words = "Give back `next` as it was given."
        raise Problem(422, "cursor", "after cannot be used", words) from error
    numbers = Numbers(context, who)
    items = [certificate_out(one, numbers) for one in found.items]
    return Page(items=items, next=found.next, total=found.total)


def certificate_out(info: CertificateInfo, numbers: Numbers) -> CertificateOut:
    """Return a certificate as lists show it; a damaged one may say anything, and is shown too."""
    rows = info.n_rows if isinstance(info.n_rows, int) else 0
    return CertificateOut(
        sequence=numbers.shown(info.sequence) or 0,
        id=info.id,
        model=info.model,
        tenant=info.tenant,
        version=info.version,
        method=str(info.method),
        guarantee=cast(Kind, info.guarantee) if info.guarantee in KINDS else "unreadable",
        rows=max(rows, 0),
        certified_at=info.certified_at,
        purged_at=info.purged_at,
        purge_gaps=info.purge_gaps,
    )


def certificate_seen(context: Context, who: Principal, number: int) -> CertificateRecord:
    """Return where a certificate stands that the principal sees.

    Raises
    ------
    Problem
        404, whether another tenant has it or nobody.
    """
    found = certificate_record(context.ledger, Numbers(context, who).sequence(number))
    if found is None or who.tenant not in (None, found.tenant):
        raise unknown_certificate()
    return found


def find_certificate(context: Context, who: Principal, number: int) -> CertificateDetail:
    """Return a certificate, decoded; `verification` says whether it holds."""
    record = certificate_seen(context, who, number)
    envelope = context.ledger.certificate(record.sequence)
    statement = statement_in(envelope)
    claims = statement["predicate"]
    previous, times = claims["ledger"]["previousCertificate"], claims["times"]
    purge = _attestation(context, record.sequence)
    purged = None if purge is None else statement_in(purge)["predicate"]
    return CertificateDetail(
        sequence=number,
        id=record.id,
        model=record.model,
        tenant=record.tenant,
        version=record.version,
        batch=record.batch,
        previous=_previous(who, previous),
        subject=statement["subject"][0]["digest"]["sha256"],
        before=claims["model"]["before"]["sha256"],
        method=claims["method"]["name"],
        rows=claims["erasure"]["rows"],
        rows_left=claims["dataset"]["liveAfter"],
        grounds=claims["erasure"]["grounds"],
        applied_at=times["appliedAt"],
        certified_at=times["certifiedAt"],
        purged_at=None if purged is None else purged["times"]["purgedAt"],
        purge_gaps=None if purged is None else search_gaps(purged) or None,
        guarantee=guarantee_out(claims["guarantee"]),
        budget=budget_out(claims["guarantee"]["accounting"]),
        measures=measures_out(claims["measurements"]),
        monitor=claims["monitor"]["decision"],
        not_claimed=codes_out(claims["notClaimed"], NOT_CLAIMED),
        statement=statement if who.tenant is None else _without_place(statement, number),
        envelope=envelope.decode() if who.tenant is None else None,
    )


def _previous(who: Principal, said: str | dict[str, str]) -> str | None:
    if who.tenant is not None:
        return None
    return said if isinstance(said, str) else said["sha256"]


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
    """Return what an envelope says, in the form that its schema asks for; nobody vouches for it.

    Raises
    ------
    Refused
        It is no envelope of a statement.
    """
    certificate_id(envelope)  # its only accepted form
    statement: dict[str, Any] = parse_strict(from_base64(parse_strict(envelope)["payload"]), SMALL)
    check_schema(statement)
    return statement


def _attestation(context: Context, number: int) -> bytes | None:
    try:
        return context.ledger.purge_attestation(number)
    except LedgerMissingError:
        return None


def envelope_of(context: Context, who: Principal, number: int) -> bytes:
    """Return the envelope of a certificate."""
    return context.ledger.certificate(certificate_seen(context, who, number).sequence)


def proof_of(context: Context, who: Principal, number: int) -> bytes:
    """Return the proof that exactly the erased slots changed."""
    return context.ledger.proof(certificate_seen(context, who, number).sequence)


def purge_of(context: Context, who: Principal, number: int) -> bytes:
    """Return the attestation of the purge that followed a certificate."""
    found = _attestation(context, certificate_seen(context, who, number).sequence)
    if found is None:
        words = "The purge is not done yet; look again later."
        raise Problem(404, "not-purged-yet", "no attestation yet", words)
    return found


def verification(context: Context, who: Principal, number: int) -> VerificationOut:
    """Check a certificate as a stranger would who has the ledger's first public key.

    Signature, schema and key; its place in the chain and in its model's line; its event in the
    signed log; the transition proof; the purge attestation. That the model is what the remaining
    rows give is for an audit.
    """
    record = certificate_seen(context, who, number)
    checks = _Checks(context, record, Numbers(context, who))
    found = [
        _judged("schema", checks.schema),
        _judged("signature", checks.signature),
        _judged("chain", checks.chain),
        _judged("line", checks.line),
        _judged("log", checks.log),
        _judged("proof", checks.proof),
        _judged("purge", checks.purge),
    ]
    verdict = overall((one.passed, True) for one in found)
    return VerificationOut(
        sequence=number,
        verdict=cast("Any", verdict),
        passed=verdict == "passed",
        key=context.ledger.public_key,
        checks=found,
    )


class _Absent(Exception):  # noqa: N818 - says that there is nothing to look at
    """There is nothing to look at yet."""


def _judged(check: Any, work: Callable[[], str]) -> CheckOut:
    words = _WORDS[check]
    try:
        return CheckOut(check=check, passed=True, words=words, reason=work())
    except _Absent as reason:
        return CheckOut(check=check, passed=None, words=words, reason=str(reason))
    except (Refused, LedgerMissingError, OSError) as reason:
        return CheckOut(check=check, passed=False, words=words, reason=_without_paths(reason))
    except (ValueError, LookupError, TypeError) as reason:
        said = f"it cannot be read ({type(reason).__name__})"
        return CheckOut(check=check, passed=False, words=words, reason=said)


def _without_paths(reason: Exception) -> str:
    """Return why; an error of the disk would name files of the server."""
    if isinstance(reason, OSError) and not isinstance(reason, LedgerMissingError):
        return f"a file cannot be read ({type(reason).__name__})"
    if isinstance(reason, LedgerMissingError):
        return "it is missing from the ledger"
    return str(reason)


class _Checks:
    """The checks of one certificate; sizes of the log tell of all tenants."""

    def __init__(self, context: Context, record: CertificateRecord, numbers: Numbers) -> None:
        self.numbers = numbers
        self.tells_sizes = numbers.tenant is None
        self.context = context
        self.record = record
        self.envelope = context.ledger.certificate(record.sequence)

    @property
    def trust(self) -> Trust:
        return trust_of(self.context.ledger)

    def opened(self, sequence: int | None = None) -> Opened:
        envelope = self.envelope if sequence is None else self.context.ledger.certificate(sequence)
        return open_envelope(envelope, self.trust)

    def schema(self) -> str:
        return f"a statement of type {statement_in(self.envelope)['predicateType']}"

    def signature(self) -> str:
        opened = self.opened()
        require(opened.id == self.record.id, "the database has another id for it")
        number = self.numbers.shown(opened.sequence)
        return f"signed by key {opened.keyids[0][:16]}, which may sign number {number}"

    def chain(self) -> str:
        claims = self.opened().predicate["ledger"]
        number = self.record.sequence
        if not self.tells_sizes:
            return self._links()
        require(claims["sequence"] == number, f"it has number {claims['sequence']}")
        if number == 1:
            require(claims["previousCertificate"] == "genesis", "it is not the first")
            return "the first certificate of the ledger"
        before = certificate_id(self.context.ledger.certificate(number - 1))
        same = claims["previousCertificate"] == {"sha256": before}
        require(same, f"previousCertificate is not the id of number {number - 1}")
        return f"names {before[:16]}…, the id of number {number - 1}"

    def _links(self) -> str:
        """Check the link without a word about the certificates of other tenants."""
        claims, number = self.opened().predicate["ledger"], self.record.sequence
        before: Any = "genesis"
        if number > 1:
            before = {"sha256": certificate_id(self.context.ledger.certificate(number - 1))}
        is_linked = claims["sequence"] == number and claims["previousCertificate"] == before
        require(is_linked, "it does not name the certificate before it")
        return "names the certificate before it"

    def line(self) -> str:
        record = self.record
        if record.before is None:
            return "the model's first certificate; the log says what was registered"
        retrain = None if record.retrain is None else self.opened(record.retrain)
        check_next(self.opened(), self.opened(record.first), retrain, self.opened(record.before))
        return (
            f"continues number {self.numbers.shown(record.before)}: same data set, rows only left"
        )

    def log(self) -> str:
        found = certificate_in_log(self.context, self.record.sequence, self.opened().id, self.trust)
        if found is None:
            raise _Absent("no checkpoint of the log covers it yet")
        if not self.tells_sizes:
            return "it is an entry of the log that the ledger signed"
        return f"entry {found.index} of the log of {found.size} that the ledger signed"

    def proof(self) -> str:
        data = self.opened().predicate["dataset"]
        proof = self.context.ledger.proof(self.record.sequence)
        digest = hashlib.sha256(proof).hexdigest()
        require(digest == data["transitionProof"]["sha256"], "the proof is not the one certified")
        before, after, n_erased = transition_roots(proof)
        require(parse_strict(proof)["slots"] == data["slots"], "it is of another number of slots")
        require(before.hex() == data["rootBefore"], "it does not start at rootBefore")
        require(after.hex() == data["rootAfter"], "it does not end at rootAfter")
        rows = self.opened().predicate["erasure"]["rows"]
        require(n_erased == rows, f"{n_erased} slots were erased, not {rows}")
        return f"{n_erased} of {data['slots']} slots became empty, no other changed"

    def purge(self) -> str:
        attestation = _attestation(self.context, self.record.sequence)
        if attestation is None:
            raise _Absent("the purge is not attested yet")
        purge = check_purge(attestation, self.opened(), self.trust)
        scanner = purge.predicate["scanner"]
        looked = f"{scanner['markers']} markers"
        looked += f" in {scanner['files']} files" if self.tells_sizes else ""
        if gaps := search_gaps(purge.predicate):
            raise _Absent(f"purged, not fully searched: {gaps}; looked for {looked}, none found")
        return f"{len(purge.predicate['stores'])} stores; looked for {looked}, none found"
