"""The HTTP API, one file per subject."""

from fastapi import APIRouter

from letheon.service.api.audits import router as audits
from letheon.service.api.batches import router as batches
from letheon.service.api.bundles import router as bundles
from letheon.service.api.certificates import router as certificates
from letheon.service.api.jobs import router as jobs
from letheon.service.api.keys import router as keys
from letheon.service.api.me import router as me
from letheon.service.api.models import router as models
from letheon.service.api.monitor import router as monitor
from letheon.service.api.opendsr import router as opendsr
from letheon.service.api.plans import router as plans
from letheon.service.api.proofs import router as proofs
from letheon.service.api.receipts import router as receipts
from letheon.service.api.request_actions import router as request_actions
from letheon.service.api.requests import router as requests
from letheon.service.api.residue import router as residue
from letheon.service.api.tokens import router as tokens
from letheon.service.api.uploads import router as uploads
from letheon.service.api.versions import router as versions
from letheon.service.api.webhooks import router as webhooks

__all__ = ["ROUTERS"]

ROUTERS: tuple[APIRouter, ...] = (
    plans,
    jobs,
    audits,
    me,
    receipts,
    opendsr,
    requests,
    request_actions,
    tokens,
    uploads,
    webhooks,
    batches,
    bundles,
    certificates,
    keys,
    models,
    monitor,
    proofs,
    residue,
    versions,
)
