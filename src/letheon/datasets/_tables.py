"""Readers of text files with tables, and the encoding of their words.

Words of a column are numbered in alphabetical order over the whole published file, before any
sampling, splitting or removal. So the list of words is a constant of that file and
independent of removals. A missing number becomes -1, because a mean would depend on people who may
be forgotten later. Some files have special formats: svmlight, click logs, tweets, baskets, trees.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, islice
from operator import add
from sys import intern
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from letheon.datasets._spec import DatasetArrays, Encoding, ReadJob
from letheon.exceptions import DatasetFormatError

MISSING = frozenset(("", "?", "NA", "NaN", "nan"))
MISSING_NUMBER = -1.0
_CHUNK = 20_000  # number of rows with texts in memory at once
HIGGS = (
    "lepton_pT", "lepton_eta", "lepton_phi", "missing_energy_magnitude", "missing_energy_phi",
    *(f"jet_{jet}_{what}" for jet in (1, 2, 3, 4) for what in ("pt", "eta", "phi", "btag")),
    "m_jj", "m_jjj", "m_lv", "m_jlv", "m_bb", "m_wbb", "m_wwbb",
)  # fmt: skip
COVTYPE = (
    "Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology",
    "Vertical_Distance_To_Hydrology", "Horizontal_Distance_To_Roadways", "Hillshade_9am",
    "Hillshade_Noon", "Hillshade_3pm", "Horizontal_Distance_To_Fire_Points",
    *(f"Wilderness_Area{area}" for area in range(1, 5)),
    *(f"Soil_Type{soil}" for soil in range(1, 41)),
)  # fmt: skip


class TextColumns(dict[str, list[str]]):
    """Texts of a table by column name; equal texts share one object."""

    def __missing__(self, name: str) -> NoReturn:
        raise DatasetFormatError(f"the file has no column {name!r}; it has: {', '.join(self)}")

    def __add__(self, other: "TextColumns") -> "TextColumns":
        """Return the rows of both tables, concatenated."""
        return TextColumns({name: texts + other[name] for name, texts in self.items()})

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.values())))

    def map(self, name: str, function: Callable[[str], Any], dtype: Any) -> NDArray[Any]:
        """Return the function of every text in a column; it is called once per distinct text."""
        try:
            values = {text: function(text) for text in dict.fromkeys(self[name])}
            return np.array([values[text] for text in self[name]], dtype)
        except DatasetFormatError:
            raise
        except (OverflowError, ValueError) as error:
            raise DatasetFormatError(
                f"a cell of the column {name!r} does not have the published format: {error}"
            ) from error


def read_columns(
    lines: Iterable[str],
    *,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    limit: int | None = None,
    skip: str | None = None,
) -> TextColumns:
    """Read a table of texts; by default the first line contains the column names.

    Parameters
    ----------
    lines : iterable of str
        Lines of the file. Empty lines are skipped.
    names : sequence of str, optional
        Column names, for a file without a header.
    delimiter : str, default=","
        The separator of cells.
    limit : int, optional
        Maximum number of rows to read.
    skip : str, optional
        Skip lines that start with this text.
    """
    wanted = (line for line in lines if skip is None or not line.startswith(skip))
    rows = csv.reader(wanted, delimiter=delimiter, skipinitialspace=True)
    if names is None:
        names = [each.strip("\ufeff ") for each in read_first_line(rows)]
    columns: list[list[str]] = [[] for _ in names]
    cells_of_rows = islice((row for row in rows if row), limit)
    while chunk := list(islice(cells_of_rows, _CHUNK)):
        wrong = next((row for row in chunk if len(row) != len(names)), None)
        if wrong is not None:
            raise DatasetFormatError(
                f"a row has {len(wrong)} cells; expected {len(names)}. The row starts with "
                f"{wrong[:3]}"
            )
        for column, cells in zip(columns, zip(*chunk, strict=True), strict=True):
            column.extend(map(intern, cells))
    if not columns or not columns[0]:
        raise DatasetFormatError("the file has no rows")
    return TextColumns(zip(names, columns, strict=True))


def read_first_line(lines: Iterator[Any]) -> Any:
    """Return the first line of a file; raise `DatasetFormatError` if the file is empty."""
    line = next(lines, None)
    if line is None:
        raise DatasetFormatError("the file is empty")
    return line


def parse_number(text: str) -> float:
    """Return the number in a cell, or -1 if the value is missing."""
    text = text.strip()
    try:
        return MISSING_NUMBER if text in MISSING else float(text)
    except ValueError:
        raise DatasetFormatError(f"{text!r} is not a number") from None


def parse_word(text: str) -> str:
    """Return the word in a cell; all notations of a missing value become one word."""
    text = text.strip()
    return "missing" if text in MISSING else text


# First and last ICD-9 code of the groups of Strack et al. (2014), Table 2.
_DIAGNOSES = (
    (140, 239, "neoplasms"), (250, 250, "diabetes"), (390, 459, "circulatory"),
    (785, 785, "circulatory"), (460, 519, "respiratory"), (786, 786, "respiratory"),
    (520, 579, "digestive"), (787, 787, "digestive"), (580, 629, "genitourinary"),
    (788, 788, "genitourinary"), (710, 739, "musculoskeletal"), (800, 999, "injury"),
)  # fmt: skip
# Places of year, month, day and hour in "2016-04-29T18:38:08Z".
_TIME_PARTS = {"year": slice(4), "month": slice(5, 7), "day": slice(8, 10), "hour": slice(11, 13)}
Cells = Mapping[str, tuple[str, Callable[[str], Any]]]


def diagnosis_group(code: str) -> str:
    """Return the group of an ICD-9 code: one of nine (Strack et al. 2014, Table 2) or "missing".

    Examples
    --------
    >>> [diagnosis_group(code) for code in ("250.83", "428", "V57", "?")]
    ['diabetes', 'circulatory', 'other', 'missing']
    """
    code = parse_word(code)
    if code == "missing" or not code[:1].isdigit():
        return "missing" if code == "missing" else "other"
    value = int(float(code))
    return next((group for first, last, group in _DIAGNOSES if first <= value <= last), "other")


def _cut_number(part: slice) -> Callable[[str], float]:
    return lambda text: float(text[part])


# Features that are computed instead of read from the column with their name.
_CELLS: Cells = {name: (name, diagnosis_group) for name in ("diag_1", "diag_2", "diag_3")} | {
    f"{column} {part}": (column, _cut_number(place))
    for column in ("ScheduledDay", "AppointmentDay")
    for part, place in _TIME_PARTS.items()
}


def encode_table(
    table: TextColumns,
    numbers: Collection[str],
    words: Iterable[str],
    how: Encoding,
    cells: Cells = _CELLS,
    *,
    rows: Any = slice(None),
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Return features and their names: numbers first, then words.

    With ``"one-hot"``, every word has a column ``name=word``. With ``"ordinal"``, a single column
    has the position of the word in the alphabetical list. `cells` gives the source column and the
    conversion of each feature that is not read directly from the column of the same name. Words
    that occur only outside `rows` keep their columns.
    """
    coded = []
    for name in words:
        column, function = cells.get(name, (name, parse_word))
        values = table.map(column, function, object)
        book = sorted(set(values))
        places = {each: place for place, each in enumerate(book)}
        coded.append((name, book, np.array([places[each] for each in values], np.int32)[rows]))
    n_columns = sum(len(book) if how == "one-hot" else 1 for _, book, _ in coded)
    kept = np.arange(table.n_rows)[rows]
    X = np.zeros((len(kept), len(numbers) + n_columns), np.float32)
    names = list(numbers)
    for place, name in enumerate(numbers):
        column, function = cells.get(name, (name, parse_number))
        X[:, place] = table.map(column, function, np.float32)[rows]
    for name, book, codes in coded:
        if how == "one-hot":
            X[np.arange(len(kept)), len(names) + codes] = 1
            names += [f"{name}={each}" for each in book]
        else:
            X[:, len(names)] = codes
            names.append(name)
    return X, tuple(names)


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """How to convert a table to features, labels and ids; see `catalogue.toml`.

    Attributes
    ----------
    numbers : list of str
        Numeric features.
    words : list of str or None
        Word features; None for all remaining columns.
    target : str
        Column of the label.
    positive : str or int
        Value of the target for label 1: a number, or a text. A dot after the text is ignored.
    negative : str
        Value of the target for label 0, if all other values are label 1.
    ids : str
        Column of the id; empty if every row belongs to a different person.
    ids_are_texts : bool
        Whether some ids are not whole numbers.
    dropped : list of str
        Columns that are not used.
    measured : list of str
        Columns that must have values in rows of the variant "measured".
    files : list of int
        Positions of the training file and of the test file, if any. They are read as one table, so
        that both have the same word lists.
    names, delimiter, skip
        As in `read_columns`.
    """

    numbers: Sequence[str]
    words: Sequence[str] | None = None
    target: str
    positive: str | int = ""
    negative: str = ""
    ids: str = ""
    ids_are_texts: bool = False
    dropped: Sequence[str] = ()
    measured: Sequence[str] = ()
    files: Sequence[int] = (0,)
    names: Sequence[str] | None = None
    delimiter: str = ","
    skip: str | None = None

    def is_positive(self, text: str) -> bool:
        """Return whether the text of a target cell means the label 1."""
        if self.negative:
            return parse_word(text) != self.negative
        if isinstance(self.positive, int):
            return float(text) == self.positive
        # UCI test files have a dot after the label.
        return text.strip().rstrip(".") == self.positive


