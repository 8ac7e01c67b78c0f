"""Shadow models: clones of an unlearner that train on random halves of the people, then forget.

Models come in pairs with complementary halves. So every person is in exactly half of the models,
every model forgets equally many people, and a pair is a fold that favours neither side. An
attacker reads one number off a model for one labelled row, larger if it fits better.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from scipy.special import logsumexp
from sklearn.base import is_regressor

from letheon.data import People, Rows, as_ids, hold_table, hold_target, row_ids, table_length
from letheon.inner_estimator import fresh_copy
from letheon.measures._intervals import Bools, Floats, Ints
from letheon.measures.attacks._result import AttackResult
from letheon.parallel import run_tasks
from letheon.seeds import library_seed

# Margins beyond this are cut: a probability of exactly 0 or 1 has an infinite one.
LIMIT = 100.0

Progress = Callable[[int, int], None]
_Record = TypeVar("_Record", bound=tuple[Any, ...])


class Observation(NamedTuple):
    """Signal of each row, and whether the model's prediction of it is right."""

    signal: Floats
    correct: Bools


def margins(
    log_scores: ArrayLike, y: ArrayLike, classes: ArrayLike, *, limit: float = LIMIT
) -> Floats:
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


def query_confidence(model: Any, X: Any) -> tuple[str, Floats]:
    """Return the name of the method that tells how sure the model is, and what it answers."""
    for way in ("predict_proba", "decision_function"):
        if hasattr(model, way):
            return way, np.asarray(getattr(model, way)(X), dtype=np.float64)
    raise TypeError(
        f"{type(model).__name__} has neither predict_proba nor decision_function; an attack needs "
        "to see how sure the model is, not only its labels"
    )


def observe_model(model: Any, rows: Rows) -> Observation:
    """Return what a fitted model says about these rows.

    Classifiers: `margins` of ``predict_proba``, or of ``decision_function`` by a logistic
    link. Regressors: minus the squared error, and nothing is ever "correct".
    """
    X, y = rows.slice(0, len(rows))
    if y is None:
        raise ValueError("an attack needs labels: y is None")
    if is_regressor(model):
        errors = np.asarray(model.predict(X), dtype=np.float64) - y
        squares = (errors**2).reshape(len(errors), -1).sum(axis=1)
        return Observation(-squares, np.zeros(len(squares), bool))
    way, z = query_confidence(model, X)
    if way == "predict_proba":
        with np.errstate(divide="ignore"):
            z = np.log(z)
    elif z.ndim == 1:
        z = np.column_stack([np.zeros(len(z)), z])
    classes = np.asarray(model.classes_)
    return Observation(margins(z, y, classes), classes[z.argmax(axis=1)] == y)


def join_records(records: Iterable[_Record]) -> _Record:
    """Return one record of arrays, each the concatenation of those of several records."""
    several = list(records)
    return type(several[0])(*map(np.concatenate, zip(*several, strict=True)))


# Attacks make no decision about a model that is used, so a plain generator serves.
_HALVES, _SET_ASIDE, _SAMPLE = 1, 2, 3
# Shadow models whose end is reported at once.
_BATCH = 8
_UNSEEN_SHARE = 0.2


class ShadowSignals(NamedTuple):
    """Signals of all shadow models at the probed rows, one line for each model.

    `before`: those of the models that forget, before they do.
    """

    signal: Floats
    correct: Bools
    before: Floats


class AttackInputs(NamedTuple):
    """What an attack is given; `naive` is the prototype of the floor's model."""

    unlearner: Any
    naive: Any
    X: Any
    y: Any
    ids: Any
    forget: Any
    population: tuple[Any, Any] | None
    seed: int = 0
    progress: Progress = lambda _done, _total: None


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
        case = AttackInputs(unlearner, fresh, X, y, ids, forget, population, seed)
        return self._run_attack(case if progress is None else case._replace(progress=progress))

    def _run_attack(self, case: AttackInputs) -> tuple[AttackResult, ...]:
        raise NotImplementedError


