"""A tree as JSON and a few tensors, and back.

null, true, false, strings and integers below 2**53 stand for themselves; everything else is an
object with one key that says what it is. Bytes and arrays lie in tensors: those of
4,096 bytes and more in one of their own (``"t0"``, ``"t1"``, ...), smaller ones one after the other
in the tensor ``small`` (``[begin, size]``). A float is its 8 bytes, little-endian, in hexadecimal.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import CorruptFileError, StateError
from letheon.state._budget import (
    ATOM,
    CONTAINER,
    INSTANCE,
    ITEM,
    MAX_DIMENSIONS,
    PAIRS_ITEM,
    RECORD_ITEM,
    SET_ITEM,
    MemoryBudget,
)
from letheon.state._canonical import to_bytes, to_parts
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
from letheon.state._parse import from_bytes, make_array, make_instance, require_increasing

SMALL = "small"
_SMALL_BELOW = 4096
_EXACT_INT = 1 << 53
_PACK_ABOVE = 256
# dtypes that a safetensors file knows by name; others are stored as bytes.
_NATIVE = {
    "<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1",
}  # fmt: skip
_ATOMS = frozenset({type(None), bool, int, float, str})
_ITEM_KINDS = ("list", "tuple", "set", "frozenset")


class Tensors:
    """Collects the bytes of a tree as tensors."""

    def __init__(self) -> None:
        self.small = bytearray()
        self.big: dict[str, NDArray[Any]] = {}

    def add(self, data: Buffer, dtype: str = "|u1", shape: tuple[int, ...] = (-1,)) -> Any:
        """Store bytes and return where they are."""
        if len(data) < _SMALL_BELOW:
            begin = len(self.small)
            self.small += data
            return [begin, len(data)]
        name = f"t{len(self.big)}"
        array = np.frombuffer(data, dtype if dtype in _NATIVE else "|u1")
        self.big[name] = array.reshape(shape) if dtype in _NATIVE else array
        return name

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all tensors by name."""
        return {SMALL: np.frombuffer(self.small, np.uint8), **self.big}


def to_json(node: Any, tensors: Tensors) -> Any:
    """Return a tree as values that JSON can hold; bytes go to `tensors`."""
    write = _WRITERS.get(type(node))
    return node if write is None else write(node, tensors)


def _int_json(node: int, _: Tensors) -> Any:
    return node if -_EXACT_INT < node < _EXACT_INT else {"int": str(hex(node))}


def _float_json(node: float, _: Tensors) -> Any:
    return {"float": struct.pack("<d", node).hex()}


def _complex_json(node: complex, _: Tensors) -> Any:
    return {"complex": struct.pack("<dd", node.real, node.imag).hex()}


def _bytes_json(node: bytes, tensors: Tensors) -> Any:
    return {"bytes": tensors.add(node)}


def _many_json(node: Any, tensors: Tensors, key: str, value: Callable[[], Any]) -> Any:
    """Write a long run of atoms as canonical bytes: headers of files have a limit."""
    if len(node.items) > _PACK_ABOVE and all(type(item) in _ATOMS for item in node.items):
        return {"packed": tensors.add(to_bytes(node))}
    return {key: value()}


def _items_json(node: Items, tensors: Tensors) -> Any:
    return _many_json(node, tensors, node.kind, lambda: _all_json(node.items, tensors))


def _objects_json(node: Objects, tensors: Tensors) -> Any:
    parts = lambda: [list(node.shape), _all_json(node.items, tensors)]  # noqa: E731
    return _many_json(node, tensors, "objects", parts)


def _all_json(nodes: tuple[Any, ...], tensors: Tensors) -> list[Any]:
    return [to_json(node, tensors) for node in nodes]


def _record_json(node: Record, tensors: Tensors) -> Any:
    # A vocabulary, for one: it takes half the memory to read.
    if len(node.items) > _PACK_ABOVE and all(type(value) in _ATOMS for _, value in node.items):
        return {"packed": tensors.add(to_bytes(node))}
    return {"dict": {key: to_json(value, tensors) for key, value in node.items}}


def _pairs_json(node: Pairs, tensors: Tensors) -> Any:
    return {"pairs": [_all_json(pair, tensors) for pair in node.items]}


def _array_json(node: Array, tensors: Tensors) -> Any:
    where = tensors.add(node.data, node.dtype, node.shape)
    return {"array_f" if node.fortran else "array": [node.dtype, list(node.shape), where]}


