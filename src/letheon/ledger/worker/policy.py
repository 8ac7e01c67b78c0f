"""The policy that decides when queued requests become a batch, and when failures are retried."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal, NamedTuple

# Smallest values. A lease is renewed after a third of its length, at most once per second.
_WHOLE = {
    "k_min": 1,
    "k_min_released": 1,
    "max_tries": 1,
    "lease_seconds": 5,
    "pin_seconds": 1,
    "keep_keys_months": 0,
}
_UNITS = ((3600, "h"), (60, "min"), (1, "s"))
_SPANS = ("oldest_wait", "reserve", "backoff_first", "backoff_longest", "clock_ahead")

Reason = Literal[
    "nothing-queued",
    "waiting",
    "operator",
    "monitor",
    "budget-runs-out",
    "due-soon",
    "waited-long",
    "enough-rows",
    "outside-sample",
]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Settings for batching, retries and retention in a ledger; part of ``letheon.toml``.

    Parameters
    ----------
    k_min : int, default=20
        Number of rows that starts a batch if only labels are published. The smaller a batch, the
        more an observer learns about a person by comparing the models before and after. Batching
        reduces this risk; only noise bounds it.
    k_min_released : int, default=50
        Number of rows that starts a batch if parameters are published.
    oldest_wait : timedelta, default=72 h
        Longest time that a request waits for more requests.
    reserve : timedelta, default=7 d
        Safety margin: a batch starts no later than this time, plus three times the duration of a
        batch, before its earliest deadline.
    backoff_first, backoff_longest : timedelta, default=1 s, 1 h
        First and longest pause after a failure.
    max_tries : int, default=8
        Number of failures after which an operator must act.
    lease_seconds : int, default=60
        Seconds without renewal after which a worker counts as dead; at least 5.
    pin_seconds : int, default=30
        Seconds without renewal after which a reader of an old version is ignored.
    keep_keys_months : int, default=24
        Number of months for which the tags of people and of idempotency keys are kept after a
        request is closed; see `forget_closed`.
    clock_ahead : timedelta, default=3 d
        How far the clock may be ahead of the time measured by machine uptime before an operator has
        to confirm the clock. The earlier of the two times decides when holds end and tags are
        deleted.
    approve_above : int or None, default=None
        A verified request with more rows than this needs approval by a user who neither filed nor
        verified it; None for no approvals.
    settle : bool, default=True
        Whether a certified method settles its model after an erasure, so that the saved state
        contains no trace of a single removal. This takes as long as a fit. If False, the purge
        attestation does not claim that the saved state is free of traces.
    unsampled_at_once : bool, default=True
        Whether requests for people outside the keyed samples of a model are applied at once; the
        others wait, so that few batches fit a sample again. Requests with a receipt code always
        wait: their holder would learn who is in a sample. If False, all requests wait together, and
        versions differ by more people.

    Examples
    --------
    >>> from letheon.ledger import Policy
    >>> Policy(k_min=5).k_min, Policy().max_tries
    (5, 8)
    """

    k_min: int = 20
    k_min_released: int = 50
    oldest_wait: timedelta = timedelta(hours=72)
    reserve: timedelta = timedelta(days=7)
    backoff_first: timedelta = timedelta(seconds=1)
    backoff_longest: timedelta = timedelta(hours=1)
    max_tries: int = 8
    lease_seconds: int = 60
    pin_seconds: int = 30
    keep_keys_months: int = 24
    clock_ahead: timedelta = timedelta(days=3)
    approve_above: int | None = None
    settle: bool = True
    unsampled_at_once: bool = True

    def __post_init__(self) -> None:
        """Raise `ValueError` if a value is not valid."""
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name}={value!r} must be an integer of at least {least}")
        most = self.approve_above
        if most is not None and (type(most) is not int or most < 0):
            raise ValueError(f"approve_above={most!r} must be a non-negative integer or None")
        for name in ("settle", "unsampled_at_once"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} must be a bool (true or false in letheon.toml)"
                )
        for name in _SPANS:
            span = getattr(self, name)
            if not isinstance(span, timedelta) or span < timedelta(0) or span.microseconds:
                raise ValueError(
                    f"{name}={span!r} must be a non-negative timedelta of whole seconds"
                )
        if self.backoff_longest < self.backoff_first:
            raise ValueError(
                f"backoff_longest={self.backoff_longest} must not be shorter than "
                f"backoff_first={self.backoff_first}"
            )

    def enough_rows(self, releases: str | None) -> int:
        """Return the number of rows that starts a batch for a model that publishes `releases`."""
        return self.k_min if releases == "labels-only" else self.k_min_released

    def needs_approval(self, n_rows: int) -> bool:
        """Return whether a request with this many rows needs approval."""
        return self.approve_above is not None and n_rows > self.approve_above


