r"""Secrets at rest: sealing, keyed tags, derivation of keys and seeds.

A sealed text is ``letheon-seal-v1\n``, a random name of 16 bytes, the size of a chunk and the
length of the text (8 bytes each, big-endian), and then per chunk a random nonce of 12 bytes and
the chunk under AES-256-GCM. The associated data of chunk i is all of that header, i, and the
context. So a chunk that was altered, moved, dropped, or taken from another text is refused.
"""

import hashlib
import hmac
import os
import struct
from collections.abc import Iterator
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from letheon.exceptions import CorruptFileError

KEY_BYTES = 32
CHUNK = 64 << 20
_MAGIC = b"letheon-seal-v1\n"
_HEADER = struct.Struct(">16s16sQQ")
_INDEX = struct.Struct(">Q")
_NONCE, _TAG = 12, 16
_MOST_CHUNK = 1 << 30

Buffer = bytes | bytearray | memoryview


def seal(key: bytes, data: Buffer, context: bytes) -> bytes:
    """Return the data encrypted and authenticated.

    Parameters
    ----------
    key : bytes
        32 bytes.
    data : bytes, bytearray or memoryview
        The text, of any length.
    context : bytes
        What the text is, and of what; `unseal` refuses any other.

    Guarantee
    ---------
    Confidential and authentic under AES-256-GCM for up to 2**32 chunks per key: nonces are random.
    Who destroys the key destroys the text.
    """
    cipher, text = AESGCM(key), memoryview(data).cast("B")
    header = _HEADER.pack(_MAGIC, os.urandom(16), CHUNK, len(text))
    pieces = [header]
    for index, (begin, end) in enumerate(_spans(len(text), CHUNK)):
        nonce = os.urandom(_NONCE)
        sealed = cipher.encrypt(nonce, text[begin:end], _bound(header, index, context))
        pieces += [nonce, sealed]
    return b"".join(pieces)


def unseal(key: bytes, sealed: Buffer, context: bytes) -> bytes:
    """Return the data that was sealed under this key and in this context.

    Raises
    ------
    CorruptFileError
        If a byte was altered, or the key or the context is another one.
    """
    text = memoryview(sealed).cast("B")
    header, chunk, length = _read_header(text)
    cipher, pieces, at = AESGCM(key), [], _HEADER.size
    for index, (begin, end) in enumerate(_spans(length, chunk)):
        body = at + _NONCE
        after = body + end - begin + _TAG
        bound = _bound(header, index, context)
        try:
            pieces.append(cipher.decrypt(text[at:body], text[body:after], bound))
        except InvalidTag:
            raise CorruptFileError(
                "a sealed text was altered, or its key or its context is another one"
            ) from None
        at = after
    return b"".join(pieces)


def _read_header(text: memoryview) -> tuple[bytes, int, int]:
    """Return header, size of a chunk, and length; what does not fit the text is refused."""
    if len(text) < _HEADER.size or text[: len(_MAGIC)] != _MAGIC:
        raise CorruptFileError("this is no sealed text of letheon, or it is truncated")
    header = bytes(text[: _HEADER.size])
    _, _, chunk, length = _HEADER.unpack(header)
    if not 0 < chunk <= _MOST_CHUNK or length > len(text):
        raise CorruptFileError("the header of a sealed text was altered")
    n_chunks = max(1, -(-length // chunk))
    if len(text) != _HEADER.size + length + n_chunks * (_NONCE + _TAG):
        raise CorruptFileError("a sealed text is truncated, or something was added to it")
    return header, chunk, length


def _spans(length: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each chunk; an empty text has one, which is empty."""
    for begin in range(0, max(length, 1), chunk):
        yield begin, min(begin + chunk, length)


def _bound(header: bytes, index: int, context: bytes) -> bytes:
    return header + _INDEX.pack(index) + context


def tag(key: bytes, *parts: bytes) -> str:
    """Return the HMAC-SHA256 of parts, each after its length, so that none runs into the next."""
    message = b"".join([_INDEX.pack(len(part)) + part for part in parts])
    return hmac.digest(key, message, "sha256").hex()


def derive(key: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """Return HKDF-SHA256 of a key (RFC 5869)."""
    kdf: Any = HKDF(algorithm=SHA256(), length=length, salt=salt, info=info)
    derived: bytes = kdf.derive(key)
    return derived


def training_seed(secret: bytes, beacon: bytes) -> int:
    """Return the seed of 128 bits that a training key and a later beacon give.

    ``seed = HKDF-SHA256(key, salt = beacon, info = "letheon/training-seed/v1")``. The key is
    committed before the beacon is known, so nobody chooses the seed.
    """
    return int.from_bytes(derive(secret, beacon, b"letheon/training-seed/v1", 16), "big")


def commitment(secret: bytes) -> str:
    """Return ``SHA-256("letheon/key-commitment/v1" || key)``: it tells nothing of a random key."""
    return hashlib.sha256(b"letheon/key-commitment/v1" + secret).hexdigest()
