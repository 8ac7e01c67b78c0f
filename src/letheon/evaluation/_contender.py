"""A way to train on some rows, on the clock."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from letheon.evaluation._problem import Rows
from letheon.exceptions import LetheonError
from letheon.inner import parts_of
from letheon.measures._copies import require_copy

__all__ = ["Contender", "few_of", "named", "plain", "single_job", "warmed"]

_FEW_ROWS = 400


class Contender(NamedTuple):
    """A way to train on some rows; `is_given`: by the caller, so it may be anything."""

    name: str
    fit: Callable[[Rows], Any]
    is_given: bool = False


def plain(estimator: Any, *, is_given: bool = False) -> Contender:
    """Return the training of an estimator that knows no people."""
    prototype = single_job(estimator)

    def fit(rows: Rows) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return clone(prototype).fit(rows.X, rows.y)

    return Contender(named(estimator), fit, is_given)


def named(estimator: Any) -> str:
    """Return the name of an estimator; of a pipeline that of its last step."""
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    return type(last).__name__


def single_job(estimator: Any) -> Any:
    """Return an unfitted copy that asks for no threads or processes, at any depth."""
    copy = require_copy(estimator, clone(estimator))
    for part in list(parts_of(copy)):
        if part.params.get("n_jobs") is not None:
            part.estimator.set_params(n_jobs=None)
    return copy


def few_of(rows: Rows) -> Rows:
    """Return the rows of some people, enough to walk through the code once."""
    people = np.random.default_rng(0).permutation(np.unique(rows.ids))
    return rows.of(people[:_FEW_ROWS])


def warmed(contender: Contender, few: Rows) -> Contender:
    """Return the contender after a round that is not counted."""
    try:
        contender.fit(few).predict(few.X)
    except (LetheonError, ValueError):
        # So few rows may be too few for the model: a class is missing, a shard is empty.
        return contender
    return contender
