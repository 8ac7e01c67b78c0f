"""The one loop against plain torch; lanes, masked rows, seeds and what goes wrong."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from letheon.deep import _batches
from letheon.deep._device import reproducible_run
from letheon.deep._loop import DeviceData, Loop, Progress, TrainingPhase
from letheon.deep._module import Template
from letheon.deep._optim import LoopSettings
from letheon.exceptions import TrainingError
from letheon.seeds import Purpose, keyed_hash
from tests.sharded.people import examples

CPU = torch.device("cpu")
SEED = 11
N_ROWS, SHAPE = 24, (4,)
Slots = NDArray[np.int64]

PLAIN = LoopSettings(5, "sgd", 0.1, 0.9, 0.001, "constant", "cross_entropy", "float32")
VARIANTS = {
    "momentum": PLAIN,
    "adam": replace(PLAIN, optimizer="adam", learning_rate=0.01, schedule="cosine"),
    "own": replace(PLAIN, optimizer=lambda ps: torch.optim.Adagrad(ps, lr=0.05)),
}


def mlp(shape: Any, n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 6), nn.Tanh(), nn.Linear(6, n_classes))


def dropping(shape: Any, n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Dropout(0.5), nn.Linear(8, n_classes))


def normed(shape: Any, n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.Linear(6, n_classes))


TEMPLATE = Template(mlp, SHAPE, 3, SEED)
FACTORIES: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "dropout": dropping,
    "batch norm": normed,
}


def table(seed: int = 0) -> DeviceData:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, N_ROWS)
    X = (rng.normal(size=(N_ROWS, *SHAPE)) + y[:, None]).astype(np.float32)
    return DeviceData(torch.from_numpy(X), torch.from_numpy(y))


def loop_of(
    lanes: tuple[int, ...] = (0,),
    factory: Any = mlp,
    settings: LoopSettings = PLAIN,
    data: DeviceData | None = None,
    **more: Any,
) -> Loop:
    template = TEMPLATE if factory is mlp else Template(factory, SHAPE, 3, SEED)
    return Loop(template, settings, data or table(), seed=SEED, lanes=lanes, **more)


def trained(loop: Loop, *slots: Any, number: int = 0, epochs: int = 2, **more: Any) -> Tensor:
    """Train from the lanes' own start."""
    arrays = tuple(None if each is None else np.array(each, np.int64) for each in slots)
    with reproducible_run(CPU, deterministic=True):
        return loop.train(loop.initial_flat(), TrainingPhase(number, arrays, epochs), **more)


def plain_torch(lane: int, slots: list[int], *, number: int, epochs: int) -> Tensor:
    """Train one network in plain PyTorch: orders by hand, no masks."""
    module = TEMPLATE.make_module(TEMPLATE.initial_flat(lane), {})
    module.train().requires_grad_()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.001)
    data, loss = table(), nn.CrossEntropyLoss()
    for epoch in range(epochs):
        key = _batches.to_signed(keyed_hash(SEED, Purpose.NET_ORDER, number, epoch))
        lane_key = _batches.mix64(torch.tensor(key), torch.tensor(lane))
        order = _batches.mix64(lane_key, torch.arange(len(slots))).argsort().tolist()
        for begin in range(0, len(order), PLAIN.batch_size):
            batch = [slots[k] for k in order[begin : begin + PLAIN.batch_size] if slots[k] >= 0]
            if batch:
                optimizer.zero_grad()
                loss(module(data.X[batch]), data.y[batch]).backward()
                optimizer.step()
    return torch.cat([part.detach().reshape(-1) for part in module.parameters()])


SLOTS = st.lists(st.integers(-1, N_ROWS - 1), max_size=17)


@given(st.lists(SLOTS, min_size=1, max_size=3), st.integers(0, 9), st.integers(1, 3))
@examples(15)
def test_every_lane_is_trained_as_by_plain_torch(
    lanes: list[list[int]], number: int, epochs: int
) -> None:
    numbers = tuple(range(3, 3 + len(lanes)))
    flat = trained(loop_of(numbers), *lanes, number=number, epochs=epochs)
    for lane, slots, line in zip(numbers, lanes, flat, strict=True):
        expected = plain_torch(lane, slots, number=number, epochs=epochs)
        np.testing.assert_allclose(line.numpy(), expected.numpy(), rtol=1e-4, atol=2e-6)


