"""`Ledger`: requests to be erased, applied, certified and purged."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from sqlalchemy import select

from letheon.exceptions import LedgerError, LedgerMissingError
from letheon.ledger.certificates.certify import Checkpoint, take_checkpoint
from letheon.ledger.certificates.listing import (
    CertificateInfo,
    CertificatePage,
    certificate_info,
    certificate_page,
    transition_proof,
)
from letheon.ledger.core import Core
from letheon.ledger.db.database import Database
from letheon.ledger.db.elapsed import accept_clock
from letheon.ledger.db.events import require_own_log
from letheon.ledger.db.log import LogConsistency, LogInclusion, LogPage, LogReader
from letheon.ledger.doctor import Finding, examine
from letheon.ledger.home import create_home, database_url, open_home, record_statements
from letheon.ledger.leases import owner_name
from letheon.ledger.models.desk import ModelDesk
from letheon.ledger.models.history import version_records
from letheon.ledger.models.info import (
    KeyInfo,
    ModelInfo,
    VersionInfo,
    key_infos,
    model_infos,
    version_infos,
)
from letheon.ledger.models.reader import Reader
from letheon.ledger.models.versions import (
    find_model,
    read_head,
    read_model,
)
from letheon.ledger.purge.stores import Store, add_store, remove_store, stores
from letheon.ledger.requests.calendar import Calendar
from letheon.ledger.requests.desk import Desk
from letheon.ledger.settings import Settings
from letheon.ledger.tables import certificates, purges
from letheon.ledger.worker.adopt import Adoption, adopt
from letheon.ledger.worker.agreement import advance_mark, differences
from letheon.ledger.worker.apply import last_sequence
from letheon.ledger.worker.batches import BatchInfo, BatchPage, batch_info, batch_page
from letheon.ledger.worker.compute import computing
from letheon.ledger.worker.plan import BatchPlan, plan_all
from letheon.ledger.worker.policy import Policy
from letheon.ledger.worker.worker import Step, retrain, run_once

__all__ = ["Archive", "Ledger"]


class Archive:
    """What can be looked up, page by page; see `Ledger`."""

    _core: Core
    _log_reader: LogReader | None = None

    def batches(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> BatchPage:
        """Return one page of batches, newest first; those of a tenant or a model if given."""
        return batch_page(self._core, tenant=tenant, model=model, after=after, limit=limit)

    def batch(self, batch_id: str, *, tenant: str | None = None) -> BatchInfo:
        """Return one batch, or raise `LedgerMissingError`."""
        return batch_info(self._core, batch_id, tenant=tenant)

    def certificate_infos(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> CertificatePage:
        """Return one page of what certificates say in short, newest first."""
        return certificate_page(self._core, tenant=tenant, model=model, after=after, limit=limit)

    def certificate_info(self, sequence: int, *, tenant: str | None = None) -> CertificateInfo:
        """Return what one certificate says in short, or raise `LedgerMissingError`."""
        return certificate_info(self._core, sequence, tenant=tenant)

    def proof(self, sequence: int) -> bytes:
        """Return the transition proof that certificate `sequence` names."""
        return transition_proof(self._core, sequence)

    def log_entries(self, *, after: str | None = None, limit: int = 50) -> LogPage:
        """Return one page of the log, oldest first: events that have a place in its tree."""
        return self._log.entries(after=after, limit=limit)

    def log_inclusion(self, index: int, *, size: int | None = None) -> LogInclusion:
        """Prove that the event in place `index` is in the log, as it is or was at a size.

        Raises
        ------
        ValueError
            The log has no such place, or never had that size.
        """
        return self._log.inclusion(index, size)

    def log_consistency(self, size1: int, size2: int | None = None) -> LogConsistency:
        """Prove that the log of `size1` events is the beginning of that of `size2`, or of all."""
        return self._log.consistency(size1, size2)

    @property
    def _log(self) -> LogReader:
        if self._log_reader is None:
            self._log_reader = LogReader(self._core)
        return self._log_reader

    def database_differences(self) -> tuple[str, ...]:
        """Return in what the files are newer than the database; nothing if they agree.

        While there is a difference nothing is recorded, signed or destroyed (`OldDatabaseError`).
        """
        return tuple(differences(self._core))

    def adopt_database(self, *, yes: bool = False) -> Adoption:
        """Go on from a database that is older than the files, because the newer one is lost.

        Parameters
        ----------
        yes : bool, default=False
            Do it, and record it in the log. Otherwise only what would be lost is returned.
        """
        return adopt(self._core, yes=yes)


class Ledger(Desk, Archive, ModelDesk):
    """Models, the requests to be erased from them, and the certificates that they were.

    A request is acknowledged when it is on the disk. From then on it is applied exactly once,
    whatever process dies at whatever moment: `run_once` (or the command ``letheon worker``) seals
    requests into a batch, computes the model without these people, publishes it with one
    compare-and-set, signs a certificate, destroys what is left of them and attests that too. What
    was done stands in an append-only log whose checkpoints are signed.

    Make one with `Ledger.create`, open it with `Ledger.open`; several processes may work on one.

    Parameters
    ----------
    core : Core
        What `create` and `open` make.

    Attributes
    ----------
    folder : Path
        Home of the ledger.
    name : str
        As certificates carry it.
    public_key : str
        The first public key, in hexadecimal digits: what a stranger pins to verify everything.

    Notes
    -----
    The folder holds rows, models and keys: personal data and secrets. What may be shown to a
    stranger is what `export` writes.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon import NaiveUnlearner
    >>> from letheon.ledger import Ledger
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.create(folder, name="demo") as ledger:
    ...         _ = ledger.register(model, X, y, name="iris")
    ...         request = ledger.request([3, 17], model="iris", verified=True)
    ...         steps = ledger.run_once(force=True)
    ...         ledger.request_of(request.id).state, ledger.load("iris").n_rows_
    ('purged', 148)
    """

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        *,
        name: str,
        database: str | None = None,
        policy: Policy | None = None,
        calendar: Calendar | None = None,
        image: str | None = None,
        clock: Callable[[], int] | None = None,
    ) -> Self:
        """Make a ledger in a folder.

        Parameters
        ----------
        folder : path
            Its home: settings, keys, blobs, certificates. Made readable by its owner only.
        name : str
            As certificates carry it; lower case letters, digits and ``._:-``.
        database : str, optional
            URL of a PostgreSQL database, ``postgresql://user@host/name``. Default: a SQLite file
            in the folder.
        policy : Policy, optional
            Batching, retries, leases.
        calendar : Calendar, optional
            Time zone and holidays of the controller's seat.
        image : str, optional
            SHA-256 of the image that workers run in.
        clock : callable, optional
            Seconds since 1970, UTC; for tests.
        """
        settings = Settings(
            name=name,
            database=database,
            policy=policy or Policy(),
            calendar=calendar or Calendar(),
            image=image,
        )
        return cls(create_home(Path(folder), settings, clock))

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], *, clock: Callable[[], int] | None = None
    ) -> Self:
        """Open the ledger in a folder.

        Raises
        ------
        LedgerMissingError
            There is none.
        NewerLedgerError
            A later letheon wrote it; nothing is changed.
        KeyFileError
            Its keys are missing, damaged, or open to others.
        """
        return cls(open_home(Path(folder), clock))

    @staticmethod
    def upgrade(folder: str | os.PathLike[str]) -> None:
        """Bring the database of an older letheon to this one's form."""
        settings = Settings.read(Path(folder))
        url = database_url(Path(folder), settings)
        database = Database.open_to_upgrade(url, journal=settings.journal)
        try:
            database.upgrade()
        finally:
            database.dispose()

    def close(self) -> None:
        """Close the database; what was acknowledged is on the disk already."""
        self._core.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """Home of the ledger."""
        return self._core.folder

    @property
    def name(self) -> str:
        """As certificates carry it."""
        return self._core.settings.name

    @property
    def public_key(self) -> str:
        """The first public key, in hexadecimal digits."""
        return self._core.keys.root

    @property
    def settings(self) -> Settings:
        """What ``letheon.toml`` says."""
        return self._core.settings

    def plan(self, model: str | None = None, *, tenant: str = "default") -> tuple[BatchPlan, ...]:
        """Say what the next batch of each model would be, and when it will be sealed."""
        return plan_all(self._core, None if model is None else self._row(model, tenant).id)

    def run_once(
        self,
        *,
        force: bool = False,
        model: str | None = None,
        tenant: str = "default",
        apart: bool = False,
    ) -> tuple[Step, ...]:
        """Do everything that is due: resume, seal, apply, certify, purge.

        Parameters
        ----------
        force : bool, default=False
            Seal what is queued now, however little it is.
        model, tenant : str, optional
            One model only.
        apart : bool, default=False
            Compute in a process of its own, which can reach neither keys nor database. Models
            that came as files always are, in a sandbox.
        """
        return tuple(self.steps(force=force, model=model, tenant=tenant, apart=apart))

    def steps(
        self,
        *,
        force: bool = False,
        model: str | None = None,
        tenant: str = "default",
        apart: bool = False,
        stop: threading.Event | None = None,
    ) -> Iterator[Step]:
        """Do what `run_once` does, and yield each step when it is done.

        Whoever stops between two steps leaves the rest to the next worker. When `stop` is set a
        computation in a process of its own is ended after a few seconds; the batch stays open, and
        the next worker computes it again.
        """
        wanted = None if model is None else self._row(model, tenant).id
        work = computing(apart=apart, stop=stop)
        return run_once(self._core, owner_name(), work, forced=force, wanted=wanted)

    def retrain(
        self,
        model: str,
        *,
        tenant: str = "default",
        apart: bool = False,
        stop: threading.Event | None = None,
    ) -> tuple[Step, ...]:
        """Train a model afresh, with everything queued for it; a certified batch of its own."""
        work = computing(apart=apart, stop=stop)
        return tuple(retrain(self._core, owner_name(), work, self._row(model, tenant)))

    def load(self, model: str, *, tenant: str = "default") -> Any:
        """Return a copy of the model that is served."""
        row = self._row(model, tenant)
        return read_head(self._core, row, lambda head: read_model(self._core, row, head))

    def reader(self, model: str, *, tenant: str = "default") -> Reader:
        """Return a reader that follows the model that is served."""
        return Reader(self._core, self._row(model, tenant), owner_name())

    def models(self, *, tenant: str | None = None) -> tuple[ModelInfo, ...]:
        """Return the registered models."""
        with self._core.database.reading() as conn:
            return tuple(model_infos(conn, tenant))

    def versions(
        self,
        model: str,
        *,
        tenant: str = "default",
        after: int | None = None,
        limit: int | None = None,
    ) -> tuple[VersionInfo, ...]:
        """Return the versions of a model, oldest first.

        Parameters
        ----------
        model, tenant : str
            The model.
        after : int, optional
            Versions with a higher number only.
        limit : int, optional
            So many at most.
        """
        with self._core.database.reading() as conn:
            row = find_model(conn, model, tenant)
            return tuple(version_infos(conn, row.id, after=after, limit=limit))

    def version_facts(self, model: str, number: int, *, tenant: str = "default") -> dict[str, Any]:
        """Return what was found out about a version: what its certificate says, or will say.

        The keys are `number`, `kind` (``registration``, ``erase`` or ``retrain``), `n_erased`,
        `seconds`, and, but for a registration, `method`, `guarantee` with its `accounting`,
        `measurements`, `monitor`, `execution` and `notClaimed`.

        Raises
        ------
        UnknownModelError, LedgerMissingError
            There is no such model or version.
        """
        found = version_records(self, model, tenant=tenant, numbers=[number], limit=1)
        if not found:
            raise LedgerMissingError(f"model {model!r} has no version {number}")
        one = found[0]
        about = {"number": number, "kind": one.kind, "n_erased": one.n_erased}
        return about | {"seconds": one.seconds} | (one.facts or {})

    def certificates(self) -> tuple[int, ...]:
        """Return the numbers of all certificates."""
        with self._core.database.reading() as conn:
            query = select(certificates.c.sequence).order_by(certificates.c.sequence)
            return tuple(conn.scalars(query))

    def certificate(self, sequence: int) -> bytes:
        """Return a certificate: a DSSE envelope in canonical JSON."""
        return self._envelope(certificates, sequence, "certificate")

    def purge_attestation(self, sequence: int) -> bytes:
        """Return the attestation that what certificate `sequence` erased was purged too."""
        return self._envelope(purges, sequence, "purge attestation of certificate")

    def checkpoint(self) -> Checkpoint:
        """Sign a checkpoint of the log."""
        return take_checkpoint(self._core)

    def export(
        self,
        folder: str | os.PathLike[str],
        *,
        tier: Literal["public", "auditor"] = "public",
        model: str | None = None,
        tenant: str | None = None,
    ) -> Path:
        """Write what others may verify into a new folder.

        Parameters
        ----------
        folder : path
            It must not exist, or be empty.
        tier : {"public", "auditor"}, default="public"
            The public one holds certificates, attestations, checkpoints and public keys. The
            auditor's also holds the remaining rows, salts, models and training keys: personal
            data, handed over in custody and recorded in the log.
        model, tenant : str, optional
            Models of one name or tenant only, in the auditor's part.
        """
        from letheon.ledger.certificates.bundle import export

        return export(self._core, Path(folder), tier=tier, model=model, tenant=tenant)

    def add_store(
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
        """
        add_store(self._core, Store(name, Path(path), owner=owner, scope=scope, days=days))

    def remove_store(self, name: str) -> None:
        """Take a folder off the registry: later purges do not speak of it."""
        remove_store(self._core, name)

    def stores(self) -> tuple[Store, ...]:
        """Return the registered folders."""
        return stores(self._core)

    def keys(self) -> tuple[KeyInfo, ...]:
        """Return the signing keys, the one that strangers pin first."""
        return key_infos(self._core)

    def rotate_key(self) -> str:
        """Sign with a new key from now on; return its id. The statement is signed by both."""
        with self._core.database.transaction() as conn:
            # Numbers that are given out already are signed by the old key, whenever that is done.
            require_own_log(conn)
            self._core.keys.rotate(self.name, last_sequence(conn))
            record_statements(self._core, conn)
        advance_mark(self._core)
        return self._core.keys.signer.keyid

    def revoke_key(self, keyid: str, *, after: int) -> None:
        """State that signatures of a key are not to be trusted after certificate `after`.

        Raises
        ------
        LedgerError
            Certificates that this key has to sign are not made yet; let a worker make them first.
        """
        with self._core.database.transaction() as conn:
            require_own_log(conn)
            if last_sequence(conn) > len(self.certificates()):
                raise LedgerError(
                    "a batch that was applied has no certificate yet, and its number belongs to an "
                    "older key; run `letheon batch apply` first. Nothing was revoked."
                )
            self._core.keys.revoke(self.name, keyid, after)
            record_statements(self._core, conn)
        # The newest checkpoint must not be one that the revoked key has signed.
        take_checkpoint(self._core)

    def accept_clock(self) -> bool:
        """Confirm that the clock is right now, after it jumped in either direction; it is logged.

        A ledger refuses to write when its clock is behind the log: due days would be wrong. When
        the clock is ahead of the time that is proven, holds do not end and nothing is forgotten.
        After an operator has looked at the clock, this starts anew from here.

        Returns
        -------
        bool
            False if there was nothing to correct.
        """
        with self._core.database.transaction() as conn:
            return accept_clock(self._core, conn)

    def doctor(self) -> tuple[Finding, ...]:
        """Look whether everything is sound: files, chain, log, keys, clocks, leftovers."""
        return tuple(examine(self._core))

    def __repr__(self) -> str:
        """Name and folder."""
        return f"Ledger({self.name!r}, folder={os.fspath(self.folder)!r})"

    def _envelope(self, table: Any, sequence: int, what: str) -> bytes:
        with self._core.database.reading() as conn:
            query = select(table.c.envelope).where(table.c.sequence == sequence)
            found = conn.scalar(query)
        if found is None:
            raise LedgerMissingError(f"there is no {what} {sequence} in this ledger yet")
        return bytes(found)
