"""The statement of a certificate, made from rows of the database and nothing else.

So whoever writes it, and however often, gives the same bytes: times are those of the rows, facts
were computed once and stored. Receipts have the precision of a day, and people are counted, so
that a certificate does not point at one of them.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select

from letheon.exceptions import CertificateError
from letheon.ledger.certificates.claims import certificate_account
from letheon.ledger.certificates.facts import ONE_PERSON
from letheon.ledger.certificates.measures import unmeasured, without_times
from letheon.ledger.db.log import root_of
from letheon.ledger.models.versions import ModelRow, VersionRow, model_of, version_of
from letheon.ledger.tables import batches, blocked, certificates, meta, requests, versions
from letheon.state import FORMAT
from letheon.verifier import STATEMENT_TYPE, UNLEARNING, leaf_hash

_FACTS = ("method", "execution")
DEFAULT_TENANT = "default"


class Covered(NamedTuple):
    """What a certificate covers: all that was erased after the version `base`.

    A removal starts from the version before. A retrain starts from the last retrain, or from the
    registration: all that was erased since then leaves the model with it.
    """

    model: ModelRow
    kind: str
    parent: VersionRow
    base: VersionRow
    last_retrain: VersionRow


def covered_by(conn: Connection, version: VersionRow) -> Covered:
    """Return what the certificate of this version covers."""
    if version.parent_id is None:
        raise CertificateError("a registration has no certificate: nothing was erased")
    kind = conn.scalars(select(batches.c.kind).where(batches.c.id == version.batch_id)).one()
    parent, last = version_of(conn, version.parent_id), _last_retrain(conn, version)
    base = last if kind == "retrain" else parent
    return Covered(model_of(conn, version.model_id), kind, parent, base, last)


def _last_retrain(conn: Connection, version: VersionRow) -> VersionRow:
    """Return the newest retrain before a version, or the registration."""
    trained = select(versions.c.id).outerjoin(batches, batches.c.id == versions.c.batch_id)
    earlier = (versions.c.model_id == version.model_id) & (versions.c.number < version.number)
    is_fresh = (batches.c.kind == "retrain") | (versions.c.number == 0)
    newest = trained.where(earlier & is_fresh).order_by(versions.c.number.desc()).limit(1)
    return version_of(conn, conn.scalars(newest).one())


def unlearning(
    conn: Connection, version: VersionRow, *, is_rehearsal: bool = False
) -> dict[str, Any]:
    """Return the statement about a version whose certification was claimed.

    In a rehearsal the certificate before it need not be there yet.

    Raises
    ------
    CertificateError
        The rows of the database contradict each other, or nothing was erased.
    """
    covered = covered_by(conn, version)
    facts = version.facts["certificate"]
    asked = _requests(conn, version, covered.base)
    _require_agreement(version, covered, facts)
    name = model_id(covered.model)
    measures = without_times(facts["guarantee"]["kind"], facts["measurements"])
    limits = dict.fromkeys([*facts["notClaimed"], *unmeasured(measures)])
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": f"{name}@{version.sequence}", "digest": _digest(version.model_blob)}],
        "predicateType": UNLEARNING,
        "predicate": {
            "ledger": _ledger(conn, version, is_rehearsal=is_rehearsal),
            "model": {
                "id": name,
                "format": FORMAT,
                "before": _digest(covered.parent.model_blob),
                "blinded": True,
            },
            "dataset": _dataset(version, covered),
            "erasure": _erasure(version, covered, asked),
            **{part: facts[part] for part in _FACTS},
            "measurements": measures,
            "guarantee": _guarantee(covered, facts["guarantee"]),
            "monitor": facts["monitor"]
            | {"lastRetrainSequence": covered.last_retrain.sequence or 0},
            "notClaimed": [*limits, *_one_person(conn, version, covered, asked)],
            "times": _times(version, asked),
        },
    }


def model_id(model: ModelRow) -> str:
    """Return the name of a model in certificates; with its tenant where that is not the default."""
    return model.name if model.tenant == DEFAULT_TENANT else f"{model.tenant}/{model.name}"


def ledger_id(conn: Connection) -> str:
    """Return the name of the ledger in certificates and checkpoints."""
    return str(conn.execute(select(meta.c.value).where(meta.c.key == "ledger_id")).scalar_one())


def _require_agreement(version: VersionRow, covered: Covered, facts: dict[str, Any]) -> None:
    """Compare what was computed beside the model with what the database counted."""
    since = 0 if covered.kind == "retrain" else covered.last_retrain.live - version.live
    pairs = {
        "rows left": (facts["live"], version.live),
        "rows erased by the batch": (facts["rows"], covered.parent.live - version.live),
        "rows erased since the retrain": (
            facts["guarantee"]["accounting"]["deletionsSinceRetrain"],
            since,
        ),
    }
    for what, (said, counted) in pairs.items():
        if said != counted:
            raise CertificateError(f"{what}: the facts say {said}, the versions {counted}")
    if covered.base.live <= version.live:
        raise CertificateError("no row was erased, so there is nothing to certify")


def _ledger(conn: Connection, version: VersionRow, *, is_rehearsal: bool) -> dict[str, Any]:
    if version.sequence is None or version.checkpoint_before is None:
        raise CertificateError("this version was not claimed for certification")
    return {
        "id": ledger_id(conn),
        "sequence": version.sequence,
        "previousCertificate": "genesis" if is_rehearsal else _previous(conn, version.sequence),
        "checkpointBefore": _digest(version.checkpoint_before),
    }


def _previous(conn: Connection, sequence: int) -> Any:
    if sequence == 1:
        return "genesis"
    query = select(certificates.c.id).where(certificates.c.sequence == sequence - 1)
    found = conn.scalar(query)
    if found is None:
        raise CertificateError(f"certificate {sequence - 1} must be there before {sequence}")
    return _digest(found)


def _dataset(version: VersionRow, covered: Covered) -> dict[str, Any]:
    return {
        "id": covered.model.dataset,
        "scheme": "salted-slot-merkle-v1",
        "rootBefore": covered.base.root,
        "rootAfter": version.root,
        "slots": covered.model.slots,
        "liveAfter": version.live,
        "transitionProof": _digest(version.run["proof"]),
        "preprocessing": _digest(covered.model.preprocessing),
    }


def _requests(conn: Connection, version: VersionRow, base: VersionRow) -> list[Any]:
    """Return the requests of all batches after the base, up to this version."""
    mine = (versions.c.model_id == version.model_id) & (versions.c.number > base.number)
    applied = select(versions.c.batch_id).where(mine & (versions.c.number <= version.number))
    query = select(requests).where(requests.c.batch_id.in_(applied)).order_by(requests.c.id)
    return list(conn.execute(query))


def _erasure(version: VersionRow, covered: Covered, asked: Sequence[Any]) -> dict[str, Any]:
    return {
        "batch": version.batch_id,
        "rows": covered.base.live - version.live,
        "requestsRoot": requests_root((row.nonce, row.id) for row in asked),
        "grounds": sorted({row.ground for row in asked}),
    }


def requests_root(asked: Any) -> str:
    """Return the RFC 6962 root over ``SHA-256(nonce | request id)``, sorted.

    Without its nonce nobody can tell from the root whether a request is under it.
    """
    hidden = sorted(
        hashlib.sha256(bytes.fromhex(nonce) + request.encode()).digest() for nonce, request in asked
    )
    return root_of([leaf_hash(each) for each in hidden]).hex()


def _guarantee(covered: Covered, stored: dict[str, Any]) -> dict[str, Any]:
    """Return the stored claim with the operator's releases, and without what was spent.

    A retrain keeps its own claim about releases, which the method's may exceed.
    """
    wanted = covered.model.releases
    keeps = covered.kind == "retrain" and wanted == "every-version"
    account = certificate_account(stored["accounting"])
    return stored | {
        "releases": stored["releases"] if keeps else wanted,
        "accounting": account,
    }


def _one_person(
    conn: Connection, version: VersionRow, covered: Covered, asked: Sequence[Any]
) -> list[str]:
    """Say that a certificate is about one person or one row, on its own or beside those before."""
    mine = [row for row in asked if row.batch_id == version.batch_id]
    found = {
        covered.base.live - version.live,
        covered.parent.live - version.live,
        _people(conn, asked),
        _people(conn, mine),
    }
    return [ONE_PERSON] if 1 in found else []


def _people(conn: Connection, asked: Sequence[Any]) -> int:
    """Return how many people are named; whoever asked twice is one."""
    named = blocked.c.request_id.in_([row.id for row in asked])
    query = select(func.count(blocked.c.tag.distinct())).where(named)
    return int(conn.execute(query).scalar_one())


def _times(version: VersionRow, asked: Sequence[Any]) -> dict[str, str]:
    if version.certified_at is None:
        raise CertificateError("this version was not claimed for certification")
    # A retrain without requests of its own has those that it covers; one without any, its day.
    received = min((row.received_at for row in asked), default=version.published_at)
    due = min((row.extended_to or row.due_on for row in asked), default=_day(received))
    return {
        "oldestReceivedOn": _day(received),
        "earliestDueOn": due,
        "appliedAt": _time(version.published_at),
        "certifiedAt": _time(version.certified_at),
    }


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _digest(hexadecimal: str) -> dict[str, str]:
    return {"sha256": hexadecimal}
