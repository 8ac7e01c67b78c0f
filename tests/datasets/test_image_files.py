"""Pictures in the providers' formats, written by hand, and the pixels that must come out."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from letheon.datasets import Dataset, DatasetFormatError, _pictures, load
from letheon.datasets._pictures import SCENES, TEN, parse_idx
from tests.datasets.providers import cifar_batch, idx, picture, pixels, tar_of, write

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def read(name: str, home: Path, **options: Any) -> Dataset:
    return load(name, folder=home, check=False, **options)


def mnist_at(home: Path, digits: list[int]) -> dict[str, Any]:
    parts = {part: pixels(len(digits), 28, 28, seed=len(part)) for part in ("train", "t10k")}
    for part, images in parts.items():
        write(home / "mnist" / f"{part}-images-idx3-ubyte.gz", idx(images))
        write(home / "mnist" / f"{part}-labels.idx1-ubyte", idx(np.array(digits, np.uint8)))
    return parts


def test_mnist(tmp_path: Path) -> None:
    parts = mnist_at(tmp_path, [3, 8, 1, 8])
    data = read("mnist", tmp_path)
    np.testing.assert_allclose(data.X, parts["train"].reshape(4, 784) / 255, rtol=1e-6)
    np.testing.assert_allclose(data.X_test, parts["t10k"].reshape(4, 784) / 255, rtol=1e-6)
    assert data.y.tolist() == [3, 8, 1, 8]
    assert data.X.dtype == np.float32
    pair = read("mnist", tmp_path, variant="3-vs-8")
    assert pair.y.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(pair.X, data.X[[0, 1, 3]])


GOOD = idx(pixels(2, 3, 3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"PK\x03\x04" + GOOD, "not an idx file"),
        (GOOD[:2] + b"\x0d" + GOOD[3:], "not an idx file of bytes"),
        (GOOD[:9], "ends within its header"),
        (GOOD[:-1], "17 values; expected 18"),
        (GOOD + b"x", "19 values; expected 18"),
    ],
)
def test_damaged_idx_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(DatasetFormatError, match=message):
        parse_idx(content)


def test_labels_of_another_file_are_noticed(tmp_path: Path) -> None:
    mnist_at(tmp_path, [3, 8])
    write(tmp_path / "mnist" / "train-labels.idx1-ubyte", idx(np.zeros(3, np.uint8)))
    with pytest.raises(DatasetFormatError, match="one label per image"):
        read("mnist", tmp_path)


def svhn_file(path: Path, images: Any, labels: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"X": images, "y": np.array(labels, np.uint8)[:, None]})


def test_svhn_writes_ten_for_zero(tmp_path: Path) -> None:
    images = pixels(32, 32, 3, 3)
    for part in ("train", "test"):
        svhn_file(tmp_path / "svhn" / f"{part}_32x32.mat", images, [1, 10, 9])
    data = read("svhn", tmp_path)
    assert data.y.tolist() == [1, 0, 9]
    expected = images[4, 5, 2, 1] / np.float32(255)
    assert data.images()[1, 2, 4, 5] == pytest.approx(expected)


def test_svhn_of_another_shape_is_refused(tmp_path: Path) -> None:
    for part in ("train", "test"):
        svhn_file(tmp_path / "svhn" / f"{part}_32x32.mat", pixels(3, 32, 32, 3), [1, 2, 3])
    with pytest.raises(DatasetFormatError, match=r"expected \(32, 32, 3, 3\)"):
        read("svhn", tmp_path)


def ten_batches() -> tuple[dict[str, bytes], Any]:
    """Return five training batches and a test batch of two images each."""
    images = pixels(12, 3, 32, 32)
    labels = np.array([3, 8, 0, 3, 9, 1, 2, 8, 4, 5, 8, 3], np.uint8)
    stems = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    return {
        f"{stem}.bin": cifar_batch(images[2 * i : 2 * i + 2], labels[2 * i : 2 * i + 2])
        for i, stem in enumerate(stems)
    }, images


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_binary_cifar(form: str, tmp_path: Path) -> None:
    batches, images = ten_batches()
    home = tmp_path / "cifar10"
    if form == "folder":
        for name, content in batches.items():
            write(home / "cifar-10-batches-bin" / name, content)
    else:
        inside = {f"cifar-10-batches-bin/{name}": each for name, each in batches.items()}
        write(home / "cifar-10-binary.tar.gz", tar_of(inside))
    data = read("cifar-10", tmp_path)
    np.testing.assert_allclose(data.images(), images[:10] / 255, rtol=1e-6)
    assert data.y.tolist() == [3, 8, 0, 3, 9, 1, 2, 8, 4, 5]
    assert data.y_test is not None
    assert data.y_test.tolist() == [8, 3]
    assert data.note == ""
    pair = read("cifar-2", tmp_path)
    assert pair.y.tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(pair.X, data.X[[0, 1, 3, 7]])


def test_incomplete_cifar_is_refused(tmp_path: Path) -> None:
    batches, _ = ten_batches()
    for name in ("data_batch_1.bin", "test_batch.bin"):
        write(tmp_path / "cifar10" / "cifar-10-batches-bin" / name, batches[name])
    with pytest.raises(DatasetFormatError, match=r"files are missing in .*: data_batch_2\.bin"):
        read("cifar-10", tmp_path)


def test_truncated_cifar_is_refused(tmp_path: Path) -> None:
    for name, content in ten_batches()[0].items():
        write(tmp_path / "cifar10" / "cifar-10-batches-bin" / name, content[:-1])
    with pytest.raises(DatasetFormatError, match="expected a multiple of 3,073"):
        read("cifar-10", tmp_path)


def test_binary_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    images, coarse, fine = pixels(2, 3, 32, 32), np.array([1, 2]), np.array([77, 5])
    for part in ("train", "test"):
        batch = cifar_batch(images, coarse.astype(np.uint8), fine.astype(np.uint8))
        write(tmp_path / "cifar100" / "cifar-100-binary" / f"{part}.bin", batch)
    data = read("cifar-100", tmp_path)
    assert data.y.tolist() == [77, 5]
    np.testing.assert_allclose(data.images(), images / 255, rtol=1e-6)


def test_a_tar_of_jpeg_copies(tmp_path: Path) -> None:
    colours = {"cat": RED, "ship": BLUE, "dog": GREEN}
    files = {
        f"{part}/{kind}/{number:04}.jpg": picture(colour, (32, 32), "JPEG")
        for part in ("train", "test")
        for kind, colour in colours.items()
        for number in range(4)
    }
    write(tmp_path / "cifar10" / "cifar10_jpeg.tar.xz", tar_of(files))
    pair = read("cifar-2", tmp_path)
    assert sorted(pair.y) == [0] * 4 + [1] * 4
    assert pair.y.tolist() != sorted(pair.y)
    assert "lossy" in pair.note
    reddish = pair.images()[:, 0].mean(axis=(1, 2)) > 0.9
    np.testing.assert_array_equal(reddish, pair.y == 0)
    ten = read("cifar-10", tmp_path)
    assert {TEN[label] for label in ten.y} == set(colours)


def test_a_broken_tar_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "cifar10" / "cifar10_jpeg.tar", b"x" * 2000)
    with pytest.raises(DatasetFormatError, match="is not a tar"):
        read("cifar-2", tmp_path)


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """Two classes, one of one colour in the middle, one of another; wide and high pictures."""
    for part, n_files in (("train", 3), ("val", 1)):
        for wnid, colour in (("n01440764", RED), ("n01443537", GREEN)):
            for number in range(n_files):
                size = (300, 400) if number % 2 else (500, 280)
                file = tmp_path / "imagenet" / part / wnid / f"{wnid}_{number}.JPEG"
                write(file, picture(colour, size, "JPEG"))
    return tmp_path


def test_folders_of_classes(imagenet: Path) -> None:
    data = read("imagenet", imagenet)
    assert data.images().shape == (6, 3, 224, 224)
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.y_test is not None
    assert data.y_test.tolist() == [0, 1]
    assert data.images()[:, 0].mean(axis=(1, 2)).round().tolist() == [1, 1, 1, 0, 0, 0]


def test_only_chosen_pictures_are_decoded(imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Any] = []
    real = _pictures._read_pixels

    def counted(content: Any, **how: Any) -> Any:
        decoded.append(content)
        return real(content, **how)

    monkeypatch.setattr(_pictures, "_read_pixels", counted)
    data = read("imagenet", imagenet, n_rows=2)
    assert len(data.y) == 2
    assert len(decoded) == 4


def test_what_does_not_fit_into_memory_is_refused_first(
    imagenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pictures, "LARGEST", 4 * 3 * 224 * 224 * 5)
    with pytest.raises(MemoryError, match="n_rows=5 or less"):
        read("imagenet", imagenet)


def test_the_middle_is_cut_out() -> None:
    half = np.zeros((100, 300, 3), np.uint8)
    half[:, 100:200] = 255
    stream = _pictures._import_pillow().fromarray(half)
    cut = np.asarray(_pictures._cut_middle(stream, 100, 100))
    assert cut.shape == (100, 100, 3)
    assert cut.min() == 255


def test_lsun_scenes(tmp_path: Path) -> None:
    for number, scene in enumerate(SCENES):
        folder = tmp_path / "lsun" / f"{scene}_train" / "0" / "a"
        write(folder / "x.png", picture((25 * number, 0, 0), (256, 300)))
    data = read("lsun", tmp_path)
    assert data.y.tolist() == list(range(10))
    assert data.X_test is None
    levels = (data.images()[:, 0].mean(axis=(1, 2)) * 255).round()
    assert levels.tolist() == [25 * number for number in range(10)]


def test_lacuna_draws_people_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pictures, "_FEWEST_FACES", 3)
    monkeypatch.setattr(_pictures, "_TEST_FACES", 1)
    monkeypatch.setattr(_pictures, "_LACUNA_10", 2)
    monkeypatch.setattr(_pictures, "_LACUNA_100", 3)
    for person in range(6):
        for number in range(2 if person == 4 else 3):
            file = tmp_path / "vggface2" / "train" / f"n{person:06}" / f"{number:04}_01.jpg"
            write(file, picture((40 * person, 0, 0), (50, 60), "PNG"))
    drawn = []
    for name, n_people in (("lacuna-10", 2), ("lacuna-100", 3)):
        data = read(name, tmp_path)
        assert data.images().shape == (2 * n_people, 3, 32, 32)
        assert data.ids is not None
        np.testing.assert_array_equal(data.ids, data.y)
        assert data.test_ids is not None
        assert data.test_ids.tolist() == list(range(n_people))
        drawn.append({round(float(row[0]) * 255 / 40) for row in data.X})
    assert not drawn[0] & drawn[1]
    assert drawn[0] | drawn[1] == {0, 1, 2, 3, 5}


def test_too_few_famous_people_are_noticed(tmp_path: Path) -> None:
    write(tmp_path / "vggface2" / "train" / "n000001" / "a.jpg", picture(RED, (9, 9), "JPEG"))
    with pytest.raises(DatasetFormatError, match="only 0 people have at least 500 images"):
        load("lacuna-10", folder=tmp_path)


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "imagenet" / "train" / "n1" / "a.JPEG", b"no picture")
    with pytest.raises(DatasetFormatError, match="not an image"):
        read("imagenet", tmp_path)


def test_without_pillow_the_error_says_what_to_install(
    imagenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        read("imagenet", imagenet)
