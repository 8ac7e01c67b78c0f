"""The checkpoints of a net, and the nets that keep some.

A vault has n places for flat vectors of p float32: the parameters after every block or stage. They
lie in one tensor on the device, in a tensor on a nameless file when they take more bytes than
allowed, or as safetensors files in the model's own directory. What a request replaces is written
aside first and put in place by a commit, which destroys the originals: they saw the people that
leave, and so did the shift between two runs.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import index
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from letheon import state
from letheon.base import Outcome, Removal
from letheon.deep._base import NetBase
from letheon.deep._device import CPU, mapped_zeros
from letheon.deep._loop import Callback
from letheon.exceptions import CheckpointError, CheckpointWarning, CorruptFileError
from letheon.homes import HomeMixin, Purge, Shelf, destroy_home
from letheon.removal import Change
from letheon.validation import OrNone, Rules, Whole

# Rows of a nameless file that is opened for what is written aside.
_CHUNK = 16
_NO_HOME = "the checkpoints of this net lie in no known checkpoint_dir"


def _entry_bytes(flat: Tensor) -> bytes:
    """Return the safetensors bytes of an entry; their SHA-256 is its name."""
    return save({"flat": flat.detach().to(CPU).contiguous()})


class Table:
    """Entries as the rows of one tensor, on a device or on a nameless file.

    A process that was forked shares the file with the other one, which may write into it at any
    time. So there the entries count as lost, and nothing is written.
    """

    files: frozenset[str] = frozenset()

    def __init__(self, rows: Tensor, present: list[bool], *, is_mapped: bool) -> None:
        self._rows, self.present, self.is_mapped = rows, present, is_mapped
        self.n, self.p = rows.shape
        self.shelf = Shelf(None)
        self._owner = os.getpid()
        self._free: list[Tensor] = []

    @classmethod
    def allocate(cls, n: int, p: int, device: torch.device, max_memory: int | None) -> Self:
        """Return n empty places, in a nameless file if they take more bytes than allowed."""
        is_mapped = max_memory is not None and 4 * n * p > max_memory
        rows = mapped_zeros((n, p)) if is_mapped else torch.zeros((n, p), device=device)
        return cls(rows, [False] * n, is_mapped=is_mapped)

    @property
    def is_foreign(self) -> bool:
        """Whether the rows lie in a file of the process that this one was forked from."""
        return self.is_mapped and self._owner != os.getpid()

    @property
    def rows(self) -> Tensor:
        if self.is_foreign:
            raise CorruptFileError(
                "the checkpoints lie in a temporary file of the process that this one was forked "
                "from, which may change them; the next forget or learn trains them again"
            )
        return self._rows

    @property
    def kind(self) -> str:
        return "a nameless file" if self.is_mapped else f"memory ({self.rows.device})"

    @property
    def bytes_in_memory(self) -> int:
        return 0 if self.is_mapped else self._rows.nbytes

    @property
    def bytes_on_disk(self) -> int:
        return self._rows.nbytes if self.is_mapped else 0

    def has(self, i: int) -> bool:
        return self.present[i]

    def read(self, i: int) -> Tensor:
        """Return the row itself, not a copy."""
        return self.rows[i]

    def names(self) -> list[str | None]:
        if self.is_foreign:
            return ["lost" if held else None for held in self.present]
        entries = zip(self.rows, self.present, strict=True)
        return [
            hashlib.sha256(_entry_bytes(row)).hexdigest() if held else None for row, held in entries
        ]

    def stage(self, flat: Tensor) -> Tensor:
        """Return a copy in memory of its own, of the same kind as the table's."""
        row = self.rows[0]
        if not self.is_mapped:
            return torch.empty_like(row).copy_(flat)
        if not self._free:
            self._free = list(mapped_zeros((_CHUNK, self.p)))
        return self._free.pop().copy_(flat)

    def install(self, i: int, staged: Tensor | None) -> None:
        """Overwrite a row in place, so that the original is gone."""
        if staged is None:
            self.rows[i].zero_()
        else:
            self.rows[i].copy_(staged)
        self.present[i] = staged is not None

    put = install

    def discard(self, staged: Sequence[Tensor]) -> None:
        """Overwrite rows that were written aside: they tell the originals."""
        for row in () if self.is_foreign else staged:
            row.zero_()
        self._free = []

    def clear(self) -> None:
        if not self.is_foreign:
            self._rows.zero_()
        self.present = [False] * self.n

    def copy_to(self, device: torch.device, max_memory: int | None) -> "Table":
        """Return the same entries elsewhere, moved row by row."""
        new = Table.allocate(self.n, self.p, device, max_memory)
        for target, row in zip(new.rows, self.rows, strict=True):
            target.copy_(row)
        new.present = list(self.present)
        return new

    def copy(self) -> "Table":
        return self.copy_to(self.rows.device, 0 if self.is_mapped else None)

    def to_state(self) -> dict[str, Any]:
        return {"rows": self.rows.to(CPU).numpy(), "present": np.array(self.present)}

    @classmethod
    def from_state(cls, plain: dict[str, Any]) -> Self:
        rows: NDArray[Any] = plain["rows"]
        present: NDArray[Any] = plain["present"]
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.size == 0:
            raise ValueError("not a valid vault: rows")
        if present.dtype != np.bool or present.shape != rows.shape[:1]:
            raise ValueError("not a valid vault: places")
        # Entries are overwritten in place, which needs memory that belongs to nobody else.
        is_own = rows.flags.owndata and rows.flags.writeable and rows.flags.c_contiguous
        rows = rows if is_own else np.array(rows, order="C")
        return cls(torch.from_numpy(rows), present.tolist(), is_mapped=False)


