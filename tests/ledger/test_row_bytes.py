"""Canonical bytes of rows: one row, one text; nothing of the neighbours in it."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from letheon import state
from letheon.data import Rows, as_ids, hold_table, hold_target
from letheon.exceptions import UnsupportedStateError
from letheon.ledger.models import commitment as _row_bytes
from letheon.ledger.models.commitment import encode_rows

DAYS = pd.to_datetime(["2026-01-01", "2026-02-28", None, "2024-02-29"])
QUIET, OTHER_NAN = (
    struct.unpack("<d", bits)[0] for bits in (b"\0" * 6 + b"\xf8\x7f", b"\1" * 6 + b"\xf8\x7f")
)


def some_pandas() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "number": [0.5, np.nan, 2.0, 3.0],
            "count": np.array([1, 2, 3, 4], np.int8),
            "maybe": pd.array([1, None, 3, 4], "Int64"),
            "true": [True, False, True, True],
            "text": ["a", "bb", None, ""],
            "any": np.array(["a", 1, 1.5, None], object),
            "kind": pd.Categorical(["x", "y", None, "x"]),
            "size": pd.Categorical([3, 1, 2, 1], categories=[1, 2, 3], ordered=True),
            "when": pd.Categorical(DAYS),
            "mixed": pd.Categorical(np.array([1, "a", 2, None], object)),
            "day": DAYS,
            "zoned": DAYS.tz_localize("Europe/Brussels"),
        }
    )


def some_polars() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "number": [0.5, None, 2.0, float("nan")],
            "count": pl.Series([1, 2, None, 4], dtype=pl.Int8),
            "true": [True, None, False, True],
            "text": ["a", "bb", None, ""],
            "kind": pl.Series(["x", "y", None, "x"], dtype=pl.Categorical),
            "size": pl.Series(["s", "l", "s", None], dtype=pl.Enum(["s", "m", "l"])),
            "day": pl.Series([1, 2, None, 4]).cast(pl.Date),
            "time": pl.Series([1, 2, 3, None]).cast(pl.Datetime("us", "Europe/Brussels")),
        }
    )


TABLES: dict[str, Callable[[], Any]] = {
    "float64": lambda: np.array([[1.5, -2.0], [np.nan, 0.0], [np.inf, 3.0], [1.5, -2.0]]),
    "float32": lambda: np.arange(8, dtype=np.float32).reshape(4, 2),
    "uint8 images": lambda: np.arange(48, dtype=np.uint8).reshape(4, 3, 2, 2),
    "bool": lambda: np.array([[True, False], [False, False], [True, True], [False, True]]),
    "objects": lambda: np.array([["a", 1], ["b", 1.5], [None, True], ["", -0.0]], object),
    "texts": lambda: np.array(["one", "two", "", "one\0"], object),
    "sparse": lambda: sp.csr_array(np.array([[0, 1.5, 0], [0, 0, 0], [2, 0, 3], [0, 1.5, 0]])),
    "sparse matrix": lambda: sp.csr_matrix(np.eye(4, dtype=np.float32)),
    "pandas": some_pandas,
    "polars": some_polars,
}
TARGETS: dict[str, Any] = {
    "none": None,
    "int": np.array([1, 2, 1, 2**40]),
    "float": np.array([0.5, np.nan, 1.0, -1.0]),
    "bool": np.array([True, False, True, True]),
    "text": np.array(["no", "yes", "a much longer label", "no"]),
    "two columns": np.array([[0, 1], [1, 0], [1, 1], [0, 0]]),
}
every_table = pytest.mark.parametrize("kind", TABLES)


def made(kind: str = "float64", target: str = "int", ids: Any = ("a", "b", "b", "")) -> Rows:
    y = TARGETS[target]
    table = hold_table(TABLES[kind]()) if "images" not in kind else TABLES[kind]()
    return Rows(table, None if y is None else hold_target(y), as_ids(list(ids)))


def texts(rows: Rows) -> list[bytes]:
    return list(encode_rows(rows))


def one_row(X: Any, y: Any = None, ids: Any = (7,), **extra: Any) -> bytes:
    (text,) = encode_rows(Rows(X, y, as_ids(list(ids)), extra))
    return text


@every_table
@pytest.mark.parametrize("target", TARGETS)
def test_neighbours_and_order_do_not_show(kind: str, target: str) -> None:
    rows = made(kind, target)
    whole = texts(rows)
    assert len(whole) == 4
    for positions in ([2], [3, 0], [1, 2, 3], [3, 2, 1, 0]):
        assert texts(rows.take(np.array(positions))) == [whole[i] for i in positions]


@every_table
def test_a_saved_row_has_the_same_bytes(kind: str) -> None:
    rows = made(kind, "text")
    rows.extra["risk"] = np.array([0.5, 1.0, 0.0, 0.25])
    assert texts(state.decode(state.encode(rows))) == texts(rows)


@every_table
def test_rows_that_joined_later_keep_their_bytes(kind: str) -> None:
    rows = made(kind)
    head, tail = rows.take(np.array([0, 1])), rows.take(np.array([2, 3]))
    assert texts(head.concat(tail)) == texts(rows)


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(np.asfortranarray, id="by column"),
        pytest.param(lambda X: X.astype(">f8"), id="big-endian"),
        pytest.param(lambda X: np.repeat(X, 2, axis=0)[::2], id="strided"),
        pytest.param(lambda X: np.repeat(X, 2, axis=1)[:, ::2], id="strided columns"),
        pytest.param(lambda X: X[::-1][::-1], id="view"),
    ],
)
def test_how_an_array_lies_in_memory_does_not_show(again: Callable[[Any], Any]) -> None:
    rows = made()
    assert texts(Rows(again(rows.X), rows.y, rows.ids)) == texts(rows)


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(lambda X: X.tocsc(), id="by column"),
        pytest.param(lambda X: X.tocoo(), id="coordinates"),
        pytest.param(sp.csr_matrix, id="matrix"),
        pytest.param(
            lambda X: sp.csr_array((X.data, X.indices.astype(np.int64), X.indptr)),
            id="wide indices",
        ),
        pytest.param(
            lambda X: sp.csr_array((X.data[::-1], X.indices[::-1], [0, 1, 3, 3, 4]), X.shape)[::-1],
            id="unsorted",
        ),
    ],
)
def test_how_a_sparse_matrix_lies_in_memory_does_not_show(again: Callable[[Any], Any]) -> None:
    rows = made("sparse")
    assert texts(Rows(again(rows.X), rows.y, rows.ids)) == texts(rows)


def test_the_order_of_bytes_in_a_frame_does_not_show() -> None:
    little, big = (pd.DataFrame({"a": np.array([1.5], order)}) for order in ("<f8", ">f8"))
    assert one_row(little) == one_row(big)


def test_a_sparse_row_says_where_it_ends() -> None:
    # Its one entry and a True after it spell the text, if nothing says how many entries there are.
    text = "7 bytes" + "T"
    entry, empty = sp.lil_array((1, 4096)), sp.csr_array((1, 4096))
    entry[0, ord("s") + 256 * len(text)] = struct.unpack("<d", b"\0" + text[:7].encode())[0]
    spelling = one_row(entry.tocsr(), risk=np.array([True]))
    assert spelling != one_row(empty, risk=np.array([text]))


def test_a_true_that_is_not_one_is_true() -> None:
    odd = np.array([[2, 0]], np.uint8).view(bool)
    assert one_row(odd) == one_row(np.array([[True, False]]))


def test_the_width_of_other_labels_does_not_show() -> None:
    X = np.zeros((1, 1))
    assert one_row(X, np.array(["no"])) == one_row(X, np.array(["no"], "<U40"))


def test_categories_of_others_do_not_show() -> None:
    alone = pd.DataFrame({"kind": pd.Categorical(["x"])})
    among = pd.DataFrame({"kind": pd.Categorical(["x"], categories=["a", "x", "z"])})
    assert one_row(alone) == one_row(among)


cells = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=3),
    st.integers(),
    st.floats(allow_nan=False),
    st.sampled_from([None, True, False, 0, 0.0, -0.0, "", "0", QUIET, OTHER_NAN]),
)


def identity(value: Any) -> Any:
    """Return what tells two values apart: type, and bits where numbers compare as equal."""
    return type(value), struct.pack("<d", value) if type(value) is float else value


@st.composite
def small_rows(draw: st.DrawFn) -> tuple[Any, Rows]:
    """Draw a row and all that makes it what it is."""
    person = draw(st.one_of(st.integers(-2, 300), st.text("ai\0", max_size=3)))
    y = draw(st.one_of(st.none(), st.lists(cells, min_size=1, max_size=2)))
    values = draw(st.lists(cells, min_size=1, max_size=3))
    X, target = np.empty((1, len(values)), object), None
    X[0] = values
    if y is not None:
        target = np.empty((1, len(y)), object)
        target[0] = y
    what = (identity(person), y and tuple(map(identity, y)), tuple(map(identity, values)))
    return what, Rows(X, target, as_ids([person]))


@given(small_rows(), small_rows())
def test_two_rows_of_objects_are_equal_if_and_only_if_their_bytes_are(
    one: tuple[Any, Rows], other: tuple[Any, Rows]
) -> None:
    assert (texts(one[1]) == texts(other[1])) == (one[0] == other[0])


numbers = st.sampled_from(["<f8", "<f4", "<f2", "<i8", "<i4", "|i1", "<u8", "|u1", "|b1", "<M8[s]"])


@given(numbers, numbers, st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_numbers_differ_by_bits_or_dtype(one: str, other: str, bits: bytes, others: bytes) -> None:
    def array(dtype: str, data: bytes) -> Any:
        if dtype == "|b1":
            data = bytes(byte & 1 for byte in data)
        return np.frombuffer(data, dtype).reshape(1, -1)

    left, right = array(one, bits), array(other, others)
    same = one == other and left.tobytes() == right.tobytes()
    assert (one_row(left) == one_row(right)) == same


@given(numbers, st.binary(min_size=16, max_size=16), st.integers(0, 127))
def test_every_bit_of_a_number_counts(dtype: str, bits: bytes, flipped: int) -> None:
    other = (int.from_bytes(bits, "big") ^ 1 << flipped).to_bytes(16, "big")
    if dtype != "|b1":
        left, right = (np.frombuffer(data, dtype)[None] for data in (bits, other))
        assert one_row(left) != one_row(right)


WORD = st.text("ab\0", max_size=2)


@given(st.lists(WORD, min_size=2, max_size=3), st.lists(WORD, min_size=2, max_size=3))
def test_frames_of_texts_tell_cells_apart(one: list[str], other: list[str]) -> None:
    for library in (pd.DataFrame, pl.DataFrame):
        left, right = (
            one_row(library({f"c{i}": [word] for i, word in enumerate(words)}))
            for words in (one, other)
        )
        assert (left == right) == (one == other)


ZERO = np.zeros((1, 1))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(one_row(ZERO), one_row(ZERO, ids=["7"]), id="kind of id"),
        pytest.param(one_row(ZERO), one_row(ZERO, ids=[8]), id="id"),
        pytest.param(one_row(ZERO), one_row(ZERO, np.zeros(1)), id="no label"),
        pytest.param(one_row(ZERO), one_row(-ZERO), id="sign of zero"),
        pytest.param(one_row(ZERO * QUIET), one_row(ZERO + OTHER_NAN), id="payload of NaN"),
        pytest.param(one_row(ZERO, np.zeros(1, int)), one_row(ZERO, np.zeros(1)), id="label kind"),
        pytest.param(one_row(ZERO, np.zeros(1)), one_row(ZERO, np.zeros((1, 1))), id="label shape"),
        pytest.param(one_row(np.zeros((1, 4))), one_row(np.zeros((1, 2, 2))), id="shape"),
        pytest.param(one_row(ZERO), one_row(sp.csr_array(ZERO)), id="kind of table"),
        pytest.param(
            one_row(sp.csr_array(np.array([[1.0, 0]]))),
            one_row(sp.csr_array(np.array([[1.0, 0, 0]]))),
            id="width of a sparse table",
        ),
        pytest.param(
            one_row(sp.csr_array(np.array([[1.0, 0]]))),
            one_row(sp.csr_array(np.array([[0, 1.0]]))),
            id="place in a sparse table",
        ),
        pytest.param(one_row(ZERO), one_row(ZERO, risk=np.zeros(1)), id="extra"),
        pytest.param(
            one_row(ZERO, risk=np.zeros(1)), one_row(ZERO, other=np.zeros(1)), id="name of extra"
        ),
        pytest.param(
            one_row(pd.DataFrame({"a": [1]})), one_row(pd.DataFrame({"b": [1]})), id="column"
        ),
        pytest.param(
            one_row(pd.DataFrame({"a": pd.array([1], "Int64")})),
            one_row(pl.DataFrame({"a": pl.Series([1], dtype=pl.Int64)})),
            id="library",
        ),
        pytest.param(
            one_row(pd.DataFrame({"a": pd.Categorical(["x"])})),
            one_row(pd.DataFrame({"a": pd.Categorical(["x"], ordered=True)})),
            id="order of categories",
        ),
        pytest.param(
            one_row(pd.DataFrame({"a": pd.Categorical(DAYS[:1].tz_localize("UTC"))})),
            one_row(pd.DataFrame({"a": pd.Categorical(DAYS[:1].tz_localize("Iceland"))})),
            id="time zone of categories",
        ),
        pytest.param(
            one_row(pd.DataFrame({"a": [1]})), one_row(pd.DataFrame({"a": [1.0]})), id="dtype"
        ),
        pytest.param(
            one_row(pd.DataFrame({"a": DAYS[:1].tz_localize("UTC")})),
            one_row(pd.DataFrame({"a": DAYS[:1].tz_localize("Iceland")})),
            id="time zone",
        ),
        pytest.param(
            one_row(pd.DataFrame({"a": pd.Categorical(["1"])})),
            one_row(pd.DataFrame({"a": pd.Categorical([1])})),
            id="kind of category",
        ),
        pytest.param(
            one_row(pd.DataFrame({"a": pd.array([None], "Int64")})),
            one_row(pd.DataFrame({"a": pd.array([0], "Int64")})),
            id="missing in pandas",
        ),
        pytest.param(
            one_row(pl.DataFrame({"a": pl.Series([None], dtype=pl.Int64)})),
            one_row(pl.DataFrame({"a": pl.Series([0], dtype=pl.Int64)})),
            id="missing in polars",
        ),
        pytest.param(
            one_row(pl.DataFrame({"a": [None]}, {"a": pl.String})),
            one_row(pl.DataFrame({"a": [""]})),
            id="missing text",
        ),
    ],
)
def test_what_differs_shows(one: bytes, other: bytes) -> None:
    assert one != other


def test_texts_that_run_into_each_other_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_row_bytes, "_encode_object", lambda value: str(value).encode())
    left, right = (np.array([words], object) for words in (["ab", "c"], ["a", "bc"]))
    assert one_row(left) == one_row(right)


def test_a_form_that_is_left_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_row_bytes, "to_tree", lambda form: None)
    assert one_row(np.zeros((1, 4))) == one_row(np.zeros((1, 2, 2)))


@pytest.mark.parametrize(
    "table",
    [
        np.zeros((1, 1), np.longdouble),
        np.zeros(1, [("a", "<f8")]),
        np.array([[object()]], object),
        pd.DataFrame({"a": pd.period_range("2026", periods=1, freq="D")}),
        pl.DataFrame({"a": [[1, 2]]}),
        [[1.0]],
    ],
    ids=["long double", "structured", "any object", "periods", "lists", "a list"],
)
def test_values_without_canonical_bytes(table: Any) -> None:
    with pytest.raises((UnsupportedStateError, AttributeError)):
        list(encode_rows(Rows(table, None, as_ids([1]))))


def test_no_rows() -> None:
    assert texts(Rows(np.empty((0, 2)), np.empty(0), as_ids(np.empty(0, np.int64)))) == []


def test_more_rows_than_fit_into_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.arange(24.0).reshape(12, 2)
    rows = Rows(X, None, as_ids(list(range(12))))
    monkeypatch.setattr(_row_bytes, "_BLOCK", 40)
    assert texts(rows) == [one_row(X[i : i + 1], ids=[i]) for i in range(12)]
