"""Rehearsals: streams of requests on copies of the model, with scores and true values."""

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from letheon.data import Ids, Rows, as_ids
from letheon.datasets import Requests
from letheon.exceptions import GuaranteeWarning, warn_caller
from letheon.monitor._limits import Limit, Rehearsal, Tally, compute_gap, compute_scores, fit_limit
from letheon.monitor._panel import Panel, find_emptied_classes, find_positions, train_fresh
from letheon.seeds import library_seed

_PURPOSE, _REFRESH = "monitor-rehearsal", "monitor-refresh"
_ALL_KINDS = ("uniform", "class", "adaptive", "worst")


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Settings of the rehearsals, which determine the limits before the first request.

    Rehearsals remove people from copies; the model itself is not changed. Of the streams of each
    kind, half start from the current model, a quarter start from a model that was retrained after
    some removals, and a quarter are used only to choose the score.

    A stream costs at most `n_requests` removals and `n_looks` retrains, so the default of four
    kinds costs up to 1,660 trainings before the first request. This pays off for long streams of
    requests and for models that train quickly.

    Parameters
    ----------
    kinds : tuple of str, default=("uniform", "class", "adaptive", "worst")
        Kinds of streams, as in `letheon.datasets.Requests`. The limits hold for these kinds only:
        in simulations, a monitor that had rehearsed only uniform requests missed most breaches of
        an adaptive stream. To omit a kind, set `assume`. "class" is omitted for regression.
    assume : str, default=""
        Reason why omitted kinds will not occur, such as ``"requests come uniformly"``. Every
        reading quotes it. Required if one of the four kinds is omitted.
    n_streams : int, default=40
        Number of streams of each kind. `Limit.miss` is the proved bound: 1 in 11 for each tolerance
        with 40 streams, 1 in 41 with 160. In simulations far fewer breaches are missed.
    n_requests : int, default=40
        Maximum number of requests in a stream.
    batch : int, default=1
        Number of people per request. Later requests must not have fewer people.
    horizon : float, default=0.1
        Largest share of all people that a stream removes. Larger shares are not rehearsed, so the
        model is retrained at the latest when this share, or ``n_requests * batch`` people, are
        removed.
    age : float, default=0.3
        Some rehearsals start after a retrain without some people, because in use later intervals
        start with fewer people than the first. This is the largest share of people to remove.
    n_looks : int, default=10
        How often the true value is measured in a stream, by a retrain. A breach that ends before
        the next measurement is not detected.
    miss : float, default=0.05
        Accepted share of intervals with an undetected breach of any tolerance. If there are too few
        streams to prove it, `Limit.miss` and the reasons of every reading state the proved share.
    refresh : bool, default=True
        Whether to rehearse again after every retrain, to recalibrate certifiability. This costs
        one more retrain.
    requests : mapping, optional
        Further settings of `Requests`, such as ``{"candidates": 50, "cost": cost}``.

    Examples
    --------
    >>> settings = Calibration(kinds=("uniform",), assume="requests come uniformly")
    >>> settings.n_streams, settings.horizon
    (40, 0.1)
    """

    kinds: tuple[str, ...] = _ALL_KINDS
    n_streams: int = 40
    n_requests: int = 40
    batch: int = 1
    horizon: float = 0.1
    age: float = 0.3
    n_looks: int = 10
    miss: float = 0.05
    refresh: bool = True
    requests: Mapping[str, Any] | None = None
    assume: str = ""

    def __post_init__(self) -> None:
        """Raise if a setting is invalid, or if kinds are omitted without an assumption."""
        if isinstance(self.kinds, str):
            raise ValueError(
                f"kinds={self.kinds!r} must be a tuple of kinds: kinds=({self.kinds!r},)"
            )
        if not self.kinds:
            raise ValueError("kinds is empty; name at least one kind of stream")
        for kind in self.kinds:
            Requests(kind=kind)  # type: ignore[arg-type]  # raises for an unknown kind
        self._require_assumption()
        for name in ("n_streams", "n_requests", "batch", "n_looks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be at least 1")
        for name in ("horizon", "miss"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be between 0 and 1")
        if not 0 <= self.age < 1:
            raise ValueError(f"age={self.age!r} must be at least 0 and below 1")

    def _require_assumption(self) -> None:
        """Raise if kinds are omitted without a stated assumption."""
        if not isinstance(self.assume, str):
            raise TypeError(f"assume must be a str, not {type(self.assume).__name__}")
        left_out = [kind for kind in _ALL_KINDS if kind not in self.kinds]
        if left_out and not self.assume.strip():
            raise ValueError(
                f"kinds={self.kinds!r} omits {', '.join(left_out)}: breaches in such streams would "
                "not be detected. Rehearse all kinds (the default), or state why these will not "
                "occur: assume='requests come uniformly'"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; a cost function is omitted."""
        values = asdict(self) | {"kinds": list(self.kinds)}
        if not self.assume:
            del values["assume"]
        kept = {k: v for k, v in (self.requests or {}).items() if not callable(v)}
        return values | {"requests": kept or None}

    def n_removed(self, n_people: int) -> int:
        """Return how many of `n_people` people a rehearsal removes.

        In use, this is also the largest number of people between two retrains.
        """
        return max(1, min(int(self.horizon * n_people), self.n_requests * self.batch, n_people - 2))

    def make_requests(self, n_people: int, kind: str, n_removed: int | None = None) -> Requests:
        """Return the requests of a rehearsal of this kind among `n_people` people.

        `n_removed` is the number of people to remove; by default `n_removed(n_people)`.
        """
        n = self.n_removed(n_people) if n_removed is None else n_removed
        batch = min(self.batch, n)
        return Requests(kind=kind, n=n, batch=batch, **(self.requests or {}))  # type: ignore[arg-type]

    def choose_looks(self, n_requests: int) -> frozenset[int]:
        """Return the numbers of the requests, from 0, after which the true value is measured."""
        places = np.linspace(n_requests - 1, 0, min(self.n_looks, n_requests))
        return frozenset(int(place) for place in places.round())


