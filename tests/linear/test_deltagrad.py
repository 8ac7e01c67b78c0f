"""DeltaGrad as users meet it: settings, inputs, requests, files, noise, and what it keeps."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils.estimator_checks import parametrize_with_checks

from letheon import checks, load, save
from letheon.exceptions import EmptyModelError, UnknownIdError
from letheon.linear import _deltagrad
from letheon.linear._deltagrad import DeltaGradClassifier
from letheon.linear._replay import Trajectory, replay_by_secants
from letheon.state import encode
from tests.linear.deltagrad_reference import ReplayData, make_data

Floats = NDArray[np.float64]

VARIANTS: list[dict[str, Any]] = [
    {},
    {"hessian": "cached"},
    {"batch_size": 16},
    {"multi_class": "softmax", "sigma": 0.05, "noise_seed": 3},
]
variants = pytest.mark.parametrize("more", VARIANTS, ids=lambda more: str(list(more)))


def make(**more: Any) -> DeltaGradClassifier:
    return DeltaGradClassifier(**{"n_steps": 30, "random_state": 0} | more)


def fitted(data: ReplayData, **more: Any) -> DeltaGradClassifier:
    return make(**more).fit(data.X, data.y, ids=data.ids)


def weights(model: DeltaGradClassifier) -> Floats:
    return np.column_stack([model.coef_, model.intercept_])


@parametrize_with_checks([make(**more) for more in VARIANTS[:1]])
@pytest.mark.filterwarnings("ignore:Can't check dok sparse matrix:UserWarning")
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.soak
@parametrize_with_checks([make(**more) for more in VARIANTS[1:]])
@pytest.mark.filterwarnings("ignore:Can't check dok sparse matrix:UserWarning")
def test_scikit_learn_conventions_of_variants(estimator: Any, check: Any) -> None:
    check(estimator)


@checks.parametrize_with_checks([make(n_steps=60, **more) for more in VARIANTS[:1]])
def test_forgetting_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.soak
@checks.parametrize_with_checks([make(n_steps=60, **more) for more in VARIANTS[1:]])
def test_forgetting_conventions_of_variants(estimator: Any, check: Any) -> None:
    check(estimator)


BAD: list[dict[str, Any]] = [
    {"l2": 0.0},
    {"l2": -1.0},
    {"sigma": -0.1},
    {"sigma": float("nan")},
    {"reg": "mean"},
    {"multi_class": "both"},
    {"n_steps": 0},
    {"n_steps": 2.5},
    {"learning_rate": 0.0},
    {"learning_rate": float("inf")},
    {"learning_rate": -1.0},
    {"batch_size": 0},
    {"hessian": "exact"},
    {"burn_in": -1},
    {"period": 0},
    {"history": 0},
    {"n_checkpoints": 0},
    {"max_memory": -1},
    {"rows": "clip"},
    {"row_norm": 1.0},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_bad_settings_leave_the_model_as_it_was(bad: dict[str, Any]) -> None:
    data = make_data(20)
    model = fitted(data)
    before = encode(model.trajectory_)
    unfitted = make(**bad)
    with pytest.raises(ValueError, match=next(iter(bad))):
        unfitted.fit(data.X, data.y)
    assert "seed_" not in vars(unfitted)
    with pytest.raises(ValueError, match=next(iter(bad))):
        model.set_params(**bad).fit(data.X, data.y)
    assert encode(model.trajectory_) == before


def test_descent_that_diverges_is_an_error() -> None:
    data = make_data(20)
    with pytest.raises(ValueError, match="diverged at learning_rate"):
        fitted(data, l2=1.0, learning_rate=1e6, n_steps=400)


def test_hessians_of_many_columns_are_refused() -> None:
    X = sp.random_array((12, 6000), density=0.01, format="csr", rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="hessian='lbfgs'"):
        make(hessian="cached").fit(X, np.arange(12) % 2)


@variants
def test_requests_that_fail_change_nothing(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_data(40, n_classes=3)
    model = fitted(data, **more)
    before, digest = encode(model), model.digest()
    with pytest.raises(UnknownIdError):
        model.forget([1, 99])
    with pytest.raises(EmptyModelError):
        model.forget([own for own in range(40) if data.y[own]])
    # The last thing that can fail: the path is written by then, but aside.
    monkeypatch.setattr(DeltaGradClassifier, "_bound_distance", _out_of_memory)
    with pytest.raises(MemoryError):
        model.forget([1, 2])
    assert encode(model) == before
    assert model.digest() == digest


def _out_of_memory(*_: Any) -> float:
    raise MemoryError


@variants
def test_request_repeats_after_a_failed_one(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed request spends no noise and leaves no downdate behind."""
    data = make_data(40, n_classes=3)
    model, twin = fitted(data, **more), fitted(data, **more)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaGradClassifier, "_bound_distance", _out_of_memory)
        with pytest.raises(MemoryError):
            model.forget([5])
    for each in (model, twin):
        each.forget([5])
    assert np.array_equal(weights(model), weights(twin))


