"""Let the disk fail at each change of a file, and look what is left.

``python -m tests.ledger.io_arena PLAN.json``, with `io_faults.c` preloaded: for each number of a
change and each way to fail, a copy of a small ledger, and one fork that submits and works on a disk
that fails there; then one fork on a sound disk that goes on and checks. The report goes to
``report.json`` beside the plan.
"""

import ctypes
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.ledger.arena import Arena, ArenaPlan, share_engines

WAYS = {"EIO": 1, "ENOSPC": 2, "short": 3, "short, then ENOSPC": 4}
MODEL = "bayes"


@dataclass(frozen=True)
class DiskPlan:
    """What fails.

    Attributes
    ----------
    folder
        Folder of the homes; files below it fail.
    per_site
        How many changes fail of those that are the same call on the same kind of file, each in
        one of the `WAYS` in turn; None for every change, in each of them.
    part, parts
        Which of several plans this is, that share the work.
    database, journal
        As for the arena.
    """

    folder: str
    per_site: int | None = None
    part: int = 0
    parts: int = 1
    database: str | None = None
    journal: str | None = None


@dataclass
class DiskOutcome:
    """What happened."""

    n_changes: int = 0
    n_possible: int = 0
    """Changes, each in all ways in which it can fail."""
    sites: list[str] = field(default_factory=list)
    """Call and kind of file, each once."""
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """What a client or worker was told, by type."""
    violations: list[str] = field(default_factory=list)


class DiskArena(Arena):
    """A copy of a small ledger, on a disk that fails."""

    shim: ctypes.CDLL
    told: Path
    notes: Path
    is_thorough: bool

    def suffer(self, at: int, way: int) -> None:
        """Submit and work while the disk fails; say which error came, if any."""
        if at == 0:
            self.shim.io_faults_note(os.fsencode(self.notes))
        self.shim.io_faults_arm(at, way)
        error = "none"
        try:
            self.submit(self.wanted)
            self.work()
        except Exception as failure:  # noqa: BLE001  (what comes is counted)
            error = type(failure).__name__
        self.shim.io_faults_arm(0, 0)
        self.told.write_text(error, encoding="ascii")
        # Whatever the disk did, the model can still be read.
        self.erased[MODEL] += self.people[MODEL][:3]
        self.read(MODEL, self.people[MODEL][:3])

    @property
    def wanted(self) -> list[tuple[str, str, list[str]]]:
        """What a client submits."""
        people = self.people[MODEL]
        return [("a", MODEL, people[:1]), ("b", MODEL, people[1:3]), ("a", MODEL, people[:1])]

    def go_on(self) -> None:
        """Look for what was acknowledged, submit again, work on a sound disk, and check."""
        self.erased[MODEL] += self.people[MODEL][:3]
        with self.open() as ledger:
            known = {request.id for request in ledger.requests.list()}
        lost = [key for key, request in self.read_acks() if request not in known]
        if lost:
            raise AssertionError(f"acknowledged and lost: {lost}")
        self.submit(self.wanted)
        self.settle(is_thorough=self.is_thorough)


def copy_of(base: Arena, number: int, shim: ctypes.CDLL) -> DiskArena:
    """Return a copy of a ledger, with its database."""
    home = base.home.with_name("copy")
    shutil.copytree(base.home, home)
    database = base.plan.database
    if database is not None:
        server, _, name = database.rpartition("/")
        with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}_{number}" TEMPLATE "{name}"'.encode())
        settings = home / "letheon.toml"
        text = settings.read_text(encoding="utf-8").replace(name, f"{name}_{number}")
        settings.write_text(text, encoding="utf-8")
    copied = DiskArena(ArenaPlan(str(home)))
    copied.shim, copied.is_thorough = shim, number % 2 == 0
    copied.erased = {name: list(gone) for name, gone in base.erased.items()}
    # Beside the folder that fails: what a client writes down is not the ledger's.
    outside = base.home.parent.parent
    copied.acks, copied.errors, copied.told, copied.notes = (
        outside / f"{number}-{name}.txt" for name in ("acks", "errors", "told", "notes")
    )
    shutil.copy(base.acks, copied.acks)
    return copied


def suffer(base: Arena, number: int, at: int, way: str, outcome: DiskOutcome) -> DiskArena:
    """Let one change fail in a copy of the ledger."""
    arena = copy_of(base, number, ctypes.CDLL(None))
    arena.run(arena.fork(lambda: arena.suffer(at, WAYS.get(way, 0))))
    outcome.errors[arena.told.read_text(encoding="ascii")] += 1
    arena.now += 3600
    arena.run(arena.fork(arena.go_on))
    outcome.violations += [f"change {at}, {way}: {text}" for text in arena.outcome.violations]
    shutil.rmtree(arena.home)
    return arena


def site_of(note: str) -> str:
    """Return the call and the kind of file of a change: random names are left out."""
    call, _, path = note.partition(" ")
    name = "/".join(Path(path).parts[-2:])
    return f"{call} {re.sub('[0-9a-f]{6,}|[0-9]+', '*', name)}"


def ways_of(note: str) -> tuple[str, ...]:
    """Return the ways in which such a call can fail."""
    call = note.partition(" ")[0]
    if call in {"write", "pwrite"}:
        return tuple(WAYS)
    return ("EIO",) if call in {"unlink", "ftruncate"} else ("EIO", "ENOSPC")


def faults_of(notes: Sequence[str], per_site: int | None) -> list[tuple[int, str]]:
    """Return which change is to fail, counted from 1, and how."""
    if per_site is None:
        return [(at, way) for at, note in enumerate(notes, start=1) for way in ways_of(note)]
    places: dict[str, list[int]] = {}
    for at, note in enumerate(notes, start=1):
        places.setdefault(site_of(note), []).append(at)
    chosen, turn = [], Counter[tuple[str, ...]]()
    for site, calls in places.items():
        for at in sorted({calls[len(calls) * k // per_site] for k in range(per_site)}):
            ways = ways_of(site)
            chosen.append((at, ways[turn[ways] % len(ways)]))
            turn[ways] += 1
    return chosen


def main(file: Path) -> None:
    """Run a plan and write the report."""
    share_engines()
    plan = DiskPlan(**json.loads(file.read_text(encoding="utf-8")))
    home = Path(plan.folder) / "base"
    base = Arena(ArenaPlan(str(home), database=plan.database, journal=plan.journal))
    base.create()
    outcome = DiskOutcome(violations=base.outcome.violations)
    notes = suffer(base, 0, 0, "none", outcome).notes.read_text(encoding="utf-8").splitlines()
    outcome.n_changes, outcome.sites = len(notes), sorted(set(map(site_of, notes)))
    outcome.n_possible = sum(len(ways_of(note)) for note in notes)
    chosen = faults_of(notes, plan.per_site)
    faults = chosen[plan.part :: plan.parts]
    for number, (at, way) in enumerate(faults, start=1):
        suffer(base, number, at, way, outcome)
        outcome.faults[way] += 1
        if len(outcome.violations) > 5:
            break
    file.with_name("report.json").write_text(json.dumps(vars(outcome)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