def score_floors(name: str, n_test: int, n_rows: int) -> dict[str, float]:
    """Return the smallest positive value of each score of a property: the effect of a single row.

    One of n test rows changes an accuracy by 1 / n, and so the SAPE by at least 50 / n per cent.
    """
    gap = 50 / n_test if name == "certifiability" else 1 / n_test
    return {
        "metric": gap,
        "movement": 1 / n_test,
        "share": 1 / n_rows,
        "weight": 1e-3 / n_rows,
        "doubt": 1e-6,
    }


def measure_truth(
    panel: Panel, model: Any, retrained: Any, removed: Rows | None
) -> dict[str, float]:
    """Return the true effectiveness and, if `removed` has rows, the true certifiability.

    These are ``|M_test(h) - M_test(h*)|`` and ``SAPE(M_u(h), M_u(h*))`` for the model h and the
    retrained model h* (survey, equations 3.2 and 3.6). Values that are not finite are omitted.
    """
    truth = {}
    for name, rows in (("effectiveness", panel.rows), ("certifiability", removed)):
        if rows is None or len(rows) == 0:
            continue
        now, then = panel.compute_value(model, rows), panel.compute_value(retrained, rows)
        if math.isfinite(now) and math.isfinite(then):
            truth[name] = compute_gap(name, now, then)
    return truth


def warn_of_noise(
    panel: Panel, model: Any, retrained: Any, tolerances: Mapping[str, float]
) -> None:
    """Warn if two models trained on the same rows differ by at least a tolerance."""
    floor = measure_truth(panel, model, retrained, panel.rows)
    for name, most in tolerances.items():
        gap = floor.get(name, math.nan)
        if not gap < most:
            warn_caller(
                f"the model and a retrained model on the same rows differ by {gap:.3g} in {name} "
                f"on the test set, but the tolerance is {most:.3g}: no retrain can meet it. Use a "
                "larger tolerance or less noise.",
                GuaranteeWarning,
            )


