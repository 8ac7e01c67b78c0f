"""Deletion distributions: which ids are forgotten, and in which order."""

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

# Number of people who must remain in every class: a model cannot be fitted on one class, so no
# comparison would be possible.
_KEPT_PER_CLASS = 2
_MOST_CLASSES = 20


@dataclass(frozen=True, kw_only=True)
class Requests:
    """A deletion distribution: which people are forgotten, in which order and batch size.

    Parameters
    ----------
    kind : {"uniform", "person", "class", "worst", "adaptive"}, default="uniform"
        - *uniform*: rows are drawn uniformly; all rows of the owner of a drawn row are forgotten.
        - *person*: people are drawn uniformly, regardless of their number of rows.
        - *class*: people of one class are forgotten first, in random order.
        - *worst*: among `candidates` random people, the person with the highest removal cost is
          forgotten (the adversary of Brophy and Lowd, 2021, with 1,000 candidates). The cost is
          `cost`, or the model's `forget_cost`, or the error of the model for the person.
        - *adaptive*: people with the largest error of the model are forgotten first. These requests
          depend on the model, so they are not oblivious (Gupta et al., 2021).
    n : int or float, default=100
        Number of people to forget; a float below 1 is a share of all people.
    batch : int or float, default=1
        Number of people per request; a float below 1 is a share of all people.
    label : label, optional
        Class that is forgotten first, for ``kind="class"``; by default drawn at random with the
        seed.
    candidates : int, default=1000
        Number of people among whom *worst* searches.
    cost : callable, optional
        ``cost(model, ids) -> float``, the cost of removing one person, for ``kind="worst"``.

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
        """Raise `ValueError` for invalid values."""
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind={self.kind!r} is unknown; expected one of {get_args(Kind)}")
        for name in ("n", "batch"):
            value = getattr(self, name)
            if not (0 < value < 1 or (value >= 1 and value == int(value))):
                raise ValueError(
                    f"{name}={value!r} is not valid; expected a number of people of at least 1, "
                    f"or a share between 0 and 1"
                )
        if self.candidates < 1:
            raise ValueError(f"candidates={self.candidates!r} is not valid; expected at least 1")

    def sizes(self, n_people: int) -> list[int]:
        """Return the number of people in each request, if the data has `n_people` people.

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
                f"n={self.n!r} removes {n} people, but the data has only {n_people}; use a "
                f"smaller n"
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
        """Yield the ids of each request in turn.

        Parameters
        ----------
        model : estimator or None
            The current model. *worst* and *adaptive* requests depend on the model at the time when
            they are drawn. Other kinds do not need a model.
        X, y : array-like
            The training rows before the first request.
        ids : array-like, optional
            Id of each row; by default ``0..n-1``.
        seed : int, default=0
            Seed of all random choices.
        task : {"classification", "regression"}, optional
            Kind of `y`. For classification, two people of each class always remain. By default the
            task of the model. Without a model, the task is regression if y has fractions or more
            than 20 distinct float values.

        Yields
        ------
        ndarray
            Ids of the next request; no id occurs twice.
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
        """Return the position, among the sorted labels, of the class that is forgotten first."""
        if pool.has.shape[1] == 0:
            raise ValueError(
                'kind="class" needs class labels, but y is the target of a regression; '
                "use another kind"
            )
        if self.label is None:
            return int(pool.rng.integers(len(pool.labels)))
        places = np.flatnonzero(pool.labels == self.label)
        if len(places) == 0:
            raise ValueError(
                f"label={self.label!r} is not in y; y has labels such as {pool.labels[:5].tolist()}"
            )
        return int(places[0])

    def _rank_people(self, pool: "_Pool", model: Any, column: int) -> PersonNumbers:
        """Return the remaining people in the order in which they are forgotten."""
        if self.kind == "uniform":
            present = np.flatnonzero(pool.is_present)
            # Exponential clocks give the order of owners when rows are drawn without replacement.
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
        """Return the removal cost of each person, or the error of the model if no cost is known."""
        if self.kind == "worst" and self.cost is not None:
            return np.array([self.cost(model, pool.people[[person]]) for person in people])
        if self.kind == "worst" and hasattr(model, "forget_cost"):
            costs = (model.forget_cost(pool.people[[person]]) for person in people)
            return np.array([cost.rows for cost in costs])
        return pool.person_errors(model)[people]


class _Pool:
    """Remaining people, their rows, and the number of people in each class."""

    def __init__(
        self, X: Any, y: NDArray[Any], ids: ArrayLike | None, rng: Any, task: Task
    ) -> None:
        # Images have more than two dimensions and are not converted.
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
        # Classes of each person; a regression target has none.
        is_classes = task != "regression"
        self.has = np.zeros((len(self.people), len(self.labels) if is_classes else 0), dtype=bool)
        if is_classes:
            self.has[self.owner, codes] = True

    def choose_people(self, order: PersonNumbers, size: int) -> PersonNumbers:
        """Return the first `size` people in this order who can be removed.

        People are skipped if too few people of their class would remain.
        """
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
    """Return the error of the model for each row, in [0, 1].

    The error is 1 - p(y) if the model has probabilities. Otherwise it is 0 or 1 for class labels,
    and for numbers the absolute error relative to the largest one.
    """
    if hasattr(model, "predict_proba"):
        return 1 - label_probability(model, X, y)
    predicted = np.asarray(model.predict(X))
    if predicted.dtype.kind == "f" and y.dtype.kind in "fiu":
        error = np.abs(predicted - y)
        return np.asarray(error / max(float(error.max(initial=0.0)), np.finfo(float).tiny))
    return np.asarray(predicted != y, dtype=np.float64)
