"""Signatures of OpenDSR answers: with the operator's certified key, or else the ledger's own.

The specification wants a key with an X.509 certificate of a known authority. An operator who has
one puts it into the folder ``opendsr`` of the ledger's home. Without it answers are signed with the
current key of the ledger (Ed25519), which whoever has pinned the ledger's first key can trace.
A signed answer begins with ``{``, so it can pass for no certificate (``DSSEv1``), no checkpoint (a
name) and no X.509 certificate (a byte 0x30) that the same key signs.
"""

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from letheon.exceptions import KeyFileError
from letheon.ledger import Ledger

FOLDER = "opendsr"

_Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_LEAST_RSA_BITS = 2048
_BEGIN, _END = datetime(2020, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


class AnswerKey(NamedTuple):
    """A key, and the certificate that it is checked with."""

    key: _Private
    certificate: bytes

    def sign(self, body: bytes) -> str:
        """Return the signature of an answer, in Base64.

        RSA: PKCS #1 v1.5 with SHA-256; elliptic curves: ECDSA with SHA-256 (FIPS 186-4, as the
        specification says); Ed25519: RFC 8032, which FIPS 186-5 has added.
        """
        if isinstance(self.key, rsa.RSAPrivateKey):
            signed = self.key.sign(body, padding.PKCS1v15(), hashes.SHA256())
        elif isinstance(self.key, ec.EllipticCurvePrivateKey):
            signed = self.key.sign(body, ec.ECDSA(hashes.SHA256()))
        else:
            signed = self.key.sign(body)
        return base64.b64encode(signed).decode()


def load_answer_key(ledger: Ledger, domain: str) -> AnswerKey:
    """Return what answers are signed with.

    Raises
    ------
    KeyFileError
        The operator's files are open to others, damaged, or do not belong together.
    """
    folder = ledger.folder / FOLDER
    if (folder / "key.pem").exists():
        return _load_operators(folder)
    key = ledger._core.keys.signer._key
    return AnswerKey(key, _self_signed(key, domain))


def _load_operators(folder: Path) -> AnswerKey:
    place = folder / "key.pem"
    if place.stat().st_mode & 0o077:
        raise KeyFileError(f"{place} can be read by others; run chmod 600 on it")
    try:
        key = load_pem_private_key(place.read_bytes(), password=None)
        data = (folder / "certificate.pem").read_bytes()
        certificate = x509.load_pem_x509_certificate(data)
    except (OSError, ValueError, TypeError) as error:
        raise KeyFileError(
            f"{folder} must hold key.pem, without a password, and certificate.pem"
        ) from error
    if not isinstance(key, _Private) or _is_short(key):
        raise KeyFileError(f"{place} is no key of RSA (2048 bits or more), ECDSA or Ed25519")
    if _public(key.public_key()) != _public(certificate.public_key()):
        raise KeyFileError(f"{folder}: certificate.pem is of another key than key.pem")
    return AnswerKey(key, data)


def _is_short(key: _Private) -> bool:
    return isinstance(key, rsa.RSAPrivateKey) and key.key_size < _LEAST_RSA_BITS


def _public(key: object) -> bytes:
    encoded: bytes = key.public_bytes(  # type: ignore[attr-defined]  # every public key has it
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )
    return encoded


def _self_signed(key: ed25519.Ed25519PrivateKey, domain: str) -> bytes:
    """Return the certificate of a ledger's key for a domain; always the same bytes."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, domain[:64])])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(domain)]), critical=False)
    )
    return builder.sign(key, None).public_bytes(Encoding.PEM)
