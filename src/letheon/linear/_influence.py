"""Certified removal by one Newton step (Guo et al. 2020; survey section 5.2)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from letheon.linear._base import LinearClassifier, LinearRegressor
from letheon.linear._influence_base import InfluenceBase
from letheon.linear._problem import Loss, PseudoHuber, Squared
from letheon.validation import POSITIVE, OneOf, Rules


@dataclass(kw_only=True, eq=False, repr=False)
class InfluenceClassifier(InfluenceBase, LinearClassifier):
    """Logistic regression that forgets by one Newton step, with a certified guarantee.

    Training minimises the regularised loss. The result W stays secret; the published parameters are
    W, rounded to a grid, plus fresh integer noise of scale sigma. To forget rows, the model takes
    one Newton step on the remaining rows, with a Hessian that is kept and updated. This takes
    O(d^2) operations and reads only the removed rows. The gradient left by the step is bounded, and
    the bounds of all requests are added up, starting with the residual of the optimiser. While the
    sum is below the limit that the noise hides, the published parameters are indistinguishable from
    those of a retrained model, up to (epsilon, delta). Otherwise the residual is measured (one pass
    over the rows) and then reduced by further Newton steps (polishes). If this is not enough, the
    model is retrained. The receipt counts these measurements, polishes and retrainings.

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
        The certified guarantee for the whole sequence of requests. With ``delta=0``, discrete
        Laplace noise gives a pure epsilon guarantee.
    sigma : float, default=0.01
        Scale of the noise on every published parameter. It moves the score of a row x by about
        sigma |x|. For scaled rows, 0.01 usually costs no accuracy, while 1 makes most models
        useless. More noise gives a larger budget, so fewer requests need a pass over the rows. 0
        means no noise and an empirical guarantee.
    mechanism : {"output", "objective"}, default="output"
        "output" adds noise to the published parameters, as described above. "objective" is the
        algorithm of Guo et al.: a random linear term <b, W> is drawn once and added to the
        objective, and W is published without further noise; sigma is then the scale of b. Its
        guarantee is only empirical: the published theorem ignores that the residual of a removal
        depends on b, and an audit refuted the theorem.
    bound : {"tightest", "data-dependent", "worst-case"}, default="tightest"
        Bound on the residual of a step: "data-dependent" is computed from the Hessian,
        "worst-case" from norms only, and "tightest" is the smaller of the two.
    batch_size : int or None, default=None
        Number of rows that one step removes (m' in the survey). Each batch uses a new Hessian at
        the current parameters, which is slower, but ends closer to the optimum for large requests.
        None removes all rows of a request at once. It is an error if a request has fewer rows than
        `batch_size`.
    data_free : bool, default=False
        Whether to store only the Hessian and a keyed fingerprint of each row, instead of the rows.
        `forget` then needs the rows to remove as arguments, and it raises `BudgetSpentError` when
        the budget is spent, because the residual cannot be reduced without the rows. Needs
        `row_norm`.
    tol : float, default=1e-8
        Training stops when |gradient| <= tol times the number of rows; one Newton step follows.
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
    account_ : Account
        The budget `spent`, its `limit`, and how often a request had to measure, polish or retrain.
    epsilon_ : float
        Smallest epsilon that covers the budget spent so far.
    weights_ : SecretArray
        W, the parameters without noise. They are part of the model file, so keep the file private.
    noise_ : SecretArray or None
        The vector b with ``mechanism="objective"``; None otherwise. The noise of a release is not
        kept.
    noise_commitment_ : str or None
        SHA-256 of a salt and the noise of the release; certificates state it.
    ids_, guarantee_, residual_state_, n_rows_
        See `ForgetMixin`.

    See Also
    --------
    InfluenceRegressor : The same method for regression.
    FisherClassifier : Noise shaped by the Fisher matrix.
    DescentToDeleteClassifier : Can also add rows.

    Notes
    -----
    Guarantee: certified (epsilon, delta) against an observer of the latest model, even if requests
    depend on earlier models (adaptive). By strong convexity, the residual gradient bounds the
    distance of W to the optimum of the remaining rows, including rounding errors. Discrete Gaussian
    noise hides this distance, for every epsilon. No bound, limit or error message depends on the
    noise. Tuning `l2` on rows that are removed later weakens the guarantee; see `declare_tuning`.

    The guarantee does not cover the secret state. From the state and the rows in the same file, the
    gradient left by the last removals can be computed. If the last removal was a single row, this
    gradient reveals the row. `settle` prevents this.

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

    multi_class: str = "ovr"


@dataclass(kw_only=True, eq=False, repr=False)
class InfluenceRegressor(InfluenceBase, LinearRegressor):
    """Linear regression that forgets by one Newton step, with a certified guarantee.

    The method is that of `InfluenceClassifier`. With the squared loss, the Hessian does not depend
    on the parameters, so a Newton step is exact up to rounding and uses almost no budget.

    Parameters
    ----------
    loss : {"squared", "pseudo_huber"}, default="squared"
        The loss (z - y)^2 / 2, or a smooth version of it that grows linearly for errors beyond
        `huber_scale`. The original Huber loss and the squared hinge loss are not offered: their
        second derivatives are discontinuous, so no bound holds for them.
    huber_scale : float, default=1.0
        Error at which the pseudo-Huber loss changes from quadratic to linear.
    l2, reg, fit_intercept, rows, row_norm, epsilon, delta, bound, batch_size, data_free
        As in `InfluenceClassifier`.
    sigma, mechanism
        As in `InfluenceClassifier`. Noise moves a prediction by about sigma |x|, in units of y. If
        the targets are in the hundreds, a sigma of 1 may cost no accuracy.
    tol, max_iter, if_unproved, noise_seed, random_state
        As in `InfluenceClassifier`.

    Attributes
    ----------
    coef_, intercept_ : ndarray
        The published model; `coef_` has one row.
    account_, epsilon_, weights_, noise_, noise_commitment_
        As in `InfluenceClassifier`.
    ids_, guarantee_, residual_state_, n_rows_
        See `ForgetMixin`.

    Notes
    -----
    The guarantee is that of `InfluenceClassifier`.

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

    loss: str = "squared"
    huber_scale: float = 1.0

    def _build_loss(self, classes: NDArray[Any] | None) -> Loss:  # noqa: ARG002
        return Squared() if self.loss == "squared" else PseudoHuber(float(self.huber_scale))
