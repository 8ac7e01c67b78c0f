"""Canonical bytes of a tree, and atomic writing of files.

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
``A``  array                as ``a``; stored in Fortran order in memory (never in a digest)
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

The encoding is injective: a tag determines how to read the rest, and every variable part starts
with its length. The reader rejects parts that are not sorted, so a tree has only one encoding. It
does not trust the bytes.
"""

import contextlib
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from sys import getsizeof, intern
from typing import Any

from letheon.exceptions import CorruptFileError, StateError
from letheon.state import _nodes as nodes
from letheon.state._nodes import Buffer, MemoryBudget, Node, layout_of

_N = struct.Struct("<Q")
_TAG_N = struct.Struct("<cQ")
_FLOAT = struct.Struct("<cd")
_OUT_OF_ORDER = "not canonical bytes: keys out of order or repeated"
_BIG = 1 << 16
_PIECE = 1 << 16
_COPY_BELOW = 512
_VIEW = 240

Parts = list[Any]


def to_bytes(node: Node) -> bytes:
    """Return the canonical bytes of a tree.

    Parameters
    ----------
    node : Node
        A tree, as `to_tree` returns it.

    Returns
    -------
    bytes

    Examples
    --------
    >>> from letheon.state import to_bytes, to_tree
    >>> to_bytes(to_tree({1, 2})) == to_bytes(to_tree({2, 1}))
    True
    """
    return b"".join(to_parts(node))


def to_parts(node: Node) -> Parts:
    """Return the canonical bytes of a tree as a list of parts; arrays are not copied."""
    parts: Parts = []
    _write(node, parts)
    return parts


def iter_chunks(node: Node) -> Iterator[Buffer]:
    """Yield the canonical bytes of a tree in chunks; large arrays are not copied."""
    parts = to_parts(node)
    begin = 0
    for i, part in enumerate(parts):
        if len(part) >= _BIG:
            yield b"".join(parts[begin:i])
            yield part
            begin = i + 1
    yield b"".join(parts[begin:])


def text_bytes(text: str) -> bytes:
    """Return a str in UTF-8; lone surrogates are allowed and take three bytes each."""
    return text.encode("utf-8", "surrogatepass")


def _write(node: Any, parts: Parts) -> None:
    write = _WRITERS.get(type(node))
    if write is not None:
        write(node, parts)
        return
    layout = layout_of(node)
    parts.append(layout.tag)
    for part, value in zip(layout.parts, layout.values(node), strict=True):
        _PART_WRITERS[part](value, parts)


def _write_int(value: int, parts: Parts) -> None:
    size = value.bit_length() // 8 + 1
    parts.append(_TAG_N.pack(b"i", size) + value.to_bytes(size, "little", signed=True))


def _pack_text(value: str) -> bytes:
    data = text_bytes(value)
    return _N.pack(len(data)) + data


def _pack_shape(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f"<Q{len(shape)}Q", len(shape), *shape)


def _write_buffer(value: Buffer, parts: Parts) -> None:
    parts += (_N.pack(len(value)), value)


def _write_array(node: nodes.Array, parts: Parts) -> None:
    head = (b"A" if node.fortran else b"a") + _pack_text(node.dtype) + _pack_shape(node.shape)
    parts += (head + _N.pack(len(node.data)), node.data)


def _write_items(values: tuple[Any, ...], parts: Parts, tag: bytes = b"") -> None:
    parts.append(tag + _N.pack(len(values)))
    for value in values:
        # Directly, since there may be many plain values.
        _WRITERS.get(type(value), _write)(value, parts)


def _write_record(node: nodes.Record, parts: Parts) -> None:
    parts.append(_TAG_N.pack(b"m", len(node.items)))
    for key, value in node.items:
        parts.append(_pack_text(key))
        _WRITERS.get(type(value), _write)(value, parts)


def _write_pairs(items: tuple[tuple[Any, Any], ...], parts: Parts) -> None:
    parts.append(_N.pack(len(items)))
    for key, value in items:
        _write(key, parts)
        _write(value, parts)


Writer = Callable[[Any, Parts], None]
# Plain values and the most frequent nodes; all other nodes are written by their layout.
_WRITERS: dict[type, Writer] = {
    type(None): lambda _, parts: parts.append(b"N"),
    bool: lambda value, parts: parts.append(b"T" if value else b"F"),
    int: _write_int,
    float: lambda value, parts: parts.append(_FLOAT.pack(b"d", value)),
    complex: lambda value, parts: parts.append(struct.pack("<cdd", b"c", value.real, value.imag)),
    str: lambda value, parts: parts.append(b"s" + _pack_text(value)),
    bytes: lambda value, parts: parts.extend((_TAG_N.pack(b"b", len(value)), value)),
    nodes.Items: lambda node, parts: _write_items(node.items, parts, layout_of(node).tag),
    nodes.Record: _write_record,
    nodes.Array: _write_array,
}
_PART_WRITERS: dict[str, Writer] = {
    "number": lambda value, parts: parts.append(_N.pack(value)),
    "shape": lambda value, parts: parts.append(_pack_shape(value)),
    "own_bytes": _write_buffer,
    "items": _write_items,
    "pairs": _write_pairs,
    **dict.fromkeys(("text", "class_name"), lambda value, parts: parts.append(_pack_text(value))),
    **dict.fromkeys(("node", "lengths", "state"), _write),
}


