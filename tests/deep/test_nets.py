"""The nets against the same nets in plain torch layers, and many of them at once."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

from letheon import state
from letheon.deep._module import Template
from letheon.deep._nets import (
    CNN,
    MLP,
    AutoConv2d,
    GroupNorm,
    HalvingMax,
    HalvingMean,
    MatmulConv2d,
    ResNet,
    _HalvingMax,
)
from tests.sharded.people import examples

TINY = (
    MLP(widths=(5, 4)),
    MLP(batch_norm=True),
    CNN(channels=(2, 3), hidden=4, conv="cudnn"),
    CNN(channels=(2, 3), hidden=4, conv="matmul"),
    CNN(channels=(2, 3), hidden=0, conv="matmul", pool="mean", kernel=5),
    CNN(channels=(2, 3), hidden=4, conv="matmul", pool="stride"),
    ResNet(width=2, conv="matmul", norm="group"),
    ResNet(width=2, conv="matmul"),
    ResNet(width=2, depth=18, conv="matmul", mean=(0.4, 0.5), std=(0.2, 0.3)),
)


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Output, gradient of x and of all parameters, for one fixed direction."""
    x = x.clone().requires_grad_()
    y = module(x)
    direction = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    return [y.detach(), *torch.autograd.grad((y * direction).sum(), [x, *module.parameters()])]


def share_weights(module: nn.Module, other: nn.Module) -> None:
    with torch.no_grad():
        for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)


def assert_all_close(first: Any, second: Any, **limits: Any) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, **limits)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, ...]]:
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    settings: dict[str, Any] = {
        "in_channels": draw(st.integers(1, 4)),
        "out_channels": draw(st.integers(1, 4)),
        "kernel_size": kernel,
        "stride": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "padding": tuple(draw(st.integers(0, size - 1)) for size in kernel),
        "bias": draw(st.booleans()),
    }
    height, width = (draw(st.integers(size, 9)) for size in kernel)
    return settings, (draw(st.integers(1, 3)), settings["in_channels"], height, width)


@given(drawn=convolutions(), seed=st.integers(0, 100))
def test_matmul_convolution_is_torchs(drawn: Any, seed: int) -> None:
    torch.manual_seed(seed)
    settings, shape = drawn
    mine = MatmulConv2d(**settings, dtype=torch.float64)
    plain = nn.Conv2d(**settings, dtype=torch.float64)
    share_weights(plain, mine)
    x = torch.randn(shape, dtype=torch.float64)
    assert_all_close(gradients(mine, x), gradients(plain, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("stride", [1, 2])
def test_second_derivatives_of_the_convolution(stride: int) -> None:
    torch.manual_seed(0)
    layer = MatmulConv2d(2, 3, 3, stride=stride, padding=1, dtype=torch.float64)
    x = torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))
    assert torch.autograd.gradgradcheck(layer, (x,))


def test_first_layer_makes_no_gradient_for_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> None:
        raise AssertionError

    layer = MatmulConv2d(1, 2, 3, padding=1)
    monkeypatch.setattr("letheon.deep._nets._input_gradient", forbidden)
    layer(torch.randn(2, 1, 4, 4)).sum().backward()
    assert layer.weight.grad is not None
    with pytest.raises(AssertionError):
        layer(torch.randn(2, 1, 4, 4, requires_grad=True)).sum().backward()


def test_auto_is_torchs_own_on_a_cpu() -> None:
    layer = AutoConv2d(2, 3, 3, padding=1)
    x = torch.randn(2, 2, 6, 6)
    assert torch.equal(layer(x), nn.Conv2d.forward(layer, x))


def test_convolution_in_bfloat16_trains_float32_weights() -> None:
    torch.manual_seed(0)
    layer = MatmulConv2d(2, 3, 3, padding=1)
    x = torch.randn(4, 2, 6, 6, requires_grad=True)
    exact = gradients(layer, x)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    direction = torch.linspace(-1, 1, y.numel()).view(y.shape)
    rounded = torch.autograd.grad((y.float() * direction).sum(), [x, *layer.parameters()])
    assert y.dtype == torch.bfloat16
    assert {part.dtype for part in rounded} == {torch.float32}
    assert_all_close(rounded, exact[1:], rtol=0.05, atol=0.2)


