"""Search for residue of erased people in files, archives and file names.

A marker is an id, a salt or a piece of a row. The search covers raw bytes, hexadecimal, base64
(both alphabets, at all three offsets) and, for text, JSON escapes, percent encoding and UTF-16.
Nothing is skipped silently: a file that cannot be read is reported.
"""

import bz2
import gzip
import json
import lzma
import os
import re
import secrets
import stat
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from letheon.data import Rows
from letheon.ledger.purge.search import (
    SHORTEST,
    SHORTEST_ROW,
    IdValues,
    Searcher,
    byte_forms,
    is_distinctive_row,
    is_part_at,
    is_word,
    row_pieces,
    text_forms,
)
from letheon.ledger.purge.values import find_reader, is_text, read_values

SCANNER = "letheon-scan:2"
_CHUNK = 1 << 20
_MOST_HITS = 1_000
_DEEPEST = 3
_LARGEST_MEMBER = 1 << 34
_PACKED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b\x08": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_PACKED_SUFFIXES = (".gz", ".bz2", ".xz")
_ZIP = b"PK\x03\x04"
_MAGIC_BYTES = 16
_SHORTEST_HIDDEN = 4
# Certificates, attestations and proofs of the ledger, by number or digest.
_OWN_JSON = re.compile(r"[0-9a-f]+\.json")
_BROKEN = (
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    # An encrypted member, and a compression method that zipfile does not support.
    RuntimeError,
    ValueError,
)


# A shorter text counts only as a separate word: it may occur in a digest by chance.
_SHORT_TEXT = 12
_SHORTEST_NUMBER = 9
_MOST_PEOPLE = 5_000


class MarkerMatch(NamedTuple):
    """Position and kind of a marker that was found, and the index of its id in `Markers.texts`."""

    offset: int
    kind: str
    id_number: int | None = None


class _Pattern(NamedTuple):
    """A marker in one of its encodings."""

    content: bytes
    kind: str
    text: str | None


