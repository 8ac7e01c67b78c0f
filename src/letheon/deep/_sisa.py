"""SISA for networks (Bourtoule et al., 2021); all shards are trained at once as one network."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from letheon.base import Outcome, Removal, decisive_parameters
from letheon.data import Ids, SlotRows, row_ids
from letheon.deep._adapters import LoRA
from letheon.deep._augment import AugmentRule, make_augmentation, require_images
from letheon.deep._backbone import FROZEN
from letheon.deep._base import Floats, TrainingContext, net_facts
from letheon.deep._checkpoints import CheckpointChange, CheckpointedNet, with_reason
from letheon.deep._device import check_query_rows
from letheon.deep._loop import Callback, EarlyStop, TrainingPhase, report_epoch
from letheon.deep._optim import LoopSettings
from letheon.deep._slots import Positions, ShardGrid, alive_mask, find_first_slices
from letheon.deep._tasks import NetClassifierMixin, NetRegressorMixin
from letheon.exceptions import CheckpointWarning, CorruptFileError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.removal import Cache, Change, TrainingRows
from letheon.seeds import Purpose
from letheon.sharded import Assignment, epochs_per_stage, shard_counts, warn_if_crowded
from letheon.terminal import progress_bar
from letheon.validation import POSITIVE, Boolean, Either, Interval, OneOf, OrNone, Rules, Whole

# Shards to train: the first stage, and the parameters before it.
ShardStarts = dict[int, tuple[int, Tensor]]


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
            report = partial(report_epoch, note, callback) if self.verbose else callback
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
        touched = find_first_slices(extra["shard"][removed], extra["slice"][removed])
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
            touched = find_first_slices(placed["shard"], placed["slice"])
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


@dataclass(kw_only=True, eq=False, repr=False)
class SISANetClassifier(NetClassifierMixin, SISANet):
    """Any PyTorch module, trained in shards and slices, so that forgetting is fast and exact.

    Ids are distributed over `n_shards` shards by a keyed hash. Every shard trains its own network,
    slice by slice: stage k uses slices 1..k. To forget rows, only their shards are trained again,
    each from its first slice with such rows; the state before that slice is stored. On a GPU the
    networks of all shards are trained at once as one stacked network. With ``n_shards=1`` and
    ``n_slices=1`` this is naive retraining.

    Parameters
    ----------
    module : callable or None, default=None
        Factory of the network: takes the shape of a row and the number of classes (or nothing) and
        returns a `torch.nn.Module` whose output is one logit per class. None means `MLP()`.
    n_shards : int, default=5
        Number of shards. More shards make removals faster and predictions worse.
    n_slices : int, default=1
        Number of slices per shard, at most ``2 epochs - 1``, so that every stage has at least one
        epoch. Every slice except the last needs one saved state per shard.
    epochs : int, default=20
        Number of passes over the rows of a shard, distributed over the stages.
    aggregation : {"mean", "vote"}, default="mean"
        Mean of the networks' probabilities, or share of networks that vote for each class.
    lane_width : int or None, default=None
        Number of networks trained at once. It affects the last bits of a network, so a retraining
        keeps empty lanes for unaffected shards. None means 1 on a CPU and `n_shards` on a GPU.
    optimizer : {"adam", "sgd", "adamw"} or callable, default="adam"
        A name, or a factory that takes parameters and returns a `torch.optim.Optimizer`. The
        optimizer is reset at the start of every stage.
    learning_rate, momentum, weight_decay : float, default=0.005, 0.9, 0.0
        For named optimizers; momentum is used by "sgd" only.
    schedule : {"constant", "cosine", "one-cycle"}, default="constant"
        How the learning rate changes within a stage.
    loss : "cross_entropy" or callable, default="cross_entropy"
        A callable takes logits and class codes and returns one loss per row. A function with a
        parameter `reduction`, such as the PyTorch losses, is called with ``reduction="none"``.
    batch_size : int, default=64
        Number of slots in a batch; at least 2 with BatchNorm. With BatchNorm or many lanes a batch
        costs as much as `batch_size` rows, even if it has fewer.
    precision : {"float32", "tf32", "bfloat16"}, default="float32"
        Precision of the forward pass; parameters are float32.
    calibration_rows : int, default=4096
        Number of rows of a shard for BatchNorm's running statistics, computed after training.
    checkpoint_dir : path or None, default=None
        Directory for the states; None keeps them in memory.
    augment : str, callable or list of these, default=None
        Random changes of the rows in training, in this order. "flip" mirrors images, "crop4" moves
        them by up to 4 pixels (or another number), "cutout" erases a square of half their side
        ("cutout8": of 8 pixels), "mixup" mixes each row with another of its batch. A callable takes
        a batch and a `RowGenerator` and returns the changed batch.
    label_smoothing : float, default=0.0
        As in `torch.nn.CrossEntropyLoss`.
    warm_up : float, default=0.0
        Share of the steps of a stage in which the learning rate rises linearly to its value.
    max_grad_norm : float or None, default=None
        Largest norm of the gradient of a network, as in `torch.nn.utils.clip_grad_norm_`.
    accumulation_steps : int, default=1
        Number of batches whose gradients are added up for one step of the optimizer. The step is
        that of one batch with all their rows, except for BatchNorm and "mixup".
    test_time_flip : bool, default=False
        Whether a prediction is the mean over each image and its mirror image.
    validation_fraction : float, default=0.0
        Share of the people, chosen by a keyed hash, whose rows are not trained on but decide when
        the training of their shard stops: it keeps the parameters of the epoch with the lowest loss
        on them.
    n_iter_no_change : int, default=5
        Number of epochs without a lower loss on the held-out rows after which a stage stops.
    row_dtype : {"float32", "int64"}, default="float32"
        "int64" stores whole numbers, such as tokens, and passes them to the module as int64.
    verbose : int, default=0
        Whether a progress bar shows the loss and the remaining time.
    max_memory : int or None, default=None
        If the states need more bytes, they are stored in an unnamed temporary file. A forked
        process cannot use that file: its first removal trains everything again.
    device : str, default="auto"
        "auto" uses a GPU if there is one.
    deterministic : bool, default=True
        Use kernels that add in a fixed order, and one thread on a CPU. Otherwise two fits differ
        in their last bits.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all random numbers. None draws 128 bits from the operating system.

    Attributes
    ----------
    classes_ : ndarray
        Labels of the remaining rows, sorted. When the last row of a class is removed, all shards
        are trained again: the networks lose a logit.
    nets_ : Nets
        The trained networks; `to_modules` returns them as modules.
    rows_, vault_
        Remaining rows and saved states. A saved model is personal data.
    seed_, ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    Notes
    -----
    Guarantee: exact, for requests that do not depend on the model (oblivious), against an observer
    of the latest model. With ``deterministic=True``, after any sequence of `forget` and `learn` the
    model has the bytes of a fresh `fit` on the remaining rows in their order, with the same seed,
    libraries, kind of device and `lane_width`.

    References
    ----------
    Bourtoule et al., Machine Unlearning, IEEE S&P 2021. Gupta et al., Adaptive Machine
    Unlearning, NeurIPS 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from letheon import SISANetClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = SISANetClassifier(n_shards=3, epochs=5, device="cpu", random_state=0).fit(X, y)
    >>> model.forget([0, 1]).n_rows
    2
    >>> fresh = SISANetClassifier(n_shards=3, epochs=5, device="cpu", random_state=0)
    >>> fresh.fit(X[2:], y[2:], ids=range(2, 150)).digest() == model.digest()
    True
    """

    _parameter_rules: ClassVar[Rules] = {
        "aggregation": OneOf(("mean", "vote")),
        "label_smoothing": Interval(0, 1, closed="left"),
    }

    aggregation: str = "mean"
    label_smoothing: float = 0.0

    def _aggregate(self, predictions: Floats) -> Floats:
        if self.aggregation == "vote":
            predictions = np.eye(predictions.shape[2])[predictions.argmax(axis=2)]
        return super()._aggregate(predictions)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.label_smoothing and callable(self.loss):
            raise ValueError(
                f"label_smoothing={self.label_smoothing} needs loss='cross_entropy'; with a custom "
                "loss, smooth the labels in the loss"
            )

    def _loop_settings(self, shape: tuple[int, ...]) -> LoopSettings:
        smoothing = float(self.label_smoothing)
        return replace(super()._loop_settings(shape), label_smoothing=smoothing)


@dataclass(kw_only=True, eq=False, repr=False)
class SISANetRegressor(NetRegressorMixin, SISANet):
    """Any PyTorch module that predicts numbers, in shards and slices; forgetting is fast and exact.

    Like `SISANetClassifier`, but the module has one output per target, and the predictions of the
    networks are averaged. The targets are not scaled: a mean of the training rows would have to be
    forgotten too. Scale large targets with constants.

    Parameters
    ----------
    module : callable or None, default=None
        Factory of the network: takes the shape of a row and the number of targets (or nothing) and
        returns a `torch.nn.Module` with one output per target. None means `MLP()`.
    loss : "squared_error" or callable, default="squared_error"
        A callable takes outputs and targets, both of shape (n_rows, n_targets), and returns one
        loss per row or per target. The losses of the targets of a row are averaged.
    aggregation : {"mean", "median"}, default="mean"
        Mean or median of the predictions of the networks.
    n_shards, n_slices, epochs, lane_width, optimizer, learning_rate, momentum, weight_decay
        As in `SISANetClassifier`.
    schedule, batch_size, precision, calibration_rows, augment, warm_up, max_grad_norm
        As in `SISANetClassifier`.
    accumulation_steps, test_time_flip, validation_fraction, n_iter_no_change, row_dtype, verbose
        As in `SISANetClassifier`.
    checkpoint_dir, max_memory, device, deterministic, random_state
        As in `SISANetClassifier`.

    Attributes
    ----------
    nets_, rows_, vault_, seed_, ids_, guarantee_, n_rows_
        As in `SISANetClassifier`.

    Notes
    -----
    Guarantee: exact, as in `SISANetClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from letheon import SISANetRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = SISANetRegressor(n_shards=3, epochs=5, device="cpu", random_state=0)
    >>> model.fit(X, y / 100).forget([7]).rebuilt
    {'shards': 1, 'stages': 1}
    """

    _parameter_rules: ClassVar[Rules] = {"aggregation": OneOf(("mean", "median"))}

    aggregation: str = "mean"
    loss: Any = "squared_error"

    def _aggregate(self, predictions: Floats) -> Floats:
        if self.aggregation == "median":
            median: Floats = np.median(predictions, axis=0)
            return median
        return super()._aggregate(predictions)
