"""Certified removal by one Newton step (Guo et al. 2020; survey section 5.2)."""

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from letheon.base import exclusive, require_fitted
from letheon.exceptions import CannotForgetError
from letheon.guarantee import Guarantee, MethodFacts
from letheon.linear._account import MECHANISMS, Account, batches_and_noise, norm, release_code
from letheon.linear._base import LinearBase, LinearClassifier, LinearRegressor, Trained, unconverged
from letheon.linear._influence_removal import InfluenceRemovals
from letheon.linear._newton import BOUNDS, without_rows
from letheon.linear._problem import NOBODY, Loss, PseudoHuber, Squared, ridge_of
from letheon.linear._solve import DENSE_LIMIT, block_size, finished, is_dense, minimise
from letheon.noise import NoiseSource, Sealed
from letheon.receipt import Receipt
from letheon.removal import Cache, Change, TrainingRows
from letheon.validation import POSITIVE, OneOf, Rules

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


class InfluenceClassifier(InfluenceBase, LinearClassifier):
    """Logistic regression that forgets by one Newton step, with an (epsilon, delta) certificate.

    Training minimises the regularised loss. The result W is kept under a seal; what is published
    is W, rounded to a grid, plus fresh integer noise of scale sigma. To forget rows, W makes one
    Newton step on the remaining rows, from a Hessian that is kept and updated: O(d^2) work that
    looks at no other row. What gradient the step may leave is bounded, and the bounds of the whole
    sequence of requests are added up, starting with what the optimiser really left. As long as the
    sum stays below what the noise hides, the published parameters cannot be told from those of a
    retrain, up to (epsilon, delta). Otherwise the residual is measured (one pass), then polished
    (further Newton steps), and only then the model is retrained. The receipt says which.

    Parameters
    ----------
    l2 : float, default=1e-3
        Regulariser (l2 / 2)|W|^2, above 0: per row, or in total, as `reg` says. The intercept is
        regularised too, since the problem is not strongly convex otherwise.
    reg : {"per_sample", "total"}, default="per_sample"
        "per_sample": the total is l2 times the rows held and shrinks with them. "total": it
        stays, as with scikit-learn's ``C = 1 / l2``.
    multi_class : {"ovr", "softmax"}, default="ovr"
        For more than two classes: one problem per class against the rest, or one joint problem.
    fit_intercept : bool, default=True
        Append a column of ones.
    rows : {"keep", "clip", "normalize", "refuse"}, default="keep"
        What to do with a row whose norm (the intercept's 1 included) is not `row_norm`: nothing,
        scale longer ones down, scale all, or refuse longer ones. Predictions scale alike.
    row_norm : float or None, default=None
        Declared bound of the rows' norms; for every `rows` but "keep". Without it the longest row
        that is held counts.
    epsilon, delta : float, default=1.0, 1e-4
        The certificate, for the whole sequence of requests. With ``delta=0`` the noise follows the
        discrete Laplace law, for a pure epsilon.
    sigma : float, default=0.01
        Scale of the noise on every published parameter. It moves the score of a row x by about
        sigma |x|; for scaled rows 0.01 costs no accuracy as a rule, 1 ruins most models. More noise
        means more budget, so fewer requests that need a pass over the rows. 0: no noise, and an
        empirical guarantee.
    mechanism : {"output", "objective"}, default="output"
        "output": noise on what is published, as above. "objective": the algorithm of Guo et al.
        with a random linear term <b, W> in the objective, drawn once, and W published as it is;
        sigma is then the scale of b. Its guarantee is empirical: the theorem ignores that what a
        removal leaves depends on b, and an audit refuted it.
    bound : {"tightest", "data-dependent", "worst-case"}, default="tightest"
        Bound of what a step leaves: from the Hessian, from norms alone, or the smaller one.
    batch_size : int or None, default=None
        Remove the rows of a request in batches of this size (the survey's m'), each with a Hessian
        taken anew where the parameters stand: slower, and closer to the optimum for large requests.
        None: all at once. A number above the rows of a request is an error.
    data_free : bool, default=False
        Keep no rows: only the Hessian, and a keyed fingerprint per row. `forget` then needs the
        rows of the people who leave, and an exhausted budget cannot be repaired
        (`BudgetSpentError`). Needs `row_norm`.
    tol : float, default=1e-8
        Training stops at |gradient| <= tol times rows; one Newton step follows.
    max_iter : int, default=1000
        Most iterations of training.
    if_unproved : {"raise", "downgrade"}, default="raise"
        When an assumption that can be checked fails: raise `AssumptionError`, or keep the model
        with an empirical guarantee and a `GuaranteeWarning`.
    noise_seed : int or None, default=None
        Repeatable noise, for tests. It is no secret then, and the guarantee is empirical.
    random_state : int, RandomState, Generator or None, default=None
        Seed of everything that is no noise (here: where the search for an eigenvalue starts).

    Attributes
    ----------
    coef_, intercept_, classes_ : ndarray
        The published model.
    account_ : Account
        `spent` of `limit`, and how often a request had to measure, polish or retrain.
    epsilon_ : float
        The epsilon that would be needed for what is spent so far.
    weights_ : Sealed
        W, the parameters without noise. They are in the model's file, so keep that private.
    noise_ : Sealed or None
        b of ``mechanism="objective"``; None otherwise. The noise of a release is not kept.
    noise_commitment_ : str or None
        SHA-256 over a salt and the noise of the release; certificates publish it.
    ids_, guarantee_, residual_state_, n_rows_
        See `ForgetMixin`.

    See Also
    --------
    InfluenceRegressor : The same for numbers.
    FisherClassifier : Noise that is shaped by the Fisher matrix.
    DescentToDeleteClassifier : Also adds rows.

    Notes
    -----
    Guarantee: certified (epsilon, delta) towards an observer of the latest model, also for people
    who look at the models before they leave. By strong convexity the gradient that is left bounds
    the distance of W to the optimum of the remaining rows, rounding errors included; noise of a
    discrete Gaussian law hides that distance, for every epsilon. No bound, limit or refusal depends
    on noise. Tuning `l2` on rows that leave later weakens the guarantee; see `declare_tuning`.

    The sealed state is not covered by it. With the rows in the same file it gives the gradient that
    the last removals left, and so the row of a lone removal can be computed; `settle` ends that.

    References
    ----------
    Guo, Goldstein, Hannun and van der Maaten, "Certified data removal from machine learning
    models", ICML 2020. Canonne, Kamath and Steinke, "The discrete Gaussian for differential
    privacy", NeurIPS 2020. Sekhari et al., "Remember what you want to forget", NeurIPS 2021
    (data-free removal).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_breast_cancer
    >>> from letheon import InfluenceClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = InfluenceClassifier(l2=0.01).fit(np.log1p(X), y)
    >>> receipt = model.forget([3, 17])
    >>> receipt.guarantee.kind, receipt.guarantee.spent <= receipt.guarantee.budget
    ('certified', True)
    """

    def __init__(
        self,
        *,
        l2: float = 1e-3,
        reg: str = "per_sample",
        multi_class: str = "ovr",
        fit_intercept: bool = True,
        rows: str = "keep",
        row_norm: float | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-4,
        sigma: float = 0.01,
        mechanism: str = "output",
        bound: str = "tightest",
        batch_size: int | None = None,
        data_free: bool = False,
        tol: float = 1e-8,
        max_iter: int = 1000,
        if_unproved: str = "raise",
        noise_seed: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.l2 = l2
        self.reg = reg
        self.multi_class = multi_class
        self.fit_intercept = fit_intercept
        self.rows = rows
        self.row_norm = row_norm
        self.epsilon = epsilon
        self.delta = delta
        self.sigma = sigma
        self.mechanism = mechanism
        self.bound = bound
        self.batch_size = batch_size
        self.data_free = data_free
        self.tol = tol
        self.max_iter = max_iter
        self.if_unproved = if_unproved
        self.noise_seed = noise_seed
        self.random_state = random_state


class InfluenceRegressor(InfluenceBase, LinearRegressor):
    """Linear regression that forgets by one Newton step, with an (epsilon, delta) certificate.

    As `InfluenceClassifier`. With the squared loss the Hessian does not depend on the parameters,
    so a Newton removal is exact up to rounding, and the budget is hardly touched.

    Parameters
    ----------
    loss : {"squared", "pseudo_huber"}, default="squared"
        (z - y)^2 / 2, or its smooth version that grows linearly for errors beyond `huber_scale`.
        Huber's own loss and the squared hinge have second derivatives that jump, so no bound holds
        for them.
    huber_scale : float, default=1.0
        Where the pseudo-Huber loss turns from square to linear.
    l2, reg, fit_intercept, rows, row_norm, epsilon, delta, bound, batch_size, data_free
        As in `InfluenceClassifier`.
    sigma, mechanism
        As in `InfluenceClassifier`. Noise moves a prediction by about sigma |x|, in units of y: for
        targets in the hundreds a sigma of 1 may cost nothing.
    tol, max_iter, if_unproved, noise_seed, random_state
        As in `InfluenceClassifier`.

    Attributes
    ----------
    coef_, intercept_ : ndarray
        The published model, one line of coefficients.
    account_, epsilon_, weights_, noise_, noise_commitment_
        As in `InfluenceClassifier`.
    ids_, guarantee_, residual_state_, n_rows_
        See `ForgetMixin`.

    Notes
    -----
    Guarantee: as `InfluenceClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from letheon import InfluenceRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = InfluenceRegressor(sigma=0.1).fit(X, y)
    >>> model.forget([7]).rebuilt
    {}
    """

    _parameter_rules: ClassVar[Rules] = {
        "loss": OneOf(("squared", "pseudo_huber")),
        "huber_scale": POSITIVE,
    }

    def __init__(
        self,
        *,
        loss: str = "squared",
        huber_scale: float = 1.0,
        l2: float = 1e-3,
        reg: str = "per_sample",
        fit_intercept: bool = True,
        rows: str = "keep",
        row_norm: float | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-4,
        sigma: float = 0.01,
        mechanism: str = "output",
        bound: str = "tightest",
        batch_size: int | None = None,
        data_free: bool = False,
        tol: float = 1e-8,
        max_iter: int = 1000,
        if_unproved: str = "raise",
        noise_seed: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.huber_scale = huber_scale
        self.l2 = l2
        self.reg = reg
        self.fit_intercept = fit_intercept
        self.rows = rows
        self.row_norm = row_norm
        self.epsilon = epsilon
        self.delta = delta
        self.sigma = sigma
        self.mechanism = mechanism
        self.bound = bound
        self.batch_size = batch_size
        self.data_free = data_free
        self.tol = tol
        self.max_iter = max_iter
        self.if_unproved = if_unproved
        self.noise_seed = noise_seed
        self.random_state = random_state

    def _loss(self, classes: NDArray[Any] | None) -> Loss:  # noqa: ARG002
        return Squared() if self.loss == "squared" else PseudoHuber(float(self.huber_scale))
