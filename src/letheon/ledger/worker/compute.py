"""The computation that erases ids from a model, without access to database, keys or files.

Inputs and results are bytes, so the computation can run in a separate process. Data that an
estimator leaves in memory is lost when that process ends.
"""

import math
import secrets
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
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
from letheon.ledger.certificates.predictors import describe_predictor
from letheon.ledger.core import NONCE_BYTES, fault_point
from letheon.ledger.models.examine import fresh_fit
from letheon.ledger.models.table_files import memory_limit
from letheon.parallel import one_thread
from letheon.receipt import Receipt

# Time limits of a computation, in seconds; those of uploaded models depend on training time.
_GRACE_SECONDS = 4.0
_OWN_SECONDS = 7 * 86_400.0
_UNKNOWN_SECONDS, _LEAST_SECONDS, _TIMES = 600.0, 60.0, 20.0

TIME_LIMIT, MEMORY_LIMIT, FORGED = "time-limit", "memory-limit", "forged-answer"
BUDGET_SPENT = "budget-spent"
NO_MODEL = "no-model-on-the-rest"
NO_MATCHING_ROWS = "nobody-held"


class ComputationFailed(Exception):  # noqa: N818  (never leaves the ledger)
    """The unlearning method failed, while disk and database work. The text is a code."""


@dataclass(frozen=True)
class Computation:
    """Inputs of a computation that erases ids, with the unlearning method or by retraining."""

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
    # The first bytes of the new model's blob; the digest of its predictor depends on them.
    nonce: bytes = field(default_factory=partial(secrets.token_bytes, NONCE_BYTES))


@dataclass(frozen=True)
class ComputationResult:
    """Result of a computation; `kept` contains the positions of the remaining rows."""

    model: bytes
    rows: Rows
    kept: NDArray[np.int64]
    judged: JudgementBasis | None
    seconds: float
    facts: dict[str, Any]
    figures: TestFigures | None = None
    predictor: dict[str, str] | None = None


@dataclass
class _Work:
    """A model, its rows and its test data, which change during a computation."""

    model: Any
    rows: Rows
    judged: JudgementBasis | None
    receipt: Receipt | None = None
    reading: Any = None
    policy: str | None = None
    seconds: float = 0.0


def compute(inputs: Computation) -> ComputationResult:
    """Erase ids from the model, the rows and the test rows, in this process.

    For an uploaded model, `facts` stays empty: the caller computes the facts, because it does not
    trust this process.

    Raises
    ------
    ComputationFailed
        The unlearning method failed; the text is a code.
    """
    try:
        return _run_computation(inputs)
    except ComputationFailed:
        raise
    except Exception as error:
        raise ComputationFailed(failure_code(error)) from error


def failure_code(error: BaseException) -> str:
    """Return a code for an error, because the text of the error may contain ids or row values."""
    if isinstance(error, BudgetSpentError):
        return BUDGET_SPENT
    if isinstance(error, MemoryError):
        return MEMORY_LIMIT
    if isinstance(error, EmptyModelError):
        # An error of the estimator on the remaining rows may not occur at the next attempt.
        return NO_MODEL if error.__cause__ is None else failure_code(error.__cause__)
    return sandbox.error_code(error)


def _run_computation(inputs: Computation) -> ComputationResult:
    model = state.decode(inputs.model, trusted=inputs.trusted, max_memory=state.UNLIMITED)
    rows: Rows = state.decode(inputs.rows, max_memory=state.UNLIMITED)
    fault_point("compute.loaded")
    before = model.guarantee_
    present, kept = _split_rows(rows, inputs.ids)
    erased = np.setdiff1d(np.arange(len(rows)), kept)
    if len(erased) == 0 and (inputs.kind == "erase" or inputs.since_retrain == 0):
        raise ComputationFailed(NO_MATCHING_ROWS)
    work = _Work(model, rows.without(erased), _drop_test_rows(inputs.judged, present))
    with warnings.catch_warnings():
        # The certificate contains what these warnings report.
        warnings.simplefilter("ignore", LetheonWarning)
        if inputs.kind == "retrain":
            _retrain_model(inputs, work)
        else:
            # A model without stored rows needs the rows to erase.
            taken = rows.take(erased)
            extra = (
                zip("Xy", taken.slice(0, len(taken)), strict=True) if _is_data_free(model) else ()
            )
            _erase_rows(inputs, work, present.to_array(), dict(extra))
    fault_point("compute.forgotten")
    figures = _test_figures(work.model, work.judged)
    predictor = describe_predictor(work.model, inputs.nonce)
    return ComputationResult(
        model=state.encode(work.model),
        rows=work.rows,
        kept=kept,
        judged=work.judged,
        seconds=work.seconds,
        facts={}
        if inputs.is_outside
        else _collect_facts(inputs, before, work, figures, len(erased), predictor),
        figures=figures,
        predictor=predictor,
    )


