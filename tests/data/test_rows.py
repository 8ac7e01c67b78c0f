"""Labels, and rows as a whole: removal that is physical and complete."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon import state
from letheon.data import Rows, as_ids, hold_table, hold_target
from letheon.data._targets import join_target, take_target
from letheon.exceptions import IdsTypeError
from tests.data.buffers import owned_bytes

CANARY = 1234567.890625


def make_rows(ids: list[Any]) -> Rows:
    numbers = np.arange(len(ids), dtype=float)
    X = np.column_stack([numbers, -numbers - 1])
    y = np.array([f"label-{n}" for n in range(len(ids))])
    return Rows(hold_table(X), hold_target(y), as_ids(ids), {"slice": np.arange(len(ids))})


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.array([1, 2], np.int8), "i8"),
        (np.array([1, 2], ">u2"), "i8"),
        (np.array([1, 2], np.float32), "f8"),
        (np.array([True, False]), "?"),
        ([True, False], "?"),
        (np.array([True, False], object), "?"),
        (np.array([1, 2], object), "i8"),
        (np.array([1.0, np.float32(2.5)], object), "f8"),
        (np.array([np.int8(1), 2], object), "i8"),
        ([np.int8(1), 2], "i8"),
        (["a", "bbb"], "U3"),
        (np.array(["a", "b"], "U9"), "U1"),
        (np.array(["a", "bbb"], object), "U3"),
        (np.array(["a", "bbb"], np.dtypes.StringDType()), "U3"),
        (pd.Series(["a", "bbb"], index=[7, 8]), "U3"),
        (pd.Series(["a", "bbb"], dtype="category"), "U3"),
        (pl.Series(["a", "bbb"]), "U3"),
        (pl.Series([1, 2], dtype=pl.Int16), "i8"),
        (np.array(["a", 1], object), "O"),
        (np.array([[1, 2], [3, 4]], np.int32), "i8"),
        (np.array([["a"], ["bb"]], object), "U2"),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', value)}",
)
def test_labels_have_canonical_dtypes(given: Any, dtype: str) -> None:
    held = hold_target(given)
    assert held.dtype == np.dtype(dtype)
    assert held.tolist() == (
        list(given) if isinstance(given, pd.Series) else np.array(given).tolist()
    )


@pytest.mark.parametrize(
    ("mixed", "named"),
    [
        ([1, 2.5], "float and int"),
        ((True, 2), "bool and int"),
        ([np.int64(1), 2.5], "float and int"),
        ([np.True_, 1.0], "bool and float"),
        (["a", 1], "int and str"),
        (["a", np.nan], "float and str"),
        ([[1, 2], [3, 4.5]], "float and int"),
        (np.array([1, 2.5, "a"], object), "float and int"),
        (np.array([np.int64(1), 2.5], object), "float and int"),
        (pd.Series([1, 2.5], dtype=object), "float and int"),
        (pl.Series([1, 2.5], dtype=pl.Object), "float and int"),
    ],
    ids=repr,
)
def test_labels_of_mixed_kinds_are_refused(mixed: Any, named: str) -> None:
    # The dtype they have together would stay when the odd one leaves.
    with pytest.raises(ValueError, match=f"of several types: {named}; expected one type"):
        hold_target(mixed)


@pytest.mark.parametrize(
    "y", [[1, None], ["a", None], np.array(["a", 1, None], object), np.array([1.5, "a"], object)]
)
def test_what_mixed_objects_leave_is_held_as_if_alone(y: Any) -> None:
    for rows in ([0], [1], [0, 1]):
        left = take_target(hold_target(y), np.array(rows))
        alone = hold_target(y[rows] if isinstance(y, np.ndarray) else [y[row] for row in rows])
        assert left is not None
        assert (left.dtype, left.tolist()) == (alone.dtype, alone.tolist())


@pytest.mark.parametrize(
    "y",
    [
        [1, 2],
        [True, 2.5],
        np.array([1, 2], np.uint8),
        np.array([1, 2], object),
        np.array([np.int8(1), 2.5], object),
        np.array([True, False], object),
        np.array([[1, 2], [3, 4]]),
    ],
    ids=repr,
)
def test_targets_of_regression_are_float_whatever_they_were(y: Any) -> None:
    held = hold_target(y, as_float=True)
    assert held.dtype == np.float64
    assert held.tolist() == np.array(y, float).tolist()


@pytest.mark.parametrize(
    "given",
    [np.array([2**63], np.uint64), np.array([1, 2**70], object), np.array([-(2**70)], object)],
)
def test_labels_that_do_not_fit_are_refused(given: Any) -> None:
    with pytest.raises(
        ValueError, match=r"y contains .* does not fit into 64 bits; use str labels"
    ):
        hold_target(given)


def test_caller_may_change_its_labels() -> None:
    for y in (np.array([1, 2]), np.array([1.0, 2.0]), np.array([True, True])):
        held = hold_target(y)
        y[0] = 0
        assert held[0] == 1


def test_width_of_text_labels_narrows_when_the_longest_leaves() -> None:
    held = hold_target(["a", "a-very-long-label", "b"])
    left = take_target(held, np.array([0, 2]))
    assert left is not None
    assert left.dtype == np.dtype("U1")


def test_object_labels_become_text_when_the_odd_one_leaves() -> None:
    left = take_target(hold_target(np.array(["a", 1, "b"], object)), np.array([0, 2]))
    assert left is not None
    assert left.dtype == np.dtype("U1")


@pytest.mark.parametrize(
    ("held", "given", "joined"),
    [
        (["a"], ["bbb"], ["a", "bbb"]),
        ([1], [2], [1, 2]),
        ([1], [2.0], [1, 2]),
        ([1.5], [2], [1.5, 2.0]),
        ([True], [False], [True, False]),
    ],
)
def test_labels_join_in_the_held_dtype(held: Any, given: Any, joined: list[Any]) -> None:
    first = hold_target(held)
    both = join_target(first, hold_target(given))
    assert both is not None
    assert both.tolist() == joined
    assert both.dtype.kind == first.dtype.kind, "a newcomer's dtype would outlive the newcomer"


@pytest.mark.parametrize(
    ("held", "given", "message"),
    [
        ([1], ["a"], r"new labels are strings; this model was fitted with numbers \(int64\)"),
        (["a"], [1.5], r"new labels are numbers \(float64\); this model was fitted with strings"),
        ([1], [[1, 2]], r"new labels are numbers \(int64\) in 2 columns; this model"),
        ([1], [1.5], r"new labels have dtype float64 .*int64, the dtype of this model"),
        ([True], [7], r"new labels have dtype int64 .*bool, the dtype of this model"),
    ],
)
def test_labels_of_other_kinds_are_refused(held: Any, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        join_target(hold_target(held), hold_target(given))


def test_labels_come_always_or_never() -> None:
    assert join_target(None, None) is None
    for pair in ((None, hold_target([1])), (hold_target([1]), None)):
        with pytest.raises(ValueError, match="pass y if and only if"):
            join_target(*pair)


@given(st.lists(st.sampled_from("abcd"), min_size=1), st.sets(st.sampled_from("abcdx")))
def test_removal_is_filtering(owners: list[str], leaving: set[str]) -> None:
    rows = make_rows(owners)
    match = rows.find(as_ids(sorted(leaving) or np.array([], object)))
    left = rows.without(match.positions)
    stay = [row for row, owner in enumerate(owners) if owner not in leaving]
    assert left.ids.to_list() == [owners[row] for row in stay]
    assert left.X[:, 0].tolist() == left.extra["slice"].tolist() == stay
    assert left.y is not None
    assert left.y.tolist() == [f"label-{row}" for row in stay]
    if leaving:
        assert match.missing.to_list() == sorted(leaving - set(owners))


@given(st.lists(st.integers(0, 3), min_size=1), st.lists(st.integers(0, 3), min_size=1))
def test_joining_is_concatenation(first: list[int], second: list[int]) -> None:
    both = make_rows(first).concat(make_rows(second))
    assert both.ids.to_list() == first + second
    assert both.X[:, 0].tolist() == [*range(len(first)), *range(len(second))]
    assert both.extra["slice"].tolist() == both.X[:, 0].tolist()


def test_joining_then_leaving_restores_every_byte() -> None:
    rows = make_rows(["a", "b"])
    wide = Rows(
        hold_table([[8.0, 9.0]]),
        hold_target(["a-very-long-label"]),
        as_ids(["c"]),
        {"slice": np.array([0])},
    )
    both = rows.concat(wide)
    left = both.without(both.find(as_ids(["c"])).positions)
    assert state.encode(left) == state.encode(rows)


def test_other_kind_of_ids_cannot_join() -> None:
    with pytest.raises(IdsTypeError, match="has int ids, but got str ids"):
        make_rows([1]).concat(make_rows(["1"]))


def test_removed_row_is_nowhere_in_memory() -> None:
    X = np.array([[1.0, 2.0], [CANARY, 3.0], [4.0, 5.0]])
    y = np.array(["a", "secret-label", "b"])
    rows = Rows(
        hold_table(X), hold_target(y), as_ids(["u", "secret-id", "w"]), {"k": np.array([1, 77, 3])}
    )
    left = rows.without(np.array([1]))
    arrays = [left.X, left.y, left.extra["k"], *vars(left.ids).values()]
    memory = b"".join(owned_bytes(array) for array in arrays)
    secrets = [
        np.float64(CANARY).tobytes(),
        b"secret-id",
        "secret".encode("utf-32-le"),
        np.int64(77).tobytes(),
    ]
    assert not any(secret in memory for secret in secrets)
    assert not any(np.shares_memory(left.X, array) for array in (X, rows.X))


def test_index_is_a_cache_and_travels_nowhere() -> None:
    rows = make_rows(["a", "b"])
    assert rows.find(as_ids(["b"])).positions.tolist() == [1]
    assert "index" in vars(rows)
    again = pickle.loads(pickle.dumps(rows))
    assert "index" not in vars(again)
    assert again.find(as_ids(["b"])).positions.tolist() == [1]
    assert state.encode(rows) == state.encode(make_rows(["a", "b"]))


def test_parts_are_what_lies_between() -> None:
    X, y = make_rows(["a", "b", "c"]).slice(1, 3)
    assert X[:, 0].tolist() == [1.0, 2.0]
    assert y is not None
    assert y.tolist() == ["label-1", "label-2"]
    with pytest.raises(ValueError, match="read-only"):
        y[0] = "other"


def test_state_round_trip_keeps_ids_of_both_kinds() -> None:
    for ids in ([3, 3, -1], ["", "é", "a\0"]):
        again = state.decode(state.encode(make_rows(ids)))
        assert again.ids.to_list() == ids
        assert again.X.tolist() == make_rows(ids).X.tolist()
