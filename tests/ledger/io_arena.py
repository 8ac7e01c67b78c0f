"""Let the disk fail at each change of a file, and look what is left.

``python -m tests.ledger.io_arena PLAN.json``, with `io_faults.c` preloaded: for each number of a
change and each way to fail, a copy of a small ledger, and one fork that submits and works on a disk
that fails there; then one fork on a sound disk that goes on and checks. The report goes to
``report.json`` beside the plan.
"""

import ctypes
import json
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.ledger.arena import Arena, Plan

WAYS = {"EIO": 1, "ENOSPC": 2, "short": 3, "short, then ENOSPC": 4}
MODEL = "bayes"


@dataclass(frozen=True)
class DiskPlan:
    """What fails.

    Attributes
    ----------
    folder
        Folder of the homes; files below it fail.
    ways
        Names of `WAYS`. The n-th change fails in one of them, in turn, or in all.
    in_turn
        Whether it is one of them.
    every, first
        Every how many changes one fails, and from which on.
    database, journal
        As for the arena.
    """

    folder: str
    ways: Sequence[str] = tuple(WAYS)
    in_turn: bool = True
    every: int = 1
    first: int = 1
    database: str | None = None
    journal: str | None = None


@dataclass
class DiskOutcome:
    """What happened."""

    n_changes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """What a client or worker was told, by type."""
    violations: list[str] = field(default_factory=list)


class DiskArena(Arena):
    """A copy of a small ledger, on a disk that fails."""

    shim: ctypes.CDLL
    told: Path

    def suffer(self, at: int, way: int) -> None:
        """Submit and work while the disk fails; say which error came, if any."""
        self.shim.io_faults_arm(at, way)
        error = "none"
        try:
            self.submit(self.wanted)
            self.work()
        except Exception as failure:  # noqa: BLE001  (what comes is counted)
            error = type(failure).__name__
        count = self.shim.io_faults_count()
        self.shim.io_faults_arm(0, 0)
        self.told.write_text(json.dumps([count, error]), encoding="ascii")
        # Whatever the disk did, the model can still be read.
        self.read(MODEL, self.people[MODEL][:3])

    @property
    def wanted(self) -> list[tuple[str, str, list[str]]]:
        """What a client submits."""
        people = self.people[MODEL]
        return [("a", MODEL, people[:1]), ("b", MODEL, people[1:3]), ("a", MODEL, people[:1])]

    def go_on(self) -> None:
        """Look for what was acknowledged, submit again, work on a sound disk, and check."""
        self.erased[MODEL] = self.people[MODEL][:3]
        with self.open() as ledger:
            known = {request.id for request in ledger.requests()}
        lost = [key for key, request in self.read_acks() if request not in known]
        if lost:
            raise AssertionError(f"acknowledged and lost: {lost}")
        self.submit(self.wanted)
        self.settle()


def copy_of(base: Arena, number: int, shim: ctypes.CDLL) -> DiskArena:
    """Return a copy of a ledger, with its database."""
    home = base.home.with_name(f"home-{number}")
    shutil.copytree(base.home, home)
    database = base.plan.database
    if database is not None:
        server, _, name = database.rpartition("/")
        with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}_{number}" TEMPLATE "{name}"'.encode())
        settings = home / "letheon.toml"
        text = settings.read_text(encoding="utf-8").replace(name, f"{name}_{number}")
        settings.write_text(text, encoding="utf-8")
    copied = DiskArena(Plan(str(home), ()))
    copied.shim = shim
    # Beside the folder that fails: what a client writes down is not the ledger's.
    outside = base.home.parent.parent
    copied.acks, copied.errors, copied.told = (
        outside / f"{number}-{name}.txt" for name in ("acks", "errors", "told")
    )
    return copied


def suffer(base: Arena, number: int, at: int, way: str, outcome: DiskOutcome) -> Any:
    """Let one change fail in a copy of the ledger; return how many changes there were."""
    arena = copy_of(base, number, ctypes.CDLL(None))
    arena.run(arena.fork(lambda: arena.suffer(at, WAYS.get(way, 0))))
    count, error = json.loads(arena.told.read_text(encoding="ascii"))
    outcome.errors[error] += 1
    arena.now += 3600
    arena.run(arena.fork(arena.go_on))
    outcome.violations += [f"change {at}, {way}: {text}" for text in arena.outcome.violations]
    shutil.rmtree(arena.home)
    return count


def main(file: Path) -> None:
    """Run a plan and write the report."""
    plan = DiskPlan(**json.loads(file.read_text(encoding="utf-8")))
    home = Path(plan.folder) / "base"
    base = Arena(Plan(str(home), (), database=plan.database, journal=plan.journal))
    base.create()
    outcome = DiskOutcome(violations=base.outcome.violations)
    outcome.n_changes = suffer(base, 0, 0, "none", outcome)
    number = 0
    for at in range(plan.first, outcome.n_changes + 1, plan.every):
        turn = (at - plan.first) // plan.every % len(plan.ways)
        for way in [plan.ways[turn]] if plan.in_turn else plan.ways:
            number += 1
            suffer(base, number, at, way, outcome)
            outcome.faults[way] += 1
        if len(outcome.violations) > 5:
            break
    file.with_name("report.json").write_text(json.dumps(vars(outcome)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
