"""From canonical bytes back to the tree; trusts nothing about them."""

import struct
from collections.abc import Callable
from itertools import pairwise
from sys import getsizeof, intern
from typing import Any

from letheon.exceptions import CorruptFileError, StateError
from letheon.state._budget import (
    ARRAY,
    ATOM,
    CONTAINER,
    INSTANCE,
    ITEM,
    MAX_DIMENSIONS,
    PAIRS_ITEM,
    RECORD_ITEM,
    SET_ITEM,
    TEXT,
    MemoryBudget,
)
from letheon.state._nodes import (
    MAX_DEPTH,
    Array,
    Buffer,
    Coded,
    Dtype,
    Fields,
    Instance,
    Items,
    Name,
    Node,
    Objects,
    Pairs,
    Record,
    Ref,
    Scalar,
    Strings,
    Triple,
)

OUT_OF_ORDER = "not canonical bytes: keys out of order or repeated"
_N = struct.Struct("<Q")
_PIECE = 1 << 16
_COPY_BELOW = 512
_VIEW = 240


def from_bytes(data: Buffer, budget: MemoryBudget) -> Node:
    """Return the tree of canonical bytes.

    Raises
    ------
    CorruptFileError
        If the bytes are not exactly the canonical bytes of one tree.
    MemoryLimitError
        If the tree and its value would take more than the budget.
    """
    reader = _Reader(data, budget)
    try:
        node: Node = reader.node()
    except StateError:
        raise
    except RecursionError:
        raise CorruptFileError("not canonical bytes: nested too deeply") from None
    except (struct.error, ValueError, OverflowError, IndexError) as error:
        raise CorruptFileError(f"not canonical bytes: {error}") from None
    if reader.at != len(reader.data):
        raise CorruptFileError("not canonical bytes: something follows the tree")
    return node


class _Reader:
    """Reads nodes; knows where it is and how deep, and counts what they take."""

    def __init__(self, data: Buffer, budget: MemoryBudget) -> None:
        self.data = memoryview(data)
        self.budget = budget
        self.at = 0
        self.depth = 0

    def node(self) -> Any:
        tag = self.data[self.at]
        self.at += 1
        read = _READERS.get(tag)
        if read is None:
            raise CorruptFileError(f"not canonical bytes: unknown tag {tag}")
        self.depth += 1
        if self.depth > 3 * MAX_DEPTH:
            raise CorruptFileError("not canonical bytes: nested too deeply")
        node = read(self)
        self.depth -= 1
        return node

    def take(self, size: int) -> memoryview:
        end = self.at + size
        if end > len(self.data):
            raise CorruptFileError("not canonical bytes: they end too early")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self) -> int:
        value: int = _N.unpack_from(self.data, self.at)[0]
        self.at += 8
        return value

    def count(self, cost: int) -> int:
        """Read a number of things to come: each takes at least a byte here and `cost` in memory."""
        value = self.number()
        if value > len(self.data) - self.at:
            raise CorruptFileError("not canonical bytes: more items than bytes")
        self.budget.take(value * cost, "its values")
        return value

    def text(self) -> str:
        return decode_text(self.take(self.number()), self.budget)

    def read_bytes(self) -> bytes:
        part = self.take(self.number())
        self.budget.take(ATOM + len(part), "bytes")
        return bytes(part)

    def shape(self) -> tuple[int, ...]:
        n = self.number()
        if n > MAX_DIMENSIONS:
            raise CorruptFileError(f"not canonical bytes: {n} dimensions")
        self.budget.take(ATOM * n, "a shape")
        return struct.unpack(f"<{n}Q", self.take(8 * n))

    def nodes(self) -> tuple[Any, ...]:
        self.budget.take(CONTAINER, "its values")
        return tuple([self.node() for _ in range(self.count(ITEM))])

    def expect(self, kind: type) -> Any:
        node = self.node()
        if type(node) is not kind:
            raise CorruptFileError(f"not canonical bytes: expected {kind.__name__}")
        return node

    def key(self, previous: memoryview | None) -> tuple[Any, memoryview]:
        """Read a node whose canonical bytes must be greater than the previous ones."""
        begin = self.at
        node = self.node()
        data = self.data[begin : self.at]
        if previous is not None and not _is_less(previous, data):
            raise CorruptFileError(OUT_OF_ORDER)
        return node, data


def _is_less(a: memoryview, b: memoryview) -> bool:
    """Compare bytes piece by piece: a copy of a long key would be a copy of the file."""
    for at in range(0, max(len(a), len(b)), _PIECE):
        left, right = bytes(a[at : at + _PIECE]), bytes(b[at : at + _PIECE])
        if left != right:
            return left < right
    return False


