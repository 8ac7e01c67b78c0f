"""A store of checkpoints: files in a directory, named by the SHA-256 of their bytes.

Reading a checkpoint by name returns exactly the bytes that were written, or raises an error.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from letheon.exceptions import CheckpointError, CorruptFileError
from letheon.state._bytes import sync_directory, write_atomically
from letheon.state._nodes import Buffer

_SHA256 = re.compile("[0-9a-f]{64}")
_SUFFIX = ".letheon-state"
_OURS = re.compile(rf"\.?(?P<sha256>[0-9a-f]{{64}}|probe){re.escape(_SUFFIX)}(?P<partial>\..*)?")
_ZEROS = bytes(1 << 16)


@dataclass(frozen=True)
class CheckpointName:
    """Name of a checkpoint: the SHA-256 of its bytes, in hexadecimal.

    Parameters
    ----------
    sha256 : str
        64 lower-case hexadecimal digits.

    Raises
    ------
    ValueError
        Anything else.

    Examples
    --------
    >>> import hashlib
    >>> from letheon.state import CheckpointName
    >>> CheckpointName(hashlib.sha256(b"a state").hexdigest()).sha256[:8]
    '1b1c710d'
    """

    sha256: str

    def __post_init__(self) -> None:
        """Raise a ValueError for any other value, because the name becomes part of a path."""
        if type(self.sha256) is not str or _SHA256.fullmatch(self.sha256) is None:
            raise ValueError(
                f"sha256={self.sha256!r} is not valid: expected 64 lower-case hexadecimal digits"
            )


def _name_of(blob: Buffer) -> CheckpointName:
    return CheckpointName(hashlib.sha256(blob).hexdigest())


def _verify_blob(blob: bytes, checkpoint: CheckpointName, where: str) -> bytes:
    if _name_of(blob) != checkpoint:
        raise CorruptFileError(f"checkpoint {checkpoint.sha256} in {where} was altered")
    return blob


class DirectoryStore:
    """A store of checkpoints: files ``<sha256>.letheon-state`` that only their owner can read.

    Parameters
    ----------
    path : str or path-like
        The directory; it is created when it is first needed.

    Notes
    -----
    `keep_only` overwrites files with zeros before it unlinks them. Copy-on-write file systems and
    flash disks with wear levelling may still keep the old blocks; encrypt such disks.

    Examples
    --------
    >>> import tempfile
    >>> from letheon.state import DirectoryStore
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = DirectoryStore(folder)
    ...     name = store.put(b"a state")
    ...     bytes(store.get(name))
    b'a state'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self.path)!r})"

    def __len__(self) -> int:
        return sum(1 for _ in self.path.glob(f"*{_SUFFIX}"))

    def verify_writable(self) -> None:
        """Check that checkpoints can be written to the directory; call this before training.

        Raises
        ------
        CheckpointError
            If the directory cannot be created or written, or the disk is full.
        """
        probe = self.path / f"probe{_SUFFIX}"
        with self._translate_errors("write a test file to"):
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(probe, [_ZEROS[:4096]])
            probe.unlink()

    def put(self, blob: Buffer) -> CheckpointName:
        """Write bytes as a checkpoint, and return its name.

        Raises
        ------
        CheckpointError
            If the bytes cannot be written; no partial file remains.
        """
        checkpoint = _name_of(blob)
        with self._translate_errors("write a checkpoint to"):
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path_of(checkpoint), [blob])
        return checkpoint

    def get(self, checkpoint: CheckpointName) -> bytes:
        """Return the bytes of the checkpoint with this name.

        Raises
        ------
        CorruptFileError
            If the file is missing, unreadable or altered.
        """
        file = self._path_of(checkpoint)
        try:
            blob = file.read_bytes()
        except OSError as error:
            raise CorruptFileError(f"checkpoint {file} cannot be read: {error}") from None
        return _verify_blob(blob, checkpoint, str(self.path))

    def names(self) -> frozenset[str]:
        """Return the SHA-256 names of all checkpoints in the directory."""
        return frozenset(file.name.removesuffix(_SUFFIX) for file in self.path.glob(f"*{_SUFFIX}"))

    def keep_only(self, names: frozenset[str]) -> tuple[str, ...]:
        """Destroy all checkpoints in the directory except `names`, including partial files.

        Use this only for a directory that belongs to one model. Files that are not checkpoints are
        not changed. An empty directory is removed.

        Returns
        -------
        tuple of str
            Names of files that could not be destroyed; empty if all were destroyed.
        """
        undestroyed = []
        try:
            files = sorted(self.path.iterdir()) if self.path.is_dir() else []
        except OSError:
            return (str(self.path),)
        for file in files:
            match = _OURS.fullmatch(file.name)
            if match and (match["partial"] or match["sha256"] not in names):
                try:
                    _destroy_file(file)
                except OSError:
                    undestroyed.append(str(file))
        with contextlib.suppress(OSError):
            sync_directory(self.path)
            if not names:
                self.path.rmdir()
        return tuple(undestroyed)

    def _path_of(self, checkpoint: CheckpointName) -> Path:
        return self.path / f"{checkpoint.sha256}{_SUFFIX}"

    @contextlib.contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"cannot {action} {self.path}: {error.strerror or error}; "
                "choose a writable directory with enough free space"
            ) from error


def _destroy_file(file: Path) -> None:
    """Overwrite a file with zeros and delete it; a link is deleted without its target."""
    with contextlib.suppress(FileNotFoundError):
        with contextlib.suppress(PermissionError, IsADirectoryError):
            _overwrite_file(file)
        file.unlink()


def _overwrite_file(file: Path) -> None:
    if file.is_symlink():
        return
    descriptor = os.open(file, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        rest = os.fstat(descriptor).st_size
        while rest > 0:
            rest -= os.write(descriptor, _ZEROS[: min(rest, len(_ZEROS))])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
