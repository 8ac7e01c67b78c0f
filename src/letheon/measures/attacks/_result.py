"""Results of attacks with their null floors; AUC and TPR at a fixed FPR, with intervals.

Ties and several scores per person are handled.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, stdtrit

from letheon.measures._intervals import Bools, Floats, Ints, clopper_pearson, student_interval
from letheon.measures._measure import Measure, MeasureOptions, TextRepr, from_plain, make_measure


def _check_scores(scores: ArrayLike, labels: ArrayLike) -> tuple[Floats, Bools]:
    """Return scores and labels as arrays, or raise if they are invalid or only one label occurs."""
    values, positive = np.asarray(scores, dtype=np.float64), np.asarray(labels).astype(bool)
    if values.ndim != 1 or values.shape != positive.shape:
        raise ValueError(
            "scores and labels must be vectors of the same length, not of shapes "
            f"{values.shape} and {positive.shape}"
        )
    if np.isnan(values).any():
        raise ValueError("scores contain NaN")
    if positive.all() or not positive.any():
        raise ValueError("labels must contain both 0 and 1, but all are equal")
    return values, positive


def roc_curve(scores: ArrayLike, labels: ArrayLike) -> tuple[Floats, Floats]:
    """Return the false and true positive rates of all thresholds, from (0, 0) to (1, 1).

    Equal scores form one step, so the curve does not depend on the order of the input.

    Parameters
    ----------
    scores : array-like of shape (n,)
        Higher scores indicate membership.
    labels : array-like of shape (n,)
        1 for members, 0 for others; both must occur.

    Returns
    -------
    (ndarray, ndarray)
        False positive rates and true positive rates.

    Examples
    --------
    >>> fpr, tpr = roc_curve([0.9, 0.5, 0.5, 0.1], [1, 1, 0, 0])
    >>> fpr.tolist(), tpr.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    values, positive = _check_scores(scores, labels)
    steps, where = np.unique(-values, return_inverse=True)
    hits = np.bincount(where, weights=positive, minlength=len(steps)).cumsum()
    alarms = np.bincount(where, weights=~positive, minlength=len(steps)).cumsum()
    return np.append(0.0, alarms / alarms[-1]), np.append(0.0, hits / hits[-1])


def _placement_values(values: Floats, positive: Bools) -> Floats:
    """Return for each score the share of scores of the other class that are ordered correctly.

    Members should have higher scores than non-members. A tie counts one half.
    """
    placed = np.empty(len(values))
    for kind in (True, False):
        mine, others = values[positive == kind], np.sort(values[positive != kind])
        below = np.searchsorted(others, mine, side="left")
        not_above = np.searchsorted(others, mine, side="right")
        share = (below + not_above) / (2 * len(others))
        placed[positive == kind] = share if kind else 1 - share
    return placed


def variance_of_sum(parts: Floats, groups: Ints | None = None) -> float:
    """Return an estimate of the variance of the sum of `parts`, whose mean is 0.

    Without `groups`, all terms are independent. With `groups` (a number per term), only terms of
    different groups are.
    """
    sums = parts if groups is None else np.bincount(groups, weights=parts)
    n = len(sums)
    return n / (n - 1) * float(np.sum(sums**2))


def _number_groups(groups: Sequence[ArrayLike]) -> list[Ints]:
    """Return each grouping as numbers 0..k-1, without groupings that have a single group."""
    numbered = [np.unique(np.asarray(group), return_inverse=True)[1] for group in groups]
    return [numbers.astype(np.int64) for numbers in numbered if numbers.max() > 0]


def _auc_variance(placed: Floats, positive: Bools, groups: list[Ints]) -> float:
    """Return DeLong's variance of the AUC, or with groups its clustered form (Obuchowski, 1997).

    For two groupings, by people and by worlds, this is ``V_people + V_worlds - V_cells`` (Cameron,
    Gelbach and Miller, 2011), but at least the variance of independent scores.
    """
    influence, independent = _influence_values(placed, positive), 0.0
    for kind in (positive, ~positive):
        n = int(kind.sum())
        independent += n / max(n - 1, 1) * float(np.sum(influence[kind] ** 2))
    crossed = sum(variance_of_sum(influence, group) for group in groups)
    return max(independent, crossed - max(len(groups) - 1, 0) * independent)


