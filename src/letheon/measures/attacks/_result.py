"""What an attack found beside its floor; AUC and TPR at a fixed FPR, with intervals.

Ties and people with several scores are safe.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, stdtrit

from letheon.measures._intervals import Bools, Floats, Ints, clopper_pearson, student_interval
from letheon.measures._measure import Measure, MeasureOptions, from_plain, make_measure


def _check_scores(scores: ArrayLike, labels: ArrayLike) -> tuple[Floats, Bools]:
    """Return scores and labels of which both kinds occur."""
    values, positive = np.asarray(scores, dtype=np.float64), np.asarray(labels).astype(bool)
    if values.ndim != 1 or values.shape != positive.shape:
        raise ValueError(
            f"need one score and one label each, not shapes {values.shape} and {positive.shape}"
        )
    if np.isnan(values).any():
        raise ValueError("scores contain NaN")
    if positive.all() or not positive.any():
        raise ValueError("labels must hold both 0 and 1")
    return values, positive


def roc_curve(scores: ArrayLike, labels: ArrayLike) -> tuple[Floats, Floats]:
    """Return false and true positive rates, from (0, 0) to (1, 1).

    Equal scores are one step: the curve never depends on the order of the input.

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
    """Return for each score the share of the other kind that it is on the right side of."""
    placed = np.empty(len(values))
    for kind in (True, False):
        mine, others = values[positive == kind], np.sort(values[positive != kind])
        below = np.searchsorted(others, mine, side="left")
        not_above = np.searchsorted(others, mine, side="right")
        share = (below + not_above) / (2 * len(others))
        placed[positive == kind] = share if kind else 1 - share
    return placed


def variance_of_sum(parts: Floats, groups: Ints | None = None) -> float:
    """Return the variance of a sum of independent parts, or of parts in independent groups."""
    sums = parts if groups is None else np.bincount(groups, weights=parts)
    n = len(sums)
    return n / (n - 1) * float(np.sum(sums**2))


def _number_groups(groups: Sequence[ArrayLike]) -> list[Ints]:
    """Return each grouping as numbers 0..k-1; one with a single group says nothing."""
    numbered = [np.unique(np.asarray(each), return_inverse=True)[1] for each in groups]
    return [each.astype(np.int64) for each in numbered if each.max() > 0]


def _auc_variance(placed: Floats, positive: Bools, groups: list[Ints]) -> float:
    """Return DeLong's variance, or with groups its clustered form (Obuchowski, 1997).

    Two groupings, people and worlds, cross each other: ``V_people + V_worlds - V_cells``
    (Cameron, Gelbach and Miller, 2011), never less than that of independent scores.
    """
    influence, independent = _influence_values(placed, positive), 0.0
    for kind in (positive, ~positive):
        n = int(kind.sum())
        independent += n / max(n - 1, 1) * float(np.sum(influence[kind] ** 2))
    crossed = sum(variance_of_sum(influence, each) for each in groups)
    return max(independent, crossed - max(len(groups) - 1, 0) * independent)


def _influence_values(placed: Floats, positive: Bools) -> Floats:
    """Return by how much each score moves the area; they sum to 0."""
    numbers = np.where(positive, positive.sum(), (~positive).sum())
    return np.asarray((placed - placed[positive].mean()) / numbers)


def area_by_unit(scores: ArrayLike, labels: ArrayLike, units: ArrayLike) -> Floats:
    """Return for each unit a value whose mean is the AUC: units (models, say) are what varies.

    ``AUC + n_units * (sum of the influences of the unit's scores)``, units in ascending order.
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
    """Return the area under the ROC curve, ties counted one half, with DeLong's interval.

    ``AUC = P(s_in > s_out) + P(s_in = s_out) / 2``: 0.5 is guessing, 1 is certainty.

    Parameters
    ----------
    scores : array-like of shape (n,)
        The attack's scores, larger for "was in".
    labels : array-like of shape (n,)
        1 for "was in", 0 for "was not".
    groups : sequence of array-like of shape (n,), optional
        Up to two groupings within which scores depend on each other: whose they are, and which
        model gave them. Then whole people and whole models are what is sampled.
    confidence : float, default=0.95
        Coverage at which the interval aims.

    Returns
    -------
    Measure
        Lower is better. The interval is DeLong's on the logit scale. If all scores are equal
        it is the point 0.5: no threshold tells anything. At perfect separation, where the
        variance vanishes, the end is that of a binomial with as many trials as the smaller class
        (or the fewest groups) has members.

    Examples
    --------
    >>> print(auc([0.9, 0.8, 0.4, 0.7, 0.3, 0.1], [1, 1, 1, 0, 0, 0]))
    AUC: 0.8889 [0.2614, 0.9945] at 0.95 (measured, n=6, lower is better)
    """
    values, positive = _check_scores(scores, labels)
    placed = _placement_values(values, positive)
    area = float(np.clip(placed[positive].mean(), 0, 1))
    clusters = _number_groups(groups)
    sizes = [int(each.max()) + 1 for each in clusters]
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
    """Return the share found at a false alarm rate of at most `fpr` (Carlini et al., 2022).

    An attack that is sure about a few people is a breach of their privacy even if its AUC is
    0.5; this is where it shows.

    Parameters
    ----------
    scores, labels, groups, confidence
        As for `auc`.
    fpr : float, default=0.01
        False alarm rate; the threshold is the lowest at which the rate seen is not above it.

    Returns
    -------
    Measure
        Lower is better. The interval allows for the error of the threshold (order statistics of
        the scores of those who were out) and for that of the share found, each with
        Clopper and Pearson's ends at half of the error: it covers with at least `confidence`
        for independent scores. With groups, numbers are divided by the design effect
        (Korn and Graubard, 1998). With fewer than about 430 scores of those who were out
        (for 1 %), the lower end is 0: so few cannot tell 1 % from none.

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
    each = (1 + confidence) / 2
    # numbers of false alarms that a true rate of `fpr` may have given
    least, most = _plausible_alarms(fpr, len(outs), len(outs) / deff_out, each)
    value = _share_above(ins, outs, int(fpr * len(outs) + 1e-9) + 1)
    low, _ = _share_interval(_share_above(ins, outs, least), len(ins) / deff_in, each)
    _, high = _share_interval(_share_above(ins, outs, most + 1), len(ins) / deff_in, each)
    name = f"TPR at {100 * fpr:.4g} % FPR"
    return make_measure(
        name, value, (low, high), len(values), better="lower", confidence=confidence
    )


