"""One run over all requests: the unlearner and both baselines, timed in turns."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon import state
from letheon.data import People
from letheon.evaluation._baselines import ORDINARY, SAME, BaselineTrainer
from letheon.evaluation._clock import RequestClock
from letheon.evaluation._problem import LearningProblem, Metric, RequestPlan, accuracy
from letheon.exceptions import LetheonError
from letheon.guarantee import Guarantee
from letheon.inner_estimator import fresh_copy
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


class ComparisonData(NamedTuple):
    """The rows on which models are compared.

    Intervals over rows cost a bootstrap; an average over seeds does not need them.
    """

    problem: LearningProblem
    test: People
    forgotten: People
    with_intervals: bool

    def predict_all(self, *models: Any) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
        """Return what each model predicts for the test rows, and for those of who left."""
        on_test, on_forgotten = (
            [np.asarray(model.predict(rows.X)) for model in models]
            for rows in (self.test, self.forgotten)
        )
        return on_test, on_forgotten


def compare_models(exam: ComparisonData, model: Any, rival: Any) -> dict[str, Measure]:
    """Return every measure that these two models allow, by name."""
    problem, test, forgotten = exam.problem, exam.test, exam.forgotten
    on_test, on_forgotten = exam.predict_all(model, rival)
    ours, theirs = (problem.score_predictions(test.y, answers) for answers in on_test)
    # the price: negative where the unlearned model is the better
    note = "signed: metric of the baseline minus that of the unlearned model"
    lost = make_measure("score lost", theirs - ours, None, len(test), better="lower", note=note)
    if exam.with_intervals:
        gap = effectiveness(problem.metric, test.y, *on_test, n_resamples=_RESAMPLES)
    else:
        gap = effectiveness_from_values(ours, theirs, n=len(test))
    measures = [gap, lost, *_consistency_measures(exam, model, rival, on_test)]
    if problem.is_regression and np.array_equal(on_test[0], on_test[1]):
        # The very same numbers: no row tells the two apart.
        measures = [replace(each, low=each.value, high=each.value) for each in measures]
    metric = problem.forgotten_metric
    if exam.with_intervals:
        last = certifiability_from_predictions(
            metric, forgotten.y, *on_forgotten, n_resamples=_RESAMPLES
        )
    else:
        n = len(forgotten)
        values = (problem.require_finite(metric(forgotten.y, each), n) for each in on_forgotten)
        last = certifiability(*values, n=n)
    return {measure.name: measure for measure in (*measures, last)}


def row_errors(exam: ComparisonData, model: Any, rival: Any) -> dict[str, float]:
    """Return the standard errors that the choice of rows gives to measures on them.

    Runs of several seeds share their test rows, and so this error. For two accuracies it is that
    of Agresti and Min (2005), with one row more of each kind: models that agree on all rows may
    still differ on others. SAPE and the root of a mean square have theirs by the delta method.
    """
    problem, test, forgotten = exam.problem, exam.test, exam.forgotten
    (ours, theirs), pair = exam.predict_all(model, rival)
    lost = _error_of_loss(problem.metric, test.y, ours, theirs)
    errors = {"effectiveness": lost, "score lost": lost}
    if problem.is_regression:
        squares = np.square(ours - theirs)
        root, spread = float(np.sqrt(squares.mean())), float(squares.std())
        errors["prediction gap"] = spread / (2 * root * np.sqrt(len(squares))) if root > 0 else 0.0
    else:
        n = len(test) + 4
        share = (float(np.sum(ours == theirs)) + 2) / n
        errors["output consistency"] = 100 * float(np.sqrt(share * (1 - share) / n))
    metric = problem.forgotten_metric
    size = sum(abs(float(metric(forgotten.y, each))) for each in pair)
    error = _error_of_loss(metric, forgotten.y, *pair)
    errors["certifiability"] = 100 * error / (size or 1.0)
    return errors


def _error_of_loss(
    metric: Metric, truth: NDArray[Any], ours: NDArray[Any], theirs: NDArray[Any]
) -> float:
    """Return the standard error of the difference of two scores on the same rows."""
    n, error = len(truth), 0.0
    if metric is not accuracy:
        drawn = np.random.default_rng(0).integers(n, size=(_FEW_RESAMPLES, n))
        gaps = np.array(
            [_score_gap(metric, truth[rows], ours[rows], theirs[rows]) for rows in drawn]
        )
        gaps = gaps[np.isfinite(gaps)]
        error = float(gaps.std()) if len(gaps) > 1 else 0.0
        # Labels that agree on these rows need not agree on others; equal numbers do.
        if error > 0 or ours.dtype.kind == "f":
            return error
    gaps = (theirs == truth).astype(float) - (ours == truth)
    variance = (float(gaps @ gaps) + 2) / (n + 2) - float(gaps.mean()) ** 2
    return float(np.sqrt(max(variance, 0.0) / n))


def _score_gap(
    metric: Metric, truth: NDArray[Any], ours: NDArray[Any], theirs: NDArray[Any]
) -> float:
    """Return the score lost on some rows; NaN where the metric is not defined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return float(metric(truth, theirs)) - float(metric(truth, ours))
        except ValueError:
            return float("nan")


