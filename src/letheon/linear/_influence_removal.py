"""How Influence takes rows out: at once, in batches, by products, or brought by the caller."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.utils.validation import check_consistent_length

from letheon.base import Outcome, Removal
from letheon.exceptions import BudgetSpentError
from letheon.inner import require_features
from letheon.linear._account import Account, Mechanism, OutputNoise, mechanism_of, norm
from letheon.linear._base import LinearBase, require_batch_size, with_outcome
from letheon.linear._calibrate import Grid
from letheon.linear._curvature import Curvature, Products
from letheon.linear._model import NORM_ROUNDING
from letheon.linear._newton import (
    Leaving,
    Proposal,
    Setting,
    StoredCurvature,
    propose,
    repair,
    require_recognised,
)
from letheon.linear._problem import NOBODY, Floats, Positions, Problem, ridge_of, rows_in_double
from letheon.linear._solve import is_dense
from letheon.noise import NoiseSource, Sealed
from letheon.removal import Cache, Change, Counts
from letheon.seeds import Purpose, library_seed

# Conjugate gradients stop at this share of the limit, within these relative residuals.
_CG_SHARE = 0.05
_CG_TOLERANCE = (3e-2, 1e-3)
_FEW_ROWS, _FEW_COLUMNS = 8, 96
# One Hessian costs about as much time as d / 28 passes over the rows (measured). When as many
# residuals had to be measured since the last one, the bounds have become loose: take it anew.
_PASSES_PER_COLUMN = 28


class InfluenceRemovals(LinearBase):
    """The removal mechanism of `InfluenceBase`; every method here prepares and changes nothing."""

    sigma: float
    epsilon: float
    delta: float
    bound: str
    data_free: bool
    mechanism: str

    weights_: Sealed
    noise_: Sealed | None
    account_: Account
    cache_: Cache[Curvature | Products]
    fingerprint_key_: str | None

    def _account(self, setting: Setting) -> Account:
        """Return the account with the limit after a removal: it follows the ridge."""
        tolerance, size = self.tol * setting.n_left, self.weights_.open().size
        limits = self._mechanism().limits(setting.ridge_after, tolerance, size)
        return self.account_.limited(limits.removal)

    def _changed_in_place(self) -> tuple[str, ...]:
        return (*super()._changed_in_place(), "weights_")

    def _mechanism(self) -> Mechanism:
        """Return how this model hides what a removal leaves."""
        return mechanism_of(self.mechanism, self.sigma, self.epsilon, self.delta)

    def _grid(self) -> Grid | None:
        mechanism = self._mechanism()
        return mechanism.grid if isinstance(mechanism, OutputNoise) else None

    def _weights_before_noise(self) -> Floats | None:
        return self._weights

    @property
    def _weights(self) -> Floats:
        """Parameters without noise on them, in memory of their own: the sealed one is wiped."""
        return self.weights_.open().copy()

    def _problem_now(self) -> Problem:
        tilt = None if self.noise_ is None else self.noise_.open()
        return self._problem(self._held(), tilt)

    def _curvature_at(self, problem: Problem, W: Floats, seed: int | None = None) -> Curvature:
        start = library_seed(self.seed_ if seed is None else seed, Purpose.EIGENVALUE)
        return Curvature.at(problem, W, radius=self._declared_radius(), seed=start)

    def _declared_radius(self) -> float | None:
        return None if self.row_norm is None else self.row_norm * (1 + NORM_ROUNDING)

    def _prepare(self, removal: Removal, **options: Any) -> Change:
        X, y, batch_size = (options.pop(name, None) for name in ("X", "y", "batch_size"))
        if batch_size is not None:
            require_batch_size(batch_size, removal.n_rows)
        if self.data_free:
            with self._threads(removal):
                return self._remove_brought(removal, X, y, batch_size)
        if X is not None or y is not None:
            raise ValueError("this model holds its rows; X and y are for data_free=True only")
        return super()._prepare(removal, batch_size=batch_size)

    def _threads(self, removal: Removal) -> AbstractContextManager[None]:
        # To ask for one thread takes as long as to remove a row, and products of small matrices
        # use one anyway. What factors or inverts them, or looks at all rows, asks for itself.
        weights = self.weights_.open()
        size = weights.size if self._loss(self.model_.classes).is_joint else len(weights)
        few = removal.n_rows <= _FEW_ROWS and size < _FEW_COLUMNS
        return nullcontext() if few else super()._threads(removal)

    def _remove(self, removal: Removal, counts: Counts, **options: Any) -> Change:
        try:
            return self._step(removal.where, counts, options.get("batch_size"))
        except np.linalg.LinAlgError:  # the ridge is below the rounding of the Hessian
            return self._retrain(removal.where)

    def _step(self, positions: Positions, counts: Counts, size: int | None) -> Change:
        """Remove rows by Newton steps."""
        if not (isinstance(self.cache_.content, Curvature) or is_dense(self._problem_now())):
            return self._remove_by_products(positions, counts, size or len(positions))
        if size is not None:
            return self._remove_in_batches(positions, counts, size)
        return self._remove_at_once(positions, counts)

    def _remove_at_once(self, positions: Positions, counts: Counts) -> Change:
        """Remove all rows by one step with the cached Hessian."""
        rows, curvature = self.rows_, self._curvature()
        leaving = Leaving(rows_in_double(rows.X, positions), rows.y[positions])
        setting = self._setting(len(positions))
        proposal = propose(curvature, self._weights, leaving, setting)
        account, downdate = self._account(setting).plus(proposal.added), proposal.downdate
        attributes: dict[str, Any] = {}
        writes = (downdate.apply,)
        if account.is_covered:
            flops = proposal.flops
            return self._change(positions, counts, proposal.W, account, flops, attributes, writes)
        after = replace(self._problem_now().without(positions), radius=curvature.radius)
        repaired = repair(
            after,
            proposal.W,
            account,
            lambda g: downdate.solve(g).change,
            partial(self._curvature_at, after),
            curvature.point,
            self.tol * after.n_held,
        )
        W, account, flops = repaired.W, repaired.account, proposal.flops + repaired.flops
        if not account.is_covered:
            return self._retrain(positions, account)
        latest = repaired.curvature
        if latest is None and curvature.n_measured * _PASSES_PER_COLUMN > len(W):
            latest = self._curvature_at(after, W).warm()
        if latest is not None:
            attributes["cache_"] = Cache(latest)
            return self._change(positions, counts, W, account, flops, attributes, ())
        assert repaired.reach is not None
        note = partial(curvature.note_reach, repaired.measured_at, repaired.reach)
        return self._change(positions, counts, W, account, flops, attributes, (*writes, note))

    def _remove_brought(self, removal: Removal, X: Any, y: Any, batch_size: int | None) -> Change:
        """Remove rows that the model does not hold and the caller brings."""
        if batch_size is not None:
            raise ValueError("batch_size needs Hessians of the rows left; data_free=True has none")
        leaving, positions = self._recognised(removal, X, y), removal.where
        counts = self._counts_after(leaving.y)
        if counts is not None and 0 in counts:
            raise BudgetSpentError(
                "the last row of a class would leave, which needs a retrain, and this model holds "
                "no rows; nothing was changed. Fit again on the remaining rows"
            )
        setting, stored = self._setting(len(positions)), self.cache_
        proposal = propose(self._curvature(), self._weights, leaving, setting)
        account = self._account(setting).plus(proposal.added)
        if not account.is_covered:
            raise BudgetSpentError(
                f"this removal could leave a gradient of {account.spent:.3g}, above the "
                f"{account.limit:.3g} that the noise hides, and without rows it cannot be measured "
                "or repaired; nothing was changed. Fit again on the remaining rows"
            )
        assert isinstance(stored, StoredCurvature)
        writes = (proposal.downdate.apply, partial(stored.tidy, setting.ridge_after))
        return self._change(positions, counts, proposal.W, account, proposal.flops, {}, writes)

    def _recognised(self, removal: Removal, X: Any, y: Any) -> Leaving:
        """Return the rows that the caller brings, or raise unless they are those of the people."""
        if X is None or y is None:
            raise ValueError(
                f"this model holds no rows (data_free=True): give X and y, the {removal.n_rows} "
                "row(s) of these people as they were given to fit"
            )
        require_features(self, X)
        rows, target = self._design().rows(X), self._known_target(y)
        check_consistent_length(rows, target)
        held = self.rows_.extra["fingerprint"][removal.where]
        assert self.fingerprint_key_ is not None
        require_recognised(rows, target, self.fingerprint_key_, held)
        return Leaving(rows_in_double(rows, np.arange(len(target))), target)

    def _setting(self, n_gone: int) -> Setting:
        n, loss = len(self.rows_), self._loss(self.model_.classes)
        before, after = (ridge_of(self.l2, self.reg, rows) for rows in (n, n - n_gone))
        return Setting(loss, before, after, n - n_gone, self.bound)

    def _remove_in_batches(self, positions: Positions, counts: Counts, size: int) -> Change:
        """Remove batch after batch, each with the Hessian of the rows left, taken where it stands.

        The removal mechanism of Mahadevan and Mathioudakis 2021 (survey, Algorithm 6).
        """
        problem = self._problem_now()
        W, flops, gone = self._weights, 0.0, NOBODY
        account = self._account(self._setting(len(positions)))
        for begin in range(0, len(positions), size):
            batch = positions[begin : begin + size]
            now = problem.without(gone)
            curvature = self._curvature_at(now, W)
            proposal = self._propose(curvature, W, now, batch)
            W, account = proposal.W, account.plus(proposal.added)
            gone = np.concatenate([gone, batch])
            flops += proposal.flops + problem.X.size * problem.shape[0]
        after = problem.without(positions)
        latest = self._curvature_at(after, W)
        attributes: dict[str, Any] = {}
        if not account.is_covered:
            renew = partial(self._curvature_at, after)
            repaired = repair(
                after,
                W,
                account,
                latest.solve,
                renew,
                tolerance=self.tol * after.n_held,
            )
            W, account, flops = repaired.W, repaired.account, flops + repaired.flops
            if not account.is_covered:
                return self._retrain(positions, account)
            latest = repaired.curvature or latest
        attributes["cache_"] = Cache(latest)
        return self._change(positions, counts, W, account, flops, attributes, ())

    def _remove_by_products(self, positions: Positions, counts: Counts, size: int) -> Change:
        """Remove rows by conjugate gradients, where no Hessian is formed."""
        problem, W, flops = self._problem_now(), self._weights, 0.0
        account = self._account(self._setting(len(positions)))
        products, now, after = self._products(problem), problem, problem
        moved = np.zeros_like(products.scores)
        for begin in range(0, len(positions), size):
            batch = positions[begin : begin + size]
            now, after = after, after.without(batch)
            g = problem.data_gradient(W, batch) + (now.ridge - after.ridge) * W
            step = products.solve(after, g, _precision(norm(g), account.limit))
            W, moved, flops = W + step.change, moved + step.scores, flops + step.flops
            account = account.plus(step.left)
        attributes: dict[str, Any] = {}
        writes: tuple[Callable[[], None], ...]
        writes = (partial(products.forget, problem, positions, moved),)
        # The bound of a step takes scores from before the request, so it holds for one batch.
        if account.is_covered and size >= len(positions):
            return self._change(positions, counts, W, account, flops, attributes, writes)
        repaired = repair(
            after,
            W,
            account,
            lambda g: products.solve(after, g, _precision(norm(g), account.limit)).change,
            tolerance=self.tol * after.n_held,
        )
        account, flops = repaired.account, flops + repaired.flops
        if not account.is_covered:
            return self._retrain(positions, account)
        if repaired.W is not W:
            attributes["cache_"], writes = Cache(), ()
        return self._change(positions, counts, repaired.W, account, flops, attributes, writes)

    def _products(self, problem: Problem) -> Products:
        products = self.cache_.content
        if not isinstance(products, Products) or not products.fits(problem):
            products = Products.at(problem, self._weights)
            self.cache_.content = products
        return products

    def _propose(
        self, curvature: Curvature, W: Floats, problem: Problem, positions: Positions
    ) -> Proposal:
        after = problem.without(positions)
        setting = Setting(problem.loss, problem.ridge, after.ridge, after.n_held, self.bound)
        leaving = Leaving(problem.rows_at(positions), problem.y[positions])
        return propose(curvature, W, leaving, setting)

    def _curvature(self) -> Curvature:
        """Return the cached Hessian, taken anew where there is none."""
        curvature = self.cache_.content
        if not isinstance(curvature, Curvature):
            curvature = self._curvature_at(self._problem_now(), self._weights)
            self.cache_.content = curvature
        return curvature

    def _retrain(self, positions: Positions, account: Account | None = None) -> Change:
        """Retrain with fresh noise; `account` is what was tried before."""
        change, before = super()._retrain(positions), self.account_
        found = change.attributes["account_"]
        counted = (account or before).renewed(found.spent, found.limit)
        change.attributes["account_"] = counted
        return with_outcome(change, rebuilt=counted.rebuilt_since(before))

    def _change(
        self,
        positions: Positions,
        counts: Counts,
        W: Floats,
        account: Account,
        flops: float,
        attributes: dict[str, Any],
        writes: tuple[Callable[[], None], ...],
    ) -> Change:
        source: NoiseSource = copy.copy(self.source_)
        released = self._mechanism().release(W, source)
        attributes |= {
            "source_": source,
            "release_salt_": source.salt(),
            "weights_": Sealed(W.copy()),
            "model_": self.model_.moved_to(released),
            "account_": account,
            "counts_": counts,
        }
        outcome = Outcome(self._work(flops), account.rebuilt_since(self.account_))
        wipes = self.weights_.wipe, partial(self.rows_.wipe, positions)
        return Change(attributes, outcome, (*writes, *wipes))


def _precision(size: float, limit: float) -> float:
    """Return the relative residual of a linear system that leaves a small part of the limit."""
    most, least = _CG_TOLERANCE
    share = _CG_SHARE * limit / size if size > 0.0 else most
    return min(max(share, least), most)
