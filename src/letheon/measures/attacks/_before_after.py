"""Membership inference with the model before and after a removal (Chen et al., 2021)."""

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
    "This is not a test of forgetting: a model that keeps everything does not change and is not "
    "found. The attacker has the model before and after the request and infers who was removed. "
    "The floor is the same attack on people who were never in the training data, while others "
    "were removed. Exact methods leak here too, and so does naive retraining: the deletion itself "
    "reveals who was deleted, and no guarantee about the latest model alone prevents that (Chen et "
    "al. 2021). Keep one of the two versions secret, or process requests in batches. A low value "
    "does not prove that nothing leaks."
)


def posterior_features(
    before: ArrayLike, after: ArrayLike, features: Sequence[Feature] = FEATURES
) -> Floats:
    """Return the features of the attack model from two posteriors (Chen et al., table 1).

    With ``p`` before and ``p'`` after, and ``s`` the descending order of ``p``:

    * *concatenation* ``(p, p')``; *sorted concatenation* ``(p_s, p'_s)``;
    * *difference* ``p - p'``; *sorted difference* ``p_s - p'_s``;
    * *distance* ``||p - p'||_2``.

    Parameters
    ----------
    before, after : array-like of shape (n, n_classes)
        Class probabilities of the same rows with the same columns (see
        `letheon.measures.align_classes`).
    features : sequence of str
        The features to compute.

    Examples
    --------
    >>> posterior_features([[0.2, 0.8]], [[0.5, 0.5]], ["sorted difference"]).round(1).tolist()
    [[0.3, -0.3]]
    """
    p, q = np.asarray(before, np.float64), np.asarray(after, np.float64)
    if p.ndim != 2 or p.shape != q.shape:
        raise ValueError(
            f"before and after must have the same shape (n, n_classes), not {p.shape} and {q.shape}"
        )
    unknown = set(features) - set(FEATURES)
    if unknown or not features:
        raise ValueError(f"features must be from {FEATURES}, not {tuple(features)}")
    order = np.argsort(-p, axis=1, kind="stable")
    p_sorted, q_sorted = (np.take_along_axis(part, order, axis=1) for part in (p, q))
    columns: dict[str, Floats] = {
        "concatenation": np.hstack([p, q]),
        "sorted concatenation": np.hstack([p_sorted, q_sorted]),
        "difference": p - q,
        "sorted difference": p_sorted - q_sorted,
        "distance": np.linalg.norm(p - q, axis=1, keepdims=True),
    }
    return np.hstack([columns[name] for name in features])


def degradation_count(
    both: ArrayLike, classical: ArrayLike, labels: ArrayLike, *, confidence: float = 0.95
) -> Measure:
    """Return the share of people for whom the second version improves the attack.

    ``DegCount = 1/n #{i : P_i > P'_i}``. ``P_i`` is the probability that the attack with both
    versions assigns to the true status of person i. ``P'_i`` is the same probability for the
    classical attack, which has only the model before (Chen et al., section 4). Ties do not count.

    Parameters
    ----------
    both, classical : array-like of shape (n,)
        Probability of "was a member and was removed" by each attack.
    labels : array-like of shape (n,)
        1 for members who were removed.
    confidence : float, default=0.95
        Coverage of the interval (Clopper and Pearson's), for independent people.

    Examples
    --------
    >>> degradation_count([0.9, 0.4], [0.6, 0.3], [1, 0]).value
    0.5
    """
    truth = np.asarray(labels).astype(bool)
    with_both, with_one = (np.where(truth, s, 1 - s) for s in map(np.asarray, (both, classical)))
    count, n = int(np.sum(with_both > with_one)), len(truth)
    interval = clopper_pearson(count, n, confidence)
    return make_measure(
        "degradation count", count / n, interval, n, better="lower", confidence=confidence
    )


def predict_posteriors(model: Any, X: Any, classes: NDArray[Any] | None) -> Floats:
    """Return class probabilities over `classes`; 0 for a class that the model no longer has.

    Decision values are transformed by the logistic function (softmax for several classes). For a
    regressor (`classes` is None), return the predictions as a column.
    """
    if classes is None:
        return np.asarray(model.predict(X), np.float64).reshape(len(X), -1)
    method, p = query_confidence(model, X)
    if method == "decision_function":
        p = np.column_stack([expit(-p), expit(p)]) if p.ndim == 1 else softmax(p, axis=1)
    table = np.zeros((len(p), len(classes)))
    table[:, np.searchsorted(classes, model.classes_)] = p
    return table


