"""Text vectorisers that forget: exact counts of terms, and rounded inverse document frequencies."""

from collections.abc import Mapping, Sequence
from math import ceil, floor
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.feature_extraction.text import CountVectorizer as _Analyzer
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from letheon.base import lock_model
from letheon.data import Frame, SlotRows, as_table, is_text_column
from letheon.delta import Block, Delta, RowSource, StableTransformer, StepPlan, Table
from letheon.guarantee import MethodFacts
from letheon.preprocessing._facts import make_facts
from letheon.preprocessing._terms import (
    HASH,
    LOG_UNIT_BITS,
    LONGEST_TEXT,
    CountChange,
    Entries,
    Integers,
    Numbering,
    TermCounts,
    Vocabulary,
    count_share,
    hash_texts,
    round_logarithms,
    sum_rows,
    twice_logarithms,
)
from letheon.seeds import Purpose, keyed_hash
from letheon.validation import (
    Boolean,
    Either,
    Interval,
    OneOf,
    OrNone,
    ParameterRule,
    Rules,
    Whole,
)

# Binary digits of 1 + ln(tf).
_SUBLINEAR_BITS = 12
_WORD = r"(?u)\b\w\w+\b"


class _Lengths(ParameterRule):
    """A range of lengths of n-grams."""

    text = "a tuple (low, high) with 1 <= low <= high"

    def accepts(self, value: Any) -> bool:
        """Return whether a value is such a range."""
        is_pair = isinstance(value, tuple | list) and len(value) == 2
        return is_pair and all(isinstance(v, Integral) for v in value) and 1 <= value[0] <= value[1]


class _FixedTerms(ParameterRule):
    """Terms that are given by the caller."""

    text = "distinct terms, or a mapping of terms to the columns 0, 1, ..."

    def accepts(self, value: Any) -> bool:
        """Return whether a value is such a list or mapping."""
        if isinstance(value, Mapping):
            return len(value) > 0 and sorted(value.values()) == list(range(len(value)))
        if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset | np.ndarray):
            return False
        return 0 < len(value) == len(set(value))


