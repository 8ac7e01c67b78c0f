"""The HTTP API, one file per resource."""

from fastapi import APIRouter

from letheon.service.routes import (
    audits,
    batches,
    bundles,
    certificates,
    filing,
    jobs,
    log,
    models,
    opendsr,
    receipts,
    registration,
    requests,
    residue,
    server,
    tokens,
    uploads,
    versions,
    webhooks,
)

_RESOURCES = (
    audits,
    batches,
    bundles,
    certificates,
    filing,
    jobs,
    log,
    models,
    opendsr,
    receipts,
    registration,
    requests,
    residue,
    server,
    tokens,
    uploads,
    versions,
    webhooks,
)
ROUTERS: tuple[APIRouter, ...] = tuple(resource.router for resource in _RESOURCES)
