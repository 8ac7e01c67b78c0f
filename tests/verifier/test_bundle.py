"""Whole bundles: what each level sees, and what it says."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from letheon.verifier import (
    LARGEST,
    SMALL,
    UNLEARNING,
    Verdict,
    VerificationError,
    main,
    read_capped,
    verify_bundle,
)
from tests.verifier import maker
from tests.verifier.maker import ROOT, SECOND, STRANGER, WITNESS, ErasureStep, Files, Statement

PINNED = ROOT.public.hex()


def judged(files: Files, folder: Path, **options: Any) -> dict[str, Verdict]:
    return by_level(verify_bundle(maker.write(files, folder), PINNED, **options))


def by_level(verdicts: list[Verdict]) -> dict[str, Verdict]:
    """The verdict of every level; V0 is that of the chain, "index" that of the signed index."""
    levels = {verdict.level: verdict for verdict in reversed(verdicts)}
    return levels | {"index": verdicts[1]}


def passed(verdicts: dict[str, Verdict]) -> list[bool | None]:
    return [verdicts[level].passed for level in ("V0", "V1", "V2", "V3")]


def lying(number: int, change: Callable[[dict[str, Any]], Any]) -> Files:
    def edit(sequence: int, statement: Statement) -> None:
        if sequence == number:
            change(statement["predicate"])

    return maker.build(edit=edit)


def relogged(files: Files, change: Callable[[dict[str, Any]], Any]) -> Files:
    log = json.loads(files["log.json"])
    change(log)
    return {**files, "log.json": rfc8785.dumps(log)}


def test_honest_bundle_passes(tmp_path: Path) -> None:
    assert passed(judged(maker.honest_bundle(), tmp_path)) == [True] * 4


def test_a_verdict_is_one_line_of_text() -> None:
    assert str(Verdict("V0", False, "altered")) == "V0  FAIL    altered"
    assert str(Verdict("V2", None, "no proofs")) == "V2  skipped no proofs"


def test_public_bundle_passes_what_it_can_show(tmp_path: Path) -> None:
    verdicts = judged(maker.public(maker.honest_bundle()), tmp_path)
    assert passed(verdicts) == [True, True, None, True]
    assert (verdicts["index"].passed, verdicts["V2"].promised) == (True, False)
    assert "missing certificates at the end are not detected" in verdicts["V1"].reason


def test_rotated_bundle_passes(tmp_path: Path) -> None:
    files = maker.build(
        statements=maker.rotated(3), signer_of=lambda sequence: ROOT if sequence <= 3 else SECOND
    )
    assert passed(judged(files, tmp_path)) == [True] * 4


def test_empty_bundle_passes_nothing(tmp_path: Path) -> None:
    verdicts = judged({}, tmp_path)
    assert passed(verdicts) == [None, False, None, None]
    assert verdicts["V0"].reason == "the bundle has no certificate"
    assert verdicts["V1"].reason == "checkpoints/: no checkpoint"


def test_failed_chain_stops_the_rest(tmp_path: Path) -> None:
    files = maker.honest_bundle()
    files["certificates/000002.json"] = files["certificates/000003.json"]
    verdicts = judged(files, tmp_path)
    assert passed(verdicts) == [False, None, None, None]
    assert verdicts["V0"].reason == "certificate 2: has sequence 3; expected 2"
    assert verdicts["V3"].reason == "not checked: V0 failed"


def test_wrong_pinned_key_fails(tmp_path: Path) -> None:
    folder = maker.write(maker.honest_bundle(), tmp_path)
    verdict = verify_bundle(folder, STRANGER.public.hex())[0]
    assert verdict.passed is False
    assert "certificate 1: key" in verdict.reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("certificates/000003.json", "certificates/: a number is missing"),
        ("keys/0001.json", f"certificate 4: key {SECOND.keyid[:16]} is unknown"),
    ],
)
def test_missing_file_is_named(name: str, reason: str, tmp_path: Path) -> None:
    files = maker.build(
        statements=maker.rotated(3), signer_of=lambda sequence: ROOT if sequence <= 3 else SECOND
    )
    del files[name]
    verdict = judged(files, tmp_path)["V0"]
    assert verdict.passed is False
    assert reason in verdict.reason


@pytest.mark.parametrize(
    "name", ["certificates/7.json", "certificates/000007.json.bak", "certificates/x", "keys/a.pub"]
)
def test_file_that_does_not_belong_there_is_refused(name: str, tmp_path: Path) -> None:
    verdict = judged({**maker.honest_bundle(), name: b""}, tmp_path)["V0"]
    assert verdict.passed is False
    assert f"unexpected file {Path(name).name!r}" in verdict.reason


# V1.


def without_tail(files: Files) -> Files:
    """The operator hides the last certificate and its log entry."""
    edited = relogged(files, lambda log: log["certificates"].pop())
    return {k: v for k, v in edited.items() if not k.endswith("/000006.json")}


def test_dropped_last_certificate_is_seen_with_the_events(tmp_path: Path) -> None:
    verdict = judged(without_tail(maker.honest_bundle()), tmp_path)["V1"]
    assert verdict.passed is False
    assert "events.jsonl: certificates and events do not match" in verdict.reason


def test_dropped_key_statement_is_seen_with_the_events(tmp_path: Path) -> None:
    ledger = maker.BundleBuilder()
    ledger.certify(1, maker.STEPS[0])
    ledger.record("key-revocation", statement="00" * 32)
    verdict = judged(ledger.finish(), tmp_path)["V1"]
    assert verdict.passed is False
    assert "a key statement is missing" in verdict.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda log: log.update(size=20), "log.json: does not match the newest checkpoint"),
        (lambda log: log.update(root="00" * 32), "does not match the newest checkpoint"),
        (lambda log: log["certificates"].pop(), "expected one entry per certificate"),
        (lambda log: log["certificates"].reverse(), "certificate 1: the event is not about"),
        (lambda log: log["certificates"][2].update(index=3), "certificate 3: the inclusion proof"),
        (lambda log: log["certificates"][1]["proof"].pop(), "certificate 2: the inclusion proof"),
        (lambda log: log["certificates"][1]["event"].update(kind="x"), "is not a certificate"),
        (lambda log: log["certificates"][1]["event"].update(at=1), "the inclusion proof"),
        (lambda log: log["consistency"].pop(), "expected one consistency proof per step"),
        (lambda log: log["consistency"].append(log["consistency"][0]), "per step"),
        (lambda log: log["consistency"][1]["proof"].pop(), "checkpoints 5 and 8: "),
        (lambda log: log.update(extra=1), "unknown key 'extra'"),
        (lambda log: log["certificates"][0].update(index=-1), "minimum"),
    ],
)
def test_changed_log_is_refused(
    change: Callable[[dict[str, Any]], Any], reason: str, tmp_path: Path
) -> None:
    verdict = judged(relogged(maker.honest_bundle(), change), tmp_path)["V1"]
    assert verdict.passed is False
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("000000000008.txt", None, "expected one consistency proof per step"),
        ("000000000021.txt", None, "does not match the newest"),
        ("000000000009.txt", maker.note(8, bytes(32)), "000000000009.txt: has size 8"),
        ("000000000008.txt", maker.note(8, bytes(32)), "log was rewritten"),
        ("000000000008.txt", maker.note(8, bytes(32), STRANGER), "expected one signature"),
        ("000000000008.txt", maker.note(8, bytes(32), origin="o"), "some belong to another ledger"),
        ("000000000008.txt", "\udcff", "000000000008.txt: not a checkpoint"),
    ],
)
def test_changed_checkpoint_is_refused(
    name: str, data: str | None, reason: str, tmp_path: Path
) -> None:
    files = maker.honest_bundle()
    if data is None:
        del files[f"checkpoints/{name}"]
    else:
        files[f"checkpoints/{name}"] = data.encode(errors="surrogateescape")
    verdict = judged(files, tmp_path)["V1"]
    assert verdict.passed is False
    assert reason in verdict.reason


def test_certificate_must_name_a_known_checkpoint(tmp_path: Path) -> None:
    unknown = {"checkpointBefore": {"sha256": "0" * 64}}
    files = lying(2, lambda claims: claims["ledger"].update(unknown))
    verdict = judged(files, tmp_path)["V1"]
    assert verdict.reason.endswith("certificate 2: checkpointBefore is not among the checkpoints")


def test_certificates_must_be_logged_in_order(tmp_path: Path) -> None:
    first = maker.BundleBuilder()
    first.register("m")
    digest = first.checkpoint()
    ledger = maker.BundleBuilder(
        edit=lambda _, s: s["predicate"]["ledger"].update(checkpointBefore={"sha256": digest})
    )
    ledger.certify(1, ErasureStep("m", (1,)))
    ledger.certify(2, ErasureStep("m", (2,)))
    ledger.notes = first.notes
    (item, two), events = ledger.entries, ledger.events
    events[item["index"]], events[two["index"]] = events[two["index"]], events[item["index"]]
    item["index"], two["index"] = two["index"], item["index"]
    verdict = judged(ledger.finish(), tmp_path)["V1"]
    assert verdict.reason == "log.json: certificate 2: the event is too early in the log"


SEEN = maker.honest_bundle()["checkpoints/000000000017.txt"].decode()


def test_seen_checkpoint_is_continued(tmp_path: Path) -> None:
    assert judged(maker.honest_bundle(), tmp_path, seen_checkpoint=SEEN)["V1"].passed is True


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (maker.note(99, bytes(32)), "the log was rolled back from 99 to 21"),
        (maker.note(17, bytes(32)), "the log was forked before 17"),
        (maker.note(16, bytes(32)), "lacks the checkpoint of size 16"),
        (maker.note(17, bytes(32), STRANGER), "the earlier check: expected one signature"),
        ("x", "the earlier check: not a checkpoint"),
    ],
)
def test_log_that_does_not_continue_what_was_seen_is_refused(
    seen: str, reason: str, tmp_path: Path
) -> None:
    verdict = judged(maker.honest_bundle(), tmp_path, seen_checkpoint=seen)["V1"]
    assert verdict.passed is False
    assert reason in verdict.reason


def test_rollback_to_an_older_bundle_is_refused(tmp_path: Path) -> None:
    older = maker.build(maker.STEPS[:3])
    assert judged(older, tmp_path)["V1"].passed is True
    verdict = judged(older, tmp_path, seen_checkpoint=SEEN)["V1"]
    assert "the log was rolled back from 17 to 12" in verdict.reason


def test_pinned_witness_must_have_co_signed(tmp_path: Path) -> None:
    pinned = [maker.verifier_key(WITNESS)]
    witnessed = judged(maker.build(witness=WITNESS), tmp_path / "a", witnesses=pinned)["V1"]
    alone = judged(maker.honest_bundle(), tmp_path / "b", witnesses=pinned)["V1"]
    assert witnessed.passed is True
    assert alone.passed is False
    assert "checkpoints/000000000021.txt: witness w.example/1: has not signed" in alone.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-1], "truncated or too long"),
        (lambda data: data + b"{}\n", "do not give the log's root"),
        (lambda data: b"[]\n" + data, "not an object"),
        (lambda data: data.replace(b"applied", b"skipped", 1), "do not give"),
        (lambda data: b"x" * (SMALL + 1), "truncated or too long"),
    ],
)
def test_changed_events_are_refused(
    change: Callable[[bytes], bytes], reason: str, tmp_path: Path
) -> None:
    files = maker.honest_bundle()
    files["events.jsonl"] = change(files["events.jsonl"])
    verdict = judged(files, tmp_path)["V1"]
    assert verdict.passed is False
    assert reason in verdict.reason


# V2.


def proof_name(files: Files, number: int) -> str:
    claims = json.loads(maker.payload_of(files[f"certificates/{number:06d}.json"]))["predicate"]
    return f"proofs/{claims['dataset']['transitionProof']['sha256']}.json"


def with_proof(number: int, proof: bytes, **dataset: Any) -> Files:
    """The operator certifies another transition than the one that he made."""
    digest = maker.sha(proof).hex()
    change = {"transitionProof": {"sha256": digest}, **dataset}
    files = lying(number, lambda claims: claims["dataset"].update(change))
    return {**files, f"proofs/{digest}.json": proof}


MODEL = maker.SlotModel.registered("credit-risk")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (with_proof(1, maker.transition(MODEL.slots, [1])), "does not end at rootAfter"),
        (with_proof(1, maker.transition(MODEL.slots[::-1], [1, 4])), "start at rootBefore"),
        (with_proof(1, maker.transition(MODEL.slots * 2, [1, 4])), "has 16 slots"),
        (with_proof(1, b"{}"), "transition proof: the value violates required"),
        (
            lying(3, lambda claims: claims["dataset"].update(rootAfter="00" * 32)),
            "certificate 3: the transition does not end at rootAfter",
        ),
    ],
)
def test_other_transition_is_refused(files: Files, reason: str, tmp_path: Path) -> None:
    verdict = judged(files, tmp_path)["V2"]
    assert verdict.passed is False
    assert reason in verdict.reason


def test_number_of_rows_must_be_that_of_the_proof(tmp_path: Path) -> None:
    def fewer(claims: dict[str, Any]) -> None:
        claims["erasure"]["rows"] = 1

    verdict = judged(
        maker.build(maker.STEPS[:1], edit=lambda _, s: fewer(s["predicate"])), tmp_path
    )
    assert verdict["V2"].reason == "certificate 1: 2 slots were erased, not 1"


def test_missing_and_swapped_proofs_are_refused(tmp_path: Path) -> None:
    files = maker.honest_bundle()
    name = proof_name(files, 2)
    swapped = {**files, name: files[proof_name(files, 1)]}
    verdict = judged(swapped, tmp_path / "swapped")["V2"]
    assert verdict.reason == "certificate 2: the transition proof was altered"
    del files[name]
    verdict = judged(files, tmp_path / "missing")["V2"]
    assert verdict.passed is False
    assert "is missing" in verdict.reason


def test_retrain_that_swaps_an_erased_row_for_another_is_refused(tmp_path: Path) -> None:
    """Slots 1, 4, 6 were erased and 3 is due; the operator brings 1 back and erases 2."""
    kept = [2, 3, 4, 6]
    proof = maker.transition(MODEL.slots, kept)
    root = maker.slot_root(maker.without(MODEL.slots, kept))
    files = with_proof(4, proof, rootAfter=root)
    short = {k: v for k, v in files.items() if not k.endswith(("/000005.json", "/000006.json"))}
    verdicts = judged(short, tmp_path)
    assert verdicts["V0"].passed is True
    assert verdicts["V2"].reason == "certificate 4: an erased row is back in the data set"


@pytest.mark.parametrize("signer", [ROOT, SECOND])
def test_newest_checkpoint_must_not_be_by_a_revoked_key(signer: Any, tmp_path: Path) -> None:
    statements = maker.rotated(3)
    statements.append(maker.envelope(maker.revocation(ROOT, 3, statements), SECOND))
    ledger = maker.BundleBuilder(
        statements=statements, signer_of=lambda number: ROOT if number <= 3 else SECOND
    )
    for number, step in enumerate(maker.STEPS, 1):
        ledger.certify(number, step)
    files = ledger.finish()
    newest = max(ledger.notes)
    forged = maker.note(newest, maker.tree_root(ledger.events), signer)
    files[f"checkpoints/{newest:012d}.txt"] = forged.encode()
    verdict = judged(files, tmp_path)["V1"]
    assert verdict.passed is (signer is SECOND), verdict.reason
    assert signer is SECOND or "expected one signature by a trusted key" in verdict.reason


# V3.


def with_purge(number: int, change: Callable[[Statement], Any], signer: Any = ROOT) -> Files:
    files = maker.honest_bundle()
    purge = maker.purge_of(files[f"certificates/{number:06d}.json"], 1)
    change(purge)
    return {**files, f"purges/{number:06d}.json": maker.envelope(purge, signer)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s["subject"][0].update(name="churn@9"), "belongs to another certificate"),
        (lambda s: s["predicate"]["certificate"].update(sha256="0" * 64), "to another certif"),
        (lambda s: s["predicate"]["ledger"].update(sequence=3), "belongs to another certificate"),
        (lambda s: s["predicate"]["ledger"].update(id="other"), "belongs to another certificate"),
        (
            lambda s: s["predicate"]["scanner"].update(hits=1),
            "scanner.hits: the value violates const",
        ),
        (lambda s: s["predicate"]["stores"][0].pop("at"), "stores[0]: the value violates required"),
        (lambda s: s["predicate"]["stores"][6].pop("by"), "stores[6]: the value violates required"),
    ],
)
def test_other_purge_is_refused(
    change: Callable[[Statement], Any], reason: str, tmp_path: Path
) -> None:
    verdict = judged(with_purge(2, change), tmp_path)["V3"]
    assert verdict.passed is False
    assert verdict.reason.startswith("purges/000002.json: ")
    assert reason in verdict.reason


def test_purge_by_a_stranger_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    stranger = with_purge(2, lambda _: None, STRANGER)
    assert "is unknown" in judged(stranger, tmp_path / "a")["V3"].reason
    files = maker.honest_bundle()
    files["purges/000002.json"] = files["certificates/000002.json"]
    assert "not a purge attestation" in judged(files, tmp_path / "b")["V3"].reason


def test_missing_purges_are_no_pass(tmp_path: Path) -> None:
    files = maker.honest_bundle()
    del files["purges/000002.json"]
    hidden = judged(files, tmp_path / "hidden")["V3"]
    assert hidden.reason == "events.jsonl: purges and events do not match"
    del files["events.jsonl"]
    verdict = judged(files, tmp_path / "public")["V3"]
    assert verdict.passed is None
    assert verdict.reason == "5 purges attested; not yet attested for certificates [2]"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda claims: claims["salts"].update(destroyed=0), "0 salts were destroyed, and 1 rows"),
        (lambda claims: claims["scanner"].update(markers=0), "searched for nothing"),
        (lambda claims: claims["scanner"].update(files=0), "no file was searched"),
        (lambda claims: claims["stores"].pop(0), "not purged in the ledger itself: blobs"),
        (
            lambda claims: claims["stores"][1].update(state="expires", by="9999-12-31"),
            "not purged in the ledger itself: key",
        ),
        (
            lambda claims: claims["times"].update(startedAt="2026-11-09T04:00:01Z"),
            "ended before it started",
        ),
        (
            lambda claims: claims["times"].update(startedAt="1970-01-01T00:00:00Z"),
            "started before the certificate was issued",
        ),
        (
            lambda claims: claims["times"].update(startedAt="2026-13-09T00:00:00Z"),
            "is not a valid time",
        ),
    ],
)
def test_purge_of_nothing_is_refused(
    change: Callable[[dict[str, Any]], Any], reason: str, tmp_path: Path
) -> None:
    verdict = judged(with_purge(2, lambda s: change(s["predicate"])), tmp_path)["V3"]
    assert verdict.passed is False
    assert reason in verdict.reason


def test_a_purge_signed_again_is_not_the_one_of_the_log(tmp_path: Path) -> None:
    files = with_purge(2, lambda s: s["predicate"]["scanner"].update(bytes=1))
    verdict = judged(files, tmp_path)["V3"]
    assert verdict.reason == "events.jsonl: purges and events do not match"


def test_a_retrain_without_new_rows_destroys_no_salt(tmp_path: Path) -> None:
    files = maker.build([ErasureStep("m", (0,)), ErasureStep("m", (), retrain=True)])
    assert judged(files, tmp_path)["V3"].passed is True


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("subject", "0" * 64, "the model was not registered with this data set"),
        ("root", "0" * 64, "the model was not registered with this data set"),
        ("slots", 16, "the model was not registered with this data set"),
        ("live", 9, "the model was not registered with this data set"),
        ("training", "0" * 64, "the seed differs from the registration"),
        ("beacon", "checkpoint:0", "the seed differs from the registration"),
    ],
)
def test_first_certificate_starts_from_the_registration(
    field: str, value: Any, reason: str, tmp_path: Path
) -> None:
    ledger = maker.BundleBuilder()
    ledger.register("m")
    ledger.events[0] = rfc8785.dumps({**json.loads(ledger.events[0]), field: value})
    ledger.certify(1, ErasureStep("m", (1,)))
    verdict = judged(ledger.finish(), tmp_path)["V1"]
    assert verdict.passed is False
    assert verdict.reason == f"events.jsonl: certificate 1: {reason}"


def test_purge_without_certificate_is_refused(tmp_path: Path) -> None:
    files = maker.honest_bundle()
    files["purges/000007.json"] = files["purges/000006.json"]
    assert "there is no such certificate" in judged(files, tmp_path)["V3"].reason


# Hostile files.


@pytest.mark.parametrize(
    "name", ["certificates/000001.json", "log.json", "events.jsonl", "purges/000001.json"]
)
@pytest.mark.parametrize("kind", ["folder", "pipe", "endless", "dangling"])
def test_what_is_no_plain_file_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    path = maker.write(maker.honest_bundle(), tmp_path) / name
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "endless" else "nowhere")
    outcomes = [verdict.passed for verdict in verify_bundle(tmp_path, PINNED)]
    assert False in outcomes


def test_names_of_files_write_nothing_on_a_terminal(tmp_path: Path) -> None:
    folder = maker.write(maker.honest_bundle(), tmp_path)
    (folder / "certificates" / "\x1b[2K\rV0  pass\n").write_bytes(b"")
    reasons = "".join(verdict.reason for verdict in verify_bundle(folder, PINNED))
    assert "invalid name" in reasons
    assert reasons.isprintable()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("certificates/000001.json", b" " * (SMALL + 1)),
        ("certificates/000001.json", b"[" * SMALL),
        ("checkpoints/000000000001.txt", b"\n" * (SMALL + 1)),
        ("log.json", b'{"a":' * 200_000),
        ("purges/000001.json", b"[" * 500_000 + b"]" * 500_000),
        ("keys/0001.json", b"[" * 5000),
    ],
)
def test_large_and_deep_files_are_refused(name: str, data: bytes, tmp_path: Path) -> None:
    verdicts = judged({**maker.honest_bundle(), name: data}, tmp_path)
    reasons = [verdict.reason for verdict in verdicts.values() if verdict.passed is False]
    assert len(reasons) == 1
    assert "larger than" in reasons[0] or "nested" in reasons[0] or "checkpoint" in reasons[0]


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert read_capped(path, 4) == b"1234"
    with pytest.raises(VerificationError, match="file: larger than 3 bytes"):
        read_capped(path, 3)


# The command.


def test_command_prints_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = maker.write(maker.honest_bundle(), tmp_path)
    assert main([str(folder), "--key", PINNED]) == 0
    lines = capsys.readouterr().out.splitlines()
    levels = ["V0", "V0", "V1", "V2", "V3"]
    assert [line.split()[:2] for line in lines[:-1]] == [[level, "pass"] for level in levels]
    assert lines[-1].startswith("passed; models are not checked here")


def test_command_gives_json_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = maker.write(maker.honest_bundle(), tmp_path)
    (folder / "certificates/000006.json").write_bytes(b"")
    assert main([str(folder), "--key", str(folder / "keys/root.pub"), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["passed"]) == ("failed", False)
    assert report["levels"][0] == {
        "level": "V0",
        "passed": False,
        "reason": "certificate 6: not JSON in UTF-8: Expecting value: line 1 column 1 (char 0)",
        "promised": True,
    }


def test_command_tells_an_incomplete_bundle_from_one_that_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = maker.write(maker.honest_bundle(), tmp_path / "old", indexed=False)
    assert main([str(without), "--key", PINNED]) == 3
    assert "has no signed index" in capsys.readouterr().out
    unpurged = {k: v for k, v in maker.public(maker.honest_bundle()).items() if "purges/" not in k}
    assert main([str(maker.write(unpurged, tmp_path / "early")), "--key", PINNED]) == 3
    public = maker.write(maker.public(maker.honest_bundle()), tmp_path / "public")
    assert main([str(public), "--key", PINNED]) == 0
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty"), "--key", PINNED]) == 1


# The signed index.


def sign_again(files: Files, **changes: Any) -> Files:
    """The operator changes bundle.json and signs for it."""
    description = json.loads(files["bundle.json"]) | changes
    return {**files, "bundle.json": rfc8785.dumps(description)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tier": "public"}, "the files are those of the tier auditor"),
        ({"ledger": "other"}, "the ledger is not other"),
        ({"size": 3}, "not that of the newest checkpoint"),
        ({"scope": {}}, "the files of churn, credit-risk are missing"),
        ({"scope": {"model": "churn"}}, "the files of churn are missing"),
        ({"models": [{"tenant": "default", "name": "x", "sequence": 1}]}, "newest certificates"),
        ({"format": "letheon-bundle-v2"}, "violates const"),
        ({"note": "hello"}, "unknown key 'note'"),
    ],
)
def test_a_description_that_does_not_fit_the_bundle_fails(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    verdict = judged(sign_again(maker.honest_bundle(), **change), tmp_path)["index"]
    assert verdict.passed is False
    assert reason in verdict.reason


def test_a_public_bundle_that_says_auditor_fails(tmp_path: Path) -> None:
    files = sign_again(maker.public(maker.honest_bundle()), tier="auditor")
    claims = maker.index_of(files, tier="auditor")
    verdict = judged({**files, **claims}, tmp_path)["index"]
    assert verdict.passed is False
    assert "the files are those of the tier public" in verdict.reason


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"ledger": {"id": "other", "sequence": 6}}, "belongs to another ledger"),
        ({"ledger": {"id": maker.LEDGER, "sequence": 5}}, "another number of certificates"),
        ({"files": 1}, "lists"),
        ({"tier": "public"}, "the files are those of the tier auditor"),
    ],
)
def test_an_index_that_does_not_fit_the_bundle_fails(
    claims: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    files = maker.honest_bundle()
    verdict = judged({**files, **maker.index_of(files, **claims)}, tmp_path)["index"]
    assert verdict.passed is False
    assert reason in verdict.reason


def test_an_index_by_a_stranger_or_of_something_else_fails(tmp_path: Path) -> None:
    files = maker.honest_bundle()
    strange = {**files, **maker.index_of(files, STRANGER)}
    assert "is unknown" in judged(strange, tmp_path / "1")["index"].reason
    other = {**files, **maker.index_of(files)}
    other["index.signed.json"] = files["purges/000001.json"]
    assert "not the index of a bundle" in judged(other, tmp_path / "2")["index"].reason
    half = {**files, **maker.index_of(files)}
    del half["index.signed.json"]
    assert judged(half, tmp_path / "3")["index"].passed is False


@pytest.mark.parametrize("name", sorted({**maker.honest_bundle(), "index.json": b""}))
def test_no_changed_file_is_accepted(name: str, tmp_path: Path) -> None:
    folder = maker.write(maker.honest_bundle(), tmp_path)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert any(item.passed is False for item in verify_bundle(folder, PINNED)[:2])


def test_files_that_the_index_does_not_list_fail(tmp_path: Path) -> None:
    folder = maker.write(maker.honest_bundle(), tmp_path)
    (folder / "proofs" / "more.json").write_bytes(b"{}")
    verdict = by_level(verify_bundle(folder, PINNED))["index"]
    assert (verdict.passed, "proofs/more.json" in verdict.reason) == (False, True)


def make_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target.name)


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_other_case(path: Path) -> None:
    path.with_name(path.name.upper()).write_bytes(b"")


def make_huge(path: Path) -> None:
    os.truncate(path, LARGEST + 1)


def link_the_folder(path: Path) -> None:
    folder = path.parent
    outside = folder.parent.parent / f"outside-{folder.name}"
    folder.rename(outside)
    folder.symlink_to(outside)


@pytest.mark.parametrize(
    "trick", [make_link, make_pipe, make_folder, make_other_case, make_huge, link_the_folder]
)
@pytest.mark.parametrize(
    "name", ["certificates/000001.json", "keys/root.pub", "purges/000006.json"]
)
def test_tricks_with_files_and_folders_are_refused(name: str, trick: Any, tmp_path: Path) -> None:
    folder = maker.write(maker.honest_bundle(), tmp_path / "bundle")
    trick(folder / name)
    assert any(item.passed is False for item in verify_bundle(folder, PINNED)[:2])


def test_folders_that_are_nested_deeply_are_refused(tmp_path: Path) -> None:
    folder = maker.write(maker.honest_bundle(), tmp_path)
    (folder / "/".join("abcdef")).mkdir(parents=True)
    assert "nested too deeply" in verify_bundle(folder, PINNED)[0].reason


def test_command_takes_what_was_seen_and_witnesses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = maker.write(maker.build(witness=WITNESS), tmp_path)
    seen = str(folder / "checkpoints/000000000017.txt")
    arguments = [str(folder), "--key", PINNED, "--seen", seen]
    assert main([*arguments, "--witness", maker.verifier_key(WITNESS)]) == 0
    assert main([*arguments, "--witness", maker.verifier_key(STRANGER)]) == 1
    assert "has not signed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["nowhere", "--key", PINNED],
        [".", "--key", "nowhere"],
        [".", "--key", "."],
        [".", "--key", PINNED, "--seen", "nowhere"],
    ],
)
def test_command_says_what_it_cannot_read(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("cannot check: ")


def test_an_old_predictor_that_another_model_states_again_fails(tmp_path: Path) -> None:
    """Certificate 1 of credit-risk is outdated; certificate 5 is the newest one of churn."""
    contents = {number: b"%d" % number for number in range(1, 7)} | {5: b"1"}

    def edit(number: int, statement: Statement) -> None:
        statement["predicateType"] = UNLEARNING
        digest = hashlib.sha256(contents[number]).hexdigest()
        statement["predicate"]["model"]["predictor"] = {"sha256": digest}

    files = maker.build(edit=edit)
    verdicts = {
        data: judged(files, tmp_path / data.decode(), predictor=data)["W2"]
        for data in contents.values()
    }
    assert [data for data, verdict in verdicts.items() if verdict.passed] == [b"6"]
    assert "predictor of certificate 1; certificate 6" in verdicts[b"1"].reason
