"""What lies in the memory of tables: text buffers of polars, chains of views of NumPy."""

import ctypes
from typing import Any

import numpy as np


class _Array(ctypes.Structure):
    """`struct ArrowArray` of Arrow's C data interface."""

    _fields_ = [
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


class _Stream(ctypes.Structure):
    """`struct ArrowArrayStream`."""

    _fields_ = [
        ("get_schema", ctypes.c_void_p),
        ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("get_last_error", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


def polars_text_bytes(series: Any) -> bytes:
    """Return every byte of the buffers behind a polars column of long texts, used or not."""
    capsule = series.__arrow_c_stream__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer(capsule, b"arrow_array_stream")
    array = _Array()
    assert _Stream.from_address(address).get_next(address, ctypes.addressof(array)) == 0
    # A string view: validity, views, any number of data buffers, and their sizes.
    n_data = array.n_buffers - 3
    assert n_data > 0, "no text is long enough to lie outside its view"
    sizes = (ctypes.c_int64 * n_data).from_address(array.buffers[array.n_buffers - 1])
    return b"".join(ctypes.string_at(array.buffers[2 + k], sizes[k]) for k in range(n_data))


def owned_bytes(array: Any) -> bytes:
    """Return the bytes of an array and of everything it keeps alive as a view."""
    memory = b""
    while isinstance(array, np.ndarray):
        memory += array.tobytes()
        array = array.base
    assert array is None, f"the array is a view of a {type(array).__name__}"
    return memory
