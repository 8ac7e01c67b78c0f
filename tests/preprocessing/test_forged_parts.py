"""Counts in files of pipelines are bounded when they are read."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import Normalizer

from letheon import state
from letheon.exceptions import CorruptFileError
from letheon.preprocessing import (
    CountVectorizer,
    ForgetColumnTransformer,
    OneHotEncoder,
    StandardScaler,
)
from letheon.preprocessing._terms import Entries

X = np.random.default_rng(0).normal(size=(20, 3))


def make_columns() -> ForgetColumnTransformer:
    parts = [
        ("scale", StandardScaler(random_state=0), [0]),
        ("code", OneHotEncoder(sparse_output=False), [1]),
        ("norm", Normalizer(), [1, 2]),
        ("rest", "passthrough", [2]),
    ]
    return ForgetColumnTransformer(parts).fit(X)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize(
    "forged",
    [{"width": 2**40}, {"width": -1}, {"width": 1.0}, {"columns": (2**40,)}, {"columns": [0]}],
)
def test_a_forged_part_is_refused(number: int, forged: Any) -> None:
    columns = make_columns()
    parts = list(columns.parts_)
    parts[number] = replace(parts[number], **forged)
    columns.parts_ = tuple(parts)
    with pytest.raises(CorruptFileError):
        state.decode(state.encode(columns))


@pytest.mark.parametrize("number", [0, 1, 3])
def test_the_width_is_that_of_the_transformer(number: int) -> None:
    columns = make_columns()
    assert state.decode(state.encode(columns)).digest() == columns.digest()
    parts = list(columns.parts_)
    parts[number] = replace(parts[number], width=parts[number].width + 1)
    columns.parts_ = tuple(parts)
    with pytest.raises(CorruptFileError, match="width"):
        state.decode(state.encode(columns))


@pytest.mark.parametrize(
    "starts", [[0, 9], [1, 2], [0, 2, 1, 2], [], [0.0, 2.0], [[0, 2]], [0, -1, 2]]
)
def test_documents_with_entries_that_do_not_exist_are_refused(starts: list[Any]) -> None:
    """SciPy read and wrote behind the arrays."""
    one = np.ones(2, np.int64)
    counts = np.ones(2, np.float32)
    Entries(np.array([0, 2]), one, counts).require_valid()
    with pytest.raises(ValueError, match="not a valid vectoriser"):
        Entries(np.array(starts), one, counts).require_valid()


@pytest.mark.parametrize("count", [0.0, -1.0, 0.5, np.nan, np.inf, 1e30])
def test_only_whole_numbers_are_counts(count: float) -> None:
    one = np.ones(2, np.int64)
    with pytest.raises(ValueError, match="not a valid vectoriser"):
        Entries(np.array([0, 2]), one, np.array([1, count], np.float32)).require_valid()


def test_a_forged_vectoriser_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = CountVectorizer().fit(["red blue", "blue green"])
    state.decode(state.encode(model))
    plain = type(model.sums_)._to_state
    monkeypatch.setattr(
        type(model.sums_),
        "_to_state",
        lambda sums: plain(sums) | {"starts": np.array([0, 10**6, 2 * 10**6])},
    )
    with pytest.raises(CorruptFileError):
        state.decode(state.encode(model))


@pytest.mark.parametrize("count", [2**62, 2**24 + 1, "3", None])
def test_a_forged_number_of_columns_is_refused(count: Any) -> None:
    """Names of columns were made from any number, until no memory was left."""
    scaler = StandardScaler(random_state=0).fit(X)
    scaler.n_features_in_ = count
    with pytest.raises(CorruptFileError, match="n_features_in_"):
        state.decode(state.encode(scaler))
