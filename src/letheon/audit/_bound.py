r"""V5: (epsilon, delta), what is spent and of how much, computed again from rows and settings.

No history is needed: whatever the path of requests was, the certificate follows from the newest
model alone. Its parameters without noise must be near the optimum of the remaining rows, which no
noise can excuse. Whoever does this sees them, and towards them the guarantee lapses: it is done in
custody.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from letheon.audit._bundle import AuditedModel, LevelResult
from letheon.audit._levels import is_made_here, unlike_certified
from letheon.audit._objective import (
    Floats,
    Interval,
    Objective,
    hidden_shift,
    is_bounded,
    length,
    mismatch_delta,
    noise_bounds,
    objective_of,
    optimum,
)
from letheon.audit._rederive import FEATURES, beside_the_model, unwrapped
from letheon.data import Rows
from letheon.linear import choose_noise_scale, plan_descent
from letheon.methods import find_method

# Certificates round what is spent and the budget up to two digits; formulas differ by rounding.
_CLOSE = 1e-6
_TWO_DIGITS = 0.11
# The grids on which the least delta is looked for are not those of the library.
_GRID = 0.02
_LEAST_SPREAD = 0.05
_LARGEST_HESSIAN = 2048
# Fisher noise: up to so many parameters in a block the whole matrix shapes it.
_LARGEST_BLOCK = 256
_RETRAIN = "retrain"
# Share of what noise hides that is for a fresh fit; the grid ends at so many steps.
_SHARE_OF_FIT = 0.125
_MOST_STEPS = 2.0**51
# Noise whose claims were refuted: in the objective, or added in floats. See SECURITY.md.
_WITHDRAWN = ("objective-perturbation-", "output-perturbation-")


class _TooLarge(Exception):  # noqa: N818  (never leaves this module)
    """A second computation would take too long; its text says why."""


@dataclass
class _Checks:
    """Conditions of a bound, each with what was found and what it may be at most."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def at_most(self, name: str, value: float, limit: float, *, slack: float = _CLOSE) -> None:
        holds = bool(value <= limit * (1 + slack))  # NaN does not hold
        self.found[name] = {"found": f"{value:.4g}", "limit": f"{limit:.4g}", "holds": holds}

    def holds(self, name: str, condition: bool) -> None:
        self.found[name] = {"holds": bool(condition)}

    @property
    def broken(self) -> list[str]:
        return [name for name, check in self.found.items() if not check["holds"]]


@dataclass(frozen=True)
class _Case:
    """A certified model, its problem on the auditor's rows, and what is said about it."""

    model: Any
    objective: Objective
    said: Mapping[str, Any]
    checks: _Checks
    is_fresh: bool = False
    committed: str | None = None

    def stated(self, name: str) -> float:
        """Return what the certificate says; without `spent` it says that all may be spent."""
        accounting = self.said.get("accounting", {})
        value = accounting.get(name, accounting.get("budget"))
        return float("nan") if value is None else float(value)


def find_withdrawn(audited: AuditedModel) -> LevelResult | None:
    """Return the verdict on a certified model whose kind of noise letheon no longer certifies."""
    claims = audited.newest.predicate
    noise = claims["method"]["noise"]
    if claims["guarantee"]["kind"] != "certified" or noise == "none":
        return None
    if not noise["mechanism"].startswith(_WITHDRAWN):
        return None
    reason = (
        f"mechanism withdrawn: {noise['mechanism']} does not give the (epsilon, delta) that the "
        "certificate states. Fit the model anew; SECURITY.md says why"
    )
    return LevelResult("V5", audited.name, "skipped", reason)


