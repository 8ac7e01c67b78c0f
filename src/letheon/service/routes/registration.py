"""API routes for registering models: an uploaded model with its rows, or an example."""

import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError
from starlette.datastructures import FormData, UploadFile

from letheon import exceptions
from letheon.ledger.models.examine import ModelFiles
from letheon.ledger.models.table_files import MissingColumnError, NoTableReaderError, TableFileError
from letheon.sandbox import EndedError, StoppedError, TimeLimitError, protection
from letheon.service.auth import Context, Principal, allows
from letheon.service.errors import ApiProblem
from letheon.service.forms import multipart_body, read_parts
from letheon.service.routes.models import ModelOut, Releases, show_model
from letheon.service.schemas import In, Name
from letheon.table_pipeline import TableMethod

router = APIRouter(tags=["models"])

Writer = Annotated[Principal, Depends(allows("models:write", is_long=True))]
Column = Annotated[str, Field(min_length=1, max_length=200)]
Example = Literal["forest", "sisa", "certified"]

EXAMPLES: dict[Example, str] = {
    "forest": "Random forest on breast cancer data: exact removal",
    "sisa": "SISA on wine data: exact removal",
    "certified": "Logistic regression on breast cancer data: certified removal with a budget",
}
"""Small models on data from scikit-learn, with descriptions."""

_MOST_EXAMPLES = 1000
_TEST_SHARE = 5
# Error messages of libraries may quote values, so only the type of the error is shown.
_COMPLAINTS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
# Warning filters apply to the whole process. A call that waits for them occupies a thread.
_quiet = threading.Lock()
_PATIENCE = 5.0


class ExampleIn(In):
    """The example to register.

    Attributes
    ----------
    name : Name or None
        Name of the model; by default "example-" followed by the kind.
    """

    kind: Example = "forest"
    name: Name | None = None
    tenant: Name | None = None


class ModelForm(In):
    """The fields of a model upload, without the files."""

    name: Name = Field(description="Name of the model in the ledger.")
    target: Column = Field(description="Column with the target.")
    ids: Column | None = Field(
        default=None, description="Column of the ids; default: rows are numbered from 0."
    )
    tenant: Name | None = Field(default=None, description="Tenant that owns the model.")
    dataset: Name | None = Field(default=None, description="Name of the data set.")
    releases: Releases | None = Field(
        default=None,
        description="Which outputs are published; default: those that the guarantee covers.",
    )
    method: TableMethod | None = Field(
        default=None,
        description="Method of a new model, which is trained if no model file is sent.",
    )


class ModelUpload(NamedTuple):
    """An upload: its fields, the model file if any, and the training rows as CSV with header."""

    form: ModelForm
    model_file: BinaryIO | None
    rows_file: BinaryIO


def _describe_body() -> dict[str, Any]:
    schema = ModelForm.model_json_schema()
    binary = {"type": "string", "format": "binary"}
    parts: dict[str, Any] = {
        "model": binary
        | {"description": "Model file written by `letheon.save`. Send this part or `method`."},
        "rows": binary | {"description": "Training rows: CSV in UTF-8 with a header line."},
    }
    required = ["rows", *schema["required"]]
    for name, part in schema["properties"].items():  # a part is a text or missing, never null
        (only,) = [item for item in part.pop("anyOf", [{}]) if item.get("type") != "null"]
        part.pop("default", None)
        parts[name] = part | only
    return multipart_body(parts, required)


async def _read_upload(request: Request) -> AsyncIterator[ModelUpload]:
    """Yield the uploaded model, which is read after authentication and kept in memory."""
    form = await read_parts(request)
    try:
        yield _parse_upload(form)
    finally:
        await form.close()


