"""A measured value with its confidence interval and basis, and means over several runs."""

import math
from dataclasses import asdict, dataclass, is_dataclass
from types import UnionType
from typing import Any, Literal, TypedDict, Unpack, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures._intervals import Floats, Interval, student_interval


def require_finite(name: str, value: float) -> float:
    """Return `value` as a float, or raise if it is not finite."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    return number


# The smallest positive number.
_LEAST_NUMBER = math.ulp(0.0)


def as_numbers(
    name: str, values: ArrayLike, shape: str, *, ndim: int = 1, least: float = -math.inf
) -> Floats:
    """Return `values` as an array, or raise unless all are finite and at least `least`.

    The array must have `ndim` axes. `shape` describes the expected values in the error.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != ndim or numbers.size == 0:
        raise ValueError(f"{name} must be {shape}, not shape {numbers.shape}")
    is_bad = ~(np.isfinite(numbers) & (numbers >= least))
    if is_bad.any():
        limit = "" if least == -math.inf else f" and at least {least:g}"
        limit = " and above 0" if 0 < least <= _LEAST_NUMBER else limit
        raise ValueError(f"{name} must be finite{limit}, not {numbers[is_bad].tolist()[:5]}")
    return numbers


def check_predictions(name: str, y: ArrayLike) -> NDArray[Any]:
    """Return labels, values or scores as an array, or raise if it is empty or a value is missing.

    Its shape is (n,), or (n, k) for k scores per row.
    """
    values = np.asarray(y)
    if values.ndim not in (1, 2):
        raise ValueError(f"{name} must have one or two dimensions, not shape {values.shape}")
    if values.shape[0] == 0:
        raise ValueError(f"{name} is empty")
    missing: Any = np.isnan(values) if values.dtype.kind in "fc" else []
    if values.dtype.kind == "O":
        missing = [v is None or (isinstance(v, float) and math.isnan(v)) for v in values.flat]
    if np.any(missing):
        raise ValueError(f"{name} contains NaN or None; expected a value for each row")
    return values


def require_same_length(**arrays: NDArray[Any]) -> None:
    """Raise unless all arrays have the same number of rows."""
    lengths = {name: len(values) for name, values in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"all arrays must have the same number of rows, not {lengths}")


def require_one_kind(content: str, first: NDArray[Any], second: NDArray[Any]) -> None:
    """Raise if one model has strings and the other numbers; object arrays are not checked."""
    kinds = {values.dtype.kind for values in (first, second)}
    if "O" not in kinds and len({kind in "US" for kind in kinds}) > 1:
        raise ValueError(f"the {content} of one model are strings, but those of the other are not")


def require_labels(hint: str, **arrays: NDArray[Any]) -> None:
    """Raise if labels have fractions, or if only one of two arrays contains strings.

    `hint` says in the error what to use for fractions.
    """
    for name, values in arrays.items():
        if values.dtype.kind == "f" and (values != np.round(values)).any():
            raise ValueError(f"{name} contains fractions, but must contain labels; {hint}")
    require_one_kind("labels", *arrays.values())


def safe_norm(values: Floats) -> float:
    """Return the Euclidean norm of `values`, without overflow or underflow of the squares."""
    scale = float(abs(values).max())
    return scale * float(np.linalg.norm(values / scale)) if scale > 0 else 0.0


Better = Literal["lower", "higher"]
Basis = Literal["measured", "proxy", "by proof"]

_ANY, _POSITIVE, _SHARE = (-math.inf, math.inf), (0.0, math.inf), (0.0, 100.0)

# name -> (which way is better, unit, smallest and largest possible value): first the survey's
# section 3, then analogues and measures of other papers
KNOWN_MEASURES: dict[str, tuple[Better, str, tuple[float, float]]] = {
    "efficiency": ("higher", "x", _POSITIVE),
    "effectiveness": ("lower", "", _POSITIVE),
    "parameter consistency": ("lower", "", _POSITIVE),
    "output consistency": ("higher", "%", _SHARE),
    "KL consistency": ("lower", "nats", _POSITIVE),
    "certifiability": ("lower", "%", _SHARE),
    "KL of laws": ("lower", "nats", _ANY),
    "prediction gap": ("lower", "", _POSITIVE),
    "agreement within": ("higher", "%", _SHARE),
    "gradient residual": ("lower", "", _POSITIVE),
    "accuracy alpha": ("lower", "", _ANY),
    "accuracy beta": ("lower", "", (0.0, 1.0)),
    "work exponent": ("lower", "", _ANY),
}


