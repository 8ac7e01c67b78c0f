"""Checkpoints of a network, and the base class of networks that store them.

A checkpoint store has n entries, flat vectors of p float32: the parameters after every block or
stage. They are stored in tensors on the device, in an unnamed temporary file when they take more
bytes than allowed, or as safetensors files in the model's own directory. A removal first writes new
entries next to the old ones. A commit replaces the old entries and destroys them, because they were
computed from the forgotten rows. The vectors by which entries are shifted are destroyed for the
same reason.
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
from letheon.deep._device import CPU, allocate_on_disk
from letheon.deep._loop import Callback
from letheon.exceptions import CheckpointError, CheckpointWarning, CorruptFileError
from letheon.removal import Change
from letheon.validation import OrNone, Rules, Whole

# Rows of an unnamed file that is opened for the entries of a change.
_CHUNK = 16
_NO_HOME = "the directory of this model's checkpoints is not known; set checkpoint_dir"
_FOREIGN = (
    "the checkpoints are in a temporary file of the parent process, which may change them; the "
    "next forget or learn trains them again"
)


def _entry_bytes(flat: Tensor) -> bytes:
    """Return the safetensors bytes of an entry; their SHA-256 is its file name."""
    return save({"flat": flat.detach().to(CPU).contiguous()})


class MemoryStore:
    """Numbered vectors in tensors on a device, or in unnamed files above `max_memory` bytes.

    A forked process shares the file with its parent, which may write to it at any time. In the
    forked process the entries therefore count as lost, and nothing is written.
    """

    size = 0  # of a file

    def __init__(self, n: int, p: int, device: torch.device, max_memory: int | None) -> None:
        self.is_mapped = max_memory is not None and 4 * n * p > max_memory
        self.device = CPU if self.is_mapped else device
        self.kind = "an unnamed file" if self.is_mapped else f"memory ({device})"
        self.bytes_on_disk = 4 * n * p if self.is_mapped else 0
        self._n, self._p, self._owner, self._numbers = n, p, os.getpid(), count()
        self._rows: dict[int, Tensor] = {}
        self._free = self._allocate_rows(n)
        self.shelf = CheckpointDirectory(None)

    def _allocate_rows(self, n: int) -> list[Tensor]:
        if self.is_mapped:
            return list(allocate_on_disk((n, self._p)))
        return [torch.zeros(self._p, device=self.device) for _ in range(n)]

    @property
    def is_foreign(self) -> bool:
        """Whether the vectors are in a file that belongs to the parent process, after a fork."""
        return self.is_mapped and self._owner != os.getpid()

    @property
    def bytes_in_memory(self) -> int:
        rows = [] if self.is_mapped else [*self._rows.values(), *self._free]
        return sum(row.nbytes for row in rows)

    def keys(self) -> frozenset[int]:
        """Return the numbers of all stored vectors."""
        return frozenset(self._rows)

    def put(self, flat: Tensor) -> int:
        """Store a copy and return its number."""
        if self.is_foreign:
            raise CorruptFileError(_FOREIGN)
        if not self._free:
            self._free = self._allocate_rows(_CHUNK if self.is_mapped else 1)
        number = next(self._numbers)
        self._rows[number] = self._free.pop().copy_(flat)
        return number

    def get(self, number: int) -> Tensor:
        """Return the vector with this number, not a copy."""
        if self.is_foreign:
            raise CorruptFileError(_FOREIGN)
        return self._rows[number]

    def name_of(self, number: int) -> str:
        """Return the name that the vector would have as a file."""
        if self.is_foreign:
            return "lost"
        return hashlib.sha256(_entry_bytes(self._rows[number])).hexdigest()

    def keep_only(self, numbers: frozenset[int]) -> tuple[str, ...]:
        """Overwrite all other vectors, which depend on forgotten rows."""
        for number in self._rows.keys() - numbers:
            row = self._rows.pop(number)
            if not self.is_foreign:
                self._free.append(row.zero_())
        if not self.is_mapped:
            del self._free[max(self._n - len(self._rows), 0) :]
        return ()


class FileStore:
    """Vectors in safetensors files in the model's directory, named by their SHA-256."""

    kind = "files"
    device = CPU
    is_foreign = False
    bytes_in_memory = bytes_on_disk = 0  # the store counts files

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
        """Return a stored vector; raise `CorruptFileError` if its file was altered."""
        if self.shelf.store is None:
            raise CorruptFileError(_NO_HOME)
        data = self.shelf.store.get(state.CheckpointName(name))
        try:
            [(key, flat)] = load(data).items()
        except (SafetensorError, ValueError) as error:
            raise CorruptFileError(
                f"a checkpoint file is not a valid safetensors file: {error}"
            ) from None
        if key != "flat" or flat.dtype != torch.float32 or flat.shape != (self._p,):
            raise CorruptFileError(f"a checkpoint file does not contain {self._p} float32 numbers")
        return flat

    def name_of(self, name: str) -> str:
        """Return the name unchanged: vectors in files are identified by name."""
        return name

    def keep_only(self, names: frozenset[str]) -> tuple[str, ...]:
        """Destroy all other files; return the names of those that could not be destroyed."""
        return self.shelf.destroy_all_but(names)


