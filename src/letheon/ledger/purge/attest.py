"""The statement that a purge is attested with (``purge/v1``).

It follows from committed rows alone, so that it has the same bytes whenever it is signed.
"""

import hashlib
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select

from letheon.ledger.core import Core
from letheon.ledger.purge.scan import SCANNER
from letheon.ledger.tables import certificates, meta, purge_steps, versions
from letheon.verifier import (
    FILES_NOT_SEARCHED,
    PURGE,
    STATEMENT_TYPE,
    canonical,
    open_envelope,
    parse_strict,
)

# What a step did, as a store of the attestation.
_SCOPES = {
    "blobs": "version-before",
    "key": "epoch-key",
    "intake": "request-bodies",
    "training": "training-keys",
    "temporary": "half-written-files",
    "database": "journal",
}
_NOT_CLAIMED = (
    "no-copy-kept-outside-inventory",
    "downstream-copies",
    "memory-of-running-processes",
    "storage-media-remanence",
    "keyed-tags-dropped",
    "recipients-told-later",
    "copies-of-rows-without-their-ids",
    "ids-in-other-spellings",
)
# What the certificate leaves open and a purge does not close.
_KEPT_OPEN = ("saved-state-free-of-traces",)


def attestation(core: Core, conn: Connection, batch_id: str) -> dict[str, Any]:
    """Return the statement for a purge all of whose steps are done."""
    steps = {
        row["step"]: (parse_strict(row["evidence"].encode()), int(row["at"]))
        for row in conn.execute(
            select(purge_steps).where(purge_steps.c.batch_id == batch_id)
        ).mappings()
    }
    certificate = conn.execute(
        select(certificates)
        .join(versions, versions.c.id == certificates.c.version_id)
        .where(versions.c.batch_id == batch_id)
    ).one()
    opened = open_envelope(bytes(certificate.envelope), core.keys.trust())
    name = conn.execute(select(meta.c.value).where(meta.c.key == "ledger_id")).scalar_one()
    started, scanned = steps["started"][0], steps["scan"][0]
    stores, found = _own_stores(steps), _users_stores(steps)
    gaps = _gaps(steps)
    return {
        "_type": STATEMENT_TYPE,
        "subject": opened.statement["subject"],
        "predicateType": PURGE,
        "predicate": {
            "ledger": {"id": name, "sequence": certificate.sequence},
            "certificate": {"sha256": certificate.id},
            "stores": [*stores, *found],
            "salts": {"destroyed": started["salts"], "key": steps["key"][0]["key"]},
            "scanner": {
                "version": SCANNER,
                "markers": started["markers"] - scanned["ambiguous"],
                "files": scanned["files"] + _sum_over_stores(steps, "files"),
                "bytes": scanned["bytes"] + _sum_over_stores(steps, "bytes"),
                "hits": 0,
                **({} if gaps is None else {"notSearched": gaps}),
            },
            "recipientsTold": steps["claim"][0]["recipients"],
            "notClaimed": [
                *_NOT_CLAIMED,
                *_further_limits(steps),
                *(code for code in _KEPT_OPEN if code in opened.predicate["notClaimed"]),
            ],
            "times": {
                "startedAt": _time(steps["started"][1]),
                "purgedAt": _time(steps["claim"][1]),
            },
        },
    }


def _gaps(steps: dict[str, tuple[dict[str, Any], int]]) -> dict[str, int] | None:
    """Return how much was not searched; None if an earlier version searched, without counting."""
    scanned, stores = steps["scan"][0], steps["stores"][0].values()
    if any("not_searched" not in noted for noted in (scanned, *stores)):
        return None
    return {
        "files": scanned["not_searched"] + _sum_over_stores(steps, "not_searched"),
        "ids": scanned["ambiguous"] + _sum_over_stores(steps, "ambiguous"),
        "shortIds": steps["started"][0].get("weak", 0),
    }


def _further_limits(steps: dict[str, tuple[dict[str, Any], int]]) -> list[str]:
    """Return what cannot be claimed of this purge besides."""
    found = steps["stores"][0].values()
    n_ambiguous = steps["scan"][0]["ambiguous"] + _sum_over_stores(steps, "ambiguous")
    gaps = _gaps(steps) or {"files": 0, "shortIds": 0}
    limits = {
        "backups-expired": any(store["by"] for store in found),
        "search-for-ids-that-are-words-of-the-ledger": n_ambiguous > 0,
        "search-for-rows-that-were-damaged": not steps["started"][0]["whole"],
        FILES_NOT_SEARCHED: gaps["files"] > 0,
        "search-for-short-ids-in-longer-texts-and-own-files": gaps["shortIds"] > 0,
    }
    return [code for code, holds in limits.items() if holds]


def _own_stores(steps: dict[str, tuple[dict[str, Any], int]]) -> list[dict[str, Any]]:
    return [
        {
            "store": name,
            "scope": scope,
            "state": "purged",
            "at": _time(steps[name][1]),
            "evidence": _digest(steps[name][0]),
        }
        for name, scope in _SCOPES.items()
    ]


def _users_stores(steps: dict[str, tuple[dict[str, Any], int]]) -> list[dict[str, Any]]:
    evidence, at = steps["stores"]
    return [
        {
            "store": f"store:{name}",
            "scope": found["scope"],
            **_state_of(found, _time(at)),
            "evidence": _digest(found),
        }
        for name, found in sorted(evidence.items())
    ]


def _state_of(found: dict[str, Any], at: str) -> dict[str, Any]:
    if found["by"]:
        return {"state": "expires", "by": found["by"]}
    if found.get("not_searched"):
        return {"state": "not-searched", "at": at, "notSearched": found["not_searched"]}
    return {"state": "purged", "at": at}


def _sum_over_stores(steps: dict[str, tuple[dict[str, Any], int]], what: str) -> int:
    return sum(found[what] for found in steps["stores"][0].values())


def _digest(evidence: dict[str, Any]) -> dict[str, str]:
    return {"sha256": hashlib.sha256(canonical(evidence)).hexdigest()}


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
