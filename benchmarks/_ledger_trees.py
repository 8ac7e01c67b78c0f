"""The two Merkle trees: slots of the rows, and the log of events."""

import gzip
import secrets
from typing import Any

import numpy as np

from benchmarks._report import Table, timed
from letheon.ledger.db.events import Frontier
from letheon.ledger.db.log import consistency_proof, inclusion_proof, root_of
from letheon.ledger.models.slot_tree import SlotTree
from letheon.verifier import check_consistency, check_inclusion, leaf_hash, transition_roots


def slot_table(slots: int, erased: tuple[int, ...]) -> Table:
    """Return time and size of transitions of a full tree."""
    leaves = [secrets.token_bytes(32) for _ in range(slots)]
    tree, build = timed(lambda: SlotTree.build(slots, np.arange(slots), leaves))
    columns = ("rows erased", "prove, ms", "verify, ms", "KiB", "KiB, gzip", "both roots right")
    note = f"Built from its leaves in {build.wall:.2f} s."
    rows = [_slot_row(tree, n) for n in erased]
    return Table(f"Slot tree of {slots:,} slots", columns, rows, note)


def _slot_row(tree: SlotTree, n_erased: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(n_erased)
    places = np.sort(rng.choice(tree.slots, n_erased, replace=False))
    (proof, after), prove = timed(lambda: tree.transition(places))
    roots, check = timed(lambda: transition_roots(proof))
    right = "yes" if roots[:2] == (tree.root, after.root) else "NO"
    sizes = (len(proof) / 1024, len(gzip.compress(proof, 6)) / 1024)
    return (f"{n_erased:,}", prove.wall * 1e3, check.wall * 1e3, *sizes, right)


def log_table(sizes: tuple[int, ...]) -> Table:
    """Return what the log of events costs at some sizes."""
    columns = (
        "events",
        "append, us",
        "prove, ms",
        "verify, us",
        "hashes, inclusion",
        "hashes, consistency",
        "root right",
    )
    note = "A proof is made from all leaves, as an export does; appending needs the frontier only."
    return Table("Log of events", columns, [_log_row(size) for size in sizes], note)


def _log_row(size: int) -> tuple[Any, ...]:
    leaves = [leaf_hash(number.to_bytes(8, "big")) for number in range(size)]
    frontier, append = timed(lambda: _appended(leaves))
    place, half, root = size // 3, size // 2, root_of(leaves)
    right = "yes" if frontier.root() == root else "NO"
    proof, prove = timed(lambda: inclusion_proof(leaves, place, size))
    _, check = timed(lambda: check_inclusion(leaves[place], place, size, proof, root))
    between = consistency_proof(leaves, half, size)
    check_consistency(half, root_of(leaves[:half]), size, root, between)
    times = (append.wall / size * 1e6, prove.wall * 1e3, check.wall * 1e6)
    return (f"{size:,}", *times, len(proof), len(between), right)


def _appended(leaves: list[bytes]) -> Frontier:
    frontier = Frontier()
    for leaf in leaves:
        frontier = frontier.append(leaf)
    return frontier
