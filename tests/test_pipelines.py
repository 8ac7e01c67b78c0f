"""Whole pipelines: after any forget and learn, the pipeline has the digest of a fresh fit."""

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import Normalizer
from sklearn.random_projection import GaussianRandomProjection

from letheon import (
    BoostingClassifier,
    DaREForestClassifier,
    DaREForestRegressor,
    DataIndependent,
    ForgetPipeline,
    compose,
)
from letheon.chain import ChainPlan, apply_chain
from letheon.compose import clone_unfitted
from letheon.delta import StepPlan
from letheon.exceptions import LetheonError
from letheon.forest import StoredRows
from letheon.preprocessing import (
    ForgetColumnTransformer,
    OneHotEncoder,
    StandardScaler,
)
from letheon.state import encode
from letheon.sums import Ridge, RidgeClassifier
from tests.pipelines.drawn import RECIPES, REQUESTS, DrawnPipeline, HostilePeople, run_recipe

N_EXAMPLES = max(2_000, 20 * settings().max_examples)


@given(recipe=RECIPES, seed=st.integers(0, 10**6), requests=REQUESTS)
@settings(max_examples=N_EXAMPLES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_sequence_ends_in_a_fresh_fit(
    recipe: DrawnPipeline, seed: int, requests: list[Any]
) -> None:
    model, fresh, remaining = run_recipe(recipe, seed, requests)
    assert model.digest() == fresh.digest()
    method = "predict" if hasattr(model, "predict") else "transform"
    answers = [getattr(fitted, method)(remaining.X) for fitted in (model, fresh)]
    assert np.array_equal(*answers)


def usual_people(n_rows: int = 300) -> HostilePeople:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=n_rows), "b": rng.choice(["x", "y"], n_rows)})
    return HostilePeople(
        X, np.array(["no", "yes"])[rng.integers(2, size=n_rows)], np.arange(n_rows)
    )


def usual_pipeline(model: Any) -> ForgetPipeline:
    columns = ForgetColumnTransformer(
        [
            ("a", StandardScaler(random_state=1), ["a"]),
            ("b", OneHotEncoder(sparse_output=False, handle_unknown="ignore"), ["b"]),
        ]
    )
    return ForgetPipeline([("columns", columns), ("model", model)])


def test_most_requests_change_nothing_but_the_rows() -> None:
    people = usual_people()
    forest = DaREForestClassifier(n_estimators=3, max_depth=4, random_state=0)
    model = usual_pipeline(forest).fit(*people[:2], ids=people.ids)
    receipts = [model.forget([k]) for k in range(60)]
    assert sum("models" in receipt.rebuilt for receipt in receipts) <= 6
    assert np.median([receipt.work for receipt in receipts]) < 0.2


def test_a_vanished_category_is_counted_and_leaves_no_trace() -> None:
    people = usual_people()
    people.X.loc[7, "b"] = "rare value"
    model = usual_pipeline(RidgeClassifier(random_state=2)).fit(*people[:2], ids=people.ids)
    names = model["columns"].get_feature_names_out().tolist()
    assert "b__b_rare value" in names
    model.forget([7])
    assert model["columns"].get_feature_names_out().tolist() == ["a__a", "b__b_x", "b__b_y"]
    assert model["model"].n_features_in_ == 3
    assert b"rare value" not in encode(model)


def test_a_forest_behind_a_stateless_step_has_the_names_of_its_new_columns() -> None:
    """The step knew the number of its old columns only, so the forest was fitted without names."""
    people = usual_people()
    people.X.loc[7, "b"] = "rare value"
    forest = DaREForestClassifier(n_estimators=2, max_depth=3, random_state=0)
    model = usual_pipeline(forest)
    model.steps.insert(1, ("norm", Normalizer()))
    model.fit(*people[:2], ids=people.ids)
    model.forget([7])
    rest = people.take(people.ids != 7)
    assert model.digest() == clone_unfitted(model).fit(*rest[:2], ids=rest.ids).digest()


def test_the_work_of_a_chain_is_that_of_its_busiest_step() -> None:
    plans = [StepPlan(published=None, work=work) for work in (0.2, 1.0, 0.0)]
    assert ChainPlan(tuple(plans)).work == 1.0


def test_an_accident_changes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    people = usual_people()
    model = usual_pipeline(RidgeClassifier(random_state=2)).fit(*people[:2], ids=people.ids)
    before = model.digest()

    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(RidgeClassifier, "_prepare_delta", fail)
    with pytest.raises(MemoryError):
        model.forget([3])
    with pytest.raises(MemoryError):
        model.learn(people.X[:2], people.y[:2], ids=[3, 400])
    assert model.digest() == before
    assert model.n_rows_ == len(people.y)


