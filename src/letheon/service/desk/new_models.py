"""Models that come to the desk: a saved one with its rows, or a small example."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from letheon.exceptions import (
    BlockedIdsError,
    LetheonWarning,
    MemoryLimitError,
    NewerFormatError,
    StateError,
    UntrustedClassError,
)
from letheon.ledger.models.examine import ModelFiles
from letheon.ledger.models.table_files import NoTableReaderError, TableFileError
from letheon.sandbox import EndedError, StoppedError, TimeLimitError, protection
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._problems import Problem
from letheon.service._tokens import note_action
from letheon.service.desk.models import ModelOut, Releases, find_model

__all__ = ["EXAMPLES", "Example", "ModelUpload", "add_example", "add_model"]

Example = Literal["forest", "sisa", "certified"]

EXAMPLES: dict[Example, str] = {
    "forest": "a forest on tumours: exact removal, node by node",
    "sisa": "SISA on wines: exact removal, shard by shard",
    "certified": "logistic regression on tumours: certified removal with a budget",
}
"""Small models on data of scikit-learn, with what they show."""

_MOST_EXAMPLES = 1000
_TEST_SHARE = 5
# What a library says about values may quote them, so only that it complained is passed on.
_COMPLAINTS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
# Filters of warnings are the whole process's. Whoever waits for them keeps a thread from others.
_quiet = threading.Lock()
_uploading: set[str] = set()
_uploads_lock = threading.Lock()
_MOST_UPLOADS = 4
_PATIENCE = 5.0


@dataclass(frozen=True)
class ModelUpload:
    """A model that somebody brings.

    Attributes
    ----------
    model, rows : file
        What `letheon.save` wrote, and the training rows as CSV with a header line.
    name : str
        Name in the ledger.
    target : str
        Column of the target.
    ids : str or None
        Column of the ids; None: people are numbered from 0.
    tenant, dataset : str or None
        Whose model it is, and what its data are called.
    releases : str or None
        What of the model leaves the house.
    """

    model: BinaryIO
    rows: BinaryIO
    name: str
    target: str
    ids: str | None = None
    tenant: str | None = None
    dataset: str | None = None
    releases: Releases | None = None


def add_model(context: Context, who: Principal, upload: ModelUpload) -> ModelOut:
    """Register a saved model with its rows; the ledger checks that they give it.

    Files are read and the model is trained in a sandboxed process: no pickle, only classes of
    letheon and scikit-learn, no file of the server, no network, limited memory and time.
    """
    tenant = who.tenant_for(upload.tenant)
    _require_protection(context)
    files = ModelFiles(
        model=upload.model.read(),
        rows=("rows.csv", upload.rows.read()),
        target=upload.target,
        ids=upload.ids,
    )
    with _one_upload_of(tenant), _taken(), _refusals():
        context.ledger.register_files(
            files,
            name=upload.name,
            tenant=tenant,
            dataset=upload.dataset,
            releases=upload.releases,
            seconds=context.settings.model_seconds,
            stop=context.stopping,
        )
    return _registered(context, who, upload.name, tenant)


def _require_protection(context: Context) -> None:
    """Refuse models from outside where the kernel cannot hold them; the operator may decide."""
    if context.settings.allow_partial_sandbox or protection().is_full:
        return
    raise Problem(
        503,
        "no-sandbox",
        "this server takes no models from outside",
        f"Its kernel protects only part: {protection()}. `letheon model add` on the server works; "
        "allow_partial_sandbox in service.toml accepts the risk.",
    )


@contextmanager
def _one_upload_of(tenant: str) -> Iterator[None]:
    """Let one upload of a tenant train at a time, and a few in all: each takes memory."""
    with _uploads_lock:
        is_free = tenant not in _uploading and len(_uploading) < _MOST_UPLOADS
        if is_free:
            _uploading.add(tenant)
    if not is_free:
        raise Problem(
            503,
            "busy",
            "another model is being registered",
            "Try again when it is done.",
            headers={"Retry-After": "5"},
        )
    try:
        yield
    finally:
        with _uploads_lock:
            _uploading.discard(tenant)


def add_example(
    context: Context,
    who: Principal,
    kind: Example,
    *,
    name: str | None = None,
    tenant: str | None = None,
) -> ModelOut:
    """Train and register a small model; people are called ``person-0001`` and so on.

    Its seed is derived from the ledger's log, so nobody chose it. People who asked this tenant to
    be erased are left out.
    """
    wanted = who.tenant_for(tenant)
    ledger = context.ledger
    estimator, X, y = _example(kind)
    test = [place for place in range(len(y)) if place % _TEST_SHARE == 0]
    kept = [place for place in range(len(y)) if place % _TEST_SHARE]
    people = [f"person-{number:04d}" for number in range(1, len(kept) + 1)]
    given = (X[kept], y[kept], people)
    chosen = name or _free_name(context, f"example-{kind}", wanted)
    with _taken(), _without_warnings():
        rows, target, ids = ledger.without_blocked(*given, tenant=wanted)
        ledger.train(
            estimator,
            rows,
            target,
            ids=ids,
            name=chosen,
            tenant=wanted,
            dataset={"sisa": "wines"}.get(kind, "tumours"),
            test=(X[test], y[test]),
        )
    return _registered(context, who, chosen, wanted)


def _registered(context: Context, who: Principal, name: str, tenant: str) -> ModelOut:
    with context.ledger._core.database.transaction() as conn:
        note_action(conn, context.clock(), who.token_id, "model-registered", f"{tenant}/{name}")
    return find_model(context, who, name, tenant=tenant)


def _no_model(words: str) -> Problem:
    return Problem(422, "model-file", "this is no model file that can be used", words)


@contextmanager
def _refusals() -> Iterator[None]:
    """Say what is wrong with the files of an upload; texts of libraries may quote rows."""
    try:
        yield
    except UntrustedClassError as error:
        words = (
            "It uses a class or a setting that this desk does not trust; `letheon inspect` names "
            "it. An operator can add it with `letheon model add --trust`."
        )
        raise _no_model(words) from error
    except NewerFormatError as error:
        raise _no_model("A later letheon wrote it.") from error
    except MemoryLimitError as error:
        words = "Loading it would take too much memory: use `letheon model add --max-memory`."
        raise _no_model(words) from error
    except StateError as error:
        words = "It is not a file that letheon.save wrote, or it was cut or altered."
        raise _no_model(words) from error
    except NoTableReaderError as error:
        words = "The server has neither pandas nor polars; install one of them beside letheon."
        raise Problem(422, "rows", "the server cannot read tables", words) from error
    except TableFileError as error:
        raise Problem(
            422,
            "rows",
            "the rows cannot be read",
            "Send CSV in UTF-8 whose first line names the columns, those of target and ids too.",
        ) from error
    except StoppedError as error:
        raise Problem(503, "stopping", "the server is stopping", "Try again later.") from error
    except TimeLimitError as error:
        raise _too_much("time") from error
    except EndedError as error:
        raise (_too_much("memory") if str(error) == "memory-limit" else _failed(error)) from error


def _too_much(what: str) -> Problem:
    return Problem(
        422,
        "too-much",
        f"training this model again takes too much {what}",
        "Send a smaller one, or use `letheon model add` on the server, which has other limits.",
    )


def _failed(error: EndedError) -> Problem:
    return Problem(
        422,
        "model",
        "the ledger cannot take this model",
        f"Training on these rows failed ({error}); give X, y and ids as they were given to fit, in "
        "that order.",
    )


@contextmanager
def _taken() -> Iterator[None]:
    """Say that a model cannot be taken; what a library says may hold values of rows."""
    try:
        yield
    except BlockedIdsError as error:
        raise Problem(
            409,
            "blocked",
            "people who asked to be erased are among the rows",
            "Leave them out: `Ledger.without_blocked` does.",
        ) from error
    except StateError as error:
        raise _no_model("Something in the model has no place in a file.") from error
    except _COMPLAINTS as error:
        # The ledger's own refusals are errors by name, with codes and counts only.
        if type(error).__module__ == "letheon.exceptions":
            raise
        raise Problem(
            422,
            "model",
            "the ledger cannot take this model",
            f"Training on these rows failed ({type(error).__name__}); give X, y and ids as they "
            "were given to fit, in that order.",
        ) from error


@contextmanager
def _without_warnings() -> Iterator[None]:
    """What they say about the guarantee stands in the model's page; one thread at a time."""
    if not _quiet.acquire(timeout=_PATIENCE):
        raise Problem(
            503,
            "busy",
            "another model is being registered",
            "Try again when it is done.",
            headers={"Retry-After": "5"},
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LetheonWarning)
            yield
    finally:
        _quiet.release()


def _free_name(context: Context, stem: str, tenant: str) -> str:
    taken = {info.name for info in context.ledger.models(tenant=tenant)}
    names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, _MOST_EXAMPLES))
    return next(name for name in names if name not in taken)


def _example(kind: Example) -> tuple[Any, Any, Any]:
    from sklearn.datasets import load_breast_cancer, load_wine
    from sklearn.linear_model import LogisticRegression

    from letheon import DaREForestClassifier, InfluenceClassifier, SISAClassifier

    X, y = (load_wine if kind == "sisa" else load_breast_cancer)(return_X_y=True)
    if kind == "forest":
        return DaREForestClassifier(n_estimators=20, max_depth=8), X, y
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    if kind == "sisa":
        return SISAClassifier(LogisticRegression(max_iter=500), n_shards=4), scaled, y
    certified = InfluenceClassifier(
        l2=0.01, epsilon=1.0, delta=1e-4, rows="normalize", row_norm=1.0
    )
    return certified, scaled, y