@variants
def test_saved_models_go_on(more: dict[str, Any], tmp_path: Path) -> None:
    data = make_data(40, n_classes=3)
    model = fitted(data, **more)
    model.forget([3])
    save(model, tmp_path / "model.letheon")
    copies = [load(tmp_path / "model.letheon"), pickle.loads(pickle.dumps(model)), copy.copy(model)]
    for each in copies:
        assert each.digest() == model.digest()
        assert each.guarantee_ == model.guarantee_
    model.forget([7, 8])
    for each in copies:
        assert each.n_rows_ == 39
        each.forget([7, 8])
        # Hessians that are not in the file are recomputed at the newest path.
        near = 0.01 if model.hessian == "cached" else 1e-12
        assert np.abs(weights(each) - weights(model)).max() <= near
        assert np.abs(weights(each) - weights(copies[0])).max() <= 1e-12
    assert {each.forget([9]).n_rows for each in copies} == {1}


@variants
def test_sparse_rows_are_dense_rows(more: dict[str, Any]) -> None:
    data = make_data(40, n_classes=3)
    data.X[data.X < 0.5] = 0.0
    dense = fitted(data, **more)
    sparse = make(**more).fit(sp.csr_array(data.X), data.y, ids=data.ids)
    for each in (dense, sparse):
        each.forget([2])
        each.forget([20, 21])
    assert np.allclose(weights(sparse), weights(dense), rtol=0, atol=1e-10)


def test_single_precision_rows() -> None:
    data = make_data(40)
    single = make(learning_rate=0.3).fit(data.X.astype(np.float32), data.y)
    double = make(learning_rate=0.3).fit(data.X.astype(np.float32).astype(float), data.y)
    for each in (single, double):
        each.forget([2, 3])
    assert single.rows_.X.dtype == np.float32
    assert np.allclose(weights(single), weights(double), rtol=0, atol=1e-12)


def test_as_many_columns_as_a_dictionary_has_words() -> None:
    rng = np.random.default_rng(0)
    X = sp.random_array((60, 47_236), density=0.001, format="csr", rng=rng)
    model = DeltaGradClassifier(n_steps=15, burn_in=3, random_state=0).fit(X, np.arange(60) % 2)
    before = weights(model)
    model.forget([4])
    keep = np.arange(60) != 4
    fresh = DeltaGradClassifier(n_steps=15, learning_rate=model.learning_rate_)
    fresh.fit(X[keep], (np.arange(60) % 2)[keep])
    gap = np.linalg.norm(weights(model) - weights(fresh))
    assert gap < 0.1 * np.linalg.norm(before - weights(fresh))


