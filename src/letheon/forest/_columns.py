"""Columns of a forest in a pipeline: keys from names, and columns that leave or arrive.

A forest in a pipeline draws by a key for each column instead of its number. A column that is
constant in all rows influences no tree, so it can leave or arrive without a change of the trees.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon.data import TextIds
from letheon.delta import Delta
from letheon.forest._inputs import ForestSettings, resolve_max_features
from letheon.seeds import Purpose

Keys = NDArray[np.uint32]

_N_KEYS = 1 << 32


def keys_from_names(names: Sequence[Any], seed: int) -> Keys:
    """Return distinct keys of columns, which depend only on their names and the seed."""
    seen: Counter[str] = Counter()
    texts = []
    for name in names:
        text = str(name).encode(errors="backslashreplace").decode()
        texts.append(f"{text}\0{seen[text]}" if seen[text] else text)
        seen[text] += 1
    keys = _hash_texts(texts, seed)
    if len(set(keys)) < len(keys):
        used: set[int] = set()
        for place in sorted(range(len(texts)), key=texts.__getitem__):
            while keys[place] in used:
                keys[place] = (keys[place] + 1) % _N_KEYS
            used.add(keys[place])
    return np.array(keys, np.uint32)


def _hash_texts(texts: list[str], seed: int) -> list[int]:
    hashes = TextIds.from_strings(texts).hashes(seed, Purpose.COLUMN)
    keys: list[int] = (hashes >> np.uint64(32)).tolist()
    return keys


@dataclass(frozen=True)
class ColumnChange:
    """Other columns of a forest with the same trees.

    Attributes
    ----------
    layout : ndarray of int64
        The old number of each column, or -1 for a new column.
    fills : ndarray of float32
        The value of each new column in all rows; 0 for other columns.
    keys : ndarray of uint32
        The key of each column.
    settings : ForestSettings
        The settings for the new columns.
    """

    layout: NDArray[np.int64]
    fills: NDArray[np.float32]
    keys: Keys
    settings: ForestSettings

    def find_dropped(self, n_before: int) -> list[int]:
        """Return the old columns that leave."""
        return sorted(set(range(n_before)) - set(self.layout.tolist()))

    def invert(self, settings: ForestSettings, keys: Keys) -> "ColumnChange":
        """Return the change back to the old settings and keys; only if no column leaves."""
        layout = np.empty(len(keys), np.int64)
        places = np.flatnonzero(self.layout >= 0)
        layout[self.layout[places]] = places
        return ColumnChange(layout, np.zeros(len(keys), np.float32), keys, settings)


def compare_columns(
    settings: ForestSettings, keys: Keys, max_features: Any, delta: Delta, names: Sequence[Any]
) -> ColumnChange | None:
    """Return the change of the columns of a forest, or None if its trees may change too.

    `settings` and `keys` are those of the forest, `max_features` is its parameter, and `names` are
    the names of the new columns. The caller checks that columns that leave are constant.
    """
    layout = delta.layout
    if layout is None or delta.replaced is not None or (layout[list(delta.columns)] >= 0).any():
        return None
    new_keys = keys_from_names(names, settings.seed)
    kept = layout >= 0
    if not np.array_equal(new_keys[kept], keys[layout[kept]]):
        return None  # keys collide
    considered = resolve_max_features(max_features, len(layout))
    # Another number changes no node that considers all columns that vary.
    fewest = min(considered, settings.max_features)
    if considered != settings.max_features and fewest < np.count_nonzero(kept):
        return None
    fills = _find_constants(delta, np.flatnonzero(~kept), len(layout))
    if fills is None:
        return None
    after = replace(settings, n_columns=len(layout), max_features=considered)
    return ColumnChange(layout, fills, new_keys, after)


def _find_constants(
    delta: Delta, columns: NDArray[np.int64], n_columns: int
) -> NDArray[np.float32] | None:
    """Return the values of new columns in the rows that remain, or None if one varies."""
    fills = np.zeros(n_columns, np.float32)
    if len(columns) == 0:
        return fills
    first: NDArray[np.float32] | None = None
    with np.errstate(over="ignore"):
        for block in replace(delta.source, added=None).blocks():
            if sp.issparse(block.X):
                return None
            values = np.asarray(block.X)[:, columns].astype(np.float32)
            first = values[0] if first is None else first
            is_same = (values == first) | (np.isnan(values) & np.isnan(first))
            if not is_same.all() or np.isinf(first).any():
                return None
    assert first is not None
    fills[columns] = first
    return fills
