"""The erasure ledger: durable requests, signed certificates of unlearning, purge.

`Ledger` keeps models, the requests to be erased from them, and what was done about these: each
batch gives a certificate (an in-toto statement in a DSSE envelope, signed with Ed25519) that
a stranger verifies with files and a public key alone, by `letheon.audit` or by the one file
``letheon/verifier.py``.
"""

from letheon.ledger.certificates.listing import CertificateInfo, CertificatePage
from letheon.ledger.certificates.receipts import Coverage
from letheon.ledger.db.log import LogConsistency, LogEntry, LogInclusion, LogPage
from letheon.ledger.doctor import Finding
from letheon.ledger.ledger import Ledger
from letheon.ledger.models.examine import ModelFiles
from letheon.ledger.models.info import KeyInfo, ModelInfo, VersionInfo
from letheon.ledger.models.reader import Reader
from letheon.ledger.purge.stores import Store
from letheon.ledger.requests.calendar import Calendar
from letheon.ledger.requests.listing import RequestCounts, RequestPage
from letheon.ledger.requests.records import Entry, Request
from letheon.ledger.settings import Settings
from letheon.ledger.worker.adopt import Adoption
from letheon.ledger.worker.batches import BatchInfo, BatchPage
from letheon.ledger.worker.plan import BatchPlan
from letheon.ledger.worker.policy import Decision, Policy
from letheon.ledger.worker.worker import Step

__all__ = [
    "Adoption",
    "BatchInfo",
    "BatchPage",
    "BatchPlan",
    "Calendar",
    "CertificateInfo",
    "CertificatePage",
    "Coverage",
    "Decision",
    "Entry",
    "Finding",
    "KeyInfo",
    "Ledger",
    "LogConsistency",
    "LogEntry",
    "LogInclusion",
    "LogPage",
    "ModelFiles",
    "ModelInfo",
    "Policy",
    "Reader",
    "Request",
    "RequestCounts",
    "RequestPage",
    "Settings",
    "Step",
    "Store",
    "VersionInfo",
]
