"""Log of a ledger (`Ledger.log`): pages of entries, and proofs that read only parts of it.

The append-only tree over the events follows RFC 6962. Its leaves are the hashes of the events
(`letheon.verifier.leaf_hash` of an event's bytes). The root of an empty log is the SHA-256 of the
empty string.
"""

import threading
from collections.abc import Sequence

from sqlalchemy import Connection, select

from letheon.ledger.core import Core
from letheon.ledger.db import events as _events
from letheon.ledger.db.cursor import decode_cursor, encode_cursor, require_limit
from letheon.ledger.db.events import fold_roots
from letheon.ledger.schemas import Checkpoint, LogConsistency, LogEntry, LogInclusion, Page
from letheon.ledger.tables import checkpoints, events
from letheon.verifier import node_hash

_LIST = "log"
# Number of leaves in a block whose root is cached; a power of two, so that it is a full subtree.
BLOCK = 1024


class LogTree:
    """Merkle tree that computes roots and proofs of a log from all its leaves.

    Parameters
    ----------
    leaves : sequence of bytes
        Leaf hashes, in the order of the log.
    """

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self.size = len(leaves)
        self.levels: list[list[bytes]] = [list(leaves)]
        while len(below := self.levels[-1]) > 1:
            pairs = zip(below[0::2], below[1::2], strict=False)
            self.levels.append([node_hash(left, right) for left, right in pairs])

    def subtree_root(self, begin: int, end: int) -> bytes:
        """Return the root of the leaves ``begin, ..., end - 1``.

        `begin` must be a multiple of the size of the largest full subtree.
        """
        parts = []
        while begin < end:
            level = _largest_power_below(end - begin + 1).bit_length() - 1
            parts.append(self.levels[level][begin >> level])
            begin += 1 << level
        return fold_roots(parts)

    def root(self, size: int | None = None) -> bytes:
        """Return the root of the first `size` leaves; by default of all leaves."""
        size = self.size if size is None else size
        self._require_range(0 <= size <= self.size, f"size={size} is out of range")
        return self.subtree_root(0, size)

    def inclusion_path(self, index: int, size: int) -> list[bytes]:
        """Return the audit path of leaf `index` in the tree of the first `size` leaves.

        These are the siblings from the leaf to the root: ``PATH(m, D[n])`` of RFC 6962, section
        2.1.1.
        """
        fits = 0 <= index < size <= self.size
        self._require_range(fits, f"index={index} and size={size} are out of range")
        path, begin, end = [], 0, size
        while end - begin > 1:
            middle = begin + _largest_power_below(end - begin)
            if index < middle:
                path.append(self.subtree_root(middle, end))
                end = middle
            else:
                path.append(self.subtree_root(begin, middle))
                begin = middle
        return path[::-1]

    def consistency_path(self, size1: int, size2: int) -> list[bytes]:
        """Return the proof that the tree of `size1` leaves is a prefix of that of `size2` leaves.

        This is ``PROOF(m, D[n])`` of RFC 6962, section 2.1.2. It is empty if the sizes are equal or
        `size1` is 0.
        """
        fits = 0 <= size1 <= size2 <= self.size
        self._require_range(fits, f"size1={size1} and size2={size2} are out of range")
        if size1 in {0, size2}:
            return []
        path, begin, end, is_prefix = [], 0, size2, True
        while size1 != end:
            middle = begin + _largest_power_below(end - begin)
            if size1 <= middle:
                path.append(self.subtree_root(middle, end))
                end = middle
            else:
                path.append(self.subtree_root(begin, middle))
                begin, is_prefix = middle, False
        return [*([] if is_prefix else [self.subtree_root(begin, end)]), *path[::-1]]

    def _require_range(self, fits: bool, problem: str) -> None:
        if not fits:
            raise ValueError(f"{problem}: the log has {self.size} leaves")


class _BlockTree(LogTree):
    """Log tree made of the roots of its full blocks; leaves are read only where needed."""

    def __init__(self, conn: Connection, size: int, blocks: list[bytes]) -> None:
        self.size = size
        self._conn = conn
        self._blocks = blocks

    def subtree_root(self, begin: int, end: int) -> bytes:
        """Return the root of the leaves ``begin, ..., end - 1``.

        `begin` must be a multiple of the size of the largest full subtree.
        """
        number, rest = divmod(begin, BLOCK)
        if end - begin == BLOCK and rest == 0:
            return self._blocks[number]
        if end - begin <= BLOCK:
            return compute_root(_read_leaf_range(self._conn, begin, end))
        middle = begin + _largest_power_below(end - begin)
        return node_hash(self.subtree_root(begin, middle), self.subtree_root(middle, end))


