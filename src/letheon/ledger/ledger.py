"""`Ledger`: requests to be erased, applied, certified and purged."""

import os
import threading
from collections.abc import Callable, Iterator
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


class Keys:
    """The signing keys of a ledger.

    Parameters
    ----------
    core : Core
        The ledger.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(self) -> tuple[Key, ...]:
        """Return the signing keys, the one that strangers pin first."""
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
        """Return the signed statements that rotate and revoke keys, in their order."""
        return tuple(self._core.keys.statements())

    def trust(self) -> Trust:
        """Return the keys that follow from the first public key, as a stranger finds them."""
        return Trust.from_pinned(self._core.keys.root, self.statements())

    def rotate(self) -> str:
        """Sign with a new key from now on; return its id. The statement is signed by both."""
        core = self._core
        with core.database.transaction() as conn:
            # Numbers that are given out already are signed by the old key, whenever that is done.
            require_own_log(conn)
            core.keys.rotate(core.settings.name, last_sequence(conn))
            record_statements(core, conn)
        advance_mark(core)
        return core.keys.signer.keyid

    def revoke(self, keyid: str, *, after: int) -> None:
        """State that signatures of a key are not to be trusted after certificate `after`.

        Raises
        ------
        LedgerError
            Certificates that this key has to sign are not made yet; let a worker make them first.
        """
        core = self._core
        with core.database.transaction() as conn:
            require_own_log(conn)
            n_signed = conn.scalar(select(func.count()).select_from(certificates)) or 0
            if last_sequence(conn) > n_signed:
                raise LedgerError(
                    "a batch that was applied has no certificate yet, and its number belongs to an "
                    "older key; run `letheon batch apply` first. Nothing was revoked."
                )
            core.keys.revoke(core.settings.name, keyid, after)
            record_statements(core, conn)
        # The newest checkpoint must not be one that the revoked key has signed.
        take_checkpoint(core)


class Ledger:
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
    requests : LedgerRequests
        Requests: intake, what operators do about them, lists.
    models : Models
        Registered models and their versions.
    batches : Batches
        Requests that were erased together.
    certificates : Certificates
        Certificates, purge attestations, receipts.
    log : Log
        The append-only log of events, with proofs.
    keys : Keys
        Signing keys.
    stores : Stores
        Folders outside the ledger that purges search.
    public_key : str
        The first public key, in hexadecimal digits: what a stranger pins to verify everything.
    settings : Settings
        What ``letheon.toml`` says.
    clock : callable
        The clock of the ledger: seconds since 1970.
    require_current_database : callable
        Raises `OldDatabaseError` if the log lacks what the files rest on; one short reading.

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
        Database.open(url, upgrade=True, journal=settings.journal).dispose()

    def close(self) -> None:
        """Close the database; what was acknowledged is on the disk already."""
        self._core.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plan(self, model: str | None = None, *, tenant: str = "default") -> tuple[BatchPlan, ...]:
        """Say what the next batch of each model would be, and when it will be sealed."""
        return plan_all(self._core, None if model is None else self.models.row(model, tenant).id)

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
        wanted = None if model is None else self.models.row(model, tenant).id
        work = choose_compute(apart=apart, stop=stop)
        return run_once(self._core, owner_name(), work, forced=force, wanted=wanted)

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

    acting = staticmethod(acting)
    """Name who acts, by an opaque id, until the context is left.

    Each event of a request that is recorded meanwhile in this thread carries it as ``by``;
    requests remember who filed and who verified them, so that no one approves their own.
    """

    def database_differences(self) -> tuple[str, ...]:
        """Return in what the files are newer than the database; nothing if they agree.

        While there is a difference nothing is recorded, signed or destroyed (`OldDatabaseError`).
        """
        return tuple(find_differences(self._core))

    def adopt_database(self, *, yes: bool = False) -> Adoption:
        """Go on from a database that is older than the files, because the newer one is lost.

        Parameters
        ----------
        yes : bool, default=False
            Do it, and record it in the log. Otherwise only what would be lost is returned.
        """
        return adopt_database(self._core, yes=yes)

    def database_bytes(self) -> int:
        """Return the bytes of the whole database, its write-ahead log included."""
        database = self._core.database
        if database.path is not None:
            return sum(size for path in database.list_files() for size in file_size(path))
        return int(database.read_value(text("SELECT pg_database_size(current_database())")))

    def doctor(self) -> tuple[Finding, ...]:
        """Look whether everything is sound: files, chain, log, keys, clocks, leftovers."""
        return tuple(run_checks(self._core))

    def __repr__(self) -> str:
        """Name and folder."""
        return f"Ledger({self.name!r}, folder={os.fspath(self.folder)!r})"
