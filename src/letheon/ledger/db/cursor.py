"""Cursors of lists: encrypted and authenticated positions at which the next page starts."""

import base64
import json
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from letheon.ledger.core import Core

Key = tuple[str | int, ...]
"""Values of the columns that a list is sorted by."""

LARGEST_PAGE = 500


def encode_cursor(core: Core, list_name: str, key: Key) -> str:
    """Return the cursor for the items after this key in the list `list_name`.

    Keys are encrypted because a tenant must not see the numbers of the whole ledger.
    """
    data = json.dumps(key, separators=(",", ":")).encode()
    return _encode(_make_cipher(core).encrypt(data, [list_name.encode()]))


def decode_cursor(core: Core, list_name: str, text: Any) -> Key:
    """Return the key that `encode_cursor` has put into a cursor.

    Raises
    ------
    ValueError
        The cursor belongs to another list or ledger, or was changed.
    """
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        content = base64.b64decode(padded, altchars=b"-_", validate=True)
        data = _make_cipher(core).decrypt(content, [list_name.encode()])
        is_unchanged = _encode(content) == text
    except (AttributeError, ValueError, InvalidTag):
        is_unchanged = False
    if not is_unchanged:
        raise ValueError(
            "`after` is not a cursor of this list; pass `next` of the previous page unchanged, or "
            "omit it for the first page"
        )
    return tuple(json.loads(data))


def _encode(content: bytes) -> str:
    """Return the content of a cursor as URL-safe base64 text without padding."""
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def require_limit(limit: Any) -> int:
    """Return the page size if it is valid; raise `ValueError` otherwise."""
    if type(limit) is not int or not 1 <= limit <= LARGEST_PAGE:
        raise ValueError(
            f"limit={limit!r} is not valid; expected an integer from 1 to {LARGEST_PAGE}"
        )
    return limit


def _make_cipher(core: Core) -> AESSIV:
    return AESSIV(bytes.fromhex(core.keys.compute_tag("cursor")))
