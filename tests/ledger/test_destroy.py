"""A file that was destroyed is gone after a power cut too, and an error of the disk is told."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from letheon.ledger import core
from letheon.ledger.core import destroy_file
from letheon.ledger.keys import keyring


def folder_syncs(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> int:
    """Return how often an action makes the names in a folder durable."""
    synced: list[int] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            synced.append(descriptor)
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", noted)
        action()
    return len(synced)


def failing(call: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)


def test_folder_is_synced_although_the_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"person")
    assert folder_syncs(monkeypatch, lambda: destroy_file(file)) == 1
    assert not file.exists()
    assert folder_syncs(monkeypatch, lambda: destroy_file(file)) == 1


def test_error_of_the_disk_is_told_and_the_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"person")
    with monkeypatch.context() as patch:
        failing("write", errno.EIO, patch)
        with pytest.raises(OSError, match="Input/output"):
            destroy_file(file)
    assert file.exists()
    destroy_file(file)
    assert not file.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_does_not_keep_a_file(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"person")
    with monkeypatch.context() as patch:
        failing("write", number, patch)
        destroy_file(file)
    assert not file.exists()


def test_error_of_removing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"person")
    with monkeypatch.context() as patch:
        failing("unlink", errno.EACCES, patch)
        with pytest.raises(PermissionError):
            destroy_file(file)
    assert file.read_bytes() == bytes(6)


def test_pipe_is_removed_without_waiting_for_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    destroy_file(tmp_path / "pipe")
    assert not (tmp_path / "pipe").exists()


def test_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    destroy_file(tmp_path / "gone" / "file")
    assert not (tmp_path / "gone").exists()


def test_keys_and_blobs_are_destroyed_by_one_function() -> None:
    assert vars(keyring)["destroy_file"] is core.destroy_file
