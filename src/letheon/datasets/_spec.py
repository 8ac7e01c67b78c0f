"""Descriptions of data sets, their files, and the state of one call of `load`."""

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
NO_SUBJECT = "none"  # subject_id if every row belongs to a different person
UNVERIFIED = "unverified"
_OPENERS = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_DAMAGE = (EOFError, OSError, UnicodeDecodeError, csv.Error, lzma.LZMAError, zlib.error)


@dataclass(frozen=True, kw_only=True)
class SurveyRow:
    """A row of the survey's table of data sets (Mercuri et al. 2022, Table 1), as printed.

    Attributes
    ----------
    dimensionality, size, classes, balance : str
        Numbers of features, rows and classes, and the share of positive labels.

    Examples
    --------
    >>> from letheon import datasets
    >>> datasets.info("adult").survey.size
    '48,842'
    """

    dimensionality: str
    size: str
    classes: str
    balance: str = "N/A"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A file of the provider, which may have alternative names.

    Attributes
    ----------
    names : tuple of str
        Names without ``.gz``, ``.xz`` or ``.bz2``; a compressed file can be read directly. A name
        that ends with ``/`` is a folder.
    sha256 : mapping of str to str
        SHA-256 of the decompressed content, by name of the file; empty if not known.
    rows : mapping of str to int
        Number of rows, by name of the file; checked if there is no digest.
    optional : bool
        Whether the data set can be read without the file.
    variants : tuple of str
        Variants that need the file; empty for all variants.

    Examples
    --------
    >>> print(DataFile(names=("adult.data", "adult.csv"), optional=True))
    adult.data or adult.csv (optional)
    """

    names: tuple[str, ...]
    sha256: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    optional: bool = False
    variants: tuple[str, ...] = ()

    def is_needed(self, variant: str) -> bool:
        """Return whether a variant needs the file."""
        return not self.optional and (not self.variants or variant in self.variants)

    def find(self, folder: Path) -> tuple[str, Path] | None:
        """Return the first name that exists in a folder, and its path; None if none exists."""
        for name in self.names:
            base = folder / name
            for path in (base, *(base.with_name(base.name + end) for end in _OPENERS)):
                if path.is_dir() if name.endswith("/") else path.is_file():
                    return name, path
        return None

    def __str__(self) -> str:
        """Return the names as text: ``a or b``."""
        return " or ".join(self.names) + (" (optional)" if self.optional else "")


@dataclass(frozen=True)
class StandIn:
    """The shape of a synthetic table, which is equal to that of the real table.

    Attributes
    ----------
    n_rows, n_test : int
        Numbers of training and test rows; `n_test` is 0 if the provider has no split.
    n_numbers : int
        Number of numeric columns.
    n_flags : int
        Number of indicator columns (mostly 0).
    n_words : tuple of int
        Number of distinct words in each column of words.
    n_sparse : int
        Number of columns of a sparse table of word weights; 0 for a dense table.
    shares : tuple of float
        Shares of the classes, starting with class 0.
    rows_per_person : float
        Mean number of rows per person; 1 if every row belongs to a different person.
    class_is_person : bool
        Whether the class is the person, as in face recognition.
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
    """Arrays of a data set, as a reader returns them."""

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
    """The description of a data set: source, licence, ids, and how it is read.

    Attributes
    ----------
    name, title : str
        Name for `load`, and full name.
    folder : str
        Folder of the files below ``$LETHEON_DATA``; by default the name.
    files : tuple of DataFile
        The files in that folder.
    provider, page : str
        The provider of the files, and the address of the download page.
    licence, citation : str
        Terms of use, and the work to cite.
    licence_source, rows_source : str
        Sources of the licence and of the numbers of rows. If "unverified", ask the provider.
    subject_id : str
        Column of the id, or ``"none"`` if every row belongs to a different person.
    survey : SurveyRow
        The survey's row as printed.
    note : str
        Remarks: errors in the survey's numbers, and constants of the encoding.
    variants : mapping of str to str
        Names for ``load(..., variant=)``, with descriptions. The first is the default.
    image_shape : tuple of int or None
        Channels, height and width of an image; rows of X are images flattened in this order.
    has_words : bool
        Whether ``encode=`` has an effect.
    task : {"classification", "regression"}
        Kind of y.
    reader : callable
        Function that reads the files into arrays.
    stand_ins : mapping of str to StandIn
        Shapes of the synthetic tables, by variant.

    Examples
    --------
    >>> from letheon import datasets
    >>> about = datasets.info("adult")
    >>> about.title, about.task
    ('Adult (census income)', 'classification')
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
        """Set the folder to the name of the data set if it is empty."""
        object.__setattr__(self, "folder", self.folder or self.name)

    def how_to_get(self, home: str, variant: str = "") -> str:
        """Return instructions: which files are needed, their source, and where to put them."""
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
    """Return the folder of all data sets: `folder`, ``$LETHEON_DATA`` or ``~/.cache/letheon``.

    Parameters
    ----------
    folder : path, optional
        The folder to use.

    Returns
    -------
    Path
        The folder, which may not exist.

    Examples
    --------
    >>> data_home("tables").as_posix()
    'tables'
    """
    chosen = folder or os.environ.get("LETHEON_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "letheon"


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, decompressed according to its suffix.

    If an error in the block shows that the file is damaged, raise `DatasetFormatError`, which names
    the file.
    """
    opener: Any = _OPENERS.get(path.suffix, open)
    try:
        with opener(path, "rb") as stream:
            yield stream
    except DatasetFormatError as error:
        raise DatasetFormatError(f"{path}: {error}") from error
    except _DAMAGE as error:
        # Errors of the operating system have an errno, errors of a decompressor do not.
        if isinstance(error, LetheonError) or getattr(error, "errno", None) is not None:
            raise
        raise DatasetFormatError(
            f"{path} is damaged or has the wrong content: {error}. Download the file again"
        ) from error