def _collect_facts(
    inputs: Computation,
    before: Guarantee,
    work: _Work,
    figures: TestFigures | None,
    removed: int,
    predictor: dict[str, str] | None,
) -> dict[str, Any]:
    """Return the facts about the changed model that its certificate states."""
    per_row = inputs.retrain_seconds_per_row
    return collect_facts(
        guarantee_before=before,
        after=work.model,
        receipt=work.receipt,
        rows=work.rows,
        kind=inputs.kind,
        seconds=work.seconds,
        retrain_seconds=None if per_row is None else per_row * len(work.rows),
        test=figures,
        reading=work.reading,
        policy_digest=work.policy,
        training=inputs.training,
        removed=removed,
        since_retrain=0 if inputs.kind == "retrain" else inputs.since_retrain + removed,
        image=inputs.image,
        predictor=predictor,
    )


def _split_rows(rows: Rows, ids: Any) -> tuple[Ids, NDArray[np.int64]]:
    """Return the ids that are still in the rows, and the positions of all other rows.

    Some of the ids may be missing, because another batch may have erased them.
    """
    requested = as_ids(ids).distinct() if len(ids) else rows.ids.take(np.empty(0, np.int64))
    matches = rows.index.find(requested)
    others = np.setdiff1d(np.arange(len(rows)), matches.positions)
    return requested.take(np.flatnonzero(matches.has_rows)), others


def _drop_test_rows(judged: JudgementBasis | None, ids: Any) -> JudgementBasis | None:
    """Return the test data without the rows of these ids; a monitor removes them itself."""
    if judged is None or judged.test is None or ids.kind != judged.test.ids.kind:
        return judged
    return judged._replace(test=judged.test.without(judged.test.find(ids).positions))


def _settle_model(inputs: Computation, model: Any) -> None:
    """Remove traces of the last removals from the state of a model, if the method leaves any.

    With the saved model and the remaining rows, a removed row could be computed from these traces.
    """
    if inputs.settle and model.residual_state_ and not _is_data_free(model):
        getattr(model, "settle", lambda: None)()


def _is_data_free(model: Any) -> bool:
    return bool(model.get_params(deep=False).get("data_free", False))


def _erase_rows(inputs: Computation, work: _Work, ids: NDArray[Any], extra: dict[str, Any]) -> None:
    judged = work.judged
    start = time.perf_counter()
    if judged is None or judged.monitor is None:
        with one_thread():
            work.receipt = work.model.forget(ids, **extra)
            work.model._finish_pending()
            _settle_model(inputs, work.model)
        work.seconds = time.perf_counter() - start
        return
    from letheon.ledger.models.monitoring import (
        compute_policy_digest,
        forget_with_monitor,
        pack_monitor,
        unpack_monitor,
    )

    monitor = unpack_monitor(judged.monitor, work.model, trusted=inputs.trusted)
    with one_thread():
        work.receipt, work.reading = forget_with_monitor(monitor, ids)
    work.model, work.policy = monitor.model, compute_policy_digest(monitor)
    start = time.perf_counter()
    with one_thread():
        _settle_model(inputs, work.model)
    work.seconds = work.reading.seconds + time.perf_counter() - start
    work.judged = judged._replace(monitor=pack_monitor(monitor))


def _retrain_model(inputs: Computation, work: _Work) -> None:
    fitted = fresh_fit(work.model, work.rows, seed=inputs.seed)
    old, work.model, work.seconds = work.model, fitted.model, fitted.seconds
    judged = work.judged
    if judged is not None and judged.monitor is not None:
        from letheon.ledger.models.monitoring import (
            adopt_retrained,
            compute_policy_digest,
            pack_monitor,
            unpack_monitor,
        )

        monitor = unpack_monitor(judged.monitor, old, trusted=inputs.trusted)
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
    """Return a function that runs a computation in this process, or in a separate process.

    Computations on an uploaded model always run in a sandbox.
    """

    def run(inputs: Computation) -> ComputationResult:
        return compute_apart(inputs, stop=stop) if apart or inputs.is_outside else compute(inputs)

    return run


