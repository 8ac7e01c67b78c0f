"""What every part of a ledger is given: its folder, settings, database, keys, clock and blobs.

A blob is a file named by the SHA-256 of what is sealed in it, blinded by a nonce: 32 random bytes
and then the content; its address, and the name of its file, is the SHA-256 of both. Nobody can test
a guess of the content against an address once the nonce is gone: the plain digest of a model is an
oracle for the rows that it was trained on. The file holds the blob sealed under the key of its
version. Destroying that key is enough, also where a disk, a snapshot or a backup keeps old blocks.
"""

import contextlib
import errno
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from letheon.exceptions import CorruptFileError, KeyFileError, LedgerMissingError
from letheon.state import sync_directory

if TYPE_CHECKING:
    from letheon.ledger.db.database import Database
    from letheon.ledger.keys.keyring import KeyRing
    from letheon.ledger.settings import Settings

NONCE_BYTES = 32
_ADDRESS = re.compile("[0-9a-f]{64}")
_PARTIAL = ".partial"
_CHUNK = 1 << 22
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

hook: Callable[[str], None] | None = None
"""What tests call at each named point: there they stop, kill or delay a process."""


def fault_point(name: str) -> None:
    """Pass a named point; between any two of them a power cut may come in production."""
    if hook is not None:
        hook(name)


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Let one process at a time do something; the file is made if it is missing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class BlobCipher(Protocol):
    """What seals a blob, and opens it again."""

    def encrypt(self, data: bytes) -> bytes:
        """Return the sealed bytes."""

    def decrypt(self, data: bytes) -> bytes:
        """Return the plain bytes, or raise `CorruptFileError`."""


class BlobStore:
    """The blobs of one model, in a folder that only their owner can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Make the folder; it may be there already."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(self.folder.parent)

    def path_of(self, address: str) -> Path:
        """Return where the blob of this address lies."""
        if not _ADDRESS.fullmatch(address):
            raise ValueError(f"{address!r} is no address: 64 hexadecimal digits")
        return self.folder / address

    def write(self, content: bytes, cipher: BlobCipher) -> str:
        """Write a blob and return its address: the file is whole and on the disk then.

        After an error of the disk the half file is given up, and nothing is tried again on it: a
        second fsync may report success for pages that the kernel has dropped.
        """
        blob = secrets.token_bytes(NONCE_BYTES) + content
        address = hashlib.sha256(blob).hexdigest()
        partial = self.folder / f".{secrets.token_hex(8)}{_PARTIAL}"
        try:
            _write_synced(partial, cipher.encrypt(blob))
            fault_point("blob.before-rename")
            partial.replace(self.path_of(address))
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        sync_directory(self.folder)
        fault_point("blob.after-rename")
        return address

    def read(self, address: str, cipher: BlobCipher) -> bytes:
        """Return the content of a blob, without its nonce.

        Raises
        ------
        LedgerMissingError
            There is no such blob: it was purged, or the file was taken away.
        CorruptFileError
            The file is not the one of this address.
        """
        return self.read_with_nonce(address, cipher)[NONCE_BYTES:]

    def read_with_nonce(self, address: str, cipher: BlobCipher) -> bytes:
        """Return nonce and content, whose SHA-256 is the address; that is checked."""
        try:
            sealed = self.path_of(address).read_bytes()
        except FileNotFoundError as error:
            raise LedgerMissingError(
                f"there is no blob {address[:12]}… in {self.folder}: it was purged, or the file "
                "was taken away; `letheon doctor` says which ones should be there"
            ) from error
        altered = f"blob {address[:12]}… in {self.folder} was altered; restore the file"
        try:
            blob = cipher.decrypt(sealed)
        except CorruptFileError as error:
            raise CorruptFileError(altered) from error
        if not hmac.compare_digest(hashlib.sha256(blob).hexdigest(), address):
            raise CorruptFileError(altered)
        return blob

    def is_sound(self, address: str, cipher: BlobCipher) -> bool:
        """Return whether the blob is there, opens, and has the hash that its name says."""
        try:
            self.read_with_nonce(address, cipher)
        except (LedgerMissingError, CorruptFileError, KeyFileError):
            return False
        return True

    def destroy(self, address: str) -> None:
        """Overwrite and remove a blob; one that is gone is no error."""
        destroy_file(self.path_of(address))

    def list_addresses(self) -> frozenset[str]:
        """Return the addresses of all blobs in the folder."""
        return frozenset(path.name for path in self._list_files() if _ADDRESS.fullmatch(path.name))

    def list_unreferenced(self, keep: Iterable[str]) -> list[Path]:
        """Return half-written files and all blobs but these.

        Only the holder of the model's lease may destroy them: no other process can publish a blob
        of this model then.
        """
        wanted = frozenset(keep)
        return [
            path
            for path in self._list_files()
            if path.name.endswith(_PARTIAL)
            or (_ADDRESS.fullmatch(path.name) and path.name not in wanted)
        ]

    def _list_files(self) -> Iterator[Path]:
        return self.folder.iterdir() if self.folder.is_dir() else iter(())


def _write_synced(path: Path, sealed: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        data = memoryview(sealed)
        _write_all(descriptor, data[: len(data) // 2])
        fault_point("blob.half-written")
        _write_all(descriptor, data[len(data) // 2 :])
        fault_point("blob.before-sync")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, rest: memoryview) -> None:
    while len(rest) > 0:
        rest = rest[os.write(descriptor, rest[:_CHUNK]) :]


def destroy_file(path: Path) -> None:
    """Overwrite a file with zeros, remove it, and make both durable; it may be gone already.

    An error of the disk is raised, and the file stays to be destroyed again. Only the lack of
    space for the zeros is none, as a file system has it that copies on write: it would keep the
    old blocks anyway. What must be gone for certain is sealed under a key, and the key is
    destroyed. The folder is synced in any case: whoever removed the file may have died before.
    """
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISREG(path.lstat().st_mode):
            _overwrite_with_zeros(path)
        path.unlink()
    with contextlib.suppress(FileNotFoundError):
        sync_directory(path.parent)


def _overwrite_with_zeros(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        left = os.fstat(descriptor).st_size
        while left > 0:
            left -= os.write(descriptor, bytes(min(left, _CHUNK)))
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Core:
    """An open ledger, as its parts see it.

    Attributes
    ----------
    folder : Path
        Home of the ledger.
    settings : Settings
        What ``letheon.toml`` says.
    database : Database
        Requests, versions, events.
    keys : KeyRing
        Every secret; none of them is in the database.
    clock : callable
        Seconds since 1970, UTC.
    uptime : callable or None, default=None
        Name of the machine's boot and the seconds since; None where a caller gave the clock, which
        stands for itself then. See `letheon.ledger.db.elapsed`.
    """

    folder: Path
    settings: "Settings"
    database: "Database"
    keys: "KeyRing"
    clock: Callable[[], int]
    uptime: Callable[[], tuple[str, int]] | None = None

    def blob_store(self, key: str) -> BlobStore:
        """Return the blobs of the model with this folder key."""
        return BlobStore(self.folder / "blobs" / key)

    def subfolder(self, kind: str) -> Path:
        """Return a sub-folder: proofs, certificates, purges, checkpoints, keys, public."""
        return self.folder / kind
