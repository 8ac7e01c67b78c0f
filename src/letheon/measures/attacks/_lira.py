"""LiRA (Carlini et al., 2022), and LiRA against unlearning (Hayes et al., 2024).

Models come in pairs with complementary halves: each person is in the training set of exactly one
model of the pair, chosen at random. If the signals do not depend on membership, the model that was
trained on the person has the higher score with probability exactly 1/2, for any number of people
and models. This does not hold for comparisons across pairs, because the models of one pair are
references of the other.

Comparisons of different pairs are not independent, because their reference models overlap. The
effect on a mean is estimated by swapping the roles in each pair at random and scoring again.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import is_regressor

from letheon.measures._intervals import Bools, Floats, Ints, clopper_pearson, effective_sample_size
from letheon.measures._measure import Measure, make_measure
from letheon.measures.attacks._result import (
    ROUNDS,
    About,
    AttackResult,
    beyond_floor_by_swaps,
    check_about,
    tpr_at_fpr,
    variance_of_sum,
)
from letheon.measures.attacks._shadows import (
    LIMIT,
    Attack,
    AttackInputs,
    Probe,
    ShadowJob,
    ShadowSignals,
    Study,
    split_halves,
)
from letheon.purposes import Purpose

# With fewer models on a side the variance of a single example is too uncertain. Carlini et al. then
# use one variance for all examples.
ENOUGH = 32
LEAST_DEVIATION = 1e-8


def _gaussian_score(x: Floats, values: Floats, chosen: Bools) -> Floats:
    """Return the log-density of x under a normal distribution fitted to the chosen models.

    `values` and `chosen` have one row per model and one column per example; each example has its
    own distribution. The constant term of the density is omitted.
    """
    n = chosen.sum(axis=0)
    if (n < 1).any():
        raise ValueError(
            "every example needs at least one model that was trained on it and one that was not"
        )
    mean = np.where(chosen, values, 0.0).sum(axis=0) / n
    squares = (np.where(chosen, values - mean, 0.0) ** 2).sum(axis=0)
    if n.min() >= ENOUGH:
        variance = squares / (n - 1)
    else:
        variance = np.full(len(n), squares.sum() / max(int((n - 1).sum()), 1))
    deviation = np.sqrt(np.maximum(variance, LEAST_DEVIATION**2))
    standard = (x - mean) / deviation
    return np.asarray(-0.5 * standard**2 - np.log(deviation))


def lira(target: ArrayLike, inside: ArrayLike, outside: ArrayLike) -> Floats:
    """Return the log-likelihood ratio of the signals of attacked models.

    ``score(x) = log N(phi(x) | mu_in, s_in^2) - log N(phi(x) | mu_out, s_out^2)``

    Parameters
    ----------
    target : array-like of shape (n,) or (n_targets, n)
        Signals of one or several attacked models for n examples.
    inside, outside : array-like of shape (n_models, n)
        Signals of models that were, and were not, trained on each example, without the attacked
        models.

    Returns
    -------
    ndarray
        Scores with the shape of `target`; positive values indicate membership.

    Notes
    -----
    With fewer than 32 models on a side the variance is pooled over the examples, as recommended by
    Carlini et al.

    Examples
    --------
    >>> lira([2.0], [[1.0], [3.0]], [[-1.0], [1.0]]).round(3).tolist()
    [1.0]
    """
    x, ins, outs = (np.asarray(part, dtype=np.float64) for part in (target, inside, outside))
    by_in, by_out = (_gaussian_score(x, side, np.ones(side.shape, bool)) for side in (ins, outs))
    return by_in - by_out


def cross_lira(signals: ArrayLike, members: ArrayLike, folds: ArrayLike) -> Floats:
    """Return the LiRA score of every model, with the models of the other folds as references.

    Parameters
    ----------
    signals : array-like of shape (n_models, n)
        Signal of each model for each of n examples.
    members : array-like of bool, shape (n_models, n)
        Whether the model was trained on the example.
    folds : array-like of shape (n_models,)
        Fold of each model. Models of one fold are not references of each other.

    Returns
    -------
    ndarray of shape (n_models, n)

    Raises
    ------
    ValueError
        The shapes do not match, or there are too few values; the message says which.

    Notes
    -----
    A fold must contain, for each example, as many models inside as outside: two models with
    complementary halves of the people. Leaving out only the model itself would shift the mean of
    its own side away from it and bias the AUC below 0.5. Leaving out no model would bias it far
    above 0.5. Scores within one pair are comparable: chance is exactly 1/2. Scores of different
    pairs are nearly comparable if many people are pooled, but not for a single person (chance is
    0.46 on average for 64 models).

    Examples
    --------
    >>> signals = [[2.0, 0.1], [0.2, 1.8], [2.1, 0.3], [0.0, 1.9]]
    >>> members = [[1, 0], [0, 1], [1, 0], [0, 1]]
    >>> (cross_lira(signals, members, [0, 0, 1, 1]) > 0).tolist()
    [[True, False], [False, True], [True, False], [False, True]]
    """
    values, inside = np.asarray(signals, dtype=np.float64), np.asarray(members, dtype=bool)
    fold = np.asarray(folds)
    if values.shape != inside.shape or len(fold) != len(values):
        raise ValueError(
            f"signals has shape {values.shape}, members {inside.shape} and folds {fold.shape}; "
            "expected (n_models, n), (n_models, n) and (n_models,)"
        )
    scores = np.empty_like(values)
    for number in np.unique(fold):
        is_own = fold == number
        own, others, members_of_others = values[is_own], values[~is_own], inside[~is_own]
        by_in = _gaussian_score(own, others, members_of_others)
        scores[is_own] = by_in - _gaussian_score(own, others, ~members_of_others)
    return scores


# Numbers scored in one step. Limits the memory.
_BLOCK = 2**20


class SignalPairs(NamedTuple):
    """Signals of pairs of models: of the model trained on the person, and of the other model.

    Both arrays have the shape (.., pairs, people).
    """

    inside: Floats
    outside: Floats

    @classmethod
    def from_models(cls, signals: Floats, members: Bools) -> "SignalPairs":
        """Return pairs from signals of shape (.., models, people) and the members of each model.

        Models 2k and 2k + 1 form a pair.
        """
        first, second, is_first = signals[..., ::2, :], signals[..., 1::2, :], members[::2]
        if not (is_first ^ members[1::2]).all():
            raise ValueError(
                "rows 2k and 2k + 1 of members must be complements: each person must be a member "
                "of exactly one model of a pair"
            )
        return cls(np.where(is_first, first, second), np.where(is_first, second, first))

    def score_wins(self) -> Floats:
        """Return 1 where the model trained on the person has the higher LiRA score, else 0.

        A tie is 1/2. The shape is (.., pairs, people). The references of a pair are all other
        pairs, see `cross_lira`.
        """
        ins, outs = (_fit_other_pairs(signals) for signals in self)
        inside, outside = (_log_density(x, *ins) - _log_density(x, *outs) for x in self)
        return np.asarray((inside > outside) + 0.5 * (inside == outside), np.float64)


def _fit_other_pairs(signals: Floats) -> tuple[Floats, Floats]:
    """Return for each pair and person the mean and variance of the signals of all other pairs."""
    n = signals.shape[-2] - 1
    centre = signals.mean(axis=-2, keepdims=True)
    gaps = signals - centre
    mean = (gaps.sum(axis=-2, keepdims=True) - gaps) / n
    squares = (gaps**2).sum(axis=-2, keepdims=True) - gaps**2 - n * mean**2
    if n >= ENOUGH:
        variance = squares / (n - 1)
    else:
        variance = squares.mean(axis=-1, keepdims=True) / max(n - 1, 1)
    return centre + mean, np.maximum(variance, LEAST_DEVIATION**2)


def _log_density(x: Floats, mean: Floats, variance: Floats) -> Floats:
    return np.asarray(-0.5 * ((x - mean) ** 2 / variance + np.log(variance)))


def pair_auc(pairs: SignalPairs, *, confidence: float = 0.95, seed: int = 0) -> Measure:
    """Return the AUC within pairs, ``P(s_in > s_out) + P(s_in = s_out) / 2``, with its interval.

    Parameters
    ----------
    pairs : SignalPairs
        Signals of shape (pairs, people).
    confidence : float, default=0.95
        Nominal coverage of the interval. It is Clopper and Pearson's interval with an effective
        sample size (Korn and Graubard, 1998), the smaller of two estimates: from the variance over
        pairs and people (Cameron, Gelbach and Miller, 2011), and from the variance over random
        swaps of the two models of a pair.
    seed : int, default=0
        Seed of the swaps.

    Returns
    -------
    Measure
        Lower is better. If all scores are equal, the interval is the point 0.5.
    """
    won = pairs.score_wins()
    value, low, high = float(won.mean()), 0.5, 0.5
    if not (won == 0.5).all():
        number = _count_effective_comparisons(won, value, confidence)
        spread = float(np.mean((_auc_after_swaps(pairs, seed) - 0.5) ** 2))
        number = max(1.0, min(number, 0.25 / spread if spread > 0 else math.inf))
        low, high = clopper_pearson(value * number, number, confidence)
    return make_measure(
        "AUC", value, (low, high), 2 * won.size, better="lower", confidence=confidence
    )


def _count_effective_comparisons(won: Floats, value: float, confidence: float) -> float:
    """Return the effective number of comparisons, with pairs and people as sampled units."""
    gaps, sizes = won - value, [size for size in won.shape if size > 1]
    if not gaps.any() or not sizes:
        return float(min(sizes, default=1))
    n = won.size
    cells = variance_of_sum(gaps.ravel() / n)
    over = [variance_of_sum(gaps.sum(axis=1 - axis) / n) for axis in (0, 1) if won.shape[axis] > 1]
    variance = max(cells, sum(over) - (len(over) - 1) * cells)
    return min(effective_sample_size(value, variance, min(sizes), confidence), float(won.size))


def _auc_after_swaps(pairs: SignalPairs, seed: int) -> Floats:
    """Return the AUC after random swaps of the two models of each pair, one value per round."""
    rng, areas = np.random.default_rng([seed, 1]), []
    n_pairs, n_people = pairs.inside.shape
    for size in _block_sizes(n_pairs * n_people):
        turned = rng.random((size, n_pairs, 1)) < 0.5
        inside, outside = (np.where(turned, b, a) for a, b in (pairs, pairs[::-1]))
        areas.append(SignalPairs(inside, outside).score_wins().mean(axis=(-2, -1)))
    return np.concatenate(areas)


def _block_sizes(n_numbers: int) -> list[int]:
    """Return the sizes of the blocks of rounds; a round needs memory for `n_numbers` numbers."""
    size = max(1, min(ROUNDS, _BLOCK // n_numbers))
    return [min(size, ROUNDS - start) for start in range(0, ROUNDS, size)]


def pair_excess(signals: Floats, floor: Floats, members: Bools, *, seed: int = 0) -> Measure:
    """Return the AUC within pairs minus the AUC of the floor; see `beyond_floor_by_swaps`.

    Parameters
    ----------
    signals, floor, members : ndarray of shape (n_models, n_people)
        Signals of unlearned models, signals of models retrained on the same halves of the people,
        and which people are in each half.
    seed : int, default=0
        Seed of the swaps.
    """
    both = np.stack([signals, floor])
    rng, gaps = np.random.default_rng([seed, 2]), [_auc_differences(both[None], members)]
    for size in _block_sizes(2 * signals.size):
        swapped = rng.random((size, 1, len(signals), 1)) < 0.5
        gaps.append(_auc_differences(np.where(swapped, both[::-1], both), members))
    (value, *moved), n_pairs = np.concatenate(gaps), len(signals) // 2
    note = "AUC minus floor, within pairs; swaps of unlearned and retrained models"
    return beyond_floor_by_swaps(float(value), np.array(moved), n_pairs, note=note)


def _auc_differences(both: Floats, members: Bools) -> Floats:
    """Return the difference of two AUCs for each round.

    `both` contains two sets of signals per round and has the shape (rounds, 2, models, people).
    """
    areas = SignalPairs.from_models(both, members).score_wins().mean(axis=(-2, -1))
    return np.asarray(areas[:, 0] - areas[:, 1])


# A probability of exactly 1, as forests predict, must not dominate. Larger margins that are below
# the limit are kept.
_CLIP = 15.0
_NOTE_OF_WORST = "the largest of many values is large by chance: compare it with its floor"
_NOTE = {
    "forgotten": (
        "In: trained on the person, then forgot them; out: never trained on the person. A low "
        "value does not prove forgetting: it is the result of this attack with this number of "
        "shadow models, each trained on a random half of the people."
    ),
    "retained": (
        "In: trained on the person, who is retained while others are forgotten; out: never trained "
        "on the person. The floor is the leakage of a retrained model; an excess means that "
        "unlearning harms the privacy of retained people. A low value does not prove their privacy."
    ),
}


@dataclass(frozen=True, kw_only=True)
class ULiRA(Attack):
    """LiRA against models that were trained on a person and then forgot them (U-LiRA).

    ``score(x) = log N(phi(x) | in) - log N(phi(x) | out)``, where *in* models were trained on x
    and then unlearned it with the method under test, and *out* models were never trained on x.
    Perfect unlearning has an AUC of 0.5.

    Parameters
    ----------
    n_shadows : int, default=64
        Number of shadow models, even; each is used for all people. Hayes et al. use 256.
    about : tuple of {"forgotten", "retained"}, default=both
        Groups of people to attack.
    n_retained : int, default=200
        Largest number of retained people to attack.
    n_jobs : int or None, default=None
        Number of shadow models trained in parallel, with joblib.

    Notes
    -----
    Every shadow model trains on a random half of the retained people and a random half of the
    people to be forgotten, and then forgets the latter in one request. The floor is the same attack
    on a fresh fit, with another seed, on the retained people of the same half. Signals of a person
    with several rows are averaged. For regressors, the signal is minus the squared error.

    The AUC compares the two models of each pair, so that chance is exactly 1/2 on average, even for
    a single person. Its interval treats people and pairs as sampled units. `found` depends on the
    difference from the floor: a permutation test swaps unlearned and retrained models of the same
    half, so its false alarm rate is as stated for any number of models. The TPR uses one threshold
    for all people and models.

    References
    ----------
    Hayes, Shumailov, Triantafillou, Khalifa, Papernot: Inexact unlearning needs more careful
    evaluations to avoid a false sense of privacy. 2024.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon import NaiveUnlearner
    >>> X, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
    >>> attack = ULiRA(n_shadows=8, about=("forgotten",))
    >>> (result,) = attack.run(NaiveUnlearner(GaussianNB()), X, y, forget=range(8))
    >>> result.found
    False
    """

    name: ClassVar[str] = "u-lira"

    n_shadows: int = 64
    about: tuple[About, ...] = ("forgotten", "retained")
    n_retained: int = 200
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        """Raise if a setting is invalid."""
        if self.n_shadows < 8 or self.n_shadows % 2:
            raise ValueError(f"n_shadows must be even and at least 8, not {self.n_shadows}")
        check_about(self.about)

    def _run_attack(self, inputs: AttackInputs) -> tuple[AttackResult, ...]:
        study = Study.from_inputs(inputs, needs_unseen=False, n_jobs=self.n_jobs)
        people = study.sample_people(self.n_retained)
        probe = study.make_probe(np.concatenate([people[group] for group in self.about]), 0)
        members = split_halves(study.candidates, self.n_shadows, inputs.seed)
        jobs = plan_shadow_models(study, inputs, members)
        shadows = study.train_models(probe, jobs, inputs.progress)
        if not is_regressor(inputs.unlearner):
            signal, before = _clip_margins(shadows.signal), _clip_margins(shadows.before)
            shadows = shadows._replace(signal=signal, before=before)
        return tuple(_make_result(g, people[g], probe, members, shadows) for g in self.about)


def _clip_margins(margins: Floats) -> Floats:
    """Return margins clipped to [-m, m].

    m is the largest absolute margin that is below `LIMIT`, but at least 15.
    """
    sizes = np.abs(margins)
    most = max(_CLIP, float(sizes[sizes < LIMIT].max(initial=0.0)))
    return np.clip(margins, -most, most)


def plan_shadow_models(study: Study, inputs: AttackInputs, members: Bools) -> list[ShadowJob]:
    """Return the training jobs: first all unlearned models, then all retrained models."""
    removed, shadow, floor = study.candidates, Purpose.ATTACK_SHADOW, Purpose.ATTACK_FLOOR
    return [
        ShadowJob(inputs.unlearner, half, removed, shadow, k) for k, half in enumerate(members)
    ] + [ShadowJob(inputs.naive, half & ~removed, None, floor, k) for k, half in enumerate(members)]


def _make_result(
    about: About, people: Ints, probe: Probe, members: Bools, shadows: ShadowSignals
) -> AttackResult:
    """Return the result of the attack on `people`, with its floor."""
    inside = members[:, people]
    signals, floor = np.split(probe.of_people(shadows.signal, people), 2)
    before = probe.of_people(shadows.before, people)
    folds = np.arange(len(inside)) // 2
    scores = cross_lira(signals, inside, folds)
    return AttackResult(
        attack=ULiRA.name,
        about=about,
        measures=_all_measures(signals, scores, inside),
        floor=_all_measures(floor, cross_lira(floor, inside, folds), inside),
        excess=pair_excess(signals, floor, inside),
        control=pair_excess(before, floor, inside) if about == "forgotten" else None,
        n_models=2 * len(inside),
        note=_NOTE[about],
        **flatten_scores(scores, inside),
    )


def flatten_scores(scores: Floats, labels: Bools) -> dict[str, Any]:
    """Return scores and labels of shape (worlds, people) as vectors, person by person.

    The dict has the fields of `AttackResult`: scores, labels, and owners (the person's number).
    """
    n_worlds, n_people = scores.shape
    return {
        "scores": scores.T.ravel(),
        "labels": labels.T.ravel().astype(np.int64),
        "owners": np.repeat(np.arange(n_people), n_worlds),
    }


def tpr_at_one_percent(scores: Floats, labels: Bools) -> Measure:
    """Return the TPR at 1 % FPR; scores and labels have the shape (worlds, people)."""
    worlds, people = np.indices(scores.shape)
    return tpr_at_fpr(scores.ravel(), labels.ravel(), groups=(people.ravel(), worlds.ravel()))


def _all_measures(signals: Floats, scores: Floats, labels: Bools) -> dict[str, Measure]:
    """Return AUC and TPR over all people, and the AUC of the most exposed person, by name."""
    pairs = SignalPairs.from_models(signals, labels)
    areas = pairs.score_wins().mean(axis=0)
    name, n, note = "AUC of the worst person", len(areas), _NOTE_OF_WORST
    worst = make_measure(name, float(areas.max()), None, n, better="lower", note=note)
    measures = [pair_auc(pairs), tpr_at_one_percent(scores, labels), worst]
    return {measure.name: measure for measure in measures}
