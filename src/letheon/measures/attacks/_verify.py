"""Backdoor verification: plant backdoors in a clone, forget those who planted them, and ask."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import is_regressor

from letheon.inner import fresh_copy
from letheon.measures._intervals import clopper_pearson
from letheon.measures._measure import Measure
from letheon.measures._performance import certifiability_from_predictions
from letheon.measures.attacks._backdoor import (
    deletion_confidence,
    errors,
    majority_errors,
    success_rate,
    threshold,
)
from letheon.measures.attacks._result import AttackResult, beyond_floor_by_unit
from letheon.measures.attacks._roc import auc
from letheon.measures.attacks._shadows import Attack, Case
from letheon.measures.attacks._triggers import (
    ImageTrigger,
    Planted,
    TabularTrigger,
    Trigger,
    plant,
    target_label,
)
from letheon.parallel import one_thread
from letheon.purposes import Purpose
from letheon.seeds import keyed_hash, keyed_hash_ints, library_seed

_NOTE = (
    "audit mode: backdoors were planted in clones, never in the model itself. The test can show "
    "that data was not deleted; that it does not reject proves nothing, and a dishonest provider "
    "can pass it (Zhang et al. 2024)."
)

Ints = NDArray[np.int64]

# Patterns, where nobody says how many.
_TESTERS = 5


class Data(NamedTuple):
    """Training rows, who leaves, and rows to ask about."""

    X: NDArray[Any]
    y: NDArray[Any]
    ids: NDArray[Any]
    leaves: NDArray[np.bool_]
    asked: tuple[NDArray[Any], NDArray[Any]]


def read_case(case: Case) -> Data:
    """Return arrays, or raise for people who are not there; default questions: rows that stay."""
    X, y, population = _numbers(case.X), np.asarray(case.y), case.population
    owners = np.arange(len(X)) if case.ids is None else np.asarray(case.ids)
    if not len(X) == len(y) == len(owners):
        raise ValueError(f"X has {len(X)} rows, y has {len(y)} and ids has {len(owners)}")
    leaves = _leaving(owners, np.unique(np.asarray(case.forget)))
    asked = (X[~leaves], y[~leaves]) if population is None else population
    return Data(X, y, owners, leaves, (_numbers(asked[0]), np.asarray(asked[1])))


def _numbers(X: Any) -> NDArray[Any]:
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


def _leaving(owners: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whose rows leave, or raise for people who are not there."""
    missing = wanted[~np.isin(wanted, owners)].tolist()
    if missing or len(wanted) == 0:
        raise ValueError(f"forget must name people of the training rows; not there: {missing[:5]}")
    leaves = np.isin(owners, wanted)
    if leaves.all():
        raise ValueError("forget names all people; an attack needs others who stay")
    return leaves


def fit_copy(prototype: Any, seed: int, X: Any, y: Any, ids: Any) -> Any:
    """Return a fresh fit on these rows; an ordinary estimator is given no ids."""
    model = fresh_copy(prototype, seed)
    return model.fit(X, y, ids=ids) if hasattr(model, "forget") else model.fit(X, y)


class _Tester(NamedTuple):
    """One pattern: its name, its target, and the rows of the people who share it."""

    name: int
    target: Any
    rows: Ints


class _World(NamedTuple):
    """What one model says.

    `success` counts the answers that are the target, one number for each tester; `chance` does so
    for patterns that nobody planted; `points` is 1 for each backdoored point of those who leave
    that gets its planted label.
    """

    success: Ints
    chance: Ints
    points: Ints


class _Repeat(NamedTuple):
    """Queries of each tester, and what four models of one repeat say.

    The unlearner before and after the request, and two fresh fits on the remaining rows.
    """

    queries: Ints
    worlds: tuple[_World, _World, _World, _World]


