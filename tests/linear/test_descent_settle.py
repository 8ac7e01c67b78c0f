"""Descent-to-Delete: what files hold, how `settle` cleans them, and claims that stay lost."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon import DescentToDeleteClassifier, load, save
from letheon.exceptions import AssumptionError, GuaranteeWarning
from letheon.linear import _descent_steps
from letheon.linear._descent_steps import DescentOutcome, PartFit, PriorState, warm_start_at
from letheon.linear._descent_theory import build_geometry, natural_radius
from letheon.linear._problem import FitProblem, Logistic
from letheon.linear._solve import Solution, minimise
from letheon.state import encode
from tests.linear.rebuild import RebuildAttack

Floats = NDArray[np.float64]
GONE = 7
THEOREM: dict[str, Any] = {"stop": "theorem", "rows": "clip", "row_norm": 2.0, "l2": 0.1}
SECRET: dict[str, dict[str, Any]] = {
    "residual": {},
    "softmax": {"multi_class": "softmax"},
    "theorem": THEOREM,
    "weak": {**THEOREM, "variant": "regularized-weak", "iterations": 2},
    "parts": {"variant": "distributed", "n_copies": 2, "l2": 0.1},
}
EVERY: dict[str, dict[str, Any]] = {
    **SECRET,
    "no noise": {"sigma": 0.0},
    "no noise, published": {"sigma": 0.0, "state": "published"},
}


def make_rows(n: int = 200, p: int = 5) -> tuple[Floats, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, p))
    return X, (X[:, 0] + rng.normal(size=n) > 0).astype(int)


def forgotten(**settings: Any) -> tuple[DescentToDeleteClassifier, DescentToDeleteClassifier]:
    """Return a model that forgot one row, and one that never had it."""
    X, y = make_rows()
    settings = {"l2": 0.01, **settings}
    model = DescentToDeleteClassifier(**settings).fit(X, y)
    model.forget([GONE])
    rest = np.delete(np.arange(len(y)), GONE)
    return model, DescentToDeleteClassifier(**settings).fit(X[rest], y[rest], ids=rest)


def sealed(model: DescentToDeleteClassifier) -> Floats:
    assert model.unperturbed_ is not None
    return np.array(model.unperturbed_.open())


def error_of_the_attack(model: DescentToDeleteClassifier, path: Path) -> float:
    save(model, path)
    file = load(path)
    attack = RebuildAttack(file.rows_.X, file.rows_.y, file.l2)
    return attack.error(sealed(file)[:, 0], make_rows()[0][GONE])


def test_a_file_gives_the_last_row_away_until_it_is_settled(tmp_path: Path) -> None:
    model, _ = forgotten()
    assert error_of_the_attack(model, tmp_path / "before.letheon") < 0.1
    declared = " ".join(model.residual_state_)
    assert "a row that was removed alone can be computed; settle() prevents that" in declared
    model.settle()
    assert error_of_the_attack(model, tmp_path / "after.letheon") > 0.5


def differences(
    model: DescentToDeleteClassifier, fresh: DescentToDeleteClassifier, path: Path
) -> set[str]:
    """Return the attributes that differ in the files of two models."""
    known: list[dict[str, Any]] = []
    for each in (model, fresh):
        save(each, path)
        known.append(vars(load(path)))
    assert known[0].keys() == known[1].keys()
    return {name for name in known[0] if encode(known[0][name]) != encode(known[1][name])}


@pytest.mark.parametrize("name", EVERY)
def test_a_settled_file_is_one_that_fit_could_have_written(name: str, tmp_path: Path) -> None:
    model, fresh = forgotten(random_state=0, **EVERY[name])
    path = tmp_path / "model.letheon"
    before = differences(model, fresh, path)
    assert model.settle() is model
    after = differences(model, fresh, path)
    # Fresh noise, its salt and a fresh sample differ; nothing else does.
    drawn = {"parts": {"model_", "parts_", "distance_", "training_flops_"}}
    drawn |= {"no noise": set(), "no noise, published": set()}
    assert (
        after - {"release_salt_"}
        <= drawn.get(name, {"model_"})
        < before | {"model_", "training_flops_"}
    )
    assert model.guarantee_.kind == fresh.guarantee_.kind
    assert model.guarantee_.spent == fresh.guarantee_.spent or name == "parts"


def test_settling_draws_fresh_noise() -> None:
    model, _ = forgotten()
    before, W = model.coef_.copy(), sealed(model)
    model.settle()
    assert not np.array_equal(model.coef_, before)
    assert np.linalg.norm(sealed(model) - W) <= 2 * model.limit_


def test_parts_are_drawn_again() -> None:
    model, _ = forgotten(**SECRET["parts"])
    old = [parts.ranks for parts in model.parts_]
    model.settle()
    for before, now in zip(old, model.parts_, strict=True):
        assert before.shape == now.ranks.shape
        assert not np.array_equal(before, now.ranks)
        assert now.ranks.max() < 199
    assert model.n_changed_ == 0


@pytest.mark.parametrize("name", SECRET)
def test_a_settled_model_goes_on(name: str, tmp_path: Path) -> None:
    X, y = make_rows()
    model, _ = forgotten(**SECRET[name])
    model.settle()
    save(model, tmp_path / "model.letheon")
    for each in (model, load(tmp_path / "model.letheon")):
        assert each.forget([1, 2]).guarantee.kind == "certified"
        each.learn(X[:1], y[:1], ids=[500])
        assert each.guarantee_.kind == "certified"
        assert each.distance_ <= each.limit_


@pytest.mark.parametrize("name", ["residual", "parts"])
def test_old_seals_are_wiped_and_a_copy_keeps_its_own(name: str) -> None:
    model, _ = forgotten(**SECRET[name])
    twin = copy.copy(model)
    seals = [model.unperturbed_] if model.unperturbed_ else [p.weights for p in model.parts_]
    views = [seal.open() for seal in seals]
    model.settle()
    assert not any(view.any() for view in views)
    assert twin.forget([1]).guarantee.kind == "certified"


# What the published state keeps


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("more", [{}, THEOREM])
def test_a_published_state_tells_of_rows_that_left_by_their_number_only(
    more: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    """Two models that lost different rows; only what was released tells them apart."""
    X, y = make_rows()
    X[GONE] *= 50.0
    X[GONE + 1] = 0.0
    models = []
    for other in (GONE, GONE + 1):
        rows = np.setdiff1d(np.arange(len(y)), [GONE + 1 if other == GONE else GONE])
        table: Any = sp.csr_array(X[rows]) if kind == "csr" else X[rows]
        settings = {"l2": 0.01, "state": "published", "random_state": 0, **more}
        models.append(DescentToDeleteClassifier(**settings).fit(table, y[rows], ids=rows))
        models[-1].forget([other])
    path = tmp_path / "model.letheon"
    assert differences(models[0], models[1], path) == {"model_", "release_salt_"}
    declared = " ".join(models[0].residual_state_)
    assert "model_" in declared
    assert models[0].distance_ == models[0].limit_
    assert np.isnan(load(path).n_passes_)
    assert models[0].n_passes_ > 0
    before = models[0].digest()
    assert models[0].settle() is models[0]
    assert models[0].digest() == before


def test_published_claims_tell_nothing_of_requests() -> None:
    for more in ({}, {"state": "published"}, THEOREM):
        model, fresh = forgotten(**more)
        first, second = model.publish().to_dict(), fresh.publish().to_dict()
        assert first.pop("weights") != second.pop("weights")
        assert first == second


# Claims


@pytest.mark.parametrize("state", ["secret", "published"])
def test_a_claim_that_was_lost_stays_lost_until_training_arrives(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    def in_two_steps(problem: FitProblem, **settings: Any) -> Any:
        return minimise(problem, **{**settings, "max_iter": 2})

    X, y = make_rows()
    model = DescentToDeleteClassifier(l2=1e-3, state=state, if_unproved="downgrade")
    monkeypatch.setattr(_descent_steps, "minimise", in_two_steps)
    with pytest.warns(GuaranteeWarning, match="farther from the optimum"):
        model.fit(X, y)
    assert model.distance_ > model.limit_
    monkeypatch.undo()
    kinds = [model.guarantee_.kind, *(model.forget([k]).guarantee.kind for k in range(3))]
    assert model.distance_ <= model.limit_
    kinds.append(model.learn(X[:1], y[:1], ids=[0]).guarantee_.kind)
    assert set(kinds) == {"empirical"}
    kind = copy.copy(model).settle().guarantee_.kind
    assert kind == ("certified" if state == "secret" else "empirical")
    assert model.learn(X[:2], [2, 2], ids=[300, 301]).guarantee_.kind == "certified"
    assert model.fit(X, y).guarantee_.kind == "certified"


@pytest.mark.parametrize("is_learning", [False, True])
@pytest.mark.parametrize("more", [{}, {"state": "published"}, THEOREM])
def test_a_release_of_an_older_version_is_not_certified(
    more: dict[str, Any], is_learning: bool
) -> None:
    """Noise was added in floats, so the release does not lie on the grid."""
    model, _ = forgotten(**more)
    model.model_ = model.model_.with_weights(model.model_.weights + 1e-3 / 3)
    kinds = [model.guarantee_.kind]
    if is_learning:
        model.learn(make_rows()[0][:1], [1], ids=[9])
    else:
        model.forget([1])
    assert model.n_changed_ == 0, "it was retrained"
    assert [*kinds, model.guarantee_.kind] == ["empirical", "certified"]


def test_a_request_obeys_max_iter(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []

    def idle(problem: FitProblem, *, start: Floats, max_iter: int, **_: Any) -> Solution:
        limits.append(max_iter)
        return Solution(start, problem.gradient_at(start), 0.0)

    X, y = make_rows()
    model = DescentToDeleteClassifier(l2=0.01, max_iter=123).fit(X, y)
    before = model.digest()
    monkeypatch.setattr(_descent_steps, "_MOST_STEPS", 0)
    monkeypatch.setattr(_descent_steps, "minimise", idle)
    with pytest.raises(AssumptionError, match="increase max_iter, sigma or l2"):
        model.forget([1])
    assert limits == [123]
    assert model.digest() == before
    monkeypatch.setattr(_descent_steps, "minimise", minimise)
    assert model.forget([1]).guarantee.kind == "certified"


def test_who_must_arrive_says_so() -> None:
    for more, codes in (
        ({}, {"retraining-converges", "state-secret"}),
        ({"state": "published"}, {"retraining-converges"}),
        (THEOREM, {"rows-bounded", "state-secret"}),
    ):
        model, _ = forgotten(**more)
        named = set(model.guarantee_.assumptions)
        assert codes <= named
        assert ("retraining-converges" in named) == ("rows-bounded" not in named)


@pytest.mark.parametrize("state", ["secret", "published"])
def test_iterations_are_counted(state: str) -> None:
    _, model = forgotten(state=state)
    assert model.n_iter_ > 1
    model.n_iter_ = 0
    model.learn(make_rows()[0][:1], [2], ids=[300])
    assert model.n_iter_ > 1
    _, counted = forgotten(state=state, **THEOREM)
    assert counted.n_iter_ == counted.n_passes_ > 1


# Rounding, secrets


@pytest.mark.parametrize(("n", "d"), [(8, 785), (500, 4), (60, 60)])
def test_rounding_of_gradients_is_allowed_for(n: int, d: int) -> None:
    rng = np.random.default_rng(0)
    strong, loss = 0.01, Logistic(1)
    shape = build_geometry(loss, 1.0, strong, natural_radius(loss, strong), d)
    worst = 0.0
    for _ in range(20):
        X, y = rng.normal(size=(n, d)), rng.integers(0, 2, n)
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        W = rng.normal(size=(d, 1))
        W *= shape.radius / np.linalg.norm(W)
        exact, wide = X.astype(np.longdouble), W.astype(np.longdouble)
        slopes = 1 / (1 + np.exp(-exact @ wide)) - y[:, None]
        truth = (exact.T @ slopes) / n + np.longdouble(strong) * wide
        gradient = FitProblem(X, y, loss, n, strong).gradient_at(W) / n
        worst = max(worst, float(np.linalg.norm(gradient - truth)))
    assert worst / strong <= shape.bound_rounding(n)
    # Worse sums than these exist: every column counts as much as a row does.
    narrow = build_geometry(loss, 1.0, strong, shape.radius)
    assert shape.bound_rounding(n) >= narrow.bound_rounding(n + d - 1)


def test_what_is_on_the_way_shows_no_number() -> None:
    model, _ = forgotten()
    problem, W = model._build_problem(model._training_rows()), sealed(model)
    trail = warm_start_at(problem, W)
    shown = [
        PriorState(W, trail),
        DescentOutcome((W,), 0.25, 0.5),
        Solution(W, W, 0.5),
        PartFit(W, 0.25, 0.5),
        trail,
        problem,
    ]
    assert not any("." in repr(each) for each in shown)


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e9])
def test_a_distance_from_a_file_that_is_not_hidden_certifies_nothing(
    number: float, tmp_path: Path
) -> None:
    X, y = make_rows()
    model = DescentToDeleteClassifier(l2=0.01).fit(X, y)
    assert model.guarantee_.kind == "certified"
    model.distance_ = number
    save(model, tmp_path / "model.letheon")
    claim = load(tmp_path / "model.letheon").guarantee_
    assert (claim.kind, claim.epsilon, claim.spent) == ("empirical", None, None)
