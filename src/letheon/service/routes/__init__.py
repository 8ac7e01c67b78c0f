"""The HTTP API, one file per subject."""

from fastapi import APIRouter

from letheon.service.api import (
    bundles,
    certificates,
    opendsr,
    proofs,
    receipts,
    request_actions,
    requests,
    residue,
    uploads,
)
from letheon.service.routes import (
    audits,
    batches,
    jobs,
    models,
    registration,
    server,
    tokens,
    versions,
    webhooks,
)

__all__ = ["ROUTERS"]

ROUTERS: tuple[APIRouter, ...] = (
    audits.router,
    batches.router,
    bundles.router,
    certificates.router,
    jobs.router,
    models.router,
    opendsr.router,
    proofs.router,
    receipts.router,
    registration.router,
    request_actions.router,
    requests.router,
    residue.router,
    server.router,
    tokens.router,
    uploads.router,
    versions.router,
    webhooks.router,
)
