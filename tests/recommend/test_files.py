"""Files with recommenders whose parts do not belong together."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from letheon import state
from letheon.exceptions import StateError
from letheon.recommend import EASE, CoCounts, ItemKNN

HISTORIES = np.array([[1, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1, 1]])


def set_counts(n_items: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.sums_ = CoCounts.count(sp.csr_array(np.ones((3, n_items))))

    return change


def set_columns(model: Any) -> None:
    model.n_features_in_ = 3


def drop_counts(model: Any) -> None:
    del model.sums_


def replace_counts(model: Any) -> None:
    model.sums_ = model.rows_


@pytest.mark.parametrize("make", [ItemKNN, EASE])
@pytest.mark.parametrize(
    "change", [set_counts(3), set_counts(9), set_columns, drop_counts, replace_counts]
)
def test_a_file_with_other_numbers_of_items_is_refused(
    make: Any, change: Callable[[Any], None]
) -> None:
    """Sparse products of such a model would write outside of their memory."""
    model = make(random_state=0).fit(HISTORIES)
    state.decode(state.encode(model)).forget([0])
    change(model)
    with pytest.raises(StateError):
        state.decode(state.encode(model))


def test_an_unfitted_recommender_is_read_back() -> None:
    assert state.decode(state.encode(ItemKNN(n_neighbors=3))).n_neighbors == 3


def test_an_unknown_similarity_is_refused() -> None:
    model = ItemKNN(random_state=0).fit(HISTORIES).set_params(similarity="other")
    with pytest.raises(StateError, match="similarity"):
        state.decode(state.encode(model))
