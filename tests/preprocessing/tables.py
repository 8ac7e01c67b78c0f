"""Tables with hostile columns, and sequences of requests that must end in a fresh fit."""

from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from sklearn.base import clone

from letheon.exceptions import EmptyModelError

N_PEOPLE = 24

Steps = list[tuple[str, list[int]]]


def numbers(seed: int, n_rows: int) -> np.ndarray[Any, Any]:
    """Return rows with NaN, a column without values, constants, an outlier and timestamps."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 9)).round(2)
    X[rng.random(n_rows) < 0.3, 1] = np.nan
    X[:, 2] = np.nan
    X[:, 3] = 0.1
    X[rng.integers(n_rows), 4] = 1e300
    X[:, 5] = 1.7e9 + rng.normal(size=n_rows)
    X[:, 6] = rng.integers(0, 3, n_rows)
    X[:, 7] = np.where(rng.random(n_rows) < 0.9, np.nan, 7.0)
    X[:, 8] *= 1e-310
    return X


def frame(seed: int, n_rows: int) -> pd.DataFrame:
    """Return a frame with numbers, texts, missing values, and categories of one row."""
    rng = np.random.default_rng(seed)
    letters = rng.choice(list("abc"), n_rows).astype(object)
    letters[rng.random(n_rows) < 0.2] = None
    return pd.DataFrame(
        {
            "age": np.where(rng.random(n_rows) < 0.2, np.nan, rng.integers(20, 60, n_rows)),
            "letter": letters,
            "rare": [f"v{k}" for k in rng.integers(0, n_rows * 2, n_rows)],
            "flag": rng.random(n_rows) < 0.5,
            "empty": np.array([None] * n_rows, object),
            "grade": rng.integers(1, 4, n_rows),
        }
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, Steps]:
    """Draw a seed, and people to forget or to add, in order."""
    people = st.lists(st.integers(0, N_PEOPLE - 1), min_size=1, max_size=10, unique=True)
    steps = st.lists(st.tuples(st.sampled_from(["forget", "forget", "learn"]), people), max_size=4)
    return draw(st.integers(0, 2**31)), draw(steps)


def take(X: Any, rows: list[int]) -> Any:
    """Return some rows of an array or of a frame."""
    return X.iloc[rows].reset_index(drop=True) if hasattr(X, "iloc") else X[rows]


def target(seed: int, n_rows: int, kind: str) -> Any:
    """Return targets of a kind, or None."""
    rng = np.random.default_rng(seed + 1)
    if kind == "none":
        return None
    return rng.normal(size=n_rows) if kind == "numbers" else rng.integers(0, int(kind), n_rows)


def run_requests(estimator: Any, X: Any, y: Any, ids: list[int], steps: Steps) -> Any:
    """Fit on the first half of the rows, run the requests, and compare with a fresh fit."""
    known = list(range(len(ids) // 2))
    spare = list(range(len(ids) // 2, len(ids)))

    def select(rows: list[int]) -> dict[str, Any]:
        chosen = {"X": take(X, rows), "ids": [ids[row] for row in rows]}
        return chosen if y is None else chosen | {"y": y[rows]}

    model = clone(estimator).fit(**select(known))
    for action, people in steps:
        if action == "forget":
            present = sorted({ids[row] for row in known} & set(people))
            if {ids[row] for row in known} == set(present):
                continue
            try:
                model.forget(present)
            except EmptyModelError:
                continue
            known = [row for row in known if ids[row] not in present]
        elif spare:
            added, spare = spare[: len(people)], spare[len(people) :]
            model.learn(**select(added))
            known += added
    params = {"random_state": model.seed_} if "random_state" in model.get_params() else {}
    fresh = clone(estimator).set_params(**params).fit(**select(known))
    assert model.digest() == fresh.digest()
    return model
