"""A way to train on some rows, on the clock."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from letheon.evaluation._problem import Rows

__all__ = ["Contender", "named", "plain"]


class Contender(NamedTuple):
    """A way to train on some rows."""

    name: str
    fit: Callable[[Rows], Any]


def plain(estimator: Any) -> Contender:
    """Return the training of an estimator that knows no people."""

    def fit(rows: Rows) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return clone(estimator).fit(rows.X, rows.y)

    return Contender(named(estimator), fit)


def named(estimator: Any) -> str:
    """Return the name of an estimator; of a pipeline that of its last step."""
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    return type(last).__name__
