"""The commitment of a dataset: roots, transitions and paths against a naive tree."""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.ledger.models import commitment as slot_tree
from letheon.ledger.models.commitment import SlotTree, count_slots, draw_slots, transition_between
from letheon.verifier import TOMBSTONE, VerificationError, node_hash, transition_roots


class SlotTreeCase(NamedTuple):
    """Slots, who is in them, and who leaves in which batch."""

    slots: int
    leaves: dict[int, bytes]
    batches: list[list[int]]


@st.composite
def scenes(draw: st.DrawFn) -> SlotTreeCase:
    slots = 1 << draw(st.integers(0, 7))
    held = draw(st.lists(st.integers(0, slots - 1), min_size=1, max_size=slots, unique=True))
    leaves = {slot: hashlib.sha256(bytes([slot])).digest() for slot in held}
    leaving = draw(st.lists(st.sampled_from(held), min_size=1, unique=True))
    cut = draw(st.integers(0, len(leaving)))
    return SlotTreeCase(slots, leaves, [batch for batch in (leaving[:cut], leaving[cut:]) if batch])


def naive_root(slots: int, leaves: Mapping[int, bytes]) -> bytes:
    level = [
        leaves.get(slot, hashlib.sha256(b"letheon/tombstone/v1").digest()) for slot in range(slots)
    ]
    while len(level) > 1:
        level = [
            hashlib.sha256(b"\1" + level[i] + level[i + 1]).digest()
            for i in range(0, len(level), 2)
        ]
    return level[0]


def build_tree(scene: SlotTreeCase) -> SlotTree:
    return SlotTree.build(scene.slots, list(scene.leaves), scene.leaves.values())


@given(scenes())
def test_the_root_is_that_of_a_naive_tree(scene: SlotTreeCase) -> None:
    assert build_tree(scene).root == naive_root(scene.slots, scene.leaves)


@given(scenes())
def test_a_transition_gives_both_roots(scene: SlotTreeCase) -> None:
    tree, left = build_tree(scene), dict(scene.leaves)
    for batch in scene.batches:
        before = naive_root(scene.slots, left)
        for slot in batch:
            del left[slot]
        proof, after = tree.transition(batch)
        assert after.root == naive_root(scene.slots, left)
        assert transition_roots(proof) == (before, after.root, len(batch))
        tree = after
    assert build_tree(scene).root == naive_root(scene.slots, scene.leaves)


@given(scenes())
def test_several_transitions_are_one(scene: SlotTreeCase) -> None:
    tree = build_tree(scene)
    old: dict[int, bytes] = {}
    for batch in scene.batches:
        proof, tree = tree.transition(batch)
        erased = json.loads(proof)["erased"]
        old |= {one["slot"]: bytes.fromhex(one["leaf"]) for one in erased}
    joined = transition_between(tree, old)
    assert transition_roots(joined) == (build_tree(scene).root, tree.root, len(old))


@given(scenes())
def test_the_order_of_the_batch_does_not_show(scene: SlotTreeCase) -> None:
    tree, batch = build_tree(scene), scene.batches[0]
    assert tree.transition(batch)[0] == tree.transition(np.array(batch[::-1]))[0]


@given(scenes(), st.data())
def test_a_path_leads_to_the_root(scene: SlotTreeCase, data: st.DataObject) -> None:
    tree, slot = build_tree(scene), data.draw(st.integers(0, scene.slots - 1))
    node = scene.leaves.get(slot, TOMBSTONE)
    assert tree.leaf(slot) == node
    for height, sibling in enumerate(tree.inclusion(slot)):
        node = node_hash(sibling, node) if slot >> height & 1 else node_hash(node, sibling)
    assert node == tree.root


@given(scenes())
def test_a_changed_sibling_changes_the_roots(scene: SlotTreeCase) -> None:
    tree = build_tree(scene)
    proof, after = tree.transition(scene.batches[0])
    actual = json.loads(proof)
    for i in range(len(actual["siblings"])):
        forged = {**actual, "siblings": [*actual["siblings"]]}
        forged["siblings"][i] = "00" * 32
        data = json.dumps(forged, sort_keys=True, separators=(",", ":")).encode()
        assert set(transition_roots(data)[:2]).isdisjoint({tree.root, after.root})


