"""Mutations of trees, manifests and bytes that know what they change; hashes are right again."""

import hashlib
import json
import math
import random
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from letheon.state import _allowed
from letheon.state._bytes import from_bytes, to_bytes
from letheon.state._file import Tensors, to_json
from letheon.state._nodes import (
    UNLIMITED,
    Array,
    Coded,
    Dtype,
    Fields,
    Instance,
    Items,
    MemoryBudget,
    Name,
    Objects,
    Pairs,
    Record,
    Ref,
    Scalar,
    Strings,
    Triple,
    names_of,
)
from letheon.state._tags import _load_codecs
from tests.state.forge import VERSIONS

HEAD = b"letheon-state-v1\0"
INTS = [
    0, 1, -1, 2, 3, 4, 7, 8, 9, 16, 31, 63, 64, 65, 127, 255, 256, 624, 1000, 2**15, 2**16, 10**6,
    2**31 - 8, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 10**9, 2**53, 2**61 - 1, 2**62, 2**63 - 1, 2**63,
    2**64 - 1, 2**64, -(2**31), -(2**63), -(2**70), 10**18,
]  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, 0.5, -1.0, 1e308, 5e-324, math.nan, math.inf, -math.inf, 2.0**31]
TEXTS = ["", "a", "\0", "é", "😀", "\ud800", "x" * 300, "category", "Int64", "|O", "<U3", "kd_tree"]
ATOMS: list[Any] = [None, True, False, *INTS, *FLOATS, *TEXTS, b"", b"ab", 1j]
DTYPES = [
    "<i8", "<f8", "<f4", "<u4", "|u1", "|b1", "<i4", "<c16", "<M8[ns]", "<m8[s]", "|S3", "|V8",
    "|O", "<U4", "<f16", ">i8", "<i1", "|i8", "<M8[10s]", "<M8[zz]", "|V999999999", "<U999999999",
    "f8", "",
]  # fmt: skip
ITEM_KINDS = ("list", "tuple", "set", "frozenset")
_START = re.compile(rb'\\"sha256\\":\\"')


def slots(node: Any) -> tuple[Any, ...]:
    """Return the nodes below a node."""
    kind = type(node)
    if kind in {Items, Objects}:
        return tuple(node.items)
    if kind is Record:
        return tuple(value for _, value in node.items)
    if kind is Pairs:
        return tuple(part for pair in node.items for part in pair)
    if kind is Fields:
        return (node.dtype, *node.columns)
    if kind in {Scalar, Dtype, Instance, Coded}:
        return (node[-1],)
    if kind is Triple:
        return tuple(node[1:])
    return (node.lengths,) if kind is Strings else ()


def rebuilt(node: Any, parts: tuple[Any, ...]) -> Any:
    """Return the node with other nodes below it."""
    kind = type(node)
    if kind in {Items, Objects}:
        return node._replace(items=parts)
    if kind is Record:
        return Record(tuple(zip([key for key, _ in node.items], parts, strict=True)))
    if kind is Pairs:
        return Pairs(tuple(zip(parts[::2], parts[1::2], strict=True)))
    if kind is Fields:
        return node._replace(dtype=parts[0], columns=parts[1:])
    if kind in {Scalar, Dtype, Instance, Coded}:
        return kind(*node[:-1], *parts)
    return Triple(node.kind, *parts) if kind is Triple else node._replace(lengths=parts[0])