def check_bound(audited: AuditedModel, model: Any) -> LevelResult:
    """V5 for a model of a bundle, against what its newest certificate says."""
    claims, wrong = audited.newest.predicate, unlike_certified(audited, model)
    if wrong:
        return LevelResult("V5", audited.name, "fail", wrong)
    beside = beside_the_model(
        model, audited.rows, content=audited.content, same_place=is_made_here(audited)
    )
    if beside.wrong:
        return LevelResult("V5", audited.name, "fail", beside.wrong)
    # A retrain claims a fresh fit; that its noise hides later removals is the model's word.
    is_fresh = claims["method"]["name"] == _RETRAIN
    claim = None if is_fresh else claims["guarantee"]
    noise = claims["method"]["noise"]
    committed = None if noise == "none" else noise["seedCommitment"]
    result = bound(
        model, audited.rows, claim=claim, name=audited.name, fresh=is_fresh, committed=committed
    )
    if beside.undecided and result.verdict == "pass":
        return replace(result, verdict="skipped", reason=beside.undecided)
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
        Of `letheon.linear`, or a certified head on a frozen backbone.
    rows : Rows
        The remaining rows, of the auditor's own.
    claim : mapping, optional
        `guarantee` of the certificate; by default the model's own guarantee.
    name : str
        Of the model, for the result.
    fresh : bool, default=False
        The model is said to be a fresh fit, so that nothing of removals may be left in it.
    committed : str, optional
        What the certificate says is the SHA-256 over the release's salt and noise.

    Returns
    -------
    LevelResult
        "pass": every condition holds; `details` list them. "fail": one does not. "skipped": the
        model claims no (epsilon, delta), or its method is not known here.
    """
    said = _claim_of(model) if claim is None else dict(claim)
    if said.get("kind") == "certified" or model.guarantee_.kind == "certified":
        return _judge(model, rows, said, name, fresh=fresh, committed=committed)
    kind = model.guarantee_.kind
    return LevelResult("V5", name, "skipped", f"the model is {kind} and claims no epsilon")


def _claim_of(model: Any) -> dict[str, Any]:
    own = model.guarantee_
    accounting = {"spent": own.spent, "budget": own.budget}
    return {
        "kind": own.kind,
        "epsilon": own.epsilon,
        "delta": own.delta,
        "accounting": accounting,
    }


def _judge(
    model: Any,
    rows: Rows,
    said: dict[str, Any],
    name: str,
    *,
    fresh: bool,
    committed: str | None,
) -> LevelResult:
    checks = _Checks()
    inner, seen = unwrapped(model, rows)
    method = find_method(inner.facts.method)
    check = BOUNDS.get(method.bound or "") if method is not None else None
    if check is None or getattr(inner, "variant", "basic") == "distributed":
        reason = f"no second computation is known for {inner.facts.method}"
        return LevelResult("V5", name, "skipped", reason)
    objective = objective_of(inner, seen)
    case = _Case(inner, objective, said, checks, fresh, committed)
    try:
        is_broken = bool(_find_broken(case, seen, check))
        gap = _feature_gap(objective, inner) if is_broken and hasattr(model, "head_") else 0.0
        if 0.0 < gap <= FEATURES:
            # Nothing but the features may be the cause.
            held = replace(objective, X=_held_features(inner))
            twin = replace(case, objective=held, checks=_Checks())
            is_broken = bool(_find_broken(twin, seen, check))
    except _TooLarge as large:
        return LevelResult("V5", name, "skipped", str(large), checks.found)
    if checks.broken and not is_broken:
        reason = (
            f"the features held differ by {gap:.2g} from those computed here, and with these the "
            "bound does not follow; audit it on a machine that computes the same features"
        )
        return LevelResult("V5", name, "skipped", reason, checks.found)
    if checks.broken:
        reason = f"the bound does not follow: {', '.join(checks.broken)}"
        return LevelResult("V5", name, "fail", reason, checks.found)
    reason = f"epsilon and delta follow from the remaining {len(rows)} rows and the settings"
    if inner.facts.method == "fisher":
        reason += "; how far curvature moved is the model's own word"
    return LevelResult("V5", name, "pass", reason, checks.found)


def _find_broken(case: _Case, rows: Rows, check: Callable[[_Case], None]) -> list[str]:
    """Return the conditions that do not hold; a method is asked only about its own problem."""
    _check_claim(case)
    _check_problem(case, rows)
    if not case.checks.broken:
        check(case)
    return case.checks.broken


def _held_features(head: Any) -> Floats:
    return np.asarray(head.rows_.compacted().X, np.float64)


def _feature_gap(objective: Objective, head: Any) -> float:
    """Return how far the features that a head holds are from those computed here.

    As a share of the largest one. Another processor may compute other last bits. The bound is
    checked with the features computed here: others are the operator's word, and a small change of
    many of them could hide a row. So they never make a level pass, and excuse only what follows
    with them.
    """
    held = _held_features(head)
    if held.shape != objective.X.shape:
        return np.inf
    size = max(float(np.abs(held).max(initial=0.0)), 1e-30)
    gap = float(np.abs(held - objective.X).max(initial=0.0)) / size
    return gap if gap >= 0.0 else np.inf


def _check_claim(case: _Case) -> None:
    """What the certificate says is not stronger than what the settings give."""
    model, said, checks = case.model, case.said, case.checks
    checks.holds("kind-is-the-models", said.get("kind") == model.guarantee_.kind == "certified")
    checks.holds("epsilon-is-in-range", 0.0 < float(model.epsilon) < math.inf)
    for name in ("epsilon", "delta"):
        stated = said.get(name)
        least = float(getattr(model, name)) * (1 - _CLOSE)
        checks.holds(f"{name}-is-not-understated", stated is not None and float(stated) >= least)
    checks.holds("noise-is-secret", model.noise_seed is None)
    kept = model._weights_before_noise()
    parameters = [model.model_.weights, *([] if kept is None else [kept])]
    checks.holds("parameters-are-finite", all(np.isfinite(part).all() for part in parameters))
    checks.holds("nothing-was-downgraded", vars(model).get("downgraded_") is None)


def _check_problem(case: _Case, rows: Rows) -> None:
    """The rows are the remaining ones, bounded as declared, and the problem strongly convex."""
    model, objective, checks = case.model, case.objective, case.checks
    checks.holds("strongly-convex", objective.ridge > 0)
    checks.holds("rows-are-bounded", is_bounded(objective, model.row_norm))
    if objective.classes is not None:
        same = np.array_equal(objective.classes, model.classes_)
        checks.holds("classes-are-those-of-the-rows", same)
    if getattr(model, "data_free", False):
        return
    held = model.rows_.compacted()
    same_people = np.array_equal(held.ids.to_array(), rows.ids.to_array())
    checks.holds("people-are-those-of-the-bundle", same_people)
    own, theirs = _dense(objective.X), _dense(held.X)
    same_rows = own.shape == theirs.shape and np.allclose(own, theirs, rtol=1e-6, atol=1e-9)
    checks.holds("rows-are-those-of-the-bundle", same_rows)


def _dense(X: Any) -> Floats:
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X, np.float64)


def _check_account(case: _Case, left: Interval, hides: float) -> None:
    """What is left is not more than stated, and not more than the noise hides.

    Rounding may excuse an account, which has its own share of it. It excuses no residual.
    """
    spent, budget = case.stated("spent"), case.stated("budget")
    case.checks.at_most("spent-is-not-understated", left.least, spent)
    case.checks.at_most("budget-is-what-noise-hides", budget, hides, slack=_TWO_DIGITS)
    case.checks.at_most("what-is-left-is-hidden", left.most, hides)
    case.checks.at_most("spent-is-within-budget", spent, budget)


def _check_noise(noise: Floats, scale: float, checks: _Checks, *, is_pure: bool) -> None:
    """The noise has the length that its law gives; for a Laplace law, the sum of sizes."""
    low, high = noise_bounds(noise.size, ball=is_pure)
    size = (float(np.abs(noise).sum()) if is_pure else length(noise)) / scale
    checks.at_most("noise-is-not-too-long", size, high)
    checks.at_most("noise-is-not-too-short", low, size)


def _check_influence(case: _Case) -> None:
    """|grad S(W)| on the remaining rows is hidden, and the release is W with noise on the grid.

    The first does not depend on any noise: whatever an operator says was drawn, parameters that
    still know of an erased row are not near the optimum of the others.
    """
    model, objective = case.model, case.objective
    W, sigma = np.asarray(model.weights_.open()), float(model.sigma)
    case.checks.holds("noise-is-on-the-output", model.mechanism == "output")
    _check_release(case, W, sigma, is_shaped=False)
    hidden = objective.ridge * _hidden_on_grid(sigma, model.epsilon, model.delta, W.size)
    left = objective.residual(W)
    _check_account(case, left, (1 - _SHARE_OF_FIT) * hidden)
    case.checks.at_most("account-is-not-understated", left.least, model.account_.spent)
    if case.is_fresh:
        stop = float(model.tol) * objective.n_rows
        stop = max(stop, 1e3 * objective.noise_floor(W))
        case.checks.at_most("training-arrived", left.least, stop)


def _check_release(case: _Case, W: Floats, sigma: float, *, is_shaped: bool) -> None:
    """The released parameters are W, rounded to the grid, and integers as the law draws them.

    The law of noise that the rows shape is looked at elsewhere.
    """
    checks, (step, scale) = case.checks, _grid(sigma)
    steps = np.asarray(case.model.model_.weights) / step
    checks.holds("release-is-on-the-grid", bool(np.all(steps == np.rint(steps))))
    limit = _MOST_STEPS * step
    noise = steps - np.rint(np.clip(W, -limit, limit) / step)
    if not is_shaped:
        _check_noise(noise, float(scale), checks, is_pure=float(case.model.delta) == 0.0)
    if case.committed is not None:
        content = noise.astype("<i8").tobytes()
        found = hashlib.sha256(bytes.fromhex(case.model.release_salt_) + content).hexdigest()
        checks.holds("noise-is-the-committed-one", found == case.committed)


def _grid(sigma: float) -> tuple[float, int]:
    """Return step and scale: 2**20 to 2**21 steps in sigma, the step a power of two."""
    step = 2.0 ** (math.floor(math.log2(sigma)) - 20)
    return step, math.ceil(sigma / step)


def _hidden_on_grid(sigma: float, epsilon: float, delta: float, size: int) -> float:
    """Return the distance that noise on the grid hides, for `size` parameters."""
    step, scale = _grid(sigma)
    if delta == 0.0:
        return max(step * (epsilon * scale - size) / math.sqrt(size), 0.0)
    gap = size / (20.0 * scale**2)
    claimed = min(epsilon, math.log(max(delta / (2 * gap) - 1.0, 1.0)))
    rest = delta - (1.0 + math.exp(claimed)) * gap
    # Without a charge: the discrete law is as concentrated as the continuous one.
    steep = -math.log(delta)
    by_zcdp = math.sqrt(2.0) * (math.sqrt(steep + epsilon) - math.sqrt(steep))
    shift = max(hidden_shift(claimed, rest) if rest > 0.0 else 0.0, by_zcdp)
    return max(step * (shift * scale - math.sqrt(size)), 0.0)


def _check_descent(case: _Case) -> None:
    """Neel et al. 2021: both worlds are within s of one optimum, and noise hides 2s."""
    model = case.model
    sigma, delta = float(model.sigma_), float(model.delta)
    half = model.stop == "theorem" and model.state == "published"
    theta = np.asarray(model.model_.weights)
    hides = _hidden_on_grid(sigma, model.epsilon, delta / 2 if half else delta, theta.size) / 2
    plan = plan_descent(model, model._build_problem(model._training_rows()))
    case.checks.holds("plan-is-that-of-the-settings", model.plan_ == plan)
    case.checks.holds("sigma-is-that-of-the-settings", sigma == choose_noise_scale(model, plan))
    if model.unperturbed_ is None:
        _check_around(case, theta, sigma, hides)
        case.checks.at_most("distance-is-hidden", float(model.distance_), hides)
        budget = case.stated("budget")
        case.checks.at_most("budget-is-what-noise-hides", budget, hides, slack=_TWO_DIGITS)
        return
    W = np.asarray(model.unperturbed_.open())
    _check_release(case, W, sigma, is_shaped=False)
    if model.stop == "theorem":
        case.checks.at_most("distance-is-hidden", float(model.plan_.distance), hides)
    _check_account(case, _distance(case, W), hides)


def _distance(case: _Case, W: Floats) -> Interval:
    """Return bounds of the distance to the optimum of the remaining rows."""
    objective, residual = case.objective, case.objective.residual(W)
    most = residual.most / objective.ridge
    if case.model.stop == "residual":
        return Interval(residual.least / objective.ridge, most)
    best = optimum(objective, W)
    away, error = length(W - best), objective.residual(best).most / objective.ridge
    return Interval(max(away - error, 0.0), min(away + error, most))


def _check_around(case: _Case, theta: Floats, sigma: float, distance: float) -> None:
    """What is published lies around the optimum of the remaining rows, as noise would put it."""
    gap, is_pure = theta - optimum(case.objective, theta), float(case.model.delta) == 0.0
    low, high = noise_bounds(theta.size, ball=is_pure)
    away = length(gap)
    if is_pure:  # The sum of p absolute values has a gamma law, too.
        away, distance = float(np.abs(gap).sum()), math.sqrt(theta.size) * distance
    case.checks.at_most("published-is-near-the-optimum", away, sigma * high + distance)
    case.checks.at_most("published-is-not-without-noise", sigma * low - distance, away)


def _check_fisher(case: _Case) -> None:
    """Golatkar et al. 2020, with covariances: shift and spread are hidden with (epsilon, delta)."""
    model, checks = case.model, case.checks
    epsilon, delta, sigma = float(model.epsilon), float(model.delta), float(model.sigma)
    close = model.account_.closeness
    found = mismatch_delta(epsilon, close.shift, close.spread, max(close.dimension, 1.0))
    # Each law differs from a normal one by `gap` in total variation.
    found += (1 + float(np.exp(min(epsilon, 700.0)))) * close.gap
    checks.at_most("closeness-is-hidden", found, delta, slack=_GRID)
    checks.at_most("budget-is-what-noise-hides", case.stated("budget"), 1.0)
    checks.at_most("spent-is-within-budget", case.stated("spent"), 1.0)
    checks.at_most("spent-is-not-understated", float(model.account_.used), case.stated("spent"))
    theta, furthest = np.asarray(model.model_.weights), hidden_shift(epsilon, delta)
    if model.covariance == "isotropic":
        _check_around(case, theta, sigma, sigma * furthest)
    else:
        _check_shaped(case, theta, furthest, close.spread)
    if model.optimum_ is not None:
        _check_sealed(case)
    if case.is_fresh:
        checks.holds("nothing-was-removed-since", model.account_.used == 0)


def _check_shaped(case: _Case, theta: Floats, furthest: float, spread: float) -> None:
    """As `_check_around`, in the metric of the noise: sigma^2 F^(-1/2), or with F's diagonal."""
    objective = case.objective
    low, high = noise_bounds(theta.size, ball=False)
    best = optimum(objective, theta)
    values, vectors = np.linalg.eigh(_fisher(case, best))
    gap = vectors.T @ (theta - best).ravel()
    away = length(np.maximum(values, 0.0) ** 0.25 * gap) / float(case.model.sigma)
    # Another Fisher matrix within e^(±2 spread) stretches lengths by e^(spread/2) at most.
    stretch = float(np.exp(0.5 * max(spread, _LEAST_SPREAD)))
    case.checks.at_most("published-is-near-the-optimum", away, high * stretch + furthest)
    case.checks.at_most("published-is-not-without-noise", low / stretch - furthest, away)