@dataclass(frozen=True)
class _Questions:
    """The queries of all testers, the same for every model of a repeat."""

    trigger: Trigger
    testers: list[_Tester]
    rows: list[NDArray[Any]]
    planted: Planted
    points: Ints

    @property
    def sizes(self) -> Ints:
        return np.array([len(rows) for rows in self.rows], np.int64)

    def ask(self, model: Any) -> _World:
        """Return what a model answers."""
        own = [tester.name for tester in self.testers]
        # Negative names: no tester has one.
        nobody = [-1 - name for name in own]
        right = model.predict(self.planted.X[self.points]) == self.planted.y[self.points]
        return _World(self._hits(model, own), self._hits(model, nobody), right.astype(np.int64))

    def _hits(self, model: Any, patterns: list[int]) -> Ints:
        found = []
        for tester, rows, pattern in zip(self.testers, self.rows, patterns, strict=True):
            answers = model.predict(self.trigger.stamp(rows, pattern))
            found.append(np.sum(answers == tester.target))
        return np.array(found, np.int64)


@dataclass(frozen=True, kw_only=True)
class BackdoorTest(Attack):
    """Backdoor verification of deletion (Sommer et al., 2022; He et al., 2021).

    Audit mode only. In a *clone* of the pipeline the people who will leave plant private backdoors
    (see `TabularTrigger` and `ImageTrigger`), the clone is trained and forgets them, and then it
    is asked about fresh rows with their patterns on. A model that forgot answers with the target
    label as often as one that was trained without them. The model in service is never
    touched.

    Parameters
    ----------
    trigger : TabularTrigger, ImageTrigger or None, default=None
        What is stamped on rows. None: columns at the edges of their ranges for a table, four
        bright pixels for images, with a secret from the seed.
    fraction : float, default=0.5
        Share r of the leaving people's rows that carry the backdoor, at least one of each tester.
    n_testers : int or None, default=None
        Number of different patterns. Where there are more people than testers, people share a
        pattern, so that people with a single row can be tested too. None: at most five.
    n_queries : int, default=30
        Rows that each tester asks about, whose true label is not the target.
    n_repeats : int, default=3
        Times that everything is repeated, with new patterns and seeds.
    alpha : float, default=1e-3
        False alarms that one tester accepts.
    confidence : float, default=0.95
        Coverage of all intervals.

    Notes
    -----
    Measures, each beside that of a fresh fit on the remaining rows (the floor):

    * *backdoor success*: share of queries that get the target label after the request;
    * *AUC*: how well a tester's success tells the unlearned model from a retrained one;
    * *testers who show it*: share of testers with ``k > t`` successes, where q is the upper end for
      their own pattern in a fresh fit. Models of different seeds answer a pattern differently,
      which the binomial law does not know: its false alarms are what its floor says;
    * *backdoor success before*: the same before the request, p in the test;
    * *chance*: success of patterns that nobody planted, asked before the request, q in the test;
    * *deletion confidence*: `deletion_confidence` of p and q;
    * *certifiability*: SAPE of the accuracies on the backdoored points themselves (He et al.).

    `found` goes by the difference of *backdoor success* to its floor, tester by tester (Student
    over testers of all repeats). The test can show that data was **not** deleted. That it finds
    nothing is no proof.

    References
    ----------
    Sommer et al., Athena: Probabilistic Verification of Machine Unlearning, PETS 2022. He et al.,
    DeepObliviate, 2021. Zhang et al., Verification of Machine Unlearning is Fragile, ICML 2024.
    """

    name: ClassVar[str] = "backdoor"

    trigger: Trigger | None = None
    fraction: float = 0.5
    n_testers: int | None = None
    n_queries: int = 30
    n_repeats: int = 3
    alpha: float = 1e-3
    confidence: float = 0.95

    def _attack(self, case: Case) -> tuple[AttackResult, ...]:
        if is_regressor(case.unlearner):
            raise ValueError("a backdoor needs a target label; this is a regressor")
        data = read_case(case)
        trigger = self.trigger
        if trigger is None:
            secret = keyed_hash(case.seed, Purpose.BACKDOOR_SECRET)
            is_table = data.X.ndim == 2
            trigger = (
                TabularTrigger.of(data.X, secret=secret)
                if is_table
                else ImageTrigger(secret=secret)
            )
        repeats = []
        for number in range(self.n_repeats):
            with one_thread():
                repeats.append(self._repeat(trigger, case, data, number))
            if case.progress is not None:
                case.progress(number + 1, self.n_repeats)
        return (self._result(repeats),)

    def _repeat(self, trigger: Trigger, case: Case, data: Data, number: int) -> _Repeat:
        """Return what all models of one repeat answer."""
        seed = case.seed
        questions = self._questions(trigger, data, seed, number)
        X, y, ids = questions.planted.X, questions.planted.y, data.ids
        seeds = [library_seed(seed, Purpose.BACKDOOR_MODEL, number, role) for role in range(3)]
        stays, ask = ~data.leaves, questions.ask
        # The floor comes first: a method that remembers rows outside its models knows them later.
        retrained, again = (
            ask(fit_copy(case.naive, each, X[stays], y[stays], ids[stays])) for each in seeds[1:]
        )
        model = fit_copy(case.unlearner, seeds[0], X, y, ids)
        before = ask(model)
        model.forget(np.unique(ids[data.leaves]))
        return _Repeat(questions.sizes, (before, ask(model), retrained, again))

    def _questions(self, trigger: Trigger, data: Data, seed: int, number: int) -> _Questions:
        """Plant the backdoors of one repeat and choose what is asked."""
        testers = self._testers(trigger, data, seed, number)
        where = [(tester.name, tester.rows) for tester in testers]
        planted = plant(trigger, data.X, data.y, where, classes=data.y, fraction=self.fraction)
        rows = [self._queries(tester, data, seed) for tester in testers]
        return _Questions(
            trigger, testers, rows, planted, np.flatnonzero(planted.is_planted).astype(np.int64)
        )

    def _testers(self, trigger: Trigger, data: Data, seed: int, number: int) -> list[_Tester]:
        """Deal the people who leave to testers; names are numbers that no two repeats share."""
        people = np.unique(data.ids[data.leaves])
        wanted = min(_TESTERS, len(people)) if self.n_testers is None else self.n_testers
        if not 1 <= wanted <= len(people):
            raise ValueError(f"n_testers={wanted}, but {len(people)} people leave")
        places = np.arange(len(people))
        order = np.argsort(keyed_hash_ints(seed, Purpose.BACKDOOR_DEAL, places, number))
        testers = []
        for place, group in enumerate(np.array_split(people[order], wanted)):
            name = number * wanted + place
            rows = np.flatnonzero(np.isin(data.ids, group)).astype(np.int64)
            testers.append(_Tester(name, target_label(trigger.secret, name, data.y), rows))
        return testers

    def _queries(self, tester: _Tester, data: Data, seed: int) -> NDArray[Any]:
        """Return rows to stamp and ask about, whose label is not the tester's target."""
        X, y = data.asked
        others = np.flatnonzero(y != tester.target)
        if len(others) == 0:
            raise ValueError("there is no row to ask about whose label is not the target")
        places = np.arange(len(others))
        order = np.argsort(keyed_hash_ints(seed, Purpose.BACKDOOR_QUERIES, places, tester.name))
        chosen: NDArray[Any] = X[others[order[: self.n_queries]]]
        return chosen

    def _result(self, repeats: list[_Repeat]) -> AttackResult:
        n = np.concatenate([repeat.queries for repeat in repeats])
        worlds = [repeat.worlds for repeat in repeats]
        before, after, retrained, again = map(_joined, zip(*worlds, strict=True))
        report = _Report(self, n, before, retrained)
        return AttackResult(
            attack=self.name,
            about="forgotten",
            measures=report.column(after, before),
            floor=report.column(again, retrained),
            excess=report.excess(after, again),
            control=report.excess(before, again),
            n_models=3 * len(repeats),
            note=f"{report.vote(after, len(repeats[0].queries))} {_NOTE}",
            scores=np.concatenate([after.success / n, retrained.success / n]),
            labels=np.repeat([1, 0], len(n)),
            owners=np.tile(np.arange(len(n)), 2),
        )


