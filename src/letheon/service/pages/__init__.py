"""The pages, one file per subject."""

from importlib import import_module

from fastapi import APIRouter

# The path of a new request stands before that of any request; so with models.
_SUBJECTS = "account audits certificates filing home login new_model models requests"
ROUTERS: tuple[APIRouter, ...] = tuple(
    import_module(f"{__name__}.{name}").router for name in _SUBJECTS.split()
)
