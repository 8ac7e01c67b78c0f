"""Tables of words: compared with scikit-learn's encoders, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

from letheon.datasets import DatasetFormatError, _tables
from letheon.datasets._tables import encode_table, parse_number, parse_numbers, read_columns
from tests.sharded.people import examples

CELLS = st.sampled_from(["red", "green", "blue pale", "Zebra", "0", "-1.5"])
ROWS = st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), CELLS, CELLS), min_size=1, max_size=30)


def lines_of(rows: list[tuple[float, str, str]]) -> list[str]:
    return [f"{value!r}, {one}, {other}\n" for value, one, other in rows]


@examples(60)
@given(rows=ROWS, chunk=st.integers(1, 7))
def test_encodings_are_those_of_scikit_learn(
    rows: list[tuple[float, str, str]], chunk: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tables, "_CHUNK", chunk)
        table = read_columns(lines_of(rows), names=("v", "a", "b"))
    words = np.array([row[1:] for row in rows], object)
    values = np.array([row[0] for row in rows], np.float32)
    for how, reference in (
        ("one-hot", OneHotEncoder(sparse_output=False)),
        ("ordinal", OrdinalEncoder()),
    ):
        X, names = encode_table(table, ["v"], ["a", "b"], how)  # type: ignore[arg-type]
        np.testing.assert_array_equal(X[:, 0], values)
        np.testing.assert_array_equal(X[:, 1:], reference.fit_transform(words))
        assert X.shape[1] == len(names)
        assert X.dtype == np.float32
        assert X.flags.c_contiguous


@examples(40)
@given(first=ROWS, second=ROWS)
def test_two_files_are_one_table(
    first: list[tuple[float, str, str]], second: list[tuple[float, str, str]]
) -> None:
    names, features = ("v", "a", "b"), (["v"], ["a", "b"])
    parts = [read_columns(lines_of(rows), names=names) for rows in (first, second)]
    together = read_columns(lines_of(first + second), names=names)
    np.testing.assert_array_equal(
        encode_table(parts[0] + parts[1], *features, "one-hot")[0],
        encode_table(together, *features, "one-hot")[0],
    )


def test_words_of_rows_left_out_keep_their_columns() -> None:
    table = read_columns(["a\n", "x\n", "y\n", "z\n"])
    kept = np.array([True, False, True])
    X, names = encode_table(table, [], ["a"], "one-hot", rows=kept)
    assert names == ("a=x", "a=y", "a=z")
    np.testing.assert_array_equal(X, [[1, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize("text", ["", "?", "NA", " nan "])
def test_a_missing_number_is_a_constant(text: str) -> None:
    assert parse_number(text) == -1


def test_all_ways_to_say_nothing_are_one_word() -> None:
    table = read_columns(["a\n", "?\n", "NA\n", "b\n"])
    assert encode_table(table, [], ["a"], "one-hot")[1] == ("a=b", "a=missing")


def test_a_mark_of_byte_order_is_no_name() -> None:
    assert list(read_columns(["\ufeffa,b\n", "1,2\n"])) == ["a", "b"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,b\n", "1,2\n", "1,2,3\n"], "3 cells; expected 2"),
        (["a,b\n"], "no rows"),
        (["a,b\n", "1,x\n"], "'x' is not a number"),
        (["a,c\n", "1,2\n"], "the file has no column 'b'; it has: a, c"),
    ],
)
def test_what_is_no_table_is_refused(lines: list[str], message: str) -> None:
    with pytest.raises(DatasetFormatError, match=message):
        encode_table(read_columns(lines), ["b"], ["a"], "one-hot")


def test_words_in_a_table_of_numbers_are_refused() -> None:
    with pytest.raises(DatasetFormatError, match="not a table of numbers"):
        parse_numbers(["1,2\n", "1,x\n"])
