"""Files that appear whole or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from letheon.state._nodes import Buffer


def write_atomically(path: Path, pieces: Iterable[Buffer]) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part.

    The bytes go to a file beside it that only its owner can read, reach the disk, and take the
    name; then the directory reaches the disk. On failure the half file is removed.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.partial")
    try:
        _write(temporary, pieces)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def _write(path: Path, pieces: Iterable[Buffer]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while len(rest) > 0:
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make names that were added to or removed from a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
