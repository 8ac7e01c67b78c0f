"""Who may do what: scopes, and the roles that are named sets of them."""

from collections.abc import Iterable

__all__ = ["PAGE_OF_ROLE", "ROLES", "SCOPES", "narrowed"]

SCOPES = {
    "requests:read": "see requests, their states and timelines",
    "requests:file": "file requests",
    "requests:vouch": "file requests of people whose identity was verified elsewhere",
    "requests:handle": "verify, hold, extend, retry, cancel, answer requests",
    "requests:approve": "approve or reject requests",
    "models:read": "see models, versions and what they guarantee",
    "models:write": "register models",
    "batches:read": "see batches, plans and their jobs",
    "batches:run": "apply a batch now, retrain, compare methods",
    "certificates:read": "see and download certificates, proofs and attestations",
    "bundles:read": "download the auditor's bundle, which holds personal data",
    "audits:read": "see audits",
    "audits:run": "start audits",
    "monitor:read": "see measures, proxies and budgets over time",
    "webhooks:manage": "make and remove webhooks",
    "tokens:manage": "make and revoke tokens",
    "metrics:read": "scrape the metrics of the server",
}
"""Every permission, with what it permits."""

_SEES = ("requests:read", "models:read", "batches:read", "certificates:read", "monitor:read")

ROLES: dict[str, frozenset[str]] = {
    "requester": frozenset({"requests:read", "requests:file", "models:read"}),
    "operator": frozenset(
        {
            *_SEES,
            "requests:file",
            "requests:vouch",
            "requests:handle",
            "models:write",
            "batches:run",
            "audits:read",
        }
    ),
    "approver": frozenset({*_SEES, "requests:approve"}),
    "auditor": frozenset({*_SEES, "bundles:read", "audits:read", "audits:run"}),
    "admin": frozenset(SCOPES),
}
"""What each role may do at most. A requester sees only the requests that it filed."""

PAGE_OF_ROLE = {
    "requester": "/requests",
    "operator": "/",
    "approver": "/",
    "auditor": "/certificates",
    "admin": "/",
}


def narrowed(role: str, scopes: Iterable[str] | None) -> frozenset[str]:
    """Return the scopes of a token: those of its role, or fewer.

    Raises
    ------
    ValueError
        The role or a scope is unknown, or a scope is not the role's.
    """
    if role not in ROLES:
        raise ValueError(f"there is no role {role!r}; expected one of {', '.join(ROLES)}")
    if scopes is None:
        return ROLES[role]
    wanted = frozenset(scopes)
    beyond = sorted(wanted - ROLES[role])
    if beyond:
        raise ValueError(
            f"role {role} does not have {', '.join(beyond)}; expected some of "
            f"{', '.join(sorted(ROLES[role]))}"
        )
    if not wanted:
        raise ValueError("a token without a scope can do nothing; name one or leave scopes out")
    return wanted
