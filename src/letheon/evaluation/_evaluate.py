"""Function `evaluate`, which runs an unlearner and naive retraining on the same requests."""

import secrets
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from letheon.datasets import Requests
from letheon.evaluation._baselines import (
    best_ordinary,
    find_fastest_retrainer,
    warm_up,
    without_jobs,
)
from letheon.evaluation._clock import RequestClock
from letheon.evaluation._evaluation import CANARY, Evaluation
from letheon.evaluation._problem import LearningProblem, Metric, RequestPlan
from letheon.evaluation._summary import AttackOutcomes, describe_found_people, summarise_trials
from letheon.evaluation._trial import TrialSetup, run_trial
from letheon.exceptions import CannotForgetError
from letheon.measures.attacks import ALL as ATTACKS
from letheon.measures.attacks import AttackResult, BackdoorTest, ULiRA
from letheon.parallel import one_thread
from letheon.terminal import Note, note_nothing, progress_bar

# Largest number of training rows in the canary test.
_CANARY_ROWS = 1_500
_BACKDOOR_SHARE, _MOST_BACKDOORS = 0.1, 60
_WRONG_LABELS, _N_SHADOWS = 20, 12
# Error of the wrong targets in regression, in standard deviations.
_WRONG_BY = 4.0


def resolve_attacks(attacks: Any) -> list[Any]:
    """Return a list of attack objects from one or several names or objects."""
    attackers = [attacks] if isinstance(attacks, str) or hasattr(attacks, "run") else [*attacks]
    for place, attack in enumerate(attackers):
        if isinstance(attack, str):
            if attack not in ATTACKS:
                known = ", ".join(sorted(ATTACKS))
                raise ValueError(f"unknown attack {attack!r}; expected one of: {known}")
            attackers[place] = ATTACKS[attack]()
        elif isinstance(attack, type):
            raise TypeError(
                f"attacks contains the class {attack.__name__}; pass an instance, for example "
                f"{attack.__name__}()"
            )
        elif not hasattr(attack, "run"):
            raise TypeError(
                f"attacks contains a {type(attack).__name__}; expected an attack: a name, or an "
                "object with a method run"
            )
    return attackers


Run = tuple[str, Callable[[], Iterable[AttackResult]]]


def _run_attacks(runs: Sequence[Run], note: Note) -> AttackOutcomes:
    """Return the results of attacks, with the errors of attacks that failed."""
    results: list[AttackResult] = []
    failed: dict[str, str] = {}
    for name, run_twice in runs:
        note(name if name.startswith(CANARY) else f"attack: {name}")
        try:
            results += run_twice()
        except Exception as error:  # noqa: BLE001  (an error must not discard the finished trials)
            failed[name] = f"{type(error).__name__}: {error}"
    return AttackOutcomes(tuple(results), failed)


def _unseen_rows(problem: LearningProblem) -> tuple[Any, Any] | None:
    """Return the test rows of people who have no training rows, or None if there are none."""
    rows = problem.test.without(problem.train.ids)
    return (rows.X, rows.y) if len(rows) else None


def run_canaries(unlearner: Any, problem: LearningProblem, seed: int, note: Note) -> AttackOutcomes:
    """Run the canary test: plant rows that a model can only memorise, and test their removal.

    A tenth of the people carry backdoors (`BackdoorTest`), and twenty have wrong labels (`ULiRA`).
    A finding must be confirmed with other people and other seeds. Clones are trained on at most
    1,500 rows. Ids are replaced with numbers, so that no error contains an id.
    """

    def run_twice(attack: Any) -> list[AttackResult]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = _run_canary(attack, unlearner, problem, seed)
            if result.found:
                result = _run_canary(attack, unlearner, problem, seed + 1)
        return [replace(result, attack=f"{CANARY}{attack.name}")]

    attacks = BackdoorTest(fraction=1.0), ULiRA(n_shadows=_N_SHADOWS, about=("forgotten",))
    return _run_attacks(
        [(f"{CANARY}{attack.name}", partial(run_twice, attack)) for attack in attacks], note
    )