@given(
    shape=st.tuples(*[st.integers(1, 3)] * 2, *[st.integers(2, 7)] * 2),
    levels=st.integers(1, 20),
    seed=st.integers(0, 100),
)
def test_halving_maximum_is_torchs_with_ties(shape: Any, levels: int, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randint(0, levels, shape, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(shape[0], shape[1], shape[2] // 2, shape[3] // 2, dtype=torch.float64)
    pooled = (_HalvingMax.apply(x)[0], functional.max_pool2d(x, 2), HalvingMax()(x))  # type: ignore[no-untyped-call]
    results = [(y.detach(), *torch.autograd.grad((y * direction).sum(), x)) for y in pooled]
    assert_all_close(results[0], results[1], rtol=0, atol=0)
    assert_all_close(results[2], results[1], rtol=0, atol=0)


@given(shape=st.tuples(*[st.integers(1, 3)] * 2, *[st.integers(2, 7)] * 2))
def test_halving_mean_is_torchs(shape: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    assert_all_close(gradients(HalvingMean(), x), gradients(nn.AvgPool2d(2), x))


@given(groups=st.integers(1, 3), size=st.integers(1, 3), n_axes=st.integers(1, 3))
def test_group_norm_is_torchs(groups: int, size: int, n_axes: int) -> None:
    torch.manual_seed(0)
    mine = GroupNorm(groups, groups * size, dtype=torch.float64)
    plain = nn.GroupNorm(groups, groups * size, dtype=torch.float64)
    nn.init.normal_(mine.weight)
    nn.init.normal_(mine.bias)
    share_weights(plain, mine)
    x = torch.randn(2, groups * size, *[3] * n_axes, dtype=torch.float64)
    assert_all_close(gradients(mine, x), gradients(plain, x), rtol=1e-10, atol=1e-10)


def test_maximum_of_many_nets_at_once() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, 4, 5, 6, requires_grad=True)

    def total(many: bool) -> Tensor:
        def pool(part: Tensor) -> Tensor:
            y: Tensor = _HalvingMax.apply(part)[0]  # type: ignore[no-untyped-call]
            return y

        y = vmap(pool)(x) if many else torch.stack([pool(part) for part in x])
        return torch.autograd.grad(y.sin().sum(), x)[0]

    assert torch.equal(total(many=True), total(many=False))


class PlainCNN(nn.Module):
    """Convolution, ReLU, pooling, in the order of the books."""

    def __init__(self, settings: CNN, shape: tuple[int, int, int], n_classes: int) -> None:
        super().__init__()
        stride = 2 if settings.pool == "stride" else 1
        last, self.scale = shape[0], settings.scale
        layers: list[nn.Module] = []
        for width in settings.channels:
            padding = settings.kernel // 2
            layers += [nn.Conv2d(last, width, settings.kernel, stride, padding), nn.ReLU()]
            pools = {"max": nn.MaxPool2d(2), "mean": nn.AvgPool2d(2), "stride": nn.Identity()}
            layers.append(pools[settings.pool])
            last = width
        layers.append(nn.Flatten())
        self.body = nn.Sequential(*layers)
        n_features = self.body(torch.zeros(1, *shape)).shape[1]
        hidden = [nn.Linear(n_features, settings.hidden), nn.ReLU()] if settings.hidden else []
        self.head = nn.Sequential(
            *hidden, nn.Linear(settings.hidden if settings.hidden else n_features, n_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x * self.scale))
        return y


def plain_conv(last: int, width: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(last, width, kernel, stride, kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(width)]


class PlainResNet9(nn.Module):
    def __init__(self, n_channels: int, w: int, n_classes: int) -> None:
        super().__init__()
        pool, relu = nn.MaxPool2d(2), nn.ReLU()

        def twice(width: int) -> nn.Sequential:
            return nn.Sequential(*plain_conv(width, width), relu, *plain_conv(width, width), relu)

        self.prep = nn.Sequential(*plain_conv(n_channels, w), relu)
        self.layer1 = nn.Sequential(*plain_conv(w, 2 * w), relu, pool)
        self.around1 = twice(2 * w)
        self.layer2 = nn.Sequential(*plain_conv(2 * w, 4 * w), relu, pool)
        self.layer3 = nn.Sequential(*plain_conv(4 * w, 8 * w), relu, pool)
        self.around3 = twice(8 * w)
        self.last = nn.Linear(8 * w, n_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.prep((x / 255 - 0.5) / 0.25))
        x = self.layer3(self.layer2(x + self.around1(x)))
        x = x + self.around3(x)
        y: Tensor = 0.125 * self.last(functional.adaptive_max_pool2d(x, 1).flatten(1))
        return y


class PlainBlock(nn.Module):
    def __init__(self, last: int, width: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Sequential(*plain_conv(last, width, 3, stride))
        self.two = nn.Sequential(*plain_conv(width, width))
        same = stride == 1 and last == width
        self.short = nn.Sequential(*([] if same else plain_conv(last, width, 1, stride)))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.two(functional.relu(self.one(x))) + self.short(x))


def plain_resnet_18(n_channels: int, w: int, n_classes: int) -> nn.Module:
    blocks: list[nn.Module] = []
    last = w
    for width, stride in ((w, 1), (2 * w, 2), (4 * w, 2), (8 * w, 2)):
        blocks += [PlainBlock(last, width, stride), PlainBlock(width, width, 1)]
        last = width
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * w, n_classes)]
    return nn.Sequential(*plain_conv(n_channels, w), nn.ReLU(), *blocks, *ends)


@examples(50)
@given(
    settings=st.builds(
        CNN,
        channels=st.lists(st.integers(1, 4), min_size=1, max_size=2).map(tuple),
        hidden=st.sampled_from([0, 5]),
        kernel=st.sampled_from([1, 3, 5]),
        conv=st.sampled_from(["auto", "matmul", "cudnn"]),
        pool=st.sampled_from(["max", "mean", "stride"]),
        scale=st.sampled_from([1.0, 0.5]),
    ),
    shape=st.tuples(st.integers(1, 3), st.integers(4, 9), st.integers(4, 9)),
    seed=st.integers(0, 100),
)
def test_cnn_is_the_plain_net(settings: CNN, shape: tuple[int, int, int], seed: int) -> None:
    torch.manual_seed(seed)
    mine, plain = settings(shape, 3), PlainCNN(settings, shape, 3)
    share_weights(plain, mine)
    x = torch.randn(4, *shape)
    assert_all_close(gradients(mine, x), gradients(plain, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("conv", ["matmul", "cudnn"])
@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 14, 11)])
def test_resnet_9_is_the_plain_net(conv: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    mine = ResNet(width=3, conv=conv)(shape, 4).double()
    plain = PlainResNet9(shape[0], 3, 4).double()
    share_weights(plain, mine)
    x = 255 * torch.rand(5, *shape, dtype=torch.float64)
    # The constants of the images are float32.
    assert_all_close(gradients(mine, x), gradients(plain, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("conv", ["matmul", "cudnn"])
@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 14, 11)])
def test_resnet_18_is_the_plain_net(conv: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    settings = ResNet(depth=18, width=2, conv=conv, scale=1.0, mean=(0.0,), std=(1.0,))
    mine, plain = settings(shape, 4).double(), plain_resnet_18(shape[0], 2, 4).double()
    share_weights(plain, mine)
    x = torch.randn(5, *shape, dtype=torch.float64)
    mine_grads, plain_grads = gradients(mine, x), gradients(plain, x)
    assert_all_close(mine_grads, plain_grads, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("factory", TINY, ids=repr)
def test_many_nets_at_once_are_each_alone(factory: Any) -> None:
    template = Template(factory, (2, 8, 9), 3, seed=1)
    flat = torch.stack([template.initial_flat(lane) for lane in range(3)]).requires_grad_()
    # Always the same pixels: at a kink of a ReLU two ways to add up differ in the gradient.
    x = 50 * torch.randn(3, 4, 2, 8, 9, generator=torch.Generator().manual_seed(0))

    def answers(logits: Tensor) -> tuple[Tensor, Tensor]:
        return logits.detach(), torch.autograd.grad(logits.sin().sum(), flat)[0]

    together = answers(template.compute_stacked_logits(flat, x))
    alone = answers(torch.stack([template.train_logits(flat[i], x[i]) for i in range(3)]))
    assert_all_close(together, alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "factory",
    [CNN(channels=(2,), conv="matmul"), ResNet(width=2, conv="matmul", norm="group")],
    ids=repr,
)
def test_gradient_of_every_row(factory: Any) -> None:
    torch.manual_seed(0)
    module = factory((8, 8), 3)
    parameters = dict(module.named_parameters())
    x = torch.randn(4, 8, 8)

    def total(values: dict[str, Tensor], row: Tensor) -> Tensor:
        logits: Tensor = functional_call(module, values, (row[None],))
        return logits.sin().sum()

    rows = vmap(grad(total), (None, 0))(parameters, x)
    whole = torch.autograd.grad(module(x).sin().sum(), list(parameters.values()))
    assert_all_close([rows[name].sum(0) for name in parameters], whole, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("factory", [MLP(dropout=0.5), CNN(channels=(4,), dropout=0.5)], ids=repr)
def test_dropout_differs_between_nets(factory: Any) -> None:
    torch.manual_seed(0)
    module = factory((6, 6), 3)
    parameters, _ = stack_module_state([module, module])
    x = torch.randn(1, 5, 6, 6).expand(2, 5, 6, 6)

    def one(values: Any, rows: Tensor) -> Any:
        return functional_call(module, values, (rows,))

    first, second = vmap(one, randomness="different")(parameters, x)
    assert not torch.equal(first, second)
    module.eval()
    assert torch.equal(*vmap(one)(parameters, x))


@pytest.mark.parametrize("factory", TINY, ids=repr)
def test_factories_survive_a_file_and_have_digests_of_their_own(factory: Any) -> None:
    assert state.decode(state.encode(factory)) == factory
    digests = {state.digest(other) for other in TINY}
    assert len(digests) == len(TINY)


def test_image_of_bytes_and_its_channel() -> None:
    torch.manual_seed(0)
    net = CNN(channels=(2,), hidden=0)((6, 6), 3)
    x = torch.randint(0, 256, (4, 6, 6)).float()
    assert torch.equal(net(x), net(x[:, None]))
    assert net(x).abs().max() < 10


@pytest.mark.parametrize(
    ("factory", "settings", "words"),
    [
        (MLP, {"widths": [3]}, "widths"),
        (MLP, {"widths": (0,)}, "widths"),
        (MLP, {"dropout": 1.0}, "dropout"),
        (MLP, {"scale": 0.0}, "scale"),
        (CNN, {"kernel": 2}, "kernel"),
        (CNN, {"hidden": -1}, "hidden"),
        (CNN, {"conv": "fft"}, "conv"),
        (CNN, {"pool": "min"}, "pool"),
        (ResNet, {"depth": 50}, "depth"),
        (ResNet, {"norm": "layer"}, "norm"),
        (ResNet, {"std": (0.0,)}, "std"),
        (ResNet, {"mean": ()}, "mean"),
    ],
)
def test_settings_that_make_no_sense(factory: Any, settings: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        factory(**settings)


@pytest.mark.parametrize(
    ("factory", "shape", "words"),
    [
        (CNN(), (7,), "expected images"),
        (CNN(channels=(2, 2, 2)), (4, 4), "too small"),
        (ResNet(), (3, 4, 4), "too small"),
        (ResNet(mean=(0.1, 0.2)), (3, 8, 8), "expected 1, or one for each of the 3 channels"),
    ],
)
def test_rows_of_a_shape_that_makes_no_sense(factory: Any, shape: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        factory(shape, 3)


@pytest.mark.parametrize("factory", [CNN(), ResNet()])
@pytest.mark.parametrize("shape", [(8, 8, 3), (32, 16, 1)])
def test_colours_in_the_last_axis_are_recognised(factory: Any, shape: Any) -> None:
    words = r"too small.* \(channels, height, width\).*X.transpose\(0, 3, 1, 2\)$"
    with pytest.raises(ValueError, match=words):
        factory(shape, 3)
    turned = torch.zeros(2, *shape).numpy().transpose(0, 3, 1, 2)
    assert factory(turned.shape[1:], 3)(torch.from_numpy(turned)).shape == (2, 3)


@pytest.mark.parametrize("shape", [(3, 2, 2), (1, 3, 3)])
def test_small_images_are_not_taken_for_turned_ones(shape: Any) -> None:
    with pytest.raises(ValueError, match=r"fewer entries in channels$"):
        CNN()(shape, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("factory", TINY, ids=repr)
def test_gradients_on_a_gpu_repeat(factory: Any) -> None:
    template = Template(factory, (2, 8, 9), 3, seed=1).to(torch.device("cuda"))
    flat = torch.stack([template.initial_flat(lane) for lane in range(3)]).cuda().requires_grad_()
    x = 50 * torch.randn(3, 64, 2, 8, 9, device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        logits = template.compute_stacked_logits
        runs = [torch.autograd.grad(logits(flat, x).sin().sum(), flat)[0] for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(*runs)