def _parse_upload(form: FormData) -> ModelUpload:
    parts = dict(form.multi_items())
    model, rows = parts.pop("model", None), parts.pop("rows", None)
    words = "Send the part `rows` as a file, and either the file `model` or the text `method`."
    if len(parts) + (model is not None) + (rows is not None) < len(form.multi_items()):
        words = "Send each part of the form only once."
    elif isinstance(rows, UploadFile) and isinstance(model, UploadFile | None):
        try:
            fields = ModelForm.model_validate(parts)
            if (model is None) == (fields.method is None):
                raise ApiProblem(422, "form", "the form is not valid", words)
            return ModelUpload(fields, None if model is None else model.file, rows.file)
        except ValidationError as error:
            errors = [{**details, "loc": ("body", *details["loc"])} for details in error.errors()]
            raise RequestValidationError(errors) from error
    raise ApiProblem(422, "form", "the form is not valid", words)


@router.post(
    "/api/v1/models",
    summary="Register a saved model, or train a new one",
    status_code=201,
    openapi_extra=_describe_body(),
)
def register_model(
    caller: Writer, upload: Annotated[ModelUpload, Depends(_read_upload)]
) -> ModelOut:
    """Register a saved model with its training rows, or train a new model on them.

    A saved model that is exact is retrained on the rows, and must equal the uploaded model. The
    model file is not a pickle, and may contain only classes of letheon and scikit-learn. With
    `method` a new model is trained: missing numbers are replaced by the mean, and texts and
    categories are one-hot encoded.
    """
    # A sandboxed process reads the files and trains, without access to files and network.
    desk, form = caller.desk, upload.form
    tenant = caller.tenant_for(form.tenant)
    _require_protection(desk)
    rows = ("rows.csv", upload.rows_file.read())
    files = ModelFiles(
        model=None if upload.model_file is None else upload.model_file.read(),
        rows=rows,
        target=form.target,
        ids=form.ids,
        method=form.method or "dare",
    )
    with desk.limiter.models.acquire(tenant), _as_problems(_FILE_PROBLEMS):
        desk.ledger.models.register_files(
            files,
            name=form.name,
            tenant=tenant,
            dataset=form.dataset,
            releases=form.releases,
            seconds=desk.settings.model_seconds,
            stop=desk.stopping,
        )
    return _note_registered(caller, form.name, tenant)


@router.post("/api/v1/models/example", summary="Register an example", status_code=201)
def register_example(caller: Writer, wanted: ExampleIn) -> ModelOut:
    """Train and register a small example model with the ids `person-0001`, `person-0002`, ..."""
    # The seed is derived from the log of the ledger. Erased people are left out.
    ledger, tenant = caller.ledger, caller.tenant_for(wanted.tenant)
    estimator, X, y = _make_example(wanted.kind)
    test = [place for place in range(len(y)) if place % _TEST_SHARE == 0]
    kept = [place for place in range(len(y)) if place % _TEST_SHARE]
    people = [f"person-{number:04d}" for number in range(1, len(kept) + 1)]
    taken = {info.name for info in ledger.models.list(tenant=tenant)}
    stem = f"example-{wanted.kind}"
    free = (item for item in (stem, *(f"{stem}-{n}" for n in range(2, _MOST_EXAMPLES))))
    name = wanted.name or next(item for item in free if item not in taken)
    with _as_problems(_MODEL_PROBLEMS), _without_warnings(caller.desk):
        rows, target, ids = ledger.models.without_blocked(X[kept], y[kept], people, tenant=tenant)
        ledger.models.train(
            estimator,
            rows,
            target,
            ids=ids,
            name=name,
            tenant=tenant,
            dataset="wines" if wanted.kind == "sisa" else "tumours",
            test=(X[test], y[test]),
        )
    return _note_registered(caller, name, tenant)


def _note_registered(caller: Principal, name: str, tenant: str) -> ModelOut:
    caller.desk.tokens.record_action(caller.id, "model-registered", f"{tenant}/{name}")
    return show_model(caller, name, tenant)


def _require_protection(desk: Context) -> None:
    """Reject an upload if the kernel cannot isolate models and the operator does not allow it."""
    if desk.settings.allow_partial_sandbox or protection().is_full:
        return
    words = (
        f"The kernel of the server cannot isolate models fully: {protection()}. Use `letheon model "
        "add` on the server, or set allow_partial_sandbox in service.toml to accept the risk."
    )
    raise ApiProblem(503, "no-sandbox", "this server does not accept uploaded models", words)


