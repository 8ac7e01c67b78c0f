"""Whole pipelines: after any forget and learn, the pipeline has the digest of a fresh fit."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import MaxAbsScaler
from sklearn.tree import DecisionTreeClassifier

from letheon import DaREForestClassifier, ForgetPipeline, SISAClassifier
from letheon.compose import clone_unfitted
from letheon.exceptions import EmptyModelError
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
from letheon.sums import GaussianNB, LinearDiscriminantAnalysis, RidgeClassifier
from tests.sharded.people import examples

N_ROWS = 36
N_PEOPLE = 18


class People(NamedTuple):
    """A table with its labels and ids."""

    X: pd.DataFrame
    y: np.ndarray[Any, Any]
    ids: np.ndarray[Any, Any]

    def take(self, chosen: Any) -> "People":
        return People(self.X[chosen].reset_index(drop=True), self.y[chosen], self.ids[chosen])


def hostile_people(seed: int, n_rows: int = N_ROWS, largest: float = 1e300) -> People:
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
    return People(X, y, np.array([f"p{owner:02d}" for owner in owners]))


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


def apply_requests(model: Any, people: People, requests: list[Any], largest: float) -> People:
    """Forget and learn; return the rows that the model should have now, in stored order."""
    for request in requests:
        if isinstance(request, int):
            new = hostile_people(request, 4, largest)
            model.learn(new.X, new.y, ids=new.ids)
            people = People(
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
