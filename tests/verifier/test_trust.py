"""Which key may sign what, after rotations and revocations."""

from typing import Any

import pytest

from letheon.verifier import (
    Trust,
    VerificationError,
    check_chain,
    check_note,
    open_envelope,
    read_note,
)
from tests.verifier import maker
from tests.verifier.maker import ROOT, SECOND, STRANGER, THIRD, NamedSigner, envelope

PINNED = ROOT.public.hex()


def statements() -> list[bytes]:
    """ROOT up to 3, SECOND up to 5, THIRD after; SECOND is not trusted after 4."""
    chain = maker.rotated(3)
    chain.append(envelope(maker.rotation(SECOND, THIRD, 5, chain), SECOND, THIRD))
    chain.append(envelope(maker.revocation(SECOND, 4, chain), THIRD))
    return chain


def signs(trust: Trust, signer: NamedSigner) -> list[int]:
    """Certificates that a key may sign, out of 1..7."""
    accepted = []
    for sequence in range(1, 8):
        try:
            trust.key(signer.keyid, sequence)
        except VerificationError:
            continue
        accepted.append(sequence)
    return accepted


def test_pinned_key_alone_signs_everything() -> None:
    trust = Trust.from_pinned(f"{PINNED}\n")
    assert signs(trust, ROOT) == [1, 2, 3, 4, 5, 6, 7]
    assert signs(trust, STRANGER) == []


def test_rotations_and_revocation_divide_the_certificates() -> None:
    trust = Trust.from_pinned(PINNED, statements())
    assert signs(trust, ROOT) == [1, 2, 3]
    assert signs(trust, SECOND) == [4]
    assert signs(trust, THIRD) == [6, 7]
    assert trust.ledger == maker.LEDGER
    assert trust.statements == [maker.id_of(data) for data in statements()]


def test_a_revocation_gives_no_key_more_certificates_than_it_had() -> None:
    chain = maker.rotated(3)
    chain.append(envelope(maker.revocation(ROOT, 5, chain), SECOND))
    assert signs(Trust.from_pinned(PINNED, chain), ROOT) == [1, 2, 3]


def test_a_later_key_may_speak_of_an_earlier_certificate() -> None:
    trust = Trust.from_pinned(PINNED, statements())
    assert trust.key(THIRD.keyid, 1, later=True) == THIRD.public
    with pytest.raises(VerificationError, match="replaced after certificate 3"):
        trust.key(ROOT.keyid, 4, later=True)


def test_statements_open_as_envelopes_too() -> None:
    trust = Trust.from_pinned(PINNED, statements())
    signers = [open_envelope(data, trust).keyids for data in statements()]
    assert [len(keyids) for keyids in signers] == [2, 2, 1]


FIRST = maker.rotation(ROOT, SECOND, 3)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (envelope(FIRST, ROOT), "1 signatures; expected 2"),
        (envelope(FIRST, SECOND), "not signed by key"),
        (envelope(FIRST, ROOT, STRANGER), "not signed by key"),
        (envelope(FIRST, STRANGER, SECOND), "not signed by key"),
        (
            envelope(maker.changed(FIRST, "predicate.oldKey", THIRD.keyid), ROOT, SECOND),
            "old key is not the current",
        ),
        (envelope(maker.rotation(ROOT, ROOT, 3), ROOT), "1 signatures"),
        (
            envelope(
                maker.changed(FIRST, "predicate.newKey.public", THIRD.public.hex()), ROOT, SECOND
            ),
            "known already",
        ),
        (envelope(maker.changed(FIRST, "subject.0.name", "other"), ROOT, SECOND), "subject"),
        (envelope(maker.changed(FIRST, "predicate.ledger.number", 2), ROOT, SECOND), "number 2"),
        (
            envelope(
                maker.changed(FIRST, "predicate.ledger.previousStatement", {"sha256": ROOT.keyid}),
                ROOT,
                SECOND,
            ),
            "does not follow",
        ),
        (envelope(maker.revocation(ROOT, 3), ROOT), "cannot revoke itself"),
        (envelope(maker.revocation(STRANGER, 3), ROOT), "is unknown"),
        (envelope(maker.example(), ROOT), "neither"),
        (b"{}", "required"),
    ],
)
def test_bad_statement_is_refused_by_number(data: bytes, reason: str) -> None:
    with pytest.raises(VerificationError, match=f"key statement 1: .*{reason}"):
        Trust.from_pinned(PINNED, [data])


@pytest.mark.parametrize("left_out", [0, 1])
def test_statement_dropped_from_the_middle_is_seen(left_out: int) -> None:
    chain = statements()
    del chain[left_out]
    with pytest.raises(VerificationError, match=f"key statement {left_out + 1}"):
        Trust.from_pinned(PINNED, chain)


def test_statement_of_another_ledger_is_refused() -> None:
    chain = maker.rotated()
    second = maker.rotation(SECOND, THIRD, 5, chain)
    second = maker.changed(second, "predicate.ledger.id", "other")
    with pytest.raises(VerificationError, match="key statement 2: belongs to another ledger"):
        Trust.from_pinned(PINNED, [*chain, envelope(second, SECOND, THIRD)])


def test_rotation_cannot_end_before_the_old_key_began() -> None:
    chain = maker.rotated(3)
    chain.append(envelope(maker.rotation(SECOND, THIRD, 2, chain), SECOND, THIRD))
    with pytest.raises(VerificationError, match="the old key ends before it begins"):
        Trust.from_pinned(PINNED, chain)


@pytest.mark.parametrize("pinned", ["", "00", PINNED.upper(), PINNED + "00", STRANGER.keyid[:-1]])
def test_pinned_key_must_be_32_bytes_in_hex(pinned: str) -> None:
    with pytest.raises(VerificationError, match="hex"):
        Trust.from_pinned(pinned)


def signer_of(sequence: int) -> NamedSigner:
    return ROOT if sequence <= 3 else SECOND


def test_chain_over_a_rotation_is_accepted() -> None:
    files = maker.build(signer_of=signer_of)
    trust = Trust.from_pinned(PINNED, maker.rotated(3))
    assert len(check_chain(maker.certificates(files), trust)) == 6


@pytest.mark.parametrize(
    ("chain", "reason"),
    [
        (maker.rotated(2), "certificate 3: key .* was replaced after certificate 2"),
        (maker.rotated(4), "certificate 4: key .* is valid from certificate 5"),
        ([], "certificate 4: key .* is unknown"),
    ],
)
def test_certificate_by_a_key_out_of_its_time_is_refused(chain: Any, reason: str) -> None:
    files = maker.build(signer_of=signer_of)
    with pytest.raises(VerificationError, match=reason):
        check_chain(maker.certificates(files), Trust.from_pinned(PINNED, chain))


def test_certificate_by_a_revoked_key_is_refused() -> None:
    chain = maker.rotated(3)
    chain.append(envelope(maker.revocation(ROOT, 2, chain), SECOND))
    files = maker.build(signer_of=signer_of)
    with pytest.raises(
        VerificationError, match=r"certificate 3: key .* was revoked after certificate 2"
    ):
        check_chain(maker.certificates(files), Trust.from_pinned(PINNED, chain))


def test_newest_checkpoint_by_a_revoked_key_is_refused() -> None:
    chain = maker.rotated(3)
    chain.append(envelope(maker.revocation(ROOT, 3, chain), SECOND))
    trust = Trust.from_pinned(PINNED, chain)
    note = read_note(maker.note(1, bytes(32)))
    check_note(note, trust, revoked_too=True)
    with pytest.raises(VerificationError, match="expected one signature by a trusted key"):
        check_note(note, trust)
