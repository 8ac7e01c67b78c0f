"""An operator who changes settings or a seed of their own choice after the registration."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from letheon import (
    DaREForestClassifier,
    ForgetPipeline,
    InfluenceClassifier,
    NaiveUnlearner,
    SISAClassifier,
)
from letheon.audit import audit
from letheon.compose import clone_unfitted
from letheon.ledger import Ledger
from letheon.ledger.db.events import record_event
from letheon.ledger.models import register as registration
from letheon.ledger.models.commitment import locate_salt
from letheon.ledger.worker import apply, compute
from letheon.preprocessing import StandardScaler
from letheon.sums import RidgeClassifier
from letheon.verifier import canonical
from tests.audit.bundles import erase, judged, reindex
from tests.audit.people import table

N = 60
Patch = pytest.MonkeyPatch


def forest() -> Any:
    return DaREForestClassifier(n_estimators=3, random_state=1)


def tree() -> Any:
    return NaiveUnlearner(DecisionTreeClassifier(random_state=3), random_state=1)


def shards() -> Any:
    return SISAClassifier(LogisticRegression(), n_shards=2, random_state=1)


def pipeline() -> Any:
    steps = [("scale", StandardScaler(random_state=1)), ("model", RidgeClassifier(random_state=2))]
    return ForgetPipeline(steps)


def newton() -> Any:
    return InfluenceClassifier(l2=0.05, random_state=1)


def register(folder: Path, model: Any) -> Ledger:
    X, y = table(N)
    ledger = Ledger.create(folder, name="audited")
    model.fit(X, y, ids=np.arange(N))
    ledger.models.register(model, X, y, ids=np.arange(N), name="m")
    return ledger


def refit_next(patch: Patch, change: dict[str, Any]) -> None:
    """At the next removal, train on the remaining rows with other settings."""
    honest: Any = compute._erase_rows

    def erase_and_refit(job: Any, work: Any, *rest: Any) -> None:
        honest(job, work, *rest)
        fresh = clone_unfitted(work.model).set_params(**change)
        X, y = work.rows.slice(0, len(work.rows))
        fresh.fit(X, y, ids=work.rows.ids.to_array())
        vars(work.model).clear()
        vars(work.model).update(vars(fresh))

    patch.setattr(compute, "_erase_rows", erase_and_refit)


SETTINGS = "the settings of the model differ from those at its registration"
SEED = "the operator changed the seed after the registration"
CHEATS: list[tuple[Any, dict[str, Any], str]] = [
    (forest, {"n_estimators": 4}, SETTINGS),
    (forest, {"random_state": 2}, SEED),
    (tree, {"estimator__max_depth": 2}, SETTINGS),
    (tree, {"estimator__random_state": 4}, SETTINGS),
    (shards, {"estimator": DecisionTreeClassifier(max_depth=2)}, SETTINGS),
    (pipeline, {"model__alpha": 3.0}, SETTINGS),
    (pipeline, {"scale__random_state": 5}, SEED),
    (newton, {"l2": 0.06}, SETTINGS),
]


@pytest.mark.parametrize(("make", "change", "reason"), CHEATS)
def test_what_changes_with_the_first_removal_fails(
    make: Any, change: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    with register(tmp_path / "home", make()) as ledger:
        refit_next(monkeypatch, change)
        erase(ledger, "m", 3)
        report = judged(ledger, tmp_path / "bundle")
    assert [finding.reason for finding in report.failures] == [reason]


@pytest.mark.parametrize("make", [forest, tree, shards, pipeline, newton])
def test_an_honest_operator_passes_before_and_after_a_retrain(make: Any, tmp_path: Path) -> None:
    with register(tmp_path / "home", make()) as ledger:
        erase(ledger, "m", 3)
        erase(ledger, "m", 4)
        assert judged(ledger, tmp_path / "first").passed
        ledger.models.retrain("m")
        erase(ledger, "m", 5)
        report = judged(ledger, tmp_path / "second")
    assert report.passed
    assert all("settings" not in result.details for result in report)


@pytest.mark.parametrize("change", ["missing", "other salt", "no salt"])
def test_without_its_salt_a_commitment_proves_nothing(change: str, tmp_path: Path) -> None:
    with register(tmp_path / "home", forest()) as ledger:
        erase(ledger, "m", 3)
        bundle = ledger.export(tmp_path / "bundle", tier="auditor")
        path = locate_salt(bundle / "models" / "default" / "m")
        assert json.loads(path.read_bytes()).keys() == {"salt"}
        if change == "missing":
            path.unlink()
        else:
            path.write_bytes(canonical({"salt": "11" * 32} if change == "other salt" else {}))
        report = audit(reindex(ledger, bundle), key=ledger.public_key)
    assert {finding.level for finding in report.failures} == {"V4"}


def test_a_commitment_does_not_show_a_short_seed(tmp_path: Path) -> None:
    """Two ledgers with the same model and seed have different commitments."""
    events = []
    for name in ("a", "b"):
        with register(tmp_path / name, forest()) as ledger:
            erase(ledger, "m", 3)
            bundle = ledger.export(tmp_path / f"bundle {name}", tier="auditor")
            lines = (bundle / "events.jsonl").read_text().splitlines()
            events.append(next(e for e in map(json.loads, lines) if e["kind"] == "registered"))
    for field in ("settings", "training"):
        assert events[0][field] != events[1][field]
        assert len(events[0][field]) == 64


@pytest.mark.parametrize("moment", ["sealed", "published"])
def test_a_registration_after_the_removal_started_fails(
    moment: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    """The operator waits for the first request, and commits to settings only then."""
    held: list[dict[str, Any]] = []

    def hold_back(_: Any, kind: str, body: dict[str, Any], at: int) -> None:
        assert kind == "registered"
        held.append(body | {"at": at})

    def record_late(conn: Any, kind: str, body: dict[str, Any], at: int, **about: Any) -> None:
        record_event(conn, kind, body, at, **about)
        if kind == moment:
            record_event(conn, "registered", held[0], at)

    monkeypatch.setattr(registration, "record_event", hold_back)
    with register(tmp_path / "home", forest()) as ledger:
        monkeypatch.setattr(apply, "record_event", record_late)
        erase(ledger, "m", 3)
        report = judged(ledger, tmp_path / "bundle")
    assert [finding.reason for finding in report.failures] == [
        "the log does not register the model before its first batch started"
    ]
