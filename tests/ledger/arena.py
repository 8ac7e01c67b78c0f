"""Kill the processes of a ledger at named places, again and again, and look what is left.

``python -m tests.ledger.arena PLAN.json...``: one process with one thread that imports everything
once and forks: clients that submit with repeats, one or three workers, one that recovers and
checks. A hook in a fork does harm at the chosen point. Kinds of rounds:

====== ===========================================================================
kill   the process dies of SIGKILL
stop   a worker stops; others take its work over, and it goes on beside them
cut    the server ends all connections to the database
crash  the server dies of SIGKILL
quit   the server is told to stop at once
====== ===========================================================================

The report of ``NAME.json`` goes to ``NAME.report``.
"""

import contextlib
import functools
import gc
import io
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.naive_bayes import GaussianNB

from letheon import DaREForestClassifier, NaiveUnlearner, save
from letheon.exceptions import IdempotencyError, LedgerError, StaleWorkerError
from letheon.ledger import Ledger, ModelFiles
from letheon.ledger import core as faults
from letheon.ledger.db import engines
from letheon.ledger.settings import Settings
from tests.ledger import planted
from tests.ledger.arena_checks import DONE, Expected, no_trace, quick_violations, violations
from tests.postgres import PostgresServer, find_binaries

N_PEOPLE = 240
PEOPLE_PER_ROUND = 3
START = 1_800_000_000
# Longer than a lease, shorter than what the ledger takes for a clock that went wrong.
STEP_SECONDS = 90
PATIENCE = 60.0
MODELS = ("bayes", "forest")
CRASHED = 3
# Every how many rounds all certificates, the whole log and all models are checked.
THOROUGH = 8
# Workers that race may all pass a point by: a reader's pin puts the purge off to the next of them.
TRIES = 5
OF_THE_SERVER = {"crash": signal.SIGKILL, "quit": signal.SIGQUIT}


@dataclass(frozen=True)
class ArenaPlan:
    """What one run of the arena does.

    Attributes
    ----------
    home
        Folder of the ledger, new.
    rounds
        Pairs of kind and point.
    database
        Address of a PostgreSQL database, ``"own"`` for a server of the arena's own, or None for
        SQLite.
    journal
        SQLite's journal: ``"wal"``, ``"delete"`` or None for the default.
    workers
        1 or 3 at a time.
    seed
        Which visit of a point is the last one, from the second round at that point on.
    bug
        Name of a planted bug, for the test of the test.
    is_outside
        Whether the models come as files, and are computed in sandboxed processes.
    """

    home: str
    rounds: Sequence[Sequence[str]] = ()
    database: str | None = None
    journal: str | None = None
    workers: int = 1
    seed: int = 0
    bug: str | None = None
    is_outside: bool = False


@dataclass
class ArenaOutcome:
    """What happened, and what should not have."""

    harm: Counter[str] = field(default_factory=Counter)
    """How often each ``kind point`` was done."""
    rounds: int = 0
    acknowledged: int = 0
    slowest: float = 0.0
    """Seconds that the next worker needed to finish everything, and the check."""
    violations: list[str] = field(default_factory=list)


def table_of(name: str) -> tuple[Any, Any, list[str]]:
    """Return rows, labels and ids of a model's people; the ids are long, so that traces show."""
    rng = np.random.default_rng(sum(name.encode()))
    ids = [f"person-{rng.bytes(9).hex()}" for _ in range(N_PEOPLE)]
    y = rng.integers(0, 2, N_PEOPLE)
    return rng.normal(size=(N_PEOPLE, 3)) + y[:, None], y, ids


def fitted(name: str) -> Any:
    """Return a small fitted model of this name."""
    X, y, ids = table_of(name)
    if name == "forest":
        model: Any = DaREForestClassifier(n_estimators=2, max_depth=3, random_state=0)
    else:
        model = NaiveUnlearner(GaussianNB(), random_state=0)
    return model.fit(X, y, ids=ids)


