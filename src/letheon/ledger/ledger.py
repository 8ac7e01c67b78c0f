"""`Ledger`: models, erasure requests, certificates, log and keys in one object."""

import logging
import os
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Literal, Self

from sqlalchemy import func, select, text

from letheon.exceptions import LedgerError
from letheon.ledger.certificates.certificates import Batches, Certificates
from letheon.ledger.certificates.certify import take_checkpoint
from letheon.ledger.core import Core
from letheon.ledger.db.database import Database
from letheon.ledger.db.elapsed import accept_clock
from letheon.ledger.db.events import acting, advance_mark, find_differences, require_own_log
from letheon.ledger.db.log import Log
from letheon.ledger.doctor import Finding, run_checks
from letheon.ledger.home import create_home, database_url, open_home, record_statements
from letheon.ledger.leases import owner_name
from letheon.ledger.models.models import Models, file_size
from letheon.ledger.purge.stores import Stores
from letheon.ledger.requests.deadlines import Calendar
from letheon.ledger.requests.requests import LedgerRequests
from letheon.ledger.schemas import Key
from letheon.ledger.settings import Settings
from letheon.ledger.tables import certificates
from letheon.ledger.worker.apply import last_sequence
from letheon.ledger.worker.compute import choose_compute
from letheon.ledger.worker.policy import Policy
from letheon.ledger.worker.recover import Adoption, adopt_database
from letheon.ledger.worker.worker import BatchPlan, Step, plan_all, run_once
from letheon.verifier import MAX_INT, Trust

_logger = logging.getLogger(__name__)


