"""HTML pages of the desk, one module per subject."""

from importlib import import_module

from fastapi import APIRouter

_SUBJECTS = "account certificates models requests"
ROUTERS: tuple[APIRouter, ...] = tuple(
    import_module(f"{__name__}.{name}").router for name in _SUBJECTS.split()
)
