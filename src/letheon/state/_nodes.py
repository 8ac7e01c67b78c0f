"""The tree of plain nodes that every value becomes before it becomes bytes.

None, bool, int, float, complex, str and bytes are nodes themselves; everything else is one of the
named tuples below. A tree contains only data: names of classes and functions are strings in it, and
nothing is imported or called until a decoder has audited them.

A few bytes can describe gigabytes: for example a wide array of strings, a sparse matrix with a
billion empty rows, or the same tensor used a thousand times. Therefore every size is computed in
Python integers and counted by one `MemoryBudget` before NumPy, pandas or compiled code allocate
memory.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import CorruptFileError, MemoryLimitError

Atom: TypeAlias = bool | int | float | complex | str | bytes | None
Buffer: TypeAlias = bytes | bytearray | memoryview

BASE = 64 << 20
"""Bytes of memory that every file may take, even the smallest."""
PER_BYTE = 4
"""Bytes of memory that each byte of the file may take in addition."""
NATIVE_PER_BYTE = 16
"""The same for the compiled forest."""
UNLIMITED = 1 << 62
"""A `max_memory` for bytes that this installation wrote itself."""

MAX_DIMENSIONS = 64
MAX_SIZE = 1 << 62
# More values than this with one hash make building a set or dict take quadratic time.
_MAX_EQUAL_HASHES = 64
_STEPS_PER_BYTE = 16

# The most bytes that CPython uses for an object in the tree and in the value together: a number;
# the rest of a text; an item of a list or tuple, of a set, of a dict with str keys, of another
# dict; and the container itself (`tests/state/test_limits.py` compares them with measured peaks).
ATOM = 40
TEXT = 96
ITEM = 44
SET_ITEM = 160
RECORD_ITEM = 160
PAIRS_ITEM = 210
CONTAINER = 280
ARRAY = 400
INSTANCE = 700

# Deep enough for a dozen nested estimators, shallow enough for the stack of Python.
MAX_DEPTH = 80


class Items(NamedTuple):
    """A list, tuple, set or frozenset; items of a set are sorted by their canonical bytes.

    Parameters
    ----------
    kind : {"list", "tuple", "set", "frozenset"}
        Kind of the container.
    items : tuple
        Its items.

    Examples
    --------
    >>> from letheon.state import to_tree
    >>> to_tree([1, "two"])
    Items(kind='list', items=(1, 'two'))
    """

    kind: str
    items: tuple["Node", ...]


class Record(NamedTuple):
    """A dict with str keys, sorted by key.

    Parameters
    ----------
    items : tuple of (str, node)
        Keys and values.

    Examples
    --------
    >>> from letheon.state import to_tree
    >>> to_tree({"b": 2, "a": 1})
    Record(items=(('a', 1), ('b', 2)))
    """

    items: tuple[tuple[str, "Node"], ...]


class Pairs(NamedTuple):
    """A dict whose keys are not all str, sorted by the canonical bytes of the keys.

    Parameters
    ----------
    items : tuple of (node, node)
        Keys and values.

    Examples
    --------
    >>> from letheon.state import to_tree
    >>> to_tree({2: "two", 1: "one"})
    Pairs(items=((1, 'one'), (2, 'two')))
    """

    items: tuple[tuple["Node", "Node"], ...]


class Array(NamedTuple):
    """An array of one plain dtype.

    Parameters
    ----------
    dtype : str
        Data type in NumPy's notation, little-endian.
    shape : tuple of int
        Shape of the array.
    data : bytes or buffer
        Its bytes in C order.
    fortran : bool, default=False
        Whether the array was stored column by column in memory, which changes how linear algebra
        libraries round. Digests ignore it.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.state import to_tree
    >>> tree = to_tree(np.array([1.0, 2.0]))
    >>> tree.dtype, tree.shape
    ('<f8', (2,))
    """

    dtype: str
    shape: tuple[int, ...]
    data: Buffer
    fortran: bool = False


class Strings(NamedTuple):
    """An array of fixed-width str: all texts in UTF-8, and the byte length of each text."""

    width: int
    shape: tuple[int, ...]
    lengths: Array
    text: bytes


class Objects(NamedTuple):
    """An array of Python objects.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.
    items : tuple
        Its items in C order.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.state import to_tree
    >>> to_tree(np.array([1, "two"], dtype=object))
    Objects(shape=(2,), items=(1, 'two'))
    """

    shape: tuple[int, ...]
    items: tuple["Node", ...]


class Fields(NamedTuple):
    """A structured array, stored as one array per field, without padding."""

    dtype: "Node"
    shape: tuple[int, ...]
    columns: tuple["Node", ...]


class Scalar(NamedTuple):
    """A NumPy scalar, as an array node with shape (), a str or bytes.

    Parameters
    ----------
    value : Array, str or bytes
        The value.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.state import to_tree
    >>> to_tree(np.str_("two"))
    Scalar(value='two')
    """

    value: "Node"


class Triple(NamedTuple):
    """A slice or a range: start, stop and step."""

    kind: str
    start: "Node"
    stop: "Node"
    step: "Node"


class Dtype(NamedTuple):
    """A NumPy dtype as a value."""

    descr: "Node"


class Name(NamedTuple):
    """A class or function that is itself a value, by its qualified name."""

    name: str


class Instance(NamedTuple):
    """An object, as the qualified name of its class and its attributes.

    Parameters
    ----------
    name : str
        Qualified name of the class.
    state : Record
        Attributes of the object.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon.state import to_tree
    >>> to_tree(GaussianNB()).name
    'sklearn.naive_bayes.GaussianNB'
    """

    name: str
    state: Record


class Coded(NamedTuple):
    """An object that a codec turned into a plain value.

    Parameters
    ----------
    name : str
        Name of the codec.
    payload : node
        The plain value.
    """

    name: str
    payload: "Node"


class Ref(NamedTuple):
    """A reference to the array or object with this number in the same estimator."""

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


class Layout(NamedTuple):
    """The layout of one kind of node: tag in bytes, key in a manifest, and parts in order.

    `cost` is the memory that a node takes in addition to its parts, in bytes. The parts begin at
    the field `first` of the node, because tag and key already state the kind of a container.
    """

    tag: bytes
    key: str
    parts: tuple[str, ...]
    make: Callable[..., Any]
    cost: int = 0
    first: int = 0

    def values(self, node: Any) -> Any:
        """Return the values of the parts of a node, without the kind that the tag states."""
        return node[self.first :] if self.first else node


_TRIPLE = ("node", "node", "node")
_PLAIN = ("dtype", "shape", "buffer")
LAYOUTS = (
    Layout(b"l", "list", ("items",), partial(Items, "list"), first=1),
    Layout(b"t", "tuple", ("items",), partial(Items, "tuple"), first=1),
    Layout(b"e", "set", ("keys",), partial(Items, "set"), first=1),
    Layout(b"z", "frozenset", ("keys",), partial(Items, "frozenset"), first=1),
    Layout(b"m", "dict", ("record",), Record, CONTAINER),
    Layout(b"p", "pairs", ("pairs",), Pairs, CONTAINER),
    Layout(b"a", "array", _PLAIN, Array),
    Layout(b"A", "array_f", _PLAIN, partial(Array, fortran=True)),
    Layout(b"u", "strings", ("number", "shape", "lengths", "own_bytes"), Strings, ARRAY),
    Layout(b"o", "objects", ("shape", "items"), Objects, ARRAY),
    Layout(b"f", "fields", ("node", "shape", "items"), Fields, ARRAY),
    Layout(b"x", "scalar", ("node",), Scalar, CONTAINER),
    Layout(b"j", "slice", _TRIPLE, partial(Triple, "slice"), CONTAINER, first=1),
    Layout(b"r", "range", _TRIPLE, partial(Triple, "range"), CONTAINER, first=1),
    Layout(b"y", "dtype", ("node",), Dtype, CONTAINER),
    Layout(b"q", "name", ("text",), Name, CONTAINER),
    Layout(b"O", "object", ("class_name", "state"), Instance),
    Layout(b"K", "coded", ("class_name", "node"), Coded),
    Layout(b"R", "ref", ("number",), Ref, CONTAINER),
)
LAYOUT_OF_TAG = {layout.tag[0]: layout for layout in LAYOUTS}
LAYOUT_OF_KEY = {layout.key: layout for layout in LAYOUTS}
_LAYOUT_OF_TYPE = {layout.make: layout for layout in LAYOUTS}


def layout_of(node: Any) -> Layout:
    """Return the layout of a node that is not a plain value such as a number or text."""
    kind = type(node)
    if kind is Items or kind is Triple:
        return LAYOUT_OF_KEY[node.kind]
    if kind is Array and node.fortran:
        return LAYOUT_OF_KEY["array_f"]
    return _LAYOUT_OF_TYPE[kind]


def children(node: Any) -> Iterable[Any]:
    """Return the nodes directly below `node`."""
    kind = type(node)
    if kind is Items or kind is Objects:
        return node.items  # type: ignore[no-any-return]
    if kind is Record:
        return [value for _, value in node.items]
    if kind is Pairs:
        return chain.from_iterable(node.items)
    if kind is Fields:
        return (node.dtype, *node.columns)
    if kind is Triple:
        return node[1:]  # type: ignore[no-any-return]
    return node[-1:] if kind in {Scalar, Dtype, Instance, Coded} else ()


def names_in(tree: Node) -> Iterator[tuple[type, str]]:
    """Yield the type of the node and the qualified name, for every name in a tree."""
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        if type(node) in {Name, Instance, Coded}:
            yield type(node), node.name
        stack.extend(children(node))


def names_of(tree: Node) -> tuple[str, ...]:
    """Return the sorted distinct qualified names in a tree.

    Parameters
    ----------
    tree : Node
        A tree, as `to_tree` returns it.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon.state import names_of, to_tree
    >>> names_of(to_tree([GaussianNB(), GaussianNB()]))
    ('sklearn.naive_bayes.GaussianNB',)
    """
    return tuple(sorted({name for _, name in names_in(tree)}))


class MemoryBudget:
    """A counter of the memory for reading one file; it raises an error at the limit.

    Parameters
    ----------
    size : int
        Size of the file in bytes.
    max_memory : int, optional
        The limit in bytes. By default 64 MiB plus 4 bytes per byte of the file, or plus 16 bytes
        per byte for compiled forests.

    Examples
    --------
    >>> from letheon.state import MemoryBudget
    >>> budget = MemoryBudget(size=1000, max_memory=5000)
    >>> budget.take(4000, "an array")
    >>> budget.take(4000, "an array")
    Traceback (most recent call last):
    ...
    letheon.exceptions.MemoryLimitError: ...
    """

    def __init__(self, size: int, max_memory: int | None = None) -> None:
        if max_memory is not None and (type(max_memory) is not int or max_memory < 1):
            raise ValueError(
                f"max_memory={max_memory!r} is not valid: expected a number of bytes, or None"
            )
        self.limit = BASE + PER_BYTE * size if max_memory is None else max_memory
        self.native_limit = BASE + NATIVE_PER_BYTE * size if max_memory is None else max_memory
        self.used = 0
        self.native_used = 0

    def take(self, n_bytes: int, part: str) -> None:
        """Count bytes that are about to be allocated.

        Raises
        ------
        MemoryLimitError
            If the total would exceed the limit; nothing was allocated.
        """
        self._require_within(self.used + n_bytes, self.limit, part)
        self.used += n_bytes

    def take_native(self, n_bytes: int, n_steps: int, part: str) -> None:
        """Count the memory and time of compiled code of letheon; a byte allows several steps.

        Raises MemoryLimitError, as `take` does.
        """
        self.native_used += max(n_bytes, n_steps // _STEPS_PER_BYTE)
        self._require_within(self.used + self.native_used, self.native_limit, part)

    def give_back(self, n_bytes: int) -> None:
        """Subtract bytes that were freed."""
        self.used -= n_bytes

    def _require_within(self, needed: int, limit: int, part: str) -> None:
        if needed > limit:
            raise MemoryLimitError(
                f"reading {part} would take at least {needed:,} bytes of memory, and the limit is "
                f"{limit:,} bytes; if you know where the data come from, pass "
                f"max_memory={needed + needed // 2} or more"
            )


def check_shape(shape: Iterable[Any], itemsize: int) -> int:
    """Return the size of an array in bytes; Python integers cannot overflow.

    Raises
    ------
    CorruptFileError
        If the shape is not valid, or too large for NumPy.
    """
    dimensions = tuple(shape)
    if len(dimensions) > MAX_DIMENSIONS:
        raise CorruptFileError(
            f"an array in the file is not valid: it has {len(dimensions)} dimensions, more than "
            f"{MAX_DIMENSIONS}"
        )
    span = max(itemsize, 1)
    total = itemsize
    for n in dimensions:
        if type(n) is not int or n < 0:
            raise CorruptFileError(
                "an array in the file is not valid: a dimension is not an integer of at least 0"
            )
        # NumPy computes strides even for an empty array, so no factor may overflow them.
        span *= max(n, 1)
        total *= n
        if span > MAX_SIZE:
            raise CorruptFileError("an array in the file is not valid: it has too many elements")
    return total


def array_bytes(values: Any) -> int:
    """Return the total size in bytes of all arrays in nested lists, tuples and dicts."""
    total, stack = 0, [values]
    while stack:
        value = stack.pop()
        if isinstance(value, np.ndarray):
            total += value.nbytes
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(value)
    return total


def require_distinct_hashes(values: list[Any] | NDArray[Any]) -> None:
    """Reject many keys with the same hash, because a dict of them is very slow to build.

    Raises
    ------
    CorruptFileError
        If more than 64 keys have the same hash.
    """
    if len(values) <= _MAX_EQUAL_HASHES:
        return
    hashes = np.sort(np.fromiter(map(hash, values), np.int64, len(values)))
    if np.any(hashes[_MAX_EQUAL_HASHES:] == hashes[:-_MAX_EQUAL_HASHES]):
        raise CorruptFileError(
            f"more than {_MAX_EQUAL_HASHES} keys of a dict or set have the same hash"
        )


def require_array(value: Any, dtype: str, size: int | None, part: str) -> None:
    """Raise CorruptFileError unless a value is a one-dimensional array of this dtype and size.

    With a size of None every size is valid.
    """
    is_array = isinstance(value, np.ndarray) and value.dtype == np.dtype(dtype) and value.ndim == 1
    require_valid(is_array and size in {None, len(value)}, part)


def require_valid(condition: Any, part: str) -> None:
    """Raise CorruptFileError if the condition is false; `part` is the part that is not valid."""
    if not condition:
        raise CorruptFileError(f"the file does not contain a valid {part}")
