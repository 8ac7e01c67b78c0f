"""Checkpoints of nets: the same in every kind of room, and the originals gone after a commit."""

import copy
import errno
import hashlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save

from letheon import state
from letheon.checkpoint_home import CheckpointDirectory, DestructionReport
from letheon.deep._checkpoints import CheckpointChange, CheckpointStore, MemoryStore
from letheon.exceptions import CheckpointError, CorruptFileError
from tests.sharded.people import examples

N, P = 4, 5
KINDS = ("memory", "mapped", "files")
HOME = "0123456789abcdef" * 2

Entry = NDArray[np.float32] | None


def make(kind: str, directory: Path, n: int = N, p: int = P) -> CheckpointStore:
    home = str(directory / HOME) if kind == "files" else None
    return CheckpointStore.create(n, p, home=home, max_memory=0 if kind == "mapped" else None)


def vector(seed: int, p: int = P) -> torch.Tensor:
    return torch.randn(p, generator=torch.Generator().manual_seed(seed))


def filled(kind: str, directory: Path, n: int = N, p: int = P) -> CheckpointStore:
    store = make(kind, directory, n, p)
    for i in range(n):
        store.put(i, vector(i, p))
    return store


def prepare(
    store: CheckpointStore,
    new: Mapping[int, torch.Tensor | None],
    *,
    shift: torch.Tensor | None = None,
    shifted: Sequence[int] = (),
) -> CheckpointChange:
    """Write new entries and shifted ones aside; the store stays as it is."""
    with store.begin_change() as change:
        for i, flat in new.items():
            change.set(i, flat)
        if shift is not None:
            change.shift(shift, shifted)
    return change


def tensors_aside(change: CheckpointChange) -> list[torch.Tensor]:
    """Return what a change keeps in memory or in unnamed files."""
    store, new = change._store, change._new.values()
    rows = [store._rows[key] for key in new if isinstance(key, int)]
    return [*rows, *change._shifts.values()]


def entries(store: CheckpointStore) -> list[Entry]:
    vectors = [store.get(i) for i in range(store.n)]
    return [None if flat is None else flat.numpy() for flat in vectors]


def same(vectors: list[Entry], expected: list[Entry]) -> bool:
    return [None if e is None else e.tobytes() for e in vectors] == [
        None if e is None else e.tobytes() for e in expected
    ]


def name_of(entry: Entry) -> str | None:
    return None if entry is None else hashlib.sha256(save({"flat": entry})).hexdigest()


def files(directory: Path) -> set[str]:
    vectors = (path for path in directory.rglob("*") if path.is_file())
    return {path.name.removesuffix(".letheon-state") for path in vectors}


def raw_bytes(store: CheckpointStore, directory: Path) -> bytes:
    """All bytes that the store keeps anywhere."""
    on_disk = b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
    own = store._store
    rows = [*own._rows.values(), *own._free] if isinstance(own, MemoryStore) else []
    # Free rows hold zeros.
    return on_disk + b"".join(row.numpy().tobytes() for row in rows if row.any())


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# A few vectors only, so that two entries are often equal and share a file.
flats = st.integers(0, 3).map(vector)
places = st.integers(0, N - 1)
puts = st.tuples(st.just("put"), places, st.none() | flats)
changes = st.tuples(
    st.sampled_from(["commit", "abandon", "forsake"]),
    st.dictionaries(places, st.none() | flats, max_size=3),
    st.none() | flats,
)
requests = st.lists(puts | changes, max_size=6)


class ReferenceStore:
    """A vault as a list of arrays."""

    def __init__(self) -> None:
        self.entries: list[Entry] = [None] * N

    def shifted(self, new: dict[int, Any]) -> list[int]:
        return [i for i, entry in enumerate(self.entries) if entry is not None and i not in new]

    def change(self, new: dict[int, Any], shift: Any) -> None:
        if shift is not None:
            for i in self.shifted(new):
                self.entries[i] = self.entries[i] + shift.numpy()
        for i, flat in new.items():
            self.entries[i] = None if flat is None else flat.numpy().copy()


