"""DeepObliviate against training from scratch: exact where claimed, and no row comes back."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from letheon.deep import _obliviate
from letheon.deep._checkpoints import CheckpointChange
from letheon.deep._loop import Loop
from letheon.deep._obliviate import DeepObliviateClassifier, train_blocks
from tests.deep.obliviate_reference import (
    BlockPeople,
    block_of,
    fitted,
    l1,
    linear,
    make_people,
    memory_of,
    noisy,
    norms_of_moves,
    people_in,
    scratch_states,
    states,
    with_private_columns,
)
from tests.sharded.people import examples

# Stops as soon as it may: at the fourth residual.
HASTY: dict[str, Any] = {"epsilon": 1e9}
ROUNDING = 1e-5


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@st.composite
def settings_and_requests(draw: st.DrawFn) -> tuple[dict[str, Any], BlockPeople, list[list[int]]]:
    people = make_people(draw(st.integers(12, 24)), seed=draw(st.integers(0, 99)))
    leaving = draw(st.permutations(range(12)))[: draw(st.integers(1, 5))]
    cuts = draw(st.sets(st.integers(1, 4)))
    requests = np.split(np.array(leaving), sorted(cut for cut in cuts if cut < len(leaving)))
    settings = {
        "module": draw(st.sampled_from([linear, noisy])),
        "optimizer": draw(st.sampled_from(["sgd", "adam"])),
        "n_blocks": draw(st.integers(1, 8)),
        "anneal": draw(st.sampled_from(["none", "linear", "one-cycle"])),
        "epochs": draw(st.integers(1, 2)),
        "batch_size": draw(st.integers(2, 5)),
        "random_state": draw(st.integers(0, 99)),
    }
    return settings, people, [request.tolist() for request in requests]


@examples(25)
@given(settings_and_requests())
def test_to_the_end_is_exact(drawn: tuple[dict[str, Any], BlockPeople, list[list[int]]]) -> None:
    settings, people, requests = drawn
    model, gone = fitted(people, epsilon=0.0, **settings), set[int]()
    assert same(states(model), scratch_states(model, people))
    for request in requests:
        model.forget(request)
        gone |= set(request)
    expected = scratch_states(model, people, gone)
    assert same(states(model), expected)
    assert np.array_equal(model.influences_, norms_of_moves(expected))
    assert torch.equal(model.nets_.flat[0], states(model)[-1])
    assert (model.tail_, model.exact_blocks_) == (0.0, settings["n_blocks"])


@examples(25)
@given(settings_and_requests())
def test_first_blocks_are_exact_as_far_as_it_says(
    drawn: tuple[dict[str, Any], BlockPeople, list[list[int]]],
) -> None:
    settings, people, requests = drawn
    model, gone = fitted(people, **settings, **HASTY), set[int]()
    for request in requests:
        model.forget(request)
        gone |= set(request)
        exact, expected = model.exact_blocks_, scratch_states(model, people, gone)
        assert same(states(model)[: exact + 1], expected[: exact + 1])
        assert np.array_equal(model.influences_[:exact], norms_of_moves(expected)[:exact])
        assert torch.equal(model.nets_.flat[0], states(model)[-1])
        assert (model.tail_ == 0.0) == (exact == settings["n_blocks"])


@pytest.mark.parametrize("anneal", ["linear", "one-cycle"])
def test_to_the_end_is_exact_with_a_rate_over_many_blocks(anneal: str) -> None:
    people = make_people(60)
    model = fitted(people, n_blocks=30, epsilon=0.0, anneal=anneal)
    model.forget([3, 17])
    assert same(states(model), scratch_states(model, people, {3, 17}))


def test_a_hasty_stop_is_not_exact() -> None:
    people = make_people()
    model = fitted(people, n_blocks=10, **HASTY)
    person = people_in(model, people, {0, 1, 2})[0]
    model.forget([person])
    exact, expected = model.exact_blocks_, scratch_states(model, people, {person})
    assert exact == block_of(model, person) + 4
    assert all(l1(states(model)[i], expected[i]) > 0 for i in range(exact + 1, 11))


def test_the_state_after_the_last_exact_block_is_exact_too() -> None:
    people = make_people()
    model = fitted(people, n_blocks=10, **HASTY)
    first = people_in(model, people, {1})[0]
    model.forget([first])
    exact = model.exact_blocks_
    second = people_in(model, people, {exact})[0]
    model.forget([second])
    expected = scratch_states(model, people, {first, second})
    assert model.exact_blocks_ == exact + 4 < 10
    assert same(states(model)[: exact + 5], expected[: exact + 5])


def test_an_exact_run_to_the_end_repairs_an_earlier_stop() -> None:
    people = make_people()
    model = fitted(people, n_blocks=10, **HASTY)
    late, early = people_in(model, people, {4, 5})[0], people_in(model, people, {8, 9})[0]
    first = people_in(model, people, {0, 1, 2, 3})[0]
    model.forget([late])
    assert model.exact_blocks_ < 10
    model.forget([first, early])  # nothing counts before block 8, so the run goes to the end
    assert (model.exact_blocks_, model.tail_) == (10, 0.0)
    assert same(states(model), scratch_states(model, people, {late, early, first}))


def test_a_run_to_the_end_from_an_inexact_state_stays_inexact() -> None:
    people = make_people()
    model = fitted(people, n_blocks=10, **HASTY)
    early, late = people_in(model, people, {0, 1})[0], people_in(model, people, {8, 9})[0]
    model.forget([early])
    exact, tail = model.exact_blocks_, model.tail_
    receipt = model.forget([late])
    assert receipt.estimates["residual_tail"] == 0.0
    assert (model.exact_blocks_, model.tail_) == (exact, tail)


class Canary:
    """A person whose presence flips the answer to a question."""

    name = 24

    def __init__(self, **settings: Any) -> None:
        others = make_people()
        row = np.tile(others.X.mean(axis=0), (6, 1))
        people = BlockPeople(
            np.vstack([others.X, row]),
            np.append(others.y, [0] * 6),
            np.append(others.ids, [self.name] * 6),
        )
        self.people = with_private_columns(people, size=4.0)
        self.question = self.people.X[-1:]
        self.model = fitted(self.people, **({"n_blocks": 8} | settings))

    def answer(self) -> int:
        return int(self.model.predict(self.question)[0])

    def forget(self) -> list[Tensor]:
        """Forget the canary; return the states that training started from."""
        starts = list[Tensor]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Loop, "train", _noting(starts))
            self.model.forget([self.name])
        return starts


def _noting(starts: list[Tensor]) -> Any:
    train = Loop.train

    def noted(self: Loop, flat: Tensor, *given: Any) -> Tensor:
        starts.append(flat[0].clone())
        return train(self, flat, *given)

    return noted


def start_after_the_block(loop: Loop, blocks: Any, start: Tensor, first: int, *rest: Any) -> Any:
    """The bug of a port: go on from the state that has seen who leaves."""
    seen = DeepObliviateClassifier._planted.get(first + 1)  # type: ignore[attr-defined]
    return train_blocks(loop, blocks, seen, first, *rest)


@pytest.fixture
def port_bug(monkeypatch: pytest.MonkeyPatch) -> Any:
    def plant(canary: Canary) -> None:
        store = canary.model.vault_
        monkeypatch.setattr(DeepObliviateClassifier, "_planted", store, raising=False)
        monkeypatch.setattr(_obliviate, "train_blocks", start_after_the_block)

    return plant


def require_canary_gone(canary: Canary) -> None:
    expected = scratch_states(canary.model, canary.people, {canary.name})
    starts = canary.forget()
    assert starts
    assert all(any(torch.equal(start, state) for state in expected) for start in starts)
    assert canary.answer() != 0


@pytest.mark.parametrize("settings", [{"epsilon": 0.0}, HASTY, {"stop": "paper"}], ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_training_starts_from_states_that_never_saw_who_leaves(
    settings: dict[str, Any], seed: int
) -> None:
    canary = Canary(**settings, random_state=seed)
    assert canary.answer() == 0
    require_canary_gone(canary)


@pytest.mark.parametrize("settings", [{"epsilon": 0.0}, HASTY], ids=str)
def test_planted_start_after_the_block_is_caught(settings: dict[str, Any], port_bug: Any) -> None:
    canary = Canary(**settings)
    port_bug(canary)
    starts = canary.forget()
    expected = scratch_states(canary.model, canary.people, {canary.name})
    assert not any(torch.equal(starts[0], state) for state in expected)
    assert canary.answer() == 0


def worst_memory(model: DeepObliviateClassifier, gone: list[int]) -> float:
    """Largest trace of people who left, over all states and the model itself."""
    start, *later = states(model)
    later.append(model.nets_.flat[0])
    return max(memory_of(state, start, person) for state in later for person in gone)


def resurrect(seed: int, **settings: Any) -> tuple[float, int]:
    """Answer random requests; return the worst trace of a removed person, and how many stopped."""
    rng = np.random.default_rng(seed)
    people = with_private_columns(make_people(20, seed=seed))
    settings = {"n_blocks": 8, "random_state": seed, "learning_rate": 0.05} | HASTY | settings
    model = fitted(people, **settings)
    leaving = rng.permutation(20)[:5].tolist()
    assert min(worst_memory(model, [person]) for person in leaving) > 20 * ROUNDING
    gone, worst, n_stopped = list[int](), 0.0, 0
    for request in np.split(np.array(leaving), sorted(rng.choice(np.arange(1, 5), 3, False))):
        receipt = model.forget(request.tolist())
        n_stopped += receipt.estimates["residual_ceiling"] > 0
        gone += request.tolist()
        worst = max(worst, worst_memory(model, gone))
    return worst, n_stopped


def test_no_person_is_resurrected_by_a_later_request() -> None:
    traces = [resurrect(seed) for seed in range(50)]
    assert max(worst for worst, _ in traces) < ROUNDING
    assert sum(n_stopped for _, n_stopped in traces) > 50  # else nothing was shifted


def test_planted_omission_of_the_shift_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointChange, "shift", lambda *_: None)
    traces = [resurrect(seed) for seed in range(10)]
    assert sum(worst > 20 * ROUNDING for worst, _ in traces) >= 8


def test_published_omission_brings_people_back_into_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    people = with_private_columns(make_people())
    model = fitted(people, n_blocks=10, **HASTY)
    early, late = people_in(model, people, {0, 1})[0], people_in(model, people, {8, 9})[0]
    start = states(model)[0]
    monkeypatch.setattr(CheckpointChange, "shift", lambda *_: None)
    model.forget([early])
    assert memory_of(model.nets_.flat[0], start, early) < ROUNDING
    model.forget([late])
    assert memory_of(model.nets_.flat[0], start, early) > 20 * ROUNDING
