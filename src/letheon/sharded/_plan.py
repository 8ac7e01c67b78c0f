"""Expected cost of forgetting with a sharded model, computed before training.

The unit is one *row visit*: one row passed once to a learner. All numbers are computed from closed
formulas over shards and stages; nothing is simulated or timed.

Derivation
----------
People are placed by a keyed hash, so every person is in each of the ``S * R`` cells (shard,
slice) with the same probability, independently of all others. Stage ``k`` (0-based) of a shard
trains ``e_k`` epochs on ``d_k`` slices: ``d_k = k + 1`` if stages are cumulative, ``d_k = 1`` if a
stage uses only its new slice. The state after every stage is kept, so a stage is run again exactly
if a person in one of the first ``k + 1`` slices of its shard is removed. After the removal of ``K``
people of ``m`` rows each, the places of the remaining people are independent of those of the
removed people, hence *exactly*

    E[visits] = (N - K m) * sum_k e_k (d_k / R) [1 - (1 - (k + 1) / (R S))**K].

Requests that are served one by one are ``K`` batches of one person, with fewer rows each time.
"""

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, SupportsIndex

from letheon.guarantee import SearchRanges, TrainingSize
from letheon.terminal import size_text

StageData = Literal["cumulative", "new"]

# Smallest useful number of people in a shard.
_FEWEST_PEOPLE = 50
_STAGE_DATA = ("cumulative", "new")


