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
from itertools import count
from operator import index
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from letheon import state
from letheon.base import Outcome, Removal
from letheon.checkpoint_home import (
    CheckpointDirectory,
    DestructionReport,
    HomeMixin,
    destroy_home,
)
from letheon.deep._base import NetBase
from letheon.deep._device import CPU, mapped_zeros
from letheon.deep._loop import Callback
from letheon.exceptions import CheckpointError, CheckpointWarning, CorruptFileError
from letheon.removal import Change
from letheon.validation import OrNone, Rules, Whole

# Rows of a nameless file that is opened for what is written aside.
_CHUNK = 16
_NO_HOME = "the checkpoints of this net lie in no known checkpoint_dir"
_FOREIGN = (
    "the checkpoints lie in a temporary file of the process that this one was forked from, which "
    "may change them; the next forget or learn trains them again"
)


def _entry_bytes(flat: Tensor) -> bytes:
    """Return the safetensors bytes of an entry; their SHA-256 is its name."""
    return save({"flat": flat.detach().to(CPU).contiguous()})


class MemoryStore:
    """Vectors in tensors on a device, or in nameless files above `max_memory` bytes; by number.

    A process that was forked shares the file with the other one, which may write into it at any
    time. So there the entries count as lost, and nothing is written.
    """

    size = 0  # of a file

    def __init__(self, n: int, p: int, device: torch.device, max_memory: int | None) -> None:
        self.is_mapped = max_memory is not None and 4 * n * p > max_memory
        self.device = CPU if self.is_mapped else device
        self.kind = "a nameless file" if self.is_mapped else f"memory ({device})"
        self.bytes_on_disk = 4 * n * p if self.is_mapped else 0
        self._n, self._p, self._owner, self._numbers = n, p, os.getpid(), count()
        self._rows: dict[int, Tensor] = {}
        self._free = self._allocate(n)
        self.shelf = CheckpointDirectory(None)

    def _allocate(self, n: int) -> list[Tensor]:
        if self.is_mapped:
            return list(mapped_zeros((n, self._p)))
        return [torch.zeros(self._p, device=self.device) for _ in range(n)]

    @property
    def is_foreign(self) -> bool:
        """Whether the rows lie in a file of the process that this one was forked from."""
        return self.is_mapped and self._owner != os.getpid()

    @property
    def bytes_in_memory(self) -> int:
        rows = [] if self.is_mapped else [*self._rows.values(), *self._free]
        return sum(row.nbytes for row in rows)

    def keys(self) -> frozenset[int]:
        """Return the numbers of all vectors that are kept."""
        return frozenset(self._rows)

    def put(self, flat: Tensor) -> int:
        """Keep a copy and return its number."""
        if self.is_foreign:
            raise CorruptFileError(_FOREIGN)
        if not self._free:
            self._free = self._allocate(_CHUNK if self.is_mapped else 1)
        number = next(self._numbers)
        self._rows[number] = self._free.pop().copy_(flat)
        return number

    def get(self, number: int) -> Tensor:
        """Return the vector itself, not a copy."""
        if self.is_foreign:
            raise CorruptFileError(_FOREIGN)
        return self._rows[number]

    def name_of(self, number: int) -> str:
        """Return the name that the vector would have as a file."""
        if self.is_foreign:
            return "lost"
        return hashlib.sha256(_entry_bytes(self._rows[number])).hexdigest()

    def keep_only(self, numbers: frozenset[int]) -> tuple[str, ...]:
        """Overwrite all other vectors; they tell the people that left."""
        for number in self._rows.keys() - numbers:
            row = self._rows.pop(number)
            if not self.is_foreign:
                self._free.append(row.zero_())
        if not self.is_mapped:
            del self._free[max(self._n - len(self._rows), 0) :]
        return ()