@contextmanager
def _without_warnings(desk: Context) -> Iterator[None]:
    """Ignore warnings of letheon, which the page of the model shows anyway.

    Only one thread at a time may do this; raise a problem if another thread takes too long.
    """
    if not _quiet.acquire(timeout=_PATIENCE):
        raise desk.limiter.models.make_problem()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", exceptions.LetheonWarning)
            yield
    finally:
        _quiet.release()


_NO_MODEL = "the model file cannot be used"
_CANNOT_TAKE = "the ledger cannot register this model"
_TRAINING_FAILED = (
    "Training on these rows failed ({}); X, y and ids must be those passed to fit, in the same "
    "order."
)
_UNTRUSTED = (
    "The file uses a class or a setting that this desk does not trust; `letheon inspect` shows it. "
    "An operator can register the model with `letheon model add --trust`."
)
_TOO_LARGE = (
    "Loading the file needs too much memory; use `letheon model add --max-memory` on the server."
)
_NOT_SAVED = "The file was not written by letheon.save, or it was truncated or changed."
_NO_PLACE = "A part of the model cannot be saved to a file."
_NO_READER = "The server has neither pandas nor polars; install one of them."
_NO_TABLE = "Send CSV in UTF-8 with a header line that contains the target and id columns."
_TOO_MUCH = (
    "Send a smaller model, or use `letheon model add` on the server, which has other limits."
)
_BLOCKED = "the rows contain ids with an erasure request"
_LEAVE_OUT = "Remove these rows with `Ledger.models.without_blocked`."
_Problems = dict[type[Exception], tuple[int, str, str, str]]
# Problems of a model, and of the files of an upload. The first match decides.
_MODEL_PROBLEMS: _Problems = {
    exceptions.BlockedIdsError: (409, "blocked", _BLOCKED, _LEAVE_OUT),
    exceptions.StateError: (422, "model-file", _NO_MODEL, _NO_PLACE),
}
_FILE_PROBLEMS: _Problems = {
    exceptions.BlockedIdsError: _MODEL_PROBLEMS[exceptions.BlockedIdsError],
    exceptions.UntrustedClassError: (422, "model-file", _NO_MODEL, _UNTRUSTED),
    exceptions.NewerFormatError: (
        422,
        "model-file",
        _NO_MODEL,
        "The file was written by a newer version of letheon; update the server.",
    ),
    exceptions.MemoryLimitError: (422, "model-file", _NO_MODEL, _TOO_LARGE),
    exceptions.StateError: (422, "model-file", _NO_MODEL, _NOT_SAVED),
    MissingColumnError: (422, "rows", "column not found", "{}."),
    NoTableReaderError: (422, "rows", "the server cannot read tables", _NO_READER),
    TableFileError: (422, "rows", "the rows cannot be read", _NO_TABLE),
    StoppedError: (503, "stopping", "the server is stopping", "Try again later."),
    TimeLimitError: (422, "too-much", "training this model takes too much time", _TOO_MUCH),
}


@contextmanager
def _as_problems(known: _Problems) -> Iterator[None]:
    """Turn errors in a ``with`` block into API problems; `known` has the problem by error class.

    The texts of other libraries are not shown, because they may quote rows.
    """
    kinds: tuple[type[Exception], ...] = (*known, *_COMPLAINTS)
    try:
        yield
    except EndedError as error:
        if str(error) == "memory-limit":
            title = "training this model needs too much memory"
            raise ApiProblem(422, "too-much", title, _TOO_MUCH) from error
        raise ApiProblem(422, "model", _CANNOT_TAKE, _TRAINING_FAILED.format(error)) from error
    except kinds as error:
        for kind, problem in known.items():
            if isinstance(error, kind):
                status, code, title, words = problem
                raise ApiProblem(status, code, title, words.format(error)) from error
        # Errors of letheon contain only codes and counts.
        if type(error).__module__ == "letheon.exceptions":
            raise
        words = _TRAINING_FAILED.format(type(error).__name__)
        raise ApiProblem(422, "model", _CANNOT_TAKE, words) from error


def _make_example(kind: Example) -> tuple[Any, Any, Any]:
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
