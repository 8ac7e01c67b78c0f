r"""V5: compute (epsilon, delta) and the account again, from the rows and the settings.

No history of requests is needed: the certificate follows from the newest model alone. The
parameters of the model before noise must be near the optimum of the remaining rows, whatever the
noise is. The auditor sees these parameters, so the guarantee does not protect against the auditor,
who must keep them confidential.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from letheon.audit._bundle import AuditedModel, LevelResult, LogFacts
from letheon.audit._levels import find_claim_mismatch
from letheon.audit._objective import (
    Floats,
    Objective,
    RoundingInterval,
    build_objective,
    find_optimum,
    is_bounded,
    l2_norm,
    largest_hidden_shift,
    mismatch_delta,
    noise_bounds,
)
from letheon.audit._predictor import has_same_environment
from letheon.audit._rederive import FEATURES, check_file_content, unwrap_model
from letheon.data import Rows
from letheon.linear import choose_noise_scale, plan_descent
from letheon.methods import find_method

# Certificates round the spent amount and the budget up to two digits; formulas differ by rounding.
_CLOSE = 1e-6
_TWO_DIGITS = 0.11
# The library searches for the smallest delta on other grids.
_GRID = 0.02
_LEAST_SPREAD = 0.05
_LARGEST_HESSIAN = 2048
# Fisher noise: the full matrix is used up to this number of parameters in a block.
_LARGEST_BLOCK = 256
_RETRAIN = "retrain"
# Share of the hidden distance that is reserved for a fresh fit; largest number of grid steps.
_SHARE_OF_FIT = 0.125
_MOST_STEPS = 2.0**51
# Mechanisms with refuted claims: noise in the objective or in floating point. See SECURITY.md.
_WITHDRAWN = ("objective-perturbation-", "output-perturbation-")


class _TooLargeError(Exception):
    """Error: recomputing the bound would take too long; the message says why."""


@dataclass
class _BoundConditions:
    """Conditions of a bound with their values and limits, for the details of a result."""

    details: dict[str, dict[str, Any]] = field(default_factory=dict)

    def limit(self, name: str, value: float, limit: float, *, slack: float = _CLOSE) -> None:
        holds = bool(value <= limit * (1 + slack))  # NaN does not hold
        self.details[name] = {"found": f"{value:.4g}", "limit": f"{limit:.4g}", "holds": holds}

    def require(self, name: str, condition: bool) -> None:
        self.details[name] = {"holds": bool(condition)}

    @property
    def violations(self) -> list[str]:
        return [name for name, check in self.details.items() if not check["holds"]]


@dataclass(frozen=True)
class _BoundCase:
    """A certified model, its training objective on the auditor's rows, and the claim to check."""

    model: Any
    objective: Objective
    claim: Mapping[str, Any]
    checks: _BoundConditions
    is_fresh: bool = False
    committed: str | None = None

    def get_stated(self, name: str) -> float:
        """Return `spent` or `budget` as the claim states it.

        If the claim has no `spent`, the whole budget counts as spent. NaN if it has no budget
        either.
        """
        accounting = self.claim.get("accounting", {})
        value = accounting.get(name, accounting.get("budget"))
        return float("nan") if value is None else float(value)


def find_withdrawn_mechanism(audited: AuditedModel) -> LevelResult | None:
    """Return a "skipped" result if the noise mechanism of a model was withdrawn; otherwise None."""
    claims = audited.newest.predicate
    noise = claims["method"]["noise"]
    if claims["guarantee"]["kind"] != "certified" or noise == "none":
        return None
    if not noise["mechanism"].startswith(_WITHDRAWN):
        return None
    reason = (
        f"mechanism withdrawn: {noise['mechanism']} does not give the (epsilon, delta) that the "
        "certificate states. Fit the model again; SECURITY.md gives the reason"
    )
    return LevelResult("V5", audited.name, "skipped", reason)