def four_full_slots() -> SlotTree:
    return SlotTree.build(4, range(4), [bytes([i]) * 32 for i in range(4)])


def test_siblings_in_a_wrong_order_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = four_full_slots()
    honest = slot_tree._list_siblings
    monkeypatch.setattr(slot_tree, "_list_siblings", lambda *args: reversed(list(honest(*args))))
    proof, _ = tree.transition([0, 3])
    assert transition_roots(proof)[0] != tree.root


def test_a_path_that_was_not_hashed_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = four_full_slots()
    monkeypatch.setattr(slot_tree, "_list_parents", lambda places: [places[0] >> 1])
    _, after = tree.transition([0, 3])
    assert after.root != naive_root(4, {i: bytes([i]) * 32 for i in (1, 2)})


@pytest.mark.parametrize(
    ("slots", "positions", "leaves", "why"),
    [
        (6, [0], [b"a" * 32], "power of two"),
        (0, [], [], "power of two"),
        (8, [8], [b"a" * 32], "outside"),
        (8, [-1], [b"a" * 32], "outside"),
        (8, [1, 1], [b"a" * 32] * 2, "twice"),
        (8, [1], [b"a"], "32 bytes"),
        (8, [1], [TOMBSTONE], "tombstone"),
        (8, [1, 2], [b"a" * 32], "shorter"),
    ],
)
def test_no_tree(slots: int, positions: list[int], leaves: list[bytes], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SlotTree.build(slots, positions, leaves)


@pytest.mark.parametrize(
    ("positions", "why"),
    [([5], "empty"), ([1, 1], "twice"), ([8], "outside"), ([], "at least one leaf")],
)
def test_no_transition(positions: list[int], why: str) -> None:
    tree = SlotTree.build(8, [1], [b"a" * 32])
    with pytest.raises(ValueError, match=why):
        tree.transition(positions)


def test_a_slot_that_is_still_full_has_not_left() -> None:
    with pytest.raises(ValueError, match="not empty"):
        transition_between(four_full_slots(), {1: b"b" * 32})


def test_a_proof_without_a_sibling_is_refused() -> None:
    actual = json.loads(four_full_slots().transition([0])[0])
    actual["siblings"].pop()
    with pytest.raises(VerificationError):
        transition_roots(json.dumps(actual, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    ("n_rows", "slots"), [(0, 8), (1, 8), (7, 8), (8, 16), (948_112, 1 << 20), (1 << 20, 1 << 21)]
)
def test_there_is_always_an_empty_slot(n_rows: int, slots: int) -> None:
    assert count_slots(n_rows) == slots


def test_places_are_drawn_at_random_and_once() -> None:
    drawn = [draw_slots(64, 64) for _ in range(20)]
    assert all(sorted(places.tolist()) == list(range(64)) for places in drawn)
    assert len({places.tobytes() for places in drawn}) == 20
    with pytest.raises(ValueError, match="do not fit"):
        draw_slots(8, 9)


def test_every_slot_is_as_likely_for_the_first_row() -> None:
    counts = np.bincount([int(draw_slots(8, 1)[0]) for _ in range(8_000)], minlength=8)
    # Chi-square with 7 degrees of freedom exceeds 40 once in 800,000 runs.
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 40


@pytest.mark.soak
def test_proofs_of_a_million_slots_are_small() -> None:
    slots, n_rows = 1 << 20, 948_112
    places = draw_slots(slots, n_rows)
    tree = SlotTree.build(slots, places, (os.urandom(32) for _ in range(n_rows)))
    for count, most_kib in ((1, 0.7), (100, 45), (1_000, 330)):
        proof, after = tree.transition(places[:count])
        actual = json.loads(proof)
        binary = 32 * len(actual["siblings"]) + 36 * count
        assert binary / 1024 < most_kib
        assert len(proof) < 2.3 * binary
        assert transition_roots(proof) == (tree.root, after.root, count)
