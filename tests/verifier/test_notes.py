"""Checkpoints: C2SP signed notes, and the co-signatures of witnesses."""

import base64

import pytest

from letheon.verifier import (
    Trust,
    VerificationError,
    check_note,
    note_body,
    note_digest,
    note_key_hash,
    read_note,
)
from tests.verifier import maker
from tests.verifier.maker import ROOT, SECOND, STRANGER, WITNESS

TRUST = Trust.from_pinned(ROOT.public.hex())
TEXT = maker.note(7, maker.sha(b"root"), witness=WITNESS)
PINNED = [maker.verifier_key(WITNESS)]


def test_note_is_read_and_checked() -> None:
    note = read_note(TEXT)
    check_note(note, TRUST, PINNED)
    assert (note.origin, note.size, note.root) == (maker.LEDGER, 7, maker.sha(b"root"))
    assert len(note.signatures) == 2


def test_digest_leaves_the_signatures_out() -> None:
    other = maker.note(7, maker.sha(b"root"), STRANGER)
    assert note_digest(TEXT) == note_digest(other) == maker.sha(read_note(TEXT).body).hex()


def test_key_hash_is_that_of_the_go_implementation() -> None:
    # PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW, from its documentation.
    public = base64.b64decode("ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    assert note_key_hash("PeterNeumann", public[0], public[1:]).hex() == "c74f20a3"


def test_unknown_signatures_are_left_alone_unless_pinned() -> None:
    text = TEXT + f"— someone {maker.text64(bytes(68))}\n"
    check_note(read_note(text), TRUST, PINNED)
    with pytest.raises(VerificationError, match=r"witness w\.example/1: has not signed"):
        check_note(read_note(maker.note(7, bytes(32))), TRUST, PINNED)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (maker.note(7, bytes(32), STRANGER), "expected one signature by a trusted key"),
        (maker.note(7, bytes(32), origin="other"), "expected one signature|not this ledger"),
        (TEXT + TEXT.splitlines()[4] + "\n", "expected one signature by a trusted key"),
        (TEXT.replace("\n7\n", "\n8\n"), "is not valid"),
    ],
)
def test_other_signers_and_bodies_are_refused(text: str, reason: str) -> None:
    trust = Trust.from_pinned(ROOT.public.hex(), maker.rotated())
    with pytest.raises(VerificationError, match=reason):
        check_note(read_note(text), trust)


def test_either_key_of_a_rotation_may_sign() -> None:
    trust = Trust.from_pinned(ROOT.public.hex(), maker.rotated())
    notes = [read_note(maker.note(1, bytes(32), signer)) for signer in (ROOT, SECOND)]
    for note in notes:
        check_note(note, trust)
    assert notes[0].body == notes[1].body


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        TEXT[:-1],
        TEXT + "\n",
        TEXT.replace("\n7\n", "\n07\n"),
        TEXT.replace("\n7\n", "\n-7\n"),
        TEXT.replace("\n7\n", "\n7 \n"),
        TEXT.replace("\n7\n", "\n٧\n"),
        TEXT.replace("\n7\n", "\n" + "9" * 17 + "\n"),
        TEXT.replace("\n\n", "\nextension\n\n"),
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("— ", "- "),
        TEXT.replace("=\n", "\n"),
        TEXT.replace(maker.LEDGER, "Prod EU"),
        TEXT.replace(maker.LEDGER, "a+b"),
        maker.note(7, bytes(31)),
        maker.note(7, bytes(33)),
        TEXT.partition("\n\n")[0] + "\n\n",
        TEXT + TEXT.splitlines()[5] * 70,
        TEXT + (TEXT.splitlines()[5] + "\n") * 70,
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(VerificationError):
        read_note(text)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (maker.verifier_key(STRANGER), "has not signed"),
        ("w.example/1", "not a cosignature/v1|base64"),
        (PINNED[0].replace("+B", "+A", 1), "not a cosignature/v1|hash"),
        (PINNED[0].replace("w.example/1", "w.example/2"), "match its hash"),
    ],
)
def test_pinned_witness_must_have_signed(key: str, reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        check_note(read_note(TEXT), TRUST, [key])


def test_time_of_a_co_signature_is_signed() -> None:
    line = TEXT.splitlines()[5]
    data = bytearray(base64.b64decode(line.split(" ")[2]))
    data[11] ^= 1
    later = TEXT.replace(line, f"— w.example/1 {maker.text64(bytes(data))}")
    with pytest.raises(VerificationError, match=r"w\.example/1: the signature .* is not valid"):
        check_note(read_note(later), TRUST, PINNED)


@pytest.mark.parametrize("origin", ["", "a b", "a+b", "a\nb", "A", "x" * 129])
def test_origin_must_be_a_code(origin: str) -> None:
    with pytest.raises(VerificationError, match="origin"):
        note_body(origin, 1, bytes(32))