@pytest.mark.parametrize("make", [BoostingClassifier, DaREForestClassifier])
def test_an_accident_in_the_model_changes_no_step(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The encoder had forgotten already, and the model and the rows had not."""
    people = usual_people()
    last = make(n_estimators=2, random_state=0)
    model = usual_pipeline(last).fit(*people[:2], ids=people.ids)
    before = model.digest()

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(StoredRows, "_read_leaving", fail)
        with pytest.raises(MemoryError):
            model.forget([3])
    assert model.digest() == before
    model.forget([3])
    rest = people.take(people.ids != 3)
    assert model.digest() == clone_unfitted(model).fit(*rest[:2], ids=rest.ids).digest()
    assert len(model.predict(people.X)) == len(people.y)


def test_a_declared_projection_gives_the_same_bits_for_one_row_and_for_many() -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(500, 60)), rng.integers(2, size=500)

    def fit(chosen: Any) -> ForgetPipeline:
        project = DataIndependent(GaussianRandomProjection(7, random_state=3))
        scale, model = StandardScaler(random_state=1), RidgeClassifier(random_state=2)
        steps = [("scale", scale), ("project", project), ("model", model)]
        return ForgetPipeline(steps).fit(X[chosen], y[chosen], ids=chosen)

    model = fit(np.arange(500))
    for person in range(40):
        model.forget([person])
    assert model.digest() == fit(np.arange(40, 500)).digest()


def test_steps_by_name_and_number() -> None:
    people = usual_people()
    model = usual_pipeline(RidgeClassifier(random_state=2))
    assert model["model"] is model.steps[1][1]
    model.fit(*people[:2], ids=people.ids)
    assert model["model"] is model[1] is model.named_steps["model"] is model.steps_[1][1]
    every: Any = slice(-1)
    with pytest.raises(TypeError, match="has no slices; name a step"):
        model[every]
    assert len(model.decision_function(people.X)) == len(people.y)


def test_a_step_does_not_forget_alone() -> None:
    people = usual_people()
    model = usual_pipeline(RidgeClassifier(random_state=2)).fit(*people[:2], ids=people.ids)
    with pytest.raises(LetheonError, match="forget or learn of the pipeline"):
        model["model"].forget([3])


def test_other_columns_are_refused() -> None:
    people = usual_people()
    model = usual_pipeline(RidgeClassifier(random_state=2)).fit(*people[:2], ids=people.ids)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(people.X.rename(columns={"a": "c"}))
    with pytest.raises(ValueError, match="feature names should match"):
        model.learn(people.X[["b", "a"]][:1], people.y[:1], ids=[1])


def test_answers_during_a_change_are_of_one_state() -> None:
    """A prediction that overlaps a commit is made again, from the state after it."""
    people = usual_people()
    people.X.loc[:149, "a"] += 100.0  # so that the scaler changes with these rows
    model = usual_pipeline(RidgeClassifier(random_state=2)).fit(*people[:2], ids=people.ids)
    scaler = model["columns"].named_transformers_["a"]
    original = type(scaler)._transform_with
    calls: list[int] = []

    def transform(self: Any, published: Any, X: Any) -> Any:
        if not calls:
            calls.append(1)
            model.forget(list(range(150)))
        return original(self, published, X)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(scaler), "_transform_with", transform)
        answer = model.decision_function(people.X)
    assert np.array_equal(answer, model.decision_function(people.X))


@pytest.mark.parametrize(
    "last", [Ridge(random_state=0), DaREForestRegressor(n_estimators=2, random_state=0)]
)
def test_a_prediction_that_begins_during_a_commit_waits_for_it(
    last: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was that of a new scaler and an old model."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    X[0] = 1e4
    steps = [("scale", StandardScaler(random_state=0)), ("model", last)]
    model = ForgetPipeline(steps).fit(X, X[:, 1], ids=range(60))
    answers: list[Any] = []
    reader = threading.Thread(target=lambda: answers.append(model.predict(X)))

    def apply_and_read(*arguments: Any) -> None:
        apply_chain(*arguments)
        reader.start()
        reader.join(0.2)

    monkeypatch.setattr(compose, "apply_chain", apply_and_read)
    model.forget([0])
    reader.join()
    assert np.array_equal(answers[0], model.predict(X))


def test_a_pipeline_claims_no_more_than_its_weakest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = np.arange(20.0)[:, None], np.arange(20) % 2
    model = ForgetPipeline([("scale", StandardScaler()), ("model", RidgeClassifier())]).fit(X, y)
    weak = replace(model["model"].guarantee_, kind="empirical", reference="none")
    assert weak.kind != model.guarantee_.kind
    monkeypatch.setattr(StandardScaler, "_make_guarantee", lambda _: weak)
    assert model.guarantee_.kind == "empirical"
