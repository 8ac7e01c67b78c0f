"""Fisher forgetting: removal by Newton steps and Fisher noise (Golatkar et al. 2020).

See survey section 5.1.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from letheon.base import Outcome, Removal, require_fitted
from letheon.data import SlotRows
from letheon.guarantee import Guarantee, MethodFacts
from letheon.linear._account import release_code, round_up_to_power, suggest_search_ranges
from letheon.linear._base import (
    AS_FITTED,
    REGULARISERS,
    CertifiedParameters,
    FitOutcome,
    LinearClassifier,
    convergence_warnings,
    linear_facts,
)
from letheon.linear._calibrate import ReleaseGrid
from letheon.linear._fisher_law import NoiseRoot, ReleaseNoise, are_accurate, draw_noise
from letheon.linear._fisher_walk import (
    JUST_TRAINED,
    Expansion,
    FisherAccount,
    FisherMatrix,
    GradientEvaluation,
    NewtonWalk,
    evaluate_at,
    hessian_flops,
)
from letheon.linear._problem import FitProblem, Floats, Positions
from letheon.linear._solve import is_dense, minimise, polish_once
from letheon.noise import NoiseSource, SecretArray
from letheon.receipt import Receipt
from letheon.removal import Cache, Change, Counts, TrainingRows
from letheon.seeds import Purpose, library_seed
from letheon.validation import Interval, OneOf, Rules

FACTS = linear_facts(
    method="fisher",
    applicability="linear classifiers with the logistic or softmax loss and L2 regulariser",
    efficiency_parameters=("batch_size", "state", "sigma"),
    certifiability_parameters=("epsilon", "delta", "sigma", "covariance"),
    requests="adaptive",
    definition_name="fisher",
    tasks=("classification",),
    needs=("strongly-convex", "smooth"),
    certificate="certified",
    accounting="golatkar2020-closeness-per-request",
    adds_up=False,
    noise=lambda model: (
        "grid-release-fisher-gaussian" if model.covariance == "fisher" else release_code(model)
    ),
    search_ranges=suggest_search_ranges,
)

_SHARED = (
    "strongly-convex",
    "intercept-regularised",
    "noise-fresh-and-secret",
    "retraining-converges",
)
_MODEL = "model_: the parameters, (epsilon, delta)-close to those of a retrained model"
_OPTIMUM = (
    "optimum_: parameters before noise and the gradient there, secret; together with the remaining "
    "rows they give the gradient left by the last removals, and from it a row that was removed "
    "alone can be computed; settle() prevents that"
)
_NUMBERS = "account_: bounds of the distance to a retrained model, rounded up to powers of two"
_CACHE = (
    "cache_: point, scores, top eigenvalue, degrees of freedom, largest row norm and rounding "
    "error of the last Hessian; in memory only"
)
# After a request, work is a share of a training with this many Newton steps: the number of steps
# of the last training depends on removed rows.
_TYPICAL_STEPS = 8
_RESIDUAL_STATE = {
    "published": (_MODEL, _NUMBERS, _CACHE),
    "secret": (_MODEL, _OPTIMUM, _NUMBERS, _CACHE),
}


@dataclass(kw_only=True, eq=False, repr=False)
class FisherClassifier(CertifiedParameters, LinearClassifier):
    """Linear classifier that forgets by Newton steps and fresh Fisher noise.

    Training minimises the loss of all rows and releases the optimum with noise,

        theta = opt + sigma F^(-1/4) b,   b standard normal, one number per parameter,

    rounded to a grid. F = H / n is the Hessian per row, regulariser included, or its diagonal. A
    request makes Newton steps on the remaining rows, w - F^(-1) grad L(w), and releases the result
    with fresh noise of the same form. Directions that the data determine well (large F) get little
    noise, and the other directions get more.

    Parameters
    ----------
    l2 : float, default=1e-3
        Regulariser (l2 / 2)|W|^2, above 0: per row or in total, see `reg`. The intercept is also
        regularised; otherwise the problem would not be strongly convex.
    reg : {"per_sample", "total"}, default="per_sample"
        "per_sample": the total regulariser is l2 times the number of remaining rows and shrinks
        with it. "total": the total regulariser is fixed, as with scikit-learn's ``C = 1 / l2``.
    multi_class : {"ovr", "softmax"}, default="ovr"
        For more than two classes: one problem per class against the rest, or one joint problem.
    fit_intercept : bool, default=True
        Append a column of ones.
    rows : {"keep", "clip", "normalize", "refuse"}, default="keep"
        What to do with a row whose norm (including the 1 of the intercept) is not `row_norm`: keep
        it, scale longer rows down, scale all rows, or raise an error for longer rows. Predictions
        use the same scaling.
    row_norm : float or None, default=None
        Declared bound on the norm of every row; required unless ``rows="keep"``. None uses the
        norm of the longest remaining row.
    epsilon, delta : float, default=1.0, 1e-4
        The certified guarantee for every request. The noise is fresh each time, so the privacy
        losses of requests do not add up.
    sigma : float, default=0.01
        Scale of the noise. It moves the score of a row x by about sigma l2^(-1/4) |x| at most. With
        the default and l2 = 1e-3 this is 0.06 for rows of norm 1, which costs less than one point
        of accuracy on the digits data of scikit-learn. The default hides a distance to the optimum
        of about 1e-3, and one Newton step for a single person leaves a distance of 1e-5 to 1e-3, so
        one or two passes over the rows are enough. 0 means no noise and an empirical guarantee.
    covariance : {"fisher", "isotropic"}, default="fisher"
        Noise sigma F^(-1/4) b ("fisher") or sigma b ("isotropic"). F depends on the rows, and the
        guarantee must cover this, so a stale Hessian is computed again. Isotropic noise does not
        need this. If a block has more than 256 parameters (columns, or columns times classes for a
        softmax), only the diagonal of F shapes the noise.
    state : {"published", "secret"}, default="published"
        "published": steps start from the noisy parameters; the model also keeps the rows and an
        account of rounded numbers, but nothing else. "secret": the model also keeps the optimum
        before noise, so that one pass over the rows is usually enough.
    batch_size : int or None, default=None
        Number of rows that one step removes (m' in the survey). Each batch uses a new gradient and
        Hessian at the current parameters, which is slower, but ends closer to the optimum for large
        requests. None removes all rows of a request at once. It is an error if a request has fewer
        rows than `batch_size`.
    tol : float, default=1e-8
        Training stops when |gradient| <= tol times the number of rows. The guarantee must allow for
        a retrained model that stops exactly there, so with a large `tol` and a small `l2` every
        request causes a retraining.
    max_iter : int, default=1000
        Largest number of iterations in training.
    if_unproved : {"raise", "downgrade"}, default="raise"
        What to do when an assumption that can be checked does not hold: raise `AssumptionError`, or
        warn with `GuaranteeWarning` and keep the model with an empirical guarantee.
    noise_seed : int or None, default=None
        Makes the noise repeatable, for tests. The noise is then not secret, and the guarantee is
        empirical.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all random numbers except the noise (here: the start of the eigenvalue search).

    Attributes
    ----------
    coef_, intercept_, classes_ : ndarray
        The published model.
    account_ : FisherAccount
        Bounds on the distance to a retrained model after the last request, rounded up to powers of
        two.
    epsilon_ : float
        Smallest epsilon that is proved for the current model at this delta.
    kl_bound_ : float
        Bound on the Kullback-Leibler divergence between this model and a retrained model, in nats.
    optimum_ : SecretArray or None
        With ``state="secret"``, the parameters before noise and the gradient there. They are part
        of the model file, so keep the file private, or call `settle` first.
    ids_, guarantee_, residual_state_, n_rows_
        See `ForgetMixin`.

    See Also
    --------
    InfluenceClassifier : The same noise in all directions; a step reads only the removed rows.
    DescentToDeleteClassifier : Gradient steps instead of Newton steps; can also add rows.

    Notes
    -----
    Guarantee: certified (epsilon, delta) against an observer of the latest model, even if requests
    depend on earlier models (adaptive). The proof bounds the difference of the means, which
    Golatkar et al. compare. It also bounds the difference of the covariances, which they ignore: a
    retrained model uses the Fisher matrix at another point. Noise is computed in integers, and
    every rounding error that it has to hide is bounded and charged. If the first step is not
    enough, further steps follow, then a new Hessian, then a retraining; `Receipt.rebuilt` counts
    them. Tuning `l2` on rows that are removed later weakens the guarantee; see `declare_tuning`.

    The guarantee does not cover the secret state. From the state and the rows in the same file, the
    gradient left by the last removals can be computed. If the last removal was a single row, this
    gradient reveals the row. `settle` prevents this.

    At the exact optimum, the first step is the same as that of `InfluenceClassifier`. At other
    points, the first step also reduces the residual of earlier steps, because it uses the gradient
    on the remaining rows.

    References
    ----------
    Golatkar, Achille and Soatto, "Eternal sunshine of the spotless net: selective forgetting in
    deep networks", CVPR 2020. Mahadevan and Mathioudakis, "Certifiable machine unlearning for
    linear models", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_breast_cancer
    >>> from letheon import FisherClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = FisherClassifier(l2=0.01).fit(np.log1p(X), y)
    >>> receipt = model.forget([3, 17])
    >>> receipt.guarantee.kind, receipt.guarantee.spent <= receipt.guarantee.budget
    ('certified', True)
    """

    facts: ClassVar[MethodFacts] = FACTS
    _parameter_rules: ClassVar[Rules] = {
        "delta": Interval(
            0, 1, closed="neither", why="Gaussian noise gives no pure epsilon guarantee"
        ),
        "covariance": OneOf(("fisher", "isotropic")),
        "state": OneOf(("published", "secret")),
    }

    multi_class: str = "ovr"
    sigma: float = 0.01
    covariance: str = "fisher"
    state: str = "published"
    batch_size: int | None = None

    optimum_: SecretArray | None = field(init=False)
    account_: FisherAccount = field(init=False)
    cache_: Cache[Expansion] = field(init=False)

    def forget(
        self, ids: Any, *, digest: bool = False, batch_size: int | str | None = AS_FITTED
    ) -> Receipt:
        """Remove every row of these ids; see `ForgetMixin.forget`.

        Parameters
        ----------
        ids : sequence of int or of str
            Ids to forget.
        digest : bool, default=False
            Whether the receipt also contains the digests of the model before and after.
        batch_size : int or None, optional
            Batch size for this request only; default: the parameter `batch_size` of the model.

        Returns
        -------
        Receipt
            `rebuilt` counts polishes, new Hessians and retrainings, if there were any.
        """
        size = self.batch_size if batch_size == AS_FITTED else batch_size
        return self._answer_request(ids, digest, partial(self._prepare, batch_size=size))

    def settle(self) -> Self:
        """Train again on the remaining rows, with fresh noise.

        With ``state="secret"`` the model file contains the remaining rows and the parameters
        without noise. From them, the gradient left by the last removals can be computed; if the
        last removal was a single row, this gradient reveals the row. With ``state="published"`` the
        account still contains rounded bounds that depend on removed rows. After `settle`, nothing
        in the file depends on removed rows: `fit` on the remaining rows could have written the same
        file. `settle` takes as long as a fit. Call it before you write a file that others may read.
        With `noise_seed` the noise can be computed, so nothing is hidden.

        Returns
        -------
        self

        Raises
        ------
        AssumptionError
            Training does not reach the required gradient on these rows; nothing was changed.
        """
        require_fitted(self)
        return self._retrain_in_place()

    @property
    def epsilon_(self) -> float:
        """Smallest epsilon that is proved for the current model at this delta."""
        require_fitted(self)
        return self.account_.closeness.epsilon_at(self.delta) if self.sigma else float("inf")

    @property
    def kl_bound_(self) -> float:
        """Bound on the divergence between the last removal and a retrained model, in nats.

        It bounds the Kullback-Leibler divergence of the two distributions, in both directions,
        including the covariances. It is 0 before the first request and after a retraining. The mean
        of the divergence over the possible forgotten rows bounds the information of the model about
        them (Golatkar et al. 2020, Proposition 1).
        """
        require_fitted(self)
        return self.account_.closeness.kl if self.sigma else float("inf")

    def _release_grid(self) -> ReleaseGrid | None:
        return ReleaseGrid.of_sigma(self.sigma) if self.sigma > 0.0 else None

    def _weights_before_noise(self) -> Floats | None:
        return None if self.optimum_ is None else self.optimum_.open()[0]

    def _check_settings(self) -> None:
        super()._check_settings()
        self._release_grid()  # Raises for a sigma without a grid.

    def _train(self, training: TrainingRows, source: NoiseSource, seed: int) -> FitOutcome:
        problem = self._build_problem(training)
        tolerance = self.tol * problem.n_remaining
        solution = minimise(problem, tolerance=tolerance / 2, max_iter=self.max_iter)
        warnings = convergence_warnings(solution, tolerance)
        residual = solution.residual + problem.gradient_error(solution.W)
        fisher = self._fisher_at(problem, solution.W, seed)
        flops = fisher.flops
        if fisher.expansion is not None:
            solution = polish_once(problem, solution, partial(fisher.newton_step, solution.W))
            residual = max(residual, solution.residual + problem.gradient_error(solution.W))
            flops += hessian_flops(problem)
        roots = self._noise_roots(fisher, solution.W)
        doubts = self._find_doubts(solution.W, residual, tolerance, roots)
        downgraded, more = self._handle_doubts(doubts if self._can_certify else ())
        attributes = {
            "model_": self._build_linear(
                self._add_noise(solution.W, roots, source), training.classes
            ),
            "release_salt_": source.salt(),
            "optimum_": self._keep_optimum(solution.W, solution.gradient),
            "account_": JUST_TRAINED,
            "cache_": Cache(fisher.expansion),
            "downgraded_": downgraded,
        }
        flops += solution.flops
        return FitOutcome(attributes, flops, (*warnings, *more), solution.n_iter)

    def _find_doubts(
        self, W: Floats, residual: float, tolerance: float, roots: list[NoiseRoot] | None
    ) -> Iterator[str]:
        """Yield the reasons why the guarantee is not proved; called before noise is drawn."""
        if not residual <= tolerance:
            yield (
                f"training ended at a gradient norm of {residual:.3g}, rounding included, "
                f"above the tolerance of {tolerance:.3g}; increase max_iter or tol, scale the "
                "columns or use a larger l2"
            )
        if not are_accurate(roots):
            yield (
                "rounding errors make the covariance of the noise inaccurate; scale the columns, "
                "use a larger l2 or covariance='isotropic'"
            )
        largest = float(np.abs(W).max(initial=0.0))
        if ReleaseGrid.of_sigma(self.sigma).clipping_distance(largest) > 0.0:
            yield (
                f"sigma={self.sigma:.3g} is too small for parameters of this size: parameters "
                "above 2**31 sigma cannot be released; increase sigma"
            )

    @property
    def _is_shaped(self) -> bool:
        return self.sigma > 0.0 and self.covariance == "fisher"

    def _keep_optimum(self, W: Floats, gradient: Floats) -> SecretArray | None:
        return SecretArray(np.stack([W, gradient])) if self.state == "secret" else None

    def _fisher_at(self, problem: FitProblem, W: Floats, seed: int | None = None) -> FisherMatrix:
        """Return the Fisher matrix of the rows of a problem at the parameters W."""
        radius, is_shaped, expansion = self._radius_bound, self._is_shaped, None
        if is_dense(problem):
            start = library_seed(self.seed_ if seed is None else seed, Purpose.EIGENVALUE)
            expansion = Expansion.evaluate_at(problem, W, radius, start, is_shaped=is_shaped)
        return FisherMatrix(expansion, problem, radius=radius, is_shaped=is_shaped)

    def _noise_roots(self, fisher: FisherMatrix, W: Floats) -> list[NoiseRoot] | None:
        """Return the matrices that shape the noise, one per block; None for isotropic noise."""
        if fisher.noise is None:
            return None
        return fisher.noise.noise_roots(W, ReleaseGrid.of_sigma(self.sigma))

    def _add_noise(self, W: Floats, roots: list[NoiseRoot] | None, source: NoiseSource) -> Floats:
        """Return the parameters rounded to the grid, plus fresh noise."""
        grid = self._release_grid()
        if grid is None:
            return W
        if roots is None:
            return grid.release(W, source)
        return grid.release_with(W, draw_noise(roots, source).reshape(W.shape, order="F"))

    def _remove_rows(self, removal: Removal, counts: Counts, **options: Any) -> Change:
        batch_size = options.get("batch_size")
        problem, positions = self._build_problem(self._training_rows()), removal.where
        if batch_size is None:
            walk = self._step_at_once(problem, positions)
        else:
            walk = self._step_in_batches(problem, positions, batch_size)
        is_settled = walk.run_until_hidden()
        roots = self._noise_roots(walk.fisher, walk.W) if is_settled else None
        if not is_settled or not are_accurate(roots):
            return self._retrain(positions, walk)
        return self._prepare_release(positions, counts, walk, roots)

    def _step_at_once(self, problem: FitProblem, positions: Positions) -> NewtonWalk:
        """Make one Newton step on the remaining rows, with the cached Hessian if it exists."""
        after, expansion = problem.without(positions), self.cache_.content
        if self.optimum_ is None:
            W = self.model_.weights
            gradient = evaluate_at(after, W).gradient
        else:
            W, gradient = self.optimum_.open()
            removed = problem.data_gradient(W, positions) + (problem.ridge - after.ridge) * W
            gradient = gradient - removed
        if expansion is not None:
            fisher = FisherMatrix(expansion, after, positions, is_shaped=self._is_shaped)
        else:
            fisher = self._fisher_at(after, W)
        W = W - fisher.newton_step(W, gradient)
        walk = self._start_walk(after, fisher, W, evaluate_at(after, W))
        walk.hessians = int(fisher.expansion is not expansion)
        walk.flops = 2 * after.pass_flops + walk.hessians * hessian_flops(after)
        return walk

    def _step_in_batches(self, problem: FitProblem, positions: Positions, size: int) -> NewtonWalk:
        """Make one Newton step per batch, with gradient and Hessian at the current parameters.

        This is the removal mechanism of Mahadevan and Mathioudakis 2021 (survey, Algorithm 5), but
        noise is added only at the end, because the next step would remove most of it.
        """
        W = self.model_.weights if self.optimum_ is None else self.optimum_.open()[0]
        after, n_batches, products = problem, 0, 0.0
        for begin in range(0, len(positions), size):
            after = after.without(positions[begin : begin + size])
            fisher = self._fisher_at(after, W)
            W = W - fisher.newton_step(W, evaluate_at(after, W).gradient)
            products += fisher.flops
            n_batches += 1
        walk = self._start_walk(after, fisher, W, evaluate_at(after, W))
        walk.hessians = n_batches if fisher.expansion is not None else 0
        passes = (n_batches + 1) * after.pass_flops
        products -= fisher.flops  # Those of the last matrix are added at the end.
        walk.flops = passes + products + walk.hessians * hessian_flops(after)
        return walk

    def _start_walk(
        self, after: FitProblem, fisher: FisherMatrix, W: Floats, evaluation: GradientEvaluation
    ) -> NewtonWalk:
        release_noise = ReleaseNoise(
            grid=self._release_grid(),
            isotropic=self.covariance == "isotropic",
            epsilon=self.epsilon,
            delta=self.delta,
            tolerance=self.tol * after.n_remaining,
            ridge=after.ridge,
            n_rows=after.n_remaining,
            size=W.size,
        )
        fresh = None if fisher.expansion is None else partial(self._fisher_at, after)
        return NewtonWalk(after, release_noise, fisher, fresh, W, evaluation)

    def _prepare_release(
        self, positions: Positions, counts: Counts, walk: NewtonWalk, roots: list[NoiseRoot] | None
    ) -> Change:
        """Prepare the release of the parameters that the Newton steps reached, with fresh noise."""
        source, expansion = copy.copy(self.source_), walk.fisher.expansion
        typical = walk.after.pass_flops
        if expansion is not None:
            typical += hessian_flops(walk.after)
        attributes: dict[str, Any] = {
            "model_": self.model_.with_weights(self._add_noise(walk.W, roots, source)),
            "release_salt_": source.salt(),
            "optimum_": self._keep_optimum(walk.W, walk.evaluation.gradient),
            "account_": FisherAccount.from_walk(walk),
            "counts_": counts,
            "source_": source,
            "n_iter_": 1,
            "training_flops_": round_up_to_power(_TYPICAL_STEPS * typical),
        }
        if expansion is not self.cache_.content:
            attributes["cache_"] = Cache(expansion)
        outcome = Outcome(self._relative_work(walk.flops + walk.fisher.flops), walk.rebuild_counts)
        wipe = partial(_wipe_rows, self.rows_, positions, expansion)
        return Change(attributes, outcome, (walk.fisher.apply, wipe, *self._wipe_actions()))

    def _retrain(self, positions: Positions, walk: NewtonWalk | None = None) -> Change:
        """Prepare a retraining with fresh noise; `walk` is the failed attempt to forget, if any."""
        rebuilt = {**(walk.rebuild_counts if walk else {}), "retrains": 1}
        return super()._retrain(positions).with_rebuilt(rebuilt)

    def _make_guarantee(self) -> Guarantee:
        # With this comparison, NaN and infinity (in files of earlier versions) are not proved.
        is_proved = self.downgraded_ is None and self.account_.used <= 1.0
        return Guarantee(
            reference="Golatkar et al. 2020, with a proved bound of means and covariances",
            assumptions=(REGULARISERS[self.reg], *_SHARED),
            residual_state=_RESIDUAL_STATE[self.state],
            **self._certificate_fields(is_proved, self.account_.used, 1.0),
        )


def _wipe_rows(rows: SlotRows, positions: Positions, expansion: Expansion | None) -> None:
    """Wipe rows, and keep the cached scores in line with the slots of the rows."""
    alive = rows.alive.copy()
    alive[positions] = False
    rows.wipe(positions)
    if expansion is not None and rows.n_slots != len(alive):
        expansion.scores = expansion.scores[alive]
