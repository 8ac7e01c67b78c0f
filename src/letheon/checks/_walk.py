"""Iterate over all values that a model reaches through attributes and containers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import setitem
from typing import Any

import numpy as np

from letheon.linear import SecretArray

Put = Callable[[Any], None]
Attributes = Callable[[Any], dict[str, Any]]

_ATOMS = (bool, int, float, complex, str, bytes, np.generic)
_LONG = 4
# Suffix of the path of a secret value.
SECRET_SUFFIX = "[secret]"


@dataclass(frozen=True)
class Leaf:
    """A number, text or array in a model.

    `put` replaces the value; it is None if the value cannot be replaced.
    """

    path: str
    value: Any
    put: Put | None


def iter_leaves(
    root: Any, *, attributes: Attributes | None = None, brief: bool = False
) -> Iterator[Leaf]:
    """Yield every number, text and array that `root` reaches.

    With `brief`, only the first and last items of long sequences of plain values are visited.

    `attributes` is a function that returns the attributes of an object to visit; by default all
    attributes are visited.
    """
    walk = _Walk(attributes or (lambda value: dict(vars(value))), brief)
    # The root has no owner, so it cannot be replaced.
    return walk.visit(Leaf(type(root).__name__, root, lambda _: None))


class _Walk:
    def __init__(self, attributes: Attributes, brief: bool) -> None:
        self._attributes = attributes
        self._brief = brief
        self._open: set[int] = set()

    def visit(self, leaf: Leaf) -> Iterator[Leaf]:
        value = leaf.value
        if isinstance(value, _ATOMS) or (isinstance(value, np.ndarray) and value.dtype != object):
            yield leaf
        elif id(value) not in self._open:
            self._open.add(id(value))
            for part in self._list_children(leaf):
                # A copy made for pickle cannot be changed, and neither can its content.
                yield from self.visit(part if leaf.put else replace(part, put=None))
            self._open.discard(id(value))

    def _list_children(self, leaf: Leaf) -> Iterable[Leaf]:
        value, path = leaf.value, leaf.path
        if isinstance(value, dict):
            return [Leaf(f"{path}[{k!r}]", v, partial(setitem, value, k)) for k, v in value.items()]
        if isinstance(value, np.ndarray):
            return self._list_items(path, value.ravel().tolist(), value.flat.__setitem__)
        if isinstance(value, list):
            return self._list_items(path, value, partial(setitem, value))
        if isinstance(value, tuple):
            return self._list_items(path, value, partial(_put_in_tuple, leaf))
        if isinstance(value, set | frozenset):
            return [Leaf(f"{path}{{}}", part, None) for part in sorted(value, key=repr)]
        return self._list_attributes(value, path)

    def _list_items(
        self, path: str, items: Sequence[Any], put: Callable[[int, Any], None]
    ) -> Iterable[Leaf]:
        chosen: Iterable[int] = range(len(items))
        if self._brief and len(items) > _LONG and all(isinstance(item, _ATOMS) for item in items):
            chosen = (0, len(items) - 1)
        return [Leaf(f"{path}[{k}]", items[k], partial(put, k)) for k in chosen]

    def _list_attributes(self, value: Any, path: str) -> Iterable[Leaf]:
        if isinstance(value, type) or (callable(value) and not hasattr(value, "get_params")):
            return []
        if isinstance(value, SecretArray):
            return [Leaf(f"{path}{SECRET_SUFFIX}", value.open(), partial(setattr, value, "_value"))]
        if hasattr(value, "__dict__"):
            own = vars(value)
            return [
                Leaf(f"{path}.{name}", part, partial(setitem, own, name))
                for name, part in self._attributes(value).items()
            ]
        # The pickled state of an object without attributes, such as a compiled tree.
        try:
            reduced = value.__reduce_ex__(4)
        except TypeError:
            return []
        parts = reduced[1:3] if isinstance(reduced, tuple) else ()
        return [Leaf(f"{path}()", part, None) for part in parts]


def _put_in_tuple(leaf: Leaf, position: int, new: Any) -> None:
    """Replace one item of a tuple: build a new tuple and put it in place of the old one."""
    items = [*leaf.value]
    items[position] = new
    make = getattr(type(leaf.value), "_make", tuple)
    assert leaf.put is not None
    leaf.put(make(items))
