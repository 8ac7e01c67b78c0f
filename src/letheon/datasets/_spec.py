"""What a data set is, where its files are, and one call of `load` that reads them."""

import bz2
import csv
import gzip
import hashlib
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from numpy.typing import NDArray

from letheon.exceptions import DatasetFormatError, DatasetMissingError, LetheonError

Task = Literal["classification", "regression"]
Encoding = Literal["one-hot", "ordinal"]
NO_SUBJECT = "none"  # subject_id where every row is a person of its own
UNVERIFIED = "unverified"
_OPENERS = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_DAMAGE = (EOFError, OSError, UnicodeDecodeError, csv.Error, lzma.LZMAError, zlib.error)


@dataclass(frozen=True, kw_only=True)
class SurveyRow:
    """A row of the survey's table of datasets (Mercuri et al. 2022, Table 1), as printed.

    Attributes
    ----------
    dimensionality, size, classes, balance : str
        Number of features, of rows, of classes, and the share of positive labels.
    """

    dimensionality: str
    size: str
    classes: str
    balance: str = "N/A"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file of the provider, or several spellings of it of which one is enough.

    Attributes
    ----------
    names : tuple of str
        Names without ``.gz``, ``.xz`` or ``.bz2``; a compressed file is read as it is. A name that
        ends with ``/`` is a folder.
    sha256 : mapping of str to str
        Digests of the content (decompressed) by name, where we have seen the real file.
    rows : mapping of str to int
        Number of rows by name; it is compared where there is no digest.
    optional : bool
        Whether the dataset can be read without it.
    variants : tuple of str
        Variants that need the file; empty: all of them.
    """

    names: tuple[str, ...]
    sha256: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    optional: bool = False
    variants: tuple[str, ...] = ()

    def is_needed(self, variant: str) -> bool:
        """Say whether a variant cannot be read without the file."""
        return not self.optional and (not self.variants or variant in self.variants)

    def find(self, folder: Path) -> tuple[str, Path] | None:
        """Return the first spelling that exists in a folder and its path, or None."""
        for name in self.names:
            base = folder / name
            for path in (base, *(base.with_name(base.name + end) for end in _OPENERS)):
                if path.is_dir() if name.endswith("/") else path.is_file():
                    return name, path
        return None

    def __str__(self) -> str:
        """Name the spellings: ``a or b``."""
        return " or ".join(self.names) + (" (optional)" if self.optional else "")


@dataclass(frozen=True)
class StandIn:
    """What a made-up table has in common with the real one.

    Attributes
    ----------
    n_rows, n_test : int
        Rows to train and to test on; 0 test rows where the provider has no split.
    n_numbers : int
        Columns of numbers.
    n_flags : int
        Columns of 0 and 1, most of them 0.
    n_words : tuple of int
        For every column of words, how many different ones there are.
    n_sparse : int
        Columns of a sparse table of word weights; 0 for a dense one.
    shares : tuple of float
        Shares of the classes, from class 0 on.
    rows_per_person : float
        Mean number of rows of one person; 1 where every row is a person of its own.
    class_is_person : bool
        Whether the class *is* the person, as in pictures of faces.
    """

    n_rows: int
    n_test: int = 0
    _: KW_ONLY
    n_numbers: int = 0
    n_flags: int = 0
    n_words: tuple[int, ...] = ()
    n_sparse: int = 0
    shares: tuple[float, ...] = (0.5, 0.5)
    rows_per_person: float = 1.0
    class_is_person: bool = False


@dataclass(frozen=True)
class DatasetArrays:
    """Arrays of a dataset as a reader leaves them."""

    X: Any
    y: NDArray[Any]
    ids: NDArray[Any] | None = None
    X_test: Any = None
    y_test: NDArray[Any] | None = None
    test_ids: NDArray[Any] | None = None
    feature_names: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The specification of a dataset: source, terms, whose rows they are, and how it is read.

    Attributes
    ----------
    name, title : str
        Name for `load`, and the full one.
    folder : str
        Folder below ``$LETHEON_DATA`` in which the files are looked for; by default the name.
    files : tuple of DataFile
        What has to be in that folder.
    provider, page : str
        Who gives the files out, and the address of the page that says how.
    licence, citation : str
        Terms of use, and the work to cite.
    licence_source, rows_source : str
        Where the licence and the numbers of rows were looked up, or "unverified": ask the provider.
    subject_id : str
        Column that says whose row it is, or ``"none"``: then every row is a person of its own.
    survey : SurveyRow
        The survey's row as printed.
    note : str
        What one has to know: where the survey's numbers are wrong, what the encoding fixes.
    variants : mapping of str to str
        Names for ``load(..., variant=)``, and what they are. The first is the default.
    image_shape : tuple of int or None
        Channels, height and width of an image; rows of X are images laid out flat in this order.
    has_words : bool
        Whether ``encode=`` makes a difference.
    task : {"classification", "regression"}
        Kind of y.
    reader : callable
        Turns the files into arrays.
    stand_ins : mapping of str to StandIn
        Shapes of the made-up tables by variant.
    """

    name: str
    title: str
    files: tuple[DataFile, ...]
    provider: str
    page: str
    licence: str
    citation: str
    survey: SurveyRow
    reader: Callable[["ReadJob"], DatasetArrays] = field(repr=False)
    stand_ins: Mapping[str, StandIn] = field(repr=False)
    folder: str = ""
    licence_source: str = UNVERIFIED
    rows_source: str = UNVERIFIED
    subject_id: str = NO_SUBJECT
    note: str = ""
    variants: Mapping[str, str] = field(default_factory=dict)
    image_shape: tuple[int, int, int] | None = None
    has_words: bool = False
    task: Task = "classification"

    def __post_init__(self) -> None:
        """Files are in a folder of the dataset's name unless the specification says otherwise."""
        object.__setattr__(self, "folder", self.folder or self.name)

    def how_to_get(self, home: str, variant: str = "") -> str:
        """Say in words which files are needed, from whom, and where they go."""
        files = "\n".join(
            f"  {home}/{self.folder}/{file}"
            for file in self.files
            if file.optional or file.is_needed(variant)
        )
        return (
            f"the files of {self.name!r} ({self.title}) are missing. Required, compressed "
            f"(.gz, .xz, .bz2) or not:\n{files}\n"
            f"Provider: {self.provider}, {self.page}\n"
            f"Terms: {self.licence} ({self.licence_source})\n"
            + (f"Note: {self.note}\n" if self.note else "")
            + "To use another folder, set the environment variable LETHEON_DATA or pass folder=. "
            'To use random data of the same shape instead, pass synthetic="if-absent".'
        )


