"""`QuantileBinner`: the number of the bin of each value; edges are values of a keyed sample."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils.validation import check_is_fitted

from letheon.data import Ids
from letheon.delta import Delta, RowSource, StableTransformer, StepPlan, Table
from letheon.guarantee import MethodFacts
from letheon.preprocessing._facts import make_facts
from letheon.preprocessing._quantiles import change_sorted, find_sampled
from letheon.preprocessing._scale import read_numbers, to_numbers
from letheon.seeds import Purpose
from letheon.sums import sample_border
from letheon.validation import Rules, Whole

Floats = NDArray[np.float64]


@dataclass(eq=False)
class BinSample:
    """Border of the hashes of sampled people, and their sorted values in each column."""

    border: int
    samples: list[Floats]

    def _to_state(self) -> dict[str, Any]:
        return {"border": str(self.border), "samples": self.samples}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        return cls(int(state["border"]), list(state["samples"]))


@dataclass(frozen=True, eq=False)
class BinEdges:
    """Published edges of the bins of each column."""

    edges: tuple[Floats, ...]


# People in a sample for few bins.
_FEWEST = 256


def _choose_edges(values: Floats, n_bins: int) -> Floats:
    """Return at most ``n_bins - 1`` distinct values of a sorted sample, evenly spaced by rank."""
    if len(values) >= n_bins:
        values = values[np.arange(1, n_bins) * len(values) // n_bins]
    return np.unique(values)


class QuantileBinner(OneToOneFeatureMixin, StableTransformer):
    """The number of the bin of each value; bins have about the same number of rows.

    Like ``KBinsDiscretizer(strategy="quantile", encode="ordinal")`` of scikit-learn, for models
    that need few distinct values.

    Parameters
    ----------
    n_bins : int, default=255
        Largest number of bins of a column.
    random_state : int, RandomState, Generator or None, default=None
        Source of the seed, which decides whose values are edges.

    Attributes
    ----------
    bin_edges_ : list of ndarray
        Edges between the bins of each column, sorted. A value equal to an edge is in the bin above.
    n_bins_ : ndarray of shape (n_features,)
        Number of bins of each column.
    n_features_in_ : int
        Number of columns.

    Notes
    -----
    Edges are values, or quantiles, of a keyed sample of about ``max(n_bins, 256)`` people, so bins
    have about the same number of rows, but less exactly than with quantiles of all rows. A person
    outside the sample changes nothing; one inside (probability about ``max(n_bins, 256) / n``)
    changes edges of all columns. NaN stays NaN: use `SimpleImputer` before this step, or a model
    that takes missing values.

    Guarantee: exact. The sample is a function of the seed, the ids and their rounded number.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.preprocessing import QuantileBinner
    >>> X = np.arange(1000.0).reshape(-1, 1)
    >>> model = QuantileBinner(n_bins=4, random_state=0).fit(X)
    >>> np.bincount(model.transform(X)[:, 0].astype(int)).tolist()
    [256, 222, 273, 249]
    """

    sums_: BinSample
    published_: BinEdges
    facts: ClassVar[MethodFacts] = make_facts("binning of columns")
    _input_tags = ("allow_nan",)
    _parameter_rules: ClassVar[Rules] = {"n_bins": Whole(2)}

    def __init__(self, *, n_bins: int = 255, random_state: Any = None) -> None:
        self.n_bins = n_bins
        self.random_state = random_state

    def _convert_table(self, X: Any, *, copy: bool) -> Table:
        table = to_numbers(X, copy=copy)
        if not isinstance(table, np.ndarray):
            raise TypeError("Sparse data was passed for X, but dense data is required")
        return table

    def _find_border(self, source: RowSource) -> int:
        # The sample may be 2**(1/4) times as large as requested.
        return sample_border(27 * max(self.n_bins, _FEWEST) // 32, source.n_people)

    def _count(self, source: RowSource, seed: int) -> tuple[BinSample, BinEdges]:
        border = self._find_border(source)
        parts = [
            read_numbers(block.X)[find_sampled(block.ids, seed, Purpose.BIN_SAMPLE, border)]
            for block in source.blocks()
        ]
        columns = np.concatenate(parts).T
        sums = BinSample(border, [np.sort(values[~np.isnan(values)]) for values in columns])
        return sums, self._publish(sums.samples)

    def _publish(self, samples: list[Floats]) -> BinEdges:
        return BinEdges(tuple(_choose_edges(values, self.n_bins) for values in samples))

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        sums, old, samples = self.sums_, self.published_, None
        if delta.layout is None and not delta.columns:
            samples = self._update_samples(delta)
            if samples is sums.samples:
                return StepPlan(published=old)
        if samples is None:
            fresh, new = self._count(delta.source, self.seed_)
        else:
            fresh, new = BinSample(sums.border, samples), self._publish(samples)
        layout = range(len(old.edges)) if delta.layout is None else delta.layout.tolist()
        changed = {
            j
            for j, place in enumerate(layout)
            if place < 0 or not np.array_equal(new.edges[j], old.edges[place])
        }
        if not changed and delta.layout is None:
            new = old
        columns = tuple(sorted(changed | set(delta.columns)))
        work = 1.0 if samples is None else len(changed) / max(1, len(new.edges))
        return StepPlan(
            published=new,
            apply=self._replace_sums(fresh),
            columns=columns,
            layout=delta.layout,
            work=work,
        )

    def _update_samples(self, delta: Delta) -> list[Floats] | None:
        """Return the samples after a change: the same object if they stay; None to count again."""
        border = self.sums_.border
        if self._find_border(delta.source) != border:
            return None
        samples = self.sums_.samples
        for sign, block in delta.iter_signed():
            sampled = self._find_sampled(block.ids)
            if not sampled.any():
                continue
            X = read_numbers(block.X)[sampled]
            samples = [
                change_sorted(values, np.sort(own[~np.isnan(own)]), sign)
                for values, own in zip(samples, X.T, strict=True)
            ]
        return samples

    def _find_sampled(self, ids: Ids) -> NDArray[np.bool_]:
        return find_sampled(ids, self.seed_, Purpose.BIN_SAMPLE, self.sums_.border)

    def _count_outputs(self, published: BinEdges) -> int:
        return len(published.edges)

    def _transform_with(self, published: BinEdges, X: Table) -> Table:
        numbers = read_numbers(X)
        bins = np.empty(numbers.shape)
        for j, edges in enumerate(published.edges):
            bins[:, j] = np.searchsorted(edges, numbers[:, j], "right")
        bins[np.isnan(numbers)] = np.nan
        return bins

    @property
    def bin_edges_(self) -> list[Floats]:
        """Edges between the bins of each column."""
        check_is_fitted(self)
        return [edges.copy() for edges in self.published_.edges]

    @property
    def n_bins_(self) -> NDArray[np.int64]:
        """Number of bins of each column."""
        return np.array([len(edges) + 1 for edges in self.bin_edges_], np.int64)
