"""A round that is not counted: libraries are loaded and code paths are walked once."""

from typing import Any

import numpy as np

from letheon.evaluation._baselines import fresh_copy
from letheon.evaluation._problem import Problem
from letheon.exceptions import LetheonError

__all__ = ["warm_up"]

_ROWS = 400


def warm_up(unlearner: Any, problem: Problem) -> str:
    """Fit and forget once on some rows; return what was done, in words."""
    train = problem.train
    people = np.random.default_rng(0).permutation(np.unique(train.ids))
    few = train.of(people[:_ROWS])
    try:
        model = fresh_copy(unlearner, 0).fit(few.X, few.y, ids=few.ids)
        model.forget([people[0]])
    except (LetheonError, ValueError):
        # So few rows may be too few for the model (a class is missing, a shard is empty).
        return "a warm-up was tried, on too few rows for this model"
    return f"a warm-up on {len(few):,} rows came before the clock and is not counted"