def _influence_values(placed: Floats, positive: Bools) -> Floats:
    """Return the influence of each score on the AUC; the influences sum to 0."""
    numbers = np.where(positive, positive.sum(), (~positive).sum())
    return np.asarray((placed - placed[positive].mean()) / numbers)


def area_by_unit(scores: ArrayLike, labels: ArrayLike, units: ArrayLike) -> Floats:
    """Return one value for each unit (a model, for example); the mean of the values is the AUC.

    The value of a unit is ``AUC + n_units * (sum of the influences of the unit's scores)``. Units
    are in ascending order.
    """
    values, positive = _check_scores(scores, labels)
    placed = _placement_values(values, positive)
    numbers = np.unique(np.asarray(units), return_inverse=True)[1]
    moved = np.bincount(numbers, weights=_influence_values(placed, positive))
    return np.asarray(placed[positive].mean() + len(moved) * moved)


def auc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    groups: Sequence[ArrayLike] = (),
    confidence: float = 0.95,
) -> Measure:
    """Return the area under the ROC curve with DeLong's interval.

    ``AUC = P(s_in > s_out) + P(s_in = s_out) / 2``: 0.5 is chance, 1 is perfect separation. Ties
    count one half.

    Parameters
    ----------
    scores : array-like of shape (n,)
        Scores of the attack, larger for members.
    labels : array-like of shape (n,)
        1 for members, 0 for non-members.
    groups : sequence of array-like of shape (n,), optional
        Up to two groupings within which scores are dependent: by person, and by model. The
        interval then treats people and models as the sampled units.
    confidence : float, default=0.95
        Nominal coverage of the interval.

    Returns
    -------
    Measure
        Lower is better. The interval is DeLong's on the logit scale. If all scores are equal, the
        interval is the point 0.5. At perfect separation the variance estimate is 0; a binomial
        interval is used then, with as many trials as the smaller class (or grouping) has members.

    Examples
    --------
    >>> print(auc([0.9, 0.8, 0.4, 0.7, 0.3, 0.1], [1, 1, 1, 0, 0, 0]))
    AUC: 0.8889 [0.2614, 0.9945] at 0.95 (measured, n=6, lower is better)
    """
    values, positive = _check_scores(scores, labels)
    placed = _placement_values(values, positive)
    area = float(np.clip(placed[positive].mean(), 0, 1))
    clusters = _number_groups(groups)
    sizes = [int(cluster.max()) + 1 for cluster in clusters]
    if area in (0.0, 1.0):
        trials = min([int(positive.sum()), int((~positive).sum()), *sizes])
        interval = _share_interval(area, trials, confidence)
    else:
        variance = _auc_variance(placed, positive, clusters)
        freedom = min(sizes) - 1 if sizes else math.inf
        t = float(stdtrit(freedom, (1 + confidence) / 2))
        half = t * math.sqrt(variance) / (area * (1 - area))
        low, high = expit(float(logit(area)) + np.array([-half, half]))
        interval = float(low), float(high)
    return make_measure("AUC", area, interval, len(values), better="lower", confidence=confidence)


