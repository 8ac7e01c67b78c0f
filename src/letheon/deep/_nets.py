"""Nets to start from: MLP, CNN and ResNet.

They are settings, not modules: a frozen dataclass that builds the module when it is called with the
shape of a row and the number of classes. So they can be compared, saved with a model and digested.
All their layers work under `torch.func.vmap`, and none has a gradient that a GPU adds up in another
order the next time.
"""

from collections import OrderedDict
from dataclasses import dataclass
from math import gcd, prod
from typing import ClassVar

from torch import Tensor, nn

from letheon.deep._layers import (
    Affine,
    AutoConv2d,
    GroupNorm,
    HalvingMax,
    HalvingMean,
    Images,
    MatmulConv2d,
    Times,
)
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

Shape = tuple[int, ...]

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
class MLP:
    """Fully connected net: linear layers with ReLU between them.

    Parameters
    ----------
    widths : tuple of int, default=(64,)
        Units of each hidden layer; ``()`` is a linear model.
    dropout : float, default=0.0
        Share of the hidden units that are left out in each training step.
    batch_norm : bool, default=False
        Whether each hidden layer is normalised over the batch.
    scale : float, default=1.0
        The rows are multiplied by it; say ``1 / 255`` for images of bytes.

    Examples
    --------
    >>> MLP(widths=(8,))((4,), 3)
    Sequential(
      (scale): Times(1.0)
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

    def __post_init__(self) -> None:
        """Check the settings."""
        validate_parameters(self)

    def __call__(self, shape: Shape, n_classes: int) -> nn.Module:
        """Build the net."""
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        parts["scale"] = Times(self.scale)
        parts["flatten"] = nn.Flatten()
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
        return nn.Sequential(parts)


@dataclass(frozen=True, kw_only=True)
class CNN:
    """Small convolutional net: for each entry of `channels` a convolution, ReLU and a halving.

    Parameters
    ----------
    channels : tuple of int, default=(16, 32)
        Channels of each convolution.
    hidden : int, default=64
        Units of the linear layer before the last; 0 leaves it out.
    kernel : int, default=3
        Height and width of the kernels, odd; the borders are padded with zeros.
    conv : {"auto", "matmul", "cudnn"}, default="auto"
        How convolutions are computed: as matrix products, by torch's own kernels, or the first on a
        GPU and the second on a CPU. The parameters are the same; results differ by rounding.
    pool : {"max", "mean", "stride"}, default="max"
        How the image is halved: largest or mean value of 2 x 2 windows, or convolutions that take
        every second position only, which cost a quarter.
    dropout : float, default=0.0
        Share of the units before the last layer that are left out in each training step.
    scale : float, default=1 / 255
        The images are multiplied by it; the default is right for bytes. Say 1.0 for images whose
        values lie in 0..1 already.

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
        """Check the settings."""
        validate_parameters(self)
        if self.kernel % 2 == 0:
            raise InvalidParameterError(f"kernel={self.kernel}; expected an odd number")

    def __call__(self, shape: Shape, n_classes: int) -> nn.Module:
        """Build the net."""
        last, height, width = _image_shape(shape)
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        parts["scale"], parts["images"] = Times(self.scale), Images()
        for number, channels in enumerate(self.channels, 1):
            parts.update(self._stage(number, last, channels))
            last = channels
            height, width = self._halved(height), self._halved(width)
        if not height or not width:
            raise ValueError(
                f"rows of shape {shape} are too small to be halved {len(self.channels)} times; "
                f"give fewer channels{_order_hint(shape)}"
            )
        parts["flatten"] = nn.Flatten()
        parts.update(self._head(last * height * width, n_classes))
        return nn.Sequential(parts)

    def _stage(self, number: int, last: int, channels: int) -> dict[str, nn.Module]:
        stride = 2 if self.pool == "stride" else 1
        convolution = _CONVOLUTIONS[self.conv](
            last, channels, self.kernel, stride=stride, padding=self.kernel // 2
        )
        parts: dict[str, nn.Module] = {f"conv{number}": convolution}
        # ReLU keeps the order of values, so it may follow the maximum, on a quarter of them.
        if self.pool == "max":
            parts[f"pool{number}"] = HalvingMax()
        parts[f"relu{number}"] = nn.ReLU()
        if self.pool == "mean":
            parts[f"pool{number}"] = HalvingMean()
        return parts

    def _halved(self, size: int) -> int:
        return (size + 1) // 2 if self.pool == "stride" else size // 2

    def _head(self, last: int, n_classes: int) -> dict[str, nn.Module]:
        parts: dict[str, nn.Module] = {}
        if self.hidden:
            parts["hidden"], parts["relu"] = nn.Linear(last, self.hidden), nn.ReLU()
            last = self.hidden
        if self.dropout:
            parts["dropout"] = nn.Dropout(self.dropout)
        parts["output"] = nn.Linear(last, n_classes)
        return parts


