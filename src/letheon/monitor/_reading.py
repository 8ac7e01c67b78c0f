"""Tolerances, readings and decisions of a monitor."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from letheon.evaluation import make_frame
from letheon.evaluation.report import Table
from letheon.measures import Measure, from_plain, make_measure
from letheon.monitor._calibrate import Calibration
from letheon.monitor._limits import Limit
from letheon.terminal import html_of

if TYPE_CHECKING:
    import pandas as pd


Decision = Literal["keep", "retrain"]
# The two properties that are estimated by proxies.
_BOTH = ("effectiveness", "certifiability")
# Number of last readings that a table always shows.
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class MonitorTolerances:
    """Limits that a monitor enforces; None disables a check.

    Parameters
    ----------
    effectiveness : float or None, default=0.02
        Largest ``|M_U - M_*|`` on the test set.
    certifiability : float or None, default=5.0
        Largest SAPE between the performances of both models on the forgotten rows, in per cent.
    efficiency : float or None, default=None
        Least speed-up compared with retraining. A slow removal is reported, but does not cause a
        retrain.
    budget : float, default=1.0
        Largest share of a certified budget that may be spent.
    residual : float or None, default=None
        Largest norm of the gradient per row on the remaining rows, for linear models with
        `exact_residual`. It is measured, not estimated, and takes one pass over the rows per
        request.

    Examples
    --------
    >>> MonitorTolerances(effectiveness=0.05, certifiability=None).get_watched()
    {'effectiveness': 0.05}
    """

    effectiveness: float | None = 0.02
    certifiability: float | None = 5.0
    efficiency: float | None = None
    budget: float = 1.0
    residual: float | None = None

    def __post_init__(self) -> None:
        """Raise if a tolerance is not a positive finite number or None."""
        for name, value in asdict(self).items():
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value!r} is not valid: expected a number > 0, or None")

    def get_watched(self) -> dict[str, float]:
        """Return the tolerances for effectiveness and certifiability that are not None, by name."""
        return {name: most for name, most in asdict(self).items() if name in _BOTH and most}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Estimates and decision after one request. A reading contains no ids.

    Attributes
    ----------
    request : int
        Number of the request, from 1.
    n_people, n_rows : int
        People and rows that this request removed.
    since_retrain : int
        People forgotten since the last retrain, this request included.
    rows_left, n_test : int
        Remaining rows of the model, and rows of the test set, after the request.
    metric : float
        Test performance ``M_test(h_m)`` of the model after the request.
    metric_retrained : float
        ``M_test(h*_ik)`` of the last retrained model, on the same rows.
    seconds : float
        Time of the removal, in seconds.
    proxies : dict of str to float
        Upper estimates of "effectiveness" and "certifiability"; 0 by proof for an exact method.
        If a retrain was timed, also "efficiency": ``time(h*_ik) (rows left / rows then) / time of
        the removal``. The survey omits the ratio of rows and calls this conservative. It is not: a
        retrain now would have fewer rows than the timed retrain and be faster.
    guarantee : str
        Kind of the model's guarantee, "exact", "certified" or "empirical".
    spent, budget : float or None
        How much of the budget of a certified guarantee is spent, and the budget.
    residual : float or None
        Norm of the gradient per row, if the tolerance is set.
    decision : {"keep", "retrain"}
        Whether the tolerances allow keeping the model or require a retrain.
    reasons : tuple of str
        Reasons for the decision.
    retrained : bool
        Whether the model was retrained in this request.
    retrain_seconds : float or None
        Time of that retrain, in seconds; None without a retrain.
    truth : dict of str to float
        Effectiveness (and certifiability, if forgotten rows were kept) measured with the retrained
        model; empty without a retrain.

    Examples
    --------
    >>> from letheon import Monitor, NearestCentroid
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    >>> reading = Monitor(NearestCentroid().fit(X, y), X, y).forget([0])
    >>> reading.decision, reading.rows_left
    ('keep', 3)
    """

    request: int
    n_people: int
    n_rows: int
    since_retrain: int
    rows_left: int
    n_test: int
    metric: float
    metric_retrained: float
    seconds: float
    proxies: dict[str, float]
    guarantee: str
    spent: float | None = None
    budget: float | None = None
    residual: float | None = None
    decision: Decision = "keep"
    reasons: tuple[str, ...] = ()
    retrained: bool = False
    retrain_seconds: float | None = None
    truth: dict[str, float] = field(default_factory=dict)

    @property
    def measures(self) -> dict[str, Measure]:
        """The values of `proxies` as measures, with their basis ("by proof" or "proxy")."""
        is_exact = self.guarantee == "exact"
        proved = {name for name in self.proxies if is_exact and name != "efficiency"}
        return {
            name: make_measure(
                name,
                value,
                (value, value) if name in proved else None,
                self.n_test,
                basis="by proof" if name in proved else "proxy",
                note="the method is exact" if is_exact else "calibrated upper estimate",
            )
            for name, value in self.proxies.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the reading from the result of `to_dict`."""
        reading: Self = from_plain(cls, values)
        return reading

    def __str__(self) -> str:
        """Return estimates, decision and reasons in one line."""
        proxies = ", ".join(f"{name} {value:.3g}" for name, value in self.proxies.items())
        done = "retrained" if self.retrained else self.decision
        return f"request {self.request}: {proxies}: {done} ({'; '.join(self.reasons)})"


class History(tuple[Reading, ...]):
    """All readings of a monitor, in order.

    Parameters
    ----------
    iterable : iterable of Reading
        The readings.

    Examples
    --------
    >>> len(History())
    0
    """

    __slots__ = ()

    def __getitem__(self, at: Any) -> Any:
        part = super().__getitem__(at)
        return History(part) if isinstance(at, slice) else part

    def with_reading(self, reading: Reading) -> "History":
        """Return a new history with this reading at the end."""
        return History((*self, reading))

    @property
    def retrains(self) -> list[int]:
        """Numbers of the requests after which the model was retrained."""
        return [reading.request for reading in self if reading.retrained]

    def to_list(self) -> list[dict[str, Any]]:
        """Return the readings as a list of dicts with plain values, ready for JSON."""
        return [reading.to_dict() for reading in self]

    def to_frame(self) -> "pd.DataFrame":
        """Return a data frame with one line per request; needs pandas."""
        lines = []
        for reading in self:
            line = reading.to_dict() | {"reasons": "; ".join(reading.reasons)}
            for nested, word in (("proxies", "proxy"), ("truth", "measured")):
                line |= {f"{name} {word}": value for name, value in line.pop(nested).items()}
            lines.append(line)
        frame = make_frame(lines or [{"request": 0}], "")
        return frame.iloc[: len(self)].set_index("request")

    def __rich__(self) -> Any:
        """Return a table of the last requests, and of every request with a retrain."""
        columns = ("request", "rows left", "M test", *_BOTH, "decision")
        rows = [
            (
                str(reading.request),
                str(reading.rows_left),
                f"{reading.metric:.4f}",
                *(
                    f"{reading.proxies[name]:.3g}" if name in reading.proxies else ""
                    for name in _BOTH
                ),
                f"{reading.decision}: {'; '.join(reading.reasons)}",
            )
            for reading in self
            if reading.decision == "retrain" or reading.request > len(self) - _SHOWN
        ]
        return Table(str(self), columns, rows).to_rich()

    def _repr_html_(self) -> str:
        """Return the table as HTML for notebooks."""
        return html_of(self.__rich__())

    def __str__(self) -> str:
        """Return the numbers of requests and retrains in one line."""
        return f"{len(self)} requests, {len(self.retrains)} of them followed by a retrain"


# Number of last requests from which the monitor's saving is computed.
_WINDOW = 10


class DecisionInputs(NamedTuple):
    """The reading and the facts from which `make_decision` decides."""

    reading: Reading
    share: float
    """People removed since the last retrain, as a share of the people at that time."""
    horizon: float | None
    """Largest rehearsed share; None without rehearsals."""
    was_guaranteed: str
    """Kind of the guarantee right after the last retrain."""
    speed_ups: tuple[float, ...]
    """Efficiency of the last requests."""
    is_judged: bool = True
    """Whether the performance is a finite number."""


def make_decision(
    inputs: DecisionInputs, tolerances: MonitorTolerances
) -> tuple[Decision, tuple[str, ...]]:
    """Return the decision ("keep" or "retrain") and its reasons."""
    breaches = [*_breaches_of_proxies(inputs, tolerances), *_breaches_of_facts(inputs, tolerances)]
    notes = []
    # One slow removal alone is not conclusive.
    usual = median(inputs.speed_ups) if inputs.speed_ups else math.inf
    if tolerances.efficiency is not None and usual < tolerances.efficiency:
        notes.append(f"removals are only {usual:.3g} times faster than a retrain; check the method")
    if breaches:
        return "retrain", (*breaches, *notes)
    return "keep", ("within all tolerances", *notes)


def _breaches_of_proxies(inputs: DecisionInputs, tolerances: MonitorTolerances) -> Iterator[str]:
    is_exact, proxies = inputs.reading.guarantee == "exact", inputs.reading.proxies
    if not is_exact and not inputs.is_judged:
        yield "predictions or metric are not finite: the model cannot be judged"
        return
    for name, most in tolerances.get_watched().items():
        if not is_exact and proxies[name] > most:
            yield f"{name} may be up to {proxies[name]:.3g}, tolerance {most:.3g}"
    if inputs.horizon is not None and inputs.share >= inputs.horizon:
        yield (
            f"{inputs.share:.1%} of the people were removed since the last retrain, the largest "
            "rehearsed share"
        )


def _breaches_of_facts(inputs: DecisionInputs, tolerances: MonitorTolerances) -> Iterator[str]:
    reading = inputs.reading
    if reading.spent is not None and reading.budget is not None:
        limit = tolerances.budget * reading.budget
        if reading.spent > limit:
            yield f"{reading.spent:.3g} of a budget of {limit:.3g} is spent"
    if inputs.was_guaranteed != "empirical" and reading.guarantee == "empirical":
        yield f"the guarantee was {inputs.was_guaranteed} and is empirical now"
    residual, most = reading.residual, tolerances.residual
    if residual is not None and most is not None and residual > most:
        yield f"the gradient per row is {residual:.3g}, tolerance {most:.3g}"


def explain_no_saving(
    retrained: Sequence[bool], limits: Mapping[str, Limit], trainings_per_retrain: int
) -> str:
    """Return a note if the monitor saves no trainings, or an empty string.

    It saves none if it needs as many trainings as retraining at every request would; trainings in
    rehearsals after a retrain count too. The note is based on the last ten requests, or on the
    expected intervals between retrains in the rehearsals.
    """
    intervals = [limit.stretch for limit in limits.values() if limit.stretch is not None]
    if intervals and min(intervals) + 1 <= trainings_per_retrain:
        return (
            f"in the rehearsals a retrain is due after {min(intervals) + 1:.2g} request(s) and "
            f"costs {trainings_per_retrain} training(s): this monitor saves nothing"
        )
    n_retrains = sum(retrained[-_WINDOW:])
    if len(retrained) < _WINDOW or n_retrains * trainings_per_retrain < _WINDOW:
        return ""
    return (
        f"{n_retrains} of the last {_WINDOW} requests ended with a retrain, "
        f"{n_retrains * trainings_per_retrain} trainings in total: this monitor saves nothing "
        "compared with a retrain at every request"
    )


def assumptions(calibration: Calibration | None) -> tuple[str, ...]:
    """Return as texts what a decision assumes about future requests; may be empty.

    Parameters
    ----------
    calibration : Calibration or None
        Settings of the rehearsals; None if there were none.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> assumptions(None)
    ("no rehearsals: the survey's proxy misses most breaches",)
    """
    if calibration is None:
        return ("no rehearsals: the survey's proxy misses most breaches",)
    return (f"assumed: {calibration.assume}",) if calibration.assume else ()


def note_proof_gap(limits: Mapping[str, Limit], calibration: Calibration | None) -> tuple[str, ...]:
    """Return a note if the rehearsals are too few to prove the accepted share of misses."""
    proved = min(1.0, sum(limit.miss for limit in limits.values()))
    if calibration is None or proved <= calibration.miss:
        return ()
    known = "no bound" if proved == 1 else f"a bound of {proved:.2g}"
    note = f"the rehearsals prove {known} on the share of intervals with an unseen breach"
    return (f"{note}; {calibration.miss:g} is required",)
