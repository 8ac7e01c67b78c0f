"""The Fisher information of nets: diagonal and Kronecker factors, against plain loops."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn import functional

from letheon.deep._information import (
    FisherBatch,
    FisherInformation,
    Power,
    diagonal_fisher,
    gaussian_kl,
    kronecker_fisher,
    label_terms,
)
from letheon.deep._nets import CNN, MLP, MatmulConv2d, ResNet
from tests.sharded.people import examples


def gradient(module: nn.Module, row: Tensor, label: int) -> Tensor:
    """d log p(label | row) / dw by plain autograd, flat, float64."""
    likely = functional.log_softmax(module(row[None])[0], dim=0)[label]
    parts = torch.autograd.grad(likely, list(module.parameters()))
    return torch.cat([part.reshape(-1) for part in parts]).double()


def dense(module: nn.Module, rows: Tensor) -> Tensor:
    """The whole Fisher matrix, row by row and class by class."""
    module.requires_grad_(True)
    total = 0.0
    for row in rows:
        shares = functional.softmax(module(row[None])[0].detach().double(), dim=0)
        for label, share in enumerate(shares):
            g = gradient(module, row, label)
            total = total + share * torch.outer(g, g)
    assert isinstance(total, Tensor)
    return total / len(rows)


def squares_of_batch_means(module: nn.Module, rows: Tensor) -> Tensor:
    """What some public code calls the diagonal: (mean gradient)^2 x mean probability."""
    module.requires_grad_(True)
    likely = functional.log_softmax(module(rows), dim=1)
    total: Any = 0.0
    for label in range(likely.shape[1]):
        parts = torch.autograd.grad(
            likely[:, label].mean(), list(module.parameters()), retain_graph=True
        )
        mean = torch.cat([part.reshape(-1) for part in parts]).double()
        total = total + likely[:, label].exp().mean().double() * mean**2
    return total.detach()  # type: ignore[no-any-return]


def require_diagonal_of(module: nn.Module, rows: Tensor, candidate: Tensor) -> None:
    expected = dense(module, rows).diagonal()
    torch.testing.assert_close(candidate, expected, rtol=1e-4, atol=1e-7 * float(expected.max()))


def batches(rows: Tensor, size: int = 3) -> Iterator[FisherBatch]:
    return iter([FisherBatch(part, None) for part in rows.split(size)])


def again(rows: Tensor, size: int = 3) -> Any:
    return lambda: batches(rows, size)


class Twice(nn.Module):
    """A layer that is used twice, one whose weight another one shares, and a grouped one."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.twin = nn.Linear(4, 4)
        self.twin.weight = self.tied.weight
        self.groups = nn.Conv2d(2, 2, 1, groups=2)
        self.same = nn.Conv2d(2, 2, 1, padding="same")
        self.unused = nn.Linear(2, 2)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(torch.tanh(self.again(x)))
        x = self.twin(torch.tanh(self.tied(x)))
        x = self.same(self.groups(x.view(-1, 2, 2, 1))).flatten(1)
        logits: Tensor = self.last(torch.tanh(x))
        return logits


def normed() -> nn.Module:
    net = MLP(widths=(5,), batch_norm=True)((4,), 3).train()
    net(torch.randn(40, 4) * 2 + 1)
    return net


NETS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (lambda: MLP(widths=(5,))((4,), 3), (4,)),
    "batch-norm": (normed, (4,)),
    "cnn": (lambda: CNN(channels=(2,), hidden=3)((6, 6), 3), (6, 6)),
    "cnn-matmul": (lambda: CNN(channels=(2,), hidden=3, conv="matmul")((6, 6), 3), (6, 6)),
    "resnet": (lambda: ResNet(width=2, norm="group")((1, 8, 8), 3), (1, 8, 8)),
    "twice": (Twice, (4,)),
}


