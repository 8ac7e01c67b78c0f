"""Attacks on certified methods: lower confidence bounds on epsilon, compared with the claim.

Two worlds are simulated many times: in one a model forgets people, in the other it is fitted
without them. A test that distinguishes the releases of the two worlds gives a lower bound on
epsilon (`_leak`). A bound above the claimed epsilon refutes the claim; a bound below it proves
nothing.

>>> from letheon import InfluenceClassifier
>>> from letheon.checks import attack_fold
>>> attack_fold(InfluenceClassifier(), "one-column-4", n_runs=60).is_refuted
False
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from letheon.checks._cases import CASES, AttackCase, Floats, make_hard_cases
from letheon.checks._leak import clopper_pearson, epsilon_lower_bound
from letheon.checks._people import fit_with, forget_each
from letheon.data import People
from letheon.linear import SecretArray, gaussian_epsilon, gaussian_mu

Long = NDArray[np.longdouble]
Read = Callable[[Any], Floats]
Make = Callable[[], Any]
_FEWEST_RELEASES = 30
# Neighbours of a multiple of 2**-53 to try; they suffice for parameters up to 40 sigma.
_NEIGHBOURS = np.arange(-32, 33)


def get_weights_before_noise(model: Any) -> NDArray[np.float64]:
    """Return the secret parameters of a linear model before noise, of shape (d, K)."""
    fitted = vars(model)
    names = ("weights_", "unperturbed_", "optimum_")
    secret = next((fitted[name] for name in names if fitted.get(name) is not None), None)
    if secret is None:
        raise TypeError(
            f"{type(model).__name__} does not store parameters before noise; pass a "
            f"function `secret` that returns them"
        )
    values = np.asarray(secret.open() if hasattr(secret, "open") else secret, np.float64)
    return values[0] if values.ndim == 3 else values  # Fisher stores its gradient with them


def true_residual(model: Any) -> float:
    """Return the norm of the gradient at the parameters before noise, on the remaining rows.

    The model must store its rows and have the same objective as `InfluenceClassifier`. The norm is
    computed in `numpy.longdouble`, which has a precision of at least 64 bits on most machines.
    """
    rows = model.rows_
    X = rows.X[rows.alive]
    X = np.asarray(X.toarray() if sp.issparse(X) else X).astype(np.longdouble)
    W = get_weights_before_noise(model).astype(np.longdouble)
    loss = model._build_loss(model.model_.classes)
    with np.errstate(over="ignore", under="ignore"):
        slopes = _slopes(type(loss).__name__, X @ W, rows.y[rows.alive], loss)
        ridge = np.longdouble(model.l2) * (len(X) if model.reg == "per_sample" else 1)
        gradient = X.T @ slopes + ridge * W
        if isinstance(vars(model).get("noise_"), SecretArray):
            gradient = gradient + model.noise_.open()
        return float(np.sqrt((gradient * gradient).sum()))


def _slopes(kind: str, Z: Long, y: NDArray[Any], loss: Any) -> Long:
    """Return the derivative of every row's loss with respect to its scores."""
    if kind in ("Squared", "PseudoHuber"):
        gaps = Z - y[:, None]
        return np.asarray(gaps if kind == "Squared" else gaps / np.hypot(1, gaps / loss.scale))
    own = y[:, None] == (np.arange(Z.shape[1]) if Z.shape[1] > 1 else 1)
    if kind == "Logistic":
        # This form avoids differences of nearly equal numbers.
        return np.asarray(np.where(own, -1 / (1 + np.exp(Z)), 1 / (1 + np.exp(-Z))))
    shares = np.exp(Z - Z.max(axis=1, keepdims=True))
    total, others = shares.sum(axis=1, keepdims=True), np.where(own, 0, shares)
    return np.asarray(np.where(own, -others.sum(axis=1, keepdims=True), others) / total)


class _StatedClaim(NamedTuple):
    epsilon: float
    delta: float