def check_bound(log: LogFacts, audited: AuditedModel, model: Any) -> LevelResult:
    """Return the result of V5 for a model of a bundle and its newest certificate."""
    claims, wrong = audited.newest.predicate, find_claim_mismatch(log, audited, model)
    if wrong:
        return LevelResult("V5", audited.name, "fail", wrong)
    findings = check_file_content(
        model, audited.rows, content=audited.content, same_place=has_same_environment(audited)
    )
    if findings.wrong:
        return LevelResult("V5", audited.name, "fail", findings.wrong)
    # A retrain claims a fresh fit; only the model itself claims that its noise hides later
    # removals.
    is_fresh = claims["method"]["name"] == _RETRAIN
    claim = None if is_fresh else claims["guarantee"]
    noise = claims["method"]["noise"]
    committed = None if noise == "none" else noise["seedCommitment"]
    result = bound(
        model, audited.rows, claim=claim, name=audited.name, fresh=is_fresh, committed=committed
    )
    if findings.undecided and result.verdict == "pass":
        return replace(result, verdict="skipped", reason=findings.undecided)
    return result


def bound(
    model: Any,
    rows: Rows,
    *,
    claim: Mapping[str, Any] | None = None,
    name: str = "",
    fresh: bool = False,
    committed: str | None = None,
) -> LevelResult:
    """Compute the bound of a certified model again, from its parameters and the remaining rows.

    Parameters
    ----------
    model : fitted estimator
        A model of `letheon.linear`, or a certified head on a frozen backbone.
    rows : Rows
        The remaining rows, from the auditor's own source.
    claim : mapping, optional
        `guarantee` of the certificate; by default the model's own guarantee.
    name : str
        Name of the model, for the result.
    fresh : bool, default=False
        Whether the model is claimed to be a fresh fit, which contains no residual of removals.
    committed : str, optional
        SHA-256 over the salt and noise of the release, as the certificate states it.

    Returns
    -------
    LevelResult
        "pass": every condition in `details` holds. "fail": at least one condition does not hold.
        "skipped": the model claims no (epsilon, delta), or letheon cannot recompute the bound of
        its method.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon import FisherClassifier
    >>> from letheon.audit import bound
    >>> from letheon.data import Rows, as_ids, hold_table, hold_target
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> model = FisherClassifier(l2=0.01).fit(X, y)
    >>> rows = Rows(hold_table(X), hold_target(y), as_ids(range(100)))
    >>> bound(model, rows).verdict
    'pass'
    """
    claim = _read_own_claim(model) if claim is None else dict(claim)
    if claim.get("kind") == "certified" or model.guarantee_.kind == "certified":
        return _check_certified(model, rows, claim, name, fresh=fresh, committed=committed)
    kind = model.guarantee_.kind
    return LevelResult("V5", name, "skipped", f"the model is {kind} and claims no epsilon")


def _read_own_claim(model: Any) -> dict[str, Any]:
    own = model.guarantee_
    accounting = {"spent": own.spent, "budget": own.budget}
    return {"kind": own.kind, "epsilon": own.epsilon, "delta": own.delta, "accounting": accounting}


