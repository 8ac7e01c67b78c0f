"""Levels about the whole ledger: V1 on recorded requests, V3 on places that may be searched."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from numbers import Integral
from pathlib import Path
from typing import Any

from letheon.audit._reading import Bundle
from letheon.audit._result import LevelResult
from letheon.ledger.purge.scan import Markers, scan
from letheon.ledger.requests.states import STATES

# Verified, and the people are still in the model.
_WAITING = frozenset({"verified", "queued", "applying", "retry_wait"})
_DAY = 86_400
Stores = Mapping[str, str | Path] | Iterable[tuple[str, str | Path]]
_SHOWN = 3


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


def check_residue(stores: Stores, markers: Any) -> LevelResult:
    """Search places for markers.

    Parameters
    ----------
    stores : mapping or pairs of name and path
        Where to look; folders are searched whole, archives are opened.
    markers : Markers, or iterable of bytes, str or int
        What must not be found, raw or in any of the usual encodings.

    Returns
    -------
    LevelResult
        "fail" where something was found, with the store, the file and the place, never with what
        was found; "skipped" where a file could not be read or not be searched: of a kind that
        cannot be read, or with a value that may be a short id or not.
    """
    pairs = stores.items() if isinstance(stores, Mapping) else stores
    places = [(name, Path(path)) for name, path in pairs]
    if not places or markers is None:
        return LevelResult("V3", "", "skipped", "stores and markers are both needed to search")
    wanted = _as_markers(markers)
    if len(wanted) == 0 and not wanted.ids:
        reason = "no marker is long enough to mean something where it is found"
        return LevelResult("V3", "", "skipped", reason)
    result = scan(places, wanted)
    details = {
        "files": result.files,
        "bytes": result.bytes,
        "hits": [[hit.store, hit.file, hit.offset] for hit in result.hits],
        "unread": [list(map(str, one)) for one in result.unread],
        "not_searched": [list(map(str, one)) for one in result.not_searched],
    }
    if result.hits:
        shown = ", ".join(f"{hit.store}: {hit.file!r}" for hit in result.hits[:_SHOWN])
        reason = f"{len(result.hits)} finding(s) of what should be gone: {shown}"
        return LevelResult("V3", "", "fail", reason, details)
    missing = [name for name, path in places if not path.exists()]
    if result.unread or missing:
        reason = f"{len(result.unread) + len(missing)} place(s) or file(s) could not be read"
        return LevelResult("V3", "", "skipped", reason, details)
    if result.n_not_searched:
        shown = ", ".join(f"{one.file!r} ({one.reason})" for one in result.not_searched[:_SHOWN])
        reason = f"nothing found, but {result.n_not_searched} file(s) were not searched: {shown}"
        return LevelResult("V3", "", "skipped", reason, details)
    reason = f"nothing found in {result.files} files ({result.bytes} bytes) of {len(places)} places"
    return LevelResult("V3", "", "pass", reason, details)


def _as_markers(markers: Any) -> Markers:
    if isinstance(markers, Markers):
        return markers
    given = [markers] if isinstance(markers, str | bytes) else list(markers)
    ids: list[int | str] = []
    rows: list[bytes] = []
    for number, one in enumerate(given):
        if isinstance(one, bytes) and Markers.of(rows=[one]).rows:
            rows.append(one)
        elif isinstance(one, bytes):
            ids.append(_decode(number, one))
        elif isinstance(one, str | Integral):
            ids.append(one if isinstance(one, str) else int(one))
        else:
            kind = type(one).__name__
            raise TypeError(f"markers[{number}] is a {kind}; expected ids (str, int) or bytes")
    return Markers.of(ids=ids, rows=rows)


def _decode(number: int, marker: bytes) -> str:
    """Return bytes that are too short, or too uniform, for a search for bytes as a text."""
    try:
        return marker.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"markers[{number}] has {len(marker)} bytes that stand in many files by chance; give "
            "at least 16 bytes, 8 of them different, or the id as a str or int"
        ) from error
