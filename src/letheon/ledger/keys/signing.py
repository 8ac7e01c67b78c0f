"""Ed25519 signing keys, and signed statements in strict DSSE envelopes."""

import base64
import os
from dataclasses import dataclass, field
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from letheon.verifier import PAYLOAD_TYPE, canonical, check_schema, keyid_of, pae

SEED_BYTES = 32


@dataclass(frozen=True)
class Signer:
    """A private signing key that is never shown in `repr`.

    Attributes
    ----------
    keyid : str
        SHA-256 of the public key.
    public : bytes
        The public key, 32 bytes.
    """

    keyid: str
    public: bytes
    _key: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def from_seed(cls, seed: bytes) -> Self:
        """Return the signer for a seed of 32 bytes."""
        key = Ed25519PrivateKey.from_private_bytes(seed)
        public = key.public_key().public_bytes_raw()
        return cls(keyid_of(public), public, key)

    def sign(self, data: bytes) -> bytes:
        """Return the Ed25519 signature of the data, 64 bytes.

        The same key and data always give the same signature (RFC 8032).
        """
        return self._key.sign(data)


def new_seed() -> bytes:
    """Return a random seed of 32 bytes from the operating system."""
    return os.urandom(SEED_BYTES)


def sign_statement(statement: dict[str, Any], *signers: Signer) -> bytes:
    """Sign a statement and return it in a DSSE envelope, as canonical JSON.

    Parameters
    ----------
    statement : dict
        An in-toto statement with a predicate type that the verifier supports.
    *signers : Signer
        One or more different signers, in any order.

    Raises
    ------
    letheon.verifier.VerificationError
        The statement violates its schema. A verifier would reject it, so it is not signed.
    """
    check_schema(statement)
    by_keyid = {signer.keyid: signer for signer in signers}
    if not signers or len(by_keyid) != len(signers):
        raise ValueError(
            f"expected at least one signer and no key twice; got {len(signers)} signers with "
            f"{len(by_keyid)} different keys"
        )
    payload = canonical(statement)
    signed = pae(PAYLOAD_TYPE, payload)
    return canonical(
        {
            "payload": _encode_base64(payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [
                {"keyid": keyid, "sig": _encode_base64(by_keyid[keyid].sign(signed))}
                for keyid in sorted(by_keyid)
            ],
        }
    )


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
