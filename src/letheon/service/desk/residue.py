"""The map of residue: what each purge found in each store."""

from datetime import date, datetime
from typing import Any, Literal

from pydantic import Field

from letheon.ledger.certificates.explanations import PURGE_NOT_CLAIMED
from letheon.ledger.models.history import PurgeRecord, purge_records
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._schemas import Out
from letheon.service.desk.certificates import statement_in
from letheon.service.desk.guarantees import CodeOut, codes_out
from letheon.service.desk.numbers import Numbers
from letheon.verifier import search_gaps

__all__ = ["CellOut", "PurgeOut", "ResidueOut", "StoreOut", "residue"]

_USERS = "store:"
_OWN = {
    "blobs": ("version-before", "Sealed files of the version before."),
    "key": ("epoch-key", "The key that these files were sealed with."),
    "intake": ("request-bodies", "Bodies of the requests, which named people."),
    "training": ("training-keys", "Keys of training seeds that are no longer used."),
    "temporary": ("half-written-files", "Half-written files."),
    "database": ("journal", "Old pages of the database and its journal."),
}


class StoreOut(Out):
    """A place that may hold people."""

    name: str
    scope: str
    kind: Literal["own", "folder", "backup"]
    words: str
    is_registered: bool = Field(description="Whether purges look through it from now on.")


class CellOut(Out):
    """What one purge found in one store."""

    store: str
    state: Literal["purged", "expires", "not-searched"] = Field(
        description="not-searched: nothing was found, but not all of it could be searched."
    )
    at: datetime | None = Field(description="When it was searched or destroyed.")
    by: date | None = Field(description="When the last backup expires.")
    evidence: str = Field(description="SHA-256 of what the step noted.")
    files: int | None = Field(description="Files that were searched; null where it says nothing.")
    bytes: int | None
    files_not_searched: int | None = Field(
        description="Files that could not be searched; null where it is not known."
    )


class PurgeOut(Out):
    """One purge, or a certificate whose purge is not done."""

    certificate: int = Field(ge=1)
    model: str
    tenant: str
    state: Literal["purged", "waiting"]
    started_at: datetime | None = None
    purged_at: datetime | None = None
    salts_destroyed: int | None = None
    scanner: str | None = None
    markers: int | None = Field(default=None, description="What was looked for: ids, rows, salts.")
    files: int | None = Field(default=None, description="Null for a tenant's token.")
    bytes: int | None = None
    hits: int | None = None
    gaps: str | None = Field(
        default=None, description="What was not searched, in words; null if nothing."
    )
    recipients_told: int | None = None
    cells: list[CellOut]
    not_searched: list[CodeOut] = Field(description="What the attestation does not claim.")


class ResidueOut(Out):
    """Stores by purges, the newest purge first."""

    stores: list[StoreOut]
    purges: list[PurgeOut]
    next: str | None


def residue(
    context: Context,
    who: Principal,
    *,
    tenant: str | None = None,
    model: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> ResidueOut:
    """Return what each purge found in each store, from the signed attestations.

    The attestation says what was searched in all. How much of that was in a registered store is
    what the step noted, whose digest the attestation has.
    """
    numbers = Numbers(context, who)
    found = purge_records(
        context.ledger,
        tenant=who.tenant_filter(tenant),
        model=model,
        before=None if after is None else numbers.sequence(int(after)),
        limit=limit + 1,
    )
    purges = [_purge(record, numbers) for record in found[:limit]]
    return ResidueOut(
        stores=_stores(context, who, purges),
        purges=purges,
        next=str(purges[-1].certificate) if len(found) > limit else None,
    )


def _purge(record: PurgeRecord, numbers: Numbers) -> PurgeOut:
    number = numbers.shown(record.sequence) or 0
    if record.envelope is None:
        return PurgeOut(
            certificate=number,
            model=record.model,
            tenant=record.tenant,
            state="waiting",
            cells=[],
            not_searched=[],
        )
    claims = statement_in(record.envelope)["predicate"]
    scanner, times = claims["scanner"], claims["times"]
    return PurgeOut(
        certificate=number,
        model=record.model,
        tenant=record.tenant,
        state="purged",
        started_at=times["startedAt"],
        purged_at=times["purgedAt"],
        salts_destroyed=claims["salts"]["destroyed"],
        scanner=scanner["version"],
        markers=scanner["markers"],
        # What was searched holds the files of all tenants.
        files=scanner["files"] if numbers.tenant is None else None,
        bytes=scanner["bytes"] if numbers.tenant is None else None,
        hits=scanner["hits"],
        gaps=search_gaps(claims) or None,
        recipients_told=claims["recipientsTold"],
        cells=[
            _cell(one, scanner, record.evidence if numbers.tenant is None else {})
            for one in claims["stores"]
        ],
        not_searched=codes_out(claims["notClaimed"], PURGE_NOT_CLAIMED),
    )


def _cell(
    store: dict[str, Any], scanner: dict[str, Any], evidence: dict[str, dict[str, Any]]
) -> CellOut:
    """Return a cell; an earlier scanner did not say what it could not search in a folder."""
    name = store["store"]
    is_counted = "notSearched" in scanner or not name.startswith(_USERS)
    is_open = store["state"] == "purged" and not is_counted
    noted = evidence.get("stores", {}).get(name.removeprefix(_USERS), {})
    if not name.startswith(_USERS):
        noted = {}
    return CellOut(
        store=name,
        state="not-searched" if is_open else store["state"],
        at=store.get("at"),
        by=store.get("by"),
        evidence=store["evidence"]["sha256"],
        files=noted.get("files"),
        bytes=noted.get("bytes"),
        files_not_searched=store.get("notSearched", 0) if is_counted else None,
    )


def _stores(context: Context, who: Principal, purges: list[PurgeOut]) -> list[StoreOut]:
    """Return the ledger's own stores, those that are registered, and those that purges name.

    Somebody of a tenant is told of registered stores only where an attestation of theirs does.
    """
    former = {cell.store: cell for purge in purges for cell in purge.cells}
    found = [
        StoreOut(name=name, scope=scope, kind="own", words=words, is_registered=True)
        for name, (scope, words) in _OWN.items()
    ]
    for store in context.ledger.stores():
        if who.tenant is not None and _USERS + store.name not in former:
            continue
        is_backup = store.days is not None
        words = (
            f"A backup that expires after {store.days} days."
            if is_backup
            else "A folder of copies."
        )
        kind: Literal["backup", "folder"] = "backup" if is_backup else "folder"
        name = _USERS + store.name
        found.append(
            StoreOut(name=name, scope=store.scope, kind=kind, words=words, is_registered=True)
        )
    known = {store.name for store in found}
    for name in sorted(former.keys() - known):
        words = "It was taken off the list: later purges do not look there."
        kind = "backup" if former[name].state == "expires" else "folder"
        found.append(
            StoreOut(name=name, scope="former", kind=kind, words=words, is_registered=False)
        )
    return found
