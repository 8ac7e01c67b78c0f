"""Checks before a model is registered: its rows must match it and reproduce an exact model.

`examine_model` checks an object of this process. `examine_files` checks untrusted files in a
sandboxed process, because the sender of the files decides which computations run when the table is
read and the model is built and retrained.
"""

import copy
import io
import secrets
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import NotFittedError

import letheon.exceptions as errors
from letheon import sandbox, state
from letheon.compose import clone_unfitted
from letheon.data import Frame, Ids, Rows, as_frame, hold_table, hold_target, row_ids, table_length
from letheon.exceptions import CannotForgetError, LedgerError, LetheonError
from letheon.guarantee import MethodFacts
from letheon.inner_estimator import fresh_copy
from letheon.ledger.certificates.claims import describe_settings, list_seeds
from letheon.ledger.certificates.facts import JudgementBasis, test_metric
from letheon.ledger.models.table_files import (
    MissingColumnError,
    NoTableReaderError,
    TableColumns,
    TableFileError,
    memory_limit,
    read_table_file,
)
from letheon.parallel import one_thread
from letheon.table_pipeline import (
    ColumnTreatment,
    TableMethod,
    choose_task,
    list_treatments,
    make_model,
    make_table_pipeline,
)


class FreshFit(NamedTuple):
    """A newly trained model and the duration of its training in seconds."""

    model: Any
    seconds: float


def copy_rows(X: Any, y: Any, ids: Any, extra: dict[str, Any] | None = None) -> Rows:
    """Return a copy of the rows; if `ids` is None, the rows are numbered from 0.

    `extra` contains further arguments of `fit` with one value per row, such as `risk` of SISA.
    """
    table, target = hold_table(X), None if y is None else hold_target(y)
    length = table_length(table)
    if target is not None and len(target) != length:
        raise ValueError(f"X has {length} rows and y has {len(target)}; give one target per row")
    values = {name: hold_target(value) for name, value in (extra or {}).items()}
    for name, value in values.items():
        if len(value) != length:
            raise ValueError(
                f"{name} has {len(value)} values for {length} rows; expected one value per row"
            )
    return Rows(table, target, row_ids(ids, length), values)


def fresh_fit(like: Any, rows: Rows, *, seed: int | None = None) -> FreshFit:
    """Train a new model on these rows, in their order, with one thread.

    Parameters
    ----------
    like : estimator
        The model whose settings are used, and its seeds unless `seed` is given. It is not changed.
    rows : Rows
        The rows; ``rows.extra`` is passed to `fit` by name.
    seed : int, optional
        Seed to use instead of the seeds of `like`.
    """
    fresh = clone_unfitted(like) if seed is None else fresh_copy(like, seed)
    X, y = rows.slice(0, len(rows))
    start = time.perf_counter()
    with one_thread():
        fresh.fit(X, y, ids=rows.ids.to_array(), **rows.extra)
    return FreshFit(fresh, time.perf_counter() - start)


# Columns whose preprocessing is shown.
_MOST_COLUMNS = 1000
# Encoded rows may contain these classes only.
_ROW_CLASSES = ("letheon.rows.", "pandas.", "polars.", "scipy.sparse.", "numpy.")


@dataclass(frozen=True)
class ExaminedModel:
    """A checked and encoded model, ready to be registered."""

    content: bytes
    method: str
    releases: str
    settings: dict[str, Any]
    seeds: list[str]
    retrain_seconds: float | None
    has_sample: bool = False
    columns: tuple[ColumnTreatment, ...] = ()


