"""The erasure ledger: durable requests, signed certificates of unlearning, purge.

`Ledger` keeps models, the requests to be erased from them, and what was done about these: each
batch gives a certificate (an in-toto statement in a DSSE envelope, signed with Ed25519) that
a stranger verifies with files and a public key alone, by `letheon.audit` or by the one file
``letheon/verifier.py``.
"""

from letheon.ledger._adopt import Adoption
from letheon.ledger._batch_list import BatchInfo, BatchPage
from letheon.ledger._calendar import Calendar
from letheon.ledger._certificate_list import CertificateInfo, CertificatePage
from letheon.ledger._doctor import Finding
from letheon.ledger._examine import ModelFiles
from letheon.ledger._info import KeyInfo, ModelInfo, VersionInfo
from letheon.ledger._ledger import Ledger
from letheon.ledger._listing import RequestCounts, RequestPage
from letheon.ledger._log_reading import LogConsistency, LogEntry, LogInclusion, LogPage
from letheon.ledger._plan import BatchPlan
from letheon.ledger._policy import Decision, Policy
from letheon.ledger._reader import Reader
from letheon.ledger._receipts import Coverage
from letheon.ledger._requests import Entry, Request
from letheon.ledger._settings import Settings
from letheon.ledger._stores import Store
from letheon.ledger._worker import Step

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
