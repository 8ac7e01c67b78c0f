"""Rows as each family wants them, prepared without a look at the rows that may be forgotten.

Linear models and nets get columns that are centred and scaled by constants, and clipped at 3.
The constants are means and deviations over rows that are set aside: they are neither trained nor
tested on, so nobody who leaves has a part in them. Linear models then get a column of ones, and
every row is divided by its norm. Images are pixels in 0..1: nets see them as they are, linear
models divided by their norms; those of CIFAR are first made smaller (means of 4 x 4 pixels, 192
numbers). Forests get the provider's numbers, and words as codes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from letheon.bench._grid import Family
from letheon.datasets import load

__all__ = ["Prepared", "prepared"]

_VARIANTS = {"mnist": "3-vs-8", "covtype": "binary"}
_SHIPPED = ("breast-cancer", "digits")
_ASIDE = 1_000
_READ_ROWS = 5_000
_MOST_ASIDE_SHARE = 0.1
_TEST_SHARE = 0.2
_CLIP = 3.0
_FIVE = 5
_POOLED_PIXELS = 1_024
# Rounding must not push a row over the declared norm 1.
_NO_MORE_THAN_ONE = 1 + 1e-15

Synthetic = Literal["never", "if-absent"]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Rows to train and to test on, and whose they are.

    `constants` are the rows set aside, `shape` is that of an image.
    """

    name: str
    title: str
    X: Any
    y: NDArray[Any]
    ids: NDArray[Any]
    X_test: Any
    y_test: NDArray[Any]
    shape: tuple[int, ...] | None
    real: bool = True
    constants: Any = None

    @property
    def is_image(self) -> bool:
        """Whether rows are images."""
        return self.shape is not None

    @property
    def n_people(self) -> int:
        """People who own training rows."""
        return len(np.unique(self.ids))


@lru_cache(maxsize=4)
def prepared(
    name: str,
    family: Family,
    rows: int,
    test_rows: int,
    seed: int = 0,
    synthetic: Synthetic = "never",
) -> Prepared:
    """Return a data set for a family, with so many rows at most.

    Parameters
    ----------
    name : str
        One of `letheon.datasets.names`, "breast-cancer" or "digits".
    family : {"linear", "forest", "net"}
        Who trains on it.
    rows, test_rows : int
        Rows at most.
    seed : int, default=0
        Seed of splits and samples.
    synthetic : {"never", "if-absent"}, default="never"
        Whether a made-up table may stand in for absent files.

    Returns
    -------
    Prepared
        With fresh arrays; do not write into them, they are shared.
    """
    encode = "ordinal" if family == "forest" else "one-hot"
    data = _cut(_read(name, encode, max(rows, _READ_ROWS), seed, synthetic), rows, test_rows, seed)
    X, X_test = (_FEATURES[family](part, data) for part in (data.X, data.X_test))
    shape = " x ".join(map(str, X.shape[1:]))
    title = f"{data.title}: {len(data.y):,} rows of {shape}, {len(data.y_test):,} to test"
    return replace(data, title=title, X=X, X_test=X_test, constants=None)


@lru_cache(maxsize=2)
def _read(name: str, encode: Any, rows: int, seed: int, synthetic: Synthetic) -> Prepared:
    """Read a table; it is kept, since cells of different sizes are cut from the same one."""
    if name in _SHIPPED:
        return _read_shipped(name, seed)
    n_read = int((rows + _ASIDE) / (1 - _TEST_SHARE)) + 1
    data = load(
        name,
        variant=_VARIANTS.get(name),
        synthetic=synthetic,
        n_rows=n_read,
        seed=seed,
        encode=encode,
    ).split(_TEST_SHARE, seed)
    return Prepared(
        name=name,
        title=data.name + (f" ({data.note})" if data.note else ""),
        X=data.X,
        y=data.y,
        ids=np.arange(len(data.y)) if data.ids is None else data.ids,
        X_test=data.X_test,
        y_test=np.asarray(data.y_test),
        shape=data.info.image_shape,
        real=data.real,
    )


