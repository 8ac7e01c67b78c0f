"""Batches against a slow reference; the batch of a row does not depend on other rows."""

from itertools import cycle
from math import cos, pi
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon.deep import _batches
from letheon.deep._batches import (
    EMPTY,
    LaneBatches,
    epoch_batches,
    slot_batches,
    slot_matrix,
)
from letheon.deep._optim import learning_rates
from letheon.seeds import Purpose, keyed_hash
from letheon.seeds import mix64 as mix64_numpy

CPU = torch.device("cpu")
WORDS = st.integers(0, 2**64 - 1)
EXTREMES = [0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]

LANE = st.lists(st.booleans(), max_size=23)
LANES = st.lists(st.none() | LANE, min_size=1, max_size=4)


def slots_of(lanes: list[list[bool] | None]) -> list[NDArray[np.int64] | None]:
    """Slots of lanes by who is there; every row has a position that no other row has."""
    out: list[NDArray[np.int64] | None] = []
    for number, lane in enumerate(lanes):
        if lane is None:
            out.append(None)
        else:
            positions = 1000 * number + np.arange(len(lane))
            out.append(np.where(np.array(lane, bool), positions, EMPTY).astype(np.int64))
    return out


def batches_of(slots: Any, numbers: list[int], key: int, size: int) -> LaneBatches:
    return epoch_batches(slot_matrix(slots, CPU), torch.tensor(numbers), key, size)


def reference(
    slots: NDArray[np.int64], number: int, key: int, size: int
) -> list[tuple[list[int], list[float]]]:
    """Rows and weights of one lane's batches, by the formula and Python's sort."""
    lane_key = int(mix64_numpy(key, np.array([number], np.uint64))[0])
    hashes = mix64_numpy(lane_key, np.arange(len(slots), dtype=np.uint64)).view(np.int64)
    order = sorted(range(len(slots)), key=lambda slot: int(hashes[slot]))
    out = []
    for begin in range(0, len(order), size):
        rows = [int(slots[slot]) for slot in order[begin : begin + size]]
        rows += [EMPTY] * (size - len(rows))
        present = [row for row in rows if row != EMPTY]
        fillers = cycle(present or [0])
        weights = [0.0 if row == EMPTY else 1 / len(present) for row in rows]
        out.append(([next(fillers) if row == EMPTY else row for row in rows], weights))
    return out


@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(WORDS, min_size=1, max_size=8))
@example(EXTREMES, EXTREMES)
def test_mix64_is_that_of_the_seeds(keys: list[int], bits: list[int]) -> None:
    key, bit = np.array(keys, np.uint64)[:, None], np.array(bits, np.uint64)[None, :]
    expected = mix64_numpy(np.broadcast_to(key, (len(keys), len(bits))).copy(), bit + 0 * key)
    got = _batches.mix64(
        torch.from_numpy(key.view(np.int64)), torch.from_numpy(bit.view(np.int64))
    ).numpy()
    assert got.view(np.uint64).tolist() == expected.tolist()


@given(WORDS)
@example(2**63)
def test_signed_words_have_the_same_bits(word: int) -> None:
    assert np.array([_batches.to_signed(word)], np.int64).view(np.uint64).tolist() == [word]


@given(LANES, WORDS, st.integers(1, 7), st.data())
def test_batches_equal_the_reference(
    lanes: list[list[bool] | None], key: int, size: int, data: st.DataObject
) -> None:
    numbers = data.draw(
        st.lists(st.integers(0, 2**40), min_size=len(lanes), max_size=len(lanes), unique=True)
    )
    slots = slots_of(lanes)
    rows, weights, active = batches_of(slots, numbers, key, size)
    assert (rows.dtype, weights.dtype, active.dtype) == (torch.int64, torch.float32, torch.bool)
    for lane, own in enumerate(slots):
        expected = [] if own is None else reference(own, numbers[lane], key, size)
        for step, (own_rows, own_weights) in enumerate(expected):
            assert rows[step, lane].tolist() == own_rows
            np.testing.assert_allclose(weights[step, lane].numpy(), own_weights, rtol=1e-6)
            assert bool(active[step, lane]) == (sum(own_weights) > 0)
        assert not active[len(expected) :, lane].any()
        assert not weights[len(expected) :, lane].any()


@given(LANES, WORDS, st.integers(1, 7))
def test_each_row_takes_part_once_and_no_other(
    lanes: list[list[bool] | None], key: int, size: int
) -> None:
    slots = slots_of(lanes)
    rows, weights, active = batches_of(slots, list(range(len(lanes))), key, size)
    for lane, own in enumerate(slots):
        held = [] if own is None else own[own >= 0].tolist()
        assert sorted(rows[:, lane][weights[:, lane] > 0].tolist()) == held
        sums = weights[:, lane].sum(dim=1)
        np.testing.assert_allclose(sums.numpy(), active[:, lane].numpy(), atol=1e-6)
        # Whatever fills an empty slot is in the same batch, so a network never sees other rows.
        for step in torch.nonzero(active[:, lane])[:, 0].tolist():
            present = weights[step, lane] > 0
            assert set(rows[step, lane].tolist()) == set(rows[step, lane][present].tolist())


