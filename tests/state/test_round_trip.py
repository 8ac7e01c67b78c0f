"""What goes in comes out, bit by bit; what cannot is refused with a reason."""

import re
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from letheon import state
from letheon.exceptions import CorruptFileError, NewerFormatError, UnsupportedStateError
from tests.state.values import same, values


def again(value: Any) -> Any:
    return state.decode(state.encode(value))


@given(values)
def test_plain_values_come_back_exactly(value: Any) -> None:
    restored = again(value)
    assert same(restored, value)
    assert state.encode(restored) == state.encode(value)


@pytest.mark.parametrize(
    "value",
    [
        2**4000,
        -(2**63),
        np.array(5),
        np.array("x\u20acy"),
        np.zeros((0, 3)),
        np.zeros((2, 0), "<U3"),
        np.array(["a\0b", "", "\U0001f600"]),
        np.array([b"a\0", b"bc"]),
        np.array([1 + 2j, -0.0], np.complex64),
        np.array([True, False]),
        np.array(["2020-02-29", "NaT"], "M8[D]"),
        np.array([3], "m8[25us]"),
        np.array([b"ab", b"c"], "V2"),
        range(3, 9, 2),
    ],
    ids=repr,
)
def test_special_values_come_back(value: Any) -> None:
    assert same(again(value), value)


@pytest.mark.parametrize(
    "value",
    [
        np.float64(0.1),
        np.float16("nan"),
        np.int8(-3),
        np.bool_(True),
        np.complex64(1j),
        np.str_("aü"),
        np.bytes_(b"b\0"),
        np.datetime64("2020-01-01T00", "h"),
        np.timedelta64(4, "s"),
        np.longlong(3),
    ],
    ids=repr,
)
def test_scalars_keep_their_type(value: np.generic) -> None:
    restored = again(value)
    assert restored.dtype == value.dtype
    assert restored.tobytes() == value.tobytes()


@pytest.mark.parametrize("bits", [0x7FF8000000000001, 0xFFF0DEADBEEF0001, 0x7FF0000000000001])
def test_nan_payloads_survive(bits: int) -> None:
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    array = np.array([bits], np.uint64).view(np.float64)
    assert same(again([value, array]), [value, array])


def test_negative_zero_is_not_zero() -> None:
    assert state.digest(-0.0) != state.digest(0.0)
    assert same(again(-0.0), -0.0)


def test_structured_array_without_its_padding() -> None:
    dtype = np.dtype([("a", "u1"), ("b", "<f8", (2,)), ("c", "<U3")], align=True)
    raw = np.full(3 * dtype.itemsize, 0x41, np.uint8)
    value = raw.view(dtype)
    value["c"] = "xy"
    clean = np.zeros(3, dtype)
    for name in ("a", "b", "c"):
        clean[name] = value[name]
    restored = again(value)
    assert restored.dtype == dtype
    assert np.array_equal(restored, value)
    assert state.digest(value) == state.digest(clean)


def test_object_array_keeps_shape_and_values() -> None:
    value = np.array([["a", None], [1.5, (2, "b")]], dtype=object)
    restored = again(value)
    assert restored.dtype == object
    assert restored.shape == (2, 2)
    assert same(restored.tolist(), value.tolist())


def test_arrays_come_back_in_fresh_writable_memory() -> None:
    value = np.arange(3)
    value.flags.writeable = False
    restored = again(value)
    restored[0] = 7
    assert restored.flags.owndata


@pytest.mark.parametrize(
    ("value", "fortran"),
    [
        (np.asfortranarray(np.arange(6.0).reshape(2, 3)), True),
        (np.arange(6.0).reshape(2, 3), False),
        (np.arange(12.0).reshape(3, 4)[:, ::2], False),
        (np.arange(3.0), False),
    ],
)
def test_memory_order_comes_back(value: Any, fortran: bool) -> None:
    restored = again(value)
    assert np.array_equal(restored, value)
    assert restored.flags.fnc is fortran
    assert restored.flags.c_contiguous is not fortran


def test_true_is_one() -> None:
    odd = np.array([2, 0, 255], np.uint8).view(bool)
    assert same(again(odd), np.array([True, False, True]))


def test_byte_order_is_always_little() -> None:
    assert same(again(np.array([1, 2], ">i4")), np.array([1, 2], "<i4"))


def test_memory_map_is_an_array(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", np.float64, "w+", shape=(3,))
    mapped[:] = [1, 2, 3]
    assert same(again(mapped), np.array([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("value", [np.dtype("O"), np.dtype("<U7"), np.dtype([("a", "i2")]), float])
def test_dtypes_and_types_as_values(value: Any) -> None:
    assert again(value) == value


@pytest.mark.parametrize("value", [np.exp, np.mean, np.float32, str])
def test_functions_and_types_are_themselves(value: Any) -> None:
    assert again(value) is value


def _itself() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(500):
        value = [value]
    return value


class _Slotted:
    __slots__ = ("a",)


def _local_class() -> type:
    class LocalClass:
        pass

    return LocalClass


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda x: x, "^a lambda cannot be imported .* a function .* the top level of a .py file"),
        (np.frompyfunc(len, 1, 1), "^the function 'len"),
        (_itself(), "contains itself"),
        (_deep(), "nested deeper"),
        (threading.Lock(), "outside its attributes"),
        (_Slotted(), "outside its attributes"),
        (np.longdouble(1), "no canonical bytes"),
        (np.zeros(2, np.longdouble), "no canonical bytes"),
        (np.ma.masked_array([1]), "outside its attributes"),
        (np.zeros(1, [("a", "O")]), "object fields|no canonical"),
        (
            _local_class(),
            r"^the class '_local_class.<locals>.LocalClass' .* a class defined at the top level",
        ),
        (list[int], "outside its attributes"),
        ({float("nan"): 1, float("nan") + 1: 2}, "two NaN"),
        (re.compile("x"), "outside its attributes"),
        (np.array([0x7FFFFFFF], "u4").view("<U1"), "a str that is not valid"),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_no_canonical_bytes(value: Any, reason: str) -> None:
    with pytest.raises(UnsupportedStateError, match=reason):
        state.encode(value)


def test_refusal_says_where() -> None:
    with pytest.raises(UnsupportedStateError, match=r"at a\.b\)"):
        state.digest({"a": {"b": [lambda: None]}})


def test_as_deep_as_allowed_comes_back() -> None:
    value: Any = None
    for i in range(39):
        value = [value] if i % 2 else {"a": (value,)}
    assert same(again(value), value)


def test_every_changed_byte_of_a_blob_is_refused() -> None:
    blob = state.encode({"a": [1, 2.5], "b": np.arange(3)})
    for i in range(len(blob)):
        changed = bytearray(blob)
        changed[i] ^= 1
        with pytest.raises((CorruptFileError, NewerFormatError)):
            state.decode(changed)


def test_every_truncation_of_a_blob_is_refused() -> None:
    blob = state.encode({"a": [1, 2.5], "b": np.arange(3)})
    for size in range(len(blob)):
        with pytest.raises(CorruptFileError):
            state.decode(blob[:size])


def test_newer_blob_is_named() -> None:
    blob = state.encode(1).replace(b"state-v1", b"state-v2")
    with pytest.raises(NewerFormatError, match=r"v2.*v1"):
        state.decode(blob)


def test_environment_names_what_affects_results() -> None:
    import sklearn

    versions = state.environment()
    assert versions["scikit-learn"] == sklearn.__version__
    assert set(versions) == {"python", "numpy", "scipy", "scikit-learn", "letheon", "blas"}
    assert "openblas" in versions["blas"]
