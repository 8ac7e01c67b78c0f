"""V3: places that the auditor may read, searched for what must not be there any more."""

from collections.abc import Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from letheon.audit._result import LevelResult
from letheon.ledger.purge.scan import Markers, scan

__all__ = ["Stores", "check_residue"]

Stores = Mapping[str, str | Path] | Iterable[tuple[str, str | Path]]
_SHOWN = 3


def check_residue(stores: Stores, markers: Any) -> LevelResult:
    """Search places for markers.

    Parameters
    ----------
    stores : mapping or pairs of name and path
        Where to look; folders are searched whole, archives are opened.
    markers : Markers, or iterable of bytes, str or int
        What must not be found, raw or in any of the usual encodings.

    Returns
    -------
    LevelResult
        "fail" where something was found, with the store, the file and the place, never with what
        was found; "skipped" where a file could not be read or not be searched: of a kind that
        cannot be read, or with a value that may be a short id or not.
    """
    pairs = stores.items() if isinstance(stores, Mapping) else stores
    places = [(name, Path(path)) for name, path in pairs]
    if not places or markers is None:
        return LevelResult("V3", "", "skipped", "stores and markers are both needed to search")
    wanted = _as_markers(markers)
    if len(wanted) == 0 and not wanted.ids:
        reason = "no marker is long enough to mean something where it is found"
        return LevelResult("V3", "", "skipped", reason)
    result = scan(places, wanted)
    details = {
        "files": result.files,
        "bytes": result.bytes,
        "hits": [[hit.store, hit.file, hit.offset] for hit in result.hits],
        "unread": [list(map(str, one)) for one in result.unread],
        "not_searched": [list(map(str, one)) for one in result.not_searched],
    }
    if result.hits:
        shown = ", ".join(f"{hit.store}: {hit.file!r}" for hit in result.hits[:_SHOWN])
        reason = f"{len(result.hits)} finding(s) of what should be gone: {shown}"
        return LevelResult("V3", "", "fail", reason, details)
    missing = [name for name, path in places if not path.exists()]
    if result.unread or missing:
        reason = f"{len(result.unread) + len(missing)} place(s) or file(s) could not be read"
        return LevelResult("V3", "", "skipped", reason, details)
    if result.n_not_searched:
        shown = ", ".join(f"{one.file!r} ({one.reason})" for one in result.not_searched[:_SHOWN])
        reason = f"nothing found, but {result.n_not_searched} file(s) were not searched: {shown}"
        return LevelResult("V3", "", "skipped", reason, details)
    reason = f"nothing found in {result.files} files ({result.bytes} bytes) of {len(places)} places"
    return LevelResult("V3", "", "pass", reason, details)


def _as_markers(markers: Any) -> Markers:
    if isinstance(markers, Markers):
        return markers
    given = [markers] if isinstance(markers, str | bytes) else list(markers)
    ids: list[int | str] = []
    rows: list[bytes] = []
    for number, one in enumerate(given):
        if isinstance(one, bytes) and Markers.of(rows=[one]).rows:
            rows.append(one)
        elif isinstance(one, bytes):
            ids.append(_decode(number, one))
        elif isinstance(one, str | Integral):
            ids.append(one if isinstance(one, str) else int(one))
        else:
            kind = type(one).__name__
            raise TypeError(f"markers[{number}] is a {kind}; expected ids (str, int) or bytes")
    return Markers.of(ids=ids, rows=rows)


def _decode(number: int, marker: bytes) -> str:
    """Return bytes that are too short, or too uniform, for a search for bytes as a text."""
    try:
        return marker.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"markers[{number}] has {len(marker)} bytes that stand in many files by chance; give "
            "at least 16 bytes, 8 of them different, or the id as a str or int"
        ) from error
