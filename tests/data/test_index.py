"""Finding people, against a search through a plain list, with and without colliding hashes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon.data import IdIndex, Ids, IntIds, TextIds, as_ids

SMALL_INTS = st.lists(st.integers(-4, 4), min_size=1)
SMALL_TEXTS = st.lists(st.sampled_from(["", "a", "b", "ab", "a\0", "ä"]), min_size=1)
PAIRS: st.SearchStrategy[tuple[list[Any], list[Any]]] = st.one_of(
    st.tuples(SMALL_INTS, SMALL_INTS), st.tuples(SMALL_TEXTS, SMALL_TEXTS)
)


def assert_finds(held: list[Any], wanted: list[Any]) -> None:
    matches = IdIndex(as_ids(held)).find(as_ids(wanted))
    assert matches.positions.tolist() == [row for row, value in enumerate(held) if value in wanted]
    assert matches.has_rows.tolist() == [value in held for value in wanted]
    for row, value in zip(matches.any_row.tolist(), wanted, strict=True):
        assert held[row] == value if value in held else row == -1


@pytest.fixture(params=[1, 2])
def colliding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all ids share one hash, or two."""

    def hashes(ids: Ids, *_: Any) -> NDArray[np.uint64]:
        values = [len(str(value)) % request.param for value in ids.to_list()]
        return np.array(values, np.uint64)

    monkeypatch.setattr(IntIds, "hashes", hashes)
    monkeypatch.setattr(TextIds, "hashes", hashes)


@given(PAIRS)
def test_find_is_a_search_through_the_list(pair: tuple[list[Any], list[Any]]) -> None:
    assert_finds(*pair)


@pytest.mark.usefixtures("colliding")
@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ([1, 2, 3, 2, 1], [2, 9]),
        ([1, 2, 3], [4, 5]),
        (["a", "b", "a", ""], ["a", "", "x"]),
        (list(range(50)), list(range(25, 75))),
        ([7], [7, 7]),
    ],
)
def test_colliding_hashes_confuse_no_ids(held: list[Any], wanted: list[Any]) -> None:
    assert_finds(held, wanted)


@pytest.mark.parametrize(("held", "wanted"), [([1, 2], ["1", "2"]), (["1", "2"], [1, 2])])
def test_int_and_str_are_different_people(held: list[Any], wanted: list[Any]) -> None:
    matches = IdIndex(as_ids(held)).find(as_ids(wanted))
    assert matches.positions.size == 0
    assert matches.any_row.tolist() == [-1, -1]
    assert matches.has_rows.tolist() == [False, False]


def test_no_ids_in_the_index_and_in_the_query() -> None:
    assert IdIndex(as_ids([1, 2])).find(as_ids([])).positions.size == 0
    assert IdIndex(as_ids([])).find(as_ids([1])).has_rows.tolist() == [False]


def test_extreme_ints_are_found() -> None:
    assert_finds([-(2**63), 0, 2**63 - 1], [2**63 - 1, -(2**63)])


def test_a_person_with_many_rows() -> None:
    held = [row % 3 for row in range(3000)]
    assert_finds(held, [1])
