"""An operator who signs and logs whatever is wanted: rows, order, seeds, claims, hidden bytes."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.naive_bayes import GaussianNB

from letheon import (
    DeltaGradClassifier,
    InfluenceClassifier,
    NaiveUnlearner,
    state,
)
from letheon.audit import Canaries, audit
from letheon.audit._bundle import Bundle
from letheon.audit._levels import check_data
from letheon.data import Rows
from letheon.exceptions import LedgerError
from letheon.ledger import Ledger
from letheon.ledger.certificates import bundle as _bundle
from letheon.ledger.certificates import certify
from letheon.ledger.models.examine import fresh_fit
from letheon.ledger.worker import compute, worker
from tests.audit.bundles import (
    KINDS,
    computing,
    copied,
    erase,
    judged,
    ledger_of,
    reindex,
    resign,
    signing,
    verdicts,
)
from tests.audit.people import table

IDS = np.arange(60)
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_kept_all_people_fails_v4_with_its_own_rows(
    kind: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    """The erased row is in the model and in rows.blob, so that a fresh fit agrees."""
    honest, kept = compute._erase_rows, []

    def keep(job: Any, work: Any, *rest: Any) -> None:
        before = copy.deepcopy(work.model)
        kept.append(job.rows)
        honest(job, work, *rest)
        work.model = before

    monkeypatch.setattr(compute, "_erase_rows", keep)
    with ledger_of(tmp_path / "home", kind) as ledger:
        erase(ledger, kind, 3)
        bundle = ledger.export(tmp_path / "bundle", tier="auditor")
        path = bundle / "models" / "default" / kind / "rows.blob"
        path.write_bytes(bytes(32) + bytes(kept[0]))
        reindex(ledger, bundle)
        report = audit(bundle, key=ledger.public_key, levels=("V0", "V4"))
    assert verdicts(report) == {"V0": "pass", "V2": "fail", "V4": "fail"}


@pytest.mark.parametrize("kind", KINDS)
def test_another_order_of_the_rows_fails_v2_and_v4(
    kind: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    def permute(_: Any, product: Any) -> Any:
        order = np.random.default_rng(7).permutation(len(product.rows))
        rows = product.rows.take(order)
        fresh = fresh_fit(state.decode(product.model), rows).model
        return dataclasses.replace(
            product, model=state.encode(fresh), rows=rows, kept=product.kept[order]
        )

    computing(monkeypatch, permute)
    monkeypatch.setattr(certify, "reject_false_predictor", lambda *_: None)
    with ledger_of(tmp_path / "home", kind) as ledger:
        erase(ledger, kind, 3)
        report = judged(ledger, tmp_path / "bundle", "V0", "V4")
    assert verdicts(report) == {"V0": "pass", "V2": "fail", "V4": "fail"}
    assert "not in the order that they had at registration" in report.failures[0].reason


def test_a_category_that_no_row_has_fails_v2(tmp_path: Path, monkeypatch: Patch) -> None:
    kinds = [f"c{number % 3}" for number in range(60)]
    kinds[3] = "only-of-the-erased"
    X = pd.DataFrame({"a": table(60)[0][:, 0], "kind": pd.Categorical(kinds)})

    def keep_the_name(_: Any, product: Any) -> Any:
        rows, frame = product.rows, product.rows.X.copy()
        frame["kind"] = frame["kind"].cat.add_categories(["only-of-the-erased"])
        return dataclasses.replace(product, rows=Rows(frame, rows.y, rows.ids, rows.extra))

    model = NaiveUnlearner(DummyClassifier(), random_state=1).fit(X, table(60)[1], ids=IDS)
    for name, change in (("honest", None), ("spoilt", keep_the_name)):
        with monkeypatch.context() as patch, Ledger.create(tmp_path / name, name="audited") as own:
            if change is not None:
                computing(patch, change)
            own.models.register(model, X, table(60)[1], ids=IDS, name="m")
            erase(own, "m", 3)
            by_level = verdicts(judged(own, tmp_path / f"{name}-bundle", "V0", "V2"))
        assert by_level == {"V0": "pass", "V2": "pass" if change is None else "fail"}


def test_a_setting_that_changed_fails_v4(tmp_path: Path, monkeypatch: Patch) -> None:
    def tune(_: Any, product: Any) -> Any:
        model = state.decode(product.model).set_params(estimator__var_smoothing=0.5)
        fresh = fresh_fit(model, product.rows).model
        return dataclasses.replace(product, model=state.encode(fresh))

    with registered(tmp_path / "home", "naive") as ledger:
        erase(ledger, "naive", 3)
        computing(monkeypatch, tune)
        monkeypatch.setattr(certify, "_check_statement", lambda *_: None)
        erase(ledger, "naive", 5)
        report = judged(ledger, tmp_path / "bundle", "V0", "V4")
    assert verdicts(report) == {"V0": "pass", "V4": "fail"}
    assert "those at its registration" in report.failures[0].reason


def test_another_number_of_rows_than_stated_fails_v2(tmp_path: Path) -> None:
    with registered(tmp_path / "home", "naive") as ledger:
        erase(ledger, "naive", 3)
        bundle, key = ledger.export(tmp_path / "bundle", tier="auditor"), ledger.public_key
    audited = Bundle(bundle, key).models[0]
    assert check_data(audited).verdict == "pass"
    audited.newest.statement["predicate"]["dataset"]["liveAfter"] = 60
    assert check_data(audited).reason == "the bundle has 59 rows, the certificate says 60"


def boast_of_kind(claims: dict[str, Any]) -> None:
    claims["guarantee"] |= {"kind": "exact", "assumptions": []}
    claims["guarantee"]["accounting"]["rule"] = "exact-history-independent-v1"


def boast_of_requests(claims: dict[str, Any]) -> None:
    claims["guarantee"]["requests"] = "adaptive"


def boast_of_releases(claims: dict[str, Any]) -> None:
    claims["guarantee"]["releases"] = "every-version"


def boast_of_assumptions(claims: dict[str, Any]) -> None:
    claims["guarantee"]["assumptions"] = []


def boast_of_proof(claims: dict[str, Any]) -> None:
    proved = {"metric": "speedup", "value": "9999", "n": 0, "basis": "by-proof"}
    claims["measurements"]["efficiency"] = proved


def boast_of_another_text(claims: dict[str, Any]) -> None:
    claims["method"]["definition"]["sha256"] = "00" * 32


def boast_of_replay(claims: dict[str, Any]) -> None:
    claims["execution"]["replay"] = "bitwise"


def hide_a_limit(claims: dict[str, Any]) -> None:
    claims["notClaimed"].remove("batch-of-one")


MODELS: dict[str, Callable[[], Any]] = {
    "naive": KINDS["naive"],
    "newton": lambda: InfluenceClassifier(l2=0.05),
    "deltagrad": lambda: DeltaGradClassifier(random_state=1),
}


def registered(folder: Path, kind: str) -> Ledger:
    X, y = table(60)
    ledger = Ledger.create(folder, name="audited")
    ledger.models.register(MODELS[kind]().fit(X, y, ids=IDS), X, y, ids=IDS, name=kind)
    return ledger


@pytest.mark.parametrize(
    ("kind", "boast"),
    [
        ("naive", boast_of_requests),
        ("naive", boast_of_releases),
        ("naive", boast_of_assumptions),
        ("naive", boast_of_proof),
        ("naive", boast_of_replay),
        ("naive", boast_of_another_text),
        ("naive", hide_a_limit),
        ("newton", boast_of_releases),
        ("newton", boast_of_kind),
        ("deltagrad", boast_of_kind),
    ],
)
def test_a_boast_that_was_signed_at_once_fails(
    kind: str, boast: Any, tmp_path: Path, monkeypatch: Patch
) -> None:
    signing(monkeypatch, boast)
    with registered(tmp_path / "home", kind) as ledger:
        erase(ledger, kind, 3)
        report = judged(ledger, tmp_path / "bundle")
    assert not report.passed
    assert {result.level for result in report.failures} <= {"V0", "V4", "V5"}
    reasons = [result.reason for result in report.failures if result.level != "V0"]
    assert reasons
    assert all("claims more than the model permits" in reason for reason in reasons)


def test_a_boast_in_an_older_certificate_fails(tmp_path: Path, monkeypatch: Patch) -> None:
    with registered(tmp_path / "home", "newton") as ledger:
        with monkeypatch.context() as patch:
            signing(patch, boast_of_releases)
            erase(ledger, "newton", 3)
        erase(ledger, "newton", 5)
        by_level = verdicts(judged(ledger, tmp_path / "bundle"))
    assert (by_level["V0"], by_level["V5"]) == ("pass", "fail")


def hide_an_attribute(model: Any, row: bytes) -> None:
    model.note_ = b"erased: " + row


def hide_in_a_bit_of_the_rows(model: Any, _: bytes) -> None:
    model.rows_.X[0, 0] = np.nextafter(model.rows_.X[0, 0], 9.0)


def hide_in_a_label(model: Any, _: bytes) -> None:
    model.rows_.y[0] = 1 - model.rows_.y[0]


@pytest.mark.parametrize("hide", [hide_an_attribute, hide_in_a_bit_of_the_rows, hide_in_a_label])
@pytest.mark.parametrize(("kind", "level"), [("newton", "V5"), ("deltagrad", "V4")])
def test_what_is_hidden_in_a_model_with_noise_is_found(
    kind: str, level: str, hide: Any, tmp_path: Path, monkeypatch: Patch
) -> None:
    def spoil(job: Any, product: Any) -> Any:
        model = state.decode(product.model)
        hide(model, state.decode(job.rows).X[3].tobytes())
        return dataclasses.replace(product, model=state.encode(model))

    computing(monkeypatch, spoil)
    with registered(tmp_path / "home", kind) as ledger:
        erase(ledger, kind, 3)
        report = judged(ledger, tmp_path / "bundle", "V0", level)
    assert verdicts(report) == {"V0": "pass", level: "fail"}
    assert "a fresh fit does not have what the file has" in report.failures[0].reason


@pytest.mark.parametrize(("kind", "level"), [("newton", "V5"), ("deltagrad", "V4")])
def test_an_honest_model_with_noise_is_no_false_alarm(
    kind: str, level: str, tmp_path: Path
) -> None:
    with registered(tmp_path / "home", kind) as ledger:
        erase(ledger, kind, 3)
        erase(ledger, kind, 5, 7)
        report = judged(ledger, tmp_path / "bundle", "V0", level)
        ledger.models.retrain(kind)
        retrained = judged(ledger, tmp_path / "retrained", "V0", level)
    wanted = "pass" if level == "V5" else "skipped"
    assert verdicts(report)[level] == verdicts(retrained)[level] == wanted


class Retrain(NaiveUnlearner):
    """A class outside letheon whose method has the name of a retrain."""

    facts = dataclasses.replace(NaiveUnlearner.facts, method="retrain")


def test_a_method_that_is_called_retrain_does_not_break_the_chain(tmp_path: Path) -> None:
    X, y = table(60)
    with Ledger.create(tmp_path / "home", name="audited") as ledger:
        model = Retrain(GaussianNB(), random_state=1).fit(X, y, ids=IDS)
        ledger.models.register(model, X, y, ids=IDS, name="m", trusted=(Retrain,))
        erase(ledger, "m", 3)
        erase(ledger, "m", 4)
        report = judged(ledger, tmp_path / "bundle", trusted=(Retrain,))
    assert (report.passed, report.skipped) == (True, ())
    assert report.subjects[0]["method"] == "tests.audit.test_forgery.retrain"
    assert "method-checked-by-letheon" in report.subjects[0]["notClaimed"]


def test_unknown_ids_are_an_error(tmp_path: Path) -> None:
    with registered(tmp_path / "home", "naive") as ledger:
        erase(ledger, "naive", 3)
        bundle, key = ledger.export(tmp_path / "bundle", tier="auditor"), ledger.public_key
        public = ledger.export(tmp_path / "public")
    X, y = table(20)
    planted = Canaries(X[:10], y[:10], X[10:], y[10:])
    with pytest.raises(
        ValueError, match=r"models \['typo'\]; models with certificates: \['naive'\]"
    ):
        audit(bundle, key=key, model="typo")
    with pytest.raises(ValueError, match=r"models \['typo'\]"):
        audit(bundle, key=key, canaries={"typo": planted})
    measures: dict[str, Any] = {"fails": lambda *_: False}
    report = audit(
        public, key=key, levels=("V0", "V6", "own"), canaries={"naive": planted}, measures=measures
    )
    assert verdicts(report) == {"V0": "pass", "V6": "skipped", "own": "skipped"}


def test_an_export_waits_for_the_certificate(tmp_path: Path, monkeypatch: Patch) -> None:
    with registered(tmp_path / "home", "naive") as ledger:
        erase(ledger, "naive", 3)
        with monkeypatch.context() as patch:
            patch.setattr(worker, "certify_next", lambda *_: None)
            erase(ledger, "naive", 5)
        with pytest.raises(LedgerError, match="has no certificate yet"):
            ledger.export(tmp_path / "early", tier="auditor")
        assert not (tmp_path / "early").exists()
        ledger.run_once(force=True)
        assert judged(ledger, tmp_path / "bundle").passed


def test_an_export_by_name_is_of_one_tenant(tmp_path: Path) -> None:
    X, y = table(60)
    with registered(tmp_path / "home", "naive") as ledger:
        model = KINDS["naive"]().fit(X, y, ids=IDS)
        ledger.models.register(model, X, y, ids=IDS, name="naive", tenant="other")
        erase(ledger, "naive", 3)
        ledger.requests.submit([4], model="naive", tenant="other", verified=True)
        ledger.run_once(force=True)
        bundle = ledger.export(tmp_path / "bundle", tier="auditor", model="naive")
    folders = sorted((bundle / "models").iterdir())
    assert [folder.name for folder in folders] == ["default"]
    modes = {path.stat().st_mode & 0o777 for path in bundle.rglob("*") if path.is_dir()}
    assert modes == {0o700}


def test_a_purge_that_ends_during_an_export_is_no_false_alarm(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    with registered(tmp_path / "home", "naive") as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(worker, "purge_next", lambda *_: False)
            erase(ledger, "naive", 3)
        honest = certify.take_checkpoint

        def overtaken(core: Any) -> Any:
            by_level = honest(core)
            assert [step.what for step in ledger.run_once(force=True)] == ["purged"]
            return by_level

        monkeypatch.setattr(_bundle, "take_checkpoint", overtaken)
        by_level = verdicts(judged(ledger, tmp_path / "bundle", "V0", "V1", "V3"))
    assert by_level == {"V0": "pass", "V1": "pass", "V3": "skipped"}


def test_a_purge_of_nothing_fails_v3(tmp_path: Path) -> None:
    with registered(tmp_path / "home", "naive") as ledger:
        erase(ledger, "naive", 3)
        bundle = ledger.export(tmp_path / "bundle", tier="auditor")
        for number, what in enumerate(("salts", "scanner", "bytes")):
            forged = copied(bundle, f"forged-{number}")

            def lie(statement: dict[str, Any], what: str = what) -> None:
                claims = statement["predicate"]
                if what == "salts":
                    claims["salts"]["destroyed"] = 0
                elif what == "scanner":
                    claims["scanner"]["markers"] = 0
                else:
                    claims["scanner"]["bytes"] += 1

            resign(ledger, forged / "purges" / "000001.json", lie)
            reindex(ledger, forged)
            report = audit(forged, key=ledger.public_key, levels=("V0", "V3"))
            assert verdicts(report) == {"V0": "pass", "V3": "fail"}


def test_a_request_that_is_left_lying_fails_v1(tmp_path: Path) -> None:
    X, y = table(60)
    now = [1_794_744_000]
    with Ledger.create(tmp_path / "home", name="audited", clock=lambda: now[0]) as ledger:
        ledger.models.register(KINDS["naive"]().fit(X, y, ids=IDS), X, y, ids=IDS, name="naive")
        erase(ledger, "naive", 3)
        ledger.requests.submit([4], model="naive")  # not verified yet
        held_back = ledger.requests.submit([5], model="naive", verified=True)
        ledger.requests.hold(held_back.id, "gdpr.art17.3.e", "2030-01-01")
        ledger.requests.submit([6], model="naive", verified=True)
        assert judged(ledger, tmp_path / "early", "V0", "V1").passed
        now[0] += 60 * 86_400
        report = judged(ledger, tmp_path / "late", "V0", "V1")
    [late] = report.failures
    assert late.reason.startswith("recorded requests that are past the deadline")
    counted = {"on_hold": 1, "purged": 1, "queued": 1, "received": 1}
    assert late.details == {"requests": counted}


def test_unverified_requests_are_reported_and_do_not_fail_v1(tmp_path: Path) -> None:
    X, y = table(60)
    now = [1_794_744_000]
    with Ledger.create(tmp_path / "home", name="audited", clock=lambda: now[0]) as ledger:
        ledger.models.register(KINDS["naive"]().fit(X, y, ids=IDS), X, y, ids=IDS, name="naive")
        ledger.requests.submit([4], model="naive")
        ledger.requests.await_identity(
            ledger.requests.submit([5], model="naive").id
        )  # its clock stands
        now[0] += 60 * 86_400
        erase(ledger, "naive", 3)
        [_, finding] = judged(ledger, tmp_path / "bundle", "V0", "V1").of("V1")
    assert finding.verdict == "pass"
    assert finding.reason == (
        "recorded requests: 3; no verified request is past its deadline "
        "(unverified and past the deadline: 1)"
    )


def test_requests_that_were_answered_in_time_pass_v1(tmp_path: Path) -> None:
    with registered(tmp_path / "home", "naive") as ledger:
        erase(ledger, "naive", 3)
        request = ledger.requests.submit([4], model="naive")
        ledger.requests.reject(request.id, "gdpr.art12.6")
        [_, finding] = judged(ledger, tmp_path / "bundle", "V0", "V1").of("V1")
    assert finding.details == {"requests": {"purged": 1, "rejected": 1}}
