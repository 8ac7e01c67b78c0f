"""Downloads that broke off, pages saved under the name of a file, and folders left unsorted."""

import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest
from scipy.io import savemat

from letheon import datasets
from letheon.datasets import DatasetFormatError, DatasetMissingError, load
from letheon.datasets._pictures import SCENES
from letheon.datasets._spec import open_bytes, open_text
from tests.datasets.providers import picture, pixels, tar_of, write

PAGE = "<!DOCTYPE html>\n<html><body>404 not found, sorry</body></html>\n"
RED = (255, 0, 0)
# Long enough to be cut in the middle of its compressed content.
LINES = "".join(f"{number}, {number * number}\n" for number in range(2000))

DAMAGE: dict[str, tuple[str, bytes]] = {
    "empty": ("", b""),
    "a page": ("", PAGE.encode()),
    "no text": ("", bytes(range(128, 256)) * 20),
    "a page as .gz": (".gz", PAGE.encode()),
    "a page as .xz": (".xz", PAGE.encode()),
    "a page as .bz2": (".bz2", PAGE.encode()),
    "half of a .gz": (".gz", gzip.compress(LINES.encode())[:2000]),
    "half of a .xz": (".xz", lzma.compress(LINES.encode())[:2000]),
    "no compressed content": (".gz", gzip.compress(LINES.encode())[:10] + b"\xff" * 50),
}
OF_FILES = [
    name
    for name in datasets.names()
    if not all(each.names[0].endswith("/") for each in datasets.info(name).files)
]


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", [*OF_FILES, "cifar-10", "cifar-100"])
def test_a_damaged_file_is_named(name: str, kind: str, tmp_path: Path) -> None:
    ending, content = DAMAGE[kind]
    about = datasets.info(name)
    for file in about.files:
        spelling = next(each for each in file.names if not each.endswith("/"))
        path = tmp_path / about.folder / (spelling + ending)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with pytest.raises(DatasetFormatError) as caught:
        load(name, folder=tmp_path, check=False)
    assert str(tmp_path / about.folder) in str(caught.value)


def test_a_damaged_file_is_noticed_while_its_content_is_compared(tmp_path: Path) -> None:
    for part in ("data", "test"):
        path = write(tmp_path / "adult" / f"adult.{part}.gz", LINES)
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DatasetFormatError, match=r"adult\.data\.gz is damaged"):
        load("adult", folder=tmp_path)


def test_errors_of_the_system_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), open_text(tmp_path / "nothing.csv.gz"):
        pass
    with pytest.raises(IsADirectoryError), open_bytes(tmp_path):
        pass
    there = write(tmp_path / "a.csv", "1\n")
    with pytest.raises(DatasetMissingError), open_text(there):
        raise DatasetMissingError("files are not there")


def test_a_cell_that_is_no_number_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "vaccine" / "training_set_features.csv", "respondent_id,age_group\nx17,old\n")
    labels = "respondent_id,h1n1_vaccine,seasonal_vaccine\n1,1,1\n"
    write(tmp_path / "vaccine" / "training_set_labels.csv", labels)
    with pytest.raises(DatasetFormatError, match="x17"):
        load("vaccine", folder=tmp_path, check=False)


def test_transactions_that_break_off_are_refused(tmp_path: Path) -> None:
    history = "id,chain,offer,market,repeattrips,repeater,offerdate\n1,2,3,4,5,t,2013-04-24\n"
    write(tmp_path / "purchase" / "trainHistory.csv", history)
    write(tmp_path / "purchase" / "transactions.csv", "id,chain,dept,category\n1,2,3,4\n1,2")
    with pytest.raises(DatasetFormatError, match="a row has 2 cells"):
        load("purchase", folder=tmp_path, check=False)


NEWER = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM" + b"\0" * 400


