"""Pictures: idx and MATLAB arrays, CIFAR's binary batches, tars and folders of picture files.

The "python version" of CIFAR is made of pickles, which letheon never opens.
"""

import io
import math
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.datasets._spec import Job, Loaded, open_bytes
from letheon.exceptions import DatasetFormatError

LARGEST = 2**34  # bytes of X
_ENDINGS = frozenset((".jpg", ".jpeg", ".png", ".webp"))
_THREADS = 4  # the decoder works outside the interpreter's lock
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


def _flatten(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return pictures (channels first) as flat rows, values from 0 to 1."""
    return np.divide(pixels.reshape(len(pixels), -1), 255, dtype=np.float32)


def parse_idx(content: bytes) -> NDArray[np.uint8]:
    """Return the array of an idx file: two zero bytes, type, number of axes, sizes, values."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise DatasetFormatError(f"not an idx file of bytes: it starts with {content[:4].hex()}")
    n_axes = content[3]
    start = 4 + 4 * n_axes
    if len(content) < start:
        raise DatasetFormatError(f"idx file of {len(content)} bytes ends within its header")
    shape = struct.unpack(f">{n_axes}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DatasetFormatError(
            f"idx file has {len(content) - start:,} values, expected {math.prod(shape):,}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_mnist(job: Job) -> Loaded:
    """Read MNIST: pixels from 0 to 1. ``"3-vs-8"``: these two digits, y is 1 for 8."""
    return Loaded(*_read_digits(job, 0), None, *_read_digits(job, 2))


def _read_digits(job: Job, file: int) -> Pair:
    arrays = []
    for number in (file, file + 1):
        with job.open(number) as stream:
            arrays.append(parse_idx(stream.read()))
    images, digits = arrays
    if images.ndim != 3 or len(images) != len(digits):
        raise DatasetFormatError(f"images {images.shape} and labels {digits.shape} differ")
    if job.variant == "3-vs-8":
        kept = np.isin(digits, (3, 8))
        images, digits = images[kept], digits[kept] == 8
    return _flatten(images), digits.astype(np.int64)


def read_svhn(job: Job) -> Loaded:
    """Read SVHN, cropped digits: pixels from 0 to 1, channel by channel; y is the digit."""
    return Loaded(*_read_mat(job, 0), None, *_read_mat(job, 1))


def _read_mat(job: Job, file: int) -> Pair:
    """Return images, channels first, and digits; the file writes 10 for zero."""
    from scipy.io import loadmat, matlab

    with job.open(file) as stream:
        try:
            content: dict[str, Any] = loadmat(stream, variable_names=("X", "y"))
            images, labels = np.asarray(content["X"]), np.asarray(content["y"]).ravel()
        except NotImplementedError as error:
            raise DatasetFormatError(
                "a MATLAB 7.3 file; the provider's is of version 5. Download it again"
            ) from error
        except (LookupError, matlab.MatReadError, TypeError, ValueError, zlib.error) as error:
            raise DatasetFormatError(f"not a MATLAB file with X and y: {error}") from error
    if images.shape != (32, 32, 3, len(labels)):
        raise DatasetFormatError(f"X is {images.shape}, expected (32, 32, 3, {len(labels)})")
    job.check_rows(file, len(labels))
    return _flatten(images.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10


def read_cifar10(job: Job, kinds: tuple[str, ...] = TEN) -> Loaded:
    """Read CIFAR-10, or some kinds of it: pixels from 0 to 1, channel by channel.

    y is the class in Krizhevsky's order. JPEG copies stand class after class in their tar; they
    are shuffled with a fixed seed.
    """
    name, path = job.where(0)
    if name == CIFAR_JPEG:
        return _read_jpeg(path, kinds)
    training = tuple(f"data_batch_{number}" for number in range(1, 6))
    parts: list[NDArray[Any]] = []
    for stems, n_rows in zip((training, ("test_batch",)), _CIFAR_ROWS, strict=True):
        X, y = _read_batches(job, path, stems, label_bytes=1, n_rows=n_rows)
        if kinds != TEN:
            numbers = [TEN.index(kind) for kind in kinds]
            kept = np.isin(y, numbers)
            X, y = X[kept], np.searchsorted(numbers, y[kept])
        parts += [X, y]
    return Loaded(parts[0], parts[1], None, parts[2], parts[3])


def read_cifar100(job: Job) -> Loaded:
    """Read CIFAR-100: pixels from 0 to 1, channel by channel; y is the fine class."""
    _, path = job.where(0)
    train, test = (
        _read_batches(job, path, (stem,), label_bytes=2, n_rows=n_rows)
        for stem, n_rows in zip(("train", "test"), _CIFAR_ROWS, strict=True)
    )
    return Loaded(*train, None, *test)


def _read_batches(
    job: Job, path: Path, stems: tuple[str, ...], *, label_bytes: int, n_rows: int
) -> Pair:
    """Return the rows of binary batches: label bytes (the last one counts), then pixels."""
    if path.is_dir():
        batches = {
            each.stem: each.read_bytes() for each in path.glob("*.bin") if each.stem in stems
        }
    else:
        members = _read_tar(path, ".bin")
        batches = {stem: each for name, each in members if (stem := Path(name).stem) in stems}
    lacking = [f"{stem}.bin" for stem in stems if stem not in batches]
    if lacking:
        raise DatasetFormatError(f"{path} lacks {', '.join(lacking)}")
    content = b"".join(batches[stem] for stem in stems)
    width = label_bytes + _CIFAR_PIXELS
    if len(content) % width:
        raise DatasetFormatError(f"{path}: {len(content):,} bytes are no rows of {width:,}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, width)
    job.check_rows(0, len(rows), n_rows)
    X = np.divide(rows[:, label_bytes:], 255, dtype=np.float32)
    return X, rows[:, label_bytes - 1].astype(np.int64)


def _read_tar(path: Path, ending: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files of a tar one after the other; nothing is extracted."""
    try:
        with open_bytes(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.name.endswith(ending) else None
                if content is not None:
                    yield member.name.removeprefix("./"), content.read()
    except tarfile.TarError as error:
        raise DatasetFormatError(f"{path} is not a tar: {error}") from error


def _read_jpeg(path: Path, kinds: tuple[str, ...]) -> Loaded:
    """Read ``train/<class>/*.jpg`` and ``test/<class>/*.jpg`` of a tar."""
    pictures: dict[str, list[tuple[int, bytes]]] = {"train": [], "test": []}
    for name, content in _read_tar(path, ".jpg"):
        part, _, rest = name.partition("/")
        kind = rest.partition("/")[0]
        if part in pictures and kind in kinds:
            pictures[part].append((kinds.index(kind), content))
    arrays: list[NDArray[Any]] = []
    for part, files in pictures.items():
        if not files:
            raise DatasetFormatError(f"{path} has no {part}/<class>/*.jpg")
        order = np.random.default_rng(0).permutation(len(files))
        arrays += [
            _decode((files[place][1] for place in order), side=32),
            np.array([files[place][0] for place in order], np.int64),
        ]
    X, y, X_test, y_test = arrays
    return Loaded(X, y, None, X_test, y_test, note="JPEG copies, lossy")


def _decode(
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
        pixels = pool.map(partial(_read_pixels, side=side, shorter=shorter), contents)
        return _flatten(np.stack(list(pixels)))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "pictures need Pillow, which is not installed: pip install pillow"
        ) from error
    return Image


def _read_pixels(content: bytes | Path, *, side: int, shorter: int | None) -> NDArray[np.uint8]:
    module = _pillow()
    try:
        with module.open(io.BytesIO(content) if isinstance(content, bytes) else content) as file:
            image = file.convert("RGB")
    except (EOFError, OSError, SyntaxError, ValueError) as error:
        where = "" if isinstance(content, bytes) else f"{content}: "
        raise DatasetFormatError(f"{where}not a picture, or a damaged one: {error}") from error
    if shorter is not None:
        image = _cut_middle(image, side, shorter)
    elif image.size != (side, side):
        image = image.resize((side, side), module.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(image, np.uint8).transpose(2, 0, 1))


def _cut_middle(image: Any, side: int, shorter: int) -> Any:
    scale = shorter / min(image.size)
    width, height = (max(side, round(scale * length)) for length in image.size)
    image = image.resize((width, height), _pillow().Resampling.BILINEAR)
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side))


class _Files(NamedTuple):
    """Paths of pictures and the class of each."""

    paths: list[Path]
    classes: NDArray[np.int64]

    def sample(self, n_rows: int | None, seed: int) -> "_Files":
        """Return so many at random, in their order; all where there are no more."""
        if n_rows is None or n_rows >= len(self.paths):
            return self
        kept = np.zeros(len(self.paths), np.bool_)
        kept[np.random.default_rng(seed).permutation(len(kept))[:n_rows]] = True
        return self.where(kept)

    def where(self, kept: NDArray[np.bool_]) -> "_Files":
        """Return the marked ones."""
        paths = [path for path, is_kept in zip(self.paths, kept, strict=True) if is_kept]
        return _Files(paths, self.classes[kept])


def _list_files(folders: list[Path]) -> _Files:
    """Return the pictures below folders; the class is the folder's place in the list."""
    paths = [_list_pictures(folder) for folder in folders]
    empty = [folder for folder, inside in zip(folders, paths, strict=True) if not inside]
    if empty:
        raise DatasetFormatError(
            f"no pictures ({', '.join(sorted(_ENDINGS))}) in {empty[0]}"
            + (f", nor in {len(empty) - 1:,} other folders" if len(empty) > 1 else "")
        )
    n_paths = np.array([len(inside) for inside in paths], np.int64)
    classes = np.repeat(np.arange(len(folders)), n_paths)
    return _Files([path for inside in paths for path in inside], classes)


def _list_pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS)


def _list_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _read_files(job: Job, train: _Files, test: _Files | None, *, shorter: int | None) -> Loaded:
    """Choose files first and decode those only: all of them rarely fit into memory."""
    train = train.sample(job.n_rows, job.seed)
    test = None if test is None else test.sample(job.n_rows, job.seed)
    if not train.paths:
        raise DatasetFormatError(f"no pictures ({', '.join(sorted(_ENDINGS))}) to train on")
    _, side, _ = job.info.image_shape or (0, 0, 0)
    n_all = len(train.paths) + (0 if test is None else len(test.paths))
    _check_memory(job.info.name, n_all, 3 * side * side)
    X = _decode(train.paths, side=side, shorter=shorter)
    if test is None:
        return Loaded(X, train.classes)
    X_test = _decode(test.paths, side=side, shorter=shorter)
    return Loaded(X, train.classes, None, X_test, test.classes)


def _check_memory(name: str, n_rows: int, n_columns: int) -> None:
    """Refuse before anything is decoded when the rows do not reasonably fit into memory."""
    n_bytes = 4 * n_rows * n_columns
    if n_bytes > LARGEST:
        raise MemoryError(
            f"{name}: {n_rows:,} pictures take {n_bytes / 2**30:,.0f} GiB, more than "
            f"{LARGEST / 2**30:,.0f}; give n_rows={LARGEST // (4 * n_columns):,} or less"
        )


def read_imagenet(job: Job) -> Loaded:
    """Read ``train/<wnid>/*.JPEG`` and, where it is there, ``val/<wnid>/*.JPEG``.

    Shorter side 256, middle 224 x 224, pixels from 0 to 1; y is the place of the WordNet id
    among those of the training folder. Validation pictures must stand in folders by class, some
    for every class of the training folder; other classes are left out.
    """
    folders = _list_folders(job.where(0)[1])
    train = _list_files(folders)
    job.check_rows(0, len(train.paths))
    val = job.find(1)
    test = None
    if val is not None:
        _check_sorted(val[1])
        test = _list_files([val[1] / folder.name for folder in folders])
    return _read_files(job, train, test, shorter=256)


def _check_sorted(folder: Path) -> None:
    n_unsorted = sum(path.suffix.lower() in _ENDINGS for path in folder.iterdir())
    if n_unsorted:
        raise DatasetFormatError(
            f"{n_unsorted:,} pictures stand in {folder} itself, so that their class is not known: "
            "sort them into folders by class, as in train, or move them away"
        )


def read_lsun(job: Job) -> Loaded:
    """Read exported pictures, ``<scene>_train/`` and ``<scene>_val/``; 256 x 256, ten scenes.

    The provider's archives are databases (LMDB); its script exports them as picture files. With
    pictures to test on of one scene, there must be some of all.
    """
    home = job.where(0)[1].parent
    train = _list_files([home / f"{scene}_train" for scene in SCENES])
    to_test = [home / f"{scene}_val" for scene in SCENES]
    test = _list_files(to_test) if any(folder.is_dir() for folder in to_test) else None
    return _read_files(job, train, test, shorter=256)


def read_lacuna(job: Job) -> Loaded:
    """Read faces of VGGFace2 shrunk to 32 x 32: the class is the person, and so is the id.

    Golatkar et al. drew 10 and 100 people with 500 pictures or more, without overlap, and did not
    publish their names; here people are drawn with a fixed seed. 100 pictures of each are to test.
    """
    folders = _list_folders(job.where(0)[1])
    people = [folder for folder in folders if len(_list_pictures(folder)) >= _FEWEST_FACES]
    order = np.random.default_rng(0).permutation(len(people))
    ten, hundred = order[:_LACUNA_10], order[_LACUNA_10 : _LACUNA_10 + _LACUNA_100]
    drawn, wanted = (ten, _LACUNA_10) if job.info.name == "lacuna-10" else (hundred, _LACUNA_100)
    if len(drawn) < wanted and job.check:
        raise DatasetFormatError(
            f"{len(people)} people have {_FEWEST_FACES} pictures; {job.info.name} needs "
            f"{wanted} of them beside those of the other Lacuna"
        )
    files = _list_files([people[place] for place in sorted(drawn)])
    rank = np.arange(len(files.paths)) - np.searchsorted(files.classes, files.classes)
    is_test = rank < _TEST_FACES
    faces = _read_files(job, files.where(~is_test), files.where(is_test), shorter=None)
    return faces._replace(ids=faces.y, test_ids=faces.y_test)
