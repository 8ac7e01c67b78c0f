"""Every row of the survey's table is there, and says where it comes from."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from letheon import datasets
from letheon.datasets import DatasetFormatError, DatasetMissingError
from letheon.datasets._spec import UNVERIFIED
from tests.datasets.providers import idx, pixels, write

# Name, dimensionality, size, classes, balance: Table 1 of Mercuri et al. (2022).
TABLE = """
mnist|784|60,000|10|N/A
covtype|54|581,012|7|N/A
higgs|28|11,000,000|2|53.00%
epsilon|2,000|400,000|2|50.00%
cifar-2|3,072|12,000|2|50.00%
cifar-10|3,072|60,000|10|N/A
cifar-100|3,072|60,000|100|N/A
lsun|65,536|1,000,000|10|N/A
sst|215,154|11,855|5|N/A
svhn|3,072|73,257|10|N/A
rcv1|47,236|20,242|2|52.00%
purchase|600|250,000|2|N/A
imagenet|150,528|1,281,167|1000|N/A
mini-imagenet|150,528|128,545|100|N/A
surgical|25|14,635|2|25.24%
vaccine|36|26,707|2|46.40%
adult|14|48,842|2|23.92%
bank|17|45,211|2|11.30%
diabetes|20|101,766|2|46.10%
no-show|14|110,527|2|20.19%
olympics|15|206,165|2|14.60%
census|40|299,285|2|6.20%
credit-card|30|284,807|2|0.17%
ctr|39|1,000,000|2|2.91%
twitter|15|1,000,000|2|16.93%
lacuna-10|1,024|≥ 5,000|10|N/A
lacuna-100|1,024|≥ 50,000|100|N/A
""".strip().splitlines()
NAMES = datasets.names()
DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_table_is_the_survey_s() -> None:
    ours = []
    for name in NAMES:
        row = datasets.info(name).survey
        ours.append(f"{name}|{row.dimensionality}|{row.size}|{row.classes}|{row.balance}")
    assert ours == TABLE


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_said(name: str) -> None:
    about = datasets.info(name)
    assert all((about.title, about.provider, about.licence, about.citation, about.subject_id))
    assert about.page.startswith("http")
    assert about.files
    assert about.name == name


@pytest.mark.parametrize("name", NAMES)
def test_absent_files_are_asked_for(name: str, tmp_path: Path) -> None:
    assert not datasets.present(name, tmp_path)
    with pytest.raises(DatasetMissingError) as caught:
        datasets.load(name, folder=tmp_path)
    about, said = datasets.info(name), str(caught.value)
    needed = about.files[0].names[0]
    for part in (f"{tmp_path}/{about.folder}/{needed}", about.page, about.licence, "LETHEON_DATA"):
        assert part in said


def test_a_variant_asks_for_its_own_files(tmp_path: Path) -> None:
    write(tmp_path / "bank" / "bank-full.csv", "")
    assert datasets.present("bank", tmp_path, variant="full")
    assert not datasets.present("bank", tmp_path)


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".bz2"])
def test_compressed_files_count(ending: str, tmp_path: Path) -> None:
    for part in ("adult.data", "adult.test"):
        assert not datasets.present("adult", tmp_path)
        write(tmp_path / "adult" / f"{part}{ending}", "")
    assert datasets.present("adult", tmp_path)


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHEON_DATA", str(tmp_path))
    assert datasets.data_home() == tmp_path
    assert datasets.data_home(tmp_path / "other") == tmp_path / "other"
    monkeypatch.delenv("LETHEON_DATA")
    assert datasets.data_home() == Path.home() / ".cache" / "letheon"


def test_the_python_version_of_cifar_is_not_opened(tmp_path: Path) -> None:
    write(tmp_path / "cifar10" / "cifar-10-batches-py" / "data_batch_1", b"\x80\x02")
    with pytest.raises(DatasetMissingError, match="pickles, which letheon does not open"):
        datasets.load("cifar-10", folder=tmp_path)


def mnist_at(folder: Path) -> Path:
    """Write four files of MNIST's names, small."""
    for part in ("train", "t10k"):
        write(folder / "mnist" / f"{part}-images-idx3-ubyte.gz", idx(pixels(5, 28, 28)))
        write(
            folder / "mnist" / f"{part}-labels-idx1-ubyte.gz",
            idx(np.array([3, 8, 1, 8, 0], np.uint8)),
        )
    return folder


def test_another_content_is_noticed_and_both_digests_are_named(tmp_path: Path) -> None:
    digest = hashlib.sha256(idx(pixels(5, 28, 28))).hexdigest()
    (expected,) = set(datasets.info("mnist").files[0].sha256.values())
    with pytest.raises(DatasetFormatError) as caught:
        datasets.load("mnist", folder=mnist_at(tmp_path))
    assert digest in str(caught.value)
    assert expected in str(caught.value)


def test_another_number_of_rows_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "credit-card" / "creditcard.csv", '"Time","V1","Class"\n0,1.5,"0"\n')
    with pytest.raises(DatasetFormatError, match="has 1 rows; expected 284,807"):
        datasets.load("credit-card", folder=tmp_path)


def test_if_absent_prefers_real_files(tmp_path: Path) -> None:
    assert not datasets.load("mnist", folder=tmp_path, synthetic="if-absent", n_rows=20).real
    real = datasets.load("mnist", folder=mnist_at(tmp_path), synthetic="if-absent", check=False)
    assert real.real
    assert len(real.y) == 5
    assert not datasets.load("mnist", folder=tmp_path, synthetic="always", n_rows=20).real


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "adlut"}, "did you mean 'adult'"),
        ({"name": "xxxxxxxx"}, "expected one of: mnist, covtype"),
        ({"name": "mnist", "variant": "4-vs-9"}, "the variants of 'mnist' are: 'ten', '3-vs-8'"),
        ({"name": "adult", "variant": "any"}, "the variants of 'adult' are: none"),
        ({"name": "adult", "synthetic": "maybe"}, "expected one of 'never'"),
        ({"name": "adult", "encode": "hash"}, "expected one of 'one-hot'"),
        ({"name": "adult", "n_rows": 0}, "at least 1"),
    ],
)
def test_wrong_words_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        datasets.load(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_licence_and_a_row_count_have_a_source_or_are_called_unverified(name: str) -> None:
    about = datasets.info(name)
    for source in (about.licence_source, about.rows_source):
        is_source = "http" in source or "files" in source
        assert source == UNVERIFIED or is_source, source
    is_read = any(file.sha256 for file in about.files)
    assert ("counted in the provider's files" in about.rows_source) == is_read
    assert about.licence_source in about.how_to_get("home")
    card = (DOCS / "datasets.md").read_text("utf-8").split(f"### {name}\n")[1].split("### ")[0]
    words = " ".join(card.split())
    assert f"licence: {about.licence}; source: {about.licence_source} " in words
    assert f"numbers of rows: {about.rows_source}" in words
