"""Scrubbing of networks with Fisher noise (Golatkar et al. 2020; survey section 5.1)."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from letheon.base import Outcome, Removal
from letheon.deep._base import NetBase, TrainingContext, net_facts
from letheon.deep._information import (
    FisherBatch,
    FisherBatches,
    FisherInformation,
    Power,
    diagonal_fisher,
    kronecker_fisher,
)
from letheon.deep._loop import Callback, TrainingPhase
from letheon.deep._slots import Positions, alive_mask, assign_slots, sample_calibration_rows
from letheon.deep._tasks import NetClassifierMixin
from letheon.exceptions import TrainingError
from letheon.guarantee import Guarantee, MethodFacts, SearchRanges
from letheon.noise import NoiseSource
from letheon.removal import Change, TrainingRows, opaque_repr
from letheon.seeds import Purpose, mix64
from letheon.validation import POSITIVE, Interval, OneOf, OrNone, Rules, Whole

_REFERENCES = {
    0.25: "Golatkar et al. 2020, Lagrangian with noise F^(-1/4); not proved for networks",
    0.5: "Golatkar et al. 2020 as in the authors' code, noise F^(-1/2); not proved for networks",
}
_SECRET, _QUADRATIC = "noise-fresh-and-secret", "loss-quadratic-near-the-parameters"
_DESCENT = "nets_: parameters that were trained on the forgotten rows"
_STEP = ", after a step on the loss of the remaining rows"
_HIDDEN = ", with noise; how well the noise hides them is measured, not proved"
_REPEATABLE = ", with noise that can be subtracted by a party that knows noise_seed"
_BARE = ", without noise to hide them"
# Limits of a batch of row gradients: numbers in memory, and rows.
_GRADIENTS, _ROWS = 1 << 26, 256
_MOST_HALVINGS = 12


class _Objective(NamedTuple):
    """The mean loss of some rows in evaluation mode plus the regulariser, as a function of w."""

    context: TrainingContext
    module: nn.Module
    positions: Positions
    decay: float

    def __repr__(self) -> str:
        return opaque_repr(self)

    def value(self, flat: Tensor) -> float:
        """Return the objective at a flat float64 vector."""
        with torch.no_grad():
            parts = [float(part) for part in self._batch_losses(flat.float())]
        return sum(parts) + self.decay / 2 * float(flat @ flat)

    def gradient(self, flat: Tensor) -> Tensor:
        """Return the gradient at a flat float64 vector."""
        leaf, total = flat.float().requires_grad_(), self.decay * flat
        with torch.enable_grad():
            for part in self._batch_losses(leaf):
                total = total + torch.autograd.grad(part, leaf)[0]
        return total

    def _batch_losses(self, flat: Tensor) -> Iterator[Tensor]:
        data = self.context.data
        for begin in range(0, len(self.positions), _ROWS):
            where = torch.from_numpy(self.positions[begin : begin + _ROWS]).to(flat.device)
            rows = data.X.index_select(0, where).to(torch.float32)
            values = self.context.template.unflatten(flat)
            logits = functional_call(self.module, values, (rows,))
            losses = self.context.settings.row_losses(logits, data.y.index_select(0, where))
            yield losses.sum() / len(self.positions)


@dataclass(kw_only=True, eq=False, repr=False)
class FisherNetClassifier(NetClassifierMixin, NetBase):
    """A network that hides forgotten rows with noise in its parameters.

    `forget` adds noise to the parameters,

        w <- w + sigma min(1 / (F + damping), clamp)^exponent b,   b standard normal,

    where F is the Fisher information of the remaining rows at the current parameters. Computing F
    takes one backward pass over these rows per label. **The noise removes no information by
    itself**: unless ``newton_step=True``, the parameters only become less precise. Parameters that
    matter for the remaining rows get little noise; all others get much noise. The noise of several
    removals adds up; call `fit` when the predictions are no longer good enough.

    Parameters
    ----------
    module : callable or None, default=None
        Factory of the network: a function of the shape of a row and the number of classes (or
        without arguments) that returns a `torch.nn.Module` whose output is one logit per class.
        None is `MLP()`.
    sigma : float, default=1e-3
        Scale of the noise; 0 for no noise. With ``exponent=0.25`` it is (lambda sigma_h^2)^(1/4) in
        the notation of the paper, with 0.5 the square root of alpha in the authors' code.
    exponent : {0.25, 0.5}, default=0.25
        With 0.25, the optimum of the Lagrangian of Golatkar et al., the variance is F^(-1/2). With
        0.5, the value in the authors' code, the variance is F^(-1).
    fisher : {"diagonal", "kfac"}, default="diagonal"
        Diagonal of F, or Kronecker factors for linear layers and convolutions (other layers use
        the diagonal). `torch.func` computes row gradients for many rows at once. Modules that it
        does not support, such as nn.GRU or a `forward` that branches on values, are computed row by
        row, which is slow.
    labels : {"all", "sampled"}, default="all"
        F is an expectation over the labels that the network predicts. "all" computes it exactly,
        with one backward pass per class. "sampled" estimates it without bias from one label per
        row, drawn from the predicted probabilities.
    fisher_rows : int or None, default=None
        Largest number of rows for computing F; the rows with the smallest keyed hashes are used.
        None uses all rows.
    damping : float, default=1e-8
        Added to F.
    clamp : float or None, default=None
        Upper limit of 1 / (F + damping); None for no limit. The authors' code uses 1e3, and other
        factors for some layers, which are not implemented here.
    newton_step : bool, default=False
        Whether to move first to w - t (F + step_damping + decay)^(-1) grad. Here grad is the
        gradient of the loss of the remaining rows, including the weight decay (which is 0 for
        "adamw"). t is 1, halved until the loss decreases. The survey has this step with t = 1; the
        authors' code does not have it.
    step_damping : float, default=1e-2
        Added to F in the Newton step.
    epochs : int, default=20
        Passes over the rows.
    optimizer : {"adam", "sgd", "adamw"} or callable, default="adam"
        The name of an optimiser, or a function of the parameters that returns a
        `torch.optim.Optimizer`.
    learning_rate, momentum, weight_decay : float, default=0.005, 0.9, 0.0
        Settings of an optimiser that is given by name; momentum is used only by "sgd".
    schedule : {"constant", "cosine", "one-cycle"}, default="constant"
        Schedule of the learning rate.
    loss : "cross_entropy" or callable, default="cross_entropy"
        Function of logits and class codes that returns one loss per row.
    batch_size : int, default=64
        Rows of every batch in training.
    precision : {"float32", "tf32", "bfloat16"}, default="float32"
        Precision of the forward pass in training.
    calibration_rows : int, default=4096
        Rows from which BatchNorm's running statistics are computed, after training and after every
        removal.
    device : str, default="auto"
        "auto" uses a GPU if there is one.
    deterministic : bool, default=True
        Use kernels that add in a fixed order, and one thread on a CPU.
    noise_seed : int or None, default=None
        Seed that makes the noise repeatable, for tests only: anyone who knows the seed can subtract
        the noise. `guarantee_` states that the noise is repeatable.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all random numbers except the noise.

    Attributes
    ----------
    classes_ : ndarray
        Labels of the remaining rows, sorted. When the last row of a class is removed, the network
        is trained again.
    nets_ : Nets
        The network; `to_modules` returns it as a module.
    rows_ : SlotRows
        The remaining rows. A saved model is personal data.
    seed_, ids_, guarantee_, residual_state_, n_rows_
        See `ForgetMixin`.

    See Also
    --------
    FisherClassifier : Linear models, with a certified guarantee.
    CertifiedHeadClassifier : A frozen network with a head that has a certified guarantee.

    Notes
    -----
    Guarantee: empirical, always. The formula is derived for a quadratic loss around its minimum;
    for a network nothing is proved, and a scrubbed model may still contain information about the
    forgotten rows. `letheon.deep.gaussian_kl` measures what remains, compared with a retrained
    network. With ``newton_step=False`` the predictions hardly change. With ``newton_step=True``
    they move towards those of a retrained network; how far depends on the settings, so measure it.

    References
    ----------
    Golatkar, Achille and Soatto, "Eternal sunshine of the spotless net", CVPR 2020. Martens and
    Grosse, "Optimizing neural networks with Kronecker-factored approximate curvature", ICML 2015.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from letheon import FisherNetClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FisherNetClassifier(epochs=10, device="cpu", random_state=0).fit(X, y)
    >>> receipt = model.forget([0, 1])
    >>> receipt.guarantee.kind, receipt.n_rows
    ('empirical', 2)
    """

    facts: ClassVar[MethodFacts] = net_facts(
        "fisher-net",
        efficiency_parameters=("fisher", "labels", "fisher_rows", "newton_step"),
        certifiability_parameters=("sigma", "exponent"),
        needs=("locally-quadratic",),
        noise="parameter-perturbation-fisher-gaussian",
        has_noise_at_fit=False,
        search_ranges=lambda _: SearchRanges({}, {"sigma": (1e-4, 1e-3)}),
    )
    _parameter_rules: ClassVar[Rules] = {
        "sigma": Interval(0, expected="0 (no noise) or a positive number"),
        "exponent": OneOf((0.25, 0.5), "0.25 (theory) or 0.5 (authors' code)"),
        "fisher": OneOf(("diagonal", "kfac")),
        "labels": OneOf(("all", "sampled")),
        "damping": POSITIVE,
        "step_damping": POSITIVE,
        "fisher_rows": OrNone(Whole(1)),
        "clamp": OrNone(POSITIVE),
    }

    sigma: float = 1e-3
    exponent: float = 0.25
    fisher: str = "diagonal"
    labels: str = "all"
    fisher_rows: int | None = None
    damping: float = 1e-8
    clamp: float | None = None
    newton_step: bool = False
    step_damping: float = 1e-2
    noise_seed: int | None = None

    source_: NoiseSource = field(init=False)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.newton_step and self.loss != "cross_entropy":
            raise ValueError(
                "newton_step=True requires loss='cross_entropy', because the Fisher information "
                "is the curvature of this loss only"
            )
        NoiseSource(self.noise_seed)

    def _train_all(self, data: TrainingRows, seed: int, callback: Callback | None) -> Change:
        context = self._new_context(data, seed)
        self._require_information(context)
        slots, loop = np.flatnonzero(data.rows.alive), context.get_loop()
        flat = loop.train(
            loop.initial_flat(), TrainingPhase(0, (slots,), int(self.epochs)), callback
        )
        nets = self._make_nets(context, flat, [slots], data.classes)
        return self._fit_change(data, context, nets, source_=NoiseSource(self.noise_seed))

    def _prepare_removal(self, removal: Removal, callback: Callback | None) -> Change:  # noqa: ARG002
        staying = np.flatnonzero(alive_mask(self.rows_, removal.where))
        context, source = self._current_context(), copy.copy(self.source_)
        old, n_steps = self.nets_.flat[0].to(context.device), 0
        # The running statistics of the old network depend on the removed rows too.
        module = context.template.make_module(old, context.compute_statistics(old, staying))
        information, n_backward = self._estimate_information(context, module, staying)
        new = old.double()
        if self.newton_step:
            # Only these optimizers have the regulariser in the loss.
            decay = float(self.weight_decay) if self.optimizer in ("sgd", "adam") else 0.0
            objective = _Objective(context, module, staying, decay)
            new, n_steps = self._take_newton_step(objective, new, information)
            n_backward += len(staying)
        new = (new + self._draw_noise(information, source, len(new))).float()
        if not bool(torch.isfinite(new).all()):
            raise TrainingError(
                "the noise or the Newton step gave parameters that are not finite; the model is "
                "unchanged. Increase damping, or set clamp"
            )
        nets = self._make_nets(context, new[None], [staying], self.nets_.classes)
        rebuilt = {"Newton steps": n_steps} if n_steps else {}
        work = n_backward / (int(self.epochs) * len(staying))
        return self._removal_change(
            removal, {"nets_": nets, "source_": source}, Outcome(work, rebuilt)
        )

    def _draw_noise(
        self, information: FisherInformation, source: NoiseSource, n: int
    ) -> Tensor | float:
        if not self.sigma:
            return 0.0
        clamp = None if self.clamp is None else float(self.clamp)
        power = Power(float(self.exponent), float(self.damping), clamp)
        normals = torch.from_numpy(source.normals(n)).to(self._torch_device())
        return float(self.sigma) * information.apply_power(power, normals)

    def _estimate_information(
        self, context: TrainingContext, module: nn.Module, staying: Positions
    ) -> tuple[FisherInformation, int]:
        """Return F of the remaining rows, and the number of row gradients that were computed."""
        limit = int(self.fisher_rows or len(staying))
        chosen = sample_calibration_rows(self.rows_, staying, self.seed_, limit)
        per_row = len(self.nets_.classes) if self.labels == "all" else 1
        n_rows = min(_ROWS, max(1, _GRADIENTS // context.template.n_parameters))
        information = self._compute_fisher(
            module, lambda: self._iterate_batches(context, chosen, n_rows)
        )
        return information, per_row * len(chosen)

    def _compute_fisher(self, module: nn.Module, batches: FisherBatches) -> FisherInformation:
        return (
            kronecker_fisher(module, batches)
            if self.fisher == "kfac"
            else diagonal_fisher(module, batches())
        )

    def _require_information(self, context: TrainingContext) -> None:
        """Raise `TrainingError` if F of this module cannot be computed.

        This is checked before training, because no row could be forgotten later.
        """
        template = context.template
        module = template.make_module(template.initial_flat(0).to(context.device), {})
        zeros = FisherBatch(torch.zeros(2, *template.shape, device=context.device), None)
        try:
            self._compute_fisher(module, lambda: iter([zeros]))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise TrainingError(
                "the Fisher information of this module cannot be computed, so no row could be "
                f"forgotten: {type(error).__name__}: {error}"
            ) from error

    def _iterate_batches(
        self, context: TrainingContext, positions: Positions, size: int
    ) -> Iterator[FisherBatch]:
        """Yield batches of float32 rows, with the uniform numbers that select their labels."""
        draws = self._label_draws(positions)
        for begin in range(0, len(positions), size):
            part = None if draws is None else draws[begin : begin + size].to(context.device)
            yield FisherBatch(context.load_rows(positions[begin : begin + size]), part)

    def _label_draws(self, positions: Positions) -> Tensor | None:
        """Return a uniform random number per row; None if all labels are used.

        The number depends on the seed, the id and the rank of the row among rows with the same id.

        It does not depend on the position of the row, which changes after removals and loading.
        """
        if self.labels == "all":
            return None
        people = self.rows_.ids_at(positions).hashes(self.seed_, Purpose.FISHER_LABEL)
        _, numbers = np.unique(people, return_inverse=True)
        ranks = assign_slots(numbers.astype(np.int64)).astype(np.uint64)
        words = mix64(people, ranks) >> np.uint64(11)
        return torch.from_numpy(words.astype(np.float64) * 2.0**-53)

    def _take_newton_step(
        self, objective: "_Objective", old: Tensor, information: FisherInformation
    ) -> tuple[Tensor, int]:
        """Return the parameters after a Newton step, and the number of steps taken (0 or 1).

        The step is halved until it lowers the objective.
        """
        power = Power(1.0, float(self.step_damping) + objective.decay)
        step = information.apply_power(power, objective.gradient(old))
        before = objective.value(old)
        for halvings in range(_MOST_HALVINGS):
            new = old - 0.5**halvings * step
            if objective.value(new) < before:
                return new, 1
        return old, 0

    def _make_guarantee(self) -> Guarantee:
        reference, noise = _REFERENCES[float(self.exponent)], _HIDDEN
        assumptions: tuple[str, ...] = (_SECRET, _QUADRATIC)
        if not self.sigma or self.source_.is_repeatable:
            assumptions = (_QUADRATIC,)
            reference += "; repeatable noise" if self.sigma else "; without noise"
            noise = _REPEATABLE if self.sigma else _BARE
        residue = f"{_DESCENT}{_STEP if self.newton_step else ''}{noise}"
        return Guarantee(
            kind="empirical",
            reference=reference,
            assumptions=assumptions,
            residual_state=(residue,),
        )

    def _in_place_attributes(self) -> tuple[str, ...]:
        return (*super()._in_place_attributes(), "source_")
