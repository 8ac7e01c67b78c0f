"""Files and blobs as an attacker would make them: any content, a correct hash."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from letheon.state._canonical import to_bytes

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