def _check_certified(
    model: Any, rows: Rows, claim: dict[str, Any], name: str, *, fresh: bool, committed: str | None
) -> LevelResult:
    checks = _BoundConditions()
    inner, seen = unwrap_model(model, rows)
    method = find_method(inner.facts.method)
    check = BOUNDS.get(method.bound or "") if method is not None else None
    if check is None or getattr(inner, "variant", "basic") == "distributed":
        reason = f"letheon cannot recompute the bound of the method {inner.facts.method}"
        return LevelResult("V5", name, "skipped", reason)
    objective = build_objective(inner, seen)
    case = _BoundCase(inner, objective, claim, checks, fresh, committed)
    try:
        is_broken = bool(_find_violations(case, seen, check))
        gap = _feature_gap(objective, inner) if is_broken and hasattr(model, "head_") else 0.0
        if 0.0 < gap <= FEATURES:
            # The bound follows with the stored features, so only the features can be the cause.
            stored = replace(objective, X=_get_stored_features(inner))
            second = replace(case, objective=stored, checks=_BoundConditions())
            is_broken = bool(_find_violations(second, seen, check))
    except _TooLargeError as large:
        return LevelResult("V5", name, "skipped", str(large), checks.details)
    if checks.violations and not is_broken:
        reason = (
            f"the stored features differ by {gap:.2g} from those computed here, and with the "
            "computed ones the bound does not follow; audit it on a machine that computes the "
            "same features"
        )
        return LevelResult("V5", name, "skipped", reason, checks.details)
    if checks.violations:
        names = ", ".join(f'"{name.replace("-", " ")}"' for name in checks.violations)
        reason = f"the bound does not follow; conditions that do not hold: {names}"
        return LevelResult("V5", name, "fail", reason, checks.details)
    reason = f"epsilon and delta follow from the remaining {len(rows)} rows and the settings"
    if inner.facts.method == "fisher":
        reason += "; the stated change of the curvature was not checked"
    return LevelResult("V5", name, "pass", reason, checks.details)


def _find_violations(
    case: _BoundCase, rows: Rows, check: Callable[[_BoundCase], None]
) -> list[str]:
    """Return the names of the conditions that do not hold.

    The conditions of the method (`check`) are evaluated only if those on claim and rows hold.
    """
    _check_claim(case)
    _check_problem(case, rows)
    if not case.checks.violations:
        check(case)
    return case.checks.violations


def _get_stored_features(head: Any) -> Floats:
    return np.asarray(head.rows_.compact_copy().X, np.float64)


def _feature_gap(objective: Objective, head: Any) -> float:
    """Return the relative distance of the stored features of a head from those computed here.

    The distance is relative to the largest feature. Features from another processor may differ in
    their last bits. The bound is checked with the features computed here, because the operator
    could hide a row in small changes of many stored features. So stored features never make a level
    pass; they can only turn a failure into "skipped".
    """
    stored = _get_stored_features(head)
    if stored.shape != objective.X.shape:
        return np.inf
    size = max(float(np.abs(stored).max(initial=0.0)), 1e-30)
    gap = float(np.abs(stored - objective.X).max(initial=0.0)) / size
    return gap if gap >= 0.0 else np.inf


def _check_claim(case: _BoundCase) -> None:
    """Check that the claim is not stronger than the settings permit."""
    model, claim, checks = case.model, case.claim, case.checks
    checks.require("kind-is-the-models", claim.get("kind") == model.guarantee_.kind == "certified")
    checks.require("epsilon-is-in-range", 0.0 < float(model.epsilon) < math.inf)
    for name in ("epsilon", "delta"):
        stated = claim.get(name)
        least = float(getattr(model, name)) * (1 - _CLOSE)
        checks.require(f"{name}-is-not-understated", stated is not None and float(stated) >= least)
    checks.require("noise-is-secret", model.noise_seed is None)
    kept = model._weights_before_noise()
    parameters = [model.model_.weights, *([] if kept is None else [kept])]
    checks.require("parameters-are-finite", all(np.isfinite(part).all() for part in parameters))
    checks.require("nothing-was-downgraded", vars(model).get("downgraded_") is None)


def _check_problem(case: _BoundCase, rows: Rows) -> None:
    """Check that the model has the rows of the bundle and that its problem meets the assumptions.

    The norms of the rows must be bounded, and the problem must be strongly convex.
    """
    model, objective, checks = case.model, case.objective, case.checks
    checks.require("strongly-convex", objective.ridge > 0)
    checks.require("rows-are-bounded", is_bounded(objective, model.row_norm))
    if objective.classes is not None:
        same = np.array_equal(objective.classes, model.classes_)
        checks.require("classes-are-those-of-the-rows", same)
    if getattr(model, "data_free", False):
        return
    stored = model.rows_.compact_copy()
    same_people = np.array_equal(stored.ids.to_array(), rows.ids.to_array())
    checks.require("people-are-those-of-the-bundle", same_people)
    own, theirs = _to_dense(objective.X), _to_dense(stored.X)
    same_rows = own.shape == theirs.shape and np.allclose(own, theirs, rtol=1e-6, atol=1e-9)
    checks.require("rows-are-those-of-the-bundle", same_rows)