def _check_whole(name: str, value: SupportsIndex, least: int = 1) -> int:
    """Return `value` as an int; raise an error if it is not an integer of at least `least`."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {number}")
    return number


def _check_stage_data(stage_data: str) -> None:
    """Raise a ValueError for an unknown value of `stage_data`."""
    if stage_data not in _STAGE_DATA:
        raise ValueError(f"stage_data must be 'cumulative' or 'new', not {stage_data!r}")


def epochs_per_stage(
    epochs: int, n_slices: int, stage_data: StageData = "cumulative"
) -> tuple[int, ...]:
    """Return the number of epochs of every stage of a shard, as whole numbers.

    A cumulative stage ``k`` (0-based) gets ``floor((k + 1) e_s) - floor(k e_s)`` epochs with
    ``e_s = 2 e / (R + 1)``. Up to rounding, all stages together then have as many row visits as
    `epochs` epochs over the whole shard. The floors are computed in whole numbers, so the schedule
    is the same on every machine. With ``stage_data="new"`` a row belongs to one stage only, and
    every stage gets `epochs`.

    Parameters
    ----------
    epochs : int
        Epochs ``e`` that a shard without slices would get.
    n_slices : int
        Slices ``R`` of a shard; every slice has one stage.
    stage_data : {"cumulative", "new"}, default="cumulative"
        Whether a stage trains on all slices so far or on its new slice only.

    Returns
    -------
    tuple of int
        One number of at least 1 for each stage.

    Raises
    ------
    ValueError
        If ``e < (R + 1) / 2``: some stages would get no epoch, their rows would first be used in a
        later stage, and neighbouring states would be the same.

    Notes
    -----
    Rounding changes the work of all stages by at most half an epoch over the shard, so by at most
    ``50 / e`` per cent. The worst case is ``e=2, R=2``, which trains 1.5 epochs. There is no
    rounding when ``R + 1`` divides ``2 e``.

    Examples
    --------
    >>> epochs_per_stage(10, 4)
    (4, 4, 4, 4)
    >>> epochs_per_stage(4, 4)
    (1, 2, 1, 2)
    >>> epochs_per_stage(1, 4, "new")
    (1, 1, 1, 1)
    """
    e, r = _check_whole("epochs", epochs), _check_whole("n_slices", n_slices)
    _check_stage_data(stage_data)
    if stage_data == "new":
        return (e,) * r
    if 2 * e < r + 1:
        raise ValueError(
            f"epochs={e} is too few for {r} slices: some stages would get no epoch; "
            f"use at least {(r + 2) // 2} epochs or at most {2 * e - 1} slices"
        )
    return tuple((k + 1) * 2 * e // (r + 1) - k * 2 * e // (r + 1) for k in range(r))


def _hit_probability(share: float, people: int) -> float:
    """Return the probability that at least one of `people` is in a part with this share.

    It is ``1 - (1 - share)**people``, computed accurately even for tiny shares.
    """
    return 1.0 if share >= 1.0 else -math.expm1(people * math.log1p(-share))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Expected cost of forgetting with given numbers of shards and slices; see `plan`.

    The fields are the inputs, and the properties are computed from them.

    Attributes
    ----------
    n_rows, n_requests, n_shards, n_slices : int
        Rows ``N``, people to forget ``K``, shards ``S``, slices per shard ``R``.
    epochs : int
        Epochs ``e`` of a model without slices, as in naive retraining.
    stage_data : {"cumulative", "new"}
        Whether a stage trains on all slices so far or on its new slice only.
    batch : bool
        Whether all requests are served together; otherwise one after the other.
    rows_per_person : float
        Mean number of rows ``m`` of a person to forget.
    state_bytes : int or None
        Size of one saved state; None if it is unknown.

    Raises
    ------
    ValueError
        A number is out of range, or no row would remain.

    Examples
    --------
    >>> from letheon.sharded import Plan
    >>> plan = Plan(n_rows=1000, n_requests=5, n_shards=10, n_slices=1, epochs=1)
    >>> plan.n_shards, plan.batch
    (10, True)
    """

    n_rows: int
    n_requests: int
    n_shards: int
    n_slices: int
    epochs: int
    stage_data: StageData = "cumulative"
    batch: bool = True
    rows_per_person: float = 1.0
    state_bytes: int | None = None

    def __post_init__(self) -> None:
        """Raise an error if an input is not valid."""
        for name in ("n_rows", "n_requests", "n_shards", "n_slices", "epochs"):
            object.__setattr__(self, name, _check_whole(name, getattr(self, name)))
        if self.state_bytes is not None:
            object.__setattr__(
                self, "state_bytes", _check_whole("state_bytes", self.state_bytes, 0)
            )
        if not (math.isfinite(self.rows_per_person) and self.rows_per_person >= 1):
            raise ValueError(f"rows_per_person must be at least 1, not {self.rows_per_person!r}")
        if self.n_requests * self.rows_per_person >= self.n_rows:
            raise ValueError(
                f"n_requests={self.n_requests} with {self.rows_per_person:g} rows each remove all "
                f"{self.n_rows} rows; use fewer requests, so that some rows remain"
            )
        epochs_per_stage(self.epochs, self.n_slices, self.stage_data)

    @property
    def schedule(self) -> tuple[int, ...]:
        """Number of epochs of every stage, as `epochs_per_stage` returns it."""
        return epochs_per_stage(self.epochs, self.n_slices, self.stage_data)

    @property
    def visits(self) -> float:
        """Expected number of row visits to serve the requests, with whole numbers of epochs.

        The expectation is exact if the requests do not depend on shards and slices.
        """
        return self._rows_over_rounds * self._epochs_per_row(self.schedule)

    @property
    def visits_per_request(self) -> float:
        """Expected number of row visits per person; it decreases with the size of the batch."""
        return self.visits / self.n_requests

    @property
    def naive_visits(self) -> float:
        """Number of row visits of naive retraining.

        It is ``e (N - K m)`` for a batch, and the sum over all requests if they are served one by
        one.
        """
        return self._rows_over_rounds * self.epochs

    @property
    def speed_up(self) -> float:
        """Naive visits divided by expected visits; independent of the number of rows."""
        return self.epochs / self._epochs_per_row(self.schedule)

    @property
    def ideal_speed_up(self) -> float:
        """Speed-up if epochs were not rounded, so that a cumulative stage gets ``2 e / (R + 1)``.

        For one person it is ``3 R S / (2 R + 1)``, or ``2 R S / (R + 1)`` if ``stage_data="new"``.
        For a batch with cumulative stages it is
        ``1 / (2 / (R (R + 1)) * sum_j j [1 - (1 - j / (R S))**K])``.
        """
        return self.epochs / self._epochs_per_row(self._ideal_schedule)

    @property
    def best_case(self) -> float:
        """Ideal speed-up if all removed people are in the last slice of one shard.

        It is ``(R + 1) S / 2``, or ``R S`` if ``stage_data="new"``. The survey, section 4.1, calls
        it the "maximum theoretical efficiency". It is a maximum, not the mean.
        """
        last = self._ideal_schedule[-1] * self._slices_seen(self.n_slices - 1)
        return self.epochs * self.n_slices * self.n_shards / last

    @property
    def balanced_visits(self) -> float:
        """Expected number of row visits if all cells had the same size.

        Bourtoule et al. (2021) assume this. Without slices, it is their equation 6,
        ``e [(N/S + 1/(2S) - 1) K - K**2/(2S)]``, for requests one by one, and their equation 8,
        ``e [N (1 - (1 - 1/S)**K) - K]``, for a batch. It is slightly smaller than `visits`, because
        with hashing a person is more often in a large shard.
        """
        k_people, m, r = self.n_requests, self.rows_per_person, self.n_slices
        rows = self._rows_over_rounds + k_people * m
        seen = sum(e * self._slices_seen(k) / r for k, e in enumerate(self.schedule))
        return rows * self._epochs_per_row(self.schedule) - k_people * m * seen

    @property
    def fit_visits(self) -> float:
        """Number of row visits of the first training: ``e N``, up to the rounding of epochs."""
        seen = sum(e * self._slices_seen(k) for k, e in enumerate(self.schedule))
        return self.n_rows * seen / self.n_slices

    @property
    def shards_touched(self) -> float:
        """Expected number of shards that are retrained; one per request if served one by one."""
        return self._n_rounds * self.n_shards * _hit_probability(1 / self.n_shards, self._at_once)

    @property
    def stages_touched(self) -> float:
        """Expected number of stages that are retrained, over all shards."""
        hits = (self._stage_hit(k) for k in range(self.n_slices))
        return self._n_rounds * self.n_shards * math.fsum(hits)

    @property
    def states(self) -> int:
        """Number of stored models, ``S R``: each shard has a final model and ``R - 1`` states."""
        return self.n_shards * self.n_slices

    @property
    def storage_bytes(self) -> int | None:
        """Size of all states in bytes, without the rows; None if `state_bytes` is None."""
        return None if self.state_bytes is None else self.states * self.state_bytes

    @property
    def shard_rows(self) -> float:
        """Expected number of rows of a shard."""
        return self.n_rows / self.n_shards

    @property
    def shard_rows_sd(self) -> float:
        """Standard deviation of the number of rows of a shard; its people are binomial."""
        share = 1 / self.n_shards
        return self.rows_per_person * math.sqrt(self._n_people * share * (1 - share))

    @property
    def empty_shards(self) -> float:
        """Expected number of shards without people."""
        return self.n_shards * (1 - _hit_probability(1 / self.n_shards, round(self._n_people)))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the computed numbers in one flat dict, a row of a data frame."""
        derived = [name for name, value in vars(Plan).items() if isinstance(value, property)]
        shown = [name for name in derived if name != "schedule" and not name.startswith("_")]
        return {name: getattr(self, name) for name in [*(f.name for f in fields(self)), *shown]}

    def __str__(self) -> str:
        """Return the plan in one line."""
        how = "in one batch" if self.batch else "one by one"
        size = "" if self.storage_bytes is None else f" ({size_text(self.storage_bytes)})"
        return (
            f"{self.n_shards} shards x {self.n_slices} slices, {self.n_requests} of "
            f"{self._n_people:,.0f} people {how}: {self.visits:,.0f} row visits, "
            f"{self.speed_up:.2f}x over naive retraining, {self.states} states{size}"
        )

    @property
    def _n_people(self) -> float:
        return self.n_rows / self.rows_per_person

    @property
    def _n_rounds(self) -> int:
        """Number of rounds: retrainings that serve all requests."""
        return 1 if self.batch else self.n_requests

    @property
    def _at_once(self) -> int:
        """Number of people removed in one round."""
        return self.n_requests if self.batch else 1

    @property
    def _rows_over_rounds(self) -> float:
        """Sum over all rounds of the number of rows that remain after the round."""
        n, k, m = self.n_rows, self.n_requests, self.rows_per_person
        return n - k * m if self.batch else k * n - m * k * (k + 1) / 2

    @property
    def _ideal_schedule(self) -> tuple[float, ...]:
        per_stage = 2 / (self.n_slices + 1) if self.stage_data == "cumulative" else 1.0
        return (self.epochs * per_stage,) * self.n_slices

    def _slices_seen(self, stage: int) -> int:
        """Return the number of slices that a stage trains on."""
        return stage + 1 if self.stage_data == "cumulative" else 1

    def _stage_hit(self, stage: int) -> float:
        """Return the probability that a stage of a shard is run again in one round."""
        return _hit_probability((stage + 1) / (self.n_slices * self.n_shards), self._at_once)

    def _epochs_per_row(self, schedule: Iterable[float]) -> float:
        """Return the expected number of visits of a remaining row in one round."""
        return math.fsum(
            e * self._slices_seen(k) / self.n_slices * self._stage_hit(k)
            for k, e in enumerate(schedule)
        )


def plan(
    n_rows: int,
    n_requests: int = 1,
    *,
    n_shards: int = 5,
    n_slices: int = 1,
    epochs: int | None = None,
    stage_data: StageData = "cumulative",
    batch: bool = True,
    state_bytes: int | None = None,
    rows_per_person: float = 1.0,
) -> Plan:
    """Return the expected cost, speed-up and storage of a sharded model before training it.

    Parameters
    ----------
    n_rows : int
        Number of rows ``N`` to be trained on.
    n_requests : int, default=1
        Number of people ``K`` to forget.
    n_shards, n_slices : int, default=5 and 1
        Number of shards ``S`` and of slices per shard ``R``.
    epochs : int, optional
        Epochs ``e`` of a model without slices. By default the smallest number that can be divided
        among the stages without rounding; `speed_up` then equals `ideal_speed_up`.
    stage_data : {"cumulative", "new"}, default="cumulative"
        Whether a stage trains on all slices so far or on its new slice only.
    batch : bool, default=True
        Whether the requests are served together; otherwise one after the other, each with a
        retraining.
    state_bytes : int, optional
        Size of one saved state, needed for `Plan.storage_bytes`.
    rows_per_person : float, default=1
        Mean number of rows of a person. All rows of a person are in one slice of one shard.

    Returns
    -------
    Plan
        The numbers are expectations over the keyed hash. Shard sizes are binomial, not equal, and a
        single request costs between one slice and one shard.

    Notes
    -----
    `Plan.visits` is the exact expectation if requests do not depend on shards and slices. With risk
    tiers, requests of people with a high risk cost less than planned.

    References
    ----------
    Bourtoule et al. (2021), Machine Unlearning, IEEE S&P; the survey, section 4.1.

    Examples
    --------
    >>> print(plan(100_000, 8, n_shards=20, n_slices=50))
    20 shards x 50 slices, 8 of 100,000 people in one batch: 1,205,395 row visits, \
