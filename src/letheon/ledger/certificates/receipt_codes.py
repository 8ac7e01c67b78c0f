r"""Receipt codes, and receipts that only the holder of a code can decrypt.

A code is ``lethe-`` and 80 letters and digits of Crockford's base 32 in groups of five: the id of
the request (16 bytes), an X25519 private key (32 bytes), and a CRC-16 of both. A change within
three neighbouring characters is always detected, any other change with probability 1 - 2**-16.

An encrypted receipt is ``letheon-receipt-v1\n``, an ephemeral public key of 32 bytes, and the text
under AES-256-GCM. Key and nonce are ``HKDF-SHA256(X25519(ephemeral, receipt key), salt = both
public keys, info = "letheon/receipt/v1/" || request id)``, and the associated data is the header
and that info. The ephemeral private key is not stored, so only the holder of the code can
decrypt the receipt; the ledger cannot.
"""

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Any, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from letheon.verifier import VerificationError, canonical, from_hex, parse_strict, require

PREFIX = "lethe-"
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RFC4648 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_WRITTEN = str.maketrans(_RFC4648, _ALPHABET)
_READ = str.maketrans(_ALPHABET + "OIL", _RFC4648 + "ABB")
_LETTERS, _GROUP = 80, 5
_CRC_START = 0x6C65
_MAGIC = b"letheon-receipt-v1\n"
_KEY, _NONCE = 32, 12
_BETWEEN = re.compile(r"[\s-]+")


@dataclass(frozen=True)
class ReceiptCode:
    """Code with which a person decrypts the receipt of one request.

    Parameters
    ----------
    request : str
        Id of the request, 32 hexadecimal digits.
    private : bytes
        X25519 private key, 32 bytes; not shown by `repr`.
    """

    request: str
    private: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the code that a text contains.

        Lower case, spaces and missing dashes are accepted, and O, I and L are read as digits.

        Raises
        ------
        VerificationError
            The text has a wrong length, an invalid character, or a typing error.
        """
        require(text.isascii(), "the receipt code has an invalid character")
        letters = _BETWEEN.sub("", text).upper()
        start = PREFIX.rstrip("-").upper()
        require(letters.startswith(start), f"a receipt code begins with {PREFIX}")
        letters = letters.removeprefix(start)
        require(len(letters) == _LETTERS, f"a receipt code has {_LETTERS} characters after lethe-")
        require(_READ.keys() >= set(map(ord, letters)), "the receipt code has an invalid character")
        data = base64.b32decode(letters.translate(_READ))
        content, crc = data[:-2], int.from_bytes(data[-2:], "big")
        require(binascii.crc_hqx(content, _CRC_START) == crc, "the receipt code has a typing error")
        return cls(content[:16].hex(), content[16:])

    def __str__(self) -> str:
        """Return the code as text."""
        content = bytes.fromhex(self.request) + self.private
        crc = binascii.crc_hqx(content, _CRC_START).to_bytes(2, "big")
        letters = base64.b32encode(content + crc).decode().translate(_WRITTEN)
        groups = [letters[at : at + _GROUP] for at in range(0, _LETTERS, _GROUP)]
        return PREFIX + "-".join(groups)

    @property
    def public(self) -> str:
        """Public key of the code in hexadecimal digits; the ledger stores it."""
        return public_of(self.private)


def new_private_key() -> bytes:
    """Return a new X25519 private key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_of(private: bytes) -> str:
    """Return the public key of a private key, in hexadecimal digits."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw().hex()


def check_public_key(text: str) -> str:
    """Return the public key if receipts can be encrypted to it; raise `ValueError` otherwise.

    Keys of small order are rejected, because the shared secret would be known to everyone.
    """
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(from_hex(text)))
    except (ValueError, TypeError):
        raise ValueError(
            "the receipt key is not valid; expected an X25519 public key as 64 lower-case "
            "hexadecimal digits"
        ) from None
    return text


def encrypt_receipt(public: str, request_id: str, data: bytes) -> bytes:
    """Return the receipt of a request, encrypted to a public key."""
    ephemeral = X25519PrivateKey.generate()
    header = _MAGIC + ephemeral.public_key().public_bytes_raw()
    receiver = bytes.fromhex(public)
    secret = ephemeral.exchange(X25519PublicKey.from_public_bytes(receiver))
    key, nonce = _derive_key(secret, header, receiver, request_id)
    return header + AESGCM(key).encrypt(nonce, data, header + _make_info(request_id))


def open_receipt(code: ReceiptCode, encrypted: bytes) -> "OpenedReceipt":
    """Decrypt the receipt of a request with its code.

    Raises
    ------
    VerificationError
        The receipt was altered, or encrypted to another key or for another request.
    """
    size = len(_MAGIC) + _KEY
    require(
        encrypted.startswith(_MAGIC) and len(encrypted) > size, "this is not an encrypted receipt"
    )
    header, text = encrypted[:size], encrypted[size:]
    try:
        private = X25519PrivateKey.from_private_bytes(code.private)
        secret = private.exchange(X25519PublicKey.from_public_bytes(header[-_KEY:]))
        receiver = bytes.fromhex(code.public)
        key, nonce = _derive_key(secret, header, receiver, code.request)
        data = AESGCM(key).decrypt(nonce, text, header + _make_info(code.request))
    except (InvalidTag, ValueError):
        raise VerificationError(
            "the receipt cannot be decrypted: the code belongs to another receipt, or the "
            "receipt was altered"
        ) from None
    return OpenedReceipt.parse(data)


def _derive_key(secret: bytes, header: bytes, receiver: bytes, request: str) -> tuple[bytes, bytes]:
    salt, length = header[-_KEY:] + receiver, _KEY + _NONCE
    kdf: Any = HKDF(algorithm=SHA256(), length=length, salt=salt, info=_make_info(request))
    derived: bytes = kdf.derive(secret)
    return derived[:_KEY], derived[_KEY:]


def _make_info(request_id: str) -> bytes:
    return b"letheon/receipt/v1/" + request_id.encode()


@dataclass(frozen=True)
class OpenedReceipt:
    """The content of a receipt.

    Attributes
    ----------
    certificate : str
        Id of the certificate.
    rows : list of dict
        Slot, commitment and both paths (before and after) of each row, in slot order.
    openings : list of dict
        Position, salt and ranks of each row, in the same order. A salt allows testing guesses of
        the row, so only the person may have it.
    left_out : int
        Number of rows of the person that the certificate covers but the receipt does not contain.
    """

    certificate: str
    rows: list[dict[str, Any]]
    openings: list[dict[str, Any]] = field(repr=False)
    left_out: int = 0

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read a receipt from the bytes of `to_bytes`; its verifier checks the rows."""
        parts = parse_strict(data)
        is_receipt = isinstance(parts, dict) and parts.keys() == cls.__dataclass_fields__.keys()
        require(is_receipt, "this is not the content of a receipt")
        return cls(**parts)

    def to_bytes(self) -> bytes:
        """Return the whole content, including salts, as bytes to be encrypted."""
        return canonical(vars(self))

    @property
    def receipt(self) -> bytes:
        """Receipt without salts, the input of `letheon.verifier.check_receipt_commitment`."""
        return canonical({"certificate": self.certificate, "rows": self.rows})

    def with_salt(self, number: int) -> bytes:
        """Return the receipt of one row with its salt, for `letheon.verifier.check_receipt`."""
        row, opening = self.rows[number], self.openings[number]
        parts = {name: row[name] for name in ("slot", "before", "after")}
        parts |= {name: opening[name] for name in ("place", "salt")}
        return canonical(parts | {"certificate": self.certificate})
