"""DeltaGrad for networks: removal by replaying gradient descent (Wu et al. 2020)."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from letheon.base import Outcome, Removal
from letheon.data import SlotRows
from letheon.deep._base import NetBase, TrainingContext, net_facts
from letheon.deep._batches import EMPTY, Slots
from letheon.deep._loop import Callback
from letheon.deep._replay import LocalChecks, NetDescent, NetReplay, Path, StepSchedule
from letheon.deep._slots import Positions, alive_mask
from letheon.deep._tasks import NetClassifierMixin
from letheon.exceptions import TrainingError
from letheon.guarantee import Guarantee, MethodFacts, SearchRanges
from letheon.removal import Change, Exactness, TrainingRows
from letheon.validation import POSITIVE, OrNone, Rules, Whole

_REFERENCE = "Wu et al. 2020, Algorithm 4 (no bound for losses that are not convex)"
_ASSUMPTIONS = ("few-rows-leave", "locally-convex", "slots-kept", "seed-independent-of-requests")
_RESIDUAL_STATE = (
    (
        "nets_: the parameters, which differ from those of a retrained model by the error of the "
        "approximate steps"
    ),
    (
        "path_: points and gradients of the descent, rewritten by every removal; approximate ones "
        "are computed from the old path, so forgotten rows and labels can be computed from it and "
        "the remaining rows"
    ),
    "n_slots_ and the slots of rows_: how many rows were removed, and between which rows",
)

_SLOT = "slot"
_PROBED_ROWS = 16
# Relative difference between losses that rounding explains.
_ROUNDING = 1e-3


@dataclass(kw_only=True, eq=False, repr=False)
class DeltaGradNetClassifier(NetClassifierMixin, NetBase):
    """A PyTorch network that forgets by replaying its gradient descent.

    Training is plain stochastic gradient descent, ``w_(t+1) = w_t - rate_t g_t``, where g_t is the
    mean gradient of the n_t rows of a batch. All points w_t and gradients g_t are stored. To forget
    rows, the descent is replayed from the first batch that contains one of them. If m_t rows of
    step t are removed, the step becomes::

        w'_(t+1) = w'_t - rate_t / (n_t - m_t) [ n_t g - sum of grad l_i(w'_t) over those m_t ]

    where ``g`` is the gradient of all n_t rows at ``w'_t``. It is computed from the rows in the
    first steps and every few steps afterwards, and otherwise approximated by ``g_t + B (w'_t -
    w_t)``, where L-BFGS estimates B from the exact steps. B is used only where the loss looks
    convex and smooth; elsewhere the step is exact. The path of the replay replaces the old one, and
    later removals start from it.

    Parameters
    ----------
    module : callable or None, default=None
        Factory of the network: a function of the shape of a row and the number of classes (or
        without arguments) that returns a `torch.nn.Module` whose output is one logit per class.
        None is `MLP()`. Layers that draw random numbers (dropout) or mix rows of a batch
        (BatchNorm) are rejected.
    epochs : int, default=20
        Passes over the rows.
    batch_size : int, default=256
        Slots of every batch; with as many slots as rows, every step uses all rows. B is estimated
        from some batches and used for others, so with small batches most steps become exact or
        inaccurate.
    learning_rate : float, default=0.1
        Step size.
    weight_decay : float, default=0.0
        L2 weight of the parameters, part of every row's gradient.
    schedule : {"constant", "cosine", "one-cycle"}, default="constant"
        Schedule of the learning rate.
    loss : "cross_entropy" or callable, default="cross_entropy"
        Function of logits and class codes that returns one loss per row.
    burn_in : int, default=10
        j0: steps 0 to j0 of a replay are exact.
    period : int, default=5
        T0: one of every T0 steps after j0 is exact. With 1 a removal is a full retraining.
    history : int, default=2
        k: number of pairs that L-BFGS stores.
    min_curvature : float, default=1e-3
        mu: a pair (s, y) of an exact step is used only if ``s.y >= mu s.s``.
    max_smoothness : float or None, default=None
        L: a pair also needs ``|y| <= L |s|``, and a product ``|B v| <= L |v|``. None uses
        ``2 / learning_rate``: gradient descent diverges at a larger curvature.
    max_error : float, default=1.0
        After an exact step, B is used only if it predicted that step: ``|y - B s| <= max_error
        |y|``. An error above |y| is worse than using no B.
    max_distance : float, default=0.1
        Steps with ``|w'_t - w_t| > max_distance |w_t|`` are exact.
    max_memory : int, default=2**30
        A path with more bytes (8 T per parameter, for T steps) is stored in a private temporary
        file, which the system releases without overwriting it. A loaded model has the path in
        memory until its next removal.
    device : str, default="auto"
        "auto" uses a GPU if there is one.
    deterministic : bool, default=True
        Use kernels that add in a fixed order, and one thread on a CPU.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the initial weights and of the batches.

    Attributes
    ----------
    classes_ : ndarray
        Labels of the remaining rows, sorted.
    nets_ : Nets
        The trained network; `to_modules` returns it as a module.
    path_ : Path
        The recorded descent. It is personal data, like the rows.
    n_slots_ : int
        Number of slots: the rows of the last training from scratch.
    rows_, seed_, ids_, guarantee_, n_rows_
        `rows_` has the remaining rows; for the others see `ForgetMixin`.

    Notes
    -----
    **Guarantee**: empirical. The theorem of Wu et al. is about strongly convex losses. Algorithm 4,
    which is used here, has no bound. The result is compared with a retrained model in which the
    slots of removed rows stay empty, so all other rows stay in the same batches; with ``period=1``
    the result is that model, bit by bit on one machine.

    The `estimates` of a receipt are "moved", the distance by which the parameters moved, and
    "missed", an estimate of the distance to the retrained model. For "missed", the errors of ``B
    v`` are measured at the exact steps and summed over the other steps as if their directions were
    independent. It ignores how later steps amplify or damp an error. If no exact step after the
    burn-in has measured the error of ``B v``, it is measured at the last step, so the estimate is 0
    only if all steps were exact.

    **With ``period > 1`` forgotten rows can be computed.** The approximate steps depend on the old
    path, and so on the removed rows: an attacker with the file and the remaining rows can search
    for the row and the label that explain the path. ``period=1`` leaves no such trace.

    Expect small savings. The definition text has measurements: at best a removal took 0.35 to 0.45
    of the time of retraining and covered 0.7 to 0.8 of the distance; with small batches or large
    learning rates it was slower than retraining, or came no closer. `SISANetClassifier` and
    `DeepObliviateClassifier` are the alternatives.

    The model is trained from scratch if less than half of the rows of the last training remain, if
    the last row of a class is removed, or if the replay is not finite.

    References
    ----------
    Wu, Dobriban, Davidson (2020). DeltaGrad: rapid retraining of machine learning models. ICML.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from letheon import DeltaGradNetClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = DeltaGradNetClassifier(epochs=60, device="cpu", random_state=0).fit(X, y)
    >>> receipt = model.forget([3, 77])
    >>> receipt.n_rows, receipt.guarantee.kind, receipt.work < 1
    (2, 'empirical', True)
    """

    facts: ClassVar[MethodFacts] = net_facts(
        "deltagrad-net",
        applicability="torch modules whose loss is a sum over rows, trained by plain SGD",
        efficiency_parameters=("period", "burn_in", "history", "batch_size"),
        certifiability_parameters=(
            "period",
            "min_curvature",
            "max_smoothness",
            "max_error",
            "max_distance",
        ),
        needs=("sum-over-rows", "gradient-descent"),
        search_ranges=lambda _: SearchRanges({"period": (2, 5, 20)}),
    )
    _parameter_rules: ClassVar[Rules] = {
        **dict.fromkeys(("period", "history"), Whole(1)),
        **dict.fromkeys(("burn_in", "max_memory"), Whole(0)),
        **dict.fromkeys(("min_curvature", "max_error", "max_distance"), POSITIVE),
        "max_smoothness": OrNone(POSITIVE),
    }
    # Settings of the loop that are fixed for this method.
    optimizer: ClassVar[str] = "sgd"  # type: ignore[misc]
    momentum: ClassVar[float] = 0.0  # type: ignore[misc]
    precision: ClassVar[str] = "float32"  # type: ignore[misc]
    calibration_rows: ClassVar[int] = 2  # type: ignore[misc]

    batch_size: int = 256
    learning_rate: float = 0.1
    burn_in: int = 10
    period: int = 5
    history: int = 2
    min_curvature: float = 1e-3
    max_smoothness: float | None = None
    max_error: float = 1.0
    max_distance: float = 0.1
    max_memory: int = 2**30

    path_: Path = field(init=False)
    n_slots_: int = field(init=False)

    def _train_all(self, data: TrainingRows, seed: int, callback: Callback | None) -> Change:
        rows, n_slots = data.rows, len(data.rows)
        rows.extra[_SLOT] = np.arange(n_slots)
        context = self._new_context(data, seed)
        _require_separable_rows(context)
        plan = self._make_schedule(_slot_table(rows, n_slots), context)
        start = context.template.initial_flat(0).to(context.device)
        run = NetDescent(context, plan, int(self.max_memory), callback).run(start)
        nets = self._make_nets(context, run.end[None], [np.flatnonzero(rows.alive)], data.classes)
        return self._fit_change(data, context, nets, path_=run.path, n_slots_=n_slots)

    def _make_schedule(self, slots: Slots, context: TrainingContext) -> StepSchedule:
        return StepSchedule.from_slots(slots, context.settings, int(self.epochs), context.seed)

    def _prepare_removal(self, removal: Removal, callback: Callback | None) -> Change:
        if 2 * (len(self.rows_) - removal.n_rows) < self.n_slots_:
            return self._prepare_retrain(removal.where, callback)
        context = self._current_context()
        run = self._replay_without(context, removal.where, callback)
        if not bool(torch.isfinite(run.end).all()):
            return self._prepare_retrain(removal.where, callback)
        staying = np.flatnonzero(alive_mask(self.rows_, removal.where))
        attributes = {
            "nets_": self._make_nets(context, run.end[None], [staying], self.nets_.classes),
            "path_": run.path,
        }
        moved = torch.linalg.vector_norm(run.end - self.nets_.flat[0].to(context.device))
        # The cost of a product, in row gradients with as many flops.
        rows_per_product = (4 * int(self.history) + 3) / 3
        n_rows = max(len(staying) * int(self.epochs), 1)
        outcome = Outcome(
            (run.n_visits + rows_per_product * run.n_approximate) / n_rows,
            {"exact steps": run.n_exact},
            estimates={"moved": float(moved), "missed": run.error_estimate},
        )
        return self._removal_change(removal, attributes, outcome)

    def _replay_without(
        self, context: TrainingContext, removed: Positions, callback: Callback | None
    ) -> NetReplay:
        """Replay the path without the rows at positions `removed`; return the replay."""
        before = self._make_schedule(_slot_table(self.rows_, self.n_slots_), context)
        marked = before.mark_rows(removed)
        after, met = before.without_rows(marked, context.settings), before.rows_by_step(marked)
        # A batch that becomes empty is not a step, and a schedule counts steps.
        rates = enumerate(zip(before.rates, after.rates, strict=True))
        first_change = min([*met, *(step for step, (old, new) in rates if old != new)])
        replay = NetReplay(
            context,
            after,
            int(self.max_memory),
            callback,
            old=self.path_,
            removed=met,
            exactness=Exactness(int(self.burn_in), int(self.period), int(self.history)),
            checks=self._local_checks(),
        )
        return replay.run_from(first_change)

    def _local_checks(self) -> LocalChecks:
        most = self.max_smoothness or 2.0 / self.learning_rate
        limits = self.min_curvature, most, self.max_error, self.max_distance
        return LocalChecks(*map(float, limits))

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(
            kind="empirical",
            reference=_REFERENCE,
            assumptions=_ASSUMPTIONS,
            residual_state=_RESIDUAL_STATE,
        )


def _slot_table(rows: SlotRows, n_slots: int) -> Slots:
    """Return the position of the row in each slot of the last training; -1 for an empty slot."""
    slots, positions = np.full(n_slots, EMPTY), np.flatnonzero(rows.alive)
    slots[rows.extra[_SLOT][positions]] = positions
    return slots


def _require_separable_rows(context: TrainingContext) -> None:
    """Raise `TrainingError` unless the loss of a row depends only on the parameters and the row."""
    template = context.template.to(context.device)
    flat = template.initial_flat(0).to(context.device)
    for name, layer in template.make_module(flat, {}).named_modules():
        if _drop_rate(layer) > 0:
            raise _layer_error(name, layer, "draws random numbers", "a network without dropout")
        if isinstance(layer, _BatchNorm):
            raise _layer_error(name, layer, "mixes the rows of a batch", "nn.GroupNorm or no norm")
    # Spread over all rows: neighbours may be equal, and equal rows cannot show mixing.
    n_rows = len(context.data.y)
    where = np.unique(np.linspace(0, n_rows - 1, _PROBED_ROWS).astype(np.int64))
    chosen = torch.from_numpy(where).to(context.device)
    x, y = context.data.X[chosen], context.data.y[chosen]

    def compute_losses(begin: int, end: int) -> torch.Tensor:
        logits = template.train_logits(flat, x[begin:end].to(torch.float32))
        return context.settings.row_losses(logits, y[begin:end])

    before = _generator_state(context.device)
    with torch.no_grad():
        once, again = compute_losses(0, len(x)), compute_losses(0, len(x))
        alone = torch.cat([compute_losses(row, row + 1) for row in range(len(x))])
    has_drawn = not torch.equal(before, _generator_state(context.device))
    most = _ROUNDING * float(once.abs().max())
    for other, problem in ((again, "draws random numbers"), (alone, "mixes the rows of a batch")):
        if has_drawn or not float((other - once).abs().max()) <= most:
            raise TrainingError(
                f"the module or the loss {problem} in training, so the gradient of a single row "
                "cannot be subtracted; use DeepObliviateClassifier or SISANetClassifier"
            )


def _generator_state(device: torch.device) -> torch.Tensor:
    """Return the state of torch's generator of a device, which changes with every draw."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _drop_rate(layer: nn.Module) -> float:
    """Return the dropout rate of a layer, including attention layers and LSTMs; 0 if none."""
    rate = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0.0)
    return float(rate) if isinstance(rate, float | int) else 0.0


def _layer_error(name: str, layer: nn.Module, problem: str, instead: str) -> TrainingError:
    return TrainingError(
        f"layer {name!r} ({type(layer).__name__}) {problem} in training, so the gradient of a "
        f"single row cannot be subtracted; use {instead}, or DeepObliviateClassifier or "
        "SISANetClassifier"
    )
