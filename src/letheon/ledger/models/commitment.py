"""The commitment to the rows of a model: one salted leaf per row, in a slot that tells nothing."""

import secrets

import numpy as np
from numpy.typing import NDArray

from letheon.data import Rows
from letheon.exceptions import CorruptFileError
from letheon.ledger.models.row_bytes import ordered_codes, row_bytes
from letheon.ledger.models.slot_tree import SlotTree, draw_slots
from letheon.ledger.models.versions import Vault
from letheon.verifier import slot_leaf

__all__ = ["SALT_BYTES", "new_vault", "require_root", "tree_of"]

SALT_BYTES = 32


def new_vault(n_rows: int, n_slots: int, ranks: NDArray[np.int64] | None = None) -> Vault:
    """Draw a slot and a salt for every row, and number the rows.

    The slots are a secret permutation: the order in which people came must not show. Each salt is
    drawn on its own; one that is derived from a master key could not be destroyed alone.
    """
    salts = np.frombuffer(secrets.token_bytes(SALT_BYTES * n_rows), np.uint8)
    return Vault(
        draw_slots(n_slots, n_rows),
        salts.reshape(n_rows, SALT_BYTES).copy(),
        np.arange(n_rows, dtype=np.int64),
        np.empty((n_rows, 0), np.int64) if ranks is None else ranks,
    )


def tree_of(rows: Rows, vault: Vault, n_slots: int) -> SlotTree:
    """Return the tree over all slots; those without a row are tombstones.

    Raises
    ------
    ValueError
        Rows or ordered categories are not in the order of their registration, or slots and salts
        are none.
    """
    codes = ordered_codes(rows)
    _require_vault(vault, codes)
    if not all(map(_is_same_order, codes.T, vault.ranks.T)):
        raise ValueError("ordered categories are not in the order of their registration")
    salts = vault.salts.tobytes()
    starts = range(0, len(salts), SALT_BYTES)
    leaves = [
        slot_leaf(salts[start : start + SALT_BYTES], place, ranks.tobytes() + content)
        for start, place, ranks, content in zip(
            starts,
            vault.places.tolist(),
            vault.ranks.astype("<i8"),
            row_bytes(rows),
            strict=True,
        )
    ]
    return SlotTree.build(n_slots, vault.slots, leaves)


def _is_same_order(codes: NDArray[np.int64], ranks: NDArray[np.int64]) -> bool:
    """Whether categories have the order of their ranks, and what is missing is missing."""
    found, first, inverse = np.unique(ranks, return_index=True, return_inverse=True)
    rising = bool((np.diff(codes[first]) > 0).all())
    missing = bool(((found < 0) == (codes[first] < 0)).all())
    return rising and missing and np.array_equal(codes[first][inverse], codes)


def _require_vault(vault: Vault, codes: NDArray[np.int64]) -> None:
    n_rows = len(codes)
    shapes = {"salts": (n_rows, SALT_BYTES), "ranks": codes.shape}
    for name, value in vault._asdict().items():
        kind = np.uint8 if name == "salts" else np.int64
        if not isinstance(value, np.ndarray) or value.dtype != kind:
            raise ValueError(f"{name} are no array of {np.dtype(kind)}")
        if value.shape != shapes.get(name, (n_rows,)):
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