class FileStore:
    """Vectors as safetensors files of the model's own directory, by the SHA-256 of their bytes."""

    kind = "files"
    device = CPU
    is_foreign = False
    bytes_in_memory = bytes_on_disk = 0  # the vault counts files

    def __init__(self, home: str | None, p: int, size: int = 0) -> None:
        self.shelf, self._p, self.size = CheckpointDirectory(home), p, size

    def keys(self) -> frozenset[str]:
        """Return the names of all files."""
        return self.shelf.names()

    def put(self, flat: Tensor) -> str:
        """Write a file and return its name."""
        if self.shelf.store is None:
            raise CheckpointError(_NO_HOME)
        data = _entry_bytes(flat)
        self.size = len(data)
        return self.shelf.store.put(data).sha256

    def get(self, name: str) -> Tensor:
        """Return a vector as it was written, or raise `CorruptFileError`."""
        if self.shelf.store is None:
            raise CorruptFileError(_NO_HOME)
        data = self.shelf.store.get(state.CheckpointName(name))
        try:
            [(key, flat)] = load(data).items()
        except (SafetensorError, ValueError) as error:
            raise CorruptFileError(
                f"a checkpoint of a net is no safetensors file: {error}"
            ) from None
        if key != "flat" or flat.dtype != torch.float32 or flat.shape != (self._p,):
            raise CorruptFileError(f"a checkpoint does not hold the {self._p} float32 of this net")
        return flat

    def name_of(self, name: str) -> str:
        """Return the name."""
        return name

    def keep_only(self, names: frozenset[str]) -> tuple[str, ...]:
        """Destroy all other files; return those that resisted."""
        return self.shelf.destroy_all_but(names)


Store = MemoryStore | FileStore


class VaultChange:
    """Entries written aside for one request, to be committed or abandoned; each named once.

    As a context it abandons itself when the block fails.
    """

    def __init__(self, vault: "Vault") -> None:
        self._vault, self._store = vault, vault._store
        self._before = self._store.keys()
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

    def set(self, i: int, flat: Tensor | None) -> None:
        """Write a new entry i aside; None takes the entry away."""
        i = self._require_free(i)
        self._new[i] = self._vault._write(flat)

    def shift(self, by: Tensor, entries: Sequence[int]) -> None:
        """Add a vector to entries: at the commit, or in files aside, one at a time."""
        store = self._store
        by = self._vault._checked(by).to(store.device, copy=True)
        for i in map(self._require_free, entries):
            key = self._vault._keys[i]
            if key is None:
                raise ValueError(f"entry {i} of the vault was never put, so cannot be shifted")
            if isinstance(store, MemoryStore):
                self._shifts[i] = by
            else:
                self._new[i] = store.put(store.get(key).add_(by))

    def abandon(self) -> None:
        """Destroy what was written aside; without effect after a commit."""
        if self.is_open:
            self._clear()
            # No file that holds the same bytes as an old one.
            self._store.keep_only(self._before | self._vault._kept())

    def commit(self) -> DestructionReport:
        """Put the new entries in place; see `Vault.commit`."""
        keys, before = self._vault._keys, self._vault._kept()
        for i, key in self._new.items():
            keys[i] = key
        # In place, one by one: copies would need memory that may not be there.
        for i, by in self._shifts.items():
            self._store.get(keys[i]).add_(by)
        self._clear()
        return self._vault._purge(before)

    def _clear(self) -> None:
        self.is_open = False
        for shift in self._shifts.values():
            shift.zero_()
        self._new, self._shifts = {}, {}

    def _require_free(self, i: int) -> int:
        if not self.is_open:
            raise ValueError("this change of a vault was committed or abandoned before")
        i = self._vault._place(i)
        if i in self._new or i in self._shifts:
            raise ValueError(f"entry {i} of the vault is named twice in one change")
        return i


