"""MNIST and SVHN: pictures of digits."""

import math
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.datasets._info import DataFile, DatasetInfo, SurveyRow
from letheon.datasets._job import Job, Loaded, Source
from letheon.datasets._synthetic import StandIn
from letheon.exceptions import DatasetFormatError

__all__ = ["SOURCES", "parse_idx"]

_UNSIGNED_BYTE = 8


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
    parts: list[NDArray[Any]] = []
    for number in (0, 2):
        images, digits = _idx(job, number), _idx(job, number + 1)
        if images.ndim != 3 or len(images) != len(digits):
            raise DatasetFormatError(f"images {images.shape} and labels {digits.shape} differ")
        if job.variant == "3-vs-8":
            kept = np.isin(digits, (3, 8))
            images, digits = images[kept], digits[kept] == 8
        parts += [_scaled(images), digits.astype(np.int64)]
    X, y, X_test, y_test = parts
    return Loaded(X, y, X_test=X_test, y_test=y_test)


def _idx(job: Job, number: int) -> NDArray[np.uint8]:
    with job.open(number) as stream:
        return parse_idx(stream.read())


def _scaled(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    flat = images.reshape(len(images), -1)
    return np.divide(flat, 255, dtype=np.float32)


def read_svhn(job: Job) -> Loaded:
    """Read SVHN, cropped digits: pixels from 0 to 1, channel by channel; y is the digit."""
    parts: list[NDArray[Any]] = []
    for number in (0, 1):
        images, digits = _mat(job, number)
        job.count(number, len(digits))
        parts += [_scaled(images), digits]
    X, y, X_test, y_test = parts
    return Loaded(X, y, X_test=X_test, y_test=y_test)


def _mat(job: Job, number: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images, channels first, and digits; the file writes 10 for zero."""
    from scipy.io import loadmat, matlab

    with job.open(number) as stream:
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
    pixels = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    return pixels, labels.astype(np.int64) % 10


def _mnist_file(part: str, kind: str, axes: int, digest: str) -> DataFile:
    name = f"{part}-{kind}-idx{axes}-ubyte"
    other = f"{part}-{kind}.idx{axes}-ubyte"
    return DataFile(names=(name, other), sha256={name: digest, other: digest})


_TEN = (0.1,) * 10

SOURCES = (
    Source(
        info=DatasetInfo(
            name="mnist",
            title="MNIST handwritten digits",
            folder="mnist",
            files=(
                _mnist_file(
                    "train",
                    "images",
                    3,
                    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                ),
                _mnist_file(
                    "train",
                    "labels",
                    1,
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                ),
                _mnist_file(
                    "t10k",
                    "images",
                    3,
                    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                ),
                _mnist_file(
                    "t10k",
                    "labels",
                    1,
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                ),
            ),
            provider="LeCun, Cortes, Burges",
            page="http://yann.lecun.com/exdb/mnist/",
            licence="CC BY-SA 3.0",
            citation="LeCun, Bottou, Bengio, Haffner (1998), Proc. IEEE 86(11)",
            survey=SurveyRow(dimensionality="784", size="60,000", classes="10"),
            note="Writers are not named in these files. Digits 3 and 8: 11,982 training rows.",
            variants={
                "ten": "all digits",
                "3-vs-8": "digits 3 (0) and 8 (1), as in Mahadevan and Mathioudakis",
            },
            image_shape=(1, 28, 28),
        ),
        read=read_mnist,
        stand_ins={
            "ten": StandIn(n_rows=60_000, n_test=10_000, image_shape=(1, 28, 28), shares=_TEN),
            "3-vs-8": StandIn(
                n_rows=11_982, n_test=1_984, image_shape=(1, 28, 28), shares=(0.5117, 0.4883)
            ),
        },
    ),
    Source(
        info=DatasetInfo(
            name="svhn",
            title="Street View House Numbers, cropped digits",
            folder="svhn",
            files=(
                DataFile(names=("train_32x32.mat",), rows={"train_32x32.mat": 73_257}),
                DataFile(names=("test_32x32.mat",), rows={"test_32x32.mat": 26_032}),
            ),
            provider="Stanford University",
            page="http://ufldl.stanford.edu/housenumbers/",
            licence="non-commercial use only",
            citation="Netzer et al. (2011), NIPS Workshop on Deep Learning",
            survey=SurveyRow(dimensionality="3,072", size="73,257", classes="10"),
            image_shape=(3, 32, 32),
        ),
        read=read_svhn,
        stand_ins={
            "": StandIn(
                n_rows=73_257,
                n_test=26_032,
                image_shape=(3, 32, 32),
                shares=(0.068, 0.189, 0.144, 0.116, 0.102, 0.094, 0.078, 0.076, 0.069, 0.064),
            )
        },
    ),
)
