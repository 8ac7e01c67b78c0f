"""The tools of the checks: walking through a model, and taking rows out of old aggregates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeClassifier

from letheon.checks._exactness import change_value
from letheon.checks._people import CANARY, make_people
from letheon.checks._residue import find_revealing_aggregate
from letheon.checks._walk import iter_leaves
from letheon.data import People

Floats = NDArray[np.float64]
AGGREGATES: dict[str, Callable[[Floats, Floats], Any]] = {
    "sum": lambda X, y: X.sum(axis=0),
    "mean": lambda X, y: X.mean(axis=0),
    "sum of squares": lambda X, y: (X**2).sum(axis=0),
    "second moment": lambda X, y: X.T @ X / len(X),
    "ridge": lambda X, y: X.T @ X + 7 * np.eye(X.shape[1]),
    "covariance": lambda X, y: np.cov(X.T),
    "plain covariance": lambda X, y: np.cov(X.T, ddof=0),
    "inverse": lambda X, y: np.linalg.inv(X.T @ X),
    "factor": lambda X, y: np.linalg.cholesky(X.T @ X),
    "product": lambda X, y: X.T @ y,
    "sum and count": lambda X, y: np.append(X.sum(axis=0), len(X)),
    "count and sum": lambda X, y: np.append(len(X), X.sum(axis=0)),
    "product with intercept": lambda X, y: np.column_stack([X, np.ones(len(X))]).T @ y[:, None],
    "intercept last": lambda X, y: _gram(np.column_stack([X, np.ones(len(X))])),
    "intercept first": lambda X, y: _gram(np.column_stack([np.ones(len(X)), X])),
}


def _gram(design: Floats) -> Floats:
    product: Floats = design.T @ design
    return product


def _people(seed: int) -> tuple[People, Floats, Floats]:
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(30, 4)), rng.normal(size=30)
    row = rng.choice([-1, 1], 4) * rng.uniform(100, 900, 4)
    ids = np.array([str(number) for number in range(30)])
    return People(X, y, ids), row, rng.normal(size=1) + 5


@pytest.mark.parametrize("kind", AGGREGATES)
@given(seed=st.integers(0, 2**32))
def test_an_old_aggregate_reveals_the_row_and_a_new_one_does_not(kind: str, seed: int) -> None:
    rest, row, target = _people(seed)
    assert rest.y is not None
    make = AGGREGATES[kind]
    old = make(np.vstack([rest.X, row]), np.append(rest.y, target))
    assert find_revealing_aggregate(old, row, rest) is not None
    assert find_revealing_aggregate(make(rest.X, rest.y), row, rest) is None


def test_sums_per_class_reveal_the_row() -> None:
    people = make_people(DecisionTreeClassifier())
    rest, row = people.without([CANARY]), people.rows_of([CANARY]).X[0]
    assert people.y is not None
    old = np.stack([people.X[people.y == label].sum(axis=0) for label in np.unique(people.y)])
    assert find_revealing_aggregate(old, row, rest) == "product of X and y"
    assert find_revealing_aggregate(old.T.copy(), row, rest) == "product of X and y"


class NamedPair(NamedTuple):
    first: int
    second: Any


@dataclass(frozen=True)
class SlottedBox:
    content: Any


VALUES = st.recursive(
    st.integers(0, 9) | st.floats(allow_nan=False) | st.booleans() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.builds(NamedPair, st.integers(0, 9), inner)
        | st.builds(SlottedBox, inner)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_every_leaf_can_be_changed_and_put_back(value: Any) -> None:
    box = SlottedBox(value)
    before = repr(box)
    for leaf in list(iter_leaves(box)):
        assert leaf.put is not None
        leaf.put("another value")
        assert repr(box) != before, leaf.path
        leaf.put(leaf.value)
        assert repr(box) == before, leaf.path


def test_compiled_state_is_seen_but_not_changed() -> None:
    model = DecisionTreeClassifier().fit([[0.0], [1.0], [2.0]], [0, 1, 0])
    inside = [leaf for leaf in iter_leaves(model) if ".tree_()" in leaf.path]
    assert any(isinstance(leaf.value, np.ndarray) for leaf in inside)
    assert all(leaf.put is None for leaf in inside)


def test_a_model_that_contains_itself_ends() -> None:
    box = SlottedBox([1])
    box.content.append(box)
    assert [leaf.value for leaf in iter_leaves(box)] == [1]


def test_of_long_sequences_both_ends_are_enough() -> None:
    paths = [leaf.path for leaf in iter_leaves(SlottedBox(list(range(50))), brief=True)]
    assert paths == ["SlottedBox.content[0]", "SlottedBox.content[49]"]


@pytest.mark.parametrize(
    "value",
    [0.0, -1.0, np.nan, np.inf, 1e300, 3, -1, True, "", "a", np.float32(-1), np.bool_(True)],
)
def test_another_value_differs_and_keeps_its_kind(value: Any) -> None:
    other = change_value(value)
    assert type(other) is type(value)
    assert repr(other) != repr(value)


@pytest.mark.parametrize("array", [["ash", "elm"], [""], [True], [7], [-1.0], [b"x"], [250]])
def test_another_array_differs_and_keeps_its_kind(array: Any) -> None:
    value = np.array(array, np.uint8 if array == [250] else None)
    other = change_value(value)
    assert other.dtype == value.dtype
    assert not np.array_equal(other, value)