def net_and_rows(kind: str, n: int = 7, seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    build, shape = NETS[kind]
    return build().eval(), torch.randn(n, *shape)


# The diagonal


@pytest.mark.parametrize("kind", [kind for kind in NETS if kind != "resnet"])
def test_diagonal_is_that_of_rows_and_classes(kind: str) -> None:
    module, rows = net_and_rows(kind) if kind != "twice" else (connected(), torch.randn(7, 4))
    require_diagonal_of(module, rows, diagonal_fisher(module, batches(rows)).values)


def connected() -> nn.Module:
    """As `Twice`, without the layer that has no gradient at all."""
    torch.manual_seed(0)
    net = Twice()
    del net.unused
    return net.eval()


@examples(15)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 9),
    size=st.integers(1, 9),
    widths=st.lists(st.integers(1, 4), max_size=2),
    n_classes=st.integers(2, 4),
)
def test_diagonal_for_any_batches(
    seed: int, n: int, size: int, widths: list[int], n_classes: int
) -> None:
    torch.manual_seed(seed)
    module = MLP(widths=tuple(widths))((3,), n_classes).eval()
    rows = torch.randn(n, 3)
    require_diagonal_of(module, rows, diagonal_fisher(module, batches(rows, size)).values)


def test_diagonal_of_softmax_regression_in_closed_form() -> None:
    module, rows = MLP(widths=())((4,), 3), torch.randn(30, 4)
    shares = functional.softmax(module(rows), dim=1).detach().double()
    spread = shares * (1 - shares)
    expected = torch.cat([(spread.T @ rows.double() ** 2 / 30).reshape(-1), spread.mean(dim=0)])
    torch.testing.assert_close(
        diagonal_fisher(module, batches(rows)).values, expected, rtol=1e-5, atol=0
    )


def test_squares_of_batch_means_are_caught() -> None:
    module, rows = net_and_rows("mlp")
    with pytest.raises(AssertionError, match="not close"):
        require_diagonal_of(module, rows, squares_of_batch_means(module, rows))
    # One row is a batch whose mean is its own gradient.
    require_diagonal_of(module, rows[:1], squares_of_batch_means(module, rows[:1]))


def test_some_parameters_only() -> None:
    module, rows = net_and_rows("mlp")
    whole = diagonal_fisher(module, batches(rows)).values
    part = diagonal_fisher(module, batches(rows), ["hidden1.bias", "output.bias"]).values
    assert torch.equal(part, torch.cat([whole[20:25], whole[40:43]]))


def test_drawn_labels_are_unbiased() -> None:
    module, rows = net_and_rows("mlp", n=4)
    n_draws = 400
    draws = ((torch.arange(n_draws, dtype=torch.float64) + 0.5) / n_draws).repeat_interleave(4)
    drawn = diagonal_fisher(module, [FisherBatch(rows.repeat(n_draws, 1), draws)]).values
    every = diagonal_fisher(module, batches(rows)).values
    # The share of a label among evenly spaced draws is its probability to 1 / n_draws.
    assert float((drawn - every).abs().max()) < 0.02 * float(every.max())


def test_drawn_labels_follow_the_model() -> None:
    logits = torch.log(torch.tensor([[0.25, 0.5, 0.25]]).repeat(5, 1))
    draws = torch.tensor([0.0, 0.2, 0.3, 0.76, 1.0], dtype=torch.float64)
    [(labels, weights)] = label_terms(logits, draws)
    assert labels.tolist() == [0, 0, 1, 2, 2]
    assert weights.tolist() == [1.0] * 5