@dataclass(frozen=True)
class ClaimAttackResult:
    """Result of an attack on a certified claim; ``print(result)`` shows it in one line.

    Attributes
    ----------
    attack, case : str
        Names of the attack and of the case.
    epsilon, delta : float
        The claim.
    bound : float
        Lower bound on epsilon at this delta, too large with a probability of at most `level`.
    level : float
        Largest probability that `bound` is too large.
    n_runs : int
        Number of runs in each world; for `attack_account`, number of requests.
    details : dict of str to float
        Further numbers of the attack.
    """

    attack: str
    case: str
    epsilon: float
    delta: float
    bound: float
    level: float
    n_runs: int
    details: dict[str, float] = field(default_factory=dict)

    @property
    def is_refuted(self) -> bool:
        """Whether the bound exceeds the claimed epsilon, or an account was below the true value."""
        return not (self.bound <= self.epsilon and not self.details.get("understated", 0))

    def __str__(self) -> str:
        """Return the result in one line."""
        verdict = "REFUTED" if self.is_refuted else "not refuted"
        more = "".join(f", {name} {value:.3g}" for name, value in self.details.items())
        return (
            f"{self.attack} attack, {self.case}, {self.n_runs} runs: epsilon >= {self.bound:.3g}, "
            f"claimed {self.epsilon:.3g} at delta = {self.delta:.3g}{more}: {verdict}"
        )


def get_released_parameters(model: Any) -> Floats:
    """Return the published parameters of a linear model: coefficients and intercepts.

    Parameters
    ----------
    model : estimator
        A fitted linear model.

    Examples
    --------
    >>> from letheon import InfluenceClassifier
    >>> model = InfluenceClassifier(random_state=0).fit([[0.0, 1.0], [1.0, 0.0]] * 9, [0, 1] * 9)
    >>> get_released_parameters(model).shape
    (3,)
    """
    return np.append(np.ravel(model.coef_), np.ravel(model.intercept_)).astype(np.float64)


def get_secret_parameters(model: Any) -> Floats:
    """Return the parameters before noise, in the order of `get_released_parameters`.

    An attacker who knows the rows can compute these parameters for either world. Here they are read
    from `weights_`, `unperturbed_` or `optimum_`.

    Parameters
    ----------
    model : estimator
        A fitted linear model.

    Examples
    --------
    >>> from letheon import InfluenceClassifier
    >>> model = InfluenceClassifier(random_state=0).fit([[0.0, 1.0], [1.0, 0.0]] * 9, [0, 1] * 9)
    >>> get_secret_parameters(model).shape
    (3,)
    """
    values = get_weights_before_noise(model)
    if model.fit_intercept:
        return np.append(values[:-1].T.ravel(), values[-1])
    return np.append(values.T.ravel(), np.zeros(values.shape[1]))


class _WorldRuns(NamedTuple):
    """Releases and claims of one world, and the share of refused attempts."""

    seen: Floats
    claims: set[tuple[Any, Any]]
    refused: float


@dataclass(frozen=True)
class Releases:
    """Runs of both worlds from `play_worlds`, which several attacks can share.

    Parameters
    ----------
    case : AttackCase
        The case.
    forgot, fresh : object
        Released parameters of models that forgot, and of models fitted without the rows.
    """

    case: AttackCase
    forgot: _WorldRuns
    fresh: _WorldRuns

    def bound(self, delta: float, level: float) -> float:
        """Return a lower bound on epsilon at this delta.

        The bound is too large with a probability of at most `level`.
        """
        seen = self.forgot.seen, self.fresh.seen
        return epsilon_lower_bound(*seen, delta=delta, level=level, has_folds=True)


def play_worlds(
    estimator: Any,
    case: str | AttackCase | Releases,
    *,
    n_runs: int = 2000,
    released: Read = get_released_parameters,
    most_tries: int = 50,
) -> Releases:
    """Simulate both worlds: fit and forget in one, fit without the rows in the other.

    `attack_fold`, `attack_refusal` and `attack_lattice` accept the result as `case`, so that they
    can share the same runs. If `case` is a `Releases` object, it is returned unchanged.

    Parameters
    ----------
    estimator, case, released
        As in `attack_fold`.
    n_runs : int, default=2000
        Number of models in each world.
    most_tries : int, default=50
        Number of attempts of `fit` and `forget`; with 0, their errors are raised.

    Returns
    -------
    Releases

    Examples
    --------
    >>> from letheon import InfluenceClassifier
    >>> from letheon.checks import play_worlds
    >>> model = InfluenceClassifier(sigma=10.0)
    >>> play_worlds(model, "one-column-4", n_runs=30).case.name
    'one-column-4'
    """
    if isinstance(case, Releases):
        return case
    case = _resolve_case(case, n_runs)
    played = (
        _play_world(make, n_runs, released, most_tries) for make in _make_worlds(estimator, case)
    )
    return Releases(case, *played)


