"""Shadow models: clones of an unlearner that train on random halves of the people, then forget.

Models come in pairs with complementary halves. So every person is in exactly half of the models,
every model forgets equally many people, and a pair is a fold that favours neither side.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.data import Rows, as_ids, hold_table, hold_target, row_ids, table_length
from letheon.measures._copies import fresh_copy
from letheon.measures.attacks._signal import Observed, observe
from letheon.parallel import run_tasks
from letheon.seeds import library_seed

__all__ = ["Progress", "Shadows", "Study", "check_unlearner", "halves", "mean_by_person"]

Progress = Callable[[int, int], None]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Attacks make no decision about a model that is used, so a plain generator serves.
_HALVES, _SET_ASIDE, _SAMPLE = 1, 2, 3
# Shadow models whose end is reported at once.
_BATCH = 8
_UNSEEN_SHARE = 0.2


class Shadows(NamedTuple):
    """Signals of all shadow models at the probed rows, one line for each model.

    `before`: those of the models that forget, before they do.
    """

    signal: Floats
    correct: Bools
    before: Floats


def check_unlearner(unlearner: Any) -> None:
    """Refuse what cannot be asked to forget."""
    if isinstance(unlearner, type):
        raise TypeError(f"give an object, {unlearner.__name__}(...), not the class")
    if not hasattr(unlearner, "forget"):
        name = type(unlearner).__name__
        raise TypeError(
            f"{name} cannot forget, so there is nothing to attack; wrap it: "
            f"NaiveUnlearner({name}(...))"
        )


def halves(n_people: int, candidates: Bools, n_models: int, seed: int) -> Bools:
    """Return who is in which model: complementary pairs, candidates split evenly.

    Parameters
    ----------
    n_people : int
        Number of people.
    candidates : ndarray of bool, shape (n_people,)
        People who will be forgotten where they are in; their number should be even.
    n_models : int
        Number of models, even.
    seed : int
        Seed of the halves.

    Returns
    -------
    ndarray of bool, shape (n_models, n_people)
        Lines 2k and 2k + 1 are complements.
    """
    rng = np.random.default_rng([seed, _HALVES])
    members = np.zeros((n_models, n_people), bool)
    for first in range(0, n_models, 2):
        for group in (np.flatnonzero(candidates), np.flatnonzero(~candidates)):
            chosen = rng.permutation(group)[: (len(group) + int(rng.integers(2))) // 2]
            members[first, chosen] = True
        members[first + 1] = ~members[first]
    return members


def mean_by_person(values: NDArray[Any], owners: Ints) -> Floats:
    """Return the mean over each person's rows (last axis), people in ascending order."""
    order = np.argsort(owners, kind="stable")
    starts = np.flatnonzero(np.diff(owners[order], prepend=-1))
    counts = np.diff(starts, append=len(owners))
    return np.asarray(np.add.reduceat(values[..., order], starts, axis=-1) / counts)


@dataclass(frozen=True)
class _Task:
    """What every shadow model needs."""

    rows: Rows
    owners: Ints
    probe: Rows

    def fitted(self, prototype: Any, people: Bools, seed: int) -> Any:
        """Return a clone that was fitted on the rows of these people."""
        model = fresh_copy(prototype, seed)
        rows = self.rows.take(np.flatnonzero(people[self.owners]))
        X, y = rows.part(0, len(rows))
        if hasattr(model, "forget"):
            return model.fit(X, y, ids=rows.ids.to_array())
        return model.fit(X, y)

    def forget(self, model: Any, people: Bools, gone: Bools) -> None:
        """Let a clone that was fitted on `people` forget those who are `gone`."""
        where = np.flatnonzero((people & gone)[self.owners])
        if len(where):
            model.forget(self.rows.ids.take(where).distinct().to_list())


def _train(
    task: _Task, prototype: Any, people: Bools, gone: Bools | None, seed: int
) -> tuple[Observed, Observed | None]:
    """Train one model, let it forget if asked; return what it says, and what it said before."""
    model = task.fitted(prototype, people, seed)
    if gone is None:
        return observe(model, task.probe), None
    before = observe(model, task.probe)
    task.forget(model, people, gone)
    return observe(model, task.probe), before


