"""The named points at which tests stop, kill or delay a process, as `letheon.ledger.core` has them.

A point that is never passed fails the tests that kill a process at each of them.
"""

POINTS = (
    "submit.before-commit",
    "submit.after-commit",
    "register.blobs-written",
    "register.before-commit",
    "register.after-commit",
    "lease.taken",
    "recover.swept",
    "intent.before-commit",
    "intent.after-commit",
    "retrain.committed",
    "retrain.beacon",
    "compute.loaded",
    "compute.forgotten",
    "blob.half-written",
    "blob.before-sync",
    "blob.after-rename",
    "compute.key-written",
    "compute.written",
    "publish.before-commit",
    "publish.after-commit",
    "mark.integrated",
    "mark.written",
    "checkpoint.before-commit",
    "certify.claimed",
    "certify.signed",
    "certify.file-written",
    "certify.before-commit",
    "certify.after-commit",
    "purge.started",
    "purge.pins-drained",
    "purge.blobs-half",
    "purge.blobs-destroyed",
    "purge.key-destroyed",
    "purge.intake-resealed",
    "purge.stores-done",
    "purge.database-shrunk",
    "purge.scanned",
    "purge.signed",
    "purge.before-commit",
    "purge.after-commit",
)


class SimulatedKillError(BaseException):
    """Simulates SIGKILL: nothing in the library catches it."""
