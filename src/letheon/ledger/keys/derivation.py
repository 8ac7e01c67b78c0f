"""Tags, derived keys and commitments: pure functions of secrets."""

import hashlib
import hmac
import struct
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from letheon.verifier import canonical

_LENGTH = struct.Struct(">Q")


def compute_tag(key: bytes, *parts: bytes) -> str:
    """Return the HMAC-SHA256 of the length-prefixed parts as hexadecimal text."""
    message = b"".join([_LENGTH.pack(len(part)) + part for part in parts])
    return hmac.digest(key, message, "sha256").hex()


def derive_key(key: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """Return key material derived with HKDF-SHA256 (RFC 5869)."""
    kdf: Any = HKDF(algorithm=SHA256(), length=length, salt=salt, info=info)
    derived: bytes = kdf.derive(key)
    return derived


def derive_training_seed(secret: bytes, beacon: bytes) -> int:
    """Return the 128-bit seed derived from a training key and a later beacon.

    ``seed = HKDF-SHA256(key, salt = beacon, info = "letheon/training-seed/v1")``. The key is
    committed to before the beacon is known, so that an operator cannot choose the seed.
    """
    return int.from_bytes(derive_key(secret, beacon, b"letheon/training-seed/v1", 16), "big")


def commit_to_key(secret: bytes) -> str:
    """Return the commitment to a key: ``SHA-256("letheon/key-commitment/v1" || key)``."""
    return hashlib.sha256(b"letheon/key-commitment/v1" + secret).hexdigest()


def commit_to_seeds(salt: bytes, seeds: list[str]) -> str:
    """Return the commitment to the seeds of a caller; a short seed is hidden by the salt."""
    return commit_to_key(salt + canonical(seeds))


def commit_to_settings(salt: bytes, settings: dict[str, Any]) -> str:
    """Return ``SHA-256("letheon/settings-commitment/v1" || salt || settings)``."""
    content = b"letheon/settings-commitment/v1" + salt + canonical(settings)
    return hashlib.sha256(content).hexdigest()
