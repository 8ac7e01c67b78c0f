"""Canonical JSON against `rfc8785`, and what `parse_strict` refuses."""

from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from letheon.verifier import DEEPEST, MAX_INT, VerificationError, canonical, parse_strict

# All of Unicode, also the surrogates that UTF-8 cannot hold.
TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-MAX_INT, MAX_INT) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def reference(value: Any) -> bytes | None:
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        return None


def ours(value: Any) -> bytes | None:
    try:
        return canonical(value)
    except VerificationError:
        return None


@given(VALUES)
def test_canonical_is_that_of_another_implementation(value: Any) -> None:
    assert ours(value) == reference(value)


@given(VALUES)
def test_canonical_text_parses_to_the_value(value: Any) -> None:
    data = ours(value)
    if data is not None:
        assert parse_strict(data) == value


def test_keys_are_sorted_by_utf16_code_units() -> None:
    # By code points the emoji would come last.
    text = canonical({"\ufb33": 1, "\U0001f600": 2}).decode()
    assert text == '{"\U0001f600":2,"\ufb33":1}'


@pytest.mark.parametrize("value", [1.0, float("nan"), b"x", {1: 2}, {"a": {1}}, object()])
def test_values_without_one_form_are_refused(value: Any) -> None:
    with pytest.raises(VerificationError):
        canonical(value)


@pytest.mark.parametrize("value", [MAX_INT + 1, -MAX_INT - 1])
def test_large_integers_are_refused(value: int) -> None:
    assert reference(value) is None
    with pytest.raises(VerificationError, match=r"2\*\*53"):
        canonical(value)
    with pytest.raises(VerificationError, match=r"2\*\*53"):
        parse_strict(str(value).encode())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a":1,"a":1}', "repeated"),
        (b"1.0", "not an integer"),
        (b"1e3", "not an integer"),
        (b"NaN", "not an integer"),
        (b"-0", "canonical"),
        (b"[1, 2]", "canonical"),
        (b'{"b":1,"a":2}', "canonical"),
        (b'"\\u0041"', "canonical"),
        (b'"\\/"', "canonical"),
        (b'"\\ud800"', "Unicode"),
        (b"[1]\n", "canonical"),
        (b"\xef\xbb\xbf[1]", "not JSON"),
        (b'"\xff"', "not JSON"),
        (b"", "not JSON"),
        (b"[1]x", "not JSON"),
        (b"9" * 5000, r"2\*\*53"),
    ],
)
def test_other_texts_of_a_value_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        parse_strict(data)


@pytest.mark.parametrize("depth", [DEEPEST + 2, 900, 100_000])
@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_nesting_is_refused(depth: int, pair: tuple[bytes, bytes]) -> None:
    data = pair[0] * depth + b"1" + pair[1] * depth
    with pytest.raises(VerificationError, match="nested deeper"):
        parse_strict(data)


def test_large_data_are_refused_before_they_are_parsed() -> None:
    with pytest.raises(VerificationError, match="larger than 10 bytes"):
        parse_strict(b"[" * 11, limit=10)
