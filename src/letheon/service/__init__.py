"""The erasure desk: an HTTP API and pages over a ledger.

`create_app` gives an ASGI application, `serve` runs it with a worker beside; the command
``letheon serve`` does both. Roles and scopes stand in `ROLES` and `SCOPES`.
"""

from letheon.service._app import create_app
from letheon.service._roles import ROLES, SCOPES
from letheon.service._serve import Binding, serve
from letheon.service._settings import ServiceSettings
from letheon.service._tokens import Token, Tokens

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
