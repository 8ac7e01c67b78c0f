"""Stanford Sentiment Treebank: sentences as counts of words."""

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from letheon.datasets._info import DataFile, DatasetInfo, SurveyRow
from letheon.datasets._job import Job, Loaded, Source
from letheon.datasets._synthetic import StandIn
from letheon.exceptions import DatasetFormatError

__all__ = ["SOURCES"]

_LEAF = re.compile(r"\([0-4] ([^() ]+)\)")  # a no-break space is part of a word
_INNER = re.compile(r"\([0-4] (?=\()")
_ROOT = re.compile(r"\s*\(([0-4]) ")
_NEUTRAL = 2


def read_sst(job: Job) -> Loaded:
    """Read SST: a sparse table of how often a sentence has a word, in small letters.

    A line is a tree, ``(3 (2 It) (4 (2 's) (3 good)))``; y is the root's number, from 0 (very
    negative) to 4. ``"binary"``: neutral sentences are left out, and y is 3 or more. The list of
    words is that of the two files, alphabetical, the same in both variants.
    """
    parts = []
    for number in (0, 1):
        with job.text(number) as lines:
            parts.append(_trees(lines))
        job.count(number, len(parts[-1][0]))
    book = sorted({word for _, sentences in parts for sentence in sentences for word in sentence})
    places = {word: place for place, word in enumerate(book)}
    (y, train), (y_test, test) = parts
    X, X_test = _counts(train, places), _counts(test, places)
    if job.variant == "binary":
        kept, kept_test = np.flatnonzero(y != _NEUTRAL), np.flatnonzero(y_test != _NEUTRAL)
        X, y = X[kept], (y[kept] > _NEUTRAL).astype(np.int64)
        X_test, y_test = X_test[kept_test], (y_test[kept_test] > _NEUTRAL).astype(np.int64)
    return Loaded(X, y, None, X_test, y_test, feature_names=tuple(book))


def _trees(lines: Iterable[str]) -> tuple[NDArray[np.int64], list[Counter[str]]]:
    labels, sentences = [], []
    for line in lines:
        if not line.strip():
            continue
        root = _ROOT.match(line)
        if root is None:
            raise DatasetFormatError(f"not a tree with numbers 0 to 4: {line[:40]!r}")
        labels.append(int(root[1]))
        sentences.append(Counter(word.lower() for word in _leaves(line)))
    if not labels:
        raise DatasetFormatError("the file has no rows")
    return np.array(labels, np.int64), sentences


def _leaves(line: str) -> list[str]:
    """Return the words of a tree; every bracket must belong to a word or to a branch."""
    words: list[str] = _LEAF.findall(line)
    n_nodes = len(words) + len(_INNER.findall(line))
    if not n_nodes == line.count("(") == line.count(")"):
        raise DatasetFormatError(f"a tree with brackets that hold no word: {line[:40]!r}")
    return words


def _counts(sentences: list[Counter[str]], places: dict[str, int]) -> sparse.csr_array:
    ends = np.cumsum([0, *map(len, sentences)])
    columns = np.array([places[word] for each in sentences for word in sorted(each)], np.int32)
    values = np.array([each[word] for each in sentences for word in sorted(each)], np.float32)
    return sparse.csr_array((values, columns, ends), shape=(len(sentences), len(places)))


SOURCES = (
    Source(
        info=DatasetInfo(
            name="sst",
            title="Stanford Sentiment Treebank",
            folder="sst",
            files=(
                DataFile(
                    names=("trees/train.txt", "train.txt"),
                    rows={"trees/train.txt": 8_544, "train.txt": 8_544},
                ),
                DataFile(
                    names=("trees/test.txt", "test.txt"),
                    rows={"trees/test.txt": 2_210, "test.txt": 2_210},
                ),
            ),
            provider="Stanford NLP Group (trainDevTestTrees_PTB.zip)",
            page="https://nlp.stanford.edu/sentiment/",
            licence="not stated by the provider; citation asked",
            citation="Socher et al. (2013), EMNLP",
            survey=SurveyRow(dimensionality="215,154", size="11,855", classes="5"),
            note=(
                "The survey's dimensionality is the number of distinct phrases, its size counts "
                "train, dev and test; dev is not read. Guo et al. used features of a pretrained "
                "net. Fixed: the list of words. X is a sparse table."
            ),
            variants={
                "five": "very negative to very positive",
                "binary": "negative or positive; neutral sentences are left out",
            },
        ),
        read=read_sst,
        stand_ins={
            "five": StandIn(
                n_rows=8_544,
                n_test=2_210,
                n_sparse=16_000,
                shares=(0.128, 0.26, 0.19, 0.272, 0.15),
            ),
            "binary": StandIn(n_rows=6_920, n_test=1_821, n_sparse=16_000, shares=(0.478, 0.522)),
        },
    ),
)
