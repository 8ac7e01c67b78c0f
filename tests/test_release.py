"""What a release consists of: wheels, workflows and versions that agree with each other."""

import re
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

import letheon
from tools import wheels

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def make_wheel(folder: Path, *names: str) -> Path:
    wheel = folder / "letheon-0.1.0-cp312-abi3-linux_x86_64.whl"
    with ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return wheel


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package with a module, a template, a cache and a compiled core."""
    for name in ("__init__.py", "templates/page.html", "__pycache__/a.pyc", "_core.abi3.so"):
        file = tmp_path / "package" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path / "package"


COMPLETE = ("letheon/__init__.py", "letheon/templates/page.html", "letheon/_core.abi3.so")
ABOUT = "letheon-0.1.0.dist-info/METADATA"


def test_a_complete_wheel_has_no_differences(package: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "letheon/templates/", *COMPLETE, ABOUT)
    assert wheels.list_differences(wheel, package) == []


@pytest.mark.parametrize(
    ("names", "difference"),
    [
        ((COMPLETE[0], COMPLETE[2]), "missing: templates/page.html"),
        ((*COMPLETE, "letheon/notes.txt"), "unexpected: notes.txt"),
        ((*COMPLETE, "tests/test_all.py"), "unexpected: tests/test_all.py"),
        (COMPLETE[:2], "expected one compiled core"),
    ],
)
def test_a_wrong_wheel_is_noticed(
    names: tuple[str, ...], difference: str, package: Path, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path, *names, ABOUT)
    assert wheels.list_differences(wheel, package) == [difference]


def test_the_files_of_this_package_are_those_that_are_compared() -> None:
    files = wheels.list_package_files(wheels.SOURCE)
    expected = {"py.typed", "_core.pyi", "definitions/sisa.md", "evaluation/templates/page.html"}
    assert expected <= files
    assert not [name for name in files if name.endswith((".so", ".pyc"))]


@pytest.mark.parametrize(
    ("tags", "pythons"),
    [("cp311-cp311", ["3.11"]), ("cp312-abi3", ["3.12", "3.13"])],
)
def test_which_python_takes_which_wheel(tags: str, pythons: list[str]) -> None:
    wheel = Path(f"letheon-0.1.0-{tags}-manylinux_2_34_x86_64.whl")
    assert [number for number in wheels.VERSIONS if wheels.is_for(wheel, number)] == pythons


def test_every_python_of_the_classifiers_gets_a_wheel() -> None:
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(SETTINGS["project"]["classifiers"]))
    assert tuple(classifiers) == wheels.VERSIONS
    assert SETTINGS["tool"]["scikit-build"]["wheel"]["py-api"] == "cp312"
    assert SETTINGS["tool"]["cibuildwheel"]["build"] == ["cp311-*", "cp312-*"]


def read_yaml(path: Path) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert citation["version"] == letheon.__version__
    assert citation["license"] == SETTINGS["project"]["license"]
    assert f"## [{letheon.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["tests", "wheels", "docs"])
def test_workflows_run_targets_that_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    workflow = read_yaml(ROOT / ".github" / "workflows" / f"{name}.yml")
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    targets = [step["run"].split()[1] for step in steps if step.get("run", "").startswith("make ")]
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
