"""The HTTP API, one file per resource."""

from importlib import import_module

from fastapi import APIRouter

_RESOURCES = "account certificates evidence filing jobs models opendsr registration requests"
ROUTERS: tuple[APIRouter, ...] = tuple(
    value
    for name in _RESOURCES.split()
    for value in vars(import_module(f"{__name__}.{name}")).values()
    if isinstance(value, APIRouter)
)
