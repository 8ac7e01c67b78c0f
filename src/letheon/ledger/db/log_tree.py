"""The tree over the events of a ledger: RFC 6962, append only.

Everything here works on leaf hashes (`letheon.verifier.leaf_hash` of an event's bytes). The root
of no leaves is the SHA-256 of nothing.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from letheon.verifier import node_hash

_EMPTY = hashlib.sha256(b"").digest()
_HASH_BYTES = 32


@dataclass(frozen=True)
class Frontier:
    """The roots of the full subtrees, largest first: all that appending needs.

    One root per bit that is set in `size`.
    """

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        whole = all(len(one) == _HASH_BYTES for one in self.hashes)
        if self.size < 0 or len(self.hashes) != self.size.bit_count() or not whole:
            raise ValueError(f"a log of {self.size} events has another frontier than this")

    def append(self, leaf: bytes) -> Self:
        """Return the frontier with one more leaf hash."""
        hashes, merged, size = list(self.hashes), leaf, self.size
        while size & 1:
            merged = node_hash(hashes.pop(), merged)
            size >>= 1
        return type(self)(self.size + 1, (*hashes, merged))

    def root(self) -> bytes:
        """Return the root of the tree."""
        return _fold(self.hashes)

    def to_text(self) -> str:
        """Return size and hashes in one line, for `from_text`."""
        return " ".join([str(self.size), *(one.hex() for one in self.hashes)])

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the frontier that `to_text` wrote."""
        size, *hashes = text.split(" ")
        return cls(int(size), tuple(bytes.fromhex(one) for one in hashes))


class Proofs(ABC):
    """Roots and proofs of a log, by the roots over its parts."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Leaves that are there."""

    @abstractmethod
    def span(self, begin: int, end: int) -> bytes:
        """Return the root over leaves begin..end; `begin` is a multiple of the largest part."""

    def root(self, size: int | None = None) -> bytes:
        """Return the root of the first `size` leaves; of all of them by default."""
        size = self.size if size is None else size
        self._require(0 <= size <= self.size, f"no tree of {size} leaves")
        return self.span(0, size)

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """Return the audit path of leaf `index` in the tree of the first `size` leaves.

        ``PATH(m, D[n])`` of RFC 6962, section 2.1.1: siblings from the leaf to the root.
        """
        fits = 0 <= index < size <= self.size
        self._require(fits, f"no leaf {index} in a tree of {size}")
        path, begin, end = [], 0, size
        while end - begin > 1:
            middle = begin + split(end - begin)
            if index < middle:
                path.append(self.span(middle, end))
                end = middle
            else:
                path.append(self.span(begin, middle))
                begin = middle
        return path[::-1]

    def consistency(self, size1: int, size2: int) -> list[bytes]:
        """Return the proof that the first tree is the beginning of the second.

        ``PROOF(m, D[n])`` of RFC 6962, section 2.1.2; empty if the sizes are equal or the first
        is 0.
        """
        fits = 0 <= size1 <= size2 <= self.size
        self._require(fits, f"no trees of {size1} and {size2} leaves")
        if size1 in {0, size2}:
            return []
        path, begin, end, whole = [], 0, size2, True
        while size1 != end:
            middle = begin + split(end - begin)
            if size1 <= middle:
                path.append(self.span(middle, end))
                end = middle
            else:
                path.append(self.span(begin, middle))
                begin, whole = middle, False
        return [*([] if whole else [self.span(begin, end)]), *path[::-1]]

    def _require(self, fits: bool, what: str) -> None:
        if not fits:
            raise ValueError(f"{what}: the log has {self.size} leaves")


class LogTree(Proofs):
    """All leaves of a log with the roots of all full subtrees, for many proofs.

    Parameters
    ----------
    leaves : sequence of bytes
        Leaf hashes, in the order of the log.
    """

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self.levels: list[list[bytes]] = [list(leaves)]
        while len(below := self.levels[-1]) > 1:
            pairs = zip(below[0::2], below[1::2], strict=False)
            self.levels.append([node_hash(left, right) for left, right in pairs])

    @property
    def size(self) -> int:
        """Leaves that are there."""
        return len(self.levels[0])

    def span(self, begin: int, end: int) -> bytes:
        """Return the root over leaves begin..end; `begin` is a multiple of the largest part."""
        parts = []
        while begin < end:
            level = split(end - begin + 1).bit_length() - 1
            parts.append(self.levels[level][begin >> level])
            begin += 1 << level
        return _fold(parts)


def split(size: int) -> int:
    """Return the largest power of two below `size`, which is at least 2."""
    return 1 << ((size - 1).bit_length() - 1)


def _fold(parts: Sequence[bytes]) -> bytes:
    """Return the root over the roots of full subtrees, largest first."""
    if not parts:
        return _EMPTY
    root = parts[-1]
    for left in reversed(parts[:-1]):
        root = node_hash(left, root)
    return root


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the root of these leaf hashes."""
    return LogTree(leaves).root()


def inclusion_proof(leaves: Sequence[bytes], index: int, size: int) -> list[bytes]:
    """Return `LogTree.inclusion`; for one proof."""
    return LogTree(leaves[:size]).inclusion(index, size)


def consistency_proof(leaves: Sequence[bytes], size1: int, size2: int) -> list[bytes]:
    """Return `LogTree.consistency`; for one proof."""
    return LogTree(leaves[:size2]).consistency(size1, size2)
