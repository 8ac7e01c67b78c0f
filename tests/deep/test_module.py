"""A module as a function of one flat vector: layout, start, statistics, and what is refused."""

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from letheon.data import SlotRows, as_ids
from letheon.deep._base import TrainingContext
from letheon.deep._loop import DeviceData
from letheon.deep._module import Template
from letheon.deep._optim import LoopSettings
from letheon.exceptions import TrainingError
from tests.sharded.people import examples

SEED = 2**100 + 7


def mlp(shape: Any, n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 4), nn.Tanh(), nn.Linear(4, n_classes))


def normed(shape: Any, n_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 3, 2),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.BatchNorm1d(12, affine=False),
        nn.Dropout(0.5),
        nn.Linear(12, n_classes),
    )


class Tied(nn.Module):
    """One matrix on the way in and on the way out."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(3, 3)
        self.outward = nn.Linear(3, 3)
        self.outward.weight = self.inward.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outward(torch.tanh(self.inward(x)))
        return out


class Buffered(nn.Module):
    """A constant that was drawn, and a counter if the test wants one."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.counts = counts
        self.weight = nn.Parameter(torch.zeros(3))
        self.register_buffer("scale", torch.randn(3))
        self.register_buffer("seen", torch.zeros(()))
        self.scale: Tensor
        self.seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.counts:
            self.seen += 1
        return x * self.scale + self.weight


def template(factory: Any = mlp, shape: Any = (3,), seed: int = SEED, **more: Any) -> Template:
    return Template(factory, shape, 3, seed, **more)


def rows(n: int, *shape: int) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(n))


def test_the_layout_is_that_of_the_module() -> None:
    made = template()
    assert made.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert [tuple(shape) for shape in made.shapes] == [(4, 3), (4,), (3, 4), (3,)]
    assert made.sizes == [12, 4, 12, 3]
    assert made.n_parameters == 31
    parts = made.unflatten(torch.arange(31.0))
    assert parts["0.bias"].tolist() == [12, 13, 14, 15]
    assert parts["2.weight"].tolist() == torch.arange(16.0, 28.0).view(3, 4).tolist()


def test_parameters_by_name_are_views() -> None:
    made, flat = template(), torch.zeros(31)
    made.unflatten(flat)["2.bias"].fill_(1)
    assert flat.tolist() == [0] * 28 + [1] * 3


def test_logits_and_gradients_are_those_of_the_module() -> None:
    made, x = template(), rows(5, 3)
    flat = made.initial_flat(0).requires_grad_()
    module = made.make_module(flat.detach(), {}).requires_grad_()
    expected = module(x)
    got = made.train_logits(flat, x)
    assert torch.equal(got, expected)
    (gradient,) = torch.autograd.grad(got.square().sum(), flat)
    expected.square().sum().backward()
    own = torch.cat(
        [part.grad.reshape(-1) for part in module.parameters() if part.grad is not None]
    )
    assert torch.allclose(gradient, own)


@given(st.integers(0, 2**128 - 1), st.integers(0, 50), st.integers(0, 2**32))
@examples(20)
def test_a_start_depends_on_seed_and_lane_only(seed: int, lane: int, elsewhere: int) -> None:
    made = template(seed=seed)
    torch.manual_seed(elsewhere)
    before = torch.get_rng_state()
    start = made.initial_flat(lane)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    assert torch.equal(template(seed=seed).initial_flat(lane), start)
    assert start.dtype == torch.float32
    assert not start.requires_grad
    assert not torch.equal(made.initial_flat(lane + 1), start)
    assert not torch.equal(template(seed=seed ^ 1).initial_flat(lane), start)


def test_building_leaves_the_callers_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    template(normed, (2, 3, 3))
    assert torch.equal(torch.get_rng_state(), before)


def test_building_waits_for_a_run_in_another_thread() -> None:
    from letheon.deep._device import reproducible_run

    thread = threading.Thread(target=template)
    with reproducible_run(torch.device("cpu"), deterministic=True):
        torch.manual_seed(5)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        expected = torch.rand(8, generator=torch.Generator().manual_seed(5))
        assert torch.equal(torch.rand(8), expected)
    thread.join()
    assert not thread.is_alive()


