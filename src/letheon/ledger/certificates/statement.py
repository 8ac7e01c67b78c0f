"""Statement of a certificate, made only from rows of the database.

Therefore a statement always has the same bytes: its times come from the database, and its facts
were computed once and stored. Dates of receipt have the precision of a day, and people are only
counted, so that a certificate does not identify a person.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, func, select

from letheon.exceptions import CertificateError
from letheon.ledger.certificates.claims import certificate_account
from letheon.ledger.certificates.facts import ONE_PERSON, list_unmeasured, without_times
from letheon.ledger.db.events import Frontier
from letheon.ledger.models.commitment import SCHEME
from letheon.ledger.schemas import to_datetime
from letheon.ledger.tables import blocked, certificates, meta, requests, versions
from letheon.state import FORMAT
from letheon.verifier import (
    STATEMENT_TYPE,
    UNLEARNING,
    UNLEARNING_V1,
    leaf_hash,
    model_id,
    search_gaps,
)

if TYPE_CHECKING:
    from letheon.ledger.models.versions import ModelRow, VersionRow


class Covered(NamedTuple):
    """Scope of a certificate: all rows erased after the version `base`.

    For a removal, `base` is the previous version. For a retraining, `base` is the last retrained
    version or the first version, because a retraining covers all rows erased since then.
    """

    model: "ModelRow"
    kind: str
    parent: "VersionRow"
    base: "VersionRow"
    last_retrain: "VersionRow"


def make_statement(
    conn: Connection, version: "VersionRow", covered: Covered, *, is_rehearsal: bool = False
) -> dict[str, Any]:
    """Return the statement about a version; its certificate time must be set.

    In a rehearsal the previous certificate does not have to exist.

    Raises
    ------
    CertificateError
        The rows of the database contradict each other, or nothing was erased.
    """
    model, base, facts = covered.model, covered.base, version.facts["certificate"]
    _require_agreement(version, covered, facts)
    sequence, at, checkpoint = version.sequence, version.certified_at, version.checkpoint_before
    if sequence is None or at is None or checkpoint is None:
        raise CertificateError("this version has no certificate number, time or checkpoint yet")
    members = _list_requests(conn, version, base)
    name = model_id(model.tenant, model.name)
    measures = without_times(
        facts["guarantee"]["kind"], facts["method"]["name"], facts["measurements"]
    )
    limits = dict.fromkeys([*facts["notClaimed"], *list_unmeasured(measures)])
    if _is_about_one(conn, version, covered, members):
        limits[ONE_PERSON] = None
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": f"{name}@{sequence}", "digest": _digest_entry(version.model_blob)}],
        # An earlier version of letheon may have published the version without this fact.
        "predicateType": UNLEARNING if "predictor" in facts else UNLEARNING_V1,
        "predicate": {
            "ledger": {
                "id": ledger_id(conn),
                "sequence": sequence,
                "previousCertificate": "genesis"
                if is_rehearsal
                else _find_previous(conn, sequence),
                "checkpointBefore": _digest_entry(checkpoint),
            },
            "model": {
                "id": name,
                "format": FORMAT,
                "before": _digest_entry(covered.parent.model_blob),
                "blinded": True,
            }
            | {name: facts[name] for name in ("predictor",) if name in facts},
            "dataset": {
                "id": model.dataset,
                "scheme": SCHEME,
                "rootBefore": base.root,
                "rootAfter": version.root,
                "slots": model.slots,
                "liveAfter": version.live,
                "transitionProof": _digest_entry(version.run["proof"]),
                "preprocessing": _digest_entry(model.preprocessing),
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
                "releases": choose_releases(model, covered.kind, facts["guarantee"]["releases"]),
                "accounting": certificate_account(facts["guarantee"]["accounting"]),
            },
            "monitor": facts["monitor"]
            | {"lastRetrainSequence": covered.last_retrain.sequence or 0},
            "notClaimed": list(limits),
            "times": _make_times(version.published_at, at, members),
        },
    }


def choose_releases(model: "ModelRow", kind: str, claimed: str) -> str:
    """Return the claim about releases for a certificate, usually the one of the operator.

    A retrained version of a model published as "every-version" keeps its own claim.
    """
    is_kept = kind == "retrain" and model.releases == "every-version"
    return claimed if is_kept else model.releases


def ledger_id(conn: Connection) -> str:
    """Return the name of the ledger in certificates and checkpoints."""
    return str(conn.execute(select(meta.c.value).where(meta.c.key == "ledger_id")).scalar_one())


def _require_agreement(version: "VersionRow", covered: Covered, facts: dict[str, Any]) -> None:
    """Raise `CertificateError` if the model's facts contradict the counts in the database."""
    since = 0 if covered.kind == "retrain" else covered.last_retrain.live - version.live
    accounting = facts["guarantee"]["accounting"]
    for name, stated, counted in (
        ("remaining rows", facts["live"], version.live),
        ("rows erased by the batch", facts["rows"], covered.parent.live - version.live),
        ("rows erased since the retrain", accounting["deletionsSinceRetrain"], since),
    ):
        if stated != counted:
            raise CertificateError(
                f"{name} is {stated} in the facts of the model, but {counted} in the database"
            )
    if covered.base.live <= version.live:
        raise CertificateError("no row was erased, so there is no certificate to issue")