@contextmanager
def open_text(path: Path, *, encoding: str = "utf-8") -> Iterator[IO[str]]:
    """Open a text file for reading; it is decompressed according to its suffix."""
    with open_bytes(path) as stream, io.TextIOWrapper(stream, encoding, newline="") as lines:
        yield lines


@dataclass(frozen=True, kw_only=True)
class ReadJob:
    """Inputs of a reader; files are identified by their position in `DatasetInfo.files`."""

    info: DatasetInfo
    home: Path
    variant: str
    encode: Encoding = "one-hot"
    n_rows: int | None = None
    seed: int = 0
    check: bool = True

    def find(self, number: int) -> tuple[str, Path] | None:
        """Return name and path of a file after verifying its content; None if it is missing."""
        file = self.info.files[number]
        spelling = file.find(self.home / self.info.folder)
        if spelling is not None and self.check and spelling[0] in file.sha256:
            _check_digest(spelling[1], file.sha256[spelling[0]])
        return spelling

    def locate_file(self, number: int = 0) -> tuple[str, Path]:
        """Return name and path of a required file after verifying its content."""
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
        """Raise `DatasetFormatError` if the number of rows is not the published one.

        The published number is `expected`, or that of the catalogue. If neither is known, nothing
        is checked.
        """
        file = self.info.files[number]
        name, path = file.find(self.home / self.info.folder) or ("", self.home)
        expected = file.rows.get(name) if expected is None else expected
        if self.check and expected is not None and n_rows != expected:
            raise DatasetFormatError(
                f"{path} has {n_rows:,} rows; expected {expected:,}. Download the file again, or "
                f"pass check=False to read it anyway"
            )


def _check_digest(path: Path, expected: str) -> None:
    """Raise `DatasetFormatError` if the SHA-256 of the decompressed content is not `expected`."""
    with open_bytes(path) as stream:
        content: Any = stream
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != expected:
        raise DatasetFormatError(
            f"{path} is not the published file: the SHA-256 of its content is {digest}; expected "
            f"{expected}. Download the file again, or pass check=False to read it anyway"
        )
