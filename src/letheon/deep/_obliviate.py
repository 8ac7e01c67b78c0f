"""Removal by retraining blocks until their residual memory fades (He et al. 2021).

Rows lie in blocks that a net is trained on one after the other, each from where the last ended. The
old run went ``theta_0, ..., theta_B``; the new one starts from ``theta_d``, the state before the
first block d that somebody leaves. With ``s_i = theta'_i - theta_i``, block i leaves the residual

    Delta_i = ||(theta'_(i+1) - theta'_i) - (theta_(i+1) - theta_i)||_1 = ||s_(i+1) - s_i||_1,

and when the run stops after block j, every later state is taken to be ``theta_i + s_(j+1)``. Then
no later block does anything else than in the old run: its influence ``||theta_(i+1) - theta_i||_1``
stays. No theorem says that a shifted state is nearer to the exact one than the old state was.
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
from letheon.deep._base import Floats, alive_without, net_facts, numbered_slots
from letheon.deep._loop import EMPTY, Callback, Loop, Stretch
from letheon.deep._residual import PaperRule, RobustRule, StopRule, ratio
from letheon.deep._vault import CheckpointedNet, Vault, VaultChange, with_reason
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
    "rows_, block_slots_: slots that people left stay empty, so they tell in which blocks, and "
    "where in them, somebody was"
)
_RESIDUAL_FLOOR = "null_floor_: measured with the rows of the last training from scratch"
_RESIDUAL_STATES = (
    "nets_, vault_: the moves of blocks that were not retrained are those of the old run; from "
    "them and the rows held the old states, and with those forgotten rows and labels, can be "
    "computed"
)
_RESIDUAL_INFLUENCES = (
    "influences_: the norms of retrained blocks are replaced, those of later blocks were measured "
    "in a run that saw the forgotten rows"
)
_RESIDUAL_TAIL = "tail_: a sum of estimates that were made from the movement of forgotten rows"

BLOCK, SLOT = "block", "slot"
# Share of the blocks over which the learning rate rises.
_WARM_UP = 0.1


def blocks_of(ids: Ids, seed: int, n_blocks: int) -> Integers:
    """Return the block of every row: ``keyed_hash(seed, "block", id) mod n_blocks``."""
    return (ids.hashes(seed, Purpose.BLOCK) % np.uint64(n_blocks)).astype(np.int64)


class Pace(NamedTuple):
    """How every block is trained: passes over it, and the learning rate over the blocks."""

    epochs: int
    n_blocks: int
    anneal: str

    def rate(self, block: int) -> float:
        """Return the factor of the learning rate in block ``b = 0, ..., B - 1``.

        1 ("none"), ``1 - b / B`` ("linear"), or the smaller of that and
        ``(b + 1) / max(B / 10, 1)`` ("one-cycle", which is "linear" up to 10 blocks).
        """
        if self.anneal == "none":
            return 1.0
        fall = 1.0 - block / self.n_blocks
        rise = (block + 1) / max(_WARM_UP * self.n_blocks, 1.0)
        return min(fall, rise) if self.anneal == "one-cycle" else fall


class Blocks:
    """Who is in which slot of which block.

    Parameters
    ----------
    rows : SlotRows
        Rows with their `block` and `slot`.
    n_slots : ndarray of int64, shape (B,)
        Slots of every block, those of people who left included.
    leaving : ndarray of int64, optional
        Positions of rows that are about to leave; they count as gone.
    """

    def __init__(self, rows: SlotRows, n_slots: Integers, leaving: Integers | None = None) -> None:
        self._block, self._slot, self._n_slots = rows.extra[BLOCK], rows.extra[SLOT], n_slots
        self._alive = alive_without(rows, leaving)
        self.sizes: Integers = np.bincount(self._block[self._alive], minlength=len(n_slots))

    def __len__(self) -> int:
        return len(self._n_slots)

    @property
    def positions(self) -> Integers:
        """Positions of all rows."""
        return np.flatnonzero(self._alive)

    def slots(self, block: int) -> Integers:
        """Return the positions of a block's rows in slot order, -1 where nobody is."""
        here = np.flatnonzero(self._alive & (self._block == block))
        slots = np.full(self._n_slots[block], EMPTY)
        slots[self._slot[here]] = here
        return slots


