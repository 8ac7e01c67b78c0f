"""Scrubbing of nets with Fisher noise (Golatkar et al. 2020; survey section 5.1)."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from letheon.base import Outcome, Removal
from letheon.deep._base import (
    NetBase,
    Positions,
    Workshop,
    alive_without,
    calibration_sample,
    net_facts,
    numbered_slots,
)
from letheon.deep._information import Batch, Batches, Information, Power, diagonal, kronecker
from letheon.deep._loop import Callback, Stretch
from letheon.exceptions import TrainingError
from letheon.guarantee import Guarantee, MethodFacts, SearchRanges
from letheon.noise import NoiseSource
from letheon.removal import Change, TrainingRows, opaque_repr
from letheon.seeds import Purpose, mix64
from letheon.validation import POSITIVE, Interval, OneOf, OrNone, Rules, Whole

_REFERENCES = {
    0.25: "Golatkar et al. 2020, Lagrangian with noise F^(-1/4); not proved for nets",
    0.5: "Golatkar et al. 2020 as in the authors' code, noise F^(-1/2); not proved for nets",
}
_SECRET, _QUADRATIC = "noise-fresh-and-secret", "loss-quadratic-near-the-parameters"
_DESCENT = "nets_: parameters that were trained on the rows that left"
_STEP = ", after a step on the loss of those that stay"
_HIDDEN = ", with noise; how much of them the noise hides is measured, not proved"
_REPEATABLE = ", with noise that whoever knows noise_seed can subtract: it hides nothing from them"
_BARE = "; no noise was added, and nothing hides them"
# Gradients of single rows that are in memory at once, in numbers, and rows at most.
_GRADIENTS, _ROWS = 1 << 26, 256
_MOST_HALVINGS = 12


class _Objective(NamedTuple):
    """Mean loss of some rows in evaluation mode, with the regulariser, as a function of w."""

    workshop: Workshop
    module: nn.Module
    positions: Positions
    decay: float

    def __repr__(self) -> str:
        return opaque_repr(self)

    def value(self, flat: Tensor) -> float:
        """Return the value at a flat vector of float64."""
        with torch.no_grad():
            parts = [float(part) for part in self._parts(flat.float())]
        return sum(parts) + self.decay / 2 * float(flat @ flat)

    def gradient(self, flat: Tensor) -> Tensor:
        """Return the gradient there."""
        leaf, total = flat.float().requires_grad_(), self.decay * flat
        with torch.enable_grad():
            for part in self._parts(leaf):
                total = total + torch.autograd.grad(part, leaf)[0]
        return total

    def _parts(self, flat: Tensor) -> Iterator[Tensor]:
        data = self.workshop.data
        for begin in range(0, len(self.positions), _ROWS):
            where = torch.from_numpy(self.positions[begin : begin + _ROWS]).to(flat.device)
            rows = data.X.index_select(0, where).to(torch.float32)
            values = self.workshop.template.unflatten(flat)
            logits = functional_call(self.module, values, (rows,))
            losses = self.workshop.settings.row_losses(logits, data.y.index_select(0, where))
            yield losses.sum() / len(self.positions)


@dataclass(kw_only=True, eq=False, repr=False)
class FisherNetClassifier(NetBase):
    """A net that hides people who leave under noise, most where the other rows decide least.

    To forget, the parameters get noise,

        w <- w + sigma min(1 / (F + damping), clamp)^exponent b,   b standard normal,

    F the Fisher information of the rows that stay, at the parameters as they are. It costs one
    backward pass over these rows per label. **Nothing is unlearned by that**: unless
    ``newton_step=True`` the parameters keep what they learned, blurred. Parameters that matter to
    the rows that stay get little noise, the others much. Every request adds noise to that of the
    requests before; call `fit` when the answers have become too coarse.

    Parameters
    ----------
    module : callable or None, default=None
        Factory of the net: takes the shape of a row and the number of classes (or nothing) and
        returns a `torch.nn.Module` whose output is one logit per class. None is `MLP()`.
    sigma : float, default=1e-3
        Scale of the noise; with ``exponent=0.25`` the theory's (lambda sigma_h^2)^(1/4), with 0.5
        the square root of the authors' alpha. 0: no noise.
    exponent : {0.25, 0.5}, default=0.25
        0.25 is the optimum of the Lagrangian of Golatkar et al., variance F^(-1/2); 0.5 is what
        the authors' code does, variance F^(-1).
    fisher : {"diagonal", "kfac"}, default="diagonal"
        Diagonal of F, or Kronecker factors for linear layers and convolutions (others keep the
        diagonal). Gradients of single rows are taken of many rows at once by `torch.func`, or row
        by row, which is slow, where it cannot: nn.GRU, a `forward` that looks at values.
    labels : {"all", "sampled"}, default="all"
        F is an expectation over the labels that the net itself would give: exact, with as many
        backward passes as classes, or one label per row, drawn from the net (unbiased).
    fisher_rows : int or None, default=None
        F from at most so many rows, those of smallest keyed hash. None: all.
    damping : float, default=1e-8
        Added to F.
    clamp : float or None, default=None
        Largest 1 / (F + damping). The authors' code has 1e3 (and other factors for some layers,
        which are not offered here).
    newton_step : bool, default=False
        First move to w - t (F + step_damping + decay)^(-1) grad, the gradient that of the loss of
        the rows that stay with its weight decay (0 for "adamw", which has none in its loss); t is
        1, or halved until this falls. The survey has this step (t = 1); the authors' code has none.
    step_damping : float, default=1e-2
        Added to F in that step.
    epochs : int, default=20
        Passes over the rows.
    optimizer : {"adam", "sgd", "adamw"} or callable, default="adam"
        By name, or a factory that takes parameters and returns a `torch.optim.Optimizer`.
    learning_rate, momentum, weight_decay : float, default=0.005, 0.9, 0.0
        For optimisers by name; momentum is that of "sgd".
    schedule : {"constant", "cosine", "one-cycle"}, default="constant"
        How the learning rate goes over training.
    loss : "cross_entropy" or callable, default="cross_entropy"
        Takes logits and class codes and returns one loss per row.
    batch_size : int, default=64
        Rows of every batch in training.
    precision : {"float32", "tf32", "bfloat16"}, default="float32"
        Of the forward pass in training.
    calibration_rows : int, default=4096
        Rows from which BatchNorm's running statistics are taken, after training and anew after
        every request.
    device : str, default="auto"
        "auto" is the GPU where there is one.
    deterministic : bool, default=True
        Kernels that add in a fixed order, and one thread on a CPU.
    noise_seed : int or None, default=None
        Repeatable noise, for tests: whoever knows it can subtract the noise. `guarantee_` says so.
    random_state : int, RandomState, Generator or None, default=None
        Seed of everything random that is no noise.

    Attributes
    ----------
    classes_ : ndarray
        Labels still held, sorted. When the last row of a class leaves, the net is trained again.
    nets_ : Nets
        The net; `to_modules` gives it as a module.
    rows_ : SlotRows
        The rows held. A saved model is personal data.
    seed_, ids_, guarantee_, residual_state_, n_rows_
        See `ForgetMixin`.

    See Also
    --------
    FisherClassifier : Linear models, with a certificate.
    CertifiedHeadClassifier : A frozen net with a head that is certified.

    Notes
    -----
    Guarantee: empirical, always. The formula is derived for a quadratic loss around its minimum;
    for a net nothing is proved, and a model that was scrubbed may still know the people who
    left. `letheon.deep.gaussian_kl` measures what is left against a retrained net. With
    ``newton_step=False`` the answers stay where they were; with it they move towards those of a
    retrain, how far depends on the settings: measure it on your own.

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
                "newton_step=True needs loss='cross_entropy': the Fisher information is the "
                "curvature of that loss and of no other"
            )
        NoiseSource(self.noise_seed)

    def _train(self, held: TrainingRows, seed: int, callback: Callback | None) -> Change:
        workshop = self._new_workshop(held, seed)
        self._require_information(workshop)
        slots, loop = np.flatnonzero(held.rows.alive), workshop.loop()
        flat = loop.train(loop.initial(), Stretch(0, (slots,), int(self.epochs)), callback)
        nets = self._nets(workshop, flat, [slots], held.classes)
        return self._trained(held, workshop, nets, source_=NoiseSource(self.noise_seed))

    def _remove(self, removal: Removal, callback: Callback | None) -> Change:  # noqa: ARG002
        staying = np.flatnonzero(alive_without(self.rows_, removal.where))
        workshop, source = self._workshop(), copy.copy(self.source_)
        old, n_steps = self.nets_.flat[0].to(workshop.device), 0
        # Statistics of the old net are those of who leaves, too.
        module = workshop.template.answering(old, workshop.statistics(old, staying))
        information, n_backward = self._information(workshop, module, staying)
        new = old.double()
        if self.newton_step:
            # The regulariser that training has in its loss.
            decay = float(self.weight_decay) if self.optimizer in ("sgd", "adam") else 0.0
            objective = _Objective(workshop, module, staying, decay)
            new, n_steps = self._stepped(objective, new, information)
            n_backward += len(staying)
        new = (new + self._noise(information, source, len(new))).float()
        if not bool(torch.isfinite(new).all()):
            raise TrainingError(
                "noise or Newton step made parameters that are not finite, so nothing was changed; "
                "raise damping, or set clamp"
            )
        nets = self._nets(workshop, new[None], [staying], self.nets_.classes)
        rebuilt = {"Newton steps": n_steps} if n_steps else {}
        work = n_backward / (int(self.epochs) * len(staying))
        return self._without(removal, {"nets_": nets, "source_": source}, Outcome(work, rebuilt))

    def _noise(self, information: Information, source: NoiseSource, n: int) -> Tensor | float:
        if not self.sigma:
            return 0.0
        clamp = None if self.clamp is None else float(self.clamp)
        power = Power(float(self.exponent), float(self.damping), clamp)
        normals = torch.from_numpy(source.normals(n)).to(self._device())
        return float(self.sigma) * information.applied(power, normals)

    def _information(
        self, workshop: Workshop, module: nn.Module, staying: Positions
    ) -> tuple[Information, int]:
        """Return F of the rows that stay, and how many backward passes of rows it took."""
        limit = int(self.fisher_rows or len(staying))
        chosen = calibration_sample(self.rows_, staying, self.seed_, limit)
        per_row = len(self.nets_.classes) if self.labels == "all" else 1
        n_rows = min(_ROWS, max(1, _GRADIENTS // workshop.template.n_parameters))
        found = self._estimate(module, lambda: self._batches(workshop, chosen, n_rows))
        return found, per_row * len(chosen)

    def _estimate(self, module: nn.Module, batches: Batches) -> Information:
        return kronecker(module, batches) if self.fisher == "kfac" else diagonal(module, batches())

    def _require_information(self, workshop: Workshop) -> None:
        """Raise where a request could not be answered, before anybody's rows are learned."""
        template = workshop.template
        module = template.answering(template.initial(0).to(workshop.device), {})
        zeros = Batch(torch.zeros(2, *template.shape, device=workshop.device), None)
        try:
            self._estimate(module, lambda: iter([zeros]))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise TrainingError(
                "the Fisher information of this module cannot be computed, so that nobody could "
                f"ever leave: {type(error).__name__}: {error}"
            ) from error

    def _batches(self, workshop: Workshop, positions: Positions, size: int) -> Iterator[Batch]:
        """Yield rows as the net takes them, with the numbers that their labels are drawn by."""
        draws = self._draws(positions)
        for begin in range(0, len(positions), size):
            part = None if draws is None else draws[begin : begin + size].to(workshop.device)
            yield Batch(workshop.rows_at(positions[begin : begin + size]), part)

    def _draws(self, positions: Positions) -> Tensor | None:
        """Return a uniform number per row: of the seed, its id, and how many of these are before.

        Where a row lies in memory plays no part: that changes when others leave, and in a file.
        """
        if self.labels == "all":
            return None
        people = self.rows_.ids_at(positions).hashes(self.seed_, Purpose.FISHER_LABEL)
        _, numbers = np.unique(people, return_inverse=True)
        ranks = numbered_slots(numbers.astype(np.int64)).astype(np.uint64)
        words = mix64(people, ranks) >> np.uint64(11)
        return torch.from_numpy(words.astype(np.float64) * 2.0**-53)

    def _stepped(
        self, objective: "_Objective", old: Tensor, information: Information
    ) -> tuple[Tensor, int]:
        """Return parameters after a Newton step, halved until it lowers the objective."""
        power = Power(1.0, float(self.step_damping) + objective.decay)
        step = information.applied(power, objective.gradient(old))
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
