"""Conversion of NumPy arrays, scalars and dtypes to nodes and back.

A node has the values, dtype and shape of an array. In files it also states whether the array is in
Fortran order, because a matrix product then rounds differently. It does not state byte order
(always little-endian), strides, flags or base. An array that is read has new, writable memory.
"""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import CorruptFileError, StateError, UnsupportedStateError
from letheon.state import _nodes as nodes
from letheon.state._bytes import text_bytes
from letheon.state._nodes import Array, MemoryBudget, Node, check_shape

# Arrays of more bytes are passed on as a view instead of a copy.
_COPY_BELOW = 1 << 14
_PLAIN_KINDS = frozenset("biufcmMSV")
_PLAIN = re.compile(r"[<|][biufcSV][1-9]\d{0,8}|<[mM]8(\[\d{0,9}[a-zA-Zμ]{1,2}\])?", re.ASCII)
_TEXT = re.compile(r"<U\d{1,9}", re.ASCII)
# NumPy keeps offsets and sizes of fields in C ints.
_MAX_ITEMSIZE = (1 << 31) - 1
_MAX_FIELDS = 10_000
_CHUNK = 1024

Convert = Callable[[Any], Any]


def array_node(array: NDArray[Any], to_node: Convert) -> Node:
    """Convert an array to a node; `to_node` converts the items of an object array."""
    dtype = array.dtype
    if dtype.names is not None:
        columns = [array_node(array[name], _no_objects) for name in dtype.names]
        return nodes.Fields(dtype_descr(dtype), array.shape, tuple(columns))
    if dtype.kind == "U":
        return _strings_node(array)
    if dtype.kind == "O":
        return nodes.Objects(array.shape, tuple([to_node(item) for item in array.ravel().tolist()]))
    return _plain_node(array)


def _plain_node(array: NDArray[Any]) -> Array:
    dtype = plain_descr(array.dtype)
    if array.dtype.kind == "b":
        # In a view of other memory, True may be a byte other than 1.
        array = array.view(np.uint8) != 0
    elif array.dtype.str != dtype:
        array = array.astype(dtype)
    fortran = array.ndim > 1 and array.flags.fnc
    if array.nbytes < _COPY_BELOW:
        return Array(dtype, array.shape, array.tobytes(), fortran)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Array(dtype, array.shape, flat.data, fortran)


def plain_descr(dtype: "np.dtype[Any]") -> str:
    """Return the little-endian name of a dtype without fields.

    Parameters
    ----------
    dtype : dtype
        The dtype.

    Returns
    -------
    str

    Raises
    ------
    UnsupportedStateError
        If the dtype is a long double, which contains undefined bytes, a string of variable width,
        or a type of size 0.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.state import plain_descr
    >>> plain_descr(np.dtype(">f8")), plain_descr(np.dtype(bool))
    ('<f8', '|b1')
    """
    name = dtype.newbyteorder("<").str
    if dtype.kind not in _PLAIN_KINDS or _PLAIN.fullmatch(name) is None or _is_long(dtype):
        raise UnsupportedStateError(
            f"an array of dtype {dtype} cannot be saved, because it has no canonical bytes"
        )
    return name


def _is_long(dtype: "np.dtype[Any]") -> bool:
    return dtype.itemsize > {"f": 8, "c": 16}.get(dtype.kind, dtype.itemsize)


def _strings_node(array: NDArray[Any]) -> nodes.Strings:
    try:
        texts: list[str] = array.ravel().tolist()
    except (ValueError, SystemError) as error:
        raise UnsupportedStateError(
            f"an array of str contains a str that is not valid: {error}"
        ) from None
    joined = "".join(texts)
    if joined.isascii():
        lengths, data = [len(text) for text in texts], joined.encode()
    else:
        encoded = [text_bytes(text) for text in texts]
        lengths, data = [len(text) for text in encoded], b"".join(encoded)
    sizes = np.array(lengths, dtype="<u4")
    return nodes.Strings(
        array.dtype.itemsize // 4, array.shape, Array("<u4", sizes.shape, sizes.tobytes()), data
    )


def _no_objects(_: Any) -> Any:
    raise UnsupportedStateError(
        "a structured array with object fields cannot be saved; use separate arrays"
    )