# Kinds of cases: non-members, while others are removed; members who are removed; and further
# non-members, who replace the members in the floor.
_ABSENT, _REMOVED, _ALSO_ABSENT = 0, 1, 2
# Versions of the model that an attacker may have.
_VIEWS = ("both", "before", "after")


class _Cases(NamedTuple):
    """Posteriors of rows under two models, with the person, kind, world and removal of each."""

    before: Floats
    after: Floats
    kind: Ints
    person: Ints
    world: Ints
    removal: Ints

    def of_kinds(self, *kinds: int) -> "_Cases":
        """Return the rows whose kind is one of `kinds`."""
        keep = np.isin(self.kind, kinds)
        kept: list[Any] = [part[keep] for part in self]
        return _Cases(*kept)

    def group_rows(self) -> tuple[Ints, Ints]:
        """Return the first row of each case (a person in a removal), and the case of each row."""
        keys = np.column_stack([self.world, self.removal, self.kind, self.person])
        _, first, numbers = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        return first.astype(np.int64), numbers.ravel().astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class BeforeAfter(Attack):
    """Membership inference by an attacker who has the model from before the removal.

    Each world trains a clone on the retained people and on half of the people in question. Then it
    removes some people of this half, `batch` at a time, always from the first model. The attack
    model is trained on shadow worlds with other people, to infer from both posteriors who was
    removed. It is tested on worlds with the people in `forget`.

    Parameters
    ----------
    features : tuple of str, default=all five
        See `posterior_features`.
    attacker : {"forest", "logistic"}, default="forest"
        The attack model: a random forest, or logistic regression on standardised features.
    n_shadows, n_targets : int, default=8
        Numbers of worlds to train the attack model on, and to attack.
    n_removals : int, default=8
        Largest number of removals in each world; each is a separate call of `forget`.
    batch : int, default=1
        People per removal. Larger batches hide each person better.
    confidence : float, default=0.95
        Coverage of all intervals.

    Notes
    -----
    Measures, each with its floor (people who were never members, while others are removed):

    * *AUC* and *TPR at 1 % FPR* of the attack with both versions;
    * *AUC, model after only*: the leakage of the latest model alone;
    * *AUC, model before only*: the classical attack on the old model;
    * *degradation count*: see `degradation_count`.

    The attacker knows the rows of the retained people and does not use labels. Intervals treat
    people and worlds as sampled units; `found` depends on the difference from the floor, world by
    world. For exact methods "model after only" is at its floor, but AUC is not: the deletion itself
    leaks.

    This is not a test of forgetting: a model that keeps everything does not change, and so does
    not reveal who was removed.

    References
    ----------
    Chen et al., When Machine Unlearning Jeopardizes Privacy, CCS 2021.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon import NaiveUnlearner
    >>> X, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
    >>> attack = BeforeAfter(n_shadows=2, n_targets=2, n_removals=2, attacker="logistic")
    >>> (result,) = attack.run(NaiveUnlearner(GaussianNB()), X, y, forget=range(8))
    >>> result.n_models
    4
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
        """Raise if a setting is invalid."""
        if self.attacker not in ("forest", "logistic"):
            raise ValueError(f'attacker must be "forest" or "logistic", not {self.attacker!r}')
        for setting in ("n_shadows", "n_targets", "n_removals", "batch"):
            if getattr(self, setting) < 1:
                raise ValueError(f"{setting} must be at least 1, not {getattr(self, setting)}")

    def _run_attack(self, inputs: AttackInputs) -> tuple[AttackResult, ...]:
        data, is_target = read_inputs(inputs)
        shadow_people, target_people = _split_people(data, is_target, self.batch, inputs.seed)
        others = ~is_target & ~np.isin(data.ids, shadow_people)
        plan = [shadow_people] * self.n_shadows + [target_people] * self.n_targets
        worlds: list[_Cases] = []
        for number, people in enumerate(plan):
            with one_thread():
                worlds.append(self._run_world(inputs, data, others, people, number))
            inputs.progress(len(worlds), len(plan))
        shadows = join_records(worlds[: self.n_shadows])
        targets = join_records(worlds[self.n_shadows :])
        train = shadows.of_kinds(_ABSENT, _REMOVED)
        number = library_seed(inputs.seed, Purpose.BEFORE_AFTER_ATTACKER)
        attackers = {view: self._fit_attacker(train, view, number) for view in _VIEWS}
        real, null = targets.of_kinds(_ABSENT, _REMOVED), targets.of_kinds(_ABSENT, _ALSO_ABSENT)
        scores, nulls = self._score_cases(attackers, real), self._score_cases(attackers, null)
        first, second = real.group_rows()[0], null.group_rows()[0]
        labels = real.kind[first] == _REMOVED
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
        self, inputs: AttackInputs, data: People, others: Bools, people: NDArray[Any], number: int
    ) -> _Cases:
        """Return the cases of one world: train a model, then remove batches of people from it.

        The model is trained on the rows in `others` and on a random half of `people`. Each batch
        is a part of this half and is removed from a copy of the model.
        """
        numbers, batch = np.arange(len(people)), self.batch
        order = np.argsort(
            keyed_hash_ints(inputs.seed, Purpose.BEFORE_AFTER_MEMBERS, numbers, number)
        )
        members, absent = np.split(order, [len(order) // 2])
        seed = library_seed(inputs.seed, Purpose.BEFORE_AFTER_MODEL, number)
        train = others | np.isin(data.ids, people[members])
        model = fit_copy(inputs.unlearner, seed, data.X[train], data.y[train], data.ids[train])
        classes = None if is_regressor(inputs.unlearner) else np.unique(data.y)
        rows = np.flatnonzero(np.isin(data.ids, people))
        X, person = data.X[rows], np.searchsorted(people, data.ids[rows])
        before, removals = predict_posteriors(model, X, classes), []
        for removal in range(min(self.n_removals, len(members) // batch)):
            removed = members[removal * batch : (removal + 1) * batch]
            outside = np.roll(absent, -2 * removal * batch)
            kinds = np.full(len(numbers), -1)
            kinds[removed], kinds[outside[:batch]] = _REMOVED, _ABSENT
            kinds[outside[batch : 2 * batch]] = _ALSO_ABSENT
            cases = np.flatnonzero(kinds[person] >= 0)
            unlearned = copy.deepcopy(model)
            unlearned.forget(people[removed])
            after, owners = predict_posteriors(unlearned, X[cases], classes), person[cases]
            same = np.full_like(owners, number), np.full_like(owners, removal)
            removals.append(_Cases(before[cases], after, kinds[owners], owners, *same))
        return join_records(removals)

    def _view_features(self, cases: _Cases, view: str) -> Floats:
        """Return the features of each row for an attacker who has the versions in `view`."""
        if view == "both":
            return posterior_features(cases.before, cases.after, self.features)
        p = cases.before if view == "before" else cases.after
        return np.hstack([p, -np.sort(-p, axis=1)])

    def _fit_attacker(self, train: _Cases, view: str, seed: int) -> Any:
        """Return the attack model, fitted on the cases of shadow worlds."""
        if self.attacker == "logistic":
            model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        else:
            model = RandomForestClassifier(min_samples_leaf=3, random_state=seed)
        with one_thread():
            return model.fit(self._view_features(train, view), train.kind == _REMOVED)

    def _score_cases(self, attackers: dict[str, Any], cases: _Cases) -> dict[str, Floats]:
        """Return for each attacker the score of each case: the mean over the person's rows."""
        _, numbers = cases.group_rows()
        rows, scores = np.bincount(numbers), dict[str, Floats]()
        for view, attacker in attackers.items():
            chances = attacker.predict_proba(self._view_features(cases, view))[:, 1]
            scores[view] = np.bincount(numbers, weights=chances) / rows
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
        for version in ("after", "before"):
            area = auc(scores[version], labels, **options)
            measures.append(replace(area, name=f"AUC, model {version} only"))
        measures.append(degradation_count(both, before, labels, confidence=self.confidence))
        return {measure.name: measure for measure in measures}


def _split_people(
    data: People, is_target: Bools, batch: int, seed: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the people for shadow worlds, and the people to be forgotten, both sorted.

    The people for shadow worlds are retained people: as many as are forgotten, but at most half of
    the retained people.
    """
    targets, retained = np.unique(data.ids[is_target]), np.unique(data.ids[~is_target])
    positions = np.arange(len(retained))
    order = np.argsort(keyed_hash_ints(seed, Purpose.BEFORE_AFTER_SHADOW_PEOPLE, positions))
    shadows = np.sort(retained[order[: min(len(targets), len(retained) // 2)]])
    if min(len(targets), len(shadows)) < 4 * batch:
        raise ValueError(
            f"too few people: forget has {len(targets)} and {len(retained)} are retained, but "
            f"batch={batch} needs at least {4 * batch} and {8 * batch}"
        )
    return shadows, targets
