"""The rows a monitor holds, how a model is judged on them, and copies that are trained on them."""

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
    """One output per row of a model, and the performance M that follows from outputs.

    Outputs are kept per row, so that M of the last retrained model can be taken again when a
    person leaves the test set.

    Attributes
    ----------
    name : str
        What M is, in words.
    metric : callable or None
        ``metric(y_true, y_pred)``; None for the two metrics of the house.
    uses_probability : bool
        Whether outputs are probabilities of the true label instead of predictions.
    """

    name: str
    metric: Callable[[Any, Any], Any] | None
    uses_probability: bool

    def outputs(self, model: Any, rows: Rows) -> Outputs:
        """Return what the model says about every row."""
        X = rows.X if isinstance(rows.X, np.ndarray) else present_table(rows.X)
        if not self.uses_probability:
            return np.asarray(model.predict(X))
        assert rows.y is not None
        return label_probability(model, X, rows.y)

    def value(self, y: NDArray[Any], outputs: Outputs, spread: float) -> float:
        """Return M of these rows; `spread` is the variance of the test targets."""
        if self.metric is not None:
            return float(self.metric(y, outputs))
        if self.uses_probability:
            return float(np.mean(outputs))
        return 1 - float(np.mean((y - outputs) ** 2)) / spread

    def wrongness(self, y: NDArray[Any], outputs: Outputs, spread: float) -> NDArray[np.float64]:
        """Return for every row how wrong the model is about it, from 0 to 1."""
        if self.uses_probability:
            return np.asarray(1 - outputs, np.float64)
        if outputs.dtype.kind == "f" and y.dtype.kind in "fiu":
            squares = (np.asarray(y, np.float64) - outputs) ** 2
            return np.asarray(squares / (squares + spread), np.float64)
        return np.asarray(outputs != y, np.float64)

    def movement(self, before: Outputs, after: Outputs, spread: float) -> float:
        """Return how far outputs moved: a mean change, or the share of labels that changed."""
        if self.uses_probability:
            return float(np.mean(abs(after - before)))
        if before.dtype.kind == "f" and after.dtype.kind == "f":
            return float(np.sqrt(np.mean((after - before) ** 2) / spread))
        return float(np.mean(before != after))


def judge_for(model: Any, metric: Callable[[Any, Any], Any] | None) -> Judge:
    """Return how this model is judged.

    Without a metric a classifier is judged by the mean probability of the true label (by its
    accuracy if it offers no probabilities), a regression by R² with the test set's variance. The
    accuracy of a few forgotten rows jumps by whole rows; the probability moves with the model.
    """
    if metric is not None:
        return Judge(getattr(metric, "__name__", "metric"), metric, uses_probability=False)
    if hasattr(model, "predict_proba"):
        return Judge("mean probability of the true label", None, uses_probability=True)
    if is_regressor(model):
        return Judge("R²", None, uses_probability=False)
    return Judge("accuracy", accuracy_score, uses_probability=False)


def spread_of(y: NDArray[Any]) -> float:
    """Return the variance of numbers, 1 where there is none."""
    if y.dtype.kind not in "fiu":
        return 1.0
    variance = float(np.var(y))
    return variance if variance > 0 else 1.0


_OUTPUTS = "outputs"


def held_rows(X: Any, y: Any, ids: Any) -> Rows:
    """Return rows in memory of the monitor's own; without ids they are numbered."""
    table = hold_table(X)
    target = hold_target(y)
    check_consistent_length(table, target)
    return Rows(table, target, row_ids(ids, table_length(table)))


def positions_of(rows: Rows, wanted: Ids) -> NDArray[np.int64]:
    """Return where the rows of these people are; nobody need be there."""
    if wanted.kind != rows.ids.kind:
        return np.empty(0, np.int64)
    return np.sort(rows.find(wanted).positions)


def used_up_classes(model: Any, rows: Rows, places: NDArray[np.int64]) -> NDArray[Any]:
    """Return the classes of which no row is left without those at `places`."""
    if rows.y is None or not is_classifier(model):
        return np.empty(0)
    return np.setdiff1d(rows.y[places], np.delete(rows.y, places))


