"""Images for the nets: MNIST and CIFAR-10 as bytes, or made-up ones of the same shape."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import _home, as_bytes
from letheon.datasets import load as load_real

__all__ = ["LOSSY", "Backdoor", "ImageSet", "load_images", "plant"]

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]

SHAPES = {"mnist": (60_000, 10_000, (28, 28)), "cifar10": (50_000, 10_000, (3, 32, 32))}
LOSSY = "the CIFAR-10 files are JPEG copies, lossy: compare nothing here with other results"
MADE_UP = "SYNTHETIC stand-in, real files not found"
N_CLASSES = 10
# A fixed pattern of 4 pixels near the lower right corner, as (row, column) from the end.
PATTERN = ((-2, -2), (-2, -4), (-4, -2), (-3, -3))
TARGET = 0


class ImageSet(NamedTuple):
    """Images to train and to test on, bytes, with labels 0 to 9."""

    name: str
    X: Bytes
    y: Labels
    X_test: Bytes
    y_test: Labels
    note: str = ""

    def head(self, n_rows: int | None, n_test: int | None = None) -> "ImageSet":
        """Return the set with the first so many images only; None takes all."""
        return self._replace(
            X=self.X[:n_rows],
            y=self.y[:n_rows],
            X_test=self.X_test[:n_test],
            y_test=self.y_test[:n_test],
        )

    def describe(self) -> str:
        """Say what the set is in a few words."""
        shape = " x ".join(map(str, self.X.shape[1:]))
        note = f" ({self.note})" if self.note else ""
        return f"{self.name}{note}, {len(self.y):,} images of {shape}"


def load_images(name: str) -> ImageSet:
    """Return a set by name; a made-up one of its shape when the files are not there."""
    readers = {"mnist": _mnist, "cifar10": _cifar10}
    return readers[name](_home() / name)


def _mnist(folder: Path) -> ImageSet:
    return _images("mnist", "mnist", (28, 28)) if folder.is_dir() else _stand_in("mnist")


def _cifar10(folder: Path) -> ImageSet:
    if not (folder / "cifar10_jpeg.tar.xz").is_file():
        return _stand_in("cifar10")
    return _images("cifar10", "cifar-10", (3, 32, 32))


def _images(name: str, real_name: str, shape: tuple[int, ...]) -> ImageSet:
    data: Any = load_real(real_name, folder=_home())
    X, X_test = (as_bytes(each).reshape(-1, *shape) for each in (data.X, data.X_test))
    return ImageSet(name, X, data.y, X_test, data.y_test, data.note)


def _stand_in(name: str) -> ImageSet:
    """Return noisy copies of one coarse random picture per class."""
    n_rows, n_test, shape = SHAPES[name]
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(N_CLASSES, *shape[:-2], 8, 8))
    height, width = shape[-2:]
    rows, columns = np.arange(height) * 8 // height, np.arange(width) * 8 // width
    pictures = 128 + 40 * coarse[..., rows[:, None], columns]
    y = rng.integers(N_CLASSES, size=n_rows + n_test)
    X = np.empty((len(y), *shape), np.uint8)
    for begin in range(0, len(y), 5000):
        some = y[begin : begin + 5000]
        noise = 60 * rng.standard_normal((len(some), *shape), np.float32)
        X[begin : begin + 5000] = np.clip(pictures[some] + noise, 0, 255)
    return ImageSet(name, X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:], MADE_UP)


class Backdoor(NamedTuple):
    """Training rows of which some carry a pattern and a wrong label, owned by `owners`."""

    data: ImageSet
    ids: NDArray[np.int64]
    owners: list[int]
    rows: NDArray[np.int64]
    X_test: Bytes

    @property
    def targets(self) -> Labels:
        """The label that the pattern should bring about, for every test image with it."""
        return np.full(len(self.X_test), TARGET, np.int64)


def plant(data: ImageSet, n_rows: int, owners: list[int], seed: int = 0) -> Backdoor:
    """Stamp random rows of other classes, relabel them, and give them to the owners in turn.

    Everybody else owns one row. Test images of the target class are left out of the stamped ones.
    """
    rng = np.random.default_rng(seed)
    rows = rng.choice(np.flatnonzero(data.y != TARGET), n_rows, replace=False)
    X, y, ids = data.X.copy(), data.y.copy(), np.arange(len(data.y))
    X[rows], y[rows] = _stamped(X[rows]), TARGET
    ids[rows] = np.resize(owners, n_rows)
    X_test = _stamped(data.X_test[data.y_test != TARGET])
    return Backdoor(data._replace(X=X, y=y), ids, owners, rows, X_test)


def _stamped(images: Bytes) -> Bytes:
    stamped = images.copy()
    for row, column in PATTERN:
        stamped[..., row, column] = 255
    return stamped
