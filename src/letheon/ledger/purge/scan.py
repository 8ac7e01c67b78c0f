"""Look for what erased people would have left behind, in files, archives and names of files.

Nothing is skipped in silence: a file that cannot be read is a finding of its own.
"""

import bz2
import gzip
import lzma
import os
import re
import stat
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import IO, Any, NamedTuple

from letheon.ledger.purge.markers import Found, Markers
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


class Place(NamedTuple):
    """A file or a folder to look through.

    Attributes
    ----------
    store : str
        Name under which findings are reported.
    path : Path
        The file, or the folder with everything below it.
    besides : tuple of Path
        Folders below it that are left out.
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
    besides: tuple[Path, ...] = ()
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


class Unread(NamedTuple):
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
    not_searched : tuple of Unread
        Files that may hold ids which the search cannot find there; at most the first 1,000.
    n_not_searched : int
        How many such files there are.
    id_numbers : frozenset of int
        Which of the ids were found: numbers in `Markers.texts`.
    """

    files: int
    bytes: int
    hits: tuple[Hit, ...]
    unread: tuple[Unread, ...]
    id_numbers: frozenset[int] = frozenset()
    not_searched: tuple[Unread, ...] = ()
    n_not_searched: int = 0

    @property
    def has_problems(self) -> bool:
        """Whether something was found or could not be read; a purge waits for its removal."""
        return bool(self.hits or self.unread)

    @property
    def clean(self) -> bool:
        """Whether everything was searched and nothing was found."""
        return not self.has_problems and self.n_not_searched == 0


def scan(places: Iterable[Place | tuple[str, Path]], markers: Markers) -> ScanResult:
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
        search.look_through(Place(*place))
    return ScanResult(
        search.n_files,
        search.n_bytes,
        tuple(search.hits),
        tuple(search.unread),
        frozenset(search.id_numbers),
        tuple(search.not_searched),
        search.n_not_searched,
    )


class _Source(NamedTuple):
    """A file, or a part of an archive, by the name that shows its kind and the one that is told."""

    place: Place
    shown: str
    name: str
    path: Path | None = None

    @property
    def shown_as(self) -> tuple[str, str]:
        return self.place.store, self.shown

    def inside(self, number: str, name: str) -> "_Source":
        """Return a part of this archive; its own name may name a person."""
        return _Source(self.place, f"{self.shown}!{number}", name)


