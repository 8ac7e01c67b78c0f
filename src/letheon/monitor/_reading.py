"""What a monitor saw: tolerances, one reading per request, and all of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from letheon.measures import Measure

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

__all__ = ["History", "Reading", "Tolerances"]

Decision = Literal["keep", "retrain"]
_UNITS = {"efficiency": "x", "certifiability": "%"}


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """What is still accepted; None: not looked at.

    Parameters
    ----------
    effectiveness : float or None, default=0.02
        Largest ``|M_U - M_*|`` on the test set.
    certifiability : float or None, default=5.0
        Largest SAPE of both performances on the forgotten rows, in per cent.
    efficiency : float or None, default=None
        Least speed-up over retraining. A slow removal is reported; it is no reason to retrain.
    budget : float, default=1.0
        Largest share of a certified budget that may be spent.
    residual : float or None, default=None
        Largest norm of the gradient per row on the remaining rows, for linear models that offer
        `exact_residual`: one pass over the rows per request, and no proxy but a fact.
    """

    effectiveness: float | None = 0.02
    certifiability: float | None = 5.0
    efficiency: float | None = None
    budget: float = 1.0
    residual: float | None = None

    def __post_init__(self) -> None:
        """Refuse tolerances that nothing can meet, or that are no numbers."""
        for name, value in asdict(self).items():
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value!r}; a tolerance is a number above 0, or None")

    def watched(self) -> dict[str, float]:
        """Return the tolerances of the two properties that are estimated by proxies."""
        pairs = {"effectiveness": self.effectiveness, "certifiability": self.certifiability}
        return {name: value for name, value in pairs.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What is known after one request. It never names a person.

    Attributes
    ----------
    request : int
        Number of the request, from 1.
    n_people, n_rows : int
        Forgotten by this request.
    since_retrain : int
        People forgotten since the last retrain, this request included.
    rows_left, n_test : int
        Rows that the model holds, and rows of the test set, after it.
    metric : float
        Test performance ``M_test(h_m)`` of the model after the request.
    metric_retrained : float
        ``M_test(h*_ik)`` of the last retrained model, on the same rows.
    seconds : float
        Time of the removal.
    proxies : dict of str to float
        Upper estimates of "effectiveness" and "certifiability"; 0 by proof for an exact method.
        "efficiency", where a retrain was timed:
        ``time(h*_ik) (rows left / rows then) / time of the removal``. The survey leaves the ratio
        of rows out and calls that conservative; it is not, since a retrain now would see fewer
        rows than the one that was timed, and be faster.
    guarantee : str
        Kind of the model's guarantee, "exact", "certified" or "empirical".
    spent, budget : float or None
        Of a certified guarantee.
    residual : float or None
        Norm of the gradient per row, where it was asked for.
    decision : {"keep", "retrain"}
        What the tolerances say.
    reasons : tuple of str
        Why, in words.
    retrained : bool
        Whether the model was retrained in this request.
    retrain_seconds : float or None
        How long that took.
    truth : dict of str to float
        Effectiveness (and certifiability, where forgotten rows were held) measured against the
        retrained model; only where it was retrained.
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
        """The proxies with what they rest on."""
        is_proved = self.guarantee == "exact"
        return {
            name: Measure(
                name=name,
                value=value,
                low=value if is_proved and name != "efficiency" else None,
                high=value if is_proved and name != "efficiency" else None,
                n=self.n_test,
                better="higher" if name == "efficiency" else "lower",
                basis="by proof" if is_proved and name != "efficiency" else "proxy",
                unit=_UNITS.get(name, ""),
                note="the method is exact" if is_proved else "calibrated upper estimate",
            )
            for name, value in self.proxies.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the reading that `to_dict` described."""
        return cls(**{**values, "reasons": tuple(values["reasons"])})

    def __str__(self) -> str:
        """One line for people."""
        proxies = ", ".join(f"{name} {value:.3g}" for name, value in self.proxies.items())
        done = "retrained" if self.retrained else self.decision
        return f"request {self.request}: {proxies}: {done} ({'; '.join(self.reasons)})"


class History(Sequence[Reading]):
    """All readings of a monitor, in order.

    Examples
    --------
    >>> len(History())
    0
    """

    def __init__(self, readings: Sequence[Reading] = ()) -> None:
        self._readings = tuple(readings)

    def __len__(self) -> int:
        return len(self._readings)

    @overload
    def __getitem__(self, at: int) -> Reading: ...

    @overload
    def __getitem__(self, at: slice) -> "History": ...

    def __getitem__(self, at: int | slice) -> "Reading | History":
        found = self._readings[at]
        return found if isinstance(found, Reading) else History(found)

    def __iter__(self) -> Iterator[Reading]:
        return iter(self._readings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._readings == other._readings

    def __hash__(self) -> int:
        return hash(len(self))

    def with_(self, reading: Reading) -> "History":
        """Return the history with one more reading."""
        return History((*self._readings, reading))

    @property
    def retrains(self) -> list[int]:
        """Numbers of the requests after which the model was retrained."""
        return [reading.request for reading in self if reading.retrained]

    def to_list(self) -> list[dict[str, Any]]:
        """Return plain values, ready for JSON."""
        return [reading.to_dict() for reading in self]

    def to_frame(self) -> "pd.DataFrame":
        """Return one line per request; needs pandas."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                "to_frame needs pandas, which is not installed: pip install pandas"
            ) from error
        lines = [_flat(reading) for reading in self]
        return pd.DataFrame(lines, columns=None if lines else ["request"]).set_index("request")

    def __rich__(self) -> "Table":
        """Table of the last requests, and of every retrain."""
        from rich.table import Table

        columns = ("request", "rows left", "M test", "effectiveness", "certifiability", "decision")
        table = Table(*columns, title=str(self))
        for reading in self:
            if reading.decision == "retrain" or reading.request > len(self) - _SHOWN:
                table.add_row(*_cells(reading))
        return table

    def __str__(self) -> str:
        """One line for people."""
        return f"{len(self)} requests, a retrain after {len(self.retrains)} of them"


_SHOWN = 5


def _cells(reading: Reading) -> tuple[str, ...]:
    shown = (reading.proxies.get(name) for name in ("effectiveness", "certifiability"))
    return (
        str(reading.request),
        str(reading.rows_left),
        f"{reading.metric:.4f}",
        *("" if value is None else f"{value:.3g}" for value in shown),
        f"{reading.decision}: {'; '.join(reading.reasons)}",
    )


def _flat(reading: Reading) -> dict[str, Any]:
    """Return one line of a frame: nested values as columns of their own."""
    line = reading.to_dict()
    proxies, truth = line.pop("proxies"), line.pop("truth")
    line["reasons"] = "; ".join(reading.reasons)
    return (
        line
        | {f"{name} proxy": value for name, value in proxies.items()}
        | {f"{name} measured": value for name, value in truth.items()}
    )
