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
from letheon.ledger.core import BlobStore, destroy_file
from letheon.ledger.keys import keyring
from tests.sharded.people import examples


class KeyedCipher:
    """A sealer with a key of its own."""

    def __init__(self) -> None:
        self.key = AESGCM.generate_key(256)

    def encrypt(self, data: bytes) -> bytes:
        return keyring.Cipher(self.key).encrypt(data, b"box")

    def decrypt(self, data: bytes) -> bytes:
        return keyring.Cipher(self.key).decrypt(data, b"box")


BOX = KeyedCipher()


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    made = BlobStore(tmp_path / "blobs")
    made.create()
    return made


@examples(30)
@given(content=st.binary(max_size=300))
def test_a_blob_is_named_by_the_hash_of_what_is_sealed(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    blobs = BlobStore(tmp_path_factory.mktemp("blobs"))
    address = blobs.write(content, BOX)
    assert hashlib.sha256(blobs.read_with_nonce(address, BOX)).hexdigest() == address
    assert blobs.read(address, BOX) == content
    assert len(content) < 8 or content not in blobs.path_of(address).read_bytes()
    assert blobs.list_addresses() == {address}


def test_the_same_content_never_has_the_same_address(blobs: BlobStore) -> None:
    assert len({blobs.write(b"a model", BOX) for _ in range(20)}) == 20
    assert hashlib.sha256(b"a model").hexdigest() not in blobs.list_addresses()


def test_every_altered_byte_is_noticed(blobs: BlobStore) -> None:
    address = blobs.write(b"seventeen bytes..", BOX)
    path = blobs.path_of(address)
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


def test_a_blob_put_under_another_name_is_noticed(blobs: BlobStore) -> None:
    first, second = blobs.write(b"first", BOX), blobs.write(b"second", BOX)
    blobs.path_of(first).replace(blobs.path_of(second))
    with pytest.raises(CorruptFileError, match="altered"):
        blobs.read(second, BOX)


def test_without_its_key_nothing_can_be_read(blobs: BlobStore) -> None:
    address = blobs.write(b"content", BOX)
    with pytest.raises(CorruptFileError):
        blobs.read(address, KeyedCipher())


def test_only_the_owner_can_read_a_blob(blobs: BlobStore) -> None:
    old = os.umask(0)
    try:
        address = blobs.write(b"content", BOX)
    finally:
        os.umask(old)
    assert blobs.path_of(address).stat().st_mode & 0o777 == 0o600
    assert blobs.folder.stat().st_mode & 0o777 == 0o700


def test_a_missing_blob_and_a_bad_address_are_told_apart(blobs: BlobStore) -> None:
    with pytest.raises(LedgerMissingError, match="is missing in"):
        blobs.read("0" * 64, BOX)
    assert not blobs.is_sound("0" * 64, BOX)
    with pytest.raises(ValueError, match="not a blob address"):
        blobs.path_of("../secret")


def test_unnamed_files_are_all_but_the_wanted(blobs: BlobStore) -> None:
    kept, orphan = blobs.write(b"kept", BOX), blobs.write(b"orphan", BOX)
    (blobs.folder / ".half.partial").write_bytes(b"rows")
    (blobs.folder / ".lock").touch()
    unnamed = sorted(path.name for path in blobs.list_unreferenced({kept}))
    assert unnamed == sorted([".half.partial", orphan])


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("nth", [1, 2])
def test_an_error_of_the_disk_leaves_nothing(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
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
            blobs.write(b"content", BOX)
        return
    with pytest.raises(OSError, match="no space"):
        blobs.write(b"content", BOX)
    assert list(blobs.folder.iterdir()) == []


def test_destroy_overwrites_before_it_removes(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address = blobs.write(b"person " * 100, BOX)
    path = blobs.path_of(address)
    os.link(path, tmp_path / "second-name")
    blobs.destroy(address)
    blobs.destroy(address)
    assert not path.exists()
    assert set((tmp_path / "second-name").read_bytes()) == {0}


def test_destroy_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"another file")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    destroy_file(tmp_path / "link")
    assert (tmp_path / "other").read_bytes() == b"another file"
    assert not (tmp_path / "link").is_symlink()
