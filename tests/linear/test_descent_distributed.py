"""The distributed variant: the sample stays a bootstrap, distances are tracked, copies compete."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from letheon.linear import _descent_steps
from letheon.linear._descent import DescentToDeleteClassifier
from letheon.linear._descent_plan import part_size
from letheon.linear._descent_steps import (
    Parts,
    PartSolver,
    draw_parts,
    draw_ranks,
    part_of,
    redraw_after_addition,
    redraw_after_removal,
    train_parts,
)
from letheon.linear._descent_theory import DistributedPlan, build_geometry, natural_radius
from letheon.linear._problem import FitProblem, Logistic
from letheon.linear._solve import minimise_by_newton
from letheon.noise import NoiseSource
from tests.sharded.people import examples

Floats = NDArray[np.float64]
Ranks = NDArray[np.int64]


def after_a_sequence(source: NoiseSource, shape: tuple[int, int]) -> tuple[Ranks, int]:
    """Draw from 8 rows, then remove, add and remove again; return places and number of rows."""
    ranks = draw_ranks(source, shape, 8)
    ranks = redraw_after_removal(source, ranks, np.array([2, 5]), 8).ranks
    ranks = redraw_after_addition(source, ranks, 6, 3).ranks
    ranks = redraw_after_removal(source, ranks, np.array([0, 8]), 9).ranks
    ranks = redraw_after_addition(source, ranks, 7, 1).ranks
    return ranks, 8


def p_value(ranks: Ranks, n_rows: int) -> float:
    """Chi-square of pairs of places over all pairs of rows: uniform and independent."""
    pairs = ranks[:, 0] * n_rows + ranks[:, 1]
    return float(stats.chisquare(np.bincount(pairs, minlength=n_rows**2)).pvalue)


def test_places_stay_uniform_and_independent() -> None:
    ranks, n_rows = after_a_sequence(NoiseSource(11), (20_000, 2))
    assert p_value(ranks, n_rows) > 1e-3


def test_places_from_the_operating_system_as_well() -> None:
    ranks, n_rows = after_a_sequence(NoiseSource(None), (20_000, 2))
    assert p_value(ranks, n_rows) > 1e-6


def test_draws_are_exactly_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words beyond the last multiple of n are drawn again: they would favour small numbers."""
    words = [2**64 - 1, 2**64 - 2, 4, 2**64 - 1, 3]
    monkeypatch.setattr(
        NoiseSource, "_words", lambda _, n: np.array([words.pop(0) for _ in range(n)], np.uint64)
    )
    assert NoiseSource(None).integers(3, 3).tolist() == [2, 1, 0]
    assert words == []


def test_places_of_one_sample_over_many_runs() -> None:
    source = NoiseSource(12)
    runs = np.array([after_a_sequence(source, (1, 2))[0][0] for _ in range(4_000)])
    assert p_value(runs, 8) > 1e-3


class Repeating(NoiseSource):
    """Draws by a hash of how many are asked for: it repeats itself when a number comes back."""

    def integers(self, shape: Any, n: int) -> Ranks:
        self.n_draws = 0
        return super().integers(shape, n)


def test_draws_that_repeat_themselves_would_be_noticed() -> None:
    ranks, n_rows = after_a_sequence(Repeating(11), (20_000, 2))
    assert p_value(ranks, n_rows) < 1e-6


def test_places_that_are_never_filled_again_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        _descent_steps, "draw_ranks", lambda source, shape, n: np.zeros(shape, np.int64)
    )
    ranks = draw_ranks(NoiseSource(1), (20_000, 2), 8)
    ranks = redraw_after_removal(NoiseSource(2), ranks, np.array([3]), 8).ranks
    assert p_value(ranks, 7) < 1e-6


@given(n=st.integers(2, 30), gone=st.sets(st.integers(0, 29), min_size=1), seed=st.integers(0, 99))
def test_removal_keeps_rows_that_stay(n: int, gone: set[int], seed: int) -> None:
    leaving = np.array(sorted(rank for rank in gone if rank < n - 1), np.int64)
    rows = np.arange(n) * 10
    before = draw_ranks(NoiseSource(seed), (4, 5), n)
    after = redraw_after_removal(NoiseSource(seed + 1), before, leaving, n)
    assert np.array_equal(after.changed, np.isin(before, leaving))
    left, kept = np.delete(rows, leaving), ~after.changed
    assert np.array_equal(left[after.ranks[kept]], rows[before[kept]])
    assert ((after.ranks >= 0) & (after.ranks < len(left))).all()


def test_an_addition_takes_its_share_of_places() -> None:
    before = draw_ranks(NoiseSource(0), (400, 400), 30)
    after = redraw_after_addition(NoiseSource(1), before, 30, 10)
    assert after.changed.mean() == pytest.approx(0.25, abs=0.01)
    assert (after.ranks[after.changed] >= 30).all()
    assert np.array_equal(after.ranks[~after.changed], before[~after.changed])


@pytest.mark.parametrize(
    ("n", "xi", "size"), [(16, 1.0, 4), (19, 1.0, 4), (64, 4 / 3, 16), (1, 1.0, 1)]
)
def test_sizes_of_parts(n: int, xi: float, size: int) -> None:
    assert part_size(n, xi) == size


