"""The erasure desk: an HTTP API and web pages for a ledger.

`create_app` returns the desk as an ASGI application. `serve` runs this application together with a
worker, as the command ``letheon serve`` does. `ROLES` and `SCOPES` list the roles and scopes of
tokens.
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
