"""Recommenders computed from co-counts: item neighbourhoods, and a linear autoencoder."""

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import lapack
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from letheon.base import lock_model, require_known
from letheon.data import as_ids
from letheon.delta import Block, Delta, DeltaMixin, RowSource, StepPlan
from letheon.guarantee import MethodFacts
from letheon.parallel import one_thread
from letheon.recommend._co_counts import CoCounts
from letheon.removal import Cache
from letheon.seeds import Purpose, mix64
from letheon.validation import POSITIVE, OneOf, OrNone, Rules, Whole

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# EASE stores a dense matrix of this size squared; more items need more memory than a server has.
_MOST_DENSE_ITEMS = 50_000
# Histories whose scores are computed together.
_HISTORIES_TOGETHER = 1024


class Recommendations(NamedTuple):
    """Recommended items and their scores, the best first.

    Attributes
    ----------
    items : ndarray of int64, shape (n_rows, k)
        Numbers of the items; -1 where fewer than k items have a score.
    scores : ndarray of float64, shape (n_rows, k)
        Their scores; 0 where there is no item.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.recommend import ItemKNN
    >>> model = ItemKNN(random_state=0).fit(np.array([[1, 1], [1, 1]]))
    >>> model.recommend([[1, 0]], k=1)
    Recommendations(items=array([[1]]), scores=array([[1.]]))
    """

    items: Integers
    scores: Floats


