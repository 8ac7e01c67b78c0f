"""Augmentation: random changes of the rows of a batch.

The changes of a row depend only on the seed of the model, the id of the row, its number among the
rows of this id, the phase of the training and the epoch. So a removed row changes the augmentation
of no other row, and neither does the number of stacked networks.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import pi, prod
from typing import Any

import torch
from torch import Tensor

from letheon.deep._batches import mix64
from letheon.exceptions import TrainingError
from letheon.validation import ParameterRule

Change = Callable[[Tensor, "RowGenerator"], Tensor]

_NAME = re.compile(r"flip|mixup|cutout([1-9]\d{0,3})?|crop[1-9]\d{0,3}")
_NAMES = "'flip', 'crop4' (or another number of pixels), 'cutout', 'cutout8', 'mixup'"


class RowGenerator:
    """Random numbers for the rows of a batch: row i of every result belongs to row i.

    Each call draws new numbers. They depend only on the keys of the rows and on the earlier calls.

    Parameters
    ----------
    keys : int64 tensor of shape (n,)
        One key per row.

    Examples
    --------
    >>> generator = RowGenerator(torch.tensor([3, 8]))
    >>> generator.uniform(2).shape
    torch.Size([2, 2])
    """

    def __init__(self, keys: Tensor) -> None:
        self._keys, self._n_calls = keys, 0

    def uniform(self, *shape: int) -> Tensor:
        """Return float32 numbers in [0, 1), of the shape (n, *shape)."""
        # The upper 24 bits, so that every number is exact.
        return ((self._draw_bits(shape) >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24

    def integers(self, high: int, *shape: int) -> Tensor:
        """Return int64 numbers from 0 to `high` - 1, of the shape (n, *shape)."""
        return (((self._draw_bits(shape) >> 32) & 0xFFFFFFFF) * high) >> 32

    def normal(self, *shape: int) -> Tensor:
        """Return normally distributed float32 numbers, of the shape (n, *shape)."""
        radius = torch.sqrt(-2 * torch.log1p(-self.uniform(*shape)))
        return radius * torch.cos(2 * pi * self.uniform(*shape))

    def _draw_bits(self, shape: tuple[int, ...]) -> Tensor:
        numbers = torch.arange(prod(shape), device=self._keys.device).view(1, *shape)
        keys = mix64(self._keys, torch.full_like(self._keys, self._n_calls))
        self._n_calls += 1
        return mix64(keys.view(-1, *[1] * len(shape)), numbers)


def flip_images(x: Tensor, generator: RowGenerator) -> Tensor:
    """Return the images (n, ..., height, width); each is mirrored with a probability of 1/2."""
    is_flipped = generator.integers(2).view(-1, *[1] * (x.ndim - 1)) == 1
    return torch.where(is_flipped, x.flip(-1), x)


def crop_images(x: Tensor, generator: RowGenerator, *, margin: int) -> Tensor:
    """Return windows of the images in their old size, after zeros are added on all sides.

    A window moves by up to `margin` pixels in each direction.
    """
    moves = generator.integers(2 * margin + 1, 2) - margin
    return _move_axis(_move_axis(x, -2, moves[:, 0]), -1, moves[:, 1])


def _move_axis(x: Tensor, axis: int, moves: Tensor) -> Tensor:
    """Return rows moved along an axis by their own number of places, with zeros behind them."""
    size = x.shape[axis]
    sources = torch.arange(size, device=x.device) + moves[:, None]
    shape = [len(x), *[1] * (x.ndim - 1)]
    shape[axis] = size
    is_inside = ((sources >= 0) & (sources < size)).view(shape)
    where = sources.clamp(0, size - 1).view(shape).expand(x.shape)
    return torch.where(is_inside, x.gather(x.ndim + axis, where), 0)


def cut_out(x: Tensor, generator: RowGenerator, *, side: int | None) -> Tensor:
    """Return the images with a square of zeros around a random pixel.

    The side of the square is by default half of the smaller side of the image.
    """
    side = max(min(x.shape[-2:]) // 2, 1) if side is None else side
    is_inside = None
    for axis in (-2, -1):
        size = x.shape[axis]
        begins = generator.integers(size)[:, None] - side // 2
        places = torch.arange(size, device=x.device)
        shape = [len(x), *[1] * (x.ndim - 1)]
        shape[axis] = size
        part = ((places >= begins) & (places < begins + side)).view(shape)
        is_inside = part if is_inside is None else is_inside & part
    assert is_inside is not None
    return torch.where(is_inside, 0, x)


@dataclass(frozen=True)
class Augmentation:
    """Changes of a batch, one after the other, and whether its rows are mixed at the end.

    Named changes treat all stacked networks at once. A callable gets the batch of one network at a
    time, because it may combine the rows that it gets.
    """

    named: tuple[tuple[int, Change], ...] = ()
    own: tuple[tuple[int, Change], ...] = ()
    has_mixup: bool = False

    @property
    def is_used(self) -> bool:
        """Whether there is any change."""
        return bool(self.named or self.own or self.has_mixup)

    def change_rows(self, x: Tensor, keys: Tensor, width: int) -> Tensor:
        """Return the changed rows of `width` networks, whose batches are one after the other."""
        for number, change in sorted(self.named + self.own, key=lambda pair: pair[0]):
            stream = mix64(keys, torch.full_like(keys, number))
            n_parts = 1 if (number, change) in self.named else width
            pairs = zip(x.chunk(n_parts), stream.chunk(n_parts), strict=True)
            x = torch.cat([_apply_change(change, *pair) for pair in pairs])
        return x

    def mix_rows(self, x: Tensor, keys: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return ``s x + (1 - s) x'`` and s for every row; x' is the row before it in its batch.

        s is uniform in [0, 1). The order of a batch is random, so x' is a random row of it.
        """
        share = RowGenerator(mix64(keys, torch.full_like(keys, -1))).uniform()
        shape = share.view(-1, *[1] * (x.ndim - 1))
        return shape * x + (1 - shape) * roll_rows(x, width), share


