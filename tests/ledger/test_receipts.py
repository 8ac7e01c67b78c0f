"""Receipts: made with the certificate, opened by the code alone, good after the purge."""

import hashlib
import hmac
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.naive_bayes import GaussianNB
from sqlalchemy import func, select

from letheon import NaiveUnlearner, verifier
from letheon.exceptions import CorruptFileError, IdempotencyError, RequestStateError
from letheon.ledger import Ledger, Policy
from letheon.ledger import core as faults
from letheon.ledger.certificates import certify as receipts
from letheon.ledger.certificates.receipt_codes import ReceiptCode, open_receipt
from letheon.ledger.models.commitment import SlotTree, encode_rows
from letheon.ledger.models.examine import copy_rows
from letheon.ledger.models.versions import read_row_slots
from letheon.ledger.requests.people import move_requests
from letheon.ledger.tables import certificates, events, requests
from letheon.verifier import (
    SignedStatement,
    VerificationError,
    check_receipt,
    check_receipt_commitment,
)
from tests.ledger.databases import NOON, SettableClock, die, in_processes
from tests.ledger.homes import IDS, X, Y, fitted, make, person
from tests.sharded.people import examples


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    is_server = request.param == "postgresql"
    url = request.getfixturevalue("postgres_url") if is_server else None
    with make(tmp_path, database=url) as made:
        yield made


@pytest.fixture
def sqlite_ledger(tmp_path: Path) -> Iterator[Ledger]:
    with make(tmp_path) as made:
        yield made


def ask(ledger: Ledger, number: int, **more: Any) -> tuple[Any, str]:
    given: dict[str, Any] = {"model": "risk", "verified": True} | more
    request, code = ledger.requests.submit_with_code([person(number)], **given)
    assert code is not None
    return request, code


def open_code(ledger: Ledger, code: str) -> Any:
    parsed = ReceiptCode.parse(code)
    sealed = ledger.certificates.receipts.get_encrypted(parsed.request, parsed.public)
    assert sealed is not None
    return open_receipt(parsed, sealed)


def certificate(ledger: Ledger, number: int) -> SignedStatement:
    trust = verifier.Trust.from_pinned(ledger.public_key)
    return verifier.open_envelope(ledger.certificates.envelope(number), trust)


def bytes_of(number: int) -> list[bytes]:
    """The canonical bytes of a person's rows, from their own copy of the rows."""
    mine = person(number) == IDS
    return list(encode_rows(copy_rows(X[mine], Y[mine], IDS[mine])))


def test_a_person_checks_alone_what_left_with_their_certificate(ledger: Ledger) -> None:
    request, code = ask(ledger, 3)
    ask(ledger, 4)
    ledger.run_once(force=True)
    opened, signed = open_code(ledger, code), certificate(ledger, 1)
    assert ledger.requests.get(request.id).state == "purged"
    assert check_receipt_commitment(opened.receipt, signed) == 2
    # In the order of slots, which tells nothing of the order of the rows.
    places = [opening["place"] for opening in opened.openings]
    assert sorted(places) == [6, 7]
    for number, place in enumerate(places):
        check_receipt(opened.with_salt(number), bytes_of(3)[place - 6], signed)
        with pytest.raises(VerificationError, match="does not lead to rootBefore"):
            check_receipt(opened.with_salt(number), bytes_of(4)[place - 6], signed)


def test_the_commitment_is_the_hmac_of_the_row(sqlite_ledger: Ledger) -> None:
    _, code = ask(sqlite_ledger, 5)
    sqlite_ledger.run_once(force=True)
    opened = open_code(sqlite_ledger, code)
    for row, opening in zip(opened.rows, opened.openings, strict=True):
        place = opening["place"].to_bytes(8, "big")
        text = place + bytes_of(5)[opening["place"] - 10]
        wanted = hmac.new(bytes.fromhex(opening["salt"]), text, hashlib.sha256).hexdigest()
        assert (row["commitment"], opening["ranks"]) == (wanted, [])


