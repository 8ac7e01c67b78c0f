"""Picture files: decode many, shrink and crop them to one shape."""

import io
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import DatasetFormatError

__all__ = ["ENDINGS", "LARGEST", "as_rows", "decode", "refuse_too_large"]

ENDINGS = frozenset((".jpg", ".jpeg", ".png", ".webp"))
LARGEST = 2**34  # bytes of X
_THREADS = 4  # the decoder works outside the interpreter's lock


def as_rows(pictures: Iterable[NDArray[np.uint8]]) -> NDArray[np.float32]:
    """Return pictures (channels first) as flat rows, values from 0 to 1."""
    stacked = np.stack(list(pictures))
    return np.divide(stacked.reshape(len(stacked), -1), 255, dtype=np.float32)


def decode(
    contents: Iterable[bytes | Path], *, side: int, shorter: int | None = None
) -> NDArray[np.float32]:
    """Return RGB pictures as rows: channel by channel, row by row, values from 0 to 1.

    Parameters
    ----------
    contents : iterable of bytes or Path
        Picture files, or their contents.
    side : int
        Height and width of the result.
    shorter : int, optional
        Shrink so that the shorter side has this length, then cut the middle out; without it the
        picture is stretched to the square.
    """
    _pillow()
    with ThreadPoolExecutor(_THREADS) as pool:
        return as_rows(pool.map(partial(_pixels, side=side, shorter=shorter), contents))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "pictures need Pillow, which is not installed: pip install pillow"
        ) from error
    return Image


def _pixels(content: bytes | Path, *, side: int, shorter: int | None) -> NDArray[np.uint8]:
    module = _pillow()
    try:
        with module.open(io.BytesIO(content) if isinstance(content, bytes) else content) as file:
            image = file.convert("RGB")
    except (EOFError, OSError, SyntaxError, ValueError) as error:
        where = "" if isinstance(content, bytes) else f"{content}: "
        raise DatasetFormatError(f"{where}not a picture, or a damaged one: {error}") from error
    if shorter is not None:
        image = _middle(image, side, shorter)
    elif image.size != (side, side):
        image = image.resize((side, side), module.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(image, np.uint8).transpose(2, 0, 1))


def _middle(image: Any, side: int, shorter: int) -> Any:
    scale = shorter / min(image.size)
    width, height = (max(side, round(scale * length)) for length in image.size)
    image = image.resize((width, height), _pillow().Resampling.BILINEAR)
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side))


def refuse_too_large(name: str, n_rows: int, n_columns: int) -> None:
    """Refuse before anything is decoded when the rows cannot reasonably be held in memory."""
    n_bytes = 4 * n_rows * n_columns
    if n_bytes > LARGEST:
        raise MemoryError(
            f"{name}: {n_rows:,} pictures take {n_bytes / 2**30:,.0f} GiB, more than "
            f"{LARGEST / 2**30:,.0f}; give n_rows={LARGEST // (4 * n_columns):,} or less"
        )
