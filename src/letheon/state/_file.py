"""Files of letheon: safetensors files with a manifest in their metadata.

The header's ``__metadata__`` has the single key ``letheon``. Its value is a JSON text with, in this
order, ``format``, ``sha256``, ``kind``, ``versions`` and ``tree``. The SHA-256 is computed over the
whole file with 64 zeros in place of the hash, so it detects every changed byte in header, padding
and tensors. The same value gives the same bytes.

In the tree null, true, false, strings and integers below 2**53 are plain JSON; everything else is
an object with one key for its type. Bytes and arrays are stored in tensors: from 4,096 bytes on in
a separate tensor (``"t0"``, ``"t1"``, ...), smaller ones one after the other in the tensor
``small`` (``[begin, size]``). A float is written as its 8 bytes, little-endian, in hexadecimal.
"""

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import (
    CorruptFileError,
    MemoryLimitError,
    NewerFormatError,
    StateError,
    UnsupportedStateError,
)
from letheon.state import _nodes as nodes
from letheon.state._bytes import (
    TreeReader,
    from_bytes,
    require_increasing,
    to_bytes,
    to_parts,
    write_atomically,
)
from letheon.state._decode import Trusted, audit, construct, names_of_trusted, verify_body
from letheon.state._encode import FORMAT, environment, to_tree
from letheon.state._nodes import Buffer, MemoryBudget, Node, check_shape

