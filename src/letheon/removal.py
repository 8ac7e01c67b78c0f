"""Code for removing rows that linear models and networks share.

- `TrainingRows`: rows with their classes.
- `RowsMixin`: a model that stores such rows.
- `Change`: the changes of a request, computed before anything is changed.
- `Cache`: a value that can be computed again. `Opaque`: a repr that shows no values.
- `RecordedPath` and `descend`: a descent that records every step, on arrays or tensors.
- `Exactness` and `secant_matrix`: the replay of a descent, with L-BFGS in place of the Hessian.
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
    """Return a repr that shows only the class name, for `Opaque` and for named tuples."""
    return f"<{type(value).__name__}>"


class Cache(Generic[Content]):
    """A cache for a value that can be computed again; `content` is None if the cache is empty.

    In files, digests, pickles and copies the cache is empty.
    """

    def __init__(self, content: Content | None = None) -> None:
        self.content = content

    def _to_state(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:  # noqa: ARG003
        return cls()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle the cache: without its content."""
        return type(self), ()

    def __copy__(self) -> Self:
        """Return an empty cache, because contents change in place and must not be shared."""
        return type(self)()

    def __deepcopy__(self, _: Any) -> Self:
        """Return an empty cache."""
        return type(self)()


@dataclass(frozen=True, repr=False)
class Change(Opaque):
    """A prepared change to a model: attributes to replace, and writes to existing memory.

    The attributes are replaced at once. Predictions read only attributes, so they use the model
    before or after the change, never a mixture.
    """

    attributes: dict[str, Any]
    outcome: Outcome
    writes: tuple[Callable[[], None], ...] = field(default=())

    def with_rebuilt(self, rebuilt: dict[str, int]) -> "Change":
        """Return the change with these counts of retrained parts in its outcome."""
        return replace(self, outcome=self.outcome._replace(rebuilt=rebuilt))

    def commit(self, model: Any) -> Outcome:
        """Apply the change to the model and return its outcome. This cannot fail."""
        vars(model).update(self.attributes)
        for write in self.writes:
            write()
        return self.outcome


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRows(Opaque):
    """Rows to train on; for classification also the `classes` and the rows per class (`counts`)."""

    rows: SlotRows
    classes: NDArray[Any] | None = None
    counts: Counts = None

    def without(self, positions: NDArray[np.int64]) -> "TrainingRows":
        """Return a copy without the rows at `positions`; classes without rows are dropped."""
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
    """Mixin for models that store their rows, and the number of rows of every class."""

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
        """Return the number of rows per class after a removal; raise if only one class remains.

        `removed` contains the class codes of the removed rows. For regression, return None.
        """
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
    """Mixin for classifiers with `predict_proba`."""

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithms of the class probabilities of `predict_proba`."""
        with np.errstate(divide="ignore"):
            logarithms: Floats = np.log(self.predict_proba(X))  # type: ignore[attr-defined]
        return logarithms


class RecordedPath(Generic[Numbers]):
    """The recorded steps w_(t+1) = w_t - rate_t g_t of a descent.

    A path is written only by the code that allocated it; a request allocates a new path. If memory
    is limited, the numbers are in a private temporary file without a name.

    Attributes
    ----------
    points, gradients : array or tensor of shape (T, N)
        The points w_t and the mean gradients g_t of T steps, with N parameters.
    sizes : array or tensor of int64, shape (T,)
        Number of rows in the mean of each gradient; 0 for a skipped step.
    """

    def __init__(self, points: Numbers, gradients: Numbers, sizes: Any) -> None:
        if points.shape != gradients.shape or sizes.shape != points.shape[:1]:
            raise ValueError(
                f"points has shape {tuple(points.shape)}, gradients {tuple(gradients.shape)} and "
                f"sizes {tuple(sizes.shape)}; expected (T, N), (T, N) and (T,)"
            )
        self.points = points
        self.gradients = gradients
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        """Return only the size, because the last point is the model without its noise."""
        name, width = type(self).__name__.lower(), self.points.shape[1]
        return f"<{name} of {len(self)} steps, {width} parameters>"

    def write(self, step: int, point: Numbers, gradient: Numbers, size: int) -> None:
        """Record the point, the mean gradient and the number of rows of a step."""
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
    """Descend from w and record every step; return the parameters after the last step.

    Parameters
    ----------
    path : RecordedPath
        The path to which the steps are written; its length is the number of steps.
    w : array or tensor
        Parameters before step `first`.
    rates : sequence of float
        Step size of every step.
    gradient : callable
        Called as ``gradient(step, w)``. Returns the mean gradient of the step at w, and the number
        of its rows.
    first : int
        Number of the first step.
    after : callable, optional
        Called after every step with the number of the step and the new parameters.
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
    """Which steps of a replay use all rows, and how many pairs L-BFGS keeps for the others.

    The steps up to `burn_in` use all rows, and after them every `period`-th step. `history` is the
    number of pairs.
    """

    burn_in: int
    period: int
    history: int

    def is_exact(self, step: int) -> bool:
        """Return whether a step is computed from all rows."""
        return step <= self.burn_in or (step - self.burn_in) % self.period == 0


def secant_matrix(inner: Floats, gram: Floats, ages: NDArray[np.int64], scale: float) -> Floats:
    """Return the middle matrix [[-D, L'], [L, c S'S]] of L-BFGS in compact form.

    From pairs s_j (a change of the parameters) and y_j (the resulting change of the gradient),
    L-BFGS makes a symmetric matrix B with B s = y for the newest pair (Byrd, Nocedal and Schnabel
    1994, Theorem 2.3)::

        B v = c v - [Y, c S] [[-D, L'], [L, c S'S]]^(-1) [Y'v; c S'v]

    With the oldest pair first, D is the diagonal and L the strictly lower part of S'Y. The scale is
    c = y.s / s.s of the newest pair. B is positive definite if every s.y is above 0.

    Parameters
    ----------
    inner, gram : ndarray of shape (k, k)
        The matrices S'Y and S'S; the pairs may be in any order.
    ages : ndarray of shape (k,)
        Number of each pair, larger for newer pairs.
    scale : float
        The scale c.
    """
    lower = np.where(ages[:, None] > ages, inner, 0.0)
    return np.block([[np.diag(-np.diag(inner)), lower.T], [lower, scale * gram]])


def allocate_file(n_bytes: int) -> mmap.mmap:
    """Return zeroed memory in a private temporary file without a name.

    The file is deleted when the memory is released, at the latest when the process ends. The
    operating system frees its blocks without overwriting them.
    """
    with tempfile.TemporaryFile(prefix="letheon-") as file:
        if hasattr(os, "posix_fallocate"):
            # Reserve the space now: a full disk raises here instead of crashing at a later write.
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        else:
            file.truncate(n_bytes)
        return mmap.mmap(file.fileno(), n_bytes)