def attack_fold(
    estimator: Any,
    case: str | AttackCase | Releases,
    *,
    n_runs: int = 2000,
    level: float = 0.05,
    released: Read = get_released_parameters,
    claim: tuple[float, float] | None = None,
) -> ClaimAttackResult:
    """Test whether the released parameters of the two worlds have different distributions.

    The test detects differences in mean and spread, and holes and folds in the distribution.

    Parameters
    ----------
    estimator : forgetting estimator
        Unfitted. A `noise_seed` is set to None.
    case : str, AttackCase or Releases
        A case, a name in `CASES`, or the result of `play_worlds`, which several attacks can share.
    n_runs : int, default=2000
        Number of models in each world. The largest epsilon that can be shown is 5.4 with 2,000 runs
        and 7.7 with 20,000.
    level : float, default=0.05
        Largest probability of a bound that is too large.
    released : callable
        Function that returns the published parameters of a model, as a vector.
    claim : (float, float), optional
        epsilon and delta; by default those of the model's guarantee.

    Returns
    -------
    ClaimAttackResult

    Examples
    --------
    >>> from letheon import InfluenceClassifier
    >>> from letheon.checks import attack_fold
    >>> model = InfluenceClassifier(sigma=10.0)
    >>> attack_fold(model, "one-column-4", n_runs=30).n_runs
    30
    """
    runs = play_worlds(estimator, case, n_runs=n_runs, released=released, most_tries=0)
    stated = _choose_claim(runs.forgot.claims, claim)
    bound = runs.bound(stated.delta, level)
    return ClaimAttackResult("fold", runs.case.name, *stated, bound, level, len(runs.forgot.seen))


def attack_refusal(
    estimator: Any,
    case: str | AttackCase | Releases,
    *,
    n_runs: int = 2000,
    level: float = 0.05,
    released: Read = get_released_parameters,
    claim: tuple[float, float] | None = None,
    most_tries: int = 50,
) -> ClaimAttackResult:
    """Retry until `fit` and `forget` succeed, then compare the releases as in `attack_fold`.

    If a method raises depending on its noise, the noise of the releases is selected and no longer
    has the stated distribution.

    Parameters
    ----------
    estimator, case, level, released, claim
        As in `attack_fold`.
    n_runs, most_tries : int
        As in `play_worlds`.

    Returns
    -------
    ClaimAttackResult
        `details`: the share of refused attempts in each world.

    Examples
    --------
    >>> from letheon import InfluenceClassifier
    >>> from letheon.checks import attack_refusal
    >>> model = InfluenceClassifier(sigma=10.0)
    >>> attack_refusal(model, "one-column-4", n_runs=30).attack
    'refusal'
    """
    runs = play_worlds(estimator, case, n_runs=n_runs, released=released, most_tries=most_tries)
    stated = _choose_claim(runs.forgot.claims | runs.fresh.claims, claim)
    n_least = min(len(runs.forgot.seen), len(runs.fresh.seen))
    bound = runs.bound(stated.delta, level) if n_least >= _FEWEST_RELEASES else 0.0
    details = {"refused": runs.forgot.refused, "refused_fresh": runs.fresh.refused}
    return ClaimAttackResult("refusal", runs.case.name, *stated, bound, level, n_least, details)


def _play_world(make: Make, n_runs: int, released: Read, most_tries: int) -> _WorldRuns:
    """Simulate one world `n_runs` times.

    If `make` raises, it is tried up to `most_tries` times; with 0, the error is raised.
    """
    seen, claims, n_refused = [], set(), 0
    for _ in range(n_runs):
        model = None
        for _ in range(max(most_tries, 1)):
            try:
                model = make()
                break
            except Exception:
                if not most_tries:
                    raise
                n_refused += 1
        if model is not None:
            seen.append(released(model))
            claims.add((model.guarantee_.epsilon, model.guarantee_.delta))
    return _WorldRuns(np.array(seen), claims, n_refused / max(len(seen) + n_refused, 1))


def _make_worlds(estimator: Any, case: AttackCase) -> tuple[Make, Make]:
    """Return two functions: the first makes a model that forgot, the second a fresh model."""
    return (
        lambda: forget_each(_fit_case(estimator, case, range(len(case.y))), [*case.leaving]),
        lambda: _fit_case(estimator, case, case.remaining),
    )


