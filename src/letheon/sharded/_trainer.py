"""Replacing shards: train them aside, keep their states, assemble a new ensemble."""

from dataclasses import dataclass

import numpy as np

from letheon.parallel import run_tasks
from letheon.sharded._assign import Assignment
from letheon.sharded._shards import Change, Ensemble, Replacement, Shard, start_job
from letheon.sharded._stages import (
    Job,
    Recipe,
    Trained,
    slice_ends,
    total_visits,
    train_shard,
)
from letheon.sharded._states import StateShelf


@dataclass(frozen=True)
class Trainer:
    """Everything it takes to train shards of one model; changes nothing that is in use."""

    recipe: Recipe
    assignment: Assignment
    shelf: StateShelf
    n_jobs: int | None

    def replace(self, shards: tuple[Shard, ...], changes: list[Change]) -> Replacement:
        """Train the changed shards and return the ensemble with them in place of the old ones.

        On failure no new state stays behind.
        """
        jobs = [start_job(change, self.shelf) for change in changes]
        payloads = [(self.recipe, job) for job in jobs]
        with self.shelf.all_or_nothing():
            results = run_tasks(train_shard, payloads, n_jobs=self.n_jobs)
            fresh = self._keep(changes, jobs, results)
        numbers = range(self.assignment.n_shards)
        ensemble = self._assemble(tuple(fresh[n] if n in fresh else shards[n] for n in numbers))
        work, rebuilt = self._cost(jobs, ensemble)
        return Replacement(ensemble, self.shelf.home, work, rebuilt, self.shelf.warnings)

    def _keep(
        self, changes: list[Change], jobs: list[Job], results: list[Trained]
    ) -> dict[int, Shard]:
        """Return the new shards, their states kept."""
        fresh = {}
        for change, job, result in zip(changes, jobs, results, strict=True):
            before = () if change.old is None else change.old.states[: job.first]
            states = (*before, *(self.shelf.keep(blob) for blob in result.states))
            fresh[change.number] = Shard(change.number, change.rows, states, result.model)
        return fresh

    def _assemble(self, shards: tuple[Shard, ...]) -> Ensemble:
        classes = None
        if self.recipe.is_classifier:
            classes = np.unique(np.concatenate([s.classes for s in shards if len(s.rows)]))
        return Ensemble(self.assignment, shards, classes)

    def _cost(self, jobs: list[Job], ensemble: Ensemble) -> tuple[float, dict[str, int]]:
        """Return row visits as a share of a fresh fit's, and the shards and stages trained."""
        slices = self.recipe.n_slices
        visits = sum(self.recipe.visits(slice_ends(job.rows, slices), job.first) for job in jobs)
        naive = total_visits(self.recipe, (shard.rows for shard in ensemble.shards))
        stages = sum(slices - job.first for job in jobs)
        return visits / max(naive, 1), {"shards": len(jobs), "stages": stages}
