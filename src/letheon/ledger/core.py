"""Shared context of all parts of a ledger: folder, settings, database, keys, clock and blobs.

A blob is 32 random bytes (a nonce) followed by the content. Its address, which is also its file
name, is the SHA-256 of both. Without the nonce, a guess of the content cannot be tested against the
address. A plain digest of a model would allow testing guesses of its training rows. The file stores
the blob encrypted under the key of its version. Destroying that key erases the blob even where a
disk, a snapshot or a backup keeps old blocks.
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
from letheon.state import sync_directory, write_atomically

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
"""Called at each fault point. Tests set it to stop, kill or delay a process there."""


def fault_point(name: str) -> None:
    """Call the hook with which tests simulate a power failure here, if a test has set one."""
    if hook is not None:
        hook(name)


@contextlib.contextmanager
def lock_file(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock a file until the context ends; create it if missing, also if its last holder deleted it.

    Yield True if the file is locked; False if `wait` is False and another process holds the lock.
    """
    how, is_locked = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB, False
    with contextlib.ExitStack() as stack:
        while not is_locked:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, how)
                is_locked = os.path.samestat(os.fstat(descriptor), path.stat())
            except BlockingIOError:
                break
            except FileNotFoundError:
                continue
        yield is_locked


class BlobCipher(Protocol):
    """Interface of the ciphers that encrypt and decrypt a blob."""

    def encrypt(self, data: bytes) -> bytes:
        """Return the encrypted bytes."""

    def decrypt(self, data: bytes) -> bytes:
        """Return the plain bytes; raise `CorruptFileError` if the data was changed."""


class BlobStore:
    """Blobs of one model, in a folder that only its owner can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Create the folder if it does not exist."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(self.folder.parent)

    def path_of(self, address: str) -> Path:
        """Return the path of the blob with this address."""
        if not _ADDRESS.fullmatch(address):
            raise ValueError(f"{address!r} is not a blob address; expected 64 hexadecimal digits")
        return self.folder / address

    def write(self, content: bytes, cipher: BlobCipher, nonce: bytes | None = None) -> str:
        """Write a blob durably and return its address; by default the nonce is drawn here.

        After a disk error the partial file is deleted, and the write is not retried: a second fsync
        may report success for pages that the kernel has dropped.
        """
        blob = (nonce or secrets.token_bytes(NONCE_BYTES)) + content
        address = hashlib.sha256(blob).hexdigest()
        write_atomically(self.path_of(address), _iterate_halves(cipher.encrypt(blob)))
        fault_point("blob.after-rename")
        return address

    def read(self, address: str, cipher: BlobCipher) -> bytes:
        """Return the content of a blob, without its nonce.

        Raises
        ------
        LedgerMissingError
            The blob does not exist: it was purged, or the file was removed.
        CorruptFileError
            The content of the file does not match its address.
        """
        return self.read_with_nonce(address, cipher)[NONCE_BYTES:]

    def read_with_nonce(self, address: str, cipher: BlobCipher) -> bytes:
        """Return the nonce and the content of a blob, after checking them against the address."""
        try:
            encrypted = self.path_of(address).read_bytes()
        except FileNotFoundError as error:
            raise LedgerMissingError(
                f"blob {address[:12]}… is missing in {self.folder}: it was purged, or its file "
                "was removed. `letheon doctor` lists missing files"
            ) from error
        altered = f"blob {address[:12]}… in {self.folder} was altered; restore the file"
        try:
            blob = cipher.decrypt(encrypted)
        except CorruptFileError as error:
            raise CorruptFileError(altered) from error
        if not hmac.compare_digest(hashlib.sha256(blob).hexdigest(), address):
            raise CorruptFileError(altered)
        return blob

    def is_sound(self, address: str, cipher: BlobCipher) -> bool:
        """Return whether the blob exists, can be decrypted, and matches its address."""
        try:
            self.read_with_nonce(address, cipher)
        except (LedgerMissingError, CorruptFileError, KeyFileError):
            return False
        return True

    def destroy(self, address: str) -> None:
        """Overwrite and delete a blob; do nothing if it does not exist."""
        destroy_file(self.path_of(address))

    def list_addresses(self) -> frozenset[str]:
        """Return the addresses of all blobs in the folder."""
        return frozenset(path.name for path in self._list_files() if _ADDRESS.fullmatch(path.name))

    def list_unreferenced(self, keep: Iterable[str]) -> list[Path]:
        """Return the paths of partial files, and of all blobs whose addresses are not in `keep`.

        Only the holder of the model's lease may delete these files, because no other process can
        publish a blob of the model at the same time.
        """
        kept = frozenset(keep)
        return [
            path
            for path in self._list_files()
            if path.name.endswith(_PARTIAL)
            or (_ADDRESS.fullmatch(path.name) and path.name not in kept)
        ]

    def _list_files(self) -> Iterator[Path]:
        return self.folder.iterdir() if self.folder.is_dir() else iter(())


def _iterate_halves(encrypted: bytes) -> Iterator[memoryview]:
    """Yield both halves of a file; a process may be killed after each of them."""
    data = memoryview(encrypted)
    yield data[: len(data) // 2]
    fault_point("blob.half-written")
    yield data[len(data) // 2 :]
    fault_point("blob.before-sync")


def destroy_file(path: Path) -> None:
    """Overwrite a file with zeros and delete it, both durably; ignore a file that does not exist.

    On a disk error, an `OSError` is raised and the file stays, so that the call can be repeated. A
    lack of space for the zeros is ignored: it happens on copy-on-write file systems, which keep the
    old blocks anyway. Content that must be unrecoverable is encrypted, and its key is destroyed.
    The folder is always synced, because a process that deleted the file earlier may have died
    before its sync.
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
    """The context of an open ledger.

    Attributes
    ----------
    folder : Path
        Home of the ledger.
    settings : Settings
        Content of ``letheon.toml``.
    database : Database
        Database of requests, versions and events.
    keys : KeyRing
        All secrets of the ledger; the database contains none of them.
    clock : callable
        Returns the seconds since 1970, in UTC.
    uptime : callable or None, default=None
        Returns the boot id of the machine and the seconds since boot. None if the caller
        passed a clock, which is then also used as the uptime. See `letheon.ledger.db.elapsed`.
    """

    folder: Path
    settings: "Settings"
    database: "Database"
    keys: "KeyRing"
    clock: Callable[[], int]
    uptime: Callable[[], tuple[str, int]] | None = None

    def blob_store(self, key: str) -> BlobStore:
        """Return the blob store of the model whose folder has this name."""
        return BlobStore(self.folder / "blobs" / key)

    def subfolder(self, kind: str) -> Path:
        """Return a subfolder, one of proofs, certificates, purges, checkpoints, keys and public."""
        return self.folder / kind