class CountVectorizer(StableTransformer):
    r"""Counts of the terms of texts, as in scikit-learn.

    A term whose last document is forgotten, or that falls below `min_df`, leaves the vocabulary.

    Parameters
    ----------
    strip_accents : {"ascii", "unicode"} or None, default=None
        Whether to remove accents.
    lowercase : bool, default=True
        Whether to convert texts to lower case.
    stop_words : {"english"}, list of str or None, default=None
        Words to ignore.
    token_pattern : str, default=r"(?u)\b\w\w+\b"
        Regular expression of a word.
    ngram_range : tuple (low, high), default=(1, 1)
        Lengths of the sequences of words or characters that are terms.
    analyzer : {"word", "char", "char_wb"}, default="word"
        Whether terms consist of words or of characters.
    max_df, min_df : float or int, default=1.0 and 1
        Terms in more or fewer documents are ignored. A float is a share of the documents; it is
        compared as the decimal number that it prints as, without rounding.
    max_features : int or None, default=None
        Keep only the terms that occur most often. Ties: first in alphabetical order.
    vocabulary : mapping, sequence or set of str, optional
        The terms. `max_df`, `min_df` and `max_features` are then ignored.
    binary : bool, default=False
        Whether to count each term once per document.

    Attributes
    ----------
    vocabulary_ : dict of str to int
        The column of each term.

    Notes
    -----
    Guarantee: exact. The counts of each document are stored, so that a request need not read other
    texts. Columns are sorted by term; the output is a CSR array of float64.

    Examples
    --------
    >>> from letheon.preprocessing import CountVectorizer
    >>> counts = CountVectorizer().fit(["red apple", "red", "pear"], ids=["ann", "bob", "eva"])
    >>> counts.get_feature_names_out().tolist()
    ['apple', 'pear', 'red']
    >>> receipt = counts.forget(["ann"])
    >>> counts.transform(["red red apple"]).toarray().tolist()
    [[0.0, 2.0]]
    """

    facts: ClassVar[MethodFacts] = make_facts("vectorisation of texts", "text-counts")
    _parameter_rules: ClassVar[Rules] = {
        "strip_accents": OrNone(OneOf(("ascii", "unicode"))),
        "lowercase": Boolean(),
        "ngram_range": _Lengths(),
        "analyzer": OneOf(("word", "char", "char_wb")),
        "max_df": Either(Whole(1), Interval(0, 1)),
        "min_df": Either(Whole(1), Interval(0, 1)),
        "max_features": OrNone(Whole(1)),
        "vocabulary": OrNone(_FixedTerms()),
        "binary": Boolean(),
    }

    sums_: TermCounts
    published_: Vocabulary

    # Counts are not weighted, and nothing is random.
    norm: Any = None
    use_idf: bool = False
    smooth_idf: bool = True
    sublinear_tf: bool = False
    random_state: Any = 0

    def __init__(
        self,
        *,
        strip_accents: str | None = None,
        lowercase: bool = True,
        stop_words: Any = None,
        token_pattern: str = _WORD,
        ngram_range: tuple[int, int] = (1, 1),
        analyzer: str = "word",
        max_df: float = 1.0,
        min_df: float = 1,
        max_features: int | None = None,
        vocabulary: Any = None,
        binary: bool = False,
    ) -> None:
        self.strip_accents = strip_accents
        self.lowercase = lowercase
        self.stop_words = stop_words
        self.token_pattern = token_pattern
        self.ngram_range = ngram_range
        self.analyzer = analyzer
        self.max_df = max_df
        self.min_df = min_df
        self.max_features = max_features
        self.vocabulary = vocabulary
        self.binary = binary

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:  # noqa: ARG002
        """Return the term of each column."""
        check_is_fitted(self)
        return np.array(self.published_.terms, object)

    @property
    def vocabulary_(self) -> dict[str, int]:
        """The column of each term."""
        check_is_fitted(self)
        return {term: column for column, term in enumerate(self.published_.terms)}

    def _check_parameters(self) -> None:
        super()._check_parameters()
        self._analyzer()

    def _convert_table(self, X: Any, *, copy: bool) -> Table:
        if isinstance(X, str):
            raise ValueError("Iterable over raw text documents expected, string object received.")
        table = as_table(X, copy=copy)
        if isinstance(table, np.ndarray) and table.ndim == 2 and table.shape[1] == 1:
            table = table[:, 0]
        return _require_texts(table)

    def _analyzer(self) -> Any:
        names = ("strip_accents", "lowercase", "stop_words", "token_pattern", "ngram_range")
        settings = {name: getattr(self, name) for name in names}
        return _Analyzer(analyzer=self.analyzer, **settings).build_analyzer()

    def _list_fixed_terms(self) -> list[str]:
        """Return the terms of the parameter `vocabulary`, in the order of the columns."""
        terms = self.vocabulary
        if isinstance(terms, Mapping):
            return sorted(terms, key=terms.__getitem__)
        return sorted(terms) if isinstance(terms, set | frozenset) else [str(t) for t in terms]

    def _read_terms(self, texts: Sequence[str], numbers: Mapping[str, int]) -> Entries:
        """Return the terms of texts; unknown terms are -1, or get a number from a `Numbering`."""
        is_growing = isinstance(numbers, Numbering)
        find: Any = numbers.__getitem__ if is_growing else numbers.get
        analyze = self._analyzer()
        found: list[int] = []
        starts = [0]
        for text in texts:
            found.extend(map(find, analyze(text)))
            starts.append(len(found))
        longest = max(np.diff(starts), default=0)
        if longest > LONGEST_TEXT:
            raise ValueError(f"a text has {longest} terms; expected at most {LONGEST_TEXT}")
        if not is_growing:
            found = [-1 if number is None else number for number in found]
        terms = np.array(found, np.int32)
        return Entries(np.array(starts), terms, np.ones(len(terms), np.float32))

    def _count_texts(self, texts: Sequence[str], numbers: dict[str, int]) -> Any:
        """Return the counts of the terms of training texts, as a CSR."""
        entries = self._read_terms(texts, numbers)
        if not isinstance(numbers, Numbering):
            entries = entries.rename(np.append(np.arange(len(numbers)), -1))
        matrix = entries.to_csr()
        if self.binary:
            matrix.data[:] = 1
        return matrix

    def _count(self, source: RowSource, seed: int) -> tuple[TermCounts, Vocabulary]:
        is_fixed = self.vocabulary is not None
        terms = self._list_fixed_terms() if is_fixed else []
        fixed = {term: number for number, term in enumerate(terms)}
        numbers = fixed if is_fixed else Numbering({})
        parts, ids, hashes = [], [], []
        for block in source.blocks():
            texts = _require_texts(block.X)
            parts.append(self._count_texts(texts, numbers))
            ids.append(block.ids)
            hashes.append(hash_texts(seed, Purpose.TEXT, texts))
        matrix = parts[0] if len(parts) == 1 else sp.vstack(parts, format="csr")
        documents = SlotRows(matrix, None, ids[0].concat(*ids[1:]), {HASH: np.concatenate(hashes)})
        sums = TermCounts(dict(numbers), documents, is_fixed)
        is_kept = self._choose_terms(
            len(documents), sums.n_documents, sums.n_occurrences, sums.terms
        )
        if not is_fixed:
            terms = sorted(str(sums.terms[number]) for number in np.flatnonzero(is_kept).tolist())
        frequencies = sums.n_documents[[numbers[term] for term in terms]]
        logs = self._round_frequencies(frequencies, terms, seed)
        level = self._round_rows(len(documents), seed)
        return sums, Vocabulary.make(terms, level, logs, sums.numbers)

    def _choose_terms(
        self,
        n_rows: int,
        n_documents: Integers,
        n_occurrences: Integers,
        terms: "list[str | None]",
    ) -> NDArray[np.bool_]:
        """Return which numbers are in the vocabulary; decided by integers."""
        if self.vocabulary is not None:
            return np.ones(len(terms), bool)
        lowest, highest = (
            count_share(self.min_df, n_rows, ceil),
            count_share(self.max_df, n_rows, floor),
        )
        if highest < lowest:
            raise ValueError("max_df corresponds to < documents than min_df")
        if not n_documents.any():
            raise ValueError("empty vocabulary; perhaps the documents only contain stop words")
        is_kept = (n_documents >= max(lowest, 1)) & (n_documents <= highest)
        if not is_kept.any():
            raise ValueError(
                "After pruning, no terms remain. Try a lower min_df or a higher max_df."
            )
        most = self.max_features
        if most is not None and np.count_nonzero(is_kept) > most:
            numbers = np.flatnonzero(is_kept)
            counts = n_occurrences[numbers]
            border = np.partition(counts, len(counts) - most)[len(counts) - most]
            tied = sorted(numbers[counts == border].tolist(), key=lambda k: str(terms[k]))
            is_kept &= n_occurrences > border
            is_kept[tied[: most - np.count_nonzero(is_kept)]] = True
        return is_kept

    def _round_rows(self, n_rows: int, seed: int) -> int:
        """Return the rounded logarithm of the number of documents, in halves."""
        if not self.use_idf:
            return 0
        dither = keyed_hash(seed, Purpose.DOCUMENTS)
        number = np.array([n_rows + self.smooth_idf])
        return int(round_logarithms(number, np.array([dither], np.uint64))[0])

    def _round_frequencies(self, n_documents: Integers, terms: Any, seed: int) -> Integers:
        """Return the rounded logarithms of document frequencies, in halves."""
        if not self.use_idf or not len(n_documents):
            return np.zeros(len(n_documents), np.int64)
        # Without smoothing, a fixed term without documents counts as one with one document.
        numbers = np.maximum(n_documents + self.smooth_idf, 1)
        return round_logarithms(numbers, hash_texts(seed, Purpose.TERM, terms))

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        if not delta.only_rows or (delta.removed is not None and delta.added is not None):
            return self._rebuild_plan(delta)
        sums, old = self.sums_, self.published_
        change = self._plan_change(delta)
        names = change.name_terms(sums)
        is_kept = self._choose_terms(change.n_rows, change.n_documents, change.n_occurrences, names)
        was_kept = np.zeros(len(names), bool)
        was_kept[old.order] = True
        left, entered = np.flatnonzero(was_kept & ~is_kept), np.flatnonzero(is_kept & ~was_kept)
        new, layout = old, None
        if len(left) or len(entered):
            new, layout = old.replace_terms(left, entered, names, change.numbers)
        level = self._round_rows(change.n_rows, self.seed_)
        columns = new.find_columns(np.union1d(change.touched, entered))
        columns = columns[columns >= 0]
        logs = new.logs.copy()
        logs[columns] = self._round_frequencies(
            change.n_documents[new.order[columns]],
            [new.terms[column] for column in columns.tolist()],
            self.seed_,
        )
        if level != new.level or not np.array_equal(logs, new.logs):
            new = new.with_logs(level, logs)
        if new.numbers is not change.numbers:
            new = new.link(change.numbers)
        if level != old.level:
            every = tuple(range(len(new.terms)))
            return StepPlan(
                published=new,
                apply=lambda: change.apply(sums),
                columns=every,
                layout=layout,
                work=1.0,
                rebuilt={"columns": len(every)},
            )
        moved = new.order[columns[self._is_changed(old, new, columns)]]
        affected = moved if self.norm is None else np.concatenate([left, entered, moved])
        affected = affected[change.n_documents[affected] > 0]
        rows = sums.find_ranks(affected, change.slots) if len(affected) else None
        n_rows = abs(change.n_rows - len(sums.documents)) + (0 if rows is None else len(rows))
        return StepPlan(
            published=new,
            apply=lambda: change.apply(sums),
            layout=layout,
            rows=rows,
            find_rows=lambda wanted: sums.find_ranks(new.order[wanted], change.slots),
            work=n_rows / max(change.n_rows, n_rows),
            rebuilt={"rows": 0 if rows is None else len(rows)},
        )

    @staticmethod
    def _is_changed(old: Vocabulary, new: Vocabulary, columns: Integers) -> NDArray[np.bool_]:
        """Return which columns of the new vocabulary were in the old one with another logarithm."""
        before = old.find_columns(new.order[columns])
        is_changed: NDArray[np.bool_] = (before >= 0) & (old.logs[before] != new.logs[columns])
        return is_changed

    def _plan_change(self, delta: Delta) -> CountChange:
        if delta.removed is not None:
            return self.sums_.plan_removal(delta.removed.ids)
        added = delta.added
        assert added is not None
        texts = _require_texts(added.X)
        numbering = self.sums_.numbering()
        numbers = self.sums_.numbers if self.sums_.is_fixed else numbering
        matrix = self._count_texts(texts, numbers)
        hashes = hash_texts(self.seed_, Purpose.TEXT, texts)
        return self.sums_.plan_arrival(matrix, numbering, added.ids, hashes)

    def _apply_plan(self, plan: StepPlan) -> None:
        super()._apply_plan(plan)
        self.sums_.drop_terms()

    def transform(self, X: Any) -> Any:
        """Return the counts or weights of texts.

        Parameters
        ----------
        X : sequence of str
            The texts.

        Returns
        -------
        csr_array of float64, shape (n_texts, n_terms)
        """
        check_is_fitted(self)
        texts, published = self._convert_table(X, copy=False), self.published_
        result = self._transform_with(published, texts)
        if self.published_ is published:
            return result
        with lock_model(self):  # a request changed the numbers of terms meanwhile
            return self._transform_with(self.published_, texts)

    def _count_outputs(self, published: Vocabulary) -> int:
        return len(published.terms)

    def _transform_with(self, published: Vocabulary, X: Table) -> Table:
        entries = self._read_terms(_require_texts(X), published.numbers)
        return self._weigh(published, entries)

    def _transform_training(self, published: Vocabulary, block: Block) -> Table:
        """Return the transformed rows; stored documents are not analysed again."""
        texts = _require_texts(block.X)
        hashes = hash_texts(self.seed_, Purpose.TEXT, texts)
        slots = self.sums_.find_documents(block.ids, hashes)
        if (slots < 0).any():
            return self._transform_with(published, texts)
        return self._weigh(published, self.sums_.entries_at(slots))

    def _weigh(self, published: Vocabulary, entries: Entries) -> Any:
        """Return weighted and normalised counts; everything before the division is an integer."""
        matrix = entries.rename(published.columns).to_csr(len(published.terms))
        counts = matrix.data.astype(np.int64)
        if self.binary:
            counts[:] = 1
        unit = 2
        if self.sublinear_tf:
            shift = LOG_UNIT_BITS + 1 - _SUBLINEAR_BITS
            distinct, places = np.unique(counts, return_inverse=True)
            counts = ((twice_logarithms(distinct) >> shift) + (1 << _SUBLINEAR_BITS))[places]
            unit <<= _SUBLINEAR_BITS
        weights = counts * published.twice_idf[matrix.indices]
        values = weights.astype(np.float64)
        if self.norm is None:
            values /= unit
        else:
            sums = sum_rows(weights if self.norm == "l1" else weights * weights, matrix.indptr)
            norms = sums.astype(np.float64)
            norms = norms if self.norm == "l1" else np.sqrt(norms)
            values /= np.repeat(norms, np.diff(matrix.indptr))
        indices, starts = matrix.indices, matrix.indptr
        if len(indices) < 2**31:  # many estimators of scikit-learn take only 32-bit indices
            indices, starts = indices.astype(np.int32), starts.astype(np.int32)
        result = sp.csr_array((values, indices, starts), shape=matrix.shape)
        result.has_canonical_format = True
        return result

    def _to_state(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        model = cls.__new__(cls)
        model.__setstate__(state)
        return model

    def __copy__(self) -> Self:
        """Return a copy with its own counts."""
        duplicate = super().__copy__()
        if "published_" in vars(duplicate):
            duplicate.published_ = self.published_.link(duplicate.sums_.numbers)
        return duplicate

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "published_" in state:
            sums = state.get("sums_")
            self.published_ = self.published_.link(None if sums is None else sums.numbers)

    def __sklearn_tags__(self) -> Tags:
        """Return the tags: rows are texts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


def _require_texts(X: Table) -> Any:
    """Return one column of texts, or raise."""
    if isinstance(X, Frame) and X.shape[1] == 1 and X.codes.shape[1] == 1:
        X = np.array(X.column_values(0), object)
    if not is_text_column(X) or not all(isinstance(text, str) for text in X):
        raise ValueError(
            "X is not a column of texts; expected one str per row, without missing values"
        )
    return X


class TfidfVectorizer(CountVectorizer):
    r"""Weighted counts of the terms of texts, as in scikit-learn, with a rounded idf.

    scikit-learn's idf, ``ln((1 + n) / (1 + df)) + 1``, changes in every column when one document is
    removed. Here both logarithms are rounded to halves: ``ln(1 + n)`` once for all terms, and
    ``ln(1 + df)`` for each term, up or down by a hash of the term with the seed. A removal changes
    the idf of a term of the document with a probability of about ``2 / df``, and the common part
    with a probability of about ``2 / n``.

    Parameters
    ----------
    strip_accents, lowercase, stop_words, token_pattern, ngram_range, analyzer
        How texts become terms; see `CountVectorizer`.
    max_df, min_df, max_features, vocabulary, binary
        Which terms are columns, and how they are counted; see `CountVectorizer`.
    norm : {"l2", "l1"} or None, default="l2"
        Length of each row.
    use_idf : bool, default=True
        Whether to weight by the inverse document frequency.
    smooth_idf : bool, default=True
        Whether to add one document with every term.
    sublinear_tf : bool, default=False
        Replace a count tf by 1 + ln(tf), to 12 binary digits.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the rounding.

    Attributes
    ----------
    vocabulary_ : dict of str to int
        The column of each term.
    idf_ : ndarray of shape (n_terms,)
        The rounded inverse document frequencies: multiples of 1/2 that differ by less than 1 from
        those of scikit-learn.

    Notes
    -----
    Guarantee: exact. Weights are whole numbers before the division by the norm, so the output is
    the same on every machine.

    Examples
    --------
    >>> from letheon.preprocessing import TfidfVectorizer
    >>> texts = ["red apple", "red pear", "green pear"]
    >>> tfidf = TfidfVectorizer(random_state=0).fit(texts, ids=["ann", "bob", "eva"])
    >>> tfidf.transform(texts).shape
    (3, 4)
    >>> tfidf.forget(["eva"]).n_rows
    1
    >>> tfidf.get_feature_names_out().tolist()
    ['apple', 'pear', 'red']
    """

    _parameter_rules: ClassVar[Rules] = {
        "norm": OrNone(OneOf(("l1", "l2"))),
        "use_idf": Boolean(),
        "smooth_idf": Boolean(),
        "sublinear_tf": Boolean(),
    }

    def __init__(
        self,
        *,
        strip_accents: str | None = None,
        lowercase: bool = True,
        stop_words: Any = None,
        token_pattern: str = _WORD,
        ngram_range: tuple[int, int] = (1, 1),
        analyzer: str = "word",
        max_df: float = 1.0,
        min_df: float = 1,
        max_features: int | None = None,
        vocabulary: Any = None,
        binary: bool = False,
        norm: str | None = "l2",
        use_idf: bool = True,
        smooth_idf: bool = True,
        sublinear_tf: bool = False,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            strip_accents=strip_accents,
            lowercase=lowercase,
            stop_words=stop_words,
            token_pattern=token_pattern,
            ngram_range=ngram_range,
            analyzer=analyzer,
            max_df=max_df,
            min_df=min_df,
            max_features=max_features,
            vocabulary=vocabulary,
            binary=binary,
        )
        self.norm = norm
        self.use_idf = use_idf
        self.smooth_idf = smooth_idf
        self.sublinear_tf = sublinear_tf
        self.random_state = random_state

    @property
    def idf_(self) -> NDArray[np.float64]:
        """The rounded inverse document frequency of each column."""
        check_is_fitted(self)
        return self.published_.twice_idf / 2
