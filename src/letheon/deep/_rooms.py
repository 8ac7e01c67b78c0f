"""The two kinds of room for the checkpoints of a net: one tensor, or files.

Both keep, read and destroy entries in the same way, and write aside what a request replaces.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from letheon import state
from letheon.exceptions import CheckpointError, CorruptFileError
from letheon.homes import Purge, Shelf
from letheon.removal import allocate_file

CPU = torch.device("cpu")
# Rows of a nameless file that is opened for what is written aside.
_CHUNK = 16


def _entry_bytes(flat: Tensor) -> bytes:
    """Return the safetensors bytes of an entry; their SHA-256 is its name."""
    return save({"flat": flat.detach().to(CPU).contiguous()})


def _entry_name(flat: Tensor) -> str:
    return hashlib.sha256(_entry_bytes(flat)).hexdigest()


def _from_bytes(data: bytes, p: int) -> Tensor:
    try:
        [(key, flat)] = load(data).items()
    except (SafetensorError, ValueError) as error:
        raise CorruptFileError(f"a checkpoint of a net is no safetensors file: {error}") from None
    if key != "flat" or flat.dtype != torch.float32 or flat.shape != (p,):
        raise CorruptFileError(f"a checkpoint does not hold the {p} float32 of this net")
    return flat


def mapped_zeros(shape: tuple[int, ...], what: str, advice: str) -> Tensor:
    """Return zeros in a file without a name, which only this user reads and ends with the process.

    Raises `CheckpointError` where there is no room for `what`, with some `advice`.
    """
    n_bytes = 4 * prod(shape)
    try:
        room = allocate_file(n_bytes)
    except OSError as error:
        raise CheckpointError(
            f"cannot keep {n_bytes} bytes of {what} in {tempfile.gettempdir()}: "
            f"{error.strerror or error}; {advice}"
        ) from error
    return torch.from_numpy(np.frombuffer(room, np.float32).reshape(shape))


def _mapped(n: int, p: int) -> Tensor:
    return mapped_zeros((n, p), "checkpoints", "set checkpoint_dir, or raise max_memory")


class Table:
    """Entries as the rows of one tensor, on a device or on a nameless file.

    A process that was forked shares the file with the other one, which may write into it at any
    time. So there the entries count as lost, and nothing is written.
    """

    def __init__(self, rows: Tensor, present: list[bool], *, mapped: bool) -> None:
        self._rows = rows
        self.present = present
        self.mapped = mapped
        self._owner = os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether the rows lie in a file of the process that this one was forked from."""
        return self.mapped and self._owner != os.getpid()

    @property
    def rows(self) -> Tensor:
        if self.is_foreign:
            raise CorruptFileError(
                "the checkpoints lie in a temporary file of the process that this one was forked "
                "from, which may change them; the next forget or learn trains them again"
            )
        return self._rows

    @classmethod
    def allocate(cls, n: int, p: int, device: torch.device, max_memory: int | None) -> Self:
        """Return n empty places, in a nameless file if they take more bytes than allowed."""
        mapped = max_memory is not None and 4 * n * p > max_memory
        rows = _mapped(n, p) if mapped else torch.zeros((n, p), device=device)
        return cls(rows, [False] * n, mapped=mapped)

    @property
    def kind(self) -> str:
        return "a nameless file" if self.mapped else f"memory ({self.rows.device})"

    @property
    def bytes_in_memory(self) -> int:
        return 0 if self.mapped else self._rows.nbytes

    @property
    def bytes_on_disk(self) -> int:
        return self._rows.nbytes if self.mapped else 0

    @property
    def files(self) -> frozenset[str]:
        return frozenset()

    def has(self, i: int) -> bool:
        return self.present[i]

    def read(self, i: int) -> Tensor:
        """Return the row itself, not a copy."""
        return self.rows[i]

    def write(self, i: int, flat: Tensor | None) -> None:
        if flat is None:
            self.rows[i].zero_()
        else:
            self.rows[i].copy_(flat)
        self.present[i] = flat is not None

    def names(self) -> list[str | None]:
        if self.is_foreign:
            return ["lost" if held else None for held in self.present]
        return [
            _entry_name(row) if held else None
            for row, held in zip(self.rows, self.present, strict=True)
        ]

    def begin(self) -> "TableStage":
        return TableStage(self)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.destroy()
            raise

    def destroy(self) -> Purge:
        if not self.is_foreign:
            self._rows.zero_()
        self.present = [False] * len(self.present)
        return Purge()

    def copy_to(self, device: torch.device, max_memory: int | None) -> "Table":
        """Return the same entries elsewhere, moved row by row."""
        n, p = self.rows.shape
        new = Table.allocate(n, p, device, max_memory)
        for target, row in zip(new.rows, self.rows, strict=True):
            target.copy_(row)
        new.present = list(self.present)
        return new

    def copy(self) -> "Table":
        return self.copy_to(self.rows.device, 0 if self.mapped else None)

    def to_state(self) -> dict[str, Any]:
        return {"rows": self.rows.to(CPU).numpy(), "present": np.array(self.present)}


