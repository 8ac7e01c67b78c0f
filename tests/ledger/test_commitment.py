"""The commitment to rows: values, salts, slots and the order of registration."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from letheon.data import Rows, as_ids, hold_table
from letheon.exceptions import CorruptFileError
from letheon.ledger.models.commitment import (
    SALT_BYTES,
    RowSlots,
    build_tree,
    compute_ranks,
    draw_row_slots,
    encode_rows,
    require_root,
)
from letheon.verifier import slot_leaf
from tests.sharded.people import examples

N_ROWS, N_SLOTS = 12, 16
ROWS = Rows(np.arange(24.0).reshape(N_ROWS, 2), np.arange(N_ROWS), as_ids(list(range(N_ROWS))))


def test_a_leaf_holds_salt_place_and_row() -> None:
    vault = draw_row_slots(N_ROWS, N_SLOTS)
    tree = build_tree(ROWS, vault, N_SLOTS)
    for place, content in enumerate(encode_rows(ROWS)):
        salt, slot = vault.salts[place].tobytes(), int(vault.slots[place])
        assert tree.leaf(slot) == slot_leaf(salt, place, content)
    assert vault.salts.shape == (N_ROWS, SALT_BYTES)


@examples(30)
@given(st.sets(st.integers(0, N_ROWS - 1), max_size=N_ROWS - 1))
def test_rows_that_remain_keep_their_leaves(gone: set[int]) -> None:
    vault = draw_row_slots(N_ROWS, N_SLOTS)
    kept = np.setdiff1d(np.arange(N_ROWS), sorted(gone))
    slots = vault.slots[sorted(gone)]
    after = build_tree(ROWS.take(kept), vault.take(kept), N_SLOTS)
    assert after.root == build_tree(ROWS, vault, N_SLOTS).without(slots).root


@examples(30)
@given(st.permutations(range(N_ROWS)))
def test_no_other_order_has_a_commitment(order: list[int]) -> None:
    vault, positions = draw_row_slots(N_ROWS, N_SLOTS), np.array(order)
    assume(order != sorted(order))
    with pytest.raises(ValueError, match="order that they had at registration"):
        build_tree(ROWS.take(positions), vault.take(positions), N_SLOTS)
    renumbered = vault.take(positions)._replace(places=vault.places)
    root = build_tree(ROWS, vault, N_SLOTS).root.hex()
    with pytest.raises(CorruptFileError, match="were altered"):
        require_root(build_tree(ROWS.take(positions), renumbered, N_SLOTS), root)


@pytest.mark.parametrize(
    "changes",
    [
        {"places": np.arange(N_ROWS) - 1},
        {"places": np.zeros(N_ROWS, np.int64)},
        {"places": np.arange(N_ROWS, dtype=np.int32)},
        {"places": np.arange(N_ROWS + 1)},
        {"places": list(range(N_ROWS))},
        {"salts": np.zeros((N_ROWS, 31), np.uint8)},
        {"salts": np.zeros((N_ROWS, SALT_BYTES), np.int64)},
        {"slots": np.zeros(N_ROWS, np.int64)},
        {"slots": np.arange(N_ROWS) + N_SLOTS},
    ],
)
def test_a_vault_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    vault = RowSlots(**draw_row_slots(N_ROWS, N_SLOTS)._asdict() | changes)
    with pytest.raises(ValueError, match=r"places|salts|slot|order"):
        build_tree(ROWS, vault, N_SLOTS)


SIZES = ["small", "middle", "large", "huge"]
WORN = ["large", "small", None, "huge", "middle", "small", "large", "middle"]


def dressed(order: list[str], library: str, worn: list[Any] = WORN) -> Rows:
    if library == "pandas":
        frame: Any = pd.DataFrame({"size": pd.Categorical(worn, categories=order, ordered=True)})
    else:
        frame = pl.DataFrame({"size": pl.Series(worn, dtype=pl.Enum(order))})
    return Rows(hold_table(frame), None, as_ids(list(range(len(worn)))))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_ordered_categories_keep_their_order_when_one_leaves(library: str) -> None:
    rows = dressed(SIZES, library)
    vault = draw_row_slots(len(rows), N_SLOTS, compute_ranks(rows))
    before = build_tree(rows, vault, N_SLOTS)
    kept = np.array([0, 1, 2, 3, 5, 6])  # the middle size is empty now
    after = build_tree(rows.take(kept), vault.take(kept), N_SLOTS)
    assert after.root == before.without(vault.slots[[4, 7]]).root
    assert compute_ranks(rows.take(kept)).max() == 2


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("order", [SIZES[::-1], ["small", "large", "middle", "huge"]])
def test_another_order_of_categories_has_no_commitment(library: str, order: list[str]) -> None:
    rows = dressed(SIZES, library)
    vault = draw_row_slots(len(rows), N_SLOTS, compute_ranks(rows))
    other = dressed(order, library)
    with pytest.raises(ValueError, match="ordered categories"):
        build_tree(other, vault, N_SLOTS)
    renumbered = vault._replace(ranks=compute_ranks(other))
    root = build_tree(rows, vault, N_SLOTS).root
    assert build_tree(other, renumbered, N_SLOTS).root != root
    with pytest.raises(ValueError, match="ranks"):
        build_tree(rows, vault._replace(ranks=np.empty((len(rows), 0), np.int64)), N_SLOTS)
    filled = dressed(SIZES, library, ["small" if each is None else each for each in WORN])
    with pytest.raises(ValueError, match="ordered categories"):
        build_tree(filled, vault, N_SLOTS)


@pytest.mark.parametrize(
    "table", [np.zeros((3, 2)), pd.DataFrame({"a": pd.Categorical(list("xyx"))})]
)
def test_tables_without_an_order_of_categories_have_no_ranks(table: Any) -> None:
    rows = Rows(hold_table(table), None, as_ids([1, 2, 3]))
    assert compute_ranks(rows).shape == (3, 0)