_ZEROS = "0" * 64
_START = re.compile(
    rb'\{"__metadata__":\{"letheon":"\{\\"format\\":\\"letheon-v(\d{1,9})\\",\\"sha256\\":\\"'
)
_BEGIN = b'{"__metadata__":{"letheon":"'
_CHECKPOINT = b"letheon-state-v"
_NONCE_BYTES = 32
_THIS = int(FORMAT.removeprefix("letheon-v"))
# The format of safetensors allows 100 MB.
_MAX_HEADER = 90_000_000
_ITEMSIZES = {
    "F64": 8, "F32": 4, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
SMALL = "small"
_SMALL_BELOW = 4096
_EXACT_INT = 1 << 53
_PACK_ABOVE = 256
# dtypes that have a name in the safetensors format; others are stored as bytes.
_NATIVE = {
    "<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1",
}  # fmt: skip
_ATOMS = frozenset({type(None), bool, int, float, str})


@dataclass(frozen=True)
class Contents:
    """A verified file; its value is not built yet.

    Parameters
    ----------
    name : str
        Name of the file, for messages.
    format : str
        Format of the file.
    kind : str
        Kind of content, as the writer stated it.
    versions : dict
        Versions of the libraries with which the file was written.
    tree : Node
        The content of the file.
    size : int
        Size of the file in bytes.
    budget : MemoryBudget
        Counter of the memory that reading has taken so far, and its limit.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from letheon.state import read_contents, write_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder, "value"), [1, 2])
    ...     contents = read_contents(Path(folder, "value"))
    >>> contents.build(trusted=())
    [1, 2]
    """

    name: str
    format: str
    kind: str
    versions: dict[str, str]
    tree: Node
    size: int
    budget: MemoryBudget = field(repr=False, compare=False)

    def build(self, trusted: Trusted) -> Any:
        """Audit the names and settings in the file, and build its value."""
        names = names_of_trusted(trusted)
        audit(self.tree, names)
        with _name_in_errors(self.name):
            return construct(self.tree, names, copy(self.budget))


def write_file(path: str | os.PathLike[str], value: Any, *, kind: str = "value") -> None:
    """Write a value to a file; if this fails, no partial file remains.

    Parameters
    ----------
    path : str or path-like
        The file; an existing file is replaced.
    value : object
        Anything that has canonical bytes.
    kind : str, default="value"
        Kind of content, which `read_contents` returns.

    Raises
    ------
    UnsupportedStateError
        If something in the value has no canonical bytes.
    OSError
        If the file cannot be written; an existing file is not changed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from letheon.state import read_file, write_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder, "value"), {"a": [1, 2]})
    ...     read_file(Path(folder, "value"))
    {'a': [1, 2]}
    """
    raw = _serialise_tree(to_tree(value), kind)
    place = _START.match(raw, 8)
    assert place is not None
    digest = hashlib.sha256(raw).hexdigest().encode()
    view = memoryview(raw)
    try:
        write_atomically(Path(path), [view[: place.end()], digest, view[place.end() + 64 :]])
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        reason = "the directory to write into does not exist" if is_missing else error.strerror
        # Name the caller's path; OSError selects the subclass for the error number.
        raise OSError(error.errno, reason, os.fspath(path)) from None


def _serialise_tree(tree: Node, kind: str) -> bytes:
    """Return the bytes of the file of a tree, with zeros in place of its hash."""
    from safetensors.numpy import save

    tensors = Tensors()
    content: dict[str, Any] = {"format": FORMAT, "sha256": _ZEROS, "kind": kind}
    content |= {"versions": environment(), "tree": to_json(tree, tensors)}
    manifest = json.dumps(content, separators=(",", ":"), allow_nan=False)
    if len(manifest) > _MAX_HEADER:
        raise UnsupportedStateError(
            "the value has too many small parts for one file; store them in arrays"
        )
    return save(tensors.to_arrays(), metadata={"letheon": manifest})


def read_file(
    path: str | os.PathLike[str], *, trusted: Trusted = (), max_memory: int | None = None
) -> Any:
    """Return the value in a file.

    Parameters
    ----------
    path : str or path-like
        The file.
    trusted : iterable of class, function or str
        Classes and functions, or their qualified names, that may be used in addition to those of
        letheon and scikit-learn.
    max_memory : int, optional
        Limit on the memory for reading, in bytes. By default 64 MiB plus 4 times the size of the
        file, or plus 16 times the size for the compiled forest.

    Returns
    -------
    object

    Raises
    ------
    CorruptFileError
        If the file is truncated, altered, or not a letheon file.
    MemoryLimitError
        If reading would take more memory than `max_memory`; nothing was allocated.
    NewerFormatError
        If a later version of letheon wrote the file.
    UntrustedClassError
        If the file names a class that is not allowed; nothing was imported.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from letheon.state import read_file, write_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder, "value"), (1, "two"))
    ...     read_file(Path(folder, "value"))
    (1, 'two')
    """
    return read_contents(path, max_memory=max_memory).build(trusted)


@contextmanager
def _name_in_errors(name: str) -> Iterator[None]:
    """Add the name of the file to the text of a MemoryLimitError in the block."""
    try:
        yield
    except MemoryLimitError as error:
        raise MemoryLimitError(f"{name}: {error}") from None


def read_contents(
    path: str | os.PathLike[str] | BinaryIO, *, max_memory: int | None = None
) -> Contents:
    """Read and verify a file without importing anything or building its value.

    `path` is the name of a file, or an open file. `max_memory` is the same as for `read_file`.

    Parameters
    ----------
    path : str, path-like or open file
        The file.
    max_memory : int, optional
        Limit on the memory for reading, in bytes.

    Returns
    -------
    Contents

    Raises
    ------
    CorruptFileError
        If the file is truncated, altered, or not a letheon file.
    MemoryLimitError
        If reading would take more memory than `max_memory`; nothing was allocated.
    NewerFormatError
        If a later version of letheon wrote the file.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from letheon.state import read_contents, write_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder, "value"), [1, 2], kind="numbers")
    ...     read_contents(Path(folder, "value")).kind
    'numbers'
    """
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else "the file"
    with _name_in_errors(name):
        file = Path(path) if isinstance(path, str | os.PathLike) else BytesIO(path.read())
        size = file.stat().st_size if isinstance(file, Path) else len(file.getvalue())
        budget = MemoryBudget(size, max_memory)
        budget.take(size, "the file")
        raw = file.read_bytes() if isinstance(file, Path) else file.getvalue()
        place = _START.match(raw, 8)
        is_blob = raw[_NONCE_BYTES:].startswith(_CHECKPOINT)
        if place is None and not is_blob:
            raise CorruptFileError(f"{name}: {_describe_other(raw)}")
        try:
            if place is None:
                return _parse_blob(raw, budget, name)
            _verify_hash(raw, place)
            return _parse_contents(raw, budget, name)
        except MemoryLimitError:
            raise
        except CorruptFileError as error:
            reason = f"{name}: {error}; restore the file from a copy"
            raise CorruptFileError(reason) from error.__cause__
        except NewerFormatError as error:
            raise NewerFormatError(f"{name}: {error}") from None


def _parse_blob(raw: bytes, budget: MemoryBudget, name: str) -> Contents:
    """Return the content of a file of a ledger: a nonce and canonical bytes, without versions."""
    tree = from_bytes(verify_body(memoryview(raw)[_NONCE_BYTES:]), budget)
    return Contents(name, FORMAT, "model", {}, tree, len(raw), budget)


def _verify_hash(raw: bytes, place: re.Match[bytes]) -> None:
    """Raise an error if the format is newer or the hash does not match; `place` is the start."""
    if int(place[1]) != _THIS:
        raise NewerFormatError(
            f"the file has the format letheon-v{int(place[1])}, but this version of letheon reads "
            f"only {FORMAT}; install a newer version of letheon"
        )
    at = place.end()
    hasher = hashlib.sha256(raw[:at] + _ZEROS.encode())
    hasher.update(memoryview(raw)[at + 64 :])
    if hasher.hexdigest().encode() != raw[at : at + 64]:
        raise CorruptFileError("the file is truncated or altered: its SHA-256 does not match")


def _describe_other(raw: bytes) -> str:
    """Describe a file that `write_file` did not write, and say what to do about it."""
    if not raw:
        return "the file is empty; restore it from a copy"
    if raw.startswith(_CHECKPOINT):
        return "this is a checkpoint, not a model file; load the file that letheon.save wrote"
    if raw[:1] == b"\x80" or raw[:2] == b"PK":
        return "this is not a letheon file but a pickle or zip file, which letheon never opens"
    start = raw[8 : 8 + len(_BEGIN)]
    if start and _BEGIN.startswith(start):
        return "the file is truncated or its header was altered; restore the file from a copy"
    if start.startswith(b"{"):
        return "this is not a letheon file but a safetensors file without a letheon manifest"
    return "this is not a letheon file"


def _parse_contents(raw: bytes, budget: MemoryBudget, name: str) -> Contents:
    try:
        begin = 8 + int.from_bytes(raw[:8], "little")
        _require_valid(begin <= len(raw) and begin - 8 <= _MAX_HEADER, "the length of the header")
        text = raw[8:begin]
        temporary = json_memory(text)
        budget.take(temporary, "the header")
        load = partial(json.loads, object_pairs_hook=_reject_duplicates)
        header = load(text)
        manifest = load(header.pop("__metadata__")["letheon"])
        tensors = _locate_tensors(header, memoryview(raw)[begin:])
        contents = Contents(
            name=name,
            format=manifest["format"],
            kind=manifest["kind"],
            versions={str(k): str(v) for k, v in manifest["versions"].items()},
            tree=_ManifestReader(tensors, budget).read_value(manifest["tree"]),
            size=len(raw),
            budget=budget,
        )
        budget.give_back(temporary)
        return contents
    except StateError:
        raise
    except RecursionError:
        raise CorruptFileError("the manifest is nested too deeply") from None
    except (ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        raise CorruptFileError(f"the manifest is not valid: {error!r}") from error


def _locate_tensors(header: dict[str, Any], data: memoryview) -> dict[str, memoryview]:
    """Return the bytes of every tensor by name; reject gaps between tensors and overlaps."""
    tensors, end = {}, 0
    places = sorted((tuple(entry["data_offsets"]), name) for name, entry in header.items())
    for (begin, after), name in places:
        entry = header[name]
        _require_valid(entry.keys() == {"dtype", "shape", "data_offsets"}, name)
        _require_valid(type(begin) is type(after) is int and end == begin <= after, name)
        _require_valid(
            check_shape(entry["shape"], _ITEMSIZES[entry["dtype"]]) == after - begin, name
        )
        tensors[name] = data[begin:after]
        end = after
    _require_valid(end == len(data), "the size of the tensors")
    return tensors


def _require_valid(condition: bool, label: str) -> None:
    if not condition:
        raise CorruptFileError(f"the manifest is not valid; wrong part: {label}")


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise CorruptFileError("the manifest has a duplicate key")
    return values


class Tensors:
    """The tensors of a file, which contain the bytes and arrays of a tree."""

    def __init__(self) -> None:
        self.small = bytearray()
        self.big: dict[str, NDArray[Any]] = {}

    def add(self, data: Buffer, dtype: str = "|u1", shape: tuple[int, ...] = (-1,)) -> Any:
        """Store bytes, and return their location: a tensor name, or [begin, size] in `small`."""
        if len(data) < _SMALL_BELOW:
            begin = len(self.small)
            self.small += data
            return [begin, len(data)]
        name = f"t{len(self.big)}"
        array = np.frombuffer(data, dtype if dtype in _NATIVE else "|u1")
        self.big[name] = array.reshape(shape) if dtype in _NATIVE else array
        return name

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all tensors by name."""
        return {SMALL: np.frombuffer(self.small, np.uint8), **self.big}


def to_json(node: Any, tensors: Tensors) -> Any:
    """Convert a tree to JSON values; add its bytes and arrays to `tensors`."""
    if node is None or type(node) in {bool, str}:
        return node
    write = _ATOM_WRITERS.get(type(node))
    if write is not None:
        return write(node, tensors)
    if _is_packed(node):
        return {"packed": tensors.add(to_bytes(node))}
    layout = nodes.layout_of(node)
    if type(node) is nodes.Array:
        return {layout.key: [node.dtype, list(node.shape), tensors.add(node.data, *node[:2])]}
    parts = zip(layout.parts, layout.values(node), strict=True)
    values = [_PART_WRITERS[part](value, tensors) for part, value in parts]
    return {layout.key: values[0] if len(values) == 1 else values}


def _is_packed(node: Any) -> bool:
    """Return whether a node is written as canonical bytes instead of JSON.

    Long lists are, because the JSON header of a file has a size limit. Reading the bytes also takes
    less memory, for example half as much for a vocabulary.
    """
    if type(node) not in {nodes.Items, nodes.Objects, nodes.Record}:
        return False
    is_long = len(node.items) > _PACK_ABOVE
    return is_long and all(type(value) in _ATOMS for value in nodes.children(node))


def _list_to_json(values: tuple[Any, ...], tensors: Tensors) -> list[Any]:
    return [to_json(value, tensors) for value in values]


Writer = Callable[[Any, Tensors], Any]
_ATOM_WRITERS: dict[type, Writer] = {
    int: lambda value, _: value if abs(value) < _EXACT_INT else {"int": hex(value)},
    float: lambda value, _: {"float": struct.pack("<d", value).hex()},
    complex: lambda value, _: {"complex": struct.pack("<dd", value.real, value.imag).hex()},
    bytes: lambda value, tensors: {"bytes": tensors.add(value)},
}
_PART_WRITERS: dict[str, Writer] = {
    **dict.fromkeys(("number", "text", "class_name"), lambda value, _: value),
    **dict.fromkeys(("node", "lengths", "state"), to_json),
    **dict.fromkeys(("items", "keys"), _list_to_json),
    "shape": lambda shape, _: list(shape),
    "own_bytes": lambda data, tensors: tensors.add(data),
    "record": lambda items, tensors: {key: to_json(value, tensors) for key, value in items},
    "pairs": lambda items, tensors: [_list_to_json(pair, tensors) for pair in items],
}


def json_memory(text: bytes) -> int:
    """Return an upper bound on the memory for parsing a JSON text, its copy and its values."""
    wide = 4 if b"\\u" in text else 1
    names = text.count(b":")
    values = names + text.count(b",") + text.count(b"[")
    strings = text.count(b'"') // 2
    containers = 96 * text.count(b"[") + 240 * text.count(b"{")
    return (2 + wide) * len(text) + containers + 128 * names + 40 * values + 56 * strings


class _ManifestReader(TreeReader):
    """A reader of nodes from parsed JSON; `pending` is the stack of values to read next."""

    def __init__(self, tensors: Mapping[str, memoryview], budget: MemoryBudget) -> None:
        super().__init__(budget)
        self.tensors = tensors
        self.pending: list[Any] = []

    def read_value(self, value: Any) -> Any:
        """Convert a JSON value to a node."""
        self.pending.append(value)
        return self.read_node()

    def read_node(self) -> Any:
        value = self.pending.pop()
        if value is None or type(value) in {bool, str}:
            return value
        if type(value) is int:
            _require_valid(abs(value) < _EXACT_INT, "an integer")
            return value
        _require_valid(type(value) is dict and len(value) == 1, "a value")
        key, content = next(iter(value.items()))
        self.budget.take(nodes.CONTAINER, "its values")
        layout = nodes.LAYOUT_OF_KEY.get(key)
        if layout is None:
            self.pending.append(content)
            return _ATOM_READERS[key](self)
        values = [content] if len(layout.parts) == 1 else content
        _require_valid(type(values) is list and len(values) == len(layout.parts), f"the {key}")
        self.pending.extend(reversed(values))
        return self._read_parts(layout)

    def _read_data(self) -> memoryview:
        where = self.pending.pop()
        if type(where) is str:
            return self.tensors[where]
        begin, size = where
        small = self.tensors[SMALL]
        _require_valid(
            _is_count(begin) and _is_count(size) and begin + size <= len(small), "a place"
        )
        return small[begin : begin + size]

    def _pop_value(self, kind: type, label: str) -> Any:
        value = self.pending.pop()
        _require_valid(type(value) is kind, label)
        return value

    def read_number(self) -> int:
        value = self._pop_value(int, "a number")
        _require_valid(value >= 0, "a number")
        return value  # type: ignore[no-any-return]

    def read_text(self) -> str:
        return self._pop_value(str, "a name")  # type: ignore[no-any-return]

    def read_shape(self) -> tuple[int, ...]:
        shape = self._pop_value(list, "a shape")
        _require_valid(len(shape) <= nodes.MAX_DIMENSIONS and all(map(_is_count, shape)), "a shape")
        return tuple(shape)

    def read_items(self, cost: int = nodes.ITEM) -> tuple[Any, ...]:
        values = self._pop_value(list, "a list")
        self.budget.take(nodes.CONTAINER + cost * len(values), "its values")
        return tuple([self.read_value(value) for value in values])

    def read_keys(self) -> tuple[Any, ...]:
        items = self.read_items(nodes.SET_ITEM)
        require_increasing([self._key_bytes(item) for item in items])
        return items

    def _key_bytes(self, node: Any) -> bytes:
        """Return the canonical bytes of a key, and count their memory."""
        parts = to_parts(node)
        self.budget.take(nodes.ATOM + sum(map(len, parts)), "keys")
        return b"".join(parts)

    def read_record(self) -> tuple[tuple[str, Any], ...]:
        values = self._pop_value(dict, "a dict")
        self.budget.take(nodes.RECORD_ITEM * len(values), "a dict")
        require_increasing(list(values))
        return tuple([(key, self.read_value(value)) for key, value in values.items()])

    def read_pairs(self) -> tuple[tuple[Any, Any], ...]:
        values = self._pop_value(list, "a dict")
        self.budget.take(nodes.PAIRS_ITEM * len(values), "a dict")
        pairs = []
        for value in values:
            self.pending.append(value)
            pairs.append(self.read_items())
        _require_valid(all(len(pair) == 2 for pair in pairs), "a pair")
        require_increasing([self._key_bytes(key) for key, _ in pairs])
        return tuple([(key, value) for key, value in pairs])


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _read_int(reader: _ManifestReader) -> int:
    text = reader.read_text()
    number = int(text, 16)
    _require_valid(abs(number) >= _EXACT_INT and hex(number) == text, "an integer")
    return number


_ATOM_READERS: dict[str, Callable[[_ManifestReader], Any]] = {
    "int": _read_int,
    "float": lambda reader: struct.unpack("<d", bytes.fromhex(reader.read_text()))[0],
    "complex": lambda reader: complex(*struct.unpack("<dd", bytes.fromhex(reader.read_text()))),
    "bytes": _ManifestReader.read_own_bytes,
    "packed": lambda reader: from_bytes(reader._read_data(), reader.budget),
}