def _share_above(ins: Floats, outs: Floats, rank: int) -> float:
    """Return the share of `ins` above the `rank`-th largest of `outs`; rank 0 is infinity."""
    if rank == 0:
        return 0.0
    if rank > len(outs):
        return 1.0
    return 1 - int(np.searchsorted(ins, outs[rank - 1], side="right")) / len(ins)


def _plausible_alarms(fpr: float, n: int, n_effective: float, confidence: float) -> tuple[int, int]:
    """Return the least and the largest number of alarms whose interval holds `fpr`."""
    shares = np.arange(n + 1) / n
    # more alarms than these are out of the question
    most = int(n * fpr + 40 * math.sqrt(n * fpr) + 100)
    ends = np.array([_share_interval(share, n_effective, confidence) for share in shares[:most]])
    holds = np.flatnonzero((ends[:, 0] <= fpr) & (fpr <= ends[:, 1]))
    return int(holds[0]), int(holds[-1])


def _design_effects(values: Floats, positive: Bools, groups: list[Ints]) -> list[float]:
    """Return by how much groups raise the variance of a mean, for those in and those out."""
    placed = _placement_values(values, positive)
    effects = []
    for kind in (positive, ~positive):
        influence = placed[kind] - placed[kind].mean()
        independent = float(np.sum(influence**2))
        clustered = [
            variance_of_sum(influence, each[kind])
            for each in groups
            if len(np.unique(each[kind])) > 1
        ]
        effects.append(max([1.0, *(v / independent for v in clustered if independent > 0)]))
    return effects


def _share_interval(share: float, n: float, confidence: float) -> tuple[float, float]:
    """Return Clopper and Pearson's interval of a share."""
    low, high = clopper_pearson(share * n, n, confidence)
    return min(low, share), max(high, share)


BEYOND = "beyond the floor"
# Differences of rounding are no differences.
_ROUNDING = 1e-12
# Rounds of random swaps: with 199 a rank among 200 is exact at 5 %.
ROUNDS = 199


