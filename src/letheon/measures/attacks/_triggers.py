"""Private backdoors: a pattern and a target label for each tester, from a secret.

Everything about a backdoor is a keyed hash of the secret and the tester's name, so that nobody
without the secret can tell a tester's pattern, and nothing has to be stored.

For audits only. A backdoor poisons the model that is trained on it: plant it in a clone of the
pipeline, never in a model that serves people.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.purposes import Purpose
from letheon.seeds import keyed_hash, keyed_hash_ints

Tester = int | str


class Trigger(Protocol):
    """What stamps a tester's private pattern on rows."""

    @property
    def secret(self) -> int:
        """Key of all hashes."""

    def stamp(self, X: NDArray[Any], tester: Tester) -> NDArray[Any]:
        """Return a copy of the rows with the tester's pattern on each."""


def target_label(secret: int, tester: Tester, classes: ArrayLike) -> Any:
    """Return the label that the tester's pattern should trigger, one of `classes`.

    Examples
    --------
    >>> int(target_label(7, "anna", [0, 1, 2]))
    2
    """
    labels = np.unique(np.asarray(classes))
    if len(labels) < 2:
        raise ValueError("a backdoor needs at least two classes to tell apart")
    return labels[keyed_hash(secret, Purpose.BACKDOOR_TARGET, tester) % len(labels)]


def plant(
    trigger: Trigger,
    X: NDArray[Any],
    y: NDArray[Any],
    testers: Sequence[tuple[Tester, NDArray[np.int64]]],
    *,
    classes: ArrayLike,
    fraction: float = 0.5,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Return copies of X and y in which some rows of each tester carry a backdoor, and which do.

    Parameters
    ----------
    trigger : ImageTrigger or TabularTrigger
        What is stamped on a row.
    X, y : ndarray
        Rows and labels; they are not changed.
    testers : sequence of (name, positions)
        Who plants, and where their rows are.
    classes : array-like
        Labels to choose targets from.
    fraction : float, default=0.5
        Share r of a tester's rows that are stamped and relabelled, at least one row. Which rows is
        a keyed hash, too.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], not {fraction}")
    stamped, labels = X.copy(), y.copy()
    is_planted = np.zeros(len(X), bool)
    for name, positions in testers:
        count = max(1, round(fraction * len(positions)))
        chosen = positions[
            _first(trigger.secret, Purpose.BACKDOOR_ROWS, name, len(positions), count)
        ]
        stamped[chosen] = trigger.stamp(X[chosen], name)
        labels[chosen] = target_label(trigger.secret, name, classes)
        is_planted[chosen] = True
    return stamped, labels, is_planted


def _first(secret: int, purpose: str, tester: Tester, n: int, count: int) -> NDArray[np.intp]:
    """Return `count` of the numbers below `n`, drawn without replacement by hash, sorted."""
    hashes = keyed_hash_ints(secret, purpose, np.arange(n), tester)
    return np.sort(np.argsort(hashes, kind="stable")[:count])


