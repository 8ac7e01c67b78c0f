"""Two-class tables for the convex methods: rows of norm 1, real data where the files exist.

Columns are scaled by the training rows. The scales count as public: a removal does not change
them. No table has a column of ones.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks._data import _read_covtype, _split_higgs, as_bytes, find_home
from letheon.datasets import load as load_real

__all__ = ["SETS", "ConvexSet", "load_set"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
TEST_SHARE = 0.2
COVTYPE_ROWS = 581_012
SYN54_TEST = 20_000
SPARSE_SHAPE = (20_242, 47_236)
SPARSE_TEST = 5_000
KNOWN_WORDS = 1_000
NO_MORE_THAN_ONE = 1 + 1e-15  # rounding must not push a row over the declared norm 1


class ConvexSet(NamedTuple):
    """Rows of norm 1 to train and to test on, labels 0 and 1, and the ridge per sample."""

    name: str
    X: Any
    y: Labels
    X_test: Any
    y_test: Labels
    real: bool
    l2: float
    note: str = ""

    @property
    def is_sparse(self) -> bool:
        """Whether X is a CSR array."""
        return bool(sparse.issparse(self.X))

    def head(self, n_rows: int) -> "ConvexSet":
        """Return the table with only the first training rows and test rows."""
        return self._replace(
            X=self.X[:n_rows],
            y=self.y[:n_rows],
            X_test=self.X_test[:n_rows],
            y_test=self.y_test[:n_rows],
        )

    def describe(self) -> str:
        """Describe the table in a few words."""
        entries = f", {self.X.nnz / len(self.y):.0f} entries per row" if self.is_sparse else ""
        note = f", {self.note}" if self.note else ""
        return (
            f"{self.name}: {len(self.y):,} x {self.X.shape[1]:,}{entries}, "
            f"{self.y.mean():.1%} positive, {len(self.y_test):,} rows to test, l2={self.l2:g}{note}"
        )


def load_set(name: str) -> ConvexSet:
    """Return a table by name; a synthetic one of the same shape if its files are missing."""
    return SETS[name]()


def _load_mnist38() -> ConvexSet:
    folder = find_home() / "mnist"
    if not folder.is_dir():
        return _make_stand_in("mnist38", 11_982, 1_984, 784, l2=1e-3)
    data: Any = load_real("mnist", variant="3-vs-8", folder=find_home())
    X, X_test = as_bytes(data.X) / 255.0, as_bytes(data.X_test) / 255.0
    return _normalise_table("mnist38", X, data.y, X_test, data.y_test, 1e-3, "digits 3 and 8")


def _load_covtype() -> ConvexSet:
    folder = find_home() / "covtype"
    if not folder.is_dir():
        return _make_stand_in("covtype", 12_000, 3_000, 54, l2=1e-4)
    X, cover = _read_covtype(folder)
    return _split_rows("covtype", X, (cover == 2).astype(np.int64), "class 2 against the rest")


def _load_higgs() -> ConvexSet:
    folder = find_home() / "higgs"
    if not folder.is_dir():
        return _make_stand_in("higgs", 8_787, 2_197, 28, l2=1e-4)
    split = _split_higgs(folder)
    parts = (split.X.astype(float), split.y, split.X_test.astype(float), split.y_test)
    return _scale_columns("higgs", *parts, "")


def _split_rows(name: str, X: Floats, y: Labels, note: str) -> ConvexSet:
    """Shuffle with seed 0 and hold 20 % out."""
    order = np.random.default_rng(0).permutation(len(y))
    n_test = int(TEST_SHARE * len(y))
    test, train = order[:n_test], order[n_test:]
    return _scale_columns(name, X[train], y[train], X[test], y[test], note)


def _scale_columns(
    name: str, X: Floats, y: Labels, X_test: Floats, y_test: Labels, note: str
) -> ConvexSet:
    """Standardise columns by the training rows, then normalise rows."""
    mean, spread = X.mean(axis=0), X.std(axis=0)
    # A column that never changes in training stays zero, in the test rows too.
    scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
    parts = ((X - mean) * scale, y, (X_test - mean) * scale, y_test)
    return _normalise_table(name, *parts, 1e-4, note)


def _normalise_table(
    name: str, X: Floats, y: Labels, X_test: Floats, y_test: Labels, l2: float, note: str
) -> ConvexSet:
    return ConvexSet(name, _unit_rows(X), y, _unit_rows(X_test), y_test, True, l2, note)


def _unit_rows(X: Floats) -> Floats:
    norms = np.linalg.norm(X, axis=1, keepdims=True) * NO_MORE_THAN_ONE
    rows: Floats = np.ascontiguousarray(X / np.where(norms > 0, norms, 1))
    return rows


def _load_cifar2() -> ConvexSet:
    file = find_home() / "cifar10" / "cifar10_jpeg.tar.xz"
    if not file.is_file():
        return _make_stand_in("cifar2", 10_000, 2_000, 3_072, l2=1e-3)
    cached = _cache_home() / f"cifar2_{file.stat().st_size}.npz"
    if not cached.is_file():
        _write_array(cached, _decode_images())
    with np.load(cached) as arrays:
        X, y, X_test, y_test = (arrays[key] for key in ("X", "y", "X_test", "y_test"))
    note = "cat against ship, JPEG copies, lossy"
    return _normalise_table("cifar2", X / 255.0, y, X_test / 255.0, y_test, 1e-3, note)


def _decode_images() -> dict[str, NDArray[Any]]:
    """Return pixels as bytes and labels; cat 0, ship 1."""
    data: Any = load_real("cifar-2", folder=find_home())
    return {
        "X": _colours_last(data.X),
        "y": data.y,
        "X_test": _colours_last(data.X_test),
        "y_test": data.y_test,
    }


def _colours_last(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    images = as_bytes(pixels).reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)).reshape(len(images), -1)


def _cache_home() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "letheon" / "benchmarks"


def _write_array(file: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write to a temporary name first, so that an incomplete file is never read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.stem}_{os.getpid()}.npz")
    np.savez_compressed(partial, **arrays)  # type: ignore[arg-type]
    partial.replace(file)


def _make_syn54(name: str = "syn54", n_rows: int = 100_000) -> ConvexSet:
    """Return covtype's shape, larger: 10 correlated numbers, 4 areas and 40 skewed soil types."""
    rng = np.random.default_rng(54)
    n_all = n_rows + SYN54_TEST
    hidden = rng.normal(size=(n_all, 4))
    X = np.zeros((n_all, 54))
    np.matmul(hidden, rng.normal(size=(4, 10)), out=X[:, :10])
    X[:, :10] += rng.normal(size=(n_all, 10))
    _set_one_of(X[:, 10:14], rng, np.array([0.45, 0.05, 0.44, 0.06]))
    _set_one_of(X[:, 14:], rng, 1 / np.arange(1, 41))
    score = X @ (rng.normal(size=54) * np.r_[np.full(10, 0.6), np.full(44, 1.5)])
    y = _noisy_labels(rng, score, wrong=0.08)
    # In place: the larger table takes 260 MB once.
    X -= X[:n_rows].mean(axis=0)
    X /= X[:n_rows].std(axis=0)
    X /= np.sqrt(np.einsum("ij,ij->i", X, X))[:, None] * NO_MORE_THAN_ONE
    parts = (X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:])
    return ConvexSet(name, *parts, False, 1e-4, "made up, shaped like covtype")


