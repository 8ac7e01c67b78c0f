"""Boosting in the ledger and in audits: alone, at the end of a pipeline, and behind an encoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline

import letheon
from letheon import BoostingClassifier, BoostingRegressor, ForgetPipeline
from letheon.audit import audit
from letheon.ledger import Ledger
from letheon.preprocessing import ForgetColumnTransformer, OneHotEncoder
from letheon.table_pipeline import list_treatments, make_table_pipeline
from tests.audit.bundles import verdicts
from tests.pipelines.people import LEAVING, PEOPLE, fit_pipeline, mixed_frame, target

SMALL: dict[str, Any] = {"n_estimators": 6, "n_chains": 2, "random_state": 0}


def forget_in_a_ledger(folder: Path, model: Any, y: Any) -> Any:
    """Register, request, apply, certify, purge and audit; return the verdicts and the model."""
    rows = (mixed_frame(), y)
    with Ledger.create(folder / "home", name="mixed") as ledger:
        ledger.models.register(model.fit(*rows, ids=PEOPLE), *rows, ids=PEOPLE, name="m")
        ledger.requests.submit(LEAVING, model="m", verified=True)
        steps = ledger.run_once(force=True, model="m")
        assert [step.what for step in steps] == ["applied", "certified", "purged"]
        report = audit(ledger.export(folder / "bundle", tier="auditor"), key=ledger.public_key)
        return verdicts(report), ledger.models.load("m")


@pytest.mark.parametrize(
    "make",
    [
        lambda: BoostingClassifier(**SMALL),
        lambda: BoostingClassifier(**SMALL, rebuild="eager", skeleton_people=40),
        lambda: make_table_pipeline(BoostingClassifier(**SMALL), mixed_frame()),
    ],
    ids=["lazy", "eager", "pipeline"],
)
def test_a_classifier_forgets_in_the_ledger_and_is_audited(make: Any, tmp_path: Path) -> None:
    frame = mixed_frame()
    y = target(frame)
    checked, model = forget_in_a_ledger(tmp_path, make(), y)
    assert {"V4"} <= checked.keys()
    assert set(checked.values()) == {"pass"}
    stay = ~np.isin(PEOPLE, LEAVING)
    fresh = make().fit(frame[stay], y[stay], ids=np.array(PEOPLE)[stay])
    assert fresh.digest() == model.digest()


def test_a_regressor_forgets_in_the_ledger_and_is_audited(tmp_path: Path) -> None:
    frame = mixed_frame()
    checked, _ = forget_in_a_ledger(tmp_path, BoostingRegressor(**SMALL), frame["age"].to_numpy())
    assert set(checked.values()) == {"pass"}


def test_a_table_pipeline_hands_over_the_columns_as_they_are() -> None:
    model = fit_pipeline("boosting")
    treatments = list_treatments(model)
    assert [item.column for item in treatments] == list(mixed_frame().columns)
    assert {item.steps for item in treatments} == {"unchanged"}


def encode_city() -> ForgetPipeline:
    columns = ForgetColumnTransformer(
        [("city", OneHotEncoder(handle_unknown="ignore"), ["city"])], remainder="passthrough"
    )
    return ForgetPipeline([("columns", columns), ("model", BoostingClassifier(**SMALL))])


def test_a_category_that_leaves_an_encoder_means_a_fresh_fit_and_without_one_it_does_not() -> None:
    frame = mixed_frame().drop(columns="plan")
    y = target(frame)
    only_in_bern = [PEOPLE[3]]
    encoded = encode_city().fit(frame, y, ids=PEOPLE)
    assert encoded.forget(only_in_bern).rebuilt["models"] == 1
    native = make_table_pipeline(BoostingClassifier(**SMALL, skeleton_people=20), frame)
    native.fit(frame, y, ids=PEOPLE)
    assert "models" not in native.forget(only_in_bern).rebuilt
    stay = np.array(PEOPLE) != PEOPLE[3]
    fresh = encode_city().fit(frame[stay], y[stay], ids=np.array(PEOPLE)[stay])
    assert fresh.digest() == encoded.digest()


def test_a_converted_booster_takes_raw_categories(tmp_path: Path) -> None:
    booster = HistGradientBoostingClassifier(max_iter=6)
    model, _ = letheon.convert(make_pipeline(booster), return_report=True, random_state=0)
    checked, _ = forget_in_a_ledger(tmp_path, model, target(mixed_frame()))
    assert set(checked.values()) == {"pass"}
