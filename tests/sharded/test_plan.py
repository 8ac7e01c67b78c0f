"""The planner against simulations that share no line with it."""

import inspect
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon.sharded import SISAClassifier
from letheon.sharded._plan import Plan, StageData, compare_plans, epochs_per_stage, plan

Places = NDArray[np.int64]


def retrain_once(
    shard: Places, piece: Places, gone: Places, kept: Places, p: Plan
) -> tuple[int, int, int]:
    """Do what SISA does, row by row: return visits in rows, shards and stages."""
    visits = stages = 0
    touched = set(shard[gone].tolist())
    for s in touched:
        first = int(piece[gone][shard[gone] == s].min())
        mine = piece[kept][shard[kept] == s]
        for k in range(first, p.n_slices):
            seen = mine <= k if p.stage_data == "cumulative" else mine == k
            visits += p.schedule[k] * int(seen.sum())
            stages += 1
    return visits, len(touched), stages


def stops(p: Plan) -> list[int]:
    """How many people have left whenever the model is retrained."""
    return [p.n_requests] if p.batch else list(range(1, p.n_requests + 1))


def simulate(p: Plan, repeats: int, seed: int = 0) -> tuple[float, float, float]:
    """Mean visits, shards and stages when people are thrown into cells by a hash."""
    rng = np.random.default_rng(seed)
    people = round(p.n_rows / p.rows_per_person)
    total = np.zeros(3)
    for _ in range(repeats):
        shard = rng.integers(p.n_shards, size=people)
        piece = rng.integers(p.n_slices, size=people)
        queue = rng.permutation(people)
        start = 0
        for stop in stops(p):
            total += retrain_once(shard, piece, queue[start:stop], queue[stop:], p)
            start = stop
    visits, shards, stages = total / repeats
    return visits * p.rows_per_person, shards, stages


