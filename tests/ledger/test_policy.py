"""When a batch is sealed, who comes first, how long a failure waits; three simulated years."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.ledger.requests.deadlines import Calendar, due_on
from letheon.ledger.worker import policy as _policy
from letheon.ledger.worker.policy import (
    Decision,
    Policy,
    QueuedRequest,
    backoff_seconds,
    should_start,
    sort_by_due_day,
)

NOW = datetime(2026, 6, 10, 12, tzinfo=UTC)
FAR = date(2026, 7, 10)
DAY = timedelta(days=1)
CALENDAR = Calendar()


def waiting(hours: float = 1, rows: int = 1, due: date = FAR) -> QueuedRequest:
    return QueuedRequest(NOW - timedelta(hours=hours), due, rows)


def decide(*queue: QueuedRequest, now: datetime = NOW, **settings: Any) -> Decision:
    given: dict[str, Any] = {"apply_seconds": 60.0, "releases": "labels-only", **settings}
    return should_start(queue, now, Policy(), **given)


@pytest.mark.parametrize(
    ("queue", "settings", "seal", "kind", "reason"),
    [
        ([], {}, False, "erase", "nothing-queued"),
        ([], {"forced": True}, False, "erase", "nothing-queued"),
        ([], {"budget_runs_out": True}, False, "retrain", "nothing-queued"),
        ([], {"retrain_due": True}, True, "retrain", "monitor"),
        ([waiting()], {}, False, "erase", "waiting"),
        ([waiting()], {"forced": True}, True, "erase", "operator"),
        ([waiting()], {"retrain_due": True}, True, "retrain", "monitor"),
        ([waiting()], {"budget_runs_out": True}, False, "retrain", "waiting"),
        ([waiting(rows=20)], {"budget_runs_out": True}, True, "retrain", "budget-runs-out"),
        ([waiting(rows=19)], {}, False, "erase", "waiting"),
        ([waiting(rows=20)], {}, True, "erase", "enough-rows"),
        ([waiting(rows=12), waiting(rows=8)], {}, True, "erase", "enough-rows"),
        ([waiting(rows=49)], {"releases": "latest-only"}, False, "erase", "waiting"),
        ([waiting(rows=50)], {"releases": "latest-only"}, True, "erase", "enough-rows"),
        ([waiting(rows=49)], {"releases": "every-version"}, False, "erase", "waiting"),
        ([waiting(rows=49)], {"releases": None}, False, "erase", "waiting"),
        ([waiting(hours=71.9)], {}, False, "erase", "waiting"),
        ([waiting(hours=72)], {}, True, "erase", "waited-long"),
        ([waiting(), waiting(hours=72)], {}, True, "erase", "waited-long"),
        ([waiting(due=date(2026, 6, 18))], {}, False, "erase", "waiting"),
        ([waiting(due=date(2026, 6, 17))], {}, True, "erase", "due-soon"),
        ([waiting(), waiting(due=date(2026, 6, 17))], {}, True, "erase", "due-soon"),
        ([waiting(due=date(2026, 6, 18))], {"apply_seconds": 14_400}, True, "erase", "due-soon"),
        ([waiting(due=date(2026, 6, 18))], {"apply_seconds": 14_399}, False, "erase", "waiting"),
    ],
)
def test_every_reason(
    queue: list[QueuedRequest], settings: dict[str, Any], seal: bool, kind: str, reason: str
) -> None:
    decision = decide(*queue, **settings)
    assert (decision.seal, decision.kind, decision.reason) == (seal, kind, reason)
    assert (decision.when_next is not None) == (reason == "waiting")


def test_the_urgent_reason_is_named_first() -> None:
    queue = waiting(hours=100, rows=100, due=date(2026, 6, 11))
    assert decide(queue, forced=True).reason == "operator"
    assert decide(queue).reason == "due-soon"
    assert decide(queue._replace(due_on=FAR)).reason == "waited-long"


queues = st.lists(
    st.builds(
        QueuedRequest,
        st.datetimes(datetime(2026, 5, 1), datetime(2026, 6, 10), timezones=st.just(UTC)),
        st.dates(date(2026, 6, 1), date(2026, 8, 1)),
        st.integers(1, 30),
    ),
    min_size=1,
    max_size=6,
)


@given(queue=queues, apply_seconds=st.floats(0, 10**6))
def test_it_is_sealed_at_the_time_that_was_announced(
    queue: list[QueuedRequest], apply_seconds: float
) -> None:
    decision = decide(*queue, apply_seconds=apply_seconds)
    if decision.when_next is None:
        assert decision.seal
    else:
        moment = timedelta(microseconds=1)
        before = decide(*queue, apply_seconds=apply_seconds, now=decision.when_next - moment)
        then = decide(*queue, apply_seconds=apply_seconds, now=decision.when_next)
        assert (before.seal, then.seal) == (False, True)


@given(queue=queues, more=queues, later=st.timedeltas(timedelta(0), timedelta(days=60)))
def test_time_and_company_never_undo_a_seal(
    queue: list[QueuedRequest], more: list[QueuedRequest], later: timedelta
) -> None:
    if decide(*queue).seal:
        assert decide(*queue, *more, now=NOW + later).seal


@given(queue=queues)
def test_the_earliest_due_day_comes_first(queue: list[QueuedRequest]) -> None:
    ordered = sort_by_due_day(queue)
    assert sorted(map(id, ordered)) == sorted(map(id, queue))
    for one, other in pairwise(ordered):
        assert (one.due_on, one.received_at) <= (other.due_on, other.received_at)


def requests(n: int, seed: int) -> Iterator[QueuedRequest]:
    """Yield requests over three years, a fifth of them within one month, under both laws."""
    rng = np.random.default_rng(seed)
    start = datetime(2025, 1, 1, tzinfo=UTC)
    days = np.where(rng.random(n) < 0.2, 500 + 30 * rng.random(n), 3 * 365 * rng.random(n))
    for second in np.sort(days * 86_400):
        received = start + timedelta(seconds=int(second))
        regime = "ccpa" if rng.random() < 0.3 else "gdpr"
        yield QueuedRequest(received, due_on(regime, received, CALENDAR), int(rng.integers(1, 4)))


def overdue(n: int, policy: Policy, *, seed: int, most: timedelta) -> tuple[int, int]:
    """Look once a day at some hour; return how many requests ended late, and how many ended.

    An application takes up to `most`, and what comes meanwhile waits for the next one.
    """
    rng = np.random.default_rng(seed)
    to_come = list(requests(n, seed))[::-1]
    queue: list[QueuedRequest] = []
    late = ended = 0
    midnight = busy_until = datetime(2025, 1, 1, tzinfo=UTC)
    while to_come or queue:
        now = midnight + timedelta(hours=float(rng.random()) * 23.9)
        while to_come and to_come[-1].received_at <= now:
            queue.append(to_come.pop())
        apply_seconds = most.total_seconds()
        decision = should_start(queue, now, policy, apply_seconds=apply_seconds)
        if decision.seal and now >= busy_until:
            busy_until = now + most * float(rng.random())
            late += sum(busy_until > CALENDAR.end_of(request.due_on) for request in queue)
            ended += len(queue)
            queue = []
        midnight += DAY
    return late, ended


PATIENT = Policy(k_min=10**6, k_min_released=10**6, oldest_wait=400 * DAY)
POLICIES = {
    "default": Policy(),
    "only the due day hurries": PATIENT,
    "short reserve": replace(PATIENT, reserve=3 * DAY),
    "no company awaited": Policy(k_min=1, k_min_released=1),
}


@pytest.mark.parametrize("name", POLICIES)
def test_no_request_is_late_in_three_years(name: str) -> None:
    policy = POLICIES[name]
    most = policy.reserve - timedelta(minutes=1)
    assert overdue(2_000, policy, seed=1, most=most) == (0, 2_000)


@pytest.mark.soak
@pytest.mark.parametrize("name", POLICIES)
def test_no_request_is_late_in_three_long_years(name: str) -> None:
    policy = POLICIES[name]
    most = policy.reserve - timedelta(minutes=1)
    assert overdue(100_000, policy, seed=2, most=most) == (0, 100_000)


def test_the_simulation_sees_a_policy_that_does_not_look_at_due_days(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = datetime(9999, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(_policy, "_latest_start", lambda *_: never)
    late, _ = overdue(500, replace(PATIENT, oldest_wait=40 * DAY), seed=1, most=DAY)
    assert late > 0


def test_the_simulation_sees_a_reserve_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _policy._latest_start
    monkeypatch.setattr(_policy, "_latest_start", lambda queue, p, _: real(queue, p, 0) + p.reserve)
    late, _ = overdue(500, PATIENT, seed=1, most=7 * DAY)
    assert late > 0


@pytest.mark.parametrize(
    ("tries", "draw", "seconds"),
    [
        (1, 0.0, 1),
        (1, 0.999, 1),
        (2, 0.999, 2),
        (5, 0.5, 8),
        (8, 0.75, 96),
        (13, 0.999, 3597),
        (64, 0.5, 1800),
        (10**6, 0.5, 1800),
    ],
)
def test_pauses_after_failures(tries: int, draw: float, seconds: int) -> None:
    assert backoff_seconds(tries, Policy(), draw) == seconds


@given(tries=st.integers(1, 200), draw=st.floats(0, 1, exclude_max=True))
def test_a_pause_is_between_a_second_and_an_hour(tries: int, draw: float) -> None:
    assert 1 <= backoff_seconds(tries, Policy(), draw) <= 3600
    assert backoff_seconds(tries, Policy(), draw) <= max(1, 2 ** (tries - 1))


def test_a_pause_needs_a_failure() -> None:
    with pytest.raises(ValueError, match="tries=0"):
        backoff_seconds(0, Policy(), 0.5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"k_min": 0}, "k_min=0 must be an integer of at least 1"),
        ({"k_min": True}, "k_min=True"),
        ({"max_tries": 2.5}, "max_tries=2.5"),
        ({"keep_keys_months": -1}, "at least 0"),
        ({"lease_seconds": 4}, "lease_seconds=4 must be an integer of at least 5"),
        ({"settle": 1}, "settle=1 must be a bool"),
        ({"reserve": -DAY}, "non-negative"),
        ({"reserve": 7}, "non-negative timedelta"),
        ({"reserve": timedelta(seconds=1.5)}, "whole seconds"),
        ({"backoff_first": 2 * DAY}, "must not be shorter than backoff_first=2 days"),
    ],
)
def test_policies_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Policy(**settings)
