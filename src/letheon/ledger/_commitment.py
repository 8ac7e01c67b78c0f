"""The commitment to the rows of a model: one salted leaf per row, in a slot that tells nothing."""

import secrets

import numpy as np

from letheon.exceptions import CorruptFileError
from letheon.ledger._row_bytes import row_bytes
from letheon.ledger._slot_tree import SlotTree, draw_slots
from letheon.ledger._versions import Vault
from letheon.rows import Rows
from letheon.verifier import slot_leaf

__all__ = ["SALT_BYTES", "new_vault", "require_root", "tree_of"]

SALT_BYTES = 32


def new_vault(n_rows: int, n_slots: int) -> Vault:
    """Draw a slot and a salt for every row.

    The slots are a secret permutation: the order in which people came must not show. Each salt is
    drawn on its own; one that is derived from a master key could not be destroyed alone.
    """
    salts = np.frombuffer(secrets.token_bytes(SALT_BYTES * n_rows), np.uint8)
    return Vault(draw_slots(n_slots, n_rows), salts.reshape(n_rows, SALT_BYTES).copy())


def tree_of(rows: Rows, vault: Vault, n_slots: int) -> SlotTree:
    """Return the tree over all slots; those without a row are tombstones."""
    salts = vault.salts.tobytes()
    starts = range(0, len(salts), SALT_BYTES)
    leaves = [
        slot_leaf(salts[start : start + SALT_BYTES], content)
        for start, content in zip(starts, row_bytes(rows), strict=True)
    ]
    return SlotTree.build(n_slots, vault.slots, leaves)


def require_root(tree: SlotTree, root: str) -> None:
    """Raise unless rows and salts are those that the ledger committed to."""
    if tree.root.hex() != root:
        raise CorruptFileError(
            "the rows of this version do not give the root that the ledger has recorded; "
            "they were altered. Nothing was changed."
        )