def tpr_at_fpr(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    fpr: float = 0.01,
    groups: Sequence[ArrayLike] = (),
    confidence: float = 0.95,
) -> Measure:
    """Return the true positive rate at a false positive rate of `fpr` (Carlini et al., 2022).

    An attack that identifies a few people with certainty violates their privacy even if its AUC is
    close to 0.5. This rate reveals such an attack.

    Parameters
    ----------
    scores, labels, groups, confidence
        As for `auc`.
    fpr : float, default=0.01
        False positive rate. The attack uses the lowest threshold at which the observed false
        positive rate does not exceed it.

    Returns
    -------
    Measure
        Lower is better. The interval includes the error of the threshold (order statistics of
        the scores of non-members) and of the true positive rate, each with Clopper and Pearson's
        limits at half of the error probability. Its coverage is at least `confidence` for
        independent scores. With groups, the numbers are divided by the design effect (Korn and
        Graubard, 1998). With fewer than about 430 scores of non-members (for 1 %), the lower end
        is 0.

    Raises
    ------
    ValueError
        The shapes do not match, or there are too few values; the message says which.

    Examples
    --------
    >>> print(tpr_at_fpr([3, 2, 1, 0, 0], [1, 1, 0, 0, 0]))
    TPR at 1 % FPR: 1 [0, 1] at 0.95 (measured, n=5, lower is better)
    """
    if not 0 < fpr < 1:
        raise ValueError(f"fpr must be between 0 and 1, not {fpr!r}")
    values, positive = _check_scores(scores, labels)
    ins, outs = np.sort(values[positive]), np.sort(values[~positive])[::-1]
    deff_in, deff_out = _design_effects(values, positive, _number_groups(groups))
    level = (1 + confidence) / 2
    # The numbers of false positives that are plausible for a true rate of `fpr`.
    least, most = _plausible_alarms(fpr, len(outs), len(outs) / deff_out, level)
    value = _share_above(ins, outs, int(fpr * len(outs) + 1e-9) + 1)
    low, _ = _share_interval(_share_above(ins, outs, least), len(ins) / deff_in, level)
    _, high = _share_interval(_share_above(ins, outs, most + 1), len(ins) / deff_in, level)
    name = f"TPR at {100 * fpr:.4g} % FPR"
    return make_measure(
        name, value, (low, high), len(values), better="lower", confidence=confidence
    )


def _share_above(ins: Floats, outs: Floats, rank: int) -> float:
    """Return the share of `ins` above the `rank`-th largest of `outs`; 0 for rank 0.

    `ins` is in ascending, `outs` in descending order. A rank above the number of `outs` gives 1.
    """
    if rank == 0:
        return 0.0
    if rank > len(outs):
        return 1.0
    return 1 - int(np.searchsorted(ins, outs[rank - 1], side="right")) / len(ins)


def _plausible_alarms(fpr: float, n: int, n_effective: float, confidence: float) -> tuple[int, int]:
    """Return the smallest and the largest number of alarms that are plausible at the rate `fpr`.

    A number of alarms among `n` non-members is plausible if the interval of its rate contains
    `fpr`.
    """
    shares = np.arange(n + 1) / n
    # Larger numbers of alarms are impossible in practice.
    most = int(n * fpr + 40 * math.sqrt(n * fpr) + 100)
    ends = np.array([_share_interval(share, n_effective, confidence) for share in shares[:most]])
    holds = np.flatnonzero((ends[:, 0] <= fpr) & (fpr <= ends[:, 1]))
    return int(holds[0]), int(holds[-1])


def _design_effects(values: Floats, positive: Bools, groups: list[Ints]) -> list[float]:
    """Return two design effects, for members and for non-members; at least 1.

    The design effect is the factor by which dependence within groups increases the variance.
    """
    placed = _placement_values(values, positive)
    effects = []
    for kind in (positive, ~positive):
        influence = placed[kind] - placed[kind].mean()
        independent = float(np.sum(influence**2))
        clustered = [
            variance_of_sum(influence, group[kind])
            for group in groups
            if len(np.unique(group[kind])) > 1
        ]
        effects.append(max([1.0, *(v / independent for v in clustered if independent > 0)]))
    return effects


def _share_interval(share: float, n: float, confidence: float) -> tuple[float, float]:
    """Return Clopper and Pearson's interval of a share of `n` trials, widened to contain it."""
    low, high = clopper_pearson(share * n, n, confidence)
    return min(low, share), max(high, share)


BEYOND = "beyond the floor"
# Smaller differences are rounding errors.
_ROUNDING = 1e-12
# Rounds of random swaps. With 199 rounds a rank among 200 is exact at 5 %.
ROUNDS = 199