def read_table(job: ReadJob, specs: Mapping[str, TableSpec]) -> DatasetArrays:
    """Read the files of a table according to the specification of the variant."""
    spec = specs[job.variant if job.variant in specs else ""]
    parts = []
    for file in spec.files:
        with job.open_lines(file) as lines:
            names, delimiter = spec.names, spec.delimiter
            parts.append(read_columns(lines, names=names, delimiter=delimiter, skip=spec.skip))
        job.check_rows(file, parts[-1].n_rows)
    table = reduce(add, parts)
    rows: Any = slice(None)
    if job.variant == "measured":
        known = [table.map(name, is_known, np.bool_) for name in spec.measured]
        rows = np.logical_and.reduce(known)
    others = {*spec.numbers, *spec.dropped, spec.target, spec.ids}
    words = spec.words or [name for name in table if name not in others]
    X, features = encode_table(table, spec.numbers, words, job.encode, rows=rows)
    y = table.map(spec.target, spec.is_positive, np.int64)[rows]
    if len(parts) == 2:
        n = parts[0].n_rows
        return DatasetArrays(X[:n], y[:n], None, X[n:], y[n:], feature_names=features)
    ids = None
    if spec.ids:
        kind = (str, np.str_) if spec.ids_are_texts else (int, np.int64)
        ids = table.map(spec.ids, *kind)[rows]
    return DatasetArrays(X, y, ids, feature_names=features)