def apply(request: Any, store: CheckpointStore, reference: ReferenceStore) -> None:
    """Do a request to a checkpoint store; the reference follows later."""
    what, first, second = request
    if what == "put":
        store.put(first, second)
        return
    shifted = reference.shifted(first) if second is not None else []
    change = prepare(store, first, shift=second, shifted=shifted)
    if what == "commit":
        assert store.commit(change) == DestructionReport()
    elif what == "abandon":
        change.abandon()


@examples(60)
@given(requests)
def test_every_room_follows_a_list_of_arrays(sequence: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory, reference = Path(name), ReferenceStore()
        vaults = [make(kind, directory) for kind in KINDS]
        for request in sequence:
            for store in vaults:
                apply(request, store, reference)
            what, first, second = request
            if what in {"put", "commit"}:
                reference.change({first: second} if what == "put" else first, *_shift(request))
            if what != "forsake":
                _require_equal(vaults, reference, directory)


def _shift(request: Any) -> tuple[Any]:
    return (None if request[0] == "put" else request[2],)


def _require_equal(
    vaults: list[CheckpointStore], reference: ReferenceStore, directory: Path
) -> None:
    names = [name_of(entry) for entry in reference.entries]
    for store in vaults:
        assert same(entries(store), reference.entries)
        assert store._digest_state() == {"n_parameters": P, "entries": names}
    assert len({state.digest(store) for store in vaults}) == 1
    assert files(directory) == set(names) - {None} == vaults[2].files


def test_an_entry_is_a_copy(kind: str, tmp_path: Path) -> None:
    store, given_flat = make(kind, tmp_path), vector(0)
    store.put(0, given_flat)
    given_flat.zero_()
    taken = store.get(0)
    assert taken is not None
    taken.zero_()
    again = store.get(0)
    assert again is not None
    assert torch.equal(again, vector(0))


def test_a_change_keeps_copies_of_what_it_was_given(kind: str, tmp_path: Path) -> None:
    store, new, shift = filled(kind, tmp_path), vector(10), vector(11)
    change = prepare(store, {0: new}, shift=shift, shifted=[1])
    new.zero_()
    shift.zero_()
    store.commit(change)
    expected = [vector(10), vector(1) + vector(11), vector(2), vector(3)]
    assert same(entries(store), [flat.numpy() for flat in expected])


def test_before_the_first_entry_there_is_none(kind: str, tmp_path: Path) -> None:
    """An index from the end would be the state that saw all rows."""
    store = filled(kind, tmp_path)
    for i in (-1, N):
        with pytest.raises(IndexError, match=f"no entry {i}"):
            store.get(i)
        with pytest.raises(IndexError):
            store.put(i, vector(0))
        with pytest.raises(IndexError):
            prepare(store, {i: None})


@pytest.mark.parametrize("flat", [torch.zeros(P + 1), torch.zeros(P).double(), torch.zeros(1, P)])
def test_entries_of_another_net_are_refused(kind: str, tmp_path: Path, flat: torch.Tensor) -> None:
    store = filled(kind, tmp_path)
    before = raw_bytes(store, tmp_path)
    for attempt in (
        lambda: store.put(0, flat),
        lambda: prepare(store, {0: vector(9), 1: flat}),
        lambda: prepare(store, {0: vector(9)}, shift=flat, shifted=[1]),
    ):
        with pytest.raises(ValueError, match="expected float32 and"):
            attempt()
    assert raw_bytes(store, tmp_path) == before


@pytest.mark.parametrize(
    ("shift", "shifted", "message"),
    [
        (vector(1), [1, 1], "already set"),
        (vector(1), [0], "already set"),
        (vector(1), [3], "is empty"),
    ],
)
def test_changes_that_make_no_sense_leave_nothing(
    kind: str, tmp_path: Path, shift: Any, shifted: list[int], message: str
) -> None:
    store = filled(kind, tmp_path)
    store.put(3, None)
    before = raw_bytes(store, tmp_path)
    with pytest.raises(ValueError, match=message):
        prepare(store, {0: vector(9)}, shift=shift, shifted=shifted)
    assert raw_bytes(store, tmp_path) == before
    assert store.bytes_in_memory == make(kind, tmp_path).bytes_in_memory


def test_only_the_last_open_change_is_committed(kind: str, tmp_path: Path) -> None:
    store = filled(kind, tmp_path)
    stale = prepare(store, {0: vector(8)})
    change = prepare(store, {0: vector(9)})
    with pytest.raises(ValueError, match="only the newest change can be committed"):
        store.commit(stale)
    store.commit(change)
    for spent in (change, stale):
        with pytest.raises(ValueError, match="only the newest change can be committed"):
            store.commit(spent)
        with pytest.raises(ValueError, match="already committed"):
            spent.set(1, vector(7))
        spent.abandon()
    assert same(entries(store)[:2], [vector(9).numpy(), vector(1).numpy()])
    assert kind != "files" or files(tmp_path) == store.files


def test_abandoned_changes_and_those_of_another_vault_are_refused(
    kind: str, tmp_path: Path
) -> None:
    store, other = filled(kind, tmp_path / "one"), filled(kind, tmp_path / "two")
    abandoned, foreign = prepare(store, {0: vector(9)}), prepare(other, {0: vector(9)})
    abandoned.abandon()
    for change in (abandoned, foreign):
        with pytest.raises(ValueError, match="only the newest change can be committed"):
            store.commit(change)
    assert same(entries(store), [vector(i).numpy() for i in range(N)])


def replaced(store: CheckpointStore) -> CheckpointChange:
    """Begin a change that spares entry 0, replaces or shifts two, and takes one away."""
    return prepare(store, {1: vector(21), 2: None}, shift=vector(22), shifted=[3])


def require_originals_gone(kind: str, directory: Path) -> None:
    """Raise unless a commit destroys every original, wherever it lay."""
    store = filled(kind, directory, p=50)
    originals = [flat.tobytes() for flat in entries(store) if flat is not None]
    change = prepare(store, {1: vector(21, 50), 2: None}, shift=vector(22, 50), shifted=[3])
    shifts = list(change._shifts.values())
    assert all(original in raw_bytes(store, directory) for original in originals)
    store.commit(change)
    left = raw_bytes(store, directory)
    assert [original in left for original in originals] == [True, False, False, False]
    assert not any(shift.any() for shift in shifts)
    assert files(directory) == store.files


def test_originals_are_gone_after_a_commit(kind: str, tmp_path: Path) -> None:
    require_originals_gone(kind, tmp_path)


def keep_old_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckpointDirectory, "destroy_all_but", lambda *_: ())


