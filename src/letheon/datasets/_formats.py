"""Files with formats of their own: svmlight lines, click logs, tweets, baskets, sentence trees."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from letheon.datasets._spec import Job, Loaded
from letheon.datasets._tables import encode, first_line, number, read_columns
from letheon.exceptions import DatasetFormatError

FIRST = 1_000_000  # rows that Brophy and Lowd took of CTR and Twitter
TOP = 600  # categories of Purchase
_SVM_LINES = 5_000  # of a dense file, turned into numbers at a time
_CTR_NUMBERS = tuple(f"I{place}" for place in range(1, 14))
_TWITTER_FIGURES = (
    "pagerank", "triangle_count", "core_id", "out_degree", "in_degree", "polarity", "subjectivity",
)  # fmt: skip
_TWITTER_MARKS = {
    "num_chs": re.compile(r"(?s)."),
    "num_hsh": re.compile("#"),
    "num_men": re.compile("@"),
    "num_lnk": re.compile("http"),
    "num_rtw": re.compile("RT"),
    "num_uni": re.compile(r"\\u\S{4}"),
}
_LEAF = re.compile(r"\([0-4] ([^() ]+)\)")  # a no-break space is part of a word
_INNER = re.compile(r"\([0-4] (?=\()")
_ROOT = re.compile(r"\s*\(([0-4]) ")
_NEUTRAL = 2


def read_svm(job: Job, *, width: int, is_dense: bool) -> Loaded:
    """Read svmlight files, training rows and test rows where they are there; labels -1 and 1."""
    X, y = _read_svm_file(job, 0, width, is_dense)
    if job.find(1) is None:
        return Loaded(X, y)
    return Loaded(X, y, None, *_read_svm_file(job, 1, width, is_dense))


def _read_svm_file(
    job: Job, file: int, width: int, is_dense: bool
) -> tuple[Any, NDArray[np.int64]]:
    with job.open(file) as stream:
        if is_dense:
            # Some lines at a time: as one sparse table a dense file takes three times its room.
            chunks = iter(lambda: b"".join(islice(stream, _SVM_LINES)), b"")
            tables = [_parse_svm(io.BytesIO(chunk), width) for chunk in chunks]
            X = np.concatenate([X.toarray() for X, _ in tables]) if tables else None
            y = np.concatenate([np.zeros(0, np.int64), *(y for _, y in tables)])
        else:
            X, y = _parse_svm(stream, width)
    if not len(y):
        raise DatasetFormatError(f"{job.where(file)[1]} has no rows")
    job.check_rows(file, len(y))
    return X, y


def _parse_svm(stream: IO[bytes], width: int) -> tuple[Any, NDArray[np.int64]]:
    from sklearn.datasets import load_svmlight_file

    try:
        X, y = load_svmlight_file(stream, n_features=width, dtype=np.float32, zero_based=False)
    except ValueError as error:
        raise DatasetFormatError(f"not lines of svmlight: {error}") from error
    return sparse.csr_array(X), (np.asarray(y) > 0).astype(np.int64)


def read_ctr(job: Job) -> Loaded:
    """Read CTR: the 13 numbers of the first million advertisements; y is a click.

    Lines of Criteo's file: label, 13 numbers, 26 hashed categories (left out, as in Brophy and
    Lowd), with tabs between. A missing number is -1, where they took the mean of the others.
    """
    with job.text() as lines:
        first = ("\t".join(line.rstrip("\n").split("\t", 14)[:14]) for line in lines)
        table = read_columns(first, names=("label", *_CTR_NUMBERS), delimiter="\t", limit=FIRST)
    X, features = encode(table, _CTR_NUMBERS, (), job.encode)
    return Loaded(X, table.map("label", int, np.int64), feature_names=features)


def read_twitter(job: Job) -> Loaded:
    """Read Twitter: figures of the first million tweets and their authors; y is spam.

    A file with a header and the columns ``user_id``, ``text`` and ``label``, and any of
    ``pagerank``, ``triangle_count``, ``core_id``, ``out_degree``, ``in_degree``, ``polarity``,
    ``subjectivity``. Six counts are taken from the text; the last column says how many messages
    of the same author came before, which rests on nobody else's rows. In a ``.tsv`` a line is a
    tweet and quotes are characters like others; in a ``.csv`` they enclose cells.
    """
    name, _ = job.where(0)
    with job.text() as lines:
        # A tweet of a .tsv may begin with a quote that nothing closes; in a .csv such a quote
        # would swallow the rows after it.
        if name.endswith("tsv"):
            rows = csv.DictReader(lines, dialect=csv.excel_tab, quoting=csv.QUOTE_NONE)
        else:
            rows = csv.DictReader(lines, strict=True)
        columns = rows.fieldnames or ()
        lacking = {"user_id", "text", "label"} - set(columns)
        if lacking:
            raise DatasetFormatError(f"no columns {sorted(lacking)} in {name}")
        figures = tuple(each for each in _TWITTER_FIGURES if each in columns)
        return _read_tweets(islice(rows, FIRST), figures)


def _read_tweets(rows: Iterator[dict[Any, Any]], figures: tuple[str, ...]) -> Loaded:
    values: list[list[float]] = []
    labels, owners = [], []
    n_before: Counter[str] = Counter()
    for row in rows:
        if None in row or None in row.values():
            raise DatasetFormatError(f"row {len(values) + 1:,} has more or fewer cells than names")
        owner, text = row["user_id"], row["text"]
        counts = [len(mark.findall(text)) for mark in _TWITTER_MARKS.values()]
        values.append([*(number(row[name]) for name in figures), *counts, n_before[owner]])
        n_before[owner] += 1
        labels.append(int(row["label"].strip().lower() in ("spam", "1", "1.0")))
        owners.append(owner)
    if not values:
        raise DatasetFormatError("the file has no rows")
    try:
        ids: NDArray[Any] = np.array([int(owner) for owner in owners], np.int64)
    except ValueError:
        ids = np.array(owners, np.str_)
    names = (*figures, *_TWITTER_MARKS, "usr_msg_cnt")
    return Loaded(np.array(values, np.float32), np.array(labels), ids, feature_names=names)


def read_purchase(job: Job) -> Loaded:
    """Read Purchase: what of the 600 categories sold most a customer has ever bought.

    Rows are customers whose answer to an offer is known; y: did they come back? The 600
    categories are those of the published file, whoever leaves. The file of transactions has 350
    million lines and is read once, which takes minutes.
    """
    with job.text(1) as lines:
        history = read_columns(lines)
    customers = history.map("id", int, np.int64)
    y = history.map("repeater", lambda t: t.strip().lower() in ("t", "true", "1"), np.int64)
    with job.text(0) as lines:
        bought, n_sold = _read_baskets(lines, customers.tolist())
    categories = list(n_sold)
    best = np.argsort([-count for count in n_sold.values()], kind="stable")[:TOP]
    names = tuple(f"category {categories[place]}" for place in best)
    return Loaded(bought[:, best].astype(np.float32), y, customers, feature_names=names)


def _read_baskets(
    lines: Iterator[str], customers: list[int]
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Return customers x categories, and how often each category was sold."""
    header = first_line(lines).strip().split(",")
    if "id" not in header or "category" not in header:
        raise DatasetFormatError(f"no columns 'id' and 'category' in transactions.csv: {header}")
    place_id, place_category = header.index("id"), header.index("category")
    last = max(place_id, place_category) + 1
    rows = {str(customer): row for row, customer in enumerate(customers)}
    places: dict[str, int] = {}
    n_sold: Counter[int] = Counter()
    baskets: list[set[int]] = [set() for _ in customers]
    for line in lines:
        cells = line.split(",", last)
        if len(cells) < last:
            raise DatasetFormatError(f"a row has {len(cells)} cells: {line[:40]!r}")
        place = places.setdefault(cells[place_category], len(places))
        n_sold[place] += 1
        row = rows.get(cells[place_id])
        if row is not None:
            baskets[row].add(place)
    bought = np.zeros((len(customers), len(places)), np.bool_)
    for row, basket in enumerate(baskets):
        bought[row, list(basket)] = True
    return bought, {category: n_sold[place] for category, place in places.items()}


