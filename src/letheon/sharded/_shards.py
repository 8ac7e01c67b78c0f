"""Shards: whose rows are where, the states kept, and the plan that replaces some.

Who goes into which shard and slice: a pure function of the person's id, risk and the seed.

Nothing about other people enters, so a removal moves nobody, a person's rows stay together and
the look-up of a shard is O(1). With risk tiers (Bourtoule et al., 2021, section VIII), riskier
people share few shards and come in late slices, where forgetting them is cheap.

The states after each stage of a shard: in memory, or in the model's own directory.

A missing or altered file is noticed by its hash and trained again.

Shards with their saved states, and the plan that replaces some of them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon import state
from letheon.data import Ids, Rows
from letheon.exceptions import ShardingWarning, StateError, warn_caller
from letheon.homes import Shelf
from letheon.seeds import Purpose
from letheon.sharded._stages import Blob, Job, Recipe, shard_classes

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """The rule that sends a person to a shard and a slice.

    With T tiers, tier t uses the last ``ceil(S / 2**t)`` shards and the slices from
    ``floor(t R / T)`` up to ``floor((t + 1) R / T)``: riskier means fewer shards, later slices.
    """

    seed: int
    n_shards: int
    n_slices: int
    n_tiers: int

    def shards(self, ids: Ids, tiers: Integers) -> Integers:
        """Return the shard of every id."""
        width = -(-self.n_shards // 2 ** np.minimum(tiers, 62))
        hashes = ids.hashes(self.seed, Purpose.SHARD)
        return self.n_shards - width + _modulo(hashes, width)

    def slices(self, ids: Ids, tiers: Integers) -> Integers:
        """Return the slice of every id."""
        first = tiers * self.n_slices // self.n_tiers
        width = np.maximum((tiers + 1) * self.n_slices // self.n_tiers - first, 1)
        return first + _modulo(ids.hashes(self.seed, Purpose.SLICE), width)

    def candidate_shards(self, ids: Ids) -> list[Integers]:
        """Return, for every tier, the shard where each id would be if it were of that tier."""
        return [self.shards(ids, np.full(len(ids), tier)) for tier in range(self.n_tiers)]


def check_risk_edges(edges: Sequence[float] | None) -> NDArray[np.float64]:
    """Return the edges between tiers as an array; empty when there are none."""
    values = np.asarray([] if edges is None else edges, float)
    if values.ndim != 1 or not np.isfinite(values).all() or (np.diff(values) <= 0).any():
        raise ValueError(f"risk_edges={edges!r}; expected finite, strictly increasing numbers")
    return values


def risk_tiers(risk: Any, ids: Ids, edges: NDArray[np.float64]) -> Integers:
    """Return the tier of every row: how many edges its person's risk reaches.

    `risk` is one number per row, the same for all rows of a person, or a mapping from id to number.
    """
    if len(edges) == 0 and risk is None:
        return np.zeros(len(ids), np.int64)
    if len(edges) == 0 or risk is None:
        raise ValueError(
            "this model has risk_edges, so new people need a risk; give risk="
            if risk is None
            else "risk was given, but the model has no risk_edges; set them, or leave risk out"
        )
    values = _risk_values(risk, ids)
    if np.isnan(values).any():
        raise ValueError("risk holds NaN; give a number for every person")
    _require_one_value_per_person(values, ids)
    return np.searchsorted(edges, values, side="right").astype(np.int64)


def _risk_values(risk: Any, ids: Ids) -> NDArray[np.float64]:
    if isinstance(risk, Mapping):
        people = ids.to_list()
        absent = {person for person in people if person not in risk}
        if absent:
            one = next(iter(absent))
            raise ValueError(f"risk has no value for {len(absent)} id(s), e.g. {one!r}")
        return np.array([risk[person] for person in people], float)
    values = np.asarray(risk, float)
    if values.shape != (len(ids),):
        raise ValueError(f"risk has shape {values.shape}; expected one number per row ({len(ids)})")
    return values


def _require_one_value_per_person(values: NDArray[np.float64], ids: Ids) -> None:
    _, person = np.unique(ids.hashes(0, Purpose.ID_INDEX), return_inverse=True)
    lowest = np.full(person.max(initial=-1) + 1, np.inf)
    np.minimum.at(lowest, person, values)
    if (values != lowest[person]).any():
        raise ValueError("risk differs between rows of one person; give one value per person")


def _modulo(hashes: NDArray[np.uint64], width: Integers) -> Integers:
    return (hashes % width.astype(np.uint64)).astype(np.int64)


@dataclass(frozen=True)
class SavedState:
    """State after a stage: in memory (`data`), or in the model's directory (`data` is None)."""

    digest: str
    sha256: str
    data: bytes | None

    def _digest_state(self) -> dict[str, Any]:
        """Only what was learned counts, not where it is kept."""
        return {"digest": self.digest}


class StateShelf(Shelf):
    """Keeps, reads and destroys the states of one model."""

    def __init__(self, home: str | None) -> None:
        super().__init__(home)
        self._unusable = 0

    def keep(self, blob: Blob | None) -> SavedState | None:
        """Keep a new state; None stands for a stage before any row was seen."""
        if blob is None:
            return None
        if self.store is None:
            return SavedState(blob.digest, hashlib.sha256(blob.data).hexdigest(), blob.data)
        return SavedState(blob.digest, self.store.put(blob.data).sha256, None)

    def read(self, saved: SavedState) -> bytes | None:
        """Return the bytes of a state, or None when they are lost or altered."""
        if saved.data is not None:
            return saved.data
        try:
            if self.store is None:
                raise StateError("the model has no checkpoint_dir any more")
            return self.store.get(state.Checkpoint(saved.sha256))
        except StateError:
            self._unusable += 1
            return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to tell the caller about states that could not be used."""
        if not self._unusable:
            return ()
        what = f"{self._unusable} saved state(s) in {self.home} are missing or altered"
        return (f"{what}; what they held was trained again",)


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


def warn_if_crowded(name: str, n_parts: int, ids: Ids) -> None:
    """Warn if there are more parts, such as ``n_shards``, than people."""
    people = len(np.unique(ids.hashes(0, Purpose.ID_INDEX)))
    if people < n_parts:
        warn_caller(
            f"{name}={n_parts} is more than the {people} people there are; some "
            f"{name.removeprefix('n_')} stay empty",
            ShardingWarning,
        )
