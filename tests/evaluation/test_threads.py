"""Threads and processes in the timing, tested in a separate process."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_threads_and_processes_are_waited_for_and_named() -> None:
    order = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    file = ROOT / "tests/evaluation/threads.py"
    done = subprocess.run(
        [*order, str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 passed" in done.stdout
