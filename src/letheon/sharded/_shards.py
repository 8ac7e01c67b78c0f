"""Shards: assignment of rows, saved states, training of one shard, and replacement.

*Assignment.* A person's shard and slice depend only on the person's id and risk, and on the seed.
They do not depend on other people, so a removal moves no other row, a person's rows stay together,
and a shard is found in constant time. With risk tiers (Bourtoule et al., 2021, section VIII),
people with a higher risk share few shards and late slices, where forgetting is cheap.

*States* after each stage of a shard are stored in memory, or in the model's own directory. A
missing or altered file is detected by its hash, and its stage is trained again.

*Training* of one shard is the task that is sent to a worker. It is a pure function of its
arguments, so it may be run again after a crash. Every stage starts from the *decoded* state of the
previous stage, both in `fit` and in `forget`. The result of a stage therefore depends only on this
state and on the rows of the stage.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon import state
from letheon.base import Outcome
from letheon.checkpoint_home import CheckpointDirectory
from letheon.data import Ids, Rows
from letheon.exceptions import ShardingWarning, StateError, UntrustedClassError, warn_caller
from letheon.inner_estimator import (
    SeedSlots,
    clone_with_seed,
    fix_environment,
    inner_training,
    require_acceptable,
    require_encodable,
    seed_globally,
    slice_weights,
)
from letheon.seeds import Purpose, library_seed
from letheon.sharded._plan import StageData

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class ShardRecipe:
    """Training settings that all shards share.

    `epochs` has the number of passes of each stage. It is None if a shard is trained by one call of
    `fit`.
    """

    template: Any
    seed: int
    n_slices: int
    epochs: tuple[int, ...] | None
    stage_data: StageData
    is_classifier: bool
    config: dict[str, Any]

    def stage_rows(self, ends: tuple[int, ...], stage: int) -> tuple[int, int]:
        """Return the positions of the first row of a stage and of the row after its last row."""
        if self.stage_data == "cumulative" or stage == 0:
            return 0, ends[stage]
        return ends[stage - 1], ends[stage]

    def count_visits(self, rows: Rows, first: int = 0) -> int:
        """Return the number of row visits of training from stage `first` on."""
        ends = slice_ends(rows, self.n_slices)
        if self.epochs is None:
            return ends[-1]
        spans = (self.stage_rows(ends, stage) for stage in range(first, self.n_slices))
        return sum(
            passes * (end - begin)
            for passes, (begin, end) in zip(self.epochs[first:], spans, strict=True)
        )


class Blob(NamedTuple):
    """An encoded state: its bytes and its digest."""

    data: bytes
    digest: str


@dataclass(frozen=True)
class ShardTraining:
    """A shard to train from stage `first` on, starting from the encoded state `start`."""

    number: int
    rows: Rows
    first: int = 0
    start: bytes | None = None
    trusted: frozenset[type] = frozenset()


class ShardFit(NamedTuple):
    """Result of training a shard: the model, and the states after all stages but the last."""

    model: Any
    states: tuple[Blob | None, ...]


@dataclass(frozen=True)
class ConstantModel:
    """Model of a shard that has only one class; it always predicts this class."""

    label: Any


def slice_ends(rows: Rows, n_slices: int) -> tuple[int, ...]:
    """Return the position after the last row of each slice; the rows are ordered by slice."""
    ends = np.searchsorted(rows.extra["slice"], np.arange(n_slices), side="right")
    return tuple(ends.tolist())


def shard_classes(rows: Rows) -> NDArray[Any]:
    """Return the sorted distinct labels of the rows of a shard."""
    return np.unique(np.asarray(rows.y))


def train_shard(recipe: ShardRecipe, job: ShardTraining) -> ShardFit:
    """Train one shard; an error of the inner estimator is raised with the number of the shard."""
    rows = f"{len(job.rows)} row(s)"
    with (
        inner_training(f"shard {job.number} with {rows}; fewer shards have more rows each"),
        fix_environment(recipe.config, _stage_seed(recipe, job, 0)),
    ):
        return _train_stages(recipe, job)


def _train_stages(recipe: ShardRecipe, job: ShardTraining) -> ShardFit:
    nothing = (None,) * (recipe.n_slices - 1 - job.first)
    if len(job.rows) == 0:
        return ShardFit(None, nothing)
    if recipe.is_classifier and len(classes := shard_classes(job.rows)) == 1:
        require_acceptable(recipe.template, job.rows.X)
        return ShardFit(ConstantModel(classes[0].item()), nothing)
    states: list[Blob | None] = list(nothing)
    if recipe.epochs is None:
        model = clone_with_seed(recipe.template, recipe.seed, Purpose.STAGE, job.number, 0, 0)
        weights = slice_weights(job.rows, 0, len(job.rows))
        model.fit(*job.rows.slice(0, len(job.rows)), **weights)
    else:
        trusted, ends, states = job.trusted, slice_ends(job.rows, recipe.n_slices), []
        model = None if job.start is None else _decode_own(job.start, trusted)
        for stage in range(job.first, recipe.n_slices):
            model = _train_stage(recipe, job, ends, stage, model)
            if stage < recipe.n_slices - 1:
                blob, model, trusted = _save_state(model, trusted)
                states.append(blob)
    require_encodable(model, recipe.template, job.rows)
    return ShardFit(model, tuple(states))


def _train_stage(
    recipe: ShardRecipe, job: ShardTraining, ends: tuple[int, ...], stage: int, model: Any
) -> Any:
    assert recipe.epochs is not None
    begin, end = recipe.stage_rows(ends, stage)
    if begin == end:
        return model
    first_call: dict[str, Any] = {}
    if model is None:
        model = clone_with_seed(recipe.template, recipe.seed, Purpose.STAGE, job.number, stage, 0)
        if recipe.is_classifier:
            first_call["classes"] = shard_classes(job.rows)
    X, y = job.rows.slice(begin, end)
    weights = slice_weights(job.rows, begin, end)
    seeds = SeedSlots(model)
    seed_globally(_stage_seed(recipe, job, stage))
    for epoch in range(recipe.epochs[stage]):
        seeds.fill(recipe.seed, Purpose.STAGE, job.number, stage, epoch)
        model.partial_fit(X, y, **weights, **first_call)
        first_call = {}
    return model


def _stage_seed(recipe: ShardRecipe, job: ShardTraining, stage: int) -> int:
    return library_seed(recipe.seed, Purpose.STAGE, job.number, stage)


def _decode_own(data: bytes, trusted: frozenset[Any]) -> Any:
    """Decode a state that letheon encoded itself, without the memory limit for files."""
    return state.decode(data, trusted=trusted, max_memory=state.UNLIMITED)


def _save_state(model: Any, trusted: frozenset[Any]) -> tuple[Blob | None, Any, frozenset[Any]]:
    """Encode the state of a model and decode it again.

    Return the encoded state, the decoded model, and the classes that had to be trusted.
    """
    if model is None:
        return None, None, trusted
    data = state.encode(model)
    try:
        copy = _decode_own(data, trusted)
    except UntrustedClassError:  # the first state, or a class introduced by later rows
        trusted = state.trust_of(model)
        copy = _decode_own(data, trusted)
    return Blob(data, state.digest(copy)), copy, trusted


@dataclass(frozen=True)
class Assignment:
    """The rule that assigns a person to a shard and a slice.

    With S shards, R slices and T tiers, tier t uses the last ``ceil(S / 2**t)`` shards and the
    slices from ``floor(t R / T)`` up to, but not including, ``floor((t + 1) R / T)``. Higher tiers
    thus use fewer shards and later slices.

    Parameters
    ----------
    seed : int
        Seed of the model.
    n_shards, n_slices, n_tiers : int
        Numbers of shards, slices and tiers.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.data import as_ids
    >>> from letheon.sharded import Assignment
    >>> rule = Assignment(seed=0, n_shards=4, n_slices=1, n_tiers=1)
    >>> shards = rule.shards(as_ids(["anna", "ben", "anna"]), np.zeros(3, np.int64))
    >>> bool(shards[0] == shards[2])
    True
    """

    seed: int
    n_shards: int
    n_slices: int
    n_tiers: int

    def shards(self, ids: Ids, tiers: Integers) -> Integers:
        """Return the number of the shard of every id."""
        width = -(-self.n_shards // 2 ** np.minimum(tiers, 62))
        hashes = ids.hashes(self.seed, Purpose.SHARD)
        return self.n_shards - width + _reduce_hashes(hashes, width)

    def slices(self, ids: Ids, tiers: Integers) -> Integers:
        """Return the number of the slice of every id."""
        first = tiers * self.n_slices // self.n_tiers
        width = np.maximum((tiers + 1) * self.n_slices // self.n_tiers - first, 1)
        return first + _reduce_hashes(ids.hashes(self.seed, Purpose.SLICE), width)


def check_risk_edges(edges: Sequence[float] | None) -> NDArray[np.float64]:
    """Return the edges between risk tiers as an array; an empty array for None."""
    values = np.asarray([] if edges is None else edges, float)
    if values.ndim != 1 or not np.isfinite(values).all() or (np.diff(values) <= 0).any():
        raise ValueError(
            f"risk_edges={edges!r} is not valid: expected finite, strictly increasing numbers"
        )
    return values


def risk_tiers(risk: Any, ids: Ids, edges: NDArray[np.float64]) -> Integers:
    """Return the risk tier of every row: how many edges the person's risk reaches.

    `risk` is one number per row, the same for all rows of a person, or a mapping from id to number.
    """
    if len(edges) == 0 and risk is None:
        return np.zeros(len(ids), np.int64)
    if len(edges) == 0 or risk is None:
        raise ValueError(
            "risk is required for new people, because the model has risk_edges; pass risk=..."
            if risk is None
            else "risk was given, but the model has no risk_edges; set risk_edges, or omit risk"
        )
    values = _risk_values(risk, ids)
    if np.isnan(values).any():
        raise ValueError("risk contains NaN; expected a number for every person")
    _, person = np.unique(ids.hashes(0, Purpose.ID_INDEX), return_inverse=True)
    lowest = np.full(person.max(initial=-1) + 1, np.inf)
    np.minimum.at(lowest, person, values)
    if (values != lowest[person]).any():
        raise ValueError("risk differs between rows of one person; expected one value per person")
    return np.searchsorted(edges, values, side="right").astype(np.int64)


def _risk_values(risk: Any, ids: Ids) -> NDArray[np.float64]:
    if isinstance(risk, Mapping):
        people = ids.to_list()
        absent = {person for person in people if person not in risk}
        if absent:
            example = next(iter(absent))
            raise ValueError(f"risk has no value for {len(absent)} id(s), for example {example!r}")
        return np.array([risk[person] for person in people], float)
    values = np.asarray(risk, float)
    if values.shape != (len(ids),):
        raise ValueError(
            f"risk has shape {values.shape}; expected one number per row, ({len(ids)},)"
        )
    return values


def _reduce_hashes(hashes: NDArray[np.uint64], width: Integers) -> Integers:
    return (hashes % width.astype(np.uint64)).astype(np.int64)


@dataclass(frozen=True)
class SavedState:
    """A state after a stage: in memory, or in the model's directory if `data` is None."""

    digest: str
    sha256: str
    data: bytes | None

    def _digest_state(self) -> dict[str, Any]:
        """Return what the digest of a model contains: the state, but not where it is stored."""
        return {"digest": self.digest}


