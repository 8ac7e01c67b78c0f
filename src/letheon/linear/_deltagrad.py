"""DeltaGrad: removal by replaying gradient descent (Wu et al. 2020; survey section 5.3)."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from sklearn.utils import Tags

from letheon.base import Outcome, Removal, require_fitted
from letheon.data import SlotRows
from letheon.guarantee import Guarantee, MethodFacts, SearchRanges
from letheon.linear._base import REGULARISERS, FitOutcome, LinearClassifier, linear_facts
from letheon.linear._problem import FitProblem, Floats, Squared, row_norms
from letheon.linear._replay import (
    BatchSchedule,
    Checkpoints,
    LinearDescent,
    ReplayedPath,
    RowRemoval,
    Trajectory,
    replay_by_hessians,
    replay_by_secants,
    row_keys,
)
from letheon.linear._solve import DENSE_LIMIT, block_size
from letheon.noise import NoiseSource
from letheon.removal import Cache, Change, Counts, Exactness, TrainingRows
from letheon.seeds import Purpose, library_seed
from letheon.validation import POSITIVE, OneOf, OrNone, Rules, Whole

FACTS = linear_facts(
    method="deltagrad",
    applicability="linear classifiers with an L2 regulariser that gradient descent trains",
    efficiency_parameters=("period", "burn_in", "hessian", "n_checkpoints"),
    certifiability_parameters=("sigma", "period"),
    definition_name="deltagrad",
    tasks=("classification",),
    # Strong independence (Wu et al., Assumption 5) is about the run, not the loss. It cannot be
    # checked beforehand, and no guarantee rests on it here.
    needs=(
        "strongly-convex",
        "smooth",
        "lipschitz-hessian",
        "bounded-gradients",
        "gradient-descent",
    ),
    noise="output-perturbation-gaussian",
    search_ranges=lambda _: SearchRanges({"period": (2, 5, 20)}),
)

_REFERENCE = "Wu et al. 2020 (an accuracy rate, no bound of what the model reveals)"
_SHARED = ("strongly-convex", "intercept-regularised", "few-rows-leave", "step-size-kept")
_RESIDUAL_STATE = (
    "model_: the parameters, off those of a retrained model by the error of approximate steps",
    (
        "trajectory_: points and gradients of the descent, rewritten by every request; the error "
        "of approximate steps can be computed from it and the remaining rows; it depends on the "
        "forgotten rows and may point along one of them"
    ),
    "pace_: step size, number of batches and of rows at the last training",
)
_RESIDUAL_CACHE = (
    "cache_: Hessians of the remaining rows at points of an earlier trajectory; in memory only"
)

_KEY = "batch_key"
_LANCZOS_STEPS = 16
# The largest eigenvalue may exceed the result of these steps by this factor.
_LANCZOS_SLACK = 1.05


@dataclass(frozen=True)
class DescentSettings:
    """Step size and batches per epoch, and the number of rows for which both were chosen."""

    rate: float
    n_batches: int
    n_rows: int


@dataclass(kw_only=True, eq=False, repr=False)
class DeltaGradClassifier(LinearClassifier):
    """Linear classifier that forgets by replaying its gradient descent.

    Training is gradient descent on ``F(w) = mean_i l_i(w) + (lam / 2) |w|^2``; all its points
    ``w_t`` and gradients ``g_t`` are kept. To forget m of n rows, the descent is replayed from
    ``w_0``::

        w'_(t+1) = w'_t - rate / (n - m) [ n g - sum of grad F_i(w'_t) over the removed rows ]

    where ``g`` is the gradient of all n rows at ``w'_t``. This gradient is computed exactly in the
    first steps and every few steps afterwards. In all other steps it is approximated by ``g_t + B
    (w'_t - w_t)`` with an approximate Hessian B. The new path replaces the old path, and later
    requests start from the new path.

    Parameters
    ----------
    l2 : float, default=1e-3
        Regulariser lam, above 0. The intercept is regularised too.
    reg : {"per_sample", "total"}, default="per_sample"
        Whether lam is `l2`, or `l2` divided by the number of remaining rows.
    multi_class : {"ovr", "softmax"}, default="ovr"
        For more than two classes: one problem per class against the rest, or one joint problem.
    fit_intercept : bool, default=True
        Append a column of ones.
    rows : {"keep", "clip", "normalize", "refuse"}, default="keep"
        What to do with a row whose norm, including the 1 of the intercept, is not `row_norm`.
    row_norm : float or None, default=None
        Declared bound on the norm of every row; needed unless ``rows="keep"``.
    n_steps : int, default=300
        T, the number of gradient steps.
    learning_rate : float or None, default=None
        Step size. None uses 1 / M. Here M is lam plus the largest second derivative of the loss
        times the largest eigenvalue of X'X / n (with batches: times the mean squared norm of the
        rows). The step size is kept until the next training from scratch.
    batch_size : int or None, default=None
        Mean number of rows in a mini-batch; None uses all rows in every step. The batch of a row
        depends only on its id and the seed, so a removal moves no other row to another batch.
    hessian : {"lbfgs", "cached"}, default="lbfgs"
        "lbfgs" builds B from the last exact steps. "cached" keeps Hessians at points of the path,
        so that a request reads only the removed rows; it needs blocks of at most 5,000 parameters.
    burn_in : int, default=10
        j0: steps 0 to j0 are computed exactly. Only for "lbfgs".
    period : int, default=5
        T0: after j0, one of every T0 steps is computed exactly. Only for "lbfgs". With 1, all steps
        are exact, and a request takes as long as retraining.
    history : int, default=10
        k: number of vector pairs in L-BFGS. Rows with more columns need more pairs.
    n_checkpoints : int, default=4
        Number of points with a Hessian. Only for "cached".
    sigma : float, default=0.0
        Scale of isotropic normal noise on the published parameters, drawn again after every fit
        and every request.
    max_memory : int, default=2**30
        Largest path in bytes that is kept in memory; a path needs 16 T bytes per parameter. A
        larger path is stored in a private temporary file, which the system frees without
        overwriting it. Loaded and copied models keep the path in memory until their next request.
    measure_distance : bool, default=True
        Whether to compute `distance_bound_`, which takes one gradient pass over the rows.
    noise_seed : int or None, default=None
        Makes the noise repeatable; for tests.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the batches.

    Attributes
    ----------
    coef_, intercept_, classes_
        Published parameters, and the labels of the remaining rows.
    distance_bound_ : float or None
        ``|grad F(w)| / lam`` on the remaining rows, where w are the parameters before noise. It
        bounds the distance of w to the optimum for these rows, whatever the error of the replay.
    learning_rate_ : float
        Step size in use.
    trajectory_ : Trajectory
        The path of the descent. Keep it private, like the rows, because it ends at the parameters
        without noise.
    guarantee_ : Guarantee
        Always empirical.

    Notes
    -----
    **Guarantee**: empirical. By the theorem of Wu et al. the replay differs from a retrained model
    by o(m/n), while an unchanged model differs by O(m/n). The constants of the theorem are unknown
    here, its assumptions are not checked, and it does not state how much noise would hide the
    error. `distance_bound_` needs only strong convexity and is measured after every request; it
    includes the distance that the descent itself has not yet covered.

    A saved model contains the path, which has no noise. Gradients of approximate steps differ from
    those of the remaining rows by errors that depend on the forgotten rows. The file contains the
    remaining rows, so anyone who has the file can compute the errors. If there are few columns, the
    errors may point along a forgotten row. Only with ``period=1`` are all errors rounding errors.

    A request trains from scratch if fewer than half of the rows of the last training would remain,
    or if it removes the last row of a class.

    ``hessian="cached"`` uses the Hessian of the remaining rows and their gradients at ``w_t``. With
    batches, both kinds of B are computed from other rows than those of the current batch, so the
    error is larger: with L-BFGS and batches of twenty rows it was up to 0.4 of the error of an
    unchanged model.

    References
    ----------
    Wu, Dobriban, Davidson (2020). DeltaGrad: rapid retraining of machine learning models. ICML.
    Mahadevan, Mathioudakis (2021). Certifiable machine unlearning for linear models.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = DeltaGradClassifier(n_steps=100, random_state=0).fit(X, y)
    >>> receipt = model.forget([3, 77])
    >>> receipt.n_rows, receipt.guarantee.kind, receipt.work < 1
    (2, 'empirical', True)
    """

    facts: ClassVar[MethodFacts] = FACTS
    _parameter_rules: ClassVar[Rules] = {
        "learning_rate": OrNone(POSITIVE),
        "hessian": OneOf(("lbfgs", "cached")),
        **dict.fromkeys(("n_steps", "period", "history", "n_checkpoints"), Whole(1)),
        **dict.fromkeys(("burn_in", "max_memory"), Whole(0)),
    }
    # The location of the path does not affect the model.
    _not_digested: ClassVar[frozenset[str]] = LinearClassifier._not_digested | {"max_memory"}

    multi_class: str = "ovr"
    n_steps: int = 300
    learning_rate: float | None = None
    batch_size: int | None = None
    hessian: str = "lbfgs"
    burn_in: int = 10
    period: int = 5
    history: int = 10
    n_checkpoints: int = 4
    sigma: float = 0.0
    max_memory: int = 2**30
    measure_distance: bool = True

    trajectory_: Trajectory = field(init=False)
    pace_: DescentSettings = field(init=False)
    distance_bound_: float | None = field(init=False)
    cache_: Cache[Checkpoints] = field(init=False)

    @property
    def learning_rate_(self) -> float:
        """Step size in use."""
        require_fitted(self)
        return self.pace_.rate

    def _train(self, training: TrainingRows, source: NoiseSource, seed: int) -> FitOutcome:
        problem = self._build_problem(training)
        if self.hessian == "cached" and block_size(problem) > DENSE_LIMIT:
            raise ValueError(
                f"hessian='cached' would need matrices with {block_size(problem)} rows, above "
                f"the limit of {DENSE_LIMIT}; use hessian='lbfgs'"
            )
        settings = self._choose_settings(problem, seed)
        training.rows.extra.pop(_KEY, None)
        if settings.n_batches > 1:
            training.rows.extra[_KEY] = row_keys(training.rows.ids, seed)
        descent = self._build_descent(problem, settings, training.rows, seed)
        replay = _run_if_finite(descent.record_path, self.n_steps)
        if replay is None:
            raise ValueError(
                f"gradient descent diverged at learning_rate={settings.rate:.3g}; use a "
                "smaller learning_rate, or None to choose it automatically"
            )
        W = descent.as_matrix(replay.end)
        attributes = {
            "model_": self._build_linear(self._add_noise(W, source), training.classes),
            "trajectory_": replay.trajectory,
            "pace_": settings,
            "distance_bound_": self._bound_distance(problem, W),
            "cache_": Cache(self._build_checkpoints(problem, replay.trajectory)),
            "downgraded_": None,
        }
        return FitOutcome(attributes, self.n_steps * _step_flops(problem, settings))

    def _choose_settings(self, problem: FitProblem, seed: int) -> DescentSettings:
        n = problem.n_remaining
        n_batches = 1 if self.batch_size is None else max(1, round(n / self.batch_size))
        if self.learning_rate is not None:
            return DescentSettings(float(self.learning_rate), n_batches, n)
        if n_batches == 1:
            start = library_seed(seed, Purpose.EIGENVALUE)
            moment = _top_moment(problem, start) / n
        else:
            # For batches, use the mean: no single row determines it.
            moment = float(np.mean(row_norms(problem.X) ** 2))
        lam = problem.ridge / n
        return DescentSettings(1.0 / (lam + problem.loss.curvature_bound * moment), n_batches, n)

    def _build_descent(
        self, problem: FitProblem, settings: DescentSettings, rows: SlotRows, seed: int
    ) -> LinearDescent:
        batches = None
        if settings.n_batches > 1:
            batches = BatchSchedule(rows.extra[_KEY], rows.alive, settings.n_batches, seed)
        return LinearDescent(problem, settings.rate, batches, self.max_memory)

    def _build_checkpoints(self, problem: FitProblem, path: Trajectory) -> Checkpoints | None:
        if self.hessian != "cached":
            return None
        return Checkpoints.evaluate_along(problem, path, self.n_checkpoints)

    def _add_noise(self, W: Floats, source: NoiseSource) -> Floats:
        """Return the parameters plus noise (Mahadevan and Mathioudakis 2021, equation 16)."""
        return W + self.sigma * source.normals(W.shape) if self.sigma else W.copy("C")

    def _bound_distance(self, problem: FitProblem, W: Floats) -> float | None:
        return problem.distance_bound(problem.gradient_at(W)) if self.measure_distance else None

    def _remove_rows(self, removal: Removal, counts: Counts, **options: Any) -> Change:  # noqa: ARG002
        positions, settings = removal.where, self.pace_
        problem = self._build_problem(self._training_rows())
        if 2 * (problem.n_remaining - len(positions)) < settings.n_rows:
            return self._retrain(positions)
        descent = self._build_descent(problem, settings, self.rows_, self.seed_)
        removed = RowRemoval(descent, positions, self.trajectory_.sizes)
        checkpoints = None
        if self.hessian == "cached":
            before = self.cache_.content or self._build_checkpoints(problem, self.trajectory_)
            assert before is not None
            checkpoints = before.without(removed)
        replay = _run_if_finite(self._replay_without, descent, removed, checkpoints)
        if replay is None:
            return self._retrain(positions)
        W, source = descent.as_matrix(replay.end), copy.copy(self.source_)
        attributes = {
            "model_": replace(self.model_, weights=self._add_noise(W, source)),
            "trajectory_": replay.trajectory,
            "cache_": Cache(checkpoints),
            "source_": source,
            "distance_bound_": self._bound_distance(removed.after, W),
            "counts_": counts,
        }
        outcome = Outcome(
            self._relative_work(self._replay_flops(problem, removed, replay)),
            {"exact steps": replay.n_exact} if replay.n_exact else {},
        )
        return Change(attributes, outcome, (partial(self.rows_.wipe, positions),))

    def _replay_without(
        self, descent: LinearDescent, removed: RowRemoval, checkpoints: Checkpoints | None
    ) -> ReplayedPath:
        if checkpoints is not None:
            return replay_by_hessians(descent, self.trajectory_, removed, checkpoints)
        exactness = Exactness(self.burn_in, self.period, self.history)
        return replay_by_secants(descent, self.trajectory_, removed, exactness)

    def _replay_flops(
        self, problem: FitProblem, removed: RowRemoval, replay: ReplayedPath
    ) -> float:
        d, K = problem.shape
        stored: int = removed.rows.nnz if sp.issparse(removed.rows) else removed.rows.size
        own = 4.0 * stored * K * self.n_steps / self.pace_.n_batches
        measured = problem.pass_flops if self.measure_distance else 0.0
        if self.hessian == "cached":
            size = block_size(problem)
            squares = d * K * size
            downdates = 2.0 * self.n_checkpoints * squares * len(removed.y)
            return own + measured + downdates + 2.0 * self.n_steps * squares
        products = 8.0 * self.history * d * K * (self.n_steps - replay.n_exact)
        return own + measured + products + replay.n_exact * _step_flops(problem, self.pace_)

    def _make_guarantee(self) -> Guarantee:
        reference, cached = _REFERENCE, self.hessian == "cached"
        if self.distance_bound_ is not None:
            measured = f"measured: at most {self.distance_bound_:.3g} from the optimum before noise"
            reference = f"{reference}; {measured}"
        return Guarantee(
            kind="empirical",
            reference=reference,
            assumptions=(REGULARISERS[self.reg], *_SHARED),
            residual_state=(*_RESIDUAL_STATE, _RESIDUAL_CACHE) if cached else _RESIDUAL_STATE,
        )

    def _public_claim(self, claim: Guarantee) -> Guarantee:
        """Return the guarantee for publication, without the measured distance."""
        return replace(super()._public_claim(claim), reference=_REFERENCE)

    def __sklearn_tags__(self) -> Tags:
        """Return the scikit-learn tags; the estimator is deterministic if it has no noise."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = bool(self.sigma) and self.noise_seed is None
        return tags


def _run_if_finite(run: Callable[..., ReplayedPath], *arguments: Any) -> ReplayedPath | None:
    """Return the path that `run` computes; None if the descent diverged."""
    with np.errstate(over="ignore", invalid="ignore"):
        replay = run(*arguments)
    return replay if np.isfinite(replay.end).all() else None


def _step_flops(problem: FitProblem, settings: DescentSettings) -> float:
    return problem.pass_flops / settings.n_batches


def _top_moment(problem: FitProblem, seed: int) -> float:
    """Return an upper estimate of the largest eigenvalue of X'X, by the Lanczos method."""
    d = problem.shape[0]
    plain = replace(problem, loss=Squared(), l2=0.0)
    weights = np.ones((problem.X.shape[0], 1))
    basis = [np.random.default_rng(seed).standard_normal((d, 1))]
    basis[0] /= np.linalg.norm(basis[0])
    images: list[Floats] = []
    for _ in range(min(_LANCZOS_STEPS, d)):
        images.append(plain.hessian_product(weights, basis[-1]))
        Q = np.hstack(basis)
        remainder = images[-1] - Q @ (Q.T @ images[-1])
        remainder -= Q @ (Q.T @ remainder)
        length = float(np.linalg.norm(remainder))
        if length <= 1e-12 * float(np.linalg.norm(images[-1])):
            break
        basis.append(remainder / length)
    Q = np.hstack(basis[: len(images)])
    ritz = np.linalg.eigvalsh(Q.T @ np.hstack(images))
    return _LANCZOS_SLACK * float(max(ritz[-1], 0.0))
