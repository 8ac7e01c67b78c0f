"""DeepObliviate's run between two runs: what it measures, when it stops, and what it estimates."""

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from letheon.deep._checkpoints import CheckpointStore
from letheon.deep._loop import Loop, TrainingPhase
from letheon.deep._obliviate import (
    Blocks,
    BlockSchedule,
    DeepObliviateClassifier,
    UnlearningRun,
    make_rule,
    stitch_run,
)
from letheon.deep._residual import (
    FadingLaw,
    PaperRule,
    RobustRule,
    StopRule,
    fit_fading_law,
    relative_residual,
)
from tests.deep.obliviate_reference import (
    fitted,
    make,
    make_people,
    norms_of_moves,
    people_in,
    scratch_states,
    states,
)
from tests.sharded.people import examples

Floats = NDArray[np.float64]

HASTY: dict[str, Any] = {"epsilon": 1e9, "n_blocks": 10}


class Runs(NamedTuple):
    """Two runs in numbers that float32 adds without rounding, and who leaves where."""

    old: Floats
    new: Floats
    sizes: NDArray[np.int64]
    affected: tuple[int, int]

    def scale_by(self, factor: float) -> "Runs":
        return self._replace(old=factor * self.old, new=factor * self.new)


class Sized(Blocks):
    """Blocks of which only the sizes are known."""

    def __init__(self, sizes: NDArray[np.int64]) -> None:
        self.sizes = self._n_slots = sizes


def rule_settings(stop: str, epsilon: float, patience: int = 2, origin: str = "block") -> Any:
    return SimpleNamespace(stop=stop, epsilon=epsilon, stop_origin=origin, patience=patience)


def grid(rng: np.random.Generator, shape: tuple[int, ...], size: float = 1.0) -> Floats:
    """Random multiples of 1/1024, small enough for exact sums in float32."""
    return np.round(1024 * size * rng.uniform(-1, 1, shape)) / 1024


@st.composite
def runs(draw: st.DrawFn) -> Runs:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_blocks, p = draw(st.integers(1, 25)), draw(st.integers(1, 6))
    sizes = rng.integers(0, 4, n_blocks)
    affected = sorted(rng.integers(0, min(n_blocks, 8), 2).tolist())
    # Every block has another influence, so that no two may be mixed up.
    moves = grid(rng, (n_blocks, p)) * rng.integers(1, 9, (n_blocks, 1))
    apart = grid(rng, (n_blocks, p), draw(st.sampled_from([0.02, 0.5])))
    moves[sizes == 0], apart[sizes == 0], apart[: affected[0]] = 0.0, 0.0, 0.0
    start = grid(rng, (1, p))
    old, new = (
        np.vstack([start, start + np.cumsum(each, axis=0)]) for each in (moves, moves + apart)
    )
    return Runs(old, new, sizes, (affected[0], affected[1]))


def as_state(numbers: Floats) -> Tensor:
    return torch.from_numpy(numbers.astype(np.float32))


def vault_of(outcome: Floats) -> CheckpointStore:
    store = CheckpointStore.create(*outcome.shape)
    for i, numbers in enumerate(outcome):
        store.put(i, as_state(numbers))
    return store


def stitched(given_runs: Runs, settings: Any, floor: float = 0.0) -> tuple[UnlearningRun, Floats]:
    """Stitch two runs; return what was found and all states after the commit."""
    old, new, sizes, affected = given_runs
    store = vault_of(old)
    run = ((i, as_state(new[i + 1])) for i in range(affected[0], len(sizes)))
    influences = np.abs(np.diff(old, axis=0)).sum(axis=1)
    rule = make_rule(settings, affected[1], floor)
    with store.begin_change() as aside:
        outcome = stitch_run(run, Sized(sizes), store, aside, rule, affected, influences)
    store.commit(aside)
    after = [store.get(i) for i in range(len(old))]
    return outcome, np.array([state.numpy() for state in after if state is not None], float)