class TableStage:
    """New rows in memory of their own, of the same kind as the table's."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._chunks: list[Tensor] = []
        self._new: dict[int, Tensor | None] = {}
        self._shifts: list[tuple[int, Tensor]] = []
        self._copies: list[Tensor] = []

    @property
    def bytes_in_memory(self) -> int:
        held = self._copies if self._table.mapped else [*self._copies, *self._rows()]
        return sum(tensor.nbytes for tensor in held)

    def _rows(self) -> list[Tensor]:
        return [row for row in self._new.values() if row is not None]

    def set(self, i: int, flat: Tensor | None) -> None:
        self._new[i] = None if flat is None else self._room().copy_(flat)

    def _room(self) -> Tensor:
        rows = self._table.rows
        if not self._table.mapped:
            return torch.empty_like(rows[0])
        used = len(self._rows())
        if used == _CHUNK * len(self._chunks):
            self._chunks.append(_mapped(_CHUNK, rows.shape[1]))
        return self._chunks[used // _CHUNK][used % _CHUNK]

    def hold(self, by: Tensor) -> Tensor:
        self._copies.append(by.to(self._table.rows.device, copy=True))
        return self._copies[-1]

    def shift(self, i: int, by: Tensor) -> None:
        self._shifts.append((i, by))

    def commit(self) -> Purge:
        """Overwrite the originals in place, so that they are gone."""
        for i, flat in self._new.items():
            self._table.write(i, flat)
        # Row by row: a sum of many rows at once would need memory that may not be there.
        for i, by in self._shifts:
            self._table.rows[i].add_(by)
        self.abandon()
        return Purge()

    def abandon(self) -> None:
        """Overwrite what was written aside: new rows and shifts tell the originals."""
        mine = [] if self._table.is_foreign else self._rows()
        for tensor in [*mine, *self._copies]:
            tensor.zero_()
        self._new, self._shifts, self._copies, self._chunks = {}, [], [], []


class Files:
    """Entries as files of the model's own directory, by the SHA-256 of their bytes."""

    kind = "files"
    bytes_in_memory = 0
    is_foreign = False

    def __init__(self, home: str | None, p: int, names: list[str | None], size: int) -> None:
        self.shelf = Shelf(home)
        self.p = p
        self._names = names
        self.size = size

    @property
    def bytes_on_disk(self) -> int:
        return len(self.files) * self.size

    @property
    def files(self) -> frozenset[str]:
        return frozenset(name for name in self._names if name is not None)

    def has(self, i: int) -> bool:
        return self._names[i] is not None

    def read(self, i: int) -> Tensor:
        """Return an entry as it was written, or raise `CorruptFileError`."""
        name = self._names[i]
        if self.shelf.store is None or name is None:
            raise CorruptFileError("the checkpoints of this net lie in no known checkpoint_dir")
        return _from_bytes(self.shelf.store.get(state.Checkpoint(name)), self.p)

    def keep(self, flat: Tensor | None) -> str | None:
        """Write a file and return its name; no entry needs none."""
        if flat is None:
            return None
        if self.shelf.store is None:
            raise CheckpointError("the checkpoints of this net lie in no known checkpoint_dir")
        data = _entry_bytes(flat)
        self.size = len(data)
        return self.shelf.store.put(data).sha256

    def write(self, i: int, flat: Tensor | None) -> None:
        name = self.keep(flat)
        is_new = self._names[i] is None
        self._names[i] = name
        if not is_new:
            self.shelf.destroy_all_but(self.files)

    def names(self) -> list[str | None]:
        return list(self._names)

    def begin(self) -> "FileStage":
        return FileStage(self)

    def rename(self, new: dict[int, str | None]) -> Purge:
        """Refer to new files in place of old ones, and destroy all others."""
        before = self.files
        self._names = [new.get(i, name) for i, name in enumerate(self._names)]
        return self.shelf.purge(before, self.files)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        try:
            with self.shelf.all_or_nothing():
                yield
        except BaseException:
            self._names = [None] * len(self._names)
            raise

    def destroy(self) -> Purge:
        before, self._names = self.files, [None] * len(self._names)
        return self.shelf.purge(before, frozenset())

    def copy(self) -> "Files":
        return Files(self.shelf.home, self.p, list(self._names), self.size)

    def to_state(self) -> dict[str, Any]:
        return {"names": list(self._names), "n_parameters": self.p, "file_size": self.size}


class FileStage:
    """New files beside the old ones."""

    bytes_in_memory = 0

    def __init__(self, files: Files) -> None:
        self._files = files
        self._before = files.shelf.names()
        self._names: dict[int, str | None] = {}

    def set(self, i: int, flat: Tensor | None) -> None:
        self._names[i] = self._files.keep(flat)

    def hold(self, by: Tensor) -> Tensor:
        return by.to(CPU)

    def shift(self, i: int, by: Tensor) -> None:
        self.set(i, self._files.read(i).add_(by))

    def commit(self) -> Purge:
        return self._files.rename(self._names)

    def abandon(self) -> None:
        """Destroy new files, but none that holds the same bytes as an old one."""
        self._files.shelf.destroy_all_but(self._before | self._files.files)
        self._names = {}


# What is written aside, in one kind of room; every entry is named once.
Stage = TableStage | FileStage


def files_from(plain: dict[str, Any]) -> Files:
    names, p, size = plain["names"], plain["n_parameters"], plain["file_size"]
    if type(p) is not int or type(size) is not int or p < 1 or not names:
        raise ValueError("not a valid vault: sizes")
    for name in names:
        if name is not None:
            state.Checkpoint(name)
    return Files(None, p, list(names), size)


def table_from(plain: dict[str, Any]) -> Table:
    rows: NDArray[Any] = plain["rows"]
    present: NDArray[Any] = plain["present"]
    if rows.dtype != np.float32 or rows.ndim != 2 or rows.size == 0:
        raise ValueError("not a valid vault: rows")
    if present.dtype != np.bool or present.shape != rows.shape[:1]:
        raise ValueError("not a valid vault: places")
    # Entries are overwritten in place, which needs memory that belongs to nobody else.
    owned = rows.flags.owndata and rows.flags.writeable and rows.flags.c_contiguous
    own = rows if owned else np.array(rows, order="C")
    return Table(torch.from_numpy(own), present.tolist(), mapped=False)