def unlink_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("letheon.state._stores._overwrite_file", lambda _: None)


def forget_to_shift(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckpointChange, "shift", lambda *_: None)


def mark_as_absent_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStore, "keep_only", lambda *_: ())


def leave_the_shift(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckpointChange, "_clear_shifts", lambda _: None)


@pytest.mark.parametrize(
    ("kind", "bug"),
    [
        ("files", keep_old_files),
        ("memory", forget_to_shift),
        ("mapped", mark_as_absent_only),
        ("memory", leave_the_shift),
    ],
)
def test_a_commit_that_keeps_an_original_is_noticed(
    kind: str, bug: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        require_originals_gone(kind, tmp_path)


def require_old_blocks_overwritten(directory: Path) -> None:
    """Raise unless files of originals are overwritten: a second name shows what is in them."""
    store = filled("files", directory)
    [doomed] = {name_of(entry) for entry in entries(store)[1:2]}
    second_name = directory / "second-name"
    os.link(directory / HOME / f"{doomed}.letheon-state", second_name)
    store.commit(prepare(store, {1: vector(9)}))
    assert not any(second_name.read_bytes())


def test_files_of_originals_are_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_old_blocks_overwritten(tmp_path / "right")
    unlink_only(monkeypatch)
    with pytest.raises(AssertionError):
        require_old_blocks_overwritten(tmp_path / "wrong")


def require_nothing_left_aside(kind: str, directory: Path) -> None:
    """Raise unless an abandoned change leaves the store, its files and its memory as they were."""
    store = filled(kind, directory)
    before, listed, memory = entries(store), files(directory), store.bytes_in_memory
    change = replaced(store)
    aside = tensors_aside(change)
    assert same(entries(store), before)
    change.abandon()
    assert same(entries(store), before)
    assert not any(tensor.any() for tensor in aside)
    assert (files(directory), store.bytes_in_memory) == (listed, memory)


def test_an_abandoned_change_leaves_nothing(kind: str, tmp_path: Path) -> None:
    require_nothing_left_aside(kind, tmp_path)


def test_a_change_that_is_not_cleared_away_is_noticed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointChange, "abandon", lambda _: None)
    with pytest.raises(AssertionError):
        require_nothing_left_aside(kind, tmp_path)


