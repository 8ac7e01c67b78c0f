"""Shadow models: clones of an unlearner that train on random halves of the people, then forget.

Models come in pairs with complementary halves. Every person is in exactly half of the models,
every model forgets the same number of people, and each pair is a balanced fold. The signal of a
model for a labelled row is one number, larger if the model fits the row better.
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

# Margins are clipped to this size: a probability of exactly 0 or 1 has an infinite margin.
LIMIT = 100.0

Progress = Callable[[int, int], None]
_Record = TypeVar("_Record", bound=tuple[Any, ...])


class Observation(NamedTuple):
    """For each row, the signal of a model and whether its prediction is correct."""

    signal: Floats
    correct: Bools


def margins(
    log_scores: ArrayLike, y: ArrayLike, classes: ArrayLike, *, limit: float = LIMIT
) -> Floats:
    """Return the logit of the probability of the true class for each row.

    ``phi = log p_y - log(1 - p_y) = z_y - log sum_{c != y} exp(z_c)``. The second form is used; it
    is accurate even if p_y is close to 1. phi is the signal of LiRA and the margin of KLOM.

    Parameters
    ----------
    log_scores : array-like of shape (n, n_classes)
        Logarithms of probabilities, or logits; a constant added to a row changes nothing.
    y : array-like of shape (n,)
        True labels. A label that is not in `classes` gets ``-limit``.
    classes : array-like of shape (n_classes,)
        Label of each column.
    limit : float, default=100
        Margins are clipped to ``[-limit, limit]``.

    Returns
    -------
    ndarray of shape (n,)

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
    # A label that the model does not have.
    phi = np.where(np.isneginf(right), -limit, phi)
    return np.clip(phi, -limit, limit)


def query_confidence(model: Any, X: Any) -> tuple[str, Floats]:
    """Return "predict_proba" or "decision_function", and the output of that method."""
    for method in ("predict_proba", "decision_function"):
        if hasattr(model, method):
            return method, np.asarray(getattr(model, method)(X), dtype=np.float64)
    raise TypeError(
        f"{type(model).__name__} has neither predict_proba nor decision_function; the attack needs "
        "one of them, because predicted labels are not enough"
    )


def observe_model(model: Any, rows: Rows) -> Observation:
    """Return the signals of a fitted model for labelled rows.

    The signal of a classifier is the margin (see `margins`) from ``predict_proba``, or from
    ``decision_function`` with a logistic link. The signal of a regressor is minus the squared
    error, and none of its predictions counts as correct.
    """
    X, y = rows.slice(0, len(rows))
    if y is None:
        raise ValueError("an attack needs labels: y is None")
    if is_regressor(model):
        errors = np.asarray(model.predict(X), dtype=np.float64) - y
        squares = (errors**2).reshape(len(errors), -1).sum(axis=1)
        return Observation(-squares, np.zeros(len(squares), bool))
    method, z = query_confidence(model, X)
    if method == "predict_proba":
        with np.errstate(divide="ignore"):
            z = np.log(z)
    elif z.ndim == 1:
        z = np.column_stack([np.zeros(len(z)), z])
    classes = np.asarray(model.classes_)
    return Observation(margins(z, y, classes), classes[z.argmax(axis=1)] == y)


def join_records(records: Iterable[_Record]) -> _Record:
    """Return one record with the concatenated arrays of all records."""
    parts = list(records)
    return type(parts[0])(*map(np.concatenate, zip(*parts, strict=True)))


# Attacks do not affect a model in use, so a simple random generator is sufficient.
_HALVES, _SET_ASIDE, _SAMPLE = 1, 2, 3
# Shadow models per progress report.
_BATCH = 8
_UNSEEN_SHARE = 0.2


class ShadowSignals(NamedTuple):
    """Signals of all shadow models for the probe rows, one row per model.

    `before` contains the signals before the removal, only for models that forget.
    """

    signal: Floats
    correct: Bools
    before: Floats


