"""Requests in words: what happened to one, and what a legal ground says."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from letheon.ledger import LogEntry
from letheon.ledger.requests.states import NO_DATA_HELD, NOT_FULLY_SEARCHED

GROUND_WORDS = {
    "gdpr.art17.1.a": "the data are no longer needed",
    "gdpr.art17.1.b": "consent was withdrawn",
    "gdpr.art17.1.c": "the person objects",
    "gdpr.art17.1.d": "the data were processed unlawfully",
    "gdpr.art17.1.e": "a law demands the erasure",
    "gdpr.art17.1.f": "they are the data of a child",
    "gdpr.art11.2": "nobody can tell who the person is",
    "gdpr.art12.5": "manifestly unfounded or excessive",
    "gdpr.art12.6": "the identity was not confirmed",
    "gdpr.art17.3.a": "freedom of expression",
    "gdpr.art17.3.b": "a legal obligation to keep the data",
    "gdpr.art17.3.c": "public health",
    "gdpr.art17.3.d": "archives, research or statistics",
    "gdpr.art17.3.e": "legal claims",
    "gdpr.art18.1": "restriction instead of erasure",
    "ccpa.1798.105": "the right to delete",
    "ccpa.1798.105.d": "an exception to the right to delete",
    "ccpa.1798.145": "an exemption",
    "ccpa.7060": "the identity was not verified",
    "litigation-hold": "a dispute in court",
    "internal": "a decision of the house",
    NO_DATA_HELD: "the model holds no rows of these people",
}
"""Every ground that a request, a rejection or a hold may name."""

_STUCK_WORDS = {
    "no-model-on-the-rest": "no model can be trained on the rows that would remain, so trying "
    "again does not help; the manual of the ledger says what does",
    "budget-spent": "the budget of the method is spent; train the model afresh",
    "nobody-held": "the model holds none of the people any more",
    "residue-found": "something of an erased person is still in a store; `letheon doctor` names "
    "the file, remove it and try again",
}

_Details = Mapping[str, Any]


def stuck_words(reason: str) -> str:
    """Return why a request is stuck, and what helps; other codes are names of errors."""
    return _STUCK_WORDS.get(reason, "the computing failed; look what the worker said, then retry")


def sentence(entry: LogEntry) -> str:
    """Return what happened, in one sentence; codes and counts only.

    An event that this version has no words for is named by its code.
    """
    words = _WORDS.get(entry.kind)
    if words is None:
        return f"{entry.kind.replace('-', ' ').replace('_', ' ').capitalize()}."
    return words if isinstance(words, str) else words(entry.details)


def _received(details: _Details) -> str:
    people = ""
    if "people" in details:
        people = f", for {_count(details['people'], 'person', 'people')}"
    return f"Received{people}; due on {details.get('due')} ({_ground(details)})."


def _verified(details: _Details) -> str:
    if details.get("from") == "duplicate":
        return "The request before it was withdrawn; this one is large and needs an approval."
    return "The identity was verified; the rows are blocked from new training."


def _queued(details: _Details) -> str:
    return {
        "verified": "Queued for the next batch.",
        "on_hold": "The hold ended; queued again.",
        "duplicate": "The request before it was withdrawn; queued in its place.",
        "applying": "The batch was given up; queued again.",
    }.get(str(details.get("from")), "Queued again.")


def _duplicate(details: _Details) -> str:
    other = f"request {details['of']}" if "of" in details else "another request"
    return f"Waits for {other}, which erases these people."


def _batched(details: _Details) -> str:
    n_requests = details.get("requests")
    size = "" if n_requests is None else f" of {_count(n_requests, 'request', 'requests')}"
    return f"Sealed into a batch{size}."


def _on_hold(details: _Details) -> str:
    until = datetime.fromtimestamp(int(details.get("until", 0)), UTC).date()
    return f"Put on hold until {until}: {_ground(details)}."


def _closed(details: _Details) -> str:
    told = int(details.get("recipients", 0))
    also = f", and {_count(told, 'recipient', 'recipients')} told" if told else ""
    return f"The person was answered{also}; closed."


def _certificate(details: _Details) -> str:
    sequence = details.get("sequence")
    return f"Certificate {sequence} was signed." if sequence is not None else "A certificate."


def _purged(details: _Details) -> str:
    words = "Nothing that the ledger keeps holds them any more."
    is_open = details.get("reason") == NOT_FULLY_SEARCHED
    return f"{words} Some files of the stores were not searched." if is_open else words


def _ground(details: _Details) -> str:
    code = str(details.get("ground"))
    return GROUND_WORDS.get(code, code)


def _count(number: Any, one: str, many: str) -> str:
    return f"1 {one}" if number == 1 else f"{int(number):,} {many}"


_WORDS: dict[str, str | Callable[[_Details], str]] = {
    "received": _received,
    "identity-asked": "The person was asked for a proof of identity; the clock stands.",
    "verified": _verified,
    "approved": "Approved by a second person.",
    "queued": _queued,
    "duplicate": _duplicate,
    "waits-for": _duplicate,
    "sealed": _batched,
    "applying": "The batch that erases them began.",
    "published": "A model without them was published.",
    "applied": "Erased from the model that is served.",
    "certificate": _certificate,
    "certified": "A certificate covers it.",
    "purging": "What is left of them is being destroyed.",
    "purge": "The destruction of what was left was attested.",
    "purged": _purged,
    "closed": _closed,
    "rejected": lambda details: f"Rejected: {_ground(details)}.",
    "cancelled": "The request was withdrawn.",
    "on_hold": _on_hold,
    "retry_wait": "The batch failed; it is tried again after a pause.",
    "stuck": "Failed too often: somebody has to look, then retry. The clock goes on.",
    "abandoned": "The batch was given up.",
    "extended": lambda details: (
        f"Extended; now due on {details.get('due')}, and the person was told."
    ),
    "recipients-told": lambda details: (
        f"Told {_count(details.get('recipients', 0), 'recipient', 'recipients')} of the data."
    ),
    "receipt-code": "A new receipt code was made.",
}
