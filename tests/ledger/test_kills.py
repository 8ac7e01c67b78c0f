"""SIGKILL at every named place of the ledger: nothing is lost, nothing is done twice.

For each database and number of workers, a process of its own goes through all points; see `arena`.
``make test`` kills once at each, ``make soak`` many times, and with SQLite's other journal.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from letheon.ledger._faults import POINTS
from tests.ledger.arena import Plan
from tests.postgres import Server

ROOT = Path(__file__).resolve().parents[2]
# A worker that sleeps here wakes up beside another one that has done its work.
STOPS = (
    "compute.loaded",
    "compute.written",
    "publish.after-commit",
    "certify.claimed",
    "certify.file-written",
    "purge.started",
    "purge.key-destroyed",
    "purge.signed",
)
ALL_STOPS = tuple(point for point in POINTS if not point.endswith("before-commit"))
SOAK_PASSES = 9


@pytest.fixture
def quick_folder() -> Iterator[Path]:
    """A folder in memory where there is one: SIGKILL does not test the disk."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="letheon-arena-", dir=place))
    yield folder
    shutil.rmtree(folder)


def fight(folder: Path, **options: Any) -> dict[str, Any]:
    """Run a plan in a process of its own and return its report."""
    file = folder / "plan.json"
    file.write_text(json.dumps(asdict(Plan(str(folder / "home"), **options))), encoding="utf-8")
    command = [sys.executable, "-m", "tests.ledger.arena", str(file)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report


def address(database: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return where the ledger's tables lie, as an option of a plan."""
    if database == "postgresql":
        server: Server = request.getfixturevalue("postgres_server")
        return {"database": server.create()}
    return {"journal": "delete" if database == "sqlite-delete" else None}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_nothing_is_lost_or_done_twice(
    database: str, workers: int, quick_folder: Path, request: pytest.FixtureRequest
) -> None:
    where = address(database, request)
    report = fight(quick_folder, points=POINTS, workers=workers, **where)
    assert report["violations"] == []
    assert [point for point in POINTS if report["kills"].get(point, 0) == 0] == []


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_worker_that_was_overtaken_does_no_harm(
    database: str, quick_folder: Path, request: pytest.FixtureRequest
) -> None:
    where = address(database, request)
    report = fight(quick_folder, points=(), stops=STOPS, workers=3, **where)
    assert report["violations"] == []
    assert [point for point in STOPS if report["stops"].get(point, 0) == 0] == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SOAK_PASSES))
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("database", ["sqlite", "sqlite-delete", "postgresql"])
def test_nothing_is_lost_or_done_twice_for_long(
    database: str, workers: int, seed: int, quick_folder: Path, request: pytest.FixtureRequest
) -> None:
    where = address(database, request)
    stops = ALL_STOPS[seed::SOAK_PASSES]
    report = fight(
        quick_folder, points=POINTS, stops=stops, workers=workers, seed=seed + 1, **where
    )
    assert report["violations"] == []
    assert sum(report["kills"].values()) >= len(POINTS)