class ShardStateStore(CheckpointDirectory):
    """The states of one model: in memory, or in its checkpoint directory."""

    def __init__(self, home: str | None) -> None:
        super().__init__(home)
        self._unusable = 0

    def keep_state(self, blob: Blob | None) -> SavedState | None:
        """Store a new state; None, the state of a stage without rows so far, is not stored."""
        if blob is None:
            return None
        if self.store is None:
            return SavedState(blob.digest, hashlib.sha256(blob.data).hexdigest(), blob.data)
        return SavedState(blob.digest, self.store.put(blob.data).sha256, None)

    def read_state(self, saved: SavedState) -> bytes | None:
        """Return the bytes of a state, or None if they are missing or altered."""
        if saved.data is not None:
            return saved.data
        try:
            if self.store is None:
                raise StateError("the model has no checkpoint directory")
            return self.store.get(state.CheckpointName(saved.sha256))
        except StateError:
            self._unusable += 1
            return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about states that could not be used."""
        if not self._unusable:
            return ()
        problem = f"{self._unusable} saved state(s) in {self.home} are missing or altered"
        return (f"{problem}; their stages were trained again",)


@dataclass(frozen=True)
class Shard:
    """A shard: rows ordered by slice, states after all stages but the last, final model."""

    number: int
    rows: Rows
    states: tuple[SavedState | None, ...]
    model: Any

    @cached_property
    def classes(self) -> NDArray[Any]:
        """Sorted distinct labels of the shard."""
        return shard_classes(self.rows)


@dataclass(frozen=True)
class Ensemble:
    """All shards of one model.

    It is replaced as a whole, so that a concurrent prediction never sees a partial update.
    """

    assignment: Assignment
    shards: tuple[Shard, ...]
    classes: NDArray[Any] | None

    @property
    def models(self) -> list[Any]:
        """Models of the shards that have rows."""
        return [shard.model for shard in self.shards if shard.model is not None]

    @property
    def files(self) -> frozenset[str]:
        """File names (SHA-256) of the states in the model's checkpoint directory."""
        return frozenset(
            saved.sha256
            for shard in self.shards
            for saved in shard.states
            if saved is not None and saved.data is None
        )

    def find_rows(self, wanted: Ids) -> tuple[dict[int, Integers], Integers]:
        """Return the positions of the rows of these ids, by shard, and the tier of each id.

        The tier of an unknown id is -1.
        """
        tiers = np.full(len(wanted), -1, np.int64)
        where: dict[int, Integers] = {}
        for tier in range(self.assignment.n_tiers):
            shards = self.assignment.shards(wanted, np.full(len(wanted), tier))
            for number in np.unique(shards).tolist():
                candidates, rows = np.flatnonzero(shards == number), self.shards[number].rows
                matches = rows.index.find(wanted.take(candidates))
                # Two tiers may share a shard, so the tier is read from the row.
                is_known = matches.has_rows
                tiers[candidates[is_known]] = rows.extra["tier"][matches.any_row[is_known]]
                if len(matches.positions):
                    earlier = where.get(number, np.empty(0, np.int64))
                    where[number] = np.union1d(earlier, matches.positions)
        return where, tiers


