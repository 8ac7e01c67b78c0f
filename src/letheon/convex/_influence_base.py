"""Newton removal with an account, for any loss; the public classes are in `_influence`."""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from letheon.base import exclusive, require_fitted
from letheon.convex._account import (
    Account,
    spent_epsilon,
)
from letheon.convex._base import (
    Held,
    Trained,
    unconverged,
)
from letheon.convex._bounds import norm
from letheon.convex._cache import Cache
from letheon.convex._data_free import without_rows
from letheon.convex._influence_removal import InfluenceRemovals
from letheon.convex._losses import Floats
from letheon.convex._newton import BOUNDS
from letheon.convex._noise import NoiseSource, Sealed
from letheon.convex._settings import (
    require_one_of,
    require_whole,
)
from letheon.convex._solve import DENSE_LIMIT, block_size, finished, is_dense, minimise
from letheon.exceptions import CannotForgetError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.parallel import one_thread
from letheon.receipt import Receipt

FACTS = MethodFacts(
    method="influence",
    applicability="linear models with a smooth convex loss and L2 regulariser",
    exact=False,
    strength="strong",
    efficiency_parameters=("batch_size", "sigma"),
    certifiability_parameters=("epsilon", "delta", "sigma", "bound"),
    requests="oblivious",
    releases="latest-only",
    state_holds_rows=True,
    definition_name="influence",
    families=("linear",),
    tasks=("classification", "regression"),
    needs=("strongly-convex", "smooth", "lipschitz-hessian", "bounded-gradients"),
    certificate="certified",
    batches=True,
)

_AS_FITTED = "as fitted"

_REFERENCE = "Guo et al. 2020, Theorem 3, with the analytic Gaussian condition"
_REFERENCE_WITHOUT_NOISE = "Newton removal after Guo et al. 2020, without noise that is secret"
_SHARED = (
    "strongly-convex",
    "intercept-regularised",
    "noise-secret",
    "residual-bounded-for-all-noise",
    "retraining-converges",
    "noise-to-rounding",
)
_ASSUMPTIONS = {
    "per_sample": ("regulariser-per-sample", *_SHARED),
    "total": ("regulariser-in-total", *_SHARED),
}
_RESIDUE = (
    (
        "model_ and noise_: with the rows held they give the gradient that the last removals left, "
        "and from it the row of a lone removal can be computed; settle() ends that"
    ),
    "account_: sums of bounds of all removals so far",
)
_RESIDUAL_STATE = {
    "in memory": (
        *_RESIDUE,
        "cache_: point, top eigenvalues and longest row of the last Hessian; never saved",
    ),
    "stored": (*_RESIDUE, "cache_: point and top eigenvalues of the Hessian at fit"),
}


