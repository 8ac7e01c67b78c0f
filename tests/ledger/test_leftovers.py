"""Half-written files of processes that died are swept, and those of living ones are not."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from letheon.ledger import core as faults
from letheon.ledger.worker.recover import list_leftovers, sweep_partials
from tests.ledger.residue import MarkedLedger, make_marked, quick_folder

UNLOCKED = (".", "certificates", "checkpoints")
LOCKED = ("purges", "keys", "public/keys")


@pytest.fixture
def marked() -> Iterator[MarkedLedger]:
    with quick_folder() as folder, closing(make_marked(folder / "home", 6)) as marked_ledger:
        yield marked_ledger


def leave(marked: MarkedLedger, place: str, *, age: float) -> Path:
    path = marked.home / place / ".000001.json.0123456789abcdef.partial"
    path.write_bytes(b"postgresql://user:password@host")
    os.utime(path, (time.time() - age,) * 2)
    return path


@pytest.mark.parametrize("place", [*UNLOCKED, *LOCKED])
def test_old_half_written_file_is_named_and_swept(place: str, marked: MarkedLedger) -> None:
    path = leave(marked, place, age=3600)
    assert list_leftovers(marked.core) == (path,)
    assert sweep_partials(marked.core) == 1
    assert not path.exists()
    assert list_leftovers(marked.core) == ()
    assert sweep_partials(marked.core) == 0


@pytest.mark.parametrize("place", UNLOCKED)
def test_new_half_written_file_may_be_a_living_writers(place: str, marked: MarkedLedger) -> None:
    path = leave(marked, place, age=1)
    assert sweep_partials(marked.core) == 0
    assert path.exists()
    assert list_leftovers(marked.core) == ()


@pytest.mark.parametrize("place", LOCKED)
def test_lock_tells_the_living_from_the_dead(place: str, marked: MarkedLedger) -> None:
    path = leave(marked, place, age=1)
    if place == "purges":
        with (marked.home / "purges" / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert sweep_partials(marked.core) == 0
            assert path.exists()
    assert sweep_partials(marked.core) == 1
    assert not path.exists()


def test_leftovers_in_the_folder_of_a_model_are_named(marked: MarkedLedger) -> None:
    path = leave(marked, f"blobs/{marked.model.folder}", age=3600)
    assert list_leftovers(marked.core) == (path,)


@pytest.mark.parametrize("place", [*UNLOCKED, *LOCKED])
def test_purge_sweeps_them_too(
    place: str, marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Path] = []

    def die(name: str) -> None:
        # After the worker swept, and after the last key was made or destroyed.
        if name == "purge.stores-done":
            left.append(leave(marked, place, age=3600))

    monkeypatch.setattr(faults, "hook", die)
    marked.erase(marked.ids[0])
    assert marked.states() == {"purged"}
    assert [path.exists() for path in left] == [False]
