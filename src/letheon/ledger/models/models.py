"""`Ledger.models`: registered models, their versions and their measurements."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, Select, func, select

from letheon.data import IdIndex, Ids, as_ids
from letheon.exceptions import LedgerMissingError
from letheon.ledger.certificates.claims import guarantee_section, make_claim, make_published_account
from letheon.ledger.certificates.statement import choose_releases
from letheon.ledger.core import Core
from letheon.ledger.leases import owner_name
from letheon.ledger.models.examine import (
    ModelFiles,
    copy_rows,
    examine_files,
    examine_model,
    require_kind,
)
from letheon.ledger.models.register import (
    TrainedModel,
    define_model,
    make_judged,
    register_fitted,
    register_trained,
    train_model,
)
from letheon.ledger.models.versions import (
    ModelRow,
    Reader,
    VersionRow,
    find_head,
    find_model,
    find_model_by_id,
    read_head,
    read_ids,
    read_judged,
    read_model,
    read_predictor_file,
)
from letheon.ledger.purge.scan import is_distinctive_id
from letheon.ledger.purge.stores import list_stores, warn_about_gaps
from letheon.ledger.requests.people import compute_person_tags
from letheon.ledger.schemas import Model, Storage, Version, Watch, record_from
from letheon.ledger.tables import batches, blocked, certificates, heads, models, versions
from letheon.ledger.worker.compute import choose_compute
from letheon.state import write_atomically
from letheon.table_pipeline import ColumnTreatment
from letheon.verifier import parse_strict

if TYPE_CHECKING:
    from letheon.ledger.worker.worker import Step

_T = TypeVar("_T")
_MOST_CACHED = 256
# Seconds for which the ids of a model are cached.
_CACHE_SECONDS = 5.0
# Claims of models and tolerances of monitors, by the address of a blob.
_cache: dict[str, Any] = {}
_UNREAD = object()

# Without the facts, which are expensive to parse.
_VERSION_COLUMNS = "number sequence model_blob live published_at certified_at purged_at"
_VERSION = [versions.c[name] for name in _VERSION_COLUMNS.split()]
_MODEL_COLUMNS = "name tenant dataset method releases slots"
_MODEL = [models.c[name] for name in _MODEL_COLUMNS.split()]
_REGISTERED_AT = models.c.created_at.label("registered_at")


class _People(NamedTuple):
    """Cached ids of a version, the address of their blob, and the time when the cache expires."""

    address: str
    ids: Ids
    places: IdIndex
    until: float = 0.0


class Models:
    """The registered models of a ledger.

    Parameters
    ----------
    core : Core
        The ledger.

    Examples
    --------
    >>> import tempfile
    >>> from letheon import Ledger, NearestCentroid
    >>> model = NearestCentroid().fit([[0.0], [1.0]], [0, 1])
    >>> with tempfile.TemporaryDirectory() as folder, Ledger.create(folder, name="demo") as ledger:
    ...     ledger.models.register(model, [[0.0], [1.0]], [0, 1], name="shop").n_rows
    2
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._rows: dict[tuple[str, str], ModelRow] = {}
        self._people: dict[int, _People] = {}

    def register(
        self,
        model: Any,
        X: Any,
        y: Any,
        *,
        ids: Any = None,
        name: str,
        tenant: str = "default",
        dataset: str | None = None,
        test: tuple[Any, ...] | None = None,
        monitor: Any = None,
        preprocessing: str | None = None,
        releases: Literal["labels-only", "latest-only", "every-version"] | None = None,
        row_params: dict[str, Any] | None = None,
        trusted: Any = (),
    ) -> Model:
        """Register a fitted model with the rows that it was fitted on.

        An exact model is retrained on the rows and compared, because its certificates can be
        verified only if the rows reproduce the model.

        Parameters
        ----------
        model : fitted letheon estimator
            It is copied into the ledger; this object is not changed.
        X, y, ids
            The same rows, labels and ids that were passed to `fit`.
        name, tenant : str
            Name of the model, and its owner. Requests of other tenants do not affect it.
        dataset : str, optional
            Name of the dataset; by default that of the model.
        test : (X, y) or (X, y, ids), optional
            Test rows for the effectiveness in certificates; erased people leave them too.
        monitor : Monitor, optional
            Monitor of the model: its decisions and proxies become part of the certificates.
        preprocessing : str, optional
            SHA-256 of the preprocessing; certificates quote it.
        releases : {"labels-only", "latest-only", "every-version"}, optional
            Which outputs of the model are published; by default those its guarantee covers.
        row_params : dict, optional
            Further arguments of `fit` with one value per row, such as ``risk``.
        trusted : iterable of class, function or str, optional
            Additional classes that the model uses; see `letheon.load`.

        Returns
        -------
        Model
        """
        rows = copy_rows(X, y, ids, row_params)
        judged = make_judged(model, test, monitor)
        row = define_model(
            name, tenant, dataset, releases, preprocessing=preprocessing, trusted=trusted
        )
        examined = examine_model(model, rows, row.trusted)
        return self._get_registered(register_fitted(self._core, examined, rows, row, judged))

    def register_files(
        self,
        files: ModelFiles,
        *,
        name: str,
        tenant: str = "default",
        dataset: str | None = None,
        releases: Literal["labels-only", "latest-only", "every-version"] | None = None,
        seconds: float = 3600.0,
        stop: threading.Event | None = None,
    ) -> Model:
        """Register a model from untrusted files, or train a new model on the rows of a file.

        The files are read, and the model is retrained, in a sandboxed process without access to
        other files, the network, keys or the database. Later computations of the model run in a
        sandboxed process too, one task at a time, unless `files` names trusted classes.

        Parameters
        ----------
        files, name, tenant, dataset, releases
            File written by `letheon.save` and tables of rows; the rest as in `register`.
        seconds : float, default=3600
            Time limit for reading and training.
        stop : Event, optional
            Setting it ends the process.

        Raises
        ------
        LetheonError, TableFileError
            The files are not valid.
        SandboxError
            The process exceeded its limits, or failed for another reason.
        """
        origin: Literal["own", "outside"] = "own" if files.trusted else "outside"
        row = define_model(name, tenant, dataset, releases, trusted=files.trusted, origin=origin)
        if files.model is None:

            def train(seed: int) -> TrainedModel:
                return examine_files(files, seed=seed, seconds=seconds, stop=stop)

            return self._get_registered(register_trained(self._core, train, row))
        examined, rows, judged = examine_files(files, seconds=seconds, stop=stop)
        return self._get_registered(register_fitted(self._core, examined, rows, row, judged))

    def train(
        self,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        ids: Any = None,
        name: str,
        tenant: str = "default",
        dataset: str | None = None,
        test: tuple[Any, ...] | None = None,
        preprocessing: str | None = None,
        releases: Literal["labels-only", "latest-only", "every-version"] | None = None,
        row_params: dict[str, Any] | None = None,
        trusted: Any = (),
    ) -> Model:
        """Train a model with a seed that the operator cannot choose, and register it.

        The log commits to a random key, a checkpoint of the log is signed, and the seed is derived
        from both. The operator therefore cannot try several seeds and choose one. Certificates
        prove this if a witness co-signs the checkpoints; otherwise they state that it is not
        proved.

        Parameters
        ----------
        estimator : letheon estimator
            Unfitted; its `random_state` is replaced.
        X, y, ids, name, tenant, dataset, test, preprocessing, releases, row_params, trusted
            See `register`.
        """
        rows = copy_rows(X, y, ids, row_params)
        row = define_model(
            name, tenant, dataset, releases, preprocessing=preprocessing, trusted=trusted
        )
        require_kind(estimator)
        train = partial(train_model, estimator, rows, trusted=row.trusted, test=test)
        return self._get_registered(register_trained(self._core, train, row))

    def without_blocked(
        self, X: Any, y: Any, ids: Any, *, tenant: str = "default"
    ) -> tuple[Any, Any, NDArray[Any]]:
        """Return X, y and ids without the rows of people with an erasure request at this tenant."""
        rows = copy_rows(X, y, ids)
        with self._core.database.reading() as conn:
            erased = set(conn.scalars(select(blocked.c.tag).where(blocked.c.tenant == tenant)))
        tags = compute_person_tags(self._core, tenant, rows.ids)
        kept = rows.take(np.flatnonzero([tag not in erased for tag in tags]))
        return (*kept.slice(0, len(kept)), kept.ids.to_array())

    def retrain(
        self,
        model: str,
        *,
        tenant: str = "default",
        apart: bool = False,
        stop: threading.Event | None = None,
    ) -> "tuple[Step, ...]":
        """Retrain a model without the rows of queued requests, as a batch with a certificate."""
        from letheon.ledger.worker.worker import retrain_model

        compute = choose_compute(apart=apart, stop=stop)
        return tuple(retrain_model(self._core, owner_name(), compute, self.row(model, tenant)))

    def load(self, model: str, *, tenant: str = "default") -> Any:
        """Return a copy of the served model."""
        row = self.row(model, tenant)
        return read_head(self._core, row, lambda head: read_model(self._core, row, head))

    def save_predictor(
        self, model: str, path: str | os.PathLike[str], *, tenant: str = "default"
    ) -> None:
        """Write the predictor of the served version to a file without rows, ids and keys.

        The certificate states the SHA-256 of the file, and `letheon.load` reads it. After the next
        removal, write a new file and delete the old one. Raise `TypeError` if the model has no
        predictor.
        """
        core, row = self._core, self.row(model, tenant)
        data = read_head(core, row, partial(read_predictor_file, core, row))
        write_atomically(Path(path), [data])

    def reader(self, model: str, *, tenant: str = "default") -> Reader:
        """Return a reader that follows the served model."""
        return Reader(self._core, self.row(model, tenant), owner_name())

    def list(self, *, tenant: str | None = None) -> tuple[Model, ...]:
        """Return the registered models, oldest first."""
        query = _select_models().order_by(models.c.id)
        if tenant is not None:
            query = query.where(models.c.tenant == tenant)
        with self._core.database.reading() as conn:
            return tuple(_to_model(row) for row in conn.execute(query))

    def get(self, model: str, *, tenant: str = "default") -> Model:
        """Return a registered model, or raise `UnknownModelError`."""
        row = self.row(model, tenant)
        with self._core.database.reading() as conn:
            return _get_model(conn, row.id)

    def versions(
        self,
        model: str,
        *,
        tenant: str = "default",
        after: int | None = None,
        limit: int | None = None,
    ) -> tuple[Version, ...]:
        """Return at most `limit` versions of a model with numbers above `after`, oldest first."""
        with self._core.database.reading() as conn:
            model_id = find_model(conn, model, tenant).id
            query = select(*_VERSION).where(versions.c.model_id == model_id)
            if after is not None:
                query = query.where(versions.c.number > after)
            rows = conn.execute(query.order_by(versions.c.number).limit(limit))
            return tuple(_to_version(row) for row in rows)

    def history(
        self,
        model: str,
        *,
        tenant: str = "default",
        before: int | None = None,
        numbers: Sequence[int] | None = None,
        limit: int = 50,
    ) -> tuple[Version, ...]:
        """Return at most `limit` versions of a model with their certificate facts, newest first.

        `before` selects the versions with smaller numbers, `numbers` selects versions by number.
        """
        with self._core.database.reading() as conn:
            model_row = find_model(conn, model, tenant)
            query = (
                select(versions, batches.c.kind, certificates.c.id.label("certificate_id"))
                .outerjoin(batches, batches.c.id == versions.c.batch_id)
                .outerjoin(certificates, certificates.c.version_id == versions.c.id)
                .where(versions.c.model_id == model_row.id)
            )
            if before is not None:
                query = query.where(versions.c.number < before)
            if numbers is not None:
                query = query.where(versions.c.number.in_(numbers))
            rows = conn.execute(query.order_by(versions.c.number.desc()).limit(limit)).all()
        return tuple(_to_full_version(model_row, row) for row in rows)

    def version_facts(self, model: str, number: int, *, tenant: str = "default") -> dict[str, Any]:
        """Return the facts of a version that its certificate states, or will state.

        The keys are `number`, `kind` (``registration``, ``erase`` or ``retrain``), `n_erased`,
        `seconds`, and, except for a registration, `method`, `guarantee` with its `accounting`,
        `measurements`, `monitor`, `execution` and `notClaimed`.

        Raises
        ------
        UnknownModelError, LedgerMissingError
            The model or version does not exist.
        """
        matches = self.history(model, tenant=tenant, numbers=[number], limit=1)
        if not matches:
            raise LedgerMissingError(f"model {model!r} has no version {number}")
        version = matches[0]
        about = {"number": number, "kind": version.kind, "n_erased": version.n_erased}
        return about | {"seconds": version.seconds} | (version.facts or {})

    def list_columns(self, model: str, *, tenant: str = "default") -> tuple[ColumnTreatment, ...]:
        """Return the columns of a model on a table with their preprocessing, at most 1,000.

        The result is empty for a model without a column transformer.
        """
        with self._core.database.reading() as conn:
            run = find_head(conn, find_model(conn, model, tenant).id).run
        return tuple(ColumnTreatment(*column) for column in run.get("columns", ()))

    def sequences(
        self, model: str, first: int, last: int, *, tenant: str = "default"
    ) -> tuple[int, ...]:
        """Return the certificate numbers of the versions from `first` + 1 to `last`."""
        with self._core.database.reading() as conn:
            row = find_model(conn, model, tenant)
            query = select(versions.c.sequence).where(
                versions.c.model_id == row.id,
                versions.c.number > first,
                versions.c.number <= last,
                versions.c.sequence.is_not(None),
            )
            return tuple(map(int, conn.scalars(query.order_by(versions.c.number))))

    def claims(self, model: str, *, tenant: str = "default") -> dict[str, Any]:
        """Return the claims of the served model about its next removal.

        This is the `guarantee` section that a certificate would have now, even if no row was
        removed since the model was registered or retrained. The model is read once per version.
        """
        row = self.row(model, tenant)
        return read_head(self._core, row, lambda head: _head_claims(self._core, row, head))

    def watch(self, model: str, *, tenant: str = "default") -> Watch | None:
        """Return the tolerances of a model's monitor; None if the model has no monitor."""
        row = self.row(model, tenant)
        return read_head(self._core, row, lambda head: _head_watch(self._core, row, head))

    def spending(
        self, model: str, *, tenant: str = "default", newest: int = 200
    ) -> tuple[tuple[int, float], ...]:
        """Return (time, spent budget) for each version since the last retraining, oldest first.

        Times are seconds since 1970. Only the `newest` versions are returned. The values are more
        precise than in certificates: use them for forecasts, and do not show them.
        """
        with self._core.database.reading() as conn:
            row = find_model(conn, model, tenant)
            last = find_head(conn, row.id).run["last_retrain_sequence"]
            fresh = func.coalesce(versions.c.sequence, 0) >= last
            query = select(versions.c.published_at, versions.c.facts).where(
                (versions.c.model_id == row.id) & fresh
            )
            rows = conn.execute(query.order_by(versions.c.number.desc()).limit(newest)).all()
        spent = []
        for at, text in rows[::-1]:
            facts = parse_strict(text.encode())["certificate"]
            account = {} if facts is None else facts["guarantee"]["accounting"]
            spent.append((at, float(account.get("spent", 0))))
        return tuple(spent)

    def run_facts(self, model: str, *, tenant: str = "default") -> dict[str, Any]:
        """Return facts about all versions: retrainings, their duration, choice of the seed."""
        row = self.row(model, tenant)
        with self._core.database.reading() as conn:
            return find_head(conn, row.id).run

    def storage(self, model: str, *, tenant: str = "default") -> Storage:
        """Return the size of a model's files in bytes."""
        core, row = self._core, self.row(model, tenant)
        return Storage(
            sum(_list_sizes(core.blob_store(row.folder).folder)),
            sum(_list_sizes(core.subfolder("proofs") / row.folder)),
        )

    def has_integer_ids(self, model: str, *, tenant: str = "default") -> bool:
        """Return whether the ids of a model are integers, and not strings."""
        return self.ids(model, tenant=tenant).kind == "int"

    def ids(self, model: str, *, tenant: str = "default") -> Ids:
        """Return the ids of the served version, one per row."""
        row = self.row(model, tenant)
        self.get_ids_index(row)
        return self._people[row.id].ids

    def count_rows(self, ids: Iterable[int | str], model: str, *, tenant: str = "default") -> int:
        """Return the number of rows of these ids in the served version; duplicates count once."""
        index = self.get_ids_index(self.row(model, tenant))
        return len(index.find(as_ids([*ids]).distinct()).positions)

    def row(self, model: str, tenant: str) -> ModelRow:
        """Return the database row of a model. The row never changes, so it is read only once."""
        for argument, value in (("model", model), ("tenant", tenant)):
            if not isinstance(value, str):
                raise TypeError(
                    f"{argument} must be a name of type str, not {type(value).__name__}"
                )
        row = self._rows.get((model, tenant))
        if row is None:
            with self._core.database.reading() as conn:
                row = find_model(conn, model, tenant)
            self._rows[model, tenant] = row
        return row

    def get_ids_index(self, row: ModelRow) -> IdIndex:
        """Return an index of the ids of the served version, from a cache that may be seconds old.

        Ids are never added, and the ledger detects removed ids by their requests. So a slightly
        outdated cache does not accept an invalid request.
        """
        now, people = time.monotonic(), self._people.get(row.id)
        if people is None or now >= people.until:
            head_people = partial(self._read_people, row, people)
            people = read_head(self._core, row, head_people)._replace(until=now + _CACHE_SECONDS)
            self._people[row.id] = people
        return people.places

    def _read_people(self, row: ModelRow, cached: _People | None, head: VersionRow) -> _People:
        if cached is not None and cached.address == head.ids_blob:
            return cached
        ids = read_ids(self._core, row, head)
        return _People(head.ids_blob, ids, IdIndex(ids))

    def _get_registered(self, model_id: int) -> Model:
        """Return a new model, and warn about stores that cannot be searched for its ids."""
        with self._core.database.reading() as conn:
            row = find_model_by_id(conn, model_id)
            head, model = find_head(conn, model_id), _get_model(conn, model_id)
        if registered := list_stores(self._core):
            ids = read_ids(self._core, row, head).to_list()
            if not all(map(is_distinctive_id, ids)):
                warn_about_gaps(registered, has_short_ids=True)
        return model


