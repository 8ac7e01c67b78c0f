"""The statement of a certificate, made from rows of the database and nothing else.

So whoever writes it, and however often, gives the same bytes: times are those of the rows, facts
were computed once and stored. Receipts have the precision of a day, and people are counted, so
that a certificate does not point at one of them.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, func, select

from letheon.exceptions import CertificateError
from letheon.ledger.certificates.claims import certificate_account
from letheon.ledger.certificates.facts import ONE_PERSON, unmeasured, without_times
from letheon.ledger.db.events import Frontier
from letheon.ledger.models.commitment import SCHEME
from letheon.ledger.schemas import to_datetime
from letheon.ledger.tables import blocked, certificates, meta, requests, versions
from letheon.state import FORMAT
from letheon.verifier import STATEMENT_TYPE, UNLEARNING, leaf_hash, model_id, search_gaps

if TYPE_CHECKING:
    from letheon.ledger.models.versions import ModelRow, VersionRow


class Covered(NamedTuple):
    """What a certificate covers: all that was erased after the version `base`.

    A removal starts from the version before. A retrain starts from the last retrain, or from the
    registration: all that was erased since then leaves the model with it.
    """

    model: "ModelRow"
    kind: str
    parent: "VersionRow"
    base: "VersionRow"
    last_retrain: "VersionRow"


def unlearning(
    conn: Connection, version: "VersionRow", covered: Covered, *, is_rehearsal: bool = False
) -> dict[str, Any]:
    """Return the statement about a version whose certification was claimed.

    In a rehearsal the certificate before it need not be there yet.

    Raises
    ------
    CertificateError
        The rows of the database contradict each other, or nothing was erased.
    """
    model, base, facts = covered.model, covered.base, version.facts["certificate"]
    _require_agreement(version, covered, facts)
    sequence, at, checkpoint = version.sequence, version.certified_at, version.checkpoint_before
    if sequence is None or at is None or checkpoint is None:
        raise CertificateError("this version was not claimed for certification")
    members = _requests(conn, version, base)
    name = model_id(model.tenant, model.name)
    measures = without_times(facts["guarantee"]["kind"], facts["measurements"])
    limits = dict.fromkeys([*facts["notClaimed"], *unmeasured(measures)])
    if _is_about_one(conn, version, covered, members):
        limits[ONE_PERSON] = None
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": f"{name}@{sequence}", "digest": _sha256(version.model_blob)}],
        "predicateType": UNLEARNING,
        "predicate": {
            "ledger": {
                "id": ledger_id(conn),
                "sequence": sequence,
                "previousCertificate": "genesis" if is_rehearsal else _previous(conn, sequence),
                "checkpointBefore": _sha256(checkpoint),
            },
            "model": {
                "id": name,
                "format": FORMAT,
                "before": _sha256(covered.parent.model_blob),
                "blinded": True,
            },
            "dataset": {
                "id": model.dataset,
                "scheme": SCHEME,
                "rootBefore": base.root,
                "rootAfter": version.root,
                "slots": model.slots,
                "liveAfter": version.live,
                "transitionProof": _sha256(version.run["proof"]),
                "preprocessing": _sha256(model.preprocessing),
            },
            "erasure": {
                "batch": version.batch_id,
                "rows": base.live - version.live,
                "requestsRoot": requests_root((row.nonce, row.id) for row in members),
                "grounds": sorted({row.ground for row in members}),
            },
            "method": facts["method"],
            "execution": facts["execution"],
            "measurements": measures,
            "guarantee": facts["guarantee"]
            | {
                "releases": released(model, covered.kind, facts["guarantee"]["releases"]),
                "accounting": certificate_account(facts["guarantee"]["accounting"]),
            },
            "monitor": facts["monitor"]
            | {"lastRetrainSequence": covered.last_retrain.sequence or 0},
            "notClaimed": list(limits),
            "times": _times(version.published_at, at, members),
        },
    }


def released(model: "ModelRow", kind: str, claimed: str) -> str:
    """Return what a certificate says about releases: what the operator published.

    A retrain keeps its own claim, which the method's may exceed.
    """
    is_kept = kind == "retrain" and model.releases == "every-version"
    return claimed if is_kept else model.releases


def ledger_id(conn: Connection) -> str:
    """Return the name of the ledger in certificates and checkpoints."""
    return str(conn.execute(select(meta.c.value).where(meta.c.key == "ledger_id")).scalar_one())


def _require_agreement(version: "VersionRow", covered: Covered, facts: dict[str, Any]) -> None:
    """Compare what was computed beside the model with what the database counted."""
    since = 0 if covered.kind == "retrain" else covered.last_retrain.live - version.live
    accounting = facts["guarantee"]["accounting"]
    for what, said, counted in (
        ("rows left", facts["live"], version.live),
        ("rows erased by the batch", facts["rows"], covered.parent.live - version.live),
        ("rows erased since the retrain", accounting["deletionsSinceRetrain"], since),
    ):
        if said != counted:
            raise CertificateError(f"{what}: the facts say {said}, the versions {counted}")
    if covered.base.live <= version.live:
        raise CertificateError("no row was erased, so there is nothing to certify")


def _previous(conn: Connection, sequence: int) -> Any:
    if sequence == 1:
        return "genesis"
    identity = conn.scalar(select(certificates.c.id).where(certificates.c.sequence == sequence - 1))
    if identity is None:
        raise CertificateError(f"certificate {sequence - 1} must be there before {sequence}")
    return _sha256(identity)


def _requests(conn: Connection, version: "VersionRow", base: "VersionRow") -> list[Any]:
    """Return the requests of all batches after the base, up to this version."""
    mine = (versions.c.model_id == version.model_id) & (versions.c.number > base.number)
    applied = select(versions.c.batch_id).where(mine & (versions.c.number <= version.number))
    query = select(requests).where(requests.c.batch_id.in_(applied)).order_by(requests.c.id)
    return list(conn.execute(query))


def requests_root(members: Iterable[tuple[str, str]]) -> str:
    """Return the RFC 6962 root over ``SHA-256(nonce | request id)``, sorted.

    Without its nonce nobody can tell from the root whether a request is under it.
    """
    frontier = Frontier()
    for hidden in sorted(
        hashlib.sha256(bytes.fromhex(nonce) + request.encode()).digest()
        for nonce, request in members
    ):
        frontier = frontier.append(leaf_hash(hidden))
    return frontier.root().hex()


def _is_about_one(
    conn: Connection, version: "VersionRow", covered: Covered, members: Sequence[Any]
) -> bool:
    """Whether a certificate is about one person or row, on its own or beside those before."""

    def count_people(rows: Sequence[Any]) -> int:
        """Return how many people are named; a requester who asked twice is one."""
        named = blocked.c.request_id.in_([row.id for row in rows])
        return conn.scalar(select(func.count(blocked.c.tag.distinct())).where(named)) or 0

    own = [row for row in members if row.batch_id == version.batch_id]
    rows = [before.live - version.live for before in (covered.base, covered.parent)]
    return 1 in (*rows, count_people(members), count_people(own))


def _times(published_at: int, certified_at: int, members: Sequence[Any]) -> dict[str, str]:
    # A retrain without requests of its own has those that it covers; one without any, its day.
    received = min((row.received_at for row in members), default=published_at)
    received_on = utc_text(received)[:10]
    return {
        "oldestReceivedOn": received_on,
        "earliestDueOn": min(
            (row.extended_to or row.due_on for row in members), default=received_on
        ),
        "appliedAt": utc_text(published_at),
        "certifiedAt": utc_text(certified_at),
    }


def gaps_in(attestation: bytes) -> str | None:
    """Return what a purge did not search, in words; None if it searched everything."""
    try:
        return search_gaps(predicate_of(attestation)) or None
    except (ValueError, LookupError, TypeError, AttributeError):
        return "the attestation cannot be read"


def predicate_of(envelope: bytes) -> Any:
    """Return the predicate of a statement in an envelope, unverified."""
    return json.loads(base64.b64decode(json.loads(envelope)["payload"]))["predicate"]


def utc_text(seconds: int) -> str:
    """Return a stored time as statements have it, in UTC."""
    return f"{to_datetime(seconds):%Y-%m-%dT%H:%M:%SZ}"


def _sha256(digest: str) -> dict[str, str]:
    return {"sha256": digest}
