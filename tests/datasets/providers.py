"""Small files in exactly the providers' formats."""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def write(path: Path, content: str | bytes) -> Path:
    """Write a file, compressed as its name says, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    modules: dict[str, Any] = {".gz": gzip, ".xz": lzma, ".bz2": bz2}
    module = modules.get(path.suffix)
    path.write_bytes(module.compress(data) if module else data)
    return path


def idx(array: NDArray[np.uint8]) -> bytes:
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def pixels(n_rows: int, *shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n_rows, *shape), np.uint8)


def cifar_batch(images: NDArray[np.uint8], *labels: NDArray[np.uint8]) -> bytes:
    """Return rows of label bytes and 3 x 32 x 32 pixels, as in the binary version."""
    flat = images.reshape(len(images), -1)
    return np.column_stack([*labels, flat]).astype(np.uint8).tobytes()


def picture(colour: tuple[int, int, int], size: tuple[int, int], ending: str = "PNG") -> bytes:
    """Return a picture of one colour."""
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, ending)
    return stream.getvalue()


def tar_of(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def svm_lines(X: NDArray[Any], labels: list[int]) -> str:
    """Return svmlight lines; columns count from 1."""
    lines = []
    for row, label in zip(X, labels, strict=True):
        cells = " ".join(f"{place + 1}:{value:g}" for place, value in enumerate(row) if value)
        lines.append(f"{label:+d} {cells}\n")
    return "".join(lines)
