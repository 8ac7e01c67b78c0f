"""An operator who signs and logs other seeds, keys and beacons than the log settled."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from letheon import (
    DaREForestClassifier,
    state,
)
from letheon.audit import audit
from letheon.exceptions import SignerRefusedError
from letheon.ledger import Ledger
from letheon.ledger.certificates import certify
from letheon.ledger.db.events import record_event
from letheon.ledger.keys.keyring import KeyRing
from letheon.ledger.models.examine import fresh_fit
from letheon.ledger.models.versions import find_head, find_model
from letheon.ledger.worker import apply
from letheon.verifier import canonical
from tests.audit.bundles import (
    computing,
    erase,
    judged,
    reindex,
    verdicts,
)
from tests.audit.people import table

IDS = np.arange(60)
Patch = pytest.MonkeyPatch


def trained(folder: Path) -> Ledger:
    X, y = table(60)
    ledger = Ledger.create(folder, name="audited")
    ledger.models.train(DaREForestClassifier(n_estimators=3), X, y, ids=IDS, name="forest")
    return ledger


def training_of(ledger: Ledger) -> dict[str, str]:
    with ledger._core.database.reading() as conn:
        model = find_model(conn, "forest", "default")
        training: dict[str, str] = find_head(conn, model.id).run["training"]
        return training


def reseeding(patch: Patch, ledger: Ledger, training: dict[str, str]) -> None:
    """Train with the seed of another key or beacon at the next erasure, and say so."""
    beacon = bytes.fromhex(training["beacon"].removeprefix("checkpoint:"))
    seed = ledger._core.keys.derive_seed(training["key"], beacon)
    publish: Any = apply._publish_version

    def reseed(_: Any, product: Any) -> Any:
        fresh = fresh_fit(state.decode(product.model), product.rows, seed=seed).model
        return dataclasses.replace(product, model=state.encode(fresh))

    computing(patch, reseed)
    claim_training(patch, training)
    claimed = {"training": training}
    patch.setattr(
        apply, "_publish_version", lambda *given: publish(*given[:-1], given[-1] | claimed)
    )


def claim_training(patch: Patch, training: dict[str, str]) -> None:
    """Say of the next batch that it was trained like this."""
    honest = apply._make_computation
    patch.setattr(
        apply,
        "_make_computation",
        lambda *given: dataclasses.replace(honest(*given), training=training),
    )


def beacons(ledger: Ledger, n: int) -> list[str]:
    """Take checkpoints until one suits."""
    beacons = []
    for number in range(n):
        with ledger._core.database.transaction() as conn:
            record_event(conn, "noise", {"n": number}, ledger._core.clock())
        beacons.append(f"checkpoint:{ledger.log.checkpoint().digest}")
    return beacons


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("new_key", [True, False])
def test_a_seed_that_changes_at_an_erasure_is_refused(
    first: bool, new_key: bool, tmp_path: Path, monkeypatch: Patch
) -> None:
    """A new key, or the old one with a later beacon, chosen when it is known who leaves."""
    with trained(tmp_path / "home") as ledger:
        if not first:
            erase(ledger, "forest", 5)
        core, training = ledger._core, dict(training_of(ledger))
        if new_key:
            training["key"] = core.keys.new_key("training")
            training["keyCommitment"] = core.keys.commit_to(training["key"])
            with core.database.transaction() as conn:
                record_event(
                    conn, "training", {"training": training["keyCommitment"]}, core.clock()
                )
        reseeding(monkeypatch, ledger, training | {"beacon": beacons(ledger, 3)[1]})
        monkeypatch.setattr(certify, "_check_continuation", lambda *_: None)
        monkeypatch.setattr(certify, "reject_false_predictor", lambda *_: None)
        erase(ledger, "forest", 3)
        by_level = verdicts(judged(ledger, tmp_path / "bundle", "V0", "V4"))
    assert by_level == ({"V0": "pass", "V1": "fail", "V4": "fail"} if first else {"V0": "fail"})


def test_the_signer_refuses_a_seed_that_changed(tmp_path: Path, monkeypatch: Patch) -> None:
    with trained(tmp_path / "home") as ledger:
        erase(ledger, "forest", 5)
        training = training_of(ledger) | {"beacon": beacons(ledger, 1)[0]}
        reseeding(monkeypatch, ledger, training)
        ledger.requests.submit([3], model="forest", verified=True)
        ledger.run_once(force=True)
        assert len(ledger.certificates.sequences()) == 1
        with pytest.raises(SignerRefusedError, match="the seed changed without a retrain"):
            certify.certify_next(ledger._core)


@pytest.mark.parametrize("when", ["earlier", "later"])
def test_another_beacon_of_a_retrain_fails_v4(
    when: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    with trained(tmp_path / "home") as ledger:
        erase(ledger, "forest", 5)
        early = beacons(ledger, 2)[0]

        def grind(core: Any, committed: str) -> str:
            certify.take_beacon(core, committed)
            late = beacons(ledger, 3)[-1]
            return (early if when == "earlier" else late).removeprefix("checkpoint:")

        monkeypatch.setattr(apply, "take_beacon", grind)
        ledger.models.retrain("forest")
        report = judged(ledger, tmp_path / "bundle", "V0", "V1", "V4")
    assert verdicts(report) == {"V0": "pass", "V1": "pass", "V4": "fail"}
    assert "not the first checkpoint" in report.failures[0].reason


def test_a_beacon_is_the_first_checkpoint_though_another_worker_took_it(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """Another process takes a checkpoint between commitment and beacon."""
    with trained(tmp_path / "home") as ledger:
        erase(ledger, "forest", 5)
        honest = certify.take_beacon

        def overtaken(core: Any, committed: str) -> str:
            beacons(ledger, 2)
            return honest(core, committed)

        monkeypatch.setattr(apply, "take_beacon", overtaken)
        ledger.models.retrain("forest")
        by_level = verdicts(judged(ledger, tmp_path / "bundle"))
    assert set(by_level.values()) == {"pass"}


def test_a_retrain_with_a_key_of_the_drawer_fails_v4(tmp_path: Path, monkeypatch: Patch) -> None:
    """Keys with beacons are prepared in store; the one that suits is taken when a retrain comes."""
    with trained(tmp_path / "home") as ledger:
        core = ledger._core
        key = core.keys.new_key("training")
        with core.database.transaction() as conn:
            record_event(conn, "training", {"training": core.keys.commit_to(key)}, core.clock())
        ledger.log.checkpoint()
        erase(ledger, "forest", 5)
        new_key = KeyRing.new_key

        def from_the_drawer(ring: KeyRing, kind: Any, label: str = "") -> str:
            return key if kind == "training" else new_key(ring, kind, label)

        monkeypatch.setattr(KeyRing, "new_key", from_the_drawer)
        ledger.models.retrain("forest")
        report = judged(ledger, tmp_path / "bundle", "V0", "V1", "V4")
    assert verdicts(report) == {"V0": "pass", "V1": "pass", "V4": "fail"}
    assert "no commitment to the training key from before" in report.failures[0].reason


def test_a_key_that_does_not_match_its_commitment_fails_v4(tmp_path: Path) -> None:
    with trained(tmp_path / "home") as ledger:
        erase(ledger, "forest", 3)
        bundle, key = ledger.export(tmp_path / "bundle", tier="auditor"), ledger.public_key
        path = bundle / "models/default/forest/training.json"
        path.write_bytes(canonical(json.loads(path.read_bytes()) | {"key": "11" * 32}))
        reindex(ledger, bundle)
    [finding] = audit(bundle, key=key, levels=["V4"]).failures
    assert finding.reason == "the training key does not match its commitment"


def test_a_retrain_with_a_seed_of_the_operators_fails_v4(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    chosen = {"rule": "caller-seed-v1", "beacon": "none", "keyCommitment": "00" * 32, "key": ""}
    with trained(tmp_path / "home") as ledger:
        erase(ledger, "forest", 5)
        claim_training(monkeypatch, chosen)
        ledger.models.retrain("forest")
        report = judged(ledger, tmp_path / "bundle", "V0", "V1", "V4")
    assert verdicts(report) == {"V0": "pass", "V1": "pass", "V4": "fail"}
    assert "chose the seed of a retrain" in report.failures[0].reason


def test_keys_that_were_thrown_away_are_reported(tmp_path: Path) -> None:
    with trained(tmp_path / "home") as ledger:
        core = ledger._core
        with core.database.transaction() as conn:
            for number in range(3):
                record_event(conn, "training", {"training": f"{number:064x}"}, core.clock())
        erase(ledger, "forest", 3)
        report = judged(ledger, tmp_path / "bundle")
    assert report.passed
    assert [result.details["unusedTrainingKeys"] for result in report.of("V4")] == [3]


def test_forged_events_fail_v1_and_what_rests_on_them(tmp_path: Path) -> None:
    with trained(tmp_path / "home") as ledger:
        erase(ledger, "forest", 3)
        bundle = ledger.export(tmp_path / "bundle", tier="auditor")
        key = ledger.public_key
        events = bundle / "events.jsonl"
        lines = events.read_bytes().splitlines(keepends=True)
        assert b'"kind":"training"' in lines[1]
        # A commitment that is earlier than it was: all that V4 itself asks for is there.
        events.write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
        reindex(ledger, bundle)
    report = audit(bundle, key=key, levels=("V0", "V4"))
    assert verdicts(report) == {"V0": "pass", "V1": "fail", "V4": "fail"}
    assert [one.reason for one in report.of("V4")] == [
        "this level needs the log of the bundle, and V1 failed"
    ]