@given(LANES, LANES, WORDS, st.integers(1, 7))
def test_a_lane_has_the_same_batches_next_to_any_lanes(
    lanes: list[list[bool] | None], others: list[list[bool] | None], key: int, size: int
) -> None:
    alone = batches_of(slots_of([lanes[0]]), [5], key, size)
    beside = batches_of(slots_of([lanes[0], *others]), [5, *range(6, 6 + len(others))], key, size)
    n_steps = len(alone.rows)
    for one, many in zip(alone, beside, strict=True):
        assert torch.equal(one[:, 0], many[:n_steps, 0])
    assert not beside.active[n_steps:, 0].any()


@given(st.lists(st.just(True), min_size=1, max_size=23), WORDS, st.integers(1, 7), st.data())
def test_a_removal_changes_no_other_batch(
    lane: list[bool], key: int, size: int, data: st.DataObject
) -> None:
    gone = data.draw(st.integers(0, len(lane) - 1))
    left = [here and place != gone for place, here in enumerate(lane)]
    before, after = (batches_of(slots_of([who]), [3], key, size) for who in (lane, left))
    stays = (before.weights > 0) & (before.rows != gone)
    assert torch.equal(stays, after.weights > 0)
    assert torch.equal(before.rows[stays], after.rows[stays])
    assert gone not in after.rows[after.active]


def test_orders_differ_between_lanes_and_keys() -> None:
    slots = np.arange(40)
    one, other = batches_of([slots, slots], [0, 1], 7, 40).rows[0].tolist()
    (later,) = batches_of([slots], [0], 8, 40).rows[0].tolist()
    assert sorted(one) == sorted(other) == sorted(later) == slots.tolist()
    assert one != other
    assert one != later
    assert one != slots.tolist()


def test_orders_are_even() -> None:
    slots, n_keys = np.arange(6), 1500
    first = [int(batches_of([slots], [0], key, 1).rows[0, 0, 0]) for key in range(n_keys)]
    counts = np.bincount(first, minlength=6)
    # Five standard deviations of a binomial count.
    assert abs(counts - n_keys / 6).max() < 5 * np.sqrt(n_keys * 5 / 36)


def test_epochs_follow_each_other() -> None:
    keys = [keyed_hash(7, Purpose.NET_ORDER, 3, epoch) for epoch in (0, 1)]
    epochs = [batches_of([np.arange(5)], [0], key, 2) for key in keys]
    matrix = slot_matrix([np.arange(5)], CPU)
    joined = slot_batches(matrix, torch.tensor([0]), 7, 3, n_epochs=2, batch_size=2)
    for part, first, second in zip(joined, *epochs, strict=True):
        assert torch.equal(part[:3], first)
        assert torch.equal(part[3:], second)


@pytest.mark.parametrize("lanes", [[None], [None, None], [[]]])
def test_lanes_without_rows_have_no_steps(lanes: Any) -> None:
    assert slot_matrix(slots_of(lanes), CPU).shape == (len(lanes), 0)
    assert len(batches_of(slots_of(lanes), list(range(len(lanes))), 1, 4).rows) == 0


def shape_of(schedule: str, step: int, n_steps: int) -> float:
    if schedule == "constant":
        return 1.0
    if schedule == "cosine":
        return (1 + cos(pi * step / n_steps)) / 2
    x = (step + 1) / (n_steps + 1)
    return 4 * x if x < 0.25 else (1 - x) / 0.75


@pytest.mark.parametrize("schedule", ["constant", "cosine", "one-cycle"])
@given(
    st.lists(st.lists(st.booleans(), min_size=3, max_size=3).map(tuple), min_size=1, max_size=20)
)
def test_rates_go_by_the_steps_that_a_lane_makes(
    schedule: str, steps: list[tuple[bool, ...]]
) -> None:
    active = torch.tensor(steps)
    rates = learning_rates(active, schedule, 0.3)
    assert rates.shape == active.shape
    for lane in range(3):
        n_steps = int(active[:, lane].sum())
        got = rates[:, lane][active[:, lane]].numpy()
        expected = [0.3 * shape_of(schedule, step, n_steps) for step in range(n_steps)]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
        assert (got > 0).all()
        alone = learning_rates(active[:, lane : lane + 1], schedule, 0.3)
        assert torch.equal(alone[:, 0], rates[:, lane])
