"""The stores that a purge searches, and the purge attestation.

`Ledger.stores` are folders outside the ledger that may contain personal data: copies of models,
feature files, exports. A purge searches them, and waits while they contain data of erased people.
Files that cannot be searched are counted in the attestation, and their store does not count as
purged. A store with `days` is a backup: its files may be kept for that many days, and the
attestation states the last day.

The ledger's own files and database are searched too. The attestation (``purge/v1``) depends only on
rows in the database that do not change, so it has the same bytes whenever it is signed.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from letheon.exceptions import (
    CorruptFileError,
    KeyFileError,
    LedgerError,
    LedgerMissingError,
    SearchWarning,
    warn_caller,
)
from letheon.ledger.core import Core, lock_file
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
# Temporary folders of the service, each with a lock file while its process lives.
SERVICE_FOLDERS = ".desk"
SERVICE_LOCK = ".lock"
_LONGEST_USE = 86_400
_ROWS = 500
# Files that letheon writes into the ledger's folder; others are searched like those of a store.
_OWN = {FILE, HIGH_WATER, SERVICE_FOLDERS, "keys", "public", "proofs", "certificates", "purges"}
_OWN |= {"checkpoints", "superseded", "service.toml", "service.key"}
# Steps that appear as stores in the attestation, with their scope.
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
# Claims that a purge does not make if the certificate does not make them.
_KEPT_OPEN = ("saved-state-free-of-traces",)


class Stores:
    """The registered folders that every purge searches.

    Parameters
    ----------
    core : Core
        The ledger.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from letheon.ledger import Ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "backups").mkdir()
    ...     with Ledger.create(Path(folder, "ledger"), name="demo") as ledger:
    ...         ledger.stores.add("backups", Path(folder, "backups"), days=30)
    ...         [(store.name, store.days) for store in ledger.stores.list()]
    [('backups', 30)]
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
        """Register a folder outside the ledger that may contain personal data.

        Parameters
        ----------
        name : str
            Name of the store in attestations: 1 to 63 of a-z, 0-9 and ``._:-``.
        path : path
            The folder. Every purge searches it, and waits while the folder contains data of an
            erased person.
        owner, scope : str
            Names of the party responsible for the folder and of the kind of content, for
            attestations.
        days : int, optional
            Number of days after which the files of a backup expire; None if the folder is not a
            backup.

        Raises
        ------
        ValueError
            The name is not valid, or the folder is missing or overlaps the folder of the ledger.
        LedgerError
            A store of this name already exists.

        Warns
        -----
        SearchWarning
            Files cannot be searched; so does each later registration of a model.
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
            text = f"store {name!r} already exists; choose another name"
            raise LedgerError(text) from error
        if days is None:
            warn_about_gaps([store], has_short_ids=_has_short_ids(core))

    def remove(self, name: str) -> None:
        """Remove a store from the registry; later purges do not search its folder.

        Raises
        ------
        LedgerError
            There is no store of this name.
        """
        with self._core.database.transaction() as conn:
            if conn.execute(delete(table).where(table.c.name == name)).rowcount == 0:
                raise LedgerError(
                    f"no store {name!r} is registered; `letheon store list` shows all stores"
                )
            record_event(conn, "store-removed", {"store": name}, at=self._core.clock())

    def list(self) -> tuple[Store, ...]:
        """Return the registered stores, sorted by name."""
        return list_stores(self._core)


def warn_about_gaps(stores: Iterable[Store], *, has_short_ids: bool) -> None:
    """Warn if files of these stores cannot be searched for erased people."""
    markers = Markers.make_probe(has_short_ids=has_short_ids)
    for store in stores:
        result = search_store(store, markers, 0) if store.days is None else None
        if result is None or not result.n_not_searched:
            continue
        shown = ", ".join(f"{file} ({reason})" for _, file, reason in result.not_searched[:_SHOWN])
        why = ", partly because registered models have short ids" if has_short_ids else ""
        warn_caller(
            f"{result.n_not_searched} of {result.files} files in store {store.name!r} cannot be "
            f"searched for erased people{why}: {shown}. Purges will report 'not fully searched'. "
            "Store tables as CSV, JSON, Parquet, Arrow, SQLite or NumPy files, or move these files "
            "out of the store",
            SearchWarning,
        )


def _has_short_ids(core: Core) -> bool:
    """Return whether a model has ids so short that they can be searched only as whole values."""
    with core.database.reading() as conn:
        heads = [(model, find_head(conn, model.id)) for model in list_models(conn)]
    for model, head in heads:
        # A damaged model is reported by other checks.
        with contextlib.suppress(CorruptFileError, LedgerMissingError, KeyFileError):
            if not all(map(is_distinctive_id, read_ids(core, model, head).to_list())):
                return True
    return False


def list_stores(core: Core) -> tuple[Store, ...]:
    """Return the registered stores, sorted by name."""
    columns = [table.c[entry.name] for entry in fields(Store)]
    with core.database.reading() as conn:
        rows = conn.execute(select(*columns).order_by(table.c.name)).mappings()
        return tuple(Store(**row) for row in rows)


def _require_usable(core: Core, store: Store) -> None:
    for name in ("name", "owner", "scope"):
        require_name(name, getattr(store, name))
    if store.days is not None and (type(store.days) is not int or store.days < 1):
        raise ValueError(f"days={store.days!r} must be a positive integer or None")
    if not store.folder.is_dir():
        raise ValueError(
            f"{store.folder} is not an existing folder; pass the folder of the store as path"
        )
    home = core.folder.resolve()
    if home.is_relative_to(store.folder) or store.folder.is_relative_to(home):
        raise ValueError(
            f"{store.folder} overlaps the folder of the ledger, which every purge searches "
            "anyway; choose a folder outside the ledger"
        )


def expires_on(store: Store, now: int) -> str:
    """Return the expiry date of a backup made now, as ``YYYY-MM-DD``."""
    return (to_datetime(now) + timedelta(days=store.days or 0)).date().isoformat()


def search_store(store: Store, markers: Markers, now: int) -> ScanResult:
    """Search a store for erased people.

    The files of a backup are not searched or counted. Instead, files older than `store.days` are
    reported as unread.
    """
    if store.days is None:
        return scan_files([ScanTarget(store.name, store.folder, required=True)], markers)
    if not store.folder.is_dir():
        return ScanResult(0, 0, (), (FileIssue(store.name, str(store.folder), "missing"),))
    unread: list[FileIssue] = []

    def report(path: Path, reason: str) -> None:
        unread.append(FileIssue(store.name, str(path.relative_to(store.folder)), reason))

    def report_error(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            report(Path(error.filename), "unreadable")

    for folder, folders, names in os.walk(store.folder, onerror=report_error):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            # A backup may be rotated meanwhile.
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_mtime < now - store.days * _SECONDS_OF_DAY:
                    report(path, f"older-than-{store.days}-days")
    return ScanResult(0, 0, (), tuple(unread))


def search_home(core: Core, model_folder: str, markers: Markers) -> ScanResult:
    """Search for the markers in all files of the ledger, and in the tables of a database server.

    Blobs of other models are skipped, because a person erased from this model may remain in others.

    Parameters
    ----------
    core : Core
        The ledger.
    model_folder : str
        Name of the folder with the blobs of the model.
    markers : Markers
        Markers to search for.
    """
    result = scan_files(_list_scan_targets(core, model_folder), markers)
    if core.database.path is not None:
        return result
    # The files of a server are not accessible: search all values of all tables.
    hits, numbers, n_bytes = list(result.hits), set(result.id_numbers), result.bytes
    with core.database.reading() as conn:
        for name, data in _read_tables(conn):
            n_bytes += len(data)
            for match in markers.find(data):
                hits.append(Hit("database", name, match.offset, match.kind))
                if match.id_number is not None:
                    numbers.add(match.id_number)
    return replace(result, bytes=n_bytes, hits=tuple(hits), id_numbers=frozenset(numbers))


def _list_scan_targets(core: Core, model_folder: str) -> Iterator[ScanTarget]:
    database = core.database.list_files()
    for path in database:
        yield ScanTarget("database", path, archives=False, apart=True, own=True)
    yield ScanTarget("blobs", core.blob_store(model_folder).folder, archives=False, own=True)
    known = {path.resolve() for path in database}
    for path in sorted(core.folder.iterdir()):
        # SQLite may have created another file of the database meanwhile.
        is_log = any(path.name.startswith(f"{file.name}-") for file in known)
        if path != core.subfolder("blobs") and path.resolve() not in known and not is_log:
            is_own = path.name in _OWN or path.match(".*.partial")
            yield ScanTarget(path.name if path.is_dir() else "home", path, own=is_own)


def _read_tables(conn: Connection) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each table with the values of its rows as bytes, one page at a time."""
    for contents in metadata.sorted_tables:
        rows = conn.execute(select(contents), execution_options={"yield_per": _ROWS})
        for page in rows.partitions():
            yield contents.name, b"\n".join(_as_bytes(value) for row in page for value in row)


