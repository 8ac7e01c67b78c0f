"""The strict profile of DSSE, crossed with securesystemslib."""

import base64
import json
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope

from letheon.verifier import (
    PAYLOAD_TYPE,
    Trust,
    VerificationError,
    certificate_id,
    open_envelope,
    pae,
)
from tests.verifier import maker
from tests.verifier.maker import ROOT, SECOND, STRANGER

TRUST = Trust.from_pinned(ROOT.public.hex())
FIRST = maker.certificates(maker.honest_bundle())[0]


def resigned(payload: bytes, kind: str = PAYLOAD_TYPE) -> bytes:
    """Any payload, signed by the ledger."""
    message = b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)
    signature = {"keyid": ROOT.keyid, "sig": maker.text64(ROOT.sign(message))}
    return rfc8785.dumps(
        {"payload": maker.text64(payload), "payloadType": kind, "signatures": [signature]}
    )


def edited(**changes: Any) -> bytes:
    return rfc8785.dumps({**json.loads(FIRST), **changes})


def test_envelope_opens() -> None:
    opened = open_envelope(FIRST, TRUST)
    assert opened.keyids == (ROOT.keyid,)
    assert opened.sequence == 1
    assert opened.id == maker.id_of(FIRST) == certificate_id(FIRST)
    assert opened.statement == json.loads(maker.payload_of(FIRST))


@given(st.text(max_size=9).filter(str.isascii), st.binary(max_size=40))
def test_pae_is_that_of_another_implementation(kind: str, payload: bytes) -> None:
    assert pae(kind, payload) == Envelope(payload, kind, {}).pae()


def test_another_implementation_reads_our_envelopes() -> None:
    theirs = Envelope.from_dict(json.loads(FIRST))
    assert theirs.payload_type == PAYLOAD_TYPE
    assert theirs.signatures[ROOT.keyid].signature == ROOT.sign(theirs.pae()).hex()


def test_unknown_signer_is_refused() -> None:
    with pytest.raises(VerificationError, match="is unknown"):
        open_envelope(maker.envelope(maker.example(), STRANGER), TRUST)


def test_signature_by_another_key_under_the_ledgers_name_is_refused() -> None:
    forged = json.loads(maker.envelope(maker.example(), STRANGER))
    forged["signatures"][0]["keyid"] = ROOT.keyid
    with pytest.raises(VerificationError, match=f"by key {ROOT.keyid[:16]} is not valid"):
        open_envelope(rfc8785.dumps(forged), TRUST)


def test_signature_of_another_payload_type_is_refused() -> None:
    data = resigned(maker.payload_of(FIRST), "application/json")
    with pytest.raises(VerificationError, match="payloadType"):
        open_envelope(data, TRUST)


def test_two_signers_of_a_certificate_are_refused() -> None:
    trust = Trust.from_pinned(ROOT.public.hex(), maker.rotated())
    with pytest.raises(VerificationError, match="2 signatures; expected 1"):
        open_envelope(maker.envelope(maker.example(), ROOT, SECOND), trust)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (edited(extra=1), "unknown key 'extra'"),
        (edited(signatures=[]), "minItems"),
        (edited(signatures=json.loads(FIRST)["signatures"] * 2), "repeated"),
        (edited(payload=json.loads(FIRST)["payload"] + "\n"), "base64"),
        (FIRST.replace(b"+", b"-").replace(b"in-toto-json", b"in-toto+json"), "base64"),
        (edited(payload=7), "payload: .*type"),
        (FIRST + b"\n", "canonical"),
        (json.dumps(json.loads(FIRST)).encode(), "canonical"),
        (b"[]", "type"),
        (b"", "not JSON"),
        (b" " * (1 << 21), "larger than"),
    ],
)
def test_other_forms_of_an_envelope_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        open_envelope(data, TRUST)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (json.dumps(maker.example()).encode(), "canonical"),
        (rfc8785.dumps({**maker.example(), "x": 1}), "unknown key 'x'"),
        (rfc8785.dumps({**maker.example(), "predicateType": "urn:x"}), "unknown predicate type"),
        (b"\xff", "not JSON"),
        (b"[" * 99_999, "nested"),
    ],
)
def test_even_a_signed_payload_must_have_its_form(payload: bytes, reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        open_envelope(resigned(payload), TRUST)


def test_base64_with_spare_bits_is_refused() -> None:
    envelope_json = json.loads(FIRST)
    signature = envelope_json["signatures"][0]["sig"]
    assert signature.endswith("==")
    variant = signature[:-3] + chr(ord(signature[-3]) + 1) + "=="
    assert base64.b64decode(variant) == base64.b64decode(signature)
    envelope_json["signatures"][0]["sig"] = variant
    with pytest.raises(VerificationError, match="unused bits"):
        open_envelope(rfc8785.dumps(envelope_json), TRUST)
