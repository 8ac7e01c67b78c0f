"""Transition proofs and receipts against a tree that is hashed whole."""

import json
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from letheon.verifier import (
    TOMBSTONE,
    Trust,
    VerificationError,
    check_receipt,
    open_envelope,
    slot_leaf,
    transition_roots,
)
from tests.verifier import maker

LEAVES = [maker.row_leaf(bytes([i] * 32), i, b"row") for i in range(8)]
PROOF = maker.transition(LEAVES, [1, 4, 5])
TRUST = Trust.from_pinned(maker.ROOT.public.hex())


def test_leaf_and_tombstone_are_those_of_the_definition() -> None:
    assert slot_leaf(b"s" * 32, 300, b"row") == maker.row_leaf(b"s" * 32, 300, b"row")
    assert TOMBSTONE == maker.TOMBSTONE


@given(st.data())
def test_proof_gives_both_roots(data: st.DataObject) -> None:
    slots = 1 << data.draw(st.integers(0, 6))
    leaves = [maker.sha(bytes([i])) for i in range(slots)]
    empty = data.draw(st.sets(st.integers(0, slots - 1)))
    erased = data.draw(st.sets(st.integers(0, slots - 1), min_size=1)) - empty
    leaves = maker.without(leaves, empty)
    if erased:
        before, after, n_erased = transition_roots(maker.transition(leaves, erased))
        assert before.hex() == maker.slot_root(leaves)
        assert after.hex() == maker.slot_root(maker.without(leaves, erased))
        assert n_erased == len(erased)


def edited(**changes: Any) -> bytes:
    return rfc8785.dumps({**json.loads(PROOF), **changes})


FOUND = json.loads(PROOF)


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        (edited(scheme="other"), "scheme"),
        (edited(slots=6), "power of two"),
        (edited(slots=4), "an erased slot is not valid"),
        (edited(slots=16), "too short"),
        (edited(slots=2**52), "too short"),
        (edited(slots=0), "minimum"),
        (edited(erased=[]), "minItems"),
        (edited(erased=FOUND["erased"][::-1]), "not sorted"),
        (edited(erased=FOUND["erased"][:1] * 2), "not sorted"),
        (edited(erased=[{"slot": 0, "leaf": TOMBSTONE.hex()}]), "an erased slot is not valid"),
        (edited(siblings=FOUND["siblings"][:-1]), "too short"),
        (edited(siblings=[*FOUND["siblings"], "00" * 32]), "too long"),
        (edited(siblings=["00"]), "pattern"),
        (PROOF + b" ", "canonical"),
    ],
)
def test_other_forms_are_refused(proof: bytes, reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        transition_roots(proof)


def receipt_for(slot: int, /, **changes: Any) -> bytes:
    certificate = maker.certificates(maker.honest_bundle())[0]
    model = maker.SlotModel.registered("credit-risk")
    after = maker.without(model.slots, maker.STEPS[0].erased)
    receipt: dict[str, Any] = {
        "certificate": maker.id_of(certificate),
        "slot": slot,
        "place": 7 - slot,
        "salt": maker.sha(b"credit-risk").hex(),
        "before": maker.slot_path(model.slots, slot),
        "after": maker.slot_path(after, slot),
    }
    return rfc8785.dumps({**receipt, **changes})


CERTIFICATE = open_envelope(maker.certificates(maker.honest_bundle())[0], TRUST)


@pytest.mark.parametrize("slot", maker.STEPS[0].erased)
def test_receipt_of_an_erased_row_holds(slot: int) -> None:
    receipt = receipt_for(slot)
    check_receipt(receipt, b"row %d" % slot, CERTIFICATE)
    with pytest.raises(VerificationError, match="does not lead to rootBefore"):
        check_receipt(receipt, b"another row", CERTIFICATE)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"slot": 1}, "does not lead to rootBefore"),
        ({"slot": 12}, "the wrong length"),
        ({"place": 4}, "does not lead to rootBefore"),
        ({"salt": "00" * 32}, "does not lead to rootBefore"),
        ({"certificate": "00" * 32}, "another certificate"),
        ({"before": []}, "the wrong length"),
        ({"after": []}, "the wrong length"),
        ({"after": ["00" * 32] * 3}, "does not lead to rootAfter"),
        ({"name": "Ada"}, "unknown key"),
    ],
)
def test_other_receipts_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        check_receipt(receipt_for(4, **changes), b"row 4", CERTIFICATE)


def test_receipt_of_a_row_that_stayed_is_refused() -> None:
    with pytest.raises(VerificationError, match="does not lead to rootAfter"):
        check_receipt(receipt_for(2), b"row 2", CERTIFICATE)