@pytest.mark.parametrize("hessian", ["lbfgs", "cached"])
def test_path_in_a_file_is_the_same_path(
    hessian: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data = make_data(40, n_classes=3)
    in_memory, in_file = (fitted(data, hessian=hessian, max_memory=m) for m in (2**30, 1000))
    for each in (in_memory, in_file):
        each.forget([1])
        each.forget([30, 31])
    assert is_mapped(in_file.trajectory_)
    assert not is_mapped(in_memory.trajectory_)
    assert np.array_equal(weights(in_file), weights(in_memory))
    assert in_file.digest() == in_memory.digest()
    assert list(tmp_path.iterdir()) == []


def is_mapped(path: Trajectory) -> bool:
    """Whether the numbers lie in memory that NumPy did not allocate."""
    base: Any = path.points
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return not isinstance(base, np.ndarray)


def test_full_disk_is_an_error_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    data = make_data(20)
    with pytest.raises(OSError, match="No space"):
        fitted(data, max_memory=0)


_KILLED = """
import os, signal, sys, tempfile
import numpy as np
from letheon.linear._replay import Trajectory
tempfile.tempdir = sys.argv[1]
path = Trajectory.allocate(100, 100, 0)
path.points[:] = 1.0
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_files_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes, make_file = [], tempfile.TemporaryFile

    def watched(*arguments: Any, **more: Any) -> Any:
        file = make_file(*arguments, **more)
        modes.append(os.fstat(file.fileno()).st_mode & 0o777)
        return file

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", watched)
    Trajectory.allocate(10, 10, 0)
    assert modes == [0o600]


def test_cached_gradients_do_not_hold_the_forgotten_row() -> None:
    """Taking the other rows out of a cached gradient leaves the row before, and nothing after.

    At w_0 = 0 the gradient of a row is (1/2 - y) x, so the difference would be the row itself.
    """
    data = make_data(40)
    for more in ({}, {"hessian": "cached"}):
        model = fitted(data, **more)
        rest = data.without([6])
        others = (0.5 - rest.y) @ np.column_stack([rest.X, np.ones(39)])
        row = (0.5 - data.y[6]) * np.append(data.X[6], 1.0)
        leftover = 40 * model.trajectory_.gradients[0] - others
        assert np.allclose(leftover, row, rtol=0, atol=1e-12)
        model.forget([6])
        leftover = 39 * model.trajectory_.gradients[0] - others
        assert np.abs(leftover).max() < 1e-12


@pytest.mark.parametrize(("more", "share"), [({}, 0.1), ({"hessian": "cached"}, 0.15)])
def test_later_gradients_hold_no_more_than_the_error(more: dict[str, Any], share: float) -> None:
    """What the whole path still says about the row is a small part of what it said."""
    data = make_data(200)
    settings = {"learning_rate": 0.5, "n_steps": 60, **more}
    model = fitted(data, **settings)
    fresh = fitted(data.without([6]), **settings).trajectory_
    before = model.trajectory_
    model.forget([6])
    for name in ("points", "gradients"):
        old, new, never = (getattr(path, name) for path in (before, model.trajectory_, fresh))
        assert np.linalg.norm(new - never) < share * np.linalg.norm(old - never)
    assert "trajectory_" in " ".join(model.residual_state_)


def leftovers(model: DeltaGradClassifier) -> Floats:
    """What the file and the rows held tell together: errors of the gradients, step by step."""
    problem, path = model._build_problem(model._training_rows()), model.trajectory_
    pairs = zip(path.points, path.gradients, strict=True)
    return np.array(
        [g - problem.gradient_at(w[:, None]).ravel() / problem.n_remaining for w, g in pairs]
    )


def test_declared_residue_is_real() -> None:
    """An attack that finds the direction of a forgotten row in the path, unless all is exact.

    It is here to keep the declaration honest: should it fail one day, the text may be weakened.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 8))
    y = (X[:, 0] + rng.logistic(size=300) > 0).astype(int)
    settings = {"l2": 1e-2, "n_steps": 100, "fit_intercept": False}
    exact = make(period=1, **settings).fit(X, y)
    exact.forget([3])
    assert np.abs(leftovers(exact)).max() < 1e-15
    model = make(hessian="cached", **settings).fit(X, y)
    assert np.abs(leftovers(model)).max() < 1e-15
    model.forget([3])
    direction = np.linalg.svd(leftovers(model))[2][0]
    assert abs(direction @ X[3]) / np.linalg.norm(X[3]) > 0.95
    assert "point along one" in " ".join(model.residual_state_)


def test_noise_is_isotropic_and_on_top() -> None:
    data = make_data(30)
    plain = fitted(data, n_steps=5)
    plain.forget([3])
    draws = []
    for seed in range(400):
        model = fitted(data, n_steps=5, sigma=0.3, noise_seed=seed)
        model.forget([3])
        draws.append((weights(model) - weights(plain)).ravel())
    noise = np.array(draws)
    assert np.abs(noise.mean(axis=0)).max() < 4 * 0.3 / 20
    covariance = noise.T @ noise / len(noise)
    assert np.abs(covariance - 0.09 * np.eye(4)).max() < 5 * 0.09 / 20


def test_noise_is_fresh_after_every_request_and_not_kept() -> None:
    data = make_data(30)
    model, plain = fitted(data, sigma=1.0), fitted(data)
    offsets = [weights(model) - weights(plain)]
    for own in (3, 4):
        model.forget([own])
        plain.forget([own])
        offsets.append(weights(model) - weights(plain))
    assert np.array_equal(model.trajectory_.points, plain.trajectory_.points)
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert np.abs(offsets[first] - offsets[second]).min() > 0
    assert model.distance_bound_ == plain.distance_bound_


def test_printing_shows_no_path() -> None:
    model = fitted(make_data(30), sigma=1.0)
    assert repr(model.trajectory_) == "<trajectory of 30 steps, 4 parameters>"
    assert "trajectory" not in repr(model)


