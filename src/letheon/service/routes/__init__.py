"""The HTTP API, one file per resource."""

from fastapi import APIRouter

from letheon.service.routes import (
    bundles,
    certificates,
    filing,
    log,
    opendsr,
    receipts,
    requests,
    residue,
    uploads,
)

_RESOURCES = (
    bundles,
    certificates,
    filing,
    log,
    opendsr,
    receipts,
    requests,
    residue,
    uploads,
)
ROUTERS: tuple[APIRouter, ...] = tuple(resource.router for resource in _RESOURCES)
