"""SIGKILL of server and worker at every step of the story: it goes on, nothing lost or doubled."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.service.killing import MODEL, PLACES

ROOT = Path(__file__).resolve().parents[2]
N_TRAINED, N_ASKED = 455, 9
ONE_LIFE = [
    "received",
    "verified",
    "approved",
    "queued",
    "sealed",
    "applying",
    "applied",
    "published",
    "certificate",
    "certified",
    "purging",
    "purged",
    "purge",
    "closed",
]


def reports(folder: Path) -> dict[str, Any]:
    """Return what a process of its own tells of both stories."""
    quiet = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.service.killing", str(folder)],
        cwd=ROOT,
        env=os.environ | quiet,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    report = reports(tmp_path)
    story = report["story"]
    assert story["died_of"] == [
        *["server before-commit", "server after-commit"] * 3,
        *[f"worker {place}" for place in PLACES],
        "killed from outside",
    ]
    assert story["counts"] == {"closed": N_ASKED}
    assert story["timelines"] == [ONE_LIFE] * N_ASKED
    assert (story["models"], story["certificates"]) == ([MODEL], [1])
    assert story["live_rows"] == N_TRAINED - N_ASKED
    assert story["covered"] == [True] * 4
    assert story["passed"]
    # A client without an idempotency key files twice what it got no answer to, and it shows.
    assert sum(report["planted"]["counts"].values()) == 2, report["planted"]