def make_problem(seed: int, n: int = 40) -> FitProblem:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return FitProblem(X, (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int), Logistic(1), n, 0.2)


def optimum(problem: FitProblem) -> Floats:
    return minimise_by_newton(problem, np.zeros(problem.shape), 1e-12, 100).W


def solvers() -> dict[str, Any]:
    shape = build_geometry(Logistic(1), 1.0, 0.2, natural_radius(Logistic(1), 0.2))
    plan = DistributedPlan.for_geometry(shape, 64, 5, 4 / 3, 2, 1.0, 1e-3)
    return {
        "residual": PartSolver(None, 1e-2, 100),
        "theorem": PartSolver(plan, plan.left, n_changed=3),
    }


def fresh_parts(problem: FitProblem, solver: PartSolver, source: NoiseSource) -> Parts:
    drawn = draw_parts(source, 5, problem.n_rows)
    return train_parts(problem, np.arange(problem.n_rows), drawn, solver).parts


@pytest.mark.parametrize("kind", ["residual", "theorem"])
@examples(15)
@given(seed=st.integers(0, 1000), n_rounds=st.integers(1, 5))
def test_tracked_distances_are_bounds_and_their_mean_is_hidden(
    kind: str, seed: int, n_rounds: int
) -> None:
    problem, solver, source = make_problem(seed), solvers()[kind], NoiseSource(seed)
    parts = fresh_parts(problem, solver, source)
    remaining = np.arange(problem.n_rows)
    for k in range(n_rounds + 1):
        if k:
            drawn = redraw_after_removal(source, parts.ranks, np.array([k, 2 * k]), len(remaining))
            remaining = np.delete(remaining, [k, 2 * k])
            parts = train_parts(problem, remaining, drawn, solver, parts).parts
        best = [optimum(part_of(problem, remaining[own])) for own in parts.ranks]
        true = np.linalg.norm(parts.weights.open() - np.array(best), axis=(1, 2))
        assert (true <= parts.distances + 1e-10).all()
        assert np.linalg.norm(parts.mean - np.mean(best, axis=0)) <= parts.distance + 1e-10
        assert parts.distance <= solver.limit


def test_all_parts_go_on_when_the_mean_asks_for_it() -> None:
    problem, source = make_problem(1), NoiseSource(1)
    strict = solvers()["theorem"]
    parts = fresh_parts(problem, strict, source)
    remaining = np.arange(problem.n_rows)
    none = redraw_after_removal(source, parts.ranks, np.empty(0, np.int64), len(remaining))
    lazy = train_parts(problem, remaining, none, strict, parts)
    assert lazy.passes == 0.0
    inflated = type(parts)(parts.ranks, parts.weights, parts.distances + strict.limit)
    again = train_parts(problem, remaining, none, strict, inflated)
    assert again.passes > 0.0
    assert again.parts.distance <= strict.limit


def test_only_parts_that_lose_a_row_go_on() -> None:
    problem, source, solver = make_problem(2), NoiseSource(2), solvers()["residual"]
    parts = fresh_parts(problem, solver, source)
    leaving = np.array([parts.ranks[0, 0]])
    drawn = redraw_after_removal(source, parts.ranks, leaving, 40)
    remaining = np.delete(np.arange(40), leaving)
    after = train_parts(problem, remaining, drawn, solver, parts).parts
    same = (after.weights.open() == parts.weights.open()).all(axis=(1, 2))
    assert np.array_equal(same, ~drawn.changed.any(axis=1))
    assert not same.all()


def fitted(**changes: Any) -> DescentToDeleteClassifier:
    problem = make_problem(3)
    settings = {"l2": 0.2, "variant": "distributed", "noise_seed": 4, **changes}
    return DescentToDeleteClassifier(**settings).fit(problem.X, problem.y)


def test_the_copy_of_least_loss_is_published() -> None:
    model = fitted(n_copies=4, sigma=1e-9)
    problem = model._build_problem(model._training_rows())
    losses = [problem.value_at(parts.mean) for parts in model.parts_]
    best = model.parts_[int(np.argmin(losses))]
    assert np.allclose(model.model_.weights, best.mean, atol=1e-7)
    assert len(set(losses)) == 4


def test_copies_share_the_certificate() -> None:
    single, four = (fitted(n_copies=n, noise_seed=None) for n in (1, 4))
    assert single.limit_ > 3 * four.limit_
    assert four.guarantee_.epsilon == 1.0


def test_parts_follow_removals_after_holes_are_closed() -> None:
    model = fitted(sigma=0.0)
    for person in range(7):
        model.forget([person])
    model.learn(np.eye(3), [0, 1, 1], ids=[90, 91, 92])
    assert model.rows_.n_slots < 43
    rows = model.rows_.compact_copy()
    whole = FitProblem(rows.X, rows.y, Logistic(1), len(rows), 0.2)
    (parts,) = model.parts_
    best = np.array([optimum(part_of(whole, own)) for own in parts.ranks])
    assert np.allclose(parts.weights.open(), best, atol=1e-6)


def test_printouts_do_not_show_the_sample() -> None:
    (parts,) = fitted().parts_
    assert repr(parts) == "Parts(weights=<secret>)"