def test_newer_matlab_files_are_refused_in_words(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write(tmp_path / "svhn" / f"{part}_32x32.mat", NEWER)
    with pytest.raises(DatasetFormatError, match=r"train_32x32\.mat: this is a MATLAB 7\.3 file"):
        load("svhn", folder=tmp_path, check=False)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("do_compression", [False, True])
def test_matlab_files_that_break_off_are_refused(
    do_compression: bool, share: float, tmp_path: Path
) -> None:
    path = tmp_path / "svhn" / "train_32x32.mat"
    path.parent.mkdir()
    content: dict[str, Any] = {"y": pixels(3, 1), "X": pixels(32, 32, 3, 3)}
    savemat(path, content, do_compression=do_compression)
    whole = path.read_bytes()
    for part in ("train", "test"):
        write(tmp_path / "svhn" / f"{part}_32x32.mat", whole[: int(share * len(whole))])
    with pytest.raises(DatasetFormatError, match=r"train_32x32\.mat"):
        load("svhn", folder=tmp_path, check=False)


def test_a_tar_that_breaks_off_is_refused(tmp_path: Path) -> None:
    files = {f"train/cat/{i}.jpg": picture(RED, (32, 32), "JPEG") for i in range(3)}
    whole = gzip.compress(tar_of(files))
    write(tmp_path / "cifar10" / "cifar10_jpeg.tar", tar_of(files)[:900])
    with pytest.raises(DatasetFormatError, match=r"cifar10_jpeg\.tar"):
        load("cifar-2", folder=tmp_path, check=False)
    (tmp_path / "cifar10" / "cifar10_jpeg.tar").unlink()
    (tmp_path / "cifar10" / "cifar10_jpeg.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetFormatError, match=r"cifar10_jpeg\.tar\.gz"):
        load("cifar-2", folder=tmp_path, check=False)


@pytest.mark.parametrize("ending", ["JPEG", "PNG"])
def test_a_picture_that_breaks_off_is_named(ending: str, tmp_path: Path) -> None:
    whole = picture(RED, (300, 260), ending)
    write(tmp_path / "imagenet" / "train" / "n1" / "a.jpg", whole[: len(whole) // 2])
    with pytest.raises(DatasetFormatError, match=r"a\.jpg: the file is not an image or is damaged"):
        load("imagenet", folder=tmp_path, check=False)


TWEETS = (
    'user_id\ttext\tlabel\n1\t"hello there\tham\n2\tbuy now\tspam\n3\tsay "x" ok\tham\n'
    "4\tlast\tspam\n"
)


def test_a_tweet_may_begin_with_a_quote(tmp_path: Path) -> None:
    write(tmp_path / "twitter" / "hspam14.tsv", TWEETS)
    data = load("twitter", folder=tmp_path)
    assert data.y.tolist() == [0, 1, 0, 1]
    assert data.ids is not None
    assert data.ids.tolist() == [1, 2, 3, 4]
    assert data.X[:, data.feature_names.index("num_chs")].tolist() == [12, 7, 10, 4]


def test_quotes_enclose_cells_of_a_csv(tmp_path: Path) -> None:
    rows = 'user_id,text,label\n1,"one, ""two""\nthree",ham\n2,x,spam\n'
    write(tmp_path / "twitter" / "comments.csv", rows)
    data = load("twitter", folder=tmp_path)
    assert data.X[:, data.feature_names.index("num_chs")].tolist() == [16, 1]


@pytest.mark.parametrize(
    "rows",
    ['1,"never closed,ham\n2,x,spam\n', '1,"a,ham\n2,b" c,spam\n', "1,a\n", "1,a,ham,more\n"],
)
def test_a_csv_that_would_lose_tweets_is_refused(rows: str, tmp_path: Path) -> None:
    write(tmp_path / "twitter" / "comments.csv", f"user_id,text,label\n{rows}")
    with pytest.raises(DatasetFormatError, match=r"comments\.csv"):
        load("twitter", folder=tmp_path)


def sst_at(home: Path, trees: str) -> Path:
    for part in ("train", "test"):
        write(home / "sst" / f"{part}.txt", trees)
    return home


def test_words_with_a_no_break_space_stay(tmp_path: Path) -> None:
    data = load("sst", folder=sst_at(tmp_path, "(3 (2 2\u00a01/2) (4 stars))\n"), check=False)
    assert data.feature_names == ("2\u00a01/2", "stars")
    assert data.X.toarray().tolist() == [[1, 1]]


@pytest.mark.parametrize(
    "tree", ["(3 (2 two words) (4 stars))", "(3 (2 ) (4 stars))", "(3 (2 a) (4 st", "(3 (7 a))"]
)
def test_trees_that_would_lose_words_are_refused(tree: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetFormatError, match=r"train\.txt: a tree has brackets"):
        load("sst", folder=sst_at(tmp_path, f"{tree}\n"), check=False)


def imagenet_at(home: Path, *files: str) -> Path:
    for file in ("train/n1/a.JPEG", "train/n2/a.JPEG", *files):
        write(home / "mini-imagenet" / file, picture(RED, (240, 230), "JPEG"))
    return home


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("val/x.JPEG",), "1 images are directly in .*val"),
        (("val/n1/a.JPEG", "val/n2/a.JPEG", "val/x.JPEG"), "1 images are directly in .*val"),
        (("val/n3/a.JPEG",), "no images .* in .*val/n1 and in 1 other folders"),
        (("val/n1/a.JPEG",), "no images .* in .*val/n2$"),
    ],
)
def test_unsorted_pictures_are_not_left_out(
    files: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetFormatError, match=message):
        load("mini-imagenet", folder=imagenet_at(tmp_path, *files), check=False)


def test_validation_pictures_of_other_classes_are_left_out(tmp_path: Path) -> None:
    home = imagenet_at(tmp_path, "val/n1/a.JPEG", "val/n2/a.JPEG", "val/n3/a.JPEG")
    data = load("mini-imagenet", folder=home, check=False)
    assert data.y_test is not None
    assert data.y_test.tolist() == [0, 1]


def test_training_pictures_without_folders_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "imagenet" / "train" / "a.JPEG", picture(RED, (240, 230), "JPEG"))
    with pytest.raises(DatasetFormatError, match=r"there are no training images"):
        load("imagenet", folder=tmp_path, check=False)


@pytest.mark.parametrize("lacking", ["tower_train", "tower_val"])
def test_a_scene_that_was_not_exported_is_noticed(lacking: str, tmp_path: Path) -> None:
    for scene in SCENES:
        for part in ("train", "val"):
            folder = tmp_path / "lsun" / f"{scene}_{part}"
            name = "data.mdb" if folder.name == lacking else "x.png"
            write(folder / name, picture(RED, (256, 256)))
    with pytest.raises(DatasetFormatError, match=f"no images .* in .*{lacking}"):
        load("lsun", folder=tmp_path, check=False)