Store = MemoryStore | FileStore


class CheckpointChange:
    """New entries of one removal, to be committed or abandoned.

    Each entry is set at most once.

    As a context manager, it abandons the change if the block raises.
    """

    def __init__(self, checkpoints: "CheckpointStore") -> None:
        self._checkpoints, self._store = checkpoints, checkpoints._store
        self._before = self._store.keys()
        self._new: dict[int, Any] = {}
        self._shifts: dict[int, Tensor] = {}
        self.is_open = True

    def __repr__(self) -> str:
        """Return a text with the number of entries, without their values."""
        return f"<change of {len(self._new) + len(self._shifts)} entries of a checkpoint store>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()

    def set(self, i: int, flat: Tensor | None) -> None:
        """Write a new entry i; None removes the entry at the commit."""
        i = self._require_free(i)
        self._new[i] = self._checkpoints._write_entry(flat)

    def shift(self, by: Tensor, entries: Sequence[int]) -> None:
        """Add a vector to entries.

        In memory the addition is done at the commit; entries in files are written as new files now.
        """
        store = self._store
        by = self._checkpoints._check_entry(by).to(store.device, copy=True)
        for i in map(self._require_free, entries):
            key = self._checkpoints._keys[i]
            if key is None:
                raise ValueError(
                    f"entry {i} of the checkpoint store is empty, so it cannot be shifted"
                )
            if isinstance(store, MemoryStore):
                self._shifts[i] = by
            else:
                self._new[i] = store.put(store.get(key).add_(by))

    def abandon(self) -> None:
        """Destroy the new entries; has no effect after a commit."""
        if self.is_open:
            self._clear_shifts()
            # A new file with the same bytes as an old one is the same file, so it is kept.
            self._store.keep_only(self._before | self._checkpoints._entry_keys())

    def commit(self) -> DestructionReport:
        """Replace the old entries by the new ones; see `CheckpointStore.commit`."""
        keys, before = self._checkpoints._keys, self._checkpoints._entry_keys()
        for i, key in self._new.items():
            keys[i] = key
        # In place, one by one: copies would need memory that may not be available.
        for i, by in self._shifts.items():
            self._store.get(keys[i]).add_(by)
        self._clear_shifts()
        return self._checkpoints._destroy_unused(before)

    def _clear_shifts(self) -> None:
        self.is_open = False
        for shift in self._shifts.values():
            shift.zero_()
        self._new, self._shifts = {}, {}

    def _require_free(self, i: int) -> int:
        if not self.is_open:
            raise ValueError("this change was already committed or abandoned")
        i = self._checkpoints._check_index(i)
        if i in self._new or i in self._shifts:
            raise ValueError(f"entry {i} is already set in this change")
        return i