class StreamStart(NamedTuple):
    """The start of a rehearsal: a newly trained model, its test panel, and its rows."""

    model: Any
    panel: Panel
    rows: Rows

    def iter_requests(self, requests: Requests, model: Any, seed: int) -> Iterator[Ids]:
        """Yield the people of each request; adaptive kinds use the current state of `model`."""
        assert self.rows.y is not None
        ids = self.rows.ids.to_array()
        stream = requests.stream(model, self.rows.X, self.rows.y, ids, seed=seed)
        return map(as_ids, stream)


@dataclass
class _Shadow:
    """A copy of the model that forgets in a rehearsal, with remaining and removed rows."""

    model: Any
    panel: Panel
    remaining: Rows
    tally: Tally
    removed: Rows | None = None

    def forget(self, ids: Ids) -> None:
        """Forget these ids in the copy, unless a class would lose its last row."""
        places = find_positions(self.remaining, ids)
        if len(find_emptied_classes(self.model, self.remaining, places)) == 0:
            leaving = self.remaining.take(places)
            self.removed = leaving if self.removed is None else self.removed.concat(leaving)
            self.tally.add(self.panel.compute_wrongness(self.model, leaving))
            self.model.forget(ids.to_array())
            self.remaining = self.remaining.without(places)
            self.panel = self.panel.drop_in_rehearsal(ids)


def rehearse_stream(
    calibration: Calibration,
    start: StreamStart,
    tolerances: Mapping[str, float],
    *,
    kind: str,
    seed: int,
    n_removed: int | None = None,
) -> dict[str, Rehearsal]:
    """Rehearse one stream; return its scores and true values for each property with a tolerance.

    The stream ends early when all tolerances are exceeded.
    """
    n_people = len(start.rows.ids.distinct())
    requests = calibration.make_requests(n_people, kind, n_removed)
    looks = calibration.choose_looks(len(requests.sizes(n_people)))
    rehearsed = {name: Rehearsal(kind, {}, [], []) for name in tolerances}
    unpassed = set(tolerances)
    shadow = _Shadow(deepcopy(start.model), start.panel, start.rows, Tally(len(start.rows)))
    for number, ids in enumerate(start.iter_requests(requests, shadow.model, seed)):
        shadow.forget(ids)
        look = shadow.panel.compare_models(shadow.model)
        for name, rehearsal in rehearsed.items():
            for score, value in compute_scores(name, *look, shadow.tally).items():
                peaks = rehearsal.scores.setdefault(score, [])
                peaks.append(max([value, *peaks[-1:]]))
        if number not in looks:
            continue
        retrained, _ = train_fresh(start.model, shadow.remaining, in_memory=True)
        truth = measure_truth(shadow.panel, shadow.model, retrained, shadow.removed)
        for name, rehearsal in rehearsed.items():
            rehearsal.looks.append(number)
            # A model that cannot be evaluated counts as a breach.
            rehearsal.truths.append(truth.get(name, math.inf))
        unpassed = {name for name in unpassed if rehearsed[name].truths[-1] <= tolerances[name]}
        if not unpassed:
            break
    return rehearsed


def select_kinds(calibration: Calibration, panel: Panel) -> tuple[str, ...]:
    """Return the kinds of streams to rehearse, without "class" if the target is continuous."""
    y = panel.rows.y
    is_continuous = y is not None and y.dtype.kind == "f" and bool((y != np.round(y)).any())
    kept = tuple(kind for kind in calibration.kinds if kind != "class" or not is_continuous)
    return kept or ("uniform",)


