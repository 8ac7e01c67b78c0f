"""An attacker who holds the model before and after a removal (Chen et al., 2021)."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import is_regressor
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from letheon.data import People
from letheon.measures._intervals import Bools, Floats, Ints, clopper_pearson
from letheon.measures._measure import Measure, make_measure
from letheon.measures.attacks._result import (
    AttackResult,
    area_by_unit,
    auc,
    beyond_floor_by_unit,
    tpr_at_fpr,
)
from letheon.measures.attacks._shadows import (
    Attack,
    AttackInputs,
    fit_copy,
    join_records,
    query_confidence,
    read_inputs,
)
from letheon.parallel import one_thread
from letheon.purposes import Purpose
from letheon.seeds import keyed_hash_ints, library_seed

Feature = Literal[
    "concatenation", "sorted concatenation", "difference", "sorted difference", "distance"
]
FEATURES: tuple[Feature, ...] = get_args(Feature)

_NOTE = (
    "No test of forgetting: a model that kept everything is the same before and after, and is not "
    "found. The attacker holds the model before and after the request and guesses who left; the "
    "floor is the same attack about people who never were there, while others left. Exact methods "
    "leak here too, naive retraining included: deletion itself reveals who was deleted, as no "
    "guarantee about the latest model alone can prevent (Chen et al. 2021). Hide one of the two "
    "versions, or answer requests in batches. A small number does not prove that nothing leaks."
)


def posterior_features(
    before: ArrayLike, after: ArrayLike, features: Sequence[Feature] = FEATURES
) -> Floats:
    """Return what the attack model sees of two posteriors, side by side (Chen et al., table 1).

    With ``p`` before and ``p'`` after, and ``s`` the order in which ``p`` falls:

    * *concatenation* ``(p, p')``; *sorted concatenation* ``(p_s, p'_s)``;
    * *difference* ``p - p'``; *sorted difference* ``p_s - p'_s``;
    * *distance* ``||p - p'||_2``.

    Parameters
    ----------
    before, after : array-like of shape (n, n_classes)
        Class probabilities of the same rows, columns alike (see `letheon.measures.align_classes`).
    features : sequence of str
        Which of them.

    Examples
    --------
    >>> posterior_features([[0.2, 0.8]], [[0.5, 0.5]], ["sorted difference"]).round(1).tolist()
    [[0.3, -0.3]]
    """
    p, q = np.asarray(before, np.float64), np.asarray(after, np.float64)
    if p.ndim != 2 or p.shape != q.shape:
        raise ValueError(f"need two tables of one shape, not {p.shape} and {q.shape}")
    unknown = set(features) - set(FEATURES)
    if unknown or not features:
        raise ValueError(f"features must be some of {FEATURES}, not {tuple(features)}")
    order = np.argsort(-p, axis=1, kind="stable")
    p_sorted, q_sorted = (np.take_along_axis(part, order, axis=1) for part in (p, q))
    offered: dict[str, Floats] = {
        "concatenation": np.hstack([p, q]),
        "sorted concatenation": np.hstack([p_sorted, q_sorted]),
        "difference": p - q,
        "sorted difference": p_sorted - q_sorted,
        "distance": np.linalg.norm(p - q, axis=1, keepdims=True),
    }
    return np.hstack([offered[name] for name in features])


def degradation_count(
    both: ArrayLike, classical: ArrayLike, labels: ArrayLike, *, confidence: float = 0.95
) -> Measure:
    """Return for how many people the second version makes the attacker surer of the truth.

    ``DegCount = 1/n #{i : P_i > P'_i}``, where ``P_i`` is the probability that the attack with both
    versions gives to the true status of person i, and ``P'_i`` that of the classical attack, which
    holds the model before only (Chen et al., section 4). Ties do not count.

    Parameters
    ----------
    both, classical : array-like of shape (n,)
        Probability of "was in and left" by each attack.
    labels : array-like of shape (n,)
        1 for those who were in and left.
    confidence : float, default=0.95
        Coverage of the interval, Clopper and Pearson's: it takes the people as independent.

    Examples
    --------
    >>> degradation_count([0.9, 0.4], [0.6, 0.3], [1, 0]).value
    0.5
    """
    truth = np.asarray(labels).astype(bool)
    sure, less = (np.where(truth, s, 1 - s) for s in map(np.asarray, (both, classical)))
    count, n = int(np.sum(sure > less)), len(truth)
    interval = clopper_pearson(count, n, confidence)
    return make_measure(
        "degradation count", count / n, interval, n, better="lower", confidence=confidence
    )


def predict_posteriors(model: Any, X: Any, classes: NDArray[Any] | None) -> Floats:
    """Return class probabilities over `classes`; a class that the model lost has none.

    Decision values go through a logistic link (softmax for several classes). A regressor, which
    has no classes, only has its prediction.
    """
    if classes is None:
        return np.asarray(model.predict(X), np.float64).reshape(len(X), -1)
    way, known = query_confidence(model, X)
    if way == "decision_function":
        z = known
        known = np.column_stack([expit(-z), expit(z)]) if z.ndim == 1 else softmax(z, axis=1)
    table = np.zeros((len(known), len(classes)))
    table[:, np.searchsorted(classes, model.classes_)] = known
    return table


# Kinds of cases: people who were in and left; people who never were in while others left; and more
# of the latter, who stand for the former in the floor.
_ABSENT, _LEFT, _ALSO_ABSENT = 0, 1, 2
# What an attacker may hold.
_VIEWS = ("both", "before", "after")


class _Cases(NamedTuple):
    """Rows of people as two models see them: whose, of which kind, in which world."""

    before: Floats
    after: Floats
    kind: Ints
    person: Ints
    world: Ints
    removal: Ints

    def of_kinds(self, *kinds: int) -> "_Cases":
        """Return the rows of these kinds."""
        keep = np.isin(self.kind, kinds)
        kept: list[Any] = [part[keep] for part in self]
        return _Cases(*kept)

    def group_rows(self) -> tuple[Ints, Ints]:
        """Return the first row of each case, a person in a removal, and the case of each row."""
        keys = np.column_stack([self.world, self.removal, self.kind, self.person])
        _, first, case = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        return first.astype(np.int64), case.ravel().astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class BeforeAfter(Attack):
    """Membership inference by someone who keeps the model from before the removal.

    Each world trains a clone on the people who stay and on half of the people in question, and then
    removes some of those, `batch` at a time, always from the model as first trained. The attack
    model learns from shadow worlds, about other people, to tell from both posteriors who
    left; it is tested on worlds of the people in `forget`.

    Parameters
    ----------
    features : tuple of str, default=all five
        See `posterior_features`.
    attacker : {"forest", "logistic"}, default="forest"
        The attack model: a random forest, or logistic regression on standardised features.
    n_shadows, n_targets : int, default=8
        Worlds to learn from, and worlds to attack.
    n_removals : int, default=8
        Removals in each world, at most: each is a `forget` of its own.
    batch : int, default=1
        People who leave at once. The more, the better each is hidden.
    confidence : float, default=0.95
        Coverage of all intervals.

    Notes
    -----
    Measures, each beside its floor (people who never were there, while others left):

    * *AUC* and *TPR at 1 % FPR* of the attack with both versions;
    * *AUC, model after only*: what the latest model alone gives away;
    * *AUC, model before only*: the classical attack on the old model;
    * *degradation count*: see `degradation_count`.

    The attacker knows the rows of those who stay and reads no labels. Intervals treat people
    and worlds as sampled; `found` goes by the difference to the floor, world by world. For exact
    methods "model after only" is at its floor and AUC is not: deletion itself reveals.

    It is no test of forgetting: a model that kept everything does not change, and so tells nobody
    who asked to leave.

    References
    ----------
    Chen et al., When Machine Unlearning Jeopardizes Privacy, CCS 2021.
    """

    name: ClassVar[str] = "before-after"

    features: tuple[Feature, ...] = FEATURES
    attacker: Literal["forest", "logistic"] = "forest"
    n_shadows: int = 8
    n_targets: int = 8
    n_removals: int = 8
    batch: int = 1
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Refuse settings that give no experiment."""
        if self.attacker not in ("forest", "logistic"):
            raise ValueError(f'attacker must be "forest" or "logistic", not {self.attacker!r}')
        for setting in ("n_shadows", "n_targets", "n_removals", "batch"):
            if getattr(self, setting) < 1:
                raise ValueError(f"{setting} must be at least 1, not {getattr(self, setting)}")

    def _run_attack(self, case: AttackInputs) -> tuple[AttackResult, ...]:
        data, leaves = read_inputs(case)
        shadow_people, target_people = _split_people(data, leaves, self.batch, case.seed)
        others = ~leaves & ~np.isin(data.ids, shadow_people)
        plan = [shadow_people] * self.n_shadows + [target_people] * self.n_targets
        worlds: list[_Cases] = []
        for number, people in enumerate(plan):
            with one_thread():
                worlds.append(self._run_world(case, data, others, people, number))
            case.progress(len(worlds), len(plan))
        shadows = join_records(worlds[: self.n_shadows])
        targets = join_records(worlds[self.n_shadows :])
        lesson = shadows.of_kinds(_ABSENT, _LEFT)
        number = library_seed(case.seed, Purpose.BEFORE_AFTER_ATTACKER)
        attackers = {view: self._fit_attacker(lesson, view, number) for view in _VIEWS}
        real, null = targets.of_kinds(_ABSENT, _LEFT), targets.of_kinds(_ABSENT, _ALSO_ABSENT)
        scores, nulls = self._score_cases(attackers, real), self._score_cases(attackers, null)
        first, second = real.group_rows()[0], null.group_rows()[0]
        labels = real.kind[first] == _LEFT
        is_new = null.kind[second] == _ALSO_ABSENT
        gaps = area_by_unit(scores["both"], labels, real.world[first])
        gaps = gaps - area_by_unit(nulls["both"], is_new, null.world[second])
        note = "AUC minus floor, world by world"
        result = AttackResult(
            attack=self.name,
            about="forgotten",
            measures=self._make_measures(scores, real),
            floor=self._make_measures(nulls, null),
            excess=beyond_floor_by_unit(gaps, confidence=self.confidence, note=note),
            n_models=len(plan),
            note=_NOTE,
            scores=scores["both"],
            labels=labels.astype(np.int64),
            owners=real.person[first],
        )
        return (result,)

    def _run_world(
        self, case: AttackInputs, data: People, others: Bools, people: NDArray[Any], number: int
    ) -> _Cases:
        """Train on the others and on half of some people; remove batches of those.

        Each batch is removed from the model as first trained.
        """
        numbers, batch = np.arange(len(people)), self.batch
        order = np.argsort(
            keyed_hash_ints(case.seed, Purpose.BEFORE_AFTER_MEMBERS, numbers, number)
        )
        members, absent = np.split(order, [len(order) // 2])
        seed = library_seed(case.seed, Purpose.BEFORE_AFTER_MODEL, number)
        held = others | np.isin(data.ids, people[members])
        model = fit_copy(case.unlearner, seed, data.X[held], data.y[held], data.ids[held])
        classes = None if is_regressor(case.unlearner) else np.unique(data.y)
        rows = np.flatnonzero(np.isin(data.ids, people))
        X, person = data.X[rows], np.searchsorted(people, data.ids[rows])
        before, removals = predict_posteriors(model, X, classes), []
        for removal in range(min(self.n_removals, len(members) // batch)):
            gone = members[removal * batch : (removal + 1) * batch]
            away = np.roll(absent, -2 * removal * batch)
            kinds = np.full(len(numbers), -1)
            kinds[gone], kinds[away[:batch]] = _LEFT, _ABSENT
            kinds[away[batch : 2 * batch]] = _ALSO_ABSENT
            seen = np.flatnonzero(kinds[person] >= 0)
            twin = copy.deepcopy(model)
            twin.forget(people[gone])
            after, whose = predict_posteriors(twin, X[seen], classes), person[seen]
            same = np.full_like(whose, number), np.full_like(whose, removal)
            removals.append(_Cases(before[seen], after, kinds[whose], whose, *same))
        return join_records(removals)

    def _view_features(self, cases: _Cases, view: str) -> Floats:
        """Return what an attacker who holds both versions, or one of them, sees of each row."""
        if view == "both":
            return posterior_features(cases.before, cases.after, self.features)
        p = cases.before if view == "before" else cases.after
        return np.hstack([p, -np.sort(-p, axis=1)])

    def _fit_attacker(self, lesson: _Cases, view: str, seed: int) -> Any:
        """Return the attack model, fitted on the rows of shadow worlds."""
        if self.attacker == "logistic":
            model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        else:
            model = RandomForestClassifier(min_samples_leaf=3, random_state=seed)
        with one_thread():
            return model.fit(self._view_features(lesson, view), lesson.kind == _LEFT)

    def _score_cases(self, attackers: dict[str, Any], cases: _Cases) -> dict[str, Floats]:
        """Return each attacker's score of each case, the mean over the person's rows."""
        _, case = cases.group_rows()
        rows, scores = np.bincount(case), dict[str, Floats]()
        for view, attacker in attackers.items():
            chances = attacker.predict_proba(self._view_features(cases, view))[:, 1]
            scores[view] = np.bincount(case, weights=chances) / rows
        return scores

    def _make_measures(self, scores: dict[str, Floats], cases: _Cases) -> dict[str, Measure]:
        first, _ = cases.group_rows()
        labels = cases.kind[first] != _ABSENT
        options: dict[str, Any] = {
            "groups": (cases.person[first], cases.world[first]),
            "confidence": self.confidence,
        }
        both, before = scores["both"], scores["before"]
        measures = [auc(both, labels, **options), tpr_at_fpr(both, labels, **options)]
        for which in ("after", "before"):
            area = auc(scores[which], labels, **options)
            measures.append(replace(area, name=f"AUC, model {which} only"))
        measures.append(degradation_count(both, before, labels, confidence=self.confidence))
        return {measure.name: measure for measure in measures}


def _split_people(
    data: People, leaves: Bools, batch: int, seed: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return people for shadow worlds, and the people who leave, both sorted.

    The former are chosen among those who stay: as many as leave, or half of them.
    """
    targets, staying = np.unique(data.ids[leaves]), np.unique(data.ids[~leaves])
    places = np.arange(len(staying))
    order = np.argsort(keyed_hash_ints(seed, Purpose.BEFORE_AFTER_SHADOW_PEOPLE, places))
    shadows = np.sort(staying[order[: min(len(targets), len(staying) // 2)]])
    if min(len(targets), len(shadows)) < 4 * batch:
        raise ValueError(
            f"{len(targets)} people leave and {len(staying)} stay; removals of {batch} need at "
            f"least {4 * batch} who leave and {8 * batch} who stay"
        )
    return shadows, targets