class Arena:
    """A ledger, the processes around it, and what they were told."""

    def __init__(self, plan: ArenaPlan) -> None:
        self.plan = plan
        self.home = Path(plan.home)
        self.rng = random.Random(plan.seed)
        self.outcome = ArenaOutcome()
        self.now = START
        self.acks = self.home.with_name(self.home.name + "-acks.txt")
        self.errors = self.home.with_name(self.home.name + "-errors.txt")
        self.tables = {name: table_of(name) for name in MODELS}
        self.people = {name: table[2] for name, table in self.tables.items()}
        self.erased: dict[str, list[str]] = {name: [] for name in MODELS}
        self.registered: list[str] = []
        self.server: PostgresServer | None = None
        self.database = plan.database
        if plan.database == "own":
            binaries = find_binaries()
            assert binaries is not None
            self.server = PostgresServer(binaries)
            self.database = self.server.create()

    def open(self) -> Ledger:
        """Open the ledger, with the arena's own clock."""
        now = self.now
        return Ledger.open(self.home, clock=lambda: now)

    def fork(self, act: Callable[[], None], hook: Callable[[str], None] | None = None) -> int:
        """Start a process that does this and ends; one that fails says why in the errors' file."""
        child = os.fork()
        if child:
            return child
        status = CRASHED
        try:
            faults.hook = hook
            planted.plant(self.plan.bug)
            act()
            status = 0
        except StaleWorkerError:
            status = 0
        except BaseException:  # noqa: BLE001  (the parent reports it, whatever it is)
            _append(self.errors, traceback.format_exc())
        finally:
            os._exit(status)

    def run(self, *children: int, may_fail: bool = False) -> list[int]:
        """Wait for processes; return how they ended."""
        ends = [_wait(child) for child in children]
        if CRASHED in ends:
            text = self.errors.read_text(encoding="utf-8")
            self.errors.unlink()
            if not may_fail:
                self.outcome.violations.append(text[-3000:])
        return ends

    def create(self) -> None:
        """Make the ledger with its two models, and let it work once.

        This is done here, not in a fork: what is imported, compiled or cached by then is there in
        every fork.
        """
        database = self.database
        Ledger.create(self.home, name="arena", database=database, clock=lambda: START).close()
        if self.plan.journal is not None:
            settings = Settings.read(self.home)
            replace(settings, journal=self.plan.journal).write(self.home)
        with self.open() as ledger:
            for name, (X, y, ids) in self.tables.items():
                self.enter(ledger, fitted(name), (X, y, ids), name)
        for name in MODELS:
            self.erased[name] += self.people[name][-1:]
            self.submit([(f"first-{name}", name, self.people[name][-1:])])
        self.work(retrain=MODELS[0])
        self.settle()
        gc.freeze()

    def submit(self, wanted: Sequence[tuple[str, str, Sequence[str]]]) -> None:
        """Submit requests (key, model, ids) as a client does; note each that is acknowledged."""
        with self.open() as ledger:
            for key, model, ids in wanted:
                request = ledger.requests.submit(ids, model=model, key=key, verified=True)
                _append(self.acks, f"{key} {request.id}\n")

    def conflict(self, key: str, model: str, ids: Sequence[str]) -> None:
        """Reuse a key for another person; that must be rejected."""
        with self.open() as ledger:
            try:
                ledger.requests.submit(ids, model=model, key=key, verified=True)
            except IdempotencyError:
                return
        raise AssertionError(f"key {key} was taken twice, for two different bodies")

    def work(self, *, retrain: str | None = None) -> None:
        """Work as a worker does, until there is nothing left to do."""
        with self.open() as ledger:
            if retrain is not None:
                # Another worker may be at it, or has done it just now.
                with contextlib.suppress(LedgerError):
                    ledger.models.retrain(retrain)
            ledger.run_once(force=True)

    def register(self, name: str) -> None:
        """Register another small model, unless it is there already."""
        with self.open() as ledger:
            if name not in {model.name for model in ledger.models.list()}:
                X, y, ids = table_of("bayes-" + name)
                model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X[:8], y[:8], ids=ids[:8])
                self.enter(ledger, model, (X[:8], y[:8], ids[:8]), name)

    def enter(
        self, ledger: Ledger, model: Any, rows: tuple[Any, Any, list[str]], name: str
    ) -> None:
        """Register a model, as an object or as files."""
        X, y, ids = rows
        if not self.plan.is_outside:
            ledger.models.register(model, X, y, ids=ids, name=name)
            return
        table, file = io.BytesIO(), self.home.with_name(f"{name}-{os.getpid()}.letheon")
        np.savez(table, X=X, y=y, ids=np.array(ids))
        save(model, file)
        files = ModelFiles(model=file.read_bytes(), rows=("rows.npz", table.getvalue()))
        file.unlink()
        ledger.models.register_files(files, name=name)

    def read(self, model: str, gone: Sequence[str]) -> None:
        """Read as a server of predictions does: an old or a new version, never a half one."""
        before = set(self.people[model]) - (set(self.erased[model]) - set(gone))
        with self.open() as ledger, contextlib.closing(ledger.models.reader(model)) as reader:
            for _ in range(5):
                seen = set(reader.model.ids_)
                if not before - set(gone) <= seen <= before:
                    raise AssertionError("a reader saw a model that was never published")

    def settle(self, *, is_thorough: bool = True) -> None:
        """Finish everything as the next worker would, then check all that must hold."""
        with self.open() as ledger:
            for _ in range(3):
                if all(request.state in DONE for request in ledger.requests.list()):
                    break
                ledger.run_once(force=True)
            expected = Expected(self.tables, self.erased, tuple(self.registered), self.read_acks())
            check = violations if is_thorough else quick_violations
            problems = list(check(ledger, self.home, expected))
        problems += no_trace(self.home, expected)
        if problems:
            raise AssertionError("\n".join(problems))

    def read_acks(self) -> list[tuple[str, str]]:
        """Return key and request of each acknowledgement."""
        lines = self.acks.read_text(encoding="ascii").splitlines() if self.acks.exists() else []
        return [(key, request) for key, request in (line.split(" ") for line in lines)]

    def round(self, kind: str, point: str) -> None:
        """Let requests come in, do harm at the point, go on, check."""
        number = self.outcome.rounds
        self.outcome.rounds += 1
        self.now += STEP_SECONDS
        model = MODELS[number % len(MODELS)]
        gone = self.people[model][number * PEOPLE_PER_ROUND :][:PEOPLE_PER_ROUND]
        self.erased[model] += gone
        self._ask(kind, point, number, model, gone)
        if point.startswith("register."):
            self._register(kind, point, f"extra-{number}")
        elif kind == "stop":
            self._stop(point, model)
        else:
            self._fight(kind, point, model, gone)
        self.now += STEP_SECONDS
        start = time.monotonic()
        is_thorough = self.outcome.rounds % THOROUGH == 0 or number + 1 >= len(self.plan.rounds)
        self.run(self.fork(lambda: self.settle(is_thorough=is_thorough)))
        self.outcome.slowest = max(self.outcome.slowest, time.monotonic() - start)

    def round_until_harmed(self, kind: str, point: str) -> None:
        """Repeat a round that went by without harm, and without a violation."""
        name = f"{kind} {point}"
        before = self.outcome.harm[name]
        for _ in range(TRIES):
            self.round(kind, point)
            if self.outcome.harm[name] > before or self.outcome.violations:
                return

    def _ask(self, kind: str, point: str, number: int, model: str, gone: Sequence[str]) -> None:
        """Submit with repeats: same key and body, other key for the same person, same key again."""
        a, b, c = (f"{number}-{letter}" for letter in "abc")
        first, rest = (a, model, gone[:1]), (b, model, gone[1:])
        wanted, again = [first, rest, first], [rest, (c, model, gone[:1]), first]
        if point.startswith("submit."):
            harmed = self.fork(lambda: self.submit(wanted), self._harm(kind, point))
            self._end(kind, point, harmed, self.fork(lambda: self.submit(again)))

        def retry() -> None:
            self.submit(wanted + again)
            self.conflict(a, model, gone[1:])

        self.run(self.fork(retry))

    def _register(self, kind: str, point: str, name: str) -> None:
        self.registered.append(name)
        self._end(kind, point, self.fork(lambda: self.register(name), self._harm(kind, point)))
        self.run(self.fork(lambda: self.register(name)))

    def _fight(self, kind: str, point: str, model: str, gone: Sequence[str]) -> None:
        """Let workers race for the work; to each of them harm is done if it comes to the point."""
        retrain = model if point.startswith("retrain.") else None
        hook = None if point.startswith("submit.") else self._harm(kind, point)
        workers = [
            self.fork(lambda: self.work(retrain=retrain), hook) for _ in range(self.plan.workers)
        ]
        if self.plan.workers > 1:
            workers.append(self.fork(lambda: self.read(model, gone)))
        self._end(kind, point, *workers)

    def _stop(self, point: str, model: str) -> None:
        """Stop a worker at the point, let others take its work over, wake it up.

        Where it has computed and not published, they die just before they have: then nothing but
        the fence tells it that its files were swept away.
        """
        retrain = model if point.startswith("retrain.") else None
        sleeper = self.fork(lambda: self.work(retrain=retrain), self._harm("stop", point))
        _, status = os.waitpid(sleeper, os.WUNTRACED)
        self.now += STEP_SECONDS
        unpublished = point.startswith(("compute.", "blob."))
        hook = _killer("compute.loaded", 1) if unpublished else None
        self.run(*(self.fork(self.work, hook) for _ in range(max(self.plan.workers - 1, 1))))
        if self.server is not None:
            _cut(self.database)
        if os.WIFSTOPPED(status):
            self.outcome.harm[f"stop {point}"] += 1
            os.kill(sleeper, signal.SIGCONT)
            self.run(sleeper, may_fail=True)

    def _harm(self, kind: str, point: str) -> Callable[[str], None]:
        """Return a hook that does harm at the first visit, or later once that was done."""
        if kind == "kill":
            is_new = self.outcome.harm[f"kill {point}"] == 0
            return _killer(point, 1 if is_new else self.rng.randint(1, 3))
        if kind == "stop":
            return _once_at(point, lambda: os.kill(os.getpid(), signal.SIGSTOP))
        marker = self.home.with_name(self.home.name + "-harmed.txt")
        act = self._cutter(kind)

        def harm() -> None:
            _append(marker, f"{kind} {point}\n")
            act()

        return _once_at(point, harm)

    def _cutter(self, kind: str) -> Callable[[], None]:
        if kind == "cut":
            return lambda: _cut(self.database)
        assert self.server is not None
        return lambda: self._strike(OF_THE_SERVER[kind])

    def _strike(self, how: signal.Signals) -> None:
        assert self.server is not None
        # Another worker may have been first.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.server.pid, how)
        time.sleep(0.05)

    def _end(self, kind: str, point: str, *children: int) -> None:
        """Wait for processes, count the harm, and start the server again."""
        ends = self.run(*children, may_fail=kind in {"cut", *OF_THE_SERVER})
        if kind == "kill":
            self.outcome.harm[f"kill {point}"] += sum(end == -signal.SIGKILL for end in ends)
        marker = self.home.with_name(self.home.name + "-harmed.txt")
        if marker.exists():
            self.outcome.harm.update(marker.read_text(encoding="ascii").splitlines())
            marker.unlink()
            if kind in OF_THE_SERVER and self.server is not None:
                self.server.end(OF_THE_SERVER[kind])
                self.server.start()