def roll_rows(x: Tensor, width: int) -> Tensor:
    """Return the previous row of every row in its batch; there are `width` batches in x."""
    return x.view(width, -1, *x.shape[1:]).roll(1, dims=1).flatten(0, 1)


def _apply_change(change: Change, x: Tensor, keys: Tensor) -> Tensor:
    changed = change(x, RowGenerator(keys))
    if not isinstance(changed, Tensor) or changed.shape != x.shape or changed.dtype != x.dtype:
        got = f"{changed.dtype} {tuple(changed.shape)}" if isinstance(changed, Tensor) else changed
        raise TrainingError(
            f"augment returned {got} for a batch of {x.dtype} {tuple(x.shape)}; expected a tensor "
            "of the same shape and dtype"
        )
    return changed


class AugmentRule(ParameterRule):
    """The rule for the parameter `augment`: names, callables, or a list of them."""

    text = f"one of {_NAMES}, a callable, a list of these, or None"

    def accepts(self, value: Any) -> bool:
        """Return whether a value is None, a known name, a callable or a list of these."""
        parts = _list_parts(value)
        return all(callable(part) or _is_name(part) for part in parts)


def _is_name(part: Any) -> bool:
    return isinstance(part, str) and _NAME.fullmatch(part) is not None


def _list_parts(augment: Any) -> list[Any]:
    if augment is None:
        return []
    return list(augment) if isinstance(augment, list | tuple) else [augment]


def make_augmentation(augment: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Augmentation:
    """Return the augmentation for a value of the parameter `augment`.

    Raises
    ------
    ValueError
        A named change does not suit rows of this shape and dtype.
    """
    named, own, has_mixup = list[tuple[int, Change]](), list[tuple[int, Change]](), False
    for number, part in enumerate(_list_parts(augment)):
        if callable(part):
            own.append((number, part))
            continue
        if part == "mixup":
            _require_numbers(f"augment={part!r}", dtype)
            has_mixup = True
        else:
            require_images(f"augment={part!r}", shape, dtype)
            _require_fit(part, shape)
            named.append((number, _find_change(part)))
    return Augmentation(tuple(named), tuple(own), has_mixup)


def _require_fit(name: str, shape: tuple[int, ...]) -> None:
    """Raise `ValueError` if a change could remove whole images."""
    digits, side = name.lstrip("abcdefghijklmnopqrstuvwxyz"), min(shape[-2:])
    if digits and int(digits) >= side:
        raise ValueError(
            f"augment={name!r} can remove a whole image of {shape[-2]} x {shape[-1]} pixels; use a "
            f"number below {side}"
        )


def _find_change(name: str) -> Change:
    word, digits = re.fullmatch(r"([a-z]+)(\d*)", name).groups()  # type: ignore[union-attr]
    if word == "flip":
        return flip_images
    if word == "crop":
        return partial(crop_images, margin=int(digits))
    return partial(cut_out, side=int(digits) if digits else None)


def require_images(option: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise `ValueError` unless rows of this shape and dtype are images."""
    _require_numbers(option, dtype)
    if len(shape) < 2:
        raise ValueError(
            f"{option} needs images of shape (height, width) or (channels, height, width), but the "
            f"rows have the shape {shape}"
        )


def _require_numbers(option: str, dtype: torch.dtype) -> None:
    if not dtype.is_floating_point:
        raise ValueError(f"{option} needs rows of float32, but row_dtype is 'int64'")
