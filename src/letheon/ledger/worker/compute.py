"""What happens to the model itself: bytes in, bytes out; no database, no keys, no files.

It can run in a process of its own that has neither keys nor database, and whose memory, in which
an estimator may have left anything, ends with it.
"""

import math
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from letheon import sandbox, state
from letheon.data import Ids, Rows, as_ids
from letheon.exceptions import (
    BudgetSpentError,
    EmptyModelError,
    LetheonError,
    LetheonWarning,
)
from letheon.guarantee import Guarantee
from letheon.ledger.certificates.facts import (
    METRIC_CODES,
    JudgementBasis,
    TestFigures,
    collect_facts,
    method_parameters,
    test_metric,
)
from letheon.ledger.core import fault_point
from letheon.ledger.models.examine import fresh_fit
from letheon.ledger.models.table_files import memory_limit
from letheon.parallel import one_thread
from letheon.receipt import Receipt

# What a computation may take. Of a model from outside it is known how long it trains.
_GRACE_SECONDS = 4.0
_OWN_SECONDS = 7 * 86_400.0
_UNKNOWN_SECONDS, _LEAST_SECONDS, _TIMES = 600.0, 60.0, 20.0

TIME_LIMIT, MEMORY_LIMIT, FORGED = "time-limit", "memory-limit", "forged-answer"
BUDGET_SPENT = "budget-spent"
NO_MODEL = "no-model-on-the-rest"
NO_MATCHING_ROWS = "nobody-held"


class ComputationFailed(Exception):  # noqa: N818  (never leaves the ledger)
    """The method could not do it; disk and database are sound. Its text is a code."""


@dataclass(frozen=True)
class Computation:
    """What is to be computed: erase these people, by the method itself or by a retrain."""

    kind: Literal["erase", "retrain"]
    model: bytes
    rows: bytes
    ids: Any
    trusted: tuple[str, ...]
    judged: JudgementBasis | None
    training: dict[str, str]
    since_retrain: int
    retrain_seconds_per_row: float | None
    seed: int | None = None
    image: str | None = None
    settle: bool = True
    is_outside: bool = False
    n_rows: int = 0


@dataclass(frozen=True)
class ComputationResult:
    """What was computed; `kept` are the positions of the rows that stay."""

    model: bytes
    rows: Rows
    kept: NDArray[np.int64]
    judged: JudgementBasis | None
    seconds: float
    facts: dict[str, Any]
    figures: TestFigures | None = None


@dataclass
class _Work:
    """A model, its rows and its judge while they change."""

    model: Any
    rows: Rows
    judged: JudgementBasis | None
    receipt: Receipt | None = None
    reading: Any = None
    policy: str | None = None
    seconds: float = 0.0


def compute(job: Computation) -> ComputationResult:
    """Erase the people of a job from model, rows and test rows, here and now.

    Facts about a model from outside are left to the caller, who would not believe them.

    Raises
    ------
    ComputationFailed
        The method could not do it.
    """
    try:
        return _run_computation(job)
    except ComputationFailed:
        raise
    except Exception as error:
        raise ComputationFailed(failure_code(error)) from error


def failure_code(error: BaseException) -> str:
    """Return why a computation failed as a code: a text may hold ids, or values of rows."""
    if isinstance(error, BudgetSpentError):
        return BUDGET_SPENT
    if isinstance(error, MemoryError):
        return MEMORY_LIMIT
    if isinstance(error, EmptyModelError):
        # What an estimator raised on the remaining rows may be over at the next try.
        return NO_MODEL if error.__cause__ is None else failure_code(error.__cause__)
    return sandbox.error_code(error)


def _run_computation(job: Computation) -> ComputationResult:
    model = state.decode(job.model, trusted=job.trusted, max_memory=state.UNLIMITED)
    rows: Rows = state.decode(job.rows, max_memory=state.UNLIMITED)
    fault_point("compute.loaded")
    before = model.guarantee_
    wanted, kept = _split_rows(rows, job.ids)
    leaving = np.setdiff1d(np.arange(len(rows)), kept)
    if len(leaving) == 0 and (job.kind == "erase" or job.since_retrain == 0):
        raise ComputationFailed(NO_MATCHING_ROWS)
    work = _Work(model, rows.without(leaving), _drop_test_rows(job.judged, wanted))
    with warnings.catch_warnings():
        # What they say about the guarantee stands in the certificate.
        warnings.simplefilter("ignore", LetheonWarning)
        if job.kind == "retrain":
            _retrain_model(job, work)
        else:
            # A model that does not hold its rows is brought those of the people who leave.
            gone = rows.take(leaving)
            brought = (
                zip("Xy", gone.slice(0, len(gone)), strict=True) if _is_data_free(model) else ()
            )
            _erase_rows(job, work, wanted.to_array(), dict(brought))
    fault_point("compute.forgotten")
    figures = _test_figures(work.model, work.judged)
    return ComputationResult(
        model=state.encode(work.model),
        rows=work.rows,
        kept=kept,
        judged=work.judged,
        seconds=work.seconds,
        facts=_collect_facts(job, before, work, figures, len(leaving))
        if not job.is_outside
        else {},
        figures=figures,
    )


