"""What a call of the desk has at hand."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from letheon.ledger import Ledger
from letheon.service.guards import Limiter
from letheon.ledger.db.tokens import Sessions
from letheon.service.settings import ServiceSettings
from letheon.ledger.db.tokens import Tokens

__all__ = ["Context", "context"]


@dataclass(frozen=True)
class Context:
    """The desk of one ledger.

    Attributes
    ----------
    ledger : Ledger
        What it is about.
    settings : ServiceSettings
        What its operator decided.
    clock : callable
        Seconds since 1970.
    tokens, sessions, limiter
        Who may come in, and how often.
    templates : Jinja2Templates
        Of the pages.
    is_secure : bool
        Whether browsers reach it by HTTPS, so that cookies may insist on it.
    is_demo : bool
        Whether it is the filled example.
    has_worker : callable
        Whether a worker runs beside the server; None where none should.
    stopping : Event
        Set when the server was asked to stop; what it computes is ended then.
    """

    ledger: Ledger
    settings: ServiceSettings
    clock: Callable[[], int]
    tokens: Tokens
    sessions: Sessions
    limiter: Limiter
    templates: Any
    is_secure: bool = False
    is_demo: bool = False
    has_worker: Callable[[], bool] | None = None
    stopping: threading.Event = field(default_factory=threading.Event)


def context(request: Request) -> Context:
    """Return the desk that a call is for."""
    found: Context = request.app.state.context
    return found