def test_receipts_of_a_retrain_start_at_the_training_before(ledger: Ledger) -> None:
    codes = {1: ask(ledger, 1)[1]}
    ledger.run_once(force=True)
    codes[2] = ask(ledger, 2)[1]
    ledger.models.retrain("risk")
    codes[3] = ask(ledger, 3)[1]
    ledger.run_once(force=True)
    newest = ledger.certificates.receipts.coverage(open_code(ledger, codes[3]).receipt)
    assert newest is not None
    assert not newest.in_log
    ledger.log.checkpoint()
    for number, code in codes.items():
        receipt = open_code(ledger, code).receipt
        assert check_receipt_commitment(receipt, certificate(ledger, number)) == 2
        coverage = ledger.certificates.receipts.coverage(receipt)
        assert coverage is not None
        assert (coverage.certificate, coverage.guarantee, coverage.in_log) == (
            number,
            "exact",
            True,
        )
        with pytest.raises(VerificationError, match="another certificate"):
            check_receipt_commitment(receipt, certificate(ledger, number % 3 + 1))


def test_who_asks_twice_has_two_receipts(sqlite_ledger: Ledger) -> None:
    _, first = ask(sqlite_ledger, 1)
    request, second = ask(sqlite_ledger, 1)
    assert request.state == "duplicate"
    sqlite_ledger.run_once(force=True)
    opened = [open_code(sqlite_ledger, code) for code in (first, second)]
    assert opened[0] == opened[1]
    assert check_receipt_commitment(opened[1].receipt, certificate(sqlite_ledger, 1)) == 2


def test_who_waited_behind_a_withdrawn_request_has_a_receipt(ledger: Ledger) -> None:
    first, _ = ask(ledger, 1)
    requests_and_codes = [ask(ledger, 1) for _ in range(3)]
    ledger.requests.cancel(first.id)
    ledger.run_once(force=True)
    assert {ledger.requests.get(one.id).certificate for one, _ in requests_and_codes} == {1}
    assert all(ledger.certificates.receipts.open(code) for _, code in requests_and_codes)


def test_who_was_overtaken_by_another_request_has_a_receipt(ledger: Ledger) -> None:
    slow, code = ask(ledger, 1)
    with ledger._core.database.transaction() as conn:
        move_requests(conn, slow.id, "applying", at=NOON)
        move_requests(conn, slow.id, "retry_wait", at=NOON, not_before=NOON + 100)
    ledger.requests.submit([person(1), person(2)], model="risk", verified=True)
    ledger.run_once(force=True)
    assert ledger.certificates.receipts.open(code) is not None
    with pytest.raises(RequestStateError, match="before a request is applied"):
        ledger.certificates.receipts.new_code(slow.id)


def test_no_code_is_handed_out_that_would_never_open(sqlite_ledger: Ledger) -> None:
    ask(sqlite_ledger, 1)
    sqlite_ledger.run_once(force=True)
    late, code = sqlite_ledger.requests.submit_with_code([person(1)], model="risk", verified=True)
    assert (late.state, code) == ("duplicate", None)


def test_a_code_and_the_withdrawal_of_the_request_before_do_not_meet(
    postgres_url: str, tmp_path: Path
) -> None:
    with make(tmp_path, database=postgres_url) as ledger, ThreadPoolExecutor(2) as threads:
        for _ in range(12):
            first, waits = ask(ledger, 1)[0], ask(ledger, 1)[0]
            asked = threads.submit(ledger.certificates.receipts.new_code, waits.id)
            assert threads.submit(ledger.requests.cancel, first.id).result().state == "cancelled"
            assert asked.result().startswith("lethe-")
            assert ledger.requests.cancel(waits.id).state == "cancelled"