@dataclass(frozen=True, kw_only=True)
class ResNet:
    """Residual net for small images.

    Parameters
    ----------
    depth : {9, 18}, default=9
        9 is the net of Page (2018), made for quick training on CIFAR-10; 18 is the net of He et al.
        (2016) with a first convolution of 3 x 3 and no first pooling, as is usual for CIFAR-10.
    width : int, default=64
        Channels of the first convolution; the last has 8 times as many.
    norm : {"batch", "group"}, default="batch"
        Normalisation. Groups need no running statistics, and a row's answer does not depend on the
        rest of its batch.
    conv : {"auto", "matmul", "cudnn"}, default="auto"
        How convolutions are computed, as in `CNN`.
    scale : float, default=1 / 255
        The images are multiplied by it; the default is right for bytes. Say 1.0 for images whose
        values lie in 0..1 already.
    mean, std : tuple of float, default=(0.5,) and (0.25,)
        Subtracted from the scaled images, and divided by: one number, or one for each channel.
        Constants: numbers computed from the training rows would have to be forgotten too.

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

    def __post_init__(self) -> None:
        """Check the settings."""
        validate_parameters(self)

    def __call__(self, shape: Shape, n_classes: int) -> nn.Module:
        """Build the net."""
        channels, height, width = _image_shape(shape)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, channels):
                raise ValueError(
                    f"{name} has {len(values)} numbers; the rows have {channels} channels"
                )
        if min(height, width) < 8:
            raise ValueError(
                f"rows of shape {shape} are too small; expected 8 x 8 pixels or more"
                f"{_order_hint(shape)}"
            )
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        parts["images"] = Images()
        parts["affine"] = Affine(self.scale, self.mean, self.std)
        parts["first"] = self._normed(channels, self.width)
        parts.update(self._nine() if self.depth == 9 else self._eighteen())
        parts["output"] = nn.Linear(8 * self.width, n_classes, bias=self.depth != 9)
        if self.depth == 9:
            parts["shrink"] = Times(_RESNET_9_LOGITS)
        return nn.Sequential(parts)

    def _nine(self) -> dict[str, nn.Module]:
        w = self.width
        return {
            "stage1": nn.Sequential(self._normed(w, 2 * w, pooled=True), self._around(2 * w)),
            "stage2": self._normed(2 * w, 4 * w, pooled=True),
            "stage3": nn.Sequential(self._normed(4 * w, 8 * w, pooled=True), self._around(8 * w)),
            "everywhere": _Everywhere("max"),
        }

    def _eighteen(self) -> dict[str, nn.Module]:
        parts: dict[str, nn.Module] = {}
        last = self.width
        for number in range(4):
            width = self.width << number
            stride = 2 if number else 1
            parts[f"stage{number + 1}"] = nn.Sequential(
                self._basic(last, width, stride), self._basic(width, width, 1)
            )
            last = width
        return parts | {"everywhere": _Everywhere("mean")}

    def _normed(self, last: int, width: int, *, pooled: bool = False) -> nn.Sequential:
        """Return convolution, normalisation, ReLU and, if asked for, a halving before ReLU."""
        middle: list[nn.Module] = [HalvingMax()] if pooled else []
        return nn.Sequential(self._conv(last, width), self._norm(width), *middle, nn.ReLU())

    def _around(self, width: int) -> nn.Module:
        """Return two normed convolutions with a way around them, ReLU before the sum."""
        return _Residual(
            nn.Sequential(self._normed(width, width), self._normed(width, width)),
            nn.Identity(),
            nn.Identity(),
        )

    def _basic(self, last: int, width: int, stride: int) -> nn.Module:
        """Return the basic block of He et al., ReLU after the sum."""
        inside = nn.Sequential(
            self._conv(last, width, stride=stride),
            self._norm(width),
            nn.ReLU(),
            self._conv(width, width),
            self._norm(width),
        )
        same = stride == 1 and last == width
        around = (
            nn.Identity()
            if same
            else nn.Sequential(self._conv(last, width, 1, stride), self._norm(width))
        )
        return _Residual(inside, around, nn.ReLU())

    def _conv(self, last: int, width: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
        return _CONVOLUTIONS[self.conv](
            last, width, kernel, stride=stride, padding=kernel // 2, bias=False
        )

    def _norm(self, width: int) -> nn.Module:
        if self.norm == "batch":
            return nn.BatchNorm2d(width)
        return GroupNorm(gcd(_MOST_GROUPS, width), width)


class _Residual(nn.Module):
    """``after(inside(x) + around(x))``."""

    def __init__(self, inside: nn.Module, around: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.inside, self.around, self.after = inside, around, after

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y: Tensor = self.after(self.inside(x) + self.around(x))
        return y


class _Everywhere(nn.Module):
    """Largest or mean value of each channel."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """Return shape (n, channels)."""
        return x.amax((-2, -1)) if self.kind == "max" else x.mean((-2, -1))


def _image_shape(shape: Shape) -> tuple[int, int, int]:
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    raise ValueError(
        f"rows have shape {shape}; expected images of shape (height, width) or (channels, height, "
        "width)"
    )


def _order_hint(shape: Shape) -> str:
    """Say how to turn images around whose last axis looks like colours."""
    if len(shape) != 3 or shape[2] > _MOST_COLOURS or min(shape[:2]) <= _MOST_COLOURS:
        return ""
    return (
        ". Rows are (channels, height, width), and yours look like (height, width, channels): "
        "turn them with X.transpose(0, 3, 1, 2)"
    )