def compute_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root of these leaf hashes."""
    return LogTree(leaves).root()


def _largest_power_below(size: int) -> int:
    """Return the largest power of two below `size`; `size` must be at least 2."""
    return 1 << ((size - 1).bit_length() - 1)


def _read_leaf_range(conn: Connection, begin: int, end: int) -> list[bytes]:
    in_range = (events.c.log_index >= begin) & (events.c.log_index < end)
    query = select(events.c.leaf).where(in_range).order_by(events.c.log_index)
    return [bytes.fromhex(leaf) for leaf in conn.scalars(query)]


class Log:
    """The log of a ledger, with cached roots of its full blocks.

    A proof reads the leaves of two blocks, and only the root of each other block.

    Parameters
    ----------
    core : Core
        The ledger.

    Examples
    --------
    >>> import tempfile
    >>> from letheon.ledger import Ledger
    >>> with tempfile.TemporaryDirectory() as folder, Ledger.create(folder, name="demo") as ledger:
    ...     ledger.log.checkpoint().size, [entry.kind for entry in ledger.log.entries().items]
    (1, ['created'])
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._blocks: list[bytes] = []

    def entries(self, *, after: str | None = None, limit: int = 50) -> Page[LogEntry]:
        """Return one page of the log, oldest first."""
        require_limit(limit)
        first = 0 if after is None else int(decode_cursor(self._core, _LIST, after)[0]) + 1
        with self._core.database.reading() as conn:
            size = _events.read_log_head(conn).size
            in_range = (events.c.log_index >= first) & (events.c.log_index < size)
            query = select(events).where(in_range).order_by(events.c.log_index).limit(limit)
            items = tuple(map(LogEntry.from_row, conn.execute(query)))
        last = first + len(items) - 1
        is_last = not items or last == size - 1
        return Page(items, None if is_last else encode_cursor(self._core, _LIST, (last,)), size)

    def inclusion(self, index: int, size: int | None = None) -> LogInclusion:
        """Return a proof that the log contains the event at position `index`.

        `size` selects an earlier state of the log; by default it is the current one.

        Raises
        ------
        ValueError
            The log has no event at this position, or has fewer than `size` events.
        """
        with self._core.database.reading() as conn:
            tree = self._load_tree(conn)
            size = tree.size if size is None else size
            path = tuple(node.hex() for node in tree.inclusion_path(index, size))
            leaf, root = tree.subtree_root(index, index + 1), tree.root(size)
        return LogInclusion(index, size, leaf.hex(), root.hex(), path)

    def consistency(self, size1: int, size2: int | None = None) -> LogConsistency:
        """Return a proof that the log at `size1` is a prefix of the log at `size2`.

        By default `size2` is the current size.
        """
        with self._core.database.reading() as conn:
            tree = self._load_tree(conn)
            size2 = tree.size if size2 is None else size2
            path = tuple(node.hex() for node in tree.consistency_path(size1, size2))
            roots = tree.root(size1).hex(), tree.root(size2).hex()
        return LogConsistency(size1, size2, *roots, path)

    def checkpoint(self) -> Checkpoint:
        """Sign and return a checkpoint of the log."""
        from letheon.ledger.certificates.certify import take_checkpoint

        return take_checkpoint(self._core)

    def latest_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint; None if there is none."""
        query = select(checkpoints).order_by(checkpoints.c.size.desc()).limit(1)
        row = self._core.database.read_first(query)
        return None if row is None else Checkpoint(**row._mapping)

    def event(self, index: int) -> bytes | None:
        """Return the bytes of the event at a position, whose hash is the leaf; None if missing."""
        query = select(events.c.body).where(events.c.log_index == index)
        body = self._core.database.read_value(query)
        return None if body is None else str(body).encode()

    def _load_tree(self, conn: Connection) -> LogTree:
        size = _events.read_log_head(conn).size
        with self._lock:
            while len(self._blocks) < size // BLOCK:
                start = len(self._blocks) * BLOCK
                self._blocks.append(compute_root(_read_leaf_range(conn, start, start + BLOCK)))
            return _BlockTree(conn, size, self._blocks)
