"""Ready-made networks (MLP, CNN, ResNet) and their layers.

The networks are factories, not modules: frozen dataclasses that build the module when called with
the shape of a row and the number of classes. Therefore they can be compared, saved and hashed. All
their layers work under `torch.func.vmap`, and their gradients are deterministic on a GPU.

Under vmap, W convolutions become one grouped convolution, which trains slowly on a GPU. W matrix
products become one batched product, so convolutions are written as matrix products. Tensors have
torch's shapes, (n, channels, height, width); the result of a product has the channels last in
memory.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from letheon.exceptions import InvalidParameterError
from letheon.validation import (
    POSITIVE,
    Either,
    Interval,
    OneOf,
    Rules,
    TupleOf,
    Whole,
    validate_parameters,
)

Pair = tuple[int, int]
Shape = tuple[int, ...]


def _extract_windows(x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
    """Return the windows of images (n, h, w, c), shape (n, h', w', kernel height x width x c)."""
    windows = x.unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1])
    return windows.permute(0, 1, 2, 4, 5, 3).flatten(3)


def _pad_zeros(x: Tensor, top: int, bottom: int, left: int, right: int) -> Tensor:
    """Return images (n, h, w, c) padded with zeros by this many pixels on each side."""
    if top == bottom == left == right == 0:
        return x
    return functional.pad(x, (0, 0, left, right, top, bottom))


def _input_gradient(
    gradient: Tensor, weight: Tensor, size: Sequence[int], stride: Pair, padding: Pair
) -> Tensor:
    """Return the gradient with respect to the input, as a convolution with the flipped kernel.

    The alternative, a sum over overlapping windows, would need atomic additions or one pass for
    each position of the kernel.
    """
    kernel = (weight.shape[2], weight.shape[3])
    spread, edges = gradient, list[int]()
    if stride != (1, 1):  # zeros after every position
        gaps = (0, 0, 0, stride[1] - 1, 0, 0, 0, stride[0] - 1)
        spread = functional.pad(gradient[:, :, None, :, None, :], gaps).flatten(3, 4).flatten(1, 2)
    for axis in (0, 1):
        before = kernel[axis] - 1 - padding[axis]
        edges += before, size[axis] + kernel[axis] - 1 - before - spread.shape[axis + 1]
    turned = weight.flip(2, 3).permute(2, 3, 0, 1).flatten(0, 2)
    return _extract_windows(_pad_zeros(spread, *edges), kernel, (1, 1)) @ turned


class _Convolve(torch.autograd.Function):
    """Convolution: ``y[i, j] = sum over a, b of weight[:, :, a, b] x[s i + a, s j + b]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
        padded = _pad_zeros(x, padding[0], padding[0], padding[1], padding[1])
        kernel = (weight.shape[2], weight.shape[3])
        return _extract_windows(padded, kernel, stride) @ weight.permute(2, 3, 1, 0).flatten(0, 2)

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
            padded = _pad_zeros(x, padding[0], padding[0], padding[1], padding[1])
            into, height, width = weight.shape[1:]
            # Recomputed: stored windows would take kernel height x width times the memory of x.
            windows = _extract_windows(padded, (height, width), stride).flatten(0, 2)
            product = gradient.flatten(0, 2).t() @ windows
            of_weight = product.unflatten(1, (height, width, into)).permute(0, 3, 1, 2)
        return of_x, of_weight, None, None


class MatmulConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` with the same parameters, computed as one matrix product.

    All windows of the input are copied into a matrix (n h' w', k k c) and multiplied by the
    kernels (k k c, o). Under `torch.func.vmap` this is one batched product. The gradient of the
    input is the same kind of product; it is skipped if the input needs no gradient. Groups,
    dilation and padding with values other than zero are not supported.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of a batch."""
        kind = x.device.type
        # Autocast does not cover the backward pass, so both factors are cast here.
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        y: Tensor = _Convolve.apply(  # type: ignore[no-untyped-call]
            x.to(dtype).permute(0, 2, 3, 1), self.weight.to(dtype), self.stride, self.padding
        )
        if self.bias is not None:
            y = y + self.bias.to(dtype)
        return y.permute(0, 3, 1, 2)


class AutoConv2d(MatmulConv2d):
    """Convolution by the faster method: a matrix product on a GPU, torch's kernel on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of a batch."""
        return super().forward(x) if x.is_cuda else nn.Conv2d.forward(self, x)


class _HalvingMax(torch.autograd.Function):
    """Largest value of every 2 x 2 window, with a deterministic gradient, unlike torch's own."""

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
        whole = _pad_zeros(whole, 0, height - 2 * rows, 0, width - 2 * columns)
        return whole.permute(0, 3, 1, 2)


class HalvingMax(nn.Module):
    """Largest value of every 2 x 2 window; an odd last row or column is dropped.

    Equal to ``torch.nn.MaxPool2d(2)``, including gradients, and deterministic on a GPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the images with half the height and width."""
        if not x.is_cuda:
            return functional.max_pool2d(x, 2)
        largest: Tensor = _HalvingMax.apply(x)[0]  # type: ignore[no-untyped-call]
        return largest


class HalvingMean(nn.Module):
    """Mean of every 2 x 2 window; an odd last row or column is dropped.

    Equal to ``torch.nn.AvgPool2d(2)``.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the images with half the height and width."""
        rows, columns = x.shape[-2] // 2, x.shape[-1] // 2
        whole = x[..., : 2 * rows, : 2 * columns]
        return whole.reshape(*x.shape[:-2], rows, 2, columns, 2).mean((-3, -1))


class GroupNorm(nn.GroupNorm):
    """`torch.nn.GroupNorm`, written out because vmap cannot batch torch's with channels last."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the batch with each group of channels of each row normalised."""
        groups = x.unflatten(1, (self.num_groups, -1))
        axes = tuple(range(2, groups.ndim))
        variance, mean = torch.var_mean(groups, axes, correction=0, keepdim=True)
        normed: Tensor = ((groups - mean) * torch.rsqrt(variance + self.eps)).flatten(1, 2)
        by_channel = (-1, *[1] * (x.ndim - 2))
        return normed * self.weight.view(by_channel) + self.bias.view(by_channel)


class Affine(nn.Module):
    """Layer that computes ``(x * scale - mean) / std`` with constants, possibly by channel."""

    def __init__(self, scale: float, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        divisor, means = torch.tensor(std).view(-1, 1, 1), torch.tensor(mean).view(-1, 1, 1)
        self.register_buffer("factor", scale / divisor, persistent=False)
        self.register_buffer("shift", -means / divisor, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled images."""
        return x * self.get_buffer("factor") + self.get_buffer("shift")


class AddChannel(nn.Module):
    """Layer that adds a channel axis to images of shape (n, h, w)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the images with shape (n, 1, h, w)."""
        return x.unsqueeze(1) if x.ndim == 3 else x


class ScaleBy(nn.Module):
    """Layer that multiplies its input by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Return the input times the factor."""
        return x if self.factor == 1 else x * self.factor

    def extra_repr(self) -> str:
        """Return the factor, for the module's repr."""
        return f"{self.factor}"


_CONVOLUTIONS: dict[str, type[nn.Conv2d]] = {
    "auto": AutoConv2d,
    "matmul": MatmulConv2d,
    "cudnn": nn.Conv2d,
}
_SHARE = Interval(0, 1, closed="left")
_NOT_ZERO = Either(POSITIVE, Interval(high=0, closed="neither"))
_MOST_GROUPS = 32
_MOST_COLOURS = 4
# Keeps the first logits small: Page, "How to train your ResNet" (2018).
_RESNET_9_LOGITS = 0.125


@dataclass(frozen=True, kw_only=True)
class _Factory:
    """Base class of the settings that build a module."""

    def __post_init__(self) -> None:
        """Raise `InvalidParameterError` if a setting is invalid."""
        validate_parameters(self)


@dataclass(frozen=True, kw_only=True)
class MLP(_Factory):
    """Fully connected network: linear layers with ReLU between them.

    Parameters
    ----------
    widths : tuple of int, default=(64,)
        Number of units of each hidden layer; ``()`` gives a linear model.
    dropout : float, default=0.0
        Share of the hidden units that are dropped in each training step.
    batch_norm : bool, default=False
        Whether each hidden layer is normalised over the batch.
    scale : float, default=1.0
        Factor by which the rows are multiplied; use ``1 / 255`` for images of bytes.

    Examples
    --------
    >>> MLP(widths=(8,))((4,), 3)
    Sequential(
      (scale): ScaleBy(1.0)
      (flatten): Flatten(start_dim=1, end_dim=-1)
      (hidden1): Linear(in_features=4, out_features=8, bias=True)
      (relu1): ReLU()
      (output): Linear(in_features=8, out_features=3, bias=True)
    )
    """

    _parameter_rules: ClassVar[Rules] = {
        "widths": TupleOf(Whole(1)),
        "dropout": _SHARE,
        "scale": _NOT_ZERO,
    }

    widths: tuple[int, ...] = (64,)
    dropout: float = 0.0
    batch_norm: bool = False
    scale: float = 1.0

    def __call__(self, shape: Shape, n_classes: int) -> nn.Module:
        """Build the network for rows of this shape and this number of classes."""
        parts: dict[str, nn.Module] = {"scale": ScaleBy(self.scale), "flatten": nn.Flatten()}
        last = prod(shape)
        for number, width in enumerate(self.widths, 1):
            parts[f"hidden{number}"] = nn.Linear(last, width)
            if self.batch_norm:
                parts[f"norm{number}"] = nn.BatchNorm1d(width)
            parts[f"relu{number}"] = nn.ReLU()
            if self.dropout:
                parts[f"dropout{number}"] = nn.Dropout(self.dropout)
            last = width
        parts["output"] = nn.Linear(last, n_classes)
        return _to_sequential(parts)


@dataclass(frozen=True, kw_only=True)
class CNN(_Factory):
    """Small convolutional network: for each entry of `channels` a convolution, ReLU and pooling.

    Parameters
    ----------
    channels : tuple of int, default=(16, 32)
        Number of output channels of each convolution.
    hidden : int, default=64
        Number of units of the linear layer before the last; 0 omits this layer.
    kernel : int, default=3
        Height and width of the kernels, odd; the borders are padded with zeros.
    conv : {"auto", "matmul", "cudnn"}, default="auto"
        How convolutions are computed: as matrix products ("matmul"), by torch's kernels ("cudnn"),
        or ("auto") the first on a GPU and the second on a CPU. Results differ only by rounding.
    pool : {"max", "mean", "stride"}, default="max"
        How the height and width are halved: "max" and "mean" take the largest or the mean value of
        2 x 2 windows; "stride" uses convolutions with stride 2, which cost a quarter as much.
    dropout : float, default=0.0
        Share of the units before the last layer that are dropped in each training step.
    scale : float, default=1 / 255
        Factor by which the images are multiplied. The default is for bytes; use 1.0 for images with
        values in 0..1.

    Examples
    --------
    >>> net = CNN(channels=(8, 16))((28, 28), 10)
    >>> sum(part.numel() for part in net.parameters())
    52138
    """

    _parameter_rules: ClassVar[Rules] = {
        "channels": TupleOf(Whole(1)),
        "hidden": Whole(0),
        "kernel": Whole(1),
        "conv": OneOf(tuple(_CONVOLUTIONS)),
        "pool": OneOf(("max", "mean", "stride")),
        "dropout": _SHARE,
        "scale": _NOT_ZERO,
    }

    channels: tuple[int, ...] = (16, 32)
    hidden: int = 64
    kernel: int = 3
    conv: str = "auto"
    pool: str = "max"
    dropout: float = 0.0
    scale: float = 1 / 255

    def __post_init__(self) -> None:
        """Raise `InvalidParameterError` if a setting is invalid."""
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise InvalidParameterError(f"kernel={self.kernel} is even; expected an odd number")

    def __call__(self, shape: Shape, n_classes: int) -> nn.Module:
        """Build the network for rows of this shape and this number of classes."""
        last, height, width = _image_shape(shape)
        parts: dict[str, nn.Module] = {"scale": ScaleBy(self.scale), "images": AddChannel()}
        for number, channels in enumerate(self.channels, 1):
            parts.update(self._conv_stage(number, last, channels))
            last = channels
            # A stride keeps an odd last row or column.
            height, width = ((size + (self.pool == "stride")) // 2 for size in (height, width))
        if not height or not width:
            raise ValueError(
                f"rows of shape {shape} are too small to be halved {len(self.channels)} times; "
                f"use fewer entries in channels{_order_hint(shape)}"
            )
        parts["flatten"], last = nn.Flatten(), last * height * width
        if self.hidden:
            parts["hidden"], parts["relu"] = nn.Linear(last, self.hidden), nn.ReLU()
            last = self.hidden
        if self.dropout:
            parts["dropout"] = nn.Dropout(self.dropout)
        parts["output"] = nn.Linear(last, n_classes)
        return _to_sequential(parts)

    def _conv_stage(self, number: int, last: int, channels: int) -> dict[str, nn.Module]:
        stride = 2 if self.pool == "stride" else 1
        convolution = _CONVOLUTIONS[self.conv](
            last, channels, self.kernel, stride=stride, padding=self.kernel // 2
        )
        parts: dict[str, nn.Module] = {f"conv{number}": convolution}
        # ReLU is monotone, so it may follow the maximum, on a quarter of the values.
        if self.pool == "max":
            parts[f"pool{number}"] = HalvingMax()
        parts[f"relu{number}"] = nn.ReLU()
        if self.pool == "mean":
            parts[f"pool{number}"] = HalvingMean()
        return parts


@dataclass(frozen=True, kw_only=True)
class ResNet(_Factory):
    """Residual network for small images.

    Parameters
    ----------
    depth : {9, 18}, default=9
        9 is the network of Page (2018), designed for fast training on CIFAR-10; 18 is the network
        of He et al. (2016) with a first convolution of 3 x 3 and no first pooling, as is usual for
        CIFAR-10.
    width : int, default=64
        Number of channels of the first convolution; the last one has 8 times as many.
    norm : {"batch", "group"}, default="batch"
        Normalisation over the batch or over groups of channels. Groups need no running statistics,
        and in training the output for a row does not depend on the rest of its batch.
    conv : {"auto", "matmul", "cudnn"}, default="auto"
        How convolutions are computed, as in `CNN`.
    scale : float, default=1 / 255
        Factor by which the images are multiplied. The default is for bytes; use 1.0 for images with
        values in 0..1.
    mean, std : tuple of float, default=(0.5,) and (0.25,)
        `mean` is subtracted from the scaled images, then they are divided by `std`: one number
        each, or one per channel. Use constants: numbers computed from the rows are personal data.

    References
    ----------
    D. Page, "How to train your ResNet", 2018. K. He, X. Zhang, S. Ren, J. Sun, "Deep residual
    learning for image recognition", CVPR 2016.

    Examples
    --------
    >>> net = ResNet(width=64)((3, 32, 32), 10)
    >>> sum(part.numel() for part in net.parameters())
    6573120
    """

    _parameter_rules: ClassVar[Rules] = {
        "depth": OneOf((9, 18)),
        "width": Whole(1),
        "norm": OneOf(("batch", "group")),
        "conv": OneOf(tuple(_CONVOLUTIONS)),
        "scale": _NOT_ZERO,
        "mean": TupleOf(Interval(), is_empty_allowed=False),
        "std": TupleOf(POSITIVE, is_empty_allowed=False),
    }

    depth: int = 9
    width: int = 64
    norm: str = "batch"
    conv: str = "auto"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.25,)

    def __call__(self, shape: Shape, n_classes: int) -> nn.Module:
        """Build the network for rows of this shape and this number of classes."""
        channels, height, width = _image_shape(shape)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, channels):
                raise ValueError(
                    f"{name} has {len(values)} numbers; expected 1, or one for each of the "
                    f"{channels} channels"
                )
        if min(height, width) < 8:
            raise ValueError(
                f"rows of shape {shape} are too small; expected 8 x 8 pixels or more"
                f"{_order_hint(shape)}"
            )
        parts: dict[str, nn.Module] = {
            "images": AddChannel(),
            "affine": Affine(self.scale, self.mean, self.std),
            "first": self._conv_block(channels, self.width),
        }
        parts.update(self._resnet9_stages() if self.depth == 9 else self._resnet18_stages())
        parts["output"] = nn.Linear(8 * self.width, n_classes, bias=self.depth != 9)
        if self.depth == 9:
            parts["shrink"] = ScaleBy(_RESNET_9_LOGITS)
        return _to_sequential(parts)

    def _resnet9_stages(self) -> dict[str, nn.Module]:
        w = self.width
        return {
            "stage1": nn.Sequential(
                self._conv_block(w, 2 * w, pooled=True), self._residual_block(2 * w)
            ),
            "stage2": self._conv_block(2 * w, 4 * w, pooled=True),
            "stage3": nn.Sequential(
                self._conv_block(4 * w, 8 * w, pooled=True), self._residual_block(8 * w)
            ),
            "global_pool": _GlobalPool("max"),
        }

    def _resnet18_stages(self) -> dict[str, nn.Module]:
        parts: dict[str, nn.Module] = {}
        last = self.width
        for number in range(4):
            width = self.width << number
            stride = 2 if number else 1
            parts[f"stage{number + 1}"] = nn.Sequential(
                self._basic_block(last, width, stride), self._basic_block(width, width, 1)
            )
            last = width
        return parts | {"global_pool": _GlobalPool("mean")}

    def _conv_block(self, last: int, width: int, *, pooled: bool = False) -> nn.Sequential:
        """Return convolution, normalisation and ReLU; `pooled` adds pooling before the ReLU."""
        middle: list[nn.Module] = [HalvingMax()] if pooled else []
        return nn.Sequential(
            self._make_conv(last, width), self._make_norm(width), *middle, nn.ReLU()
        )

    def _residual_block(self, width: int) -> nn.Module:
        """Return two convolution blocks with a skip connection; each ReLU is before the sum."""
        return _Residual(
            nn.Sequential(self._conv_block(width, width), self._conv_block(width, width)),
            nn.Identity(),
            nn.Identity(),
        )

    def _basic_block(self, last: int, width: int, stride: int) -> nn.Module:
        """Return the basic block of He et al. (2016), with the last ReLU after the sum."""
        inside = nn.Sequential(
            self._make_conv(last, width, stride=stride),
            self._make_norm(width),
            nn.ReLU(),
            self._make_conv(width, width),
            self._make_norm(width),
        )
        around: nn.Module = nn.Identity()
        if stride != 1 or last != width:
            around = nn.Sequential(self._make_conv(last, width, 1, stride), self._make_norm(width))
        return _Residual(inside, around, nn.ReLU())

    def _make_conv(self, last: int, width: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
        return _CONVOLUTIONS[self.conv](
            last, width, kernel, stride=stride, padding=kernel // 2, bias=False
        )

    def _make_norm(self, width: int) -> nn.Module:
        if self.norm == "batch":
            return nn.BatchNorm2d(width)
        return GroupNorm(gcd(_MOST_GROUPS, width), width)


class _Residual(nn.Module):
    """Residual block: computes ``after(inside(x) + around(x))``."""

    def __init__(self, inside: nn.Module, around: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.inside, self.around, self.after = inside, around, after

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        y: Tensor = self.after(self.inside(x) + self.around(x))
        return y


class _GlobalPool(nn.Module):
    """Layer that takes the largest or mean value of each channel."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """Return one value per image and channel, shape (n, channels)."""
        return x.amax((-2, -1)) if self.kind == "max" else x.mean((-2, -1))


def _to_sequential(parts: dict[str, nn.Module]) -> nn.Module:
    return nn.Sequential(OrderedDict(parts))


def _image_shape(shape: Shape) -> tuple[int, int, int]:
    if len(shape) not in (2, 3):
        raise ValueError(
            f"rows have shape {shape}; expected images of shape (height, width) or (channels, "
            "height, width)"
        )
    return 1 if len(shape) == 2 else shape[0], shape[-2], shape[-1]


def _order_hint(shape: Shape) -> str:
    """Return a hint for an error if the last axis of an image looks like the channels, or ""."""
    if len(shape) != 3 or shape[2] > _MOST_COLOURS or min(shape[:2]) <= _MOST_COLOURS:
        return ""
    return (
        ". Expected (channels, height, width), but this looks like (height, width, channels): "
        "use X.transpose(0, 3, 1, 2)"
    )