def test_abandoning_equal_bytes_spares_the_file_in_use(tmp_path: Path) -> None:
    store = filled("files", tmp_path)
    prepare(store, {0: vector(1), 1: vector(1)}).abandon()
    assert same(entries(store), [vector(i).numpy() for i in range(N)])


def test_abandoning_spares_the_files_of_a_copy(tmp_path: Path) -> None:
    store = filled("files", tmp_path)
    other = copy.copy(store)
    other.commit(prepare(other, {0: vector(8)}))
    prepare(store, {1: vector(9)}).abandon()
    assert files(tmp_path) == other.files


def test_the_next_change_clears_away_one_that_was_lost(tmp_path: Path) -> None:
    store = filled("files", tmp_path)
    prepare(store, {0: vector(9)})
    store.begin_change()
    assert files(tmp_path) == store.files


def test_a_block_that_fails_abandons_its_change(kind: str, tmp_path: Path) -> None:
    store = filled(kind, tmp_path)
    before = raw_bytes(store, tmp_path)
    change = store.begin_change()

    def interrupted() -> None:
        with change:
            change.set(0, vector(9))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not change.is_open
    assert raw_bytes(store, tmp_path) == before


def test_fill_or_destroy_that_fails_leaves_nothing(kind: str, tmp_path: Path) -> None:
    store = make(kind, tmp_path)

    def broken() -> None:
        with store.fill_or_destroy():
            store.put(0, vector(0))
            raise RuntimeError("loss is NaN")

    with pytest.raises(RuntimeError, match="NaN"):
        broken()
    assert entries(store) == [None] * N
    assert list(tmp_path.iterdir()) == []
    assert not any(raw_bytes(store, tmp_path))


def test_fill_or_destroy_checks_the_directory_before_any_training(tmp_path: Path) -> None:
    (tmp_path / HOME).write_text("not a directory")
    with (
        pytest.raises(CheckpointError, match="choose a writable directory"),
        make("files", tmp_path).fill_or_destroy(),
    ):
        pytest.fail("training has begun")


KILLED = """
    import os, pickle, signal, sys, torch
    store = pickle.loads(open(sys.argv[1], "rb").read())
    change = store.begin_change()
    change.set(1, torch.ones(5))
    change.shift(torch.ones(5), [2, 3])
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_between_prepare_and_commit_leaves_the_old_entries(tmp_path: Path) -> None:
    store = filled("files", tmp_path / "states")
    (tmp_path / "store").write_bytes(pickle.dumps(store))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), tmp_path / "store"],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -signal.SIGKILL
    assert len(files(tmp_path / "states")) == N + 3
    assert same(entries(store), [vector(i).numpy() for i in range(N)])
    store.commit(prepare(store, {0: None}))
    assert files(tmp_path / "states") == store.files


@pytest.mark.parametrize("damage", ["missing", "altered", "truncated", "stranger"])
def test_a_damaged_file_is_noticed(tmp_path: Path, damage: str) -> None:
    store = filled("files", tmp_path)
    file = tmp_path / HOME / f"{name_of(vector(2).numpy())}.letheon-state"
    data = file.read_bytes()
    file.unlink()
    if damage != "missing":
        stranger = save({"flat": vector(9).numpy()})
        damaged = {"altered": data[:-1] + b"!", "truncated": data[:-1], "stranger": stranger}
        file.write_bytes(damaged[damage])
    listed = files(tmp_path)
    with pytest.raises(CorruptFileError):
        store.get(2)
    with pytest.raises(CorruptFileError):
        prepare(store, {0: vector(9)}, shift=vector(1), shifted=[1, 2])
    assert files(tmp_path) == listed
    assert same(entries_but(store, 2), [vector(i).numpy() for i in (0, 1, 3)])


def entries_but(store: CheckpointStore, lost: int) -> list[Entry]:
    vectors = [store.get(i) for i in range(store.n) if i != lost]
    return [None if flat is None else flat.numpy() for flat in vectors]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        save({}),
        save({"flat": np.zeros(P)}),
        save({"flat": np.zeros(P + 1, np.float32)}),
        save({"W": np.zeros(P, np.float32)}),
    ],
)
def test_a_forged_name_leads_to_no_other_content(tmp_path: Path, content: bytes) -> None:
    name = state.DirectoryStore(tmp_path / HOME).put(content).sha256
    plain = {"names": [name], "n_parameters": P, "file_size": 100}
    store = CheckpointStore._from_state(plain).use_directory(str(tmp_path / HOME))
    with pytest.raises(CorruptFileError, match="checkpoint"):
        store.get(0)


def test_missing_and_resisting_files_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled("files", tmp_path)
    lost, stubborn = (str(name_of(vector(i).numpy())) for i in (1, 2))
    (tmp_path / HOME / f"{lost}.letheon-state").unlink()
    change = prepare(store, {1: None, 2: None})

    def resist(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr("letheon.state._stores._destroy_file", resist)
    purge = store.commit(change)
    assert purge.missing == (lost,)
    assert [Path(file).name for file in purge.undestroyed] == [f"{stubborn}.letheon-state"]
    monkeypatch.undo()
    assert store.commit(store.begin_change()) == DestructionReport()
    assert files(tmp_path) == store.files


@pytest.fixture
def small_disk() -> Iterator[Callable[[], None]]:
    """Return a function that lets no file grow beyond 1,000 bytes from then on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", ["mapped", "files"])
