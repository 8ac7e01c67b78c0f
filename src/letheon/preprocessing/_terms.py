"""Counts of terms that documents are added to and removed from, and the published vocabulary.

Terms have internal numbers, so that a request handles arrays. The numbers depend on the history of
the model; files, digests and outputs contain terms in sorted order instead.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from numbers import Integral
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon.data import Ids, SlotRows
from letheon.seeds import Purpose, keyed_hash_texts

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

# Numbers of terms are below this one; a CSR needs no memory for columns.
WIDTH = 2**31 - 1
HASH = "text"
# The sum of the squared weights of a longer text might not fit into 64 bits.
LONGEST_TEXT = 2**24
# Comparisons with this many numbers are faster than a table.
_FEW = 8
# Binary digits of log2, and of a logarithm that is rounded.
_LOG_BITS, LOG_UNIT_BITS = 26, 56
# floor(2 ln 2 * 2**30): log2 times this is twice a natural logarithm.
_TWICE_LN_2 = 1488522235


def twice_logarithms(numbers: Integers) -> Integers:
    """Return ``2 ln(m)`` of whole numbers from 1 to 2**32 - 1, as multiples of 2**-56.

    Only integers are used, so results are equal on every machine. The error is below 2**-23.
    """
    values = numbers.astype(np.uint64)
    exponents = np.zeros(values.shape, np.uint64)
    for bits in (16, 8, 4, 2, 1):
        is_large = values >> exponents >= np.uint64(1 << bits)
        exponents += np.where(is_large, np.uint64(bits), np.uint64(0))
    mantissas = values << (np.uint64(31) - exponents)
    logs = exponents
    for _ in range(_LOG_BITS):
        # Squares of numbers in [1, 2): whether one reaches 2 is the next digit of the logarithm.
        mantissas = (mantissas * mantissas) >> np.uint64(31)
        digits = mantissas >> np.uint64(32)
        mantissas >>= digits
        logs = logs << np.uint64(1) | digits
    return (logs * np.uint64(_TWICE_LN_2)).astype(np.int64)


def round_logarithms(numbers: Integers, dithers: Words) -> Integers:
    """Return ``floor(2 ln(m) + u)`` for dithers ``2**64 u``: logarithms in halves."""
    distinct, places = np.unique(numbers, return_inverse=True)
    sums = twice_logarithms(distinct)[places] + (dithers >> np.uint64(8)).astype(np.int64)
    return sums >> LOG_UNIT_BITS


def hash_texts(seed: int, purpose: Purpose, texts: Iterable[str]) -> Words:
    """Return a keyed hash of each text."""
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return keyed_hash_texts(seed, purpose, np.frombuffer(b"".join(parts), np.uint8), offsets)


def count_share(limit: float, n_rows: int, rounding: Any) -> int:
    """Return a number of documents from a number or a share; repr gives the digits of a share."""
    if isinstance(limit, Integral):
        return int(limit)
    return int(rounding(Fraction(repr(float(limit))) * n_rows))


def sum_rows(values: Integers, starts: NDArray[Any]) -> Integers:
    """Return the sums of the entries of each row."""
    sums = np.zeros(len(starts) - 1, np.int64)
    is_full = np.diff(starts) > 0
    if is_full.any():
        sums[is_full] = np.add.reduceat(values, starts[:-1][is_full])
    return sums


class Numbering(dict[str, int]):
    """Numbers of terms; a new term gets a free number, or the next one."""

    def __init__(
        self, known: Mapping[str, int], free: Sequence[int] = (), n_numbers: int = 0
    ) -> None:
        super().__init__(known)
        self.new: dict[str, int] = {}
        self._free, self._next = list(free), n_numbers

    def __missing__(self, term: str) -> int:
        if self._free:
            number = self._free.pop()
        else:
            number = self._next
            self._next += 1
        self[term] = self.new[term] = number
        return number


class Entries(NamedTuple):
    """Terms of some documents: document k has the entries ``starts[k]`` to ``starts[k + 1]``."""

    starts: NDArray[Any]
    terms: NDArray[Any]
    counts: NDArray[Any]

    def require_valid(self) -> None:
        """Raise `ValueError` if documents have entries that do not exist: SciPy reads them."""
        starts, sizes = self.starts, (len(self.terms), len(self.counts))
        kinds = "".join(part.dtype.kind for part in self)
        is_plain = kinds == "iif" and all(part.ndim == 1 for part in self)
        if not is_plain or len(starts) == 0 or starts[0] != 0 or (starts[-1],) * 2 != sizes:
            raise ValueError("not a valid vectoriser: expected one count per term of a document")
        if (starts[1:] < starts[:-1]).any():
            raise ValueError("not a valid vectoriser: the documents overlap")
        if not (
            (self.counts >= 1)
            & (self.counts == np.floor(self.counts))
            & (self.counts <= LONGEST_TEXT)
        ).all():
            raise ValueError("not a valid vectoriser: expected whole numbers as counts")

    def to_csr(self, width: int = WIDTH) -> Any:
        """Return a CSR with sorted terms; repeated terms are added up."""
        shape = (len(self.starts) - 1, width)
        matrix = sp.csr_array((self.counts, self.terms, self.starts), shape=shape)
        matrix.sum_duplicates()
        return matrix

    def take(self, positions: Integers) -> "Entries":
        """Return some documents."""
        begins = self.starts[positions].astype(np.int64)
        lengths = self.starts[positions + 1] - begins
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])
        return Entries(starts, self.terms[places], self.counts[places])

    def rename(self, names: Integers) -> "Entries":
        """Return the entries with other numbers of terms, without those whose number is -1."""
        terms = names[np.minimum(self.terms, len(names) - 1)]
        is_kept = terms >= 0
        n_before = np.concatenate([[0], np.cumsum(is_kept)])
        return Entries(n_before[self.starts], terms[is_kept], self.counts[is_kept])


class TermCounts:
    """Documents as counts of terms, and the number of documents and occurrences of each term.

    Parameters
    ----------
    numbers : dict of str to int
        Number of each term.
    documents : SlotRows
        Counts of each document as a CSR over these numbers, ids, and a hash of each text.
    is_fixed : bool
        Whether the terms are a parameter, so that none appears or vanishes.

    Attributes
    ----------
    terms : list of str or None
        The term of each number; None for a free number.
    n_documents, n_occurrences : ndarray of int64
        For each number: documents with the term, and its occurrences in all documents.
    """

    def __init__(self, numbers: dict[str, int], documents: SlotRows, is_fixed: bool) -> None:
        self.numbers, self.documents, self.is_fixed = numbers, documents, is_fixed
        self.terms: list[str | None] = list(numbers)
        self.free: list[int] = []
        self.empty: Integers = np.empty(0, np.int64)
        X = documents.X
        self.n_documents: Integers = np.bincount(X.indices, minlength=len(numbers))
        # Sums of whole numbers in float64 are exact.
        counts = np.bincount(X.indices, X.data, len(numbers))
        self.n_occurrences: Integers = counts.astype(np.int64)

    def drop_terms(self) -> None:
        """Forget terms without documents.

        It is called after a new vocabulary is published: a concurrent reader of the old one needs
        their numbers.
        """
        for number in () if self.is_fixed else self.empty.tolist():
            self.numbers.pop(str(self.terms[number]))
            self.terms[number] = None
            self.free.append(number)
        self.empty = self.empty[:0]

    def entries_at(self, slots: Integers) -> Entries:
        """Return the documents in some slots."""
        X = self.documents.X
        return Entries(X.indptr, X.indices, X.data).take(slots)

    def numbering(self) -> Numbering:
        """Return numbers that terms can be added to."""
        return Numbering(self.numbers, self.free, len(self.terms))

    def find_documents(self, ids: Ids, hashes: Words) -> Integers:
        """Return for each row the slot of a document of these ids with the same text, or -1."""
        slots = self.documents.find(ids.distinct()).positions
        if not len(slots):
            return np.full(len(hashes), -1, np.int64)
        known = self.documents.extra[HASH][slots]
        order = np.argsort(known)
        nearest = order[np.minimum(np.searchsorted(known[order], hashes), len(slots) - 1)]
        return np.where(known[nearest] == hashes, slots[nearest], -1)

    def find_ranks(self, numbers: Integers, without: Integers) -> Integers:
        """Return the ranks of documents with one of these terms, after some slots are emptied."""
        X = self.documents.X
        if len(numbers) <= _FEW:
            parts = [np.flatnonzero(X.indices == number) for number in numbers.tolist()]
            entries = np.concatenate([*parts, np.empty(0, np.int64)])
        else:
            is_wanted = np.zeros(len(self.terms), bool)
            is_wanted[numbers[numbers < len(self.terms)]] = True
            entries = np.flatnonzero(is_wanted[X.indices])
        slots = np.unique(np.searchsorted(X.indptr, entries, side="right") - 1)
        alive = self.documents.alive.copy()
        alive[without] = False
        return np.cumsum(alive)[slots[alive[slots]]] - 1

    def plan_removal(self, ids: Ids) -> "CountChange":
        """Return the counts without the documents of some ids."""
        slots = self.documents.find(ids.distinct()).positions
        _, terms, counts = self.entries_at(slots)
        n_documents, n_occurrences = self.n_documents.copy(), self.n_occurrences.copy()
        np.subtract.at(n_documents, terms, 1)
        np.subtract.at(n_occurrences, terms, counts.astype(np.int64))
        n_rows = len(self.documents) - len(slots)
        touched = np.unique(terms)
        return CountChange(n_rows, n_documents, n_occurrences, touched, self.numbers, {}, slots)

    def plan_arrival(
        self, matrix: Any, numbering: Numbering, ids: Ids, hashes: Words
    ) -> "CountChange":
        """Return the counts with new documents, which may have new terms."""
        new = numbering.new
        n_new = max([len(self.terms) - 1, *new.values()]) + 1 - len(self.terms)
        n_documents, n_occurrences = (
            np.concatenate([counts, np.zeros(n_new, np.int64)])
            for counts in (self.n_documents, self.n_occurrences)
        )
        np.add.at(n_documents, matrix.indices, 1)
        np.add.at(n_occurrences, matrix.indices, matrix.data.astype(np.int64))
        joined = self.documents.join(matrix, None, ids, {HASH: hashes})
        return CountChange(
            len(joined),
            n_documents,
            n_occurrences,
            np.unique(matrix.indices),
            dict(numbering),
            new,
            np.empty(0, np.int64),
            joined,
        )

    def _to_state(self) -> dict[str, Any]:
        terms = sorted(self.numbers)
        names = np.zeros(len(self.terms), np.int64)
        names[[self.numbers[term] for term in terms]] = np.arange(len(terms))
        slots = np.flatnonzero(self.documents.alive)
        entries = self.entries_at(slots)
        matrix = entries._replace(terms=names[entries.terms]).to_csr()
        return {
            "terms": terms,
            "is_fixed": self.is_fixed,
            "starts": matrix.indptr.astype(np.int64),
            "numbers": matrix.indices.astype(np.int32),
            "counts": matrix.data,
            "ids": self.documents.ids,
            "hashes": self.documents.extra[HASH][slots],
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        terms, numbers = state["terms"], state["numbers"]
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(terms):
            raise ValueError("not a valid vectoriser: a document has an unknown term")
        entries = Entries(state["starts"], numbers, state["counts"])
        entries.require_valid()
        matrix = entries.to_csr()
        documents = SlotRows(matrix, None, state["ids"], {HASH: state["hashes"]})
        return cls({term: k for k, term in enumerate(terms)}, documents, state["is_fixed"])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._from_state, (self._to_state(),)

    def __copy__(self) -> Self:
        new = object.__new__(type(self))
        vars(new).update(vars(self))
        new.numbers, new.documents = dict(self.numbers), self.documents.__copy__()
        new.terms, new.free = list(self.terms), list(self.free)
        return new

    def __deepcopy__(self, _: Any) -> Self:
        return self.__copy__()


@dataclass(frozen=True)
class CountChange:
    """Counts after a change, by number; numbers of new terms are at the end or were free.

    Attributes
    ----------
    n_rows : int
        Number of documents.
    n_documents, n_occurrences : ndarray of int64
        See `TermCounts`.
    touched : ndarray of int
        Numbers whose counts change.
    numbers : dict of str to int
        Numbers of all terms, including those that vanish.
    new : dict of str to int
        New terms.
    slots : ndarray of int64
        Documents that leave.
    joined : SlotRows or None
        All documents, if some arrive.
    """

    n_rows: int
    n_documents: Integers
    n_occurrences: Integers
    touched: Integers
    numbers: dict[str, int]
    new: dict[str, int]
    slots: Integers
    joined: SlotRows | None = None

    def name_terms(self, sums: TermCounts) -> "list[str | None]":
        """Return the term of each number, including new terms."""
        if not self.new:
            return sums.terms
        terms = sums.terms + [None] * (len(self.n_documents) - len(sums.terms))
        for term, number in self.new.items():
            terms[number] = term
        return terms

    def apply(self, sums: TermCounts) -> None:
        """Change the counts; `TermCounts.drop_terms` must follow."""
        sums.terms, sums.numbers = self.name_terms(sums), self.numbers
        sums.n_documents, sums.n_occurrences = self.n_documents, self.n_occurrences
        if self.new:
            reused = set(self.new.values())
            sums.free = [number for number in sums.free if number not in reused]
        sums.empty = self.touched[self.n_documents[self.touched] == 0]
        if self.joined is not None:
            sums.documents = self.joined
        sums.documents.wipe(self.slots)


class Vocabulary:
    """Published terms, in the order of the columns, and their rounded logarithms.

    Parameters
    ----------
    terms : list of str
        The term of each column.
    level : int
        Rounded ``2 ln(1 + n)`` for n documents; 0 without idf.
    logs : ndarray of int64
        Rounded ``2 ln(1 + df)`` of each column; 0 without idf.
    numbers : dict of str to int
        Numbers of these and other terms, shared with `TermCounts`; not in files.
    order : ndarray of int64
        The number of the term of each column; not in files.

    Attributes
    ----------
    columns : ndarray of int64
        The column of each number, or -1; the last entry, -1, is for later numbers.
    """

    def __init__(
        self, terms: list[str], level: int, logs: Integers, numbers: dict[str, int], order: Integers
    ) -> None:
        self.terms, self.level, self.logs = terms, level, logs
        self.numbers, self.order = numbers, order
        self.columns = np.full(int(order.max(initial=-1)) + 2, -1, np.int64)
        self.columns[order] = np.arange(len(order))

    @classmethod
    def make(
        cls, terms: list[str], level: int, logs: Integers, numbers: dict[str, int]
    ) -> "Vocabulary":
        """Return a vocabulary of some numbered terms."""
        order = np.fromiter(map(numbers.__getitem__, terms), np.int64, len(terms))
        return cls(terms, level, logs, numbers, order)

    @cached_property
    def twice_idf(self) -> Integers:
        """Twice the rounded inverse document frequency of each column; at least 1."""
        return np.maximum(self.level - self.logs + 2, 1)

    def find_columns(self, numbers: Integers) -> Integers:
        """Return the column of each number, or -1."""
        return self.columns[np.minimum(numbers, len(self.columns) - 1)]

    def link(self, numbers: dict[str, int] | None) -> "Vocabulary":
        """Return the vocabulary with other numbers; None: those of the columns."""
        if numbers is None:
            numbers = {term: column for column, term in enumerate(self.terms)}
        return self.make(self.terms, self.level, self.logs, numbers)

    def replace_terms(
        self, left: Integers, entered: Integers, names: "list[str | None]", numbers: dict[str, int]
    ) -> "tuple[Vocabulary, Integers]":
        """Return the vocabulary without some numbers and with others, and the layout of columns.

        New columns get the logarithm 0.
        """
        terms = list(self.terms)
        gaps = np.sort(self.columns[left])
        for column in gaps[::-1].tolist():
            del terms[column]
        arrivals = sorted((str(names[number]), number) for number in entered.tolist())
        places = [bisect_left(terms, term) for term, _ in arrivals]
        for place, (term, _) in zip(places[::-1], arrivals[::-1], strict=True):
            terms.insert(place, term)
        layout = np.delete(np.arange(len(self.order)), gaps)
        order, logs = self.order[layout], self.logs[layout]
        if places:
            layout, logs = np.insert(layout, places, -1), np.insert(logs, places, 0)
            order = np.insert(order, places, [number for _, number in arrivals])
        return Vocabulary(terms, self.level, logs, numbers, order), layout

    def with_logs(self, level: int, logs: Integers) -> "Vocabulary":
        """Return the same terms with other logarithms."""
        new = object.__new__(type(self))
        vars(new).update(vars(self), level=level, logs=logs)
        vars(new).pop("twice_idf", None)
        return new

    def _to_state(self) -> dict[str, Any]:
        return {"terms": self.terms, "level": self.level, "logs": self.logs}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> "Vocabulary":
        terms, logs = state["terms"], state["logs"]
        if len(terms) != len(logs):
            raise ValueError("not a valid vocabulary: expected one logarithm per term")
        numbers = {term: number for number, term in enumerate(terms)}
        return cls.make(terms, state["level"], logs, numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._from_state, (self._to_state(),)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: Any) -> Self:
        return self
