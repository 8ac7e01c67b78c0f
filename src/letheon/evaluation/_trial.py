"""One run over all requests: the unlearner and both baselines, timed in turns."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon import state
from letheon.evaluation._baselines import ORDINARY, SAME, fresh_copy
from letheon.evaluation._compare import compare, row_errors
from letheon.evaluation._contender import Contender
from letheon.evaluation._problem import Problem, Rows
from letheon.exceptions import LetheonError
from letheon.guarantee import Guarantee
from letheon.measures import Measure, gradient_residual_of

__all__ = ["Contest", "Trial", "run_trial"]


# Far from the seeds of the trials, which are consecutive.
_ANOTHER_SEED = 1_000_003


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one seed gave.

    Attributes
    ----------
    seed : int
        Seed of the unlearner and of the requests.
    fit_seconds : float
        Time of the first fit.
    forget_seconds : tuple of float
        Time of every request, everything that it left for later included.
    retrain_seconds : dict of str to tuple of float
        Times of the baselines' retrains, at the requests where they were made.
    work : tuple of float
        `Receipt.work` of every request.
    measures : dict of str to dict of str to Measure
        Measures against each baseline after the last request.
    row_errors : dict of str to dict of str to float
        Standard errors of measures against each baseline that come from the choice of test rows.
    floor : dict of str to Measure
        The same measures of one fresh fit against another one with other randomness: what an
        approximate method would have if it were a retrain. Empty for exact methods.
    scores : dict of str to float
        Metric on the test rows: of the unlearned model and of both baselines.
    storage : dict of str to int
        Bytes of each model's state; a model whose state cannot be written is left out.
    equal_digests : bool or None
        Whether the unlearned model has the bytes of a fresh fit; None for approximate methods.
    n_people, n_forgotten_rows, n_rows : int
        People and rows that left, and rows that are left.
    """

    seed: int
    fit_seconds: float
    forget_seconds: tuple[float, ...]
    retrain_seconds: dict[str, tuple[float, ...]]
    work: tuple[float, ...]
    measures: dict[str, dict[str, Measure]]
    row_errors: dict[str, dict[str, float]]
    floor: dict[str, Measure]
    scores: dict[str, float]
    storage: dict[str, int]
    equal_digests: bool | None
    n_people: int
    n_forgotten_rows: int
    n_rows: int
    guarantee: Guarantee = field(repr=False)


@dataclass(frozen=True)
class Contest:
    """What is the same in every trial."""

    problem: Problem
    unlearner: Any
    same: Contender
    ordinary: Contender
    stream: Callable[[Any, int], Iterable[NDArray[Any]]]
    n_requests: int
    comparisons: int
    with_intervals: bool


@dataclass
class _Clock:
    """Seconds that were spent, by what on."""

    forgets: list[float] = field(default_factory=list)
    retrains: dict[str, list[float]] = field(default_factory=lambda: {SAME: [], ORDINARY: []})


def run_trial(contest: Contest, seed: int, tick: Callable[[], None]) -> tuple[Trial, NDArray[Any]]:
    """Fit, serve every request, retrain both baselines at some of them; also return who left.

    Whether the unlearner or a baseline goes first alternates from one comparison to the next.
    """
    train = contest.problem.train
    model = fresh_copy(contest.unlearner, seed)
    fit_seconds = _seconds(lambda: model.fit(train.X, train.y, ids=train.ids))
    clock, gone = _Clock(), np.array([], dtype=train.ids.dtype)
    work: list[float] = []
    rivals: dict[str, Any] = {}
    where = _comparison_points(contest.n_requests, contest.comparisons)
    for number, ids in enumerate(contest.stream(model, seed)):
        gone = np.concatenate([gone, ids])
        left = train.without(gone) if number in where else None
        first_baselines = (number + seed) % 2 == 1
        if left is not None and first_baselines:
            rivals = _retrain(contest, left, clock)
        clock.forgets.append(_forget(model, ids, work))
        if left is not None and not first_baselines:
            rivals = _retrain(contest, left, clock)
        tick()
    return _judge(contest, seed, model, rivals, gone, fit_seconds, clock, work), gone


def _comparison_points(n_requests: int, comparisons: int) -> frozenset[int]:
    """Return evenly spaced requests after which the baselines are retrained; the last is one."""
    points = np.linspace(n_requests, 1, min(comparisons, n_requests)).round().astype(int) - 1
    return frozenset(points.tolist()) | {n_requests - 1}


def _forget(model: Any, ids: NDArray[Any], work: list[float]) -> float:
    """Serve a request to the end: what a lazy model puts off is counted too."""
    begin = time.perf_counter()
    receipt = model.forget(ids)
    # Only a lazy forest puts work off; elsewhere `settle` is another, optional, service.
    if receipt.method == "dare":
        model.settle()
    seconds = time.perf_counter() - begin
    work.append(receipt.work)
    return seconds


def _retrain(contest: Contest, left: Rows, clock: _Clock) -> dict[str, Any]:
    models = {}
    for name, contender in ((SAME, contest.same), (ORDINARY, contest.ordinary)):
        begin = time.perf_counter()
        models[name] = contender.fit(left)
        clock.retrains[name].append(time.perf_counter() - begin)
    return models


def _judge(
    contest: Contest,
    seed: int,
    model: Any,
    rivals: dict[str, Any],
    gone: NDArray[Any],
    fit_seconds: float,
    clock: _Clock,
    work: list[float],
) -> Trial:
    problem, train = contest.problem, contest.problem.train
    left, forgotten = train.without(gone), train.of(gone)
    # A forgotten person also leaves the rows that we measure on.
    test = problem.test.without(gone)
    fresh = _fresh(contest, left, getattr(model, "seed_", seed))
    rivals = {**rivals, SAME: fresh}
    models = {"unlearned": model, **rivals}
    measures = {
        name: compare(problem, model, rival, test, forgotten, contest.with_intervals)
        for name, rival in rivals.items()
    }
    measures[SAME] |= _residual(model)
    floor = {}
    if not _is_exact(model):
        another = _fresh(contest, left, seed + _ANOTHER_SEED)
        floor = compare(problem, another, fresh, test, forgotten, contest.with_intervals)
    return Trial(
        seed=seed,
        fit_seconds=fit_seconds,
        forget_seconds=tuple(clock.forgets),
        retrain_seconds={name: tuple(times) for name, times in clock.retrains.items()},
        work=tuple(work),
        measures=measures,
        row_errors={
            name: row_errors(problem, model, rival, test) for name, rival in rivals.items()
        },
        floor=floor,
        scores={name: problem.score(each, test) for name, each in models.items()},
        storage={name: size for name, each in models.items() if (size := _bytes(each)) is not None},
        equal_digests=model.digest() == fresh.digest() if _is_exact(model) else None,
        n_people=len(gone),
        n_forgotten_rows=len(forgotten),
        n_rows=len(left),
        guarantee=model.guarantee_,
    )


def _fresh(contest: Contest, left: Rows, seed: int) -> Any:
    return fresh_copy(contest.unlearner, seed).fit(left.X, left.y, ids=left.ids)


def _residual(model: Any) -> dict[str, Measure]:
    """Return the gradient that is left, of models that can tell."""
    found = gradient_residual_of(model)
    return {} if found is None else {found.name: found}


def _is_exact(model: Any) -> bool:
    return bool(model.guarantee_.kind == "exact")


def _bytes(model: Any) -> int | None:
    """Return the size of a model's state; None where no canonical state is known."""
    try:
        return len(state.encode(model))
    except (LetheonError, TypeError, ValueError):
        return None


def _seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