def _once_at(point: str, act: Callable[[], None]) -> Callable[[str], None]:
    left = [1]

    def hook(name: str) -> None:
        if name == point and left[0]:
            left[0] = 0
            act()

    return hook


def _killer(point: str, visit: int) -> Callable[[str], None]:
    left = [visit]

    def hook(name: str) -> None:
        if name == point:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def _cut(database: str | None) -> None:
    """End all other connections to a database."""
    import psycopg

    assert database is not None
    query = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()"""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(query)


def _append(path: Path, text: str) -> None:
    """Add to a file in one call, so that lines of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, text.encode())
    os.close(descriptor)


def _wait(child: int) -> int:
    """Wait for a process and return its exit code; one that hangs is killed and reported."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("a process hangs")


def fight(plan: ArenaPlan) -> ArenaOutcome:
    """Run the rounds of a plan up to the first that goes wrong."""
    arena = Arena(plan)
    outcome = arena.outcome
    try:
        arena.create()
        for kind, point in plan.rounds:
            try:
                arena.round_until_harmed(kind, point)
            except AssertionError as error:
                outcome.violations.append(str(error))
            if outcome.violations:
                outcome.violations.append(f"in the round of {kind} {point}")
                break
    finally:
        if arena.server is not None:
            arena.server.close()
    outcome.acknowledged = len(set(arena.read_acks()))
    return outcome


def share_engines() -> None:
    """Make one engine for each database, before the first fork, with all that it has compiled.

    It has no connection then. Only for a process that does nothing else.
    """
    engines.sqlite_engine = functools.cache(engines.sqlite_engine)
    engines.postgresql_engine = functools.cache(engines.postgresql_engine)


def main(files: Sequence[str]) -> None:
    """Run plans and write their reports."""
    share_engines()
    for file in map(Path, files):
        outcome = fight(ArenaPlan(**json.loads(file.read_text(encoding="utf-8"))))
        report = json.dumps(vars(outcome), indent=1)
        file.with_suffix(".report").write_text(report, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
