"""V5: bounds are recomputed on their own, and every planted lie is found."""

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp  # type: ignore[import-untyped]

from letheon import (
    DescentToDeleteClassifier,
    FisherClassifier,
    ForgetPipeline,
    InfluenceClassifier,
    InfluenceRegressor,
    NaiveUnlearner,
)
from letheon.audit import _bound, bound
from letheon.audit._objective import (
    Objective,
    build_objective,
    find_optimum,
    largest_hidden_shift,
    mismatch_delta,
    noise_bounds,
    shift_delta,
)
from letheon.data import Rows
from letheon.linear import _calibrate
from letheon.linear._calibrate import ReleaseGrid
from letheon.noise import NoiseSource, SecretArray
from tests.audit.people import held, without

CLIPPED: dict[str, Any] = {"rows": "clip", "row_norm": 1.5}
MODELS: dict[str, Any] = {
    "influence": lambda: InfluenceClassifier(l2=0.01),
    "influence-pure": lambda: InfluenceClassifier(l2=0.01, delta=0.0),
    "influence-softmax": lambda: InfluenceClassifier(l2=0.01, multi_class="softmax", **CLIPPED),
    "influence-huber": lambda: InfluenceRegressor(l2=0.01, loss="pseudo_huber"),
    "fisher": lambda: FisherClassifier(l2=0.01),
    "fisher-secret": lambda: FisherClassifier(l2=0.01, state="secret"),
    "fisher-isotropic": lambda: FisherClassifier(l2=0.01, covariance="isotropic"),
    "descent": lambda: DescentToDeleteClassifier(l2=0.01),
    "descent-pure": lambda: DescentToDeleteClassifier(l2=0.01, delta=0.0),
    "descent-published": lambda: DescentToDeleteClassifier(l2=0.01, state="published"),
    "descent-theorem": lambda: DescentToDeleteClassifier(l2=0.1, stop="theorem", **CLIPPED),
}
GONE = [1007, 1014, 1021]


def target_of(kind: str, X: Any) -> Any:
    if kind.endswith("huber"):
        return X @ np.array([1.0, -1.0, 0.5, 0.0])
    return np.digitize(X[:, 0], [-0.5, 0.5]) if "softmax" in kind else (X[:, 0] > 0).astype(int)


def forgotten(kind: str) -> tuple[Any, Rows]:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 4))
    y, ids = target_of(kind, X + 0.3 * rng.normal(size=X.shape)), np.arange(200) + 1000
    model = MODELS[kind]().fit(X, y, ids=ids)
    for person in GONE:
        model.forget([person])
    return model, without(held(X, y, ids), GONE)


def claim_of(model: Any, **changes: Any) -> dict[str, Any]:
    own = model.guarantee_
    numbers = {"spent": str(own.spent), "budget": str(own.budget)}
    numbers |= {name: changes.pop(name) for name in ("spent", "budget") if name in changes}
    said = {"kind": "certified", "epsilon": str(own.epsilon), "delta": str(own.delta)}
    return {**said, **changes, "accounting": numbers}


@pytest.mark.parametrize("kind", MODELS)
def test_honest_models_pass(kind: str) -> None:
    model, rows = forgotten(kind)
    assert bound(model, rows).verdict == "pass"


@pytest.mark.parametrize("kind", MODELS)
def test_an_understated_epsilon_fails(kind: str) -> None:
    model, rows = forgotten(kind)
    finding = bound(model, rows, claim=claim_of(model, epsilon="0.01"))
    assert (finding.verdict, "epsilon is not understated" in finding.reason) == ("fail", True)


@pytest.mark.parametrize("kind", ["influence", "influence-softmax", "descent", "fisher"])
def test_an_understated_account_fails(kind: str) -> None:
    model, rows = forgotten(kind)
    finding = bound(model, rows, claim=claim_of(model, spent="0"))
    assert (finding.verdict, "spent is not understated" in finding.reason) == ("fail", True)


BUDGETED = ["influence", "influence-pure", "descent", "descent-pure", "descent-published"]