class _Recommender(DeltaMixin, TransformerMixin, BaseEstimator):
    """Base class: co-counts of the histories, and scores that are computed when needed.

    A subclass implements `_score_histories` and `_score_partners`.
    """

    facts: ClassVar[MethodFacts] = MethodFacts(
        method="recommend",
        applicability="item-based recommenders",
        exact=True,
        strength="strong",
        efficiency_parameters=("max_items",),
        definition_name="recommend",
        batches=True,
        replay="bitwise",
    )
    _parameter_rules: ClassVar[Rules] = {"max_items": OrNone(Whole(1))}

    sums_: CoCounts
    published_: None
    max_items: int | None
    n_features_in_: int

    def _score_histories(self, histories: Any) -> Any:
        """Return the scores of all items for each history, dense or sparse."""
        raise NotImplementedError(f"{type(self).__name__} must score histories")

    def _score_partners(self, item: int) -> tuple[Integers, Floats]:
        """Return the items with a score for this item, and their scores."""
        raise NotImplementedError(f"{type(self).__name__} must score items")

    def _require_valid(self) -> None:
        """Raise `ValueError` if a file has counts, rows and columns of different numbers of items.

        Products of sparse matrices would write outside of their memory.
        """
        fitted = vars(self)
        if "sums_" not in fitted and "rows_" not in fitted:
            return
        if not isinstance(fitted.get("sums_"), CoCounts):
            raise ValueError("the recommender has no counts")
        table = getattr(fitted.get("rows_"), "X", None)
        widths = [fitted.get("n_features_in_"), *(() if table is None else table.shape[1:])]
        if any(width != self.sums_.n_items for width in widths):
            raise ValueError("the counts of the recommender are of another number of items")

    def fit(self, X: Any, y: Any = None, *, ids: Any = None) -> Self:  # noqa: ARG002
        """Count the pairs of items of all histories and store the histories.

        Parameters
        ----------
        X : sparse matrix or array-like of shape (n_histories, n_items)
            One history per row. Every value above zero counts as one interaction.
        y : None
            Not used.
        ids : sequence of int or of str, optional
            Id of the person of each history; may repeat. Default ``0..n-1``.

        Returns
        -------
        self
        """
        return self._fit_table(X, None, ids)

    def learn(self, X: Any, y: Any = None, *, ids: Any) -> Self:  # noqa: ARG002
        """Add histories, with an id for each; a known id keeps its earlier histories."""
        return self._learn_table(X, None, ids)

    def transform(self, X: Any) -> Floats:
        """Return the scores of all items for each history, of shape (n_rows, n_items)."""
        histories = self._convert_histories(X)
        with lock_model(self):
            scores = self._score_histories(histories)
        dense: Floats = scores.toarray() if sp.issparse(scores) else scores
        return dense

    def recommend(self, X: Any, k: int = 10, *, exclude_seen: bool = True) -> Recommendations:
        """Recommend items for histories.

        Parameters
        ----------
        X : sparse matrix or array-like of shape (n_rows, n_items)
            Histories, of people in the model or not.
        k : int, default=10
            Number of items per history.
        exclude_seen : bool, default=True
            Whether to leave out the items of the history.

        Returns
        -------
        Recommendations
            Items and scores; ties are in the order of the item numbers.
        """
        return self._recommend(self._convert_histories(X), self._check_k(k), exclude_seen)

    def _recommend(self, histories: Any, width: int, exclude_seen: bool) -> Recommendations:
        parts = [
            self._rank(histories[begin : begin + _HISTORIES_TOGETHER], width, exclude_seen)
            for begin in range(0, histories.shape[0], _HISTORIES_TOGETHER)
        ]
        items, scores = zip(*parts, strict=True)
        return Recommendations(np.concatenate(items), np.concatenate(scores))

    def recommend_to(self, ids: Any, k: int = 10, *, exclude_seen: bool = True) -> Recommendations:
        """Recommend items to people in the model, from all of their histories.

        Parameters
        ----------
        ids : sequence of int or of str
            Ids of people in the model.
        k, exclude_seen
            See `recommend`.

        Returns
        -------
        Recommendations
            One row per id, in their order.

        Raises
        ------
        UnknownIdError
            Some ids are not in the model.
        """
        check_is_fitted(self)
        self._require_rows()
        requested, width = as_ids(ids), self._check_k(k)
        with lock_model(self):
            matches = self.rows_.index.find(requested)
            missing = requested.take(np.flatnonzero(~matches.has_rows))
            require_known(missing, self.rows_.ids, done="")
            rows = [
                self.rows_.find(requested.take(np.array([place]))).positions
                for place in range(len(requested))
            ]
            owners = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
            chosen = np.concatenate([np.empty(0, np.int64), *rows])
            pick = sp.csr_array(
                (np.ones(len(chosen)), (owners, chosen)), (len(rows), self.rows_.n_slots)
            )
            histories = self._convert_table(pick @ self.rows_.X, copy=False)
            return self._recommend(histories, width, exclude_seen)

    def similar_items(self, items: Any, k: int = 10) -> Recommendations:
        """Return the items with the largest scores for each item.

        Parameters
        ----------
        items : sequence of int
            Numbers of items.
        k : int, default=10
            Number of items for each.

        Returns
        -------
        Recommendations
        """
        check_is_fitted(self)
        numbers, width = np.asarray(items), self._check_k(k)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ValueError(
                f"items={items!r}; expected a list of column numbers such as [0, 5], or for names "
                "[list(model.feature_names_in_).index(name)]"
            )
        outside = numbers[(numbers < 0) | (numbers >= self.n_features_in_)]
        if len(outside):
            raise ValueError(
                f"item {outside[0]} does not exist; expected 0 to {self.n_features_in_ - 1}"
            )
        with lock_model(self):
            ranked = [_rank_one(*self._score_partners(int(item)), width) for item in numbers]
        return _stack(ranked, width)

    def _convert_histories(self, X: Any) -> Any:
        """Return histories to score, checked against the items of the fit."""
        check_is_fitted(self)
        histories = self._convert_table(X, copy=False)
        validate_data(self, X, skip_check_array=True, reset=False)
        return histories

    def _check_k(self, k: Any) -> int:
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
            raise ValueError(f"k={k!r}; expected a whole number of at least 1")
        return min(int(k), self.n_features_in_)

    def _rank(self, histories: Any, width: int, exclude_seen: bool) -> Recommendations:
        with lock_model(self):
            scores = self._score_histories(histories)
        ranked = []
        for row in range(histories.shape[0]):
            if sp.issparse(scores):
                part = slice(scores.indptr[row], scores.indptr[row + 1])
                items, values = scores.indices[part].astype(np.int64), scores.data[part]
            else:
                items, values = np.arange(len(scores[row])), scores[row]
            if exclude_seen:
                seen = histories.indices[histories.indptr[row] : histories.indptr[row + 1]]
                is_left = np.isin(items, seen, invert=True)
                items, values = items[is_left], values[is_left]
            ranked.append(_rank_one(items, values, width))
        return _stack(ranked, width)

    def _convert_table(self, X: Any, *, copy: bool) -> Any:  # noqa: ARG002
        options = {"ensure_all_finite": False, "copy": True, "estimator": self, "input_name": "X"}
        table = sp.csr_array(check_array(X, accept_sparse="csr", dtype=np.float32, **options))
        if not np.isfinite(table.data).all():
            raise ValueError(
                "X contains NaN or infinity; expected numbers, with 0 where there is no "
                "interaction: of a pivoted frame pass frame.fillna(0)"
            )
        if table.nnz and float(table.data.min()) < 0:
            raise ValueError(
                "Negative values in data passed to X: expected numbers of at least 0, where every "
                "number above 0 is one interaction"
            )
        table.sum_duplicates()
        table.eliminate_zeros()
        table.data[:] = 1.0
        return table

    def _count(self, source: RowSource, seed: int) -> tuple[CoCounts, None]:
        parts = [self._cut(block, seed) for block in source.blocks()]
        return CoCounts.count(sp.vstack(parts, format="csr")), None

    def _cut(self, block: Block, seed: int) -> Any:
        """Return the histories of at most `max_items` items, chosen by a keyed hash."""
        lengths = np.diff(block.X.indptr)
        if self.max_items is None or not (lengths > self.max_items).any():
            return block.X
        keys = block.ids.hashes(seed, Purpose.HISTORY)
        draws = mix64(np.repeat(keys, lengths), block.X.indices.astype(np.uint64))
        rows = np.repeat(np.arange(len(lengths)), lengths)
        order = np.lexsort((block.X.indices, draws, rows))
        rank = np.arange(len(rows)) - np.repeat(block.X.indptr[:-1], lengths)
        kept = np.sort(order[rank < self.max_items])
        places = np.concatenate([[0], np.cumsum(np.minimum(lengths, self.max_items))])
        return sp.csr_array(
            (block.X.data[kept], block.X.indices[kept], places), shape=block.X.shape
        )

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        if not delta.only_rows:
            return self._rebuild_plan(delta)
        changes = [(sign, self._cut(block, self.seed_)) for sign, block in delta.iter_signed()]
        n_changed = sum(part.shape[0] for _, part in changes)
        work = n_changed / max(1, delta.source.n_rows)
        return StepPlan(published=None, apply=self.sums_.plan_change(changes), work=work)

    def _after_change(self) -> None:
        self.solution_ = Cache[Any]()

    def __sklearn_tags__(self) -> Tags:
        """Return the tags: sparse rows of numbers that are not negative."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags


class ItemKNN(_Recommender):
    """Item-based recommender that forgets exactly: items that often occur together.

    Parameters
    ----------
    similarity : {"cosine", "jaccard", "lift"}, default="cosine"
        Similarity of two items with c common histories, of a and b histories with each item and of
        n histories: c / sqrt(a b), c / (a + b - c) or c n / (a b).
    n_neighbors : int, default=20
        Number of most similar items of each item that contribute to recommendations.
    max_items : int or None, default=500
        Longest history that is counted. Of a longer one so many items count, chosen by a keyed
        hash, because the number of pairs grows with the square of the length. None: all.
    random_state : int, RandomState, Generator or None, default=None
        Seed of that choice.

    Attributes
    ----------
    sums_ : CoCounts
        Numbers of histories with each pair of items.
    n_features_in_ : int
        Number of items.

    See Also
    --------
    EASE : Better recommendations for up to about 10,000 items.

    Notes
    -----
    Guarantee: exact. `forget` changes only the counts of the items of the removed histories. A
    recommendation for a history is the sum of the similarities to its items.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.recommend import ItemKNN
    >>> histories = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1]])
    >>> model = ItemKNN(random_state=0).fit(histories, ids=["anna", "ben", "carla"])
    >>> model.similar_items([0], k=2).scores.round(3).tolist()
    [[1.0, 0.5]]
    >>> model.recommend_to(["anna"], k=1).items.tolist()
    [[2]]
    >>> model.forget(["ben"]).guarantee.kind
    'exact'
    >>> model.recommend_to(["anna"], k=1).items.tolist()
    [[-1]]
    """

    _parameter_rules: ClassVar[Rules] = {
        "similarity": OneOf(("cosine", "jaccard", "lift")),
        "n_neighbors": Whole(1),
    }

    def __init__(
        self,
        *,
        similarity: str = "cosine",
        n_neighbors: int = 20,
        max_items: int | None = 500,
        random_state: Any = None,
    ) -> None:
        self.similarity = similarity
        self.n_neighbors = n_neighbors
        self.max_items = max_items
        self.random_state = random_state

    def _score_partners(self, item: int) -> tuple[Integers, Floats]:
        sums = self.sums_
        partners, common = sums.partners[item], sums.counts[item].astype(np.float64)
        own, others = float(sums.totals[item]), sums.totals[partners].astype(np.float64)
        if self.similarity == "cosine":
            scores = common / np.sqrt(own * others)
        elif self.similarity == "jaccard":
            scores = common / (own + others - common)
        else:
            scores = common * float(len(self.rows_)) / (own * others)
        return partners.astype(np.int64), scores

    def _score_histories(self, histories: Any) -> Any:
        cache: Cache[dict[int, Any]] = self.solution_
        if cache.content is None:
            cache.content = {}
        neighbors = cache.content
        used = np.unique(histories.indices)
        for item in used.tolist():
            if item not in neighbors:
                items, scores = _rank_one(*self._score_partners(item), self.n_neighbors)
                order = np.argsort(items)
                neighbors[item] = (items[order], scores[order])
        lists = [neighbors[item] for item in used.tolist()]
        lengths = np.zeros(histories.shape[1], np.int64)
        lengths[used] = [len(items) for items, _ in lists]
        places = np.concatenate([[0], np.cumsum(lengths)])
        items = np.concatenate([np.empty(0, np.int64), *(items for items, _ in lists)])
        scores = np.concatenate([np.empty(0), *(scores for _, scores in lists)])
        shape = (histories.shape[1], histories.shape[1])
        return histories.astype(np.float64) @ sp.csr_array((scores, items, places), shape=shape)


class EASE(_Recommender):
    """Linear autoencoder for recommendations that forgets exactly (Steck, 2019).

    Parameters
    ----------
    l2 : float, default=500.0
        Penalty on the squared weights.
    max_items : int or None, default=500
        See `ItemKNN`.
    random_state : int, RandomState, Generator or None, default=None
        See `ItemKNN`.

    Attributes
    ----------
    weights_ : ndarray of shape (n_items, n_items)
        Weight of each item (row) for the score of another one (column); computed in float64 from
        the integers.
    sums_, n_features_in_
        See `ItemKNN`.

    Notes
    -----
    Guarantee: exact. `forget` changes integers only. The weights are computed at the next use, in
    time cubic and memory quadratic in the number of items, and are not part of the digest.

    With the co-counts G and P = (G + l2 I)^-1, the weights are B_ij = -P_ij / P_jj off the
    diagonal and 0 on it: the ridge regression of each item on all others.

    References
    ----------
    Steck 2019, Embarrassingly shallow autoencoders for sparse data (WWW).

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.recommend import EASE
    >>> histories = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1]])
    >>> model = EASE(l2=1.0, random_state=0).fit(histories)
    >>> model.recommend([[1, 0, 0, 0]], k=1).items.tolist()
    [[1]]
    >>> model.forget([1]).rebuilt
    {}
    """

    _parameter_rules: ClassVar[Rules] = {"l2": POSITIVE}

    def __init__(
        self, *, l2: float = 500.0, max_items: int | None = 500, random_state: Any = None
    ) -> None:
        self.l2 = l2
        self.max_items = max_items
        self.random_state = random_state

    @property
    def weights_(self) -> Floats:
        """Weights of all pairs of items."""
        check_is_fitted(self)
        with lock_model(self):
            cache: Cache[Floats] = self.solution_
            if cache.content is None:
                with one_thread():
                    cache.content = _solve_autoencoder(self.sums_.to_matrix(), float(self.l2))
            return cache.content

    def _check_width(self, n_items: int) -> None:
        if n_items > _MOST_DENSE_ITEMS:
            raise ValueError(
                f"X has {n_items:,} items; EASE computes a dense matrix of all pairs and takes at "
                f"most {_MOST_DENSE_ITEMS:,}. Leave out rare items, or use ItemKNN"
            )

    def _count(self, source: RowSource, seed: int) -> tuple[CoCounts, None]:
        self._check_width(source.take_first().X.shape[1])
        return super()._count(source, seed)

    def _score_partners(self, item: int) -> tuple[Integers, Floats]:
        others = np.delete(np.arange(self.n_features_in_), item)
        return others, self.weights_[item, others]

    def _score_histories(self, histories: Any) -> Any:
        return histories.astype(np.float64) @ self.weights_

    def _finish_pending(self) -> None:
        _ = self.weights_


def _solve_autoencoder(matrix: Floats, l2: float) -> Floats:
    """Return the weights for a matrix of co-counts, which is overwritten."""
    matrix[np.diag_indices_from(matrix)] += l2
    factor, info = lapack.dpotrf(matrix, lower=True, overwrite_a=True, clean=False)
    if info == 0:
        inverse, info = lapack.dpotri(factor, lower=True, overwrite_c=True)
    if info != 0:
        raise ValueError(
            f"the matrix of co-counts with l2={l2} is not positive definite; choose a larger l2"
        )
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    weights: Floats = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return weights


def _rank_one(items: Integers, scores: Floats, width: int) -> Recommendations:
    """Return the items with the largest scores, ties in the order of their numbers."""
    if len(items) > width:
        border = np.partition(scores, len(scores) - width)[len(scores) - width]
        is_candidate = scores >= border
        items, scores = items[is_candidate], scores[is_candidate]
    order = np.lexsort((items, -scores))[:width]
    return Recommendations(items[order], scores[order])


def _stack(ranked: list[Recommendations], width: int) -> Recommendations:
    """Return lists of items as rows of equal length."""
    items = np.full((len(ranked), width), -1, np.int64)
    scores = np.zeros((len(ranked), width))
    for row, (best, values) in enumerate(ranked):
        items[row, : len(best)], scores[row, : len(best)] = best, values
    return Recommendations(items, scores)
