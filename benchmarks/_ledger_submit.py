"""Parts of the ledger's benchmark: people, submissions, batches, trees, the disk."""

import gzip
import multiprocessing
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psycopg
from sklearn.naive_bayes import GaussianNB
from sqlalchemy import text

from benchmarks._report import Table, time_call
from letheon import DaREForestClassifier, NaiveUnlearner
from letheon.ledger import Ledger
from letheon.ledger.db.engines import sqlite_module
from letheon.ledger.db.events import Frontier
from letheon.ledger.db.log import LogTree, compute_root
from letheon.ledger.leases import owner_name
from letheon.ledger.models.commitment import SlotTree
from letheon.ledger.settings import Settings
from letheon.ledger.worker.compute import compute
from letheon.ledger.worker.worker import run_once
from letheon.verifier import check_consistency, check_inclusion, leaf_hash, transition_roots

N_COLUMNS = 20


def make_ids(n_people: int) -> list[str]:
    """Return ids as strings."""
    return [f"customer-{number:09d}" for number in range(n_people)]


def make_table(n_people: int, seed: int = 0) -> tuple[Any, Any, list[str]]:
    """Return rows, labels and ids, one row for each person."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n_people)
    return rng.normal(size=(n_people, N_COLUMNS)) + y[:, None], y, make_ids(n_people)


def register_model(ledger: Ledger, n_people: int, name: str = "bench", model: Any = None) -> None:
    """Register a model fitted on `n_people` people."""
    X, y, ids = make_table(n_people)
    fresh = NaiveUnlearner(GaussianNB(), random_state=0) if model is None else model
    ledger.models.register(fresh.fit(X, y, ids=ids), X, y, ids=ids, name=name)


def create_ledger(home: Path, n_people: int, **options: Any) -> None:
    """Create a ledger with one model."""
    with Ledger.create(home, name="bench", **options) as ledger:
        register_model(ledger, n_people)


class Rate(NamedTuple):
    """Calls per second, and the time of one call."""

    per_second: float
    p50: float
    """Milliseconds."""
    p99: float
    """Milliseconds."""


def compute_rate(seconds: Sequence[float], wall: float | None = None) -> Rate:
    """Return the rate of calls from their times, one by one or within `wall` seconds."""
    p50, p99 = np.percentile(np.asarray(seconds), [50, 99]) * 1e3
    return Rate(len(seconds) / (wall or float(sum(seconds))), float(p50), float(p99))


def time_lap(call: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class BareCommits:
    """A table of one column; each durable commit adds one row.

    Parameters
    ----------
    path
        A new database file, on the file system that is measured.
    journal
        ``"wal"`` (with ``synchronous=FULL``) or ``"delete"`` (with ``EXTRA``), as in the ledger.
    """

    def __init__(self, path: Path, journal: str) -> None:
        self._connection = sqlite_module().connect(path, isolation_level=None)
        level = "FULL" if journal == "wal" else "EXTRA"
        for pragma in (f"journal_mode={journal}", f"synchronous={level}", "secure_delete=ON"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute("CREATE TABLE t (a TEXT)")

    def commit(self) -> None:
        """Add a row, durably."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("INSERT INTO t VALUES ('one row of a request')")
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def make_slot_table(slots: int, erased: tuple[int, ...]) -> Table:
    """Return time and size of transitions of a full tree."""
    leaves = [secrets.token_bytes(32) for _ in range(slots)]
    tree, build = time_call(lambda: SlotTree.build(slots, np.arange(slots), leaves))
    columns = ("rows erased", "prove, ms", "verify, ms", "KiB", "KiB, gzip", "both roots right")
    note = f"Built from its leaves in {build.wall:.2f} s."
    rows = [_slot_row(tree, n) for n in erased]
    return Table(f"Slot tree of {slots:,} slots", columns, rows, note)