@pytest.mark.parametrize("kind", BUDGETED)
def test_an_overstated_budget_fails(kind: str) -> None:
    model, rows = forgotten(kind)
    wrong = str(2 * model.guarantee_.budget)
    finding = bound(model, rows, claim=claim_of(model, budget=wrong))
    assert (finding.verdict, "budget is what noise hides" in finding.reason) == ("fail", True)


def test_an_eighth_of_what_noise_hides_is_for_a_fresh_fit() -> None:
    model, rows = forgotten("influence")
    settings = model.sigma, model.epsilon, model.delta, model.weights_.size
    hides = build_objective(model, rows).ridge * _bound._compute_hidden(*settings)
    finding = bound(model, rows).details["what-is-left-is-hidden"]
    assert finding["limit"] == f"{0.875 * hides:.4g}"


def test_a_number_that_is_none_holds_nothing() -> None:
    checks = _bound._BoundConditions()
    for number, (value, limit) in enumerate([(np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0)]):
        checks.limit(f"check-{number}", value, limit)
    assert len(checks.violations) == 3


def moved(model: Any, size: float) -> Any:
    twin = copy.deepcopy(model)
    step = np.zeros_like(twin.model_.weights)
    step[0, 0] = size
    twin.model_ = replace(twin.model_, weights=twin.model_.weights + step)
    return twin


@pytest.mark.parametrize("kind", MODELS)
def test_moved_parameters_fail(kind: str) -> None:
    model, rows = forgotten(kind)
    assert bound(moved(model, 5.0), rows).verdict == "fail"


def sealed(model: Any) -> Any:
    """The parameters before noise."""
    return np.array(model._weights_before_noise())


def with_weights(model: Any, weights: Any) -> Any:
    """A model with these parameters under its seal, and the release that it had."""
    twin = copy.deepcopy(model)
    if hasattr(model, "weights_"):
        twin.weights_ = SecretArray(np.array(weights))
    elif hasattr(model, "unperturbed_"):
        twin.unperturbed_ = SecretArray(np.array(weights))
    else:
        twin.optimum_ = SecretArray(np.stack([weights, np.zeros_like(weights)]))
    return twin


def test_noise_chosen_to_hide_a_move_fails() -> None:
    """Row 5 of the audit: parameters of all rows, with noise that makes up for them."""
    model, rows = forgotten("influence")
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 4))
    y = target_of("influence", X + 0.3 * rng.normal(size=X.shape))
    all_rows = MODELS["influence"]().fit(X, y, ids=np.arange(200) + 1000)
    finding = bound(with_weights(model, all_rows.weights_.open()), rows)
    assert (finding.verdict, "what is left is hidden" in finding.reason) == ("fail", True)


@pytest.mark.parametrize("kind", ["influence", "influence-pure", "influence-softmax"])
def test_no_noise_at_all_fails(kind: str) -> None:
    model, rows = forgotten(kind)
    released, weights = model.model_.weights, model.weights_.open()
    # Whole steps, so that it looks as a release does.
    step = _bound._compute_grid(model.sigma)[0]
    model.model_ = replace(model.model_, weights=np.rint(weights / step) * step)
    finding = bound(model, rows)
    assert (finding.verdict, "noise is not too short" in finding.reason) == ("fail", True)
    model.model_ = replace(model.model_, weights=released + 60 * model.sigma)
    assert "noise is not too long" in bound(model, rows).reason


def test_a_release_beside_the_grid_fails() -> None:
    model, rows = forgotten("influence")
    off = _bound._compute_grid(model.sigma)[0] / 4
    finding = bound(moved(model, off), rows)
    assert (finding.verdict, "release is on the grid" in finding.reason) == ("fail", True)


def test_noise_that_was_not_committed_to_fails() -> None:
    model, rows = forgotten("influence")
    committed = model.noise_commitment_
    assert bound(model, rows, committed=committed).verdict == "pass"
    step = _bound._compute_grid(model.sigma)[0]
    finding = bound(moved(model, step), rows, committed=committed)
    assert (finding.verdict, finding.reason.endswith('"noise is the committed one"')) == (
        "fail",
        True,
    )


