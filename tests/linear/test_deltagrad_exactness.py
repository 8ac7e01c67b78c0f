"""DeltaGrad against references: L-BFGS products, replays, and retraining where it must be equal."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon.data import as_ids
from letheon.linear import _deltagrad, _replay
from letheon.linear._deltagrad import DeltaGradClassifier
from letheon.linear._replay import (
    BatchSchedule,
    BlockSecantHistory,
    Checkpoints,
    RowRemoval,
    SecantHistory,
    row_keys,
)
from letheon.linear._solve import minimise
from tests.linear.deltagrad_reference import DeltaGradReference, ReplayData, bfgs_matrix, make_data
from tests.sharded.people import examples

Floats = NDArray[np.float64]

KINDS = {"binary": (2, "ovr"), "ovr": (3, "ovr"), "softmax": (3, "softmax")}
N_STEPS, SEED = 25, 7
RATE = 0.4


def make(kind: str, reg: str, batch_size: int | None, **more: Any) -> DeltaGradClassifier:
    return DeltaGradClassifier(
        l2=0.05 if reg == "per_sample" else 3.0,
        reg=reg,
        multi_class=KINDS[kind][1],
        batch_size=batch_size,
        learning_rate=RATE,
        n_steps=more.pop("n_steps", N_STEPS),
        random_state=SEED,
        **more,
    )


def fitted(model: DeltaGradClassifier, data: ReplayData) -> DeltaGradClassifier:
    return model.fit(data.X, data.y, ids=data.ids)


def reference_of(model: DeltaGradClassifier, data: ReplayData, kind: str) -> DeltaGradReference:
    return DeltaGradReference(
        data, kind=kind, l2=model.l2, reg=model.reg, rate=RATE, batches=batches_of(model, data)
    )


def batches_of(model: DeltaGradClassifier, data: ReplayData) -> list[set[int]]:
    """Ids of every step. The rule itself is tested below."""
    all_ids = set(data.ids.tolist())
    if model.pace_.n_batches == 1:
        return [all_ids] * model.n_steps
    keys, alive = row_keys(as_ids(data.ids), SEED), np.ones(len(data.ids), bool)
    batches = BatchSchedule(keys, alive, model.pace_.n_batches, SEED)
    return [set(data.ids[batches.rows_of_step(t)].tolist()) for t in range(model.n_steps)]


def weights(model: DeltaGradClassifier) -> Floats:
    return np.column_stack([model.coef_, model.intercept_])


def path_of(reference: DeltaGradReference) -> Floats:
    return np.array([[w.ravel(), g.ravel()] for w, g in reference.path])


def assert_same_path(
    model: DeltaGradClassifier, reference: DeltaGradReference, within: float
) -> None:
    assert np.abs(weights(model) - reference.end).max() <= within
    path = model.trajectory_
    actual = np.stack([path.points, path.gradients], axis=1)
    assert np.abs(actual - path_of(reference)).max() <= within


regs = pytest.mark.parametrize("reg", ["per_sample", "total"])
kinds = pytest.mark.parametrize("kind", list(KINDS))
batched = pytest.mark.parametrize("batch_size", [None, 20])


@kinds
@regs
@batched
def test_training_is_gradient_descent(kind: str, reg: str, batch_size: int | None) -> None:
    data = make_data(n_classes=KINDS[kind][0])
    model = fitted(make(kind, reg, batch_size), data)
    assert_same_path(model, reference_of(model, data, kind), 1e-13)


@kinds
@regs
@batched
def test_replay_is_the_corrected_algorithm(kind: str, reg: str, batch_size: int | None) -> None:
    data = make_data(n_classes=KINDS[kind][0])
    settings = {"burn_in": 4, "period": 4, "history": 3}
    model = fitted(make(kind, reg, batch_size, **settings), data)
    reference = reference_of(model, data, kind)
    for gone in ({5}, {11, 40, 2}):
        model.forget(sorted(gone))
        reference.forget(gone, **settings)
        assert_same_path(model, reference, 1e-9)


@kinds
@regs
@batched
def test_cached_replay_is_its_formula(kind: str, reg: str, batch_size: int | None) -> None:
    data = make_data(n_classes=KINDS[kind][0])
    model = fitted(make(kind, reg, batch_size, hessian="cached", n_checkpoints=3), data)
    reference = reference_of(model, data, kind)
    nodes, nearest = _replay._choose_nodes(model.trajectory_.points, 3)
    assert nodes[-1] == N_STEPS - 1
    model.forget([5, 17, 44])
    reference.forget_by_hessians({5, 17, 44}, nodes.tolist(), nearest.tolist())
    assert_same_path(model, reference, 1e-12)


def test_cached_hessians_follow_every_removal() -> None:
    """After many requests they are those of the remaining rows, at the old points."""
    data = make_data(n_classes=3)
    for multi_class in ("ovr", "softmax"):
        model = fitted(make(multi_class, "total", None, hessian="cached"), data)
        for gone in ([3], [4, 9, 31], [50]):
            model.forget(gone)
        checkpoints = model.cache_.content
        assert checkpoints is not None
        problem = model._build_problem(model._training_rows())
        for point, blocks in zip(checkpoints.points, checkpoints.blocks, strict=True):
            W = point.reshape(problem.shape[::-1]).T
            for block, expected in zip(blocks, problem.hessian_at(W), strict=True):
                assert np.allclose(np.tril(block), np.tril(expected), rtol=0, atol=1e-12)


def test_cached_replay_in_small_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_data(n_classes=3)
    whole = fitted(make("ovr", "per_sample", None, hessian="cached"), data)
    whole.forget([1, 2, 3])
    monkeypatch.setattr(_replay, "_CHUNK", 40)
    monkeypatch.setattr(_replay, "_FACTOR_COLUMNS", 2)
    pieces = fitted(make("ovr", "per_sample", None, hessian="cached"), data)
    pieces.forget([1, 2, 3])
    assert np.allclose(weights(pieces), weights(whole), rtol=0, atol=1e-13)


@st.composite
def stories(draw: st.DrawFn) -> tuple[str, str, int | None, ReplayData, list[list[int]]]:
    """A problem and several requests that leave more than half of the rows."""
    kind = draw(st.sampled_from(list(KINDS)))
    reg = draw(st.sampled_from(["per_sample", "total"]))
    batch_size = draw(st.sampled_from([None, 15]))
    n = draw(st.integers(40, 52))
    # Down to 38 rows a fresh fit makes as many batches of 15: three.
    most = n // 2 - 1 if batch_size is None else n - 38
    data = make_data(n, n_classes=KINDS[kind][0], seed=draw(st.integers(0, 10**6)))
    leaving = draw(st.permutations(range(n)))[: draw(st.integers(1, most))]
    cut = draw(st.integers(0, len(leaving)))
    return kind, reg, batch_size, data, [part for part in (leaving[:cut], leaving[cut:]) if part]


def worst_gap(
    kind: str, reg: str, batch_size: int | None, data: ReplayData, requests: Any
) -> float:
    """Largest difference of parameters and path between forgetting with T0 = 1 and a fresh fit."""
    model = fitted(make(kind, reg, batch_size, period=1), data)
    for request in requests:
        model.forget(list(request))
    gone = [own for request in requests for own in request]
    fresh = fitted(make(kind, reg, batch_size), data.without(gone))
    assert model.pace_.n_batches == fresh.pace_.n_batches
    assert np.array_equal(model.trajectory_.sizes, fresh.trajectory_.sizes)
    gaps = [
        weights(model) - weights(fresh),
        model.trajectory_.points - fresh.trajectory_.points,
        model.trajectory_.gradients - fresh.trajectory_.gradients,
    ]
    return max(float(np.abs(gap).max()) for gap in gaps)


@examples(40)
@given(stories())
def test_period_of_one_equals_retraining(story: Any) -> None:
    assert worst_gap(*story) <= 1e-12


REPLAYED = [
    {"burn_in": 5, "period": 4},
    {"hessian": "cached"},
    {"hessian": "cached", "n_checkpoints": 1},
]


@pytest.mark.parametrize("more", REPLAYED)
@pytest.mark.parametrize(("batch_size", "share"), [(None, 0.03), (100, 0.15)])
@kinds
def test_replay_is_far_nearer_to_a_retrain_than_nothing(
    more: Any, batch_size: int | None, share: float, kind: str
) -> None:
    data = make_data(400, n_classes=KINDS[kind][0])
    model = fitted(make(kind, "per_sample", batch_size, n_steps=100, **more), data)
    before = weights(model)
    for gone in ([3, 50], [7], [301, 302]):
        model.forget(gone)
    rest = data.without([3, 50, 7, 301, 302])
    retrained = weights(fitted(make(kind, "per_sample", batch_size, n_steps=100), rest))
    nothing = np.linalg.norm(before - retrained)
    assert np.linalg.norm(weights(model) - retrained) < share * nothing


@examples(50)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 5))
def test_compact_form_is_the_bfgs_matrix(seed: int, n_pairs: int, history: int) -> None:
    rng = np.random.default_rng(seed)
    size = 7
    root = rng.normal(size=(size, size))
    hessian = root @ root.T + 0.1 * np.eye(size)
    pairs = [(s, hessian @ s) for s in rng.normal(size=(n_pairs, size))]
    secants = SecantHistory(history, size)
    for s, y in pairs:
        assert secants.add_pair(s, y)
    B = bfgs_matrix(pairs[-history:])
    columns = [secants.hessian_product(e) for e in np.eye(size)]
    matrix = np.array([column for column in columns if column is not None])
    assert np.allclose(matrix, B, rtol=0, atol=1e-7 * np.abs(B).max())
    s, y = pairs[-1]
    product = secants.hessian_product(s)
    assert product is not None
    assert np.allclose(product, y, rtol=0, atol=1e-7 * np.abs(y).max())


def test_pairs_without_curvature_are_refused() -> None:
    secants, s = SecantHistory(2, 3), np.array([1.0, 2.0, 0.0])
    assert not secants.add_pair(s, np.zeros(3))
    assert not secants.add_pair(s, -s)
    assert not secants.add_pair(np.zeros(3), s)
    assert secants.hessian_product(s) is None
    assert secants.add_pair(s, 2 * s)
    product = secants.hessian_product(s)
    assert product is not None
    assert np.allclose(product, 2 * s)


def test_scale_has_a_floor() -> None:
    secants, s, other = SecantHistory(2, 2), np.array([1.0, 0.0]), np.array([0.0, 1.0])
    secants.add_pair(s, 1e-6 * s)
    product = secants.hessian_product(other)
    assert product is not None
    assert np.allclose(product, 1e-3 * other)


def test_products_that_cannot_be_trusted() -> None:
    secants, v = BlockSecantHistory(2, 2, 2), np.array([1.0, 0.0, 0.0, 0.0])
    assert secants.hessian_product(v, most=10.0) is None
    secants.add_pair(v, 3 * v)
    still = secants.hessian_product(v, most=10.0)
    assert still is not None
    assert np.allclose(still, 3 * v)
    assert secants.hessian_product(v, most=2.0) is None
    assert secants.hessian_product(np.ones(4), most=10.0) is None  # the second block has no pair
    nothing = secants.hessian_product(np.zeros(4), most=0.0)
    assert nothing is not None
    assert not nothing.any()


def test_steps_without_trust_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where L-BFGS never answers, the replay is a retrain."""
    data = make_data()
    monkeypatch.setattr(BlockSecantHistory, "hessian_product", lambda *_: None)
    model = fitted(make("binary", "total", None, burn_in=0, period=100), data)
    receipt = model.forget([8])
    assert receipt.rebuilt == {"exact steps": N_STEPS}
    fresh = fitted(make("binary", "total", None), data.without([8]))
    assert np.abs(weights(model) - weights(fresh)).max() <= 1e-12