def test_weights_of_all_labels_are_probabilities() -> None:
    estimate = label_terms(torch.randn(6, 4), None)
    assert [term.labels.tolist() for term in estimate] == [[label] * 6 for label in range(4)]
    total = torch.stack([term.weights for term in estimate]).sum(dim=0)
    torch.testing.assert_close(total, torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize(("exponent", "expected"), [(0.25, 2.0), (0.5, 4.0), (1.0, 16.0)])
def test_exponents(exponent: float, expected: float) -> None:
    quarter = torch.tensor([1 / 16 - 1e-3], dtype=torch.float64)
    estimate = FisherInformation(quarter).apply_power(
        Power(exponent, 1e-3), torch.ones(1, dtype=torch.float64)
    )
    assert float(estimate) == pytest.approx(expected)


def test_clamp_and_damping_limit_the_inverse() -> None:
    nothing = torch.zeros(1)
    assert float(Power(0.5, 1e-8).evaluate_at(nothing)) == pytest.approx(1e4)
    assert float(Power(0.5, 1e-8, clamp=1e3).evaluate_at(nothing)) == pytest.approx(1e1**1.5)
    assert float(Power(0.25, 1e-8, clamp=1e3).evaluate_at(torch.ones(1))) == pytest.approx(1.0)


# Kronecker factors


def power_of(matrix: Tensor, power: Power) -> Tensor:
    """A function of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    result: Tensor = vectors @ torch.diag(power.evaluate_at(values.clamp(min=0))) @ vectors.T
    return result


def require_power_of(matrix: Tensor, estimate: FisherInformation, rtol: float = 1e-4) -> None:
    vector = torch.randn(len(matrix), dtype=torch.float64)
    for power in (Power(0.25, 1e-3), Power(0.5, 1e-2, clamp=30.0), Power(1.0, 1e-2)):
        expected = power_of(matrix, power) @ vector
        torch.testing.assert_close(
            estimate.apply_power(power, vector),
            expected,
            rtol=rtol,
            atol=rtol * float(expected.norm()),
        )


def test_one_row_of_a_linear_layer_is_exact() -> None:
    module, rows = MLP(widths=())((4,), 3), torch.randn(1, 4)
    require_power_of(dense(module, rows), kronecker_fisher(module, again(rows)))


def test_without_bias_and_with() -> None:
    rows = torch.randn(1, 4)
    for bias in (True, False):
        module = nn.Linear(4, 3, bias=bias)
        require_power_of(dense(module, rows), kronecker_fisher(module, again(rows)))


def test_equal_outputs_of_all_rows_are_exact() -> None:
    """With a last layer of zeros g does not depend on a, so that the factors separate."""
    module, rows = MLP(widths=())((4,), 3), torch.randn(9, 4)
    with torch.no_grad():
        module.get_parameter("output.weight").zero_()
    require_power_of(dense(module, rows), kronecker_fisher(module, again(rows)))


@pytest.mark.parametrize("kind", [nn.Conv2d, MatmulConv2d])
def test_a_convolution_with_one_position_is_exact(kind: Any) -> None:
    module, rows = nn.Sequential(kind(2, 3, 2), nn.Flatten()), torch.randn(1, 2, 2, 2)
    require_power_of(dense(module, rows), kronecker_fisher(module, again(rows)))


def test_blocks_of_a_net_of_one_row() -> None:
    """For one row A is a a' itself; only products of different layers are left out."""
    module, rows = MLP(widths=(5,))((4,), 3), torch.randn(1, 4)
    whole, edges = dense(module, rows), [0, 25, 43]
    blocks = torch.zeros_like(whole)
    # A layer's weight and bias lie side by side in the flat vector.
    for begin, end in pairwise(edges):
        blocks[begin:end, begin:end] = whole[begin:end, begin:end]
    # The hidden layer's G sums over labels g g', which A x G holds exactly for one row.
    require_power_of(blocks, kronecker_fisher(module, again(rows)))


def test_factors_of_convolutions_are_sums_over_positions() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(1, 0), dilation=1)
    module = nn.Sequential(conv, nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(3))
    rows = torch.randn(5, 2, 4, 5)
    module(rows)
    estimate = kronecker_fisher(module, again(rows)).blocks[0]
    A, G = (vectors * values @ vectors.T for values, vectors in estimate[:2])
    expected_A, expected_G = convolution_factors(module, rows)
    torch.testing.assert_close(A, expected_A, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(G, expected_G, rtol=1e-4, atol=1e-6)


def convolution_factors(module: nn.Sequential, rows: Tensor) -> tuple[Tensor, Tensor]:
    """A and G of the first layer by loops over rows, labels and positions."""
    A, G = torch.zeros(13, 13).double(), torch.zeros(3, 3).double()
    for row in rows:
        padded = functional.pad(row, (0, 0, 1, 1))
        output = module[0](row[None]).detach().requires_grad_()
        likely = functional.log_softmax(module[3](torch.relu(output).flatten(1))[0], dim=0)
        height, width = output.shape[2:]
        for label in range(3):
            (g,) = torch.autograd.grad(likely[label], output, retain_graph=True)
            for i in range(height):
                for j in range(width):
                    point = g[0, :, i, j].double()
                    share = likely[label].exp().detach().double() / (height * width)
                    G += share * torch.outer(point, point)
        for i in range(height):
            for j in range(width):
                window = padded[:, i : i + 2, 2 * j : 2 * j + 3].reshape(-1)
                a = torch.cat([window, torch.ones(1)]).double()
                A += torch.outer(a, a)
    return A / len(rows), G / len(rows)


def test_other_layers_have_their_diagonal() -> None:
    module, rows = connected(), torch.randn(6, 4)
    estimate = kronecker_fisher(module, again(rows))
    assert len(estimate.blocks) == 1
    assert estimate.blocks[0].inputs[0].shape == (5,)
    vector = torch.ones(sum(part.numel() for part in module.parameters()), dtype=torch.float64)
    power = Power(0.25, 1e-4)
    whole = diagonal_fisher(module, batches(rows)).apply_power(power, vector)
    # All but the last layer, which has 4 x 3 weights and 3 biases.
    torch.testing.assert_close(estimate.apply_power(power, vector)[:-15], whole[:-15])


def test_layers_that_are_never_used_have_no_information() -> None:
    module, rows = net_and_rows("twice")
    estimate = diagonal_fisher(module, batches(rows)).values
    assert float(estimate.min()) == 0.0
    assert torch.isfinite(
        kronecker_fisher(module, again(rows)).apply_power(Power(0.25, 1e-8), estimate)
    ).all()


@pytest.mark.parametrize("kind", ["batch-norm", "cnn", "cnn-matmul", "resnet"])
def test_functions_of_f_are_positive_and_compose(kind: str) -> None:
    """(F^-1/4)^4 is F^-1, and v' f(F) v > 0, for every net that letheon brings."""
    module, rows = net_and_rows(kind, n=4)
    estimate = kronecker_fisher(module, again(rows))
    vector = torch.randn(sum(part.numel() for part in module.parameters()), dtype=torch.float64)
    four_times = vector
    for _ in range(4):
        four_times = estimate.apply_power(Power(0.25, 1e-2), four_times)
    torch.testing.assert_close(four_times, estimate.apply_power(Power(1.0, 1e-2), vector))
    assert float(vector @ estimate.apply_power(Power(0.5, 1e-2), vector)) > 0


def test_kfac_is_near_the_diagonal_of_the_truth() -> None:
    module, rows = net_and_rows("mlp", n=40)
    n = sum(part.numel() for part in module.parameters())
    estimate = kronecker_fisher(module, again(rows, 10))
    damping = 1e-3
    inverse = torch.stack(
        [
            estimate.apply_power(Power(1.0, damping), unit)
            for unit in torch.eye(n, dtype=torch.float64)
        ]
    )
    estimate = torch.linalg.inv(inverse) - damping * torch.eye(n, dtype=torch.float64)
    truth = dense(module, rows)
    assert float((estimate - truth).norm()) < 0.6 * float(truth.norm())


def test_the_module_is_left_without_hooks() -> None:
    module, rows = net_and_rows("mlp")
    before = module(rows)
    kronecker_fisher(module, again(rows))
    assert not any(part._forward_hooks for part in module.modules())
    assert torch.equal(module(rows), before)


# Divergence of normal laws


@pytest.mark.parametrize(
    "laws", [(0.0, 1.0, 0.5, 2.0), (1.0, 0.3, -1.0, 0.3), (2.0, 3.0, 2.0, 1.0)]
)
def test_gaussian_kl_is_the_integral(laws: tuple[float, ...]) -> None:
    mean0, var0, mean1, var1 = laws
    one, two = norm(mean0, np.sqrt(var0)), norm(mean1, np.sqrt(var1))
    x = np.linspace(-30, 30, 200_001)
    expected = np.trapezoid(one.pdf(x) * (one.logpdf(x) - two.logpdf(x)), x)
    assert gaussian_kl(*([number] for number in laws)) == pytest.approx(expected, rel=1e-6)


def test_gaussian_kl_has_the_factor_that_the_authors_code_lacks() -> None:
    rng = np.random.default_rng(0)
    mean0, mean1, var0, var1 = *rng.normal(size=(2, 9)), *rng.uniform(0.5, 2, size=(2, 9))
    theirs = ((mean0 - mean1) ** 2 / var1 + var0 / var1 - np.log(var0 / var1) - 1).sum()
    assert gaussian_kl(mean0, var0, mean1, var1) == pytest.approx(theirs / 2)
    assert gaussian_kl(mean0, var0, mean0, var0) == 0.0
