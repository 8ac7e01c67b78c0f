"""What `letheon datasets` prints."""

from pathlib import Path

from typer.testing import CliRunner, Result

from letheon import datasets
from letheon.cli import app
from tests.datasets.providers import write


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["datasets", *words])


def test_every_data_set_has_a_line(tmp_path: Path) -> None:
    for part in ("data", "test"):
        write(tmp_path / "adult" / f"adult.{part}.gz", "")
    lines = call("--folder", str(tmp_path)).output.splitlines()
    here = {line.split()[0]: line.split()[1] for line in lines[1:28]}
    assert list(here) == list(datasets.names())
    assert [name for name, word in here.items() if word == "yes"] == ["adult"]
    assert any("patient_nbr" in line and "101,766" in line for line in lines)
    assert str(tmp_path) in lines[28]


def test_one_data_set_in_full(tmp_path: Path) -> None:
    said = " ".join(call("bank", "--folder", str(tmp_path)).output.split())
    about = datasets.info("bank")
    for part in (about.page, about.licence, "bank-full.csv", "additional:", about.citation):
        assert part in said


def test_an_unknown_name_is_refused() -> None:
    result = call("nope")
    assert result.exit_code == 1
    assert "unknown data set 'nope'" in result.stderr
