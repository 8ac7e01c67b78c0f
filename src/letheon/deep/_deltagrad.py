"""DeltaGrad for nets: removal by replaying stochastic gradient descent (Wu et al. 2020)."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from letheon.base import Outcome, Removal
from letheon.data import SlotRows
from letheon.deep._base import NetBase, Positions, Workshop, alive_without, net_facts
from letheon.deep._loop import EMPTY, Callback, Slots
from letheon.deep._replay import Descent, LocalChecks, Path, Plan, Replay
from letheon.exceptions import TrainingError
from letheon.guarantee import Guarantee, MethodFacts, SearchRanges
from letheon.removal import Change, Exactness, TrainingRows
from letheon.validation import POSITIVE, OrNone, Rules, Whole

_REFERENCE = "Wu et al. 2020, Algorithm 4 (no bound for losses that are not convex)"
_ASSUMPTIONS = ("few-rows-leave", "locally-convex", "slots-kept", "seed-independent-of-requests")
_RESIDUAL_STATE = (
    "nets_: the parameters, off those of a retrain by what the approximate steps missed",
    (
        "path_: points and gradients of the descent, rewritten by every request; approximate ones "
        "are made from those of the old path, so that forgotten rows and labels can be computed "
        "from it and the rows held"
    ),
    "n_slots_ and the slots of rows_: that somebody left, and between whom",
)

_SLOT = "slot"
_PROBED_ROWS = 16
# Relative difference between losses that rounding explains.
_ROUNDING = 1e-3


@dataclass(kw_only=True, eq=False, repr=False)
class DeltaGradNetClassifier(NetBase):
    """Any torch module that forgets by replaying its gradient descent.

    Training is plain stochastic gradient descent, ``w_(t+1) = w_t - rate_t g_t``, g_t the mean
    gradient of the n_t rows of a batch; all points w_t and gradients g_t are kept. To forget, it is
    replayed from the first batch with somebody who leaves; m_t are how many of step t do::

        w'_(t+1) = w'_t - rate_t / (n_t - m_t) [ n_t g - sum of grad l_i(w'_t) over those m_t ]

    where ``g`` is the gradient of all n_t rows at ``w'_t``: computed from the rows in the first
    steps and every few steps after, otherwise ``g_t + B (w'_t - w_t)`` with B by L-BFGS from the
    exact steps. B is used only where the loss looked convex and smooth; elsewhere the step is
    exact. The path that the replay takes replaces the old one: later requests start from it.

    Parameters
    ----------
    module : callable or None, default=None
        Factory of the net: takes the shape of a row and the number of classes (or nothing) and
        returns a `torch.nn.Module` whose output is one logit per class. None is `MLP()`. Layers
        that draw random numbers (dropout) or mix rows of a batch (BatchNorm) are refused.
    epochs : int, default=20
        Passes over the rows.
    batch_size : int, default=256
        Slots of every batch; as many as rows or more makes every step a full one. B is made from
        other batches than it is used for: with small ones most steps end up exact, or wrong.
    learning_rate : float, default=0.1
        Step size.
    weight_decay : float, default=0.0
        L2 weight of the parameters, part of every row's gradient.
    schedule : {"constant", "cosine", "one-cycle"}, default="constant"
        How the learning rate goes.
    loss : "cross_entropy" or callable, default="cross_entropy"
        Takes logits and class codes and returns one loss per row.
    burn_in : int, default=10
        j0: steps 0 to j0 of a replay are exact.
    period : int, default=5
        T0: every so many steps after j0 one is exact. With 1 a request is a retrain.
    history : int, default=2
        k: pairs that L-BFGS remembers.
    min_curvature : float, default=1e-3
        mu: a pair (s, y) of an exact step is used only if ``s.y >= mu s.s``.
    max_smoothness : float or None, default=None
        L: and only if ``|y| <= L |s|``; a product only if ``|B v| <= L |v|``. None takes
        ``2 / learning_rate``: with larger curvature no descent goes down.
    max_error : float, default=1.0
        After an exact step B is used only if it had foretold it: ``|y - B s| <= max_error |y|``.
        A B that misses by more than |y| is worse than none.
    max_distance : float, default=0.1
        Steps with ``|w'_t - w_t| > max_distance |w_t|`` are exact.
    max_memory : int, default=2**30
        A path of more bytes, 8 T per parameter, lies in a private temporary file, which the system
        takes back without overwriting it. Loaded models hold it in memory until their next request.
    device : str, default="auto"
        "auto" is the GPU where there is one.
    deterministic : bool, default=True
        Kernels that add in a fixed order, and one thread on a CPU.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the initial weights and of the batches.

    Attributes
    ----------
    classes_ : ndarray
        Labels still held, sorted.
    nets_ : Nets
        The trained net; `to_modules` gives it as a module.
    path_ : Path
        The path. Private, as the rows are.
    n_slots_ : int
        Rows of the last training from scratch: the places in its batches.
    rows_, seed_, ids_, guarantee_, n_rows_
        Rows held, and see `ForgetMixin`.

    Notes
    -----
    **Guarantee**: empirical. The theorem of Wu et al. is about strongly convex losses. Algorithm 4,
    which is used here, has no bound. A request is compared with a retrain in which the rows that
    left leave their slots empty, so that everybody else stays in the same batches; with
    ``period=1`` it is that retrain, bit by bit on one machine.

    A receipt's `estimates` have "moved", the distance that the request moved the parameters, and
    "missed", an estimate of how far the result is from the retrain: the errors of ``B v`` that the
    exact steps find, added up over the others as if their directions were independent. It leaves
    out how later steps make an error grow or shrink. If no exact step after the burn-in has
    compared ``B v`` with the rows, the last one does, so it is 0 only if all steps were exact.

    **With ``period > 1`` forgotten rows can be computed.** What approximate steps leave in the path
    depends on the old path, and so on the row that left: whoever has file and rows can look for
    the row and the label that leave it so. ``period=1`` leaves nothing.

    Expect little. The definition text has measurements: at best a request took 0.35 to 0.45 of the
    time of a retrain and left 0.2 to 0.3 of the way undone; with small batches or large rates it
    was slower than a retrain, or came no nearer to it. `SISANetClassifier` and
    `DeepObliviateClassifier` are the alternatives.

    A request that leaves less than half of the rows of the last training, that takes the last row
    of a class, or whose replay is not finite, is answered by training from scratch.

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
    # Settings of the loop that this method does not leave open.
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

    def _train(self, held: TrainingRows, seed: int, callback: Callback | None) -> Change:
        rows, n_slots = held.rows, len(held.rows)
        rows.extra[_SLOT] = np.arange(n_slots)
        workshop = self._new_workshop(held, seed)
        _require_separable_rows(workshop)
        plan = self._plan(_slots(rows, n_slots), workshop)
        start = workshop.template.initial(0).to(workshop.device)
        run = Descent(workshop, plan, int(self.max_memory), callback).run(start)
        nets = self._nets(workshop, run.end[None], [np.flatnonzero(rows.alive)], held.classes)
        return self._trained(held, workshop, nets, path_=run.path, n_slots_=n_slots)

    def _plan(self, slots: Slots, workshop: Workshop) -> Plan:
        return Plan.make(slots, workshop.settings, int(self.epochs), workshop.seed)

    def _remove(self, removal: Removal, callback: Callback | None) -> Change:
        if 2 * (len(self.rows_) - removal.n_rows) < self.n_slots_:
            return self._retrain(removal.where, callback)
        workshop = self._workshop()
        run = self._replayed(workshop, removal.where, callback)
        if not bool(torch.isfinite(run.end).all()):
            return self._retrain(removal.where, callback)
        staying = np.flatnonzero(alive_without(self.rows_, removal.where))
        attributes = {
            "nets_": self._nets(workshop, run.end[None], [staying], self.nets_.classes),
            "path_": run.path,
        }
        moved = torch.linalg.vector_norm(run.end - self.nets_.flat[0].to(workshop.device))
        # A product counts as the rows whose gradient takes as many flops.
        rows_per_product = (4 * int(self.history) + 3) / 3
        n_rows = max(len(staying) * int(self.epochs), 1)
        outcome = Outcome(
            (run.n_visits + rows_per_product * run.n_approximate) / n_rows,
            {"exact steps": run.n_exact},
            estimates={"moved": float(moved), "missed": run.missed},
        )
        return self._without(removal, attributes, outcome)

    def _replayed(
        self, workshop: Workshop, leaving: Positions, callback: Callback | None
    ) -> Replay:
        """Replay the path without some rows."""
        before = self._plan(_slots(self.rows_, self.n_slots_), workshop)
        marked = before.where(leaving)
        after, met = before.without(marked, workshop.settings), before.meetings(marked)
        # A batch that becomes empty is no step, and a schedule counts steps.
        rates = enumerate(zip(before.rates, after.rates, strict=True))
        first_change = min([*met, *(step for step, (old, new) in rates if old != new)])
        replay = Replay(
            workshop,
            after,
            int(self.max_memory),
            callback,
            old=self.path_,
            leaving=met,
            exactness=Exactness(int(self.burn_in), int(self.period), int(self.history)),
            checks=self._local_checks(),
        )
        return replay.replay(first_change)

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


def _slots(rows: SlotRows, n_slots: int) -> Slots:
    """Return the positions of rows by the slots they had at the last training, -1 for nobody."""
    slots, held = np.full(n_slots, EMPTY), np.flatnonzero(rows.alive)
    slots[rows.extra[_SLOT][held]] = held
    return slots


def _require_separable_rows(workshop: Workshop) -> None:
    """Raise unless the loss of a row depends on the parameters and on this row alone."""
    template = workshop.template.to(workshop.device)
    flat = template.initial(0).to(workshop.device)
    for name, layer in template.answering(flat, {}).named_modules():
        if _drop_rate(layer) > 0:
            raise _refusal(name, layer, "draws random numbers", "a net without dropout")
        if isinstance(layer, _BatchNorm):
            raise _refusal(name, layer, "mixes the rows of a batch", "nn.GroupNorm or no norm")
    # From all over: neighbours may be equal, and equal rows do not show that they are mixed.
    n_rows = len(workshop.data.y)
    where = np.unique(np.linspace(0, n_rows - 1, _PROBED_ROWS).astype(np.int64))
    x, y = (part[torch.from_numpy(where).to(workshop.device)] for part in workshop.data)

    def losses(begin: int, end: int) -> torch.Tensor:
        logits = template.train_logits(flat, x[begin:end].to(torch.float32))
        return workshop.settings.row_losses(logits, y[begin:end])

    before = _generator_state(workshop.device)
    with torch.no_grad():
        once, again = losses(0, len(x)), losses(0, len(x))
        alone = torch.cat([losses(row, row + 1) for row in range(len(x))])
    has_drawn = not torch.equal(before, _generator_state(workshop.device))
    most = _ROUNDING * float(once.abs().max())
    for other, what in ((again, "draws random numbers"), (alone, "mixes the rows of a batch")):
        if has_drawn or not float((other - once).abs().max()) <= most:
            raise TrainingError(
                f"the module or the loss {what} in training, so the gradient of a row that leaves "
                "cannot be taken out of what was learned; use DeepObliviateClassifier or "
                "SISANetClassifier"
            )


def _generator_state(device: torch.device) -> torch.Tensor:
    """Return where torch's generator of a device stands; draws move it."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _drop_rate(layer: nn.Module) -> float:
    """Return how often a layer drops numbers, as far as it says; attention and LSTMs do, too."""
    rate = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0.0)
    return float(rate) if isinstance(rate, float | int) else 0.0


def _refusal(name: str, layer: nn.Module, what: str, instead: str) -> TrainingError:
    return TrainingError(
        f"layer {name!r} ({type(layer).__name__}) {what} in training, so the gradient of a row "
        f"that leaves cannot be taken out of what was learned; use {instead}, or "
        "DeepObliviateClassifier or SISANetClassifier"
    )
