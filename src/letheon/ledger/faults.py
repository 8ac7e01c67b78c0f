"""Named places at which a test may stop, kill or delay a process.

Between any two of them a power cut may come in production. `hook` is None there, and `point` does
nothing. The tests kill a process at each of `POINTS`; one that is never passed fails them.
"""

from collections.abc import Callable

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
    "blob.before-rename",
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

hook: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Pass a named place; a test may be waiting there."""
    if hook is not None:
        hook(name)
