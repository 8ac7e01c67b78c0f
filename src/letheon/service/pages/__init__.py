"""The pages, one file per subject."""

from letheon.service.pages import account, certificates, models, requests

ROUTERS = (account.router, certificates.router, models.router, requests.router)
