"""Rows of a monitor, metrics of a model on them, and copies of a model trained on them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from letheon.base import ForgetMixin, require_known
from letheon.data import (
    Ids,
    Rows,
    as_ids,
    hold_table,
    hold_target,
    present_table,
    row_ids,
    table_length,
)
from letheon.exceptions import CannotForgetError, EmptyModelError, IdsTypeError
from letheon.scoring import label_probability

Outputs = NDArray[Any]


@dataclass(frozen=True)
class Judge:
    """How a model is evaluated: one output per row, and the performance M computed from them.

    Outputs are stored per row, so that M of the last retrained model can be computed again when a
    person is removed from the test set.

    Attributes
    ----------
    name : str
        Name of the performance M.
    metric : callable or None
        ``metric(y_true, y_pred)``; None for the two built-in metrics.
    uses_probability : bool
        Whether outputs are probabilities of the true label instead of predictions.
    """

    name: str
    metric: Callable[[Any, Any], Any] | None
    uses_probability: bool

    def compute_outputs(self, model: Any, rows: Rows) -> Outputs:
        """Return the prediction, or the probability of the true label, for every row."""
        X = rows.X if isinstance(rows.X, np.ndarray) else present_table(rows.X)
        if not self.uses_probability:
            return np.asarray(model.predict(X))
        assert rows.y is not None
        return label_probability(model, X, rows.y)

    def compute_metric(self, y: NDArray[Any], outputs: Outputs, spread: float) -> float:
        """Return the performance M from true values and outputs.

        `spread` is the variance of the test targets, used for R².
        """
        if self.metric is not None:
            return float(self.metric(y, outputs))
        if self.uses_probability:
            return float(np.mean(outputs))
        return 1 - float(np.mean((y - outputs) ** 2)) / spread

    def compute_wrongness(
        self, y: NDArray[Any], outputs: Outputs, spread: float
    ) -> NDArray[np.float64]:
        """Return the error of the model on every row, from 0 (correct) to 1 (wrong).

        A squared error e is scaled to ``e / (e + spread)``.
        """
        if self.uses_probability:
            return np.asarray(1 - outputs, np.float64)
        if outputs.dtype.kind == "f" and y.dtype.kind in "fiu":
            squares = (np.asarray(y, np.float64) - outputs) ** 2
            return np.asarray(squares / (squares + spread), np.float64)
        return np.asarray(outputs != y, np.float64)

    def measure_movement(self, before: Outputs, after: Outputs, spread: float) -> float:
        """Return how much the outputs changed between two models.

        This is the mean absolute change of probabilities, the root mean square change of numbers in
        units of the standard deviation of the targets, or the share of labels that changed.
        """
        if self.uses_probability:
            return float(np.mean(abs(after - before)))
        if before.dtype.kind == "f" and after.dtype.kind == "f":
            return float(np.sqrt(np.mean((after - before) ** 2) / spread))
        return float(np.mean(before != after))


def choose_judge(model: Any, metric: Callable[[Any, Any], Any] | None) -> Judge:
    """Return the judge for a model.

    Without a metric, a classifier is judged by the mean probability of the true label, or by
    accuracy if it has no `predict_proba`. A regressor is judged by R² with the variance of the test
    set. Probabilities are preferred because they change continuously, while the accuracy of a few
    forgotten rows changes in large steps.

    Parameters
    ----------
    model : fitted model
        The model to judge.
    metric : callable or None
        ``metric(y_true, y_pred)``.

    Returns
    -------
    Judge

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression, Ridge
    >>> [choose_judge(model, None).name for model in (LogisticRegression(), Ridge())]
    ['mean probability of the true label', 'R²']
    """
    if metric is not None:
        return Judge(getattr(metric, "__name__", "metric"), metric, uses_probability=False)
    if hasattr(model, "predict_proba"):
        return Judge("mean probability of the true label", None, uses_probability=True)
    if is_regressor(model):
        return Judge("R²", None, uses_probability=False)
    return Judge("accuracy", accuracy_score, uses_probability=False)


def spread_of(y: NDArray[Any]) -> float:
    """Return the variance of numeric targets; 1 if they are constant or not numeric.

    Parameters
    ----------
    y : ndarray
        Targets or labels.

    Returns
    -------
    float

    Examples
    --------
    >>> spread_of(np.array([1.0, 3.0])), spread_of(np.array(["a", "b"]))
    (1.0, 1.0)
    """
    if y.dtype.kind not in "fiu":
        return 1.0
    variance = float(np.var(y))
    return variance if variance > 0 else 1.0


_OUTPUTS = "outputs"


def copy_rows(X: Any, y: Any, ids: Any) -> Rows:
    """Return a copy of the rows; if `ids` is None, the ids are 0, 1, ..."""
    table = hold_table(X)
    target = hold_target(y)
    check_consistent_length(table, target)
    return Rows(table, target, row_ids(ids, table_length(table)))


def find_positions(rows: Rows, ids: Ids) -> NDArray[np.int64]:
    """Return the positions of the rows of these ids; unknown ids are ignored."""
    if ids.kind != rows.ids.kind:
        return np.empty(0, np.int64)
    return np.sort(rows.find(ids).positions)


def find_emptied_classes(model: Any, rows: Rows, places: NDArray[np.int64]) -> NDArray[Any]:
    """Return the classes that have no row outside `places`."""
    if rows.y is None or not is_classifier(model):
        return np.empty(0)
    return np.setdiff1d(rows.y[places], np.delete(rows.y, places))


@dataclass(frozen=True, eq=False)
class Panel:
    """The test set, and the output of the last retrained model for each of its rows.

    Outputs are stored per row: when a person is removed, the performance of both models is computed
    on the remaining rows.
    """

    rows: Rows
    judge: Judge
    knows_people: bool

    @classmethod
    def from_model(cls, model: Any, rows: Rows, judge: Judge, *, knows_people: bool) -> Self:
        """Return the panel with the outputs of a freshly trained model."""
        outputs = judge.compute_outputs(model, rows)
        return cls(Rows(rows.X, rows.y, rows.ids, {_OUTPUTS: outputs}), judge, knows_people)

    def without(self, people: Ids) -> "Panel":
        """Return the panel without the rows of these people, or raise if no row would remain."""
        removed = find_positions(self.rows, people) if self.knows_people else np.empty(0, np.int64)
        if len(removed) == 0:
            return self
        if len(removed) == len(self):
            raise ValueError(
                "every row of the test set belongs to these ids, so no row would remain to "
                "evaluate the model. Nothing was forgotten; start a new monitor with other test "
                "rows."
            )
        return Panel(self.rows.without(removed), self.judge, self.knows_people)

    def drop_in_rehearsal(self, people: Ids) -> "Panel":
        """Return the panel without these people, or unchanged if no row would remain."""
        try:
            return self.without(people)
        except ValueError:
            return self

    def find_owners(self, people: Ids) -> set[int | str]:
        """Return those of `people` that have test rows."""
        if not self.knows_people or len(people) == 0 or people.kind != self.rows.ids.kind:
            return set()
        missing = {*self.rows.find(people).missing.to_list()}
        return {person_id for person_id in people.to_list() if person_id not in missing}

    def with_outputs_of(self, model: Any) -> "Panel":
        """Return the panel with the outputs of the model that was just retrained."""
        return Panel.from_model(model, self.rows, self.judge, knows_people=self.knows_people)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def spread(self) -> float:
        """Variance of the test targets; 1 if outputs are probabilities."""
        return 1.0 if self.judge.uses_probability else spread_of(self._y)

    @property
    def _y(self) -> NDArray[Any]:
        assert self.rows.y is not None
        return self.rows.y

    def compare_models(self, model: Any) -> tuple[float, float, float]:
        """Return ``M_test`` of `model` and of the last retrained model, and the output change.

        Both performances are computed on the current test rows. The output change is the result of
        `Judge.measure_movement`.
        """
        before, now = self.rows.extra[_OUTPUTS], self.judge.compute_outputs(model, self.rows)
        return (
            self.judge.compute_metric(self._y, now, self.spread),
            self.judge.compute_metric(self._y, before, self.spread),
            self.judge.measure_movement(before, now, self.spread),
        )

    def compute_wrongness(self, model: Any, rows: Rows) -> NDArray[np.float64]:
        """Return the error of a model on each of `rows`, from 0 to 1."""
        assert rows.y is not None
        return self.judge.compute_wrongness(
            rows.y, self.judge.compute_outputs(model, rows), self.spread
        )

    def compute_value(self, model: Any, rows: Rows) -> float:
        """Return the performance M of a model on `rows`; R² uses the variance of the test set."""
        assert rows.y is not None
        return self.judge.compute_metric(
            rows.y, self.judge.compute_outputs(model, rows), self.spread
        )


def train_fresh(like: Any, rows: Rows, *, in_memory: bool = False) -> tuple[Any, float]:
    """Train a new model on these rows with the settings and the seed of `like`.

    Return the model and the duration of the training in seconds. `in_memory` is for rehearsals: the
    model keeps no state on disk.
    """
    fresh = clone(like)
    names = fresh.get_params(deep=False)
    if "random_state" in names and hasattr(like, "seed_"):
        fresh.set_params(random_state=like.seed_)
    if in_memory and "checkpoint_dir" in names:
        fresh.set_params(checkpoint_dir=None)
    X, y = rows.slice(0, len(rows))
    start = time.perf_counter()
    fresh.fit(X, y, ids=rows.ids.to_array())
    return fresh, time.perf_counter() - start


def copy_in_memory(model: Any, rows: Rows) -> Any:
    """Return the model itself, or a newly trained copy if it keeps state on disk."""
    has_files = model.get_params(deep=False).get("checkpoint_dir") is not None
    return train_fresh(model, rows, in_memory=True)[0] if has_files else model


def time_deferred_work(model: Any, row: Any) -> float:
    """Do the work that a lazy model deferred during a request; return its duration in seconds.

    The work is done in `_finish_pending` or in the first prediction. The time of a second
    prediction is subtracted.
    """
    finish, times = getattr(model, "_finish_pending", None), [time.perf_counter()]
    if finish is not None:
        finish()
    for _ in range(2):
        model.predict(row)
        times.append(time.perf_counter())
    late, again = times[1] - times[0], times[2] - times[1]
    return max(late - again, 0.0)


def require_model(model: Any) -> None:
    """Raise if `model` has no method `forget` or is not fitted."""
    if not callable(getattr(model, "forget", None)):
        raise CannotForgetError(
            f"{type(model).__name__} has no method forget; wrap it: NaiveUnlearner(estimator)"
        )
    try:
        check_is_fitted(model)
    except NotFittedError:
        raise NotFittedError(
            f"this {type(model).__name__} is not fitted; call fit before you monitor it"
        ) from None


def training_rows(model: Any, retrain_with: tuple[Any, ...] | None) -> Rows | None:
    """Return a copy of the training rows for retrains, or None.

    Raise if they do not match the model, or if they are missing for a method that is not exact.
    """
    if retrain_with is None:
        if read_guarantee(model)[0] == "exact":
            return None
        raise ValueError(
            "a method that is not exact is calibrated by retraining and needs the training rows: "
            "pass retrain_with=(X, y, ids)"
        )
    if not isinstance(retrain_with, tuple) or len(retrain_with) not in (2, 3):
        raise ValueError("retrain_with must be a tuple (X, y) or (X, y, ids)")
    X, y, ids = retrain_with if len(retrain_with) == 3 else (*retrain_with, None)
    rows = copy_rows(X, y, ids)
    if hasattr(model, "n_rows_") and len(rows) != model.n_rows_:
        raise ValueError(f"retrain_with has {len(rows)} rows, but the model has {model.n_rows_}")
    check_same_ids(model, rows, were_named=ids is not None)
    return rows


def check_same_ids(model: Any, rows: Rows, *, were_named: bool) -> None:
    """Raise if the model has `ids_` and they differ from the ids of the rows.

    If they differed, a forgotten person could stay in these rows and be trained on again.
    `were_named` says whether the caller passed ids.

    Parameters
    ----------
    model : fitted model
        The model that a monitor watches.
    rows : Rows
        The rows to retrain with.
    were_named : bool
        Whether the caller passed ids for them.

    Raises
    ------
    ValueError
        The ids differ, or the model has ids and none were passed.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> from letheon.data import Rows, hold_table, row_ids
    >>> X, y = np.array([[0.0], [1.0]]), np.array([0, 1])
    >>> model = NearestCentroid().fit(X, y, ids=["anna", "ben"])
    >>> rows = Rows(hold_table(X), y, row_ids(["anna", "ben"], 2))
    >>> check_same_ids(model, rows, were_named=True)
    """
    model_ids = get_ids(model)
    if model_ids is None:
        return
    _require_kind(model_ids, rows.ids, "retrain_with")
    theirs, ours = model_ids.to_list(), rows.ids.to_list()
    if theirs == ours:
        return
    if not were_named:
        raise ValueError("the model was fitted with ids; pass them too: retrain_with=(X, y, ids)")
    # A model may have the rows in another order, and some list each id once.
    if not isinstance(model, ForgetMixin):
        theirs, ours = sorted(set(theirs)), sorted(set(ours))  # type: ignore[assignment, type-var]
    if sorted(theirs) != sorted(ours):
        raise ValueError("the ids in retrain_with differ from the ids of the model's rows")


def get_ids(model: Any) -> Ids | None:
    """Return the ids of a model's rows, or None if the model has no `ids_`.

    Some models list each id only once.
    """
    if isinstance(model, ForgetMixin):
        return model._get_ids()
    return as_ids(model.ids_) if hasattr(model, "ids_") else None


def test_rows(model: Any, X: Any, y: Any, ids: Any) -> Rows:
    """Return a copy of the test rows, or raise if their ids or labels do not match the model."""
    n_rows, n_labels = np.shape(X)[:1], np.shape(y)[:1]
    if n_rows and n_labels and n_rows != n_labels:
        raise ValueError(f"X_test has {n_rows[0]} rows, but y_test has {n_labels[0]}")
    rows, model_ids = copy_rows(X, y, ids), get_ids(model)
    if ids is not None and model_ids is not None:
        _require_kind(model_ids, rows.ids, "test_ids")
    assert rows.y is not None
    if is_classifier(model) and not np.isin(rows.y, np.asarray(model.classes_)).any():
        raise ValueError(
            f"no label in y_test is a class of the model: y_test has "
            f"{np.unique(rows.y)[:5].tolist()}, but the classes of the model are "
            f"{np.asarray(model.classes_)[:5].tolist()}"
        )
    return rows


def find_model_ids(people: Ids, panel: Panel, rows: Rows | None, model: Any) -> Ids:
    """Return those of `people` that the model must forget: all except ids with test rows only.

    If the monitor has training rows, raise `UnknownIdError` for an id that has neither training nor
    test rows: a retrain could not leave it out. The error is raised before anything changes.
    """
    known = {*(as_ids(model.ids_) if rows is None else rows.ids).to_list()}
    missing = _filter_ids(people, lambda person_id: person_id not in known)
    outsiders = panel.find_owners(missing)
    if rows is not None:
        require_known(_filter_ids(missing, lambda person_id: person_id not in outsiders), rows.ids)
    return _filter_ids(people, lambda person_id: person_id not in outsiders)


def _filter_ids(people: Ids, is_chosen: Callable[[int | str], bool]) -> Ids:
    return people.take(
        np.flatnonzero(np.array([is_chosen(person_id) for person_id in people.to_list()], bool))
    )


def require_classes(model: Any, rows: Rows, places: NDArray[np.int64]) -> None:
    """Raise if a class would lose all its rows, because such removals are not rehearsed."""
    used_up = find_emptied_classes(model, rows, places).tolist()
    if used_up:
        raise EmptyModelError(
            f"all training rows of class {', '.join(map(repr, used_up))} belong to these ids. The "
            "rehearsals do not cover the removal of a class. Nothing was changed. "
            "Train a model without this class, and start a new monitor for it."
        )


def check_remaining(old: Any, model: Any, rows: Rows | None, leaving_ids: Ids) -> None:
    """Raise if a retrained model with `ids_` does not have exactly the remaining ids."""
    if rows is not None:
        check_same_ids(model, rows, were_named=True)
        return
    before, now = get_ids(old), get_ids(model)
    if before is None or now is None:
        return
    if set(now.to_list()) != set(before.to_list()) - set(leaving_ids.to_list()):
        raise ValueError("the ids of the retrained model differ from the remaining ids")


def _require_kind(model_ids: Ids, ids: Ids, name: str) -> None:
    if model_ids.kind != ids.kind:
        raise IdsTypeError(
            f"{name} has {ids.kind} ids, but the model has {model_ids.kind} ids; the int 1 and the "
            "str '1' are different ids"
        )


def read_guarantee(model: Any) -> tuple[str, float | None, float | None]:
    """Return kind, spent and budget of a model's guarantee; "empirical" if it has no guarantee."""
    claim = getattr(model, "guarantee_", None)
    return ("empirical", None, None) if claim is None else (claim.kind, claim.spent, claim.budget)
