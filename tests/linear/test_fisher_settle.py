"""FisherClassifier: what a file gives away of the last removal, and how `settle` ends that."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon import FisherClassifier, load, save, state
from letheon.exceptions import AssumptionError, ChangedParametersError, GuaranteeWarning
from letheon.linear import _fisher
from letheon.linear._account import round_up_to_power
from letheon.linear._calibrate import ReleaseGrid
from letheon.linear._fisher_walk import NewtonWalk, evaluate_at
from letheon.linear._problem import FitProblem
from letheon.linear._solve import minimise
from tests.linear.people import form_no_matrix
from tests.linear.rebuild import RebuildAttack

Floats = NDArray[np.float64]
GONE = 7


def make_rows(n: int = 200, p: int = 5) -> tuple[Floats, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, p))
    return X, (X[:, 0] + rng.normal(size=n) > 0).astype(int)


def forgotten(**settings: Any) -> tuple[FisherClassifier, FisherClassifier]:
    """Return a model that forgot one row, and one that never had it."""
    X, y = make_rows()
    settings = {"l2": 0.01, "state": "secret", **settings}
    model = FisherClassifier(**settings).fit(X, y)
    model.forget([GONE])
    rest = np.delete(np.arange(len(y)), GONE)
    return model, FisherClassifier(**settings).fit(X[rest], y[rest], ids=rest)


def sealed(model: FisherClassifier) -> Floats:
    assert model.optimum_ is not None
    return np.array(model.optimum_.open())


def error_of_the_attack(model: FisherClassifier, path: Path) -> float:
    save(model, path)
    file = load(path)
    attack = RebuildAttack(file.rows_.X, file.rows_.y, file.l2)
    return attack.error(sealed(file)[0, :, 0], make_rows()[0][GONE])


def test_a_file_gives_the_last_row_away_until_it_is_settled(tmp_path: Path) -> None:
    model, _ = forgotten()
    assert error_of_the_attack(model, tmp_path / "before.letheon") < 1e-6
    declared = " ".join(model.residual_state_)
    assert "a row that was removed alone can be computed; settle() prevents that" in declared
    model.settle()
    assert error_of_the_attack(model, tmp_path / "after.letheon") > 0.5


@pytest.mark.parametrize("state", ["secret", "published"])
@pytest.mark.parametrize("covariance", ["fisher", "isotropic"])
def test_settling_leaves_what_a_fit_leaves(covariance: str, state: str, tmp_path: Path) -> None:
    """Byte by byte, but for the noise in the parameters."""
    settings: dict[str, Any] = {"covariance": covariance, "state": state, "random_state": 0}
    model, fresh = forgotten(**settings)
    before = model.coef_.copy()
    assert encode_but_noise(model) != encode_but_noise(fresh)
    assert model.settle() is model
    assert encode_but_noise(model) == encode_but_noise(fresh)
    assert not np.array_equal(model.coef_, before), "noise is fresh"
    assert not np.array_equal(model.coef_, fresh.coef_)
    assert model.guarantee_ == fresh.guarantee_
    assert model.guarantee_.spent == 0.0
    assert (model.epsilon_, model.kl_bound_) == (0.0, 0.0)


def encode_but_noise(model: FisherClassifier) -> bytes:
    """Return the content of a file, without what is drawn again."""
    drawn = {"model_", "release_salt_"}
    attributes = {name: value for name, value in vars(model).items() if name not in drawn}
    return state.encode(attributes)


@pytest.mark.parametrize("kind", ["secret", "published"])
def test_before_that_only_rounded_numbers_tell_of_the_rows_that_left(kind: str) -> None:
    model, fresh = forgotten(state=kind, sigma=1e-3)
    account, law = model.account_, model.account_.closeness
    assert 0 < account.used <= 1
    for number in (account.used, law.shift, law.spread):
        assert round_up_to_power(number) == number
    # Neither how long the first training took nor how many steps the request did.
    X, y = make_rows()
    other = FisherClassifier(l2=0.01, state=kind, sigma=1e-3).fit(X[1:], y[1:], ids=range(1, 200))
    other.forget([2])
    assert (model.n_iter_, model.training_flops_) == (other.n_iter_, other.training_flops_)
    assert fresh.n_iter_ > 1


def test_a_settled_model_goes_on(tmp_path: Path) -> None:
    model, _ = forgotten()
    model.settle()
    content = model.cache_.content
    assert content is not None
    assert model.rows_.n_slots == 199
    np.testing.assert_allclose(content.scores, model.rows_.X @ content.curvature.point)
    save(model, tmp_path / "model.letheon")
    for each in (model, load(tmp_path / "model.letheon")):
        receipt = each.forget([1, 2])
        assert receipt.guarantee.kind == "certified"
        assert "retrains" not in receipt.rebuilt


def test_without_noise_the_published_parameters_are_settled_too() -> None:
    for kind in ("secret", "published"):
        model, fresh = forgotten(sigma=0.0, state=kind)
        assert not np.array_equal(model.coef_, fresh.coef_)
        model.settle()
        np.testing.assert_array_equal(model.coef_, fresh.coef_)


def test_old_seals_are_wiped_and_a_copy_keeps_its_own() -> None:
    model, _ = forgotten()
    twin, views = copy.copy(model), []
    for change in (model.settle, lambda: model.forget([1])):
        assert model.optimum_ is not None
        views.append(model.optimum_.open())
        change()
    assert not any(view.any() for view in views)
    assert sealed(twin).any()
    assert twin.forget([1]).guarantee.kind == "certified"


def test_training_that_does_not_arrive_settles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_one_step(problem: FitProblem, *, tolerance: float, max_iter: int) -> Any:
        return minimise(problem, tolerance=tolerance, max_iter=min(max_iter, 1))

    strict, (lenient, _) = forgotten()[0], forgotten(if_unproved="downgrade")
    before = strict.digest()
    monkeypatch.setattr(_fisher, "minimise", in_one_step)
    with pytest.raises(AssumptionError, match="above the tolerance"):
        strict.settle()
    assert strict.digest() == before
    with pytest.warns() as warned:
        lenient.settle()
    assert GuaranteeWarning in {warning.category for warning in warned}
    monkeypatch.undo()
    assert lenient.guarantee_.kind == "empirical"
    assert lenient.forget([1]).guarantee.kind == "empirical"
    assert lenient.settle().guarantee_.kind == "certified"


def test_other_settings_than_those_of_the_fit_settle_nothing() -> None:
    model, _ = forgotten()
    model.set_params(l2=1.0)
    with pytest.raises(ChangedParametersError):
        model.settle()
    assert model.n_rows_ == 199


def test_many_columns_are_settled_without_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    form_no_matrix(monkeypatch, above=3)
    model, fresh = forgotten()
    model.settle()
    np.testing.assert_array_equal(sealed(model), sealed(fresh))
    assert model.cache_.content is None


def test_work_with_many_columns_counts_products_and_no_hessian(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y = make_rows(400, 30)
    counted = {"passes": 0.0}

    def count(name: str, passes: float) -> None:
        method = getattr(FitProblem, name)

        def counting(*arguments: Any) -> Any:
            counted["passes"] += passes
            return method(*arguments)

        monkeypatch.setattr(FitProblem, name, counting)

    form_no_matrix(monkeypatch, above=3)
    for name, passes in (
        ("hessian_product", 1.0),
        ("gradient_at", 1.0),
        ("value_and_gradient", 1.0),
    ):
        count(name, passes)
    model = FisherClassifier(l2=0.05, tol=1e-6).fit(sp.csr_array(X), y)
    fit, counted["passes"] = counted["passes"], 0.0
    receipt = model.forget([3])
    assert "retrains" not in receipt.rebuilt
    # Beside what is counted, a request looks at gradient and scores at once, and at curvatures.
    assert 0.7 * receipt.work < counted["passes"] / fit < 1.3 * receipt.work


def test_what_is_on_the_way_shows_no_number() -> None:
    model, _ = forgotten()
    problem, W = model._build_problem(model._training_rows()), sealed(model)[0]
    fisher, view = model._fisher_at(problem, W), evaluate_at(problem, W)
    walk = model._start_walk(problem, fisher, W, view)
    assert isinstance(walk, NewtonWalk)
    assert fisher.noise is not None
    roots = fisher.noise.noise_roots(W, ReleaseGrid.of_sigma(1.0))
    assert fisher.expansion is not None
    assert fisher.expansion.spectra is not None
    shown = [walk, view, fisher.noise, *roots, *fisher.expansion.spectra, problem]
    assert not any("." in repr(each) for each in shown)
    assert "array" not in f"{fisher} {fisher.expansion}"


def test_published_claims_tell_nothing_of_requests() -> None:
    model, fresh = forgotten()
    first, second = model.publish().to_dict(), fresh.publish().to_dict()
    assert first.pop("weights") != second.pop("weights")
    assert first == second