def _check_sealed(case: _Case) -> None:
    """The parameters before noise are as close to the optimum as the account says."""
    model, objective = case.model, case.objective
    W, stop = np.asarray(model.optimum_.open())[0], float(model.tol) * objective.n_rows
    _check_release(case, W, float(model.sigma), is_shaped=model.covariance == "fisher")
    residual, scale = objective.residual(W), 1.0
    if model.covariance != "isotropic":
        scale = float(np.linalg.eigvalsh(_fisher(case, W))[-1]) ** 0.25
    per_gradient = scale / objective.ridge / float(model.sigma)
    furthest = hidden_shift(float(model.epsilon), float(model.delta))
    # The stop rule is a setting: however large it is, noise must hide what is left.
    case.checks.at_most("what-is-left-is-hidden", per_gradient * residual.most, furthest)
    if not model.account_.used:
        case.checks.at_most("training-arrived", residual.least, stop)
        return
    true, shift = per_gradient * (residual.least + stop), float(model.account_.closeness.shift)
    case.checks.at_most("shift-is-not-understated", true, shift, slack=1e-3)


def _fisher(case: _Case, W: Floats) -> Floats:
    """Return what shapes the noise: F, or its diagonal where a block has many parameters."""
    if W.size > _LARGEST_HESSIAN:
        raise _TooLarge(f"{W.size} parameters are too many for a second computation")
    matrix: Floats = case.objective.hessian(W) / case.objective.n_rows
    block = W.size if case.model.multi_class == "softmax" else len(W)
    return matrix if block <= _LARGEST_BLOCK else np.diag(np.diag(matrix))


# By the names that `letheon.methods` gives them.
BOUNDS: dict[str, Callable[[_Case], None]] = {
    "influence": _check_influence,
    "descent": _check_descent,
    "fisher": _check_fisher,
}