class PlainBlocks:
    """The same from the whole of both runs, written with sums over blocks."""

    def __init__(self, given_runs: Runs, rule: StopRule, *, is_relative: bool) -> None:
        old, new, sizes, (_, last_affected) = given_runs
        moves, new_moves = np.diff(old, axis=0), np.diff(new, axis=0)
        self.residuals = list[float]()
        self.last, n_blocks = len(sizes) - 1, len(sizes)
        for i in range(last_affected, n_blocks):
            if sizes[i] == 0 and i != last_affected:
                continue
            residual, influence = np.abs(moves[i] - new_moves[i]).sum(), np.abs(moves[i]).sum()
            self.residuals.append(float(residual))
            stops = rule.update(relative(residual, influence) if is_relative else residual)
            if stops and any(sizes[i + 1 :] > 0):
                self.last = i
                break
        later = [i for i in range(self.last + 1, n_blocks) if sizes[i] > 0]
        expected, ceiling = rule.predict_residuals(len(later)), rule.ceiling_residuals(len(later))
        weights = [np.abs(moves[i]).sum() if is_relative else 1.0 for i in later]
        self.tail = math.fsum(e * w for e, w in zip(expected, weights, strict=True))
        self.ceiling = math.fsum(c * w for c, w in zip(ceiling, weights, strict=True))


def relative(residual: float, influence: float) -> float:
    if residual == influence == 0:
        return 0.0
    return residual / influence if influence else math.inf


@examples(100)
@given(runs(), st.sampled_from([0.01, 0.1, 10.0]), st.integers(1, 3))
def test_robust_stop_and_estimates_are_those_of_the_two_runs(
    drawn: Runs, epsilon: float, patience: int
) -> None:
    outcome, _ = stitched(drawn, rule_settings("robust", epsilon, patience), floor=0.001)
    plain = PlainBlocks(drawn, RobustRule(epsilon, 0.001, patience), is_relative=True)
    assert outcome.last == plain.last
    assert outcome.rule.residuals == pytest.approx(plain.residuals, abs=1e-12)
    assert outcome.tail == pytest.approx(plain.tail, rel=1e-9)
    assert outcome.ceiling == pytest.approx(plain.ceiling, rel=1e-9)


@examples(100)
@given(runs(), st.sampled_from([0.01, 0.1, 10.0]))
def test_published_stop_and_estimates_are_those_of_the_two_runs(
    drawn: Runs, epsilon: float
) -> None:
    outcome, _ = stitched(drawn, rule_settings("paper", epsilon))
    rule = PaperRule(epsilon, drawn.affected[1] + 1)
    plain = PlainBlocks(drawn, rule, is_relative=False)
    assert outcome.last == plain.last
    x = drawn.affected[1] + len(plain.residuals)
    slope = None if rule.law is None else pytest.approx(rule.law.slope(x), rel=1e-6, abs=1e-12)
    assert outcome.rule.slope == slope
    assert outcome.tail == pytest.approx(plain.tail, rel=1e-9)
    assert outcome.ceiling == pytest.approx(plain.ceiling, rel=1e-9)


@pytest.mark.parametrize(
    ("last_affected", "origin", "slope"),
    [
        (0, "block", 0.001717),
        (9, "block", 0.024585),
        (49, "block", 0.056727),
        (49, "one", 0.001717),
    ],
)
def test_published_rule_counts_blocks_from_one(
    last_affected: int, origin: str, slope: float
) -> None:
    """Residuals 3/x over 20 blocks, and the slopes that the documents tell of them."""
    rule = make_rule(rule_settings("paper", 1e-9, origin=origin), last_affected, 0.0)
    for x in range(1, 21):
        rule.update(3 / x, 1.0)
    assert rule.slope == pytest.approx(-slope, abs=1e-6)


@examples(100)
@given(runs(), st.sampled_from([0.0, 0.1, 10.0]))
def test_states_are_replaced_up_to_the_stop_and_shifted_after_it(
    drawn: Runs, epsilon: float
) -> None:
    outcome, after = stitched(drawn, rule_settings("robust", epsilon))
    first, end = drawn.affected[0], outcome.last + 1
    expected = np.vstack(
        [drawn.new[: end + 1], drawn.old[end + 1 :] + drawn.new[end] - drawn.old[end]]
    )
    assert np.array_equal(after, expected)
    assert np.array_equal(outcome.end.numpy(), expected[-1])
    assert outcome.first == first
    did = np.abs(np.diff(expected, axis=0)).sum(axis=1)
    assert outcome.influences == pytest.approx(did[first:end], abs=1e-12)


