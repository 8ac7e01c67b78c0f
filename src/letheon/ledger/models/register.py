"""Registration of a model: commit to its rows, write its files, and record it in the log."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from letheon import state
from letheon.data import Rows
from letheon.exceptions import BlockedIdsError, LedgerError
from letheon.ledger.certificates.certify import take_beacon
from letheon.ledger.certificates.claims import weaker_releases
from letheon.ledger.certificates.facts import CALLER_SEED, JudgementBasis
from letheon.ledger.core import Core, fault_point
from letheon.ledger.db.events import record_event
from letheon.ledger.keys.derivation import commit_to_seeds, commit_to_settings
from letheon.ledger.models.commitment import build_tree, compute_ranks, count_slots, draw_row_slots
from letheon.ledger.models.examine import (
    ExaminedModel,
    copy_rows,
    examine_model,
    fresh_fit,
    judge_model,
    make_test_ids,
)
from letheon.ledger.models.versions import ModelRow, get_inserted_key, write_blobs
from letheon.ledger.requests.people import compute_person_tags
from letheon.ledger.schemas import require_name
from letheon.ledger.tables import blocked, heads, models, versions
from letheon.ledger.worker.recover import lock_registrations, new_folder
from letheon.verifier import canonical

TrainedModel = tuple[ExaminedModel, Rows, JudgementBasis | None]
TrainFunction = Callable[[int], TrainedModel]

# Digest in certificates of models without preprocessing.
_NO_PREPROCESSING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def define_model(
    name: str,
    tenant: str,
    dataset: str | None,
    releases: str | None,
    *,
    preprocessing: str | None = None,
    trusted: Any = (),
    origin: Literal["own", "outside"] = "own",
) -> ModelRow:
    """Return the database row of a model that is about to be registered.

    The arguments are those of `Ledger.models.register`; `releases=None` publishes what the
    guarantee of the model covers. The registration fills in folder, method, slots and time.
    """
    for argument, text in (("name", name), ("tenant", tenant), ("dataset", dataset or name)):
        require_name(argument, text)
    if isinstance(trusted, str) or callable(trusted):
        raise TypeError(f"trusted={trusted!r} is a single value; pass a list: trusted=[...]")
    return ModelRow(
        id=0,
        tenant=tenant,
        name=name,
        folder="",
        dataset=dataset or name,
        method="",
        slots=0,
        preprocessing=preprocessing or _NO_PREPROCESSING,
        releases=releases or "",
        created_at=0,
        trusted=tuple(item if isinstance(item, str) else state.tag_of(item) for item in trusted),
        origin=origin,
    )


def register_fitted(
    core: Core, examined: ExaminedModel, rows: Rows, model: ModelRow, judged: JudgementBasis | None
) -> int:
    """Register a model whose seed the caller chose; return its key in the database.

    The certificates of the model state that the caller chose the seed.
    """
    with new_folder(core) as folder:
        training = {
            "rule": CALLER_SEED,
            "beacon": "none",
            "keyCommitment": commit_to_seeds(core.keys.derive_salt(folder), examined.seeds),
            "key": "",
        }
        return _register_model(
            core, examined, rows, replace(model, folder=folder), judged, training
        )


def register_trained(core: Core, train: TrainFunction, model: ModelRow) -> int:
    """Train a model with a seed that the operator cannot choose, and register it.

    The log commits to a random key, a checkpoint is signed, and the seed is derived from both.
    `train` gets the seed. Return the key of the model in the database.
    """
    with new_folder(core) as folder:
        key = core.keys.new_key("training", label=folder)
        committed = core.keys.commit_to(key)
        with core.database.transaction() as conn:
            record_event(
                conn, "training", {"model": folder, "training": committed}, at=core.clock()
            )
        beacon = take_beacon(core, committed)
        seed = core.keys.derive_seed(key, bytes.fromhex(beacon))
        examined, rows, judged = train(seed)
        training = {
            "rule": "hkdf-sha256-epoch-v1",
            "beacon": f"checkpoint:{beacon}",
            "keyCommitment": committed,
            "key": key,
        }
        model = replace(model, folder=folder)
        return _register_model(core, examined, rows, model, judged, training)


def train_model(
    estimator: Any, rows: Rows, seed: int, *, trusted: tuple[str, ...], test: tuple[Any, ...] | None
) -> TrainedModel:
    """Train an estimator on rows with a seed, and check the result."""
    fitted = fresh_fit(estimator, rows, seed=seed).model
    return examine_model(fitted, rows, trusted), rows, make_judged(fitted, test, None)


def make_judged(model: Any, test: tuple[Any, ...] | None, monitor: Any) -> JudgementBasis | None:
    """Return the data on which versions of a model are evaluated; None without test and monitor.

    This is either the monitor, or the test rows with the score of this version.
    """
    if monitor is not None:
        from letheon.ledger.models.monitoring import pack_monitor

        if test is not None:
            raise ValueError(
                "test and monitor cannot be combined, because a monitor has its own test rows; "
                "omit test"
            )
        if monitor.model is not model:
            raise ValueError(
                "the monitor belongs to another model; pass monitor.model as the model to register"
            )
        return JudgementBasis(pack_monitor(monitor), None, 0.0)
    if test is None:
        return None
    if not isinstance(test, tuple) or len(test) not in (2, 3):
        raise ValueError("test must be a tuple (X, y) or (X, y, ids)")
    ids = test[2] if len(test) == 3 else make_test_ids(len(test[1]))
    return judge_model(model, copy_rows(test[0], test[1], ids))


def _register_model(
    core: Core,
    examined: ExaminedModel,
    rows: Rows,
    model: ModelRow,
    judged: JudgementBasis | None,
    training: dict[str, str],
) -> int:
    """Register a checked model with its rows; return its key in the database.

    Raises
    ------
    BlockedIdsError
        Some rows belong to people with an erasure request.
    LedgerError
        The tenant already has a model of this name.
    """
    model = replace(
        model,
        method=examined.method,
        slots=count_slots(len(rows)),
        releases=weaker_releases(examined.releases, model.releases or None),
        created_at=core.clock(),
    )
    row_slots = draw_row_slots(len(rows), model.slots, compute_ranks(rows))
    root = build_tree(rows, row_slots, model.slots).root.hex()
    written = write_blobs(core, model, examined.content, rows, row_slots, judged)
    fault_point("register.blobs-written")
    seconds = examined.retrain_seconds
    running = {
        "last_retrain_sequence": 0,
        "retrain_seconds": "" if seconds is None else f"{seconds:.6g}",
        "retrain_rows": len(rows),
        "rows_since_retrain": 0,
        "has_sample": examined.has_sample,
        "columns": [[name[:200], steps[:200]] for name, steps in examined.columns],
        "seconds": "0",
        "training": training,
    }
    version = written | {
        "number": 0,
        "root": root,
        "live": len(rows),
        "facts": canonical({"certificate": None, "run": running}).decode(),
        "published_at": model.created_at,
    }
    body = {
        "model": model.folder,
        "subject": written["model_blob"],
        "root": root,
        "slots": model.slots,
        "live": len(rows),
        "training": training["keyCommitment"],
        "beacon": training["beacon"],
        "settings": commit_to_settings(core.keys.derive_salt(model.folder), examined.settings),
    }
    tags = frozenset(compute_person_tags(core, model.tenant, rows.ids.distinct()))
    try:
        with core.database.transaction() as conn:
            lock_registrations(conn)
            _refuse_blocked(conn, model.tenant, tags)
            values = vars(model) | {"trusted": ",".join(model.trusted)}
            del values["id"]
            model_id = get_inserted_key(conn.execute(insert(models).values(values)))
            version_row = insert(versions).values(version | {"model_id": model_id})
            head = {"model_id": model_id, "version_id": get_inserted_key(conn.execute(version_row))}
            conn.execute(insert(heads).values(head | {"fence": 0, "owner": None, "lease_until": 0}))
            record_event(conn, "registered", body, at=model.created_at)
            fault_point("register.before-commit")
    except IntegrityError as error:
        raise LedgerError(
            f"a model {model.name!r} is already registered for tenant {model.tenant!r}; choose "
            "another name"
        ) from error
    fault_point("register.after-commit")
    return model_id


def _refuse_blocked(conn: Connection, tenant: str, tags: frozenset[str]) -> None:
    """Raise `BlockedIdsError` if a tag belongs to a person whose erasure was requested."""
    query = select(blocked.c.tag).where(blocked.c.tenant == tenant).distinct()
    n_blocked = sum(tag in tags for tag in conn.scalars(query))
    if n_blocked:
        raise BlockedIdsError(
            f"{n_blocked} of the people in the rows have an erasure request, so their rows "
            "must not be used for training; remove them with "
            "`ledger.models.without_blocked(X, y, ids)`"
        )