@dataclass(frozen=True)
class ModelFiles:
    r"""The files of a model to register, or to train.

    Attributes
    ----------
    model : bytes or None
        File written by `letheon.save`; None trains a new model on the rows.
    rows, test : (str, bytes)
        Name and content of the file with the training rows, and of the file with the test rows.
    target, ids : str or None
        Names of the columns with the target and with the ids.
    trusted : tuple of str
        Additional classes that the model may use.
    max_memory : int or None
        Most bytes of memory that loading the model may use; see `letheon.load`.
    method : {"dare", "boosting", "influence", "ridge"}
        Method of a new model; see `letheon.table_pipeline.make_model`.
    settings : tuple of (str, str)
        Parameters of a new model and their values as texts; see `make_model`, too.

    Examples
    --------
    >>> from letheon.ledger import ModelFiles
    >>> rows = b"customer,visits,buys\\n1,4,yes\\n2,1,no\\n"
    >>> files = ModelFiles(None, ("rows.csv", rows), target="buys", ids="customer", method="dare")
    >>> files.method
    'dare'
    """

    model: bytes | None
    rows: tuple[str, bytes]
    target: str | None = None
    ids: str | None = None
    test: tuple[str, bytes] | None = None
    trusted: tuple[str, ...] = ()
    max_memory: int | None = None
    method: TableMethod = "dare"
    settings: tuple[tuple[str, str], ...] = ()


def examine_model(model: Any, rows: Rows, trusted: tuple[str, ...] = ()) -> ExaminedModel:
    """Check that a fitted model matches its rows, and return the model ready for registration.

    Raises
    ------
    CannotForgetError
        The object is not a letheon estimator, or the model keeps checkpoints in its own folder.
    LedgerError
        The rows do not match the model, or they do not reproduce an exact model.
    UntrustedClassError
        The model uses a class or setting that is not trusted.
    """
    facts = require_kind(model)
    if not getattr(model, "__sklearn_is_fitted__", lambda: True)():
        raise NotFittedError(f"this {type(model).__name__} is not fitted; call fit first")
    plain = _remove_unverifiable(model)
    state.require_trust(state.to_tree(plain), trusted)
    _require_rows(model, rows)
    seconds = _require_fit(model, rows) if facts.exact else None
    return _describe_examined(plain, state.encode(plain), seconds)


def _describe_examined(model: Any, content: bytes, seconds: float | None) -> ExaminedModel:
    releases, settings = str(model.guarantee_.releases), describe_settings(model)
    no_ids = model._get_ids().take(np.empty(0, np.int64))
    has_sample = model._find_sampled(no_ids) is not None
    columns = tuple(list_treatments(model)[:_MOST_COLUMNS])
    method = require_kind(model).method
    seeds = list_seeds(model)
    return ExaminedModel(content, method, releases, settings, seeds, seconds, has_sample, columns)


def judge_model(model: Any, test: Rows) -> JudgementBasis:
    """Return the test rows, together with the score of the model on them."""
    X, y = test.slice(0, len(test))
    return JudgementBasis(None, test, test_metric(model, X, y)[1])


def require_kind(model: Any) -> MethodFacts:
    """Return the `MethodFacts` of a letheon estimator, fitted or not.

    Raise `CannotForgetError` for other objects, and for a model with its own checkpoint folder.
    """
    facts = getattr(model, "facts", None)
    if isinstance(model, type):
        name = model.__name__
        raise CannotForgetError(
            f"model is the class {name}; pass an instance, for example {name}(...)"
        )
    if not isinstance(facts, MethodFacts):
        raise CannotForgetError(
            f"{type(model).__name__} is not a letheon estimator; wrap it, for example with "
            "NaiveUnlearner(estimator) or SISAClassifier(estimator)"
        )
    params = model.get_params(deep=True).items()
    kept = [key for key, value in params if key.endswith("checkpoint_dir") and value is not None]
    if kept:
        raise CannotForgetError(
            f"this model keeps checkpoints in its own folder ({', '.join(kept)}), and a purge "
            "of the ledger does not erase that folder; fit the model with checkpoint_dir=None"
        )
    return facts