def read_sst(job: Job) -> Loaded:
    """Read SST: a sparse table of how often a sentence has a word, in small letters.

    A line is a tree, ``(3 (2 It) (4 (2 's) (3 good)))``; y is the root's number, from 0 (very
    negative) to 4. ``"binary"``: neutral sentences are left out, and y is 3 or more. The list of
    words is that of the two files, alphabetical, the same in both variants.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    parts = []
    for file in (0, 1):
        with job.text(file) as lines:
            parts.append(_read_trees(lines))
        job.check_rows(file, len(parts[-1][0]))
    counter = CountVectorizer(analyzer=list, dtype=np.float32)
    counter.fit([*parts[0][1], *parts[1][1]])
    arrays: list[Any] = []
    for y, sentences in parts:
        rows = np.flatnonzero(y != _NEUTRAL) if job.variant == "binary" else slice(None)
        labels = (y > _NEUTRAL).astype(np.int64) if job.variant == "binary" else y
        arrays += [sparse.csr_array(counter.transform(sentences))[rows], labels[rows], None]
    return replace(Loaded(*arrays), feature_names=tuple(map(str, counter.get_feature_names_out())))


def _read_trees(lines: Iterable[str]) -> tuple[NDArray[np.int64], list[list[str]]]:
    labels, sentences = [], []
    for line in lines:
        if not line.strip():
            continue
        root = _ROOT.match(line)
        if root is None:
            raise DatasetFormatError(f"not a tree with numbers 0 to 4: {line[:40]!r}")
        words: list[str] = _LEAF.findall(line)
        # Every bracket must belong to a word or to a branch.
        n_nodes = len(words) + len(_INNER.findall(line))
        if not n_nodes == line.count("(") == line.count(")"):
            raise DatasetFormatError(f"a tree with brackets that hold no word: {line[:40]!r}")
        labels.append(int(root[1]))
        sentences.append([word.lower() for word in words])
    if not labels:
        raise DatasetFormatError("the file has no rows")
    return np.array(labels, np.int64), sentences
