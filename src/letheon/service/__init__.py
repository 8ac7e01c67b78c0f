"""The erasure desk: an HTTP API and pages over a ledger.

`create_app` gives an ASGI application, `serve` runs it with a worker beside; the command
``letheon serve`` does both. Roles and scopes stand in `ROLES` and `SCOPES`.
"""

from letheon.ledger.db.tokens import ROLES, SCOPES, Token, Tokens
from letheon.service.app import create_app
from letheon.service.server import Binding, serve
from letheon.service.settings import ServiceSettings

__all__ = [
    "ROLES",
    "SCOPES",
    "Binding",
    "ServiceSettings",
    "Token",
    "Tokens",
    "create_app",
    "serve",
]