class MeasureOptions(TypedDict, total=False):
    """Optional fields of a `Measure`; for `KNOWN_MEASURES`, `better` and `unit` have defaults."""

    better: Better | None
    unit: str | None
    basis: Basis
    confidence: float
    note: str


class TextRepr:
    """Mixin for results: `repr` is one line, and notebooks show the text of `str`.

    Examples
    --------
    >>> class Speed(TextRepr):
    ...     def __str__(self):
    ...         return "8 times as fast"
    >>> Speed()
    <Speed: 8 times as fast>
    """

    def __repr__(self) -> str:
        """Return the class name and the first line of `str`."""
        return f"<{type(self).__name__}: {str(self).splitlines()[0]}>"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """Print the text of `str` in IPython and Jupyter."""
        printer.text(str(self))

    def _repr_html_(self) -> str | None:
        """Return the table of a terminal as HTML for notebooks; None without a table."""
        from letheon.terminal import html_of

        render = getattr(self, "__rich__", None)
        return None if render is None else html_of(render())


@dataclass(frozen=True, kw_only=True)
class Measure(TextRepr):
    """A measured value with its confidence interval and its basis.

    Parameters
    ----------
    name : str
        What was measured.
    value : float
        The estimate. It may be infinite, never NaN.
    low, high : float or None
        Ends of the confidence interval. None: the error is unknown (a single timing, for
        example). Equal ends: there is no sampling error.
    n : int
        Number of observations.
    better : {"lower", "higher"}
        Which direction is better.
    basis : {"measured", "proxy", "by proof"}
        `measured`: the quantity itself was observed. `proxy`: a related quantity was observed,
        which can mislead. `by proof`: the value follows from a theorem about the method.
    confidence : float, default=0.95
        Nominal coverage of the interval.
    unit : str, default=""
        Unit of value and interval.
    note : str, default=""
        The theorem of a proof, or the caveat of a proxy.
    is_rough : bool, default=False
        Whether the interval may be too narrow, because there are too few observations.

    Examples
    --------
    >>> accuracy = Measure(name="accuracy", value=0.9, low=0.88, high=0.92, n=1000,
    ...                    better="higher", basis="measured")
    >>> print(accuracy)
    accuracy: 0.9 [0.88, 0.92] at 0.95 (measured, n=1000, higher is better)
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
        """Raise if the fields contradict each other."""
        if not self.name:
            raise ValueError("a measure needs a name")
        for field, options in (("better", get_args(Better)), ("basis", get_args(Basis))):
            if getattr(self, field) not in options:
                raise ValueError(f"{field} must be one of {options}, not {getattr(self, field)!r}")
        if self.n < 0:
            raise ValueError(f"n must be at least 0, not {self.n}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must be between 0 and 1, not {self.confidence}")
        low = -math.inf if self.low is None else self.low
        if not low <= self.value <= (math.inf if self.high is None else self.high):
            raise ValueError(
                f"{self.name}: expected low <= value <= high without NaN, not "
                f"low={self.low!r}, value={self.value!r}, high={self.high!r}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values. An infinite value stays a float."""
        return asdict(self)

    def __str__(self) -> str:
        """Return name, value, interval, basis, number of observations and direction in one line."""
        origin = self.basis if self.basis == "by proof" else f"{self.basis}, n={self.n}"
        # No space before "x" and "%".
        gap = " " if len(self.unit) > 1 else ""
        ends = ["?" if end is None else f"{end:.4g}" for end in (self.low, self.high)]
        interval = f"[{', '.join(ends)}]"
        if self.low == self.high:
            interval = ""
        elif self.is_rough:
            interval = f", roughly {interval}"
        else:
            interval = f" {interval} at {self.confidence:.4g}"
        figures = f"{self.value:.4g}{gap}{self.unit}{interval}"
        return f"{self.name}: {figures} ({origin}, {self.better} is better)"


def from_plain(kind: Any, value: Any) -> Any:
    """Return an object of type `kind` from the plain values of `dataclasses.asdict`.

    Dataclasses, tuples, dicts and ``X | None`` are supported; other values are returned as is.

    Parameters
    ----------
    kind : type
        Type of the result.
    value : object
        Plain values, for example read from JSON.

    Returns
    -------
    object

    Examples
    --------
    >>> measure = make_measure("effectiveness", 0.02, (0.01, 0.03), 500)
    >>> from_plain(Measure, measure.to_dict()) == measure
    True
    """
    origin, args = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if origin is UnionType:
        return from_plain(args[0], value)
    if is_dataclass(kind):
        kinds = get_type_hints(kind)
        make: Any = kind
        return make(**{name: from_plain(kinds[name], part) for name, part in value.items()})
    if origin is tuple:
        return tuple(from_plain(args[0], part) for part in value)
    if origin is dict:
        return {name: from_plain(args[1], part) for name, part in value.items()}
    return value


