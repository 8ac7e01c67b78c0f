"""Synthetic tables with the shape, class balance and column types of real tables."""

import math
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from letheon.datasets._spec import NO_SUBJECT, DatasetArrays, DatasetInfo, Encoding, StandIn

LARGEST = 2**28  # bytes of X, if the caller does not set the number of rows
_NOISE = 0.5
_PERSON_EFFECT = 0.7
_FLAG_SHARE = 0.1
_ENTRIES = 75  # of a row of a sparse table


def count_columns(about: DatasetInfo, shape: StandIn, encode: Encoding) -> int:
    """Return the number of columns of X; for a sparse table, of words drawn per row."""
    if about.image_shape is not None:
        return math.prod(about.image_shape)
    if shape.n_sparse:
        return _ENTRIES
    n_words = sum(shape.n_words) if encode == "one-hot" else len(shape.n_words)
    return shape.n_numbers + shape.n_flags + n_words


def make_synthetic(
    about: DatasetInfo, variant: str, *, n_rows: int | None, seed: int, encode: Encoding
) -> DatasetArrays:
    """Return the arrays of a synthetic table; equal arguments give equal bytes.

    Class shares equal those of the real table up to rounding. Labels depend on a score that is
    linear in the columns, plus noise. If people have several rows, the score also has a term per
    person, and the rows of a person are similar.
    """
    shape = about.stand_ins[variant]
    # Tables without words have their indicators as columns in both encodings.
    encode = encode if about.has_words else "one-hot"
    n_columns = count_columns(about, shape, encode)
    rng = np.random.default_rng([seed, zlib.crc32(f"{about.name} {variant}".encode())])
    if n_rows is None:
        n_rows = min(shape.n_rows, max(1, LARGEST // (4 * n_columns)))
    n_test = max(round(shape.n_test * n_rows / shape.n_rows), 1) if shape.n_test else 0
    owners = _assign_rows(rng, n_rows + n_test, shape.rows_per_person)
    names: tuple[str, ...] = ()
    if about.image_shape is not None:
        X, y = _make_images(rng, len(owners), shape, about.image_shape)
    elif shape.n_sparse:
        X, y = _make_texts(rng, len(owners), shape)
    else:
        X, y, names = _make_table(rng, shape, owners, n_columns, encode)
    ids = None
    if about.subject_id != NO_SUBJECT:
        ids = y if shape.class_is_person else owners
    parts: list[Any] = []
    for rows in (slice(n_rows), slice(n_rows, None)) if n_test else (slice(n_rows),):
        parts += [X[rows], y[rows], None if ids is None else ids[rows]]
    return replace(DatasetArrays(*parts), feature_names=names)


def _assign_rows(rng: np.random.Generator, n_rows: int, mean: float) -> NDArray[np.int64]:
    """Return the id of each row; the number of rows per person has a geometric distribution."""
    if mean <= 1:
        return np.arange(n_rows)
    sizes = rng.geometric(1 / mean, size=n_rows)
    owners = np.repeat(np.arange(n_rows), sizes)[:n_rows]
    return rng.permutation(owners)


def _make_table(
    rng: np.random.Generator,
    shape: StandIn,
    ids: NDArray[np.int64],
    n_columns: int,
    encode: Encoding,
) -> tuple[NDArray[np.float32], NDArray[np.int64], tuple[str, ...]]:
    n_rows, has_people = len(ids), shape.rows_per_person > 1
    n_people = int(ids.max()) + 1 if has_people else 0
    X = np.zeros((n_rows, n_columns), np.float32)
    numbers = rng.standard_normal((n_rows, shape.n_numbers), np.float32)
    score = np.zeros(n_rows)
    if has_people:
        numbers += rng.standard_normal((n_people, shape.n_numbers), np.float32)[ids]
        score += _PERSON_EFFECT * rng.standard_normal(n_people)[ids]
    X[:, : shape.n_numbers] = numbers
    weights = rng.standard_normal(shape.n_numbers) / max(1, np.sqrt(shape.n_numbers))
    score += numbers @ weights
    names = [f"number {i}" for i in range(shape.n_numbers)]
    for i, n_words in enumerate(shape.n_words):
        codes = _draw_words(rng, n_rows, n_words)
        score += (rng.standard_normal(n_words) / np.sqrt(len(shape.n_words)))[codes]
        if encode == "one-hot":
            X[np.arange(n_rows), len(names) + codes] = 1
            names += [f"word {i}={word}" for word in range(n_words)]
        else:
            X[:, len(names)] = codes
            names.append(f"word {i}")
    if shape.n_flags:
        flags = rng.random((n_rows, shape.n_flags), np.float32) < _FLAG_SHARE
        X[:, len(names) :] = flags
        score += flags @ rng.standard_normal(shape.n_flags) / np.sqrt(_FLAG_SHARE * shape.n_flags)
        names += [f"flag {i}" for i in range(shape.n_flags)]
    score += _NOISE * rng.standard_normal(n_rows)
    return X, _cut_labels(score, shape), tuple(names)


def _draw_words(rng: np.random.Generator, n_rows: int, n_words: int) -> NDArray[np.int64]:
    """Return random word numbers with frequencies inversely proportional to their rank (Zipf)."""
    shares = np.cumsum(1 / np.arange(1, n_words + 1))
    places = np.searchsorted(shares / shares[-1], rng.random(n_rows), side="right")
    return np.minimum(places, n_words - 1)


def _cut_labels(score: NDArray[np.float64], shape: StandIn) -> NDArray[np.int64]:
    """Return labels with the real class shares; the lowest scores are class 0."""
    y = np.empty(len(score), np.int64)
    y[np.argsort(score, kind="stable")] = _in_shares(len(score), shape.shares)
    return y


def _in_shares(n_rows: int, shares: tuple[float, ...]) -> NDArray[np.int64]:
    """Return sorted labels with these shares; each class occurs at least once if possible."""
    free = max(0, n_rows - len(shares))
    ends = np.rint(np.cumsum(shares) / sum(shares) * free).astype(np.int64)
    counts = np.diff(ends, prepend=0) + 1
    return np.repeat(np.arange(len(shares)), counts)[:n_rows]


def _make_images(
    rng: np.random.Generator, n_rows: int, shape: StandIn, image_shape: tuple[int, int, int]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return noisy copies of one coarse random image per class, with values from 0 to 1."""
    channels, height, width = image_shape
    n_classes = len(shape.shares)
    coarse = rng.random((n_classes, channels, 8, 8), np.float32)
    rows, columns = np.arange(height) * 8 // height, np.arange(width) * 8 // width
    y = rng.permutation(_in_shares(n_rows, shape.shares))
    X = rng.standard_normal((n_rows, channels, height, width), np.float32)
    X *= 0.25
    X += coarse[y][:, :, rows[:, None], columns]
    np.clip(X, 0, 1, out=X)
    return X.reshape(n_rows, -1), y


def _make_texts(
    rng: np.random.Generator, n_rows: int, shape: StandIn
) -> tuple[Any, NDArray[np.int64]]:
    """Return a sparse table of word weights and its labels.

    Rows have norm 1. The words follow Zipf's law, and the labels depend on all words.
    """
    words = _draw_words(rng, n_rows * _ENTRIES, shape.n_sparse)
    rows = np.repeat(np.arange(n_rows), _ENTRIES)
    cells = (np.ones(len(words), np.float32), (rows, words))
    counts = sparse.coo_array(cells, shape=(n_rows, shape.n_sparse)).tocsr()
    counts.sum_duplicates()
    values = 1 + np.log(counts.data)
    norms = np.sqrt(np.add.reduceat(values * values, counts.indptr[:-1]))
    values = (values / np.repeat(norms, np.diff(counts.indptr))).astype(np.float32)
    X = sparse.csr_array((values, counts.indices, counts.indptr), shape=counts.shape)
    score = X @ rng.standard_normal(shape.n_sparse) + 0.1 * rng.standard_normal(n_rows)
    return X, _cut_labels(score, shape)
