"""What an attack found, beside what it finds where there is nothing to be found."""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from letheon.measures._intervals import Floats, student
from letheon.measures._measure import Measure, Options, from_plain, make_measure

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
        interval = student(gaps, confidence)
    else:
        value = 0.0 if abs(value) <= _ROUNDING else value
        is_sure = value == 0 or math.ldexp(1.0, -n) <= (1 - confidence) / 2
        interval = (value, value) if is_sure else None
    options: Options = {"better": "lower", "confidence": confidence, "note": note}
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
            by = "" if self.excess is None else f" by {_figures(self.excess)}"
            why = f" (beyond the floor{by}; too few models to tell)"
        return (
            f"{self.attack} on {self.about} people: {self.main} {_figures(measure)} "
            f"(floor {_figures(floor)}): {self.verdict}{why}"
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


def _figures(measure: Measure) -> str:
    """Return value and interval, short."""
    ends = ["?" if end is None else f"{end:.3g}" for end in (measure.low, measure.high)]
    interval = "" if ends == ["?", "?"] else f" [{', '.join(ends)}]"
    return f"{measure.value:.3g}{interval}"
