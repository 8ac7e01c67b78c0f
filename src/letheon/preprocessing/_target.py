"""`TargetEncoder`: the mean target of each category, shrunk and rounded, cross-fitted by person."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils import Tags, assert_all_finite
from sklearn.utils.validation import check_is_fitted

from letheon.data import Ids, hold_target
from letheon.delta import Block, Delta, RowSource, StableTransformer, StepPlan, Table
from letheon.guarantee import MethodFacts
from letheon.preprocessing._categories import (
    CATEGORY_TAGS,
    Key,
    category_array,
    column_kinds,
    list_rows,
    map_column,
    number_column,
    sort_keys,
    to_categories_table,
)
from letheon.preprocessing._facts import make_facts
from letheon.preprocessing._target_sums import (
    CODE_BITS,
    UNIT_BITS,
    Cells,
    TargetCodes,
    TargetScale,
    TargetSums,
    add_block,
    leave_out_folds,
    write_cells,
)
from letheon.seeds import Purpose
from letheon.sums import FOLDS, ColumnSums, keyed_dither, round_location_scale, round_ratios
from letheon.validation import (
    Either,
    Interval,
    OneOf,
    Rules,
    require_target,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Denominator of `smooth` as a fraction.
_SMOOTH_PARTS = 1024


class TargetEncoder(OneToOneFeatureMixin, StableTransformer):
    """The mean target of each category, with the parameters of scikit-learn.

    Parameters
    ----------
    target_type : {"auto", "continuous", "binary", "multiclass"}, default="auto"
        Kind of the target; "auto": classes, unless a target is not a whole number.
    smooth : "auto" or float, default="auto"
        Number of rows with the mean target that are added to each category; "auto" is 1.
    cv : int, default=5
        Number of folds. The training rows of a person are encoded without the fold of the person.
    random_state : int, RandomState, Generator or None, default=None
        Source of the seed of folds and rounding.

    Attributes
    ----------
    categories_ : list of ndarray
        Categories of each column, sorted. Missing values are one category, shown as NaN.
    encodings_ : list of ndarray
        Encoding of each category for new rows; columns one after the other, for each of several
        classes.
    target_mean_ : float or ndarray
        Encoding of unknown categories.
    target_type_ : str
        Kind of the target.
    classes_ : ndarray or None
        Classes, sorted.
    n_features_in_ : int
        Number of input columns.

    Notes
    -----
    Differences from scikit-learn: folds separate people, and the fold is a keyed hash of the id.
    Encodings are rounded to 1/64 of the scale of the target (1 for classes, a power of two near the
    deviation for numbers). ``smooth="auto"`` adds one row instead of estimating the ratio of two
    variances, which is about 1 unless a column explains most of the target. ``fit_transform`` gives
    the encodings of training rows, and `transform` those of new rows.

    Guarantee: exact. Targets are integers. A removal changes the encoding of a category with m rows
    with probability about 64 / m for each fold; then only rows of that category change.

    Examples
    --------
    >>> from letheon.preprocessing import TargetEncoder
    >>> X, y = [["a"], ["a"], ["b"], ["b"]], [1, 1, 0, 1]
    >>> model = TargetEncoder(random_state=0).fit(X, y, ids=["p", "q", "r", "s"])
    >>> model.transform([["a"], ["b"], ["c"]]).tolist()
    [[0.921875], [0.578125], [0.75]]
    """

    sums_: TargetSums
    published_: TargetCodes
    facts: ClassVar[MethodFacts] = make_facts("encoding of categories by the target")
    _input_tags = CATEGORY_TAGS
    _parameter_rules: ClassVar[Rules] = {
        "target_type": OneOf(("auto", "continuous", "binary", "multiclass")),
        "smooth": Either(OneOf(("auto",)), Interval(0, 1e6)),
        "cv": FOLDS,
    }

    def __init__(
        self,
        *,
        target_type: str = "auto",
        smooth: str | float = "auto",
        cv: int = 5,
        random_state: Any = None,
    ) -> None:
        self.target_type = target_type
        self.smooth = smooth
        self.cv = cv
        self.random_state = random_state

    def _convert_table(self, X: Any, *, copy: bool) -> Table:
        return to_categories_table(X, copy=copy)

    def _convert_target(self, y: Any) -> NDArray[Any]:
        require_target(self, y)
        target = hold_target(y, as_float=self.target_type == "continuous")
        if target.ndim != 1:
            raise ValueError(f"y has shape {target.shape}; expected one target for each row")
        if target.dtype.kind == "f":
            assert_all_finite(target, input_name="y")
        elif target.dtype.kind not in "biU":
            raise ValueError(f"y has labels of type {target.dtype}; expected numbers or strings")
        return target

    def _choose_scale(self, labels: dict[Any, int], sums: ColumnSums, seed: int) -> TargetScale:
        if labels:
            classes = tuple(sorted(labels))
            if self.target_type == "binary" and len(classes) > 2:
                raise ValueError(f"target_type='binary', but y has {len(classes)} classes")
            return TargetScale(classes, 0.0, 1.0)
        centre, scale = round_location_scale(sums, seed)
        return TargetScale(None, float(centre[0]), float(scale[0]))

    def _count_targets(self, blocks: Iterator[Block]) -> tuple[dict[Any, int], int, ColumnSums]:
        """Return the number of rows of each class, of fractions, and the sums of numbers."""
        labels: dict[Any, int] = {}
        n_fractions, sums = 0, ColumnSums(1)
        for block in blocks:
            y = block.y
            assert y is not None
            is_number = self.target_type == "continuous" or y.dtype.kind == "f"
            if is_number:
                n_fractions += int(np.count_nonzero(y != np.rint(y)))
                sums.add(y.astype(np.float64)[:, None])
            if self.target_type != "continuous" and not n_fractions:
                values, counts = np.unique(y, return_counts=True)
                for label, count in zip(values.tolist(), counts.tolist(), strict=True):
                    labels[label] = labels.get(label, 0) + count
        return self._settle(labels, n_fractions, sums)

    def _settle(
        self, labels: dict[Any, int], n_fractions: int, sums: ColumnSums
    ) -> tuple[dict[Any, int], int, ColumnSums]:
        """Keep what the kind of the target needs."""
        if self.target_type == "continuous" or (self.target_type == "auto" and n_fractions):
            return {}, n_fractions, sums
        if n_fractions:
            raise ValueError(
                f"Unknown label type: continuous; y contains fractions, but target_type="
                f"{self.target_type!r}"
            )
        return labels, 0, ColumnSums(1)

    def _find_folds(self, ids: Ids, seed: int) -> Ints:
        hashes = ids.hashes(seed, Purpose.TARGET_FOLD)
        return (hashes % np.uint64(self.cv)).astype(np.int64)

    def _count(self, source: RowSource, seed: int) -> tuple[TargetSums, TargetCodes]:
        labels, n_fractions, y_sums = self._count_targets(source.blocks())
        scale = self._choose_scale(labels, y_sums, seed)
        width = 1 + scale.n_targets
        totals = np.zeros((self.cv, width), np.int64)
        cells: Cells = []
        kinds: tuple[str, ...] = ()
        for block in source.blocks():
            if not cells:
                kinds = column_kinds(block.X)
                cells = [{} for _ in kinds]
            folds, numbers = self._number_rows(block, scale, seed)
            np.add.at(totals, folds, numbers)
            for column, known in enumerate(cells):
                add_block(known, block.X, column, folds, numbers, self.cv)
        sums = TargetSums(labels, n_fractions, y_sums, scale, totals, cells, kinds)
        return sums, self._publish(sums, seed)

    def _number_rows(self, block: Block, scale: TargetScale, seed: int) -> tuple[Ints, Ints]:
        """Return the fold of each row, and 1 and the targets as integers."""
        assert block.y is not None
        targets = scale.to_integers(block.y)
        ones = np.ones((len(targets), 1), np.int64)
        return self._find_folds(block.ids, seed), np.hstack([ones, targets])

    def _publish(self, sums: TargetSums, seed: int) -> TargetCodes:
        scale = sums.scale
        means = self._encode_means(sums.totals, seed)
        codes = []
        for column, known in enumerate(sums.cells):
            table = np.array(list(known.values()), np.int64).reshape(-1, *sums.totals.shape)
            encoded = self._encode_cells(table, np.full(len(table), column), means, seed)
            rows = map(tuple, encoded.reshape(len(table), -1).tolist())
            codes.append(dict(zip(known, rows, strict=True)))
        flat = tuple(means.reshape(-1).tolist())
        return TargetCodes(scale, flat, tuple(codes), sums.kinds)

    def _encode_means(self, totals: Ints, seed: int) -> Ints:
        """Return the rounded mean target without each fold, and of all rows."""
        parts = leave_out_folds(totals[None])[0]
        n_rows, targets = parts[:, :1], parts[:, 1:]
        # Without rows in other folds, the mean of all rows.
        targets = np.where(n_rows > 0, targets, targets[-1])
        n_rows = np.where(n_rows > 0, n_rows, n_rows[-1])
        dithers = keyed_dither(seed, Purpose.ROUND_TARGET, targets.shape[1], "mean")
        shape = targets.shape
        return round_ratios(
            targets.ravel(),
            np.broadcast_to(n_rows << UNIT_BITS, shape).ravel(),
            np.broadcast_to(dithers, shape).ravel(),
            bits=CODE_BITS,
        ).reshape(shape)

    def _encode_cells(self, cells: Ints, columns: Ints, means: Ints, seed: int) -> Ints:
        """Return the encodings of categories, shape (n, n_folds + 1, n_targets)."""
        parts = leave_out_folds(cells)
        smooth = 1 if self.smooth == "auto" else Fraction(float(self.smooth))
        added = round(smooth * _SMOOTH_PARTS)
        n_targets = means.shape[1]
        shift = UNIT_BITS - CODE_BITS
        tops = parts[:, :, 1:] * _SMOOTH_PARTS + (added * (means << shift))
        bottoms = parts[:, :, :1] * _SMOOTH_PARTS + added
        is_empty = bottoms == 0
        bottoms = np.where(is_empty, 1, bottoms) << UNIT_BITS
        keys = columns[:, None] * n_targets + np.arange(n_targets)
        dithers = keyed_dither(seed, Purpose.ROUND_TARGET, keys.ravel()).reshape(keys.shape)
        shape = tops.shape
        codes = round_ratios(
            tops.ravel(),
            np.broadcast_to(bottoms, shape).ravel(),
            np.broadcast_to(dithers[:, None], shape).ravel(),
            bits=CODE_BITS,
        ).reshape(shape)
        # A category without rows in other folds is encoded as an unknown one.
        return np.where(parts[:, :, :1] == 0, means, codes)

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        if not delta.only_rows:
            return self._rebuild_plan(delta)
        targets = self._update_targets(delta)
        if targets is None:
            return self._rebuild_plan(delta)
        sums, old, seed = self.sums_, self.published_, self.seed_
        totals, touched = self._update_cells(delta)
        means = self._encode_means(totals, seed)
        flat = tuple(means.reshape(-1).tolist())
        places, cells = list(touched), list(touched.values())
        columns = np.array([column for column, _ in places], np.int64)
        table = np.array(cells, np.int64).reshape(-1, *totals.shape)
        encoded = self._encode_cells(table, columns, means, seed).reshape(len(places), -1)
        changes: dict[int, dict[Key, Any]] = {}
        for (column, key), cell, code in zip(
            places, cells, map(tuple, encoded.tolist()), strict=True
        ):
            value = code if any(cell[:: totals.shape[1]]) else None
            if old.codes[column].get(key) != value:
                changes.setdefault(column, {})[key] = value

        def apply() -> None:
            sums.labels, sums.n_fractions, sums.y_sums = targets
            sums.totals = totals
            write_cells(sums.cells, touched, totals.shape[1])

        if flat != old.means:
            return self._plan_new_means(delta, totals, touched, apply)
        if not changes:
            return StepPlan(published=old, apply=apply)
        codes = list(old.codes)
        for column, known in changes.items():
            merged = {**codes[column], **known}
            codes[column] = {key: code for key, code in merged.items() if code is not None}
        new = TargetCodes(old.scale, flat, tuple(codes), old.kinds)
        return StepPlan(published=new, apply=apply, rows=self._find_rows(delta, new))

    def _plan_new_means(self, delta: Delta, totals: Ints, touched: Any, apply: Any) -> StepPlan:
        """Return the plan if the mean target changed, which all encodings use."""
        after = replace(self.sums_, totals=totals, cells=[dict(c) for c in self.sums_.cells])
        write_cells(after.cells, touched, totals.shape[1])
        new = self._publish(after, self.seed_)
        return StepPlan(published=new, apply=apply, rows=self._find_rows(delta, new))

    def _update_targets(self, delta: Delta) -> tuple[dict[Any, int], int, ColumnSums] | None:
        """Return the counts of targets after a change; None if targets become other integers."""
        sums = self.sums_
        labels, n_fractions = dict(sums.labels), sums.n_fractions
        y_sums = sums.y_sums if labels else sums.y_sums.copy()
        for sign, block in delta.iter_signed():
            y = block.y
            assert y is not None
            if y.dtype.kind == "f":
                n_fractions += sign * int(np.count_nonzero(y != np.rint(y)))
            if labels:
                for label in y.tolist():
                    labels[label] = labels.get(label, 0) + sign
            else:
                change = y_sums.add if sign > 0 else y_sums.subtract
                change(y.astype(np.float64)[:, None])
        labels = {label: count for label, count in labels.items() if count}
        is_class = bool(sums.labels)
        if is_class and n_fractions:
            return None
        if not is_class and self.target_type == "auto" and not n_fractions:
            return None
        if self._choose_scale(labels, y_sums, self.seed_) != sums.scale:
            return None
        return labels, n_fractions, y_sums

    def _update_cells(self, delta: Delta) -> tuple[Ints, dict[tuple[int, Key], list[int]]]:
        """Return the totals and the cells of all categories of changed rows."""
        sums = self.sums_
        totals, width = sums.totals.copy(), sums.totals.shape[1]
        touched: dict[tuple[int, Key], list[int]] = {}
        for sign, block in delta.iter_signed():
            folds, numbers = self._number_rows(block, sums.scale, self.seed_)
            np.add.at(totals, folds, sign * numbers)
            rows = zip(list_rows(block.X), folds.tolist(), (sign * numbers).tolist(), strict=True)
            for row, fold, own in rows:
                begin = fold * width
                for place in enumerate(row):
                    cell = touched.get(place)
                    if cell is None:
                        known = sums.cells[place[0]].get(place[1])
                        cell = [0] * totals.size if known is None else list(known)
                        touched[place] = cell
                    for k, number in enumerate(own, begin):
                        cell[k] += number
        return totals, touched

    def _find_rows(self, delta: Delta, new: TargetCodes) -> Ints:
        """Return the ranks of remaining rows whose encoding changes."""
        n_added = 0 if delta.added is None else delta.added.n_rows
        old, parts, begin = self.published_, [], 0
        columns = [j for j, known in enumerate(new.codes) if known is not old.codes[j]]
        columns = columns if new.means == old.means else list(range(len(new.codes)))
        for block in delta.source.blocks():
            moved = []
            for column in columns:
                keys, places = number_column(block.X, column)
                before, after = (
                    np.array([p.codes[column].get(key, p.means) for key in keys], np.int64)
                    for p in (old, new)
                )
                differs = (before != after).reshape(len(keys), self.cv + 1, -1).any(axis=2)
                rows = np.flatnonzero(differs.any(axis=1)[places])
                folds = self._find_folds(block.ids.take(rows), self.seed_)
                moved.append(rows[differs[places[rows], folds]])
            parts.append(np.unique(np.concatenate(moved)) + begin)
            begin += block.n_rows
        ranks = np.concatenate(parts)
        return ranks[ranks < begin - n_added]

    def _count_outputs(self, published: TargetCodes) -> int:
        return len(published.codes) * published.scale.n_targets

    def _transform_with(self, published: TargetCodes, X: Table) -> Table:
        return self._encode(published, X, np.full(X.shape[0], self.cv))

    def _transform_training(self, published: TargetCodes, block: Block) -> Table:
        return self._encode(published, block.X, self._find_folds(block.ids, self.seed_))

    def _encode(self, published: TargetCodes, X: Table, folds: Ints) -> Floats:
        parts = []
        for column, (numbers, table) in enumerate(published.tables):
            places = map_column(X, column, numbers, len(numbers))
            parts.append(table[places, folds])
        codes = np.hstack(parts).astype(np.float64)
        return published.scale.to_floats(codes)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the output columns."""
        names: NDArray[Any] = super().get_feature_names_out(input_features)
        classes = self.published_.scale.classes
        if classes is None or self.published_.scale.n_targets == 1:
            return names
        return np.array([f"{name}_{label}" for name in names for label in classes], object)

    @property
    def categories_(self) -> list[NDArray[Any]]:
        """Categories of each column, sorted."""
        check_is_fitted(self)
        published = self.published_
        pairs = zip(published.codes, published.kinds, strict=True)
        return [category_array(sort_keys(known, "a column"), kind) for known, kind in pairs]

    @property
    def encodings_(self) -> list[Floats]:
        """Encoding of each category for new rows."""
        check_is_fitted(self)
        published, n_targets = self.published_, self.published_.scale.n_targets
        tables = []
        for known in published.codes:
            codes = [known[key][-n_targets:] for key in sort_keys(known, "a column")]
            tables.append(published.scale.to_floats(np.array(codes, np.float64)))
        return [table[:, k] for table in tables for k in range(n_targets)]

    @property
    def target_mean_(self) -> Any:
        """Encoding of unknown categories."""
        check_is_fitted(self)
        published = self.published_
        means = np.array(published.means[-published.scale.n_targets :], np.float64)
        numbers = published.scale.to_floats(means)
        return float(numbers[0]) if len(numbers) == 1 else numbers

    @property
    def target_type_(self) -> str:
        """Kind of the target."""
        check_is_fitted(self)
        classes = self.published_.scale.classes
        if classes is None:
            return "continuous"
        return "multiclass" if len(classes) > 2 else "binary"

    @property
    def classes_(self) -> NDArray[Any] | None:
        """Classes, sorted, or None."""
        check_is_fitted(self)
        classes = self.published_.scale.classes
        return None if classes is None else np.array(classes)

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
