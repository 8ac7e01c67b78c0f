"""Shadow models: clones of an unlearner that train on random halves of the people, then forget.

Models come in pairs with complementary halves. So every person is in exactly half of the models,
every model forgets equally many people, and a pair is a fold that favours neither side. An
attacker reads one number off a model for one labelled row, larger if it fits better.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from sklearn.base import is_regressor

from letheon.data import Rows, as_ids, hold_table, hold_target, row_ids, table_length
from letheon.inner import fresh_copy
from letheon.measures.attacks._result import AttackResult
from letheon.parallel import run_tasks
from letheon.seeds import library_seed

# Margins beyond this are cut: a probability of exactly 0 or 1 has an infinite one.
LIMIT = 100.0


class Observed(NamedTuple):
    """Signal of each row, and whether the model's prediction of it is right."""

    signal: NDArray[np.float64]
    correct: NDArray[np.bool_]


def margins(
    log_scores: ArrayLike, y: ArrayLike, classes: ArrayLike, *, limit: float = LIMIT
) -> NDArray[np.float64]:
    """Return the logit of the true class's probability, in the stable form.

    ``phi = log p_y - log(1 - p_y) = z_y - log sum_{c != y} exp(z_c)``: the difference of two
    probabilities near 1 is never taken. This is the signal of LiRA and the margin of KLOM.

    Parameters
    ----------
    log_scores : array-like of shape (n, n_classes)
        Logarithms of probabilities, or logits; a constant added to a row changes nothing.
    y : array-like of shape (n,)
        True labels. A label that the model does not know gets ``-limit``.
    classes : array-like of shape (n_classes,)
        Label of each column.
    limit : float, default=100
        Margins are cut to ``[-limit, limit]``.

    Examples
    --------
    >>> margins(np.log([[0.5, 0.25, 0.25]]), ["a"], ["a", "b", "c"]).tolist()
    [0.0]
    """
    z = np.asarray(log_scores, dtype=np.float64)
    truth = np.asarray(y)[:, None] == np.asarray(classes)[None, :]
    with np.errstate(invalid="ignore"):
        right = logsumexp(np.where(truth, z, -np.inf), axis=1)
        wrong = logsumexp(np.where(truth, -np.inf, z), axis=1)
        phi = right - wrong
    # a model that knows one class only, and the other label
    phi = np.where(np.isneginf(right), -limit, phi)
    return np.clip(phi, -limit, limit)


def _log_scores(model: Any, X: Any) -> NDArray[np.float64]:
    """Return log-probabilities, or decision values read through a logistic link."""
    if hasattr(model, "predict_proba"):
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.asarray(model.predict_proba(X), dtype=np.float64)))
    if hasattr(model, "decision_function"):
        values = np.asarray(model.decision_function(X), dtype=np.float64)
        return np.column_stack([np.zeros(len(values)), values]) if values.ndim == 1 else values
    raise TypeError(
        f"{type(model).__name__} has neither predict_proba nor decision_function; an attack needs "
        "to see how sure the model is, not only its labels"
    )


def observe(model: Any, rows: Rows) -> Observed:
    """Return what a fitted model says about these rows.

    Classifiers: `margins` of ``predict_proba``, or of ``decision_function`` by a logistic
    link. Regressors: minus the squared error, and nothing is ever "correct".
    """
    X, y = rows.part(0, len(rows))
    if y is None:
        raise ValueError("an attack needs labels: y is None")
    if is_regressor(model):
        errors = np.asarray(model.predict(X), dtype=np.float64) - y
        squares = (errors**2).reshape(len(errors), -1).sum(axis=1)
        return Observed(-squares, np.zeros(len(squares), bool))
    z = _log_scores(model, X)
    classes = np.asarray(model.classes_)
    return Observed(margins(z, y, classes), classes[z.argmax(axis=1)] == y)


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


class Case(NamedTuple):
    """What an attack is given; `naive` is the prototype of the floor's model."""

    unlearner: Any
    naive: Any
    X: Any
    y: Any
    ids: Any
    forget: Any
    population: tuple[Any, Any] | None
    seed: int = 0
    progress: Progress | None = None


class Attack:
    """What all attacks share: how they are run."""

    name: ClassVar[str]

    def run(
        self,
        unlearner: Any,
        X: Any,
        y: Any,
        *,
        forget: Any,
        ids: Any = None,
        population: tuple[Any, Any] | None = None,
        naive: Any = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> tuple[AttackResult, ...]:
        """Attack clones of an unfitted unlearner.

        Parameters
        ----------
        unlearner : estimator
            Unfitted prototype with ``fit(X, y, ids=)`` and ``forget(ids)``; it is cloned. U-LiRA
            and RMIA also need ``predict_proba`` or ``decision_function`` of a classifier.
        X, y : array-like
            Training rows and labels. The backdoor test poisons copies of them.
        forget : sequence of int or of str
            Ids of the people who leave. `BeforeAfter` needs at least ``4 * batch`` of them.
        ids : sequence, optional
            Whose row each is. Default ``0..n-1``.
        population : (X, y), optional
            Rows nobody trained on. By default RMIA, KLOM and forgetting quality set a fifth of
            the retained people aside, and the backdoor test asks about rows of people who stay;
            the others need none.
        naive : estimator, optional
            Unfitted prototype of the floor's model; default a fresh fit of the unlearner.
            `BeforeAfter` needs none: its floor is about people, not about another model.
        seed : int, default=0
            Seed of everything random.
        progress : callable, optional
            Called with (models trained, models in all), or with worlds or repeats.

        Returns
        -------
        tuple of AttackResult
            One for each kind of people that is attacked.
        """
        if isinstance(unlearner, type):
            raise TypeError(f"give an object, {unlearner.__name__}(...), not the class")
        if not hasattr(unlearner, "forget"):
            name = type(unlearner).__name__
            raise TypeError(
                f"{name} cannot forget, so there is nothing to attack; wrap it: "
                f"NaiveUnlearner({name}(...))"
            )
        fresh = unlearner if naive is None else naive
        return self._attack(Case(unlearner, fresh, X, y, ids, forget, population, seed, progress))

    def _attack(self, case: Case) -> tuple[AttackResult, ...]:
        raise NotImplementedError


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
    def of(cls, case: Case, *, needs_unseen: bool = True, n_jobs: int | None = None) -> "Study":
        """Return the study; without a population a fifth of the retained people is set aside."""
        rows, seed = _held(case.X, case.y, case.ids), case.seed
        owners, forgotten = _people(rows, case.forget)
        if case.population is not None:
            unseen = _held(*case.population, None)
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
