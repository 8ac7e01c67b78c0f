"""What happens to the model itself: bytes in, bytes out; no database, no keys, no files.

It can run in a process of its own that has neither keys nor database, and whose memory, in which
an estimator may have left anything, ends with it.
"""

import contextlib
import multiprocessing
import re
import resource
import signal
import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from letheon import state
from letheon.exceptions import (
    BudgetSpentError,
    EmptyModelError,
    LetheonWarning,
)
from letheon.ledger._facts import TestFigures, facts_of, test_metric
from letheon.ledger._faults import point
from letheon.ledger._training import fresh_fit
from letheon.ledger._versions import Judged
from letheon.parallel import one_thread
from letheon.receipt import Receipt
from letheon.rows import Ids, Rows, as_ids

__all__ = [
    "BUDGET_SPENT",
    "NOBODY_HELD",
    "NO_MODEL",
    "ComputationFailed",
    "Job",
    "Product",
    "code_of",
    "compute",
    "compute_apart",
]


BUDGET_SPENT = "budget-spent"
NO_MODEL = "no-model-on-the-rest"
NOBODY_HELD = "nobody-held"


class ComputationFailed(Exception):  # noqa: N818  (never leaves the ledger)
    """The method could not do it; disk and database are sound. Its text is a code."""


@dataclass(frozen=True)
class Job:
    """What is to be computed: erase these people, by the method itself or by a retrain."""

    kind: Literal["erase", "retrain"]
    model: bytes
    rows: bytes
    ids: Any
    trusted: tuple[str, ...]
    judged: Judged | None
    training: dict[str, str]
    since_retrain: int
    retrain_seconds_per_row: float | None
    seed: int | None = None
    image: str | None = None
    settle: bool = True


@dataclass(frozen=True)
class Product:
    """What was computed; `kept` are the positions of the rows that stay."""

    model: bytes
    rows: Rows
    kept: NDArray[np.int64]
    judged: Judged | None
    seconds: float
    facts: dict[str, Any]
    retrain_seconds: float | None = None


@dataclass
class _Work:
    """A model, its rows and its judge while they change."""

    model: Any
    rows: Rows
    judged: Judged | None
    receipt: Receipt | None = None
    reading: Any = None
    policy: str | None = None
    seconds: float = 0.0


def compute(job: Job) -> Product:
    """Erase the people of a job from model, rows and test rows, here and now.

    Raises
    ------
    ComputationFailed
        The method could not do it.
    """
    try:
        return _compute(job)
    except ComputationFailed:
        raise
    except Exception as error:
        raise ComputationFailed(code_of(error)) from error


def code_of(error: BaseException) -> str:
    """Return why a computation failed as a code: a text may hold ids, or values of rows."""
    if isinstance(error, BudgetSpentError):
        return BUDGET_SPENT
    if isinstance(error, EmptyModelError):
        # What an estimator raised on the remaining rows may be over at the next try.
        return NO_MODEL if error.__cause__ is None else code_of(error.__cause__)
    name = type(error).__name__
    spaced = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)
    return re.sub("[^a-z0-9-]", "", spaced).strip("-")[:60] or "error"


def _compute(job: Job) -> Product:
    model = state.decode(job.model, trusted=job.trusted, max_memory=state.UNLIMITED)
    rows: Rows = state.decode(job.rows, max_memory=state.UNLIMITED)
    point("compute.loaded")
    before = model.guarantee_
    wanted = _held(rows, job.ids)
    leaving = np.sort(rows.find(wanted).positions)
    if len(leaving) == 0 and (job.kind == "erase" or job.since_retrain == 0):
        raise ComputationFailed(NOBODY_HELD)
    kept = np.setdiff1d(np.arange(len(rows)), leaving)
    work = _Work(model, rows.without(leaving), _without(job.judged, wanted))
    with warnings.catch_warnings():
        # What they say about the guarantee stands in the certificate.
        warnings.simplefilter("ignore", LetheonWarning)
        if job.kind == "retrain":
            _retrain(job, work)
        else:
            _erase(job, work, wanted.to_array(), _brought(model, rows, leaving))
    point("compute.forgotten")
    per_row = job.retrain_seconds_per_row
    facts = facts_of(
        guarantee_before=before,
        after=work.model,
        receipt=work.receipt,
        rows=work.rows,
        kind=job.kind,
        seconds=work.seconds,
        retrain_seconds=None if per_row is None else per_row * len(work.rows),
        test=_figures(work),
        reading=work.reading,
        policy_digest=work.policy,
        training=job.training,
        removed=len(leaving),
        since_retrain=0 if job.kind == "retrain" else job.since_retrain + len(leaving),
        image=job.image,
    )
    return Product(
        model=state.encode(work.model),
        rows=work.rows,
        kept=kept,
        judged=work.judged,
        seconds=work.seconds,
        facts=facts,
        retrain_seconds=work.seconds if job.kind == "retrain" else None,
    )