def beyond_floor_by_unit(gaps: Floats, *, confidence: float = 0.95, note: str = "") -> Measure:
    """Return the mean difference from the floor over units, with its interval.

    Parameters
    ----------
    gaps : ndarray of shape (n,)
        Measure minus floor of each unit (a pair, model or tester). If the model forgot everything,
        the distribution of these differences is symmetric about 0.
    confidence : float, default=0.95
        Coverage of the interval (Student's, over units). The rate of false alarms is at most
        ``(1 - confidence) / 2``.
    note : str, default=""
        Note of the measure.

    Returns
    -------
    Measure
        There is no interval for a single unit. If all units have the same difference (not 0),
        there is an interval only if there are enough units to rule out chance (a sign test:
        ``2**-n``).
    """
    n, value = len(gaps), float(gaps.mean())
    if np.ptp(gaps) > _ROUNDING:
        interval = student_interval(gaps, confidence)
    else:
        value = 0.0 if abs(value) <= _ROUNDING else value
        is_sure = value == 0 or math.ldexp(1.0, -n) <= (1 - confidence) / 2
        interval = (value, value) if is_sure else None
    options: MeasureOptions = {"better": "lower", "confidence": confidence, "note": note}
    return make_measure(BEYOND, value, interval, n, **options)


def beyond_floor_by_swaps(
    value: float, swapped: Floats, n: int, *, unit: str = "", note: str = ""
) -> Measure:
    """Return a difference from the floor with a permutation interval.

    If unlearned models have the same distribution as retrained models, an unlearned and a retrained
    model can be swapped. The interval is the value plus or minus the 95 % quantile of the absolute
    differences after random swaps. If the distributions are equal, the interval is above 0 with a
    probability of at most about 2.5 %, for any number of models, because the distribution of the
    difference is symmetric.

    Parameters
    ----------
    value : float
        Measure minus floor; positive is worse.
    swapped : ndarray of shape (ROUNDS,)
        Measure minus floor after each round of random swaps.
    n : int
        Number of observations.
    unit, note
        As in `Measure`.
    """
    rank = min(math.ceil((len(swapped) + 1) * 0.95), len(swapped))
    half = max(float(np.sort(np.abs(swapped))[rank - 1]), _ROUNDING * (value != 0))
    interval = value - half, value + half
    return make_measure(BEYOND, value, interval, n, better="lower", unit=unit, note=note)


About = Literal["forgotten", "retained"]
Verdict = Literal["found", "not shown", "not found"]