def is_known(text: str) -> bool:
    """Return whether a cell has a value."""
    return text not in MISSING


def read_vaccine(job: ReadJob) -> DatasetArrays:
    """Read Vaccine; every answer is a word, including "missing", and the ids are respondents.

    In the seasonal variant, the H1N1 vaccination is a feature, as in Brophy and Lowd.
    """
    with job.open_lines(0) as lines:
        answers = read_columns(lines)
    with job.open_lines(1) as lines:
        labels = read_columns(lines)
    job.check_rows(0, answers.n_rows)
    people = answers.map("respondent_id", int, np.int64)
    labelled = labels.map("respondent_id", int, np.int64).tolist()
    places = {person: row for row, person in enumerate(labelled)}
    lacking = [person for person in people.tolist() if person not in places]
    if lacking:
        raise DatasetFormatError(f"{len(lacking)} respondents have no label: {lacking[:3]}, ...")
    rows = [places[person] for person in people.tolist()]
    features = TextColumns(
        {name: texts for name, texts in answers.items() if name != "respondent_id"}
    )
    if job.variant == "seasonal":
        features["h1n1_vaccine"] = [labels["h1n1_vaccine"][row] for row in rows]
    X, names = encode_table(features, (), features, job.encode)
    y = labels.map(f"{job.variant}_vaccine", lambda text: float(text) == 1, np.int64)[rows]
    return DatasetArrays(X, y, people, feature_names=names)