class AttackInputs(NamedTuple):
    """Inputs of an attack; `naive` is the unfitted prototype of the retrained model."""

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
    """Base class of all attacks; subclasses implement `_run_attack`."""

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
            Ids to be forgotten. `BeforeAfter` needs at least ``4 * batch`` of them.
        ids : sequence, optional
            Id of each row. Default ``0..n-1``.
        population : (X, y), optional
            Rows that no model is trained on. By default, RMIA, KLOM and forgetting quality hold
            out a fifth of the retained people, and the backdoor test queries rows of retained
            people. The other attacks do not need a population.
        naive : estimator, optional
            Unfitted prototype of the retrained model for the floor; by default the unlearner.
            `BeforeAfter` ignores it: its floor compares people, not models.
        seed : int, default=0
            Random seed.
        progress : callable, optional
            Called as ``progress(done, total)`` with numbers of models (or worlds, or repeats).

        Returns
        -------
        tuple of AttackResult
            One for each group of people that is attacked.
        """
        if isinstance(unlearner, type):
            name = unlearner.__name__
            raise TypeError(
                f"unlearner is the class {name}; pass an instance, for example {name}(...)"
            )
        if not hasattr(unlearner, "forget"):
            name = type(unlearner).__name__
            raise TypeError(f"{name} has no method forget; wrap it: NaiveUnlearner({name}(...))")
        fresh = unlearner if naive is None else naive
        inputs = AttackInputs(unlearner, fresh, X, y, ids, forget, population, seed)
        return self._run_attack(inputs if progress is None else inputs._replace(progress=progress))

    def _run_attack(self, inputs: AttackInputs) -> tuple[AttackResult, ...]:
        raise NotImplementedError


def split_halves(candidates: Bools, n_models: int, seed: int) -> Bools:
    """Return which people each model is trained on: random halves, in complementary pairs.

    The candidates are split evenly between the two models of a pair.

    Parameters
    ----------
    candidates : ndarray of bool, shape (n_people,)
        People whom each model forgets if it was trained on them; an even number.
    n_models : int
        Number of models, even.
    seed : int
        Random seed.

    Returns
    -------
    ndarray of bool, shape (n_models, n_people)
        Rows 2k and 2k + 1 are complements.
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
    """Return the mean of `values` over each person's rows (last axis), in ascending person order.

    `owners` is the number of the person of each row.
    """
    order = np.argsort(owners, kind="stable")
    starts = np.flatnonzero(np.diff(owners[order], prepend=-1))
    counts = np.diff(starts, append=len(owners))
    return np.asarray(np.add.reduceat(values[..., order], starts, axis=-1) / counts)


def fit_copy(prototype: Any, seed: int, X: Any, y: Any, ids: Any) -> Any:
    """Return a copy of `prototype` with this seed, fitted on these rows.

    Ids are passed only to estimators that can forget.
    """
    model = fresh_copy(prototype, seed)
    return model.fit(X, y, ids=ids) if hasattr(model, "forget") else model.fit(X, y)


def _train_shadow(
    shared: tuple[Rows, Ints, Rows], prototype: Any, people: Bools, removed: Bools | None, seed: int
) -> tuple[Observation, Observation | None]:
    """Train a model, remove people, and return the probe's signals after and before the removal.

    If `removed` is None, no people are removed and the second result is None.
    """
    rows, owners, probe = shared
    train = rows.take(np.flatnonzero(people[owners]))
    model = fit_copy(prototype, seed, *train.slice(0, len(train)), train.ids.to_array())
    before = None
    if removed is not None:
        before = observe_model(model, probe)
        where = np.flatnonzero((people & removed)[owners])
        if len(where):
            model.forget(rows.ids.take(where).distinct().to_list())
    return observe_model(model, probe), before


