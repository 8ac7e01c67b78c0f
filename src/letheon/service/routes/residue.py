"""The map of residue: what each purge found in each store."""

from datetime import date, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from letheon.ledger import Purge, Store
from letheon.ledger.certificates.explanations import PURGE_NOT_CLAIMED
from letheon.service.guarantees import CodeOut, codes_out
from letheon.service.numbers import Numbers
from letheon.service.routes.certificates import Reader, statement_in
from letheon.service.schemas import Limit, ModelFilter, Out, TenantFilter
from letheon.verifier import search_gaps

router = APIRouter(tags=["certificates"])

_USERS = "store:"
OWN_STORES = {
    "blobs": ("version-before", "Sealed files of the version before."),
    "key": ("epoch-key", "The key that these files were sealed with."),
    "intake": ("request-bodies", "Bodies of the requests, which named people."),
    "training": ("training-keys", "Keys of training seeds that are no longer used."),
    "temporary": ("half-written-files", "Half-written files."),
    "database": ("journal", "Old pages of the database and its journal."),
}
"""The ledger's own stores: scope and words."""


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


@router.get("/api/v1/residue", summary="Show what purges found in each store")
def show_residue(
    who: Reader,
    tenant: TenantFilter = None,
    model: ModelFilter = None,
    after: Annotated[str | None, Query(pattern="^[0-9]{1,15}$")] = None,
    limit: Limit = 50,
) -> ResidueOut:
    """Return stores by purges, from the signed attestations; the newest purge first."""
    numbers = Numbers(who.desk, who)
    records = who.ledger.certificates.purges(
        tenant=who.tenant_filter(tenant),
        model=model,
        before=None if after is None else numbers.sequence(int(after)),
        limit=limit + 1,
    )
    purges = [_purge_out(record, numbers) for record in records[:limit]]
    more = str(purges[-1].certificate) if len(records) > limit else None
    cells = {cell.store: cell for purge in purges for cell in purge.cells}
    # A tenant's token learns of registered stores only where an attestation of the tenant does.
    registered = [
        store
        for store in who.ledger.stores.list()
        if who.tenant is None or _USERS + store.name in cells
    ]
    return ResidueOut(stores=_stores_out(registered, cells), purges=purges, next=more)


def _purge_out(record: Purge, numbers: Numbers) -> PurgeOut:
    values: dict[str, Any] = {"state": "waiting", "cells": [], "not_searched": []}
    if record.envelope is not None:
        claims, sees_all = statement_in(record.envelope)["predicate"], numbers.tenant is None
        scanner, evidence = claims["scanner"], record.evidence if sees_all else {}
        values = {
            "state": "purged",
            "started_at": claims["times"]["startedAt"],
            "purged_at": claims["times"]["purgedAt"],
            "salts_destroyed": claims["salts"]["destroyed"],
            "scanner": scanner["version"],
            "markers": scanner["markers"],
            # What was searched holds the files of all tenants.
            "files": scanner["files"] if sees_all else None,
            "bytes": scanner["bytes"] if sees_all else None,
            "hits": scanner["hits"],
            "gaps": search_gaps(claims) or None,
            "recipients_told": claims["recipientsTold"],
            "cells": [_cell_out(one, scanner, evidence) for one in claims["stores"]],
            "not_searched": codes_out(claims["notClaimed"], PURGE_NOT_CLAIMED),
        }
    whose = {"model": record.model, "tenant": record.tenant}
    return PurgeOut.model_validate(
        {"certificate": numbers.shown(record.sequence) or 0, **whose, **values}
    )


def _cell_out(
    store: dict[str, Any], scanner: dict[str, Any], evidence: dict[str, dict[str, Any]]
) -> CellOut:
    """Return a cell; an earlier scanner did not say what it could not search in a folder.

    The attestation says what was searched in all. How much of that was in a registered store is
    what the step noted, whose digest the attestation has.
    """
    name, noted = store["store"], {}
    is_counted = "notSearched" in scanner or not name.startswith(_USERS)
    if name.startswith(_USERS):
        noted = evidence.get("stores", {}).get(name.removeprefix(_USERS), {})
    is_open = store["state"] == "purged" and not is_counted
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


def _stores_out(registered: list[Store], cells: dict[str, CellOut]) -> list[StoreOut]:
    """Return the ledger's own stores, those that are registered, and those that purges name."""
    rows = [(name, scope, "own", words) for name, (scope, words) in OWN_STORES.items()]
    for store in registered:
        kind, words = "folder", "A folder of copies."
        if store.days is not None:
            kind, words = "backup", f"A backup that expires after {store.days} days."
        rows.append((_USERS + store.name, store.scope, kind, words))
    n_registered = len(rows)
    for name in sorted(cells.keys() - {name for name, *_ in rows}):
        kind = "backup" if cells[name].state == "expires" else "folder"
        words = "It was taken off the list: later purges do not look there."
        rows.append((name, "former", kind, words))
    names = ("name", "scope", "kind", "words", "is_registered")
    return [
        StoreOut.model_validate(dict(zip(names, (*row, place < n_registered), strict=True)))
        for place, row in enumerate(rows)
    ]