def _select_models() -> Select[Any]:
    return (
        select(*_MODEL, _REGISTERED_AT, *_VERSION)
        .join(heads, heads.c.model_id == models.c.id)
        .join(versions, versions.c.id == heads.c.version_id)
    )


def _get_model(conn: Connection, model_id: int) -> Model:
    return _to_model(conn.execute(_select_models().where(models.c.id == model_id)).one())


def _to_model(row: Row[Any]) -> Model:
    return record_from(Model, row._mapping, n_rows=row.live, head=_to_version(row))


def _to_version(row: Row[Any], **more: Any) -> Version:
    return record_from(Version, row._mapping, address=row.model_blob, **more)


def _to_full_version(model: ModelRow, row: Row[Any]) -> Version:
    """Return a version with its facts and its rounded account, as a certificate shows them."""
    stored = parse_strict(row.facts.encode())
    facts = stored["certificate"]
    if facts is not None:
        guarantee = facts["guarantee"]
        shown = {
            "releases": choose_releases(model, row.kind, guarantee["releases"]),
            "accounting": make_published_account(guarantee["accounting"]),
        }
        facts = facts | {"guarantee": guarantee | shown}
    return _to_version(
        row,
        kind=row.kind or "registration",
        batch=row.batch_id,
        certificate_id=row.certificate_id,
        n_erased=0 if facts is None else int(facts["rows"]),
        seconds=float(stored["run"]["seconds"]),
        facts=facts,
    )


