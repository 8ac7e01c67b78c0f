"""Codes of law that a request may name. There is no free text in a ledger."""

__all__ = [
    "HOLD_GROUNDS",
    "NOT_FULLY_SEARCHED",
    "NO_DATA_HELD",
    "REJECT_GROUNDS",
    "REQUEST_GROUNDS",
    "require_ground",
]

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


def require_ground(ground: object, known: tuple[str, ...]) -> str:
    """Return the ground, if it is on the list; anything else may hold a name, and is refused."""
    if not isinstance(ground, str) or ground not in known:
        raise ValueError(f"that ground is no registered code; expected one of {', '.join(known)}")
    return ground
