"""The append-only log: its newest signed checkpoint, and proofs that lead to it."""

from dataclasses import dataclass
from typing import Any

from letheon.ledger.models.history import CheckpointRecord, event_at, latest_checkpoint
from letheon.service._context import Context
from letheon.verifier import (
    Trust,
    check_inclusion,
    check_note,
    from_hex,
    leaf_hash,
    parse_strict,
    read_note,
    require,
)

__all__ = ["InLog", "certificate_in_log", "checked_checkpoint", "event_in_log"]


@dataclass(frozen=True)
class InLog:
    """Where something stands in the log of a signed checkpoint."""

    index: int
    size: int


def certificate_in_log(
    context: Context, sequence: int, identity: str, trust: Trust
) -> InLog | None:
    """Return where a certificate stands in the signed log; None if no checkpoint covers it yet.

    Raises
    ------
    Refused
        The checkpoint is not signed, the proof does not lead to it, or the event is another one.
    """
    index = context.ledger.certificate_info(sequence).log_index
    checkpoint = latest_checkpoint(context.ledger)
    if index is None or checkpoint is None or checkpoint.size <= index:
        return None
    root = checked_checkpoint(checkpoint, trust)
    body = event_at(context.ledger, index) or b""
    event = event_in_log(body)
    named = (event.get("kind"), event.get("sequence"), event.get("certificate"))
    require(named == ("certificate", sequence, identity), "the event is not the certificate's")
    proof = context.ledger.log_inclusion(index, size=checkpoint.size)
    path = [from_hex(one) for one in proof.path]
    check_inclusion(leaf_hash(body), index, checkpoint.size, path, root)
    return InLog(index, checkpoint.size)


def checked_checkpoint(checkpoint: CheckpointRecord, trust: Trust) -> bytes:
    """Return the root of a checkpoint that the ledger has signed, or raise `Refused`."""
    note = read_note(checkpoint.note)
    check_note(note, trust)
    require(note.size == checkpoint.size, f"the checkpoint is of size {note.size}")
    return note.root


def event_in_log(body: bytes) -> dict[str, Any]:
    """Return an event; it holds codes, counts and opaque ids only."""
    found: dict[str, Any] = parse_strict(body)
    return found
