"""Tables for benchmarks: real data from ``$LETHEON_DATA``, or synthetic data of the same shape."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.datasets import load as load_real
from letheon.datasets._dataset import TABLES
from letheon.datasets._spec import open_text
from letheon.datasets._tables import TextColumns, encode_table, read_columns

ROOT = Path(__file__).resolve().parents[1]
SHAPES = {"adult": (45222, 104, 2), "covtype": (15000, 54, 7), "mnist": (60000, 784, 10)}


class Data(NamedTuple):
    """A table with labels, and whether it is real data."""

    name: str
    X: NDArray[np.float64]
    y: NDArray[Any]
    real: bool

    def sample(self, n_rows: int, seed: int) -> "Data":
        """Return a random sample without replacement (all rows if there are fewer)."""
        rows = np.random.default_rng(seed).permutation(len(self.y))[:n_rows]
        return self._replace(X=np.ascontiguousarray(self.X[rows]), y=self.y[rows])

    def describe(self) -> str:
        """Describe the table in a few words."""
        kind = "real" if self.real else "SYNTHETIC stand-in, real files not found"
        return f"{self.name} {self.X.shape[0]:,} x {self.X.shape[1]}, {kind}"


def load_data(name: str) -> Data:
    """Return a table by name; a synthetic one of the same shape if its files are missing."""
    folder = find_home() / name
    if folder.is_dir():
        X, y = _READERS[name](folder)
        return Data(name, X, y, real=True)
    return _make_synthetic(name)


def find_home() -> Path:
    given = os.environ.get("LETHEON_DATA")
    return Path(given) if given else ROOT.parent / "shared" / "data"


def _make_synthetic(name: str) -> Data:
    n_rows, n_features, n_classes = SHAPES[name]
    rng = np.random.default_rng(0)
    y = rng.integers(n_classes, size=n_rows)
    centres = rng.normal(size=(n_classes, n_features)) / np.sqrt(n_features)
    return Data(name, 2 * centres[y] + rng.normal(size=(n_rows, n_features)), y, real=False)


def _read_mnist(folder: Path) -> tuple[NDArray[np.float64], NDArray[Any]]:
    data = load_real("mnist", folder=folder.parent)
    return as_bytes(data.X) / 255.0, data.y


def as_bytes(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return pixels from 0 to 1 as bytes, as in the file."""
    return np.rint(pixels * 255).astype(np.uint8)


def _read_covtype(folder: Path) -> tuple[NDArray[np.float64], NDArray[Any]]:
    data = load_real("covtype", folder=folder.parent)
    X = data.X.astype(np.float64)
    X[:, :10] = _standardise_columns(X[:, :10])  # the other columns are indicators
    return X, data.y + 1


def _read_adult(folder: Path) -> tuple[NDArray[np.float64], NDArray[Any]]:
    data = load_real("adult", folder=folder.parent)
    X = np.vstack([data.X, data.X_test]).astype(np.float64)
    lacking = [i for i, name in enumerate(data.feature_names) if name.endswith("=missing")]
    complete = ~X[:, lacking].any(axis=1)
    X = np.delete(X[complete], lacking, axis=1)
    X[:, :6] = _standardise_columns(X[:, :6])  # the other columns are indicators
    X = np.ascontiguousarray(X[:, X.any(axis=0)])
    return X, np.concatenate([data.y, data.y_test])[complete]


def _standardise_columns(X: NDArray[np.float64]) -> NDArray[np.float64]:
    scale: NDArray[np.float64] = (X - X.mean(axis=0)) / X.std(axis=0)
    return scale


_READERS: dict[str, Callable[[Path], tuple[NDArray[np.float64], NDArray[Any]]]] = {
    "adult": _read_adult,
    "covtype": _read_covtype,
    "mnist": _read_mnist,
}


