"""Blobs: addresses that are hashes, nonces that blind, files that are whole or absent."""

import errno
import hashlib
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from letheon.exceptions import CorruptFileError, LedgerMissingError
from letheon.ledger.keys import keyring
from letheon.ledger.keys.blobs import Blobs, destroy_file
from tests.sharded.people import examples


class Box:
    """A sealer with a key of its own."""

    def __init__(self) -> None:
        self.key = AESGCM.generate_key(256)

    def seal(self, data: bytes) -> bytes:
        return keyring.Cipher(self.key).seal(data, b"box")

    def unseal(self, data: bytes) -> bytes:
        return keyring.Cipher(self.key).unseal(data, b"box")


BOX = Box()


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    made = Blobs(tmp_path / "blobs")
    made.create()
    return made


@examples(30)
@given(content=st.binary(max_size=300))
def test_a_blob_is_named_by_the_hash_of_what_is_sealed(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    blobs = Blobs(tmp_path_factory.mktemp("blobs"))
    address = blobs.put(content, BOX)
    assert hashlib.sha256(blobs.raw(address, BOX)).hexdigest() == address
    assert blobs.read(address, BOX) == content
    assert len(content) < 8 or content not in blobs.path(address).read_bytes()
    assert blobs.addresses() == {address}


def test_the_same_content_never_has_the_same_address(blobs: Blobs) -> None:
    assert len({blobs.put(b"a model", BOX) for _ in range(20)}) == 20
    assert hashlib.sha256(b"a model").hexdigest() not in blobs.addresses()


def test_every_altered_byte_is_noticed(blobs: Blobs) -> None:
    address = blobs.put(b"seventeen bytes..", BOX)
    path = blobs.path(address)
    sound = path.read_bytes()
    mutants = [
        bytes([*sound[:i], sound[i] ^ 1 << bit, *sound[i + 1 :]])
        for i in range(len(sound))
        for bit in range(8)
    ]
    mutants += [sound[:i] + sound[i + 1 :] for i in range(len(sound))]
    mutants += [sound[:i] + b"\0" + sound[i:] for i in range(len(sound) + 1)]
    for mutant in mutants:
        path.write_bytes(mutant)
        with pytest.raises(CorruptFileError, match="altered"):
            blobs.read(address, BOX)
        assert not blobs.is_sound(address, BOX)
    path.write_bytes(sound)
    assert blobs.is_sound(address, BOX)


def test_a_blob_put_under_another_name_is_noticed(blobs: Blobs) -> None:
    first, second = blobs.put(b"first", BOX), blobs.put(b"second", BOX)
    blobs.path(first).replace(blobs.path(second))
    with pytest.raises(CorruptFileError, match="altered"):
        blobs.read(second, BOX)


def test_without_its_key_nothing_can_be_read(blobs: Blobs) -> None:
    address = blobs.put(b"content", BOX)
    with pytest.raises(CorruptFileError):
        blobs.read(address, Box())


def test_only_the_owner_can_read_a_blob(blobs: Blobs) -> None:
    old = os.umask(0)
    try:
        address = blobs.put(b"content", BOX)
    finally:
        os.umask(old)
    assert blobs.path(address).stat().st_mode & 0o777 == 0o600
    assert blobs.folder.stat().st_mode & 0o777 == 0o700


def test_a_missing_blob_and_a_bad_address_are_told_apart(blobs: Blobs) -> None:
    with pytest.raises(LedgerMissingError, match="no blob"):
        blobs.read("0" * 64, BOX)
    assert not blobs.is_sound("0" * 64, BOX)
    with pytest.raises(ValueError, match="no address"):
        blobs.path("../secret")


def test_unnamed_files_are_all_but_the_wanted(blobs: Blobs) -> None:
    kept, orphan = blobs.put(b"kept", BOX), blobs.put(b"orphan", BOX)
    (blobs.folder / ".half.partial").write_bytes(b"rows")
    (blobs.folder / ".lock").touch()
    unnamed = sorted(path.name for path in blobs.unnamed({kept}))
    assert unnamed == sorted([".half.partial", orphan])


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("nth", [1, 2])
def test_an_error_of_the_disk_leaves_nothing(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    real, calls = getattr(os, call), []

    def failing(*arguments: object) -> object:
        calls.append(call)
        if len(calls) == nth:
            raise OSError(errno.ENOSPC, "no space left")
        return real(*arguments)

    monkeypatch.setattr(os, call, failing)
    if (call, nth) == ("fsync", 2):
        # The directory's: the blob is there, but its writer is told that it may not be.
        with pytest.raises(OSError, match="no space"):
            blobs.put(b"content", BOX)
        return
    with pytest.raises(OSError, match="no space"):
        blobs.put(b"content", BOX)
    assert list(blobs.folder.iterdir()) == []


def test_destroy_overwrites_before_it_removes(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address = blobs.put(b"person " * 100, BOX)
    path = blobs.path(address)
    os.link(path, tmp_path / "second-name")
    blobs.destroy(address)
    blobs.destroy(address)
    assert not path.exists()
    assert set((tmp_path / "second-name").read_bytes()) == {0}


def test_destroy_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"somebody else's")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    destroy_file(tmp_path / "link")
    assert (tmp_path / "other").read_bytes() == b"somebody else's"
    assert not (tmp_path / "link").is_symlink()
