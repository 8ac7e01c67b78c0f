"""Tables for benchmarks: real ones from ``$LETHEON_DATA``, else made-up ones of the same shape."""

import csv
import gzip
import lzma
import os
from collections.abc import Callable, Iterable
from itertools import chain
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


class Split(NamedTuple):
    """Rows to train on and rows to test on, 0/1 labels, float32; ids where people own rows."""

    name: str
    X: NDArray[np.float32]
    y: NDArray[np.int64]
    X_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    ids: NDArray[np.int64] | None = None

    @property
    def people(self) -> NDArray[np.int64]:
        """Everybody who owns a training row, each once."""
        return np.arange(len(self.y)) if self.ids is None else np.unique(self.ids)

    def head(self, n_rows: int) -> "Split":
        """Return the split with the first so many rows only, to train and to test on."""
        return self._replace(
            X=self.X[:n_rows],
            y=self.y[:n_rows],
            X_test=self.X_test[:n_rows],
            y_test=self.y_test[:n_rows],
            ids=None if self.ids is None else self.ids[:n_rows],
        )

    def describe(self) -> str:
        """Say what the table is in a few words."""
        owners = "" if self.ids is None else f", {len(self.people):,} people"
        return (
            f"{self.name}: {len(self.y):,} x {self.X.shape[1]}{owners}, "
            f"{self.y.mean():.1%} positive, {len(self.y_test):,} rows to test"
        )


def load_split(name: str) -> Split | None:
    """Return a real table cut for the forest, or None when its files are not there."""
    folder = _home() / name
    return _SPLITS[name](folder) if folder.is_dir() else None


def synthetic_split() -> Split:
    """Return the made-up table of the forest's yardsticks."""
    return made_up(50_000, 12_500, n_features=30, seed=1)


def made_up(n_rows: int, n_test: int, *, n_features: int, seed: int) -> Split:
    """Return continuous columns with clusters, some of them redundant, and 5 % wrong labels."""
    from sklearn.datasets import make_classification

    X, y = make_classification(
        n_rows + n_test,
        n_features=n_features,
        n_informative=10,
        n_redundant=5,
        n_clusters_per_class=4,
        flip_y=0.05,
        class_sep=0.8,
        random_state=seed,
    )
    X = X.astype(np.float32)
    return Split("synthetic", X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:])


def _split_adult(folder: Path) -> Split:
    numeric = [0, 2, 10, 11, 12]
    words = [1, 3, 5, 6, 7, 8, 9, 13]  # 4 repeats education in numbers
    with gzip.open(folder / "adult.data.gz", "rt") as lines:
        rows = (row for row in csv.reader(lines, skipinitialspace=True) if len(row) == 15)
        X, kept = _encoded(rows, numeric, words, [14])
    return _shuffled("adult", X, (kept[:, 0] == ">50K").astype(np.int64))


def _split_higgs(folder: Path) -> Split:
    with gzip.open(folder / "higgs.csv.gz", "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", skiprows=1)
    return _shuffled("higgs", table[:, :-1].astype(np.float32), table[:, -1].astype(np.int64))


def _split_census(folder: Path) -> Split:
    numeric = [0, 5, 16, 17, 18, 30, 39]
    words = [i for i in range(41) if i not in numeric and i != 24]  # 24 is a sampling weight
    with (
        lzma.open(folder / "census-income.data.xz", "rt") as train,
        lzma.open(folder / "census-income.test.xz", "rt") as test,
    ):
        rows = csv.reader(chain(train, test), skipinitialspace=True)
        X, kept = _encoded(rows, numeric, words, [41])
    y = (kept[:, 0] == "50000+.").astype(np.int64)
    return Split(
        "census", X[:_CENSUS_TRAIN], y[:_CENSUS_TRAIN], X[_CENSUS_TRAIN:], y[_CENSUS_TRAIN:]
    )


def _split_diabetes(folder: Path) -> Split:
    with gzip.open(folder / "diabetic_data.csv.gz", "rt") as lines:
        rows = csv.reader(lines)
        places = {name: i for i, name in enumerate(next(rows))}
        kept_names = ("readmitted", "patient_nbr")
        skipped = {"encounter_id", *kept_names, *_DIABETES_NUMBERS}
        X, kept = _encoded(
            rows,
            [places[name] for name in _DIABETES_NUMBERS],
            [i for name, i in places.items() if name not in skipped],
            [places[name] for name in kept_names],
        )
    y, people = (kept[:, 0] != "NO").astype(np.int64), kept[:, 1].astype(np.int64)
    order = np.random.default_rng(0).permutation(np.unique(people))
    train = np.isin(people, order[: int(0.8 * len(order))])
    return Split("diabetes", X[train], y[train], X[~train], y[~train], people[train])


def _encoded(
    rows: Iterable[list[str]], numeric: list[int], words: list[int], kept: list[int]
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return numbers as they are (NaN where there is none), one column per word, and texts."""
    numbers, codes, texts = [], [], []
    books: list[dict[str, int]] = [{} for _ in words]
    for row in rows:
        numbers.append([_number(row[i]) for i in numeric])
        codes.append(
            [book.setdefault(row[i], len(book)) for book, i in zip(books, words, strict=True)]
        )
        texts.append([row[i] for i in kept])
    starts = np.cumsum([len(numeric), *map(len, books)])
    X = np.zeros((len(numbers), starts[-1]), np.float32)
    X[:, : len(numeric)] = numbers
    for book, start, column in zip(books, starts[:-1], np.array(codes).T, strict=True):
        # Columns of one word list stand in the order of the words, not of their first mention.
        rank = np.argsort(np.argsort(list(book)))
        X[np.arange(len(X)), start + rank[column]] = 1
    return X, np.array(texts)


def _number(text: str) -> float:
    """Return the number; codes of diagnoses that start with a letter are missing."""
    try:
        return float(text)
    except ValueError:
        return np.nan


def _shuffled(name: str, X: NDArray[np.float32], y: NDArray[np.int64]) -> Split:
    """Shuffle with seed 0 and train on the first 80 %."""
    order = np.random.default_rng(0).permutation(len(y))
    cut = int(0.8 * len(y))
    train, test = order[:cut], order[cut:]
    return Split(name, X[train], y[train], X[test], y[test])


_SPLITS: dict[str, Callable[[Path], Split]] = {
    "adult": _split_adult,
    "higgs": _split_higgs,
    "census": _split_census,
    "diabetes": _split_diabetes,
}
_CENSUS_TRAIN = 199_523  # rows of the training file
_DIABETES_NUMBERS = (
    "time_in_hospital", "num_lab_procedures", "num_procedures", "num_medications",
    "number_outpatient", "number_emergency", "number_inpatient", "diag_1", "diag_2", "diag_3",
    "number_diagnoses",
)  # fmt: skip
