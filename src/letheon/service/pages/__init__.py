"""The pages, one file per subject."""

from fastapi import APIRouter

from letheon.service.pages import (
    account,
    audits,
    certificates,
    filing,
    home,
    login,
    models,
    new_model,
    requests,
)

# The path of a new request stands before that of any request; so with models.
_SUBJECTS = (
    account,
    audits,
    certificates,
    filing,
    home,
    login,
    new_model,
    models,
    requests,
)
ROUTERS: tuple[APIRouter, ...] = tuple(subject.router for subject in _SUBJECTS)