def test_training_learns() -> None:
    data = table()
    loop = loop_of(data=data)
    (flat,) = trained(loop, range(N_ROWS), epochs=40)
    answer = TEMPLATE.make_module(flat, {})(data.X).argmax(dim=1)
    assert (answer == data.y).float().mean() > 0.9


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("net", FACTORIES)
def test_two_runs_have_the_same_bits(net: str, variant: str) -> None:
    def run() -> Tensor:
        loop = loop_of((0, 1), FACTORIES[net], VARIANTS[variant])
        return trained(loop, range(12), range(5, 20))

    first = run()
    torch.manual_seed(77)
    torch.rand(5)
    assert torch.equal(run(), first)
    assert torch.isfinite(first).all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("net", FACTORIES)
def test_a_loop_that_was_used_before_is_as_good_as_new(net: str, variant: str) -> None:
    used = loop_of((0, 1), FACTORIES[net], VARIANTS[variant])
    trained(used, range(20), range(3), number=4, epochs=3)
    fresh = loop_of((0, 1), FACTORIES[net], VARIANTS[variant])
    assert torch.equal(trained(used, range(9), None), trained(fresh, range(9), None))


def test_fits_in_threads_have_the_same_bits() -> None:
    def run(lane: int) -> Tensor:
        return trained(loop_of((lane,), dropping), range(20), epochs=4)

    alone = [run(lane) for lane in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(4)))
    assert all(map(torch.equal, alone, together))


@pytest.mark.parametrize("net", ["mlp", "batch norm"])
def test_lanes_at_once_equal_lanes_one_by_one(net: str) -> None:
    slots = [range(20), [3, -1, 7], range(2, 9), [-1, -1]]
    together = trained(loop_of((0, 1, 2, 3), FACTORIES[net]), *slots)
    for lane, own in enumerate(slots):
        alone = trained(loop_of((lane,), FACTORIES[net]), own)[0]
        np.testing.assert_allclose(together[lane].numpy(), alone.numpy(), rtol=1e-5, atol=1e-5)


