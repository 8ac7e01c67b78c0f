"""Random Fourier features of the RBF kernel, equal bit by bit on every machine.

A feature is ``sqrt(2 / D) cos(w x + b)`` with a normal vector w. Rows and w are rounded to grids,
and ``w x`` modulo one turn is computed with integers: 16-bit slices are multiplied as float64,
which is exact in any order of summation. The cosine is a polynomial.
"""

from math import factorial, frexp, pi
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from letheon.data import Frame, hold_table, numbers_of
from letheon.delta import Delta, RowSource, StableTransformer, StepPlan, Table
from letheon.guarantee import Guarantee, MethodFacts
from letheon.noise import NoiseSource
from letheon.seeds import Purpose, keyed_hash, mix64
from letheon.validation import POSITIVE, Rules, Whole, validate_parameters

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# Rows are rounded to multiples of 2**-16 and clipped to 31 bits.
_ROW_BITS = 16
_LARGEST = 2**31 - 1
_NORMAL_SCALE = 2**20
# A frequency is below 16 deviations, so that it fits into 31 bits.
_FREQUENCY_BITS = 26
_MOST_COLUMNS = 2**20
_SLICE = 2**16
# sin(pi z / 2) / z as a polynomial in z**2, highest power first; the error is below 1e-13.
_SINE = [(-1.0) ** k * (pi / 2) ** (2 * k + 1) / factorial(2 * k + 1) for k in range(10)][::-1]


def _quarter_sine(z: Floats) -> Floats:
    """Return sin(pi z / 2) for z in [0, 1], with additions and multiplications only."""
    square = z * z
    value = np.full_like(z, _SINE[0])
    for coefficient in _SINE[1:]:
        value *= square
        value += coefficient
    return value * z


def turn_cosine(phases: NDArray[np.uint64]) -> Floats:
    """Return the cosine of angles in units of 2**-64 turns.

    Examples
    --------
    >>> turn_cosine(np.array([0, 2**62, 2**63], np.uint64)).round(9) + 0.0
    array([ 1.,  0., -1.])
    """
    quarters = (phases >> np.uint64(62)).astype(np.int64)
    rest = (phases << np.uint64(2) >> np.uint64(12)).astype(np.float64) * 2.0**-52
    # cos falls in even quarters and rises, in absolute value, in odd ones.
    z = np.where(quarters % 2 == 0, 1.0 - rest, rest)
    return np.where((quarters == 1) | (quarters == 2), -1.0, 1.0) * _quarter_sine(z)


def _split(values: Any) -> tuple[Any, Any]:
    """Return the upper and lower 16 bits of integers, as float64; upper * 2**16 + lower."""
    if not sp.issparse(values):
        return (values >> 16).astype(np.float64), (values & (_SLICE - 1)).astype(np.float64)
    parts = _split(values.data)
    upper, lower = (
        sp.csr_array((part, values.indices, values.indptr), shape=values.shape) for part in parts
    )
    return upper, lower


def multiply_exactly(X: Any, W: Integers) -> Integers:
    """Return ``X @ W`` of integers of 32 bits, modulo 2**64, by exact products of slices."""
    (x_upper, x_lower), (w_upper, w_lower) = _split(X), _split(W)
    upper = (x_upper @ w_upper).astype(np.int64)
    middle = (x_upper @ w_lower).astype(np.int64) + (x_lower @ w_upper).astype(np.int64)
    lower = (x_lower @ w_lower).astype(np.int64)
    product: Integers = (upper << 32) + (middle << 16) + lower
    return product