class Split(NamedTuple):
    """Training rows and test rows, float32, labels 0/1; ids if people own several rows."""

    name: str
    X: NDArray[np.float32]
    y: NDArray[np.int64]
    X_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    ids: NDArray[np.int64] | None = None

    @property
    def people(self) -> NDArray[np.int64]:
        """The distinct ids of the training rows."""
        return np.arange(len(self.y)) if self.ids is None else np.unique(self.ids)

    def head(self, n_rows: int) -> "Split":
        """Return the split with only the first training rows and test rows."""
        return self._replace(
            X=self.X[:n_rows],
            y=self.y[:n_rows],
            X_test=self.X_test[:n_rows],
            y_test=self.y_test[:n_rows],
            ids=None if self.ids is None else self.ids[:n_rows],
        )

    def describe(self) -> str:
        """Describe the table in a few words."""
        owners = "" if self.ids is None else f", {len(self.people):,} people"
        return (
            f"{self.name}: {len(self.y):,} x {self.X.shape[1]}{owners}, "
            f"{self.y.mean():.1%} positive, {len(self.y_test):,} rows to test"
        )


def load_split(name: str) -> Split | None:
    """Return a real table for the forest, or None if its files are missing."""
    folder = find_home() / name
    return _SPLITS[name](folder) if folder.is_dir() else None


def make_synthetic_split() -> Split:
    """Return the synthetic table of the forest's targets."""
    return make_table(50_000, 12_500, n_features=30, seed=1)


def make_table(n_rows: int, n_test: int, *, n_features: int, seed: int) -> Split:
    """Return continuous columns with clusters, some redundant, and 5 % wrong labels."""
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
    # The years of education repeat the text column.
    numeric = ["age", "fnlwgt", "capital-gain", "capital-loss", "hours-per-week"]
    table = _read_table(folder / "adult.data.gz", names=TABLES["adult"][""].names)
    X = _encode_columns(table, numeric, [*numeric, "education-num", "income"])
    return _shuffle_rows("adult", X, _match_text(table, "income", ">50K"))


def _split_higgs(folder: Path) -> Split:
    data = load_real("higgs", folder=folder.parent)
    return _shuffle_rows("higgs", data.X, data.y)


def _split_census(folder: Path) -> Split:
    spec = TABLES["census"][""]
    train, test = (
        _read_table(folder / f"census-income.{part}.xz", names=spec.names)
        for part in ("data", "test")
    )
    table = train + test
    X = _encode_columns(table, spec.numbers, [*spec.numbers, *spec.dropped, spec.target])
    y, n = _match_text(table, "income", "50000+."), train.n_rows
    return Split("census", X[:n], y[:n], X[n:], y[n:])


def _split_diabetes(folder: Path) -> Split:
    table = _read_table(folder / "diabetic_data.csv.gz")
    skipped = ["encounter_id", "patient_nbr", "readmitted", *_DIABETES_NUMBERS]
    X = _encode_columns(table, _DIABETES_NUMBERS, skipped)
    y, people = 1 - _match_text(table, "readmitted", "NO"), table.map("patient_nbr", int, np.int64)
    order = np.random.default_rng(0).permutation(np.unique(people))
    train = np.isin(people, order[: int(0.8 * len(order))])
    return Split("diabetes", X[train], y[train], X[~train], y[~train], people[train])


def _read_table(file: Path, names: Sequence[str] | None = None) -> TextColumns:
    with open_text(file) as lines:
        return read_columns(lines, names=names)


def _match_text(table: TextColumns, column: str, text: str) -> NDArray[np.int64]:
    matches: NDArray[np.int64] = table.map(column, text.__eq__, np.int64)
    return matches


def _encode_columns(
    table: TextColumns, numeric: Sequence[str], skipped: Iterable[str]
) -> NDArray[np.float32]:
    """Return numeric columns (NaN if missing), and one indicator column per category."""
    words = [name for name in table if name not in set(skipped)]
    cells = {name: (name, _parse_number if name in numeric else str) for name in (*numeric, *words)}
    return encode_table(table, numeric, words, "one-hot", cells)[0]


def _parse_number(text: str) -> float:
    """Return the number; diagnosis codes that start with a letter count as missing."""
    try:
        return float(text)
    except ValueError:
        return np.nan


def _shuffle_rows(name: str, X: NDArray[np.float32], y: NDArray[np.int64]) -> Split:
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
_DIABETES_NUMBERS = (
    "time_in_hospital", "num_lab_procedures", "num_procedures", "num_medications",
    "number_outpatient", "number_emergency", "number_inpatient", "diag_1", "diag_2", "diag_3",
    "number_diagnoses",
)  # fmt: skip
