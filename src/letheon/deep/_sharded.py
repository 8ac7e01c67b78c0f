"""SISA for networks (Bourtoule et al., 2021); all shards are trained at once as one network."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from letheon.base import Outcome, Removal, decisive_parameters
from letheon.data import Ids, SlotRows, row_ids
from letheon.deep._adapters import LoRA
from letheon.deep._augment import AugmentRule, make_augmentation, require_images
from letheon.deep._backbone import FROZEN
from letheon.deep._base import net_facts
from letheon.deep._checkpoints import CheckpointChange, CheckpointedNet, with_reason
from letheon.deep._device import check_query_rows
from letheon.deep._loop import Callback, EarlyStop, Progress, TrainingPhase
from letheon.deep._optim import LoopSettings
from letheon.deep._training import Positions, TrainingContext, alive_mask
from letheon.exceptions import CheckpointWarning, CorruptFileError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.removal import Cache, Change, TrainingRows, opaque_repr
from letheon.seeds import Purpose
from letheon.sharded import Assignment, epochs_per_stage, shard_counts, warn_if_crowded
from letheon.terminal import Note, progress_bar
from letheon.validation import POSITIVE, Boolean, Either, Interval, OneOf, OrNone, Rules, Whole

# Shards to train: the first stage, and the parameters before it.
ShardStarts = dict[int, tuple[int, Tensor]]


class ShardGrid(NamedTuple):
    """Rows to train on, held-out rows (masks of the slots), and the epochs of each stage."""

    rows: SlotRows
    is_trained: NDArray[np.bool_]
    is_held_out: NDArray[np.bool_]
    epochs: tuple[int, ...]

    def __repr__(self) -> str:
        return opaque_repr(self)

    def slots_of(self, shard: int, stage: int) -> Positions:
        """Return the positions of the rows that a shard is trained on in a stage.

        These are its slices 0 to `stage`, in order.
        """
        return np.flatnonzero(self.is_trained & self._is_reached(shard, stage))

    def list_held_out(self, shard: int, stage: int) -> Positions:
        """Return the positions of the rows that are held out from a shard in a stage."""
        return np.flatnonzero(self.is_held_out & self._is_reached(shard, stage))

    def _is_reached(self, shard: int, stage: int) -> NDArray[np.bool_]:
        extra = self.rows.extra
        mask: NDArray[np.bool_] = (extra["shard"] == shard) & (extra["slice"] <= stage)
        return mask

    def count_visits(self, n_shards: int) -> NDArray[np.int64]:
        """Return the row visits (rows times epochs) of each of S shards in each of R stages."""
        extra, n_stages = self.rows.extra, len(self.epochs)
        cells = (extra["shard"] * n_stages + extra["slice"])[self.is_trained]
        sizes = np.bincount(cells, minlength=n_shards * n_stages).reshape(n_shards, n_stages)
        visits: NDArray[np.int64] = sizes.cumsum(axis=1) * np.array(self.epochs)
        return visits


def _report_epoch(note: Note, callback: Callback | None, progress: Progress) -> None:
    """Show the loss of an epoch in a progress bar, then call the callback."""
    held_out = progress.validation_loss
    more = "" if held_out is None else f", validation loss {held_out:.4g}"
    note(f"loss {progress.loss:.4g}{more}")
    note()
    if callback is not None:
        callback(progress)


def _first_slices(shards: Positions, slices: Positions) -> dict[int, int]:
    """Return a dict from every affected shard to its first affected slice."""
    return {int(shard): int(slices[shards == shard].min()) for shard in np.unique(shards)}


# Training options that were added after the first files, with their defaults.
_OPTIONS: dict[str, Any] = {
    "augment": None,
    "label_smoothing": 0.0,
    "warm_up": 0.0,
    "max_grad_norm": None,
    "accumulation_steps": 1,
    "test_time_flip": False,
    "validation_fraction": 0.0,
    "n_iter_no_change": 5,
    "row_dtype": "float32",
    "verbose": 0,
}


@dataclass(kw_only=True, eq=False, repr=False)
class SISANet(CheckpointedNet):
    """Networks in shards and slices; see `SISANetClassifier`."""

    facts: ClassVar[MethodFacts] = net_facts(
        "sisa-net",
        applicability="any torch module that classifies or predicts numbers",
        exact=True,
        strength="weak",
        efficiency_parameters=("n_shards", "n_slices"),
        certifiability_parameters=(),
        needs=("incremental-training",),
        search_ranges=shard_counts,
        tasks=("classification", "regression"),
    )
    _parameter_rules: ClassVar[Rules] = {
        "n_shards": Whole(1),
        "n_slices": Whole(1),
        "lane_width": OrNone(Whole(1)),
        "augment": AugmentRule(),
        "warm_up": Interval(0, 1, closed="left"),
        "max_grad_norm": OrNone(POSITIVE),
        "accumulation_steps": Whole(1),
        "test_time_flip": Boolean(),
        "validation_fraction": Interval(0, 1, closed="left"),
        "n_iter_no_change": Whole(1),
        "row_dtype": OneOf(("float32", "int64")),
        "verbose": Either(Boolean(), Whole(0)),
    }
    _later_parameters: ClassVar[dict[str, Any]] = _OPTIONS

    n_shards: int = 5
    n_slices: int = 1
    lane_width: int | None = None
    augment: Any = None
    warm_up: float = 0.0
    max_grad_norm: float | None = None
    accumulation_steps: int = 1
    test_time_flip: bool = False
    validation_fraction: float = 0.0
    n_iter_no_change: int = 5
    row_dtype: str = "float32"
    verbose: int = 0

    def learn(self, X: Any, y: Any, *, ids: Any, callback: Callback | None = None) -> Self:
        """Add rows after the stored rows; the result is the same as if they had been in `fit`.

        Parameters
        ----------
        X, y, callback
            The same as in `fit`; the rows must have the same shape. If a label is new, all shards
            are trained again.
        ids : sequence of int or of str
            The id of each row. Rows of a known id go to its shard and slice.

        Returns
        -------
        self
        """
        return self._learn_rows(ids, lambda: self._prepare_learn(X, y, ids, callback))

    def _digest_state(self) -> dict[str, Any]:
        """Return the state for the digest, without the options that have their defaults.

        So the digests of models that do not use them are those of earlier versions.
        """
        state, used = super()._digest_state(), dict(decisive_parameters(self))
        unused = _OPTIONS.keys() - used.keys()
        return {name: value for name, value in state.items() if name not in unused}

    def _check_settings(self) -> None:
        super()._check_settings()
        epochs_per_stage(int(self.epochs), int(self.n_slices))
        if self.warm_up and callable(self.optimizer):
            raise ValueError(
                f"warm_up={self.warm_up} needs an optimizer that is given by name; a custom "
                "optimizer has its own learning rate"
            )
        if self.warm_up and self.schedule == "one-cycle":
            raise ValueError(
                f"warm_up={self.warm_up} has no effect with schedule='one-cycle', which begins "
                "with a warm-up; use 'constant' or 'cosine'"
            )

    def _loop_settings(self, shape: tuple[int, ...]) -> LoopSettings:
        dtype = getattr(torch, self.row_dtype)
        augmentation = make_augmentation(self.augment, shape, dtype)
        if self.test_time_flip:
            require_images("test_time_flip", shape, dtype)
        limit = self.max_grad_norm
        return replace(
            super()._loop_settings(shape),
            warm_up=float(self.warm_up),
            max_grad_norm=None if limit is None else float(limit),
            accumulation_steps=int(self.accumulation_steps),
            augmentation=augmentation,
        )

    def _predict_with(self, module: nn.Module, batch: Tensor) -> Tensor:
        predictions = super()._predict_with(module, batch)
        if not self.test_time_flip:
            return predictions
        return (predictions + super()._predict_with(module, batch.flip(-1))) / 2

    def _check_training_data(self, X: Any, y: Any, ids: Any) -> TrainingRows:
        data = super()._check_training_data(X, y, ids)
        warn_if_crowded("n_shards", self.n_shards, data.rows.ids)
        return data

    @abstractmethod
    def _append_rows(
        self,
        rows: SlotRows,
        X: NDArray[Any],
        targets: NDArray[Any],
        ids: Ids,
        extra: dict[str, NDArray[np.int64]],
    ) -> TrainingRows:
        """Append rows to a copy of the stored rows."""

    def _assign_shards(self, ids: Ids, seed: int) -> dict[str, NDArray[np.int64]]:
        """Return the shard and the slice of every row; they depend only on its id and the seed."""
        assignment = Assignment(seed, int(self.n_shards), int(self.n_slices), 1)
        tiers = np.zeros(len(ids), np.int64)
        return {"shard": assignment.shards(ids, tiers), "slice": assignment.slices(ids, tiers)}

    def _make_grid(self, rows: SlotRows, seed: int, removed: Positions | None = None) -> ShardGrid:
        epochs = epochs_per_stage(int(self.epochs), int(self.n_slices))
        alive = alive_mask(rows, removed)
        is_held_out = np.zeros(rows.n_slots, bool)
        if self.validation_fraction:
            where = np.flatnonzero(alive)
            hashes = rows.ids_at(where).hashes(seed, Purpose.VALIDATION)
            is_held_out[where] = hashes < np.uint64(self.validation_fraction * 2.0**64)
        return ShardGrid(rows, alive & ~is_held_out, alive & is_held_out, epochs)

    def _train_all(self, data: TrainingRows, seed: int, callback: Callback | None) -> Change:
        data.rows.extra.update(self._assign_shards(data.rows.ids, seed))
        context, grid = self._new_context(data, seed), self._make_grid(data.rows, seed)
        template, n_shards, last = context.template, int(self.n_shards), len(grid.epochs) - 1
        store, attributes = self._new_checkpoints(max(n_shards * last, 1), template.n_parameters)
        initial = [template.initial_flat(shard).to(context.device) for shard in range(n_shards)]
        with store.fill_or_destroy():
            flat, starts = (
                torch.stack(initial),
                {i: (0, start) for i, start in enumerate(initial)},
            )
            self._train_shards(context, grid, starts, flat, store.put, callback)
            owned = [grid.slots_of(shard, last) for shard in range(n_shards)]
            nets = self._make_nets(context, flat, owned, data.classes)
        return self._fit_change(data, context, nets, {"shards": n_shards}, **attributes)

    def _state_index(self, shard: int, stage: int) -> int:
        """Return the index in the checkpoint store of a shard's parameters after a stage."""
        return shard * (int(self.n_slices) - 1) + stage

    def _train_shards(
        self,
        context: TrainingContext,
        grid: ShardGrid,
        starts: ShardStarts,
        flat: Tensor,
        keep: Callable[[int, Tensor], None],
        callback: Callback | None,
    ) -> None:
        """Train the shards in `starts`, each from its own start.

        `keep` is called with the states between stages; the final parameters are written to `flat`.
        """
        width = self._lane_count(context.device)
        groups = sorted({shard // width for shard in starts})
        begin = min((first for first, _ in starts.values()), default=0)
        n_epochs = len(groups) * sum(grid.epochs[begin:])
        with progress_bar("Training", n_epochs, is_shown=bool(self.verbose)) as note:
            report = partial(_report_epoch, note, callback) if self.verbose else callback
            for number, group in enumerate(groups):
                lanes = tuple(range(group * width, (group + 1) * width))
                place = number, len(groups), begin
                self._train_group(context, grid, starts, lanes, flat, keep, report, place)

    def _train_group(
        self,
        context: TrainingContext,
        grid: ShardGrid,
        starts: ShardStarts,
        lanes: tuple[int, ...],
        flat: Tensor,
        keep: Callable[[int, Tensor], None],
        callback: Callback | None,
        place: tuple[int, int, int],
    ) -> None:
        """Train the shards of one group of lanes, from the first stage that any group needs.

        `place` has the number of the group, the number of groups, and this stage.
        """
        (number, n_groups, begin), n_stages = place, len(grid.epochs) - place[2]
        loop = context.get_loop(lanes, lanes[0] // len(lanes))
        empty = torch.zeros(context.template.n_parameters, device=context.device)
        states = torch.stack([starts[lane][1] if lane in starts else empty for lane in lanes])
        for stage in range(begin, len(grid.epochs)):
            is_trained = [lane in starts and starts[lane][0] <= stage for lane in lanes]
            slots = tuple(
                grid.slots_of(lane, stage) if is_on else None
                for lane, is_on in zip(lanes, is_trained, strict=True)
            )
            stop = self._make_stop(context, grid, lanes, slots, stage)
            phase = TrainingPhase(stage, slots, grid.epochs[stage], kind="stage", stop=stop)
            at = number * n_stages + stage - begin, n_groups * n_stages
            states = loop.train(states, phase, callback, at)
            for lane, state, is_on in zip(lanes, states, is_trained, strict=True):
                if is_on and stage < len(grid.epochs) - 1:
                    keep(self._state_index(lane, stage), state)
                elif is_on:
                    flat[lane] = state

    def _make_stop(
        self,
        context: TrainingContext,
        grid: ShardGrid,
        lanes: tuple[int, ...],
        slots: tuple[Positions | None, ...],
        stage: int,
    ) -> EarlyStop | None:
        """Return the held-out rows of the lanes of a stage, or None without held-out rows."""
        if not self.validation_fraction:
            return None
        held_out = [grid.list_held_out(lane, stage) for lane in lanes]

        def evaluate(flat: Tensor) -> Tensor:
            losses = flat.new_full((len(flat),), torch.nan)
            for number, (rows, trained) in enumerate(zip(held_out, slots, strict=True)):
                if trained is not None and len(rows):
                    losses[number] = context.mean_loss(flat[number], rows, trained)
            return losses

        return EarlyStop(evaluate, int(self.n_iter_no_change))

    def _lane_count(self, device: torch.device) -> int:
        if self.lane_width is not None:
            return int(self.lane_width)
        return int(self.n_shards) if device.type == "cuda" else 1

    def _prepare_removal(
        self, removal: Removal, callback: Callback | None
    ) -> tuple[Change, CheckpointChange | None]:
        extra, removed = self.rows_.extra, removal.where
        touched = _first_slices(extra["shard"][removed], extra["slice"][removed])
        grid = self._make_grid(self.rows_, self.seed_, removed)
        with self._current_checkpoints().begin_change() as aside:
            rebuilt = self._retrain_shards(self._current_context(), grid, touched, aside, callback)
            change = self._removal_change(removal, *rebuilt)
        return change, aside

    def _retrain_shards(
        self,
        context: TrainingContext,
        grid: ShardGrid,
        touched: dict[int, int],
        aside: CheckpointChange,
        callback: Callback | None,
    ) -> tuple[dict[str, Any], Outcome]:
        """Train the affected shards again and write their states to `aside`.

        Return the new fitted attributes and the outcome for the receipt.
        """
        n_shards, last = int(self.n_shards), len(grid.epochs) - 1
        if self.environment_ != self._describe_environment():
            # Training never continues from states of other library versions: the result would
            # differ from a fresh fit.
            touched = dict.fromkeys(range(n_shards), 0)
        messages = list[str]()
        starts = {
            shard: self._find_start(context, shard, first, messages)
            for shard, first in touched.items()
        }
        flat = self.nets_.flat.to(context.device).clone()
        self._train_shards(context, grid, starts, flat, aside.set, callback)
        owned = [
            grid.slots_of(shard, last) if shard in starts else None for shard in range(n_shards)
        ]
        nets = self._make_nets(context, flat, owned, self.nets_.classes)
        visits = grid.count_visits(n_shards)
        done = sum(int(visits[shard, first:].sum()) for shard, (first, _) in starts.items())
        n_stages = sum(last + 1 - first for first, _ in starts.values())
        outcome = Outcome(
            done / max(int(visits.sum()), 1),
            {"shards": len(starts), "stages": n_stages},
            tuple(map(CheckpointWarning, messages)),
        )
        return {"nets_": nets, **self._remember_settings()}, outcome

    def _find_start(
        self, context: TrainingContext, shard: int, first: int, messages: list[str]
    ) -> tuple[int, Tensor]:
        """Return the first stage to train, and the parameters to start it from.

        These are the last readable state at or before stage `first`; if none can be read, training
        starts at stage 0. `messages` gets a text for each unreadable state.
        """
        for stage in range(first, 0, -1):
            try:
                start = self.vault_.get(self._state_index(shard, stage - 1))
            except CorruptFileError as error:
                messages.append(f"{error}; its stages were trained again")
                continue
            assert start is not None
            return stage, start
        return 0, context.template.initial_flat(shard).to(context.device)

    def _prepare_learn(
        self, X: Any, y: Any, ids: Any, callback: Callback | None
    ) -> tuple[Change, CheckpointChange | None]:
        new_X = check_query_rows(self, X, self.shape_)
        new_y = self._copy_targets(y, new_X)
        rows, new_ids = self.rows_.compact_copy(), row_ids(ids, len(new_y))
        placed = self._assign_shards(new_ids, self.seed_)
        data = self._append_rows(rows, new_X, new_y, new_ids, placed)
        lost = self._explain_loss()
        with self._training_run():
            if lost is not None:
                return with_reason(self._train_all(data, self.seed_, callback), lost), None
            # Before training: a new class replaces the store, whose files must be destroyed.
            store = self._current_checkpoints()
            if data.classes is not None and not np.array_equal(data.classes, self.nets_.classes):
                return self._train_all(data, self.seed_, callback), None
            context = self._make_context(rows, self._current_context().template, self.seed_)
            touched = _first_slices(placed["shard"], placed["slice"])
            with store.begin_change() as aside:
                attributes, outcome = self._retrain_shards(
                    context, self._make_grid(rows, self.seed_), touched, aside, callback
                )
        attributes |= {"rows_": rows, "counts_": data.counts, "cache_": Cache(context)}
        return Change(attributes, outcome), aside

    def _make_guarantee(self) -> Guarantee:
        is_fixed = self.environment_["kernels"] == "fixed"
        kernels = "same-libraries-and-device" if is_fixed else "equal-but-for-rounding"
        frozen = (FROZEN,) if isinstance(self.module, LoRA) else ()
        return Guarantee(
            kind="exact",
            reference="Bourtoule et al. 2021, section V; oblivious by Gupta et al. 2021",
            assumptions=("seed-independent-of-requests", kernels, *frozen),
            residual_state=self._list_residue(),
        )
