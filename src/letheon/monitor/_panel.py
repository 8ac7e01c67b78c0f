"""The rows a monitor holds: a test set with the last retrained model's outputs, training rows."""

import copy
import time
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.utils.validation import check_consistent_length

from letheon.data import Ids, Rows, hold_table, hold_target, row_ids, table_length
from letheon.monitor._judge import Judge, spread_of

__all__ = [
    "Panel",
    "Timed",
    "held_rows",
    "in_memory",
    "positions_of",
    "train",
    "twin",
    "used_up_classes",
]

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


@dataclass(frozen=True)
class Timed:
    """A model and how long its training took."""

    model: Any
    seconds: float


def train(like: Any, rows: Rows, *, in_memory: bool = False) -> Timed:
    """Train afresh on these rows, with the settings and the seed of a fitted model.

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
    return Timed(fresh, time.perf_counter() - start)


def in_memory(model: Any, rows: Rows) -> Any:
    """Return the freshly trained model, or one like it if it keeps states on a disk."""
    has_files = model.get_params(deep=False).get("checkpoint_dir") is not None
    return train(model, rows, in_memory=True).model if has_files else model


def twin(model: Any) -> Any:
    """Return a copy in memory of its own; forgetting in it leaves the model alone."""
    return copy.deepcopy(model)