def test_a_full_disk_leaves_everything_as_it_was(
    kind: str, tmp_path: Path, small_disk: Callable[[], None]
) -> None:
    store = filled(kind, tmp_path, p=1000)
    before = raw_bytes(store, tmp_path)
    small_disk()
    with pytest.raises(CheckpointError, match="File too large"):
        prepare(store, {0: vector(9, 1000)}, shift=vector(8, 1000), shifted=[1, 2])
    with pytest.raises(CheckpointError), make(kind, tmp_path, p=1000).fill_or_destroy():
        pytest.fail("training has begun")
    assert raw_bytes(store, tmp_path) == before
    assert store.bytes_in_memory == 0


def test_a_directory_that_cannot_be_written_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled("files", tmp_path)
    before, real, allowed = raw_bytes(store, tmp_path), os.open, [True, True]

    def read_only(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_CREAT and not (allowed and allowed.pop()):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(CheckpointError, match="Read-only"):
        prepare(store, {0: vector(9)}, shift=vector(8), shifted=[1, 2, 3])
    monkeypatch.undo()
    assert allowed == []
    assert raw_bytes(store, tmp_path) == before


def test_saving_and_loading(kind: str, tmp_path: Path) -> None:
    store = filled(kind, tmp_path)
    store.put(1, None)
    blob = state.encode(store)
    again = state.decode(blob)
    assert (kind == "files") == (vector(0).numpy().tobytes() not in blob)
    again.use_directory(str(tmp_path / HOME))
    assert state.digest(again) == state.digest(store)
    again.commit(prepare(again, {1: vector(7)}, shift=vector(1), shifted=[0]))
    expected = [vector(0) + vector(1), vector(7), vector(2), vector(3)]
    assert same(entries(again), [flat.numpy() for flat in expected])


def test_a_loaded_store_knows_its_size_on_disk(tmp_path: Path) -> None:
    store = filled("files", tmp_path)
    assert state.decode(state.encode(store)).bytes_on_disk == store.bytes_on_disk > 4 * N * P


@pytest.mark.parametrize("writeable", [True, False])
def test_a_loaded_store_has_memory_of_its_own(writeable: bool) -> None:
    buffer = np.ones((3, P), np.float32)
    buffer.flags.writeable = writeable
    store = CheckpointStore._from_state({"rows": buffer[:2], "present": np.ones(2, bool)})
    store.commit(prepare(store, {0: None}))
    assert buffer.all()


def test_a_loaded_store_without_its_directory_says_so(tmp_path: Path) -> None:
    store = state.decode(state.encode(filled("files", tmp_path)))
    with pytest.raises(CorruptFileError, match="checkpoint_dir"):
        store.get(0)
    with pytest.raises(CheckpointError, match="checkpoint_dir"):
        prepare(store, {0: vector(1)})
    assert prepare(store, {0: None}).is_open


@pytest.mark.parametrize(
    "change",
    [
        {"names": []},
        {"names": ["../../etc/passwd"]},
        {"n_parameters": 0},
        {"n_parameters": "5"},
        {"file_size": None},
    ],
)
def test_forged_files_of_names(change: dict[str, Any]) -> None:
    plain = {"names": ["a" * 64, None], "n_parameters": P, "file_size": 100}
    assert CheckpointStore._from_state(plain).n == 2
    with pytest.raises(ValueError, match=r"checkpoint store is not valid|hexadecimal digits"):
        CheckpointStore._from_state(plain | change)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": np.zeros((2, P))},
        {"rows": np.zeros(2, np.float32)},
        {"rows": np.zeros((2, 0), np.float32)},
        {"present": np.ones(3, bool)},
        {"present": np.ones(2, np.int64)},
    ],
)
def test_forged_files_of_rows(change: dict[str, Any]) -> None:
    plain = {"rows": np.zeros((2, P), np.float32), "present": np.ones(2, bool)}
    assert CheckpointStore._from_state(plain).n == 2
    with pytest.raises(ValueError, match="checkpoint store is not valid"):
        CheckpointStore._from_state(plain | change)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda store: pickle.loads(pickle.dumps(store))]
)
def test_copies_go_their_own_way(kind: str, tmp_path: Path, duplicate: Any) -> None:
    store = filled(kind, tmp_path)
    prepare(store, {0: vector(6)})
    other = duplicate(store)
    assert state.digest(other) == state.digest(store)
    digest = state.digest(store)
    other.commit(prepare(other, {0: vector(7)}))
    assert state.digest(store) == digest != state.digest(other)
    taken = other.get(0)
    assert taken is not None
    assert torch.equal(taken, vector(7))
    if kind == "files":
        with pytest.raises(CorruptFileError):
            store.get(0)
    elif duplicate in {copy.copy, copy.deepcopy}:
        assert other.bytes_on_disk == store.bytes_on_disk