def test_guarantee_is_empirical_and_tells_the_distance() -> None:
    data = make_data(30)
    model = fitted(data, sigma=1.0, reg="total")
    claim = model.forget([3]).guarantee
    assert claim.kind == "empirical"
    assert f"{model.distance_bound_:.3g}" in claim.reference
    assert "regulariser-in-total" in claim.assumptions
    for code in claim.assumptions:
        assert code in model.facts.definition
    silent = fitted(data, measure_distance=False)
    assert silent.distance_bound_ is None
    assert "measured" not in silent.forget([3]).guarantee.reference


@variants
def test_published_claims_tell_nothing_of_requests(more: dict[str, Any]) -> None:
    data = make_data()
    model, fresh = fitted(data, **more), fitted(data.without([3]), **more)
    model.forget([3])
    assert "measured" in model.guarantee_.reference
    first, second = model.publish().to_dict(), fresh.publish().to_dict()
    assert first.pop("weights") != second.pop("weights")
    assert first == second
    assert "measured" not in first["guarantee"]["reference"]


def test_kept_hessians_hold_no_more_than_the_rows_that_stay() -> None:
    model = fitted(make_data(), hessian="cached")
    model.forget([3])
    checkpoints = model.cache_.content
    assert checkpoints is not None
    problem = model._build_problem(model._training_rows())
    for point, blocks in zip(checkpoints.points, checkpoints.blocks, strict=True):
        wanted = problem.hessian_at(point[:, None])
        for block, own in zip(blocks, wanted, strict=True):
            # The other half would be as it was before the removal.
            np.testing.assert_allclose(block, np.tril(own), atol=1e-10)


def test_measuring_costs_one_pass() -> None:
    data = make_data(30)
    passes = [
        fitted(data, hessian="cached", measure_distance=measured).forget([3]).work * 30
        for measured in (True, False)
    ]
    assert passes[0] - passes[1] == pytest.approx(1.0)


def test_cached_mode_reads_no_other_rows() -> None:
    data = make_data(40)
    model = fitted(data, hessian="cached", measure_distance=False)
    twin = copy.deepcopy(model)
    twin.cache_ = model.cache_
    others = np.arange(40) != 6
    twin.rows_.X[others] = np.nan
    twin.forget([6])
    model.forget([6])
    assert np.array_equal(weights(twin), weights(model))


def test_training_again_when_half_of_the_rows_left() -> None:
    data = make_data(40)
    model = fitted(data)
    assert model.forget(list(range(20))).rebuilt.keys() == {"exact steps"}
    assert model.forget([20]).rebuilt == {"retrains": 1}
    fresh = fitted(data.without(range(21)))
    assert np.allclose(weights(model), weights(fresh), rtol=0, atol=1e-12)
    assert model.pace_ == fresh.pace_


def test_training_again_when_a_class_ends() -> None:
    data = make_data(40, n_classes=3)
    data.y[data.y == 2] = 0
    data.y[:2] = 2
    for more in ({}, {"batch_size": 10}, {"hessian": "cached"}):
        model = fitted(data, **more)
        model.forget([0, 1])
        fresh = fitted(data.without([0, 1]), **more)
        assert model.classes_.tolist() == [0, 1]
        assert model.digest() == fresh.digest()


def test_replay_that_diverges_is_answered_by_training(monkeypatch: pytest.MonkeyPatch) -> None:
    data, original = make_data(40), replay_by_secants

    def diverging(*arguments: Any) -> Any:
        replay = original(*arguments)
        return replace(replay, end=np.full_like(replay.end, np.inf))

    monkeypatch.setattr(_deltagrad, "replay_by_secants", diverging)
    model = fitted(data)
    assert model.forget([3]).rebuilt == {"retrains": 1}
    assert np.isfinite(weights(model)).all()


@pytest.mark.parametrize("batch_size", [None, 10])
def test_default_step_size_goes_down(batch_size: int | None) -> None:
    """1 / M: no larger than the inverse of the largest curvature at the optimum."""
    for seed in range(5):
        data = make_data(40, seed=seed)
        data.X[:, 0] *= 30.0
        model = fitted(data, batch_size=batch_size)
        rows = np.column_stack([data.X, np.ones(40)])
        top = np.linalg.eigvalsh(rows.T @ rows / 40)[-1] / 4 + model.l2
        assert model.learning_rate_ <= 1 / top
        assert batch_size is not None or model.learning_rate_ >= 0.9 / top


def test_trajectories_whose_parts_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \(T, N\)"):
        Trajectory(np.zeros((3, 2)), np.zeros((3, 1)), np.zeros(3, np.int64))