def data_home(folder: str | Path | None = None) -> Path:
    """Return the folder of all datasets: the one given, ``$LETHEON_DATA``, ``~/.cache/letheon``."""
    chosen = folder or os.environ.get("LETHEON_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "letheon"


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
        # Errors of the system have a number, those of a decompressor do not.
        if isinstance(error, LetheonError) or getattr(error, "errno", None) is not None:
            raise
        raise DatasetFormatError(
            f"{path} is damaged, or is not the file that its name says: {error}. Download it again"
        ) from error


@contextmanager
def open_text(path: Path, *, encoding: str = "utf-8") -> Iterator[IO[str]]:
    """Open a file for reading line by line, decompressed by what its name ends with."""
    with open_bytes(path) as stream, io.TextIOWrapper(stream, encoding, newline="") as lines:
        yield lines


@dataclass(frozen=True, kw_only=True)
class ReadJob:
    """What a reader needs to know; files are named by their place in the list of the spec."""

    info: DatasetInfo
    home: Path
    variant: str
    encode: Encoding = "one-hot"
    n_rows: int | None = None
    seed: int = 0
    check: bool = True

    def find(self, number: int) -> tuple[str, Path] | None:
        """Return name and path of a file, or None; its content is verified if it is there."""
        file = self.info.files[number]
        spelling = file.find(self.home / self.info.folder)
        if spelling is not None and self.check and spelling[0] in file.sha256:
            _check_digest(spelling[1], file.sha256[spelling[0]])
        return spelling

    def locate_file(self, number: int = 0) -> tuple[str, Path]:
        """Return name and path of a file that must be there; verified."""
        spelling = self.find(number)
        if spelling is None:
            raise DatasetMissingError(self.info.how_to_get(str(self.home), self.variant))
        return spelling

    def open(self, number: int = 0) -> AbstractContextManager[IO[bytes]]:
        """Open a file for reading bytes."""
        return open_bytes(self.locate_file(number)[1])

    def open_lines(self, number: int = 0) -> AbstractContextManager[IO[str]]:
        """Open a file for reading lines."""
        return open_text(self.locate_file(number)[1])

    def check_rows(self, number: int, n_rows: int, expected: int | None = None) -> None:
        """Compare a number of rows with the published one, where it is known."""
        file = self.info.files[number]
        name, path = file.find(self.home / self.info.folder) or ("", self.home)
        expected = file.rows.get(name) if expected is None else expected
        if self.check and expected is not None and n_rows != expected:
            raise DatasetFormatError(
                f"{path} has {n_rows:,} rows; expected {expected:,}. Download it again, or pass "
                "check=False to read it anyway"
            )


def _check_digest(path: Path, expected: str) -> None:
    """Compare the decompressed content with the published one: compression does not matter."""
    with open_bytes(path) as stream:
        content: Any = stream
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != expected:
        raise DatasetFormatError(
            f"{path} is not the published file: the SHA-256 of its content is {digest}; expected "
            f"{expected}. Download it again, or pass check=False to read it anyway"
        )
