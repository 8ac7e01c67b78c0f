"""The account against the truth: residuals in longer floats, on problems that break estimates."""

import math
import re
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest

from letheon import DescentToDeleteClassifier, InfluenceClassifier, InfluenceRegressor
from letheon.audit._objective import Objective
from letheon.exceptions import AssumptionError, EmptyModelError
from tests.linear.people import case_of

SHAPES = ("plain", "saturated", "collinear", "duplicates", "huge", "tiny", "one-column")
LOSSES = ("logistic", "ovr", "softmax", "squared", "huber")


class HardRequests(NamedTuple):
    """A problem, and who leaves, request after request."""

    model: Any
    X: Any
    y: Any
    requests: list[Any]
    kind: str


def nasty(seed: int) -> HardRequests:
    """Few rows of strange sizes, hardly regularised, with little or much noise."""
    rng = np.random.default_rng(seed)
    kind, shape = str(rng.choice(LOSSES)), str(rng.choice(SHAPES))
    n, d = int(rng.integers(2, 51)), 1 if shape == "one-column" else int(rng.integers(1, 7))
    X = rng.normal(size=(n, d))
    if shape == "collinear":
        X[:, -1] = X[:, 0] * (1 + 1e-9 * rng.normal(size=n))
    if shape == "duplicates":
        X = X[rng.integers(0, max(n // 4, 1), n)]
    if shape in ("saturated", "huge", "tiny"):
        X *= {"saturated": 30.0, "huge": 10.0 ** rng.uniform(2, 7), "tiny": 1e-6}[shape]
    y = _target(kind, X, rng)
    settings: dict[str, Any] = {
        "l2": 10.0 ** rng.uniform(-8, 1),
        "reg": str(rng.choice(["per_sample", "total"])),
        "sigma": 10.0 ** rng.uniform(-5, 2),
        "delta": float(rng.choice([0.0, 1e-4, 0.01])),
        "fit_intercept": bool(rng.integers(2)),
        "bound": str(rng.choice(["data-dependent", "worst-case"])),
        "if_unproved": "downgrade",
        "max_iter": int(rng.choice([3, 1000])),
        "random_state": 0,
    }
    requests = np.array_split(rng.permutation(n)[: n - 2], max((n - 2) // 3, 1))
    if kind in ("squared", "huber"):
        loss = "squared" if kind == "squared" else "pseudo_huber"
        return HardRequests(InfluenceRegressor(loss=loss, **settings), X, y, requests, kind)
    settings["multi_class"] = "softmax" if kind == "softmax" else "ovr"
    return HardRequests(InfluenceClassifier(**settings), X, y, requests, kind)


def _target(kind: str, X: Any, rng: np.random.Generator) -> Any:
    scores = X @ rng.normal(size=(X.shape[1], 3)) * rng.choice([0.1, 1.0, 100.0])
    if kind in ("squared", "huber"):
        return scores[:, 0] + rng.normal(size=len(X))
    if kind == "logistic":
        y = (scores[:, 0] + rng.logistic(size=len(X)) > 0).astype(np.int64)
    else:
        y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    y[:2] = [0, 1]
    return y


def true_residual(model: Any, kind: str, X: Any, y: Any) -> float:
    """Lower bound of the gradient at the parameters without noise, in long floats."""
    case = case_of(model, kind, X, y)
    labels = getattr(model, "classes_", None)
    if labels is None:
        target = np.asarray(y, np.float64)[:, None]
    elif len(labels) == 2:
        target = (y == labels[1]).astype(np.float64)[:, None]
    else:
        target = (y[:, None] == labels[None, :]).astype(np.float64)
    loss = {"ovr": "logistic", "softmax": "softmax" if target.shape[1] > 1 else "logistic"}
    scale = float(getattr(model, "huber_scale", 1.0))
    objective = Objective(case.X, target, loss.get(kind, kind), scale, case.ridge, None)
    return objective.bound_residual(model.weights_.open()).least


def check(problem: HardRequests) -> int:
    """Hold the account against the truth after every request; return how many were served."""
    model, kept, n_served = problem.model, np.arange(len(problem.y)), 0
    try:
        model.fit(problem.X, problem.y)
    except np.linalg.LinAlgError as error:
        if "use a larger l2" not in str(error):
            raise
        return 0
    for leaving in [np.array([], np.int64), *problem.requests]:
        try:
            model.forget(leaving)
        except (EmptyModelError, np.linalg.LinAlgError) as error:
            if not re.search("keep rows of another class|use a larger l2", str(error)):
                raise
            break
        kept = np.setdiff1d(kept, leaving)
        truth = true_residual(model, problem.kind, problem.X[kept], problem.y[kept])
        account, claim = model.account_, model.guarantee_
        assert truth <= account.spent
        assert not math.isnan(account.spent + account.limit + model.epsilon_)
        if claim.kind == "certified":
            assert account.spent <= account.limit
            assert claim.spent is not None
            assert truth <= claim.spent
        n_served += 1
    return n_served


def check_many(seeds: range) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sum(check(nasty(seed)) for seed in seeds)


def test_the_account_is_never_below_the_truth() -> None:
    assert check_many(range(12)) > 60


@pytest.mark.soak
@pytest.mark.parametrize("lot", range(20))
def test_the_account_is_never_below_the_truth_at_length(lot: int) -> None:
    assert check_many(range(10_000 + 900 * lot, 10_000 + 900 * (lot + 1))) > 5_000


@pytest.mark.parametrize("method", [InfluenceClassifier, DescentToDeleteClassifier])
def test_gradients_whose_squares_underflow_are_not_certified_as_zero(method: Any) -> None:
    """Noise of 1e-40 hides a gradient of 1e-193 here, and training leaves one of 1e-167."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(51, 1)) * 1e-163, np.arange(51) % 2
    model = method(l2=1e-154, sigma=1e-40, fit_intercept=False)
    with pytest.raises(AssumptionError, match=r"that the noise hides"):
        model.fit(X, y, ids=np.arange(51))


def test_the_last_bits_of_parameters_are_counted_at_every_removal() -> None:
    """A row of zeros moves no parameter: only rounding is left to count."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), np.arange(40) % 2
    X[7] = 0.0
    model = InfluenceClassifier(l2=1.0, reg="total", fit_intercept=False).fit(X, y)
    before = model.account_
    model.forget([7])
    assert model.account_.spent > before.spent
    assert model.account_.exact == before.exact