def _slot_row(tree: SlotTree, n_erased: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(n_erased)
    places = np.sort(rng.choice(tree.slots, n_erased, replace=False))
    (proof, after), prove = time_call(lambda: tree.transition(places))
    roots, check = time_call(lambda: transition_roots(proof))
    right = "yes" if roots[:2] == (tree.root, after.root) else "NO"
    sizes = (len(proof) / 1024, len(gzip.compress(proof, 6)) / 1024)
    return (f"{n_erased:,}", prove.wall * 1e3, check.wall * 1e3, *sizes, right)


def make_log_table(sizes: tuple[int, ...]) -> Table:
    """Return the cost of the event log at several sizes."""
    columns = (
        "events",
        "append, us",
        "prove, ms",
        "verify, us",
        "hashes, inclusion",
        "hashes, consistency",
        "root right",
    )
    note = "A proof is made from all leaves, as an export does; appending needs the frontier only."
    return Table("Log of events", columns, [_log_row(size) for size in sizes], note)


def _log_row(size: int) -> tuple[Any, ...]:
    leaves = [leaf_hash(number.to_bytes(8, "big")) for number in range(size)]
    frontier, append = time_call(lambda: _append_leaves(leaves))
    place, half, root = size // 3, size // 2, compute_root(leaves)
    right = "yes" if frontier.root() == root else "NO"
    proof, prove = time_call(lambda: LogTree(leaves[:size]).inclusion_path(place, size))
    _, check = time_call(lambda: check_inclusion(leaves[place], place, size, proof, root))
    between = LogTree(leaves[:size]).consistency_path(half, size)
    check_consistency(half, compute_root(leaves[:half]), size, root, between)
    times = (append.wall / size * 1e6, prove.wall * 1e3, check.wall * 1e6)
    return (f"{size:,}", *times, len(proof), len(between), right)


def _append_leaves(leaves: list[bytes]) -> Frontier:
    frontier = Frontier()
    for leaf in leaves:
        frontier = frontier.append(leaf)
    return frontier


PARTS = ("register", "apply", "certify", "purge")


def make_batch_row(home: Path, n_rows: int, n_erased: int, kind: str) -> tuple[Any, ...]:
    """Return seconds of registration, application, certificate and purge of one batch."""
    model = DaREForestClassifier(n_estimators=10, random_state=0) if kind == "forest" else None
    with Ledger.create(home, name="bench") as ledger:
        seconds = {"register": _time_seconds(lambda: register_model(ledger, n_rows, model=model))}
        ledger.requests.submit(make_ids(n_rows)[:n_erased], model="bench", verified=True)
        seconds |= _time_steps(ledger)
        certificate, attestation = (
            ledger.certificates.envelope(1),
            ledger.certificates.purge_attestation(1),
        )
        proof = next(home.joinpath("proofs").rglob("*.json")).stat().st_size
        state = ledger.requests.list()[0].state
        with ledger._core.database.reading() as connection:
            n_events = connection.execute(text("SELECT count(*) FROM events")).scalar()
    sizes = (len(certificate) / 1024, len(attestation) / 1024, proof / 1024)
    shown = tuple(seconds.get(part, 0.0) for part in PARTS)
    return (kind, f"{n_rows:,}", f"{n_erased:,}", *shown, *sizes, n_events, state)


def _time_seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _time_steps(ledger: Ledger) -> dict[str, float]:
    """Run a worker's steps one by one, and time each."""
    names = {"applied": "apply", "certified": "certify", "purged": "purge"}
    durations: dict[str, float] = {}
    start = time.perf_counter()
    for step in run_once(ledger._core, owner_name(), compute, forced=True):
        now = time.perf_counter()
        durations[names.get(step.what, step.what)] = now - start
        start = now
    return durations


MODEL = "bench"
N_TURNS = 8
N_UNTIMED = 3
BARE, ONE = "bare commits", "one client"
THREADS, VERIFIED = "20 threads of one process", "the same, verified=True"
PROCESSES = "2 processes with 10 threads each"
Work = Sequence[tuple[str, str]]
"""Idempotency key and person, for each request."""


class Done(NamedTuple):
    """Times and acknowledgements of clients."""

    seconds: list[float]
    wall: float
    acks: list[tuple[str, str]]
    """Key and request, for each acknowledgement."""

    @property
    def rate(self) -> Rate:
        """Acknowledgements per second."""
        return compute_rate(self.seconds, self.wall)


def join_results(parts: Sequence[Done], wall: float) -> Done:
    """Combine the results of several clients within a time."""
    seconds = [second for part in parts for second in part.seconds]
    return Done(seconds, wall, [ack for part in parts for ack in part.acks])


def submit_one_by_one(ledger: Ledger, work: Work, verified: bool = False) -> Done:
    """Submit one request after the other."""
    seconds, acks = [], []
    for key, person in work:
        start = time.perf_counter()
        request = ledger.requests.submit([person], model=MODEL, key=key, verified=verified)
        seconds.append(time.perf_counter() - start)
        acks.append((key, request.id))
    return Done(seconds, sum(seconds), acks)


def submit_by_threads(ledger: Ledger, work: Work, n_threads: int, verified: bool = False) -> Done:
    """Submit from several threads of this process, which share commits."""
    parts: list[Done] = []

    def client(number: int) -> None:
        parts.append(submit_one_by_one(ledger, work[number::n_threads], verified))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(n_threads)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return join_results(parts, time.perf_counter() - start)


def submit_by_processes(
    home: Path, work: Work, n_processes: int, n_threads: int = 1, verified: bool = False
) -> Done:
    """Submit from several processes; the first requests of each are not timed."""

    def client(number: int, ready: Callable[[], object]) -> Done:
        part = work[number::n_processes]
        with Ledger.open(home) as ledger:
            first = submit_one_by_one(ledger, part[:N_UNTIMED], verified)
            ready()
            rest = part[N_UNTIMED:]
            if n_threads > 1:
                done = submit_by_threads(ledger, rest, n_threads, verified)
            else:
                done = submit_one_by_one(ledger, rest, verified)
            return done._replace(acks=[*first.acks, *done.acks])

    return run_in_processes(client, n_processes)


def run_in_processes(client: Callable[[int, Callable[[], object]], Done], n: int) -> Done:
    """Run clients, each in a process; time them from the first start to the last end.

    A client calls its argument when it is ready to start.
    """
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(n), context.SimpleQueue()

    def run(number: int) -> None:
        started: list[float] = []

        def ready() -> None:
            barrier.wait()
            started.append(time.monotonic())

        done = client(number, ready)
        answers.put((done, started[0], time.monotonic()))

    clients = [context.Process(target=run, args=(number,)) for number in range(n)]
    for process in clients:
        process.start()
    parts = [answers.get() for _ in clients]
    for process in clients:
        process.join()
    wall = max(end for _, _, end in parts) - min(start for _, start, _ in parts)
    return join_results([part for part, _, _ in parts], wall)


def add_repeats(people: Sequence[str], share: float, seed: int = 0) -> Work:
    """Return requests; a share of them repeats the key and the person of another request."""
    rng = random.Random(seed)
    n_repeats = round(len(people) * share / (1 - share))
    work = [(f"key-{person}", person) for person in people]
    work += rng.choices(work, k=n_repeats)
    rng.shuffle(work)
    return work


class Effects(NamedTuple):
    """Whether each key had one effect."""

    n_acks: int
    n_keys: int
    n_stored: int
    n_ids_of_a_key: int
    """Largest number of different requests returned for one key."""

    @property
    def right(self) -> bool:
        """Whether each key has one request, and all its clients got the same answer."""
        return self.n_keys == self.n_stored and self.n_ids_of_a_key == 1


def count_effects(ledger: Ledger, acks: Sequence[tuple[str, str]]) -> Effects:
    """Compare the acknowledgements with the stored requests."""
    by_key: dict[str, set[str]] = {}
    for key, request in acks:
        by_key.setdefault(key, set()).add(request)
    with ledger._core.database.reading() as connection:
        stored = {row[0] for row in connection.execute(text("SELECT id FROM requests"))}
    known = {request for requests in by_key.values() for request in requests}
    extra = len(stored ^ known)
    return Effects(
        len(acks),
        len(by_key),
        len(known) + extra,
        max(map(len, by_key.values())),
    )


def measure_sqlite(folder: Path, journal: str, n: int, n_clients: int) -> dict[str, Rate]:
    """Return rates of bare commits, of one client and of several layouts, measured in turns.

    The turns are short, so that other disk load affects all alike.
    """
    home = folder / f"home-{journal}"
    n_people = 4 * n + N_TURNS * n_clients
    create_ledger(home, n_people)
    replace(Settings.read(home), journal=journal).write(home)
    people, bare = iter(make_ids(n_people)), BareCommits(folder / f"bare-{journal}.db", journal)
    names = (BARE, THREADS, VERIFIED, ONE, PROCESSES)
    done: dict[str, list[Done]] = {name: [] for name in names}
    size = n // N_TURNS
    for _ in range(N_TURNS):
        seconds = [time_lap(bare.commit) for _ in range(size)]
        done[BARE].append(Done(seconds, sum(seconds), []))
        with Ledger.open(home) as ledger:
            submit_by_threads(ledger, _make_requests(people, n_clients), n_clients)  # not timed
            done[THREADS].append(submit_by_threads(ledger, _make_requests(people, size), n_clients))
            done[VERIFIED].append(
                submit_by_threads(ledger, _make_requests(people, size), n_clients, True)
            )
            done[ONE].append(submit_one_by_one(ledger, _make_requests(people, size)))
        done[PROCESSES].append(
            submit_by_processes(home, _make_requests(people, size), 2, n_clients // 2)
        )
    bare.close()
    return {
        name: join_results(parts, sum(part.wall for part in parts)).rate
        for name, parts in done.items()
    }


def _make_requests(people: Iterator[str], n: int) -> Work:
    return [(f"key-{person}", person) for person in islice(people, n)]


def measure_bare_commits(url: str, n: int, n_clients: int) -> Rate:
    """Return the rate of bare commits of several clients on a server."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bare (a text)")

    def client(_: int, ready: Callable[[], object]) -> Done:
        with psycopg.connect(url, autocommit=True) as connection:
            ready()
            insert = "INSERT INTO bare VALUES ('one row of a request')"
            seconds = [time_lap(lambda: connection.execute(insert)) for _ in range(n // n_clients)]
            return Done(seconds, sum(seconds), [])

    return run_in_processes(client, n_clients).rate


def measure_postgres(
    home: Path, url: str, n: int, n_clients: int, *, verified: bool
) -> tuple[Rate, Effects]:
    """Return the rate and the effects of many clients; a fifth of the requests repeats a key."""
    create_ledger(home, n, database=url)
    done = submit_by_processes(home, add_repeats(make_ids(n), 0.2), n_clients, verified=verified)
    with Ledger.open(home) as ledger:
        return done.rate, count_effects(ledger, done.acks)


def figures(rate: Rate) -> tuple[Any, ...]:
    """Return a rate as table cells."""
    return (rate.per_second, rate.p50, rate.p99)
