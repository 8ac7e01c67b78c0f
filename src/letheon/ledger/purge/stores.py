"""Where a purge looks, and the statement that attests to what it found.

`Ledger.stores` are folders outside the ledger's own that may hold people: copies of models, feature
files, exports. A purge searches them and is not done while something is found. Files that it cannot
search are counted in the attestation, and the store does not count as purged. A store with `days`
is a backup: what lies in it may stay that long, and the attestation says until when.

The ledger's own files and database are searched too. The attestation (``purge/v1``) follows from
committed rows alone, so that it has the same bytes whenever it is signed.
"""

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, insert, select, tuple_
from sqlalchemy.exc import IntegrityError

from letheon.exceptions import (
    CorruptFileError,
    KeyFileError,
    LedgerError,
    LedgerMissingError,
    SearchWarning,
    warn_caller,
)
from letheon.ledger.core import Core
from letheon.ledger.db.events import HIGH_WATER, record_event
from letheon.ledger.models.versions import find_head, list_models, read_ids
from letheon.ledger.purge.scan import (
    SCANNER,
    FileIssue,
    Hit,
    Markers,
    ScanResult,
    ScanTarget,
    is_distinctive_id,
    scan_files,
)
from letheon.ledger.schemas import Store, require_name, to_datetime
from letheon.ledger.settings import FILE
from letheon.ledger.tables import certificates, metadata, purge_steps, versions
from letheon.ledger.tables import stores as table
from letheon.verifier import (
    FILES_NOT_SEARCHED,
    PURGE,
    STATEMENT_TYPE,
    canonical,
    open_envelope,
    parse_strict,
)

_SECONDS_OF_DAY = 86_400
_SHOWN = 3
# Private folders of the desk, each with a lock beside it while its maker lives.
SERVICE_FOLDERS = ".desk"
SERVICE_LOCK = ".lock"
_LONGEST_USE = 86_400
_ROWS = 500
# What letheon itself writes into its home; another file there is searched like one of a store.
_OWN = {FILE, HIGH_WATER, SERVICE_FOLDERS, "keys", "public", "proofs", "certificates", "purges"}
_OWN |= {"checkpoints", "superseded", "service.toml", "service.key"}
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