def _collect_facts(
    job: Computation, before: Guarantee, work: _Work, figures: TestFigures | None, removed: int
) -> dict[str, Any]:
    """Return what the certificate says about the model as it is now."""
    per_row = job.retrain_seconds_per_row
    return collect_facts(
        guarantee_before=before,
        after=work.model,
        receipt=work.receipt,
        rows=work.rows,
        kind=job.kind,
        seconds=work.seconds,
        retrain_seconds=None if per_row is None else per_row * len(work.rows),
        test=figures,
        reading=work.reading,
        policy_digest=work.policy,
        training=job.training,
        removed=removed,
        since_retrain=0 if job.kind == "retrain" else job.since_retrain + removed,
        image=job.image,
    )


def _split_rows(rows: Rows, ids: Any) -> tuple[Ids, NDArray[np.int64]]:
    """Return those of the people who are still there, and the positions of all other rows.

    Another batch may have taken some of the people.
    """
    wanted = as_ids(ids).distinct() if len(ids) else rows.ids.take(np.empty(0, np.int64))
    matches = rows.index.find(wanted)
    others = np.setdiff1d(np.arange(len(rows)), matches.positions)
    return wanted.take(np.flatnonzero(matches.has_rows)), others


def _drop_test_rows(judged: JudgementBasis | None, wanted: Any) -> JudgementBasis | None:
    """Take people out of the test rows; a monitor does it itself."""
    if judged is None or judged.test is None or wanted.kind != judged.test.ids.kind:
        return judged
    return judged._replace(test=judged.test.without(judged.test.find(wanted).positions))


def _settle_model(job: Computation, model: Any) -> None:
    """Take out of the state what the last removals left in it, where a method keeps such a thing.

    Whoever has file and rows could compute the row of a lone removal from it.
    """
    if job.settle and model.residual_state_ and not _is_data_free(model):
        getattr(model, "settle", lambda: None)()


def _is_data_free(model: Any) -> bool:
    return bool(model.get_params(deep=False).get("data_free", False))


def _erase_rows(job: Computation, work: _Work, ids: NDArray[Any], brought: dict[str, Any]) -> None:
    judged = work.judged
    start = time.perf_counter()
    if judged is None or judged.monitor is None:
        with one_thread():
            work.receipt = work.model.forget(ids, **brought)
            work.model._finish_pending()
            _settle_model(job, work.model)
        work.seconds = time.perf_counter() - start
        return
    from letheon.ledger.models.monitoring import (
        compute_policy_digest,
        forget_with_monitor,
        pack_monitor,
        unpack_monitor,
    )

    monitor = unpack_monitor(judged.monitor, work.model, trusted=job.trusted)
    with one_thread():
        work.receipt, work.reading = forget_with_monitor(monitor, ids)
    work.model, work.policy = monitor.model, compute_policy_digest(monitor)
    start = time.perf_counter()
    with one_thread():
        _settle_model(job, work.model)
    work.seconds = work.reading.seconds + time.perf_counter() - start
    work.judged = judged._replace(monitor=pack_monitor(monitor))


def _retrain_model(job: Computation, work: _Work) -> None:
    fitted = fresh_fit(work.model, work.rows, seed=job.seed)
    old, work.model, work.seconds = work.model, fitted.model, fitted.seconds
    judged = work.judged
    if judged is not None and judged.monitor is not None:
        from letheon.ledger.models.monitoring import (
            adopt_retrained,
            compute_policy_digest,
            pack_monitor,
            unpack_monitor,
        )

        monitor = unpack_monitor(judged.monitor, old, trusted=job.trusted)
        work.reading = adopt_retrained(monitor, work.model, work.rows, seconds=work.seconds)
        work.policy = compute_policy_digest(monitor)
        work.judged = judged._replace(monitor=pack_monitor(monitor))
    elif judged is not None and (figures := _test_figures(work.model, judged)) is not None:
        work.judged = judged._replace(then=figures.now)


def _test_figures(model: Any, judged: JudgementBasis | None) -> TestFigures | None:
    if judged is None or judged.test is None or len(judged.test) == 0:
        return None
    X, y = judged.test.slice(0, len(judged.test))
    return TestFigures(*test_metric(model, X, y), then=judged.then, n=len(judged.test))


