"""Newton removal with an account, for any loss; the public classes are in `_influence`."""

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, ClassVar, Self

from letheon.base import exclusive, require_fitted
from letheon.exceptions import CannotForgetError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.linear._account import Account
from letheon.linear._base import LinearBase, Trained, unconverged
from letheon.linear._bounds import norm
from letheon.linear._data_free import without_rows
from letheon.linear._influence_removal import InfluenceRemovals
from letheon.linear._mechanism import MECHANISMS, batches_and_noise, release_code
from letheon.linear._newton import BOUNDS
from letheon.linear._problem import NOBODY, ridge_of
from letheon.linear._solve import DENSE_LIMIT, block_size, finished, is_dense, minimise
from letheon.noise import NoiseSource, Sealed
from letheon.receipt import Receipt
from letheon.removal import Cache, Change, TrainingRows
from letheon.validation import OneOf, Rules

FACTS = MethodFacts(
    method="influence",
    applicability="linear models with a smooth convex loss and L2 regulariser",
    exact=False,
    strength="strong",
    efficiency_parameters=("batch_size", "sigma"),
    certifiability_parameters=("epsilon", "delta", "sigma", "bound", "mechanism"),
    requests="adaptive",
    releases="latest-only",
    state_holds_rows=True,
    definition_name="influence",
    families=("linear",),
    tasks=("classification", "regression"),
    needs=("strongly-convex", "smooth", "lipschitz-hessian", "bounded-gradients"),
    certificate="certified",
    batches=True,
    accounting="guo2020-residual-sum",
    noise=release_code,
    search_ranges=batches_and_noise,
)

_AS_FITTED = "as fitted"

_REFERENCE = "Newton removal after Guo et al. 2020, released with discrete Gaussian noise"
_REFERENCE_PURE = "Newton removal after Guo et al. 2020, released with discrete Laplace noise"
_REFERENCE_OBJECTIVE = "Guo et al. 2020, Theorem 3: it ignores that the residual depends on noise"
_REFERENCE_WITHOUT_NOISE = "Newton removal after Guo et al. 2020, without noise that is secret"
_SHARED = ("strongly-convex", "intercept-regularised", "noise-secret", "retraining-converges")
_ASSUMPTIONS = {
    "per_sample": ("regulariser-per-sample", *_SHARED),
    "total": ("regulariser-in-total", *_SHARED),
}
_RESIDUE = (
    (
        "weights_: parameters without noise, sealed; with the rows held they give the gradient "
        "that the last removals left, and from it the row of a lone removal can be computed; "
        "settle() ends that"
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
    _parameter_rules: ClassVar[Rules] = {
        "bound": OneOf(BOUNDS),
        "mechanism": OneOf(MECHANISMS),
    }

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
        """Return the norm of the gradient on the rows held, at the parameters without noise.

        One pass over the rows. With ``mechanism="objective"`` the secret term is part of it. The
        account holds an upper bound of this number, and receipts quote the account. They are
        for whoever runs the model: the claim is about the parameters, so `publish` leaves it out.
        """
        self._require_rows("exact_residual")
        with exclusive(self):
            return norm(self._problem_now().gradient(self._weights))

    def settle(self) -> Self:
        """Train again on the rows held, with fresh noise.

        Before that, whoever has the model's file, and so rows and parameters, can compute the
        gradient that the last removals left, and from it the row of a lone removal. After it the
        file is one that `fit` could have written on the rows held: nothing tells of those who
        left. Takes the time of a fit. Call it before a file is written that others may read.
        """
        self._require_rows("settle")
        return self._settle(is_bare=False)

    def _settled(self) -> Change:
        return LinearBase._retrain(self, NOBODY)

    @property
    def epsilon_(self) -> float:
        """Smallest epsilon that the account as it stands would need at this delta."""
        require_fitted(self)
        ridge = ridge_of(self.l2, self.reg, self.n_rows_)
        return self._mechanism().spent_epsilon(self.account_.spent, ridge, self.weights_.size)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.data_free and self.row_norm is None:
            raise ValueError(
                "data_free=True needs a declared row_norm (with rows='clip', 'normalize' or "
                "'refuse'): without rows their norms cannot be measured"
            )

    def _train(self, held: TrainingRows, source: NoiseSource, seed: int) -> Trained:
        plain, mechanism = self._problem(held), self._mechanism()
        tilt = mechanism.draw_tilt(source, plain.shape)
        problem = replace(plain, tilt=tilt)
        tolerance = self.tol * problem.n_held
        limits = mechanism.limits(problem.ridge, tolerance, prod(problem.shape))
        tolerance = min(tolerance, limits.fit / 2)
        solution = minimise(problem, tolerance=tolerance, max_iter=self.max_iter)
        if solution.residual > tolerance:
            tolerance = max(tolerance, 4 * problem.rounding(solution.W))
        warnings = unconverged(solution, tolerance)
        curvature = None
        if is_dense(problem) or (self.data_free and block_size(problem) <= DENSE_LIMIT):
            curvature = self._curvature_at(problem, solution.W, seed).warm()
            solution = finished(problem, solution, curvature.solve)
        left = solution.residual + problem.gradient_error(solution.W)
        account = Account(left, limits.removal)
        doubts = self._doubts()
        if warnings and self._wants_certificate:
            doubts.note(str(warnings[0]))
            warnings = ()
        if self._wants_certificate and not account.spent <= limits.fit:
            doubts.note(
                f"training left a gradient of {account.spent:.3g}, rounding included, above the "
                f"{limits.fit:.3g} that the noise hides; scale columns of large numbers, raise "
                "sigma, l2 or max_iter, or lower tol"
            )
        attributes = {
            "model_": self._linear(mechanism.release(solution.W, source), held.classes),
            "weights_": Sealed(solution.W.copy()),
            "release_salt_": source.salt(),
            "noise_": None if tilt is None else Sealed(tilt),
            "account_": account,
            "cache_": Cache(curvature),
            "downgraded_": doubts.text,
            "fingerprint_key_": None,
        }
        if self.data_free:
            attributes |= without_rows(held.rows, curvature, problem.ridge)
        found = (*warnings, *doubts.warnings)
        return Trained(attributes, solution.flops, found, solution.n_iter)

    def _require_rows(self, what: str) -> None:
        require_fitted(self)
        if self.data_free:
            raise CannotForgetError(f"{what} needs the rows, and data_free=True keeps none")

    @property
    def _wants_certificate(self) -> bool:
        return self.sigma > 0.0 and self.noise_seed is None and self.mechanism == "output"

    @property
    def _reference(self) -> str:
        if self.sigma == 0.0 or self.noise_seed is not None:
            return _REFERENCE_WITHOUT_NOISE
        if self.mechanism == "objective":
            return _REFERENCE_OBJECTIVE
        return _REFERENCE if self.delta > 0.0 else _REFERENCE_PURE

    def _claim(self) -> Guarantee:
        account = self.account_
        is_proved = self.downgraded_ is None and account.is_covered
        certified = self._wants_certificate and is_proved
        return Guarantee(
            kind="certified" if certified else "empirical",
            reference=self._reference,
            requests=FACTS.requests if certified else "oblivious",
            releases=FACTS.releases,
            assumptions=_ASSUMPTIONS[self.reg],
            epsilon=float(self.epsilon) if certified else None,
            delta=float(self.delta) if certified else None,
            spent=account.shown if certified else None,
            budget=account.limit if certified else None,
            residual_state=_RESIDUAL_STATE["stored" if self.data_free else "in memory"],
        )