CASES: list[dict[str, Any]] = [
    {"n_requests": 1, "n_shards": 5, "n_slices": 10, "epochs": 20},
    {"n_requests": 7, "n_shards": 5, "n_slices": 1, "epochs": 1},
    {"n_requests": 8, "n_shards": 20, "n_slices": 50, "epochs": 51},
    {"n_requests": 5, "n_shards": 3, "n_slices": 6, "epochs": 4},
    {"n_requests": 5, "n_shards": 3, "n_slices": 6, "epochs": 2, "stage_data": "new"},
    {"n_requests": 4, "n_shards": 3, "n_slices": 10, "epochs": 11},
    {"n_requests": 4, "n_shards": 3, "n_slices": 7, "stage_data": "new"},
    {"n_requests": 6, "n_shards": 4, "n_slices": 5, "epochs": 3, "rows_per_person": 3.0},
    {"n_requests": 6, "n_shards": 4, "n_slices": 5, "epochs": 3, "batch": False},
    {"n_requests": 20, "n_shards": 4, "n_slices": 4, "epochs": 9, "batch": False},
    {"n_requests": 9, "n_shards": 2, "n_slices": 3, "stage_data": "new", "batch": False},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_expectations_agree_with_simulation(case: dict[str, Any]) -> None:
    p = plan(600, **case)
    # a single request varies most, many requests or slices least
    repeats = 12_000 if p.n_requests == 1 else 3000 // max(p.n_slices // 15, len(stops(p)) // 3, 1)
    visits, shards, stages = simulate(p, repeats)
    assert p.visits == pytest.approx(visits, rel=0.015)
    assert p.shards_touched == pytest.approx(shards, rel=0.015)
    assert p.stages_touched == pytest.approx(stages, rel=0.02)


def test_simulation_can_tell_a_wrong_formula() -> None:
    p = plan(600, 5, n_shards=3, n_slices=6, epochs=4)
    visits, _, _ = simulate(p, 2000)
    without_slices = plan(600, 5, n_shards=3, epochs=4).visits
    without_the_leavers = p.visits * 600 / 595
    assert visits != pytest.approx(without_slices, rel=0.015)
    assert without_the_leavers / p.visits > 1.008


def balanced_simulation(p: Plan, repeats: int) -> float:
    """Row visits when cells are equally full and each request picks one at random."""
    rng = np.random.default_rng(1)
    size = p.n_rows / (p.n_shards * p.n_slices)
    total = 0.0
    for _ in range(repeats):
        left = np.full((p.n_shards, p.n_slices), size)
        steps = [p.n_requests] if p.batch else [1] * p.n_requests
        for k_people in steps:
            cells = rng.integers([[p.n_shards, p.n_slices]] * k_people)
            np.subtract.at(left, tuple(cells.T), p.rows_per_person)
            for s in set(cells[:, 0].tolist()):
                for k in range(cells[cells[:, 0] == s, 1].min(), p.n_slices):
                    low = 0 if p.stage_data == "cumulative" else k
                    total += p.schedule[k] * left[s, low : k + 1].sum()
    return total / repeats


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("stage_data", ["cumulative", "new"])
def test_balanced_visits_agree_with_simulation(batch: bool, stage_data: StageData) -> None:
    p = plan(
        2400, 12, n_shards=4, n_slices=6, stage_data=stage_data, batch=batch, rows_per_person=2
    )
    assert p.balanced_visits == pytest.approx(balanced_simulation(p, 1500), rel=0.01)


@pytest.mark.parametrize(("n", "s", "k"), [(2000, 10, 60), (500, 1, 3), (999, 7, 100)])
def test_balanced_visits_are_equations_6_and_8(n: int, s: int, k: int) -> None:
    one_by_one = (n / s + 1 / (2 * s) - 1) * k - k**2 / (2 * s)
    together = n * (1 - (1 - 1 / s) ** k) - k
    assert plan(n, k, n_shards=s, batch=False).balanced_visits == pytest.approx(one_by_one)
    assert plan(n, k, n_shards=s).balanced_visits == pytest.approx(together)


@pytest.mark.parametrize(("k", "speed_up"), [(1, 29.7), (8, 4.23), (18, 2.24), (39, 1.42)])
def test_known_speed_ups_at_20_by_50(k: int, speed_up: float) -> None:
    p = plan(250_000, k, n_shards=20, n_slices=50)
    assert p.ideal_speed_up == pytest.approx(speed_up, rel=0.003)
    assert p.speed_up == pytest.approx(p.ideal_speed_up)


grid = {"s": st.integers(1, 40), "r": st.integers(1, 40), "k": st.integers(1, 60)}


@given(**grid)
def test_closed_forms_of_one_request(s: int, r: int, k: int) -> None:
    cumulative, new = (
        plan(1000, n_shards=s, n_slices=r, stage_data=how) for how in ("cumulative", "new")
    )
    assert cumulative.ideal_speed_up == pytest.approx(s * 3 * r / (2 * r + 1))
    assert cumulative.best_case == pytest.approx((r + 1) * s / 2)
    assert new.ideal_speed_up == pytest.approx(s * 2 * r / (r + 1))
    assert new.best_case == pytest.approx(r * s)


@given(**grid)
def test_closed_form_of_a_batch(s: int, r: int, k: int) -> None:
    total = sum(j * (1 - (1 - j / (r * s)) ** k) for j in range(1, r + 1))
    expected = 1 / (2 / (r + 1) / r * total)
    assert plan(1000, k, n_shards=s, n_slices=r).ideal_speed_up == pytest.approx(expected)


@given(**grid, e=st.integers(1, 60))
def test_integer_schedule_is_within_half_an_epoch(s: int, r: int, k: int, e: int) -> None:
    epochs = max(e, math.ceil((r + 1) / 2))
    p = plan(1000, k, n_shards=s, n_slices=r, epochs=epochs)
    assert abs(p.fit_visits / 1000 - epochs) <= 0.5 + 1e-9
    assert min(p.schedule) >= 1


@given(**grid)
def test_more_of_anything_costs_as_expected(s: int, r: int, k: int) -> None:
    p = plan(1000, k, n_shards=s, n_slices=r)
    more = plan(1000, k + 1, n_shards=s, n_slices=r)
    assert more.visits_per_request <= p.visits_per_request * (1 + 1e-12)
    finer = plan(1000, k, n_shards=s + 1, n_slices=r)
    # Once surely every shard is touched, the gain is below the last bit of a float.
    assert finer.speed_up > p.speed_up or (k > 40 and finer.speed_up == p.speed_up)
    assert p.speed_up <= plan(1000, k, n_shards=s, n_slices=r + 1).speed_up * (1 + 1e-12)
    assert 1 - 1e-12 <= p.speed_up <= p.best_case * (1 + 1e-12)


@given(**grid)
def test_one_by_one_is_a_sum_of_single_requests(s: int, r: int, k: int) -> None:
    options: dict[str, Any] = {"n_shards": s, "n_slices": r, "epochs": 21}
    singles = sum(plan(1000 - i, 1, **options).visits for i in range(k))
    assert plan(1000, k, batch=False, **options).visits == pytest.approx(singles)


@given(**grid, m=st.integers(1, 9), batch=st.booleans())
def test_people_of_many_rows_scale_everything(s: int, r: int, k: int, m: int, batch: bool) -> None:
    single, many = (
        plan(1000 * x, k, n_shards=s, n_slices=r, rows_per_person=x, batch=batch) for x in (1, m)
    )
    assert many.visits == pytest.approx(m * single.visits)
    assert many.balanced_visits == pytest.approx(m * single.balanced_visits)
    assert many.speed_up == pytest.approx(single.speed_up)


def test_best_case_runs_the_last_stage_of_one_shard() -> None:
    # stage 10 alone: 10/55 of one shard's row visits
    assert plan(1000, n_shards=3, n_slices=10).best_case == pytest.approx(3 * 55 / 10)
    assert plan(1000, n_shards=3, n_slices=10, stage_data="new").best_case == pytest.approx(30)


@given(e=st.integers(1, 60), r=st.integers(1, 60))
def test_schedule_adds_up(e: int, r: int) -> None:
    if 2 * e < r + 1:
        with pytest.raises(ValueError, match="is too few for"):
            epochs_per_stage(e, r)
    else:
        stages = epochs_per_stage(e, r)
        assert len(stages) == r
        assert sum(stages) == 2 * e * r // (r + 1)


@pytest.mark.parametrize(
    ("e", "r", "stages"),
    [(5, 1, (5,)), (2, 2, (1, 1)), (5, 3, (2, 3, 2)), (4, 4, (1, 2, 1, 2)), (26, 51, (1,) * 51)],
)
def test_schedule_by_hand(e: int, r: int, stages: tuple[int, ...]) -> None:
    assert epochs_per_stage(e, r, "cumulative") == stages
    assert epochs_per_stage(e, r, "new") == (e,) * r


def test_advice_in_the_schedule_error_can_be_followed() -> None:
    with pytest.raises(ValueError, match="at least 26 epochs or at most 39 slices"):
        epochs_per_stage(20, 50)
    assert min(epochs_per_stage(26, 50) + epochs_per_stage(20, 39)) == 1


@pytest.mark.parametrize(("slices", "states"), [(1, 5), (2, 10), (10, 50)])
def test_storage(slices: int, states: int) -> None:
    p = plan(1000, n_shards=5, n_slices=slices, state_bytes=800)
    assert p.states == states
    assert p.storage_bytes == states * 800
    assert plan(1000).storage_bytes is None


def test_a_plan_takes_no_setting_that_the_method_lacks() -> None:
    settings = set(inspect.signature(SISAClassifier).parameters)
    about_the_requests = {"n_rows", "n_requests", "batch", "state_bytes", "rows_per_person"}
    assert set(inspect.signature(plan).parameters) - about_the_requests <= settings


def test_shard_sizes_are_binomial() -> None:
    p = plan(400, n_shards=8, rows_per_person=4)
    rng = np.random.default_rng(3)
    sizes = np.array([np.bincount(rng.integers(8, size=100), minlength=8) for _ in range(4000)])
    assert p.shard_rows == pytest.approx(4 * sizes.mean())
    assert p.shard_rows_sd == pytest.approx(4 * sizes.std(), rel=0.02)


def test_empty_shards_are_foreseen() -> None:
    rng = np.random.default_rng(4)
    empty = [30 - len(np.unique(rng.integers(30, size=50))) for _ in range(4000)]
    assert plan(50, n_shards=30).empty_shards == pytest.approx(np.mean(empty), rel=0.02)


def test_tiny_shares_keep_their_digits() -> None:
    p = plan(10**9, n_shards=10**8, n_slices=1)
    assert p.speed_up == pytest.approx(1e8, rel=1e-12)


def test_grid_order_and_content() -> None:
    plans = compare_plans(500, [1, 9], n_shards=iter([2, 4]), n_slices=iter([1, 3]), state_bytes=8)
    keys = [(p.n_shards, p.n_slices, p.n_requests) for p in plans]
    assert keys == [(s, r, k) for s in (2, 4) for r in (1, 3) for k in (1, 9)]
    assert plans[-1] == plan(500, 9, n_shards=4, n_slices=3, state_bytes=8)


def test_to_dict_and_text_carry_the_numbers() -> None:
    p = plan(1200, 3, n_shards=4, n_slices=3, state_bytes=2048, batch=False)
    row = p.to_dict()
    assert row["visits"] == p.visits
    assert row["storage_bytes"] == 12 * 2048
    assert "4 shards x 3 slices, 3 of 1,200 people one by one" in str(p)
    assert f"{p.speed_up:.2f}x" in str(p)
    assert "12 states (24 KiB)" in str(p)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"n_rows": 0}, ValueError, "n_rows must be at least 1"),
        ({"n_requests": 0}, ValueError, "n_requests must be at least 1"),
        ({"n_requests": 100}, ValueError, "remove all 100 rows"),
        ({"n_requests": 40, "rows_per_person": 2.5}, ValueError, "so that some rows remain"),
        ({"n_shards": 2.5}, TypeError, "n_shards must be a whole number"),
        ({"n_slices": True}, TypeError, "n_slices must be a whole number"),
        ({"n_slices": 0}, ValueError, "n_slices must be at least 1"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1"),
        ({"epochs": 2, "n_slices": 4}, ValueError, "at least 3 epochs or at most 3 slices"),
        ({"every": 2}, TypeError, "unexpected keyword argument 'every'"),
        ({"state_bytes": -1}, ValueError, "state_bytes must be at least 0"),
        ({"rows_per_person": 0.5}, ValueError, "rows_per_person must be at least 1"),
        ({"rows_per_person": math.nan}, ValueError, "rows_per_person must be at least 1"),
        ({"stage_data": "old"}, ValueError, "'cumulative' or 'new', not 'old'"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        plan(**({"n_rows": 100} | change))