def make_measure(
    name: str,
    value: float,
    interval: tuple[float | None, float | None] | None,
    n: int,
    *,
    doubt: str = "",
    better: Better | None = None,
    unit: str | None = None,
    basis: Basis = "measured",
    confidence: float = 0.95,
    note: str = "",
) -> Measure:
    """Return a measure; direction and unit default to those of `KNOWN_MEASURES`.

    The interval is widened to contain the value. `doubt` is the reason why the interval is rough,
    or an empty string; it is ignored without an interval.

    Parameters
    ----------
    name : str
        Name of the measure.
    value : float
        The estimate.
    interval : (low, high) or None
        Ends of the confidence interval. None: the error is unknown.
    n : int
        Number of observations.
    doubt : str, default=""
        Reason why the interval is rough; added to the note.
    better, unit : optional
        Direction and unit. For other names than those of `KNOWN_MEASURES`, `better` is required.
    basis, confidence, note
        As in `Measure`.

    Returns
    -------
    Measure

    Raises
    ------
    ValueError
        `better` is missing, or a value is invalid.

    Examples
    --------
    >>> print(make_measure("effectiveness", 0.02, (0.01, 0.03), 500))
    effectiveness: 0.02 [0.01, 0.03] at 0.95 (measured, n=500, lower is better)
    """
    known_better, known_unit, _ = KNOWN_MEASURES.get(name, (better, "", _ANY))
    better = known_better if better is None else better
    if better is None:
        raise ValueError(f"{name!r} is not a known measure: better must be 'lower' or 'higher'")
    low, high = (None, None) if interval is None else interval
    doubt = "" if interval is None else doubt
    return Measure(
        name=name,
        value=float(value),
        low=None if low is None else float(min(low, value)),
        high=None if high is None else float(max(high, value)),
        n=n,
        better=better,
        basis=basis,
        confidence=confidence,
        unit=known_unit if unit is None else unit,
        note="; ".join(part for part in (note, doubt) if part),
        is_rough=bool(doubt),
    )


def by_proof(
    name: str, value: float, *, note: str, better: Better | None = None, unit: str | None = None
) -> Measure:
    """Return a measure that follows from a theorem and was not observed.

    For an exact method, effectiveness, certifiability and all three consistencies with respect to
    the same training algorithm are known without a run (survey, Definition 3 and section 3.3).

    Parameters
    ----------
    name : str
        One of the survey's measures, or any other if `better` is set.
    value : float
        The value that the theorem states.
    note : str
        The theorem, or the reason. Required.
    better : {"lower", "higher"}, optional
        Which direction is better; optional for the survey's measures.
    unit : str, optional
        Unit of the value; by default the usual one for the survey's measures.

    Returns
    -------
    Measure
        With ``low = value = high``, ``n = 0`` and basis ``"by proof"``.

    Raises
    ------
    ValueError
        The note is empty, or the direction is unknown or contradicts the name.

    Examples
    --------
    >>> print(by_proof("output consistency", 100, note="SISA is exact (Bourtoule et al. 2021)"))
    output consistency: 100% (by proof, higher is better)
    """
    if not note:
        raise ValueError("note must not be empty: name the theorem or the reason")
    direction = KNOWN_MEASURES.get(name, (better,))[0]
    if direction is None or better not in (None, direction):
        expected = "'lower' or 'higher'" if direction is None else repr(direction)
        raise ValueError(f"{name!r}: better must be {expected}, not {better!r}")
    options: MeasureOptions = {"better": direction, "unit": unit, "basis": "by proof", "note": note}
    return make_measure(name, value, (value, value), 0, **options)


