"""Principal component analysis from exact sums."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin
from sklearn.utils.validation import check_is_fitted

from letheon.data import Frame, numbers_of
from letheon.delta import Delta, StableTransformer, StepPlan
from letheon.guarantee import MethodFacts
from letheon.parallel import ROWS_TOGETHER, one_thread
from letheon.sums._model import Ints, SumsModel, make_facts
from letheon.sums._solve import read_moments
from letheon.sums._table_sums import Grid, Role, RowPart, TableSums, split_block
from letheon.validation import Boolean, Either, Interval, OrNone, Rules, Whole

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Components:
    """Grid of the rows, and the components that were computed from the sums.

    Attributes
    ----------
    grid : Grid
        Published centres and scales.
    centres : ndarray of shape (n_features,)
        Means of the features.
    directions : ndarray of shape (n_components, n_features)
        Components.
    spectrum : ndarray of shape (n_features,)
        Variances of all components, in falling order.
    """

    grid: Grid
    centres: Floats
    directions: Floats
    spectrum: Floats

    def _digest_state(self) -> dict[str, Any]:
        # The rest is a floating-point function of the sums, which depends on the BLAS kernel.
        return {"grid": self.grid}


class PCA(ClassNamePrefixFeaturesOutMixin, SumsModel, StableTransformer):
    """Principal component analysis that forgets exactly.

    Parameters
    ----------
    n_components : int, float or None, default=None
        Number of components, or the share of the variance that they must explain. Default: all.
    whiten : bool, default=False
        Whether to divide the components by their deviations.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the rounding of the grid.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Components, computed in float64 from the integers. The largest entry of each is positive.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray
        Variances of the components, their shares, and singular values of the centred rows.
    mean_ : ndarray of shape (n_features,)
        Means of the features.
    noise_variance_ : float
        Mean variance of the other components.
    n_components_ : int
        Number of components.
    n_clipped_, sums_, published_, seed_
        See `Ridge`.

    Notes
    -----
    Guarantee: exact, as for `Ridge`. Each removal changes all components a little. In a pipeline,
    all later steps are therefore computed again after each removal; `KeyedSample` of scikit-learn's
    PCA avoids it.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.sums import PCA
    >>> X = np.array([[0.0, 0.0], [1.0, 2.0], [2.0, 4.0], [9.0, 0.0]])
    >>> model = PCA(n_components=1, random_state=0).fit(X)
    >>> _ = model.forget([3])
    >>> (model.components_[0] / model.components_[0, 0]).round(6).tolist()
    [1.0, 2.0]
    """

    facts: ClassVar[MethodFacts] = make_facts()
    _role: ClassVar[Role] = "none"
    _parameter_rules: ClassVar[Rules] = {
        "n_components": OrNone(Either(Whole(1), Interval(0.0, 1.0, closed="neither"))),
        "whiten": Boolean(),
    }

    published_: Components

    def __init__(
        self, *, n_components: Any = None, whiten: bool = False, random_state: Any = None
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.random_state = random_state

    def _get_grid(self) -> Grid:
        return self.published_.grid

    def _solve(self, sums: TableSums, grid: Grid) -> None:
        """Compute nothing: the components are published."""

    def _check_size(self, n_rows: int, n_features: int, class_rows: Ints) -> None:  # noqa: ARG002
        if n_rows < 2:
            raise ValueError(f"X has {n_rows} sample (row); PCA needs a minimum of 2")
        most = min(n_rows, n_features)
        if isinstance(self.n_components, int | np.integer) and self.n_components > most:
            raise ValueError(
                f"n_components={self.n_components} must be between 1 and "
                f"min(n_samples, n_features)={most}"
            )

    def _publish(self, sums: TableSums, grid: Grid) -> Components:
        moments = read_moments(sums, grid)
        largest = float(grid.scales.max())
        units = grid.scales / largest
        matrix = moments.scatter * np.multiply.outer(units, units) / max(1, sums.n_rows - 1)
        values, vectors = np.linalg.eigh(matrix)
        spectrum = np.maximum(values[::-1], 0.0)
        directions = vectors[:, ::-1].T
        n_components = self._choose_number(spectrum, sums)
        directions = _fix_signs(directions[:n_components])
        with np.errstate(over="ignore"):
            spectrum = spectrum * largest * largest
        centres = grid.centres + grid.scales * moments.means
        return Components(grid, centres, directions, spectrum)

    def _choose_number(self, spectrum: Floats, sums: TableSums) -> int:
        most = min(sums.n_rows, sums.n_features)
        if self.n_components is None:
            return most
        if isinstance(self.n_components, int | np.integer):
            return int(self.n_components)
        total = float(spectrum.sum())
        shares = np.cumsum(spectrum) / total if total > 0 else np.ones(len(spectrum))
        return min(most, int(np.searchsorted(shares, self.n_components, side="right")) + 1)

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        changes: list[tuple[int, RowPart]] = [
            (sign, part)
            for sign, block in delta.iter_signed()
            for part in split_block(block, self._role)
        ]
        return self._plan_new_grid(delta, changes)

    def _make_plan(self, sums: TableSums, grid: Grid, plan: StepPlan) -> StepPlan:
        published = self._publish(sums, grid)
        n_outputs, n_before = len(published.directions), len(self.published_.directions)
        return StepPlan(
            published=published,
            apply=plan.apply,
            columns=tuple(range(n_outputs)),
            layout=None if n_outputs == n_before else np.full(n_outputs, -1, np.int64),
            work=plan.work,
            rebuilt=plan.rebuilt,
        )

    def _count_outputs(self, published: Components) -> int:
        return len(published.directions)

    def _transform_with(self, published: Components, X: Any) -> Floats:
        rows = numbers_of(X) if isinstance(X, Frame) else X
        projected = _project(rows - published.centres, published.directions)
        if self.whiten:
            projected /= self._deviations(published)
        return projected

    def _deviations(self, published: Components) -> Floats:
        """Return the deviations of the components; at least a rounding error, to divide by."""
        variances = published.spectrum[: len(published.directions)]
        deviations: Floats = np.sqrt(np.maximum(variances, np.finfo(np.float64).eps))
        return deviations

    def inverse_transform(self, X: Any) -> Floats:
        """Return rows in the space of the features."""
        check_is_fitted(self)
        published = self.published_
        projected = np.asarray(X, np.float64)
        if self.whiten:
            projected = projected * self._deviations(published)
        rows: Floats = projected @ published.directions + published.centres
        return rows

    @property
    def components_(self) -> Floats:
        """Components, one per row."""
        check_is_fitted(self)
        return self.published_.directions

    @property
    def n_components_(self) -> int:
        """Number of components."""
        return len(self.components_)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    @property
    def mean_(self) -> Floats:
        """Means of the features."""
        check_is_fitted(self)
        return self.published_.centres

    @property
    def explained_variance_(self) -> Floats:
        """Variances of the components."""
        return self.published_.spectrum[: self.n_components_]

    @property
    def explained_variance_ratio_(self) -> Floats:
        """Shares of the variance that the components explain."""
        ratios: Floats = self.explained_variance_ / self.published_.spectrum.sum()
        return ratios

    @property
    def singular_values_(self) -> Floats:
        """Singular values of the centred rows."""
        return np.sqrt(self.explained_variance_ * (self.sums_.n_rows - 1))

    @property
    def noise_variance_(self) -> float:
        """Mean variance of the components that are not kept."""
        most = min(self.sums_.n_rows, self.sums_.n_features)
        others = self.published_.spectrum[self.n_components_ : most]
        return float(others.mean()) if len(others) else 0.0


def _project(rows: Floats, directions: Floats) -> Floats:
    """Return products with the directions, to the last bit the same for a row alone and in a table.

    BLAS gives other bits for other numbers of rows, so all groups have the same number.
    """
    n_rows, n_features = rows.shape
    padded = np.zeros((-(-n_rows // ROWS_TOGETHER), ROWS_TOGETHER, n_features))
    padded.reshape(-1, n_features)[:n_rows] = rows
    with one_thread():
        products: Floats = padded @ directions.T
    return products.reshape(-1, len(directions))[:n_rows]


def _fix_signs(directions: Floats) -> Floats:
    """Return the components with signs that make the largest entry of each positive."""
    largest = np.abs(directions).argmax(axis=1)
    signs = np.where(directions[np.arange(len(directions)), largest] < 0, -1.0, 1.0)
    fixed: Floats = np.ascontiguousarray(directions * signs[:, None])
    return fixed