class ShardChange(NamedTuple):
    """A change to a shard: the old shard (None if it is new), and the training to run."""

    old: Shard | None
    job: ShardTraining


class Replacement(NamedTuple):
    """A prepared change to a model: the new ensemble, its directory, and the outcome."""

    ensemble: Ensemble
    home: str | None
    outcome: Outcome


def change_rows(
    old: Shard, rows: Rows, touched: NDArray[np.int64], recipe: ShardRecipe
) -> ShardChange:
    """Return the change that gives a shard new rows, which differ only in the slices `touched`.

    The first call of `partial_fit` receives the shard's classes. If these change, the shard is
    retrained from its first stage.
    """
    first = int(touched.min()) if recipe.epochs is not None else 0
    if recipe.is_classifier and not np.array_equal(old.classes, shard_classes(rows)):
        first = 0
    return ShardChange(old, ShardTraining(old.number, rows, first))


def resume_training(change: ShardChange, store: ShardStateStore) -> ShardTraining:
    """Return the training of a change; it starts from the last state that can be read."""
    old, job = change
    if old is None:
        return job
    for first in range(job.first, 0, -1):
        saved = old.states[first - 1]
        if saved is None:
            return replace(job, first=first)
        data = store.read_state(saved)
        if data is not None:
            return replace(job, first=first, start=data, trusted=state.trust_of(old.model))
    return replace(job, first=0)


def warn_if_crowded(name: str, n_parts: int, ids: Ids) -> None:
    """Warn if there are fewer people than parts; `name` is the setting, for example n_shards.

    Parameters
    ----------
    name : str
        Name of the setting.
    n_parts : int
        Its value.
    ids : Ids
        The ids of the rows; equal ids are one person.

    Warns
    -----
    ShardingWarning
        There are fewer people than parts.

    Examples
    --------
    >>> import warnings
    >>> from letheon.data import as_ids
    >>> from letheon.sharded import warn_if_crowded
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     warn_if_crowded("n_shards", 3, as_ids(["anna", "ben", "anna"]))
    >>> len(caught)
    1
    """
    people = len(np.unique(ids.hashes(0, Purpose.ID_INDEX)))
    if people < n_parts:
        warn_caller(
            f"{name}={n_parts} exceeds the number of people ({people}); some "
            f"{name.removeprefix('n_')} stay empty",
            ShardingWarning,
        )
