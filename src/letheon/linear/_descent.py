"""Descent-to-Delete: removal by more training and noise (Neel et al. 2021; survey section 5.4)."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, nan, prod
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_consistent_length

from letheon.base import Outcome, Removal, require_fitted
from letheon.data import hold_labels, hold_target, join_target, row_ids
from letheon.guarantee import Guarantee, MethodFacts, SearchRanges
from letheon.inner_estimator import require_features
from letheon.linear import _descent_plan as planning
from letheon.linear import _descent_theory as theory
from letheon.linear._account import release_code, round_up_to_power
from letheon.linear._base import (
    NOISE_SCALE,
    REGULARISERS,
    CertifiedParameters,
    FitOutcome,
    LinearClassifier,
    linear_facts,
)
from letheon.linear._calibrate import ReleaseGrid
from letheon.linear._descent_steps import (
    SHARE_OF_ROUNDING,
    DescentEngine,
    DescentOutcome,
    DistributedDescent,
    Parts,
    PartSolver,
    PriorState,
    ResidualDescent,
    RowUpdate,
    TheoremDescent,
    WarmStart,
)
from letheon.linear._problem import FitProblem, Floats
from letheon.noise import NoiseSource, SecretArray
from letheon.removal import Cache, Change, Counts, TrainingRows
from letheon.validation import POSITIVE, Either, Interval, OneOf, OrNone, Rules, Whole

_THEOREMS = {
    ("basic", "secret"): "neel2020-theorem-3.1",
    ("basic", "published"): "neel2020-theorem-3.2",
    ("regularized-strong", "secret"): "neel2020-theorem-3.4",
    ("regularized-weak", "secret"): "neel2020-theorem-3.5",
    ("distributed", "secret"): "neel2020-distributed",
}


def _accounting_code(model: Any) -> str:
    by_residual = model.stop == "residual"
    return "neel2020-residual" if by_residual else _THEOREMS[model.variant, model.state]


_EFFICIENCY = ("stop", "iterations", "sigma", "variant", "regulariser", "xi", "n_copies")
FACTS = linear_facts(
    method="descent-to-delete",
    applicability="linear models with a smooth convex loss and L2 regulariser",
    efficiency_parameters=_EFFICIENCY,
    certifiability_parameters=("epsilon", "delta", "sigma", "state"),
    requests="adaptive",
    definition_name="descent-to-delete",
    tasks=("classification",),
    needs=("strongly-convex", "smooth"),
    certificate="certified",
    accounting=_accounting_code,
    adds_up=False,
    noise=release_code,
    search_ranges=lambda _: SearchRanges({}, {"sigma": (0.01, 0.1)}),
)

_SHARED = ("strongly-convex", "intercept-regularised", "noise-secret", "row-count-public")
_REFERENCES = {
    ("basic", "secret", "residual"): "distance bounded by the measured gradient; discrete noise",
    ("basic", "published", "residual"): "as secret; only the published state is kept",
    ("basic", "secret", "theorem"): "Neel et al. 2021, Theorem 3.1",
    ("basic", "published", "theorem"): "Neel et al. 2021, Theorem 3.2, with a separate step bound",
    ("regularized-strong", "secret", "theorem"): "Neel et al. 2021, Theorem 3.4",
    ("regularized-weak", "secret", "theorem"): "Neel et al. 2021, Theorem 3.5",
    ("distributed", "secret", "theorem"): "Neel et al. 2021, Algorithms 5 to 7, distances tracked",
    (
        "distributed",
        "secret",
        "residual",
    ): "Neel et al. 2021, Algorithms 5 to 7, measured gradients",
}
_RESIDUAL_STATE = {
    "model_": "the parameters, within the certified distance of the optimum before noise",
    "unperturbed_": "the parameters without noise, secret; together with the remaining rows they "
    "give the gradient left by the last removals, and from it a row that was removed alone can be "
    "computed; settle() prevents that",
    "parts_": "parameters of the parts without noise, secret, and the sampled rows; with the "
    "remaining rows they reveal the last removals as unperturbed_ does; settle() prevents that",
    "top_": "a bound of the largest eigenvalue, computed before the removals",
    "n_changed_": "the number of rows changed since the fit",
    "distance_": "a bound of the distance to the optimum",
    "training_flops_": "operations of the last training, as n_iter_ its iterations",
    "cache_": "point of an earlier Hessian and row norms at that time; in memory only",
}
# Typical passes of training with the residual stop; replaces the measured number, which is secret.
_USUAL_PASSES = 10


@dataclass(kw_only=True, eq=False, repr=False)
class DescentToDeleteClassifier(CertifiedParameters, LinearClassifier):
    """Logistic regression that forgets by further training and fresh noise.

    Training stops when the parameters W are within a certain distance of the optimum. It publishes
    W rounded to a grid, plus exact integer noise of scale sigma. A request continues from the last
    parameters, on the remaining rows (`forget`) or with the new rows (`learn`), until they are
    within the same distance of the new optimum, and draws fresh noise. A retrained model also ends
    within this distance of the new optimum.

    Parameters
    ----------
    l2 : float, default=1e-3
        Strength of the regulariser, per row or in total (see `reg`); above 0.
    reg : {"per_sample", "total"}, default="per_sample"
        The sum objective has the regulariser ``l2 n |W|^2 / 2`` or ``l2 |W|^2 / 2``.
    multi_class : {"ovr", "softmax"}, default="ovr"
        For more than two classes: one logistic loss per class, or one softmax loss.
    fit_intercept : bool, default=True
        Append a column of ones; its weight is regularised like the others.
    rows : {"keep", "clip", "normalize", "refuse"}, default="keep"
        What to do with a row whose norm, including the 1 of the intercept, is not `row_norm`.
    row_norm : float or None, default=None
        Bound on the norm of every row, intercept included; `stop="theorem"` needs it.
    variant : {"basic", "regularized-strong", "regularized-weak", "distributed"}, default="basic"
        "basic" is plain gradient descent. "regularized-strong" and "regularized-weak" have an extra
        regulariser, and the i-th request makes I or i^2 I steps. "distributed" trains on parts of a
        bootstrap sample, and a request affects few parts.
    state : {"secret", "published"}, default="secret"
        Where a request starts: from the parameters without noise, which are kept secret, or from
        the published parameters. With "published", the model keeps no other values computed from
        rows, such as a Hessian, except counts of rows.
    stop : {"residual", "theorem"}, default="residual"
        When an optimisation stops. "residual" uses any optimiser until the measured gradient,
        divided by the constant of strong convexity, shows that the distance is small enough.
        "theorem" makes plain gradient steps, with the number of steps and the noise from a theorem.
    epsilon, delta : float, default=1.0, 1e-4
        The certified guarantee. With ``stop="residual"``, delta may be 0 (discrete Laplace noise).
    sigma : float or None, default=None
        Scale of the noise on every parameter; 0 for no noise. None uses 0.01 with
        ``stop="residual"``, otherwise the value that the theorem requires for `iterations`.
    iterations : int, default=50
        Number of steps of a request, I in the theorems. More steps need less noise.
    regulariser : float or None, default=None
        Extra regulariser per row of the regularized variants. None uses a value that balances noise
        and bias.
    radius : float or None, default=None
        With ``stop="theorem"``, every step is projected onto |W| <= radius. None uses a radius that
        contains every optimum.
    xi : float, default=1.0
        The bootstrap sample of the distributed variant has about n^xi rows, 1 <= xi <= 4/3.
    n_copies : int, default=1
        Number of copies of the distributed variant. The copy with the smallest loss is published.
        The guarantee covers all copies, with epsilon / n_copies each.
    tol : float, default=1e-8
        Largest norm of the mean gradient after training; used only without noise.
    max_iter : int, default=1000
        Largest number of iterations of the optimiser, in training and in a request.
    if_unproved : {"raise", "downgrade"}, default="raise"
        What to do when an assumption that can be checked does not hold: raise `AssumptionError`, or
        warn with `GuaranteeWarning` and keep the model with an empirical guarantee until the next
        training.
    noise_seed : int or None, default=None
        Makes the noise repeatable, and the guarantee empirical.
    random_state : None, int, RandomState or Generator, default=None
        Has no effect; for compatibility with the other methods.

    Attributes
    ----------
    coef_, intercept_, classes_ : ndarray
        Published parameters, and labels of the remaining rows.
    sigma_ : float
        Scale of the noise.
    distance_ : float
        Bound on the distance of the parameters before noise to the optimum. It is confidential,
        because it is measured on the rows; the guarantee rounds it up to a power of two. With
        ``state="published"`` the measured number is not kept, and `distance_` is `limit_`.
    limit_ : float
        Largest distance to the optimum that the noise hides.
    plan_ : object or None
        Steps and constants of the theorem; None with ``stop="residual"``.
    unperturbed_ : SecretArray or None
        Parameters without noise; None with ``state="published"``.
    n_passes_ : float
        Work of the last fit or request, in gradient passes over the remaining rows. This number is
        not saved, so it is NaN in a loaded model.
    n_iter_ : int
        Iterations of the last training. With ``state="published"`` a request replaces it by a
        number that does not depend on rows.

    Notes
    -----
    **Guarantee.** Certified: the published parameters are (epsilon, delta)-indistinguishable from
    those of a retrained model. If both are within a distance a of the optimum, the noise must hide
    a shift of 2a. So a may be nearly ``sigma mu(epsilon, delta) / 2``, where mu is the largest
    shift that a unit Gaussian hides, minus the cost of the grid. The number of rows is not hidden.
    With ``stop="theorem"`` and in the distributed variant, noise, extra regulariser and sizes are
    chosen for the next power of two above the number of rows; a request that changes this power of
    two retrains.

    Requests may depend on earlier published models, except in the distributed variant, because its
    published models reveal the sampled rows. The guarantee does not cover the secret state, which
    must stay secret, like the rows in the same file. From the state and the rows, the gradient left
    by the last removals can be computed. If the last removal was a single row, this gradient
    reveals the row. Call `settle` before you write a file that others may read.

    With ``stop="residual"`` a request needs one or two passes over the rows. The theorems hold for
    the worst case, so they need many more steps or much more noise.

    References
    ----------
    Neel, Roth and Sharifi-Malvajerdi 2021, "Descent-to-Delete: Gradient-Based Methods for Machine
    Unlearning", ALT.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> model = DescentToDeleteClassifier(l2=0.01).fit(X, X[:, 0] > 0)
    >>> receipt = model.forget([3, 5])
    >>> receipt.guarantee.kind, receipt.n_rows
    ('certified', 2)
    >>> model.learn(X[3:4], [True], ids=[3]).n_rows_
    199
    """

    facts: ClassVar[MethodFacts] = FACTS
    _parameter_rules: ClassVar[Rules] = {
        "sigma": OrNone(NOISE_SCALE),
        # Fractions of a smaller delta might underflow to 0, and 0 selects another kind of noise.
        "delta": Either(OneOf((0,), "0"), Interval(1e-300, 1, closed="left")),
        "variant": OneOf(("basic", "regularized-strong", "regularized-weak", "distributed")),
        "state": OneOf(("secret", "published")),
        "stop": OneOf(("residual", "theorem")),
        "xi": Interval(1, 4 / 3, expected="a number from 1 to 4/3"),
        **dict.fromkeys(("iterations", "n_copies"), Whole(1)),
        **dict.fromkeys(("regulariser", "radius"), OrNone(POSITIVE)),
    }

    multi_class: str = "ovr"
    variant: str = "basic"
    state: str = "secret"
    stop: str = "residual"
    sigma: float | None = None
    iterations: int = 50
    regulariser: float | None = None
    radius: float | None = None
    xi: float = 1.0
    n_copies: int = 1

    sigma_: float = field(init=False)
    distance_: float = field(init=False)
    limit_: float = field(init=False)
    plan_: theory.DescentPlan | None = field(init=False)
    unperturbed_: SecretArray | None = field(init=False)
    parts_: tuple[Parts, ...] = field(init=False)
    top_: float | None = field(init=False)
    n_changed_: int = field(init=False)
    passes_: Cache[float] = field(init=False)
    cache_: Cache[WarmStart] = field(init=False)

    def learn(self, X: Any, y: Any, *, ids: Any) -> Self:
        """Add rows. The guarantee then compares with a model that was trained with these rows too.

        Parameters
        ----------
        X, y
            Rows and labels as for `fit`, with the same columns. New labels cause a retraining.
        ids : sequence of int or of str
            Id of the person that each row belongs to. An id that is already in the model keeps its
            earlier rows.

        Returns
        -------
        self
        """
        return self._learn_rows(ids, lambda: self._prepare_learn(X, y, ids))

    def settle(self) -> Self:
        """Train again on the remaining rows, with fresh noise.

        The file of the model contains the remaining rows and the parameters without noise. From
        them, the gradient left by the last removals can be computed; if the last removal was a
        single row, this gradient reveals the row. After `settle`, nothing in the file depends on
        removed rows: `fit` on the remaining rows could have written the same file. `settle` takes
        as long as a fit. Call it before you write a file that others may read.

        With ``state="published"`` and noise, `settle` changes nothing, because no state depends on
        removed rows, except their number with ``stop="theorem"``.

        Returns
        -------
        self

        Raises
        ------
        AssumptionError
            Training does not reach the required distance on these rows; nothing was changed.
        """
        require_fitted(self)
        self._require_same_parameters()
        return self if self.state == "published" and self.sigma_ > 0.0 else self._retrain_in_place()

    @property
    def n_passes_(self) -> float:
        """Work of the last fit or request, in gradient passes over the remaining rows."""
        require_fitted(self)
        passes = self.passes_.content
        return nan if passes is None else passes

    def _check_settings(self) -> None:
        super()._check_settings()
        planning.check_combination(self)

    def _train(self, training: TrainingRows, source: NoiseSource, seed: int) -> FitOutcome:  # noqa: ARG002
        problem = self._build_problem(training)
        plan = planning.plan_descent(self, problem)
        sigma = planning.choose_noise_scale(self, plan)
        limit = planning.distance_limit(self, sigma, prod(problem.shape))
        problem = _with_plan_ridge(problem, plan)
        engine = self._build_engine(plan, limit, planning.count_parts(self, problem.n_remaining))
        descent = engine.train(problem, source)
        downgraded, warnings = self._handle_doubts(self._find_doubts(descent.distance, limit))
        weights = self._publish_weights(descent, problem, sigma, source)
        attributes = {
            "unperturbed_": None,
            "parts_": (),
            "top_": None,
            "n_changed_": 0,
            "cache_": Cache(),
            **descent.attributes,
            "model_": self._build_linear(weights, training.classes),
            "release_salt_": source.salt(),
            "plan_": plan,
            "sigma_": sigma,
            "limit_": limit,
            "distance_": self._public_distance(descent.distance, limit),
            "passes_": Cache(descent.flops / problem.pass_flops),
            "downgraded_": downgraded,
        }
        return FitOutcome(attributes, descent.flops, warnings, descent.n_iter)

    def _remove_rows(self, removal: Removal, counts: Counts, **_: Any) -> Change:
        positions = removal.where
        before = _with_plan_ridge(self._build_problem(self._training_rows()), self.plan_)
        update = RowUpdate(
            before, before.without(positions), positions, self.rows_.alive, adds=False
        )
        if not self._is_on_grid or planning.has_outgrown(
            self, before.n_remaining, update.after.n_remaining
        ):
            return self._retrain(positions)
        return self._prepare_update(
            update, {"counts_": counts}, partial(self.rows_.wipe, positions)
        )

    def _prepare_learn(self, X: Any, y: Any, ids: Any) -> Change:
        require_features(self, X)
        labels = hold_labels(y, name=type(self).__name__, regressor="InfluenceRegressor")
        new = self._build_design().build_rows(X)
        check_consistent_length(new, labels)
        classes = hold_target(np.unique(join_target(self.classes_, labels)))  # type: ignore[arg-type]
        rows, n_before = self.rows_.compact_copy(), len(self.rows_)
        if len(classes) > len(self.classes_):
            rows.y[:] = np.searchsorted(classes, self.classes_)[rows.y]
        codes = np.searchsorted(classes, labels.astype(classes.dtype)).astype(np.int64)
        rows.append(new, codes, row_ids(ids, len(codes)))
        training = TrainingRows(rows, classes, np.bincount(rows.y, minlength=len(classes)))
        is_new = len(classes) > len(self.classes_) or not self._is_on_grid
        if is_new or planning.has_outgrown(self, n_before, len(rows)):
            return self._retrain_on(training)
        before = _with_plan_ridge(self._build_problem(self._training_rows()), self.plan_)
        after = _with_plan_ridge(self._build_problem(training), self.plan_)
        positions = np.arange(n_before, len(rows), dtype=np.int64)
        update = RowUpdate(before, after, positions, rows.alive, adds=True)
        return self._prepare_update(update, {"rows_": rows, "counts_": training.counts})

    def _prepare_update(
        self, update: RowUpdate, attributes: dict[str, Any], *writes: Callable[[], None]
    ) -> Change:
        """Prepare the change to the model for rows that are removed or added."""
        source, hidden, top = copy.copy(self.source_), self.unperturbed_, self.top_
        size = planning.count_parts(self, update.after.n_remaining)
        prior = PriorState(
            # A copy: the request wipes the secret array.
            W=self.model_.weights if hidden is None else hidden.open().copy(),
            warm_start=self.cache_.content,
            parts=self.parts_,
            n_changed=self.n_changed_,
            top=inf if top is None else top,
        )
        descent = self._build_engine(self.plan_, self.limit_, size).follow(update, prior, source)
        downgraded, warnings = self._handle_doubts(self._find_doubts(descent.distance, self.limit_))
        weights = self._publish_weights(descent, update.after, self.sigma_, source)
        attributes |= {
            **descent.attributes,
            "model_": replace(self.model_, weights=weights),
            "release_salt_": source.salt(),
            "source_": source,
            "distance_": self._public_distance(descent.distance, self.limit_),
            "passes_": Cache(descent.flops / update.after.pass_flops),
            # The guarantee compares with `fit`, so convergence here does not restore it.
            "downgraded_": self.downgraded_ or downgraded,
        }
        if self.state == "published":
            attributes |= self._usual_counts(update)
        outcome = Outcome(self._relative_work(descent.flops), {}, warnings)
        return Change(attributes, outcome, (*descent.writes, *self._wipe_actions(), *writes))

    def _usual_counts(self, update: RowUpdate) -> dict[str, Any]:
        """Return typical training costs for the remaining rows, instead of measured costs.

        Measured costs of a request would depend on the removed rows.
        """
        X, is_held = update.after.X, update.alive.copy()
        is_held[[] if update.adds else update.positions] = False
        sizes = np.diff(X.indptr)[is_held] if sp.issparse(X) else X.shape[1] * is_held
        n_passes = _USUAL_PASSES if self.plan_ is None else self.plan_.training_steps
        flops = 4.0 * int(sizes.sum()) * update.after.loss.n_outputs * n_passes
        return {"training_flops_": flops, "n_iter_": n_passes}

    def _build_engine(
        self, plan: theory.DescentPlan | None, limit: float, size: int
    ) -> DescentEngine:
        secret = self.state == "secret"
        if self.variant == "distributed":
            assert plan is None or isinstance(plan, theory.DistributedPlan)
            near = min(limit, self.tol / self.l2) if self.sigma == 0 else limit
            if plan is None:
                solver = PartSolver(None, near * (1 - SHARE_OF_ROUNDING), self.max_iter)
            else:
                solver = PartSolver(plan, plan.left)
            return DistributedDescent(solver, size, self.n_copies)
        if plan is None:
            return ResidualDescent(limit, secret, self.tol, self.max_iter)
        return TheoremDescent(plan, secret)

    def _wipe_actions(self) -> tuple[Callable[[], None], ...]:
        return (*super()._wipe_actions(), *(parts.weights.wipe for parts in self.parts_))

    def _publish_weights(
        self, descent: DescentOutcome, problem: FitProblem, sigma: float, source: NoiseSource
    ) -> Floats:
        """Return parameters with fresh noise; with several copies, the copy with the least loss."""
        if sigma == 0.0:
            noisy = [W.copy() for W in descent.optima]
        else:
            grid, is_pure = ReleaseGrid.of_sigma(sigma), self.delta == 0.0
            noisy = [grid.release(W, source, is_pure=is_pure) for W in descent.optima]
        return noisy[0] if len(noisy) == 1 else min(noisy, key=problem.value_at)

    def _find_doubts(self, distance: float, limit: float) -> Iterator[str]:
        """Yield the reasons why the guarantee is not proved after this training or request."""
        if not self._can_certify or distance <= limit:
            return
        remedy = "increase iterations or sigma"
        if self.stop == "residual":
            remedy = "increase max_iter, sigma or l2, or scale the columns"
        remedy = remedy if limit > 0.0 else "increase epsilon or delta"
        # The message omits the distance: it is measured on rows that may be removed later.
        yield (
            f"the parameters may be farther from the optimum than the {limit:.3g} that the noise "
            f"hides; {remedy}"
        )

    def _public_distance(self, distance: float, limit: float) -> float:
        """Return the distance to store. With a published state, it is not measured on rows."""
        if self.state == "secret" or self.sigma == 0:
            return distance
        return limit if distance <= limit else inf

    def _release_grid(self) -> ReleaseGrid | None:
        return ReleaseGrid.of_sigma(self.sigma_) if self.sigma_ > 0.0 else None

    def _weights_before_noise(self) -> Floats | None:
        return None if self.unperturbed_ is None else self.unperturbed_.open()

    @property
    def _is_on_grid(self) -> bool:
        """Whether the parameters are on the grid.

        False for a model file of an older version of letheon, whose noise was not on a grid; the
        model is then retrained.
        """
        if self.sigma_ == 0.0:
            return True
        steps = self.model_.weights / ReleaseGrid.of_sigma(self.sigma_).step
        return bool((steps == np.rint(steps)).all())

    def __copy__(self) -> Self:
        """Return a copy with its own rows and secrets, because requests wipe them."""
        duplicate = super().__copy__()
        if "parts_" in vars(duplicate):
            duplicate.parts_ = tuple(copy.copy(parts) for parts in duplicate.parts_)
        return duplicate

    def _make_guarantee(self) -> Guarantee:
        is_near = self.downgraded_ is None and self.distance_ <= self.limit_
        spent = min(round_up_to_power(self.distance_), self.limit_)
        codes = [REGULARISERS[self.reg], *_SHARED]
        if self.state == "secret":
            codes.append("state-secret")
        codes.append("rows-bounded" if self.stop == "theorem" else "retraining-converges")
        claim = Guarantee(
            reference=_REFERENCES[self.variant, self.state, self.stop],
            assumptions=tuple(codes),
            residual_state=self._list_residual_state(),
            **self._certificate_fields(is_near and self._is_on_grid, spent, self.limit_),
        )
        return replace(claim, requests="oblivious") if self.variant == "distributed" else claim

    def _list_residual_state(self) -> tuple[str, ...]:
        known = vars(self)
        names = [name for name in _RESIDUAL_STATE if known.get(name) not in (None, ())]
        if self.plan_ is None and not self.parts_:
            names.remove("n_changed_")
        if self.unperturbed_ is None or self.plan_ is not None:
            names.remove("cache_")
        return tuple(f"{name}: {_RESIDUAL_STATE[name]}" for name in names)


def _with_plan_ridge(problem: FitProblem, plan: theory.DescentPlan | None) -> FitProblem:
    """Return the problem with the regulariser of the plan, which may be larger than l2."""
    return problem if plan is None else replace(problem, l2=plan.geometry.strong)