def _make_syn54full() -> ConvexSet:
    """Return as many rows as the whole of covtype has."""
    return _make_syn54("syn54full", COVTYPE_ROWS)


def _set_one_of(columns: Floats, rng: np.random.Generator, weights: Floats) -> None:
    """Set one column of each row to 1, in place."""
    drawn = rng.choice(len(weights), size=len(columns), p=weights / weights.sum())
    columns[np.arange(len(columns)), drawn] = 1.0


def _noisy_labels(rng: np.random.Generator, score: Floats, wrong: float) -> Labels:
    """Return whether each score is above the median, with a share of the labels flipped."""
    labels = score > np.median(score)
    return np.asarray(labels ^ (rng.random(len(score)) < wrong), np.int64)


def _make_sparse() -> ConvexSet:
    """Return RCV1's shape: words by Zipf's law, tf-idf weights, a teacher of few words."""
    rng = np.random.default_rng(1)
    n_rows, n_words = SPARSE_SHAPE
    counts = _word_counts(rng, n_rows + SPARSE_TEST, n_words)
    n_holding = np.bincount(counts.indices, minlength=n_words)
    rarity = np.log((1 + counts.shape[0]) / (1 + n_holding)) + 1
    values = (1 + np.log(counts.data)) * rarity[counts.indices]
    n_each = np.diff(counts.indptr)
    norms = np.sqrt(np.add.reduceat(values * values, counts.indptr[:-1])) * NO_MORE_THAN_ONE
    X = sparse.csr_array((values / np.repeat(norms, n_each), counts.indices, counts.indptr))
    X.resize((n_rows + SPARSE_TEST, n_words))
    known = np.argsort(n_holding)[-KNOWN_WORDS:]
    teacher = np.zeros(n_words)
    teacher[known] = rng.normal(size=KNOWN_WORDS)
    y = _noisy_labels(rng, X @ teacher, wrong=0.03)
    parts = (X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:])
    return ConvexSet("sparse", *parts, False, 1e-4, "made up, shaped like RCV1")


def _word_counts(rng: np.random.Generator, n_rows: int, n_words: int) -> Any:
    """Draw texts of independent words; every text has at least one word."""
    weights = (np.arange(n_words) + 30.0) ** -1.05
    shares = np.cumsum(weights / weights.sum())
    lengths = np.clip(rng.lognormal(4.25, 0.55, size=n_rows).astype(int), 1, None)
    ranks = np.searchsorted(shares, rng.random(lengths.sum())).clip(max=n_words - 1)
    # Frequent words are in any column.
    words = rng.permutation(n_words)[ranks].astype(np.int32)
    texts = np.repeat(np.arange(n_rows, dtype=np.int32), lengths)
    table = sparse.coo_array((np.ones(len(words)), (texts, words)), shape=(n_rows, n_words))
    counts = table.tocsr()
    counts.sum_duplicates()
    return counts


def _make_stand_in(name: str, n_rows: int, n_test: int, n_columns: int, *, l2: float) -> ConvexSet:
    """Return two overlapping clouds of the real table's shape."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=n_rows + n_test)
    # Decreasing strengths give the covariance a decaying spectrum, as in images.
    strength = 1 / np.sqrt(1 + np.arange(n_columns))
    centres = rng.normal(size=(2, n_columns)) * strength
    X = _unit_rows(0.5 * centres[y] + rng.normal(size=(len(y), n_columns)) * strength)
    parts = (X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:])
    return ConvexSet(name, *parts, False, l2, "SYNTHETIC stand-in, real files not found")


SETS: dict[str, Callable[[], ConvexSet]] = {
    "mnist38": _load_mnist38,
    "covtype": _load_covtype,
    "higgs": _load_higgs,
    "syn54": _make_syn54,
    "syn54full": _make_syn54full,
    "sparse": _make_sparse,
    "cifar2": _load_cifar2,
}