@dataclass(frozen=True)
class _Report:
    """Turns counts into measures."""

    test: BackdoorTest
    queries: Ints
    before: _World
    retrained: _World

    def column(self, world: _World, asked_for_chance: _World) -> dict[str, Measure]:
        """Return all measures of one model against the retrained one."""
        level, n = self.test.confidence, self.queries
        testers, labels = np.tile(np.arange(len(n)), 2), np.repeat([1, 0], len(n))
        success = np.concatenate([world.success, self.retrained.success]) / np.tile(n, 2)
        shown, once = self._says_kept(world).astype(np.int64), np.ones(len(n), np.int64)
        measures = [
            success_rate("backdoor success", world.success, n, confidence=level),
            auc(success, labels, groups=(testers,), confidence=level),
            success_rate("testers who show it", shown, once, confidence=level),
            success_rate(
                "backdoor success before", self.before.success, n, better="higher", confidence=level
            ),
            success_rate("chance", asked_for_chance.chance, n, confidence=level),
            deletion_confidence(
                self.test.n_queries,
                (self.before.success, n),
                (asked_for_chance.chance, n),
                alpha=self.test.alpha,
                confidence=level,
            ),
            certifiability_from_predictions(
                # accuracy on backdoored points, given which ones are right
                lambda _, right: float(np.mean(right)),
                np.ones(len(world.points)),
                world.points,
                self.retrained.points,
                confidence=level,
            ),
        ]
        return {measure.name: measure for measure in measures}

    def excess(self, after: _World, again: _World) -> Measure:
        """Return the success beyond that of a fresh fit, tester by tester."""
        gaps = (after.success - again.success) * len(self.queries) / self.queries.sum()
        note = "success minus floor, tester by tester: same pattern, same rows"
        return beyond_floor_by_unit(gaps, confidence=self.test.confidence, note=note)

    def _says_kept(self, world: _World) -> NDArray[np.bool_]:
        """Return which testers reject "deleted", each with the chance of the own pattern.

        Patterns differ: one that lies where the target label is common anyway succeeds in every
        model. So q is not the mean over patterns but that of this one in a model that
        never saw it, and of its interval the upper end.
        """
        level, alpha = self.test.confidence, self.test.alpha
        counts = zip(self.retrained.success.tolist(), self.queries.tolist(), strict=True)
        limits = [threshold(n, clopper_pearson(k, n, level)[1], alpha) for k, n in counts]
        return np.asarray(world.success > np.array(limits))

    def vote(self, world: _World, n_testers: int) -> str:
        """Say how the testers of each repeat voted, and what the vote is worth."""
        shown = self._says_kept(world).reshape(-1, n_testers)
        won = int(np.sum(shown.sum(axis=1) > n_testers / 2))
        p, q = (
            float(counts.sum() / self.queries.sum())
            for counts in (self.before.success, self.before.chance)
        )
        one = errors(self.test.n_queries, p, q, self.test.alpha)
        both = majority_errors(one, n_testers)
        return (
            f"In {won} of {len(shown)} repeats most of the {n_testers} testers show that data was "
            f"not deleted; at the estimated p={p:.3g} and q={q:.3g} such a vote errs with "
            f"probability {both.false_alarm:.1e} (false alarm) and {both.miss:.1e} (miss)."
        )


def _joined(worlds: Iterable[_World]) -> _World:
    return _World(*(np.concatenate(part) for part in zip(*worlds, strict=True)))
