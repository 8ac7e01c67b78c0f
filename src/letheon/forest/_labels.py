"""Class labels and the codes by which the core knows them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from letheon.data import hold_target, join_target

Codes = NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Labels by code. Immutable; a label whose last row left is wiped and its code is free.

    Codes follow the order in which classes came, so they are private to a model in memory:
    everything that leaves it counts classes in sorted order.
    """

    labels: NDArray[Any]
    held: NDArray[np.bool_]

    @classmethod
    def of(cls, y: NDArray[Any]) -> tuple[Self, Codes]:
        """Return the table of these labels, and their codes."""
        labels, codes = np.unique(y, return_inverse=True)
        # Of the narrowest text dtype: a wide one would still show the length of an absent label.
        return cls.sorted(hold_target(labels)), codes.astype(np.uint32)

    @classmethod
    def sorted(cls, classes: NDArray[Any]) -> Self:
        """Return the table whose codes are the places in `classes`."""
        return cls(classes, np.ones(len(classes), bool))

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def order(self) -> Codes:
        """Codes of the labels that are held, in sorted order of the labels."""
        codes = np.flatnonzero(self.held)
        return codes[np.argsort(self.labels[codes], kind="stable")].astype(np.uint32)

    @cached_property
    def classes(self) -> NDArray[Any]:
        """Labels that are held, sorted."""
        classes = self.labels[self.order]
        classes.flags.writeable = False  # handed out as `classes_`, and kept
        return classes

    @cached_property
    def n_held(self) -> int:
        """Number of labels that are held."""
        return int(np.count_nonzero(self.held))

    @cached_property
    def is_plain(self) -> bool:
        """Whether codes are places in `classes`."""
        return np.array_equal(self.order, np.arange(len(self)))

    def extended(self, y: NDArray[Any]) -> tuple[Self, Codes]:
        """Return the table with the new labels in it, and the codes of `y`."""
        cast = join_target(self.classes, y)
        assert cast is not None
        new, inverse = np.unique(cast[len(self.classes) :], return_inverse=True)
        codes = {label: code for code, label in enumerate(self.labels.tolist()) if self.held[code]}
        free = np.flatnonzero(~self.held).tolist()
        for label in new.tolist():
            if label not in codes:
                codes[label] = free.pop(0) if free else len(codes)
        table = self._of_codes(codes, max(len(self), *(code + 1 for code in codes.values())))
        return table, np.array([codes[label] for label in new.tolist()], np.uint32)[inverse]

    def without_empty(self, counts: NDArray[np.int64]) -> Self:
        """Return the table without the labels that no row has any more."""
        if np.count_nonzero(counts) == self.n_held:  # codes that are free have no rows either
            return self
        kept = enumerate(self.labels.tolist())
        codes = {label: code for code, label in kept if self.held[code] and counts[code]}
        return self._of_codes(codes, len(self))

    def _of_codes(self, codes: dict[Any, int], length: int) -> Self:
        held = np.zeros(length, bool)
        held[list(codes.values())] = True
        values = hold_target(list(codes))  # of the narrowest text dtype again
        labels = np.zeros(length, values.dtype)
        labels[list(codes.values())] = values
        return type(self)(labels, held)
