"""Cheats in the chain of certificates, by an operator who signs whatever he likes."""

from collections.abc import Callable
from typing import Any

import pytest

from letheon.verifier import Trust, VerificationError, check_chain
from tests.verifier import maker
from tests.verifier.maker import ROOT, ErasureStep, Statement

TRUST = Trust.from_pinned(ROOT.public.hex())
HONEST = maker.certificates(maker.honest_bundle())


def chained(**options: Any) -> list[bytes]:
    return maker.certificates(maker.build(**options))


def at(number: int, change: Callable[[Statement], None]) -> maker.Edit:
    def edit(sequence: int, statement: Statement) -> None:
        if sequence == number:
            change(statement)

    return edit


def putting(number: int, part: str, name: str, value: Any) -> list[bytes]:
    return chained(
        edit=at(number, lambda statement: statement["predicate"][part].update({name: value}))
    )


def test_honest_chain_is_accepted() -> None:
    chain = check_chain(HONEST, TRUST)
    assert [certificate.sequence for certificate in chain] == [1, 2, 3, 4, 5, 6]
    assert [certificate.id for certificate in chain] == [maker.id_of(data) for data in HONEST]
    assert check_chain([], TRUST) == []


def test_dropped_tail_is_not_seen_here() -> None:
    # The log's events show it; the docstring says so.
    assert len(check_chain(HONEST[:4], TRUST)) == 4


@pytest.mark.parametrize(
    ("envelopes", "reason"),
    [
        (HONEST[1:], "certificate 1: has sequence 2"),
        (HONEST[:2] + HONEST[3:], "certificate 3: has sequence 4"),
        ([HONEST[0], HONEST[2], HONEST[1]], "certificate 2: has sequence 3"),
        ([HONEST[0], HONEST[0]], "certificate 2: has sequence 1"),
        ([HONEST[0], b"{}"], "certificate 2: envelope"),
    ],
)
def test_dropped_swapped_and_doubled_certificates(envelopes: list[bytes], reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        check_chain(envelopes, TRUST)


def test_other_kind_of_statement_is_no_certificate() -> None:
    purge = maker.honest_bundle()["purges/000001.json"]
    with pytest.raises(VerificationError, match="certificate 1: not a certificate of unlearning"):
        check_chain([purge], TRUST)


FORGED = {"sha256": "00" * 32}
OTHER_SEED = {"rule": "caller-seed-v1", "beacon": "none", "keyCommitment": "00" * 32}


@pytest.mark.parametrize(
    ("envelopes", "reason"),
    [
        (putting(3, "ledger", "previousCertificate", FORGED), "certificate 3: previousCert"),
        (putting(3, "ledger", "previousCertificate", "genesis"), "certificate 3: previousCert"),
        (putting(1, "ledger", "previousCertificate", FORGED), "certificate 1: previousCert"),
        (putting(2, "ledger", "id", "prod-us-1"), "certificate 2: ledger prod-us-1 is not prod"),
        (putting(3, "model", "before", FORGED), "certificate 3: before is not"),
        (putting(3, "dataset", "rootBefore", "00" * 32), "certificate 3: rootBefore"),
        (putting(4, "dataset", "rootBefore", "00" * 32), "certificate 4: rootBefore"),
        (putting(4, "dataset", "rootAfter", "00" * 32), "certificate 6: rootBefore"),
        (putting(3, "dataset", "liveAfter", 6), "certificate 3: liveAfter is not 6 - 1"),
        (putting(4, "erasure", "rows", 1), "certificate 4: liveAfter is not 8 - 1"),
        (putting(3, "dataset", "slots", 16), "certificate 3: the data set or its slots"),
        (putting(3, "dataset", "id", "other"), "certificate 3: the data set or its slots"),
        (putting(3, "erasure", "batch", maker.sha(b"batch\1").hex()), "certificate 3: the batch"),
        (putting(4, "monitor", "lastRetrainSequence", 3), "certificate 4: lastRetrainSequence"),
        (putting(6, "monitor", "lastRetrainSequence", 0), "certificate 6: .* is not 4"),
        (putting(3, "method", "trainingRandomness", OTHER_SEED), "certificate 3: the seed changed"),
        (putting(4, "method", "trainingRandomness", OTHER_SEED), "certificate 6: the seed changed"),
    ],
)
def test_operator_who_lies_in_one_certificate_is_caught(
    envelopes: list[bytes], reason: str
) -> None:
    with pytest.raises(VerificationError, match=reason):
        check_chain(envelopes, TRUST)


def test_subject_must_be_named_by_model_and_sequence() -> None:
    envelopes = chained(
        edit=at(2, lambda statement: statement["subject"][0].update(name="churn@1"))
    )
    with pytest.raises(VerificationError, match="certificate 2: the subject is not named churn@2"):
        check_chain(envelopes, TRUST)


def test_forked_model_is_refused() -> None:
    """Certificate 3 starts at the version that certificate 1 started at."""
    first = maker.SlotModel.registered("credit-risk").digest
    with pytest.raises(
        VerificationError, match="certificate 3: before is not the previous version"
    ):
        check_chain(putting(3, "model", "before", {"sha256": first}), TRUST)


def test_swapped_model_is_refused_at_the_next_certificate() -> None:
    swap = at(1, lambda statement: statement["subject"][0].update(digest=FORGED))
    with pytest.raises(VerificationError, match="certificate 3: before is not"):
        check_chain(chained(edit=swap), TRUST)


def test_retrain_cannot_bring_rows_back() -> None:
    def fewer(statement: Statement) -> None:
        statement["predicate"]["dataset"]["liveAfter"] = 7
        statement["predicate"]["erasure"]["rows"] = 1

    with pytest.raises(VerificationError, match="certificate 4: erased rows are back"):
        check_chain(chained(edit=at(4, fewer)), TRUST)


def test_retrain_from_the_registration_is_accepted() -> None:
    steps = [
        ErasureStep("m", (0,), retrain=True),
        ErasureStep("m", (1,)),
        ErasureStep("m", (2,), retrain=True),
    ]
    assert len(check_chain(maker.certificates(maker.build(steps)), TRUST)) == 3


def test_chain_of_another_ledger_than_the_keys_is_refused() -> None:
    trust = Trust.from_pinned(ROOT.public.hex(), maker.rotated(6))
    trust.ledger = "prod-us-1"
    with pytest.raises(VerificationError, match="certificate 1: ledger prod-eu-1 is not prod-us-1"):
        check_chain(HONEST, trust)
