"""SIGKILL at every named place of the ledger: nothing is lost, nothing is done twice.

For each database and number of workers, a process of its own goes through all points; see `arena`.
``make test`` kills once at each, on one of the databases; ``make soak`` many times on each of them,
and with SQLite's other journal.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.arena import ArenaPlan
from tests.ledger.planted import BUGS
from tests.ledger.points import POINTS
from tests.postgres import PostgresServer, quick_place

ROOT = Path(__file__).resolve().parents[2]
# A worker that sleeps here wakes up beside others that have done its work. One that sleeps inside
# a transaction blocks all others.
STOPS = (
    "compute.loaded",
    "compute.written",
    "publish.after-commit",
    "certify.claimed",
    "purge.started",
    "purge.signed",
)
ALL_STOPS = tuple(
    point for point in POINTS if not point.endswith("before-commit") and point[:3] not in "sub-reg"
)
SOAK_PASSES = 9
HOME_BYTES = 64 << 20


@pytest.fixture
def quick_folder() -> Iterator[Path]:
    """A folder in memory where there is one: SIGKILL does not test the disk."""
    place = quick_place(HOME_BYTES)
    folder = Path(tempfile.mkdtemp(prefix="letheon-arena-", dir=place))
    yield folder
    shutil.rmtree(folder)


def run_python(*command: str, **environment: str) -> str:
    """Run Python in the root of the repository; return what it prints."""
    quiet = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | quiet | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def fight(folder: Path, *plans: ArenaPlan) -> list[dict[str, Any]]:
    """Run plans in one process and return their reports."""
    files = [folder / f"plan-{number}.json" for number in range(len(plans))]
    for file, plan in zip(files, plans, strict=True):
        file.write_text(json.dumps(asdict(plan)), encoding="utf-8")
    run_python("-m", "tests.ledger.arena", *map(str, files))
    return [json.loads(file.with_suffix(".report").read_text(encoding="utf-8")) for file in files]


def address(database: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return where the ledger's tables lie, as an option of a plan."""
    if database == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return {"database": server.create()}
    return {"journal": "delete" if database == "sqlite-delete" else None}


def missed(report: dict[str, Any], kind: str, points: Sequence[str]) -> list[str]:
    """Return the points at which nothing was done."""
    return [point for point in points if report["harm"].get(f"{kind} {point}", 0) == 0]


@pytest.mark.parametrize(
    ("database", "workers", "points"),
    [("sqlite", 3, POINTS[::2]), ("sqlite", 1, POINTS[1::4]), ("postgresql", 3, POINTS[3::4])],
)
def test_nothing_is_lost_or_done_twice(
    database: str,
    workers: int,
    points: Sequence[str],
    quick_folder: Path,
    request: pytest.FixtureRequest,
) -> None:
    where = address(database, request)
    rounds = [("kill", point) for point in points]
    plan = ArenaPlan(str(quick_folder / "home"), rounds, workers=workers, **where)
    (report,) = fight(quick_folder, plan)
    assert report["violations"] == []
    assert missed(report, "kill", points) == []
    assert report["acknowledged"] == 3 * report["rounds"] + 2


# What lies around the sandboxed process, and what its answer decides.
SANDBOXED = (
    "register.before-commit",
    "compute.loaded",
    "compute.forgotten",
    "publish.before-commit",
    "purge.key-destroyed",
)


def test_nothing_is_lost_with_sandboxed_processes(quick_folder: Path) -> None:
    rounds = [("kill", point) for point in SANDBOXED]
    (report,) = fight(quick_folder, ArenaPlan(str(quick_folder / "home"), rounds, is_outside=True))
    assert report["violations"] == []
    assert missed(report, "kill", SANDBOXED) == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SOAK_PASSES))
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_nothing_is_lost_with_sandboxed_processes_for_long(
    database: str, workers: int, seed: int, quick_folder: Path, request: pytest.FixtureRequest
) -> None:
    where = address(database, request)
    rounds = [("kill", point) for point in POINTS]
    home = str(quick_folder / "home")
    plan = ArenaPlan(home, rounds, workers=workers, seed=seed, is_outside=True, **where)
    (report,) = fight(quick_folder, plan)
    assert report["violations"] == []
    assert missed(report, "kill", POINTS) == []


@pytest.mark.parametrize(("database", "stops"), [("sqlite", STOPS[:4]), ("postgresql", STOPS[4:])])
def test_worker_that_was_overtaken_does_no_harm(
    database: str, stops: Sequence[str], quick_folder: Path, request: pytest.FixtureRequest
) -> None:
    where = address(database, request)
    rounds = [("stop", point) for point in stops]
    (report,) = fight(
        quick_folder, ArenaPlan(str(quick_folder / "home"), rounds, workers=3, **where)
    )
    assert report["violations"] == []
    assert missed(report, "stop", stops) == []


def test_planted_bugs_are_found(quick_folder: Path) -> None:
    """The test of the test: the same rounds and checks, with a bug in the ledger."""
    plans = [
        ArenaPlan(str(quick_folder / f"home-{number}"), [(bug.kind, bug.point)], bug=name)
        for number, (name, bug) in enumerate(BUGS.items())
    ]
    reports = dict(zip(BUGS, fight(quick_folder, *plans), strict=True))
    said = {name: "\n".join(report["violations"]) for name, report in reports.items()}
    assert [name for name, bug in BUGS.items() if bug.says not in said[name]] == []
    assert [
        name for name, bug in BUGS.items() if missed(reports[name], bug.kind, [bug.point])
    ] == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SOAK_PASSES))
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("database", ["sqlite", "sqlite-delete", "postgresql"])
def test_nothing_is_lost_or_done_twice_for_long(
    database: str, workers: int, seed: int, quick_folder: Path, request: pytest.FixtureRequest
) -> None:
    where = address(database, request)
    stops = [("stop", point) for point in ALL_STOPS[seed::SOAK_PASSES]]
    rounds = [("kill", point) for point in POINTS] + stops
    home = str(quick_folder / "home")
    (report,) = fight(quick_folder, ArenaPlan(home, rounds, workers=workers, seed=seed, **where))
    assert report["violations"] == []
    assert missed(report, "kill", POINTS) == []