def test_before_the_certificate_nothing_is_there(sqlite_ledger: Ledger) -> None:
    request, code = ask(sqlite_ledger, 1)
    own = ReceiptCode.parse(code)
    assert own.request == request.id
    assert sqlite_ledger.certificates.receipts.get_encrypted(own.request, own.public) is None
    assert sqlite_ledger.certificates.receipts.open(code) is None
    sqlite_ledger.run_once(force=True)
    other = ReceiptCode("0" * 32, own.private)
    assert sqlite_ledger.certificates.receipts.open(str(other)) is None
    assert sqlite_ledger.certificates.receipts.get_encrypted(own.request, "0" * 64) is None
    assert sqlite_ledger.certificates.receipts.open(code) == open_code(sqlite_ledger, code).receipt


def test_a_repeat_gets_no_second_code(sqlite_ledger: Ledger) -> None:
    request, code = ask(sqlite_ledger, 1, key="once")
    again = sqlite_ledger.requests.submit_with_code(
        [person(1)], model="risk", verified=True, key="once"
    )
    assert (again[0].id, again[1]) == (request.id, None)
    sqlite_ledger.run_once(force=True)
    assert sqlite_ledger.certificates.receipts.open(code) is not None


def test_a_receipt_for_a_key_that_was_replaced_meanwhile_is_not_kept(
    sqlite_ledger: Ledger,
) -> None:
    request, code = ask(sqlite_ledger, 1)
    key = ReceiptCode.parse(code).public
    for used, kept in (("0" * 64, None), (key, b"sealed")):
        with sqlite_ledger._core.database.transaction() as conn:
            receipts.store_receipts(conn, [receipts.EncryptedReceipt(request.id, used, b"sealed")])
        assert sqlite_ledger.certificates.receipts.get_encrypted(request.id, key) == kept


def test_a_repeat_with_another_receipt_key_is_refused(sqlite_ledger: Ledger) -> None:
    keys = [ReceiptCode("0" * 32, bytes([number]) * 32).public for number in (1, 2)]
    given: dict[str, Any] = {"model": "risk", "key": "once"}
    first = sqlite_ledger.requests.submit([person(1)], receipt_key=keys[0], **given)
    again = sqlite_ledger.requests.submit([person(1)], receipt_key=keys[0], **given)
    assert again.id == first.id
    with pytest.raises(IdempotencyError, match="another receipt key"):
        sqlite_ledger.requests.submit([person(1)], receipt_key=keys[1], **given)
    assert sqlite_ledger.certificates.receipts.key(first.id) == keys[0]


def test_a_receipt_is_for_one_person(sqlite_ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="one person, but this request has 2 ids"):
        sqlite_ledger.requests.submit_with_code([person(1), person(2)], model="risk")
    request = sqlite_ledger.requests.submit([person(1), person(2)], model="risk")
    with pytest.raises(RequestStateError, match="has 2 people"):
        sqlite_ledger.certificates.receipts.new_code(request.id)


@pytest.mark.parametrize("key", ["", "zz" * 32, "00" * 32, "01" + "00" * 31, "AB" * 32])
def test_keys_that_nothing_can_be_sealed_to_are_refused(key: str, sqlite_ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="X25519 public key"):
        sqlite_ledger.requests.submit([person(1)], model="risk", receipt_key=key)
    assert sqlite_ledger.requests.list() == ()


def test_a_lost_code_is_replaced_until_the_request_is_applied(ledger: Ledger) -> None:
    request, lost = ask(ledger, 1, verified=False)
    code = ledger.certificates.receipts.new_code(request.id)
    ledger.requests.verify(request.id)
    ledger.run_once(force=True)
    assert ledger.certificates.receipts.open(lost) is None
    assert ledger.certificates.receipts.open(code) is not None
    assert "receipt-code" in [entry.kind for entry in ledger.requests.timeline(request.id)]
    with pytest.raises(RequestStateError, match="before a request is applied"):
        ledger.certificates.receipts.new_code(request.id)
    assert ledger.certificates.receipts.open(code) is not None


