"""From canonical bytes back to the tree; trusts nothing about them."""

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from letheon.exceptions import CorruptFileError
from letheon.state._canonical import to_bytes
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

_N = struct.Struct("<Q")


def from_bytes(data: Buffer) -> Node:
    """Return the tree of canonical bytes.

    Raises
    ------
    CorruptFileError
        If the bytes are not exactly the canonical bytes of one tree.
    """
    reader = _Reader(data)
    try:
        node: Node = reader.node()
    except RecursionError:
        raise CorruptFileError("not canonical bytes: nested too deeply") from None
    except (struct.error, ValueError, OverflowError, IndexError) as error:
        raise CorruptFileError(f"not canonical bytes: {error}") from None
    if reader.at != len(reader.data):
        raise CorruptFileError("not canonical bytes: something follows the tree")
    return node


class _Reader:
    """Reads nodes; knows where it is and how deep."""

    def __init__(self, data: Buffer) -> None:
        self.data = memoryview(data)
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

    def count(self) -> int:
        """Read a number of things to come; each takes at least one byte."""
        value = self.number()
        if value > len(self.data) - self.at:
            raise CorruptFileError("not canonical bytes: more items than bytes")
        return value

    def text(self) -> str:
        return str(self.take(self.number()), "utf-8", "surrogatepass")

    def shape(self) -> tuple[int, ...]:
        n = self.count()
        return struct.unpack(f"<{n}Q", self.take(8 * n))

    def nodes(self) -> tuple[Any, ...]:
        return tuple([self.node() for _ in range(self.count())])

    def expect(self, kind: type) -> Any:
        node = self.node()
        if type(node) is not kind:
            raise CorruptFileError(f"not canonical bytes: expected {kind.__name__}")
        return node


def _read_int(reader: _Reader) -> int:
    data = reader.take(reader.number())
    value = int.from_bytes(data, "little", signed=True)
    if value.bit_length() // 8 + 1 != len(data):
        raise CorruptFileError("not canonical bytes: an int in more bytes than it needs")
    return value


def _read_complex(reader: _Reader) -> complex:
    return complex(*struct.unpack("<dd", reader.take(16)))


def _read_set(reader: _Reader, kind: str) -> Items:
    items = reader.nodes()
    require_increasing([to_bytes(item) for item in items])
    return Items(kind, items)


def _read_record(reader: _Reader) -> Record:
    items = tuple([(reader.text(), reader.node()) for _ in range(reader.count())])
    require_increasing([key for key, _ in items])
    return Record(items)


def _read_pairs(reader: _Reader) -> Pairs:
    items = tuple([(reader.node(), reader.node()) for _ in range(reader.count())])
    require_increasing([to_bytes(key) for key, _ in items])
    return Pairs(items)


def require_increasing(keys: list[Any]) -> None:
    """Raise unless keys are sorted and none is repeated."""
    if any(a >= b for a, b in pairwise(keys)):
        raise CorruptFileError("not canonical bytes: keys out of order or repeated")


def _read_array(reader: _Reader, fortran: bool = False) -> Array:
    return Array(reader.text(), reader.shape(), reader.take(reader.number()), fortran)


def _read_strings(reader: _Reader) -> Strings:
    width, shape, lengths = reader.number(), reader.shape(), reader.expect(Array)
    return Strings(width, shape, lengths, bytes(reader.take(reader.number())))


_READERS: dict[int, Callable[[_Reader], Any]] = {
    ord("N"): lambda _: None,
    ord("T"): lambda _: True,
    ord("F"): lambda _: False,
    ord("i"): _read_int,
    ord("d"): lambda r: struct.unpack("<d", r.take(8))[0],
    ord("c"): _read_complex,
    ord("s"): _Reader.text,
    ord("b"): lambda r: bytes(r.take(r.number())),
    ord("l"): lambda r: Items("list", r.nodes()),
    ord("t"): lambda r: Items("tuple", r.nodes()),
    ord("e"): lambda r: _read_set(r, "set"),
    ord("z"): lambda r: _read_set(r, "frozenset"),
    ord("m"): _read_record,
    ord("p"): _read_pairs,
    ord("a"): _read_array,
    ord("A"): lambda r: _read_array(r, True),
    ord("u"): _read_strings,
    ord("o"): lambda r: Objects(r.shape(), r.nodes()),
    ord("f"): lambda r: Fields(r.node(), r.shape(), r.nodes()),
    ord("x"): lambda r: Scalar(r.node()),
    ord("j"): lambda r: Triple("slice", r.node(), r.node(), r.node()),
    ord("r"): lambda r: Triple("range", r.node(), r.node(), r.node()),
    ord("y"): lambda r: Dtype(r.node()),
    ord("q"): lambda r: Name(r.text()),
    ord("O"): lambda r: Instance(r.text(), r.expect(Record)),
    ord("K"): lambda r: Coded(r.text(), r.node()),
    ord("R"): lambda r: Ref(r.number()),
}
