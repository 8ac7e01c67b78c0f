"""Files and blobs as an attacker would make them: any content, a correct hash."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from letheon.state._bytes import to_bytes

VERSIONS = {"python": "3", "numpy": "2", "scipy": "1", "scikit-learn": "1", "letheon": "x"}


def blob_of(tree: Any) -> bytes:
    """Return an encoded state with this tree."""
    body = to_bytes(tree)
    return b"letheon-state-v1\0" + hashlib.sha256(body).digest() + body


def file_of(
    path: Path, tree: Any, *, kind: str = "value", form: str = "letheon-v1", **tensors: Any
) -> Path:
    """Write a file whose manifest has this tree (JSON values, or JSON text)."""
    text = tree if isinstance(tree, str) else json.dumps(tree)
    head = json.dumps({"format": form, "sha256": "0" * 64}, separators=(",", ":"))[:-1]
    rest = f',"kind":{json.dumps(kind)},"versions":{json.dumps(VERSIONS)},"tree":{text}}}'
    arrays = {"small": np.arange(64, dtype=np.uint8), **tensors}
    raw = save(arrays, metadata={"letheon": head + rest})
    digest = hashlib.sha256(raw).hexdigest().encode()
    path.write_bytes(raw.replace(b"0" * 64, digest, 1))
    return path


def changed_bytes(path: Path, mask: int) -> Iterator[int]:
    """Change one byte of a file after the other, each put right again before the next."""
    raw = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for i, byte in enumerate(raw):
            os.pwrite(file.fileno(), bytes([byte ^ mask]), i)
            yield i
            os.pwrite(file.fileno(), bytes([byte]), i)


def truncations(path: Path) -> Iterator[int]:
    """Cut one byte after the other from the end of a file."""
    for size in reversed(range(path.stat().st_size)):
        os.truncate(path, size)
        yield size