def decode_text(data: memoryview, budget: MemoryBudget) -> str:
    """Return UTF-8 as a str; one wide character makes all others as wide."""
    most = TEXT + 4 * len(data)
    budget.take(most, "a text")
    text = str(data, "utf-8", "surrogatepass")
    budget.give_back(most - (getsizeof(text) + 15) // 16 * 16)
    return text


def _read_int(reader: _Reader) -> int:
    data = reader.take(reader.number())
    # Digits of 30 bits, in steps of 16 bytes.
    reader.budget.take((39 + 4 * (8 * len(data) // 30 + 1)) // 16 * 16, "an int")
    value = int.from_bytes(data, "little", signed=True)
    if value.bit_length() // 8 + 1 != len(data):
        raise CorruptFileError("not canonical bytes: an int in more bytes than it needs")
    return value


def _read_float(reader: _Reader) -> float:
    reader.budget.take(ATOM, "a float")
    value: float = struct.unpack("<d", reader.take(8))[0]
    return value


def _read_complex(reader: _Reader) -> complex:
    reader.budget.take(ATOM, "a complex")
    return complex(*struct.unpack("<dd", reader.take(16)))


def _read_set(reader: _Reader, kind: str) -> Items:
    reader.budget.take(CONTAINER, "a set")
    items, previous = [], None
    for _ in range(reader.count(SET_ITEM)):
        item, previous = reader.key(previous)
        items.append(item)
    return Items(kind, tuple(items))


def _read_record(reader: _Reader) -> Record:
    reader.budget.take(CONTAINER, "a dict")
    items = tuple([(reader.text(), reader.node()) for _ in range(reader.count(RECORD_ITEM))])
    require_increasing([key for key, _ in items])
    return Record(items)


def _read_pairs(reader: _Reader) -> Pairs:
    reader.budget.take(CONTAINER, "a dict")
    items, previous = [], None
    for _ in range(reader.count(PAIRS_ITEM)):
        key, previous = reader.key(previous)
        items.append((key, reader.node()))
    return Pairs(tuple(items))


def require_increasing(keys: list[Any]) -> None:
    """Raise unless keys are sorted and none is repeated."""
    if any(a >= b for a, b in pairwise(keys)):
        raise CorruptFileError(OUT_OF_ORDER)


def make_array(
    dtype: str, shape: tuple[int, ...], data: Buffer, fortran: bool, budget: MemoryBudget
) -> Array:
    """Return the node of an array; few bytes are copied, since a view of them takes more."""
    if len(data) < _COPY_BELOW:
        budget.take(ARRAY + len(data), "an array")
        data = bytes(data)
    else:
        budget.take(ARRAY + _VIEW, "an array")
    return Array(intern(dtype), shape, data, fortran)


def make_instance(name: str, state: Record, budget: MemoryBudget) -> Instance:
    """Return the node of an object; its attributes are a dict of their own."""
    budget.take(INSTANCE + RECORD_ITEM * len(state.items) // 2, "an object")
    return Instance(name, state)


def _read_array(reader: _Reader, fortran: bool = False) -> Array:
    dtype, shape, data = reader.text(), reader.shape(), reader.take(reader.number())
    return make_array(dtype, shape, data, fortran, reader.budget)


def _read_strings(reader: _Reader) -> Strings:
    reader.budget.take(ARRAY, "an array of strings")
    width, shape, lengths = reader.number(), reader.shape(), reader.expect(Array)
    return Strings(width, shape, lengths, reader.read_bytes())


def _read_objects(reader: _Reader) -> Objects:
    reader.budget.take(ARRAY, "an array of objects")
    return Objects(reader.shape(), reader.nodes())


def _read_fields(reader: _Reader) -> Fields:
    reader.budget.take(ARRAY, "a structured array")
    return Fields(reader.node(), reader.shape(), reader.nodes())


def _read_triple(reader: _Reader, kind: str) -> Triple:
    reader.budget.take(CONTAINER, f"a {kind}")
    return Triple(kind, reader.node(), reader.node(), reader.node())


def _read_scalar(reader: _Reader) -> Scalar:
    reader.budget.take(CONTAINER, "a scalar")
    return Scalar(reader.node())


def _read_dtype(reader: _Reader) -> Dtype:
    reader.budget.take(CONTAINER, "a dtype")
    return Dtype(reader.node())


def _read_name(reader: _Reader) -> Name:
    reader.budget.take(CONTAINER, "a name")
    return Name(reader.text())


def _read_instance(reader: _Reader) -> Instance:
    return make_instance(reader.text(), reader.expect(Record), reader.budget)


def _read_coded(reader: _Reader) -> Coded:
    reader.budget.take(INSTANCE, "an object")
    return Coded(reader.text(), reader.node())


def _read_ref(reader: _Reader) -> Ref:
    reader.budget.take(CONTAINER, "a reference")
    return Ref(reader.number())


_READERS: dict[int, Callable[[_Reader], Any]] = {
    ord("N"): lambda _: None,
    ord("T"): lambda _: True,
    ord("F"): lambda _: False,
    ord("i"): _read_int,
    ord("d"): _read_float,
    ord("c"): _read_complex,
    ord("s"): _Reader.text,
    ord("b"): _Reader.read_bytes,
    ord("l"): lambda r: Items("list", r.nodes()),
    ord("t"): lambda r: Items("tuple", r.nodes()),
    ord("e"): lambda r: _read_set(r, "set"),
    ord("z"): lambda r: _read_set(r, "frozenset"),
    ord("m"): _read_record,
    ord("p"): _read_pairs,
    ord("a"): _read_array,
    ord("A"): lambda r: _read_array(r, True),
    ord("u"): _read_strings,
    ord("o"): _read_objects,
    ord("f"): _read_fields,
    ord("x"): _read_scalar,
    ord("j"): lambda r: _read_triple(r, "slice"),
    ord("r"): lambda r: _read_triple(r, "range"),
    ord("y"): _read_dtype,
    ord("q"): _read_name,
    ord("O"): _read_instance,
    ord("K"): _read_coded,
    ord("R"): _read_ref,
}
