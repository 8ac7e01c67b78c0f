"""Erasure ledger: durable requests, signed certificates of erasure, and purge.

`Ledger` stores models, the erasure requests for them, and a record of how each request was handled.
Each batch of requests produces a certificate: an in-toto statement in a DSSE envelope, signed with
Ed25519. A third party verifies it with the exported files and a public key, using `letheon.audit`
or the single file ``letheon/verifier.py``.
"""

from letheon.ledger.certificates.certificates import Batches, Certificates, Receipts
from letheon.ledger.db.log import Log
from letheon.ledger.doctor import Finding
from letheon.ledger.ledger import Keys, Ledger
from letheon.ledger.models.examine import ModelFiles
from letheon.ledger.models.models import Models
from letheon.ledger.models.versions import Reader
from letheon.ledger.purge.stores import Stores
from letheon.ledger.requests.deadlines import Calendar
from letheon.ledger.requests.requests import LedgerRequests
from letheon.ledger.requests.states import REQUEST_STATES, RequestState
from letheon.ledger.schemas import (
    Batch,
    Certificate,
    Checkpoint,
    Coverage,
    Key,
    LogConsistency,
    LogEntry,
    LogInclusion,
    Model,
    Page,
    Purge,
    Request,
    RequestCounts,
    Storage,
    Store,
    Version,
    Watch,
)
from letheon.ledger.settings import Settings
from letheon.ledger.worker.policy import Decision, Policy
from letheon.ledger.worker.recover import Adoption
from letheon.ledger.worker.worker import BatchPlan, Step

__all__ = [
    "REQUEST_STATES",
    "Adoption",
    "Batch",
    "BatchPlan",
    "Batches",
    "Calendar",
    "Certificate",
    "Certificates",
    "Checkpoint",
    "Coverage",
    "Decision",
    "Finding",
    "Key",
    "Keys",
    "Ledger",
    "LedgerRequests",
    "Log",
    "LogConsistency",
    "LogEntry",
    "LogInclusion",
    "Model",
    "ModelFiles",
    "Models",
    "Page",
    "Policy",
    "Purge",
    "Reader",
    "Receipts",
    "Request",
    "RequestCounts",
    "RequestState",
    "Settings",
    "Step",
    "Storage",
    "Store",
    "Stores",
    "Version",
    "Watch",
]
