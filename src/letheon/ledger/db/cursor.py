"""Cursors: where the next page of a list begins, as a text that nobody can make up."""

import base64
import binascii
import hmac
import json
from typing import Any

from letheon.ledger.core import Core

Key = tuple[str | int, ...]
"""Values of the columns that a list is ordered by."""

LARGEST_PAGE = 500
_TAG_DIGITS = 24
_LONGEST = 400


def encode_cursor(core: Core, what: str, key: Key) -> str:
    """Return the text that stands for what comes after this key in the list named `what`."""
    data = json.dumps(key, separators=(",", ":")).encode()
    tag = _compute_tag(core, what, data)
    return _encode_base64(tag + _apply_mask(core, what, tag, data))


def decode_cursor(core: Core, what: str, text: Any) -> Key:
    """Return the key that `cursor` was given.

    Raises
    ------
    ValueError
        The text is of another list or ledger, or was changed.
    """
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        content = base64.b64decode(padded[:_LONGEST], altchars=b"-_", validate=True)
    except (AttributeError, UnicodeEncodeError, binascii.Error):
        content = b""
    tag = content[:_TAG_DIGITS]
    data = _apply_mask(core, what, tag, content[_TAG_DIGITS:])
    if (
        not hmac.compare_digest(tag, _compute_tag(core, what, data))
        or _encode_base64(content) != text
    ):
        raise ValueError(
            "`after` is no cursor of this list; give the `next` of the page before, as it was, "
            "or leave it out to begin at the first page"
        )
    return tuple(json.loads(data))


def _encode_base64(content: bytes) -> str:
    """Return the one spelling of a cursor."""
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def require_limit(limit: Any) -> int:
    """Return the size of a page, or say what it may be."""
    if type(limit) is not int or not 1 <= limit <= LARGEST_PAGE:
        raise ValueError(f"limit={limit!r} must be a whole number from 1 to {LARGEST_PAGE}")
    return limit


def _apply_mask(core: Core, what: str, tag: bytes, data: bytes) -> bytes:
    """Hide or show the key: numbers of the whole ledger are no business of one tenant."""
    blocks = range(-(-len(data) // 32))
    mask = b"".join(
        bytes.fromhex(core.keys.compute_tag("cursor-mask", what.encode(), tag, bytes([block])))
        for block in blocks
    )
    return bytes(one ^ other for one, other in zip(data, mask, strict=False))


def _compute_tag(core: Core, what: str, data: bytes) -> bytes:
    return core.keys.compute_tag("cursor", what.encode(), data)[:_TAG_DIGITS].encode()
