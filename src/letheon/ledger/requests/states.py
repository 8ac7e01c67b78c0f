"""The state machine of requests: label, meaning, actions and successors of each state.

The database stores the same pairs of (state, next state), and a trigger rejects every other change.
``NEW`` is the state before a request is recorded.
"""

from typing import NamedTuple

NO_DATA_HELD = "no-data-held"
"""Reason code of requests that the ledger rejects because the model has no rows of their people."""

REQUEST_GROUNDS = {
    "gdpr": (
        "gdpr.art17.1.a",  # no longer needed
        "gdpr.art17.1.b",  # consent withdrawn
        "gdpr.art17.1.c",  # objection
        "gdpr.art17.1.d",  # processed unlawfully
        "gdpr.art17.1.e",  # legal obligation to erase
        "gdpr.art17.1.f",  # a child's data
        "internal",
    ),
    "ccpa": ("ccpa.1798.105", "internal"),
}
"""Codes of the legal grounds for an erasure request, by law."""

REJECT_GROUNDS = (
    "gdpr.art11.2",  # the controller cannot identify the person
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
"""Codes of the legal grounds for a rejection."""

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
"""Codes of the legal grounds for a hold."""

NOT_FULLY_SEARCHED = "not-fully-searched"
"""Reason code of purged requests if some files of the stores could not be searched."""


NEW = ""


class RequestState(NamedTuple):
    """One state of a request.

    Attributes
    ----------
    label : str
        Name of the state in pages, tables, exports and letters. Log, database and API use the code.
    tone : {"good", "info", "neutral", "warn", "bad"}
        Colour of the label.
    sentence : str
        Meaning of the state, as a sentence for pages.
    actions : tuple of str
        Actions that are possible in this state.
    successors : tuple of str
        Codes of the states that may follow.

    Examples
    --------
    >>> from letheon.ledger import REQUEST_STATES
    >>> REQUEST_STATES["received"].label
    'Received'
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
        "Waiting for the identity to be verified.",
        actions=("verify", "await-identity", "extend", *_ENDS),
        successors=("verified", *_ENDED),
    ),
    "verified": RequestState(
        "Verified",
        "warn",
        "The identity is verified; a second person has to approve the request.",
        actions=("approve", *_NOTES, *_ENDS),
        successors=("queued", "duplicate", *_ENDED),
    ),
    "queued": RequestState(
        "Queued",
        "info",
        "Waiting for the next batch.",
        actions=("hold", *_NOTES, *_ENDS),
        successors=("applying", "duplicate", *_ENDED, "on_hold"),
    ),
    "applying": RequestState(
        "Applying",
        "info",
        "A batch is removing the rows from the model now.",
        actions=_NOTES,
        successors=("applied", "queued", "retry_wait", "stuck"),
    ),
    "retry_wait": RequestState(
        "Will retry",
        "warn",
        "The batch failed and will be retried after a pause.",
        actions=("hold", "retry", *_NOTES, *_ENDS),
        successors=("queued", "stuck", *_ENDED, "on_hold"),
    ),
    "applied": RequestState(
        "Applied",
        "info",
        "The rows were removed from the model; the certificate has not been issued yet.",
        actions=_NOTES,
        successors=("certified",),
    ),
    "certified": RequestState(
        "Certificate issued",
        "info",
        "A certificate covers the request; the purge follows.",
        actions=_NOTES,
        successors=("purging",),
    ),
    "purging": RequestState(
        "Purging",
        "info",
        "The remaining copies of the data are being destroyed.",
        actions=_NOTES,
        successors=("purged", "stuck"),
    ),
    "purged": RequestState(
        "Purged",
        "good",
        "The ledger has destroyed all its copies of the data; the person must still be answered.",
        actions=("tell", "answer"),
        successors=("closed",),
    ),
    # When the first request is withdrawn, its duplicate takes its place.
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
        "Postponed on a legal ground; the deadline does not change.",
        actions=("release", *_NOTES, *_ENDS),
        successors=("queued", *_ENDED),
    ),
    # It can be ended only if no model version was published for it.
    "stuck": RequestState(
        "Needs attention",
        "bad",
        "Processing stopped after a failure; an operator has to act.",
        actions=("retry", *_NOTES, *_ENDS),
        successors=("queued", "purging", *_ENDED),
    ),
    "rejected": RequestState(
        "Rejected",
        "neutral",
        "The request was refused on a legal ground.",
        actions=(),
        successors=(),
    ),
    "cancelled": RequestState("Cancelled", "neutral", "The request was withdrawn.", (), ()),
    "closed": RequestState(
        "Answered", "good", "The person was answered; the request is complete.", (), ()
    ),
}
"""The states of a request, in the usual order."""

REFUSALS = {
    "verify": "the identity is already verified",
    "await-identity": "proof of identity can be requested only before the identity is verified",
    "approve": "only a verified request can be approved",
    "hold": "only a queued request, or a request that will be retried, can be put on hold",
    "release": "it is not on hold",
    "retry": "only a failed request can be retried",
    "extend": "the deadline can be extended once, while the request is open",
    "tell": "recipients can be recorded only after verification and before the answer",
    "answer": "only a purged request or a duplicate can be answered",
    "reject": "it can be rejected only before it is applied",
    "cancel": "it can be withdrawn only before it is applied",
}
"""For each action, the reason to show when the state of a request does not allow the action."""

# A request that is filed as verified skips states, but not an approval that it needs.
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