@examples(100)
@given(runs(), st.sampled_from([0.01, 0.1]), st.integers(-20, 20))
def test_robust_stop_has_no_unit(drawn: Runs, epsilon: float, power: int) -> None:
    settings, factor = rule_settings("robust", epsilon), 2.0**power
    outcome, scaled = (stitched(each, settings)[0] for each in (drawn, drawn.scale_by(factor)))
    assert scaled.last == outcome.last
    assert scaled.rule.slope == outcome.rule.slope
    assert [scaled.tail, scaled.ceiling] == [factor * outcome.tail, factor * outcome.ceiling]


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.1, 10)), min_size=1, max_size=20),
    st.floats(1e-6, 1e6),
)
def test_residuals_and_influences_in_another_unit_are_the_same_to_the_rule(
    pairs: list[tuple[float, float]], factor: float
) -> None:
    one, two = (make_rule(rule_settings("robust", 0.1), 0, 0.0) for _ in range(2))
    influences = np.array([influence for _, influence in pairs])
    for residual, influence in pairs:
        one.update(residual, influence)
        two.update(factor * residual, factor * influence)
    expected = factor * np.array(one.estimate_omitted(influences))
    assert two.estimate_omitted(factor * influences) == pytest.approx(tuple(expected), rel=1e-4)


@pytest.mark.parametrize("residual", [0.0, 1e-300, 0.3, 7.0])
def test_ratio(residual: float) -> None:
    assert relative_residual(residual, 2.0) == residual / 2
    assert relative_residual(residual, 0.0) == (0.0 if residual == 0 else math.inf)


def still_block(*, moves_anew: bool) -> Runs:
    """Twelve blocks whose residuals fade at once; block 1 did nothing in the old run."""
    moves = np.ones((12, 2))
    moves[1] = 0.0
    apart = np.zeros((12, 2))
    apart[0] = 0.5
    apart[1] = 0.25 if moves_anew else 0.0
    old, new = (
        np.vstack([np.zeros((1, 2)), np.cumsum(each, axis=0)]) for each in (moves, moves + apart)
    )
    return Runs(old, new, np.ones(12, np.int64), (0, 0))


def test_a_block_that_did_nothing_twice_has_no_residual() -> None:
    outcome, _ = stitched(still_block(moves_anew=False), rule_settings("robust", 1e-9))
    assert outcome.rule.residuals == [1.0, 0.0, 0.0]
    assert outcome.last == 2
    assert outcome.tail == pytest.approx(0.0, abs=1e-5)


def test_a_block_that_did_nothing_before_and_something_now_means_retraining_to_the_end() -> None:
    outcome, _ = stitched(still_block(moves_anew=True), rule_settings("robust", 1e9))
    assert (outcome.last, outcome.tail, outcome.ceiling) == (11, 0.0, 0.0)


def test_estimates_of_a_receipt_by_hand() -> None:
    people = make_people()
    model = fitted(people, **HASTY)
    person = people_in(model, people, {1})[0]
    exact = scratch_states(model, people, {person})
    old, new = (np.diff(torch.stack(run).double(), axis=0) for run in (states(model), exact))
    residuals, influences = np.abs(old - new).sum(axis=1), np.abs(old).sum(axis=1)
    outcome = model.forget([person]).estimates
    shares = (residuals / influences)[1:5]  # it stops at the fourth
    laws = [fit_fading_law(shares), fit_fading_law(shares, level=False)]
    ahead = np.arange(1, 6)
    line = np.minimum(max(shares[2:]) + max(shares[3] - shares[2], 0) * ahead, 2.0)
    assert outcome["residual_first"] == pytest.approx(residuals[1], rel=1e-4)
    assert outcome["residual_last"] == pytest.approx(residuals[4], rel=1e-4)
    assert outcome["residual_ceiling"] == pytest.approx(line @ influences[5:], rel=1e-4)
    assert outcome["residual_tail"] == pytest.approx(
        by_hand(laws, shares) @ influences[5:], rel=1e-3
    )


