"""Generators go on where they were; sparse matrices keep container, order and index width."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.neighbors import BallTree, KDTree

from letheon import state

GENERATORS = [
    np.random.RandomState(3),
    np.random.RandomState(np.random.PCG64(1)),
    *(
        np.random.Generator(kind(4))
        for kind in (
            np.random.MT19937,
            np.random.PCG64,
            np.random.PCG64DXSM,
            np.random.Philox,
            np.random.SFC64,
        )
    ),
]


def again(value: Any) -> Any:
    return state.decode(state.encode(value))


@pytest.mark.parametrize("generator", GENERATORS, ids=range(len(GENERATORS)))
def test_generators_go_on_where_they_were(generator: Any) -> None:
    generator.standard_normal(3)
    generator.bytes(3)
    restored = again(generator)
    assert state.digest(restored) == state.digest(generator)
    assert np.array_equal(restored.standard_normal(7), generator.standard_normal(7))


def test_digest_sees_where_a_generator_is() -> None:
    generator = np.random.RandomState(0)
    before = state.digest(generator)
    generator.random()
    assert state.digest(generator) != before


@pytest.mark.parametrize("kind", ["bsr", "coo", "csc", "csr", "dia", "dok", "lil"])
@pytest.mark.parametrize("form", ["matrix", "array"])
def test_sparse_containers(kind: str, form: str) -> None:
    dense = np.array([[0, 1.5, 0], [0, 0, -2], [3, 0, 0], [0, 0, 0]])
    value = getattr(sp, f"{kind}_{form}")(dense)
    restored = again(value)
    assert type(restored) is type(value)
    assert restored.dtype == value.dtype
    assert np.array_equal(restored.toarray(), dense)
    assert state.digest(restored) == state.digest(value)


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_width_and_order_of_indices(width: Any) -> None:
    indices, indptr = np.array([2, 0], width), np.array([0, 2], width)
    value = sp.csr_matrix((np.array([1.0, 2.0]), indices, indptr), shape=(1, 3))
    value.indices, value.indptr = indices, indptr
    restored = again(value)
    assert restored.indices.dtype == restored.indptr.dtype == width
    assert restored.indices.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (KDTree, {}),
        (BallTree, {}),
        (KDTree, {"metric": "manhattan", "leaf_size": 2}),
        (KDTree, {"metric": "minkowski", "p": 3}),
        (BallTree, {"metric": "minkowski", "p": 3, "w": np.array([1.0, 2.0])}),
        (BallTree, {"metric": "seuclidean", "V": np.array([1.0, 2.0])}),
        (BallTree, {"metric": "mahalanobis", "VI": np.array([[2.0, 0.5], [0.5, 1.0]])}),
        (BallTree, {"metric": "haversine"}),
    ],
    ids=range(8),
)
def test_search_trees_answer_as_before(cls: Any, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    points, queries = rng.normal(size=(50, 2)), rng.normal(size=(9, 2))
    tree = cls(points, **options)
    restored = again(tree)
    for a, b in zip(restored.query(queries, k=3), tree.query(queries, k=3), strict=True):
        assert np.array_equal(a, b)
    assert state.digest(restored) == state.digest(tree)


def test_one_feature_and_an_odd_power() -> None:
    tree = KDTree(np.arange(9.0)[:, None], metric="minkowski", p=3)
    distance, nearest = again(tree).query([[3.25]])
    assert nearest.tolist() == [[3]]
    assert distance.tolist() == [[0.25]]


def test_path_comes_back() -> None:
    assert again(Path("a") / "b") == Path("a/b")
