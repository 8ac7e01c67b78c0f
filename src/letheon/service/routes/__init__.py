"""The HTTP API, one file per resource."""

from importlib import import_module

from fastapi import APIRouter

_RESOURCES = """
    audits batches bundles certificates filing jobs log models opendsr receipts registration
    requests residue server tokens uploads versions webhooks
"""
ROUTERS: tuple[APIRouter, ...] = tuple(
    import_module(f"{__name__}.{name}").router for name in _RESOURCES.split()
)