def dtype_descr(dtype: "np.dtype[Any]") -> Node:
    """Convert a dtype to a node.

    The node is the name of the dtype, or the tuple (itemsize, aligned, fields) if it has fields. A
    field is a tuple (name, dtype, offset, shape of a subarray).
    """
    if dtype.names is None or dtype.fields is None:
        if dtype.kind in "OU":
            return dtype.newbyteorder("<").str
        return plain_descr(dtype)
    if not dtype.names:
        raise UnsupportedStateError("a structured array without fields cannot be saved")
    fields, parts = [], []
    for name in dtype.names:
        inner, offset = dtype.fields[name][:2]
        base, shape = inner.subdtype or (inner, ())
        row = (name, dtype_descr(base), int(offset), nodes.Items("tuple", tuple(shape)))
        fields.append(nodes.Items("tuple", row))
        parts.append(_Field(name, base, int(offset), tuple(shape)))
    try:
        _check_layout(parts, dtype.itemsize)
    except CorruptFileError as error:
        raise UnsupportedStateError(
            f"a structured array with this dtype cannot be saved: {error}"
        ) from None
    head = (dtype.itemsize, dtype.isalignedstruct)
    return nodes.Items("tuple", (*head, nodes.Items("tuple", tuple(fields))))


def scalar_node(value: np.generic) -> Node:
    """Convert a NumPy scalar to a node."""
    if isinstance(value, np.str_):
        return nodes.Scalar(str(value))
    if isinstance(value, np.bytes_):
        return nodes.Scalar(bytes(value))
    return nodes.Scalar(array_node(np.asarray(value), _no_objects))


