"""`choose`: filter applicable methods, tune, evaluate, and choose the fastest acceptable one."""

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.exceptions import ConvergenceWarning

from letheon.data import People
from letheon.datasets import Requests
from letheon.evaluation import (
    ORDINARY,
    BestModel,
    CrossValidation,
    LearningProblem,
    Metric,
    choose_best,
    evaluate,
    list_ordinary,
    name_model,
    with_canaries,
)
from letheon.exceptions import LetheonError, LetheonWarning
from letheon.guarantee import Task, TrainingSize
from letheon.measures import bootstrap
from letheon.parallel import one_thread
from letheon.scoring import balanced_accuracy, infer_task, is_unbalanced, largest_class
from letheon.select._candidates import (
    Candidate,
    Need,
    add_preprocessing,
    default_candidates,
    name_candidates,
)
from letheon.select._comparison import Comparison
from letheon.select._results import (
    CandidateResult,
    Cost,
    Tolerances,
    Tuning,
    name_setting,
    tune_efficiency,
)

Settings = dict[str, Any]
_Argument = TypeVar("_Argument")
# Errors of candidates that do not support the rows or settings; they are reported, not raised.
_REFUSALS = (LetheonError, ValueError, ArithmeticError)


@dataclass
class _CandidateSearch:
    """Inputs that all candidates share, and the results so far.

    `blank` is a comparison without results. `options` are keyword arguments for `evaluate`.
    """

    blank: Comparison
    problem: LearningProblem
    size: TrainingSize
    folds: CrossValidation
    rival: BestModel
    constant: "_ConstantBaseline"
    people_per_call: int
    options: dict[str, Any]
    excluded: dict[str, str]
    tried: list[CandidateResult] = field(default_factory=list)
    tunings: dict[str, tuple[Tuning, ...]] = field(default_factory=dict)

    def try_candidate(self, name: str, candidate: Candidate) -> None:
        """Evaluate settings of a candidate, or record why the candidate is excluded."""
        reason = self.blank.need.why_not(candidate.estimator, candidate.facts)
        if reason:
            self.excluded[name] = reason
            return
        ranges = candidate.ranges(self.size)
        if not candidate.facts.exact:
            parameters = {**ranges.efficiency, **ranges.certifiability}
            for values in product(*parameters.values()):
                self._evaluate_setting(name, candidate, dict(zip(parameters, values, strict=True)))
            return
        try:
            self.tunings[name] = tuple(self._tune_parameters(candidate, ranges.efficiency))
        except _REFUSALS as error:
            self.excluded[name] = f"tuning failed: {error}"
            return
        for settings in _back_off(self.tunings[name]):
            if self._evaluate_setting(name, candidate, settings) == "within":
                return

    def _tune_parameters(self, candidate: Candidate, efficiency: Any) -> Iterator[Tuning]:
        """Tune the efficiency parameters one after the other, and yield each tuning.

        Parameters that were tuned before keep the value chosen for them.
        """
        tolerance = self.blank.tolerances.effectiveness
        goal = -np.inf if tolerance is None else self.rival.score - tolerance
        # The score must be better than that of a constant prediction.
        goal = max(goal, float(np.nextafter(self.constant.score, np.inf)))
        chosen: Settings = {}
        for parameter, values in efficiency.items():

            def cv_score(value: Any, parameter: str = parameter) -> float:
                estimator = candidate.with_settings({**chosen, parameter: value})
                return self.folds.score(estimator, with_ids=True)

            tuning = tune_efficiency(cv_score, parameter, values, float(goal))
            chosen[parameter] = tuning.chosen
            yield tuning

    def _evaluate_setting(self, name: str, candidate: Candidate, settings: Settings) -> str:
        """Evaluate a setting; return its verdict, or an empty string if evaluation failed."""
        estimator, problem, blank = candidate.with_settings(settings), self.problem, self.blank
        try:
            evaluation = evaluate(
                estimator,
                _as_tuple(problem.train),
                test=_as_tuple(problem.test),
                ordinary=clone(self.rival.model),
                canaries=False,
                title=name,
                **self.options,
            )
            why_not_beaten = self.constant.why_not_beaten(estimator)
        except _REFUSALS as error:
            self.excluded[name_setting(name, settings)] = f"evaluation failed: {error}"
            return ""
        flaws = [blank.need.why_not_claim(evaluation.guarantee), why_not_beaten]
        if evaluation.equal_digests is False:
            flaws.append("its digest differs from that of a fresh fit")
        tried = CandidateResult(
            candidate=name,
            settings=settings,
            estimator=estimator,
            evaluation=evaluation,
            checks=blank.tolerances.check(evaluation),
            lacks="; ".join(flaw for flaw in flaws if flaw),
            cost=Cost(
                calls=math.ceil(blank.expected_requests / self.people_per_call),
                fit=evaluation.seconds["fit"].value,
                forget=evaluation.seconds["forget"].value,
                retrain=evaluation.seconds[ORDINARY].value,
            ),
        )
        self.tried.append(tried)
        return tried.verdict