class FourierWeights:
    """Frequencies and phases; a function of the seed, gamma and the numbers of columns.

    Parameters
    ----------
    frequencies : ndarray of int64, shape (n_columns, n_components)
        Frequencies in turns, in units of ``2**-bits``.
    phases : ndarray of uint64, shape (n_components,)
        Phases in units of 2**-64 turns.
    bits : int
        Binary digits of the frequencies.

    Examples
    --------
    >>> from letheon.sums import FourierWeights
    >>> weights = FourierWeights.draw(seed=0, gamma=1.0, shape=(2, 5))
    >>> weights.compute_features(np.zeros((3, 2))).shape
    (3, 5)
    """

    def __init__(self, frequencies: Integers, phases: NDArray[np.uint64], bits: int) -> None:
        self.frequencies, self.phases, self.bits = frequencies, phases, bits

    @classmethod
    def draw(cls, seed: int, gamma: float, shape: tuple[int, int]) -> "FourierWeights":
        """Draw the weights of each column with its own key."""
        # w has the variance 2 gamma; divided by 2 pi it is in turns.
        deviation = float(np.sqrt(2.0 * gamma)) / (2.0 * pi)
        bits = _FREQUENCY_BITS - frexp(deviation)[1]
        if not 0 <= bits <= 64 - _ROW_BITS:
            raise ValueError(f"gamma={gamma}; expected a number from 1e-11 to 1e15")
        factor = deviation * 2.0**bits / _NORMAL_SCALE
        n_columns, n_components = shape
        frequencies = np.empty(shape, np.int64)
        for column in range(n_columns):
            source = NoiseSource(keyed_hash(seed, Purpose.FOURIER, column))
            normals = source.discrete_normals(n_components, _NORMAL_SCALE)
            frequencies[column] = np.rint(normals * factor)
        np.clip(frequencies, -_LARGEST, _LARGEST, out=frequencies)
        key = keyed_hash(seed, Purpose.FOURIER_PHASE)
        return cls(frequencies, mix64(key, np.arange(n_components, dtype=np.uint64)), bits)

    def compute_features(self, X: Any) -> Floats:
        """Return the features of rows."""
        turns = multiply_exactly(_round_rows(X), self.frequencies).view(np.uint64)
        phases = (turns << np.uint64(64 - _ROW_BITS - self.bits)) + self.phases
        return np.asarray(turn_cosine(phases) * np.sqrt(2.0 / len(self.phases)))

    def _to_state(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> "FourierWeights":
        if state["frequencies"].shape[1:] != state["phases"].shape:
            raise ValueError("not valid features: expected one phase per frequency")
        return cls(state["frequencies"], state["phases"], state["bits"])


def _round_rows(X: Any) -> Any:
    """Return rows as integers of 32 bits."""
    if sp.issparse(X):
        return sp.csr_array((_round_rows(X.data), X.indices, X.indptr), shape=X.shape)
    return np.clip(np.rint(X * 2.0**_ROW_BITS), -_LARGEST, _LARGEST).astype(np.int64)


class RandomFeatures(StableTransformer):
    """Random Fourier features: inner products approximate the kernel ``exp(-gamma |x - z|^2)``.

    A linear model on these features approximates a kernel machine. The features of a row do not
    depend on other rows, so a model that forgets exactly does so on these features too.

    Parameters
    ----------
    gamma : float, default=1.0
        Parameter of the kernel. "scale", which depends on the rows, is refused: put a
        `letheon.preprocessing.StandardScaler` in front, and divide by the number of columns.
    n_components : int, default=100
        Number of features.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the features.

    Attributes
    ----------
    n_features_in_ : int
        Number of columns.

    Notes
    -----
    Guarantee: exact; there is nothing to forget except the number of rows. Values are rounded to
    multiples of 2**-16 and clipped to 2**15, so scale the columns first. Features are the same bit
    by bit on every machine.

    References
    ----------
    Rahimi and Recht, "Random features for large-scale kernel machines", NeurIPS 2007.

    Examples
    --------
    >>> from letheon.sums import RandomFeatures
    >>> features = RandomFeatures(gamma=0.5, n_components=500, random_state=0)
    >>> Z = features.fit_transform([[0.0, 0.0], [1.0, 1.0]])
    >>> abs(Z[0] @ Z[1] - 0.3679) < 0.1
    np.True_
    """

    _input_tags = ("sparse",)
    facts: ClassVar[MethodFacts] = MethodFacts(
        method="random-features",
        applicability="features of the RBF kernel",
        exact=True,
        strength="strong",
        definition_name="random-features",
        families=("any",),
        batches=True,
        replay="bitwise",
    )
    _parameter_rules: ClassVar[Rules] = {"gamma": POSITIVE, "n_components": Whole(1)}

    published_: FourierWeights

    def __init__(
        self, *, gamma: float = 1.0, n_components: int = 100, random_state: Any = None
    ) -> None:
        self.gamma = gamma
        self.n_components = n_components
        self.random_state = random_state

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:  # noqa: ARG002
        """Return the names of the features: randomfeatures0, randomfeatures1, ..."""
        check_is_fitted(self)
        return np.array([f"randomfeatures{k}" for k in range(self.n_components)], object)

    def _check_parameters(self) -> None:
        if isinstance(self.gamma, str):
            raise ValueError(
                f"gamma={self.gamma!r} depends on the rows; expected a number. Scale the columns "
                "and use 1 / n_columns"
            )
        validate_parameters(self)

    def _convert_table(self, X: Any, *, copy: bool) -> Table:
        X = numbers_of(X) if isinstance(X, Frame) else X
        table = check_array(X, accept_sparse="csr", dtype=np.float64, order="C", estimator=self)
        return hold_table(table) if copy else table

    def _count(self, source: RowSource, seed: int) -> tuple[Any, FourierWeights]:
        n_columns = int(next(source.blocks()).X.shape[1])
        if n_columns > _MOST_COLUMNS:
            raise ValueError(f"X has {n_columns} columns; expected at most {_MOST_COLUMNS}")
        for block in source.blocks():
            self._convert_table(block.X, copy=False)
        return (), FourierWeights.draw(seed, self.gamma, (n_columns, self.n_components))

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        if delta.layout is not None or delta.columns:
            return self._rebuild_plan(delta)
        for _, block in delta.iter_signed():
            self._convert_table(block.X, copy=False)
        return StepPlan(published=self.published_)

    def _apply_plan(self, plan: StepPlan) -> None:
        super()._apply_plan(plan)
        self.n_features_in_ = len(plan.published.frequencies)

    def _count_outputs(self, published: FourierWeights) -> int:
        return len(published.phases)

    def _transform_with(self, published: FourierWeights, X: Table) -> Floats:
        return published.compute_features(numbers_of(X) if isinstance(X, Frame) else X)

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(
            kind="exact",
            reference="features of a row are a function of the row and the seed",
            assumptions=("seed-independent-of-requests",),
        )