def _read_shipped(name: str, seed: int) -> Prepared:
    """Return a table that comes with scikit-learn, split by row."""
    from sklearn.datasets import load_breast_cancer, load_digits

    is_image = name == "digits"
    X, y = (load_digits if is_image else load_breast_cancer)(return_X_y=True)
    X = (X / 16 if is_image else X).astype(np.float32)
    y = (y >= _FIVE).astype(np.int64) if is_image else y
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = np.split(order, [int(_TEST_SHARE * len(y))])
    return Prepared(
        name=name,
        title="digits, from 5 on or below" if is_image else name,
        X=X[train],
        y=y[train],
        ids=np.arange(len(train)),
        X_test=X[test],
        y_test=y[test],
        shape=(1, 8, 8) if is_image else None,
    )


def _cut(data: Prepared, rows: int, test_rows: int, seed: int) -> Prepared:
    """Set people aside for the constants, and keep so many rows of the others."""
    rng = np.random.default_rng(seed)
    people, owner = np.unique(data.ids, return_inverse=True)
    order = rng.permutation(len(people))
    n_owned = np.cumsum(np.bincount(owner)[order])
    n_aside = min(_ASIDE, int(_MOST_ASIDE_SHARE * len(data.y)))
    first, last = np.searchsorted(n_owned, [n_aside, n_aside + rows], side="right")
    aside = np.flatnonzero(np.isin(owner, order[:first]))
    kept = np.flatnonzero(np.isin(owner, order[first : max(last, first + 1)]))
    tested = np.sort(rng.permutation(len(data.y_test))[:test_rows])
    return replace(
        data,
        X=np.asarray(data.X[kept]),
        y=data.y[kept],
        ids=data.ids[kept],
        X_test=np.asarray(data.X_test[tested]),
        y_test=data.y_test[tested],
        constants=np.asarray(data.X[aside]),
    )


def _scaled(X: Any, data: Prepared) -> NDArray[np.float64]:
    known = np.asarray(data.constants, np.float64)
    filled = np.where(np.isfinite(known), known, np.nan)
    # A column without any number among the constants stays zero.
    mean = np.nan_to_num(np.nanmean(filled, axis=0)) if len(known) else 0.0
    spread = np.nan_to_num(np.nanstd(filled, axis=0)) if len(known) else 1.0
    scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=np.asarray(spread) > 0)
    scaled = np.clip((np.asarray(X, np.float64) - mean) * scale, -_CLIP, _CLIP)
    return np.asarray(np.nan_to_num(scaled))


def _for_linear(X: Any, data: Prepared) -> NDArray[np.float64]:
    table = _pooled(X, data.shape) if data.shape is not None else _scaled(X, data)
    whole = np.column_stack([table, np.ones(len(table))])
    norms = np.linalg.norm(whole, axis=1, keepdims=True) * _NO_MORE_THAN_ONE
    return np.ascontiguousarray(whole / norms)


def _pooled(X: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return pixels; of large images the means of 4 x 4."""
    pixels = np.asarray(X, np.float64).reshape(-1, *shape)
    if np.prod(shape) > _POOLED_PIXELS:
        channels, height, width = shape
        blocks = pixels.reshape(-1, channels, height // 4, 4, width // 4, 4)
        pixels = blocks.mean(axis=(3, 5))
    return pixels.reshape(len(pixels), -1)


def _for_net(X: Any, data: Prepared) -> NDArray[np.float32]:
    if data.shape is None:
        return np.ascontiguousarray(_scaled(X, data), np.float32)
    return np.ascontiguousarray(np.asarray(X, np.float32).reshape(-1, *data.shape))


_FEATURES: dict[Family, Callable[[Any, Prepared], NDArray[Any]]] = {
    "linear": _for_linear,
    "forest": lambda X, _: np.ascontiguousarray(X, np.float32),
    "net": _for_net,
}
