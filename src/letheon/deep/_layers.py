"""Layers that are quick for many nets at once, and whose gradients have the same bits every time.

W convolutions with weights of their own become one grouped convolution, which trains slowly on a
GPU. Written as a matrix product they become one batched product. Tensors have torch's shapes,
(n, channels, height, width); where a product made them, the channels lie last in memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Pair = tuple[int, int]


def _patches(x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
    """Return all windows of (n, h, w, c) as (n, h', w', kernel height x kernel width x c)."""
    windows = x.unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1])
    return windows.permute(0, 1, 2, 4, 5, 3).flatten(3)


def _framed(x: Tensor, top: int, bottom: int, left: int, right: int) -> Tensor:
    """Return (n, h, w, c) with zeros around it."""
    if top == bottom == left == right == 0:
        return x
    return functional.pad(x, (0, 0, left, right, top, bottom))


def _spread(x: Tensor, stride: Pair) -> Tensor:
    """Return (n, h, w, c) with stride - 1 zeros after every position."""
    if stride == (1, 1):
        return x
    gaps = (0, 0, 0, stride[1] - 1, 0, 0, 0, stride[0] - 1)
    return functional.pad(x[:, :, None, :, None, :], gaps).flatten(3, 4).flatten(1, 2)


def _input_gradient(
    gradient: Tensor, weight: Tensor, size: Sequence[int], stride: Pair, padding: Pair
) -> Tensor:
    """Return the gradient of the input: a convolution with the kernel turned around.

    A sum over overlapping windows would need atomic additions or one pass for each position of
    the kernel.
    """
    kernel = (weight.shape[2], weight.shape[3])
    spread = _spread(gradient, stride)
    before = [kernel[axis] - 1 - padding[axis] for axis in (0, 1)]
    after = [
        size[axis] + kernel[axis] - 1 - before[axis] - spread.shape[axis + 1] for axis in (0, 1)
    ]
    framed = _framed(spread, before[0], after[0], before[1], after[1])
    turned = weight.flip(2, 3).permute(2, 3, 0, 1).flatten(0, 2)
    return _patches(framed, kernel, (1, 1)) @ turned


class _Convolve(torch.autograd.Function):
    """``y[i, j] = sum over a, b of weight[:, :, a, b] x[s i + a, s j + b]``, channels last."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
        framed = _framed(x, padding[0], padding[0], padding[1], padding[1])
        kernel = (weight.shape[2], weight.shape[3])
        return _patches(framed, kernel, stride) @ weight.permute(2, 3, 1, 0).flatten(0, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        x, weight, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        stride, padding = ctx.stride, ctx.padding
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = _input_gradient(gradient, weight, x.shape[1:3], stride, padding)
        if ctx.needs_input_grad[1]:
            framed = _framed(x, padding[0], padding[0], padding[1], padding[1])
            into, height, width = weight.shape[1:]
            # Made again: kept windows would take kernel height x width times the memory of x.
            windows = _patches(framed, (height, width), stride).flatten(0, 2)
            product = gradient.flatten(0, 2).t() @ windows
            of_weight = product.unflatten(1, (height, width, into)).permute(0, 3, 1, 2)
        return of_x, of_weight, None, None


class MatmulConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` with the same parameters, computed as one matrix product.

    All windows of the input are copied side by side, (n h' w', k k c), and multiplied with the
    kernels, (k k c, o). Under `torch.func.vmap` this is one batched product. The gradient of the
    input is the same kind of product, and it is left out where the input needs none. Groups,
    dilation and padding by other values than zero are not supported.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of a batch."""
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        stride, padding = self.stride, self.padding
        # Autocast ends before the backward pass, so both factors are cast here.
        dtype = _working_dtype(x)
        y: Tensor = _Convolve.apply(  # type: ignore[no-untyped-call]
            x.to(dtype).permute(0, 2, 3, 1), self.weight.to(dtype), stride, padding
        )
        if self.bias is not None:
            y = y + self.bias.to(dtype)
        return y.permute(0, 3, 1, 2)


class AutoConv2d(MatmulConv2d):
    """A matrix product on a GPU, torch's own convolution on a CPU: each where it is quicker."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of a batch."""
        return self._product(x) if x.is_cuda else nn.Conv2d.forward(self, x)


def _working_dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class _HalvingMax(torch.autograd.Function):
    """Largest of every 2 x 2 window; the backward pass of torch's own is not deterministic."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return functional.max_pool2d_with_indices(x, [2, 2])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.size = inputs[0].shape[-2:]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        (places,) = ctx.saved_tensors
        height, width = ctx.size
        rows, columns = places.shape[-2:]
        grid = torch.arange(height * width, device=places.device).view(height, width)
        grid = grid[: 2 * rows, : 2 * columns].view(rows, 2, columns, 2, 1)
        chosen = places.permute(0, 2, 3, 1)[:, :, None, :, None] == grid
        values = gradient.permute(0, 2, 3, 1)[:, :, None, :, None]
        whole = torch.where(chosen, values, 0.0).flatten(3, 4).flatten(1, 2)
        whole = _framed(whole, 0, height - 2 * rows, 0, width - 2 * columns)
        return whole.permute(0, 3, 1, 2)


class HalvingMax(nn.Module):
    """Largest value of every 2 x 2 window; an odd last row or column is left out.

    Equal to ``torch.nn.MaxPool2d(2)``, gradients too, and deterministic on a GPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return half the height and width."""
        if not x.is_cuda:
            return functional.max_pool2d(x, 2)
        largest: Tensor = _HalvingMax.apply(x)[0]  # type: ignore[no-untyped-call]
        return largest


class HalvingMean(nn.Module):
    """Mean of every 2 x 2 window; an odd last row or column is left out.

    Equal to ``torch.nn.AvgPool2d(2)``.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return half the height and width."""
        rows, columns = x.shape[-2] // 2, x.shape[-1] // 2
        whole = x[..., : 2 * rows, : 2 * columns]
        return whole.reshape(*x.shape[:-2], rows, 2, columns, 2).mean((-3, -1))


class GroupNorm(nn.GroupNorm):
    """`torch.nn.GroupNorm` in plain steps: torch's own cannot be batched with channels last."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the batch, each group of channels of each row with mean 0 and variance 1."""
        groups = x.unflatten(1, (self.num_groups, -1))
        axes = tuple(range(2, groups.ndim))
        variance, mean = torch.var_mean(groups, axes, correction=0, keepdim=True)
        normed: Tensor = ((groups - mean) * torch.rsqrt(variance + self.eps)).flatten(1, 2)
        by_channel = (-1, *[1] * (x.ndim - 2))
        return normed * self.weight.view(by_channel) + self.bias.view(by_channel)


class Affine(nn.Module):
    """``(x * scale - mean) / std`` with constants, by channel where there are several."""

    def __init__(self, scale: float, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        divisor = torch.tensor(std).view(-1, 1, 1)
        self.register_buffer("factor", scale / divisor, persistent=False)
        self.register_buffer(
            "shift", -torch.tensor(mean).view(-1, 1, 1) / divisor, persistent=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the images in the units in which the net works."""
        return x * self.get_buffer("factor") + self.get_buffer("shift")


class Images(nn.Module):
    """Gives images of shape (n, h, w) their one channel."""

    def forward(self, x: Tensor) -> Tensor:
        """Return images of shape (n, c, h, w)."""
        return x.unsqueeze(1) if x.ndim == 3 else x


class Times(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        return x if self.factor == 1 else x * self.factor

    def extra_repr(self) -> str:
        """Return the factor, for the module's repr."""
        return f"{self.factor}"
