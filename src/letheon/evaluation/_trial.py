"""One run over all requests: the unlearner and both baselines, timed in turns."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon import state
from letheon.evaluation._baselines import ORDINARY, SAME, Contender
from letheon.evaluation._clock import RequestClock, Timing
from letheon.evaluation._problem import Metric, Problem, RequestPlan, Rows, accuracy
from letheon.exceptions import LetheonError
from letheon.guarantee import Guarantee
from letheon.inner import fresh_copy
from letheon.measures import (
    Measure,
    certifiability,
    certifiability_from_predictions,
    effectiveness,
    effectiveness_from_values,
    gradient_residual_of,
    kl_consistency,
    make_measure,
    output_consistency,
    parameter_consistency,
    prediction_gap,
)

# A tree gives probability 0 to what it has not seen; the exact divergence is then infinite.
KL_FLOOR = 1e-6
# Metrics of scikit-learn take a millisecond each.
_RESAMPLES = 400
# For a standard error alone.
_FEW_RESAMPLES = 60


@dataclass(frozen=True)
class Exam:
    """The rows on which models are compared.

    Intervals over rows cost a bootstrap; an average over seeds does not need them.
    """

    problem: Problem
    test: Rows
    forgotten: Rows
    with_intervals: bool

    def agrees_in_numbers(self, model: Any, rival: Any) -> bool:
        """Return whether two regressions give the very same numbers: no row tells them apart."""
        return self.problem.is_regression and np.array_equal(
            model.predict(self.test.X), rival.predict(self.test.X)
        )


def compare(exam: Exam, model: Any, rival: Any) -> dict[str, Measure]:
    """Return every measure that these two models allow, by name."""
    on_test = [_effectiveness(exam, model, rival), _score_lost(exam, model, rival)]
    found = [*on_test, *_consistency(exam, model, rival)]
    if exam.agrees_in_numbers(model, rival):
        found = [replace(each, low=each.value, high=each.value) for each in found]
    found.append(_certifiability(exam, model, rival))
    return {measure.name: measure for measure in found}


def _effectiveness(exam: Exam, model: Any, rival: Any) -> Measure:
    problem, test = exam.problem, exam.test
    if exam.with_intervals:
        ours, theirs = model.predict(test.X), rival.predict(test.X)
        return effectiveness(problem.metric, test.y, ours, theirs, n_resamples=_RESAMPLES)
    return effectiveness_from_values(
        problem.score(model, test), problem.score(rival, test), n=len(test)
    )


def _score_lost(exam: Exam, model: Any, rival: Any) -> Measure:
    """Return M(rival) - M(model): the price, negative where the unlearned model is the better."""
    lost = exam.problem.score(rival, exam.test) - exam.problem.score(model, exam.test)
    note = "signed: metric of the baseline minus that of the unlearned model"
    return make_measure("score lost", lost, None, len(exam.test), better="lower", note=note)


def row_errors(exam: Exam, model: Any, rival: Any) -> dict[str, float]:
    """Return the standard errors that the choice of rows gives to measures on them.

    Runs of several seeds share their test rows, and so this error. For two accuracies it is that
    of Agresti and Min (2005), with one row more of each kind: models that agree on all rows may
    still differ on others. SAPE and the root of a mean square have theirs by the delta method.
    """
    problem, test, forgotten = exam.problem, exam.test, exam.forgotten
    ours, theirs = np.asarray(model.predict(test.X)), np.asarray(rival.predict(test.X))
    lost = _error_of_loss(problem.metric, test.y, ours, theirs)
    found = {"effectiveness": lost, "score lost": lost}
    if problem.is_regression:
        found["prediction gap"] = _error_of_root_mean(ours, theirs)
    else:
        n = len(test) + 4
        share = (float(np.sum(ours == theirs)) + 2) / n
        found["output consistency"] = 100 * float(np.sqrt(share * (1 - share) / n))
    pair = np.asarray(model.predict(forgotten.X)), np.asarray(rival.predict(forgotten.X))
    metric = problem.forgotten_metric
    size = sum(abs(float(metric(forgotten.y, each))) for each in pair)
    error = _error_of_loss(metric, forgotten.y, *pair)
    found["certifiability"] = 100 * error / (size or 1.0)
    return found


def _error_of_loss(
    metric: Metric, truth: NDArray[Any], ours: NDArray[Any], theirs: NDArray[Any]
) -> float:
    """Return the standard error of the difference of two scores on the same rows."""
    if metric is accuracy:
        return _error_of_accuracy(truth, ours, theirs)
    n = len(truth)
    drawn = np.random.default_rng(0).integers(n, size=(_FEW_RESAMPLES, n))
    gaps = np.array([_gap(metric, truth[rows], ours[rows], theirs[rows]) for rows in drawn])
    gaps = gaps[np.isfinite(gaps)]
    error = float(gaps.std()) if len(gaps) > 1 else 0.0
    # Labels that agree on these rows need not agree on others; equal numbers do.
    is_label = ours.dtype.kind != "f"
    return _error_of_accuracy(truth, ours, theirs) if error == 0 and is_label else error


def _error_of_accuracy(truth: NDArray[Any], ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    n = len(truth)
    gaps = (theirs == truth).astype(float) - (ours == truth)
    variance = (float(gaps @ gaps) + 2) / (n + 2) - float(gaps.mean()) ** 2
    return float(np.sqrt(max(variance, 0.0) / n))


def _error_of_root_mean(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    squares = np.square(ours - theirs)
    root = float(np.sqrt(squares.mean()))
    return float(squares.std()) / (2 * root * np.sqrt(len(squares))) if root > 0 else 0.0


def _gap(metric: Metric, truth: NDArray[Any], ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return the score lost on some rows; NaN where the metric is not defined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return float(metric(truth, theirs)) - float(metric(truth, ours))
        except ValueError:
            return float("nan")


def _certifiability(exam: Exam, model: Any, rival: Any) -> Measure:
    problem, forgotten = exam.problem, exam.forgotten
    if exam.with_intervals:
        ours, theirs = model.predict(forgotten.X), rival.predict(forgotten.X)
        metric = problem.forgotten_metric
        return certifiability_from_predictions(
            metric, forgotten.y, ours, theirs, n_resamples=_RESAMPLES
        )
    return certifiability(
        problem.score_on_forgotten(model, forgotten),
        problem.score_on_forgotten(rival, forgotten),
        n=len(forgotten),
    )


def _consistency(exam: Exam, model: Any, rival: Any) -> list[Measure]:
    X = exam.test.X
    ours, theirs = np.asarray(model.predict(X)), np.asarray(rival.predict(X))
    if exam.problem.is_regression:
        found = [prediction_gap(ours, theirs)]
    else:
        found = [output_consistency(ours, theirs)]
        if hasattr(model, "predict_proba") and hasattr(rival, "predict_proba"):
            found.append(_divergence(exam, model, rival))
    if type(model) is type(rival) and hasattr(model, "coef_"):
        pair = _parameters(model), _parameters(rival)
        # A class that only one of them has lost changes the number of parameters.
        if [part.shape for part in pair[0]] == [part.shape for part in pair[1]]:
            found.append(parameter_consistency(*pair))
    return found


def _divergence(exam: Exam, model: Any, rival: Any) -> Measure:
    found = kl_consistency(
        model.predict_proba(exam.test.X),
        rival.predict_proba(exam.test.X),
        classes_unlearned=model.classes_,
        classes_naive=rival.classes_,
        floor=KL_FLOOR,
        n_resamples=_RESAMPLES if exam.with_intervals else 1,
    )
    return found if exam.with_intervals else replace(found, low=None, high=None)


def _parameters(model: Any) -> list[NDArray[Any]]:
    return [np.asarray(model.coef_), np.atleast_1d(np.asarray(model.intercept_))]


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
        Time of every request, with what it left for the first answer, for the first digest, or
        for threads and processes.
    retrain_seconds : dict of str to tuple of float
        Times of the baselines' retrains, at the requests where they were made.
    work : tuple of float
        `Receipt.work` of every request, a share of a retrain on the rows that are left then.
    rows_left : tuple of int
        Rows left after every request.
    measures : dict of str to dict of str to Measure
        Measures against each baseline after the last request.
    row_errors : dict of str to dict of str to float
        Standard errors of measures against each baseline that come from the choice of rows.
    floor : dict of str to Measure
        The same measures of one fresh fit against another one with other randomness: what an
        approximate method would have if it were a retrain. Empty for exact methods.
    scores : dict of str to float
        Metric on the test rows: of the unlearned model and of both baselines.
    storage : dict of str to int
        Bytes of each model's state; that of the same algorithm is a fresh unlearner's. A model
        whose state cannot be written is left out.
    equal_digests : bool or None
        Whether the unlearned model has digest and answers of a fresh fit; None for approximate
        methods.
    n_people, n_forgotten_rows, n_rows : int
        People and rows that left, and rows that are left.
    returned_seconds : tuple of float
        Time until each call of `forget` returned.
    processor_seconds, fit_processor_seconds : tuple of float, float
        Processor time of each request and of the first fit, of all threads and processes.
    is_repeated : tuple of bool
        Whether a model had been trained on the remaining rows before the request.
    n_false_receipts : int
        Receipts that count other rows than those of the people who left.
    """

    seed: int
    fit_seconds: float
    forget_seconds: tuple[float, ...]
    retrain_seconds: dict[str, tuple[float, ...]]
    work: tuple[float, ...]
    rows_left: tuple[int, ...]
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
    returned_seconds: tuple[float, ...] = ()
    processor_seconds: tuple[float, ...] = ()
    fit_processor_seconds: float = 0.0
    is_repeated: tuple[bool, ...] = ()
    n_false_receipts: int = 0


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What is the same in every trial."""

    problem: Problem
    unlearner: Any
    same: Contender
    ordinary: Contender
    asked: RequestPlan
    clock: RequestClock
    comparisons: int
    with_intervals: bool


@dataclass
class _Run:
    """The model of a trial, who has left it, and what that took."""

    model: Any
    gone: NDArray[Any]
    n_rows: int
    clock: RequestClock
    fit: Timing
    forgets: list[Timing] = field(default_factory=list)
    is_repeated: list[bool] = field(default_factory=list)
    retrains: dict[str, list[float]] = field(default_factory=lambda: {SAME: [], ORDINARY: []})
    work: list[float] = field(default_factory=list)
    rows_left: list[int] = field(default_factory=list)
    # The baselines as they were retrained last.
    rivals: dict[str, Any] = field(default_factory=dict)
    n_false_receipts: int = 0

    def forget(self, ids: NDArray[Any], n_left: int, is_repeated: bool) -> None:
        """Serve a request to the end: what a model puts off is counted too."""
        n_rows = (self.rows_left or [self.n_rows])[-1] - n_left
        receipt, timing = self.clock.time_request(self.model, lambda: self.model.forget(ids))
        self.forgets.append(timing)
        self.is_repeated.append(is_repeated)
        self.work.append(receipt.work)
        self.rows_left.append(n_left)
        self.n_false_receipts += receipt.n_rows != n_rows

    def count_late_work(self, exam: Exam, fresh: Any) -> None:
        """Add what the model puts off even now to the last request."""
        rows = [(part.X, part.y) for part in (exam.test, exam.forgotten)]
        late = self.clock.find_late_work(self.model, fresh, *rows)
        last = self.forgets[-1]
        self.forgets[-1] = last._replace(complete=last.complete + late)

    def retrain(self, contest: Contest, left: Rows) -> None:
        """Train both baselines on the rows that are left."""
        for name, contender in ((SAME, contest.same), (ORDINARY, contest.ordinary)):
            train = partial(contender.fit, left)
            self.rivals[name], seconds = self.clock.time_retrain(train, name == SAME)
            self.retrains[name].append(seconds)


def run_trial(
    contest: Contest, seed: int, number: int, tick: Callable[[], None]
) -> tuple[Trial, NDArray[Any]]:
    """Fit, serve every request, retrain both baselines at some of them; also return who left.

    Whether the unlearner or the baselines go first alternates from one comparison to the next, and
    from one trial (`number`) to the next.
    """
    train = contest.problem.train
    model = fresh_copy(contest.unlearner, seed)
    fit = contest.clock.time_fit(model, lambda: model.fit(train.X, train.y, ids=train.ids))
    run = _Run(model, np.array([], dtype=train.ids.dtype), len(train), contest.clock, fit)
    where = _comparison_points(len(contest.asked.sizes), contest.comparisons)
    n_compared = 0
    is_known = contest.asked.is_fixed and number > 0
    for position, ids in enumerate(contest.asked.stream(model, seed)):
        run.gone = np.concatenate([run.gone, ids])
        is_compared = position in where
        is_second = is_compared and (n_compared + number) % 2 == 1
        n_compared += is_compared
        left = train.without(run.gone)
        if is_second:
            run.retrain(contest, left)
        run.forget(ids, len(left), is_second or is_known)
        if is_compared and not is_second:
            run.retrain(contest, left)
        tick()
    return _judge(contest, seed, run), run.gone


def _comparison_points(n_requests: int, comparisons: int) -> frozenset[int]:
    """Return evenly spaced requests after which the baselines are retrained; the last is one."""
    points = np.linspace(n_requests, 1, min(comparisons, n_requests)).round().astype(int) - 1
    return frozenset(points.tolist()) | {n_requests - 1}


def _judge(contest: Contest, seed: int, run: _Run) -> Trial:
    """Compare the models as they are after the last request.

    A fresh fit of the unlearner stands for the same algorithm here, whoever was faster to train.
    """
    model, left = run.model, contest.problem.train.without(run.gone)
    exam = _exam(contest, run.gone)
    fresh = _fresh(contest, left, getattr(model, "seed_", seed))
    run.count_late_work(exam, fresh)
    rivals = {**run.rivals, SAME: fresh}
    models = {"unlearned": model, **rivals}
    is_exact = model.guarantee_.kind == "exact"
    measures = {name: compare(exam, model, rival) for name, rival in rivals.items()}
    residual = gradient_residual_of(model)
    if residual is not None:
        measures[SAME][residual.name] = residual
    another = None if is_exact else _fresh(contest, left, seed + _ANOTHER_SEED)
    sizes = {name: _bytes(each) for name, each in models.items()}
    return Trial(
        seed=seed,
        fit_seconds=run.fit.complete,
        fit_processor_seconds=run.fit.processor,
        forget_seconds=tuple(timing.complete for timing in run.forgets),
        returned_seconds=tuple(timing.returned for timing in run.forgets),
        processor_seconds=tuple(timing.processor for timing in run.forgets),
        is_repeated=tuple(run.is_repeated),
        n_false_receipts=run.n_false_receipts,
        retrain_seconds={name: tuple(times) for name, times in run.retrains.items()},
        work=tuple(run.work),
        rows_left=tuple(run.rows_left),
        measures=measures,
        row_errors={name: row_errors(exam, model, rival) for name, rival in rivals.items()},
        floor={} if another is None else compare(exam, another, fresh),
        scores={name: exam.problem.score(each, exam.test) for name, each in models.items()},
        storage={name: size for name, size in sizes.items() if size is not None},
        equal_digests=_is_equal(exam, model, fresh) if is_exact else None,
        n_people=len(run.gone),
        n_forgotten_rows=len(exam.forgotten),
        n_rows=len(left),
        guarantee=model.guarantee_,
    )


def _exam(contest: Contest, gone: NDArray[Any]) -> Exam:
    problem = contest.problem
    # A forgotten person also leaves the rows that we measure on.
    test = problem.test.without(gone)
    if len(test) == 0:
        raise ValueError("everybody among the test rows was forgotten; give others with test=")
    return Exam(problem, test, problem.train.of(gone), contest.with_intervals)


def _is_equal(exam: Exam, model: Any, fresh: Any) -> bool:
    """Return whether two models have the same bytes, by their digests, and the same answers."""
    ways = [way for way in ("predict", "predict_proba") if hasattr(model, way)]
    return model.digest() == fresh.digest() and all(
        np.array_equal(getattr(model, way)(rows.X), getattr(fresh, way)(rows.X))
        for way in ways
        for rows in (exam.test, exam.forgotten)
    )


def _fresh(contest: Contest, left: Rows, seed: int) -> Any:
    return fresh_copy(contest.unlearner, seed).fit(left.X, left.y, ids=left.ids)


def _bytes(model: Any) -> int | None:
    """Return the size of a model's state; None where no canonical state is known."""
    try:
        return len(state.encode(model))
    except (LetheonError, TypeError, ValueError):
        return None