def _remove_unverifiable(model: Any) -> Any:
    """Return a copy of a model without the parts that retraining cannot reproduce.

    These parts are the note on tuning, which is free text, and random generators, whose state may
    contain anything. An auditor who retrains the model cannot reproduce their bytes from the rows.
    """
    twin = copy.copy(model)
    vars(twin).pop("tuning_", None)
    chosen = vars(twin).get("random_state")
    if chosen is not None and not isinstance(chosen, int):
        twin.random_state = model.seed_
    for name, value in twin.get_params(deep=True).items():
        is_seed = name.rpartition("__")[2] == "random_state"
        if is_seed and value is not None and not isinstance(value, int | np.integer):
            raise LedgerError(
                f"{name} is a random generator, which cannot be stored; set it to an integer"
            )
    return twin


def _require_rows(model: Any, rows: Rows) -> None:
    """Raise `LedgerError` unless the rows have the ids of the model, in any order."""
    ids: Ids = model._get_ids()
    if ids.kind != rows.ids.kind or len(ids) != len(rows):
        raise LedgerError(
            f"the model has {len(ids)} rows with {ids.kind} ids, but {len(rows)} rows with "
            f"{rows.ids.kind} ids were given; give the same X, y and ids as to fit"
        )
    if not np.array_equal(np.sort(ids.to_array()), np.sort(rows.ids.to_array())):
        raise LedgerError(
            "the ids of the rows differ from the ids of the model; give the same ids as to fit "
            "(see model.ids_)"
        )


def _require_fit(model: Any, rows: Rows) -> float:
    """Raise `LedgerError` unless a fresh fit on the rows gives the same exact model.

    Return the duration of the fresh fit in seconds.
    """
    fresh = fresh_fit(model, rows)
    if fresh.model.digest() != model.digest():
        raise LedgerError(
            "a fresh fit on these rows gives a different model, so certificates could not be "
            "verified; give the same X, y and ids as to fit, in the same order, and use the "
            "library versions that the model was trained with"
        )
    return fresh.seconds


def examine_files(
    files: ModelFiles,
    *,
    seed: int | None = None,
    seconds: float,
    stop: threading.Event | None = None,
) -> tuple[ExaminedModel, Rows, JudgementBasis | None]:
    """Read and examine a model and its rows in a sandboxed process.

    Without a model file, a new model is trained there.

    Parameters
    ----------
    files : ModelFiles
        The files.
    seed : int, optional
        Seed of a new model.
    seconds : float
        Time limit for reading and training.
    stop : Event, optional
        Setting it ends the process.

    Raises
    ------
    LetheonError, TableFileError
        The files are not valid; see `letheon.load` and `examine_model`.
    SandboxError
        The process exceeded its limits, or failed for another reason.
    """
    saved = files.model or b""
    size = len(saved) + len(files.rows[1]) + (len(files.test[1]) if files.test else 0)
    start = time.monotonic()
    answer = sandbox.call(
        _examine_files,
        (files, seed),
        limits=sandbox.Limits.for_input(size, seconds=seconds),
        modules=sandbox.modules_of(saved, files.trusted),
        stop=stop,
    )
    if "error" in answer:
        raise _make_error(answer["error"], answer["text"])
    content, test, trained = answer["content"], answer["test"], answer["retrain_seconds"]
    # The duration sets the time limit of later computations.
    elapsed = time.monotonic() - start
    model = state.decode(content, trusted=files.trusted, max_memory=memory_limit(len(content)))
    return (
        _describe_examined(
            model, content, None if trained is None else min(float(trained), elapsed)
        ),
        _decode_rows(answer["rows"]),
        None
        if test is None
        else JudgementBasis(None, _decode_rows(test["rows"]), float(test["then"])),
    )


def _decode_rows(data: bytes) -> Rows:
    """Decode the untrusted rows that a sandboxed process returned."""
    rows = state.decode(data, max_memory=memory_limit(len(data)))
    names = state.names_of(state.to_tree(rows))
    if type(rows) is not Rows or not all(name.startswith(_ROW_CLASSES) for name in names):
        raise LedgerError(
            "the sandboxed process returned data other than rows; the model cannot be registered"
        )
    return rows


