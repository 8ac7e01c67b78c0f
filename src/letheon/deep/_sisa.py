"""SISA for networks (Bourtoule et al., 2021); all shards are trained at once as one network."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from letheon.base import Outcome, Removal
from letheon.data import Ids, SlotRows, join_target, row_ids
from letheon.deep._base import Floats, Positions, TrainingContext, alive_mask, net_facts
from letheon.deep._checkpoints import CheckpointChange, CheckpointedNet, with_reason
from letheon.deep._device import check_query_rows
from letheon.deep._loop import Callback, TrainingPhase
from letheon.exceptions import CheckpointWarning, CorruptFileError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.removal import Cache, Change, TrainingRows, opaque_repr
from letheon.sharded import Assignment, epochs_per_stage, shard_counts, warn_if_crowded
from letheon.validation import OneOf, OrNone, Rules, Whole

# Shards to train: the first stage, and the parameters before it.
ShardStarts = dict[int, tuple[int, Tensor]]


class ShardGrid(NamedTuple):
    """Shard and slice of every row, and the number of epochs of each stage."""

    rows: SlotRows
    alive: NDArray[np.bool_]
    epochs: tuple[int, ...]

    def __repr__(self) -> str:
        return opaque_repr(self)

    def slots_of(self, shard: int, stage: int) -> Positions:
        """Return the positions of the rows that a shard is trained on in a stage.

        These are its slices 0 to `stage`, in order.
        """
        extra = self.rows.extra
        return np.flatnonzero(self.alive & (extra["shard"] == shard) & (extra["slice"] <= stage))

    def count_visits(self, n_shards: int) -> NDArray[np.int64]:
        """Return the row visits (rows times epochs) of each of S shards in each of R stages."""
        extra, n_stages = self.rows.extra, len(self.epochs)
        cells = (extra["shard"] * n_stages + extra["slice"])[self.alive]
        sizes = np.bincount(cells, minlength=n_shards * n_stages).reshape(n_shards, n_stages)
        visits: NDArray[np.int64] = sizes.cumsum(axis=1) * np.array(self.epochs)
        return visits


def _first_slices(shards: Positions, slices: Positions) -> dict[int, int]:
    """Return a dict from every affected shard to its first affected slice."""
    return {int(shard): int(slices[shards == shard].min()) for shard in np.unique(shards)}


@dataclass(kw_only=True, eq=False, repr=False)
class SISANetClassifier(CheckpointedNet):
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
        Number of shards. With more shards removals are faster, but predictions are worse, because
        each network is trained on fewer rows.
    n_slices : int, default=1
        Number of slices per shard, at most ``2 epochs - 1``, so that every stage has at least one
        epoch. Every slice except the last needs one saved state per shard.
    epochs : int, default=20
        Number of passes over the rows of a shard. With slices, this work is distributed over the
        stages.
    aggregation : {"mean", "vote"}, default="mean"
        How probabilities are predicted: the mean of the networks' probabilities, or the share of
        networks that vote for each class.
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
        Number of rows of a shard from which BatchNorm's running statistics are computed after
        training.
    checkpoint_dir : path or None, default=None
        Directory for the states; None keeps them in memory.
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

    facts: ClassVar[MethodFacts] = net_facts(
        "sisa-net",
        exact=True,
        strength="weak",
        efficiency_parameters=("n_shards", "n_slices"),
        certifiability_parameters=(),
        needs=("incremental-training",),
        search_ranges=shard_counts,
    )
    _parameter_rules: ClassVar[Rules] = {
        "n_shards": Whole(1),
        "n_slices": Whole(1),
        "aggregation": OneOf(("mean", "vote")),
        "lane_width": OrNone(Whole(1)),
    }

    n_shards: int = 5
    n_slices: int = 1
    aggregation: str = "mean"
    lane_width: int | None = None

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

    def _aggregate_shares(self, shares: Floats) -> Floats:
        if self.aggregation == "vote":
            shares = np.eye(shares.shape[2])[shares.argmax(axis=2)]
        return super()._aggregate_shares(shares)

    def _check_settings(self) -> None:
        super()._check_settings()
        epochs_per_stage(int(self.epochs), int(self.n_slices))

    def _check_training_data(self, X: Any, y: Any, ids: Any) -> TrainingRows:
        data = super()._check_training_data(X, y, ids)
        warn_if_crowded("n_shards", self.n_shards, data.rows.ids)
        return data

    def _assign_shards(self, ids: Ids, seed: int) -> dict[str, NDArray[np.int64]]:
        """Return the shard and the slice of every row; they depend only on its id and the seed."""
        assignment = Assignment(seed, int(self.n_shards), int(self.n_slices), 1)
        tiers = np.zeros(len(ids), np.int64)
        return {"shard": assignment.shards(ids, tiers), "slice": assignment.slices(ids, tiers)}

    def _make_grid(self, rows: SlotRows, removed: Positions | None = None) -> ShardGrid:
        epochs = epochs_per_stage(int(self.epochs), int(self.n_slices))
        return ShardGrid(rows, alive_mask(rows, removed), epochs)

    def _train_all(self, data: TrainingRows, seed: int, callback: Callback | None) -> Change:
        data.rows.extra.update(self._assign_shards(data.rows.ids, seed))
        context, grid = self._new_context(data, seed), self._make_grid(data.rows)
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
        width, last = self._lane_count(context.device), len(grid.epochs) - 1
        groups = sorted({shard // width for shard in starts})
        begin = min((first for first, _ in starts.values()), default=0)
        n_stages = len(grid.epochs) - begin
        empty = torch.zeros(context.template.n_parameters, device=context.device)
        for number, group in enumerate(groups):
            lanes = tuple(range(group * width, (group + 1) * width))
            loop = context.get_loop(lanes, group)
            states = torch.stack([starts[lane][1] if lane in starts else empty for lane in lanes])
            for stage in range(begin, len(grid.epochs)):
                is_trained = [lane in starts and starts[lane][0] <= stage for lane in lanes]
                slots = tuple(
                    grid.slots_of(lane, stage) if is_on else None
                    for lane, is_on in zip(lanes, is_trained, strict=True)
                )
                phase = TrainingPhase(stage, slots, grid.epochs[stage], kind="stage")
                place = number * n_stages + stage - begin, len(groups) * n_stages
                states = loop.train(states, phase, callback, place)
                for lane, state, is_on in zip(lanes, states, is_trained, strict=True):
                    if is_on and stage < last:
                        keep(self._state_index(lane, stage), state)
                    elif is_on:
                        flat[lane] = state

    def _lane_count(self, device: torch.device) -> int:
        if self.lane_width is not None:
            return int(self.lane_width)
        return int(self.n_shards) if device.type == "cuda" else 1

    def _prepare_removal(
        self, removal: Removal, callback: Callback | None
    ) -> tuple[Change, CheckpointChange | None]:
        extra, removed = self.rows_.extra, removal.where
        touched = _first_slices(extra["shard"][removed], extra["slice"][removed])
        grid = self._make_grid(self.rows_, removed)
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
        new_y = self._copy_labels(y, new_X)
        rows = self.rows_.compact_copy()
        labels = join_target(self.nets_.classes[rows.y], new_y)
        assert labels is not None
        classes, codes = np.unique(labels, return_inverse=True)
        codes, n_old = codes.astype(np.int64), len(labels) - len(new_y)
        new_ids = row_ids(ids, len(new_y))
        placed = self._assign_shards(new_ids, self.seed_)
        rows.y[:] = codes[:n_old]
        rows.append(new_X, codes[n_old:], new_ids, placed)
        data = TrainingRows(rows, classes, np.bincount(codes))
        lost = self._explain_loss()
        with self._training_run():
            if lost is not None:
                return with_reason(self._train_all(data, self.seed_, callback), lost), None
            # Before training: a new class replaces the store, whose files must be destroyed.
            store = self._current_checkpoints()
            if not np.array_equal(classes, self.nets_.classes):
                return self._train_all(data, self.seed_, callback), None
            context = self._make_context(rows, self._current_context().template, self.seed_)
            touched = _first_slices(placed["shard"], placed["slice"])
            with store.begin_change() as aside:
                attributes, outcome = self._retrain_shards(
                    context, self._make_grid(rows), touched, aside, callback
                )
        attributes |= {"rows_": rows, "counts_": data.counts, "cache_": Cache(context)}
        return Change(attributes, outcome), aside

    def _make_guarantee(self) -> Guarantee:
        is_fixed = self.environment_["kernels"] == "fixed"
        kernels = "same-libraries-and-device" if is_fixed else "equal-but-for-rounding"
        return Guarantee(
            kind="exact",
            reference="Bourtoule et al. 2021, section V; oblivious by Gupta et al. 2021",
            assumptions=("seed-independent-of-requests", kernels),
            residual_state=self._list_residue(),
        )
