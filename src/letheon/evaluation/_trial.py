"""One trial, in which the unlearner and both baselines are timed alternately on all requests."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon import state
from letheon.data import People
from letheon.evaluation._baselines import ORDINARY, SAME, Trainer
from letheon.evaluation._clock import RequestClock
from letheon.evaluation._problem import LearningProblem, Metric, RequestPlan, accuracy
from letheon.exceptions import LetheonError
from letheon.guarantee import Guarantee
from letheon.inner_estimator import fresh_copy
from letheon.measures import (
    Measure,
    TextRepr,
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

# Trees predict probabilities of 0, for which the exact divergence is infinite.
KL_FLOOR = 1e-6
# Few, because metrics of scikit-learn take about a millisecond.
_RESAMPLES = 400
# Sufficient for a standard error.
_FEW_RESAMPLES = 60


class ComparisonData(NamedTuple):
    """Rows on which models are compared.

    If `with_intervals`, bootstrap intervals over rows are computed; a mean over seeds does not need
    them.
    """

    problem: LearningProblem
    test: People
    forgotten: People
    with_intervals: bool

    def predict_all(self, *models: Any) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
        """Return the predictions of each model for the test rows and for the forgotten rows."""
        on_test, on_forgotten = (
            [np.asarray(model.predict(rows.X)) for model in models]
            for rows in (self.test, self.forgotten)
        )
        return on_test, on_forgotten


def compare_models(data: ComparisonData, model: Any, baseline: Any) -> dict[str, Measure]:
    """Return all measures that are defined for these two models, by name."""
    problem, test, forgotten = data.problem, data.test, data.forgotten
    on_test, on_forgotten = data.predict_all(model, baseline)
    ours, theirs = (problem.score_predictions(test.y, answers) for answers in on_test)
    # The price of unlearning; negative if the unlearned model is better.
    note = "signed: metric of the baseline minus that of the unlearned model"
    lost = make_measure("score lost", theirs - ours, None, len(test), better="lower", note=note)
    if data.with_intervals:
        gap = effectiveness(problem.metric, test.y, *on_test, n_resamples=_RESAMPLES)
    else:
        gap = effectiveness_from_values(ours, theirs, n=len(test))
    measures = [gap, lost, *_consistency_measures(data, model, baseline, on_test)]
    if problem.is_regression and np.array_equal(on_test[0], on_test[1]):
        # Identical predictions have no sampling error.
        measures = [replace(measure, low=measure.value, high=measure.value) for measure in measures]
    metric = problem.forgotten_metric
    if data.with_intervals:
        last = certifiability_from_predictions(
            metric, forgotten.y, *on_forgotten, n_resamples=_RESAMPLES
        )
    else:
        n = len(forgotten)
        values = (problem.require_finite(metric(forgotten.y, y), n) for y in on_forgotten)
        last = certifiability(*values, n=n)
    return {measure.name: measure for measure in (*measures, last)}


def row_errors(data: ComparisonData, model: Any, baseline: Any) -> dict[str, float]:
    """Return the standard errors of measures due to the choice of rows.

    Trials with different seeds use the same test rows, so they share this error. For two accuracies
    the error is that of Agresti and Min (2005), with one additional row of each kind, because
    models that agree on all these rows may differ on others. For SAPE and the root mean square, the
    delta method gives the error.
    """
    problem, test, forgotten = data.problem, data.test, data.forgotten
    (ours, theirs), pair = data.predict_all(model, baseline)
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
    size = sum(abs(float(metric(forgotten.y, predicted))) for predicted in pair)
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
        gaps = np.array([_score_gap(metric, truth[i], ours[i], theirs[i]) for i in drawn])
        gaps = gaps[np.isfinite(gaps)]
        error = float(gaps.std()) if len(gaps) > 1 else 0.0
        # Models with equal labels here may differ on other rows; with equal numbers they do not.
        if error > 0 or ours.dtype.kind == "f":
            return error
    gaps = (theirs == truth).astype(float) - (ours == truth)
    variance = (float(gaps @ gaps) + 2) / (n + 2) - float(gaps.mean()) ** 2
    return float(np.sqrt(max(variance, 0.0) / n))


def _score_gap(metric: Metric, truth: Any, ours: Any, theirs: Any) -> float:
    """Return the score of the baseline minus that of our model; NaN if the metric is undefined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return float(metric(truth, theirs)) - float(metric(truth, ours))
        except ValueError:
            return float("nan")


def _consistency_measures(
    data: ComparisonData, model: Any, baseline: Any, on_test: list[NDArray[Any]]
) -> Iterator[Measure]:
    if data.problem.is_regression:
        yield prediction_gap(*on_test)
    else:
        yield output_consistency(*on_test)
        if hasattr(model, "predict_proba") and hasattr(baseline, "predict_proba"):
            divergence = kl_consistency(
                model.predict_proba(data.test.X),
                baseline.predict_proba(data.test.X),
                classes_unlearned=model.classes_,
                classes_naive=baseline.classes_,
                floor=KL_FLOOR,
                n_resamples=_RESAMPLES if data.with_intervals else 1,
            )
            yield divergence if data.with_intervals else replace(divergence, low=None, high=None)
    if type(model) is type(baseline) and hasattr(model, "coef_"):
        pair = [
            [np.asarray(linear.coef_), np.atleast_1d(np.asarray(linear.intercept_))]
            for linear in (model, baseline)
        ]
        # The number of parameters differs if only one of them has lost a class.
        if [part.shape for part in pair[0]] == [part.shape for part in pair[1]]:
            yield parameter_consistency(*pair)