4.23x over naive retraining, 1000 states
    >>> round(plan(100_000, n_shards=20, n_slices=50).speed_up, 1)
    29.7
    """
    _check_stage_data(stage_data)
    if epochs is None:  # the smallest number divided among the stages without rounding
        r = _check_whole("n_slices", n_slices)
        even = (r + 1) // 2 if r % 2 else r + 1
        epochs = 1 if stage_data == "new" else even
    return Plan(
        n_rows=n_rows,
        n_requests=n_requests,
        n_shards=n_shards,
        n_slices=n_slices,
        epochs=epochs,
        stage_data=stage_data,
        batch=batch,
        rows_per_person=rows_per_person,
        state_bytes=state_bytes,
    )


def compare_plans(
    n_rows: int,
    n_requests: Iterable[int] = (1,),
    *,
    n_shards: Iterable[int] = (1, 5, 20),
    n_slices: Iterable[int] = (1, 10, 50),
    **options: Any,
) -> list[Plan]:
    """Return a plan for every combination of shards, slices and batch size.

    Parameters
    ----------
    n_rows : int
        Rows to be trained on.
    n_requests : iterable of int, default=(1,)
        Batch sizes: people removed by one retraining.
    n_shards, n_slices : iterable of int
        Numbers of shards, and of slices per shard.
    **options
        Passed on to `plan`: `epochs`, `stage_data`, `batch`, `state_bytes` and
        `rows_per_person`.

    Returns
    -------
    list of Plan
        Ordered by shards, then slices, then requests. To get a table, use
        ``pandas.DataFrame([p.to_dict() for p in plans])``.

    Examples
    --------
    >>> plans = compare_plans(10_000, [1, 30], n_shards=[5, 20], n_slices=[1])
    >>> [(p.n_shards, p.n_requests, round(p.speed_up, 2)) for p in plans]
    [(5, 1, 5.0), (5, 30, 1.0), (20, 1, 20.0), (20, 30, 1.27)]
    """
    requests, slices = list(n_requests), list(n_slices)
    return [
        plan(n_rows, k, n_shards=s, n_slices=r, **options)
        for s in n_shards
        for r in slices
        for k in requests
    ]


def shard_counts(size: TrainingSize) -> SearchRanges:
    """Return the numbers of shards to try, so that every shard has at least 50 people.

    Two shards are always tried.

    Parameters
    ----------
    size : TrainingSize
        Size of the problem.

    Returns
    -------
    SearchRanges

    Examples
    --------
    >>> from letheon.guarantee import TrainingSize
    >>> from letheon.sharded import shard_counts
    >>> shard_counts(TrainingSize(n_people=500, n_together=1)).efficiency
    {'n_shards': (2, 4, 8)}
    """
    fitting = (n for n in (4, 8, 16, 32, 64) if size.n_people // n >= _FEWEST_PEOPLE)
    return SearchRanges({"n_shards": (2, *fitting)})