@given(
    own=SLOTS,
    others=st.lists(st.none() | SLOTS, min_size=2, max_size=2),
    net=st.sampled_from(sorted(FACTORIES)),
    variant=st.sampled_from(sorted(VARIANTS)),
    place=st.integers(0, 2),
)
@examples(40)
def test_a_lane_has_the_same_bits_next_to_any_lanes(
    own: list[int], others: list[Any], net: str, variant: str, place: int
) -> None:
    """Of equal width; who else is trained, on how many rows, and their numbers do not matter."""

    def line(numbers: list[int], slots: list[Any]) -> Tensor:
        numbers.insert(place, 8)
        slots.insert(place, own)
        loop = loop_of(tuple(numbers), FACTORIES[net], VARIANTS[variant])
        return trained(loop, *slots)[place]

    assert torch.equal(line([0, 1], [None, None]), line([5, 6], list(others)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_idle_lanes_come_back_as_they_were(variant: str) -> None:
    loop = loop_of((0, 1, 2), settings=VARIANTS[variant])
    flat = trained(loop, None, range(7), [-1, -1, -1])
    start = loop.initial_flat()
    assert torch.equal(flat[[0, 2]], start[[0, 2]])
    assert not torch.equal(flat[1], start[1])


def test_the_start_given_is_not_written_into() -> None:
    loop = loop_of()
    start = loop.initial_flat()
    kept = start.clone()
    with reproducible_run(CPU, deterministic=True):
        end = loop.train(start, TrainingPhase(0, (np.arange(9),), 1))
        later = end.clone()
        loop.train(start, TrainingPhase(1, (np.arange(9),), 1))
    assert torch.equal(start, kept)
    assert torch.equal(end, later)


@contextmanager
def double_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "mode",
    [
        nullcontext,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        double_by_default,
    ],
)
def test_the_callers_modes_do_not_reach_in(mode: Callable[[], Any]) -> None:
    def run() -> Tensor:
        with reproducible_run(CPU, deterministic=True):
            loop = Loop(Template(mlp, SHAPE, 3, SEED), PLAIN, table(), seed=SEED, lanes=(0,))
            return trained(loop, range(9))

    expected = run()
    with mode():
        outcome = run()
    assert torch.equal(outcome, expected)
    assert outcome.dtype == torch.float32
    assert not outcome.is_inference()


@pytest.mark.parametrize("slots", [[None], [[]], [[-1, -1]]])
def test_without_rows_there_is_no_training(slots: list[Any]) -> None:
    loop, seen = loop_of(), list[Progress]()
    assert torch.equal(trained(loop, *slots, callback=seen.append), loop.initial_flat())
    assert seen == []


def test_seeds_go_by_lane_and_number() -> None:
    def way(lane: int, number: int) -> Tensor:
        loop = loop_of((lane,))
        same = torch.zeros_like(loop.initial_flat())
        with reproducible_run(CPU, deterministic=True):
            return loop.train(same, TrainingPhase(number, (np.arange(N_ROWS),), 1))

    assert torch.equal(way(0, 0), way(0, 0))
    assert not torch.equal(way(0, 0), way(0, 1))
    assert not torch.equal(way(0, 0), way(1, 0))


class Listening(nn.Module):
    """Keeps what dropout leaves of a row of ones, and learns something."""

    heard: list[list[float]]

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(SHAPE[0], 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = functional.dropout(torch.ones_like(x), 0.5, self.training)
        type(self).heard.append(mask.flatten().tolist())
        logits: Tensor = self.last(x * mask)
        return logits


def dropout_of(group: int, number: int, epochs: int = 2) -> list[list[float]]:
    """Masks of every step: one batch of 5 slots is one step."""
    loop = loop_of(factory=Listening, group=group)
    Listening.heard = []
    trained(loop, range(5), number=number, epochs=epochs)
    return list(Listening.heard)


def test_dropout_is_seeded_by_group_part_and_epoch() -> None:
    Listening.heard = []
    first = dropout_of(0, 0)
    assert first == dropout_of(0, 0)
    assert first[:1] == dropout_of(0, 0, epochs=1)
    masks = [*first, *dropout_of(1, 0), *dropout_of(0, 1)]
    assert len({tuple(mask) for mask in masks}) == 6
    torch.manual_seed(keyed_hash(SEED, Purpose.NET_EPOCH, 1, 0, 0))
    expected = functional.dropout(torch.ones(5, *SHAPE), 0.5)
    assert masks[2] == expected.flatten().tolist()


def test_lanes_draw_their_own_dropout() -> None:
    for factory, differ in ((mlp, False), (dropping, True)):
        loop = loop_of((0, 1), factory)
        same = loop.initial_flat()[:1].expand(2, -1)
        with reproducible_run(CPU, deterministic=True):
            one, other = loop.train(same, TrainingPhase(0, (np.array([7]), np.array([7])), 1))
        assert torch.equal(one, other) != differ


def with_other_values(data: DeviceData, gone: list[int], fill: float) -> DeviceData:
    X, y = data.X.clone(), data.y.clone()
    X[gone], y[gone] = fill, 0
    return DeviceData(X, y)


def gone_row_shows(factory: Any, fill: float) -> bool:
    """Whether the values of rows whose slots are empty change what the nets become."""
    slots = [[-1 if row in (2, 9) else row for row in range(13)], [0, -1, -1]]
    before = trained(loop_of((0, 1), factory), *slots)
    changed = with_other_values(table(), [2, 9], fill)
    try:
        return not torch.equal(trained(loop_of((0, 1), factory, data=changed), *slots), before)
    except TrainingError:
        return True


@pytest.mark.parametrize("fill", [0.0, 1e6, float("nan")])
@pytest.mark.parametrize("net", FACTORIES)
def test_a_row_that_left_has_no_influence(net: str, fill: float) -> None:
    assert not gone_row_shows(FACTORIES[net], fill)


def weights_of_all_slots(rows: Tensor) -> _batches.LaneBatches:
    """Count empty slots as people; what a first thought does."""
    batches = real_tables(rows)
    return batches._replace(weights=torch.full_like(batches.weights, 1 / rows.shape[2]))


def left_where_they_were(rows: Tensor) -> _batches.LaneBatches:
    """Fill empty slots with any row; position -1 is the last one, and 2 is a removed row."""
    batches = real_tables(rows)
    return batches._replace(rows=torch.where(rows >= 0, rows, 2))


real_tables = _batches._fill_batches


def test_weights_that_do_not_count_empty_slots_are_missed(monkeypatch: Any) -> None:
    slots = [-1 if row in (2, 9) else row for row in range(13)]
    expected = plain_torch(0, slots, number=0, epochs=2)
    assert torch.allclose(trained(loop_of(), slots)[0], expected, atol=2e-6)
    monkeypatch.setattr(_batches, "_fill_batches", weights_of_all_slots)
    assert not torch.allclose(trained(loop_of(), slots)[0], expected, atol=1e-3)


@pytest.mark.parametrize("net", FACTORIES)
def test_fillers_from_outside_the_batch_are_caught(net: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(_batches, "_fill_batches", left_where_they_were)
    # Without BatchNorm a weight of 0 hides any finite row, but not one that is not a number.
    assert gone_row_shows(FACTORIES[net], float("nan") if net != "batch norm" else 1e6)


class Watching(nn.BatchNorm1d):
    """Keeps every value that comes to BatchNorm in training."""

    heard: set[float]

    def forward(self, x: Tensor) -> Tensor:
        type(self).heard |= set(x.flatten().tolist())
        return super().forward(x)


def test_batch_norm_never_sees_a_row_that_left() -> None:
    numbers = torch.arange(N_ROWS, dtype=torch.float32)
    data = DeviceData(numbers[:, None].expand(N_ROWS, *SHAPE).clone(), table().y)
    Watching.heard = set()
    loop = loop_of((0,), lambda: nn.Sequential(Watching(4), nn.Linear(4, 3)), data=data)
    Watching.heard = set()
    held = [row for row in range(3, 17) if row not in (4, 11)]
    trained(loop, [row if row in held else -1 for row in range(3, 17)])
    assert sorted(Watching.heard) == held


def test_a_batch_of_one_person_is_no_trouble_for_batch_norm() -> None:
    flat = trained(loop_of(factory=normed), [7, -1, -1, -1, -1])
    assert torch.isfinite(flat).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_names_net_part_and_epoch(value: float) -> None:
    """The loss breaks in the second epoch: lane 7 alone has row 20, and 3 steps come before."""
    calls = []

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        spoilt = torch.where((y == 9) & torch.tensor(len(calls) > 3), value, 0.0)
        return functional.cross_entropy(logits, y.clamp(max=2), reduction="none") + spoilt

    data = table()
    data.y[20] = 9
    loop = loop_of((6, 7), settings=replace(PLAIN, loss=loss), data=data)
    with pytest.raises(TrainingError, match=r"loss is (nan|inf) in part 5, epoch 1 of network 7"):
        trained(loop, range(12), [1, 2, 20], number=5, epochs=4)


def test_parameters_that_break_in_the_last_step_are_found() -> None:
    data = table()
    data.X[:] *= 1e30
    # The loss of the only step is a number; its gradient times the rate is none.
    settings = replace(PLAIN, learning_rate=1e20)
    loop = loop_of((6, 7), lambda: nn.Linear(4, 3), settings, data)
    with pytest.raises(TrainingError, match=r"in part 2, epoch 0 of network 7"):
        trained(loop, None, range(5), number=2, epochs=1)


def test_training_goes_on_after_a_failure() -> None:
    loop, slots = loop_of(), range(9)
    expected = trained(loop, slots)
    bad = torch.full_like(loop.initial_flat(), torch.nan)
    with reproducible_run(CPU, deterministic=True), pytest.raises(TrainingError):
        loop.train(bad, TrainingPhase(0, (np.arange(9),), 1))
    assert torch.equal(trained(loop, slots), expected)


@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        (functional.cross_entropy, r"\(\)"),
        (lambda logits, _: logits, r"\(5, 3\)"),
        (lambda logits, _: logits[:4, 0], r"\(4,\)"),
    ],
)
def test_a_loss_of_another_shape(loss: Any, shape: str) -> None:
    loop = loop_of((0, 1), settings=replace(PLAIN, loss=loss))
    with pytest.raises(TrainingError, match=rf"loss returned shape {shape} for 5 rows"):
        trained(loop, range(9), range(4))


def test_an_own_loss_is_used() -> None:
    def twice(logits: Tensor, y: Tensor) -> Tensor:
        return 2 * functional.cross_entropy(logits, y, reduction="none")

    own = trained(loop_of(settings=replace(PLAIN, loss=twice, weight_decay=0.0)), range(9))
    fast = trained(loop_of(settings=replace(PLAIN, learning_rate=0.2, weight_decay=0.0)), range(9))
    np.testing.assert_allclose(own.numpy(), fast.numpy(), rtol=1e-4, atol=1e-6)


def test_the_callback_hears_every_epoch() -> None:
    seen = list[Progress]()
    slots = [range(7), None]
    trained(loop_of((0, 1)), *slots, epochs=3, callback=seen.append, place=(4, 9))
    places = [(each.part, each.n_parts, each.epoch, each.n_epochs) for each in seen]
    assert places == [(4, 9, 0, 3), (4, 9, 1, 3), (4, 9, 2, 3)]
    assert seen[2].loss < seen[0].loss


def test_the_loss_reported_is_the_mean_over_steps_and_lanes() -> None:
    seen, data = list[Progress](), table()
    loop = loop_of((0, 1, 2), settings=replace(PLAIN, optimizer="sgd", learning_rate=1e-9))
    trained(loop, range(5), None, [7, -1, 8], epochs=1, callback=seen.append)
    means = []
    for line, rows in zip(loop.initial_flat()[[0, 2]], ([0, 1, 2, 3, 4], [7, 8]), strict=True):
        logits = TEMPLATE.train_logits(line, data.X[rows])
        means.append(float(functional.cross_entropy(logits, data.y[rows])))
    assert seen[0].loss == pytest.approx(np.mean(means), abs=1e-6)


def test_a_callback_that_fails_stops_training() -> None:
    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    loop = loop_of()
    with pytest.raises(KeyboardInterrupt):
        trained(loop, range(9), callback=stop)
    assert torch.equal(trained(loop, range(9)), trained(loop_of(), range(9)))


def test_bytes_are_trained_as_numbers() -> None:
    X = np.random.default_rng(0).integers(0, 256, (N_ROWS, *SHAPE)).astype(np.uint8)
    slow = replace(PLAIN, learning_rate=1e-4)
    outcomes = [
        trained(loop_of(settings=slow, data=DeviceData(rows, table().y)), range(9))
        for rows in (torch.from_numpy(X), torch.from_numpy(X.astype(np.float32)))
    ]
    assert torch.equal(*outcomes)


@pytest.mark.parametrize("net", FACTORIES)
def test_half_precision_computes_in_half_and_keeps_the_rest(net: str) -> None:
    settings = replace(PLAIN, precision="bfloat16")
    half = trained(loop_of((0, 1), FACTORIES[net], settings), range(20), range(7))
    full = trained(loop_of((0, 1), FACTORIES[net]), range(20), range(7))
    assert half.dtype == torch.float32
    assert not torch.equal(half, full)
    np.testing.assert_allclose(half.numpy(), full.numpy(), atol=0.1)
    assert torch.equal(
        half, trained(loop_of((0, 1), FACTORIES[net], settings), range(20), range(7))
    )


def test_coarse_products_change_nothing_on_a_cpu() -> None:
    coarse = trained(loop_of(settings=replace(PLAIN, precision="tf32")), range(9))
    assert torch.equal(coarse, trained(loop_of(), range(9)))


@pytest.mark.parametrize("net", FACTORIES)
@pytest.mark.parametrize("width", [1, 2])
def test_slots_that_are_never_filled_cost_a_lone_lane_nothing(
    net: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard of 9 rows, batches of 50 slots: only BatchNorm and other lanes need all of them."""
    settings, sizes = replace(PLAIN, batch_size=50), set[int]()
    original = Loop._run_step

    def spy(self: Loop, rows: Tensor, *more: Tensor) -> None:
        sizes.add(rows.shape[1])
        original(self, rows, *more)

    monkeypatch.setattr(Loop, "_run_step", spy)
    trained(loop_of(tuple(range(width)), FACTORIES[net], settings), *[range(9)] * width)
    assert sizes == {9 if width == 1 and net != "batch norm" else 50}


@pytest.mark.parametrize("net", FACTORIES)
def test_a_callback_changes_no_bit_whatever_it_does(net: str) -> None:
    def meddle(_: Progress) -> None:
        torch.rand(3)
        torch.manual_seed(8)
        trained(loop_of((5,), dropping), range(7), callback=lambda _: torch.rand(2))

    expected = trained(loop_of((0, 1), FACTORIES[net]), range(9), range(4))
    got = trained(loop_of((0, 1), FACTORIES[net]), range(9), range(4), callback=meddle)
    assert torch.equal(got, expected)


def test_layers_that_cannot_be_stacked() -> None:
    class RecurrentNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRU(1, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            last: Tensor = self.cell(x[:, :, None])[0][:, -1]
            return last

    assert torch.isfinite(trained(loop_of((0,), RecurrentNet), range(9))).all()
    with pytest.raises(
        TrainingError, match=r"cannot be trained in several networks .* lane_width=1"
    ):
        trained(loop_of((0, 1), RecurrentNet), range(9), range(4))


@pytest.mark.parametrize("variant", ["momentum", "adam"])
def test_a_schedule_changes_the_rate(variant: str) -> None:
    settings = VARIANTS[variant]
    outcomes = [
        trained(loop_of(settings=replace(settings, schedule=schedule)), range(9))
        for schedule in ("constant", "cosine", "one-cycle")
    ]
    assert len({tuple(outcome[0].tolist()) for outcome in outcomes}) == 3
