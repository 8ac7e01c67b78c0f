"""SISA for nets: shards trained at once as one stacked net (Bourtoule et al., 2021)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from letheon.base import Outcome, Removal
from letheon.data import Ids, SlotRows, join_target, row_ids
from letheon.deep._base import Floats, Positions, Workshop, alive_without, net_facts
from letheon.deep._device import ask_rows
from letheon.deep._loop import Callback, Stretch
from letheon.deep._vault import CheckpointedNet, VaultChange, with_reason
from letheon.exceptions import CheckpointWarning, CorruptFileError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.removal import Cache, Change, TrainingRows, opaque_repr
from letheon.sharded import Assignment, epochs_per_stage, shard_counts, warn_if_crowded
from letheon.validation import OneOf, OrNone, Rules, Whole

# Shards to train: from which stage on, and the parameters before it.
Jobs = dict[int, tuple[int, Tensor]]


class Grid(NamedTuple):
    """Rows by shard and slice, and how many epochs each stage has."""

    rows: SlotRows
    alive: NDArray[np.bool_]
    epochs: tuple[int, ...]

    def __repr__(self) -> str:
        return opaque_repr(self)

    def slots(self, shard: int, stage: int) -> Positions:
        """Return the rows that a stage of a shard trains on: its slices 0 to `stage`, in order."""
        extra = self.rows.extra
        return np.flatnonzero(self.alive & (extra["shard"] == shard) & (extra["slice"] <= stage))

    def visits(self, n_shards: int) -> NDArray[np.int64]:
        """Return the rows shown to every shard in every stage, epochs counted, shape (S, R)."""
        extra, n_stages = self.rows.extra, len(self.epochs)
        cells = (extra["shard"] * n_stages + extra["slice"])[self.alive]
        sizes = np.bincount(cells, minlength=n_shards * n_stages).reshape(n_shards, n_stages)
        visits: NDArray[np.int64] = sizes.cumsum(axis=1) * np.array(self.epochs)
        return visits


def _first_slices(shards: Positions, slices: Positions) -> dict[int, int]:
    """Return the first slice that has one of some rows, for every shard that has any."""
    return {int(shard): int(slices[shards == shard].min()) for shard in np.unique(shards)}


@dataclass(kw_only=True, eq=False, repr=False)
class SISANetClassifier(CheckpointedNet):
    """Any torch module, sharded and sliced so that forgetting is fast and exact.

    People are spread over `n_shards` shards by a keyed hash of their id. Every shard trains a net
    of its own, slice by slice: stage k on slices 1..k. To forget someone, only their shard is
    trained again, from the first slice they are in; the state before it is kept. On a GPU the nets
    of all shards are trained at once as one stacked net. With ``n_shards=1`` and ``n_slices=1``
    this is naive retraining.

    Parameters
    ----------
    module : callable or None, default=None
        Factory of the net: takes the shape of a row and the number of classes (or nothing) and
        returns a `torch.nn.Module` whose output is one logit per class. None is `MLP()`.
    n_shards : int, default=5
        More shards forget faster and predict worse: each sees fewer rows.
    n_slices : int, default=1
        Every slice but the last costs one saved state per shard. Needs
        ``n_slices <= 2 epochs - 1``, so that no stage has zero epochs.
    epochs : int, default=20
        Passes over the rows that a shard gets; with slices their work is spread over the stages.
    aggregation : {"mean", "vote"}, default="mean"
        Mean of the nets' probabilities, or shares of their votes.
    lane_width : int or None, default=None
        Nets trained at once. The last bits of a net depend on it, so a retrain fills the lanes of
        untouched shards with nothing. None is 1 on a CPU and `n_shards` on a GPU.
    optimizer : {"adam", "sgd", "adamw"} or callable, default="adam"
        By name, or a factory that takes parameters and returns a `torch.optim.Optimizer`. It
        starts afresh at every stage.
    learning_rate, momentum, weight_decay : float, default=0.005, 0.9, 0.0
        For optimisers by name; momentum is that of "sgd".
    schedule : {"constant", "cosine", "one-cycle"}, default="constant"
        How the learning rate goes over a stage.
    loss : "cross_entropy" or callable, default="cross_entropy"
        Takes logits and class codes and returns one loss per row; one with a parameter
        `reduction`, as torch's functions have, is called with ``reduction="none"``.
    batch_size : int, default=64
        Slots of every batch. Two or more with BatchNorm. With BatchNorm or many lanes a batch
        costs as much as `batch_size` rows, however few there are.
    precision : {"float32", "tf32", "bfloat16"}, default="float32"
        Of the forward pass; parameters are float32.
    calibration_rows : int, default=4096
        Rows of a shard from which BatchNorm's running statistics are taken after training.
    checkpoint_dir : path or None, default=None
        Where states are kept as files; None keeps them in memory.
    max_memory : int or None, default=None
        Bytes of states above which they lie in a temporary file without a name. A process that is
        forked cannot use that file: its first request trains everything again.
    device : str, default="auto"
        "auto" is the GPU where there is one.
    deterministic : bool, default=True
        Kernels that add in a fixed order, and one thread on a CPU: without it two fits differ in
        their last bits.
    random_state : int, RandomState, Generator or None, default=None
        Seed of everything random. None draws 128 bits from the operating system.

    Attributes
    ----------
    classes_ : ndarray
        Labels still held, sorted. When the last row of a class leaves, all shards are trained
        again: the nets lose a logit.
    nets_ : Nets
        The trained nets; `to_modules` gives them as modules.
    rows_, vault_
        Rows and saved states. A saved model is personal data.
    seed_, ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    Notes
    -----
    Guarantee: exact, for requests that do not depend on the model (oblivious), towards an observer
    of the latest model: after any sequence of `forget` and `learn` the model has the bytes of a
    fresh `fit` on the remaining rows in held order, with the same seed, libraries, kind of device
    and `lane_width`, if ``deterministic=True``.

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
        """Add rows, as if they had been there from the start, after the rows already held.

        Parameters
        ----------
        X, y, callback
            As in `fit`; rows of the shape held. New classes are allowed, and train everything.
        ids : sequence of int or of str
            Whose rows they are; those of a known id join that person's shard and slice.

        Returns
        -------
        self
        """
        return self._learn(ids, lambda: self._prepare_learn(X, y, ids, callback))

    def _aggregate(self, shares: Floats) -> Floats:
        if self.aggregation == "vote":
            shares = np.eye(shares.shape[2])[shares.argmax(axis=2)]
        return super()._aggregate(shares)

    def _check_settings(self) -> None:
        super()._check_settings()
        epochs_per_stage(int(self.epochs), int(self.n_slices))

    def _hold(self, X: Any, y: Any, ids: Any) -> TrainingRows:
        held = super()._hold(X, y, ids)
        warn_if_crowded("n_shards", self.n_shards, held.rows.ids)
        return held

    def _placed(self, ids: Ids, seed: int) -> dict[str, NDArray[np.int64]]:
        """Return shard and slice of every row: functions of its person's id and the seed."""
        assignment = Assignment(seed, int(self.n_shards), int(self.n_slices), 1)
        tiers = np.zeros(len(ids), np.int64)
        return {"shard": assignment.shards(ids, tiers), "slice": assignment.slices(ids, tiers)}

    def _grid(self, rows: SlotRows, leaving: Positions | None = None) -> Grid:
        epochs = epochs_per_stage(int(self.epochs), int(self.n_slices))
        return Grid(rows, alive_without(rows, leaving), epochs)

    def _train(self, held: TrainingRows, seed: int, callback: Callback | None) -> Change:
        held.rows.extra.update(self._placed(held.rows.ids, seed))
        workshop, grid = self._new_workshop(held, seed), self._grid(held.rows)
        template, n_shards, last = workshop.template, int(self.n_shards), len(grid.epochs) - 1
        vault, attributes = self._new_vault(max(n_shards * last, 1), template.n_parameters)
        starts = [template.initial(shard).to(workshop.device) for shard in range(n_shards)]
        with vault.filling():
            flat, jobs = torch.stack(starts), {i: (0, start) for i, start in enumerate(starts)}
            self._train_shards(workshop, grid, jobs, flat, vault.put, callback)
            owned = [grid.slots(shard, last) for shard in range(n_shards)]
            nets = self._nets(workshop, flat, owned, held.classes)
        return self._trained(held, workshop, nets, {"shards": n_shards}, **attributes)

    def _entry(self, shard: int, stage: int) -> int:
        """Place in the vault of a shard's parameters after a stage."""
        return shard * (int(self.n_slices) - 1) + stage

    def _train_shards(
        self,
        workshop: Workshop,
        grid: Grid,
        jobs: Jobs,
        flat: Tensor,
        keep: Callable[[int, Tensor], None],
        callback: Callback | None,
    ) -> None:
        """Train shards; `keep` takes their states between stages, and `flat` those at the end."""
        width, last = self._width(workshop.device), len(grid.epochs) - 1
        groups = sorted({shard // width for shard in jobs})
        begin = min((first for first, _ in jobs.values()), default=0)
        n_stages = len(grid.epochs) - begin
        empty = torch.zeros(workshop.template.n_parameters, device=workshop.device)
        for number, group in enumerate(groups):
            lanes = tuple(range(group * width, (group + 1) * width))
            loop = workshop.loop(lanes, group)
            states = torch.stack([jobs[lane][1] if lane in jobs else empty for lane in lanes])
            for stage in range(begin, len(grid.epochs)):
                is_trained = [lane in jobs and jobs[lane][0] <= stage for lane in lanes]
                slots = tuple(
                    grid.slots(lane, stage) if is_on else None
                    for lane, is_on in zip(lanes, is_trained, strict=True)
                )
                stretch = Stretch(stage, slots, grid.epochs[stage], kind="stage")
                place = number * n_stages + stage - begin, len(groups) * n_stages
                states = loop.train(states, stretch, callback, place)
                for lane, state, is_on in zip(lanes, states, is_trained, strict=True):
                    if is_on and stage < last:
                        keep(self._entry(lane, stage), state)
                    elif is_on:
                        flat[lane] = state

    def _width(self, device: torch.device) -> int:
        if self.lane_width is not None:
            return int(self.lane_width)
        return int(self.n_shards) if device.type == "cuda" else 1

    def _remove(
        self, removal: Removal, callback: Callback | None
    ) -> tuple[Change, VaultChange | None]:
        extra, leaving = self.rows_.extra, removal.where
        touched = _first_slices(extra["shard"][leaving], extra["slice"][leaving])
        grid = self._grid(self.rows_, leaving)
        with self._vault().begin() as aside:
            rebuilt = self._retrain_shards(self._workshop(), grid, touched, aside, callback)
            change = self._without(removal, *rebuilt)
        return change, aside

    def _retrain_shards(
        self,
        workshop: Workshop,
        grid: Grid,
        touched: dict[int, int],
        aside: VaultChange,
        callback: Callback | None,
    ) -> tuple[dict[str, Any], Outcome]:
        """Train touched shards again, with their states aside; return attributes and an outcome."""
        n_shards, last = int(self.n_shards), len(grid.epochs) - 1
        if self.environment_ != self._describe_environment():
            # States of other libraries are never continued: the result would equal no fresh fit.
            touched = dict.fromkeys(range(n_shards), 0)
        messages = list[str]()
        jobs = {
            shard: self._job(workshop, shard, first, messages) for shard, first in touched.items()
        }
        flat = self.nets_.flat.to(workshop.device).clone()
        self._train_shards(workshop, grid, jobs, flat, aside.set, callback)
        owned = [grid.slots(shard, last) if shard in jobs else None for shard in range(n_shards)]
        nets = self._nets(workshop, flat, owned, self.nets_.classes)
        visits = grid.visits(n_shards)
        done = sum(int(visits[shard, first:].sum()) for shard, (first, _) in jobs.items())
        n_stages = sum(last + 1 - first for first, _ in jobs.values())
        outcome = Outcome(
            done / max(int(visits.sum()), 1),
            {"shards": len(jobs), "stages": n_stages},
            tuple(map(CheckpointWarning, messages)),
        )
        return {"nets_": nets, **self._remember_settings()}, outcome

    def _job(
        self, workshop: Workshop, shard: int, first: int, messages: list[str]
    ) -> tuple[int, Tensor]:
        """Return where a shard starts: at the last state before the slice that can be read."""
        for stage in range(first, 0, -1):
            try:
                start = self.vault_.get(self._entry(shard, stage - 1))
            except CorruptFileError as error:
                messages.append(f"{error}; what it held was trained again")
                continue
            assert start is not None
            return stage, start
        return 0, workshop.template.initial(shard).to(workshop.device)

    def _prepare_learn(
        self, X: Any, y: Any, ids: Any, callback: Callback | None
    ) -> tuple[Change, VaultChange | None]:
        new_X = ask_rows(self, X, self.shape_)
        new_y = self._hold_labels(y, new_X)
        rows = self.rows_.compacted()
        labels = join_target(self.nets_.classes[rows.y], new_y)
        assert labels is not None
        classes, codes = np.unique(labels, return_inverse=True)
        codes, n_old = codes.astype(np.int64), len(labels) - len(new_y)
        new_ids = row_ids(ids, len(new_y))
        placed = self._placed(new_ids, self.seed_)
        rows.y[:] = codes[:n_old]
        rows.append(new_X, codes[n_old:], new_ids, placed)
        held = TrainingRows(rows, classes, np.bincount(codes))
        lost = self._lost()
        with self._training():
            if lost is not None:
                return with_reason(self._train(held, self.seed_, callback), lost), None
            vault = self._vault()  # a new class replaces it, and its files must be found then
            if not np.array_equal(classes, self.nets_.classes):
                return self._train(held, self.seed_, callback), None
            workshop = self._furnished(rows, self._workshop().template, self.seed_)
            touched = _first_slices(placed["shard"], placed["slice"])
            with vault.begin() as aside:
                attributes, outcome = self._retrain_shards(
                    workshop, self._grid(rows), touched, aside, callback
                )
        attributes |= {"rows_": rows, "counts_": held.counts, "cache_": Cache(workshop)}
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
