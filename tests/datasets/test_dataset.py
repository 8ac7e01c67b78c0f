"""Splitting and sampling keep people together, rows and labels aligned."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from letheon.datasets import Dataset, info
from tests.sharded.people import examples


def made(owners: list[int] | None, n_rows: int, *, is_sparse: bool = False) -> Dataset:
    """Return rows whose only value is their number, so that any mix-up shows."""
    X: Any = np.arange(n_rows, dtype=np.float32)[:, None]
    if is_sparse:
        X = sparse.csr_array(X)
    ids = None if owners is None else np.array(owners)
    about = info("diabetes" if owners else "adult")
    return Dataset(name="rows", X=X, y=np.arange(n_rows) % 2, ids=ids, info=about, real=False)


def numbers(X: Any) -> list[int]:
    dense = X.toarray() if sparse.issparse(X) else X
    return [int(value) for value in dense[:, 0]]


OWNERS = st.lists(st.integers(0, 6), min_size=2, max_size=40).filter(lambda ids: len(set(ids)) > 1)


@examples(60)
@given(owners=OWNERS, share=st.floats(0.01, 0.99), seed=st.integers(0, 9), is_sparse=st.booleans())
def test_no_person_is_on_both_sides(
    owners: list[int], share: float, seed: int, is_sparse: bool
) -> None:
    data = made(owners, len(owners), is_sparse=is_sparse).split(share, seed)
    assert data.ids is not None
    assert data.test_ids is not None
    assert data.y_test is not None
    assert not set(data.ids) & set(data.test_ids)
    assert len(data.ids) > 0
    assert len(data.test_ids) > 0
    train, test = numbers(data.X), numbers(data.X_test)
    assert sorted(train + test) == list(range(len(owners)))
    assert [owners[row] for row in train] == list(data.ids)
    assert [row % 2 for row in test] == list(data.y_test)


@examples(60)
@given(owners=st.none() | OWNERS, n_rows=st.integers(1, 50), seed=st.integers(0, 9))
def test_a_sample_has_whole_people(owners: list[int] | None, n_rows: int, seed: int) -> None:
    data = made(owners, 40 if owners is None else len(owners))
    kept = numbers(data.sample(n_rows, seed).X)
    assert kept == sorted(kept)
    if owners is None:
        assert len(kept) == min(n_rows, 40)
        return
    chosen = {owners[row] for row in kept}
    assert kept == [row for row, owner in enumerate(owners) if owner in chosen]
    assert len(kept) <= n_rows or len(chosen) == 1


def test_the_share_of_people_is_the_one_asked_for() -> None:
    data = made(None, 1000).split(0.25)
    assert data.y_test is not None
    assert len(data.y_test) == 250


def test_other_seeds_other_people() -> None:
    data = made(None, 100)
    assert numbers(data.split(seed=0).X_test) == numbers(data.split(seed=0).X_test)
    assert numbers(data.split(seed=0).X_test) != numbers(data.split(seed=1).X_test)
    assert numbers(data.sample(20, seed=0).X) != numbers(data.sample(20, seed=1).X)


def test_a_provider_s_split_stays() -> None:
    data = made(None, 10).split()
    assert data.split(0.5, seed=3) is data


@pytest.mark.parametrize("share", [0, 1, -0.5, 2])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        made(None, 10).split(share)


def test_one_person_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="one person"):
        made([4, 4, 4], 3).split()


def test_no_rows_are_no_sample() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        made(None, 10).sample(0)


def test_one_line_says_what_it_is() -> None:
    said = made([1, 1, 2, 3], 4).describe()
    assert said == "rows: 4 x 1, 3 people, 2 classes, 50.0% positive"


def test_rows_that_are_no_images() -> None:
    with pytest.raises(ValueError, match="not images"):
        made(None, 3).images()
