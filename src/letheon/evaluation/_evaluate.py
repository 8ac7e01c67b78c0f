"""`evaluate`: the unlearner and naive retraining on the same requests."""

import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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

# Takes what is done now; without it, one more request is served.
Note = Callable[..., None]


def _note_nothing(what: str = "") -> None:
    """There is no bar."""


@contextmanager
def _progress_bar(title: str, total: int) -> Iterator[Note]:
    """Show a bar on standard error while the block runs."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=total)

        def note(what: str = "") -> None:
            if what:
                bars.update(task, description=f"{title}: {what}")
            else:
                bars.advance(task)

        yield note


# Clones of the canary test train on so many rows at most.
_CANARY_ROWS = 1_500
_BACKDOOR_SHARE, _MOST_BACKDOORS = 0.1, 60
_WRONG_LABELS, _N_SHADOWS = 20, 12
# A number that is wrong by so many standard deviations.
_WRONG_BY = 4.0


def resolve_attacks(attacks: Any) -> list[Any]:
    """Return the attacks that names, or one name, stand for; objects as they are."""
    several = [attacks] if isinstance(attacks, str) or hasattr(attacks, "run") else [*attacks]
    for place, attack in enumerate(several):
        if isinstance(attack, str):
            if attack not in ATTACKS:
                known = ", ".join(sorted(ATTACKS))
                raise ValueError(f"no attack is called {attack!r}; known: {known}")
            several[place] = ATTACKS[attack]()
        elif isinstance(attack, type):
            raise TypeError(f"{attack.__name__} is a class; give an attack, {attack.__name__}()")
        elif not hasattr(attack, "run"):
            raise TypeError(f"{type(attack).__name__} is no attack: it has no run")
    return several


Run = tuple[str, Callable[[], Iterable[AttackResult]]]


def _run_attacks(runs: Sequence[Run], note: Note) -> AttackOutcomes:
    """Return what attackers find; one that fails does not end the others."""
    results: list[AttackResult] = []
    failed: dict[str, str] = {}
    for name, run_twice in runs:
        note(name if name.startswith(CANARY) else f"attack: {name}")
        try:
            results += run_twice()
        except Exception as error:  # noqa: BLE001  (the trials are done, and must not be lost)
            failed[name] = f"{type(error).__name__}: {error}"
    return AttackOutcomes(tuple(results), failed)


def _unseen_rows(problem: LearningProblem) -> tuple[Any, Any] | None:
    """Return rows that nobody trained on: test rows of people who have no training rows."""
    rows = problem.test.without(problem.train.ids)
    return (rows.X, rows.y) if len(rows) else None


def run_canaries(unlearner: Any, problem: LearningProblem, seed: int, note: Note) -> AttackOutcomes:
    """Plant people whom a model can only know by heart in clones, and look whether they leave.

    A tenth of the people carry backdoors (`BackdoorTest`); twenty have wrong labels (`ULiRA`).
    What is found must be found a second time, with other people and other seeds. Clones train
    on 1,500 rows at most; people are numbered anew, so that no error names one of them.
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
    """Run an attack on rows of random people, numbered in random order; the first are canaries."""
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
    """Return labels of which some are other ones."""
    n = int(where.sum())
    if is_regression:
        labels = y.astype(float)
        labels[where] += rng.choice([-1, 1], n) * _WRONG_BY * float(np.std(labels))
        return labels
    labels = y.copy()
    classes, positions = np.unique(y, return_inverse=True)
    labels[where] = classes[(positions[where] + rng.integers(1, len(classes), n)) % len(classes)]
    return labels


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
    numbers = _list_seeds(seeds, first)
    problem = LearningProblem.from_arguments(unlearner, data, test, metric, first)
    asked = RequestPlan.from_argument(requests, problem)
    if comparisons < 1:
        raise ValueError(f"comparisons={comparisons!r} must be at least 1")
    attackers = resolve_attacks(attacks)
    # Nobody gets more threads than the others.
    alone = without_jobs(unlearner)
    bar: AbstractContextManager[Note] = nullcontext(_note_nothing)
    if progress:
        bar = _progress_bar(title or type(unlearner).__name__, len(numbers) * len(asked.sizes))
    with one_thread(), bar as note:
        clock = RequestClock(problem.test.take(np.arange(min(_MOST_ANSWERED, len(problem.test)))).X)
        with joblib.parallel_config(backend="sequential"):
            warm = warm_up(alone, problem)
            clock.wait_until_idle()
            same, tried = find_fastest_retrainer(alone, problem.train, first, retrainer)
            rival, how = best_ordinary(problem, ordinary, first)
            contest = TrialSetup(
                problem=problem,
                unlearner=alone,
                same=same,
                ordinary=rival,
                asked=asked,
                clock=clock,
                comparisons=comparisons,
                with_intervals=len(numbers) == 1,
                warm=warm,
                tried=tried,
                how=how,
            )
            runs = [run_trial(contest, seed, n, note) for n, seed in enumerate(numbers)]
            planted = (
                run_canaries(alone, problem, first, note) if canaries else AttackOutcomes((), {})
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
    findings = AttackOutcomes(planted.results + others.results, planted.failed | others.failed)
    trials = tuple(trial for trial, _ in runs)
    return summarise_trials(contest, trials, findings, title)


def with_canaries(
    evaluation: Evaluation, unlearner: Any, problem: LearningProblem, seed: int
) -> Evaluation:
    """Return an evaluation with the results of the canary test, if that was left out."""
    with one_thread(), joblib.parallel_config(backend="sequential"):
        planted = run_canaries(without_jobs(unlearner), problem, seed, _note_nothing)
    return replace(
        evaluation,
        attacks=(*planted.results, *evaluation.attacks),
        failed_attacks=planted.failed | evaluation.failed_attacks,
        warnings=(*describe_found_people(planted.results), *evaluation.warnings),
    )


def _require_forgetting(unlearner: Any) -> None:
    name = unlearner.__name__ if isinstance(unlearner, type) else type(unlearner).__name__
    if isinstance(unlearner, type):
        raise TypeError(f"{name} is a class; give an unfitted model, {name}(...)")
    if not hasattr(unlearner, "forget"):
        raise CannotForgetError(f"{name} cannot forget; wrap it: NaiveUnlearner({name}(...))")


def _list_seeds(seeds: int | Sequence[int], first: int) -> list[int]:
    several: Any = seeds
    if isinstance(seeds, Integral):
        several = range(first, first + int(seeds))
    numbers = [int(seed) for seed in several]
    if not numbers or len(set(numbers)) != len(numbers):
        raise ValueError(f"seeds={seeds!r} must be a positive number or a list of different ones")
    return numbers