def _held(rows: Rows, ids: Any) -> Ids:
    """Return those of the people who are still there: another batch may have taken some."""
    if len(ids) == 0:
        return rows.ids.take(np.empty(0, np.int64))
    wanted = as_ids(ids).distinct()
    gone = set(rows.find(wanted).missing.to_list())
    stay = [place for place, person in enumerate(wanted.to_list()) if person not in gone]
    return wanted.take(np.asarray(stay, np.int64))


def _without(judged: Judged | None, wanted: Any) -> Judged | None:
    """Take people out of the test rows; a monitor does it itself."""
    if judged is None or judged.test is None or wanted.kind != judged.test.ids.kind:
        return judged
    return judged._replace(test=judged.test.without(judged.test.find(wanted).positions))


def _settle(job: Job, model: Any) -> None:
    """Take out of the state what the last removals left in it, where a method keeps such a thing.

    Whoever has file and rows could compute the row of a lone removal from it.
    """
    if job.settle and model.residual_state_ and not _is_data_free(model):
        settle = getattr(model, "settle", None)
        if settle is not None:
            settle()


def _is_data_free(model: Any) -> bool:
    return bool(model.get_params(deep=False).get("data_free", False))


def _brought(model: Any, rows: Rows, leaving: NDArray[np.int64]) -> dict[str, Any]:
    """Return the rows of those who leave, for a model that does not hold its rows."""
    if not _is_data_free(model):
        return {}
    gone = rows.take(leaving)
    X, y = gone.part(0, len(gone))
    return {"X": X, "y": y}


def _erase(job: Job, work: _Work, ids: NDArray[Any], brought: dict[str, Any]) -> None:
    judged = work.judged
    start = time.perf_counter()
    if judged is None or judged.monitor is None:
        with one_thread():
            work.receipt = work.model.forget(ids, **brought)
            work.model._finish()
            _settle(job, work.model)
        work.seconds = time.perf_counter() - start
        return
    from letheon.ledger._monitoring import forget_watched, pack, policy_digest, unpack

    monitor = unpack(judged.monitor, work.model, trusted=job.trusted)
    with one_thread():
        work.receipt, work.reading = forget_watched(monitor, ids)
    work.model, work.policy = monitor.model, policy_digest(monitor)
    start = time.perf_counter()
    with one_thread():
        _settle(job, work.model)
    work.seconds = work.reading.seconds + time.perf_counter() - start
    work.judged = judged._replace(monitor=pack(monitor))


def _retrain(job: Job, work: _Work) -> None:
    fitted = fresh_fit(work.model, work.rows, seed=job.seed)
    old, work.model, work.seconds = work.model, fitted.model, fitted.seconds
    judged = work.judged
    if judged is not None and judged.monitor is not None:
        from letheon.ledger._monitoring import after_retrain, pack, policy_digest, unpack

        monitor = unpack(judged.monitor, old, trusted=job.trusted)
        work.reading = after_retrain(monitor, work.model, work.rows, seconds=work.seconds)
        work.policy = policy_digest(monitor)
        work.judged = judged._replace(monitor=pack(monitor))
    elif judged is not None and judged.test is not None and len(judged.test) > 0:
        X, y = judged.test.part(0, len(judged.test))
        work.judged = judged._replace(then=test_metric(work.model, X, y)[1])


def _figures(work: _Work) -> TestFigures | None:
    judged = work.judged
    if judged is None or judged.test is None or len(judged.test) == 0:
        return None
    X, y = judged.test.part(0, len(judged.test))
    code, now = test_metric(work.model, X, y)
    return TestFigures(metric=code, now=now, then=judged.then, n=len(judged.test))


def compute_apart(job: Job) -> Product:
    """Compute in a process of its own; a failure there is raised here."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, job), name="letheon-compute")
    try:
        child.start()
        theirs.close()
        outcome = ours.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # Killed, perhaps for want of memory.
        raise ComputationFailed("process-ended") from None
    finally:
        ours.close()
        if child.pid is not None:
            child.join()
    if isinstance(outcome, str):
        raise ComputationFailed(outcome)
    product: Product = outcome
    return product


def _child(answer: Connection, job: Job) -> None:
    # Its memory holds erased rows: no core dump, and no life after its parent's.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _die_with_parent()
    # A signal to the whole group asks the worker to stop after this step, not in it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        outcome: Product | str = compute(job)
    except ComputationFailed as failure:
        outcome = str(failure)
    with contextlib.suppress(BrokenPipeError):
        answer.send(outcome)
    answer.close()


def _die_with_parent() -> None:
    """Ask the kernel for a kill when the worker ends; elsewhere than on Linux nothing happens."""
    import ctypes

    set_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
