"""The state machine of requests: what each state means, what can be done, what may follow.

The same pairs of states lie in the database, where a trigger refuses every other change, by
whatever program. ``NEW`` stands before the first state of a request.
"""

from typing import NamedTuple

NO_DATA_HELD = "no-data-held"
"""Why the ledger rejects a verified request: the model holds no rows of these people."""

REQUEST_GROUNDS = {
    "gdpr": (
        "gdpr.art17.1.a",  # no longer needed
        "gdpr.art17.1.b",  # consent withdrawn
        "gdpr.art17.1.c",  # objection
        "gdpr.art17.1.d",  # processed unlawfully
        "gdpr.art17.1.e",  # a law demands it
        "gdpr.art17.1.f",  # a child's data
        "internal",
    ),
    "ccpa": ("ccpa.1798.105", "internal"),
}
"""Why people are to be erased, for each regime."""

REJECT_GROUNDS = (
    "gdpr.art11.2",  # the controller cannot tell who it is
    "gdpr.art12.5",  # manifestly unfounded or excessive
    "gdpr.art12.6",  # identity not confirmed
    "gdpr.art17.3.a",  # freedom of expression
    "gdpr.art17.3.b",  # legal obligation
    "gdpr.art17.3.c",  # public health
    "gdpr.art17.3.d",  # archives, research, statistics
    "gdpr.art17.3.e",  # legal claims
    "ccpa.1798.105.d",  # exceptions
    "ccpa.1798.145",  # exemptions
    "ccpa.7060",  # identity not verified
    "internal",
)
"""Why a request may be refused."""

HOLD_GROUNDS = (
    "gdpr.art17.3.b",
    "gdpr.art17.3.c",
    "gdpr.art17.3.d",
    "gdpr.art17.3.e",
    "gdpr.art18.1",  # restriction instead of erasure
    "ccpa.1798.105.d",
    "ccpa.1798.145",
    "litigation-hold",
)
"""Why a request may have to wait."""

NOT_FULLY_SEARCHED = "not-fully-searched"
"""Why a request is purged and yet not clean: files of the stores could not be searched."""


NEW = ""


class RequestState(NamedTuple):
    """One state of a request.

    Attributes
    ----------
    label : str
        As pages and tables show it.
    tone : {"good", "info", "neutral", "warn", "bad"}
        How it is coloured.
    sentence : str
        What it means.
    actions : tuple of str
        What can be done about a request in this state.
    successors : tuple of str
        States that may follow.
    """

    label: str
    tone: str
    sentence: str
    actions: tuple[str, ...]
    successors: tuple[str, ...]


_NOTES = ("extend", "tell")
_ENDS = ("reject", "cancel")
_ENDED = ("rejected", "cancelled")

REQUEST_STATES = {
    "received": RequestState(
        "Received",
        "warn",
        "It waits until the identity is verified.",
        actions=("verify", "await-identity", "extend", *_ENDS),
        successors=("verified", *_ENDED),
    ),
    "verified": RequestState(
        "To approve",
        "warn",
        "The identity is verified; a second person has to approve.",
        actions=("approve", *_NOTES, *_ENDS),
        successors=("queued", "duplicate", *_ENDED),
    ),
    "queued": RequestState(
        "Queued",
        "info",
        "It waits for the next batch.",
        actions=("hold", *_NOTES, *_ENDS),
        successors=("applying", "duplicate", *_ENDED, "on_hold"),
    ),
    "applying": RequestState(
        "Applying",
        "info",
        "A batch is erasing it now.",
        actions=_NOTES,
        successors=("applied", "queued", "retry_wait", "stuck"),
    ),
    "retry_wait": RequestState(
        "Will retry",
        "warn",
        "The batch failed and is tried again after a pause.",
        actions=("hold", "retry", *_NOTES, *_ENDS),
        successors=("queued", "stuck", *_ENDED, "on_hold"),
    ),
    "applied": RequestState(
        "Applied",
        "info",
        "The people have left the model; no certificate yet.",
        actions=_NOTES,
        successors=("certified",),
    ),
    "certified": RequestState(
        "Certified",
        "info",
        "A certificate covers it; the purge follows.",
        actions=_NOTES,
        successors=("purging",),
    ),
    "purging": RequestState(
        "Purging",
        "info",
        "What is left of the people is being destroyed.",
        actions=_NOTES,
        successors=("purged", "stuck"),
    ),
    "purged": RequestState(
        "Purged",
        "good",
        "What the ledger kept is destroyed; the person is still to be answered.",
        actions=("tell", "answer"),
        successors=("closed",),
    ),
    # A person who waits behind another request comes first when that one is withdrawn.
    "duplicate": RequestState(
        "Duplicate",
        "neutral",
        "Another request erases the same people.",
        actions=(*_NOTES, "answer", *_ENDS),
        successors=("queued", "verified", "closed", *_ENDED),
    ),
    "on_hold": RequestState(
        "On hold",
        "neutral",
        "A legal ground puts it off; its clock goes on.",
        actions=("release", *_NOTES, *_ENDS),
        successors=("queued", *_ENDED),
    ),
    # It ends only if nothing was published.
    "stuck": RequestState(
        "Stuck",
        "bad",
        "It failed too often: an operator has to look at it.",
        actions=("retry", *_NOTES, *_ENDS),
        successors=("queued", "purging", *_ENDED),
    ),
    "rejected": RequestState(
        "Rejected", "neutral", "It was refused on a legal ground.", actions=(), successors=()
    ),
    "cancelled": RequestState("Cancelled", "neutral", "It was withdrawn.", (), ()),
    "closed": RequestState("Closed", "good", "The person was answered.", (), ()),
}
"""The state machine of requests, in the order of their life."""

REFUSALS = {
    "verify": "its identity was verified",
    "await-identity": "nobody asks who it is now",
    "approve": "it waits for no approval",
    "hold": "it cannot become on_hold",
    "release": "it is not on hold",
    "retry": "there is nothing to retry",
    "extend": "it can be extended once, while it is open",
    "tell": "nobody is told of it now",
    "answer": "it cannot become closed",
    "reject": "it cannot become rejected",
    "cancel": "it cannot become cancelled",
}
"""Why an action is refused in a state whose `actions` do not name it."""

# A request that comes verified passes the states in between, but for an approval that it needs.
_FIRST = ("received", "verified", "queued")

ALLOWED = frozenset(
    (before, after)
    for before, follow in (
        (NEW, _FIRST),
        *((name, state.successors) for name, state in REQUEST_STATES.items()),
    )
    for after in follow
)
STATES = tuple(REQUEST_STATES)
PUBLISHED = ("applied", "certified", "purging", "purged", "closed")
FINISHED = ("purged", "closed")
FINAL = ("rejected", "cancelled", "closed")
OPEN = tuple(state for state in STATES if state not in (*FINISHED, *FINAL))