def split_halves(candidates: Bools, n_models: int, seed: int) -> Bools:
    """Return who is in which model: complementary pairs, candidates split evenly.

    Parameters
    ----------
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
    members = np.zeros((n_models, len(candidates)), bool)
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


def fit_copy(prototype: Any, seed: int, X: Any, y: Any, ids: Any) -> Any:
    """Return a fresh fit on these rows; an ordinary estimator is given no ids."""
    model = fresh_copy(prototype, seed)
    return model.fit(X, y, ids=ids) if hasattr(model, "forget") else model.fit(X, y)


def _train_shadow(
    shared: tuple[Rows, Ints, Rows], prototype: Any, people: Bools, gone: Bools | None, seed: int
) -> tuple[Observation, Observation | None]:
    """Train one model, let it forget if asked; return what it says, and what it said before."""
    rows, owners, probe = shared
    mine = rows.take(np.flatnonzero(people[owners]))
    model = fit_copy(prototype, seed, *mine.slice(0, len(mine)), mine.ids.to_array())
    before = None
    if gone is not None:
        before = observe_model(model, probe)
        where = np.flatnonzero((people & gone)[owners])
        if len(where):
            model.forget(rows.ids.take(where).distinct().to_list())
    return observe_model(model, probe), before


@dataclass(frozen=True)
class Study:
    """Whom an attack is about: the training rows, who leaves, and rows that nobody trains on.

    Made by `Study.from_inputs`. People are numbered in order of their first row.
    """

    rows: Rows
    owners: Ints
    forgotten: Bools
    unseen: Rows
    seed: int
    n_jobs: int | None = None

    @classmethod
    def from_inputs(
        cls, case: AttackInputs, *, needs_unseen: bool = True, n_jobs: int | None = None
    ) -> "Study":
        """Return the study; without a population a fifth of the retained people is set aside."""
        rows, seed = _hold_rows(case.X, case.y, case.ids), case.seed
        owners, forgotten = _number_people(rows, case.forget)
        if case.population is not None:
            unseen = _hold_rows(*case.population, None)
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

    @cached_property
    def candidates(self) -> Bools:
        """The people who may be forgotten: an even number, so one retained person may join."""
        chosen = self.forgotten.copy()
        if chosen.sum() % 2:
            rng = np.random.default_rng([self.seed, _SAMPLE])
            chosen[rng.choice(np.flatnonzero(~self.forgotten))] = True
        return chosen

    def sample_people(self, most_retained: int) -> dict[str, Ints]:
        """Return who is attacked: those who leave, and some who are never forgotten, sorted."""
        kept = np.flatnonzero(~self.candidates)
        rng = np.random.default_rng([self.seed, _SAMPLE, most_retained])
        retained = np.sort(rng.permutation(kept)[:most_retained])
        return {"forgotten": np.flatnonzero(self.forgotten), "retained": retained}

    def make_probe(self, people: Ints, n_unseen: int) -> "Probe":
        """Return the rows of these people, followed by rows that nobody trained on."""
        where = np.flatnonzero(np.isin(self.owners, people))
        rng = np.random.default_rng([self.seed, _SAMPLE, n_unseen])
        unseen = np.sort(rng.permutation(len(self.unseen))[:n_unseen])
        mine, others = self.rows.take(where), self.unseen.take(unseen)
        seen = Rows(mine.X, mine.y, row_ids(None, len(mine)))
        if len(others):
            seen = seen.concat(Rows(others.X, others.y, row_ids(None, len(others))))
        return Probe(seen, self.owners[where])

    def train_models(
        self, probe: "Probe", jobs: "list[ShadowTraining]", progress: Progress
    ) -> ShadowSignals:
        """Train the models and return what each says about the probed rows."""
        shared = (self.rows, self.owners, probe.rows)
        payloads = [
            (job.prototype, job.people, job.gone, library_seed(self.seed, job.purpose, job.number))
            for job in jobs
        ]
        observed: list[tuple[Observation, Observation | None]] = []
        for start in range(0, len(payloads), _BATCH):
            batch = payloads[start : start + _BATCH]
            observed += run_tasks(_train_shadow, batch, n_jobs=self.n_jobs, shared=(shared,))
            progress(len(observed), len(payloads))
        return ShadowSignals(
            np.array([after.signal for after, _ in observed]),
            np.array([after.correct for after, _ in observed]),
            np.array([before.signal for _, before in observed if before is not None]),
        )


class Probe(NamedTuple):
    """Rows that are looked at: first those of people (whose numbers follow), then unseen ones."""

    rows: Rows
    owners: Ints

    def rows_of(self, people: Ints) -> tuple[Ints, Ints]:
        """Return the probed rows of these people, and whose each is."""
        where = np.flatnonzero(np.isin(self.owners, people))
        return where, self.owners[where]

    def of_people(self, values: NDArray[Any], people: Ints) -> Floats:
        """Return the mean over the rows of each of these people."""
        where, owners = self.rows_of(people)
        return mean_by_person(values[..., where], owners)

    def of_unseen(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the rows that nobody trained on."""
        return values[..., len(self.owners) :]


class ShadowTraining(NamedTuple):
    """One model to train: on whom, and who is then forgotten (None: it is never asked to)."""

    prototype: Any
    people: Bools
    gone: Bools | None
    purpose: str
    number: int


def _hold_rows(X: Any, y: Any, ids: Any) -> Rows:
    """Return rows as models hold them."""
    if y is None:
        raise ValueError("an attack needs labels: y is None")
    # images, which nets take, are no table
    is_image = isinstance(X, np.ndarray) and X.ndim > 2
    held, target = X if is_image else hold_table(X), hold_target(y)
    if table_length(held) != len(target):
        raise ValueError(f"X has {table_length(held)} rows and y has {len(target)}")
    return Rows(held, target, row_ids(ids, len(target)))


def _number_people(rows: Rows, forget: Any, *, least_staying: int = 3) -> tuple[Ints, Bools]:
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
    if leaving.sum() > len(leaving) - least_staying:
        raise ValueError(
            f"forget names {int(leaving.sum())} of {len(leaving)} people; an attack needs others "
            "who stay"
        )
    return owners, leaving


def read_inputs(case: AttackInputs) -> tuple[People, Bools]:
    """Return training rows as arrays, and which leave, or raise for people who are not there."""
    X, y = as_array(case.X), np.asarray(case.y)
    ids = np.arange(len(X)) if case.ids is None else np.asarray(case.ids)
    owners, leaving = _number_people(_hold_rows(X, y, ids), case.forget, least_staying=1)
    return People(X, y, ids), leaving[owners]


def as_array(X: Any) -> NDArray[Any]:
    """Return rows as an array of numbers, as patterns are stamped on; a frame loses its names."""
    if issparse(X):
        raise TypeError("this attack takes arrays, not sparse matrices: give X.toarray()")
    rows = np.asarray(X)
    if rows.dtype.kind not in "biuf" or rows.ndim < 2:
        raise TypeError(
            f"this attack takes tables and images of numbers, not dtype {rows.dtype} in "
            f"{rows.ndim} dimension(s); encode texts and categories first"
        )
    return rows
