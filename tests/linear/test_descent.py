"""DescentToDeleteClassifier: near the optimum after any request; what it keeps, costs and says."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.utils.estimator_checks import parametrize_with_checks

from letheon import checks, persist
from letheon.exceptions import (
    AssumptionError,
    EmptyModelError,
    GuaranteeWarning,
    IdsTypeError,
    UnknownIdError,
)
from letheon.linear import _descent_steps
from letheon.linear._curvature import Curvature
from letheon.linear._descent import DescentToDeleteClassifier
from letheon.linear._descent_steps import LowRankUpdate
from letheon.linear._problem import FitProblem, hessian_roots
from letheon.linear._solve import minimise_by_newton
from letheon.noise import SecretArray
from tests.sharded.people import examples

Floats = NDArray[np.float64]

THEOREM: dict[str, Any] = {
    "stop": "theorem",
    "rows": "clip",
    "row_norm": 2.0,
    "l2": 0.1,
    "iterations": 40,
}
RESIDUAL: dict[str, Any] = {"l2": 0.05}
VARIANTS: dict[str, dict[str, Any]] = {
    "secret": RESIDUAL,
    "published": {**RESIDUAL, "state": "published"},
    "pure": {**RESIDUAL, "delta": 0.0},
    "total": {"reg": "total", "l2": 3.0},
    "softmax": {**RESIDUAL, "multi_class": "softmax"},
    "theorem": THEOREM,
    "theorem-published": {**THEOREM, "state": "published"},
    "strong": {**THEOREM, "variant": "regularized-strong"},
    "weak": {**THEOREM, "variant": "regularized-weak", "iterations": 2},
    "parts": {**RESIDUAL, "variant": "distributed", "n_copies": 2},
    "parts-theorem": {**THEOREM, "variant": "distributed", "iterations": 1, "xi": 1.2},
}
ONE_MODEL = [name for name in VARIANTS if not name.startswith("parts")]


def make_rows(n: int = 60, *, d: int = 3, n_classes: int = 3, seed: int = 0) -> tuple[Floats, Any]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    X = rng.normal(size=(n, d))
    X[np.arange(n), y % d] += 1.0
    return X, y


def make_model(name: str, **changes: Any) -> DescentToDeleteClassifier:
    return DescentToDeleteClassifier(**{**VARIANTS[name], **changes})


def problem_of(model: DescentToDeleteClassifier) -> FitProblem:
    problem = model._build_problem(model._training_rows())
    l2 = problem.l2 if model.plan_ is None else model.plan_.geometry.strong
    rows = model.rows_.compact_copy()
    return FitProblem(rows.X, rows.y, problem.loss, len(rows), l2, problem.reg)


def optimum_of(model: DescentToDeleteClassifier) -> Floats:
    problem = problem_of(model)
    return minimise_by_newton(problem, np.zeros(problem.shape), 1e-11 * problem.n_remaining, 200).W


def distance_to_optimum(model: DescentToDeleteClassifier) -> float:
    assert model.unperturbed_ is not None
    return float(np.linalg.norm(model.unperturbed_.open() - optimum_of(model)))


def n_secrets(model: DescentToDeleteClassifier) -> int:
    return sum(isinstance(value, SecretArray) for value in vars(model).values())


Requests = st.lists(st.tuples(st.booleans(), st.integers(1, 4)), min_size=1, max_size=6)


@pytest.mark.parametrize("name", [name for name in ONE_MODEL if "published" not in name])
@examples(10)
@given(requests=Requests, seed=st.integers(0, 99))
def test_secret_state_is_as_near_to_the_optimum_as_claimed(
    name: str, requests: list[tuple[bool, int]], seed: int
) -> None:
    X, y = make_rows(40, seed=seed)
    model = make_model(name).fit(X, y)
    assert distance_to_optimum(model) <= model.distance_ <= model.limit_
    gone: list[int] = []
    for adds, size in requests:
        if adds and gone:
            back, gone = gone[:size], gone[size:]
            model.learn(X[back], y[back], ids=back)
        else:
            leaving = [int(i) for i in model.ids_[:size]]
            gone += leaving
            model.forget(leaving)
        assert distance_to_optimum(model) <= model.distance_ <= model.limit_
        assert model.guarantee_.kind == "certified"


@pytest.mark.parametrize("name", ["published", "theorem-published"])
def test_published_parameters_are_the_optimum_plus_noise(name: str) -> None:
    X, y = make_rows(40, n_classes=2)
    sigma = 0.02
    noise = []
    for _ in range(150):
        model = make_model(name, sigma=sigma).fit(X, y)
        model.forget([3])
        noise.append(model.model_.weights - optimum_of(model))
    scale = np.std(noise) / sigma
    assert 0.85 < scale < 1.15
    assert abs(np.mean(noise)) < model.limit_ + 5 * sigma / np.sqrt(150 * 4)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_request_draws_fresh_noise(name: str) -> None:
    X, y = make_rows()
    model = make_model(name).fit(X, y)
    before = model.coef_.copy()
    model.forget([0])
    first, second = copy.copy(model), copy.copy(model)
    for twin in (first, second):
        twin.forget([1])
    assert not np.array_equal(before, model.coef_)
    assert not np.array_equal(first.coef_, second.coef_)


@pytest.mark.parametrize("name", VARIANTS)
def test_guarantee_says_what_is_claimed(name: str) -> None:
    X, y = make_rows()
    model = make_model(name).fit(X, y)
    claim = model.forget([1, 2]).guarantee
    assert claim.kind == "certified"
    assert claim.requests == ("oblivious" if model.variant == "distributed" else "adaptive")
    assert claim.epsilon == model.epsilon
    assert claim.delta == model.delta
    assert claim.spent is not None
    assert claim.budget == model.limit_
    assert min(model.distance_, model.limit_) <= claim.spent <= claim.budget
    assert ("state-secret" in claim.assumptions) == (model.state == "secret")


def test_every_assumption_is_explained() -> None:
    X, y = make_rows()
    codes = {
        code for name in VARIANTS for code in make_model(name).fit(X, y).guarantee_.assumptions
    }
    text = DescentToDeleteClassifier.facts.definition
    assert {code for code in codes if f"`{code}`" not in text} == set()


@pytest.mark.parametrize("changes", [{"sigma": 0.0}, {"noise_seed": 3}])
@pytest.mark.parametrize("name", ["secret", "published", "theorem", "parts"])
def test_without_secret_noise_nothing_is_certified(name: str, changes: dict[str, Any]) -> None:
    X, y = make_rows()
    model = make_model(name, **changes).fit(X, y)
    claim = model.forget([1]).guarantee
    assert claim.kind == "empirical"
    assert claim.epsilon is None


def test_without_noise_the_model_is_the_optimum() -> None:
    X, y = make_rows()
    for name in ("secret", "published", "total", "softmax"):
        model = make_model(name, sigma=0.0).fit(X, y)
        model.forget([0, 7])
        model.learn(X[:1], y[:1], ids=[0])
        assert np.allclose(model.model_.weights, optimum_of(model), atol=1e-6)


def test_a_removal_takes_one_pass_and_no_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = make_rows(2000, d=40, n_classes=2)
    model = DescentToDeleteClassifier(l2=0.01, sigma=0.01).fit(X, y)

    def fail(*_: Any) -> Curvature:
        raise AssertionError("a Hessian was evaluated")

    monkeypatch.setattr(_descent_steps, "evaluate_curvature", fail)
    passes, read, gradient = [], [], FitProblem.gradient_at

    def counted(problem: FitProblem, W: Floats) -> Floats:
        read.append(len(W))
        return gradient(problem, W)

    monkeypatch.setattr(FitProblem, "gradient_at", counted)
    for i in range(40):
        receipt = model.forget([i])
        passes.append(model.n_passes_)
    model.learn(X[:4], y[:4], ids=range(4))
    assert max(passes) < 1.5
    assert len(read) == 41
    assert receipt.work < 0.2


def test_an_old_hessian_is_replaced_when_it_no_longer_serves() -> None:
    X, y = make_rows(200, n_classes=2)
    X[:100] *= 4
    model = DescentToDeleteClassifier(l2=1e-3, sigma=1e-4).fit(X, y)
    assert model.cache_.content is not None
    old = model.cache_.content.curvature
    model.forget(range(90))
    assert model.cache_.content.curvature is not old
    assert distance_to_optimum(model) <= model.limit_


def test_gained_rows_are_in_the_hessian() -> None:
    X, y = make_rows(50, d=12, n_classes=2)
    model = DescentToDeleteClassifier(l2=0.05).fit(X[:48], y[:48])
    content = model.cache_.content
    assert content is not None
    assert content.curvature is not None
    curvature, point = content.curvature, content.curvature.point
    rows = model._build_design().build_rows(X[48:])
    loss = problem_of(model).loss
    gain = LowRankUpdate(curvature, hessian_roots(loss, rows, y[48:], point))
    G = np.random.default_rng(0).normal(size=point.shape)
    solved = gain.solve(G)
    gain.apply()
    everything = model._build_design().build_rows(X)
    hessian = FitProblem(everything, y, loss, 50, 1.0).hessian_at(point)[0]
    wanted = np.linalg.solve(hessian + 0.05 * 48 * np.eye(13), G)
    assert np.allclose(solved, wanted)
    assert np.allclose(curvature.solve(G), wanted)
    assert np.allclose(np.tril(curvature.blocks[0].hessian), np.tril(hessian))


def passes_of(model: DescentToDeleteClassifier, n_requests: int) -> list[float]:
    counted = []
    for i in range(n_requests):
        model.forget([i])
        counted.append(model.n_passes_)
    return counted


def test_strong_variants_stay_flat_and_the_weak_one_does_not() -> None:
    X, y = make_rows(120, n_classes=2)
    y[100:] = y[:20]
    assert max(passes_of(make_model("secret").fit(X, y), 20)) < 3
    for name in ("theorem", "strong"):
        counted = passes_of(make_model(name).fit(X, y), 20)
        assert max(counted) <= 1.3 * min(counted)
    published = passes_of(make_model("theorem-published").fit(X, y), 20)
    assert published == sorted(published)
    assert published[-1] <= published[0] + 20
    model = make_model("weak").fit(X, y)
    weak = np.array(passes_of(model, 20))
    assert model.plan_ is not None
    most = model.iterations * np.arange(1, 21) ** 2
    assert (weak <= most).all()
    assert weak[-1] / weak[3] == pytest.approx(20**2 / 4**2, rel=0.3)


def test_theorem_steps_are_those_of_the_worst_case_without_a_secret() -> None:
    X, y = make_rows(n_classes=2)
    model = make_model("theorem-published").fit(X, y)
    plan = model.plan_
    assert plan is not None
    assert model.n_passes_ == plan.training_steps
    model.forget([0])
    assert model.n_passes_ == plan.update_steps(0, 1, plan.geometry)
    model.forget([1, 2])
    assert model.n_passes_ == plan.update_steps(1, 2, plan.geometry)


def test_published_state_keeps_nothing_else() -> None:
    X, y = make_rows()
    for name in ("published", "theorem-published"):
        model = make_model(name, noise_seed=5).fit(X, y)
        model.forget([4])
        assert n_secrets(model) == 0
        assert model.cache_.content is None
        assert model.parts_ == ()
        assert model.top_ is None
        # The rows, the published parameters and two counters: a model of these goes on alike.
        twin = make_model(name, noise_seed=5).fit(np.delete(X, 4, 0), np.delete(y, 4))
        twin.model_, twin.source_ = model.model_, copy.copy(model.source_)
        twin.n_changed_ = model.n_changed_
        model.forget([0])
        twin.forget([0])
        assert np.allclose(model.coef_, twin.coef_, atol=1e-12)


@pytest.mark.parametrize("name", ["secret", "theorem", "parts"])
def test_old_secrets_are_wiped(name: str) -> None:
    X, y = make_rows()
    model = make_model(name).fit(X, y)
    seals = [model.unperturbed_] if model.unperturbed_ else [p.weights for p in model.parts_]
    views = [seal.open() for seal in seals]
    twin = copy.copy(model)
    model.forget([1])
    assert all((view == 0).all() for view in views)
    twin.forget([2])  # has seals of its own
    with pytest.raises(ValueError, match="wiped"):
        seals[0].open()


@pytest.mark.parametrize("name", ["theorem", "theorem-published", "strong", "weak", "parts"])
def test_another_power_of_two_makes_a_request_retrain(name: str) -> None:
    X, y = make_rows(66)
    model = make_model(name).fit(X, y)
    sigma = model.sigma_
    assert "retrains" not in model.forget([0, 1]).rebuilt
    receipt = model.forget([2])
    assert receipt.rebuilt == {"retrains": 1}
    assert model.n_changed_ == 0
    assert (model.sigma_ == sigma) == (name == "parts")
    model.learn(X[:1], y[:1], ids=[0])
    assert model.sigma_ == sigma
    assert model.n_changed_ == 0


@pytest.mark.parametrize("name", VARIANTS)
def test_a_fresh_fit_has_the_same_settings(name: str) -> None:
    X, y = make_rows(60)
    model = make_model(name).fit(X, y)
    model.forget(range(10))
    fresh = make_model(name).fit(X[10:], y[10:])
    assert (fresh.sigma_, fresh.limit_, fresh.plan_) == (model.sigma_, model.limit_, model.plan_)
    assert [p.ranks.shape for p in fresh.parts_] == [p.ranks.shape for p in model.parts_]


@pytest.mark.parametrize("name", VARIANTS)
def test_classes_vanish_and_appear(name: str) -> None:
    X, y = make_rows(60)
    labels = np.array(["ash", "birch", "a very long name of a tree"])[y]
    model = make_model(name).fit(X, labels)
    assert model.forget(np.flatnonzero(y == 2)).rebuilt == {"retrains": 1}
    assert model.classes_.tolist() == ["ash", "birch"]
    assert model.classes_.dtype == "<U5"
    model.learn(X[:3], ["cedar", "ash", "cedar"], ids=[100, 101, 102])
    assert model.classes_.tolist() == ["ash", "birch", "cedar"]
    assert model.coef_.shape == (3, 3)
    assert np.bincount(model.rows_.y).tolist() == [21, 20, 2]
    assert model.predict(X).shape == (60,)
    with pytest.raises(EmptyModelError):
        model.forget([i for i in model.ids_ if i != 0])


def test_learned_rows_are_rows_like_others() -> None:
    X, y = make_rows(60)
    model = DescentToDeleteClassifier(l2=0.05, sigma=0.0).fit(X[:50], y[:50])
    model.learn(X[50:], y[50:], ids=range(50, 60))
    whole = DescentToDeleteClassifier(l2=0.05, sigma=0.0).fit(X, y)
    assert np.allclose(model.coef_, whole.coef_, atol=1e-6)
    model.forget(range(45, 60))
    rest = DescentToDeleteClassifier(l2=0.05, sigma=0.0).fit(X[:45], y[:45])
    assert np.allclose(model.coef_, rest.coef_, atol=1e-6)


@pytest.mark.parametrize("name", ["secret", "published", "theorem", "parts"])
@pytest.mark.parametrize("kind", ["csr", "float32"])
def test_sparse_and_single_precision_rows(name: str, kind: str) -> None:
    X, y = make_rows(60)
    table: Any = sp.csr_array(X) if kind == "csr" else X.astype(np.float32)
    model, dense = make_model(name, noise_seed=1).fit(table, y), make_model(name, noise_seed=1)
    dense.fit(X, y)
    for each, rows in ((model, table), (dense, X)):
        each.forget([1, 5])
        each.learn(rows[[1]], y[[1]], ids=[1])
    assert np.allclose(model.coef_, dense.coef_, atol=5e-3 if kind == "float32" else 1e-6)


def test_many_columns_without_a_matrix_of_their_size() -> None:
    rng = np.random.default_rng(0)
    X = sp.random(80, 6000, density=0.01, rng=rng, format="csr")
    y = np.arange(80) % 2
    model = DescentToDeleteClassifier(l2=0.05, sigma=0.01).fit(X, y)
    model.forget([1, 2])
    model.learn(X[[1]], y[[1]], ids=[1])
    assert model.cache_.content is not None
    assert model.cache_.content.curvature is None
    assert model.unperturbed_ is not None
    W = model.unperturbed_.open()
    problem = problem_of(model)
    assert np.linalg.norm(problem.gradient_at(W)) / problem.ridge <= model.limit_


@pytest.mark.parametrize("name", VARIANTS)
def test_files_keep_the_secret_and_the_counters(name: str, tmp_path: Path) -> None:
    X, y = make_rows()
    model = make_model(name, noise_seed=2).fit(X, y)
    model.forget([3])
    persist.save(model, tmp_path / "model")
    twins = persist.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))
    assert {twin.digest() for twin in twins} == {model.digest()}
    assert all(twin.cache_.content is None for twin in twins)
    for each in (model, *twins):
        each.forget([4, 5])
        each.learn(X[3:4], y[3:4], ids=[3])
    for twin in twins:
        assert np.allclose(twin.coef_, model.coef_, atol=model.limit_)
        assert twin.n_changed_ == model.n_changed_


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("secret", {"l2": 0.0}, "l2=0"),
    ("secret", {"sigma": -1.0}, "sigma=-1"),
    ("secret", {"epsilon": 0.0}, "epsilon"),
    ("secret", {"delta": 1.0}, "delta"),
    ("secret", {"variant": "best"}, "variant='best'"),
    ("secret", {"state": "open"}, "state='open'"),
    ("secret", {"stop": "never"}, "stop='never'"),
    ("secret", {"iterations": 0}, "iterations=0"),
    ("secret", {"n_copies": 2}, "n_copies=2"),
    ("secret", {"xi": 2.0}, "xi=2"),
    ("secret", {"radius": 1.0}, "radius"),
    ("secret", {"regulariser": 1.0}, "regulariser"),
    ("secret", {"variant": "regularized-weak"}, "stop='theorem'"),
    ("theorem", {"rows": "keep", "row_norm": None}, "row_norm"),
    ("theorem", {"delta": 0.0}, "delta above 0"),
    ("theorem", {"reg": "total"}, "reg='total'"),
    ("strong", {"state": "published"}, "state='secret'"),
    ("strong", {"regulariser": -1.0}, "regulariser=-1"),
    ("parts", {"state": "published"}, "state='secret'"),
    ("parts", {"reg": "total"}, "reg='total'"),
    ("theorem", {"radius": 0}, "radius=0"),
]


@pytest.mark.parametrize(("name", "changes", "text"), BAD)
def test_settings_that_make_no_sense(name: str, changes: dict[str, Any], text: str) -> None:
    X, y = make_rows()
    model = make_model(name, **changes)
    with pytest.raises(ValueError, match=text):
        model.fit(X, y)
    assert not hasattr(model, "seed_")


@pytest.mark.parametrize("name", VARIANTS)
def test_bad_requests_change_nothing(name: str) -> None:
    X, y = make_rows()
    model = make_model(name, rows="refuse", row_norm=10.0).fit(X, y)
    before, spent = model.digest(), model.guarantee_
    wrong = X[:2].copy()
    wrong[0, 0] = np.nan
    with pytest.raises(UnknownIdError):
        model.forget([1, 99])
    with pytest.raises(EmptyModelError):
        model.forget(np.flatnonzero(y > 0))
    with pytest.raises(ValueError, match="NaN"):
        model.learn(wrong, y[:2], ids=[70, 71])
    with pytest.raises(AssumptionError, match="row_norm"):
        model.learn(100 * X[:2], y[:2], ids=[70, 71])
    with pytest.raises(ValueError, match="features"):
        model.learn(X[:2, :2], y[:2], ids=[70, 71])
    with pytest.raises(ValueError, match="labels"):
        model.learn(X[:2], ["a", "b"], ids=[70, 71])
    with pytest.raises(IdsTypeError):
        model.learn(X[:2], y[:2], ids=["p", "q"])
    with pytest.raises(IdsTypeError):
        model.learn(X[:2], y[:2], ids=None)
    assert model.digest() == before
    assert model.guarantee_ == spent


def test_steps_by_theorem_stay_in_a_given_ball() -> None:
    X, y = make_rows(n_classes=2)
    model = make_model("theorem", radius=0.2).fit(X, y)
    model.forget([1])
    assert np.linalg.norm(optimum_of(model)) > 0.2
    assert model.unperturbed_ is not None
    assert np.linalg.norm(model.unperturbed_.open()) <= 0.2 * (1 + 1e-12)


def test_a_given_regulariser_is_added() -> None:
    X, y = make_rows(n_classes=2)
    model = make_model("strong", regulariser=0.4).fit(X, y)
    assert model.plan_ is not None
    assert model.plan_.geometry.strong == pytest.approx(0.5)
    assert distance_to_optimum(model) <= model.distance_


def test_settings_may_be_numpy_numbers(tmp_path: Path) -> None:
    X, y = make_rows()
    settings = {"l2": np.float64(0.1), "iterations": np.int64(40), "epsilon": np.float32(1.0)}
    model = make_model("theorem", **settings).fit(X, y)
    persist.save(model, tmp_path / "model")
    assert persist.load(tmp_path / "model").plan_ == model.plan_


def test_noise_that_hides_less_than_the_theorem_leaves() -> None:
    X, y = make_rows()
    with pytest.raises(AssumptionError, match="increase iterations or sigma"):
        make_model("theorem", sigma=1e-6).fit(X, y)
    model = make_model("theorem", sigma=1e-6, if_unproved="downgrade")
    with pytest.warns(GuaranteeWarning, match="empirical"):
        model.fit(X, y)
    assert model.guarantee_.kind == "empirical"
    assert make_model("theorem", sigma=5.0).fit(X, y).guarantee_.kind == "certified"
    assert make_model("theorem-published", sigma=1e-6).fit(X, y).guarantee_.kind == "certified"


def test_an_optimiser_that_does_not_arrive() -> None:
    X, y = make_rows(200, d=300, n_classes=2)
    model = DescentToDeleteClassifier(l2=1e-6, sigma=1e-3, max_iter=1)
    with pytest.raises(AssumptionError, match="increase max_iter, sigma or l2"):
        model.fit(X, y)
    assert not hasattr(model, "seed_")


@parametrize_with_checks(
    [
        make_model("secret", noise_seed=1),
        make_model("published", noise_seed=1),
        make_model("theorem", noise_seed=1, iterations=200),
    ]
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
    assert isinstance(estimator, DescentToDeleteClassifier)


@checks.parametrize_with_checks([DescentToDeleteClassifier(l2=0.1)])
def test_forgetting_checks(estimator: Any, check: Any) -> None:
    check(estimator)
    assert isinstance(estimator, DescentToDeleteClassifier)


@pytest.mark.soak
@checks.parametrize_with_checks([DescentToDeleteClassifier(l2=0.1, state="published")])
def test_forgetting_checks_with_other_settings(estimator: Any, check: Any) -> None:
    check(estimator)