def age_start(calibration: Calibration, start: StreamStart, *, kind: str, seed: int) -> StreamStart:
    """Return the start of a rehearsal after removals of this kind and a retrain.

    The share of removed people is drawn uniformly, up to `Calibration.age`. If it is below one
    person, or if a class would lose all its rows, return `start` unchanged.
    """
    n_people = len(start.rows.ids.distinct())
    share = calibration.age * np.random.default_rng(seed).uniform()
    n_removed = min(int(share * n_people), n_people - 2)
    if n_removed < 1:
        return start
    requests = Requests(kind=kind, n=n_removed, batch=n_removed, **(calibration.requests or {}))  # type: ignore[arg-type]
    leaving_ids = next(start.iter_requests(requests, start.model, seed))
    places = find_positions(start.rows, leaving_ids)
    if len(find_emptied_classes(start.model, start.rows, places)):
        return start
    rows = start.rows.without(places)
    model, _ = train_fresh(start.model, rows, in_memory=True)
    return StreamStart(
        model, start.panel.drop_in_rehearsal(leaving_ids).with_outputs_of(model), rows
    )


def rehearse_all(
    calibration: Calibration, start: StreamStart, tolerances: Mapping[str, float], *, seed: int
) -> dict[str, list[Rehearsal]]:
    """Return all rehearsed streams of every property, on copies of a freshly trained model."""
    streams: dict[str, list[Rehearsal]] = {name: [] for name in tolerances}
    for kind in select_kinds(calibration, start.panel):
        for number in range(calibration.n_streams):
            stream_seed = library_seed(seed, _PURPOSE, kind, number)
            is_aged, chooses = number % 8 in (1, 3, 5), number % 4 == 3
            origin = start
            if is_aged:
                origin = age_start(calibration, start, kind=kind, seed=stream_seed)
            rehearsed = rehearse_stream(
                calibration, origin, tolerances, kind=kind, seed=stream_seed
            )
            group = f"{kind}, aged" if is_aged else kind
            for name, rehearsal in rehearsed.items():
                streams[name].append(rehearsal._replace(kind=group, chooses=chooses))
    return streams


def fit_limits(
    streams: Mapping[str, list[Rehearsal]],
    tolerances: Mapping[str, float],
    *,
    n_test: int,
    n_rows: int,
    miss: float,
) -> dict[str, Limit]:
    """Return the limit of each property; each gets an equal part of the accepted share `miss`."""
    return {
        name: fit_limit(
            rehearsed,
            tolerances[name],
            floors=score_floors(name, n_test, n_rows),
            miss=miss / len(streams),
        )
        for name, rehearsed in streams.items()
    }


def make_limits(
    calibration: Calibration | None,
    start: StreamStart,
    tolerances: Mapping[str, float],
    *,
    seed: int,
) -> dict[str, Limit]:
    """Return the limit of each property before the first request.

    Without a calibration, use the survey's proxy with the factor 1.
    """
    n_test, n_rows = len(start.panel), len(start.rows)
    if calibration is None:
        least = {name: score_floors(name, n_test, 1)["metric"] for name in tolerances}
        return {name: Limit("metric", 1.0, floor, 1.0) for name, floor in least.items()}
    streams = rehearse_all(calibration, start, tolerances, seed=seed)
    return fit_limits(streams, tolerances, n_test=n_test, n_rows=n_rows, miss=calibration.miss)


def refresh_limit(
    limit: Limit,
    calibration: Calibration,
    start: StreamStart,
    tolerance: float,
    *,
    number: int,
    seed: int,
    n_removed: int,
) -> Limit:
    """Rehearse once more after retrain `number`, and return the limit of certifiability.

    The factor is raised only if the limit would have missed a breach in this rehearsal.
    """
    kinds, name = select_kinds(calibration, start.panel), "certifiability"
    rehearsal = rehearse_stream(
        replace(calibration, n_looks=1),
        start,
        {name: tolerance},
        kind=kinds[number % len(kinds)],
        seed=library_seed(seed, _REFRESH, number),
        n_removed=n_removed,
    )[name]
    # A single person may be an outlier; only a breach that the limit would miss counts.
    last = {score: values[-1] for score, values in rehearsal.scores.items()}
    truth = rehearsal.truths[-1]
    return limit.raise_factor(truth, last) if limit.estimate(last) <= tolerance < truth else limit
