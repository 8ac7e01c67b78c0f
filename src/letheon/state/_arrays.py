"""NumPy arrays, scalars and dtypes as nodes, and back.

An array keeps its values, dtype and shape, and in files whether it lay in Fortran order (a matrix
product rounds differently then). It does not keep its byte order (always little-endian), strides,
flags or base; what is read back is fresh, writable memory.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import CorruptFileError, UnsupportedStateError
from letheon.state._canonical import text_bytes
from letheon.state._nodes import Array, Dtype, Fields, Items, Node, Objects, Scalar, Strings

# Above this a view is passed on instead of a copy.
_COPY_BELOW = 1 << 14
_PLAIN_KINDS = frozenset("biufcmMSV")
_PLAIN = re.compile(r"[<|][biufcSV][1-9]\d{0,8}|<[mM]8(\[\d{0,9}[a-zA-Zμ]{1,2}\])?")
_TEXT = re.compile(r"<U\d{1,9}")
_MAX_TEXT_BYTES = 1 << 33

ToNode = Callable[[Any], Any]
FromNode = Callable[[Any], Any]


def array_node(array: NDArray[Any], to_node: ToNode) -> Node:
    """Return the node of an array; `to_node` encodes the items of an object array."""
    dtype = array.dtype
    if dtype.names is not None:
        return _fields_node(array)
    if dtype.kind == "U":
        return _strings_node(array)
    if dtype.kind == "O":
        return Objects(array.shape, tuple([to_node(item) for item in array.ravel().tolist()]))
    return _plain_node(array)


def _plain_node(array: NDArray[Any]) -> Array:
    dtype = plain_descr(array.dtype)
    if array.dtype.kind == "b":
        # A view of other memory may hold a true that is not 1.
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

    Raises
    ------
    UnsupportedStateError
        For long doubles (they hold undefined bytes), variable-width strings and empty items.
    """
    name = dtype.newbyteorder("<").str
    if dtype.kind not in _PLAIN_KINDS or _PLAIN.fullmatch(name) is None or _is_long(dtype):
        raise UnsupportedStateError(f"arrays of dtype {dtype} have no canonical bytes")
    return name


def _is_long(dtype: "np.dtype[Any]") -> bool:
    return dtype.itemsize > {"f": 8, "c": 16}.get(dtype.kind, dtype.itemsize)


def _strings_node(array: NDArray[Any]) -> Strings:
    try:
        texts: list[str] = array.ravel().tolist()
    except (ValueError, SystemError) as error:
        raise UnsupportedStateError(f"an array of str holds no valid str: {error}") from None
    joined = "".join(texts)
    if joined.isascii():
        lengths, data = [len(text) for text in texts], joined.encode()
    else:
        encoded = [text_bytes(text) for text in texts]
        lengths, data = [len(text) for text in encoded], b"".join(encoded)
    sizes = np.array(lengths, dtype="<u4")
    return Strings(
        array.dtype.itemsize // 4, array.shape, Array("<u4", sizes.shape, sizes.tobytes()), data
    )


def _fields_node(array: NDArray[Any]) -> Fields:
    descr = dtype_descr(array.dtype)
    names = array.dtype.names or ()
    columns = tuple([array_node(array[name], _no_objects) for name in names])
    return Fields(descr, array.shape, columns)


def _no_objects(_: Any) -> Any:
    raise UnsupportedStateError("structured arrays with object fields have no canonical bytes")


def dtype_descr(dtype: "np.dtype[Any]") -> Node:
    """Return a dtype as a node: its name, or (itemsize, aligned, fields) if it has fields.

    A field is (name, dtype, offset, shape of a subarray).
    """
    if dtype.names is None or dtype.fields is None:
        if dtype.kind in "OU":
            return dtype.newbyteorder("<").str
        return plain_descr(dtype)
    if not dtype.names:
        raise UnsupportedStateError("a structured dtype without fields has no canonical bytes")
    fields = []
    for name in dtype.names:
        inner, offset = dtype.fields[name][:2]
        base, shape = inner.subdtype or (inner, ())
        row = (name, dtype_descr(base), int(offset), Items("tuple", tuple(shape)))
        fields.append(Items("tuple", row))
    head = (dtype.itemsize, dtype.isalignedstruct)
    return Items("tuple", (*head, Items("tuple", tuple(fields))))


def scalar_node(value: np.generic) -> Node:
    """Return the node of a NumPy scalar."""
    if isinstance(value, np.str_):
        return Scalar(str(value))
    if isinstance(value, np.bytes_):
        return Scalar(bytes(value))
    return Scalar(array_node(np.asarray(value), _no_objects))