class Files:
    """Entries as files of the model's own directory, by the SHA-256 of their bytes."""

    kind = "files"
    bytes_in_memory = 0
    is_foreign = False

    def __init__(self, home: str | None, p: int, names: list[str | None], size: int) -> None:
        self.shelf = Shelf(home)
        self.n, self.p, self._names, self.size = len(names), p, names, size

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
            raise CorruptFileError(_NO_HOME)
        data = self.shelf.store.get(state.Checkpoint(name))
        try:
            [(key, flat)] = load(data).items()
        except (SafetensorError, ValueError) as error:
            raise CorruptFileError(
                f"a checkpoint of a net is no safetensors file: {error}"
            ) from None
        if key != "flat" or flat.dtype != torch.float32 or flat.shape != (self.p,):
            raise CorruptFileError(f"a checkpoint does not hold the {self.p} float32 of this net")
        return flat

    def names(self) -> list[str | None]:
        return list(self._names)

    def stage(self, flat: Tensor) -> str:
        """Write a file and return its name."""
        if self.shelf.store is None:
            raise CheckpointError(_NO_HOME)
        data = _entry_bytes(flat)
        self.size = len(data)
        return self.shelf.store.put(data).sha256

    def install(self, i: int, staged: str | None) -> None:
        """Refer to a new file; the caller destroys the others."""
        self._names[i] = staged

    def put(self, i: int, flat: Tensor | None) -> None:
        was_there = self.has(i)
        self.install(i, None if flat is None else self.stage(flat))
        if was_there:
            self.shelf.destroy_all_but(self.files)

    def discard(self, staged: Sequence[str]) -> None:
        """Do nothing: the caller destroys files that are not referred to."""

    def clear(self) -> None:
        self._names = [None] * self.n

    def copy(self) -> "Files":
        return Files(self.shelf.home, self.p, list(self._names), self.size)

    def to_state(self) -> dict[str, Any]:
        return {"names": list(self._names), "n_parameters": self.p, "file_size": self.size}

    @classmethod
    def from_state(cls, plain: dict[str, Any]) -> Self:
        names, p, size = plain["names"], plain["n_parameters"], plain["file_size"]
        if type(p) is not int or type(size) is not int or p < 1 or not names:
            raise ValueError("not a valid vault: sizes")
        for name in names:
            if name is not None:
                state.Checkpoint(name)
        return cls(None, p, list(names), size)


Room = Table | Files


def _place(i: int, n: int) -> int:
    """Return an index as an int; -1 is no place: before block 0 there is no checkpoint."""
    if not 0 <= index(i) < n:
        raise IndexError(f"a vault of {n} entries has no entry {i}")
    return index(i)