@pytest.mark.parametrize(("burn_in", "period"), [(4, 4), (0, 3), (10, 7)])
def test_number_of_exact_steps(burn_in: int, period: int) -> None:
    model = fitted(make("binary", "per_sample", None, burn_in=burn_in, period=period), make_data())
    steps = [t for t in range(N_STEPS) if t <= burn_in or (t - burn_in) % period == 0]
    n_exact = model.forget([3]).rebuilt["exact steps"]
    # Step 0 gives no pair, for nothing has moved; so without burn-in step 1 must be exact too.
    assert n_exact == len(steps) + (burn_in == 0)


@examples(30)
@given(st.integers(0, 10**6), st.sampled_from(list(KINDS)), st.sampled_from(["lbfgs", "cached"]))
def test_distance_bound_holds(seed: int, kind: str, hessian: str) -> None:
    data = make_data(30, n_classes=KINDS[kind][0], seed=seed)
    model = fitted(make(kind, "per_sample", None, hessian=hessian, n_steps=12), data)
    for gone in ([], [4], [9, 10]):
        model.forget(gone)
        problem = model._build_problem(model._training_rows())
        optimum = minimise(problem, tolerance=1e-10, max_iter=200).W
        distance = float(np.linalg.norm(weights(model) - optimum.T))
        assert model.distance_bound_ is not None
        assert distance <= model.distance_bound_ * (1 + 1e-9) + 1e-9


