"""Audit of a ledger by a stranger: with the files and the public key only."""

from letheon.audit._rederive import CannotRederiveError, check_rederivation, compare, rederive
from letheon.audit._result import LEVELS, AuditReport, LevelResult

__all__ = [
    "LEVELS",
    "AuditReport",
    "CannotRederiveError",
    "LevelResult",
    "check_rederivation",
    "compare",
    "rederive",
]