def train_blocks(
    loop: Loop,
    blocks: Blocks,
    start: Tensor,
    first: int,
    pace: Pace,
    callback: Callback | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Train block `first` from `start` on, the next, and so on to the end.

    Yields the number of a block and the parameters after it; one without rows changes nothing.
    """
    flat, n_parts = start[None], len(blocks) - first
    for block in range(first, len(blocks)):
        if blocks.sizes[block]:
            slots, rate = (blocks.slots(block),), pace.rate(block)
            stretch = Stretch(block, slots, pace.epochs, rate, kind="block")
            flat = loop.train(flat, stretch, callback, (block - first, n_parts))
        yield block, flat[0]


@dataclass(frozen=True, eq=False, repr=False)
class Stitched(Opaque):
    """What an unlearning run came to.

    Attributes
    ----------
    first, last : int
        First and last block of the run.
    end : Tensor of shape (p,)
        Parameters of the model.
    tail, ceiling : float
        Estimated sum of the residuals that were not computed, and what it is if they go on as
        the later half of the others did.
    influences : ndarray of float64, shape (last - first + 1,)
        L1 norm of what every block of the run did.
    rule : StopRule
        With the residuals that it was given.
    """

    first: int
    last: int
    end: Tensor
    tail: float
    ceiling: float
    influences: Floats
    rule: StopRule


def make_rule(model: Any, last_affected: int, floor: float) -> StopRule:
    """Return the stop rule of a model; residuals count from block `last_affected` on."""
    if model.stop == "robust":
        return RobustRule(model.epsilon, floor, patience=int(model.patience))
    return PaperRule(model.epsilon, last_affected + 1, model.stop_origin)


def entry(vault: Vault, i: int) -> Tensor:
    """Return a state that must be there."""
    state = vault.get(i)
    if state is None:
        raise CorruptFileError(f"the state before block {i} is not among the checkpoints")
    return state


def distance(one: Tensor, two: Tensor) -> float:
    """Return the L1 distance of two vectors, added up in float64."""
    return float((one - two).abs().sum(dtype=torch.float64))


def stitch(
    run: Iterable[tuple[int, Tensor]],
    blocks: Blocks,
    vault: Vault,
    aside: VaultChange,
    rule: StopRule,
    affected: tuple[int, int],
    influences: Floats,
) -> Stitched:
    """Follow a run until the rule stops it; write all states that change aside.

    Parameters
    ----------
    run : iterable of (block, parameters after it)
        The new run, from the first affected block on.
    blocks : Blocks
        Rows that stay.
    vault, aside : Vault, VaultChange
        States of the old run, entry i the one before block i; and room for the new ones.
    rule : StopRule
        Takes the residuals.
    affected : tuple of int
        First and last block that somebody leaves. No residual before the last one counts.
    influences : ndarray of float64, shape (B,)
        L1 norm of what every block did in the old run.
    """
    first, last_affected = affected
    last, end = first, entry(vault, first)
    old, shift, done = end, torch.zeros_like(end), list[float]()
    for last, new in run:
        aside.set(last + 1, new)
        done.append(distance(new, end))
        before, old_before, old, end = shift, old, entry(vault, last + 1), new
        shift = end - old
        counts = last == last_affected or (last > last_affected and blocks.sizes[last] > 0)
        stops = counts and rule.update(distance(shift, before), distance(old, old_before))
        # Blocks without rows cost nothing, so a run that has only those ahead goes to the end.
        if stops and blocks.sizes[last + 1 :].any():
            break
    if last + 1 < len(blocks):
        aside.shift(shift, range(last + 2, len(blocks) + 1))
        end = entry(vault, len(blocks)) + shift
    left = influences[last + 1 :][blocks.sizes[last + 1 :] > 0]
    tail, ceiling = rule.left_out(left)
    return Stitched(first, last, end, tail, ceiling, np.array(done), rule)


@dataclass(kw_only=True, eq=False, repr=False)
class DeepObliviateClassifier(CheckpointedNet):
    """Any torch module, trained block by block so that forgetting retrains few of them.

    People are spread over B blocks by a keyed hash of their id. The net is trained on block after
    block, each from where the last ended, and the parameters ``theta_0, ..., theta_B`` between
    them are kept. To forget someone of block d, training starts again from the state before d,
    without their rows. Every block leaves a residual,

        Delta_i = ||(theta'_(i+1) - theta'_i) - (theta_(i+1) - theta_i)||_1,

    theta' being the new run. When the residuals are stable after block j by the rule of `stop`,
    the rest is not trained: every later state, and the model, moves by
    ``theta'_(j+1) - theta_(j+1)``. The old states are destroyed, but after an early stop they can
    be computed again; see Notes.

    Parameters
    ----------
    module : callable or None, default=None
        Factory of the net: takes the shape of a row and the number of classes (or nothing) and
        returns a `torch.nn.Module` whose output is one logit per class. None is `MLP()`.
    n_blocks : int, default=10
        B. More blocks forget faster and cost one saved state each.
    epochs : int, default=10
        Passes over every block.
    stop : {"robust", "paper"}, default="robust"
        "robust" looks at ``r_i = Delta_i / ||theta_(i+1) - theta_i||_1``, the residual relative to
        what the block did in the old run. It fits ``a x^-alpha + b`` over ``x = 1, 2, ...`` and
        stops when, `patience` times in a row, neither the law nor the line through the later half
        of the series changes by `epsilon` per block, or r is not above twice `null_floor_`; it
        needs 4 residuals (`patience` near the floor). "paper" is the published rule: alpha by
        detrended fluctuation analysis, stop when the slope of the law of Delta itself is below
        `epsilon`; it needs 8 residuals.
    epsilon : float, default=0.1
        Largest change per block that counts as stable: a share of the block's own influence
        ("robust"), or an L1 norm over all parameters ("paper"). 0 retrains to the end.
    stop_origin : {"block", "one"}, default="block"
        For "paper": whether x counts blocks from the first one, as published, or from the last
        block that somebody left.
    patience : int, default=2
        For "robust": how often in a row the residual must be found stable.
    anneal : {"none", "linear", "one-cycle"}, default="none"
        How the learning rate goes over the blocks: the same in all of them; ``1 - b / B`` times it
        in block b; or that after a rise over the first tenth of the blocks. A rate that falls makes
        later blocks disturb less what was learned, and their residuals weigh less. Needs an
        optimiser by name.
    optimizer : {"sgd", "adam", "adamw"} or callable, default="sgd"
        By name, or a factory that takes parameters and returns a `torch.optim.Optimizer`. It
        starts afresh at every block.
    learning_rate, momentum, weight_decay : float, default=0.05, 0.0, 0.0
        For optimisers by name; momentum is that of "sgd". Residuals fade only with small steps.
    schedule : {"constant", "cosine", "one-cycle"}, default="constant"
        How the learning rate goes over a block.
    loss : "cross_entropy" or callable, default="cross_entropy"
        Takes logits and class codes and returns one loss per row.
    batch_size : int, default=64
        Slots of every batch.
    precision : {"float32", "tf32", "bfloat16"}, default="float32"
        Of the forward pass; parameters are float32.
    calibration_rows : int, default=4096
        Rows from which BatchNorm's running statistics are taken after training.
    checkpoint_dir : path or None, default=None
        Where states are kept as files; None keeps them in memory.
    max_memory : int or None, default=None
        Bytes of states above which they lie in a temporary file without a name.
    device : str, default="auto"
        "auto" is the GPU where there is one.
    deterministic : bool, default=True
        Kernels that add in a fixed order, and one thread on a CPU. Without it the old and the new
        run differ by noise that does not fade.
    random_state : int, RandomState, Generator or None, default=None
        Seed of everything random. None draws 128 bits from the operating system.

    Attributes
    ----------
    classes_ : ndarray
        Labels still held, sorted. When the last row of a class leaves, all blocks are trained
        again: the net loses a logit.
    block_sizes_ : ndarray of shape (B,)
        Rows of every block now.
    block_slots_ : ndarray of shape (B,)
        Rows of every block at the last training from scratch.
    exact_blocks_ : int
        So many first blocks have the states that training them from scratch, with the slots as
        they are, gives: each block with the libraries and on the device that it was last trained
        with. B after `fit`, and again after a request that retrained all others.
    tail_ : float
        Estimated L1 distance of the parameters from those, summed over requests; 0 while
        ``exact_blocks_`` is B.
    influences_ : ndarray of shape (B,)
        L1 norm of what every block did to the parameters when it was last trained. A shift of
        the states after it does not change that.
    null_floor_ : float or None
        Relative residual of a replay of the last block in which nobody left; only for
        ``stop="robust"``.
    checkpoint_bytes_ : dict
        Bytes that the states take in memory and on disk.
    nets_ : Nets
        The trained net; `to_modules` gives it as a module.
    rows_, vault_
        Rows and saved states. A saved model is personal data.
    seed_, ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    Notes
    -----
    **Guarantee**: empirical. That residuals fade is an observation. `tail_` and the estimates in
    a receipt extrapolate it; `epsilon` bounds a slope and not an error. With ``epsilon=0`` a
    request retrains to the end; with ``deterministic=True`` the model then has the bytes of
    training the blocks from scratch with the same slots. That is not a new `fit`, which closes the
    slots that people left.

    **After an early stop forgotten rows can be computed.** A shift cancels in differences: blocks
    that were not retrained move as they did in the run that saw who left. Whoever has file and
    rows can solve for the parameters from which a block moves like that, which are the old ones,
    and from them for the row and the label that left. The model alone is enough in principle. So
    a model is as private after an early stop as before the request; ``epsilon=0`` leaves nothing.

    *What it is good for.* Training amplifies small differences whatever one does, so for one
    person of many the parameters after a request are mostly as far from exact retraining as before
    it. That both answer alike is no evidence of forgetting: nets that differ in one person of many
    do so anyway. A backdoor that somebody brought, and that works no more, is.

    *Blocks.* The block of a person depends on their id and the seed only. So blocks are equal and
    have equal shares of every class in expectation: with one row each, the size of a block is
    binomial with mean n/B and a standard deviation of about sqrt(n/B), and likewise within a class.

    *Several people.* Training starts before the first block that somebody leaves, and no residual
    before the last one counts.

    *Growth.* With large steps, momentum or many epochs, and in the first blocks, a small difference
    grows from block to block until it is as large as the noise of training. "robust" goes on
    while it grows by `epsilon` or more; the tail in the receipt says what is left out.

    *Shift.* It takes what retrained blocks learned from who leaves out of all later states. Where
    residuals grew, a shifted state can be farther from the exact one than the old state was.

    *Receipt.* In `estimates`, all but `slope` in L1 over all parameters: `residual_first` and
    `residual_last`, of the blocks that counted; `residual_tail`, what was not retrained by the
    fitted law, and `residual_ceiling`, if the residuals go on as their later half did.

    *Other libraries.* If versions or the kind of device are not those of the fit, states are still
    used, and the residuals hold the difference of the libraries too; a warning says so.

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
        """Rows of every block now."""
        require_fitted(self)
        return Blocks(self.rows_, self.block_slots_).sizes

    @property
    def checkpoint_bytes_(self) -> dict[str, int]:
        """Bytes that the states take in memory and on disk."""
        require_fitted(self)
        return {"memory": self.vault_.bytes_in_memory, "disk": self.vault_.bytes_on_disk}

    def _check_settings(self) -> None:
        super()._check_settings()
        if callable(self.optimizer) and self.anneal != "none":
            raise ValueError(
                f"anneal={self.anneal!r} needs an optimizer by name: an optimiser of your own has "
                "its own learning rate"
            )

    def _hold(self, X: Any, y: Any, ids: Any) -> TrainingRows:
        held = super()._hold(X, y, ids)
        warn_if_crowded("n_blocks", self.n_blocks, held.rows.ids)
        return held

    def _train(self, held: TrainingRows, seed: int, callback: Callback | None) -> Change:
        rows, n_blocks = held.rows, int(self.n_blocks)
        rows.extra[BLOCK] = blocks_of(rows.ids, seed, n_blocks)
        rows.extra[SLOT] = numbered_slots(rows.extra[BLOCK])
        n_slots = np.bincount(rows.extra[BLOCK], minlength=n_blocks)
        workshop, blocks = self._new_workshop(held, seed), Blocks(rows, n_slots)
        loop, template = workshop.loop(), workshop.template
        vault, attributes = self._new_vault(n_blocks + 1, template.n_parameters)
        influences = np.zeros(n_blocks)
        with vault.filling():
            start = end = before = template.initial(0).to(workshop.device)
            vault.put(0, start)
            for block, end in train_blocks(loop, blocks, start, 0, self._pace(), callback):
                influences[block] = distance(end, before)
                vault.put(block + 1, end)
                before = end
            floor = self._null_floor(loop, blocks, vault) if self.stop == "robust" else None
            nets = self._nets(workshop, end[None], [blocks.positions], held.classes)
        attributes |= {
            "block_slots_": n_slots,
            "exact_blocks_": n_blocks,
            "tail_": 0.0,
            "influences_": influences,
            "null_floor_": floor,
        }
        return self._trained(held, workshop, nets, {"blocks": n_blocks}, **attributes)

    def _pace(self) -> Pace:
        return Pace(int(self.epochs), int(self.n_blocks), self.anneal)

    def _null_floor(self, loop: Loop, blocks: Blocks, vault: Vault) -> float:
        """Train the last block that has rows once more; return its residual, relative to it."""
        last = int(np.flatnonzero(blocks.sizes)[-1])
        start, end = entry(vault, last), entry(vault, last + 1)
        again = next(train_blocks(loop, blocks, start, last, self._pace()))[1]
        return ratio(distance(again, end), distance(end, start))

    def _remove(self, removal: Removal, callback: Callback | None) -> Any:
        try:
            return self._stitched(removal, callback)
        except CorruptFileError as error:
            change = self._retrain(removal.where, callback)
            return with_reason(change, str(error), "all blocks were trained again")

    def _stitched(self, removal: Removal, callback: Callback | None) -> tuple[Change, VaultChange]:
        workshop, vault = self._workshop(), self._vault()
        blocks = Blocks(self.rows_, self.block_slots_, removal.where)
        touched = self.rows_.extra[BLOCK][removal.where]
        affected = first, last_affected = int(touched.min()), int(touched.max())
        rule = make_rule(self, last_affected, self.null_floor_ or 0.0)
        with vault.begin() as aside:
            start = entry(vault, first)
            run = train_blocks(workshop.loop(), blocks, start, first, self._pace(), callback)
            stitched = stitch(run, blocks, vault, aside, rule, affected, self.influences_)
            nets = self._nets(workshop, stitched.end[None], [blocks.positions], self.nets_.classes)
            attributes = {"nets_": nets, **self._accuracy(stitched)}
            change = self._without(removal, attributes, self._outcome(stitched, blocks))
        return change, aside

    def _accuracy(self, run: Stitched) -> dict[str, Any]:
        """Return what is known afterwards about the distance to training from scratch."""
        exact = run.last + 1 if run.first <= self.exact_blocks_ else self.exact_blocks_
        tail = 0.0 if exact == int(self.n_blocks) else self.tail_ + run.tail
        influences = self.influences_.copy()
        influences[run.first : run.last + 1] = run.influences
        return {"exact_blocks_": exact, "tail_": tail, "influences_": influences}

    def _outcome(self, run: Stitched, blocks: Blocks) -> Outcome:
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
            text = "blocks were retrained with other libraries, or on another device, than those "
            warnings = (EnvironmentWarning(f"{text}of the fit; the residuals hold the difference"),)
        work = visits / int(blocks.sizes.sum())
        return Outcome(work, {"blocks": run.last - run.first + 1}, warnings, estimates)

    def _make_guarantee(self) -> Guarantee:
        measured = "retrained to the end: the parameters of training the blocks from scratch"
        if not self.deterministic:
            measured += ", but for what kernels that add in any order change"
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