def beyond_floor_by_unit(gaps: Floats, *, confidence: float = 0.95, note: str = "") -> Measure:
    """Return the mean of the differences to the floor, one for each unit, with its interval.

    Parameters
    ----------
    gaps : ndarray of shape (n,)
        Measure minus floor of each pair, model or tester. Where nothing was kept, their law is
        symmetric about 0: both sides are models of the same law.
    confidence : float, default=0.95
        Coverage of the interval, Student's over units; "beyond" is then wrong in at most
        ``(1 - confidence) / 2``.
    note : str, default=""
        Note of the measure.

    Returns
    -------
    Measure
        Without an interval for one unit, and where all units agree on a difference but
        are so few that they would do so by luck (a sign test: ``2**-n``).
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
    """Return a difference to the floor with a permutation interval.

    If unlearned models have the law of retrained ones, each of them may change places with a
    retrained one. The interval is the value, give or take the quantile of the size of what such
    swaps give. It lies above 0 in at most about 2.5 % of such cases, however few the models are:
    the law of the difference is then symmetric.

    Parameters
    ----------
    value : float
        Measure minus floor; positive is bad.
    swapped : ndarray of shape (ROUNDS,)
        The same after random swaps.
    n : int
        Observations behind the value.
    unit, note
        As in `Measure`.
    """
    rank = min(math.ceil((len(swapped) + 1) * 0.95), len(swapped))
    half = max(float(np.sort(np.abs(swapped))[rank - 1]), _ROUNDING * (value != 0))
    interval = value - half, value + half
    return make_measure(BEYOND, value, interval, n, better="lower", unit=unit, note=note)


About = Literal["forgotten", "retained"]
Verdict = Literal["found", "not shown", "not found"]


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """The measures of one attack, each with its null floor.

    The floor is the same attack, run the same way, on models that were retrained without the
    forgotten people. An attack that scores as well there has found nothing.

    Parameters
    ----------
    attack : str
        Name of the attack: "u-lira", "rmia", "klom", ...
    about : {"forgotten", "retained"}
        Whose data was attacked.
    measures : dict of str to Measure
        What was measured, the main one first.
    floor : dict of str to Measure
        The same keys, retrain against retrain.
    n_models : int
        Models trained for it.
    excess : Measure or None, default=None
        Main measure minus floor, positive is bad, judged within what both share: pairs of
        models, single models or testers. It decides. None: the two intervals decide.
    control : Measure or None, default=None
        The excess of the same attack on the same models before the request, where nothing was
        forgotten yet. An attack that finds nothing there has no power here. None: not known.
    note : str, default=""
        What the numbers do not prove.
    scores, labels, owners : ndarray or None
        One entry for each (person, world): the attack's score, 1 where the person was trained on
        and then unlearned and 0 where not, and which person (a number, never the id). Not
        part of `to_dict`, of ``repr`` and of ``==``.

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
        """Refuse measures that have no floor."""
        if self.about not in get_args(About):
            raise ValueError(f"about must be one of {get_args(About)}, not {self.about!r}")
        if not self.measures or list(self.measures) != list(self.floor):
            raise ValueError(
                "every measure needs its floor, in the same order; got "
                f"{list(self.measures)} and {list(self.floor)}"
            )

    @property
    def main(self) -> str:
        """Name of the main measure."""
        return next(iter(self.measures))

    @property
    def found(self) -> bool:
        """Whether the main measure is surely beyond its floor, on the bad side.

        The lower end of `excess` is above 0; with intervals of 95 % that is wrong in about one of
        forty attacks on a retrain. Without an excess: the whole interval lies beyond the
        floor's. An end that is not known counts as unbounded: nothing is then found.
        """
        if self.excess is None:
            return is_beyond(self.measures[self.main], self.floor[self.main])
        return _is_above_zero(self.excess)

    @property
    def has_power(self) -> bool | None:
        """Whether the attack finds the people before they are forgotten; None: not known."""
        return None if self.control is None else self.found or _is_above_zero(self.control)

    @property
    def verdict(self) -> Verdict:
        """Return "found", "not shown" (beyond the floor, but not surely) or "not found".

        It is "not shown" when the excess is above about one of its standard errors, half of the
        lower arm of its interval, or has no interval; without an excess, when the value is
        beyond the floor's interval.
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
        """Return plain values, without the scores of single people."""
        plain = asdict(replace(self, scores=None, labels=None, owners=None))
        for name in ("scores", "labels", "owners"):
            del plain[name]
        return plain | {"found": self.found, "verdict": self.verdict}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the result that `to_dict` described."""
        settings = {k: value for k, value in values.items() if k not in ("found", "verdict")}
        result: Self = from_plain(cls, settings)
        return result

    def __str__(self) -> str:
        """Say the result in one line, and why something that is beyond the floor is not found."""
        measure, floor, why = self.measures[self.main], self.floor[self.main], ""
        if self.verdict == "not shown":
            by = "" if self.excess is None else f" by {_format_value(self.excess)}"
            why = f" (beyond the floor{by}; too few models to tell)"
        return (
            f"{self.attack} on {self.about} people: {self.main} {_format_value(measure)} "
            f"(floor {_format_value(floor)}): {self.verdict}{why}"
        )


def check_about(about: Any) -> None:
    """Refuse what names nobody to attack."""
    known = get_args(About)
    is_listed = not isinstance(about, str) and about and set(about) <= set(known)
    if not is_listed or len(set(about)) < len(about):
        raise ValueError(
            f'about must be a tuple of some of {known}, as ("forgotten",); not {about!r}'
        )


def _is_above_zero(excess: Measure) -> bool:
    return excess.low is not None and excess.low > 0


def is_beyond(measure: Measure, floor: Measure) -> bool:
    """Return whether the interval lies wholly on the bad side of the floor's interval."""
    if measure.better == "lower":
        return measure.low is not None and floor.high is not None and measure.low > floor.high
    return measure.high is not None and floor.low is not None and measure.high < floor.low


def _format_value(measure: Measure) -> str:
    """Return value and interval, short."""
    ends = ["?" if end is None else f"{end:.3g}" for end in (measure.low, measure.high)]
    interval = "" if ends == ["?", "?"] else f" [{', '.join(ends)}]"
    return f"{measure.value:.3g}{interval}"
