"""One file: a safetensors file whose metadata hold the manifest.

The header's ``__metadata__`` has the single key ``letheon``. Its value is a JSON text with, in this
order, ``format``, ``sha256``, ``kind``, ``versions`` and ``tree``. The SHA-256 is taken over the
whole file with 64 zeros in its own place, so no byte can change unseen: not of the header, not of
the padding, not of the tensors. The same value gives the same bytes.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from letheon.exceptions import (
    CorruptFileError,
    MemoryLimitError,
    NewerFormatError,
    UnsupportedStateError,
)
from letheon.state._blob import FORMAT, environment
from letheon.state._budget import MemoryBudget, check_shape
from letheon.state._decode import Trusted, audit, construct, trusted_names
from letheon.state._encode import to_tree
from letheon.state._manifest import Tensors, from_json, json_memory, to_json
from letheon.state._nodes import Node
from letheon.state._stores import write_atomically

_ZEROS = "0" * 64
_START = re.compile(
    rb'\{"__metadata__":\{"letheon":"\{\\"format\\":\\"letheon-v(\d{1,9})\\",\\"sha256\\":\\"'
)
_BEGIN = b'{"__metadata__":{"letheon":"'
_CHECKPOINT = b"letheon-state-v"
_THIS = int(FORMAT.removeprefix("letheon-v"))
# The format of safetensors allows 100 MB.
_MAX_HEADER = 90_000_000
_ITEMSIZES = {
    "F64": 8, "F32": 4, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Contents:
    """A verified file that nothing was built from yet.

    Parameters
    ----------
    format : str
        Format of the file.
    kind : str
        What the writer said it is.
    versions : dict
        Versions it was written with.
    tree : Node
        Its content.
    size : int
        Bytes on disk.
    budget : MemoryBudget
        What reading it has taken so far, and the limit.
    """

    format: str
    kind: str
    versions: dict[str, str]
    tree: Node
    size: int
    budget: MemoryBudget = field(repr=False, compare=False)


def write_file(path: str | os.PathLike[str], value: Any, *, kind: str = "value") -> None:
    """Write a value to a file, whole or not at all.

    Parameters
    ----------
    path : str or path-like
        The file; an existing one is replaced.
    value : object
        Anything that has canonical bytes.
    kind : str, default="value"
        What it is, for the reader.

    Raises
    ------
    UnsupportedStateError
        If something in the value has no canonical bytes.
    OSError
        If the file cannot be written; an old one is still there then.
    """
    raw = _serialised(to_tree(value), kind)
    place = _START.match(raw, 8)
    assert place is not None
    digest = hashlib.sha256(raw).hexdigest().encode()
    view = memoryview(raw)
    try:
        write_atomically(Path(path), [view[: place.end()], digest, view[place.end() + 64 :]])
    except OSError as error:
        raise _about_the_target(error, path) from None


def _about_the_target(error: OSError, path: str | os.PathLike[str]) -> OSError:
    """Return the error with the path that the caller gave: the temporary file is our business."""
    missing = isinstance(error, FileNotFoundError)
    reason = "the directory to write into does not exist" if missing else error.strerror
    # OSError itself chooses the subclass that belongs to the number.
    return OSError(error.errno, reason, os.fspath(path))


def _serialised(tree: Node, kind: str) -> bytes:
    """Return the file with zeros in the place of its hash."""
    from safetensors.numpy import save

    tensors = Tensors()
    content = to_json(tree, tensors)
    manifest = json.dumps(
        {
            "format": FORMAT,
            "sha256": _ZEROS,
            "kind": kind,
            "versions": environment(),
            "tree": content,
        },
        separators=(",", ":"),
        allow_nan=False,
    )
    if len(manifest) > _MAX_HEADER:
        raise UnsupportedStateError(
            "the value has too many small parts for one file; keep them in arrays"
        )
    return save(tensors.arrays(), metadata={"letheon": manifest})


def read_file(
    path: str | os.PathLike[str], *, trusted: Trusted = (), max_memory: int | None = None
) -> Any:
    """Return the value in a file.

    Parameters
    ----------
    path : str or path-like
        The file.
    trusted : iterable of class, function or str
        What may be used besides letheon's own classes and scikit-learn's.
    max_memory : int, optional
        Bytes that reading may take. By default 64 MiB and 4 times the size of the file, and
        64 MiB and 16 times the size for the compiled forest.

    Raises
    ------
    CorruptFileError
        If the file is truncated, altered, or no letheon file.
    MemoryLimitError
        If reading would take more memory than that; it was not allocated.
    NewerFormatError
        If a later letheon wrote it.
    UntrustedClassError
        If it names a class that nobody allowed; nothing was imported then.
    """
    contents = read_contents(path, max_memory=max_memory)
    with naming(name_of(path)):
        return build(contents, trusted)


def build(contents: Contents, trusted: Trusted) -> Any:
    """Audit a verified file and build its value."""
    names = trusted_names(trusted)
    audit(contents.tree, names)
    return construct(contents.tree, names, copy(contents.budget))


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Say which file would take too much memory."""
    try:
        yield
    except MemoryLimitError as error:
        raise MemoryLimitError(f"{name}: {error}") from None