def _run_canary(attack: Any, unlearner: Any, problem: LearningProblem, seed: int) -> AttackResult:
    """Run an attack on a random sample of people; the first people of the sample are canaries."""
    rng = np.random.default_rng([seed, _CANARY_ROWS])
    people, owners = np.unique(problem.train.ids, return_inverse=True)
    numbers = rng.permutation(len(people))[owners]
    sizes = np.cumsum(np.bincount(numbers))
    n_people = max(int(np.searchsorted(sizes, _CANARY_ROWS, side="right")), 1)
    rows, ids = problem.train.take(np.flatnonzero(numbers < n_people)), numbers[numbers < n_people]
    y, population = rows.y, None
    if isinstance(attack, BackdoorTest):
        n_canaries = min(max(round(_BACKDOOR_SHARE * n_people), 5), _MOST_BACKDOORS)
        population = _unseen_rows(problem)
    else:
        n_canaries = min(_WRONG_LABELS, 2 * (n_people // 10))
        y = _with_wrong_labels(y, ids < n_canaries, rng, problem.is_regression)
    canaries = np.arange(n_canaries)
    result: AttackResult = attack.run(
        unlearner, rows.X, y, ids=ids, forget=canaries, population=population, seed=seed
    )[0]
    return result


def _with_wrong_labels(
    y: NDArray[Any], where: NDArray[np.bool_], rng: np.random.Generator, is_regression: bool
) -> NDArray[Any]:
    """Return a copy of the labels with wrong values at the positions `where`."""
    n = int(where.sum())
    if is_regression:
        labels = y.astype(float)
        labels[where] += rng.choice([-1, 1], n) * _WRONG_BY * float(np.std(labels))
        return labels
    labels = y.copy()
    classes, positions = np.unique(y, return_inverse=True)
    labels[where] = classes[(positions[where] + rng.integers(1, len(classes), n)) % len(classes)]
    return labels


# Test rows that a model predicts within the time of a request.
_MOST_ANSWERED = 1_000


def evaluate(
    unlearner: Any,
    data: Any,
    requests: Requests | float | Sequence[Any] = 20,
    *,
    test: Any = None,
    metric: Metric | None = None,
    ordinary: Any = None,
    retrainer: Any = None,
    seeds: int | Sequence[int] = 5,
    comparisons: int = 3,
    attacks: str | Iterable[Any] = (),
    canaries: bool = True,
    title: str | None = None,
    progress: bool = False,
    random_state: int | None = 0,
) -> Evaluation:
    r"""Measure efficiency, effectiveness, consistency and certifiability (survey, section 3).

    For every seed, the unlearner is fitted on the training rows ``D`` and forgets the rows ``D_u``
    of all requests; naive retraining uses the same remaining rows. Each property is measured with
    respect to two baselines:

    - *same algorithm*: the same training on ``D \ D_u``, with the fastest known solver. An exact
      method equals this baseline by definition, even if it loses accuracy.
    - *ordinary model*: the best ordinary model without unlearning support, on ``D \ D_u``. This
      baseline shows the price of an exact method.

    Parameters
    ----------
    unlearner : forgetting estimator
        The method to evaluate. It is cloned for every seed; an earlier fit is ignored.
    data : tuple (X, y) or (X, y, ids), or Dataset
        Training rows and their ids. Without test rows a quarter of the people is held out.
    requests : Requests, int, float or list of lists of ids, default=20
        The requests. An int is a number of people and a float a share of them; these people are
        drawn uniformly and forgotten one by one.
    test : tuple (X, y) or (X, y, ids), or float, optional
        Test rows, or the share of people to hold out. Forgotten people are removed from the test
        rows too.
    metric : callable, optional
        ``metric(y_true, y_pred)``, where higher is better; a loss such as the mean squared error
        is rejected. By default accuracy or R2. In regression the default for forgotten rows is the
        mean absolute error.
    ordinary : estimator or list of estimators, optional
        The ordinary model. Several models are compared by cross-validation, and models that fail
        are skipped. By default a linear model, a random forest and boosted trees.
    retrainer : estimator or list of estimators, optional
        Other estimators that retrain the same algorithm. The fastest is used if it reaches the
        same loss or, if the loss is unknown, the same predictions.
    seeds : int or sequence of int, default=5
        Number of trials, or their seeds.
    comparisons : int, default=3
        Number of requests per trial after which both baselines are retrained and timed.
    attacks : str, attack or iterable of them, default=()
        Names or objects of `letheon.measures.attacks`, run once each on the people of the first
        seed. Attacks that fail are listed in `Evaluation.failed_attacks`.
    canaries : bool, default=True
        Run the canary test on clones: a backdoor and U-LiRA on planted people (about 33 small
        fits). Without the canary test and without `attacks`, the forgetting is not tested.
    title : str, optional
        Name in tables; by default the class name.
    progress : bool, default=False
        Show a progress bar.
    random_state : int or None, default=0
        Seed of the split and of the first trial; None draws a random seed.

    Returns
    -------
    Evaluation
        Measures with confidence intervals over seeds or, with one seed, over test rows and
        timings.

    Raises
    ------
    ValueError
        The rows, the requests or an argument do not fit; the message says which.

    Notes
    -----
    The comparison is fair by construction: all methods run in one process and one thread (`n_jobs`
    is ignored); the unlearner and the baselines alternate, in changing order; a warm-up is not
    counted; naive retraining uses the fastest solver that reaches the same loss. A request is timed
    until the model has predicted twice and computed its digest, and no thread or child process that
    it started is working. Models are copies that keep no files. `Evaluation.fairness` has the
    details of the run, `Evaluation.tested` the attacks, and `Evaluation.warnings` the warnings
    about the method or its figures.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> import letheon
    >>> data = load_breast_cancer(return_X_y=True)
    >>> forest = letheon.DaREForestClassifier(n_estimators=10)
    >>> evaluation = letheon.evaluate(forest, data, requests=3, seeds=1)
    >>> evaluation.measures["same algorithm"]["effectiveness"].basis, evaluation.equal_digests
    ('by proof', True)
    """
    _require_forgetting(unlearner)
    first = secrets.randbelow(2**31) if random_state is None else int(random_state)
    numbers = _list_seeds(seeds, first)
    problem = LearningProblem.from_args(unlearner, data, test, metric, first)
    plan = RequestPlan.from_argument(requests, problem)
    if comparisons < 1:
        raise ValueError(f"comparisons={comparisons!r} is invalid; expected at least 1")
    attackers = resolve_attacks(attacks)
    # All methods run in one thread.
    prototype = without_jobs(unlearner)
    name, n_requests = title or type(unlearner).__name__, len(numbers) * len(plan.sizes)
    with one_thread(), progress_bar(name, n_requests, is_shown=progress) as note:
        clock = RequestClock(problem.test.take(np.arange(min(_MOST_ANSWERED, len(problem.test)))).X)
        with joblib.parallel_config(backend="sequential"):
            warmed = warm_up(prototype, problem)
            clock.wait_until_idle()
            same, race = find_fastest_retrainer(prototype, problem.train, first, retrainer)
            ordinary_trainer, choice = best_ordinary(problem, ordinary, first)
            setup = TrialSetup(
                problem=problem,
                unlearner=prototype,
                same=same,
                ordinary=ordinary_trainer,
                requests=plan,
                clock=clock,
                comparisons=comparisons,
                with_intervals=len(numbers) == 1,
                warm_up=warmed,
                race=race,
                choice=choice,
            )
            runs = [run_trial(setup, seed, n, note) for n, seed in enumerate(numbers)]
            planted = (
                run_canaries(prototype, problem, first, note)
                if canaries
                else AttackOutcomes((), {})
            )
        train, population = problem.train, _unseen_rows(problem)
        options = {"ids": train.ids, "forget": runs[0][1], "population": population, "seed": first}
        attempts = [
            (
                getattr(attack, "name", type(attack).__name__),
                partial(attack.run, unlearner, train.X, train.y, **options),
            )
            for attack in attackers
        ]
        others = _run_attacks(attempts, note)
    outcomes = AttackOutcomes(planted.results + others.results, planted.failed | others.failed)
    trials = tuple(trial for trial, _ in runs)
    return summarise_trials(setup, trials, outcomes, title)


def with_canaries(
    evaluation: Evaluation, unlearner: Any, problem: LearningProblem, seed: int
) -> Evaluation:
    """Return an evaluation with the results of the canary test added.

    Parameters
    ----------
    evaluation : Evaluation
        Result of `evaluate`.
    unlearner : forgetting estimator
        The unfitted estimator that was evaluated.
    problem : LearningProblem
        The rows to plant canaries in.
    seed : int
        Seed of the canaries.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> data = np.random.default_rng(0).normal(size=(80, 2)), np.repeat([0, 1], 40)
    >>> problem = LearningProblem.from_args(NearestCentroid(), data, 0.25, None, 0)
    >>> plain = evaluate(NearestCentroid(), data, requests=2, seeds=1, attacks=())
    >>> len(with_canaries(plain, NearestCentroid(), problem, 0).attacks) > 0
    True
    """
    with one_thread(), joblib.parallel_config(backend="sequential"):
        planted = run_canaries(without_jobs(unlearner), problem, seed, note_nothing)
    return replace(
        evaluation,
        attacks=(*planted.results, *evaluation.attacks),
        failed_attacks=planted.failed | evaluation.failed_attacks,
        warnings=(*describe_found_people(planted.results), *evaluation.warnings),
    )


def _require_forgetting(unlearner: Any) -> None:
    name = unlearner.__name__ if isinstance(unlearner, type) else type(unlearner).__name__
    if isinstance(unlearner, type):
        raise TypeError(f"unlearner is the class {name}; pass an instance, for example {name}(...)")
    if not hasattr(unlearner, "forget"):
        raise CannotForgetError(
            f"unlearner {name} has no method forget; wrap it, for example "
            f"NaiveUnlearner({name}(...))"
        )


def _list_seeds(seeds: int | Sequence[int], first: int) -> list[int]:
    listed: Any = range(first, first + int(seeds)) if isinstance(seeds, Integral) else seeds
    numbers = [int(seed) for seed in listed]
    if not numbers or len(set(numbers)) != len(numbers):
        raise ValueError(
            f"seeds={seeds!r} is invalid; expected a positive number or a sequence of distinct "
            "seeds"
        )
    return numbers
