"""One call of `load`: what was asked for, and the files that answer it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from numpy.typing import NDArray

from letheon.datasets._files import check_content, check_rows, find, open_bytes, open_text
from letheon.datasets._info import DatasetInfo, Encoding
from letheon.datasets._synthetic import StandIn
from letheon.exceptions import DatasetMissingError

__all__ = ["Job", "Loaded", "Source"]


class Loaded(NamedTuple):
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
class Job:
    """What a reader needs to know; `open` and `text` find, verify and decompress files."""

    info: DatasetInfo
    home: Path
    variant: str
    encode: Encoding = "one-hot"
    n_rows: int | None = None
    seed: int = 0
    check: bool = True

    def where(self, number: int) -> tuple[str, Path]:
        """Return name and path of the file of this number in the list of files; verified."""
        found = self.maybe(number)
        if found is None:
            raise DatasetMissingError(self.info.how_to_get(str(self.home), self.variant))
        return found

    def maybe(self, number: int) -> tuple[str, Path] | None:
        """Return name and path of an optional file, or None; verified if it is there."""
        file = self.info.files[number]
        found = find(self.home, self.info, file)
        if found is not None and self.check:
            check_content(file, *found)
        return found

    @contextmanager
    def open(self, number: int = 0) -> Iterator[IO[bytes]]:
        """Open a file for reading bytes."""
        with open_bytes(self.where(number)[1]) as stream:
            yield stream

    @contextmanager
    def text(self, number: int = 0) -> Iterator[IO[str]]:
        """Open a file for reading lines."""
        with open_text(self.where(number)[1]) as lines:
            yield lines

    def count(self, number: int, found: int) -> None:
        """Compare a number of rows with the published one."""
        name, path = self.where_unchecked(number)
        if self.check:
            check_rows(path, self.info.files[number].rows.get(name), found)

    def where_unchecked(self, number: int) -> tuple[str, Path]:
        """Return name and path of a file that was opened before."""
        found = find(self.home, self.info, self.info.files[number])
        return found or (self.info.files[number].names[0], self.home / self.info.folder)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset: what is known about it, how its files are read, what stands in by variant."""

    info: DatasetInfo
    read: Callable[[Job], Loaded]
    stand_ins: Mapping[str, StandIn]