def _as_bytes(value: object) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()


def is_in_use(core: Core, room: str) -> bool:
    """Return whether the service has locked a temporary folder, for less than a day."""
    lock = core.folder / SERVICE_FOLDERS / f"{room}{SERVICE_LOCK}"
    try:
        is_young = time.time() - lock.stat().st_mtime < _LONGEST_USE
        with lock_file(lock, wait=False) as is_free:
            return is_young and not is_free
    except OSError:
        return False


def build_attestation(core: Core, conn: Connection, batch_id: str) -> dict[str, Any]:
    """Return the unsigned attestation of a purge, made from the evidence of its steps."""
    mine = purge_steps.c.batch_id == batch_id
    evidence: dict[str, Any] = {}
    times: dict[str, str] = {}
    for row in conn.execute(select(purge_steps).where(mine)):
        evidence[row.step] = parse_strict(row.evidence.encode())
        times[row.step] = f"{to_datetime(row.at):%Y-%m-%dT%H:%M:%SZ}"
    query = select(certificates).join(versions, versions.c.id == certificates.c.version_id)
    certificate = conn.execute(query.where(versions.c.batch_id == batch_id)).one()
    opened = open_envelope(bytes(certificate.envelope), core.keys.trust())
    started, scanned, stores = evidence["started"], evidence["scan"], evidence["stores"]
    searches = (scanned, *stores.values())

    def sum_counts(count_name: str) -> int:
        return sum(search[count_name] for search in searches)

    gaps = _count_gaps(started, searches)
    limits = {
        "backups-expired": any(store["by"] for store in stores.values()),
        "search-for-ids-that-are-words-of-the-ledger": sum_counts("ambiguous") > 0,
        "search-for-rows-that-were-damaged": not started["whole"],
        FILES_NOT_SEARCHED: gaps.get("files", 0) > 0,
        "search-for-short-ids-in-longer-texts-and-own-files": gaps.get("shortIds", 0) > 0,
    }
    own = [
        {"store": name, "scope": scope, "state": "purged", "at": times[name]}
        | {"evidence": _digest_evidence(evidence[name])}
        for name, scope in _SCOPES.items()
    ]
    others = [
        {"store": f"store:{name}", "scope": store["scope"], "evidence": _digest_evidence(store)}
        | _describe_state(store, times["stores"])
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
            "salts": {"destroyed": started["salts"], "key": evidence["key"]["key"]},
            "scanner": {
                "version": SCANNER,
                "markers": started["markers"] - scanned["ambiguous"],
                "files": sum_counts("files"),
                "bytes": sum_counts("bytes"),
                "hits": 0,
                **({"notSearched": gaps} if gaps else {}),
            },
            "recipientsTold": evidence["claim"]["recipients"],
            "notClaimed": [
                *_NOT_CLAIMED,
                *(code for code, holds in limits.items() if holds),
                *(code for code in _KEPT_OPEN if code in opened.predicate["notClaimed"]),
            ],
            "times": {"startedAt": times["started"], "purgedAt": times["claim"]},
        },
    }


def _count_gaps(started: dict[str, Any], searches: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return the numbers of files and ids that were not searched.

    The result is empty if an earlier version of letheon ran the search and did not count them.
    """
    if any("not_searched" not in search for search in searches):
        return {}
    return {
        "files": sum(search["not_searched"] for search in searches),
        "ids": sum(search["ambiguous"] for search in searches),
        "shortIds": started.get("weak", 0),
    }


def _describe_state(store: dict[str, Any], times: str) -> dict[str, Any]:
    if store["by"]:
        return {"state": "expires", "by": store["by"]}
    if store.get("not_searched"):
        return {"state": "not-searched", "at": times, "notSearched": store["not_searched"]}
    return {"state": "purged", "at": times}


def _digest_evidence(evidence: dict[str, Any]) -> dict[str, str]:
    return {"sha256": hashlib.sha256(canonical(evidence)).hexdigest()}