@dataclass(frozen=True, kw_only=True, repr=False)
class AttackResult(TextRepr):
    """The measures of one attack, each with its null floor.

    The floor is the result of the same attack on models that were retrained without the forgotten
    people. An attack that is no better than its floor has found nothing.

    Parameters
    ----------
    attack : str
        Name of the attack: "u-lira", "rmia", "klom", ...
    about : {"forgotten", "retained"}
        Whose data was attacked.
    measures : dict of str to Measure
        Measures by name, the main one first.
    floor : dict of str to Measure
        The same measures for a retrained model.
    n_models : int
        Number of models trained for the attack.
    excess : Measure or None, default=None
        Main measure minus floor (positive is worse), compared within pairs of models, single
        models or testers. It determines `found`. If it is None, the intervals of the measure and
        its floor determine `found`.
    control : Measure or None, default=None
        The excess of the same attack on the same models before the request. An attack that finds
        nothing there has no power. None: not measured.
    note : str, default=""
        Limitations of the result.
    scores, labels, owners : ndarray or None
        One entry per person and world: the score of the attack, the label (1 if the model was
        trained on the person and then forgot them, 0 if not), and the number of the person (never
        the id). They are not part of `to_dict`, ``repr`` and ``==``.

    Examples
    --------
    >>> def auc(value, low, high):
    ...     return Measure(name="AUC", value=value, low=low, high=high, n=100, better="lower",
    ...                    basis="measured")
    >>> result = AttackResult(attack="u-lira", about="forgotten", n_models=64,
    ...     measures={"AUC": auc(0.93, 0.9, 0.95)}, floor={"AUC": auc(0.5, 0.46, 0.54)})
    >>> print(result)
    u-lira on forgotten people: AUC 0.93 [0.9, 0.95] (floor 0.5 [0.46, 0.54]): found
    """

    attack: str
    about: About
    measures: dict[str, Measure]
    floor: dict[str, Measure]
    excess: Measure | None = None
    control: Measure | None = None
    n_models: int
    note: str = ""
    scores: NDArray[Any] | None = field(default=None, repr=False, compare=False)
    labels: NDArray[Any] | None = field(default=None, repr=False, compare=False)
    owners: NDArray[Any] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise if `about` is unknown, or if the measures and their floors do not match."""
        if self.about not in get_args(About):
            raise ValueError(f"about must be one of {get_args(About)}, not {self.about!r}")
        if not self.measures or list(self.measures) != list(self.floor):
            raise ValueError(
                "measures and floor must have the same names in the same order, not "
                f"{list(self.measures)} and {list(self.floor)}"
            )

    @property
    def main(self) -> str:
        """Name of the main measure."""
        return next(iter(self.measures))

    @property
    def found(self) -> bool:
        """Whether the main measure is significantly worse than its floor.

        True if the lower end of `excess` is above 0. With intervals of 95 %, about one in forty
        attacks on a retrained model is a false alarm. Without an excess, True if the intervals of
        the measure and its floor are disjoint. An unknown end of an interval counts as unbounded.
        """
        if self.excess is None:
            return is_beyond(self.measures[self.main], self.floor[self.main])
        return _is_above_zero(self.excess)

    @property
    def has_power(self) -> bool | None:
        """Whether the attack can find people who were not forgotten; None if not measured."""
        return None if self.control is None else self.found or _is_above_zero(self.control)

    @property
    def verdict(self) -> Verdict:
        """The conclusion: "found", "not shown" or "not found".

        "Not shown" means worse than the floor, but not significantly: the excess is positive and
        has no interval or exceeds about one standard error (half of the distance to its lower end).
        Without an excess, it means that the value is worse than the floor's interval.
        """
        if self.found:
            return "found"
        measure, excess = self.measures[self.main], self.excess
        if excess is None:
            known = replace(measure, low=measure.value, high=measure.value)
            is_suspect = is_beyond(known, self.floor[self.main])
        else:
            is_suspect = excess.value > 0 and (excess.low is None or excess.value + excess.low > 0)
        return "not shown" if is_suspect else "not found"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without the scores of individual people."""
        plain = asdict(replace(self, scores=None, labels=None, owners=None))
        for name in ("scores", "labels", "owners"):
            del plain[name]
        return plain | {"found": self.found, "verdict": self.verdict}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the result from the output of `to_dict`."""
        settings = {k: value for k, value in values.items() if k not in ("found", "verdict")}
        result: Self = from_plain(cls, settings)
        return result

    def __str__(self) -> str:
        """Return attack, main measure, floor and verdict in one line."""
        measure, floor, why = self.measures[self.main], self.floor[self.main], ""
        if self.verdict == "not shown":
            by = "" if self.excess is None else f" by {_format_value(self.excess)}"
            why = f" (worse than its floor{by}, but not significantly)"
        return (
            f"{self.attack} on {self.about} people: {self.main} {_format_value(measure)} "
            f"(floor {_format_value(floor)}): {self.verdict}{why}"
        )


def check_about(about: Any) -> None:
    """Raise unless `about` lists one or both of "forgotten" and "retained", without duplicates."""
    known = get_args(About)
    is_listed = not isinstance(about, str) and about and set(about) <= set(known)
    if not is_listed or len(set(about)) < len(about):
        raise ValueError(
            f'about must be a tuple of values from {known}, such as ("forgotten",), not {about!r}'
        )


def _is_above_zero(excess: Measure) -> bool:
    return excess.low is not None and excess.low > 0


def is_beyond(measure: Measure, floor: Measure) -> bool:
    """Return whether the whole interval of `measure` is worse than the interval of `floor`.

    False if one of the ends to compare is unknown (None).
    """
    if measure.better == "lower":
        return measure.low is not None and floor.high is not None and measure.low > floor.high
    return measure.high is not None and floor.low is not None and measure.high < floor.low


def _format_value(measure: Measure) -> str:
    """Return value and interval with three digits, for example ``0.93 [0.9, 0.95]``."""
    ends = ["?" if end is None else f"{end:.3g}" for end in (measure.low, measure.high)]
    interval = "" if ends == ["?", "?"] else f" [{', '.join(ends)}]"
    return f"{measure.value:.3g}{interval}"