def _strings_json(node: Strings, tensors: Tensors) -> Any:
    lengths = _array_json(node.lengths, tensors)
    return {"strings": [node.width, list(node.shape), lengths, tensors.add(node.text)]}


def _fields_json(node: Fields, tensors: Tensors) -> Any:
    columns = _all_json(node.columns, tensors)
    return {"fields": [to_json(node.dtype, tensors), list(node.shape), columns]}


def _instance_json(node: Instance, tensors: Tensors) -> Any:
    return {"object": [node.name, _record_json(node.state, tensors)]}


def _coded_json(node: Coded, tensors: Tensors) -> Any:
    return {"coded": [node.name, to_json(node.payload, tensors)]}


_WRITERS: dict[type, Callable[[Any, Tensors], Any]] = {
    int: _int_json,
    float: _float_json,
    complex: _complex_json,
    bytes: _bytes_json,
    Items: _items_json,
    Record: _record_json,
    Pairs: _pairs_json,
    Array: _array_json,
    Strings: _strings_json,
    Objects: _objects_json,
    Fields: _fields_json,
    Scalar: lambda node, tensors: {"scalar": to_json(node.value, tensors)},
    Triple: lambda node, tensors: {node.kind: _all_json(node[1:], tensors)},
    Dtype: lambda node, tensors: {"dtype": to_json(node.descr, tensors)},
    Name: lambda node, _: {"name": node.name},
    Instance: _instance_json,
    Coded: _coded_json,
    Ref: lambda node, _: {"ref": node.number},
}


def json_memory(text: bytes) -> int:
    """Return a bound of what parsing a JSON text takes: the text again, and all values in it."""
    wide = 4 if b"\\u" in text else 1
    names = text.count(b":")
    values = names + text.count(b",") + text.count(b"[")
    strings = text.count(b'"') // 2
    containers = 96 * text.count(b"[") + 240 * text.count(b"{")
    return (2 + wide) * len(text) + containers + 128 * names + 40 * values + 56 * strings


def from_json(value: Any, tensors: Mapping[str, memoryview], budget: MemoryBudget) -> Node:
    """Return the tree of a parsed manifest.

    Raises
    ------
    CorruptFileError
        If it is not what `to_json` writes.
    MemoryLimitError
        If the tree and its value would take more than the budget.
    """
    try:
        return _Reader(tensors, budget).node(value)  # type: ignore[no-any-return]
    except StateError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, struct.error) as error:
        raise CorruptFileError(f"the manifest makes no sense: {error!r}") from None


class _Reader:
    def __init__(self, tensors: Mapping[str, memoryview], budget: MemoryBudget) -> None:
        self.tensors = tensors
        self.budget = budget
        self.depth = 0

    def node(self, value: Any) -> Any:
        if value is None or type(value) in {bool, str}:
            return value
        if type(value) is int:
            _require(-_EXACT_INT < value < _EXACT_INT, "an int")
            return value
        _require(type(value) is dict and len(value) == 1, "a value")
        key, content = next(iter(value.items()))
        self.depth += 1
        _require(self.depth <= 3 * MAX_DEPTH, "nesting")
        self.budget.take(CONTAINER, "its values")
        node = _READERS[key](self, content)
        self.depth -= 1
        return node

    def all(self, values: Any, cost: int = ITEM) -> tuple[Any, ...]:
        _require(type(values) is list, "a list")
        self.budget.take(CONTAINER + cost * len(values), "its values")
        return tuple([self.node(value) for value in values])

    def view(self, where: Any) -> memoryview:
        if type(where) is str:
            return self.tensors[where]
        begin, size = where
        small = self.tensors[SMALL]
        _require(_is_count(begin) and _is_count(size) and begin + size <= len(small), "a place")
        return small[begin : begin + size]

    def read_bytes(self, where: Any) -> bytes:
        data = self.view(where)
        self.budget.take(ATOM + len(data), "bytes")
        return bytes(data)

    def key(self, node: Any) -> bytes:
        """Return the canonical bytes of a key; sets inside sets are written again and again."""
        parts = to_parts(node)
        self.budget.take(ATOM + sum(map(len, parts)), "keys")
        return b"".join(parts)

    def expect(self, kind: type, value: Any) -> Any:
        node = self.node(value)
        _require(type(node) is kind, kind.__name__)
        return node


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise CorruptFileError(f"the manifest is wrong about {what}")


