"""Training, removals and guarantees of the Influence methods."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_consistent_length

from letheon.base import Outcome, Removal, lock_model, require_fitted
from letheon.exceptions import BudgetSpentError, CannotForgetError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.inner_estimator import require_features
from letheon.linear._account import (
    MECHANISMS,
    Account,
    Mechanism,
    ObjectiveNoise,
    OutputNoise,
    release_code,
    suggest_search_ranges,
)
from letheon.linear._base import (
    AS_FITTED,
    REGULARISERS,
    CertifiedParameters,
    FitOutcome,
    LinearBase,
    convergence_warnings,
    linear_facts,
    require_batch_size,
)
from letheon.linear._calibrate import ReleaseGrid
from letheon.linear._curvature import Curvature, HessianProducts
from letheon.linear._newton import (
    BOUNDS,
    RemovalContext,
    RowsToRemove,
    StoredCurvature,
    data_free_state,
    fingerprint_rows,
    propose_removal,
    repair_residual,
)
from letheon.linear._problem import FitProblem, Floats, Positions, compute_ridge, rows_in_double
from letheon.linear._solve import DENSE_LIMIT, block_size, is_dense, l2_norm, minimise, polish_once
from letheon.noise import NoiseSource, SecretArray
from letheon.receipt import Receipt
from letheon.removal import Cache, Change, Counts, TrainingRows
from letheon.seeds import Purpose, library_seed
from letheon.validation import OneOf, Rules

FACTS = linear_facts(
    method="influence",
    applicability="linear models with a smooth convex loss and L2 regulariser",
    efficiency_parameters=("batch_size", "sigma"),
    certifiability_parameters=("epsilon", "delta", "sigma", "bound", "mechanism"),
    requests="adaptive",
    definition_name="influence",
    tasks=("classification", "regression"),
    needs=("strongly-convex", "smooth", "lipschitz-hessian", "bounded-gradients"),
    certificate="certified",
    accounting="guo2020-residual-sum",
    noise=release_code,
    search_ranges=suggest_search_ranges,
)

_REFERENCE = "Newton removal after Guo et al. 2020, released with discrete Gaussian noise"
_REFERENCE_PURE = "Newton removal after Guo et al. 2020, released with discrete Laplace noise"
_REFERENCE_OBJECTIVE = "Guo et al. 2020, Theorem 3: it ignores that the residual depends on noise"
_REFERENCE_WITHOUT_NOISE = "Newton removal after Guo et al. 2020, without noise that is secret"
_SHARED = ("strongly-convex", "intercept-regularised", "noise-secret", "retraining-converges")
_RESIDUE = (
    (
        "weights_: parameters without noise, secret; together with the remaining rows they give "
        "the gradient left by the last removals, and from it a row that was removed alone can be "
        "computed; settle() prevents that"
    ),
    "account_: sum of the bounds of all removals so far",
)
_RESIDUAL_STATE = {
    "in memory": (
        *_RESIDUE,
        "cache_: point, top eigenvalues and largest row norm of the last Hessian; never saved",
    ),
    "stored": (*_RESIDUE, "cache_: point and top eigenvalues of the Hessian at fit"),
}
# Conjugate gradients stop at this share of the limit, but within these relative residuals.
_CG_SHARE = 0.05
_CG_TOLERANCE = (3e-2, 1e-3)
_FEW_ROWS, _FEW_COLUMNS = 8, 96
# One Hessian costs about as much time as d / 28 passes over the rows (measured). After as many
# measured residuals the bounds have become loose, and the Hessian is recomputed.
_PASSES_PER_COLUMN = 28


@dataclass(kw_only=True, eq=False, repr=False)
class InfluenceBase(CertifiedParameters, LinearBase):
    """Base class of the Influence methods: Newton removal with an account, for any loss."""

    facts: ClassVar[MethodFacts] = FACTS
    _parameter_rules: ClassVar[Rules] = {"bound": OneOf(BOUNDS), "mechanism": OneOf(MECHANISMS)}

    sigma: float = 0.01
    mechanism: str = "output"
    bound: str = "tightest"
    batch_size: int | None = None
    data_free: bool = False

    weights_: SecretArray = field(init=False)
    noise_: SecretArray | None = field(init=False)
    account_: Account = field(init=False)
    cache_: Cache[Curvature | HessianProducts] = field(init=False)
    fingerprint_key_: str | None = field(init=False)

    def forget(
        self,
        ids: Any,
        *,
        X: Any = None,
        y: Any = None,
        batch_size: int | str | None = AS_FITTED,
        digest: bool = False,
    ) -> Receipt:
        """Remove every row of these ids; see `ForgetMixin.forget`.

        Parameters
        ----------
        ids : sequence of int or of str
            Ids to forget.
        X, y : array-like, optional
            All rows and targets of these ids, in any order, as passed to `fit`. Required with
            ``data_free=True``, because the model does not store them; not allowed otherwise.
        batch_size : int or None, optional
            Batch size for this request only; default: the parameter `batch_size` of the model.
        digest : bool, default=False
            Whether the receipt also contains the digests of the model before and after.

        Returns
        -------
        Receipt
            `rebuilt` counts measured residuals, polishes and retrainings, if there were any.

        Raises
        ------
        UnknownIdError, EmptyModelError
            As in `ForgetMixin.forget`.
        BudgetSpentError
            The budget of a model with ``data_free=True`` does not cover this removal.
        """
        size = self.batch_size if batch_size == AS_FITTED else batch_size
        options = {"batch_size": size, "X": X, "y": y}
        return self._answer_request(ids, digest, partial(self._prepare, **options))

    def exact_residual(self) -> float:
        """Return the norm of the gradient on the remaining rows, at the parameters without noise.

        This takes one pass over the rows. With ``mechanism="objective"`` the gradient includes the
        secret linear term. The account contains an upper bound on this number, and receipts show
        the account. Keep both inside your organisation: the guarantee covers only the parameters,
        so `publish` omits them.
        """
        self._require_rows("exact_residual")
        with lock_model(self):
            return l2_norm(self._current_problem().gradient_at(self._weights_before_noise()))

    def settle(self) -> Self:
        """Train again on the remaining rows, with fresh noise.

        The model file contains the remaining rows and the parameters. From them, the gradient left
        by the last removals can be computed; if the last removal was a single row, this gradient
        reveals the row. After `settle`, nothing in the file depends on removed rows: `fit` on the
        remaining rows could have written the same file. `settle` takes as long as a fit. Call it
        before you write a file that others may read.
        """
        self._require_rows("settle")
        return self._retrain_in_place()

    @property
    def epsilon_(self) -> float:
        """Smallest epsilon that covers the budget spent so far, at this delta."""
        require_fitted(self)
        ridge = compute_ridge(self.l2, self.reg, self.n_rows_)
        return self._make_mechanism().compute_epsilon(
            self.account_.spent, ridge, self.weights_.size
        )

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.data_free and self.row_norm is None:
            raise ValueError(
                "data_free=True needs row_norm, together with rows='clip', 'normalize' or "
                "'refuse', because the model stores no rows whose norms it could measure"
            )

    def _train(self, training: TrainingRows, source: NoiseSource, seed: int) -> FitOutcome:
        plain, mechanism = self._build_problem(training), self._make_mechanism()
        tilt = mechanism.draw_tilt(source, plain.shape)
        problem = replace(plain, tilt=tilt)
        tolerance = self.tol * problem.n_remaining
        limits = mechanism.compute_limits(problem.ridge, tolerance, prod(problem.shape))
        tolerance = min(tolerance, limits.fit / 2)
        solution = minimise(problem, tolerance=tolerance, max_iter=self.max_iter)
        if solution.residual > tolerance:
            tolerance = max(tolerance, 4 * problem.rounding_at(solution.W))
        warnings = convergence_warnings(solution, tolerance)
        curvature = None
        if is_dense(problem) or (self.data_free and block_size(problem) <= DENSE_LIMIT):
            curvature = self._curvature_at(problem, solution.W, seed).precompute_inverses()
            solution = polish_once(problem, solution, curvature.solve)
        residual = solution.residual + problem.gradient_error(solution.W)
        account, doubts = Account(residual, limits.removal), []
        if self._can_certify:
            doubts, warnings = [str(warning) for warning in warnings], ()
            if not account.spent <= limits.fit:
                doubts.append(
                    f"training ended at a gradient norm of {account.spent:.3g}, rounding "
                    f"included, above the {limits.fit:.3g} that the noise hides; scale large "
                    "columns, increase sigma, l2 or max_iter, or use a smaller tol"
                )
        downgraded, more = self._handle_doubts(doubts)
        attributes = {
            "model_": self._build_linear(mechanism.release(solution.W, source), training.classes),
            "weights_": SecretArray(solution.W.copy()),
            "release_salt_": source.salt(),
            "noise_": None if tilt is None else SecretArray(tilt),
            "account_": account,
            "cache_": Cache(curvature),
            "downgraded_": downgraded,
            "fingerprint_key_": None,
        }
        if self.data_free:
            attributes |= data_free_state(training.rows, curvature, problem.ridge)
        return FitOutcome(attributes, solution.flops, (*warnings, *more), solution.n_iter)

    def _require_rows(self, operation: str) -> None:
        require_fitted(self)
        if self.data_free:
            raise CannotForgetError(
                f"{operation} needs the training rows, but this model was fitted with "
                "data_free=True and stores no rows"
            )

    @property
    def _can_certify(self) -> bool:
        return super()._can_certify and self.mechanism == "output"

    def _make_guarantee(self) -> Guarantee:
        account, reference = self.account_, _REFERENCE if self.delta > 0.0 else _REFERENCE_PURE
        if not super()._can_certify:
            reference = _REFERENCE_WITHOUT_NOISE
        elif self.mechanism == "objective":
            reference = _REFERENCE_OBJECTIVE
        is_proved = self.downgraded_ is None and account.is_covered
        return Guarantee(
            reference=reference,
            assumptions=(REGULARISERS[self.reg], *_SHARED),
            residual_state=_RESIDUAL_STATE["stored" if self.data_free else "in memory"],
            **self._certificate_fields(is_proved, account.public_spent, account.limit),
        )

    def _account_after(self, context: RemovalContext) -> Account:
        """Return the account with the limit that applies after a removal.

        The limit depends on the regulariser, which may shrink with the number of rows.
        """
        tolerance, size = self.tol * context.n_remaining, self.weights_.open().size
        limits = self._make_mechanism().compute_limits(context.ridge_after, tolerance, size)
        return self.account_.with_limit(limits.removal)

    def _make_mechanism(self) -> Mechanism:
        """Return the noise mechanism that hides the residual of removals."""
        if self.sigma == 0.0:
            return Mechanism()
        kind = OutputNoise if self.mechanism == "output" else ObjectiveNoise
        return kind(self.sigma, self.epsilon, self.delta)

    def _release_grid(self) -> ReleaseGrid | None:
        mechanism = self._make_mechanism()
        return mechanism.grid if isinstance(mechanism, OutputNoise) else None

    def _weights_before_noise(self) -> Floats:
        """Return a copy of the parameters without noise, because the secret array will be wiped."""
        return self.weights_.open().copy()

    def _current_problem(self) -> FitProblem:
        tilt = None if self.noise_ is None else self.noise_.open()
        return self._build_problem(self._training_rows(), tilt)

    def _curvature_at(self, problem: FitProblem, W: Floats, seed: int | None = None) -> Curvature:
        start = library_seed(self.seed_ if seed is None else seed, Purpose.EIGENVALUE)
        return Curvature.from_problem(problem, W, radius=self._radius_bound, seed=start)

    def _prepare(self, removal: Removal, **options: Any) -> Change:
        X, y, batch_size = (options.pop(name, None) for name in ("X", "y", "batch_size"))
        if self.data_free:
            if batch_size is not None:
                require_batch_size(batch_size, removal.n_rows)
            with self._limit_threads(removal):
                return self._remove_data_free(removal, X, y, batch_size)
        if X is not None or y is not None:
            raise ValueError(
                "forget accepts X and y only with data_free=True; this model stores its rows, so "
                "omit X and y"
            )
        return super()._prepare(removal, batch_size=batch_size)

    def _limit_threads(self, removal: Removal) -> AbstractContextManager[None]:
        # Limiting threads takes as long as removing a row, and products of small matrices use one
        # thread anyway. Code that factors or inverts them, or reads all rows, limits them itself.
        weights = self.weights_.open()
        size = weights.size if self._build_loss(self.model_.classes).is_joint else len(weights)
        few = removal.n_rows <= _FEW_ROWS and size < _FEW_COLUMNS
        return nullcontext() if few else super()._limit_threads(removal)

    def _remove_rows(self, removal: Removal, counts: Counts, **options: Any) -> Change:
        try:
            return self._remove_by_newton(removal.where, counts, options.get("batch_size"))
        except np.linalg.LinAlgError:  # the ridge is below the rounding of the Hessian
            return self._retrain(removal.where)

    def _remove_by_newton(self, positions: Positions, counts: Counts, size: int | None) -> Change:
        """Prepare a removal by Newton steps, with a Hessian if it is small enough to form."""
        if not (isinstance(self.cache_.content, Curvature) or is_dense(self._current_problem())):
            return self._remove_by_products(positions, counts, size or len(positions))
        if size is not None:
            return self._remove_in_batches(positions, counts, size)
        return self._remove_at_once(positions, counts)

    def _remove_at_once(self, positions: Positions, counts: Counts) -> Change:
        """Prepare the removal of all rows by one step with the cached Hessian."""
        rows, curvature = self.rows_, self._get_curvature()
        rows_to_remove = RowsToRemove(rows_in_double(rows.X, positions), rows.y[positions])
        context = self._removal_context(len(positions))
        proposal = propose_removal(curvature, self._weights_before_noise(), rows_to_remove, context)
        W, flops, downdate = proposal.W, proposal.flops, proposal.downdate
        account = self._account_after(context).add_bound(proposal.added)
        if account.is_covered:
            return self._build_change(positions, counts, W, account, flops, (downdate.apply,))
        after = replace(self._current_problem().without(positions), radius=curvature.radius)
        repaired = repair_residual(
            after,
            W,
            account,
            lambda g: downdate.solve(g).change,
            partial(self._curvature_at, after),
            curvature.point,
            self.tol * after.n_remaining,
        )
        W, account, flops = repaired.W, repaired.account, flops + repaired.flops
        if not account.is_covered:
            return self._retrain(positions, account)
        latest = repaired.curvature
        if latest is None and curvature.n_measured * _PASSES_PER_COLUMN > len(W):
            latest = self._curvature_at(after, W).precompute_inverses()
        if latest is not None:
            return self._build_change(positions, counts, W, account, flops, cache=Cache(latest))
        assert repaired.reach is not None
        note = partial(curvature.record_reach, repaired.measured_at, repaired.reach)
        return self._build_change(positions, counts, W, account, flops, (downdate.apply, note))

    def _remove_data_free(self, removal: Removal, X: Any, y: Any, batch_size: int | None) -> Change:
        """Prepare the removal of rows that the caller provides; the model stores no rows."""
        if batch_size is not None:
            raise ValueError(
                "batch_size needs the remaining rows, but data_free=True stores no rows; use "
                "batch_size=None"
            )
        rows_to_remove, positions = self._match_rows(removal, X, y), removal.where
        counts = self._counts_after(rows_to_remove.y)
        if counts is not None and 0 in counts:
            raise BudgetSpentError(
                "this request removes the last row of a class, so the model must be "
                "retrained, but it stores no rows (data_free=True). Nothing was changed. Fit "
                "again on the remaining rows"
            )
        context, stored = self._removal_context(len(positions)), self.cache_
        proposal = propose_removal(
            self._get_curvature(), self._weights_before_noise(), rows_to_remove, context
        )
        account = self._account_after(context).add_bound(proposal.added)
        if not account.is_covered:
            raise BudgetSpentError(
                f"this removal could leave a gradient norm of {account.spent:.3g}, above the "
                f"{account.limit:.3g} that the noise hides; without stored rows "
                "(data_free=True), the gradient cannot be measured or reduced. Nothing was "
                "changed. Fit again on the remaining rows"
            )
        assert isinstance(stored, StoredCurvature)
        writes = (proposal.downdate.apply, partial(stored.round_to_grid, context.ridge_after))
        return self._build_change(positions, counts, proposal.W, account, proposal.flops, writes)

    def _match_rows(self, removal: Removal, X: Any, y: Any) -> RowsToRemove:
        """Return the rows that the caller provides.

        Raise `ValueError` unless they match the fingerprints of the rows to remove.
        """
        if X is None or y is None:
            raise ValueError(
                "X and y are required, because this model stores no rows (data_free=True); "
                f"pass the {removal.n_rows} row(s) of these ids as they were passed to fit"
            )
        require_features(self, X)
        rows, target = self._build_design().build_rows(X), self._encode_target(y)
        check_consistent_length(rows, target)
        known, key = self.rows_.extra["fingerprint"][removal.where], self.fingerprint_key_
        assert key is not None
        if not np.array_equal(np.sort(fingerprint_rows(rows, target, key)), np.sort(known)):
            raise ValueError(
                f"the {len(target)} row(s) in X and y differ from the {len(known)} row(s) that "
                "these ids had in fit; nothing was changed. Every number and label must match"
            )
        return RowsToRemove(rows_in_double(rows, np.arange(len(target))), target)

    def _removal_context(self, n_removed: int) -> RemovalContext:
        n, loss = len(self.rows_), self._build_loss(self.model_.classes)
        before, after = (compute_ridge(self.l2, self.reg, rows) for rows in (n, n - n_removed))
        return RemovalContext(loss, before, after, n - n_removed, self.bound)

    def _remove_in_batches(self, positions: Positions, counts: Counts, size: int) -> Change:
        """Prepare a removal batch by batch, with a new Hessian at the current parameters each time.

        This is the removal mechanism of Mahadevan and Mathioudakis 2021 (survey, Algorithm 6).
        """
        now, W, flops = self._current_problem(), self._weights_before_noise(), 0.0
        account = self._account_after(self._removal_context(len(positions)))
        for begin in range(0, len(positions), size):
            batch = positions[begin : begin + size]
            before, now = now, now.without(batch)
            rows_to_remove = RowsToRemove(before.copy_rows(batch), before.y[batch])
            context = RemovalContext(
                before.loss, before.ridge, now.ridge, now.n_remaining, self.bound
            )
            proposal = propose_removal(self._curvature_at(before, W), W, rows_to_remove, context)
            W, account = proposal.W, account.add_bound(proposal.added)
            flops += proposal.flops + now.X.size * now.shape[0]
        latest = self._curvature_at(now, W)
        if not account.is_covered:
            renew, tolerance = partial(self._curvature_at, now), self.tol * now.n_remaining
            repaired = repair_residual(now, W, account, latest.solve, renew, tolerance=tolerance)
            W, account, flops = repaired.W, repaired.account, flops + repaired.flops
            if not account.is_covered:
                return self._retrain(positions, account)
            latest = repaired.curvature or latest
        return self._build_change(positions, counts, W, account, flops, cache=Cache(latest))

    def _remove_by_products(self, positions: Positions, counts: Counts, size: int) -> Change:
        """Prepare a removal by conjugate gradients, for a Hessian that is too large to form."""
        problem, W, flops = self._current_problem(), self._weights_before_noise(), 0.0
        account = self._account_after(self._removal_context(len(positions)))
        products, now, after = self._get_products(problem), problem, problem
        moved = np.zeros_like(products.scores)
        for begin in range(0, len(positions), size):
            batch = positions[begin : begin + size]
            now, after = after, after.without(batch)
            g = problem.data_gradient(W, batch) + (now.ridge - after.ridge) * W
            step = products.solve(after, g, _cg_tolerance(l2_norm(g), account.limit))
            W, moved, flops = W + step.change, moved + step.scores, flops + step.flops
            account = account.add_bound(step.residual)
        writes = (partial(products.remove_rows, problem, positions, moved),)
        # The bound on a step uses scores from before the request, so it holds for one batch only.
        if account.is_covered and size >= len(positions):
            return self._build_change(positions, counts, W, account, flops, writes)
        repaired = repair_residual(
            after,
            W,
            account,
            lambda g: products.solve(after, g, _cg_tolerance(l2_norm(g), account.limit)).change,
            tolerance=self.tol * after.n_remaining,
        )
        account, flops = repaired.account, flops + repaired.flops
        if not account.is_covered:
            return self._retrain(positions, account)
        if repaired.W is W:
            return self._build_change(positions, counts, W, account, flops, writes)
        return self._build_change(positions, counts, repaired.W, account, flops, cache=Cache())

    def _get_products(self, problem: FitProblem) -> HessianProducts:
        products = self.cache_.content
        if not isinstance(products, HessianProducts) or not products.is_valid_for(problem):
            products = HessianProducts.evaluate_at(problem, self._weights_before_noise())
            self.cache_.content = products
        return products

    def _get_curvature(self) -> Curvature:
        """Return the cached Hessian; compute and cache it if it is missing."""
        curvature = self.cache_.content
        if not isinstance(curvature, Curvature):
            curvature = self._curvature_at(self._current_problem(), self._weights_before_noise())
            self.cache_.content = curvature
        return curvature

    def _retrain(self, positions: Positions, account: Account | None = None) -> Change:
        """Prepare a retraining with fresh noise.

        `account` contains the counts of measurements and polishes that were tried before.
        """
        change, before = super()._retrain(positions), self.account_
        fresh = change.attributes["account_"]
        counted = (account or before).record_retrain(fresh.spent, fresh.limit)
        change.attributes["account_"] = counted
        return change.with_rebuilt(counted.count_since(before))

    def _build_change(
        self,
        positions: Positions,
        counts: Counts,
        W: Floats,
        account: Account,
        flops: float,
        writes: tuple[Callable[[], None], ...] = (),
        cache: Cache[Any] | None = None,
    ) -> Change:
        """Prepare a release of W with fresh noise; `cache` replaces the cache if it is given."""
        source: NoiseSource = copy.copy(self.source_)
        released = self._make_mechanism().release(W, source)
        attributes = {
            "source_": source,
            "release_salt_": source.salt(),
            "weights_": SecretArray(W.copy()),
            "model_": self.model_.with_weights(released),
            "account_": account,
            "counts_": counts,
            "cache_": cache or self.cache_,
        }
        outcome = Outcome(self._relative_work(flops), account.count_since(self.account_))
        wipes = self.weights_.wipe, partial(self.rows_.wipe, positions)
        return Change(attributes, outcome, (*writes, *wipes))


def _cg_tolerance(size: float, limit: float) -> float:
    """Return the relative residual to which a linear system is solved.

    `size` is the norm of its right side. The residual then uses only a small part of the limit.
    """
    most, least = _CG_TOLERANCE
    share = _CG_SHARE * limit / size if size > 0.0 else most
    return min(max(share, least), most)
