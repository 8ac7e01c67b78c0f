"""Canonical bytes of a tree, byte by byte.

Every node is a one-byte tag and its content. ``n`` is an unsigned 64-bit little-endian number,
``str`` is ``n`` and that many bytes of UTF-8 (lone surrogates as three bytes each), ``shape`` is
``n`` and that many ``n``, ``node`` is a node.

=====  ===================  ====================================================================
tag    node                 content
=====  ===================  ====================================================================
``N``  None
``T``  True
``F``  False
``i``  int                  ``n``, then ``n`` bytes, two's complement little-endian, the fewest
                            that hold the sign bit
``d``  float                8 bytes IEEE 754 little-endian, NaN payloads and -0.0 as they are
``c``  complex              16 bytes: real, imaginary
``s``  str                  ``str``
``b``  bytes                ``n``, then the bytes
``l``  list                 ``n``, then the nodes
``t``  tuple                ``n``, then the nodes
``e``  set                  ``n``, then the nodes, sorted by their canonical bytes
``z``  frozenset            as set
``m``  dict, str keys       ``n``, then (``str``, ``node``) sorted by key (by code points)
``p``  dict, other keys     ``n``, then (``node``, ``node``) sorted by the key's bytes
``a``  array                dtype ``str``, ``shape``, ``n``, then the bytes
``A``  array                as ``a``; lies in memory column by column (never in a digest)
``u``  array of str         width ``n``, ``shape``, byte lengths (an ``a`` node), ``n``, UTF-8
``o``  array of objects     ``shape``, ``n``, then the nodes in C order
``f``  structured array     dtype ``node``, ``shape``, ``n``, then one node per field
``x``  NumPy scalar         ``node``
``j``  slice                three nodes
``r``  range                three nodes
``y``  NumPy dtype          ``node``
``q``  class or function    ``str``
``O``  object               class ``str``, attributes (an ``m`` node)
``K``  coded object         class ``str``, plain value (a node)
``R``  reference            ``n``
=====  ===================  ====================================================================

The encoding is injective: a tag says how to read on, and every variable part carries its length.
Sorted parts must be sorted when they are read (`letheon.state._parse`), so a tree has one
encoding only.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any

from letheon.state._nodes import (
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
_TAG_N = struct.Struct("<cQ")
_FLOAT = struct.Struct("<cd")
_COMPLEX = struct.Struct("<cdd")
_ITEM_TAGS = {"list": b"l", "tuple": b"t", "set": b"e", "frozenset": b"z"}
_TRIPLE_TAGS = {"slice": b"j", "range": b"r"}
_BIG = 1 << 16

Parts = list[Any]


def to_bytes(node: Node) -> bytes:
    """Return the canonical bytes of a tree."""
    return b"".join(to_parts(node))


def to_parts(node: Node) -> Parts:
    """Return the canonical bytes of a tree in parts; those of arrays are not copied."""
    parts: Parts = []
    _write(node, parts)
    return parts


def chunks(node: Node) -> Iterator[Buffer]:
    """Yield the canonical bytes of a tree in pieces; big arrays are not copied."""
    parts = to_parts(node)
    begin = 0
    for i, part in enumerate(parts):
        if len(part) >= _BIG:
            yield b"".join(parts[begin:i])
            yield part
            begin = i + 1
    yield b"".join(parts[begin:])


def _write(node: Any, parts: Parts) -> None:
    _WRITERS[type(node)](node, parts)


def _none(_: None, parts: Parts) -> None:
    parts.append(b"N")


def _bool(node: bool, parts: Parts) -> None:
    parts.append(b"T" if node else b"F")


def _int(node: int, parts: Parts) -> None:
    size = node.bit_length() // 8 + 1
    parts.append(_TAG_N.pack(b"i", size) + node.to_bytes(size, "little", signed=True))


def _float(node: float, parts: Parts) -> None:
    parts.append(_FLOAT.pack(b"d", node))


def _complex(node: complex, parts: Parts) -> None:
    parts.append(_COMPLEX.pack(b"c", node.real, node.imag))


def text_bytes(text: str) -> bytes:
    """Return UTF-8 of any str that Python can hold."""
    return text.encode("utf-8", "surrogatepass")


def _text(text: str) -> bytes:
    data = text_bytes(text)
    return _N.pack(len(data)) + data


def _str(node: str, parts: Parts) -> None:
    data = text_bytes(node)
    parts.append(_TAG_N.pack(b"s", len(data)) + data)


def _bytes(node: bytes, parts: Parts) -> None:
    parts += (_TAG_N.pack(b"b", len(node)), node)


def _items(node: Items, parts: Parts) -> None:
    parts.append(_TAG_N.pack(_ITEM_TAGS[node.kind], len(node.items)))
    for item in node.items:
        _WRITERS[type(item)](item, parts)


def _record(node: Record, parts: Parts) -> None:
    parts.append(_TAG_N.pack(b"m", len(node.items)))
    for key, value in node.items:
        parts.append(_text(key))
        _WRITERS[type(value)](value, parts)


def _pairs(node: Pairs, parts: Parts) -> None:
    parts.append(_TAG_N.pack(b"p", len(node.items)))
    for key, value in node.items:
        _write(key, parts)
        _write(value, parts)


def _shape(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f"<Q{len(shape)}Q", len(shape), *shape)


def _array(node: Array, parts: Parts) -> None:
    size = len(node.data)
    tag = b"A" if node.fortran else b"a"
    parts += (tag + _text(node.dtype) + _shape(node.shape) + _N.pack(size), node.data)


def _strings(node: Strings, parts: Parts) -> None:
    parts.append(_TAG_N.pack(b"u", node.width) + _shape(node.shape))
    _array(node.lengths, parts)
    parts += (_N.pack(len(node.text)), node.text)


def _objects(node: Objects, parts: Parts) -> None:
    parts.append(b"o" + _shape(node.shape) + _N.pack(len(node.items)))
    for item in node.items:
        _write(item, parts)


def _fields(node: Fields, parts: Parts) -> None:
    parts.append(b"f")
    _write(node.dtype, parts)
    parts.append(_shape(node.shape) + _N.pack(len(node.columns)))
    for column in node.columns:
        _write(column, parts)


def _scalar(node: Scalar, parts: Parts) -> None:
    parts.append(b"x")
    _write(node.value, parts)


def _triple(node: Triple, parts: Parts) -> None:
    parts.append(_TRIPLE_TAGS[node.kind])
    for item in node[1:]:
        _write(item, parts)


def _dtype(node: Dtype, parts: Parts) -> None:
    parts.append(b"y")
    _write(node.descr, parts)


def _name(node: Name, parts: Parts) -> None:
    parts.append(b"q" + _text(node.name))


def _instance(node: Instance, parts: Parts) -> None:
    parts.append(b"O" + _text(node.name))
    _record(node.state, parts)


def _coded(node: Coded, parts: Parts) -> None:
    parts.append(b"K" + _text(node.name))
    _write(node.payload, parts)


def _ref(node: Ref, parts: Parts) -> None:
    parts.append(_TAG_N.pack(b"R", node.number))


_WRITERS: dict[type, Callable[[Any, Parts], None]] = {
    type(None): _none,
    bool: _bool,
    int: _int,
    float: _float,
    complex: _complex,
    str: _str,
    bytes: _bytes,
    Items: _items,
    Record: _record,
    Pairs: _pairs,
    Array: _array,
    Strings: _strings,
    Objects: _objects,
    Fields: _fields,
    Scalar: _scalar,
    Triple: _triple,
    Dtype: _dtype,
    Name: _name,
    Instance: _instance,
    Coded: _coded,
    Ref: _ref,
}
