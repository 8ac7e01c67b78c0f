"""Weights of rows in fixed point, and weights of classes.

A weight is an integer in steps of ``2**-weight_bits``. With `class_weight` it is multiplied by the
integer factor of the class, in steps of ``2**-8``, so a new factor changes a weight exactly.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from math import isqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from letheon.seeds import Purpose, keyed_hash
from letheon.sums import round_logs
from letheon.validation import ParameterRule, is_number

FACTOR_BITS = 8
_MOST_WEIGHT = 2**31 - 1
# The logarithm of a balanced weight is rounded to steps of 2**-2: neighbours differ by a fifth.
_LOG_BITS = 2

Counts = NDArray[np.int64]
Weights = NDArray[np.uint32]


class ClassWeightRule(ParameterRule):
    """The rule that a value is None, "balanced" or a dict of positive weights by class.

    Examples
    --------
    >>> from letheon.forest import ClassWeightRule
    >>> [ClassWeightRule().accepts(value) for value in (None, "balanced", {0: 2.0}, "heavy")]
    [True, True, True, False]
    """

    text = "None, 'balanced', or a dict of positive weights by class"

    def accepts(self, value: Any) -> bool:
        """Return whether a value is of one of these kinds."""
        if value is None or (isinstance(value, str) and value == "balanced"):
            return True
        return isinstance(value, dict) and all(
            is_number(weight) and 0 < weight * 2**FACTOR_BITS <= _MOST_WEIGHT
            for weight in value.values()
        )


class WeightSettings:
    """Settings of weights: what the dataclasses of resolved settings have in common.

    Examples
    --------
    >>> from letheon.forest import WeightSettings
    >>> WeightSettings.__annotations__["weight_bits"]
    <class 'int'>
    """

    categorical: tuple[int, ...]
    weight_bits: int
    class_weight: Any

    @property
    def weight_step(self) -> int:
        """Weight of a row of weight 1 in the core."""
        return 1 << (self.weight_bits + (0 if self.class_weight is None else FACTOR_BITS))

    def _to_state(self: Any) -> dict[str, Any]:
        # Without the settings that older files do not have, as long as they are not used.
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.default is MISSING or getattr(self, field.name) != field.default
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        make: Callable[..., Self] = cls
        settings = make(**state)
        kinds = {field.name: field.type for field in fields(cls)}  # type: ignore[arg-type]
        for name, kind in kinds.items():
            if kind is int and type(state.get(name, 0)) is not int:
                raise ValueError(f"{name}={state[name]!r:.80}; expected an integer")
        if not isinstance(settings.categorical, tuple) or settings.weight_bits not in range(17):
            raise ValueError("the settings of categories or weights are damaged")
        if not ClassWeightRule().accepts(settings.class_weight):
            raise ValueError(f"class_weight must be {ClassWeightRule.text}")
        return settings


@dataclass(frozen=True, eq=False)
class ClassBalance:
    """Weights of the classes.

    Parameters
    ----------
    counts : ndarray of int64
        Number of rows of each class, by code.
    factors : ndarray of int64
        Integer factor of each class; 1 for an unused code.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.forest import ClassBalance
    >>> labels, counts = np.array([0, 1]), np.array([30, 10])
    >>> ClassBalance.from_counts({0: 1.0, 1: 3.0}, 7, labels, counts).factors.tolist()
    [256, 768]
    """

    counts: Counts
    factors: Weights

    @classmethod
    def from_counts(
        cls, class_weight: Any, seed: int, labels: NDArray[Any], counts: Counts
    ) -> Self:
        """Return the factors for these numbers of rows: a function of the arguments alone."""
        factors = np.ones(len(counts), np.uint32)
        codes = np.flatnonzero(counts)
        present = labels[codes].tolist()
        if isinstance(class_weight, dict):
            weights = [class_weight.get(label, 1) * 2**FACTOR_BITS for label in present]
            factors[codes] = np.maximum(np.rint(weights), 1).astype(np.uint32)
        else:
            parts = [x if type(x) in (int, str) else str(x) for x in present]
            hashes = [keyed_hash(seed, Purpose.CLASS_WEIGHT, part) for part in parts]
            sizes = counts[codes] * len(codes)
            totals = np.full(len(codes), counts.sum())
            logs = round_logs(totals, sizes, np.array(hashes, np.uint64), bits=_LOG_BITS)
            factors[codes] = [_power(log) for log in logs.tolist()]
        return cls(counts, factors)

    def move_rows(
        self, class_weight: Any, seed: int, labels: NDArray[Any], codes: NDArray[Any], sign: int
    ) -> Self:
        """Return the balance after rows of these classes arrive (sign 1) or leave (sign -1)."""
        moved = np.bincount(codes.astype(np.int64), minlength=len(labels))
        if sign > 0:
            require_class_weights(class_weight, labels[np.flatnonzero(moved)])
        counts = np.zeros(len(moved), np.int64)
        counts[: len(self.counts)] = self.counts
        return self.from_counts(class_weight, seed, labels, counts + sign * moved)

    def weigh(self, weights: Weights | None, codes: NDArray[Any]) -> Weights:
        """Return the weights of rows times the factors of their classes."""
        factors = self.factors[codes].astype(np.uint64)
        products: NDArray[np.uint64] = factors if weights is None else factors * weights
        require_total(products)
        return products.astype(np.uint32)

    def extend(self, length: int) -> Weights:
        """Return the factors for `length` codes."""
        return np.concatenate([self.factors, np.ones(length - len(self.factors), np.uint32)])


def require_class_weights(class_weight: Any, labels: NDArray[Any]) -> None:
    """Raise `ValueError` if a dict of weights has none for one of these labels.

    Weights of labels without rows are allowed. So rows that are accepted are also accepted after
    any removal, when the last row of a class may have left, and as a shard or a sample.
    """
    if not isinstance(class_weight, dict):
        return
    missing = [label for label in labels.tolist() if label not in class_weight]
    if missing:
        raise ValueError(
            f"class_weight has no weight for {len(missing)} of the classes in y: "
            f"{missing[:5]!r:.200}; its keys are {list(class_weight)[:5]!r:.200}. Expected a "
            "weight for each class; use 1 for classes that keep their weight"
        )


def _power(log: int) -> int:
    """Return 2**(FACTOR_BITS + log / 4), rounded down, but at least 1."""
    exponent = max(0, 4 * FACTOR_BITS + log)
    return min(isqrt(isqrt(1 << exponent)), _MOST_WEIGHT)


def as_weights(sample_weight: Any, n_rows: int, bits: int = 0) -> Weights | None:
    """Return the weights of the rows in steps of ``2**-bits``, or None if all are 1.

    Parameters
    ----------
    sample_weight : array-like or None
        The weights; None means 1 for each row.
    n_rows : int
        Number of rows.
    bits : int, default=0
        Binary digits after the point.

    Returns
    -------
    ndarray of uint32, or None

    Raises
    ------
    ValueError
        There is not one weight for each row, or a weight is negative or not a multiple of the step.

    Examples
    --------
    >>> from letheon.forest import as_weights
    >>> as_weights([1, 2, 0.5], n_rows=3, bits=2).tolist()
    [4, 8, 2]
    """
    if sample_weight is None:
        return None if bits == 0 else np.full(n_rows, 2**bits, np.uint32)
    if np.asarray(sample_weight).ndim == 0:
        raise ValueError(
            f"sample_weight={sample_weight!r} is a single value; expected one weight for each of "
            f"the {n_rows} rows"
        )
    values: NDArray[Any] = check_array(
        sample_weight, ensure_2d=False, dtype=None, input_name="sample_weight"
    )
    if values.shape != (n_rows,):
        raise ValueError(
            f"sample_weight has shape {values.shape}; expected one weight for each of the "
            f"{n_rows} rows"
        )
    steps, wrong = values, values
    if values.dtype.kind in "biuf":
        steps = np.rint(values * 2.0**bits) if bits else values
        is_lost = (steps == 0) & (values != 0) if bits else values != np.floor(values)
        wrong = values[(values < 0) | is_lost]
    if len(wrong):
        expected, advice = "whole numbers of at least 0", "For fractions use weight_bits=8 or more."
        if bits:
            expected = f"0 or more than {0.5 ** (bits + 1):g}"
            advice = f"Smaller weights are rounded to 0: use more than weight_bits={bits}."
        raise ValueError(
            f"sample_weight contains {wrong.tolist()[0]!r}; expected {expected}, because a weight "
            f"is stored in steps of 2**-weight_bits. {advice} To pass ids, use the keyword ids="
        )
    require_total(steps)
    return steps.astype(np.uint32)


def require_total(steps: NDArray[Any]) -> None:
    """Raise `ValueError` if the sum of the weights does not fit into the core."""
    if steps.sum(dtype=np.float64) > _MOST_WEIGHT:
        raise ValueError(
            f"the sum of sample_weight is larger than {_MOST_WEIGHT} steps; use smaller weights or "
            "fewer weight_bits"
        )
