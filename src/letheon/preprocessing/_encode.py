"""Encoders of categories that forget: the lists of categories follow from exact counts."""

from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils.validation import check_is_fitted

from letheon.delta import Block, Delta, RowSource, StableTransformer, StepPlan, Table
from letheon.guarantee import MethodFacts
from letheon.preprocessing._categories import (
    CATEGORY_TAGS,
    FEW_ROWS,
    INFREQUENT,
    CategoryCounts,
    CategoryLists,
    Counts,
    Key,
    category_array,
    count_column,
    list_rows,
    map_column,
    sort_keys,
    to_categories_table,
)
from letheon.preprocessing._facts import make_facts
from letheon.validation import (
    Boolean,
    Either,
    Interval,
    OneOf,
    OrNone,
    Rules,
    Whole,
    is_number,
)

Ints = NDArray[np.int64]


def find_infrequent(
    counts: list[int], n_rows: int, min_frequency: float | None, max_categories: int | None
) -> tuple[int, ...]:
    """Return the positions of infrequent categories, as scikit-learn defines them."""
    border = count_border(n_rows, min_frequency)
    rare = {place for place, count in enumerate(counts) if count < border}
    if max_categories is not None and max_categories < len(counts) - len(rare) + 1:
        # Among equal counts, categories that come first are infrequent first.
        order = sorted(range(len(counts)), key=lambda place: counts[place])
        rare |= set(order[: len(order) - (max_categories - 1)])
    return tuple(sorted(rare))


