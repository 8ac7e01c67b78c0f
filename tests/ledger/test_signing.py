"""Envelopes and checkpoints that the verifier, and others' libraries, accept."""

import base64
import json
from typing import Any

import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.signer._key import Key, SSlibKey

from letheon.ledger.certificates.certify import sign_checkpoint
from letheon.ledger.keys.signing import Signer, sign_statement
from letheon.verifier import (
    REVOCATION,
    STATEMENT_TYPE,
    Trust,
    VerificationError,
    check_note,
    open_envelope,
    pae,
    read_note,
)

SIGNER, OTHER = (Signer.from_seed(bytes([number]) * 32) for number in (1, 2))


def statement(last: Any = 3) -> dict[str, Any]:
    place = {"id": "prod-eu-1", "number": 1, "previousStatement": "genesis"}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": "prod-eu-1", "digest": {"sha256": OTHER.keyid}}],
        "predicateType": REVOCATION,
        "predicate": {"ledger": place, "revokedKey": OTHER.keyid, "lastSequence": last},
    }


def test_an_envelope_opens() -> None:
    opened = open_envelope(
        sign_statement(statement(), SIGNER), Trust.from_pinned(SIGNER.public.hex())
    )
    assert opened.statement == statement()
    assert opened.keyids == (SIGNER.keyid,)


def test_signing_again_gives_the_same_bytes() -> None:
    reordered = dict(reversed(statement().items()))
    assert sign_statement(statement(), SIGNER) == sign_statement(reordered, SIGNER)
    assert sign_statement(statement(), SIGNER, OTHER) == sign_statement(statement(), OTHER, SIGNER)


def test_another_library_verifies_both_signatures() -> None:
    data = json.loads(sign_statement(statement(), SIGNER, OTHER))
    envelope = Envelope.from_dict(data)
    keys: list[Key] = [
        SSlibKey(one.keyid, "ed25519", "ed25519", {"public": one.public.hex()})
        for one in (SIGNER, OTHER)
    ]
    assert set(envelope.verify(keys, 2)) == {SIGNER.keyid, OTHER.keyid}
    payload = base64.b64decode(data["payload"])
    assert envelope.pae() == pae(data["payloadType"], payload)


@pytest.mark.parametrize("last", [-1, "3", 2**53, 1.5, None])
def test_nothing_outside_the_schema_is_signed(last: Any) -> None:
    with pytest.raises(VerificationError):
        sign_statement(statement(last), SIGNER)


def test_signers_must_be_there_once() -> None:
    with pytest.raises(ValueError, match="at least one signer"):
        sign_statement(statement())
    with pytest.raises(ValueError, match="different keys"):
        sign_statement(statement(), SIGNER, SIGNER)


def test_a_signer_does_not_show_its_key() -> None:
    assert repr(SIGNER) == f"Signer(keyid={SIGNER.keyid!r}, public={SIGNER.public!r})"
    assert SIGNER != OTHER


def test_a_signature_of_rfc_8032() -> None:
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    signer = Signer.from_seed(seed)
    assert signer.public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert signer.sign(b"").hex().startswith("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974")


def test_a_checkpoint_is_a_note_that_the_verifier_accepts() -> None:
    text = sign_checkpoint("prod-eu-1", 7, b"r" * 32, SIGNER)
    note = read_note(text)
    check_note(note, Trust.from_pinned(SIGNER.public.hex()))
    assert (note.origin, note.size, note.root) == ("prod-eu-1", 7, b"r" * 32)
    with pytest.raises(VerificationError):
        check_note(note, Trust.from_pinned(OTHER.public.hex()))