def _back_off(tunings: tuple[Tuning, ...]) -> Iterator[Settings]:
    """Yield the tuned settings, then slower settings, one step at a time.

    The last parameter is set to slower values first, then the parameter before it.
    """
    settings = {tuning.parameter: tuning.chosen for tuning in tunings}
    yield dict(settings)
    for tuning in reversed(tunings):
        slower = tuning.values[: tuning.values.index(tuning.chosen)]
        for value in reversed(slower):
            settings[tuning.parameter] = value
            yield dict(settings)


def choose(
    data: Any,
    *,
    need: Need | None = None,
    tolerances: Tolerances | None = None,
    candidates: Iterable[Any] | None = None,
    expected_requests: int = 1000,
    requests: Requests | float | None = None,
    subsample: float | None = None,
    seeds: int = 3,
    ordinary: Any = None,
    metric: Metric | None = None,
    test: Any = None,
    cv: int = 5,
    canaries: bool = True,
    progress: bool = False,
    random_state: int = 0,
) -> Comparison:
    """Choose a method as the survey proposes (section 6.3).

    1. Methods that are not applicable, according to their declared facts, are excluded.
    2. The efficiency parameter of an *exact* method is increased until its cross-validated loss
       exceeds the tolerance. If the evaluation is outside the tolerances, it is decreased again
       step by step. For an *approximate* method all combinations of efficiency and certifiability
       parameters are tried.
    3. `letheon.evaluate` measures each setting on requests drawn from a deletion distribution.
    4. The fastest setting within all tolerances is chosen: the one with the largest *lower end* of
       the confidence interval of the speed-up over retraining the ordinary model.

    A measure is within its tolerance if the worse end of its confidence interval is. Each interval
    covers the variation between seeds and test rows for a single setting. A setting that is not
    better than the best constant prediction on the test rows is rejected. If no setting is
    acceptable, `Comparison.best` is None, and the reason lists the failures.

    Parameters
    ----------
    data : tuple (X, y) or (X, y, ids), or Dataset
        Training rows and their ids. A quarter of the people is held out if there are no test
        rows. Parameters are tuned on training rows. Test rows are used to choose between settings,
        and to decrease the parameters of exact methods.
    need : Need, optional
        Requirements on the method; by default any method is accepted.
    tolerances : Tolerances, optional
        The worst acceptable results.
    candidates : iterable of Candidate or forgetting estimator, optional
        The methods to compare; by default one candidate per method of letheon. For a table with
        categories or missing values, the default candidates are pipelines: see
        `letheon.table_pipeline.make_table_pipeline`.
    expected_requests : int, default=1000
        Expected number of people to be forgotten; used to compute the total cost.
    requests : Requests, int or float, optional
        The deletion distribution. A number of people, or a share of them, is forgotten one by one,
        with rows drawn uniformly. By default 20 people are forgotten one by one; if `need` allows
        batches, 100 people in five requests; but at most a tenth of all people.
    subsample : int or float, optional
        Number or share of training people to sample, to save time. Speed-ups then refer to the
        subsample.
    seeds : int, default=3
        Number of trials of each evaluation, at least 3.
    ordinary : estimator, optional
        The ordinary model to compare with; by default the best usual model of the family.
    metric : callable, optional
        ``metric(y_true, y_pred)``, higher is better. By default R2 for regression, balanced
        accuracy if one class makes up at least two thirds of the training rows, else accuracy.
    test : tuple (X, y) or (X, y, ids), or float, optional
        Test rows, or the share of people to hold out.
    cv : int, default=5
        Number of folds for tuning; all rows of a person are in one fold.
    canaries : bool, default=True
        Run the canary test of `evaluate` on the best method. If it finds people, the next method is
        tested.
    progress : bool, default=False
        Show a progress bar for each evaluation.
    random_state : int, default=0
        Seed of the split, folds, subsample and trials.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        A number is below its minimum; the message says which.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from letheon import DaREForestClassifier, InfluenceClassifier
    >>> from letheon.datasets import Requests
    >>> from letheon.select import Candidate, Need, Tolerances, choose
    >>> comparison = choose(
    ...     load_breast_cancer(return_X_y=True),
    ...     need=Need(family="forest", guarantee="exact"),
    ...     tolerances=Tolerances(effectiveness=0.2),
    ...     candidates=[
    ...         Candidate(DaREForestClassifier(n_estimators=10), efficiency={"random_depth": [1]}),
    ...         InfluenceClassifier(),
    ...     ],
    ...     ordinary=RandomForestClassifier(n_estimators=10, random_state=0),
    ...     requests=Requests(n=3),
    ...     seeds=3,
    ... )
    >>> comparison.best.name
    'DaREForestClassifier with random_depth=1'
    >>> print(comparison.excluded["InfluenceClassifier"])
    you require a forest; it supports linear models...; you require exact; it is certified
    """
    least = {"seeds": (seeds, 3), "expected_requests": (expected_requests, 1), "cv": (cv, 2)}
    for name, (value, fewest) in least.items():
        if value < fewest:
            raise ValueError(f"{name} must be at least {fewest}, not {value!r}")
    need = _get_or_default("need", need, Need)
    listed = None if candidates is None else name_candidates(candidates)
    deletions = _check_requests(requests)
    tolerances = _get_or_default("tolerances", tolerances, Tolerances)
    task = need.task or _infer_task(data)
    need = replace(need, task=task)
    stand_in = DummyRegressor() if task == "regression" else DummyClassifier()
    problem = LearningProblem.from_args(stand_in, data, test, metric, random_state)
    if subsample is not None:
        problem = _sample_people(problem, subsample, random_state)
    metric, scored_by = _usual_metric(problem, metric)
    if metric is balanced_accuracy:
        problem = replace(problem, metric=metric, metric_name="balanced accuracy")
    n_people = len(np.unique(problem.train.ids))
    if deletions is None:
        n = min(20 if need.immediate else 100, max(1, n_people // 10))
        deletions = Requests(n=n, batch=1 if need.immediate else max(1, n // 5))
    sizes = deletions.sizes(n_people)
    size = TrainingSize(n_people, min(sizes))
    # Threads of boosted trees and of BLAS would disturb the timing.
    with one_thread():
        folds = CrossValidation(problem, cv=cv, seed=random_state)
        models = list_ordinary(problem, ordinary, random_state, need.family)
        rival = choose_best(models, folds.score, are_given=ordinary is not None)
        choice = f"best by cross-validation of: {rival.scores}" if ordinary is None else "as given"
        excluded: dict[str, str] = {}
        if listed is None:
            listed, excluded = default_candidates(need, task, rival.model)
            listed = add_preprocessing(listed, problem.train.X, size)
        blank = Comparison(
            tried=(),
            excluded={},
            tunings={},
            need=need,
            tolerances=tolerances,
            requests=deletions,
            expected_requests=expected_requests,
            ordinary=name_model(rival.model),
            ordinary_chosen=choice,
            scored_by=scored_by,
            n_rows=len(problem.train),
            n_people=n_people,
            n_test_rows=len(problem.test),
            is_subsample=subsample is not None,
        )
        options = {"metric": metric, "progress": progress, "random_state": random_state}
        arena = _CandidateSearch(
            blank=blank,
            problem=problem,
            size=size,
            folds=folds,
            rival=rival,
            constant=_ConstantBaseline(problem),
            people_per_call=max(sizes),
            options={"requests": deletions, "seeds": seeds, **options},
            excluded=excluded,
        )
        with warnings.catch_warnings():
            # The guarantee and the score already show the effects of these problems.
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", LetheonWarning)
            for name, candidate in listed.items():
                arena.try_candidate(name, candidate)
        comparison = replace(
            blank,
            tried=tuple(arena.tried),
            excluded=dict(sorted(arena.excluded.items())),
            tunings=arena.tunings,
        )
        return _with_tested_best(comparison, problem, random_state) if canaries else comparison


def _with_tested_best(comparison: Comparison, problem: LearningProblem, seed: int) -> Comparison:
    """Run the canary test on the best result, and on the next best one if it fails, and so on.

    Return the comparison with the results of the tests.
    """
    while (best := comparison.best) and not (
        best.evaluation.attacks or best.evaluation.failed_attacks
    ):
        evaluation = with_canaries(best.evaluation, best.estimator, problem, seed)
        is_found = any(attack.found for attack in evaluation.attacks)
        lacks = "the canary test found people who should be forgotten" if is_found else best.lacks
        tested = replace(best, evaluation=evaluation, lacks=lacks)
        tried = tuple(tested if result is best else result for result in comparison.tried)
        comparison = replace(comparison, tried=tried)
    return comparison


def _as_tuple(rows: People) -> tuple[Any, ...]:
    """Return (X, y, ids) for `evaluate`; (X, y) if the ids were generated."""
    return (rows.X, rows.y, rows.ids) if rows.has_owners else (rows.X, rows.y)


def _get_or_default(name: str, value: Any, kind: type[_Argument]) -> _Argument:
    """Return an argument of class `kind`; a new object if the argument is None.

    The error for another class names its module: other packages have classes of the same name.
    """
    if value is None:
        return kind()
    if not isinstance(value, kind):
        other = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"{name} must be a letheon.select.{kind.__name__}, not a {other}")
    return value


def _infer_task(data: Any) -> Task:
    """Return the task that a data set states; otherwise infer it from the labels."""
    if hasattr(data, "task"):
        task: Task = data.task
        return task
    return infer_task(data[1])


def _check_requests(requests: Any) -> Requests | None:
    """Return the deletion distribution; convert a number or share of people to `Requests`."""
    if requests is None or isinstance(requests, Requests):
        return requests
    if isinstance(requests, Real):
        return Requests(n=requests)  # type: ignore[arg-type]
    raise TypeError(
        "requests must be a number or share of people or a letheon.datasets.Requests, not a "
        f"{type(requests).__name__}"
    )


def _usual_metric(problem: LearningProblem, metric: Metric | None) -> tuple[Metric | None, str]:
    """Return the metric for `evaluate`, and a text that names it and says why it is used.

    The metric is None if the default metric of `evaluate` is used.
    """
    name, y = problem.metric_name, problem.train.y
    if metric is not None:
        return metric, f"{name}, as given"
    if problem.is_regression:
        return None, f"{name}, the default for regression"
    answer, share = largest_class(y)
    largest = f"class {answer!s} makes up {share:.0%} of the training rows"
    if is_unbalanced(y):
        return balanced_accuracy, (
            f"balanced accuracy, because {largest} and a constant prediction has that accuracy"
        )
    return None, f"{name}, because no class makes up two thirds of the training rows ({largest})"


def _sample_people(problem: LearningProblem, subsample: float, seed: int) -> LearningProblem:
    """Return the problem with a sample of the training people."""
    people = np.unique(problem.train.ids)
    n = round(subsample * len(people)) if subsample < 1 else int(subsample)
    if not 2 <= n <= len(people):
        raise ValueError(
            f"subsample={subsample!r} selects {n} people; expected between 2 and {len(people):,}"
        )
    chosen = np.random.default_rng(seed).permutation(people)[:n]
    return replace(problem, train=problem.train.rows_of(chosen))


_RESAMPLES = 200
# Number of most frequent classes that are tried as a constant prediction.
_MOST_ANSWERS = 20


class _ConstantBaseline:
    """The constant prediction that is best on the training rows; every model must beat it."""

    def __init__(self, problem: LearningProblem) -> None:
        self._problem, y = problem, problem.train.y
        if problem.is_regression:
            answers: list[Any] = [float(np.mean(y)), float(np.median(y))]
        else:
            classes, counts = np.unique(y, return_counts=True)
            answers = list(classes[np.argsort(-counts, kind="stable")][:_MOST_ANSWERS])
        scores = [self._score_answer(y, answer) for answer in answers]
        self.score = max(scores)
        self.answer = answers[scores.index(self.score)]

    def _score_answer(self, y: NDArray[Any], answer: Any) -> float:
        """Return the score of the constant prediction `answer`; -inf if it is undefined."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return self._problem.score_predictions(y, np.full(len(y), answer))
            except ValueError:
                return -np.inf

    def why_not_beaten(self, estimator: Any) -> str:
        """Return why an estimator is not better than the constant; an empty string if it is better.

        It is better if the lower end of the 95 % confidence interval of its gain in score on the
        test rows is above 0.
        """
        train, test, metric = self._problem.train, self._problem.test, self._problem.metric
        ours = np.asarray(clone(estimator).fit(train.X, train.y, ids=train.ids).predict(test.X))
        answers = np.full(len(test), self.answer)

        def score_gain(rows: NDArray[np.int64]) -> float:
            y = test.y[rows]
            return float(metric(y, ours[rows])) - float(metric(y, answers[rows]))

        rival = self._score_answer(test.y, self.answer)
        if rival == -np.inf:
            return ""
        value = self._problem.score_predictions(test.y, ours) - rival
        ends = bootstrap(score_gain, len(test), value, n_resamples=_RESAMPLES)
        least = value if ends is None else ends[0]
        if least > 0:
            return ""
        return (
            "it is not significantly better than a constant prediction, "
            f"{self.answer!s} for every row: {self._problem.metric_name} {value + rival:.4g} "
            f"compared with {rival:.4g} on {len(test):,} test rows, at worst {abs(least):.3g} below"
        )