@dataclass(frozen=True)
class Study:
    """Training rows, forgotten people, and rows that no model is trained on.

    Create it with `Study.from_inputs`. People are numbered in order of their first row.
    """

    rows: Rows
    owners: Ints
    forgotten: Bools
    unseen: Rows
    seed: int
    n_jobs: int | None = None

    @classmethod
    def from_inputs(
        cls, inputs: AttackInputs, *, needs_unseen: bool = True, n_jobs: int | None = None
    ) -> "Study":
        """Return the study of an attack.

        If unseen rows are needed and there is no population, a fifth of the retained people is
        held out.
        """
        rows, seed = _make_rows(inputs.X, inputs.y, inputs.ids), inputs.seed
        owners, forgotten = _number_people(rows, inputs.forget)
        if inputs.population is not None:
            unseen = _make_rows(*inputs.population, None)
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
        """Mask of the people who may be forgotten; always an even number of people.

        If the number of forgotten people is odd, one retained person is added.
        """
        chosen = self.forgotten.copy()
        if chosen.sum() % 2:
            rng = np.random.default_rng([self.seed, _SAMPLE])
            chosen[rng.choice(np.flatnonzero(~self.forgotten))] = True
        return chosen

    def sample_people(self, most_retained: int) -> dict[str, Ints]:
        """Return the numbers of the forgotten people, and of up to `most_retained` other people.

        The keys are "forgotten" and "retained". Retained people are never forgotten.
        """
        kept = np.flatnonzero(~self.candidates)
        rng = np.random.default_rng([self.seed, _SAMPLE, most_retained])
        retained = np.sort(rng.permutation(kept)[:most_retained])
        return {"forgotten": np.flatnonzero(self.forgotten), "retained": retained}

    def make_probe(self, people: Ints, n_unseen: int) -> "Probe":
        """Return all rows of these people, followed by up to `n_unseen` unseen rows."""
        where = np.flatnonzero(np.isin(self.owners, people))
        rng = np.random.default_rng([self.seed, _SAMPLE, n_unseen])
        unseen = np.sort(rng.permutation(len(self.unseen))[:n_unseen])
        seen, others = self.rows.take(where), self.unseen.take(unseen)
        rows = Rows(seen.X, seen.y, row_ids(None, len(seen)))
        if len(others):
            rows = rows.concat(Rows(others.X, others.y, row_ids(None, len(others))))
        return Probe(rows, self.owners[where])

    def train_models(
        self, probe: "Probe", jobs: "list[ShadowJob]", progress: Progress
    ) -> ShadowSignals:
        """Train the models and return their signals for the probe rows."""
        shared = (self.rows, self.owners, probe.rows)
        payloads = [
            (
                job.prototype,
                job.people,
                job.removed,
                library_seed(self.seed, job.purpose, job.number),
            )
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
    """Rows to query: first the rows of known people, then unseen rows.

    `owners` has the number of the person for each of the first rows.
    """

    rows: Rows
    owners: Ints

    def rows_of(self, people: Ints) -> tuple[Ints, Ints]:
        """Return the positions of the rows of these people, and the person of each row."""
        where = np.flatnonzero(np.isin(self.owners, people))
        return where, self.owners[where]

    def of_people(self, values: NDArray[Any], people: Ints) -> Floats:
        """Return the mean of `values` over the rows of each of these people."""
        where, owners = self.rows_of(people)
        return mean_by_person(values[..., where], owners)

    def of_unseen(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the part of `values` (last axis) that belongs to the unseen rows."""
        return values[..., len(self.owners) :]


class ShadowJob(NamedTuple):
    """A model to train: the prototype, the people to train on, and those to remove (or None)."""

    prototype: Any
    people: Bools
    removed: Bools | None
    purpose: str
    number: int


def _make_rows(X: Any, y: Any, ids: Any) -> Rows:
    """Return the rows, or raise if there are no labels or if X and y differ in length."""
    if y is None:
        raise ValueError("an attack needs labels: y is None")
    # Images, for neural networks, are not tables.
    is_image = isinstance(X, np.ndarray) and X.ndim > 2
    table, target = X if is_image else hold_table(X), hold_target(y)
    if table_length(table) != len(target):
        raise ValueError(f"X has {table_length(table)} rows, but y has {len(target)}")
    return Rows(table, target, row_ids(ids, len(target)))


def _number_people(rows: Rows, forget: Any, *, least_retained: int = 3) -> tuple[Ints, Bools]:
    """Return the number of the person of each row, and a mask of the people to be forgotten.

    Raise if `forget` is empty or has unknown ids, or if fewer than `least_retained` people remain.
    """
    numbers: dict[Any, int] = {}
    listed = rows.ids.to_list()
    owners = np.array([numbers.setdefault(id_, len(numbers)) for id_ in listed], np.int64)
    requested = as_ids(forget).distinct().to_list()
    missing = [id_ for id_ in requested if id_ not in numbers]
    if missing:
        raise ValueError(f"forget contains ids that are not in the training rows: {missing[:5]}")
    if not requested:
        raise ValueError("forget is empty; expected at least one id of the training rows")
    forgotten = np.zeros(len(numbers), bool)
    forgotten[[numbers[id_] for id_ in requested]] = True
    if forgotten.sum() > len(forgotten) - least_retained:
        raise ValueError(
            f"forget contains {int(forgotten.sum())} of {len(forgotten)} people; at least "
            f"{least_retained} must be retained"
        )
    return owners, forgotten


def read_inputs(inputs: AttackInputs) -> tuple[People, Bools]:
    """Return the training rows as arrays, and a mask of the rows to be forgotten."""
    X, y = as_array(inputs.X), np.asarray(inputs.y)
    ids = np.arange(len(X)) if inputs.ids is None else np.asarray(inputs.ids)
    owners, forgotten = _number_people(_make_rows(X, y, ids), inputs.forget, least_retained=1)
    return People(X, y, ids), forgotten[owners]


def as_array(X: Any) -> NDArray[Any]:
    """Return the rows as a numeric array; column names of a data frame are lost."""
    if issparse(X):
        raise TypeError("this attack needs an array, not a sparse matrix: pass X.toarray()")
    rows = np.asarray(X)
    if rows.dtype.kind not in "biuf":
        raise TypeError(
            f"this attack needs numbers, not dtype {rows.dtype}; encode strings and categories "
            "first"
        )
    if rows.ndim < 2:
        raise TypeError(
            f"this attack needs a table or images: X has shape {rows.shape}; expected at least 2 "
            "dimensions, with one row per training row"
        )
    return rows
