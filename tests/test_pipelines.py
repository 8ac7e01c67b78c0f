"""Whole pipelines: after any forget and learn, the pipeline has the digest of a fresh fit."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import MaxAbsScaler
from sklearn.random_projection import GaussianRandomProjection
from sklearn.tree import DecisionTreeClassifier

from letheon import DaREForestClassifier, DataIndependent, ForgetPipeline, SISAClassifier
from letheon.compose import clone_unfitted
from letheon.exceptions import EmptyModelError, LetheonError
from letheon.preprocessing import (
    ForgetColumnTransformer,
    KeyedSample,
    OneHotEncoder,
    OrdinalEncoder,
    QuantileBinner,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
    TargetEncoder,
)
from letheon.state import encode
from letheon.sums import GaussianNB, LinearDiscriminantAnalysis, RidgeClassifier
from tests.sharded.people import examples

N_ROWS = 36
N_PEOPLE = 18


class HostilePeople(NamedTuple):
    """A table with its labels and ids."""

    X: pd.DataFrame
    y: np.ndarray[Any, Any]
    ids: np.ndarray[Any, Any]

    def take(self, chosen: Any) -> "HostilePeople":
        return HostilePeople(
            self.X[chosen].reset_index(drop=True), self.y[chosen], self.ids[chosen]
        )


def hostile_people(seed: int, n_rows: int = N_ROWS, largest: float = 1e300) -> HostilePeople:
    """Return rows with the columns that break careless statistics."""
    rng = np.random.default_rng(seed)
    number = rng.normal(size=n_rows)
    gaps = np.where(rng.random(n_rows) < 0.3, np.nan, rng.normal(50, 9, n_rows).round(1))
    outlier = rng.normal(size=n_rows)
    outlier[rng.integers(n_rows)] = largest
    rare = np.array(["usual"] * n_rows, object)
    rare[rng.integers(n_rows, size=3)] = ["only one", "two", "two"]
    city = rng.choice(["Oslo", "Rome", "Lima"], n_rows).astype(object)
    city[rng.random(n_rows) < 0.15] = None
    X = pd.DataFrame(
        {
            "number": number,
            "gaps": gaps,
            "outlier": outlier,
            "constant": np.full(n_rows, 7.0),
            "time": 1.7e9 + rng.normal(size=n_rows).round(3),
            "flag": rng.random(n_rows) < 0.5,
            "city": city,
            "rare": rare,
        }
    )
    owners = rng.integers(N_PEOPLE, size=n_rows)
    owners[:2] = 0, 1
    y = np.array(["no", "yes"])[rng.integers(2, size=n_rows)]
    y[:4] = "no", "yes", "no", "yes"
    return HostilePeople(X, y, np.array([f"p{owner:02d}" for owner in owners]))


NUMBERS = ["number", "gaps", "outlier", "constant", "time", "flag"]
TEXTS = ["city", "rare"]

SCALERS: list[Callable[[], Any]] = [
    lambda: StandardScaler(random_state=1),
    lambda: RobustScaler(random_state=2),
    lambda: QuantileBinner(n_bins=4, random_state=3),
    lambda: KeyedSample(MaxAbsScaler(), n_people=12, random_state=3),
    lambda: "passthrough",
]
IMPUTERS: list[Callable[[], Any]] = [
    lambda: SimpleImputer(random_state=4),
    lambda: SimpleImputer(strategy="median", random_state=5),
    lambda: SimpleImputer(strategy="most_frequent", add_indicator=True),
    lambda: SimpleImputer(strategy="constant", fill_value=-1.0),
]
ENCODERS: list[Callable[[], Any]] = [
    lambda: OneHotEncoder(sparse_output=False, handle_unknown="ignore"),
    lambda: OneHotEncoder(sparse_output=False, handle_unknown="ignore", min_frequency=2),
    lambda: OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    lambda: TargetEncoder(cv=3, random_state=6),
]
MODELS: list[Callable[[], Any]] = [
    lambda: RidgeClassifier(random_state=7),
    lambda: GaussianNB(random_state=8),
    lambda: LinearDiscriminantAnalysis(random_state=9),
    lambda: DaREForestClassifier(n_estimators=2, max_depth=3, random_state=10),
    lambda: SISAClassifier(DecisionTreeClassifier(max_depth=2), n_shards=2, random_state=11),
]


def make_pipeline(imputer: int, scaler: int, encoder: int, model: int) -> ForgetPipeline:
    numbers: list[tuple[str, Any]] = [("fill", IMPUTERS[imputer]()), ("scale", SCALERS[scaler]())]
    texts: list[tuple[str, Any]] = [
        ("fill", SimpleImputer(strategy="most_frequent")),
        ("encode", ENCODERS[encoder]()),
    ]
    columns = ForgetColumnTransformer(
        [("numbers", ForgetPipeline(numbers), NUMBERS), ("texts", ForgetPipeline(texts), TEXTS)]
    )
    return ForgetPipeline([("columns", columns), ("model", MODELS[model]())])


PARTS = st.tuples(
    st.integers(0, len(IMPUTERS) - 1),
    st.integers(0, len(SCALERS) - 1),
    st.integers(0, len(ENCODERS) - 1),
    st.integers(0, len(MODELS) - 1),
)
REQUESTS = st.lists(
    st.one_of(
        st.sets(st.integers(0, N_PEOPLE - 1), min_size=1, max_size=3),
        st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=3,
)


def apply_requests(
    model: Any, people: HostilePeople, requests: list[Any], largest: float
) -> HostilePeople:
    """Forget and learn; return the rows that the model should have now, in stored order."""
    for request in requests:
        if isinstance(request, int):
            new = hostile_people(request, 4, largest)
            model.learn(new.X, new.y, ids=new.ids)
            people = HostilePeople(
                pd.concat([people.X, new.X], ignore_index=True),
                np.concatenate([people.y, new.y]),
                np.concatenate([people.ids, new.ids]),
            )
            continue
        names = [name for name in (f"p{k:02d}" for k in request) if name in set(people.ids)]
        keep = ~np.isin(people.ids, names)
        try:
            model.forget(names)
        except EmptyModelError:
            continue
        people = people.take(keep)
    return people


@given(parts=PARTS, seed=st.integers(0, 10**6), requests=REQUESTS)
@examples(2000)
def test_any_sequence_ends_in_a_fresh_fit(
    parts: tuple[int, int, int, int], seed: int, requests: list[Any]
) -> None:
    # Trees use float32.
    largest = (
        1e30 if isinstance(MODELS[parts[-1]](), DaREForestClassifier | SISAClassifier) else 1e300
    )
    people = hostile_people(seed, largest=largest)
    model = make_pipeline(*parts).fit(people.X, people.y, ids=people.ids)
    remaining = apply_requests(model, people, requests, largest)
    fresh = clone_unfitted(model).fit(remaining.X, remaining.y, ids=remaining.ids)
    assert model.digest() == fresh.digest()
    assert (model.predict(people.X) == fresh.predict(people.X)).all()


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
