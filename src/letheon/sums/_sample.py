"""Keyed samples of people: the ids whose keyed hash is below a border."""

import numpy as np
from numpy.typing import NDArray

from letheon.data import Ids
from letheon.purposes import Purpose
from letheon.sums._rounding import round_count
from letheon.validation import Whole

_RANGE = 1 << 64
# Rules of parameters. Larger values make no difference, or take all time and memory.
SAMPLE_SIZE = Whole(1, 10**9)
FOLDS = Whole(2, 1000)


def sample_border(n_people: int, n_total: int) -> int:
    """Return the border of hashes below which a person is in a sample of about `n_people`.

    It depends on the rounded number of people in total, so it rarely changes when people are
    removed. The expected size of the sample is `n_people` to 1.2 times `n_people`, or everyone.

    Parameters
    ----------
    n_people : int
        Number of people wanted.
    n_total : int
        Number of people in total.

    Returns
    -------
    int
        A border between 0 and 2**64.

    Examples
    --------
    >>> from letheon.sums import sample_border
    >>> sample_border(100, 50) == 2**64
    True
    >>> sample_border(100, 1000) == sample_border(100, 999)
    True
    """
    return min(_RANGE, int(n_people) * _RANGE // max(1, round_count(n_total)))


def draw_sample(
    ids: Ids, seed: int, purpose: Purpose, n_people: int, n_total: int
) -> NDArray[np.bool_]:
    """Return for each id whether it is in the keyed sample.

    Parameters
    ----------
    ids : Ids
        Ids to look up.
    seed, purpose
        Key of the sample.
    n_people : int
        Expected number of people in the sample.
    n_total : int
        Number of people in total.

    Returns
    -------
    ndarray of bool

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.data import as_ids
    >>> from letheon.purposes import Purpose
    >>> from letheon.sums import draw_sample
    >>> everyone = as_ids(np.arange(10_000))
    >>> int(draw_sample(everyone, 7, Purpose.SEARCH_SAMPLE, 500, 10_000).sum())
    522
    """
    border = sample_border(n_people, n_total)
    hashes = ids.hashes(seed, purpose)
    return np.ones(len(ids), bool) if border == _RANGE else hashes < np.uint64(border)
