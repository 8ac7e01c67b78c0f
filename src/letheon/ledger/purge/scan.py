"""Look for what erased people would have left behind, in files, archives and names of files.

A marker is an id, a salt or a piece of a row. It is looked for as raw bytes, in hexadecimal, in
base64 (both alphabets, at each of the three places in a group) and, if it is text, JSON-escaped,
percent-escaped and in UTF-16. Nothing is skipped in silence: a file that cannot be read is a
finding of its own.
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
    # An encrypted member, and a method of packing that zipfile does not know.
    RuntimeError,
    ValueError,
)


# Below it a text counts only as a word of its own: it may stand in a digest by chance.
_SHORT_TEXT = 12
_SHORTEST_NUMBER = 9
_MOST_PEOPLE = 5_000


class MarkerMatch(NamedTuple):
    """Where a marker begins, its kind, and which id it is, by number; never the marker itself."""

    offset: int
    kind: str
    id_number: int | None = None


class _Pattern(NamedTuple):
    """One form of one marker."""

    content: bytes
    kind: str
    text: str | None


@dataclass(frozen=True)
class Markers:
    """Texts and bytes that must be nowhere.

    Attributes
    ----------
    texts : tuple of str
        Ids of at least 6 bytes; numbers of at least 9 digits.
    salts, rows : tuple of bytes
        Salts of the commitment; pieces of the values of a row.
    neighbours : callable
        Returns the ids that may stay. An id that is part of a longer one that stays is excused
        where the longer one stands: ``ann@example.org`` in ``joann@example.org``.
    ids : tuple of int or str, or None
        All ids, however short: they are looked for as whole values of data files. None: a purge
        that an earlier version began kept only `texts`.
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
        """Return the markers: all ids, and what is long enough for a search for bytes."""
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
        """Return the same markers, with other people whose longer ids may stay."""
        return replace(self, neighbours=neighbours)

    def without_texts(self, texts: Container[str]) -> "Markers":
        """Return the markers without a search for the bytes of these ids."""
        return replace(self, texts=tuple(text for text in self.texts if text not in texts))

    def to_bytes(self) -> bytes:
        """Return the markers as bytes; they are as secret as what they mark."""
        parts = {
            "texts": list(self.texts),
            "salts": [salt.hex() for salt in self.salts],
            "rows": [row.hex() for row in self.rows],
            "ids": self.ids,
        }
        return json.dumps(parts).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` wrote."""
        parts = json.loads(data)
        return cls(
            tuple(parts["texts"]),
            tuple(map(bytes.fromhex, parts["salts"])),
            tuple(map(bytes.fromhex, parts["rows"])),
            ids=None if parts.get("ids") is None else tuple(parts["ids"]),
        )

    @classmethod
    def make_probe(cls, *, has_short_ids: bool) -> Self:
        """Return markers of nobody: what cannot be searched for them cannot be searched at all."""
        nobody = secrets.token_hex(16)
        return cls(texts=() if has_short_ids else (nobody,), ids=(nobody,))

    @property
    def n_weak(self) -> int:
        """How many ids are looked for as whole values only, and not as bytes."""
        return 0 if self.ids is None else len(self.ids) - len(self.texts)

    @cached_property
    def id_values(self) -> IdValues:
        """The search for ids among the values of data files."""
        others = self.neighbours() if self.n_weak else ()
        return IdValues(self.ids or (), others, frozenset(self.texts))

    @property
    def margin(self) -> int:
        """How many bytes on each side of a piece of data decide about what lies in it."""
        return self._searcher.longest + 256

    def find(self, data: bytes | bytearray | memoryview) -> list[MarkerMatch]:
        """Return every place at which a marker stands."""
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


def collect_markers(erased: Rows, salts: NDArray[np.uint8], left: Rows) -> Markers:
    """Return the markers of erased rows: what nobody who is left has as well.

    Of more than 5,000 rows every so-many-th is taken for the search for bytes, so that it stays
    quick. As values of data files all ids are looked for.
    """
    step = -(-len(erased) // _MOST_PEOPLE) or 1
    chosen = erased.take(np.arange(0, len(erased), step))
    markers = Markers.from_values(
        ids=chosen.ids.to_list(),
        salts=[bytes(salt) for salt in salts[::step]],
        rows=row_pieces(chosen.X, left.X),
    )
    return replace(markers, ids=tuple(erased.ids.distinct().to_list()))


def is_distinctive_id(value: int | str) -> bool:
    """Whether an id is long enough to mean the person wherever its bytes stand."""
    if not isinstance(value, str):
        return len(str(value)) >= _SHORTEST_NUMBER
    return min(len(value.encode()), len(value.encode("utf-16-le"))) >= SHORTEST


class ScanTarget(NamedTuple):
    """A file or a folder to look through.

    Attributes
    ----------
    store : str
        Name under which findings are reported.
    path : Path
        The file, or the folder with everything below it.
    archives : bool
        Whether to look into gzip, bzip2, xz and zip files.
    apart : bool
        Whether another process reads it. A process that closes a SQLite file loses every lock that
        its own connections hold on that file.
    required : bool
        Whether it is a finding if nothing is there.
    own : bool
        Whether letheon itself writes there. Its own files are searched for bytes only.
    """

    store: str
    path: Path
    archives: bool = True
    apart: bool = False
    required: bool = False
    own: bool = False


class Hit(NamedTuple):
    """A marker was found: where, and of what kind.

    The offset of an ``id``, ``salt`` or ``row`` is a byte; that of a ``value`` is a row of a table.
    """

    store: str
    file: str
    offset: int
    kind: str


class FileIssue(NamedTuple):
    """A file that could not be read, or not be searched as a whole, and why."""

    store: str
    file: str
    reason: str


@dataclass(frozen=True)
class ScanResult:
    """What a search found.

    Attributes
    ----------
    files, bytes : int
        How much was looked through; the content of archives counts as well.
    hits : tuple of Hit
        At most the first 1,000.
    unread : tuple of Unread
        What could not be looked into; somebody has to repair or remove it.
    id_numbers : frozenset of int
        Which of the ids were found: numbers in `Markers.texts`.
    not_searched : tuple of Unread
        Files that may hold ids which the search cannot find there; at most the first 1,000.
    n_not_searched : int
        How many such files there are.
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
        """Whether something was found or could not be read; a purge waits for its removal."""
        return bool(self.hits or self.unread)

    @property
    def is_clean(self) -> bool:
        """Whether everything was searched and nothing was found."""
        return not self.has_problems and self.n_not_searched == 0


def scan_files(places: Iterable[ScanTarget | tuple[str, Path]], markers: Markers) -> ScanResult:
    """Look for the markers in every file of these places, and in the names of the files.

    Links are not followed: a link to a place inside leads to what is looked through anyway, one to
    a place outside is reported as unread, and so are pipes, sockets and devices.

    Parameters
    ----------
    places : iterable of Place, or of store and path
        Where to look.
    markers : Markers
        What to look for.

    Returns
    -------
    ScanResult
        Findings name the store, the file and the place in it, never what was found.
    """
    search = _Search(markers)
    for place in places:
        search.search_target(ScanTarget(*place))
    return search.build_result()


class _Source(NamedTuple):
    """A file, or a part of an archive, by the name that is told and the one that shows its kind."""

    place: ScanTarget
    shown: str
    name: str = ""
    path: Path | None = None

    @property
    def store_and_name(self) -> tuple[str, str]:
        return self.place.store, self.shown


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

    def search_target(self, place: ScanTarget) -> None:
        root = place.path.resolve()
        if root.is_dir():
            self._search_folder(place, root)
        elif root.exists():
            self._search_file(root.parent, self._make_source(place, root.parent, root))
        elif place.required:
            self._add_unread(_Source(place, str(place.path)), "missing")

    def _search_folder(self, place: ScanTarget, root: Path) -> None:
        def report(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                self._add_unread(self._make_source(place, root, Path(error.filename)), "unreadable")

        for folder, folders, names in os.walk(root, onerror=report):
            here = Path(folder)
            for name in (*folders, *names):
                source = self._make_source(place, root, here / name)
                self._search_bytes(source, os.fsencode(name))
                self._check_name(source)
            folders.sort()
            links = [name for name in folders if (here / name).is_symlink()]
            for name in (*sorted(names), *links):
                self._search_file(root, self._make_source(place, root, here / name))

    def _check_name(self, source: _Source) -> None:
        """Say that a name has a part that may be a short id or not."""
        if not source.place.own and self.markers.id_values.is_part_of(source.name):
            self._add_not_searched(source, "ambiguous-name")

    def _search_file(self, root: Path, source: _Source) -> None:
        place, path = source.place, source.path
        assert path is not None
        try:
            if path.is_symlink():
                target = path.resolve()
                if target.exists() and not target.is_relative_to(root):
                    self._add_unread(source, "link-outside")
            elif place.apart:
                with _read_apart(path) as stream:
                    self._search_stream(source, stream)
                self.n_files += 1
            elif stat.S_ISREG(path.stat().st_mode):
                with path.open("rb") as file:
                    self._search_stream(source, file)
                    if not (place.archives and self._search_archive(source, file, 1)):
                        self._search_values(source, file)
                self.n_files += 1
            else:
                self._add_unread(source, "special-file")
        except FileNotFoundError:
            return
        except OSError:
            self._add_unread(source, "unreadable")

    def _search_stream(self, source: _Source, stream: IO[bytes], most: int | None = None) -> None:
        """Look through a stream in pieces; what lies across two pieces is in the next one whole."""
        margin = self.markers.margin
        buffer, base, done = b"", 0, False
        while not done:
            piece = stream.read(_CHUNK)
            self.n_bytes += len(piece)
            done = not piece
            buffer += piece
            if most is not None and base + len(buffer) > most:
                raise ValueError(f"unpacks to more than {most} bytes")
            low = margin if base else 0
            high = len(buffer) if done else len(buffer) - margin
            self._search_bytes(source, buffer, base, range(low, high))
            cut = max(0, high - margin)
            buffer, base = buffer[cut:], base + cut

    def _search_bytes(
        self, source: _Source, data: bytes, base: int = 0, places: range | None = None
    ) -> None:
        for found in self.markers.find(data):
            if places is None or found.offset in places:
                self._add_hit(source, found, base)

    def _search_values(self, source: _Source, file: IO[bytes]) -> None:
        """Look for ids as values of a data file; say so if it cannot be searched for them."""
        ids = self.markers.ids
        if ids == () or any(hit[:2] == source.store_and_name for hit in self.hits[-1:]):
            return
        file.seek(0)
        head = file.read(_MAGIC_BYTES)
        reader = find_reader(source.name, head)
        if not head or (source.place.own and (reader is None or _OWN_JSON.fullmatch(source.name))):
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
            return  # its name and its content are one file
        self.n_not_searched += 1
        if len(self.not_searched) < _MOST_HITS:
            self.not_searched.append(FileIssue(*source.store_and_name, reason))

    def _search_archive(self, source: _Source, file: IO[bytes], depth: int) -> bool:
        """Look into an archive; return whether it is one."""
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
            # Not one byte comes out: it only looks like an archive, as random bytes may.
            return False
        stream.seek(0)
        name = PurePath(source.name)
        bare = name.stem if name.suffix in _PACKED_SUFFIXES else name.name
        self._search_member(_Source(source.place, f"{source.shown}!", bare), stream, depth)
        return True

    def _search_zip(self, source: _Source, file: IO[bytes], depth: int) -> None:
        with zipfile.ZipFile(file) as archive:
            for number, member in enumerate(archive.infolist()):
                # Its own name may name a person, so it is not told.
                inside = _Source(source.place, f"{source.shown}!{number}", member.filename)
                self._search_bytes(inside, member.filename.encode())
                self._check_name(inside)
                with archive.open(member) as stream:
                    self._search_member(inside, stream, depth)

    def _search_member(self, inside: _Source, stream: IO[bytes], depth: int) -> None:
        self._search_stream(inside, stream, _LARGEST_MEMBER)
        self.n_files += 1
        if depth >= _DEEPEST or not self._search_archive(inside, stream, depth + 1):
            self._search_values(inside, stream)

    def _add_hit(self, source: _Source, found: MarkerMatch, base: int = 0) -> None:
        if found.id_number is not None:
            self.id_numbers.add(found.id_number)
        if len(self.hits) < _MOST_HITS:
            self.hits.append(Hit(*source.store_and_name, base + found.offset, found.kind))

    def _add_unread(self, source: _Source, reason: str) -> None:
        self.unread.append(FileIssue(*source.store_and_name, reason))

    def _make_source(self, place: ScanTarget, root: Path, path: Path) -> _Source:
        """Return a file by its name below the root; a part that holds a marker is left out."""
        parts = path.relative_to(root).parts if path.is_relative_to(root) else path.parts
        shown = "/".join("…" if self._holds_marker(part) else part for part in parts)
        return _Source(place, shown, path.name, path)

    def _holds_marker(self, part: str) -> bool:
        # Numbers of few digits are in every other name, and files must be found by theirs.
        return bool(self.markers.find(os.fsencode(part))) or self.markers.id_values.is_part_of(
            part, shortest=_SHORTEST_HIDDEN
        )


@contextmanager
def _read_apart(path: Path) -> Iterator[IO[bytes]]:
    """Read a file through another process, so that none of this one's locks is touched."""
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
