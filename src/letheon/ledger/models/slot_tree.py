"""The commitment of a dataset: a Merkle tree over salted slots, in which rows become tombstones.

Leaf i is ``SHA-256(00 || HMAC-SHA256(salt_i, row_i))``, an empty slot is `TOMBSTONE`, a node is
``SHA-256(01 || left || right)``. Erasing rows replaces their leaves by the tombstone, so the
leaves and the siblings of their paths give both roots: a proof that exactly these leaves left and
that nothing else changed (`letheon.verifier.transition_roots`). It needs no row and no salt.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from letheon.verifier import TOMBSTONE, canonical, node_hash

SCHEME = "salted-slot-merkle-v1"
_FEWEST = 8
_SIZE = 32


def slots_for(n_rows: int) -> int:
    """Return the number of slots: a power of two, 8 or more, with one or more that stay empty."""
    return max(_FEWEST, 1 << n_rows.bit_length())


def draw_slots(slots: int, n_rows: int) -> NDArray[np.int64]:
    """Return a place for each row, drawn by the operating system's randomness.

    The order of the slots must not show the order in which people arrived.
    """
    if not 0 <= n_rows <= slots:
        raise ValueError(f"{n_rows} rows do not fit into {slots} slots")
    keys = np.frombuffer(os.urandom(8 * slots), np.uint64)
    return np.argsort(keys, kind="stable")[:n_rows].astype(np.int64)


class SlotTree:
    """All nodes of the tree. Immutable: `without` and `transition` return another.

    `levels[0]` holds the leaves side by side, the last level holds the root.
    """

    def __init__(self, levels: Sequence[bytes | bytearray]) -> None:
        self.levels = levels

    @classmethod
    def build(
        cls, slots: int, positions: NDArray[np.int64] | Sequence[int], leaves: Iterable[bytes]
    ) -> Self:
        """Hash a tree.

        Parameters
        ----------
        slots : int
            A power of two.
        positions : sequence of int
            Slot of each row, without repetition.
        leaves : iterable of bytes
            Leaf of each row (`letheon.verifier.slot_leaf`).

        Raises
        ------
        ValueError
            If a slot is taken twice or does not exist, or a leaf is none.
        """
        if slots < 1 or slots.bit_count() != 1:
            raise ValueError(f"slots={slots} is no power of two")
        places = np.asarray(positions, np.int64)
        _require_slots(places, slots)
        level = bytearray(TOMBSTONE * slots)
        for place, leaf in zip(places.tolist(), leaves, strict=True):
            _require_leaf(leaf)
            level[place * _SIZE : (place + 1) * _SIZE] = leaf
        levels = [bytes(level)]
        while len(levels[-1]) > _SIZE:
            levels.append(b"".join(_parents(levels[-1])))
        return cls(levels)

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self.levels[0]) // _SIZE

    @property
    def root(self) -> bytes:
        """Root of the tree, 32 bytes."""
        return bytes(self.levels[-1])

    def leaf(self, slot: int) -> bytes:
        """Return the leaf of a slot."""
        _require_slots(np.array([slot], np.int64), self.slots)
        return _node(self.levels[0], slot)

    def inclusion(self, slot: int) -> list[bytes]:
        """Return the siblings of a slot's path, from the leaf to the root."""
        _require_slots(np.array([slot], np.int64), self.slots)
        return [_node(level, (slot >> height) ^ 1) for height, level in enumerate(self.levels[:-1])]

    def without(self, positions: NDArray[np.int64] | Sequence[int]) -> Self:
        """Return the tree with tombstones in these slots; only their paths are hashed.

        Raises
        ------
        ValueError
            If a slot is empty already, is named twice, or does not exist.
        """
        places = np.sort(np.asarray(positions, np.int64))
        _require_slots(places, self.slots)
        levels = [bytearray(level) for level in self.levels]
        wanted: list[int] = places.tolist()
        for place in wanted:
            if _node(levels[0], place) == TOMBSTONE:
                raise ValueError(f"slot {place} is empty; nobody can leave it")
            levels[0][place * _SIZE : (place + 1) * _SIZE] = TOMBSTONE
        for below, level in pairwise(levels):
            wanted = _halved(wanted)
            for place in wanted:
                both = (_node(below, 2 * place), _node(below, 2 * place + 1))
                level[place * _SIZE : (place + 1) * _SIZE] = node_hash(*both)
        return type(self)(levels)

    def transition(self, positions: NDArray[np.int64] | Sequence[int]) -> tuple[bytes, Self]:
        """Return the proof that these slots became empty, and the tree after."""
        after = self.without(positions)
        old = {int(place): self.leaf(int(place)) for place in positions}
        return transition_between(after, old), after


def transition_between(after: SlotTree, old_leaves: Mapping[int, bytes]) -> bytes:
    """Return the proof that the tree with these leaves became `after`.

    Several transitions in a row are one: give the leaves of all of them.

    Parameters
    ----------
    after : SlotTree
        The newest tree; the slots are empty in it.
    old_leaves : mapping of int to bytes
        What was in these slots before.

    Returns
    -------
    bytes
        Canonical JSON with `scheme`, `slots`, `erased` (by slot) and `siblings` (level by level
        from the leaves, from left to right), for `letheon.verifier.transition_roots`.
    """
    places = sorted(old_leaves)
    if not places:
        raise ValueError("no slot was emptied; there is nothing to prove")
    _require_slots(np.array(places, np.int64), after.slots)
    for place in places:
        _require_leaf(old_leaves[place])
        if _node(after.levels[0], place) != TOMBSTONE:
            raise ValueError(f"slot {place} is not empty in the tree after the transition")
    return canonical(
        {
            "scheme": SCHEME,
            "slots": after.slots,
            "erased": [{"slot": place, "leaf": old_leaves[place].hex()} for place in places],
            "siblings": [sibling.hex() for sibling in _siblings(after, places)],
        }
    )


def _siblings(tree: SlotTree, places: list[int]) -> Iterator[bytes]:
    """Nodes beside the paths of these slots that are on none of the paths themselves."""
    for level in tree.levels[:-1]:
        on_a_path = set(places)
        for place in places:
            if place ^ 1 not in on_a_path:
                yield _node(level, place ^ 1)
        places = _halved(places)


def _halved(places: list[int]) -> list[int]:
    """Return the parents of sorted places, each once."""
    return list(dict.fromkeys([place >> 1 for place in places]))


def _parents(level: bytes) -> Iterator[bytes]:
    """Hash the parents of a level; parents of two tombstones or the like are hashed once."""
    pair, known = 2 * _SIZE, {}
    for begin in range(0, len(level), pair):
        both = level[begin : begin + pair]
        left, right = both[:_SIZE], both[_SIZE:]
        if left != right:
            yield node_hash(left, right)
            continue
        if both not in known:
            known[both] = node_hash(left, right)
        yield known[both]


def _node(level: bytes | bytearray, place: int) -> bytes:
    return bytes(level[place * _SIZE : (place + 1) * _SIZE])


def _require_slots(places: NDArray[np.int64], slots: int) -> None:
    if places.size and not (places.min() >= 0 and places.max() < slots):
        raise ValueError(f"a slot outside of 0..{slots - 1}")
    if len(np.unique(places)) != len(places):
        raise ValueError("a slot is named twice")


def _require_leaf(leaf: bytes) -> None:
    if len(leaf) != _SIZE or leaf == TOMBSTONE:
        raise ValueError("a leaf has 32 bytes and is not the tombstone")