def name_of(path: str | os.PathLike[str] | BinaryIO) -> str:
    """Return what to call a file in a message."""
    return os.fspath(path) if isinstance(path, str | os.PathLike) else "the file"


def read_contents(
    path: str | os.PathLike[str] | BinaryIO, *, max_memory: int | None = None
) -> Contents:
    """Read and verify a file, by name or open; import and build nothing.

    `max_memory` is as for `read_file`.
    """
    name = name_of(path)
    with naming(name):
        if isinstance(path, str | os.PathLike):
            size = Path(path).stat().st_size
            budget = MemoryBudget(size, max_memory)
            budget.take(size, "the file")
            raw = Path(path).read_bytes()
        else:
            raw = path.read()
            budget = MemoryBudget(len(raw), max_memory)
            budget.take(len(raw), "the file")
        place = _START.match(raw, 8)
        if place is None:
            raise CorruptFileError(f"{name}: {_what_else(raw)}")
        return _read(raw, place, budget, name)


def _read(raw: bytes, place: re.Match[bytes], budget: MemoryBudget, name: str) -> Contents:
    try:
        _verify(raw, place)
        return _parse(raw, budget)
    except MemoryLimitError:
        raise
    except CorruptFileError as error:
        raise CorruptFileError(
            f"{name}: {error}; restore the file from a copy"
        ) from error.__cause__
    except NewerFormatError as error:
        raise NewerFormatError(f"{name}: {error}") from None


def _verify(raw: bytes, place: re.Match[bytes]) -> None:
    """Check format and hash."""
    if int(place[1]) != _THIS:
        raise NewerFormatError(
            f"the file has the format letheon-v{int(place[1])}, this version reads {FORMAT}; "
            "install a newer letheon"
        )
    at = place.end()
    hasher = hashlib.sha256(raw[:at] + _ZEROS.encode())
    hasher.update(memoryview(raw)[at + 64 :])
    if hasher.hexdigest().encode() != raw[at : at + 64]:
        raise CorruptFileError("the file is truncated or altered: its SHA-256 differs")


def _what_else(raw: bytes) -> str:
    """Say what a file is that does not begin as `write_file` begins, and what to do about it."""
    if not raw:
        return "the file is empty; restore it from a copy"
    if raw.startswith(_CHECKPOINT):
        return "this is a checkpoint of a model; load the model file, which letheon.save wrote"
    if raw[:1] == b"\x80" or raw[:2] == b"PK":
        return "this is no letheon file but a pickle or zip file, which letheon never opens"
    start = raw[8 : 8 + len(_BEGIN)]
    if start and _BEGIN.startswith(start):
        return "the file is truncated or its header was altered; restore the file from a copy"
    if start.startswith(b"{"):
        return "this is no letheon file but a safetensors file without letheon's manifest"
    return "this is no letheon file"


def _parse(raw: bytes, budget: MemoryBudget) -> Contents:
    try:
        begin = 8 + int.from_bytes(raw[:8], "little")
        _require(begin <= len(raw) and begin - 8 <= _MAX_HEADER, "its length")
        text = raw[8:begin]
        passing = json_memory(text)
        budget.take(passing, "the header")
        header = json.loads(text, object_pairs_hook=_without_duplicates)
        manifest = json.loads(
            header.pop("__metadata__")["letheon"], object_pairs_hook=_without_duplicates
        )
        contents = Contents(
            format=manifest["format"],
            kind=manifest["kind"],
            versions={str(k): str(v) for k, v in manifest["versions"].items()},
            tree=from_json(manifest["tree"], _tensors(header, memoryview(raw)[begin:]), budget),
            size=len(raw),
            budget=budget,
        )
        budget.give_back(passing)
        return contents
    except CorruptFileError:
        raise
    except RecursionError:
        raise CorruptFileError("the manifest is nested too deeply") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"the header makes no sense: {error!r}") from error


def _tensors(header: dict[str, Any], data: memoryview) -> dict[str, memoryview]:
    """Return the bytes of every tensor: they follow each other without gap or overlap."""
    tensors, end = {}, 0
    places = sorted((tuple(entry["data_offsets"]), name) for name, entry in header.items())
    for (begin, after), name in places:
        entry = header[name]
        _require(entry.keys() == {"dtype", "shape", "data_offsets"}, name)
        _require(type(begin) is type(after) is int and end == begin <= after, name)
        _require(check_shape(entry["shape"], _ITEMSIZES[entry["dtype"]]) == after - begin, name)
        tensors[name] = data[begin:after]
        end = after
    _require(end == len(data), "the size of the tensors")
    return tensors


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise CorruptFileError(f"the header is wrong about {what}")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise CorruptFileError("the manifest has a key twice")
    return found
