"""States of a request, and which may follow which.

The same pairs lie in the database, where a trigger refuses every other change, by whatever
program. ``NEW`` stands before the first state of a request.
"""

__all__ = [
    "ALLOWED",
    "FINAL",
    "FINISHED",
    "NEW",
    "OPEN",
    "PUBLISHED",
    "STATES",
    "is_allowed",
]

NEW = ""

_AFTER = {
    # A request that comes verified passes the states in between, but for an approval that it needs.
    NEW: ("received", "verified", "queued"),
    "received": ("verified", "rejected", "cancelled"),
    "verified": ("queued", "duplicate", "rejected", "cancelled"),
    "queued": ("applying", "duplicate", "rejected", "cancelled", "on_hold"),
    "applying": ("applied", "queued", "retry_wait", "stuck"),
    "retry_wait": ("queued", "stuck", "rejected", "cancelled", "on_hold"),
    "applied": ("certified",),
    "certified": ("purging",),
    "purging": ("purged", "stuck"),
    "purged": ("closed",),
    # A person who waits behind another request comes first when that one is withdrawn.
    "duplicate": ("queued", "verified", "closed", "rejected", "cancelled"),
    "on_hold": ("queued", "rejected", "cancelled"),
    "stuck": ("queued", "purging", "rejected", "cancelled"),  # the last two: if not published
    "rejected": (),
    "cancelled": (),
    "closed": (),
}

ALLOWED = frozenset((before, after) for before, follow in _AFTER.items() for after in follow)
STATES = tuple(state for state in _AFTER if state != NEW)
PUBLISHED = ("applied", "certified", "purging", "purged", "closed")
FINISHED = ("purged", "closed")
FINAL = ("rejected", "cancelled", "closed")
OPEN = tuple(state for state in STATES if state not in (*FINISHED, *FINAL))


def is_allowed(before: str, after: str) -> bool:
    """Whether a request may go from one state to the other."""
    return (before, after) in ALLOWED