def test_a_loaded_store_moves_to_a_file_and_back(tmp_path: Path) -> None:
    store = filled("memory", tmp_path)
    digest, old = state.digest(store), store._store
    assert isinstance(old, MemoryStore)
    assert store.to("cpu")._store is old
    rows = list(old._rows.values())
    assert store.to("cpu", max_memory=10).bytes_on_disk == 4 * N * P
    assert not any(row.any() for row in rows)
    assert store.bytes_in_memory == 0
    assert state.digest(store) == digest
    assert store.to("cpu").bytes_in_memory == 4 * N * P
    assert state.digest(store) == digest


def test_moving_abandons_what_was_written_aside(kind: str, tmp_path: Path) -> None:
    store = filled(kind, tmp_path)
    change = prepare(store, {0: vector(9)})
    if kind == "files":
        (tmp_path / HOME).rename(tmp_path / HOME[::-1])
        store.use_directory(str(tmp_path / HOME[::-1]))
    else:
        store.to("cpu", max_memory=1 if kind == "memory" else None)
    with pytest.raises(ValueError, match="only the newest change can be committed"):
        store.commit(change)
    assert same(entries(store), [vector(i).numpy() for i in range(N)])


def in_a_fork(work: Callable[[], object]) -> None:
    """Do something in a process that was forked, and raise if it fails there."""
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            work()
            outcome = 0
        finally:
            os._exit(outcome)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_neither_reads_nor_writes_the_unnamed_file() -> None:
    store = filled("mapped", Path())
    before, digest = entries(store), state.digest(store)
    change = prepare(store, {0: vector(7)})

    def work() -> None:
        assert store.is_foreign
        assert state.digest(store) != digest
        change.abandon()
        refused: list[Callable[[], object]] = [
            lambda: store.get(1),
            lambda: store.put(1, vector(8)),
            lambda: copy.copy(store),
            lambda: pickle.dumps(store),
            lambda: prepare(store, {1: vector(8)}),
            lambda: store.to("cpu"),
        ]
        for request in refused:
            with pytest.raises(CorruptFileError, match="temporary file of the parent process"):
                request()
        assert store.destroy() == DestructionReport()

    in_a_fork(work)
    assert not store.is_foreign
    assert same(entries(store), before)
    assert state.digest(store) == digest
    store.commit(change)
    vectors = store.get(0)
    assert vectors is not None
    assert torch.equal(vectors, vector(7))