def choose_compute(
    *, apart: bool, stop: threading.Event | None = None
) -> Callable[[Computation], ComputationResult]:
    """Return what computes a job: here, or in a process of its own.

    A model from outside is computed in a sandbox, whatever the caller prefers.
    """

    def choose(job: Computation) -> ComputationResult:
        return compute_apart(job, stop=stop) if apart or job.is_outside else compute(job)

    return choose


def compute_apart(job: Computation, *, stop: threading.Event | None = None) -> ComputationResult:
    """Compute in a process of its own; a failure there is raised here.

    What leaves, and what stays, is worked out here again: a model that took the process over
    cannot say which rows are left.
    """
    fault_point("compute.loaded")
    start = time.monotonic()
    try:
        answer = sandbox.call(
            _compute_in_process,
            job,
            limits=_sandbox_limits(job),
            is_restricted=job.is_outside,
            modules=sandbox.modules_of(job.model, job.trusted),
            stop=stop,
            grace=_GRACE_SECONDS,
        )
    except sandbox.TimeLimitError:
        raise ComputationFailed(TIME_LIMIT) from None
    except sandbox.EndedError as error:
        raise ComputationFailed(str(error)) from None
    if "failed" in answer:
        raise ComputationFailed(str(answer["failed"])[:60])
    fault_point("compute.forgotten")
    try:
        return _build_result(job, answer, time.monotonic() - start)
    except (LetheonError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ComputationFailed(FORGED) from error


def _sandbox_limits(job: Computation) -> sandbox.Limits:
    per_row, seconds = job.retrain_seconds_per_row, _OWN_SECONDS
    if job.is_outside:
        trained = None if per_row is None else _TIMES * per_row * job.n_rows
        seconds = _UNKNOWN_SECONDS if trained is None else max(_LEAST_SECONDS, trained)
    monitor = job.judged.monitor if job.judged is not None else None
    size = len(job.model) + len(job.rows) + len(monitor or b"")
    return sandbox.Limits.for_input(size, seconds=seconds)


def _compute_in_process(job: Computation, _: Any) -> dict[str, Any]:
    """Compute, and return plain values only: rows are left out, the caller has them."""
    try:
        product = compute(job)
    except ComputationFailed as failure:
        return {"failed": str(failure)}
    judged = product.judged
    return {
        "model": product.model,
        "monitor": None if judged is None else judged.monitor,
        "then": None if judged is None else float(judged.then),
        "seconds": product.seconds,
        "facts": product.facts,
        "figures": None if product.figures is None else list(product.figures[:2]),
    }


def _require_finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    return number


def _build_result(job: Computation, answer: dict[str, Any], elapsed: float) -> ComputationResult:
    """Return what was computed; the process may say anything, also about how long it took."""
    rows: Rows = state.decode(job.rows, max_memory=state.UNLIMITED)
    wanted, kept = _split_rows(rows, job.ids)
    judged = _drop_test_rows(job.judged, wanted)
    if judged is not None:
        judged = judged._replace(monitor=answer["monitor"], then=_require_finite(answer["then"]))
    product = ComputationResult(
        model=bytes(answer["model"]),
        rows=rows.take(kept),
        kept=kept,
        judged=judged,
        seconds=min(max(_require_finite(answer["seconds"]), 1e-9), elapsed),
        facts=dict(answer["facts"]),
    )
    if not job.is_outside:
        return product
    removed = len(rows) - len(kept)
    return replace(product, facts=_recompute_facts(job, product, answer["figures"], removed))


def _recompute_facts(
    job: Computation, product: ComputationResult, said: Any, removed: int
) -> dict[str, Any]:
    """Return the facts about a model that a sandboxed process sent, computed here.

    A process that was taken over must not be able to publish what no signer would sign: that
    would hold up the certificates of everybody.
    """
    before = state.decode(job.model, max_memory=memory_limit(len(job.model)))
    after = state.decode(product.model, max_memory=memory_limit(len(product.model)))
    name = before.facts.method
    if type(after) is not type(before) or method_parameters(after, name) != method_parameters(
        before, name
    ):
        raise ComputationFailed(FORGED)
    work = _Work(after, product.rows, product.judged, seconds=product.seconds)
    figures = None
    judged = product.judged
    if said is not None and judged is not None and judged.test is not None:
        metric, now = said
        if metric not in METRIC_CODES:
            raise ComputationFailed(FORGED)
        figures = TestFigures(metric, _require_finite(now), judged.then, len(judged.test))
    return _collect_facts(job, before.guarantee_, work, figures, removed)
