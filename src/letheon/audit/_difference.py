"""Where two trees of nodes differ: names of places, never values."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.state._canonical import to_bytes
from letheon.state._nodes import Array, Coded, Instance, Items, Objects, Pairs, Record
from letheon.state._nodes import Scalar as ScalarNode

__all__ = ["Difference", "differences", "floats_of", "join_places"]

_MOST = 64
_SHOWN = 3
_LARGEST_COUNT = 2**53
_LARGEST_SEED = 2**128


Numbers = Literal["float", "whole", "count", "seed", "other"]


class Difference(NamedTuple):
    """A place, and how far its numbers are apart, as a share of the largest of them and as such.

    Gap and distance are None where it is no matter of rounding. `numbers` says whether only values
    differ: "float" or "whole" where both are arrays of one dtype and shape, "count" and "seed"
    where both are one whole number, of ordinary size or of 128 bits; anything else is "other".
    """

    place: str
    gap: float | None = None
    numbers: Numbers = "other"
    distance: float | None = None


def differences(left: Any, right: Any, most: int | None = _MOST) -> list[Difference]:
    """Return where two trees differ, up to a number of places."""
    return list(islice(_walk(left, right, ""), most))


def join_places(places: Sequence[str]) -> str:
    """Return the first places for a sentence."""
    more = " and elsewhere" if len(places) > _SHOWN else ""
    return f"{', '.join(places[:_SHOWN])}{more}"


def _walk(left: Any, right: Any, place: str) -> Iterator[Difference]:
    if type(left) is not type(right):
        yield Difference(place or "the model")
    elif type(left) is Record:
        yield from _records(left, right, place)
    elif type(left) is Instance or type(left) is Coded:
        if left.name != right.name:
            yield Difference(place or "the model")
        else:
            yield from _walk(left[1], right[1], place)
    elif type(left) in {Items, Objects, Pairs}:
        yield from _sequences(left, right, place)
    elif to_bytes(left) != to_bytes(right):
        gap, distance = _gap(left, right)
        yield Difference(place or "the model", gap, _numbers(left, right), distance)


def _records(left: Record, right: Record, place: str) -> Iterator[Difference]:
    mine, theirs = dict(left.items), dict(right.items)
    for key in sorted(mine.keys() | theirs.keys()):
        where = f"{place}.{key}" if place else key
        if key not in mine or key not in theirs:
            yield Difference(where)
        else:
            yield from _walk(mine[key], theirs[key], where)


def _sequences(left: Any, right: Any, place: str) -> Iterator[Difference]:
    if left[0] != right[0] or len(left.items) != len(right.items):
        yield Difference(place or "the model")
        return
    pairs = zip(left.items, right.items, strict=True)
    for number, (one, other) in enumerate(pairs):
        if type(left) is Pairs:
            yield from _walk(one[1], other[1], f"{place}[{number}]")
        else:
            yield from _walk(one, other, f"{place}[{number}]")


def _gap(left: Any, right: Any) -> tuple[float | None, float | None]:
    """Return how far two leaves of numbers are apart, relatively and absolutely.

    Whole numbers have no relative distance: they do not round. None stands for anything else.
    """
    if _numbers(left, right) == "whole":
        whole = [np.frombuffer(node.data, node.dtype).astype(float) for node in (left, right)]
        return None, float(np.abs(whole[0] - whole[1]).max(initial=0.0))
    one, other = floats_of(left), floats_of(right)
    if one is None or other is None or one.shape != other.shape:
        return None, None
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return None, None
    size = max(float(np.abs(one).max(initial=0.0)), float(np.abs(other).max(initial=0.0)))
    distance = float(np.abs(one - other).max(initial=0.0))
    return (distance / size if size else 0.0), distance


def _numbers(left: Any, right: Any) -> Numbers:
    if type(left) is int:
        largest = max(abs(left), abs(right))
        if largest <= _LARGEST_COUNT:
            return "count"
        return "seed" if min(left, right) >= 0 and largest < _LARGEST_SEED else "other"
    if type(left) is float:
        return "float"
    if type(left) is ScalarNode and type(right.value) is type(left.value):
        found = _numbers(left.value, right.value)
        return "count" if found == "whole" else found
    if type(left) is not Array or (left.dtype, left.shape) != (right.dtype, right.shape):
        return "other"
    kind = np.dtype(left.dtype).kind
    return "float" if kind == "f" else "whole" if kind in "iu" else "other"


def floats_of(node: Any) -> NDArray[np.float64] | None:
    """Return the floats of a leaf, or None."""
    if type(node) is float:
        return np.array([node])
    if type(node) is ScalarNode:
        return floats_of(node.value)
    if type(node) is Array and np.dtype(node.dtype).kind == "f":
        return np.frombuffer(node.data, node.dtype).astype(np.float64).reshape(node.shape)
    return None
