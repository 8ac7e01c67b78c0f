"""Who may call what: the table that the matrix is checked against, and how a cell is tried.

Every route has a row here; a route without one fails. The right column is written by hand: it is
what was decided, not what the code says.
"""

from collections.abc import Iterable
from typing import Any

ANY_TOKEN, PUBLIC = "any principal", "public"
# Things of the whole ledger: a token that is bound to a tenant is refused.
LEDGER_WIDE = frozenset(
    {
        "GET /api/v1/chain",
        "GET /api/v1/checkpoints/latest",
        "GET /api/v1/log/inclusion",
        "GET /api/v1/log/consistency",
        "GET /api/v1/bundle",
        "GET /metrics",
    }
)

_READ = "requests:read"
_FILE = "requests:file"
_HANDLE = "requests:handle"

API: dict[str, str] = {
    "GET /healthz": PUBLIC,
    "GET /readyz": PUBLIC,
    "GET /metrics": "metrics:read",
    "GET /api/v1/me": ANY_TOKEN,
    "GET /api/v1/tokens": "tokens:manage",
    "POST /api/v1/tokens": "tokens:manage",
    "DELETE /api/v1/tokens/{token_id}": "tokens:manage",
    "POST /api/v1/receipts/check": PUBLIC,
    "POST /api/v1/receipts/sealed": PUBLIC,
    "POST /api/v1/requests/{request_id}/receipt-code": _HANDLE,
    "GET /opendsr/v2/discovery": _FILE,
    "GET /opendsr/v2/certificate": _FILE,
    "POST /opendsr/v2/requests": _FILE,
    "GET /opendsr/v2/requests/{subject_request_id}": _FILE,
    "DELETE /opendsr/v2/requests/{subject_request_id}": _FILE,
    "GET /api/v1/requests": _READ,
    "GET /api/v1/requests.csv": _READ,
    "GET /api/v1/summary": _READ,
    "GET /api/v1/grounds": _READ,
    "POST /api/v1/requests": _FILE,
    "POST /api/v1/requests/bulk": _FILE,
    "POST /api/v1/requests/upload": _FILE,
    "POST /api/v1/requests/actions": _READ,
    "GET /api/v1/requests/{request_id}": _READ,
    "GET /api/v1/requests/{request_id}/timeline": _READ,
    "POST /api/v1/requests/{request_id}/hold": _HANDLE,
    "POST /api/v1/requests/{request_id}/reject": f"{_HANDLE} requests:approve",
    "POST /api/v1/requests/{request_id}/tell": _HANDLE,
    "POST /api/v1/requests/{request_id}/answer": _HANDLE,
    "POST /api/v1/requests/{request_id}/verify": _HANDLE,
    "POST /api/v1/requests/{request_id}/await-identity": _HANDLE,
    "POST /api/v1/requests/{request_id}/approve": "requests:approve",
    "POST /api/v1/requests/{request_id}/release": _HANDLE,
    "POST /api/v1/requests/{request_id}/extend": _HANDLE,
    "POST /api/v1/requests/{request_id}/retry": _HANDLE,
    "POST /api/v1/requests/{request_id}/cancel": _HANDLE,
    "GET /api/v1/models": "models:read",
    "POST /api/v1/models": "models:write",
    "POST /api/v1/models/example": "models:write",
    "GET /api/v1/models/{model}": "models:read",
    "GET /api/v1/models/{model}/versions": "monitor:read",
    "GET /api/v1/models/{model}/versions/{number}": "monitor:read",
    "GET /api/v1/models/{model}/compare": "monitor:read",
    "GET /api/v1/models/{model}/history": "monitor:read",
    "GET /api/v1/models/{model}/plan": "batches:read",
    "POST /api/v1/models/{model}/what-if": "batches:run",
    "POST /api/v1/models/{model}/apply": "batches:run",
    "POST /api/v1/models/{model}/retrain": "batches:run",
    "GET /api/v1/batches": "batches:read",
    "GET /api/v1/batches/{batch_id}": "batches:read",
    "GET /api/v1/certificates": "certificates:read",
    "GET /api/v1/certificates/{number}": "certificates:read",
    "GET /api/v1/certificates/{number}/envelope": "certificates:read",
    "GET /api/v1/certificates/{number}/proof": "certificates:read",
    "GET /api/v1/certificates/{number}/purge": "certificates:read",
    "GET /api/v1/certificates/{number}/verification": "certificates:read",
    "GET /api/v1/chain": "certificates:read",
    "GET /api/v1/checkpoints/latest": "certificates:read",
    "GET /api/v1/log/inclusion": "certificates:read",
    "GET /api/v1/log/consistency": "certificates:read",
    "GET /api/v1/bundle": "certificates:read",
    "GET /api/v1/residue": "certificates:read",
    "GET /api/v1/keys": "certificates:read",
    "GET /api/v1/jobs": "batches:read audits:read",
    "GET /api/v1/jobs/{job_id}": "batches:read audits:read",
    "POST /api/v1/audits": "audits:run",
    "GET /api/v1/audits": "audits:read",
    "GET /api/v1/audits/{audit_id}": "audits:read",
    "GET /api/v1/audits/{audit_id}/report": "audits:read",
    "GET /api/v1/webhooks": "webhooks:manage",
    "POST /api/v1/webhooks": "webhooks:manage",
    "GET /api/v1/webhooks/{webhook_id}": "webhooks:manage",
    "DELETE /api/v1/webhooks/{webhook_id}": "webhooks:manage",
    "POST /api/v1/webhooks/{webhook_id}/test": "webhooks:manage",
    "GET /api/v1/webhooks/{webhook_id}/deliveries": "webhooks:manage",
}

