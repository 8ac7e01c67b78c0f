"""Removal by retraining blocks until their residual memory fades (He et al. 2021)."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from letheon.base import Outcome, Removal, require_fitted
from letheon.deep._loop import Callback, Loop
from letheon.deep._stitch import (
    ANNEALS,
    BLOCK,
    ORIGINS,
    SLOT,
    STOPS,
    Blocks,
    Floats,
    Integers,
    Pace,
    Stitched,
    Watch,
    blocks_of,
    distance,
    entry,
    numbered_slots,
    ratio,
    stitch,
    train_blocks,
)
from letheon.deep._vault import CheckpointedNet, Vault, VaultChange, with_reason
from letheon.exceptions import (
    CorruptFileError,
    EnvironmentWarning,
)
from letheon.guarantee import Guarantee, MethodFacts, SearchRanges
from letheon.removal import Change, TrainingRows
from letheon.sharded import warn_if_crowded
from letheon.validation import Interval, OneOf, Rules, Whole

FACTS = MethodFacts(
    method="deepobliviate",
    applicability="any torch module that classifies",
    exact=False,
    strength="strong",
    efficiency_parameters=("n_blocks", "epsilon", "stop"),
    certifiability_parameters=("epsilon",),
    requests="oblivious",
    releases="latest-only",
    state_holds_rows=True,
    definition_name="deepobliviate",
    families=("net",),
    tasks=("classification",),
    needs=("incremental-training",),
    certificate="empirical",
    batches=True,
    search_ranges=lambda _: SearchRanges({"epsilon": (0.05, 0.1)}),
)

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

    facts: ClassVar[MethodFacts] = FACTS
    _parameter_rules: ClassVar[Rules] = {
        "n_blocks": Whole(1),
        "stop": OneOf(STOPS),
        "stop_origin": OneOf(ORIGINS),
        "patience": Whole(1),
        "anneal": OneOf(ANNEALS),
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
        watch = Watch(self, last_affected, self.null_floor_ or 0.0)
        with vault.begin() as aside:
            start = entry(vault, first)
            run = train_blocks(workshop.loop(), blocks, start, first, self._pace(), callback)
            stitched = stitch(run, blocks, vault, aside, watch, affected, self.influences_)
            nets = self._nets(workshop, stitched.end[None], [blocks.positions], self.nets_.classes)
            attributes = {"nets_": nets, **self._accuracy(stitched)}
            change = self._without(removal, attributes, self._outcome(stitched, blocks))
        return change, aside

    def _accuracy(self, found: Stitched) -> dict[str, Any]:
        """Return what is known afterwards about the distance to training from scratch."""
        n_blocks, exact = int(self.n_blocks), self.exact_blocks_
        if found.first <= exact:
            exact = found.last + 1
        tail = 0.0 if exact == n_blocks else self.tail_ + found.tail
        influences = self.influences_.copy()
        influences[found.first : found.last + 1] = found.influences
        return {"exact_blocks_": exact, "tail_": tail, "influences_": influences}

    def _outcome(self, found: Stitched, blocks: Blocks) -> Outcome:
        visits = int(blocks.sizes[found.first : found.last + 1].sum())
        rebuilt = {"blocks": found.last - found.first + 1}
        warnings: tuple[Warning, ...] = ()
        if self.environment_ != self._environment():
            text = "blocks were retrained with other libraries, or on another device, than those "
            warnings = (EnvironmentWarning(f"{text}of the fit; the residuals hold the difference"),)
        work = visits / int(blocks.sizes.sum())
        return Outcome(work, rebuilt, warnings, found.estimates())

    def _claim(self) -> Guarantee:
        measured = "retrained to the end: the parameters of training the blocks from scratch"
        if not self.deterministic:
            measured += ", but for what kernels that add in any order change"
        residue: tuple[str, ...] = (_RESIDUAL_SLOTS,)
        if self.null_floor_ is not None:
            residue = (*residue, _RESIDUAL_FLOOR)
        if self.exact_blocks_ < self.n_blocks:
            measured = f"estimated, not bounded: {self.tail_:.3g} in L1 from retraining the blocks"
            residue = (*residue, _RESIDUAL_STATES, _RESIDUAL_INFLUENCES, _RESIDUAL_TAIL)
        return self._state_claim(
            "empirical",
            f"{_REFERENCE}; {measured}",
            _ASSUMPTIONS,
            (*residue, *self._residue()),
        )
