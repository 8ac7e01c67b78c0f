"""The rows of an evaluation: to train on, to test on, and whose they are."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import is_regressor

from letheon.data import as_ids
from letheon.datasets import Dataset
from letheon.evaluation._metric import Judgement, Metric, MetricFailedError
from letheon.exceptions import IdsTypeError

__all__ = ["Metric", "Problem", "Rows"]

_TEST_SHARE = 0.25


@dataclass(frozen=True)
class Rows:
    """Rows with their labels and owners.

    Rows of which nobody said whose they are (`owned` is False) have their numbers as ids: nobody
    who is forgotten owns one of them.
    """

    X: Any
    y: NDArray[Any]
    ids: NDArray[Any]
    owned: bool = True

    def at(self, where: NDArray[Any]) -> "Rows":
        """Return some of the rows, in the order they have."""
        X = self.X.iloc[where] if hasattr(self.X, "iloc") else self.X[where]
        return Rows(X, self.y[where], self.ids[where], self.owned)

    def without(self, people: NDArray[Any]) -> "Rows":
        """Return the rows of everybody else."""
        if not self.owned:
            return self
        return self.at(np.flatnonzero(~np.isin(self.ids, people)))

    def of(self, people: NDArray[Any]) -> "Rows":
        """Return the rows of some people."""
        return self.at(np.flatnonzero(np.isin(self.ids, people)))

    def first(self, most: int) -> "Rows":
        """Return the first rows."""
        return self.at(np.arange(min(most, len(self))))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.y)


@dataclass(frozen=True)
class Problem:
    """What is learned: training rows, test rows, and the metric.

    `forgotten_metric` is the metric on the rows of who left. `n_held_out` people were taken from
    the training rows for testing.
    """

    name: str
    train: Rows
    test: Rows
    metric: Metric
    forgotten_metric: Metric
    metric_name: str
    is_regression: bool
    n_held_out: int = 0

    @classmethod
    def of(
        cls, unlearner: Any, data: Any, test: Any, metric: Metric | None, seed: int
    ) -> "Problem":
        """Return the problem that the arguments of `evaluate` describe."""
        is_regression = bool(is_regressor(unlearner))
        judgement = Judgement.of(metric, is_regression)
        name, train, given = _read(data)
        if test is not None and not isinstance(test, float):
            given = _test_rows(*test) if isinstance(test, tuple | list) else _refuse_test(test)
        n_held_out = 0
        if given is None:
            train, given = _split(train, _TEST_SHARE if test is None else test, seed)
            n_held_out = len(np.unique(given.ids))
        _require_target(name, train.y, unlearner)
        # People may stand on both sides: they also leave the test rows when they are forgotten.
        return cls(
            name=name,
            train=train,
            test=given,
            metric=judgement.metric,
            forgotten_metric=judgement.on_forgotten,
            metric_name=judgement.name,
            is_regression=is_regression,
            n_held_out=n_held_out,
        )

    @staticmethod
    def finite(value: Any, n_rows: int) -> float:
        """Return a score as a number, or raise where the metric has none."""
        number = float(value)
        if not np.isfinite(number):
            raise ValueError(
                f"the metric is {number} on {n_rows} row(s); give one with metric= that is "
                "defined there too"
            )
        return number

    def scored(self, y_true: Any, y_pred: Any) -> float:
        """Return the metric of some predictions; raise where it has no value."""
        try:
            value = self.metric(y_true, y_pred)
        except Exception as error:
            raise MetricFailedError(
                f"the metric {self.metric_name} fails on these labels and predictions: {error}"
            ) from error
        return self.finite(value, len(y_true))

    def score(self, model: Any, rows: Rows) -> float:
        """Return the metric of a model on some rows."""
        return self.scored(rows.y, model.predict(rows.X))

    def score_on_forgotten(self, model: Any, rows: Rows) -> float:
        """Return the metric of a model on rows of people who left."""
        return self.finite(self.forgotten_metric(rows.y, model.predict(rows.X)), len(rows))


def _read(data: Any) -> tuple[str, Rows, Rows | None]:
    if isinstance(data, Dataset):
        test = None
        if data.X_test is not None:
            test = _test_rows(data.X_test, data.y_test, data.test_ids)
        return data.name, _rows(data.name, data.X, data.y, data.ids), test
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return "data", _rows("data", *data), None
    raise TypeError(
        f"data must be (X, y), (X, y, ids) or a letheon.datasets.Dataset, not {type(data).__name__}"
    )


def _rows(what: str, X: Any, y: Any, ids: Any = None) -> Rows:
    if X is None or y is None:
        raise ValueError(f"{what}: both X and y are needed")
    X = np.asarray(X) if isinstance(X, list | tuple) else X.tocsr() if sparse.issparse(X) else X
    labels = _column(what, y)
    if X.shape[0] != len(labels):
        raise ValueError(f"{what} has {X.shape[0]} rows in X and {len(labels)} labels")
    owners = np.arange(len(labels)) if ids is None else _owners(what, ids)
    if len(owners) != len(labels):
        raise ValueError(f"{what} has {len(owners)} ids for {len(labels)} rows")
    return Rows(X, labels, owners)


def _owners(what: str, ids: Any) -> NDArray[Any]:
    owners = np.asarray(ids)
    missing = [n for n, who in enumerate(owners.tolist()) if _is_missing(who)]
    if missing:
        raise IdsTypeError(
            f"{what}: ids has {len(missing):,} missing value(s), in row {missing[0]} first; every "
            "row needs an owner"
        )
    as_ids(owners)  # refuses other kinds than int and str
    return owners


def _is_missing(value: Any) -> bool:
    is_nan = isinstance(value, float) and np.isnan(value)
    # pandas has missing values of its own, and need not be here.
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def _require_target(what: str, y: NDArray[Any], unlearner: Any) -> None:
    """Refuse labels where numbers are predicted, and a single class."""
    if not is_regressor(unlearner):
        classes = np.unique(y)
        if len(classes) < 2:
            raise ValueError(
                f"{what}: the training rows have one class, {classes.tolist()[0]!r}; a classifier "
                "needs two"
            )
        return
    words = [value for value in y.tolist() if isinstance(value, str)]
    if words:
        raise ValueError(
            f"{what}: {type(unlearner).__name__} predicts numbers, and y has labels ("
            f"{', '.join(map(repr, sorted(set(words))[:2]))})"
        )


def _column(what: str, y: Any) -> NDArray[Any]:
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        return labels.ravel()
    if labels.ndim != 1:
        raise ValueError(f"{what}: y has the shape {labels.shape}; one target is needed")
    return labels


def _test_rows(X: Any, y: Any, ids: Any = None) -> Rows:
    """Return test rows; without ids nobody who is forgotten is among them."""
    return replace(_rows("test", X, y, ids), owned=ids is not None)


def _refuse_test(test: Any) -> Rows:
    raise TypeError(
        f"test must be (X, y), (X, y, ids) or a share such as 0.25, not {type(test).__name__}"
    )


def _split(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Split by person, so that nobody stands on both sides."""
    if not 0 < share < 1:
        raise ValueError(f"test={share!r} must be a share between 0 and 1")
    people = np.unique(rows.ids)
    if len(people) < 2:
        raise ValueError("a split into training and test rows needs at least two people")
    order = np.random.default_rng(seed).permutation(people)
    held_out = order[: max(1, round(share * len(people)))]
    return rows.without(held_out), rows.of(held_out)
