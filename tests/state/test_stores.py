"""The store of checkpoints: verified, atomic, and really empty after a sweep."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from letheon.exceptions import CheckpointError, StateError
from letheon.state import CheckpointName, DirectoryStore

BLOB = b"canary " * 1000


NOTHING: frozenset[str] = frozenset()


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "a" / "b")


def test_bytes_come_back_by_their_hash(store: DirectoryStore) -> None:
    checkpoint = store.put(BLOB)
    assert store.get(checkpoint) == BLOB
    assert store.put(bytearray(BLOB)) == checkpoint


def test_missing_checkpoint(store: DirectoryStore) -> None:
    with pytest.raises(StateError, match="0000"):
        store.get(CheckpointName("0" * 64))


def test_a_sweep_leaves_what_is_named(store: DirectoryStore) -> None:
    destroyed, kept = store.put(BLOB), store.put(b"other")
    assert store.names() == {destroyed.sha256, kept.sha256}
    assert store.keep_only(frozenset({kept.sha256})) == ()
    assert store.get(kept) == b"other"
    with pytest.raises(StateError):
        store.get(destroyed)


def test_a_sweep_takes_half_written_files_and_leaves_strangers(store: DirectoryStore) -> None:
    checkpoint = store.put(BLOB)
    half = store.path / f".{checkpoint.sha256}.letheon-state.0123456789abcdef.partial"
    half.write_bytes(BLOB)
    strangers = [store.path / name for name in ("thesis.tex", "a.letheon-state", ".ssh")]
    for stranger in strangers:
        stranger.write_text("not ours")
    assert store.keep_only(frozenset({checkpoint.sha256})) == ()
    assert not half.exists()
    store.keep_only(NOTHING)
    assert sorted(store.path.iterdir()) == sorted(strangers)


def test_an_empty_directory_goes_with_its_last_checkpoint(store: DirectoryStore) -> None:
    store.put(BLOB)
    store.keep_only(NOTHING)
    assert not store.path.exists()
    assert store.keep_only(NOTHING) == ()


def test_altered_checkpoint_is_noticed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    checkpoint = store.put(BLOB)
    (tmp_path / f"{checkpoint.sha256}.letheon-state").write_bytes(b"x" + BLOB[1:])
    with pytest.raises(StateError, match="altered"):
        store.get(checkpoint)


@pytest.mark.parametrize("name", ["", "../" + "a" * 61, "A" * 64, "a" * 63, None, "a" * 64 + "\n"])
def test_names_that_are_no_hash(name: Any) -> None:
    with pytest.raises(ValueError, match="64 lower-case hexadecimal"):
        CheckpointName(name)


def test_a_sweep_overwrites_before_it_unlinks(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    checkpoint = store.put(BLOB)
    other_name = tmp_path / "other"
    os.link(tmp_path / f"{checkpoint.sha256}.letheon-state", other_name)
    store.keep_only(NOTHING)
    assert other_name.read_bytes() == bytes(len(BLOB))
    assert len(store) == 0


def test_a_sweep_does_not_follow_links(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    victim = tmp_path / "victim"
    victim.write_bytes(b"keep me")
    checkpoint = CheckpointName("a" * 64)
    (tmp_path / f"{checkpoint.sha256}.letheon-state").symlink_to(victim)
    store.keep_only(NOTHING)
    assert victim.read_bytes() == b"keep me"
    assert len(store) == 0


def test_what_cannot_be_removed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path)
    first, second = store.put(b"1"), store.put(b"2")
    unlink = Path.unlink

    def stubborn(self: Path, missing_ok: bool = False) -> None:
        if first.sha256 in self.name:
            raise PermissionError(f"not {self.name}")
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", stubborn)
    assert store.keep_only(NOTHING) == (str(tmp_path / f"{first.sha256}.letheon-state"),)
    with pytest.raises(StateError):
        store.get(second)


def test_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = DirectoryStore(tmp_path / "file" / "below")
    with pytest.raises(CheckpointError, match=r"below.*choose a writable directory"):
        store.verify_writable()
    with pytest.raises(CheckpointError):
        DirectoryStore(tmp_path / "file").put(BLOB)


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Let no file grow beyond 1,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_disk")
def test_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    with pytest.raises(CheckpointError, match="File too large"):
        store.put(BLOB)
    with pytest.raises(CheckpointError):
        store.verify_writable()
    assert list(tmp_path.iterdir()) == []


def test_interrupted_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        DirectoryStore(tmp_path).put(BLOB)
    assert list(tmp_path.iterdir()) == []


def test_writable_directory_is_made_and_left_empty(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "new")
    store.verify_writable()
    assert list((tmp_path / "new").iterdir()) == []


def test_only_the_owner_can_read_checkpoints(tmp_path: Path) -> None:
    DirectoryStore(tmp_path).put(BLOB)
    assert [file.stat().st_mode & 0o777 for file in tmp_path.iterdir()] == [0o600]
