"""Backdoor verification: plant backdoors in a clone, forget their testers, and query the clone."""

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
    "Backdoors were planted in clones, never in the model itself. The test can show that data was "
    "not deleted; a test that does not reject proves nothing, and a dishonest provider can pass it "
    "(Zhang et al. 2024)."
)

# Largest default number of patterns.
_TESTERS = 5


class _Tester(NamedTuple):
    """One pattern: its name, target label, the positions of its rows, and the rows to query."""

    name: int
    target: Any
    rows: Ints
    queries: NDArray[Any]


class _BackdoorInputs(NamedTuple):
    """Trigger, rows, which rows are to be forgotten, and labelled rows to query."""

    trigger: Trigger
    data: People
    is_target: Bools
    queries: tuple[NDArray[Any], NDArray[Any]]


class _World(NamedTuple):
    """Counts of the predictions of one model.

    For each tester, `queries` is the number of queries, and `success` is how often the model
    predicted the target label. `chance` is the same count for patterns that were not planted.
    `points` has one entry per backdoored training row: 1 if the model predicts its planted label.
    """

    success: Ints
    chance: Ints
    points: Ints
    queries: Ints


@dataclass(frozen=True, kw_only=True)
class BackdoorTest(Attack):
    """Backdoor verification of deletion (Sommer et al., 2022; He et al., 2021).

    For audits only. The people to be forgotten plant private backdoors in a *clone* of the pipeline
    (see `TabularTrigger` and `ImageTrigger`). The clone is trained, forgets them, and is queried
    with fresh rows that carry their patterns. A model that forgot predicts the target label as
    often as a model that was trained without them. The model in production is not changed.

    Parameters
    ----------
    trigger : TabularTrigger, ImageTrigger or None, default=None
        Pattern to add to rows. If None, the secret comes from the seed, and the pattern is up to
        four columns with their smallest or largest values for a table, and four bright pixels for
        images.
    fraction : float, default=0.5
        Share r of the rows of a tester that carry the backdoor, at least one row.
    n_testers : int or None, default=None
        Number of different patterns. If there are more people than testers, people share a
        pattern, so that people with a single row can be tested too. None: at most five.
    n_queries : int, default=30
        Number of rows that each tester queries. Their true label is not the target.
    n_repeats : int, default=3
        Number of repetitions, with new patterns and seeds.
    alpha : float, default=1e-3
        False alarm rate of one tester.
    confidence : float, default=0.95
        Coverage of all intervals.

    Notes
    -----
    Each measure is compared with that of a fresh fit on the remaining rows (the floor):

    * *backdoor success*: share of queries with the target label after the request;
    * *AUC*: how well the success of a tester separates the unlearned from a retrained model;
    * *testers who show it*: share of testers with ``k > t`` successes, where q is the upper end for
      their own pattern in a fresh fit. The binomial distribution ignores that models with
      different seeds respond differently to a pattern, so the floor is the false alarm rate;
    * *backdoor success before*: backdoor success before the request, p in the test;
    * *chance*: success of patterns that were not planted, before the request, q in the test;
    * *deletion confidence*: `deletion_confidence` of p and q;
    * *certifiability*: SAPE of the accuracies on the backdoored points themselves (He et al.).

    `found` depends on the difference of *backdoor success* from its floor, tester by tester
    (Student's interval over the testers of all repeats). The test can show that data was **not**
    deleted. It cannot prove deletion.

    References
    ----------
    Sommer et al., Athena: Probabilistic Verification of Machine Unlearning, PETS 2022. He et al.,
    DeepObliviate, 2021. Zhang et al., Verification of Machine Unlearning is Fragile, ICML 2024.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon import NaiveUnlearner
    >>> X, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
    >>> attack = BackdoorTest(n_repeats=1, n_queries=10)
    >>> (result,) = attack.run(NaiveUnlearner(GaussianNB()), X, y, forget=[3, 7, 11])
    >>> result.found
    False
    """

    name: ClassVar[str] = "backdoor"

    trigger: Trigger | None = None
    fraction: float = 0.5
    n_testers: int | None = None
    n_queries: int = 30
    n_repeats: int = 3
    alpha: float = 1e-3
    confidence: float = 0.95

    def _run_attack(self, inputs: AttackInputs) -> tuple[AttackResult, ...]:
        if is_regressor(inputs.unlearner):
            raise ValueError(
                "BackdoorTest needs a classifier, but "
                f"{type(inputs.unlearner).__name__} is a regressor"
            )
        data, is_target = read_inputs(inputs)
        retained = data.take(np.flatnonzero(~is_target))
        X, y = (retained.X, retained.y) if inputs.population is None else inputs.population
        queries = as_array(X), np.asarray(y)
        trigger = self.trigger
        if trigger is None:
            secret = keyed_hash(inputs.seed, Purpose.BACKDOOR_SECRET)
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
                    self._run_repeat(
                        _BackdoorInputs(trigger, data, is_target, queries), inputs, number
                    )
                )
            inputs.progress(number + 1, self.n_repeats)
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
            scores=np.concatenate([world.success / world.queries for world in (after, retrained)]),
            labels=np.repeat([1, 0], len(after.queries)),
            owners=np.tile(np.arange(len(after.queries)), 2),
        )
        return (result,)

    def _run_repeat(
        self, setup: _BackdoorInputs, inputs: AttackInputs, number: int
    ) -> list[_World]:
        """Return the counts of four models: before and after the request, and two fresh fits."""
        trigger, data, is_target, _ = setup
        testers = self._assign_testers(setup, inputs.seed, number)
        where, ids = [(tester.name, tester.rows) for tester in testers], data.ids
        X, y, is_planted = plant_backdoors(
            trigger, data.X, data.y, where, classes=data.y, fraction=self.fraction
        )
        purpose, retained = Purpose.BACKDOOR_MODEL, ~is_target
        seeds = [library_seed(inputs.seed, purpose, number, role) for role in range(3)]

        def count_hits(model: Any, *, own: bool) -> Ints:
            # No tester has a negative name.
            patterns = [tester.name if own else -1 - tester.name for tester in testers]
            stamped = (trigger.stamp(t.queries, p) for t, p in zip(testers, patterns, strict=True))
            answers = zip(map(model.predict, stamped), testers, strict=True)
            return np.array([np.sum(y == tester.target) for y, tester in answers], np.int64)

        def query_model(model: Any) -> _World:
            right = (model.predict(X[is_planted]) == y[is_planted]).astype(np.int64)
            queries = np.array([len(tester.queries) for tester in testers], np.int64)
            hits = count_hits(model, own=True), count_hits(model, own=False)
            return _World(*hits, right, queries)

        # The floor comes first, because a method may remember rows outside its models.
        retrained, again = (
            query_model(fit_copy(inputs.naive, seed, X[retained], y[retained], ids[retained]))
            for seed in seeds[1:]
        )
        model = fit_copy(inputs.unlearner, seeds[0], X, y, ids)
        before = query_model(model)
        model.forget(np.unique(ids[is_target]))
        return [before, query_model(model), retrained, again]

    def _assign_testers(self, setup: _BackdoorInputs, seed: int, number: int) -> list[_Tester]:
        """Return the testers of one repeat, each with a part of the people to be forgotten.

        The names of testers are unique over all repeats.
        """
        trigger, data, is_target, (X, y) = setup
        people = np.unique(data.ids[is_target])
        n_testers = min(_TESTERS, len(people)) if self.n_testers is None else self.n_testers
        if not 1 <= n_testers <= len(people):
            raise ValueError(
                f"n_testers must be between 1 and {len(people)}, the number of ids in forget, not "
                f"{n_testers}"
            )
        places = np.arange(len(people))
        order = np.argsort(keyed_hash_ints(seed, Purpose.BACKDOOR_DEAL, places, number))
        testers = []
        for place, group in enumerate(np.array_split(people[order], n_testers)):
            name = number * n_testers + place
            rows = np.flatnonzero(np.isin(data.ids, group)).astype(np.int64)
            target = target_label(trigger.secret, name, data.y)
            others = np.flatnonzero(y != target)
            if len(others) == 0:
                raise ValueError(f"no row to query: all labels are the target label {target!r}")
            hashes = keyed_hash_ints(seed, Purpose.BACKDOOR_QUERIES, np.arange(len(others)), name)
            queries = X[others[np.argsort(hashes)[: self.n_queries]]]
            testers.append(_Tester(name, target, rows, queries))
        return testers

    def _make_measures(
        self, world: _World, before: _World, chance: _World, retrained: _World
    ) -> dict[str, Measure]:
        """Return all measures of the model `world` by name, compared with the retrained model."""
        level, n = self.confidence, world.queries
        testers, labels = np.tile(np.arange(len(n)), 2), np.repeat([1, 0], len(n))
        success = np.concatenate([world.success, retrained.success]) / np.tile(n, 2)
        shown, once = self._says_kept(world, retrained).astype(np.int64), np.ones_like(n)
        rates: dict[str, tuple[Ints, Ints, Better]] = {
            "backdoor success": (world.success, n, "lower"),
            "testers who show it": (shown, once, "lower"),
            "backdoor success before": (before.success, n, "higher"),
            "chance": (chance.chance, n, "lower"),
        }
        first, *others = (
            success_rate(name, hits, queries, better=better, confidence=level)
            for name, (hits, queries, better) in rates.items()
        )
        pairs = (before.success, n), (chance.chance, n)
        measures = [
            first,
            auc(success, labels, groups=(testers,), confidence=level),
            *others,
            deletion_confidence(self.n_queries, *pairs, alpha=self.alpha, confidence=level),
            certifiability_from_predictions(
                # The accuracy, from which backdoored rows get their planted label.
                lambda _, right: float(np.mean(right)),
                np.ones(len(world.points)),
                world.points,
                retrained.points,
                confidence=level,
            ),
        ]
        return {measure.name: measure for measure in measures}

    def _measure_excess(self, after: _World, again: _World) -> Measure:
        """Return the mean over testers of the success rate minus that of a fresh fit."""
        gaps = (after.success - again.success) * len(after.queries) / after.queries.sum()
        note = "success minus floor, tester by tester: same pattern, same rows"
        return beyond_floor_by_unit(gaps, confidence=self.confidence, note=note)

    def _says_kept(self, world: _World, retrained: _World) -> Bools:
        """Return a mask of the testers who reject "deleted", each with q for their own pattern.

        If the target label is common for rows with a pattern, the pattern succeeds in every model.
        So q is not the mean over patterns, but the upper end of the interval for this pattern in a
        model that was not trained on it.
        """
        counts = zip(retrained.success.tolist(), world.queries.tolist(), strict=True)
        limits = [
            threshold(n, clopper_pearson(k, n, self.confidence)[1], self.alpha) for k, n in counts
        ]
        return np.asarray(world.success > np.array(limits))

    def _describe_vote(self, world: _World, before: _World, retrained: _World) -> str:
        """Return a text with the majority votes of the repeats and the error rates of a vote."""
        shown = self._says_kept(world, retrained).reshape(self.n_repeats, -1)
        n_testers = shown.shape[1]
        won = int(np.sum(shown.sum(axis=1) > n_testers / 2))
        p, q = (
            float(counts.sum() / before.queries.sum()) for counts in (before.success, before.chance)
        )
        vote = majority_errors(errors(self.n_queries, p, q, self.alpha), n_testers)
        return (
            f"In {won} of {len(shown)} repeats the majority of the {n_testers} testers shows that "
            f"data was not deleted. At the estimated p={p:.3g} and q={q:.3g} the error "
            f"probabilities of a vote are {vote.false_alarm:.1e} (false alarm) and "
            f"{vote.miss:.1e} (miss)."
        )
