"""Secrets of 32 bytes in files that only their owner can read.

A file holds the secret in hexadecimal, a space, and a check over its name and the secret, so that
a damaged or exchanged file is noticed before it is used. Writers hold a lock, so what looks half
written to the next writer was left by one that died.
"""

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from letheon.exceptions import KeyFileError
from letheon.ledger.keys.blobs import destroy_file
from letheon.state import sync_directory, write_atomically

__all__ = ["KeyFiles"]

_LINE = re.compile(r"([0-9a-f]{64}) ([0-9a-f]{16})\n")
_LONGEST = 128
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class KeyFiles:
    """The folder of secrets, by name (without ``.key``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Make the folder; it may be there already, if nobody else can look into it."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        sync_directory(self.folder.parent)
        self.require_private()

    def require_private(self) -> None:
        """Refuse a folder or a file that others can read or write."""
        try:
            _require_private(self.folder, self.folder.stat(), "700")
        except (FileNotFoundError, NotADirectoryError):
            raise KeyFileError(
                f"there is no folder of keys at {self.folder}; without it nothing can be signed "
                "or unsealed: restore it, or make a new ledger"
            ) from None
        for path in self.folder.glob("*.key"):
            with contextlib.suppress(FileNotFoundError):
                _require_private(path, path.lstat(), "600")

    def path(self, name: str) -> Path:
        """Return where the secret of this name lies."""
        return self.folder / f"{name}.key"

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        return self.path(name).exists()

    def names(self, start: str = "") -> list[str]:
        """Return all names that begin so, sorted."""
        return sorted(path.stem for path in self.folder.glob(f"{start}*.key"))

    def read(self, name: str) -> bytes:
        """Return a secret.

        Raises
        ------
        KeyFileError
            If it is missing, damaged, a link, or readable by others.
        """
        path = self.path(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise KeyFileError(f"the key {path} is missing: destroyed, or never here") from None
        except OSError as error:
            raise KeyFileError(f"the key {path} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            _require_private(path, os.fstat(descriptor), "600")
            line = file.read(_LONGEST).decode("ascii", "replace")
        found = _LINE.fullmatch(line)
        secret = bytes.fromhex(found[1]) if found else b""
        if found is None or not hmac.compare_digest(_check(name, secret), found[2]):
            raise KeyFileError(
                f"the key {path} is damaged, or its destruction was interrupted; restore it from "
                "a copy, or destroy it again"
            )
        return secret

    def write(self, name: str, secret: bytes) -> None:
        """Write a new secret; it is on the disk when this returns. For the holder of the lock."""
        if self.has(name):
            raise KeyFileError(f"there is a key {self.path(name)} already; it is never replaced")
        line = f"{secret.hex()} {_check(name, secret)}\n"
        write_atomically(self.path(name), [line.encode()])

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Keep other writers out, and destroy what writers left that died; give how many files."""
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            left = list(self.folder.glob(".*.partial"))
            for partial in left:
                destroy_file(partial)
            yield len(left)
        finally:
            os.close(descriptor)


def _require_private(path: Path, status: os.stat_result, mode: str) -> None:
    if status.st_mode & _OTHERS:
        raise KeyFileError(
            f"others can use {path} (mode {stat.S_IMODE(status.st_mode):04o}); type: "
            f"chmod {mode} {path}"
        )


def _check(name: str, secret: bytes) -> str:
    text = b"letheon/key-check/v1\n" + name.encode() + b"\n" + secret
    return hashlib.sha256(text).hexdigest()[:16]