def _head_claims(core: Core, row: ModelRow, head: VersionRow) -> dict[str, Any]:
    n_removed = head.run["rows_since_retrain"]

    def read_section() -> dict[str, Any]:
        claim = make_claim(read_model(core, row, head), "erase")
        return guarantee_section(claim, since_retrain=n_removed)

    section = _remember(head.model_blob, read_section)
    account = make_published_account(section["accounting"])
    if "spent" in account and n_removed == 0:
        account["spent"] = "0"  # no row was removed, so there is nothing to distinguish
    return section | {"releases": row.releases, "accounting": account}


def _head_watch(core: Core, row: ModelRow, head: VersionRow) -> Watch | None:
    def read_watch() -> Watch | None:
        from letheon.ledger.models.monitoring import unpack_watch

        judged = read_judged(core, row, head)
        packed = None if judged is None else judged.monitor
        return None if packed is None else unpack_watch(packed, row.trusted)

    return None if head.monitor_blob is None else _remember(head.monitor_blob, read_watch)


def _remember(address: str, read: Callable[[], _T]) -> _T:
    """Return the cached value for the blob at an address; compute it with `read` if not cached."""
    cached: Any = _cache.get(address, _UNREAD)  # one call: another thread may clear the cache
    if cached is not _UNREAD:
        value: _T = cached
        return value
    if len(_cache) >= _MOST_CACHED:
        _cache.clear()
    _cache[address] = value = read()
    return value


def _list_sizes(folder: Path) -> Iterator[int]:
    for path in folder.iterdir() if folder.is_dir() else ():
        yield from file_size(path)


def file_size(path: Path) -> Iterator[int]:
    """Yield the size of a file in bytes; yield nothing if the file does not exist."""
    try:
        yield path.stat().st_size
    except FileNotFoundError:  # purged at the same time
        return