def by_hand(laws: list[FadingLaw], shares: Floats) -> Floats:
    """The heavier of two laws at x = 5, ..., 9, or the last level where nothing falls."""
    if laws[0].a == 0:
        return np.full(5, max(shares[2:]))
    values: Floats = np.maximum.reduce([law.values(np.arange(5.0, 10.0)) for law in laws])
    return values


@pytest.mark.parametrize(
    "settings", [HASTY, HASTY | {"anneal": "linear"}, {"epsilon": 0.0}], ids=str
)
def test_influences_are_the_norms_of_what_blocks_did(settings: dict[str, Any]) -> None:
    people = make_people()
    model = fitted(people, **settings)
    assert np.array_equal(model.influences_, norms_of_moves(states(model)))
    for request in ([1], [7, 2], [9]):
        model.forget(request)
        assert model.influences_ == pytest.approx(norms_of_moves(states(model)), rel=1e-5)


def test_influences_of_shifted_blocks_stay_and_those_of_retrained_ones_are_replaced() -> None:
    people = make_people()
    model = fitted(people, **HASTY)
    before = model.influences_.copy()
    model.forget(people_in(model, people, {2})[:1])
    assert np.array_equal(model.influences_ != before, [False] * 2 + [True] * 4 + [False] * 4)


def test_a_refused_request_leaves_the_influences() -> None:
    model = fitted(make_people(), **HASTY)
    before = model.influences_.copy()

    def refuse(_: Any) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        model.forget([3], callback=refuse)
    assert np.array_equal(model.influences_, before)


RATES: tuple[tuple[str, int, list[float]], ...] = (
    ("none", 3, [1, 1, 1]),
    ("linear", 1, [1]),
    ("linear", 5, [1, 0.8, 0.6, 0.4, 0.2]),
    ("one-cycle", 1, [1]),
    ("one-cycle", 5, [1, 0.8, 0.6, 0.4, 0.2]),
    ("one-cycle", 20, [0.5, *np.arange(0.95, 0.01, -0.05)]),
    ("one-cycle", 40, [0.25, 0.5, 0.75, *np.arange(0.925, 0.01, -0.025)]),
)


@pytest.mark.parametrize(("anneal", "n_blocks", "expected"), RATES)
def test_rates_over_the_blocks(anneal: str, n_blocks: int, expected: list[float]) -> None:
    schedule = BlockSchedule(1, n_blocks, anneal)
    assert [schedule.rate_factor(block) for block in range(n_blocks)] == pytest.approx(expected)


@given(st.sampled_from(["none", "linear", "one-cycle"]), st.integers(1, 1000))
def test_no_block_stands_still_or_goes_faster(anneal: str, n_blocks: int) -> None:
    schedule = BlockSchedule(1, n_blocks, anneal)
    rates = [schedule.rate_factor(block) for block in range(n_blocks)]
    assert 0 < min(rates) <= max(rates) <= 1
    assert rates[-1] == pytest.approx(1.0 if anneal == "none" else 1 / n_blocks)


def test_fit_floor_and_request_train_a_block_at_its_own_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    people, seen = make_people(60), list[tuple[int, float]]()
    train = Loop.train

    def noted(self: Loop, flat: Tensor, phase: TrainingPhase, *given: Any) -> Tensor:
        seen.append((phase.number, phase.rate))
        return train(self, flat, phase, *given)

    monkeypatch.setattr(Loop, "train", noted)
    model: DeepObliviateClassifier = make(n_blocks=5, anneal="linear", epsilon=0.0)
    model.fit(people.X, people.y, ids=people.ids)
    expected = [(0, 1.0), (1, 0.8), (2, 0.6), (3, 0.4), (4, 0.2)]
    assert [block for block, _ in seen] == [0, 1, 2, 3, 4, 4]
    assert all(rate == pytest.approx(expected[block][1]) for block, rate in seen)
    seen.clear()
    model.forget(people_in(model, people, {2})[:1])
    assert [block for block, _ in seen] == [2, 3, 4]
    assert all(rate == pytest.approx(expected[block][1]) for block, rate in seen)


def test_a_rate_that_falls_moves_the_parameters_less() -> None:
    people = make_people(60)
    flat, falling = (fitted(people, anneal=anneal).influences_ for anneal in ("none", "linear"))
    assert flat[0] == falling[0]
    assert falling[-1] < 0.5 * flat[-1]