def _make_error(name: str, text: str) -> Exception:
    """Return the error that the sandboxed process reported; a `LedgerError` for other types."""
    allowed = (TableFileError, MissingColumnError, NoTableReaderError, TypeError, ValueError)
    kind = {kind.__name__: kind for kind in allowed}.get(name) or getattr(errors, str(name), None)
    is_allowed = isinstance(kind, type) and issubclass(kind, (LetheonError, *allowed))
    return kind(text) if is_allowed and kind is not None else LedgerError(text)


def _examine_files(job: tuple[ModelFiles, int | None], _: Any) -> dict[str, Any]:
    """Examine the files; this is the part of `examine_files` that runs in the sandboxed process."""
    try:
        with warnings.catch_warnings():
            # The page of the model shows the limits of the guarantee that warnings would mention.
            warnings.simplefilter("ignore")
            return _examine_in_sandbox(*job)
    except (LetheonError, TableFileError) as error:
        return {"error": type(error).__name__, "text": str(error)[:2000]}


def _examine_in_sandbox(files: ModelFiles, seed: int | None) -> dict[str, Any]:
    columns = TableColumns(target=files.target, ids=files.ids, has_text_ids=True, is_table=True)
    if files.model is None:
        model, rows = _train_pipeline(files, columns, seed)
    else:
        model = _load_model(files)
        columns = columns._replace(
            has_text_ids=model.ids_.dtype.kind != "i",
            is_table=hasattr(model, "feature_names_in_"),
        )
        rows = _read_rows(model, files.rows, columns)
    examined = examine_model(model, rows, files.trusted)
    test = None
    if files.test is not None:
        judged = judge_model(model, _read_rows(model, files.test, columns, is_test=True))
        test = {"rows": state.encode(judged.test), "then": judged.then}
    return {
        "content": examined.content,
        "retrain_seconds": examined.retrain_seconds,
        "rows": state.encode(rows),
        "test": test,
    }


def _load_model(files: ModelFiles) -> Any:
    from letheon.persist import load

    assert files.model is not None
    model = load(io.BytesIO(files.model), trusted=files.trusted, max_memory=files.max_memory)
    require_kind(model)
    return model


def _read_rows(
    model: Any, file: tuple[str, bytes], columns: TableColumns, *, is_test: bool = False
) -> Rows:
    """Read the rows of a model, with the types of its columns: a CSV file has none."""
    name, content = file
    X, y, ids = read_table_file(Path(name), columns, content=content)
    stored = getattr(getattr(getattr(model, "fitted_", None), "rows", None), "X", None)
    if isinstance(stored, Frame) and columns.is_table and stored.schema.has_names:
        X = as_frame(X).as_types_of(stored).to_native()
    return copy_rows(X, y, make_test_ids(len(y)) if ids is None and is_test else ids)


def _train_pipeline(files: ModelFiles, columns: TableColumns, seed: int | None) -> tuple[Any, Rows]:
    """Return a model on the rows of a file, and the rows.

    The preprocessing depends on the types of the columns.
    """
    try:
        rows = _read_rows(None, files.rows, columns)
        X, y = rows.slice(0, len(rows))
        task = choose_task(files.method, y, files.settings)
        pipeline = make_table_pipeline(make_model(files.method, task, files.settings), X)
        return fresh_fit(pipeline, rows, seed=seed).model, rows
    except (LetheonError, TableFileError):
        raise
    except (TypeError, ValueError) as error:
        # The text of the error may quote values of rows.
        raise LedgerError(
            f"training on these rows failed ({type(error).__name__}). Expected: a target in every "
            "row and at least two classes; at least one other column; columns of texts, or of "
            "finite numbers, with integers of at most 2**53; settings that suit the rows, such as "
            "loss=poisson for a target without negative numbers"
        ) from error


def make_test_ids(count: int) -> list[str]:
    """Return random ids for test rows without ids."""
    return [f"test-row:{secrets.token_hex(8)}" for _ in range(count)]