class Keys:
    """The signing keys of a ledger.

    Parameters
    ----------
    core : Core
        The ledger.

    Examples
    --------
    >>> import tempfile
    >>> from letheon.ledger import Ledger
    >>> with tempfile.TemporaryDirectory() as folder, Ledger.create(folder, name="demo") as ledger:
    ...     [key.state for key in ledger.keys.list()]
    ['current']
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(self) -> tuple[Key, ...]:
        """Return the signing keys, starting with the key that verifiers pin."""
        trust = self._core.keys.trust()
        listed = []
        for keyid, key in trust.keys.items():
            state: Literal["current", "retired", "revoked"] = "retired"
            if key.revoked or keyid == trust.current:
                state = "revoked" if key.revoked else "current"
            last = None if key.last == MAX_INT else key.last
            listed.append(Key(keyid, key.public.hex(), state, key.first, last))
        return tuple(listed)

    def statements(self) -> tuple[bytes, ...]:
        """Return the signed statements that rotate and revoke keys, oldest first."""
        return tuple(self._core.keys.statements())

    def trust(self) -> Trust:
        """Return the keys that verifiers trust, as derived from the first public key."""
        return Trust.from_pinned(self._core.keys.root, self.statements())

    def rotate(self) -> str:
        """Replace the current signing key by a new key and return the id of the new key.

        The old and the new key sign the statement of the rotation.
        """
        core = self._core
        with core.database.transaction() as conn:
            # Certificates whose number is already assigned are signed with the old key.
            require_own_log(conn)
            core.keys.rotate(core.settings.name, last_sequence(conn))
            record_statements(core, conn)
        advance_mark(core)
        return core.keys.signer.keyid

    def revoke(self, keyid: str, *, after: int) -> None:
        """Revoke a key: its signatures are not trusted after certificate number `after`.

        Raises
        ------
        LedgerError
            A certificate that an older key must sign is still missing; run a worker first.
        """
        core = self._core
        with core.database.transaction() as conn:
            require_own_log(conn)
            n_signed = conn.scalar(select(func.count()).select_from(certificates)) or 0
            if last_sequence(conn) > n_signed:
                raise LedgerError(
                    "nothing was revoked: an applied batch has no certificate yet, and an "
                    "older key may have to sign it; run `letheon batch apply` first"
                )
            core.keys.revoke(core.settings.name, keyid, after)
            record_statements(core, conn)
        # The newest checkpoint must not be signed with the revoked key.
        take_checkpoint(core)


class Ledger:
    """A store of registered models, erasure requests and certificates.

    A request is acknowledged once it is stored on disk. It is then applied exactly once, even if
    processes are killed at any point. `run_once` (or the command ``letheon worker``) puts queued
    requests into a batch, removes their rows from the model, publishes the new version in one
    atomic step, signs a certificate, destroys remaining copies of the data and signs a purge
    attestation. Every step is recorded in an append-only log with signed checkpoints.

    Create a ledger with `Ledger.create` and open it with `Ledger.open`. Several processes may work
    on the same ledger.

    Parameters
    ----------
    core : Core
        Settings, database, keys and files of the ledger; made by `create` and `open`.

    Attributes
    ----------
    folder : Path
        Folder of the ledger.
    name : str
        Name of the ledger in certificates.
    requests : LedgerRequests
        The erasure requests: file, handle and list them.
    models : Models
        Registered models and their versions.
    batches : Batches
        Requests that are applied together.
    certificates : Certificates
        Certificates, purge attestations and receipts.
    log : Log
        The append-only log of events, with proofs.
    keys : Keys
        Signing keys.
    stores : Stores
        Folders outside the ledger that purges search.
    public_key : str
        The first public key in hexadecimal digits, which verifiers pin.
    settings : Settings
        Content of ``letheon.toml``.
    clock : callable
        Clock of the ledger, in seconds since 1970 (UTC).
    require_current_database : callable
        Raises `OldDatabaseError` if the database is older than the files; runs one short query.

    Notes
    -----
    The folder contains rows, models and keys: personal data and secrets. Share only what `export`
    writes.

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
    ...         _ = ledger.models.register(model, X, y, name="iris")
    ...         request = ledger.requests.submit([3, 17], model="iris", verified=True)
    ...         steps = ledger.run_once(force=True)
    ...         ledger.requests.get(request.id).state, ledger.models.load("iris").n_rows_
    ('purged', 148)
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.folder, self.settings, self.clock = core.folder, core.settings, core.clock
        self.name, self.public_key = core.settings.name, core.keys.root
        self.require_current_database = core.database.require_current
        self.models = Models(core)
        self.requests = LedgerRequests(core, self.models)
        self.batches = Batches(core)
        self.certificates = Certificates(core)
        self.log = Log(core)
        self.keys = Keys(core)
        self.stores = Stores(core)

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
        """Create a ledger in a folder.

        Parameters
        ----------
        folder : path
            Folder of the ledger, for settings, keys, blobs and certificates. Only its owner can
            read it.
        name : str
            Name of the ledger in certificates: lower-case letters, digits and ``._:-``.
        database : str, optional
            URL of a PostgreSQL database, ``postgresql://user@host/name``. Default: a SQLite file
            in the folder.
        policy : Policy, optional
            Settings for batching, retries and leases.
        calendar : Calendar, optional
            Time zone and holidays of the controller's seat.
        image : str, optional
            SHA-256 of the container image that workers run in.
        clock : callable, optional
            Returns the time in seconds since 1970 (UTC); for tests.
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
            The folder contains no ledger.
        NewerLedgerError
            A newer version of letheon wrote the ledger; nothing is changed.
        KeyFileError
            The keys of the ledger are missing, damaged, or readable by other users.
        """
        return cls(open_home(Path(folder), clock))

    @staticmethod
    def upgrade(folder: str | os.PathLike[str]) -> None:
        """Upgrade the database of a ledger that an older version of letheon created."""
        settings = Settings.read(Path(folder))
        url = database_url(Path(folder), settings)
        Database.open(url, upgrade=True, journal=settings.journal).dispose()

    def close(self) -> None:
        """Close the database. Acknowledged requests are already stored on disk."""
        self._core.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plan(self, model: str | None = None, *, tenant: str = "default") -> tuple[BatchPlan, ...]:
        """Return the plan for the next batch of each model, with its requests and its start."""
        return plan_all(self._core, None if model is None else self.models.row(model, tenant).id)

    def run_once(
        self,
        *,
        force: bool = False,
        model: str | None = None,
        tenant: str = "default",
        apart: bool = False,
    ) -> tuple[Step, ...]:
        """Do all due work: resume and start batches, issue certificates, purge.

        Parameters
        ----------
        force : bool, default=False
            Apply all queued requests now, regardless of the policy.
        model, tenant : str, optional
            Limit the work to one model.
        apart : bool, default=False
            Compute in a separate process without access to keys and database. Uploaded models are
            always computed in a sandboxed process.
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
    ) -> Generator[Step, None, None]:
        """Do the same work as `run_once`, but yield each step as soon as it is done.

        If the caller stops between two steps, the next worker does the rest. When `stop` is set, a
        computation in a separate process is ended after a few seconds; the batch stays open, and
        the next worker computes it again.
        """
        model_id = None if model is None else self.models.row(model, tenant).id
        work = choose_compute(apart=apart, stop=stop)
        return _log_steps(run_once(self._core, owner_name(), work, forced=force, wanted=model_id))

    def export(
        self,
        folder: str | os.PathLike[str],
        *,
        tier: Literal["public", "auditor"] = "public",
        model: str | None = None,
        tenant: str | None = None,
    ) -> Path:
        """Write a bundle for verification into a new folder.

        Parameters
        ----------
        folder : path
            Must not exist, or must be empty.
        tier : {"public", "auditor"}, default="public"
            The public bundle contains certificates, attestations, checkpoints and public keys. The
            auditor's bundle also contains remaining rows, salts, models and training keys. These
            are personal data; the export is recorded in the log.
        model, tenant : str, optional
            Limit the data in an auditor's bundle to models of this name or tenant.
        """
        from letheon.ledger.certificates.bundle import export

        return export(self._core, Path(folder), tier=tier, model=model, tenant=tenant)

    def accept_clock(self) -> bool:
        """Record in the log that the clock is right, after it jumped and an operator checked it.

        While the clock is behind the log, the ledger rejects all writes, because deadlines would be
        wrong. While it is ahead of the proven time, holds do not end and old tags are not deleted.
        After this call, the proven time continues from the current time of the clock.

        Returns
        -------
        bool
            Whether the clock had to be confirmed; False if it agrees with the log and the proven
            time.
        """
        with self._core.database.transaction() as conn:
            return accept_clock(self._core, conn)

    acting = staticmethod(acting)
    """Set the opaque id of the acting user until the context ends.

    Request events that this thread records until then store the id as ``by``. A request stores who
    filed it and who verified it, so that these users cannot approve it.
    """

    def database_differences(self) -> tuple[str, ...]:
        """Return one sentence for each way in which the files are newer than the database.

        The tuple is empty if files and database agree. While they differ, nothing is recorded,
        signed or destroyed: methods that write raise `OldDatabaseError`.
        """
        return tuple(find_differences(self._core))

    def adopt_database(self, *, yes: bool = False) -> Adoption:
        """Continue with a database that is older than the files after the newer database was lost.

        Parameters
        ----------
        yes : bool, default=False
            True adopts the database and records this in the log. By default, nothing is changed,
            and the method only returns what would be lost.
        """
        return adopt_database(self._core, yes=yes)

    def database_bytes(self) -> int:
        """Return the size of the database in bytes, including its write-ahead log."""
        database = self._core.database
        if database.path is not None:
            return sum(size for path in database.list_files() for size in file_size(path))
        return int(database.read_value(text("SELECT pg_database_size(current_database())")))

    def doctor(self) -> tuple[Finding, ...]:
        """Check files, certificate chain, log, keys and clock, and return the findings."""
        return tuple(run_checks(self._core))

    def __repr__(self) -> str:
        """Return a text with the name and the folder of the ledger."""
        return f"Ledger({self.name!r}, folder={os.fspath(self.folder)!r})"


def _log_steps(steps: Iterator[Step]) -> Generator[Step, None, None]:
    """Yield and log steps, without their details."""
    for step in steps:
        _logger.info("%s %s", step.what, step.model or "(whole ledger)")
        yield step
