"""`choose`, `evaluate`, `Monitor` and what-if take a mixed data frame and pipelines on it."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.preprocessing import StandardScaler

from letheon import DaREForestClassifier, InfluenceClassifier, NaiveUnlearner, evaluate, state
from letheon.compose import ForgetPipeline
from letheon.data import as_frame
from letheon.datasets import Requests
from letheon.evaluation import usual_models
from letheon.exceptions import CannotForgetError
from letheon.guarantee import TrainingSize
from letheon.ledger.models.examine import copy_rows
from letheon.monitor import Calibration, Monitor
from letheon.scoring import infer_task
from letheon.select import Need, Tolerances, choose, default_candidates
from letheon.select._candidates import add_preprocessing
from letheon.service.what_if import WhatIfOrder, measure_methods
from letheon.table_pipeline import (
    list_treatments,
    make_model,
    make_table_pipeline,
    needs_pipeline,
)
from tests.pipelines.people import PEOPLE, N, fit_pipeline, make_pipeline, mixed_frame, target


@pytest.mark.parametrize(
    ("table", "is_needed"),
    [
        (pd.DataFrame({"a": [1.0, 2.0], "b": [True, False]}), False),
        (pd.DataFrame({"a": [1.0, None]}), True),
        (pd.DataFrame({"a": ["x", "y"]}), True),
        (np.array([[1.0, np.nan]]), True),
        (np.array([["a", 1]], object), True),
        (np.eye(2), False),
        (np.zeros((2, 3, 3)), False),
    ],
)
def test_only_categories_and_missing_values_need_a_pipeline(table: Any, is_needed: bool) -> None:
    assert needs_pipeline(table) is is_needed


def test_the_preprocessing_depends_on_types_and_not_on_values() -> None:
    """A fresh table without missing values has the same pipeline."""
    frame = mixed_frame()
    gaps, full = (
        make_table_pipeline(InfluenceClassifier(), table) for table in (frame, frame.dropna())
    )
    assert repr(gaps) == repr(full)


def test_a_forest_is_not_scaled_and_a_linear_model_is() -> None:
    kinds = {kind: {item.steps for item in list_treatments(fit_pipeline(kind))} for kind in FITTED}
    assert kinds["dare"] == {"SimpleImputer", "OneHotEncoder"}
    assert kinds["ridge"] == {"SimpleImputer, StandardScaler", "OneHotEncoder"}
    assert list_treatments(DaREForestClassifier()) == []


FITTED = ("dare", "ridge")


def test_models_follow_the_task() -> None:
    assert infer_task(["yes", "no"]) == infer_task([0.0, 1.0, 1.0]) == "classification"
    assert infer_task([0.5, 1.0]) == infer_task(np.arange(30.0)) == "regression"
    assert type(make_model("ridge", "regression")).__name__ == "Ridge"
    with pytest.raises(ValueError, match="expected one of"):
        make_model("magic", "regression")  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [None, "dare", StandardScaler()])
def test_a_pipeline_for_a_model_that_cannot_forget_is_refused(model: Any) -> None:
    with pytest.raises(CannotForgetError, match="expected a model of letheon"):
        make_table_pipeline(model, mixed_frame())


def test_a_frame_takes_the_types_of_another() -> None:
    typed = mixed_frame()
    typed["plan"] = typed["plan"].cat.reorder_categories(["gold", "basic"], ordered=True)
    typed["visits"] = typed["visits"].astype("Int64")
    plain = typed.astype({"plan": object, "visits": "float64"})
    back = as_frame(plain).as_types_of(as_frame(typed)).to_native()
    pd.testing.assert_frame_equal(back, typed)
    other = as_frame(plain[["age", "city"]])
    assert other.as_types_of(as_frame(typed)) is other


def test_default_candidates_become_pipelines_with_the_same_values() -> None:
    frame, size = mixed_frame(), TrainingSize(N, 1)
    (ordinary,) = usual_models(frame, is_regression=False, seed=0, family="forest")
    plain, _ = default_candidates(Need(), "classification", ordinary)
    wrapped = add_preprocessing(plain, frame, size)
    assert len(wrapped) == len(plain)
    for name, candidate in plain.items():
        if name.startswith("SISA"):
            assert wrapped[name] is candidate
            continue
        twin = wrapped[f"ForgetPipeline of {name}"]
        assert isinstance(twin.estimator, ForgetPipeline)
        assert candidate.facts.certificate == twin.facts.certificate
        for mine, theirs in zip(twin.ranges(size), candidate.ranges(size), strict=True):
            assert mine == {f"model__{key}": values for key, values in theirs.items()}
    assert add_preprocessing(plain, np.eye(3), size) is plain


def test_choose_proposes_a_pipeline_for_a_mixed_frame() -> None:
    frame = mixed_frame()
    (ordinary,) = usual_models(frame, is_regression=False, seed=0, family="forest")
    assert isinstance(ordinary[-1], RandomForestClassifier)
    comparison = choose(
        (frame, target(frame)),
        need=Need(family="forest", guarantee="exact"),
        tolerances=Tolerances(effectiveness=0.5, certifiability=None),
        ordinary=ordinary.set_params(randomforestclassifier__n_estimators=5),
        requests=Requests(n=2),
        cv=2,
        canaries=False,
    )
    results = {result.candidate: result for result in comparison.tried}
    pipeline = results["ForgetPipeline of DaREForestClassifier"]
    assert (pipeline.verdict, pipeline.evaluation.equal_digests) == ("within", True), comparison
    boosting = results["ForgetPipeline of BoostingClassifier"]
    assert set(boosting.settings) == {"model__skeleton_people"}
    assert boosting.evaluation.equal_digests is True
    assert "ForgetPipeline of InfluenceClassifier" in comparison.excluded


@pytest.mark.parametrize("kind", ["dare", "boosting", "influence"])
def test_a_pipeline_is_evaluated_like_a_model(kind: str) -> None:
    frame = mixed_frame()
    (ordinary,) = usual_models(frame, is_regression=False, seed=0, family="forest")
    evaluation = evaluate(
        make_pipeline(kind),
        (frame, target(frame), PEOPLE),
        requests=Requests(n=3),
        ordinary=ordinary.set_params(randomforestclassifier__n_estimators=5),
        seeds=3,
        canaries=False,
    )
    assert evaluation.equal_digests is (None if kind == "influence" else True)


@pytest.mark.filterwarnings("ignore::letheon.exceptions.LetheonWarning")
def test_a_pipeline_is_monitored_like_a_model() -> None:
    frame = mixed_frame()
    y, train, test = target(frame), np.arange(120), np.arange(120, N)
    ids = np.array(PEOPLE)
    model = make_pipeline("influence").fit(frame.iloc[train], y[train], ids=ids[train])
    calibration = Calibration(
        kinds=("uniform",), assume="requests come uniformly", n_streams=3, n_requests=3, n_looks=2
    )
    monitor = Monitor(
        model,
        frame.iloc[test],
        y[test],
        retrain_with=(frame.iloc[train], y[train], ids[train]),
        calibration=calibration,
        random_state=0,
    )
    monitor.forget([PEOPLE[0]])
    assert monitor.model.n_rows_ == 119


def test_what_if_measures_pipelines_on_a_mixed_frame() -> None:
    frame = mixed_frame()
    rows = copy_rows(frame, target(frame), PEOPLE)
    order = WhatIfOrder(state.encode(fit_pipeline("ridge")), state.encode(rows), (), people=2)
    heard: list[dict[str, Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measure_methods(order, heard.append)
    results = {item["row"]["method"]: item["row"] for item in heard if "row" in item}
    assert {"dare", "boosting", "influence", "sisa", "pipeline", "retrain"} <= results.keys()
    assert {row["basis"] for row in results.values()} == {"measured"}, results


def test_a_pipeline_has_the_facts_of_its_last_step() -> None:
    pipeline, forest = make_pipeline("dare"), DaREForestClassifier()
    assert pipeline.facts.strength == forest.facts.strength == "strong"
    assert pipeline.facts.applicability == forest.facts.applicability
    slow = ForgetPipeline([("scale", NaiveUnlearner(StandardScaler())), ("model", forest)])
    assert slow.facts.strength == "not stated"
