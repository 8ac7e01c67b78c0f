"""The pages, one file per subject."""

from fastapi import APIRouter

from letheon.service.pages.account import router as account
from letheon.service.pages.audits import router as audits
from letheon.service.pages.certificates import router as certificates
from letheon.service.pages.home import router as home
from letheon.service.pages.login import router as login
from letheon.service.pages.models import router as models
from letheon.service.pages.new_model import router as new_model
from letheon.service.pages.new_request import router as new_request
from letheon.service.pages.receipt import router as receipt
from letheon.service.pages.request import router as request
from letheon.service.pages.requests import router as requests
from letheon.service.pages.residue import router as residue
from letheon.service.pages.upload import router as upload

__all__ = ["ROUTERS"]

# The path of a new request stands before that of any request; so with models.
ROUTERS: tuple[APIRouter, ...] = (
    home,
    login,
    requests,
    new_request,
    upload,
    request,
    new_model,
    models,
    certificates,
    audits,
    residue,
    receipt,
    account,
)
