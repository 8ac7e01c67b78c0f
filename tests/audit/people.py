"""Models, rows and requests that the audit's tests share."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.preprocessing import StandardScaler

from letheon import (
    DaREForestClassifier,
    DaREForestRegressor,
    ForgetPipeline,
    NaiveUnlearner,
    SISAClassifier,
    SISARegressor,
)
from letheon.data import Rows, hold_table, hold_target, row_ids

N_PEOPLE = 120
IDS = np.arange(N_PEOPLE) + 1000

EXACT: dict[str, Callable[[], Any]] = {
    "naive": lambda: NaiveUnlearner(LogisticRegression()),
    "sisa": lambda: SISAClassifier(SGDClassifier(), n_shards=3, n_slices=2, random_state=5),
    "sisa-regressor": lambda: SISARegressor(Ridge(), n_shards=3, n_jobs=1),
    "forest": lambda: DaREForestClassifier(n_estimators=4, n_jobs=2),
    "forest-regressor": lambda: DaREForestRegressor(n_estimators=4, rebuild="eager"),
    "pipeline": lambda: ForgetPipeline(
        [
            ("scale", NaiveUnlearner(StandardScaler())),
            ("model", SISAClassifier(LogisticRegression(), n_shards=2)),
        ]
    ),
}


def table(n: int = N_PEOPLE, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Return rows of four columns and labels that follow the first."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int)


def held(X: Any, y: Any, ids: Any) -> Rows:
    """Return rows as a ledger holds them."""
    return Rows(hold_table(X), hold_target(y), row_ids(ids, len(X)))


def fitted(kind: str, seed: int = 0) -> tuple[Any, Rows]:
    """Return a fitted model of a kind and the rows that it holds."""
    X, y = table(seed=seed)
    target = y.astype(float) if kind.endswith("regressor") else y
    return EXACT[kind]().fit(X, target, ids=IDS), held(X, target, IDS)


def without(rows: Rows, people: Any) -> Rows:
    """Return the rows of the others."""
    return rows.without(np.flatnonzero(np.isin(rows.ids.to_array(), people)))