def _consistency_measures(
    exam: ComparisonData, model: Any, rival: Any, on_test: list[NDArray[Any]]
) -> Iterator[Measure]:
    if exam.problem.is_regression:
        yield prediction_gap(*on_test)
    else:
        yield output_consistency(*on_test)
        if hasattr(model, "predict_proba") and hasattr(rival, "predict_proba"):
            divergence = kl_consistency(
                model.predict_proba(exam.test.X),
                rival.predict_proba(exam.test.X),
                classes_unlearned=model.classes_,
                classes_naive=rival.classes_,
                floor=KL_FLOOR,
                n_resamples=_RESAMPLES if exam.with_intervals else 1,
            )
            yield divergence if exam.with_intervals else replace(divergence, low=None, high=None)
    if type(model) is type(rival) and hasattr(model, "coef_"):
        pair = [
            [np.asarray(each.coef_), np.atleast_1d(np.asarray(each.intercept_))]
            for each in (model, rival)
        ]
        # A class that only one of them has lost changes the number of parameters.
        if [part.shape for part in pair[0]] == [part.shape for part in pair[1]]:
            yield parameter_consistency(*pair)


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
class TrialSetup:
    """What is the same in every trial.

    `warm`, `tried` and `how` say what came before: a warm-up, the race of ways to retrain, and the
    choice of the ordinary model.
    """

    problem: LearningProblem
    unlearner: Any
    same: BaselineTrainer
    ordinary: BaselineTrainer
    asked: RequestPlan
    clock: RequestClock
    comparisons: int
    with_intervals: bool
    warm: str
    tried: list[str]
    how: str

    def fit_unlearner(self, rows: People, seed: int) -> Any:
        """Return a fresh fit of the unlearner."""
        return fresh_copy(self.unlearner, seed).fit(rows.X, rows.y, ids=rows.ids)


class _TrialRun:
    """The model of a trial, who has left it, and what that took."""

    def __init__(self, contest: TrialSetup, seed: int) -> None:
        train = contest.problem.train
        self._contest = contest
        self.left, self.gone = train, np.array([], dtype=train.ids.dtype)
        self.model = model = fresh_copy(contest.unlearner, seed)
        self.fit = contest.clock.time_fit(model, lambda: model.fit(train.X, train.y, ids=train.ids))
        # The baselines as they were retrained last.
        self.rivals: dict[str, Any] = {}
        self.retrains: dict[str, list[float]] = {SAME: [], ORDINARY: []}
        self.requests: list[dict[str, Any]] = []
        self.n_false_receipts = 0

    def remove_people(self, ids: NDArray[Any]) -> None:
        """Take people off the rows that are left."""
        self.gone = np.concatenate([self.gone, ids])
        self.left = self._contest.problem.train.without(self.gone)

    def forget(self, ids: NDArray[Any], n_before: int, is_repeated: bool) -> None:
        """Serve a request to the end: what a model puts off is counted too."""
        clock = self._contest.clock
        receipt, timing = clock.time_request(self.model, lambda: self.model.forget(ids))
        self.requests.append(
            {
                "forget_seconds": timing.complete,
                "returned_seconds": timing.returned,
                "processor_seconds": timing.processor,
                "is_repeated": is_repeated,
                "work": receipt.work,
                "rows_left": len(self.left),
            }
        )
        self.n_false_receipts += receipt.n_rows != n_before - len(self.left)

    def retrain(self) -> None:
        """Train both baselines on the rows that are left."""
        contest = self._contest
        for name, contender in ((SAME, contest.same), (ORDINARY, contest.ordinary)):
            train = partial(contender.fit, self.left)
            self.rivals[name], seconds = contest.clock.time_retrain(train, name == SAME)
            self.retrains[name].append(seconds)