def test_a_code_for_who_waits_behind_an_applied_request_is_refused(
    sqlite_ledger: Ledger,
) -> None:
    ask(sqlite_ledger, 1)
    second, _ = ask(sqlite_ledger, 1)
    sqlite_ledger.certificates.receipts.new_code(second.id)
    sqlite_ledger.run_once(force=True)
    with pytest.raises(RequestStateError, match="before a request is applied"):
        sqlite_ledger.certificates.receipts.new_code(second.id)


@pytest.mark.parametrize("end", ["cancel", "reject"])
def test_a_request_that_ended_gets_no_code(end: str, sqlite_ledger: Ledger) -> None:
    request, code = ask(sqlite_ledger, 1)
    more = ["gdpr.art17.3.b"] if end == "reject" else []
    getattr(sqlite_ledger.requests, end)(request.id, *more)
    with pytest.raises(RequestStateError, match="before a request is applied"):
        sqlite_ledger.certificates.receipts.new_code(request.id)
    assert sqlite_ledger.certificates.receipts.open(code) is None


def test_of_many_rows_64_are_in_the_receipt(tmp_path: Path) -> None:
    ids = np.array([f"person-{max(0, number - 69):03d}" for number in range(80)])
    data = np.random.default_rng(0).normal(size=(80, 2))
    y = np.arange(80) % 2
    model = NaiveUnlearner(GaussianNB(), random_state=0).fit(data, y, ids=ids)
    with Ledger.create(tmp_path / "home", name="test", clock=SettableClock()) as ledger:
        ledger.models.register(model, data, y, ids=ids, name="risk")
        _, code = ask(ledger, 0)
        ledger.run_once(force=True)
        opened = open_code(ledger, code)
        assert (len(opened.rows), opened.left_out) == (64, 6)
        assert check_receipt_commitment(opened.receipt, certificate(ledger, 1)) == 64


# Nothing in clear, and nothing without its certificate.


def test_a_purge_keeps_the_sealed_receipt_and_no_salt(sqlite_ledger: Ledger) -> None:
    request, code = ask(sqlite_ledger, 1)
    sqlite_ledger.run_once(force=True)
    assert sqlite_ledger.requests.get(request.id).state == "purged"
    salts = [bytes.fromhex(opening["salt"]) for opening in open_code(sqlite_ledger, code).openings]
    home = sqlite_ledger.folder
    sqlite_ledger.close()
    content = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert b"letheon-receipt-v1" in content
    assert not any(salt in content or salt.hex().encode() in content for salt in salts)


def test_planted_receipts_in_clear_are_found_by_the_purge(
    sqlite_ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "encrypt_receipt", lambda key, request, data: data)
    request, _ = ask(sqlite_ledger, 1)
    steps = sqlite_ledger.run_once(force=True)
    assert sqlite_ledger.requests.get(request.id).state == "purging"
    assert any("of an erased person" in step.detail for step in steps)


def counted(ledger: Ledger) -> tuple[int, int]:
    """How many certificates and how many receipts there are."""
    with ledger._core.database.reading() as conn:
        signed = conn.scalar(select(func.count()).select_from(certificates))
        made = conn.scalar(select(func.count()).where(requests.c.receipt.is_not(None)))
    return signed or 0, made or 0