class Mutator:
    """Makes one input from a number, always the same.

    Parameters
    ----------
    seeds : dict of str to bytes
        Encoded values.
    """

    def __init__(self, seeds: dict[str, bytes]) -> None:
        self.trees = {
            name: from_bytes(data[len(HEAD) + 32 :], MemoryBudget(0, UNLIMITED))
            for name, data in seeds.items()
        }
        self.donors = [node for tree in self.trees.values() for node in _sample(tree)]
        listed = _allowed.CLASSES | _allowed.FUNCTIONS | _allowed.CLASS_VALUES
        used = {name for tree in self.trees.values() for name in names_of(tree)}
        self.names = sorted(used) * 8 + sorted({*listed, *_allowed.TYPES, *_load_codecs()})
        if not any(name.startswith("deep") for name in seeds):
            nets = ("torch.", "letheon.deep.")
            self.names = [name for name in self.names if not name.startswith(nets)]
        self.models = [name for name in self.trees if name.startswith(("ours", "deep"))]
        self.rng = random.Random(0)

    def tree(self, number: int, names: list[str] | None = None) -> Any:
        """Return a mutated tree."""
        self.rng.seed(number)
        tree = self.trees[self.rng.choice(names or list(self.trees))]
        for _ in range(self.rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
            tree = self.mutated(tree)
        return tree

    def mutated(self, node: Any) -> Any:
        """Change something in a tree, mostly deep inside."""
        rng, parts = self.rng, slots(node)
        if not parts or rng.random() < 0.12:
            return self.changed(node)
        at = rng.randrange(len(parts))
        return self._sorted(rebuilt(node, (*parts[:at], self.mutated(parts[at]), *parts[at + 1 :])))

    def changed(self, node: Any) -> Any:
        """Change a node itself."""
        rng = self.rng
        if rng.random() < 0.12:
            return rng.choice(self.donors)
        if rng.random() < 0.08:
            return rng.choice(ATOMS)
        change = _CHANGES.get(type(node))
        made = self._wrapped(node) if change is None or rng.random() < 0.04 else change(self, node)
        return self._sorted(made)

    def _sorted(self, node: Any) -> Any:
        """Put what must be sorted in order again, as a rule."""
        kind = type(node)
        is_set = kind is Items and node.kind in {"set", "frozenset"}
        if not (is_set or kind in {Record, Pairs}) or self.rng.random() < 0.03:
            return node
        try:
            if is_set:
                ordered = {to_bytes(item): item for item in node.items}
                return node._replace(items=tuple(ordered[key] for key in sorted(ordered)))
            if kind is Record:
                return Record(tuple(sorted(dict(node.items).items())))
            keys = {to_bytes(key): (key, value) for key, value in node.items}
            return Pairs(tuple(keys[key] for key in sorted(keys)))
        except (struct.error, TypeError, ValueError, OverflowError, KeyError):
            return node

    def _wrapped(self, node: Any) -> Any:
        rng = self.rng
        ways: list[Callable[[], Any]] = [
            lambda: Items(rng.choice(ITEM_KINDS), (node,)),
            lambda: Scalar(node),
            lambda: Objects((1,), (node,)),
            lambda: Coded(rng.choice(self.names), node),
            lambda: Triple(rng.choice(("slice", "range")), node, None, 1),
            lambda: Triple("range", 0, rng.choice(INTS), 1),
            lambda: Pairs(((node, node),)),
            lambda: Record((("a", node),)),
            lambda: Dtype(node),
            lambda: rng.choice(ATOMS),
        ]
        return rng.choice(ways)()

    def _number(self, value: int) -> int:
        rng = self.rng
        if rng.random() < 0.15:
            return 2**31 - rng.choice((0, 1, 4, 8, 16))
        if rng.random() < 0.4:
            return rng.choice(INTS)
        return value + rng.choice((-2, -1, 1, 2, 8, 64, 4096, value, -value))

    def _int(self, node: int) -> Any:
        return self._number(node)

    def _other(self, _: Any) -> Any:
        return self.rng.choice(ATOMS)

    def _text(self, node: str) -> Any:
        rng = self.rng
        return rng.choice([rng.choice(TEXTS), node + "x", node[:-1], rng.choice(DTYPES)])

    def _few(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        """Delete, repeat, swap, add or cut."""
        rng, n = self.rng, len(items)
        at, other = (rng.randrange(n), rng.randrange(n)) if n else (0, 0)
        how = rng.randrange(6)
        if how == 0 or n == 0:
            return (*items, rng.choice(self.donors if rng.random() < 0.5 else ATOMS))
        if how == 1:
            return items[:at] + items[at + 1 :]
        if how == 2:
            return items[:at] + (items[at],) * rng.choice((2, 3, 100)) + items[at + 1 :]
        if how == 3:
            return items[:at]
        swapped = list(items)
        swapped[at], swapped[other] = swapped[other], swapped[at]
        return tuple(swapped)

    def _items(self, node: Items) -> Any:
        if self.rng.random() < 0.15:
            return node._replace(kind=self.rng.choice(ITEM_KINDS))
        return node._replace(items=self._few(node.items))

    def _record(self, node: Record) -> Any:
        rng, items = self.rng, dict(node.items)
        if not items:
            return Record((("a", 1),))
        key = rng.choice(list(items))
        how = rng.randrange(4)
        if how == 0:
            del items[key]
        elif how == 1:
            items[self._text(key)] = items.pop(key)
        elif how == 2:
            items[key] = items[rng.choice(list(items))]
        else:
            items[rng.choice([key, *TEXTS])] = rng.choice(self.donors)
        return Record(tuple(sorted(items.items())))

    def _pairs(self, node: Pairs) -> Any:
        kept = [item for item in self._few(node.items) if type(item) is tuple and len(item) == 2]
        return Pairs(tuple(kept))

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Change a shape."""
        rng = self.rng
        how = rng.randrange(5)
        if how == 0:
            return shape[::-1]
        if how == 1:
            return (*shape, rng.choice((0, 1, 2)))
        if how == 2 or not shape:
            return tuple(rng.choice(INTS[:20]) for _ in range(rng.choice((0, 1, 2, 3, 65))))
        at = rng.randrange(len(shape))
        return (*shape[:at], max(0, self._number(shape[at])), *shape[at + 1 :])

    def _array(self, node: Array) -> Any:
        rng = self.rng
        how = rng.randrange(8)
        if how == 0:
            node = node._replace(dtype=rng.choice(DTYPES))
        elif how == 1:
            node = node._replace(shape=self.shape(node.shape))
        elif how == 2:
            return node._replace(fortran=not node.fortran)
        elif how == 3:
            return node._replace(data=self.flipped(bytes(node.data)))
        elif how == 4:
            data = bytes(node.data)
            return node._replace(
                data=data[: rng.randrange(len(data) + 1)] + bytes(rng.randrange(9))
            )
        else:
            return node._replace(data=self._with_element(node))
        return self._fitted(node) if rng.random() < 0.7 else node

    def _fitted(self, node: Array) -> Array:
        """Give an array as many bytes as its dtype and shape say, if they are few."""
        try:
            size = np.dtype(node.dtype).itemsize * math.prod(node.shape)
        except (TypeError, ValueError):
            return node
        data = bytes(node.data) or b"\0"
        return node._replace(data=(data * (size // len(data) + 1))[:size]) if size < 65536 else node

    def _with_element(self, node: Array) -> bytes:
        """Set one element to an edge value: an index, a count, a child."""
        code = {"<i8": "<q", "<i4": "<i", "<u4": "<I", "<f8": "<d", "<u8": "<Q", "<i2": "<h"}
        data = bytearray(node.data)
        form = code.get(node.dtype)
        if form is None or len(data) < struct.calcsize(form):
            return self.flipped(bytes(data))
        width = struct.calcsize(form)
        at = self.rng.randrange(len(data) // width) * width
        old = struct.unpack_from(form, data, at)[0]
        value = self.rng.choice(FLOATS) if form == "<d" else self._number(old)
        try:
            struct.pack_into(form, data, at, value)
        except struct.error:
            struct.pack_into(form, data, at, 0)
        return bytes(data)

    def flipped(self, data: bytes) -> bytes:
        """Change a few bytes."""
        if not data:
            return b"\1"
        changed = bytearray(data)
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            changed[self.rng.randrange(len(changed))] = self.rng.choice(
                (0, 1, 255, 127, self.rng.randrange(256))
            )
        return bytes(changed)

    def _strings(self, node: Strings) -> Any:
        rng = self.rng
        how = rng.randrange(4)
        if how == 0:
            return node._replace(width=max(0, self._number(node.width)))
        if how == 1:
            return node._replace(shape=self.shape(node.shape))
        if how == 2:
            return node._replace(text=self.flipped(node.text))
        return node._replace(lengths=self._array(node.lengths))

    def _objects(self, node: Objects) -> Any:
        if self.rng.random() < 0.5:
            return node._replace(shape=self.shape(node.shape))
        items = self._few(node.items)
        return Objects((len(items),) if self.rng.random() < 0.5 else node.shape, items)

    def _fields(self, node: Fields) -> Any:
        rng = self.rng
        how = rng.randrange(3)
        if how == 0:
            return node._replace(shape=self.shape(node.shape))
        if how == 1:
            return node._replace(columns=self._few(node.columns))
        return node._replace(dtype=self._descr(node.dtype))

    def _descr(self, descr: Any) -> Any:
        """Change offsets, sizes, names or alignment of a structured dtype."""
        if type(descr) is not Items or len(descr.items) != 3:
            return self.rng.choice(DTYPES)
        itemsize, aligned, fields = descr.items
        how = self.rng.randrange(4)
        if how == 0 and type(itemsize) is int:
            return descr._replace(items=(self._number(itemsize), aligned, fields))
        if how == 1:
            return descr._replace(items=(itemsize, not aligned, fields))
        if type(fields) is not Items or not fields.items:
            return descr
        at = self.rng.randrange(len(fields.items))
        field = fields.items[at]
        if type(field) is not Items or len(field.items) != 4:
            return descr
        name, inner, offset, shape = field.items
        choices: list[tuple[Any, ...]] = [
            (name, inner, self._number(offset) if type(offset) is int else 0, shape),
            (self.rng.choice([*TEXTS, "a", "b"]), inner, offset, shape),
            (name, self._descr(inner), offset, shape),
            (name, inner, offset, Items("tuple", self.shape(()))),
        ]
        changed = Items("tuple", self.rng.choice(choices))
        kept = Items("tuple", (*fields.items[:at], changed, *fields.items[at + 1 :]))
        return descr._replace(items=(itemsize, aligned, kept))

    def _dtype(self, node: Dtype) -> Any:
        return Dtype(self._descr(node.descr))

    def _named(self, node: Any) -> Any:
        return type(node)(self.rng.choice(self.names), *node[1:])

    def _ref(self, node: Ref) -> Any:
        return Ref(max(0, self._number(node.number)))

    def blob(self, number: int, names: list[str] | None = None) -> bytes:
        """Return an encoded value with a right hash."""
        body = to_bytes(self.tree(number, names))
        if self.rng.random() < 0.12:
            body = self._damaged(body)
        return self._unsigned(HEAD + hashlib.sha256(body).digest() + body)

    def _unsigned(self, data: bytes) -> bytes:
        """Damage a few inputs without putting the hash right: magic, version, length, end."""
        how = self.rng.randrange(100)
        if how == 0:
            return data.replace(b"v1", self.rng.choice((b"v2", b"v", b"v99")), 1)
        if how == 1:
            return data[: self.rng.randrange(len(data))]
        if how == 2:
            return self.flipped(data[:60]) + data[60:]
        return self.rng.choice((b"", HEAD, b"\x80\4", bytes(8) + b"{", data)) if how == 3 else data

    def _damaged(self, data: bytes) -> bytes:
        rng, at = self.rng, self.rng.randrange(len(data) + 1)
        how = rng.randrange(4)
        if how == 0:
            return data[:at] + data[at + rng.choice((1, 8)) :]
        if how == 1:
            return data[:at] + bytes(rng.choice((1, 8))) + data[at:]
        if how == 2:
            return data[:at] + struct.pack("<Q", rng.choice(INTS) % 2**64) + data[at + 8 :]
        return self.flipped(data)

    def file(self, number: int, *, is_model: bool = True) -> bytes:
        """Return a file with a right hash."""
        rng, tensors = self.rng, Tensors()
        content = to_json(self.tree(number, self.models if is_model else None), tensors)
        for _ in range(rng.choice((0, 0, 1, 2))):
            content = self._json(content)
        manifest = {
            "format": "letheon-v1",
            "sha256": "0" * 64,
            "kind": "model",
            "versions": VERSIONS,
            "tree": content,
        }
        header: dict[str, Any] = {
            "__metadata__": {"letheon": json.dumps(manifest, separators=(",", ":"))}
        }
        data = b""
        for name, array in tensors.to_arrays().items():
            end = len(data) + array.nbytes
            form = {"c": "U8"}.get(array.dtype.kind, _safetensors_name(array.dtype))
            header[name] = {
                "dtype": form,
                "shape": list(array.shape),
                "data_offsets": [len(data), end],
            }
            data += array.tobytes()
        if rng.random() < 0.08:
            header = {**header, **self._json({k: v for k, v in header.items() if k[0] != "_"})}
        text = json.dumps(header, separators=(",", ":")).encode()
        raw = struct.pack("<Q", len(text)) + text + data
        if rng.random() < 0.05:
            raw = raw[:300] + self._damaged(raw[300:])
        return self._unsigned(with_hash(raw))

    def _json(self, value: Any) -> Any:
        rng = self.rng
        if type(value) is dict and value and rng.random() < 0.93:
            key = rng.choice(list(value))
            if rng.random() < 0.04:
                return {rng.choice(_KEYS): value[key]}
            return {**value, key: self._json(value[key])}
        if type(value) is list and value and rng.random() < 0.9:
            at = rng.randrange(len(value))
            return [*value[:at], self._json(value[at]), *value[at + 1 :]]
        if type(value) is list:
            return [part for part in self._few(tuple(value)) if _is_json(part)]
        if type(value) is int:
            return self._number(value)
        places: list[Any] = [
            "t0",
            "t1",
            "small",
            [0, 8],
            [8, 2**40],
            None,
            {"array": ["|u1", [8], "t0"]},
        ]
        return rng.choice([*places, *[a for a in ATOMS if _is_json(a)]])


_CHANGES: dict[type, Callable[[Mutator, Any], Any]] = {
    int: Mutator._int,
    bool: Mutator._other,
    float: Mutator._other,
    str: Mutator._text,
    Items: Mutator._items,
    Record: Mutator._record,
    Pairs: Mutator._pairs,
    Array: Mutator._array,
    Strings: Mutator._strings,
    Objects: Mutator._objects,
    Fields: Mutator._fields,
    Dtype: Mutator._dtype,
    Name: Mutator._named,
    Instance: Mutator._named,
    Coded: Mutator._named,
    Ref: Mutator._ref,
}
_KEYS = [
    "int", "float", "complex", "bytes", "packed", "list", "tuple", "set", "frozenset", "dict",
    "pairs", "array", "array_f", "strings", "objects", "fields", "scalar", "slice", "range",
    "dtype", "name", "object", "coded", "ref", "none",
]  # fmt: skip


def _is_json(value: Any) -> bool:
    return value is None or type(value) in {bool, int, str, list, dict}


def _safetensors_name(dtype: "np.dtype[Any]") -> str:
    return {"b": "BOOL"}.get(dtype.kind, f"{dtype.kind.upper()}{8 * dtype.itemsize}")


def with_hash(raw: bytes) -> bytes:
    """Return a file with the right SHA-256 in its place, if there is one."""
    place = _START.search(raw)
    if place is None:
        return raw
    at = place.end()
    blank = raw[:at] + b"0" * 64 + raw[at + 64 :]
    return raw[:at] + hashlib.sha256(blank).hexdigest().encode() + raw[at + 64 :]


def _sample(tree: Any) -> list[Any]:
    """Return the nodes of a tree that are no atoms, at most a few dozen."""
    objects, stack = [], [tree]
    while stack:
        node = stack.pop()
        if slots(node) or type(node) in {Array, Name, Ref}:
            objects.append(node)
            stack.extend(slots(node))
    return objects[:: max(1, len(objects) // 60)]