def run_trial(
    contest: TrialSetup, seed: int, number: int, tick: Callable[[], None]
) -> tuple[Trial, NDArray[Any]]:
    """Fit, serve every request, retrain both baselines at some of them; also return who left.

    Whether the unlearner or the baselines go first alternates from one comparison to the next, and
    from one trial (`number`) to the next.
    """
    run, n_requests = _TrialRun(contest, seed), len(contest.asked.sizes)
    # Evenly spaced requests after which the baselines are retrained; the last is one.
    where = np.linspace(n_requests, 1, min(contest.comparisons, n_requests)).round().astype(int) - 1
    points = {*where.tolist(), n_requests - 1}
    n_compared, is_known = 0, contest.asked.is_fixed and number > 0
    for position, ids in enumerate(contest.asked.stream(run.model, seed)):
        n_before = len(run.left)
        run.remove_people(ids)
        is_compared = position in points
        is_second = is_compared and (n_compared + number) % 2 == 1
        n_compared += is_compared
        if is_second:
            run.retrain()
        run.forget(ids, n_before, is_second or is_known)
        if is_compared and not is_second:
            run.retrain()
        tick()
    return _compare_final_models(contest, seed, run), run.gone


def _compare_final_models(contest: TrialSetup, seed: int, run: _TrialRun) -> Trial:
    """Compare the models as they are after the last request.

    A fresh fit of the unlearner stands for the same algorithm here, whoever was faster to train.
    """
    model, problem = run.model, contest.problem
    # A forgotten person also leaves the rows that we measure on.
    test = problem.test.without(run.gone)
    if len(test) == 0:
        raise ValueError("everybody among the test rows was forgotten; give others with test=")
    exam = ComparisonData(problem, test, problem.train.rows_of(run.gone), contest.with_intervals)
    fresh = contest.fit_unlearner(run.left, getattr(model, "seed_", seed))
    # What the model puts off even now is added to the last request.
    rows = [(part.X, part.y) for part in (exam.test, exam.forgotten)]
    run.requests[-1]["forget_seconds"] += contest.clock.find_late_work(model, fresh, *rows)
    rivals = {**run.rivals, SAME: fresh}
    models = {"unlearned": model, **rivals}
    is_exact = model.guarantee_.kind == "exact"
    measures = {name: compare_models(exam, model, rival) for name, rival in rivals.items()}
    residual = gradient_residual_of(model)
    if residual is not None:
        measures[SAME][residual.name] = residual
    another = None if is_exact else contest.fit_unlearner(run.left, seed + _ANOTHER_SEED)
    sizes = {name: _state_size(each) for name, each in models.items()}
    return Trial(
        seed=seed,
        fit_seconds=run.fit.complete,
        fit_processor_seconds=run.fit.processor,
        **{name: tuple(each[name] for each in run.requests) for name in run.requests[0]},
        n_false_receipts=run.n_false_receipts,
        retrain_seconds={name: tuple(times) for name, times in run.retrains.items()},
        measures=measures,
        row_errors={name: row_errors(exam, model, rival) for name, rival in rivals.items()},
        floor={} if another is None else compare_models(exam, another, fresh),
        scores={name: problem.score(each, exam.test) for name, each in models.items()},
        storage={name: size for name, size in sizes.items() if size is not None},
        equal_digests=_is_equal(exam, model, fresh) if is_exact else None,
        n_people=len(run.gone),
        n_forgotten_rows=len(exam.forgotten),
        n_rows=len(run.left),
        guarantee=model.guarantee_,
    )


def _is_equal(exam: ComparisonData, model: Any, fresh: Any) -> bool:
    """Return whether two models have the same bytes, by their digests, and the same answers."""
    ways = [way for way in ("predict", "predict_proba") if hasattr(model, way)]
    return model.digest() == fresh.digest() and all(
        np.array_equal(getattr(model, way)(rows.X), getattr(fresh, way)(rows.X))
        for way in ways
        for rows in (exam.test, exam.forgotten)
    )


def _state_size(model: Any) -> int | None:
    """Return the size of a model's state; None where no canonical state is known."""
    try:
        return len(state.encode(model))
    except (LetheonError, TypeError, ValueError):
        return None
