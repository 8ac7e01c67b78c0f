"""When queued requests become a batch, and how failures are tried again."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal, NamedTuple

# Least values. A lease is renewed every third of it, and each second at most.
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
]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a ledger batches, retries and keeps; part of ``letheon.toml``.

    Parameters
    ----------
    k_min : int, default=20
        Rows that are enough for a batch where only labels are released. Someone who sees the model
        before and after can tell the more of a person, the smaller the batch was. Batching
        mitigates that, only noise bounds it.
    k_min_released : int, default=50
        The same where parameters are released.
    oldest_wait : timedelta, default=72 h
        A request waits no longer than this for company.
    reserve : timedelta, default=7 d
        A batch is sealed so long before its earliest due day, and three times what an
        application takes before that.
    backoff_first, backoff_longest : timedelta, default=1 s, 1 h
        Bounds of the pause after a failure: first, and longest.
    max_tries : int, default=8
        Failures after which a person must look.
    lease_seconds : int, default=60
        After so long without a sign a worker counts as dead; at least 5.
    pin_seconds : int, default=30
        After so long without a sign a reader of an old version counts as gone.
    keep_keys_months : int, default=24
        How long tags that recognise people and repeated requests are kept after a request was
        closed; see `forget_closed`.
    clock_ahead : timedelta, default=3 d
        How far the clock may be ahead of the time that the uptime of machines accounts for before
        an operator has to confirm it. Holds end, and tags are forgotten, by the earlier of both.
    approve_above : int or None, default=None
        Rows above which a request waits, verified, for an approval by somebody else than who
        filed or verified it; None: none does.
    settle : bool, default=True
        Whether a certified method's model is settled after an erasure, so that its saved state
        holds no trace of a lone removal. It takes the time of a fit; without it the purge says
        that it does not claim this.
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

    def __post_init__(self) -> None:
        """Refuse numbers that make no policy."""
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
        most = self.approve_above
        if most is not None and (type(most) is not int or most < 0):
            raise ValueError(
                f"approve_above={most!r} must be a whole number of rows, not negative, or left out"
            )
        if type(self.settle) is not bool:
            raise ValueError(f"settle={self.settle!r} must be true or false")
        for name in _SPANS:
            span = getattr(self, name)
            if not isinstance(span, timedelta) or span < timedelta(0) or span.microseconds:
                raise ValueError(
                    f"{name}={span!r} must be a timedelta of whole seconds, not negative"
                )
        if self.backoff_longest < self.backoff_first:
            raise ValueError(
                f"backoff_longest={self.backoff_longest} is below backoff_first, "
                f"{self.backoff_first}"
            )

    def enough_rows(self, releases: str | None) -> int:
        """Return how many rows make a batch, by what of the model is released."""
        return self.k_min if releases == "labels-only" else self.k_min_released

    def needs_approval(self, n_rows: int) -> bool:
        """Return whether a request of so many rows has to be approved."""
        return self.approve_above is not None and n_rows > self.approve_above


class QueuedRequest(NamedTuple):
    """A request in the queue, as far as a batch is planned by it."""

    received_at: datetime
    due_on: date
    n_rows: int
    id: str = ""
    tries: int = 0
    n_ids: int = 1


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a batch is sealed now.

    Attributes
    ----------
    seal : bool
        Whether to apply what is queued now.
    kind : {"erase", "retrain"}
        What the batch is, or would be.
    reason : str
        Code of the reason.
    when_next : datetime or None
        When time alone will seal it; None when nothing waits or it is sealed now.
    """

    seal: bool
    kind: Literal["erase", "retrain"]
    reason: Reason
    when_next: datetime | None = None


def sort_by_due_day(queue: Iterable[QueuedRequest]) -> list[QueuedRequest]:
    """Return requests in the order of their due days, then of their receipt."""
    return sorted(queue, key=lambda request: (request.due_on, request.received_at))


def should_seal(
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
    """Say whether queued requests of one model become a batch now, and of which kind.

    Sealed when an operator says so; when the model is past its monitor's tolerances, even with an
    empty queue; when the earliest due day is nearer than ``reserve + 3 * apply_seconds``; when the
    oldest request has waited `oldest_wait`; or when there are enough rows. A spent budget makes
    the batch a retrain but does not hurry it: who makes rows that spend a budget at once shall
    cost one retrain per batch, not one per row.

    Parameters
    ----------
    queue : sequence of requests
        With `received_at`, `due_on` and `n_rows`, in any order.
    now : datetime
        With a time zone.
    policy : Policy
        The numbers.
    apply_seconds : float
        99th percentile of an application, or of a retrain where one is planned.
    releases : str or None
        What of the model is released; anything but "labels-only" counts as parameters.
    budget_runs_out : bool, default=False
        Whether the guarantee does not cover the removal of all queued rows.
    retrain_due : bool, default=False
        Whether the monitor's last decision was to retrain.
    forced : bool, default=False
        Whether an operator asks for it.
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
    pressing = next((reason for holds, reason in reasons if holds), None)
    if pressing is None:
        when = min(when_due, when_old)
        return Decision(seal=False, kind=kind, reason="waiting", when_next=when)
    return Decision(seal=True, kind=kind, reason="budget-runs-out" if budget_runs_out else pressing)


def describe_wait(
    queue: Sequence[QueuedRequest], policy: Policy, decision: Decision, *, releases: str | None
) -> str:
    """Say in words what a batch waits for: rows, and what sets its time. Empty if it does not."""
    if decision.when_next is None:
        return ""
    reason = "the due day is near"
    if decision.when_next == min(request.received_at for request in queue) + policy.oldest_wait:
        seconds = int(policy.oldest_wait.total_seconds())
        size, unit = next(each for each in _UNITS if seconds % each[0] == 0)
        reason = f"{seconds // size} {unit}"
    return f"{policy.enough_rows(releases)} rows or {reason}"


def _latest_start(queue: Sequence[QueuedRequest], policy: Policy, apply_seconds: float) -> datetime:
    """Return when the earliest due day is as near as the reserve allows.

    A due day counts from its first moment in UTC: that is before its end in every time zone.
    """
    earliest = datetime.combine(min(request.due_on for request in queue), time(), UTC)
    return earliest - policy.reserve - timedelta(seconds=3 * apply_seconds)


def backoff_seconds(tries: int, policy: Policy, draw: float) -> int:
    """Return the seconds to wait after failure number `tries`: exponential with full jitter.

    ``draw * min(longest, first * 2 ** (tries - 1))``, rounded up, at least one second.

    Parameters
    ----------
    tries : int
        Failures so far, from 1.
    policy : Policy
        The bounds.
    draw : float
        A random number in [0, 1).
    """
    if tries < 1:
        raise ValueError(f"tries={tries} must be at least 1")
    first, longest = policy.backoff_first.total_seconds(), policy.backoff_longest.total_seconds()
    # Beyond 2 ** 63 every pause is the longest; a float power would overflow later.
    return max(1, math.ceil(draw * min(longest, first * 2.0 ** min(tries - 1, 63))))