def array_from(node: Any, from_node: Convert, budget: MemoryBudget) -> NDArray[Any]:
    """Convert a node to an array in new memory, which counts against the budget.

    Raises
    ------
    CorruptFileError
        If dtype, shape and bytes do not match.
    MemoryLimitError
        If the array is larger than what is left of the budget.
    """
    try:
        return _ARRAY_READERS[type(node)](node, from_node, budget)
    except StateError:
        raise
    except (KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise CorruptFileError(
            f"the bytes of an array do not match its dtype and shape: {error}"
        ) from None


def _plain_from(node: Array, _: Convert, budget: MemoryBudget) -> NDArray[Any]:
    dtype = _plain_dtype(node.dtype)
    size = check_shape(node.shape, dtype.itemsize)
    _require_array(len(node.data) == size, "size of an array")
    budget.take(size, "an array")
    array = np.frombuffer(node.data, dtype).reshape(node.shape).copy("F" if node.fortran else "C")
    _require_array(not node.fortran or array.flags.fnc, "order of an array")
    if dtype.kind == "b":
        _require_array(
            size == 0 or array.view(np.uint8).max() <= 1, "a bool that is neither 0 nor 1"
        )
    return array


def _plain_dtype(name: str) -> "np.dtype[Any]":
    """Return the dtype with a name that `plain_descr` can return; reject other names."""
    dtype = np.dtype(name) if _PLAIN.fullmatch(name) else None
    if dtype is None or dtype.str != name or _is_long(dtype):
        raise CorruptFileError(f"an array has the dtype {name!r}, which is not allowed in a file")
    return dtype


def _strings_from(node: nodes.Strings, from_node: Convert, budget: MemoryBudget) -> NDArray[Any]:
    lengths = _plain_from(node.lengths, from_node, budget)
    size = check_shape(node.shape, 4 * node.width)
    count = math.prod(node.shape)
    _require_array(node.lengths.dtype == "<u4" and lengths.shape == (count,), "lengths of strings")
    _require_array(int(lengths.sum(dtype=np.uint64)) == len(node.text), "lengths of strings")
    _require_array(4 * node.width <= _MAX_ITEMSIZE, "width of strings")
    # The texts of a chunk exist twice for a moment.
    passing = 88 * min(count, _CHUNK) + min(size, 4 * len(node.text))
    budget.take(size + passing, "an array of strings")
    array = np.zeros(count, dtype=f"<U{node.width}")
    at = 0
    for begin in range(0, count, _CHUNK):
        texts = []
        for length in lengths[begin : begin + _CHUNK].tolist():
            text = str(node.text[at : at + length], "utf-8", "surrogatepass")
            _require_array(len(text) <= node.width and text[-1:] != "\0", "a string")
            texts.append(text)
            at += length
        array[begin : begin + _CHUNK] = texts
    budget.give_back(passing)
    return array.reshape(node.shape)


def _objects_from(node: nodes.Objects, from_node: Convert, budget: MemoryBudget) -> NDArray[Any]:
    size = check_shape(node.shape, 8)
    _require_array(size == 8 * len(node.items), "number of objects")
    budget.take(size, "an array of objects")
    flat = np.empty(len(node.items), dtype=object)
    for i, item in enumerate(node.items):
        flat[i] = from_node(item)
    return flat.reshape(node.shape)


def _fields_from(node: nodes.Fields, from_node: Convert, budget: MemoryBudget) -> NDArray[Any]:
    dtype = dtype_from(node.dtype)
    _require_array(dtype.names is not None and len(dtype.names) == len(node.columns), "fields")
    budget.take(check_shape(node.shape, dtype.itemsize), "a structured array")
    columns = [array_from(column, from_node, budget) for column in node.columns]
    fits = all(column.shape[: len(node.shape)] == node.shape for column in columns)
    _require_array(fits, "shape of a field")
    array = np.zeros(node.shape, dtype)
    for name, column in zip(dtype.names or (), columns, strict=True):
        target = array[name]
        _require_array(column.dtype == target.dtype and column.shape == target.shape, "a field")
        target[...] = column
    return array


_ARRAY_READERS: dict[type, Callable[[Any, Convert, MemoryBudget], NDArray[Any]]] = {
    Array: _plain_from,
    nodes.Strings: _strings_from,
    nodes.Objects: _objects_from,
    nodes.Fields: _fields_from,
}


def dtype_from(descr: Any) -> "np.dtype[Any]":
    """Convert a node that `dtype_descr` returned to a dtype.

    Raises
    ------
    CorruptFileError
        If `dtype_descr` would not return this node.
    """
    if isinstance(descr, str):
        if descr == "|O" or _TEXT.fullmatch(descr):
            dtype = np.dtype(descr)
            _require_array(
                dtype.str == descr and dtype.itemsize <= _MAX_ITEMSIZE, f"dtype {descr!r}"
            )
            return dtype
        return _plain_dtype(descr)
    itemsize, aligned, fields = _tuple_items(descr, 3)
    _require_array(_is_size(itemsize) and type(aligned) is bool, "size of a structured item")
    parts = [_field_from(field) for field in _tuple_items(fields)]
    _check_layout(parts, itemsize)
    layout = {
        "names": [part.name for part in parts],
        "formats": [(part.base, part.shape) if part.shape else part.base for part in parts],
        "offsets": [part.offset for part in parts],
        "itemsize": itemsize,
    }
    try:
        dtype = np.dtype(layout, align=aligned)  # type: ignore[call-overload]
    except (ValueError, TypeError, OverflowError) as error:
        raise CorruptFileError(f"a dtype is not valid: {error}") from None
    _require_array(dtype_descr(dtype) == descr, "a dtype that is not canonical")
    return dtype  # type: ignore[no-any-return]


class _Field(NamedTuple):
    name: str
    base: "np.dtype[Any]"
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.base.itemsize * math.prod(self.shape)


def _field_from(node: Any) -> _Field:
    name, inner, offset, shape = _tuple_items(node, 4)
    base, dimensions = dtype_from(inner), _tuple_items(shape)
    _require_array(type(name) is str and name != "", "name of a field")
    _require_array(base.kind != "O", "an object field")
    _require_array(_is_size(offset), "offset of a field")
    _require_array(all(_is_size(n) for n in dimensions), "shape of a field")
    _require_array(check_shape(dimensions, base.itemsize) <= _MAX_ITEMSIZE, "size of a field")
    return _Field(name, base, offset, dimensions)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_ITEMSIZE


def _check_layout(parts: list[_Field], itemsize: int) -> None:
    """Check that the fields of an item do not overlap, fit into it and leave little padding."""
    _require_array(0 < len(parts) <= _MAX_FIELDS, "number of fields")
    _require_array(
        len({part.name for part in parts}) == len(parts), "two fields with the same name"
    )
    used = sum(part.size for part in parts)
    _require_array(0 < used <= itemsize <= 16 * used + 64, "size of a structured item")
    end = 0
    for part in sorted(parts, key=lambda part: (part.offset, part.size)):
        _require_array(part.offset >= end, "fields that overlap")
        end = part.offset + part.size
    _require_array(end <= itemsize, "a field outside its item")


def _tuple_items(node: Any, length: int | None = None) -> tuple[Any, ...]:
    right = type(node) is nodes.Items and node.kind == "tuple"
    _require_array(right and length in {None, len(node.items)}, "a dtype")
    items: tuple[Any, ...] = node.items
    return items


def scalar_from(node: nodes.Scalar, from_node: Convert, budget: MemoryBudget) -> Any:
    """Convert a node to a NumPy scalar."""
    value = node.value
    if isinstance(value, str):
        return np.str_(value)
    if isinstance(value, bytes):
        return np.bytes_(value)
    _require_array(type(value) in {Array, nodes.Fields} and value.shape == (), "a scalar")  # type: ignore[union-attr]
    return array_from(value, from_node, budget)[()]


def _require_array(condition: bool, label: str) -> None:
    if not condition:
        raise CorruptFileError(f"an array in the file is not valid; wrong part: {label}")
