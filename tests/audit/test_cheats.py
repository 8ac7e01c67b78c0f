"""A cheating operator, who has every key: each cheat is caught at the level that claims it.

What no level can catch is listed in `notClaimed` of every certificate: copies kept elsewhere.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

from letheon import (
    DaREForestClassifier,
    FisherClassifier,
    InfluenceClassifier,
    NaiveUnlearner,
    state,
)
from letheon.audit import audit
from letheon.data import Rows
from letheon.ledger import Ledger
from letheon.ledger.certificates import certify
from letheon.ledger.keys.keyring import KeyRing
from letheon.ledger.models.commitment import RowSlots
from letheon.ledger.worker import compute
from letheon.sharded._shards import Ensemble
from tests.audit.bundles import copied, erase, judged, ledger_of, reindex, resign, rewrite, verdicts
from tests.audit.people import table

Erase = Callable[..., None]


@dataclasses.dataclass
class AuditSetup:
    """An honest ledger of two erasures, its bundle, and an earlier checkpoint of it."""

    ledger: Ledger
    bundle: Path
    seen: str
    older: Path


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditSetup]:
    folder = tmp_path_factory.mktemp("cheats")
    with ledger_of(folder / "home", "naive") as ledger:
        erase(ledger, "naive", 3)
        older = ledger.export(folder / "older", tier="auditor")
        erase(ledger, "naive", 5, 7)
        seen = ledger.log.checkpoint().note
        yield AuditSetup(ledger, ledger.export(folder / "bundle", tier="auditor"), seen, older)


def said(setup: AuditSetup, bundle: Path, **options: Any) -> dict[str, str]:
    return verdicts(audit(bundle, key=setup.ledger.public_key, **options))


def model_folder(bundle: Path) -> Path:
    return bundle / "models" / "default" / "naive"


def test_an_honest_bundle_passes(setup: AuditSetup) -> None:
    by_level = said(setup, setup.bundle, seen=setup.seen)
    assert set(by_level.values()) == {"pass"}
    assert set(by_level) == {"V0", "V1", "V2", "V3", "V4"}


def cheating(patch: pytest.MonkeyPatch, spoil: Callable[[Any, Any], None]) -> None:
    """Let the ledger compute honestly, and then spoil the model before it is published."""
    honest: Erase = compute._erase_rows

    def erase_and_spoil(job: Any, work: Any, *rest: Any) -> None:
        before = copy.deepcopy(work.model)
        honest(job, work, *rest)
        spoil(work.model, before)

    patch.setattr(compute, "_erase_rows", erase_and_spoil)


def skip_the_forgetting(model: Any, before: Any) -> None:
    model.estimator_ = before.estimator_


def hide_the_row(model: Any, before: Any) -> None:
    gone = np.setdiff1d(before.ids_, model.ids_)
    model.note_ = before.rows_.X[before.rows_.find(before.rows_.ids.take(gone)).positions]


def keep_a_shard(model: Any, before: Any) -> None:
    shards = [
        dataclasses.replace(now, model=then.model)
        for now, then in zip(model.ensemble_.shards, before.ensemble_.shards, strict=True)
    ]
    old = model.ensemble_
    model.ensemble_ = Ensemble(old.assignment, tuple(shards), old.classes)


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [("naive", skip_the_forgetting), ("naive", hide_the_row), ("sisa", keep_a_shard)],
)
def test_a_model_that_did_not_forget_fails_v4(
    kind: str, spoil: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheating(monkeypatch, spoil)
    with ledger_of(tmp_path / "home", kind) as ledger:
        erase(ledger, kind, 3)
        by_level = verdicts(judged(ledger, tmp_path / "bundle", "V0", "V1", "V2", "V4"))
    assert by_level == {"V0": "pass", "V1": "pass", "V2": "pass", "V4": "fail"}


def test_a_swapped_model_fails_v4(setup: AuditSetup) -> None:
    bundle = copied(setup.bundle, "swapped")
    X, y = table(60)
    other = NaiveUnlearner(GaussianNB(), random_state=1).fit(X, y)
    (model_folder(bundle) / "model.blob").write_bytes(bytes(32) + state.encode(other))
    assert said(setup, bundle)["V4"] == "fail"


def test_an_older_model_in_a_newer_bundle_fails_v4(setup: AuditSetup) -> None:
    bundle = copied(setup.bundle, "restored")
    older = (model_folder(setup.older) / "model.blob").read_bytes()
    (model_folder(bundle) / "model.blob").write_bytes(older)
    assert said(setup, bundle)["V4"] == "fail"


def test_an_edited_metric_fails_v0(setup: AuditSetup) -> None:
    bundle = copied(setup.bundle, "edited")
    path = bundle / "certificates" / "000002.json"
    path.write_bytes(path.read_bytes().replace(b"A", b"B", 1))
    assert said(setup, bundle)["V0"] == "fail"


def with_a_row_again(bundle: Path) -> None:
    """Put a row with a salt into an empty slot of the data that the auditor gets."""
    place = model_folder(bundle)
    rows: Rows = state.decode((place / "rows.blob").read_bytes()[32:])
    vault = RowSlots(**state.decode((place / "vault.blob").read_bytes()[32:]))
    empty = np.setdiff1d(np.arange(64), vault.slots)[:1]
    more = rows.concat(rows.take(np.array([0])))
    salts = np.vstack([vault.salts, np.zeros((1, 32), np.uint8)])
    slots = np.concatenate([vault.slots, empty])
    places = np.append(vault.places, 60)
    ranks = np.empty((len(slots), 0), np.int64)
    again = RowSlots(slots, salts, places, ranks)
    (place / "rows.blob").write_bytes(bytes(32) + state.encode(more))
    (place / "vault.blob").write_bytes(bytes(32) + state.encode(again._asdict()))


def test_a_row_that_came_back_fails_v2(setup: AuditSetup) -> None:
    bundle = copied(setup.bundle, "again")
    with_a_row_again(bundle)
    assert said(setup, bundle)["V2"] == "fail"


def test_a_salt_that_was_changed_fails_v2(setup: AuditSetup) -> None:
    bundle = copied(setup.bundle, "salted")
    place = model_folder(bundle) / "vault.blob"
    vault = state.decode(place.read_bytes()[32:])
    vault["salts"] = np.roll(vault["salts"], 1, axis=0)
    place.write_bytes(bytes(32) + state.encode(vault))
    assert said(setup, bundle)["V2"] == "fail"


@pytest.mark.parametrize("name", ["model.blob", "rows.blob", "vault.blob", "training.json"])
def test_no_changed_byte_of_a_models_files_is_accepted(setup: AuditSetup, name: str) -> None:
    bundle = copied(setup.bundle, f"changed-{name}")
    path = model_folder(bundle) / name
    honest = path.read_bytes()
    places = np.linspace(0, len(honest) - 1, 8).astype(int).tolist()
    changed = [flipped(honest, place) for place in places]
    changed += [honest[:-1], honest + b"\0", honest[:32] + b"\0" + honest[32:]]
    for data in changed:
        path.write_bytes(data)
        assert "fail" in said(setup, bundle, levels=["V2", "V4"]).values()


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_a_hidden_request_fails_v1(setup: AuditSetup) -> None:
    bundle = copied(setup.bundle, "hidden")
    for kind in ("certificates", "purges"):
        (bundle / kind / "000002.json").unlink()
    assert said(setup, bundle)["V1"] == "fail"


def test_two_certificates_of_one_number_fail_v1(setup: AuditSetup) -> None:
    bundle = copied(setup.bundle, "twice")
    path = bundle / "certificates" / "000002.json"

    def flatter(statement: dict[str, Any]) -> None:
        statement["predicate"]["measurements"]["efficiency"]["value"] = "9999"

    resign(setup.ledger, path, flatter)
    reindex(setup.ledger, bundle)
    by_level = said(setup, bundle)
    assert (by_level["V0"], by_level["V1"]) == ("pass", "fail")


def test_a_stronger_claim_signed_anew_fails_v1(setup: AuditSetup) -> None:
    bundle = copied(setup.bundle, "stronger")

    def boast(statement: dict[str, Any]) -> None:
        statement["predicate"]["guarantee"]["requests"] = "adaptive"

    resign(setup.ledger, bundle / "certificates" / "000002.json", boast)
    assert said(setup, bundle)["V1"] == "fail"


def test_a_rolled_back_ledger_fails_v1_for_who_saw_more(setup: AuditSetup) -> None:
    assert said(setup, setup.older)["V1"] == "pass"
    assert said(setup, setup.older, seen=setup.seen)["V1"] == "fail"


def test_a_fork_fails_v1_for_who_saw_the_other_branch(setup: AuditSetup, tmp_path: Path) -> None:
    with ledger_of(tmp_path / "home", "naive") as other:
        erase(other, "naive", 3)
        forked = other.log.checkpoint().note
    assert said(setup, setup.bundle, seen=forked)["V1"] == "fail"


def test_another_key_fails_v0(setup: AuditSetup) -> None:
    report = audit(setup.bundle, key="11" * 32)
    assert verdicts(report) == {"V0": "fail", "V1": "skipped", "V2": "skipped", "V3": "skipped"}
    assert not report.passed


def trained(ledger: Ledger) -> None:
    X, y = table(60)
    ledger.models.train(
        DaREForestClassifier(n_estimators=3), X, y, ids=np.arange(60), name="forest"
    )
    erase(ledger, "forest", 3)


def test_a_seed_that_follows_from_key_and_beacon_passes(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "home", name="audited") as ledger:
        trained(ledger)
        ledger.models.retrain("forest")
        report = judged(ledger, tmp_path / "bundle")
    assert (report.passed, report.skipped) == (True, ())


def test_a_seed_that_was_chosen_fails_v4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyRing, "derive_seed", lambda *_: 12345)
    with Ledger.create(tmp_path / "home", name="audited") as ledger:
        trained(ledger)
        report = judged(ledger, tmp_path / "bundle", "V0", "V1", "V4")
    assert verdicts(report) == {"V0": "pass", "V1": "pass", "V4": "fail"}
    assert "seed" in report.failures[0].reason


def test_a_training_key_of_another_commitment_fails_v4(setup: AuditSetup) -> None:
    bundle = copied(setup.bundle, "key")
    path = model_folder(bundle) / "training.json"
    path.write_bytes(path.read_bytes().replace(b"caller-seed-v1", b"caller-seed-v2"))
    assert said(setup, bundle)["V4"] == "fail"


def without_settings(commitment: Any) -> Any:
    """Return an event of the log as an older letheon wrote it."""
    event = {name: value for name, value in commitment.event.items() if name != "settings"}
    return commitment._replace(event=event)


def test_settings_that_changed_between_certificates_fail_v4(setup: AuditSetup) -> None:
    from letheon.audit._bundle import Bundle
    from letheon.audit._levels import find_claim_mismatch

    bundle = Bundle(setup.bundle, setup.ledger.public_key)
    audited, log = bundle.models[0], bundle.log_facts
    model = audited.build_model()
    assert find_claim_mismatch(log, audited, model) is None
    model.estimator.var_smoothing = 0.5
    wrong = find_claim_mismatch(log, audited, model)
    assert wrong == "the settings of the model differ from those at its registration"
    older = log._replace(commitments=tuple(map(without_settings, log.commitments)))
    wrong = find_claim_mismatch(older, audited, model)
    assert wrong == "the settings of the model differ from certificate 1"


def test_certified_models_are_recomputed_from_a_bundle(tmp_path: Path) -> None:
    X, y = table(120)
    ids = np.arange(120)
    with Ledger.create(tmp_path / "home", name="audited") as ledger:
        for name, kind in (("newton", InfluenceClassifier), ("fisher", FisherClassifier)):
            ledger.models.register(kind(l2=0.05).fit(X, y, ids=ids), X, y, ids=ids, name=name)
        erase(ledger, "newton", 3, 5)
        erase(ledger, "fisher", 3, 5)
        ledger.models.retrain("newton")
        report = judged(ledger, tmp_path / "bundle")
    assert {result.model for result in report.of("V5")} == {"newton", "fisher"}
    assert (report.passed, report.skipped) == (True, ())


def test_a_certified_model_that_was_moved_fails_v5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = table(120)
    ids = np.arange(120)

    def go_back(model: Any, before: Any) -> None:
        model.model_ = before.model_.with_weights(before.model_.weights + 1.0)

    cheating(monkeypatch, go_back)
    with Ledger.create(tmp_path / "home", name="audited") as ledger:
        model = InfluenceClassifier(l2=0.05).fit(X, y, ids=ids)
        ledger.models.register(model, X, y, ids=ids, name="newton")
        erase(ledger, "newton", 3)
        by_level = verdicts(judged(ledger, tmp_path / "bundle", "V0", "V2", "V5"))
    assert by_level == {"V0": "pass", "V2": "pass", "V5": "fail"}


@pytest.mark.parametrize(
    ("forged", "verdict"),
    [({"sha256": "ab" * 32}, "fail"), ({"reason": "no-predictor"}, "fail")],
)
def test_a_forged_predictor_fails_v4(
    setup: AuditSetup, forged: dict[str, str], verdict: str
) -> None:
    bundle = copied(setup.bundle, f"predictor-{next(iter(forged))}")

    def forge(claims: Any) -> None:
        claims["predicate"]["model"]["predictor"] = forged

    rewrite(setup.ledger, bundle, forge, {})
    assert said(setup, bundle) == {"V0": "pass", "V1": "pass", "V2": "pass", "V3": "pass"} | {
        "V4": verdict
    }


def test_other_libraries_do_not_excuse_another_predictor(setup: AuditSetup) -> None:
    bundle = copied(setup.bundle, "elsewhere")

    def move(claims: Any) -> None:
        claims["predicate"]["execution"]["kernel"] = "openblas:0.0.0:other"
        claims["predicate"]["model"]["predictor"] = {"sha256": "ab" * 32}

    rewrite(setup.ledger, bundle, move, {})
    report = audit(bundle, key=setup.ledger.public_key)
    [result] = [result for result in report.of("V4") if result.verdict == "skipped"]
    assert "predictor" in result.reason
    assert report.verdict == "incomplete"


def test_a_certified_models_forged_predictor_fails_v5(tmp_path: Path) -> None:
    X, y = table(120)
    ids = np.arange(120)
    with Ledger.create(tmp_path / "home", name="audited") as ledger:
        model = InfluenceClassifier(l2=0.05).fit(X, y, ids=ids)
        ledger.models.register(model, X, y, ids=ids, name="newton")
        erase(ledger, "newton", 3)
        bundle = ledger.export(tmp_path / "bundle", tier="auditor")
        honest = audit(bundle, key=ledger.public_key)

        def forge(claims: Any) -> None:
            claims["predicate"]["model"]["predictor"] = {"sha256": "ab" * 32}

        rewrite(ledger, bundle, forge, {})
        report = audit(bundle, key=ledger.public_key)
    assert honest.passed
    assert [result.verdict for result in report.of("V5")] == ["pass", "fail"]


def test_residue_in_a_store_fails_v3(setup: AuditSetup, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "people.txt").write_text("person: planted-canary-0042\n")
    options: dict[str, Any] = {"stores": {"backup": tmp_path / "backup"}}
    assert said(setup, setup.bundle, markers=["planted-canary-0042"], **options)["V3"] == "fail"
    assert said(setup, setup.bundle, markers=["planted-canary-0043"], **options)["V3"] == "pass"


def test_a_model_that_is_nonsense_fails_v4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cheating(monkeypatch, lambda model, _: vars(model).update(rows_=None))
    monkeypatch.setattr(certify, "_check_statement", lambda *_: None)
    with ledger_of(tmp_path / "home", "naive") as ledger:
        erase(ledger, "naive", 3)
        by_level = verdicts(judged(ledger, tmp_path / "bundle"))
    assert (by_level["V0"], by_level["V2"], by_level["V4"]) == ("pass", "pass", "fail")


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not a folder"):
        audit(tmp_path / "nothing", key="11" * 32)


def test_unknown_levels_are_refused(setup: AuditSetup) -> None:
    with pytest.raises(ValueError, match="V9"):
        said(setup, setup.bundle, levels=["V9"])


def test_a_public_bundle_says_what_it_cannot_show(setup: AuditSetup, tmp_path: Path) -> None:
    bundle = setup.ledger.export(tmp_path / "public")
    by_level = said(setup, bundle)
    assert (by_level["V0"], by_level["V2"], by_level["V4"]) == ("pass", "skipped", "skipped")


def test_measures_of_the_auditor_run_on_the_rederived_model(setup: AuditSetup) -> None:
    def disagreement(model: Any, rederived: Any, rows: Rows) -> float:
        return float(np.mean(model.predict(rows.X) != rederived.predict(rows.X)))

    measures: dict[str, Any] = {
        "disagreement": disagreement,
        "is-a-copy": lambda model, rederived, _: model.digest() == rederived.digest(),
        "fails": lambda *_: False,
    }
    report = audit(setup.bundle, key=setup.ledger.public_key, measures=measures)
    outcomes = {result.reason.split(":")[0]: result.verdict for result in report.of("own")}
    assert outcomes == {"disagreement = 0": "pass", "is-a-copy": "pass", "fails": "fail"}


def test_an_export_to_an_auditor_is_an_event(setup: AuditSetup) -> None:
    lines = (setup.bundle / "events.jsonl").read_text().splitlines()
    assert sum('"kind":"export"' in line for line in lines) == 2


def test_a_bundle_is_not_written_over_something(setup: AuditSetup) -> None:
    with pytest.raises(FileExistsError, match="not empty"):
        setup.ledger.export(setup.bundle)
