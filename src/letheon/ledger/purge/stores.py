"""`Ledger.stores`: folders outside the ledger's own that may hold people.

A store is a folder that its owner keeps clean: copies of models, feature files, exports. A purge
searches it and is not done while something is found. Files that it cannot search are counted in
the attestation, and the store does not count as purged. A store with `days` is a backup: what lies
in it may stay that long, and the attestation of the purge says until when.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import delete, insert, select
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
from letheon.ledger.db.events import record
from letheon.ledger.models.versions import head_of, model_of, read_ids
from letheon.ledger.purge.markers import Markers, is_distinctive_id
from letheon.ledger.purge.scan import Place, ScanResult, Unread, scan
from letheon.ledger.schemas import Store, require_name
from letheon.ledger.tables import models as models_table
from letheon.ledger.tables import stores as table

_SECONDS_OF_DAY = 86_400
_SHOWN = 3


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
                record(conn, "store-added", body, at=core.clock())
        except IntegrityError as error:
            text = f"there is a store {name!r} already; choose another name"
            raise LedgerError(text) from error
        if days is None:
            warn_of_gaps([store], has_short_ids=_has_short_ids(core))

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
            record(conn, "store-removed", {"store": name}, at=self._core.clock())

    def list(self) -> tuple[Store, ...]:
        """Return the registered folders, by name."""
        return list_stores(self._core)


def warn_of_gaps(some: Iterable[Store], *, has_short_ids: bool) -> None:
    """Warn if files of these folders cannot be searched for erased people."""
    markers = Markers.probe(has_short_ids=has_short_ids)
    for store in some:
        result = look_through(store, markers, 0) if store.days is None else None
        if result is None or not result.n_not_searched:
            continue
        shown = ", ".join(f"{one.file} ({one.reason})" for one in result.not_searched[:_SHOWN])
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
        models = [model_of(conn, key) for key in conn.scalars(select(models_table.c.id))]
        heads = [(model, head_of(conn, model.id)) for model in models]
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


def expires_on(store: Store, now: int) -> str:
    """Return the day on which a backup made now is gone: ``YYYY-MM-DD``."""
    moment = datetime.fromtimestamp(now, UTC) + timedelta(days=store.days or 0)
    return moment.date().isoformat()


def look_through(store: Store, markers: Markers, now: int) -> ScanResult:
    """Return what of erased people is in a store; in a backup, which files outlived their days.

    A backup is not searched: none of its files counts as such.
    """
    if store.days is None:
        return scan([Place(store.name, store.folder, required=True)], markers)
    if not store.folder.is_dir():
        return ScanResult(0, 0, (), (Unread(store.name, str(store.folder), "missing"),))
    oldest = now - store.days * _SECONDS_OF_DAY
    unread: list[Unread] = []

    def report(path: Path, reason: str) -> None:
        unread.append(Unread(store.name, str(path.relative_to(store.folder)), reason))

    for path in _files_of(store.folder, lambda path: report(path, "unreadable")):
        # A backup may be rotated meanwhile: what is gone is gone.
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_mtime < oldest:
                report(path, f"older-than-{store.days}-days")
    return ScanResult(0, 0, (), tuple(unread))


def _files_of(folder: Path, report: Callable[[Path], None]) -> Iterator[Path]:
    """Yield all files below a folder; report the folders that cannot be looked into."""

    def refused(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            report(Path(error.filename))

    for here, folders, names in os.walk(folder, onerror=refused):
        folders.sort()
        yield from (Path(here, name) for name in sorted(names))


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
