"""Signed checkpoints of the log, as C2SP signed notes, which public witnesses can co-sign."""

import base64

from letheon.ledger._signing import Signer
from letheon.verifier import note_body, note_key_hash

__all__ = ["sign_checkpoint"]

_ED25519 = 1


def sign_checkpoint(origin: str, size: int, root: bytes, signer: Signer) -> str:
    """Return the signed note that the log of this name has this size and root.

    The last line is ``— origin base64(key hash || signature)``; the key hash is the first four
    bytes of ``SHA-256(origin || 0x0A || 0x01 || public key)``.
    """
    body = note_body(origin, size, root)
    key_hash = note_key_hash(origin, _ED25519, signer.public)
    line = base64.b64encode(key_hash + signer.sign(body)).decode()
    return f"{body.decode()}\n\N{EM DASH} {origin} {line}\n"