@pytest.mark.parametrize(
    "name",
    [
        "certify.claimed",
        "certify.signed",
        "certify.file-written",
        "certify.before-commit",
        "certify.after-commit",
        "purge.key-destroyed",
    ],
)
def test_a_kill_leaves_certificate_and_receipt_or_neither(name: str, tmp_path: Path) -> None:
    with make(tmp_path, clock=SettableClock()) as ledger:
        _, code = ask(ledger, 1)
        home = ledger.folder

    def killed() -> None:
        faults.hook = lambda point: die() if point == name else None
        Ledger.open(home, clock=SettableClock()).run_once(force=True)

    assert in_processes([killed]) == [-9]
    with Ledger.open(home, clock=SettableClock()) as ledger:
        is_after = name in ("certify.after-commit", "purge.key-destroyed")
        assert counted(ledger) == ((1, 1) if is_after else (0, 0))
        ledger.run_once(force=True)
        assert counted(ledger) == (1, 1)
        receipt = open_code(ledger, code).receipt
        assert check_receipt_commitment(receipt, certificate(ledger, 1)) == 2


def test_damage_of_the_version_before_keeps_no_certificate_back(
    sqlite_ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> Any:
        raise CorruptFileError("gone")

    monkeypatch.setattr(receipts, "read_row_slots", gone)
    _, code = ask(sqlite_ledger, 1)
    sqlite_ledger.run_once(force=True)
    assert sqlite_ledger.certificates.sequences() == (1,)
    assert sqlite_ledger.certificates.receipts.open(code) is None


# Planted bugs: the signer refuses, and nothing is signed.


def _another_row(index: Any, wanted: Any) -> Any:
    return np.array([40, 41])


def _shifted(core: Any, model: Any, version: Any) -> Any:
    vault = ORIGINAL_VAULT(core, model, version)
    return vault._replace(slots=np.roll(vault.slots, 1))


def _other_salts(core: Any, model: Any, version: Any) -> Any:
    vault = ORIGINAL_VAULT(core, model, version)
    return vault._replace(salts=vault.salts ^ np.uint8(1))


def _kept_leaf(proof: bytes) -> Any:
    """As if the slot kept its leaf: the path after is the one before."""
    levels = ORIGINAL_LEVELS(proof)
    return [{slot: (old, old) for slot, (old, _) in level.items()} for level in levels]


ORIGINAL_VAULT, ORIGINAL_LEVELS = read_row_slots, receipts._list_proof_levels
PLANTED: dict[str, tuple[str, Any]] = {
    "row that stayed": ("IdIndex.find_one", _another_row),
    "wrong slot": ("read_row_slots", _shifted),
    "wrong salt": ("read_row_slots", _other_salts),
    "leaf not tombstoned": ("_list_proof_levels", _kept_leaf),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_make_the_signer_refuse(
    name: str, sqlite_ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, planted = PLANTED[name]
    ask(sqlite_ledger, 1)
    ask(sqlite_ledger, 2)
    real = receipts.make_receipts

    def make_receipts(*given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"letheon.ledger.certificates.certify.{place}", planted)
            return real(*given)

    monkeypatch.setattr("letheon.ledger.certificates.certify.make_receipts", make_receipts)
    steps = sqlite_ledger.run_once(force=True)
    failed = [step.detail for step in steps if step.what == "failed"]
    assert len(failed) > 0
    assert "a row of an erased person" in failed[0]
    assert counted(sqlite_ledger) == (0, 0)


# Codes.

CODES = st.builds(
    ReceiptCode,
    st.binary(min_size=16, max_size=16).map(bytes.hex),
    st.binary(min_size=32, max_size=32),
)


@given(CODES, st.randoms(use_true_random=False))
def test_codes_are_read_as_people_write_them(code: ReceiptCode, random: Any) -> None:
    text = str(code)
    assert len(text) == len("lethe-") + 80 + 15
    swapped = {"0": "0oO", "1": "1iIlL", "-": ["-", " ", "", " - ", "\n"]}
    start, rest = text[:6], text[6:]
    written = "".join(random.choice([*swapped.get(one, one + one.lower())]) for one in rest)
    assert ReceiptCode.parse(random.choice(["", " "]) + start + written + "\n") == code
    assert "private" not in repr(code)


@given(CODES, st.data())
def test_a_change_of_up_to_three_neighbours_is_noticed(code: ReceiptCode, data: Any) -> None:
    letters = str(code)[6:].replace("-", "")
    at = data.draw(st.integers(0, 77))
    other = data.draw(st.text("0123456789ABCDEFGHJKMNPQRSTVWXYZ", min_size=3, max_size=3))
    changed = letters[:at] + other + letters[at + 3 :]
    if changed != letters:
        with pytest.raises(VerificationError, match="typing error"):
            ReceiptCode.parse("lethe-" + changed)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "begins with"),
        ("lethe-", "80 characters"),
        ("lethe-" + "0" * 79, "80 characters"),
        ("lethe-" + "U" * 80, "invalid character"),
        ("lethe-" + "٠" * 80, "invalid character"),
        ("lethe-" + "0" * 80, "typing error"),
    ],
)
def test_other_texts_are_no_codes(text: str, reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        ReceiptCode.parse(text)


# Every byte counts.


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[bytes, ReceiptCode, bytes, SignedStatement]:
    """A receipt, the code that opened it, how it was sealed, and the certificate."""
    with make(tmp_path_factory.mktemp("made"), model=fitted()) as ledger:
        _, code = ask(ledger, 1)
        ledger.run_once(force=True)
        parsed = ReceiptCode.parse(code)
        sealed = ledger.certificates.receipts.get_encrypted(parsed.request, parsed.public)
        assert sealed is not None
        return open_receipt(parsed, sealed).receipt, parsed, sealed, certificate(ledger, 1)


def mutants(data: bytes, step: int = 1) -> Iterator[bytes]:
    for at in range(0, len(data), step):
        for bit in range(8):
            yield b"%b%c%b" % (data[:at], data[at] ^ 1 << bit, data[at + 1 :])
        yield data[:at] + data[at + 1 :]
        for byte in b" 0A":
            yield b"%b%c%b" % (data[:at], byte, data[at:])
    yield data + b" "


def accepted(data: bytes, check: Callable[[bytes], Any], step: int = 1) -> int:
    check(data)
    count = 0
    for mutant in mutants(data, step):
        if mutant != data:
            try:
                check(mutant)
            except (VerificationError, ValueError, KeyError, TypeError, AttributeError):
                continue
            count += 1
    return count


def naive(certificate: SignedStatement) -> Callable[[bytes], None]:
    """What one writes first: parse, look for the certificate, follow the path before."""

    def check(data: bytes) -> None:
        content = json.loads(data)
        assert_that(content["certificate"] == certificate.id)
        for row in content["rows"]:
            node = hashlib.sha256(b"\0" + bytes.fromhex(row["commitment"])).digest()
            for level, text in enumerate(row["before"]):
                both = [node, bytes.fromhex(text)]
                both = both[::-1] if row["slot"] >> level & 1 else both
                node = hashlib.sha256(b"\1" + b"".join(both)).digest()
            assert_that(node.hex() == certificate.predicate["dataset"]["rootBefore"])

    return check


def assert_that(condition: bool) -> None:
    if not condition:
        raise ValueError("naively")


def test_no_mutant_of_a_receipt_is_accepted(made: Any) -> None:
    receipt, _, _, signed = made
    assert accepted(receipt, lambda data: check_receipt_commitment(data, signed)) == 0


def test_a_naive_verifier_accepts_mutants(made: Any) -> None:
    receipt, _, _, signed = made
    assert accepted(receipt, naive(signed)) > len(receipt)


def test_no_mutant_of_a_sealed_receipt_opens(made: Any) -> None:
    _, code, sealed, _ = made
    assert accepted(sealed, lambda data: open_receipt(code, data), step=5) == 0


def test_a_sealed_receipt_is_bound_to_request_and_key(made: Any) -> None:
    _, code, sealed, _ = made
    for other in (ReceiptCode("0" * 32, code.private), ReceiptCode(code.request, os.urandom(32))):
        with pytest.raises(VerificationError, match="cannot be decrypted"):
            open_receipt(other, sealed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content["rows"].reverse(), "order of their slots"),
        (lambda content: content["rows"].append(content["rows"][0]), "order of their slots"),
        (lambda content: content["rows"].clear(), "minItems"),
        (lambda content: content.update(rows=content["rows"] * 33), "maxItems"),
        (lambda content: content["rows"][-1].update(slot=1 << 40), "the wrong length"),
        (
            lambda content: content["rows"][0].update(after=content["rows"][0]["before"]),
            "rootAfter",
        ),
        (lambda content: content["rows"][0]["before"].pop(), "the wrong length"),
        (lambda content: content["rows"][0].update(salt="00" * 32), "unknown key"),
    ],
)
def test_receipts_of_other_forms_are_refused(
    change: Callable[[Any], Any], reason: str, made: Any
) -> None:
    receipt, _, _, signed = made
    content = json.loads(receipt)
    change(content)
    with pytest.raises(VerificationError, match=reason):
        check_receipt_commitment(verifier.canonical(content), signed)


