"""The log's tree against the recursive definition of RFC 6962, and the verifier."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.ledger.db.events import Frontier
from letheon.ledger.db.log import (
    LogTree,
    compute_root,
)
from letheon.verifier import (
    VerificationError,
    check_consistency,
    check_inclusion,
    leaf_hash,
    log_root,
)

MOST = 34
LEAVES = [leaf_hash(bytes([number])) for number in range(MOST)]
TREE = LogTree(LEAVES)
sizes = st.integers(0, MOST)


def naive_root(leaves: list[bytes]) -> bytes:
    """``MTH`` of RFC 6962, word for word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\1" + naive_root(leaves[:k]) + naive_root(leaves[k:])).digest()


def naive_path(m: int, leaves: list[bytes]) -> list[bytes]:
    """``PATH`` of RFC 6962."""
    if len(leaves) == 1:
        return []
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    if m < k:
        return [*naive_path(m, leaves[:k]), naive_root(leaves[k:])]
    return [*naive_path(m - k, leaves[k:]), naive_root(leaves[:k])]


def naive_proof(m: int, leaves: list[bytes], whole: bool = True) -> list[bytes]:
    """``SUBPROOF`` of RFC 6962."""
    if m == len(leaves):
        return [] if whole else [naive_root(leaves)]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    if m <= k:
        return [*naive_proof(m, leaves[:k], whole), naive_root(leaves[k:])]
    return [*naive_proof(m - k, leaves[k:], False), naive_root(leaves[:k])]


@pytest.mark.parametrize("size", range(MOST + 1))
def test_roots(size: int) -> None:
    frontier = Frontier()
    for leaf in LEAVES[:size]:
        frontier = frontier.append(leaf)
    expected = naive_root(LEAVES[:size])
    assert frontier.root() == TREE.root(size) == compute_root(LEAVES[:size]) == expected
    assert log_root(LEAVES[:size]) == expected


@pytest.mark.parametrize("size", range(1, MOST + 1))
def test_every_inclusion(size: int) -> None:
    for index in range(size):
        proof = TREE.inclusion_path(index, size)
        assert proof == naive_path(index, LEAVES[:size])
        check_inclusion(LEAVES[index], index, size, proof, TREE.root(size))


@pytest.mark.parametrize("size2", range(1, MOST + 1))
def test_every_consistency(size2: int) -> None:
    for size1 in range(size2 + 1):
        proof = TREE.consistency_path(size1, size2)
        if size1:
            assert proof == naive_proof(size1, LEAVES[:size2])
        check_consistency(size1, TREE.root(size1), size2, TREE.root(size2), proof)


def test_the_functions_for_one_proof() -> None:
    part = LogTree(LEAVES[:11])
    assert part.inclusion_path(5, 11) == TREE.inclusion_path(5, 11)
    assert part.consistency_path(6, 11) == TREE.consistency_path(6, 11)


@given(st.integers(2, MOST), st.data())
def test_a_proof_of_another_place_is_refused(size: int, data: st.DataObject) -> None:
    index, other = data.draw(
        st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True)
    )
    with pytest.raises(VerificationError):
        check_inclusion(
            LEAVES[index], index, size, TREE.inclusion_path(other, size), TREE.root(size)
        )


@given(sizes)
def test_a_frontier_survives_its_text(size: int) -> None:
    frontier = Frontier()
    for leaf in LEAVES[:size]:
        frontier = frontier.append(leaf)
    assert Frontier.from_text(frontier.to_text()) == frontier


@pytest.mark.parametrize("text", ["1", "0 " + "00" * 32, "2 00", "x", "", "-1", "3 " + "00" * 32])
def test_no_frontier(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Frontier.from_text(text)


@pytest.mark.parametrize(("index", "size"), [(3, 3), (-1, 3), (0, 0), (0, MOST + 1)])
def test_places_that_do_not_exist(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="the log has 34 leaves"):
        TREE.inclusion_path(index, size)


@pytest.mark.parametrize(("size1", "size2"), [(4, 3), (-1, 3), (0, MOST + 1)])
def test_sizes_that_do_not_exist(size1: int, size2: int) -> None:
    with pytest.raises(ValueError, match="the log has 34 leaves"):
        TREE.consistency_path(size1, size2)