class CheckpointStore:
    """A store of n flat vectors of p float32; entry i has the parameters after block or stage i.

    Equal entries have equal digests, regardless of where they are stored. A copy has its own
    vectors in memory but shares the files of a directory: when one copy destroys a file, the other
    copy reports the file as missing. An unnamed file is released when the process ends, without
    being overwritten. In a forked process its entries count as lost.
    """

    def __init__(
        self, store: MemoryStore | FileStore, n: int, p: int, device: torch.device
    ) -> None:
        self._store: Any = store
        self._keys: list[Any] = [None] * n
        self.n, self.p, self.device = n, p, device
        self._change: CheckpointChange | None = None

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
        """Return an empty store for n entries of p numbers.

        Entries are files in the directory `home` if it is given. Otherwise they are on the device,
        or in an unnamed file above `max_memory` bytes. Raise `CheckpointError` if there is no
        space.
        """
        if n < 1 or p < 1:
            raise ValueError(f"got {n} entries of {p} parameters; expected at least 1 of each")
        device = _concrete_device(device)
        if home is not None:
            return cls(FileStore(home, p), n, p, device)
        return cls(MemoryStore(n, p, device, max_memory), n, p, device)

    def __repr__(self) -> str:
        """Return a text with the size of the store, without its values."""
        return f"<checkpoint store: {self.n} entries of {self.p} parameters in {self._store.kind}>"

    @property
    def bytes_in_memory(self) -> int:
        """Bytes that entries take in memory, including those of an open change."""
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
        """Names of the files that the store refers to."""
        return self._entry_keys() if self._is_on_files else frozenset()

    @property
    def is_foreign(self) -> bool:
        """Whether entries are in an unnamed file that belongs to the parent of a forked process."""
        return bool(self._store.is_foreign)

    def get(self, i: int) -> Tensor | None:
        """Return a copy of entry i on the device, or None if the entry is empty.

        Raise `CorruptFileError` if the entry is missing or altered, or belongs to another process.
        """
        key = self._keys[self._check_index(i)]
        return None if key is None else self._store.get(key).to(self.device, copy=True)

    def put(self, i: int, flat: Tensor | None) -> None:
        """Write entry i immediately; use this only for a new store, inside `fill_or_destroy`."""
        self._abandon_change()
        i = self._check_index(i)
        old, self._keys[i] = self._keys[i], self._write_entry(flat)
        if old is not None:
            self._store.keep_only(self._entry_keys())

    @contextmanager
    def fill_or_destroy(self) -> Iterator[Self]:
        """Run the ``with`` block; if it raises, destroy the entries that it wrote.

        First check that entries can be written.
        """
        before = self._store.keys()
        try:
            with self._store.shelf.all_or_nothing():
                yield self
        except BaseException:
            self._keys = [None] * self.n
            self._store.keep_only(before)
            raise

    def begin_change(self) -> CheckpointChange:
        """Return an empty change; an earlier change that is still open is abandoned."""
        self._abandon_change()
        self._change = CheckpointChange(self)
        return self._change

    def commit(self, change: CheckpointChange) -> DestructionReport:
        """Apply a change and destroy the entries that it replaces; cannot fail.

        The report names files of replaced entries that were missing or could not be destroyed.
        """
        if change is not self._change or not change.is_open:
            raise ValueError("only the newest change can be committed, and only once")
        self._change = None
        return change.commit()

    def destroy(self) -> DestructionReport:
        """Overwrite every entry, or destroy its file; the store is empty afterwards."""
        self._abandon_change()
        before, self._keys = self._entry_keys(), [None] * self.n
        return self._destroy_unused(before)

    def to(self, device: torch.device | str, *, max_memory: int | None = None) -> Self:
        """Move to a device, or to an unnamed file above `max_memory` bytes.

        Entries of a loaded store are in host memory at first. An open change is abandoned only if
        entries are moved.
        """
        device, old = _concrete_device(device), self._store
        if isinstance(old, MemoryStore):
            is_mapped = max_memory is not None and 4 * self.n * self.p > max_memory
            if is_mapped != old.is_mapped or (not is_mapped and old.device != device):
                self._abandon_change()
                duplicate = self._copy_to(device, max_memory)
                self._store, self._keys = duplicate._store, duplicate._keys
                old.keep_only(frozenset())
        self.device = device
        return self

    def use_directory(self, home: str | None) -> Self:
        """Use files in this directory; if the directory is new, abandon an open change."""
        if self._is_on_files and self._store.shelf.home != home:
            self._abandon_change()
            self._store.shelf = CheckpointDirectory(home)
        return self

    @property
    def _is_on_files(self) -> bool:
        return isinstance(self._store, FileStore)

    def _check_index(self, i: int) -> int:
        """Return an index as an int; negative indices are not allowed."""
        if not 0 <= index(i) < self.n:
            raise IndexError(f"a checkpoint store of {self.n} entries has no entry {i}")
        return index(i)

    def _check_entry(self, flat: Tensor) -> Tensor:
        if flat.dtype != torch.float32 or flat.shape != (self.p,):
            raise ValueError(
                f"entry has dtype {flat.dtype} and shape {tuple(flat.shape)}; expected float32 and "
                f"({self.p},)"
            )
        return flat.detach()

    def _write_entry(self, flat: Tensor | None) -> Any:
        return None if flat is None else self._store.put(self._check_entry(flat))

    def _entry_keys(self) -> frozenset[Any]:
        return frozenset(key for key in self._keys if key is not None)

    def _destroy_unused(self, before: frozenset[Any]) -> DestructionReport:
        """Destroy vectors that are not entries.

        The report names the keys in `before` that were to be destroyed but are missing.
        """
        after = self._entry_keys()
        missing = sorted(before - after - self._store.keys())
        return DestructionReport(tuple(missing), self._store.keep_only(after))

    def _abandon_change(self) -> None:
        if self._change is not None:
            self._change.abandon()
            self._change = None

    def _copy_to(self, device: torch.device, max_memory: int | None) -> Self:
        duplicate = type(self)(
            MemoryStore(self.n, self.p, device, max_memory), self.n, self.p, device
        )
        for i, key in enumerate(self._keys):
            duplicate._keys[i] = None if key is None else duplicate._store.put(self._store.get(key))
        return duplicate

    def _digest_state(self) -> dict[str, Any]:
        """Return the SHA-256 of the safetensors bytes of every entry."""
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
                raise ValueError(
                    "the state of the checkpoint store is not valid: wrong sizes or no entries"
                )
            for name in names:
                if name is not None:
                    state.CheckpointName(name)
            checkpoints = cls(FileStore(home, p, size), len(names), p, CPU)
            checkpoints._keys = list(names)
            return checkpoints
        rows, present = plain["rows"], plain["present"]
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.size == 0:
            raise ValueError(
                "the state of the checkpoint store is not valid: rows must be a float32 table"
            )
        if present.dtype != np.bool or present.shape != rows.shape[:1]:
            raise ValueError(
                "the state of the checkpoint store is not valid: present must be one bool per row"
            )
        checkpoints = cls.create(*rows.shape)
        for i in np.flatnonzero(present).tolist():
            checkpoints.put(i, torch.tensor(rows[i]))
        return checkpoints

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the entries as in a model file, and their directory."""
        return type(self)._from_state, (self._to_state(), self._store.shelf.home)

    def __copy__(self) -> Self:
        """Return a store with its own copy of the vectors, because they change in place."""
        if self._is_on_files:
            return type(self)._from_state(self._to_state(), self._store.shelf.home).to(self.device)
        return self._copy_to(self.device, 0 if self._store.is_mapped else None)

    def __deepcopy__(self, _: Any) -> Self:
        return self.__copy__()


def _concrete_device(device: torch.device | str) -> torch.device:
    """Return a device with its index: "cuda" becomes "cuda:0" or the current GPU."""
    return torch.empty(0, device=device).device


@dataclass(kw_only=True, eq=False, repr=False)
class CheckpointedNet(HomeMixin, NetBase):
    """A network with a checkpoint store in memory, in an unnamed file or in a directory.

    `_prepare` returns a `Change` and the open change to the store, or None if the store is
    replaced.
    """

    _parameter_rules: ClassVar[Rules] = {"max_memory": OrNone(Whole(0))}
    _not_digested: ClassVar[frozenset[str]] = NetBase._not_digested | HomeMixin.home_attributes

    checkpoint_dir: Any = None
    max_memory: int | None = None

    vault_: CheckpointStore = field(init=False)

    def _require_same_parameters(self) -> None:
        super()._require_same_parameters()
        self._require_home_in_place()

    def _new_checkpoints(self, n: int, p: int) -> tuple[CheckpointStore, dict[str, Any]]:
        """Return an empty store for a new fit, and the attributes that describe it."""
        home = self._new_home()
        checkpoints = CheckpointStore.create(
            n, p, device=self._torch_device(), home=home, max_memory=self.max_memory
        )
        return checkpoints, {"vault_": checkpoints, **self._describe_home(home)}

    def _current_checkpoints(self) -> CheckpointStore:
        """Return the store, after moving it to the current directory and device.

        The model may have been loaded or moved since the last request.
        """
        checkpoints = self.vault_.use_directory(self._current_home())
        return checkpoints.to(self._torch_device(), max_memory=self.max_memory)

    def _prepare(
        self, removal: Removal, callback: Callback | None = None
    ) -> tuple[Change, CheckpointChange | None]:
        lost = self._explain_loss()
        if lost is None:
            self._current_checkpoints()
            plan: Any = super()._prepare(removal, callback)
            return plan if isinstance(plan, tuple) else (plan, None)
        self._counts_without(removal.where)  # raises if only one class would remain
        with self._training_run():
            return with_reason(self._prepare_retrain(removal.where, callback), lost), None

    def _explain_loss(self) -> str | None:
        """Return why the checkpoints are lost and a retrain is needed, or None if they exist."""
        if self.checkpoint_home_ is not None and self.checkpoint_dir is None:
            self._current_checkpoints()
            return f"checkpoints were in {self.checkpoint_home_}, but checkpoint_dir is now None"
        if self.vault_.is_foreign:
            return "the checkpoints belong to the process that this one was forked from"
        return None

    def _commit(self, plan: tuple[Change, CheckpointChange | None]) -> Outcome:
        (change, aside), old = plan, self.vault_
        # A model with checkpoints in memory has no directory, even if `checkpoint_dir` is set now.
        # If the parameter was set to None, messages still name the old directory.
        if self.checkpoint_home_ is not None and self.checkpoint_dir is not None:
            vars(self).update(self._describe_home(self._current_home()))
        purge = old.destroy() if aside is None else old.commit(aside)
        # Before the change, which may set a new directory: messages name the old one.
        messages = self._record_destruction(purge, is_new_fit=False)
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
    """Return the change with a warning that says why everything was trained again."""
    outcome = _with_warnings(change.outcome, [f"{why}; {what}"])
    return Change(change.attributes, outcome, change.writes)


def _with_warnings(outcome: Outcome, messages: list[str]) -> Outcome:
    warnings = map(CheckpointWarning, messages)
    return outcome._replace(warnings=(*outcome.warnings, *warnings))