def _regulariser_left_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def adjusted(self: RowRemoval, g: Floats, w: Floats, own: Floats | None, step: int) -> Floats:
        return original(self, g, w, own, step) - float(self._shrinkage[step]) * w

    original = RowRemoval.adjust_gradient
    monkeypatch.setattr(RowRemoval, "adjust_gradient", adjusted)


def _wrong_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RowRemoval.own_gradient

    def own_gradient(self: RowRemoval, W: Floats, step: int) -> Floats | None:
        own = original(self, W, step)
        return None if own is None else -own

    monkeypatch.setattr(RowRemoval, "own_gradient", own_gradient)


def _path_not_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = _replay.replay_by_secants

    def stale(descent: Any, path: Any, removed: Any, exactness: Any) -> Any:
        return replace(original(descent, path, removed, exactness), trajectory=path)

    monkeypatch.setattr(_deltagrad, "replay_by_secants", stale)


def _divided_by_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RowRemoval.adjust_gradient

    def adjusted(self: RowRemoval, g: Floats, w: Floats, own: Floats | None, step: int) -> Floats:
        return original(self, g, w, own, step) * (1 - 1 / 60)

    monkeypatch.setattr(RowRemoval, "adjust_gradient", adjusted)


def _batches_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(ids: Any, seed: int) -> Any:
        return np.arange(len(ids), dtype=np.uint64)

    monkeypatch.setattr(_deltagrad, "row_keys", keys)