def test_a_factory_may_take_nothing() -> None:
    made = template(lambda: nn.Linear(3, 3))
    assert made.names == ("weight", "bias")


def test_a_factory_with_defaults_gets_shape_and_classes() -> None:
    def factory(shape: Any = (99,), n_classes: int = 99, width: int = 5) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, n_classes))

    assert template(factory).sizes == [15, 5, 15, 3]


def without_gradient() -> nn.Module:
    module = nn.Linear(3, 3)
    module.bias.requires_grad_(False)
    return module


class PairModule(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return x, x


def with_running_instances() -> nn.Module:
    norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
    return nn.Sequential(
        nn.Linear(3, 6), nn.Unflatten(1, (3, 2)), norm, nn.AvgPool1d(2), nn.Flatten()
    )


def with_batches_in_answers() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False))


class Fourier(nn.Module):
    """Random features that no state_dict holds."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.register_buffer("waves", torch.as_tensor(draw()).float(), persistent=False)
        self.waves: Tensor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.cos(x @ self.waves))
        return out


class Restless(nn.Linear):
    """Answers with noise of NumPy's, or counts its calls."""

    def __init__(self, *, noise: bool) -> None:
        super().__init__(3, 3)
        self.noise, self.calls = noise, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        scale = np.random.default_rng().normal() if self.noise else self.calls
        return super().forward(x) * float(scale)


def weights_of_numpy() -> nn.Module:
    module = nn.Linear(3, 3)
    module.weight.data = torch.from_numpy(np.random.default_rng().normal(size=(3, 3))).float()
    return module


def weights_of_another_generator() -> nn.Module:
    module, generator = nn.Linear(3, 3), torch.Generator()
    generator.seed()
    nn.init.normal_(module.bias, generator=generator)
    return module


REFUSED: list[tuple[Any, str]] = [
    (weights_of_numpy, "module builds a different weight in a second call with the same seed"),
    (weights_of_another_generator, "module builds a different bias in a second call"),
    (lambda: Fourier(lambda: np.random.default_rng().normal(size=(3, 4))), "a different waves"),
    (lambda: Restless(noise=True), "different outputs for the same rows and seed"),
    (lambda: Restless(noise=False), "different outputs for the same rows and seed"),
    (lambda: nn.LazyLinear(3), "weight has no shape yet, because it belongs to a lazy layer"),
    (
        lambda: nn.Linear(3, 4),
        r"returns \(2, 4\) for 2 rows of shape \(3,\); expected a tensor of shape \(2, 3\)",
    ),
    (
        lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)),
        r"returns \(2,\) for 2 rows .*; expected a tensor of shape \(2, 3\)",
    ),
    (lambda: PairModule(3, 3), r"returns tuple for 2 rows .*; expected a tensor of shape \(2, 3\)"),
    (
        lambda shape: nn.Linear(3, 3),
        r"signature \(shape\); expected a factory that takes the shape",
    ),
    (lambda a, b, c: nn.Linear(3, 3), "expected a factory that takes the shape of a row and"),
    (lambda: 3, "module returned a int; expected a factory"),
    (lambda: Buffered(counts=True), "buffer seen changes in training"),
    (with_running_instances, "buffer 2.running_mean changes in training"),
    (with_batches_in_answers, "BatchNorm 1 has track_running_stats=False"),
    (without_gradient, "parameter bias has requires_grad=False"),
    (lambda: nn.Linear(3, 3).double(), "parameter weight is torch.float64; expected float32"),
    (nn.Identity, "no parameters"),
]


