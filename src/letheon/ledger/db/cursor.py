"""Cursors of lists: encrypted and authenticated positions at which the next page starts."""

import base64
import binascii
import hmac
import json
from typing import Any

from letheon.ledger.core import Core

Key = tuple[str | int, ...]
"""Values of the columns that a list is sorted by."""

LARGEST_PAGE = 500
_TAG_DIGITS = 24
_LONGEST = 400


def encode_cursor(core: Core, list_name: str, key: Key) -> str:
    """Return the cursor for the items after this key in the list `list_name`."""
    data = json.dumps(key, separators=(",", ":")).encode()
    tag = _tag(core, list_name, data)
    return _encode(tag + _apply_mask(core, list_name, tag, data))


def decode_cursor(core: Core, list_name: str, text: Any) -> Key:
    """Return the key that `encode_cursor` has put into a cursor.

    Raises
    ------
    ValueError
        The cursor belongs to another list or ledger, or was changed.
    """
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        content = base64.b64decode(padded[:_LONGEST], altchars=b"-_", validate=True)
    except (AttributeError, UnicodeEncodeError, binascii.Error):
        content = b""
    tag = content[:_TAG_DIGITS]
    data = _apply_mask(core, list_name, tag, content[_TAG_DIGITS:])
    if not hmac.compare_digest(tag, _tag(core, list_name, data)) or _encode(content) != text:
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


def _apply_mask(core: Core, list_name: str, tag: bytes, data: bytes) -> bytes:
    """Return the encrypted or decrypted key of a cursor.

    Keys are encrypted because a tenant must not see the numbers of the whole ledger.
    """
    blocks = range(-(-len(data) // 32))
    mask = b"".join(
        bytes.fromhex(core.keys.compute_tag("cursor-mask", list_name.encode(), tag, bytes([block])))
        for block in blocks
    )
    return bytes(left ^ right for left, right in zip(data, mask, strict=False))


def _tag(core: Core, list_name: str, data: bytes) -> bytes:
    return core.keys.compute_tag("cursor", list_name.encode(), data)[:_TAG_DIGITS].encode()