PAGES: dict[str, str] = {
    "GET /": ANY_TOKEN,
    "GET /login": PUBLIC,
    "POST /login": PUBLIC,
    "POST /logout": ANY_TOKEN,
    "GET /requests": _READ,
    "POST /requests/actions": _READ,
    "GET /requests/new": _FILE,
    "POST /requests/new": _FILE,
    "GET /requests/upload": _FILE,
    "POST /requests/upload": _FILE,
    "GET /requests/{request_id}": _READ,
    "POST /requests/{request_id}": _READ,
    "POST /requests/{request_id}/receipt-code": _HANDLE,
    "GET /tokens": "tokens:manage",
    "POST /tokens": "tokens:manage",
    "POST /tokens/{token_id}/revoke": "tokens:manage",
    "GET /webhooks": "webhooks:manage",
    "POST /webhooks": "webhooks:manage",
    "GET /webhooks/{webhook_id}": "webhooks:manage",
    "POST /webhooks/{webhook_id}/test": "webhooks:manage",
    "POST /webhooks/{webhook_id}/delete": "webhooks:manage",
    "GET /models": "models:read",
    "GET /models/new": "models:write",
    "POST /models/new": "models:write",
    "POST /models/example": "models:write",
    "GET /models/{model}": "models:read",
    "GET /models/{model}/compare": "monitor:read",
    "GET /models/{model}/plan": "batches:read",
    "POST /models/{model}/plan": "batches:run",
    "GET /certificates": "certificates:read",
    "GET /certificates/{number}": "certificates:read",
    "GET /audits": "audits:read",
    "POST /audits": "audits:run",
    "GET /audits/{audit_id}": "audits:read",
    "GET /residue": "certificates:read",
    "GET /receipt": PUBLIC,
    "POST /receipt": PUBLIC,
}

TABLE = API | PAGES


def names_of(routes: Iterable[Any]) -> set[str]:
    """Return the rows that routes need."""
    return {f"{method} {route.path}" for route in routes for method in route.methods}


def is_page(name: str) -> bool:
    return name in PAGES
