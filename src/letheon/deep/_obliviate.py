"""Removal by retraining blocks until their residual memory fades (He et al. 2021).

A network is trained on blocks of rows one after the other. The old run has the states ``theta_0,
..., theta_B``. The new run (theta') starts from ``theta_d``, the state before the first block d
with removed rows. With ``s_i = theta'_i - theta_i``, the residual of block i is

    Delta_i = ||(theta'_(i+1) - theta'_i) - (theta_(i+1) - theta_i)||_1 = ||s_(i+1) - s_i||_1.

When the new run stops after block j, every later state becomes ``theta_i + s_(j+1)``. Later blocks
then move the parameters as in the old run: their influence ``||theta_(i+1) - theta_i||_1`` does not
change. No theorem says that a shifted state is closer to the exact one than the old state.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from letheon.base import Outcome, Removal, require_fitted
from letheon.data import Ids, SlotRows
from letheon.deep._base import Floats, net_facts
from letheon.deep._batches import EMPTY
from letheon.deep._checkpoints import (
    CheckpointChange,
    CheckpointedNet,
    CheckpointStore,
    with_reason,
)
from letheon.deep._loop import Callback, Loop, TrainingPhase
from letheon.deep._residual import PaperRule, RobustRule, StopRule, relative_residual
from letheon.deep._slots import alive_mask, assign_slots
from letheon.deep._tasks import NetClassifierMixin
from letheon.exceptions import CorruptFileError, EnvironmentWarning
from letheon.guarantee import Guarantee, MethodFacts, SearchRanges
from letheon.removal import Change, Opaque, TrainingRows
from letheon.seeds import Purpose
from letheon.sharded import warn_if_crowded
from letheon.validation import Interval, OneOf, Rules, Whole

Integers = NDArray[np.int64]


_REFERENCE = "He et al. 2021 (an observation about residuals, no bound of what the model reveals)"
_ASSUMPTIONS = (
    "residual-memory-decays",
    "seed-independent-of-requests",
    "same-libraries-and-cpu-kernel",
)
_RESIDUAL_SLOTS = (
    "rows_, block_slots_: slots of removed rows stay empty, so they show in which blocks, and "
    "where in them, rows were removed"
)
_RESIDUAL_FLOOR = "null_floor_: measured with the rows of the last training from scratch"
_RESIDUAL_STATES = (
    "nets_, vault_: blocks that were not retrained move the parameters as in the old run; from "
    "this and the remaining rows the old states, and then forgotten rows and labels, can be "
    "computed"
)
_RESIDUAL_INFLUENCES = (
    "influences_: the norms of retrained blocks are replaced, those of later blocks were measured "
    "in a run with the forgotten rows"
)
_RESIDUAL_TAIL = "tail_: a sum of estimates that were made from the movement of forgotten rows"

BLOCK, SLOT = "block", "slot"
# Share of the blocks over which the learning rate rises.
_WARM_UP = 0.1


def assign_blocks(ids: Ids, seed: int, n_blocks: int) -> Integers:
    """Return the block number of every row: ``keyed_hash(seed, "block", id) mod n_blocks``."""
    return (ids.hashes(seed, Purpose.BLOCK) % np.uint64(n_blocks)).astype(np.int64)


class BlockSchedule(NamedTuple):
    """Number of epochs per block, and how the learning rate changes over the blocks."""

    epochs: int
    n_blocks: int
    anneal: str

    def rate_factor(self, block: int) -> float:
        """Return the factor of the learning rate in block ``b = 0, ..., B - 1``.

        The factor is 1 for "none" and ``1 - b / B`` for "linear". For "one-cycle" it is the smaller
        of ``1 - b / B`` and ``(b + 1) / max(B / 10, 1)``; up to 10 blocks this equals "linear".
        """
        if self.anneal == "none":
            return 1.0
        fall = 1.0 - block / self.n_blocks
        rise = (block + 1) / max(_WARM_UP * self.n_blocks, 1.0)
        return min(fall, rise) if self.anneal == "one-cycle" else fall


class Blocks:
    """The rows of every block, by slot.

    Parameters
    ----------
    rows : SlotRows
        Rows with their `block` and `slot`.
    n_slots : ndarray of int64, shape (B,)
        Number of slots of every block, including those of removed rows.
    removed : ndarray of int64, optional
        Positions of rows that are about to be removed; their slots count as empty.
    """

    def __init__(self, rows: SlotRows, n_slots: Integers, removed: Integers | None = None) -> None:
        self._block, self._slot, self._n_slots = rows.extra[BLOCK], rows.extra[SLOT], n_slots
        self._alive = alive_mask(rows, removed)
        self.sizes: Integers = np.bincount(self._block[self._alive], minlength=len(n_slots))

    def __len__(self) -> int:
        return len(self._n_slots)

    @property
    def positions(self) -> Integers:
        """Positions of all remaining rows."""
        return np.flatnonzero(self._alive)

    def slots_of(self, block: int) -> Integers:
        """Return the positions of a block's rows in slot order, with -1 for empty slots."""
        positions = np.flatnonzero(self._alive & (self._block == block))
        slots = np.full(self._n_slots[block], EMPTY)
        slots[self._slot[positions]] = positions
        return slots