BUGS = [_regulariser_left_in, _wrong_sign, _path_not_refreshed, _divided_by_all_rows]


@pytest.mark.parametrize("plant", BUGS)
def test_planted_bugs_are_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_data()
    assert worst_gap("binary", "per_sample", None, data, [[3], [20, 21]]) <= 1e-12
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        assert worst_gap("binary", "per_sample", None, data, [[3], [20, 21]]) <= 1e-12


def test_reshuffled_batches_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_data()
    assert worst_gap("binary", "per_sample", 20, data, [[3]]) <= 1e-12
    _batches_by_place(monkeypatch)
    with pytest.raises(AssertionError):
        assert worst_gap("binary", "per_sample", 20, data, [[3]]) <= 1e-12


def test_wrong_products_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    data, settings = make_data(), {"burn_in": 4, "period": 4, "history": 3}
    original = BlockSecantHistory.hessian_product

    def twice(self: BlockSecantHistory, v: Floats, most: float) -> Floats | None:
        product = original(self, v, most)
        return None if product is None else 2 * product

    monkeypatch.setattr(BlockSecantHistory, "hessian_product", twice)
    model = fitted(make("binary", "per_sample", None, **settings), data)
    reference = reference_of(model, data, "binary")
    model.forget([5])
    reference.forget({5}, **settings)
    with pytest.raises(AssertionError):
        assert_same_path(model, reference, 1e-9)


def test_stale_hessians_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_data()
    monkeypatch.setattr(Checkpoints, "without", lambda self, _: self)
    model = fitted(make("binary", "per_sample", None, hessian="cached", n_checkpoints=3), data)
    reference = reference_of(model, data, "binary")
    nodes, nearest = _replay._choose_nodes(model.trajectory_.points, 3)
    model.forget([5, 17, 44])
    reference.forget_by_hessians({5, 17, 44}, nodes.tolist(), nearest.tolist())
    with pytest.raises(AssertionError):
        assert_same_path(model, reference, 1e-12)


@examples(30)
@given(st.integers(0, 2**100), st.integers(2, 9), st.lists(st.integers(0, 15), min_size=2))
def test_batches_depend_on_the_own_id_only(seed: int, n_batches: int, owners: list[int]) -> None:
    """Every row is in one batch of an epoch, and stays there after any removal."""
    ids = np.array(owners)
    rest = np.flatnonzero(ids != ids[0])
    all_keys = row_keys(as_ids(ids), seed)
    assert len(np.unique(all_keys)) == len(ids)
    assert np.array_equal(row_keys(as_ids(ids[rest]), seed), all_keys[rest])
    alive = np.ones(len(ids), bool)
    batches = BatchSchedule(all_keys, alive, n_batches, seed)
    alive_after = ids != ids[0]
    after = BatchSchedule(all_keys, alive_after, n_batches, seed)
    meetings = dict(batches.iterate_steps_of(np.flatnonzero(~alive_after), 3 * n_batches))
    for epoch in range(3):
        steps = range(epoch * n_batches, (epoch + 1) * n_batches)
        assert sorted(np.concatenate([batches.rows_of_step(t) for t in steps])) == list(
            range(len(ids))
        )
    for t in range(3 * n_batches):
        gone = np.setdiff1d(batches.rows_of_step(t), after.rows_of_step(t))
        expected = np.flatnonzero(~alive_after)[meetings.get(t, np.empty(0, np.int64))]
        assert np.array_equal(gone, expected)


def test_a_batch_that_leaves_as_a_whole_is_skipped() -> None:
    data = make_data(40)
    model = fitted(make("binary", "per_sample", 8, period=1), data)
    first = batches_of(model, data)[0]
    model.forget(sorted(first))
    assert model.trajectory_.sizes[0] == 0
    assert not model.trajectory_.gradients[0].any()
    assert not model.trajectory_.points[1].any()
    reference = reference_of(model, data.without(first), "binary")
    assert_same_path(model, reference, 1e-12)
