"""Shards with their saved states, and the plan that replaces some of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon import state
from letheon.data import Ids, Rows
from letheon.sharded._assign import Assignment, Integers
from letheon.sharded._stages import Job, Recipe, shard_classes
from letheon.sharded._states import SavedState, StateShelf


@dataclass(frozen=True)
class Shard:
    """One shard: rows ordered by slice, the states after stages 1..R-1, the final model."""

    number: int
    rows: Rows
    states: tuple[SavedState | None, ...]
    model: Any

    @cached_property
    def classes(self) -> NDArray[Any]:
        """Labels the shard holds, sorted."""
        return shard_classes(self.rows)


@dataclass(frozen=True)
class Ensemble:
    """All shards of one model, replaced as a whole so that readers never see a mixture."""

    assignment: Assignment
    shards: tuple[Shard, ...]
    classes: NDArray[Any] | None

    @property
    def models(self) -> list[Any]:
        """Models of the shards that hold any rows."""
        return [shard.model for shard in self.shards if shard.model is not None]

    @property
    def files(self) -> frozenset[str]:
        """Names of the states kept in the model's checkpoint directory."""
        return frozenset(
            saved.sha256
            for shard in self.shards
            for saved in shard.states
            if saved is not None and saved.data is None
        )

    def find(self, wanted: Ids) -> tuple[dict[int, Integers], Integers]:
        """Return the rows of these people, by shard, and the tier of each (-1: not held)."""
        tiers = np.full(len(wanted), -1, np.int64)
        where: dict[int, Integers] = {}
        for shards in self.assignment.candidate_shards(wanted):
            for number in np.unique(shards).tolist():
                askers, rows = np.flatnonzero(shards == number), self.shards[number].rows
                matches = rows.index.find(wanted.take(askers))
                # Two tiers may share a candidate shard, so the row itself says which it is.
                tiers[askers[matches.found]] = rows.extra["tier"][matches.any_row[matches.found]]
                if len(matches.positions):
                    held = where.get(number, np.empty(0, np.int64))
                    where[number] = np.union1d(held, matches.positions)
        return where, tiers


class Change(NamedTuple):
    """New rows of a shard and the first stage that must be trained again."""

    old: Shard | None
    number: int
    rows: Rows
    first: int


class Replacement(NamedTuple):
    """A plan ready to commit: the new ensemble and what it took to make it."""

    ensemble: Ensemble
    home: str | None
    work: float
    rebuilt: dict[str, int]
    warnings: tuple[str, ...]


def change_rows(old: Shard, rows: Rows, touched: NDArray[np.int64], recipe: Recipe) -> Change:
    """Return the change of a shard whose rows in the `touched` slices differ.

    The first call of `partial_fit` names the shard's classes, so if that set changes the shard
    starts afresh.
    """
    first = int(touched.min()) if recipe.epochs is not None else 0
    if recipe.is_classifier and not np.array_equal(old.classes, shard_classes(rows)):
        first = 0
    return Change(old, old.number, rows, first)


def start_job(change: Change, shelf: StateShelf) -> Job:
    """Return the job of a change, starting at the last state that can still be read."""
    if change.old is None or change.first == 0:
        return Job(change.number, change.rows)
    for first in range(change.first, 0, -1):
        saved = change.old.states[first - 1]
        if saved is None:
            return Job(change.number, change.rows, first)
        data = shelf.read(saved)
        if data is not None:
            trusted = state.trust_of(change.old.model)
            return Job(change.number, change.rows, first, data, trusted)
    return Job(change.number, change.rows)
