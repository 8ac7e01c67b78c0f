"""Base classes of models whose rows are in the C++ core: input, requests and costs."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags

from letheon import state
from letheon.base import (
    ForgetMixin,
    InPlaceMixin,
    Removal,
    lock_model,
    require_fitted,
    require_known,
)
from letheon.data import CategoryColumns, EncodedRows, Ids, IntIds, TextIds, as_ids, is_matrix
from letheon.exceptions import EmptyModelError
from letheon.forest._inputs import REBUILD, ForestBatch
from letheon.forest._model import StoredRows
from letheon.forest._threads import threads_for
from letheon.forest._weights import as_weights
from letheon.guarantee import Guarantee
from letheon.inner_estimator import require_features
from letheon.predictor import Predictor, TreeInputs
from letheon.validation import check_parameter, require_target

_NO_IDS = {"int": IntIds(np.empty(0, np.int64)), "str": TextIds.from_strings([])}


class StoredModelBase(InPlaceMixin, ForgetMixin, BaseEstimator):
    """Base class of models whose rows are in the C++ core, without what they compute from them.

    A subclass names the attribute that holds its rows, and its guarantee.

    Examples
    --------
    >>> from letheon.forest import DaREForestClassifier, StoredModelBase
    >>> issubclass(DaREForestClassifier, StoredModelBase)
    True
    """

    _core_attribute: ClassVar[str]
    _claim: ClassVar[Guarantee]

    n_jobs: int | None
    seed_: int
    environment_: dict[str, str]
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    @property
    def n_rows_(self) -> int:
        """Number of remaining rows."""
        require_fitted(self)
        n_rows: int = self._stored.core.n_rows
        return n_rows

    @property
    def _stored(self) -> StoredRows:
        rows: StoredRows = getattr(self, self._core_attribute)
        return rows

    def _require_same_ids(self, ids: Ids) -> None:
        """Raise for ids of another kind than those of the model."""
        _NO_IDS[self._stored.id_type.kind].concat(ids)

    def _describe_environment(self) -> dict[str, str]:
        # The core uses only integers and single IEEE operations, so no library version matters.
        return {"letheon": state.environment()["letheon"]}

    def _get_ids(self) -> Ids:
        return self._stored.collect_ids()

    def _make_guarantee(self) -> Guarantee:
        return self._claim

    def _locate_rows(self, wanted: Ids, *, done: str = "nothing was forgotten, ") -> Removal:
        slots, missing = self._stored.find_rows(wanted)
        if len(missing):
            require_known(wanted.take(missing), _NO_IDS[self._stored.id_type.kind], done=done)
        return Removal(len(wanted), len(slots), slots)

    def _in_place_attributes(self) -> tuple[str, ...]:
        return (self._core_attribute,)


class CoreModelBase(StoredModelBase):
    """Base class of models of trees, which depend only on settings, seed and remaining rows.

    Examples
    --------
    >>> from letheon.forest import CoreModelBase, DaREForestClassifier
    >>> issubclass(DaREForestClassifier, CoreModelBase)
    True
    """

    rebuild: str
    weight_bits: int
    categorical_features: Any

    def learn(self, X: Any, y: Any, *, ids: Any, sample_weight: Any = None) -> Self:
        """Add rows; the result is the same as if they had been in `fit`.

        New classes are allowed.

        Parameters
        ----------
        X, y, sample_weight
            The same as in `fit`; X must have the same columns.
        ids : sequence of int or of str
            Id of the person each row belongs to. A known id keeps its earlier rows.

        Returns
        -------
        self
        """
        return self._learn_rows(ids, lambda: self._prepare_learn(X, y, sample_weight, ids))

    def settle(self) -> Self:
        """Do the work that lazy requests have deferred.

        Without this call it is done when it is first needed. Predictions and the digest do not
        change.

        Returns
        -------
        self
        """
        require_fitted(self)
        with lock_model(self):
            self._stored.core.settle(threads_for(self.n_jobs))
        return self

    @abstractmethod
    def _prepare_target(self, y: Any) -> NDArray[Any]:
        """Return y in canonical form; raise `ValueError` for a target of the wrong kind."""

    @abstractmethod
    def _plan_learn(self, batch: ForestBatch) -> Callable[[], Any]:
        """Return the change that adds these rows."""

    def _estimate_cost(self, ids: Any, nothing: Any, estimate: Callable[[Removal], Any]) -> Any:
        """Return the cost of forgetting these ids; `nothing` is the cost of no ids."""
        require_fitted(self)
        wanted = as_ids(ids).distinct()
        with lock_model(self):
            self._require_same_parameters()
            if len(wanted) == 0:
                return nothing
            removal = self._locate_rows(wanted, done="")
            if removal.n_rows == self.n_rows_:
                raise EmptyModelError(
                    "ids covers all rows of the model, so no rows would remain to fit; keep at "
                    "least one id"
                )
            return estimate(removal)

    def _prepare_batch(
        self, X: Any, y: Any, sample_weight: Any, ids: Any, columns: CategoryColumns
    ) -> ForestBatch:
        require_target(self, y)
        rows = self._encode_rows(X, columns)
        weights = as_weights(sample_weight, rows.matrix.shape[0], int(self.weight_bits))
        return ForestBatch.from_input(rows, self._prepare_target(y), weights, ids)

    def _encode_rows(self, X: Any, columns: CategoryColumns) -> EncodedRows:
        return columns.encode(X, by_dtype=isinstance(self.categorical_features, str))

    def _prepare_matrix(self, X: Any) -> Any:
        """Return X as a float matrix for the C++ core; a suitable matrix is returned unchanged."""
        require_fitted(self)
        known, stored = vars(self), self._stored
        settings = stored.settings
        plain = is_matrix(X) and X.shape[1] == settings.n_columns and not settings.categorical
        if plain and "feature_names_in_" not in known:
            return X
        if settings.categorical:
            require_features(self, X)
        matrix = self._encode_rows(X, stored.categories.columns).matrix
        require_features(self, X)
        return matrix

    def _prepare_learn(self, X: Any, y: Any, sample_weight: Any, ids: Any) -> Callable[[], Any]:
        categories = self._stored.categories
        if categories.columns.columns:
            require_features(self, X)
        batch = self._prepare_batch(X, y, sample_weight, ids, categories.columns)
        require_features(self, X)
        categories.require_distinct(EncodedRows(batch.X, batch.names))
        return self._plan_learn(batch)

    def _finish_pending(self) -> None:
        self.settle()

    def _make_predictor(self, claim: Guarantee) -> Predictor:
        stored, names = self._stored, vars(self).get("feature_names_in_")
        columns = stored.categories.columns
        inputs = TreeInputs(
            stored.settings.n_columns,
            None if names is None else tuple(map(str, names)),
            columns.columns,
            columns.names,
            is_by_dtype=isinstance(self.categorical_features, str),
        )
        return self._make_tree_predictor(inputs, claim)

    @abstractmethod
    def _make_tree_predictor(self, inputs: TreeInputs, claim: Guarantee) -> Predictor:
        """Return the predictor; `inputs` has no categories yet."""

    def _is_eager(self) -> bool:
        # Checked again, because the parameter may be changed after fit.
        check_parameter("rebuild", self.rebuild, REBUILD)
        return bool(self.rebuild == "eager")

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags: dense or sparse input, missing values allowed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags
