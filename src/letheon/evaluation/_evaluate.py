"""`evaluate`: the unlearner and naive retraining on the same requests."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.datasets import Requests
from letheon.evaluation._baselines import best_ordinary, race
from letheon.evaluation._evaluation import Evaluation
from letheon.evaluation._problem import Metric, Problem
from letheon.evaluation._progress import Progress, progress_bar
from letheon.evaluation._summary import summary
from letheon.evaluation._trial import Contest, run_trial
from letheon.evaluation._warm_up import warm_up
from letheon.guarantee import Task
from letheon.measures.attacks import ALL as ATTACKS
from letheon.measures.attacks import AttackResult
from letheon.parallel import one_thread

__all__ = ["evaluate"]


def evaluate(
    unlearner: Any,
    data: Any,
    requests: Requests | int | Sequence[Any] = 20,
    *,
    test: Any = None,
    metric: Metric | None = None,
    ordinary: Any = None,
    retrainer: Any = None,
    seeds: int | Sequence[int] = 5,
    comparisons: int = 3,
    attacks: Iterable[Any] = (),
    title: str | None = None,
    progress: bool = False,
    random_state: int = 0,
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
    requests : Requests, int or list of lists of ids, default=20
        Who asks to be forgotten. A number: so many people, one by one, each row as likely.
    test : tuple (X, y) or (X, y, ids), or float, optional
        Test rows, or the share of people to hold out. Who is forgotten leaves the test rows too.
    metric : callable, optional
        ``metric(y_true, y_pred)``, higher is better; by default accuracy or R2. In regression the
        forgotten rows are judged by the mean absolute error unless a metric is given.
    ordinary : estimator or list of estimators, optional
        The ordinary model; several are compared by cross-validation. By default a linear model, a
        random forest and boosted trees.
    retrainer : estimator or list of estimators, optional
        Further ways to retrain the same algorithm, which race against those that are known.
    seeds : int or sequence of int, default=5
        Repetitions, or their seeds.
    comparisons : int, default=3
        Requests of each trial after which both baselines are retrained on the clock.
    attacks : iterable of str or attack, default=()
        Names or objects of `letheon.measures.attacks`, run once each on the people of the first
        seed.
    title : str, optional
        Name in tables; by default that of the class.
    progress : bool, default=False
        Show a progress bar.
    random_state : int, default=0
        Seed of the split and of the first trial.

    Returns
    -------
    Evaluation
        Measures with intervals over seeds; with one seed, over test rows and timings.

    Notes
    -----
    Fair by construction: one process, one thread for everybody, the unlearner and the baselines
    take turns and change who goes first, a warm-up is not counted, everything that a lazy method
    puts off is counted, and the naive side runs by the fastest solver that reaches the same loss.
    `Evaluation.fairness` says so with the details of this run.

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
    numbers = _seeds(seeds, random_state)
    problem = Problem.of(unlearner, data, test, metric, random_state)
    stream, n_requests, words = _requests(requests, problem)
    if comparisons < 1:
        raise ValueError(f"comparisons={comparisons!r} must be at least 1")
    chosen = [_attack(attack) for attack in attacks]
    bar: AbstractContextManager[Progress] = nullcontext(Progress())
    if progress:
        bar = progress_bar(title or type(unlearner).__name__, len(numbers) * n_requests)
    with one_thread(), bar as shown:
        warm = warm_up(unlearner, problem)
        same, tried = race(unlearner, problem.train, random_state, retrainer)
        rival, how = best_ordinary(problem, ordinary, random_state)
        contest = Contest(
            problem=problem,
            unlearner=unlearner,
            same=same,
            ordinary=rival,
            stream=stream,
            n_requests=n_requests,
            comparisons=comparisons,
            with_intervals=len(numbers) == 1,
        )
        runs = [run_trial(contest, seed, shown.tick) for seed in numbers]
        results = tuple(_attacked(chosen, contest, runs[0][1], random_state, shown))
    trials = tuple(trial for trial, _ in runs)
    return summary(
        contest, trials, results, title=title, requests=words, tried=tried, how=how, warm=warm
    )


def _seeds(seeds: int | Sequence[int], first: int) -> list[int]:
    numbers = list(range(first, first + seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers or len(set(numbers)) != len(numbers):
        raise ValueError(f"seeds={seeds!r} must be a positive number or a list of different ones")
    return numbers


def _requests(
    requests: Requests | int | Sequence[Any], problem: Problem
) -> tuple[Callable[[Any, int], Iterable[NDArray[Any]]], int, str]:
    """Return the stream of a trial, its length, and the distribution in words."""
    train = problem.train
    n_people = len(np.unique(train.ids))
    if isinstance(requests, int):
        requests = Requests(n=requests)
    if isinstance(requests, Requests):
        sizes = requests.sizes(n_people)
        stream = partial(_drawn, requests, problem)
        words = f"{sum(sizes):,} of {n_people:,} people in {len(sizes):,} request(s), "
        return stream, len(sizes), words + requests.kind
    fixed = [np.atleast_1d(np.asarray(ids)) for ids in requests]
    asked = np.concatenate(fixed) if fixed else np.array([])
    if len(asked) == 0:
        raise ValueError("requests is empty; there is nothing to measure")
    if len(np.unique(asked)) != len(asked):
        raise ValueError("somebody is named twice in requests; who has left cannot leave again")
    strangers = asked[~np.isin(asked, train.ids)]
    if len(strangers):
        raise ValueError(f"ids not among the training rows: {strangers[:5].tolist()}")
    words = f"{len(asked):,} of {n_people:,} people in {len(fixed):,} request(s), as given"
    return lambda _model, _seed: fixed, len(fixed), words


def _drawn(requests: Requests, problem: Problem, model: Any, seed: int) -> Iterable[NDArray[Any]]:
    train = problem.train
    task: Task = "regression" if problem.is_regression else "classification"
    return requests.stream(model, train.X, train.y, train.ids, seed=seed, task=task)


def _attack(attack: Any) -> Any:
    if not isinstance(attack, str):
        return attack
    if attack not in ATTACKS:
        raise ValueError(f"no attack is called {attack!r}; known: {', '.join(sorted(ATTACKS))}")
    return ATTACKS[attack]()


def _attacked(
    attacks: list[Any],
    contest: Contest,
    forget: NDArray[Any],
    seed: int,
    shown: Progress,
) -> Iterable[AttackResult]:
    """Yield what the attackers find about the people whom the first trial forgot."""
    train, test = contest.problem.train, contest.problem.test
    for attack in attacks:
        shown.say(f"attack: {getattr(attack, 'name', type(attack).__name__)}")
        yield from attack.run(
            contest.unlearner,
            train.X,
            train.y,
            ids=train.ids,
            forget=forget,
            population=(test.X, test.y),
            seed=seed,
        )
