"""Who asks to be forgotten, and in which order: deletion distributions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import is_regressor

from letheon.data import present_table
from letheon.guarantee import Task
from letheon.scoring import label_probability

Kind = Literal["uniform", "person", "class", "worst", "adaptive"]
Cost = Callable[[Any, NDArray[Any]], float]
PersonNumbers = NDArray[np.int64]

# People who must remain in every class: a model of one class cannot be fitted, so no comparison
# would be possible.
_KEPT_PER_CLASS = 2
_MOST_CLASSES = 20


@dataclass(frozen=True, kw_only=True)
class Requests:
    """A deletion distribution: how many people leave, how many at once, and who.

    Parameters
    ----------
    kind : {"uniform", "person", "class", "worst", "adaptive"}, default="uniform"
        - *uniform*: every row is as likely to be asked for; its owner leaves with all rows.
        - *person*: every person is as likely to leave, however many rows they own.
        - *class*: people of one class leave first, in random order.
        - *worst*: of `candidates` random people the one whose removal costs most leaves (the
          adversary of Brophy and Lowd, 2021, who looks at 1,000). The cost is `cost`, else the
          model's own `forget_cost`, else how wrong the model is about them.
        - *adaptive*: people about whom the model is wrong ask first. They have seen the model, so
          these requests are not oblivious (Gupta et al., 2021).
    n : int or float, default=100
        People who leave; a float below 1 is a share of all people.
    batch : int or float, default=1
        People per request; a float below 1 is a share of all people.
    label : label, optional
        Class that leaves first, for ``kind="class"``; drawn by the seed if not given.
    candidates : int, default=1000
        People among whom the worst is looked for.
    cost : callable, optional
        ``cost(model, ids) -> float`` of one person, for ``kind="worst"``.

    Examples
    --------
    >>> import numpy as np
    >>> X, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    >>> requests = Requests(n=4, batch=2)
    >>> [len(ids) for ids in requests.stream(None, X, y, seed=0)]
    [2, 2]
    """

    kind: Kind = "uniform"
    n: float = 100
    batch: float = 1
    label: Any = None
    candidates: int = 1000
    cost: Cost | None = None

    def __post_init__(self) -> None:
        """Refuse numbers and kinds that mean nothing."""
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind={self.kind!r} is not one of {get_args(Kind)}")
        for name in ("n", "batch"):
            value = getattr(self, name)
            if not (0 < value < 1 or (value >= 1 and value == int(value))):
                raise ValueError(
                    f"{name}={value!r} must be a whole number of people, 1 or more, or a share "
                    "between 0 and 1"
                )
        if self.candidates < 1:
            raise ValueError(f"candidates={self.candidates!r} must be at least 1")

    def sizes(self, n_people: int) -> list[int]:
        """Return how many people each request names, given how many people there are.

        Raises
        ------
        ValueError
            No people would remain.
        """
        n, batch = (
            max(1, round(n_people * part)) if part < 1 else int(part)
            for part in (self.n, self.batch)
        )
        if n >= n_people:
            raise ValueError(
                f"n={self.n!r} removes {n} people, and the data has {n_people}; use a smaller n"
            )
        whole, rest = divmod(n, batch)
        return [batch] * whole + ([rest] if rest else [])

    def stream(
        self,
        model: Any,
        X: Any,
        y: ArrayLike,
        ids: ArrayLike | None = None,
        *,
        seed: int = 0,
        task: Task | None = None,
    ) -> Iterator[NDArray[Any]]:
        """Yield the ids of one request after the other.

        Parameters
        ----------
        model : estimator or None
            The model as it changes: *worst* and *adaptive* look at it when they are asked for
            the next request. Others do not need one.
        X, y : array-like
            The training rows, those of the start.
        ids : array-like, optional
            Whose row each is; default ``0..n-1``.
        seed : int, default=0
            Seed of everything random.
        task : {"classification", "regression"}, optional
            Whether `y` holds classes, of which two people each stay. By default what the model
            is; without a model, numbers with fractions or more than 20 values are no classes.

        Yields
        ------
        ndarray
            Ids of the next request; no id twice.
        """
        labels = np.asarray(y)
        pool = _Pool(
            X, labels, ids, np.random.default_rng(seed), task or _infer_task(model, labels)
        )
        column = self._find_label(pool) if self.kind == "class" else 0
        for size in self.sizes(len(pool.people)):
            chosen = pool.choose_people(self._rank_people(pool, model, column), size)
            pool.is_present[chosen] = False
            yield pool.people[chosen]

    def _find_label(self, pool: "_Pool") -> int:
        """Return the place of the class that leaves first among the labels."""
        if pool.has.shape[1] == 0:
            raise ValueError(
                'kind="class" needs classes, and y is the target of a regression; use another kind'
            )
        if self.label is None:
            return int(pool.rng.integers(len(pool.labels)))
        places = np.flatnonzero(pool.labels == self.label)
        if len(places) == 0:
            raise ValueError(
                f"label={self.label!r} is not in y; labels: {pool.labels[:5].tolist()}"
            )
        return int(places[0])

    def _rank_people(self, pool: "_Pool", model: Any, column: int) -> PersonNumbers:
        """Return the people still there, those who leave next first."""
        if self.kind == "uniform":
            present = np.flatnonzero(pool.is_present)
            # exponential clocks: the order in which rows drawn without replacement name owners
            clocks = pool.rng.exponential(size=len(present)) / pool.rows_of[present]
            return np.asarray(present[np.argsort(clocks)])
        order = np.asarray(pool.rng.permutation(np.flatnonzero(pool.is_present)), dtype=np.int64)
        if self.kind == "person":
            return order
        if self.kind == "class":
            return np.asarray(order[np.argsort(~pool.has[order, column], kind="stable")])
        if model is None:
            raise ValueError(
                f"kind={self.kind!r} depends on the model; pass a fitted model to stream"
            )
        n_ranked = len(order) if self.kind == "adaptive" else self.candidates
        ranked, others = order[:n_ranked], order[n_ranked:]
        costs = self._removal_costs(pool, model, ranked)
        return np.concatenate([ranked[np.argsort(-costs, kind="stable")], others])

    def _removal_costs(self, pool: "_Pool", model: Any, people: PersonNumbers) -> NDArray[Any]:
        """Return what the removal of each of the people costs, or how wrong the model is."""
        if self.kind == "worst" and self.cost is not None:
            return np.array([self.cost(model, pool.people[[person]]) for person in people])
        if self.kind == "worst" and hasattr(model, "forget_cost"):
            costs = (model.forget_cost(pool.people[[person]]) for person in people)
            return np.array([cost.rows for cost in costs])
        return pool.person_errors(model)[people]


class _Pool:
    """People still there, their rows, and how many of each class would be left."""

    def __init__(
        self, X: Any, y: NDArray[Any], ids: ArrayLike | None, rng: Any, task: Task
    ) -> None:
        # Images have more dimensions than a table, and need nothing done to them.
        by_row = X.tocsr() if sparse.issparse(X) else X
        self.X = X if getattr(X, "ndim", 2) > 2 else present_table(by_row)
        self.y, self.rng = y, rng
        owners = np.arange(len(y)) if ids is None else np.asarray(ids)
        if len(owners) != len(y):
            raise ValueError(f"got {len(owners)} ids for {len(y)} rows; give one id per row")
        self.people, self.owner = np.unique(owners, return_inverse=True)
        self.rows_of = np.bincount(self.owner, minlength=len(self.people))
        self.is_present = np.ones(len(self.people), dtype=bool)
        self.labels, codes = np.unique(self.y, return_inverse=True)
        # Which classes each person has; the target of a regression has none.
        is_classes = task != "regression"
        self.has = np.zeros((len(self.people), len(self.labels) if is_classes else 0), dtype=bool)
        if is_classes:
            self.has[self.owner, codes] = True

    def choose_people(self, order: PersonNumbers, size: int) -> PersonNumbers:
        """Return the first people of the order whose leaving keeps every class."""
        left = self.has[self.is_present].sum(axis=0)
        chosen: list[int] = []
        for person in order:
            has = self.has[person]
            if (left[has] > _KEPT_PER_CLASS).all():
                left = left - has
                chosen.append(int(person))
                if len(chosen) == size:
                    return np.array(chosen)
        raise ValueError(
            f"the next request would remove {size} people, but only {len(chosen)} can be removed: "
            f"{_KEPT_PER_CLASS} people of every class must remain; use a smaller n"
        )

    def person_errors(self, model: Any) -> NDArray[np.float64]:
        """Return the error of the model for the worst row of each person, in [0, 1]."""
        rows = np.flatnonzero(self.is_present[self.owner])
        X = self.X.iloc[rows] if hasattr(self.X, "iloc") else self.X[rows]
        worst = np.zeros(len(self.people))
        np.maximum.at(worst, self.owner[rows], _row_errors(model, X, self.y[rows]))
        return worst


def _infer_task(model: Any, y: NDArray[Any]) -> Task:
    if hasattr(model, "classes_"):
        return "classification"
    if model is not None and hasattr(model, "get_params") and is_regressor(model):
        return "regression"
    is_number = y.dtype.kind == "f"
    has_fractions = is_number and bool((y != np.round(y)).any())
    is_many = is_number and len(np.unique(y)) > _MOST_CLASSES
    return "regression" if has_fractions or is_many else "classification"


def _row_errors(model: Any, X: Any, y: NDArray[Any]) -> NDArray[np.float64]:
    """Return 1 - p(y), by labels alone 0 or 1, for numbers the relative absolute error."""
    if hasattr(model, "predict_proba"):
        return 1 - label_probability(model, X, y)
    predicted = np.asarray(model.predict(X))
    if predicted.dtype.kind == "f" and y.dtype.kind in "fiu":
        error = np.abs(predicted - y)
        return np.asarray(error / max(float(error.max(initial=0.0)), np.finfo(float).tiny))
    return np.asarray(predicted != y, dtype=np.float64)
