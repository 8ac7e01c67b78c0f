"""CIFAR-10, CIFAR-100 and CIFAR-2: the binary batches, or JPEG copies in a tar.

The provider's "python version" is made of pickles, which letheon never opens.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.datasets._files import check_rows, open_bytes
from letheon.datasets._info import DataFile, DatasetInfo, SurveyRow
from letheon.datasets._job import Job, Loaded, Source
from letheon.datasets._pictures import decode
from letheon.datasets._synthetic import StandIn
from letheon.exceptions import DatasetFormatError

__all__ = ["LOSSY", "SOURCES", "TEN"]

TEN = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
TWO = ("cat", "ship")
LOSSY = "JPEG copies, lossy"
_PIXELS = 3 * 32 * 32
_JPEG = "cifar10_jpeg.tar"
_ROWS = {"train": 50_000, "test": 10_000}


def read_cifar10(job: Job) -> Loaded:
    """Read CIFAR-10: pixels from 0 to 1, channel by channel; y is the class in Krizhevsky's order.

    JPEG copies stand class after class in their tar; they are shuffled with a fixed seed.
    """
    return _read_ten(job, TEN)


def read_cifar2(job: Job) -> Loaded:
    """Read CIFAR-2: the cats (0) and ships (1) of CIFAR-10."""
    return _read_ten(job, TWO)


def read_cifar100(job: Job) -> Loaded:
    """Read CIFAR-100: pixels from 0 to 1, channel by channel; y is the fine class."""
    _, path = job.where(0)
    X, y = _batches(job, path, ("train",), label_bytes=2, n_rows=_ROWS["train"])
    X_test, y_test = _batches(job, path, ("test",), label_bytes=2, n_rows=_ROWS["test"])
    return Loaded(X, y, X_test=X_test, y_test=y_test)


def _read_ten(job: Job, kinds: tuple[str, ...]) -> Loaded:
    name, path = job.where(0)
    if name == _JPEG:
        return _read_jpeg(path, kinds)
    training = tuple(f"data_batch_{number}" for number in range(1, 6))
    parts: list[NDArray[Any]] = []
    for stems, n_rows in ((training, _ROWS["train"]), (("test_batch",), _ROWS["test"])):
        X, y = _batches(job, path, stems, label_bytes=1, n_rows=n_rows)
        if kinds != TEN:
            numbers = [TEN.index(kind) for kind in kinds]
            kept = np.isin(y, numbers)
            X, y = X[kept], np.searchsorted(numbers, y[kept])
        parts += [X, y]
    return Loaded(parts[0], parts[1], X_test=parts[2], y_test=parts[3])


def _batches(
    job: Job, path: Path, stems: tuple[str, ...], *, label_bytes: int, n_rows: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the rows of binary batches: label bytes (the last one counts), then pixels."""
    found = {name: content for name, content in _members(path) if name in stems}
    lacking = [f"{stem}.bin" for stem in stems if stem not in found]
    if lacking:
        raise DatasetFormatError(f"{path} lacks {', '.join(lacking)}")
    content = b"".join(found[stem] for stem in stems)
    width = label_bytes + _PIXELS
    if len(content) % width:
        raise DatasetFormatError(f"{path}: {len(content):,} bytes are no rows of {width:,}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, width)
    if job.check:
        check_rows(path, n_rows, len(rows))
    X = np.divide(rows[:, label_bytes:], 255, dtype=np.float32)
    return X, rows[:, label_bytes - 1].astype(np.int64)


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield stem and content of every ``.bin`` file of a folder or a tar."""
    if path.is_dir():
        for file in sorted(path.glob("*.bin")):
            yield file.stem, file.read_bytes()
        return
    for name, content in _in_tar(path, ".bin"):
        yield Path(name).stem, content


def _in_tar(path: Path, ending: str) -> Iterator[tuple[str, bytes]]:
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
    found: dict[str, list[tuple[int, bytes]]] = {"train": [], "test": []}
    for name, content in _in_tar(path, ".jpg"):
        part, _, rest = name.partition("/")
        kind = rest.partition("/")[0]
        if part in found and kind in kinds:
            found[part].append((kinds.index(kind), content))
    parts: list[NDArray[Any]] = []
    for part, files in found.items():
        if not files:
            raise DatasetFormatError(f"{path} has no {part}/<class>/*.jpg")
        order = np.random.default_rng(0).permutation(len(files))
        parts += [
            decode((files[place][1] for place in order), side=32),
            np.array([files[place][0] for place in order], np.int64),
        ]
    return Loaded(parts[0], parts[1], X_test=parts[2], y_test=parts[3], note=LOSSY)


_TEN_FILES = (
    DataFile(
        names=("cifar-10-batches-bin/", "cifar-10-binary.tar", _JPEG),
        sha256={_JPEG: "1ad627445b8629ff82b88551943f1ac202800b46e74b28ce7626d12a2b8d051d"},
    ),
)
_HUNDRED_FILES = (DataFile(names=("cifar-100-binary/", "cifar-100-binary.tar")),)
_NO_PICKLE = (
    "Take the binary version; the python version is made of pickles, which letheon does not open."
)


def _info(name: str, files: tuple[DataFile, ...], survey: SurveyRow, note: str) -> DatasetInfo:
    return DatasetInfo(
        name=name,
        title=name.upper(),
        folder="cifar100" if name == "cifar-100" else "cifar10",
        files=files,
        provider="A. Krizhevsky, University of Toronto",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="not stated by the provider; citation asked",
        citation="Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images",
        survey=survey,
        note=f"{note} {_NO_PICKLE}",
        image_shape=(3, 32, 32),
    )


def _stand_in(n_rows: int, n_test: int, n_classes: int) -> dict[str, StandIn]:
    shares = (1 / n_classes,) * n_classes
    return {"": StandIn(n_rows=n_rows, n_test=n_test, image_shape=(3, 32, 32), shares=shares)}


_COUNTS_BOTH = "The survey's size counts training and test rows."

SOURCES = (
    Source(
        info=_info(
            "cifar-2",
            _TEN_FILES,
            SurveyRow(dimensionality="3,072", size="12,000", classes="2", balance="50.00%"),
            f"Cats and ships of CIFAR-10, 10,000 to train on. {_COUNTS_BOTH}",
        ),
        read=read_cifar2,
        stand_ins=_stand_in(10_000, 2_000, 2),
    ),
    Source(
        info=_info(
            "cifar-10",
            _TEN_FILES,
            SurveyRow(dimensionality="3,072", size="60,000", classes="10"),
            _COUNTS_BOTH,
        ),
        read=read_cifar10,
        stand_ins=_stand_in(50_000, 10_000, 10),
    ),
    Source(
        info=_info(
            "cifar-100",
            _HUNDRED_FILES,
            SurveyRow(dimensionality="3,072", size="60,000", classes="100"),
            _COUNTS_BOTH,
        ),
        read=read_cifar100,
        stand_ins=_stand_in(50_000, 10_000, 100),
    ),
)
