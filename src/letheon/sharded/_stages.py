"""Training one shard: the task that travels to a worker.

A pure function of its arguments, so a task may be run again after a crash. Every stage starts
from the *decoded* state of the one before, in `fit` as in `forget`, so ``Train(. | h)`` depends on
h only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon import state
from letheon.data import Rows
from letheon.exceptions import UntrustedClassError
from letheon.inner import (
    SeedSlots,
    controlled,
    inner_training,
    require_acceptable,
    require_encodable,
    seed_globally,
    seeded_clone,
)
from letheon.seeds import Purpose, library_seed
from letheon.sharded._plan import StageData


@dataclass(frozen=True)
class Recipe:
    """How shards are trained; the same for all of them.

    `epochs` holds the passes of each stage, or is None when the whole shard is given to `fit`.
    """

    template: Any
    seed: int
    n_slices: int
    epochs: tuple[int, ...] | None
    stage_data: StageData
    is_classifier: bool
    config: dict[str, Any]

    def span(self, ends: tuple[int, ...], stage: int) -> tuple[int, int]:
        """Return the rows that a stage sees, as begin and end."""
        if self.stage_data == "cumulative" or stage == 0:
            return 0, ends[stage]
        return ends[stage - 1], ends[stage]

    def visits(self, ends: tuple[int, ...], first: int = 0) -> int:
        """Return how many rows training from stage `first` on visits, epochs counted."""
        if self.epochs is None:
            return ends[-1]
        spans = (self.span(ends, stage) for stage in range(first, self.n_slices))
        return sum(
            passes * (end - begin)
            for passes, (begin, end) in zip(self.epochs[first:], spans, strict=True)
        )


class Blob(NamedTuple):
    """A saved state in transit: its bytes and its digest."""

    data: bytes
    digest: str


@dataclass(frozen=True)
class Job:
    """One shard to train, from stage `first` on, starting at the state `start`."""

    number: int
    rows: Rows
    first: int = 0
    start: bytes | None = None
    trusted: frozenset[type] = frozenset()


class Trained(NamedTuple):
    """What a worker sends back: the model and the states after stages first..R-2."""

    model: Any
    states: tuple[Blob | None, ...]


@dataclass(frozen=True)
class ConstantModel:
    """Model of a shard that holds one class only: it always says so."""

    label: Any


def slice_ends(rows: Rows, n_slices: int) -> tuple[int, ...]:
    """Return where each slice ends in rows that are ordered by slice."""
    ends = np.searchsorted(rows.extra["slice"], np.arange(n_slices), side="right")
    return tuple(int(end) for end in ends)


def shard_classes(rows: Rows) -> NDArray[Any]:
    """Return the labels a shard holds, sorted."""
    return np.unique(np.asarray(rows.y))


def train_shard(recipe: Recipe, job: Job) -> Trained:
    """Train one shard; errors of the inner estimator say which shard it was."""
    rows = f"{len(job.rows)} row(s)"
    with (
        inner_training(f"shard {job.number}, which holds {rows}; fewer shards give each more"),
        controlled(recipe.config, _stage_seed(recipe, job, 0)),
    ):
        return _train(recipe, job)


def _train(recipe: Recipe, job: Job) -> Trained:
    nothing = (None,) * (recipe.n_slices - 1 - job.first)
    if len(job.rows) == 0:
        return Trained(None, nothing)
    if recipe.is_classifier and len(classes := shard_classes(job.rows)) == 1:
        require_acceptable(recipe.template, job.rows.X)
        return Trained(ConstantModel(classes[0].item()), nothing)
    if recipe.epochs is None:
        model = seeded_clone(recipe.template, recipe.seed, Purpose.STAGE, job.number, 0, 0)
        trained = Trained(model.fit(*job.rows.part(0, len(job.rows))), nothing)
    else:
        trained = _train_stages(recipe, job)
    require_encodable(trained.model, recipe.template, job.rows)
    return trained


def _train_stages(recipe: Recipe, job: Job) -> Trained:
    model = None if job.start is None else _decode_own(job.start, job.trusted)
    ends = slice_ends(job.rows, recipe.n_slices)
    states: list[Blob | None] = []
    trusted = job.trusted
    for stage in range(job.first, recipe.n_slices):
        model = _train_stage(recipe, job, ends, stage, model)
        if stage < recipe.n_slices - 1:
            blob, model, trusted = _save(model, trusted)
            states.append(blob)
    return Trained(model, tuple(states))


def _train_stage(recipe: Recipe, job: Job, ends: tuple[int, ...], stage: int, model: Any) -> Any:
    assert recipe.epochs is not None
    begin, end = recipe.span(ends, stage)
    if begin == end:
        return model
    first_call: dict[str, Any] = {}
    if model is None:
        model = seeded_clone(recipe.template, recipe.seed, Purpose.STAGE, job.number, stage, 0)
        if recipe.is_classifier:
            first_call["classes"] = shard_classes(job.rows)
    X, y = job.rows.part(begin, end)
    seeds = SeedSlots(model)
    seed_globally(_stage_seed(recipe, job, stage))
    for epoch in range(recipe.epochs[stage]):
        seeds.fill(recipe.seed, Purpose.STAGE, job.number, stage, epoch)
        model.partial_fit(X, y, **first_call)
        first_call = {}
    return model


def _stage_seed(recipe: Recipe, job: Job, stage: int) -> int:
    return library_seed(recipe.seed, Purpose.STAGE, job.number, stage)


def _decode_own(data: bytes, trusted: frozenset[Any]) -> Any:
    """Decode a state that this process encoded; the limit for files does not apply."""
    return state.decode(data, trusted=trusted, max_memory=state.UNLIMITED)


def _save(model: Any, trusted: frozenset[Any]) -> tuple[Blob | None, Any, frozenset[Any]]:
    """Return a state, the model read back from it, and what had to be trusted for that."""
    if model is None:
        return None, None, trusted
    data = state.encode(model)
    try:
        copy = _decode_own(data, trusted)
    except UntrustedClassError:  # the first state, or a class that came with later rows
        trusted = state.trust_of(model)
        copy = _decode_own(data, trusted)
    return Blob(data, state.digest(copy)), copy, trusted


def total_visits(recipe: Recipe, blocks: Iterable[Rows]) -> int:
    """Return how many rows a fresh fit on these shards visits, epochs counted."""
    return sum(recipe.visits(slice_ends(rows, recipe.n_slices)) for rows in blocks)