class Stores:
    """The registry of folders that every purge searches.

    Parameters
    ----------
    core : Core
        The ledger.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def add(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        owner: str = "operator",
        scope: str = "copies",
        days: int | None = None,
    ) -> None:
        """Register a folder outside the ledger that may hold people; every purge scans it.

        Parameters
        ----------
        name : str
            A code, for attestations.
        path : path
            The folder. A purge is not done while the search finds something of an erased person in
            it. Files that cannot be searched give a `SearchWarning`, now and for later models.
        owner, scope : str
            Who keeps it clean, and what lies in it: codes.
        days : int, optional
            It is a backup that expires by itself after so many days, and may hold people till then.

        Raises
        ------
        ValueError
            A name that is not a code, a folder that does not exist, or one that holds the ledger's.
        LedgerError
            There is a store of that name.
        """
        core, store = self._core, Store(name, Path(path), owner=owner, scope=scope, days=days)
        _require_usable(core, store)
        values = vars(store) | {"path": str(store.folder), "kind": store.kind}
        body = {"store": name, "type": store.kind, "scope": scope, "owner": owner}
        try:
            with core.database.transaction() as conn:
                conn.execute(insert(table).values(values))
                record_event(conn, "store-added", body, at=core.clock())
        except IntegrityError as error:
            text = f"there is a store {name!r} already; choose another name"
            raise LedgerError(text) from error
        if days is None:
            warn_about_gaps([store], has_short_ids=_has_short_ids(core))

    def remove(self, name: str) -> None:
        """Remove a folder from the registry: later purges do not search it.

        Raises
        ------
        LedgerError
            There is none of that name.
        """
        with self._core.database.transaction() as conn:
            if conn.execute(delete(table).where(table.c.name == name)).rowcount == 0:
                raise LedgerError(f"there is no store {name!r}")
            record_event(conn, "store-removed", {"store": name}, at=self._core.clock())

    def list(self) -> tuple[Store, ...]:
        """Return the registered folders, by name."""
        return list_stores(self._core)


def warn_about_gaps(some: Iterable[Store], *, has_short_ids: bool) -> None:
    """Warn if files of these folders cannot be searched for erased people."""
    markers = Markers.make_probe(has_short_ids=has_short_ids)
    for store in some:
        result = search_store(store, markers, 0) if store.days is None else None
        if result is None or not result.n_not_searched:
            continue
        shown = ", ".join(f"{file} ({reason})" for _, file, reason in result.not_searched[:_SHOWN])
        why = ", also because registered models have short ids" if has_short_ids else ""
        warn_caller(
            f"{result.n_not_searched} of {result.files} files in store {store.name!r} cannot be "
            f"searched for erased people{why}: {shown}. Purges will say 'not fully searched'. Keep "
            "tables as CSV, JSON, Parquet, Arrow, SQLite or NumPy files, or leave them out",
            SearchWarning,
        )


def _has_short_ids(core: Core) -> bool:
    """Whether a model holds ids that can be searched as whole values of data files only."""
    with core.database.reading() as conn:
        heads = [(model, find_head(conn, model.id)) for model in list_models(conn)]
    for model, head in heads:
        # A damaged model is reported elsewhere.
        with contextlib.suppress(CorruptFileError, LedgerMissingError, KeyFileError):
            if not all(map(is_distinctive_id, read_ids(core, model, head).to_list())):
                return True
    return False


def list_stores(core: Core) -> tuple[Store, ...]:
    """Return all registered stores, by name."""
    columns = [table.c[entry.name] for entry in fields(Store)]
    with core.database.reading() as conn:
        rows = conn.execute(select(*columns).order_by(table.c.name)).mappings()
        return tuple(Store(**row) for row in rows)


def _require_usable(core: Core, store: Store) -> None:
    for name in ("name", "owner", "scope"):
        require_name(name, getattr(store, name))
    if store.days is not None and (type(store.days) is not int or store.days < 1):
        raise ValueError(f"days={store.days!r} must be a whole number of at least 1")
    if not store.folder.is_dir():
        raise ValueError(f"{store.folder} is no folder")
    home = core.folder.resolve()
    if home.is_relative_to(store.folder) or store.folder.is_relative_to(home):
        raise ValueError(
            f"{store.folder} and the ledger's own folder lie in each other; that one is looked "
            "through anyway"
        )


def expires_on(store: Store, now: int) -> str:
    """Return the day on which a backup made now is gone: ``YYYY-MM-DD``."""
    return (to_datetime(now) + timedelta(days=store.days or 0)).date().isoformat()


def search_store(store: Store, markers: Markers, now: int) -> ScanResult:
    """Return what of erased people is in a store; in a backup, which files outlived their days.

    A backup is not searched: none of its files counts as such.
    """
    if store.days is None:
        return scan_files([ScanTarget(store.name, store.folder, required=True)], markers)
    if not store.folder.is_dir():
        return ScanResult(0, 0, (), (FileIssue(store.name, str(store.folder), "missing"),))
    unread: list[FileIssue] = []

    def report(path: Path, reason: str) -> None:
        unread.append(FileIssue(store.name, str(path.relative_to(store.folder)), reason))

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            report(Path(error.filename), "unreadable")

    for folder, folders, names in os.walk(store.folder, onerror=refuse):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            # A backup may be rotated meanwhile: what is gone is gone.
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_mtime < now - store.days * _SECONDS_OF_DAY:
                    report(path, f"older-than-{store.days}-days")
    return ScanResult(0, 0, (), tuple(unread))


def search_home(core: Core, model_folder: str, markers: Markers) -> ScanResult:
    """Look for the markers in every file of the home, and in the rows of a database server.

    Blobs of other models are left out: a person who asked to be erased from one model may be in
    another one.

    Parameters
    ----------
    core : Core
        The ledger.
    model_folder : str
        Key of the folder of the model's blobs.
    markers : Markers
        What must be nowhere.
    """
    result = scan_files(_list_scan_targets(core, model_folder), markers)
    if core.database.path is not None:
        return result
    # A server's files are out of reach: every value of every table is looked into.
    hits, numbers, n_bytes = list(result.hits), set(result.id_numbers), result.bytes
    with core.database.reading() as conn:
        for name, data in _read_tables(conn):
            n_bytes += len(data)
            for found in markers.find(data):
                hits.append(Hit("database", name, found.offset, found.kind))
                if found.id_number is not None:
                    numbers.add(found.id_number)
    return replace(result, bytes=n_bytes, hits=tuple(hits), id_numbers=frozenset(numbers))


def _list_scan_targets(core: Core, model_folder: str) -> Iterator[ScanTarget]:
    database = core.database.list_files()
    for path in database:
        yield ScanTarget("database", path, archives=False, apart=True, own=True)
    yield ScanTarget("blobs", core.blob_store(model_folder).folder, archives=False, own=True)
    known = {path.resolve() for path in database}
    for path in sorted(core.folder.iterdir()):
        # A file of the database may have come into being a moment ago.
        is_log = any(path.name.startswith(f"{file.name}-") for file in known)
        if path != core.subfolder("blobs") and path.resolve() not in known and not is_log:
            is_own = path.name in _OWN or path.match(".*.partial")
            yield ScanTarget(path.name if path.is_dir() else "home", path, own=is_own)


def _read_tables(conn: Connection) -> Iterator[tuple[str, bytes]]:
    """Yield name and values of all tables a page at a time: no table has to fit into memory."""
    for contents in metadata.sorted_tables:
        for rows in _read_pages(conn, contents):
            yield contents.name, b"\n".join(_as_bytes(value) for row in rows for value in row)


def _read_pages(conn: Connection, table: Table) -> Iterator[Sequence[Row[Any]]]:
    """Yield the rows of a table a page at a time, so that no table has to fit into memory."""
    key = list(table.primary_key.columns)
    query = select(table).order_by(*key).limit(_ROWS)
    rows = conn.execute(query).all()
    while rows:
        yield rows
        last = [getattr(rows[-1], column.name) for column in key]
        rows = conn.execute(query.where(tuple_(*key) > tuple_(*last))).all()


def _as_bytes(value: object) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()


def is_in_use(core: Core, room: str) -> bool:
    """Whether a process has a private folder of the desk at hand, since less than a day."""
    try:
        descriptor = os.open(core.folder / SERVICE_FOLDERS / f"{room}{SERVICE_LOCK}", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return time.time() - os.fstat(descriptor).st_mtime < _LONGEST_USE
    else:
        return False
    finally:
        os.close(descriptor)


def build_attestation(core: Core, conn: Connection, batch_id: str) -> dict[str, Any]:
    """Return the statement for a purge all of whose steps are done."""
    mine = purge_steps.c.batch_id == batch_id
    noted: dict[str, Any] = {}
    at: dict[str, str] = {}
    for row in conn.execute(select(purge_steps).where(mine)):
        noted[row.step] = parse_strict(row.evidence.encode())
        at[row.step] = f"{to_datetime(row.at):%Y-%m-%dT%H:%M:%SZ}"
    query = select(certificates).join(versions, versions.c.id == certificates.c.version_id)
    certificate = conn.execute(query.where(versions.c.batch_id == batch_id)).one()
    opened = open_envelope(bytes(certificate.envelope), core.keys.trust())
    started, scanned, stores = noted["started"], noted["scan"], noted["stores"]
    searches = (scanned, *stores.values())

    def total(what: str) -> int:
        return sum(search[what] for search in searches)

    gaps = _count_gaps(started, searches)
    limits = {
        "backups-expired": any(store["by"] for store in stores.values()),
        "search-for-ids-that-are-words-of-the-ledger": total("ambiguous") > 0,
        "search-for-rows-that-were-damaged": not started["whole"],
        FILES_NOT_SEARCHED: gaps.get("files", 0) > 0,
        "search-for-short-ids-in-longer-texts-and-own-files": gaps.get("shortIds", 0) > 0,
    }
    own = [
        {"store": name, "scope": scope, "state": "purged", "at": at[name]}
        | {"evidence": _digest_evidence(noted[name])}
        for name, scope in _SCOPES.items()
    ]
    others = [
        {"store": f"store:{name}", "scope": store["scope"], "evidence": _digest_evidence(store)}
        | _describe_state(store, at["stores"])
        for name, store in sorted(stores.items())
    ]
    return {
        "_type": STATEMENT_TYPE,
        "subject": opened.statement["subject"],
        "predicateType": PURGE,
        "predicate": {
            "ledger": {"id": core.settings.name, "sequence": certificate.sequence},
            "certificate": {"sha256": certificate.id},
            "stores": [*own, *others],
            "salts": {"destroyed": started["salts"], "key": noted["key"]["key"]},
            "scanner": {
                "version": SCANNER,
                "markers": started["markers"] - scanned["ambiguous"],
                "files": total("files"),
                "bytes": total("bytes"),
                "hits": 0,
                **({"notSearched": gaps} if gaps else {}),
            },
            "recipientsTold": noted["claim"]["recipients"],
            "notClaimed": [
                *_NOT_CLAIMED,
                *(code for code, holds in limits.items() if holds),
                *(code for code in _KEPT_OPEN if code in opened.predicate["notClaimed"]),
            ],
            "times": {"startedAt": at["started"], "purgedAt": at["claim"]},
        },
    }


def _count_gaps(started: dict[str, Any], searches: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return how much was not searched; nothing if an earlier version did not count."""
    if any("not_searched" not in search for search in searches):
        return {}
    return {
        "files": sum(search["not_searched"] for search in searches),
        "ids": sum(search["ambiguous"] for search in searches),
        "shortIds": started.get("weak", 0),
    }


def _describe_state(store: dict[str, Any], at: str) -> dict[str, Any]:
    if store["by"]:
        return {"state": "expires", "by": store["by"]}
    if store.get("not_searched"):
        return {"state": "not-searched", "at": at, "notSearched": store["not_searched"]}
    return {"state": "purged", "at": at}


def _digest_evidence(evidence: dict[str, Any]) -> dict[str, str]:
    return {"sha256": hashlib.sha256(canonical(evidence)).hexdigest()}