def _to_dense(X: Any) -> Floats:
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X, np.float64)


def _check_account(case: _BoundCase, left: RoundingInterval, hides: float) -> None:
    """Check that the residual is at most the stated one and at most what the noise hides.

    The first comparison uses the lower rounding bound of the residual, the second the upper one.
    """
    spent, budget = case.get_stated("spent"), case.get_stated("budget")
    case.checks.limit("spent-is-not-understated", left.least, spent)
    case.checks.limit("budget-is-what-noise-hides", budget, hides, slack=_TWO_DIGITS)
    case.checks.limit("what-is-left-is-hidden", left.most, hides)
    case.checks.limit("spent-is-within-budget", spent, budget)


def _check_noise(noise: Floats, scale: float, checks: _BoundConditions, *, is_pure: bool) -> None:
    """Check that the noise has a plausible size.

    The size is the Euclidean norm, or the sum of absolute values for Laplace noise (`is_pure`).
    """
    low, high = noise_bounds(noise.size, ball=is_pure)
    size = (float(np.abs(noise).sum()) if is_pure else l2_norm(noise)) / scale
    checks.limit("noise-is-not-too-long", size, high)
    checks.limit("noise-is-not-too-short", low, size)


def _check_influence(case: _BoundCase) -> None:
    """Check that the noise hides the gradient norm at W, and that the release is W plus noise.

    The first condition does not depend on noise: parameters that still contain an erased row are
    not near the optimum of the remaining rows, whatever noise the operator reports.
    """
    model, objective = case.model, case.objective
    W, sigma = np.asarray(model.weights_.open()), float(model.sigma)
    case.checks.require("noise-is-on-the-output", model.mechanism == "output")
    _check_release(case, W, sigma, is_shaped=False)
    hidden = objective.ridge * _compute_hidden(sigma, model.epsilon, model.delta, W.size)
    left = objective.bound_residual(W)
    _check_account(case, left, (1 - _SHARE_OF_FIT) * hidden)
    case.checks.limit("account-is-not-understated", left.least, model.account_.spent)
    if case.is_fresh:
        stop = float(model.tol) * objective.n_rows
        stop = max(stop, 1e3 * objective.noise_floor(W))
        case.checks.limit("training-arrived", left.least, stop)


def _check_release(case: _BoundCase, W: Floats, sigma: float, *, is_shaped: bool) -> None:
    """Check that the released parameters are W, rounded to the grid, plus plausible noise.

    Noise whose covariance depends on the rows (`is_shaped`) is checked in `_check_shaped`.
    """
    checks, (step, scale) = case.checks, _compute_grid(sigma)
    steps = np.asarray(case.model.model_.weights) / step
    checks.require("release-is-on-the-grid", bool(np.all(steps == np.rint(steps))))
    limit = _MOST_STEPS * step
    noise = steps - np.rint(np.clip(W, -limit, limit) / step)
    if not is_shaped:
        _check_noise(noise, float(scale), checks, is_pure=float(case.model.delta) == 0.0)
    if case.committed is not None:
        content = noise.astype("<i8").tobytes()
        digest = hashlib.sha256(bytes.fromhex(case.model.release_salt_) + content).hexdigest()
        checks.require("noise-is-the-committed-one", digest == case.committed)


def _compute_grid(sigma: float) -> tuple[float, int]:
    """Return the step of the noise grid, and sigma in steps, rounded up.

    The step is a power of two, chosen so that sigma has 2**20 to 2**21 steps.
    """
    step = 2.0 ** (math.floor(math.log2(sigma)) - 20)
    return step, math.ceil(sigma / step)


