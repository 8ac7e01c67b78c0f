"""The attackers of an evaluation."""

from typing import Any, NamedTuple

from numpy.typing import NDArray

from letheon.evaluation._problem import Problem
from letheon.evaluation._progress import Progress
from letheon.measures.attacks import ALL as ATTACKS
from letheon.measures.attacks import AttackResult

__all__ = ["Findings", "attacked", "chosen"]


class Findings(NamedTuple):
    """What attackers found, and why others could not run."""

    results: tuple[AttackResult, ...]
    failed: dict[str, str]


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
