"""A small version of the simulation in benchmarks/monitor.py: real drift, true values."""

from typing import Any

import numpy as np
import pytest

from benchmarks._monitor_streams import (
    KINDS,
    TOLERANCES,
    DriftingClassifier,
    StreamStep,
    make_watchers,
    make_world,
    run_stream,
)
from benchmarks._monitor_summary import summarize_steps, total_streams

DOES_NOTHING = 2


def step(truth: float, *, retrained: bool = False, estimate: float = 0.0) -> StreamStep:
    names = TOLERANCES.get_watched()
    return StreamStep(
        {name: truth * most for name, most in names.items()},
        {name: estimate * most for name, most in names.items()},
        retrained,
    )


@pytest.fixture(scope="module")
def make() -> Any:
    return make_watchers(make_world(DOES_NOTHING), n_streams=40, seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_breaches_of_a_model_that_does_nothing_are_seen(make: Any, kind: str) -> None:
    """The survey's proxy stays at 0 and misses them all."""
    world = make_world(DOES_NOTHING)
    assert world.drift == "nothing"
    ours = summarize_steps(list(run_stream(world, make("ours, any kind", kind), kind, 40, 0)))
    assert ours.n_missed <= 0.05 * ours.n_stretches
    plain = list(run_stream(world, make("survey", kind), kind, 40, 0))
    assert not any(s.retrained for s in plain)
    assert all(s.estimate["effectiveness"] == 0 for s in plain)


def test_the_oracle_retrains_exactly_at_breaches(make: Any) -> None:
    world = make_world(DOES_NOTHING)
    steps = list(run_stream(world, make("oracle", "adaptive"), "adaptive", 20, 0))
    assert [s.retrained for s in steps] == [s.is_breach for s in steps]
    assert any(s.is_breach for s in steps)


def test_a_small_model_is_trained_to_the_optimum() -> None:
    world = make_world(0)
    model = world.trained(np.arange(len(world.y)))
    assert isinstance(model, DriftingClassifier)
    assert np.linalg.norm(model._slopes()[0]) < 1e-9


def test_stretches_are_added_up_by_hand() -> None:
    """Kept in breach, then retrained; fine until the retrain; in breach at the end."""
    steps = [
        step(0.5, estimate=0.6),
        step(1.5, estimate=0.6),
        step(1.5, retrained=True, estimate=1.6),
        step(0.9, retrained=True, estimate=1.0),
        step(0.1, estimate=0.2),
        step(3.0, estimate=0.2),
    ]
    record = summarize_steps(steps)
    assert (record.n_retrains, record.n_stretches, record.n_missed) == (2, 3, 2)
    assert (record.n_open, record.first_missed) == (2, True)
    assert record.n_caught == 0
    assert record.excess == pytest.approx(0.5 + 2.0)
    assert (record.n_over, record.n_estimates) == (8, 12)


def test_breaches_are_those_missed_and_those_caught_at_once() -> None:
    """A retrain in time prevents a breach; that is neither."""
    steps = [step(2.0, retrained=True), step(0.5, retrained=True), step(2.0), step(0.1)]
    record = summarize_steps(steps)
    assert (record.n_caught, record.n_missed) == (1, 1)
    sums = total_streams([record], [record])
    assert (sums.n_breaches, sums.breaches_missed) == (2, 50.0)


def test_first_breaches_are_a_share_of_streams_that_have_one() -> None:
    missed, quiet = summarize_steps([step(2.0)]), summarize_steps([step(0.1)])
    oracle = [summarize_steps([step(2.0, retrained=True)]), quiet]
    sums = total_streams([missed, quiet], oracle)
    assert (sums.n_breaching, sums.first_missed, sums.missed) == (1, 100.0, 100.0)