def _compute_hidden(sigma: float, epsilon: float, delta: float, size: int) -> float:
    """Return the largest distance between two models that noise on the grid hides.

    `size` is the number of parameters.
    """
    step, scale = _compute_grid(sigma)
    if delta == 0.0:
        return max(step * (epsilon * scale - size) / math.sqrt(size), 0.0)
    gap = size / (20.0 * scale**2)
    claimed = min(epsilon, math.log(max(delta / (2 * gap) - 1.0, 1.0)))
    rest = delta - (1.0 + math.exp(claimed)) * gap
    # This bound needs no correction: the discrete noise is as concentrated as the continuous one.
    steep = -math.log(delta)
    by_zcdp = math.sqrt(2.0) * (math.sqrt(steep + epsilon) - math.sqrt(steep))
    shift = max(largest_hidden_shift(claimed, rest) if rest > 0.0 else 0.0, by_zcdp)
    return max(step * (shift * scale - math.sqrt(size)), 0.0)


def _check_descent(case: _BoundCase) -> None:
    """Check the conditions of Neel et al. (2021).

    The model and the retrained model are both within a distance s of the same optimum, and the
    noise hides the distance 2s.
    """
    model = case.model
    sigma, delta = float(model.sigma_), float(model.delta)
    half = model.stop == "theorem" and model.state == "published"
    theta = np.asarray(model.model_.weights)
    hides = _compute_hidden(sigma, model.epsilon, delta / 2 if half else delta, theta.size) / 2
    plan = plan_descent(model, model._build_problem(model._training_rows()))
    case.checks.require("plan-is-that-of-the-settings", model.plan_ == plan)
    case.checks.require("sigma-is-that-of-the-settings", sigma == choose_noise_scale(model, plan))
    if model.unperturbed_ is None:
        _check_around(case, theta, sigma, hides)
        case.checks.limit("distance-is-hidden", float(model.distance_), hides)
        budget = case.get_stated("budget")
        case.checks.limit("budget-is-what-noise-hides", budget, hides, slack=_TWO_DIGITS)
        return
    W = np.asarray(model.unperturbed_.open())
    _check_release(case, W, sigma, is_shaped=False)
    if model.stop == "theorem":
        case.checks.limit("distance-is-hidden", float(model.plan_.distance), hides)
    _check_account(case, _bound_distance(case, W), hides)


def _bound_distance(case: _BoundCase, W: Floats) -> RoundingInterval:
    """Return bounds on the distance from W to the optimum of the remaining rows."""
    objective, residual = case.objective, case.objective.bound_residual(W)
    most = residual.most / objective.ridge
    if case.model.stop == "residual":
        return RoundingInterval(residual.least / objective.ridge, most)
    best = find_optimum(objective, W)
    away, error = l2_norm(W - best), objective.bound_residual(best).most / objective.ridge
    return RoundingInterval(max(away - error, 0.0), min(away + error, most))


def _check_around(case: _BoundCase, theta: Floats, sigma: float, distance: float) -> None:
    """Check that the distance of `theta` from the optimum is plausible for noise of scale `sigma`.

    `distance` is how far the parameters before noise may be from the optimum.
    """
    gap, is_pure = theta - find_optimum(case.objective, theta), float(case.model.delta) == 0.0
    low, high = noise_bounds(theta.size, ball=is_pure)
    away = l2_norm(gap)
    if is_pure:  # The sum of p absolute values has a gamma distribution, too.
        away, distance = float(np.abs(gap).sum()), math.sqrt(theta.size) * distance
    case.checks.limit("published-is-near-the-optimum", away, sigma * high + distance)
    case.checks.limit("published-is-not-without-noise", sigma * low - distance, away)


