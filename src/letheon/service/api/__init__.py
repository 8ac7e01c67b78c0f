"""The HTTP API, one file per subject."""

from fastapi import APIRouter

from letheon.service.api.audits import router as audits
from letheon.service.api.batches import router as batches
from letheon.service.api.jobs import router as jobs
from letheon.service.api.keys import router as keys
from letheon.service.api.me import router as me
from letheon.service.api.models import router as models
from letheon.service.api.monitor import router as monitor
from letheon.service.api.plans import router as plans
from letheon.service.api.tokens import router as tokens
from letheon.service.api.versions import router as versions
from letheon.service.api.webhooks import router as webhooks
from letheon.service.routes import ROUTERS as ROUTES

__all__ = ["ROUTERS"]

ROUTERS: tuple[APIRouter, ...] = (
    *ROUTES,
    plans,
    jobs,
    audits,
    me,
    tokens,
    webhooks,
    batches,
    keys,
    models,
    monitor,
    versions,
)