def over_seeds(
    name: str,
    values: ArrayLike,
    *,
    within: Interval | None = None,
    shared_error: float = 0.0,
    n_shared: int = 0,
    **options: Unpack[MeasureOptions],
) -> Measure:
    """Return the mean over independent runs with Student's confidence interval.

    The interval is ``mean +- t sqrt(s² / n + e²)``, where ``s² = sum_i (v_i - mean)² / (n - 1)``
    and `e` is the standard error that all runs share. ``t`` is Student's quantile with ``n - 1``
    degrees of freedom or, with a shared error, with Welch's.

    Parameters
    ----------
    name : str
        Name of the measure. The names in `KNOWN_MEASURES` have a default direction, unit and range.
    values : array-like of shape (n,)
        One value for each seed.
    better, unit, within : optional
        Direction, unit and possible range of the mean. For other names, `better` is required. The
        interval is clipped to the range, which does not reduce its coverage.
    basis, confidence, note
        As in `Measure`.
    shared_error : float, default=0
        Standard error that all runs have in common, for example because they share test rows.
        If it is 0, the interval covers other seeds on the same rows only.
    n_shared : int, default=0
        Number of observations from which `shared_error` was estimated.

    Returns
    -------
    Measure
        The interval is exact for two or more normally distributed values. For skewed values it is
        too narrow with few seeds. Without a shared error there is no interval for a single run,
        an infinite value, or runs that are all equal.

    Raises
    ------
    ValueError
        A value is outside the range, or the mean is undefined.

    Examples
    --------
    >>> print(over_seeds("effectiveness", [0.01, 0.02, 0.03]))
    effectiveness: 0.02 [0, 0.04484] at 0.95 (measured, n=3, lower is better)
    """
    numbers = _check_runs(values)
    # an infinite run makes the mean infinite
    with np.errstate(invalid="ignore"):
        mean = float(numbers.mean())
    if math.isnan(mean):
        raise ValueError("values contain both inf and -inf: the mean is undefined")
    least, most = KNOWN_MEASURES.get(name, ("lower", "", _ANY))[2] if within is None else within
    # 100.00000000000001 % is rounding, 101 % is not
    slack = 1e-9 * max(abs(end) for end in (least, most, 1.0) if math.isfinite(end))
    if not ((numbers >= least - slack) & (numbers <= most + slack)).all():
        raise ValueError(f"{name} must be in [{least:g}, {most:g}], not {numbers.tolist()[:5]}")
    # rounding can push the mean of equal values past them
    mean = min(max(mean, float(numbers.min())), float(numbers.max()))
    mean = min(max(mean, least), most)
    interval = student_interval(numbers, options.get("confidence", 0.95), shared_error, n_shared)
    if interval is not None:
        interval = max(min(interval[0], mean), least), min(max(interval[1], mean), most)
    return make_measure(name, mean, interval, numbers.size, **options)


def geometric_mean(name: str, values: ArrayLike, **options: Unpack[MeasureOptions]) -> Measure:
    """Return the geometric mean of positive values, as in the survey's tables of speed-ups.

    This is ``(prod_i v_i)^(1/n)``. The interval is Student's for the mean of the logarithms,
    transformed back. The mean of the speed-ups 100 and 1/100 is 1, not 50.

    Parameters
    ----------
    name : str
        Name of the measure.
    values : array-like of shape (n,)
        Positive finite values, one for each run.
    better, unit : optional
        Direction and unit; optional for `KNOWN_MEASURES`.
    basis, confidence, note
        As in `Measure`; the note starts with the smallest and the largest value.

    Returns
    -------
    Measure
        The interval is exact for log-normal values. There is no interval for a single run, or if
        all values are equal.

    Raises
    ------
    ValueError
        A value is not positive and finite.

    Examples
    --------
    >>> measure = geometric_mean("efficiency", [2.0, 8.0, 32.0])
    >>> round(measure.value, 6), measure.note
    (8.0, 'min 2, max 32')
    """
    numbers = _check_runs(values)
    if not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise ValueError(f"{name} must be positive and finite, not {numbers.tolist()[:5]}")
    logs = np.log(numbers)
    least, most = float(numbers.min()), float(numbers.max())
    value = min(max(math.exp(float(logs.mean())), least), most)
    interval = student_interval(logs, options.get("confidence", 0.95))
    if interval is not None:
        low, high = np.exp(np.clip(interval, -745, 709))
        interval = float(low), float(high)
    notes = [f"min {least:.4g}, max {most:.4g}", options.get("note", "")]
    options["note"] = "; ".join(note for note in notes if note)
    return make_measure(name, value, interval, numbers.size, **options)


def _check_runs(values: ArrayLike) -> Floats:
    """Return one number per run, or raise if any is NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or numbers.size == 0:
        raise ValueError(f"values must be a list of numbers, one for each run, not {values!r}")
    if np.isnan(numbers).any():
        raise ValueError(f"values contain NaN: {numbers.tolist()[:5]}")
    return numbers
