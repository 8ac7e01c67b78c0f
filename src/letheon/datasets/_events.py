"""Olympics, Credit Card, CTR and Twitter: one row per event, advertisement or message."""

import csv
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.datasets._info import DataFile, DatasetInfo, SurveyRow
from letheon.datasets._job import Job, Loaded, Source
from letheon.datasets._synthetic import StandIn
from letheon.datasets._tables import (
    MISSING,
    Plan,
    encode,
    first_line,
    number,
    numbers_of,
    read_columns,
)
from letheon.exceptions import DatasetFormatError

__all__ = ["FIRST", "SOURCES"]

FIRST = 1_000_000  # rows that Brophy and Lowd took of CTR and Twitter
_MEASURED = ("Age", "Height", "Weight")
_OLYMPICS_WORDS = ("Sex", "NOC", "Games", "Season", "City", "Sport", "Event")
_CTR_NUMBERS = tuple(f"I{place}" for place in range(1, 14))
_TWITTER_GIVEN = (
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


def read_olympics(job: Job) -> Loaded:
    """Read Olympics: 4 numbers and 7 columns of words; ids are athletes; y is any medal.

    Names and teams of athletes are left out. ``"measured"``: rows with age, height and weight.
    The list of words is that of the whole file in both variants.
    """
    with job.text() as lines:
        table = read_columns(lines)
    job.count(0, len(table))
    if job.variant == "measured":
        known = [table[name].map(lambda text: text not in MISSING, np.bool_) for name in _MEASURED]
        table = table.where(np.logical_and.reduce(known))
    X, features = encode(table, Plan.of((*_MEASURED, "Year"), _OLYMPICS_WORDS), job.encode)
    y = table["Medal"].map(lambda text: text not in MISSING, np.int64)
    return Loaded(X, y, table["ID"].map(int, np.int64), feature_names=features)


def read_credit_card(job: Job) -> Loaded:
    """Read Credit Card Fraud: seconds, 28 principal components and the amount; y is fraud."""
    with job.text() as lines:
        names = [name.strip('"') for name in first_line(lines).strip().split(",")]
        table = numbers_of(line.replace('"', "") for line in lines)
    job.count(0, len(table))
    X = np.ascontiguousarray(table[:, :-1])
    return Loaded(X, table[:, -1].astype(np.int64), feature_names=tuple(names[:-1]))


def read_ctr(job: Job) -> Loaded:
    """Read CTR: the 13 numbers of the first million advertisements; y is a click.

    Lines of Criteo's file: label, 13 numbers, 26 hashed categories (left out, as in Brophy and
    Lowd), with tabs between. A missing number is -1, where they took the mean of the others.
    """
    with job.text() as lines:
        first = ("\t".join(line.rstrip("\n").split("\t", 14)[:14]) for line in lines)
        table = read_columns(first, names=("label", *_CTR_NUMBERS), delimiter="\t", limit=FIRST)
    X, features = encode(table, Plan.of(_CTR_NUMBERS, ()), "ordinal")
    return Loaded(X, table["label"].map(int, np.int64), feature_names=features)


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
        rows = csv.DictReader(lines, dialect=_Tabs if name.endswith("tsv") else _Commas)
        lacking = {"user_id", "text", "label"} - set(rows.fieldnames or ())
        if lacking:
            raise DatasetFormatError(f"no columns {sorted(lacking)} in {name}")
        given = tuple(each for each in _TWITTER_GIVEN if each in (rows.fieldnames or ()))
        return _tweets(islice(rows, FIRST), given)


class _Tabs(csv.excel_tab):
    """A tweet may begin with a quote that nothing closes."""

    quoting = csv.QUOTE_NONE


class _Commas(csv.excel):
    """A quote that nothing closes would swallow the rows after it."""

    strict = True


def _tweets(rows: Iterator[dict[Any, Any]], given: tuple[str, ...]) -> Loaded:
    values: list[list[float]] = []
    labels, owners = [], []
    seen: Counter[str] = Counter()
    for row in rows:
        if None in row or None in row.values():
            raise DatasetFormatError(f"row {len(values) + 1:,} has more or fewer cells than names")
        counts = [len(mark.findall(row["text"])) for mark in _TWITTER_MARKS.values()]
        values.append([*(number(row[name]) for name in given), *counts, seen[row["user_id"]]])
        seen[row["user_id"]] += 1
        labels.append(_is_spam(row["label"]))
        owners.append(row["user_id"])
    if not values:
        raise DatasetFormatError("the file has no rows")
    names = (*given, *_TWITTER_MARKS, "usr_msg_cnt")
    return Loaded(np.array(values, np.float32), np.array(labels), _ids(owners), feature_names=names)


def _is_spam(label: str) -> int:
    label = label.strip().lower()
    return int(label == "spam" or label in ("1", "1.0"))


def _ids(texts: list[str]) -> NDArray[Any]:
    """Return whole numbers where all are such, texts otherwise."""
    try:
        return np.array([int(text) for text in texts], np.int64)
    except ValueError:
        return np.array(texts, np.str_)


_KAGGLE = "Kaggle (an account is needed)"

SOURCES = (
    Source(
        info=DatasetInfo(
            name="olympics",
            title="120 years of Olympic history",
            folder="olympics",
            files=(DataFile(names=("athlete_events.csv",), rows={"athlete_events.csv": 271_116}),),
            provider=_KAGGLE,
            page=(
                "https://www.kaggle.com/datasets/heesoo37/"
                "120-years-of-olympic-history-athletes-and-results"
            ),
            licence="CC0 1.0",
            citation="Griffin (2018), 120 years of Olympic history; data by sports-reference.com",
            subject_id="ID",
            survey=SurveyRow(dimensionality="15", size="206,165", classes="2", balance="14.60%"),
            note=(
                "206,165 of 271,116 rows have age, height and weight; the survey's dimensionality "
                "counts the label. Fixed: the lists of words, those of the published file. "
                "One-hot X takes 1 GB."
            ),
            variants={
                "measured": "rows with age, height and weight: 206,165",
                "all": "every row; a missing number is -1",
            },
            has_words=True,
        ),
        read=read_olympics,
        stand_ins={
            variant: StandIn(
                n_rows=n_rows,
                n_numbers=4,
                n_words=(2, 230, 51, 2, 42, 66, 765),
                shares=(0.854, 0.146),
                rows_per_person=2.1,
            )
            for variant, n_rows in (("measured", 206_165), ("all", 271_116))
        },
    ),
    Source(
        info=DatasetInfo(
            name="credit-card",
            title="Credit Card Fraud Detection",
            folder="credit-card",
            files=(DataFile(names=("creditcard.csv",), rows={"creditcard.csv": 284_807}),),
            provider=_KAGGLE,
            page="https://www.kaggle.com/datasets/mlg-ulb/creditcardfraud",
            licence="Database Contents License 1.0",
            citation="Dal Pozzolo, Caelen, Johnson, Bontempi (2015), IEEE SSCI",
            survey=SurveyRow(dimensionality="30", size="284,807", classes="2", balance="0.17%"),
            note="The provider's components were computed over all rows; no card is named.",
        ),
        read=read_credit_card,
        stand_ins={"": StandIn(n_rows=284_807, n_numbers=30, shares=(0.99827, 0.00173))},
    ),
    Source(
        info=DatasetInfo(
            name="ctr",
            title="Criteo click logs, first day",
            folder="ctr",
            files=(DataFile(names=("day_0",)),),
            provider="Criteo AI Lab",
            page="https://ailab.criteo.com/download-criteo-1tb-click-logs-dataset/",
            licence="CC BY-NC-SA 4.0",
            citation="Criteo AI Lab (2013), Criteo 1TB Click Logs",
            survey=SurveyRow(dimensionality="39", size="1,000,000", classes="2", balance="2.91%"),
            note=(
                "The first million rows and 13 numbers, as in Brophy and Lowd; the survey's 39 "
                "also counts 26 hashed categories."
            ),
        ),
        read=read_ctr,
        stand_ins={"": StandIn(n_rows=FIRST, n_numbers=13, shares=(0.9709, 0.0291))},
    ),
    Source(
        info=DatasetInfo(
            name="twitter",
            title="HSpam14, hashtag-oriented spam",
            folder="twitter",
            files=(DataFile(names=("hspam14.tsv", "comments.tsv", "comments.csv")),),
            provider="A. Sun, NTU (ids and labels); texts and authors from Twitter",
            page="https://personal.ntu.edu.sg/axsun/datasets.html",
            licence="research only; may not be passed on",
            citation="Sedhai, Sun (2015), SIGIR, doi:10.1145/2766462.2767701",
            subject_id="user_id",
            survey=SurveyRow(dimensionality="15", size="1,000,000", classes="2", balance="16.93%"),
            note=(
                "A file with a header and the columns user_id, text, label, and any of the seven "
                "figures of Brophy and Lowd; the first million rows are read. Quotes enclose cells "
                "of a .csv only."
            ),
        ),
        read=read_twitter,
        stand_ins={
            "": StandIn(n_rows=FIRST, n_numbers=14, shares=(0.8307, 0.1693), rows_per_person=2.0)
        },
    ),
)