def compute_apart(inputs: Computation, *, stop: threading.Event | None = None) -> ComputationResult:
    """Run a computation in a separate process; raise `ComputationFailed` if it fails there.

    This process determines the remaining rows again, so that a malicious model that takes over the
    separate process cannot choose them.
    """
    fault_point("compute.loaded")
    start = time.monotonic()
    try:
        answer = sandbox.call(
            _compute_in_process,
            inputs,
            limits=_sandbox_limits(inputs),
            is_restricted=inputs.is_outside,
            modules=sandbox.modules_of(inputs.model, inputs.trusted),
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
        return _build_result(inputs, answer, time.monotonic() - start)
    except (LetheonError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ComputationFailed(FORGED) from error


def find_sampled_requests(
    model: bytes, ids: list[Any], *, trusted: tuple[str, ...], is_outside: bool
) -> list[bool]:
    """Return for each request, given its ids, whether a person is in a sample of the model.

    It is computed in a separate process. If that fails, every request counts as sampled.
    """
    try:
        answer = sandbox.call(
            _find_sampled_in_process,
            (model, ids, trusted),
            limits=sandbox.Limits.for_input(len(model), seconds=_UNKNOWN_SECONDS),
            is_restricted=is_outside,
            modules=sandbox.modules_of(model, trusted),
        )
    except sandbox.SandboxError:
        return [True] * len(ids)
    is_valid = isinstance(answer, list) and len(answer) == len(ids)
    return [bool(value) for value in answer] if is_valid else [True] * len(ids)


def _find_sampled_in_process(order: tuple[bytes, list[Any], tuple[str, ...]], _: Any) -> list[bool]:
    content, ids, trusted = order
    model = state.decode(content, trusted=trusted, max_memory=state.UNLIMITED)
    samples = [model._find_sampled(as_ids(people)) for people in ids]
    return [sample is None or bool(sample.any()) for sample in samples]


def _sandbox_limits(inputs: Computation) -> sandbox.Limits:
    per_row, seconds = inputs.retrain_seconds_per_row, _OWN_SECONDS
    if inputs.is_outside:
        trained = None if per_row is None else _TIMES * per_row * inputs.n_rows
        seconds = _UNKNOWN_SECONDS if trained is None else max(_LEAST_SECONDS, trained)
    monitor = inputs.judged.monitor if inputs.judged is not None else None
    size = len(inputs.model) + len(inputs.rows) + len(monitor or b"")
    return sandbox.Limits.for_input(size, seconds=seconds)


def _compute_in_process(inputs: Computation, _: Any) -> dict[str, Any]:
    """Run a computation and return a dictionary of plain values, without the rows."""
    try:
        result = compute(inputs)
    except ComputationFailed as failure:
        return {"failed": str(failure)}
    judged = result.judged
    return {
        "model": result.model,
        "monitor": None if judged is None else judged.monitor,
        "then": None if judged is None else float(judged.then),
        "seconds": result.seconds,
        "facts": result.facts,
        "figures": None if result.figures is None else list(result.figures[:2]),
        "predictor": result.predictor,
    }


def _require_finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    return number


def _build_result(inputs: Computation, answer: dict[str, Any], elapsed: float) -> ComputationResult:
    """Build the result from the answer of a separate process, which is not trusted.

    The remaining rows are determined again, and the duration is at most `elapsed` seconds.
    """
    rows: Rows = state.decode(inputs.rows, max_memory=state.UNLIMITED)
    present, kept = _split_rows(rows, inputs.ids)
    judged = _drop_test_rows(inputs.judged, present)
    if judged is not None:
        judged = judged._replace(monitor=answer["monitor"], then=_require_finite(answer["then"]))
    result = ComputationResult(
        model=bytes(answer["model"]),
        rows=rows.take(kept),
        kept=kept,
        judged=judged,
        seconds=min(max(_require_finite(answer["seconds"]), 1e-9), elapsed),
        facts=dict(answer["facts"]),
        predictor=dict(answer["predictor"]),
    )
    if not inputs.is_outside:
        return result
    removed = len(rows) - len(kept)
    return replace(result, facts=_recompute_facts(inputs, result, answer["figures"], removed))


def _recompute_facts(
    inputs: Computation, result: ComputationResult, sent: Any, removed: int
) -> dict[str, Any]:
    """Compute the facts about a model that a sandboxed process returned.

    A compromised process must not choose the facts: the signer would reject invalid facts, and this
    would block all later certificates.
    """
    before = state.decode(inputs.model, max_memory=memory_limit(len(inputs.model)))
    after = state.decode(result.model, max_memory=memory_limit(len(result.model)))
    name = before.facts.method
    if type(after) is not type(before) or method_parameters(after, name) != method_parameters(
        before, name
    ):
        raise ComputationFailed(FORGED)
    work = _Work(after, result.rows, result.judged, seconds=result.seconds)
    figures = None
    judged = result.judged
    if sent is not None and judged is not None and judged.test is not None:
        metric, now = sent
        if metric not in METRIC_CODES:
            raise ComputationFailed(FORGED)
        figures = TestFigures(metric, _require_finite(now), judged.then, len(judged.test))
    # The predictor is not computed here, because a hostile model could attack this process. The
    # audit compares it.
    return _collect_facts(inputs, before.guarantee_, work, figures, removed, result.predictor)
