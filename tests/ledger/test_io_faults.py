"""Disk full and input/output errors at each change of a file below the home of a ledger.

No acknowledgement of what is not on the disk, nothing half-done, and the next worker resumes.
``make test`` lets every other kind of change fail, in one of four ways; ``make soak`` lets every
single change fail in all four.
"""

import json
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.io_arena import WAYS, DiskPlan
from tests.ledger.test_kills import address, quick_folder, run_python

__all__ = ["quick_folder"]

SOAK_PARTS = 4
SOURCE = Path(__file__).with_name("io_faults.c")
WRITES = """
import ctypes, os, sys
shim, path = ctypes.CDLL(None), os.path.join(os.environ["IO_FAULTS_HOME"], "file")
shim.io_faults_arm(int(sys.argv[1]), int(sys.argv[2]))
done = []
with open(path, "wb", buffering=0) as file:
    for call in (lambda: file.write(b"12345678"), lambda: os.fsync(file.fileno()),
                 lambda: file.truncate(4), lambda: os.rename(path, path + "2"),
                 lambda: os.unlink(path + "2")):
        try:
            done.append(call())
        except OSError as error:
            done.append(error.errno)
print(done)
"""


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The disk that fails, compiled."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    assert compiler is not None, "these tests need a C compiler, as the package itself does"
    library = tmp_path_factory.mktemp("shim") / "io_faults.so"
    options = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


def run_with(shim: Path, home: Path, *command: str) -> str:
    """Run Python on a disk that can fail below the home; return what it prints."""
    return run_python(*command, LD_PRELOAD=str(shim), IO_FAULTS_HOME=str(home))


def suffer(shim: Path, folder: Path, **options: Any) -> dict[str, Any]:
    """Run a plan and return its report."""
    homes = folder / "homes"
    homes.mkdir()
    file = folder / "plan.json"
    file.write_text(json.dumps(asdict(DiskPlan(str(homes), **options))), encoding="utf-8")
    run_with(shim, homes, "-m", "tests.ledger.io_arena", str(file))
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report


@pytest.mark.parametrize(
    ("at", "way", "expected"),
    [
        (0, 0, [8, None, 4, None, None]),
        (1, 1, [5, None, 4, None, None]),
        (2, 1, [8, 5, 4, None, None]),
        (5, 1, [8, None, 4, None, 5]),
        (1, 2, [28, 28, 4, 28, 2]),
        (1, 3, [4, None, 4, None, None]),
        (1, 4, [4, 28, 4, 28, 2]),
    ],
)
def test_disk_fails_as_told(
    at: int, way: int, expected: list[int | None], shim: Path, tmp_path: Path
) -> None:
    assert run_with(shim, tmp_path, "-c", WRITES, str(at), str(way)).strip() == str(expected)


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_changes_of_every_kind_may_fail(part: int, shim: Path, quick_folder: Path) -> None:
    report = suffer(shim, quick_folder, per_site=1, part=part, parts=2)
    assert report["violations"] == []
    assert len(report["sites"]) >= 30
    assert set(report["faults"]) == set(WAYS)
    # A short write alone is no error: the rest is written.
    assert 0 < report["errors"]["none"] < sum(report["faults"].values())


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_PARTS))
@pytest.mark.parametrize("database", ["sqlite", "sqlite-delete", "postgresql"])
def test_every_change_may_fail_in_every_way(
    database: str, part: int, shim: Path, quick_folder: Path, request: pytest.FixtureRequest
) -> None:
    where = address(database, request)
    report = suffer(shim, quick_folder, part=part, parts=SOAK_PARTS, **where)
    assert report["violations"] == []
    assert sum(report["faults"].values()) >= report["n_possible"] // SOAK_PARTS