def test_a_receipt_is_not_checked_against_a_purge(made: Any, tmp_path: Path) -> None:
    receipt, _, _, signed = made
    statement = signed.statement | {"predicateType": verifier.PURGE}
    with pytest.raises(VerificationError, match="certificate of unlearning"):
        check_receipt_commitment(receipt, SignedStatement(statement, (), signed.id))


@examples(50)
@given(st.data())
def test_paths_are_those_of_the_whole_trees(data: Any) -> None:
    slots = 1 << data.draw(st.integers(0, 6))
    taken = data.draw(st.sets(st.integers(0, slots - 1), min_size=1))
    gone = data.draw(st.sets(st.sampled_from(sorted(taken)), min_size=1))
    leaves = [hashlib.sha256(bytes([slot])).digest() for slot in sorted(taken)]
    before = SlotTree.build(slots, sorted(taken), leaves)
    proof, after = before.transition(sorted(gone))
    levels = receipts._list_proof_levels(proof)
    for slot in gone:
        paths = receipts._extract_paths(levels, slot)
        assert paths["before"] == [node.hex() for node in before.inclusion(slot)]
        assert paths["after"] == [node.hex() for node in after.inclusion(slot)]


def test_a_bundle_is_all_that_a_person_needs(
    sqlite_ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, code = ask(sqlite_ledger, 1)
    sqlite_ledger.run_once(force=True)
    bundle = sqlite_ledger.export(tmp_path / "bundle")
    file = tmp_path / "receipt.json"
    file.write_bytes(open_code(sqlite_ledger, code).receipt)
    arguments = [str(bundle), "--key", sqlite_ledger.public_key, "--receipt", str(file)]
    assert verifier.main(arguments) == 0
    assert "certificate 1 covers the receipt: 2 rows" in capsys.readouterr().out
    file.write_bytes(file.read_bytes().replace(b'"slot":', b'"slot":1'))
    assert verifier.main(arguments) == 1
    assert "W1  FAIL" in capsys.readouterr().out


def test_events_of_receipts_hold_no_key(sqlite_ledger: Ledger) -> None:
    request, _ = ask(sqlite_ledger, 1)
    code = ReceiptCode.parse(sqlite_ledger.certificates.receipts.new_code(request.id))
    with sqlite_ledger._core.database.reading() as conn:
        bodies = list(conn.scalars(select(events.c.body)))
    assert any('"receipt-code"' in body for body in bodies)
    assert not any(code.public in body for body in bodies)


def test_approval_leaves_the_receipt_alone(tmp_path: Path) -> None:
    with make(tmp_path, policy=Policy(pin_seconds=1, approve_above=1)) as ledger:
        request, code = ask(ledger, 1)
        assert request.state == "verified"
        ledger.requests.approve(request.id)
        ledger.run_once(force=True)
        assert ledger.certificates.receipts.open(code) is not None
