"""Tables for benchmarks: real ones from ``$LETHEON_DATA``, else made-up ones of the same shape."""

import csv
import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
SHAPES = {"adult": (45222, 104, 2), "covtype": (15000, 54, 7), "mnist": (60000, 784, 10)}


class Data(NamedTuple):
    """A table with labels, and whether it is the real one."""

    name: str
    X: NDArray[np.float64]
    y: NDArray[Any]
    real: bool

    def sample(self, n_rows: int, seed: int) -> "Data":
        """Return a random sample without repetition (everything when there are fewer rows)."""
        rows = np.random.default_rng(seed).permutation(len(self.y))[:n_rows]
        return self._replace(X=np.ascontiguousarray(self.X[rows]), y=self.y[rows])

    def describe(self) -> str:
        """Say what the table is in a few words."""
        kind = "real" if self.real else "SYNTHETIC stand-in, real files not found"
        return f"{self.name} {self.X.shape[0]:,} x {self.X.shape[1]}, {kind}"


def load(name: str) -> Data:
    """Return a table by name; a synthetic one of its shape when the files are not there."""
    folder = _home() / name
    if folder.is_dir():
        X, y = _READERS[name](folder)
        return Data(name, X, y, real=True)
    return _synthetic(name)


def _home() -> Path:
    given = os.environ.get("LETHEON_DATA")
    return Path(given) if given else ROOT.parent / "shared" / "data"


def _synthetic(name: str) -> Data:
    n_rows, n_features, n_classes = SHAPES[name]
    rng = np.random.default_rng(0)
    y = rng.integers(n_classes, size=n_rows)
    centres = rng.normal(size=(n_classes, n_features)) / np.sqrt(n_features)
    return Data(name, 2 * centres[y] + rng.normal(size=(n_rows, n_features)), y, real=False)


def _read_mnist(folder: Path) -> tuple[NDArray[np.float64], NDArray[Any]]:
    images = _bytes(folder / "train-images-idx3-ubyte.gz", header=16)
    labels = _bytes(folder / "train-labels-idx1-ubyte.gz", header=8)
    return images.reshape(-1, 784) / 255.0, labels.astype(np.int64)


def _bytes(file: Path, *, header: int) -> NDArray[np.uint8]:
    return np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8)[header:]


def _read_covtype(folder: Path) -> tuple[NDArray[np.float64], NDArray[Any]]:
    with gzip.open(folder / "covtype.random15k.csv.gz", "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", skiprows=1)
    X = table[:, :-1]
    X[:, :10] = _standardised(X[:, :10])  # the other columns are indicators
    return X, table[:, -1].astype(np.int64)


def _read_adult(folder: Path) -> tuple[NDArray[np.float64], NDArray[Any]]:
    records = []
    for name in ("adult.data.gz", "adult.test.gz"):
        with gzip.open(folder / name, "rt") as lines:
            records += [r for r in csv.reader(lines, skipinitialspace=True) if len(r) == 15]
    table = np.array([r for r in records if "?" not in r])
    numeric = [0, 2, 4, 10, 11, 12]
    words = [i for i in range(14) if i not in numeric]
    parts = [_standardised(table[:, numeric].astype(float))]
    parts += [(table[:, [i]] == np.unique(table[:, i])).astype(float) for i in words]
    return np.hstack(parts), np.char.startswith(table[:, 14], ">50K").astype(np.int64)


def _standardised(X: NDArray[np.float64]) -> NDArray[np.float64]:
    scale: NDArray[np.float64] = (X - X.mean(axis=0)) / X.std(axis=0)
    return scale


_READERS: dict[str, Callable[[Path], tuple[NDArray[np.float64], NDArray[Any]]]] = {
    "adult": _read_adult,
    "covtype": _read_covtype,
    "mnist": _read_mnist,
}
