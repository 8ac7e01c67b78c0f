"""Plain values for property tests, and an exact comparison that knows nothing of the codec."""

import struct
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters(exclude_categories=[]))
    | st.binary(max_size=20)
)
keys = st.booleans() | st.integers() | st.text() | st.binary(max_size=5)
arrays = hnp.arrays(
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="<")
    | hnp.unsigned_integer_dtypes(endianness="<")
    | hnp.floating_dtypes(endianness="<", sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(endianness="<", sizes=(64, 128))
    | hnp.datetime64_dtypes(endianness="<")
    | hnp.timedelta64_dtypes(endianness="<")
    | hnp.byte_string_dtypes(min_len=1)
    | hnp.unicode_string_dtypes(endianness="<", min_len=1),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=4),
)
values = st.recursive(
    atoms | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(keys, max_size=4)
        | st.frozensets(keys, max_size=4)
    ),
    max_leaves=12,
)
# So few that two drawn values are often equal or nearly so.
twins = st.recursive(
    st.sampled_from(
        [None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, "", "a", "1", b"", b"a", 255, -256]
    ),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.sampled_from(["", "a", "b"]), inner, max_size=2)
        | st.dictionaries(st.sampled_from([0, 1, "a"]), inner, max_size=2)
        | st.frozensets(st.sampled_from([0, 1, "a", b"a"]), max_size=2)
        | st.lists(st.sampled_from([0, 1]), max_size=2).map(lambda v: np.array(v, "<i2"))
    ),
    max_leaves=4,
)


def same(a: Any, b: Any) -> bool:
    """Say whether two values are of the same types and bits throughout."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return same([a.real, a.imag], [b.real, b.imag])
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return same_sets(a, b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, set | frozenset):
        return same_sets(a, b)
    return bool(a == b)


def same_sets(a: Any, b: Any) -> bool:
    """Compare keys by type too: ``1 == True == 1.0``."""
    return {(type(k), k) for k in a} == {(type(k), k) for k in b}