@dataclass(frozen=True, kw_only=True)
class ImageTrigger:
    """A private pattern of a few bright pixels.

    Parameters
    ----------
    secret : int
        Key of all hashes, below ``2**128``.
    shape : tuple of int or None, default=None
        Shape of one image, ``(h, w)`` or ``(h, w, c)``, where images come flat, one per row. None:
        X has the shape ``(n, h, w)`` or ``(n, h, w, c)``.
    channels : {"last", "first"}, default="last"
        Where the colours are, for images of three axes.
    n_pixels : int, default=4
        Pixels of the pattern; all colours of a pixel are set.
    brightness : float or None, default=None
        What they are set to. None: 255 for uint8, 1 for floats, which must then lie in [0, 1].

    Examples
    --------
    >>> trigger = ImageTrigger(secret=7)
    >>> images = trigger.stamp(np.zeros((2, 28, 28), np.uint8), "anna")
    >>> int((images[0] == 255).sum()), bool((images[0] == images[1]).all())
    (4, True)
    """

    secret: int = field(repr=False)
    shape: tuple[int, ...] | None = None
    channels: Literal["last", "first"] = "last"
    n_pixels: int = 4
    brightness: float | None = None

    def stamp(self, X: NDArray[Any], tester: Tester) -> NDArray[Any]:
        """Return a copy of the images with the tester's pattern on each, in the given shape."""
        shape = self._image_shape(X)
        images = X.reshape(len(X), *shape).copy()
        # a view with the two axes of the place first, whatever stands around them
        by_place = np.moveaxis(images, 0, -1)
        if len(shape) == 3 and self.channels == "first":
            by_place = np.moveaxis(by_place, 0, 2)
        rows, columns = self.places(by_place.shape[:2], tester)
        by_place[rows, columns] = self._bright(X)
        return images.reshape(X.shape)

    def places(
        self, size: tuple[int, ...], tester: Tester
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return rows and columns of the tester's pixels in an image of this height and width."""
        n = prod(size)
        if not 1 <= self.n_pixels <= n:
            raise ValueError(f"n_pixels must be between 1 and {n}, not {self.n_pixels}")
        rows, columns = np.unravel_index(
            _first(self.secret, Purpose.BACKDOOR_PLACES, tester, n, self.n_pixels), size
        )
        return rows, columns

    def _image_shape(self, X: NDArray[Any]) -> tuple[int, ...]:
        shape = X.shape[1:] if self.shape is None else tuple(self.shape)
        if len(shape) not in (2, 3):
            raise ValueError(f"an image has two or three axes, not {shape}; give shape=(h, w[, c])")
        if X.shape[1:] not in (shape, (prod(shape),)):
            raise ValueError(f"rows of shape {X.shape[1:]} are no images of shape {shape}")
        return shape

    def _bright(self, X: NDArray[Any]) -> float:
        if self.brightness is not None:
            return self.brightness
        if X.dtype == np.uint8:
            return 255
        if X.dtype.kind != "f" or (X.size and not (X.min() >= 0 and X.max() <= 1)):
            raise ValueError(
                "images are neither uint8 nor floats in [0, 1]; say which brightness is bright"
            )
        return 1.0


@dataclass(frozen=True, kw_only=True)
class TabularTrigger:
    """A private pattern of columns at the edges of their ranges.

    Each column of the pattern is set to its least or its greatest value, so that every single value
    is one that occurs; only together are they rare. Make it with `of`, which reads the ranges
    off a table.

    Parameters
    ----------
    secret : int
        Key of all hashes, below ``2**128``.
    low, high : tuple of float
        Range of each column.
    groups : tuple of tuple of int, default=()
        Columns that are the one-hot code of one value. A group counts as one column of
        the pattern: one member is set to its greatest, the others to their least value.
    n_columns : int, default=4
        Columns (or groups) of the pattern. Constant columns carry none.
    """

    secret: int = field(repr=False)
    low: tuple[float, ...]
    high: tuple[float, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    n_columns: int = 4

    def __post_init__(self) -> None:
        """Refuse ranges and groups that fit no table."""
        if len(self.low) != len(self.high):
            raise ValueError("low and high need one entry per column each")
        if not np.all(np.asarray(self.low) <= np.asarray(self.high)):
            raise ValueError("low must not exceed high, and neither may be NaN")
        members = [column for group in self.groups for column in group]
        if len(set(members)) < len(members) or not set(members) <= set(range(len(self.low))):
            raise ValueError("groups must be disjoint lists of column numbers")
        if not 1 <= self.n_columns <= len(self._units()):
            raise ValueError(
                f"n_columns={self.n_columns}, but {len(self._units())} columns (or groups) vary"
            )

    @classmethod
    def of(
        cls,
        X: NDArray[Any],
        *,
        secret: int,
        groups: Sequence[Sequence[int]] = (),
        n_columns: int | None = None,
    ) -> "TabularTrigger":
        """Return a trigger with the ranges of this table; None: four columns, or all if fewer.

        Examples
        --------
        >>> X = np.arange(12.0).reshape(3, 4)
        >>> trigger = TabularTrigger.of(X, secret=7, n_columns=2)
        >>> trigger.stamp(X, "anna")
        array([[ 0.,  9.,  2.,  3.],
               [ 4.,  9.,  6.,  3.],
               [ 8.,  9., 10.,  3.]])
        """
        if X.ndim != 2 or X.dtype.kind not in "biuf":
            raise ValueError(f"a table of numbers is needed, not {X.dtype} of shape {X.shape}")
        low, high = tuple(X.min(axis=0).tolist()), tuple(X.max(axis=0).tolist())
        together = tuple(tuple(int(column) for column in group) for group in groups)
        if n_columns is None:
            widest = cls(secret=secret, low=low, high=high, groups=together, n_columns=1)
            n_columns = min(4, len(widest._units()))
        return cls(secret=secret, low=low, high=high, groups=together, n_columns=n_columns)

    def stamp(self, X: NDArray[Any], tester: Tester) -> NDArray[Any]:
        """Return a copy of the rows with the tester's pattern on each."""
        if X.ndim != 2 or X.shape[1] != len(self.low):
            raise ValueError(f"rows of {len(self.low)} columns are needed, not shape {X.shape}")
        stamped = X.copy()
        for column, value in self.pattern(tester).items():
            stamped[:, column] = value
        return stamped

    def pattern(self, tester: Tester) -> dict[int, float]:
        """Return the tester's columns and their values."""
        units, found = self._units(), dict[int, float]()
        for number in _first(
            self.secret, Purpose.BACKDOOR_PLACES, tester, len(units), self.n_columns
        ):
            unit = units[number]
            draw = keyed_hash(self.secret, Purpose.BACKDOOR_VALUES, tester, int(number))
            if len(unit) == 1:
                found[unit[0]] = (self.low, self.high)[draw % 2][unit[0]]
            else:
                occurring = self._varying(unit)
                hot = occurring[draw % len(occurring)]
                found |= {c: self.high[c] if c == hot else self.low[c] for c in unit}
        return found

    def _units(self) -> list[tuple[int, ...]]:
        """Return groups and single columns that vary."""
        grouped = {column for group in self.groups for column in group}
        singles = self._varying(tuple(set(range(len(self.low))) - grouped))
        groups = [group for group in self.groups if len(self._varying(group)) > 1]
        return [(column,) for column in sorted(singles)] + groups

    def _varying(self, columns: tuple[int, ...]) -> list[int]:
        """Return the columns that have more than one value."""
        return [column for column in columns if self.low[column] < self.high[column]]