@dataclass(frozen=True)
class Markers:
    """Markers of erased people: the texts and bytes that a purge searches for.

    Attributes
    ----------
    texts : tuple of str
        Ids for the byte search: strings of at least 6 bytes, and numbers of at least 9 digits.
    salts, rows : tuple of bytes
        Salts of the commitment to the rows, and pieces of row values.
    neighbours : callable
        Returns the remaining ids. An erased id inside a longer remaining id is not reported, such
        as ``ann@example.org`` in ``joann@example.org``.
    ids : tuple of int or str, or None
        All erased ids, however short. They are searched as whole values of data files. None if an
        earlier version of letheon, which stored only `texts`, started the purge.
    """

    texts: tuple[str, ...] = ()
    salts: tuple[bytes, ...] = ()
    rows: tuple[bytes, ...] = ()
    neighbours: Callable[[], Sequence[str]] = field(default=tuple, repr=False, compare=False)
    ids: tuple[int | str, ...] | None = ()

    @classmethod
    def from_values(
        cls,
        *,
        ids: Iterable[int | str] = (),
        salts: Iterable[bytes] = (),
        rows: Iterable[bytes] = (),
    ) -> Self:
        """Return markers with all ids, and with values long enough for a byte search."""
        ids = tuple(dict.fromkeys(ids))
        return cls(
            ids=ids,
            texts=tuple(str(value) for value in ids if is_distinctive_id(value)),
            salts=tuple(dict.fromkeys(salt for salt in salts if len(salt) >= SHORTEST_ROW)),
            rows=tuple(dict.fromkeys(row for row in rows if is_distinctive_row(row))),
        )

    def __len__(self) -> int:
        return len(self.texts) + len(self.salts) + len(self.rows)

    def with_neighbours(self, neighbours: Callable[[], Sequence[str]]) -> "Markers":
        """Return the same markers with another function that returns the remaining ids."""
        return replace(self, neighbours=neighbours)

    def without_texts(self, texts: Container[str]) -> "Markers":
        """Return the markers without these ids in the byte search."""
        return replace(self, texts=tuple(text for text in self.texts if text not in texts))

    def to_bytes(self) -> bytes:
        """Return the markers as JSON bytes, which are as confidential as the erased data."""
        parts = {
            "texts": list(self.texts),
            "salts": [salt.hex() for salt in self.salts],
            "rows": [row.hex() for row in self.rows],
            "ids": self.ids,
        }
        return json.dumps(parts).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the markers that `to_bytes` wrote."""
        parts = json.loads(data)
        return cls(
            tuple(parts["texts"]),
            tuple(map(bytes.fromhex, parts["salts"])),
            tuple(map(bytes.fromhex, parts["rows"])),
            ids=None if parts.get("ids") is None else tuple(parts["ids"]),
        )

    @classmethod
    def make_probe(cls, *, has_short_ids: bool) -> Self:
        """Return a random marker; a search for it shows which files cannot be searched."""
        value = secrets.token_hex(16)
        return cls(texts=() if has_short_ids else (value,), ids=(value,))

    @property
    def n_weak(self) -> int:
        """Number of ids that are searched only as whole values, because they are short."""
        return 0 if self.ids is None else len(self.ids) - len(self.texts)

    @cached_property
    def id_values(self) -> IdValues:
        """A search for all erased ids among the values of data files."""
        others = self.neighbours() if self.n_weak else ()
        return IdValues(self.ids or (), others, frozenset(self.texts))

    @property
    def margin(self) -> int:
        """Number of bytes by which chunks of data must overlap, so that no match is missed."""
        return self._searcher.longest + 256

    def find(self, data: bytes | bytearray | memoryview) -> list[MarkerMatch]:
        """Return all matches of markers in the data."""
        view = memoryview(data)
        return [
            MarkerMatch(start, pattern.kind, self._id_numbers.get(pattern.text))
            for start, number in self._searcher.find(view)
            for pattern in (self._patterns[number],)
            if self._is_match(view, start, pattern)
        ]

    def _is_match(self, data: memoryview, start: int, pattern: _Pattern) -> bool:
        if pattern.text is None:
            return True
        if len(pattern.content) < _SHORT_TEXT and not is_word(data, start, len(pattern.content)):
            return False
        return not any(
            is_part_at(data, start, pattern.content, longer)
            for neighbour in self._longer_ids(pattern.text)
            for longer in text_forms(neighbour)
        )

    def _longer_ids(self, text: str) -> list[str]:
        if text not in self._longer:
            self._longer[text] = [name for name in self.neighbours() if text in name]
        return self._longer[text]

    @cached_property
    def _longer(self) -> dict[str, list[str]]:
        return {}

    @cached_property
    def _id_numbers(self) -> dict[str | None, int]:
        return {text: number for number, text in enumerate(self.texts)}

    @cached_property
    def _patterns(self) -> tuple[_Pattern, ...]:
        texts = [_Pattern(form, "id", text) for text in self.texts for form in text_forms(text)]
        salts = [_Pattern(form, "salt", None) for salt in self.salts for form in byte_forms(salt)]
        rows = [_Pattern(form, "row", None) for row in self.rows for form in byte_forms(row)]
        return tuple({pattern.content: pattern for pattern in texts + salts + rows}.values())

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(pattern.content for pattern in self._patterns)


def collect_markers(erased: Rows, salts: NDArray[np.uint8], remaining: Rows) -> Markers:
    """Return the markers of erased rows, without row values that also occur in remaining rows.

    To keep it fast, the byte search uses an evenly spaced sample of at most 5,000 rows. The search
    among values of data files uses all ids.
    """
    step = -(-len(erased) // _MOST_PEOPLE) or 1
    chosen = erased.take(np.arange(0, len(erased), step))
    markers = Markers.from_values(
        ids=chosen.ids.to_list(),
        salts=[bytes(salt) for salt in salts[::step]],
        rows=row_pieces(chosen.X, remaining.X),
    )
    return replace(markers, ids=tuple(erased.ids.distinct().to_list()))


def is_distinctive_id(value: int | str) -> bool:
    """Return whether an id is long enough to identify the person wherever it occurs."""
    if not isinstance(value, str):
        return len(str(value)) >= _SHORTEST_NUMBER
    return min(len(value.encode()), len(value.encode("utf-16-le"))) >= SHORTEST


class ScanTarget(NamedTuple):
    """A file or folder to search.

    Attributes
    ----------
    store : str
        Store name in findings.
    path : Path
        The file, or the folder with all of its content.
    archives : bool
        Whether to search gzip, bzip2, xz and zip files.
    apart : bool
        Whether to read the file in a separate process. This is necessary for SQLite files, because
        a process that closes such a file loses the locks of its other connections to it.
    required : bool
        Whether a missing path is a finding.
    own : bool
        Whether letheon writes the file. Such files are searched only for bytes, not for values.
    """

    store: str
    path: Path
    archives: bool = True
    apart: bool = False
    required: bool = False
    own: bool = False


class Hit(NamedTuple):
    """Position and kind of residue that was found in a file.

    The offset of an ``id``, ``salt`` or ``row`` is in bytes. The offset of a ``value`` is the
    number of its table row, from 0.
    """

    store: str
    file: str
    offset: int
    kind: str


class FileIssue(NamedTuple):
    """A file that could not be read or completely searched, and the reason."""

    store: str
    file: str
    reason: str


@dataclass(frozen=True)
class ScanResult:
    """Result of a search.

    Attributes
    ----------
    files, bytes : int
        Number of files and bytes searched, including the content of archives.
    hits : tuple of Hit
        Residue that was found; at most the first 1,000 hits.
    unread : tuple of FileIssue
        Files that could not be read; an operator has to repair or remove them.
    id_numbers : frozenset of int
        Indices in `Markers.texts` of the ids that were found.
    not_searched : tuple of FileIssue
        Files that may contain ids that the search cannot find; at most the first 1,000.
    n_not_searched : int
        Number of files that may contain ids that the search cannot find.
    """

    files: int
    bytes: int
    hits: tuple[Hit, ...]
    unread: tuple[FileIssue, ...]
    id_numbers: frozenset[int] = frozenset()
    not_searched: tuple[FileIssue, ...] = ()
    n_not_searched: int = 0

    @property
    def has_problems(self) -> bool:
        """Whether there is residue or an unreadable file. The purge waits until it is removed."""
        return bool(self.hits or self.unread)

    @property
    def is_clean(self) -> bool:
        """Whether everything was searched and nothing was found."""
        return not self.has_problems and self.n_not_searched == 0


def scan_files(targets: Iterable[ScanTarget | tuple[str, Path]], markers: Markers) -> ScanResult:
    """Search for the markers in all files of the targets, and in file names.

    Links are not followed, because a linked file inside the searched folder is searched anyway. A
    link to the outside, a pipe, a socket or a device is reported as unread.

    Parameters
    ----------
    targets : iterable of ScanTarget, or of store and path
        Files and folders to search.
    markers : Markers
        Markers to search for.

    Returns
    -------
    ScanResult
        The findings, with store, file and position, but never with the marker.
    """
    search = _Search(markers)
    for target in targets:
        search.search_target(ScanTarget(*target))
    return search.build_result()


class _Source(NamedTuple):
    """A file or archive member: the name to report (`shown`) and its real name."""

    target: ScanTarget
    shown: str
    name: str = ""
    path: Path | None = None

    @property
    def store_and_name(self) -> tuple[str, str]:
        return self.target.store, self.shown


class _Search:
    def __init__(self, markers: Markers) -> None:
        self.markers = markers
        self.n_files = self.n_bytes = self.n_not_searched = 0
        self.hits: list[Hit] = []
        self.unread: list[FileIssue] = []
        self.id_numbers: set[int] = set()
        self.not_searched: list[FileIssue] = []

    def build_result(self) -> ScanResult:
        return ScanResult(
            self.n_files,
            self.n_bytes,
            tuple(self.hits),
            tuple(self.unread),
            frozenset(self.id_numbers),
            tuple(self.not_searched),
            self.n_not_searched,
        )

    def search_target(self, target: ScanTarget) -> None:
        root = target.path.resolve()
        if root.is_dir():
            self._search_folder(target, root)
        elif root.exists():
            self._search_file(root.parent, self._make_source(target, root.parent, root))
        elif target.required:
            self._add_unread(_Source(target, str(target.path)), "missing")

    def _search_folder(self, target: ScanTarget, root: Path) -> None:
        def report(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                self._add_unread(
                    self._make_source(target, root, Path(error.filename)), "unreadable"
                )

        for folder, folders, names in os.walk(root, onerror=report):
            folder_path = Path(folder)
            for name in (*folders, *names):
                source = self._make_source(target, root, folder_path / name)
                self._search_bytes(source, os.fsencode(name))
                self._check_name(source)
            folders.sort()
            links = [name for name in folders if (folder_path / name).is_symlink()]
            for name in (*sorted(names), *links):
                self._search_file(root, self._make_source(target, root, folder_path / name))

    def _check_name(self, source: _Source) -> None:
        """Report a file as not searched if its name may contain a short id."""
        if not source.target.own and self.markers.id_values.is_part_of(source.name):
            self._add_not_searched(source, "ambiguous-name")

    def _search_file(self, root: Path, source: _Source) -> None:
        target, path = source.target, source.path
        assert path is not None
        try:
            if path.is_symlink():
                linked = path.resolve()
                if linked.exists() and not linked.is_relative_to(root):
                    self._add_unread(source, "link-outside")
            elif target.apart:
                with _read_apart(path) as stream:
                    self._search_stream(source, stream)
                self.n_files += 1
            elif stat.S_ISREG(path.stat().st_mode):
                with path.open("rb") as file:
                    self._search_stream(source, file)
                    if not (target.archives and self._search_archive(source, file, 1)):
                        self._search_values(source, file)
                self.n_files += 1
            else:
                self._add_unread(source, "special-file")
        except FileNotFoundError:
            return
        except OSError:
            self._add_unread(source, "unreadable")

    def _search_stream(self, source: _Source, stream: IO[bytes], most: int | None = None) -> None:
        """Search a stream in overlapping chunks, so that no match is missed at a border."""
        margin = self.markers.margin
        buffer, base, done = b"", 0, False
        while not done:
            piece = stream.read(_CHUNK)
            self.n_bytes += len(piece)
            done = not piece
            buffer += piece
            if most is not None and base + len(buffer) > most:
                raise ValueError(f"an archive member unpacks to more than {most} bytes")
            low = margin if base else 0
            high = len(buffer) if done else len(buffer) - margin
            self._search_bytes(source, buffer, base, range(low, high))
            cut = max(0, high - margin)
            buffer, base = buffer[cut:], base + cut

    def _search_bytes(
        self, source: _Source, data: bytes, base: int = 0, positions: range | None = None
    ) -> None:
        for match in self.markers.find(data):
            if positions is None or match.offset in positions:
                self._add_hit(source, match, base)

    def _search_values(self, source: _Source, file: IO[bytes]) -> None:
        """Search for ids among the values of a data file; report a file that cannot be searched."""
        ids = self.markers.ids
        if ids == () or any(hit[:2] == source.store_and_name for hit in self.hits[-1:]):
            return
        file.seek(0)
        head = file.read(_MAGIC_BYTES)
        reader = find_reader(source.name, head)
        if not head or (source.target.own and (reader is None or _OWN_JSON.fullmatch(source.name))):
            return
        file.seek(0)
        if ids is None:
            self._add_not_searched(source, "ids-not-kept")
        elif reader is None:
            if self.markers.n_weak or not is_text(file):
                self._add_not_searched(source, "file-kind")
        else:
            result = self.markers.id_values.search(read_values(reader, file, source.path))
            if result.row is not None:
                self._add_hit(source, MarkerMatch(result.row, "value"))
            elif result.reasons:
                self._add_not_searched(source, min(result.reasons))

    def _add_not_searched(self, source: _Source, reason: str) -> None:
        if self.not_searched[-1:] and self.not_searched[-1][:2] == source.store_and_name:
            return  # name and content of a file count once
        self.n_not_searched += 1
        if len(self.not_searched) < _MOST_HITS:
            self.not_searched.append(FileIssue(*source.store_and_name, reason))

    def _search_archive(self, source: _Source, file: IO[bytes], depth: int) -> bool:
        """Search an archive; return False if the file is not an archive."""
        file.seek(0)
        head = file.read(8)
        file.seek(0)
        try:
            if head.startswith(_ZIP):
                self._search_zip(source, file, depth)
                return True
            for magic, opener in _PACKED.items():
                if head.startswith(magic):
                    return self._search_packed(source, opener(file), depth)
        except _BROKEN:
            self._add_unread(source, "damaged-archive")
            return True
        return False

    def _search_packed(self, source: _Source, stream: Any, depth: int) -> bool:
        try:
            stream.read(1)
        except _BROKEN:
            # Nothing can be unpacked: random bytes may look like an archive.
            return False
        stream.seek(0)
        name = PurePath(source.name)
        bare = name.stem if name.suffix in _PACKED_SUFFIXES else name.name
        self._search_member(_Source(source.target, f"{source.shown}!", bare), stream, depth)
        return True

    def _search_zip(self, source: _Source, file: IO[bytes], depth: int) -> None:
        with zipfile.ZipFile(file) as archive:
            for number, member in enumerate(archive.infolist()):
                # The name of a member may contain an id, so it is not reported.
                inside = _Source(source.target, f"{source.shown}!{number}", member.filename)
                self._search_bytes(inside, member.filename.encode())
                self._check_name(inside)
                with archive.open(member) as stream:
                    self._search_member(inside, stream, depth)

    def _search_member(self, inside: _Source, stream: IO[bytes], depth: int) -> None:
        self._search_stream(inside, stream, _LARGEST_MEMBER)
        self.n_files += 1
        if depth >= _DEEPEST or not self._search_archive(inside, stream, depth + 1):
            self._search_values(inside, stream)

    def _add_hit(self, source: _Source, match: MarkerMatch, base: int = 0) -> None:
        if match.id_number is not None:
            self.id_numbers.add(match.id_number)
        if len(self.hits) < _MOST_HITS:
            self.hits.append(Hit(*source.store_and_name, base + match.offset, match.kind))

    def _add_unread(self, source: _Source, reason: str) -> None:
        self.unread.append(FileIssue(*source.store_and_name, reason))

    def _make_source(self, target: ScanTarget, root: Path, path: Path) -> _Source:
        """Return the source for a path; its shown name hides parts that contain a marker."""
        parts = path.relative_to(root).parts if path.is_relative_to(root) else path.parts
        shown = "/".join("…" if self._holds_marker(part) else part for part in parts)
        return _Source(target, shown, path.name, path)

    def _holds_marker(self, part: str) -> bool:
        # Short numbers occur in many names, and operators need the names to find the files.
        return bool(self.markers.find(os.fsencode(part))) or self.markers.id_values.is_part_of(
            part, shortest=_SHORTEST_HIDDEN
        )


@contextmanager
def _read_apart(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading in another process, so that this process keeps its locks."""
    if not path.exists():
        raise FileNotFoundError(path)
    reader = subprocess.Popen(
        ["cat", "--", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert reader.stdout is not None
    try:
        yield reader.stdout
        if reader.wait() != 0 and path.exists():
            raise OSError(f"cannot read {path}")
    finally:
        reader.stdout.close()
        reader.wait()