class QueuedRequest(NamedTuple):
    """The values of a queued request that are needed to plan a batch."""

    received_at: datetime
    due_on: date
    n_rows: int
    id: str = ""
    tries: int = 0
    n_ids: int = 1


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision whether a batch starts now.

    Attributes
    ----------
    seal : bool
        Whether to apply the queued requests now.
    kind : {"erase", "retrain"}
        Kind of the batch.
    reason : str
        Code of the reason.
    when_next : datetime or None
        When the batch starts at the latest; None if it starts now or if no request waits.

    Examples
    --------
    >>> from letheon.ledger import Decision
    >>> Decision(seal=False, kind="erase", reason="waiting", when_next=None).reason
    'waiting'
    """

    seal: bool
    kind: Literal["erase", "retrain"]
    reason: Reason
    when_next: datetime | None = None


def sort_by_due_day(queue: Iterable[QueuedRequest]) -> list[QueuedRequest]:
    """Return requests sorted by deadline, and by time of receipt if the deadlines are equal."""
    return sorted(queue, key=lambda request: (request.due_on, request.received_at))


def should_start(
    queue: Sequence[QueuedRequest],
    now: datetime,
    policy: Policy,
    *,
    apply_seconds: float,
    releases: str | None = None,
    budget_runs_out: bool = False,
    retrain_due: bool = False,
    forced: bool = False,
) -> Decision:
    """Decide whether the queued requests of a model become a batch now, and of which kind.

    A batch starts in each of these cases: an operator requests it; the model exceeds the tolerances
    of its monitor, even if no request is queued; the earliest deadline is closer than ``reserve + 3
    * apply_seconds``; the oldest request has waited `oldest_wait`; there are enough rows. If the
    budget does not cover the rows, the batch is a retraining, but it does not start earlier. So
    rows that are crafted to spend a budget cost one retraining per batch, not one per row.

    Parameters
    ----------
    queue : sequence of requests
        Queued requests, in any order.
    now : datetime
        Current time, with a time zone.
    policy : Policy
        The policy with the limits.
    apply_seconds : float
        Upper estimate of the duration of a batch or a retraining, in seconds.
    releases : str or None
        Which outputs the model publishes. Any value other than "labels-only" counts as publishing
        parameters.
    budget_runs_out : bool, default=False
        Whether the budget does not cover the removal of all queued rows.
    retrain_due : bool, default=False
        Whether the monitor's last decision was to retrain.
    forced : bool, default=False
        Whether an operator requests the batch.
    """
    kind: Literal["erase", "retrain"] = "retrain" if budget_runs_out or retrain_due else "erase"
    if retrain_due:
        return Decision(seal=True, kind=kind, reason="monitor")
    if not queue:
        return Decision(seal=False, kind=kind, reason="nothing-queued")
    when_due = _latest_start(queue, policy, apply_seconds)
    when_old = min(request.received_at for request in queue) + policy.oldest_wait
    rows = sum(request.n_rows for request in queue)
    reasons: list[tuple[bool, Reason]] = [
        (forced, "operator"),
        (now >= when_due, "due-soon"),
        (now >= when_old, "waited-long"),
        (rows >= policy.enough_rows(releases), "enough-rows"),
    ]
    reason_to_start = next((reason for holds, reason in reasons if holds), None)
    if reason_to_start is None:
        when = min(when_due, when_old)
        return Decision(seal=False, kind=kind, reason="waiting", when_next=when)
    return Decision(
        seal=True, kind=kind, reason="budget-runs-out" if budget_runs_out else reason_to_start
    )


def describe_wait(
    queue: Sequence[QueuedRequest], policy: Policy, decision: Decision, *, releases: str | None
) -> str:
    """Return what a batch waits for, such as "50 rows or 72 h"; empty if it does not wait."""
    if decision.when_next is None:
        return ""
    reason = "a near deadline"
    if decision.when_next == min(request.received_at for request in queue) + policy.oldest_wait:
        seconds = int(policy.oldest_wait.total_seconds())
        size, unit = next(each for each in _UNITS if seconds % each[0] == 0)
        reason = f"{seconds // size} {unit}"
    return f"{policy.enough_rows(releases)} rows or {reason}"


def _latest_start(queue: Sequence[QueuedRequest], policy: Policy, apply_seconds: float) -> datetime:
    """Return the latest time at which a batch can start and still meet the earliest deadline.

    The reserve is subtracted. The start of the deadline day in UTC is used, because it is before
    the end of that day in every time zone.
    """
    earliest = datetime.combine(min(request.due_on for request in queue), time(), UTC)
    return earliest - policy.reserve - timedelta(seconds=3 * apply_seconds)


def backoff_seconds(tries: int, policy: Policy, draw: float) -> int:
    """Return the number of seconds to wait after failure number `tries`.

    The pause grows exponentially, with full jitter: it is ``draw * min(longest, first * 2 ** (tries
    - 1))``, rounded up, and at least one second.

    Parameters
    ----------
    tries : int
        Number of failures so far, at least 1.
    policy : Policy
        The policy with the first and the longest pause.
    draw : float
        A random number in [0, 1).
    """
    if tries < 1:
        raise ValueError(f"tries={tries} must be at least 1")
    first, longest = policy.backoff_first.total_seconds(), policy.backoff_longest.total_seconds()
    # Beyond 2 ** 63 the longest pause applies; a float power would overflow.
    return max(1, math.ceil(draw * min(longest, first * 2.0 ** min(tries - 1, 63))))
