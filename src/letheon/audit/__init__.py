"""Audit of an erasure ledger by a third party, with only its files and the public key.

    ====== ================================= ========================================
    level  shows                             needs
    ====== ================================= ========================================
    V0     signatures, chain, signed index   any bundle
    V1     one append-only log               any bundle
    V2     only erased rows were removed     an auditor's bundle
    V3     no residue                        attestations; stores and markers
    V4     the model is a fresh fit on the   an auditor's bundle; exact methods
           remaining rows, byte for byte
    V5     claimed (epsilon, delta) holds    an auditor's bundle; certified methods
    V6     erased canaries look unseen       canaries that the auditor planted
    ====== ================================= ========================================

The verdict of a report is "passed", "failed" or "incomplete". A report passes only if no level
failed and every level that the tier of the bundle promises was checked.
"""

from letheon.audit._audit import audit
from letheon.audit._bound import BOUNDS, bound
from letheon.audit._bundle import LEVELS, AuditReport, Bundle, LevelResult, key_text
from letheon.audit._levels import Canaries, check_canaries, check_requests, check_residue
from letheon.audit._rederive import CannotRederiveError, check_rederivation, compare, rederive
from letheon.checks import (
    ClaimAttackResult,
    attack_account,
    attack_fold,
    attack_lattice,
    attack_refusal,
)

__all__ = [
    "BOUNDS",
    "LEVELS",
    "AuditReport",
    "Bundle",
    "Canaries",
    "CannotRederiveError",
    "ClaimAttackResult",
    "LevelResult",
    "attack_account",
    "attack_fold",
    "attack_lattice",
    "attack_refusal",
    "audit",
    "bound",
    "check_canaries",
    "check_rederivation",
    "check_requests",
    "check_residue",
    "compare",
    "key_text",
    "rederive",
]