@dataclass(frozen=True, eq=False)
class Panel:
    """The test set, and what the last retrained model says about each of its rows.

    Outputs are kept per row: when somebody leaves, the performance of both models is taken on the
    rows that stay.
    """

    rows: Rows
    judge: Judge
    knows_people: bool

    @classmethod
    def seen_by(cls, model: Any, rows: Rows, judge: Judge, *, knows_people: bool) -> Self:
        """Return the panel with the outputs of a freshly trained model."""
        outputs = judge.outputs(model, rows)
        return cls(Rows(rows.X, rows.y, rows.ids, {_OUTPUTS: outputs}), judge, knows_people)

    def without(self, people: Ids) -> "Panel":
        """Return the panel without the rows of these people."""
        gone = positions_of(self.rows, people) if self.knows_people else np.empty(0, np.int64)
        if len(gone) == 0:
            return self
        if len(gone) == len(self):
            raise ValueError(
                "these people own every row of the test set; nothing would be left to judge the "
                "model by. Nothing was forgotten; start a new monitor with other test rows."
            )
        return Panel(self.rows.without(gone), self.judge, self.knows_people)

    def rehearsed_without(self, people: Ids) -> "Panel":
        """Return the panel of a rehearsal: as `without`, but it never gets empty."""
        try:
            return self.without(people)
        except ValueError:
            return self

    def owners(self, people: Ids) -> set[int | str]:
        """Return those of the people who own test rows."""
        if not self.knows_people or len(people) == 0 or people.kind != self.rows.ids.kind:
            return set()
        missing = {*self.rows.find(people).missing.to_list()}
        return {who for who in people.to_list() if who not in missing}

    def renewed(self, model: Any) -> "Panel":
        """Return the panel with the outputs of the model that was just retrained."""
        return Panel.seen_by(model, self.rows, self.judge, knows_people=self.knows_people)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def spread(self) -> float:
        """Variance of the targets; probabilities need none."""
        return 1.0 if self.judge.uses_probability else spread_of(self._y)

    @property
    def _y(self) -> NDArray[Any]:
        assert self.rows.y is not None
        return self.rows.y

    def look(self, model: Any) -> tuple[float, float, float]:
        """Return ``M_test`` of the model and of the last retrained one, and how far outputs moved.

        Both performances are taken on the rows that are here now.
        """
        before, now = self.rows.extra[_OUTPUTS], self.judge.outputs(model, self.rows)
        return (
            self.judge.value(self._y, now, self.spread),
            self.judge.value(self._y, before, self.spread),
            self.judge.movement(before, now, self.spread),
        )

    def wrongness_on(self, model: Any, rows: Rows) -> NDArray[np.float64]:
        """Return how wrong a model is about each of some rows."""
        assert rows.y is not None
        return self.judge.wrongness(rows.y, self.judge.outputs(model, rows), self.spread)

    def value_on(self, model: Any, rows: Rows) -> float:
        """Return M of a model on other rows."""
        assert rows.y is not None
        return self.judge.value(rows.y, self.judge.outputs(model, rows), self.spread)


def train(like: Any, rows: Rows, *, in_memory: bool = False) -> tuple[Any, float]:
    """Train afresh on these rows, with the settings and the seed of a fitted model, on the clock.

    `in_memory` is for rehearsals: such a model keeps no states on a disk.
    """
    fresh = clone(like)
    names = fresh.get_params(deep=False)
    if "random_state" in names and hasattr(like, "seed_"):
        fresh.set_params(random_state=like.seed_)
    if in_memory and "checkpoint_dir" in names:
        fresh.set_params(checkpoint_dir=None)
    X, y = rows.part(0, len(rows))
    start = time.perf_counter()
    fresh.fit(X, y, ids=rows.ids.to_array())
    return fresh, time.perf_counter() - start


def in_memory(model: Any, rows: Rows) -> Any:
    """Return the freshly trained model, or one like it if it keeps states on a disk."""
    has_files = model.get_params(deep=False).get("checkpoint_dir") is not None
    return train(model, rows, in_memory=True)[0] if has_files else model


