"""RFC 6962 proofs against the RFC's recursive definitions, for all sizes up to 70."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.verifier import (
    VerificationError,
    check_consistency,
    check_inclusion,
    leaf_hash,
    log_root,
)
from tests.verifier.maker import consistency, inclusion, tree_root

SIZES = range(71)
LEAVES = [b"event %d" % i for i in range(max(SIZES))]
HASHES = [leaf_hash(leaf) for leaf in LEAVES]
ROOTS = [tree_root(LEAVES[:size]) for size in SIZES]


def holds(check: object, *arguments: object) -> bool:
    assert callable(check)
    try:
        check(*arguments)
    except VerificationError:
        return False
    return True


def test_roots_are_those_of_the_definition() -> None:
    assert [log_root(HASHES[:size]) for size in SIZES] == ROOTS
    assert ROOTS[0] == hashlib.sha256(b"").digest()


def test_known_roots() -> None:
    # Test vectors of Certificate Transparency's reference implementation, by their inputs.
    inputs = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657"]
    inputs.append("606162636465666768696a6b6c6d6e6f")
    leaves = [leaf_hash(bytes.fromhex(text)) for text in inputs]
    assert leaves[0].hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert log_root(leaves[:2]).hex() == (
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"
    )
    assert log_root(leaves).hex() == (
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"
    )


def test_every_leaf_of_every_size_is_included() -> None:
    for size in SIZES:
        for index in range(size):
            check_inclusion(
                HASHES[index], index, size, inclusion(index, LEAVES[:size]), ROOTS[size]
            )
    assert not holds(check_inclusion, HASHES[0], 0, 0, [], ROOTS[0])


def test_inclusion_holds_for_no_other_place_leaf_or_length() -> None:
    for size in range(1, 20):
        for index in range(size):
            proof = inclusion(index, LEAVES[:size])
            leaf, root = HASHES[index], ROOTS[size]
            others = [
                *((leaf, other, size, proof, root) for other in range(-1, size + 2)),
                (HASHES[index + 1], index, size, proof, root),
                (leaf, index, size, [*proof, leaf], root),
                (leaf, index, size, proof[:-1], root),
                (leaf, index, size, proof, ROOTS[size + 1]),
                *(
                    (leaf, index, other, proof, ROOTS[other])
                    for other in range(20)
                    if other != size
                ),
            ]
            good = [item for item in others if holds(check_inclusion, *item)]
            # A tree of one leaf needs no proof, so nothing can be cut off it.
            expected = 1 + (size == 1)
            assert len(good) == expected, (size, index, good)


def test_every_size_continues_every_smaller_one() -> None:
    for large in SIZES:
        for small in range(large + 1):
            proof = consistency(small, LEAVES[:large])
            check_consistency(small, ROOTS[small], large, ROOTS[large], proof)
            if 0 < small < large:
                changed = [*proof[:-1], bytes(32)]
                assert not holds(
                    check_consistency, small, ROOTS[small], large, ROOTS[large], changed
                )


def test_smaller_log_does_not_continue_a_larger_one() -> None:
    with pytest.raises(
        VerificationError, match="a log of 2 entries does not continue a log of 3 entries"
    ):
        check_consistency(3, ROOTS[3], 2, ROOTS[2], [])


def test_consistency_holds_for_no_other_root_or_length() -> None:
    for large in range(2, 20):
        for small in range(1, large):
            proof = consistency(small, LEAVES[:large])
            a, b = ROOTS[small], ROOTS[large]
            for bad in (
                (small, bytes(32), large, b, proof),
                (small, a, large, bytes(32), proof),
                (small, a, large, b, [*proof, a]),
                (small, a, large, b, proof[:-1]),
                (small, a, large, b, []),
                (0, a, large, b, proof),
                (0, a, large, b, []),
                (large, a, large, b, []),
                (large, b, large, b, proof),
            ):
                assert not holds(check_consistency, *bad), (small, large)


@given(st.data())
def test_rewritten_log_does_not_continue(data: st.DataObject) -> None:
    large = data.draw(st.integers(2, 40))
    small = data.draw(st.integers(1, large))
    place = data.draw(st.integers(0, small - 1))
    forged = [*LEAVES[:place], b"other", *LEAVES[place + 1 : large]]
    proof = consistency(small, forged)
    assert not holds(check_consistency, small, ROOTS[small], large, tree_root(forged), proof)


@pytest.mark.parametrize("size", [1 << 60, (1 << 60) - 1])
def test_huge_sizes_cost_nothing(size: int) -> None:
    assert not holds(check_inclusion, HASHES[0], size - 1, size, [bytes(32)] * 99, ROOTS[1])
    assert not holds(check_consistency, size - 1, ROOTS[1], size, ROOTS[1], [bytes(32)] * 99)