def array_from(node: Any, from_node: FromNode) -> NDArray[Any]:
    """Return the array of a node, in fresh memory.

    Raises
    ------
    CorruptFileError
        If dtype, shape and bytes do not belong together.
    """
    try:
        return _ARRAY_READERS[type(node)](node, from_node)
    except (ValueError, TypeError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise CorruptFileError(f"an array does not fit its description: {error}") from None


def _plain_from(node: Array, _: FromNode) -> NDArray[Any]:
    if _PLAIN.fullmatch(node.dtype) is None:
        raise CorruptFileError(f"an array names the dtype {node.dtype!r}")
    dtype = np.dtype(node.dtype)
    _require(len(node.data) == math.prod(node.shape) * dtype.itemsize, "size of an array")
    array = np.frombuffer(node.data, dtype).reshape(node.shape).copy("F" if node.fortran else "C")
    _require(not node.fortran or array.flags.fnc, "order of an array")
    if dtype.kind == "b":
        _require(not np.any(array.view(np.uint8) > 1), "a bool that is neither 0 nor 1")
    return array


def _strings_from(node: Strings, from_node: FromNode) -> NDArray[Any]:
    lengths = _plain_from(node.lengths, from_node)
    count = math.prod(node.shape)
    _require(node.lengths.dtype == "<u4" and lengths.shape == (count,), "lengths of strings")
    _require(node.width * 4 * count <= _MAX_TEXT_BYTES, "width of strings")
    _require(int(lengths.sum(dtype=np.uint64)) == len(node.text), "lengths of strings")
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    texts = [
        str(node.text[end - size : end], "utf-8", "surrogatepass")
        for end, size in zip(ends, lengths.tolist(), strict=True)
    ]
    _require(all(len(t) <= node.width and t[-1:] != "\0" for t in texts), "a string")
    return np.array(texts, dtype=f"<U{node.width}").reshape(node.shape)


def _objects_from(node: Objects, from_node: FromNode) -> NDArray[Any]:
    _require(math.prod(node.shape) == len(node.items), "number of objects")
    flat = np.empty(len(node.items), dtype=object)
    for i, item in enumerate(node.items):
        flat[i] = from_node(item)
    return flat.reshape(node.shape)


def _fields_from(node: Fields, from_node: FromNode) -> NDArray[Any]:
    dtype = dtype_from(node.dtype)
    _require(dtype.names is not None and len(dtype.names) == len(node.columns), "fields")
    assert dtype.fields is not None
    columns = [array_from(column, from_node) for column in node.columns]
    # Checked before memory is taken: the columns exist, so the shape is no invention.
    fits = all(column.shape[: len(node.shape)] == node.shape for column in columns)
    _require(fits, "shape of a field")
    array = np.zeros(node.shape, dtype)
    for name, column in zip(dtype.names or (), columns, strict=True):
        target = array[name]
        _require(column.dtype == target.dtype and column.shape == target.shape, "a field")
        target[...] = column
    return array


_ARRAY_READERS: dict[type, Callable[[Any, FromNode], NDArray[Any]]] = {
    Array: _plain_from,
    Strings: _strings_from,
    Objects: _objects_from,
    Fields: _fields_from,
}


def dtype_from(descr: Any) -> "np.dtype[Any]":
    """Return the dtype of a description made by `dtype_descr`."""
    if isinstance(descr, str):
        known = descr == "|O" or _PLAIN.fullmatch(descr) or _TEXT.fullmatch(descr)
        _require(bool(known), f"dtype {descr!r}")
        return np.dtype(descr)
    itemsize, aligned, fields = _tuple(descr, 3)
    names, formats, offsets = [], [], []
    for field in _tuple(fields):
        name, inner, offset, shape = _tuple(field, 4)
        base = dtype_from(inner)
        _require(base.kind != "O", "an object field")
        names.append(name)
        formats.append((base, _tuple(shape)) if shape.items else base)
        offsets.append(offset)
    used = sum(np.dtype(item).itemsize for item in formats)
    _require(used > 0 and itemsize <= 16 * used + 64, "size of a structured item")
    layout = {"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize}
    try:
        return np.dtype(layout, align=aligned)  # type: ignore[call-overload,no-any-return]
    except (ValueError, TypeError, OverflowError) as error:
        raise CorruptFileError(f"a dtype makes no sense: {error}") from None


def _tuple(node: Any, length: int | None = None) -> tuple[Any, ...]:
    right = type(node) is Items and node.kind == "tuple"
    _require(right and length in {None, len(node.items)}, "a dtype")
    items: tuple[Any, ...] = node.items
    return items


def scalar_from(node: Scalar, from_node: FromNode) -> Any:
    """Return the NumPy scalar of a node."""
    value = node.value
    if isinstance(value, str):
        return np.str_(value)
    if isinstance(value, bytes):
        return np.bytes_(value)
    _require(type(value) in {Array, Fields} and value.shape == (), "a scalar")  # type: ignore[union-attr]
    return array_from(value, from_node)[()]


def dtype_node(dtype: "np.dtype[Any]") -> Dtype:
    """Return the node of a dtype that is itself a value."""
    return Dtype(dtype_descr(dtype))


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise CorruptFileError(f"not a valid array: {what}")