@pytest.mark.parametrize("kind", ["memory", "files"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_reads_its_own_memory_and_the_files(kind: str, tmp_path: Path) -> None:
    store = filled(kind, tmp_path)
    before = entries(store)

    def work() -> None:
        assert not store.is_foreign
        assert same(entries(store), before)

    in_a_fork(work)
    assert same(entries(store), before)


def test_a_change_survives_a_look_where_the_vault_lies(kind: str, tmp_path: Path) -> None:
    store = filled(kind, tmp_path)
    change = prepare(store, {0: vector(7)})
    home = str(tmp_path / HOME) if kind == "files" else None
    store.use_directory(home).to("cpu", max_memory=0 if kind == "mapped" else None)
    assert change.is_open
    store.commit(change)
    vectors = store.get(0)
    assert vectors is not None
    assert torch.equal(vectors, vector(7))


def test_destroy_leaves_an_empty_store(kind: str, tmp_path: Path) -> None:
    store = filled(kind, tmp_path)
    assert store.destroy() == DestructionReport()
    assert entries(store) == [None] * N
    assert not any(raw_bytes(store, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_destroy_names_files_that_were_not_there(tmp_path: Path) -> None:
    store = filled("files", tmp_path)
    lost = str(name_of(vector(1).numpy()))
    (tmp_path / HOME / f"{lost}.letheon-state").unlink()
    assert store.destroy() == DestructionReport(missing=(lost,))


def test_the_words_do_not_tell_the_numbers(kind: str, tmp_path: Path) -> None:
    store = filled(kind, tmp_path)
    words = repr(store) + repr(replaced(store))
    assert f"{N} entries of {P} parameters" in words
    assert not any(str(number)[:6] in words for number in vector(1).tolist())


def test_sizes_are_counted(kind: str, tmp_path: Path) -> None:
    store = filled(kind, tmp_path, n=3, p=100)
    on_disk = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    in_memory = 1200 if kind == "memory" else 0
    assert store.bytes_in_memory == in_memory
    assert store.bytes_on_disk == (1200 if kind == "mapped" else on_disk)
    change = prepare(store, {0: vector(8, 100)}, shift=vector(9, 100), shifted=[1, 2])
    aside = {"memory": 800, "mapped": 400, "files": 0}
    assert store.bytes_in_memory == in_memory + aside[kind]
    store.commit(change)
    assert store.bytes_in_memory == in_memory


@pytest.mark.parametrize(("n", "p"), [(0, 1), (1, 0), (-1, 5)])
def test_an_empty_store_makes_no_sense(n: int, p: int) -> None:
    with pytest.raises(ValueError, match="at least 1 of each"):
        CheckpointStore.create(n, p)


def test_files_are_private_safetensors(tmp_path: Path) -> None:
    filled("files", tmp_path)
    [file, *_] = (tmp_path / HOME).iterdir()
    assert file.stat().st_mode & 0o077 == 0
    assert file.read_bytes() in [save({"flat": vector(i).numpy()}) for i in range(N)]


def private_memory() -> int:
    """Bytes of this process that lie in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [vectors] = [line.split()[1] for line in lines if line.startswith("RssAnon")]
    return 1024 * int(vectors)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's /proc")
@pytest.mark.parametrize("kind", ["mapped", "files"])
def test_many_entries_pass_through_little_memory(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # durability is tested elsewhere
    n, p = 500, 40_000
    store, shift, peak = make(kind, tmp_path, n, p), torch.ones(p), 0
    before = private_memory()
    for i in range(n):
        store.put(i, torch.full((p,), float(i)))
        peak = max(peak, private_memory() if i % 20 == 0 else 0, store.bytes_in_memory)
    with store.begin_change() as change:
        for i in range(n // 2):
            change.set(i, torch.full((p,), -float(i)))
            peak = max(peak, private_memory() if i % 20 == 0 else 0)
        change.shift(shift, range(n // 2, n))
    assert store.bytes_in_memory <= 4 * p
    peak = max(peak, private_memory())
    store.commit(change)
    assert peak - before < 0.1 * (4 * n * p)
    vectors = [store.get(0), store.get(n // 2 - 1), store.get(n // 2), store.get(n - 1)]
    assert [flat[0].item() for flat in vectors if flat is not None] == [0.0, -249.0, 251.0, 500.0]
