"""A monitor on a disk: parts named by their SHA-256, and one manifest that says which are valid.

Parts are written first, then the manifest takes their place in one step, then what it does not
name is destroyed. A kill at any moment leaves the old manifest with the old parts or the new one
with the new ones; what else lies there is swept when the folder is opened again.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from letheon.exceptions import CorruptFileError, NewerFormatError
from letheon.state import Checkpoint, DirectoryStore
from letheon.state._atomic import write_atomically

__all__ = ["Folder"]

FORMAT = 1
MANIFEST = "monitor.json"


class Folder:
    """The directory of one monitor.

    Parameters
    ----------
    path : str or path-like
        The directory; made when it is first written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._store = DirectoryStore(self.path)

    @property
    def manifest(self) -> Path:
        """The file that says what is valid."""
        return self.path / MANIFEST

    def commit(self, parts: Mapping[str, bytes], record: Mapping[str, Any]) -> tuple[str, ...]:
        """Make parts and record the valid ones, together; return files that resisted destruction.

        A part that is there already is not written again.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        here = self._store.names()
        names = {part: hashlib.sha256(blob).hexdigest() for part, blob in parts.items()}
        for part, blob in parts.items():
            if names[part] not in here:
                self._store.put(blob)
        content = {"format": FORMAT, "parts": names, "record": record}
        write_atomically(self.manifest, [json.dumps(content, indent=1).encode()])
        return self._store.keep_only(frozenset(names.values()))

    def read(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Return the valid parts and the record, and sweep what a killed process left.

        Raises
        ------
        FileNotFoundError
            No monitor was saved here.
        CorruptFileError
            The manifest or a part is truncated, altered or gone.
        NewerFormatError
            A later letheon wrote it.
        """
        content = self._content()
        parts = {part: self._store.get(Checkpoint(name)) for part, name in content["parts"].items()}
        self._store.keep_only(frozenset(content["parts"].values()))
        for leftover in self.path.glob(f".{MANIFEST}.*.partial"):
            with contextlib.suppress(OSError):
                leftover.unlink()
        return parts, content["record"]

    def _content(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self.manifest.read_bytes())
            version = int(content["format"])
            {Checkpoint(name) for name in content["parts"].values()}
            content["record"]
        except FileNotFoundError:
            raise FileNotFoundError(
                f"no monitor was saved in {self.path}: {MANIFEST} is not there"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptFileError(f"{self.manifest} makes no sense: {error!r}") from error
        if version != FORMAT:
            raise NewerFormatError(
                f"{self.manifest} has the format {version}, this version reads {FORMAT}"
            )
        return content