@pytest.mark.parametrize(("factory", "message"), REFUSED)
def test_modules_that_cannot_be_trained(factory: Any, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        template(factory)


def test_a_factory_must_build_the_same_every_time() -> None:
    widths = iter([4, 4, 5])
    made = template(lambda: nn.Sequential(nn.Linear(3, w := next(widths)), nn.Linear(w, 3)))
    with pytest.raises(TrainingError, match="different parameters in two calls"):
        made.initial_flat(1)


def test_a_factory_that_draws_from_torch_may_keep_what_it_draws_out_of_the_state() -> None:
    made = template(lambda: Fourier(lambda: torch.randn(3, 4)))
    assert set(made.constants) == {"waves"}


def test_weights_that_are_no_numbers_are_the_same_twice() -> None:
    def factory() -> nn.Module:
        module = nn.Linear(3, 3)
        nn.init.constant_(module.weight, float("nan"))
        return module

    assert template(factory).initial_flat(1)[:9].isnan().all()


def test_another_default_device_does_not_reach_the_factory() -> None:
    expected = template().initial_flat(2)
    torch.set_default_device("meta")
    try:
        made = template()
        assert torch.equal(made.initial_flat(2), expected)
    finally:
        torch.set_default_device(None)


def test_tied_weights_are_one_parameter() -> None:
    made, x = template(Tied), rows(4, 3)
    assert made.names == ("inward.weight", "inward.bias", "outward.bias")
    flat = made.initial_flat(0) * 2
    module: Any = made.make_module(flat, {})
    assert module.outward.weight is module.inward.weight
    weight = flat[:9].view(3, 3)
    expected = torch.tanh(x @ weight.T + flat[9:12]) @ weight.T + flat[12:]
    assert torch.allclose(module(x), expected, atol=1e-6)
    assert torch.allclose(made.train_logits(flat, x), expected, atol=1e-6)


def test_constants_come_from_the_first_net_or_from_a_file() -> None:
    made, x = template(lambda: Buffered(counts=False)), rows(4, 3)
    scale = made.constants["scale"]
    assert set(made.constants) == {"scale", "seen"}
    assert torch.equal(made.train_logits(torch.zeros(3), x), x * scale)
    given = {"scale": torch.tensor([1.0, 2.0, 3.0]), "seen": torch.zeros(())}
    again = template(lambda: Buffered(counts=False), constants=given)
    for answer in (again.train_logits(torch.zeros(3), x), again.make_module(torch.zeros(3), {})(x)):
        assert torch.equal(answer, x * given["scale"])


@pytest.mark.parametrize("given", [{}, {"scale": torch.zeros(2), "seen": torch.zeros(())}])
def test_constants_of_another_module(given: Any) -> None:
    with pytest.raises(TrainingError, match="constant buffers differ from those of the saved"):
        template(lambda: Buffered(counts=False), constants=given)


def test_batch_norm_trains_by_the_batch_alone() -> None:
    made = template(normed, (2, 3, 3))
    assert made.has_batch_norm
    assert made.constants == {}
    x, other = rows(6, 2, 3, 3), rows(5, 2, 3, 3)
    flat = made.initial_flat(0)
    torch.manual_seed(0)
    first = made.train_logits(flat, x)
    made.train_logits(flat, 100 * other)
    torch.manual_seed(0)
    assert torch.equal(made.train_logits(flat, x), first)


def test_statistics_are_torchs_running_means() -> None:
    made, batches = template(normed, (2, 3, 3)), [rows(n, 2, 3, 3) for n in (6, 9, 5)]
    flat = made.initial_flat(0)
    statistics = made.running_statistics(flat, batches)
    module: Any = made.make_module(flat, {})
    assert not module.training
    for part in (module[1], module[4]):
        part.momentum = None
        part.train()
    for batch in batches:
        module(batch)
    expected = dict(module.named_buffers())
    assert set(statistics) == set(expected)
    for name, value in statistics.items():
        assert torch.equal(value, expected[name])
    # And by hand, for the first layer.
    convolved = [module[0](batch) for batch in batches]
    means = torch.stack([part.mean(dim=(0, 2, 3)) for part in convolved]).mean(dim=0)
    spread = torch.stack([part.transpose(0, 1).flatten(1).var(dim=1) for part in convolved])
    assert torch.allclose(statistics["1.running_mean"], means, atol=1e-6)
    assert torch.allclose(statistics["1.running_var"], spread.mean(dim=0), atol=1e-6)


def test_answers_use_the_statistics_given() -> None:
    made, x = template(normed, (2, 3, 3)), rows(6, 2, 3, 3)
    flat = made.initial_flat(0)
    module = made.make_module(flat, made.running_statistics(flat, [10 * rows(8, 2, 3, 3) + 3]))
    assert torch.allclose(module(x)[:1], module(x[:1]), atol=1e-6)
    assert not torch.allclose(module(x), made.make_module(flat, {})(x), atol=1e-3)
    assert not any(part.requires_grad for part in module.parameters())


def test_nets_without_batch_norm_have_no_statistics() -> None:
    made = template()
    assert not made.has_batch_norm
    assert made.running_statistics(made.initial_flat(0), [rows(3, 3)]) == {}


def context(n: int) -> TrainingContext:
    X = rows(max(n, 1), 2, 3, 3).numpy().copy()
    slots = SlotRows(X, np.zeros(len(X), np.int64), as_ids(list(range(len(X)))))
    settings = LoopSettings(4, "sgd", 0.1, 0.0, 0.0, "constant", "cross_entropy", "float32")
    device = torch.device("cpu")
    return TrainingContext(slots, template(normed, (2, 3, 3)), settings, 0, device)


@pytest.mark.parametrize("n", [0, 1, 2, 257, 600])
def test_statistics_of_any_number_of_rows(n: int) -> None:
    shop = context(n)
    assert isinstance(shop.data, DeviceData)
    flat = shop.template.initial_flat(0)
    statistics = shop.compute_statistics(flat, np.arange(n))
    x = shop.data.X[:n]
    if n:
        module: Any = shop.template.make_module(flat, {})
        expected = module[0](x).mean(dim=(0, 2, 3))
        assert torch.allclose(
            statistics["1.running_mean"], expected, atol=1e-2 if n > 256 else 1e-6
        )
    assert all(torch.isfinite(part).all() for part in statistics.values())
    answer = shop.template.make_module(flat, statistics)(shop.data.X)
    assert torch.isfinite(answer).all()


def people(n: int) -> SlotRows:
    X = np.arange(1.0, 1 + 3 * n, dtype=np.float32).reshape(n, 3)
    return SlotRows(X, np.ones(n, np.int64), as_ids(list(range(n))))


class Mirrored(TrainingContext):
    """A context with a copy of the rows, as on a GPU."""

    def __init__(self, held: SlotRows) -> None:
        settings = LoopSettings(4, "sgd", 0.1, 0.0, 0.0, "constant", "cross_entropy", "float32")
        super().__init__(held, template(), settings, 0, torch.device("cpu"))
        self.data = DeviceData(self.data.X.clone(), self.data.y.clone())

    def wipe(self, positions: Any) -> None:
        self.device = torch.device("cuda")
        try:
            with mock.patch.object(Tensor, "to", lambda tensor, _: tensor):
                super().wipe(positions)
        finally:
            self.device = torch.device("cpu")


def test_a_copy_on_a_gpu_loses_who_leaves() -> None:
    held = people(5)
    shop, before = Mirrored(held), torch.from_numpy(held.X.copy())
    shop.wipe(np.array([1, 3]))
    assert not shop.data.X[[1, 3]].any()
    assert not shop.data.y[[1, 3]].any()
    assert torch.equal(shop.data.X[[0, 2, 4]], before[[0, 2, 4]])
    assert torch.equal(torch.from_numpy(held.X), before)


def test_rows_on_a_cpu_are_those_of_the_host() -> None:
    held = people(5)
    shop = TrainingContext(held, template(), Mirrored(held).settings, 0, torch.device("cpu"))
    shop.wipe(np.array([1]))
    assert shop.data.X[1].all()
    held.wipe(np.array([1]))
    assert not shop.data.X[1].any()


def test_a_workshop_serves_rows_as_long_as_they_stay_where_they_are() -> None:
    held = people(40)
    shop = Mirrored(held)
    held.wipe(np.array([1]))
    assert shop.is_valid_for(held, shop.device)
    assert not shop.is_valid_for(held.compact_copy(), shop.device)
    held.append(held.X[:1].copy(), held.y[:1].copy(), as_ids([99]))
    assert not shop.is_valid_for(held, shop.device)