@dataclass(frozen=True)
class Study:
    """Whom an attack is about: the training rows, who leaves, and rows that nobody trains on.

    Made by `Study.of`. People are numbered in order of their first row.
    """

    rows: Rows
    owners: Ints
    forgotten: Bools
    unseen: Rows
    seed: int
    n_jobs: int | None = None

    @classmethod
    def of(
        cls,
        X: Any,
        y: Any,
        *,
        forget: Any,
        ids: Any,
        population: tuple[Any, Any] | None,
        seed: int,
        needs_unseen: bool = True,
        n_jobs: int | None = None,
    ) -> "Study":
        """Return the study; without a population a fifth of the retained people is set aside."""
        rows = _held(X, y, ids)
        owners, forgotten = _people(rows, forget)
        if population is not None:
            unseen = _held(*population, None)
        elif not needs_unseen:
            unseen = rows.take(np.array([], np.int64))
        else:
            kept = np.flatnonzero(~forgotten)
            rng = np.random.default_rng([seed, _SET_ASIDE])
            aside = np.zeros(len(forgotten), bool)
            aside[rng.permutation(kept)[: max(1, int(_UNSEEN_SHARE * len(kept)))]] = True
            unseen = rows.take(np.flatnonzero(aside[owners]))
            rows = rows.take(np.flatnonzero(~aside[owners]))
            owners = np.unique(owners[~aside[owners]], return_inverse=True)[1].astype(np.int64)
            forgotten = forgotten[~aside]
        return cls(rows, owners, forgotten, unseen, seed, n_jobs)

    @property
    def n_people(self) -> int:
        """Number of people who may be trained on."""
        return len(self.forgotten)

    @cached_property
    def candidates(self) -> Bools:
        """The people who may be forgotten: an even number, so one retained person may join."""
        chosen = self.forgotten.copy()
        if chosen.sum() % 2:
            rng = np.random.default_rng([self.seed, _SAMPLE])
            chosen[rng.choice(np.flatnonzero(~self.forgotten))] = True
        return chosen

    def retained(self, most: int) -> Ints:
        """Return up to `most` people who are never forgotten, in ascending order."""
        kept = np.flatnonzero(~self.candidates)
        rng = np.random.default_rng([self.seed, _SAMPLE, most])
        return np.sort(rng.permutation(kept)[:most])

    def probe(self, people: Ints, n_unseen: int) -> "Probe":
        """Return the rows of these people, followed by rows that nobody trained on."""
        where = np.flatnonzero(np.isin(self.owners, people))
        rng = np.random.default_rng([self.seed, _SAMPLE, n_unseen])
        unseen = np.sort(rng.permutation(len(self.unseen))[:n_unseen])
        mine, others = self.rows.take(where), self.unseen.take(unseen)
        seen = Rows(mine.X, mine.y, row_ids(None, len(mine)))
        if len(others):
            seen = seen.joined(Rows(others.X, others.y, row_ids(None, len(others))))
        return Probe(seen, self.owners[where])

    def train(
        self,
        probe: "Probe",
        jobs: "list[Job]",
        *,
        progress: Progress | None = None,
    ) -> Shadows:
        """Train the models and return what each says about the probed rows."""
        task = _Task(self.rows, self.owners, probe.rows)
        payloads = [
            (job.prototype, job.people, job.gone, library_seed(self.seed, job.purpose, job.number))
            for job in jobs
        ]
        observed: list[tuple[Observed, Observed | None]] = []
        for start in range(0, len(payloads), _BATCH):
            batch = payloads[start : start + _BATCH]
            observed += run_tasks(_train, batch, n_jobs=self.n_jobs, shared=(task,))
            if progress is not None:
                progress(len(observed), len(payloads))
        return Shadows(
            np.array([after.signal for after, _ in observed]),
            np.array([after.correct for after, _ in observed]),
            np.array([before.signal for _, before in observed if before is not None]),
        )


class Probe(NamedTuple):
    """Rows that are looked at: first those of people (whose numbers follow), then unseen ones."""

    rows: Rows
    owners: Ints

    def of_people(self, values: NDArray[Any], people: Ints) -> Floats:
        """Return the mean over the rows of each of these people."""
        mine = np.isin(self.owners, people)
        where = np.flatnonzero(mine)
        return mean_by_person(values[..., where], self.owners[where])

    def of_unseen(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the rows that nobody trained on."""
        return values[..., len(self.owners) :]


class Job(NamedTuple):
    """One model to train: on whom, and who is then forgotten (None: it is never asked to)."""

    prototype: Any
    people: Bools
    gone: Bools | None
    purpose: str
    number: int


def _held(X: Any, y: Any, ids: Any) -> Rows:
    """Return rows as models hold them."""
    if y is None:
        raise ValueError("an attack needs labels: y is None")
    # images, which nets take, are no table
    is_image = isinstance(X, np.ndarray) and X.ndim > 2
    held, target = X if is_image else hold_table(X), hold_target(y)
    if table_length(held) != len(target):
        raise ValueError(f"X has {table_length(held)} rows and y has {len(target)}")
    return Rows(held, target, row_ids(ids, len(target)))


def _people(rows: Rows, forget: Any) -> tuple[Ints, Bools]:
    """Return the person of each row, and which people leave."""
    numbers: dict[Any, int] = {}
    listed = rows.ids.to_list()
    owners = np.fromiter(
        (numbers.setdefault(each, len(numbers)) for each in listed), np.int64, len(listed)
    )
    wanted = as_ids(forget).distinct().to_list()
    missing = [each for each in wanted if each not in numbers]
    if missing or not wanted:
        raise ValueError(f"forget must name people of the training rows; not there: {missing[:5]}")
    leaving = np.zeros(len(numbers), bool)
    leaving[[numbers[each] for each in wanted]] = True
    if leaving.sum() > len(leaving) - 3:
        raise ValueError(
            f"forget names {int(leaving.sum())} of {len(leaving)} people; an attack needs others "
            "who stay"
        )
    return owners, leaving
