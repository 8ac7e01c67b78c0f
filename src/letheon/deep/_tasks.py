"""What networks that classify and networks that predict numbers do differently."""

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from letheon.base import KeywordScoreMixin, require_fitted
from letheon.data import Ids, SlotRows, hold_labels, hold_target, join_target, row_ids
from letheon.deep._base import Floats, count_outputs
from letheon.removal import ProbabilitiesMixin, TrainingRows
from letheon.validation import AnyCallable, Either, OneOf, Rules

Placement = dict[str, NDArray[np.int64]]


class NetClassifierMixin(ProbabilitiesMixin, KeywordScoreMixin, ClassifierMixin):
    """Mixin for networks with one logit per class."""

    nets_: Any
    _is_classifier: ClassVar[bool] = True
    _parameter_rules: ClassVar[Rules] = {
        "loss": Either(OneOf(("cross_entropy",), "'cross_entropy'"), AnyCallable())
    }

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels of the remaining rows, sorted."""
        require_fitted(self)  # type: ignore[arg-type]
        classes: NDArray[Any] = self.nets_.classes
        return classes

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely label of every row.

        The first call on a loaded model waits until other threads have finished training.
        """
        nets, shares = self._predict_outputs(X)  # type: ignore[attr-defined]
        labels: NDArray[Any] = nets.classes[shares.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities, in the order of `classes_`."""
        shares: Floats = self._predict_outputs(X)[1]  # type: ignore[attr-defined]
        return shares

    def _link_outputs(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, dim=1)

    def _hold_targets(self, y: Any) -> NDArray[Any]:
        return hold_labels(y, name=type(self).__name__, regressor="SISANetRegressor")

    def _make_training_rows(
        self, rows: NDArray[Any], targets: NDArray[Any], ids: Any
    ) -> TrainingRows:
        classes, codes = np.unique(targets, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"y has only one class ({classes[0]!r}); a classifier needs at least two classes"
            )
        slots = SlotRows(rows, codes.astype(np.int64), row_ids(ids, len(rows)))
        return TrainingRows(slots, classes, np.bincount(codes))

    def _append_rows(
        self, rows: SlotRows, X: NDArray[Any], targets: NDArray[Any], ids: Ids, extra: Placement
    ) -> TrainingRows:
        """Append rows to a copy of the stored rows; classes may be added."""
        n_old = len(rows)
        labels = join_target(self.nets_.classes[rows.y], targets)
        assert labels is not None
        classes, codes = np.unique(labels, return_inverse=True)
        codes = codes.astype(np.int64)
        rows.y[:] = codes[:n_old]
        rows.append(X, codes[n_old:], ids, extra)
        return TrainingRows(rows, classes, np.bincount(codes))


class NetRegressorMixin(KeywordScoreMixin, RegressorMixin):
    """Mixin for networks with one output per target."""

    rows_: SlotRows
    _is_classifier: ClassVar[bool] = False
    _parameter_rules: ClassVar[Rules] = {
        "loss": Either(OneOf(("squared_error",), "'squared_error'"), AnyCallable())
    }

    def predict(self, X: Any) -> Floats:
        """Return the predicted targets of every row, of the shape that y had.

        The first call on a loaded model waits until other threads have finished training.
        """
        values: Floats = self._predict_outputs(X)[1]  # type: ignore[attr-defined]
        return values[:, 0] if self.rows_.y.ndim == 1 else values

    def _link_outputs(self, outputs: Tensor) -> Tensor:
        return outputs

    def _hold_targets(self, y: Any) -> NDArray[Any]:
        target = hold_target(y, as_float=True)
        if target.ndim != 2 or target.shape[1] == 1:
            target = column_or_1d(target, warn=True)
        if target.dtype != np.float64:
            raise ValueError("y contains values that are not numbers; expected numeric targets")
        # The loss is computed in float32.
        with np.errstate(over="ignore"):
            small = target.astype(np.float32)
        assert_all_finite(small, estimator_name=type(self).__name__, input_name="y")
        numbers: NDArray[Any] = target + 0.0  # -0.0 becomes 0.0
        return numbers

    def _make_training_rows(
        self, rows: NDArray[Any], targets: NDArray[Any], ids: Any
    ) -> TrainingRows:
        return TrainingRows(SlotRows(rows, targets, row_ids(ids, len(rows))))

    def _append_rows(
        self, rows: SlotRows, X: NDArray[Any], targets: NDArray[Any], ids: Ids, extra: Placement
    ) -> TrainingRows:
        """Append rows to a copy of the stored rows."""
        n_new, n_old = (count_outputs(None, part) for part in (targets, rows.y))
        if targets.ndim != rows.y.ndim or n_new != n_old:
            raise ValueError(f"y has {n_new} targets per row; the model was fitted with {n_old}")
        rows.append(X, targets, ids, extra)
        return TrainingRows(rows)
