"""Code for removing rows that linear models and networks share.

- `TrainingRows`: rows with their classes.
- `RowsMixin`: a model that stores such rows.
- `Change`: what a request will change, computed before anything is changed.
- `Cache`: a value that can be computed again. `Opaque`: a repr that shows no values.
- `RecordedPath` and `descend`: a descent that records every step, on arrays or tensors.
- `Exactness` and `secant_matrix`: its replay, with L-BFGS in place of the Hessian.
- `allocate_file`: memory in a temporary file without a name.
"""

import copy
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from letheon.base import (
    ForgetMixin,
    InPlaceMixin,
    Outcome,
    Removal,
    locate_in,
    require_fitted,
)
from letheon.data import Ids, SlotRows, hold_target
from letheon.exceptions import EmptyModelError

Content = TypeVar("Content")
Numbers = TypeVar("Numbers", bound=Any)  # an array of NumPy, or a tensor
Counts = NDArray[np.int64] | None
Floats = NDArray[np.float64]


class Opaque:
    """Base class for values with secrets: the repr shows only the class name."""

    def __repr__(self) -> str:
        return opaque_repr(self)


def opaque_repr(value: object) -> str:
    """Return a repr with the class name only; also for named tuples."""
    return f"<{type(value).__name__}>"


class Cache(Generic[Content]):
    """A cached value that can be computed again; None if it is not computed yet.

    In files, digests, pickles and copies it is empty.
    """

    def __init__(self, content: Content | None = None) -> None:
        self.content = content

    def _to_state(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:  # noqa: ARG003
        return cls()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the content."""
        return type(self), ()

    def __copy__(self) -> Self:
        """Return an empty cache: contents change in place."""
        return type(self)()

    def __deepcopy__(self, _: Any) -> Self:
        """Return an empty cache."""
        return type(self)()


@dataclass(frozen=True, repr=False)
class Change(Opaque):
    """Attributes to replace at once, and writes into existing memory.

    Predictions read attributes only, so they use the model before or after the change.
    """

    attributes: dict[str, Any]
    outcome: Outcome
    writes: tuple[Callable[[], None], ...] = field(default=())

    def with_rebuilt(self, rebuilt: dict[str, int]) -> "Change":
        """Return the change with other counts of retrained parts."""
        return replace(self, outcome=self.outcome._replace(rebuilt=rebuilt))

    def commit(self, model: Any) -> Outcome:
        """Apply the change. Cannot fail."""
        vars(model).update(self.attributes)
        for write in self.writes:
            write()
        return self.outcome


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRows(Opaque):
    """Rows to train on. Only classification has `classes` and `counts`, the rows per class."""

    rows: SlotRows
    classes: NDArray[Any] | None = None
    counts: Counts = None

    def without(self, positions: NDArray[np.int64]) -> "TrainingRows":
        """Return all other rows in new memory; classes without rows are dropped."""
        rows = copy.copy(self.rows)
        rows.wipe(positions)
        rows = rows.compact_copy()
        if self.classes is None or self.counts is None:
            return TrainingRows(rows)
        counts = np.bincount(rows.y, minlength=len(self.classes))
        kept = np.flatnonzero(counts)
        rows.y[:] = np.searchsorted(kept, rows.y)
        # With the narrowest text dtype: a wider one would reveal the length of a removed label.
        return TrainingRows(rows, hold_target(self.classes[kept]), counts[kept])


class RowsMixin(InPlaceMixin, ForgetMixin):
    """Mixin of models that store their rows, and the number of rows of every class."""

    rows_: SlotRows
    counts_: Counts

    @property
    def n_rows_(self) -> int:
        """Number of remaining rows."""
        require_fitted(self)
        return len(self.rows_)

    def _get_ids(self) -> Ids:
        return self.rows_.ids

    def _locate_rows(self, ids: Ids) -> Removal:
        return locate_in(self.rows_, ids)

    def _commit(self, plan: Any) -> Outcome:
        outcome: Outcome = plan.commit(self)
        return outcome

    def _counts_without(self, positions: NDArray[np.int64]) -> Counts:
        return None if self.counts_ is None else self._counts_after(self.rows_.y[positions])

    def _counts_after(self, removed: NDArray[Any]) -> Counts:
        """Return the rows per class without these targets; raise if one class would remain."""
        if self.counts_ is None:
            return None
        counts = self.counts_ - np.bincount(removed, minlength=len(self.counts_))
        if np.count_nonzero(counts) < 2:
            raise EmptyModelError(
                "only one class would remain, and fit needs two; nothing was changed. Delete the "
                "model and its files instead, or keep rows of another class."
            )
        return counts


class ProbabilitiesMixin:
    """Mixin of classifiers with `predict_proba`."""

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            logarithms: Floats = np.log(self.predict_proba(X))  # type: ignore[attr-defined]
        return logarithms


class RecordedPath(Generic[Numbers]):
    """Points w_t, mean gradients g_t and numbers of rows of T steps, w_(t+1) = w_t - rate_t g_t.

    A path is written only by the code that allocated it; a request allocates a new one. If memory
    is limited, the numbers are in a private temporary file without a name.

    Attributes
    ----------
    points, gradients : array or tensor of shape (T, N)
        N parameters.
    sizes : array or tensor of int64, shape (T,)
        Number of rows in the mean of each gradient; 0 for a skipped step.
    """

    def __init__(self, points: Numbers, gradients: Numbers, sizes: Any) -> None:
        if points.shape != gradients.shape or sizes.shape != points.shape[:1]:
            raise ValueError(
                f"points {tuple(points.shape)}, gradients {tuple(gradients.shape)} and sizes "
                f"{tuple(sizes.shape)} do not match"
            )
        self.points = points
        self.gradients = gradients
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        """Return only the size: the last point is the model without its noise."""
        name, width = type(self).__name__.lower(), self.points.shape[1]
        return f"<{name} of {len(self)} steps, {width} parameters>"

    def write(self, step: int, point: Numbers, gradient: Numbers, size: int) -> None:
        """Record a step."""
        self.points[step], self.gradients[step], self.sizes[step] = point, gradient, size


def descend(
    path: RecordedPath[Numbers],
    w: Numbers,
    rates: Sequence[float],
    gradient: Callable[[int, Numbers], tuple[Numbers, int]],
    *,
    first: int = 0,
    after: Callable[[int, Numbers], object] | None = None,
) -> Numbers:
    """Descend from w and record every step; return the last point.

    Parameters
    ----------
    path : RecordedPath
        Receives the steps.
    w : array or tensor
        Parameters before step `first`.
    rates : sequence of float
        Step sizes.
    gradient : callable
        Returns the mean gradient of a step at some parameters, and the number of its rows.
    first : int
        Number of the first step.
    after : callable, optional
        Called after every step with its number and the parameters.
    """
    for t in range(first, len(path)):
        g, size = gradient(t, w)
        path.write(t, w, g, size)
        w = w - rates[t] * g
        if after is not None:
            after(t, w)
    return w


@dataclass(frozen=True)
class Exactness:
    """Which steps of a replay use all rows, and how many pairs L-BFGS keeps in between."""

    burn_in: int
    period: int
    history: int

    def is_exact(self, step: int) -> bool:
        """Return whether a step is computed from all rows."""
        return step <= self.burn_in or (step - self.burn_in) % self.period == 0


def secant_matrix(inner: Floats, gram: Floats, ages: NDArray[np.int64], scale: float) -> Floats:
    """Return the middle matrix of L-BFGS in compact form.

    From pairs s_j (a change of the parameters) and y_j (the resulting change of the gradient),
    L-BFGS makes a symmetric matrix B with B s = y for the newest pair (Byrd, Nocedal and Schnabel
    1994, Theorem 2.3)::

        B v = c v - [Y, c S] [[-D, L'], [L, c S'S]]^(-1) [Y'v; c S'v]

    D is the diagonal and L the strictly lower part of S'Y, oldest pair first, and c = y.s / s.s of
    the newest pair. B is positive definite if every s.y is above 0.

    Parameters
    ----------
    inner, gram : ndarray of shape (k, k)
        S'Y and S'S, the pairs in any order.
    ages : ndarray of shape (k,)
        Age of each pair: a larger number is newer.
    scale : float
        c.
    """
    lower = np.where(ages[:, None] > ages, inner, 0.0)
    return np.block([[np.diag(-np.diag(inner)), lower.T], [lower, scale * gram]])


def allocate_file(n_bytes: int) -> mmap.mmap:
    """Return zeroed memory in a private file without a name, which ends with the process.

    The operating system then frees the blocks of the file without overwriting them.
    """
    with tempfile.TemporaryFile(prefix="letheon-") as file:
        if hasattr(os, "posix_fallocate"):
            # Reserve the space now: a full disk raises here instead of crashing at a later write.
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        else:
            file.truncate(n_bytes)
        return mmap.mmap(file.fileno(), n_bytes)