# Does not collide with the seeds of the trials, which are consecutive.
_ANOTHER_SEED = 1_000_003


@dataclass(frozen=True, kw_only=True, repr=False)
class Trial(TextRepr):
    """Results of one seed.

    Attributes
    ----------
    seed : int
        Seed of the unlearner and of the requests.
    fit_seconds : float
        Time of the first fit.
    forget_seconds : tuple of float
        Time of every request, including work that was deferred to the first prediction, the first
        digest, threads or processes.
    retrain_seconds : dict of str to tuple of float
        Training times of both baselines, for the requests after which they were retrained.
    work : tuple of float
        `Receipt.work` of every request, as a share of retraining on the remaining rows.
    rows_left : tuple of int
        Number of remaining rows after every request.
    measures : dict of str to dict of str to Measure
        Measures against each baseline after the last request.
    row_errors : dict of str to dict of str to float
        Standard errors of these measures due to the choice of rows.
    floor : dict of str to Measure
        The same measures of one fresh fit against another with a different seed. They show the
        differences that randomness alone explains. Empty for exact methods.
    scores : dict of str to float
        Metric of the unlearned model and of both baselines on the test rows.
    storage : dict of str to int
        Size of the state of each model in bytes; for the same algorithm, the size of a fresh fit.
        A model whose state cannot be encoded is omitted.
    equal_digests : bool or None
        Whether the unlearned model has the digest and the predictions of a fresh fit; None for
        approximate methods.
    n_people, n_forgotten_rows, n_rows : int
        Numbers of forgotten people, forgotten rows and remaining rows.
    returned_seconds : tuple of float
        Time until each call of `forget` returned.
    processor_seconds, fit_processor_seconds : tuple of float, float
        Processor time of each request and of the first fit, of all threads and processes.
    is_repeated : tuple of bool
        Whether a model had been trained on the same remaining rows before the request.
    n_false_receipts : int
        Number of receipts with a wrong number of rows.
    guarantee : Guarantee
        The guarantee after the last request.

    Examples
    --------
    >>> from letheon import NearestCentroid, evaluate
    >>> data = np.arange(80.0).reshape(40, 2), np.repeat([0, 1], 20)
    >>> evaluate(NearestCentroid(), data, requests=2, seeds=1, attacks=()).trials[0].n_people
    2
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

    def __str__(self) -> str:
        """Return one line with the seed, the times and the scores."""
        scores = ", ".join(f"{name} {score:.4g}" for name, score in self.scores.items())
        return (
            f"seed {self.seed}: {self.n_people} people in {len(self.forget_seconds)} request(s) of "
            f"{np.mean(self.forget_seconds):.3g} s, first fit {self.fit_seconds:.3g} s; {scores}"
        )


@dataclass(frozen=True, kw_only=True)
class TrialSetup:
    """Inputs that are the same for all trials.

    `warm_up`, `race` and `choice` are texts about the warm-up, the comparison of ways to retrain,
    and the choice of the ordinary model.
    """

    problem: LearningProblem
    unlearner: Any
    same: Trainer
    ordinary: Trainer
    requests: RequestPlan
    clock: RequestClock
    comparisons: int
    with_intervals: bool
    warm_up: str
    race: list[str]
    choice: str

    def fit_unlearner(self, rows: People, seed: int) -> Any:
        """Return a fresh fit of the unlearner on these rows, with this seed."""
        return fresh_copy(self.unlearner, seed).fit(rows.X, rows.y, ids=rows.ids)


class _TrialRun:
    """State of a trial: the model, the remaining rows, and the times of requests."""

    def __init__(self, setup: TrialSetup, seed: int) -> None:
        train = setup.problem.train
        self._setup = setup
        self.remaining, self.forgotten_ids = train, np.array([], dtype=train.ids.dtype)
        self.model = model = fresh_copy(setup.unlearner, seed)
        self.fit = setup.clock.time_fit(model, lambda: model.fit(train.X, train.y, ids=train.ids))
        # The baselines as they were retrained last.
        self.baselines: dict[str, Any] = {}
        self.retrains: dict[str, list[float]] = {SAME: [], ORDINARY: []}
        self.requests: list[dict[str, Any]] = []
        self.n_false_receipts = 0

    def remove_people(self, ids: NDArray[Any]) -> None:
        """Remove the rows of these people from the remaining rows."""
        self.forgotten_ids = np.concatenate([self.forgotten_ids, ids])
        self.remaining = self._setup.problem.train.without(self.forgotten_ids)

    def forget(self, ids: NDArray[Any], n_before: int, is_repeated: bool) -> None:
        """Forget these ids in the model and record the times, including deferred work."""
        clock = self._setup.clock
        receipt, timing = clock.time_request(self.model, lambda: self.model.forget(ids))
        self.requests.append(
            {
                "forget_seconds": timing.complete,
                "returned_seconds": timing.returned,
                "processor_seconds": timing.processor,
                "is_repeated": is_repeated,
                "work": receipt.work,
                "rows_left": len(self.remaining),
            }
        )
        self.n_false_receipts += receipt.n_rows != n_before - len(self.remaining)

    def retrain(self) -> None:
        """Train and time both baselines on the remaining rows."""
        setup = self._setup
        for name, contender in ((SAME, setup.same), (ORDINARY, setup.ordinary)):
            train = partial(contender.fit, self.remaining)
            self.baselines[name], seconds = setup.clock.time_retrain(train, name == SAME)
            self.retrains[name].append(seconds)


def run_trial(
    setup: TrialSetup, seed: int, number: int, tick: Callable[[], None]
) -> tuple[Trial, NDArray[Any]]:
    """Run one trial; return its results and the forgotten ids.

    Fits the unlearner, serves all requests, and retrains both baselines after some of them. The
    order of the unlearner and the baselines alternates between comparisons and between trials,
    whose number is `number`.
    """
    run, n_requests = _TrialRun(setup, seed), len(setup.requests.sizes)
    # Evenly spaced requests after which the baselines are retrained, including the last.
    where = np.linspace(n_requests, 1, min(setup.comparisons, n_requests)).round().astype(int) - 1
    points = {*where.tolist(), n_requests - 1}
    n_compared, is_known = 0, setup.requests.is_fixed and number > 0
    for position, ids in enumerate(setup.requests.stream(run.model, seed)):
        n_before = len(run.remaining)
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
    return _compare_final_models(setup, seed, run), run.forgotten_ids


def _compare_final_models(setup: TrialSetup, seed: int, run: _TrialRun) -> Trial:
    """Compare the models after the last request.

    The baseline "same algorithm" is a fresh fit of the unlearner, even if another trainer is
    faster.
    """
    model, problem = run.model, setup.problem
    # Forgotten people are removed from the test rows too.
    test = problem.test.without(run.forgotten_ids)
    if len(test) == 0:
        raise ValueError(
            "no test rows remain, because all their ids are forgotten; pass test rows of other "
            "people"
        )
    forgotten = problem.train.rows_of(run.forgotten_ids)
    data = ComparisonData(problem, test, forgotten, setup.with_intervals)
    # With the same seed; `seed_` of a pipeline is that of its last step.
    fresh = setup.fit_unlearner(run.remaining, seed)
    # Work that is still deferred is added to the last request.
    rows = [(part.X, part.y) for part in (data.test, data.forgotten)]
    run.requests[-1]["forget_seconds"] += setup.clock.find_late_work(model, fresh, *rows)
    baselines = {**run.baselines, SAME: fresh}
    models = {"unlearned": model, **baselines}
    is_exact = model.guarantee_.kind == "exact"
    measures = {name: compare_models(data, model, baseline) for name, baseline in baselines.items()}
    residual = gradient_residual_of(model)
    if residual is not None:
        measures[SAME][residual.name] = residual
    another = None if is_exact else setup.fit_unlearner(run.remaining, seed + _ANOTHER_SEED)
    sizes = {name: _state_size(fitted) for name, fitted in models.items()}
    return Trial(
        seed=seed,
        fit_seconds=run.fit.complete,
        fit_processor_seconds=run.fit.processor,
        **{name: tuple(request[name] for request in run.requests) for name in run.requests[0]},
        n_false_receipts=run.n_false_receipts,
        retrain_seconds={name: tuple(times) for name, times in run.retrains.items()},
        measures=measures,
        row_errors={name: row_errors(data, model, other) for name, other in baselines.items()},
        floor={} if another is None else compare_models(data, another, fresh),
        scores={name: problem.score(fitted, data.test) for name, fitted in models.items()},
        storage={name: size for name, size in sizes.items() if size is not None},
        equal_digests=_is_equal(data, model, fresh) if is_exact else None,
        n_people=len(run.forgotten_ids),
        n_forgotten_rows=len(data.forgotten),
        n_rows=len(run.remaining),
        guarantee=model.guarantee_,
    )


def _is_equal(data: ComparisonData, model: Any, fresh: Any) -> bool:
    """Return whether two models have the same digest and the same predictions."""
    methods = [method for method in ("predict", "predict_proba") if hasattr(model, method)]
    return model.digest() == fresh.digest() and all(
        np.array_equal(getattr(model, method)(rows.X), getattr(fresh, method)(rows.X))
        for method in methods
        for rows in (data.test, data.forgotten)
    )


def _state_size(model: Any) -> int | None:
    """Return the size of the state of a model in bytes; None if it cannot be encoded."""
    try:
        return len(state.encode(model))
    except (LetheonError, TypeError, ValueError):
        return None
