"""Every byte changed, dropped or added: nothing is accepted, and a naive verifier accepts some.

In `make test` each byte has four of its bits flipped, is deleted, and gets two bytes put before it;
in `make soak` all bits are flipped, every byte value is put in and every certificate of the bundle
is looked at.
"""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from letheon import verifier
from letheon.verifier import (
    SignedStatement,
    Trust,
    VerificationError,
    check_chain,
    check_log,
    check_note,
    check_purge,
    open_envelope,
    read_note,
    transition_roots,
)
from tests.verifier import maker
from tests.verifier.maker import ROOT, SECOND, WITNESS

FILES = maker.build(maker.STEPS[:2], witness=WITNESS)
TRUST = Trust.from_pinned(ROOT.public.hex())
CHAIN = check_chain(maker.certificates(FILES), TRUST)
NOTES = {
    int(name[12:-4]): read_note(data.decode())
    for name, data in sorted(FILES.items())
    if name.startswith("checkpoints/")
}
CERTIFICATE = FILES["certificates/000001.json"]
INSERTED = b" A"
# Low bits end base64, bit 5 is upper or lower case, bit 7 leaves ASCII.
BITS: Sequence[int] = (0, 1, 5, 7)


def mutants(
    data: bytes, inserted: bytes = INSERTED, start: int = 0, bits: Sequence[int] = BITS
) -> Iterator[bytes]:
    for i, byte in enumerate(data[start:], start):
        for bit in bits:
            yield b"%b%c%b" % (data[:i], byte ^ 1 << bit, data[i + 1 :])
        yield data[:i] + data[i + 1 :]
    for i in range(start, len(data) + 1):
        for byte in inserted:
            yield b"%b%c%b" % (data[:i], byte, data[i:])


def survivors(
    data: bytes,
    check: Callable[[bytes], object],
    inserted: bytes = INSERTED,
    start: int = 0,
    bits: Sequence[int] = BITS,
) -> tuple[int, list[bytes]]:
    """How many mutants differ from the data, and which of them the check accepts."""
    check(data)
    count, accepted = 0, []
    for mutant in mutants(data, inserted, start, bits):
        if mutant == data:
            continue
        count += 1
        try:
            check(mutant)
        except VerificationError:
            continue
        accepted.append(mutant)
    return count, accepted


def check_certificate(data: bytes) -> SignedStatement:
    return open_envelope(data, TRUST)


def check_proof(data: bytes) -> None:
    """Without the certified hash of the file, which alone would refuse every mutant."""
    claims = CHAIN[0].predicate
    before, after, rows = transition_roots(data)
    transition = (before.hex(), after.hex(), rows)
    expected = claims["dataset"]["rootBefore"], claims["dataset"]["rootAfter"]
    if transition != (*expected, claims["erasure"]["rows"]):
        raise VerificationError("another transition")


def check_checkpoint(data: bytes) -> None:
    note = read_note(data.decode("utf-8", "replace"))
    check_note(note, TRUST, [maker.verifier_key(WITNESS)])


CHECKS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "certificate": (CERTIFICATE, check_certificate),
    "proof": (
        FILES[f"proofs/{CHAIN[0].predicate['dataset']['transitionProof']['sha256']}.json"],
        check_proof,
    ),
    "checkpoint": (FILES[f"checkpoints/{max(NOTES):012d}.txt"], check_checkpoint),
    "log": (FILES["log.json"], lambda data: check_log(data, NOTES, CHAIN)),
    "purge": (FILES["purges/000001.json"], lambda data: check_purge(data, CHAIN[0], TRUST)),
    "index": (
        maker.index_of(FILES)["index.signed.json"],
        lambda data: open_envelope(data, TRUST),
    ),
    "rotation": (maker.rotated()[0], lambda data: Trust.from_pinned(ROOT.public.hex(), [data])),
}


@pytest.mark.parametrize("name", CHECKS)
def test_no_mutant_is_accepted(name: str) -> None:
    data, check = CHECKS[name]
    count, accepted = survivors(data, check)
    assert accepted == []
    assert count > 6 * len(data)


@pytest.mark.soak
@pytest.mark.parametrize("name", CHECKS)
def test_no_mutant_with_any_byte_put_in_is_accepted(name: str) -> None:
    data, check = CHECKS[name]
    count, accepted = survivors(data, check, bytes(range(256)), bits=range(8))
    assert accepted == []
    assert count > 200 * len(data)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(1, 7))
def test_no_mutant_of_any_certificate_is_accepted(number: int) -> None:
    data = maker.honest_bundle()[f"certificates/{number:06d}.json"]
    count, accepted = survivors(data, check_certificate, bits=range(8))
    assert accepted == []
    assert count > 10 * len(data)


def naive(data: bytes) -> None:
    """What one writes first: parse, decode, verify; everything else is taken as it comes."""
    try:
        envelope = json.loads(data)
        payload = base64.b64decode(envelope["payload"])
        kind = envelope["payloadType"].encode()
        message = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
        for signature in envelope["signatures"]:
            public = Ed25519PublicKey.from_public_bytes(ROOT.public)
            public.verify(base64.b64decode(signature["sig"]), message)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidSignature) as error:
        raise VerificationError("naively") from error


@pytest.mark.parametrize(
    "name",
    [
        "purge",
        pytest.param("certificate", marks=pytest.mark.soak),
    ],
)
def test_naive_verifier_accepts_mutants(name: str) -> None:
    """The test of the test: the mutants do reach what is malleable."""
    count, accepted = survivors(CHECKS[name][0], naive)
    flips = sum(len(mutant) == len(CHECKS[name][0]) for mutant in accepted)
    deletions = sum(len(mutant) < len(CHECKS[name][0]) for mutant in accepted)
    insertions = len(accepted) - flips - deletions
    assert min(flips, deletions, insertions) > 0
    assert len(accepted) > count // 100


def lenient_parse(data: bytes, limit: int = 0) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise VerificationError("not JSON") from error


def lenient_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except ValueError as error:
        raise VerificationError("not base64") from error


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("parse_strict", lenient_parse),
        ("from_base64", lenient_base64),
        ("check_signature", lambda public, signature, message: None),
    ],
)
def test_planted_leniency_is_caught(
    name: str, planted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, check = CHECKS["purge"]
    monkeypatch.setattr(verifier, name, planted)
    _, accepted = survivors(data, check, start=len(data) - 250)
    assert len(accepted) > 0


def test_rotation_is_signed_by_both() -> None:
    trust = Trust.from_pinned(ROOT.public.hex(), maker.rotated())
    assert set(open_envelope(maker.rotated()[0], trust).keyids) == {ROOT.keyid, SECOND.keyid}