@dataclass
class _Search:
    markers: Markers
    n_files: int = 0
    n_bytes: int = 0
    hits: list[Hit] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    id_numbers: set[int] = field(default_factory=set)
    not_searched: list[Unread] = field(default_factory=list)
    n_not_searched: int = 0

    def look_through(self, place: Place) -> None:
        root = place.path.resolve()
        besides = {path.resolve() for path in place.besides}
        if not root.exists():
            if place.required:
                self.unread.append(Unread(place.store, str(place.path), "missing"))
        elif root.is_dir():
            for path in self._files_below(place, root, besides):
                self._look_at(place, root, path)
        else:
            self._look_at(place, root.parent, root)

    def _files_below(self, place: Place, root: Path, besides: set[Path]) -> Iterator[Path]:
        def report(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                shown = self._shown(root, Path(error.filename))
                self.unread.append(Unread(place.store, shown, "unreadable"))

        for folder, folders, names in os.walk(root, onerror=report):
            here = Path(folder)
            self._look_at_names(place, root, here, [*folders, *names])
            folders[:] = [name for name in sorted(folders) if here / name not in besides]
            links = [name for name in folders if (here / name).is_symlink()]
            yield from (here / name for name in [*sorted(names), *links])

    def _look_at_names(self, place: Place, root: Path, folder: Path, names: list[str]) -> None:
        for name in names:
            for found in self.markers.find(os.fsencode(name)):
                self._hit(place.store, self._shown(root, folder / name), found)
            self._look_at_name(_Source(place, self._shown(root, folder / name), name))

    def _look_at_name(self, source: _Source) -> None:
        """Say that a name has a part that may be a short id or not."""
        if not source.place.own and self.markers.id_values.is_part_of(source.name):
            self._leave_out(source, "ambiguous-name")

    def _look_at(self, place: Place, root: Path, path: Path) -> None:
        shown = self._shown(root, path)
        try:
            if path.is_symlink():
                self._look_at_link(place, root, path)
            elif place.apart:
                with _read_apart(path) as stream:
                    self._read(place.store, shown, stream)
                self.n_files += 1
            elif stat.S_ISREG(path.stat().st_mode):
                with path.open("rb") as file:
                    source = _Source(place, shown, path.name, path)
                    self._read(place.store, shown, file)
                    if not (place.archives and self._unpack(source, file, 1)):
                        self._search_values(source, file)
                self.n_files += 1
            else:
                self.unread.append(Unread(place.store, shown, "special-file"))
        except FileNotFoundError:
            return
        except OSError:
            self.unread.append(Unread(place.store, shown, "unreadable"))

    def _look_at_link(self, place: Place, root: Path, path: Path) -> None:
        target = path.resolve()
        if target.exists() and not target.is_relative_to(root):
            self.unread.append(Unread(place.store, self._shown(root, path), "link-outside"))

    def _read(self, store: str, shown: str, stream: IO[bytes], most: int | None = None) -> None:
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
            for found in self.markers.find(buffer):
                if low <= found.offset < high:
                    self._hit(store, shown, found, base)
            cut = max(0, high - margin)
            buffer, base = buffer[cut:], base + cut

    def _search_values(self, source: _Source, file: IO[bytes]) -> None:
        """Look for ids as values of a data file; say so if it cannot be searched for them."""
        ids = self.markers.ids
        if ids == () or any(hit[:2] == source.shown_as for hit in self.hits[-1:]):
            return
        file.seek(0)
        head = file.read(_MAGIC_BYTES)
        reader = find_reader(source.name, head)
        if not head or (source.place.own and (reader is None or _OWN_JSON.fullmatch(source.name))):
            return
        file.seek(0)
        if ids is None:
            self._leave_out(source, "ids-not-kept")
        elif reader is None:
            if self.markers.n_weak or not is_text(file):
                self._leave_out(source, "file-kind")
        else:
            result = self.markers.id_values.search(read_values(reader, file, source.path))
            if result.row is not None:
                self._hit(*source.shown_as, Found(result.row, "value"))
            elif result.reasons:
                self._leave_out(source, min(result.reasons))

    def _leave_out(self, source: _Source, reason: str) -> None:
        if self.not_searched[-1:] and self.not_searched[-1][:2] == source.shown_as:
            return  # its name and its content are one file
        self.n_not_searched += 1
        if len(self.not_searched) < _MOST_HITS:
            self.not_searched.append(Unread(*source.shown_as, reason))

    def _unpack(self, source: _Source, file: IO[bytes], depth: int) -> bool:
        """Look into an archive; return whether it is one."""
        file.seek(0)
        head = file.read(8)
        file.seek(0)
        try:
            if head.startswith(_ZIP):
                self._unzip(source, file, depth)
                return True
            for magic, opener in _PACKED.items():
                if head.startswith(magic):
                    return self._unpack_stream(source, opener(file), depth)
        except _BROKEN:
            self.unread.append(Unread(*source.shown_as, "damaged-archive"))
            return True
        return False

    def _unpack_stream(self, source: _Source, stream: Any, depth: int) -> bool:
        try:
            stream.read(1)
        except _BROKEN:
            # Not one byte comes out: it only looks like an archive, as random bytes may.
            return False
        stream.seek(0)
        name = PurePath(source.name)
        inside = source.inside("", name.stem if name.suffix in _PACKED_SUFFIXES else name.name)
        self._look_inside(inside, stream, depth)
        return True

    def _unzip(self, source: _Source, file: IO[bytes], depth: int) -> None:
        with zipfile.ZipFile(file) as archive:
            for number, member in enumerate(archive.infolist()):
                inside = source.inside(str(number), member.filename)
                for found in self.markers.find(member.filename.encode()):
                    self._hit(*inside.shown_as, found)
                self._look_at_name(inside)
                with archive.open(member) as stream:
                    self._look_inside(inside, stream, depth)

    def _look_inside(self, inside: _Source, stream: IO[bytes], depth: int) -> None:
        self._read(*inside.shown_as, stream, _LARGEST_MEMBER)
        self.n_files += 1
        if depth >= _DEEPEST or not self._unpack(inside, stream, depth + 1):
            self._search_values(inside, stream)

    def _hit(self, store: str, file: str, found: Found, base: int = 0) -> None:
        if found.id_number is not None:
            self.id_numbers.add(found.id_number)
        if len(self.hits) < _MOST_HITS:
            self.hits.append(Hit(store, file, base + found.offset, found.kind))

    def _shown(self, root: Path, path: Path) -> str:
        """Return the name of a file below the root; a part that holds a marker is left out."""
        parts = path.relative_to(root).parts if path.is_relative_to(root) else path.parts
        return "/".join("…" if self._names_a_person(part) else part for part in parts)

    def _names_a_person(self, part: str) -> bool:
        is_found = bool(self.markers.find(os.fsencode(part)))
        # Numbers of few digits are in every other name, and files must be found by theirs.
        return is_found or self.markers.id_values.is_part_of(part, shortest=_SHORTEST_HIDDEN)


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
