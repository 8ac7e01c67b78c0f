"""Requests to a forest, and a bookkeeper of the rows that it must hold after them."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from letheon import load, save
from tests.forest.people import DataSource, ForestPeople, pick, raw_predictions


class Played:
    """A model and, beside it, the rows that it should hold."""

    def __init__(
        self, world: DataSource, model: Any, remaining: ForestPeople, folder: Path
    ) -> None:
        self.world = world
        self.model = model
        self.held = remaining.held()
        self.folder = folder

    def play(self, rng: np.random.Generator, most: int, *, without: str = "") -> None:
        """Make some requests, `most` at most."""
        names = [name for name in PLAYS if name != without]
        for _ in range(int(rng.integers(1, most + 1))):
            PLAYS[pick(rng, *names)](self, rng)

    def forget(self, gone: list[Any]) -> None:
        self.model.forget(gone)
        self.held = self.held.without(gone)

    def learn(self, more: ForestPeople) -> None:
        self.model.learn(more.X, more.y, sample_weight=more.sample_weight, ids=more.ids)
        self.held = self.held.plus(more.held())

    def some_people(self, rng: np.random.Generator, share: float) -> list[Any]:
        """Return a random share of all people, never the last one."""
        persons = self.held.persons
        size = min(max(1, round(share * len(persons))), len(persons) - 1)
        return [persons[i] for i in rng.permutation(len(persons))[:size]]


def _forget_one(state: Played, rng: np.random.Generator) -> None:
    state.forget(state.some_people(rng, 0))


def _forget_some(state: Played, rng: np.random.Generator) -> None:
    gone = state.some_people(rng, rng.random() / 4)
    state.forget(gone + gone[:1])


def _forget_most(state: Played, rng: np.random.Generator) -> None:
    state.forget(state.some_people(rng, float(rng.choice([0.6, 0.9, 1.0]))))


def _learn(state: Played, rng: np.random.Generator) -> None:
    state.learn(state.world.people(rng, int(rng.integers(1, 12))))


def _learn_a_newcomer(state: Played, rng: np.random.Generator) -> None:
    more = state.world.people(rng, int(rng.integers(1, 4)))
    newcomer = f"new {rng.integers(9)}" if state.world.text_ids else int(rng.integers(5000, 5009))
    more.ids[:] = newcomer
    state.learn(more)


def _predict(state: Played, rng: np.random.Generator) -> None:
    X = state.world.people(rng, 5).X
    first, again = raw_predictions(state.model, X), raw_predictions(state.model, X)
    np.testing.assert_array_equal(first, again)


def _settle(state: Played, rng: np.random.Generator) -> None:
    state.model.settle()


def _save_and_load(state: Played, rng: np.random.Generator) -> None:
    path = state.folder / "forest.letheon"
    save(state.model, path)
    state.model = load(path)


def _pickle(state: Played, rng: np.random.Generator) -> None:
    state.model = pickle.loads(pickle.dumps(state.model))


def _ask_the_cost(state: Played, rng: np.random.Generator) -> None:
    before = state.model.n_rows_
    state.model.forget_cost(state.some_people(rng, 0.2))
    assert state.model.n_rows_ == before


PLAYS: dict[str, Callable[[Played, np.random.Generator], None]] = {
    "forget one": _forget_one,
    "forget some": _forget_some,
    "forget most": _forget_most,
    "learn": _learn,
    "learn a newcomer": _learn_a_newcomer,
    "predict": _predict,
    "settle": _settle,
    "save and load": _save_and_load,
    "pickle": _pickle,
    "ask the cost": _ask_the_cost,
}
