"""A table as companies have it: numbers with gaps, categories, booleans, and a rare city."""

from typing import Any

import numpy as np
import pandas as pd

from letheon import (
    BoostingClassifier,
    DaREForestClassifier,
    ForgetPipeline,
    InfluenceClassifier,
)
from letheon.sums import RidgeClassifier
from letheon.table_pipeline import make_table_pipeline

N = 160
PEOPLE = [f"customer-{number:04d}" for number in range(N)]
# The only customer in Bern, and two others.
LEAVING = [PEOPLE[3], PEOPLE[17], PEOPLE[40]]


def mixed_frame() -> pd.DataFrame:
    """Return the columns, without target and ids."""
    rng = np.random.default_rng(0)
    age, income = rng.normal(40, 10, N).round(1), rng.normal(3, 1, N).round(2)
    city = rng.choice(["Oslo", "Rome"], N).astype(object)
    city[rng.random(N) < 0.1] = None
    city[3] = "Bern"
    return pd.DataFrame(
        {
            "age": age,
            "city": city,
            "plan": pd.Categorical(rng.choice(["basic", "gold"], N)),
            "member": rng.random(N) < 0.5,
            "income": np.where(rng.random(N) < 0.2, np.nan, income),
            "visits": rng.integers(0, 9, N),
        }
    )


def target(frame: pd.DataFrame) -> Any:
    """Return a label that depends on numbers and on categories."""
    return ((frame["age"] > 42) ^ (frame["city"] == "Rome").to_numpy()).astype(int).to_numpy()


MODELS: dict[str, Any] = {
    "dare": lambda: DaREForestClassifier(n_estimators=4, max_depth=5, random_state=1),
    "boosting": lambda: BoostingClassifier(n_estimators=6, n_chains=2, random_state=1),
    "influence": lambda: InfluenceClassifier(l2=0.05),
    "ridge": RidgeClassifier,
}


def make_pipeline(kind: str) -> ForgetPipeline:
    """Return imputer, scaler and one-hot encoder in front of a model; every category counts."""
    pipeline = make_table_pipeline(MODELS[kind](), mixed_frame())
    has_encoder = "columns__category__min_frequency" in pipeline.get_params()
    return pipeline.set_params(columns__category__min_frequency=None) if has_encoder else pipeline


def fit_pipeline(kind: str) -> Any:
    """Return a fitted pipeline."""
    frame = mixed_frame()
    return make_pipeline(kind).fit(frame, target(frame), ids=PEOPLE)


def write_csv(path: Any) -> None:
    """Write all columns as a CSV file, with target and ids."""
    frame = mixed_frame()
    frame.assign(churned=target(frame), customer=PEOPLE).to_csv(path, index=False)