class InfluenceBase(InfluenceRemovals):
    """Newton removal with an account, for any loss; see the public classes."""

    facts: ClassVar[MethodFacts] = FACTS

    batch_size: int | None

    def forget(
        self,
        ids: Any,
        *,
        X: Any = None,
        y: Any = None,
        batch_size: int | str | None = _AS_FITTED,
        digest: bool = False,
    ) -> Receipt:
        """Remove every row of these people; see `ForgetMixin.forget`.

        Parameters
        ----------
        ids : sequence of int or of str
            People to forget.
        X, y : array-like, optional
            All their rows and targets, in any order, as they were given to `fit`; with
            ``data_free=True`` only, where the model does not hold them.
        batch_size : int or None, optional
            For this request only, instead of the parameter of the same name.
        digest : bool, default=False
            Also record the digests before and after.

        Returns
        -------
        Receipt
            `rebuilt` counts exact residuals, polishes and retrains, where there were any.

        Raises
        ------
        UnknownIdError, EmptyModelError
            As in `ForgetMixin.forget`.
        BudgetSpentError
            With ``data_free=True``: the certificate does not cover this removal.
        """
        size = self.batch_size if batch_size == _AS_FITTED else batch_size
        options = {"batch_size": size, "X": X, "y": y}
        return self._answer_request(ids, digest, partial(self._prepare, **options))

    def exact_residual(self) -> float:
        """Return the norm of the gradient on the rows held, noise included: one pass over them.

        The account holds an upper bound of this number, and receipts quote the account. They are
        for whoever runs the model: the claim is about the parameters, so `publish` leaves it out.
        """
        self._require_rows("exact_residual")
        with exclusive(self):
            return norm(self._problem_now().gradient(self.model_.weights))

    def settle(self) -> Self:
        """Solve the problem of the rows held again, with the same noise, and take the Hessian anew.

        The account then holds what the optimiser left, as after `fit`. Before that, whoever has the
        model's file, and so rows, noise and parameters, can compute the gradient that the last
        removals left, and from it the row of a lone removal; after it nothing tells of them. Takes
        the time of a fit: it starts from zero, so that the parameters are a function of rows and
        noise alone. Call it before a file is written that others may read.
        """
        self._require_rows("settle")
        with exclusive(self), one_thread():
            self._require_same_parameters()
            problem = self._problem_now()
            tolerance = self.tol * problem.n_held
            solution = minimise(problem, tolerance=tolerance, max_iter=self.max_iter)
            curvature = None
            if is_dense(problem):
                curvature = self._curvature_at(problem, solution.W).warm()
                solution = finished(problem, solution, curvature.solve)
            vars(self).update(
                model_=self.model_.moved_to(solution.W),
                account_=self.account_.measured(solution.residual),
                cache_=Cache(curvature),
            )
        return self

    @property
    def epsilon_(self) -> float:
        """Smallest epsilon that the account as it stands would need at this delta."""
        require_fitted(self)
        return spent_epsilon(self.account_, self.sigma, self.delta)

    def _check_settings(self) -> None:
        super()._check_settings()
        require_one_of("bound", self.bound, BOUNDS)
        if self.batch_size is not None:
            require_whole("batch_size", self.batch_size)
        if self.data_free and self.row_norm is None:
            raise ValueError(
                "data_free=True needs a declared row_norm (with rows='clip', 'normalize' or "
                "'refuse'): without rows nobody can measure how long they are"
            )

    def _train(self, held: Held, source: NoiseSource, seed: int) -> Trained:
        plain = self._problem(held)
        noise = self._draw(source, plain.shape)
        problem = replace(plain, tilt=noise)
        tolerance = self.tol * problem.n_held
        solution = minimise(problem, tolerance=tolerance, max_iter=self.max_iter)
        if solution.residual > tolerance:
            tolerance = max(tolerance, 4 * problem.rounding(solution.W))
        warnings = unconverged(solution, tolerance)
        curvature = None
        if is_dense(problem) or (self.data_free and block_size(problem) <= DENSE_LIMIT):
            curvature = self._curvature_at(problem, solution.W, seed).warm()
            solution = finished(problem, solution, curvature.solve)
        hidden = 0.0 if curvature is None else curvature.rounding(solution.W)
        account = Account(solution.residual + hidden, self._limit(tolerance, problem.ridge))
        doubts = self._doubts()
        if warnings and self._wants_certificate:
            doubts.note(str(warnings[0]))
            warnings = ()
        if self._wants_certificate and not account.is_covered:
            doubts.note(
                f"training left a gradient of {account.spent:.3g}, above the {account.limit:.3g} "
                "that the noise hides; raise max_iter or sigma, or lower tol"
            )
        attributes = {
            "model_": self._linear(solution.W, held.classes),
            "noise_": Sealed(noise),
            "account_": account,
            "cache_": Cache(curvature),
            "downgraded_": doubts.text,
            "fingerprint_key_": None,
        }
        if self.data_free:
            attributes |= without_rows(held.rows, curvature, problem.ridge)
        found = (*warnings, *doubts.warnings)
        return Trained(attributes, solution.flops, found, solution.n_iter)

    def _draw(self, source: NoiseSource, shape: tuple[int, int]) -> Floats:
        if self.sigma == 0.0:
            return np.zeros(shape)
        if self.delta == 0.0:
            return source.ball(shape, self.sigma)
        return self.sigma * source.normals(shape)

    def _require_rows(self, what: str) -> None:
        require_fitted(self)
        if self.data_free:
            raise CannotForgetError(f"{what} needs the rows, and data_free=True keeps none")

    @property
    def _wants_certificate(self) -> bool:
        return self.sigma > 0.0 and self.noise_seed is None

    def _claim(self) -> Guarantee:
        certified = self._wants_certificate and self.downgraded_ is None
        account = self.account_
        return Guarantee(
            kind="certified" if certified else "empirical",
            reference=_REFERENCE if certified else _REFERENCE_WITHOUT_NOISE,
            requests=FACTS.requests,
            releases=FACTS.releases,
            assumptions=_ASSUMPTIONS[self.reg],
            epsilon=float(self.epsilon) if certified else None,
            delta=float(self.delta) if certified else None,
            spent=account.shown if certified else None,
            budget=account.limit if certified else None,
            residual_state=_RESIDUAL_STATE["stored" if self.data_free else "in memory"],
        )
