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
    """Draw a slot and a salt for every row, and number the rows.

    The slots are a secret permutation: the order in which people came must not show. Each salt is
    drawn on its own; one that is derived from a master key could not be destroyed alone.
    """
    salts = np.frombuffer(secrets.token_bytes(SALT_BYTES * n_rows), np.uint8)
    return Vault(
        draw_slots(n_slots, n_rows),
        salts.reshape(n_rows, SALT_BYTES).copy(),
        np.arange(n_rows, dtype=np.int64),
    )


def tree_of(rows: Rows, vault: Vault, n_slots: int) -> SlotTree:
    """Return the tree over all slots; those without a row are tombstones.

    Raises
    ------
    ValueError
        The rows are not in the order of their registration, or slots and salts are none.
    """
    _require_vault(vault, len(rows))
    salts = vault.salts.tobytes()
    starts = range(0, len(salts), SALT_BYTES)
    leaves = [
        slot_leaf(salts[start : start + SALT_BYTES], place, content)
        for start, place, content in zip(
            starts, vault.places.tolist(), row_bytes(rows), strict=True
        )
    ]
    return SlotTree.build(n_slots, vault.slots, leaves)


def _require_vault(vault: Vault, n_rows: int) -> None:
    shapes = {"slots": (n_rows,), "salts": (n_rows, SALT_BYTES), "places": (n_rows,)}
    dtypes = {"slots": np.int64, "salts": np.uint8, "places": np.int64}
    for name, value in vault._asdict().items():
        if not isinstance(value, np.ndarray) or value.dtype != dtypes[name]:
            raise ValueError(f"{name} are no array of {np.dtype(dtypes[name])}")
        if value.shape != shapes[name]:
            raise ValueError(f"{name} of shape {value.shape} for {n_rows} rows")
    if n_rows and (vault.places[0] < 0 or bool((np.diff(vault.places) <= 0).any())):
        raise ValueError("the rows are not in the order of their registration")


def require_root(tree: SlotTree, root: str) -> None:
    """Raise unless rows and salts are those that the ledger committed to."""
    if tree.root.hex() != root:
        raise CorruptFileError(
            "the rows of this version do not give the root that the ledger has recorded; "
            "they were altered. Nothing was changed."
        )