class Vault:
    """n flat vectors of p float32: entry i holds the parameters after block or stage i.

    Equal entries have equal digests wherever they lie. A copy has vectors of its own, but shares
    the files of a directory: what one copy destroys the other misses, and says so. A nameless file
    ends with the process, however that ends; its blocks are given back and not overwritten then.
    In a process that was forked its entries count as lost.
    """

    def __init__(
        self, store: MemoryStore | FileStore, n: int, p: int, device: torch.device
    ) -> None:
        self._store: Any = store
        self._keys: list[Any] = [None] * n
        self.n, self.p, self.device = n, p, device
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
            return cls(FileStore(home, p), n, p, device)
        return cls(MemoryStore(n, p, device, max_memory), n, p, device)

    def __repr__(self) -> str:
        """Tell the size only."""
        return f"<vault of {self.n} entries of {self.p} parameters in {self._store.kind}>"

    @property
    def bytes_in_memory(self) -> int:
        """Bytes that entries take in memory, those of an open change included."""
        shifts = {} if self._change is None else self._change._shifts
        aside = {id(shift): shift.nbytes for shift in shifts.values()}
        return int(self._store.bytes_in_memory) + sum(aside.values())

    @property
    def bytes_on_disk(self) -> int:
        """Bytes that entries take in files."""
        store: Store = self._store
        return len(self.files) * store.size + store.bytes_on_disk

    @property
    def files(self) -> frozenset[str]:
        """Names of the files that the vault refers to."""
        return self._kept() if self._is_on_files else frozenset()

    @property
    def is_foreign(self) -> bool:
        """Whether entries lie in a nameless file of the process that this one was forked from."""
        return bool(self._store.is_foreign)

    def get(self, i: int) -> Tensor | None:
        """Return a copy of entry i on the device, or None if there is none.

        Raises `CorruptFileError` if it is missing or altered, or belongs to another process.
        """
        key = self._keys[self._place(i)]
        return None if key is None else self._store.get(key).to(self.device, copy=True)

    def put(self, i: int, flat: Tensor | None) -> None:
        """Write entry i at once: for a new vault, inside `filling`."""
        self._abandon()
        i = self._place(i)
        old, self._keys[i] = self._keys[i], self._write(flat)
        if old is not None:
            self._store.keep_only(self._kept())

    @contextmanager
    def filling(self) -> Iterator[Self]:
        """Check that entries can be written; if the block fails, destroy all of them."""
        before = self._store.keys()
        try:
            with self._store.shelf.all_or_nothing():
                yield self
        except BaseException:
            self._keys = [None] * self.n
            self._store.keep_only(before)
            raise

    def begin(self) -> VaultChange:
        """Return a change to be filled entry by entry; one left open before is abandoned."""
        self._abandon()
        self._change = VaultChange(self)
        return self._change

    def commit(self, change: VaultChange) -> DestructionReport:
        """Put a change in place and destroy the originals; cannot fail.

        Returns files of originals that were not found or could not be destroyed.
        """
        if change is not self._change or not change.is_open:
            raise ValueError("only the last change that was begun, and still open, is committed")
        self._change = None
        return change.commit()

    def destroy(self) -> DestructionReport:
        """Overwrite every entry, or destroy its file; the vault is empty afterwards."""
        self._abandon()
        before, self._keys = self._kept(), [None] * self.n
        return self._purge(before)

    def to(self, device: torch.device | str, *, max_memory: int | None = None) -> Self:
        """Move to a device, or to a nameless file above `max_memory` bytes.

        A vault that was loaded lies in the host's memory. Only a move abandons an open change.
        """
        device, old = _numbered(device), self._store
        if isinstance(old, MemoryStore):
            is_mapped = max_memory is not None and 4 * self.n * self.p > max_memory
            if is_mapped != old.is_mapped or (not is_mapped and old.device != device):
                self._abandon()
                twin = self._copied(device, max_memory)
                self._store, self._keys = twin._store, twin._keys
                old.keep_only(frozenset())
        self.device = device
        return self

    def settle(self, home: str | None) -> Self:
        """Look for files in this directory; only another one abandons an open change."""
        if self._is_on_files and self._store.shelf.home != home:
            self._abandon()
            self._store.shelf = CheckpointDirectory(home)
        return self

    @property
    def _is_on_files(self) -> bool:
        return isinstance(self._store, FileStore)

    def _place(self, i: int) -> int:
        """Return an index as an int; -1 is no place: before block 0 there is no checkpoint."""
        if not 0 <= index(i) < self.n:
            raise IndexError(f"a vault of {self.n} entries has no entry {i}")
        return index(i)

    def _checked(self, flat: Tensor) -> Tensor:
        if flat.dtype != torch.float32 or flat.shape != (self.p,):
            raise ValueError(
                f"an entry of {flat.dtype}, shape {tuple(flat.shape)}; expected {self.p} float32"
            )
        return flat.detach()

    def _write(self, flat: Tensor | None) -> Any:
        return None if flat is None else self._store.put(self._checked(flat))

    def _kept(self) -> frozenset[Any]:
        return frozenset(key for key in self._keys if key is not None)

    def _purge(self, before: frozenset[Any]) -> DestructionReport:
        """Destroy all vectors that are no entries; those `before` are expected to be there."""
        after = self._kept()
        missing = sorted(before - after - self._store.keys())
        return DestructionReport(tuple(missing), self._store.keep_only(after))

    def _abandon(self) -> None:
        if self._change is not None:
            self._change.abandon()
            self._change = None

    def _copied(self, device: torch.device, max_memory: int | None) -> Self:
        twin = type(self)(MemoryStore(self.n, self.p, device, max_memory), self.n, self.p, device)
        for i, key in enumerate(self._keys):
            twin._keys[i] = None if key is None else twin._store.put(self._store.get(key))
        return twin

    def _digest_state(self) -> dict[str, Any]:
        """What was learned, wherever it lies: the SHA-256 of every entry's safetensors bytes."""
        names = [None if key is None else self._store.name_of(key) for key in self._keys]
        return {"n_parameters": self.p, "entries": names}

    def _to_state(self) -> dict[str, Any]:
        if self._is_on_files:
            size = self._store.size
            return {"names": list(self._keys), "n_parameters": self.p, "file_size": size}
        rows = np.zeros((self.n, self.p), np.float32)
        for row, key in zip(rows, self._keys, strict=True):
            if key is not None:
                row[:] = self._store.get(key).to(CPU).numpy()
        return {"rows": rows, "present": np.array([key is not None for key in self._keys])}

    @classmethod
    def _from_state(cls, plain: dict[str, Any], home: str | None = None) -> Self:
        if "names" in plain:
            names, p, size = plain["names"], plain["n_parameters"], plain["file_size"]
            if type(p) is not int or type(size) is not int or p < 1 or not names:
                raise ValueError("not a valid vault: sizes")
            for name in names:
                if name is not None:
                    state.CheckpointName(name)
            vault = cls(FileStore(home, p, size), len(names), p, CPU)
            vault._keys = list(names)
            return vault
        rows, present = plain["rows"], plain["present"]
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.size == 0:
            raise ValueError("not a valid vault: rows")
        if present.dtype != np.bool or present.shape != rows.shape[:1]:
            raise ValueError("not a valid vault: places")
        vault = cls.create(*rows.shape)
        for i in np.flatnonzero(present).tolist():
            vault.put(i, torch.tensor(rows[i]))
        return vault

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what a file would hold, and where the files lie."""
        return type(self)._from_state, (self._to_state(), self._store.shelf.home)

    def __copy__(self) -> Self:
        """Return a vault with vectors of its own: they change in place."""
        if self._is_on_files:
            return type(self)._from_state(self._to_state(), self._store.shelf.home).to(self.device)
        return self._copied(self.device, 0 if self._store.is_mapped else None)

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
        return vault, {"vault_": vault, **self._describe_home(home)}

    def _vault(self) -> Vault:
        """Return the vault where it lies now: the model may have been loaded or moved."""
        vault = self.vault_.settle(self._current_home())
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
            vars(self).update(self._describe_home(self._current_home()))
        purge = old.destroy() if aside is None else old.commit(aside)
        # Before the change, which may bring a new directory: messages name that of the old states.
        messages = self._record_destruction(purge, afresh=False)
        return _with_warnings(change.commit(self), messages)

    def _replace_all(self, change: Change, about: dict[str, Any]) -> tuple[Warning, ...]:
        old_homes = self._old_homes()
        super()._replace_all(change, about)
        self.undestroyed_, self.unaccounted_ = (), ()
        messages = [message for home in old_homes for message in destroy_home(home)]
        return _with_warnings(change.outcome, messages).warnings

    def _in_place_attributes(self) -> tuple[str, ...]:
        return (*super()._in_place_attributes(), "vault_")


def with_reason(change: Change, why: str, what: str = "everything was trained again") -> Change:
    """Return a change that warns why everything was trained again."""
    outcome = _with_warnings(change.outcome, [f"{why}; {what}"])
    return Change(change.attributes, outcome, change.writes)


def _with_warnings(outcome: Outcome, messages: list[str]) -> Outcome:
    warnings = map(CheckpointWarning, messages)
    return outcome._replace(warnings=(*outcome.warnings, *warnings))