def count_border(n_rows: int, min_frequency: float | None) -> int:
    """Return the smallest count of a category that is not infrequent.

    A share of the rows is the decimal number that Python shows, so 0.2 of 40 rows are 8.
    """
    if min_frequency is None:
        return 0
    if isinstance(min_frequency, int | np.integer):
        return int(min_frequency)
    return -int(-Fraction(repr(float(min_frequency))) * n_rows // 1)


class _CategoryEncoder(OneToOneFeatureMixin, StableTransformer):
    """Base class of encoders: counts of categories, and published lists of categories."""

    sums_: CategoryCounts
    published_: CategoryLists
    categories: Any
    handle_unknown: str
    # Nothing is random.
    random_state = 0

    facts: ClassVar[MethodFacts] = make_facts("encoding of categories")
    _input_tags = CATEGORY_TAGS

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not isinstance(self.categories, list | tuple) and self.categories != "auto":
            raise ValueError(
                f"categories={self.categories!r}; expected 'auto' or one list for each column"
            )

    def _convert_table(self, X: Any, *, copy: bool) -> Table:
        return to_categories_table(X, copy=copy)

    def _frequency_limits(self) -> tuple[float | None, int | None]:
        """Return `min_frequency` and `max_categories`."""
        return None, None

    def _choose_dropped(self, n_groups: int) -> int | None:  # noqa: ARG002
        """Return the output of a column that is left out."""
        return None

    def _count(self, source: RowSource, seed: int) -> tuple[CategoryCounts, CategoryLists]:  # noqa: ARG002
        sums = CategoryCounts.from_source(source)
        return sums, self._publish(sums.kinds, sums.counts, sums.n_rows)

    def _publish(self, kinds: tuple[str, ...], counts: list[Counts], n_rows: int) -> CategoryLists:
        lists = self._list_categories(counts)
        rare = tuple(
            find_infrequent([known.get(key, 0) for key in keys], n_rows, *self._frequency_limits())
            for keys, known in zip(lists, counts, strict=True)
        )
        sizes = [len(keys) - len(few) + bool(few) for keys, few in zip(lists, rare, strict=True)]
        return CategoryLists(kinds, lists, rare, tuple(map(self._choose_dropped, sizes)))

    def _list_categories(self, counts: list[Counts]) -> tuple[tuple[Key, ...], ...]:
        if isinstance(self.categories, str):
            return tuple(sort_keys(known, f"column {j}") for j, known in enumerate(counts))
        lists = tuple(tuple(map(_to_key, keys)) for keys in self.categories)
        if len(lists) != len(counts):
            raise ValueError(
                f"Shape mismatch: categories has {len(lists)} lists for {len(counts)} columns"
            )
        for column, (keys, known) in enumerate(zip(lists, counts, strict=True)):
            _require_valid_list(keys, column)
            if self.handle_unknown == "error":
                _require_known_keys(known.keys() - set(keys), column, "fit")
        return lists

    def _prepare_leaving(self, row: Block) -> StepPlan | None:
        sums, (low, limit) = self.sums_, self._frequency_limits()
        border = count_border(sums.n_rows, low)
        if limit is not None or border != count_border(sums.n_rows - 1, low):
            return None
        keys, numbers = sums.count_row(row.X)
        if 1 in numbers or border in numbers:  # a category vanishes, or becomes infrequent
            return None
        apply = partial(sums.subtract_row, keys, numbers)
        return StepPlan(published=self.published_, apply=apply)

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        if delta.layout is not None:
            return self._rebuild_plan(delta)
        sums, published = self.sums_, self.published_
        recounted = _recount_columns(delta) if delta.columns else {}
        n_rows, changes = sums.compare(delta, delta.columns)

        def apply() -> None:
            sums.apply(n_rows, changes, recounted)

        low, limit = self._frequency_limits()
        before, after = count_border(sums.n_rows, low), count_border(n_rows, low)
        is_same = not recounted and limit is None and before == after
        if is_same and not any(
            not (old and new) or (old < before) != (new < before) for _, _, old, new in changes
        ):
            return StepPlan(published=published, apply=apply)
        fresh = self._publish(sums.kinds, sums.preview(changes, recounted), n_rows)
        fresh = published if fresh == published else fresh
        columns, layout = self._compare_outputs(published, fresh, delta.columns)
        work = len(recounted) / max(1, len(sums.kinds))
        return StepPlan(published=fresh, apply=apply, columns=columns, layout=layout, work=work)

    def _compare_outputs(
        self, old: CategoryLists, new: CategoryLists, changed: tuple[int, ...]
    ) -> tuple[tuple[int, ...], Ints | None]:
        """Return the output columns that changed, and the layout of the new output."""
        raise NotImplementedError(f"{type(self).__name__} must compare its outputs")

    def _encode_rows(
        self, X: Table, numbers: tuple[dict[Key, int], ...], defaults: Any
    ) -> NDArray[Any]:
        """Return one number for each value; `defaults` has that of unknown values, or None."""
        unknown = [-2 if default is None else default for default in defaults]
        if X.shape[0] <= FEW_ROWS:
            encoded = np.array(
                [
                    [known.get(key, other) for known, key, other in zip(numbers, row, unknown)]  # noqa: B905
                    for row in list_rows(X)
                ],
                np.int64,
            )
        else:
            encoded = np.empty(X.shape, np.int64)
            for j, known in enumerate(numbers):
                encoded[:, j] = map_column(X, j, known, unknown[j])
        if encoded.size and encoded.min() == -2:
            column = int(np.flatnonzero((encoded == -2).any(axis=0))[0])
            others = count_column(X, column).keys() - numbers[column].keys()
            _require_known_keys(others, column, "transform")
        return encoded

    @property
    def categories_(self) -> list[NDArray[Any]]:
        """Categories of each column, sorted; a missing value is NaN and the last one."""
        check_is_fitted(self)
        published = self.published_
        pairs = zip(published.categories, published.kinds, strict=True)
        return [category_array(keys, kind) for keys, kind in pairs]


def _to_key(value: Any) -> Key:
    key: Key = value.item() if isinstance(value, np.generic) else value
    return None if key != key else key  # noqa: PLR0124


def _require_valid_list(keys: tuple[Key, ...], column: int) -> None:
    present = [key for key in keys if key is not None]
    if len(set(keys)) < len(keys) or None in keys[:-1]:
        raise ValueError(
            f"categories[{column}] has duplicate entries, or a missing value before the end"
        )
    if all(is_number(key) for key in present) and list(sort_keys(present, "")) != present:
        raise ValueError("Unsorted categories are not supported for numerical categories")


def _require_known_keys(unknown: Any, column: int, during: str) -> None:
    if unknown:
        names = sorted("nan" if key is None else repr(key) for key in unknown)
        raise ValueError(
            f"Found unknown categories [{', '.join(names)}] in column {column} during {during}"
        )


def _recount_columns(delta: Delta) -> dict[int, Counts]:
    counts: dict[int, Counts] = {column: {} for column in delta.columns}
    for block in delta.source.blocks():
        for column, known in counts.items():
            for key, count in count_column(block.X, column).items():
                known[key] = known.get(key, 0) + count
    return counts


class OneHotEncoder(_CategoryEncoder):
    """One column of 0 and 1 for each category, with the parameters of scikit-learn.

    Parameters
    ----------
    categories : "auto" or list of lists, default="auto"
        Categories of each column; "auto": those of the remaining rows.
    drop : {"first", "if_binary"} or None, default=None
        Leave out the first category of each column, or of each column with two categories.
    sparse_output : bool, default=True
        Whether the output is sparse.
    handle_unknown : {"error", "ignore", "infrequent_if_exist"}, default="error"
        What `transform` does with a category that is not in the list: raise, only zeros, or the
        column of infrequent categories.
    min_frequency : int, float or None, default=None
        Categories with fewer rows share one column; a float is a share of the rows.
    max_categories : int or None, default=None
        Largest number of columns for each input column; the categories with the fewest rows share
        one.

    Attributes
    ----------
    categories_ : list of ndarray
        Categories of each column, sorted. Missing values are one category, shown as NaN.
    infrequent_categories_ : list of ndarray or None
        Infrequent categories of each column.
    drop_idx_ : ndarray of object or None
        Position in `categories_` of the category that is left out, for each column.
    n_features_in_ : int
        Number of input columns.

    Notes
    -----
    Guarantee: exact. Counts are integers; a category whose last row is forgotten leaves the list,
    and its column leaves the output.

    Examples
    --------
    >>> from letheon.preprocessing import OneHotEncoder
    >>> model = OneHotEncoder(sparse_output=False).fit([["a"], ["b"], ["a"]], ids=[1, 2, 3])
    >>> model.transform([["a"], ["b"]]).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    >>> model.forget([2]).n_rows
    1
    >>> model.get_feature_names_out().tolist()
    ['x0_a']
    """

    _parameter_rules: ClassVar[Rules] = {
        "drop": OrNone(OneOf(("first", "if_binary"))),
        "sparse_output": Boolean(),
        "handle_unknown": OneOf(("error", "ignore", "infrequent_if_exist")),
        "min_frequency": OrNone(Either(Whole(1), Interval(0, 1, "neither"))),
        "max_categories": OrNone(Whole(1)),
    }

    def __init__(
        self,
        *,
        categories: Any = "auto",
        drop: str | None = None,
        sparse_output: bool = True,
        handle_unknown: str = "error",
        min_frequency: float | None = None,
        max_categories: int | None = None,
    ) -> None:
        self.categories = categories
        self.drop = drop
        self.sparse_output = sparse_output
        self.handle_unknown = handle_unknown
        self.min_frequency = min_frequency
        self.max_categories = max_categories

    def _frequency_limits(self) -> tuple[float | None, int | None]:
        return self.min_frequency, self.max_categories

    def _choose_dropped(self, n_groups: int) -> int | None:
        return 0 if self.drop == "first" or (self.drop is not None and n_groups == 2) else None

    def _count_outputs(self, published: CategoryLists) -> int:
        return len(published.outputs)

    def _compare_outputs(
        self, old: CategoryLists, new: CategoryLists, changed: tuple[int, ...]
    ) -> tuple[tuple[int, ...], Ints | None]:
        moved = {
            (column, INFREQUENT)
            for column in range(len(new.kinds))
            if new is not old and _has_moved_keys(old, new, column)
        }
        columns = tuple(
            place
            for place, output in enumerate(new.outputs)
            if output[0] in changed or output in moved
        )
        if new.outputs == old.outputs:
            return columns, None
        numbers = {output: place for place, output in enumerate(old.outputs)}
        return columns, np.array([numbers.get(output, -1) for output in new.outputs], np.int64)

    def _transform_with(self, published: CategoryLists, X: Table) -> Table:
        default = {"error": None, "ignore": -1}.get(self.handle_unknown, 0)
        defaults = published.rare_places if default == 0 else (default,) * len(published.kinds)
        places = self._encode_rows(X, published.places, defaults)
        n_rows, n_columns = len(places), len(published.outputs)
        is_set = places >= 0
        if self.sparse_output:
            indptr = np.concatenate([[0], np.cumsum(is_set.sum(axis=1))])
            indices = places[is_set]
            parts = np.ones(len(indices)), indices.astype(np.int32), indptr.astype(np.int32)
            table = sp.csr_array(parts, shape=(n_rows, n_columns))
            table.has_canonical_format = True
            return table
        dense = np.zeros((n_rows, n_columns))
        dense[np.nonzero(is_set)[0], places[is_set]] = 1.0
        return dense

    def inverse_transform(self, X: Any) -> NDArray[Any]:
        """Return the category of each row and column; None where no column is set.

        Infrequent categories are shown as ``"infrequent_sklearn"``.
        """
        check_is_fitted(self)
        published = self.published_
        dense = X.toarray() if sp.issparse(X) else np.asarray(X)
        if dense.shape[1] != len(published.outputs):
            raise ValueError(
                f"Shape of the passed X data is not correct. Expected {len(published.outputs)} "
                f"columns, got {dense.shape[1]}."
            )
        owners = np.array([column for column, _ in published.outputs])
        values = np.full((len(dense), len(published.kinds)), None, object)
        for column, group in enumerate(published.groups):
            keys = ["infrequent_sklearn" if key is INFREQUENT else key for key in group]
            own, dropped = dense[:, owners == column], published.dropped[column]
            kept = [code for code in range(len(group)) if code != dropped]
            codes = np.array(kept, int)[own.argmax(axis=1)] if kept else np.zeros(len(dense), int)
            is_empty = ~own.astype(bool).any(axis=1)
            table = np.array([*keys, None], object)
            codes[is_empty] = len(keys) if dropped is None else dropped
            values[:, column] = table[codes]
        return values

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the output columns: name of the input column, ``_``, category."""
        names = super().get_feature_names_out(input_features)
        published = self.published_
        shown = [
            dict(zip(keys, category_array(keys, kind).tolist(), strict=True))
            for keys, kind in zip(published.categories, published.kinds, strict=True)
        ]
        return np.array(
            [f"{names[column]}_{shown[column].get(key, key)}" for column, key in published.outputs],
            object,
        )

    @property
    def infrequent_categories_(self) -> list[NDArray[Any] | None]:
        """Infrequent categories of each column, or None."""
        pairs = zip(self.categories_, self.published_.infrequent, strict=True)
        return [keys[list(rare)] if rare else None for keys, rare in pairs]

    @property
    def drop_idx_(self) -> NDArray[Any] | None:
        """Position in `categories_` of the category that is left out, for each column."""
        check_is_fitted(self)
        published = self.published_
        if self.drop is None:
            return None
        places: list[int | None] = []
        for keys, group, dropped in zip(
            published.categories, published.groups, published.dropped, strict=True
        ):
            output = INFREQUENT if dropped is None else group[dropped]
            places.append(None if output is INFREQUENT else keys.index(output))
        return np.array(places, object)


def _has_moved_keys(old: CategoryLists, new: CategoryLists, column: int) -> bool:
    """Return whether a category with rows joined or left the infrequent ones."""
    keys, before = new.categories[column], old.categories[column]
    rare = {keys[place] for place in new.infrequent[column]}
    rare_before = {before[place] for place in old.infrequent[column]}
    return bool((rare ^ rare_before) & set(keys) & set(before))


class OrdinalEncoder(_CategoryEncoder):
    """The number of the category in the sorted list, with the parameters of scikit-learn.

    Parameters
    ----------
    categories : "auto" or list of lists, default="auto"
        Categories of each column; "auto": those of the remaining rows.
    handle_unknown : {"error", "use_encoded_value"}, default="error"
        What `transform` does with a category that is not in the list.
    unknown_value : int or nan, optional
        Number of unknown categories with ``handle_unknown="use_encoded_value"``.
    encoded_missing_value : int or nan, default=nan
        Number of missing values.

    Attributes
    ----------
    categories_ : list of ndarray
        Categories of each column, sorted. Missing values are one category, shown as NaN.
    n_features_in_ : int
        Number of columns.

    Notes
    -----
    Guarantee: exact. A category whose last row is forgotten leaves the list, and the numbers of the
    categories after it become smaller by one.

    Examples
    --------
    >>> from letheon.preprocessing import OrdinalEncoder
    >>> model = OrdinalEncoder().fit([["a"], ["b"], ["c"]], ids=[1, 2, 3])
    >>> model.transform([["c"]]).tolist()
    [[2.0]]
    >>> receipt = model.forget([2])
    >>> model.transform([["c"]]).tolist()
    [[1.0]]
    """

    _parameter_rules: ClassVar[Rules] = {"handle_unknown": OneOf(("error", "use_encoded_value"))}

    def __init__(
        self,
        *,
        categories: Any = "auto",
        handle_unknown: str = "error",
        unknown_value: float | None = None,
        encoded_missing_value: float = np.nan,
    ) -> None:
        self.categories = categories
        self.handle_unknown = handle_unknown
        self.unknown_value = unknown_value
        self.encoded_missing_value = encoded_missing_value

    def _check_parameters(self) -> None:
        super()._check_parameters()
        is_given = self.unknown_value is not None
        if is_given != (self.handle_unknown == "use_encoded_value"):
            raise ValueError(
                f"unknown_value={self.unknown_value!r} with handle_unknown="
                f"{self.handle_unknown!r}; expected a number with 'use_encoded_value' "
                "and None with 'error'"
            )

    def _publish(self, kinds: tuple[str, ...], counts: list[Counts], n_rows: int) -> CategoryLists:
        published = super()._publish(kinds, counts, n_rows)
        for name in ("unknown_value", "encoded_missing_value"):
            value = getattr(self, name)
            sizes = [len(keys) - (None in keys) for keys in published.categories]
            if value is not None and 0 <= value < max(sizes):
                raise ValueError(f"{name}={value!r} is already the number of a category")
        return published

    def _count_outputs(self, published: CategoryLists) -> int:
        return len(published.kinds)

    def _compare_outputs(
        self, old: CategoryLists, new: CategoryLists, changed: tuple[int, ...]
    ) -> tuple[tuple[int, ...], Ints | None]:
        return tuple(
            column
            for column in range(len(new.kinds))
            if column in changed or not _has_same_codes(old.codes[column], new.codes[column])
        ), None

    def _transform_with(self, published: CategoryLists, X: Table) -> Table:
        default = None if self.handle_unknown == "error" else -1
        codes = self._encode_rows(X, published.codes, (default,) * len(published.kinds))
        numbers = codes.astype(np.float64)
        if default is not None:
            numbers[codes == -1] = self.unknown_value
        for column, known in enumerate(published.codes):
            if None in known:
                numbers[codes[:, column] == known[None], column] = self.encoded_missing_value
        return numbers

    def inverse_transform(self, X: Any) -> NDArray[Any]:
        """Return the category of each number; None for unknown categories."""
        check_is_fitted(self)
        numbers = np.asarray(X, np.float64)
        values = np.full(numbers.shape, None, object)
        for column, keys in enumerate(self.categories_):
            for code, key in enumerate(keys.tolist()):
                values[numbers[:, column] == code, column] = key
            missing = self.encoded_missing_value
            if None in self.published_.categories[column]:
                is_missing = np.isnan(numbers[:, column]) | (numbers[:, column] == missing)
                values[is_missing, column] = np.nan
        return values


def _has_same_codes(old: dict[Key, int], new: dict[Key, int]) -> bool:
    return all(new[key] == code for key, code in old.items() if key in new and key is not None)
