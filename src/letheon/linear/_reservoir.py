"""Rows drawn with replacement that stay so while people leave and come.

Rows are known by their rank among those held, so nothing is left of a row but a gap that closes.
After any sequence of requests that does not depend on the draws, all places are independent and
uniform over the rows held, as in a fresh fit:

- removal: a place whose row stays was uniform over all rows, so it is uniform over those that stay;
  a place whose row leaves is drawn anew from them;
- addition of m rows to n: a place takes a new row with probability m / (n + m), else it stays.

Draws come from a `NoiseSource`, by default the operating system, and not from hashes of the seed.
A hash of place and number of rows would repeat itself when that number comes back to an earlier
value. And whoever knew the seed would see where a fresh fit draws other rows than are found here.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.noise import NoiseSource
from letheon.removal import opaque_repr

Ranks = NDArray[np.int64]


class Drawn(NamedTuple):
    """Ranks of the rows in every place, and which places have another row than before."""

    ranks: Ranks
    changed: NDArray[np.bool_]

    def __repr__(self) -> str:
        return opaque_repr(self)


def draw(source: NoiseSource, shape: tuple[int, ...], n_rows: int) -> Ranks:
    """Return independent ranks, uniform over `n_rows` rows."""
    return source.integers(shape, n_rows)


def after_removal(source: NoiseSource, ranks: Ranks, gone: Ranks, n_rows: int) -> Drawn:
    """Return the places after the rows of these ranks, ascending, have left `n_rows` rows."""
    below = np.searchsorted(gone, ranks)
    changed = np.searchsorted(gone, ranks, "right") > below
    closed = ranks - below
    closed[changed] = draw(source, (int(changed.sum()),), n_rows - len(gone))
    return Drawn(closed, changed)


def after_addition(source: NoiseSource, ranks: Ranks, n_rows: int, n_new: int) -> Drawn:
    """Return the places after `n_new` rows came after `n_rows` others."""
    drawn = draw(source, ranks.shape, n_rows + n_new)
    changed = drawn >= n_rows
    return Drawn(np.where(changed, drawn, ranks), changed)