def of_all_rows(model: Any) -> Any:
    """Return the parameters of a fit on all rows, including removed ones."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 4))
    y = target_of("influence", X + 0.3 * rng.normal(size=X.shape))
    return sealed(type(model)(**model.get_params()).fit(X, y, ids=np.arange(200) + 1000))


def release(model: Any, weights: Any) -> Any:
    """The model with these parameters, and a release of them by the book."""
    twin = with_weights(model, weights)
    released = twin._release_grid().release(np.array(weights), NoiseSource(None))
    twin.model_ = replace(twin.model_, weights=released)
    return twin


def keep_everything(model: Any) -> Any:
    """Nothing was forgotten, and the release is by the book."""
    return release(model, of_all_rows(model))


def lie_about_the_account(model: Any) -> Any:
    twin = keep_everything(model)
    if hasattr(twin, "distance_"):
        twin.distance_ = 0.0
    else:
        twin.account_ = replace(twin.account_, **{LOW[type(twin.account_).__name__]: 1e-6})
    return twin


def choose_the_noise(model: Any) -> Any:
    """Row 5 of the audit, as it was: noise that is minus the gradient."""
    twin = lie_about_the_account(model)
    twin.noise_ = SecretArray(-twin._build_problem(twin._training_rows()).gradient_at(sealed(twin)))
    return twin


def be_data_free(model: Any) -> Any:
    """Whose rows cannot be compared."""
    twin = lie_about_the_account(model)
    twin.data_free = True
    twin.parameters_ = twin._digest_parameters()
    return twin


def fill(value: float) -> Any:
    def cheat(model: Any) -> Any:
        return with_weights(model, np.full(sealed(model).shape, value))

    cheat.__name__ = f"fill_with_{value}"
    return cheat


def release_the_seal(model: Any) -> Any:
    twin = copy.deepcopy(model)
    twin.model_ = replace(twin.model_, weights=sealed(model))
    return twin


def shift_the_release(model: Any) -> Any:
    """Far beyond what noise does."""
    return moved(model, 60 * model._release_grid().sigma)


def keep_half(model: Any) -> Any:
    """Half of the way to the parameters of those who stay."""
    return release(model, (of_all_rows(model) + sealed(model)) / 2)


def keep_one_parameter(model: Any) -> Any:
    weights = sealed(model)
    weights[0] = of_all_rows(model)[0]
    return release(model, weights)


LOW = {"Account": "spent", "FisherAccount": "used"}
CHEATS = [
    keep_everything,
    lie_about_the_account,
    choose_the_noise,
    be_data_free,
    fill(0.0),
    fill(float("nan")),
    fill(float("inf")),
    release_the_seal,
    shift_the_release,
    keep_half,
    keep_one_parameter,
]


@pytest.mark.parametrize("kind", ["influence", "fisher-secret", "descent"])
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
def test_an_operator_who_chooses_every_number_does_not_pass(cheat: Any, kind: str) -> None:
    model, rows = forgotten(kind)
    twin, limit = cheat(model), model.guarantee_.budget
    for spent in (0.0, 1e-6, limit, 1e9, float("nan")):
        claim = claim_of(model, spent=str(spent), budget=str(max(limit, spent)))
        assert bound(twin, rows, claim=claim).verdict != "pass"


LONG: dict[str, Any] = {
    "weak-regulariser": lambda: InfluenceClassifier(l2=1e-18, sigma=1e9),
    "long-rows": lambda: InfluenceClassifier(sigma=1.0, rows="normalize", row_norm=1e8),
    "descent": lambda: DescentToDeleteClassifier(sigma=1.0, rows="normalize", row_norm=1e8),
}


@pytest.mark.parametrize("kind", LONG)
def test_parameters_whose_rounding_hides_every_gradient_fail(kind: str) -> None:
    """Those of all rows, as long as the grid permits: predictions are nearly the same."""
    honest, rows = forgotten("influence")
    model = LONG[kind]().fit(rows.X, rows.y, ids=rows.ids.to_array())
    assert bound(model, rows).verdict == "pass"
    weights = of_all_rows(honest)
    weights *= 2.0**50 * model._release_grid().step / np.abs(weights).max()
    finding = bound(release(model, weights), rows)
    assert (finding.verdict, "what is left is hidden" in finding.reason) == ("fail", True)


def test_a_stop_rule_that_permits_everything_does_not_help() -> None:
    model, rows = forgotten("fisher-secret")
    model.account_ = replace(model.account_, used=0.0)
    model.tol, model.parameters_ = 1e9, ""
    model.parameters_ = model._digest_parameters()
    weights = sealed(model)
    assert bound(release_shaped(model, weights), rows).verdict == "pass"
    finding = bound(release_shaped(model, weights + 0.02), rows)
    assert finding.reason.endswith(': "what is left is hidden"')


def release_shaped(model: Any, weights: Any) -> Any:
    """The model with these parameters, and the noise that it had."""
    twin = with_weights(model, weights)
    step = model._release_grid().step
    change = np.rint((weights - sealed(model)) / step) * step
    twin.model_ = replace(twin.model_, weights=model.model_.weights + change)
    return twin


@pytest.mark.parametrize("name", ["sigma_", "plan_"])
def test_noise_and_plan_of_descent_are_those_of_the_settings(name: str) -> None:
    model, rows = forgotten("descent-theorem")
    if name == "sigma_":
        model.sigma_ /= 2.0  # its releases are on that grid, too
    else:
        strong = replace(model.plan_.geometry, strong=0.2)
        model.plan_ = replace(model.plan_, geometry=strong)
    finding = bound(model, rows, claim=claim_of(model))
    assert (finding.verdict, f"{name[:-1]} is that of the settings" in finding.reason) == (
        "fail",
        True,
    )


@pytest.mark.parametrize("state", ["secret", "published"])
def test_laplace_noise_hides_a_distance_in_each_coordinate(state: str) -> None:
    X = np.random.default_rng(3).normal(size=(200, 30))
    ids = np.arange(200)
    model = DescentToDeleteClassifier(delta=0.0, state=state).fit(X, X[:, 0] > 0, ids=ids)
    rows = held(X, X[:, 0] > 0, ids)
    assert bound(model, rows).verdict == "pass"
    wrong = str(2 * model.limit_)  # below sigma epsilon / 2, the one of a ball
    finding = bound(model, rows, claim=claim_of(model, budget=wrong))
    assert (finding.verdict, "budget is what noise hides" in finding.reason) == ("fail", True)


def claim_objective_noise(model: Any) -> Any:
    twin = choose_the_noise(model)
    twin.mechanism, twin.parameters_ = "objective", ""
    twin.parameters_ = twin._digest_parameters()
    return twin


def swell(model: Any) -> Any:
    """An account that allows everything."""
    twin = keep_everything(model)
    twin.account_ = replace(twin.account_, limit=1e9, spent=1.0)
    return twin


@pytest.mark.parametrize("cheat", [claim_objective_noise, swell])
def test_other_settings_and_limits_help_no_operator(cheat: Any) -> None:
    model, rows = forgotten("influence")
    twin = cheat(model)
    assert bound(twin, rows, claim=claim_of(model, spent="1", budget="1e9")).verdict != "pass"


@given(st.floats(1e-8, 1e3), st.floats(0.05, 20.0), st.floats(1e-9, 0.3), st.integers(1, 10_000))
def test_both_ways_to_compute_what_a_grid_hides_agree(
    sigma: float, epsilon: float, delta: float, size: int
) -> None:
    grid = ReleaseGrid.of_sigma(sigma)
    assert _bound._compute_grid(sigma) == (grid.step, grid.scale)
    for least in (delta, 0.0):
        second = _bound._compute_hidden(sigma, epsilon, least, size)
        assert second == pytest.approx(grid.max_hidden_distance(epsilon, least, size), rel=1e-6)


def test_an_epsilon_that_claims_nothing_fails() -> None:
    """A delta of 1 or more is no guarantee to begin with: it raises where it is asked for."""
    model, rows = forgotten("influence")
    twin = copy.copy(model)
    twin.epsilon = math.inf
    twin.parameters_ = twin._digest_parameters()
    finding = bound(twin, rows, claim=claim_of(model))
    assert (finding.verdict, "epsilon is in range" in finding.reason) == ("fail", True)


def test_an_account_that_was_lowered_fails() -> None:
    model, rows = forgotten("influence")
    model.account_ = replace(model.account_, spent=0.0)
    finding = bound(model, rows, claim=claim_of(model, spent=str(model.account_.limit)))
    assert (finding.verdict, "account is not understated" in finding.reason) == ("fail", True)


@pytest.mark.parametrize("kind", ["influence", "fisher", "descent"])
def test_a_row_that_was_kept_fails(kind: str) -> None:
    model, rows = forgotten(kind)
    fewer = rows.take(np.arange(len(rows) - 1))
    finding = bound(model, fewer)
    assert (finding.verdict, "people are those of the bundle" in finding.reason) == ("fail", True)


def test_rows_longer_than_declared_fail() -> None:
    model, rows = forgotten("influence-softmax")
    model.rows, model.parameters_ = "refuse", ""
    model.parameters_ = model._digest_parameters()
    finding = bound(model, rows)
    assert (finding.verdict, "rows are bounded" in finding.reason) == ("fail", True)


@pytest.mark.parametrize("kind", ["influence", "fisher"])
def test_a_fresh_fit_is_told_from_a_removal(kind: str) -> None:
    model, rows = forgotten(kind)
    assert bound(model, rows, fresh=True).verdict == "fail"
    model.fit(rows.X, rows.y, ids=rows.ids.to_array())
    assert bound(model, rows, fresh=True).verdict == "pass"


def test_too_many_parameters_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bound, "_LARGEST_HESSIAN", 2)
    model, rows = forgotten("fisher")
    finding = bound(model, rows)
    assert finding.verdict == "skipped"
    assert "too many" in finding.reason


def test_exact_models_have_no_bound_to_look_at() -> None:
    from sklearn.linear_model import LogisticRegression

    X = np.random.default_rng(0).normal(size=(40, 2))
    model = NaiveUnlearner(LogisticRegression()).fit(X, X[:, 0] > 0)
    assert bound(model, held(X, X[:, 0] > 0, None)).verdict == "skipped"


def test_the_last_step_of_a_pipeline_is_looked_at() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = (X[:, 0] > 0).astype(int)
    model = ForgetPipeline([("model", InfluenceClassifier(l2=0.05))]).fit(X, y)
    model.forget([5])
    assert bound(model, without(held(X, y, None), [5])).verdict == "pass"


@given(st.floats(0.01, 10.0), st.floats(1e-12, 0.4))
def test_both_ways_to_compute_a_hidden_shift_agree(epsilon: float, delta: float) -> None:
    assert largest_hidden_shift(epsilon, delta) == pytest.approx(
        _calibrate.gaussian_mu(epsilon, delta), rel=1e-6
    )


def test_lengths_of_noise_are_quantiles() -> None:
    from scipy.stats import chi, gamma

    low, high = noise_bounds(12, ball=False)
    assert (chi.cdf(low, 12), chi.sf(high, 12)) == pytest.approx((1e-9, 1e-9), rel=1e-6)
    low, high = noise_bounds(12, ball=True)
    assert (gamma.cdf(low, 12), gamma.sf(high, 12)) == pytest.approx((1e-9, 1e-9), rel=1e-6)


@given(st.floats(0.05, 4.0), st.floats(0.05, 2.0))
def test_the_curve_of_a_shift_is_an_integral(epsilon: float, mu: float) -> None:
    """Delta is the mass that one law has beyond e^epsilon times the other."""
    x = np.linspace(-12.0, 14.0, 200_001)
    near, far = np.exp(-(x**2) / 2), np.exp(-((x - mu) ** 2) / 2)
    area = np.maximum(far - np.exp(epsilon) * near, 0.0).sum() * (x[1] - x[0]) / np.sqrt(2 * np.pi)
    assert shift_delta(epsilon, mu) == pytest.approx(area, rel=1e-3, abs=1e-9)


@given(st.floats(0.3, 2.0), st.floats(0.0, 0.5), st.floats(0.001, 0.1), st.integers(1, 30))
def test_unequal_covariances_are_bounded_from_above(
    epsilon: float, shift: float, spread: float, dimension: int
) -> None:
    second = mismatch_delta(epsilon, shift, spread, dimension)
    first = _calibrate.mismatch_delta(epsilon, shift, spread, dimension)
    assert second >= 0.98 * shift_delta(epsilon, shift)
    assert second <= 1.02 * first + 1e-12


def test_the_optimum_is_that_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    model, rows = forgotten("influence")
    objective = build_objective(model, rows)
    W = find_optimum(objective, model.model_.weights)
    plain = LogisticRegression(C=1 / objective.ridge, fit_intercept=False, tol=1e-12, max_iter=1000)
    plain.fit(objective.X, objective.Y[:, 0])
    np.testing.assert_allclose(W[:, 0], plain.coef_[0], atol=1e-6)


LOSSES = ["logistic", "softmax", "squared", "huber"]


@given(st.sampled_from(LOSSES), st.integers(0, 2**32 - 1), st.floats(0.0, 6.0), st.floats(-6, 1))
def test_a_residual_is_bounded_in_higher_precision(
    loss: str, seed: int, spread: float, log_ridge: float
) -> None:
    rng = np.random.default_rng(seed)
    n, d, K = rng.integers(2, 9), rng.integers(1, 5), 3 if loss == "softmax" else 1
    X = rng.normal(size=(n, d)) * np.exp(spread * rng.normal(size=(n, 1)))
    Y: Any = np.eye(3)[rng.integers(0, 3, n)] if K == 3 else rng.integers(0, 2, (n, 1)) * 1.0
    W = rng.normal(size=(d, K)) * np.exp(spread * rng.normal())
    objective = Objective(X, Y, loss, 0.7, 10.0**log_ridge, None)
    with mp.workdps(60):
        exact = _residual(objective)
        truth = mp.sqrt(mp.fsum(entry**2 for row in exact(W) for entry in row))
        finding = objective.bound_residual(W)
        assert finding.least <= truth <= finding.most
        scale = mp.mpf(10) ** -16 * n * (np.abs(X).max() + 1) ** 2 * (np.abs(W).max() + 1)
        assert finding.least >= truth * (1 - mp.mpf(10) ** -15) - scale
        assert finding.most <= truth * (1 + mp.mpf(10) ** -15) + scale


def _residual(objective: Objective) -> Any:
    """The gradient by sums of long numbers, one entry at a time."""
    X, Y = [
        [[mp.mpf(float(v)) for v in row] for row in part] for part in (objective.X, objective.Y)
    ]

    def slope(scores: Any, target: Any) -> Any:
        if objective.loss == "softmax":
            total = mp.fsum(mp.exp(score) for score in scores)
            return [mp.exp(s) / total - t for s, t in zip(scores, target, strict=True)]
        gap = scores[0] - target[0]
        if objective.loss == "logistic":
            return [1 / (1 + mp.exp(-scores[0])) - target[0]]
        if objective.loss == "squared":
            return [gap]
        return [gap / mp.sqrt(1 + (gap / mp.mpf(objective.scale)) ** 2)]

    def gradient(W: Any) -> Any:
        w = [[mp.mpf(float(v)) for v in row] for row in W]
        finding = [[mp.mpf(objective.ridge) * v for v in row] for row in w]
        for row, target in zip(X, Y, strict=True):
            scores = [
                mp.fsum(a * b[k] for a, b in zip(row, w, strict=True)) for k in range(len(w[0]))
            ]
            slopes = slope(scores, target)
            for j, value in enumerate(row):
                for k, each in enumerate(slopes):
                    finding[j][k] += value * each
        return finding

    return gradient
