"""The templates of the pages, with dates, numbers and states in words."""

import hashlib
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.templating import Jinja2Templates

from letheon.ledger import REQUEST_STATES

__all__ = ["STATE_WORDS", "Words", "days_words", "make_templates", "state_words"]

_HERE = Path(__file__).parent
_SOON_DAYS = 7
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_AGES = ((86_400, "day"), (3600, "hour"), (60, "minute"))


class Words(NamedTuple):
    """How something is said: a word, its tone, and what it means."""

    word: str
    tone: str
    meaning: str = ""


STATE_WORDS = {name: Words(*state[:3]) for name, state in REQUEST_STATES.items()}
"""Each state of a request in words, in the order of its life."""


def state_words(state: str) -> Words:
    """Return a state in words; one that this version does not know is its own word."""
    return STATE_WORDS.get(state, Words(state.replace("_", " "), "neutral"))


def days_words(days_left: int) -> Words:
    """Return the days left against a legal clock; below zero it is late."""
    if days_left < 0:
        return Words(f"{_counted(-days_left, 'day')} late", "bad")
    if days_left == 0:
        return Words("due today", "bad")
    tone = "warn" if days_left <= _SOON_DAYS else "neutral"
    return Words(f"{_counted(days_left, 'day')} left", tone)


def make_templates() -> Jinja2Templates:
    """Return the templates; every value is escaped, and one that is missing is an error."""
    env = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        day=_day,
        moment=_moment,
        ago=_ago,
        iso=_iso,
        number=_number,
        counted=_counted,
        bytes=_bytes,
        pair=_pair,
    )
    env.globals.update(
        asset=_Assets(),
        state_words=state_words,
        days_words=days_words,
        address=_address,
        ground_options=_ground_options,
        ground_choices=_ground_choices,
    )
    env.globals["ui"] = env.get_template("macros.html").module
    return Jinja2Templates(env=env)


class _Assets:
    """Addresses of static files that change with their content, so that browsers may keep them."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._known:
            content = (_HERE / "static" / name).read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:12]
            self._known[name] = f"/static/{name}?v={digest}"
        return self._known[name]


def _address(path: str, *parts: dict[str, Any], **changes: Any) -> str:
    """Return a path with a query of what is not empty; later values win, lists repeat a name."""
    values: dict[str, Any] = {}
    for part in (*parts, changes):
        values |= part
    query = urlencode({name: value for name, value in values.items() if value}, doseq=True)
    return f"{path}?{query}" if query else path


def _pair(text: str) -> tuple[str, str]:
    """Return an option of a select that is its own label."""
    return text, text


def _ground_options(grounds: Any) -> list[tuple[str, str]]:
    """Return grounds as options of a select: what they say, then their code."""
    return [(one.code, f"{one.words[:1].upper()}{one.words[1:]} ({one.code})") for one in grounds]


def _ground_choices(grounds: Any, law: str = "") -> list[tuple[str, str]]:
    """Return options of which none is chosen; with `law`, without those of other laws."""
    other = tuple(f"{one}." for one in ("gdpr", "ccpa") if law and one != law)
    fit = [one for one in grounds if not one.code.startswith(other)]
    return [("", "Choose a ground…"), *_ground_options(fit)]


def _time(value: Any) -> datetime | date:
    """Return a time: seconds since 1970, ISO text, date and datetime are understood."""
    if isinstance(value, int):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, str):
        return datetime.fromisoformat(value) if "T" in value else date.fromisoformat(value)
    found: datetime | date = value
    return found


def _iso(value: Any) -> str:
    found = _time(value)
    return found.isoformat(timespec="seconds") if isinstance(found, datetime) else found.isoformat()


def _day(value: Any) -> str:
    """Return "15 Nov 2026" for a day of the calendar, "15 Nov 2026 UTC" for that of a moment."""
    found = _time(value)
    if isinstance(found, datetime):
        return f"{_date(found.astimezone(UTC))} UTC"
    return _date(found)


def _date(found: date) -> str:
    return f"{found.day} {_MONTHS[found.month - 1]} {found.year}"


def _moment(value: Any) -> str:
    """Return "15 Nov 2026, 14:03 UTC"."""
    found = _time(value)
    if not isinstance(found, datetime):
        return _date(found)
    found = found.astimezone(UTC)
    return f"{_date(found)}, {found:%H:%M} UTC"


def _ago(value: Any, now: int) -> str:
    """Return "3 hours ago", or "in 3 hours"."""
    found = _time(value)
    if not isinstance(found, datetime):
        found = datetime(found.year, found.month, found.day, tzinfo=UTC)
    seconds = now - int(found.timestamp())
    for length, word in _AGES:
        if abs(seconds) >= length:
            said = _counted(abs(seconds) // length, word)
            return f"{said} ago" if seconds > 0 else f"in {said}"
    return "just now"


def _number(value: float) -> str:
    """Return a whole number with thousands separated, or another with four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _counted(number: int, one: str, many: str = "") -> str:
    """Return "1 day" or "2 days"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _bytes(size: float) -> str:
    """Return "3.4 MiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
