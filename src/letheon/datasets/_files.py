"""Find, open and verify files: plain or compressed, whole content or line by line."""

import bz2
import csv
import gzip
import hashlib
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from letheon.datasets._info import DataFile, DatasetInfo
from letheon.exceptions import DatasetFormatError, LetheonError

__all__ = [
    "check_content",
    "check_rows",
    "content_digest",
    "data_home",
    "find",
    "open_bytes",
    "open_text",
]

_BLOCK = 2**20
_OPENERS = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_DAMAGE = (EOFError, OSError, UnicodeDecodeError, csv.Error, lzma.LZMAError, zlib.error)


def data_home(folder: str | Path | None = None) -> Path:
    """Return the folder of all datasets: the one given, ``$LETHEON_DATA``, ``~/.cache/letheon``."""
    given = folder or os.environ.get("LETHEON_DATA")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "letheon"


def find(home: Path, info: DatasetInfo, file: DataFile) -> tuple[str, Path] | None:
    """Return the first spelling of a file that is there and where, or None."""
    for name in file.names:
        base = home / info.folder / name
        for path in (base, *(base.with_name(base.name + end) for end in _OPENERS)):
            if path.is_dir() if name.endswith("/") else path.is_file():
                return name, path
    return None


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed by what its name ends with.

    Whatever shows within the block that the file is damaged becomes a `DatasetFormatError` that
    names the file.
    """
    opener: Any = _OPENERS.get(path.suffix, open)
    try:
        with opener(path, "rb") as stream:
            yield stream
    except DatasetFormatError as error:
        raise DatasetFormatError(f"{path}: {error}") from error
    except _DAMAGE as error:
        if _is_about_access(error):
            raise
        raise DatasetFormatError(
            f"{path} is damaged, or not what its name says: {error}. Download it again"
        ) from error


def _is_about_access(error: Exception) -> bool:
    """Tell errors of the system, which have a number, from those of a decompressor."""
    return isinstance(error, LetheonError) or getattr(error, "errno", None) is not None


@contextmanager
def open_text(path: Path, *, encoding: str = "utf-8") -> Iterator[IO[str]]:
    """Open a file for reading line by line, decompressed by what its name ends with."""
    with open_bytes(path) as stream, io.TextIOWrapper(stream, encoding, newline="") as lines:
        yield lines


def content_digest(path: Path) -> str:
    """Return the SHA-256 of the decompressed content, so that compression does not matter."""
    digest = hashlib.sha256()
    with open_bytes(path) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def check_content(file: DataFile, name: str, path: Path) -> None:
    """Compare the content with the published one, where its digest is known."""
    expected = file.sha256.get(name)
    if expected is None:
        return
    found = content_digest(path)
    if found != expected:
        raise DatasetFormatError(
            f"{path} is not the published file: SHA-256 of its content is {found}, expected "
            f"{expected}. Download it again, or pass check=False to read it as it is"
        )


def check_rows(path: Path, expected: int | None, found: int) -> None:
    """Compare the number of rows with the published one, where it is known."""
    if expected is not None and found != expected:
        raise DatasetFormatError(
            f"{path} has {found:,} rows, expected {expected:,}. Download it again, or pass "
            "check=False to read it as it is"
        )
