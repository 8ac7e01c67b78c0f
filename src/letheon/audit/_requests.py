"""What became of the requests in the log: none that was recorded may be left lying."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from letheon.audit._reading import Bundle
from letheon.audit._result import LevelResult
from letheon.ledger.requests.states import STATES

__all__ = ["check_requests"]

# Verified, and the people are still in the model.
_WAITING = frozenset({"verified", "queued", "applying", "retry_wait"})
_DAY = 86_400


@dataclass
class _Course:
    """One request, as its events tell it."""

    state: str = ""
    due: date = date.max
    paused_at: int | None = None
    paused: int = 0
    is_published: bool = False

    def follow(self, event: dict[str, Any]) -> None:
        kind, at = event["kind"], int(event["at"])
        if "due" in event:
            self.due = date.fromisoformat(event["due"])
        if kind == "identity-asked":
            self.paused_at = at
        if kind == "verified" and self.paused_at is not None:
            self.paused += at - self.paused_at
            self.paused_at = None
        if kind in STATES:
            self.state = kind
        self.is_published = self.is_published or kind == "applied"

    def is_late(self, today: date) -> bool:
        waits = self.state in _WAITING or (self.state == "stuck" and not self.is_published)
        return waits and self._is_past(today)

    def is_unverified(self, today: date) -> bool:
        """Whether nobody verified it by its day, while its clock ran."""
        return self.state == "received" and self.paused_at is None and self._is_past(today)

    def _is_past(self, today: date) -> bool:
        # A clock that stood gives its time back; a day more is a matter of time zones.
        allowance = timedelta(days=1 + -(-self.paused // _DAY))
        return today - allowance > self.due


def check_requests(bundle: Bundle, models: Collection[int] | None = None) -> LevelResult | None:
    """Say what became of the recorded requests; None where the bundle has no events of them.

    With `models`, numbers of models as events give them, only requests to these are looked at.
    "fail" if one was verified, is past its day and is neither erased nor rejected nor on hold.
    Requests that nobody recorded do not show.
    """
    courses: dict[str, _Course] = {}
    others: set[str] = set()
    last = 0
    for event in bundle.events():
        last = max(last, int(event["at"]))
        if "request" not in event:
            continue
        name = str(event["request"])
        if models is not None and event["kind"] == "received" and event["model"] not in models:
            others.add(name)
        if name not in others:
            courses.setdefault(name, _Course()).follow(event)
    if not courses:
        return None
    today = datetime.fromtimestamp(last, UTC).date()
    late = sum(course.is_late(today) for course in courses.values())
    details = {"requests": dict(sorted(Counter(one.state for one in courses.values()).items()))}
    if late:
        reason = f"{late} recorded request(s) are past their day, and nobody was erased"
        return LevelResult("V1", "", "fail", reason, details)
    reason = f"{len(courses)} recorded request(s); none that was verified waited past its day"
    unverified = sum(course.is_unverified(today) for course in courses.values())
    if unverified:
        reason += f" ({unverified} that nobody verified, past the day)"
    return LevelResult("V1", "", "pass", reason, details)
