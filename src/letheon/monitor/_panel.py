"""The rows a monitor holds, how a model is judged on them, and copies that are trained on them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_consistent_length

from letheon.data import Ids, Rows, hold_table, hold_target, present_table, row_ids, table_length

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
        classes, shares = np.asarray(model.classes_), np.asarray(model.predict_proba(X))
        column = np.searchsorted(classes, rows.y).clip(max=len(classes) - 1)
        # A class that nobody is left of has no column: its probability is 0.
        is_known = classes[column] == rows.y
        return np.where(is_known, shares[np.arange(len(rows)), column], 0.0)

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


class Removal(NamedTuple):
    """Rows that left, and seconds."""

    n_rows: int = 0
    seconds: float = 0.0


# Of a request that the model was not asked.
NOTHING = Removal()


def time_removal(model: Any, ids: Any) -> tuple[Any, Removal]:
    """Let a model forget people, if there are any; return its receipt, and rows and time."""
    if len(ids) == 0:
        return None, NOTHING
    start = time.perf_counter()
    receipt = model.forget(ids)
    return receipt, Removal(int(receipt.n_rows), time.perf_counter() - start)


def finish_removal(model: Any, asked: Removal, row: Any) -> Removal:
    """Let a lazy model do what a request left for later; its time belongs to the request.

    It may do so when it is asked to, or at its first answer: what that takes beyond a second one.
    """
    if asked is NOTHING:
        return asked
    finish, times = getattr(model, "_finish", None), [time.perf_counter()]
    if finish is not None:
        finish()
    for _ in range(2):
        model.predict(row)
        times.append(time.perf_counter())
    late, again = times[1] - times[0], times[2] - times[1]
    return asked._replace(seconds=asked.seconds + max(late - again, 0.0))
