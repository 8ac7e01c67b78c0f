"""Files named by their own SHA-256, each blinded by a nonce.

A blob is 32 random bytes and then the content; its address is the SHA-256 of both, and its name.
So ``sha256sum`` of the file is what a certificate quotes, and nobody can test a guess of the
content against an address once the file, and with it the nonce, is gone: the plain digest of a
model is an oracle for the rows that it was trained on.
"""

import contextlib
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from letheon.exceptions import CorruptFileError, LedgerMissingError
from letheon.ledger._faults import point
from letheon.state._atomic import sync_directory

__all__ = ["NONCE_BYTES", "Blobs"]

NONCE_BYTES = 32
_ADDRESS = re.compile("[0-9a-f]{64}")
_PARTIAL = ".partial"
_CHUNK = 1 << 22


class Blobs:
    """The blobs of one model, in a folder that only their owner can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Make the folder; it may be there already."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(self.folder.parent)

    def path(self, address: str) -> Path:
        """Return where the blob of this address lies."""
        if not _ADDRESS.fullmatch(address):
            raise ValueError(f"{address!r} is no address: 64 hexadecimal digits")
        return self.folder / address

    def put(self, content: bytes) -> str:
        """Write a blob and return its address: the file is whole and on the disk then.

        After an error of the disk the half file is given up, and nothing is tried again on it: a
        second fsync may report success for pages that the kernel has dropped.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        digest = hashlib.sha256(nonce)
        digest.update(content)
        address = digest.hexdigest()
        partial = self.folder / f".{secrets.token_hex(8)}{_PARTIAL}"
        try:
            _write(partial, nonce, content)
            point("blob.before-rename")
            partial.replace(self.path(address))
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        sync_directory(self.folder)
        point("blob.after-rename")
        return address

    def read(self, address: str) -> bytes:
        """Return the content of a blob, without its nonce.

        Raises
        ------
        LedgerMissingError
            There is no such blob: it was purged, or the file was taken away.
        CorruptFileError
            The file is not the one of this address.
        """
        return self.raw(address)[NONCE_BYTES:]

    def raw(self, address: str) -> bytes:
        """Return the whole file, nonce included; its hash is checked."""
        try:
            data = self.path(address).read_bytes()
        except FileNotFoundError as error:
            raise LedgerMissingError(
                f"there is no blob {address[:12]}… in {self.folder}: it was purged, or the file "
                "was taken away; `letheon doctor` says which versions should be there"
            ) from error
        if not hmac.compare_digest(hashlib.sha256(data).hexdigest(), address):
            raise CorruptFileError(
                f"blob {address[:12]}… in {self.folder} was altered: its hash is not its name"
            )
        return data

    def is_sound(self, address: str) -> bool:
        """Return whether the blob is there and has the hash that its name says; reads in pieces."""
        try:
            with self.path(address).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return False
        return hmac.compare_digest(found, address)

    def destroy(self, address: str) -> None:
        """Overwrite and remove a blob; one that is gone is no error."""
        destroy_file(self.path(address))

    def addresses(self) -> frozenset[str]:
        """Return the addresses of all blobs in the folder."""
        return frozenset(path.name for path in self._files() if _ADDRESS.fullmatch(path.name))

    def sweep(self, keep: Iterable[str]) -> int:
        """Destroy half-written files and all blobs but these; return how many.

        Only for the holder of the model's lease: nobody else's blobs can ever be published then.
        """
        wanted = frozenset(keep)
        doomed = [
            path
            for path in self._files()
            if path.name.endswith(_PARTIAL)
            or (_ADDRESS.fullmatch(path.name) and path.name not in wanted)
        ]
        for path in doomed:
            destroy_file(path)
        return len(doomed)

    def _files(self) -> Iterator[Path]:
        return self.folder.iterdir() if self.folder.is_dir() else iter(())


def _write(path: Path, nonce: bytes, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _write_all(descriptor, nonce)
        point("blob.half-written")
        _write_all(descriptor, content)
        point("blob.before-sync")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while len(rest) > 0:
        rest = rest[os.write(descriptor, rest[:_CHUNK]) :]


def destroy_file(path: Path) -> None:
    """Overwrite a file with zeros, remove it, and make that durable; it may be gone already.

    Overwriting is best effort: a file system that copies on write keeps the old blocks for a
    while. What must be gone for certain is sealed under a key, and the key is destroyed.
    """
    with contextlib.suppress(OSError):
        _overwrite(path)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_directory(path.parent)


def _overwrite(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        left = os.fstat(descriptor).st_size
        while left > 0:
            left -= os.write(descriptor, bytes(min(left, _CHUNK)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
