"""Canonical bytes: golden vectors, an independent encoder, injectivity."""

import hashlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from letheon import state
from letheon.exceptions import CorruptFileError
from letheon.state._bytes import from_bytes, iter_chunks, to_bytes
from letheon.state._nodes import MemoryBudget
from tests.state.values import same, twins, values

GOLDEN: list[tuple[Any, str]] = [
    (None, "4e"),
    (True, "54"),
    (False, "46"),
    (0, "69 0100000000000000 00"),
    (-1, "69 0100000000000000 ff"),
    (127, "69 0100000000000000 7f"),
    (128, "69 0200000000000000 8000"),
    (-129, "69 0200000000000000 7fff"),
    (-0.0, "64 0000000000000080"),
    (1.5, "64 000000000000f83f"),
    (1j, "63 0000000000000000 000000000000f03f"),
    ("é", "73 0200000000000000 c3a9"),
    ("\ud800", "73 0300000000000000 eda080"),
    (b"\x00", "62 0100000000000000 00"),
    ([True], "6c 0100000000000000 54"),
    ((), "74 0000000000000000"),
    ({False}, "65 0100000000000000 46"),
    (frozenset(), "7a 0000000000000000"),
    ({"b": None, "a": True}, "6d 0200000000000000 0100000000000000 61 54 0100000000000000 62 4e"),
    ({True: None}, "70 0100000000000000 54 4e"),
    (
        np.array([1, 2], ">i2"),
        "61 0300000000000000 3c6932 0100000000000000 0200000000000000 0400000000000000 01000200",
    ),
    (np.float32(1), "78 61 0300000000000000 3c6634 0000000000000000 0400000000000000 0000803f"),
    (slice(None, True), "6a 4e 54 4e"),
    (np.dtype("i1"), "79 73 0300000000000000 7c6931"),
    (np.float64, "71 0d00000000000000 6e756d70792e666c6f61743634"),
]


@pytest.mark.parametrize(("value", "expected"), GOLDEN, ids=[repr(v) for v, _ in GOLDEN])
def test_golden_bytes(value: Any, expected: str) -> None:
    assert to_bytes(state.to_tree(value)).hex() == expected.replace(" ", "")


def test_golden_digest() -> None:
    expected = hashlib.sha256(b"letheon-v1\0" + b"l" + struct.pack("<Q", 1) + b"N").hexdigest()
    assert state.digest([None]) == expected


def test_golden_digest_of_an_estimator() -> None:
    from sklearn.preprocessing import StandardScaler

    body = b"O" + _text("sklearn.preprocessing._data.StandardScaler") + b"m" + _n(3)
    body += _text("copy") + b"T" + _text("with_mean") + b"T" + _text("with_std") + b"F"
    expected = hashlib.sha256(b"letheon-v1\0" + body).hexdigest()
    assert state.digest(StandardScaler(with_std=False)) == expected


def _n(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return _n(len(data)) + data


def reference(value: Any) -> bytes:
    """Encode plain values as the table in the module says, written a second time."""
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"T", False: b"F"}[value]
    if isinstance(value, int):
        size = next(n for n in range(1, 999) if -(256**n) <= 2 * value < 256**n)
        unsigned: int = value % 256**size
        return b"i" + _n(size) + unsigned.to_bytes(size, "little")
    if isinstance(value, float):
        return b"d" + struct.pack("<d", value)
    if isinstance(value, str):
        return b"s" + _text(value)
    if isinstance(value, bytes):
        return b"b" + _n(len(value)) + bytes(value)
    if isinstance(value, dict):
        return _reference_dict(value)
    if isinstance(value, np.ndarray):
        head = b"a" + _text("<i2") + _n(1) + _n(len(value)) + _n(2 * len(value))
        return head + b"".join(struct.pack("<h", item) for item in value)
    items = [reference(item) for item in value]
    if isinstance(value, frozenset):
        items.sort()
    tag = {"list": b"l", "tuple": b"t", "frozenset": b"z"}[type(value).__name__]
    return tag + _n(len(items)) + b"".join(items)


def _reference_dict(value: dict[Any, Any]) -> bytes:
    if all(isinstance(key, str) for key in value):
        pairs = [_text(key) + reference(value[key]) for key in sorted(value)]
        return b"m" + _n(len(pairs)) + b"".join(pairs)
    ordered = sorted((reference(key), reference(item)) for key, item in value.items())
    return b"p" + _n(len(ordered)) + b"".join(key + item for key, item in ordered)


@given(twins)
def test_bytes_are_those_of_a_second_encoder(value: Any) -> None:
    assert to_bytes(state.to_tree(value)) == reference(value)


@given(twins, twins)
def test_different_values_have_different_bytes(a: Any, b: Any) -> None:
    assert (to_bytes(state.to_tree(a)) == to_bytes(state.to_tree(b))) is same(a, b)


@given(values)
def test_tree_comes_back_from_its_bytes(value: Any) -> None:
    data = to_bytes(state.to_tree(value))
    assert to_bytes(from_bytes(data, MemoryBudget(len(data)))) == data


@given(values)
def test_chunks_are_the_bytes(value: Any) -> None:
    tree = state.to_tree([value, np.arange(20_000)])
    assert b"".join(iter_chunks(tree)) == to_bytes(tree)


def test_big_arrays_are_not_copied() -> None:
    array = np.arange(100_000)
    views = [c for c in iter_chunks(state.to_tree([array])) if isinstance(c, memoryview)]
    assert [np.shares_memory(np.asarray(view), array) for view in views] == [True]


def test_digest_does_not_see_order_of_keys_or_memory() -> None:
    array = np.arange(6.0).reshape(2, 3)
    a = {"x": 1, "y": np.asfortranarray(array), "z": {3, 1, 2}}
    b = {"z": {2, 3, 1}, "y": array, "x": 1}
    assert state.digest(a) == state.digest(b)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"?",
        b"NN",
        b"l" + _n(1),
        b"l" + _n(2**63) + b"N",
        b"i" + _n(2) + b"\x01\x00",
        b"i" + _n(0),
        b"e" + _n(2) + b"TF",
        b"e" + _n(2) + b"TT",
        b"m" + _n(2) + (_text("a") + b"N") * 2,
        b"m" + _n(2) + _text("b") + b"N" + _text("a") + b"N",
        b"p" + _n(2) + b"TN" + b"FN",
        b"s" + _n(1) + b"\xff",
        b"u" + _n(1) + _n(0) + b"N" + _n(0),
        b"O" + _text("a") + b"N",
        b"a" + _text("<f8") + _n(2**62),
        (b"l" + _n(1)) * 100_000 + b"N",
    ],
    ids=range(17),
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="not canonical"):
        from_bytes(data, MemoryBudget(len(data)))