def _find_previous(conn: Connection, sequence: int) -> Any:
    if sequence == 1:
        return "genesis"
    identity = conn.scalar(select(certificates.c.id).where(certificates.c.sequence == sequence - 1))
    if identity is None:
        raise CertificateError(
            f"certificate {sequence} cannot be issued before certificate {sequence - 1}"
        )
    return _digest_entry(identity)


def _list_requests(conn: Connection, version: "VersionRow", base: "VersionRow") -> list[Any]:
    """Return the requests of all batches after the version `base`, up to this version."""
    mine = (versions.c.model_id == version.model_id) & (versions.c.number > base.number)
    applied = select(versions.c.batch_id).where(mine & (versions.c.number <= version.number))
    query = select(requests).where(requests.c.batch_id.in_(applied)).order_by(requests.c.id)
    return list(conn.execute(query))


def requests_root(members: Iterable[tuple[str, str]]) -> str:
    """Return the RFC 6962 root over the sorted hashes ``SHA-256(nonce | request id)``.

    Without the nonces, the root does not show whether a request is included.
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
    """Return whether a certificate, alone or with earlier ones, is about one person or one row."""

    def count_people(rows: Sequence[Any]) -> int:
        """Return the number of people in requests; a person with several requests counts once."""
        named = blocked.c.request_id.in_([row.id for row in rows])
        return conn.scalar(select(func.count(blocked.c.tag.distinct())).where(named)) or 0

    own = [row for row in members if row.batch_id == version.batch_id]
    rows = [before.live - version.live for before in (covered.base, covered.parent)]
    return 1 in (*rows, count_people(members), count_people(own))


def _make_times(published_at: int, certified_at: int, members: Sequence[Any]) -> dict[str, str]:
    # A retrain without own requests has those that it covers; without any, its own day.
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
    """Return a text about what a purge did not search; None if it searched everything."""
    try:
        return search_gaps(predicate_of(attestation)) or None
    except (ValueError, LookupError, TypeError, AttributeError):
        return "the attestation cannot be read"


def predicate_of(envelope: bytes) -> Any:
    """Return the predicate of the statement in an envelope, without verifying the signature."""
    return json.loads(base64.b64decode(json.loads(envelope)["payload"]))["predicate"]


def utc_text(seconds: int) -> str:
    """Return a time in seconds since 1970 as text in the format of statements, in UTC."""
    return f"{to_datetime(seconds):%Y-%m-%dT%H:%M:%SZ}"


def _digest_entry(digest: str) -> dict[str, str]:
    return {"sha256": digest}
