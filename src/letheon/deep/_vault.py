"""The checkpoints of a net, and the nets that keep some.

Checkpoints of a net: the parameters after every block or stage.

A vault has n places for flat vectors of p float32. They lie in one tensor on the device, in a
tensor on a nameless file when they take more bytes than allowed, or as safetensors files in the
model's own directory. What a request replaces is written aside first and put in place by a commit,
which destroys the originals: they saw the people that leave, and so did the shift between two runs.

Nets that keep the parameters after every block or stage, to go on from them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from types import TracebackType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from letheon.base import Outcome, Removal
from letheon.deep._base import NetBase
from letheon.deep._loop import Callback
from letheon.deep._rooms import CPU, Files, Stage, Table, files_from, table_from
from letheon.exceptions import CheckpointWarning
from letheon.homes import HomeMixin, Purge, Shelf, destroy_home
from letheon.removal import Change, Opaque
from letheon.validation import OrNone, Rules, Whole


class VaultChange:
    """Entries written aside for one request: `Vault.commit` puts them in place, or `abandon`.

    As a context it abandons itself when the block fails. An entry can be named once.
    """

    def __init__(self, stage: Stage, check: Callable[[Tensor], Tensor], has: list[bool]) -> None:
        self._stage = stage
        self._check = check
        self._has = has
        self._named: set[int] = set()
        self._is_open = True

    def __repr__(self) -> str:
        """Tell the size only."""
        return f"<change of {len(self._named)} entries of a vault>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()

    @property
    def is_open(self) -> bool:
        """Whether it was neither committed nor abandoned."""
        return self._is_open

    @property
    def bytes_in_memory(self) -> int:
        """Bytes that what is written aside takes in memory."""
        return self._stage.bytes_in_memory

    def set(self, i: int, flat: Tensor | None) -> None:
        """Write a new entry i aside; None takes the entry away."""
        self._stage.set(self._name(i), None if flat is None else self._check(flat))

    def shift(self, by: Tensor, entries: Sequence[int]) -> None:
        """Add a vector to entries: at the commit, or in files aside, one at a time."""
        held = self._stage.hold(self._check(by))
        for i in map(self._name, entries):
            if not self._has[i]:
                raise ValueError(f"entry {i} of the vault was never put, so cannot be shifted")
            self._stage.shift(i, held)

    def abandon(self) -> None:
        """Destroy what was written aside; without effect after a commit."""
        if self._is_open:
            self._is_open = False
            self._stage.abandon()

    def _commit(self) -> Purge:
        self._is_open = False
        return self._stage.commit()

    def _name(self, i: int) -> int:
        if not self._is_open:
            raise ValueError("this change of a vault was committed or abandoned before")
        i = _place(i, len(self._has))
        if i in self._named:
            raise ValueError(f"entry {i} of the vault is named twice in one change")
        self._named.add(i)
        return i


class Vault:
    """n flat vectors of p float32: entry i holds the parameters after block or stage i.

    Attributes
    ----------
    n, p : int
        Places, and numbers per entry.
    device : torch.device
        Where `get` returns entries.

    Notes
    -----
    Equal entries have equal digests wherever they lie. A copy has rows of its own, but shares the
    files of a directory: what one copy destroys the other misses, and says so. A nameless file
    ends with the process, however that ends; its blocks are given back and not overwritten then.
    In a process that was forked its entries count as lost.
    """

    def __init__(self, room: Table | Files, n: int, p: int, device: torch.device) -> None:
        self._room = room
        self.n = n
        self.p = p
        self.device = device
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
        """Return an empty vault.

        Parameters
        ----------
        n, p : int
            Places, and numbers per entry.
        device : torch.device or str
            Where `get` returns entries, and where they lie unless one of the next two is given.
        home : str, optional
            The model's own directory: entries are files there.
        max_memory : int, optional
            Bytes above which entries lie in a nameless temporary file.

        Raises
        ------
        CheckpointError
            If there is no room for the temporary file.
        """
        if n < 1 or p < 1:
            raise ValueError(f"a vault of {n} entries of {p} parameters; expected at least 1 of 1")
        device = _numbered(device)
        if home is not None:
            return cls(Files(home, p, [None] * n, 0), n, p, device)
        return cls(Table.allocate(n, p, device, max_memory), n, p, device)

    def __len__(self) -> int:
        return self.n

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

        Raises
        ------
        CorruptFileError
            If the file is missing or altered, or belongs to another process.
        IndexError
            If there is no such place; nothing is counted from the end.
        """
        i = _place(i, self.n)
        return self._room.read(i).to(self.device, copy=True) if self._room.has(i) else None

    def put(self, i: int, flat: Tensor | None) -> None:
        """Write entry i at once: for a new vault, inside `filling`."""
        self._abandon()
        self._room.write(_place(i, self.n), None if flat is None else self._checked(flat))

    @contextmanager
    def filling(self) -> Iterator[Self]:
        """Check that entries can be written; if the block fails, destroy all of them."""
        with self._room.all_or_nothing():
            yield self

    def begin(self) -> VaultChange:
        """Return a change to be filled entry by entry; one left open before is abandoned."""
        self._abandon()
        has = [self._room.has(i) for i in range(self.n)]
        self._change = VaultChange(self._room.begin(), self._checked, has)
        return self._change

    def prepare(
        self,
        new: Mapping[int, Tensor | None],
        *,
        shift: Tensor | None = None,
        shifted: Sequence[int] = (),
    ) -> VaultChange:
        """Write new entries and shifted ones aside; the vault stays as it is.

        Raises
        ------
        CheckpointError
            If they cannot be written; nothing is left behind then.
        CorruptFileError
            If an entry to be shifted is missing or altered; nothing is left behind then.
        """
        with self.begin() as change:
            for i, flat in new.items():
                change.set(i, flat)
            if shift is not None:
                change.shift(shift, shifted)
            elif len(shifted):
                raise ValueError("entries to be shifted were given without the shift")
        return change

    def commit(self, change: VaultChange) -> Purge:
        """Put a change in place and destroy the originals; cannot fail.

        Returns
        -------
        Purge
            Files of originals that were not found or could not be destroyed.
        """
        if change is not self._change or not change.is_open:
            raise ValueError("only the last change that was begun, and still open, is committed")
        self._change = None
        return change._commit()

    def destroy(self) -> Purge:
        """Overwrite every entry, or destroy its file; the vault is empty afterwards."""
        self._abandon()
        return self._room.destroy()

    def to(self, device: torch.device | str, *, max_memory: int | None = None) -> Self:
        """Move to a device, or to a nameless file above `max_memory` bytes; return self.

        A vault that was loaded lies in the host's memory. Only a move abandons an open change.
        """
        device, room = _numbered(device), self._room
        if isinstance(room, Table):
            is_mapped = max_memory is not None and room.rows.nbytes > max_memory
            if is_mapped != room.mapped or (not is_mapped and room.rows.device != device):
                self._abandon()
                self._room = room.copy_to(device, max_memory)
                room.destroy()
        self.device = device
        return self

    def settle(self, home: str | None) -> Self:
        """Look for files in this directory: that of a loaded model, or moved by the caller.

        Only another directory abandons an open change.
        """
        if isinstance(self._room, Files) and self._room.shelf.home != home:
            self._abandon()
            self._room.shelf = Shelf(home)
        return self

    def _abandon(self) -> None:
        if self._change is not None:
            self._change.abandon()
            self._change = None

    def _checked(self, flat: Tensor) -> Tensor:
        if flat.dtype != torch.float32 or flat.shape != (self.p,):
            raise ValueError(
                f"an entry of {flat.dtype}, shape {tuple(flat.shape)}; expected {self.p} float32"
            )
        return flat.detach()

    def _digest_state(self) -> dict[str, Any]:
        """What was learned, wherever it lies: the SHA-256 of every entry's safetensors bytes."""
        return {"n_parameters": self.p, "entries": self._room.names()}

    def _to_state(self) -> dict[str, Any]:
        return self._room.to_state()

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        room = files_from(state) if "names" in state else table_from(state)
        n, p = (len(room._names), room.p) if isinstance(room, Files) else room.rows.shape
        return cls(room, n, p, CPU)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what a file would hold, and where the files lie."""
        home = self._room.shelf.home if isinstance(self._room, Files) else None
        return _unpickled, (self._to_state(), home)

    def __copy__(self) -> Self:
        """Return a vault with rows of its own: they change in place."""
        return type(self)(self._room.copy(), self.n, self.p, self.device)

    def __deepcopy__(self, _: Any) -> Self:
        return self.__copy__()


def _numbered(device: torch.device | str) -> torch.device:
    """Return "cuda" as the GPU that it stands for."""
    return torch.empty(0, device=device).device


def _place(i: int, n: int) -> int:
    """Return an index as an int; -1 is no place: before block 0 there is no checkpoint."""
    if not 0 <= index(i) < n:
        raise IndexError(f"a vault of {n} entries has no entry {i}")
    return index(i)


def _unpickled(plain: dict[str, Any], home: str | None) -> Vault:
    return Vault._from_state(plain).settle(home)


@dataclass(frozen=True, eq=False, repr=False)
class Prepared(Opaque):
    """A change of the model and one of its vault; without the second the vault is a new one."""

    change: Change
    aside: VaultChange | None


class CheckpointedNet(HomeMixin, NetBase):
    """A net with a vault: in memory, in a nameless file above `max_memory` bytes, or in files."""

    _parameter_rules: ClassVar[Rules] = {"max_memory": OrNone(Whole(0))}

    checkpoint_dir: Any
    max_memory: int | None

    vault_: Vault

    _not_digested: ClassVar[frozenset[str]] = NetBase._not_digested | HomeMixin.home_attributes

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

    def _prepare(self, removal: Removal, callback: Callback | None = None) -> Prepared:
        lost = self._lost()
        if lost is not None:
            return Prepared(self._started_over(removal, callback, lost), None)
        self._vault()
        found: Any = super()._prepare(removal, callback)
        return found if isinstance(found, Prepared) else Prepared(found, None)

    def _lost(self) -> str | None:
        """Say why no state can be read or replaced any more, if so: all is trained again then."""
        if self.checkpoint_home_ is not None and self.checkpoint_dir is None:
            self._vault()
            return f"the states in {self.checkpoint_home_} are gone, and checkpoint_dir is None now"
        if self.vault_.is_foreign:
            return "the states belong to the process that this one was forked from"
        return None

    def _started_over(self, removal: Removal, callback: Callback | None, why: str) -> Change:
        """Prepare a fit from scratch, because no state is left."""
        self._counts_without(removal.where)
        with self._training():
            return with_reason(self._retrain(removal.where, callback), why)

    def _commit(self, plan: Any) -> Outcome:
        old = self.vault_
        # A model whose states lie in memory has no directory, whatever `checkpoint_dir` says now;
        # where one was taken away, messages name it once more.
        if self.checkpoint_home_ is not None and self.checkpoint_dir is not None:
            vars(self).update(self._place(self._home()))
        purge = old.destroy() if plan.aside is None else old.commit(plan.aside)
        # Before the change, which may bring a new directory: messages name that of the old states.
        messages = self._account(purge, afresh=False)
        outcome: Outcome = plan.change.commit(self)
        return outcome._replace(warnings=(*outcome.warnings, *_warnings(messages)))

    def _replace_all(self, change: Change, about: dict[str, Any]) -> tuple[Warning, ...]:
        old_homes = self._old_homes()
        found = super()._replace_all(change, about)
        self.undestroyed_, self.unaccounted_ = (), ()
        messages = [message for home in old_homes for message in destroy_home(home)]
        return (*found, *_warnings(messages))

    def _changed_in_place(self) -> tuple[str, ...]:
        return (*super()._changed_in_place(), "vault_")


def with_reason(change: Change, why: str) -> Change:
    """Return a change that warns why everything was trained again."""
    lost = CheckpointWarning(f"{why}; everything was trained again")
    outcome = change.outcome._replace(warnings=(*change.outcome.warnings, lost))
    return Change(change.attributes, outcome, change.writes)


def _warnings(messages: list[str]) -> tuple[Warning, ...]:
    return tuple(CheckpointWarning(text) for text in messages)
