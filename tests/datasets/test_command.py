"""What `letheon datasets` prints."""

from pathlib import Path

import pytest
import typer

from letheon import datasets
from letheon.cli._datasets import show_dataset, show_datasets
from tests.datasets.providers import write


def test_every_data_set_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("data", "test"):
        write(tmp_path / "adult" / f"adult.{part}.gz", "")
    show_datasets(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    here = {line.split()[0]: line.split()[1] for line in lines[1:28]}
    assert list(here) == list(datasets.names())
    assert [name for name, word in here.items() if word == "yes"] == ["adult"]
    assert any("patient_nbr" in line and "101,766" in line for line in lines)
    assert str(tmp_path) in lines[28]


def test_one_data_set_in_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_dataset("bank", tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    about = datasets.info("bank")
    for part in (about.page, about.licence, "bank-full.csv", "additional:", about.citation):
        assert part in said


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        show_dataset("nope")
    assert "no data set 'nope'" in capsys.readouterr().err