class VaultChange:
    """Entries written aside for one request, to be committed or abandoned; each named once.

    As a context it abandons itself when the block fails.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._files = room.shelf.names()
        self._new: dict[int, Any] = {}
        self._shifts: dict[int, Tensor] = {}
        self.is_open = True

    def __repr__(self) -> str:
        """Tell the size only."""
        return f"<change of {len(self._new) + len(self._shifts)} entries of a vault>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()

    @property
    def bytes_in_memory(self) -> int:
        """Bytes that what is written aside takes in memory."""
        held = {id(shift): shift.nbytes for shift in self._shifts.values()}
        if isinstance(self._room, Table) and not self._room.is_mapped:
            held |= {id(row): row.nbytes for row in self._staged}
        return sum(held.values())

    def set(self, i: int, flat: Tensor | None) -> None:
        """Write a new entry i aside; None takes the entry away."""
        i = self._require_free(i)
        self._new[i] = None if flat is None else self._room.stage(_checked(flat, self._room.p))

    def shift(self, by: Tensor, entries: Sequence[int]) -> None:
        """Add a vector to entries: at the commit, or in files aside, one at a time."""
        by = _checked(by, self._room.p).clone()
        for i in map(self._require_free, entries):
            if not self._room.has(i):
                raise ValueError(f"entry {i} of the vault was never put, so cannot be shifted")
            if isinstance(self._room, Table):
                self._shifts[i] = by = by.to(self._room.rows.device)
            else:
                self._new[i] = self._room.stage(self._room.read(i).add_(by.to(CPU)))

    def abandon(self) -> None:
        """Destroy what was written aside; without effect after a commit."""
        if self.is_open:
            self._clear()
            # None that holds the same bytes as an old one.
            self._room.shelf.destroy_all_but(self._files | self._room.files)

    def commit(self) -> Purge:
        """Put the new entries in place; see `Vault.commit`."""
        room, before = self._room, self._room.files
        for i, staged in self._new.items():
            room.install(i, staged)
        # Row by row: a sum of many rows at once would need memory that may not be there.
        for i, by in self._shifts.items():
            room.read(i).add_(by)
        self._clear()
        return room.shelf.purge(before, room.files)

    @property
    def _staged(self) -> list[Any]:
        return [staged for staged in self._new.values() if staged is not None]

    def _clear(self) -> None:
        self.is_open = False
        self._room.discard(self._staged)
        for shift in self._shifts.values():
            shift.zero_()
        self._new, self._shifts = {}, {}

    def _require_free(self, i: int) -> int:
        if not self.is_open:
            raise ValueError("this change of a vault was committed or abandoned before")
        i = _place(i, self._room.n)
        if i in self._new or i in self._shifts:
            raise ValueError(f"entry {i} of the vault is named twice in one change")
        return i


def _checked(flat: Tensor, p: int) -> Tensor:
    if flat.dtype != torch.float32 or flat.shape != (p,):
        raise ValueError(
            f"an entry of {flat.dtype}, shape {tuple(flat.shape)}; expected {p} float32"
        )
    return flat.detach()


class Vault:
    """n flat vectors of p float32: entry i holds the parameters after block or stage i.

    Equal entries have equal digests wherever they lie. A copy has rows of its own, but shares the
    files of a directory: what one copy destroys the other misses, and says so. A nameless file
    ends with the process, however that ends; its blocks are given back and not overwritten then.
    In a process that was forked its entries count as lost.
    """

    def __init__(self, room: Room, device: torch.device) -> None:
        self._room = room
        self.n, self.p, self.device = room.n, room.p, device
        self._change: VaultChange | None = None

    @classmethod
    def create(
        cls,
        n: int,
        p: int,
        *,
        device: torch.device | str = CPU,
        home: str | None = None,
        max_memory: int | None = None,
    ) -> Self:
        """Return an empty vault for n entries of p numbers.

        They are files in the model's own directory `home`, or lie in a nameless file above
        `max_memory` bytes, or on the device. Raises `CheckpointError` if there is no room.
        """
        if n < 1 or p < 1:
            raise ValueError(f"a vault of {n} entries of {p} parameters; expected at least 1 of 1")
        device = _numbered(device)
        if home is not None:
            return cls(Files(home, p, [None] * n, 0), device)
        return cls(Table.allocate(n, p, device, max_memory), device)

    def __repr__(self) -> str:
        """Tell the size only."""
        return f"<vault of {self.n} entries of {self.p} parameters in {self._room.kind}>"

    @property
    def bytes_in_memory(self) -> int:
        """Bytes that entries take in memory, those of an open change included."""
        aside = 0 if self._change is None else self._change.bytes_in_memory
        return self._room.bytes_in_memory + aside

    @property
    def bytes_on_disk(self) -> int:
        """Bytes that entries take in files."""
        return self._room.bytes_on_disk

    @property
    def files(self) -> frozenset[str]:
        """Names of the files that the vault refers to."""
        return self._room.files

    @property
    def is_foreign(self) -> bool:
        """Whether entries lie in a nameless file of the process that this one was forked from."""
        return self._room.is_foreign

    def get(self, i: int) -> Tensor | None:
        """Return a copy of entry i on the device, or None if there is none.

        Raises `CorruptFileError` if it is missing or altered, or belongs to another process.
        """
        i = _place(i, self.n)
        return self._room.read(i).to(self.device, copy=True) if self._room.has(i) else None

    def put(self, i: int, flat: Tensor | None) -> None:
        """Write entry i at once: for a new vault, inside `filling`."""
        self._abandon()
        self._room.put(_place(i, self.n), None if flat is None else _checked(flat, self.p))

    @contextmanager
    def filling(self) -> Iterator[Self]:
        """Check that entries can be written; if the block fails, destroy all of them."""
        try:
            with self._room.shelf.all_or_nothing():
                yield self
        except BaseException:
            self._room.clear()
            raise

    def begin(self) -> VaultChange:
        """Return a change to be filled entry by entry; one left open before is abandoned."""
        self._abandon()
        self._change = VaultChange(self._room)
        return self._change

    def commit(self, change: VaultChange) -> Purge:
        """Put a change in place and destroy the originals; cannot fail.

        Returns files of originals that were not found or could not be destroyed.
        """
        if change is not self._change or not change.is_open:
            raise ValueError("only the last change that was begun, and still open, is committed")
        self._change = None
        return change.commit()

    def destroy(self) -> Purge:
        """Overwrite every entry, or destroy its file; the vault is empty afterwards."""
        self._abandon()
        before = self.files
        self._room.clear()
        return self._room.shelf.purge(before, frozenset())

    def to(self, device: torch.device | str, *, max_memory: int | None = None) -> Self:
        """Move to a device, or to a nameless file above `max_memory` bytes.

        A vault that was loaded lies in the host's memory. Only a move abandons an open change.
        """
        device, room = _numbered(device), self._room
        if isinstance(room, Table):
            is_mapped = max_memory is not None and room.rows.nbytes > max_memory
            if is_mapped != room.is_mapped or (not is_mapped and room.rows.device != device):
                self._abandon()
                self._room = room.copy_to(device, max_memory)
                room.clear()
        self.device = device
        return self

    def settle(self, home: str | None) -> Self:
        """Look for files in this directory; only another one abandons an open change."""
        if isinstance(self._room, Files) and self._room.shelf.home != home:
            self._abandon()
            self._room.shelf = Shelf(home)
        return self

    def _abandon(self) -> None:
        if self._change is not None:
            self._change.abandon()
            self._change = None

    def _digest_state(self) -> dict[str, Any]:
        """What was learned, wherever it lies: the SHA-256 of every entry's safetensors bytes."""
        return {"n_parameters": self.p, "entries": self._room.names()}

    def _to_state(self) -> dict[str, Any]:
        return self._room.to_state()

    @classmethod
    def _from_state(cls, state: dict[str, Any], home: str | None = None) -> Self:
        room: Room = Files.from_state(state) if "names" in state else Table.from_state(state)
        return cls(room, CPU).settle(home)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what a file would hold, and where the files lie."""
        return type(self)._from_state, (self._to_state(), self._room.shelf.home)

    def __copy__(self) -> Self:
        """Return a vault with rows of its own: they change in place."""
        return type(self)(self._room.copy(), self.device)

    def __deepcopy__(self, _: Any) -> Self:
        return self.__copy__()


def _numbered(device: torch.device | str) -> torch.device:
    """Return "cuda" as the GPU that it stands for."""
    return torch.empty(0, device=device).device


@dataclass(kw_only=True, eq=False, repr=False)
class CheckpointedNet(HomeMixin, NetBase):
    """A net with a vault: in memory, in a nameless file above `max_memory` bytes, or in files.

    Its plans are a `Change` and the open change of its vault; None where the vault is a new one.
    """

    _parameter_rules: ClassVar[Rules] = {"max_memory": OrNone(Whole(0))}
    _not_digested: ClassVar[frozenset[str]] = NetBase._not_digested | HomeMixin.home_attributes

    checkpoint_dir: Any = None
    max_memory: int | None = None

    vault_: Vault = field(init=False)

    def _require_same_parameters(self) -> None:
        super()._require_same_parameters()
        self._require_home_in_place()

    def _new_vault(self, n: int, p: int) -> tuple[Vault, dict[str, Any]]:
        """Return an empty vault of a new fit, and the attributes that go with it."""
        home = self._new_home()
        vault = Vault.create(n, p, device=self._device(), home=home, max_memory=self.max_memory)
        return vault, {"vault_": vault, **self._place(home)}

    def _vault(self) -> Vault:
        """Return the vault where it lies now: the model may have been loaded or moved."""
        vault = self.vault_.settle(self._home())
        return vault.to(self._device(), max_memory=self.max_memory)

    def _prepare(
        self, removal: Removal, callback: Callback | None = None
    ) -> tuple[Change, VaultChange | None]:
        lost = self._lost()
        if lost is None:
            self._vault()
            plan: Any = super()._prepare(removal, callback)
            return plan if isinstance(plan, tuple) else (plan, None)
        self._counts_without(removal.where)  # raises where one class would be left
        with self._training():
            return with_reason(self._retrain(removal.where, callback), lost), None

    def _lost(self) -> str | None:
        """Say why no state can be read or replaced any more, if so: all is trained again then."""
        if self.checkpoint_home_ is not None and self.checkpoint_dir is None:
            self._vault()
            return f"the states in {self.checkpoint_home_} are gone, and checkpoint_dir is None now"
        if self.vault_.is_foreign:
            return "the states belong to the process that this one was forked from"
        return None

    def _commit(self, plan: tuple[Change, VaultChange | None]) -> Outcome:
        (change, aside), old = plan, self.vault_
        # A model whose states lie in memory has no directory, whatever `checkpoint_dir` says now;
        # where one was taken away, messages name it once more.
        if self.checkpoint_home_ is not None and self.checkpoint_dir is not None:
            vars(self).update(self._place(self._home()))
        purge = old.destroy() if aside is None else old.commit(aside)
        # Before the change, which may bring a new directory: messages name that of the old states.
        messages = self._account(purge, afresh=False)
        return _with_warnings(change.commit(self), messages)

    def _replace_all(self, change: Change, about: dict[str, Any]) -> tuple[Warning, ...]:
        old_homes = self._old_homes()
        super()._replace_all(change, about)
        self.undestroyed_, self.unaccounted_ = (), ()
        messages = [message for home in old_homes for message in destroy_home(home)]
        return _with_warnings(change.outcome, messages).warnings

    def _changed_in_place(self) -> tuple[str, ...]:
        return (*super()._changed_in_place(), "vault_")


def with_reason(change: Change, why: str, what: str = "everything was trained again") -> Change:
    """Return a change that warns why everything was trained again."""
    outcome = _with_warnings(change.outcome, [f"{why}; {what}"])
    return Change(change.attributes, outcome, change.writes)


def _with_warnings(outcome: Outcome, messages: list[str]) -> Outcome:
    warnings = map(CheckpointWarning, messages)
    return outcome._replace(warnings=(*outcome.warnings, *warnings))
