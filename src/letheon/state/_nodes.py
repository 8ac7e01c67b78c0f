"""The tree of plain nodes that every value becomes before it becomes bytes.

None, bool, int, float, complex, str and bytes are nodes themselves; everything else is one of the
named tuples below. A tree holds data only: names of classes and functions are strings in it, and
nothing is imported or called until a decoder has audited them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

Atom: TypeAlias = bool | int | float | complex | str | bytes | None
Buffer: TypeAlias = bytes | bytearray | memoryview

# Deep enough for a dozen estimators inside each other, shallow enough for Python's own stack.
MAX_DEPTH = 80


class Items(NamedTuple):
    """A list, tuple, set or frozenset; a set lies in the order of its items' canonical bytes."""

    kind: str
    items: tuple["Node", ...]


class Record(NamedTuple):
    """A dict with str keys, sorted."""

    items: tuple[tuple[str, "Node"], ...]


class Pairs(NamedTuple):
    """A dict with other keys, in the order of the keys' canonical bytes."""

    items: tuple[tuple["Node", "Node"], ...]


class Array(NamedTuple):
    """An array of one plain dtype: little-endian, C order.

    `fortran` says that it lay, and shall lie, in memory column by column: libraries of linear
    algebra round differently then. The digest does not see it.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Buffer
    fortran: bool = False


class Strings(NamedTuple):
    """An array of fixed-width str: UTF-8 one after the other, and the byte length of each."""

    width: int
    shape: tuple[int, ...]
    lengths: Array
    text: bytes


class Objects(NamedTuple):
    """An array of Python objects."""

    shape: tuple[int, ...]
    items: tuple["Node", ...]


class Fields(NamedTuple):
    """A structured array, field by field: padding never enters."""

    dtype: "Node"
    shape: tuple[int, ...]
    columns: tuple["Node", ...]


class Scalar(NamedTuple):
    """A NumPy scalar: an array node without axes, or a str or bytes."""

    value: "Node"


class Triple(NamedTuple):
    """A slice or a range."""

    kind: str
    start: "Node"
    stop: "Node"
    step: "Node"


class Dtype(NamedTuple):
    """A NumPy dtype as a value."""

    descr: "Node"


class Name(NamedTuple):
    """A class or function as a value, by qualified name."""

    name: str


class Instance(NamedTuple):
    """An object: qualified name of its class and its attributes."""

    name: str
    state: Record


class Coded(NamedTuple):
    """An object that a codec turned into a plain value."""

    name: str
    payload: "Node"


class Ref(NamedTuple):
    """The same array or object as the one with this number in the same estimator."""

    number: int


Node: TypeAlias = (
    Atom
    | Items
    | Record
    | Pairs
    | Array
    | Strings
    | Objects
    | Fields
    | Scalar
    | Triple
    | Dtype
    | Name
    | Instance
    | Coded
    | Ref
)


def children(node: Any) -> Iterator[Any]:
    """Yield the nodes directly below `node`."""
    kind = type(node)
    if kind is Items or kind is Objects:
        yield from node.items
    elif kind is Record:
        yield from (value for _, value in node.items)
    elif kind is Pairs:
        for pair in node.items:
            yield from pair
    elif kind is Fields:
        yield node.dtype
        yield from node.columns
    elif kind is Triple:
        yield from node[1:]
    elif kind in {Scalar, Dtype, Instance, Coded}:
        yield node[-1]


def names_in(tree: Node) -> Iterator[tuple[type, str]]:
    """Yield (kind of node, qualified name) of everything the tree names, without recursion."""
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        if type(node) in {Name, Instance, Coded}:
            yield type(node), node.name
        stack.extend(children(node))


def names_of(tree: Node) -> tuple[str, ...]:
    """Return the qualified names in a tree, sorted, each once."""
    return tuple(sorted({name for _, name in names_in(tree)}))
