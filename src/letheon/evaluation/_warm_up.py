"""A round that is not counted: libraries are loaded and code paths are walked once."""

from typing import Any

from letheon.evaluation._clock import finish
from letheon.evaluation._contender import few_of
from letheon.evaluation._problem import Problem
from letheon.exceptions import LetheonError
from letheon.measures._copies import fresh_copy

__all__ = ["warm_up"]


def warm_up(unlearner: Any, problem: Problem) -> str:
    """Fit, forget and predict once on some rows; return what was done, in words."""
    few = few_of(problem.train)
    try:
        model = fresh_copy(unlearner, 0).fit(few.X, few.y, ids=few.ids)
        model.forget(few.ids[:1])
        finish(model)
        model.predict(few.X)
    except (LetheonError, ValueError):
        # So few rows may be too few for the model (a class is missing, a shard is empty).
        return "a warm-up was tried, on too few rows for this model"
    return f"a warm-up on {len(few):,} rows came before the clock and is not counted"