def attack_lattice(
    estimator: Any,
    case: str | AttackCase | Releases,
    *,
    n_runs: int = 2000,
    level: float = 0.05,
    released: Read = get_released_parameters,
    secret: Read = get_secret_parameters,
    claim: tuple[float, float] | None = None,
) -> ClaimAttackResult:
    """Infer from low-order bits which noiseless parameters a release came from (Mironov 2012).

    If noise is made from 53 random bits and added in floating point, only some of the nearby
    numbers can occur. Let w be the noiseless value of a coordinate, which differs between the two
    worlds. If a coordinate equals ``fl(w + sigma ndtri(k 2**-53))`` for some k with one w and for
    no k with the other w, it distinguishes the worlds. The number of trailing zeros in the
    difference from w can distinguish them, too.

    Parameters
    ----------
    estimator, case, n_runs, level, released, claim
        As in `attack_fold`. `sigma` or `sigma_` of the estimator must be the standard deviation of
        its noise.
    secret : callable
        Function that returns the parameters of a model before noise, in the order of `released`.

    Returns
    -------
    ClaimAttackResult
        `details`: the share of coordinates that the right and the wrong w explain.

    Examples
    --------
    >>> from letheon import InfluenceClassifier
    >>> from letheon.checks import attack_lattice
    >>> model = InfluenceClassifier(sigma=10.0)
    >>> attack_lattice(model, "one-column-4", n_runs=30).attack
    'lattice'
    """
    rows = case.case if isinstance(case, Releases) else _resolve_case(case, n_runs)
    first = [make() for make in _make_worlds(estimator, rows)]
    origins = [secret(model) for model in first]
    use = origins[0] != origins[1]
    stated = _read_claim(first[0], claim)
    if not use.any():
        return ClaimAttackResult("lattice", rows.name, *stated, 0.0, level, n_runs)
    sigma = float(getattr(first[0], "sigma_", None) or first[0].sigma)
    origins = [origin[use] for origin in origins]
    runs = play_worlds(estimator, case, n_runs=n_runs, released=released, most_tries=0)
    marks = [
        np.array([_read_bits(theta[use], origins, sigma) for theta in world.seen])
        for world in (runs.forgot, runs.fresh)
    ]
    bound = epsilon_lower_bound(*marks, delta=stated.delta, level=level, has_folds=True)
    right = (marks[0][:, 0].mean() + marks[1][:, 1].mean()) / 2 / use.sum()
    wrong = (marks[0][:, 1].mean() + marks[1][:, 0].mean()) / 2 / use.sum()
    details = {"right": float(right), "wrong": float(wrong)}
    return ClaimAttackResult("lattice", rows.name, *stated, bound, level, len(marks[0]), details)


def _read_bits(theta: Floats, origins: Sequence[Floats], sigma: float) -> Floats:
    """Return scores that compare which of two origins explains the low-order bits of `theta`.

    The scores are: explained coordinates for each origin, their difference, and the difference of
    trailing zeros.
    """
    explained = [float(_is_explained(theta, origin, sigma).sum()) for origin in origins]
    zeros = [float(sum(map(_trailing_zeros, theta, origin))) for origin in origins]
    return np.array([*explained, explained[0] - explained[1], zeros[0] - zeros[1]])


def _is_explained(theta: Floats, origin: Floats, sigma: float) -> NDArray[np.bool_]:
    """Return, for each coordinate, whether it is ``origin + sigma ndtri(k 2**-53)`` for some k."""
    middle = np.rint(ndtr((theta - origin) / sigma) * 2.0**53)
    shares = (middle[:, None] + _NEIGHBOURS) * 2.0**-53
    is_inside = (shares > 0.0) & (shares < 1.0)
    made = origin[:, None] + sigma * ndtri(np.where(is_inside, shares, 0.5))
    is_explained: NDArray[np.bool_] = ((made == theta[:, None]) & is_inside).any(axis=1)
    return is_explained


def _trailing_zeros(first: float, second: float) -> int:
    """Return the exponent of the lowest bit of ``first - second``; 0 if they are equal."""
    gap = abs(Fraction(first) - Fraction(second))
    if gap == 0:
        return 0
    lowest = gap.numerator & -gap.numerator
    return lowest.bit_length() - gap.denominator.bit_length()


