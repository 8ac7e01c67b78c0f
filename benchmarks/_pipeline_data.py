"""Tables for the benchmarks of pipelines: mixed frames, texts from a Zipf law, wide numbers."""

import gzip
import lzma
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks._data import find_home

ADULT = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital", "occupation"),
    *("relationship", "race", "sex", "gain", "loss", "hours", "country", "target"),
)


class MixedTable(NamedTuple):
    """A frame with labels, divided into training and test rows."""

    name: str
    X: pd.DataFrame
    y: NDArray[np.int64]
    test_X: pd.DataFrame
    test_y: NDArray[np.int64]
    is_real: bool

    @property
    def numbers(self) -> list[str]:
        """Names of the columns of numbers."""
        return list(self.X.select_dtypes("number").columns)

    @property
    def texts(self) -> list[str]:
        """Names of all other columns."""
        return [name for name in self.X.columns if name not in self.numbers]


def load_mixed(name: str, n_rows: int, n_test: int = 20_000) -> MixedTable:
    """Return rows of Adult, Census or Diabetes as a frame with categories and missing values."""
    frame = _READERS[name](find_home() / name)
    is_real = frame is not None
    frame = _make_stand_in() if frame is None else frame
    rng = np.random.default_rng(0)
    order = rng.permutation(len(frame))
    n_rows = min(n_rows, len(frame) * 4 // 5)
    y = frame.pop("target").to_numpy().astype(np.int64)
    # One in twenty numbers is missing, so that an imputer has work to do.
    for column in frame.select_dtypes("number").columns:
        values = frame[column].to_numpy(float).copy()
        values[rng.random(len(values)) < 0.05] = np.nan
        frame[column] = values
    train, test = order[:n_rows], order[n_rows : n_rows + n_test]
    return MixedTable(
        name,
        frame.iloc[train].reset_index(drop=True),
        y[train],
        frame.iloc[test].reset_index(drop=True),
        y[test],
        is_real,
    )


def _read_adult(folder: Path) -> pd.DataFrame | None:
    if not folder.is_dir():
        return None
    with gzip.open(folder / "adult.data.gz", "rt") as file:
        frame = pd.read_csv(file, names=ADULT, skipinitialspace=True, na_values="?")
    frame["target"] = (frame["target"] == ">50K").astype(int)
    return frame


def _read_census(folder: Path) -> pd.DataFrame | None:
    if not folder.is_dir():
        return None
    with lzma.open(folder / "census-income.data.xz", "rt") as file:
        frame = pd.read_csv(file, header=None, skipinitialspace=True, na_values="?")
    frame.columns = [f"c{number}" for number in frame.columns]
    last = frame.columns[-1]
    frame["target"] = frame.pop(last).str.contains("50000+", regex=False).astype(int)
    return frame.drop(columns="c24")  # the weight of the row


def _read_diabetes(folder: Path) -> pd.DataFrame | None:
    if not folder.is_dir():
        return None
    with gzip.open(folder / "diabetic_data.csv.gz", "rt") as file:
        frame = pd.read_csv(file, na_values="?", low_memory=False)
    frame["target"] = (frame.pop("readmitted") != "NO").astype(int)
    many = ["encounter_id", "patient_nbr", "diag_1", "diag_2", "diag_3", "weight"]
    return frame.drop(columns=many)


_READERS = {"adult": _read_adult, "census": _read_census, "diabetes": _read_diabetes}


def _make_stand_in() -> pd.DataFrame:
    """Return a synthetic frame for machines without the real files."""
    rng = np.random.default_rng(1)
    n_rows = 150_000
    columns: dict[str, Any] = {f"n{j}": rng.normal(size=n_rows) for j in range(7)}
    for j in range(20):
        columns[f"t{j}"] = rng.choice([f"v{k}" for k in range(2 + j)], n_rows)
    score = columns["n0"] + (columns["t3"] == "v1") + rng.normal(size=n_rows)
    return pd.DataFrame(columns | {"target": (score > 1).astype(int)})


def make_texts(n_texts: int, n_words: int = 100, n_terms: int = 50_000) -> tuple[Any, Any]:
    """Return texts whose words follow a Zipf law, and labels that depend on frequent words."""
    rng = np.random.default_rng(2)
    share = 1.0 / np.arange(1, n_terms + 1)
    y = rng.integers(0, 2, n_texts)
    texts = []
    for label in y:
        tilt = share * np.where(np.arange(n_terms) % 7 == label, 1.5, 1.0)
        words = rng.choice(n_terms, rng.poisson(n_words) + 1, p=tilt / tilt.sum())
        texts.append(" ".join(f"word{word}" for word in words))
    return np.array(texts, object), y


def make_numbers(n_rows: int, n_columns: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return columns with different scales and centres, and a linear target."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n_rows, n_columns))
    X *= rng.uniform(0.1, 30, n_columns)
    X += rng.normal(0, 50, n_columns)
    return X, X @ rng.normal(size=n_columns) + rng.normal(0, 10, n_rows)