def train_blocks(
    loop: Loop,
    blocks: Blocks,
    start: Tensor,
    first: int,
    schedule: BlockSchedule,
    callback: Callback | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Train block `first` from the parameters `start`, then every later block.

    Yields, for every block, its number and the parameters after it. An empty block does not
    change the parameters.
    """
    flat, n_parts = start[None], len(blocks) - first
    for block in range(first, len(blocks)):
        if blocks.sizes[block]:
            slots, rate = (blocks.slots_of(block),), schedule.rate_factor(block)
            phase = TrainingPhase(block, slots, schedule.epochs, rate, kind="block")
            flat = loop.train(flat, phase, callback, (block - first, n_parts))
        yield block, flat[0]


@dataclass(frozen=True, eq=False, repr=False)
class UnlearningRun(Opaque):
    """Result of an unlearning run.

    Attributes
    ----------
    first, last : int
        First and last block of the run.
    end : Tensor of shape (p,)
        Parameters of the model.
    tail, ceiling : float
        Estimated sum of the residuals of the blocks that were not retrained; and the same sum if
        these residuals continue the trend of the later half of the computed ones.
    influences : ndarray of float64, shape (last - first + 1,)
        L1 norm of the change of the parameters in every block of the run.
    rule : StopRule
        The stop rule, with the residuals of the run.
    """

    first: int
    last: int
    end: Tensor
    tail: float
    ceiling: float
    influences: Floats
    rule: StopRule


def make_rule(model: Any, last_affected: int, floor: float) -> StopRule:
    """Return the stop rule that the parameters of a model select.

    Residuals count from block `last_affected` on. `floor` is the relative residual of a replay
    without a removal.
    """
    if model.stop == "robust":
        return RobustRule(model.epsilon, floor, patience=int(model.patience))
    return PaperRule(model.epsilon, last_affected + 1, model.stop_origin)


def load_state(store: CheckpointStore, i: int) -> Tensor:
    """Return the stored parameters before block i; raise `CorruptFileError` if they are missing."""
    state = store.get(i)
    if state is None:
        raise CorruptFileError(f"the checkpoint before block {i} is missing")
    return state


def l1_distance(one: Tensor, two: Tensor) -> float:
    """Return the L1 distance of two vectors, summed in float64."""
    return float((one - two).abs().sum(dtype=torch.float64))


def stitch_run(
    run: Iterable[tuple[int, Tensor]],
    blocks: Blocks,
    store: CheckpointStore,
    aside: CheckpointChange,
    rule: StopRule,
    affected: tuple[int, int],
    influences: Floats,
) -> UnlearningRun:
    """Run the retraining until the stop rule ends it, and write all changed states to `aside`.

    Parameters
    ----------
    run : iterable of (block, parameters after it)
        The new run, from the first affected block on.
    blocks : Blocks
        The remaining rows.
    store, aside : CheckpointStore, CheckpointChange
        States of the old run, where entry i is the state before block i; and the pending change
        that collects the new states.
    rule : StopRule
        Gets the residual of every block and decides when to stop.
    affected : tuple of int
        First and last block with removed rows. Residuals of blocks before the last do not count.
    influences : ndarray of float64, shape (B,)
        L1 norm of the change of the parameters in every block of the old run.
    """
    first, last_affected = affected
    last, end = first, load_state(store, first)
    old, shift, done = end, torch.zeros_like(end), list[float]()
    for last, new in run:
        aside.set(last + 1, new)
        done.append(l1_distance(new, end))
        before, old_before, old, end = shift, old, load_state(store, last + 1), new
        shift = end - old
        counts = last == last_affected or (last > last_affected and blocks.sizes[last] > 0)
        stops = counts and rule.update(l1_distance(shift, before), l1_distance(old, old_before))
        # Empty blocks cost nothing: a run with only empty blocks ahead continues to the end.
        if stops and blocks.sizes[last + 1 :].any():
            break
    if last + 1 < len(blocks):
        aside.shift(shift, range(last + 2, len(blocks) + 1))
        end = load_state(store, len(blocks)) + shift
    left = influences[last + 1 :][blocks.sizes[last + 1 :] > 0]
    tail, ceiling = rule.estimate_omitted(left)
    return UnlearningRun(first, last, end, tail, ceiling, np.array(done), rule)


@dataclass(kw_only=True, eq=False, repr=False)
class DeepObliviateClassifier(NetClassifierMixin, CheckpointedNet):
    """Any PyTorch module, trained block by block, so that forgetting retrains only a few blocks.

    Ids are distributed over B blocks by a keyed hash. The network is trained on one block after the
    other, and the parameters ``theta_0, ..., theta_B`` before and after each block are stored. To
    forget rows of block d, training starts again from the state before d, without these rows. Every
    retrained block has a residual,

        Delta_i = ||(theta'_(i+1) - theta'_i) - (theta_(i+1) - theta_i)||_1,

    where theta' is the new run. When the residuals are stable after block j by the rule `stop`, the
    other blocks are not trained: every later state, and the model, is shifted by
    ``theta'_(j+1) - theta_(j+1)``. The old states are destroyed, but after an early stop they can
    be computed again; see Notes.

    Parameters
    ----------
    module : callable or None, default=None
        Factory of the network: takes the shape of a row and the number of classes (or nothing) and
        returns a `torch.nn.Module` whose output is one logit per class. None means `MLP()`.
    n_blocks : int, default=10
        Number of blocks, B. More blocks make removals faster; each block needs one saved state.
    epochs : int, default=10
        Number of passes over every block.
    stop : {"robust", "paper"}, default="robust"
        "robust" uses ``r_i = Delta_i / ||theta_(i+1) - theta_i||_1``, the residual relative to
        the change by the block in the old run. It fits ``a x^-alpha + b`` over ``x = 1, 2, ...``. A
        residual is stable if both the fit and the line through the later half of the series change
        by less than `epsilon` per block, or if r is at most twice `null_floor_`. The rule stops
        after `patience` stable residuals in a row. It needs 4 residuals (`patience` near the
        floor). "paper" is the published rule: it finds alpha by detrended fluctuation analysis and
        stops when the slope of the fit to Delta itself is below `epsilon`. It needs 8 residuals.
    epsilon : float, default=0.1
        Largest change per block that counts as stable: a share of the block's own influence
        ("robust"), or an L1 norm over all parameters ("paper"). 0 retrains all later blocks.
    stop_origin : {"block", "one"}, default="block"
        For "paper": where x starts in the fit. With "block", x is the number of the block, as
        published; with "one", x is 1 at the last block with removed rows.
    patience : int, default=2
        For "robust": number of blocks in a row for which the residual must be stable.
    anneal : {"none", "linear", "one-cycle"}, default="none"
        Learning rate over the blocks. "none": the same in all blocks. "linear": multiplied by
        ``1 - b / B`` in block b. "one-cycle": as "linear", after a rise over the first tenth of the
        blocks. With a decreasing rate later blocks change the parameters less, and their residuals
        are smaller. "linear" and "one-cycle" need a named optimizer.
    optimizer : {"sgd", "adam", "adamw"} or callable, default="sgd"
        A name, or a factory that takes parameters and returns a `torch.optim.Optimizer`. The
        optimizer is reset at the start of every block.
    learning_rate, momentum, weight_decay : float, default=0.05, 0.0, 0.0
        For named optimizers; momentum is used by "sgd" only. Residuals fade only with small steps.
    schedule : {"constant", "cosine", "one-cycle"}, default="constant"
        How the learning rate changes within a block.
    loss : "cross_entropy" or callable, default="cross_entropy"
        A callable takes logits and class codes and returns one loss per row.
    batch_size : int, default=64
        Number of slots in a batch; the slots of removed rows stay empty.
    precision : {"float32", "tf32", "bfloat16"}, default="float32"
        Precision of the forward pass; parameters are float32.
    calibration_rows : int, default=4096
        Number of rows from which BatchNorm's running statistics are computed after training.
    checkpoint_dir : path or None, default=None
        Directory for the states; None keeps them in memory.
    max_memory : int or None, default=None
        If the states need more bytes, they are stored in an unnamed temporary file.
    device : str, default="auto"
        "auto" uses a GPU if there is one.
    deterministic : bool, default=True
        Use kernels that add in a fixed order, and one thread on a CPU. Otherwise the old and the
        new run differ by noise that does not fade.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all random numbers. None draws 128 bits from the operating system.

    Attributes
    ----------
    classes_ : ndarray
        Labels of the remaining rows, sorted. When the last row of a class is removed, all blocks
        are trained again: the network loses a logit.
    block_sizes_ : ndarray of shape (B,)
        Number of remaining rows in every block.
    block_slots_ : ndarray of shape (B,)
        Number of rows in every block at the last training from scratch.
    exact_blocks_ : int
        Number of leading blocks whose states equal those of training from scratch with the same
        slots, each block with the libraries and the device of its last training. It is B after
        `fit`, and after a removal that retrained all later blocks.
    tail_ : float
        Estimated L1 distance of the parameters from training from scratch, summed over removals; 0
        while ``exact_blocks_`` is B.
    influences_ : ndarray of shape (B,)
        L1 norm of the change of the parameters in every block when the block was last trained. A
        shift of later states does not affect it.
    null_floor_ : float or None
        Relative residual of a replay of the last block without a removal; only for
        ``stop="robust"``.
    checkpoint_bytes_ : dict
        Number of bytes of the states in memory and on disk.
    nets_ : Nets
        The trained network; `to_modules` returns it as a module.
    rows_, vault_
        Remaining rows and saved states. A saved model is personal data.
    seed_, ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    Notes
    -----
    **Guarantee**: empirical. That residuals fade is an observation, not a theorem. `tail_` and the
    estimates in a receipt extrapolate it; `epsilon` bounds a slope, not an error. With
    ``epsilon=0`` a removal retrains all later blocks; with ``deterministic=True`` the model then
    has the bytes of training the blocks from scratch with the same slots. A new `fit` differs: it
    has no empty slots.

    **After an early stop, forgotten rows can be reconstructed.** A shift cancels in differences:
    blocks that were not retrained move the parameters as in the run with the forgotten rows. An
    attacker with the file and the remaining rows can solve for the old parameters, and from them
    for the forgotten row and label. In principle the model alone is enough. So after an early stop
    a model is as sensitive as before the removal; ``epsilon=0`` leaves no such trace.

    *When to use it.* Training amplifies small differences. If one person of many is removed, the
    parameters after the removal are usually as far from exact retraining as those before. Similar
    predictions are not evidence of forgetting: networks that differ in one person of many make
    similar predictions anyway. A backdoor that no longer works is evidence.

    *Blocks.* The block of a row depends on its id and the seed only. So blocks have equal sizes and
    equal shares of every class in expectation: with one row per id, the size of a block is binomial
    with mean n/B and a standard deviation of about sqrt(n/B), and likewise within a class.

    *Several ids.* Training starts before the first block with removed rows, and residuals before
    the last such block do not count.

    *Growth.* With large steps, momentum or many epochs, and in the first blocks, a small difference
    grows from block to block until it is as large as the noise of training. "robust" continues
    while it grows by `epsilon` or more; the tail in the receipt estimates the omitted part.

    *Shift.* The shift removes the effect of the forgotten rows on the retrained blocks from all
    later states. Where residuals grew, a shifted state can be farther from the exact one than the
    old state.

    *Receipt.* All `estimates` except `slope` are L1 norms over all parameters. `residual_first` and
    `residual_last` are the first and last residual that counted. `residual_tail` is the estimate of
    the fit for the blocks that were not retrained, and `residual_ceiling` is this sum if the
    residuals continue the trend of their later half.

    *Other libraries.* If versions or the kind of device have changed since the fit, the states are
    still used. The residuals then include the difference of the libraries; a warning reports it.

    *Lost states.* If a state is missing or altered, all blocks are trained from scratch.

    References
    ----------
    He, Meng, Chen, He, Hu (2021). DeepObliviate: a powerful charm for erasing data residual
    memory in deep neural networks. arXiv 2105.06209.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from letheon import DeepObliviateClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = DeepObliviateClassifier(n_blocks=5, device="cpu", random_state=0).fit(X, y)
    >>> receipt = model.forget([3, 77])
    >>> receipt.n_rows, receipt.guarantee.kind, receipt.rebuilt["blocks"] <= 5
    (2, 'empirical', True)
    """

    facts: ClassVar[MethodFacts] = net_facts(
        "deepobliviate",
        efficiency_parameters=("n_blocks", "epsilon", "stop"),
        certifiability_parameters=("epsilon",),
        needs=("incremental-training",),
        search_ranges=lambda _: SearchRanges({"epsilon": (0.05, 0.1)}),
    )
    _parameter_rules: ClassVar[Rules] = {
        "n_blocks": Whole(1),
        "stop": OneOf(("robust", "paper")),
        "stop_origin": OneOf(("block", "one")),
        "patience": Whole(1),
        "anneal": OneOf(("none", "linear", "one-cycle")),
        "epsilon": Interval(
            0,
            expected="the slope below which retraining stops, 0 (retrain to the end) or a positive "
            "number",
        ),
    }

    n_blocks: int = 10
    epochs: int = 10
    stop: str = "robust"
    epsilon: float = 0.1
    stop_origin: str = "block"
    patience: int = 2
    anneal: str = "none"
    optimizer: Any = "sgd"
    learning_rate: float = 0.05
    momentum: float = 0.0

    block_slots_: Integers = field(init=False)
    exact_blocks_: int = field(init=False)
    tail_: float = field(init=False)
    influences_: Floats = field(init=False)
    null_floor_: float | None = field(init=False)

    @property
    def block_sizes_(self) -> Integers:
        """Number of remaining rows in every block."""
        require_fitted(self)
        return Blocks(self.rows_, self.block_slots_).sizes

    @property
    def checkpoint_bytes_(self) -> dict[str, int]:
        """Number of bytes of the states in memory and on disk, as a dict."""
        require_fitted(self)
        return {"memory": self.vault_.bytes_in_memory, "disk": self.vault_.bytes_on_disk}

    def _check_settings(self) -> None:
        super()._check_settings()
        if callable(self.optimizer) and self.anneal != "none":
            raise ValueError(
                f"anneal={self.anneal!r} requires a named optimizer, because a custom optimizer "
                "sets its own learning rate; use 'sgd', 'adam' or 'adamw', or set anneal='none'"
            )

    def _check_training_data(self, X: Any, y: Any, ids: Any) -> TrainingRows:
        data = super()._check_training_data(X, y, ids)
        warn_if_crowded("n_blocks", self.n_blocks, data.rows.ids)
        return data

    def _train_all(self, data: TrainingRows, seed: int, callback: Callback | None) -> Change:
        rows, n_blocks = data.rows, int(self.n_blocks)
        rows.extra[BLOCK] = assign_blocks(rows.ids, seed, n_blocks)
        rows.extra[SLOT] = assign_slots(rows.extra[BLOCK])
        n_slots = np.bincount(rows.extra[BLOCK], minlength=n_blocks)
        context, blocks = self._new_context(data, seed), Blocks(rows, n_slots)
        loop, template = context.get_loop(), context.template
        store, attributes = self._new_checkpoints(n_blocks + 1, template.n_parameters)
        influences = np.zeros(n_blocks)
        with store.fill_or_destroy():
            start = end = before = template.initial_flat(0).to(context.device)
            store.put(0, start)
            for block, end in train_blocks(
                loop, blocks, start, 0, self._block_schedule(), callback
            ):
                influences[block] = l1_distance(end, before)
                store.put(block + 1, end)
                before = end
            floor = self._null_floor(loop, blocks, store) if self.stop == "robust" else None
            nets = self._make_nets(context, end[None], [blocks.positions], data.classes)
        attributes |= {
            "block_slots_": n_slots,
            "exact_blocks_": n_blocks,
            "tail_": 0.0,
            "influences_": influences,
            "null_floor_": floor,
        }
        return self._fit_change(data, context, nets, {"blocks": n_blocks}, **attributes)

    def _block_schedule(self) -> BlockSchedule:
        return BlockSchedule(int(self.epochs), int(self.n_blocks), self.anneal)

    def _null_floor(self, loop: Loop, blocks: Blocks, store: CheckpointStore) -> float:
        """Train the last block with rows again, without a removal; return its relative residual."""
        last = int(np.flatnonzero(blocks.sizes)[-1])
        start, end = load_state(store, last), load_state(store, last + 1)
        again = next(train_blocks(loop, blocks, start, last, self._block_schedule()))[1]
        return relative_residual(l1_distance(again, end), l1_distance(end, start))

    def _prepare_removal(self, removal: Removal, callback: Callback | None) -> Any:
        try:
            return self._unlearn_blocks(removal, callback)
        except CorruptFileError as error:
            change = self._prepare_retrain(removal.where, callback)
            return with_reason(change, str(error), "all blocks were trained again")

    def _unlearn_blocks(
        self, removal: Removal, callback: Callback | None
    ) -> tuple[Change, CheckpointChange]:
        context, store = self._current_context(), self._current_checkpoints()
        blocks = Blocks(self.rows_, self.block_slots_, removal.where)
        touched = self.rows_.extra[BLOCK][removal.where]
        affected = first, last_affected = int(touched.min()), int(touched.max())
        rule = make_rule(self, last_affected, self.null_floor_ or 0.0)
        with store.begin_change() as aside:
            start = load_state(store, first)
            run = train_blocks(
                context.get_loop(), blocks, start, first, self._block_schedule(), callback
            )
            stitched = stitch_run(run, blocks, store, aside, rule, affected, self.influences_)
            nets = self._make_nets(
                context, stitched.end[None], [blocks.positions], self.nets_.classes
            )
            attributes = {"nets_": nets, **self._accuracy_attributes(stitched)}
            change = self._removal_change(removal, attributes, self._make_outcome(stitched, blocks))
        return change, aside

    def _accuracy_attributes(self, run: UnlearningRun) -> dict[str, Any]:
        """Return the fitted attributes that describe the distance from training from scratch."""
        exact = run.last + 1 if run.first <= self.exact_blocks_ else self.exact_blocks_
        tail = 0.0 if exact == int(self.n_blocks) else self.tail_ + run.tail
        influences = self.influences_.copy()
        influences[run.first : run.last + 1] = run.influences
        return {"exact_blocks_": exact, "tail_": tail, "influences_": influences}

    def _make_outcome(self, run: UnlearningRun, blocks: Blocks) -> Outcome:
        residuals, slope = run.rule.residuals, run.rule.slope
        visits = int(blocks.sizes[run.first : run.last + 1].sum())
        estimates = {
            "residual_first": residuals[0],
            "residual_last": residuals[-1],
            "residual_tail": run.tail,
            "residual_ceiling": run.ceiling,
        }
        if slope is not None:
            estimates["slope"] = slope
        warnings: tuple[Warning, ...] = ()
        if self.environment_ != self._describe_environment():
            text = (
                "blocks were retrained with other libraries, or on another device, than the fit; "
            )
            warnings = (EnvironmentWarning(f"{text}the residuals include the difference"),)
        work = visits / int(blocks.sizes.sum())
        return Outcome(work, {"blocks": run.last - run.first + 1}, warnings, estimates)

    def _make_guarantee(self) -> Guarantee:
        measured = "retrained to the end: the parameters of training the blocks from scratch"
        if not self.deterministic:
            measured += ", except for rounding: kernels may add in any order"
        residue: tuple[str, ...] = (_RESIDUAL_SLOTS,)
        if self.null_floor_ is not None:
            residue = (*residue, _RESIDUAL_FLOOR)
        if self.exact_blocks_ < self.n_blocks:
            measured = f"estimated, not bounded: {self.tail_:.3g} in L1 from retraining the blocks"
            residue = (*residue, _RESIDUAL_STATES, _RESIDUAL_INFLUENCES, _RESIDUAL_TAIL)
        return Guarantee(
            kind="empirical",
            reference=f"{_REFERENCE}; {measured}",
            assumptions=_ASSUMPTIONS,
            residual_state=(*residue, *self._list_residue()),
        )
