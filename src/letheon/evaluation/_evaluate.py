"""`evaluate`: the unlearner and naive retraining on the same requests."""

import secrets
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from numbers import Integral
from typing import Any

import joblib

from letheon.datasets import Requests
from letheon.evaluation._asked import Asked
from letheon.evaluation._attackers import Findings, attacked, chosen, run_canaries
from letheon.evaluation._baselines import best_ordinary, race
from letheon.evaluation._clock import RequestClock
from letheon.evaluation._contender import few_of, single_job, warmed
from letheon.evaluation._doubts import say_found
from letheon.evaluation._evaluation import Evaluation
from letheon.evaluation._metric import Metric
from letheon.evaluation._problem import Problem
from letheon.evaluation._progress import Progress, progress_bar
from letheon.evaluation._summary import Told, summary
from letheon.evaluation._trial import Contest, run_trial
from letheon.evaluation._warm_up import warm_up
from letheon.exceptions import CannotForgetError
from letheon.parallel import one_thread

__all__ = ["evaluate", "with_canaries"]

# Test rows that a model answers on the clock of a request.
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

    For every seed the unlearner is fitted on the training rows ``D`` and serves all requests
    ``D_u``; naive retraining is run on the same remaining rows. Each property is measured against
    two baselines:

    - *same algorithm*: the same training on ``D \ D_u``, by the fastest solver there is. An exact
      method is equal to it by definition, whatever it costs in accuracy.
    - *ordinary model*: the best ordinary model without unlearning support, on ``D \ D_u``. The
      price of an exact method shows here.

    Parameters
    ----------
    unlearner : forgetting estimator
        Unfitted, or fitted (then its parameters count). It is cloned for every seed.
    data : tuple (X, y) or (X, y, ids), or Dataset
        Training rows and whose they are. Without test rows a quarter of the people is held out.
    requests : Requests, int, float or list of lists of ids, default=20
        Who asks to be forgotten. A number: so many people, or such a share of them, one by one,
        each row as likely.
    test : tuple (X, y) or (X, y, ids), or float, optional
        Test rows, or the share of people to hold out. Who is forgotten leaves the test rows too.
    metric : callable, optional
        ``metric(y_true, y_pred)``, higher is better (losses and errors are refused); by default
        accuracy or R2. In regression the forgotten rows are judged by the mean absolute error
        unless a metric is given.
    ordinary : estimator or list of estimators, optional
        The ordinary model; several are compared by cross-validation, and one that fails there is
        out. By default a linear model, a random forest and boosted trees.
    retrainer : estimator or list of estimators, optional
        Further ways to retrain the same algorithm, which race against those that are known. They
        count if they reach the same loss, or where that is unknown the same answers.
    seeds : int or sequence of int, default=5
        Repetitions, or their seeds.
    comparisons : int, default=3
        Requests of each trial after which both baselines are retrained on the clock.
    attacks : str, attack or iterable of them, default=()
        Names or objects of `letheon.measures.attacks`, run once each on the people of the first
        seed. One that cannot run is named in `Evaluation.failed_attacks`.
    canaries : bool, default=True
        Run the canary test on clones: a backdoor and U-LiRA, on people who were planted there
        (about 33 small fits). Without it and without `attacks` the report says that forgetting
        was not tested.
    title : str, optional
        Name in tables; by default that of the class.
    progress : bool, default=False
        Show a progress bar.
    random_state : int or None, default=0
        Seed of the split and of the first trial; None draws one.

    Returns
    -------
    Evaluation
        Measures with intervals over seeds; with one seed, over test rows and timings.

    Notes
    -----
    Fair by construction: one process, one thread for everybody (`n_jobs` is not used), the
    unlearner and the baselines take turns and change who goes first, a warm-up is not
    counted, and the naive side runs by the fastest solver that reaches the same loss. A request
    is timed until the model has answered twice, has a digest, and no thread or child process that
    it started works any more. Models are copies that keep no files. `Evaluation.fairness` says so
    with the details of this run, `Evaluation.tested` which attacks ran, and `Evaluation.warnings`
    what speaks against the method or its figures.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> import letheon
    >>> data = load_breast_cancer(return_X_y=True)
    >>> forest = letheon.DaREForestClassifier(n_estimators=10)
    >>> found = letheon.evaluate(forest, data, requests=3, seeds=1)
    >>> found.measures["same algorithm"]["effectiveness"].basis, found.equal_digests
    ('by proof', True)
    """
    _require_forgetting(unlearner)
    first = secrets.randbelow(2**31) if random_state is None else int(random_state)
    numbers = _seeds(seeds, first)
    problem = Problem.of(unlearner, data, test, metric, first)
    asked = Asked.of(requests, problem)
    if comparisons < 1:
        raise ValueError(f"comparisons={comparisons!r} must be at least 1")
    attackers = chosen(attacks)
    # Nobody gets more threads than the others.
    alone = single_job(unlearner)
    bar: AbstractContextManager[Progress] = nullcontext(Progress())
    if progress:
        bar = progress_bar(title or type(unlearner).__name__, len(numbers) * len(asked.sizes))
    with one_thread(), bar as shown:
        clock = RequestClock(problem.test.first(_MOST_ANSWERED).X)
        with joblib.parallel_config(backend="sequential"):
            warm = warm_up(alone, problem)
            clock.wait()
            same, tried = race(alone, problem.train, first, retrainer)
            rival, how = best_ordinary(problem, ordinary, first)
            contest = Contest(
                problem=problem,
                unlearner=alone,
                same=same,
                ordinary=warmed(rival, few_of(problem.train)),
                asked=asked,
                clock=clock,
                comparisons=comparisons,
                with_intervals=len(numbers) == 1,
            )
            runs = [run_trial(contest, seed, n, shown.tick) for n, seed in enumerate(numbers)]
            planted = run_canaries(alone, problem, first, shown) if canaries else Findings((), {})
        found = attacked(attackers, unlearner, problem, runs[0][1], first, shown)
    trials = tuple(trial for trial, _ in runs)
    return summary(contest, trials, planted.and_others(found), Told(tried, how, warm), title)


def with_canaries(
    evaluation: Evaluation, unlearner: Any, problem: Problem, seed: int
) -> Evaluation:
    """Return an evaluation with the results of the canary test, if that was left out."""
    with one_thread(), joblib.parallel_config(backend="sequential"):
        planted = run_canaries(single_job(unlearner), problem, seed, Progress())
    return replace(
        evaluation,
        attacks=(*planted.results, *evaluation.attacks),
        failed_attacks=planted.failed | evaluation.failed_attacks,
        warnings=(*say_found(planted.results), *evaluation.warnings),
    )


def _require_forgetting(unlearner: Any) -> None:
    name = unlearner.__name__ if isinstance(unlearner, type) else type(unlearner).__name__
    if isinstance(unlearner, type):
        raise TypeError(f"{name} is a class; give an unfitted model, {name}(...)")
    if not hasattr(unlearner, "forget"):
        raise CannotForgetError(f"{name} cannot forget; wrap it: NaiveUnlearner({name}(...))")


def _seeds(seeds: int | Sequence[int], first: int) -> list[int]:
    several: Any = seeds
    if isinstance(seeds, Integral):
        several = range(first, first + int(seeds))
    numbers = [int(seed) for seed in several]
    if not numbers or len(set(numbers)) != len(numbers):
        raise ValueError(f"seeds={seeds!r} must be a positive number or a list of different ones")
    return numbers