def from_bytes(data: Buffer, budget: MemoryBudget) -> Node:
    """Read a tree from its canonical bytes.

    Raises
    ------
    CorruptFileError
        If the bytes are not exactly the canonical bytes of one tree.
    MemoryLimitError
        If the tree and its value would take more memory than the budget allows.
    """
    reader = _BytesReader(data, budget)
    try:
        node: Node = reader.read_node()
    except StateError:
        raise
    except RecursionError:
        raise CorruptFileError("not canonical bytes: the tree is nested too deeply") from None
    except (struct.error, ValueError, OverflowError, IndexError) as error:
        raise CorruptFileError(f"not canonical bytes: {error}") from None
    if reader.position != len(reader.data):
        raise CorruptFileError(
            "not canonical bytes: there are more bytes after the end of the tree"
        )
    return node


class TreeReader:
    """Base class of the readers of bytes and manifests; they count the memory of what they read.

    For each part that `nodes.LAYOUTS` names there is a method `read_<part>`.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.depth = 0

    def read_node(self) -> Any:
        """Read the next node."""
        raise NotImplementedError

    def read_text(self) -> str:
        """Read the next text."""
        raise NotImplementedError

    def _read_data(self) -> memoryview:
        raise NotImplementedError

    def _read_parts(self, layout: nodes.Layout) -> Any:
        self.depth += 1
        if self.depth > 3 * nodes.MAX_DEPTH:
            raise CorruptFileError("the tree is not canonical: it is nested too deeply")
        values = []
        for part in layout.parts:  # a comprehension would be one more frame for each node
            values += [getattr(self, f"read_{part}")()]
        node = layout.make(*values)
        self.depth -= 1
        return node

    def _read_kind(self, kind: type) -> Any:
        node = self.read_node()
        if type(node) is not kind:
            raise CorruptFileError(
                f"the tree is not canonical: expected a node of type {kind.__name__}"
            )
        return node

    def read_dtype(self) -> str:
        """Read the name of a dtype."""
        return intern(self.read_text())

    def read_class_name(self) -> str:
        """Read the name of an object's class."""
        self.budget.take(nodes.INSTANCE, "an object")
        return self.read_text()

    def read_buffer(self) -> Buffer:
        """Read the bytes of an array.

        Small arrays are copied, because a view would take more memory.
        """
        data = self._read_data()
        is_small = len(data) < _COPY_BELOW
        self.budget.take(nodes.ARRAY + (len(data) if is_small else _VIEW), "an array")
        return bytes(data) if is_small else data

    def read_own_bytes(self) -> bytes:
        """Read bytes, and return a copy of them."""
        data = self._read_data()
        self.budget.take(nodes.ATOM + len(data), "bytes")
        return bytes(data)

    def read_lengths(self) -> nodes.Array:
        """Read the array with the byte lengths of strings."""
        return self._read_kind(nodes.Array)  # type: ignore[no-any-return]

    def read_state(self) -> nodes.Record:
        """Read the attributes of an object."""
        record: nodes.Record = self._read_kind(nodes.Record)
        self.budget.take(nodes.RECORD_ITEM * len(record.items) // 2, "an object")
        return record


class _BytesReader(TreeReader):
    """A reader of nodes from canonical bytes."""

    def __init__(self, data: Buffer, budget: MemoryBudget) -> None:
        super().__init__(budget)
        self.data = memoryview(data)
        self.position = 0

    def read_node(self) -> Any:
        tag = self.data[self.position]
        self.position += 1
        layout = nodes.LAYOUT_OF_TAG.get(tag)
        if layout is not None:
            self.budget.take(layout.cost, "its values")
            return self._read_parts(layout)
        if tag not in _ATOM_READERS:
            raise CorruptFileError(f"not canonical bytes: unknown tag {tag}")
        return _ATOM_READERS[tag](self)

    def _read_bytes(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self.data):
            raise CorruptFileError("not canonical bytes: the data is truncated")
        part = self.data[self.position : end]
        self.position = end
        return part

    def _read_data(self) -> memoryview:
        return self._read_bytes(self.read_number())

    def _read_count(self, cost: int) -> int:
        """Read the number of the following items.

        An item takes at least one byte here and `cost` bytes in memory, so the number is limited.
        """
        value = self.read_number()
        if value > len(self.data) - self.position:
            raise CorruptFileError(
                "not canonical bytes: a count is larger than the number of remaining bytes"
            )
        self.budget.take(value * cost, "its values")
        return value

    def _iter_keys(self, cost: int) -> Iterator[Any]:
        """Yield the keys that follow; raise an error if their bytes are not increasing."""
        previous = None
        for _ in range(self._read_count(cost)):
            begin = self.position
            node = self.read_node()
            data = self.data[begin : self.position]
            if previous is not None and not _is_less(previous, data):
                raise CorruptFileError(_OUT_OF_ORDER)
            previous = data
            yield node

    def read_number(self) -> int:
        value: int = _N.unpack_from(self.data, self.position)[0]
        self.position += 8
        return value

    def read_text(self) -> str:
        # A single wide character makes all characters of a str wide.
        data = self._read_data()
        most = nodes.TEXT + 4 * len(data)
        self.budget.take(most, "a text")
        text = str(data, "utf-8", "surrogatepass")
        self.budget.give_back(most - (getsizeof(text) + 15) // 16 * 16)
        return text

    def read_shape(self) -> tuple[int, ...]:
        n = self.read_number()
        if n > nodes.MAX_DIMENSIONS:
            raise CorruptFileError(
                f"not canonical bytes: {n} dimensions, more than {nodes.MAX_DIMENSIONS}"
            )
        self.budget.take(nodes.ATOM * n, "a shape")
        return struct.unpack(f"<{n}Q", self._read_bytes(8 * n))

    def read_items(self) -> tuple[Any, ...]:
        self.budget.take(nodes.CONTAINER, "its values")
        return tuple([self.read_node() for _ in range(self._read_count(nodes.ITEM))])

    def read_keys(self) -> tuple[Any, ...]:
        self.budget.take(nodes.CONTAINER, "its values")
        return tuple(self._iter_keys(nodes.SET_ITEM))

    def read_record(self) -> tuple[tuple[str, Any], ...]:
        count = self._read_count(nodes.RECORD_ITEM)
        items = tuple([(self.read_text(), self.read_node()) for _ in range(count)])
        require_increasing([key for key, _ in items])
        return items

    def read_pairs(self) -> tuple[tuple[Any, Any], ...]:
        return tuple([(key, self.read_node()) for key in self._iter_keys(nodes.PAIRS_ITEM)])


def _is_less(a: memoryview, b: memoryview) -> bool:
    """Return whether `a` comes before `b`.

    They are compared in pieces, because a copy of a long key could be as large as the file.
    """
    for at in range(0, max(len(a), len(b)), _PIECE):
        left, right = bytes(a[at : at + _PIECE]), bytes(b[at : at + _PIECE])
        if left != right:
            return left < right
    return False


def require_increasing(keys: list[Any]) -> None:
    """Raise CorruptFileError if keys are not sorted or a key is repeated."""
    if any(a >= b for a, b in pairwise(keys)):
        raise CorruptFileError(_OUT_OF_ORDER)


def _read_int(reader: _BytesReader) -> int:
    data = reader._read_data()
    # Digits of 30 bits, in steps of 16 bytes.
    reader.budget.take((39 + 4 * (8 * len(data) // 30 + 1)) // 16 * 16, "an int")
    value = int.from_bytes(data, "little", signed=True)
    if value.bit_length() // 8 + 1 != len(data):
        raise CorruptFileError("not canonical bytes: an int has more bytes than it needs")
    return value


def _read_floats(reader: _BytesReader, count: int) -> tuple[float, ...]:
    reader.budget.take(nodes.ATOM, "a number")
    return struct.unpack(f"<{count}d", reader._read_bytes(8 * count))


_ATOM_READERS: dict[int, Callable[[_BytesReader], Any]] = {
    ord("N"): lambda _: None,
    ord("T"): lambda _: True,
    ord("F"): lambda _: False,
    ord("i"): _read_int,
    ord("d"): lambda reader: _read_floats(reader, 1)[0],
    ord("c"): lambda reader: complex(*_read_floats(reader, 2)),
    ord("s"): _BytesReader.read_text,
    ord("b"): _BytesReader.read_own_bytes,
}


def write_atomically(path: Path, pieces: Iterable[Buffer]) -> None:
    """Write a file so that a crash leaves either the old or the new file, but no partial file.

    The bytes are written and synced to a temporary file in the same directory, which only its owner
    can read. Then the file is renamed, and the directory is synced. If writing fails, the temporary
    file is removed.

    Parameters
    ----------
    path : Path
        The file; an existing file is replaced.
    pieces : iterable of bytes
        Its content.

    Raises
    ------
    OSError
        The file cannot be written; an existing file is not changed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from letheon.state import write_atomically
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder, "file"), [b"first ", b"second"])
    ...     Path(folder, "file").read_bytes()
    b'first second'
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.partial")
    try:
        _write_file(temporary, pieces)
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename is not None:
            error.filename = str(path)  # not the temporary file
        raise
    sync_directory(path.parent)


def _write_file(path: Path, pieces: Iterable[Buffer]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while len(rest) > 0:
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Sync a directory to disk, so that added and removed files survive a crash.

    Parameters
    ----------
    path : Path
        The directory.

    Raises
    ------
    OSError
        The directory does not exist, or cannot be synced.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from letheon.state import sync_directory
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sync_directory(Path(folder))
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
