"""The attackers of an evaluation, and the canary test that it runs by default."""

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.evaluation._doubts import CANARY
from letheon.evaluation._problem import Problem, Rows
from letheon.evaluation._progress import Progress
from letheon.measures.attacks import ALL as ATTACKS
from letheon.measures.attacks import AttackResult, BackdoorTest, ULiRA

__all__ = ["Findings", "attacked", "chosen", "run_canaries"]

# Clones of the canary test train on so many rows at most.
_CANARY_ROWS = 1_500
_BACKDOOR_SHARE, _MOST_BACKDOORS = 0.1, 60
_WRONG_LABELS, _N_SHADOWS = 20, 12
# A number that is wrong by so many standard deviations.
_WRONG_BY = 4.0


class Findings(NamedTuple):
    """What attackers found, and why others could not run."""

    results: tuple[AttackResult, ...]
    failed: dict[str, str]

    def and_others(self, others: "Findings") -> "Findings":
        """Return these findings, and others after them."""
        return Findings(self.results + others.results, self.failed | others.failed)


def chosen(attacks: Any) -> list[Any]:
    """Return the attacks that names, or one name, stand for; objects as they are."""
    several = [attacks] if isinstance(attacks, str) or hasattr(attacks, "run") else attacks
    return [_attack(attack) for attack in several]


def _attack(attack: Any) -> Any:
    if isinstance(attack, str):
        if attack not in ATTACKS:
            raise ValueError(f"no attack is called {attack!r}; known: {', '.join(sorted(ATTACKS))}")
        return ATTACKS[attack]()
    if isinstance(attack, type):
        raise TypeError(f"{attack.__name__} is a class; give an attack, {attack.__name__}()")
    if not hasattr(attack, "run"):
        raise TypeError(f"{type(attack).__name__} is no attack: it has no run")
    return attack


def attacked(
    attacks: list[Any],
    unlearner: Any,
    problem: Problem,
    forget: NDArray[Any],
    seed: int,
    shown: Progress,
) -> Findings:
    """Return what the attackers find about these people; one that fails does not end the others.

    Rows that nobody trained on are test rows of people who have no training rows.
    """
    train, unseen = problem.train, problem.test.without(problem.train.ids)
    results: list[AttackResult] = []
    failed: dict[str, str] = {}
    for attack in attacks:
        name = getattr(attack, "name", type(attack).__name__)
        shown.say(f"attack: {name}")
        try:
            results += attack.run(
                unlearner,
                train.X,
                train.y,
                ids=train.ids,
                forget=forget,
                population=(unseen.X, unseen.y) if len(unseen) else None,
                seed=seed,
            )
        except Exception as error:  # noqa: BLE001  (the trials are done, and must not be lost)
            failed[name] = f"{type(error).__name__}: {error}"
    return Findings(tuple(results), failed)


def run_canaries(unlearner: Any, problem: Problem, seed: int, shown: Progress) -> Findings:
    """Plant people whom a model can only know by heart in clones, and look whether they leave.

    A tenth of the people carry backdoors (`BackdoorTest`); twenty have wrong labels (`ULiRA`).
    What is found must be found a second time, with other people and other seeds. Clones train
    on 1,500 rows at most; people are numbered anew, so that no error names one of them.
    """
    results: list[AttackResult] = []
    failed: dict[str, str] = {}
    for attack in (BackdoorTest(fraction=1.0), ULiRA(n_shadows=_N_SHADOWS, about=("forgotten",))):
        name = f"{CANARY}{attack.name}"
        shown.say(name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = _plant(attack, unlearner, problem, seed)
                if result.found:
                    result = _plant(attack, unlearner, problem, seed + 1)
            results.append(replace(result, attack=name))
        except Exception as error:  # noqa: BLE001  (the trials are done, and must not be lost)
            failed[name] = f"{type(error).__name__}: {error}"
    return Findings(tuple(results), failed)


def _plant(attack: Any, unlearner: Any, problem: Problem, seed: int) -> AttackResult:
    rng = np.random.default_rng([seed, _CANARY_ROWS])
    rows = _some_people(problem.train, rng)
    n_people = int(rows.ids.max()) + 1
    if isinstance(attack, BackdoorTest):
        n_canaries = min(max(round(_BACKDOOR_SHARE * n_people), 5), _MOST_BACKDOORS)
        y, unseen = rows.y, problem.test.without(problem.train.ids)
        population = (unseen.X, unseen.y) if len(unseen) else None
    else:
        n_canaries = min(_WRONG_LABELS, 2 * (n_people // 10))
        y, population = rows.y.astype(float if problem.is_regression else rows.y.dtype), None
        wrong = rows.ids < n_canaries
        y[wrong] = _wrong(y, wrong, rng, problem.is_regression)
    canaries = np.arange(n_canaries)
    result: AttackResult = attack.run(
        unlearner, rows.X, y, ids=rows.ids, forget=canaries, population=population, seed=seed
    )[0]
    return result


def _some_people(train: Rows, rng: np.random.Generator) -> Rows:
    """Return the rows of random people, numbered in random order."""
    people, owners = np.unique(train.ids, return_inverse=True)
    numbers = rng.permutation(len(people))[owners]
    sizes = np.cumsum(np.bincount(numbers))
    n_people = max(int(np.searchsorted(sizes, _CANARY_ROWS, side="right")), 1)
    some = train.at(np.flatnonzero(numbers < n_people))
    return replace(some, ids=numbers[numbers < n_people])


def _wrong(
    y: NDArray[Any], where: NDArray[np.bool_], rng: np.random.Generator, is_regression: bool
) -> NDArray[Any]:
    """Return other labels than those of some rows."""
    n = int(where.sum())
    if is_regression:
        return np.asarray(y[where] + rng.choice([-1, 1], n) * _WRONG_BY * float(np.std(y)))
    classes, positions = np.unique(y, return_inverse=True)
    others = rng.integers(1, len(classes), n)
    return np.asarray(classes[(positions[where] + others) % len(classes)])
