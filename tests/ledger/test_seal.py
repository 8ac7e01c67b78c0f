"""Sealing, tags and derivation: nothing altered, moved or cut is ever opened."""

import hashlib
import hmac
import os
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from letheon.exceptions import CorruptFileError
from letheon.ledger.keys import keyring
from letheon.ledger.keys.derivation import (
    commit_to_key,
    compute_tag,
    derive_key,
    derive_training_seed,
)
from letheon.ledger.keys.keyring import Cipher

KEY = bytes(range(32))
HEAD = 48
PIECE = 12 + 8 + 16  # nonce, chunk, authentication


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "CHUNK", 8)


def opens(sealed: bytes, context: bytes = b"rows", key: bytes = KEY) -> bool:
    try:
        Cipher(key).decrypt(sealed, context)
    except CorruptFileError:
        return False
    return True


def pieces(sealed: bytes) -> tuple[bytes, list[bytes]]:
    return sealed[:HEAD], [sealed[i : i + PIECE] for i in range(HEAD, len(sealed), PIECE)]


def rearranged(sealed: bytes, other: bytes) -> Iterator[bytes]:
    """Yield what can be put together from the chunks of two texts of three chunks each."""
    head, (a, b, c) = pieces(sealed)
    strange_head, (x, y, z) = pieces(other)
    shorter = head[:40] + (16).to_bytes(8, "big")
    longer = head[:40] + (32).to_bytes(8, "big")
    for parts in ([b, a, c], [a, c, b], [a, a, c], [a, b], [a, b, c, c], [x, b, c], [a, y, c]):
        yield head + b"".join(parts)
    yield strange_head + a + b + c
    yield head + x + y + z
    yield shorter + a + b
    yield longer + a + b + c + c


@given(st.binary(max_size=100), st.binary(max_size=20), st.integers(1, 40))
def test_what_was_sealed_comes_back(data: bytes, context: bytes, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyring, "CHUNK", chunk)
        sealed = Cipher(KEY).encrypt(data, context)
    assert Cipher(KEY).decrypt(sealed, context) == data
    assert Cipher(KEY).decrypt(memoryview(bytearray(sealed)), context) == data


def test_one_chunk_is_plain_aes_gcm() -> None:
    sealed = Cipher(KEY).encrypt(b"text", b"rows")
    head, nonce, body = sealed[:HEAD], sealed[HEAD : HEAD + 12], sealed[HEAD + 12 :]
    assert AESGCM(KEY).decrypt(nonce, body, head + bytes(8) + b"rows") == b"text"


def test_two_seals_of_a_text_share_no_chunk(small_chunks: None) -> None:
    once, twice = (pieces(Cipher(KEY).encrypt(b"same" * 6, b""))[1] for _ in range(2))
    assert len({*once, *twice}) == 6


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("data", [b"", b"short", b"exactly8", b"three chunks of eight bytes"])
def test_every_altered_byte_is_refused(data: bytes) -> None:
    sealed = Cipher(KEY).encrypt(data, b"rows")
    mutants = [sealed[:i] + sealed[i + 1 :] for i in range(len(sealed))]
    mutants += [sealed[:i] + b"\0" + sealed[i:] for i in range(len(sealed) + 1)]
    mutants += [sealed[:i] for i in range(len(sealed))]
    for i in range(len(sealed)):
        mutants += [
            sealed[:i] + bytes([sealed[i] ^ 1 << bit]) + sealed[i + 1 :] for bit in range(8)
        ]
    assert not [mutant for mutant in mutants if mutant != sealed and opens(mutant)]
    assert opens(sealed)


@pytest.mark.usefixtures("small_chunks")
def test_chunks_cannot_be_moved_dropped_or_taken_from_another_text() -> None:
    one, other = (Cipher(KEY).encrypt(text, b"rows") for text in (b"first..." * 3, b"second.." * 3))
    assert not [mutant for mutant in rearranged(one, other) if opens(mutant)]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    "careless",
    [
        pytest.param(lambda head, index, context: head + context, id="no counter"),
        pytest.param(lambda head, index, context: bytes([index]) + context, id="no header"),
    ],
)
def test_the_rearrangements_win_against_a_careless_binding(
    careless: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring, "_associated_data", careless)
    one, other = (Cipher(KEY).encrypt(text, b"rows") for text in (b"first..." * 3, b"second.." * 3))
    assert [mutant for mutant in rearranged(one, other) if opens(mutant)]


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_another_context_or_key_is_refused(context: bytes, other: bytes) -> None:
    sealed = Cipher(KEY).encrypt(b"text", context)
    assert opens(sealed, other) == (context == other)
    assert not opens(sealed, context, os.urandom(32))


def test_a_huge_length_in_the_header_costs_nothing() -> None:
    sealed = Cipher(KEY).encrypt(b"text", b"")
    for field in (32, 40):
        assert not opens(sealed[:field] + b"\xff" * 8 + sealed[field + 8 :], b"")


def test_hkdf_of_rfc_5869() -> None:
    derived = derive_key(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42)
    assert derived.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


@given(st.lists(st.binary(max_size=5), max_size=4), st.lists(st.binary(max_size=5), max_size=4))
def test_tags_tell_parts_apart(parts: list[bytes], others: list[bytes]) -> None:
    assert (compute_tag(KEY, *parts) == compute_tag(KEY, *others)) == (parts == others)


def test_a_tag_is_the_hmac_of_its_parts() -> None:
    message = (3).to_bytes(8, "big") + b"ann" + bytes(8)
    assert compute_tag(KEY, b"ann", b"") == hmac.new(KEY, message, "sha256").hexdigest()


def test_seed_and_commitment_by_hand() -> None:
    first = hmac.new(b"beacon", KEY, "sha256").digest()
    block = hmac.new(first, b"letheon/training-seed/v1\x01", "sha256").digest()
    assert derive_training_seed(KEY, b"beacon") == int.from_bytes(block[:16], "big")
    text = b"letheon/key-commitment/v1" + KEY
    assert commit_to_key(KEY) == hashlib.sha256(text).hexdigest()