def parse_numbers(lines: Iterable[str]) -> NDArray[np.float32]:
    """Return the numbers in lines of a text file as an array."""
    try:
        return np.loadtxt(lines, np.float32, delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        raise DatasetFormatError(f"the file is not a table of numbers: {error}") from error


def _read_numbers(job: ReadJob) -> tuple[list[str], NDArray[np.float32]]:
    """Return the column names in the header (empty without a header), and a numeric table."""
    with job.open_lines() as lines:
        first = read_first_line(lines).replace('"', "")
        names = first.strip().split(",") if first[:1].isalpha() else []
        body = lines if names else chain([first], lines)
        table = parse_numbers(line.replace('"', "") for line in body)
    job.check_rows(0, len(table))
    return names, table


def read_covtype(job: ReadJob) -> DatasetArrays:
    """Read Covertype: 10 numbers and 44 indicators; y is the cover type minus 1.

    In the variant ``"binary"``, y is 1 for lodgepole pine (type 2) and 0 for other types.
    """
    _, table = _read_numbers(job)
    cover = table[:, -1].astype(np.int64)
    y = (cover == 2).astype(np.int64) if job.variant == "binary" else cover - 1
    return DatasetArrays(table[:, :-1], y, feature_names=COVTYPE)


def read_higgs(job: ReadJob) -> DatasetArrays:
    """Read HIGGS: 21 kinematic properties and 7 functions of them; y is 1 for a signal.

    The label is the first column of the provider's file, which has no header, and the last column
    of a sample with a header.
    """
    names, table = _read_numbers(job)
    y, X = (table[:, -1], table[:, :-1]) if names else (table[:, 0], table[:, 1:])
    return DatasetArrays(X, y.astype(np.int64), feature_names=HIGGS)


def read_credit_card(job: ReadJob) -> DatasetArrays:
    """Read Credit Card Fraud: seconds, 28 principal components, the amount; y is 1 for fraud."""
    names, table = _read_numbers(job)
    return DatasetArrays(
        table[:, :-1], table[:, -1].astype(np.int64), feature_names=tuple(names[:-1])
    )


FIRST = 1_000_000  # rows of CTR and Twitter in Brophy and Lowd
TOP = 600  # categories of Purchase
_SVM_LINES = 5_000  # lines of a dense file that are parsed at once
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


def read_svm(job: ReadJob, *, width: int, is_dense: bool) -> DatasetArrays:
    """Read svmlight files with labels -1 and 1: training rows, and test rows if there are any."""
    X, y = _read_svm_file(job, 0, width, is_dense)
    if job.find(1) is None:
        return DatasetArrays(X, y)
    return DatasetArrays(X, y, None, *_read_svm_file(job, 1, width, is_dense))


def _read_svm_file(
    job: ReadJob, file: int, width: int, is_dense: bool
) -> tuple[Any, NDArray[np.int64]]:
    with job.open(file) as stream:
        if is_dense:
            # Lines are parsed in parts: as one sparse table, a dense file takes three times its
            # memory.
            chunks = iter(lambda: b"".join(islice(stream, _SVM_LINES)), b"")
            tables = [_parse_svm(io.BytesIO(chunk), width) for chunk in chunks]
            X = np.concatenate([X.toarray() for X, _ in tables]) if tables else None
            y = np.concatenate([np.zeros(0, np.int64), *(y for _, y in tables)])
        else:
            X, y = _parse_svm(stream, width)
    if not len(y):
        raise DatasetFormatError(f"{job.locate_file(file)[1]} contains no rows")
    job.check_rows(file, len(y))
    return X, y


def _parse_svm(stream: IO[bytes], width: int) -> tuple[Any, NDArray[np.int64]]:
    from sklearn.datasets import load_svmlight_file

    try:
        X, y = load_svmlight_file(stream, n_features=width, dtype=np.float32, zero_based=False)
    except ValueError as error:
        raise DatasetFormatError(f"the file is not in svmlight format: {error}") from error
    return sparse.csr_array(X), (np.asarray(y) > 0).astype(np.int64)


def read_ctr(job: ReadJob) -> DatasetArrays:
    """Read CTR: the 13 numbers of the first million advertisements; y is 1 for a click.

    Lines of Criteo's file have a label, 13 numbers and 26 hashed categories, separated by tabs. The
    categories are ignored, as in Brophy and Lowd. A missing number is -1; Brophy and Lowd used the
    mean of the other rows.
    """
    with job.open_lines() as lines:
        first = ("\t".join(line.rstrip("\n").split("\t", 14)[:14]) for line in lines)
        table = read_columns(first, names=("label", *_CTR_NUMBERS), delimiter="\t", limit=FIRST)
    X, features = encode_table(table, _CTR_NUMBERS, (), job.encode)
    return DatasetArrays(X, table.map("label", int, np.int64), feature_names=features)


def read_twitter(job: ReadJob) -> DatasetArrays:
    """Read Twitter: numbers about the first million tweets and their authors; y is 1 for spam.

    The file has a header with the columns ``user_id``, ``text`` and ``label``, and any of
    ``pagerank``, ``triangle_count``, ``core_id``, ``out_degree``, ``in_degree``, ``polarity``,
    ``subjectivity``. Six counts are computed from the text. The last column is the number of
    earlier messages of the same author, which does not depend on rows of other authors. In a
    ``.tsv`` file each line is a tweet and quotes have no special meaning; in a ``.csv`` file they
    enclose cells.
    """
    name, _ = job.locate_file(0)
    with job.open_lines() as lines:
        # In a .tsv file a tweet may begin with an unmatched quote; parsed as .csv, it would include
        # the following rows.
        if name.endswith("tsv"):
            rows = csv.DictReader(lines, dialect=csv.excel_tab, quoting=csv.QUOTE_NONE)
        else:
            rows = csv.DictReader(lines, strict=True)
        columns = rows.fieldnames or ()
        lacking = {"user_id", "text", "label"} - set(columns)
        if lacking:
            raise DatasetFormatError(f"{name} lacks the columns {sorted(lacking)}")
        figures = tuple(each for each in _TWITTER_FIGURES if each in columns)
        return _read_tweets(islice(rows, FIRST), figures)


def _read_tweets(rows: Iterator[dict[Any, Any]], figures: tuple[str, ...]) -> DatasetArrays:
    values: list[list[float]] = []
    labels, owners = [], []
    n_before: Counter[str] = Counter()
    for row in rows:
        if None in row or None in row.values():
            raise DatasetFormatError(f"row {len(values) + 1:,} does not match the header columns")
        owner, text = row["user_id"], row["text"]
        counts = [len(mark.findall(text)) for mark in _TWITTER_MARKS.values()]
        values.append([*(parse_number(row[name]) for name in figures), *counts, n_before[owner]])
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
    return DatasetArrays(np.array(values, np.float32), np.array(labels), ids, feature_names=names)


def read_purchase(job: ReadJob) -> DatasetArrays:
    """Read Purchase: which of the 600 best-selling categories each customer has bought.

    Rows are customers with a known response to an offer; y is 1 if they came back. The 600
    categories are a constant of the published file and do not depend on removals. The file of
    transactions has 350 million lines; reading it takes minutes.
    """
    with job.open_lines(1) as lines:
        history = read_columns(lines)
    customers = history.map("id", int, np.int64)
    y = history.map("repeater", lambda t: t.strip().lower() in ("t", "true", "1"), np.int64)
    with job.open_lines(0) as lines:
        bought, n_sold = _read_baskets(lines, customers.tolist())
    categories = list(n_sold)
    best = np.argsort([-count for count in n_sold.values()], kind="stable")[:TOP]
    names = tuple(f"category {categories[place]}" for place in best)
    return DatasetArrays(bought[:, best].astype(np.float32), y, customers, feature_names=names)


def _read_baskets(
    lines: Iterator[str], customers: list[int]
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Return which customer bought which category, and the number of sales by category."""
    header = read_first_line(lines).strip().split(",")
    if "id" not in header or "category" not in header:
        raise DatasetFormatError(
            f"transactions.csv has the columns {header}; expected 'id' and 'category' among them"
        )
    place_id, place_category = header.index("id"), header.index("category")
    last = max(place_id, place_category) + 1
    rows = {str(customer): row for row, customer in enumerate(customers)}
    places: dict[str, int] = {}
    n_sold: Counter[int] = Counter()
    baskets: list[set[int]] = [set() for _ in customers]
    for line in lines:
        cells = line.split(",", last)
        if len(cells) < last:
            raise DatasetFormatError(
                f"a row has {len(cells)} cells; expected at least {last}: {line[:40]!r}"
            )
        place = places.setdefault(cells[place_category], len(places))
        n_sold[place] += 1
        row = rows.get(cells[place_id])
        if row is not None:
            baskets[row].add(place)
    bought = np.zeros((len(customers), len(places)), np.bool_)
    for row, basket in enumerate(baskets):
        bought[row, list(basket)] = True
    return bought, {category: n_sold[place] for category, place in places.items()}


def read_sst(job: ReadJob) -> DatasetArrays:
    """Read SST: a sparse table of word counts per sentence, in lower case.

    Each line is a tree such as ``(3 (2 It) (4 (2 's) (3 good)))``; y is the number at the root,
    from 0 (very negative) to 4 (very positive). In the variant ``"binary"``, neutral sentences are
    omitted, and y is 1 for the numbers 3 and 4. The columns are the words of both files in
    alphabetical order, the same in both variants.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    parts = []
    for file in (0, 1):
        with job.open_lines(file) as lines:
            parts.append(_read_trees(lines))
        job.check_rows(file, len(parts[-1][0]))
    counter = CountVectorizer(analyzer=list, dtype=np.float32)
    counter.fit([*parts[0][1], *parts[1][1]])
    arrays: list[Any] = []
    for y, sentences in parts:
        rows = np.flatnonzero(y != _NEUTRAL) if job.variant == "binary" else slice(None)
        labels = (y > _NEUTRAL).astype(np.int64) if job.variant == "binary" else y
        arrays += [sparse.csr_array(counter.transform(sentences))[rows], labels[rows], None]
    return replace(
        DatasetArrays(*arrays), feature_names=tuple(map(str, counter.get_feature_names_out()))
    )


def _read_trees(lines: Iterable[str]) -> tuple[NDArray[np.int64], list[list[str]]]:
    labels, sentences = [], []
    for line in lines:
        if not line.strip():
            continue
        root = _ROOT.match(line)
        if root is None:
            raise DatasetFormatError(f"a line is not a tree with labels from 0 to 4: {line[:40]!r}")
        words: list[str] = _LEAF.findall(line)
        # Each bracket must belong to a word or to a branch.
        n_nodes = len(words) + len(_INNER.findall(line))
        if not n_nodes == line.count("(") == line.count(")"):
            raise DatasetFormatError(f"a tree has brackets without a word: {line[:40]!r}")
        labels.append(int(root[1]))
        sentences.append([word.lower() for word in words])
    if not labels:
        raise DatasetFormatError("the file has no rows")
    return np.array(labels, np.int64), sentences