def _text(value: Any) -> str:
    _require(type(value) is str, "a name")
    text: str = value
    return text


def _shape(value: Any) -> tuple[int, ...]:
    _require(type(value) is list and len(value) <= MAX_DIMENSIONS, "a shape")
    _require(all(_is_count(n) for n in value), "a shape")
    return tuple(value)


def _read_int(_: _Reader, value: str) -> int:
    number = int(value, 16)
    _require(abs(number) >= _EXACT_INT and hex(number) == value, "an int")
    return number


def _read_complex(_: _Reader, value: str) -> complex:
    return complex(*struct.unpack("<dd", bytes.fromhex(value)))


def _read_set(reader: _Reader, kind: str, values: Any) -> Items:
    items = reader.all(values, SET_ITEM)
    require_increasing([reader.key(item) for item in items])
    return Items(kind, items)


def _read_record(reader: _Reader, value: Any) -> Record:
    _require(type(value) is dict, "a dict")
    reader.budget.take(RECORD_ITEM * len(value), "a dict")
    require_increasing(list(value))
    return Record(tuple([(key, reader.node(item)) for key, item in value.items()]))


def _read_pairs(reader: _Reader, values: Any) -> Pairs:
    _require(type(values) is list, "a dict")
    reader.budget.take(PAIRS_ITEM * len(values), "a dict")
    pairs = [reader.all(pair) for pair in values]
    _require(all(len(pair) == 2 for pair in pairs), "a pair")
    require_increasing([reader.key(pair[0]) for pair in pairs])
    return Pairs(tuple([(key, value) for key, value in pairs]))


def _read_array(reader: _Reader, value: Any, fortran: bool = False) -> Array:
    dtype, shape, where = value
    return make_array(_text(dtype), _shape(shape), reader.view(where), fortran, reader.budget)


def _read_strings(reader: _Reader, value: Any) -> Strings:
    width, shape, lengths, where = value
    _require(_is_count(width), "a width")
    text = reader.read_bytes(where)
    return Strings(width, _shape(shape), reader.expect(Array, lengths), text)


def _read_objects(reader: _Reader, value: Any) -> Objects:
    shape, items = value
    return Objects(_shape(shape), reader.all(items))


def _read_fields(reader: _Reader, value: Any) -> Fields:
    dtype, shape, columns = value
    return Fields(reader.node(dtype), _shape(shape), reader.all(columns))


def _read_triple(reader: _Reader, kind: str, values: Any) -> Triple:
    start, stop, step = reader.all(values)
    return Triple(kind, start, stop, step)


def _read_instance(reader: _Reader, value: Any) -> Instance:
    name, state = value
    return make_instance(_text(name), reader.expect(Record, state), reader.budget)


def _read_coded(reader: _Reader, value: Any) -> Coded:
    name, payload = value
    reader.budget.take(INSTANCE, "an object")
    return Coded(_text(name), reader.node(payload))


def _read_ref(_: _Reader, value: Any) -> Ref:
    _require(_is_count(value), "a reference")
    return Ref(value)


_READERS: dict[str, Callable[[_Reader, Any], Any]] = {
    "int": _read_int,
    "float": lambda _, v: struct.unpack("<d", bytes.fromhex(v))[0],
    "complex": _read_complex,
    "bytes": _Reader.read_bytes,
    "packed": lambda r, v: from_bytes(r.view(v), r.budget),
    "list": lambda r, v: Items("list", r.all(v)),
    "tuple": lambda r, v: Items("tuple", r.all(v)),
    "set": lambda r, v: _read_set(r, "set", v),
    "frozenset": lambda r, v: _read_set(r, "frozenset", v),
    "dict": _read_record,
    "pairs": _read_pairs,
    "array": _read_array,
    "array_f": lambda r, v: _read_array(r, v, True),
    "strings": _read_strings,
    "objects": _read_objects,
    "fields": _read_fields,
    "scalar": lambda r, v: Scalar(r.node(v)),
    "slice": lambda r, v: _read_triple(r, "slice", v),
    "range": lambda r, v: _read_triple(r, "range", v),
    "dtype": lambda r, v: Dtype(r.node(v)),
    "name": lambda _, v: Name(_text(v)),
    "object": _read_instance,
    "coded": _read_coded,
    "ref": _read_ref,
}
