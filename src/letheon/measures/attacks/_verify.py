"""Backdoor verification: plant backdoors in a clone, forget those who planted them, and ask."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_regressor

from letheon.data import People
from letheon.measures._intervals import Bools, Ints, clopper_pearson
from letheon.measures._measure import Better, Measure
from letheon.measures._performance import certifiability_from_predictions
from letheon.measures.attacks._backdoor import (
    ImageTrigger,
    TabularTrigger,
    Trigger,
    deletion_confidence,
    errors,
    majority_errors,
    plant_backdoors,
    success_rate,
    target_label,
    threshold,
)
from letheon.measures.attacks._result import AttackResult, auc, beyond_floor_by_unit
from letheon.measures.attacks._shadows import (
    Attack,
    AttackInputs,
    as_array,
    fit_copy,
    join_records,
    read_inputs,
)
from letheon.parallel import one_thread
from letheon.purposes import Purpose
from letheon.seeds import keyed_hash, keyed_hash_ints, library_seed

_NOTE = (
    "audit mode: backdoors were planted in clones, never in the model itself. The test can show "
    "that data was not deleted; that it does not reject proves nothing, and a dishonest provider "
    "can pass it (Zhang et al. 2024)."
)

# Patterns, where nobody says how many.
_TESTERS = 5


class _Tester(NamedTuple):
    """One pattern: its name, its target, the rows of the people who share it, and its queries."""

    name: int
    target: Any
    rows: Ints
    queries: NDArray[Any]


class _BackdoorInputs(NamedTuple):
    """What all repeats share: patterns, rows, who leaves, and labelled rows to ask about."""

    trigger: Trigger
    data: People
    leaves: Bools
    asked: tuple[NDArray[Any], NDArray[Any]]


class _World(NamedTuple):
    """What one model says.

    `success` counts the answers that are the target, one number for each tester; `chance` does so
    for patterns that nobody planted; `points` is 1 for each backdoored point of those who leave
    that gets its planted label. `queries` are the questions of each tester.
    """

    success: Ints
    chance: Ints
    points: Ints
    queries: Ints


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

    def _run_attack(self, case: AttackInputs) -> tuple[AttackResult, ...]:
        if is_regressor(case.unlearner):
            raise ValueError("a backdoor needs a target label; this is a regressor")
        data, leaves = read_inputs(case)
        stay = data.take(np.flatnonzero(~leaves))
        asked = (stay.X, stay.y) if case.population is None else case.population
        asked = as_array(asked[0]), np.asarray(asked[1])
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
                repeats.append(
                    self._run_repeat(_BackdoorInputs(trigger, data, leaves, asked), case, number)
                )
            case.progress(number + 1, self.n_repeats)
        before, after, retrained, again = map(join_records, zip(*repeats, strict=True))
        result = AttackResult(
            attack=self.name,
            about="forgotten",
            measures=self._make_measures(after, before, before, retrained),
            floor=self._make_measures(again, before, retrained, retrained),
            excess=self._measure_excess(after, again),
            control=self._measure_excess(before, again),
            n_models=3 * len(repeats),
            note=f"{self._describe_vote(after, before, retrained)} {_NOTE}",
            scores=np.concatenate([each.success / each.queries for each in (after, retrained)]),
            labels=np.repeat([1, 0], len(after.queries)),
            owners=np.tile(np.arange(len(after.queries)), 2),
        )
        return (result,)

    def _run_repeat(self, scene: _BackdoorInputs, case: AttackInputs, number: int) -> list[_World]:
        """Return what four models answer: before and after the request, and two fresh fits."""
        trigger, data, leaves, _ = scene
        testers = self._assign_testers(scene, case.seed, number)
        where, ids = [(tester.name, tester.rows) for tester in testers], data.ids
        X, y, is_planted = plant_backdoors(
            trigger, data.X, data.y, where, classes=data.y, fraction=self.fraction
        )
        purpose, stays = Purpose.BACKDOOR_MODEL, ~leaves
        seeds = [library_seed(case.seed, purpose, number, role) for role in range(3)]

        def count_hits(model: Any, *, own: bool) -> Ints:
            # Negative names: no tester has one.
            patterns = [tester.name if own else -1 - tester.name for tester in testers]
            stamped = (trigger.stamp(t.queries, p) for t, p in zip(testers, patterns, strict=True))
            answers = zip(map(model.predict, stamped), testers, strict=True)
            return np.array([np.sum(given == tester.target) for given, tester in answers], np.int64)

        def query_model(model: Any) -> _World:
            right = (model.predict(X[is_planted]) == y[is_planted]).astype(np.int64)
            queries = np.array([len(tester.queries) for tester in testers], np.int64)
            hits = count_hits(model, own=True), count_hits(model, own=False)
            return _World(*hits, right, queries)

        # The floor comes first: a method that remembers rows outside its models knows them later.
        retrained, again = (
            query_model(fit_copy(case.naive, each, X[stays], y[stays], ids[stays]))
            for each in seeds[1:]
        )
        model = fit_copy(case.unlearner, seeds[0], X, y, ids)
        before = query_model(model)
        model.forget(np.unique(ids[leaves]))
        return [before, query_model(model), retrained, again]

    def _assign_testers(self, scene: _BackdoorInputs, seed: int, number: int) -> list[_Tester]:
        """Deal the people who leave to testers; names are numbers that no two repeats share."""
        trigger, data, leaves, asked = scene
        people = np.unique(data.ids[leaves])
        wanted = min(_TESTERS, len(people)) if self.n_testers is None else self.n_testers
        if not 1 <= wanted <= len(people):
            raise ValueError(f"n_testers={wanted}, but {len(people)} people leave")
        places = np.arange(len(people))
        order = np.argsort(keyed_hash_ints(seed, Purpose.BACKDOOR_DEAL, places, number))
        testers = []
        for place, group in enumerate(np.array_split(people[order], wanted)):
            name = number * wanted + place
            rows = np.flatnonzero(np.isin(data.ids, group)).astype(np.int64)
            target = target_label(trigger.secret, name, data.y)
            others = np.flatnonzero(asked[1] != target)
            if len(others) == 0:
                raise ValueError("there is no row to ask about whose label is not the target")
            hashes = keyed_hash_ints(seed, Purpose.BACKDOOR_QUERIES, np.arange(len(others)), name)
            queries = asked[0][others[np.argsort(hashes)[: self.n_queries]]]
            testers.append(_Tester(name, target, rows, queries))
        return testers

    def _make_measures(
        self, world: _World, before: _World, asked_for_chance: _World, retrained: _World
    ) -> dict[str, Measure]:
        """Return all measures of one model against the retrained one."""
        level, n = self.confidence, world.queries
        testers, labels = np.tile(np.arange(len(n)), 2), np.repeat([1, 0], len(n))
        success = np.concatenate([world.success, retrained.success]) / np.tile(n, 2)
        shown, once = self._says_kept(world, retrained).astype(np.int64), np.ones_like(n)
        rates: dict[str, tuple[Ints, Ints, Better]] = {
            "backdoor success": (world.success, n, "lower"),
            "testers who show it": (shown, once, "lower"),
            "backdoor success before": (before.success, n, "higher"),
            "chance": (asked_for_chance.chance, n, "lower"),
        }
        first, *others = (
            success_rate(name, hits, asked, better=better, confidence=level)
            for name, (hits, asked, better) in rates.items()
        )
        pairs = (before.success, n), (asked_for_chance.chance, n)
        measures = [
            first,
            auc(success, labels, groups=(testers,), confidence=level),
            *others,
            deletion_confidence(self.n_queries, *pairs, alpha=self.alpha, confidence=level),
            certifiability_from_predictions(
                # accuracy on backdoored points, given which ones are right
                lambda _, right: float(np.mean(right)),
                np.ones(len(world.points)),
                world.points,
                retrained.points,
                confidence=level,
            ),
        ]
        return {measure.name: measure for measure in measures}

    def _measure_excess(self, after: _World, again: _World) -> Measure:
        """Return the success beyond that of a fresh fit, tester by tester."""
        gaps = (after.success - again.success) * len(after.queries) / after.queries.sum()
        note = "success minus floor, tester by tester: same pattern, same rows"
        return beyond_floor_by_unit(gaps, confidence=self.confidence, note=note)

    def _says_kept(self, world: _World, retrained: _World) -> Bools:
        """Return which testers reject "deleted", each with the chance of the own pattern.

        Patterns differ: one that lies where the target label is common anyway succeeds in every
        model. So q is not the mean over patterns but that of this one in a model that
        never saw it, and of its interval the upper end.
        """
        counts = zip(retrained.success.tolist(), world.queries.tolist(), strict=True)
        limits = [
            threshold(n, clopper_pearson(k, n, self.confidence)[1], self.alpha) for k, n in counts
        ]
        return np.asarray(world.success > np.array(limits))

    def _describe_vote(self, world: _World, before: _World, retrained: _World) -> str:
        """Say how the testers of each repeat voted, and what the vote is worth."""
        shown = self._says_kept(world, retrained).reshape(self.n_repeats, -1)
        n_testers = shown.shape[1]
        won = int(np.sum(shown.sum(axis=1) > n_testers / 2))
        p, q = (
            float(counts.sum() / before.queries.sum()) for counts in (before.success, before.chance)
        )
        both = majority_errors(errors(self.n_queries, p, q, self.alpha), n_testers)
        return (
            f"In {won} of {len(shown)} repeats most of the {n_testers} testers show that data was "
            f"not deleted; at the estimated p={p:.3g} and q={q:.3g} such a vote errs with "
            f"probability {both.false_alarm:.1e} (false alarm) and {both.miss:.1e} (miss)."
        )
