"""Readers of image data: idx and MATLAB arrays, CIFAR batches, tar files, image folders.

The "python version" of CIFAR consists of pickles, which letheon never opens.
"""

import io
import math
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.datasets._spec import DatasetArrays, ReadJob, open_bytes
from letheon.exceptions import DatasetFormatError

LARGEST = 2**34  # bytes of X
_ENDINGS = frozenset((".jpg", ".jpeg", ".png", ".webp"))
_THREADS = 4  # the decoder releases the global interpreter lock
_UNSIGNED_BYTE = 8
TEN = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR_JPEG = "cifar10_jpeg.tar"
_CIFAR_PIXELS = 3 * 32 * 32
_CIFAR_ROWS = (50_000, 10_000)
SCENES = (
    "bedroom", "bridge", "church_outdoor", "classroom", "conference_room", "dining_room",
    "kitchen", "living_room", "restaurant", "tower",
)  # fmt: skip
_FEWEST_FACES = 500
_TEST_FACES = 100
_LACUNA_10, _LACUNA_100 = 10, 100

Pair = tuple[NDArray[np.float32], NDArray[np.int64]]
# Paths of images, and the class of each.
Files = tuple[NDArray[Any], NDArray[np.int64]]


def _flatten_pixels(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return images (channels first) as flat rows, with values from 0 to 1."""
    return np.divide(pixels.reshape(len(pixels), -1), 255, dtype=np.float32)


def parse_idx(content: bytes) -> NDArray[np.uint8]:
    """Return the array in an idx file of bytes.

    The file has two zero bytes, the type, the number of axes, the sizes and the values.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise DatasetFormatError(
            f"not an idx file of bytes: the file starts with {content[:4].hex()}; expected 000008"
        )
    n_axes = content[3]
    start = 4 + 4 * n_axes
    if len(content) < start:
        raise DatasetFormatError(
            f"the idx file is truncated: it ends within its header, after {len(content)} bytes"
        )
    shape = struct.unpack(f">{n_axes}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DatasetFormatError(
            f"the idx file has {len(content) - start:,} values; expected {math.prod(shape):,}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_mnist(job: ReadJob) -> DatasetArrays:
    """Read MNIST, with pixels from 0 to 1.

    The variant ``"3-vs-8"`` has only the digits 3 (y = 0) and 8 (y = 1).
    """
    arrays = []
    for number in range(4):
        with job.open(number) as stream:
            arrays.append(parse_idx(stream.read()))
    parts: list[Any] = []
    for images, digits in (arrays[:2], arrays[2:]):
        if images.ndim != 3 or len(images) != len(digits):
            raise DatasetFormatError(
                f"images have shape {images.shape} and labels {digits.shape}; expected one label "
                "per image"
            )
        is_pair = job.variant == "3-vs-8"
        kept = np.isin(digits, (3, 8)) if is_pair else slice(None)
        y = (digits == 8 if is_pair else digits).astype(np.int64)
        parts += [_flatten_pixels(images[kept]), y[kept], None]
    return DatasetArrays(*parts)


def read_svhn(job: ReadJob) -> DatasetArrays:
    """Read SVHN (cropped digits), with pixels from 0 to 1, channels first; y is the digit."""
    return DatasetArrays(*_read_mat(job, 0), None, *_read_mat(job, 1))


def _read_mat(job: ReadJob, file: int) -> Pair:
    """Return images, channels first, and digits; the label 10 in the file is the digit 0."""
    from scipy.io import loadmat, matlab

    with job.open(file) as stream:
        try:
            content: dict[str, Any] = loadmat(stream, variable_names=("X", "y"))
            images, labels = np.asarray(content["X"]), np.asarray(content["y"]).ravel()
        except NotImplementedError as error:
            raise DatasetFormatError(
                "this is a MATLAB 7.3 file; expected version 5, as published. Download it again"
            ) from error
        except (LookupError, matlab.MatReadError, TypeError, ValueError, zlib.error) as error:
            raise DatasetFormatError(
                f"the file is not a MATLAB file with X and y: {error}"
            ) from error
    if images.shape != (32, 32, 3, len(labels)):
        raise DatasetFormatError(f"X has shape {images.shape}; expected (32, 32, 3, {len(labels)})")
    job.check_rows(file, len(labels))
    return _flatten_pixels(images.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10


def read_cifar10(job: ReadJob, kinds: tuple[str, ...] = TEN) -> DatasetArrays:
    """Read CIFAR-10 or some of its classes, with pixels from 0 to 1, channels first.

    y is the class in Krizhevsky's order. JPEG copies are sorted by class in their tar file, so they
    are shuffled with a fixed seed.
    """
    name, path = job.locate_file(0)
    if name == CIFAR_JPEG:
        return _read_jpeg(path, kinds)
    training = [f"data_batch_{number}" for number in range(1, 6)]
    parts: list[Any] = []
    for X, y in _read_batches(job, path, training, ["test_batch"], label_bytes=1):
        numbers = [TEN.index(kind) for kind in kinds]
        kept = np.isin(y, numbers)
        parts += [X[kept], np.searchsorted(numbers, y[kept]), None]
    return DatasetArrays(*parts)


def read_cifar100(job: ReadJob) -> DatasetArrays:
    """Read CIFAR-100, with pixels from 0 to 1, channels first; y is the fine class."""
    train, test = _read_batches(job, job.locate_file(0)[1], ["train"], ["test"], label_bytes=2)
    return DatasetArrays(*train, None, *test)


def _read_batches(job: ReadJob, path: Path, *parts: list[str], label_bytes: int) -> Iterator[Pair]:
    """Yield pixels and labels of the training and of the test batches.

    A row of a binary batch has `label_bytes` labels, of which the last is used, then pixels.
    """
    for stems, n_rows in zip(parts, _CIFAR_ROWS, strict=True):
        members: Iterable[tuple[str, bytes]] = (
            ((each.name, each.read_bytes()) for each in path.glob("*.bin"))
            if path.is_dir()
            else _read_tar(path, ".bin")
        )
        batches = {stem: each for name, each in members if (stem := Path(name).stem) in stems}
        lacking = [f"{stem}.bin" for stem in stems if stem not in batches]
        if lacking:
            raise DatasetFormatError(f"files are missing in {path}: {', '.join(lacking)}")
        content = b"".join(batches[stem] for stem in stems)
        width = label_bytes + _CIFAR_PIXELS
        if len(content) % width:
            raise DatasetFormatError(
                f"the batches in {path} have {len(content):,} bytes; expected a multiple of "
                f"{width:,}, the size of one row"
            )
        rows = np.frombuffer(content, np.uint8).reshape(-1, width)
        job.check_rows(0, len(rows), n_rows)
        yield _flatten_pixels(rows[:, label_bytes:]), rows[:, label_bytes - 1].astype(np.int64)


def _read_tar(path: Path, ending: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file in a tar file; nothing is extracted."""
    try:
        with open_bytes(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.name.endswith(ending) else None
                if content is not None:
                    yield member.name.removeprefix("./"), content.read()
    except tarfile.TarError as error:
        raise DatasetFormatError(f"{path} is not a tar file: {error}") from error


def _read_jpeg(path: Path, kinds: tuple[str, ...]) -> DatasetArrays:
    """Read ``train/<class>/*.jpg`` and ``test/<class>/*.jpg`` from a tar file."""
    pictures: dict[str, list[tuple[int, bytes]]] = {"train": [], "test": []}
    for name, content in _read_tar(path, ".jpg"):
        part, _, rest = name.partition("/")
        kind = rest.partition("/")[0]
        if part in pictures and kind in kinds:
            pictures[part].append((kinds.index(kind), content))
    arrays: list[Any] = []
    for part, files in pictures.items():
        if not files:
            raise DatasetFormatError(f"{path} has no images named {part}/<class>/*.jpg")
        order = np.random.default_rng(0).permutation(len(files))
        classes = np.array([files[place][0] for place in order], np.int64)
        arrays += [_decode_pictures((files[place][1] for place in order), side=32), classes, None]
    return replace(DatasetArrays(*arrays), note="JPEG copies, lossy")


def _decode_pictures(
    contents: Iterable[bytes | Path], *, side: int, shorter: int | None = None
) -> NDArray[np.float32]:
    """Return RGB images as flat rows, channels first, with values from 0 to 1.

    Parameters
    ----------
    contents : iterable of bytes or Path
        Image files, or their contents.
    side : int
        Height and width of the result.
    shorter : int, optional
        Scale so that the shorter side has this length, then crop the centre. By default the image
        is stretched to a square.
    """
    _import_pillow()
    with ThreadPoolExecutor(_THREADS) as pool:
        pixels = pool.map(partial(_read_pixels, side=side, shorter=shorter), contents)
        return _flatten_pixels(np.stack(list(pixels)))


def _import_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "reading images needs Pillow, which is not installed: pip install pillow"
        ) from error
    return Image


def _read_pixels(content: bytes | Path, *, side: int, shorter: int | None) -> NDArray[np.uint8]:
    module = _import_pillow()
    try:
        with module.open(io.BytesIO(content) if isinstance(content, bytes) else content) as file:
            image = file.convert("RGB")
    except (EOFError, OSError, SyntaxError, ValueError) as error:
        where = "" if isinstance(content, bytes) else f"{content}: "
        raise DatasetFormatError(
            f"{where}the file is not an image or is damaged: {error}"
        ) from error
    if shorter is not None:
        image = _cut_middle(image, side, shorter)
    elif image.size != (side, side):
        image = image.resize((side, side), module.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(image, np.uint8).transpose(2, 0, 1))


def _cut_middle(image: Any, side: int, shorter: int) -> Any:
    scale = shorter / min(image.size)
    width, height = (max(side, round(scale * length)) for length in image.size)
    image = image.resize((width, height), _import_pillow().Resampling.BILINEAR)
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side))


def _list_files(folders: list[Path]) -> Files:
    """Return the image files in folders and their subfolders, and their classes.

    The class of an image is the position of its folder in `folders`.
    """
    inside = [_list_pictures(folder) for folder in folders]
    empty = [folder for folder, paths in zip(folders, inside, strict=True) if not paths]
    if empty:
        raise DatasetFormatError(
            f"no images ({', '.join(sorted(_ENDINGS))}) in {empty[0]}"
            + (f" and in {len(empty) - 1:,} other folders" if len(empty) > 1 else "")
        )
    classes = np.repeat(np.arange(len(folders)), np.array([*map(len, inside)], np.int64))
    return np.array([path for paths in inside for path in paths], object), classes


def _list_pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS)


def _list_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _read_files(job: ReadJob, *parts: Files, shorter: int | None) -> DatasetArrays:
    """Draw a sample of the files and decode only these; all images rarely fit into memory."""
    chosen = []
    for paths, classes in parts:
        order = np.random.default_rng(job.seed).permutation(len(paths))
        rows = np.sort(order[: job.n_rows])
        chosen.append((paths[rows], classes[rows]))
    if not len(chosen[0][0]):
        raise DatasetFormatError(f"there are no training images ({', '.join(sorted(_ENDINGS))})")
    _, side, _ = job.info.image_shape or (0, 0, 0)
    n_rows, row_bytes = sum(len(paths) for paths, _ in chosen), 4 * 3 * side * side
    # Checked before any image is decoded.
    if n_rows * row_bytes > LARGEST:
        raise MemoryError(
            f"{job.info.name}: {n_rows:,} images take {n_rows * row_bytes / 2**30:,.0f} GiB, "
            f"more than the limit of {LARGEST / 2**30:,.0f} GiB; "
            f"use n_rows={LARGEST // row_bytes} or less"
        )
    arrays: list[Any] = []
    for paths, classes in chosen:
        arrays += [_decode_pictures(paths, side=side, shorter=shorter), classes, None]
    return DatasetArrays(*arrays)


def read_imagenet(job: ReadJob) -> DatasetArrays:
    """Read ``train/<wnid>/*.JPEG`` and, if it exists, ``val/<wnid>/*.JPEG``.

    Images are scaled to a shorter side of 256, then cropped to the central 224 x 224; pixels are
    from 0 to 1. y is the position of the WordNet id among the training folders. Validation images
    must be in one folder per class, with images of every training class; other classes are ignored.
    """
    folders = _list_folders(job.locate_file(0)[1])
    train = _list_files(folders)
    job.check_rows(0, len(train[0]))
    validation = job.find(1)
    if validation is None:
        return _read_files(job, train, shorter=256)
    unsorted = [path for path in validation[1].iterdir() if path.suffix.lower() in _ENDINGS]
    if unsorted:
        raise DatasetFormatError(
            f"{len(unsorted):,} images are directly in {validation[1]}, so their class is "
            f"unknown; move them into one folder per class, as in train, or remove them"
        )
    test = _list_files([validation[1] / folder.name for folder in folders])
    return _read_files(job, train, test, shorter=256)


def read_lsun(job: ReadJob) -> DatasetArrays:
    """Read exported images of ten scenes, ``<scene>_train/`` and ``<scene>_val/``, at 256 x 256.

    The provider's archives are LMDB databases; its script exports them as image files. If one scene
    has test images, every scene must have test images.
    """
    home = job.locate_file(0)[1].parent
    train, test = ([home / f"{scene}_{part}" for scene in SCENES] for part in ("train", "val"))
    listed = [train, test] if any(folder.is_dir() for folder in test) else [train]
    return _read_files(job, *map(_list_files, listed), shorter=256)


def read_lacuna(job: ReadJob) -> DatasetArrays:
    """Read faces of VGGFace2, scaled to 32 x 32; the person is both the class and the id.

    Golatkar et al. drew 10 and 100 people with at least 500 images each, without overlap, and did
    not publish their names. Here people are drawn with a fixed seed. 100 images of each person are
    test rows.
    """
    folders = _list_folders(job.locate_file(0)[1])
    people = [folder for folder in folders if len(_list_pictures(folder)) >= _FEWEST_FACES]
    order = np.random.default_rng(0).permutation(len(people))
    ten, hundred = order[:_LACUNA_10], order[_LACUNA_10 : _LACUNA_10 + _LACUNA_100]
    drawn, wanted = (ten, _LACUNA_10) if job.info.name == "lacuna-10" else (hundred, _LACUNA_100)
    if len(drawn) < wanted and job.check:
        raise DatasetFormatError(
            f"only {len(people)} people have at least {_FEWEST_FACES} images; {job.info.name} "
            f"needs {wanted} people who are not in the other Lacuna data set"
        )
    paths, classes = _list_files([people[place] for place in sorted(drawn)])
    is_test = np.arange(len(paths)) - np.searchsorted(classes, classes) < _TEST_FACES
    train, test = ((paths[kept], classes[kept]) for kept in (~is_test, is_test))
    faces = _read_files(job, train, test, shorter=None)
    return replace(faces, ids=faces.y, test_ids=faces.y_test)