def time_rest(model: Any, row: Any) -> float:
    """Return the time in which a lazy model does what a request left for later.

    It may do so when it is asked to, or at its first answer: what that takes beyond a second one.
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
    """Raise unless this is a fitted model that can forget."""
    if not callable(getattr(model, "forget", None)):
        raise CannotForgetError(
            f"{type(model).__name__} has no forget; wrap it: NaiveUnlearner(estimator)"
        )
    try:
        check_is_fitted(model)
    except NotFittedError:
        raise NotFittedError(
            f"this {type(model).__name__} is not fitted; a monitor watches a trained model"
        ) from None


def training_rows(model: Any, retrain_with: tuple[Any, ...] | None) -> Rows | None:
    """Return the training rows to hold; an exact method can do without."""
    if retrain_with is None:
        if guarantee_of(model)[0] == "exact":
            return None
        raise ValueError(
            "proxies of a method that is not exact are calibrated by retraining: give the training "
            "rows, retrain_with=(X, y, ids)"
        )
    if not isinstance(retrain_with, tuple) or len(retrain_with) not in (2, 3):
        raise ValueError("retrain_with must be (X, y) or (X, y, ids)")
    X, y, ids = retrain_with if len(retrain_with) == 3 else (*retrain_with, None)
    rows = held_rows(X, y, ids)
    if hasattr(model, "n_rows_") and len(rows) != model.n_rows_:
        raise ValueError(f"retrain_with has {len(rows)} rows and the model holds {model.n_rows_}")
    same_people(model, rows, were_named=ids is not None)
    return rows


def same_people(model: Any, rows: Rows, *, were_named: bool) -> None:
    """Raise unless the rows belong to the people of the model, as far as that can be told.

    Otherwise a forgotten person would stay in these rows, and be trained on again.
    """
    held = ids_of(model)
    if held is None:
        return
    _require_kind(held, rows.ids, "retrain_with")
    theirs, ours = held.to_list(), rows.ids.to_list()
    if theirs == ours:
        return
    if not were_named:
        raise ValueError(
            "the model was fitted with ids of its own; give them too: retrain_with=(X, y, ids)"
        )
    # A model may hold rows in another order, and some only tell each person once.
    if not isinstance(model, ForgetMixin):
        theirs, ours = sorted(set(theirs)), sorted(set(ours))  # type: ignore[assignment, type-var]
    if sorted(theirs) != sorted(ours):
        raise ValueError("the ids of retrain_with are not those that the model holds")


def ids_of(model: Any) -> Ids | None:
    """Return the ids of a model's rows, or of its people; None if it does not tell."""
    if isinstance(model, ForgetMixin):
        return model._get_ids()
    return as_ids(model.ids_) if hasattr(model, "ids_") else None


def test_rows(model: Any, X: Any, y: Any, ids: Any) -> Rows:
    """Return the test rows; their ids and labels must be of the model's kind."""
    n_rows, n_labels = np.shape(X)[:1], np.shape(y)[:1]
    if n_rows and n_labels and n_rows != n_labels:
        raise ValueError(f"X_test has {n_rows[0]} rows and y_test {n_labels[0]}")
    rows, held = held_rows(X, y, ids), ids_of(model)
    if ids is not None and held is not None:
        _require_kind(held, rows.ids, "test_ids")
    assert rows.y is not None
    if is_classifier(model) and not np.isin(rows.y, np.asarray(model.classes_)).any():
        raise ValueError(
            f"no label of y_test is one of the model's: {np.unique(rows.y)[:5].tolist()} against "
            f"{np.asarray(model.classes_)[:5].tolist()}"
        )
    return rows


def find_leaving(people: Ids, panel: Panel, rows: Rows | None, model: Any) -> Ids:
    """Return those of the people whom the model must forget; raise if one is not known.

    Raised before anything changes: who is not among the rows held here would be trained on again,
    and who has test rows only is no business of the model.
    """
    held = {*(as_ids(model.ids_) if rows is None else rows.ids).to_list()}
    missing = _choose(people, lambda who: who not in held)
    outsiders = panel.owners(missing)
    if rows is not None:
        require_known(_choose(missing, lambda who: who not in outsiders), rows.ids)
    return _choose(people, lambda who: who not in outsiders)


def _choose(people: Ids, is_chosen: Callable[[int | str], bool]) -> Ids:
    return people.take(np.flatnonzero(np.array([is_chosen(who) for who in people.to_list()], bool)))


def require_classes(model: Any, rows: Rows, places: NDArray[np.int64]) -> None:
    """Raise if no row of some class would be left: nothing is known of such a model."""
    used_up = used_up_classes(model, rows, places).tolist()
    if used_up:
        raise EmptyModelError(
            f"these people own the last training rows of class {', '.join(map(repr, used_up))}: "
            "the model could not be retrained or judged as it was rehearsed. Nothing was changed. "
            "Train a model without this class, and start a new monitor for it."
        )


def require_left(old: Any, model: Any, rows: Rows | None, leaving: Ids) -> None:
    """Raise unless a retrained model holds those who are left, as far as that can be told."""
    if rows is not None:
        same_people(model, rows, were_named=True)
        return
    before, now = ids_of(old), ids_of(model)
    if before is None or now is None:
        return
    if set(now.to_list()) != set(before.to_list()) - set(leaving.to_list()):
        raise ValueError("the ids of the retrained model are not those that are left")


def _require_kind(held: Ids, ids: Ids, what: str) -> None:
    if held.kind != ids.kind:
        raise IdsTypeError(
            f"the model holds {held.kind} ids and {what} has {ids.kind} ids; 1 is not '1'"
        )


def guarantee_of(model: Any) -> tuple[str, float | None, float | None]:
    """Return kind, spent and budget of a model's guarantee; "empirical" if it claims nothing."""
    claim = getattr(model, "guarantee_", None)
    return ("empirical", None, None) if claim is None else (claim.kind, claim.spent, claim.budget)