def attack_account(
    estimator: Any,
    cases: Sequence[AttackCase] | None = None,
    *,
    n_requests: int = 3,
    level: float = 0.05,
    residual: Callable[[Any], float] = true_residual,
    claim: tuple[float, float] | None = None,
) -> ClaimAttackResult:
    """Test whether the account of a model states less than the true residual.

    Parameters
    ----------
    estimator : forgetting estimator
        Unfitted. Its guarantee must have `spent` and `budget`, in the unit of `residual`. If the
        model has an `account_`, its `spent` is used.
    cases : sequence of AttackCase, optional
        By default, 40 small problems from `make_hard_cases`.
    n_requests : int, default=3
        Number of people that each model forgets, one after the other.
    level, claim
        As in `attack_fold`.
    residual : callable
        Function that returns the norm of the gradient on the remaining rows, in higher precision.

    Returns
    -------
    ClaimAttackResult
        For every request, the epsilon that it needs is computed from the true residual as a share
        of the budget. `bound` is the largest e such that more than a share delta of all requests
        need an epsilon of at least e. `details` has the number of requests after which the account
        was below the true value (`understated`), and the largest ratio of the true value to the
        account.

    Raises
    ------
    ValueError
        No model is certified after a request in any case.

    Examples
    --------
    >>> from letheon import InfluenceClassifier
    >>> from letheon.checks import attack_account, make_hard_cases
    >>> model = InfluenceClassifier(sigma=10.0)
    >>> attack_account(model, make_hard_cases(2), n_requests=1).details["understated"]
    0.0
    """
    needed, factors = [], []
    stated = None if claim is None else _StatedClaim(*claim)
    cases = make_hard_cases(40) if cases is None else cases
    for case in cases:
        for model in _iter_models(estimator, case, n_requests):
            stated = _read_claim(model, claim)
            # A guarantee rounds the account up.
            account = getattr(model, "account_", None)
            truth, spent = residual(model), float(getattr(account, "spent", model.guarantee_.spent))
            needed.append(_compute_needed_epsilon(truth, model.guarantee_.budget, stated))
            factors.append(truth / spent if spent > 0.0 else (inf if truth > 0.0 else 0.0))
    if stated is None:
        raise ValueError(
            "no model is certified after a request in any of these cases; use other "
            "cases or settings"
        )
    understated = sum(not factor <= 1.0 for factor in factors)
    details = {"understated": float(understated), "largest_factor": max(factors)}
    bound = _quantile_bound(np.array(needed), stated.delta, level)
    return ClaimAttackResult(
        "account", f"{len(cases)} cases", *stated, bound, level, len(needed), details
    )


def _iter_models(estimator: Any, case: AttackCase, n_requests: int) -> Iterator[Any]:
    """Yield the model after each request, as long as it is certified.

    The sequence ends if the model is no longer certified or refuses a request.
    """
    try:
        model = _fit_case(estimator, case, range(len(case.y)))
        for person in [*case.leaving, *case.remaining][:n_requests]:
            model.forget([person])
            if model.guarantee_.kind != "certified" or model.guarantee_.budget is None:
                return
            yield model
    except ValueError:  # a refusal is not a wrong account
        return


def _compute_needed_epsilon(truth: float, budget: float, stated: _StatedClaim) -> float:
    if not truth <= budget * 1e6:
        return inf
    if stated.delta == 0.0:
        return stated.epsilon * truth / budget
    return float(gaussian_epsilon(truth / budget * gaussian_mu(*stated), stated.delta))


def _quantile_bound(needed: Floats, delta: float, level: float) -> float:
    """Return the largest e such that more than a share delta of requests need at least e.

    The result is too large with a probability of at most `level`.
    """
    for hits, value in enumerate(np.sort(needed)[::-1], start=1):
        if clopper_pearson(hits, len(needed), level)[0] > delta:
            return max(0.0, float(value))
    return 0.0


def _resolve_case(case: str | AttackCase, n_runs: int) -> AttackCase:
    if n_runs < _FEWEST_RELEASES:
        raise ValueError(f"n_runs={n_runs} is too small; expected at least {_FEWEST_RELEASES}")
    if isinstance(case, AttackCase):
        return case
    if case not in CASES:
        raise ValueError(f"unknown case {case!r}; expected an AttackCase or one of {[*CASES]}")
    return CASES[case]


def _fit_case(estimator: Any, case: AttackCase, positions: Sequence[int]) -> Any:
    rows = np.asarray(positions)
    people = People(case.X[rows], case.y[rows], rows)
    return fit_with(estimator, people, **{**case.settings, "noise_seed": None})


def _read_claim(model: Any, claim: tuple[float, float] | None) -> _StatedClaim:
    return _choose_claim({(model.guarantee_.epsilon, model.guarantee_.delta)}, claim)


def _choose_claim(claims: set[tuple[Any, Any]], claim: tuple[float, float] | None) -> _StatedClaim:
    if claim is not None:
        return _StatedClaim(*claim)
    if not claims or any(None in each for each in claims):
        raise ValueError(
            "the model claims no epsilon and delta; pass claim=(epsilon, delta) to attack it anyway"
        )
    return _StatedClaim(max(each[0] for each in claims), max(each[1] for each in claims))