def _check_fisher(case: _BoundCase) -> None:
    """Check the conditions of Golatkar et al. (2020).

    (epsilon, delta) must hide the shift of the means and the spread of the covariances.
    """
    model, checks = case.model, case.checks
    epsilon, delta, sigma = float(model.epsilon), float(model.delta), float(model.sigma)
    close = model.account_.closeness
    needed = mismatch_delta(epsilon, close.shift, close.spread, max(close.dimension, 1.0))
    # Each distribution differs from a normal one by `gap` in total variation.
    needed += (1 + float(np.exp(min(epsilon, 700.0)))) * close.gap
    checks.limit("closeness-is-hidden", needed, delta, slack=_GRID)
    checks.limit("budget-is-what-noise-hides", case.get_stated("budget"), 1.0)
    checks.limit("spent-is-within-budget", case.get_stated("spent"), 1.0)
    checks.limit("spent-is-not-understated", float(model.account_.used), case.get_stated("spent"))
    theta, furthest = np.asarray(model.model_.weights), largest_hidden_shift(epsilon, delta)
    if model.covariance == "isotropic":
        _check_around(case, theta, sigma, sigma * furthest)
    else:
        _check_shaped(case, theta, furthest, close.spread)
    if model.optimum_ is not None:
        _check_before_noise(case)
    if case.is_fresh:
        checks.require("nothing-was-removed-since", model.account_.used == 0)


def _check_shaped(case: _BoundCase, theta: Floats, furthest: float, spread: float) -> None:
    """Check the distance from the optimum if the covariance of the noise is sigma^2 F^(-1/2).

    This is `_check_around` with distances in the metric of the noise. `furthest` is the largest
    shift that is hidden, in standard deviations.
    """
    objective = case.objective
    low, high = noise_bounds(theta.size, ball=False)
    best = find_optimum(objective, theta)
    values, vectors = np.linalg.eigh(_compute_fisher(case, best))
    gap = vectors.T @ (theta - best).ravel()
    away = l2_norm(np.maximum(values, 0.0) ** 0.25 * gap) / float(case.model.sigma)
    # Another Fisher matrix within e^(±2 spread) changes norms by a factor of e^(spread/2) at most.
    stretch = float(np.exp(0.5 * max(spread, _LEAST_SPREAD)))
    case.checks.limit("published-is-near-the-optimum", away, high * stretch + furthest)
    case.checks.limit("published-is-not-without-noise", low / stretch - furthest, away)


def _check_before_noise(case: _BoundCase) -> None:
    """Check that the parameters before noise are as close to the optimum as the account says."""
    model, objective = case.model, case.objective
    W, stop = np.asarray(model.optimum_.open())[0], float(model.tol) * objective.n_rows
    _check_release(case, W, float(model.sigma), is_shaped=model.covariance == "fisher")
    residual, scale = objective.bound_residual(W), 1.0
    if model.covariance != "isotropic":
        scale = float(np.linalg.eigvalsh(_compute_fisher(case, W))[-1]) ** 0.25
    per_gradient = scale / objective.ridge / float(model.sigma)
    furthest = largest_hidden_shift(float(model.epsilon), float(model.delta))
    # The stop rule is a setting. For any value, the noise must hide the residual.
    case.checks.limit("what-is-left-is-hidden", per_gradient * residual.most, furthest)
    if not model.account_.used:
        case.checks.limit("training-arrived", residual.least, stop)
        return
    needed = per_gradient * (residual.least + stop)
    shift = float(model.account_.closeness.shift)
    case.checks.limit("shift-is-not-understated", needed, shift, slack=1e-3)


def _compute_fisher(case: _BoundCase, W: Floats) -> Floats:
    """Return the Fisher matrix that shapes the noise, or its diagonal if a block is large."""
    if W.size > _LARGEST_HESSIAN:
        raise _TooLargeError(f"the model has {W.size} parameters, too many to recompute its bound")
    matrix: Floats = case.objective.hessian(W) / case.objective.n_rows
    block = W.size if case.model.multi_class == "softmax" else len(W)
    return matrix if block <= _LARGEST_BLOCK else np.diag(np.diag(matrix))


# Keys are the names in `letheon.methods`.
BOUNDS: dict[str, Callable[[_BoundCase], None]] = {
    "influence": _check_influence,
    "descent": _check_descent,
    "fisher": _check_fisher,
}
