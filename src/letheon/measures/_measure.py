"""One measured number with everything needed to read it."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

__all__ = ["Basis", "Better", "Measure", "by_proof"]

Better = Literal["lower", "higher"]
Basis = Literal["measured", "proxy", "by proof"]

# name -> (which way is better, unit): the survey's section 3, then what stands for it elsewhere
KNOWN: dict[str, tuple[Better, str]] = {
    "efficiency": ("higher", "x"),
    "effectiveness": ("lower", ""),
    "parameter consistency": ("lower", ""),
    "output consistency": ("higher", "%"),
    "KL consistency": ("lower", "nats"),
    "certifiability": ("lower", "%"),
    "KL of laws": ("lower", "nats"),
    "prediction gap": ("lower", ""),
    "agreement within": ("higher", "%"),
    "gradient residual": ("lower", ""),
    "accuracy alpha": ("lower", ""),
    "accuracy beta": ("lower", ""),
    "work exponent": ("lower", ""),
}

# name -> least and largest possible value, where there is one
RANGES: dict[str, tuple[float, float]] = {
    "efficiency": (0.0, math.inf),
    "effectiveness": (0.0, math.inf),
    "parameter consistency": (0.0, math.inf),
    "output consistency": (0.0, 100.0),
    "KL consistency": (0.0, math.inf),
    "certifiability": (0.0, 100.0),
    "prediction gap": (0.0, math.inf),
    "agreement within": (0.0, 100.0),
    "gradient residual": (0.0, math.inf),
    "accuracy beta": (0.0, 1.0),
}


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A value, its interval, and what both rest on.

    Parameters
    ----------
    name : str
        What was measured.
    value : float
        The estimate. It may be infinite, never NaN.
    low, high : float or None
        Ends of the interval. None: nothing is known about the error (one timing, two given
        numbers). Equal ends: there is no sampling error, the value is a fact.
    n : int
        Observations behind the value.
    better : {"lower", "higher"}
        Which way is better.
    basis : {"measured", "proxy", "by proof"}
        `measured`: the very quantity was observed. `proxy`: something observable that stands for
        it and can mislead. `by proof`: it follows from a theorem about the method.
    confidence : float, default=0.95
        Coverage at which the interval aims.
    unit : str, default=""
        Unit of value and interval.
    note : str, default=""
        The theorem behind a proof, the caveat of a proxy.
    is_rough : bool, default=False
        Whether there are too few observations to claim that the interval reaches `confidence`.
    """

    name: str
    value: float
    low: float | None
    high: float | None
    n: int
    better: Better
    basis: Basis
    confidence: float = 0.95
    unit: str = ""
    note: str = ""
    is_rough: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be read as a measurement."""
        if not self.name:
            raise ValueError("a measure needs a name")
        for field, options in (("better", get_args(Better)), ("basis", get_args(Basis))):
            if getattr(self, field) not in options:
                raise ValueError(f"{field} must be one of {options}, not {getattr(self, field)!r}")
        if self.n < 0:
            raise ValueError(f"n must not be negative, not {self.n}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must be between 0 and 1, not {self.confidence}")
        self._check_order()

    def _check_order(self) -> None:
        """Refuse NaN and ends on the wrong side of the value."""
        ends = [-math.inf if self.low is None else self.low, self.value]
        ends.append(math.inf if self.high is None else self.high)
        if not ends[0] <= ends[1] <= ends[2]:
            raise ValueError(
                f"{self.name}: need low <= value <= high and no NaN, not "
                f"{self.low!r} <= {self.value!r} <= {self.high!r}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values. An infinite value stays a float."""
        return asdict(self)

    def __str__(self) -> str:
        """Say the measure in one line."""
        return f"{self.name}: {self._figures()} ({self._origin()}, {self.better} is better)"

    def _figures(self) -> str:
        # "12x" and "12%" are set close, "0.1 nats" is not
        gap = " " if len(self.unit) > 1 else ""
        value = f"{self.value:.4g}{gap}{self.unit}"
        if self.low is None and self.high is None:
            return value
        if self.low == self.high:
            return value
        low, high = ("?" if end is None else f"{end:.4g}" for end in (self.low, self.high))
        if self.is_rough:
            return f"{value}, roughly [{low}, {high}]"
        return f"{value} [{low}, {high}] at {self.confidence:.4g}"

    def _origin(self) -> str:
        return self.basis if self.basis == "by proof" else f"{self.basis}, n={self.n}"


def known(
    name: str,
    value: float,
    interval: tuple[float, float] | None,
    n: int,
    *,
    basis: Basis = "measured",
    confidence: float = 0.95,
    note: str = "",
    doubt: str = "",
) -> Measure:
    """Return one of the survey's measures; direction and unit are looked up.

    `doubt` says why an interval is rough; without an interval it says nothing.
    """
    better, unit = KNOWN[name]
    low, high = (None, None) if interval is None else interval
    doubt = "" if interval is None else doubt
    return Measure(
        name=name,
        value=float(value),
        low=None if low is None else float(low),
        high=None if high is None else float(high),
        n=n,
        better=better,
        basis=basis,
        confidence=confidence,
        unit=unit,
        note="; ".join(part for part in (note, doubt) if part),
        is_rough=bool(doubt),
    )


def by_proof(
    name: str, value: float, *, note: str, better: Better | None = None, unit: str | None = None
) -> Measure:
    """Return a measure that follows from a theorem and was not observed.

    For an exact method all three consistencies, effectiveness and certifiability against the same
    training algorithm are known without a run (survey, Definition 3 and section 3.3).

    Parameters
    ----------
    name : str
        One of the survey's measures, or any other with `better` given.
    value : float
        What the theorem says.
    note : str
        Which theorem, or why; required, because a proof without a source is none.
    better : {"lower", "higher"}, optional
        Which way is better; known for the survey's measures.
    unit : str, optional
        Unit of the value; known for the survey's measures.

    Returns
    -------
    Measure
        With ``low = value = high``, ``n = 0`` and basis ``"by proof"``.

    Examples
    --------
    >>> print(by_proof("output consistency", 100, note="SISA is exact (Bourtoule et al. 2021)"))
    output consistency: 100% (by proof, higher is better)
    """
    if not note:
        raise ValueError("by_proof needs a note that names the theorem or the reason")
    way, its_unit = KNOWN.get(name, (better, ""))
    if way is None or better not in (None, way):
        raise ValueError(f"{name!r}: say better='lower' or 'higher', as the measure demands")
    return Measure(
        name=name,
        value=float(value),
        low=float(value),
        high=float(value),
        n=0,
        better=way,
        basis="by proof",
        unit=its_unit if unit is None else unit,
        note=note,
    )
